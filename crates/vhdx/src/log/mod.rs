//! The log (2.3): a ring of entries, each a set of 4 KiB updates of metadata.
//!
//! | part | is |
//! |---|---|
//! | [`ring`] | the ring as bytes, wrapping |
//! | [`sequence`] | the active sequence: which entries count after a crash |
//! | [`replay`] | carrying them out, on the file or in memory |
//! | [`write`] | making new entries |

pub(crate) mod replay;
pub(crate) mod ring;
pub(crate) mod sequence;
pub(crate) mod write;

//! Results of an experiment: figures, sentences, and the three forms of both.
//!
//! | file | room of |
//! |---|---|
//! | `backups.rs` | results of backups: figures, and the three forms of both |
//! | `conclude.rs` | from what was measured to figures and sentences |
//! | `disturbed.rs` | events during the measurement of rows and their effect, as shown on a terminal |
//! | `json.rs` | results for programs |
//! | `page.rs` | results for a browser |
//! | `results.rs` | results of an experiment |
//! | `text.rs` | results for eyes, on a terminal |

pub(crate) mod backups;
pub(crate) mod conclude;
pub(crate) mod disturbed;
pub(crate) mod json;
pub(crate) mod page;
pub(crate) mod results;
pub(crate) mod text;

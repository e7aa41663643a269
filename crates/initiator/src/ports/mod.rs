//! Initiator ports of this host: their ISIDs, and which process has which session.
//!
//! | file | room of |
//! |---|---|
//! | `initiator_port.rs` | which process has which port, and what one that ended has left |
//! | `isid.rs` | the initiator's part of a session's identity |
//! | `recorded_session.rs` | sessions of this host's processes, as their records tell of them |

pub(crate) mod initiator_port;
pub(crate) mod isid;
pub(crate) mod recorded_session;

//! iSCSI sessions as lanes: from an address to one disk over several sessions.
//!
//! The disk itself is [`lunway_multipath`], which sees lanes and no sessions; a session is [`lunway_initiator`], which
//! sees no lanes.
//!
//! | file | is |
//! |---|---|
//! | `address.rs`, `paths_file.rs` | what a user says: an `iscsi://` address with several paths, or a `paths.toml` |
//! | `local.rs`, `portals.rs` | this machine's side of a plan, and the storage's |
//! | `open.rs` | plan, connections, and that all lead to one disk |
//! | `lane.rs`, `absent.rs`, `event_gate.rs` | a session as a [`Lane`](lunway_multipath::Lane), also before there is one |
//! | `reservation.rs` | the reservation key: registered on every lane, watched for preemption |
//! | `watch.rs` | cables that are pulled and put back |

mod absent;
mod address;
mod event_gate;
mod lane;
mod local;
mod open;
mod open_error;
mod paths_file;
mod portals;
mod predecessors;
mod reservation;
mod watch;

pub use address::{Address, AddressError, LaneName, MultipathUrl, PortalName};
pub use open::IscsiMultipath;
pub use open_error::PathsOpenError;
pub use paths_file::{PathsFileError, paths_file_schema};
pub use reservation::Registering;

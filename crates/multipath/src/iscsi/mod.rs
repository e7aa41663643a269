//! Lanes over iSCSI: from an address to a disk over several sessions.
//!
//! | file | is |
//! |---|---|
//! | `address.rs`, `paths_file.rs` | what a user says: an `iscsi://` address with several paths, or a `paths.toml` |
//! | `local.rs`, `portals.rs` | this machine's side of a plan, and the storage's |
//! | `open.rs` | plan, connections, and that all lead to one disk |
//! | `lane.rs`, `absent.rs`, `bell.rs` | a session as a [`Lane`](crate::Lane), also before there is one |
//! | `reservation.rs` | one reservation key on every lane, and whether somebody has taken it away |
//! | `watch.rs` | cables that are pulled and put back |

mod absent;
mod address;
mod bell;
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
pub use open_error::OpenError;
pub use paths_file::{PathsFileError, paths_file_schema};
pub use reservation::Registering;

//! Disks over several iSCSI sessions, against targets: opening, fencing, exchanged disks, killed processes, lost ports
//! and cables.
//!
//! One program, because each links the target and the initiator; a module for each subject.

#![expect(clippy::unwrap_used, reason = "a test ends where something it needs is missing")]

mod another_disk;
mod cables;
mod fenced;
mod gone_for_good;
mod keys;
mod killed;
mod opening;

#[path = "../torture/connection.rs"]
mod connection;
#[path = "../../../initiator/tests/support/line.rs"]
mod line;
#[path = "../torture/random.rs"]
mod random;
#[path = "../torture/region.rs"]
mod region;
#[path = "../../../initiator/tests/support/two_portals.rs"]
mod two_portals;
#[path = "../../../initiator/tests/support/victim.rs"]
mod victim;

use gone_for_good::OPERATION_MAX;

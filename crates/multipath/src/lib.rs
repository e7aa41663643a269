//! Many paths to one disk.

mod device;
mod fate;
mod health;
pub mod iscsi;
mod lane;
pub mod plan;
mod scheduler;

pub use device::{
    LaneStatus, MultipathDevice, Options, QUEUE_BYTES, QUEUE_TIME, SETTLE_TIME, SettingError, Unproven,
    WhenNone,
};
pub use fate::Fate;
pub use health::{Failback, Flap, LaneState};
pub use lane::{Access, Lane, LaneEvent, LaneListener};
pub use scheduler::{
    Direction, LaneFigures, LaneId, LaneShape, NoLane, Piece, Pieces, Policy, Port, Request, Scheduler,
    UnknownPolicy, Use,
};

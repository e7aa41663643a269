//! Many paths to one disk.

mod fate;
mod lane;
pub mod plan;
mod scheduler;

pub use fate::Fate;
pub use lane::{Access, Lane, LaneEvent, LaneListener};
pub use scheduler::{
    Direction, LaneFigures, LaneId, LaneShape, NoLane, Piece, Pieces, Policy, Port, Request, Scheduler,
    UnknownPolicy, Use,
};

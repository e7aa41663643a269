//! Many paths to one disk.

mod fate;
mod lane;

pub use fate::Fate;
pub use lane::{Access, Lane, LaneEvent, LaneListener};

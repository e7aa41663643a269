//! GUIDs and names that are new.

use std::sync::Arc;

use lunway_vhdx::format::GuidSource;

use crate::point_id::PointId;

/// Factory for sources of new GUIDs.
pub type Guids = Arc<dyn Fn() -> Box<dyn GuidSource> + Send + Sync>;

/// A new point's id.
pub fn new_id(guids: &Guids) -> PointId {
    PointId(guids().next().to_digits() as u64)
}

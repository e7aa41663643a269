//! Snapshots of a device that is in use: its content at one instant, read while the device goes on changing.
//!
//! ```text
//!   initiators ──▶ SnapshotLayer ──▶ device
//!                    │   gate: changes are counted, and held for an instant
//!                    │   fleeces: what a change replaces is copied first
//!                    ▼
//!                  Fleece ──▶ area (a device of bounded size)
//!                    ▲
//!   backup, NBD ──▶ SnapshotDevice: from the area what was copied, from the device what was not
//! ```
//!
//! # One snapshot
//!
//! 1. [`SnapshotLayer::hold`]: later changes wait, those under way end. Reads and flushes are not held.
//! 2. The caller flushes the device, and has others take note of the instant (change tracking closes its epoch).
//! 3. [`Hold::begin`] puts a [`Fleece`] in the way of changes; the hold ends.
//!
//! Several devices get snapshots of one instant where all are held before the first hold ends.
//!
//! # Promises
//!
//! - *The device goes on*: a hold ends by its deadline, whatever becomes of its owner. A change waits for a copy for at
//!   most [`COPY_TIME`]; an area that is full, fails or hangs breaks the snapshot, and nothing else.
//! - *A snapshot is exact or an error*: what a broken one would have to make up is never given out.
//! - Memory: about 50 bytes for each 64 KiB that was copied, and what is being copied.
//!
//! **Invariant:** this crate sees [`BlockDevice`](lunway_block::BlockDevice)s. It does not know who asks, what the area
//! lies on, or backup; it has no runtime.
//!
//! | part | is |
//! |---|---|
//! | [`SnapshotLayer`] | the layer around a served device |
//! | `gate`, [`Hold`] | changes counted, and held |
//! | [`Fleece`] | what was copied before it changed |
//! | [`SnapshotDevice`] | the frozen content as a device |

mod fleece;
mod fleeces;
mod gate;
mod layer;
mod view;

pub use fleece::{BreakCallback, COPY_TIME, Fleece, FleeceError, GRAIN, Usage};
pub use gate::{Hold, HoldError};
pub use layer::SnapshotLayer;
pub use view::SnapshotDevice;

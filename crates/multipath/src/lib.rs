//! Multipath device: one block device made of lanes, each a path to the same logical unit.
//!
//! ```text
//!   read │ write │ flush │ …
//!        ▼                which lane, or which parts on which
//!   device ──────────────────────▶ scheduler
//!     │  ▲                            ▲ what it may choose from
//!     ▼  │ events                     │
//!   lanes ───────────────────────▶ health
//! ```
//!
//! **Invariant:** nothing here knows how a lane moves bytes. A [`Lane`] is handed in: sessions by the crate
//! `iscsi-paths`, simulated ones by the tests.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`MultipathDevice`] | the disk: what is sent where, and sent again |
//! | [`Lane`] | a path; what became of what it did not finish is in its error ([`Fate`](lunway_block::Fate)) |
//! | [`Scheduler`], [`Policy`] | which lane an operation takes, or which lanes |
//! | [`LaneState`], [`Flap`], [`Failback`] | what each lane is good for |
//! | [`plan`] | from ports and portals to lanes, with reasons and warnings |

mod device;
mod health;
mod lane;
pub mod plan;
mod scheduler;

pub use device::{
    BUSY_TIME, LaneStatus, MultipathDevice, Options, QUEUE_BYTES, QUEUE_FOREVER, QUEUE_TIME, SETTLE_TIME,
    SettingError, Unproven, WhenNone,
};
pub use health::{Failback, Flap, LaneState};
pub use lane::{AluaState, Lane, LaneEvent, LaneListener};
pub use scheduler::{
    Boundaries, Direction, LaneFigures, LaneId, LaneShape, NoLane, Piece, Pieces, Policy, Port, Request,
    Scheduler, UnknownPolicy, Use,
};

//! Load generation, profiles, statistics and reports over any block device.
//!
//! ```text
//!   Profile ──▶ Job ──▶ run(device, job, progress, cancel) ──▶ Outcome ──▶ Table   (terminal)
//!                                   │                                  ├──▶ fio     (JSON for programs)
//!                            BlockDevice, a clock                      └──▶ report (one HTML page)
//! ```
//!
//! **Invariant:** this crate sees [`BlockDevice`](lunway_block::BlockDevice) and a clock. It does not know what is on
//! the other side of the waist: a RAM disk, a file and a LUN over four paths are measured by the same code.
//!
//! # What a number means
//!
//! - *Response time* is one figure per I/O, nanoseconds from its **intended** start to completion: from submission, or
//!   from when it was due where a rate is set, so that a stall is charged to every I/O that it delayed. *Service* (from
//!   submission) and *wait* (until submission) are its two parts.
//! - *MB/s* is 1,000,000 bytes per second, everywhere. fio's `bw` field is KiB/s, because fio's is.
//! - Percentiles are of all I/Os of the run, never averages of percentiles.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`Job`], [`run`], [`Outcome`] | what to do, doing it, what came of it |
//! | [`generator_cost`] | what making load costs by itself |
//! | [`holds_data`], [`holds_data_anywhere`] | would a write destroy something? |
//! | [`cache_truth`] | what may have been answered from a cache? |
//! | [`profile`], [`score`] | sets of jobs with one answer, `anvil`, `crystal`, `atto` …, and our own score |
//! | [`compare`] | two or more of anything measured in turns, and which differences are real |
//! | [`Schedule`] | jobs one after the other and side by side |
//! | [`stream`] | results while they come, a line a second |
//! | [`wire`] | what bare sockets do with the same blocks, and the device's share of it |
//! | [`Table`], [`fio`], [`report`] | results for eyes, for programs, for a browser |

pub mod compare;
pub mod fio;
pub mod profile;
pub mod report;
pub mod score;
pub mod stream;
pub mod wire;

mod cache;
mod error;
mod generator;
mod load;
mod measure;
mod occupancy;
mod run;
mod table;
mod verify;

pub use cache::cache_truth;
pub use error::BenchError;
pub use generator::{GeneratorCost, generator_cost};
pub use load::access::{Distribution, Mix, Pattern, RwMode};
pub use load::job::{
    Arrivals, Fill, JOBS_MAX, Job, Limit, QUEUE_DEPTH_MAX, Rate, Region, VERIFY_BLOCKS_MAX, random_seed,
};
pub use load::job_error::JobError;
pub use load::sizes::{BLOCK_SIZE_MAX, BlockSizes, Share};
pub use measure::cpu::CpuTime;
pub use measure::interval::Interval;
pub use measure::latency::Latency;
pub use measure::outcome::{Direction, End, Outcome};
pub use measure::series::{Point, Series};
pub use occupancy::{holds_data, holds_data_anywhere};
pub use run::cancel::Cancel;
pub use run::progress::Tick;
pub use run::run;
pub use run::schedule::{Event, Schedule, ScheduledJob};
pub use table::{Table, TableRow};

pub use verify::{Fault, FaultKind, NO_STAMPS, Verification};

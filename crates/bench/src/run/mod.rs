//! Running a job.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | one job on one device |
//! | `cancel.rs` | ending a run early |
//! | `cost.rs` | expected duration of jobs, before and while they run |
//! | `engine.rs` | the loop that issues and collects I/Os |
//! | `progress.rs` | progress of a run |
//! | `schedule.rs` | jobs one after the other and side by side |
//! | `slots.rs` | wakers of the I/Os in flight: which of them have been woken |
//! | `workers.rs` | several workers on one device |

pub(crate) mod cancel;
pub(crate) mod cost;
pub(crate) mod engine;
pub(crate) mod progress;
pub(crate) mod schedule;
pub(crate) mod slots;
pub(crate) mod workers;

use std::sync::Arc;

use lunway_block::BlockDevice;

use crate::BenchError;
use crate::load::job::Job;
use crate::measure::outcome::{End, Outcome};
use crate::occupancy::holds_data_anywhere;
use crate::run::cancel::Cancel;
use crate::run::progress::{Progress, Tick};
use crate::run::workers::Workers;

/// Runs `job` on `device` and says what came of it.
///
/// Each worker keeps `job.queue_depth` I/Os in flight; each completion issues the next. A single worker is the calling
/// task, which must be inside a tokio runtime with time enabled, best a `current_thread` one that nothing else competes
/// for; several have a thread each. `progress` is called from the calling task and should be quick.
///
/// Cancelled, in whatever it was doing, it gives the outcome of what was done. Dropped, it stops issuing.
///
/// A failed I/O is counted, not returned; a thousand in a row with no success end the run. A job that writes is refused
/// with [`BenchError::WouldDestroy`] if [`holds_data_anywhere`] sees data on the device and [`Job::destroy`] is not
/// set.
pub async fn run(
    device: Arc<dyn BlockDevice>,
    job: &Job,
    progress: &mut dyn FnMut(&Tick),
    cancel: &Cancel,
) -> Result<Outcome, BenchError> {
    let geometry = device.geometry();
    job.check(&geometry)?;
    let region = job.region_on(&geometry);
    if job.mix.writes() {
        if geometry.read_only {
            return Err(BenchError::ReadOnly);
        }
        if !job.destroy {
            let found = holds_data_anywhere(&*device, &[region], &mut |_| ()).await;
            let found = found.map_err(|source| BenchError::Device { doing: "looking for data", source })?;
            if let Some(offset) = found {
                return Err(BenchError::WouldDestroy { offset });
            }
        }
    }
    let mut workers = Workers::new(device, job);
    let mut outcome = workers.drive(&mut Progress::of(job, progress), cancel).await?;
    if job.verify && job.mix.writes() && outcome.end == End::Limit {
        let bytes = workers.read_back();
        let pass = workers.drive(&mut Progress::of_reading_back(bytes, progress), cancel).await?;
        outcome.read.errors += pass.read.errors;
        outcome.read.first_error = outcome.read.first_error.or(pass.read.first_error);
        outcome.end = pass.end;
    }
    outcome.job = job.clone();
    outcome.verification = workers.into_found();
    Ok(outcome)
}

//! Jobs on devices, as a comparison's runs.

use std::sync::Arc;

use lunway_block::BlockDevice;
use lunway_report::Better;

use super::plan::{Arm, Row, Run};
use crate::BenchError;
use crate::load::access::{Mix, Pattern};
use crate::load::job::{Job, Limit, Region};
use crate::load::random::mix;
use crate::load::sizes::BlockSizes;
use crate::measure::outcome::End;
use crate::run::cancel::Cancel;
use crate::run::progress::Tick;
use crate::run::run;

/// Figure taken from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// I/Os per second, of both directions together.
    Iops,
    /// Mean response time, milliseconds.
    ResponseMs,
}

/// Result of one run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Its figure; NaN if any I/O failed.
    pub figure: f64,
    /// Error of the first I/O that failed.
    pub first_error: Option<String>,
    /// Nothing but errors came any more.
    pub failing: bool,
}

/// Candidates that are devices, and rows that are jobs.
pub struct Devices {
    /// Devices, one for each arm; the first is the control.
    pub candidates: Vec<Arc<dyn BlockDevice>>,
    /// The control, opened once more: what another connection, another file handle or other memory does to the figure
    /// is then seen in the control against itself. The same device where it cannot be opened twice.
    pub control_again: Arc<dyn BlockDevice>,
    /// Jobs, one for each row.
    pub jobs: Vec<Job>,
    /// Figure taken from each run; a job with a rate always gives its response time, as its IOPS are the rate.
    pub figure: Figure,
}

impl Devices {
    /// The rows of the plan.
    pub fn rows(&self) -> Vec<Row> {
        let row = |job: &Job| {
            let (unit, better) = match self.figure_of(job) {
                Figure::Iops => ("IOPS", Better::Higher),
                Figure::ResponseMs => ("ms", Better::Lower),
            };
            Row { name: job.name.clone(), unit: unit.into(), better }
        };
        self.jobs.iter().map(row).collect()
    }

    /// Refuses jobs that cannot run on one of the devices.
    pub fn check(&self) -> Result<(), BenchError> {
        for device in self.candidates.iter().chain([&self.control_again]) {
            for job in &self.jobs {
                job.check(&device.geometry())?;
            }
        }
        Ok(())
    }

    /// Writes what the jobs will read, so that none reads what was never written; to be called where everything may be
    /// overwritten. Ends early after a cancel. `step` says which of how many regions is being written.
    pub async fn prepare(
        &self,
        progress: &mut dyn FnMut(usize, usize, &Tick),
        cancel: &Cancel,
    ) -> Result<(), BenchError> {
        let mut devices: Vec<&Arc<dyn BlockDevice>> = self.candidates.iter().collect();
        if !devices.iter().any(|device| Arc::ptr_eq(device, &self.control_again)) {
            devices.push(&self.control_again);
        }
        let mut writes = Vec::new();
        for device in devices {
            let mut regions: Vec<Region> =
                self.jobs.iter().map(|job| job.region_on(&device.geometry())).collect();
            regions.sort_by_key(|region| (region.offset, region.len));
            regions.dedup();
            writes.extend(regions.into_iter().map(|region| (device, region)));
        }
        let count = writes.len();
        for (index, (device, region)) in writes.into_iter().enumerate() {
            // A region below 1 MiB is written in one piece.
            let block_size = u32::try_from(region.len.min(1 << 20)).unwrap_or(1 << 20);
            let job = Job {
                pattern: Pattern::Sequential,
                mix: Mix::WRITE,
                block_sizes: BlockSizes::Fixed(block_size),
                queue_depth: 8,
                limit: Limit::Bytes(region.len),
                region: Some(region),
                destroy: true,
                ..Job::new("preparation")
            };
            let outcome = run(device.clone(), &job, &mut |tick| progress(index, count, tick), cancel).await?;
            if cancel.is_cancelled() {
                break;
            }
            if let Some(said) = outcome.write.first_error {
                return Err(BenchError::Preparation { said });
            }
        }
        Ok(())
    }

    /// The figure of a run; NaN if any I/O failed.
    pub async fn measure(
        &self,
        run_of: Run,
        progress: &mut dyn FnMut(&Tick),
        cancel: &Cancel,
    ) -> Result<f64, BenchError> {
        Ok(self.measured(run_of, progress, cancel).await?.figure)
    }

    /// The same, with the error. All arms of a block get the same addresses, each block others.
    pub async fn measured(
        &self,
        run_of: Run,
        progress: &mut dyn FnMut(&Tick),
        cancel: &Cancel,
    ) -> Result<Measured, BenchError> {
        let device = match run_of.arm {
            Arm::Candidate(index) => &self.candidates[index],
            Arm::ControlAgain => &self.control_again,
        };
        let job = &self.jobs[run_of.row];
        let block = run_of.block.map_or(0, |block| u64::from(block) + 1);
        let job = Job { seed: mix(job.seed.wrapping_add(block)), ..job.clone() };
        let outcome = run(device.clone(), &job, progress, cancel).await?;
        if outcome.errors() > 0 || outcome.end == End::Failing {
            return Ok(Measured {
                figure: f64::NAN,
                first_error: outcome.read.first_error.or(outcome.write.first_error),
                // A device whose errors take their time has few of them in a short run.
                failing: outcome.end == End::Failing || outcome.read.ios + outcome.write.ios == 0,
            });
        }
        let iops = outcome.read.iops() + outcome.write.iops();
        let figure = match self.figure_of(&job) {
            Figure::Iops => iops,
            Figure::ResponseMs => {
                let sum = |direction: &crate::Direction| direction.response.mean() * direction.ios as f64;
                let ios = (outcome.read.ios + outcome.write.ios) as f64;
                (sum(&outcome.read) + sum(&outcome.write)) / ios / 1e6
            }
        };
        Ok(Measured { figure, first_error: None, failing: false })
    }

    fn figure_of(&self, job: &Job) -> Figure {
        if job.rate.is_some() { Figure::ResponseMs } else { self.figure }
    }
}

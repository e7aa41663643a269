//! Rows of a comparison: the jobs that are compared.

use std::time::Duration;

use lunway_bench::profile::{self, Kind, Options};
use lunway_bench::{Distribution, Job, Limit, RwMode};
use lunway_block::Geometry;
use lunway_block::size::HumanSize;

use super::Compare;
use crate::command::bench::arguments::RwModeName;
use crate::command::bench::job_file;
use crate::failure::Failure;

/// A run is this long if nothing else is said: ten rows with ten pairs are then six minutes, and what noise a second
/// has more than a minute, more pairs average out.
const TIME: Duration = Duration::from_secs(1);
/// And this long before it is measured: connections fill, a device's queue settles.
const RAMP: Duration = Duration::from_millis(100);

impl Compare {
    /// Refuses flags that contradict each other.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if let (Some(RwModeName(rw)), Some(_)) = (self.rw, self.mix)
            && !rw.is_mixed()
        {
            let message = "--mix needs --rw rw or --rw randrw: the others only read or only write";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(())
    }

    /// A job for each row, for devices that are at least this large.
    pub(super) fn jobs(
        &self,
        geometry: &Geometry,
        destroy: bool,
        seed: u64,
    ) -> Result<(Vec<Job>, Vec<String>), Failure> {
        let (duration, ramp) = (self.time.unwrap_or(TIME), self.ramp.unwrap_or(RAMP));
        let options =
            Options { duration, ramp, region: self.size, destroy, seed, ..Options::of(Kind::Anvil) };
        match (&self.job, self.rw) {
            (Some(path), _) => {
                let file = job_file(path)?;
                let schedule =
                    file.schedule(geometry, destroy).map_err(|error| Failure::Usage(error.to_string()))?;
                let jobs = schedule.stages.into_iter().flatten().map(|entry| self.shortened(entry.job));
                let mut notes = schedule.notes;
                notes.push(
                    "The jobs of the file are compared one at a time, whether they have `stonewall` or not."
                        .into(),
                );
                Ok((jobs.collect(), notes))
            }
            (None, Some(RwModeName(rw))) => {
                let job = self.row(rw, &options, geometry);
                let notes = if destroy { Vec::new() } else { vec![reads_what_is_there().to_owned()] };
                Ok((vec![job], notes))
            }
            (None, None) => {
                let profile = profile::anvil(geometry, &options);
                Ok((profile.rows, profile.notes))
            }
        }
    }

    fn row(&self, rw: RwMode, options: &Options, geometry: &Geometry) -> Job {
        let (block_size, queue_depth) = (self.bs.unwrap_or(4096), self.qd.unwrap_or(1));
        Job {
            pattern: rw.pattern(Distribution::Uniform),
            mix: rw.mix(self.mix.unwrap_or(50)),
            block_sizes: block_size.into(),
            queue_depth,
            limit: Limit::Time(options.duration),
            ramp: options.ramp,
            rate: self.rate,
            region: Some(options.region_on(geometry)),
            seed: options.seed,
            destroy: options.destroy,
            ..Job::new(format!("{} {} QD{queue_depth}", rw.name(), HumanSize(block_size.into())))
        }
    }

    /// A file's job with the times of the command line, where there are any.
    fn shortened(&self, job: Job) -> Job {
        Job { limit: self.time.map_or(job.limit, Limit::Time), ramp: self.ramp.unwrap_or(job.ramp), ..job }
    }
}

fn reads_what_is_there() -> &'static str {
    "Nothing may be overwritten: reads cover the present contents; blocks that were never written read faster than data."
}

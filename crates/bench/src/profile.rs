//! Sets of jobs that belong together.

use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, Geometry};

use crate::BenchError;
use crate::job::{Job, Limit, Mix, Pattern, Region};
use crate::outcome::{End, Outcome};
use crate::run::{Cancel, Tick, run};

/// How to run a profile.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long each row is measured.
    pub duration: Duration,
    /// How long each row runs before that.
    pub ramp: Duration,
    /// Size of the region at the start of the device, bytes; less if the device is smaller.
    pub region: u64,
    /// The region may be overwritten: the caller was told so, or [`holds_data`](crate::holds_data) saw nothing in it.
    pub destroy: bool,
    /// Of addresses and data.
    pub seed: u64,
}

impl Default for Options {
    /// 5 s per row after half a second, in 1 GiB, destroying nothing.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(5),
            ramp: Duration::from_millis(500),
            region: 1 << 30,
            destroy: false,
            seed: crate::random_seed(),
        }
    }
}

/// Jobs to run in order.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Run first, not reported: writes what the rows read, so that none reads what was never written.
    pub preparation: Option<Job>,
    /// The rows of the table.
    pub rows: Vec<Job>,
    /// What a reader of the results must know.
    pub notes: Vec<String>,
}

/// Which part of a profile is running.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The job.
    pub job: &'a Job,
    /// From 0, preparation included.
    pub index: usize,
    /// Number of steps, preparation included.
    pub count: usize,
}

/// One row: name, pattern, block size, queue depth.
type Row = (&'static str, Pattern, u32, u32);

const READS: [Row; 6] = [
    ("read seq 4 MiB", Pattern::Sequential, 4 << 20, 1),
    ("read 4K", Pattern::Random, 4 << 10, 1),
    ("read 4K QD4", Pattern::Random, 4 << 10, 4),
    ("read 4K QD16", Pattern::Random, 4 << 10, 16),
    ("read 32K", Pattern::Random, 32 << 10, 1),
    ("read 128K", Pattern::Random, 128 << 10, 1),
];

const WRITES: [Row; 4] = [
    ("write seq 4 MiB", Pattern::Sequential, 4 << 20, 1),
    ("write 4K", Pattern::Random, 4 << 10, 1),
    ("write 4K QD4", Pattern::Random, 4 << 10, 4),
    ("write 4K QD16", Pattern::Random, 4 << 10, 16),
];

/// The ten rows that storage reviewers compare: sequential 4 MiB and random 4K at depths 1, 4 and 16 both ways, random
/// 32K and 128K reads at depth 1. All reads come first, then all writes.
///
/// With `options.destroy` the region is written once before the reads. Without it only the reads are there, and a note
/// says that they read what the device happened to hold. Rows whose block does not fit the region are left out, with a note.
pub fn anvil(geometry: &Geometry, options: &Options) -> Profile {
    let sector = u64::from(geometry.logical_sector);
    let region = Region { offset: 0, len: options.region.min(geometry.size) / sector * sector };
    let mut notes = Vec::new();
    let mut rows = Vec::new();
    let mut add = |table: &[Row], mix: Mix| {
        for &(name, pattern, block_size, queue_depth) in table {
            if u64::from(block_size) > region.len {
                notes.push(format!("“{name}” is left out: the device is smaller than its block."));
                continue;
            }
            rows.push(Job {
                name: name.into(),
                pattern,
                mix,
                block_size,
                queue_depth,
                limit: Limit::Time(options.duration),
                ramp: options.ramp,
                region: Some(region),
                seed: options.seed,
                destroy: options.destroy,
                ..Job::new(name)
            });
        }
    };
    add(&READS, Mix::READ);
    if options.destroy {
        add(&WRITES, Mix::WRITE);
    }
    let mut preparation = None;
    if options.destroy {
        let whole = 1 << 20;
        // A region below 1 MiB is written in one piece.
        let block_size = u32::try_from(region.len.min(whole)).unwrap_or(1 << 20);
        preparation = Some(Job {
            pattern: Pattern::Sequential,
            mix: Mix::WRITE,
            block_size,
            queue_depth: 8,
            limit: Limit::Bytes(region.len),
            region: Some(region),
            seed: options.seed,
            destroy: true,
            ..Job::new("preparation")
        });
    } else {
        notes.push(
            "Reads only: nothing may be overwritten. They read what the device holds; where nothing was ever written, \
             that is faster than real data."
                .into(),
        );
    }
    let mib = region.len as f64 / f64::from(1 << 20);
    notes.push(format!(
        "Region: the first {mib:.0} MiB. 32K and 128K are random at depth 1. Data: incompressible."
    ));
    Profile { preparation, rows, notes }
}

impl Profile {
    /// About how long it takes, without the preparation.
    pub fn duration(&self) -> Duration {
        self.rows.iter().map(|job| job.ramp + job.limit.time().unwrap_or_default()).sum()
    }

    /// Runs the preparation and the rows, in order. After a cancel, the answer is what was done until then; after a
    /// preparation with errors it is that preparation alone.
    pub async fn run(
        &self,
        device: &Arc<dyn BlockDevice>,
        progress: &mut dyn FnMut(Step<'_>, &Tick),
        cancel: &Cancel,
    ) -> Result<Vec<Outcome>, BenchError> {
        let mut outcomes = Vec::with_capacity(self.rows.len());
        let first = usize::from(self.preparation.is_some());
        let count = first + self.rows.len();
        for (index, job) in self.preparation.iter().chain(&self.rows).enumerate() {
            let step = Step { job, index, count };
            let outcome = run(Arc::clone(device), job, &mut |tick| progress(step, tick), cancel).await?;
            let end = outcome.end;
            // A preparation that failed is news: the rows would read what was not written.
            let failed = index < first && outcome.errors() > 0;
            if index >= first || failed {
                outcomes.push(outcome);
            }
            if end == End::Cancelled || failed {
                break;
            }
        }
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::REFERENCE;

    fn names(profile: &Profile) -> Vec<&str> {
        profile.rows.iter().map(|job| job.name.as_str()).collect()
    }

    #[test]
    fn the_ten_rows_have_the_names_that_are_scored_and_run_on_the_device() {
        let geometry = Geometry::plain(4 << 30);
        let profile = anvil(&geometry, &Options { destroy: true, ..Options::default() });
        assert_eq!(names(&profile), REFERENCE.map(|(name, _)| name));
        for job in profile.rows.iter().chain(&profile.preparation) {
            assert_eq!(job.check(&geometry), Ok(()), "{}", job.name);
            assert_eq!(job.region, Some(Region { offset: 0, len: 1 << 30 }));
        }
    }

    #[test]
    fn without_leave_to_destroy_nothing_writes_and_a_note_says_so() {
        let profile = anvil(&Geometry::plain(4 << 30), &Options::default());
        assert!(profile.preparation.is_none());
        assert!(profile.rows.iter().all(|job| !job.mix.writes()));
        assert!(profile.notes.iter().any(|note| note.starts_with("Reads only")));
    }

    #[test]
    fn a_tiny_device_gets_the_rows_that_fit() {
        let geometry = Geometry::plain(100 << 10).with_sector(4096);
        let profile = anvil(&geometry, &Options { destroy: true, ..Options::default() });
        assert_eq!(profile.rows.len(), 7);
        assert!(profile.notes[0].contains("read seq 4 MiB"));
        assert!(profile.rows.iter().chain(&profile.preparation).all(|job| job.check(&geometry).is_ok()));
    }
}

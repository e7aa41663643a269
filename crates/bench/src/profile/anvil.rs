//! The ten rows that storage reviewers compare.

use std::sync::Arc;
use std::time::Duration;

use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, Geometry};

use crate::BenchError;
use crate::load::access::{Mix, Pattern};
use crate::load::job::Job;
use crate::measure::outcome::Outcome;
use crate::run::cancel::Cancel;
use crate::run::progress::Tick;

use crate::score::{REFERENCE, REFERENCE_VERSION};

use super::runner::Runner;
use super::{Options, READS_ONLY, Step, job, order, preparation};

/// Jobs to run in order.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Run first, not reported: writes what the rows read, so that none reads what was never written.
    pub preparation: Option<Job>,
    /// The rows of the table.
    pub rows: Vec<Job>,
    /// Notes for a reader of the results.
    pub notes: Vec<String>,
}

/// Row of the table: name, pattern, block size, queue depth.
type Row = (&'static str, Pattern, u32, u32);

const READS: [Row; 6] = [
    ("read seq 4 MiB", Pattern::Sequential, 4 << 20, 1),
    ("read 4K", Pattern::RANDOM, 4 << 10, 1),
    ("read 4K QD4", Pattern::RANDOM, 4 << 10, 4),
    ("read 4K QD16", Pattern::RANDOM, 4 << 10, 16),
    ("read 32K", Pattern::RANDOM, 32 << 10, 1),
    ("read 128K", Pattern::RANDOM, 128 << 10, 1),
];

const WRITES: [Row; 4] = [
    ("write seq 4 MiB", Pattern::Sequential, 4 << 20, 1),
    ("write 4K", Pattern::RANDOM, 4 << 10, 1),
    ("write 4K QD4", Pattern::RANDOM, 4 << 10, 4),
    ("write 4K QD16", Pattern::RANDOM, 4 << 10, 16),
];

/// The ten rows that storage reviewers compare: sequential 4 MiB and random 4K at depths 1, 4 and 16 both ways, random
/// 32K and 128K reads at depth 1. All reads come first, then all writes.
///
/// With `options.destroy` the region is written once before the reads. Without it only the reads are there, and a note
/// says that they read what the device happened to hold. Rows whose block does not fit the region are left out, with a
/// note.
pub fn anvil(geometry: &Geometry, options: &Options) -> Profile {
    let region = options.work_on(geometry);
    let mut notes = Vec::new();
    let mut rows = Vec::new();
    let mut add = |table: &[Row], mix: Mix| {
        for &(name, pattern, block_size, queue_depth) in table {
            if u64::from(block_size) > region.len {
                notes.push(format!("“{name}” is left out: the device is smaller than its block."));
                continue;
            }
            let row = job(name, pattern, mix, block_size, queue_depth, region, options);
            rows.push(Job { ramp: options.ramp, ..row });
        }
    };
    add(&READS, Mix::READ);
    if options.destroy {
        add(&WRITES, Mix::WRITE);
    }
    if !options.destroy {
        notes.push(READS_ONLY.into());
    }
    let len = HumanSize(region.len);
    notes.push(format!("Region: the first {len}. 32K and 128K are random at depth 1. Data: incompressible."));
    Profile { preparation: preparation(region, options), rows, notes }
}

/// The rows with their reference and the formula of the score.
pub(super) fn published() -> String {
    let mut text = String::from("| row | order | block | depth | reference, IOPS |\n|---|---|---|---|---|\n");
    for (name, pattern, block_size, depth) in READS.iter().chain(&WRITES) {
        let reference = REFERENCE.iter().find(|(row, _)| row == name).map_or(0.0, |(_, iops)| *iops);
        let block = HumanSize(u64::from(*block_size));
        text += &format!("| {name} | {} | {block} | {depth} | {reference:.2} |\n", order(*pattern));
    }
    text += &format!(
        "\nScore (`{REFERENCE_VERSION}`) of a direction: 1000 × the geometric mean of IOPS ÷ reference over its rows. Total: the geometric mean of both.\n"
    );
    text
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
        let mut runner = Runner::new(device, progress, cancel);
        self.run_on(&mut runner).await?;
        Ok(runner.outcomes)
    }

    pub(super) async fn run_on(&self, runner: &mut Runner<'_>) -> Result<(), BenchError> {
        runner.plan_jobs(self.preparation.iter().chain(&self.rows));
        if !runner.prepare(self.preparation.as_ref()).await? {
            return Ok(());
        }
        for row in &self.rows {
            let outcome = runner.job(row).await?;
            runner.outcomes.push(outcome);
            if runner.is_cancelled() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::job::Region;

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

//! Throughput as a function of transfer size.

use std::fmt;

use lunway_block::Geometry;
use lunway_block::size::HumanSize;
use serde_json::{Value, json};

use crate::BenchError;
use crate::load::access::{Mix, Pattern};
use crate::load::job::{Job, Limit};
use crate::measure::outcome::Outcome;
use lunway_report::figure;

use super::crystal::Figures;
use super::runner::Runner;
use super::{Options, READS_ONLY, job, preparation};

/// Smallest transfer, bytes; the device's sector where that is larger.
const SMALLEST: u32 = 512;
/// Largest transfer, bytes.
const LARGEST: u32 = 64 << 20;
/// I/Os in flight, as the tool has it unless told otherwise.
const DEPTH: u32 = 4;

/// Result of the `atto` profile: sequential throughput by transfer size.
///
/// Each size moves the region's length once, but for no longer than [`Options::duration`]: small transfers would take
/// minutes on a slow path.
#[derive(Clone, Debug, Default)]
pub struct Atto {
    /// By size, smallest first.
    pub sweep: Vec<SweepPoint>,
}

/// Results for one transfer size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepPoint {
    /// Bytes per I/O.
    pub block_size: u32,
    /// Writing; `None` where nothing may be written, or where it was interrupted before.
    pub write: Option<Figures>,
    /// Reading what was written; `None` where it was interrupted before.
    pub read: Option<Figures>,
}

/// The sizes that a device with that sector and a region of that length can have.
fn sizes(sector: u32, len: u64) -> impl Iterator<Item = u32> {
    let doubled = std::iter::successors(Some(SMALLEST), |size| size.checked_mul(2));
    doubled.take_while(|&size| size <= LARGEST).filter(move |&size| size >= sector && u64::from(size) <= len)
}

/// The sizes.
pub(super) fn published() -> String {
    let sizes: Vec<String> = sizes(SMALLEST, LARGEST.into()).map(size_name).collect();
    format!("Transfer sizes, sequential at depth {DEPTH}: {}.\n", sizes.join(", "))
}

fn row(block_size: u32, mix: Mix, geometry: &Geometry, options: &Options) -> Job {
    let region = options.work_on(geometry);
    let direction = if mix.writes() { "write" } else { "read" };
    let name = format!("{direction} {}", size_name(block_size));
    let limit = Limit::Either { time: options.duration, bytes: region.len };
    let row = job(name, Pattern::Sequential, mix, block_size, DEPTH, region, options);
    Job { limit, ramp: options.ramp, ..row }
}

/// Every job, in order.
pub(super) fn jobs(geometry: &Geometry, options: &Options) -> Vec<Job> {
    let region = options.work_on(geometry);
    let rows = sizes(geometry.logical_sector, region.len).flat_map(|size| {
        let write = options.destroy.then(|| row(size, Mix::WRITE, geometry, options));
        write.into_iter().chain([row(size, Mix::READ, geometry, options)])
    });
    preparation(region, options).into_iter().chain(rows).collect()
}

/// Measures all sizes, each written, then read.
pub(super) async fn run(
    runner: &mut Runner<'_>,
    options: &Options,
) -> Result<(Atto, Vec<String>), BenchError> {
    let geometry = runner.geometry();
    let mut notes = Vec::new();
    if !options.destroy {
        notes.push(READS_ONLY.into());
    }
    let region = options.work_on(&geometry);
    notes.push(format!(
        "Sequential at depth {DEPTH}; each size moves {}, or what it can in {:?}. Data: incompressible, where the tool \
         that made this sweep popular writes data that compresses well.",
        HumanSize(region.len),
        options.duration
    ));
    let mut atto = Atto::default();
    let jobs = jobs(&geometry, options);
    runner.plan_jobs(&jobs);
    let mut rows = jobs.iter();
    let preparation = if options.destroy { rows.next() } else { None };
    if !runner.prepare(preparation).await? {
        return Ok((atto, notes));
    }
    for row in rows {
        let outcome = runner.job(row).await?;
        atto.count(&outcome);
        runner.outcomes.push(outcome);
        if runner.is_cancelled() {
            break;
        }
    }
    Ok((atto, notes))
}

impl Atto {
    fn count(&mut self, outcome: &Outcome) {
        if outcome.read.ios + outcome.write.ios == 0 {
            return;
        }
        let block_size = outcome.job.block_sizes.largest(outcome.job.mix);
        if self.sweep.last().is_none_or(|point| point.block_size != block_size) {
            self.sweep.push(SweepPoint { block_size, write: None, read: None });
        }
        if let Some(point) = self.sweep.last_mut() {
            let figures = Some(Figures::of(outcome));
            if outcome.job.mix.writes() { point.write = figures } else { point.read = figures }
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let figures = |figures: Option<Figures>| {
            figures.map(|figures| json!({ "bytes_per_s": figures.mb_s * 1e6, "iops": figures.iops }))
        };
        let point = |point: &SweepPoint| json!({ "block_size": point.block_size, "write": figures(point.write), "read": figures(point.read) });
        json!({ "sweep": self.sweep.iter().map(point).collect::<Vec<_>>() })
    }
}

impl fmt::Display for Atto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>8}  {:>13}  {:>12}  {:>10}  {:>10}",
            "Transfer", "Write (MB/s)", "Read (MB/s)", "Write IOPS", "Read IOPS"
        )?;
        let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure);
        for point in &self.sweep {
            writeln!(
                f,
                "{:>8}  {:>13}  {:>12}  {:>10}  {:>10}",
                size_name(point.block_size),
                cell(point.write.map(|figures| figures.mb_s)),
                cell(point.read.map(|figures| figures.mb_s)),
                cell(point.write.map(|figures| figures.iops)),
                cell(point.read.map(|figures| figures.iops)),
            )?;
        }
        f.write_str("MB = 1,000,000 bytes. Transfer sizes: K = 1024 bytes, M = 1024 K.")
    }
}

/// "512", "4K", "64M".
pub(super) fn size_name(bytes: u32) -> String {
    match bytes {
        0..1024 => format!("{bytes}"),
        1024..1_048_576 => format!("{}K", bytes >> 10),
        _ => format!("{}M", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_from_the_sector_to_64_mib_or_to_the_region() {
        let all: Vec<u32> = sizes(512, 256 << 20).collect();
        assert_eq!((all.len(), all[0], all[17]), (18, 512, 64 << 20));
        assert_eq!(
            sizes(4096, 1 << 20).map(size_name).collect::<Vec<_>>().join(" "),
            "4K 8K 16K 32K 64K 128K 256K 512K 1M"
        );
    }

    #[test]
    fn every_job_of_the_sweep_runs_on_the_device() {
        for geometry in [Geometry::plain(1 << 20), Geometry::plain(1 << 40).with_sector(4096)] {
            let options = Options { destroy: true, ..Options::of(super::super::Kind::Atto) };
            let jobs = jobs(&geometry, &options);
            assert!(jobs.iter().all(|job| job.check(&geometry).is_ok()));
            assert!(jobs.len() > 20, "{}", jobs.len());
        }
    }
}

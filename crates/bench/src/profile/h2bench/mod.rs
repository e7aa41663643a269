//! A device from end to end: the link's ceiling, sequential maximum, zones, access times, applications, integrity.

mod access;
mod applications;
mod integrity;
mod zones;

use std::fmt;
use std::iter::repeat_n;
use std::time::Duration;

use lunway_block::Geometry;
use lunway_block::size::HumanSize;
use lunway_report::{figure, response_time};
use serde_json::{Value, json};

use crate::BenchError;
use crate::load::access::{Mix, Pattern};
use crate::load::job::{Job, Region};
use crate::measure::outcome::{End, Outcome};
use crate::run::cost::{ASSUMED_RATE, Cost, total};

use super::crystal::Figures;
use super::probe::Probe;
use super::runner::Runner;
use super::{Options, READS_ONLY, job, preparation};
use access::Target;
use integrity::Check;

pub use access::AccessTime;
pub use applications::{
    APPLICATIONS, Application, ApplicationResult, INDEX_VERSION, Part, REFERENCE_ACCESS_MS, REFERENCE_MB_S,
    index,
};
pub use integrity::Integrity;
pub use zones::{Range, Zone, Zones};

/// Extent that is re-read to measure the ceiling of the link, bytes.
const INTERFACE_EXTENT: u64 = 1 << 20;
/// The part of the device in which the sequential maximum is measured and the applications run, bytes.
const WORK: u64 = 1 << 30;

/// I/Os in flight for these two.
const DEPTH: u32 = 8;

/// Result of the `h2bench` profile; parts are missing if the profile was interrupted before them, or where nothing may
/// be written.
#[derive(Clone, Debug, Default)]
pub struct H2bench {
    /// Re-reading 1 MiB at the start, 64 KiB at depth 8: what the link gives when the far end has the data at hand.
    pub interface: Option<Figures>,
    /// Reading the first GiB, 1 MiB at depth 8.
    pub read: Option<Figures>,
    /// Writing it.
    pub write: Option<Figures>,
    /// Throughput over the whole device.
    pub zones: Option<Zones>,
    /// Access times.
    pub access: Vec<AccessTime>,
    /// The application mixes.
    pub applications: Vec<ApplicationResult>,
    /// Result of the integrity check: whether sectors come back from where they were written.
    pub integrity: Option<Integrity>,
    /// I/Os that failed in zones, accesses, applications and integrity check.
    pub errors: u64,
    /// Error of the first of them.
    pub first_error: Option<String>,
}

/// Every constant, the mixes, and the reference of the index.
pub(super) fn published() -> String {
    let rows = [
        (
            "interface",
            format!(
                "the first {}, read repeatedly, {} sequential at depth {DEPTH}, for `--time`",
                HumanSize(INTERFACE_EXTENT),
                HumanSize(zones::BLOCK)
            ),
        ),
        (
            "sequential maximum",
            format!(
                "the first {}, 1 MiB sequential at depth {DEPTH}, read and write, for `--time` each",
                HumanSize(WORK)
            ),
        ),
        ("zones", zones::published()),
        ("access times", access::published()),
        ("applications", format!("in the first {}, one I/O at a time, for `--time` each", HumanSize(WORK))),
        ("integrity", integrity::published()),
    ];
    let mut text = String::from("| part | I/O |\n|---|---|\n");
    for (part, what) in rows {
        text += &format!("| {part} | {what} |\n");
    }
    text + "\n" + &applications::published()
}

/// Steps to run on a device, in order.
struct Plan {
    region: Region,
    work: Region,
    preparation: Option<Job>,
    interface: Job,
    read: Job,
    write: Option<Job>,
    zones: Zones,
    /// The time for a measurement of accesses, and for the random part of the integrity check.
    long: Duration,
    /// The first 504 MiB are less than all of it.
    has_first: bool,
    applications: Vec<&'static Application>,
    destroy: bool,
}

impl Plan {
    fn new(geometry: &Geometry, options: &Options) -> Self {
        let region = options.region_on(geometry);
        let sector = u64::from(geometry.logical_sector);
        let work = Options { region: options.region.min(WORK), ..options.clone() }.work_on(geometry);
        let reread = Region { offset: 0, len: work.len.min(INTERFACE_EXTENT) };
        let block =
            |most: u64| u32::try_from(work.len.min(most)).unwrap_or(1 << 20) / sector as u32 * sector as u32;
        let sequential = |name: &str, mix: Mix, region: Region, most: u64| Job {
            ramp: options.ramp,
            ..job(name, Pattern::Sequential, mix, block(most), DEPTH, region, options)
        };
        let applications = APPLICATIONS.iter().filter(|application| {
            application.fits(work, geometry.logical_sector) && (options.destroy || !application.writes())
        });
        Self {
            region,
            work,
            preparation: preparation(work, options),
            interface: sequential("interface, read", Mix::READ, reread, zones::BLOCK),
            read: sequential("maximum, read", Mix::READ, work, 1 << 20),
            write: options.destroy.then(|| sequential("maximum, write", Mix::WRITE, work, 1 << 20)),
            zones: Zones::of(region),
            long: options.duration * 2,
            has_first: region.len > access::FIRST,
            applications: applications.collect(),
            destroy: options.destroy,
        }
    }

    /// Returns the expected cost of each step, in the order of [`run`].
    fn costs(&self, geometry: &Geometry) -> Vec<Cost> {
        let mut costs: Vec<Cost> = self.preparation.iter().map(Cost::of).collect();
        costs.extend([&self.interface, &self.read].into_iter().chain(&self.write).map(Cost::of));
        let directions = 1 + usize::from(self.destroy);
        costs.extend(repeat_n(self.zones.cost(), directions));
        let accesses = directions * (1 + usize::from(self.has_first));
        costs.extend(repeat_n(Cost::time(self.long), accesses));
        costs.extend(repeat_n(Cost::of(&self.interface), self.applications.len()));
        costs.extend(self.destroy.then(|| integrity::cost(self.region, geometry.logical_sector, self.long)));
        costs
    }
}

/// About how long it takes.
pub(super) fn estimate(geometry: &Geometry, options: &Options) -> Duration {
    total(Plan::new(geometry, options).costs(geometry), ASSUMED_RATE)
}

/// Measures everything. Only what reads, where nothing may be written.
pub(super) async fn run(
    runner: &mut Runner<'_>,
    options: &Options,
) -> Result<(H2bench, Vec<String>), BenchError> {
    let geometry = runner.geometry();
    let plan = Plan::new(&geometry, options);
    runner.plan(plan.costs(&geometry));
    let mut found = H2bench::default();
    let mut notes = Vec::new();
    if !options.destroy {
        notes.push(READS_ONLY.into());
        notes.push("No integrity check and no index: both write.".into());
    }
    if plan.applications.len() < APPLICATIONS.len() && options.destroy {
        notes.push("No index: the device is smaller than the largest I/Os of its mixes.".into());
    }
    if runner.prepare(plan.preparation.as_ref()).await? {
        let device = runner.device;
        let mut probe = Probe::new(&**device, runner.cancel);
        let went_on = measure(&plan, options, runner, &mut probe, &mut found).await?;
        if !went_on {
            runner.broke();
        }
        (found.errors, found.first_error) = (probe.errors, probe.first_error);
    }
    notes.extend(found.zones.as_ref().and_then(thin_zones));
    if !found.applications.is_empty() {
        notes.push(format!(
            "Applications are h2-like: our own synthetic mixes ({INDEX_VERSION}), not comparable with published indexes."
        ));
    }
    Ok((found, notes))
}

/// False if it was asked to end.
async fn measure(
    plan: &Plan,
    options: &Options,
    runner: &mut Runner<'_>,
    probe: &mut Probe<'_>,
    found: &mut H2bench,
) -> Result<bool, BenchError> {
    for job in [&plan.interface, &plan.read].into_iter().chain(&plan.write) {
        let outcome = runner.job(job).await?;
        let went_on = outcome.end == End::Limit;
        found.count(&outcome);
        runner.outcomes.push(outcome);
        if !went_on {
            return Ok(false);
        }
    }
    let zones = found.zones.insert(plan.zones.clone());
    let went_on = (!plan.destroy || zones.write(runner, probe, options.seed).await)
        && zones.read(runner, probe, plan.destroy).await;
    if !went_on || !accesses(plan, options, runner, probe, found).await {
        return Ok(false);
    }
    for &application in &plan.applications {
        let time = (options.duration, options.seed);
        let (result, went_on) = ApplicationResult::measure(application, plan.work, time, runner, probe).await;
        // Part of a mix is a measurement too, but not one for an index.
        if !went_on {
            return Ok(false);
        }
        found.applications.extend(result);
    }
    if plan.destroy {
        let integrity = Check::new(runner, probe, plan.region, options.seed).run(plan.long).await;
        let complete = integrity.complete;
        found.integrity = Some(integrity);
        return Ok(complete);
    }
    Ok(true)
}

/// Reads, then writes, each over the full stroke and in the first 504 MiB. False if it was asked to end.
async fn accesses(
    plan: &Plan,
    options: &Options,
    runner: &mut Runner<'_>,
    probe: &mut Probe<'_>,
    found: &mut H2bench,
) -> bool {
    let first = Region { offset: 0, len: access::FIRST };
    let names = [
        ("access, read", false, false),
        ("access, read, first 504 MiB", false, true),
        ("access, write", true, false),
        ("access, write, first 504 MiB", true, true),
    ];
    for (name, writes, in_first) in names {
        if (writes && !plan.destroy) || (in_first && !plan.has_first) {
            continue;
        }
        let written = found.zones.as_ref().filter(|_| plan.destroy);
        let target = match (in_first, written) {
            (true, _) => Target::Region(first),
            (false, Some(zones)) => Target::Written(zones),
            (false, None) => Target::Region(plan.region),
        };
        // Other addresses each time: what was just read or written would come from a cache.
        let seed = options.seed.wrapping_add(found.access.len() as u64 + 1);
        let (access, went_on) =
            AccessTime::measure(name, (target, writes), (plan.long, seed), runner, probe).await;
        if access.latency.count() > 0 {
            found.access.push(access);
        }
        if !went_on {
            return false;
        }
    }
    true
}

/// Says how many zones were read where nothing is.
fn thin_zones(zones: &Zones) -> Option<String> {
    let empty = zones.zones.iter().filter(|zone| zone.unallocated).count();
    (empty > 0).then(|| {
        format!(
            "{empty} of {} zones were read where nothing was ever written: their figures are not the medium's.",
            zones.zones.len()
        )
    })
}

impl H2bench {
    fn count(&mut self, outcome: &Outcome) {
        if outcome.read.ios + outcome.write.ios == 0 {
            return;
        }
        let figures = Some(Figures::of(outcome));
        match outcome.job.name.as_str() {
            "interface, read" => self.interface = figures,
            "maximum, read" => self.read = figures,
            _ => self.write = figures,
        }
    }

    /// The index over the six mixes; `None` unless all were run.
    pub fn index(&self) -> Option<f64> {
        index(&self.applications)
    }

    pub(super) fn to_json(&self) -> Value {
        let rate = |figures: Option<Figures>| figures.map(|figures| figures.mb_s * 1e6);
        json!({
            "interface_bytes_per_s": rate(self.interface),
            "read_bytes_per_s": rate(self.read),
            "write_bytes_per_s": rate(self.write),
            "zones": self.zones.as_ref().map(Zones::to_json),
            "access": self.access.iter().map(AccessTime::to_json).collect::<Vec<_>>(),
            "applications": self.applications.iter().map(|result| result.to_json()).collect::<Vec<_>>(),
            "index": { "version": INDEX_VERSION, "value": self.index() },
            "integrity": self.integrity.as_ref().map(Integrity::to_json),
            "errors": self.errors,
        })
    }
}

impl fmt::Display for H2bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<String> = Vec::new();
        let rates = [
            ("Interface (1 MiB re-read)", self.interface),
            ("Sequential read", self.read),
            ("Sequential write", self.write),
        ];
        for (name, figures) in rates {
            lines.extend(figures.map(|figures| format!("{name:<30}{:>9} MB/s", figure(figures.mb_s))));
        }
        if let Some(zones) = &self.zones {
            let ranges = [("read", zones.read_range()), ("write", zones.write_range())];
            for (direction, range) in ranges {
                lines.extend(range.map(|Range { min, avg, max }| {
                    let name = format!("{} zones, {direction}", zones.zones.len());
                    format!(
                        "{name:<30}{:>9} MB/s min  {:>9} avg  {:>9} max",
                        figure(min),
                        figure(avg),
                        figure(max)
                    )
                }));
            }
        }
        for access in &self.access {
            let (name, time) = (format!("Access, {}", access.name), |ns: f64| response_time(ns / 1e6));
            let latency = &access.latency;
            lines.push(format!(
                "{name:<30}{:>12} min  {:>12} avg  {:>12} max  {:>12} p99",
                time(latency.min() as f64),
                time(latency.mean()),
                time(latency.max() as f64),
                time(latency.percentile(99.0) as f64)
            ));
        }
        for result in &self.applications {
            let name = format!("h2-like: {}", result.application.name);
            lines.push(format!("{name:<30}{:>9} MB/s", figure(result.mb_s)));
        }
        if let Some(index) = self.index() {
            lines.push(format!(
                "Index: {index:.0} (1000 is a modelled disk of 7200 turns a minute; {INDEX_VERSION})."
            ));
        }
        lines.extend(self.integrity.as_ref().map(|integrity| format!("Integrity: {integrity}")));
        if let Some(error) = &self.first_error {
            lines.push(format!("{} I/Os failed; the first: {error}", self.errors));
        }
        lines.push("MB = 1,000,000 bytes.".into());
        f.write_str(&lines.join("\n"))
    }
}

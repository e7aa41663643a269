//! Sets of measurements that belong together.
//!
//! ```text
//!   Kind ──▶ estimate(kind, geometry, options) ──▶ how long it will take
//!     └────▶ run(kind, device, options, progress, cancel) ──▶ ProfileResult ──▶ Display  (terminal)
//!                                                                  ├──▶ to_json  (programs)
//!                                                                  ├──▶ document (a page)
//!                                                                  └──▶ outcomes (fio's layout, judgement)
//! ```
//!
//! Every profile writes what it reads before it reads it, where it may write; data is incompressible; what may have
//! been answered from a cache is said in [`ProfileResult::notes`]. A profile that is interrupted gives what it had by
//! then, with [`complete`](ProfileResult::complete) false.

mod anvil;
mod atto;
mod crystal;
pub mod h2bench;
mod page;
mod probe;
mod runner;
pub mod steady;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, Finding, Geometry};
use serde_json::{Value, json};

use crate::BenchError;
use crate::cache::cache_truth;
use crate::load::access::{Mix, Pattern};
use crate::load::job::{Job, Limit, Region};
use crate::measure::outcome::Outcome;
use crate::run::cancel::Cancel;
use crate::run::cost::{ASSUMED_RATE, Cost, total};
use crate::run::progress::Tick;
use crate::score::Score;
use crate::table::Table;
use runner::Runner;

pub use crate::run::progress::Step;
pub use anvil::{Profile, anvil};
pub use atto::{Atto, SweepPoint};
pub use crystal::{Crystal, CrystalRow, Figures};
pub use h2bench::H2bench;
pub use steady::{Load, Steady};

/// The profiles there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ten rows with a score: [`anvil`].
    Anvil,
    /// A device from end to end: [`H2bench`].
    H2bench,
    /// Sequential and random, 1 MiB and 4 KiB, read, write and mixed, several runs each: [`Crystal`].
    Crystal,
    /// Transfer sizes from 512 bytes to 64 MiB: [`Atto`].
    Atto,
    /// Repeated until the figures stop moving: [`Steady`].
    Steady,
}

impl Kind {
    /// All of them, in the order in which they are listed for people.
    pub const ALL: [Self; 5] = [Self::Anvil, Self::H2bench, Self::Crystal, Self::Atto, Self::Steady];

    /// Returns `true` if it may write without being told where nothing is stored yet: its region is small enough to
    /// find that out. The others work on whole devices, and write only if they are told.
    pub fn writes_where_empty(self) -> bool {
        !matches!(self, Self::H2bench | Self::Steady)
    }

    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anvil => "anvil",
            Self::H2bench => "h2bench",
            Self::Crystal => "crystal",
            Self::Atto => "atto",
            Self::Steady => "steady",
        }
    }

    /// Description, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Self::H2bench => {
                "The whole device: maximum rate, zones, access times, application mixes with an index, integrity"
            }
            Self::Anvil => {
                "Sequential 4 MiB, random 4K at depth 1, 4 and 16, read and write; 32K and 128K reads; a score"
            }
            Self::Crystal => {
                "Sequential 1 MiB and random 4K at two depths; read, write and mixed; the median of several runs"
            }
            Self::Steady => "Random 4K writes in rounds until they are steady by both SNIA criteria",
            Self::Atto => "Transfer sizes from 512 bytes to 64 MiB at depth 4, read and write",
        }
    }
}

/// Options of a profile.
#[derive(Clone, Debug)]
pub struct Options {
    /// Measuring time of each row, run or round; an upper limit where it also ends by bytes.
    pub duration: Duration,
    /// Ramp time of each row before that.
    pub ramp: Duration,
    /// Size of the region at the start of the device, bytes; less if the device is smaller.
    pub region: u64,
    /// The region may be overwritten: the caller was told so, or [`holds_data`](crate::holds_data) saw nothing in it.
    pub destroy: bool,
    /// Of addresses and data.
    pub seed: u64,
    /// Number of times that `crystal` measures each row.
    pub runs: u32,
    /// Load that `steady` repeats.
    pub load: Load,
}

impl Default for Options {
    /// Returns the defaults of `anvil`.
    fn default() -> Self {
        Self::of(Kind::Anvil)
    }
}

impl Options {
    /// Returns the defaults of `kind`. They destroy nothing.
    pub fn of(kind: Kind) -> Self {
        let (duration, ramp, region) = match kind {
            Kind::Anvil => (Duration::from_secs(5), Duration::from_millis(500), 1 << 30),
            Kind::H2bench => (Duration::from_secs(5), Duration::ZERO, u64::MAX),
            Kind::Crystal => (Duration::from_secs(5), Duration::ZERO, 1 << 30),
            Kind::Atto => (Duration::from_secs(10), Duration::ZERO, 256 << 20),
            Kind::Steady => (Duration::from_secs(60), Duration::ZERO, u64::MAX),
        };
        Self {
            duration,
            ramp,
            region,
            destroy: false,
            seed: crate::random_seed(),
            runs: 5,
            load: Load::default(),
        }
    }

    /// The region on a device of that geometry: whole sectors from its start.
    pub fn region_on(&self, geometry: &Geometry) -> Region {
        let sector = u64::from(geometry.logical_sector);
        Region { offset: 0, len: self.region.min(geometry.size) / sector * sector }
    }

    /// The part of it that is written before it is read, to its last byte: whole [`PIECE`]s, or all of it where it is
    /// smaller.
    fn work_on(&self, geometry: &Geometry) -> Region {
        let Region { offset, len } = self.region_on(geometry);
        Region { offset, len: if len < PIECE { len } else { len / PIECE * PIECE } }
    }
}

/// Result of a profile.
#[derive(Clone, Debug)]
pub struct ProfileResult {
    /// The profile that was run.
    pub kind: Kind,
    /// The jobs that were run, in order; of a job that was repeated, the run in the middle.
    pub outcomes: Vec<Outcome>,
    /// Details that the profile derives from them.
    pub details: Details,
    /// Notes for a reader: what was left out, what may have been cached.
    pub notes: Vec<String>,
    /// All of it was done. If not, what is there is valid for what was done.
    pub complete: bool,
}

/// Details that a profile derives from its outcomes.
#[derive(Clone, Debug)]
pub enum Details {
    /// Of [`Kind::Anvil`].
    Anvil(Score),
    /// Of [`Kind::H2bench`].
    H2bench(Box<H2bench>),
    /// Of [`Kind::Crystal`].
    Crystal(Crystal),
    /// Of [`Kind::Atto`].
    Atto(Atto),
    /// Of [`Kind::Steady`].
    Steady(Steady),
}

impl ProfileResult {
    /// Returns failures other than failed I/Os of the outcomes, in sentences; empty if there were none.
    pub fn failures(&self) -> Vec<String> {
        let Details::H2bench(found) = &self.details else { return Vec::new() };
        let mut failures = Vec::new();
        if let Some(error) = &found.first_error {
            failures.push(format!("{} I/Os failed; the first: {error}", found.errors));
        }
        if let Some(integrity) = found.integrity.as_ref().filter(|integrity| integrity.faulty > 0) {
            failures.push(format!("{} sectors did not hold the data written to them", integrity.faulty));
        }
        failures
    }

    /// The profile's own figures, for programs; the outcomes go beside them in fio's layout.
    pub fn to_json(&self) -> Value {
        let details = match &self.details {
            Details::Anvil(score) => json!({ "score": score.to_json() }),
            Details::H2bench(found) => found.to_json(),
            Details::Crystal(crystal) => crystal.to_json(),
            Details::Atto(atto) => atto.to_json(),
            Details::Steady(steady) => steady.to_json(),
        };
        let name = self.kind.name();
        json!({ "profile": name, "complete": self.complete, "notes": self.notes, name: details })
    }
}

impl fmt::Display for ProfileResult {
    /// Tables and figures, without the notes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.details {
            Details::Anvil(score) => {
                write!(f, "{}", Table::of(&self.outcomes))?;
                if score.read.is_some() || score.write.is_some() { write!(f, "\n{score}") } else { Ok(()) }
            }
            Details::H2bench(found) => found.fmt(f),
            Details::Crystal(crystal) => crystal.fmt(f),
            Details::Atto(atto) => atto.fmt(f),
            Details::Steady(steady) => steady.fmt(f),
        }
    }
}

/// About how long [`run`] will take; `steady` at most. What ends by bytes is reckoned at 200 MB/s; while it runs, at
/// what the device has shown ([`Step::then`]).
pub fn estimate(kind: Kind, geometry: &Geometry, options: &Options) -> Duration {
    let jobs = match kind {
        Kind::H2bench => return h2bench::estimate(geometry, options),
        Kind::Steady => return steady::estimate(geometry, options),
        Kind::Anvil => {
            let profile = anvil(geometry, options);
            profile.preparation.into_iter().chain(profile.rows).collect()
        }
        Kind::Crystal => crystal::jobs(geometry, options),
        Kind::Atto => atto::jobs(geometry, options),
    };
    total(jobs.iter().map(Cost::of), ASSUMED_RATE)
}

/// Specification of a profile, down to the last constant, as Markdown: written into the page of profiles, and compared
/// with it by a test.
pub fn published(kind: Kind) -> String {
    let Options { duration, ramp, region, .. } = Options::of(kind);
    let region = if region == u64::MAX { "the whole device".into() } else { HumanSize(region).to_string() };
    let own = match kind {
        Kind::Anvil => anvil::published(),
        Kind::H2bench => h2bench::published(),
        Kind::Crystal => crystal::published(),
        Kind::Atto => atto::published(),
        Kind::Steady => steady::published(),
    };
    let ramp = if ramp.is_zero() { String::new() } else { format!(", `--ramp {ramp:?}`") };
    format!("Defaults: `--time {duration:?}`{ramp}, region: {region}.\n\n{own}")
}

/// "sequential" or "random".
fn order(pattern: Pattern) -> &'static str {
    if pattern == Pattern::Sequential { "sequential" } else { "random" }
}

/// Runs a profile.
///
/// Like [`run`](crate::run()): inside a tokio runtime with time enabled, on the calling task. Without `options.destroy`
/// nothing is written: profiles that can do with reads do only those, and say so. After a cancel the answer is what was
/// done until then.
pub async fn run(
    kind: Kind,
    device: &Arc<dyn BlockDevice>,
    options: &Options,
    progress: &mut dyn FnMut(Step<'_>, &Tick),
    cancel: &Cancel,
) -> Result<ProfileResult, BenchError> {
    let mut runner = Runner::new(device, progress, cancel);
    let (details, mut notes) = match kind {
        Kind::Anvil => {
            let profile = anvil(&device.geometry(), options);
            profile.run_on(&mut runner).await?;
            (Details::Anvil(Score::of(&runner.outcomes)), profile.notes)
        }
        Kind::H2bench => {
            let (found, notes) = h2bench::run(&mut runner, options).await?;
            (Details::H2bench(Box::new(found)), notes)
        }
        Kind::Crystal => {
            let (crystal, notes) = crystal::run(&mut runner, options).await?;
            (Details::Crystal(crystal), notes)
        }
        Kind::Atto => {
            let (atto, notes) = atto::run(&mut runner, options).await?;
            (Details::Atto(atto), notes)
        }
        Kind::Steady => {
            let (steady, notes) = steady::run(&mut runner, options).await?;
            (Details::Steady(steady), notes)
        }
    };
    let findings = cache_truth(&**device, options.region_on(&device.geometry())).await;
    notes.extend(findings.iter().map(Finding::sentence));
    Ok(ProfileResult { kind, complete: runner.is_complete(), outcomes: runner.outcomes, details, notes })
}

/// Bytes per I/O of the preparation.
const PIECE: u64 = 1 << 20;

/// Returns the job that writes a region of [`Options::work_on`] before it is read, with eight I/Os in flight. `None`
/// where nothing may be written.
fn preparation(region: Region, options: &Options) -> Option<Job> {
    let block_size = region.len.min(PIECE) as u32;
    options.destroy.then(|| Job {
        limit: Limit::Bytes(region.len),
        ..job("preparation", Pattern::Sequential, Mix::WRITE, block_size, 8, region, options)
    })
}

/// A job of a profile, limited by time.
fn job(
    name: impl Into<String>,
    pattern: Pattern,
    mix: Mix,
    block_size: u32,
    queue_depth: u32,
    region: Region,
    options: &Options,
) -> Job {
    Job {
        pattern,
        mix,
        block_sizes: block_size.into(),
        queue_depth,
        limit: Limit::Time(options.duration),
        region: Some(region),
        seed: options.seed,
        destroy: options.destroy,
        ..Job::new(name)
    }
}

/// Said where nothing may be written.
const READS_ONLY: &str = "Reads only: nothing may be overwritten. They read what the device holds; where nothing was ever written, \
     that is faster than real data.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_prepared_is_written_to_its_last_byte() {
        for (size, sector) in [(512, 512), (1 << 20, 4096), ((5 << 20) + 1536, 512), (3 << 30, 4096)] {
            let geometry = Geometry::plain(size).with_sector(sector);
            let options = Options { region: u64::MAX, destroy: true, ..Options::default() };
            let region = options.work_on(&geometry);
            let job = preparation(region, &options).unwrap();
            assert_eq!(job.check(&geometry), Ok(()), "{size}");
            assert!(region.len.is_multiple_of(job.block_sizes.largest(Mix::WRITE).into()), "{size}");
            assert!(geometry.size - region.len < PIECE);
        }
    }
}

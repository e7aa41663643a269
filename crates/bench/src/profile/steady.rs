//! Measuring until the figures stop moving: SNIA's steady state.

use std::fmt;
use std::ops;
use std::time::Duration;

use lunway_block::size::HumanSize;
use lunway_block::{Caching, Geometry};
use lunway_report::{figure, response_time};
use lunway_stats::{least_squares, mean};
use serde_json::{Value, json};

use crate::BenchError;
use crate::load::access::{Mix, Pattern};
use crate::load::job::{Job, Limit, Region};
use crate::measure::outcome::End;
use crate::run::cost::{ASSUMED_RATE, Cost, total};

use super::crystal::Figures;
use super::probe::{Probe, Stop};
use super::runner::{Done, Runner};
use super::{Options, job, order};

/// Rounds of the window that both criteria are held against.
pub const WINDOW: usize = 5;
/// Rounds after which it is given up.
pub const ROUNDS_MAX: usize = 25;
/// The window's highest and lowest round may differ by this much of its mean.
pub const RANGE_MAX: f64 = 0.20;
/// The line of best fit through the window may rise or fall by this much of its mean.
pub const SLOPE_MAX: f64 = 0.10;
/// Number of times that the region is written before the first round.
pub const PRECONDITIONING: u64 = 2;
/// Bytes per I/O of that, and how many are in flight.
const PRECONDITIONING_BLOCK: u64 = 128 << 10;
const PRECONDITIONING_DEPTH: u32 = 32;
/// Unmapping goes in so many steps at most, so that it can be interrupted.
const UNMAPS_MAX: u64 = 1024;
/// And in no smaller ones than this, bytes.
const UNMAP_MIN: u64 = 64 << 20;

/// Load that is repeated until it is steady.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Order of addresses.
    pub pattern: Pattern,
    /// Reads, writes or both.
    pub mix: Mix,
    /// Bytes per I/O.
    pub block_size: u32,
    /// I/Os in flight.
    pub queue_depth: u32,
}

impl Default for Load {
    /// Random writes of 4 KiB at depth 32.
    fn default() -> Self {
        Self { pattern: Pattern::RANDOM, mix: Mix::WRITE, block_size: 4096, queue_depth: 32 }
    }
}

/// Result of the `steady` profile, after SNIA's performance test specification.
///
/// The device is purged (unmapped, where it can be), its region written twice in order, and then the load is repeated
/// in rounds until the IOPS of five rounds in a row are steady by **both** criteria: the highest and the lowest are no
/// more than 20 % of their mean apart, and the line of best fit through them rises or falls by no more than 10 % of it.
/// After 25 rounds it is given up, and the last five are shown as what they are: not steady.
#[derive(Clone, Debug, Default)]
pub struct Steady {
    /// Every round, in order.
    pub rounds: Vec<Figures>,
    /// The last five rounds: the steady ones if it `converged`. `None` before there were five.
    pub window: Option<Window>,
    /// The region was unmapped first.
    pub purged: bool,
}

/// Five rounds in a row, held against the criteria.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Indices of the rounds, from 0.
    pub rounds: ops::Range<usize>,
    /// Mean of their IOPS.
    pub average: f64,
    /// From the lowest to the highest, share of the mean.
    pub range: f64,
    /// IOPS by which the line of best fit rises from one round to the next.
    pub slope: f64,
    /// By how much it rises or falls over the window, share of the mean.
    pub excursion: f64,
}

impl Window {
    /// The last five of `iops`, if there are so many that did anything.
    pub fn last_of(iops: &[f64]) -> Option<Self> {
        let start = iops.len().checked_sub(WINDOW)?;
        let values = &iops[start..];
        let average = mean(values).filter(|&average| average > 0.0)?;
        let points: Vec<(f64, f64)> =
            values.iter().enumerate().map(|(round, &value)| (round as f64, value)).collect();
        let slope = least_squares(&points)?.slope;
        let highest = values.iter().copied().fold(f64::MIN, f64::max);
        let lowest = values.iter().copied().fold(f64::MAX, f64::min);
        Some(Self {
            rounds: start..iops.len(),
            average,
            range: (highest - lowest) / average,
            slope,
            excursion: slope.abs() * (WINDOW - 1) as f64 / average,
        })
    }

    /// Both criteria hold.
    pub fn is_steady(&self) -> bool {
        self.range <= RANGE_MAX && self.excursion <= SLOPE_MAX
    }
}

/// The steps of a run.
struct Plan {
    region: Region,
    unmaps: bool,
    preconditioning: Job,
    round: Job,
}

impl Plan {
    fn new(geometry: &Geometry, options: &Options) -> Self {
        let region = options.work_on(geometry);
        let sector = u64::from(geometry.logical_sector);
        let block_size = PRECONDITIONING_BLOCK.min(region.len) / sector * sector;
        let load = options.load;
        let sequential = job(
            "preconditioning",
            Pattern::Sequential,
            Mix::WRITE,
            block_size as u32,
            PRECONDITIONING_DEPTH,
            region,
            options,
        );
        let round = job("round", load.pattern, load.mix, load.block_size, load.queue_depth, region, options);
        Self {
            region,
            unmaps: geometry.unmap.frees(),
            preconditioning: Job {
                limit: Limit::Bytes(region.len.saturating_mul(PRECONDITIONING)),
                ..sequential
            },
            round: Job { ramp: options.ramp, ..round },
        }
    }

    fn costs(&self) -> Vec<Cost> {
        let purge = self.unmaps.then_some(Cost::time(Duration::from_secs(1)));
        let rounds = std::iter::repeat_n(Cost::of(&self.round), ROUNDS_MAX);
        purge.into_iter().chain([Cost::of(&self.preconditioning)]).chain(rounds).collect()
    }
}

/// Every constant.
pub(super) fn published() -> String {
    let Load { pattern, mix, block_size, queue_depth } = Load::default();
    let rows = [
        (
            "preconditioning",
            format!(
                "{PRECONDITIONING} × the region, sequential writes of {} at depth {PRECONDITIONING_DEPTH}",
                HumanSize(PRECONDITIONING_BLOCK)
            ),
        ),
        (
            "load of a round",
            format!(
                "{} {} at depth {queue_depth}, {} % reads",
                order(pattern),
                HumanSize(block_size.into()),
                mix.read_percent
            ),
        ),
        ("window", format!("{WINDOW} rounds")),
        ("highest − lowest round", format!("≤ {:.0} % of the window's mean", RANGE_MAX * 100.0)),
        (
            "rise or fall of the line of best fit",
            format!("≤ {:.0} % of the window's mean", SLOPE_MAX * 100.0),
        ),
        ("rounds at most", ROUNDS_MAX.to_string()),
    ];
    rows.iter().fold("| property | value |\n|---|---|\n".to_owned(), |text, (what, value)| {
        text + &format!("| {what} | {value} |\n")
    })
}

/// Returns the longest duration of the profile if the device writes as fast as assumed.
pub(super) fn estimate(geometry: &Geometry, options: &Options) -> Duration {
    total(Plan::new(geometry, options).costs(), ASSUMED_RATE)
}

/// Purges, preconditions, and repeats the load until it is steady.
pub(super) async fn run(
    runner: &mut Runner<'_>,
    options: &Options,
) -> Result<(Steady, Vec<String>), BenchError> {
    if !options.destroy {
        return Err(BenchError::MustWrite { profile: "steady" });
    }
    let plan = Plan::new(&runner.geometry(), options);
    plan.round.check(&runner.geometry())?;
    runner.plan(plan.costs());
    let mut steady = Steady::default();
    let mut notes = Vec::new();
    steady.purged = plan.unmaps && purge(runner, plan.region).await;
    if !steady.purged {
        notes.push(
            "Not purged: the device does not support unmap, so the test began with its previous contents."
                .into(),
        );
    }
    if matches!(runner.device.caching(), Caching::Memory | Caching::Nowhere) {
        notes.push(
            "Steady by nature: there is no flash behind this device whose state could change. The criteria say nothing of it."
                .into(),
        );
    }
    if !runner.is_cancelled() && runner.prepare(Some(&plan.preconditioning)).await? {
        while steady.rounds.len() < ROUNDS_MAX && !steady.converged() {
            let name = format!("round {}", steady.rounds.len() + 1);
            let outcome = runner.job(&Job { name, ..plan.round.clone() }).await?;
            let whole = outcome.end == End::Limit;
            // Part of a round beside whole ones would look like a change.
            if whole {
                steady.count(Figures::of(&outcome));
            }
            if whole || outcome.errors() > 0 {
                runner.outcomes.push(outcome);
            }
            if !whole || runner.is_cancelled() {
                break;
            }
        }
    }
    if runner.is_cancelled() {
        runner.broke();
    }
    Ok((steady, notes))
}

/// Unmaps the region. Whether all of it was.
async fn purge(runner: &mut Runner<'_>, region: Region) -> bool {
    let mut meter = runner.meter("purge");
    let device = runner.device;
    let mut probe = Probe::new(&**device, runner.cancel);
    let step = region.len.div_ceil(UNMAPS_MAX).max(UNMAP_MIN).next_multiple_of(UNMAP_MIN);
    let mut at = 0;
    while at < region.len {
        let len = step.min(region.len - at);
        let took = match probe.unmap(region.offset + at, len).await {
            Ok(took) => took,
            Err(Stop::Failed | Stop::End) => return false,
        };
        at += len;
        runner.count(&mut meter, Done::Write(len, took), || at as f64 / region.len as f64);
    }
    true
}

impl Steady {
    fn count(&mut self, round: Figures) {
        self.rounds.push(round);
        self.window = Window::last_of(&self.iops());
    }

    /// Of every round.
    pub fn iops(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.iops).collect()
    }

    /// The last five rounds are steady.
    pub fn converged(&self) -> bool {
        self.window.as_ref().is_some_and(Window::is_steady)
    }

    /// Result of the profile, in a sentence.
    pub fn verdict(&self) -> String {
        let Some(window) = &self.window else {
            return format!("Not steady yet: {} of at least {WINDOW} rounds were done.", self.rounds.len());
        };
        let (range, excursion) = (window.range * 100.0, window.excursion * 100.0);
        let criteria = format!(
            "the rounds {} to {} are {range:.1} % of their mean apart (20 % allowed), their line moves by {excursion:.1} % (10 % allowed)",
            window.rounds.start + 1,
            window.rounds.end
        );
        let average = figure(window.average);
        match self.converged() {
            true => format!("Steady after {} rounds at {average} IOPS: {criteria}.", self.rounds.len()),
            false => format!(
                "Not steady after {} rounds: {criteria}; their mean is {average} IOPS.",
                self.rounds.len()
            ),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let window = self.window.as_ref().map(|window| {
            json!({
                "first_round": window.rounds.start + 1,
                "last_round": window.rounds.end,
                "average_iops": window.average,
                "range_percent": window.range * 100.0,
                "slope_iops_per_round": window.slope,
                "slope_excursion_percent": window.excursion * 100.0,
            })
        });
        let round = |round: &Figures| json!({ "iops": round.iops, "bytes_per_s": round.mb_s * 1e6, "response_ns": round.response_us * 1e3 });
        json!({
            "converged": self.converged(),
            "purged": self.purged,
            "rounds": self.rounds.iter().map(round).collect::<Vec<_>>(),
            "window": window,
        })
    }
}

impl fmt::Display for Steady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>5}  {:>9}  {:>9}  {:>13}", "Round", "IOPS", "MB/s", "Response")?;
        for (index, round) in self.rounds.iter().enumerate() {
            let in_window = self.window.as_ref().is_some_and(|window| window.rounds.contains(&index));
            writeln!(
                f,
                "{:>5}  {:>9}  {:>9}  {:>13}{}",
                index + 1,
                figure(round.iops),
                figure(round.mb_s),
                response_time(round.response_us / 1e3),
                if in_window { "  |" } else { "" }
            )?;
        }
        write!(f, "{}", self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_criteria_must_hold() {
        let of = |iops: &[f64]| Window::last_of(iops).unwrap();
        let level = of(&[5000.0, 100.0, 101.0, 99.0, 100.0, 100.0]);
        assert!(level.is_steady());
        assert_eq!((level.rounds, level.average), (1..6, 100.0));
        // Falls by 3 a round: the range of 12 is allowed, the line's 12 % are not.
        let falling = of(&[106.0, 103.0, 100.0, 97.0, 94.0]);
        assert!((falling.range - 0.12).abs() < 1e-9 && (falling.excursion - 0.12).abs() < 1e-9);
        assert!((falling.slope + 3.0).abs() < 1e-9 && !falling.is_steady());
        // No trend, but too wide.
        let wide = of(&[100.0, 112.0, 100.0, 88.0, 100.0]);
        assert!(wide.range > RANGE_MAX && !wide.is_steady());
        let symmetric = of(&[112.0, 88.0, 100.0, 88.0, 112.0]);
        assert!(symmetric.excursion < 1e-9 && !symmetric.is_steady());
    }

    #[test]
    fn exactly_at_the_limits_is_steady() {
        let range = Window { rounds: 0..5, average: 1.0, range: RANGE_MAX, slope: 0.0, excursion: SLOPE_MAX };
        assert!(range.is_steady());
    }

    #[test]
    fn fewer_than_five_rounds_or_none_that_did_anything_are_no_window() {
        assert_eq!(Window::last_of(&[1.0; 4]), None);
        assert_eq!(Window::last_of(&[0.0; 5]), None);
    }

    #[test]
    fn the_verdict_says_what_was_found_and_what_is_allowed() {
        let mut steady = Steady::default();
        let round = |iops| Figures { mb_s: 1.0, iops, response_us: 1.0 };
        assert!(steady.verdict().starts_with("Not steady yet: 0"));
        for iops in [400.0, 200.0, 130.0, 110.0, 100.0] {
            steady.count(round(iops));
        }
        assert!(
            !steady.converged() && steady.verdict().starts_with("Not steady after 5"),
            "{}",
            steady.verdict()
        );
        for _ in 0..4 {
            steady.count(round(100.0));
        }
        assert!(steady.converged());
        assert!(steady.verdict().contains("rounds 5 to 9"), "{}", steady.verdict());
    }
}

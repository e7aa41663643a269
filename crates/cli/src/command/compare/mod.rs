//! `lunway compare`.

mod candidates;
mod rows;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use lunway_bench::compare::{
    self, Arm, Comparison, Devices, MARGIN_PERCENT, PAIRS, Plan, Progress, ROUNDS_MAX, Run,
};
use lunway_bench::{BenchError, Cancel, Rate, Tick, random_seed};
use lunway_block::duration::parse_duration;
use lunway_block::size::parse_size;
use lunway_report::{Document, Fact, html};

use self::candidates::{Candidate, Opened};
use super::bench::arguments::{RwModeName, block_size, rate};
use super::bench::plan::bench_failure;
use crate::failure::Failure;
use crate::output::Files;
use crate::{device, interrupt, percent, progress, terminal};

/// Most candidates: a page and a terminal still show them side by side.
const CANDIDATES_MAX: usize = 8;

/// Measure devices alternately, and report which differences are real.
///
/// The first device is the control: it is measured twice in every block, and differences are percentages of it.
/// Without --rw and --job the ten tests of the profile `anvil` are compared. Differences within the margin count as
/// none; tests that are undecided after the first pairs are measured further. Tests that write require --destroy if a
/// device holds data.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway compare ram:1G ram:1G,sector=4096
  lunway compare a.img b.img --direct --rw randread --qd 16 --html-file c.html
  lunway compare iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0 \\
      iscsi://192.0.2.11/iqn.2026-11.com.example:disks/0 --labels old,new")]
pub(crate) struct Compare {
    /// The control, and the devices to compare with it
    #[arg(value_name = "DEVICE[,sector=4096]", num_args = 2..=CANDIDATES_MAX, required = true)]
    devices: Vec<String>,
    /// Their names in tables, such as 512,4K
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    labels: Vec<String>,
    /// Compare the tests of this profile [default: anvil, unless --rw or --job is given]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rw", "job"])]
    profile: Option<Rows>,
    /// Compare one test with this access pattern
    #[arg(long, value_name = "PATTERN", conflicts_with = "job")]
    rw: Option<RwModeName>,
    /// Bytes per I/O [default: 4K]
    #[arg(long, value_name = "SIZE", requires = "rw", value_parser = block_size)]
    bs: Option<u32>,
    /// I/Os in flight [default: 1]
    #[arg(long, value_name = "N", requires = "rw")]
    qd: Option<u32>,
    /// Percentage of reads, for --rw rw and randrw [default: 50]
    #[arg(long, value_name = "PERCENT", requires = "rw", value_parser = percent::whole)]
    mix: Option<u8>,
    /// Issue I/Os at this rate (100M, 5000iops) and compare response times
    #[arg(long, value_name = "RATE", requires = "rw", value_parser = rate)]
    rate: Option<Rate>,
    /// Compare the jobs of a fio job file, one after the other
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// The figure to compare
    #[arg(long, value_enum, default_value_t = Figure::Iops)]
    figure: Figure,
    /// Pairs of runs after which results are evaluated
    #[arg(long, value_name = "N", default_value_t = PAIRS)]
    pairs: u32,
    /// Maximum number of times that this many pairs are measured for undecided tests
    #[arg(long, value_name = "N", default_value_t = ROUNDS_MAX)]
    rounds: u32,
    /// Differences up to this percentage count as none
    #[arg(long, value_name = "PERCENT", default_value_t = MARGIN_PERCENT, value_parser = percent::margin)]
    margin: f64,
    /// Duration of each run [default: 1s; with --job from the file]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Time for which each test runs before it is measured [default: 100ms; with --job from the file]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    ramp: Option<Duration>,
    /// Use this many bytes at the start of each device, at most the size of the smallest
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Seed of the order of runs, addresses and data
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Bypass the page cache for files (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Allow the data on the devices to be overwritten
    #[arg(long)]
    destroy: bool,
    #[command(flatten)]
    files: Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rows {
    /// Sequential 4 MiB, random 4K at depth 1, 4 and 16, read and write; 32K and 128K reads
    Anvil,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// I/Os per second; more is better
    Iops,
    /// Mean response time; less is better
    Response,
}

impl From<Figure> for compare::Figure {
    fn from(figure: Figure) -> Self {
        match figure {
            Figure::Iops => Self::Iops,
            Figure::Response => Self::ResponseMs,
        }
    }
}

impl Compare {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.check()?;
        if !self.labels.is_empty() && self.labels.len() != self.devices.len() {
            let (labels, devices) = (self.labels.len(), self.devices.len());
            return Err(Failure::Usage(format!("--labels names {labels} devices, and there are {devices}")));
        }
        let mut candidates =
            self.devices.iter().map(|text| Candidate::parse(text)).collect::<Result<Vec<_>, _>>()?;
        for (candidate, label) in candidates.iter_mut().zip(&self.labels) {
            candidate.label = Some(label.clone());
        }
        self.files.check(&candidates.iter().map(Candidate::spec).collect::<Vec<_>>())?;
        let (comparison, document, failed, durable) = device::run(self.measure(&candidates))?;
        self.show(&comparison, &document)?;
        match failed {
            Some(Failed { of, error, only: true }) => Err(Failure::failed(anyhow!(
                "ended early: {of} returned only errors; the first: {error}; the verdicts are of the pairs until then"
            ))),
            Some(Failed { of, error, only: false }) => Err(Failure::failed(anyhow!(
                "I/Os of {of} failed; the first error: {error}; the verdicts are of the runs without errors"
            ))),
            None if !comparison.complete => {
                Err(Failure::failed(anyhow!("interrupted: the verdicts are of the pairs until then")))
            }
            None => durable.map_err(Failure::Failed),
        }
    }

    async fn measure(
        &self,
        candidates: &[Candidate],
    ) -> Result<(Comparison, Document, Option<Failed>, anyhow::Result<()>), Failure> {
        let opened = Opened::open(candidates, self.direct).await?;
        let cancel = interrupt::watch();
        let compared = self.compare(candidates, &opened, &cancel).await;
        let facts = opened.facts(candidates);
        let caches = opened.caches(candidates, self.size).await;
        let durable = match &compared {
            Ok(_) if !cancel.is_cancelled() => opened.make_durable(candidates, &cancel).await,
            _ => Ok(()),
        };
        opened.close().await;
        let (comparison, notes, failed) = compared?;
        let subject: Vec<String> = candidates.iter().map(Candidate::name).collect();
        let mut document = comparison.document("lunway compare", &subject.join(" · "));
        document.environment = facts.into_iter().chain(lunway_report::environment()).collect::<Vec<Fact>>();
        document.environment.push(crate::command::doctor::of_place());
        document.notes.extend(notes.into_iter().chain(caches));
        document.warnings.extend(durable.as_ref().err().map(|error| format!("{error:#}")));
        Ok((comparison, document, failed, durable))
    }

    async fn compare(
        &self,
        candidates: &[Candidate],
        opened: &Opened,
        cancel: &Cancel,
    ) -> Result<(Comparison, Vec<String>, Option<Failed>), Failure> {
        let seed = self.seed.unwrap_or_else(random_seed);
        let destroy = opened.may_write(self.destroy, self.size).await?;
        let (jobs, notes) = self.jobs(&opened.smallest(), destroy, seed)?;
        let devices = Devices {
            candidates: opened.devices(),
            control_again: opened.control_again(),
            jobs,
            figure: self.figure.into(),
        };
        devices.check().map_err(bench_failure)?;
        let plan = Plan {
            pairs: self.pairs,
            rounds: self.rounds,
            margin_percent: self.margin,
            ..Plan::new(devices.rows(), candidates.iter().map(Candidate::name).collect(), seed)
        };
        plan.check().map_err(|error| Failure::Usage(error.to_string()))?;
        announce(&plan, &devices);
        if destroy {
            prepare(&devices, cancel).await?;
        }
        let (comparison, failed) = carry_out(&plan, &devices, cancel).await?;
        Ok((comparison, notes, failed))
    }

    fn show(&self, comparison: &Comparison, document: &Document) -> Result<(), Failure> {
        let text = || {
            let mut text = comparison.to_string();
            for note in &document.notes {
                if !comparison.trust.notes.contains(note) {
                    text += &format!("\n{note}");
                }
            }
            text + "\n"
        };
        self.files.write(text, || compare::json(document), || html(document))
    }
}

/// Planned duration of a run.
fn run_time(devices: &Devices, row: usize) -> Duration {
    let job = &devices.jobs[row];
    // What ends by bytes alone: not known.
    job.ramp + job.limit.time().unwrap_or(Duration::from_secs(1))
}

/// Says what is going to happen, and for how long.
fn announce(plan: &Plan, devices: &Devices) {
    let all: Duration = (0..plan.rows.len()).map(|row| run_time(devices, row)).sum();
    let block = all * (plan.arms.len() as u32 + 1);
    let [least, most] = [1, plan.rounds].map(|rounds| block * (plan.warm_up + plan.pairs * rounds));
    let until = if plan.rounds > 1 {
        format!(", and up to {} if that is not enough", progress::whole_seconds(most))
    } else {
        String::new()
    };
    eprintln!(
        "lunway: {} on {} devices, the control twice, {} pairs: {}{until}",
        terminal::counted(plan.rows.len(), "row"),
        plan.arms.len(),
        plan.pairs,
        progress::whole_seconds(least)
    );
}

async fn prepare(devices: &Devices, cancel: &Cancel) -> Result<(), Failure> {
    let bar = progress::fraction();
    let mut show = |index: usize, count: usize, tick: &Tick| {
        progress::set_fraction(&bar, (index as f64 + tick.fraction) / count as f64);
        bar.set_prefix(format!("writing ({}/{count})", index + 1));
        bar.set_message(format!("{:.1} MB/s", tick.bytes_per_second() / 1e6));
    };
    let prepared = devices.prepare(&mut show, cancel).await;
    bar.finish_and_clear();
    prepared.map_err(bench_failure)
}

/// A candidate of which I/Os have failed.
struct Failed {
    /// The candidate, as it is named.
    of: String,
    /// Error of the first one.
    error: String,
    /// Nothing but errors came any more, which ended the comparison.
    only: bool,
}

async fn carry_out(
    plan: &Plan,
    devices: &Devices,
    cancel: &Cancel,
) -> Result<(Comparison, Option<Failed>), Failure> {
    let bar = progress::fraction();
    let start = Instant::now();
    let position = std::cell::Cell::new((0, 1));
    let failed = std::cell::RefCell::new(None);
    let mut measure = async |run: Run| {
        let mut show = |tick: &Tick| {
            bar.set_message(format!("{:.0} IOPS  {}", tick.iops(), left(start, position.get(), tick)));
        };
        let arm = run.arm;
        let measured = devices.measured(run, &mut show, cancel).await?;
        if let Some(error) = measured.first_error {
            // A device that is gone for good says so to each further run, after all its timeouts.
            let only = measured.failing && !cancel.is_cancelled();
            let index = if let Arm::Candidate(index) = arm { index } else { 0 };
            let mut failed = failed.borrow_mut();
            if failed.is_none() || only {
                *failed = Some(Failed { of: plan.arms[index].clone(), error, only });
            }
            if only {
                cancel.cancel();
            }
        }
        Ok::<_, BenchError>(measured.figure)
    };
    let mut at = |progress: &Progress| {
        position.set((progress.done, progress.planned));
        progress::set_fraction(&bar, progress.done as f64 / progress.planned as f64);
        let arm = match progress.run.arm {
            Arm::Candidate(index) => char::from(b'A' + index as u8),
            Arm::ControlAgain => 'A',
        };
        let pair = progress.run.block.map_or("warm-up".to_owned(), |block| format!("pair {}", block + 1));
        bar.set_prefix(format!("{} {arm}, {pair}", plan.rows[progress.run.row].name));
    };
    let compared = plan.run(&mut measure, &mut at, cancel).await;
    bar.finish_and_clear();
    Ok((compared.map_err(bench_failure)?, failed.into_inner()))
}

/// Time left if no row needs another round, by the time that runs took so far.
fn left(start: Instant, (done, planned): (u64, u64), tick: &Tick) -> String {
    let done = done as f64 + tick.fraction;
    if done < 1.0 {
        return String::new();
    }
    let left = start.elapsed().as_secs_f64() * (planned as f64 - done) / done;
    progress::left(Duration::from_secs_f64(left.max(0.0)))
}

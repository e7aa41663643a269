//! Results of an experiment.

use std::time::Duration;

use lunway_bench::compare::Comparison;
use lunway_report::Conclusion;

use crate::cpu::CpuUse;
use crate::experiment::Experiment;
use crate::experiment::plan::run::Window;
use crate::experiment::result::backups::BackupRow;
use crate::rate::Rate;
use crate::topology::Topology;

/// Results of an experiment: complete and valid for the part that ran, even if it was interrupted.
#[derive(Clone, Debug)]
pub struct Results {
    /// The experiment as it was run: with the repeats and times that the command line changed.
    pub experiment: Experiment,
    /// The network as it was built: rates may have been changed.
    pub topology: Topology,
    /// Throughput of the cables, in the order of the file. A cable that was built in several shapes is listed once for
    /// each.
    pub links: Vec<Link>,
    /// I/O, a row for each run, policy and direction.
    pub rows: Vec<ResultRow>,
    /// Bare TCP.
    pub cells: Vec<ResultCell>,
    /// Logical units against each other.
    pub comparisons: Vec<Compared>,
    /// Disks backed up into a share.
    pub backups: Vec<BackupRow>,
    /// Headline numbers, those that could be had.
    pub figures: Vec<(String, f64)>,
    /// Verdicts: one for each `[[verdict]]` of the experiment.
    pub verdicts: Vec<Conclusion>,
    /// Notes that a reader must know.
    pub notes: Vec<String>,
    /// Congestion control algorithm of TCP.
    pub congestion_control: &'static str,
    /// Asked to end before it was done.
    pub interrupted: bool,
}

/// Throughput of a cable.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The cable.
    pub name: String,
    /// Nominal rate; `None`: as fast as the machine is.
    pub rate: Option<Rate>,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Its delay, per direction.
    pub delay: Duration,
    /// Throughput of bare TCP in the slower direction, MB/s.
    pub calibrated_mb_s: f64,
    /// Throughput expected from its rate and MTU, MB/s.
    pub expected_mb_s: Option<f64>,
}

/// I/O of one direction of one run, with one policy.
#[derive(Clone, Debug)]
pub struct ResultRow {
    /// The run.
    pub test: String,
    /// Name of the topology, for people.
    pub topology: String,
    /// The policy.
    pub policy: String,
    /// I/O pattern: `read`, `randwrite`, `randrw-read` …
    pub rw: &'static str,
    /// The control.
    pub is_control: bool,
    /// Every repeat, in order.
    pub samples: Vec<Sample>,
    /// MB/s against the control beside it, per cent; `None` where there is no control, or one of the two does not
    /// count.
    pub deviance_pct: Option<f64>,
}

/// One measurement of a [`ResultRow`].
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Index of the repeat, from 0.
    pub repeat: u32,
    /// Mean response time.
    pub response_ms: f64,
    /// Response time that half of them exceed.
    pub median_ms: f64,
    /// Response time that one of a hundred exceeds.
    pub p99_ms: f64,
    /// The longest response time: how long one caller waited at most.
    pub longest_ms: f64,
    /// The longest time in which nothing succeeded: how long all callers waited at most. Of both directions.
    pub silence_ms: f64,
    /// Time from a killed target's return to the first success; `None` if none came back.
    pub resumed_ms: Option<f64>,
    /// Number of path losses, in both directions.
    pub lanes_lost: u64,
    /// Moved, millions of bytes.
    pub mb: f64,
    /// I/Os per second.
    pub iops: f64,
    /// Millions of bytes per second.
    pub mb_s: f64,
    /// The same once all had settled after the last of what happened; `None` where nothing did, or no time was left.
    pub mb_s_after: Option<f64>,
    /// I/Os that failed.
    pub errors: u64,
    /// Message of the first of them.
    pub first_error: Option<String>,
    /// Blocks that were checked, and those of them that did not hold what was written.
    pub verified: Option<(u64, u64)>,
    /// CPU usage of the machine.
    pub cpu: CpuUse,
    /// The processor limited it, not the network: it does not count.
    pub limited: bool,
    /// Cut short.
    pub partial: bool,
    /// Throughput over time.
    pub timeline: SampledTimeline,
}

impl Sample {
    /// Returns `true` if it was done to its end, and the processor did not limit it.
    pub fn counts(&self) -> bool {
        !self.limited && !self.partial
    }
}

/// Throughput over time, path by path, and what happened meanwhile.
#[derive(Clone, Debug, Default)]
pub struct SampledTimeline {
    /// Spacing of the values.
    pub interval: Duration,
    /// For each path its name and MB/s.
    pub paths: Vec<(String, Vec<f64>)>,
    /// Events as they occurred, with times since the start of the measurement.
    pub events: Vec<Happened>,
}

/// An event, as it happened.
#[derive(Clone, Debug)]
pub struct Happened {
    /// Time at which the event was due.
    pub asked: Duration,
    /// Time at which it was done.
    pub at: Duration,
    /// Description of the event.
    pub what: String,
}

/// One cell of a matrix: bare TCP with one window over one MTU and delay.
#[derive(Clone, Debug)]
pub struct ResultCell {
    /// The run.
    pub test: String,
    /// Name of the topology, for people.
    pub topology: String,
    /// The TCP window.
    pub window: Window,
    /// Bytes.
    pub mtu: u32,
    /// Per direction.
    pub delay: Duration,
    /// `read` or `write`.
    pub rw: &'static str,
    /// Every repeat: MB/s.
    pub samples: Vec<f64>,
    /// Moved in all repeats, millions of bytes.
    pub mb: f64,
    /// The round trip that TCP saw, milliseconds; the median of the repeats.
    pub rtt_ms: f64,
    /// The shortest round trip that TCP saw, milliseconds.
    pub rtt_least_ms: f64,
    /// Segments sent again, in all repeats.
    pub retransmits: u64,
    /// The processor limited one of the repeats: the cell does not count.
    pub limited: bool,
    /// Cut short.
    pub partial: bool,
}

impl ResultCell {
    /// Returns `true` if it was done to its end, and the processor did not limit it.
    pub fn counts(&self) -> bool {
        !self.limited && !self.partial
    }

    /// The median of the repeats.
    pub fn mb_s(&self) -> f64 {
        median(self.samples.iter().copied())
    }

    /// Returns the throughput at one window per round trip, MB/s; the wire may carry less. `None` where the system
    /// chooses the window.
    pub fn bound_mb_s(&self) -> Option<f64> {
        let window = self.window.bytes?;
        Some(f64::from(window) / (self.rtt_least_ms / 1000.0) / 1e6).filter(|bound| bound.is_finite())
    }
}

/// A comparison of two units, as far as it came.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The run.
    pub test: String,
    /// Name of the topology, for people.
    pub topology: String,
    /// Result of the comparison.
    pub comparison: Comparison,
    /// For each row of it, whether the processor limited it: then it does not count.
    pub limited: Vec<bool>,
}

impl ResultRow {
    /// The samples that count.
    pub fn counting(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| sample.counts())
    }

    /// At least one sample counts.
    pub fn counts(&self) -> bool {
        self.counting().next().is_some()
    }

    /// No sample counts, and the processor is why.
    pub fn limited(&self) -> bool {
        !self.counts() && self.samples.iter().any(|sample| sample.limited)
    }

    /// The median over the samples that count; over all where none does.
    pub fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        match self.counts() {
            true => median(self.counting().map(figure)),
            false => median(self.samples.iter().map(figure)),
        }
    }

    /// The largest of all samples: what was longest was, whether it counts or not.
    pub fn longest_ms(&self) -> f64 {
        self.samples.iter().map(|sample| sample.longest_ms).fold(0.0, f64::max)
    }

    /// The largest of all samples of what not all have.
    pub(crate) fn most(&self, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        self.samples.iter().filter_map(figure).reduce(f64::max)
    }

    /// Returns the number of path losses in all samples.
    pub fn lanes_lost(&self) -> u64 {
        self.samples.iter().map(|sample| sample.lanes_lost).sum()
    }

    /// I/Os that failed in all samples.
    pub fn errors(&self) -> u64 {
        self.samples.iter().map(|sample| sample.errors).sum()
    }

    /// Blocks that did not hold what was written, in all samples; `None` where nothing was checked.
    pub fn wrong_blocks(&self) -> Option<u64> {
        self.samples.iter().filter_map(|sample| Some(sample.verified?.1)).reduce(|sum, wrong| sum + wrong)
    }

    /// MB/s against the control of the same repeat, as the median of the repeats in which both count.
    pub(crate) fn deviance_from(&self, control: &ResultRow) -> Option<f64> {
        let pairs = self.counting().filter_map(|sample| {
            let beside = control.counting().find(|beside| beside.repeat == sample.repeat)?;
            Some((sample.mb_s / beside.mb_s - 1.0) * 100.0)
        });
        let pairs: Vec<f64> = pairs.filter(|deviance| deviance.is_finite()).collect();
        (!pairs.is_empty()).then(|| median(pairs.into_iter()))
    }
}

/// The value in the middle, or between the two in the middle; not a number where there is none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

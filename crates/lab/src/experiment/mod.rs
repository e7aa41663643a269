//! Experiments: what is measured on which network, as files.
//!
//! ```text
//!   file.toml ──▶ Experiment ──▶ Runner ──▶ Results ──▶ text   (terminal)
//!     shipped or     checked        │           ├─────▶ JSON   (programs)
//!     one's own              Network, targets,  └─────▶ page   (a browser)
//!                            bench, net, compare
//! ```
//!
//! **Invariant:** nothing here knows an experiment by name. What distinguishes `control` from `cable-pull` stands in
//! their files: the network, the runs, the figures and the sentences that are said of them.

mod measure;
mod plan;
mod result;

pub use measure::options::Options;
pub use measure::pace::{Progress, Watcher};
pub use measure::run_error::RunError;
pub use measure::runner::run;
pub use measure::sampler::{Label, SAMPLING, Sampler, Seen};
pub use plan::error::{ExperimentError, Problem};
pub use plan::expression::{Condition, Expression, ExpressionError, Others};
pub use plan::figures::{Figure, Template, Verdict};
pub use plan::run::{
    Arm, BackupRun, BackupWay, Comparing, Cut, CutKind, Event, Incident, Moment, Plan, Run, RunPath, RunWork,
    Storage, Window, Wire,
};
pub use plan::shipped::{SHIPPED, Shipped};
pub use result::backups::{BackupRow, BackupSample, LeftBehind};
pub use result::results::{
    Compared, Happened, Link, ResultCell, ResultRow, Results, Sample, SampledTimeline,
};

use crate::topology::Topology;

/// An experiment, read from a file and checked: every name in it is that of something.
///
/// The network is built once for each [`Run`] that needs it in another shape; runs of one shape share it. All runs are
/// repeated [`repeat`](Self::repeat) times, and in each repeat all are measured once, the control beside the others, so
/// that what drifts drifts for all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// Name on the command line.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Purpose of the experiment.
    pub about: String,
    /// Number of repeats of each measurement.
    pub repeat: u32,
    /// The network.
    pub topology: Topology,
    /// The measurements, in the order of the tables.
    pub runs: Vec<Run>,
    /// Headline numbers.
    pub figures: Vec<Figure>,
    /// Verdicts on the figures.
    pub verdicts: Vec<Verdict>,
    /// The file, as it was read.
    pub text: String,
}

impl Experiment {
    /// The run that others are compared with.
    pub fn control(&self) -> Option<&Run> {
        self.runs.iter().find(|run| run.is_control)
    }
}

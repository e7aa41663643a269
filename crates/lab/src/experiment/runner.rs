//! Running an experiment.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use lunway_bench::{Cancel, RwMode};
use lunway_block::duration::ExactDuration;

use super::Experiment;
use super::pace::{Pace, Watcher};
use super::results::{Cell, Link, Results, Row, median};
use super::run::{Measure, Run, Storage, Wire, rows};
use super::run_error::RunError;
use super::stolen::Retakes;
use super::storage::{FILLS_LINK, ServedNetwork, Step};
use super::target::Target;
use super::team::Team;
use super::wire::{Answering, shaped};
use crate::error::LabError;
use crate::network::{Calibration, Network};
use crate::rate::Rate;
use crate::topology::Topology;

/// Time to calibrate one direction of a cable.
const CALIBRATING: Duration = Duration::from_millis(2000);
/// Time to build a network and start its targets.
const BUILDING: Duration = Duration::from_millis(700);
/// Time to fill a unit, per 256 MiB.
const FILLING: Duration = Duration::from_millis(800);
/// Duration of the trial run of the control before any measurement, to see whether the processor carries the network.
const PROBE: Duration = Duration::from_millis(1000);
/// Factor by which the rates are scaled down if it does not.
const STEP_DOWN: f64 = 0.6;
/// Maximum number of reductions before the network is taken as it is.
const STEPS_DOWN: u32 = 5;

/// From this share of a window per round trip on, a cell is limited by its window. TCP sends it in whole segments, and
/// does not send the last of them at once.
const FILLS_WINDOW: f64 = 0.7;

/// Options for running an experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The rate of the fastest cable, in place of the file's; the others keep their proportion to it. Where none is
    /// given and the processor does not carry the file's rates, lower ones are taken, and a note says so.
    pub rate: Option<Rate>,
    /// Duration of each measurement, in place of the file's.
    pub time: Option<Duration>,
    /// Number of repeats of each measurement, in place of the file's.
    pub repeat: Option<u32>,
    /// The program that serves: `lunway`.
    pub program: PathBuf,
}

/// Runs `experiment` in the sandbox that this process is in, and says what came of it. `cancel` ends it early, with
/// what was measured until then.
///
/// # Errors
///
/// [`RunError`], a sentence.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    watcher: Watcher<'_>,
    cancel: &Cancel,
) -> Result<Results, RunError> {
    let experiment = experiment.changed(options)?;
    let total = experiment.cost();
    let mut runner = Runner {
        pace: Pace::new(total, watcher),
        results: Results::new(experiment.clone()),
        may_slow_down: options.rate.is_none(),
        program: &options.program,
        cancel,
    };
    let done = runner.all(&experiment);
    match done {
        Ok(()) => {}
        // What was measured until then is kept.
        Err(RunError::Lab(LabError::Interrupted)) => {}
        Err(error) if !cancel.is_cancelled() => return Err(error),
        // What a cancel cut off need not have ended well.
        Err(_) => {}
    }
    let mut results = runner.results;
    results.interrupted = cancel.is_cancelled();
    results.conclude();
    Ok(results)
}

struct Runner<'a> {
    pace: Pace<'a>,
    results: Results,
    /// Rates may be lowered where the processor does not carry them.
    may_slow_down: bool,
    program: &'a FilePath,
    cancel: &'a Cancel,
}

impl Runner<'_> {
    fn all(&mut self, experiment: &Experiment) -> Result<(), RunError> {
        if experiment.runs.iter().any(Run::needs_target) {
            self.with_targets(experiment)?;
        }
        for run in &experiment.runs {
            if let Measure::Wire(wire) = &run.measure {
                self.matrix(experiment, run, wire)?;
            }
        }
        Ok(())
    }

    /// All runs on units, on one network; more than one if the processor does not carry the first.
    fn with_targets(&mut self, experiment: &Experiment) -> Result<(), RunError> {
        let mut topology = self.results.topology.clone();
        for step in 0.. {
            let (network, links) = self.network(&topology)?;
            // Now: an interrupt while units are filled leaves a network that was calibrated.
            self.results.topology = network.topology().clone();
            self.results.congestion_control = network.congestion_control();
            self.results.links.clone_from(&links);
            self.pace.begin("starting targets", BUILDING);
            let teams = teams(experiment, &network)?;
            let targets = self.targets(&network, &teams)?;
            let served = ServedNetwork {
                network: &network,
                teams: &teams,
                targets: &targets,
                program: self.program,
                cancel: self.cancel,
            };
            self.fill(experiment, &served)?;
            let carried = step == STEPS_DOWN || self.carries(experiment, &served, &links)?;
            if carried || self.cancel.is_cancelled() {
                self.storage(experiment, &served, &links)?;
                return self.comparisons(experiment, &served, &links);
            }
            topology = network.topology().scaled(STEP_DOWN);
            self.slowed(&topology);
            self.pace.add(BUILDING + CALIBRATING * 2 * topology.cables.len() as u32);
        }
        Ok(())
    }

    /// Builds a network and calibrates it; a slower one where the processor does not carry it and nobody insists.
    fn network(&mut self, topology: &Topology) -> Result<(Network, Vec<Link>), RunError> {
        let mut topology = topology.clone();
        for step in 0.. {
            self.pace.begin("building the network", BUILDING);
            let network = Network::build(&topology)?;
            let pace = &mut self.pace;
            let cancel = self.cancel;
            let calibrated = network.calibrate(&mut |calibrating| {
                let doing = format!(
                    "calibrating {} ({}/{})",
                    calibrating.cable,
                    calibrating.done + 1,
                    calibrating.of
                );
                pace.begin(doing, CALIBRATING);
                if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match calibrated {
                Ok(calibrations) => {
                    let links = links(&topology, &calibrations);
                    return Ok((network, links));
                }
                Err(LabError::Calibration(shortfall)) if self.may_slow_down && step < STEPS_DOWN => {
                    topology = topology.scaled(shortfall.scale());
                    self.slowed(&topology);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(LabError::Interrupted.into())
    }

    fn slowed(&mut self, topology: &Topology) {
        let rates: Vec<String> = topology
            .cables
            .iter()
            .filter_map(|cable| Some(format!("{} at {}", cable.name, cable.rate?)))
            .collect();
        let note = format!(
            "The processor does not carry the rates of the file: measured with {}. Ratios between cables are kept.",
            rates.join(", ")
        );
        self.results.notes.retain(|note| !note.starts_with("The processor does not carry"));
        self.results.notes.push(note);
    }

    fn targets(&self, network: &Network, teams: &[Team]) -> Result<Vec<Target>, RunError> {
        let hosts = network.topology().hosts.iter().filter(|host| !host.luns.is_empty());
        hosts.map(|host| Target::start(network, teams, &host.name, &host.luns, self.program)).collect()
    }

    /// Every unit that is used, as far as it is used.
    fn fill(&mut self, experiment: &Experiment, served: &ServedNetwork<'_>) -> Result<(), RunError> {
        let mut units: Vec<(&Run, u16, u64)> = Vec::new();
        for run in &experiment.runs {
            for (lun, size) in run.units() {
                match units.iter_mut().find(|(other, number, _)| other.target == run.target && *number == lun)
                {
                    Some((_, _, most)) => *most = size.max(*most),
                    None => units.push((run, lun, size)),
                }
            }
        }
        for (run, lun, size) in units {
            self.pace.begin(format!("filling lun {lun} of {}", run.target), filling(size));
            served.fill(run, lun, size, &mut self.pace)?;
        }
        Ok(())
    }

    /// Returns `true` if the processor carries the control, and the run over most cables, as far as a short trial can
    /// tell.
    fn carries(
        &mut self,
        experiment: &Experiment,
        served: &ServedNetwork<'_>,
        links: &[Link],
    ) -> Result<bool, RunError> {
        if !self.may_slow_down {
            return Ok(true);
        }
        for run in experiment.tried() {
            let Measure::Storage(storage) = &run.measure else { continue };
            let probe = Storage { time: storage.time.min(PROBE), events: Vec::new(), ..storage.clone() };
            let capacity = capacity(run, links);
            for &access in &storage.accesses {
                self.pace.begin(format!("trying {} {}", run.test, access.name()), probe.time + probe.ramp);
                let step = Step { access, policy: &run.policies[0], repeat: 0, capacity };
                let samples = served.measure(run, &probe, &step, &mut self.pace)?;
                if samples.iter().any(|(_, sample)| sample.limited) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Every repeat measures everything once, every other one in the opposite order: what drifts, drifts for all.
    fn storage(
        &mut self,
        experiment: &Experiment,
        served: &ServedNetwork<'_>,
        links: &[Link],
    ) -> Result<(), RunError> {
        let mut steps = Vec::new();
        for run in &experiment.runs {
            let Measure::Storage(storage) = &run.measure else { continue };
            for policy in &run.policies {
                for &access in &storage.accesses {
                    for rw in rows(access) {
                        self.results.rows.push(Row::new(run, policy, rw));
                    }
                    steps.push((run, storage, policy, access));
                }
            }
        }
        let once: Duration = steps.iter().map(|(_, storage, ..)| storage.time + storage.ramp).sum();
        let mut retakes = Retakes::new(once * experiment.repeat);
        'all: for repeat in 0..experiment.repeat {
            for &(run, storage, policy, access) in &steps {
                if self.cancel.is_cancelled() {
                    break 'all;
                }
                let of = if experiment.repeat > 1 {
                    format!(" ({}/{})", repeat + 1, experiment.repeat)
                } else {
                    String::new()
                };
                let by = if run.policies.len() == 1 { String::new() } else { format!(" {policy}") };
                let doing = format!("{}{by} {}{of}", run.test, access.name());
                let time = storage.time + storage.ramp;
                self.pace.begin(doing, time);
                let step = Step { access, policy, repeat, capacity: capacity(run, links) };
                let samples =
                    retakes.measure(time, || served.measure(run, storage, &step, &mut self.pace))?;
                for (rw, sample) in samples {
                    let row = self.results.rows.iter_mut().find(|row| row.is_of(run, policy, rw));
                    // A measurement that a cancel ended before it began says nothing.
                    if let Some(row) = row.filter(|_| sample.mb > 0.0 || !sample.partial) {
                        row.samples.push(sample);
                    }
                }
            }
            steps.reverse();
        }
        self.results.notes.extend(retakes.note());
        Ok(())
    }

    fn comparisons(
        &mut self,
        experiment: &Experiment,
        served: &ServedNetwork<'_>,
        links: &[Link],
    ) -> Result<(), RunError> {
        for run in &experiment.runs {
            let Measure::Compare(comparing) = &run.measure else { continue };
            if self.cancel.is_cancelled() {
                return Ok(());
            }
            let compared = served.compare(run, comparing, capacity(run, links), &mut self.pace)?;
            self.results.comparisons.push(compared);
        }
        Ok(())
    }

    /// A network for each MTU and delay, on it every window.
    fn matrix(&mut self, experiment: &Experiment, run: &Run, wire: &Wire) -> Result<(), RunError> {
        for &delay in &wire.delays {
            for &mtu in &wire.mtus {
                let topology = shaped(&self.results.topology, run, mtu, delay);
                let (network, links) = self.network(&topology)?;
                self.results.congestion_control = network.congestion_control();
                self.results.links.extend(links.iter().cloned());
                let answering = Answering::start(&network, run)?;
                for repeat in 0..experiment.repeat {
                    for window in &wire.windows {
                        for &access in &wire.directions {
                            if self.cancel.is_cancelled() {
                                return Ok(());
                            }
                            let doing = format!("{} {window} × {mtu}, {}", run.test, ExactDuration(delay));
                            self.pace.begin(doing, wire.time);
                            let measured =
                                answering.measure(wire, window, access, self.cancel, &mut self.pace)?;
                            let cell = Cell::new(run, window, (mtu, delay), access, &measured, &links);
                            self.add(cell, repeat);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A cell, or one more measurement of it.
    fn add(&mut self, cell: Cell, repeat: u32) {
        match self.results.cells.iter_mut().find(|other| repeat > 0 && other.is_same(&cell)) {
            Some(other) => other.merge(cell),
            None => self.results.cells.push(cell),
        }
    }
}

/// The teams of an experiment, on a network that was built for it.
fn teams(experiment: &Experiment, network: &Network) -> Result<Vec<Team>, RunError> {
    let teams = experiment.runs.iter().enumerate();
    teams.filter_map(|(number, run)| Team::build(network, run, number).transpose()).collect()
}

/// Returns the combined throughput of a run's cables, MB/s: the slower end of each path; a cable shared by several
/// paths counts once.
fn capacity(run: &Run, links: &[Link]) -> f64 {
    let of = |cable: &str| {
        links.iter().find(|link| link.name == cable).map_or(f64::INFINITY, |link| link.calibrated_mb_s)
    };
    let side = |cables: &mut Vec<&str>| {
        cables.sort_unstable();
        cables.dedup();
        cables.iter().map(|cable| of(cable)).sum::<f64>()
    };
    let leaves = side(&mut run.paths.iter().map(|path| path.leaves.as_str()).collect());
    let enters = side(&mut run.paths.iter().map(|path| path.enters.as_str()).collect());
    leaves.min(enters)
}

/// Returns the throughput of the cables, in the slower direction.
fn links(topology: &Topology, calibrations: &[Calibration]) -> Vec<Link> {
    let link = |cable: &crate::topology::Cable| {
        let directions = calibrations.iter().filter(|calibration| calibration.cable == cable.name);
        let measured = directions.map(|calibration| calibration.measured_mb_s).fold(f64::INFINITY, f64::min);
        Link {
            name: cable.name.clone(),
            rate: cable.rate,
            mtu: cable.mtu,
            delay: cable.delay.unwrap_or_default(),
            calibrated_mb_s: measured,
            expected_mb_s: cable.rate.map(|rate| cable.payload_bytes_per_second(rate) / 1e6),
        }
    };
    topology.cables.iter().map(link).collect()
}

fn filling(size: u64) -> Duration {
    FILLING.mul_f64(size as f64 / f64::from(256 << 20)) + Duration::from_millis(200)
}

impl Run {
    fn needs_target(&self) -> bool {
        !matches!(self.measure, Measure::Wire(_))
    }

    /// The units that it uses, and how much of each.
    fn units(&self) -> Vec<(u16, u64)> {
        match &self.measure {
            Measure::Storage(storage) => vec![(storage.lun, storage.size)],
            Measure::Wire(_) => Vec::new(),
            Measure::Compare(comparing) => {
                comparing.arms.iter().map(|arm| (arm.lun, comparing.size)).collect()
            }
        }
    }

    /// About how long its measurements take.
    fn cost(&self, repeat: u32, calibrating: Duration) -> Duration {
        let filling: Duration = self.units().into_iter().map(|(_, size)| filling(size)).sum();
        match &self.measure {
            Measure::Storage(storage) => {
                let accesses = (storage.accesses.len() * self.policies.len()) as u32;
                filling + (storage.time + storage.ramp) * accesses * repeat
            }
            Measure::Wire(wire) => {
                let networks = (wire.mtus.len() * wire.delays.len()) as u32;
                let cells = networks * (wire.windows.len() * wire.directions.len()) as u32;
                (BUILDING + calibrating) * networks + wire.time * cells * repeat
            }
            Measure::Compare(comparing) => {
                filling
                    + comparing.time * 3 * (comparing.pairs + 1) * super::run::Comparing::rows().len() as u32
            }
        }
    }
}

impl Experiment {
    /// About how long it takes.
    pub fn cost(&self) -> Duration {
        let calibrating = CALIBRATING * 2 * self.topology.cables.len() as u32;
        let runs: Duration = self.runs.iter().map(|run| run.cost(self.repeat, calibrating)).sum();
        let targets = self.runs.iter().any(Run::needs_target);
        let probe = |run: &Run| match &run.measure {
            Measure::Storage(storage) => {
                (storage.time.min(PROBE) + storage.ramp) * storage.accesses.len() as u32
            }
            _ => Duration::ZERO,
        };
        let probes: Duration = self.tried().into_iter().map(probe).sum();
        runs + if targets { BUILDING * 2 + calibrating + probes } else { Duration::ZERO }
    }

    /// Returns the runs that show whether the processor carries the network: the control, and the run that may use most
    /// cables at once.
    fn tried(&self) -> Vec<&Run> {
        let cables = |run: &Run| {
            let side = |cable: fn(&super::Path) -> &String| {
                run.paths.iter().map(cable).collect::<BTreeSet<_>>().len()
            };
            side(|path| &path.leaves).min(side(|path| &path.enters))
        };
        let widest = self.runs.iter().filter(|run| run.team.is_none() && run.needs_target());
        // The first of several that are as wide.
        let widest = widest.rev().max_by_key(|run| cables(run)).filter(|run| cables(run) > 1);
        let control = self.control();
        control.into_iter().chain(widest.filter(|run| !run.is_control)).collect()
    }

    /// Returns the experiment with the options of the command line applied.
    ///
    /// # Errors
    ///
    /// A rate, where no cable has one.
    pub fn changed(&self, options: &Options) -> Result<Self, RunError> {
        let mut changed = self.clone();
        if let Some(repeat) = options.repeat {
            changed.repeat = repeat;
        }
        if let Some(rate) = options.rate {
            let fastest = self.topology.cables.iter().filter_map(|cable| cable.rate).max();
            let fastest = fastest.ok_or_else(|| RunError::NoRates(self.name.clone()))?;
            let factor = rate.bits_per_second() as f64 / fastest.bits_per_second() as f64;
            changed.topology = self.topology.scaled(factor);
        }
        if let Some(time) = options.time {
            for run in &mut changed.runs {
                run.measure.take(time);
            }
        }
        Ok(changed)
    }
}

impl Measure {
    /// Takes that long, instead of what its file says; what happens meanwhile moves in proportion.
    fn take(&mut self, time: Duration) {
        match self {
            Self::Storage(storage) => {
                for event in &mut storage.events {
                    let at = event.at.within(storage.time, storage.time);
                    event.at = super::Moment::Share(at.as_secs_f64() / storage.time.as_secs_f64());
                }
                storage.ramp = storage.ramp.min(time);
                storage.time = time;
            }
            Self::Wire(wire) => wire.time = time,
            Self::Compare(comparing) => comparing.time = time,
        }
    }
}

impl Row {
    fn new(run: &Run, policy: &str, rw: &'static str) -> Self {
        Self {
            test: run.test.clone(),
            topology: run.topology.clone(),
            policy: policy.to_owned(),
            rw,
            is_control: run.is_control,
            samples: Vec::new(),
            deviance_pct: None,
        }
    }

    fn is_of(&self, run: &Run, policy: &str, rw: &str) -> bool {
        self.test == run.test && self.policy == policy && self.rw == rw
    }
}

impl Cell {
    fn new(
        run: &Run,
        window: &super::Window,
        (mtu, delay): (u32, Duration),
        access: RwMode,
        measured: &super::wire::Measured,
        links: &[Link],
    ) -> Self {
        let throughput = &measured.throughput;
        let ms = |time: Option<Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        let smoothed = throughput.senders().map(|end| end.tcp.rtt).filter(|rtt| !rtt.is_zero()).min();
        let mut cell = Self {
            test: run.test.clone(),
            topology: run.topology.clone(),
            window: window.clone(),
            mtu,
            delay,
            rw: access.name(),
            samples: vec![throughput.bytes_per_second() / 1e6],
            mb: throughput.bytes() as f64 / 1e6,
            rtt_ms: ms(smoothed),
            rtt_least_ms: ms(throughput.round_trip()),
            retransmits: throughput.retransmits(),
            limited: measured.cpu.limited,
            partial: !throughput.complete,
        };
        // What fills the cable is limited by that, and what moves about a window per round trip by that, however busy
        // the processor.
        let by_link = cell.mb_s() >= FILLS_LINK * capacity(run, links);
        let by_window = cell.bound_mb_s().is_some_and(|bound| cell.mb_s() >= FILLS_WINDOW * bound);
        cell.limited &= !by_link && !by_window;
        cell
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.test, &self.window, self.mtu, self.delay, self.rw)
            == (&other.test, &other.window, other.mtu, other.delay, other.rw)
    }

    /// Merges another measurement of the same cell.
    fn merge(&mut self, other: Self) {
        self.rtt_ms = median([self.rtt_ms, other.rtt_ms].into_iter());
        self.rtt_least_ms = self.rtt_least_ms.min(other.rtt_least_ms);
        self.samples.extend(other.samples);
        self.mb += other.mb;
        self.retransmits += other.retransmits;
        self.limited |= other.limited;
        self.partial |= other.partial;
    }
}

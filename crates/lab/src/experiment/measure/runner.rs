//! Running an experiment.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use lunway_bench::Cancel;
use lunway_block::duration::ExactDuration;

use crate::error::LabError;
use crate::experiment::Experiment;
use crate::experiment::measure::backup::BackupNetwork;
use crate::experiment::measure::cost::{BUILDING, CALIBRATING, PROBE, filling};
use crate::experiment::measure::options::Options;
use crate::experiment::measure::pace::{Pace, Watcher};
use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::stolen::Retakes;
use crate::experiment::measure::storage::{ServedNetwork, Step};
use crate::experiment::measure::tally::capacity;
use crate::experiment::measure::target::Target;
use crate::experiment::measure::team::Team;
use crate::experiment::measure::wire::{Answering, shaped};
use crate::experiment::plan::run::{Run, RunWork, Storage, Wire, rows};
use crate::experiment::result::backups::BackupRow;
use crate::experiment::result::results::{Link, ResultCell, ResultRow, Results};
use crate::network::{Calibration, Network};
use crate::topology::Topology;

/// Factor by which the rates are scaled down where the processor does not carry the network.
const STEP_DOWN: f64 = 0.6;
/// Maximum number of reductions before the network is taken as it is.
const STEPS_DOWN: u32 = 5;

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
    program: &'a Path,
    cancel: &'a Cancel,
}

impl Runner<'_> {
    fn all(&mut self, experiment: &Experiment) -> Result<(), RunError> {
        if experiment.runs.iter().any(Run::needs_target) {
            self.with_targets(experiment)?;
        }
        if experiment.runs.iter().any(|run| matches!(run.measure, RunWork::Backup(_))) {
            self.backups(experiment)?;
        }
        for run in &experiment.runs {
            if let RunWork::Wire(wire) = &run.measure {
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

    /// Builds a network and calibrates it; a slower one where the processor does not carry it and the user does not
    /// insist.
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
            let RunWork::Storage(storage) = &run.measure else { continue };
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
            let RunWork::Storage(storage) = &run.measure else { continue };
            for policy in &run.policies {
                for &access in &storage.accesses {
                    for rw in rows(access) {
                        self.results.rows.push(ResultRow::new(run, policy, rw));
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
            let RunWork::Compare(comparing) = &run.measure else { continue };
            if self.cancel.is_cancelled() {
                return Ok(());
            }
            let compared = served.compare(run, comparing, capacity(run, links), &mut self.pace)?;
            self.results.comparisons.push(compared);
        }
        Ok(())
    }

    /// Every repeat makes all backups once, every other one in the opposite order.
    fn backups(&mut self, experiment: &Experiment) -> Result<(), RunError> {
        // Before a network is built in vain.
        BackupNetwork::check()?;
        let (network, links) = self.network(&self.results.topology.clone())?;
        self.results.topology = network.topology().clone();
        self.results.congestion_control = network.congestion_control();
        self.results.links.extend(links.iter().cloned());
        let of = |run: &Run| matches!(run.measure, RunWork::Backup(_));
        let mut runs: Vec<&Run> = experiment.runs.iter().filter(|run| of(run)).collect();
        self.results.backups.extend(runs.iter().map(|run| BackupRow::new(run)));
        let backups = BackupNetwork { network: &network, program: self.program, cancel: self.cancel };
        for repeat in 0..experiment.repeat {
            for run in &runs {
                let RunWork::Backup(backup) = &run.measure else { continue };
                if self.cancel.is_cancelled() {
                    return Ok(());
                }
                let doing = format!("{} ({}/{})", run.test, repeat + 1, experiment.repeat);
                self.pace.begin(doing, experiment.backup_cost(run));
                let sample = backups.measure(run, backup, repeat, capacity(run, &links))?;
                let row = self.results.backups.iter_mut().find(|row| row.test == run.test);
                // What a cancel has ended says nothing.
                if let Some(row) = row.filter(|_| !self.cancel.is_cancelled()) {
                    row.samples.push(sample);
                }
            }
            runs.reverse();
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
                            let cell = ResultCell::new(run, window, (mtu, delay), access, &measured, &links);
                            self.add(cell, repeat);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A cell, or one more measurement of it.
    fn add(&mut self, cell: ResultCell, repeat: u32) {
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

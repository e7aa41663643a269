//! Expected duration of an experiment and its parts.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::experiment::plan::run::{BackupWay, Run, RunWork};
use crate::experiment::{Comparing, Experiment, RunPath};

/// Time to calibrate one direction of a cable.
pub(crate) const CALIBRATING: Duration = Duration::from_millis(2000);
/// Time to build a network and start its targets.
pub(crate) const BUILDING: Duration = Duration::from_millis(700);
/// Beginning and end of a backup: the disk is made and served, and what was made is compared with it.
const BACKING_UP: Duration = Duration::from_millis(1500);
/// Throughput of a cable without a rate, bytes per second.
const UNSHAPED: f64 = 1e9;
/// Time to fill a unit, per 256 MiB.
const FILLING: Duration = Duration::from_millis(800);
/// Duration of the trial run of the control before any measurement, to see whether the processor carries the network.
pub(crate) const PROBE: Duration = Duration::from_millis(1000);

/// Time to fill that many bytes of a unit.
pub(crate) fn filling(size: u64) -> Duration {
    FILLING.mul_f64(size as f64 / f64::from(256 << 20)) + Duration::from_millis(200)
}

impl Run {
    pub(crate) fn needs_target(&self) -> bool {
        !matches!(self.measure, RunWork::Wire(_) | RunWork::Backup(_))
    }

    /// The units that it uses, and how much of each.
    pub(crate) fn units(&self) -> Vec<(u16, u64)> {
        match &self.measure {
            RunWork::Storage(storage) => vec![(storage.lun, storage.size)],
            RunWork::Wire(_) | RunWork::Backup(_) => Vec::new(),
            RunWork::Compare(comparing) => {
                comparing.arms.iter().map(|arm| (arm.lun, comparing.size)).collect()
            }
        }
    }

    /// About how long its measurements take.
    pub(crate) fn cost(&self, repeat: u32, calibrating: Duration) -> Duration {
        let filling: Duration = self.units().into_iter().map(|(_, size)| filling(size)).sum();
        match &self.measure {
            RunWork::Storage(storage) => {
                let accesses = (storage.accesses.len() * self.policies.len()) as u32;
                filling + (storage.time + storage.ramp) * accesses * repeat
            }
            RunWork::Wire(wire) => {
                let networks = (wire.mtus.len() * wire.delays.len()) as u32;
                let cells = networks * (wire.windows.len() * wire.directions.len()) as u32;
                (BUILDING + calibrating) * networks + wire.time * cells * repeat
            }
            // The network is the experiment's.
            RunWork::Backup(_) => Duration::ZERO,
            RunWork::Compare(comparing) => {
                filling + comparing.time * 3 * (comparing.pairs + 1) * Comparing::rows().len() as u32
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
            RunWork::Storage(storage) => {
                (storage.time.min(PROBE) + storage.ramp) * storage.accesses.len() as u32
            }
            _ => Duration::ZERO,
        };
        let probes: Duration = self.tried().into_iter().map(probe).sum();
        let backups: Duration = self.runs.iter().map(|run| self.backup_cost(run) * self.repeat).sum();
        let networks = [targets.then_some(BUILDING * 2 + probes), (!backups.is_zero()).then_some(BUILDING)];
        let networks = networks.into_iter().flatten().map(|building| building + calibrating);
        runs + backups + networks.sum::<Duration>()
    }

    /// About how long one backup of a run takes.
    pub(crate) fn backup_cost(&self, run: &Run) -> Duration {
        let RunWork::Backup(backup) = &run.measure else { return Duration::ZERO };
        let cable = run.paths.first().and_then(|path| self.topology.cable(&path.leaves));
        let rate = cable.and_then(|cable| Some(cable.payload_bytes_per_second(cable.rate?)));
        let share = if backup.way == BackupWay::Increment { backup.changed } else { 1.0 };
        let once = Duration::from_secs_f64(backup.size as f64 * share / rate.unwrap_or(UNSHAPED));
        // One write after the other takes a round trip more for each.
        let slow = if backup.queue_depth == 1 && backup.way.disk().is_some() { once } else { Duration::ZERO };
        let cut = backup.cut.map_or(Duration::ZERO, |cut| once + cut.time.max(backup.patience));
        BACKING_UP + once + slow + cut
    }

    /// Returns the runs that show whether the processor carries the network: the control, and the run that may use most
    /// cables at once.
    pub(crate) fn tried(&self) -> Vec<&Run> {
        let cables = |run: &Run| {
            let side =
                |cable: fn(&RunPath) -> &String| run.paths.iter().map(cable).collect::<BTreeSet<_>>().len();
            side(|path| &path.leaves).min(side(|path| &path.enters))
        };
        let widest = self.runs.iter().filter(|run| run.team.is_none() && run.needs_target());
        // The first of several that are as wide.
        let widest = widest.rev().max_by_key(|run| cables(run)).filter(|run| cables(run) > 1);
        let control = self.control();
        control.into_iter().chain(widest.filter(|run| !run.is_control)).collect()
    }
}

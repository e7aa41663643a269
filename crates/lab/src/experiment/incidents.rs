//! What happens while something is measured, and what goes over the paths meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, PathSample};

use super::results::Happened;
use super::run::{Incident, Storage};
use super::storage::Ground;
use crate::timeline::{self, Timeline};

/// Spacing of the values of a chart. Longer than a large request takes on a cable of 250 Mbit, or the chart would show requests, not
/// throughput.
pub(super) const SAMPLING: Duration = Duration::from_millis(200);

/// What is to happen in one measurement.
pub(super) struct Incidents<'a> {
    ground: &'a Ground<'a>,
    cables: Timeline,
    /// The cables that something happens to.
    touched: BTreeSet<String>,
    /// Targets: when, which host, whether it comes back.
    targets: Vec<(Duration, String, bool)>,
}

impl<'a> Incidents<'a> {
    pub(super) fn of(ground: &'a Ground<'a>, storage: &Storage) -> Self {
        let (mut cables, mut targets) = (Vec::new(), Vec::new());
        for event in &storage.events {
            let at = event.at.within(storage.time, storage.time);
            match &event.incident {
                Incident::Cable(action) => cables.push(timeline::Event { at, action: action.clone() }),
                Incident::Stop(host) => targets.push((at, host.clone(), false)),
                Incident::Start(host) => targets.push((at, host.clone(), true)),
            }
        }
        let touched = cables.iter().map(|event| event.action.cable().to_owned()).collect();
        // The check of the file has asked the same.
        let cables = Timeline::new(&cables, ground.network.topology()).unwrap_or_default();
        Self { ground, cables, touched, targets }
    }

    /// Lets it happen, with times counted from `origin`. After `time` everything is mended: what waits for a cable then must not wait
    /// for ever.
    pub(super) fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        origin: Instant,
        time: Duration,
    ) -> Happening<'scope> {
        let (stop, stopped) = mpsc::channel();
        let thread = scope.spawn(move || self.happen(origin, time, &stopped));
        Happening { stop, thread }
    }

    fn happen(&self, origin: Instant, time: Duration, stopped: &Receiver<()>) -> Vec<Happened> {
        if self.touched.is_empty() && self.targets.is_empty() {
            return Vec::new();
        }
        let Ground { network, targets, program, .. } = *self.ground;
        let cables = self.cables.start(network, origin);
        let wait_until = |at: Duration| {
            let wait = (origin + at).saturating_duration_since(Instant::now());
            stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
        };
        let mut happened = Vec::new();
        for (at, host, comes_back) in &self.targets {
            if !wait_until(*at) {
                break;
            }
            let mut failed = None;
            for target in targets.iter().filter(|target| target.host() == host) {
                match comes_back {
                    false => target.kill(),
                    true => failed = target.revive(network, program).err(),
                }
            }
            let incident = match comes_back {
                false => Incident::Stop(host.clone()),
                true => Incident::Start(host.clone()),
            };
            let what =
                failed.map_or_else(|| incident.to_string(), |error| format!("{incident} failed: {error}"));
            happened.push(Happened { asked: *at, at: origin.elapsed(), what });
        }
        wait_until(time);
        happened.extend(cables.stop().into_iter().map(|event| Happened {
            asked: event.asked,
            at: event.done,
            what: match event.error {
                None => event.action.to_string(),
                Some(error) => format!("{} failed: {error}", event.action),
            },
        }));
        // What cannot be mended is seen in what is measured next.
        for cable in network.cables().iter().filter(|cable| self.touched.contains(cable.name())) {
            let _ = cable.mend();
        }
        for target in targets {
            let _ = target.revive(network, program);
        }
        happened.sort_by_key(|event| event.at);
        happened
    }
}

/// It happens.
pub(super) struct Happening<'scope> {
    stop: Sender<()>,
    thread: ScopedJoinHandle<'scope, Vec<Happened>>,
}

impl Happening<'_> {
    /// Nothing more happens; everything is mended.
    pub(super) fn end(self) -> Vec<Happened> {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

/// Looks at a device's paths again and again.
pub(super) struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Vec<PathSample>>>,
}

impl Sampler {
    /// From `origin` on.
    pub(super) fn start(device: Arc<dyn BlockDevice>, origin: Instant) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            let mut at = origin;
            let due = |at: Instant| at.saturating_duration_since(Instant::now());
            while stopped.recv_timeout(due(at)) == Err(RecvTimeoutError::Timeout) {
                samples.push(device.paths());
                at += SAMPLING;
            }
            samples
        });
        Self { stop, thread }
    }

    /// MB/s of each path over `time`, reads and writes apart where there are both. `labels` are the paths' names. What comes after
    /// that time, as reading back for verification does, is left out.
    pub(super) fn end(self, labels: &[String], time: Duration) -> Vec<(String, Vec<f64>)> {
        drop(self.stop);
        let mut samples = self.thread.join().unwrap_or_default();
        samples.truncate(time.div_duration_f64(SAMPLING) as usize + 1);
        let paths = samples.iter().map(Vec::len).max().unwrap_or(0);
        let mut lines = Vec::new();
        for path in 0..paths {
            let rates = |bytes: fn(&PathSample) -> u64| -> Vec<f64> {
                let total = |sample: &[PathSample]| sample.get(path).map_or(0, bytes);
                let steps = samples.windows(2).map(|pair| total(&pair[1]).saturating_sub(total(&pair[0])));
                steps.map(|bytes| bytes as f64 / 1e6 / SAMPLING.as_secs_f64()).collect()
            };
            let label = labels.get(path).cloned().unwrap_or_else(|| {
                samples
                    .iter()
                    .find_map(|sample| sample.get(path))
                    .map_or(String::new(), |path| path.name.clone())
            });
            let directions =
                [("reads", rates(|path| path.read_bytes)), ("writes", rates(|path| path.write_bytes))];
            let moved = directions.into_iter().filter(|(_, line)| line.iter().any(|rate| *rate > 0.0));
            lines.extend(moved.map(|(direction, line)| (format!("{label} {direction}"), line)));
        }
        lines
    }
}

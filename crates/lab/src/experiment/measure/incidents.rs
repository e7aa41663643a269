//! Events during a measurement.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::experiment::measure::storage::ServedNetwork;
use crate::experiment::plan::run::{Incident, Storage};
use crate::experiment::result::results::Happened;
use crate::timeline::{self, Timeline};

/// Events planned for one measurement.
pub(crate) struct Incidents<'a> {
    served: &'a ServedNetwork<'a>,
    cables: Timeline,
    /// The cables that something happens to.
    touched: BTreeSet<String>,
    /// Targets: when, which host, whether it comes back.
    targets: Vec<(Duration, String, bool)>,
}

impl<'a> Incidents<'a> {
    pub(crate) fn of(served: &'a ServedNetwork<'a>, storage: &Storage) -> Self {
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
        let cables = Timeline::new(&cables, served.network.topology()).unwrap_or_default();
        Self { served, cables, touched, targets }
    }

    /// Lets it happen, with times counted from `origin`. After `time` everything is mended: what waits for a cable then
    /// must not wait for ever.
    pub(crate) fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        origin: Instant,
        time: Duration,
    ) -> Happening<'scope> {
        let (stop, stopped) = mpsc::channel();
        let thread = scope.spawn(move || self.happen(origin, time, &stopped));
        Happening { stop, thread }
    }

    fn happen(&self, origin: Instant, time: Duration, stopped: &Receiver<()>) -> Had {
        if self.touched.is_empty() && self.targets.is_empty() {
            return Had::default();
        }
        let ServedNetwork { network, targets, program, .. } = *self.served;
        let cables = self.cables.start(network, origin);
        let wait_until = |at: Duration| {
            let wait = (origin + at).saturating_duration_since(Instant::now());
            stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
        };
        let mut happened = Vec::new();
        let mut back = Vec::new();
        for (at, host, comes_back) in &self.targets {
            if !wait_until(*at) {
                break;
            }
            // A killed target is gone from here on, one that comes back is there when all is done.
            let mut done = origin.elapsed();
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
            if *comes_back {
                done = origin.elapsed();
                back.extend(failed.is_none().then_some(done));
            }
            let what =
                failed.map_or_else(|| incident.to_string(), |error| format!("{incident} failed: {error}"));
            happened.push(Happened { asked: *at, at: done, what });
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
        Had { events: happened, back }
    }
}

/// Events that occurred in one measurement.
#[derive(Default)]
pub(crate) struct Had {
    /// In order of time.
    pub(crate) events: Vec<Happened>,
    /// Times at which targets were back: ready, and not yet reached by any initiator.
    pub(crate) back: Vec<Duration>,
}

/// Incident under way.
pub(crate) struct Happening<'scope> {
    stop: Sender<()>,
    thread: ScopedJoinHandle<'scope, Had>,
}

impl Happening<'_> {
    /// Nothing more happens; everything is mended.
    pub(crate) fn end(self) -> Had {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

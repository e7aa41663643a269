//! What goes over the wire during a backup, and the cable that is cut in the middle of it.

use std::fs;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::experiment::measure::sampler::SAMPLING;
use crate::experiment::plan::run::{Cut, CutKind};
use crate::experiment::result::results::Happened;
use crate::network::{LiveCable, LiveHost, Network};

/// Interval at which the card's counter is read: a cut comes so late at most.
const LOOKING: Duration = Duration::from_millis(20);
/// [`LOOKING`] in a [`SAMPLING`].
const LOOKS: u32 = 10;
/// Values of a chart: a quarter of an hour.
const SAMPLES_MAX: usize = 4500;

/// Bytes that a host has sent by a card.
fn sent_by(card: &str) -> io::Result<u64> {
    // The thread's own namespace: /sys has that of who mounted it.
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    // `card: bytes packets errs drop fifo frame compressed multicast bytes …`: received, then sent.
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(card)?.strip_prefix(':'));
    let sent = line.and_then(|counters| counters.split_whitespace().nth(8)?.parse().ok());
    sent.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("the kernel has no counters of {card}"))
    })
}

/// What went over the wire.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Bytes that the host has sent, with all headers.
    pub(super) sent: u64,
    /// MB/s, every [`SAMPLING`].
    pub(super) mb_s: Vec<f64>,
    /// The cut and the mending.
    pub(super) events: Vec<Happened>,
}

/// Watches a card of a host, and cuts a cable when so much has gone over it.
pub(super) struct WireWatch {
    stop: Sender<()>,
    thread: JoinHandle<io::Result<io::Result<Watched>>>,
    network: Network,
    cable: Option<String>,
}

/// Where and when the cable is cut.
pub(super) struct CutPlan {
    pub(super) cable: String,
    pub(super) cut: Cut,
    /// Bytes on the wire after which it happens.
    pub(super) at: u64,
}

impl WireWatch {
    /// From `origin` on.
    pub(super) fn start(
        network: &Network,
        host: &LiveHost,
        card: String,
        plan: Option<CutPlan>,
        origin: Instant,
    ) -> Result<Self, LabError> {
        let (stop, stopped) = mpsc::channel::<()>();
        let cable = plan.as_ref().map(|plan| plan.cable.clone());
        let owned = network.clone();
        let thread = host.start(move || {
            let first = sent_by(&card)?;
            let (mut watched, mut last) = (Watched::default(), first);
            let mut cutting = plan.map(Cutting::Due);
            let mut at = origin;
            for look in 0_u32.. {
                let due = at.saturating_duration_since(Instant::now());
                if stopped.recv_timeout(due) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let now = sent_by(&card)?;
                watched.sent = now - first;
                if look > 0 && look % LOOKS == 0 && watched.mb_s.len() < SAMPLES_MAX {
                    watched.mb_s.push((now - last) as f64 / 1e6 / SAMPLING.as_secs_f64());
                    last = now;
                }
                cutting = match cutting {
                    Some(cutting) => cutting.look(&owned, watched.sent, origin, &mut watched.events),
                    None => None,
                };
                at += LOOKING;
            }
            watched.sent = sent_by(&card)? - first;
            Ok(watched)
        })?;
        Ok(Self { stop, thread, network: network.clone(), cable })
    }

    /// Ends it, with the cable as it was.
    pub(super) fn end(self) -> io::Result<Watched> {
        drop(self.stop);
        let watched = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if let Some(cable) = self.cable {
            // What cannot be mended is seen in what is measured next.
            let _ = self.network.cable(&cable).and_then(LiveCable::mend);
        }
        watched?
    }
}

/// A cut that has not ended.
enum Cutting {
    Due(CutPlan),
    Cut { plan: CutPlan, until: Instant },
}

impl Cutting {
    /// Does what is due. Returns what is left to do.
    fn look(self, network: &Network, sent: u64, origin: Instant, events: &mut Vec<Happened>) -> Option<Self> {
        let now = Instant::now();
        let mut tell = |plan: &CutPlan, word: &str, done: Result<(), LabError>| {
            let failed = done.err().map_or(String::new(), |error| format!(" failed: {error}"));
            let at = origin.elapsed();
            events.push(Happened { asked: now - origin, at, what: format!("{} {word}{failed}", plan.cable) });
        };
        match self {
            Self::Due(plan) if sent >= plan.at => {
                let cable = network.cable(&plan.cable);
                let (word, done) = match plan.cut.kind {
                    CutKind::Pull => ("pulled", cable.and_then(LiveCable::pull)),
                    CutKind::BlackHole => ("a black hole", cable.and_then(LiveCable::black_hole)),
                };
                tell(&plan, word, done);
                let until = Instant::now() + plan.cut.time;
                Some(Self::Cut { plan, until })
            }
            Self::Cut { plan, until } if now >= until => {
                tell(&plan, "mended", network.cable(&plan.cable).and_then(LiveCable::mend));
                None
            }
            waiting => Some(waiting),
        }
    }
}

//! Timeline of events on cables.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunway_block::duration::{ExactDuration, parse_duration};
use serde::{Deserialize, Deserializer};

use crate::error::LabError;
use crate::network::Network;
use crate::rate::Rate;
use crate::topology::{Loss, Topology};

/// The most that a timeline holds after flapping is counted out.
const EVENTS_MAX: usize = 10_000;

/// Something that is to happen to a cable.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Time of the event, counted from the beginning of the run.
    pub at: Duration,
    /// Action of the event.
    pub action: Action,
}

/// Action on a cable; the name in a file is the same in small letters.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Pulled.
    Pull(String),
    /// Plugged in again.
    Plug(String),
    /// Swallows everything, and keeps its carrier.
    BlackHole(String),
    /// Swallows nothing any more.
    Clear(String),
    /// Has another rate: `slow = { cable = "lane1", rate = "10Mbit" }`.
    Slow(Slow),
    /// Has another delay: `delay = { cable = "lane1", time = "5ms" }`.
    Delay(NewDelay),
    /// Has another loss: `loss = { cable = "lane1", share = "1%" }`.
    Loss(NewLoss),
    /// Pulled and plugged in again and again: `flap = { cable = "lane1", period = "2s", count = 5 }`.
    Flap(Flap),
}

/// See [`Action::Slow`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Name of the cable.
    pub cable: String,
    /// Its rate from then on.
    pub rate: Rate,
}

/// See [`Action::Delay`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDelay {
    /// Name of the cable.
    pub cable: String,
    /// New delay of a frame.
    #[serde(deserialize_with = "duration")]
    pub time: Duration,
}

/// See [`Action::Loss`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewLoss {
    /// Name of the cable.
    pub cable: String,
    /// New share of frames that get lost.
    pub share: Loss,
}

/// See [`Action::Flap`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flap {
    /// Name of the cable.
    pub cable: String,
    /// From one pull to the next; the cable is out for half of it.
    #[serde(deserialize_with = "duration")]
    pub period: Duration,
    /// Number of pulls.
    pub count: u32,
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

impl Action {
    /// The cable that it happens to.
    pub fn cable(&self) -> &str {
        match self {
            Self::Pull(cable) | Self::Plug(cable) | Self::BlackHole(cable) | Self::Clear(cable) => cable,
            Self::Slow(slow) => &slow.cable,
            Self::Delay(delay) => &delay.cable,
            Self::Loss(loss) => &loss.cable,
            Self::Flap(flap) => &flap.cable,
        }
    }

    fn happen(&self, network: &Network) -> Result<(), LabError> {
        let cable = network.cable(self.cable())?;
        match self {
            Self::Pull(_) | Self::Flap(_) => cable.pull(),
            Self::Plug(_) => cable.plug(),
            Self::BlackHole(_) => cable.black_hole(),
            Self::Clear(_) => cable.clear(),
            Self::Slow(slow) => cable.set_rate(slow.rate),
            Self::Delay(delay) => cable.set_delay(delay.time),
            Self::Loss(loss) => cable.set_loss(loss.share),
        }
    }
}

impl fmt::Display for Action {
    /// As the mark of a chart says it: `lane1 pulled`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cable = self.cable();
        match self {
            Self::Pull(_) => write!(f, "{cable} pulled"),
            Self::Plug(_) => write!(f, "{cable} plugged in"),
            Self::BlackHole(_) => write!(f, "{cable} a black hole"),
            Self::Clear(_) => write!(f, "{cable} clear"),
            Self::Slow(slow) => write!(f, "{cable} at {}", slow.rate),
            Self::Delay(delay) => write!(f, "{cable} delayed by {}", ExactDuration(delay.time)),
            Self::Loss(loss) => write!(f, "{cable} loses {}", loss.share),
            Self::Flap(flap) => write!(f, "{cable} flaps {} times", flap.count),
        }
    }
}

/// Reason why a timeline cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimelineError {
    /// A cable that is not there.
    #[error("the event at {at} is about cable `{cable}`, which is not in the network")]
    NoSuchCable {
        /// Time of the event.
        at: String,
        /// Its name.
        cable: String,
    },
    /// A cable that was not built for it.
    #[error(
        "the event at {at} changes the {what} of cable `{cable}`, which has none: give it one, be it {none}"
    )]
    NotPossible {
        /// Time of the event.
        at: String,
        /// Its name.
        cable: String,
        /// Rate, delay or loss.
        what: &'static str,
        /// Notation for no delay or no loss.
        none: &'static str,
    },
    /// Too much.
    #[error("the timeline has more than {EVENTS_MAX} events, counting every pull of a flapping cable")]
    TooMany,
}

/// Events planned for a network in one run, in order.
///
/// [`start`](Self::start) carries it out on a thread; what really happened, and when, is known at
/// [`RunningTimeline::stop`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Sorted; no flapping.
    events: Vec<Event>,
}

/// Record of an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    /// Scheduled time, counted from the beginning of the run.
    pub asked: Duration,
    /// Time at which it began.
    pub began: Duration,
    /// Time at which it was complete: some milliseconds later.
    pub done: Duration,
    /// The action.
    pub action: Action,
    /// Reason why it did not happen.
    pub error: Option<String>,
}

impl Timeline {
    /// The events in order, flapping counted out, checked against the network that they are for.
    ///
    /// # Errors
    ///
    /// The first event that cannot happen.
    pub fn new(events: &[Event], topology: &Topology) -> Result<Self, TimelineError> {
        let mut all = Vec::new();
        for event in events {
            check(event, topology)?;
            match &event.action {
                Action::Flap(flap) => {
                    if flap.count as usize > EVENTS_MAX {
                        return Err(TimelineError::TooMany);
                    }
                    for round in 0..flap.count {
                        let at = event.at + flap.period * round;
                        all.push(Event { at, action: Action::Pull(flap.cable.clone()) });
                        all.push(Event {
                            at: at + flap.period / 2,
                            action: Action::Plug(flap.cable.clone()),
                        });
                    }
                }
                _ => all.push(event.clone()),
            }
            if all.len() > EVENTS_MAX {
                return Err(TimelineError::TooMany);
            }
        }
        // Stable: what is to happen at one moment happens as it was written.
        all.sort_by_key(|event| event.at);
        Ok(Self { events: all })
    }

    /// Returns the planned events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Carries it out, with times counted from `origin`. What lies before now happens at once.
    pub fn start(&self, network: &Network, origin: Instant) -> RunningTimeline {
        let (stop, stopped) = channel();
        let (timeline, network) = (self.clone(), network.clone());
        RunningTimeline { stop, thread: thread::spawn(move || timeline.run(&network, origin, &stopped)) }
    }

    fn run(self, network: &Network, origin: Instant, stopped: &Receiver<()>) -> Vec<Happened> {
        let mut happened = Vec::with_capacity(self.events.len());
        for Event { at, action } in self.events {
            let wait = (origin + at).saturating_duration_since(Instant::now());
            if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            let began = origin.elapsed();
            let error = action.happen(network).err().map(|error| error.to_string());
            happened.push(Happened { asked: at, began, done: origin.elapsed(), action, error });
        }
        happened
    }
}

/// A timeline that is being carried out.
#[derive(Debug)]
pub struct RunningTimeline {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Happened>>,
}

impl RunningTimeline {
    /// Ends it: nothing more happens. Cables stay as they are; [`LiveCable::mend`](crate::LiveCable::mend) makes them
    /// as new.
    pub fn stop(self) -> Vec<Happened> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn check(event: &Event, topology: &Topology) -> Result<(), TimelineError> {
    let at = ExactDuration(event.at).to_string();
    let name = event.action.cable();
    let Some(cable) = topology.cable(name) else {
        return Err(TimelineError::NoSuchCable { at, cable: name.to_owned() });
    };
    let impossible = |what, none| Err(TimelineError::NotPossible { at, cable: name.to_owned(), what, none });
    match event.action {
        Action::Slow(_) if cable.rate.is_none() => impossible("rate", "1Gbit"),
        Action::Delay(_) if !cable.is_line() => impossible("delay", "0s"),
        Action::Loss(_) if !cable.is_line() => impossible("loss", "0%"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, action: Action) -> Event {
        Event { at: Duration::from_secs(seconds), action }
    }

    fn timeline(events: &[Event]) -> Result<Timeline, TimelineError> {
        let network = "host = [{ name = 'a' }, { name = 'b' }]\ncable = [
            { name = 'lane1', ends = ['a.eth0', 'b.eth0'], rate = '1Gbit', delay = '0s' },
            { name = 'lane2', ends = ['a.eth1', 'b.eth1'] }]\n";
        Timeline::new(events, &toml::from_str(network).unwrap())
    }

    #[test]
    fn events_are_put_in_order_and_flapping_is_counted_out() {
        let lane1 = || "lane1".to_owned();
        let lane2 = || "lane2".to_owned();
        let timeline = timeline(&[
            at(3, Action::Slow(Slow { cable: lane1(), rate: "10Mbit".parse().unwrap() })),
            at(1, Action::BlackHole(lane2())),
            at(2, Action::Flap(Flap { cable: lane2(), period: Duration::from_secs(2), count: 2 })),
            at(9, Action::Clear(lane2())),
            at(8, Action::Delay(NewDelay { cable: lane1(), time: Duration::from_millis(5) })),
            at(8, Action::Loss(NewLoss { cable: lane1(), share: "1%".parse().unwrap() })),
        ]);
        let said: Vec<String> = timeline
            .unwrap()
            .events()
            .iter()
            .map(|event| format!("{} {}", ExactDuration(event.at), event.action))
            .collect();
        assert_eq!(
            said,
            [
                "1s lane2 a black hole",
                "2s lane2 pulled",
                "3s lane1 at 10Mbit",
                "3s lane2 plugged in",
                "4s lane2 pulled",
                "5s lane2 plugged in",
                "8s lane1 delayed by 5ms",
                "8s lane1 loses 1%",
                "9s lane2 clear"
            ]
        );
    }

    #[test]
    fn what_cannot_happen_is_named() {
        let wrong = |action| timeline(&[at(1, action)]).unwrap_err();
        let lane2 = || "lane2".to_owned();
        let pull = Action::Pull("lane3".to_owned());
        assert!(matches!(wrong(pull), TimelineError::NoSuchCable { .. }));
        let slow = Action::Slow(Slow { cable: lane2(), rate: "1Gbit".parse().unwrap() });
        assert!(matches!(wrong(slow), TimelineError::NotPossible { what: "rate", .. }));
        let delay = Action::Delay(NewDelay { cable: lane2(), time: Duration::from_secs(1) });
        assert!(matches!(wrong(delay), TimelineError::NotPossible { what: "delay", .. }));
        let flap = Flap { cable: lane2(), period: Duration::from_secs(1), count: 4_000_000_000 };
        assert_eq!(wrong(Action::Flap(flap)), TimelineError::TooMany);
    }
}

//! Observers of a running measurement: a bar, a screen, lines, a stream.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use lunway_bench::profile::Step;
use lunway_bench::stream::{Second, Stream};
use lunway_bench::{Cancel, Outcome, Tick};
use lunway_block::{BlockDevice, PathSample};

use super::live::{self, Live};
use crate::progress;
use crate::screen::Screen;

/// Shortest time between two drawings.
const REDRAW: Duration = Duration::from_millis(200);

/// Label of the search that comes before a device is written.
pub(super) const LOOKING: &str = "looking for data";

/// Hands what a run tells to the observer.
///
/// [`tick`](Self::tick) and [`done`](Self::done) while it runs, [`finish`](Self::finish) when it has ended, however it
/// ended. A stream that cannot be written asks the run to end: what it is for has failed.
pub(super) struct Watch {
    device: Arc<dyn BlockDevice>,
    cancel: Cancel,
    view: View,
    stream: Option<Stream<Box<dyn Write>>>,
    failure: Option<io::Error>,
    /// Steps under way, with what they do now.
    now: BTreeMap<usize, Now>,
}

enum View {
    Bar(ProgressBar),
    Screen { screen: Screen, live: Box<Live>, drawn: Instant },
    Lines(BTreeMap<usize, Second>),
}

/// Current state of a step.
struct Now {
    name: String,
    iops: f64,
    bytes_per_second: f64,
    fraction: f64,
    left: Option<Duration>,
    reading_back: bool,
}

impl Watch {
    /// With a bar where somebody watches.
    pub(super) fn bar(device: Arc<dyn BlockDevice>, cancel: Cancel) -> Self {
        let view = View::Bar(progress::fraction());
        Self { device, cancel, view, stream: None, failure: None, now: BTreeMap::new() }
    }

    /// With a screen that is drawn again and again, or lines where that is not possible.
    pub(super) fn live(mut self, title: String) -> Self {
        let now = Instant::now();
        self.view = match Screen::enter() {
            Some(screen) => {
                let live = Box::new(Live::new(title, self.device.paths(), now));
                View::Screen { screen, live, drawn: now }
            }
            None => {
                eprintln!("lunway: standard error is not a terminal: printing one line per second");
                View::Lines(BTreeMap::new())
            }
        };
        self
    }

    /// Writes everything to a stream too.
    pub(super) fn streaming(mut self, out: Box<dyn Write>, device: &str, about: &str) -> io::Result<Self> {
        self.stream = Some(Stream::start(out, device, about, self.device.paths())?);
        Ok(self)
    }

    /// Before the first step: what is to be written is looked at.
    pub(super) fn looking(&mut self, fraction: f64) {
        if let View::Bar(bar) = &self.view {
            progress::set_fraction(bar, fraction);
            bar.set_prefix(LOOKING);
        }
    }

    /// A step goes on.
    pub(super) fn tick(&mut self, step: Step<'_>, tick: &Tick) {
        let now = Now {
            name: step.name.to_owned(),
            iops: tick.iops(),
            bytes_per_second: tick.bytes_per_second(),
            fraction: tick.fraction,
            left: tick.total.map(|total| total.saturating_sub(tick.elapsed) + step.then),
            reading_back: tick.reading_back,
        };
        self.now.insert(step.index, now);
        let device = self.device.clone();
        let paths = || -> Vec<PathSample> { device.paths() };
        self.streamed(|stream| stream.tick(step, tick, &paths));
        match &mut self.view {
            View::Bar(bar) => show(bar, &self.now, step.count),
            View::Screen { screen, live, drawn } => {
                let now = Instant::now();
                live.tick(step, tick, &paths, now);
                if now.saturating_duration_since(*drawn) >= REDRAW {
                    screen.draw(&live.text());
                    *drawn = now;
                }
            }
            View::Lines(seconds) => {
                let print = &mut |second: &Second| eprintln!("{}", live::line(step.name, second));
                seconds.entry(step.index).or_default().add(tick, print);
            }
        }
    }

    /// [`tick`](Self::tick) where one step runs after the other: a new one means that those before have ended.
    pub(super) fn tick_in_turn(&mut self, step: Step<'_>, tick: &Tick) {
        let ended: Vec<usize> = self.now.range(..step.index).map(|(&index, _)| index).collect();
        for index in ended {
            let name = self.now.get(&index).map(|now| now.name.clone()).unwrap_or_default();
            self.ended(Step { name: &name, index, ..step });
        }
        self.tick(step, tick);
    }

    /// A job has come to its end.
    pub(super) fn done(&mut self, step: Step<'_>, outcome: &Outcome) {
        self.ended(step);
        self.outcome(outcome);
    }

    /// Passes on the result of a job.
    pub(super) fn outcome(&mut self, outcome: &Outcome) {
        self.streamed(|stream| stream.job(outcome));
    }

    fn ended(&mut self, step: Step<'_>) {
        self.now.remove(&step.index);
        let device = self.device.clone();
        self.streamed(|stream| stream.ended(step, &|| device.paths()));
        match &mut self.view {
            View::Bar(_) => {}
            View::Screen { live, .. } => live.ended(step.index),
            View::Lines(seconds) => {
                if let Some(mut second) = seconds.remove(&step.index) {
                    second.flush(&mut |second| eprintln!("{}", live::line(step.name, second)));
                }
            }
        }
    }

    fn streamed(&mut self, write: impl FnOnce(&mut Stream<Box<dyn Write>>) -> io::Result<()>) {
        if let Some(stream) = &mut self.stream
            && let Err(error) = write(stream)
        {
            self.stream = None;
            self.failure = Some(error);
            self.cancel.cancel();
        }
    }

    /// Gives the terminal back and ends the stream. `complete`: nothing was cut short.
    pub(super) fn finish(mut self, complete: bool) -> io::Result<()> {
        for (index, now) in std::mem::take(&mut self.now) {
            self.ended(Step { name: &now.name, index, count: 0, then: Duration::ZERO });
        }
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
        let ended = self.stream.take().map_or(Ok(()), |stream| stream.end(complete));
        self.failure.map_or(ended, Err)
    }
}

/// Everything that runs on one bar.
fn show(bar: &ProgressBar, now: &BTreeMap<usize, Now>, count: usize) {
    let sum = |of: fn(&Now) -> f64| now.values().map(of).sum::<f64>();
    let slowest = now.values().map(|now| now.fraction).fold(1.0, f64::min);
    let left = now.values().map(|now| now.left).max().flatten();
    let prefix = match (now.len(), now.first_key_value()) {
        (1, Some((_, now))) if count == 1 => now.name.clone(),
        (1, Some((index, now))) => format!("{} ({}/{count})", now.name, index + 1),
        (several, _) => format!("{several} jobs"),
    };
    let doing = if now.values().any(|now| now.reading_back) { ", reading back" } else { "" };
    let left = left.map_or(String::new(), progress::left);
    progress::set_fraction(bar, slowest);
    bar.set_prefix(prefix);
    let (iops, mb_s) = (sum(|now| now.iops), sum(|now| now.bytes_per_second) / 1e6);
    bar.set_message(format!("{iops:.0} IOPS  {mb_s:.1} MB/s{doing}  {left}"));
}

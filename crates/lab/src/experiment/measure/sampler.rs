//! Sampler of the throughput and the losses of paths during a measurement.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, PathSample, PathState};

use crate::experiment::result::results::Happened;

/// Spacing of the values of a chart. Longer than a large request takes on a cable of 250 Mbit, or the chart would show
/// requests, not throughput.
pub const SAMPLING: Duration = Duration::from_millis(200);
/// Polling interval of path states: the resolution of the chart's marks.
const LOOKING: Duration = Duration::from_millis(20);
/// [`LOOKING`] in a [`SAMPLING`].
const LOOKS: u32 = 10;
/// More marks than these would hide the chart.
const MARKS_MAX: usize = 60;
/// Settling time after the last event, before throughput after it is counted.
const SETTLING: Duration = Duration::from_secs(1);

/// Name of a path in the charts of a run.
#[derive(Clone, Debug)]
pub struct Label {
    /// From where to where.
    pub ends: (IpAddr, SocketAddr),
    /// Its name in the file.
    pub name: String,
}

/// Looks at a device's paths again and again.
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Looked>,
    labels: Vec<Label>,
}

#[derive(Default)]
struct Looked {
    /// Every [`SAMPLING`].
    samples: Vec<Vec<PathSample>>,
    /// State changes of paths: time, path, new state.
    changes: Vec<(Duration, usize, PathState)>,
}

/// Results of the sampling.
#[derive(Debug, Default)]
pub struct Seen {
    /// For each path and direction its name, and MB/s.
    pub lines: Vec<(String, Vec<f64>)>,
    /// Paths that were lost, and came back.
    pub marks: Vec<Happened>,
    /// Number of path losses.
    pub lost: u64,
    /// MB/s read and written after the last of what happened.
    pub after: Option<(f64, f64)>,
}

impl Sampler {
    /// From `origin` on.
    pub fn start(device: Arc<dyn BlockDevice>, origin: Instant, labels: Vec<Label>) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let mut looked = Looked::default();
            let mut states: Vec<PathState> = Vec::new();
            let mut at = origin;
            let due = |at: Instant| at.saturating_duration_since(Instant::now());
            for look in 0_u32.. {
                if stopped.recv_timeout(due(at)) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let paths = device.paths();
                for (index, path) in paths.iter().enumerate() {
                    match states.get_mut(index) {
                        None => states.push(path.state),
                        Some(state) if *state != path.state => {
                            looked.changes.push((origin.elapsed(), index, path.state));
                            *state = path.state;
                        }
                        Some(_) => {}
                    }
                }
                if look % LOOKS == 0 {
                    looked.samples.push(paths);
                }
                at += LOOKING;
            }
            looked
        });
        Self { stop, thread, labels }
    }

    /// Ends the sampling and returns its results over `time`. Anything after that time, such as reading back for
    /// verification, is left out. `last` is the time of the last event.
    pub fn end(self, time: Duration, last: Option<Duration>) -> Seen {
        drop(self.stop);
        let mut looked = self.thread.join().unwrap_or_default();
        looked.samples.truncate(time.div_duration_f64(SAMPLING) as usize + 1);
        looked.changes.retain(|(at, ..)| *at <= time);
        let name = |index: usize| {
            let sample = looked.samples.iter().find_map(|sample| sample.get(index));
            name(&self.labels, index, sample)
        };
        let lost = looked.changes.iter().filter(|(.., state)| *state != PathState::Up).count();
        let marks = looked.changes.iter().take(MARKS_MAX).map(|&(at, path, state)| Happened {
            asked: at,
            at,
            what: format!("{} {state}", name(path)),
        });
        Seen {
            lines: looked.lines(&name),
            marks: marks.collect(),
            lost: lost as u64,
            after: last.and_then(|last| looked.after(last, time)),
        }
    }
}

impl Looked {
    /// MB/s of each path, reads and writes apart where there are both.
    fn lines(&self, name: &dyn Fn(usize) -> String) -> Vec<(String, Vec<f64>)> {
        let paths = self.samples.iter().map(Vec::len).max().unwrap_or(0);
        let mut lines = Vec::new();
        for path in 0..paths {
            let rates = |bytes: fn(&PathSample) -> u64| -> Vec<f64> {
                let total = |sample: &[PathSample]| sample.get(path).map_or(0, bytes);
                let steps =
                    self.samples.windows(2).map(|pair| total(&pair[1]).saturating_sub(total(&pair[0])));
                steps.map(|bytes| bytes as f64 / 1e6 / SAMPLING.as_secs_f64()).collect()
            };
            let directions =
                [("reads", rates(|path| path.read_bytes)), ("writes", rates(|path| path.write_bytes))];
            let moved: Vec<_> = directions
                .into_iter()
                .filter(|(_, line)| line.iter().any(|rate| *rate > 0.0))
                .map(|(direction, line)| (format!("{} {direction}", name(path)), line))
                .collect();
            // One that carries nothing is in the chart too: that it does not is news.
            match moved.is_empty() {
                true => lines.push((name(path), rates(|_| 0))),
                false => lines.extend(moved),
            }
        }
        lines
    }

    /// MB/s of all paths from a while after `last` on.
    fn after(&self, last: Duration, time: Duration) -> Option<(f64, f64)> {
        let left = time.checked_sub(last)?;
        let settled = last + SETTLING.min(left / 2);
        let first = settled.div_duration_f64(SAMPLING).ceil() as usize;
        let (from, to) = (self.samples.get(first)?, self.samples.last()?);
        let steps = self.samples.len() - 1 - first;
        if steps == 0 {
            return None;
        }
        let total =
            |sample: &[PathSample], bytes: fn(&PathSample) -> u64| -> u64 { sample.iter().map(bytes).sum() };
        let rate = |bytes: fn(&PathSample) -> u64| {
            let moved = total(to, bytes).saturating_sub(total(from, bytes));
            moved as f64 / 1e6 / (SAMPLING.as_secs_f64() * steps as f64)
        };
        Some((rate(|path| path.read_bytes), rate(|path| path.write_bytes)))
    }
}

/// Returns the name of a path: by its ends if the sample gives them, as `FROM > PORTAL`; otherwise by its place.
fn name(labels: &[Label], index: usize, sample: Option<&PathSample>) -> String {
    let said = sample.and_then(|sample| {
        let (from, to) = sample.name.split_once('>')?;
        Some((from.trim().parse::<IpAddr>().ok()?, to.trim().parse::<SocketAddr>().ok()?))
    });
    let by_ends = said.and_then(|said| labels.iter().find(|label| label.ends == said));
    match (by_ends, labels.get(index), sample) {
        (Some(label), ..) => label.name.clone(),
        (None, Some(label), _) if said.is_none() => label.name.clone(),
        (.., Some(sample)) => sample.name.clone(),
        _ => format!("path {}", index + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, read_bytes: u64) -> PathSample {
        PathSample { read_bytes, ..PathSample::unused(name, PathState::Up) }
    }

    #[test]
    fn a_path_is_known_by_its_ends_wherever_it_stands() {
        let label = |from: &str, to: &str, name: &str| Label {
            ends: (from.parse().unwrap(), to.parse().unwrap()),
            name: name.to_owned(),
        };
        let labels = [
            label("10.77.1.1", "10.77.1.2:3260", "lane1"),
            label("10.77.1.11", "10.77.1.2:3260", "lane2 > port1"),
        ];
        let called = |name_of: &str, index| name(&labels, index, Some(&sample(name_of, 0)));
        assert_eq!(called("10.77.1.11 > 10.77.1.2:3260", 0), "lane2 > port1");
        assert_eq!(called("10.77.1.1 > 10.77.1.2:3260", 1), "lane1");
        // Only a portal, as of a single session: its place tells.
        assert_eq!(called("10.77.1.2:3260", 0), "lane1");
        assert_eq!(called("10.99.1.1 > 10.77.1.2:3260", 0), "10.99.1.1 > 10.77.1.2:3260");
    }

    #[test]
    fn throughput_after_is_counted_once_things_have_settled() {
        // 1 MB in each 200 ms, and twice that from 2 s on.
        let bytes = |step: u64| (step + step.saturating_sub(10)) * 1_000_000;
        let samples = (0..=20).map(|step| vec![sample("a", bytes(step))]).collect();
        let looked = Looked { samples, changes: Vec::new() };
        let after = |last| looked.after(Duration::from_secs(last), Duration::from_secs(4));
        for (last, rate) in [(1, 10.0), (3, 10.0), (0, (5.0 * 5.0 + 10.0 * 10.0) / 15.0)] {
            assert!((after(last).unwrap().0 - rate).abs() < 1e-9, "{last}");
        }
        assert_eq!(after(4), None);
    }
}

//! Results while they come: one JSON object a line.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use lunway_block::PathSample;
use serde_json::{Value, json};

use crate::fio;
use crate::measure::interval::Interval;
use crate::measure::outcome::Outcome;
use crate::run::progress::{Step, Tick};

/// Tolerance by which ticks may fall short of a second because of the scheduler.
const SLACK: Duration = Duration::from_millis(60);

/// Ticks joined to seconds.
///
/// A second's figures are its own, not running totals, and its percentiles are of all its I/Os. What is left when a job
/// ends is a shorter interval: [`flush`](Self::flush).
#[derive(Debug, Default)]
pub struct Second {
    /// Length so far.
    pub interval: Duration,
    /// Reads in it.
    pub read: Interval,
    /// Writes in it.
    pub write: Interval,
    phase: Phase,
}

/// Asked for the paths of what is measured, as they are now.
pub type Paths<'a> = &'a dyn Fn() -> Vec<PathSample>;

/// Purpose of the I/Os of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Before measuring.
    #[default]
    Ramp,
    /// They are the result.
    Measure,
    /// Reading back what was written.
    ReadBack,
}

impl Phase {
    /// Of a tick.
    pub fn of(tick: &Tick) -> Self {
        match tick {
            Tick { reading_back: true, .. } => Self::ReadBack,
            Tick { ramping: true, .. } => Self::Ramp,
            _ => Self::Measure,
        }
    }

    /// As a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ramp => "ramp",
            Self::Measure => "measure",
            Self::ReadBack => "read back",
        }
    }
}

impl Second {
    /// Takes a tick in; calls `full` with each interval that it completes. An interval never has two phases.
    pub fn add(&mut self, tick: &Tick, full: &mut dyn FnMut(&Self)) {
        let phase = Phase::of(tick);
        if phase != self.phase {
            self.flush(full);
            self.phase = phase;
        }
        self.interval += tick.interval;
        self.read.merge(&tick.read);
        self.write.merge(&tick.write);
        if self.interval + SLACK >= Duration::from_secs(1) {
            self.flush(full);
        }
    }

    /// Hands out what there is, if there is anything.
    pub fn flush(&mut self, full: &mut dyn FnMut(&Self)) {
        if !self.interval.is_zero() {
            full(self);
        }
        self.interval = Duration::ZERO;
        self.read.clear();
        self.write.clear();
    }
}

/// Results while they come, as newline-delimited JSON: each line is a whole object, whatever ends the run.
///
/// `start`, then an `interval` for each second of each job and a `job` with fio's object for each job that has ended,
/// at last `end`. [`end`](Self::end) is also for runs that were interrupted or failed.
#[derive(Debug)]
pub struct Stream<W> {
    out: W,
    started: Instant,
    jobs: HashMap<usize, Second>,
    paths: Vec<PathSample>,
    paths_at: Instant,
}

impl<W: Write> Stream<W> {
    /// Writes the first line. `about` is what is measured, and how.
    pub fn start(out: W, device: &str, about: &str, paths: Vec<PathSample>) -> io::Result<Self> {
        let now = Instant::now();
        let mut stream = Self { out, started: now, jobs: HashMap::new(), paths, paths_at: now };
        let version = env!("CARGO_PKG_VERSION");
        let unix_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        stream.line(&json!({
            "event": "start",
            "lunway": { "version": version, "schema": 1, "kind": "bench" },
            "device": device,
            "about": about,
            "unix_ms": unix_ms.as_millis() as u64,
        }))?;
        Ok(stream)
    }

    /// A job goes on. `paths` is asked only when an interval is full.
    pub fn tick(&mut self, step: Step<'_>, tick: &Tick, paths: Paths<'_>) -> io::Result<()> {
        let mut second = self.jobs.remove(&step.index).unwrap_or_default();
        let mut lines = Vec::new();
        second.add(tick, &mut |second| lines.push(self.interval(step.name, second, paths())));
        self.jobs.insert(step.index, second);
        lines.iter().try_for_each(|line| self.line(line))
    }

    /// A job has ended: what is left of its last second.
    pub fn ended(&mut self, step: Step<'_>, paths: Paths<'_>) -> io::Result<()> {
        let Some(mut second) = self.jobs.remove(&step.index) else { return Ok(()) };
        let mut line = None;
        second.flush(&mut |second| line = Some(self.interval(step.name, second, paths())));
        line.map_or(Ok(()), |line| self.line(&line))
    }

    /// Writes the result of a job.
    pub fn job(&mut self, outcome: &Outcome) -> io::Result<()> {
        self.line(&json!({ "event": "job", "job": outcome.job.name, "result": fio::job(outcome) }))
    }

    /// Writes the last line. `complete`: nothing was cut short.
    pub fn end(mut self, complete: bool) -> io::Result<()> {
        let at_ms = millis(self.started.elapsed());
        self.line(&json!({ "event": "end", "at_ms": at_ms, "complete": complete }))
    }

    fn interval(&mut self, job: &str, second: &Second, paths: Vec<PathSample>) -> Value {
        let now = Instant::now();
        let since = now - self.paths_at;
        let rates: Vec<_> =
            paths.iter().map(|path| PathRates::of(path, &self.paths, since).to_json()).collect();
        // With several jobs at once each has its own line a second; the paths' counters are one set for all of them.
        if since + SLACK >= Duration::from_secs(1) {
            (self.paths, self.paths_at) = (paths, now);
        }
        json!({
            "event": "interval",
            "job": job,
            "at_ms": millis(self.started.elapsed()),
            "interval_ms": millis(second.interval),
            "phase": second.phase.name(),
            "read": direction(&second.read, second.interval),
            "write": direction(&second.write, second.interval),
            "paths": rates,
        })
    }

    fn line(&mut self, line: &Value) -> io::Result<()> {
        // One write: a reader never sees half a line.
        self.out.write_all(format!("{line}\n").as_bytes())?;
        self.out.flush()
    }
}

/// Traffic on a path over an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct PathRates {
    /// The path as it is now.
    pub now: PathSample,
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second.
    pub write_bytes_per_s: f64,
    /// Reads and writes per second.
    pub ios_per_s: f64,
    /// Failures meanwhile.
    pub errors: u64,
}

impl PathRates {
    /// The difference to the sample of the same name in `before`, which was taken `since` ago. A path that was not
    /// there began with nothing.
    pub fn of(now: &PathSample, before: &[PathSample], since: Duration) -> Self {
        let before = before.iter().find(|before| before.name == now.name);
        let more = |count: fn(&PathSample) -> u64| count(now).saturating_sub(before.map_or(0, count));
        let seconds = since.as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Self {
            now: now.clone(),
            read_bytes_per_s: per_second(more(|path| path.read_bytes)),
            write_bytes_per_s: per_second(more(|path| path.write_bytes)),
            ios_per_s: per_second(more(|path| path.read_ios + path.write_ios)),
            errors: more(|path| path.errors),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.now.name,
            "state": self.now.state.to_string(),
            "read_bytes_per_s": self.read_bytes_per_s,
            "write_bytes_per_s": self.write_bytes_per_s,
            "ios_per_s": self.ios_per_s,
            "rtt_us": self.now.round_trip.map(|time| time.as_nanos() as f64 / 1000.0),
            "errors": self.errors,
        })
    }
}

fn direction(interval: &Interval, time: Duration) -> Value {
    let seconds = time.as_secs_f64();
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let response = &interval.response;
    json!({
        "ios": interval.ios,
        "bytes": interval.bytes,
        "iops": per_second(interval.ios),
        "bytes_per_s": per_second(interval.bytes),
        "response_ns": {
            "mean": response.mean(),
            "p50": response.percentile(50.0),
            "p99": response.percentile(99.0),
            "max": response.max(),
        },
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use lunway_block::PathState;

    use super::*;

    fn tick(millis: u64, reads: u64, ns: u64) -> Tick {
        let mut tick = Tick { interval: Duration::from_millis(millis), ..Tick::default() };
        for _ in 0..reads {
            tick.read.ios += 1;
            tick.read.bytes += 4096;
            tick.read.response.record(ns);
        }
        tick
    }

    fn step() -> Step<'static> {
        Step { name: "a", index: 0, count: 1, then: Duration::ZERO }
    }

    fn path(read_ios: u64, errors: u64) -> PathSample {
        PathSample {
            read_ios,
            read_bytes: read_ios * 4096,
            errors,
            round_trip: Some(Duration::from_micros(120)),
            ..PathSample::unused("192.0.2.1:3260", PathState::Up)
        }
    }

    fn lines(out: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(out).unwrap();
        assert!(text.ends_with('\n'));
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    #[test]
    fn each_second_has_its_own_figures() {
        let mut out = Vec::new();
        let mut stream = Stream::start(&mut out, "ram:1G", "one job", Vec::new()).unwrap();
        for ns in [1000, 2000] {
            for _ in 0..4 {
                stream.tick(step(), &tick(250, 5, ns), &Vec::new).unwrap();
            }
        }
        stream.tick(step(), &tick(250, 1, 9), &Vec::new).unwrap();
        stream.ended(step(), &Vec::new).unwrap();
        stream.end(false).unwrap();
        let lines = lines(&out);
        let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        assert_eq!(events, ["start", "interval", "interval", "interval", "end"]);
        assert_eq!(lines[3]["interval_ms"], 250, "what was left");
        for (line, ns) in lines[1..3].iter().zip([1000, 2000]) {
            assert_eq!((&line["job"], &line["interval_ms"]), (&json!("a"), &json!(1000)));
            let read = &line["read"];
            assert_eq!((&read["ios"], &read["iops"]), (&json!(20), &json!(20.0)), "not a running total");
            assert_eq!((&read["bytes"], &read["bytes_per_s"]), (&json!(81920), &json!(81920.0)));
            assert_eq!(read["response_ns"]["max"], ns);
            assert_eq!(line["write"]["ios"], 0);
        }
        assert_eq!(lines[4]["complete"], false);
    }

    #[test]
    fn an_interval_is_ramp_or_measurement_and_never_both() {
        let mut phases = Vec::new();
        let mut second = Second::default();
        for ramping in [true, true, false, false, false, false] {
            let tick = Tick { ramping, ..tick(250, 1, 1) };
            second
                .add(&tick, &mut |full| phases.push((full.phase, full.interval.as_millis(), full.read.ios)));
        }
        assert_eq!(phases, [(Phase::Ramp, 500, 2), (Phase::Measure, 1000, 4)]);
    }

    #[test]
    fn paths_show_what_went_over_them_meanwhile() {
        let rates = PathRates::of(&path(300, 1), &[path(100, 1)], Duration::from_secs(2));
        assert_eq!((rates.ios_per_s, rates.read_bytes_per_s, rates.errors), (100.0, 409_600.0, 0));
        assert_eq!(rates.to_json()["rtt_us"], 120.0);
        let fresh = PathRates::of(&path(10, 2), &[], Duration::from_secs(1));
        assert_eq!((fresh.ios_per_s, fresh.errors), (10.0, 2));
    }
}

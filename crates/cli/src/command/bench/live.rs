//! `lunway bench --live`: what happens now, drawn again and again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lunway_bench::profile::Step;
use lunway_bench::stream::{PathRates, Phase};
use lunway_bench::{Interval, Tick};
use lunway_block::PathSample;

use crate::{progress, terminal};

/// Ticks that make the last second.
const RECENT: usize = 4;
/// Seconds of the history, and its columns.
const HISTORY: usize = 60;
/// Seconds of a path's history, and its columns.
const PATH_HISTORY: usize = 20;
/// Rows that have been measured are listed from the last one back, as far as this.
const DONE_MAX: usize = 12;
/// Columns of the bar.
const BAR: usize = 40;
/// Eighths of a column.
const SPARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Live display of `--live`: overall progress, throughput and response times of the last second for each direction, the
/// last minute as a sparkline, the traffic over each path, and the results so far.
///
/// Fed with ticks, it [draws](Self::text) itself as text at any time; where the text goes is another's affair.
pub(super) struct Live {
    title: String,
    colour: bool,
    jobs: Vec<Running>,
    history: VecDeque<[f64; 2]>,
    history_at: Instant,
    /// Bytes of each direction since `history_at`.
    bytes: [u64; 2],
    paths: Vec<PathSample>,
    paths_at: Instant,
    rates: Vec<PathRates>,
    /// Traffic over each path in the last seconds, bytes per second.
    path_history: Vec<VecDeque<f64>>,
    done: Vec<String>,
    left: Option<Duration>,
    count: usize,
}

/// A job under way.
struct Running {
    name: String,
    index: usize,
    fraction: f64,
    phase: Phase,
    left: Option<Duration>,
    recent: VecDeque<[Interval; 2]>,
    times: VecDeque<Duration>,
    /// All that was measured.
    sums: [Interval; 2],
    measured: Duration,
}

impl Running {
    fn measure(&mut self, tick: &Tick) {
        if self.phase == Phase::Measure {
            self.sums[0].merge(&tick.read);
            self.sums[1].merge(&tick.write);
            self.measured += tick.interval;
        }
    }

    /// Results so far, on a line; `None` before there are any.
    fn result(&self) -> Option<String> {
        let seconds = self.measured.as_secs_f64();
        let mut line = format!("  {:24}", terminal::clean(&self.name));
        let used = ["read", "write"].into_iter().zip(&self.sums).filter(|(_, sum)| sum.ios > 0);
        for (direction, sum) in used.clone() {
            let (iops, mb_s) = (sum.ios as f64 / seconds, sum.bytes as f64 / seconds / 1e6);
            let mean = response_text(sum.response.mean());
            line += &format!("  {direction} {iops:.0} IOPS, {mb_s:.1} MB/s, {mean}");
        }
        used.clone().next().map(|_| line)
    }

    /// Sum of the last second, and its length.
    fn last_second(&self) -> ([Interval; 2], Duration) {
        let mut sum = [Interval::default(), Interval::default()];
        for recent in &self.recent {
            sum.iter_mut().zip(recent).for_each(|(sum, recent)| sum.merge(recent));
        }
        (sum, self.times.iter().sum())
    }
}

impl Live {
    pub(super) fn new(title: String, paths: Vec<PathSample>, now: Instant) -> Self {
        Self {
            title,
            colour: terminal::colour_wanted(),
            jobs: Vec::new(),
            history: VecDeque::new(),
            history_at: now,
            bytes: [0; 2],
            paths,
            paths_at: now,
            rates: Vec::new(),
            path_history: Vec::new(),
            done: Vec::new(),
            left: None,
            count: 0,
        }
    }

    /// A job goes on.
    pub(super) fn tick(
        &mut self,
        step: Step<'_>,
        tick: &Tick,
        paths: &dyn Fn() -> Vec<PathSample>,
        now: Instant,
    ) {
        self.count = step.count;
        // Where jobs run one after the other, a new one means that the one before has ended.
        let at = match self.jobs.iter().position(|job| job.index == step.index) {
            Some(at) => at,
            None => {
                self.jobs.push(Running {
                    name: step.name.to_owned(),
                    index: step.index,
                    fraction: 0.0,
                    phase: Phase::Ramp,
                    left: None,
                    recent: VecDeque::new(),
                    times: VecDeque::new(),
                    sums: [Interval::default(), Interval::default()],
                    measured: Duration::ZERO,
                });
                self.jobs.len() - 1
            }
        };
        let job = &mut self.jobs[at];
        job.fraction = tick.fraction;
        job.phase = Phase::of(tick);
        job.measure(tick);
        job.left = tick.total.map(|total| total.saturating_sub(tick.elapsed));
        if job.recent.len() == RECENT {
            job.recent.pop_front();
            job.times.pop_front();
        }
        job.recent.push_back([tick.read.clone(), tick.write.clone()]);
        job.times.push_back(tick.interval);
        self.bytes[0] += tick.read.bytes;
        self.bytes[1] += tick.write.bytes;
        self.left = self.jobs.iter().map(|job| job.left).max().flatten().map(|left| left + step.then);
        self.remember(paths, now);
    }

    fn remember(&mut self, paths: &dyn Fn() -> Vec<PathSample>, now: Instant) {
        let since = now.saturating_duration_since(self.history_at);
        if since < Duration::from_millis(950) {
            return;
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(self.bytes.map(|bytes| bytes as f64 / since.as_secs_f64()));
        (self.bytes, self.history_at) = ([0; 2], now);
        let samples = paths();
        let since = now.saturating_duration_since(self.paths_at);
        self.rates = samples.iter().map(|path| PathRates::of(path, &self.paths, since)).collect();
        (self.paths, self.paths_at) = (samples, now);
        self.path_history.resize_with(self.rates.len(), VecDeque::new);
        for (history, path) in self.path_history.iter_mut().zip(&self.rates) {
            if history.len() == PATH_HISTORY {
                history.pop_front();
            }
            history.push_back(bytes_per_second(path));
        }
    }

    /// The step `index` has ended.
    pub(super) fn ended(&mut self, index: usize) {
        let (ended, jobs): (Vec<_>, Vec<_>) = self.jobs.drain(..).partition(|job| job.index == index);
        self.jobs = jobs;
        self.done.extend(ended.iter().filter_map(Running::result));
    }

    /// The whole screen.
    pub(super) fn text(&self) -> String {
        let mut lines = vec![self.bold(&terminal::clean(&self.title)), String::new()];
        for job in &self.jobs {
            self.job(job, &mut lines);
        }
        lines.extend(self.sparks());
        if !self.rates.is_empty() {
            lines.extend([String::new(), self.paths()]);
        }
        if !self.done.is_empty() {
            lines.extend([String::new(), self.bold("Measured")]);
            lines.extend(self.done[self.done.len().saturating_sub(DONE_MAX)..].iter().cloned());
        }
        lines.extend([String::new(), "Ctrl-C ends the run and keeps its results.".to_owned()]);
        lines.join("\n")
    }

    fn job(&self, job: &Running, lines: &mut Vec<String>) {
        let filled = ((job.fraction.clamp(0.0, 1.0) * BAR as f64) as usize).min(BAR);
        let bar = format!("{}{}", "#".repeat(filled), "-".repeat(BAR - filled));
        let left = self.left.map_or(String::new(), |left| format!("  {}", progress::left(left)));
        let (index, count) = (job.index + 1, self.count);
        let name = terminal::clean(&job.name);
        lines.push(format!("{} ({index} of {count}), {}", self.bold(&name), phase(job.phase)));
        lines.push(format!("[{bar}] {:3.0} %{left}", job.fraction * 100.0));
        lines.push(String::new());
        let (sums, time) = job.last_second();
        let mut rows = Vec::new();
        for (name, sum) in ["read", "write"].into_iter().zip(&sums) {
            let seconds = time.as_secs_f64();
            if sum.ios == 0 || seconds <= 0.0 {
                continue;
            }
            let response = &sum.response;
            rows.push([
                name.to_owned(),
                format!("{:9.0}", sum.ios as f64 / seconds),
                format!("{:9.1}", sum.bytes as f64 / seconds / 1e6),
                format!("{:>10}", response_text(response.mean())),
                format!("{:>10}", response_text(response.percentile(50.0) as f64)),
                format!("{:>10}", response_text(response.percentile(99.0) as f64)),
                format!("{:>10}", response_text(response.max() as f64)),
            ]);
        }
        let headings =
            ["Now", "     IOPS", "     MB/s", "      mean", "       p50", "       p99", "       max"];
        lines.push(terminal::plain_table(headings, &rows, "nothing completes"));
        lines.push(String::new());
    }

    /// A line for each direction that did something in the last minute.
    fn sparks(&self) -> Vec<String> {
        let line = |(direction, name): (usize, &str)| {
            let values: Vec<f64> = self.history.iter().map(|both| both[direction]).collect();
            let most = values.iter().copied().fold(0.0, f64::max);
            (most > 0.0).then(|| {
                let sparks: String = values.iter().map(|value| spark(value / most)).collect();
                format!("{name:5}  {sparks:HISTORY$}  up to {:.1} MB/s", most / 1e6)
            })
        };
        [(0, "read"), (1, "write")].into_iter().filter_map(line).collect()
    }

    /// A line for each path. Several are measured by the fullest second of any, so that they can be compared.
    fn paths(&self) -> String {
        let all: f64 = self.rates.iter().map(bytes_per_second).sum();
        let most = self.path_history.iter().flatten().copied().fold(0.0, f64::max);
        let rows: Vec<_> = self
            .rates
            .iter()
            .zip(&self.path_history)
            .map(|(path, history)| {
                let share = if all > 0.0 { bytes_per_second(path) / all * 100.0 } else { 0.0 };
                let sparks: String =
                    history.iter().map(|value| spark(if most > 0.0 { value / most } else { 0.0 })).collect();
                let trip =
                    path.now.round_trip.map_or("-".to_owned(), |trip| response_text(trip.as_nanos() as f64));
                [
                    terminal::clean(&path.now.name),
                    path.now.state.to_string(),
                    format!("{:9.1}", path.read_bytes_per_s / 1e6),
                    format!("{:10.1}", path.write_bytes_per_s / 1e6),
                    format!("{:8.0}", path.ios_per_s),
                    format!("{trip:>10}"),
                    format!("{:>6}", path.now.errors),
                    format!("{share:3.0} %"),
                    sparks,
                ]
            })
            .collect();
        let headings = [
            "Path",
            "State",
            "Read MB/s",
            "Write MB/s",
            "    IOPS",
            "       RTT",
            "Errors",
            "Share",
            "Last 20 s",
        ];
        terminal::plain_table(headings, &rows, "")
    }

    fn bold(&self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn bytes_per_second(path: &PathRates) -> f64 {
    path.read_bytes_per_s + path.write_bytes_per_s
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Ramp => "warming up",
        Phase::Measure => "measuring",
        Phase::ReadBack => "reading back",
    }
}

/// A time in nanoseconds as all tables show times: with its unit, four digits.
fn response_text(ns: f64) -> String {
    lunway_report::response_time(ns / 1e6)
}

fn spark(share: f64) -> char {
    let eighth = (share * SPARKS.len() as f64).ceil() as usize;
    // Nothing is a gap: a stall must not look like little.
    if share <= 0.0 { ' ' } else { SPARKS[eighth.clamp(1, SPARKS.len()) - 1] }
}

/// Returns the line printed each second where nothing can be drawn.
pub(super) fn line(name: &str, second: &lunway_bench::stream::Second) -> String {
    let seconds = second.interval.as_secs_f64();
    let mut line = format!("{name}:");
    for (direction, sum) in [("read", &second.read), ("write", &second.write)] {
        if sum.ios > 0 {
            let (iops, mb_s) = (sum.ios as f64 / seconds, sum.bytes as f64 / seconds / 1e6);
            let response = &sum.response;
            let (p50, p99) = (
                response_text(response.percentile(50.0) as f64),
                response_text(response.percentile(99.0) as f64),
            );
            let max = response_text(response.max() as f64);
            line += &format!("  {direction} {iops:.0} IOPS {mb_s:.1} MB/s p50 {p50} p99 {p99} max {max}");
        }
    }
    if second.read.ios + second.write.ios == 0 {
        line += "  nothing completes";
    }
    line
}

#[cfg(test)]
mod tests {
    use lunway_block::PathState;

    use super::*;

    fn tick(reads: u64, fraction: f64) -> Tick {
        let mut tick = Tick {
            elapsed: Duration::from_secs(10),
            total: Some(Duration::from_secs(30)),
            interval: Duration::from_millis(250),
            fraction,
            ..Tick::default()
        };
        for _ in 0..reads {
            tick.read.ios += 1;
            tick.read.bytes += 1_000_000;
            tick.read.response.record(1_500_000);
        }
        tick
    }

    fn step(name: &str, index: usize) -> Step<'_> {
        Step { name, index, count: 3, then: Duration::from_secs(45) }
    }

    fn sample() -> Vec<PathSample> {
        vec![PathSample {
            read_ios: 10,
            read_bytes: 10_000_000,
            errors: 2,
            round_trip: Some(Duration::from_micros(120)),
            ..PathSample::unused("192.0.2.1:3260", PathState::Up)
        }]
    }

    fn live(start: Instant) -> Live {
        Live { colour: false, ..Live::new("lunway bench ram:1G".to_owned(), Vec::new(), start) }
    }

    #[test]
    fn the_screen_says_what_runs_how_far_it_is_and_what_the_last_second_was() {
        let start = Instant::now();
        let mut live = live(start);
        for n in 1..=8 {
            live.tick(step("4K reads", 1), &tick(10, 0.25), &sample, start + Duration::from_millis(250 * n));
        }
        let text = live.text();
        assert!(text.starts_with("lunway bench ram:1G\n"), "{text}");
        assert!(text.contains("4K reads (2 of 3), measuring"), "{text}");
        assert!(text.contains("[##########------------------------------]  25 %  1 min 05 s left"), "{text}");
        let now = text.lines().find(|line| line.starts_with("read ")).unwrap();
        let cells: Vec<_> = now.split_whitespace().collect();
        assert_eq!(cells[..4], ["read", "40", "40.0", "1.500"], "{text}");
        assert!(!text.contains("\nwrite"), "there is none: {text}");
        assert!(text.contains("192.0.2.1:3260  up") && text.contains("0.120"), "{text}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn each_path_has_a_line_with_its_share_and_its_history_and_one_that_is_down_is_a_gap() {
        let start = Instant::now();
        let mut live = live(start);
        let path = |name: &str, read_bytes, state| PathSample {
            name: name.to_owned(),
            state,
            read_bytes,
            ..sample()[0].clone()
        };
        for (n, [first, second]) in (1..).zip([[0, 0], [30, 10], [60, 10], [90, 40]]) {
            let state = if second == 10 && n == 3 { PathState::Down } else { PathState::Up };
            let samples =
                || vec![path("a", first * 1_000_000, PathState::Up), path("b", second * 1_000_000, state)];
            live.tick(step("x", 0), &tick(1, 0.1), &samples, start + Duration::from_secs(n));
            let text = live.text();
            if n == 3 {
                assert!(
                    text.lines().any(|line| line.starts_with("b     down") && line.contains("  0 %")),
                    "{text}"
                );
            }
        }
        let text = live.text();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("a     up").contains(" 50 %") && line("a     up").ends_with(" ███"), "{text}");
        assert!(line("b     up").ends_with(" ▃ █"), "{text}");
    }

    #[test]
    fn a_minute_of_throughput_is_a_line_of_sparks_in_which_a_stall_is_a_gap() {
        let start = Instant::now();
        let mut live = live(start);
        for (n, reads) in (1..).zip([8, 4, 0, 8]) {
            live.tick(step("a", 0), &tick(reads, 0.1), &Vec::new, start + Duration::from_secs(n));
        }
        let text = live.text();
        assert!(text.contains("read   █▄ █ "), "{text}");
        for n in 5..100 {
            live.tick(step("a", 0), &tick(1, 0.1), &Vec::new, start + Duration::from_secs(n));
        }
        assert_eq!(live.history.len(), HISTORY);
    }

    #[test]
    fn jobs_side_by_side_have_a_block_each_and_go_when_they_end() {
        let start = Instant::now();
        let mut live = live(start);
        live.tick(step("a", 0), &tick(1, 0.1), &Vec::new, start);
        live.tick(step("b", 1), &tick(1, 0.1), &Vec::new, start);
        assert!(live.text().contains("a (1 of 3)") && live.text().contains("b (2 of 3)"));
        live.ended(0);
        let text = live.text();
        assert!(!text.contains("a (1 of 3)") && text.contains("b (2 of 3)"), "{text}");
        assert!(
            text.contains("Measured\n  a ") && text.contains("read 4 IOPS, 4.0 MB/s, 1.500 ms"),
            "{text}"
        );
    }

    /// They were columns in milliseconds: `0.000` for memory.
    #[test]
    fn times_below_a_tenth_of_a_millisecond_are_microseconds() {
        assert_eq!(response_text(106.0), "0.1060 µs");
        let mut tick = tick(0, 0.1);
        tick.read.response.record(106);
        (tick.read.ios, tick.read.bytes) = (1, 4096);
        let start = Instant::now();
        let mut live = live(start);
        live.tick(step("a", 0), &tick, &Vec::new, start + Duration::from_secs(1));
        assert!(live.text().contains("0.1060 µs") && !live.text().contains("0.000"), "{}", live.text());
    }

    #[test]
    fn names_that_others_gave_cannot_control_the_terminal() {
        let start = Instant::now();
        let mut live = live(start);
        live.tick(step("a\x1b[2J", 0), &tick(1, 0.1), &Vec::new, start);
        assert!(!live.text().contains('\x1b'));
    }
}

//! Bars for long work, drawn on standard error if that is a terminal; lines now and then if it is none.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lunway_block::duration::HumanTime;

/// Steps of a bar that shows a fraction.
const STEPS: u64 = 10_000;

/// A bar for bytes, with rate and time left; nothing at all without a terminal.
pub(crate) fn bytes(what: &'static str, total: u64) -> ProgressBar {
    bar(total, "{prefix:9} {wide_bar} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  {decimal_bytes_per_sec}  {eta} left")
        .with_prefix(what)
}

/// A bar for measurements: [`set_fraction`] moves it, its message is the live figures.
pub(crate) fn fraction() -> ProgressBar {
    bar(STEPS, "{prefix:16} {wide_bar} {percent:>3} %  {msg}")
}

/// Moves a [`fraction`] bar.
pub(crate) fn set_fraction(bar: &ProgressBar, fraction: f64) {
    bar.set_position((fraction.clamp(0.0, 1.0) * STEPS as f64) as u64);
}

/// Shortest time between two lines of progress: a log of minutes has some dozen of them.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of measurements that take minutes, for a log: lines on standard error, if that is no terminal.
pub(crate) struct Lines {
    /// When the next may be printed; `None`: a terminal has a bar.
    next: Option<Instant>,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self::to(io::stderr().is_terminal(), Instant::now())
    }

    fn to(is_terminal: bool, now: Instant) -> Self {
        // What ends before needs none.
        Self { next: (!is_terminal).then(|| now + LINE_INTERVAL) }
    }

    /// Prints how far it is, if that is due.
    pub(crate) fn tell(&mut self, doing: &str, fraction: f64, left: Duration) {
        if let Some(line) = self.line(doing, fraction, left, Instant::now()) {
            eprintln!("{line}");
        }
    }

    fn line(&mut self, doing: &str, fraction: f64, left: Duration, now: Instant) -> Option<String> {
        let next = self.next.as_mut().filter(|next| now >= **next)?;
        *next = now + LINE_INTERVAL;
        Some(format!("{:3.0} %  {doing}, {}", fraction.clamp(0.0, 1.0) * 100.0, self::left(left)))
    }
}

/// Time left, as people say it.
pub(crate) fn left(time: Duration) -> String {
    format!("{} left", whole_seconds(time))
}

/// A time without fractions of a second, which would flicker in a bar.
pub(crate) fn whole_seconds(time: Duration) -> HumanTime {
    HumanTime(Duration::from_secs(time.as_secs()))
}

/// About how long something takes, as people say it.
pub(crate) fn rough(time: Duration) -> String {
    match time.as_secs_f64().ceil() as u64 {
        seconds @ 0..90 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

fn bar(total: u64, template: &str) -> ProgressBar {
    // `ProgressBar` draws nothing unless standard error is a terminal.
    let style = ProgressStyle::with_template(template).expect("the templates of this file are right");
    ProgressBar::new(total).with_style(style.progress_chars("##-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_right_and_a_fraction_moves_the_bar() {
        assert_eq!(bytes("copying", 10).length(), Some(10));
        let bar = fraction();
        set_fraction(&bar, 0.5);
        assert_eq!(bar.position(), STEPS / 2);
        assert_eq!(left(Duration::from_secs(65)), "1 min 05 s left");
        assert_eq!(rough(Duration::from_millis(59_200)), "60 s");
        assert_eq!(rough(Duration::from_secs(121)), "3 min");
    }

    #[test]
    fn a_log_has_a_line_each_ten_seconds_and_a_terminal_none() {
        let begun = Instant::now();
        let said = |lines: &mut Lines, seconds: u64| {
            lines.line("full (1/2)", 0.25, Duration::from_secs(65), begun + Duration::from_secs(seconds))
        };
        let mut lines = Lines::to(false, begun);
        let line = Some(" 25 %  full (1/2), 1 min 05 s left".to_owned());
        let times = [0, 9, 10, 11, 19, 25, 34, 35];
        let expected = [None, None, line.clone(), None, None, line.clone(), None, line];
        assert_eq!(times.map(|seconds| said(&mut lines, seconds)), expected);
        let mut lines = Lines::to(true, begun);
        assert_eq!(said(&mut lines, 1000), None);
    }
}

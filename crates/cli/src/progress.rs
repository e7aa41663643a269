//! Bars for long work, drawn on standard error if that is a terminal.

use std::time::Duration;

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
}

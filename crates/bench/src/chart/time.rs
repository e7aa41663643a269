//! Throughput over time.

use std::time::Duration;

use super::{Svg, TEXT, Tone, WIDTH, linear_ticks, short};

const HEIGHT: f64 = 118.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = HEIGHT - 22.0;

/// A chart of `values` (per second), one for each `interval`, each at the middle of it, on an axis that starts at 0.
pub fn over_time(what: &str, interval: Duration, values: &[f64], tone: Tone) -> String {
    let mut svg = Svg::new(HEIGHT, &format!("{what} over time"));
    let interval = interval.as_secs_f64();
    let seconds = interval * values.len().max(1) as f64;
    let ticks = linear_ticks(values.iter().copied().fold(0.0, f64::max), 2);
    let end = ticks[ticks.len() - 1];
    let x = |second: f64| LEFT + (RIGHT - LEFT) * second / seconds;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * (value / end).clamp(0.0, 1.0);
    for &tick in &ticks {
        svg.line((LEFT, y(tick)), (RIGHT, y(tick)), "grid");
        svg.text(LEFT - 6.0, y(tick) + TEXT * 0.36, "tick end", &short(tick));
    }
    for tick in linear_ticks(seconds, 5).into_iter().filter(|&tick| tick <= seconds * (1.0 + 1e-9)) {
        svg.text(x(tick), HEIGHT - 6.0, "tick mid", &format!("{} s", short(tick)));
    }
    let place = |(index, &value): (usize, &f64)| (x((index as f64 + 0.5) * interval), y(value));
    let line: Vec<(f64, f64)> = values.iter().enumerate().map(place).collect();
    if let (Some(&(first, _)), Some(&(last, _))) = (line.first(), line.last()) {
        let area = [(first, BOTTOM)].into_iter().chain(line.iter().copied()).chain([(last, BOTTOM)]);
        svg.polyline(area, &format!("area {}", tone.class()), what);
        svg.polyline(line.into_iter(), &format!("trace {}", tone.class()), what);
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_and_none_draw_without_numbers_that_are_not() {
        for values in [&[][..], &[0.0], &[5.0, 7.0]] {
            let svg = over_time("IOPS", Duration::from_millis(100), values, Tone::Read);
            assert!(svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}

//! Ticks at numbers that people like, and how to write them.

/// Ticks from 0 to at least `max` in steps of 1, 2 or 5 times a power of ten: at most `count` of them beside 0, and the
/// last is the end of the axis.
pub fn linear_ticks(max: f64, count: usize) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let least = max / count.max(1) as f64;
    let power = 10f64.powf(least.log10().floor());
    // The tolerance keeps 0.30000000000000004 from needing another step.
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= least * (1.0 - 1e-9));
    let step = step.unwrap_or(power * 10.0);
    let last = (max / step - 1e-9).ceil() as usize;
    (0..=last).map(|n| n as f64 * step).collect()
}

/// Ticks from at or below `low` to at or above `high`, with 0 among them: about `count`, in steps of 1, 2 or 5 times a
/// power of ten.
pub fn signed_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let low = if low.is_finite() { low.min(0.0) } else { 0.0 };
    let high = if high.is_finite() { high.max(0.0) } else { 0.0 };
    let ticks = linear_ticks(high - low, count);
    let step = ticks[1] - ticks[0];
    let (first, last) = ((low / step + 1e-9).floor() as i64, (high / step - 1e-9).ceil() as i64);
    (first..=last.max(first + 1)).map(|n| n as f64 * step).collect()
}

/// Ticks of a logarithmic axis that begins at or below `min` and ends at or above `max`: the decades, and 2 and 5 times
/// them where there are fewer than three decades.
pub fn log_ticks(min: f64, max: f64) -> Vec<f64> {
    let min = if min.is_finite() && min > 0.0 { min } else { 1.0 };
    let max = if max.is_finite() && max > min { max } else { min * 10.0 };
    let steps: &[f64] = if (max / min).log10() < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = (min.log10() + 1e-9).floor() as i32..=(max.log10() - 1e-9).ceil() as i32;
    let ticks: Vec<f64> = decades.flat_map(|n| steps.iter().map(move |step| step * 10f64.powi(n))).collect();
    let first = ticks.iter().rposition(|&tick| tick <= min * (1.0 + 1e-9)).unwrap_or(0);
    let last = ticks.iter().position(|&tick| tick >= max * (1.0 - 1e-9)).unwrap_or(ticks.len() - 1);
    ticks[first..=last].to_vec()
}

/// A number in about three digits: `950`, `1.2k`, `35k`, `1.21M`, `4T`; a dash for what is none.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let (scaled, unit) = match value.abs() {
        v if v >= 999_500_000_000.0 => (value / 1e12, "T"),
        v if v >= 999_500_000.0 => (value / 1e9, "G"),
        v if v >= 999_500.0 => (value / 1e6, "M"),
        v if v >= 999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// Nanoseconds in the unit that keeps the number small: `750 ns`, `12 µs`, `1.5 ms`, `2 s`.
pub fn short_ns(ns: f64) -> String {
    match ns {
        ns if ns >= 999_500_000.0 => format!("{} s", short(ns / 1e9)),
        ns if ns >= 999_500.0 => format!("{} ms", short(ns / 1e6)),
        ns if ns >= 999.5 => format!("{} µs", short(ns / 1e3)),
        ns => format!("{} ns", short(ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_cover_the_maximum() {
        assert_eq!(linear_ticks(9.0, 4), [0.0, 5.0, 10.0]);
        assert_eq!(linear_ticks(4.0, 4), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(linear_ticks(123_456.0, 4), [0.0, 50_000.0, 100_000.0, 150_000.0]);
        for max in [0.003, 0.3, 1.0, 7.7, 99.0, 100.0, 101.0, 8e9] {
            let ticks = linear_ticks(max, 4);
            assert!(*ticks.last().unwrap() >= max * (1.0 - 1e-9) && ticks.len() <= 5, "{max}: {ticks:?}");
        }
    }

    #[test]
    fn ticks_of_nothing_are_still_an_axis() {
        for nothing in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(linear_ticks(nothing, 4).len() >= 2);
            assert!(log_ticks(nothing, nothing).len() >= 2);
        }
    }

    #[test]
    fn log_ticks_enclose_the_range_and_thin_out_over_many_decades() {
        assert_eq!(log_ticks(30.0, 400.0), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(log_ticks(1000.0, 5000.0), [1000.0, 2000.0, 5000.0]);
        assert_eq!(log_ticks(1.5, 90_000.0), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
    }

    #[test]
    fn short_numbers_stay_short() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (12.34, "12.3"),
            (100.0, "100"),
            (999.7, "1k"),
            (1234.0, "1.23k"),
            (50_000.0, "50k"),
            (123_456.0, "123k"),
            (1_210_000.0, "1.21M"),
            (2e9, "2G"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!([750.0, 12_000.0, 1.5e6, 2e9].map(short_ns), ["750 ns", "12 µs", "1.5 ms", "2 s"]);
    }
}

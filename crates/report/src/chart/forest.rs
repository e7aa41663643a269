//! Differences with their intervals.

use crate::document::VerdictTone;

use super::axis::{short, signed_ticks};
use super::svg::{CHARACTER, Svg, TEXT, fit, width_of};
use super::{BROAD, both};

/// A difference, per cent, with its interval.
#[derive(Clone, Copy, Debug)]
pub struct Estimate<'a> {
    /// Label of the difference: the row of the table.
    pub label: &'a str,
    /// The difference.
    pub percent: f64,
    /// Lower end of its interval; may be infinite.
    pub low: f64,
    /// Upper end of its interval; may be infinite.
    pub high: f64,
    /// Verdict, in words: "faster".
    pub verdict: &'a str,
    /// Tone in which it is drawn.
    pub tone: VerdictTone,
}

/// Half the height of a diamond.
const DIAMOND: f64 = 5.0;

/// A forest plot: each estimate as a diamond on the line of its interval, with the verdict beside it, and a band of
/// ±`margin` per cent in which no difference matters. `what` is the axis: "difference of B against A, %".
///
/// Intervals that reach beyond four times the largest estimate end in an arrow at the edge.
pub fn forest(what: &str, margin: f64, estimates: &[Estimate<'_>]) -> String {
    both(|width| draw(what, margin, estimates, width))
}

fn draw(what: &str, margin: f64, estimates: &[Estimate<'_>], width: f64) -> Svg {
    let broad = width >= BROAD;
    let row = if broad { 28.0 } else { 44.0 };
    let (left, right) =
        if broad { (22.0 * CHARACTER + 10.0, width - 49.0 * CHARACTER) } else { (12.0, width - 12.0) };
    let margin = if margin.is_finite() { margin.abs() } else { 0.0 };
    let ticks = axis(margin, estimates, if broad { 8 } else { 6 });
    let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
    let x = |percent: f64| left + (right - left) * ((percent - first) / (last - first)).clamp(0.0, 1.0);
    let bottom = estimates.len() as f64 * row + 8.0;
    let mut svg = Svg::new(width, bottom + 38.0, what);

    // In the narrow drawing words stand above each line, and the ground is left out behind them.
    let stripes: Vec<(f64, f64)> = match broad {
        true => vec![(0.0, bottom)],
        false => {
            (0..estimates.len()).map(|index| (index as f64 * row + 21.0, (index + 1) as f64 * row)).collect()
        }
    };
    for (from, to) in stripes {
        if margin > 0.0 {
            let hint = format!("within ±{} %: no meaningful difference", short(margin));
            svg.rect((x(-margin), from), (x(margin) - x(-margin), to - from), "warm", &hint);
        }
        for &tick in &ticks {
            svg.line((x(tick), from), (x(tick), to), if tick == 0.0 { "axis" } else { "grid" });
        }
    }
    for &tick in &ticks {
        let text = sign(tick);
        // The outermost stand at the edge of a narrow drawing.
        let half = width_of(&text) / 2.0;
        svg.text(x(tick).clamp(half, width - half), bottom + 14.0, "tick mid", &text);
    }
    svg.text((left + right) / 2.0, bottom + 31.0, "tick mid", &fit(what, width.min(2.0 * (right - left))));
    for (index, estimate) in estimates.iter().enumerate() {
        let top = index as f64 * row + 4.0;
        let (low, high) = (fallback(estimate.low, first), fallback(estimate.high, last));
        let figure = format!("{} %", sign(estimate.percent));
        if broad {
            let text = top + row / 2.0 + TEXT * 0.36;
            svg.text(left - 10.0, text, "name end", &fit(estimate.label, left - 10.0));
            svg.text(right + 9.0 * CHARACTER, text, "strong end", &figure);
            let interval = format!("{} … {}", sign(low_of(estimate)), sign(high_of(estimate)));
            svg.text(right + 10.0 * CHARACTER, text, "soft", &interval);
            svg.text(
                width - 24.0 * CHARACTER,
                text,
                estimate.tone.name(),
                &fit(estimate.verdict, 24.0 * CHARACTER),
            );
        } else {
            let verdict = fit(estimate.verdict, 24.0 * CHARACTER);
            let right_words = format!("{figure} {verdict}");
            let room = width - width_of(&right_words) - CHARACTER;
            svg.text(2.0, top + TEXT, "name", &fit(estimate.label, room));
            svg.text(width - 2.0, top + TEXT, &format!("name end {}", estimate.tone.name()), &right_words);
        }
        let middle = if broad { top + row / 2.0 } else { top + 28.0 };
        let class = format!("interval {}", estimate.tone.name());
        if !estimate.percent.is_finite() {
            continue;
        }
        svg.line((x(low), middle), (x(high), middle), &class);
        for (end, value, edge, direction) in [(x(low), low, first, 1.0), (x(high), high, last, -1.0)] {
            let beyond = if direction > 0.0 { value < edge } else { value > edge };
            let tip =
                [(end + 5.0 * direction, middle - 4.0), (end, middle), (end + 5.0 * direction, middle + 4.0)];
            let cap = [(end, middle - 4.0), (end, middle + 4.0)];
            svg.polyline(if beyond { tip.iter() } else { cap.iter() }.copied(), &class, estimate.label);
        }
        let at = x(estimate.percent);
        let hint = format!("{}: {figure}, {}", estimate.label, estimate.verdict);
        let corners =
            [(at, middle - DIAMOND), (at + DIAMOND, middle), (at, middle + DIAMOND), (at - DIAMOND, middle)];
        svg.polygon(&corners, &format!("diamond {}", estimate.tone.name()), &hint);
    }
    svg
}

/// Returns the position of an end that is not a number: just beyond the edge.
fn fallback(end: f64, edge: f64) -> f64 {
    if end.is_finite() { end } else { edge * 2.0 }
}

fn low_of(estimate: &Estimate<'_>) -> f64 {
    if estimate.low.is_nan() { f64::NEG_INFINITY } else { estimate.low }
}

fn high_of(estimate: &Estimate<'_>) -> f64 {
    if estimate.high.is_nan() { f64::INFINITY } else { estimate.high }
}

fn axis(margin: f64, estimates: &[Estimate<'_>], count: usize) -> Vec<f64> {
    let finite = |value: &f64| value.is_finite();
    let largest =
        estimates.iter().map(|estimate| estimate.percent.abs()).filter(finite).fold(margin, f64::max);
    let reach = if largest > 0.0 { largest * 4.0 } else { 1.0 };
    let all = estimates.iter().flat_map(|estimate| [estimate.percent, estimate.low, estimate.high]);
    let all: Vec<f64> = all.filter(finite).map(|value| value.clamp(-reach, reach)).collect();
    let low = all.iter().copied().fold(-1.3 * margin, f64::min);
    let high = all.iter().copied().fold(1.3 * margin, f64::max);
    signed_ticks(low, high, count)
}

/// A number with its sign, the true minus sign among them.
fn sign(value: f64) -> String {
    match value {
        value if value == f64::INFINITY => "+∞".into(),
        value if value == f64::NEG_INFINITY => "−∞".into(),
        value if !value.is_finite() => "–".into(),
        value if short(value.abs()) == "0" => "0".into(),
        value if value < 0.0 => format!("−{}", short(-value)),
        value => format!("+{}", short(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(percent: f64, low: f64, high: f64) -> Estimate<'static> {
        Estimate { label: "read 4K", percent, low, high, verdict: "cannot tell", tone: VerdictTone::Unknown }
    }

    #[test]
    fn an_interval_without_end_is_an_arrow_and_no_number_that_is_none() {
        let rows = [
            estimate(1.0, f64::NEG_INFINITY, f64::INFINITY),
            estimate(f64::NAN, f64::NAN, f64::NAN),
            estimate(-96.3, -97.0, -95.0),
        ];
        let svg = forest("B against A, %", 3.0, &rows);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("−96.3 %") && svg.contains("−∞ … +∞"));
        assert!(!forest("nothing", f64::NAN, &[]).contains("NaN"));
    }

    #[test]
    fn the_figures_at_both_ends_of_the_axis_are_within_a_narrow_drawing() {
        let svg = draw("B against A, %", 3.0, &[estimate(-80.0, -100.0, 100.0)], 300.0).finish("narrow");
        for (end, text) in [(0.0, "−100"), (300.0, "+100")] {
            let (before, _) = svg.split_once(&format!(">{text}<")).unwrap();
            let at: f64 = before.rsplit_once(" x=\"").unwrap().1.split('"').next().unwrap().parse().unwrap();
            assert!((at - end).abs() >= width_of(text) / 2.0 - 0.1, "{text} at {at}");
        }
    }

    #[test]
    fn one_wide_interval_does_not_squeeze_all_others() {
        let ticks = axis(3.0, &[estimate(1.0, 0.5, 1.5), estimate(2.0, -5000.0, 5000.0)], 8);
        assert!(ticks[ticks.len() - 1] <= 20.0, "{ticks:?}");
    }
}

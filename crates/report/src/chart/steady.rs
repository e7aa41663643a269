//! Rounds of a measurement that goes on until it is steady.

use std::ops::Range;

use super::axis::{linear_ticks, short};
use super::legend::{Legend, LegendEntry};
use super::svg::{Svg, TEXT};
use super::{BROAD, COLUMN, both};

/// Rounds, and the window that was found steady.
#[derive(Clone, Debug)]
pub struct Rounds<'a> {
    /// Unit of the values.
    pub unit: &'a str,
    /// Values, one for each round from round 1 on.
    pub values: &'a [f64],
    /// Rounds of the measurement window; `None` if no steady state was reached.
    pub window: Option<Range<usize>>,
    /// For the whole width of the page.
    pub wide: bool,
}

const LEFT: f64 = 44.0;

/// Every round as a point, the window shaded, and in it the mean with the band of ±10 % in which all its rounds must
/// lie, and the line of best fit, which must not rise or fall by more than 10 % of the mean (the criteria of SNIA's
/// performance test specification).
pub fn steady(rounds: &Rounds<'_>) -> String {
    if rounds.wide { both(|width| draw(rounds, width)) } else { draw(rounds, COLUMN).finish("") }
}

fn draw(rounds: &Rounds<'_>, width: f64) -> Svg {
    let values = rounds.values;
    let window =
        rounds.window.clone().filter(|window| window.start < window.end && window.end <= values.len());
    let mut entries = vec![LegendEntry { class: "curve s0".into(), area: false, label: "round" }];
    if window.is_some() {
        entries.push(LegendEntry { class: "warm".into(), area: true, label: "steady window" });
        entries.push(LegendEntry { class: "level".into(), area: false, label: "its mean ± 10 %" });
        entries.push(LegendEntry { class: "curve s1".into(), area: false, label: "best fit" });
    }
    let right = width - 14.0;
    let legend = Legend::new(&entries, 2.0, right);
    let top = legend.height() + 8.0;
    let bottom = top + if width >= BROAD { 200.0 } else { 130.0 };
    let mut svg = Svg::new(width, bottom + 36.0, &format!("{} by round", rounds.unit));
    legend.draw(&mut svg);

    let fit = window.clone().and_then(|window| best_fit(&values[window]));
    let highest = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let ticks = linear_ticks(fit.map_or(highest, |fit| highest.max(fit.mean * 1.1)), 4);
    let end = ticks[ticks.len() - 1];
    let slots = values.len().max(1) as f64;
    let x = |round: f64| LEFT + (right - LEFT) * (round + 0.5) / slots;
    let y = |value: f64| bottom - (bottom - top) * (value / end).clamp(0.0, 1.0);
    let edges = window.map(|window| (x(window.start as f64 - 0.5), x(window.end as f64 - 0.5), window));
    if let Some((from, to, _)) = &edges {
        svg.rect((*from, top), (to - from, bottom - top), "warm", "steady window");
    }
    for &tick in &ticks {
        svg.line((LEFT, y(tick)), (right, y(tick)), "grid");
        svg.text(LEFT - 6.0, y(tick) + TEXT * 0.36, "tick end", &short(tick));
    }
    let most = if width >= BROAD { 25 } else { 10 };
    let every = values.len().div_ceil(most).max(1);
    for round in (0..values.len()).step_by(every) {
        svg.text(x(round as f64), bottom + 16.0, "tick mid", &(round + 1).to_string());
    }
    svg.text((LEFT + right) / 2.0, bottom + 31.0, "tick mid", "round");
    if let (Some((from, to, window)), Some(fit)) = (&edges, fit) {
        for level in [fit.mean * 0.9, fit.mean, fit.mean * 1.1] {
            svg.polyline([(*from, y(level)), (*to, y(level))].into_iter(), "level", "mean and ± 10 %");
        }
        let line = [(x(window.start as f64), y(fit.first)), (x(window.end as f64 - 1.0), y(fit.last))];
        svg.polyline(line.into_iter(), "curve s1", "best fit");
    }
    let place = |(round, &value): (usize, &f64)| {
        (x(round as f64), if value.is_finite() { y(value) } else { f64::NAN })
    };
    let points: Vec<(f64, f64)> = values.iter().enumerate().map(place).collect();
    svg.polyline(points.iter().copied(), "trace s0", rounds.unit);
    for ((at, height), value) in points.iter().zip(values).filter(|(point, _)| point.1.is_finite()) {
        let hint = format!("{} {}", short(*value), rounds.unit);
        svg.rect((at - 2.5, height - 2.5), (5.0, 5.0), "f0", &hint);
    }
    svg
}

/// A line of least squares over equally spaced values.
#[derive(Clone, Copy)]
struct Fit {
    mean: f64,
    first: f64,
    last: f64,
}

fn best_fit(values: &[f64]) -> Option<Fit> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let n = values.len() as f64;
    let (mean, middle) = (values.iter().sum::<f64>() / n, (n - 1.0) / 2.0);
    let (mut across, mut spread) = (0.0, 0.0);
    for (index, value) in values.iter().enumerate() {
        let from = index as f64 - middle;
        across += from * (value - mean);
        spread += from * from;
    }
    let slope = if spread > 0.0 { across / spread } else { 0.0 };
    Some(Fit { mean, first: mean - slope * middle, last: mean + slope * middle })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_fit_of_a_line_is_that_line() {
        let fit = best_fit(&[10.0, 12.0, 14.0, 16.0, 18.0]).unwrap();
        assert!(
            (fit.mean - 14.0).abs() < 1e-9
                && (fit.first - 10.0).abs() < 1e-9
                && (fit.last - 18.0).abs() < 1e-9
        );
        assert!(best_fit(&[1.0, f64::NAN]).is_none() && best_fit(&[]).is_none());
    }

    #[test]
    fn a_window_beyond_the_rounds_is_not_drawn() {
        for (values, window) in
            [(&[][..], Some(0..5)), (&[1.0], Some(0..1)), (&[1.0, f64::NAN], Some(0..2)), (&[5.0; 9], None)]
        {
            let svg = steady(&Rounds { unit: "IOPS", values, window, wide: true });
            assert!(svg.ends_with("</svg>") && !svg.contains("NaN"), "{svg}");
        }
    }
}

//! Response time over percentiles.

use super::axis::{log_ticks, short_ns};
use super::svg::{CHARACTER, Svg, TEXT, fit, width_of};
use super::{COLUMN, SERIES_MAX};

/// One curve: its name, and response times.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// Shown at its right end, cut to about 17 characters.
    pub label: &'a str,
    /// (per cent of the I/Os, nanoseconds that they did not exceed), in order.
    pub points: &'a [(f64, f64)],
}

const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const LABELS_MAX: f64 = 17.0 * CHARACTER;
const TOP: f64 = 8.0;
const BOTTOM: f64 = HEIGHT - 34.0;
/// Distance of two names.
const LEADING: f64 = TEXT + 2.0;
/// The axis ends at this many nines.
const NINES: f64 = 4.0;

/// A chart of up to [`SERIES_MAX`] curves (more are left out): percentiles on an axis of nines, so that the slowest
/// thousandth gets as much room as the fastest nine tenths, and a logarithmic axis of time. A curve ends where its
/// points do.
pub fn percentile_curves(title: &str, curves: &[Curve<'_>]) -> String {
    let mut svg = Svg::new(COLUMN, HEIGHT, &format!("{title} by percentile"));
    let paths: Vec<(&str, Vec<(f64, f64)>)> = curves
        .iter()
        .map(|curve| (curve.label, path(curve.points)))
        .filter(|(_, path)| !path.is_empty())
        .take(SERIES_MAX)
        .collect();
    let labels =
        paths.iter().map(|(label, _)| width_of(label)).fold(5.0 * CHARACTER, f64::max).min(LABELS_MAX);
    let right = COLUMN - labels - 8.0;
    let all = || paths.iter().flat_map(|(_, path)| path).map(|&(_, ns)| ns);
    let ticks = log_ticks(all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let (low, high) = (ticks[0].ln(), ticks[ticks.len() - 1].ln());
    let x = |nines: f64| LEFT + (right - LEFT) * nines / NINES;
    let y = |ns: f64| BOTTOM - (BOTTOM - TOP) * (ns.ln() - low) / (high - low);

    for &tick in &ticks {
        svg.line((LEFT, y(tick)), (right, y(tick)), "grid");
        svg.text(LEFT - 6.0, y(tick) + TEXT * 0.36, "tick end", &short_ns(tick));
    }
    for (percent, label) in
        [(0.0, "0"), (50.0, "50"), (90.0, "90"), (99.0, "99"), (99.9, "99.9"), (99.99, "99.99")]
    {
        let at = x(nines_of(percent));
        svg.line((at, TOP), (at, BOTTOM), "grid");
        svg.text(at, BOTTOM + 15.0, "tick mid", label);
    }
    svg.text((LEFT + right) / 2.0, HEIGHT - 4.0, "tick mid", "percentile of I/Os");

    let mut names: Vec<(f64, usize)> = Vec::new();
    for (index, (label, path)) in paths.iter().enumerate() {
        let place = path.iter().map(|&(nines, ns)| (x(nines), y(ns)));
        svg.polyline(place, &format!("curve s{index}"), label);
        if let Some(&(nines, ns)) = path.last() {
            names.push((y(ns), index));
            if nines < NINES {
                svg.line((x(nines), y(ns)), (right, y(ns)), &format!("leader s{index}"));
            }
        }
    }
    for (at, index) in spread(names) {
        let label = fit(paths[index].0, labels);
        svg.text(right + 6.0, at + TEXT * 0.36, &format!("name f{index}"), &label);
    }
    svg.finish("")
}

fn nines_of(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).log10()
}

/// (nines, nanoseconds) of a curve, cut at the end of the axis.
fn path(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let points = points.iter().filter(|point| (0.0..100.0).contains(&point.0) && point.1.is_finite());
    let points = points.map(|&(percent, ns)| (nines_of(percent), ns.max(1.0)));
    points.filter(|point| point.0 <= NINES + 1e-6).collect()
}

/// Moves names apart until none touches another, keeping their order and staying inside.
fn spread(mut names: Vec<(f64, usize)>) -> Vec<(f64, usize)> {
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut floor = TOP;
    for (at, _) in &mut names {
        *at = at.max(floor);
        floor = *at + LEADING;
    }
    let mut ceiling = BOTTOM;
    for (at, _) in names.iter_mut().rev() {
        *at = at.min(ceiling);
        ceiling = *at - LEADING;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_the_same_height_are_moved_apart_and_stay_inside() {
        let names = spread(vec![(BOTTOM, 0), (BOTTOM, 1), (TOP, 2), (TOP, 3), (100.0, 4), (101.0, 5)]);
        assert!(names.windows(2).all(|pair| pair[1].0 - pair[0].0 >= LEADING - 1e-9), "{names:?}");
        assert!(names.iter().all(|(at, _)| (TOP..=BOTTOM).contains(at)));
    }

    #[test]
    fn a_curve_stays_on_the_axis() {
        let path = path(&[(0.0, 0.0), (50.0, 10.0), (99.99, 20.0), (99.999, 30.0), (100.0, 40.0)]);
        assert_eq!(path.len(), 3);
        assert_eq!(path[0], (0.0, 1.0), "a logarithm needs at least one nanosecond");
    }

    #[test]
    fn no_curve_at_all_still_draws() {
        let svg = percentile_curves("Response", &[Curve { label: "x", points: &[] }]);
        assert!(svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}

//! Response time over percentiles.

use crate::latency::Latency;

use super::{CHARACTER, Svg, TEXT, WIDTH, fit, log_ticks, short_ns};

/// Most curves of one chart: as many colours and dash patterns as can be told apart.
pub const SERIES_MAX: usize = 6;

/// One curve: its name, and response times.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// Shown at its right end, up to 11 characters.
    pub label: &'a str,
    /// What it shows.
    pub latency: &'a Latency,
}

const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const LABELS: f64 = 11.0 * CHARACTER;
const TOP: f64 = 8.0;
const BOTTOM: f64 = HEIGHT - 34.0;
/// Distance of two names.
const LEADING: f64 = TEXT + 1.0;
/// The axis ends at this many nines.
const NINES: f64 = 4.0;
const STEPS: u32 = 64;

/// A chart of up to [`SERIES_MAX`] curves (more are left out): percentiles on an axis of nines, so that the slowest thousandth
/// gets as much room as the fastest nine tenths, and a logarithmic axis of time. A curve ends where fewer than one
/// I/O is left.
pub fn latency_curves(what: &str, curves: &[Curve<'_>]) -> String {
    let mut svg = Svg::new(HEIGHT, &format!("{what} by percentile"));
    let curves: Vec<_> = curves.iter().filter(|curve| curve.latency.count() > 0).take(SERIES_MAX).collect();
    let right = WIDTH - LABELS - 8.0;
    let paths: Vec<Vec<(f64, f64)>> = curves.iter().map(|curve| points(curve.latency)).collect();
    let all = || paths.iter().flatten().map(|&(_, ns)| ns);
    let ticks = log_ticks(all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let (low, high) = (ticks[0].ln(), ticks[ticks.len() - 1].ln());
    let x = |nines: f64| LEFT + (right - LEFT) * nines / NINES;
    let y = |ns: f64| BOTTOM - (BOTTOM - TOP) * (ns.max(1.0).ln() - low) / (high - low);

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
    for (index, (curve, path)) in curves.iter().zip(&paths).enumerate() {
        let place = path.iter().map(|&(nines, ns)| (x(nines), y(ns)));
        svg.polyline(place, &format!("curve s{index}"), curve.label);
        if let Some(&(nines, ns)) = path.last() {
            names.push((y(ns), index));
            if nines < NINES {
                svg.line((x(nines), y(ns)), (right, y(ns)), &format!("leader s{index}"));
            }
        }
    }
    for (at, index) in spread(names) {
        let label = fit(curves[index].label, LABELS);
        svg.text(right + 6.0, at + TEXT * 0.36, &format!("name f{index}"), &label);
    }
    svg.finish()
}

fn nines_of(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).log10()
}

/// (nines, nanoseconds) of a curve.
fn points(latency: &Latency) -> Vec<(f64, f64)> {
    let most = (latency.count() as f64).log10().min(NINES);
    let nines = (0..=STEPS).map(|step| NINES * f64::from(step) / f64::from(STEPS));
    let nines = nines.take_while(|&nines| nines <= most);
    nines.map(|nines| (nines, latency.percentile(100.0 * (1.0 - 10f64.powf(-nines))) as f64)).collect()
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
    fn a_curve_ends_where_its_ios_end() {
        let mut latency = Latency::default();
        (1..=100).for_each(|n| latency.record(n * 1000));
        let path = points(&latency);
        assert_eq!(path.last().unwrap().0, 2.0, "100 I/Os know two nines");
        assert!(path.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }

    #[test]
    fn no_curve_at_all_still_draws() {
        let svg = latency_curves("Response", &[Curve { label: "x", latency: &Latency::default() }]);
        assert!(svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}

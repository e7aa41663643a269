//! Something over the addresses of a device.

use super::axis::{linear_ticks, short};
use super::legend::{Legend, LegendEntry};
use super::series::thin;
use super::svg::{Svg, TEXT};
use super::{BROAD, COLUMN, both};

/// Throughput over the whole device.
#[derive(Clone, Copy, Debug)]
pub struct Zones<'a> {
    /// Unit of the values.
    pub unit: &'a str,
    /// Size of the device, bytes.
    pub size: u64,
    /// (offset in bytes, value) of reads, in order.
    pub read: &'a [(u64, f64)],
    /// The same of writes.
    pub write: &'a [(u64, f64)],
    /// For the whole width of the page.
    pub wide: bool,
}

const LEFT: f64 = 44.0;

/// A curve for each direction that was measured, on an axis of values that starts at 0.
pub fn zones(zones: &Zones<'_>) -> String {
    if zones.wide { both(|width| draw(zones, width)) } else { draw(zones, COLUMN).finish("") }
}

fn draw(zones: &Zones<'_>, width: f64) -> Svg {
    let curves = [("read", zones.read), ("write", zones.write)];
    let curves: Vec<_> = curves.into_iter().filter(|(_, points)| !points.is_empty()).collect();
    let entries: Vec<LegendEntry<'_>> = curves
        .iter()
        .map(|&(label, _)| LegendEntry { class: format!("curve {label}"), area: false, label })
        .collect();
    let right = width - 14.0;
    let legend = Legend::new(&entries, 2.0, right);
    let top = legend.height() + 8.0;
    let bottom = top + if width >= BROAD { 200.0 } else { 120.0 };
    let mut svg = Svg::new(width, bottom + 22.0, &format!("{} over the device", zones.unit));
    legend.draw(&mut svg);

    let all = curves.iter().flat_map(|(_, points)| points.iter().map(|point| point.1));
    let ticks = linear_ticks(all.filter(|value| value.is_finite()).fold(0.0, f64::max), 4);
    let end = ticks[ticks.len() - 1];
    // At least one byte: a device of none still gets an axis.
    let size = zones.size.max(1) as f64;
    let x = |offset: f64| LEFT + (right - LEFT) * (offset / size).clamp(0.0, 1.0);
    let y = |value: f64| bottom - (bottom - top) * (value / end).clamp(0.0, 1.0);
    for &tick in &ticks {
        svg.line((LEFT, y(tick)), (right, y(tick)), "grid");
        svg.text(LEFT - 6.0, y(tick) + TEXT * 0.36, "tick end", &short(tick));
    }
    let most = if width >= BROAD { 8 } else { 4 };
    for tick in linear_ticks(size, most).into_iter().filter(|&tick| tick <= size * (1.0 + 1e-9)) {
        let text = if tick == 0.0 { "0".to_owned() } else { format!("{}B", spaced(tick)) };
        let class = if x(tick) > right - 16.0 { "tick end" } else { "tick mid" };
        svg.text(if class == "tick end" { right + 12.0 } else { x(tick) }, bottom + 16.0, class, &text);
    }
    for (label, points) in &curves {
        let place = |&(offset, value): &(u64, f64)| {
            (x(offset as f64), if value.is_finite() { y(value) } else { f64::NAN })
        };
        let points: Vec<(f64, f64)> = points.iter().map(place).collect();
        let points = thin(&points, if width >= BROAD { 600 } else { 300 });
        svg.polyline(points.iter().copied(), &format!("trace {label}"), label);
        if let [only] = points[..] {
            svg.rect((only.0 - 2.0, only.1 - 2.0), (4.0, 4.0), label, label);
        }
    }
    svg
}

/// `1.5 T`: a space between the figure and its prefix.
fn spaced(bytes: f64) -> String {
    let text = short(bytes);
    match text.char_indices().last() {
        Some((at, prefix)) if prefix.is_alphabetic() => format!("{} {prefix}", &text[..at]),
        _ => format!("{text} "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_any_size_and_few_points_has_an_axis() {
        for (size, points) in [(0, &[][..]), (512, &[(0, 1.0)]), (1 << 50, &[(0, f64::NAN), (1 << 49, 5.0)])]
        {
            for wide in [false, true] {
                let svg = zones(&Zones { unit: "MB/s", size, read: points, write: points, wide });
                assert!(svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
        assert_eq!([512.0, 4e9, 2e12].map(spaced), ["512 ", "4 G", "2 T"]);
    }
}

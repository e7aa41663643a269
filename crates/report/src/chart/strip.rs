//! Strip chart of the use of a device's addresses.

use super::axis::{linear_ticks, short};
use super::legend::{Legend, LegendEntry};
use super::svg::Svg;
use super::{BROAD, both};

/// A device as a strip, from its first byte to its last.
#[derive(Clone, Copy, Debug)]
pub struct Strip<'a> {
    /// Size of the device, bytes.
    pub size: u64,
    /// The uses, in the order in which they are stacked from the bottom: name, and CSS class of its colour.
    pub uses: &'a [(&'a str, &'a str)],
    /// Equal parts of the device, and bytes of each use in each.
    pub parts: &'a [Vec<f64>],
}

const HEIGHT: f64 = 64.0;
/// The narrowest column that can still be seen.
const COLUMN_MIN: f64 = 2.0;

/// A column for each part of the device, divided by what its bytes are used for; parts share a column where there is no
/// room for all.
pub fn strip(strip: &Strip<'_>) -> String {
    both(|width| draw(strip, width))
}

fn draw(strip: &Strip<'_>, width: f64) -> Svg {
    let entries: Vec<LegendEntry<'_>> = strip
        .uses
        .iter()
        .map(|(label, class)| LegendEntry { class: (*class).to_owned(), area: true, label })
        .collect();
    let right = width - 14.0;
    let legend = Legend::new(&entries, 2.0, right);
    let (top, left) = (legend.height() + 8.0, 2.0);
    let bottom = top + HEIGHT;
    let mut svg = Svg::new(width, bottom + 22.0, "use of the device's addresses");
    legend.draw(&mut svg);
    let columns = strip.parts.len().min(((right - left) / COLUMN_MIN) as usize).max(1);
    let step = (right - left) / columns as f64;
    for column in 0..columns {
        let from = column * strip.parts.len() / columns;
        let to = (column + 1) * strip.parts.len() / columns;
        let sums: Vec<f64> = (0..strip.uses.len())
            .map(|each| strip.parts[from..to].iter().filter_map(|part| part.get(each)).sum())
            .collect();
        let all: f64 = sums.iter().sum();
        let mut y = bottom;
        for ((name, class), bytes) in strip.uses.iter().zip(&sums).filter(|(_, bytes)| **bytes > 0.0) {
            let height = HEIGHT * bytes / all;
            y -= height;
            let hint = format!("{name}: {:.0} %", 100.0 * bytes / all);
            svg.rect((left + column as f64 * step, y), (step, height), class, &hint);
        }
    }
    let size = strip.size.max(1) as f64;
    let most = if width >= BROAD { 8 } else { 4 };
    for tick in linear_ticks(size, most).into_iter().filter(|tick| *tick <= size * (1.0 + 1e-9)) {
        let x = left + (right - left) * tick / size;
        let class = if tick == 0.0 { "tick" } else { "tick mid" };
        let text = if tick == 0.0 { "0".to_owned() } else { format!("{}B", short(tick)) };
        if x <= right - 16.0 {
            svg.text(x, bottom + 16.0, class, &text);
        }
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_divided_by_its_bytes_and_a_device_of_none_is_drawn() {
        let uses = [("live", "read"), ("dead", "good")];
        let drawn = |size, parts: &[Vec<f64>]| strip(&Strip { size, uses: &uses, parts });
        let svg = drawn(4096, &[vec![3.0, 1.0], vec![0.0, 4.0]]);
        assert!(
            svg.contains("live: 75 %") && svg.contains("dead: 25 %") && svg.contains("dead: 100 %"),
            "{svg}"
        );
        assert!(!svg.contains("live: 0 %"));
        for parts in [vec![], vec![vec![]; 2000], vec![vec![1.0, 0.0]; 2000]] {
            let svg = drawn(0, &parts);
            assert!(svg.ends_with("</svg>") && !svg.contains("NaN"), "{svg}");
        }
    }
}

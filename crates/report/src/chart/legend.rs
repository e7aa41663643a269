//! Names of lines, above the chart that has them.

use super::svg::{Svg, TEXT, fit, width_of};

/// Height of a row.
const LEADING: f64 = 17.0;
const SAMPLE: f64 = 20.0;
const GAP: f64 = 16.0;

/// An entry: what the sample looks like, and the name.
pub(super) struct LegendEntry<'a> {
    /// CSS classes of a line, or of a box.
    pub(super) class: String,
    /// The sample is a box.
    pub(super) area: bool,
    pub(super) label: &'a str,
}

/// A legend laid out for a width.
pub(super) struct Legend<'a> {
    places: Vec<(f64, f64, String, &'a LegendEntry<'a>)>,
    height: f64,
}

impl<'a> Legend<'a> {
    /// Entries from left to right from `left` on, in as many rows as they need until `right`.
    pub(super) fn new(entries: &'a [LegendEntry<'a>], left: f64, right: f64) -> Self {
        let (mut x, mut row) = (left, 0.0);
        let mut places = Vec::with_capacity(entries.len());
        for entry in entries {
            let label = fit(entry.label, right - left - SAMPLE - 6.0);
            let width = SAMPLE + 6.0 + width_of(&label);
            if x > left && x + width > right {
                (x, row) = (left, row + 1.0);
            }
            places.push((x, row * LEADING, label, entry));
            x += width + GAP;
        }
        let height = if entries.is_empty() { 0.0 } else { (row + 1.0) * LEADING + 4.0 };
        Self { places, height }
    }

    /// Height that it takes at the top.
    pub(super) fn height(&self) -> f64 {
        self.height
    }

    pub(super) fn draw(&self, svg: &mut Svg) {
        for (x, y, label, entry) in &self.places {
            let middle = y + LEADING / 2.0;
            if entry.area {
                svg.rect((*x, middle - 5.0), (SAMPLE, 10.0), &format!("{} sample", entry.class), "");
            } else {
                svg.line((*x, middle), (x + SAMPLE, middle), &entry.class);
            }
            svg.text(x + SAMPLE + 6.0, middle + TEXT * 0.36, "name", label);
        }
    }
}

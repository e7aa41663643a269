//! Horizontal bars: names on the left, figures at the ends.

use super::axis::{linear_ticks, short};
use super::svg::{CHARACTER, Svg, TEXT, fit, width_of};
use super::{COLUMN, Tone};

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name, cut to about 24 characters.
    pub label: String,
    /// Length.
    pub value: f64,
    /// Colour.
    pub tone: Tone,
}

const ROW: f64 = 22.0;
const THICK: f64 = 14.0;
/// Between reads and writes.
const GROUP_GAP: f64 = 10.0;
const LABELS_MAX: f64 = 24.0 * CHARACTER;
/// Room for the figure of the longest bar.
const FIGURES: f64 = 6.0 * CHARACTER;

/// A chart of `bars` from top to bottom, on an axis that starts at 0.
pub fn bars(what: &str, bars: &[Bar]) -> String {
    let groups = bars.windows(2).filter(|pair| pair[0].tone != pair[1].tone).count();
    let height = bars.len() as f64 * ROW + groups as f64 * GROUP_GAP + 24.0;
    let mut svg = Svg::new(COLUMN, height, &format!("{what} per test"));
    let labels = bars.iter().map(|bar| width_of(&bar.label)).fold(0.0, f64::max).min(LABELS_MAX);
    let (left, right) = (labels + 6.0, COLUMN - FIGURES - 6.0);
    let ticks = linear_ticks(bars.iter().map(|bar| bar.value).fold(0.0, f64::max), 4);
    let end = ticks[ticks.len() - 1];
    let x = |value: f64| left + (right - left) * (value / end).clamp(0.0, 1.0);
    let bottom = height - 20.0;
    for &tick in &ticks {
        svg.line((x(tick), 0.0), (x(tick), bottom), "grid");
        svg.text(x(tick), height - 6.0, "tick mid", &short(tick));
    }
    let mut y = 0.0;
    for (index, bar) in bars.iter().enumerate() {
        if index > 0 && bars[index - 1].tone != bar.tone {
            y += GROUP_GAP;
        }
        let middle = y + ROW / 2.0 + TEXT * 0.36;
        let figure = short(bar.value);
        let hint = format!("{}: {figure} {what}", bar.label);
        svg.text(labels, middle, "name end", &fit(&bar.label, labels));
        let width = (x(bar.value) - left).max(1.0);
        svg.bar((left, y + (ROW - THICK) / 2.0), width, THICK, bar.tone.class(), &hint);
        svg.text(left + width + 5.0, middle, "figure", &figure);
        y += ROW;
    }
    svg.finish("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_and_its_figure_fit_and_names_are_escaped() {
        let bar = |label: &str, value, tone| Bar { label: label.into(), value, tone };
        let svg = bars("IOPS", &[bar("<4K>", 5e5, Tone::Read), bar("w", f64::NAN, Tone::Write)]);
        assert!(svg.contains("&lt;4K&gt;") && !svg.contains("<4K>"));
        assert!(!svg.contains("NaN"), "{svg}");
        assert!(svg.contains(r#"class="figure">500k"#));
    }
}

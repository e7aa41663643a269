//! Charts as inline SVG, drawn here: no script, no external resource, the same on paper.
//!
//! Every chart is [`WIDTH`] units wide and scales with its column, so a unit is a pixel on a narrow phone and a little more
//! on a desk: text stays readable at both. Colours are CSS classes (`read`, `write`, `s0` … `s5`), defined by the page
//! once for light and once for dark. Series differ by dash pattern too, not by colour alone, and carry their names
//! beside them instead of in a legend.

mod axis;
mod bars;
mod curves;
mod time;

pub use axis::{linear_ticks, log_ticks, short, short_ns};
pub use bars::{Bar, bars};
pub use curves::{Curve, SERIES_MAX, latency_curves};
pub use time::over_time;

use std::fmt::Write as _;

/// Width of every chart, in units of its view box.
pub const WIDTH: f64 = 420.0;
/// Height of text, units.
const TEXT: f64 = 12.0;
/// Mean width of a character of that height, units: a little more than any usual sans-serif needs.
const CHARACTER: f64 = 6.6;

/// Which direction something shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

impl Tone {
    /// The CSS class.
    pub fn class(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// `text` as it may stand in an element or in a quoted attribute, of HTML and of SVG.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Not allowed in either, and of no use to a reader.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// An SVG under construction.
struct Svg(String);

impl Svg {
    /// `label` is what a screen reader says.
    fn new(height: f64, label: &str) -> Self {
        let label = escape(label);
        Self(format!(
            r#"<svg viewBox="0 0 {WIDTH:.0} {height:.0}" role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg">"#
        ))
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        let _ = write!(self.0, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#);
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(self.0, r#"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" class="{class}"/>"#);
    }

    /// A bar from the left, its right corners rounded; `hint` shows on hovering.
    fn bar(&mut self, (x, y): (f64, f64), width: f64, height: f64, class: &str, hint: &str) {
        let r = 2.5_f64.min(width / 2.0);
        let (right, bottom) = (x + width - r, y + height - r);
        let hint = escape(hint);
        let _ = write!(
            self.0,
            r#"<path d="M{x:.1} {y:.1}H{right:.1}q{r:.1} 0 {r:.1} {r:.1}V{bottom:.1}q0 {r:.1} -{r:.1} {r:.1}H{x:.1}z" class="{class}"><title>{hint}</title></path>"#
        );
    }

    fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, class: &str, hint: &str) {
        let mut path = String::new();
        for (index, (x, y)) in points.enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        let hint = escape(hint);
        let _ = write!(self.0, r#"<path d="{path}" class="{class}"><title>{hint}</title></path>"#);
    }

    fn finish(mut self) -> String {
        self.0.push_str("</svg>");
        self.0
    }
}

/// `text`, cut to what fits into `width` units.
fn fit(text: &str, width: f64) -> String {
    let most = (width / CHARACTER) as usize;
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_opens_markup_survives_escaping() {
        assert_eq!(escape(r#"<b a="1" c='2'>&"#), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;");
        assert_eq!(escape("a\u{0}b\u{1b}"), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn long_labels_are_cut_with_an_ellipsis() {
        assert_eq!(fit("read 4K", 66.0), "read 4K");
        assert_eq!(fit("a very long label", 66.0), "a very lo…");
    }
}

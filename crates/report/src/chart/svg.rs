//! The elements that charts are made of.

use std::fmt::Write as _;

use crate::figure::glued;

/// Height of text, units.
pub(super) const TEXT: f64 = 12.0;
/// Mean width of a character of that height, units: a little more than any usual sans-serif needs.
pub(super) const CHARACTER: f64 = 7.0;

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

/// A drawing under construction.
pub(super) struct Svg {
    width: f64,
    height: f64,
    label: String,
    body: String,
}

impl Svg {
    /// `label` is what a screen reader says.
    pub(super) fn new(width: f64, height: f64, label: &str) -> Self {
        Self { width, height, label: escape(label), body: String::new() }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        let _ = write!(self.body, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#);
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(self.body, r#"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" class="{class}"/>"#);
    }

    /// A bar from the left, its right corners rounded; `hint` shows on hovering.
    pub(super) fn bar(&mut self, (x, y): (f64, f64), width: f64, height: f64, class: &str, hint: &str) {
        let r = 2.5_f64.min(width / 2.0);
        let (right, bottom) = (x + width - r, y + height - r);
        let hint = escape(hint);
        let _ = write!(
            self.body,
            r#"<path d="M{x:.1} {y:.1}H{right:.1}q{r:.1} 0 {r:.1} {r:.1}V{bottom:.1}q0 {r:.1} -{r:.1} {r:.1}H{x:.1}z" class="{class}"><title>{hint}</title></path>"#
        );
    }

    /// A box with rounded corners; `hint` shows on hovering, if there is any.
    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, hint: &str) {
        let (width, height) = (width.max(0.0), height.max(0.0));
        let _ = write!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" class="{class}""#
        );
        match hint {
            "" => self.body.push_str("/>"),
            hint => {
                let _ = write!(self.body, "><title>{}</title></rect>", escape(hint));
            }
        }
    }

    /// A line through `points`, interrupted where one is no number.
    pub(super) fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, class: &str, hint: &str) {
        let mut path = String::new();
        let mut pen_down = false;
        for (x, y) in points {
            if !x.is_finite() || !y.is_finite() {
                pen_down = false;
                continue;
            }
            let _ = write!(path, "{}{x:.1} {y:.1}", if pen_down { 'L' } else { 'M' });
            pen_down = true;
        }
        let hint = escape(hint);
        let _ = write!(self.body, r#"<path d="{path}" class="{class}"><title>{hint}</title></path>"#);
    }

    /// A closed shape.
    pub(super) fn polygon(&mut self, points: &[(f64, f64)], class: &str, hint: &str) {
        let corners: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let (path, hint) = (corners.join("L"), escape(hint));
        let _ = write!(self.body, r#"<path d="M{path}z" class="{class}"><title>{hint}</title></path>"#);
    }

    /// The element, of the CSS class `class`, or of none.
    pub(super) fn finish(self, class: &str) -> String {
        let Self { width, height, label, body } = self;
        let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
        format!(
            r#"<svg{class} viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg">{body}</svg>"#
        )
    }
}

/// Returns the maximum width of `text`, units.
pub(super) fn width_of(text: &str) -> f64 {
    text.chars().map(advance).sum::<f64>() * TEXT
}

/// Width of a character, in heights of text: those of DejaVu Sans, which is wider than what most systems have.
fn advance(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | 'I' => 0.30,
        ' ' | '\u{a0}' | '.' | ',' | ':' | ';' | '/' | '|' | '·' | '\'' | '-' => 0.37,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '!' => 0.42,
        'm' | 'M' | 'W' | '%' | '…' | '@' => 1.0,
        'w' | '+' | '−' | '±' | '×' | '∞' | 'O' | 'Q' => 0.84,
        '0'..='9' | 'a'..='z' | '–' | '_' => 0.64,
        'A'..='Z' => 0.75,
        // Wide as an ideograph.
        _ => 1.0,
    }
}

/// `text`, cut in its middle to what fits into `width` units: names often differ at their ends.
pub(super) fn fit(text: &str, width: f64) -> String {
    if width_of(text) <= width {
        return text.into();
    }
    let room = width - width_of("…");
    let (mut used, mut head, mut tail) = (0.0, String::new(), Vec::new());
    let (mut front, mut back) = (text.chars(), text.chars().rev());
    loop {
        // Two from the front for each one from the back.
        for turn in 0..3 {
            let next = if turn < 2 { front.next() } else { back.next() };
            let Some(character) = next else { return text.into() };
            used += advance(character) * TEXT;
            if used > room {
                return head.trim_end().chars().chain(['…']).chain(tail.into_iter().rev()).collect();
            }
            if turn < 2 { head.push(character) } else { tail.push(character) }
        }
    }
}

/// `text` in lines of at most `width` units, broken between words; what does not fit into `most` lines is cut.
pub(super) fn wrap(text: &str, width: f64, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in glued(text).split(' ').filter(|word| !word.is_empty()) {
        let line = lines.last_mut().expect("there is always one");
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if line.is_empty() || width_of(&longer) <= width || lines.len() == most {
            *lines.last_mut().expect("there is always one") = longer;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.iter().map(|line| fit(line, width)).collect()
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
        assert_eq!(fit("read 4K", 10.0 * CHARACTER), "read 4K");
        let cut = fit("randrw 8 KiB QD16 (write)", 18.0 * CHARACTER);
        assert!(cut.starts_with("randrw 8") && cut.contains('…') && cut.ends_with("te)"), "{cut}");
        for width in 0..200 {
            let cut = fit("Wide MMMM and narrow iiii", f64::from(width));
            assert!(cut == "…" || width_of(&cut) <= f64::from(width), "{cut} in {width}");
        }
    }

    #[test]
    fn text_is_broken_between_words_and_cut_at_the_last_line() {
        assert_eq!(wrap("one two three four", 8.0 * CHARACTER, 2), ["one two", "thre…ur"]);
        assert_eq!(wrap("", 10.0, 2), [""]);
    }

    #[test]
    fn a_line_is_interrupted_where_there_is_no_value() {
        let mut svg = Svg::new(10.0, 10.0, "x");
        svg.polyline([(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 4.0)].into_iter(), "", "");
        assert!(svg.finish("").contains("M0.0 1.0L1.0 2.0M3.0 4.0"));
    }
}

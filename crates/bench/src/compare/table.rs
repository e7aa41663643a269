//! A comparison for eyes, on a terminal.

use std::fmt;

use lunway_report::figure;

use super::comparison::Comparison;
use super::decide::{Contrast, Verdict};

/// A name longer than this is not put at the head of a column.
const HEADING_MAX: usize = 12;

impl Comparison {
    /// Columns that people expect, a line for each row and candidate.
    pub(super) fn lines(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let several = self.plan.arms.len() > 2;
        let [a, b] = [0, 1].map(|arm| self.heading(arm));
        let headings: Vec<String> = if several {
            ["test", "candidate", "control", "candidate's", "deviance %"].map(String::from).to_vec()
        } else {
            vec!["test".into(), a, b, "diff".into(), "diff %".into()]
        };
        let headings = headings.into_iter().chain(["95 % interval", "A/A ±%", "verdict"].map(String::from));
        let line = |contrast: &Contrast| {
            let row = &self.plan.rows[contrast.row];
            let name =
                if row.unit == "IOPS" { row.name.clone() } else { format!("{} ({})", row.name, row.unit) };
            let mut cells = vec![name];
            if several {
                cells.push(self.plan.arms[contrast.arm].clone());
            }
            cells.extend([figure(contrast.a), figure(contrast.b)]);
            if !several {
                cells.push(figure(contrast.b - contrast.a));
            }
            let again = self.again[contrast.row].resolution_pct();
            cells.extend([
                signed(contrast.diff_pct),
                interval(contrast),
                again.map_or("–".into(), |width| format!("{width:.2}")),
            ]);
            cells.push(verdict(contrast));
            cells
        };
        (headings.collect(), self.contrasts.iter().map(line).collect())
    }

    /// The name of an arm, or a letter where it is too long for a column.
    pub(super) fn heading(&self, arm: usize) -> String {
        let short = self.plan.arms.iter().all(|name| name.chars().count() <= HEADING_MAX);
        let distinct = self.plan.arms.first() != self.plan.arms.get(1);
        if short && distinct { self.plan.arms[arm].clone() } else { letter(arm) }
    }

    /// Explanation of the columns.
    pub(super) fn caption(&self) -> String {
        let [a, b] = [0, 1].map(|arm| self.heading(arm));
        let against = if self.plan.arms.len() > 2 {
            "Deviance % is each candidate against the control, the first one".to_owned()
        } else {
            format!("Diff % is {b} against {a}, in per cent of {a}")
        };
        format!(
            "Figures: medians of the runs, IOPS if not said otherwise. Margin: ±{} %.\n{against} (Hodges–Lehmann over pairs).\n\
             Intervals hold for all rounds together. A/A: the smallest difference that this set-up can detect.",
            self.plan.margin_percent
        )
    }

    /// Result of the comparison, in a sentence.
    pub fn sentence(&self) -> String {
        let count = |verdict| self.count(verdict);
        let all = self.contrasts.len();
        let of = match (self.plan.arms.len(), &self.contrasts[..]) {
            (2, [only]) => {
                return format!(
                    "{} {} {}{}",
                    self.heading(1),
                    match only.verdict {
                        Verdict::Faster | Verdict::Slower => format!("is {} than", only.verdict.name()),
                        Verdict::NoMeaningfulDifference => "does not meaningfully differ from".into(),
                        Verdict::CannotTell => "may or may not differ from".into(),
                    },
                    self.heading(0),
                    only.interval_pct.map_or(".".into(), |(low, high)| format!(
                        ": {} % ({} … {}).",
                        signed(only.diff_pct),
                        signed(low),
                        signed(high)
                    ))
                );
            }
            (2, _) => format!("{} against {}", self.heading(1), self.heading(0)),
            _ => "Against the control".into(),
        };
        format!(
            "{of}: of {all} rows {} faster, {} slower, {} without a meaningful difference, {} undecided.",
            count(Verdict::Faster),
            count(Verdict::Slower),
            count(Verdict::NoMeaningfulDifference),
            count(Verdict::CannotTell)
        )
    }
}

impl fmt::Display for Comparison {
    /// The table, what it means, and whether to trust it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.heading(0) != self.plan.arms[0] {
            for (arm, name) in self.plan.arms.iter().enumerate() {
                writeln!(f, "{}  {name}", letter(arm))?;
            }
            writeln!(f)?;
        }
        let (headings, lines) = self.lines();
        let widths: Vec<usize> = (0..headings.len())
            .map(|column| {
                let cells = lines.iter().map(|line| line[column].chars().count());
                cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let words = if self.plan.arms.len() > 2 { 2 } else { 1 };
        for line in [&headings].into_iter().chain(&lines) {
            for (column, cell) in line.iter().enumerate() {
                let (width, last) = (widths[column], column + 1 == line.len());
                match column {
                    0 => write!(f, "{cell:width$}")?,
                    _ if last => write!(f, "  {cell}")?,
                    column if column < words => write!(f, "  {cell:width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        writeln!(f, "\n{}", self.caption())?;
        if !self.complete {
            writeln!(f, "Interrupted: results of the pairs measured so far.")?;
        }
        writeln!(f, "\n{}", self.sentence())?;
        match &self.trust.reasons[..] {
            [] if self.trust.notes.is_empty() => {
                write!(f, "The control does not differ from itself: nothing contradicts this table.")?;
            }
            [] => write!(f, "The control does not significantly differ from itself, but note:")?,
            reasons => {
                write!(f, "Do not act on this table:")?;
                for reason in reasons {
                    write!(f, "\n- {reason}")?;
                }
            }
        }
        for note in &self.trust.notes {
            write!(f, "\n{note}")?;
        }
        Ok(())
    }
}

/// A, B, C …
fn letter(arm: usize) -> String {
    u8::try_from(arm)
        .ok()
        .filter(|arm| *arm < 26)
        .map_or(format!("#{arm}"), |arm| char::from(b'A' + arm).to_string())
}

fn signed(percent: f64) -> String {
    if percent.is_finite() { format!("{percent:+.2}") } else { "–".into() }
}

fn interval(contrast: &Contrast) -> String {
    contrast.interval_pct.map_or("–".into(), |(low, high)| format!("{} … {}", signed(low), signed(high)))
}

fn verdict(contrast: &Contrast) -> String {
    match contrast.more_pairs {
        Some(more) => format!("{} (needs about {more} more pairs)", contrast.verdict.name()),
        None => contrast.verdict.name().into(),
    }
}

//! A difference as a document.

use serde_json::{Value, json};

use crate::chart::{Estimate, forest};
use crate::document::{
    Block, Card, Cell, Column, Conclusion, Document, Grid, Mark, Measure, Row, Section, VerdictTone,
};
use crate::figure::figure;

use super::{ChangeVerdict, Difference};

impl Difference {
    /// Returns the results in sentences.
    pub fn verdicts(&self) -> Vec<Conclusion> {
        let margin = format!("±{} %", self.margin_percent);
        let mut verdicts = Vec::new();
        for (verdict, tone) in [("faster", VerdictTone::Good), ("slower", VerdictTone::Bad)] {
            let rows: Vec<String> = self
                .rows
                .iter()
                .filter(|row| row.verdict.name() == verdict)
                .map(|row| format!("{}, {} ({} %)", row.name, row.readable().1, signed(row.percent)))
                .collect();
            if !rows.is_empty() {
                verdicts.push(Conclusion {
                    text: format!("The new one is {verdict} in {}.", listed(&rows)),
                    tone,
                });
            }
        }
        let rows = |count: usize| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
        match self.count(ChangeVerdict::Same.name()) {
            0 => {}
            count => verdicts.push(Conclusion {
                text: format!("No meaningful difference in {}: within {margin}.", rows(count)),
                tone: VerdictTone::Even,
            }),
        }
        let untold: Vec<_> = self.rows.iter().filter_map(|row| row.verdict.reason()).collect();
        let mut reasons = untold.clone();
        reasons.sort_unstable();
        reasons.dedup();
        for reason in reasons {
            let count = untold.iter().filter(|other| **other == reason).count();
            let text = format!("Cannot tell in {}: {reason}.", rows(count));
            verdicts.push(Conclusion { text, tone: VerdictTone::Unknown });
        }
        if self.rows.is_empty() {
            let text = "The two have no measure in common: nothing can be compared.".into();
            verdicts.push(Conclusion { text, tone: VerdictTone::Unknown });
        }
        verdicts
    }

    /// A page: `old` and `new` name the two.
    pub fn document(&self, old: &str, new: &str) -> Document {
        let mut document = Document::new("diff", "What changed", format!("old: {old} · new: {new}"));
        document.verdicts = self.verdicts();
        let sections = [self.chart(), self.table(), self.missing(), self.systems()];
        document.sections = sections.into_iter().flatten().collect();
        document.notes = vec![
            "Difference: Hodges–Lehmann estimate of the ratio of new to old, with its 95 % interval where each side has samples enough. \
             Faster and slower hold after Holm's correction over all rows. What else changed between the two runs, as the time of day, \
             is within the difference."
                .into(),
        ];
        document.results = self.to_json();
        document
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let row = |row: &super::Change| {
            json!({
                "name": row.name, "unit": row.unit, "better": row.better.name(), "old": row.old, "new": row.new,
                "old_samples": row.samples.0, "new_samples": row.samples.1, "diff_pct": row.percent,
                "ci_low_pct": row.interval.map(|interval| interval.0), "ci_high_pct": row.interval.map(|interval| interval.1),
                "verdict": row.verdict.name(), "reason": row.verdict.reason(),
            })
        };
        let named = |measures: &[Measure]| -> Vec<Value> {
            measures.iter().map(|measure| json!({ "name": measure.name, "unit": measure.unit })).collect()
        };
        let fact = |(name, old, new): &(String, Option<String>, Option<String>)| json!({ "name": name, "old": old, "new": new });
        json!({
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "only_old": named(&self.only_old),
            "only_new": named(&self.only_new),
            "environment": self.environment.iter().map(fact).collect::<Vec<_>>(),
            "margin_pct": self.margin_percent,
        })
    }

    fn chart(&self) -> Option<Section> {
        let labels: Vec<String> =
            self.rows.iter().map(|row| format!("{}, {}", row.name, row.readable().1)).collect();
        let rows = self.rows.iter().zip(&labels).filter_map(|(row, label)| {
            let (low, high) = row.interval?;
            let (verdict, tone) = (row.verdict.name(), row.verdict.tone());
            Some(Estimate { label, percent: row.percent, low, high, verdict, tone })
        });
        let estimates: Vec<Estimate<'_>> = rows.collect();
        let svg = forest("difference of new against old, %", self.margin_percent, &estimates);
        let detail = "with 95 % interval; the band is what does not matter".into();
        let card = Card { title: "New against old".into(), detail, svg, wide: true };
        (!estimates.is_empty())
            .then(|| Section { blocks: vec![Block::Chart(card)], ..Section::new("Differences") })
    }

    fn table(&self) -> Option<Section> {
        let mut grid = Grid::new(vec![
            Column::words("Measure"),
            Column::words("Unit").wide_only(),
            Column::figures("Old", ""),
            Column::figures("New", ""),
            Column::figures("Diff", "%"),
            Column::figures("Interval", "%").wide_only(),
            Column::words("Verdict"),
        ]);
        grid.rows = self
            .rows
            .iter()
            .map(|row| {
                let interval = row
                    .interval
                    .map_or("–".into(), |(low, high)| format!("{} … {}", signed(low), signed(high)));
                let (factor, unit) = row.readable();
                Row::new([
                    row.name.as_str().into(),
                    unit.into(),
                    figure(row.old * factor).into(),
                    figure(row.new * factor).into(),
                    signed(row.percent).into(),
                    interval.into(),
                    Cell::marked(row.verdict.name(), Mark::Verdict(row.verdict.tone())),
                ])
            })
            .collect();
        grid.caption = "Old and New: medians of the samples. Diff: of new against old.".into();
        (!grid.rows.is_empty())
            .then(|| Section { blocks: vec![Block::Table(grid)], ..Section::new("Measures of both") })
    }

    fn missing(&self) -> Option<Section> {
        let mut grid =
            Grid::new(vec![Column::words("Measure"), Column::words("Unit"), Column::words("Only in")]);
        for (measures, side) in [(&self.only_old, "old"), (&self.only_new, "new")] {
            let rows = measures
                .iter()
                .map(|m| Row::new([m.name.as_str().into(), m.unit.as_str().into(), side.into()]));
            grid.rows.extend(rows);
        }
        (!grid.rows.is_empty())
            .then(|| Section { blocks: vec![Block::Table(grid)], ..Section::new("Measures of one") })
    }

    fn systems(&self) -> Option<Section> {
        let mut grid = Grid::new(vec![Column::words("Fact"), Column::words("Old"), Column::words("New")]);
        grid.rows = self
            .environment
            .iter()
            .map(|(name, old, new)| {
                let text = |value: &Option<String>| Cell::from(value.as_deref().unwrap_or("–"));
                Row::new([name.as_str().into(), text(old), text(new)])
            })
            .collect();
        let heading = "What differs between these systems";
        (!grid.rows.is_empty()).then(|| Section { blocks: vec![Block::Table(grid)], ..Section::new(heading) })
    }
}

/// A few names, or how many more there are.
fn listed(rows: &[String]) -> String {
    const MOST: usize = 4;
    match rows.len() {
        ..=MOST => rows.join(", "),
        more => format!("{} and {} more rows", rows[..MOST - 1].join(", "), more - (MOST - 1)),
    }
}

/// Per cent with two decimals and a sign.
pub(crate) fn signed(percent: f64) -> String {
    if percent.is_finite() { format!("{percent:+.2}") } else { "–".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Better, Fact};
    use crate::page::html;
    use crate::saved::Saved;

    #[test]
    fn a_verdict_has_the_unit_of_its_row() {
        let run = |middle: f64| -> Saved {
            let mut document = Document::new("bench", "t", "s");
            document.measures = vec![Measure {
                name: "read 4K".into(),
                unit: "ms".into(),
                better: Better::Lower,
                samples: (0..5).map(|n| middle * (1.0 + f64::from(n) / 1000.0)).collect(),
            }];
            document.into()
        };
        let difference = Difference::of(&run(0.01), &run(0.02), 3.0);
        let page = html(&difference.document("old", "new"));
        for expected in ["The new one is slower in read 4K, µs (+100", ">µs</td>", ">10.0", ">20.0"] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert_eq!(difference.to_json()["rows"][0]["unit"], "ms");
    }

    fn saved(samples: &[f64], kernel: &str) -> Saved {
        let mut document = Document::new("bench", "t", "s");
        let measure = |name: &str, samples: &[f64]| Measure {
            name: name.into(),
            unit: "IOPS".into(),
            better: Better::Higher,
            samples: samples.to_vec(),
        };
        document.measures =
            vec![measure("read 4K", samples), measure("once", &[1.0]), measure(kernel, &[1.0])];
        document.environment = vec![Fact::new("Kernel", kernel)];
        document.into()
    }

    #[test]
    fn the_page_says_what_changed_and_what_could_not_be_compared() {
        let (old, new) = (
            saved(&[100.0, 101.0, 99.0, 100.5, 99.5], "6.1"),
            saved(&[150.0, 151.0, 149.0, 150.5, 149.5], "6.2"),
        );
        let difference = Difference::of(&old, &new, 3.0);
        let page = html(&difference.document("old.html", "new.json"));
        for expected in [
            "The new one is faster in read 4K, IOPS (+50",
            "Cannot tell in 1 row: too few repeats",
            "What differs between these systems",
            "<td class=\"words\">6.1</td><td class=\"words\">6.2</td>",
            "Measures of one",
            "class=\"broad\"",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
        assert_eq!(difference.to_json()["rows"][0]["verdict"], "faster");
        let nothing = Difference::of(&saved(&[], "a"), &Document::new("net", "", "").into(), 3.0);
        assert!(html(&nothing.document("a", "b")).contains("no measure in common"));
    }
}

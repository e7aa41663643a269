//! A comparison as a page.

use lunway_report::chart::{Estimate, forest};
use lunway_report::{
    Block, Card, Cell, Column, Conclusion, Document, Grid, Mark, Measure, Row, Section, Tile, VerdictTone,
};

use serde_json::Value;

use super::comparison::Comparison;
use super::decide::Verdict;

/// The document for programs: its facts, notes and measures, and the [`Comparison::to_json`] that it holds, side by
/// side in one object.
pub fn json(document: &Document) -> Value {
    let mut all = lunway_report::data(document);
    if let (Value::Object(all), Value::Object(results)) = (&mut all, document.results.clone()) {
        all.remove("results");
        all.extend(results);
    }
    all
}

impl Comparison {
    /// A page with the table, the intervals as a forest plot, and every run in its data.
    pub fn document(&self, title: &str, subject: &str) -> Document {
        let mut document = Document::new("compare", title, subject);
        document.verdicts = vec![Conclusion { text: self.sentence(), tone: self.tone() }];
        document.tiles = self.tiles();
        if !self.complete {
            document.warnings.push("Interrupted: results of the pairs measured so far.".into());
        }
        if !self.trust.ok() {
            document.warnings.push("Do not act on this table; the reasons follow.".into());
            document.warnings.extend(self.trust.reasons.iter().cloned());
        }
        document.sections = vec![self.differences(), self.itself()];
        document.notes.clone_from(&self.trust.notes);
        document.notes.push(format!(
            "{} pairs a round, up to {} rounds, in randomised blocks with the control twice in each; {} of warm-up dropped; seed {}.",
            self.plan.pairs, self.plan.rounds, self.plan.warm_up, self.plan.seed
        ));
        document.measures = self.measures();
        document.results = self.to_json();
        document
    }

    fn tone(&self) -> VerdictTone {
        let has = |verdict| self.count(verdict) > 0;
        match () {
            () if !self.trust.ok() => VerdictTone::Unknown,
            () if has(Verdict::Slower) => VerdictTone::Bad,
            () if has(Verdict::Faster) => VerdictTone::Good,
            () if has(Verdict::CannotTell) => VerdictTone::Unknown,
            () => VerdictTone::Even,
        }
    }

    fn tiles(&self) -> Vec<Tile> {
        let tile = |what: &str, value: String, unit: &str, of: String| Tile {
            what: what.into(),
            value,
            unit: unit.into(),
            of,
        };
        let largest = self.contrasts.iter().filter(|contrast| contrast.diff_pct.is_finite());
        let largest = largest.max_by(|a, b| a.diff_pct.abs().total_cmp(&b.diff_pct.abs()));
        let sees = self.again.iter().filter_map(|contrast| Some((contrast.resolution_pct()?, contrast.row)));
        let sees = sees.max_by(|a, b| a.0.total_cmp(&b.0));
        let largest = largest.map(|contrast| {
            let of = self.plan.rows[contrast.row].name.clone();
            tile("Largest difference", format!("{:+.2}", contrast.diff_pct), "%", of)
        });
        let sees = sees.map(|(width, row)| {
            tile("Smallest that can be seen", format!("{width:.2}"), "%", self.plan.rows[row].name.clone())
        });
        largest.into_iter().chain(sees).collect()
    }

    fn differences(&self) -> Section {
        let (headings, lines) = self.lines();
        let words = if self.plan.arms.len() > 2 { 2 } else { 1 };
        let last = headings.len() - 1;
        let columns = headings.into_iter().enumerate().map(|(at, heading)| {
            // What a phone has no room for is in the chart below.
            let wide_only = ["diff", "95 % interval", "A/A ±%"].contains(&heading.as_str());
            let column =
                if at < words || at == last { Column::words(heading) } else { Column::figures(heading, "") };
            Column { wide_only, ..column }
        });
        let mut grid = Grid::new(columns.collect());
        for (contrast, line) in self.contrasts.iter().zip(lines) {
            let cells = line.into_iter().enumerate().map(|(at, text)| match at {
                at if at == last => Cell::marked(text, Mark::Verdict(contrast.verdict.tone())),
                _ => Cell::from(text),
            });
            grid.rows.push(Row::new(cells));
        }
        grid.caption = self.caption().replace('\n', " ");
        let labels: Vec<String> =
            self.contrasts.iter().map(|contrast| self.label(contrast.row, contrast.arm)).collect();
        let estimates = self.contrasts.iter().zip(&labels).map(|(contrast, label)| {
            let (low, high) = contrast.interval_pct.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
            let (verdict, tone) = (contrast.verdict.name(), contrast.verdict.tone());
            Estimate { label, percent: contrast.diff_pct, low, high, verdict, tone }
        });
        let estimates: Vec<Estimate<'_>> =
            estimates.filter(|estimate| estimate.percent.is_finite()).collect();
        let what = match self.plan.arms.len() {
            2 => format!("difference of {} against {}, %", self.heading(1), self.heading(0)),
            _ => "deviance from the control, %".into(),
        };
        let mut section = Section::new("Differences");
        section.blocks.push(Block::Table(grid));
        if !estimates.is_empty() {
            let card = Card {
                title: "Differences with their intervals".into(),
                detail: "95 %; the band is the margin".into(),
                svg: forest(&what, self.plan.margin_percent, &estimates),
                wide: true,
            };
            section.blocks.push(Block::Chart(card));
        }
        section
    }

    fn itself(&self) -> Section {
        let columns = [
            Column::words("Test"),
            Column::figures("Difference", "%"),
            Column::figures("95 % interval", "%"),
            Column::figures("p, Holm", "").wide_only(),
            Column::words("Verdict"),
        ];
        let mut grid = Grid::new(columns.to_vec());
        for contrast in &self.again {
            let interval =
                contrast.interval_pct.map_or("–".into(), |(low, high)| format!("{low:+.2} … {high:+.2}"));
            grid.rows.push(Row::new([
                self.plan.rows[contrast.row].name.as_str().into(),
                format!("{:+.2}", contrast.diff_pct).into(),
                interval.into(),
                format!("{:.3}", contrast.p_adjusted).into(),
                Cell::marked(contrast.verdict.name(), Mark::Verdict(contrast.verdict.tone())),
            ]));
        }
        let mut section = Section::new("The control against itself");
        section.prose.push("Both sides are the control, measured twice in every block. What differs here is the machine's doing.".into());
        section.blocks.push(Block::Table(grid));
        section
    }

    fn label(&self, row: usize, arm: usize) -> String {
        match self.plan.arms.len() {
            2 => self.plan.rows[row].name.clone(),
            _ => format!("{} · {}", self.plan.rows[row].name, self.heading(arm)),
        }
    }

    fn measures(&self) -> Vec<Measure> {
        let arms = || 0..self.plan.arms.len();
        let measure = |(row, arm): (usize, usize)| {
            let samples = self.runs.of(row, arm).iter().copied().filter(|figure| !figure.is_nan()).collect();
            let plan = &self.plan.rows[row];
            let name = format!("{} · {}", plan.name, self.plan.arms[arm]);
            Measure { name, unit: plan.unit.clone(), better: plan.better, samples }
        };
        (0..self.plan.rows.len()).flat_map(|row| arms().map(move |arm| (row, arm))).map(measure).collect()
    }
}

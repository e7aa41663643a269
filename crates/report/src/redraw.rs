//! A saved document, drawn again.

use std::time::UNIX_EPOCH;

use lunway_stats::{median, paired};

use crate::chart::{Bar, Tone, bars};
use crate::document::{Block, Card, Column, Document, Grid, Measure, Row, Section};
use crate::figure::figure;
use crate::saved::Saved;

/// Bars of one chart. More are a table's business.
const BARS_MAX: usize = 40;
/// Charts, one for each unit: of a hostile file only the first.
const UNITS_MAX: usize = 12;

impl Saved {
    /// A document of what is left of one: sentences, measures as a table and as bars, environment and data.
    pub fn document(&self) -> Document {
        let mut document = Document::new(self.kind, self.title.clone(), self.subject.clone());
        document.created = self.created.unwrap_or(UNIX_EPOCH);
        document.verdicts.clone_from(&self.verdicts);
        document.warnings.clone_from(&self.warnings);
        document.sections = vec![table(&self.measures)];
        document.sections.extend(charts(&self.measures));
        document.environment.clone_from(&self.environment);
        document.notes.clone_from(&self.notes);
        document.measures.clone_from(&self.measures);
        document.results = self.results.clone();
        document
    }
}

impl Measure {
    /// The median of the samples; NaN without any.
    pub fn median(&self) -> f64 {
        median(&self.samples).unwrap_or(f64::NAN)
    }

    /// Returns the 95 % confidence interval of the middle of the samples; `None` where they are too few to say.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let interval = paired::shift(&self.samples, 0.95)?.interval?;
        Some((interval.low, interval.high))
    }
}

fn table(measures: &[Measure]) -> Section {
    let mut grid = Grid::new(vec![
        Column::words("Measure"),
        Column::words("Unit"),
        Column::figures("Median", ""),
        Column::figures("Interval", "95 %").wide_only(),
        Column::figures("Samples", ""),
    ]);
    let rows = measures.iter().map(|measure| {
        let interval = measure.interval();
        let interval =
            interval.map_or("–".into(), |(low, high)| format!("{} … {}", figure(low), figure(high)));
        let samples = measure.samples.len().to_string();
        Row::new([
            measure.name.as_str().into(),
            measure.unit.as_str().into(),
            figure(measure.median()).into(),
            interval.into(),
            samples.into(),
        ])
    });
    grid.rows = rows.collect();
    grid.caption =
        "One run is one sample. Interval: of the Hodges–Lehmann estimate, if there are enough samples."
            .into();
    Section { blocks: vec![Block::Table(grid)], ..Section::new("Measures") }
}

/// A chart for each unit.
fn charts(measures: &[Measure]) -> Option<Section> {
    let mut units: Vec<&str> = Vec::new();
    for measure in measures {
        if units.len() < UNITS_MAX && !units.contains(&measure.unit.as_str()) {
            units.push(&measure.unit);
        }
    }
    let blocks: Vec<Block> = units
        .into_iter()
        .map(|unit| {
            let of_unit = measures.iter().filter(|measure| measure.unit == unit).take(BARS_MAX);
            let tone = |name: &str| if name.contains("write") { Tone::Write } else { Tone::Read };
            let rows = of_unit.map(|measure| Bar {
                label: measure.name.clone(),
                value: measure.median(),
                tone: tone(&measure.name),
            });
            let svg = bars(unit, &rows.collect::<Vec<_>>());
            Block::Chart(Card { title: unit.into(), detail: "median".into(), svg, wide: false })
        })
        .collect();
    (!blocks.is_empty()).then(|| Section { blocks, ..Section::new("Figures") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Better;
    use crate::page::{data, html};

    #[test]
    fn what_was_drawn_again_holds_the_same_data() {
        let mut document = Document::new("net", "t", "s");
        let measure = |name: &str, unit: &str, samples: &[f64]| Measure {
            name: name.into(),
            unit: unit.into(),
            better: Better::Higher,
            samples: samples.to_vec(),
        };
        document.measures = vec![
            measure("read", "MB/s", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
            measure("write", "MB/s", &[]),
            measure("read", "IOPS", &[9.0]),
        ];
        let again = Saved::parse(&html(&document)).unwrap().document();
        let (mut first, second) = (data(&document), data(&again));
        first["created"] = second["created"].clone();
        assert_eq!(first, second);
        let page = html(&again);
        assert_eq!(page.matches("<svg").count(), 2, "one for each unit");
        assert!(page.contains("<td>4.500</td>") && !page.contains("NaN"));
    }
}

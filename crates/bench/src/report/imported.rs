//! Results that were read back, as a page.

use lunway_report::chart::{Bar, Curve, SERIES_MAX, Tone, bars, percentile_curves};
use lunway_report::{Block, Cell, Document, Grid, Mark, Row, Section, figure, response_time};

use crate::fio::{Did, Imported};

use super::{THROUGHPUT, card, columns, measures};

/// A page of what another run left in fio's JSON, ours or fio's: a table, and the charts that its figures allow.
///
/// Measures have the names that [`document`](super::document) gives them: the job's, with the direction where it has
/// several.
pub fn imported(title: &str, subject: &str, results: &[Imported]) -> Document {
    let lines: Vec<Line<'_>> = results.iter().map(|result| Line::new(result, results)).collect();
    let mut document = Document::new("bench", title, subject);
    document.measures =
        lines.iter().flat_map(|line| measures(&line.name, line.result.iops, line.result.mean_ns)).collect();
    document.sections = vec![table(&lines)];
    document.sections.extend(charts(&lines));
    document
}

struct Line<'a> {
    name: String,
    result: &'a Imported,
}

impl<'a> Line<'a> {
    fn new(result: &'a Imported, all: &[Imported]) -> Self {
        let several =
            all.iter().any(|other| other.name == result.name && other.direction != result.direction);
        let name =
            if several { format!("{} ({})", result.name, result.direction) } else { result.name.clone() };
        Self { name, result }
    }

    fn tone(&self) -> Tone {
        if self.result.direction == Did::Write { Tone::Write } else { Tone::Read }
    }
}

fn table(lines: &[Line<'_>]) -> Section {
    let mut grid = Grid::new(columns());
    let ms = |ns: Option<f64>| ns.map_or("–".into(), |ns| response_time(ns / 1e6));
    for line in lines {
        let Imported { bytes_per_s, seconds, iops, mean_ns, .. } = *line.result;
        let percentile = |percent| ms(line.result.percentile_ns(percent).map(|ns| ns as f64));
        let mark = if line.tone() == Tone::Write { Mark::Write } else { Mark::Read };
        let cells: [Cell; 7] = [
            Cell::marked(&line.name, mark),
            ms(mean_ns).into(),
            percentile(99.0).into(),
            percentile(99.9).into(),
            figure(bytes_per_s * seconds / 1e6).into(),
            figure(iops).into(),
            figure(bytes_per_s / 1e6).into(),
        ];
        grid.rows.push(Row::new(cells));
    }
    grid.caption = "Response: mean per I/O. MB = 1,000,000 bytes.".into();
    Section { blocks: vec![Block::Table(grid)], ..Section::new("Results") }
}

fn charts(lines: &[Line<'_>]) -> Vec<Section> {
    if lines.is_empty() {
        return Vec::new();
    }
    let chart = |what: &str, of: &dyn Fn(&Imported) -> f64| {
        let bar =
            |line: &Line<'_>| Bar { label: line.name.clone(), value: of(line.result), tone: line.tone() };
        card(what, "", bars(what, &lines.iter().map(bar).collect::<Vec<_>>()))
    };
    let throughput =
        vec![chart("IOPS", &|result| result.iops), chart("MB/s", &|result| result.bytes_per_s / 1e6)];
    let known: Vec<(&str, Vec<(f64, f64)>)> = lines
        .iter()
        .map(|line| {
            let points = line.result.percentiles_ns.iter().map(|&(percent, ns)| (percent, ns as f64));
            (line.name.as_str(), points.collect())
        })
        .filter(|(_, points): &(_, Vec<_>)| points.len() > 2)
        .collect();
    let curves: Vec<Curve<'_>> = known.iter().map(|(label, points)| Curve { label, points }).collect();
    let response: Vec<Block> = curves
        .chunks(SERIES_MAX)
        .map(|part| card("Response time", "by percentile", percentile_curves("Response time", part)))
        .collect();
    let mut sections = vec![Section { blocks: throughput, ..Section::new(THROUGHPUT) }];
    if !response.is_empty() {
        sections.push(Section { blocks: response, ..Section::new("Response time") });
    }
    sections
}

#[cfg(test)]
mod tests {
    use lunway_report::html;

    use super::*;

    fn result(name: &str, direction: Did) -> Imported {
        Imported {
            name: name.into(),
            direction,
            ios: 1000,
            iops: 1000.0,
            bytes_per_s: 4_096_000.0,
            seconds: 1.0,
            mean_ns: Some(500_500.0),
            percentiles_ns: vec![(50.0, 400_000), (99.0, 900_000), (99.9, 1_000_000)],
        }
    }

    #[test]
    fn measures_are_named_as_those_of_a_run_of_ours() {
        let results = [result("a", Did::Read), result("b", Did::Read), result("b", Did::Write)];
        let document = imported("t", "s", &results);
        let names: Vec<_> = document.measures.iter().map(|m| format!("{} {}", m.name, m.unit)).collect();
        assert_eq!(
            names,
            ["a IOPS", "a ms", "b (read) IOPS", "b (read) ms", "b (write) IOPS", "b (write) ms"]
        );
        assert_eq!(document.measures[1].samples, [0.5005]);
        let page = html(&document);
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(!page.contains("NaN"));
    }
}

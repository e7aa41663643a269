//! Profiles as pages.

use lunway_report::chart::{
    Bar, Curve, Rounds, Tone, bars, percentile_curves, steady as steady_chart, zones as zones_chart,
};
use lunway_report::{
    Better, Block, Card, Cell, Column, Conclusion, Document, Grid, Mark, Measure, Row, Section, Tile,
    VerdictTone, figure, readable,
};

use crate::fio;
use crate::report::{self, percentiles};

use super::atto::size_name;
use super::h2bench::{INDEX_VERSION, Integrity, Range};
use super::{Atto, Crystal, Details, H2bench, ProfileResult, Steady};

impl ProfileResult {
    /// A page of the result: the profile's own tables and charts, then those of its jobs. The caller adds facts
    /// about the place.
    pub fn document(&self, title: &str, subject: &str) -> Document {
        // Of many rounds the last ones are what counts; the chart of rounds shows the others.
        let shown = match &self.details {
            Details::Steady(_) => &self.outcomes[self.outcomes.len().saturating_sub(super::steady::WINDOW)..],
            _ => &self.outcomes[..],
        };
        let mut document = report::document(title, subject, shown);
        // What the profile draws itself need not be drawn again, job by job.
        if matches!(self.details, Details::Atto(_) | Details::Steady(_)) {
            document.sections.retain(|section| section.heading != report::THROUGHPUT);
        }
        let own = self.sections();
        document.sections.splice(0..0, own);
        document.tiles.splice(0..0, self.tiles());
        document.verdicts.extend(self.verdicts());
        document.warnings.extend(self.failures());
        if !self.complete {
            document
                .warnings
                .push("The profile was interrupted: the results are valid for the completed part.".into());
        }
        document.measures = self.measures(document.measures);
        document.notes.extend(self.notes.iter().cloned());
        document.results = fio::to_json(&self.outcomes);
        if let Some(results) = document.results.as_object_mut() {
            results.insert("profile".into(), self.to_json());
        }
        document
    }

    /// The profile's own tables and charts, without those of its jobs.
    pub fn sections(&self) -> Vec<Section> {
        match &self.details {
            Details::Anvil(_) => Vec::new(),
            Details::H2bench(found) => h2bench(found),
            Details::Crystal(crystal) => vec![repeated(crystal)],
            Details::Atto(atto) => vec![sweep(atto)],
            Details::Steady(steady) => vec![rounds(steady)],
        }
    }

    fn tiles(&self) -> Vec<Tile> {
        let tile = |what: &str, value: f64, unit: &str, of: &str| Tile {
            what: what.into(),
            value: figure(value),
            unit: unit.into(),
            of: of.into(),
        };
        match &self.details {
            Details::H2bench(found) => {
                found.index().map(|index| tile("Index", index, "", INDEX_VERSION)).into_iter().collect()
            }
            Details::Steady(steady) => {
                let window = steady.window.as_ref().filter(|_| steady.converged());
                window
                    .map(|window| tile("Steady", window.average, "IOPS", "mean of five rounds"))
                    .into_iter()
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    fn verdicts(&self) -> Option<Conclusion> {
        let verdict = |text, tone| Some(Conclusion { text, tone });
        match &self.details {
            Details::H2bench(found) => {
                let integrity = found.integrity.as_ref()?;
                let tone = match integrity {
                    Integrity { faulty: 1.., .. } => VerdictTone::Bad,
                    Integrity { complete: true, .. } => VerdictTone::Good,
                    _ => VerdictTone::Unknown,
                };
                verdict(format!("Integrity: {}", integrity.summary()), tone)
            }
            Details::Steady(steady) => verdict(
                steady.verdict(),
                if steady.converged() { VerdictTone::Good } else { VerdictTone::Unknown },
            ),
            _ => None,
        }
    }

    /// The figures that can be compared, where `of_jobs` are those of single jobs: one sample a run.
    fn measures(&self, of_jobs: Vec<Measure>) -> Vec<Measure> {
        let measure = |name: &str, unit: &str, better, samples| Measure {
            name: name.to_owned(),
            unit: unit.into(),
            better,
            samples,
        };
        match &self.details {
            Details::Anvil(_) | Details::Atto(_) => of_jobs,
            Details::Crystal(crystal) => {
                let of_row = |row: &super::CrystalRow| {
                    let samples = |of: fn(&super::Figures) -> f64| row.runs.iter().map(of).collect();
                    [
                        measure(&row.name, "IOPS", Better::Higher, samples(|run| run.iops)),
                        measure(&row.name, "ms", Better::Lower, samples(|run| run.response_us / 1e3)),
                    ]
                };
                crystal.rows.iter().flat_map(of_row).collect()
            }
            Details::H2bench(found) => {
                let mut measures = of_jobs;
                let zones = found.zones.iter().flat_map(|zones| {
                    [("zones, read", zones.read_range()), ("zones, write", zones.write_range())]
                });
                measures.extend(zones.filter_map(|(name, range)| {
                    Some(measure(name, "MB/s", Better::Higher, vec![range?.avg]))
                }));
                measures.extend(found.access.iter().map(|access| {
                    let name = format!("access, {}", access.name);
                    measure(&name, "ms", Better::Lower, vec![access.latency.mean() / 1e6])
                }));
                measures.extend(found.applications.iter().map(|result| {
                    measure(result.application.name, "MB/s", Better::Higher, vec![result.mb_s])
                }));
                measures
            }
            // Rounds are parts of one run, and only their window is a figure.
            Details::Steady(steady) => {
                let window = steady.window.as_ref().filter(|_| steady.converged());
                window
                    .map(|window| measure("steady", "IOPS", Better::Higher, vec![window.average]))
                    .into_iter()
                    .collect()
            }
        }
    }
}

fn chart(title: &str, detail: &str, svg: String, wide: bool) -> Block {
    Block::Chart(Card { title: title.into(), detail: detail.into(), svg, wide })
}

fn repeated(crystal: &Crystal) -> Section {
    let mut grid = Grid::new(vec![
        Column::words("Test"),
        Column::figures("Median", "MB/s"),
        Column::figures("Spread", "%"),
        Column::figures("Slowest", "MB/s").wide_only(),
        Column::figures("Fastest", "MB/s").wide_only(),
        Column::figures("IOPS", "median"),
        Column::figures("Response", "ms, median").wide_only(),
    ]);
    for row in &crystal.rows {
        let (median, (low, high)) = (row.median(), row.range());
        grid.rows.push(Row::new([
            Cell::from(&*row.name),
            figure(median.mb_s).into(),
            format!("{:.1}", row.spread_percent()).into(),
            figure(low).into(),
            figure(high).into(),
            figure(median.iops).into(),
            figure(median.response_us / 1e3).into(),
        ]));
    }
    grid.caption = "Spread: from the slowest to the fastest run, as a part of the median. The fastest run is what CrystalDiskMark shows.".into();
    Section { blocks: vec![Block::Table(grid)], ..Section::new("Median of the runs") }
}

fn sweep(atto: &Atto) -> Section {
    let bar = |write: bool| {
        atto.sweep.iter().filter_map(move |point| {
            let figures = if write { point.write } else { point.read };
            let tone = if write { Tone::Write } else { Tone::Read };
            Some(Bar { label: size_name(point.block_size), value: figures?.mb_s, tone })
        })
    };
    let mut blocks = Vec::new();
    for (title, write) in [("Write", true), ("Read", false)] {
        let drawn: Vec<Bar> = bar(write).collect();
        if !drawn.is_empty() {
            blocks.push(chart(title, "MB/s by transfer size", bars("MB/s", &drawn), false));
        }
    }
    Section { blocks, ..Section::new("By transfer size") }
}

fn rounds(steady: &Steady) -> Section {
    let values = steady.iops();
    let window = steady.window.as_ref().filter(|_| steady.converged());
    let drawn = Rounds {
        unit: "IOPS",
        values: &values,
        window: window.map(|window| window.rounds.clone()),
        wide: true,
    };
    let blocks = match values.is_empty() {
        true => Vec::new(),
        false => vec![chart("Rounds", "IOPS", steady_chart(&drawn), true)],
    };
    Section { prose: vec![steady.verdict()], blocks, ..Section::new("Steady state") }
}

fn h2bench(found: &H2bench) -> Vec<Section> {
    let mut sections = vec![overview(found)];
    if let Some(zones) = &found.zones {
        let (read, write) = (zones.read_points(), zones.write_points());
        if !read.is_empty() || !write.is_empty() {
            let drawn = zones_chart(&lunway_report::chart::Zones {
                unit: "MB/s",
                size: zones.size,
                read: &read,
                write: &write,
                wide: true,
            });
            let blocks = vec![chart("Throughput over the device", "MB/s by address", drawn, true)];
            sections.push(Section { blocks, ..Section::new("Zones") });
        }
    }
    let points: Vec<Vec<(f64, f64)>> =
        found.access.iter().map(|access| percentiles(&access.latency)).collect();
    let curves: Vec<Curve<'_>> = found
        .access
        .iter()
        .zip(&points)
        .map(|(access, points)| Curve { label: access.label(), points })
        .collect();
    if !curves.is_empty() {
        let blocks =
            vec![chart("Access time", "by percentile", percentile_curves("Access time", &curves), false)];
        sections.push(Section { blocks, ..Section::new("Access time") });
    }
    sections.extend(applications(found));
    sections.extend(found.integrity.as_ref().map(integrity));
    sections
}

/// Zones and access times: least, mean, most.
fn overview(found: &H2bench) -> Section {
    let mut grid = Grid::new(vec![
        Column::words("Measurement"),
        Column::words("Unit"),
        Column::figures("Min", ""),
        Column::figures("Mean", ""),
        Column::figures("Max", ""),
    ]);
    let mark = |write: bool| if write { Mark::Write } else { Mark::Read };
    if let Some(zones) = &found.zones {
        for (name, range, write) in
            [("Zones, read", zones.read_range(), false), ("Zones, write", zones.write_range(), true)]
        {
            let Some(Range { min, avg, max }) = range else { continue };
            let figures = [min, avg, max].map(|value| Cell::from(figure(value)));
            grid.rows
                .push(Row::new([Cell::marked(name, mark(write)), "MB/s".into()].into_iter().chain(figures)));
        }
    }
    for access in &found.access {
        let latency = &access.latency;
        let figures = [latency.min() as f64, latency.mean(), latency.max() as f64];
        let (factor, unit) = readable("ms", latency.mean() / 1e6);
        let figures = figures.map(|ns| Cell::from(figure(ns / 1e6 * factor)));
        let name = Cell::marked(format!("Access, {}", access.name), mark(access.name.starts_with("write")));
        grid.rows.push(Row::new([name, unit.into()].into_iter().chain(figures)));
    }
    Section { blocks: vec![Block::Table(grid)], ..Section::new("From end to end") }
}

fn applications(found: &H2bench) -> Option<Section> {
    if found.applications.is_empty() {
        return None;
    }
    let mut grid = Grid::new(vec![
        Column::words("Application, h2-like"),
        Column::figures("MB/s", ""),
        Column::figures("Reference", "MB/s"),
        Column::figures("Ratio", ""),
    ]);
    for result in &found.applications {
        let reference = result.application.reference_mb_s();
        grid.rows.push(Row::new([
            Cell::from(result.application.name),
            figure(result.mb_s).into(),
            figure(reference).into(),
            figure(result.mb_s / reference).into(),
        ]));
    }
    grid.caption = "Synthetic mixes of our own, one I/O at a time; not comparable with published indexes. The reference is a modelled disk.".into();
    Some(Section { blocks: vec![Block::Table(grid)], ..Section::new("Applications") })
}

fn integrity(found: &Integrity) -> Section {
    let mut prose = vec![found.summary()];
    prose.extend(found.faults.iter().map(ToString::to_string));
    Section { prose, ..Section::new("Integrity") }
}

//! `lunway backup report`: what the runs into a destination, or into all series of a repository, have done, as a page.

use clap::Args;
use lunway_backup::{PointKind, UnreadablePoint};
use lunway_block::size::HumanSize;
use lunway_report::chart::{Bar, Tone, bars};
use lunway_report::{
    Block, Card, Cell, Column, Conclusion, Document, Grid, Mark, Row, Section, Tile, VerdictTone, environment,
};
use lunway_repository::{Located, Repository};
use serde_json::{Value, json};

use super::Destination;
use super::list::{point_json, time};
use super::store::{Listed, Listing};
use crate::failure::Failure;
use crate::output::Files;
use crate::terminal;

/// Bars of one chart: the newest runs, a month of nights. More would not be told apart.
const BARS_MAX: usize = 31;

/// Reads one figure of a run.
type Figure = fn(&Listed) -> u64;

/// Report what each run read, sent and stored, and why it was a full backup or an increment
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup report /mnt/share/server1
  lunway backup report /mnt/share/server1 --html-file server1.html    # a page
  lunway backup report /mnt/share/repo    # all series of a repository")]
pub(super) struct Report {
    #[command(flatten)]
    destination: Destination,
    #[command(flatten)]
    files: Files,
}

/// Runs into a destination, as far as its points tell.
struct Runs(Listing);

impl Report {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.files.check(&[])?;
        if let Located::Repository(path) = self.destination.located()? {
            let all = AllRuns::of(&self.destination.repository(&path)?)?;
            return self.files.write(|| all.text(), || all.json(), || lunway_report::html(&all.document()));
        }
        let runs = Runs(Listing::of(&self.destination)?);
        self.files.write(|| runs.text(), || runs.json(), || lunway_report::html(&runs.document()))
    }
}

/// Runs into all series of a repository.
struct AllRuns {
    /// Path or address of the repository.
    place: String,
    /// By the names of the series.
    series: Vec<(String, Runs)>,
}

impl AllRuns {
    fn of(repository: &Repository) -> Result<Self, Failure> {
        let series = Listing::of_series(repository)?;
        let series = series.into_iter().map(|(name, listing)| (name, Runs(listing))).collect();
        Ok(Self { place: repository.show(), series })
    }

    fn sum(&self, of: impl Fn(&Runs) -> u64) -> u64 {
        self.series.iter().map(|(_, runs)| of(runs)).sum()
    }

    fn points(&self) -> u64 {
        self.sum(|runs| runs.points().count() as u64)
    }

    fn fulls(&self) -> u64 {
        self.sum(|runs| runs.fulls() as u64)
    }

    fn damage(&self) -> u64 {
        self.sum(|runs| runs.damage() as u64)
    }

    fn bytes(&self, figure: Figure) -> u64 {
        self.sum(|runs| runs.sum(figure))
    }

    fn text(&self) -> String {
        if self.series.is_empty() {
            return "no series yet".to_owned();
        }
        let one = |(name, runs): &(String, Runs)| format!("{}\n{}", terminal::clean(name), runs.text());
        let mut parts: Vec<String> = self.series.iter().map(one).collect();
        parts.push(format!(
            "{} series, {}: {} read, {} sent, {} stored",
            self.series.len(),
            terminal::counted(self.points() as usize, "point"),
            HumanSize(self.bytes(|point| point.facts.read_bytes)),
            HumanSize(self.bytes(|point| point.facts.sent_bytes)),
            HumanSize(self.bytes(|point| point.facts.stored_bytes)),
        ));
        parts.join("\n\n")
    }

    fn json(&self) -> Value {
        let one = |(name, runs): &(String, Runs)| {
            let mut value = runs.json();
            value["series"] = json!(name);
            value
        };
        json!({
            "folder": self.place,
            "series": self.series.iter().map(one).collect::<Vec<_>>(),
            "read_bytes": self.bytes(|point| point.facts.read_bytes),
            "sent_bytes": self.bytes(|point| point.facts.sent_bytes),
            "stored_bytes": self.bytes(|point| point.facts.stored_bytes),
            "damage": self.damage(),
        })
    }

    fn document(&self) -> Document {
        let count = self.series.len();
        let subject = format!("{count} series in {}", self.place);
        let mut document = Document::new("backup", "Backups", subject);
        let named = |name: &str, text: &str| format!("{name}: {text}");
        for (name, runs) in &self.series {
            document.verdicts.extend(
                runs.verdicts()
                    .into_iter()
                    .map(|verdict| Conclusion { text: named(name, &verdict.text), ..verdict }),
            );
            document.warnings.extend(runs.warnings().iter().map(|warning| named(name, warning)));
        }
        let stored = self.bytes(|point| point.facts.stored_bytes);
        let sent = self.bytes(|point| point.facts.sent_bytes);
        let all = || "all points".to_owned();
        document.tiles = vec![
            tile("Series", count.to_string(), self.place.clone()),
            tile("Points", self.points().to_string(), format!("{} of them full", self.fulls())),
            tile("Stored", HumanSize(stored).to_string(), all()),
            tile("Sent", HumanSize(sent).to_string(), all()),
        ];
        document.sections.push(self.overview());
        for (name, runs) in &self.series {
            let (charts, tables) = (runs.charts(), runs.tables());
            let mut section = Section::new(name.clone());
            section.prose.push(format!("Disk: {}", runs.source()));
            section.blocks = tables.blocks.into_iter().chain(charts.blocks).collect();
            document.sections.push(section);
        }
        document.environment = environment();
        document.results = self.json();
        document
    }

    /// A row for each series.
    fn overview(&self) -> Section {
        let mut grid = Grid::new(vec![
            Column::words("Series"),
            Column::figures("Points", ""),
            Column::figures("Full", "").wide_only(),
            Column::words("Newest").wide_only(),
            Column::figures("Read", "").wide_only(),
            Column::figures("Sent", ""),
            Column::figures("Stored", ""),
        ]);
        grid.rows = self
            .series
            .iter()
            .map(|(name, runs)| {
                let size = |figure: Figure| Cell::from(HumanSize(runs.sum(figure)).to_string());
                Row::new([
                    Cell::from(name.clone()),
                    Cell::from(runs.points().count().to_string()),
                    Cell::from(runs.fulls().to_string()),
                    Cell::from(runs.0.points.last().map_or_else(|| "–".to_owned(), time)),
                    size(|point| point.facts.read_bytes),
                    size(|point| point.facts.sent_bytes),
                    size(|point| point.facts.stored_bytes),
                ])
            })
            .collect();
        grid.caption =
            "Of all points. Stored: what the runs have added to the repository, compressed.".into();
        Section { blocks: vec![Block::Table(grid)], ..Section::new("Series") }
    }
}

fn tile(what: &str, value: String, of: String) -> Tile {
    Tile { what: what.to_owned(), value, unit: String::new(), of }
}

impl Runs {
    /// The points, the oldest first.
    fn points(&self) -> impl DoubleEndedIterator<Item = &Listed> {
        self.0.points.iter()
    }

    fn sum(&self, bytes: Figure) -> u64 {
        self.0.sum(bytes)
    }

    fn damage(&self) -> usize {
        self.0.damage
    }

    fn fulls(&self) -> usize {
        self.points().filter(|point| point.facts.kind == PointKind::Full).count()
    }

    /// Name of the disk, as its newest point has it.
    fn source(&self) -> &str {
        self.0.points.last().map_or("no point", |newest| &newest.facts.source)
    }

    fn text(&self) -> String {
        let size = |bytes: u64| HumanSize(bytes).to_string();
        let rows: Vec<_> = self
            .points()
            .map(|point| {
                [
                    point.facts.point.to_string(),
                    time(point),
                    point.facts.kind.name().to_owned(),
                    size(point.facts.changed_bytes),
                    size(point.facts.read_bytes),
                    size(point.facts.sent_bytes),
                    size(point.facts.stored_bytes),
                    terminal::clean(&point.facts.why),
                ]
            })
            .collect();
        let headings = ["POINT", "TIME", "KIND", "CHANGED", "READ", "SENT", "STORED", "WHY"];
        let mut text = terminal::table(headings, &rows, "no point");
        for sentence in self.verdicts().into_iter().map(|verdict| verdict.text).chain(self.warnings()) {
            text += &format!("\n{}", terminal::clean(&sentence));
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "folder": self.0.folder,
            "points": self.points().map(point_json).collect::<Vec<_>>(),
            "read_bytes": self.sum(|point| point.facts.read_bytes),
            "sent_bytes": self.sum(|point| point.facts.sent_bytes),
            "stored_bytes": self.sum(|point| point.facts.stored_bytes),
            "incomplete": self.0.incomplete,
            "damage": self.damage(),
            "warnings": self.0.warnings,
        })
    }

    /// What is known of the points being whole; nothing where there are none.
    fn verdicts(&self) -> Vec<Conclusion> {
        if self.0.points.is_empty() {
            return Vec::new();
        }
        let (text, tone) = match self.0.verified() {
            _ if self.damage() > 0 => (
                format!("{} damaged parts are known: `lunway backup verify` names them.", self.damage()),
                VerdictTone::Bad,
            ),
            Some(point) => {
                (format!("Point {} of {} is verified.", point.facts.point, time(point)), VerdictTone::Good)
            }
            None => ("No point is verified: `lunway backup verify`.".to_owned(), VerdictTone::Unknown),
        };
        vec![Conclusion { text, tone }]
    }

    fn warnings(&self) -> Vec<String> {
        let incomplete = (self.0.incomplete > 0)
            .then(|| "One more point is incomplete: the next run continues it.".to_owned());
        let unreadable = self.0.unreadable.iter();
        let unreadable = unreadable
            .map(|UnreadablePoint { point, what, .. }| format!("Point {point} cannot be read: {what}."));
        unreadable.chain(incomplete).chain(self.0.warnings.iter().cloned()).collect()
    }

    fn document(&self) -> Document {
        let mut document =
            Document::new("backup", "Backups", format!("{} in {}", self.source(), self.0.folder));
        document.verdicts = self.verdicts();
        document.warnings = self.warnings();
        document.tiles = self.tiles();
        document.sections = vec![self.charts(), self.tables()];
        document.environment = environment();
        document.results = self.json();
        document
    }

    fn tiles(&self) -> Vec<Tile> {
        let (fulls, count) = (self.fulls(), self.points().count());
        let newest = self.0.points.last();
        vec![
            tile("Points", count.to_string(), format!("{fulls} of them full")),
            tile(
                "Stored",
                HumanSize(self.sum(|point| point.facts.stored_bytes)).to_string(),
                "all points".to_owned(),
            ),
            tile(
                "Sent",
                HumanSize(self.sum(|point| point.facts.sent_bytes)).to_string(),
                "all points".to_owned(),
            ),
            tile(
                "Newest point",
                newest
                    .map_or_else(|| "–".to_owned(), |newest| HumanSize(newest.facts.sent_bytes).to_string()),
                newest.map_or_else(|| "no point yet".to_owned(), |newest| format!("sent, {}", time(newest))),
            ),
        ]
    }

    /// The newest runs, a bar each.
    fn charts(&self) -> Section {
        let all: Vec<&Listed> = self.points().collect();
        let newest = &all[all.len().saturating_sub(BARS_MAX)..];
        let mut section = Section::new("Newest runs");
        let figures: [(&str, Tone, Figure); 3] = [
            ("Read", Tone::Read, |point| point.facts.read_bytes),
            ("Sent", Tone::Write, |point| point.facts.sent_bytes),
            ("Stored", Tone::Write, |point| point.facts.stored_bytes),
        ];
        for (title, tone, bytes) in figures {
            let bar = |point: &&Listed| Bar {
                label: format!("{} {}", time(point), point.facts.kind.name()),
                value: bytes(point) as f64 / 1e6,
                tone,
            };
            section.blocks.push(Block::Chart(Card {
                title: title.to_owned(),
                detail: "MB, by run".to_owned(),
                svg: bars("MB", &newest.iter().map(bar).collect::<Vec<_>>()),
                wide: false,
            }));
        }
        section
    }

    /// The newest first, in two tables: figures, and words. One with both is too broad for a phone.
    fn tables(&self) -> Section {
        let figure = |name: &str| Column::figures(name, "");
        let mut figures = Grid::new(vec![
            Column::words("Time"),
            Column::words("Point").wide_only(),
            figure("Changed").wide_only(),
            figure("Read"),
            figure("Sent"),
            figure("Stored"),
            figure("Left out").wide_only(),
        ]);
        figures.caption = match self.0.chain_files {
            Some(_) => {
                "Stored: data in blocks of 1 MiB, and hashes. A merged point has the figures of its own run."
            }
            None => "Stored: what a run has added to the repository, compressed.",
        }
        .into();
        let mut words = Grid::new(["Time", "Kind", "State", "Why"].map(Column::words).into());
        for point in self.points().rev() {
            let size = |bytes: u64| Cell::from(HumanSize(bytes).to_string());
            let tone = match point.state {
                "damaged" => VerdictTone::Bad,
                "verified" => VerdictTone::Good,
                _ => VerdictTone::Even,
            };
            figures.rows.push(Row::new([
                Cell::from(time(point)),
                Cell::from(point.facts.point.to_string()),
                size(point.facts.changed_bytes),
                size(point.facts.read_bytes),
                size(point.facts.sent_bytes),
                size(point.facts.stored_bytes),
                size(point.facts.skipped_bytes),
            ]));
            words.rows.push(Row::new([
                Cell::from(time(point)),
                Cell::from(point.facts.kind.name()),
                Cell::marked(point.state, Mark::Verdict(tone)),
                Cell::from(point.facts.why.clone()),
            ]));
        }
        let mut section = Section::new("All points");
        section.blocks = vec![Block::Table(figures), Block::Table(words)];
        section
    }
}

//! `lunway backup report`: what the runs into a destination have done, as a page.

use clap::Args;
use lunway_backup::PointKind;
use lunway_block::size::HumanSize;
use lunway_report::chart::{Bar, Tone, bars};
use lunway_report::{
    Block, Card, Cell, Column, Conclusion, Document, Grid, Mark, Row, Section, Tile, VerdictTone, environment,
};
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
  lunway backup report /mnt/share/server1 --html-file server1.html    # a page")]
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
        let runs = Runs(Listing::of(&self.destination)?);
        self.files.write(|| runs.text(), || runs.json(), || lunway_report::html(&runs.document()))
    }
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
        let mut text = terminal::table(headings, &rows, "no point yet");
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
        })
    }

    /// What is known of the points being whole.
    fn verdicts(&self) -> Vec<Conclusion> {
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
        unreadable
            .map(|(point, what)| format!("Point {point} cannot be read: {what}."))
            .chain(incomplete)
            .collect()
    }

    fn document(&self) -> Document {
        let source = self.0.points.last().map_or("no point yet", |newest| &newest.facts.source);
        let mut document = Document::new("backup", "Backups", format!("{source} in {}", self.0.folder));
        document.verdicts = self.verdicts();
        document.warnings = self.warnings();
        document.tiles = self.tiles();
        document.sections = vec![self.charts(), self.tables()];
        document.environment = environment();
        document.results = self.json();
        document
    }

    fn tiles(&self) -> Vec<Tile> {
        let fulls = self.points().filter(|point| point.facts.kind == PointKind::Full).count();
        let count = self.points().count();
        let tile = |what: &str, value: String, of: String| Tile {
            what: what.to_owned(),
            value,
            unit: String::new(),
            of,
        };
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

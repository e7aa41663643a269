//! Results of backups: what each way to back a disk up took, sent and stored, and what a cut cable has left.

use lunway_report::chart::{self, Bar, ChartLine, Event, TimelineChart, Tone};
use lunway_report::{
    Better, Block, Card, Cell, Column, Grid, Mark, Measure, Row, Section, VerdictTone, figure,
};
use serde_json::{Value, json};

use crate::cpu::CpuUse;
use crate::experiment::plan::run::Run;
use crate::experiment::result::results::{Results, SampledTimeline, median};
use crate::experiment::result::text::table;

/// A figure with its name.
type Named = (&'static str, f64);

/// Backups of one run.
#[derive(Clone, Debug)]
pub struct BackupRow {
    /// The run.
    pub test: String,
    /// How, for people.
    pub topology: String,
    /// Every repeat, in order.
    pub samples: Vec<BackupSample>,
}

/// One backup, with all its attempts.
#[derive(Clone, Debug, Default)]
pub struct BackupSample {
    /// Index of the repeat, from 0.
    pub repeat: u32,
    /// From the first attempt to mount the share to the end, in which the share is unmounted.
    pub seconds: f64,
    /// Bytes that are to be at the share afterwards and were not before.
    pub needed: u64,
    /// Bytes that were read of the disk by attempts that told.
    pub read: u64,
    /// Bytes that the host has sent, with all headers.
    pub sent: u64,
    /// Bytes that the share's disk has more.
    pub stored: u64,
    /// What was needed per second, as a share of what the cables carry.
    pub of_link: f64,
    /// Attempts.
    pub attempts: u32,
    /// Why attempts have failed.
    pub failures: Vec<String>,
    /// What failed attempts of a copy have left.
    pub left: Vec<LeftBehind>,
    /// The last attempt has succeeded.
    pub complete: bool,
    /// Why what is stored is not the disk; `None`: it is, or the backup is not complete.
    pub differs: Option<String>,
    /// CPU usage of the machine.
    pub cpu: CpuUse,
    /// The processor limited it, not the network: it does not count.
    pub limited: bool,
    /// What was sent over time, and the cut.
    pub timeline: SampledTimeline,
}

/// What a copy that has failed has left at the share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// It is the whole disk.
    pub is_whole: bool,
    /// Description.
    pub what: String,
}

impl BackupSample {
    /// Returns `true` if it was made, and is the disk.
    pub fn is_sound(&self) -> bool {
        self.complete && self.differs.is_none()
    }
}

impl BackupRow {
    pub(crate) fn new(run: &Run) -> Self {
        Self { test: run.test.clone(), topology: run.topology.clone(), samples: Vec::new() }
    }

    /// The samples that count.
    fn counting(&self) -> impl Iterator<Item = &BackupSample> {
        self.samples.iter().filter(|sample| sample.complete && !sample.limited)
    }

    /// At least one sample counts.
    fn counts(&self) -> bool {
        self.counting().next().is_some()
    }

    /// The median over the samples that count; over all complete ones where none does.
    fn median(&self, of: impl Fn(&BackupSample) -> f64) -> f64 {
        match self.counts() {
            true => median(self.counting().map(of)),
            false => median(self.samples.iter().filter(|sample| sample.complete).map(of)),
        }
    }

    /// No sample counts, and the processor is why.
    pub(crate) fn is_limited(&self) -> bool {
        !self.counts() && self.samples.iter().any(|sample| sample.limited)
    }

    /// Backups that were not made, or are not the disk.
    pub fn unsound(&self) -> u64 {
        self.samples.iter().filter(|sample| !sample.is_sound()).count() as u64
    }

    /// What it took, by the names of [`BACKUP`](crate::experiment::plan::values::BACKUP), and how it went.
    fn columns(&self) -> ([Named; 6], [Named; 3]) {
        let torn = self.samples.iter().flat_map(|sample| &sample.left).filter(|left| !left.is_whole).count();
        let took = [
            ("seconds", self.median(|sample| sample.seconds)),
            ("needed_mb", self.median(|sample| mb(sample.needed))),
            ("read_mb", self.median(|sample| mb(sample.read))),
            ("sent_mb", self.median(|sample| mb(sample.sent))),
            ("stored_mb", self.median(|sample| mb(sample.stored))),
            ("of_link", self.median(|sample| sample.of_link)),
        ];
        let went = [
            ("attempts", self.samples.iter().map(|sample| f64::from(sample.attempts)).fold(0.0, f64::max)),
            ("torn", torn as f64),
            ("unsound", self.unsound() as f64),
        ];
        (took, went)
    }

    /// What figures are made of: how it went however busy the processor was, what it took where that counts.
    pub(crate) fn values(&self) -> impl Iterator<Item = Named> {
        let (took, went) = self.columns();
        went.into_iter().chain(took.into_iter().filter(|_| self.counts()))
    }

    /// A remark that a reader must know.
    fn remark(&self) -> String {
        let mut remarks = Vec::new();
        if self.is_limited() {
            remarks.push("limited by the processor: does not count".to_owned());
        }
        let attempts = self.samples.iter().map(|sample| sample.attempts).max().unwrap_or(0);
        if attempts > 1 {
            remarks.push(format!("{attempts} attempts"));
        }
        if let Some(unmade) = self.samples.iter().find(|sample| !sample.complete) {
            let why = unmade.failures.last().map_or("the share was not reached", String::as_str);
            remarks.push(format!("not made: {why}"));
        }
        if let Some(differs) = self.samples.iter().find_map(|sample| sample.differs.as_ref()) {
            remarks.push(differs.clone());
        }
        remarks.join(", ")
    }

    /// What the cut did, in the last repeat with one.
    fn interruption(&self) -> Option<String> {
        let sample = self.samples.iter().rev().find(|sample| !sample.failures.is_empty())?;
        let failed = format!("{}: the first attempt failed ({})", self.test, sample.failures[0]);
        Some(match sample.left.first() {
            Some(left) => format!("{failed} and left {}. It was begun again.", left.what),
            None => format!("{failed}. The next one went on."),
        })
    }

    fn cells(&self) -> [String; 7] {
        [
            figure(self.median(|sample| sample.seconds)),
            figure(self.median(|sample| mb(sample.needed))),
            figure(self.median(|sample| mb(sample.read))),
            figure(self.median(|sample| mb(sample.sent))),
            figure(self.median(|sample| mb(sample.stored))),
            figure(self.median(|sample| sample.of_link * 100.0)),
            self.remark(),
        ]
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut value = json!({
            "test": self.test,
            "topology": self.topology,
            "counts": self.counts(),
            "limited_by_cpu": self.is_limited(),
            "samples": self.samples.iter().map(sample).collect::<Vec<_>>(),
        });
        let (took, went) = self.columns();
        for (name, figure) in took.into_iter().chain(went) {
            value[name] = json!(figure);
        }
        value
    }

    /// The same in the columns that all rows have: what was needed, and how fast it was there.
    pub(crate) fn row_json(&self) -> Value {
        json!({
            "test": self.test,
            "topology": self.topology,
            "policy": "-",
            "rw": "write",
            "response_ms": Value::Null,
            "mb": self.median(|sample| mb(sample.needed)),
            "iops": Value::Null,
            "mb_s": self.median(|sample| mb(sample.needed) / sample.seconds),
            "deviance_pct": Value::Null,
            "counts": self.counts(),
            "limited_by_cpu": self.is_limited(),
        })
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn sample(sample: &BackupSample) -> Value {
    let left = sample.left.iter().map(|left| json!({ "whole": left.is_whole, "what": left.what }));
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let events = sample.timeline.events.iter();
    let events = events.map(|event| json!({ "at_ms": ms(event.at), "what": event.what }));
    json!({
        "repeat": sample.repeat,
        "seconds": sample.seconds,
        "needed_bytes": sample.needed,
        "read_bytes": sample.read,
        "sent_bytes": sample.sent,
        "stored_bytes": sample.stored,
        "of_link": sample.of_link,
        "attempts": sample.attempts,
        "failures": sample.failures,
        "left": left.collect::<Vec<_>>(),
        "complete": sample.complete,
        "differs": sample.differs,
        "cpu": { "busiest": sample.cpu.busiest, "mean": sample.cpu.mean, "steal": sample.cpu.steal, "limited": sample.cpu.limited },
        "limited_by_cpu": sample.limited,
        "interval_ms": ms(sample.timeline.interval),
        "sent_mb_s": sample.timeline.paths.first().map(|(_, values)| values),
        "events": events.collect::<Vec<_>>(),
    })
}

/// What the columns mean.
const CAPTION: &str = "Medians of the repeats that count. MB = 1,000,000 bytes. Needed: what the share must have afterwards and \
    had not before. Sent: all bytes on the wire, with headers and what is sent for the file system. Of the link: needed bytes \
    per second against what bare TCP carries.";

impl Results {
    /// A table, and a line for each cut.
    pub(crate) fn backups_text(&self) -> Option<String> {
        let rows: Vec<Vec<String>> = self
            .backups
            .iter()
            .map(|row| [vec![row.test.clone(), row.topology.clone()], row.cells().to_vec()].concat())
            .collect();
        if rows.is_empty() {
            return None;
        }
        let headings =
            ["Test", "How", "seconds", "needed MB", "read MB", "sent MB", "stored MB", "of the link (%)", ""];
        let mut text = table(&headings, &rows, 2);
        text += &format!("\n{CAPTION}");
        for said in self.backups.iter().filter_map(BackupRow::interruption) {
            text += &format!("\n{said}");
        }
        Some(text)
    }

    /// Tables and charts of backups.
    pub(crate) fn backups_section(&self) -> Option<Section> {
        if self.backups.is_empty() {
            return None;
        }
        let mut grid = Grid::new(vec![
            Column::words("Test"),
            Column::words("How"),
            Column::figures("Time", "s"),
            Column::figures("Needed", "MB").wide_only(),
            Column::figures("Read", "MB").wide_only(),
            Column::figures("Sent", "MB"),
            Column::figures("Stored", "MB"),
            Column::figures("Of the link", "%"),
            Column::words("").wide_only(),
        ]);
        grid.rows = self.backups.iter().map(grid_row).collect();
        grid.caption = CAPTION.to_owned();
        let mut section = Section { blocks: vec![Block::Table(grid)], ..Section::new("Results") };
        section.prose = self.backups.iter().filter_map(BackupRow::interruption).collect();
        let bar = |of: fn(&BackupSample) -> f64| {
            let bars: Vec<Bar> = self
                .backups
                .iter()
                .map(|row| Bar { label: row.test.clone(), value: row.median(of), tone: Tone::Write })
                .filter(|bar| bar.value.is_finite())
                .collect();
            bars
        };
        for (title, unit, bars) in [
            ("Time", "s", bar(|sample| sample.seconds)),
            ("Sent over the wire", "MB", bar(|sample| mb(sample.sent))),
        ] {
            if !bars.is_empty() {
                let svg = chart::bars(unit, &bars);
                let title = title.to_owned();
                section.blocks.push(Block::Chart(Card { title, detail: unit.to_owned(), svg, wide: false }));
            }
        }
        Some(section)
    }

    /// What went over the wire in the last repeat of each run.
    pub(crate) fn backup_timelines(&self) -> Option<Section> {
        let mut section = Section::new("On the wire");
        for row in &self.backups {
            let Some(sample) = row.samples.last().filter(|sample| sample.timeline.paths[0].1.len() > 1)
            else {
                continue;
            };
            let lines: Vec<ChartLine<'_>> = sample
                .timeline
                .paths
                .iter()
                .map(|(label, values)| ChartLine { label, tone: None, values })
                .collect();
            let events = sample.timeline.events.iter();
            let events: Vec<Event<'_>> =
                events.map(|event| Event { at: event.at, label: &event.what }).collect();
            let level = self.links.first().map(|link| (link.calibrated_mb_s, "calibrated link"));
            let svg = chart::over_time(&TimelineChart {
                unit: "MB/s",
                interval: sample.timeline.interval,
                lines: &lines,
                warm_up: std::time::Duration::ZERO,
                events: &events,
                level,
                wide: true,
            });
            section.blocks.push(Block::Chart(Card {
                title: format!("{}: {}", row.test, row.topology),
                detail: format!("MB/s, repeat {}", sample.repeat + 1),
                svg,
                wide: true,
            }));
        }
        (!section.blocks.is_empty()).then_some(section)
    }

    pub(crate) fn backup_measures(&self) -> impl Iterator<Item = Measure> {
        self.backups.iter().flat_map(|row| {
            let measure = |unit: &str, of: fn(&BackupSample) -> f64| Measure {
                name: row.test.clone(),
                unit: unit.to_owned(),
                better: Better::Lower,
                samples: row.counting().map(of).collect(),
            };
            [measure("s", |sample| sample.seconds), measure("MB sent", |sample| mb(sample.sent))]
        })
    }
}

fn grid_row(row: &BackupRow) -> Row {
    let is_sound = row.unsound() == 0 && !row.is_limited();
    let test = match is_sound {
        true => Cell::from(row.test.clone()),
        false => Cell::marked(row.test.clone(), Mark::Verdict(VerdictTone::Unknown)),
    };
    let [seconds, needed, read, sent, stored, of_link, remark] = row.cells();
    let cells = [seconds, needed, read, sent, stored, of_link, remark].map(Cell::from);
    Row::new([test, row.topology.clone().into()].into_iter().chain(cells))
}

//! Result of the second act, for the terminal and for the page.

use std::time::Duration;

use lunway_report::chart::{self, ChartLine, Event};
use lunway_report::{Block, Card, Section, Strips};
use serde_json::{Value, json};

/// Characters that the act takes on a terminal.
const WIDTH: usize = 60;

/// Result of the second act.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Act {
    /// Description of the lanes, in a sentence.
    pub(super) lanes: String,
    /// Spacing of the values.
    pub(super) interval: Duration,
    /// For each lane its name and MB/s.
    pub(super) lines: Vec<(String, Vec<f64>)>,
    /// Events, each with its time.
    pub(super) events: Vec<(Duration, String)>,
    /// Written, millions of bytes.
    pub(super) mb: f64,
    /// The longest write.
    pub(super) longest_ms: f64,
    /// Writes that failed.
    pub(super) errors: u64,
    /// Blocks that were read back, and those of them that did not hold what was written.
    pub(super) verified: (u64, u64),
}

impl Act {
    /// As it goes from the sandbox to the process outside.
    pub(super) fn to_json(&self) -> Value {
        let lines = self.lines.iter().map(|(name, values)| json!({ "name": name, "mb_s": values }));
        let events =
            self.events.iter().map(|(at, what)| json!({ "at_ms": at.as_secs_f64() * 1e3, "what": what }));
        json!({
            "lanes": self.lanes,
            "interval_ms": self.interval.as_secs_f64() * 1e3,
            "lines": lines.collect::<Vec<_>>(),
            "events": events.collect::<Vec<_>>(),
            "mb": self.mb,
            "longest_ms": self.longest_ms,
            "errors": self.errors,
            "verified_blocks": self.verified.0,
            "wrong_blocks": self.verified.1,
        })
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let ms = |value: &Value| Some(Duration::from_secs_f64(value.as_f64()? / 1e3));
        let line = |line: &Value| {
            let values = line["mb_s"].as_array()?.iter().map(|value| value.as_f64().unwrap_or(f64::NAN));
            Some((line["name"].as_str()?.to_owned(), values.collect()))
        };
        let event = |event: &Value| Some((ms(&event["at_ms"])?, event["what"].as_str()?.to_owned()));
        Some(Self {
            lanes: value["lanes"].as_str()?.to_owned(),
            interval: ms(&value["interval_ms"])?,
            lines: value["lines"].as_array()?.iter().map(line).collect::<Option<_>>()?,
            events: value["events"].as_array()?.iter().map(event).collect::<Option<_>>()?,
            mb: value["mb"].as_f64()?,
            longest_ms: value["longest_ms"].as_f64()?,
            errors: value["errors"].as_u64()?,
            verified: (value["verified_blocks"].as_u64()?, value["wrong_blocks"].as_u64()?),
        })
    }

    /// Returns `true` if all data written was kept, and nothing failed.
    pub(super) fn is_good(&self) -> bool {
        self.errors == 0 && self.verified.0 > 0 && self.verified.1 == 0
    }

    /// Both lanes over time, and what happened.
    pub(super) fn strips(&self) -> String {
        Strips {
            unit: "MB/s",
            interval: self.interval,
            lines: &self.chart_lines(),
            events: &self.chart_events(),
            width: WIDTH,
        }
        .to_string()
    }

    /// Summary of the act, in a sentence or two.
    pub(super) fn closing(&self) -> String {
        let (checked, wrong) = self.verified;
        let kept = match (self.errors, wrong) {
            (0, 0) => format!("none failed, and all {checked} blocks read back hold what was written"),
            (0, _) => format!("{wrong} of {checked} blocks do NOT hold what was written"),
            _ => format!("{} failed, {wrong} of {checked} blocks do not hold what was written", self.errors),
        };
        format!(
            "A lane was pulled out in mid-write, and the other carried on: of {:.0} MB no write waited longer than {:.0} ms, {kept}.",
            self.mb, self.longest_ms
        )
    }

    /// The act as a part of the page.
    pub(super) fn section(&self) -> Section {
        let svg = chart::over_time(&chart::TimelineChart {
            unit: "MB/s",
            interval: self.interval,
            lines: &self.chart_lines(),
            warm_up: Duration::ZERO,
            events: &self.chart_events(),
            level: None,
            wide: true,
        });
        let chart =
            Card { title: "Writes, lane by lane".to_owned(), detail: "MB/s".to_owned(), svg, wide: true };
        Section {
            prose: vec![self.lanes.clone(), self.closing()],
            blocks: vec![Block::Chart(chart)],
            ..Section::new("Two lanes, one pulled out in mid-write")
        }
    }

    fn chart_lines(&self) -> Vec<ChartLine<'_>> {
        self.lines.iter().map(|(label, values)| ChartLine { label, tone: None, values }).collect()
    }

    fn chart_events(&self) -> Vec<Event<'_>> {
        self.events.iter().map(|(at, label)| Event { at: *at, label }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act() -> Act {
        Act {
            lanes: "Two cables.".to_owned(),
            interval: Duration::from_millis(200),
            lines: vec![("lane1 writes".to_owned(), vec![20.0, 0.0]), ("lane2".to_owned(), vec![20.0, 24.5])],
            events: vec![(Duration::from_millis(250), "lane1 pulled".to_owned())],
            mb: 64.0,
            longest_ms: 41.7,
            errors: 0,
            verified: (1024, 0),
        }
    }

    #[test]
    fn an_act_comes_out_of_the_sandbox_as_it_went_in() {
        let text = act().to_json().to_string();
        assert_eq!(Act::from_json(&serde_json::from_str(&text).unwrap()), Some(act()));
        assert_eq!(Act::from_json(&json!({ "lanes": "Two" })), None);
    }

    #[test]
    fn the_closing_line_does_not_praise_what_went_wrong() {
        assert!(act().is_good());
        assert!(
            act().closing().contains("no write waited longer than 42 ms, none failed, and all 1024 blocks")
        );
        let wrong = Act { verified: (1024, 3), ..act() };
        assert!(!wrong.is_good() && wrong.closing().contains("3 of 1024 blocks do NOT hold"));
        assert!(!Act { errors: 1, ..act() }.is_good());
        assert!(!Act { verified: (0, 0), ..act() }.is_good(), "nothing was checked");
    }

    #[test]
    fn both_lanes_are_drawn() {
        let strips = act().strips();
        assert!(strips.contains("lane1 writes") && strips.contains("lane2"), "{strips}");
        assert!(strips.contains("0.25 s  lane1 pulled"), "{strips}");
        let section = act().section();
        assert!(matches!(&section.blocks[..], [Block::Chart(card)] if card.svg.contains("lane1 pulled")));
    }
}

//! Events during the measurement of rows and their effect, as shown on a terminal.

use lunway_report::chart::{ChartLine, Event};
use lunway_report::{Strips, figure};

use crate::experiment::result::results::{ResultRow, Results, Sample};
use crate::experiment::result::text::table;

/// Characters that a measurement takes on a terminal, whatever its time.
const WIDTH: usize = 60;

impl Results {
    /// Throughput of each path over time, in the last repeat of the first policy of each run in which something
    /// happened; then how long everything waited, a line for each row.
    pub(crate) fn disturbed_text(&self) -> Option<String> {
        let mut drawn: Vec<&str> = Vec::new();
        let mut parts = Vec::new();
        for row in self.rows.iter().filter(|row| !row.timeline_is_of_other_row()) {
            let Some(sample) = row.samples.last().filter(|sample| !sample.timeline.events.is_empty()) else {
                continue;
            };
            if !drawn.contains(&row.test.as_str()) {
                drawn.push(&row.test);
                parts.push(strips(row, sample));
            }
        }
        let told: Vec<&ResultRow> =
            self.rows.iter().filter(|row| row.samples.iter().any(Sample::is_disturbed)).collect();
        if !told.is_empty() {
            parts.push(waits(&told));
        }
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }
}

impl Sample {
    /// Something happened, or what was written was checked: there is more to tell than throughput.
    fn is_disturbed(&self) -> bool {
        !self.timeline.events.is_empty() || self.verified.is_some()
    }
}

impl ResultRow {
    /// The two rows of a mixed access were one measurement, told with the first.
    pub(crate) fn timeline_is_of_other_row(&self) -> bool {
        self.rw.ends_with("-write")
    }

    /// Its measurement: run, policy where there is one, and what was done.
    pub(crate) fn measurement(&self) -> String {
        let access = self.rw.split('-').next().unwrap_or(self.rw);
        match self.policy.as_str() {
            "-" => format!("{} {access}", self.test),
            policy => format!("{} {policy} {access}", self.test),
        }
    }
}

fn strips(row: &ResultRow, sample: &Sample) -> String {
    let lines: Vec<ChartLine<'_>> =
        sample.timeline.paths.iter().map(|(label, values)| ChartLine { label, tone: None, values }).collect();
    let events: Vec<Event<'_>> =
        sample.timeline.events.iter().map(|event| Event { at: event.at, label: &event.what }).collect();
    let drawn = Strips {
        unit: "MB/s",
        interval: sample.timeline.interval,
        lines: &lines,
        events: &events,
        width: WIDTH,
    };
    format!("{}, repeat {}\n{drawn}", row.measurement(), sample.repeat + 1)
}

fn waits(rows: &[&ResultRow]) -> String {
    let lines = rows.iter().map(|row| {
        let optional = |value: Option<f64>| value.map_or("–".to_owned(), figure);
        let after = row.median(|sample| sample.mb_s_after.unwrap_or(f64::NAN));
        let checked = row.samples.iter().filter_map(|sample| Some(sample.verified?.0)).reduce(|a, b| a + b);
        let counted = |count: Option<u64>| count.map_or("–".to_owned(), |count| count.to_string());
        [
            row.test.clone(),
            row.policy.clone(),
            row.rw.to_owned(),
            figure(row.longest_ms()),
            optional(row.most(|sample| Some(sample.silence_ms))),
            optional(row.most(|sample| sample.resumed_ms)),
            figure(after),
            row.lanes_lost().to_string(),
            row.errors().to_string(),
            counted(checked),
            counted(row.wrong_blocks()),
        ]
    });
    let headings = [
        "Test",
        "Policy",
        "",
        "longest I/O (ms)",
        "no completion for (ms)",
        "resumed after (ms)",
        "MB/s after",
        "paths lost",
        "errors",
        "blocks verified",
        "wrong",
    ];
    table(&headings, &lines.collect::<Vec<_>>(), 3)
        + "\nMaxima of all repeats; \"MB/s after\": the median, from one second after the last event on."
}

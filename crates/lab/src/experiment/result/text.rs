//! Results for eyes, on a terminal.

use std::fmt;

use lunway_block::duration::ExactDuration;
use lunway_report::chart::short_ns;
use lunway_report::{figure, response_time};

use crate::experiment::result::results::{Compared, Link, ResultCell, ResultRow, Results};

/// Ratio from which the window is not the limit: it would allow so much more than was moved.
const BEYOND_LINK: f64 = 3.0;

impl fmt::Display for Results {
    /// Links, tables, figures, verdicts, notes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.links.is_empty() {
            parts.push(self.links_text());
        }
        if !self.rows.is_empty() {
            parts.push(self.rows_text());
        }
        parts.extend(self.disturbed_text());
        parts.extend(self.matrices().into_iter().map(|matrix| matrix.to_string()));
        parts.extend(self.comparisons.iter().map(compared_text));
        parts.extend(self.backups_text());
        if !self.figures.is_empty() {
            let lines = self.figures.iter().map(|(name, value)| [name.clone(), headline(*value)]);
            parts.push(table(&["Figure", ""], &lines.collect::<Vec<_>>(), 1));
        }
        parts.extend(self.verdicts_text());
        parts.extend(self.notes.iter().cloned());
        f.write_str(&parts.join("\n\n"))
    }
}

impl Results {
    fn links_text(&self) -> String {
        let rows = self.links.iter().map(|link| {
            let Link { name, rate, mtu, delay, calibrated_mb_s, expected_mb_s } = link;
            let rate = rate.map_or("-".to_owned(), |rate| rate.to_string());
            let expected = expected_mb_s.map_or("-".to_owned(), figure);
            let delay = ExactDuration(*delay).to_string();
            [name.clone(), rate, mtu.to_string(), delay, expected, figure(*calibrated_mb_s)]
        });
        table(
            &["Link", "rate", "MTU", "delay", "expected MB/s", "calibrated MB/s"],
            &rows.collect::<Vec<_>>(),
            1,
        )
    }

    fn rows_text(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            [
                row.test.clone(),
                row.topology.clone(),
                row.policy.clone(),
                row.rw.to_owned(),
                response_time(row.median(|sample| sample.response_ms)),
                figure(row.median(|sample| sample.mb)),
                figure(row.median(|sample| sample.iops)),
                figure(row.median(|sample| sample.mb_s)),
                row.deviance_text(),
                row.remark(),
            ]
        });
        let headings =
            ["Test", "Topology", "Policy", "", "Response", "MB", "IOPS", "MB/s", "vs. control (%)", ""];
        let mut text = table(&headings, &rows.collect::<Vec<_>>(), 4);
        text += "\nMedians of the repeats that count. MB = 1,000,000 bytes.";
        for row in &self.rows {
            text += &row.details();
        }
        text
    }

    /// Verdicts, those of one table of the file as one paragraph.
    fn verdicts_text(&self) -> Vec<String> {
        let mut paragraphs: Vec<(usize, String)> = Vec::new();
        for (of, said) in self.told_verdicts() {
            match paragraphs.last_mut().filter(|(table, _)| *table == of) {
                Some((_, text)) => *text += &format!("\n{}", said.text),
                None => paragraphs.push((of, said.text.clone())),
            }
        }
        paragraphs.into_iter().map(|(_, text)| text).collect()
    }

    /// The cells of each run, direction and delay, as a matrix of windows and MTUs.
    pub(crate) fn matrices(&self) -> Vec<Matrix<'_>> {
        let mut matrices: Vec<Matrix<'_>> = Vec::new();
        for cell in &self.cells {
            match matrices.iter_mut().find(|matrix| matrix.takes(cell)) {
                Some(matrix) => matrix.add(cell),
                None => matrices.push(Matrix {
                    cells: vec![cell],
                    mtus: vec![cell.mtu],
                    windows: vec![cell.window.to_string()],
                }),
            }
        }
        matrices
    }
}

impl ResultRow {
    /// Against the control, per cent; words where there is none.
    pub(crate) fn deviance_text(&self) -> String {
        match self.deviance_pct {
            _ if self.is_control => "0".to_owned(),
            Some(deviance) => format!("{deviance:+.1}"),
            None => "–".to_owned(),
        }
    }

    /// Returns a remark that a reader must know, in a word or two.
    pub(crate) fn remark(&self) -> String {
        let mut remarks = Vec::new();
        if self.limited() {
            remarks.push("limited by the processor: does not count".to_owned());
        } else if !self.counts() {
            remarks.push("cut short: does not count".to_owned());
        } else {
            let left_out = self.samples.len() - self.counting().count();
            if left_out > 0 {
                remarks.push(format!("{left_out} of {} repeats do not count", self.samples.len()));
            }
        }
        match self.errors() {
            0 => {}
            1 => remarks.push("1 error".to_owned()),
            errors => remarks.push(format!("{errors} errors")),
        }
        match self.wrong_blocks() {
            None | Some(0) => {}
            Some(wrong) => remarks.push(format!("{wrong} wrong blocks")),
        }
        remarks.join(", ")
    }

    /// Returns the first error, and the CPU usage where it mattered.
    fn details(&self) -> String {
        let mut text = String::new();
        if let Some(error) = self.samples.iter().find_map(|sample| sample.first_error.as_ref()) {
            text += &format!("\n{} {}, first error: {error}", self.test, self.rw);
        }
        // The two rows of a mixed access were one measurement: what is of both is said once.
        let limited = self.samples.iter().filter(|sample| sample.limited);
        let busiest = limited.max_by(|a, b| a.cpu.mean.total_cmp(&b.cpu.mean));
        if let Some(sample) = busiest.filter(|_| !self.timeline_is_of_other_row()) {
            text += &format!("\n{}: {}.", self.measurement(), sample.cpu);
        }
        text
    }
}

impl ResultCell {
    /// Returns the place in the matrix: `10 kB × 1500, 1ms`.
    pub(crate) fn name(&self) -> String {
        format!("{} × {}, {}", self.window, self.mtu, ExactDuration(self.delay))
    }
}

/// Cells of one run, direction and delay.
pub(crate) struct Matrix<'a> {
    cells: Vec<&'a ResultCell>,
    pub(crate) windows: Vec<String>,
    pub(crate) mtus: Vec<u32>,
}

impl<'a> Matrix<'a> {
    fn takes(&self, cell: &ResultCell) -> bool {
        let first = self.cells[0];
        (&first.test, first.rw, first.delay) == (&cell.test, cell.rw, cell.delay)
    }

    fn add(&mut self, cell: &'a ResultCell) {
        if !self.mtus.contains(&cell.mtu) {
            self.mtus.push(cell.mtu);
        }
        if !self.windows.contains(&cell.window.to_string()) {
            self.windows.push(cell.window.to_string());
        }
        self.cells.push(cell);
    }

    /// Returns run, direction, delay and the resulting round trip.
    pub(crate) fn title(&self) -> String {
        let first = self.cells[0];
        let rtt = self.cells.iter().map(|cell| cell.rtt_least_ms).fold(f64::INFINITY, f64::min);
        format!(
            "{}, {}, {}: delay {} each way, round trip {}",
            first.test,
            first.topology,
            first.rw,
            ExactDuration(first.delay),
            short_ns(rtt * 1e6)
        )
    }

    pub(crate) fn cell(&self, window: &str, mtu: u32) -> Option<&'a ResultCell> {
        self.cells.iter().copied().find(|cell| cell.mtu == mtu && cell.window.to_string() == window)
    }
}

impl fmt::Display for Matrix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut headings = vec!["TCP window".to_owned()];
        headings.extend(self.mtus.iter().map(|mtu| format!("MTU {mtu}")));
        headings.push("one window per round trip".to_owned());
        let rows: Vec<Vec<String>> = self
            .windows
            .iter()
            .map(|window| {
                let mut row = vec![window.clone()];
                row.extend(self.mtus.iter().map(|mtu| match self.cell(window, *mtu) {
                    Some(cell) if cell.counts() => figure(cell.mb_s()),
                    Some(cell) => format!("({})", figure(cell.mb_s())),
                    None => "–".to_owned(),
                }));
                let cells = || self.mtus.iter().filter_map(|mtu| self.cell(window, *mtu));
                let bound = cells().filter_map(ResultCell::bound_mb_s).fold(f64::NAN, f64::max);
                let moved = cells().map(ResultCell::mb_s).fold(0.0, f64::max);
                row.push(match bound.is_finite() {
                    true if bound < BEYOND_LINK * moved => format!("≤ {}", figure(bound)),
                    true => "more than the link".to_owned(),
                    false => "–".to_owned(),
                });
                row
            })
            .collect();
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        write!(f, "{}\n{}\nMB/s. MB = 1,000,000 bytes.", self.title(), table(&headings, &rows, 1))?;
        if self.cells.iter().any(|cell| !cell.counts()) {
            f.write_str(" In brackets: limited by the processor or cut short, does not count.")?;
        }
        Ok(())
    }
}

/// A figure; what is counted is whole.
pub(crate) fn headline(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { figure(value) }
}

fn compared_text(compared: &Compared) -> String {
    let mut text = format!("{}, {}\n{}", compared.test, compared.topology, compared.comparison);
    let limited = compared.limited_rows();
    if !limited.is_empty() {
        text += &format!("\nLimited by the processor, and not counted: {}.", limited.join(", "));
    }
    text
}

/// Rows under headings: the first `words` columns and the last one, where it has no heading, to the left, figures to
/// the right.
pub(crate) fn table<R: AsRef<[String]>>(headings: &[&str], rows: &[R], words: usize) -> String {
    let count = headings.len();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row.as_ref()[column].chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |cells: &[&str]| {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            let left = column < words || column + 1 == count && count > 2 && headings[column].is_empty();
            if left { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rows = rows.iter().map(|row| line(&row.as_ref().iter().map(String::as_str).collect::<Vec<_>>()));
    std::iter::once(line(headings)).chain(rows).collect::<Vec<_>>().join("\n")
}

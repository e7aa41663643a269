//! Results for eyes, on a terminal.

use std::fmt;

use lunway_report::{figure, response_time};

use crate::measure::outcome::Outcome;

/// The columns that people expect of a storage benchmark. `Display` draws it; figures are aligned, units stated below.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The lines, in order.
    pub rows: Vec<TableRow>,
}

/// Row of the table: one direction of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// The job, and the direction where it has both.
    pub name: String,
    /// Wrote.
    pub is_write: bool,
    /// Mean response time, milliseconds.
    pub response_ms: f64,
    /// Moved, millions of bytes.
    pub mb: f64,
    /// I/Os per second.
    pub iops: f64,
    /// Millions of bytes per second.
    pub mb_s: f64,
    /// I/Os that are in the figures.
    pub ios: u64,
    /// I/Os that failed.
    pub errors: u64,
}

/// Fewest I/Os whose mean and rate say something: of times that vary as an exponential distribution does, the mean of
/// ten is a third off.
const IOS_MIN: u64 = 10;

impl TableRow {
    /// Remark that there were too few I/Os for the precision that the figures suggest.
    pub fn too_short(&self) -> Option<String> {
        too_short(self.ios)
    }
}

/// Returns a remark if there are too few I/Os for a rate and a mean; `None` if there are enough, or none at all.
pub(crate) fn too_short(ios: u64) -> Option<String> {
    match ios {
        0 => None,
        1 => Some("too short: 1 I/O".to_owned()),
        ios => (ios < IOS_MIN).then(|| format!("too short: {ios} I/Os")),
    }
}

impl Table {
    /// Explanation of the units, for callers that draw the table differently.
    pub const UNITS: &'static str = "Response: mean per I/O. MB = 1,000,000 bytes.";

    /// A row for each direction of each outcome.
    pub fn of(outcomes: &[Outcome]) -> Self {
        let rows = outcomes.iter().flat_map(|outcome| {
            let job = &outcome.job;
            let both = job.mix.reads() && job.mix.writes();
            outcome.directions().map(move |(direction, figures)| TableRow {
                name: if both { format!("{} ({direction})", job.name) } else { job.name.clone() },
                is_write: direction == "write",
                response_ms: figures.response.mean() / 1e6,
                mb: figures.bytes as f64 / 1e6,
                iops: figures.iops(),
                mb_s: figures.bytes_per_second() / 1e6,
                ios: figures.ios,
                errors: figures.errors,
            })
        });
        Self { rows: rows.collect() }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(4);
        writeln!(f, "{:width$}  {:>13}  {:>9}  {:>9}  {:>8}", "Test", "Response", "MB", "IOPS", "MB/s")?;
        for row in &self.rows {
            write!(
                f,
                "{:width$}  {:>13}  {:>9}  {:>9}  {:>8}",
                row.name,
                response_time(row.response_ms),
                figure(row.mb),
                figure(row.iops),
                figure(row.mb_s)
            )?;
            let errors = match row.errors {
                0 => None,
                1 => Some("1 error".to_owned()),
                errors => Some(format!("{errors} errors")),
            };
            let remarks: Vec<_> = row.too_short().into_iter().chain(errors).collect();
            match remarks.is_empty() {
                true => writeln!(f)?,
                false => writeln!(f, "  {}", remarks.join(", "))?,
            }
        }
        f.write_str(Self::UNITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_errors_are_shown() {
        let row = |name: &str, errors| TableRow {
            name: name.into(),
            is_write: false,
            response_ms: 0.5,
            mb: 1234.0,
            iops: 2000.0,
            mb_s: 8.192,
            ios: 1000,
            errors,
        };
        let short = TableRow { ios: 2, response_ms: 0.00776, ..row("write 4K", 1) };
        let text = Table { rows: vec![row("read 4K", 0), row("read seq 4 MiB", 3), short] }.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].len(), lines[1].len());
        assert_eq!(lines[1], "read 4K             0.5000 ms      1,234      2,000     8.192");
        assert!(lines[2].ends_with("  3 errors"));
        assert!(
            lines[3].contains("  7.760 µs  ") && lines[3].ends_with("  too short: 2 I/Os, 1 error"),
            "{text}"
        );
        assert!(lines[4].contains("MB = 1,000,000 bytes"));
    }
}

//! Something over time, for a terminal.

use std::fmt;
use std::time::Duration;

use crate::chart::{ChartLine, Event};

/// Eighths of a character cell, from the bottom.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Rows of characters for each line: enough to see a half from a whole, few enough for eight lines on a screen.
const ROWS: usize = 2;
/// Marks of events in the row of the axis, in turn.
const MARKS: &str = "abcdefghijklmnopqrstuvwxyz";

/// Values over time in characters: for each line two rows of blocks on one scale for all, marks where something
/// happened, and below them what that was.
///
/// ```text
/// lane1  ████████▂            ▅███████████  up to 24.1 MB/s
///        █████████            ████████████
/// lane2  █████████████████████████████████  up to 24.2 MB/s
///        █████████████████████████████████
///        0 s      a           b        6 s
///        a  1.60 s  lane1 pulled
///        b  4.00 s  lane1 plugged in
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Strips<'a> {
    /// Unit of the values.
    pub unit: &'a str,
    /// Spacing of the values of every line.
    pub interval: Duration,
    /// The lines.
    pub lines: &'a [ChartLine<'a>],
    /// Events during the measurement, in order of time.
    pub events: &'a [Event<'a>],
    /// Characters for the whole time. More values than this share a character, fewer take several.
    pub width: usize,
}

impl fmt::Display for Strips<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
        let columns = match self.width / values.max(1) {
            0 => self.width.max(1),
            each => each * values,
        };
        let most = self.lines.iter().flat_map(|line| line.values).copied().fold(0.0, f64::max);
        let names = self.lines.iter().map(|line| line.label.chars().count()).max().unwrap_or(0);
        for line in self.lines {
            let heights: Vec<usize> =
                (0..columns).map(|column| height(line.values, values, column, columns, most)).collect();
            let top = line.values.iter().copied().fold(0.0, f64::max);
            for row in (0..ROWS).rev() {
                let cell = |height: &usize| BLOCKS[height.saturating_sub(row * 8).min(8)];
                let cells: String = heights.iter().map(cell).collect();
                let text = match row + 1 == ROWS {
                    true => {
                        format!("{:names$}  {cells}  up to {} {}", line.label, crate::figure(top), self.unit)
                    }
                    false => format!("{:names$}  {cells}", ""),
                };
                writeln!(f, "{}", text.trim_end())?;
            }
        }
        self.axis(f, names, values, columns)
    }
}

impl Strips<'_> {
    /// The time below the blocks, with marks, and the list of what they mark.
    fn axis(&self, f: &mut fmt::Formatter<'_>, names: usize, values: usize, columns: usize) -> fmt::Result {
        let seconds = self.interval.as_secs_f64() * values.max(1) as f64;
        let mut axis: Vec<char> = vec![' '; columns];
        let end = format!("{seconds:.0} s");
        for (at, text) in [(0, "0 s"), (columns.saturating_sub(end.chars().count()), end.as_str())] {
            for (cell, c) in axis.iter_mut().skip(at).zip(text.chars()) {
                *cell = c;
            }
        }
        let marks = || self.events.iter().zip(MARKS.chars().cycle());
        for (event, mark) in marks() {
            let column = event.at.as_secs_f64() / seconds * columns as f64;
            // Of two in one place the first is shown; the list has both.
            let column = (column.max(0.0) as usize).min(columns - 1);
            if !axis[column].is_ascii_lowercase() || axis[column] == 's' {
                axis[column] = mark;
            }
        }
        let axis: String = axis.into_iter().collect();
        write!(f, "{:names$}  {}", "", axis.trim_end())?;
        for (event, mark) in marks() {
            write!(f, "\n{:names$}  {mark}  {:.2} s  {}", "", event.at.as_secs_f64(), event.label)?;
        }
        Ok(())
    }
}

/// Returns the height of a column, in eighths of a character: the mean of the values that fall into it. Anything above
/// zero is visible.
fn height(line: &[f64], values: usize, column: usize, columns: usize, most: f64) -> usize {
    let first = column * values / columns;
    let behind = ((column + 1) * values / columns).max(first + 1);
    let part = line.get(first.min(line.len())..behind.min(line.len())).unwrap_or_default();
    let (sum, count) = part
        .iter()
        .filter(|value| value.is_finite())
        .fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    let share = if count == 0 || most <= 0.0 { 0.0 } else { sum / f64::from(count) / most };
    let eighths = (share * (ROWS * 8) as f64).round() as usize;
    if share > 0.0 { eighths.max(1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(label: &'a str, values: &'a [f64]) -> ChartLine<'a> {
        ChartLine { label, tone: None, values }
    }

    #[test]
    fn a_gap_is_empty_and_half_is_half_as_high() {
        let (one, two) = ([20.0, 0.0, 10.0, 20.0], [20.0, 20.0, 20.0, 20.0]);
        let at = Duration::from_secs(1);
        let text = Strips {
            unit: "MB/s",
            interval: at,
            lines: &[line("lane1", &one), line("lane2", &two)],
            events: &[Event { at, label: "lane1 pulled" }],
            width: 8,
        }
        .to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "lane1  ██    ██  up to 20.00 MB/s",
                "       ██  ████",
                "lane2  ████████  up to 20.00 MB/s",
                "       ████████",
                "       0 a  4 s",
                "       a  1.00 s  lane1 pulled"
            ]
        );
    }

    #[test]
    fn many_values_share_a_character_and_none_make_no_panic() {
        let many: Vec<f64> = (0..1000).map(f64::from).chain([f64::NAN]).collect();
        let strips = |lines: &[ChartLine<'_>], width| {
            Strips { unit: "", interval: Duration::from_millis(10), lines, events: &[], width }.to_string()
        };
        let text = strips(&[line("a", &many)], 40);
        assert_eq!(text.lines().next().unwrap().chars().take(43).filter(|c| *c == '█').count(), 1);
        assert_eq!(text.lines().nth(1).unwrap().chars().count(), 43);
        strips(&[line("a", &[])], 40);
        strips(&[], 0);
    }

    #[test]
    fn a_little_is_not_nothing() {
        assert_eq!(height(&[0.01, 100.0], 2, 0, 2, 100.0), 1);
        assert_eq!(height(&[0.0, 100.0], 2, 0, 2, 100.0), 0);
        assert_eq!(height(&[0.0, 100.0], 2, 1, 2, 100.0), 16);
    }
}

//! Printing, with a person watching or without.

use std::env;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};

use anyhow::Context;
use serde::Serialize;

use crate::failure::Failure;

/// Tells whether colours may be used at all: not if `NO_COLOR` is set to anything (no-color.org), nor on a dumb
/// terminal.
pub(crate) fn colour_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns `true` if the output is a terminal that can be redrawn, with a person watching.
pub(crate) fn can_redraw(out: &impl IsTerminal) -> bool {
    out.is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a line, or several, and gets them out at once: the reader may be a program that waits for them.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    // One write: a reader of lines does not find the last one missing.
    let text = format!("{text}\n");
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Says a sentence on standard error while the command goes on: a bar there is drawn again below it.
pub(crate) fn say(sentence: &str) {
    let mut err = io::stderr().lock();
    let clear = if can_redraw(&err) { "\r\x1b[K" } else { "" };
    // A missing reader is no reason to end.
    let _ = writeln!(err, "{clear}lunway: {}", clean(sentence));
}

/// A line, or a part of one, on standard error. A missing reader, or a terminal that is gone, is no reason to end, as
/// the standard library's macros have it, which panic.
pub(crate) fn tell(text: fmt::Arguments<'_>, end: &str) {
    let _ = write!(io::stderr().lock(), "{text}{end}");
}

/// Prints a document on one line, which may end up on a terminal.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).context("writing JSON")?;
    print(&escaped(&text, |_| false))
}

/// Text with [unprintable characters](is_unprintable) as the escapes of JSON, apart from those to keep: JSON itself
/// demands only those below U+0020.
pub(crate) fn escaped(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' if !keep(char) => escaped.push_str("\\n"),
            char if is_unprintable(char) && !keep(char) => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(char));
            }
            char => escaped.push(char),
        }
    }
    escaped
}

/// A heading: bold for a person.
pub(crate) fn heading(text: &str) -> String {
    if io::stdout().is_terminal() && colour_wanted() {
        format!("\x1b[1m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Returns text from another machine without the characters that control terminals, or the order of what they show.
pub(crate) fn clean(text: &str) -> String {
    text.replace(is_unprintable, "\u{FFFD}")
}

/// A control character, or one that is not shown and changes how others are: separators of lines, and the formats that
/// hide text or turn it around (Unicode UAX #9 §2, "Bidi_Control"; zero width, U+FEFF).
fn is_unprintable(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{061C}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FEFF}')
}

/// `1 point`, `2 points`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Names and values in two columns.
pub(crate) fn columns<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines: Vec<_> =
        rows.iter().map(|(name, value)| format!("  {name:width$}  {}", clean(value))).collect();
    lines.join("\n")
}

/// Rows under headings; `none` if there are no rows. The headings are bold for a person.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]], none: &str) -> String {
    let text = plain_table(headings, rows, none);
    let text = match width() {
        Some(width) => text.lines().map(|line| cut(line, width)).collect::<Vec<_>>().join("\n"),
        None => text,
    };
    match text.split_once('\n') {
        Some((line, rest)) if !rows.is_empty() => format!("{}\n{rest}", heading(line)),
        _ => text,
    }
}

/// Columns of the terminal that standard output is; `None`: it is none.
fn width() -> Option<usize> {
    let size = io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(io::stdout()).ok())??;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// A line of at most so many columns: what is cut off is an ellipsis.
fn cut(line: &str, width: usize) -> String {
    match line.char_indices().nth(width) {
        None => line.to_owned(),
        Some(_) => line.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// [`table`] without anything for a terminal. What cells have from another machine is [cleaned](clean) here.
pub(crate) fn plain_table<const N: usize>(headings: [&str; N], rows: &[[String; N]], none: &str) -> String {
    if rows.is_empty() {
        return none.to_owned();
    }
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| clean(cell))).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    });
    let line = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let lines = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(headings)).chain(lines).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_line_is_cut_to_the_terminal() {
        for (line, width, cut_line) in [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("äöü", 2, "ä…"), ("", 1, "")]
        {
            assert_eq!(cut(line, width), cut_line);
        }
    }

    #[test]
    fn columns_line_up() {
        let text = columns([("size", "1 GiB".to_owned()), ("sector", "512".to_owned())]);
        assert_eq!(text, "  size    1 GiB\n  sector  512");
    }

    #[test]
    fn a_table_is_as_wide_as_its_widest_cells() {
        let rows = [["1".to_owned(), "a".to_owned()], ["20".to_owned(), String::new()]];
        assert_eq!(table(["N", "NAME"], &rows, "none"), "N   NAME\n1   a\n20");
        assert_eq!(table::<2>(["N", "NAME"], &[], "none"), "none");
    }

    #[test]
    fn what_a_target_says_cannot_control_the_terminal() {
        let hostile = "a\u{9b}2J\u{7f}\u{202e}b\u{2028}\u{feff}ä";
        assert_eq!(clean(hostile), "a\u{FFFD}2J\u{FFFD}\u{FFFD}b\u{FFFD}\u{FFFD}ä");
        let document = serde_json::json!({ "name": hostile });
        assert_eq!(
            escaped(&document.to_string(), |_| false),
            r#"{"name":"a\u009b2J\u007f\u202eb\u2028\ufeffä"}"#
        );
        assert_eq!(
            serde_json::from_str::<Value>(&escaped(&document.to_string(), |_| false)).unwrap(),
            document
        );
        assert_eq!(clean("disk\x1b[2J\r\n"), "disk\u{FFFD}[2J\u{FFFD}\u{FFFD}");
        let rows = [["iqn.a\x1b[2J\nroot".to_owned()]];
        assert_eq!(table(["INITIATOR"], &rows, "none"), "INITIATOR\niqn.a\u{FFFD}[2J\u{FFFD}root");
    }
}

//! A screen that is drawn again and again in the same place.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::terminal;

/// To the other screen, without its cursor; and back to the one that was there before.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// `true` if this process has the alternate screen: there is one terminal, and the end of the process restores it.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// A text as one drawing: from the top left corner, each line cleared behind its end and everything below, so that
/// nothing flickers.
pub(crate) fn redrawn(text: &str) -> String {
    let lines = text.lines().map(|line| format!("{line}\x1b[K\n")).collect::<String>();
    format!("\x1b[H{lines}\x1b[J")
}

/// The terminal's other screen, on standard error; dropped, the one before it comes back with all that stood on it.
///
/// An end of the process that runs no destructor calls [`leave`] itself.
#[derive(Debug)]
pub(crate) struct Screen(());

impl Screen {
    /// `None` where standard error is no terminal that could be drawn on.
    pub(crate) fn enter() -> Option<Self> {
        let mut err = io::stderr().lock();
        if !terminal::can_redraw(&err) {
            return None;
        }
        ENTERED.store(true, Ordering::SeqCst);
        let _ = err.write_all(ENTER.as_bytes());
        Some(Self(()))
    }

    /// Draws `text`, cut to what the terminal has room for. A terminal that has gone away is not worth an error.
    pub(crate) fn draw(&self, text: &str) {
        let mut err = io::stderr().lock();
        let (columns, rows) = size();
        let _ = err.write_all(redrawn(&cut(text, columns, rows)).as_bytes());
        let _ = err.flush();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Returns `true` while this process draws on the alternate screen.
pub(crate) fn is_entered() -> bool {
    ENTERED.load(Ordering::SeqCst)
}

/// Gives the terminal back, if it was taken.
pub(crate) fn leave() {
    if ENTERED.swap(false, Ordering::SeqCst) {
        let _ = io::stderr().lock().write_all(LEAVE.as_bytes());
    }
}

/// Columns and rows of the terminal; those of the oldest where it does not say.
pub(crate) fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// The part of a text that fits. What sets colours takes no room, and is kept: else one would never end.
fn cut(text: &str, columns: usize, rows: usize) -> String {
    // The last row stays free: a line feed there would scroll.
    let lines = text.lines().take(rows.saturating_sub(1)).map(|line| {
        let (mut room, mut setting) = (columns, false);
        let fits = |letter: &char| {
            if setting {
                setting = *letter != 'm';
                return true;
            }
            setting = *letter == '\x1b';
            let fits = setting || room > 0;
            room -= usize::from(!setting && room > 0);
            fits
        };
        line.chars().filter(fits).collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_and_colours_still_end() {
        assert_eq!(cut("abcdef\nx\ny\nz", 4, 3), "abcd\nx");
        assert_eq!(cut("\x1b[1mabcdef\x1b[0m", 3, 9), "\x1b[1mabc\x1b[0m");
        assert_eq!(cut("\u{2588}\u{2588}\u{2588}", 2, 2), "\u{2588}\u{2588}");
    }

    #[test]
    fn a_drawing_clears_what_was_longer_before() {
        assert_eq!(redrawn("a\nb"), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
    }
}

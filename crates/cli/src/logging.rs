//! Logging: levels, format and destination.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use rustix::process::configure_io_flusher_behavior;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::terminal;

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of text
    #[default]
    Text,
    /// One JSON object per line, with the fields of each event
    Json,
}

/// Lines that wait for a reader of the log, at most: about a megabyte. Further ones are dropped.
const WAITING_MAX: usize = 4096;

/// Logs to standard error: warnings normally, more with each `-v`. `RUST_LOG`, where set, decides instead. A command
/// that breaks things itself, and tells what came of it, is not interrupted by warnings that they are broken.
///
/// Of a command that serves, a thread writes the log: a log file on a disk that hangs, or a pipe that is not read, must
/// not stop the threads of I/O. It ends with the guard, which waits a second for it at most.
#[must_use]
pub(crate) fn start(
    verbose: u8,
    format: LogFormat,
    breaks_things: bool,
    serves: bool,
) -> Option<WorkerGuard> {
    let level = match verbose {
        0 if breaks_things => "error",
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = io::stderr().is_terminal() && terminal::colour_wanted();
    let (writer, guard) = if serves {
        let lines = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_MAX);
        // Passed on to threads, which must not wait for writes through this process: protection.rs says why. It sets
        // it for the main thread where that is wanted.
        let is_set = configure_io_flusher_behavior(true).is_ok();
        let (writer, guard) = lines.thread_name("log").finish(io::stderr());
        if is_set && let Err(error) = configure_io_flusher_behavior(false) {
            eprintln!("lunway: PR_SET_IO_FLUSHER stays set: {error}");
        }
        (BoxMakeWriter::new(move || Lines { log: writer.clone(), colour }), Some(guard))
    } else {
        (BoxMakeWriter::new(move || Lines { log: io::stderr(), colour }), None)
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colour);
    match format {
        LogFormat::Text => log.init(),
        // Without the module that a line comes from, which would be another `target` beside that of iSCSI.
        LogFormat::Json => log.with_target(false).json().flatten_event(true).init(),
    }
    guard
}

/// A log in which an event is a line, whatever text of other machines it repeats: unprintable characters are escaped.
struct Lines<W> {
    log: W,
    /// The formatter colours, and escapes ESC in what it is given.
    colour: bool,
}

impl<W: Write> Write for Lines<W> {
    /// Takes an event, as the formatter hands it over.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let line = terminal::escaped(text, |char| self.colour && char == '\x1b') + "\n";
        self.log.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.log.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_whatever_text_it_repeats() {
        let mut log = Vec::new();
        for (colour, shown) in [(false, "\\u001b[2Ja\\nb\\u202ec\n"), (true, "\x1b[2Ja\\nb\\u202ec\n")] {
            log.clear();
            let mut lines = Lines { log: &mut log, colour };
            lines.write_all("\x1b[2Ja\nb\u{202e}c\n".as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(&log), shown);
        }
    }
}

//! What is logged, and where.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

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

/// Logs to standard error: warnings normally, more with each `-v`. `RUST_LOG`, where set, decides instead. A command
/// that breaks things itself, and tells what came of it, is not interrupted by warnings that they are broken.
pub(crate) fn start(verbose: u8, format: LogFormat, breaks_things: bool) {
    let level = match verbose {
        0 if breaks_things => "error",
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = io::stderr().is_terminal() && terminal::colour_wanted();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colour);
    match format {
        LogFormat::Text => log.init(),
        // Without the module that a line comes from, which would be another `target` beside that of iSCSI.
        LogFormat::Json => log.with_target(false).json().flatten_event(true).init(),
    }
}

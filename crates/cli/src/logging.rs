//! What is logged, and where.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::terminal;

/// Logs to standard error: warnings normally, more with each `-v`. `RUST_LOG`, where set, decides instead.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = io::stderr().is_terminal() && terminal::colour_wanted();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colour).init();
}

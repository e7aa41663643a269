//! `lunway session`.

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use lunway_block::duration::parse_duration;
use lunway_console::Method;
use serde_json::Value;

use super::{Daemon, rows, text};
use crate::failure::Failure;
use crate::terminal;

/// List sessions of a running daemon, ask initiators to log out, or end sessions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway session list
  lunway session logout 17 --grace 30s     # ask, and end it after 30 s
  lunway session drop 17                   # end it; the initiator may return")]
pub(crate) struct SessionCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the sessions
    List(Daemon),
    /// End a session at once
    Drop {
        /// The TSIH, the number that `session list` shows
        tsih: u16,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Ask the initiator to log out; end the session if it does not
    Logout {
        /// The TSIH, the number that `session list` shows
        tsih: u16,
        /// Time to log out, in whole seconds: 30s, 2m
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
        grace: Duration,
        #[command(flatten)]
        daemon: Daemon,
    },
}

impl SessionCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List(daemon) => daemon.show("/v1/sessions", table),
            Verb::Drop { tsih, daemon } => tell(&daemon, tsih, Method::DELETE, "", "dropped"),
            Verb::Logout { tsih, grace, daemon } => {
                let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
                tell(&daemon, tsih, Method::POST, &format!("/logout?grace_s={seconds}"), "asked to log out")
            }
        }
    }
}

fn tell(daemon: &Daemon, tsih: u16, method: Method, rest: &str, done: &str) -> Result<(), Failure> {
    let answer = daemon.ask(method, &format!("/v1/sessions/{tsih}{rest}"), None)?;
    if daemon.json {
        return terminal::print_json(&answer);
    }
    match answer["found"] == true {
        true => terminal::print(&format!("session {tsih}: {done}")),
        false => terminal::print(&format!("there is no session {tsih}")),
    }
}

fn table(answer: &Value) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let row = |session: &Value| {
        let age = now.saturating_sub(session["since"].as_u64().unwrap_or(now));
        [
            text(session, "tsih"),
            text(session, "initiator"),
            text(session, "target"),
            text(session, "peer"),
            text(session, "portal"),
            text(session, "user"),
            age_text(Duration::from_secs(age)),
        ]
    };
    let rows: Vec<_> = rows(answer, "sessions").iter().map(row).collect();
    terminal::table(["TSIH", "INITIATOR", "TARGET", "FROM", "PORTAL", "USER", "AGE"], &rows, "no sessions")
}

/// `3d 4h`, `4h 5m`, `5m 6s`, `6s`.
fn age_text(age: Duration) -> String {
    let s = age.as_secs();
    match (s / 86400, s / 3600 % 24, s / 60 % 60, s % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {s}s"),
        (0, h, m, _) => format!("{h}h {m}m"),
        (d, h, ..) => format!("{d}d {h}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units_at_most() {
        for (s, text) in [(5, "5s"), (65, "1m 5s"), (3 * 3600 + 61, "3h 1m"), (2 * 86400 + 3600, "2d 1h")] {
            assert_eq!(age_text(Duration::from_secs(s)), text);
        }
    }
}

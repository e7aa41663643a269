//! `lunway backup schedule`.

use clap::{Args, Subcommand};
use lunway_block::duration::HumanTime;
use lunway_block::size::HumanSize;
use lunway_console::{Method, path_part};
use lunway_schedule::{TimeZone, wall_clock};
use serde_json::Value;

use crate::command::manage::{Daemon, rows, text};
use crate::failure::Failure;
use crate::terminal;

/// Show the backups that a daemon makes by the clock, and begin one now
///
/// They are the `[[backup]]` tables of its configuration file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup schedule list
  lunway backup schedule run db")]
pub(super) struct Schedule {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the backups by the clock with their next and last runs
    List {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Begin a run now, or as soon as no other run of its LUN is under way
    Run {
        /// The backup's name in the configuration
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
}

impl Schedule {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List { daemon } => daemon.show("/v1/schedules", table),
            Verb::Run { name, daemon } => {
                let path = format!("/v1/schedules/{}/run", path_part(&name));
                let answer = daemon.ask(Method::POST, &path, None)?;
                if daemon.json {
                    return terminal::print_json(&answer);
                }
                let begins =
                    if answer["running_since"].is_null() { "waits for another run" } else { "has begun" };
                terminal::print(&format!(
                    "a backup of {} to {} {begins}: `lunway backup schedule list` shows its end",
                    text(&answer, "source"),
                    text(&answer, "destination")
                ))
            }
        }
    }
}

fn table(answer: &Value) -> String {
    let schedules = rows(answer, "schedules");
    let row = |of: &Value| {
        [text(of, "name"), text(of, "source"), text(of, "destination"), text(of, "when"), next(of), last(of)]
    };
    let cells: Vec<_> = schedules.iter().map(row).collect();
    let headings = ["NAME", "SOURCE", "DESTINATION", "WHEN", "NEXT", "LAST"];
    let mut page = terminal::table(headings, &cells, "no [[backup]] is configured");
    for of in schedules {
        if of["overdue"] == true {
            page += &format!("\n{}: overdue: {}", text(of, "name"), overdue(of));
        }
        if let Some(error) = of["last"]["error"].as_str() {
            page += &format!("\n{}: {}", text(of, "name"), terminal::clean(error));
        }
        for note in rows(&of["last"], "notes").iter().filter_map(Value::as_str) {
            page += &format!("\n{}: {}", text(of, "name"), terminal::clean(note));
        }
    }
    page
}

fn moment(seconds: i64) -> String {
    wall_clock(seconds, &TimeZone::system())
}

/// The next run, which may be one that has failed and is made again.
fn next(of: &Value) -> String {
    let Some(at) = of["next"].as_i64() else { return "-".to_owned() };
    match (of["next_attempt"].as_i64(), of["retries_left"].as_u64()) {
        (Some(attempt), Some(left)) if attempt <= at => {
            format!("{} (again, {left} left)", moment(at))
        }
        _ => moment(at),
    }
}

/// Since when a point is missing.
fn overdue(of: &Value) -> String {
    match (of["last_success"].as_i64(), of["known_since"].as_i64()) {
        (Some(at), _) => format!("the last run that made a point ended {}", moment(at)),
        (None, Some(since)) => format!("it has made no point since {}", moment(since)),
        (None, None) => "it has made no point".to_owned(),
    }
}

/// The last run, or the one under way.
fn last(of: &Value) -> String {
    if let Some(since) = of["running_since"].as_i64() {
        return format!("running since {}", moment(since));
    }
    if let Some(begun) = of["interrupted"]["begun"].as_i64() {
        let times = match of["interrupted"]["times"].as_u64() {
            Some(times @ 2..) => format!(" {times} times"),
            _ => String::new(),
        };
        return format!("{}: ended with its daemon{times}", moment(begun));
    }
    let last = &of["last"];
    let Some(begun) = last["begun"].as_i64() else { return "none".to_owned() };
    let took = HumanTime::millis(last["took_ms"].as_u64().unwrap_or(0));
    match (last["error"].is_null(), last["point"].as_object()) {
        (true, Some(_)) => format!(
            "{}: {}, {} sent, {took}",
            moment(begun),
            text(&last["point"], "kind"),
            HumanSize(last["point"]["sent_bytes"].as_u64().unwrap_or(0))
        ),
        _ => format!("{}: failed", moment(begun)),
    }
}

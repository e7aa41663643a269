//! `lunway reservation`.

use anyhow::anyhow;
use clap::{Args, Subcommand};
use lunway_console::Method;
use serde_json::Value;

use super::lun::LunSelector;
use super::{Daemon, rows, text};
use crate::failure::Failure;
use crate::terminal;

/// List reservations, or remove all of a logical unit
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway reservation list
  lunway reservation clear iqn.2026-11.com.example:disks 3")]
pub(crate) struct Reservation {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List registrations and reservations
    List(Daemon),
    /// Remove all registrations and reservations of a logical unit, for a cluster that has lost its keys
    ///
    /// Registered initiators that are logged in would be fenced: their writes are refused from then on. Without
    /// --force, this is an error.
    Clear {
        #[command(flatten)]
        selector: LunSelector,
        /// Remove them even if registered initiators are logged in
        #[arg(long)]
        force: bool,
        /// Show what would be removed, without removing it
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
}

impl Reservation {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List(daemon) => daemon.show("/v1/reservations", table),
            Verb::Clear { selector, force, dry_run, daemon } => {
                if !force {
                    refuse_present(&daemon, &selector)?;
                }
                let dry = if dry_run { "?dry_run=true" } else { "" };
                let path = format!("{}/reservations{dry}", selector.path());
                let answer = daemon.ask(Method::DELETE, &path, None)?;
                if daemon.json {
                    return terminal::print_json(&answer);
                }
                let table = table(&answer);
                terminal::print(&match (rows(&answer, "reservations").is_empty(), dry_run) {
                    (true, _) => "nothing to clear".to_owned(),
                    (false, true) => format!("{table}\ndry run: nothing was cleared"),
                    (false, false) => format!("{table}\ncleared"),
                })
            }
        }
    }
}

/// Refuses to fence initiators that are logged in.
fn refuse_present(daemon: &Daemon, selector: &LunSelector) -> Result<(), Failure> {
    let dry = daemon.ask(Method::DELETE, &format!("{}/reservations?dry_run=true", selector.path()), None)?;
    let sessions = daemon.ask(Method::GET, "/v1/sessions", None)?;
    let units = rows(&dry, "reservations").iter();
    let ports = units.flat_map(|unit| rows(unit, "registrations")).map(|port| text(port, "initiator_port"));
    // The port of an initiator is its name, a comma and its ISID (RFC 7143 §4.4.3).
    let registered: Vec<_> = ports.filter_map(|port| Some(port.split_once(',')?.0.to_owned())).collect();
    let present = rows(&sessions, "sessions").iter().find(|session| {
        let initiator = text(session, "initiator");
        text(session, "target").eq_ignore_ascii_case(&selector.target)
            && registered.iter().any(|name| name.eq_ignore_ascii_case(&initiator))
    });
    match present {
        Some(session) => Err(Failure::failed(anyhow!(
            "{} has registered and is logged in from {}: it would be fenced, and its writes refused; --force clears all the same",
            text(session, "initiator"),
            text(session, "peer")
        ))),
        None => Ok(()),
    }
}

fn table(answer: &Value) -> String {
    let units = rows(answer, "reservations").iter().flat_map(|unit| {
        let line = |initiator: String, key: String, holder: bool| {
            let kind = if holder { text(unit, "reservation") } else { String::new() };
            let lasting = if unit["persists"] == true { "for good" } else { "until restart" };
            [text(unit, "target"), text(unit, "lun"), initiator, key, kind, lasting.to_owned()]
        };
        let registered = rows(unit, "registrations").iter().map(move |registration| {
            line(
                text(registration, "initiator_port"),
                text(registration, "key"),
                registration["holder"] == true,
            )
        });
        let mut lines: Vec<_> = registered.collect();
        if unit["reserved_by"].is_string() {
            let mut by = line(text(unit, "reserved_by"), String::new(), false);
            by[4] = "RESERVE".to_owned();
            by[5] = "until logout".to_owned();
            lines.push(by);
        }
        lines
    });
    let headings = ["TARGET", "LUN", "INITIATOR PORT", "KEY", "HOLDS", "LASTS"];
    terminal::table(headings, &units.collect::<Vec<_>>(), "no reservations")
}

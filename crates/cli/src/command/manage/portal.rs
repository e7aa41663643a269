//! `lunway portal`.

use clap::{Args, Subcommand};
use lunway_console::{Method, path_part};
use serde_json::Value;

use super::{Changing, Daemon, rows, text};
use crate::failure::Failure;
use crate::terminal;

/// List, add and remove the portals of a running daemon.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway portal add 192.0.2.10             # an address, port 3260
  lunway portal add eth1 --group 2         # all addresses of an interface
  lunway portal remove 10.0.0.0/24:3261")]
pub(crate) struct Portal {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the portals, and the addresses that they stand for now
    List(Daemon),
    /// Listen on an address, an interface or a network
    Add(Entry),
    /// Stop listening on an address, an interface or a network
    Remove(Entry),
}

#[derive(Debug, Args)]
struct Entry {
    /// ADDRESS, INTERFACE or NETWORK/BITS; append :PORT if it is not 3260
    listen: String,
    /// The portal group
    #[arg(long, value_name = "TAG", default_value_t = 1)]
    group: u16,
    #[command(flatten)]
    changing: Changing,
}

impl Portal {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List(daemon) => daemon.show("/v1/portals", table),
            Verb::Add(entry) => entry.ask(Method::PUT),
            Verb::Remove(entry) => entry.ask(Method::DELETE),
        }
    }
}

impl Entry {
    fn ask(&self, method: Method) -> Result<(), Failure> {
        let path = format!("/v1/portals/{}/{}", self.group, path_part(&self.listen));
        self.changing.change(method, &path, None)
    }
}

fn table(answer: &Value) -> String {
    let row = |entry: &Value| {
        let now = text(entry, "portals");
        let waiting = text(entry, "waiting");
        let now = if now.is_empty() { "nowhere".to_owned() } else { now };
        let now = if waiting.is_empty() { now } else { format!("{now} ({waiting})") };
        [text(entry, "group"), text(entry, "listen"), now]
    };
    let portals: Vec<_> = rows(answer, "portals").iter().map(row).collect();
    terminal::table(["GROUP", "LISTEN", "NOW"], &portals, "no portals")
}

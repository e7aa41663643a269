//! `lunway lun epoch` and `lunway lun changes`.

use clap::{Args, Subcommand};
use lunway_block::size::HumanSize;
use lunway_console::Method;
use lunway_track::EpochId;
use serde_json::{Value, json};

use super::lun::LunSelector;
use super::{Daemon, rows, text};
use crate::failure::Failure;
use crate::terminal;

/// Close, list and release the epochs of a logical unit that has --track
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lun epoch close iqn.2026-11.com.example:disks 6
  lunway lun epoch list iqn.2026-11.com.example:disks 6
  lunway lun epoch release iqn.2026-11.com.example:disks 6 EPOCH")]
pub(super) struct Epoch {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Close the current epoch, begin another, and print the name of the closed one
    Close {
        #[command(flatten)]
        selector: LunSelector,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// List the closed epochs, oldest first
    List {
        #[command(flatten)]
        selector: LunSelector,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Release a closed epoch: changes since then can no longer be listed
    Release {
        #[command(flatten)]
        selector: LunSelector,
        /// The epoch: 32 hexadecimal digits
        epoch: EpochId,
        #[command(flatten)]
        daemon: Daemon,
    },
}

/// Show what changed on a logical unit since an epoch was closed
///
/// One line for each range, in units of 64 KiB: what is in none of them is as it was.
/// `written` may hold anything, `unmapped` reads as zeroes. After a crash regions that
/// were written to are listed whole.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lun changes iqn.2026-11.com.example:disks 6
  lunway lun changes iqn.2026-11.com.example:disks 6 --since EPOCH --json")]
pub(super) struct Changes {
    #[command(flatten)]
    selector: LunSelector,
    /// A closed epoch, 32 hexadecimal digits [default: the last one]
    #[arg(long, value_name = "EPOCH")]
    since: Option<EpochId>,
    /// Leave out what changed after this closed epoch
    #[arg(long, value_name = "EPOCH")]
    until: Option<EpochId>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Epoch {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::Close { selector, daemon } => {
                let answer = daemon.ask(Method::POST, &format!("{}/epochs", selector.path()), None)?;
                shown(&daemon, &answer, |answer| text(answer, "epoch"))
            }
            Verb::List { selector, daemon } => daemon.show(&format!("{}/epochs", selector.path()), list),
            Verb::Release { selector, epoch, daemon } => {
                let path = format!("{}/epochs/{epoch}", selector.path());
                let answer = daemon.ask(Method::DELETE, &path, None)?;
                shown(&daemon, &answer, |answer| format!("released {}", text(answer, "epoch")))
            }
        }
    }
}

fn shown(daemon: &Daemon, answer: &Value, show: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
    if daemon.json { terminal::print_json(answer) } else { terminal::print(&show(answer)) }
}

fn bytes(value: &Value, key: &str) -> String {
    HumanSize(value[key].as_u64().unwrap_or(0)).to_string()
}

fn list(answer: &Value) -> String {
    let rows: Vec<_> = rows(answer, "epochs")
        .iter()
        .map(|epoch| [text(epoch, "epoch"), text(epoch, "parent"), bytes(epoch, "changed_bytes")])
        .collect();
    let table = terminal::table(["EPOCH", "PARENT", "CHANGED"], &rows, "no closed epochs");
    match answer["lost"].as_str() {
        Some(why) => format!("{table}\nnothing is tracked now: {}", terminal::clean(why)),
        None => format!("{table}\nchanged since: {}", bytes(answer, "changed_bytes")),
    }
}

impl Changes {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Self { selector, since, until, daemon } = self;
        let epochs = [since.map(|id| format!("since={id}")), until.map(|id| format!("until={id}"))];
        let mut query: Vec<String> = epochs.into_iter().flatten().collect();
        let path = |query: &[String]| format!("{}/changes?{}", selector.path(), query.join("&"));
        let mut answer = daemon.ask(Method::GET, &path(&query), None)?;
        // Between two answers the youngest epoch may be another.
        if let (None, Some(epoch)) = (since, answer["epoch"].as_str()) {
            query.push(format!("since={epoch}"));
        }
        while let Some(offset) = answer["next_offset"].as_u64() {
            query.push(format!("offset={offset}"));
            let more = daemon.ask(Method::GET, &path(&query), None)?;
            query.pop();
            if more["known"] != true {
                answer = more;
                break;
            }
            let mut ranges = rows(&answer, "ranges").to_vec();
            ranges.extend(rows(&more, "ranges").iter().cloned());
            (answer["ranges"], answer["next_offset"]) = (json!(ranges), more["next_offset"].clone());
        }
        if daemon.json {
            return terminal::print_json(&answer);
        }
        if answer["known"] != true {
            let why = answer["why"].as_str().map(terminal::clean).unwrap_or_default();
            return terminal::print(&format!("unknown, compare everything: {why}"));
        }
        let ranges = rows(&answer, "ranges");
        let sum = |state: &str| {
            let lengths = ranges.iter().filter(|range| range["state"] == state);
            HumanSize(lengths.filter_map(|range| range["length"].as_u64()).sum())
        };
        let rows: Vec<_> = ranges
            .iter()
            .map(|range| [text(range, "offset"), text(range, "length"), text(range, "state")])
            .collect();
        let table = terminal::table(["OFFSET", "LENGTH", "STATE"], &rows, "no changes");
        let epoch = text(&answer, "epoch");
        let (written, unmapped) = (sum("written"), sum("unmapped"));
        terminal::print(&format!("{table}\n{written} written and {unmapped} unmapped since {epoch}"))
    }
}

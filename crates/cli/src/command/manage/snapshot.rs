//! `lunway snapshot`.

use std::time::Duration;

use clap::{Args, Subcommand};
use lunway_block::size::{HumanSize, parse_size};
use lunway_console::{Method, path_part};
use serde_json::{Value, json};

use super::{Daemon, DaemonAddress, rows, text};
use crate::failure::Failure;
use crate::freezing::Freezing;
use crate::terminal;

/// Create, list and delete snapshots of served logical units
///
/// A snapshot holds the contents of a disk at one instant. Initiators continue to write, after a wait of usually
/// milliseconds. The snapshot is read over NBD on a Unix socket, and ends with the daemon. Data that initiators
/// overwrite is first copied to a file in the state directory. If that file is full, the snapshot is lost, and
/// initiators continue.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway snapshot create iqn.2026-11.com.example:disks/0
  # Two disks at one instant, with the guest's file systems frozen:
  lunway snapshot create iqn.2026-11.com.example:db/0 \\
      iqn.2026-11.com.example:db/1 --freeze 'ssh vm fsfreeze -f /srv' \\
      --thaw 'ssh vm fsfreeze -u /srv'
  lunway snapshot list
  lunway snapshot delete 3f2a91c07be4")]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create snapshots of logical units, all at the same instant
    Create {
        /// The logical units: target and number
        #[arg(value_name = "TARGET/LUN", required = true, value_parser = LunName::parse)]
        luns: Vec<LunName>,
        /// How much may be overwritten, per snapshot, before it is lost
        #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size)]
        area: u64,
        #[command(flatten)]
        freezing: Freezing,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// List the snapshots and their NBD sockets
    List {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Delete a snapshot
    Delete {
        /// The snapshot
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
}

/// A logical unit by its target and number: `iqn.2026-11.com.example:disks/0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LunName {
    pub(crate) target: String,
    pub(crate) lun: u16,
}

impl LunName {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('/').filter(|(target, _)| !target.is_empty());
        let (target, lun) =
            parts.ok_or("a target and a number are expected, such as iqn.2026-11.com.example:a/0")?;
        let lun =
            lun.parse().map_err(|_| "the number of the LUN is expected behind the last /, such as 0")?;
        Ok(Self { target: target.to_owned(), lun })
    }
}

impl std::fmt::Display for LunName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.target, self.lun)
    }
}

impl Snapshot {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::Create { luns, area, freezing, daemon } => {
                // Before the guest is frozen for it.
                if let Some((_, twice)) = luns.iter().enumerate().find(|(at, lun)| luns[..*at].contains(lun))
                {
                    return Err(Failure::Usage(format!(
                        "{twice} is named twice: name each logical unit once"
                    )));
                }
                let luns: Vec<_> = luns
                    .iter()
                    .map(|LunName { target, lun }| json!({ "target": target, "lun": lun }))
                    .collect();
                let orders = json!({ "luns": luns, "area": area });
                let made = make(&daemon.address, &freezing, orders)?;
                if daemon.json { terminal::print_json(&made) } else { terminal::print(&table(&made)) }
            }
            Verb::List { daemon } => daemon.show("/v1/snapshots", table),
            Verb::Delete { name, daemon } => {
                let path = format!("/v1/snapshots/{}", path_part(&name));
                let deleted = daemon.ask(Method::DELETE, &path, None)?;
                match daemon.json {
                    true => terminal::print_json(&deleted),
                    false => terminal::print(&format!("deleted {}", text(&deleted["snapshot"], "name"))),
                }
            }
        }
    }
}

/// Has snapshots made by a daemon, while the guest is frozen where that is asked for.
pub(crate) fn make(daemon: &DaemonAddress, freezing: &Freezing, mut orders: Value) -> Result<Value, Failure> {
    let ask = |left: Option<Duration>| {
        if let Some(left) = left {
            orders["deadline_ms"] = json!(left.as_millis() as u64);
        }
        daemon.ask_within(left, Method::POST, "/v1/snapshots", Some(&orders))
    };
    freezing.around(ask, |late| {
        for row in rows(&late, "snapshots") {
            let name = text(&row["snapshot"], "name");
            let _ = daemon.ask(Method::DELETE, &format!("/v1/snapshots/{}", path_part(&name)), None);
        }
    })
}

fn table(answer: &Value) -> String {
    let list = rows(answer, "snapshots").iter().map(|row| {
        let of = &row["snapshot"];
        let size = |key: &str| HumanSize(of[key].as_u64().unwrap_or(0)).to_string();
        let state = match of["broken"].as_str() {
            Some(why) => format!("broken: {}", terminal::clean(why)),
            None => format!("{} of {} used", size("used"), size("area")),
        };
        [
            text(of, "name"),
            format!("{}/{}", text(of, "target"), text(of, "lun")),
            size("size"),
            state,
            text(row, "socket"),
        ]
    });
    terminal::table(["NAME", "LUN", "SIZE", "STATE", "SOCKET"], &list.collect::<Vec<_>>(), "no snapshots")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logical_unit_is_named_by_its_target_and_number() {
        let parsed = LunName::parse("iqn.2026-11.com.example:a/b/3").unwrap();
        assert_eq!((parsed.target.as_str(), parsed.lun), ("iqn.2026-11.com.example:a/b", 3));
        for wrong in ["", "a", "/0", "a/", "a/x", "a/70000"] {
            assert!(LunName::parse(wrong).is_err(), "{wrong}");
        }
    }
}

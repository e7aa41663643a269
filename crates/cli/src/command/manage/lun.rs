//! `lunway lun`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lunway_block::size::HumanSize;
use lunway_console::Method;
use serde_json::{Map, Value, json};

use super::compaction::Compacting;
use super::io_limit::{self, IoLimits};
use super::{
    Changing, Daemon, Ending, Forcing, MUST_BE_NEW, MUST_EXIST, Shrinking, joined, rows, target, text,
};
use crate::device::written;
use crate::failure::Failure;
use crate::{percent, sector, terminal};

/// List, add, resize, snapshot, compact, change and remove the logical units of a running daemon.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lun add iqn.2026-11.com.example:disks 3 disk.img --sector 4096
  lunway lun add iqn.2026-11.com.example:disks 4 /srv/new.img --create 10G
  lunway lun add iqn.2026-11.com.example:disks 3 other.img --replace
  lunway lun resize iqn.2026-11.com.example:disks 3 200G
  lunway lun resize iqn.2026-11.com.example:disks 3 10G --shrink
  lunway lun snapshot iqn.2026-11.com.example:disks 5 /srv/db-1.avhdx
  lunway lun compact iqn.2026-11.com.example:disks 5 --rate 32M
  lunway lun add iqn.2026-11.com.example:disks 6 db.img --track
  lunway lun epoch close iqn.2026-11.com.example:disks 6
  lunway lun changes iqn.2026-11.com.example:disks 6
  lunway lun set iqn.2026-11.com.example:disks 3 --read-only true
  lunway lun set iqn.2026-11.com.example:disks 3 --iops-limit 5000
  lunway lun remove iqn.2026-11.com.example:disks 3")]
pub(crate) struct Lun {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the logical units, of one target or of all
    List {
        /// The target's name
        #[arg(value_name = "TARGET")]
        target: Option<String>,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Add a logical unit; an existing one with other settings is an error
    Add {
        #[command(flatten)]
        selector: LunSelector,
        /// The device; a relative path is relative to the current directory
        device: String,
        /// Create the file, sparse, with this size: 10G. An existing file is an error
        #[arg(long, value_name = "SIZE", value_parser = lunway_block::size::parse_size)]
        create: Option<u64>,
        #[command(flatten)]
        shape: Shape,
        /// Replace an existing logical unit: initiators see another disk (--force if one uses it)
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        shrinking: Shrinking,
        #[command(flatten)]
        ending: Ending,
        #[command(flatten)]
        forcing: Forcing,
        #[command(flatten)]
        changing: Changing,
    },
    /// Change a logical unit
    Set {
        #[command(flatten)]
        selector: LunSelector,
        /// Replace the device: initiators see another disk (--force if one uses the LUN)
        #[arg(long)]
        device: Option<String>,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        shrinking: Shrinking,
        #[command(flatten)]
        ending: Ending,
        #[command(flatten)]
        forcing: Forcing,
        #[command(flatten)]
        changing: Changing,
    },
    /// Resize the device of a logical unit
    ///
    /// Shrinking requires --shrink, and is refused if it would cut a partition or a file
    /// system.
    Resize {
        #[command(flatten)]
        selector: LunSelector,
        /// The new size: 200G, 4TiB
        #[arg(value_parser = lunway_block::size::parse_size)]
        size: u64,
        /// Allow a smaller size: data beyond the new end are lost
        #[arg(long)]
        shrink: bool,
        /// Shrink even if that cuts a partition or a file system
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        ending: Ending,
        #[command(flatten)]
        changing: Changing,
    },
    /// Freeze the VHDX file of a logical unit; later writes go to a new file
    ///
    /// Initiators notice nothing. The old file is the new one's parent, and holds the
    /// state to go back to. `lunway disk merge` of the new file, while it is not
    /// served, ends the snapshot.
    Snapshot {
        #[command(flatten)]
        selector: LunSelector,
        /// The new file, in the same directory or above; a relative path is relative to the current directory
        #[arg(value_name = "CHILD")]
        leaf: PathBuf,
        #[command(flatten)]
        changing: Changing,
    },
    /// Make the VHDX file of a logical unit shorter while it is served
    ///
    /// Blocks are moved from the end of the file into its holes, and the file is truncated. Initiators have priority,
    /// and a kill loses no data: the next compaction continues. With --freeze and --thaw, space that the guest's file
    /// systems do not use is released first.
    Compact {
        #[command(flatten)]
        selector: LunSelector,
        #[command(flatten)]
        compact: Compacting,
    },
    /// Close, list and release the epochs of a logical unit that has --track
    Epoch(super::epoch::Epoch),
    /// Show what changed on a logical unit since an epoch was closed
    Changes(super::epoch::Changes),
    /// Remove a logical unit; its device is not touched
    ///
    /// One that initiators use, and a ram: disk that holds data, which are lost, are removed only with --force.
    Remove {
        #[command(flatten)]
        selector: LunSelector,
        #[command(flatten)]
        forcing: Forcing,
        #[command(flatten)]
        ending: Ending,
        #[command(flatten)]
        changing: Changing,
    },
}

/// Which logical unit.
#[derive(Debug, Args)]
pub(super) struct LunSelector {
    /// The target's name
    #[arg(value_name = "TARGET")]
    pub(super) target: String,
    /// The logical unit number
    #[arg(value_name = "LUN", value_parser = number)]
    pub(super) lun: u16,
}

#[derive(Debug, Args)]
struct Shape {
    /// Logical sector size: 512 or 4096
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    sector: Option<u32>,
    /// Physical sector size that is reported to initiators
    #[arg(long, value_name = "BYTES", value_parser = sector::physical)]
    physical_sector: Option<u32>,
    /// Refuse writes
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false")]
    read_only: Option<bool>,
    /// Report a removable medium
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false")]
    removable: Option<bool>,
    /// The unit serial number
    #[arg(long)]
    serial: Option<String>,
    /// When the VHDX file is compacted automatically: on-idle, on-close, or never
    #[arg(long, value_name = "WHEN", value_delimiter = ',', value_parser = ["on-idle", "on-close", "never"])]
    compact: Option<Vec<String>>,
    /// Warn initiators if the backing store is fuller than this percentage
    #[arg(long, value_name = "PERCENT", value_parser = threshold)]
    threshold: Option<u8>,
    /// Record which 64 KiB change: see `lunway lun changes`
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false")]
    track: Option<bool>,
    #[command(flatten)]
    limits: IoLimits,
}

/// Largest logical unit number that flat addressing can name (SAM-5 §4.7.5.4).
const NUMBER_MAX: u16 = 0x3fff;

/// A logical unit number.
fn number(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| *number <= NUMBER_MAX);
    number.ok_or_else(|| format!("a number from 0 to {NUMBER_MAX} is expected"))
}

/// Parser of the fill level of a backing store that is warned of, per cent.
fn threshold(text: &str) -> Result<u8, String> {
    match percent::whole(text)? {
        0 | 100 => Err("it is from 1 to 99".to_owned()),
        percent => Ok(percent),
    }
}

impl LunSelector {
    pub(super) fn path(&self) -> String {
        format!("{}/luns/{}", target::path(&self.target), self.lun)
    }
}

impl Lun {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List { target: None, daemon } => daemon.show("/v1/targets", |answer| {
                let rows = rows(answer, "targets").iter().flat_map(|target| {
                    let name = text(&target["config"], "name");
                    units(&target["config"]["lun"], &target["status"]["luns"], &name)
                });
                table(&rows.collect::<Vec<_>>())
            }),
            Verb::List { target: Some(name), daemon } => {
                daemon.show(&format!("{}/luns", target::path(&name)), |answer| {
                    let units =
                        rows(answer, "luns").iter().map(|lun| row(&lun["config"], &lun["status"], &name));
                    table(&units.collect::<Vec<_>>())
                })
            }
            Verb::Add { selector, device, create, shape, replace, shrinking, ending, forcing, changing } => {
                // All of it: what is not said is as it is by default, also where the number was another's.
                let body = Value::Object(shape.body(Some(&device), &changing.daemon)?);
                let new = (!replace).then(|| MUST_BE_NEW.to_owned());
                let create = create.map(|size| format!("create={size}"));
                let query = joined([new, create, shrinking.query(), ending.query(), forcing.query()]);
                changing.change_at(Method::PUT, &selector.path(), &query, Some(&body))
            }
            Verb::Set { selector, device, shape, shrinking, ending, forcing, changing } => {
                let mut body = shape.body(device.as_deref(), &changing.daemon)?;
                body.retain(|_, value| !value.is_null());
                body.extend(shape.limits.given());
                let must_exist = Some(MUST_EXIST.to_owned());
                let query = joined([must_exist, shrinking.query(), ending.query(), forcing.query()]);
                changing.change_at(Method::PUT, &selector.path(), &query, Some(&Value::Object(body)))
            }
            Verb::Resize { selector, size, shrink, force, ending, changing } => {
                let path = format!("{}/resize", selector.path());
                let body = json!({
                    "size": size, "shrink": shrink, "force": force, "end_snapshots": ending.end_snapshots,
                });
                changing.change(Method::POST, &path, Some(&body))
            }
            Verb::Snapshot { selector, leaf, changing } => {
                let leaf = std::path::absolute(&leaf).unwrap_or(leaf);
                let path = format!("{}/snapshot", selector.path());
                changing.change(Method::POST, &path, Some(&json!({ "leaf": written(&leaf)? })))
            }
            Verb::Compact { selector, compact } => compact.run(&selector.path()),
            Verb::Epoch(epoch) => epoch.run(),
            Verb::Changes(changes) => changes.run(),
            Verb::Remove { selector, forcing, ending, changing } => {
                let query = joined([forcing.query(), ending.query()]);
                changing.change_at(Method::DELETE, &selector.path(), &query, None)
            }
        }
    }
}

impl Shape {
    /// Request body with the settings of a logical unit, null for those that are reset.
    fn body(&self, device: Option<&str>, daemon: &Daemon) -> Result<Map<String, Value>, Failure> {
        let body = json!({
            "sector": self.sector,
            "physical_sector": self.physical_sector,
            "read_only": self.read_only,
            "removable": self.removable,
            "serial": self.serial,
            "threshold_percent": self.threshold,
            "compact": self.compact.as_ref().map(|policies| {
                policies.iter().filter(|policy| *policy != "never").collect::<Vec<_>>()
            }),
            "track": self.track,
        });
        let mut body = body.as_object().cloned().unwrap_or_default();
        body.extend(self.limits.all());
        if let Some(device) = device {
            body.insert("device".to_owned(), json!(daemon.device(device)?));
        }
        Ok(body)
    }
}

fn units(configs: &Value, statuses: &Value, target: &str) -> Vec<[String; 8]> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let status =
        |id: &Value| list(statuses).into_iter().find(|status| status["id"] == *id).unwrap_or_default();
    list(configs).iter().map(|config| row(config, &status(&config["id"]), target)).collect()
}

fn row(config: &Value, status: &Value, target: &str) -> [String; 8] {
    let size = |value: &Value| value.as_u64().map_or_else(String::new, |size| HumanSize(size).to_string());
    let mut flags = Vec::new();
    if !status["offline"].is_null() {
        flags.push("offline");
    }
    if !status["lost_file"].is_null() {
        flags.push("lost-file");
    }
    if !status["shrunk_from"].is_null() {
        flags.push("shrunk");
    }
    if !status["pull"].is_null() {
        flags.push(if status["pull"]["error"].is_null() { "pulled" } else { "pull-fails" });
    }
    if status["read_only"] == true {
        flags.push("read-only");
    }
    if config["removable"] == true {
        flags.push("removable");
    }
    if !io_limit::shown(config).is_empty() {
        flags.push("limited");
    }
    [
        terminal::clean(target),
        text(config, "id"),
        text(config, "device"),
        if status["offline"].is_null() { size(&status["size"]) } else { String::new() },
        size(&status["space"]["allocated"]),
        text(status, "sector"),
        text(status, "serial"),
        flags.join(","),
    ]
}

fn table(rows: &[[String; 8]]) -> String {
    terminal::table(
        ["TARGET", "LUN", "DEVICE", "SIZE", "ALLOCATED", "SECTOR", "SERIAL", "FLAGS"],
        rows,
        "no logical units",
    )
}

//! `lunway lun`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lunway_block::size::HumanSize;
use lunway_console::Method;
use serde_json::{Map, Value, json};

use super::{Changing, Daemon, MUST_BE_NEW, MUST_EXIST, Shrinking, rows, target, text};
use crate::failure::Failure;
use crate::terminal;

/// List, add, resize, snapshot, change and remove the logical units of a running daemon.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lun add iqn.2026-11.com.example:disks 3 disk.img --sector 4096
  lunway lun add iqn.2026-11.com.example:disks 4 /srv/new.img --create 10G
  lunway lun add iqn.2026-11.com.example:disks 3 other.img --replace
  lunway lun resize iqn.2026-11.com.example:disks 3 200G
  lunway lun resize iqn.2026-11.com.example:disks 3 10G --shrink
  lunway lun snapshot iqn.2026-11.com.example:disks 5 db-1.avhdx
  lunway lun set iqn.2026-11.com.example:disks 3 --read-only true
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
        place: Place,
        /// The device; a relative path is relative to the current directory
        device: String,
        /// Create the file, sparse, with this size: 10G. An existing file is an error
        #[arg(long, value_name = "SIZE", value_parser = lunway_block::size::parse_size)]
        create: Option<u64>,
        #[command(flatten)]
        shape: Shape,
        /// Replace an existing logical unit: initiators see another disk
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        shrinking: Shrinking,
        #[command(flatten)]
        changing: Changing,
    },
    /// Change a logical unit
    Set {
        #[command(flatten)]
        place: Place,
        /// Replace the device: initiators see another disk
        #[arg(long)]
        device: Option<String>,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        shrinking: Shrinking,
        #[command(flatten)]
        changing: Changing,
    },
    /// Resize the device of a logical unit
    Resize {
        #[command(flatten)]
        place: Place,
        /// The new size: 200G, 4TiB
        #[arg(value_parser = lunway_block::size::parse_size)]
        size: u64,
        /// Allow a smaller size: data beyond the new end are lost
        #[arg(long)]
        shrink: bool,
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
        place: Place,
        /// The new file, in the same directory or above
        #[arg(value_name = "CHILD")]
        leaf: PathBuf,
        #[command(flatten)]
        changing: Changing,
    },
    /// Remove a logical unit; its device is not touched, but the data of a ram: disk are lost
    Remove {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        changing: Changing,
    },
}

/// Which logical unit.
#[derive(Debug, Args)]
pub(super) struct Place {
    /// The target's name
    #[arg(value_name = "TARGET")]
    pub(super) target: String,
    /// The logical unit number
    #[arg(value_name = "LUN", value_parser = number)]
    lun: u16,
}

#[derive(Debug, Args)]
struct Shape {
    /// Logical sector size: 512 or 4096
    #[arg(long, value_name = "BYTES")]
    sector: Option<u32>,
    /// Physical sector size that initiators are told
    #[arg(long, value_name = "BYTES")]
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
    /// Warn initiators when the backing store is fuller than this percentage
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99))]
    threshold: Option<u8>,
}

/// A logical unit number. Which ones are possible is the daemon's to say.
fn number(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "a whole number is expected, such as 0 or 3".to_owned())
}

impl Place {
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
            Verb::Add { place, device, create, shape, replace, shrinking, changing } => {
                // All of it: what is not said is as it is by default, also where the number was another's.
                let body = Value::Object(shape.body(Some(&device), &changing.daemon));
                let new = (!replace).then(|| MUST_BE_NEW.to_owned());
                let create = create.map(|size| format!("create={size}"));
                let query =
                    [new, create, shrinking.query()].into_iter().flatten().collect::<Vec<_>>().join("&");
                changing.change_at(Method::PUT, &place.path(), &query, Some(&body))
            }
            Verb::Set { place, device, shape, shrinking, changing } => {
                let mut body = shape.body(device.as_deref(), &changing.daemon);
                body.retain(|_, value| !value.is_null());
                let shrink = shrinking.query();
                let query =
                    [Some(MUST_EXIST.to_owned()), shrink].into_iter().flatten().collect::<Vec<_>>().join("&");
                changing.change_at(Method::PUT, &place.path(), &query, Some(&Value::Object(body)))
            }
            Verb::Resize { place, size, shrink, changing } => {
                let path = format!("{}/resize", place.path());
                changing.change(Method::POST, &path, Some(&json!({ "size": size, "shrink": shrink })))
            }
            Verb::Snapshot { place, leaf, changing } => {
                let leaf = std::path::absolute(&leaf).unwrap_or(leaf);
                let path = format!("{}/snapshot", place.path());
                changing.change(Method::POST, &path, Some(&json!({ "leaf": leaf.display().to_string() })))
            }
            Verb::Remove { place, changing } => changing.change(Method::DELETE, &place.path(), None),
        }
    }
}

impl Shape {
    /// What is said of a logical unit, null for what is not.
    fn body(&self, device: Option<&str>, daemon: &Daemon) -> Map<String, Value> {
        let body = json!({
            "sector": self.sector,
            "physical_sector": self.physical_sector,
            "read_only": self.read_only,
            "removable": self.removable,
            "serial": self.serial,
            "threshold_percent": self.threshold,
        });
        let mut body = body.as_object().cloned().unwrap_or_default();
        body.extend(device.map(|device| ("device".to_owned(), json!(daemon.device(device)))));
        body
    }
}

fn units(configs: &Value, statuses: &Value, target: &str) -> Vec<[String; 7]> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let status =
        |id: &Value| list(statuses).into_iter().find(|status| status["id"] == *id).unwrap_or_default();
    list(configs).iter().map(|config| row(config, &status(&config["id"]), target)).collect()
}

fn row(config: &Value, status: &Value, target: &str) -> [String; 7] {
    let size = status["size"].as_u64().map_or_else(String::new, |size| HumanSize(size).to_string());
    let mut flags = Vec::new();
    if status["read_only"] == true {
        flags.push("read-only");
    }
    if config["removable"] == true {
        flags.push("removable");
    }
    [
        terminal::clean(target),
        text(config, "id"),
        text(config, "device"),
        size,
        text(status, "sector"),
        text(status, "serial"),
        flags.join(","),
    ]
}

fn table(rows: &[[String; 7]]) -> String {
    terminal::table(
        ["TARGET", "LUN", "DEVICE", "SIZE", "SECTOR", "SERIAL", "FLAGS"],
        rows,
        "no logical units",
    )
}

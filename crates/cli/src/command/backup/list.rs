//! `lunway backup list` and `status`.

use std::collections::HashSet;

use clap::Args;
use lunway_backup::{Catalogue, Folder, Manifest, Moment, Notes};
use lunway_block::size::HumanSize;
use serde_json::{Value, json};

use super::{Destination, catalogue, failed, points};
use crate::failure::Failure;
use crate::terminal;

/// List the points of a destination
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup list /mnt/share/server1
  lunway backup list /mnt/share/server1 --json")]
pub(super) struct List {
    #[command(flatten)]
    destination: Destination,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// Show the state of a destination: its newest point, space, verification, damage
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup status /mnt/share/server1
  lunway backup status /mnt/share/server1 --json")]
pub(super) struct Status {
    #[command(flatten)]
    destination: Destination,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn time(manifest: &Manifest) -> String {
    manifest.time.map_or_else(|| "-".to_owned(), |time| Moment(time).to_string())
}

/// State of a point, by the notes and by the names of the files that are there.
pub(super) fn state(manifest: &Manifest, notes: &Notes, names: &HashSet<String>) -> &'static str {
    let lacks = |name: &String| !names.contains(name);
    let is_incomplete = [manifest.disk_name(), manifest.leaves_name()].iter().any(lacks);
    if is_incomplete || notes.damage.iter().any(|damage| damage.point() == manifest.point) {
        "damaged"
    } else if notes.verified.contains(&manifest.point) {
        "verified"
    } else {
        "sealed"
    }
}

pub(super) fn point_json(manifest: &Manifest, notes: &Notes, names: &HashSet<String>) -> Value {
    json!({
        "point": manifest.point.to_string(),
        "generation": manifest.generation,
        "time": manifest.time,
        "kind": manifest.kind.name(),
        "why": manifest.why,
        "parent": manifest.parent.map(|parent| parent.to_string()),
        "source": manifest.source,
        "level": manifest.level,
        "epoch": manifest.epoch,
        "virtual_bytes": manifest.virtual_bytes,
        "changed_bytes": manifest.changed_bytes,
        "read_bytes": manifest.read_bytes,
        "sent_bytes": manifest.sent_bytes,
        "stored_bytes": manifest.file_bytes + manifest.leaves_bytes,
        "skipped_bytes": manifest.skipped.iter().map(|skipped| skipped.bytes).sum::<u64>(),
        "file": manifest.disk_name(),
        "state": state(manifest, notes, names),
    })
}

/// Says what of a destination cannot be listed.
pub(super) fn warn(catalogue: &Catalogue) {
    for (point, what) in catalogue.unreadable() {
        eprintln!("{}", terminal::clean(&format!("point {point} cannot be read: {what}")));
    }
}

impl List {
    pub(super) fn run(self) -> Result<(), Failure> {
        let folder = self.destination.open()?;
        let (catalogue, notes) = (catalogue(&*folder)?, Notes::load(&*folder).map_err(failed)?);
        let names: HashSet<String> = folder.names().map_err(Failure::failed)?.into_iter().collect();
        // The first run may still be under way, or have been stopped.
        if catalogue.incomplete() == 0 {
            points(&folder)?;
        }
        warn(&catalogue);
        let points = catalogue.points().iter().map(|point| &point.manifest);
        if self.json {
            return terminal::print_json(
                &points.map(|manifest| point_json(manifest, &notes, &names)).collect(),
            );
        }
        let rows: Vec<_> = points
            .map(|manifest| {
                [
                    manifest.point.to_string(),
                    time(manifest),
                    manifest.kind.name().to_owned(),
                    HumanSize(manifest.virtual_bytes).to_string(),
                    HumanSize(manifest.file_bytes + manifest.leaves_bytes).to_string(),
                    state(manifest, &notes, &names).to_owned(),
                ]
            })
            .collect();
        let headings = ["POINT", "TIME", "KIND", "DISK", "STORED", "STATE"];
        let mut text = terminal::table(headings, &rows, "no point yet");
        if catalogue.incomplete() > 0 {
            text += "\nOne more point is incomplete: the next run continues it.";
        }
        terminal::print(&text)
    }
}

impl Status {
    pub(super) fn run(self) -> Result<(), Failure> {
        let folder = self.destination.open()?;
        let (catalogue, notes) = (catalogue(&*folder)?, Notes::load(&*folder).map_err(failed)?);
        let names: HashSet<String> = folder.names().map_err(Failure::failed)?.into_iter().collect();
        // The first run may still be under way, or have been stopped.
        if catalogue.incomplete() == 0 {
            points(&folder)?;
        }
        warn(&catalogue);
        let points = || catalogue.points().iter().map(|point| &point.manifest);
        let stored: u64 = points().map(|manifest| manifest.file_bytes + manifest.leaves_bytes).sum();
        let verified = points().rev().find(|manifest| notes.verified.contains(&manifest.point));
        let links = catalogue
            .newest()
            .and_then(|newest| catalogue.chain(newest.point).ok())
            .map_or(0, |chain| chain.len());
        if self.json {
            return terminal::print_json(&json!({
                "folder": folder.show(""),
                "source": catalogue.newest().map(|newest| newest.source.clone()),
                "points": catalogue.points().len(),
                "newest": catalogue.newest().map(|newest| point_json(newest, &notes, &names)),
                "newest_verified": verified.map(|manifest| manifest.point.to_string()),
                "chain_files": links,
                "stored_bytes": stored,
                "incomplete": catalogue.incomplete(),
                "damage": notes.damage.len() + catalogue.unreadable().len(),
            }));
        }
        let Some(newest) = catalogue.newest() else {
            let left =
                if catalogue.incomplete() > 0 { ", and an incomplete one: run the backup again" } else { "" };
            return terminal::print(&format!("no point yet{left}"));
        };
        let damage = notes.damage.len() + catalogue.unreadable().len();
        let rows = [
            ("source", newest.source.clone()),
            ("points", format!("{}, {} stored", catalogue.points().len(), HumanSize(stored))),
            (
                "newest",
                format!("{} of {}, {} of {links} files", newest.point, time(newest), newest.kind.name()),
            ),
            (
                "its run",
                format!(
                    "{} changed, {} read, {} sent",
                    HumanSize(newest.changed_bytes),
                    HumanSize(newest.read_bytes),
                    HumanSize(newest.sent_bytes)
                ),
            ),
            ("why", terminal::clean(&newest.why)),
            (
                "verified",
                verified.map_or_else(
                    || "none: `lunway backup verify`".to_owned(),
                    |manifest| format!("{} of {}", manifest.point, time(manifest)),
                ),
            ),
            (
                "incomplete",
                match catalogue.incomplete() {
                    0 => "none".to_owned(),
                    _ => "one point: the next run continues it".to_owned(),
                },
            ),
            (
                "damage",
                match damage {
                    0 => "none known".to_owned(),
                    count => {
                        format!("{count}: `lunway backup verify` names it, the next run repairs what it can")
                    }
                },
            ),
        ];
        terminal::print(&terminal::columns(rows))
    }
}

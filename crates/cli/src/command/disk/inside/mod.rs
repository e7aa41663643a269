//! `lunway disk inside`.

mod figures;
mod page;

use anyhow::anyhow;
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_filesystem::tree::{Disk, Node};
use serde_json::{Value, json};

use self::figures::Figures;
use super::source::DeviceSource;
use crate::device::{self, BlockingRuntime};
use crate::failure::Failure;
use crate::output::Files;
use crate::{sector, terminal};

/// Show the partitions, volumes and file systems on a disk, and their free space.
///
/// FREE is what the file system reports as free, if its totals, checksums and journal prove that; DEAD is the part of
/// it for which the device still occupies space. Unknown space is kept like used space; notes below the table give
/// the reason and the remedy. Nothing is written.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk inside server.vhdx
  lunway disk inside iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0 --json
  lunway disk inside server.vhdx --html-file server.html    # a picture")]
pub(super) struct Inside {
    /// The disk: a VHDX file, or any other device
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Logical sector size, for devices that have no fixed one: 512 or 4096
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    sector: Option<u32>,
    #[command(flatten)]
    files: Files,
}

impl Inside {
    pub(super) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        self.files.check(&[&spec])?;
        let options = lunway_device::OpenOptions {
            sector: self.sector,
            read_only: true,
            ..lunway_device::OpenOptions::default()
        };
        let runtime = BlockingRuntime::new()?;
        let opened = runtime.wait(device::open(&spec, &options))?;
        let source = DeviceSource::new(&*opened.device, &runtime);
        let disk = Disk::examine(&source, source.sector());
        let figures = Figures::of(&disk, &source);
        let unread = source.error();
        runtime.wait(opened.close_or_log());
        let figures = figures?;
        let name = spec.to_string();
        self.files.write(
            || text(&disk, &figures),
            || document(&disk, &figures),
            || lunway_report::html(&page::document(&name, &disk, &figures)),
        )?;
        match unread {
            Some(error) => Err(Failure::failed(anyhow!("not all of {name} can be read: {error}"))),
            None => Ok(()),
        }
    }
}

/// Name of the contents of a part of the disk, for people.
fn kind(node: &Node) -> String {
    let mut text = node.kind.unwrap_or("nothing that is known here").to_owned();
    for name in [&node.name, &node.label].into_iter().flatten() {
        text += &format!(" “{}”", terminal::clean(name));
    }
    text
}

/// All parts of the disk, how deep each lies, in order.
fn parts(disk: &Disk) -> Vec<(usize, &Node)> {
    fn add<'a>(node: &'a Node, depth: usize, into: &mut Vec<(usize, &'a Node)>) {
        into.push((depth, node));
        for child in &node.children {
            add(child, depth + 1, into);
        }
    }
    let mut all = Vec::new();
    add(disk.root(), 0, &mut all);
    all
}

/// Sentences on parts of the disk: why something is unknown and what would help, what should be known.
pub(super) fn sentences(disk: &Disk) -> Vec<String> {
    let mut all = Vec::new();
    for (_, node) in parts(disk) {
        let name = format!("{} at {}", kind(node), HumanSize(node.offset));
        if let Some(reason) = &node.reason {
            let remedy = node.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
            all.push(format!("{name}: {reason}{remedy}."));
        }
        all.extend(node.notes.iter().map(|note| format!("{name}: {note}.")));
    }
    all
}

fn text(disk: &Disk, figures: &Figures) -> String {
    let size = |bytes| HumanSize(bytes).to_string();
    let rows: Vec<_> = parts(disk)
        .into_iter()
        .map(|(depth, node)| {
            [
                format!("{:1$}{2}", "", 2 * depth, kind(node)),
                size(node.offset),
                size(node.len),
                size(node.used),
                size(node.free),
                size(figures.dead(node)),
                size(node.unknown),
            ]
        })
        .collect();
    let headings = ["WHAT", "AT", "SIZE", "USED", "FREE", "DEAD", "UNKNOWN"];
    let mut text = terminal::table(headings, &rows, "nothing");
    for sentence in sentences(disk) {
        text += &format!("\n{}", terminal::clean(&sentence));
    }
    text
}

fn document(disk: &Disk, figures: &Figures) -> Value {
    let mut document = branch(disk.root(), figures);
    // By this a report of ours is known, which may be replaced.
    document["lunway"] = json!({ "schema": 1 });
    document
}

fn branch(node: &Node, figures: &Figures) -> Value {
    json!({
        "offset": node.offset,
        "bytes": node.len,
        "kind": node.kind,
        "name": node.name,
        "label": node.label,
        "uuid": node.uuid,
        "used": node.used,
        "free": node.free,
        "dead": figures.dead(node),
        "unknown": node.unknown,
        "reason": node.reason,
        "remedy": node.remedy,
        "notes": node.notes,
        "children": node.children.iter().map(|child| branch(child, figures)).collect::<Vec<_>>(),
    })
}

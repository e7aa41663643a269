//! `lunway disk compact`.

mod raw;

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use lunway_bench::Cancel;
use lunway_block::size::{HumanSize, parse_size};
use lunway_compact::{Estimate, Mode, Plan, Share, drop_dead, estimate};
use lunway_filesystem::tree::Node;
use lunway_vhdx::format::MIB;
use lunway_vhdx::pack::pack;
use lunway_vhdx::{Chain, Disk, DiskKind, VhdxOpenOptions, divide_blocks, open_unlocked, pack_metadata};
use serde_json::{Value, json};

use super::discard::partitions;
use super::named::{Named, vhdx};
use super::{chain_to_change, guids, no_children, open_chain, open_to_change, others_use};
use crate::failure::Failure;
use crate::{interrupt, progress, terminal};

/// Shrink a VHDX file, or the space of a raw one, to the data that live in the disk
///
/// Drops the space that the file systems on the disk prove to be free; other space is kept. The file shrinks in
/// place. After an interrupt or a power failure it is consistent, and the same command continues. The machine that
/// uses the disk must be off: a file in use is refused. A raw file keeps its length, and gets holes.
#[derive(Debug, Args)]
#[command(after_help = "\
Modes:
  live         drop what is free, zero or the parent's, parts of blocks too;
               move blocks
  full         drop whole blocks that are free or zero; move blocks
  quick        drop whole blocks that are free; move blocks
  retrim       drop whole blocks that are free; nothing moves
  prezeroed    drop whole blocks that are zero; move blocks
  pretrimmed   drop nothing; move blocks into what was given up before

Examples:
  lunway disk compact server.vhdx --estimate    # what each mode would save
  lunway disk compact server.vhdx
  lunway disk compact server.vhdx --block-size 1M
  lunway disk compact server.vhdx --keep 3      # partition 3 stays as it is")]
pub(super) struct Compact {
    /// The VHDX file, or raw disk image
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What is dropped, and whether blocks move
    #[arg(long, value_name = "MODE", default_value = "live", hide_possible_values = true)]
    mode: Name,
    /// Divide the blocks into smaller ones first, of which fewer hold data: 1M to 128M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Only show what each mode would save
    #[arg(long)]
    estimate: bool,
    /// Leave a partition as it is; can be repeated
    #[arg(long, value_name = "NUMBER")]
    keep: Vec<usize>,
    /// Compact even if the file has children, which can then no longer be opened
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A mode, by its name on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Live,
    Full,
    Quick,
    Retrim,
    Prezeroed,
    Pretrimmed,
}

impl Name {
    fn mode(self) -> Mode {
        match self {
            Self::Live => Mode::Live,
            Self::Full => Mode::Full,
            Self::Quick => Mode::Quick,
            Self::Retrim => Mode::Retrim,
            Self::Prezeroed => Mode::Prezeroed,
            Self::Pretrimmed => Mode::Pretrimmed,
        }
    }

    fn of(mode: Mode) -> &'static str {
        match mode {
            Mode::Live => "live",
            Mode::Full => "full",
            Mode::Quick => "quick",
            Mode::Retrim => "retrim",
            Mode::Prezeroed => "prezeroed",
            Mode::Pretrimmed => "pretrimmed",
        }
    }
}

/// Size of a file.
#[derive(Clone, Copy)]
struct Size {
    /// Its length, bytes.
    bytes: u64,
    /// Bytes that the host has allocated for it.
    allocated: u64,
}

impl Size {
    fn of(path: &Path) -> anyhow::Result<Self> {
        let metadata =
            path.metadata().with_context(|| format!("cannot ask for the size of {}", path.display()))?;
        // st_blocks counts 512 bytes, whatever the file system has (stat(2)).
        Ok(Self { bytes: metadata.len(), allocated: metadata.blocks() * 512 })
    }
}

impl Compact {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.file = match Named::of(&self.file)? {
            Named::Vhdx(path) => path,
            Named::Raw { path, spec } => {
                self.file = path;
                return self.raw(&spec);
            }
            Named::Image(..) => vhdx(&self.file, "")?,
        };
        let path = &self.file;
        let chain = open_chain(path)?;
        if chain.disks()[0].parameters().kind == DiskKind::Fixed {
            return Err(Failure::failed(anyhow!(
                "{} is a fixed disk, which has all its blocks by definition: convert it to a dynamic one instead",
                path.display()
            )));
        }
        let mut plan = Plan::new(&chain);
        plan.keep = partitions(plan.tree.root(), &self.keep, &path.display().to_string())?;
        let block_size = self.block_size(chain.disks()[0].parameters().block_size)?;
        if self.estimate {
            return self.estimate(&chain, &plan, block_size);
        }
        drop(chain);
        self.compact(plan, block_size)
    }

    /// What becomes of the file, if its children would not open any more.
    fn change(&self) -> Option<&'static str> {
        (!self.force && self.mode.mode() != Mode::Pretrimmed).then_some("compacted")
    }

    /// The size of blocks that the file gets, where it has blocks of `now` bytes.
    fn block_size(&self, now: u32) -> Result<u32, Failure> {
        match self.block_size.map_or(Ok(now), u32::try_from) {
            Ok(size) if size <= now && size.is_power_of_two() && u64::from(size) >= MIB => Ok(size),
            _ if u64::from(now) == MIB => Err(Failure::Usage(format!(
                "--block-size: {} has blocks of 1 MiB, the smallest; `lunway disk convert` makes larger ones",
                self.file.display()
            ))),
            _ => Err(Failure::Usage(format!(
                "--block-size: a power of two from 1M to {}, which {} has now; `lunway disk convert` makes larger ones",
                HumanSize(now.into()),
                self.file.display()
            ))),
        }
    }

    fn estimate(&self, chain: &Chain<File>, plan: &Plan, block_size: u32) -> Result<(), Failure> {
        let before = Size::of(&self.file)?;
        let cancel = interrupt::watch();
        let bar = progress::bytes("looking", chain.size());
        let estimates = estimate(chain, plan, block_size, &mut |done| {
            bar.set_position(done);
            go_on(&cancel)
        });
        bar.finish_and_clear();
        let cannot = || format!("cannot look at {}", self.file.display());
        let Some(estimates) = estimates.map_err(anyhow::Error::from).with_context(cannot)? else {
            return Err(Failure::failed(anyhow!("interrupted: nothing was changed")));
        };
        let mut volumes = Vec::new();
        collect(plan.tree.root(), &mut volumes);
        let shares = estimates.iter().find(|found| found.mode == self.mode.mode()).map(|found| &found.shares);
        let share = |node: &Node| shares.and_then(|shares| shares.get(&node.offset)).copied();
        if self.json {
            return terminal::print_json(&json!({
                "bytes": before.bytes,
                "allocated_bytes": before.allocated,
                "modes": estimates.iter().map(|found| json!({
                    "name": Name::of(found.mode),
                    "bytes_before": before.bytes,
                    "bytes_after": found.after.min(before.bytes),
                    "punched_bytes": found.punched,
                })).collect::<Vec<_>>(),
                "volumes": volumes.iter().map(|node| volume_json(node, share(node))).collect::<Vec<_>>(),
            }));
        }
        let row = |found: &Estimate| {
            let after = found.after.min(before.bytes);
            let saved = before.bytes - after;
            [
                Name::of(found.mode).to_owned(),
                after.to_string(),
                HumanSize(after).to_string(),
                percent(saved, before.bytes),
                HumanSize(found.punched).to_string(),
            ]
        };
        let rows: Vec<_> = estimates.iter().map(row).collect();
        let start = ["at start".to_owned(), before.bytes.to_string(), HumanSize(before.bytes).to_string()];
        let [name, bytes, size] = start;
        let rows: Vec<_> =
            std::iter::once([name, bytes, size, String::new(), String::new()]).chain(rows).collect();
        terminal::print(&terminal::table(["MODE", "BYTES", "SIZE", "SAVED", "HOLES INSIDE"], &rows, ""))?;
        terminal::print(&volumes_table(&volumes, &share))?;
        // What would stand in the way.
        let file = open_unlocked(&self.file, false).with_context(cannot)?;
        others_use(&file).iter().for_each(|use_of_it| terminal::say(use_of_it));
        if let Some(Err(why)) = self.change().map(|change| no_children(&self.file, change)) {
            terminal::say(&format!("{why:#}"));
        }
        Ok(())
    }

    fn compact(&self, mut plan: Plan, block_size: u32) -> Result<(), Failure> {
        let (path, mode) = (&self.file, self.mode.mode());
        let before = Size::of(path)?;
        let cannot = || format!("cannot compact {}", path.display());
        let whole =
            format!("{} is consistent and has all its data; the same command continues", path.display());
        let stopped = || Failure::failed(anyhow!("interrupted: {whole}"));
        // One lock from here to the end.
        let file = open_to_change(path, self.change())?;
        let again = || file.try_clone().with_context(cannot);
        let cancel = interrupt::watch();
        let shown = path.display().to_string();
        interrupt::waits_for(move || shown.clone());
        interrupt::leaves(&*whole);
        let mut next = guids()?;
        divide_blocks(&file, block_size, next().as_mut()).with_context(cannot)?;
        let mut dropped = lunway_compact::Dropped::default();
        if mode != Mode::Pretrimmed {
            let chain = chain_to_change(again()?, path).with_context(cannot)?;
            // As it is now that no other process can change it.
            plan.tree = Plan::new(&chain).tree;
            let bar = progress::bytes("dropping", chain.size());
            dropped = drop_dead(&chain, &plan, mode, &mut |now| {
                bar.set_position(now.done);
                go_on(&cancel)
            })
            .with_context(cannot)?;
            bar.finish_and_clear();
            chain.close().with_context(cannot)?;
            if cancel.is_cancelled() {
                return Err(stopped());
            }
        }
        // Where blocks stay as well: the table of smaller blocks lies behind them, and would keep the file long.
        let mut moved = pack_metadata(&file, next().as_mut()).with_context(cannot)?;
        if mode.moves() {
            // Where blocks lie is nothing that a child sees.
            let known = Disk::open(again()?, &VhdxOpenOptions::read_only(), next()).with_context(cannot)?;
            let options =
                VhdxOpenOptions { data_write: Some(known.data_write_guid()), ..VhdxOpenOptions::writable() };
            drop(known);
            let disk = Disk::open(again()?, &options, next()).with_context(cannot)?;
            let bar = progress::bytes("moving", 0);
            let packed = pack(&disk, &mut |now| {
                bar.set_length(now.moved + now.left);
                bar.set_position(now.moved);
                go_on(&cancel)
            })
            .with_context(cannot)?;
            bar.finish_and_clear();
            disk.close().with_context(cannot)?;
            moved += packed.moved;
            if cancel.is_cancelled() {
                return Err(stopped());
            }
        }
        let after = Size::of(path)?;
        if self.json {
            return terminal::print_json(&json!({
                "file": path.display().to_string(),
                "mode": Name::of(mode),
                "block_bytes": block_size,
                "bytes_before": before.bytes,
                "bytes": after.bytes,
                "allocated_bytes_before": before.allocated,
                "allocated_bytes": after.allocated,
                "dropped_blocks": dropped.blocks,
                "punched_bytes": dropped.punched,
                "moved_bytes": moved,
            }));
        }
        let change = before.bytes.abs_diff(after.bytes) as f64 / before.bytes.max(1) as f64 * 100.0;
        // Smaller blocks need a larger table, and an aligned file may be longer.
        let than = if after.bytes > before.bytes { "more" } else { "less" };
        terminal::print(&format!(
            "{} has {} ({} bytes), {change:.1} % {than} than before; it takes {} of the host's space, before {}",
            path.display(),
            HumanSize(after.bytes),
            after.bytes,
            HumanSize(after.allocated),
            HumanSize(before.allocated)
        ))
    }
}

fn go_on(cancel: &Cancel) -> ControlFlow<()> {
    if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// A part of the whole, as people say it.
fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// The innermost parts of a disk that something was recognised in.
fn collect<'a>(node: &'a Node, volumes: &mut Vec<&'a Node>) {
    if node.children.is_empty() {
        volumes.extend(node.kind.map(|_| node));
    }
    node.children.iter().for_each(|child| collect(child, volumes));
}

/// Table of the volumes on the disk: bytes that the file holds of each now and would hold after the chosen mode.
fn volumes_table(volumes: &[&Node], share: &dyn Fn(&Node) -> Option<Share>) -> String {
    let row = |node: &&Node| {
        let share = share(node);
        let size =
            |bytes: fn(Share) -> u64| share.map_or_else(|| "-".into(), |s| HumanSize(bytes(s)).to_string());
        [
            node.kind.unwrap_or("unknown").to_owned(),
            HumanSize(node.len).to_string(),
            HumanSize(node.used).to_string(),
            HumanSize(node.free).to_string(),
            size(|share| share.held),
            size(|share| share.held - share.dropped - share.punched),
            terminal::clean(node.reason.as_deref().unwrap_or("")),
        ]
    };
    let rows: Vec<_> = volumes.iter().map(row).collect();
    let none = "no file system was recognised: only zeroes can be dropped";
    format!(
        "\n{}",
        terminal::table(
            ["VOLUME", "SIZE", "USED", "FREE", "HELD", "AFTER", "LEFT ALONE BECAUSE"],
            &rows,
            none
        )
    )
}

fn volume_json(node: &Node, share: Option<Share>) -> Value {
    json!({
        "held_bytes": share.map(|share| share.held),
        "dropped_bytes": share.map(|share| share.dropped),
        "punched_bytes": share.map(|share| share.punched),
        "offset": node.offset,
        "bytes": node.len,
        "kind": node.kind,
        "used": node.used,
        "free": node.free,
        "unknown": node.unknown,
        "reason": node.reason,
    })
}

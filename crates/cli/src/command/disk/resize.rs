//! `lunway disk resize`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args};
use lunway_block::size::{HumanSize, parse_size};
use lunway_compact::Bytes;
use lunway_filesystem::cut::cut;
use lunway_filesystem::partition::{Gpt, HEAD, Table, Write};
use lunway_vhdx::{Chain, DiskError, resize};
use serde_json::json;

use super::named::vhdx;
use super::{chain_to_change, guids, no_children, open_chain, open_to_change};
use crate::failure::Failure;
use crate::terminal;

/// Grow or shrink a disk.
///
/// The change takes effect completely or not at all. New space reads as zeroes, and the backup GPT moves to the new
/// end. Shrinking requires --shrink, and is refused if it would cut a partition or a file system.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("to").required(true).args(["size", "to_minimum"]), override_usage = "\
lunway disk resize [OPTIONS] <FILE> <SIZE>
       lunway disk resize [OPTIONS] --to-minimum <FILE>", after_help = "\
Examples:
  lunway disk resize server.vhdx 100G
  # As small as its partitions allow:
  lunway disk resize server.vhdx --to-minimum --shrink")]
pub(super) struct Resize {
    /// The VHDX file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The new size
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Shrink to the end of the last partition
    #[arg(long)]
    to_minimum: bool,
    /// Allow a smaller size: data beyond the new end are lost
    #[arg(long)]
    shrink: bool,
    /// Resize even if that cuts a partition or a file system, loses the only whole copy of a GPT, or if other disks
    /// have this one as parent (they can no longer be opened)
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Advice on resizing a raw image, which is as long as its disk.
const RAW: &str = "resize a raw file with truncate, or with `lunway lun resize` while it is served";

/// Properties of the disk before the change.
struct Before {
    size: u64,
    sector: u32,
    parent_size: Option<u64>,
    table: Option<Table>,
    /// Only the GPT at the end is whole.
    only_copy: bool,
}

impl Resize {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.file = vhdx(&self.file, RAW)?;
        let path = &self.file;
        let change = (!self.force).then_some("resized");
        if let Some(change) = change {
            no_children(path, change)?;
        }
        let before = Before::read(path)?;
        let size = self.target(&before)?;
        self.may(&before, size)?;
        let cannot = || format!("cannot resize {}", path.display());
        let gpt = match &before.table {
            Some(Table::Gpt(gpt)) if size >= before.table.as_ref().map_or(0, Table::minimum) => Some(gpt),
            _ => None,
        };
        let smaller = size < before.size;
        // The copy of the table is where the new end will be before the disk ends there.
        if let (true, Some(gpt)) = (smaller, gpt) {
            move_table(path, change, gpt, size).with_context(cannot)?;
        }
        if size != before.size {
            let file = open_to_change(path, change)?;
            let to = lunway_vhdx::Resize { size, parent_size: before.parent_size, data_write: None };
            resize(&file, &to, guids()?().as_mut()).with_context(cannot)?;
        }
        if let (false, Some(gpt)) = (smaller, gpt) {
            move_table(path, change, gpt, size).with_context(|| {
                format!("{} has its new size, but its GPT was not moved to its end", path.display())
            })?;
        }
        match self.json {
            true => terminal::print_json(&json!({
                "file": path.display().to_string(),
                "bytes_before": before.size,
                "bytes": size,
                "table_moved": gpt.is_some(),
            })),
            false => terminal::print(&format!(
                "{} has {} ({size} bytes), before {}",
                path.display(),
                HumanSize(size),
                HumanSize(before.size)
            )),
        }
    }

    fn target(&self, before: &Before) -> Result<u64, Failure> {
        match (self.size, &before.table) {
            (Some(size), _) => Ok(size),
            (None, Some(table)) => Ok(table.minimum()),
            (None, None) => Err(Failure::failed(anyhow!(
                "{} has no partition table that shows where its data end: give a SIZE",
                self.file.display()
            ))),
        }
    }

    fn may(&self, before: &Before, size: u64) -> Result<(), Failure> {
        let path = self.file.display();
        if !size.is_multiple_of(before.sector.into()) {
            return Err(Failure::failed(anyhow!(
                "{size} bytes are not whole sectors of {path}, of {} bytes",
                before.sector
            )));
        }
        if before.only_copy && size != before.size && !self.force {
            return Err(Failure::failed(anyhow!(
                "{path}: the GPT at the start of the disk is not valid, and the copy at its end, which is, would not be found \
                 on a disk of another size: repair the table with gdisk or sfdisk first, or use --force to lose it"
            )));
        }
        if size >= before.size {
            return Ok(());
        }
        if !self.shrink {
            return Err(Failure::failed(anyhow!(
                "{path} has {}: shrinking it to {} needs --shrink, and destroys the data beyond that",
                HumanSize(before.size),
                HumanSize(size)
            )));
        }
        if self.force {
            return Ok(());
        }
        match cut(&Bytes(&open_chain(&self.file)?), before.sector, size) {
            Some(cut) => Err(Failure::failed(anyhow!("{path}: {cut}, or use --force to cut it"))),
            None => Ok(()),
        }
    }
}

impl Before {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let chain = open_chain(path)?;
        let sector = chain.disks()[0].parameters().logical_sector;
        let reading = || format!("reading {}", path.display());
        Ok(Self {
            size: chain.size(),
            sector,
            parent_size: chain.disks().get(1).map(|parent| parent.parameters().disk_size),
            table: table(&chain).with_context(reading)?,
            only_copy: Table::only_copy_is_whole(&Bytes(&chain), sector).with_context(reading)?,
        })
    }
}

/// The partition table of a disk, if it has one.
pub(super) fn table(chain: &Chain<File>) -> Result<Option<Table>, DiskError> {
    let mut head = vec![0; HEAD.min(usize::try_from(chain.size()).unwrap_or(HEAD))];
    chain.read_at(0, &mut head)?;
    Ok(Table::read(&head, chain.disks()[0].parameters().logical_sector, chain.size()))
}

/// Writes a GPT as it is on a disk of `size` bytes: the copy first, then what leads to it.
fn move_table(path: &Path, change: Option<&str>, gpt: &Gpt, size: u64) -> anyhow::Result<()> {
    let chain = chain_to_change(open_to_change(path, change)?, path)?;
    for step in gpt.on_disk_of(size) {
        for Write { offset, bytes } in step {
            chain.write_at(offset, &bytes)?;
        }
        chain.flush()?;
    }
    Ok(chain.close()?)
}

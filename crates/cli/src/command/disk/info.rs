//! `lunway disk info`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_filesystem::partition::Table;
use lunway_vhdx::merge::children;
use lunway_vhdx::{Chain, Counts, Disk, DiskKind, Locator, Parameters, VhdxOpenOptions, open_unlocked};
use serde_json::{Value, json};

use super::named::{self, Named};
use super::{folder, guids, image, kind_name, minimum_text, names, others_use, resize};
use crate::failure::Failure;
use crate::terminal;

/// Show the sizes, sectors, identity and chain of a virtual disk
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk info server.vhdx
  lunway disk info server.avhdx --json | jq .chain")]
pub(super) struct Info {
    /// The VHDX file; VHD and qcow2 files by their names, or as vhd:FILE and qcow2:FILE
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Advice on a raw image, which has no format to inspect.
const RAW: &str = "of a raw image `lunway disk inside` shows the partitions and file systems";

/// One file, read.
struct Found {
    parameters: Parameters,
    data_write: String,
    counts: Counts,
    /// Bytes of the file that nothing uses.
    free: u64,
    log_in_use: bool,
    /// The smallest disk that holds all partitions, if there are any and the chain is whole.
    minimum: Option<u64>,
    file_bytes: u64,
    allocated: u64,
    /// Use by another program, the end of a sentence.
    in_use: Option<String>,
    children: Vec<PathBuf>,
    /// The files of the chain, this one first, or why it is not whole.
    chain: Result<Vec<PathBuf>, String>,
}

impl Info {
    pub(super) fn run(self) -> Result<(), Failure> {
        if let Named::Image(path, format) = Named::of(&self.file)? {
            return image::info(&path, format, self.json);
        }
        let path = &named::vhdx(&self.file, RAW)?;
        let found = read(path).with_context(|| format!("cannot read {}", path.display()))?;
        match self.json {
            true => terminal::print_json(&found.json(path)),
            false => terminal::print(&format!("{}\n{}", path.display(), terminal::columns(found.rows()))),
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Found> {
    // Not locked: a disk that is in use can be looked at as well.
    let file = open_unlocked(path, false)?;
    let metadata = file.metadata()?;
    // Asked before a lock is taken, which NFS would show as one of these.
    let others = others_use(&file);
    let blocked = |locked| matches!(locked, Err(std::fs::TryLockError::WouldBlock));
    let in_use = match () {
        () if blocked(file.try_lock_shared()) => {
            Some("another process has it open for writing: the figures are of a moment".to_owned())
        }
        () if blocked(file.try_lock()) => Some("another process has it open for reading".to_owned()),
        () => None,
    };
    drop(file.unlock());
    let in_use = in_use.or(others);
    let disk = Disk::open(file, &VhdxOpenOptions::read_only(), guids()?())?;
    let parameters = disk.parameters().clone();
    let (data_write, counts, free) = (disk.data_write_guid().to_string(), disk.counts(), disk.free());
    let log_in_use = disk.log_in_use();
    let chain = Chain::with_parents(
        vec![disk],
        &[path.to_owned()],
        &folder(path),
        &VhdxOpenOptions::read_only(),
        guids()?,
    );
    // What cannot be read is told by `check`.
    let table = chain.as_ref().ok().and_then(|chain| resize::table(chain).ok().flatten());
    Ok(Found {
        parameters,
        data_write,
        counts,
        free,
        log_in_use,
        minimum: table.as_ref().map(Table::minimum),
        file_bytes: metadata.len(),
        allocated: metadata.blocks() * 512,
        in_use,
        children: children(path).unwrap_or_default(),
        chain: chain.map(|chain| chain.paths().to_vec()).map_err(|error| error.to_string()),
    })
}

impl Found {
    fn parent(&self) -> Option<&str> {
        let locator = self.parameters.locator.as_ref()?;
        [Locator::RELATIVE, Locator::ABSOLUTE, Locator::VOLUME].iter().find_map(|key| locator.get(key))
    }

    /// Payload blocks that do not lie behind the one before them, per cent of those that are present.
    fn fragmentation(&self) -> u64 {
        let counts = self.counts;
        counts.out_of_order * 100 / (counts.present + counts.partial).max(1)
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let (parameters, counts) = (&self.parameters, self.counts);
        let minimum = match (self.minimum, &self.chain) {
            (None, Err(_)) => "unknown".to_owned(),
            (minimum, _) => minimum_text(minimum),
        };
        let mut rows = vec![
            ("kind", kind_name(parameters.kind).to_owned()),
            ("size of the disk", HumanSize(parameters.disk_size).to_string()),
            ("minimum size", minimum),
            (
                "size of the file",
                format!("{}, {} of it on the host", HumanSize(self.file_bytes), HumanSize(self.allocated)),
            ),
            ("block size", HumanSize(parameters.block_size.into()).to_string()),
            (
                "sectors",
                format!("{} logical, {} physical", parameters.logical_sector, parameters.physical_sector),
            ),
            (
                "blocks",
                format!(
                    "{} with data, {} in part, {} zero, {} unmapped, {} never written",
                    counts.present, counts.partial, counts.zero, counts.unmapped, counts.never_written
                ),
            ),
            ("fragmentation", format!("{} %", self.fragmentation())),
            ("identity", parameters.disk_id.to_string()),
            ("data identity", self.data_write.clone()),
        ];
        if let Some(parent) = self.parent() {
            rows.push(("parent", parent.to_owned()));
            rows.push((
                "chain",
                match &self.chain {
                    Ok(paths) => names(paths),
                    Err(why) => format!("cannot be opened: {why}"),
                },
            ));
        }
        if !self.children.is_empty() {
            rows.push(("parent of", names(&self.children)));
        }
        let log =
            if self.log_in_use { "has entries: replayed when it is opened for writing" } else { "empty" };
        rows.push(("log", log.to_owned()));
        rows.extend(self.in_use.clone().map(|how| ("in use", how)));
        rows
    }

    fn json(&self, path: &Path) -> Value {
        let (parameters, counts) = (&self.parameters, self.counts);
        let text = |path: &PathBuf| path.display().to_string();
        json!({
            "file": path.display().to_string(),
            "format": "vhdx",
            "kind": kind_name(parameters.kind),
            "virtual_bytes": parameters.disk_size,
            "minimum_bytes": self.minimum,
            "file_bytes": self.file_bytes,
            "allocated_bytes": self.allocated,
            "free_bytes": self.free,
            "block_bytes": parameters.block_size,
            "logical_sector": parameters.logical_sector,
            "physical_sector": parameters.physical_sector,
            "disk_id": parameters.disk_id.to_string(),
            "data_write_id": self.data_write,
            "parent": self.parent(),
            "chain": self.chain.as_ref().ok().map(|paths| paths.iter().map(text).collect::<Vec<_>>()),
            "chain_problem": self.chain.as_ref().err(),
            "children": self.children.iter().map(text).collect::<Vec<_>>(),
            "log_dirty": self.log_in_use,
            "in_use": self.in_use.is_some(),
            "fragmentation_percent": self.fragmentation(),
            "blocks": {
                "data": counts.present,
                "partial": counts.partial,
                "zero": counts.zero,
                "unmapped": counts.unmapped,
                "never_written": counts.never_written,
            },
            "has_parent": parameters.kind == DiskKind::Differencing,
        })
    }
}

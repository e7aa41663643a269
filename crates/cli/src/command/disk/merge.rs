//! `lunway disk merge`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_compact::Bytes;
use lunway_filesystem::cut::cut;
use lunway_filesystem::{ByteSource, Unreadable};
use lunway_vhdx::merge::{Go, Outcome, children, merge_files};
use lunway_vhdx::{Chain, EditError};
use serde_json::json;

use super::named::vhdx;
use super::{folder, guids, names, open_chain};
use crate::failure::Failure;
use crate::replaceable::child_names;
use crate::{interrupt, progress, terminal};

/// Merge a differencing disk into one of its parents, and remove the files that are no longer needed.
///
/// The contents of the disk stay the same at every moment; after an interrupt, the same command continues. Several
/// levels are merged one after another. A larger parent shrinks to the size of the disk: that requires --shrink, and
/// is refused if it would cut a partition or a file system. A merge makes other children of the parent unusable, and
/// is refused if there are any in its directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk merge server-2.avhdx                     # into its parent
  lunway disk merge server-2.avhdx --into server.vhdx  # several levels")]
pub(super) struct Merge {
    /// The differencing disk
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The parent that receives the data [default: the direct parent]
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Keep the merged files; all of them then have the same contents
    #[arg(long)]
    keep: bool,
    /// Allow a larger parent to shrink to the size of the disk: data beyond that are lost
    #[arg(long)]
    shrink: bool,
    /// Merge even if that cuts a partition or a file system, or if a parent has other children (they can no longer be
    /// opened)
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A disk, and the zeroes that it would have on the size of its parent.
struct Longer<'a> {
    chain: &'a Chain<File>,
    len: u64,
}

impl ByteSource for Longer<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        let outside = || Unreadable::outside(offset, buf.len() as u64, self.len);
        offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len).ok_or_else(outside)?;
        let inside = self.chain.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        let (inside, behind) = buf.split_at_mut(inside);
        behind.fill(0);
        if inside.is_empty() { Ok(()) } else { Bytes(self.chain).read(offset, inside) }
    }
}

/// Refuses files of which others than themselves were made.
fn no_others(files: &[PathBuf]) -> Result<(), EditError> {
    for parent in files {
        let others: Vec<PathBuf> =
            children(parent)?.into_iter().filter(|child| !files.contains(child)).collect();
        if !others.is_empty() {
            return Err(EditError::Refused(format!(
                "{} is also the parent of {}, which can no longer be opened after a merge: merge those first, or use --force",
                parent.display(),
                child_names(parent, &others)
            )));
        }
    }
    Ok(())
}

impl Merge {
    /// Refuses to cut a parent that is larger than the disk, unless that is meant.
    fn may_shrink(&self, disk: &Longer<'_>, sector: u32, parent: &Path) -> Result<(), Failure> {
        let (path, parent, size) = (self.file.display(), parent.display(), disk.chain.size());
        if !self.shrink {
            return Err(Failure::failed(anyhow!(
                "{path} has {}, and {parent} has {}: merging shrinks it, needs --shrink, and destroys the data beyond that; \
                 `lunway disk resize` makes {path} as large first",
                HumanSize(size),
                HumanSize(disk.len)
            )));
        }
        match cut(disk, sector, size).filter(|_| !self.force) {
            Some(cut) => Err(Failure::failed(anyhow!(
                "{path} has {}, and {parent} has {}: {cut}, or use --force to cut it",
                HumanSize(size),
                HumanSize(disk.len)
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.file = vhdx(&self.file, "")?;
        let path = &self.file;
        let chain = open_chain(path)?;
        let paths = chain.paths().to_vec();
        let (size, sector) = (chain.size(), chain.disks()[0].parameters().logical_sector);
        let into = match &self.into {
            Some(into) => {
                let into = vhdx(into, "")?;
                into.canonicalize().with_context(|| format!("cannot find {}", into.display()))?
            }
            None => paths.get(1).cloned().ok_or_else(|| {
                Failure::failed(anyhow!("{} has no parent: it is not a differencing disk", path.display()))
            })?,
        };
        let level = paths.iter().position(|path| *path == into).unwrap_or(0);
        let sizes = chain.disks()[..=level].iter().map(|disk| disk.parameters().disk_size);
        let largest =
            sizes.enumerate().skip(1).max_by_key(|(_, size)| *size).filter(|(_, base)| *base > size);
        if let Some((parent, base)) = largest {
            self.may_shrink(&Longer { chain: &chain, len: base }, sector, &paths[parent])?;
        }
        drop(chain);
        let may = |files: &[PathBuf]| if self.force { Ok(()) } else { no_others(files) };
        may(&paths[..=level]).map_err(anyhow::Error::from)?;
        // Ctrl-C stops between two pieces: what was written is durable, and the same command continues.
        let cancel = interrupt::watch();
        let unchanged =
            format!("the contents of {} are unchanged; the same command continues", path.display());
        let waits_for = into.display().to_string();
        interrupt::waits_for(move || waits_for.clone());
        interrupt::leaves(&*unchanged);
        let bar = progress::bytes("merging", size);
        let mut written = 0;
        let outcome = merge_files(path, &into, &folder(path), self.keep, may, guids()?, &mut |now| {
            bar.set_position(now.done);
            written = now.written;
            if cancel.is_cancelled() { Go::Stop } else { Go::On }
        });
        bar.finish_and_clear();
        let cannot = || format!("merging {} into {}", path.display(), into.display());
        let merged = match outcome.map_err(anyhow::Error::from).with_context(cannot)? {
            Outcome::Merged(files) => files,
            Outcome::Stopped => {
                return Err(Failure::failed(anyhow!("interrupted: {unchanged}")));
            }
        };
        let text = |path: &PathBuf| path.display().to_string();
        match self.json {
            true => terminal::print_json(&json!({
                "into": text(&into),
                "merged": merged.iter().map(text).collect::<Vec<_>>(),
                "written_bytes": written,
                "removed": !self.keep,
            })),
            false => terminal::print(&format!(
                "{} {} merged into {}{}",
                names(&merged),
                if merged.len() == 1 { "was" } else { "were" },
                into.display(),
                if self.keep { "" } else { " and removed" }
            )),
        }
    }
}

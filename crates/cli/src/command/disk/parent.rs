//! `lunway disk rebase`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_vhdx::{Disk, Locator, VhdxOpenOptions, open_as_parent, relative_path, set_parent};
use serde_json::json;

use super::named::vhdx;
use super::{guids, open_chain, open_to_change};
use crate::failure::Failure;
use crate::terminal;

/// Set the path of a differencing disk's parent.
///
/// For a parent that was moved or renamed. A parent with other data is refused. --ignore-mismatch accepts it, for
/// instance after a restore; a wrong parent corrupts the disk.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk rebase server.avhdx --parent base/server.vhdx")]
pub(super) struct Rebase {
    /// The differencing disk
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The parent, in the same directory or below
    #[arg(long, value_name = "FILE")]
    parent: PathBuf,
    /// Accept a parent that is not the one that the disk was created on
    #[arg(long)]
    ignore_mismatch: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Rebase {
    pub(super) fn run(self) -> Result<(), Failure> {
        let (path, parent_path) = (&vhdx(&self.file, "")?, &vhdx(&self.parent, "")?);
        let cannot = || format!("cannot rebase {}", path.display());
        if open_chain(parent_path)
            .with_context(cannot)?
            .paths()
            .contains(&path.canonicalize().unwrap_or_default())
        {
            return Err(Failure::failed(anyhow!(
                "{} lies on {} itself, or is the same file: that would be a circle",
                parent_path.display(),
                path.display()
            )));
        }
        let parent = open_parent(parent_path).with_context(cannot)?;
        let file = Arc::new(open_to_change(path, None)?);
        let disk = Disk::open(Arc::clone(&file), &VhdxOpenOptions::read_only(), guids()?())
            .map_err(anyhow::Error::from);
        let disk = disk.with_context(cannot)?;
        let Some(locator) = disk.parameters().locator.clone() else {
            return Err(Failure::failed(anyhow!(
                "{} has no parent: it is not a differencing disk",
                path.display()
            )));
        };
        let (ours, theirs) = (disk.parameters(), parent.parameters());
        if ours.logical_sector != theirs.logical_sector {
            return Err(Failure::failed(anyhow!(
                "{} has sectors of {} bytes, {} of {}: that can be no parent",
                path.display(),
                ours.logical_sector,
                parent_path.display(),
                theirs.logical_sector
            )));
        }
        let linkage = parent.data_write_guid();
        if !locator.matches(linkage) && !self.ignore_mismatch {
            return Err(Failure::failed(anyhow!(
                "{} was made on a parent with the data identity {}, {} has {linkage}: its data changed since, or it is another \
                 disk; --ignore-mismatch takes it all the same",
                path.display(),
                locator.linkage(),
                parent_path.display()
            )));
        }
        drop(disk);
        let relative = relative_path(path, parent_path).map_err(anyhow::Error::from)?;
        let locator = Locator::new(linkage, &relative, None);
        set_parent(file.as_ref(), &locator, guids()?().as_mut())
            .map_err(anyhow::Error::from)
            .with_context(cannot)?;
        drop((file, parent));
        match self.json {
            true => terminal::print_json(&json!({
                "file": path.display().to_string(),
                "parent": parent_path.display().to_string(),
                "parent_data_write_id": linkage.to_string(),
            })),
            false => terminal::print(&format!("{} lies on {}", path.display(), parent_path.display())),
        }
    }
}

/// Opens a file as a parent. No program writes to it while it is open.
pub(super) fn open_parent(path: &Path) -> anyhow::Result<Disk<std::fs::File>> {
    let cannot = || format!("cannot open the parent {}", path.display());
    let file = open_as_parent(path).with_context(cannot)?;
    Disk::open(file, &VhdxOpenOptions::read_only(), guids()?()).with_context(cannot)
}

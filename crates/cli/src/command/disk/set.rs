//! `lunway disk set`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgGroup, Args};
use lunway_vhdx::{Disk, IdentityChange, VhdxOpenOptions, set_identity};
use serde_json::json;

use super::named::vhdx;
use super::{guids, open_to_change};
use crate::failure::Failure;
use crate::{sector, terminal};

/// Give a disk a new identity, or another physical sector size
///
/// A copied file has the identity of the original, which confuses systems that see both.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["new_id", "physical_sector"]), after_help = "\
Examples:
  lunway disk set copy.vhdx --new-id
  lunway disk set server.vhdx --physical-sector 512    # 512n instead of 512e")]
pub(super) struct Set {
    /// The VHDX file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Set a new random identity, which systems see in VPD page 83h
    #[arg(long)]
    new_id: bool,
    /// Physical sector: 512 or 4096, not less than the logical one
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    physical_sector: Option<u32>,
    /// Change the disk even if it has children, which can then no longer be opened
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Set {
    pub(super) fn run(self) -> Result<(), Failure> {
        let path = &vhdx(&self.file, "")?;
        let file = open_to_change(path, (!self.force).then_some("changed"))?;
        let mut random = guids()?;
        let identity = IdentityChange {
            disk_id: self.new_id.then(|| random().next()),
            physical_sector: self.physical_sector,
        };
        let cannot = || format!("cannot change {}", path.display());
        set_identity(&file, &identity, random().as_mut()).with_context(cannot)?;
        let disk = Disk::open(file, &VhdxOpenOptions::read_only(), random()).with_context(cannot)?;
        let parameters = disk.parameters();
        match self.json {
            true => terminal::print_json(&json!({
                "file": path.display().to_string(),
                "disk_id": parameters.disk_id.to_string(),
                "physical_sector": parameters.physical_sector,
            })),
            false => terminal::print(&format!(
                "{}: identity {}, physical sectors of {} bytes",
                path.display(),
                parameters.disk_id,
                parameters.physical_sector
            )),
        }
    }
}

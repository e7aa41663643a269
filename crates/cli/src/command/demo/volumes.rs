//! The volumes of the demonstration.

use anyhow::Context;
use lunway_block::size::ExactSize;
use lunway_target::LunConfig;
use tempfile::TempDir;

use crate::command::disk::NewDisk;
use crate::failure::Failure;

/// Location of the volumes. They are deleted when this is dropped.
pub(super) enum Volumes {
    /// In memory.
    Memory,
    /// In VHDX files in this folder.
    Vhdx(TempDir),
}

impl Volumes {
    /// In memory, or in VHDX files in a new folder among the temporary files.
    pub(super) fn new(vhdx: bool) -> Result<Self, Failure> {
        Ok(match vhdx {
            false => Self::Memory,
            true => Self::Vhdx(tempfile::tempdir().context("cannot make a folder for VHDX files")?),
        })
    }

    /// Kind of a volume.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "a RAM disk",
            Self::Vhdx(_) => "a VHDX file",
        }
    }

    /// Makes a volume; `name` is its own. The name of its device.
    pub(super) fn device(&self, name: &str, size: u64, sector: u32) -> Result<String, Failure> {
        match self {
            Self::Memory => Ok(format!("ram:{}", ExactSize(size))),
            Self::Vhdx(folder) => {
                let path = folder.path().join(name).with_extension("vhdx");
                NewDisk::default().make(&path, size, sector)?;
                Ok(format!("vhdx:{}", path.display()))
            }
        }
    }

    /// Makes a volume as a logical unit.
    pub(super) fn unit(&self, id: u16, size: u64, sector: u32) -> Result<LunConfig, Failure> {
        let device = self.device(&format!("lun-{id}"), size, sector)?.parse().map_err(Failure::failed)?;
        // The sectors of a VHDX are its own.
        let said = matches!(self, Self::Memory).then_some(sector);
        Ok(LunConfig { sector: said, ..LunConfig::new(id, device) })
    }
}

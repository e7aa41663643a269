//! Detection of a volume's format: the order in which formats are asked, and the treatment of ambivalent volumes.
//!
//! 1. Content decides, not the type that a partition table gives.
//! 2. What hides another format is asked first and alone: encryption, arrays (whose superblock may lie behind a whole
//!    file system of theirs).
//! 3. Everything else is asked. One answer is the format; two are *ambivalent*, and nothing of the volume is free:
//!    stale superblocks are common, and which one is stale is not written anywhere.

use crate::opaque::{self, Opaque};
use crate::source::{ByteSource, Unreadable};
use crate::volume::{Doubt, Examined};
use crate::{btrfs, exfat, ext, fat, lvm, ntfs, partition, swap, xfs};

/// The reader of one format.
#[derive(Debug)]
pub struct Format {
    /// Its name, for ambivalence.
    pub name: &'static str,
    /// Function that tells whether a volume bears its signature.
    pub recognised: fn(&dyn ByteSource) -> Result<bool, Unreadable>,
    /// Examines a volume that does.
    pub examine: fn(&dyn ByteSource) -> Result<Examined, Doubt>,
}

/// All formats whose volumes have a free map.
pub const FORMATS: &[Format] = &[
    Format { name: "ext", recognised: ext::recognised, examine: ext::examine },
    Format { name: "NTFS", recognised: ntfs::recognised, examine: ntfs::examine },
    Format { name: "FAT", recognised: fat::recognised, examine: fat::examine },
    Format { name: "exFAT", recognised: exfat::recognised, examine: exfat::examine },
    Format { name: "btrfs", recognised: btrfs::recognised, examine: btrfs::examine },
    Format { name: "XFS", recognised: xfs::recognised, examine: xfs::examine },
    Format { name: "swap", recognised: swap::recognised, examine: swap::examine },
];

/// Content found on a volume.
#[derive(Debug)]
pub enum Found {
    /// Nothing that is known here.
    Nothing,
    /// A volume of this format.
    Volume(&'static Format),
    /// A partition table.
    Table,
    /// A physical volume of LVM2.
    PhysicalVolume,
    /// Content that is left alone.
    Opaque(&'static Opaque),
    /// Several of them: their names.
    Ambivalent(Vec<&'static str>),
}

/// Looks what a volume is. `sector` is the disk's logical sector, in which partition tables count.
pub fn probe(source: &dyn ByteSource, sector: u32) -> Result<Found, Unreadable> {
    if let Some(opaque) = opaque::recognised(source)? {
        return Ok(Found::Opaque(opaque));
    }
    let (mut names, mut found) = (Vec::new(), Found::Nothing);
    for format in FORMATS {
        if (format.recognised)(source)? {
            names.push(format.name);
            found = Found::Volume(format);
        }
    }
    if lvm::recognised(source)? {
        names.push("LVM2");
        found = Found::PhysicalVolume;
    }
    if partition::layout::recognised(source, sector)? {
        names.push("partition table");
        found = Found::Table;
    }
    Ok(if names.len() > 1 { Found::Ambivalent(names) } else { found })
}

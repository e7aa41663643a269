//! Swap space of Linux: all but its first page is free, unless a suspended system lies in it.
//!
//! The signature stands at the end of the first page, whose size is the machine's (`union swap_header` of the kernel's
//! include/linux/swap.h).

use std::ops::Range;

use crate::fields::{label, le32, uuid};
use crate::map::Ranges;
use crate::source::{ByteSource, Unreadable};
use crate::volume::{Doubt, Examined, Mounted, Volume, VolumeIdentity};

const SIGNATURE: [u8; 10] = *b"SWAPSPACE2";
/// Signatures that a suspended system puts in its place, by the means that suspended it.
const SUSPENDED: [&[u8]; 4] = [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"];
/// The sizes of pages, and so the places of the signature.
const PAGES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// Offsets of fields.
mod field {
    pub(super) const VERSION: usize = 1024;
    pub(super) const LAST_PAGE: usize = 1028;
    pub(super) const BAD_PAGES: usize = 1032;
    pub(super) const UUID: usize = 1036;
    pub(super) const LABEL: usize = 1052;
}

/// The size of a page, and whether a system is suspended.
fn signature(source: &dyn ByteSource) -> Result<Option<(u64, bool)>, Unreadable> {
    for page in PAGES.into_iter().filter(|page| source.len() >= *page) {
        let found: [u8; 10] = source.array(page - 10)?;
        let suspended = SUSPENDED.iter().any(|mark| found.starts_with(mark));
        if found == SIGNATURE || suspended {
            return Ok(Some((page, suspended)));
        }
    }
    Ok(None)
}

/// Returns `true` if the volume is swap space.
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    Ok(signature(source)?.is_some())
}

/// Returns `true` if a suspended system lies in the volume, whatever else bears its signature there.
pub fn is_suspended(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    Ok(signature(source)?.is_some_and(|(_, suspended)| suspended))
}

/// Examines the volume.
pub fn examine(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let (page, suspended) =
        signature(source)?.ok_or_else(|| Doubt::new("it has no signature of swap space"))?;
    let header: [u8; 4096] = source.array(0)?;
    let size = (u64::from(le32(&header, field::LAST_PAGE)) + 1) * page;
    let identity = VolumeIdentity {
        kind: "swap",
        label: label(&header[field::LABEL..field::LABEL + 16]),
        uuid: uuid(&header[field::UUID..]),
        size,
    };
    let doubt = if suspended {
        Some(Doubt::new("a suspended system lies in it").helped_by("start that system, and shut it down"))
    } else if le32(&header, field::VERSION) != 1 {
        Some(Doubt::new("its version is not 1"))
    } else if le32(&header, field::BAD_PAGES) != 0 {
        Some(Doubt::new("it has a list of bad pages"))
    } else if size > source.len() {
        Some(Doubt::new(format!("it has {size} bytes, its partition only {}", source.len())))
    } else {
        None
    };
    let map = || Box::new(Map { size, header: Ranges::union(std::iter::once(0..page)) }) as Box<dyn Volume>;
    // swapon leaves no mark.
    let verdict = doubt.map_or_else(|| Ok(map()), Err);
    Ok(Examined { identity, notes: Vec::new(), mounted: Mounted::Untold, verdict })
}

struct Map {
    size: u64,
    header: Ranges,
}

impl Volume for Map {
    fn free_bytes(&self) -> u64 {
        self.size - self.header.total().min(self.size)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn metadata(&self) -> &Ranges {
        &self.header
    }

    fn claimed_free(
        &self,
        _: &dyn ByteSource,
        _: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        sink(0..self.size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspended_system_is_kept() {
        for page in [4096u64, 65536] {
            let mut disk = vec![0u8; 1 << 20];
            let at = page as usize - 10;
            disk[at..at + 10].copy_from_slice(&SIGNATURE);
            disk[field::VERSION] = 1;
            disk[field::LAST_PAGE..field::LAST_PAGE + 4].copy_from_slice(&10u32.to_le_bytes());
            let free = |disk: &Vec<u8>| {
                examine(disk).ok().and_then(|found| found.verdict.ok()).map(|map| map.free_bytes())
            };
            assert_eq!(free(&disk), Some(10 * page));
            for mark in SUSPENDED {
                disk[at..at + mark.len()].copy_from_slice(mark);
                assert_eq!((recognised(&disk), free(&disk)), (Ok(true), None));
            }
            disk[at..at + 10].copy_from_slice(&SIGNATURE);
            disk.truncate(10 * page as usize);
            assert_eq!(free(&disk), None, "larger than what it lies in");
        }
    }
}

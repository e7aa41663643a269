//! Holes of the host in what a VHDX file has allocated.
//!
//! A block is allocated whole, 32 MiB as a rule, and its file has holes where nothing was written or what was there was
//! unmapped. They read as zeroes, and who asks for a map need not read them.

use lunway_block::{Extent, ExtentKind};
use lunway_vhdx::{Chain, Disk, MapSegment, Storage};

use crate::backing::Backing;

/// Appends the extents of a segment that is at `from` in its file: `hole` is what holes of the host are.
pub(crate) fn push_extents(
    chain: &Chain<Backing>,
    segment: &MapSegment,
    from: u64,
    hole: ExtentKind,
    list: &mut Vec<Extent>,
) {
    match host_extents(chain, segment, from) {
        Some(extents) => {
            for extent in extents {
                let kind = if extent.kind == ExtentKind::Data { ExtentKind::Data } else { hole };
                let offset = segment.offset + (extent.offset - from);
                Extent { offset, len: extent.len, kind }.push_onto(list);
            }
        }
        None => data(segment).push_onto(list),
    }
}

/// All of a segment as data, which is always true enough.
pub(crate) fn data(segment: &MapSegment) -> Extent {
    Extent { offset: segment.offset, len: segment.len, kind: ExtentKind::Data }
}

/// What the host says of a segment; `None`: it does not say, or another program has cut the file, so that the reads
/// must find out.
fn host_extents(chain: &Chain<Backing>, segment: &MapSegment, from: u64) -> Option<Vec<Extent>> {
    let disk = chain.disks().get(segment.level)?;
    let Backing::File(file) = Disk::storage(disk) else { return None };
    let end = from.checked_add(segment.len).filter(|end| Storage::len(file).is_ok_and(|len| *end <= len))?;
    let sector = disk.parameters().logical_sector;
    lunway_file::extents(&**file, from, end - from, sector, usize::MAX).ok()
}

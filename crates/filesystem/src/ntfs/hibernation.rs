//! hiberfil.sys: whether a Windows lies in the volume that will go on where it stopped, with the volume as it remembers
//! it.
//!
//! Fast Startup hibernates the kernel at every shutdown, and the volume is not marked dirty. All blocks of the root
//! directory's index that are in use by its bitmap are read instead of descending by the order of names: it costs
//! little, and needs no case table. Blocks that are not in use keep what was in them, and may be torn.

use crate::fields::{le16, le32, le64};
use crate::source::{ByteSource, View};
use crate::volume::Doubt;

use super::record::{
    CHKDSK, DATA, INDEX_ALLOCATION, INDEX_BITMAP, INDEX_ROOT, Mft, RECORD_NUMBER, Stream, fix_up,
};

/// The record of the root directory, and the name of a directory's index.
const ROOT: u64 = 5;
const INDEX: &str = "$I30";
/// A root directory of half a million files.
const INDEX_MAX: u64 = 64 << 20;
/// Flag of an index entry: the last of its node, without a name.
const LAST: u16 = 2;
/// Offset of a node's entries: in INDEX_ROOT, in a block of INDEX_ALLOCATION.
const ROOT_NODE: usize = 16;
const BLOCK_NODE: usize = 24;
/// Offsets of the name's length and of the name in an entry: behind its header of 16 bytes, in a FILE_NAME.
const NAME_LEN: usize = 16 + 64;
const NAME: usize = 16 + 66;

/// An error where the root directory has a hiberfil.sys with an image in it.
pub(super) fn check(source: &dyn ByteSource, mft: &Mft) -> Result<(), Doubt> {
    let damaged = || Doubt::new("its root directory is damaged").helped_by(CHKDSK);
    let Some(Stream::Resident(root)) = mft.stream(source, ROOT, INDEX_ROOT, INDEX)? else {
        return Err(damaged());
    };
    let mut found = Vec::new();
    node(root.get(ROOT_NODE..), &mut found).ok_or_else(damaged)?;
    if let Some(index) = mft.stream(source, ROOT, INDEX_ALLOCATION, INDEX)? {
        let view = View::new(source, index.segments(mft.cluster)?)?;
        let block_len = le32(root.get(..ROOT_NODE).ok_or_else(damaged)?, 8);
        if !block_len.is_power_of_two() || !(512..=1 << 16).contains(&block_len) {
            return Err(damaged());
        }
        if view.len() > INDEX_MAX {
            return Err(Doubt::new("its root directory is too large to look for hiberfil.sys in it"));
        }
        let in_use = match mft.stream(source, ROOT, INDEX_BITMAP, INDEX)?.ok_or_else(damaged)? {
            Stream::Resident(bytes) => bytes,
            stream => {
                let view = View::new(source, stream.segments(mft.cluster)?)?;
                let needed = (INDEX_MAX / u64::from(block_len)).div_ceil(8);
                (&view as &dyn ByteSource).bytes(0, view.len().min(needed) as usize)?
            }
        };
        for number in 0..view.len() / u64::from(block_len) {
            // One that the bitmap has no bit for is looked at as well.
            if in_use.get(number as usize / 8).is_some_and(|byte| byte >> (number % 8) & 1 == 0) {
                continue;
            }
            let mut block =
                (&view as &dyn ByteSource).bytes(number * u64::from(block_len), block_len as usize)?;
            // One that was never used.
            if !block.starts_with(b"INDX") {
                continue;
            }
            fix_up(&mut block).ok_or_else(damaged)?;
            node(block.get(BLOCK_NODE..), &mut found).ok_or_else(damaged)?;
        }
    }
    for reference in found {
        if has_image(source, mft, reference)? {
            return Err(Doubt::suspended(
                "Windows is hibernated in it (hiberfil.sys), as after a shutdown with Fast Startup",
            )
            .helped_by(
                "shut Windows down fully (shutdown /s /f /t 0), or turn Fast Startup off (powercfg /h off)",
            ));
        }
    }
    Ok(())
}

/// Adds the references of all entries named hiberfil.sys in one node of the index. `None` where it is damaged.
fn node(bytes: Option<&[u8]>, found: &mut Vec<u64>) -> Option<()> {
    let bytes = bytes.filter(|bytes| bytes.len() >= 16)?;
    let mut rest = bytes.get(le32(bytes, 0) as usize..le32(bytes, 4) as usize)?;
    loop {
        let header = rest.get(..16)?;
        let (len, flags) = (usize::from(le16(header, 8)), le16(header, 12));
        if flags & LAST != 0 {
            return Some(());
        }
        let entry = rest.get(..len)?;
        let name = entry.get(NAME..)?.get(..2 * usize::from(entry[NAME_LEN]))?;
        let units = name.chunks_exact(2).map(|unit| le16(unit, 0));
        let lower = units.map(|unit| u8::try_from(unit).map_or(0, |byte| byte.to_ascii_lowercase()));
        if lower.eq(b"hiberfil.sys".iter().copied()) {
            found.push(le64(header, 0));
        }
        rest = &rest[len..];
    }
}

/// Returns `true` if the file of this reference is still that file, and begins as an image does.
fn has_image(source: &dyn ByteSource, mft: &Mft, reference: u64) -> Result<bool, Doubt> {
    let number = reference & RECORD_NUMBER;
    let record = mft.record(source, number)?;
    // A block of the index that is no longer in use names files that are gone.
    if !record.is_in_use() || u64::from(record.sequence()) != reference >> 48 {
        return Ok(false);
    }
    let head = match mft.stream(source, number, DATA, "")? {
        None => return Ok(false),
        Some(Stream::Resident(bytes)) => bytes,
        Some(stream) => {
            let view = View::new(source, stream.segments(mft.cluster)?)?;
            (&view as &dyn ByteSource).bytes(0, view.len().min(4) as usize)?
        }
    };
    // In small letters until Windows 7.
    Ok(head.starts_with(b"hibr") || head.starts_with(b"HIBR"))
}

//! Would a write destroy something?

use lunway_block::{BlockDevice, BlockError, Buf, ExtentKind};

use crate::job::Region;

/// Extents are asked for in pieces of this, bytes, so that the answer stays small.
const EXTENT_WINDOW: u64 = 4 << 30;
/// A region up to this is read completely: 64 MiB take less than a second on anything worth measuring.
const READ_ALL_MAX: u64 = 64 << 20;
/// Of a larger one, this much is read at its start and at its end, where partition tables and file systems live.
const EDGE: u64 = 1 << 20;
/// And this many evenly spaced samples between.
const SAMPLES: u64 = 1024;
const SAMPLE: u64 = 4096;

/// The first offset in `region` at which data was seen, if any.
///
/// Extents come first: what they call zero or unallocated is empty. What they call data is read, completely if it is
/// at most 64 MiB, else its first and last MiB and 1024 samples; only bytes that are not zero count as data. For a
/// large device that cannot tell its extents this is an opinion, not a proof: a few kilobytes amid terabytes of zeroes
/// may be missed.
pub async fn holds_data(device: &dyn BlockDevice, region: Region) -> Result<Option<u64>, BlockError> {
    let end = region.offset.saturating_add(region.len);
    let mut at = region.offset;
    while at < end {
        let len = (end - at).min(EXTENT_WINDOW);
        for extent in device.extents(at, len, usize::MAX).await? {
            if extent.kind == ExtentKind::Data {
                let found = look(device, Region { offset: extent.offset, len: extent.len }).await?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        at += len;
    }
    Ok(None)
}

async fn look(device: &dyn BlockDevice, extent: Region) -> Result<Option<u64>, BlockError> {
    let Region { offset, len } = extent;
    if len <= READ_ALL_MAX {
        return scan(device, offset, len).await;
    }
    for offset in [offset, offset + len - EDGE] {
        if let Some(found) = scan(device, offset, EDGE).await? {
            return Ok(Some(found));
        }
    }
    let stride = (len - 2 * EDGE) / SAMPLES;
    for sample in 0..SAMPLES {
        let offset = (offset + EDGE + sample * stride) / SAMPLE * SAMPLE;
        if let Some(found) = scan(device, offset, SAMPLE).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The first offset of a byte that is not zero.
async fn scan(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<Option<u64>, BlockError> {
    let mut at = offset;
    while at < offset + len {
        let take = (offset + len - at).min(EDGE);
        let buf = device.read(at, Buf::for_overwrite(take as usize)).await?;
        if let Some(position) = buf.iter().position(|&byte| byte != 0) {
            return Ok(Some(at + position as u64));
        }
        at += take;
    }
    Ok(None)
}

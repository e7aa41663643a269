//! Would a write destroy something?

use lunway_block::{BlockDevice, BlockError, Buf, ExtentKind};

use crate::load::job::Region;

/// Extents are asked for in pieces of this, bytes, so that the answer stays small.
const EXTENT_WINDOW: u64 = 4 << 30;
/// A region up to this is read completely: 64 MiB take less than a second on anything worth measuring.
const READ_ALL_MAX: u64 = 64 << 20;
/// Of a larger one, this much is read at its start and at its end, where partition tables and file systems live.
const EDGE: u64 = 1 << 20;
/// And this many evenly spaced samples between.
const SAMPLES: u64 = 1024;
const SAMPLE: u64 = 4096;
/// Beside the regions that are written, at most this much is read: at the 100 MB/s of a slow disk ten seconds.
const BESIDE_MAX: u64 = 1 << 30;

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

/// The first offset at which data was seen anywhere on a device of which `regions` are to be written, if any: a disk
/// that holds data is a disk in use, and its zeroes are part of its content too.
///
/// The regions are looked at first, as by [`holds_data`], and each byte of them once, however they overlap. Then comes
/// what lies beside them: an extent of data there is sampled as a whole, and 1 GiB is read at most; an extent that
/// comes after that counts as data. `progress` is told the fraction of the device that was looked at.
pub async fn holds_data_anywhere(
    device: &dyn BlockDevice,
    regions: &[Region],
    progress: &mut dyn FnMut(f64),
) -> Result<Option<u64>, BlockError> {
    let size = device.geometry().size;
    let (regions, beside) = apart(regions, size);
    let mut done = 0;
    let mut told = |more: u64| {
        done += more;
        progress(done as f64 / size.max(1) as f64);
    };
    for region in regions {
        let end = region.offset + region.len;
        let mut at = region.offset;
        while at < end {
            let len = (end - at).min(EXTENT_WINDOW);
            if let Some(found) = holds_data(device, Region { offset: at, len }).await? {
                return Ok(Some(found));
            }
            at += len;
            told(len);
        }
    }
    let mut left = BESIDE_MAX;
    for region in beside {
        if let Some(found) = look_beside(device, region, &mut left, &mut told).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The regions in order, each byte once, and what lies between them, before and behind.
fn apart(regions: &[Region], size: u64) -> (Vec<Region>, Vec<Region>) {
    let mut sorted: Vec<_> = regions.iter().map(|region| (region.offset, region.len)).collect();
    sorted.sort_unstable();
    let (mut inside, mut beside, mut at) = (Vec::new(), Vec::new(), 0);
    for (offset, len) in sorted {
        let (start, end) = (offset.max(at).min(size), offset.saturating_add(len).min(size));
        if start > at {
            beside.push(Region { offset: at, len: start - at });
        }
        if end > start {
            inside.push(Region { offset: start, len: end - start });
        }
        at = at.max(start).max(end);
    }
    if at < size {
        beside.push(Region { offset: at, len: size - at });
    }
    (inside, beside)
}

/// Data beside what is written: of each run of extents of data as much as is [looked at](look), of all of them at most
/// `left` bytes.
async fn look_beside(
    device: &dyn BlockDevice,
    region: Region,
    left: &mut u64,
    told: &mut dyn FnMut(u64),
) -> Result<Option<u64>, BlockError> {
    let end = region.offset + region.len;
    let mut at = region.offset;
    let mut run: Option<Region> = None;
    while at < end {
        let len = (end - at).min(EXTENT_WINDOW);
        for extent in device.extents(at, len, usize::MAX).await? {
            if extent.kind != ExtentKind::Data {
                continue;
            }
            match &mut run {
                // A device that cannot tell says so for each window.
                Some(run) if run.offset + run.len == extent.offset => run.len += extent.len,
                run => {
                    let ended = run.replace(Region { offset: extent.offset, len: extent.len });
                    if let Some(found) = look_within(device, ended, left).await? {
                        return Ok(Some(found));
                    }
                }
            }
        }
        at += len;
        told(len);
    }
    look_within(device, run, left).await
}

async fn look_within(
    device: &dyn BlockDevice,
    run: Option<Region>,
    left: &mut u64,
) -> Result<Option<u64>, BlockError> {
    let Some(run) = run else { return Ok(None) };
    let cost = if run.len <= READ_ALL_MAX { run.len } else { 2 * EDGE + SAMPLES * SAMPLE };
    match left.checked_sub(cost) {
        Some(rest) => *left = rest,
        None => return Ok(Some(run.offset)),
    }
    look(device, run).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_inside_or_beside_once() {
        let region = |offset, len| Region { offset, len };
        let cut = |regions: &[Region]| apart(regions, 100);
        assert_eq!(cut(&[]), (vec![], vec![region(0, 100)]));
        assert_eq!(cut(&[region(0, u64::MAX)]), (vec![region(0, 100)], vec![]));
        assert_eq!(
            cut(&[region(40, 20), region(10, 10), region(15, 10), region(41, 2)]),
            (
                vec![region(10, 10), region(20, 5), region(40, 20)],
                vec![region(0, 10), region(25, 15), region(60, 40)]
            )
        );
        assert_eq!(cut(&[region(200, 10)]), (vec![], vec![region(0, 100)]));
    }
}

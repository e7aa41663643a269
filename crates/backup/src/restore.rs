//! Restoring: a point onto a device. Every leaf is compared with its hash before it is written.

use std::ops::Range;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, BlockError, Buf, Durability, ExtentKind, SharedBuf, Zeroing};
use lunway_file::Workers;

use crate::catalogue::Catalogue;
use crate::content::Content;
use crate::error::{BackupError, Result};
use crate::folder::Folder;
use crate::leaf::{LEAVES, Leaf, UNIT, leaf_range, unit_range, units};
use crate::point_id::PointId;
use crate::threads::on;

/// Units under way at a time: each has at most 2 MiB.
const IN_FLIGHT: usize = 16;
/// Units of the device whose map is asked for at a time: 1 GiB.
const WINDOW_UNITS: u32 = 1024;

/// Known state of the device before the restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Zeroes everywhere: it was just made.
    Blank,
    /// Anything: all of it is written.
    Unknown,
    /// The damaged disk: it is read and hashed, and only what differs is written.
    Damaged,
}

/// Result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Bytes of data that were written.
    pub written: u64,
    /// Bytes that were made zero.
    pub zeroed: u64,
    /// Bytes of the device that were read and found to differ or not.
    pub compared: u64,
}

/// A part of a unit that is written.
struct Part {
    range: Range<u64>,
    /// `None`: zeroes.
    data: Option<SharedBuf>,
}

/// Parameters of a restore: what is restored, and where.
#[derive(Clone, Debug)]
pub struct Order {
    /// The point.
    pub point: PointId,
    /// The bytes of it that the device gets, from its own beginning; `None`: all.
    pub range: Option<Range<u64>>,
    /// Known state of the device before the restore.
    pub target: Target,
}

/// Restores a point, and flushes the device. `progress` hears how many bytes of the disk were dealt with.
///
/// # Errors
///
/// Why it ended early: the device holds a part of the point then.
pub async fn restore(
    folder: &Arc<dyn Folder>,
    catalogue: &Catalogue,
    order: Order,
    device: &dyn BlockDevice,
    is_cancelled: &(dyn Fn() -> bool + Sync),
    progress: &mut dyn FnMut(u64),
) -> Result<Restored> {
    let content = catalogue.content(&**folder, order.point)?;
    restore_content(&content, order.range, order.target, device, is_cancelled, progress).await
}

/// The same of a point of any kind of destination.
///
/// # Errors
///
/// As of [`restore()`].
pub async fn restore_content(
    content: &Arc<dyn Content>,
    range: Option<Range<u64>>,
    target: Target,
    device: &dyn BlockDevice,
    is_cancelled: &(dyn Fn() -> bool + Sync),
    progress: &mut dyn FnMut(u64),
) -> Result<Restored> {
    let lanes = Workers::new();
    let size = content.size();
    let range = range.unwrap_or(0..size);
    if range.is_empty() || range.end > size {
        return Err(BackupError::Refused(format!(
            "bytes {} to {} are not on the disk of the point, which has {size}",
            range.start, range.end
        )));
    }
    check(device, range.end - range.start)?;
    let content = Arc::clone(content);
    let restore = Restore { device, target, range: range.clone(), content, lanes };
    let mut restored = Restored::default();
    let mut running = FuturesUnordered::new();
    let end = units(range.end);
    let mut at = (range.start / UNIT) as u32;
    while at < end {
        let window = at..(at + WINDOW_UNITS).min(end);
        for unit in restore.wanted(window.clone()).await? {
            if is_cancelled() {
                while running.next().await.is_some() {}
                return Err(BackupError::Refused(
                    "interrupted: the device holds only a part of the point".into(),
                ));
            }
            if running.len() >= IN_FLIGHT
                && let Some(done) = running.next().await
            {
                add(&mut restored, done?);
            }
            progress((u64::from(unit) * UNIT).saturating_sub(range.start));
            running.push(restore.unit(unit));
        }
        at = window.end;
        progress((u64::from(at) * UNIT).min(range.end) - range.start);
    }
    while let Some(done) = running.next().await {
        add(&mut restored, done?);
    }
    device.flush().await.map_err(|error| BackupError::Flush { error })?;
    Ok(restored)
}

fn add(all: &mut Restored, one: Restored) {
    all.written += one.written;
    all.zeroed += one.zeroed;
    all.compared += one.compared;
}

fn check(device: &dyn BlockDevice, size: u64) -> Result<()> {
    let geometry = device.geometry();
    if geometry.read_only {
        return Err(BackupError::Refused("the device is read-only".into()));
    }
    if size.next_multiple_of(geometry.logical_sector.into()) > geometry.size {
        return Err(BackupError::Refused(format!(
            "the device has {}, {} less than what is restored: take a larger one",
            HumanSize(geometry.size),
            HumanSize(size.saturating_sub(geometry.size))
        )));
    }
    Ok(())
}

struct Restore<'a> {
    device: &'a dyn BlockDevice,
    target: Target,
    /// The bytes of the disk that are restored; the first one is the device's first.
    range: Range<u64>,
    content: Arc<dyn Content>,
    lanes: Workers,
}

impl Restore<'_> {
    /// Units of a window that must be looked at.
    async fn wanted(&self, window: Range<u32>) -> Result<Vec<u32>> {
        let content = Arc::clone(&self.content);
        let asked = window.clone();
        let held = on(&self.lanes.reads, move || {
            let mut held = Vec::new();
            let mut at = asked.start;
            while let Some(unit) = content.next(at)?.filter(|unit| *unit < asked.end) {
                held.push(unit);
                at = unit + 1;
            }
            Ok(held)
        });
        let mut wanted = held.await?;
        if self.target == Target::Blank {
            return Ok(wanted);
        }
        let start = self.clipped(window.start).start;
        let end = self.clipped(window.end - 1).end;
        let at = |offset: u64| offset - self.range.start;
        let sector = u64::from(self.device.geometry().logical_sector);
        let reads_zero = self.device.geometry().unmap.zeroes();
        match self.device.extents(at(start), (end - start).next_multiple_of(sector), usize::MAX).await {
            Ok(extents) => {
                for extent in extents {
                    let zero = extent.kind == ExtentKind::Zero
                        || extent.kind == ExtentKind::Unallocated && reads_zero;
                    if !zero {
                        let (from, to) = (extent.offset + self.range.start, extent.end() + self.range.start);
                        wanted.extend((from / UNIT) as u32..to.min(end).div_ceil(UNIT) as u32);
                    }
                }
            }
            Err(BlockError::Unsupported) => wanted = window.collect(),
            Err(error) => return Err(BackupError::Target { offset: start, error }),
        }
        wanted.sort_unstable();
        wanted.dedup();
        Ok(wanted)
    }

    /// Returns the part of a unit that is restored.
    fn clipped(&self, unit: u32) -> Range<u64> {
        let unit = unit_range(unit, self.content.size());
        unit.start.max(self.range.start)..unit.end.min(self.range.end)
    }

    async fn unit(&self, unit: u32) -> Result<Restored> {
        let range = self.clipped(unit);
        let mut restored = Restored::default();
        let there = match self.target {
            Target::Damaged => {
                let len = self.padded(range.end - range.start);
                let offset = range.start - self.range.start;
                let read = self.device.read(offset, Buf::for_overwrite(len as usize)).await;
                restored.compared = range.end - range.start;
                Some(read.map_err(|error| BackupError::Target { offset, error })?)
            }
            Target::Blank | Target::Unknown => None,
        };
        let (content, target) = (Arc::clone(&self.content), self.target);
        let within = range.clone();
        let parts =
            on(&self.lanes.reads, move || parts(&*content, unit, &within, there.as_deref(), target)).await?;
        for part in parts {
            let (offset, len) = (part.range.start - self.range.start, part.range.end - part.range.start);
            let failed = |error| BackupError::Target { offset, error };
            match part.data {
                Some(data) => {
                    let data = self.pad(data);
                    self.device.write(offset, data, Durability::Volatile).await.map_err(failed)?;
                    restored.written += len;
                }
                None => {
                    self.zero(offset, self.padded(len)).await.map_err(failed)?;
                    restored.zeroed += len;
                }
            }
        }
        Ok(restored)
    }

    fn padded(&self, len: u64) -> u64 {
        len.next_multiple_of(self.device.geometry().logical_sector.into())
    }

    /// With zeroes behind it up to a whole sector of the device.
    fn pad(&self, data: SharedBuf) -> SharedBuf {
        let padded = self.padded(data.len() as u64) as usize;
        if padded == data.len() {
            return data;
        }
        let mut whole = Buf::zeroed(padded);
        whole[..data.len()].copy_from_slice(&data);
        whole.freeze()
    }

    async fn zero(&self, offset: u64, len: u64) -> std::result::Result<(), BlockError> {
        match self.device.write_zeroes(offset, len, Zeroing::MayUnmap).await {
            Err(BlockError::Unsupported) => {
                let zeroes = Buf::zeroed(len as usize).freeze();
                self.device.write(offset, zeroes, Durability::Volatile).await
            }
            answer => answer,
        }
    }
}

/// Returns the parts of a unit to write, given what the device holds there where that matters. Blocks.
///
/// `within` is what is restored of the unit, and what `there` holds; leaves that it cuts are read and hashed whole.
fn parts(
    content: &dyn Content,
    unit: u32,
    within: &Range<u64>,
    there: Option<&[u8]>,
    target: Target,
) -> Result<Vec<Part>> {
    let (size, states) = (content.size(), content.unit(unit)?);
    let clip = |range: &Range<u64>| range.start.max(within.start)..range.end.min(within.end);
    let mut parts: Vec<Part> = Vec::new();
    let mut leaf = 0;
    // Runs of leaves alike.
    let kind = |leaf: usize| -> Option<bool> {
        let range = leaf_range(unit, leaf, size);
        if clip(&range).is_empty() {
            return None;
        }
        let state = states[leaf];
        // A leaf of which only a part is there is written.
        let same = clip(&range) == range
            && there.is_some_and(|there| {
                let (from, to) = (range.start - within.start, range.end - within.start);
                content.leaf_of(&there[from as usize..to as usize]) == state
            });
        let zero = state == Leaf::Zero;
        let is_there = same || zero && target == Target::Blank;
        (!is_there).then_some(zero)
    };
    while leaf < LEAVES {
        let Some(zero) = kind(leaf) else {
            leaf += 1;
            continue;
        };
        let first = leaf;
        while leaf < LEAVES && kind(leaf) == Some(zero) {
            leaf += 1;
        }
        let range = leaf_range(unit, first, size).start..leaf_range(unit, leaf - 1, size).end;
        if zero {
            parts.push(Part { range: clip(&range), data: None });
            continue;
        }
        let mut data = Buf::for_overwrite((range.end - range.start) as usize);
        content.read(unit, first..leaf, &states, &mut data)?;
        let clipped = clip(&range);
        let data = match clipped == range {
            true => data,
            false => Buf::copy_of(
                &data[(clipped.start - range.start) as usize..(clipped.end - range.start) as usize],
            ),
        };
        parts.push(Part { range: clipped, data: Some(data.freeze()) });
    }
    Ok(parts)
}

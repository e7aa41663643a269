//! Giving back what is dead on a device: free by its file systems, or zero.

use std::ops::Range;

use anyhow::{Context, anyhow};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use lunway_bench::Cancel;
use lunway_block::{BlockDevice, ExtentKind};
use lunway_filesystem::tree::{Disk, Node};
use lunway_filesystem::{ByteSource, Ranges, Use};

use super::free::changed;
use super::source::DeviceSource;
use crate::device::BlockingRuntime;
use crate::failure::Failure;
use crate::progress;

/// Length of a device that is examined at a time, bytes: a list of its free ranges takes 4 MiB at the worst.
const WINDOW: u64 = 1 << 30;

/// Commands under way at a time: the discards of a fragmented file system are many and short, and over a network each
/// takes a round trip.
const IN_FLIGHT: usize = 16;

/// Zeroes are looked for in units of this, bytes: what file systems of hosts allocate.
const ZERO_UNIT: u64 = 4096;

/// Length of a read that looks for zeroes, bytes.
const PIECE: u64 = 1 << 20;

/// Space to give back.
pub(super) struct Dead {
    /// Ranges that file systems prove to be free.
    pub(super) free: bool,
    /// Ranges that are zero.
    pub(super) zeroes: bool,
    /// Ranges of the disk that stay as they are.
    pub(super) keep: Ranges,
}

/// A device, and what lies on it.
pub(super) struct Target<'a> {
    pub(super) device: &'a dyn BlockDevice,
    pub(super) runtime: &'a BlockingRuntime,
    pub(super) disk: &'a Disk,
}

/// The ranges of partitions, by their numbers from 1 on.
pub(super) fn partitions(root: &Node, numbers: &[usize], name: &str) -> Result<Vec<Range<u64>>, Failure> {
    let partitions = &root.children;
    let range = |number: &usize| {
        let found = number.checked_sub(1).and_then(|at| partitions.get(at));
        found.map(|node| node.offset..node.offset + node.len).ok_or_else(|| {
            Failure::failed(anyhow!(
                "{name} has no partition {number}: it has {}; `lunway disk inside` lists them",
                partitions.len()
            ))
        })
    };
    numbers.iter().map(range).collect()
}

impl Target<'_> {
    /// Gives back what is dead, and makes that durable; how many bytes the device held of it. `None`: it was cancelled.
    pub(super) fn discard(&self, dead: &Dead, cancel: &Cancel) -> Result<Option<u64>, Failure> {
        let discarded = self.each("trimming", dead, cancel, |ranges| {
            let unmap = |range: Range<u64>| async move {
                self.device.unmap(range.start, range.end - range.start).await.map_err(|error| (range, error))
            };
            let all = stream::iter(ranges).map(unmap).buffer_unordered(IN_FLIGHT).try_collect::<()>();
            self.runtime.wait(all).map_err(|(range, error)| {
                Failure::failed(anyhow!(
                    "{} bytes at {} cannot be discarded: {error}",
                    range.end - range.start,
                    range.start
                ))
            })
        })?;
        self.runtime.wait(self.device.flush()).context("the device failed to make everything durable")?;
        Ok(discarded)
    }

    /// Number of bytes of dead space that the device holds. `None` if it was cancelled.
    pub(super) fn count(&self, dead: &Dead, cancel: &Cancel) -> Result<Option<u64>, Failure> {
        self.each("looking", dead, cancel, |_| Ok(()))
    }

    fn each(
        &self,
        doing: &'static str,
        dead: &Dead,
        cancel: &Cancel,
        mut each: impl FnMut(Vec<Range<u64>>) -> Result<(), Failure>,
    ) -> Result<Option<u64>, Failure> {
        let geometry = self.device.geometry();
        // A device that is only read does not say in which units it gives space back: a file of a host in the blocks of
        // its file system, which are its physical sectors.
        let unit = match geometry.unmap.granularity() {
            0 => geometry.physical_sector,
            granularity => granularity.max(geometry.logical_sector),
        };
        let unit = u64::from(unit);
        let bar = progress::bytes(doing, geometry.size);
        let (mut start, mut bytes) = (0, 0);
        while start < geometry.size && !cancel.is_cancelled() {
            let window = start..(start + WINDOW).min(geometry.size);
            let source = DeviceSource::new(self.device, self.runtime);
            let held = source.extents(window.start, window.end - window.start)?;
            let held: Vec<_> = held.into_iter().filter(|held| held.kind != ExtentKind::Unallocated).collect();
            if !held.is_empty() {
                let mut found = if dead.free { self.free(&source, window.clone())? } else { Vec::new() };
                if dead.zeroes {
                    let free = Ranges::union(found.iter().cloned());
                    for data in &held {
                        zeroes(&source, data.offset..data.end(), &free, &mut found)?;
                    }
                }
                let mut ranges = Vec::new();
                for range in Ranges::union(found).as_slice() {
                    dead.keep.missing_from(range.clone(), &mut |range| ranges.push(range));
                }
                let held: Vec<_> = held.iter().map(|held| held.offset..held.end()).collect();
                let ranges = whole_units(&ranges, &held, unit);
                bytes += ranges.iter().map(|(_, held)| held).sum::<u64>();
                each(ranges.into_iter().map(|(range, _)| range).collect())?;
            }
            start = window.end;
            bar.set_position(start);
        }
        bar.finish_and_clear();
        Ok((!cancel.is_cancelled()).then_some(bytes))
    }

    fn free(&self, source: &DeviceSource<'_>, window: Range<u64>) -> Result<Vec<Range<u64>>, Failure> {
        let mut free = Vec::new();
        let looked = self.disk.for_each(source, window, &mut |span| {
            if span.what == Use::Free {
                free.push(span.range);
            }
        });
        looked.map_err(changed)?;
        Ok(free)
    }
}

/// Appends what of `range` is zero, as far as it is not free.
fn zeroes(
    source: &DeviceSource<'_>,
    range: Range<u64>,
    free: &Ranges,
    into: &mut Vec<Range<u64>>,
) -> Result<(), Failure> {
    let mut parts = Vec::new();
    free.missing_from(range, &mut |part| parts.push(part));
    let mut buf = vec![0; PIECE as usize];
    for part in parts {
        let mut at = part.start;
        while at < part.end {
            let end = ((at / PIECE + 1) * PIECE).min(part.end);
            let bytes = &mut buf[..(end - at) as usize];
            source.read(at, bytes).context("the disk cannot be read")?;
            // The first unit may begin in its middle.
            let (mut from, mut within) = (at, 0);
            while from < end {
                let until = ((from / ZERO_UNIT + 1) * ZERO_UNIT).min(end);
                let len = (until - from) as usize;
                if bytes[within..within + len].iter().all(|byte| *byte == 0) {
                    into.push(from..until);
                }
                (from, within) = (until, within + len);
            }
            at = end;
        }
    }
    Ok(())
}

/// Whole units of the ranges that `held` has something of, and how much of it. All is sorted.
fn whole_units(ranges: &[Range<u64>], held: &[Range<u64>], unit: u64) -> Vec<(Range<u64>, u64)> {
    let mut found: Vec<(Range<u64>, u64)> = Vec::new();
    for range in ranges {
        let whole = range.start.next_multiple_of(unit)..range.end / unit * unit;
        let first = held.partition_point(|held| held.end <= whole.start);
        for held in held[first..].iter().take_while(|held| held.start < whole.end) {
            let start = (held.start / unit * unit).max(whole.start);
            let end = held.end.next_multiple_of(unit).min(whole.end);
            let bytes = held.end.min(whole.end).saturating_sub(held.start.max(whole.start));
            match found.last_mut() {
                _ if start >= end => {}
                Some((last, counted)) if last.end >= start => {
                    last.end = end.max(last.end);
                    *counted += bytes;
                }
                _ => found.push((start..end, bytes)),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_units_are_given_back_where_something_is_held() {
        let ranges = [100..1000, 1000..1010, 2000..4000];
        // Less than a unit is not given back; what is not held need not be.
        assert_eq!(
            whole_units(&ranges, &[0..5000, 5000..10_000], 100),
            [(100..1000, 900), (2000..4000, 2000)]
        );
        assert_eq!(whole_units(&ranges[1..2], &[0..1005, 1005..10_000], 100), []);
        assert_eq!(
            whole_units(&ranges, &[0..150, 250..260, 3950..9000], 100),
            [(100..300, 60), (3900..4000, 50)]
        );
        assert_eq!(whole_units(&ranges, &[1000..2000, 4000..5000], 100), []);
    }
}

//! The content of a point in a repository as a device that is only read.
//!
//! ```text
//!   read ──▶ a thread of the device's own ──▶ leaves of the range ──▶ kept? ──▶ pack ──▶ decrypt, decompress, compare
//! ```
//!
//! What is read has been compared with its hash: damage is an error of the medium at its place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunway_backup::{BackupError, Content, LEAF, LEAVES, Leaf, LeafHash, UNIT, leaf_range};
use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Geometry, Io, SharedBuf, Zeroing,
};
use lunway_file::Workers;

use crate::damage::Damage;

/// Leaves that are kept, 8 MiB: small reads one behind another take a leaf apart once, of as many readers side by side
/// as a device has threads.
const KEPT_MAX: usize = 128;

/// A point of a repository.
pub(crate) struct ContentDevice {
    inner: Arc<Inner>,
    workers: Workers,
    geometry: Geometry,
}

struct Inner {
    content: Arc<dyn Content>,
    kept: Mutex<VecDeque<(LeafHash, Arc<Vec<u8>>)>>,
    damage: Damage,
}

impl ContentDevice {
    pub(crate) fn new(content: Arc<dyn Content>, logical_sector: u32) -> Self {
        let geometry = Geometry {
            read_only: true,
            physical_sector: 4096,
            ..Geometry::plain(content.size()).with_sector(logical_sector)
        };
        let inner = Inner { content, kept: Mutex::default(), damage: Damage::default() };
        Self { inner: Arc::new(inner), workers: Workers::new(), geometry }
    }
}

impl Inner {
    fn kept(&self) -> MutexGuard<'_, VecDeque<(LeafHash, Arc<Vec<u8>>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let unit = (at / UNIT) as u32;
            let len = ((u64::from(unit) + 1) * UNIT - at).min((buf.len() - done) as u64) as usize;
            let filled = self.fill_unit(unit, at, &mut buf[done..done + len]);
            filled.map_err(|error| self.damage.told(at, error))?;
            done += len;
        }
        Ok(())
    }

    /// Fills a part of one unit: whole leaves that lie beside each other with one question, parts of others out of
    /// those that are kept.
    fn fill_unit(&self, unit: u32, at: u64, buf: &mut [u8]) -> Result<(), BackupError> {
        let size = self.content.size();
        let states = self.content.unit(unit)?;
        let mut done = 0;
        while done < buf.len() {
            let from = at + done as u64;
            let first = (from % UNIT / LEAF) as usize;
            let of = leaf_range(unit, first, size);
            let rest = &mut buf[done..];
            let here = ((of.end - from) as usize).min(rest.len());
            let Leaf::Data(id) = &states[first] else {
                rest[..here].fill(0);
                done += here;
                continue;
            };
            if from > of.start || (here as u64) < of.end - of.start {
                let leaf = self.leaf(unit, first, &states, id)?;
                let start = (from - of.start) as usize;
                rest[..here].copy_from_slice(&leaf[start..start + here]);
                done += here;
                continue;
            }
            let (mut end, mut len) = (first + 1, here);
            while end < LEAVES && states[end] != Leaf::Zero {
                let next = leaf_range(unit, end, size);
                let next_len = (next.end - next.start) as usize;
                if next_len == 0 || len + next_len > rest.len() {
                    break;
                }
                (end, len) = (end + 1, len + next_len);
            }
            self.content.read(unit, first..end, &states, &mut rest[..len])?;
            done += len;
        }
        Ok(())
    }

    /// A leaf, which is kept for the next read of a part of it.
    fn leaf(
        &self,
        unit: u32,
        leaf: usize,
        states: &[Leaf; LEAVES],
        id: &LeafHash,
    ) -> Result<Arc<Vec<u8>>, BackupError> {
        if let Some((_, kept)) = self.kept().iter().find(|(kept, _)| kept == id) {
            return Ok(Arc::clone(kept));
        }
        let range = leaf_range(unit, leaf, self.content.size());
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.content.read(unit, leaf..leaf + 1, states, &mut bytes)?;
        let bytes = Arc::new(bytes);
        let mut kept = self.kept();
        kept.push_front((*id, Arc::clone(&bytes)));
        kept.truncate(KEPT_MAX);
        Ok(bytes)
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Result<Vec<Extent>, BlockError> {
        let (end, size) = (offset + len, self.content.size());
        let mut list: Vec<Extent> = Vec::new();
        let mut at = offset;
        let push = |list: &mut Vec<Extent>, kind, from: u64, to: u64| {
            Extent { offset: from, len: to - from, kind }.push_onto(list);
        };
        while at < end && list.len() <= count {
            let unit = (at / UNIT) as u32;
            let failed = |error| self.damage.told(at, error);
            let data = self.content.next(unit).map_err(failed)?.map_or(end, |unit| u64::from(unit) * UNIT);
            if data > at {
                let to = data.min(end);
                push(&mut list, ExtentKind::Zero, at, to);
                at = to;
                continue;
            }
            for (leaf, state) in self.content.unit(unit).map_err(failed)?.iter().enumerate() {
                let range = leaf_range(unit, leaf, size);
                let (from, to) = (range.start.max(at), range.end.min(end));
                if from < to {
                    let kind = if *state == Leaf::Zero { ExtentKind::Zero } else { ExtentKind::Data };
                    push(&mut list, kind, from, to);
                }
            }
            at = ((u64::from(unit) + 1) * UNIT).min(end);
        }
        Ok(list)
    }
}

impl BlockDevice for ContentDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.geometry.check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() {
            return Io::ok(buf);
        }
        let inner = Arc::clone(&self.inner);
        self.workers.reads.io(move || inner.fill(offset, &mut buf).map(|()| buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry.check_write(offset, data.len() as u64))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry.check_write(offset, len))
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        if let Err(error) = self.geometry.check(offset, len) {
            return Io::err(error);
        }
        if len == 0 {
            return Io::ok(Vec::new());
        }
        let inner = Arc::clone(&self.inner);
        self.workers.maps.io(move || inner.extents(offset, len, count))
    }
}

//! Changes of a device that no flush has made durable yet, by range.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use lunway_block::{Buf, SharedBuf, Zeroing};

/// Overhead of an entry beside its data, bytes: its place in the tree and the counters of its buffer, rounded up.
const ENTRY_BYTES: u64 = 128;

/// Of the bound, what one buffer may take of which many changes are slices: the rest is for what comes from elsewhere.
const COMMON_SHARE: u64 = 4;

/// The smallest buffer that a pool gives, bytes: a copy would take no less.
const SMALLEST: usize = 4096;

/// A change of a range.
#[derive(Clone, Debug)]
pub enum Change {
    /// These bytes were written.
    Data(SharedBuf),
    /// Unmapped.
    Unmap,
    /// Made zeroes.
    Zero(Zeroing),
}

/// Retained change.
#[derive(Clone, Debug)]
pub struct Retained {
    /// First byte.
    pub offset: u64,
    /// Length, bytes; not 0.
    pub len: u64,
    /// Change of the range.
    pub change: Change,
}

/// A moment in the order of changes: all that were retained before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

#[derive(Debug)]
struct Entry {
    end: u64,
    change: Change,
    number: u64,
    /// Its data is a slice of the [common buffer](RetainedWrites::common).
    is_common: bool,
}

impl Entry {
    /// Returns the memory that it keeps from other uses, bytes. A slice of the common buffer counts like a copy, so
    /// that changes cost the same however they were made.
    fn charge(&self) -> u64 {
        match &self.change {
            Change::Data(data) if self.is_common => ENTRY_BYTES + data.len() as u64,
            Change::Data(data) => ENTRY_BYTES + data.pinned() as u64,
            Change::Unmap | Change::Zero(_) => ENTRY_BYTES,
        }
    }

    /// The part `range` of an entry that begins at `start`.
    fn part(&self, start: u64, range: Range<u64>) -> Self {
        let change = match &self.change {
            Change::Data(data) => {
                let part = data.slice((range.start - start) as usize..(range.end - start) as usize);
                Change::Data(if self.is_common { part } else { tight(part) })
            }
            other => other.clone(),
        };
        Self { end: range.end, change, number: self.number, is_common: self.is_common }
    }
}

/// Returns `true` if data fills its buffer by more than half: a smaller slice would keep all of the buffer from the
/// pool; and of two slices of one buffer at most one passes, so that no buffer is charged twice.
fn fills(data: &SharedBuf) -> bool {
    data.len() * 2 > data.pinned() || data.pinned() <= SMALLEST
}

/// The same bytes in memory that they fill.
fn tight(data: SharedBuf) -> SharedBuf {
    if fills(&data) { data } else { Buf::copy_of(&data).freeze() }
}

/// Changes of a device that no flush has made durable yet, by range: what must be done again when a cache was lost.
///
/// Of changes that overlap the newest wins, and what is left of an older one keeps its place in the order. Data is kept
/// by reference to the caller's buffer; where it is a small part of that buffer it is copied, so that
/// [`bytes`](Self::bytes) is the memory that is really kept, and at most `bytes_max`. The exception is one *common*
/// buffer, of which changes are slices again and again, as of a pattern that a caller writes: it is kept whole and
/// counted once. A change beyond the bound clears everything: from then on the writes are not
/// [complete](Self::is_complete), until a flush has covered the one that did not fit.
///
/// Pure: no device, no clock. The order of calls is the order of changes.
#[derive(Debug)]
pub struct RetainedWrites {
    entries: BTreeMap<u64, Entry>,
    /// Of the entries, without the common buffer.
    bytes: u64,
    bytes_max: u64,
    /// A large buffer of which entries are slices, as long as any of them is here.
    common: Option<SharedBuf>,
    /// Number of entries that are slices of it.
    common_slices: usize,
    /// [`SharedBuf::memory`] of the buffer of which a slice was copied last: the next slice makes it the common one.
    copied: usize,
    /// Number of the last change.
    last: u64,
    /// Number of the last change that is not here although no flush has covered it.
    missing: Option<u64>,
}

impl RetainedWrites {
    /// None yet; at most `bytes_max` of memory.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            bytes: 0,
            bytes_max,
            common: None,
            common_slices: 0,
            copied: 0,
            last: 0,
            missing: None,
        }
    }

    /// A change has happened.
    pub fn retain(&mut self, offset: u64, len: u64, change: Change) -> Discarded {
        if len == 0 {
            return Discarded::default();
        }
        self.cut_out(offset..offset + len);
        self.last += 1;
        let (change, is_common) = match change {
            Change::Data(data) if fills(&data) => (Change::Data(data), false),
            Change::Data(data) if self.is_common(&data) => (Change::Data(data), true),
            Change::Data(data) => (Change::Data(Buf::copy_of(&data).freeze()), false),
            other => (other, false),
        };
        self.put(offset, Entry { end: offset + len, change, number: self.last, is_common });
        if self.bytes() > self.bytes_max {
            return self.give_up();
        }
        Discarded::default()
    }

    /// Returns `true` if this small part of a buffer is kept by reference, as a slice of the common buffer. The second
    /// slice of a buffer in a row makes it the common one, if there is none.
    fn is_common(&mut self, data: &SharedBuf) -> bool {
        let memory = data.memory();
        match &self.common {
            Some(common) => common.memory() == memory,
            None if self.copied == memory && data.pinned() as u64 <= self.bytes_max / COMMON_SHARE => {
                self.common = Some(data.clone());
                true
            }
            None => {
                self.copied = memory;
                false
            }
        }
    }

    /// A change of the range has happened and is durable: what was there before need not be done again.
    pub fn superseded(&mut self, offset: u64, len: u64) {
        self.cut_out(offset..offset + len);
    }

    /// The device ends there now: what was beyond is gone by intent.
    pub fn truncate(&mut self, size: u64) {
        self.cut_out(size..u64::MAX);
    }

    /// Keeps nothing of what has happened so far: it is never done again.
    pub fn give_up(&mut self) -> Discarded {
        self.missing = Some(self.last);
        self.clear()
    }

    fn clear(&mut self) -> Discarded {
        (self.bytes, self.common, self.common_slices) = (0, None, 0);
        Discarded(mem::take(&mut self.entries))
    }

    /// This moment, for a flush that begins now.
    pub fn mark(&self) -> Mark {
        Mark(self.last)
    }

    /// A flush that began at `mark` has succeeded. What is given back is to be dropped where no lock is held.
    pub fn flushed(&mut self, mark: Mark) -> Discarded {
        self.missing = self.missing.filter(|missing| *missing > mark.0);
        if mark.0 == self.last {
            return self.clear();
        }
        let (flushed, newer): (BTreeMap<_, _>, BTreeMap<_, _>) =
            mem::take(&mut self.entries).into_iter().partition(|(_, entry)| entry.number <= mark.0);
        self.entries = newer;
        flushed.values().for_each(|entry| self.forget(entry));
        Discarded(flushed)
    }

    /// Returns `true` if every change since the last flush is retained.
    pub fn is_complete(&self) -> bool {
        self.missing.is_none()
    }

    /// Returns `true` if there is nothing to do again.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Memory that is kept, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.common.as_ref().map_or(0, |common| common.pinned() as u64)
    }

    /// Memory that a flush would free, bytes, except the common buffer, which is the caller's in any case.
    pub fn pending(&self) -> u64 {
        self.bytes
    }

    /// Returns `true` if something is retained in the range.
    pub fn overlaps(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        self.entries.range(..end).next_back().is_some_and(|(_, entry)| entry.end > offset)
    }

    /// All that is to be done again: ranges in order, none of which overlap.
    pub fn all(&self) -> Vec<Retained> {
        let retained = |(&offset, entry): (&u64, &Entry)| Retained {
            offset,
            len: entry.end - offset,
            change: entry.change.clone(),
        };
        self.entries.iter().map(retained).collect()
    }

    /// Removes what is in the range, and keeps what stands out of it on either side.
    fn cut_out(&mut self, range: Range<u64>) {
        while let Some((&start, entry)) = self.entries.range(..range.end).next_back()
            && entry.end > range.start
        {
            let Some(entry) = self.entries.remove(&start) else { return };
            if entry.end > range.end {
                self.put(range.end, entry.part(start, range.end..entry.end));
            }
            if start < range.start {
                self.put(start, entry.part(start, start..range.start));
            }
            self.forget(&entry);
        }
    }

    /// Counts an entry that is not here any more.
    fn forget(&mut self, entry: &Entry) {
        self.bytes -= entry.charge();
        if entry.is_common {
            self.common_slices -= 1;
            if self.common_slices == 0 {
                self.common = None;
            }
        }
    }

    fn put(&mut self, start: u64, entry: Entry) {
        self.bytes += entry.charge();
        self.common_slices += usize::from(entry.is_common);
        self.entries.insert(start, entry);
    }
}

/// Entries that are not needed any more. Dropping thousands of buffers takes milliseconds: not under a lock.
#[derive(Debug, Default)]
#[must_use = "to be dropped where no lock is held"]
pub struct Discarded(#[expect(dead_code, reason = "kept to be dropped")] BTreeMap<u64, Entry>);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;

    fn data(len: u64, byte: u8) -> Change {
        let mut buf = Buf::for_overwrite(len as usize);
        buf.fill(byte);
        Change::Data(buf.freeze())
    }

    fn first_bytes(writes: &RetainedWrites) -> Vec<(u64, u64, u8)> {
        let first = |one: Retained| match one.change {
            Change::Data(data) => (one.offset, one.len, data[0]),
            Change::Unmap => (one.offset, one.len, 0xFE),
            Change::Zero(_) => (one.offset, one.len, 0),
        };
        writes.all().into_iter().map(first).collect()
    }

    #[test]
    fn the_newest_change_of_a_range_wins_and_the_rest_of_older_ones_stays() {
        let mut writes = RetainedWrites::new(1 << 20);
        drop(writes.retain(0, 16 * KIB, data(16 * KIB, 1)));
        drop(writes.retain(4 * KIB, 4 * KIB, data(4 * KIB, 2)));
        drop(writes.retain(12 * KIB, 8 * KIB, Change::Unmap));
        let expected =
            [(0, 4 * KIB, 1), (4 * KIB, 4 * KIB, 2), (8 * KIB, 4 * KIB, 1), (12 * KIB, 8 * KIB, 0xFE)];
        assert_eq!(first_bytes(&writes), expected);
        writes.superseded(2 * KIB, 12 * KIB);
        assert_eq!(first_bytes(&writes), [(0, 2 * KIB, 1), (14 * KIB, 6 * KIB, 0xFE)]);
        writes.truncate(15 * KIB);
        assert_eq!(first_bytes(&writes), [(0, 2 * KIB, 1), (14 * KIB, KIB, 0xFE)]);
        assert!(
            writes.overlaps(KIB, KIB) && !writes.overlaps(2 * KIB, 12 * KIB) && writes.overlaps(0, 20 * KIB)
        );
    }

    #[test]
    fn a_flush_ends_what_was_retained_before_it_began_and_nothing_else() {
        let mut writes = RetainedWrites::new(1 << 20);
        drop(writes.retain(0, 8 * KIB, data(8 * KIB, 1)));
        let mark = writes.mark();
        drop(writes.retain(4 * KIB, 8 * KIB, data(8 * KIB, 2)));
        drop(writes.flushed(mark));
        assert_eq!(first_bytes(&writes), [(4 * KIB, 8 * KIB, 2)]);
        drop(writes.flushed(writes.mark()));
        assert!(writes.is_empty() && writes.is_complete());
        assert_eq!(writes.bytes(), 0);
    }

    #[test]
    fn a_change_beyond_the_limit_makes_it_incomplete_until_a_flush_has_covered_that_change() {
        let mut writes = RetainedWrites::new(20 * KIB);
        let before = writes.mark();
        (0..8).for_each(|n| drop(writes.retain(n * 4 * KIB, 4 * KIB, data(4 * KIB, n as u8))));
        assert!(!writes.is_complete() && writes.bytes() <= 20 * KIB);
        drop(writes.flushed(before));
        assert!(!writes.is_complete(), "it began before");
        drop(writes.flushed(writes.mark()));
        assert!(writes.is_complete() && writes.is_empty());
    }

    #[test]
    fn a_small_part_of_a_large_buffer_does_not_keep_all_of_it() {
        let mut writes = RetainedWrites::new(1 << 30);
        let large = Buf::zeroed(1 << 20).freeze();
        drop(writes.retain(0, 4 * KIB, Change::Data(large.slice(0..4096))));
        assert_eq!(writes.bytes(), 4 * KIB + ENTRY_BYTES);
        drop(writes.retain(0, 1 << 20, Change::Data(large)));
        assert_eq!(writes.bytes(), (1 << 20) + ENTRY_BYTES, "by reference");
        drop(writes.retain(512 * KIB, 508 * KIB, data(508 * KIB, 1)));
        assert_eq!(writes.bytes(), 512 * KIB + 4 * KIB + 512 * KIB + 3 * ENTRY_BYTES, "the rest is copied");
    }

    #[test]
    fn slices_of_one_buffer_are_kept_without_a_copy_and_the_buffer_counts_once() {
        let mut writes = RetainedWrites::new(1 << 20);
        let common = Buf::zeroed(128 << 10).freeze();
        let pinned = common.pinned() as u64;
        let write = |writes: &mut RetainedWrites, block: u64| {
            let at = (block % 32 * 4 * KIB) as usize;
            drop(writes.retain(block * 4 * KIB, 4 * KIB, Change::Data(common.slice(at..at + 4096))));
        };
        (0..3).for_each(|block| write(&mut writes, block));
        assert_eq!(writes.pending(), 3 * (4 * KIB + ENTRY_BYTES), "each counts like a copy");
        assert_eq!(writes.bytes(), writes.pending() + pinned);
        let is_slice =
            |one: &Retained| matches!(&one.change, Change::Data(data) if data.memory() == common.memory());
        assert_eq!(writes.all().iter().filter(|one| is_slice(one)).count(), 2, "all but the first");
        // A part of one is a slice as well, and the last one that goes takes the buffer with it.
        drop(writes.retain(5 * KIB, KIB, Change::Unmap));
        assert_eq!(writes.all().iter().filter(|one| is_slice(one)).count(), 3);
        writes.superseded(4 * KIB, 8 * KIB);
        assert_eq!(writes.bytes(), 4 * KIB + ENTRY_BYTES);
        // One that would take too much of the bound is copied from.
        let mut writes = RetainedWrites::new(256 * KIB);
        (0..3).for_each(|block| write(&mut writes, block));
        assert_eq!(writes.bytes(), 3 * (4 * KIB + ENTRY_BYTES));
    }

    /// Content of a sector: the number of the write, or how it was cleared.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Held {
        Write(u8),
        Unmap,
        Zero,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Retain(u64, u64, u8),
        Superseded(u64, u64),
        Truncate(u64),
        Flushed(usize),
        GiveUp,
    }

    const SECTORS: u64 = 48;

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..SECTORS).prop_flat_map(|at| (Just(at), 0..=(SECTORS - at).min(12)));
        prop_oneof![
            12 => (range(), any::<u8>()).prop_map(|((at, len), kind)| Step::Retain(at, len, kind)),
            3 => range().prop_map(|(at, len)| Step::Superseded(at, len)),
            1 => (0..SECTORS).prop_map(Step::Truncate),
            3 => (0..8usize).prop_map(Step::Flushed),
            1 => Just(Step::GiveUp),
        ]
    }

    proptest! {
        #[test]
        fn it_is_what_an_array_of_sectors_would_remember(steps in prop::collection::vec(step(), 1..120)) {
            let mut writes = RetainedWrites::new(u64::MAX);
            let mut model: Vec<Option<(Held, u64)>> = vec![None; SECTORS as usize];
            let (mut number, mut missing) = (0, None);
            let mut marks = vec![(writes.mark(), 0)];
            let commons: Vec<SharedBuf> = (0..2u8)
                .map(|n| {
                    let mut buf = Buf::for_overwrite(64 << 10);
                    buf.fill(n + 8);
                    buf.freeze()
                })
                .collect();
            for step in steps {
                match step {
                    Step::Retain(at, len, kind) => {
                        let (change, held) = match kind % 8 {
                            0 => (Change::Unmap, Held::Unmap),
                            1 => (Change::Zero(Zeroing::MayUnmap), Held::Zero),
                            2..=4 => {
                                let common = &commons[usize::from(kind >= 0x20)];
                                (Change::Data(common.slice(0..len as usize * 512)), Held::Write(common[0]))
                            }
                            _ => (data(len * 512, kind), Held::Write(kind)),
                        };
                        drop(writes.retain(at * 512, len * 512, change));
                        number += u64::from(len > 0);
                        model[at as usize..(at + len) as usize].fill(Some((held, number)));
                    }
                    Step::Superseded(at, len) => {
                        writes.superseded(at * 512, len * 512);
                        model[at as usize..(at + len) as usize].fill(None);
                    }
                    Step::Truncate(at) => {
                        writes.truncate(at * 512);
                        model[at as usize..].fill(None);
                    }
                    Step::Flushed(back) => {
                        let (mark, covered) = marks[marks.len().saturating_sub(1 + back)];
                        drop(writes.flushed(mark));
                        model.iter_mut().for_each(|one| *one = one.filter(|(_, number)| *number > covered));
                        missing = missing.filter(|missing| *missing > covered);
                    }
                    Step::GiveUp => {
                        drop(writes.give_up());
                        model.fill(None);
                        missing = Some(number);
                    }
                }
                marks.push((writes.mark(), number));
                let mut found: Vec<Option<Held>> = vec![None; SECTORS as usize];
                let (mut bytes, mut common) = (0, None);
                for Retained { offset, len, change } in writes.all() {
                    bytes += ENTRY_BYTES;
                    let held = match change {
                        Change::Unmap => Held::Unmap,
                        Change::Zero(_) => Held::Zero,
                        Change::Data(data) => {
                            prop_assert_eq!(data.len() as u64, len);
                            prop_assert!(data.iter().all(|byte| *byte == data[0]));
                            if fills(&data) {
                                bytes += data.pinned() as u64;
                            } else {
                                bytes += data.len() as u64;
                                let before = common.replace((data.memory(), data.pinned() as u64));
                                prop_assert!(before.is_none() || before == common, "one buffer at most is kept whole");
                            }
                            Held::Write(data[0])
                        }
                    };
                    for sector in &mut found[(offset / 512) as usize..((offset + len) / 512) as usize] {
                        prop_assert_eq!(sector.replace(held), None, "ranges overlap");
                    }
                }
                let expected: Vec<_> = model.iter().map(|one| one.map(|(held, _)| held)).collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!((writes.pending(), writes.is_complete()), (bytes, missing.is_none()));
                prop_assert_eq!(writes.bytes() - bytes, common.map_or(0, |(_, pinned)| pinned));
                for at in 0..SECTORS {
                    let overlaps = model[at as usize..(at as usize + 3).min(48)].iter().any(Option::is_some);
                    prop_assert_eq!(writes.overlaps(at * 512, 3 * 512), overlaps);
                }
            }
        }
    }
}

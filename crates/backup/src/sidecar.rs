//! The sidecar: hashes of all leaves that one point holds, beside its VHDX file.
//!
//! ```text
//!   0    header     "LWLEAVES", version, bytes of a leaf, point                      32 bytes
//!   32   segments   up to 2048 units each, in the order of the disk
//!          entries  unit (4), leaves held (2), of these zeroes (2)                   8 bytes each
//!          hashes   of the leaves that are held and not zeroes                       32 bytes each
//!        directory  first unit (4), units (4), offset (8), length (4), 0 (4), sum (16)  40 bytes each
//!   end  tail       "LWLEAVEX", segments (4), 0 (4), offset of the directory (8),
//!                   0 (8), sum of header, directory and the tail before it (32)      64 bytes
//! ```
//!
//! All numbers are little-endian; sums are BLAKE3, of a segment its first 16 bytes. A segment is read and checked
//! whole, so that memory is bounded for every disk: 1 MiB for a segment, and 40 bytes of directory for each.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lunway_vhdx::Storage;

use crate::leaf::{LEAF, LEAVES, LeafHash, UnitLeaves};
use crate::point_id::PointId;
use crate::threads::each;

/// Units of a segment: 2 GiB of disk, and at most 1 MiB of hashes.
pub(crate) const SEGMENT_UNITS: usize = 2048;
/// Most segments of a sidecar: those of the largest disk, were each full, twice: a checkpoint may cut one short.
const SEGMENTS_MAX: u32 = 65_536;
const MAGIC: &[u8; 8] = b"LWLEAVES";
const END_MAGIC: &[u8; 8] = b"LWLEAVEX";
const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: u64 = 32;
const ENTRY_LEN: usize = 8;
const SEGMENT_LEN: usize = 40;
const TAIL_LEN: usize = 64;
const HASH_LEN: usize = 32;

/// Sum of a segment.
type Sum = [u8; 16];

/// A segment, as the directory has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) first: u32,
    pub(crate) units: u32,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) sum: Sum,
}

impl Segment {
    fn to_bytes(self) -> [u8; SEGMENT_LEN] {
        let mut bytes = [0; SEGMENT_LEN];
        bytes[..4].copy_from_slice(&self.first.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.units.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..].copy_from_slice(&self.sum);
        bytes
    }

    fn of_bytes(bytes: &[u8; SEGMENT_LEN]) -> Self {
        Self {
            first: number(&bytes[..4]) as u32,
            units: number(&bytes[4..8]) as u32,
            offset: number(&bytes[8..16]),
            len: number(&bytes[16..20]) as u32,
            sum: bytes[24..].try_into().unwrap_or_default(),
        }
    }

    fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn sum(bytes: &[u8]) -> Sum {
    let hash = blake3::hash(bytes);
    hash.as_bytes()[..16].try_into().unwrap_or_default()
}

fn header(point: PointId) -> [u8; HEADER_LEN as usize] {
    let mut bytes = [0; HEADER_LEN as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(LEAF as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&point.0.to_le_bytes());
    bytes
}

/// Kind of fault in a sidecar.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// Not what was written.
    #[error("{0}")]
    Damaged(String),
    /// Cannot be read.
    #[error("reading the leaf hashes: {0}")]
    Io(#[from] io::Error),
}

fn damaged<T>(what: impl Into<String>) -> Result<T, SidecarError> {
    Err(SidecarError::Damaged(what.into()))
}

/// A sidecar that is being written, in the order of the disk.
///
/// [`push`](Self::push) units, [`checkpoint`](Self::checkpoint) from time to time, [`finish`](Self::finish).
pub struct Writer {
    storage: Arc<dyn Storage>,
    point: PointId,
    segments: Vec<Segment>,
    units: Vec<UnitLeaves>,
    end: u64,
}

impl Writer {
    /// Begins on an empty file.
    ///
    /// # Errors
    ///
    /// What the storage says.
    pub fn create(storage: Arc<dyn Storage>, point: PointId) -> io::Result<Self> {
        storage.write_at(0, &header(point))?;
        Ok(Self { storage, point, segments: Vec::new(), units: Vec::new(), end: HEADER_LEN })
    }

    /// Goes on behind segments that are known to be durable; what follows them is cut off.
    pub(crate) fn resume(
        storage: Arc<dyn Storage>,
        point: PointId,
        segments: Vec<Segment>,
    ) -> io::Result<Self> {
        let end = segments.last().map_or(HEADER_LEN, Segment::end);
        if storage.len()? < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        storage.set_len(end)?;
        storage.write_at(0, &header(point))?;
        Ok(Self { storage, point, segments, units: Vec::new(), end })
    }

    /// Segments that were written.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Adds a unit, which must lie behind all before.
    ///
    /// # Errors
    ///
    /// What the storage says.
    pub fn push(&mut self, unit: UnitLeaves) -> io::Result<()> {
        if unit.changed == 0 {
            return Ok(());
        }
        self.units.push(unit);
        if self.units.len() == SEGMENT_UNITS { self.end_segment() } else { Ok(()) }
    }

    /// Makes everything pushed durable, and says where it ends.
    ///
    /// # Errors
    ///
    /// What the storage says.
    pub fn checkpoint(&mut self) -> io::Result<u64> {
        self.end_segment()?;
        self.storage.flush()?;
        Ok(self.end)
    }

    /// Writes directory and tail, durably: the sum of the sidecar, and its length in bytes.
    ///
    /// # Errors
    ///
    /// What the storage says.
    pub fn finish(mut self) -> io::Result<(blake3::Hash, u64)> {
        self.end_segment()?;
        let directory: Vec<u8> = self.segments.iter().flat_map(|segment| segment.to_bytes()).collect();
        let mut tail = [0; TAIL_LEN];
        tail[..8].copy_from_slice(END_MAGIC);
        tail[8..12].copy_from_slice(&(self.segments.len() as u32).to_le_bytes());
        tail[16..24].copy_from_slice(&self.end.to_le_bytes());
        let sum = self.sum(&directory, &tail);
        tail[HASH_LEN..].copy_from_slice(sum.as_bytes());
        self.storage.write_at(self.end, &directory)?;
        let tail_at = self.end + directory.len() as u64;
        self.storage.write_at(tail_at, &tail)?;
        let len = tail_at + TAIL_LEN as u64;
        self.storage.set_len(len)?;
        self.storage.flush()?;
        Ok((sum, len))
    }

    fn sum(&self, directory: &[u8], tail: &[u8; TAIL_LEN]) -> blake3::Hash {
        whole_sum(&header(self.point), directory, tail)
    }

    fn end_segment(&mut self) -> io::Result<()> {
        let (Some(first), Some(last)) = (self.units.first(), self.units.last()) else { return Ok(()) };
        let (first, last) = (first.unit, last.unit);
        let mut bytes = Vec::new();
        for unit in &self.units {
            bytes.extend_from_slice(&unit.unit.to_le_bytes());
            bytes.extend_from_slice(&unit.changed.to_le_bytes());
            bytes.extend_from_slice(&unit.zero.to_le_bytes());
        }
        for unit in &self.units {
            let held = unit.changed & !unit.zero;
            (0..LEAVES).filter(|leaf| held >> leaf & 1 == 1).for_each(|leaf| bytes.extend(unit.hashes[leaf]));
        }
        debug_assert!(first <= last, "units come in order");
        let segment = Segment {
            first,
            units: self.units.len() as u32,
            offset: self.end,
            len: bytes.len() as u32,
            sum: sum(&bytes),
        };
        self.storage.write_at(self.end, &bytes)?;
        self.end = segment.end();
        self.segments.push(segment);
        self.units.clear();
        Ok(())
    }
}

fn whole_sum(header: &[u8], directory: &[u8], tail: &[u8; TAIL_LEN]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(directory).update(&tail[..HASH_LEN]);
    hasher.finalize()
}

/// A sidecar that is read.
pub struct Sidecar {
    storage: Arc<dyn Storage>,
    segments: Vec<Segment>,
    sum: blake3::Hash,
    /// The segment that was used last.
    cached: Mutex<Option<(usize, Arc<Vec<UnitLeaves>>)>>,
}

impl Sidecar {
    /// Opens a whole one. The hashes are checked when they are read.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn open(storage: Arc<dyn Storage>, point: PointId) -> Result<Self, SidecarError> {
        let len = storage.len()?;
        let Some(tail_at) = len.checked_sub(TAIL_LEN as u64).filter(|at| *at >= HEADER_LEN) else {
            return damaged(format!(
                "the file of leaf hashes has {len} bytes, which is less than an empty one"
            ));
        };
        let mut start = [0; HEADER_LEN as usize];
        storage.read_at(0, &mut start)?;
        let mut tail = [0; TAIL_LEN];
        storage.read_at(tail_at, &mut tail)?;
        let count = number(&tail[8..12]) as u32;
        let at = number(&tail[16..24]);
        if tail[..8] != *END_MAGIC || count > SEGMENTS_MAX {
            return damaged("the file of leaf hashes has no end");
        }
        let directory_len = u64::from(count) * SEGMENT_LEN as u64;
        if at.checked_add(directory_len) != Some(tail_at) || at < HEADER_LEN {
            return damaged("the directory of leaf hashes is not where its end says");
        }
        let mut directory = vec![0; directory_len as usize];
        storage.read_at(at, &mut directory)?;
        let sum = whole_sum(&start, &directory, &tail);
        if sum.as_bytes()[..] != tail[HASH_LEN..] {
            return damaged("the sum of the directory of leaf hashes is wrong");
        }
        if start != header(point) {
            return damaged("the leaf hashes are of another point or version");
        }
        let segments: Vec<_> = directory.as_chunks::<SEGMENT_LEN>().0.iter().map(Segment::of_bytes).collect();
        Self::check(&segments, at)?;
        Ok(Self { storage, segments, sum, cached: Mutex::default() })
    }

    /// The first segments of one that is not whole.
    pub(crate) fn of_segments(
        storage: Arc<dyn Storage>,
        segments: Vec<Segment>,
    ) -> Result<Self, SidecarError> {
        Self::check(&segments, storage.len()?)?;
        Ok(Self { storage, segments, sum: blake3::Hash::from([0; 32]), cached: Mutex::default() })
    }

    fn check(segments: &[Segment], end: u64) -> Result<(), SidecarError> {
        let mut at = HEADER_LEN;
        let mut unit = 0u64;
        for segment in segments {
            let longest = segment.units as usize * (ENTRY_LEN + LEAVES * HASH_LEN);
            let fits = segment.offset == at && segment.len as usize <= longest;
            let counted = (1..=SEGMENT_UNITS as u32).contains(&segment.units);
            if !fits || !counted || u64::from(segment.first) < unit {
                return damaged("the directory of leaf hashes contradicts itself");
            }
            at = segment.end();
            unit = u64::from(segment.first) + u64::from(segment.units);
        }
        if at > end {
            return damaged("the directory of leaf hashes names more than there is");
        }
        Ok(())
    }

    /// Sum of header and directory, which holds the sums of all segments.
    pub fn sum(&self) -> blake3::Hash {
        self.sum
    }

    /// Its segments.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The leaves of a unit; `None` where the point holds none.
    ///
    /// # Errors
    ///
    /// What is wrong with the segment.
    pub fn unit(&self, unit: u32) -> Result<Option<UnitLeaves>, SidecarError> {
        let after = self.segments.partition_point(|segment| segment.first <= unit);
        let Some(index) = after.checked_sub(1) else { return Ok(None) };
        let units = self.segment(index)?;
        let found = units.binary_search_by_key(&unit, |leaves| leaves.unit);
        Ok(found.ok().map(|found| units[found].clone()))
    }

    /// The first unit at or behind `unit` that the point holds something of.
    ///
    /// # Errors
    ///
    /// What is wrong with the segment.
    pub fn next(&self, unit: u32) -> Result<Option<u32>, SidecarError> {
        let after = self.segments.partition_point(|segment| segment.first <= unit);
        if let Some(index) = after.checked_sub(1) {
            let units = self.segment(index)?;
            let at = units.partition_point(|leaves| leaves.unit < unit);
            if let Some(found) = units.get(at) {
                return Ok(Some(found.unit));
            }
        }
        Ok(self.segments.get(after).map(|segment| segment.first))
    }

    /// The units of a segment, checked.
    pub(crate) fn segment(&self, index: usize) -> Result<Arc<Vec<UnitLeaves>>, SidecarError> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, units)) = cached.as_ref().filter(|(at, _)| *at == index) {
            return Ok(Arc::clone(units));
        }
        let segment = &self.segments[index];
        let bytes = read_pieces(&self.storage, segment.offset, segment.len as usize)?;
        let units = Arc::new(parse(segment, &bytes)?);
        *cached = Some((index, Arc::clone(&units)));
        Ok(units)
    }
}

/// Reads a range in pieces that a client of a share asks for at a time, all at once: the kernel reads ahead of one
/// reader in few steps, each of which is a round trip.
pub(crate) fn read_pieces(storage: &Arc<dyn Storage>, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    /// What FUSE and NFS ask for at a time, bytes.
    const PIECE: usize = 128 << 10;
    let pieces: Vec<usize> = (0..len).step_by(PIECE).collect();
    let read = each(&pieces, |at| {
        let mut bytes = vec![0; PIECE.min(len - at)];
        Ok(storage.read_at(offset + *at as u64, &mut bytes).map(|()| bytes))
    });
    let mut bytes = Vec::with_capacity(len);
    for piece in read {
        bytes.extend(piece.map_err(io::Error::other)??);
    }
    Ok(bytes)
}

fn parse(segment: &Segment, bytes: &[u8]) -> Result<Vec<UnitLeaves>, SidecarError> {
    let at = segment.offset;
    if sum(bytes) != segment.sum {
        return damaged(format!("the sum of the leaf hashes at byte {at} is wrong"));
    }
    let contradiction = || damaged(format!("the leaf hashes at byte {at} contradict themselves"));
    let entries_len = segment.units as usize * ENTRY_LEN;
    let Some((entries, mut hashes)) = bytes.split_at_checked(entries_len) else { return contradiction() };
    let mut units: Vec<UnitLeaves> = Vec::with_capacity(segment.units as usize);
    for entry in entries.as_chunks::<ENTRY_LEN>().0 {
        let mut unit = UnitLeaves::none(number(&entry[..4]) as u32);
        unit.changed = number(&entry[4..6]) as u16;
        unit.zero = number(&entry[6..]) as u16;
        let held = unit.changed & !unit.zero;
        for leaf in (0..LEAVES).filter(|leaf| held >> leaf & 1 == 1) {
            let Some((hash, rest)) = hashes.split_first_chunk::<HASH_LEN>() else { return contradiction() };
            unit.hashes[leaf] = LeafHash::from(*hash);
            hashes = rest;
        }
        let in_order = units.last().is_none_or(|last| last.unit < unit.unit);
        if unit.changed == 0 || unit.zero & !unit.changed != 0 || !in_order {
            return contradiction();
        }
        units.push(unit);
    }
    if !hashes.is_empty() || units.first().is_none_or(|unit| unit.unit != segment.first) {
        return contradiction();
    }
    Ok(units)
}

#[cfg(test)]
mod tests {
    use lunway_vhdx::crash::MemoryStorage;

    use super::*;
    use crate::leaf::Leaf;

    const POINT: PointId = PointId(0x0123_4567_89ab_cdef);

    fn written(numbers: impl IntoIterator<Item = u32>) -> (Arc<MemoryStorage>, blake3::Hash) {
        let storage = Arc::new(MemoryStorage::default());
        let mut writer = Writer::create(storage.clone(), POINT).unwrap();
        for number in numbers {
            let mut unit = UnitLeaves::none(number);
            unit.set((number % 16) as usize, Leaf::of(&number.to_le_bytes()));
            unit.set(((number + 3) % 16) as usize, Leaf::Zero);
            writer.push(unit).unwrap();
        }
        let sum = writer.finish().unwrap().0;
        (storage, sum)
    }

    #[test]
    fn every_unit_is_found_again_and_no_other() {
        let all = || (1..10_000).step_by(3);
        let (storage, sum) = written(all());
        let sidecar = Sidecar::open(storage, POINT).unwrap();
        assert_eq!(sidecar.sum(), sum);
        for unit in 0..10_002 {
            let found = sidecar.unit(unit).unwrap();
            assert_eq!(found.is_some(), unit % 3 == 1 && unit < 10_000, "{unit}");
            let next = all().find(|number| *number >= unit);
            assert_eq!(sidecar.next(unit).unwrap(), next, "{unit}");
            if let Some(found) = found {
                assert_eq!(found.get((unit % 16) as usize), Some(Leaf::of(&unit.to_le_bytes())));
            }
        }
    }

    #[test]
    fn an_empty_one_is_read_back() {
        let sidecar = Sidecar::open(written([]).0, POINT).unwrap();
        assert_eq!((sidecar.unit(0).unwrap(), sidecar.next(0).unwrap()), (None, None));
    }

    #[test]
    fn any_flipped_or_missing_byte_is_noticed() {
        let (storage, _) = written(0..20);
        let bytes = storage.to_bytes();
        let read = |bytes: &[u8]| -> Result<(), SidecarError> {
            let sidecar = Sidecar::open(Arc::new(MemoryStorage::of_bytes(bytes)), POINT)?;
            (0..sidecar.segments().len()).try_for_each(|index| sidecar.segment(index).map(drop))
        };
        read(&bytes).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(read(&flipped).is_err(), "byte {at}");
            assert!(read(&bytes[..at]).is_err(), "{at} bytes");
        }
    }
}

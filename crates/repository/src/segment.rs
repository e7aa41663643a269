//! Index segments: where entries lie, sorted by id.
//!
//! ```text
//!   0    header   "LWINDEXS", version (4), 0 (4), segment (8), 0 (8)                                  32 bytes
//!   32   entries  id (32), number of the pack in the table (4), offset (4), stored bytes (4),
//!                 bytes, and in bit 31 whether zstd (4); sorted by id, each id once                   48 bytes each
//!        packs    ids of the packs that it knows all entries of                                       8 bytes each
//!   end  tail     "LWINDEXX", packs (4), 0 (4), entries (8), 0 (8), BLAKE3 of all bytes before it     64 bytes
//! ```
//!
//! All numbers are little-endian. Ids are hashes and lie evenly, so that an id's place is known to some thousandths of
//! a file before anything is read: an entry is found with two or three reads of 3 KiB, and nothing is held in memory
//! but the table of packs.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;

use lunway_backup::Open;
use lunway_vhdx::Storage;

use crate::bytes::{number, small};
use crate::codec::Id;
use crate::pack::{FormatError, Location, damaged};

const MAGIC: &[u8; 8] = b"LWINDEXS";
const END_MAGIC: &[u8; 8] = b"LWINDEXX";
const VERSION: u32 = 1;
const HEADER_LEN: u64 = 32;
const ENTRY_LEN: u64 = 48;
const TAIL_LEN: u64 = 64;
const HASH_AT: usize = 32;
const COMPRESSED: u32 = 1 << 31;
/// Entries that are read at a time in a search: 3 KiB, a page of most file systems and a packet or two of a share.
const WINDOW: u64 = 64;
/// Bytes that are read or written at a time in a pass: large enough for a share's round trips.
const PASS: usize = 1 << 20;
/// Most packs of a segment: those of a pebibyte.
const PACKS_MAX: u32 = 1 << 25;

/// Takes bytes, one behind another.
type Put<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

/// Writes a segment, entry by entry in the order of their ids.
pub(crate) struct SegmentWriter<'a> {
    put: Box<Put<'a>>,
    hasher: blake3::Hasher,
    buf: Vec<u8>,
    packs: Vec<u64>,
    numbers: HashMap<u64, u32>,
    count: u64,
    last: Option<Id>,
}

impl<'a> SegmentWriter<'a> {
    /// Begins a segment; `put` takes its bytes, one behind another.
    pub(crate) fn new(segment: u64, put: impl FnMut(&[u8]) -> io::Result<()> + 'a) -> Self {
        let mut buf = Vec::with_capacity(PASS);
        buf.extend_from_slice(MAGIC);
        buf.extend_from_slice(&VERSION.to_le_bytes());
        buf.extend_from_slice(&[0; 4]);
        buf.extend_from_slice(&segment.to_le_bytes());
        buf.extend_from_slice(&[0; 8]);
        Self {
            put: Box::new(put),
            hasher: blake3::Hasher::new(),
            buf,
            packs: Vec::new(),
            numbers: HashMap::new(),
            count: 0,
            last: None,
        }
    }

    /// It knows all entries of this pack that are of use.
    pub(crate) fn cover(&mut self, pack: u64) -> u32 {
        let next = self.packs.len() as u32;
        *self.numbers.entry(pack).or_insert_with(|| {
            self.packs.push(pack);
            next
        })
    }

    /// Adds an entry. One that has the id of the last one is left out.
    pub(crate) fn push(&mut self, id: &Id, location: &Location) -> io::Result<()> {
        if self.last.is_some_and(|last| last >= *id) {
            debug_assert_eq!(self.last.as_ref(), Some(id), "entries come in order");
            return Ok(());
        }
        self.last = Some(*id);
        let pack = self.cover(location.pack);
        let raw = location.raw | if location.compressed { COMPRESSED } else { 0 };
        self.buf.extend_from_slice(id);
        for number in [pack, location.offset, location.stored, raw] {
            self.buf.extend_from_slice(&number.to_le_bytes());
        }
        self.count += 1;
        if self.buf.len() >= PASS { self.pass_on() } else { Ok(()) }
    }

    fn pass_on(&mut self) -> io::Result<()> {
        self.hasher.update(&self.buf);
        (self.put)(&self.buf)?;
        self.buf.clear();
        Ok(())
    }

    /// Writes the end: how many entries there are.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        for pack in std::mem::take(&mut self.packs) {
            self.buf.extend_from_slice(&pack.to_le_bytes());
        }
        self.buf.extend_from_slice(END_MAGIC);
        self.buf.extend_from_slice(&(self.numbers.len() as u32).to_le_bytes());
        self.buf.extend_from_slice(&[0; 4]);
        self.buf.extend_from_slice(&self.count.to_le_bytes());
        self.buf.extend_from_slice(&[0; 8]);
        self.pass_on()?;
        let hash = *self.hasher.finalize().as_bytes();
        (self.put)(&hash)?;
        Ok(self.count)
    }
}

/// A segment that is read.
pub struct Segment {
    storage: Open,
    count: u64,
    packs: Vec<u64>,
}

fn window(entries: u64) -> Vec<u8> {
    vec![0; (entries * ENTRY_LEN) as usize]
}

fn id_of(entry: &[u8]) -> &[u8] {
    &entry[..32]
}

impl Segment {
    /// Opens one. Its entries are believed: a check of the whole file is another step.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn open(storage: Open, segment: u64) -> Result<Self, FormatError> {
        let len = storage.len()?;
        let Some(tail_at) = len.checked_sub(TAIL_LEN).filter(|at| *at >= HEADER_LEN) else {
            return damaged(format!("it has {len} bytes, which is less than an empty index"));
        };
        let mut header = [0; HEADER_LEN as usize];
        storage.read_at(0, &mut header)?;
        if header[..8] != *MAGIC || small(&header[8..12]) != VERSION || number(&header[16..24]) != segment {
            return damaged("its header is not that of this index");
        }
        let mut tail = [0; TAIL_LEN as usize];
        storage.read_at(tail_at, &mut tail)?;
        let (packs, count) = (small(&tail[8..12]), number(&tail[16..24]));
        let packs_len = u64::from(packs) * 8;
        let entries_len =
            count.checked_mul(ENTRY_LEN).and_then(|len| len.checked_add(HEADER_LEN + packs_len));
        if tail[..8] != *END_MAGIC || packs > PACKS_MAX || entries_len != Some(tail_at) {
            return damaged("its end is not that of an index");
        }
        let mut table = vec![0; packs_len as usize];
        storage.read_at(tail_at - packs_len, &mut table)?;
        Ok(Self { storage, count, packs: table.chunks_exact(8).map(number).collect() })
    }

    /// Reads all of a file, and says whether it has the hash at its end. `copy` takes the bytes, with their offset.
    ///
    /// # Errors
    ///
    /// Where it cannot be read, or what `copy` says.
    pub(crate) fn check(
        storage: &dyn Storage,
        copy: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let len = storage.len()?;
        let hash_at = len.saturating_sub(TAIL_LEN - HASH_AT as u64);
        let mut hasher = blake3::Hasher::new();
        let mut buf = vec![0; PASS];
        let mut at = 0;
        while at < hash_at {
            let now = (hash_at - at).min(PASS as u64) as usize;
            storage.read_at(at, &mut buf[..now])?;
            hasher.update(&buf[..now]);
            copy(at, &buf[..now])?;
            at += now as u64;
        }
        let mut hash = vec![0; (len - hash_at) as usize];
        storage.read_at(hash_at, &mut hash)?;
        copy(hash_at, &hash)?;
        Ok(hasher.finalize().as_bytes()[..] == hash)
    }

    /// Number of entries.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The packs that it knows.
    pub fn packs(&self) -> &[u64] {
        &self.packs
    }

    /// Finds an entry: its number, and where it lies.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read, or is not sorted.
    pub fn find(&self, id: &Id) -> Result<Option<(u64, Location)>, FormatError> {
        // Keys are the first 8 bytes as a number: the entries of `low..high` have keys from `from` to `to`.
        let key = |id: &[u8]| u64::from_be_bytes(id[..8].try_into().unwrap_or_default());
        let (mut low, mut high) = (0, self.count);
        let (mut from, mut to) = (0, u64::MAX);
        let wanted = key(id);
        let mut buf = Vec::new();
        let mut reads = 0;
        while low < high {
            let (span, of) = (u128::from(high - low), u128::from(to.saturating_sub(from)).max(1));
            // Evenly spread, until that has not helped: a file that somebody made on purpose is halved.
            let guess = match reads < 8 {
                true => (span * u128::from(wanted.saturating_sub(from)) / of).min(span - 1) as u64,
                false => (high - low) / 2,
            };
            let start =
                (low + guess).saturating_sub(WINDOW / 2).clamp(low, high.saturating_sub(WINDOW).max(low));
            let count = WINDOW.min(high - start);
            if buf.is_empty() {
                buf = window(WINDOW);
            }
            let entries = &mut buf[..(count * ENTRY_LEN) as usize];
            self.storage.read_at(HEADER_LEN + start * ENTRY_LEN, entries)?;
            reads += 1;
            let entries: Vec<&[u8]> = entries.chunks_exact(ENTRY_LEN as usize).collect();
            let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
                break;
            };
            if id_of(first) > &id[..] {
                (high, to) = (start, key(first));
            } else if id_of(last) < &id[..] {
                (low, from) = (start + count, key(last));
            } else {
                let found = entries.binary_search_by(|entry| id_of(entry).cmp(&id[..]));
                return match found {
                    Ok(at) => Ok(Some((start + at as u64, self.location(entries[at])?))),
                    Err(_) => Ok(None),
                };
            }
        }
        Ok(None)
    }

    fn location(&self, entry: &[u8]) -> Result<Location, FormatError> {
        let raw = small(&entry[44..48]);
        let location = Location {
            pack: match self.packs.get(small(&entry[32..36]) as usize) {
                Some(pack) => *pack,
                None => return damaged("an entry names a pack that the index does not have"),
            },
            offset: small(&entry[36..40]),
            stored: small(&entry[40..44]),
            raw: raw & !COMPRESSED,
            compressed: raw & COMPRESSED != 0,
        };
        match location.is_possible() {
            true => Ok(location),
            false => damaged("an entry has lengths that are not possible"),
        }
    }

    /// All entries, in order.
    pub(crate) fn entries(&self) -> Entries<'_> {
        Entries { segment: self, next: 0, read: Vec::new(), at: 0, last: None }
    }
}

/// The entries of a segment in the order of their ids.
pub(crate) struct Entries<'a> {
    segment: &'a Segment,
    /// Number of the first entry that was not read.
    next: u64,
    read: Vec<u8>,
    at: usize,
    last: Option<Id>,
}

impl Iterator for Entries<'_> {
    type Item = Result<(Id, Location), FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.read.len() {
            let count = (self.segment.count - self.next).min(PASS as u64 / ENTRY_LEN);
            if count == 0 {
                return None;
            }
            self.read = window(count);
            if let Err(error) =
                self.segment.storage.read_at(HEADER_LEN + self.next * ENTRY_LEN, &mut self.read)
            {
                self.next = self.segment.count;
                self.read.clear();
                return Some(Err(error.into()));
            }
            self.next += count;
            self.at = 0;
        }
        let entry = &self.read[self.at..self.at + ENTRY_LEN as usize];
        self.at += ENTRY_LEN as usize;
        let id: Id = entry[..32].try_into().unwrap_or_default();
        if self.last.replace(id).is_some_and(|last| last >= id) {
            return Some(damaged("its entries are not in order"));
        }
        Some(self.segment.location(entry).map(|location| (id, location)))
    }
}

/// The entries of several segments in the order of their ids.
pub(crate) fn merged<'a>(
    segments: impl Iterator<Item = &'a Segment>,
) -> impl Iterator<Item = Result<(Id, Location), FormatError>> {
    let mut sources: Vec<_> = segments.map(|segment| segment.entries().peekable()).collect();
    std::iter::from_fn(move || {
        let mut first: Option<(usize, Id)> = None;
        for (number, source) in sources.iter_mut().enumerate() {
            match source.peek() {
                None => {}
                Some(Err(_)) => {
                    first = Some((number, Id::default()));
                    break;
                }
                Some(Ok((id, _))) if first.is_none_or(|(_, least)| id.cmp(&least) == Ordering::Less) => {
                    first = Some((number, *id));
                }
                Some(Ok(_)) => {}
            }
        }
        sources[first?.0].next()
    })
}

/// Name of a segment's file.
pub(crate) fn segment_name(segment: u64) -> String {
    format!("index-{segment:016x}")
}

/// The segment whose file has this name.
pub(crate) fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("index-").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().filter(|segment| segment_name(*segment) == name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryFile;

    fn entries(count: u32, of: u64) -> Vec<(Id, Location)> {
        let mut entries: Vec<_> = (0..count)
            .map(|number| {
                let location = Location {
                    pack: of + u64::from(number % 7),
                    offset: 32 + number,
                    stored: 100,
                    raw: 200,
                    compressed: number % 2 == 0,
                };
                (*blake3::hash(&(of + u64::from(number)).to_le_bytes()).as_bytes(), location)
            })
            .collect();
        entries.sort_by_key(|(id, _)| *id);
        entries
    }

    fn bytes_of(segment: u64, entries: &[(Id, Location)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = SegmentWriter::new(segment, |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        });
        entries.iter().for_each(|(id, location)| writer.push(id, location).unwrap());
        assert_eq!(writer.finish().unwrap(), entries.len() as u64);
        bytes
    }

    fn segment(bytes: Vec<u8>) -> Segment {
        Segment::open(Arc::new(MemoryFile::of(bytes)), 9).unwrap()
    }

    #[test]
    fn every_entry_is_found_with_few_reads_and_nothing_else_is() {
        for count in [0, 1, 63, 64, 65, 1000, 40_000] {
            let entries = entries(count, 1 << 20);
            let segment = segment(bytes_of(9, &entries));
            for (number, (id, location)) in entries.iter().enumerate() {
                assert_eq!(segment.find(id).unwrap(), Some((number as u64, *location)), "{count}");
            }
            for other in 0..1000u64 {
                assert_eq!(segment.find(blake3::hash(&other.to_le_bytes()).as_bytes()).unwrap(), None);
            }
            assert!(segment.find(&[0; 32]).unwrap().is_none() && segment.find(&[255; 32]).unwrap().is_none());
            let read: Vec<_> = segment.entries().map(Result::unwrap).collect();
            assert_eq!(read, entries);
        }
    }

    #[test]
    fn ids_that_do_not_lie_evenly_are_found_too() {
        let ids = (0..5000u32).map(|number| {
            let mut id = [0; 32];
            id[4..8].copy_from_slice(&(number * number).to_be_bytes());
            id
        });
        let location = Location { pack: 1, offset: 32, stored: 1, raw: 1, compressed: false };
        let entries: Vec<_> = ids.map(|id| (id, location)).collect();
        let segment = segment(bytes_of(9, &entries));
        for (number, (id, _)) in entries.iter().enumerate() {
            assert_eq!(segment.find(id).unwrap().map(|(at, _)| at), Some(number as u64));
        }
    }

    #[test]
    fn any_flipped_byte_is_noticed_by_the_check() {
        let bytes = bytes_of(9, &entries(30, 5));
        let is_right =
            |bytes: &[u8]| Segment::check(&MemoryFile::of(bytes.to_vec()), &mut |_, _| Ok(())).unwrap();
        assert!(is_right(&bytes));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(!is_right(&flipped), "byte {at}");
        }
    }

    #[test]
    fn merged_entries_come_in_order_and_are_written_once() {
        let (one, other) = (entries(500, 1), entries(700, 400));
        let segments = [segment(bytes_of(9, &one)), segment(bytes_of(9, &other))];
        let all: Vec<_> = merged(segments.iter()).map(Result::unwrap).collect();
        assert!(all.is_sorted_by_key(|(id, _)| *id));
        assert_eq!(all.len(), 1200);
        let mut distinct: Vec<Id> = all.iter().map(|(id, _)| *id).collect();
        distinct.dedup();
        let mut bytes = Vec::new();
        let mut writer = SegmentWriter::new(9, |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        });
        all.iter().for_each(|(id, location)| writer.push(id, location).unwrap());
        assert_eq!(writer.finish().unwrap(), distinct.len() as u64);
    }
}

//! Packs: entries one behind another, and a directory of them.
//!
//! ```text
//!   0    header     "LWPACKED", version (4), 0 (4), pack (8), 0 (8)                            32 bytes
//!   32   entries    their stored bytes, without gaps
//!        directory  id (32), offset (4), stored bytes (4), bytes (4), 1: zstd, 0: not (4)      48 bytes each
//!   end  tail       "LWPACKEX", entries (4), offset of the directory (4),
//!                   first 16 bytes of BLAKE3 of the directory and the tail before it,
//!                   BLAKE3 of all bytes before it                                             64 bytes
//! ```
//!
//! All numbers are little-endian. A pack says all that an index says of it, so that an index can always be made again.

use std::io;

use lunway_vhdx::Storage;

use crate::bytes::{number, small};
use crate::codec::{ENTRY_MAX, Encoded, Id, TAG_LEN};

const MAGIC: &[u8; 8] = b"LWPACKED";
const END_MAGIC: &[u8; 8] = b"LWPACKEX";
const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: usize = 32;
const ENTRY_LEN: usize = 48;
const TAIL_LEN: usize = 64;
const SUM_AT: usize = 16;
const HASH_AT: usize = 32;
/// Bytes of a pack that is full: few enough to be held while the next one is filled, and so many that a terabyte takes
/// 32,768 files.
pub const PACK_TARGET: usize = 32 << 20;
/// Most bytes of a pack: a full one, with the largest entry as its last, and its directory.
pub(crate) const PACK_MAX: u64 = 128 << 20;
/// Most entries of a pack: twice what a full one of nodes that cannot be compressed has.
const ENTRIES_MAX: u32 = 1 << 17;

/// Place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The pack.
    pub pack: u64,
    /// Offset in it, bytes.
    pub offset: u32,
    /// Bytes there.
    pub stored: u32,
    /// Bytes of the entry itself.
    pub raw: u32,
    /// What is there is a zstd frame.
    pub compressed: bool,
}

impl Location {
    /// Returns `true` if an entry can have such lengths.
    pub(crate) fn is_possible(&self) -> bool {
        self.raw > 0 && self.raw <= ENTRY_MAX && self.stored > 0 && self.stored <= self.raw + TAG_LEN
    }

    /// Offset behind it.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.stored)
    }
}

/// Kind of fault in a pack, or in an index.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Not what was written.
    #[error("{0}")]
    Damaged(String),
    /// Cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
}

pub(crate) fn damaged<T>(what: impl Into<String>) -> Result<T, FormatError> {
    Err(FormatError::Damaged(what.into()))
}

/// A pack that is being filled, in memory.
#[derive(Debug)]
pub struct PackBuilder {
    pack: u64,
    bytes: Vec<u8>,
    entries: Vec<(Id, Location)>,
}

impl PackBuilder {
    /// An empty one.
    pub fn new(pack: u64) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&pack.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        Self { pack, bytes, entries: Vec::new() }
    }

    /// Adds an entry: its place.
    pub fn add(&mut self, id: Id, encoded: &Encoded) -> Location {
        let location = Location {
            pack: self.pack,
            offset: self.bytes.len() as u32,
            stored: encoded.bytes.len() as u32,
            raw: encoded.raw,
            compressed: encoded.compressed,
        };
        self.bytes.extend_from_slice(&encoded.bytes);
        self.entries.push((id, location));
        location
    }

    /// Returns `true` if no more should be added.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= PACK_TARGET || self.entries.len() >= ENTRIES_MAX as usize / 2
    }

    /// Returns `true` if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that it has when it is finished.
    pub fn len(&self) -> u64 {
        (self.bytes.len() + self.entries.len() * ENTRY_LEN + TAIL_LEN) as u64
    }

    /// Its id.
    pub fn pack(&self) -> u64 {
        self.pack
    }

    /// All bytes of it.
    pub fn finish(self) -> Vec<u8> {
        let Self { mut bytes, entries, .. } = self;
        let directory_at = bytes.len();
        for (id, location) in &entries {
            bytes.extend_from_slice(id);
            for number in [location.offset, location.stored, location.raw, location.compressed.into()] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        bytes.extend_from_slice(END_MAGIC);
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(directory_at as u32).to_le_bytes());
        let sum = blake3::hash(&bytes[directory_at..]);
        bytes.extend_from_slice(&sum.as_bytes()[..16]);
        let hash = blake3::hash(&bytes);
        bytes.extend_from_slice(hash.as_bytes());
        bytes
    }
}

/// Reads the directory of a pack.
///
/// # Errors
///
/// What is wrong with it.
pub fn read_directory(storage: &dyn Storage, pack: u64) -> Result<Vec<(Id, Location)>, FormatError> {
    let len = storage.len()?;
    if len > PACK_MAX || len < (HEADER_LEN + TAIL_LEN) as u64 {
        return damaged(format!("it has {len} bytes, which no pack has"));
    }
    let mut header = [0; HEADER_LEN];
    storage.read_at(0, &mut header)?;
    if header[..8] != *MAGIC || small(&header[8..12]) != VERSION || number(&header[16..24]) != pack {
        return damaged("its header is not that of this pack");
    }
    let tail_at = len - TAIL_LEN as u64;
    let mut tail = [0; TAIL_LEN];
    storage.read_at(tail_at, &mut tail)?;
    let (count, directory_at) = (small(&tail[8..12]), u64::from(small(&tail[12..16])));
    let directory_len = u64::from(count) * ENTRY_LEN as u64;
    if tail[..8] != *END_MAGIC || count > ENTRIES_MAX || directory_at + directory_len != tail_at {
        return damaged("its end is not that of a pack");
    }
    let mut directory = vec![0; directory_len as usize];
    storage.read_at(directory_at, &mut directory)?;
    let sum = blake3::Hasher::new().update(&directory).update(&tail[..SUM_AT]).finalize();
    if sum.as_bytes()[..16] != tail[SUM_AT..HASH_AT] {
        return damaged("its directory is not what was written");
    }
    let mut entries = Vec::with_capacity(count as usize);
    for entry in directory.chunks_exact(ENTRY_LEN) {
        let id = entry[..32].try_into().unwrap_or_default();
        let location = Location {
            pack,
            offset: small(&entry[32..36]),
            stored: small(&entry[36..40]),
            raw: small(&entry[40..44]),
            compressed: small(&entry[44..48]) == 1,
        };
        let fits = location.offset as usize >= HEADER_LEN && location.end() <= directory_at;
        if !fits || !location.is_possible() || small(&entry[44..48]) > 1 {
            return damaged("its directory contradicts itself");
        }
        entries.push((id, location));
    }
    Ok(entries)
}

/// Reads a whole pack: all of its bytes, and whether they have the hash at their end.
///
/// # Errors
///
/// Where it cannot be read, or is too long to be a pack.
pub(crate) fn read_whole(storage: &dyn Storage) -> Result<(Vec<u8>, bool), FormatError> {
    let len = storage.len()?;
    if len > PACK_MAX || len < (HEADER_LEN + TAIL_LEN) as u64 {
        return damaged(format!("it has {len} bytes, which no pack has"));
    }
    let mut bytes = vec![0; len as usize];
    storage.read_at(0, &mut bytes)?;
    let hash_at = bytes.len() - (TAIL_LEN - HASH_AT);
    let is_right = blake3::hash(&bytes[..hash_at]).as_bytes()[..] == bytes[hash_at..];
    Ok((bytes, is_right))
}

/// Name of a pack's file.
pub(crate) fn pack_name(pack: u64) -> String {
    format!("pack-{pack:016x}")
}

/// The pack whose file has this name.
pub(crate) fn parse_pack_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("pack-").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().filter(|pack| pack_name(*pack) == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::memory::MemoryFile;

    #[test]
    fn a_pack_reads_back_and_every_flipped_or_missing_byte_is_noticed() {
        let codec = Codec::open();
        let mut builder = PackBuilder::new(7);
        let mut expected = Vec::new();
        for number in 0..5u8 {
            let bytes = vec![number; 100 + usize::from(number)];
            let id = codec.id(&bytes);
            expected.push((id, builder.add(id, &codec.encode(&id, &bytes))));
        }
        let bytes = builder.finish();
        let file = |bytes: &[u8]| MemoryFile::of(bytes.to_vec());
        assert_eq!(read_directory(&file(&bytes), 7).unwrap(), expected);
        assert!(read_whole(&file(&bytes)).unwrap().1);
        assert!(read_directory(&file(&bytes), 8).is_err(), "another pack's");
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(!read_whole(&file(&flipped)).unwrap().1, "byte {at}");
            assert!(read_directory(&file(&bytes[..at]), 7).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn a_name_is_a_packs_in_one_way_of_writing() {
        assert_eq!(parse_pack_name(&pack_name(0xab)), Some(0xab));
        for wrong in
            ["pack-ab", "pack-00000000000000AB", "pack-+0000000000000ab", "pack-00000000000000ab.incomplete"]
        {
            assert_eq!(parse_pack_name(wrong), None, "{wrong}");
        }
    }
}

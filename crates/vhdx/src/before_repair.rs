//! The parts that a repair changes, as they were before.

use std::io;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::edit::repaired_parts;
use crate::error::{DiskError, EditError};
use crate::format::{Guid, GuidSource, HEADER_OFFSETS, PAGE};
use crate::header::read_valid;
use crate::region::Span;
use crate::storage::Storage;

/// Bytes that are copied at once: few calls, and little memory.
const PIECE: u64 = 1 << 20;

/// Bits of a GUID by which those of one repair differ: a repair counts them. The other 96 are random.
const COUNT_BITS: u128 = 0xFFFF_FFFF;

/// GUIDs of one repair: a repair writes no others into headers, so that a file which it has left at any step is told
/// from one that was written to since. Every writer puts a new GUID there before its first change (2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairGuids {
    first: Guid,
    count: u32,
}

impl RepairGuids {
    /// Those that begin with a random one.
    pub fn new(random: Guid) -> Self {
        Self { first: random, count: 0 }
    }

    fn has(&self, guid: Guid) -> bool {
        (guid.to_digits() ^ self.first.to_digits()) & !COUNT_BITS == 0
    }
}

impl GuidSource for RepairGuids {
    fn next(&mut self) -> Guid {
        self.count += 1;
        Guid::from_digits(self.first.to_digits() & !COUNT_BITS | u128::from(self.count))
    }
}

/// The end of a save: what of it is not the file's.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Trailer {
    signature: [u8; 16],
    guids: Guid,
}

impl Trailer {
    /// Of our own choice.
    const SIGNATURE: [u8; 16] = *b"lunway repair 1\n";
    const LEN: u64 = size_of::<Self>() as u64;
}

/// What a repair may change of a file, kept on another storage at the same offsets; a [`Storage`] to read, as long as
/// the file was.
///
/// # Order of calls
///
/// ```text
///   keep         before the repair, which takes `guids` of it
///   explains     whether a file is as before the repair, or as that or a write_back has left it, at any step
///   write_back   the file is as before
/// ```
///
/// A save is complete once `keep` has returned: only then it gets its name.
pub struct BeforeRepair<S> {
    storage: S,
    len: u64,
    guids: Option<RepairGuids>,
}

impl<S: Storage> BeforeRepair<S> {
    /// Copies the parts of `file` that a repair may change to an empty storage, durably.
    ///
    /// # Errors
    ///
    /// As for [`repair`](crate::repair), and those of both storages.
    pub fn keep(file: &impl Storage, storage: S, random: Guid) -> Result<Self, EditError> {
        let len = file.len().map_err(DiskError::storage("asking for the file's length"))?;
        let failed = DiskError::storage;
        // As long as the file: a log that has entries says how long that is at least.
        storage.set_len(len).map_err(failed("saving what a repair changes"))?;
        for part in repaired_parts(file)? {
            copy(part, len, file, &storage).map_err(failed("saving what a repair changes"))?;
        }
        let trailer = Trailer { signature: Trailer::SIGNATURE, guids: random };
        storage.write_at(len, trailer.as_bytes()).map_err(failed("saving what a repair changes"))?;
        storage.flush().map_err(failed("saving what a repair changes"))?;
        Ok(Self { storage, len, guids: Some(RepairGuids::new(random)) })
    }

    /// A save of an earlier repair. One of lunway 0.1 does not say which GUIDs were the repair's.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn open(storage: S) -> io::Result<Self> {
        let whole = storage.len()?;
        let mut trailer = Trailer::new_zeroed();
        let len = whole.saturating_sub(Trailer::LEN);
        if len < whole {
            storage.read_at(len, trailer.as_mut_bytes())?;
        }
        Ok(match trailer.signature == Trailer::SIGNATURE {
            true => Self { storage, len, guids: Some(RepairGuids::new(trailer.guids)) },
            false => Self { storage, len: whole, guids: None },
        })
    }

    /// GUIDs for the repair; `None`: it was begun before they were kept.
    pub fn guids(&self) -> Option<RepairGuids> {
        self.guids
    }

    /// Returns `true` if the headers of `file` prove that nothing but the repair, or writing back what it has changed,
    /// has changed it: each valid one has a FileWriteGuid of before, or of the repair.
    ///
    /// # Errors
    ///
    /// One of both cannot be read.
    pub fn explains(&self, file: &impl Storage) -> io::Result<bool> {
        let Some(guids) = self.guids else { return Ok(false) };
        let (now, before) = (file_writes(file)?, file_writes(self)?);
        let known = |guid: &Guid| guids.has(*guid) || before.contains(guid);
        Ok(!now.is_empty() && now.iter().all(known))
    }

    /// Returns `true` if `file` has all that was kept.
    ///
    /// # Errors
    ///
    /// One of both cannot be read.
    pub fn is_same(&self, file: &impl Storage) -> Result<bool, EditError> {
        let failed = DiskError::storage;
        let mut pieces = [vec![0; PIECE as usize], vec![0; PIECE as usize]];
        for part in repaired_parts(self)? {
            for (offset, len) in within(part, self.len) {
                let [old, new] = pieces.each_mut().map(|piece| &mut piece[..len]);
                self.read_at(offset, old).map_err(failed("reading what was kept"))?;
                file.read_at(offset, new).map_err(failed("reading the file"))?;
                if old != new {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Writes back what was kept, and the length that the file had, so that what was lost is known to be lost again.
    /// The save has the same headers and tables, and so names the same parts. Headers come last and one by one, one
    /// that was valid before the other: at every step a valid one says whose the file is.
    ///
    /// # Errors
    ///
    /// Those of both storages.
    pub fn write_back(&self, file: &impl Storage) -> Result<(), EditError> {
        let failed = || DiskError::storage("writing back what was kept");
        for part in repaired_parts(self)? {
            for piece in around_headers(part) {
                copy(piece, self.len, self, file).map_err(failed())?;
            }
        }
        file.flush().map_err(failed())?;
        let (valid, spoiled): (Vec<u64>, Vec<u64>) = HEADER_OFFSETS
            .into_iter()
            .partition(|offset| read_valid(self, *offset).is_ok_and(|header| header.is_some()));
        for offset in valid.into_iter().chain(spoiled) {
            copy(Span { offset, len: PAGE as u64 }, self.len, self, file).map_err(failed())?;
            file.flush().map_err(failed())?;
        }
        if self.len < file.len().map_err(failed())? {
            file.set_len(self.len).map_err(failed())?;
            file.flush().map_err(failed())?;
        }
        Ok(())
    }
}

/// The file as it was, as far as it was kept.
impl<S: Storage> Storage for BeforeRepair<S> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= self.len => self.storage.read_at(offset, buf),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// The FileWriteGuids of the headers that are valid.
fn file_writes(storage: &impl Storage) -> io::Result<Vec<Guid>> {
    let headers = HEADER_OFFSETS.into_iter().filter_map(|offset| read_valid(storage, offset).transpose());
    headers.map(|header| header.map(|header| header.file_write)).collect()
}

/// A part without the headers in it.
fn around_headers(part: Span) -> Vec<Span> {
    let mut pieces = Vec::new();
    let mut from = part.offset;
    for header in HEADER_OFFSETS.into_iter().filter(|offset| (part.offset..part.end()).contains(offset)) {
        pieces.push(Span { offset: from, len: header - from });
        from = header + PAGE as u64;
    }
    pieces.push(Span { offset: from, len: part.end().saturating_sub(from) });
    pieces
}

/// Offset and length of the pieces of a part that lie in a file of `len` bytes.
fn within(part: Span, len: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = part.end().min(len);
    let starts = (0..part.len.div_ceil(PIECE)).map(move |piece| part.offset + piece * PIECE);
    starts.filter(move |at| *at < end).map(move |at| (at, (end - at).min(PIECE) as usize))
}

/// Copies what a part has in a file of `len` bytes, at the same offsets.
fn copy(part: Span, len: u64, from: &impl Storage, to: &impl Storage) -> io::Result<()> {
    let mut buf = vec![0; PIECE.min(part.len) as usize];
    within(part, len).try_for_each(|(offset, now)| {
        from.read_at(offset, &mut buf[..now])?;
        to.write_at(offset, &buf[..now])
    })
}

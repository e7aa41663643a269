//! The two headers: which one is current, and how they are replaced.

use std::io;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Structure, VhdxOpenError};
use crate::format::{HEADER_OFFSETS, HEADER_SECTION, Header, MIB, PAGE};
use crate::log::ring::Ring;
use crate::region::Span;
use crate::storage::Storage;

/// The longest log that is read, bytes: OpenVMM's limit, 64 times what the largest writers make. It bounds the time of
/// a replay.
const LOG_LENGTH_MAX: u32 = 1 << 30;

/// The greatest sequence number that headers are given one after another from: two steps of one replacement fit above.
/// Only a file that somebody has made so has it; 2^64 replacements take centuries.
const SEQUENCE_MAX: u64 = u64::MAX - 2;

/// The current header, and which slot holds it.
#[derive(Clone, Copy)]
pub(crate) struct Headers {
    pub(crate) current: Header,
    slot: usize,
}

impl Headers {
    /// Writes the first header of a new file into both slots.
    pub(crate) fn write_first(storage: &impl Storage, header: Header) -> io::Result<()> {
        let mut headers = Self { current: header, slot: 1 };
        headers.put(storage, header, 1)?;
        headers.put(storage, header, 2)
    }

    /// The place of the log.
    pub(crate) fn ring(&self) -> Ring {
        let header = &self.current;
        Ring { span: Span { offset: header.log_offset.get(), len: u64::from(header.log_length.get()) } }
    }

    /// Reads both and takes the valid one with the greater sequence number. Two valid ones with the same number must be
    /// the same (Disk2vhd writes such files): the standard says nothing of others.
    pub(crate) fn read(storage: &impl Storage) -> Result<Self, VhdxOpenError> {
        let mut valid: [Option<Header>; 2] = [None; 2];
        for (slot, offset) in HEADER_OFFSETS.into_iter().enumerate() {
            valid[slot] =
                read_valid(storage, offset).map_err(VhdxOpenError::storage("reading a header", offset))?;
        }
        let (slot, current) = match valid {
            [None, None] => {
                let problem = "neither header has a right signature and checksum";
                return Err(VhdxOpenError::corrupt(Structure::Header, HEADER_OFFSETS[0], problem));
            }
            [Some(first), None] => (0, first),
            [None, Some(second)] => (1, second),
            [Some(first), Some(second)] => match first.sequence.get().cmp(&second.sequence.get()) {
                std::cmp::Ordering::Greater => (0, first),
                std::cmp::Ordering::Less => (1, second),
                std::cmp::Ordering::Equal if first.as_bytes() == second.as_bytes() => (0, first),
                std::cmp::Ordering::Equal => {
                    let problem =
                        format!("two different headers have sequence number {}", first.sequence.get());
                    return Err(VhdxOpenError::corrupt(Structure::Header, HEADER_OFFSETS[0], problem));
                }
            },
        };
        check(&current, HEADER_OFFSETS[slot])?;
        Ok(Self { current, slot })
    }

    /// Replaces both headers by the current one as `change` makes it: the other slot first, each flushed, so that at
    /// every moment one valid header is on the storage, and a lost sector afterwards costs nothing (2.2.2.1).
    pub(crate) fn update(
        &mut self,
        storage: &impl Storage,
        change: impl FnOnce(&mut Header),
    ) -> io::Result<()> {
        self.update_but_for_a_flush(storage, change)?;
        storage.flush()
    }

    /// The same without the last flush: the header in the other slot is durable, and says the same.
    pub(crate) fn update_but_for_a_flush(
        &mut self,
        storage: &impl Storage,
        change: impl FnOnce(&mut Header),
    ) -> io::Result<()> {
        let mut sequence = self.current.sequence.get();
        if sequence > SEQUENCE_MAX {
            // The same header from 1 on, in the other slot first: until the current one is replaced, that one
            // counts, and a write that is torn there leaves the other, which says the same.
            self.replace(storage, self.current, 1)?;
            self.replace(storage, self.current, 2)?;
            sequence = 2;
        }
        let mut next = self.current;
        change(&mut next);
        self.replace(storage, next, sequence + 1)?;
        self.put(storage, next, sequence + 2)
    }

    /// The same without a flush, of a file that nothing leads to yet. Its first headers count from 1.
    pub(crate) fn update_unflushed(
        &mut self,
        storage: &impl Storage,
        change: impl FnOnce(&mut Header),
    ) -> io::Result<()> {
        let (mut next, sequence) = (self.current, self.current.sequence.get());
        change(&mut next);
        self.put(storage, next, sequence + 1)?;
        self.put(storage, next, sequence + 2)
    }

    /// Writes a header over the one that is not current, durably; from then on it is what the next one follows.
    fn replace(&mut self, storage: &impl Storage, next: Header, sequence: u64) -> io::Result<()> {
        let mut replaced = *self;
        replaced.put(storage, next, sequence)?;
        storage.flush()?;
        *self = replaced;
        Ok(())
    }

    fn put(&mut self, storage: &impl Storage, mut next: Header, sequence: u64) -> io::Result<()> {
        next.sequence = sequence.into();
        // That of the log that is written here, whatever stood there while the log was empty.
        next.log_version = 0.into();
        next.seal();
        let slot = 1 - self.slot;
        storage.write_at(HEADER_OFFSETS[slot], next.as_bytes())?;
        *self = Self { current: next, slot };
        Ok(())
    }
}

/// The header at `offset`, if it is valid.
pub(crate) fn read_valid(storage: &impl Storage, offset: u64) -> io::Result<Option<Header>> {
    let mut page = [0; PAGE];
    match storage.read_at(offset, &mut page) {
        Ok(()) => Ok(Header::read_from_bytes(&page).ok().filter(Header::is_valid)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Refuses what the standard forbids in the current header.
fn check(header: &Header, at: u64) -> Result<(), VhdxOpenError> {
    let corrupt = |problem: String| Err(VhdxOpenError::corrupt(Structure::Header, at, problem));
    let (offset, length) = (header.log_offset.get(), header.log_length.get());
    if header.version.get() != 1 {
        let problem = format!("version {} of the format", header.version.get());
        return Err(VhdxOpenError::unsupported(Structure::Header, at, problem));
    }
    if header.log_version.get() != 0 && !header.log.is_zero() {
        let problem = format!("version {} of the log, which is not empty", header.log_version.get());
        return Err(VhdxOpenError::unsupported(Structure::Header, at, problem));
    }
    if length == 0 || !u64::from(length).is_multiple_of(MIB) {
        return corrupt(format!("the log's length {length} is not a multiple of 1 MiB"));
    }
    if length > LOG_LENGTH_MAX {
        return Err(VhdxOpenError::unsupported(Structure::Header, at, format!("a log of {length} bytes")));
    }
    if offset < HEADER_SECTION
        || !offset.is_multiple_of(MIB)
        || offset.checked_add(u64::from(length)).is_none()
    {
        return corrupt(format!(
            "the log's offset {offset} is not a multiple of 1 MiB behind the header section"
        ));
    }
    Ok(())
}

//! The track file on its storage: areas, superblocks, records; written so that a power cut anywhere leaves what was
//! durable before or what was to be durable next.

use std::io;

use lunway_vhdx::Storage;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::changes::EpochId;
use crate::format::{
    AREAS, BASE_MAGIC, BaseHeader, COPY, Damage, EPOCHS_MAX, EpochHeader, PageHeader, RECORD_HEADER,
    RECORD_MAX, RecordEntry, RecordHeader, SECTOR, SLOT, Superblock, TEXT_MAX, decode_page, encode_page,
    is_region, page_length, record,
};
use crate::grain::{DISK_MAX, GRAIN, HOT_MAX, PAGE_GRAINS};
use crate::map::{Map, Page};
use crate::state::{Epoch, TrackState};

/// Bytes of a base written or read at once: a base of any disk is made in so much memory.
const CHUNK: usize = 1 << 20;

/// Content of a storage.
pub(crate) enum Loaded {
    /// Nothing.
    Empty,
    /// Something that is no track file, or was harmed.
    Damaged(Damage),
    /// A track file, and what it says.
    Whole(Box<Journal>, Box<TrackState>),
}

/// An open track file.
pub(crate) struct Journal {
    storage: Box<dyn Storage>,
    superblock: Superblock,
    /// Position of the next record in the log.
    position: u64,
    sequence: u64,
}

impl Journal {
    /// Reads what there is.
    pub(crate) fn load(storage: Box<dyn Storage>) -> io::Result<(Loaded, Option<Box<dyn Storage>>)> {
        let length = storage.len()?;
        if length == 0 {
            return Ok((Loaded::Empty, Some(storage)));
        }
        let superblock = match newest(&*storage, length)? {
            Ok(Some(superblock)) => superblock,
            Ok(None) => return Ok((Loaded::Empty, Some(storage))),
            Err(damage) => return Ok((Loaded::Damaged(damage), Some(storage))),
        };
        let mut journal = Self { storage, superblock, position: 0, sequence: 0 };
        match journal.replay()? {
            Ok(state) => Ok((Loaded::Whole(Box::new(journal), Box::new(state)), None)),
            Err(damage) => Ok((Loaded::Damaged(damage), Some(journal.storage))),
        }
    }

    /// A file that says nothing yet; the first [`rebase`](Self::rebase) makes it one. What it held before is gone.
    pub(crate) fn create(storage: Box<dyn Storage>) -> io::Result<Self> {
        storage.set_len(0)?;
        storage.flush()?;
        let superblock = Superblock::new(0, (AREAS, 0), 0, (AREAS, 0));
        Ok(Self { storage, superblock, position: 0, sequence: 0 })
    }

    fn replay(&mut self) -> io::Result<Result<TrackState, Damage>> {
        let superblock = self.superblock;
        let mut base = BaseReader::new(&*self.storage, superblock.base.get(), superblock.base_length.get());
        if base.checksum()? != superblock.base_checksum.get() {
            return Ok(Err(Damage("its base is not what was written")));
        }
        let mut state = match read_base(&mut base)? {
            Ok(state) => state,
            Err(damage) => return Ok(Err(damage)),
        };
        while let Some(entries) = self.next_record()? {
            let mut rest = &entries[..];
            while !rest.is_empty() {
                let applied =
                    RecordEntry::decode(&mut rest, state.region_grains).and_then(|e| state.apply(&e));
                if let Err(damage) = applied {
                    return Ok(Err(damage));
                }
            }
            // Nothing but a record that follows makes a file that was left in order one that was not.
            state.clean = false;
        }
        if self.something_follows()? {
            return Ok(Err(Damage("a record of its log is missing")));
        }
        Ok(Ok(state))
    }

    /// The entries of the record at the position, from whichever copy is whole.
    fn next_record(&mut self) -> io::Result<Option<Vec<u8>>> {
        let [log, length] = [self.superblock.log.get(), self.superblock.log_length.get()];
        for copy in [log, log + length] {
            if let Some((header, entries)) = self.record_at(copy, self.position)?
                && header.sequence.get() == self.sequence
            {
                self.position += ((RECORD_HEADER + entries.len()) as u64).next_multiple_of(SECTOR);
                self.sequence += 1;
                return Ok(Some(entries));
            }
        }
        Ok(None)
    }

    /// A whole record of this generation.
    fn record_at(&self, log: u64, position: u64) -> io::Result<Option<(RecordHeader, Vec<u8>)>> {
        let left = self.superblock.log_length.get().saturating_sub(position);
        if left < SECTOR {
            return Ok(None);
        }
        let mut sector = [0; SECTOR as usize];
        self.storage.read_at(log + position, &mut sector)?;
        let Ok((header, _)) = RecordHeader::read_from_prefix(&sector) else { return Ok(None) };
        let length = RECORD_HEADER + header.length.get() as usize;
        let fits = length <= RECORD_MAX && length as u64 <= left;
        if &header.magic != b"lwre" || header.generation != self.superblock.generation || !fits {
            return Ok(None);
        }
        let mut bytes = vec![0; length];
        self.storage.read_at(log + position, &mut bytes)?;
        if crc32c::crc32c(&bytes[8..]) != header.checksum.get() {
            return Ok(None);
        }
        bytes.drain(..RECORD_HEADER);
        Ok(Some((header, bytes)))
    }

    /// Returns `true` if there is a record after a missing one: a power cut leaves none, since each is durable before
    /// the next is written.
    fn something_follows(&self) -> io::Result<bool> {
        let [log, length] = [self.superblock.log.get(), self.superblock.log_length.get()];
        let mut position = self.position;
        while position + SECTOR <= length {
            for copy in [log, log + length] {
                if let Some((header, _)) = self.record_at(copy, position)?
                    && header.sequence.get() > self.sequence
                {
                    return Ok(true);
                }
            }
            position += SECTOR;
        }
        Ok(false)
    }

    /// Returns `true` if there is room for a record of so many bytes of entries.
    pub(crate) fn has_room(&self, entries: usize) -> bool {
        let needed = ((RECORD_HEADER + entries) as u64).next_multiple_of(SECTOR);
        self.position + needed <= self.superblock.log_length.get()
    }

    /// Logs entries, which have room: durable when it returns.
    pub(crate) fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        debug_assert!(self.has_room(entries.len()) && RECORD_HEADER + entries.len() <= RECORD_MAX);
        let bytes = record(self.superblock.generation.get(), self.sequence, entries);
        let at = self.superblock.log.get() + self.position;
        self.storage.write_at(at, &bytes)?;
        self.storage.write_at(at + self.superblock.log_length.get(), &bytes)?;
        self.storage.flush()?;
        self.position += bytes.len() as u64;
        self.sequence += 1;
        Ok(())
    }

    /// Makes a new area of `state`, whose open epoch has the pages of `live`, with a log of at least `log` bytes.
    pub(crate) fn rebase(
        &mut self,
        state: &TrackState,
        hot: &[u64],
        live: impl Iterator<Item = (u32, Box<Page>)>,
        log: u64,
    ) -> io::Result<()> {
        let live: Vec<(u32, Box<Page>)> = live.collect();
        let old = &self.superblock;
        let (old_start, old_end) = (old.base.get(), old.log.get() + 2 * old.log_length.get());
        let bound = base_bound(state, hot.len(), live.len());
        let log_length = log.max(RECORD_MAX as u64).next_multiple_of(SLOT);
        let in_front = AREAS + bound + 2 * log_length <= old_start;
        let start = if in_front { AREAS } else { old_end.next_multiple_of(SLOT).max(AREAS) };

        let mut writer = BaseWriter::new(&*self.storage, start);
        write_base(&mut writer, state, hot, &live)?;
        let (length, checksum) = writer.finish()?;
        let log = (start + length).next_multiple_of(SLOT);
        // Written, not only made longer: a record then needs no space from the file system, and its flush no journal.
        let end = log + 2 * log_length;
        if self.storage.len()? < end {
            self.storage.set_len(end)?;
        }
        self.storage.zero(log, 2 * log_length)?;
        self.storage.flush()?;

        let generation = old.generation.get() + 1;
        let superblock = Superblock::new(generation, (start, length), checksum, (log, log_length));
        let slot = generation % 2 * SLOT;
        self.storage.write_at(slot, superblock.as_bytes())?;
        self.storage.write_at(slot + COPY, superblock.as_bytes())?;
        self.storage.flush()?;
        (self.superblock, self.position, self.sequence) = (superblock, 0, 0);
        if in_front && self.storage.len()? > end {
            self.storage.set_len(end)?;
        }
        Ok(())
    }

    /// Makes the file say nothing, durably: a map that is no longer kept must not be found.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.storage.set_len(0)?;
        self.storage.flush()?;
        self.superblock = Superblock::new(self.superblock.generation.get(), (AREAS, 0), 0, (AREAS, 0));
        (self.position, self.sequence) = (0, 0);
        Ok(())
    }
}

/// The current superblock. `None`: there never was one.
fn newest(storage: &dyn Storage, length: u64) -> io::Result<Result<Option<Superblock>, Damage>> {
    let mut newest: Option<Superblock> = None;
    for slot in [0, SLOT] {
        let (mut whole, mut empty) = (None, 0);
        for at in [slot, slot + COPY] {
            let mut bytes = [0; SECTOR as usize];
            if at + SECTOR <= length {
                storage.read_at(at, &mut bytes)?;
            }
            let Ok(superblock) = Superblock::read_from_bytes(&bytes) else { continue };
            let parity = superblock.generation.get() % 2 * SLOT == slot;
            if superblock.is_whole() && parity {
                whole = whole.max_by_generation(superblock);
            } else if bytes.iter().all(|&byte| byte == 0) {
                empty += 1;
            }
        }
        match whole {
            Some(superblock) => newest = newest.max_by_generation(superblock),
            // A superblock is one sector: a power cut leaves the old one, or nothing where nothing was, or the new one.
            None if empty < 2 => return Ok(Err(Damage("both copies of a superblock are unreadable"))),
            None => {}
        }
    }
    if newest.is_some_and(|superblock| !superblock.fits(length)) {
        return Ok(Err(Damage("it is shorter than its superblock says")));
    }
    Ok(Ok(newest))
}

trait Newest {
    fn max_by_generation(self, other: Superblock) -> Self;
}

impl Newest for Option<Superblock> {
    fn max_by_generation(self, other: Superblock) -> Self {
        match self {
            Some(one) if one.generation.get() >= other.generation.get() => Some(one),
            _ => Some(other),
        }
    }
}

/// No less than the base's length.
fn base_bound(state: &TrackState, hot: usize, live: usize) -> u64 {
    let pages = live + state.epochs.iter().map(|epoch| epoch.map.pages.len()).sum::<usize>();
    let page = size_of::<PageHeader>() + size_of::<Page>();
    let fixed = size_of::<BaseHeader>() + 3 * TEXT_MAX + hot * 8 + size_of::<EpochHeader>() * EPOCHS_MAX;
    ((fixed + pages * page) as u64).next_multiple_of(SLOT)
}

fn write_base(
    to: &mut BaseWriter<'_>,
    state: &TrackState,
    hot: &[u64],
    live: &[(u32, Box<Page>)],
) -> io::Result<()> {
    let header = BaseHeader {
        magic: BASE_MAGIC,
        size: state.size.into(),
        low: state.low.into(),
        region_grains: (state.region_grains as u32).into(),
        clean: u32::from(state.clean).into(),
        hot: (hot.len() as u32).into(),
        epochs: (state.epochs.len() as u32).into(),
        pages: (live.len() as u32).into(),
        lasting: (state.lasting.len() as u16).into(),
        exact: (state.exact.len() as u16).into(),
        reason: (state.reason.len() as u16).into(),
        reserved: [0; 14],
    };
    to.write(header.as_bytes())?;
    to.write(&state.lasting)?;
    to.write(&state.exact)?;
    to.write(state.reason.as_bytes())?;
    for region in hot {
        to.write(&region.to_le_bytes())?;
    }
    let mut bytes = Vec::new();
    for epoch in &state.epochs {
        let header = EpochHeader {
            id: epoch.id.0,
            parent: epoch.parent.0,
            low: epoch.low.into(),
            pages: (epoch.map.pages.len() as u32).into(),
            reserved: 0.into(),
        };
        to.write(header.as_bytes())?;
        for (&number, page) in &epoch.map.pages {
            bytes.clear();
            encode_page(number, page, &mut bytes);
            to.write(&bytes)?;
        }
    }
    for (number, page) in live {
        bytes.clear();
        encode_page(*number, page, &mut bytes);
        to.write(&bytes)?;
    }
    Ok(())
}

fn read_base(from: &mut BaseReader<'_>) -> io::Result<Result<TrackState, Damage>> {
    let damage = Damage("its base has no meaning");
    let mut header = BaseHeader::new_zeroed();
    if !from.read(header.as_mut_bytes())? {
        return Ok(Err(damage));
    }
    let counts_fit = header.hot.get() as usize <= HOT_MAX && header.epochs.get() as usize <= EPOCHS_MAX;
    let lengths = [header.lasting.get(), header.exact.get(), header.reason.get()].map(usize::from);
    let region_grains = u64::from(header.region_grains.get());
    let sizes_fit = header.low.get() <= header.size.get() && header.size.get() <= DISK_MAX;
    let clean = header.clean.get();
    if header.magic != BASE_MAGIC
        || !counts_fit
        || !sizes_fit
        || !is_region(region_grains)
        || clean > 1
        || lengths.iter().any(|&length| length > TEXT_MAX)
    {
        return Ok(Err(damage));
    }
    let mut state = TrackState::new(header.size.get(), region_grains, String::new());
    (state.low, state.clean) = (header.low.get(), clean == 1);
    let mut texts = lengths.map(|length| vec![0; length]);
    for text in &mut texts {
        if !from.read(text)? {
            return Ok(Err(damage));
        }
    }
    let [lasting, exact, reason] = texts;
    (state.lasting, state.exact) = (lasting, exact);
    let Ok(reason) = String::from_utf8(reason) else { return Ok(Err(damage)) };
    state.reason = reason;
    for _ in 0..header.hot.get() {
        let mut region = [0; 8];
        if !from.read(&mut region)? || u64::from_le_bytes(region) >= DISK_MAX / GRAIN / region_grains {
            return Ok(Err(damage));
        }
        state.hot.insert(u64::from_le_bytes(region));
    }
    for _ in 0..header.epochs.get() {
        let mut header = EpochHeader::new_zeroed();
        if !from.read(header.as_mut_bytes())? {
            return Ok(Err(damage));
        }
        let map = match read_map(from, header.pages.get())? {
            Ok(map) => map,
            Err(damage) => return Ok(Err(damage)),
        };
        let (id, parent) = (EpochId(header.id), EpochId(header.parent));
        state.epochs.push(Epoch { id, parent, low: header.low.get(), map });
    }
    match read_map(from, header.pages.get())? {
        Ok(map) => state.live = map,
        Err(damage) => return Ok(Err(damage)),
    }
    Ok(if from.left() == 0 { Ok(state) } else { Err(damage) })
}

/// Pages in order. Each takes at least 12 bytes of the file, and 4 KiB of memory.
fn read_map(from: &mut BaseReader<'_>, pages: u32) -> io::Result<Result<Map, Damage>> {
    let damage = Damage("a map in its base has no meaning");
    let mut map = Map::default();
    let mut bytes = vec![0; size_of::<Page>()];
    for _ in 0..pages {
        let mut header = PageHeader::new_zeroed();
        if !from.read(header.as_mut_bytes())? {
            return Ok(Err(damage));
        }
        let (number, length) = (header.number.get(), page_length(&header));
        let in_order = map.pages.last_key_value().is_none_or(|(&last, _)| last < number);
        let on_disk = u64::from(number) < DISK_MAX / GRAIN / PAGE_GRAINS;
        if !in_order || !on_disk || length > bytes.len() || !from.read(&mut bytes[..length])? {
            return Ok(Err(damage));
        }
        match decode_page(&header, &bytes[..length]) {
            Ok(page) => map.pages.insert(number, page),
            Err(damage) => return Ok(Err(damage)),
        };
    }
    Ok(Ok(map))
}

/// Writes a base in chunks, and its checksum along.
struct BaseWriter<'a> {
    storage: &'a dyn Storage,
    at: u64,
    length: u64,
    checksum: u32,
    chunk: Vec<u8>,
}

impl<'a> BaseWriter<'a> {
    fn new(storage: &'a dyn Storage, at: u64) -> Self {
        Self { storage, at, length: 0, checksum: 0, chunk: Vec::new() }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.chunk.extend(bytes);
        if self.chunk.len() >= CHUNK { self.put() } else { Ok(()) }
    }

    fn put(&mut self) -> io::Result<()> {
        self.storage.write_at(self.at + self.length, &self.chunk)?;
        self.checksum = crc32c::crc32c_append(self.checksum, &self.chunk);
        self.length += self.chunk.len() as u64;
        self.chunk.clear();
        Ok(())
    }

    /// Length and checksum.
    fn finish(mut self) -> io::Result<(u64, u32)> {
        self.put()?;
        Ok((self.length, self.checksum))
    }
}

/// Reads a base in chunks.
struct BaseReader<'a> {
    storage: &'a dyn Storage,
    start: u64,
    length: u64,
    at: u64,
    chunk: Vec<u8>,
    /// Bytes of the chunk that were taken.
    taken: usize,
}

impl<'a> BaseReader<'a> {
    fn new(storage: &'a dyn Storage, start: u64, length: u64) -> Self {
        Self { storage, start, length, at: 0, chunk: Vec::new(), taken: 0 }
    }

    fn fetch(&mut self) -> io::Result<()> {
        self.chunk.resize((self.length - self.at).min(CHUNK as u64) as usize, 0);
        self.storage.read_at(self.start + self.at, &mut self.chunk)?;
        self.at += self.chunk.len() as u64;
        self.taken = 0;
        Ok(())
    }

    /// Of all of it, which is read from the beginning afterwards.
    fn checksum(&mut self) -> io::Result<u32> {
        let mut checksum = 0;
        while self.at < self.length {
            self.fetch()?;
            checksum = crc32c::crc32c_append(checksum, &self.chunk);
        }
        (self.at, self.taken) = (0, 0);
        self.chunk.clear();
        Ok(checksum)
    }

    fn left(&self) -> u64 {
        self.length - self.at + (self.chunk.len() - self.taken) as u64
    }

    /// Fills `to`; `false`: it ends before.
    fn read(&mut self, mut to: &mut [u8]) -> io::Result<bool> {
        while !to.is_empty() {
            if self.taken == self.chunk.len() {
                if self.at == self.length {
                    return Ok(false);
                }
                self.fetch()?;
            }
            let now = to.len().min(self.chunk.len() - self.taken);
            let (first, rest) = to.split_at_mut(now);
            first.copy_from_slice(&self.chunk[self.taken..self.taken + now]);
            self.taken += now;
            to = rest;
        }
        Ok(true)
    }
}

//! Writing a new VHD.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lunway_vhdx::format::Guid;
use lunway_vhdx::{Measured, Storage};
use zerocopy::IntoBytes;

use super::format::{
    BLOCK_SIZE, CREATOR, CREATOR_HOST, CREATOR_VERSION, DISK_SIZE_MAX, DiskType, EPOCH, FEATURES,
    FOOTER_CHECKSUM, FOOTER_COOKIE, Footer, Geometry, HEADER_CHECKSUM, HEADER_COOKIE, Header, LocatorEntry,
    NOTHING, SECTOR, UNUSED, VERSION, bitmap_len, checksum,
};
use super::open::{Entries, Vhd};
use crate::error::ImageOpenError;

/// Blocks that Windows makes (New-VHD `-BlockSizeBytes`).
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = (512 << 10)..=(256 << 20);
/// Offset of the dynamic disk header in a new file: behind the copy of the footer.
const HEADER_OFFSET: u64 = SECTOR;
/// Offset of the table in a new file: behind the header.
const TABLE_OFFSET: u64 = HEADER_OFFSET + size_of::<Header>() as u64;

/// Layout of a new file.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes of the disk.
    pub size: u64,
    /// All bytes in order; otherwise dynamic.
    pub fixed: bool,
    /// Bytes of a block of a dynamic disk; `None`: 2 MiB.
    pub block_size: Option<u64>,
    /// Identity of the disk.
    pub id: Guid,
    /// Seconds since 1970.
    pub now: u64,
}

/// Reason why a VHD cannot be made so.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A size that the format does not have.
    #[error("a VHD of {0} bytes is not possible: whole sectors of 512 bytes, and at most 2040 GiB, are")]
    Size(u64),
    /// A block that the format does not have.
    #[error("a VHD with blocks of {0} bytes is not possible: a power of two from 512K to 256M is")]
    BlockSize(u64),
    /// The file could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A fixed or dynamic VHD that is being filled.
///
/// **For new files**: it writes no log, so a power cut leaves what was there at the last [`flush`](Self::flush) or
/// less. After a flush the file is whole, and everything written before is in it. What another program cuts off it
/// meanwhile fails writes there and the flush ([`Measured`]). Calls block, and come from any thread.
pub struct Writer<S> {
    storage: Measured<S>,
    footer: Footer,
    blocks: Option<Blocks>,
}

struct Blocks {
    table_offset: u64,
    block_size: u64,
    bitmap_len: u64,
    state: Mutex<State>,
}

struct State {
    /// First sectors of the blocks; durable after a flush.
    table: Vec<u32>,
    /// Offset of the next block, and of the footer until then.
    end: u64,
}

impl Writer<File> {
    /// Opens and locks a file, and goes on with it as [`open`](Self::open) does.
    ///
    /// # Errors
    ///
    /// [`ImageOpenError`]
    pub fn open_file(path: &Path) -> Result<Self, ImageOpenError> {
        Self::open(lunway_vhdx::open_file(path, true)?)
    }
}

impl<S: Storage> Writer<S> {
    /// Makes a disk of zeroes in an empty file.
    ///
    /// # Errors
    ///
    /// [`WriteError`]
    pub fn create(storage: S, layout: &Layout) -> Result<Self, WriteError> {
        let Layout { size, fixed, block_size, id, now } = *layout;
        if size == 0 || !size.is_multiple_of(SECTOR) || size > DISK_SIZE_MAX {
            return Err(WriteError::Size(size));
        }
        let block_size = block_size.unwrap_or(BLOCK_SIZE.into());
        if !block_size.is_power_of_two() || !BLOCK_SIZES.contains(&block_size) {
            return Err(WriteError::BlockSize(block_size));
        }
        let mut footer = Footer {
            cookie: FOOTER_COOKIE,
            features: FEATURES.into(),
            version: VERSION.into(),
            data_offset: if fixed { NOTHING } else { HEADER_OFFSET }.into(),
            time_stamp: (now.saturating_sub(EPOCH) as u32).into(),
            creator: CREATOR,
            creator_version: CREATOR_VERSION.into(),
            creator_host: CREATOR_HOST,
            original_size: size.into(),
            current_size: size.into(),
            geometry: Geometry::of(size),
            disk_type: if fixed { DiskType::FIXED } else { DiskType::DYNAMIC },
            checksum: 0.into(),
            unique_id: id.to_digits().to_be_bytes(),
            saved_state: 0,
            reserved: [0; 427],
        };
        footer.checksum = checksum(footer.as_bytes(), FOOTER_CHECKSUM).into();
        let storage = Measured::new(storage)?;
        if fixed {
            storage.set_len(size)?;
            let writer = Self { storage, footer, blocks: None };
            writer.flush()?;
            return Ok(writer);
        }
        let count = size.div_ceil(block_size);
        let mut header = Header {
            cookie: HEADER_COOKIE,
            data_offset: NOTHING.into(),
            table_offset: TABLE_OFFSET.into(),
            version: VERSION.into(),
            // At most 2040 GiB in blocks of 512 KiB, and 256 MiB: both fit.
            max_table_entries: (count as u32).into(),
            block_size: (block_size as u32).into(),
            checksum: 0.into(),
            parent_id: [0; 16],
            parent_time_stamp: 0.into(),
            reserved: 0.into(),
            parent_name: [0; 512],
            locators: [LocatorEntry {
                platform: [0; 4],
                data_space: 0.into(),
                data_length: 0.into(),
                reserved: 0.into(),
                data_offset: 0.into(),
            }; 8],
            reserved2: [0; 256],
        };
        header.checksum = checksum(header.as_bytes(), HEADER_CHECKSUM).into();
        let table = vec![UNUSED; count as usize];
        let end = (TABLE_OFFSET + count * 4).next_multiple_of(SECTOR);
        let writer = Self::with_blocks(storage, footer, TABLE_OFFSET, block_size as u32, table, end);
        writer.storage.write_at(HEADER_OFFSET, header.as_bytes())?;
        // The rest of the table's last sector is unused too.
        writer.storage.write_at(TABLE_OFFSET, &vec![0xFF; (end - TABLE_OFFSET) as usize])?;
        writer.storage.write_at(0, writer.footer.as_bytes())?;
        writer.flush()?;
        Ok(writer)
    }

    /// Goes on with a file of [`create`](Self::create), as it was at its last flush.
    ///
    /// # Errors
    ///
    /// [`ImageOpenError`]: it is damaged, or has a parent.
    pub fn open(storage: S) -> Result<Self, ImageOpenError> {
        let vhd = Vhd::open(storage)?;
        if vhd.parent().is_some() {
            return Err(ImageOpenError::Unsupported("a differencing VHD is not written here".to_owned()));
        }
        let entries = vhd.entries().map_err(ImageOpenError::read("reading the block allocation table"))?;
        let Vhd { storage, footer, .. } = vhd;
        let storage = Measured::new(storage).map_err(ImageOpenError::read("asking for the file's length"))?;
        let Some(Entries { offset, block_size, list }) = entries else {
            return Ok(Self { storage, footer, blocks: None });
        };
        let whole = bitmap_len(block_size) + u64::from(block_size);
        let ends = list.iter().filter(|entry| **entry != UNUSED);
        let ends = ends.map(|entry| u64::from(*entry) * SECTOR + whole);
        let tables = offset + (list.len() as u64 * 4).next_multiple_of(SECTOR);
        let end = ends.max().unwrap_or(0).max(tables);
        Ok(Self::with_blocks(storage, footer, offset, block_size, list, end))
    }

    fn with_blocks(
        storage: Measured<S>,
        footer: Footer,
        table_offset: u64,
        block_size: u32,
        table: Vec<u32>,
        end: u64,
    ) -> Self {
        let (bitmap_len, state) = (bitmap_len(block_size), Mutex::new(State { table, end }));
        let blocks = Blocks { table_offset, block_size: block_size.into(), bitmap_len, state };
        Self { storage, footer, blocks: Some(blocks) }
    }

    /// Bytes of a block; `None`: the disk is fixed.
    pub fn block_size(&self) -> Option<u64> {
        self.blocks.as_ref().map(|blocks| blocks.block_size)
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.footer.current_size.get()
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    ///
    /// Of the storage.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.each_piece(offset, buf.len(), |at, range| match at {
            Some(at) => self.storage.read_at(at, &mut buf[range]),
            None => {
                buf[range].fill(0);
                Ok(())
            }
        })
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    ///
    /// Of the storage. The file is as it was, or with a part of the data.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(blocks) = &self.blocks {
            let last = (offset + data.len().max(1) as u64 - 1) / blocks.block_size;
            for block in offset / blocks.block_size..=last {
                self.allocate(blocks, block)?;
            }
        }
        self.each_piece(offset, data.len(), |at, range| match at {
            Some(at) => self.storage.write_at(at, &data[range]),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    /// Makes a range read as zeroes. What has no block stays without.
    ///
    /// # Errors
    ///
    /// Of the storage.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            // In pieces whose length every machine can count.
            let now = (len - done).min(1 << 30);
            self.each_piece(offset + done, now as usize, |at, range| match at {
                Some(at) => self.storage.zero(at, range.len() as u64),
                None => Ok(()),
            })?;
            done += now;
        }
        Ok(())
    }

    /// Makes everything durable, and the file whole.
    ///
    /// # Errors
    ///
    /// Of the storage.
    pub fn flush(&self) -> io::Result<()> {
        let Some(blocks) = &self.blocks else {
            self.storage.write_at(self.size(), self.footer.as_bytes())?;
            return self.storage.flush();
        };
        let state = lock(&blocks.state);
        // No entry leads to a block that is not there.
        self.storage.flush()?;
        let table: Vec<u8> = state.table.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        self.storage.write_at(blocks.table_offset, &table)?;
        self.storage.write_at(state.end, self.footer.as_bytes())?;
        self.storage.flush()
    }

    /// Gives a block its place, with all of its sectors marked and zero.
    fn allocate(&self, blocks: &Blocks, block: u64) -> io::Result<()> {
        let mut state = lock(&blocks.state);
        let state = &mut *state;
        let entry = state.table.get_mut(block as usize).ok_or(io::ErrorKind::InvalidInput)?;
        if *entry != UNUSED {
            return Ok(());
        }
        // 2040 GiB with their bitmaps end below what 32 bits of sectors address.
        let place = u32::try_from(state.end / SECTOR).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let end = state.end + blocks.bitmap_len + blocks.block_size;
        // What is left of an earlier attempt, and the footer, must not show as data.
        self.storage.set_len(state.end)?;
        self.storage.set_len(end)?;
        self.storage.write_at(state.end, &vec![0xFF; (blocks.block_size / SECTOR / 8) as usize])?;
        (*entry, state.end) = (place, end);
        Ok(())
    }

    /// Calls with each piece of a range: where in the file it is, `None` without a block, and which bytes of the range.
    fn each_piece(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(Option<u64>, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Some(blocks) = &self.blocks else { return each(Some(offset), 0..len) };
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (block, within) = (at / blocks.block_size, at % blocks.block_size);
            let now = ((blocks.block_size - within) as usize).min(len - done);
            let entry = lock(&blocks.state).table.get(block as usize).copied().unwrap_or(UNUSED);
            let place = (entry != UNUSED).then(|| u64::from(entry) * SECTOR + blocks.bitmap_len + within);
            each(place, done..done + now)?;
            done += now;
        }
        Ok(())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Opening a VHD, and finding what lies where.

use std::io;

use lunway_vhdx::format::Guid;
use lunway_vhdx::{Locator, Storage};
use zerocopy::{FromBytes, IntoBytes};

use super::format::{
    DiskType, FOOTER_CHECKSUM, FOOTER_COOKIE, Footer, HEADER_CHECKSUM, HEADER_COOKIE, Header, LocatorEntry,
    PLATFORM_ABSOLUTE, PLATFORM_RELATIVE, SECTOR, UNUSED, VERSION, bitmap_len, checksum,
};
use crate::error::ImageOpenError;
use crate::layer_info::{ImageKind, LayerInfo, LayerSource};
use crate::pages::Pages;

const FORMAT: &str = "VHD";
/// Blocks that are read: Windows makes them of 512 KiB to 256 MiB (New-VHD). Half of the least bounds what the check of
/// a table takes, 32 MiB for the largest file that its entries can address.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = (256 << 10)..=(256 << 20);
/// A path of a parent locator, bytes: longer than any that Windows knows (32,767 characters).
const PATH_MAX: u32 = 64 << 10;

/// A VHD file.
///
/// - **Fixed**: the bytes of the file but for its footer.
/// - **Dynamic**: a sector that its block's bitmap does not mark reads as zeroes, as the specification says.
/// - **Differencing**: the same with the parent in the place of zeroes. The parent is known by its identity; that it
///   was not written to since is not known: the format says it by time stamps alone, which a copy of the file changes.
pub struct Vhd<S> {
    pub(super) storage: S,
    pub(super) footer: Footer,
    table: Option<Table>,
    pages: Pages,
}

/// Block allocation table: the location of the blocks.
struct Table {
    offset: u64,
    block_size: u32,
    bitmap_len: u64,
    parent: Option<(Guid, Locator)>,
}

impl<S: Storage> Vhd<S> {
    /// Opens a file. Everything is checked before anything is believed.
    ///
    /// # Errors
    ///
    /// [`ImageOpenError`], which says what is wrong.
    pub fn open(storage: S) -> Result<Self, ImageOpenError> {
        let len = storage.len().map_err(ImageOpenError::read("asking for the file's length"))?;
        let (footer, behind) = find_footer(&storage, len)?;
        if footer.version.get() >> 16 != VERSION >> 16 {
            let version = footer.version.get();
            return Err(ImageOpenError::Unsupported(format!(
                "VHD version {version:#010x} is not known here"
            )));
        }
        let mut vhd = Self { storage, footer, table: None, pages: Pages::default() };
        let size = vhd.footer.current_size.get();
        match vhd.footer.disk_type {
            DiskType::FIXED if size > behind => {
                let problem = format!("a disk of {size} bytes does not fit before it: the file was cut");
                return Err(ImageOpenError::corrupt("footer", problem));
            }
            DiskType::FIXED => {}
            DiskType::DYNAMIC | DiskType::DIFFERENCING => vhd.table = Some(vhd.open_table(len)?),
            DiskType(other) => {
                return Err(ImageOpenError::Unsupported(format!("a VHD of type {other} is not known here")));
            }
        }
        Ok(vhd)
    }

    fn open_table(&self, len: u64) -> Result<Table, ImageOpenError> {
        let corrupt = |problem: String| ImageOpenError::corrupt("dynamic disk header", problem);
        let at = self.footer.data_offset.get();
        if at < SECTOR || at.checked_add(size_of::<Header>() as u64).is_none_or(|end| end > len) {
            return Err(corrupt(format!("at byte {at} it is outside of the file")));
        }
        let mut bytes = [0; size_of::<Header>()];
        self.storage
            .read_at(at, &mut bytes)
            .map_err(ImageOpenError::read("reading the dynamic disk header"))?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| corrupt("it is too short".to_owned()))?;
        if header.cookie != HEADER_COOKIE || header.checksum.get() != checksum(&bytes, HEADER_CHECKSUM) {
            return Err(corrupt(format!("at byte {at} is none, or its checksum is wrong")));
        }
        let block_size = header.block_size.get();
        if !block_size.is_power_of_two() || !BLOCK_SIZES.contains(&block_size) {
            let why = format!("a VHD with blocks of {block_size} bytes is not read here: 256K to 256M are");
            return Err(ImageOpenError::Unsupported(why));
        }
        let blocks = self.footer.current_size.get().div_ceil(block_size.into());
        if blocks > header.max_table_entries.get().into() {
            let entries = header.max_table_entries;
            return Err(corrupt(format!("a table of {entries} entries for {blocks} blocks")));
        }
        let offset = header.table_offset.get();
        let header_end = at + size_of::<Header>() as u64;
        let end = offset.checked_add(blocks * 4).filter(|end| *end <= len);
        match end {
            Some(end)
                if offset >= SECTOR
                    && offset.is_multiple_of(SECTOR)
                    && (offset >= header_end || end <= at) => {}
            _ => {
                let problem = format!("at byte {offset} it is outside of the file, or over a header");
                return Err(ImageOpenError::corrupt("block allocation table", problem));
            }
        }
        let mut table = Table { offset, block_size, bitmap_len: bitmap_len(block_size), parent: None };
        self.check_blocks(&table, blocks, len, &[(at, header_end), (offset, offset + blocks * 4)])?;
        if self.footer.disk_type == DiskType::DIFFERENCING {
            table.parent = Some((guid(header.parent_id), self.locator(&header)?));
        }
        Ok(table)
    }

    /// Refuses blocks that leave the file, or lie over each other or over a table.
    fn check_blocks(
        &self,
        table: &Table,
        blocks: u64,
        len: u64,
        taken: &[(u64, u64)],
    ) -> Result<(), ImageOpenError> {
        let corrupt = |problem: String| ImageOpenError::corrupt("block allocation table", problem);
        let whole = table.bitmap_len + u64::from(table.block_size);
        // Not more than the file has room for: two of them would share a place.
        let room = (len / whole) as usize;
        let mut starts: Vec<u32> = Vec::new();
        for block in 0..blocks {
            let entry = self
                .entry(table, block)
                .map_err(ImageOpenError::read("reading the block allocation table"))?;
            if entry == UNUSED {
                continue;
            }
            let (start, end) = (u64::from(entry) * SECTOR, u64::from(entry) * SECTOR + whole);
            if start < SECTOR || end > len {
                return Err(corrupt(format!("block {block} at byte {start} is not in the file: it was cut")));
            }
            if taken.iter().any(|(from, to)| start < *to && end > *from) || starts.len() >= room {
                return Err(corrupt(format!("block {block} at byte {start} lies over something else")));
            }
            starts.push(entry);
        }
        starts.sort_unstable();
        match starts.windows(2).find(|pair| u64::from(pair[1] - pair[0]) * SECTOR < whole) {
            Some(pair) => {
                let at = u64::from(pair[1]) * SECTOR;
                Err(corrupt(format!("two blocks lie over each other at byte {at}")))
            }
            None => Ok(()),
        }
    }

    /// The paths of the parent, in the form in which VHDX has them: they are looked for by the same rules.
    fn locator(&self, header: &Header) -> Result<Locator, ImageOpenError> {
        let text = |platform: [u8; 4]| -> Option<String> {
            let entry = header.locators.iter().find(|entry| entry.platform == platform)?;
            let LocatorEntry { data_length, data_offset, .. } = entry;
            let len = data_length.get();
            if len > PATH_MAX || len % 2 != 0 {
                return None;
            }
            let mut bytes = vec![0; len as usize];
            self.storage.read_at(data_offset.get(), &mut bytes).ok()?;
            utf16(bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)))
        };
        let name = utf16(header.parent_name.as_chunks::<2>().0.iter().map(|unit| u16::from_be_bytes(*unit)));
        let absolute = text(PLATFORM_ABSOLUTE);
        match text(PLATFORM_RELATIVE).or(name) {
            Some(relative) => Ok(Locator::new(Guid::ZERO, &relative, absolute.as_deref())),
            None => Err(ImageOpenError::corrupt("dynamic disk header", "it names no parent")),
        }
    }

    /// The parent's identity and where it may be, of a differencing disk.
    pub(crate) fn parent(&self) -> Option<(Guid, &Locator)> {
        self.table.as_ref()?.parent.as_ref().map(|(id, locator)| (*id, locator))
    }

    pub(crate) fn storage(&self) -> &S {
        &self.storage
    }

    pub(crate) fn info(&self) -> LayerInfo {
        LayerInfo {
            kind: match self.footer.disk_type {
                DiskType::DYNAMIC => ImageKind::Dynamic,
                DiskType::DIFFERENCING => ImageKind::Differencing,
                _ => ImageKind::Fixed,
            },
            size: self.footer.current_size.get(),
            block: self.table.as_ref().map_or(0, |table| table.block_size.into()),
            id: Some(guid(self.footer.unique_id)),
        }
    }

    /// See [`Layer::locate`](crate::layer::Layer::locate).
    pub(crate) fn locate(&self, offset: u64, len: u64) -> io::Result<(u64, LayerSource)> {
        let Some(table) = &self.table else { return Ok((len, LayerSource::File(offset))) };
        let block_size = u64::from(table.block_size);
        let (block, within) = (offset / block_size, offset % block_size);
        let entry = self.entry(table, block)?;
        if entry == UNUSED {
            let mut found = block_size - within;
            while found < len && self.entry(table, (offset + found) / block_size)? == UNUSED {
                found += block_size;
            }
            return Ok((found.min(len), LayerSource::Absent));
        }
        let start = u64::from(entry) * SECTOR;
        let len = len.min(block_size - within);
        let first = within / SECTOR;
        let here = self.is_marked(start, first)?;
        let mut end = first + 1;
        while end * SECTOR < within + len && self.is_marked(start, end)? == here {
            end += 1;
        }
        let found = (end * SECTOR - within).min(len);
        let source =
            if here { LayerSource::File(start + table.bitmap_len + within) } else { LayerSource::Absent };
        Ok((found, source))
    }

    /// An entry of the table: the block's first sector.
    fn entry(&self, table: &Table, block: u64) -> io::Result<u32> {
        self.pages.be32(&self.storage, table.offset + block * 4)
    }

    /// Tells whether a block's bitmap marks a sector; the first one is the highest bit.
    fn is_marked(&self, bitmap: u64, sector: u64) -> io::Result<bool> {
        let mut byte = [0];
        self.pages.read(&self.storage, bitmap + sector / 8, &mut byte)?;
        Ok(byte[0] & (0x80 >> (sector % 8)) != 0)
    }

    /// The whole table; `None` for a fixed disk.
    pub(super) fn entries(&self) -> io::Result<Option<Entries>> {
        let Some(table) = &self.table else { return Ok(None) };
        let blocks = self.footer.current_size.get().div_ceil(table.block_size.into());
        let list = (0..blocks).map(|block| self.entry(table, block)).collect::<io::Result<_>>()?;
        Ok(Some(Entries { offset: table.offset, block_size: table.block_size, list }))
    }
}

/// A block allocation table.
pub(super) struct Entries {
    /// Offset of the table.
    pub(super) offset: u64,
    /// Bytes of a block.
    pub(super) block_size: u32,
    /// The first sector of each block.
    pub(super) list: Vec<u32>,
}

/// The footer, and how many bytes stand before the one at the end.
fn find_footer(storage: &impl Storage, len: u64) -> Result<(Footer, u64), ImageOpenError> {
    let footer_at = |at: u64, len: usize| -> Result<Option<Footer>, ImageOpenError> {
        let mut bytes = [0; size_of::<Footer>()];
        storage.read_at(at, &mut bytes[..len]).map_err(ImageOpenError::read("reading the footer"))?;
        Ok(bytes.starts_with(&FOOTER_COOKIE).then(|| Footer::read_from_bytes(&bytes).ok()).flatten())
    };
    let none =
        || ImageOpenError::NotThis { format: FORMAT, why: "it does not end with the footer \"conectix\"" };
    let sound = |footer: &Footer| footer.checksum.get() == checksum(footer.as_bytes(), FOOTER_CHECKSUM);
    let full = size_of::<Footer>();
    // Images of Virtual PC before 2004 have one byte less.
    let mut seen = false;
    for footer_len in [full, full - 1] {
        let Some(behind) = len.checked_sub(footer_len as u64) else { continue };
        if let Some(footer) = footer_at(behind, footer_len)? {
            if sound(&footer) {
                return Ok((footer, behind));
            }
            seen = true;
        }
    }
    // Where the end was lost, the copy at the beginning counts (Hard Disk Footer Format).
    if len >= full as u64
        && let Some(footer) = footer_at(0, full)?
    {
        if sound(&footer) && footer.disk_type != DiskType::FIXED {
            return Ok((footer, len));
        }
        seen = true;
    }
    Err(if seen {
        ImageOpenError::corrupt("footer", "its checksum is wrong, and there is no sound copy")
    } else {
        none()
    })
}

/// A GUID as the format has it: in the order in which it is written.
fn guid(bytes: [u8; 16]) -> Guid {
    Guid::from_digits(u128::from_be_bytes(bytes))
}

/// Text up to the first NUL; `None`: it is empty or not UTF-16.
fn utf16(units: impl Iterator<Item = u16>) -> Option<String> {
    let text: String =
        char::decode_utf16(units.take_while(|unit| *unit != 0)).collect::<Result<_, _>>().ok()?;
    (!text.is_empty()).then_some(text)
}

//! The metadata region: what kind of disk a file holds.

use std::collections::HashSet;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Structure, VhdxOpenError};
use crate::format::{
    BLOCK_SIZE_RANGE, DISK_SIZE_MAX, FileParameters, Guid, MetadataEntry, MetadataTableHeader, TABLE_LEN,
    item,
};
use crate::locator::Locator;
use crate::region::Span;
use crate::storage::Storage;

/// Kind of a virtual disk file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Blocks come when written.
    Dynamic,
    /// All blocks are there, and stay.
    Fixed,
    /// Differencing disk: what is not in the file is in the parent.
    Differencing,
}

/// The known metadata items of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Dynamic, fixed, differencing.
    pub kind: DiskKind,
    /// Bytes of the virtual disk.
    pub disk_size: u64,
    /// Bytes of a payload block: a power of two.
    pub block_size: u32,
    /// 512 or 4096.
    pub logical_sector: u32,
    /// 512 or 4096.
    pub physical_sector: u32,
    /// Identity of the disk (page 83), the same in a whole chain.
    pub disk_id: Guid,
    /// Parent locator of a differencing disk.
    pub locator: Option<Locator>,
}

/// An item as it lies in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Identifier of the item.
    pub id: Guid,
    /// [`MetadataEntry::USER`] and the like.
    pub flags: u32,
    /// Its bytes.
    pub data: Vec<u8>,
}

impl Item {
    /// Returns `true` if a user's program has made it, and not a writer of virtual disks.
    pub fn is_users(&self) -> bool {
        self.flags & MetadataEntry::USER != 0
    }
}

impl Parameters {
    /// Reads the table and the known items. Memory: the table, and the items that are known, each of which the standard
    /// limits to 1 MiB.
    pub(crate) fn read(storage: &impl Storage, region: Span) -> Result<Self, VhdxOpenError> {
        let corrupt = |problem: String| VhdxOpenError::corrupt(Structure::Metadata, region.offset, problem);
        let entries = read_table(storage, region)?;
        let get = |id: Guid, length: Option<usize>| -> Result<Option<Vec<u8>>, VhdxOpenError> {
            let Some(entry) =
                entries.iter().find(|entry| entry.item == id && entry.flags.get() & MetadataEntry::USER == 0)
            else {
                return Ok(None);
            };
            let found = entry.length.get() as usize;
            if length.is_some_and(|length| length != found) {
                return Err(corrupt(format!(
                    "item {id} has {found} bytes, {} are expected",
                    length.unwrap_or(0)
                )));
            }
            let at = region.offset + u64::from(entry.offset.get());
            let mut data = vec![0; found];
            storage.read_at(at, &mut data).map_err(VhdxOpenError::storage("reading a metadata item", at))?;
            Ok(Some(data))
        };
        let need = |id: Guid, name: &str, length: usize| -> Result<Vec<u8>, VhdxOpenError> {
            get(id, Some(length))?.ok_or_else(|| corrupt(format!("the {name} is missing (item {id})")))
        };
        let number = |bytes: Vec<u8>| U32::read_from_bytes(&bytes).map_or(0, U32::get);

        if entries
            .iter()
            .any(|entry| entry.item == item::INCOMPLETE && entry.flags.get() & MetadataEntry::USER == 0)
        {
            return Err(VhdxOpenError::Incomplete);
        }
        let file = need(item::FILE_PARAMETERS, "item with the block size", 8)?;
        let file = FileParameters::read_from_bytes(&file).map_err(|_| corrupt("file parameters".into()))?;
        let size = need(item::VIRTUAL_DISK_SIZE, "size of the disk", 8)?;
        let disk_size = U64::read_from_bytes(&size).map_or(0, U64::get);
        let logical_sector = number(need(item::LOGICAL_SECTOR_SIZE, "logical sector size", 4)?);
        let physical_sector = number(need(item::PHYSICAL_SECTOR_SIZE, "physical sector size", 4)?);
        let id = need(item::VIRTUAL_DISK_ID, "identity of the disk", 16)?;
        let disk_id = Guid::read_from_bytes(&id).unwrap_or_default();

        let has_parent = file.flags.get() & FileParameters::HAS_PARENT != 0;
        let kind = match file.flags.get() & FileParameters::LEAVE_BLOCKS_ALLOCATED {
            _ if has_parent => DiskKind::Differencing,
            0 => DiskKind::Dynamic,
            _ => DiskKind::Fixed,
        };
        let locator = match has_parent {
            true => {
                let missing = || corrupt("a differencing disk without a parent locator".into());
                Some(Locator::parse(&get(item::PARENT_LOCATOR, None)?.ok_or_else(missing)?, region.offset)?)
            }
            false => None,
        };
        let parameters = Self {
            kind,
            disk_size,
            block_size: file.block_size.get(),
            logical_sector,
            physical_sector,
            disk_id,
            locator,
        };
        parameters.check().map_err(corrupt)?;
        Ok(parameters)
    }

    /// Says what the standard forbids.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !BLOCK_SIZE_RANGE.contains(&self.block_size) || !self.block_size.is_power_of_two() {
            return Err(format!(
                "block size {}: a power of two from 1 MiB to 256 MiB is expected",
                self.block_size
            ));
        }
        for (name, size) in [("logical", self.logical_sector), ("physical", self.physical_sector)] {
            if !matches!(size, 512 | 4096) {
                return Err(format!("{name} sector size {size}: 512 or 4096 is expected"));
            }
        }
        if let Some(locator) = &self.locator {
            locator.check()?;
        }
        if self.disk_size == 0 || self.disk_size > DISK_SIZE_MAX {
            return Err(format!(
                "a disk of {} bytes: more than 0 and at most 64 TiB are expected",
                self.disk_size
            ));
        }
        if !self.disk_size.is_multiple_of(u64::from(self.logical_sector)) {
            return Err(format!(
                "a disk of {} bytes is not whole sectors of {}",
                self.disk_size, self.logical_sector
            ));
        }
        Ok(())
    }

    /// The items that say this, in the order in which Windows writes them.
    pub(crate) fn items(&self) -> Vec<Item> {
        const SYSTEM: u32 = MetadataEntry::REQUIRED;
        const DISK: u32 = MetadataEntry::REQUIRED | MetadataEntry::VIRTUAL_DISK;
        let flags = match self.kind {
            DiskKind::Dynamic => 0,
            DiskKind::Fixed => FileParameters::LEAVE_BLOCKS_ALLOCATED,
            DiskKind::Differencing => FileParameters::HAS_PARENT,
        };
        let file = FileParameters { block_size: self.block_size.into(), flags: flags.into() };
        let item = |id, flags, data: &[u8]| Item { id, flags, data: data.to_vec() };
        let mut items = vec![
            item(item::FILE_PARAMETERS, SYSTEM, file.as_bytes()),
            item(item::VIRTUAL_DISK_SIZE, DISK, &self.disk_size.to_le_bytes()),
            item(item::LOGICAL_SECTOR_SIZE, DISK, &self.logical_sector.to_le_bytes()),
            item(item::PHYSICAL_SECTOR_SIZE, DISK, &self.physical_sector.to_le_bytes()),
            item(item::VIRTUAL_DISK_ID, DISK, self.disk_id.as_bytes()),
        ];
        if let Some(locator) = &self.locator {
            items.push(item(item::PARENT_LOCATOR, SYSTEM, &locator.build()));
        }
        items
    }
}

/// Lays items out as the first bytes of a metadata region: the table, then the items one after another.
pub(crate) fn build(items: &[Item]) -> Vec<u8> {
    let mut table = vec![0; TABLE_LEN];
    let header = MetadataTableHeader {
        signature: MetadataTableHeader::SIGNATURE,
        reserved: 0.into(),
        entry_count: (items.len() as u16).into(),
        reserved2: [0; 20],
    };
    table[..32].copy_from_slice(header.as_bytes());
    for (slot, item) in items.iter().enumerate() {
        let offset = if item.data.is_empty() { 0 } else { table.len() as u32 };
        let entry = MetadataEntry {
            item: item.id,
            offset: offset.into(),
            length: (item.data.len() as u32).into(),
            flags: item.flags.into(),
            reserved: 0.into(),
        };
        table[32 * (slot + 1)..][..32].copy_from_slice(entry.as_bytes());
        table.extend_from_slice(&item.data);
    }
    table
}

/// Reads and checks the table; unknown items are fine unless they are required.
fn read_table(storage: &impl Storage, region: Span) -> Result<Vec<MetadataEntry>, VhdxOpenError> {
    let corrupt = |problem: String| VhdxOpenError::corrupt(Structure::Metadata, region.offset, problem);
    let mut table = vec![0; TABLE_LEN];
    storage
        .read_at(region.offset, &mut table)
        .map_err(VhdxOpenError::storage("reading the metadata table", region.offset))?;
    let (header, rest) = MetadataTableHeader::read_from_prefix(table.as_slice())
        .map_err(|_| corrupt("it is too short".into()))?;
    if header.signature != MetadataTableHeader::SIGNATURE {
        return Err(corrupt("it does not begin with \"metadata\"".into()));
    }
    let count = header.entry_count.get();
    if count > MetadataTableHeader::ENTRIES_MAX {
        return Err(corrupt(format!("{count} items, {} are the most", MetadataTableHeader::ENTRIES_MAX)));
    }
    let (mut entries, mut seen, mut spans, mut users) = (Vec::new(), HashSet::new(), Vec::new(), 0);
    for entry in rest.chunks_exact(size_of::<MetadataEntry>()).take(usize::from(count)) {
        let entry = MetadataEntry::read_from_bytes(entry).map_err(|_| corrupt("it is too short".into()))?;
        let (id, offset, length) = (entry.item, u64::from(entry.offset.get()), u64::from(entry.length.get()));
        let user = entry.flags.get() & MetadataEntry::USER != 0;
        users += usize::from(user);
        if !seen.insert((id, user)) {
            return Err(corrupt(format!("item {id} is listed twice")));
        }
        if length > u64::from(MetadataEntry::LENGTH_MAX) {
            return Err(corrupt(format!("item {id} has {length} bytes, 1 MiB is the most")));
        }
        if length == 0 && offset != 0
            || length > 0 && (offset < TABLE_LEN as u64 || offset + length > region.len)
        {
            return Err(corrupt(format!(
                "item {id} has {length} bytes at {offset}, outside of the region's items"
            )));
        }
        if entry.flags.get() & MetadataEntry::REQUIRED != 0 && (user || !is_known(id)) {
            return Err(VhdxOpenError::unsupported(
                Structure::Metadata,
                region.offset,
                format!("item {id} is required"),
            ));
        }
        if length > 0 {
            spans.push((Span { offset, len: length }, id));
        }
        entries.push(entry);
    }
    if users > MetadataTableHeader::USER_ENTRIES_MAX {
        return Err(corrupt(format!(
            "{users} items of users, {} are the most",
            MetadataTableHeader::USER_ENTRIES_MAX
        )));
    }
    spans.sort_by_key(|(span, _)| span.offset);
    if let Some(pair) = spans.windows(2).find(|pair| pair[0].0.overlaps(&pair[1].0)) {
        return Err(corrupt(format!("items {} and {} overlap", pair[0].1, pair[1].1)));
    }
    Ok(entries)
}

/// Returns the place of a system item: its offset in the file and its length.
pub(crate) fn item_place(
    storage: &impl Storage,
    region: Span,
    id: Guid,
) -> Result<Option<(u64, usize)>, VhdxOpenError> {
    let entries = read_table(storage, region)?;
    let entry = entries.iter().find(|entry| entry.item == id && entry.flags.get() & MetadataEntry::USER == 0);
    Ok(entry.map(|entry| (region.offset + u64::from(entry.offset.get()), entry.length.get() as usize)))
}

/// All items with their bytes, those of users and those unknown here too.
pub(crate) fn read_items(storage: &impl Storage, region: Span) -> Result<Vec<Item>, VhdxOpenError> {
    read_table(storage, region)?
        .into_iter()
        .map(|entry| {
            let at = region.offset + u64::from(entry.offset.get());
            let mut data = vec![0; entry.length.get() as usize];
            storage.read_at(at, &mut data).map_err(VhdxOpenError::storage("reading a metadata item", at))?;
            Ok(Item { id: entry.item, flags: entry.flags.get(), data })
        })
        .collect()
}

fn is_known(id: Guid) -> bool {
    matches!(
        id,
        item::FILE_PARAMETERS
            | item::VIRTUAL_DISK_SIZE
            | item::VIRTUAL_DISK_ID
            | item::LOGICAL_SECTOR_SIZE
            | item::PHYSICAL_SECTOR_SIZE
            | item::PARENT_LOCATOR
            | item::INCOMPLETE
            | item::CHS
            | item::PMEM_LABELS
    )
}

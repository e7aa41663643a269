//! Making a new file.

use crate::disk::Disk;
use crate::error::{CreateError, VhdxOpenError};
use crate::format::{
    BatEntry, BlockState, CREATOR, FILE_SIGNATURE, Guid, GuidSource, HEADER_SECTION, Header, MIB,
    MetadataEntry, REGION_TABLE_OFFSETS,
};
use crate::geometry::Geometry;
use crate::header::Headers;
use crate::locator::Locator;
use crate::metadata::{DiskKind, Item, Parameters, build};
use crate::region::{Regions, Span};
use crate::storage::Storage;

/// Options for a new file.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Dynamic, fixed or differencing, sizes, identity.
    pub parameters: Parameters,
    /// Bytes of the log: a multiple of 1 MiB. Windows and QEMU take 1 MiB.
    pub log_length: u32,
    /// Metadata items beside the known ones: of a child, those of the parent's that belong to the virtual disk.
    pub items: Vec<Item>,
    /// The program that makes the file: for people who look into it.
    pub creator: String,
    /// A differencing disk has the sector bitmap block of each chunk from the beginning: 1 MiB of zeroes, a hole where
    /// the host has holes, for each 4 GiB of disk with sectors of 512 bytes. The standard asks for it where a block is
    /// partially present. libvhdi (20210425 and later) looks into it for each block that is not fully present, and
    /// takes the first mebibyte of the file for one that is not there.
    pub all_bitmaps: bool,
}

impl CreateOptions {
    /// A disk with blocks as Windows makes them: 32 MiB for dynamic disks, 2 MiB for others; sectors of 512 bytes on
    /// 4096.
    pub fn new(kind: DiskKind, disk_size: u64, disk_id: Guid) -> Self {
        let block_size = if kind == DiskKind::Dynamic { 32 << 20 } else { 2 << 20 };
        Self {
            parameters: Parameters {
                kind,
                disk_size,
                block_size,
                logical_sector: 512,
                physical_sector: 4096,
                disk_id,
                locator: None,
            },
            log_length: 1 << 20,
            items: Vec::new(),
            creator: concat!("lunway ", env!("CARGO_PKG_VERSION")).into(),
            all_bitmaps: false,
        }
    }
}

impl CreateOptions {
    /// A differencing disk on `parent`, which is found at `relative` from its folder: the same size and sectors.
    pub fn child_of<S: Storage>(parent: &Disk<S>, relative: &str) -> Self {
        let of = parent.parameters();
        let mut options = Self::new(DiskKind::Differencing, of.disk_size, of.disk_id);
        options.parameters.logical_sector = of.logical_sector;
        options.parameters.physical_sector = of.physical_sector;
        options.parameters.locator = Some(Locator::new(parent.data_write_guid(), relative, None));
        options
    }
}

impl CreateOptions {
    /// With the metadata items of `parent` that belong to the virtual disk and not to its file (2.6.1.2), whichever
    /// program wrote them: a child is the same disk.
    ///
    /// # Errors
    ///
    /// Those of reading them.
    pub fn with_items_of<S: Storage>(mut self, parent: &Disk<S>) -> Result<Self, VhdxOpenError> {
        self.items = parent.items()?;
        self.items.retain(|item| item.flags & MetadataEntry::VIRTUAL_DISK != 0);
        Ok(self)
    }
}

/// Number of entries of a fixed disk's table written at a time.
const ENTRIES_STEP: u64 = 1 << 17;

/// Makes a file on an empty storage, durably.
///
/// Layout as Windows': log at 1 MiB, metadata behind it, block table behind that, then payload. The file type
/// identifier is written last: what a crash leaves before that is not a VHDX file. Blocks of a fixed disk and
/// sector bitmap blocks are taken, not written: what a storage that was extended shows there is zero.
pub fn create(
    storage: &impl Storage,
    options: &CreateOptions,
    guids: &mut dyn GuidSource,
) -> Result<(), CreateError> {
    lay_out(storage, options, guids)?;
    // Without its identifier the file is none.
    storage.flush()?;
    storage.write_at(0, &identifier(&options.creator))?;
    Ok(storage.flush()?)
}

/// The same without a flush: a crash before the first flush of its disk, opened as
/// [`is_new`](crate::VhdxOpenOptions::is_new), leaves anything. For a file that nothing leads to until then.
pub fn create_unflushed(
    storage: &impl Storage,
    options: &CreateOptions,
    guids: &mut dyn GuidSource,
) -> Result<(), CreateError> {
    lay_out(storage, options, guids)?;
    Ok(storage.write_at(0, &identifier(&options.creator))?)
}

/// All of a file but its identifier.
fn lay_out(
    storage: &impl Storage,
    options: &CreateOptions,
    guids: &mut dyn GuidSource,
) -> Result<(), CreateError> {
    let invalid = |why: String| Err(CreateError::Invalid(why));
    let parameters = &options.parameters;
    if let Err(why) = parameters.check() {
        return invalid(why);
    }
    if (parameters.kind == DiskKind::Differencing) != parameters.locator.is_some() {
        return invalid("a differencing disk, and no other, has a parent locator".into());
    }
    if options.log_length == 0
        || !u64::from(options.log_length).is_multiple_of(MIB)
        || options.log_length > 1 << 30
    {
        return invalid(format!("a log of {} bytes: a multiple of 1 MiB, at most 1 GiB", options.log_length));
    }
    if !storage.is_empty()? {
        return invalid("the storage is not empty".into());
    }
    let mut items = parameters.items();
    items.extend(
        options
            .items
            .iter()
            .filter(|item| item.is_users() || !parameters.items().iter().any(|known| known.id == item.id))
            .cloned(),
    );
    let metadata_bytes = build(&items);

    let geometry = Geometry::new(parameters);
    let log = Span { offset: HEADER_SECTION, len: u64::from(options.log_length) };
    let metadata = Span { offset: log.end(), len: (metadata_bytes.len() as u64).next_multiple_of(MIB) };
    let bat = Span { offset: metadata.end(), len: geometry.bat_region_len() };
    let has_bitmaps = options.all_bitmaps && parameters.kind == DiskKind::Differencing;
    let taken = match parameters.kind {
        DiskKind::Fixed => geometry.blocks * geometry.block_size,
        DiskKind::Differencing if has_bitmaps => geometry.chunks() * MIB,
        DiskKind::Differencing | DiskKind::Dynamic => 0,
    };

    storage.lengthen(bat.end() + taken)?;
    // A trim is to give space back on a full host, too, and is logged like any change.
    storage.reserve(log.offset, log.len)?;
    storage.write_at(metadata.offset, &metadata_bytes)?;
    let table = Regions::build(bat, metadata);
    for offset in REGION_TABLE_OFFSETS {
        storage.write_at(offset, &table)?;
    }
    if parameters.kind == DiskKind::Fixed {
        write_fixed_table(storage, &geometry, bat)?;
    }
    if has_bitmaps {
        // Among entries that stay zero: a table is long, and the way to a share is narrow.
        for chunk in 0..geometry.chunks() {
            let entry = BatEntry::new(BlockState::FullyPresent, bat.end() + chunk * MIB);
            let place = bat.offset + geometry.bitmap_index(chunk) * size_of::<BatEntry>() as u64;
            storage.write_at(place, &entry.0.to_le_bytes())?;
        }
    }
    let header = Header {
        signature: Header::SIGNATURE,
        checksum: 0.into(),
        sequence: 0.into(),
        file_write: guids.next(),
        data_write: guids.next(),
        log: Guid::ZERO,
        log_version: 0.into(),
        version: 1.into(),
        log_length: options.log_length.into(),
        log_offset: log.offset.into(),
        reserved: [0; 4016],
    };
    Ok(Headers::write_first(storage, header)?)
}

fn identifier(creator: &str) -> Vec<u8> {
    let mut identifier = vec![0; CREATOR.end];
    identifier[..8].copy_from_slice(&FILE_SIGNATURE);
    let creator = creator.encode_utf16().flat_map(u16::to_le_bytes);
    identifier[CREATOR].iter_mut().zip(creator).for_each(|(to, from)| *to = from);
    identifier
}

fn write_fixed_table(storage: &impl Storage, geometry: &Geometry, bat: Span) -> Result<(), CreateError> {
    let mut first = 0;
    while first < geometry.entries() {
        let count = (geometry.entries() - first).min(ENTRIES_STEP);
        let mut bytes = Vec::with_capacity(count as usize * 8);
        for index in first..first + count {
            let entry = match geometry.slot(index) {
                crate::geometry::Slot::Payload(block) => {
                    BatEntry::new(BlockState::FullyPresent, bat.end() + block * geometry.block_size)
                }
                crate::geometry::Slot::Bitmap(_) => BatEntry::default(),
            };
            bytes.extend_from_slice(&entry.0.to_le_bytes());
        }
        storage.write_at(bat.offset + first * 8, &bytes)?;
        first += count;
    }
    Ok(())
}

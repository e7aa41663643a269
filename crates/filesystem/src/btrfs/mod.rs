//! btrfs on a single device, with its data once and its metadata once or twice.
//!
//! Free is what lies in no chunk, and what lies in a chunk but in no extent; a chunk that is there twice (DUP) is free
//! in both places. The extents are in the extent tree, what is between them also in the free space tree if that is
//! valid, which is then read for the map, and compared with the extents of a part of the block groups.
//!
//! The proof: every block of a tree has the checksum, the address, the generation and the owner that led to it; chunks
//! and the device's extents are the same; each block group uses what its extents add up to, and all together what the
//! superblock counts. After a crash nothing is to be replayed for the map, unless there is a log tree of what was
//! fsynced: its blocks are in no other tree, and then nothing is free.
//!
//! The first MiB and the places of all superblocks are kept, inside of chunks too.
//!
//! | file | has |
//! |---|---|
//! | `node` | keys, blocks of trees, checksums, the cursor |
//! | `chunk` | where logical addresses lie |
//! | `space` | block groups, extents, free space; the sums |

mod chunk;
mod node;
mod space;

use std::ops::Range;

use crate::fields::{label, le16, le32, le64, uuid};
use crate::map::Ranges;
use crate::source::{ByteSource, Unreadable};
use crate::volume::{Doubt, Examined, Mounted, Volume, VolumeIdentity, count_free};
use chunk::{CHUNK_ITEM, CHUNKS_OBJECT, Chunks, Stripe, check_device};
use node::{CHECK, Checksum, ChunkItem, Format, Key, LEVELS, Pointer, Trees};
use space::Space;

/// Offsets of the superblocks, as far as the device reaches.
const SUPERBLOCKS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// Bytes of a superblock, and of the place that is kept for each copy (a stripe).
const SUPERBLOCK: usize = 4096;
const SUPERBLOCK_PLACE: u64 = 64 << 10;
/// Length reserved at the beginning of every device, whatever its chunks say.
const BEGINNING: u64 = 1 << 20;

/// Fields of a superblock: offset.
mod field {
    pub(super) const FSID: usize = 0x20;
    pub(super) const BYTENR: usize = 0x30;
    pub(super) const FLAGS: usize = 0x38;
    pub(super) const MAGIC: usize = 0x40;
    pub(super) const GENERATION: usize = 0x48;
    pub(super) const ROOT: usize = 0x50;
    pub(super) const CHUNK_ROOT: usize = 0x58;
    pub(super) const LOG_ROOT: usize = 0x60;
    pub(super) const BYTES_USED: usize = 0x78;
    pub(super) const DEVICES: usize = 0x88;
    pub(super) const SECTOR: usize = 0x90;
    pub(super) const NODE: usize = 0x94;
    pub(super) const ARRAY_LEN: usize = 0xA0;
    pub(super) const CHUNK_ROOT_GENERATION: usize = 0xA4;
    pub(super) const COMPAT_RO: usize = 0xB4;
    pub(super) const INCOMPAT: usize = 0xBC;
    pub(super) const CHECKSUM: usize = 0xC4;
    pub(super) const ROOT_LEVEL: usize = 0xC6;
    pub(super) const CHUNK_ROOT_LEVEL: usize = 0xC7;
    pub(super) const DEVICE: usize = 0xC9;
    pub(super) const DEVICE_SIZE: usize = 0xD1;
    pub(super) const LABEL: usize = 0x12B;
    pub(super) const METADATA_UUID: usize = 0x23B;
    pub(super) const ARRAY: usize = 0x32B;
    pub(super) const ARRAY_END: usize = ARRAY + 2048;
}

const MAGIC: &[u8] = b"_BHRfS_M";

/// Flags of the superblock that mean nothing here: written, relocated. The others are errors, seeds, images of
/// metadata, and conversions that were begun and not ended.
const HARMLESS_FLAGS: u64 = 3;
/// Incompatible features that leave blocks, chunks and extents as they are read here: 0 to 11 (of which RAID56 and
/// RAID1C34 speak of chunks, which are looked at one by one) and simple quotas. Not among them: zoned, the second
/// extent tree, the stripe tree, the remap tree.
const INCOMPAT: u64 = 0xFFF | 1 << 16;
const INCOMPAT_METADATA_UUID: u64 = 1 << 10;
/// Features that writers have to know: free space tree, that it is valid, verity, block group tree.
const COMPAT_RO: u64 = 0xF;
const FREE_SPACE_TREE: u64 = 1 | 2;
const BLOCK_GROUP_TREE: u64 = 8;

/// Numbers of trees.
mod tree {
    pub(super) const ROOT: u64 = 1;
    pub(super) const EXTENT: u64 = 2;
    pub(super) const CHUNK: u64 = 3;
    pub(super) const DEVICE: u64 = 4;
    pub(super) const FREE_SPACE: u64 = 10;
    pub(super) const BLOCK_GROUP: u64 = 11;
}

/// A superblock whose checksum is right.
struct Superblock {
    bytes: Vec<u8>,
    checksum: Checksum,
}

impl Superblock {
    /// The copy at this place, if it is whole.
    fn read(source: &dyn ByteSource, at: u64) -> Result<Option<Self>, Unreadable> {
        if !source.has(at, SUPERBLOCK as u64) {
            return Ok(None);
        }
        let bytes = source.bytes(at, SUPERBLOCK)?;
        let Some(checksum) = Checksum::of(le16(&bytes, field::CHECKSUM)) else { return Ok(None) };
        let is_whole = bytes[field::MAGIC..].starts_with(MAGIC)
            && le64(&bytes, field::BYTENR) == at
            && checksum.holds(&bytes);
        Ok(is_whole.then_some(Self { bytes, checksum }))
    }

    fn u64(&self, at: usize) -> u64 {
        le64(&self.bytes, at)
    }

    fn fsid(&self) -> [u8; 16] {
        self.id(field::FSID)
    }

    fn id(&self, at: usize) -> [u8; 16] {
        self.bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default()
    }

    /// Bytes of the device.
    fn size(&self) -> u64 {
        self.u64(field::DEVICE_SIZE)
    }

    fn format(&self) -> Result<Format, Doubt> {
        let (node, sector) = (le32(&self.bytes, field::NODE), le32(&self.bytes, field::SECTOR));
        let is_size = |size: u32| size.is_power_of_two() && (4096..=65536).contains(&size);
        if !is_size(node) || !is_size(sector) || node < sector {
            return Err(Doubt::new("its superblock makes no sense: the size of sectors or blocks"));
        }
        let apart = self.u64(field::INCOMPAT) & INCOMPAT_METADATA_UUID != 0;
        Ok(Format {
            node,
            sector,
            checksum: self.checksum,
            fsid: if apart { self.id(field::METADATA_UUID) } else { self.fsid() },
            generation: self.u64(field::GENERATION),
        })
    }

    fn root(&self) -> Pointer {
        Pointer {
            block: self.u64(field::ROOT),
            generation: self.u64(field::GENERATION),
            level: self.bytes[field::ROOT_LEVEL],
            owner: tree::ROOT,
        }
    }

    fn chunk_root(&self) -> Pointer {
        Pointer {
            block: self.u64(field::CHUNK_ROOT),
            generation: self.u64(field::CHUNK_ROOT_GENERATION),
            level: self.bytes[field::CHUNK_ROOT_LEVEL],
            owner: tree::CHUNK,
        }
    }

    /// The chunks that the chunk tree lies in.
    fn system_chunks(&self) -> Result<Chunks, Doubt> {
        let broken = || Doubt::new("the list of chunks in its superblock is broken").helped_by(CHECK);
        let array = self.bytes.get(field::ARRAY..field::ARRAY_END).ok_or_else(broken)?;
        let mut rest = array.get(..le32(&self.bytes, field::ARRAY_LEN) as usize).ok_or_else(broken)?;
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (key, item) = rest.split_at_checked(Key::LEN).ok_or_else(broken)?;
            let (key, item) = (Key::read(key, 0), ChunkItem::read(item));
            let item = item.ok_or_else(|| self.spread())?;
            rest = &rest[Key::LEN + item.size..];
            found.push((key, item));
        }
        found.sort_by_key(|(key, _)| *key);
        let mut chunks = Chunks::default();
        for (key, item) in &found {
            chunks.push(*key, item, self.u64(field::DEVICE), self.size())?;
        }
        Ok(chunks)
    }

    fn spread(&self) -> Doubt {
        Doubt::new("it has a chunk of more stripes than one device can have")
    }

    /// An error for what this reader does not understand, or must not be written to.
    fn check_features(&self) -> Result<(), Doubt> {
        let devices = self.u64(field::DEVICES);
        if devices != 1 {
            return Err(Doubt::new(format!("it is spread over {devices} devices")));
        }
        let flags = self.u64(field::FLAGS) & !HARMLESS_FLAGS;
        if flags != 0 {
            return Err(Doubt::new(format!(
                "its superblock has flags {flags:x}h: an error, a seed, an image, or a conversion that has not ended"
            ))
            .helped_by(CHECK));
        }
        let incompat = self.u64(field::INCOMPAT) & !INCOMPAT;
        if incompat != 0 {
            return Err(Doubt::new(format!(
                "it has features that are not read here (incompat {incompat:x}h)"
            )));
        }
        let compat = self.u64(field::COMPAT_RO) & !COMPAT_RO;
        if compat != 0 {
            return Err(Doubt::new(format!(
                "it has features that are not read here (compat_ro {compat:x}h)"
            )));
        }
        if self.root().level >= LEVELS || self.chunk_root().level >= LEVELS {
            return Err(Doubt::new("its superblock makes no sense: the levels of its trees"));
        }
        if self.u64(field::LOG_ROOT) != 0 {
            return Err(Doubt::mounted("it has a log of fsynced data from before a crash")
                .helped_by("mount and unmount it once"));
        }
        Ok(())
    }
}

/// A btrfs whose free space is believed.
struct BtrfsMap {
    format: Format,
    chunks: Chunks,
    /// The chunks in the order of the device.
    stripes: Vec<Stripe>,
    space: Space,
    size: u64,
    metadata: Ranges,
    free: u64,
}

impl Volume for BtrfsMap {
    fn free_bytes(&self) -> u64 {
        self.free
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn metadata(&self) -> &Ranges {
        &self.metadata
    }

    fn claimed_free(
        &self,
        source: &dyn ByteSource,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let trees = Trees { source, format: &self.format, chunks: &self.chunks };
        let mut at = window.start;
        let first = self.stripes.partition_point(|stripe| stripe.physical + stripe.len <= at);
        for stripe in &self.stripes[first..] {
            if stripe.physical >= window.end {
                break;
            }
            if stripe.physical > at {
                sink(at..stripe.physical);
            }
            let from = at.max(stripe.physical) - stripe.physical;
            let to = (window.end - stripe.physical).min(stripe.len);
            let range = stripe.logical + from..stripe.logical + to;
            space::free_in(&trees, &self.space, range.clone(), &mut |free| {
                let (start, end) = (free.start.max(range.start), free.end.min(range.end));
                if start < end {
                    sink(start - stripe.logical + stripe.physical..end - stripe.logical + stripe.physical);
                }
            })?;
            at = stripe.physical + to;
        }
        if at < window.end {
            sink(at..window.end);
        }
        Ok(())
    }
}

/// Returns `true` if the volume has a superblock of btrfs.
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    let at = SUPERBLOCKS[0] + field::MAGIC as u64;
    Ok(source.has(at, MAGIC.len() as u64) && source.bytes(at, MAGIC.len())? == MAGIC)
}

/// Reads superblocks and trees. See the module.
pub fn examine(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let damaged =
        || Doubt::new("its first superblock is damaged").helped_by("run btrfs rescue super-recover");
    let superblock = Superblock::read(source, SUPERBLOCKS[0])?.ok_or_else(damaged)?;
    let identity = VolumeIdentity {
        kind: "btrfs",
        label: label(&superblock.bytes[field::LABEL..field::LABEL + 256]),
        uuid: uuid(&superblock.fsid()),
        size: superblock.size(),
    };
    let notes =
        vec!["free blocks may be needed by older roots of its trees, from which usebackuproot mounts".into()];
    let verdict = prove(source, &superblock).map(|map| -> Box<dyn Volume> { Box::new(map) });
    // Between two commits a mounted one looks like any other, and a frozen one as well.
    Ok(Examined { identity, notes, mounted: Mounted::Untold, verdict })
}

fn prove(source: &dyn ByteSource, superblock: &Superblock) -> Result<BtrfsMap, Doubt> {
    let size = superblock.size();
    if size > source.len() {
        return Err(Doubt::new(format!(
            "it has {size} bytes, more than the {} of its container",
            source.len()
        )));
    }
    superblock.check_features()?;
    // Linux mounts by the first superblock, whose trees have to be there. Copies are written behind it; one that is
    // newer says that power was lost between them, and blocks of the first may be free to it.
    for at in &SUPERBLOCKS[1..] {
        if let Some(copy) = Superblock::read(source, *at)?
            && copy.fsid() == superblock.fsid()
            && copy.u64(field::GENERATION) > superblock.u64(field::GENERATION)
        {
            return Err(Doubt::new(format!("its superblock at {at} is newer than its first"))
                .helped_by("mount and unmount it once"));
        }
    }
    let (format, device) = (superblock.format()?, superblock.u64(field::DEVICE));
    let system = superblock.system_chunks()?;
    let mut chunks = Chunks::default();
    let trees = Trees { source, format: &format, chunks: &system };
    let mut cursor = trees.seek_object(superblock.chunk_root(), CHUNKS_OBJECT)?;
    while let Some((key, item)) = cursor.next()? {
        if key.object == CHUNKS_OBJECT && key.kind == CHUNK_ITEM {
            let item = ChunkItem::read(item).ok_or_else(|| superblock.spread())?;
            chunks.push(key, &item, device, size)?;
        }
    }
    drop(cursor);
    if system.as_slice().iter().any(|chunk| !chunks.as_slice().contains(chunk)) {
        return Err(
            Doubt::new("the chunks in its superblock are not those of its chunk tree").helped_by(CHECK)
        );
    }
    let stripes = chunks.stripes()?;

    let trees = Trees { source, format: &format, chunks: &chunks };
    let compat = superblock.u64(field::COMPAT_RO);
    let root = superblock.root();
    check_device(&trees, trees.root(root, tree::DEVICE)?, device, &stripes)?;
    let extents = trees.root(root, tree::EXTENT)?;
    let groups = if compat & BLOCK_GROUP_TREE != 0 { trees.root(root, tree::BLOCK_GROUP)? } else { extents };
    let has_free = compat & FREE_SPACE_TREE == FREE_SPACE_TREE;
    let free = if has_free { Some(trees.root(root, tree::FREE_SPACE)?) } else { None };
    let space = Space { extents, groups, free };
    space::prove(&trees, &space, superblock.u64(field::BYTES_USED))?;

    let places = SUPERBLOCKS.iter().map(|at| *at..at + SUPERBLOCK_PLACE);
    let metadata = Ranges::union(places.chain(std::iter::once(0..BEGINNING)));
    let mut map = BtrfsMap { format, chunks, stripes, space, size, metadata, free: 0 };
    map.free = count_free(&map, source)?;
    Ok(map)
}

//! FAT12, FAT16 and FAT32 (Microsoft's FAT specification, 2004; ECMA-107).
//!
//! The file allocation table is the free map: an entry of 0 is a free cluster. There are no sums that could prove it,
//! so the proof is that the table is one (its first entry repeats the media byte), that the volume was unmounted, that
//! no file leads into a free cluster, and that all copies agree; where they do not, a cluster is used that is used in
//! any of them. The counts of FSInfo are hints by the specification, and nothing here depends on them.
//!
//! The root directory of FAT12 and FAT16, the tables and everything in front of them lie before the first cluster.

mod files;

use std::ops::Range;

use crate::fields::{label, le16, le32};
use crate::map::{Joiner, Ranges};
use crate::source::{ByteSource, LARGEST, Unreadable};
use crate::volume::{Doubt, Examined, Mounted, Volume, VolumeIdentity};
use files::FreeClusters;

/// Fields of the boot sector: offset.
mod field {
    pub(super) const JUMP: usize = 0;
    pub(super) const SECTOR_SIZE: usize = 11;
    pub(super) const CLUSTER_SECTORS: usize = 13;
    pub(super) const RESERVED: usize = 14;
    pub(super) const TABLES: usize = 16;
    pub(super) const ROOT_ENTRIES: usize = 17;
    pub(super) const SECTORS_16: usize = 19;
    pub(super) const MEDIA: usize = 21;
    pub(super) const TABLE_SECTORS_16: usize = 22;
    pub(super) const SECTORS_32: usize = 32;
    /// FAT32 only, up to `ROOT`.
    pub(super) const TABLE_SECTORS_32: usize = 36;
    pub(super) const MIRRORING: usize = 40;
    pub(super) const VERSION: usize = 42;
    pub(super) const ROOT: usize = 44;
    /// The extended boot record: drive, state, 29h, serial number, label. On FAT32 it lies behind the fields above.
    pub(super) const EXTENDED_16: usize = 36;
    pub(super) const EXTENDED_32: usize = 64;
    pub(super) const SIGNATURE: usize = 510;
}

/// Bytes of a directory's entry.
const ENTRY: u64 = 32;
/// Below this many clusters a table is FAT12 (specification, "FAT type determination").
const FAT16_CLUSTERS: u64 = 4085;
/// Windows' driver and Linux' disagree with the specification by a few clusters at that limit: between these, a table
/// is FAT12 for one and FAT16 for another.
const DISPUTED: Range<u64> = FAT16_CLUSTERS..4087;
/// From so many clusters a table can only be FAT32 …
const FAT32_CLUSTERS: u64 = 65525;
/// … which has 28 bits for the number of one, less those that mean something else.
const MOST_CLUSTERS: u64 = 0x0FFF_FFF5;
/// A directory has up to 65536 entries, the root as well.
const DIRECTORY_MAX: u64 = 65536 * ENTRY;

/// Width of an entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Fat12,
    Fat16,
    Fat32,
}

impl Width {
    fn name(self) -> &'static str {
        match self {
            Self::Fat12 => "FAT12",
            Self::Fat16 => "FAT16",
            Self::Fat32 => "FAT32",
        }
    }

    /// The byte at which an entry begins; an odd one of FAT12 begins in the middle of it.
    fn offset(self, entry: u64) -> u64 {
        match self {
            Self::Fat12 => entry * 3 / 2,
            Self::Fat16 => entry * 2,
            Self::Fat32 => entry * 4,
        }
    }

    /// Number of bytes that this many entries take.
    fn bytes(self, entries: u64) -> u64 {
        match self {
            Self::Fat12 => (entries * 3).div_ceil(2),
            Self::Fat16 => entries * 2,
            Self::Fat32 => entries * 4,
        }
    }

    /// The entry at this place of a part of the table; parts of FAT12 begin with an even entry.
    fn entry(self, part: &[u8], at: u64) -> u32 {
        let offset = self.offset(at) as usize;
        match self {
            Self::Fat12 => u32::from(le16(part, offset) >> (4 * (at % 2)) & 0xFFF),
            Self::Fat16 => u32::from(le16(part, offset)),
            // The upper four bits are unused.
            Self::Fat32 => le32(part, offset) & 0x0FFF_FFFF,
        }
    }

    /// The mark of a bad cluster; greater ones are ends of chains.
    fn bad_cluster(self) -> u32 {
        match self {
            Self::Fat12 => 0xFF7,
            Self::Fat16 => 0xFFF7,
            Self::Fat32 => 0x0FFF_FFF7,
        }
    }

    /// Entry 1 has a bit that is 1 when the volume is unmounted, and one that is 1 when no I/O has failed.
    fn state_bits(self) -> Option<(u32, u32)> {
        match self {
            Self::Fat12 => None,
            Self::Fat16 => Some((1 << 15, 1 << 14)),
            Self::Fat32 => Some((1 << 27, 1 << 26)),
        }
    }
}

/// A contradiction that a check of the volume mends.
fn damaged(what: impl Into<String>) -> Doubt {
    Doubt::new(what).helped_by("run fsck.fat, or chkdsk on Windows")
}

/// Geometry of the volume: the location of its structures.
struct Geometry {
    width: Width,
    /// The first byte of each table.
    tables: Vec<u64>,
    /// Index of the active table.
    active: usize,
    /// Number of clusters that the tables can name.
    clusters: u64,
    /// Bytes in a cluster.
    cluster: u64,
    /// The first byte of cluster 2, which is the first.
    heap: u64,
    /// The root directory of FAT12 and FAT16, in front of the first cluster.
    root: Range<u64>,
    /// Bytes of the volume.
    size: u64,
}

impl Geometry {
    /// From a boot sector, or `None` where it is none.
    fn read(boot: &[u8; 512]) -> Option<Self> {
        let name = boot.get(3..11)?;
        if le16(boot, field::SIGNATURE) != 0xAA55
            || !matches!(boot[field::JUMP], 0xEB | 0xE9)
            || [b"NTFS    ", b"EXFAT   ", b"-FVE-FS-"].iter().any(|other| name == *other)
        {
            return None;
        }
        let sector = u64::from(le16(boot, field::SECTOR_SIZE));
        let per_cluster = u64::from(boot[field::CLUSTER_SECTORS]);
        let reserved = u64::from(le16(boot, field::RESERVED));
        let tables = u64::from(boot[field::TABLES]);
        let media = boot[field::MEDIA];
        if !(512..=4096).contains(&sector)
            || !sector.is_power_of_two()
            || !per_cluster.is_power_of_two()
            || reserved == 0
            || !(1..=2).contains(&tables)
            || (media < 0xF8 && media != 0xF0)
        {
            return None;
        }
        let sectors = match le16(boot, field::SECTORS_16) {
            0 => u64::from(le32(boot, field::SECTORS_32)),
            sectors => u64::from(sectors),
        };
        let root_entries = u64::from(le16(boot, field::ROOT_ENTRIES));
        // Drivers tell FAT32 by where the length of its table is, and only FAT12 from FAT16 by the count of clusters.
        let (wide, table_sectors) = match le16(boot, field::TABLE_SECTORS_16) {
            0 => (true, u64::from(le32(boot, field::TABLE_SECTORS_32))),
            sectors => (false, u64::from(sectors)),
        };
        if table_sectors == 0 || wide != (root_entries == 0) {
            return None;
        }
        let heap = reserved + tables * table_sectors + (root_entries * ENTRY).div_ceil(sector);
        let clusters = sectors.checked_sub(heap)? / per_cluster;
        let width = match clusters {
            _ if wide => Width::Fat32,
            ..FAT16_CLUSTERS => Width::Fat12,
            FAT16_CLUSTERS..FAT32_CLUSTERS => Width::Fat16,
            _ => return None,
        };
        if clusters == 0 || clusters > MOST_CLUSTERS {
            return None;
        }
        // What a table has no entry for cannot be in use, but nothing says that it is free either.
        let nameable = match width {
            Width::Fat12 => table_sectors * sector * 2 / 3,
            Width::Fat16 => table_sectors * sector / 2,
            Width::Fat32 => table_sectors * sector / 4,
        };
        let mirroring = le16(boot, field::MIRRORING);
        let active = if wide && mirroring & 0x80 != 0 { usize::from(mirroring & 0xF) } else { 0 };
        Some(Self {
            width,
            tables: (0..tables).map(|table| (reserved + table * table_sectors) * sector).collect(),
            active,
            clusters: clusters.min(nameable.saturating_sub(2)),
            cluster: per_cluster * sector,
            heap: heap * sector,
            root: heap * sector - (root_entries * ENTRY).next_multiple_of(sector)..heap * sector,
            size: sectors * sector,
        })
    }

    /// Returns an entry of the active table.
    fn entry(&self, source: &dyn ByteSource, entry: u64) -> Result<u32, Doubt> {
        let table = self.tables.get(self.active);
        let table =
            *table.ok_or_else(|| Doubt::new("its active file allocation table is one that it has not"))?;
        let even = entry & !1;
        let part = source.bytes(table + self.width.offset(even), self.width.bytes(2) as usize)?;
        Ok(self.width.entry(&part, entry - even))
    }

    /// Gives free clusters among `range` (0 is the first cluster, entry 2) in order, and whether all tables have the
    /// same of it.
    fn scan(
        &self,
        source: &dyn ByteSource,
        range: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<bool, Doubt> {
        // Entries that fill at most LARGEST bytes in any width, and an even number of them.
        const STEP: u64 = LARGEST as u64 / 4;
        // Entries that are looked at together, because large parts of a table are zeros: 1 TiB in a third of the time.
        const BLOCK: u64 = 64;
        let end = range.end.min(self.clusters) + 2;
        let mut entry = (range.start + 2) & !1;
        let (mut all, mut equal) = (Joiner::new(sink), true);
        while entry < end {
            let count = (end - entry).min(STEP);
            let (offset, len) = (self.width.offset(entry), self.width.bytes(count) as usize);
            let mut part = source.bytes(self.tables[0] + offset, len)?;
            for table in &self.tables[1..] {
                let other = source.bytes(table + offset, len)?;
                if other != part {
                    equal = false;
                    part.iter_mut().zip(&other).for_each(|(byte, other)| *byte |= other);
                }
            }
            let mut at = 0;
            while at < count {
                let block = BLOCK.min(count - at);
                let bytes = self.width.offset(at) as usize..self.width.offset(at + block) as usize;
                let zeros =
                    part.get(bytes).is_some_and(|bytes| bytes.iter().fold(0, |all, byte| all | byte) == 0);
                if zeros && self.width != Width::Fat12 {
                    all.push(entry + at - 2..entry + at + block - 2);
                } else {
                    for at in (at..at + block).filter(|at| self.width.entry(&part, *at) == 0) {
                        all.push(entry + at - 2..entry + at - 1);
                    }
                }
                at += block;
            }
            entry += count;
        }
        all.finish();
        Ok(equal)
    }

    /// Follows the root directory of FAT32: all its clusters must be in use.
    fn check_root(&self, source: &dyn ByteSource, root: u64) -> Result<(), Doubt> {
        let mut at = root;
        for _ in 0..=DIRECTORY_MAX / self.cluster {
            if !(2..self.clusters + 2).contains(&at) {
                return Err(Doubt::new(format!(
                    "its root directory leads to cluster {at}, which it does not have"
                )));
            }
            match self.entry(source, at)? {
                0 | 1 => {
                    return Err(damaged(format!("its root directory's cluster {at} is not in use")));
                }
                // The end is 0FFFFFF8h and above.
                0x0FFF_FFF8.. => return Ok(()),
                next => at = u64::from(next),
            }
        }
        Err(Doubt::new("its root directory is longer than a directory can be, or goes in circles"))
    }
}

/// A FAT volume whose table is believed.
struct FatMap {
    geometry: Geometry,
    metadata: Ranges,
    free: u64,
}

impl Volume for FatMap {
    fn free_bytes(&self) -> u64 {
        self.free
    }

    fn size(&self) -> u64 {
        self.geometry.size
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
        let Geometry { heap, cluster, .. } = self.geometry;
        let from = window.start.saturating_sub(heap) / cluster;
        let to = window.end.saturating_sub(heap).div_ceil(cluster);
        self.geometry.scan(source, from..to, &mut |clusters| {
            sink(heap + clusters.start * cluster..heap + clusters.end * cluster);
        })?;
        Ok(())
    }
}

/// Returns `true` if the volume begins with a FAT boot sector whose geometry makes sense. BitLocker To Go has one as
/// well, and is therefore checked first ([`probe`](crate::probe)).
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    Ok(source.has(0, 512) && Geometry::read(&source.array(0)?).is_some())
}

/// Reads the tables. See the module.
pub fn examine(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let boot = source.array::<512>(0)?;
    let geometry = Geometry::read(&boot).ok_or_else(|| Doubt::new("its boot sector is not that of a FAT"))?;
    let extended = match geometry.width {
        Width::Fat32 => field::EXTENDED_32,
        Width::Fat12 | Width::Fat16 => field::EXTENDED_16,
    };
    let named = boot[extended + 2] == 0x29;
    let serial = le32(&boot, extended + 3);
    let identity = VolumeIdentity {
        kind: geometry.width.name(),
        label: label(&boot[extended + 7..extended + 18]).filter(|label| named && label != "NO NAME"),
        uuid: named.then(|| format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF)),
        size: geometry.size,
    };
    let mut notes = Vec::new();
    let verdict = prove(source, &boot, geometry, boot[extended + 1], &mut notes)
        .map(|map| -> Box<dyn Volume> { Box::new(map) });
    // Linux marks it when it is mounted, Windows before the first change.
    Ok(Examined { identity, notes, mounted: Mounted::No, verdict })
}

fn prove(
    source: &dyn ByteSource,
    boot: &[u8; 512],
    geometry: Geometry,
    state: u8,
    notes: &mut Vec<String>,
) -> Result<FatMap, Doubt> {
    let unclean = |what: &str| {
        Err(Doubt::mounted(what).helped_by("unmount it in the guest, or run fsck.fat, or chkdsk on Windows"))
    };
    if geometry.size > source.len() {
        return Err(Doubt::new(format!(
            "it has {} bytes, more than the {} of its container",
            geometry.size,
            source.len()
        )));
    }
    let (width, whole) = (geometry.width, (geometry.size - geometry.heap) / geometry.cluster);
    if width != Width::Fat32 && DISPUTED.contains(&whole) {
        return Err(Doubt::new(format!(
            "with {whole} clusters it is FAT12 to some systems and FAT16 to others"
        )));
    }
    if width == Width::Fat32 && le16(boot, field::VERSION) != 0 {
        return Err(Doubt::new("its version of FAT32 is unknown"));
    }
    let media = geometry.entry(source, 0)?;
    if media & 0xFF != u32::from(boot[field::MEDIA]) {
        return Err(Doubt::new(format!(
            "its file allocation table begins with {media:X}h, not with the media byte {:X}h",
            boot[field::MEDIA]
        )));
    }
    // Linux says so in the boot sector as well, and on FAT12, where Windows says nothing, only there.
    if state & 3 != 0 {
        return unclean("it was not unmounted (its boot sector says so)");
    }
    if let Some((unmounted, sound)) = width.state_bits() {
        let entry = geometry.entry(source, 1)?;
        if entry & unmounted == 0 {
            return unclean("it was not unmounted (entry 1 of its file allocation table says so)");
        }
        if entry & sound == 0 {
            return Err(damaged("I/O errors were met on it (entry 1 of its file allocation table says so)"));
        }
    }
    let root = (width == Width::Fat32).then(|| u64::from(le32(boot, field::ROOT)));
    if let Some(root) = root {
        geometry.check_root(source, root)?;
    }
    let (mut free, mut free_clusters) = (0, FreeClusters::new(geometry.clusters));
    let equal = geometry.scan(source, 0..geometry.clusters, &mut |clusters| {
        free += clusters.end - clusters.start;
        free_clusters.insert(clusters);
    })?;
    files::check(source, &geometry, &free_clusters, root)?;
    if !equal {
        notes.push("its file allocation tables differ: a cluster is kept that is used in any of them".into());
    }
    let metadata = Ranges::union(std::iter::once(0..geometry.heap));
    Ok(FatMap { free: free * geometry.cluster, geometry, metadata })
}

//! exFAT (Microsoft's exFAT specification, 2019).
//!
//! The allocation bitmap is the free map; a file allocation table there is as well, but contiguous files have no chain
//! in it, and it proves nothing. The proof: the boot region's checksum, a volume that is not marked dirty, a bitmap
//! that is as long as there are clusters, and that has the clusters of itself, the up-case table and of every file and
//! directory as allocated: implementations write the bitmap and the directories one after the other. PercentInUse
//! proves nothing, because most implementations never write it. With two tables (TexFAT) there are two bitmaps: a
//! cluster is used that is used in either.

mod files;

use crate::cluster_bitmap::{ClusterBitmap, ClusterMap};
use crate::fields::{le16, le32, le64};
use crate::map::Ranges;
use crate::source::{ByteSource, Segment, Unreadable};
use crate::volume::{Doubt, Examined, Mounted, Volume, VolumeIdentity};

/// Fields of the boot sector (§3.1): offset.
mod field {
    pub(super) const NAME: usize = 3;
    /// Zeros, where FAT has its parameters (§3.1.3).
    pub(super) const MUST_BE_ZERO: std::ops::Range<usize> = 11..64;
    pub(super) const VOLUME_LENGTH: usize = 72;
    pub(super) const FAT_OFFSET: usize = 80;
    pub(super) const FAT_LENGTH: usize = 84;
    pub(super) const HEAP_OFFSET: usize = 88;
    pub(super) const CLUSTER_COUNT: usize = 92;
    pub(super) const ROOT: usize = 96;
    pub(super) const SERIAL: usize = 100;
    pub(super) const REVISION: usize = 104;
    pub(super) const FLAGS: usize = 106;
    pub(super) const SECTOR_SHIFT: usize = 108;
    pub(super) const CLUSTER_SHIFT: usize = 109;
    pub(super) const FATS: usize = 110;
    pub(super) const PERCENT_IN_USE: usize = 112;
    pub(super) const SIGNATURE: usize = 510;
}

/// VolumeFlags (§3.1.13).
const ACTIVE_FAT: u16 = 1;
const VOLUME_DIRTY: u16 = 2;
const MEDIA_FAILURE: u16 = 4;

/// Types of directory entries (§7).
const END_OF_DIRECTORY: u8 = 0x00;
const ALLOCATION_BITMAP: u8 = 0x81;
const UP_CASE_TABLE: u8 = 0x82;
const VOLUME_LABEL: u8 = 0x83;
/// Bytes of a directory entry.
const ENTRY: usize = 32;

/// A FAT entry from here on ends a chain (§4.1); FFFFFFF7h is a bad cluster.
const END_OF_CHAIN: u32 = 0xFFFF_FFF8;
/// A directory may have 256 MiB (§7); a root directory of a sound volume is far below this many clusters.
const ROOT_CLUSTERS_MAX: u64 = 1 << 16;
/// Runs that a bitmap or an up-case table may be in. Each is made whole by the program that formats the volume.
const RUNS_MAX: usize = 4096;
/// Sectors of the main boot region that its checksum covers, which the next one holds (§3.4).
const CHECKSUMMED: u64 = 11;
/// Main and backup boot region (§2).
const BOOT_SECTORS: u64 = 24;

/// A contradiction that a check of the volume mends.
fn damaged(what: impl Into<String>) -> Doubt {
    Doubt::new(what).helped_by("run fsck.exfat, or chkdsk on Windows")
}

/// Geometry of the volume: the location of its structures.
struct Geometry {
    sector: u64,
    /// The first byte of each file allocation table, the active one first.
    tables: Vec<u64>,
    clusters: u64,
    /// Bytes in a cluster.
    cluster: u64,
    /// The first byte of cluster 2, which is the first.
    heap: u64,
    size: u64,
    root: u32,
}

impl Geometry {
    fn read(boot: &[u8; 512]) -> Result<Self, Doubt> {
        let wrong = |what: &str| Doubt::new(format!("its boot sector makes no sense: {what}"));
        let (sector_shift, cluster_shift) = (boot[field::SECTOR_SHIFT], boot[field::CLUSTER_SHIFT]);
        if !(9..=12).contains(&sector_shift) || cluster_shift > 25 - sector_shift {
            return Err(wrong("the size of sectors or clusters"));
        }
        if boot[field::REVISION + 1] != 1 {
            return Err(Doubt::new("its version of exFAT is unknown"));
        }
        let sector = 1u64 << sector_shift;
        let tables = u64::from(boot[field::FATS]);
        if !(1..=2).contains(&tables) {
            return Err(wrong("the number of file allocation tables"));
        }
        let length = le64(boot, field::VOLUME_LENGTH);
        let (table, table_len) =
            (u64::from(le32(boot, field::FAT_OFFSET)), u64::from(le32(boot, field::FAT_LENGTH)));
        let (heap, clusters) =
            (u64::from(le32(boot, field::HEAP_OFFSET)), u64::from(le32(boot, field::CLUSTER_COUNT)));
        if table < BOOT_SECTORS
            || table + table_len * tables > heap
            || table_len * sector / 4 < clusters + 2
            || clusters == 0
        {
            return Err(wrong("the file allocation table"));
        }
        let size = length.checked_mul(sector).ok_or_else(|| wrong("its length"))?;
        if heap + (clusters << cluster_shift) > length {
            return Err(wrong("more clusters than it has room for"));
        }
        let mut tables: Vec<_> = (0..tables).map(|at| (table + at * table_len) * sector).collect();
        if le16(boot, field::FLAGS) & ACTIVE_FAT != 0 {
            if tables.len() < 2 {
                return Err(wrong("the second of one file allocation table is active"));
            }
            tables.swap(0, 1);
        }
        Ok(Self {
            sector,
            tables,
            clusters,
            cluster: sector << cluster_shift,
            heap: heap * sector,
            size,
            root: le32(boot, field::ROOT),
        })
    }

    /// The byte at which a cluster begins, if there is one of that number.
    fn place(&self, cluster: u32) -> Result<u64, Doubt> {
        let index = u64::from(cluster).checked_sub(2).filter(|index| *index < self.clusters);
        let index = index.ok_or_else(|| {
            Doubt::new(format!("a chain leads to cluster {cluster}, which it does not have"))
        })?;
        Ok(self.heap + index * self.cluster)
    }

    /// The chain of a file in one of the tables: at most `limit` clusters.
    fn chain(
        &self,
        source: &dyn ByteSource,
        table: u64,
        first: u32,
        limit: u64,
    ) -> Result<Vec<Segment>, Doubt> {
        let mut runs: Vec<Segment> = Vec::new();
        let mut at = first;
        for _ in 0..limit {
            let place = self.place(at)?;
            let follows = runs.last_mut().filter(|last| last.at + last.len == place);
            if let Some(last) = follows {
                last.len += self.cluster;
            } else if runs.len() == RUNS_MAX {
                break;
            } else {
                runs.push(Segment { at: place, len: self.cluster });
            }
            let next = u32::from_le_bytes(source.array(table + u64::from(at) * 4)?);
            if next >= END_OF_CHAIN {
                return Ok(runs);
            }
            at = next;
        }
        Err(damaged(format!("the chain that begins at cluster {first} is too long, or goes in circles")))
    }

    /// A file that the root directory names: a chain of exactly as many clusters as its length needs, cut to it.
    fn file(&self, source: &dyn ByteSource, table: u64, entry: &[u8]) -> Result<Vec<Segment>, Doubt> {
        let (first, len) = (le32(entry, 20), le64(entry, 24));
        let clusters = len.div_ceil(self.cluster);
        if clusters > self.clusters {
            return Err(Doubt::new(format!("a file of {len} bytes is larger than the volume")));
        }
        let mut runs = self.chain(source, table, first, clusters.max(1))?;
        if runs.iter().map(|run| run.len).sum::<u64>() != clusters * self.cluster {
            return Err(Doubt::new(format!(
                "the chain that begins at cluster {first} is too short for {len} bytes"
            )));
        }
        if let Some(last) = runs.last_mut() {
            last.len -= clusters * self.cluster - len;
        }
        Ok(runs)
    }

    /// The checksum of the boot region (§3.4), a sector that repeats it.
    fn check_boot_region(&self, source: &dyn ByteSource) -> Result<(), Doubt> {
        let sectors = source.bytes(0, (CHECKSUMMED * self.sector) as usize)?;
        let mut sum = 0u32;
        for (at, byte) in sectors.iter().enumerate() {
            // These change while the volume is in use.
            if !matches!(at, field::FLAGS | 107 | field::PERCENT_IN_USE) {
                sum = sum.rotate_right(1).wrapping_add(u32::from(*byte));
            }
        }
        let said = source.bytes(CHECKSUMMED * self.sector, self.sector as usize)?;
        if said.chunks_exact(4).any(|word| le32(word, 0) != sum) {
            return Err(damaged("the checksum of its boot region is wrong"));
        }
        Ok(())
    }
}

/// Information from the root directory about the volume.
#[derive(Default)]
struct Root {
    /// The entries of the first and the second bitmap.
    bitmaps: [Option<[u8; ENTRY]>; 2],
    up_case: Option<[u8; ENTRY]>,
    label: Option<String>,
    /// Segments of the directory.
    runs: Vec<Segment>,
}

impl Root {
    fn read(source: &dyn ByteSource, geometry: &Geometry) -> Result<Self, Doubt> {
        let runs = geometry.chain(source, geometry.tables[0], geometry.root, ROOT_CLUSTERS_MAX)?;
        let mut root = Self { runs: runs.clone(), ..Self::default() };
        let entries = runs.iter().flat_map(|run| (run.at..run.at + run.len).step_by(ENTRY));
        for at in entries {
            let entry = source.array::<ENTRY>(at)?;
            let twice = match entry[0] {
                END_OF_DIRECTORY => break,
                ALLOCATION_BITMAP => root.bitmaps[usize::from(entry[1] & 1)].replace(entry).is_some(),
                UP_CASE_TABLE => root.up_case.replace(entry).is_some(),
                VOLUME_LABEL => {
                    let chars = usize::from(entry[1]).min(11);
                    let units = entry[2..2 + 2 * chars].chunks_exact(2).map(|unit| le16(unit, 0));
                    let text: String = char::decode_utf16(units)
                        .map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER))
                        .collect();
                    root.label = crate::fields::label(text.as_bytes());
                    false
                }
                _ => false,
            };
            if twice {
                return Err(Doubt::new(
                    "its root directory has two entries of one allocation bitmap or up-case table",
                ));
            }
        }
        Ok(root)
    }
}

/// Returns `true` if the volume begins with an exFAT boot sector.
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    if !source.has(0, 512) {
        return Ok(false);
    }
    let boot = source.array::<512>(0)?;
    Ok(boot[field::NAME..].starts_with(b"EXFAT   ")
        && le16(&boot, field::SIGNATURE) == 0xAA55
        && boot[field::MUST_BE_ZERO].iter().all(|byte| *byte == 0))
}

/// Reads the boot region, the root directory and the bitmap. See the module.
pub fn examine(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let boot = source.array::<512>(0)?;
    let geometry = Geometry::read(&boot)?;
    let root = Root::read(source, &geometry);
    let serial = le32(&boot, field::SERIAL);
    let identity = VolumeIdentity {
        kind: "exFAT",
        label: root.as_ref().ok().and_then(|root| root.label.clone()),
        uuid: Some(format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF)),
        size: geometry.size,
    };
    let verdict = root
        .and_then(|root| prove(source, &boot, &geometry, &root))
        .map(|map| -> Box<dyn Volume> { Box::new(map) });
    // VolumeDirty is written before the first change (§3.1.13.2).
    Ok(Examined { identity, notes: Vec::new(), mounted: Mounted::No, verdict })
}

fn prove(
    source: &dyn ByteSource,
    boot: &[u8; 512],
    geometry: &Geometry,
    root: &Root,
) -> Result<ClusterMap, Doubt> {
    if geometry.size > source.len() {
        return Err(Doubt::new(format!(
            "it has {} bytes, more than the {} of its container",
            geometry.size,
            source.len()
        )));
    }
    geometry.check_boot_region(source)?;
    let flags = le16(boot, field::FLAGS);
    if flags & VOLUME_DIRTY != 0 {
        return Err(Doubt::mounted("it was not unmounted (it is marked dirty)")
            .helped_by("unmount it in the guest, or run fsck.exfat, or chkdsk on Windows"));
    }
    if flags & MEDIA_FAILURE != 0 {
        return Err(damaged("I/O errors were met on it (it is marked so)"));
    }
    let mut copies = Vec::new();
    // The first bitmap goes with the first table, the second with the second (§7.1.2).
    let mut tables = geometry.tables.clone();
    tables.sort_unstable();
    for (table, entry) in tables.iter().zip(&root.bitmaps) {
        let entry = entry.ok_or_else(|| {
            Doubt::new("its root directory names no allocation bitmap for one of its tables")
        })?;
        let (len, needed) = (le64(&entry, 24), geometry.clusters.div_ceil(8));
        if len < needed {
            return Err(Doubt::new(format!(
                "its allocation bitmap has {len} bytes, and {} clusters need {needed}",
                geometry.clusters
            )));
        }
        copies.push(geometry.file(source, *table, &entry)?);
    }
    let up_case = root.up_case.ok_or_else(|| Doubt::new("its root directory names no up-case table"))?;
    let up_case = geometry.file(source, geometry.tables[0], &up_case)?;

    let own: Vec<_> = copies.iter().flatten().chain(&up_case).chain(&root.runs).copied().collect();
    let bitmap = ClusterBitmap::new(copies, geometry.clusters, geometry.heap, geometry.cluster);
    for run in &own {
        let first = (run.at - geometry.heap) / geometry.cluster;
        let end = (run.at + run.len - geometry.heap).div_ceil(geometry.cluster);
        if !bitmap.allocated(source, first..end)? {
            return Err(damaged(format!(
                "its allocation bitmap has clusters {} to {} as free, which hold its own structures",
                first + 2,
                end + 1
            )));
        }
    }
    files::check(source, geometry, &bitmap, &root.runs)?;
    let metadata = Ranges::union(
        own.iter().map(|run| run.at..run.at + run.len).chain(std::iter::once(0..geometry.heap)),
    );
    ClusterMap::new(bitmap, geometry.size, metadata, source)
}

//! NTFS 3.x.
//!
//! Record 6 of the master file table, $Bitmap, is the free map. The proof: every record in use is whole, and the
//! clusters of each file are allocated in the map; the padding of the map is ones; the volume is neither dirty nor
//! hibernated in. More bits than files have clusters are normal. Dirty is told by three things that do not follow from
//! each other: a flag in $Volume, the restart pages of $LogFile, and an image in hiberfil.sys. None of them tells of
//! ntfs-3g, which mounts without a mark: what it had not written when it was killed is found by its files alone.
//!
//! A volume with shadow copies has no free clusters: what a snapshot has not saved it reads from the volume as it is
//! now, where those clusters may be free.
//!
//! Written from the published layouts, not with the crate `ntfs`: what is needed of it is the smaller part (records,
//! runs, attribute lists), its three generations of derive macros take longer to build than this crate, and a hostile
//! disk must not decide how much is read or allocated.
//!
//! | file | has |
//! |---|---|
//! | `record` | the master file table: records, attributes, runs |
//! | `journal` | what $LogFile says |
//! | `hibernation` | hiberfil.sys in the root directory |

mod hibernation;
mod journal;
mod record;

use crate::cluster_bitmap::{Claim, Claims, ClusterBitmap, ClusterMap};
use crate::fields::{label, le16, le64};
use crate::map::Ranges;
use crate::source::{ByteSource, Unreadable};
use crate::volume::{Doubt, Examined, Mounted, Volume, VolumeIdentity};
use record::{CHKDSK, DATA, Mft, Record, SYSTEM_RECORDS, Stream, VOLUME_INFORMATION, VOLUME_NAME};

/// Fields of the boot sector: offset.
mod field {
    pub(super) const NAME: usize = 3;
    pub(super) const SECTOR_SIZE: usize = 0x0B;
    pub(super) const CLUSTER_SECTORS: usize = 0x0D;
    /// Fields of FAT that are 0 here: reserved sectors to sectors, and the length of a table.
    pub(super) const ZEROS: [std::ops::Range<usize>; 3] = [0x0E..0x15, 0x16..0x18, 0x20..0x24];
    pub(super) const SECTORS: usize = 0x28;
    pub(super) const MFT: usize = 0x30;
    pub(super) const RECORD: usize = 0x40;
    pub(super) const SERIAL: usize = 0x48;
    pub(super) const SIGNATURE: usize = 510;
}

/// Records of the master file table.
const VOLUME: u64 = 3;
const BITMAP: u64 = 6;

/// Up to so many records (1 GiB of them) all files are held against the map, 60,000 in 0.2 s; above, the system's own.
const FILES_MAX: u64 = 1 << 20;

/// Flags of $Volume.
const DIRTY: u16 = 1;
const CHKDSK_UNDER_WAY: u16 = 0x4000;
const CHANGED_BY_CHKDSK: u16 = 0x8000;
/// The others of which Windows' and Linux' drivers want nothing written before someone has seen to them: the log is to
/// be resized, the change journal is being deleted, object ids are to be repaired.
const UNFINISHED: u16 = 0x0032;

/// The header of the volume shadow copy service, whose store's catalogue it names.
const SHADOW_HEADER: u64 = 0x1E00;
const SHADOW_GUID: [u8; 16] =
    [0x6B, 0x87, 0x08, 0x38, 0x76, 0xC1, 0x48, 0x4E, 0xB7, 0xAE, 0x04, 0x04, 0x6E, 0x6C, 0xC7, 0x52];
const SHADOW_CATALOGUE: usize = 48;

/// Geometry from the boot sector.
struct Geometry {
    /// Bytes in a cluster.
    cluster: u64,
    clusters: u64,
    /// Bytes in a record of the master file table.
    record: u64,
    mft: u64,
    size: u64,
}

impl Geometry {
    fn read(boot: &[u8; 512]) -> Result<Self, Doubt> {
        let wrong = |what: &str| Doubt::new(format!("its boot sector makes no sense: {what}"));
        let sector = u64::from(le16(boot, field::SECTOR_SIZE));
        let per_cluster = match boot[field::CLUSTER_SECTORS] {
            sectors @ ..=0x80 => u64::from(sectors),
            // A power of two that does not fit, as its negative exponent: up to 2 MiB are formatted.
            exponent @ 0xF4.. => 1 << (256 - u32::from(exponent)),
            _ => 0,
        };
        if !sector.is_power_of_two() || !(256..=4096).contains(&sector) || !per_cluster.is_power_of_two() {
            return Err(wrong("the size of sectors or clusters"));
        }
        let cluster = sector * per_cluster;
        let record = match boot[field::RECORD] as i8 {
            clusters @ 1.. => u64::from(clusters.unsigned_abs()) * cluster,
            exponent @ -31..=-1 => 1 << -exponent,
            _ => 0,
        };
        if !record.is_power_of_two() || !(512..=1 << 16).contains(&record) {
            return Err(wrong("the size of records"));
        }
        let sectors = le64(boot, field::SECTORS);
        let size = sectors.checked_mul(sector).ok_or_else(|| wrong("its length"))?;
        let (clusters, mft) = (sectors / per_cluster, le64(boot, field::MFT));
        if mft >= clusters {
            return Err(wrong("where the master file table is"));
        }
        Ok(Self { cluster, clusters, record, mft, size })
    }
}

/// Returns `true` if the volume begins with an NTFS boot sector.
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    if !source.has(0, 512) {
        return Ok(false);
    }
    let boot = source.array::<512>(0)?;
    Ok(boot[field::NAME..].starts_with(b"NTFS    ")
        && le16(&boot, field::SIGNATURE) == 0xAA55
        && field::ZEROS.iter().all(|zeros| boot[zeros.clone()].iter().all(|byte| *byte == 0)))
}

/// Reads the system files. See the module.
pub fn examine(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let boot = source.array::<512>(0)?;
    let geometry = Geometry::read(&boot)?;
    let mft = Mft::open(source, geometry.mft, geometry.record, geometry.cluster, geometry.clusters);
    let name = mft.as_ref().ok().and_then(|mft| mft.stream(source, VOLUME, VOLUME_NAME, "").ok()?);
    let name = match name {
        Some(Stream::Resident(name)) => name,
        _ => Vec::new(),
    };
    let name = char::decode_utf16(name.chunks_exact(2).map(|unit| le16(unit, 0)))
        .map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect::<String>();
    let identity = VolumeIdentity {
        kind: "NTFS",
        label: label(name.as_bytes()),
        uuid: Some(format!("{:016X}", le64(&boot, field::SERIAL))),
        size: geometry.size,
    };
    let mut notes = Vec::new();
    let verdict = mft
        .and_then(|mft| prove(source, &geometry, &mft, &mut notes))
        .map(|map| -> Box<dyn Volume> { Box::new(map) });
    // ntfs-3g mounts without a mark.
    Ok(Examined { identity, notes, mounted: Mounted::Untold, verdict })
}

fn prove(
    source: &dyn ByteSource,
    geometry: &Geometry,
    mft: &Mft,
    notes: &mut Vec<String>,
) -> Result<ClusterMap, Doubt> {
    let damaged = |what: String| Doubt::new(what).helped_by(CHKDSK);
    if geometry.size > source.len() {
        return Err(Doubt::new(format!(
            "it has {} bytes, more than the {} of its container",
            geometry.size,
            source.len()
        )));
    }
    check_flags(source, mft)?;
    journal::check(source, mft)?;
    hibernation::check(source, mft)?;
    let shadows = source.array::<64>(SHADOW_HEADER)?;
    if shadows.starts_with(&SHADOW_GUID) && le64(&shadows, SHADOW_CATALOGUE) != 0 {
        return Err(Doubt::new("it has shadow copies, which may need free clusters")
            .helped_by("delete them in Windows (vssadmin delete shadows)"));
    }

    let data = mft.stream(source, BITMAP, DATA, "")?;
    let data = data.ok_or_else(|| damaged("$Bitmap has no data".into()))?;
    let Stream::Clusters { size, .. } = data else { return Err(damaged("$Bitmap is in its record".into())) };
    if size < geometry.clusters.div_ceil(8) {
        return Err(damaged(format!("$Bitmap has {size} bytes, too few for {} clusters", geometry.clusters)));
    }
    let segments = data.segments(geometry.cluster)?;
    // The bitmap's length is rounded up to 8 bytes.
    let padded = geometry.clusters.next_multiple_of(64).min(size.saturating_mul(8));
    let with_padding = ClusterBitmap::new(vec![segments.clone()], padded, 0, 1);
    if !with_padding.allocated(source, geometry.clusters..padded)? {
        return Err(damaged("$Bitmap has clusters behind the volume's end as free".into()));
    }
    let bitmap = ClusterBitmap::new(vec![segments], geometry.clusters, 0, geometry.cluster);
    let mut claims = Claims::new(&bitmap, source);
    let false_claim = |claim: &Claim| {
        damaged(format!(
            "$Bitmap has clusters of file {} as free, from {} to {}",
            claim.owner,
            claim.first,
            claim.end - 1
        ))
    };
    let mut claim = |owner: u64, record: &Record| {
        for attribute in record.attributes().filter(|attribute| !attribute.is_resident()) {
            for run in attribute.runs(geometry.clusters)? {
                let Some(first) = run.lcn else { continue };
                claims.push(Claim { first, end: first + run.len, owner }, false_claim)?;
            }
        }
        Ok(())
    };
    for number in SYSTEM_RECORDS {
        for record in mft.file(source, number)? {
            claim(number, &record)?;
        }
    }
    let files = mft.written(source)?;
    if files <= FILES_MAX {
        mft.for_each(source, files, &mut claim)?;
    } else {
        notes.push(format!(
            "it has {files} records: whether all their clusters are in its bitmap was not looked at"
        ));
    }
    claims.check(false_claim)?;
    // $Boot has so much since there is NTFS; all else has just been found in the map.
    let metadata = Ranges::union(std::iter::once(0..8192.min(geometry.size)));
    ClusterMap::new(bitmap, geometry.size, metadata, source)
}

/// An error where $Volume says that someone has to see to the volume.
fn check_flags(source: &dyn ByteSource, mft: &Mft) -> Result<(), Doubt> {
    let information = mft.stream(source, VOLUME, VOLUME_INFORMATION, "")?;
    let Some(Stream::Resident(information)) = information.filter(|information| match information {
        Stream::Resident(bytes) => bytes.len() >= 12,
        Stream::Clusters { .. } => false,
    }) else {
        return Err(Doubt::new("$Volume does not say in which state it is").helped_by(CHKDSK));
    };
    let found = |what: &str| Err(Doubt::new(what).helped_by(CHKDSK));
    match le16(&information, 10) {
        flags if flags & CHKDSK_UNDER_WAY != 0 => found("chkdsk has begun with it and not ended"),
        flags if flags & DIRTY != 0 => found("it is marked dirty (in $Volume)"),
        flags if flags & CHANGED_BY_CHKDSK != 0 => found("it is marked as changed by chkdsk (in $Volume)"),
        flags if flags & UNFINISHED != 0 => found("it has changes that wait for Windows (in $Volume)"),
        _ if information[8] != 3 => found("its version of NTFS is unknown"),
        _ => Ok(()),
    }
}

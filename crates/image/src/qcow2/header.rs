//! The header of a qcow2 file.

use lunway_vhdx::Storage;
use zerocopy::FromBytes;

use super::format::{
    BACKING_NAME_MAX, CLUSTER_BITS, CLUSTER_BITS_EXTENDED, Header, HeaderV3, L1_LEN_MAX, MAGIC, extension,
    incompatible,
};
use crate::error::ImageOpenError;

/// The format of a backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingFormat {
    /// The bytes as they are.
    Raw,
    /// The same format.
    Qcow2,
    /// VHD, which QEMU calls `vpc`.
    Vhd,
}

/// Fields of a header that are used.
pub(super) struct Parsed {
    pub(super) size: u64,
    pub(super) cluster_bits: u32,
    pub(super) l1_offset: u64,
    pub(super) l1_entries: u64,
    /// Version 3: L2 entries may say zeroes.
    pub(super) zero_flag: bool,
    pub(super) extended: bool,
    pub(super) backing: Option<(String, BackingFormat)>,
}

fn corrupt(problem: impl std::fmt::Display) -> ImageOpenError {
    ImageOpenError::corrupt("qcow2 header", problem)
}

fn unsupported(why: &str) -> ImageOpenError {
    ImageOpenError::Unsupported(why.to_owned())
}

/// Reads the header and everything in its cluster.
pub(super) fn parse(storage: &impl Storage) -> Result<Parsed, ImageOpenError> {
    let none = || ImageOpenError::NotThis { format: "qcow2", why: "it does not begin with \"QFI\\xfb\"" };
    let len = storage.len().map_err(ImageOpenError::read("asking for the file's length"))?;
    let mut bytes = [0; size_of::<Header>()];
    if len < bytes.len() as u64 {
        return Err(none());
    }
    storage.read_at(0, &mut bytes).map_err(ImageOpenError::read("reading the header"))?;
    let header = Header::read_from_bytes(&bytes).map_err(|_| none())?;
    if header.magic != MAGIC {
        return Err(none());
    }
    let cluster_bits = header.cluster_bits.get();
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(corrupt(format!("clusters of 2^{cluster_bits} bytes: 2^9 to 2^21 are possible")));
    }
    // The header, its extensions and the backing file's name are in the first cluster: 2 MiB at most.
    let mut first = vec![0; len.min(1 << cluster_bits) as usize];
    storage.read_at(0, &mut first).map_err(ImageOpenError::read("reading the header"))?;
    let (features, behind) = match header.version.get() {
        2 => (0, size_of::<Header>()),
        3 => features(&first)?,
        other => return Err(unsupported(&format!("qcow2 version {other} is not known here: 2 and 3 are"))),
    };
    refuse(&header, features)?;
    let extended = features & incompatible::EXTENDED_L2 != 0;
    if extended && cluster_bits < CLUSTER_BITS_EXTENDED {
        return Err(corrupt("extended L2 entries with clusters of less than 16 KiB"));
    }
    let parsed = Parsed {
        size: header.size.get(),
        cluster_bits,
        l1_offset: header.l1_table_offset.get(),
        l1_entries: header.l1_size.get().into(),
        zero_flag: header.version.get() >= 3,
        extended,
        backing: backing(&header, &first, behind)?,
    };
    check_l1(&parsed, len)?;
    Ok(parsed)
}

/// The incompatible features, and where the extensions begin.
fn features(first: &[u8]) -> Result<(u64, usize), ImageOpenError> {
    let more = first.get(size_of::<Header>()..).and_then(|rest| HeaderV3::read_from_prefix(rest).ok());
    let (more, _) = more.ok_or_else(|| corrupt("it is too short for version 3"))?;
    let len = more.header_length.get() as usize;
    let least = size_of::<Header>() + size_of::<HeaderV3>();
    if len < least || len > first.len() || !len.is_multiple_of(8) {
        return Err(corrupt(format!("a length of {len} bytes")));
    }
    Ok((more.incompatible_features.get(), len))
}

/// Refuses what cannot be read, or not be trusted.
fn refuse(header: &Header, features: u64) -> Result<(), ImageOpenError> {
    if header.crypt_method.get() != 0 {
        let why = "the image is encrypted: `qemu-img convert` with its secret makes one that is not";
        return Err(unsupported(why));
    }
    let known = [
        (
            incompatible::CORRUPT,
            "the image is marked as corrupt: `qemu-img check -r all` repairs what it can",
        ),
        (incompatible::DIRTY, "the image was not closed: `qemu-img check -r all` makes it clean"),
        (
            incompatible::EXTERNAL_DATA,
            "the image has its data in another file: `qemu-img convert -O qcow2` makes one with its own",
        ),
        (
            incompatible::COMPRESSION,
            "the image is compressed with another method than zlib: `qemu-img convert -O qcow2` makes one that is not",
        ),
    ];
    if let Some((_, why)) = known.iter().find(|(bit, _)| features & bit != 0) {
        return Err(unsupported(why));
    }
    match features & !incompatible::EXTENDED_L2 {
        0 => Ok(()),
        unknown => {
            Err(unsupported(&format!("the image needs features that are not known here: {unknown:#x}")))
        }
    }
}

/// The table must lie in the file, not over the header, and be large enough for the disk.
fn check_l1(parsed: &Parsed, len: u64) -> Result<(), ImageOpenError> {
    let corrupt = |problem: String| ImageOpenError::corrupt("L1 table", problem);
    let (offset, bytes) = (parsed.l1_offset, parsed.l1_entries * 8);
    if bytes > L1_LEN_MAX {
        return Err(corrupt(format!("{bytes} bytes: at most {L1_LEN_MAX} are possible")));
    }
    if parsed.size > i64::MAX as u64 {
        return Err(ImageOpenError::corrupt("qcow2 header", format!("a disk of {} bytes", parsed.size)));
    }
    let needed = parsed.size.div_ceil(parsed.bytes_per_l1_entry());
    if needed > parsed.l1_entries {
        return Err(corrupt(format!("{} entries for a disk that needs {needed}", parsed.l1_entries)));
    }
    let cluster = 1 << parsed.cluster_bits;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= len);
    if !offset.is_multiple_of(cluster) || offset < cluster || !fits {
        return Err(corrupt(format!("at byte {offset} it is outside of the file, or over the header")));
    }
    Ok(())
}

impl Parsed {
    /// Bytes of an L2 entry.
    pub(super) fn entry_len(&self) -> u64 {
        if self.extended { 16 } else { 8 }
    }

    /// Bytes of the disk behind one L2 table.
    pub(super) fn bytes_per_l1_entry(&self) -> u64 {
        let cluster = 1 << self.cluster_bits;
        cluster / self.entry_len() * cluster
    }
}

fn backing(
    header: &Header,
    first: &[u8],
    extensions: usize,
) -> Result<Option<(String, BackingFormat)>, ImageOpenError> {
    let (offset, len) = (header.backing_file_offset.get(), header.backing_file_size.get());
    let format = backing_format(first, extensions, offset)?;
    if offset == 0 {
        return Ok(None);
    }
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let name = first.get(start..).and_then(|rest| rest.get(..len as usize));
    let name = name.filter(|name| !name.is_empty() && len <= BACKING_NAME_MAX);
    let name = name.ok_or_else(|| corrupt(format!("a backing file's name of {len} bytes at {offset}")))?;
    let name =
        std::str::from_utf8(name).map_err(|_| corrupt("the backing file's name is not UTF-8"))?.to_owned();
    let format = match format.as_deref() {
        Some(b"raw") => BackingFormat::Raw,
        Some(b"qcow2") => BackingFormat::Qcow2,
        Some(b"vpc") => BackingFormat::Vhd,
        Some(other) => {
            let why = format!("its format, {}, is not read here", other.escape_ascii());
            return Err(ImageOpenError::ParentRefused { name, why });
        }
        // QEMU would guess by content, which a guest writes.
        None => {
            let why =
                "the image does not say its format: `qemu-img rebase -u -b NAME -F raw` (or `-F qcow2`) does"
                    .to_owned();
            return Err(ImageOpenError::ParentRefused { name, why });
        }
    };
    Ok(Some((name, format)))
}

/// The extension with the backing file's format. Extensions end before the backing file's name.
fn backing_format(first: &[u8], start: usize, name_offset: u64) -> Result<Option<Vec<u8>>, ImageOpenError> {
    let end = usize::try_from(name_offset).ok().filter(|end| *end > start).unwrap_or(first.len());
    let area = first.get(..end.min(first.len())).unwrap_or_default();
    let mut at = start;
    // Each takes 8 bytes at least, of a cluster.
    while let Some((head, _)) = area.get(at..).and_then(|rest| rest.split_first_chunk::<8>()) {
        let [kind, len] =
            [&head[..4], &head[4..]].map(|half| half.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)));
        if kind == extension::END {
            break;
        }
        let data = area.get(at + 8..).and_then(|rest| rest.get(..len as usize));
        let data = data.ok_or_else(|| corrupt(format!("an extension of {len} bytes at {at}")))?;
        if kind == extension::BACKING_FORMAT {
            return Ok(Some(data.to_vec()));
        }
        at += 8 + data.len().next_multiple_of(8);
    }
    Ok(None)
}

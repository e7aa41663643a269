//! A VHD or qcow2 file with parts of it replaced: opened and read. Nothing may panic, loop or take memory without
//! bound.
//!
//! The input's first byte chooses a file; patches follow, each a structure, an offset in it, and bytes. Checksums of a
//! VHD are made right again, so that what is behind them is reached.

use std::sync::OnceLock;

use lunway_image::vhd::format::{FOOTER_CHECKSUM, HEADER_CHECKSUM, checksum};
use lunway_image::vhd::{Layout, Writer};
use lunway_image::{Format, Image};
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::format::Guid;

const KIB: u64 = 1 << 10;
/// What is read of a disk: all of a small one, the ends of one that says that it is larger.
const READ: u64 = 256 * KIB;

fn vhd(fixed: bool) -> Vec<u8> {
    let layout =
        Layout { size: 1024 * KIB, fixed, block_size: Some(512 * KIB), id: Guid::from_digits(7), now: 0 };
    let storage = std::sync::Arc::new(MemoryStorage::default());
    let writer = Writer::create(storage.clone(), &layout).expect("a new file");
    writer.write_at(0, &[7; 4096]).expect("memory");
    writer.flush().expect("memory");
    storage.to_bytes()
}

/// Clusters of 512 bytes; the L1 table in the second, an L2 table in the third, then data, stored and compressed.
fn qcow2(extended: bool) -> Vec<u8> {
    let bits = if extended { 14 } else { 9 };
    let cluster = 1u64 << bits;
    let mut bytes = vec![0; 5 * cluster as usize];
    let mut put = |at: u64, part: &[u8]| bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
    put(0, b"QFI\xfb\0\0\0\x03");
    put(20, &(bits as u32).to_be_bytes());
    put(24, &(8 * cluster).to_be_bytes());
    put(36, &1u32.to_be_bytes());
    put(40, &cluster.to_be_bytes());
    put(72, &(u64::from(extended) << 4).to_be_bytes());
    put(96, &4u32.to_be_bytes());
    put(100, &104u32.to_be_bytes());
    put(cluster, &((2 * cluster) | (1 << 63)).to_be_bytes());
    let entry = if extended { 16 } else { 8 };
    let stored = (3 * cluster) | (1 << 63);
    put(2 * cluster, &stored.to_be_bytes());
    if extended {
        put(2 * cluster + 8, &0x0000_FF00_0000_00FFu64.to_be_bytes());
    }
    // A stored block of deflate (RFC 1951 §3.2.4) with all of a cluster would not fit in one: half of one is damage.
    put(2 * cluster + entry, &((1 << 62) | (4 * cluster)).to_be_bytes());
    put(2 * cluster + 2 * entry, &1u64.to_be_bytes());
    put(3 * cluster, &[9; 512]);
    put(4 * cluster, &[1, 0, 1, 0xFF, 0xFE]);
    bytes
}

/// A file, and where its structures are.
type Base = (Format, Vec<u8>, Vec<u64>);

/// A fixed and a dynamic VHD, and two qcow2 files.
fn bases() -> &'static [Base; 4] {
    static BASES: OnceLock<[Base; 4]> = OnceLock::new();
    BASES.get_or_init(|| {
        let (fixed, dynamic) = (vhd(true), vhd(false));
        let ends = [&fixed, &dynamic].map(|file| file.len() as u64 - 512);
        [
            (Format::Vhd, fixed, vec![ends[0]]),
            (Format::Vhd, dynamic, vec![ends[1], 0, 512, 1536, 2048]),
            (Format::Qcow2, qcow2(false), vec![0, 72, 512, 1024, 2048]),
            (Format::Qcow2, qcow2(true), vec![0, 72, 16 * KIB, 32 * KIB, 64 * KIB]),
        ]
    })
}

/// Makes the checksums of a VHD right, wherever its structures are by now.
fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 512;
    for (at, len, field) in
        [(end, 512, FOOTER_CHECKSUM), (0, 512, FOOTER_CHECKSUM), (512, 1024, HEADER_CHECKSUM)]
    {
        if let Some(part) = bytes.get_mut(at..at + len) {
            let sum = checksum(part, field);
            part[field..field + 4].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// Opens and reads what the input makes.
pub(crate) fn run(input: &[u8]) {
    let Some((first, mut rest)) = input.split_first() else { return };
    let (format, base, places) = &bases()[usize::from(first % 4)];
    let mut bytes = base.clone();
    while let Some(([place, low, high, len], patch)) = rest.split_first_chunk::<4>() {
        let at = places[usize::from(*place) % places.len()] as usize
            + usize::from(u16::from_le_bytes([*low, *high]));
        let (patch, behind) = patch.split_at(patch.len().min((*len).into()));
        for (to, from) in bytes.iter_mut().skip(at).zip(patch) {
            *to = *from;
        }
        rest = behind;
    }
    if *format == Format::Vhd && first & 0x80 == 0 {
        let disk_end = bytes.len();
        seal(&mut bytes[..disk_end]);
    }
    let Ok(image) = Image::open_alone(MemoryStorage::of_bytes(&bytes), *format) else { return };
    let size = image.size();
    let mut buf = vec![0; READ as usize];
    for offset in [0, size / 2, size.saturating_sub(READ)] {
        let len = READ.min(size - offset) as usize;
        let _ = image.read_at(offset, &mut buf[..len]);
        let mut end = offset;
        let mapped = image.map(offset, len as u64, |segment| {
            assert!(segment.offset == end && segment.len > 0, "{segment:?}");
            end += segment.len;
        });
        assert!(mapped.is_err() || end == offset + len as u64);
    }
    let _ = image.layers().count();
}

//! VHD files against arrays: the writer, and differencing disks as the specification lays them out.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use lunway_image::vhd::format::{FOOTER_CHECKSUM, HEADER_CHECKSUM, checksum};
use lunway_image::vhd::{Layout, WriteError, Writer};
use lunway_image::{Format, Image, ImageKind, LayerSource};
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::format::Guid;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn layout(size: u64, fixed: bool) -> Layout {
    Layout { size, fixed, block_size: Some(512 * KIB), id: Guid::from_digits(7), now: 1_700_000_000 }
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn what_is_written_is_read_by_the_writer_and_after_each_flush_by_the_reader() {
    const SIZE: u64 = 3 * MIB + 512;
    for fixed in [false, true] {
        let storage = Arc::new(MemoryStorage::default());
        let mut writer = Writer::create(storage.clone(), &layout(SIZE, fixed)).unwrap();
        let (mut bytes, mut state) = (vec![0; SIZE as usize], 1);
        for step in 0..400u64 {
            let first = random(&mut state) % (SIZE / 512);
            let len = 1 + random(&mut state) % [1, 64, 2000][random(&mut state) as usize % 3];
            let (offset, len) = (first * 512, len.min(SIZE / 512 - first) * 512);
            let range = offset as usize..(offset + len) as usize;
            match random(&mut state) % 8 {
                0..4 => {
                    let data = vec![(step % 255) as u8 + 1; len as usize];
                    writer.write_at(offset, &data).unwrap();
                    bytes[range].copy_from_slice(&data);
                }
                4 => {
                    writer.write_zeroes(offset, len).unwrap();
                    bytes[range].fill(0);
                }
                5 => {
                    writer.flush().unwrap();
                    let image = Image::open_alone(storage.clone(), Format::Vhd).unwrap();
                    let mut read = vec![1; SIZE as usize];
                    image.read_at(0, &mut read).unwrap();
                    assert!(read == bytes, "step {step}");
                    if step % 3 == 0 {
                        writer = Writer::open(storage.clone()).unwrap();
                    }
                }
                _ => {
                    let mut read = vec![1; len as usize];
                    writer.read_at(offset, &mut read).unwrap();
                    assert!(read == bytes[range], "step {step}");
                }
            }
        }
    }
}

#[test]
fn an_interrupted_file_goes_on_from_its_last_flush() {
    let storage = Arc::new(MemoryStorage::default());
    let writer = Writer::create(storage.clone(), &layout(4 * MIB, false)).unwrap();
    writer.write_at(0, &[1; 512]).unwrap();
    writer.flush().unwrap();
    writer.write_at(MIB, &[2; 512]).unwrap();
    // Killed here: the second block has no entry. Its place is used again, without what was in it.
    let writer = Writer::open(storage.clone()).unwrap();
    writer.write_at(2 * MIB, &[3; 512]).unwrap();
    writer.flush().unwrap();
    let image = Image::open_alone(storage, Format::Vhd).unwrap();
    let at = |offset: u64| {
        let mut sector = [9; 512];
        image.read_at(offset, &mut sector).unwrap();
        assert!(sector.iter().all(|byte| *byte == sector[0]));
        sector[0]
    };
    assert_eq!([0, 512, MIB, 2 * MIB, 2 * MIB + 512].map(at), [1, 0, 0, 3, 0]);
}

#[test]
fn only_disks_that_the_format_has_are_made() {
    let made = |layout: Layout| Writer::create(MemoryStorage::default(), &layout).map(|_| ());
    for size in [0, 513, (2040 << 30) + 512, 1 << 63] {
        assert!(matches!(made(layout(size, false)), Err(WriteError::Size(_))), "{size}");
    }
    for block in [0, 256 * KIB, 3 * MIB, 512 * MIB] {
        let refused = made(Layout { block_size: Some(block), ..layout(MIB, false) });
        assert!(matches!(refused, Err(WriteError::BlockSize(_))), "{block}");
    }
    made(layout(2040 << 30, false)).unwrap();
}

/// Makes a child of a dynamic file: other identity, type 4, the parent's identity and paths. Which sectors it has is
/// said by its bitmaps, which the writer marks whole: `marks` are the bytes for the first block.
fn child(folder: &Path, name: &str, parent: Guid, paths: (&str, &str, &str), data: u8, marks: &[u8]) {
    let storage = Arc::new(MemoryStorage::default());
    let writer = Writer::create(
        storage.clone(),
        &Layout { id: Guid::from_digits(u128::from(data)), ..layout(2 * MIB, false) },
    )
    .unwrap();
    writer.write_at(0, &vec![data; 512 << 10]).unwrap();
    writer.flush().unwrap();
    let mut bytes = storage.to_bytes();
    let (header, block) = (512, 2048 + 512);
    assert_eq!(bytes[block - 512..block - 512 + 128], [0xFF; 128]);
    bytes[block - 512..][..marks.len()].copy_from_slice(marks);
    bytes[60..64].copy_from_slice(&4u32.to_be_bytes());
    bytes[header + 40..header + 56].copy_from_slice(&parent.to_digits().to_be_bytes());
    let (unicode, relative, absolute) = paths;
    for (at, unit) in unicode.encode_utf16().enumerate() {
        bytes[header + 64 + 2 * at..][..2].copy_from_slice(&unit.to_be_bytes());
    }
    // Paths behind the blocks, before the footer.
    let footer = bytes.split_off(bytes.len() - 512);
    for (slot, platform, path) in [(0, b"W2ku", absolute), (1, b"W2ru", relative)] {
        let text: Vec<u8> = path.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let entry = header + 576 + slot * 24;
        bytes[entry..entry + 4].copy_from_slice(platform);
        bytes[entry + 4..entry + 8].copy_from_slice(&1u32.to_be_bytes());
        bytes[entry + 8..entry + 12].copy_from_slice(&(text.len() as u32).to_be_bytes());
        let at = bytes.len() as u64;
        bytes[entry + 16..entry + 24].copy_from_slice(&at.to_be_bytes());
        bytes.extend(&text);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend(footer);
    let end = bytes.len() - 512;
    let copy = bytes[..512].to_vec();
    bytes[end..].copy_from_slice(&copy);
    for (at, len, field) in
        [(end, 512, FOOTER_CHECKSUM), (0, 512, FOOTER_CHECKSUM), (header, 1024, HEADER_CHECKSUM)]
    {
        let sum = checksum(&bytes[at..at + len], field);
        bytes[at + field..at + field + 4].copy_from_slice(&sum.to_be_bytes());
    }
    fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn a_differencing_disk_shows_its_parent_where_its_bitmaps_say() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file =
        fs::File::options().read(true).write(true).create_new(true).open(folder.join("base.vhd")).unwrap();
    let writer = Writer::create(file, &layout(2 * MIB, false)).unwrap();
    writer.write_at(0, &vec![1; MIB as usize]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let base = Guid::from_digits(7);
    // The first sector is the highest bit: 10000001 01000000, then nothing.
    let mut marks = vec![0; 128];
    (marks[0], marks[1]) = (0x81, 0x40);
    let paths = ("base.vhd", ".\\base.vhd", "C:\\disks\\base.vhd");
    child(folder, "one.avhd", base, paths, 2, &marks);
    let open = |name: &str| Image::open_files(&folder.join(name), Format::Vhd);
    let image = open("one.avhd").unwrap();
    assert_eq!(
        image.layers().map(|layer| layer.kind).collect::<Vec<_>>(),
        [ImageKind::Differencing, ImageKind::Dynamic]
    );
    let mut read = vec![9; 2 << 20];
    image.read_at(0, &mut read).unwrap();
    let sectors: Vec<u8> = read.chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(sectors[..11], [2, 1, 1, 1, 1, 1, 1, 2, 1, 2, 1]);
    assert!(sectors[11..2048].iter().all(|byte| *byte == 1) && sectors[2048..].iter().all(|byte| *byte == 0));
    let mut map = Vec::new();
    image
        .map(0, 2 * MIB, |segment| {
            map.push((segment.len, segment.level, segment.source == LayerSource::Absent));
        })
        .unwrap();
    assert_eq!(map.iter().map(|piece| piece.0).sum::<u64>(), 2 * MIB);
    assert_eq!(map[..3], [(512, 0, false), (6 * 512, 1, false), (512, 0, false)]);
    assert_eq!(map.last(), Some(&(MIB, 1, true)));

    // A child of the child; one whose parent is another disk; one that names nothing in its folder; its own parent.
    child(folder, "two.avhd", Guid::from_digits(2), ("one.avhd", ".\\one.avhd", "x"), 3, &[0; 128]);
    assert_eq!(open("two.avhd").unwrap().paths().len(), 3);
    child(folder, "other.avhd", Guid::from_digits(99), paths, 4, &[0; 128]);
    assert!(
        open("other.avhd").err().unwrap().to_string().contains("another disk than the child was made on")
    );
    child(
        folder,
        "lost.avhd",
        base,
        ("../../etc/passwd", "..\\..\\etc\\passwd", "/etc/passwd"),
        5,
        &[0; 128],
    );
    assert!(open("lost.avhd").err().unwrap().to_string().contains("was not found"));
    child(folder, "self.avhd", Guid::from_digits(6), ("self.avhd", "self.avhd", "x"), 6, &[0; 128]);
    assert!(open("self.avhd").err().unwrap().to_string().contains("leads back to"));
}

//! Files that nobody made in good faith, and what is said of them.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

#[path = "fuzzed/images.rs"]
mod fuzzed;

use std::fs;
use std::path::Path;

use lunway_image::vhd::{Layout, Writer};
use lunway_image::{Format, Image};
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::format::Guid;

const KIB: u64 = 1 << 10;

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn files_with_any_part_replaced_do_not_panic() {
    for seed in 0..4_000 {
        let mut state = seed;
        let mut input = vec![random(&mut state) as u8];
        for _ in 0..1 + random(&mut state) % 3 {
            let reach = if random(&mut state).is_multiple_of(2) { 128 } else { 2048 };
            let offset = (random(&mut state) % reach) as u16;
            let len = 1 + (random(&mut state) % 8) as u8;
            input.extend([random(&mut state) as u8, offset as u8, (offset >> 8) as u8, len]);
            for _ in 0..len {
                input.push([0, 1, 0xFF, random(&mut state) as u8][random(&mut state) as usize % 4]);
            }
        }
        let result = std::panic::catch_unwind(|| fuzzed::run(&input));
        assert!(result.is_ok(), "seed {seed}: {input:?}");
    }
}

/// A qcow2 header (version 3) with these fields, and 1 MiB behind it.
fn qcow2(fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let base: [(usize, &[u8]); 8] = [
        (0, b"QFI\xfb"),
        (4, &3u32.to_be_bytes()),
        (20, &16u32.to_be_bytes()),
        (24, &(1u64 << 20).to_be_bytes()),
        (36, &1u32.to_be_bytes()),
        (40, &(1u64 << 16).to_be_bytes()),
        (96, &4u32.to_be_bytes()),
        (100, &104u32.to_be_bytes()),
    ];
    for (at, value) in base.iter().chain(fields) {
        bytes[*at..at + value.len()].copy_from_slice(value);
    }
    bytes
}

fn said(bytes: &[u8], format: Format) -> String {
    match Image::open_alone(MemoryStorage::of_bytes(bytes), format) {
        Ok(_) => "opened".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_a_qcow2_header_may_not_say_is_refused_with_a_sentence() {
    let feature = |bit: u32| (1u64 << bit).to_be_bytes();
    assert_eq!(said(&qcow2(&[]), Format::Qcow2), "opened");
    for (at, value, sentence) in [
        (4, &1u32.to_be_bytes()[..], "version 1 is not known"),
        (20, &8u32.to_be_bytes(), "clusters of 2^8"),
        (20, &63u32.to_be_bytes(), "clusters of 2^63"),
        (24, &(1u64 << 63).to_be_bytes(), "a disk of 9223372036854775808 bytes"),
        (24, &(1u64 << 62).to_be_bytes(), "entries for a disk that needs"),
        (24, &513u64.to_be_bytes(), "not whole sectors"),
        (24, &0u64.to_be_bytes(), "a disk of 0 bytes"),
        (32, &2u32.to_be_bytes(), "encrypted"),
        (36, &u32::MAX.to_be_bytes(), "at most 33554432"),
        (40, &0u64.to_be_bytes(), "over the header"),
        (40, &(u64::MAX - 65535).to_be_bytes(), "outside of the file"),
        (40, &(1u64 << 20).to_be_bytes(), "outside of the file"),
        (100, &4u32.to_be_bytes(), "a length of 4 bytes"),
        (72, &feature(0), "was not closed"),
        (72, &feature(1), "marked as corrupt"),
        (72, &feature(2), "in another file"),
        (72, &feature(3), "than zlib"),
        (72, &feature(9), "not known here: 0x200"),
        (8, &(1u64 << 40).to_be_bytes(), "backing file's name"),
    ] {
        let found = said(&qcow2(&[(at, value)]), Format::Qcow2);
        assert!(found.contains(sentence), "{at}: {found}");
    }
    let named = |name: &[u8]| {
        let len = (name.len() as u32).to_be_bytes();
        qcow2(&[(8, &4096u64.to_be_bytes()), (16, &len), (4096, name)])
    };
    assert!(said(&named(b"base.img"), Format::Qcow2).contains("does not say its format"));
    assert!(said(&qcow2(&[(104, &[1; 8])]), Format::Qcow2).contains("an extension of"));
}

#[test]
fn tables_that_lead_where_no_table_can_be_fail_the_read_alone() {
    for (entry, sentence) in [(1u64 << 16, "no L2 table can be"), (512, "no L2 table can be"), (1 << 40, "")]
    {
        let bytes = qcow2(&[(1 << 16, &entry.to_be_bytes())]);
        let image = Image::open_alone(MemoryStorage::of_bytes(&bytes), Format::Qcow2).unwrap();
        let error = image.read_at(0, &mut [0; 512]).unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
    }
}

/// A dynamic VHD of 2 MiB in blocks of 512 KiB, of which two hold data: blocks at 2,048 and 2,048 + 512 + 512 KiB.
fn dynamic() -> Vec<u8> {
    let layout = Layout {
        size: 2048 * KIB,
        fixed: false,
        block_size: Some(512 * KIB),
        id: Guid::from_digits(7),
        now: 0,
    };
    let storage = std::sync::Arc::new(MemoryStorage::default());
    let writer = Writer::create(storage.clone(), &layout).unwrap();
    writer.write_at(0, &[7; 4096]).unwrap();
    writer.write_at(512 * KIB, &[8; 4096]).unwrap();
    writer.flush().unwrap();
    storage.to_bytes()
}

fn resealed(mut bytes: Vec<u8>, at: usize, value: &[u8]) -> Vec<u8> {
    use lunway_image::vhd::format::{FOOTER_CHECKSUM, HEADER_CHECKSUM, checksum};
    bytes[at..at + value.len()].copy_from_slice(value);
    let end = bytes.len() - 512;
    // The footer and its copy say the same.
    let copy = bytes[..512].to_vec();
    bytes[end..].copy_from_slice(&copy);
    for (at, len, field) in
        [(end, 512, FOOTER_CHECKSUM), (0, 512, FOOTER_CHECKSUM), (512, 1024, HEADER_CHECKSUM)]
    {
        let sum = checksum(&bytes[at..at + len], field);
        bytes[at + field..at + field + 4].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

#[test]
fn what_a_vhd_may_not_say_is_refused_with_a_sentence() {
    let whole = dynamic();
    let second = (2048u32 + 512 + (512 << 10)) / 512;
    for (at, value, sentence) in [
        (0, &b"conectix"[..], "opened"),
        (12, &2u32.to_be_bytes()[1..], "version"),
        (16, &(1u64 << 63).to_be_bytes(), "outside of the file"),
        (48, &(1u64 << 63).to_be_bytes(), "a table of 4 entries"),
        (48, &1000u64.to_be_bytes(), "not whole sectors"),
        (60, &7u32.to_be_bytes(), "of type 7"),
        (512 + 16, &u64::MAX.to_be_bytes(), "outside of the file, or over a header"),
        (512 + 16, &512u64.to_be_bytes(), "over a header"),
        (512 + 32, &3u32.to_be_bytes(), "blocks of 3 bytes"),
        (512 + 32, &(1u32 << 31).to_be_bytes(), "blocks of 2147483648 bytes"),
        (1536, &second.to_be_bytes(), "lie over each other"),
        (1536, &(second - 1).to_be_bytes(), "lie over each other"),
        (1536, &3u32.to_be_bytes(), "lies over something else"),
        (1536, &0u32.to_be_bytes(), "is not in the file"),
        (1536, &(u32::MAX - 1).to_be_bytes(), "is not in the file"),
        // All four blocks in a file with room for two.
        (1536 + 8, &[0, 0, 0, 9], "lies over something else"),
    ] {
        let found = said(&resealed(whole.clone(), at, value), Format::Vhd);
        assert!(found.contains(sentence), "{at}: {found}");
    }
    assert!(
        said(&whole[..whole.len() - 512], Format::Vhd).contains("opened"),
        "the copy of the footer counts"
    );
    assert!(said(&whole[..whole.len() - 1024], Format::Vhd).contains("is not in the file"));
    assert!(said(&[0; 4096], Format::Vhd).contains("not a VHD file"));
    assert!(said(b"", Format::Vhd).contains("not a VHD file"));
    let mut torn = whole;
    let end = torn.len() - 512;
    (torn[end + 100], torn[100]) = (1, 1);
    assert!(said(&torn, Format::Vhd).contains("no sound copy"));
}

#[test]
fn a_backing_file_is_found_in_the_folder_alone_and_never_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("in")).unwrap();
    let make = |name: &str, backing: &str, format: &[u8]| {
        let mut extension = 0xE279_2ACAu32.to_be_bytes().to_vec();
        extension.extend((format.len() as u32).to_be_bytes());
        extension.extend(format);
        let len = (backing.len() as u32).to_be_bytes();
        let bytes =
            qcow2(&[(8, &4096u64.to_be_bytes()), (16, &len), (104, &extension), (4096, backing.as_bytes())]);
        fs::write(path(name), bytes).unwrap();
    };
    let said = |name: &str| match Image::open_files(&path(name), Format::Qcow2) {
        Ok(image) => format!("{} files", image.paths().len()),
        Err(error) => error.to_string(),
    };
    fs::write(path("outside"), [1; 4096]).unwrap();
    fs::write(path("in/base"), [1; 4096]).unwrap();
    make("in/a", "base", b"raw");
    assert_eq!(said("in/a"), "2 files");
    make("in/a", path("in/base").to_str().unwrap(), b"raw");
    assert_eq!(said("in/a"), "2 files");
    std::os::unix::fs::symlink(path("outside"), path("in/link")).unwrap();
    for (backing, format, sentence) in [
        ("../outside", &b"raw"[..], "not in the folder"),
        (path("outside").to_str().unwrap(), b"raw", "not in the folder"),
        ("/etc/passwd", b"raw", "not in the folder"),
        ("link", b"raw", "was not found"),
        ("nothing", b"raw", "was not found"),
        ("nbd:127.0.0.1:1", b"raw", "only files"),
        ("json:{\"driver\":\"file\"}", b"raw", "only files"),
        ("base", b"vmdk", "its format, vmdk, is not read"),
        ("base", b"qcow2", "not a qcow2 file"),
        ("a", b"qcow2", "leads back to"),
    ] {
        make("in/a", backing, format);
        let found = said("in/a");
        assert!(found.contains(sentence), "{backing}: {found}");
    }
    make("in/b", "a", b"qcow2");
    make("in/a", "b", b"qcow2");
    assert!(said("in/a").contains("leads back to"));
    for level in 0..300 {
        make(&format!("in/{level}"), &(level + 1).to_string(), b"qcow2");
    }
    assert!(said("in/0").contains("more than 256 files"));
    assert!(Path::new(&path("in/300")).metadata().is_err());
}

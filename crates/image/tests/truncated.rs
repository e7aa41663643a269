//! Files that another program has cut while they are read, or filled: what is missing is an error, and never zeroes.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::io::ErrorKind;
use std::sync::Arc;

use lunway_image::vhd::{Layout, Writer};
use lunway_image::{Format, Image};
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::format::Guid;

const KIB: u64 = 1 << 10;
const CLUSTER: u64 = 64 * KIB;

/// A qcow2 disk of 1 MiB in clusters of 64 KiB, of which the first two hold data; the second one ends within itself, as
/// QEMU leaves files.
fn qcow2() -> Arc<MemoryStorage> {
    let storage = MemoryStorage::default();
    for (at, bytes) in [
        (0, &b"QFI\xfb"[..]),
        (4, &3u32.to_be_bytes()),
        (20, &16u32.to_be_bytes()),
        (24, &(1u64 << 20).to_be_bytes()),
        (36, &1u32.to_be_bytes()),
        (40, &CLUSTER.to_be_bytes()),
        (96, &4u32.to_be_bytes()),
        (100, &104u32.to_be_bytes()),
        (CLUSTER, &(2 * CLUSTER).to_be_bytes()),
        (2 * CLUSTER, &(3 * CLUSTER).to_be_bytes()),
        (2 * CLUSTER + 8, &(4 * CLUSTER).to_be_bytes()),
        (3 * CLUSTER, &[7; 64 << 10]),
        (4 * CLUSTER, &[8; 32 << 10]),
    ] {
        storage.write(at, bytes).unwrap();
    }
    Arc::new(storage)
}

#[test]
fn a_cluster_of_which_a_part_was_cut_off_reads_as_no_zeroes() {
    let storage = qcow2();
    let image = Image::open_alone(storage.clone(), Format::Qcow2).unwrap();
    let mut bytes = vec![0xEE; 64 << 10];
    image.read_at(CLUSTER, &mut bytes).unwrap();
    assert!(bytes[..32 << 10] == [8; 32 << 10] && bytes[32 << 10..] == [0; 32 << 10], "as QEMU reads it");
    // Within the last cluster, then all of it, then within the one before.
    for len in [4 * CLUSTER + 16 * KIB, 4 * CLUSTER, 3 * CLUSTER + 16 * KIB] {
        storage.resize(len);
        let error = image.read_at(CLUSTER + 16 * KIB, &mut [0; 512]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}: {error}");
    }
    image.read_at(0, &mut [0; 16 << 10]).unwrap();
    assert_eq!(image.read_at(0, &mut bytes).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    // Opened as it is, no cluster that is not there.
    let image = Image::open_alone(storage, Format::Qcow2).unwrap();
    assert_eq!(image.read_at(CLUSTER, &mut bytes).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_vhd_that_is_read_or_filled_is_not_made_longer_again() {
    for fixed in [false, true] {
        let layout =
            Layout { size: 2048 * KIB, fixed, block_size: Some(512 * KIB), id: Guid::from_digits(7), now: 0 };
        let storage = Arc::new(MemoryStorage::default());
        let writer = Writer::create(storage.clone(), &layout).unwrap();
        writer.write_at(0, &[7; 4096]).unwrap();
        writer.write_at(512 * KIB, &[8; 4096]).unwrap();
        writer.flush().unwrap();
        let image = Image::open_alone(storage.clone(), Format::Vhd).unwrap();
        let left = if fixed { 600 * KIB } else { storage.size() - 100 * KIB };
        storage.resize(left);
        let lost = |answer: std::io::Result<()>| {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(storage.size(), left);
        };
        let behind = 1024 * KIB - 4096;
        lost(image.read_at(behind, &mut [0; 4096]));
        lost(writer.read_at(behind, &mut [0; 4096]));
        lost(writer.write_at(behind, &[9; 4096]));
        lost(writer.write_zeroes(behind, 4096));
        // A block, or all that a fixed disk has, further on.
        lost(writer.write_at(1536 * KIB, &[9; 4096]));
        lost(writer.flush());
    }
}

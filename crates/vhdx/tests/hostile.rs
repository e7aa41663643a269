//! Files that nobody made in good faith, and what is said of them.

#[path = "fuzzed/open.rs"]
mod fuzzed;

use crate::support::*;
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::format::{Guid, Header, checksum};
use lunway_vhdx::{Disk, DiskKind, Storage, VhdxOpenOptions};

#[test]
fn files_with_any_part_replaced_neither_panic_nor_change_when_only_read() {
    let first = amount("LUNWAY_VHDX_HOSTILE_FIRST_SEED", 0);
    for seed in first..first + amount("LUNWAY_VHDX_HOSTILE_SEEDS", 1500) {
        let mut rng = Random::new(seed);
        let mut input = vec![rng.next() as u8];
        for _ in 0..1 + rng.below(3) {
            // Most fields are near the beginning of their structure.
            let reach = if rng.below(2) == 0 { 128 } else { 8192 };
            let offset = rng.below(reach) as u16;
            let len = 1 + rng.below(8) as u8;
            input.extend([rng.below(9) as u8, offset as u8, (offset >> 8) as u8, len]);
            input.extend((0..len).map(|_| [0, 1, 0xFF, rng.next() as u8][rng.below(4) as usize]));
        }
        let result = std::panic::catch_unwind(|| fuzzed::run(&input));
        assert!(result.is_ok(), "seed {seed}: {input:?}");
    }
}

/// An entry that leads behind the end of the file, found by the fuzzer: the disk opens, as one that was cut.
#[test]
fn a_sector_bitmap_behind_the_end_is_a_loss_that_the_disk_tells() {
    // A child, its checksums right: three bytes of entry 4096 of its table, which is that of the bitmap of chunk 0.
    fuzzed::run(&[1, 8, 0x03, 0x80, 3, 0x3f, 0x65, 0x04]);
}

/// The version of an empty log says nothing, and the one that is written then has version 0.
#[test]
fn an_empty_log_of_another_version_gives_way_to_one_that_can_be_replayed() {
    let storage = std::sync::Arc::new(memory(&options(DiskKind::Dynamic, 40 * MIB, 1 << 20, 512), 1));
    for header in [64 << 10, 128 << 10] {
        put(&storage, header + 64, &1u16.to_le_bytes());
        let mut bytes = [0; 4096];
        storage.read_at(header, &mut bytes).expect("memory");
        put(&storage, header + 4, &checksum(&bytes, 4).to_le_bytes());
    }
    let chain = alone(open(storage.clone(), true, 2));
    chain.write_at(MIB, &[5; 512]).expect("a write");
    chain.flush().expect("a flush");
    let killed = MemoryStorage::clone(&storage);
    let mut bytes = [0; 512];
    alone(open(killed, true, 3)).read_at(MIB, &mut bytes).expect("a read");
    assert_eq!(bytes, [5; 512]);
}

/// What is said of a file after `change`, with headers and region tables sealed.
fn refused(kind: DiskKind, change: impl FnOnce(&MemoryStorage)) -> String {
    let storage = match kind {
        DiskKind::Differencing => {
            let parent = open(memory(&options(DiskKind::Dynamic, 40 * MIB, 1 << 20, 512), 1), false, 0);
            memory(&child_options(&parent, 40 * MIB, 1 << 20), 1)
        }
        kind => memory(&options(kind, 40 * MIB, 1 << 20, 512), 1),
    };
    change(&storage);
    for (offset, len) in [(64 << 10, 4096), (128 << 10, 4096), (192 << 10, 65536), (256 << 10, 65536)] {
        let mut bytes = vec![0; len];
        storage.read_at(offset, &mut bytes).expect("memory");
        storage.write_at(offset + 4, &checksum(&bytes, 4).to_le_bytes()).expect("memory");
    }
    let storage = std::sync::Arc::new(storage);
    let report = lunway_vhdx::check::check(&storage);
    let opened = Disk::open(storage.clone(), &VhdxOpenOptions::read_only(), guids(1));
    // What has lost data opens for reading alone.
    let opened = opened.and_then(|disk| match disk.lost() {
        0 => Ok(disk),
        _ => Disk::open(storage, &VhdxOpenOptions::writable(), guids(1)),
    });
    match opened {
        Ok(_) => "opened".into(),
        Err(error) => {
            assert!(report.is_damaged(), "a check finds what opening refuses");
            error.to_string()
        }
    }
}

fn put(storage: &MemoryStorage, offset: u64, bytes: &[u8]) {
    storage.write_at(offset, bytes).expect("memory");
}

#[test]
fn a_file_against_the_standard_is_refused_with_what_is_wrong_and_where() {
    let dynamic = |change: fn(&MemoryStorage)| refused(DiskKind::Dynamic, change);
    let entry = |offset_mib: u64, state: u64| (offset_mib << 20 | state).to_le_bytes();
    assert_eq!(dynamic(|_| ()), "opened");
    assert_eq!(
        dynamic(|file| put(file, 0, b"conectix")),
        "not a VHDX file: it does not begin with \"vhdxfile\""
    );
    let both = |file: &MemoryStorage, field: u64, bytes: &[u8]| {
        put(file, (64 << 10) + field, bytes);
        put(file, (128 << 10) + field, bytes);
    };
    let said = refused(DiskKind::Dynamic, |file| both(file, 66, &2u16.to_le_bytes()));
    assert_eq!(said, "header at byte 131072: version 2 of the format, which this program does not support");
    let said = refused(DiskKind::Dynamic, |file| {
        both(file, 8, &9u64.to_le_bytes());
        put(file, (64 << 10) + 32, &[7; 16]);
    });
    assert_eq!(said, "header at byte 65536: two different headers have sequence number 9");
    // QEMU that was killed before its first entry: nothing of the disk was changed yet.
    assert_eq!(
        dynamic(|file| [64, 128].iter().for_each(|at| put(file, (at << 10) + 48, &[7; 16]))),
        "opened"
    );
    let said = refused(DiskKind::Dynamic, |file| {
        both(file, 48, &[7; 16]);
        put(file, (1 << 20) + 9000, &[1]);
    });
    assert_eq!(
        said,
        "log at byte 1048576: the header says that the log has entries, but none of them are whole"
    );
    let said = refused(DiskKind::Dynamic, |file| both(file, 72, &(3u64 << 20).to_le_bytes()));
    assert!(
        said.starts_with("region table at byte 3145728: the structure of 1048576 bytes there overlaps"),
        "{said}"
    );

    // A region that somebody requires and nobody here knows; one that is not required is kept.
    for (required, expected) in [(1, false), (0, true)] {
        let said = refused(DiskKind::Dynamic, |file| {
            for table in [192 << 10, 256 << 10] {
                put(file, table + 8, &3u32.to_le_bytes());
                put(file, table + 16 + 64, &[0x77; 16]);
                put(file, table + 16 + 64 + 16, &(4u64 << 20).to_le_bytes());
                put(file, table + 16 + 64 + 24, &(1u32 << 20).to_le_bytes());
                put(file, table + 16 + 64 + 28, &(required as u32).to_le_bytes());
            }
        });
        assert_eq!(said == "opened", expected, "{said}");
    }

    // The table: beyond the end, two blocks at one place, a block on the table itself, a reserved state.
    let said = refused(DiskKind::Dynamic, |file| put(file, 3 << 20, &entry(4000, 6)));
    assert!(
        said.starts_with(
            "payload block 0 at byte 3145728: 1048576 bytes of it are lost: it ends at byte 4195352576, the file at 4194304; \
             1048576 bytes of data are lost in all"
        ),
        "{said}"
    );
    // Where no file reaches; space that an entry without data keeps; the table itself.
    let said = refused(DiskKind::Dynamic, |file| put(file, 3 << 20, &entry(1 << 40, 6)));
    assert!(
        said.ends_with("it lies at byte 1152921504606846976, outside of the file of 4194304 bytes"),
        "{said}"
    );
    let said = refused(DiskKind::Dynamic, |file| put(file, 3 << 20, &entry(4000, 3)));
    assert!(said.ends_with("it lies at byte 4194304000, outside of the file of 4194304 bytes"), "{said}");
    assert_eq!(
        dynamic(|file| file.set_len((3 << 20) + 8192).expect("memory")),
        "block allocation table at byte 3145728: it ends at byte 4194304, the file at 3153920"
    );
    let said = refused(DiskKind::Fixed, |file| put(file, (3 << 20) + 8, &entry(4, 6)));
    assert_eq!(
        said,
        "payload block 1 at byte 3145736: it overlaps another structure at bytes 4194304–5242880"
    );
    let said = refused(DiskKind::Dynamic, |file| put(file, 3 << 20, &entry(3, 6)));
    assert!(said.contains("overlaps another structure"), "{said}");
    let said = refused(DiskKind::Dynamic, |file| put(file, 3 << 20, &entry(0, 4)));
    assert_eq!(said, "payload block 0 at byte 3145728: its state 4 is reserved");
    let said = refused(DiskKind::Differencing, |file| {
        file.set_len(8 << 20).expect("memory");
        put(file, 3 << 20, &entry(5, 7));
    });
    assert_eq!(
        said,
        "sector bitmap block 0 at byte 3178496: it is not present, but payload block 0 is partially present"
    );

    // Sizes.
    let size_item = (2 << 20) + (64 << 10) + 8;
    let said = refused(DiskKind::Dynamic, |file| put(file, size_item, &(1u64 << 63).to_le_bytes()));
    assert!(said.contains("a disk of 9223372036854775808 bytes"), "{said}");
    let said = refused(DiskKind::Dynamic, |file| put(file, size_item, &(64u64 << 40).to_le_bytes()));
    assert_eq!(
        said,
        "block allocation table at byte 3145728: it has 1048576 bytes, 67125247 entries need more"
    );
    let said = refused(DiskKind::Dynamic, |file| file.set_len(1 << 50).expect("memory"));
    assert_eq!(
        said,
        "file at byte 1125899906842624: a file of 1125899906842624 bytes, which this program does not support"
    );
}

#[test]
fn habits_of_other_writers_are_tolerated() {
    // A block without data that has an offset; UNMAPPED as version 0.95 numbered it; a bitmap in a disk without a
    // parent.
    let said = refused(DiskKind::Dynamic, |file| {
        file.set_len(8 << 20).expect("memory");
        put(file, 3 << 20, &(5u64 << 20 | 2).to_le_bytes());
        put(file, (3 << 20) + 8, &5u64.to_le_bytes());
    });
    assert_eq!(said, "opened");
    // Two identical headers with one sequence number, as Disk2vhd leaves them.
    let said = refused(DiskKind::Dynamic, |file| {
        let mut header = vec![0; size_of::<Header>()];
        file.read_at(64 << 10, &mut header).expect("memory");
        put(file, 128 << 10, &header);
    });
    assert_eq!(said, "opened");
    // One header and one region table are gone.
    let storage = memory(&options(DiskKind::Dynamic, 40 * MIB, 1 << 20, 512), 1);
    put(&storage, 64 << 10, &[0xFF; 4096]);
    put(&storage, 192 << 10, &[0xFF; 65536]);
    let storage = std::sync::Arc::new(storage);
    assert_eq!(lunway_vhdx::check::check(&storage).findings.len(), 2);
    let chain = alone(open(storage.clone(), true, 2));
    chain.write_at(0, &[1; 512]).expect("a write");
    chain.close().expect("a close");
    let report = lunway_vhdx::check::check(&storage);
    assert!(report.findings.is_empty(), "the first write repairs both: {:?}", report.findings);
}

#[test]
fn a_last_block_that_ends_with_the_disk_is_whole_and_is_completed_by_a_write() {
    let storage = std::sync::Arc::new(memory(&options(DiskKind::Fixed, 3 * MIB + 8192, 1 << 20, 512), 1));
    put(&storage, (7 << 20) + 4096, &[9; 512]);
    storage.set_len((7 << 20) + 8192).expect("memory");
    assert_sound(&storage, "nothing of the disk is missing");
    let chain = alone(open(storage.clone(), true, 2));
    let mut data = vec![0xEE; 8192];
    chain.read_at(3 * MIB, &mut data).expect("a read");
    assert_eq!([data[0], data[4096], data[4608]], [0, 9, 0]);
    chain.write_at(3 * MIB, &[8; 512]).expect("a write");
    chain.close().expect("a close");
    assert_eq!(storage.len().expect("memory"), 8 << 20);
}

#[test]
fn a_parent_that_has_changed_is_no_parent() {
    let parent = std::sync::Arc::new(memory(&options(DiskKind::Dynamic, 16 * MIB, 1 << 20, 512), 1));
    let child = memory(&child_options(&open(parent.clone(), false, 2), 16 * MIB, 1 << 20), 3);
    let child = std::sync::Arc::new(child);
    let chain =
        || lunway_vhdx::Chain::new(vec![open(child.clone(), false, 4), open(parent.clone(), false, 5)]);
    assert!(chain().is_ok());
    let writer = alone(open(parent.clone(), true, 6));
    writer.write_at(0, &[1; 512]).expect("a write");
    writer.close().expect("a close");
    let said = chain().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(said.starts_with("the parent has changed since the child was made"), "{said}");
    let alone = lunway_vhdx::Chain::new(vec![open(child.clone(), false, 4)]);
    assert!(alone.is_err_and(|error| error.to_string().contains("parent.vhdx")));
    assert_ne!(Guid::ZERO, open(parent.clone(), false, 0).data_write_guid());
}

#[test]
fn a_disk_of_64_tib_opens_in_bounded_time() {
    let options = options(DiskKind::Dynamic, 64 << 40, 1 << 20, 512);
    let storage = memory(&options, 1);
    let began = std::time::Instant::now();
    let disk = open(storage, false, 2);
    // Generous: under a second on an idle machine.
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    assert_eq!(disk.counts().never_written, 1 << 26);
}

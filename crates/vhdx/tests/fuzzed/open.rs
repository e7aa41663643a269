//! A file with parts of it replaced: opened in every way and used. Nothing may panic, loop or take memory without
//! bound.
//!
//! The input is a list of patches to one of three files: a structure, an offset in it, and bytes. Checksums are made
//! right again, so that what is behind them is reached.

use std::sync::{Arc, OnceLock};

use lunway_vhdx::crash::{MemoryStorage, Recorder};
use lunway_vhdx::format::{Guid, GuidSource, HEADER_OFFSETS, REGION_TABLE_OFFSETS, TABLE_LEN, checksum};
use lunway_vhdx::{
    Chain, CreateOptions, DiscardMode, Disk, DiskKind, Locator, Need, ReadPlan, Stop, Storage,
    VhdxOpenOptions, check, create,
};

const MIB: u64 = 1 << 20;
/// Structures of the files, as `create` lays them out.
const PLACES: [u64; 9] = [
    0,
    HEADER_OFFSETS[0],
    HEADER_OFFSETS[1],
    REGION_TABLE_OFFSETS[0],
    REGION_TABLE_OFFSETS[1],
    MIB,
    2 * MIB,
    2 * MIB + (64 << 10),
    3 * MIB,
];

fn guids() -> Box<dyn GuidSource> {
    let mut count = 0u128;
    Box::new(move || {
        count += 1;
        Guid::from_digits(count << 64 | 0x1234)
    })
}

fn make(kind: DiskKind, linkage: Guid) -> MemoryStorage {
    let storage = MemoryStorage::default();
    let mut options = CreateOptions::new(kind, 40 * MIB, Guid::from_digits(7));
    options.parameters.block_size = 1 << 20;
    if kind == DiskKind::Differencing {
        options.parameters.locator =
            Some(Locator::new(linkage, "parent.vhdx", Some("\\\\?\\c:\\parent.vhdx")));
    }
    create(&storage, &options, guids().as_mut()).expect("a new file");
    storage
}

/// A parent, a child with a log that is not empty, and the same without a parent.
fn bases() -> &'static [MemoryStorage; 3] {
    static BASES: OnceLock<[MemoryStorage; 3]> = OnceLock::new();
    BASES.get_or_init(|| {
        let parent = make(DiskKind::Dynamic, Guid::ZERO);
        let opened = Disk::open(parent.clone(), &VhdxOpenOptions::read_only(), guids()).expect("opens");
        let linkage = opened.data_write_guid();
        let child = Arc::new(make(DiskKind::Differencing, linkage));
        let leaf = Disk::open(child.clone(), &VhdxOpenOptions::writable(), guids()).expect("opens");
        let chain = Chain::new(vec![
            leaf,
            Disk::open(Arc::new(parent.clone()), &VhdxOpenOptions::read_only(), guids()).expect("opens"),
        ]);
        dirty(&chain.expect("a chain"));
        let alone = Arc::new(make(DiskKind::Dynamic, Guid::ZERO));
        let disk = Disk::open(alone.clone(), &VhdxOpenOptions::writable(), guids()).expect("opens");
        dirty(&Chain::new(vec![disk]).expect("a chain"));
        [parent, (*child).clone(), (*alone).clone()]
    })
}

fn dirty(chain: &Chain<Arc<MemoryStorage>>) {
    for n in 0..3 {
        chain.write_at(n * 5 * MIB + 512, &[n as u8 + 1; 2048]).expect("a write");
        chain.flush().expect("a flush");
    }
    chain.discard(5 * MIB, MIB, DiscardMode::Zero).expect("zeroes");
    chain.flush().expect("a flush");
}

/// Makes the checksums of headers, region tables and log entries right.
fn seal(storage: &MemoryStorage) {
    let fix = |offset: u64, len: usize| {
        let mut bytes = vec![0; len];
        if storage.read_at(offset, &mut bytes).is_ok() {
            let sum = checksum(&bytes, 4).to_le_bytes();
            let _ = storage.write_at(offset + 4, &sum);
        }
    };
    HEADER_OFFSETS.iter().for_each(|offset| fix(*offset, 4096));
    REGION_TABLE_OFFSETS.iter().for_each(|offset| fix(*offset, TABLE_LEN));
    for page in 0..64 {
        let at = MIB + page * 4096;
        let mut head = [0; 12];
        if storage.read_at(at, &mut head).is_ok() && head[..4] == *b"loge" {
            let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
            fix(at, len.clamp(8, 1 << 20) as usize);
        }
    }
}

pub(crate) fn run(input: &[u8]) {
    let Some((base, mut patches)) = input.split_first() else { return };
    let storage = bases()[usize::from(base % 3)].clone();
    while let [place, low, high, len, rest @ ..] = patches {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(len % 17)));
        let at = PLACES[usize::from(*place) % PLACES.len()] + u64::from(u16::from_le_bytes([*low, *high]));
        let _ = storage.write_at(at, bytes);
        patches = rest;
    }
    if base & 0x80 == 0 {
        seal(&storage);
    }
    let report = check::check(&storage);
    let unchanged = Recorder::new(storage.clone());
    if let Ok(disk) = Disk::open(unchanged.clone(), &VhdxOpenOptions::read_only(), guids()) {
        // One that was cut opens, and says what it lost.
        let is_told = !report.is_damaged() || disk.lost() > 0;
        assert!(is_told, "a check that finds damage, and a disk that opens");
        use_disk(disk);
    }
    assert_eq!(unchanged.count(), 0, "a read-only open changes nothing");
    match Disk::open(Arc::new(storage), &VhdxOpenOptions::writable(), guids()) {
        Ok(disk) => use_disk(disk),
        Err(error) => drop(error.to_string()),
    }
}

fn use_disk<S: Storage>(disk: Disk<S>) {
    let size = disk.parameters().disk_size;
    let mut plan = ReadPlan::default();
    let mut resolve = |offset: u64, len: u64| {
        for _ in 0..10_000 {
            match disk.resolve_read(offset, len, &mut plan) {
                Ok(()) => {
                    assert_eq!(plan.segments().iter().map(|segment| segment.len).sum::<u64>(), len);
                    disk.end_read(&mut plan);
                    return;
                }
                Err(Stop::Needs(need @ Need::Page(_))) => {
                    if disk.provide(need).is_err() {
                        return;
                    }
                }
                Err(Stop::Needs(need)) => panic!("a read needs {need:?}"),
                Err(Stop::Failed(_)) => return,
            }
        }
        panic!("a read that is never resolved");
    };
    let sector = u64::from(disk.parameters().logical_sector);
    resolve(0, size.min(64 * MIB) / sector * sector);
    resolve(size - sector, sector);
    let Ok(chain) = Chain::new(vec![disk]) else { return };
    let mut buf = vec![0; sector as usize];
    for offset in [0, 5 * MIB, size - sector] {
        let offset = offset.min(size - sector) / sector * sector;
        let _ = chain.read_at(offset, &mut buf);
        let _ = chain.write_at(offset, &buf);
    }
    let _ = chain.discard(0, size.min(16 * MIB) / sector * sector, DiscardMode::Unmap);
    let _ = chain.flush();
    let _ = chain.close();
}

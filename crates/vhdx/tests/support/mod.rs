//! What the tests share: repeatable random numbers and GUIDs, and small disks.

#![allow(dead_code, reason = "each test takes a part of it")]

#[path = "../../../scsi/tests/model/random.rs"]
pub(crate) mod random;

use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::format::{Guid, GuidSource};
use lunway_vhdx::{Chain, CreateOptions, Disk, DiskKind, Locator, Storage, VhdxOpenOptions, create};

pub(crate) use random::Random;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn guids(seed: u64) -> Box<dyn GuidSource> {
    let mut rng = Random::new(seed);
    Box::new(move || {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&rng.next().to_le_bytes());
        bytes[8..].copy_from_slice(&rng.next().to_le_bytes());
        Guid::from_random(bytes)
    })
}

pub(crate) fn options(kind: DiskKind, size: u64, block: u32, sector: u32) -> CreateOptions {
    let mut options =
        CreateOptions::new(kind, size, Guid::from_digits(0x01234567_89ab_4def_8123_456789abcdef));
    options.parameters.block_size = block;
    options.parameters.logical_sector = sector;
    options
}

/// Makes a file on `storage`.
pub(crate) fn make(storage: &impl Storage, options: &CreateOptions, seed: u64) {
    create(storage, options, guids(seed).as_mut()).expect("a new file");
}

/// Options for a child of `parent`.
pub(crate) fn child_options(parent: &Disk<impl Storage>, size: u64, block: u32) -> CreateOptions {
    let parameters = parent.parameters();
    let mut options = options(DiskKind::Differencing, size, block, parameters.logical_sector);
    options.parameters.disk_id = parameters.disk_id;
    options.parameters.locator = Some(Locator::new(parent.data_write_guid(), "parent.vhdx", None));
    options
}

pub(crate) fn open<S: Storage>(storage: S, writable: bool, seed: u64) -> Disk<S> {
    let options = if writable { VhdxOpenOptions::writable() } else { VhdxOpenOptions::read_only() };
    Disk::open(storage, &options, guids(seed)).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn alone<S: Storage>(disk: Disk<S>) -> Chain<S> {
    Chain::new(vec![disk]).unwrap_or_else(|error| panic!("{error}"))
}

/// All bytes of a disk.
pub(crate) fn contents<S: Storage>(chain: &Chain<S>) -> Vec<u8> {
    let mut bytes = vec![0xEE; chain.size() as usize];
    for (number, piece) in bytes.chunks_mut(MIB as usize).enumerate() {
        chain.read_at(number as u64 * MIB, piece).unwrap_or_else(|error| panic!("{error}"));
    }
    bytes
}

/// Fails with what a check finds damaged.
pub(crate) fn assert_sound(storage: &impl Storage, context: &str) {
    let report = lunway_vhdx::check::check(storage);
    assert!(!report.is_damaged(), "{context}: {:#?}", report.findings);
}

pub(crate) fn memory(options: &CreateOptions, seed: u64) -> MemoryStorage {
    let storage = MemoryStorage::default();
    make(&storage, options, seed);
    storage
}

/// How much a test does: the number that the variable gives, or what fits into a run of the CI.
pub(crate) fn amount(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

//! What the tests share: a folder of the crash kit, a source with a model, and runs on both.

#![allow(dead_code, reason = "each test takes a part of it")]

pub(crate) mod crashing;
pub(crate) mod cuts;
pub(crate) mod failing;
#[path = "../../../scsi/tests/model/random.rs"]
pub(crate) mod random;

use std::sync::Arc;

use lunway_backup::{
    BackupError, Catalogue, Change, Changed, ChangedRange, Folder, Guids, Holder, Lease, Level, Manifest,
    Order, Outcome, PointId, Progress, Request, Since, Target, restore, run,
};
use lunway_block::{BlockDevice, Buf, Durability, Permit, Zeroing};
use lunway_copy::Skipped;
use lunway_memory::RamDisk;
use lunway_vhdx::format::Guid;

pub(crate) use random::Random;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const LEAF: u64 = 64 << 10;

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn guids(seed: u64) -> Guids {
    let random = std::sync::Mutex::new(Random::new(seed));
    let random = Arc::new(random);
    Arc::new(move || {
        let random = Arc::clone(&random);
        Box::new(move || {
            let mut random = random.lock().unwrap();
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&random.next().to_le_bytes());
            bytes[8..].copy_from_slice(&random.next().to_le_bytes());
            Guid::from_random(bytes)
        })
    })
}

pub(crate) fn holder(nonce: u64) -> Holder {
    Holder {
        machine: "test".into(),
        lasting: "test".into(),
        host: "test".into(),
        process: 1,
        nonce,
        ..Holder::default()
    }
}

/// A disk, what it holds, and what changed since the last point.
pub(crate) struct Source {
    pub(crate) disk: RamDisk,
    pub(crate) model: Vec<u8>,
    pub(crate) changed: Vec<ChangedRange>,
    pub(crate) epoch: u64,
}

impl Source {
    pub(crate) fn new(size: u64) -> Self {
        let disk = RamDisk::new(size, 512).unwrap();
        Self { disk, model: vec![0; size as usize], changed: Vec::new(), epoch: 0 }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let written = self.disk.write(offset, Buf::copy_of(data).freeze(), Durability::Volatile);
        block_on(written.into_future()).unwrap();
        self.model[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        self.note(offset, data.len() as u64, Change::Written);
    }

    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        block_on(self.disk.write_zeroes(offset, len, Zeroing::MayUnmap).into_future()).unwrap();
        self.model[offset as usize..(offset + len) as usize].fill(0);
        self.note(offset, len, Change::Unmapped);
    }

    pub(crate) fn resize(&mut self, size: u64) {
        block_on(self.disk.resize(size, Permit::default()).into_future()).unwrap();
        self.model.resize(size as usize, 0);
    }

    fn note(&mut self, offset: u64, len: u64, change: Change) {
        self.changed.push(ChangedRange { offset, len, change });
    }

    /// Some random changes.
    pub(crate) fn change(&mut self, random: &mut Random, count: u64) {
        for _ in 0..count {
            let sectors = self.model.len() as u64 / 512;
            let at = random.next() % sectors;
            let most = if random.next().is_multiple_of(4) { 4096 } else { 64 };
            let len = (1 + random.next() % most).min(sectors - at);
            if random.next().is_multiple_of(5) {
                self.zero(at * 512, len * 512);
            } else {
                let mut bytes = vec![0; (len * 512) as usize];
                for piece in bytes.chunks_mut(8) {
                    piece.copy_from_slice(&random.next().to_le_bytes()[..piece.len()]);
                }
                self.write(at * 512, &bytes);
            }
        }
    }

    /// What changed since the last point, joined; the next epoch begins.
    pub(crate) fn known(&mut self) -> Changed {
        let mut ranges = std::mem::take(&mut self.changed);
        ranges.retain(|range| range.offset < self.model.len() as u64);
        ranges.sort_by_key(|range| range.offset);
        let mut joined: Vec<ChangedRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.offset <= last.offset + last.len => {
                    last.len = last.len.max(range.offset + range.len - last.offset);
                }
                _ => joined.push(range),
            }
        }
        self.epoch += 1;
        Changed::Known { since: Since::Epoch(format!("epoch {}", self.epoch - 1)), ranges: Box::new(joined) }
    }

    /// A run, with or without knowledge of what changed.
    pub(crate) fn back_up(
        &mut self,
        folder: &Arc<dyn Folder>,
        known: bool,
        seed: u64,
    ) -> Result<Outcome, BackupError> {
        let changed = if known { self.known() } else { self.unknown() };
        back_up(folder, &self.disk, self.epoch, How::new(changed, seed))
    }

    pub(crate) fn unknown(&mut self) -> Changed {
        self.changed.clear();
        self.epoch += 1;
        Changed::Unknown { why: "a test says nothing".into() }
    }
}

/// What a run of a test is beside its source.
pub(crate) struct How<'a> {
    pub(crate) changed: Changed,
    pub(crate) state: Option<String>,
    pub(crate) skipped: &'a Skipped,
    pub(crate) full: bool,
    pub(crate) is_cancelled: &'a (dyn Fn() -> bool + Sync),
    pub(crate) bytes_per_second: Option<u64>,
    pub(crate) seed: u64,
}

pub(crate) static NOTHING: std::sync::LazyLock<Skipped> = std::sync::LazyLock::new(Skipped::default);

impl How<'static> {
    pub(crate) fn new(changed: Changed, seed: u64) -> Self {
        Self {
            changed,
            state: None,
            skipped: &NOTHING,
            full: false,
            is_cancelled: &|| false,
            bytes_per_second: None,
            seed,
        }
    }
}

impl<'a> How<'a> {
    /// The request of such a run.
    pub(crate) fn request(self, source: &'a dyn BlockDevice, epoch: u64) -> Request<'a> {
        Request {
            source,
            source_name: "disk".into(),
            changed: self.changed,
            skipped: self.skipped,
            skipped_why: "free",
            state: self.state,
            epoch: Some(format!("epoch {epoch}")),
            due: None,
            level: Level::Crash,
            time: Some(1_700_000_000 + self.seed * 3600),
            full: self.full,
            rename_source: false,
            bytes_per_second: self.bytes_per_second,
            sample_bytes: 4 * MIB,
            seed: self.seed,
            is_cancelled: self.is_cancelled,
        }
    }
}

/// One run.
pub(crate) fn back_up(
    folder: &Arc<dyn Folder>,
    source: &dyn BlockDevice,
    epoch: u64,
    how: How<'_>,
) -> Result<Outcome, BackupError> {
    back_up_telling(folder, source, epoch, how, &mut |_| ())
}

/// The same with its progress.
pub(crate) fn back_up_telling(
    folder: &Arc<dyn Folder>,
    source: &dyn BlockDevice,
    epoch: u64,
    how: How<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, BackupError> {
    let lease = Lease::take(&**folder, holder(how.seed), &|| false)?;
    let guids = guids(how.seed ^ 0x5eed);
    block_on(run(folder, &lease, &guids, None, how.request(source, epoch), progress))
}

/// A restore onto a device.
pub(crate) fn restore_onto(
    folder: &Arc<dyn Folder>,
    point: PointId,
    disk: &dyn BlockDevice,
    target: Target,
) -> Result<lunway_backup::Restored, BackupError> {
    let catalogue = Catalogue::load(&**folder)?;
    let order = Order { point, range: None, target };
    block_on(restore(folder, &catalogue, order, disk, &|| false, &mut |_| ()))
}

/// All bytes of a point, as a restore onto a new disk gives them.
pub(crate) fn restored(folder: &Arc<dyn Folder>, point: PointId) -> Result<Vec<u8>, BackupError> {
    let catalogue = Catalogue::load(&**folder)?;
    let size = catalogue.get(point).map_or(512, |manifest: &Manifest| manifest.virtual_bytes);
    let disk = RamDisk::new(size, 512).unwrap();
    restore_onto(folder, point, &disk, Target::Blank)?;
    Ok(contents(&disk))
}

/// All bytes of a device.
pub(crate) fn contents(disk: &dyn BlockDevice) -> Vec<u8> {
    let size = disk.geometry().size;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let at = bytes.len() as u64;
        let buf = Buf::for_overwrite((size - at).min(MIB) as usize);
        bytes.extend_from_slice(&block_on(disk.read(at, buf).into_future()).unwrap());
    }
    bytes
}

/// Fails where two disks differ, and says where.
pub(crate) fn assert_same(found: &[u8], expected: &[u8], context: &str) {
    assert_eq!(found.len(), expected.len(), "{context}: sizes");
    // Of slices first, which is a comparison of memory: byte by byte takes a third of a run's processor time without
    // optimisation.
    if found != expected {
        let at = found.iter().zip(expected).position(|(one, other)| one != other);
        panic!("{context}: differs first at {at:?}");
    }
}

/// How much a test does: the number that the variable gives, or what fits into a run of the CI.
pub(crate) fn amount(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

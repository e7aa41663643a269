//! Storage with a volatile cache, whose power can be cut.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lunway_block::{
    BlockDevice, BlockError, Buf, CacheCallback, CacheNews, Durability, Geometry, Io, ResizeCallback,
    SharedBuf, Zeroing,
};
use tokio::sync::Semaphore;
use tokio::time::sleep;

pub(crate) const SECTOR: usize = 512;

/// Storage with a volatile cache, whose power can be cut.
pub(crate) struct Storage {
    disk: Mutex<Disk>,
    callback: Mutex<Option<CacheCallback>>,
    resized: Mutex<Option<ResizeCallback>>,
    /// Changes that wait until they are let through, as long as it is closed.
    pub(crate) changes: Semaphore,
}

pub(crate) struct Disk {
    medium: Vec<u8>,
    cache: BTreeMap<u64, Vec<u8>>,
    pub(crate) volatile: bool,
    /// What the next flushes answer instead of flushing.
    pub(crate) flush_errors: Vec<BlockError>,
    /// What the next changes answer instead of changing.
    pub(crate) change_errors: Vec<BlockError>,
    pub(crate) flushes: usize,
    /// Offsets of writes, as they were carried out.
    pub(crate) written: Vec<u64>,
    /// How long an answer takes.
    pub(crate) time: Duration,
    /// The power goes once, after so many further changes.
    pub(crate) power_goes_after: Option<usize>,
    /// The power goes with each change.
    pub(crate) restless: bool,
}

impl Storage {
    pub(crate) fn new(sectors: usize) -> Arc<Self> {
        let disk = Disk {
            medium: vec![0; sectors * SECTOR],
            cache: BTreeMap::new(),
            volatile: true,
            flush_errors: Vec::new(),
            change_errors: Vec::new(),
            flushes: 0,
            written: Vec::new(),
            time: Duration::from_micros(100),
            power_goes_after: None,
            restless: false,
        };
        Arc::new(Self {
            disk: Mutex::new(disk),
            callback: Mutex::default(),
            resized: Mutex::default(),
            changes: Semaphore::new(Semaphore::MAX_PERMITS),
        })
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    pub(crate) fn tell(&self, news: CacheNews) {
        self.callback.lock().unwrap().as_ref().unwrap()(news);
    }

    /// The power goes and comes; `reported` as the storage tells it.
    pub(crate) fn lose_power(&self, reported: bool) {
        self.disk().cache.clear();
        self.tell(CacheNews::Lost { reported });
    }

    /// What a sector begins with on the medium.
    pub(crate) fn on_medium(&self, sector: usize) -> u8 {
        self.disk().medium[sector * SECTOR]
    }

    pub(crate) fn set_size(&self, sectors: usize) {
        self.set_size_untold(sectors);
        let geometry = Geometry::plain((sectors * SECTOR) as u64);
        self.resized.lock().unwrap().as_ref().unwrap()(geometry);
    }

    pub(crate) fn set_size_untold(&self, sectors: usize) {
        self.disk().medium.resize(sectors * SECTOR, 0);
    }

    async fn change(
        self: Arc<Self>,
        offset: u64,
        bytes: Vec<u8>,
        durability: Durability,
    ) -> Result<(), BlockError> {
        let _let_through = self.changes.acquire().await.unwrap();
        let time = self.disk().time;
        sleep(time).await;
        let goes = {
            let mut disk = self.disk();
            if let Some(error) = disk.change_errors.pop() {
                return Err(error);
            }
            disk.written.push(offset);
            for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                let at = offset + (n * SECTOR) as u64;
                if durability == Durability::Stable || !disk.volatile {
                    disk.cache.remove(&at);
                    disk.medium[at as usize..at as usize + SECTOR].copy_from_slice(sector);
                } else {
                    disk.cache.insert(at, sector.to_vec());
                }
            }
            match &mut disk.power_goes_after {
                Some(0) => disk.power_goes_after.take().is_some(),
                Some(left) => {
                    *left -= 1;
                    false
                }
                None => disk.restless,
            }
        };
        if goes {
            self.lose_power(true);
        }
        Ok(())
    }
}

/// A handle that a device can be.
pub(crate) struct Attached(pub(crate) Arc<Storage>);

impl BlockDevice for Attached {
    fn geometry(&self) -> Geometry {
        let disk = self.0.disk();
        Geometry { volatile_cache: disk.volatile, ..Geometry::plain(disk.medium.len() as u64) }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        let storage = self.0.clone();
        Io::pending(async move {
            {
                let disk = storage.disk();
                for (n, sector) in buf.chunks_mut(SECTOR).enumerate() {
                    let at = offset + (n * SECTOR) as u64;
                    let medium = &disk.medium[at as usize..at as usize + SECTOR];
                    sector.copy_from_slice(disk.cache.get(&at).map_or(medium, |cached| cached));
                }
            }
            sleep(Duration::from_micros(50)).await;
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        match self.geometry().check_write(offset, data.len() as u64) {
            Ok(()) => Io::pending(self.0.clone().change(offset, data.to_vec(), durability)),
            Err(error) => Io::err(error),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        let storage = self.0.clone();
        Io::pending(async move {
            sleep(Duration::from_micros(200)).await;
            let mut disk = storage.disk();
            disk.flushes += 1;
            if let Some(error) = disk.flush_errors.pop() {
                return Err(error);
            }
            for (at, sector) in std::mem::take(&mut disk.cache) {
                disk.medium[at as usize..at as usize + SECTOR].copy_from_slice(&sector);
            }
            Ok(())
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.write_zeroes(offset, len, Zeroing::MayUnmap)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::pending(self.0.clone().change(offset, vec![0; len as usize], Durability::Volatile))
    }

    fn on_resize(&self, callback: ResizeCallback) {
        *self.0.resized.lock().unwrap() = Some(callback);
    }

    fn on_cache_news(&self, callback: CacheCallback) {
        *self.0.callback.lock().unwrap() = Some(callback);
    }
}

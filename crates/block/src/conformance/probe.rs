//! A device whose every answer can be told from a default.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    BlockDevice, BlockError, Buf, CacheCallback, CacheNews, Caching, Compaction, Durability, Extent,
    ExtentKind, Geometry, Identity, Io, PathSample, PathState, Permit, Pull, ResizeCallback, SharedBuf,
    SnapshotCommit, Space, Unmap, Zeroing,
};

/// A device that stores nothing, answers every method with something that no default would, and notes what reached it.
#[derive(Default)]
pub struct Probe {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reached: Vec<&'static str>,
    resized: Vec<ResizeCallback>,
    cache: Vec<CacheCallback>,
}

impl Probe {
    /// Bytes.
    pub const SIZE: u64 = 8 << 20;
    /// Byte that reads return.
    pub const BYTE: u8 = 0xA7;

    /// The methods that reached it since the last call, in their order.
    pub fn take_reached(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().reached)
    }

    /// Tells its listeners of a new size and of a lost cache.
    pub fn tell(&self) {
        let state = self.state();
        state.resized.iter().for_each(|callback| callback(self.shape()));
        state.cache.iter().for_each(|callback| callback(CacheNews::Lost { reported: true }));
    }

    fn shape(&self) -> Geometry {
        Geometry {
            physical_sector: 8192,
            optimal_transfer: 64 << 10,
            transfer_granularity: 16 << 10,
            first_aligned: 4096,
            max_transfer: 2 << 20,
            unmap: Unmap::Zeroes { granularity: 32 << 10 },
            volatile_cache: true,
            rotational: true,
            ..Geometry::plain(Self::SIZE).with_sector(4096)
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reached<T>(&self, method: &'static str, answer: T) -> Io<Result<T, BlockError>> {
        self.state().reached.push(method);
        Io::ok(answer)
    }
}

impl BlockDevice for Probe {
    fn geometry(&self) -> Geometry {
        self.shape()
    }

    fn read(&self, _: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        buf.fill(Self::BYTE);
        self.reached("read", buf)
    }

    fn write(&self, _: u64, _: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let method = match durability {
            Durability::Volatile => "write",
            Durability::Stable => "durable write",
        };
        self.reached(method, ())
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.reached("flush", ())
    }

    fn unmap(&self, _: u64, _: u64) -> Io<Result<(), BlockError>> {
        self.reached("unmap", ())
    }

    fn write_zeroes(&self, _: u64, _: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let method = match zeroing {
            Zeroing::MayUnmap => "zeroing",
            Zeroing::KeepAllocated => "zeroing that keeps space",
        };
        self.reached(method, ())
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        let method = if count == usize::MAX { "extents" } else { "first extents" };
        self.reached(method, vec![Extent { offset, len, kind: ExtentKind::Zero }])
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        self.reached("confirm", ())
    }

    fn resize(&self, _: u64, _: Permit) -> Io<Result<(), BlockError>> {
        self.reached("resize", ())
    }

    fn snapshot(&self, _: &Path, _: SnapshotCommit) -> Io<Result<(), BlockError>> {
        self.reached("snapshot", ())
    }

    fn compact(&self, _: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        self.reached("compact", ())
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        self.reached("close", ())
    }

    fn identity(&self) -> Identity {
        Identity { content: Some("content".to_owned()), place: Some("place".to_owned()) }
    }

    fn pull(&self) -> Option<Pull> {
        Some(Pull { copied: 5, left: 7, ..Pull::default() })
    }

    fn space(&self) -> Option<Space> {
        Some(Space { allocated: 5, used: 7, available: 9 })
    }

    fn backing(&self) -> Option<String> {
        Some("its file is gone".to_owned())
    }

    fn lost_name(&self) -> Option<String> {
        Some("its name is gone".to_owned())
    }

    fn paths(&self) -> Vec<PathSample> {
        vec![PathSample { read_ios: 3, ..PathSample::unused("probe", PathState::Up) }]
    }

    fn caching(&self) -> Caching {
        Caching::PastPageCache
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.state().resized.push(callback);
    }

    fn on_cache_news(&self, callback: CacheCallback) {
        self.state().cache.push(callback);
    }
}

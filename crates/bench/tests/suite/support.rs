//! Devices that misbehave on purpose, in a known way.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Geometry, Io, SharedBuf, Zeroing,
};

/// What happens to a write on its way to the medium.
pub(crate) type OnWrite = Box<dyn Fn(u64, &mut Vec<u8>, &mut u64) -> bool + Send + Sync>;

/// Memory whose writes can be changed, redirected or lost: the hook gets the offset, the data and where it will go, and
/// says whether it goes there at all.
pub(crate) struct Memory {
    pub(crate) bytes: Mutex<Vec<u8>>,
    pub(crate) on_write: OnWrite,
    pub(crate) fail_reads: bool,
    pub(crate) fail_writes: bool,
    pub(crate) read_only: bool,
    pub(crate) extent_kind: ExtentKind,
    pub(crate) bytes_read: AtomicU64,
}

impl Memory {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            bytes: Mutex::new(vec![0; size]),
            on_write: Box::new(|_, _, _| true),
            fail_reads: false,
            fail_writes: false,
            read_only: false,
            extent_kind: ExtentKind::Data,
            bytes_read: AtomicU64::new(0),
        }
    }

    pub(crate) fn poke(&self, offset: usize, bytes: &[u8]) {
        self.bytes.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn peek(&self, offset: usize, len: usize) -> Vec<u8> {
        self.bytes.lock().unwrap()[offset..offset + len].to_vec()
    }
}

impl BlockDevice for Memory {
    fn geometry(&self) -> Geometry {
        let size = self.bytes.lock().unwrap().len() as u64;
        Geometry { read_only: self.read_only, ..Geometry::plain(size) }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        if self.fail_reads {
            return Io::err(BlockError::Medium { offset });
        }
        if let Err(error) = self.geometry().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        self.bytes_read.fetch_add(buf.len() as u64, Ordering::SeqCst);
        let len = buf.len();
        buf.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..len]);
        Io::ok(buf)
    }

    fn write(&self, offset: u64, data: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.geometry().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if self.fail_writes {
            return Io::err(BlockError::NoSpace);
        }
        let (mut bytes, mut place) = (data.to_vec(), offset);
        if (self.on_write)(offset, &mut bytes, &mut place) {
            self.poke(place as usize, &bytes);
        }
        Io::ok(())
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        self.poke(offset as usize, &vec![0; len as usize]);
        Io::ok(())
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        Io::ok(vec![Extent { offset, len, kind: self.extent_kind }])
    }
}

/// Every answer comes after `delay`, from another task; how many are under way at once is counted.
pub(crate) struct Delayed {
    pub(crate) inner: Arc<Memory>,
    pub(crate) delay: Duration,
    in_flight: Arc<AtomicU32>,
    pub(crate) most_in_flight: Arc<AtomicU32>,
}

impl Delayed {
    pub(crate) fn new(inner: Memory, delay: Duration) -> Self {
        Self { inner: Arc::new(inner), delay, in_flight: Arc::default(), most_in_flight: Arc::default() }
    }

    fn later<T: Send + Unpin + 'static>(&self, io: Io<T>) -> Io<T> {
        let (delay, in_flight) = (self.delay, Arc::clone(&self.in_flight));
        self.most_in_flight.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Io::pending(async move {
            tokio::time::sleep(delay).await;
            in_flight.fetch_sub(1, Ordering::SeqCst);
            io.await
        })
    }
}

impl BlockDevice for Delayed {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.later(self.inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.later(self.inner.write(offset, data, durability))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.later(self.inner.flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.later(self.inner.write_zeroes(offset, len, zeroing))
    }
}

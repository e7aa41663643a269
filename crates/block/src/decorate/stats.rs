//! A device that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{BlockDevice, BlockError, Buf, Durability, Io, SharedBuf, Zeroing};

/// Counts completed operations, their bytes, errors and time: `stats:DEVICE`.
///
/// Costs two clock readings and four additions per operation (some 100 ns), and no allocation where the
/// answer is ready. Operations whose answer was abandoned are not counted. Extent maps are not I/O and are
/// not counted.
pub struct Stats {
    inner: Arc<dyn BlockDevice>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    read: Counter,
    write: Counter,
    flush: Counter,
    unmap: Counter,
    write_zeroes: Counter,
}

/// Counters of one kind of operation, on a pair of cache lines of their own, so that readers and writers do not slow
/// each other down.
#[derive(Default)]
#[repr(align(128))]
struct Counter {
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
}

impl Counter {
    /// Relaxed: the four are not read as one, a snapshot in full flight may be off by the operations in it.
    fn add(&self, bytes: u64, ok: bool, time: Duration) {
        self.ops.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        match ok {
            true => self.bytes.fetch_add(bytes, Ordering::Relaxed),
            false => self.errors.fetch_add(1, Ordering::Relaxed),
        };
    }

    fn snapshot(&self) -> OpStats {
        OpStats {
            ops: self.ops.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            latency_ns_total: self.nanos.load(Ordering::Relaxed),
        }
    }
}

/// Counts of [`Stats`] since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Reads.
    pub read: OpStats,
    /// Writes.
    pub write: OpStats,
    /// Flushes.
    pub flush: OpStats,
    /// Unmaps; their bytes are the length of the ranges.
    pub unmap: OpStats,
    /// Zeroing; its bytes are the length of the ranges.
    pub write_zeroes: OpStats,
}

/// The figures of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Operations completed, failed ones included.
    pub ops: u64,
    /// Bytes of successful commands.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Time from call to answer, all operations together, nanoseconds.
    pub latency_ns_total: u64,
}

impl OpStats {
    /// The average time of an operation; 0 without any.
    pub fn latency_mean(&self) -> Duration {
        Duration::from_nanos(self.latency_ns_total.checked_div(self.ops).unwrap_or(0))
    }
}

impl Stats {
    /// Wraps `inner`, with all counters at 0.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, counters: Arc::default() }
    }

    /// The counters as they are now.
    pub fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            read: self.counters.read.snapshot(),
            write: self.counters.write.snapshot(),
            flush: self.counters.flush.snapshot(),
            unmap: self.counters.unmap.snapshot(),
            write_zeroes: self.counters.write_zeroes.snapshot(),
        }
    }

    fn counted<T: Send + 'static>(
        &self,
        counter: fn(&Counters) -> &Counter,
        bytes: u64,
        issue: impl FnOnce(&dyn BlockDevice) -> Io<Result<T, BlockError>>,
    ) -> Io<Result<T, BlockError>> {
        let start = Instant::now();
        match issue(&*self.inner) {
            Io::Ready(answer) => {
                counter(&self.counters).add(bytes, answer.is_ok(), start.elapsed());
                Io::Ready(answer)
            }
            Io::Pending(answer) => {
                let counters = Arc::clone(&self.counters);
                Io::pending(async move {
                    let answer = answer.await;
                    counter(&counters).add(bytes, answer.is_ok(), start.elapsed());
                    answer
                })
            }
        }
    }
}

impl crate::Layer for Stats {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.counted(|counters| &counters.read, buf.len() as u64, |inner| inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let bytes = data.len() as u64;
        self.counted(|counters| &counters.write, bytes, |inner| inner.write(offset, data, durability))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.counted(|counters| &counters.flush, 0, BlockDevice::flush)
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.counted(|counters| &counters.unmap, len, |inner| inner.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.counted(|counters| &counters.write_zeroes, len, |inner| inner.write_zeroes(offset, len, zeroing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decorate::test_device::TestDevice;

    #[test]
    fn what_was_ready_stays_ready() {
        let device = Stats::new(TestDevice::new(4096).shared());
        assert!(matches!(device.read(0, Buf::zeroed(512)), Io::Ready(Ok(_))));
        assert!(matches!(
            device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile),
            Io::Ready(Ok(()))
        ));
        assert!(matches!(device.flush(), Io::Ready(Ok(()))));
        assert!(matches!(device.unmap(0, 512), Io::Ready(Ok(()))));
        assert!(matches!(device.write_zeroes(0, 512, Zeroing::MayUnmap), Io::Ready(Ok(()))));
    }

    #[tokio::test]
    async fn every_kind_is_counted_apart_ready_or_pending() {
        for pending in [false, true] {
            let device = Stats::new(TestDevice::new(4096).answering_later(pending).shared());
            device.read(0, Buf::zeroed(512)).await.unwrap();
            device.read(0, Buf::zeroed(1024)).await.unwrap();
            device.read(4096, Buf::zeroed(512)).await.unwrap_err();
            device.write(0, Buf::zeroed(2048).freeze(), Durability::Volatile).await.unwrap();
            device.flush().await.unwrap();
            device.unmap(0, 4096).await.unwrap();
            device.write_zeroes(0, 512, Zeroing::KeepAllocated).await.unwrap();
            let figures = |op: OpStats| (op.ops, op.bytes, op.errors);
            let stats = device.snapshot();
            assert_eq!(figures(stats.read), (3, 1536, 1));
            assert_eq!(figures(stats.write), (1, 2048, 0));
            assert_eq!(figures(stats.flush), (1, 0, 0));
            assert_eq!(figures(stats.unmap), (1, 4096, 0));
            assert_eq!(figures(stats.write_zeroes), (1, 512, 0));
            assert!(stats.read.latency_ns_total > 0);
            assert_eq!(stats.read.latency_mean().as_nanos() as u64, stats.read.latency_ns_total / 3);
        }
    }

    #[tokio::test]
    async fn an_abandoned_answer_is_not_counted() {
        let device = Stats::new(TestDevice::new(4096).answering_later(true).shared());
        drop(device.read(0, Buf::zeroed(512)));
        assert_eq!(device.snapshot().read.ops, 0);
        assert_eq!(device.snapshot().read.latency_mean(), Duration::ZERO);
    }
}

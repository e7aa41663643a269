//! A narrower device.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::timer::sleep_until;
use crate::{BlockDevice, BlockError, Buf, Durability, Io, SharedBuf};

/// Amount by which the account may be overdrawn before an answer is held back: the timer's own inaccuracy would
/// otherwise make many small operations slower than the limit. Idle time earns no more than this.
const TOLERANCE: Duration = Duration::from_millis(1);

/// Limits bytes per second, reads and writes together: `rate:RATE:DEVICE`.
///
/// A token bucket kept as one number, the moment at which all bytes accepted so far will have passed. An
/// answer is held back until its own last byte has passed, as on a wire of that speed: no thread is blocked,
/// nothing is refused, and a burst gains at most a millisecond. Flush, unmap and zeroing move no data and are
/// free.
pub struct Rate {
    inner: Arc<dyn BlockDevice>,
    bytes_per_second: NonZeroU64,
    start: Instant,
    /// Nanoseconds after `start`.
    busy_until: AtomicU64,
}

impl Rate {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, bytes_per_second: NonZeroU64) -> Self {
        Self { inner, bytes_per_second, start: Instant::now(), busy_until: AtomicU64::new(0) }
    }

    /// Returns the time at which the last of `bytes` more bytes will have passed; `None` if that is near enough.
    fn take(&self, bytes: usize) -> Option<Instant> {
        let cost = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let now = self.start.elapsed().as_nanos() as u64;
        let end = |busy_until: u64| busy_until.max(now).saturating_add(cost);
        let before = self.busy_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| Some(end(at)));
        let (Ok(before) | Err(before)) = before;
        let wait = end(before) - now;
        if wait <= TOLERANCE.as_nanos() as u64 {
            return None;
        }
        // A rate of one byte per second must not overflow the clock: a century is as good as never.
        let century = Duration::from_secs(100 * 365 * 86_400);
        Some(Instant::now() + Duration::from_nanos(wait).min(century))
    }

    fn held_back<T: Send + Unpin + 'static>(&self, bytes: usize, io: Io<T>) -> Io<T> {
        let Some(end) = self.take(bytes) else { return io };
        let sleep = sleep_until(end);
        Io::pending(async move {
            let answer = io.await;
            sleep.await;
            answer
        })
    }
}

impl crate::Layer for Rate {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let bytes = buf.len();
        self.held_back(bytes, self.inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let bytes = data.len();
        self.held_back(bytes, self.inner.write(offset, data, durability))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decorate::test_device::TestDevice;

    fn rate(bytes_per_second: u64) -> Rate {
        Rate::new(TestDevice::new(1 << 20).shared(), NonZeroU64::new(bytes_per_second).unwrap())
    }

    #[tokio::test]
    async fn bytes_pass_no_faster_than_the_rate() {
        let device = rate(1 << 20);
        let start = Instant::now();
        for _ in 0..8 {
            device.read(0, Buf::zeroed(4096)).await.unwrap();
            device.write(0, Buf::zeroed(4096).freeze(), Durability::Volatile).await.unwrap();
        }
        // 64 KiB at 1 MiB/s are 62.5 ms.
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(61), "{elapsed:?}");
        assert!(elapsed < Duration::from_millis(1000), "{elapsed:?}");
    }

    #[tokio::test]
    async fn many_at_once_share_the_rate() {
        let device = rate(1 << 20);
        let start = Instant::now();
        let reads: Vec<_> = (0..16).map(|_| device.read(0, Buf::zeroed(4096))).collect();
        for read in reads {
            read.await.unwrap();
        }
        assert!(start.elapsed() >= Duration::from_millis(61));
    }

    #[tokio::test]
    async fn below_the_rate_nothing_waits() {
        let device = rate(100 << 30);
        assert!(matches!(device.read(0, Buf::zeroed(4096)), Io::Ready(Ok(_))));
        assert!(matches!(rate(1).flush(), Io::Ready(Ok(()))));
    }

    #[test]
    fn the_slowest_rate_does_not_overflow() {
        let device = rate(1);
        for _ in 0..4 {
            assert!(device.take(usize::MAX).is_some());
        }
    }
}

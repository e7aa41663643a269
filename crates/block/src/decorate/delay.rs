//! A slower device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::timer::sleep_until;
use crate::{BlockDevice, BlockError, Buf, Durability, Io, Permit, SharedBuf, Zeroing};

/// Adds a fixed service time to each operation: `delay:TIME:DEVICE`.
///
/// The device gets the operation at once and its answer is held back, as by a long wire: any number of
/// operations wait side by side, without blocking a thread. An answer is never early, and late by what it
/// takes to wake a thread and a task (20–40 µs measured, with the timer slack at its least). Extent maps are
/// not I/O and are not delayed.
pub struct Delay {
    inner: Arc<dyn BlockDevice>,
    time: Duration,
}

impl Delay {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, time: Duration) -> Self {
        Self { inner, time }
    }

    fn delayed<T: Send + Unpin + 'static>(&self, io: Io<T>) -> Io<T> {
        let time = self.time;
        if time.is_zero() {
            return io;
        }
        match io {
            Io::Ready(answer) => {
                let sleep = sleep_until(Instant::now() + time);
                Io::pending(async move {
                    sleep.await;
                    answer
                })
            }
            Io::Pending(answer) => Io::pending(async move {
                let answer = answer.await;
                sleep_until(Instant::now() + time).await;
                answer
            }),
        }
    }
}

impl crate::Layer for Delay {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.delayed(self.inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.delayed(self.inner.write(offset, data, durability))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.delayed(self.inner.flush())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.delayed(self.inner.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.delayed(self.inner.write_zeroes(offset, len, zeroing))
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        self.delayed(self.inner.resize(size, permit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decorate::test_device::TestDevice;

    const TIME: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn each_answer_comes_later_by_the_time() {
        for pending in [false, true] {
            let device = Delay::new(TestDevice::new(4096).answering_later(pending).shared(), TIME);
            let start = Instant::now();
            device.write(0, Buf::copy_of(&[7; 512]).freeze(), Durability::Volatile).await.unwrap();
            assert_eq!(&device.read(0, Buf::zeroed(512)).await.unwrap()[..], &[7; 512]);
            device.flush().await.unwrap();
            assert!(start.elapsed() >= 3 * TIME);
        }
    }

    #[tokio::test]
    async fn operations_wait_side_by_side() {
        let device = Delay::new(TestDevice::new(4096).shared(), TIME);
        let start = Instant::now();
        let reads: Vec<_> = (0..100).map(|_| device.read(0, Buf::zeroed(512))).collect();
        for read in reads {
            read.await.unwrap();
        }
        assert!(start.elapsed() >= TIME);
        assert!(start.elapsed() < 50 * TIME, "{:?}", start.elapsed());
    }
}

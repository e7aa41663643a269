//! A device whose answers come in time, or are errors.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::timer::sleep_until;
use crate::{BlockDevice, BlockError, Buf, Extent, Io};

/// Fails reads and questions about extents that have no answer after a time, as [`BlockError::Timeout`]. What was asked
/// goes on below: its answer is dropped when it comes.
///
/// For a read-only device behind a server that may hang. Other operations are passed on as they are.
pub struct Deadline {
    inner: Arc<dyn BlockDevice>,
    time: Duration,
}

impl Deadline {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, time: Duration) -> Self {
        Self { inner, time }
    }

    fn within<T: Send + Unpin + 'static>(&self, io: Io<Result<T, BlockError>>) -> Io<Result<T, BlockError>> {
        let (mut answer, time) = match io {
            Io::Ready(answer) => return Io::Ready(answer),
            Io::Pending(answer) => (answer, self.time),
        };
        let mut sleep = sleep_until(Instant::now() + time);
        Io::pending(std::future::poll_fn(move |cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer),
            Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| Err(BlockError::late(time))),
        }))
    }
}

impl crate::Layer for Deadline {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.within(self.inner.read(offset, buf))
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        self.within(self.inner.extents(offset, len, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decorate::Delay;
    use crate::decorate::test_device::TestDevice;

    #[tokio::test]
    async fn a_read_that_takes_longer_fails_in_time_and_another_is_answered() {
        let slow = Arc::new(Delay::new(TestDevice::new(4096).shared(), Duration::from_millis(60)));
        let late = Deadline::new(slow.clone(), Duration::from_millis(10));
        let start = Instant::now();
        let answer = late.read(0, Buf::zeroed(512)).await;
        assert!(matches!(answer, Err(BlockError::Timeout { .. })), "{:?}", answer.err());
        assert!(start.elapsed() < Duration::from_millis(55), "{:?}", start.elapsed());
        assert!(Deadline::new(slow, Duration::from_secs(60)).read(0, Buf::zeroed(512)).await.is_ok());
    }
}

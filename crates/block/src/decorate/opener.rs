//! A device as each of several users has it opened.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{BlockDevice, BlockError, Io};

/// A device that several use who know nothing of each other: connections, file handles, initiators.
///
/// A flush that fails is reported once by a device, to the one whose flush it was; but what was lost may be anybody's.
/// So each [`Opener`] hears of each failure once, with its own next flush, as every file descriptor does in Linux
/// (`errseq_t`).
pub struct Openers {
    device: Arc<dyn BlockDevice>,
    failures: Arc<Mutex<Failures>>,
}

/// Flushes that have failed, over whichever opener.
#[derive(Default)]
struct Failures {
    count: u64,
    last: Option<BlockError>,
}

/// A device as one of its users has it opened. See [`Openers`].
pub struct Opener {
    inner: Arc<dyn BlockDevice>,
    failures: Arc<Mutex<Failures>>,
    /// Number of failures that this user has been told of.
    heard: Arc<Mutex<u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Openers {
    /// Users of `device`, which nothing else flushes.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, failures: Arc::default() }
    }

    /// Opens the device for one more user. Earlier failures are not reported to it.
    pub fn open(&self) -> Opener {
        let heard = lock(&self.failures).count;
        Opener {
            inner: self.device.clone(),
            failures: self.failures.clone(),
            heard: Arc::new(Mutex::new(heard)),
        }
    }
}

impl crate::Layer for Opener {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        let (failures, heard) = (self.failures.clone(), self.heard.clone());
        let begun = lock(&failures).count;
        self.inner.flush().map(move |result| {
            let (mut failures, mut heard) = (lock(&failures), lock(&heard));
            if let Err(error) = result {
                // Flushes that were under way together fail for one reason, which is told to each by its own.
                if failures.count == begun || failures.last.as_ref() != Some(&error) {
                    *failures = Failures { count: failures.count + 1, last: Some(error.clone()) };
                }
                *heard = failures.count;
                return Err(error);
            }
            match failures.last.clone().filter(|_| *heard < failures.count) {
                Some(error) => {
                    *heard = failures.count;
                    Err(error)
                }
                None => Ok(()),
            }
        })
    }
}

impl fmt::Debug for Openers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Openers").finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decorate::test_device::TestDevice;
    use crate::{Buf, Durability, Zeroing};

    /// Flushes as it is told; the rest is another device's.
    struct Scripted {
        inner: Arc<dyn BlockDevice>,
        flushes: Mutex<Vec<Result<(), BlockError>>>,
        later: bool,
    }

    impl crate::Layer for Scripted {
        fn inner(&self) -> &dyn BlockDevice {
            &*self.inner
        }

        fn flush(&self) -> Io<Result<(), BlockError>> {
            let answer = self.flushes.lock().unwrap().pop().unwrap_or(Ok(()));
            if self.later { Io::pending(async move { answer }) } else { Io::Ready(answer) }
        }
    }

    fn openers(later: bool, mut flushes: Vec<Result<(), BlockError>>) -> Openers {
        flushes.reverse();
        let inner = TestDevice::new(4096).shared();
        Openers::new(Arc::new(Scripted { inner, flushes: Mutex::new(flushes), later }))
    }

    const FAILED: Result<(), BlockError> = Err(BlockError::Medium { offset: 512 });

    #[tokio::test]
    async fn every_opener_hears_of_a_failed_flush_once() {
        let openers = openers(false, vec![Ok(()), FAILED]);
        let [one, other] = [openers.open(), openers.open()];
        assert_eq!(one.flush().await, Ok(()));
        assert_eq!(one.flush().await, FAILED);
        let late = openers.open();
        assert_eq!([one.flush().await, other.flush().await, late.flush().await], [Ok(()), FAILED, Ok(())]);
        assert_eq!([one.flush().await, other.flush().await], [Ok(()), Ok(())]);
    }

    #[tokio::test]
    async fn flushes_that_fail_together_are_one_failure() {
        let openers = openers(true, vec![FAILED, FAILED, Err(BlockError::NoSpace)]);
        let [one, other] = [openers.open(), openers.open()];
        let together = (one.flush(), other.flush());
        assert_eq!((together.0.await, together.1.await), (FAILED, FAILED));
        assert_eq!(one.flush().await, Err(BlockError::NoSpace));
        assert_eq!((one.flush().await, other.flush().await), (Ok(()), Err(BlockError::NoSpace)));
    }

    #[tokio::test]
    async fn all_else_is_the_device_s() {
        let opener = openers(false, Vec::new()).open();
        assert_eq!(opener.geometry().size, 4096);
        opener.write(0, Buf::copy_of(&[7; 512]).freeze(), Durability::Volatile).await.unwrap();
        opener.write_zeroes(512, 512, Zeroing::KeepAllocated).await.unwrap();
        assert_eq!(opener.read(0, Buf::zeroed(512)).await.unwrap()[..], [7; 512]);
    }
}

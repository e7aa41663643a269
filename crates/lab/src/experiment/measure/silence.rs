//! Silences: times in which no I/O completed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Io, SharedBuf};

/// Times without a completed I/O that are kept: shorter ones are between any two large requests on a slow cable.
const KEPT_MIN: Duration = Duration::from_millis(10);
/// Maximum number of silences kept.
const KEPT_MAX: usize = 100_000;

/// A device that notes when its reads and writes succeed: an I/O's own time says how long one caller waited, this how
/// long all of them did.
pub(crate) struct Watched {
    inner: Arc<dyn BlockDevice>,
    silences: Arc<Silences>,
}

/// The times in which nothing succeeded, from an origin on.
pub(crate) struct Silences {
    origin: Instant,
    /// The last success, nanoseconds since the origin.
    last: AtomicU64,
    kept: Mutex<Vec<Silence>>,
}

/// Nothing succeeded between these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Silence {
    from: Duration,
    to: Duration,
}

impl Watched {
    /// Watches `inner` from `origin` on, which may be yet to come.
    pub(crate) fn new(inner: Arc<dyn BlockDevice>, origin: Instant) -> (Arc<Self>, Arc<Silences>) {
        let silences = Silences { origin, last: AtomicU64::new(0), kept: Mutex::default() };
        let silences = Arc::new(silences);
        (Arc::new(Self { inner, silences: silences.clone() }), silences)
    }

    fn watched<T: Send + 'static>(&self, io: Io<Result<T, BlockError>>) -> Io<Result<T, BlockError>> {
        let silences = self.silences.clone();
        io.map(move |answer| {
            if answer.is_ok() {
                silences.succeeded(silences.origin.elapsed());
            }
            answer
        })
    }
}

impl Silences {
    fn succeeded(&self, at: Duration) {
        let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let from = Duration::from_nanos(self.last.fetch_max(at_ns, Ordering::Relaxed));
        if at.saturating_sub(from) >= KEPT_MIN {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() < KEPT_MAX {
                kept.push(Silence { from, to: at });
            }
        }
    }

    /// Returns the silences that began within `time`. The last keeps its own end, or ends now if it is still open.
    fn within(&self, time: Duration) -> Vec<Silence> {
        let last = Duration::from_nanos(self.last.load(Ordering::Relaxed));
        let open = (last < time).then(|| Silence { from: last, to: self.origin.elapsed().max(time) });
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().copied().filter(|silence| silence.from < time).chain(open).collect()
    }

    /// The longest of a measurement of `time`; none where it was too short to be kept.
    pub(crate) fn longest(&self, time: Duration) -> Duration {
        let silences = self.within(time).into_iter();
        silences.map(|silence| silence.to.saturating_sub(silence.from)).max().unwrap_or_default()
    }

    /// Returns the time from `at` until something succeeded again.
    pub(crate) fn left_at(&self, at: Duration, time: Duration) -> Duration {
        let silences = self.within(time).into_iter();
        let around = silences.filter(|silence| (silence.from..silence.to).contains(&at));
        around.map(|silence| silence.to - at).max().unwrap_or_default()
    }
}

impl lunway_block::Layer for Watched {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.watched(self.inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.watched(self.inner.write(offset, data, durability))
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::conformance::{Check, Outcome, Subject};

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn silences(successes: &[u64]) -> Silences {
        let silences = Silences { origin: Instant::now(), last: AtomicU64::new(0), kept: Mutex::default() };
        successes.iter().for_each(|&at| silences.succeeded(ms(at)));
        silences
    }

    #[test]
    fn the_longest_silence_is_between_two_successes_that_follow_each_other() {
        let silences = silences(&[3, 9, 250, 251, 258, 1000]);
        assert_eq!(silences.longest(ms(1000)), ms(742));
        // What began after the measurement is not of it: reading back may take what it likes.
        assert_eq!(silences.longest(ms(251)), ms(241));
    }

    #[test]
    fn what_resumes_does_so_at_the_first_success_after_it_could() {
        let silences = silences(&[100, 900, 903, 1000]);
        assert_eq!(silences.left_at(ms(700), ms(1000)), ms(200));
        // Nothing was silent then.
        assert_eq!(silences.left_at(ms(901), ms(1000)), ms(0));
    }

    #[test]
    fn what_never_succeeds_again_is_silent_to_the_end() {
        let silences = silences(&[100]);
        assert!(silences.longest(ms(2000)) >= ms(1900));
        assert!(silences.left_at(ms(500), ms(2000)) >= ms(1500));
    }

    #[tokio::test]
    async fn all_that_is_not_watched_is_passed_on() {
        let watched = Subject::layer("watched", &[], |inner| Watched::new(inner, Instant::now()).0);
        assert_eq!(watched.check(Check::PassesOn).await, Ok(Outcome::Holds));
    }
}

//! Timer: a thread that wakes tasks at the times they wait for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

/// Waits until `deadline`, counted from this call and not from the first poll: operations that were issued
/// together wait together, however late their answers are asked for.
///
/// Dropping the wait early leaves a small entry with the timer until its moment.
pub(crate) fn sleep_until(deadline: Instant) -> Sleep {
    let slot = Arc::new(Slot::default());
    if !TIMER.add(deadline, &slot) {
        slot.fire();
    }
    Sleep { slot }
}

/// The future of [`sleep_until`].
pub(crate) struct Sleep {
    slot: Arc<Slot>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.slot.state);
        if let State::Waiting(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

enum State {
    Waiting(Option<Waker>),
    Fired,
}

struct Slot {
    state: Mutex<State>,
}

impl Default for Slot {
    fn default() -> Self {
        Self { state: Mutex::new(State::Waiting(None)) }
    }
}

impl Slot {
    fn fire(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Fired);
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// Ordered by deadline, then by arrival.
struct Entry {
    key: (Instant, u64),
    slot: Arc<Slot>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[derive(Default)]
struct Queue {
    entries: BinaryHeap<Reverse<Entry>>,
    arrivals: u64,
    running: bool,
}

#[derive(Default)]
struct Timer {
    queue: Mutex<Queue>,
    earlier: Condvar,
}

static TIMER: LazyLock<Timer> = LazyLock::new(Timer::default);

/// Nothing panics while it holds one of these locks, and if it did the data would still be whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timer {
    /// `false` where the thread cannot be started: then a wait is over at once, because a device that answers
    /// too early is better than one that never does.
    fn add(&'static self, deadline: Instant, slot: &Arc<Slot>) -> bool {
        let mut queue = lock(&self.queue);
        if !queue.running {
            let thread = thread::Builder::new().name("block-timer".to_owned());
            queue.running = thread.spawn(|| self.run()).is_ok();
            if !queue.running {
                return false;
            }
        }
        queue.arrivals += 1;
        let key = (deadline, queue.arrivals);
        let first = queue.entries.peek().is_none_or(|Reverse(first)| key < first.key);
        queue.entries.push(Reverse(Entry { key, slot: Arc::clone(slot) }));
        drop(queue);
        if first {
            self.earlier.notify_one();
        }
        true
    }

    fn run(&self) {
        // The kernel may be late by the thread's slack, 50 µs by default: a quarter of a typical
        // `delay:200us`. Where the call is forbidden the delay is that much less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut due = Vec::new();
        let mut queue = lock(&self.queue);
        loop {
            let now = Instant::now();
            while queue.entries.peek().is_some_and(|Reverse(entry)| entry.key.0 <= now) {
                due.extend(queue.entries.pop().map(|Reverse(entry)| entry.slot));
            }
            if !due.is_empty() {
                // Wakers may do anything, adding waits included: not under the lock.
                drop(queue);
                due.drain(..).for_each(|slot| slot.fire());
                queue = lock(&self.queue);
                continue;
            }
            queue = match queue.entries.peek() {
                None => self.earlier.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(Reverse(first)) => {
                    let left = first.key.0.saturating_duration_since(now);
                    self.earlier.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn waits_end_in_the_order_of_their_moments_and_never_early() {
        let start = Instant::now();
        let order = Arc::new(Mutex::new(Vec::new()));
        let waits = [30_u64, 10, 20].map(|millis| {
            let sleep = sleep_until(start + Duration::from_millis(millis));
            let order = Arc::clone(&order);
            tokio::spawn(async move {
                sleep.await;
                lock(&order).push(millis);
                assert!(start.elapsed() >= Duration::from_millis(millis));
            })
        });
        for wait in waits {
            wait.await.unwrap();
        }
        assert_eq!(*lock(&order), [10, 20, 30]);
    }

    #[tokio::test]
    async fn time_runs_from_the_call_and_not_from_the_first_poll() {
        let start = Instant::now();
        let sleep = sleep_until(start + Duration::from_millis(5));
        thread::sleep(Duration::from_millis(50));
        assert!(matches!(*lock(&sleep.slot.state), State::Fired));
        sleep.await;
    }

    #[tokio::test]
    async fn an_abandoned_wait_disturbs_no_other() {
        let start = Instant::now();
        drop(sleep_until(start + Duration::from_millis(1)));
        sleep_until(start + Duration::from_millis(5)).await;
        assert!(start.elapsed() >= Duration::from_millis(5));
    }
}

//! Wakers of the I/Os in flight: which of them have been woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// A bitmap of slots whose future was woken, and the task to wake.
///
/// Each slot has one [`Waker`] for its whole life, made by [`wakers`](Self::wakers): an I/O that goes pending costs no
/// allocation here, and a batch of a hundred completions costs a hundred bit operations and **one** wake of the task.
///
/// Order of calls, per poll of the task: [`listen`](Self::listen), then [`take`](Self::take) each word. A wake that
/// comes after its word was taken wakes the task again.
#[derive(Debug)]
pub(crate) struct Wakes {
    words: Box<[AtomicU64]>,
    /// The task has been woken and has not listened since.
    signalled: AtomicBool,
    task: AtomicWaker,
}

#[derive(Debug)]
struct SlotWake {
    wakes: Arc<Wakes>,
    index: u32,
}

impl Wakes {
    pub(crate) fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            words: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            signalled: AtomicBool::new(false),
            task: AtomicWaker::new(),
        })
    }

    /// Returns one waker per slot, in order.
    pub(crate) fn wakers(self: &Arc<Self>, slots: usize) -> impl Iterator<Item = Waker> {
        (0..slots as u32).map(|index| Waker::from(Arc::new(SlotWake { wakes: Arc::clone(self), index })))
    }

    /// Wakes go to `task` from here on.
    pub(crate) fn listen(&self, task: &Waker) {
        self.task.register(task);
        self.signalled.store(false, Ordering::SeqCst);
    }

    /// Number of words to take.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    /// The woken slots among `word × 64 ..`, which this forgets.
    pub(crate) fn take(&self, word: usize) -> u64 {
        // Looking first spares the exclusive access where nothing came.
        if self.words[word].load(Ordering::SeqCst) == 0 {
            0
        } else {
            self.words[word].swap(0, Ordering::SeqCst)
        }
    }
}

impl Wake for SlotWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakes = &self.wakes;
        wakes.words[self.index as usize / 64].fetch_or(1 << (self.index % 64), Ordering::SeqCst);
        if !wakes.signalled.swap(true, Ordering::SeqCst) {
            wakes.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_batch_of_wakes_marks_each_slot_and_wakes_the_task_once() {
        let count = Arc::new(Count::default());
        let wakes = Wakes::new(100);
        let wakers: Vec<Waker> = wakes.wakers(100).collect();
        wakes.listen(&Waker::from(Arc::clone(&count)));
        for index in [0, 63, 64, 99] {
            wakers[index].wake_by_ref();
        }
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(wakes.take(0), 1 | 1 << 63);
        assert_eq!(wakes.take(1), 1 | 1 << 35);
        assert_eq!(wakes.take(0), 0);
    }

    #[test]
    fn a_wake_after_listening_again_wakes_the_task_again() {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let wakes = Wakes::new(1);
        let waker = wakes.wakers(1).next().unwrap();
        for _ in 0..3 {
            wakes.listen(&task);
            waker.wake_by_ref();
        }
        assert_eq!(count.0.load(Ordering::SeqCst), 3);
    }
}

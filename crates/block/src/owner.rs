//! Owners of operations: whom a device works for.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An owner of operations, such as a session of a target.
///
/// A device that has more operations than it can carry out at once gives each owner its turn, and drops what it has not
/// begun of an owner who is [gone](Self::leave). It learns the owner as a kernel learns the I/O context of a process:
/// from the thread that calls it, where the caller has [entered](Self::enter). So layers in between need not know of
/// owners. Operations without an owner are those of one more, who never leaves.
///
/// A dropped operation is answered with an error and has had no effect. What has begun is carried out to its end.
#[derive(Clone, Debug)]
pub struct Owner(Arc<State>);

#[derive(Debug)]
struct State {
    id: u64,
    gone: AtomicBool,
}

thread_local! {
    static CURRENT: RefCell<Option<Owner>> = const { RefCell::new(None) };
}

impl Owner {
    /// The [`id`](Self::id) of operations that have no owner.
    pub const NONE: u64 = 0;

    /// A new owner.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(Owner::NONE);
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        Self(Arc::new(State { id, gone: AtomicBool::new(false) }))
    }

    /// Unique while the process lives; not [`NONE`](Self::NONE).
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// What this thread asks of devices is asked for this owner, until the guard is dropped. Not across an `await`: a
    /// future enters each time that it is polled.
    pub fn enter(&self) -> Entered {
        Entered { before: CURRENT.replace(Some(self.clone())), not_send: PhantomData }
    }

    /// The owner for whom this thread calls.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// The owner goes: its operations that have not begun need not be carried out, and later ones are refused. A device
    /// drops them when their answers are polled next.
    pub fn leave(&self) {
        self.0.gone.store(true, Ordering::Release);
    }

    /// Whether it [has gone](Self::leave).
    pub fn is_gone(&self) -> bool {
        self.0.gone.load(Ordering::Acquire)
    }
}

/// The time in which a thread calls for an [`Owner`].
#[must_use = "the owner is left when this is dropped"]
#[derive(Debug)]
pub struct Entered {
    before: Option<Owner>,
    /// It belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_calls_for_whom_it_entered_last() {
        let current = || Owner::current().map(|owner| owner.id());
        let [one, other] = [(); 2].map(|()| Owner::new());
        assert_eq!(current(), None);
        {
            let _one = one.enter();
            {
                let _other = other.enter();
                assert_eq!(current(), Some(other.id()));
            }
            assert_eq!(current(), Some(one.id()));
            assert_eq!(std::thread::spawn(|| Owner::current().is_none()).join().ok(), Some(true));
        }
        assert_eq!(current(), None);
        assert!(one.id() != other.id() && one.id() != Owner::NONE);
        one.leave();
        assert_eq!([one.is_gone(), other.is_gone()], [true, false]);
    }
}

//! Owners of operations: whom a device works for.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// An owner of operations, such as a session of a target.
///
/// A device that has more operations than it can carry out at once gives each owner its turn, and drops what it has not
/// begun of an owner who is [gone](Self::leave). It learns the owner as a kernel learns the I/O context of a process:
/// from the thread that calls it, where the caller has [entered](Self::enter). So layers in between need not know of
/// owners. Operations without an owner are those of one more, who never leaves.
///
/// **Groups.** Owners that are sessions of one host are one [group](Self::in_groups), and hosts may be groups of a
/// larger one. Groups take turns as owners do, so that a host gains nothing by more sessions, see
/// [`FairQueue`](crate::FairQueue).
///
/// A dropped operation is answered with an error and has had no effect. What has begun is carried out to its end.
#[derive(Clone, Debug)]
pub struct Owner(Arc<State>);

#[derive(Debug)]
struct State {
    key: OwnerKey,
    gone: AtomicBool,
}

/// Place of an owner among all: the number of its outer group, of its inner group in that, and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerKey(pub(crate) [u64; OwnerKey::LEVELS]);

impl OwnerKey {
    /// Levels of turns: outer groups, inner groups, owners.
    pub const LEVELS: usize = 3;
    /// Key of operations that have no owner.
    pub const NONE: Self = Self([0; Self::LEVELS]);

    /// The inner group of the owner: the host, of which it is a session.
    pub fn group(self) -> OwnerGroup {
        let [outer, inner, _] = self.0;
        OwnerGroup([outer, inner])
    }
}

/// Place of an inner group of owners among all: the sessions of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerGroup([u64; OwnerKey::LEVELS - 1]);

thread_local! {
    static CURRENT: RefCell<Option<Owner>> = const { RefCell::new(None) };
}

impl Owner {
    /// A new owner, in a group of its own.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let id = Self::next_id();
        Self::with_key(OwnerKey([id; OwnerKey::LEVELS]))
    }

    /// A new owner in the group of the second name, which is one of the group of the first: equal names are the same
    /// groups, in the whole process. Names whose hashes are equal by chance are too, and only share a turn.
    pub fn in_groups([outer, inner]: [&str; 2]) -> Self {
        /// Keyed at random: peers choose names, and must not choose another's group.
        static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self::with_key(OwnerKey([HASHES.hash_one(outer), HASHES.hash_one(inner), Self::next_id()]))
    }

    /// A new owner in the same groups, who does not leave with this one: for work that others rely on.
    pub fn lasting(&self) -> Self {
        let OwnerKey([outer, inner, _]) = self.0.key;
        Self::with_key(OwnerKey([outer, inner, Self::next_id()]))
    }

    fn with_key(key: OwnerKey) -> Self {
        Self(Arc::new(State { key, gone: AtomicBool::new(false) }))
    }

    /// Unique while the process lives; not that of [`OwnerKey::NONE`].
    fn next_id() -> u64 {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Its place among all owners, unique while the process lives.
    pub fn key(&self) -> OwnerKey {
        self.0.key
    }

    /// The key of the owner for whom this thread calls.
    pub fn current_key() -> OwnerKey {
        CURRENT.with_borrow(|owner| owner.as_ref().map_or(OwnerKey::NONE, Self::key))
    }

    /// Attributes this thread's requests to devices to this owner, until the guard is dropped. Not across an `await`: a
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

    /// Returns `true` if the owner [has gone](Self::leave).
    pub fn is_gone(&self) -> bool {
        self.0.gone.load(Ordering::Acquire)
    }
}

/// Does work within an operation that others than the operation's owner rely on, such as a copy that a snapshot needs:
/// it keeps the place of the owner in the turns, and what it has asked of devices is carried out even if that leaves.
pub async fn beyond_owner<T>(work: impl Future<Output = T>) -> T {
    let owner = Owner::current().map(|owner| owner.lasting());
    let mut work = pin!(work);
    poll_fn(|cx| {
        let _entered = owner.as_ref().map(Owner::enter);
        work.as_mut().poll(cx)
    })
    .await
}

/// The time in which a thread calls for an [`Owner`].
#[must_use = "the owner is left when this is dropped"]
#[derive(Debug)]
pub struct Entered {
    before: Option<Owner>,
    /// Bound to its thread.
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
        let current = || Owner::current().map(|owner| owner.key());
        let [one, other] = [(); 2].map(|()| Owner::new());
        assert_eq!(current(), None);
        {
            let _one = one.enter();
            {
                let _other = other.enter();
                assert_eq!(current(), Some(other.key()));
            }
            assert_eq!(current(), Some(one.key()));
            assert_eq!(std::thread::spawn(|| Owner::current().is_none()).join().ok(), Some(true));
        }
        assert_eq!(current(), None);
        assert!(one.key() != other.key() && one.key() != OwnerKey::NONE);
        one.leave();
        assert_eq!([one.is_gone(), other.is_gone()], [true, false]);
    }

    #[test]
    fn equal_names_are_the_same_groups_and_each_owner_is_another_one() {
        let [one, same, other] =
            [["a", "b"], ["a", "b"], ["a", "c"]].map(|names| Owner::in_groups(names).key().0);
        assert_eq!((one[..2] == same[..2], one[0] == other[0], one[1] == other[1]), (true, true, false));
        assert!(one[2] != same[2]);
        assert_eq!(OwnerKey(one).group(), OwnerKey(same).group());
        assert_ne!(OwnerKey(one).group(), OwnerKey(other).group());
        let owner = Owner::in_groups(["a", "b"]);
        let lasting = owner.lasting();
        owner.leave();
        assert_eq!((lasting.key().0[..2] == one[..2], lasting.is_gone()), (true, false));
    }

    #[tokio::test]
    async fn work_beyond_its_owner_is_of_the_same_groups_at_each_poll() {
        let owner = Owner::new();
        let key = || Owner::current_key().0;
        let mut work = pin!(beyond_owner(async {
            let before = key();
            tokio::task::yield_now().await;
            [before, key()]
        }));
        let mut polled = 0;
        let keys = poll_fn(|cx| {
            let _entered = (polled == 0).then(|| owner.enter());
            polled += 1;
            work.as_mut().poll(cx)
        })
        .await;
        assert_eq!((keys[0], polled), (keys[1], 2));
        assert!(keys[0][..2] == owner.key().0[..2] && keys[0] != owner.key().0);
    }
}

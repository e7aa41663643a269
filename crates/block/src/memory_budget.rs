//! Memory budget: what a server keeps for its peers, shared out among those who are responsible for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Unit in which a lease takes memory from the budget, bytes: the lock is taken once for so much, which takes 40 µs to
/// copy. Commands of 4 KiB stay within the [reserve](MemoryLease::RESERVE) and never take it.
const STEP: usize = 1 << 20;

/// Of the whole, one part in so many is for owners that have few.
const RESERVED_PART: usize = 4;
/// Few is no more than one part in so many of the whole.
const FEW_PART: usize = 16;
/// Of the whole, one part in so many, the last, is for owners that have [least](LEAST_PART).
const FIRST_PART: usize = 8;
/// Least is no more than one part in so many of the whole.
const LEAST_PART: usize = 64;

/// Limits of a [`MemoryBudget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes that all owners may have together.
    pub whole: usize,
    /// Bytes that one owner may have.
    pub each: usize,
}

/// Budget of memory for what waits: requests that were received, data on its way, answers that are not taken.
///
/// Each connection has a [lease](MemoryLease) for its owner, the principal. A lease has a small
/// [reserve](MemoryLease::RESERVE) of its own, which is not of the budget, so that a connection can always go on with
/// small requests, whatever others have. All beyond that is taken from the budget, in steps of a mebibyte, and given
/// back when it is no longer needed.
///
/// **Shares.** One owner has `each` at most. Of the `whole`, the last quarter is for owners that have no more than a
/// sixteenth of it, and of that the second half for those that have no more than a 64th: an owner that takes all it can
/// get leaves something to the others, also together with two more of its kind.
///
/// **No deadlock.** A request may need more than there is while all who have something wait for such requests
/// themselves. So one lease of an owner at a time may be overdrawn for one request, see
/// [`cover_or_wait`](MemoryLease::cover_or_wait).
///
/// **Bound.** `whole`, and for each lease its reserve, and for each owner one overdraft.
#[derive(Debug)]
pub struct MemoryBudget {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: MemoryLimits,
    /// Bytes of all owners.
    used: usize,
    owners: BTreeMap<Arc<str>, Account>,
    last_lease: u64,
    waits: u64,
    refused: u64,
}

/// Memory that an owner has.
#[derive(Debug, Default)]
struct Account {
    used: usize,
    leases: usize,
    /// The lease that may have more than there is.
    overdrawn: Option<u64>,
    waiting: BTreeMap<u64, Waker>,
    waits: u64,
    refused: u64,
    /// Seen by its leases without the lock.
    pressed: Arc<AtomicBool>,
}

/// The use of a [`MemoryBudget`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Its limits.
    pub limits: MemoryLimits,
    /// Bytes of all owners.
    pub used: usize,
    /// Requests that waited for memory, ever.
    pub waits: u64,
    /// Requests that were refused for lack of memory, ever.
    pub refused: u64,
    /// Owners with a lease.
    pub owners: Vec<OwnerMemory>,
}

/// The memory of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerMemory {
    /// Its name.
    pub owner: String,
    /// Bytes.
    pub used: usize,
    /// Requests that waited for memory since it has a lease.
    pub waits: u64,
    /// Requests that were refused for lack of memory since then.
    pub refused: u64,
}

impl MemoryBudget {
    /// A budget of which nothing is used.
    pub fn new(limits: MemoryLimits) -> Arc<Self> {
        let state = State { limits, used: 0, owners: BTreeMap::new(), last_lease: 0, waits: 0, refused: 0 };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Other limits from now on. What is beyond them stays until it is given back.
    pub fn set_limits(&self, limits: MemoryLimits) {
        let mut state = self.lock();
        state.limits = limits;
        state.note_pressure(None);
        let waiting: Vec<Waker> = state.all_waiting();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns what is used now.
    pub fn reading(&self) -> MemoryUse {
        let state = self.lock();
        let owner = |(owner, account): (&Arc<str>, &Account)| OwnerMemory {
            owner: owner.to_string(),
            used: account.used,
            waits: account.waits,
            refused: account.refused,
        };
        MemoryUse {
            limits: state.limits,
            used: state.used,
            waits: state.waits,
            refused: state.refused,
            owners: state.owners.iter().map(owner).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics between two changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns `true` if an owner may have so many bytes more.
    fn admits(&self, owner: &str, bytes: usize) -> bool {
        let MemoryLimits { whole, each } = self.limits;
        let own = self.owners.get(owner).map_or(0, |account| account.used).saturating_add(bytes);
        let all = self.used.saturating_add(bytes);
        let has_place = all <= whole - whole / RESERVED_PART
            || all <= whole - whole / FIRST_PART && own <= whole / FEW_PART
            || all <= whole && own <= whole / LEAST_PART;
        own <= each && has_place
    }

    fn take(&mut self, owner: &str, bytes: usize) {
        let was_scarce = self.is_scarce();
        self.used += bytes;
        if let Some(account) = self.owners.get_mut(owner) {
            account.used += bytes;
        }
        self.note_pressure((was_scarce == self.is_scarce()).then_some(owner));
    }

    /// Takes bytes back, and gives the wakers of those who may have waited for them.
    fn give_back(&mut self, owner: &str, bytes: usize) -> Vec<Waker> {
        let was_scarce = self.is_scarce();
        // Only a whole that is nearly used up keeps others waiting.
        let others_wait = self.used + 2 * STEP > self.limits.whole - self.limits.whole / RESERVED_PART;
        self.used = self.used.saturating_sub(bytes);
        if let Some(account) = self.owners.get_mut(owner) {
            account.used = account.used.saturating_sub(bytes);
        }
        self.note_pressure((was_scarce == self.is_scarce()).then_some(owner));
        if others_wait { self.all_waiting() } else { self.waiting_of(owner) }
    }

    fn waiting_of(&mut self, owner: &str) -> Vec<Waker> {
        let account = self.owners.get_mut(owner);
        account.map_or_else(Vec::new, |account| std::mem::take(&mut account.waiting).into_values().collect())
    }

    fn all_waiting(&mut self) -> Vec<Waker> {
        self.owners
            .values_mut()
            .flat_map(|account| std::mem::take(&mut account.waiting).into_values())
            .collect()
    }

    fn is_scarce(&self) -> bool {
        self.used > self.limits.whole / 2
    }

    /// Tells the leases of an owner, or of all, whether memory gets scarce for them.
    fn note_pressure(&self, owner: Option<&str>) {
        let MemoryLimits { whole, each } = self.limits;
        let scarce = self.is_scarce();
        let note = |account: &Account| {
            let pressed = account.used > each / 2 || scarce && account.used > whole / FEW_PART;
            account.pressed.store(pressed, Ordering::Relaxed);
        };
        match owner {
            Some(owner) => self.owners.get(owner).into_iter().for_each(note),
            None => self.owners.values().for_each(note),
        }
    }
}

/// A connection's part of a [`MemoryBudget`].
///
/// The connection says how much it needs in all, before it takes more ([`cover`](Self::cover) and its siblings), and
/// from time to time when it may need less ([`settle`](Self::settle)). Between two steps no lock is taken.
#[derive(Debug)]
pub struct MemoryLease {
    budget: Arc<MemoryBudget>,
    owner: Arc<str>,
    id: u64,
    /// Bytes of the budget.
    granted: usize,
    /// Bytes beyond that, for one request.
    overdraft: usize,
    /// The least that something waits for, beyond what is occupied, and whether it may be an overdraft.
    wanted: Option<(usize, bool)>,
    pressed: Arc<AtomicBool>,
}

impl MemoryLease {
    /// Bytes that a lease has beside the budget: for the longest data that a command brings with it (256 KiB) twice,
    /// and half a mebibyte of answers.
    pub const RESERVE: usize = 1 << 20;

    /// A lease that has nothing yet.
    pub fn new(budget: &Arc<MemoryBudget>, owner: &str) -> Self {
        let mut state = budget.lock();
        state.last_lease += 1;
        let (owner, id) = (Arc::<str>::from(owner), state.last_lease);
        let account = state.owners.entry(Arc::clone(&owner)).or_default();
        account.leases += 1;
        let pressed = Arc::clone(&account.pressed);
        drop(state);
        Self { budget: Arc::clone(budget), owner, id, granted: 0, overdraft: 0, wanted: None, pressed }
    }

    /// Returns `true` if so many bytes in all may be occupied.
    pub fn cover(&mut self, need: usize) -> bool {
        self.reach(need, Self::RESERVE)
    }

    /// The same for what may have to wait for something else that comes later: it leaves the reserve to that.
    pub fn cover_ahead(&mut self, need: usize) -> bool {
        self.reach(need, 0)
    }

    /// Returns `true` if so many bytes in all may be occupied, `more` of them by a request that waits for its memory
    /// otherwise: then [`poll_room`](Self::poll_room) says when to try again. If the request is `alone`, which means
    /// that nothing else of its kind has memory here, it may overdraw the lease, unless another lease of the owner is
    /// overdrawn.
    pub fn cover_or_wait(&mut self, need: usize, more: usize, alone: bool) -> bool {
        if self.reach(need, Self::RESERVE) || alone && self.overdraw(need) {
            return true;
        }
        let least = self.wanted.map_or(more, |(wanted, _)| wanted.min(more));
        let alone = alone || self.wanted.is_some_and(|(_, alone)| alone);
        if self.wanted.replace((least, alone)).is_none() {
            let mut state = self.budget.lock();
            state.waits += 1;
            state.owners.get_mut(&self.owner).into_iter().for_each(|account| account.waits += 1);
        }
        false
    }

    /// A request was refused because it found no memory.
    pub fn note_refusal(&self) {
        let mut state = self.budget.lock();
        state.refused += 1;
        state.owners.get_mut(&self.owner).into_iter().for_each(|account| account.refused += 1);
    }

    /// Says that so many bytes in all are occupied: what is beyond goes back to the budget.
    pub fn settle(&mut self, need: usize) {
        let keep = if need <= Self::RESERVE { 0 } else { need.next_multiple_of(STEP) };
        // One step more is kept while there is any need, so that it is not taken and given back in turn.
        let slack = if keep == 0 { 0 } else { STEP };
        let ends_overdraft = self.overdraft > 0 && need <= self.granted + Self::RESERVE;
        let excess = self.granted.saturating_sub(keep + slack);
        if excess == 0 && !ends_overdraft {
            return;
        }
        self.granted -= excess;
        let mut state = self.budget.lock();
        let mut waiting = if excess > 0 { state.give_back(&self.owner, excess) } else { Vec::new() };
        if ends_overdraft {
            self.overdraft = 0;
            state.owners.get_mut(&self.owner).into_iter().for_each(|account| account.overdrawn = None);
            waiting.extend(state.waiting_of(&self.owner));
        }
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns `true` if something waits for memory.
    pub fn is_waited_for(&self) -> bool {
        self.wanted.is_some()
    }

    /// Ready when what was refused last may be tried again, with so many bytes occupied now.
    pub fn poll_room(&mut self, occupied: usize, cx: &Context<'_>) -> Poll<()> {
        let Some((more, alone)) = self.wanted else { return Poll::Ready(()) };
        let have = self.granted + self.overdraft + Self::RESERVE;
        let missing = (occupied + more).saturating_sub(have).next_multiple_of(STEP);
        let mut state = self.budget.lock();
        let admits = missing == 0 || state.admits(&self.owner, missing);
        if let Some(account) = state.owners.get_mut(&self.owner) {
            let may_overdraw = alone && account.overdrawn.is_none_or(|lease| lease == self.id);
            if !admits && !may_overdraw {
                account.waiting.insert(self.id, cx.waker().clone());
                return Poll::Pending;
            }
            account.waiting.remove(&self.id);
        }
        self.wanted = None;
        Poll::Ready(())
    }

    /// Returns `true` while memory gets scarce for the owner, and this lease has some of the budget: then fewer
    /// requests should be asked for.
    pub fn is_pressed(&self) -> bool {
        self.granted > 0 && self.pressed.load(Ordering::Relaxed)
    }

    fn reach(&mut self, need: usize, reserve: usize) -> bool {
        let have = self.granted + self.overdraft + reserve;
        if need <= have {
            return true;
        }
        let missing = (need - have).next_multiple_of(STEP);
        let mut state = self.budget.lock();
        let admitted = state.admits(&self.owner, missing);
        if admitted {
            state.take(&self.owner, missing);
            self.granted += missing;
        }
        admitted
    }

    /// Leaves the reserve, so that other requests of the connection may come meanwhile.
    fn overdraw(&mut self, need: usize) -> bool {
        let mut state = self.budget.lock();
        let Some(account) = state.owners.get_mut(&self.owner) else { return false };
        let may = account.overdrawn.is_none_or(|lease| lease == self.id);
        if may {
            account.overdrawn = Some(self.id);
            self.overdraft = self.overdraft.max(need.saturating_sub(self.granted));
        }
        may
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        let mut waiting = state.give_back(&self.owner, self.granted);
        let mut is_last = false;
        if let Some(account) = state.owners.get_mut(&self.owner) {
            account.waiting.remove(&self.id);
            account.overdrawn = account.overdrawn.filter(|lease| *lease != self.id);
            account.leases -= 1;
            is_last = account.leases == 0;
        }
        if is_last {
            state.owners.remove(&self.owner);
        } else {
            waiting.extend(state.waiting_of(&self.owner));
        }
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const RESERVE: usize = MemoryLease::RESERVE;

    fn budget() -> Arc<MemoryBudget> {
        MemoryBudget::new(MemoryLimits { whole: 64 * MIB, each: 16 * MIB })
    }

    /// Takes all that a lease gets, and says how much it was.
    fn take_all(lease: &mut MemoryLease) -> usize {
        let most = (0..1000).take_while(|mib| lease.cover_ahead(mib * MIB)).last();
        most.expect("nothing is always had")
    }

    #[test]
    fn owners_that_take_all_they_get_leave_a_part_to_those_that_have_few() {
        let budget = budget();
        let mut leases: Vec<_> = (0..20).map(|owner| MemoryLease::new(&budget, &owner.to_string())).collect();
        let taken: Vec<_> = leases.iter_mut().map(take_all).collect();
        assert_eq!(taken[..3], [16, 16, 16], "three take three quarters");
        assert_eq!(taken[3..5], [4, 4], "those that come later have a sixteenth each");
        assert_eq!(taken[5..13], [1; 8], "and others less");
        assert_eq!(taken[13..], [0; 7], "then the budget is used up");
        assert_eq!(budget.reading().used, 64 * MIB);
        let last = leases.last_mut().expect("twenty");
        assert!(last.cover(RESERVE) && !last.cover(RESERVE + 1), "the reserve is nobody else's");
        leases.iter_mut().for_each(|lease| lease.settle(RESERVE));
        assert_eq!(budget.reading().used, 0);
    }

    #[test]
    fn an_owner_has_no_more_by_many_leases_and_gives_all_back_with_the_last() {
        let budget = budget();
        let mut leases: Vec<_> = (0..40).map(|_| MemoryLease::new(&budget, "one")).collect();
        assert_eq!(leases.iter_mut().map(take_all).sum::<usize>(), 16);
        assert!(leases.iter_mut().all(|lease| lease.cover(RESERVE)));
        assert!(leases[0].is_pressed() && !leases[39].is_pressed());
        leases.truncate(20);
        assert_eq!(budget.reading().owners[0].used, 16 * MIB);
        drop(leases);
        let MemoryUse { used, owners, .. } = budget.reading();
        assert_eq!((used, owners), (0, Vec::new()));
    }

    #[test]
    fn whoever_waits_is_woken_by_what_is_given_back() {
        let budget = budget();
        let [mut has, mut waits] = [(); 2].map(|()| MemoryLease::new(&budget, "one"));
        assert_eq!(take_all(&mut has), 16);
        let cx = Context::from_waker(Waker::noop());
        assert!(!waits.cover_or_wait(3 * MIB, 3 * MIB, false) && waits.is_waited_for());
        assert!(waits.poll_room(0, &cx).is_pending());
        assert_eq!(budget.lock().owners["one"].waiting.len(), 1);
        has.settle(8 * MIB);
        assert_eq!(budget.lock().owners["one"].waiting.len(), 0, "woken");
        assert!(waits.poll_room(0, &cx).is_ready() && !waits.is_waited_for());
        assert!(waits.cover_or_wait(3 * MIB, 3 * MIB, false));
        assert_eq!(budget.reading().waits, 1);
    }

    #[test]
    fn one_lease_of_an_owner_is_overdrawn_at_a_time() {
        let budget = budget();
        let [mut has, mut one, mut other] = [(); 3].map(|()| MemoryLease::new(&budget, "one"));
        take_all(&mut has);
        let cx = Context::from_waker(Waker::noop());
        assert!(one.cover_or_wait(8 * MIB, 8 * MIB, true));
        assert!(one.cover(8 * MIB + RESERVE), "the reserve is left");
        assert!(!other.cover_or_wait(8 * MIB, 8 * MIB, true));
        assert!(other.poll_room(0, &cx).is_pending());
        one.settle(2 * RESERVE);
        assert!(other.poll_room(0, &cx).is_pending(), "not yet");
        one.settle(RESERVE);
        assert!(other.poll_room(0, &cx).is_ready());
        assert!(other.cover_or_wait(8 * MIB, 8 * MIB, true));
        drop(other);
        assert!(one.cover_or_wait(8 * MIB, 8 * MIB, true));
    }

    #[test]
    fn an_owner_is_pressed_from_half_of_its_own_on_and_others_when_half_of_the_whole_is_used() {
        let budget = budget();
        let [mut one, mut two, mut three] =
            ["one", "two", "three"].map(|owner| MemoryLease::new(&budget, owner));
        assert!(one.cover_ahead(8 * MIB) && !one.is_pressed());
        assert!(two.cover_ahead(16 * MIB) && two.is_pressed() && !one.is_pressed());
        assert!(three.cover_ahead(16 * MIB) && one.is_pressed(), "40 of 64 MiB are used");
        three.settle(0);
        assert!(!one.is_pressed());
        budget.set_limits(MemoryLimits { whole: 64 * MIB, each: 8 * MIB });
        assert!(one.is_pressed());
    }
}

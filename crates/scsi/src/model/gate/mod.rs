//! The atomic gate of a logical unit.
//!
//! COMPARE AND WRITE, ORWRITE, WRITE AND VERIFY and WRITE ATOMIC read and write in one indivisible step (SBC-4): no
//! other command may touch *their blocks* in between. Every medium access passes the gate with a [`Claim`] of the
//! blocks that it touches: ordinary commands share them, atomic ones exclude others from theirs, and commands on other
//! blocks pass, as does a flush, which touches none. Alone inside are commands with the attribute ORDERED, whatever
//! they are (they begin when all older ones have ended, and younger ones wait), and the begin of an operation that
//! takes the whole medium.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | the gate and its passes |
//! | `claim.rs` | blocks, and whether they overlap |
//! | `slots.rs` | the claims of ordinary commands while none excludes another: no lock |
//! | `line.rs` | the order in which commands wait for each other, as soon as somebody does |
//!
//! As long as no command in line excludes others, an ordinary one pays one compare and swap for a slot and one load on
//! the way in, one store and one load on the way out. A command that excludes others counts itself in `barriers` before
//! it looks at the slots, an ordinary one takes its slot before it looks at `barriers`: one of the two sees the other.

mod claim;
mod line;
mod slots;

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

pub(crate) use claim::Claim;
use line::{Line, Mode};
use slots::Slots;

#[derive(Default)]
pub(crate) struct Gate {
    /// Commands in line that exclude others, or wait for all: while there is one, every command stands in line.
    barriers: AtomicUsize,
    slots: Slots,
    line: Mutex<Line>,
}

/// Place where a pass is recorded.
#[derive(Clone, Copy, Debug)]
enum PassEntry {
    Slot(usize),
    Line(u64),
}

/// Permission to be inside, or a place in line for it; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Pass<G: AsRef<Gate>> {
    gate: G,
    entry: PassEntry,
}

/// Permission to be inside alone.
pub(crate) type ExclusivePass<G> = Pass<G>;

impl AsRef<Gate> for Gate {
    fn as_ref(&self) -> &Gate {
        self
    }
}

impl Gate {
    /// Enters with others unless some command excludes others. The fast path: the pass borrows.
    pub(crate) fn try_shared(&self, claim: &Claim) -> Option<Pass<&Gate>> {
        if self.barriers.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let entry = PassEntry::Slot(self.slots.take(claim)?);
        let pass = Pass { gate: self, entry };
        // Else the pass is dropped: who saw its slot is told that it is free again.
        (self.barriers.load(Ordering::SeqCst) == 0).then_some(pass)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stand(&self, mode: Mode, claim: Claim, by: Option<u64>) -> u64 {
        let (number, wakers) = {
            let mut line = self.line();
            let number = line.stand(mode, claim, by);
            if mode != Mode::Shared {
                self.barriers.fetch_add(1, Ordering::SeqCst);
            }
            (number, line.advance(&self.slots))
        };
        wakers.into_iter().for_each(Waker::wake);
        number
    }

    fn leave(&self, entry: PassEntry) {
        let wakers = match entry {
            PassEntry::Slot(index) => {
                self.slots.free(index);
                if self.barriers.load(Ordering::SeqCst) == 0 {
                    return;
                }
                self.line().advance(&self.slots)
            }
            PassEntry::Line(number) => {
                let mut line = self.line();
                if line.leave(number).is_some_and(|mode| mode != Mode::Shared) {
                    self.barriers.fetch_sub(1, Ordering::SeqCst);
                }
                line.advance(&self.slots)
            }
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Stands in line, and waits until it is inside. A caller that goes away while waiting gives its place up.
async fn enter<T: AsRef<Gate>>(owner: Arc<T>, mode: Mode, claim: Claim, by: Option<u64>) -> Pass<Owned<T>> {
    let gate = Owned(owner);
    let number = gate.as_ref().stand(mode, claim, by);
    let pass = Pass { gate, entry: PassEntry::Line(number) };
    poll_fn(|cx| pass.gate.as_ref().line().poll(number, cx)).await;
    pass
}

/// Enters with others, once no older command excludes it from its blocks. `by`: the nexus whose command it is.
pub(crate) async fn shared<T: AsRef<Gate>>(owner: Arc<T>, claim: Claim, by: Option<u64>) -> Pass<Owned<T>> {
    if let Some(pass) = owner.as_ref().as_ref().try_shared(&claim) {
        return pass.into_owned(owner.clone());
    }
    enter(owner, Mode::Shared, claim, by).await
}

/// Excludes others from its blocks, once all older commands on these have left.
pub(crate) async fn exclusive_on<T: AsRef<Gate>>(owner: Arc<T>, claim: Claim) -> Pass<Owned<T>> {
    enter(owner, Mode::Exclusive, claim, None).await
}

/// Waits to be alone inside, once all older commands have left; younger ones wait.
pub(crate) async fn exclusive<T: AsRef<Gate>>(owner: Arc<T>) -> ExclusivePass<Owned<T>> {
    enter(owner, Mode::Alone, Claim::Nothing, None).await
}

/// Waits until all older commands have left; younger ones go on.
pub(crate) async fn drained<T: AsRef<Gate>>(owner: Arc<T>) {
    drop(enter(owner, Mode::Last, Claim::Nothing, None).await);
}

/// Enters once all older commands have left; of the younger ones only those of the same nexus wait.
pub(crate) async fn ordered_for<T: AsRef<Gate>>(owner: Arc<T>, nexus: u64) -> Pass<Owned<T>> {
    enter(owner, Mode::Last, Claim::Nothing, Some(nexus)).await
}

/// A shared owner of a gate, so that a pass can outlive the call that took it.
#[derive(Debug)]
pub(crate) struct Owned<T>(Arc<T>);

impl<T: AsRef<Gate>> AsRef<Gate> for Owned<T> {
    fn as_ref(&self) -> &Gate {
        self.0.as_ref().as_ref()
    }
}

impl Pass<&Gate> {
    /// The same permission, for a command that goes on after the call.
    pub(crate) fn into_owned<T: AsRef<Gate>>(self, owner: Arc<T>) -> Pass<Owned<T>> {
        let entry = self.entry;
        std::mem::forget(self);
        Pass { gate: Owned(owner), entry }
    }
}

impl<G: AsRef<Gate>> Drop for Pass<G> {
    fn drop(&mut self) {
        self.gate.as_ref().leave(self.entry);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("barriers", &self.barriers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::atomic::AtomicU32;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use super::*;

    type Future<'a> = Pin<&'a mut dyn std::future::Future<Output = Pass<Owned<Gate>>>>;

    fn poll(mut future: Future<'_>) -> Option<Pass<Owned<Gate>>> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(pass) => Some(pass),
            Poll::Pending => None,
        }
    }

    fn blocks(first: u64, count: u64) -> Claim {
        Claim::blocks(first, count)
    }

    #[test]
    fn one_that_is_alone_waits_for_those_inside_and_keeps_others_out() {
        let gate = Arc::new(Gate::default());
        let inside = gate.try_shared(&Claim::Nothing).unwrap();
        let mut alone = pin!(exclusive(gate.clone()));
        assert!(poll(alone.as_mut()).is_none());
        assert!(gate.try_shared(&blocks(0, 1)).is_none());
        drop(inside);
        let pass = poll(alone.as_mut()).expect("the gate is empty");
        let mut flush = pin!(shared(gate.clone(), Claim::Nothing, None));
        assert!(poll(flush.as_mut()).is_none());
        drop(pass);
        assert!(poll(flush.as_mut()).is_some());
        assert!(gate.try_shared(&blocks(0, 1)).is_some());
    }

    #[test]
    fn one_that_goes_away_while_waiting_gives_its_place_up() {
        let gate = Arc::new(Gate::default());
        let inside = gate.try_shared(&blocks(0, 1)).unwrap();
        let mut younger = pin!(shared(gate.clone(), blocks(0, 1), None));
        {
            let mut atomic = pin!(exclusive_on(gate.clone(), blocks(0, 1)));
            assert!(poll(atomic.as_mut()).is_none());
            assert!(poll(younger.as_mut()).is_none());
        }
        assert!(poll(younger.as_mut()).is_some());
        drop(inside);
        assert!(gate.try_shared(&blocks(0, 1)).is_some());
    }

    #[test]
    fn only_overlapping_blocks_are_excluded_and_a_flush_is_not() {
        let gate = Arc::new(Gate::default());
        let flush = gate.try_shared(&Claim::Nothing).unwrap();
        let elsewhere = gate.try_shared(&blocks(100, 8)).unwrap();
        let mut atomic = pin!(exclusive_on(gate.clone(), blocks(8, 8)));
        let pass = poll(atomic.as_mut()).expect("nobody is on its blocks");
        for (claim, waits) in [
            (blocks(0, 8), false),
            (blocks(16, 8), false),
            (Claim::Nothing, false),
            (blocks(15, 2), true),
            (Claim::ranges([0..1, 9..10].into_iter()), true),
            (Claim::ranges([0..1, 16..17].into_iter()), false),
        ] {
            let mut ordinary = pin!(shared(gate.clone(), claim.clone(), None));
            assert_eq!(poll(ordinary.as_mut()).is_none(), waits, "{claim:?}");
            let mut atomic = pin!(exclusive_on(gate.clone(), claim.clone()));
            assert_eq!(poll(atomic.as_mut()).is_none(), waits, "{claim:?}");
        }
        let mut overlapping = pin!(shared(gate.clone(), blocks(0, 9), None));
        assert!(poll(overlapping.as_mut()).is_none());
        drop(pass);
        assert!(poll(overlapping.as_mut()).is_some());
        drop((flush, elsewhere));
    }

    #[test]
    fn those_who_want_the_same_blocks_go_in_as_they_came() {
        let gate = Arc::new(Gate::default());
        let reader = gate.try_shared(&blocks(0, 4)).unwrap();
        let mut first = pin!(exclusive_on(gate.clone(), blocks(0, 1)));
        let mut second = pin!(exclusive_on(gate.clone(), blocks(0, 2)));
        let mut readers = pin!(shared(gate.clone(), blocks(1, 1), None));
        let mut third = pin!(exclusive_on(gate.clone(), blocks(1, 1)));
        assert!(poll(first.as_mut()).is_none() && poll(second.as_mut()).is_none());
        assert!(poll(readers.as_mut()).is_none() && poll(third.as_mut()).is_none());
        drop(reader);
        let pass = poll(first.as_mut()).expect("it came first");
        assert!(poll(readers.as_mut()).is_none(), "one that came before wants its block");
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        drop(pass);
        let pass = poll(second.as_mut()).expect("it came second");
        assert!(poll(readers.as_mut()).is_none() && poll(third.as_mut()).is_none());
        drop(pass);
        let pass = poll(readers.as_mut()).expect("it came third");
        assert!(poll(third.as_mut()).is_none());
        drop(pass);
        assert!(poll(third.as_mut()).is_some());
    }

    #[test]
    fn one_that_wants_to_be_alone_is_not_overtaken() {
        let gate = Arc::new(Gate::default());
        let mut first = pin!(exclusive(gate.clone()));
        let pass = poll(first.as_mut()).expect("the gate is empty");
        let (mut older, mut alone) =
            (pin!(shared(gate.clone(), blocks(0, 1), None)), pin!(exclusive(gate.clone())));
        assert!(poll(older.as_mut()).is_none() && poll(alone.as_mut()).is_none());
        let mut younger = pin!(shared(gate, blocks(5, 1), None));
        assert!(poll(younger.as_mut()).is_none());
        drop(pass);
        assert!(poll(alone.as_mut()).is_none(), "one that came before is inside");
        let pass = poll(older.as_mut()).expect("it came first");
        assert!(poll(younger.as_mut()).is_none(), "one that came before wants to be alone");
        drop(pass);
        let pass = poll(alone.as_mut()).expect("nobody is inside");
        assert!(poll(younger.as_mut()).is_none());
        drop(pass);
        assert!(poll(younger.as_mut()).is_some());
    }

    #[test]
    fn who_waits_for_all_older_ones_holds_nobody_up() {
        let gate = Arc::new(Gate::default());
        let inside = gate.try_shared(&blocks(0, 1)).unwrap();
        let mut drain = pin!(drained(gate.clone()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(std::future::Future::poll(drain.as_mut(), &mut cx).is_pending());
        let mut younger = pin!(shared(gate.clone(), blocks(0, 1), None));
        let younger = poll(younger.as_mut()).expect("nobody excludes it");
        drop(inside);
        assert!(
            std::future::Future::poll(drain.as_mut(), &mut cx).is_ready(),
            "a younger one does not count"
        );
        drop(younger);
        assert!(gate.try_shared(&Claim::Nothing).is_some());
    }

    #[test]
    fn one_that_is_ordered_for_its_nexus_holds_up_that_alone() {
        let gate = Arc::new(Gate::default());
        let inside = gate.try_shared(&blocks(0, 1)).unwrap();
        let mut ordered = pin!(ordered_for(gate.clone(), 7));
        assert!(poll(ordered.as_mut()).is_none());
        let mut own = pin!(shared(gate.clone(), blocks(5, 1), Some(7)));
        let mut other = pin!(shared(gate.clone(), blocks(0, 1), Some(8)));
        assert!(poll(own.as_mut()).is_none());
        let other = poll(other.as_mut()).expect("another nexus's command");
        drop(inside);
        let pass = poll(ordered.as_mut()).expect("all older ones have left");
        assert!(poll(own.as_mut()).is_none());
        drop(pass);
        assert!(poll(own.as_mut()).is_some());
        drop(other);
    }

    #[test]
    fn an_owned_pass_counts_once() {
        let gate = Arc::new(Gate::default());
        let pass = gate.try_shared(&blocks(3, 1)).unwrap().into_owned(gate.clone());
        let mut atomic = pin!(exclusive_on(gate, blocks(3, 1)));
        assert!(poll(atomic.as_mut()).is_none());
        drop(pass);
        assert!(poll(atomic.as_mut()).is_some());
    }

    /// Threads with commands of each kind on a few blocks, each of which counts who is on it.
    #[test]
    fn nobody_meets_an_atomic_command_on_its_blocks_and_nobody_is_forgotten() {
        const BLOCKS: usize = 6;
        const EXCLUDED: u32 = 1 << 16;
        let gate = Arc::new(Gate::default());
        let counts: Arc<[AtomicU32; BLOCKS]> = Arc::default();
        let work = |thread: usize| {
            let (gate, counts) = (gate.clone(), counts.clone());
            let rounds = async move {
                for round in 0..600 {
                    let kind = (round + thread) % 5;
                    let (first, count) = ((round * 7 + thread) % BLOCKS, 1 + round % 3);
                    let touched = match kind {
                        0 => 0..BLOCKS,
                        1 => 0..0,
                        _ => first..(first + count).min(BLOCKS),
                    };
                    let claim = blocks(touched.start as u64, touched.len() as u64);
                    let _pass = match kind {
                        0 => exclusive(gate.clone()).await,
                        1 | 2 => shared(gate.clone(), claim, None).await,
                        3 => match gate.try_shared(&claim) {
                            Some(pass) => pass.into_owned(gate.clone()),
                            None => continue,
                        },
                        _ => exclusive_on(gate.clone(), claim).await,
                    };
                    let weight = if matches!(kind, 0 | 4) { EXCLUDED } else { 1 };
                    for block in &counts[touched.clone()] {
                        let before = block.fetch_add(weight, Ordering::SeqCst);
                        assert!(if weight == 1 { before < EXCLUDED } else { before == 0 });
                    }
                    tokio::task::yield_now().await;
                    for block in &counts[touched] {
                        block.fetch_sub(weight, Ordering::SeqCst);
                    }
                }
            };
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime
                    .block_on(async { tokio::time::timeout(Duration::from_secs(60), rounds).await })
                    .unwrap();
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(gate.try_shared(&Claim::Nothing).is_some(), "nobody is left in line");
    }
}

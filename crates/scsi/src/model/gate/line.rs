//! The line: commands that exclude others, and all that came while one of them was there, in the order in which they
//! came.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use super::claim::Claim;
use super::slots::Slots;

/// Mode in which a command is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// With others that are so, on whichever blocks.
    Shared,
    /// With others on other blocks.
    Exclusive,
    /// Without any other.
    Alone,
    /// After all that came before it; of those that come after it only the same nexus's wait for it.
    Last,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    mode: Mode,
    claim: Claim,
    /// The nexus, where that matters.
    by: Option<u64>,
    inside: bool,
    waker: Option<Waker>,
}

impl Entry {
    /// Must not be inside before this older one has left.
    fn waits_for(&self, older: &Self) -> bool {
        match (self.mode, older.mode) {
            (_, Mode::Last) => self.by.is_some() && self.by == older.by,
            (Mode::Alone | Mode::Last, _) | (_, Mode::Alone) => true,
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Exclusive, _) | (_, Mode::Exclusive) => self.claim.overlaps(&older.claim),
        }
    }

    fn waits_for_slots(&self, slots: &Slots) -> bool {
        match self.mode {
            Mode::Shared => false,
            Mode::Exclusive => slots.overlap(&self.claim),
            Mode::Alone | Mode::Last => !slots.are_free(),
        }
    }
}

/// Commands with a place in line: they wait, or are inside. Bounded by what transports let initiators have in flight.
///
/// One goes in as soon as no older one is in line, and no command without a place is inside, that it must wait for. As
/// it waits for older ones whether or not these are inside yet, none is overtaken for ever by younger ones.
#[derive(Debug, Default)]
pub(super) struct Line {
    entries: VecDeque<Entry>,
    next: u64,
}

impl Line {
    /// Takes a place; gives its number.
    pub(super) fn stand(&mut self, mode: Mode, claim: Claim, by: Option<u64>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.entries.push_back(Entry { number, mode, claim, by, inside: false, waker: None });
        number
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    /// Gives a place up; says how it was held.
    pub(super) fn leave(&mut self, number: u64) -> Option<Mode> {
        let index = self.position(number)?;
        self.entries.remove(index).map(|entry| entry.mode)
    }

    /// Lets in who need not wait any longer, and gives their wakers.
    pub(super) fn advance(&mut self, slots: &Slots) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let waits = || {
                let mut older = self.entries.iter().take(index);
                older.any(|older| entry.waits_for(older)) || entry.waits_for_slots(slots)
            };
            if entry.inside || waits() {
                continue;
            }
            self.entries[index].inside = true;
            wakers.extend(self.entries[index].waker.take());
        }
        wakers
    }

    /// Returns `Ready` if the command is inside; if not, it is woken when it is.
    pub(super) fn poll(&mut self, number: u64, cx: &Context<'_>) -> Poll<()> {
        let Some(index) = self.position(number) else { return Poll::Ready(()) };
        let entry = &mut self.entries[index];
        if entry.inside {
            return Poll::Ready(());
        }
        match &mut entry.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

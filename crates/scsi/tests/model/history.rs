//! Whether commands that ran at the same time can be put in an order that explains all their answers.

use std::collections::HashSet;
use std::ops::Range;

/// Blocks of the disk.
pub(crate) const BLOCKS: usize = 6;

/// What each block holds: one number, again and again.
pub(crate) type Values = [u64; BLOCKS];

/// What a command did, by its answer.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// READ found these.
    Read(Vec<u64>),
    /// WRITE, or WRITE SAME, of these.
    Write(Vec<u64>),
    /// WRITE ATOMIC or WRITE AND VERIFY of these.
    WriteAlone(Vec<u64>),
    /// ORWRITE of these.
    Or(Vec<u64>),
    /// COMPARE AND WRITE of `new`; `differs`: the block that was told in a miscompare.
    Exchange { old: Vec<u64>, new: Vec<u64>, differs: Option<usize> },
}

/// A command that has its answer.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) first: usize,
    pub(crate) effect: Effect,
    /// When it was sent and when it was answered.
    pub(crate) time: Range<u64>,
}

impl Event {
    fn len(&self) -> usize {
        match &self.effect {
            Effect::Read(values)
            | Effect::Write(values)
            | Effect::WriteAlone(values)
            | Effect::Or(values) => values.len(),
            Effect::Exchange { old, .. } => old.len(),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first < other.first + other.len() && other.first < self.first + self.len()
    }

    /// It happens at one moment, and no other command on its blocks is half done then (SBC-4 4.27 and 5.3: "without
    /// interruption").
    fn alone(&self) -> bool {
        !matches!(self.effect, Effect::Read(_) | Effect::Write(_))
    }

    /// All of it at once; `None` where it would have been answered otherwise.
    fn whole(&self, mut values: Values) -> Option<Values> {
        let slots = &mut values[self.first..self.first + self.len()];
        match &self.effect {
            Effect::Read(_) | Effect::Write(_) => return None,
            Effect::WriteAlone(new) => slots.copy_from_slice(new),
            Effect::Or(bits) => slots.iter_mut().zip(bits).for_each(|(slot, bits)| *slot |= bits),
            Effect::Exchange { old, new, differs } => {
                if slots.iter().zip(old).position(|(slot, old)| slot != old) != *differs {
                    return None;
                }
                if differs.is_none() {
                    slots.copy_from_slice(new);
                }
            }
        }
        Some(values)
    }

    /// One block of it.
    fn part(&self, index: usize, mut values: Values) -> Option<Values> {
        match &self.effect {
            Effect::Read(found) => (values[self.first + index] == found[index]).then_some(values),
            Effect::Write(new) => {
                values[self.first + index] = new[index];
                Some(values)
            }
            _ => None,
        }
    }
}

/// A search through the orders. A command comes after all that were answered before it was sent; one that is not atomic
/// happens block by block, between those that are.
struct Search<'a> {
    events: &'a [Event],
    end: Values,
    seen: HashSet<(Values, Vec<u8>)>,
}

impl Search<'_> {
    fn is_done(&self, done: &[u8], index: usize) -> bool {
        done[index].count_ones() as usize == self.events[index].len()
    }

    /// `done`: the blocks of each command that have happened.
    fn go(&mut self, values: Values, done: &mut Vec<u8>) -> bool {
        if (0..done.len()).all(|index| self.is_done(done, index)) {
            return values == self.end;
        }
        if !self.seen.insert((values, done.clone())) {
            return false;
        }
        for index in 0..done.len() {
            let event = &self.events[index];
            let waits = |other: usize| {
                other != index && !self.is_done(done, other) && self.events[other].time.end < event.time.start
            };
            if self.is_done(done, index) || (0..done.len()).any(waits) {
                continue;
            }
            if event.alone() {
                let half_done = |other: usize| {
                    done[other] != 0 && !self.is_done(done, other) && self.events[other].overlaps(event)
                };
                if !(0..done.len()).any(half_done)
                    && let Some(values) = event.whole(values)
                {
                    done[index] = (1 << event.len()) - 1;
                    if self.go(values, done) {
                        return true;
                    }
                    done[index] = 0;
                }
                continue;
            }
            for part in (0..event.len()).filter(|part| done[index] & 1 << part == 0).collect::<Vec<_>>() {
                if let Some(values) = self.events[index].part(part, values) {
                    done[index] |= 1 << part;
                    if self.go(values, done) {
                        return true;
                    }
                    done[index] &= !(1 << part);
                }
            }
        }
        false
    }
}

/// Whether some order leads from `start` to `end` and explains every answer.
pub(crate) fn is_explained(events: &[Event], start: Values, end: Values) -> bool {
    let mut search = Search { events, end, seen: HashSet::new() };
    search.go(start, &mut vec![0; events.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: Range<u64>, effect: Effect) -> Event {
        Event { first: 0, effect, time }
    }

    #[test]
    fn two_exchanges_of_the_same_value_cannot_both_succeed() {
        let exchange = |new| Effect::Exchange { old: vec![0], new: vec![new], differs: None };
        let both = [event(0..9, exchange(1)), event(1..8, exchange(2))];
        assert!(!is_explained(&both, [0; BLOCKS], [2, 0, 0, 0, 0, 0]));
        let late = Effect::Exchange { old: vec![0], new: vec![2], differs: Some(0) };
        assert!(is_explained(
            &[event(0..9, exchange(1)), event(1..8, late)],
            [0; BLOCKS],
            [1, 0, 0, 0, 0, 0]
        ));
    }

    #[test]
    fn a_read_sees_an_ordinary_write_by_halves_and_never_an_atomic_one() {
        let half = || event(0..9, Effect::Read(vec![1, 0]));
        let end = [1, 1, 0, 0, 0, 0];
        assert!(is_explained(&[half(), event(1..8, Effect::Write(vec![1, 1]))], [0; BLOCKS], end));
        assert!(!is_explained(&[half(), event(1..8, Effect::WriteAlone(vec![1, 1]))], [0; BLOCKS], end));
    }

    /// Block 1 is read before the first, block 0 after the last of three commands that came one after the other.
    #[test]
    fn a_read_of_other_blocks_may_be_half_done_when_an_atomic_command_happens() {
        let at = |first, time, effect| Event { first, effect, time };
        let read = at(0, 0..9, Effect::Read(vec![7, 0]));
        let write = at(1, 1..2, Effect::Write(vec![1, 1]));
        let exchange = Effect::Exchange { old: vec![1, 0], new: vec![2, 2], differs: None };
        let events = [read, write, at(2, 3..4, exchange), at(0, 5..6, Effect::Write(vec![7]))];
        assert!(is_explained(&events, [0; BLOCKS], [7, 1, 2, 2, 0, 0]));
    }

    #[test]
    fn what_was_answered_before_comes_before() {
        let (first, second) = (event(0..1, Effect::Write(vec![1])), event(2..3, Effect::Write(vec![2])));
        assert!(!is_explained(&[first.clone(), second.clone()], [0; BLOCKS], [1, 0, 0, 0, 0, 0]));
        assert!(is_explained(&[first, second], [0; BLOCKS], [2, 0, 0, 0, 0, 0]));
    }
}

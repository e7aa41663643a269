//! Late changes: those whose callers are gone, and which may still reach the disk.

use std::ops::Range;

use crate::LaneId;

/// Most ranges that are kept apart. Beyond that those of one lane are kept as one that covers them: writes near them
/// then wait without need, and nothing grows.
const RANGES_MAX: usize = 256;

/// Until when a change may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Nothing of that session can reach the disk any more.
    Settled { lane: LaneId, epoch: u64 },
    /// Answered: its caller has dropped it while it was under way.
    Answered { number: u64 },
}

/// Late changes, which may still reach the disk although no caller waits: their callers were told that the outcome is
/// unknown, or dropped them.
///
/// A caller that goes on may write the same place again, over another lane; the old write must not come after the new
/// one. So a change of an overlapping range waits until the old change is over. Normally there are none, and the
/// hot path asks only that.
#[derive(Debug, Default)]
pub(super) struct LateChanges {
    list: Vec<(Range<u64>, Until)>,
    next: u64,
}

impl LateChanges {
    /// A change of unknown outcome, sent in that session at the latest.
    pub(super) fn add_unsettled(&mut self, range: Range<u64>, lane: LaneId, epoch: u64) {
        if self.list.len() >= RANGES_MAX {
            let same = |until: &Until| matches!(until, Until::Settled { lane: other, .. } if *other == lane);
            if let Some((old, until)) = self.list.iter_mut().rev().find(|(_, until)| same(until)) {
                *old = old.start.min(range.start)..old.end.max(range.end);
                let Until::Settled { epoch: old, .. } = until else { return };
                *old = epoch.max(*old);
                return;
            }
        }
        self.list.push((range, Until::Settled { lane, epoch }));
    }

    /// A change that was dropped while it was under way. These are as many as operations that lanes have not answered.
    pub(super) fn add_dropped(&mut self, range: Range<u64>) -> u64 {
        self.next += 1;
        self.list.push((range, Until::Answered { number: self.next }));
        self.next
    }

    /// A dropped change was answered.
    pub(super) fn answered(&mut self, number: u64) {
        self.list.retain(|(_, until)| *until != Until::Answered { number });
    }

    /// Nothing of sessions up to `epoch` can happen any more.
    pub(super) fn settled(&mut self, lane: LaneId, epoch: u64) {
        self.list.retain(|(_, until)| {
            !matches!(until, Until::Settled { lane: other, epoch: last } if *other == lane && *last <= epoch)
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns `true` if a late change may still happen in `range`.
    pub(super) fn touches(&self, range: &Range<u64>) -> bool {
        self.list.iter().any(|(late, _)| late.start < range.end && range.start < late.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_touched_until_its_session_is_settled() {
        let mut late = LateChanges::default();
        late.add_unsettled(10..20, 1, 5);
        assert!(late.touches(&(19..30)) && late.touches(&(0..11)));
        assert!(!late.touches(&(20..30)) && !late.touches(&(0..10)));
        late.settled(1, 4);
        late.settled(0, 9);
        assert!(late.touches(&(10..20)));
        late.settled(1, 5);
        assert!(late.is_empty());
    }

    #[test]
    fn a_dropped_change_touches_until_it_is_answered() {
        let mut late = LateChanges::default();
        let (one, two) = (late.add_dropped(0..8), late.add_dropped(4..16));
        late.answered(one);
        assert!(late.touches(&(4..5)) && !late.touches(&(0..4)));
        late.answered(two);
        assert!(late.is_empty());
    }

    #[test]
    fn many_ranges_become_one_that_covers_them() {
        let mut late = LateChanges::default();
        (0..10_000u64).for_each(|n| late.add_unsettled(n * 100..n * 100 + 1, 0, n));
        assert_eq!(late.list.len(), RANGES_MAX);
        for n in 0..10_000 {
            assert!(late.touches(&(n * 100..n * 100 + 1)));
        }
        late.settled(0, 9_998);
        assert!(!late.is_empty(), "the last one is not settled");
        late.settled(0, 9_999);
        assert!(late.is_empty());
    }
}

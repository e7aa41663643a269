//! Epochs of change tracking as the dirty bitmaps of a snapshot's export.

use std::ops::Range;

use lunway_block::{BlockError, Io};
use lunway_nbd::DirtyBitmaps;
use lunway_target::SnapshotChanges;
use lunway_track::{ChangedRange, Changes, EpochId};

/// A bitmap of each epoch that was closed before a snapshot, by its name: what changed from its end to the snapshot.
pub(crate) struct EpochBitmaps(pub(crate) SnapshotChanges);

impl DirtyBitmaps for EpochBitmaps {
    fn names(&self) -> Vec<String> {
        self.0.epochs().iter().map(ToString::to_string).collect()
    }

    fn dirty(
        &self,
        name: &str,
        offset: u64,
        len: u64,
        count: usize,
    ) -> Io<Result<Vec<(u64, bool)>, BlockError>> {
        let Ok(epoch) = name.parse::<EpochId>() else { return Io::err(BlockError::Unsupported) };
        let window = offset..offset + len;
        let changes = self.0.since(epoch, window.clone(), count);
        Io::pending(async move {
            match changes.await {
                Changes::Known { ranges, .. } => Ok(parts(&ranges, &window, count)),
                Changes::Unknown { why, .. } => {
                    Err(BlockError::Io { kind: std::io::ErrorKind::Other, message: why })
                }
            }
        })
    }
}

/// A window in parts that have changed, or have not; the first `count`. Of more ranges than that the last may be longer
/// than it says, and what is behind it is not known.
fn parts(ranges: &[ChangedRange], window: &Range<u64>, count: usize) -> Vec<(u64, bool)> {
    let mut parts: Vec<(u64, bool)> = Vec::new();
    let mut at = window.start;
    let mut push = |until: u64, dirty: bool| {
        let len = until.saturating_sub(at);
        at = at.max(until);
        match parts.last_mut() {
            _ if len == 0 => {}
            // What was written and what was unmapped are told apart by others.
            Some((last, is_dirty)) if *is_dirty == dirty => *last += len,
            _ => parts.push((len, dirty)),
        }
    };
    for range in ranges {
        push(range.offset, false);
        push(range.offset + range.length, true);
    }
    if ranges.len() <= count {
        push(window.end, false);
    }
    parts.truncate(count.max(1));
    parts
}

#[cfg(test)]
mod tests {
    use lunway_track::ChangeState;

    use super::*;

    #[test]
    fn a_window_is_told_in_parts_without_gaps_and_nothing_is_said_of_what_is_not_known() {
        use ChangeState::{Unmapped, Written};
        let range = |offset, length, state| ChangedRange { offset, length, state };
        let told = |ranges: &[ChangedRange], count| parts(ranges, &(100..200), count);
        assert_eq!(told(&[], 9), [(100, false)]);
        assert_eq!(told(&[range(100, 100, Written)], 9), [(100, true)]);
        let several = [range(110, 10, Written), range(120, 5, Unmapped), range(150, 50, Written)];
        assert_eq!(told(&several, 9), [(10, false), (15, true), (25, false), (50, true)]);
        assert_eq!(told(&several, 3), [(10, false), (15, true), (25, false)]);
        assert_eq!(told(&several, 2), [(10, false), (15, true)]);
        assert_eq!(told(&several[..2], 1), [(10, false)]);
        assert_eq!(told(&[range(100, 10, Written), range(120, 5, Written)], 1), [(10, true)]);
        // More ranges than were asked for: behind the last there may be more, which begins where it ends.
        assert_eq!(told(&[range(100, 10, Written), range(110, 5, Unmapped)], 1), [(15, true)]);
    }
}

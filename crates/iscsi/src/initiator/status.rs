//! StatSN: which answers are missing.

use crate::serial::Serial;

/// Number of consecutive numbers that must have been in step before one ahead of its turn is taken for a loss. Targets
/// whose numbering is sloppy (that count their own pings, say, or number from several threads) are common enough, and
/// work; no initiator of the field checks the numbers. With these such a target shows itself within what opening a disk
/// asks.
const IN_STEP_MIN: u8 = 16;

/// The numbers of a connection's statuses (StatSN, RFC 7143 §4.2.2.2), as the target counts them.
///
/// A connection keeps the order of its bytes, and each answer consumes one number. So a number ahead of its turn means
/// that answers before it were lost: something between here and there has acknowledged bytes and dropped them. Without
/// this their commands would wait for the end of their time.
///
/// A number is only trusted after [`IN_STEP_MIN`] in step, and an older one is never a gap: the target counts otherwise
/// than the standard has it, and trust begins anew. The numbers that R2Ts and pings carry are trusted apart from those
/// of answers, as targets that leave the field empty there count their answers well.
#[derive(Debug, Default)]
pub(super) struct StatusNumbers {
    next: Serial,
    /// Answers in step, up to [`IN_STEP_MIN`].
    in_step: u8,
    /// The same of numbers that were carried and not consumed.
    carried_in_step: u8,
}

impl StatusNumbers {
    /// ExpStatSN: the number that is expected next.
    pub(super) fn next(&self) -> u32 {
        self.next.0
    }

    /// Begins with the number of a Login Response.
    pub(super) fn begin(&mut self, stat_sn: u32) {
        self.next = Serial(stat_sn).next();
    }

    /// Takes the number of an answer. Gives the gap before it, for people.
    pub(super) fn take(&mut self, stat_sn: u32) -> Option<String> {
        let (expected, came) = (self.next, Serial(stat_sn));
        if came > expected && self.in_step == IN_STEP_MIN {
            return Some(gap(expected, came));
        }
        self.in_step = if came == expected { (self.in_step + 1).min(IN_STEP_MIN) } else { 0 };
        self.next = came.next();
        None
    }

    /// Takes the number that the next answer will have. Gives the gap before it, for people.
    pub(super) fn see(&mut self, stat_sn: u32) -> Option<String> {
        let (expected, came) = (self.next, Serial(stat_sn));
        let trusted = self.in_step == IN_STEP_MIN && self.carried_in_step == IN_STEP_MIN;
        if came > expected && trusted {
            return Some(gap(expected, came));
        }
        self.carried_in_step = if came == expected { (self.carried_in_step + 1).min(IN_STEP_MIN) } else { 0 };
        None
    }
}

fn gap(expected: Serial, came: Serial) -> String {
    let (expected, came) = (expected.0, came.0);
    format!("answers of the target from StatSN {expected} on; it continued with {came}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_step(first: u32, count: u32) -> StatusNumbers {
        let mut numbers = StatusNumbers::default();
        numbers.begin(first.wrapping_sub(1));
        for step in 0..count {
            assert_eq!(numbers.take(first.wrapping_add(step)), None);
        }
        numbers
    }

    #[test]
    fn a_gap_counts_after_sixteen_numbers_in_step_and_not_before() {
        for first in [0, 7, u32::MAX - 8] {
            let after = |count: u32| first.wrapping_add(count + 1);
            assert_eq!(in_step(first, 15).take(after(15)), None);
            assert!(in_step(first, 16).take(after(16)).is_some(), "from {first}");
        }
    }

    #[test]
    fn an_older_number_is_no_gap_and_trust_begins_anew() {
        let mut numbers = in_step(100, 50);
        assert_eq!(numbers.take(120), None);
        assert_eq!(numbers.take(150), None, "as it went on before");
        assert_eq!(numbers.next(), 151);
    }

    #[test]
    fn numbers_that_are_carried_are_trusted_after_as_many_of_them() {
        let mut numbers = in_step(1 << 31, 100);
        for _ in 0..100 {
            assert_eq!(numbers.see(0), None, "a field that is left empty");
        }
        let next = numbers.next();
        for _ in 0..16 {
            assert_eq!(numbers.see(next), None);
        }
        assert!(numbers.see(next + 1).is_some());
    }
}

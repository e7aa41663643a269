//! Numbers that wrap around.

use std::cmp::Ordering;

/// A 32-bit serial number: CmdSN, StatSN, DataSN (RFC 7143 §4.2.2, arithmetic of RFC 1982).
///
/// Two numbers are in order if less than half the circle lies between them. Numbers exactly half the circle apart have
/// no order: every comparison of them but `!=` is false, so a peer gains nothing by choosing such a pair. The order is
/// not transitive around the circle, so it sorts nothing; hence there is no `Ord`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Serial(pub u32);

impl Serial {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl PartialOrd for Serial {
    // RFC 7143 [4.2.2.1-8]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        const HALF: u32 = 1 << 31;
        match other.0.wrapping_sub(self.0) {
            0 => Some(Ordering::Equal),
            HALF => None,
            distance if distance < HALF => Some(Ordering::Less),
            _ => Some(Ordering::Greater),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // shows RFC 7143 [4.2.2.1-8]
    #[test]
    fn order_goes_on_across_the_wrap() {
        let last = Serial(u32::MAX);
        assert_eq!(last.next(), Serial(0));
        assert!(last < last.next() && last.next() > last);
    }

    #[test]
    fn numbers_half_the_circle_apart_have_no_order() {
        assert_eq!(Serial(7).partial_cmp(&Serial(7 + (1 << 31))), None);
    }

    proptest! {
        #[test]
        fn a_number_is_before_all_that_follow_within_half_the_circle(start: u32, step in 1u32..1 << 31) {
            let (a, b) = (Serial(start), Serial(start.wrapping_add(step)));
            prop_assert_eq!(a.partial_cmp(&b), Some(Ordering::Less));
            prop_assert_eq!(b.partial_cmp(&a), Some(Ordering::Greater));
        }
    }
}

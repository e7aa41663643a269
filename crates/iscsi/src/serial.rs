//! Numbers that wrap around.

/// A 32-bit serial number: CmdSN, StatSN, DataSN (RFC 7143 §4.2.2, arithmetic of RFC 1982).
///
/// Two numbers are in order if less than half the circle lies between them. Numbers exactly half the circle apart have
/// no order: every comparison of them but `!=` is false, so a peer gains nothing by choosing such a pair. For that
/// reason the type has no `Ord`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Serial(pub u32);

impl Serial {
    /// The number `n` further on.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Steps from `earlier` forward to this number; meaningful if `earlier` is not later.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this number comes before `other`.
    pub const fn lt(self, other: Self) -> bool {
        let distance = other.0.wrapping_sub(self.0);
        distance != 0 && distance < 1 << 31
    }

    /// Whether this number comes before `other` or is the same.
    pub const fn le(self, other: Self) -> bool {
        self.0 == other.0 || self.lt(other)
    }

    /// Whether this number comes after `other`.
    pub const fn gt(self, other: Self) -> bool {
        other.lt(self)
    }

    /// Whether this number comes after `other` or is the same.
    pub const fn ge(self, other: Self) -> bool {
        other.le(self)
    }
}

impl From<u32> for Serial {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<zerocopy::big_endian::U32> for Serial {
    fn from(number: zerocopy::big_endian::U32) -> Self {
        Self(number.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_goes_on_across_the_wrap() {
        let last = Serial(u32::MAX);
        assert!(last.lt(Serial(0)) && Serial(0).gt(last) && last.le(last) && last.ge(last));
        assert_eq!(last.next(), Serial(0));
        assert_eq!(Serial(3).since(Serial(u32::MAX - 1)), 5);
    }

    #[test]
    fn numbers_half_the_circle_apart_have_no_order() {
        let (a, b) = (Serial(7), Serial(7 + (1 << 31)));
        assert!(!a.lt(b) && !b.lt(a) && !a.le(b) && !b.le(a) && !a.gt(b) && !a.ge(b));
    }

    proptest! {
        #[test]
        fn a_number_is_before_all_that_follow_within_half_the_circle(start: u32, step in 1u32..1 << 31) {
            let (a, b) = (Serial(start), Serial(start).plus(step));
            prop_assert!(a.lt(b) && a.le(b) && b.gt(a) && b.ge(a));
            prop_assert!(!b.lt(a) && !b.le(a) && !a.gt(b) && !a.ge(b));
            prop_assert_eq!(b.since(a), step);
        }
    }
}

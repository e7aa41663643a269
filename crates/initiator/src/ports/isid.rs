//! The initiator's part of a session's identity.

use lunway_iscsi::pdu::Isid;

/// A number that sessions of one owner have in common: with a qualifier each it makes their ISIDs (RFC 7143 §11.12.5,
/// format 10b: 24 random bits, 16 bits to tell ports apart).
///
/// A session that is lost is logged in again with the ISID that it had, and thereby ends what is left of itself at the
/// target. Two living sessions with the same one would end each other, so those of a device with several take a
/// qualifier each. As an ISID stays while its device lives, so do reservations that a target holds for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IsidFamily([u8; 3]);

impl IsidFamily {
    /// A new one.
    pub fn random() -> Self {
        let mut random = [0; 3];
        // Without randomness, the time still tells two processes apart.
        if getrandom::fill(&mut random).is_err() {
            let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
            let [a, b, c, ..] = (nanos >> 10 ^ u64::from(std::process::id())).to_le_bytes();
            random = [a, b, c];
        }
        Self(random)
    }

    /// The one of this number.
    pub(crate) const fn of(number: [u8; 3]) -> Self {
        Self(number)
    }

    /// The ISID with this qualifier.
    pub fn member(self, qualifier: u16) -> Isid {
        const RANDOM_FORMAT: u8 = 0b10 << 6;
        let ([a, b, c], [d, e]) = (self.0, qualifier.to_be_bytes());
        [RANDOM_FORMAT, a, b, c, d, e]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_differ_from_each_other_and_from_those_of_another_family() {
        let (ours, theirs) = (IsidFamily([1, 2, 3]), IsidFamily([1, 2, 4]));
        assert_eq!(ours.member(0x0405), [0x80, 1, 2, 3, 4, 5]);
        assert_ne!(ours.member(1), ours.member(2));
        assert_ne!(ours.member(1), theirs.member(1));
    }
}

//! Additional header segments.

use super::padding;

codes! {
    /// Type of an additional header segment (RFC 7143 §11.2.2.1).
    pub struct AhsType {
        /// The bytes of a CDB after its first 16 (§11.2.2.3).
        EXTENDED_CDB = 1, "extended CDB";
        /// Number of bytes that a bidirectional command is expected to read (§11.2.2.4).
        BIDIRECTIONAL_READ_LENGTH = 2, "bidirectional expected read data length";
    }
}

/// Additional header segment (RFC 7143 §11.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahs<'a> {
    /// Type of its content.
    pub ahs_type: AhsType,
    /// Its content, without the type-specific byte before and the padding after.
    pub data: &'a [u8],
}

impl<'a> Ahs<'a> {
    /// The CDB's bytes from the 17th on, if this is an extended CDB that has any.
    pub fn extended_cdb(&self) -> Option<&'a [u8]> {
        (self.ahs_type == AhsType::EXTENDED_CDB && !self.data.is_empty()).then_some(self.data)
    }

    /// The expected read length in bytes, if this is one.
    pub fn bidirectional_read_length(&self) -> Option<u32> {
        if self.ahs_type != AhsType::BIDIRECTIONAL_READ_LENGTH {
            return None;
        }
        Some(u32::from_be_bytes(self.data.try_into().ok()?))
    }

    /// Appends the segment with its padding. `data` longer than 1016 bytes does not fit any PDU and is refused.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), AhsError> {
        let length = self.data.len() + 1;
        if length > 1017 {
            return Err(AhsError);
        }
        out.extend_from_slice(&(length as u16).to_be_bytes());
        out.extend_from_slice(&[self.ahs_type.0, 0]);
        out.extend_from_slice(self.data);
        out.resize(out.len() + padding(self.data.len()), 0);
        Ok(())
    }
}

/// The lengths inside the additional header segments contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an additional header segment leaves the header")]
pub struct AhsError;

/// Walks the additional header segments of one PDU.
///
/// Ends after the first error: what follows a wrong length has no meaning. The walk takes at most 255 steps, as each
/// segment occupies at least one word of a field that counts at most 255.
#[derive(Clone, Debug)]
pub struct AhsIter<'a> {
    rest: &'a [u8],
}

impl<'a> AhsIter<'a> {
    /// Walks `bytes`, all the additional header segments of one PDU.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn step(&mut self) -> Result<Ahs<'a>, AhsError> {
        let bytes = std::mem::take(&mut self.rest);
        let (&[high, low, kind, _], content) = bytes.split_first_chunk::<4>().ok_or(AhsError)?;
        // The length counts the type-specific byte (§11.2.2.2), so zero is not a length.
        let len = usize::from(u16::from_be_bytes([high, low])).checked_sub(1).ok_or(AhsError)?;
        let data = content.get(..len).ok_or(AhsError)?;
        self.rest = content.get(len + padding(len)..).ok_or(AhsError)?;
        Ok(Ahs { ahs_type: AhsType(kind & 0x3f), data })
    }
}

impl<'a> Iterator for AhsIter<'a> {
    type Item = Result<Ahs<'a>, AhsError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.step())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_extended_cdb_and_a_read_length_are_found_in_turn() {
        let mut bytes = Vec::new();
        Ahs { ahs_type: AhsType::EXTENDED_CDB, data: &[7; 13] }.append_to(&mut bytes).unwrap();
        Ahs { ahs_type: AhsType::BIDIRECTIONAL_READ_LENGTH, data: &512u32.to_be_bytes() }
            .append_to(&mut bytes)
            .unwrap();
        assert_eq!(bytes.len(), 4 + 16 + 8);
        assert_eq!(bytes[..4], [0, 14, 1, 0]);
        let found: Vec<_> = AhsIter::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(found[0].extended_cdb(), Some(&[7; 13][..]));
        assert_eq!(found[1].bidirectional_read_length(), Some(512));
        assert_eq!(found[1].extended_cdb(), None);
    }

    #[test]
    fn a_segment_that_leaves_the_header_ends_the_walk() {
        for bytes in [&[0, 9, 1, 0, 0, 0, 0, 0][..], &[0, 0, 1, 0], &[0, 1, 1]] {
            let mut walk = AhsIter::new(bytes);
            assert_eq!(walk.next(), Some(Err(AhsError)));
            assert_eq!(walk.next(), None);
        }
    }

    #[test]
    fn a_segment_no_header_can_hold_is_refused() {
        assert_eq!(Ahs { ahs_type: AhsType(1), data: &[0; 1017] }.append_to(&mut Vec::new()), Err(AhsError));
    }

    proptest! {
        #[test]
        fn the_walk_over_any_bytes_ends_within_its_words(bytes in proptest::collection::vec(any::<u8>(), 0..1020)) {
            prop_assert!(AhsIter::new(&bytes).count() <= 256);
        }
    }
}

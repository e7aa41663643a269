//! Header and data digests: CRC32C in the byte order of the wire (RFC 7143 §11.2.3, §13.1).

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// Length of a digest, bytes.
pub const DIGEST_LEN: usize = 4;

/// A digest as it travels. The polynomial's bits are reflected, so its least significant byte goes first (§13.1).
pub type Digest = [u8; DIGEST_LEN];

/// The digest of bytes that lie in one piece, padding included.
// RFC 7143 [13.1-4]
pub fn digest(bytes: &[u8]) -> Digest {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// The digest of bytes that lie in several pieces: additional header segments after a header, padding after data.
pub fn digest_of(pieces: &[&[u8]]) -> Digest {
    let mut crc = crc_fast::Digest::new(Crc32Iscsi);
    for piece in pieces {
        crc.update(piece);
    }
    // A 32-bit algorithm never sets the upper half.
    (crc.finalize() as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // shows RFC 7143 [13.1-4]
    #[test]
    fn the_vectors_of_the_standard_come_out() {
        // RFC 7143 appendix A.4 (CRC examples).
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(digest(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(digest(&descending), [0x5c, 0xdb, 0x3f, 0x11]);
        let mut read = [0; 48];
        read[0] = 0x01;
        read[1] = 0xc0;
        read[16] = 0x14;
        read[22] = 0x04;
        read[27] = 0x14;
        read[31] = 0x18;
        read[32] = 0x28;
        read[40] = 0x02;
        assert_eq!(digest(&read), [0x56, 0x3a, 0x96, 0xd9]);
    }

    proptest! {
        #[test]
        fn the_digest_is_what_an_independent_implementation_computes(
            bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut in 0usize..5000
        ) {
            prop_assert_eq!(digest(&bytes), crc32c::crc32c(&bytes).to_le_bytes());
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(digest_of(&[a, b]), digest(&bytes));
        }
    }
}

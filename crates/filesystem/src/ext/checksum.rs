//! The checksums of ext.

/// CRC-32C as ext and JBD2 use it: without inversion at the end, so that it can be continued.
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Initial value of checksums without a seed.
pub(super) const START: u32 = !0;

/// CRC-16 with the polynomial A001h (reflected 8005h): the group descriptors of `GDT_CSUM`. Bit by bit: 64 bytes a
/// group.
pub(super) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xA001 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of CRC-32C (RFC 3720, B.4: with inversion) and of CRC-16/MODBUS, which begins with FFFFh.
    #[test]
    fn checksums_have_their_check_values() {
        assert_eq!(!crc32c(START, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(crc32c(START, b"1234"), b"56789"), crc32c(START, b"123456789"));
        assert_eq!(crc16(0xFFFF, b"123456789"), 0x4B37);
    }
}

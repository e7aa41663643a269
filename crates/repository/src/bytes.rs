//! Little-endian numbers out of files.

/// A number of up to 8 bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The same of up to 4 bytes.
pub(crate) fn small(bytes: &[u8]) -> u32 {
    number(bytes) as u32
}

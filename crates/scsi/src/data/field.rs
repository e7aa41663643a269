//! Big-endian fields at fixed places of CDBs and parameter data.
//!
//! Readers answer `None` beyond the end, so that a short answer of a peer is an ordinary case.

/// The byte at `at`.
pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// The 16-bit field at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// The 32-bit field at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// The 64-bit field at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// Writes `field` at `at` of a structure whose length its builder chose.
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

/// `text` in a field of fixed width: ASCII, left-aligned, padded with spaces (SPC-4 §4.4.1).
pub(crate) fn put_ascii(bytes: &mut [u8], at: usize, width: usize, text: &str) {
    let field = &mut bytes[at..at + width];
    field.fill(b' ');
    let printable = text.bytes().map(|byte| if (0x20..0x7F).contains(&byte) { byte } else { b'?' });
    for (to, from) in field.iter_mut().zip(printable) {
        *to = from;
    }
}

/// The text of an ASCII field without its padding; bytes outside ASCII become `?`.
pub(crate) fn ascii(bytes: &[u8]) -> String {
    let text: String =
        bytes.iter().map(|&byte| if (0x20..0x7F).contains(&byte) { char::from(byte) } else { ' ' }).collect();
    text.trim().to_owned()
}

//! Fields of structures on disks: integers at an offset.
//!
//! A structure is read whole before its fields are looked at, so that an offset outside of it is a mistake in the
//! reader: debug assertions find it (the fuzzers run with them), and elsewhere the field is zero.

macro_rules! field {
    ($name:ident, $type:ty, $from:ident) => {
        pub(crate) fn $name(bytes: &[u8], at: usize) -> $type {
            let field = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            debug_assert!(field.is_some(), "a field at {at} of {} bytes", bytes.len());
            field.copied().map_or(0, <$type>::$from)
        }
    };
}

field!(le16, u16, from_le_bytes);
field!(le32, u32, from_le_bytes);
field!(le64, u64, from_le_bytes);
field!(be16, u16, from_be_bytes);
field!(be32, u32, from_be_bytes);
field!(be64, u64, from_be_bytes);

/// Sixteen bytes as a UUID is written (RFC 9562, §4). All zeros are none.
pub(crate) fn uuid(bytes: &[u8]) -> Option<String> {
    let bytes: &[u8; 16] = bytes.first_chunk()?;
    if *bytes == [0; 16] {
        return None;
    }
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    Some(text)
}

/// A name of fixed length, up to its first zero byte; what is not printable is replaced. An empty one is none.
pub(crate) fn label(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text: String = String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char })
        .collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

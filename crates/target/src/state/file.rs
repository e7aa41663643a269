//! File of the state directory: its name and its bytes.
//!
//! | bytes | are |
//! |---|---|
//! | 0–7 | `LWSTATE` and 0 |
//! | 8–11 | version: 1 |
//! | 12–15 | CRC32C of the whole file with these four bytes 0 |
//! | 16–17 | length of the owner's name |
//! | 18–19 | length of the item's |
//! | 20–23 | length of the content |
//! | 24– | owner, item, content |
//!
//! Numbers are big-endian. The names are in it because a file name may be cut, and because a file that was copied to
//! another's place is as wrong as a damaged one.

use std::fmt::Write as _;
use std::io;

const MAGIC: &[u8; 8] = b"LWSTATE\0";
const VERSION: u32 = 1;
const HEADER: usize = 24;
const CRC_AT: usize = 12;
/// Longest file. What is kept for a unit is far below.
pub(super) const LEN_MAX: usize = 1 << 20;
/// Longest part of a file name that stands for the owner: with item and suffix, less than the 255 bytes that file
/// systems take.
const OWNER_MAX: usize = 200;

/// The name of the file: the owner with everything but letters, digits, `-`, `_`, `.` and `:` as `%` and two
/// hexadecimal digits, then `.` and the item, which has no dot. Names that get too long are cut and end with a hash.
pub(crate) fn name(owner: &str, item: &str) -> String {
    let mut name = String::with_capacity(owner.len() + item.len() + 8);
    for (index, byte) in owner.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || b"-_:".contains(&byte) || byte == b'.' && index > 0;
        if plain {
            name.push(char::from(byte));
        } else {
            // Writing to a `String` cannot fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    if name.len() > OWNER_MAX {
        name.truncate(OWNER_MAX - 9);
        let _ = write!(name, "~{:08x}", crc(owner.as_bytes()));
    }
    name.push('.');
    name.push_str(item);
    name
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The bytes of a file.
pub(super) fn encode(owner: &str, item: &str, content: &[u8]) -> io::Result<Vec<u8>> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "too long to be kept");
    let total = HEADER + owner.len() + item.len() + content.len();
    let (Ok(owner_len), Ok(item_len)) = (u16::try_from(owner.len()), u16::try_from(item.len())) else {
        return Err(too_long());
    };
    if total > LEN_MAX {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(total);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(owner_len.to_be_bytes());
    bytes.extend(item_len.to_be_bytes());
    bytes.extend((content.len() as u32).to_be_bytes());
    bytes.extend([owner.as_bytes(), item.as_bytes(), content].concat());
    let sum = crc(&bytes);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&sum.to_be_bytes());
    Ok(bytes)
}

/// The content of a file, or what is wrong with it.
pub(super) fn decode<'a>(bytes: &'a [u8], owner: &str, item: &str) -> Result<&'a [u8], &'static str> {
    let u32_at = |at: usize| bytes.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field));
    let u16_at = |at: usize| bytes.get(at..)?.first_chunk().map(|field| u16::from_be_bytes(*field));
    if !bytes.starts_with(MAGIC) {
        return Err("it is not a state file");
    }
    if u32_at(8) != Some(VERSION) {
        return Err("it is of a version that is not known");
    }
    let mut blank = bytes.to_vec();
    blank.get_mut(CRC_AT..CRC_AT + 4).ok_or("it is cut short")?.fill(0);
    if u32_at(CRC_AT) != Some(crc(&blank)) {
        return Err("its checksum is wrong");
    }
    let lengths = (u16_at(16), u16_at(18), u32_at(20));
    let (Some(owner_len), Some(item_len), Some(len)) = lengths else { return Err("it is cut short") };
    let item_at = HEADER + usize::from(owner_len);
    let content_at = item_at + usize::from(item_len);
    if bytes.len() != content_at.saturating_add(len as usize) {
        return Err("its lengths do not fit");
    }
    if bytes.get(HEADER..item_at) != Some(owner.as_bytes())
        || bytes.get(item_at..content_at) != Some(item.as_bytes())
    {
        return Err("it is the file of another owner");
    }
    Ok(&bytes[content_at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_and_different() {
        assert_eq!(
            name("iqn.2026-11.com.example:d/0", "mode-pages"),
            "iqn.2026-11.com.example:d%2F0.mode-pages"
        );
        assert_eq!(name("../etc", "x"), "%2E.%2Fetc.x");
        let long = |last| name(&format!("{}{last}", "ä".repeat(120)), "reservations");
        assert_ne!(long("a"), long("b"));
        assert!(long("a").len() <= 255 - ".new".len());
    }

    #[test]
    fn a_file_of_another_owner_is_refused() {
        let bytes = encode("a", "item", b"content").unwrap();
        assert_eq!(decode(&bytes, "a", "item"), Ok(&b"content"[..]));
        assert!(decode(&bytes, "b", "item").is_err());
        assert!(decode(&bytes, "a", "other").is_err());
    }

    #[test]
    fn each_bit_that_flips_is_noticed() {
        let good = encode("owner", "item", b"content").unwrap();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes, "owner", "item").is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(decode(&good[..len], "owner", "item").is_err(), "{len} bytes");
        }
    }

    #[test]
    fn what_is_too_long_is_not_kept() {
        assert!(encode("a", "item", &vec![0; LEN_MAX]).is_err());
    }
}

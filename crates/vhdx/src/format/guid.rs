//! GUIDs in binary form: the first three fields little-endian, the rest as written.

use std::fmt;
use std::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A GUID as it lies on disk.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Guid([u8; 16]);

impl Guid {
    /// All zero: an empty log, no second parent.
    pub const ZERO: Self = Self([0; 16]);

    /// From the 32 digits as they are written: `0x2DC27766_F623_4200_9D64_115E9BFD4A08`.
    pub const fn from_digits(digits: u128) -> Self {
        Self::swap(digits.to_be_bytes())
    }

    /// The 32 digits as they are written.
    pub const fn to_digits(self) -> u128 {
        u128::from_be_bytes(Self::swap(self.0).0)
    }

    /// A random GUID (RFC 9562, version 4) of 16 random bytes.
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0F | 0x40;
        bytes[8] = bytes[8] & 0x3F | 0x80;
        Self::swap(bytes)
    }

    /// Returns `true` if all bits are zero.
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Exchanges the order on disk and the written order.
    const fn swap(b: [u8; 16]) -> Self {
        Self([
            b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
            b[15],
        ])
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in Self::swap(self.0).0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID: 32 hexadecimal digits in groups of 8-4-4-4-12 are expected, with or without braces")]
pub struct NotAGuid;

impl FromStr for Guid {
    type Err = NotAGuid;

    fn from_str(text: &str) -> Result<Self, NotAGuid> {
        let bare = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
        let groups: Vec<&str> = bare.split('-').collect();
        let hex = bare.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        if !hex || !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
            return Err(NotAGuid);
        }
        u128::from_str_radix(&groups.concat(), 16).map(Self::from_digits).map_err(|_| NotAGuid)
    }
}

/// Source of new GUIDs. The crate has no randomness of its own, so that tests repeat a run from a seed.
pub trait GuidSource: Send {
    /// A GUID that was never given before.
    fn next(&mut self) -> Guid;
}

impl<F: FnMut() -> Guid + Send> GuidSource for F {
    fn next(&mut self) -> Guid {
        self()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_mixed_endian_on_disk_and_reads_back_from_its_text() {
        let guid = Guid::from_digits(0x2DC27766_F623_4200_9D64_115E9BFD4A08);
        assert_eq!(guid.as_bytes()[..8], [0x66, 0x77, 0xC2, 0x2D, 0x23, 0xF6, 0x00, 0x42]);
        assert_eq!(guid.to_string(), "2dc27766-f623-4200-9d64-115e9bfd4a08");
        assert_eq!("{2DC27766-F623-4200-9D64-115E9BFD4A08}".parse(), Ok(guid));
        for wrong in ["", "{}", "2dc27766f62342009d64115e9bfd4a08", "+dc27766-f623-4200-9d64-115e9bfd4a08"] {
            assert_eq!(wrong.parse::<Guid>(), Err(NotAGuid), "{wrong}");
        }
    }
}

//! Answers to "what changed since": the interface to backup tools.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of an epoch: 128 random bits, so that no two epochs of any disk share one.
///
/// As text, and in JSON, 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct EpochId(pub [u8; 16]);

/// Text that is not the name of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: an epoch is 32 hexadecimal digits")]
pub struct InvalidEpochId(String);

impl fmt::Display for EpochId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for EpochId {
    type Err = InvalidEpochId;

    fn from_str(text: &str) -> Result<Self, InvalidEpochId> {
        let invalid = || InvalidEpochId(text.chars().take(40).collect());
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| invalid())?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl From<EpochId> for String {
    fn from(id: EpochId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for EpochId {
    type Error = InvalidEpochId;

    fn try_from(text: String) -> Result<Self, InvalidEpochId> {
        text.parse()
    }
}

/// Changes on a disk since an epoch was closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Changes {
    /// Everything that changed is in the ranges.
    Known {
        /// The closed epoch after which the changes were made.
        epoch: EpochId,
        /// In order of offset, disjoint, multiples of 64 KiB but for the end of the disk. What is in none of them is as
        /// it was when the epoch was closed.
        ranges: Vec<ChangedRange>,
    },
    /// Anything may have changed: compare everything.
    Unknown {
        /// The epoch that was asked for.
        epoch: EpochId,
        /// Reason why this is not known, in one sentence.
        why: String,
    },
}

/// A range of a disk that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRange {
    /// First byte.
    pub offset: u64,
    /// Length, bytes; not 0.
    pub length: u64,
    /// Its last change.
    pub state: ChangeState,
}

/// The last change of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeState {
    /// May hold anything: read it.
    Written,
    /// Reads as zeroes: it was unmapped, or written with zeroes, as a whole.
    Unmapped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_32_hexadecimal_digits_and_nothing_else_is_one() {
        let id = EpochId([0x0f; 16]);
        assert_eq!(id.to_string(), "0f".repeat(16));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<EpochId>(&format!("\"{id}\"")).unwrap(), id);
        for text in ["", "0f", &"0g".repeat(16), &"+f".repeat(16), &"0f".repeat(17), &"é".repeat(16)] {
            assert!(text.parse::<EpochId>().is_err(), "{text}");
        }
    }
}

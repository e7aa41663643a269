//! Data rates as people write them: `100M`, `100MB/s`, `1.5GiB/s`.

use std::fmt;
use std::num::NonZeroU64;

use crate::size::{ExactSize, SizeError, parse_size};

/// Reason why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// A number alone, which may have been meant in any unit.
    #[error("`{text}` is not a rate: write its unit too, such as {text}M, {text}MB/s or {text}B/s")]
    NoUnit {
        /// Text given.
        text: String,
    },
    /// Not a size, with or without `/s` behind it.
    #[error("`{text}` is not a rate: {source}")]
    Size {
        /// Text given.
        text: String,
        /// Error in its size.
        source: SizeError,
    },
    /// Nothing would ever end.
    #[error("a rate must not be 0")]
    Zero,
}

/// Reads a rate in bytes per second: a size as [`parse_size`] reads it, and `/s` where one likes. As with durations the
/// unit is not optional: `100` is 100 MB/s to most who write it.
///
/// # Errors
///
/// [`RateError`], a sentence that repeats the text.
pub fn parse_rate(text: &str) -> Result<NonZeroU64, RateError> {
    let size = text.strip_suffix("/s").unwrap_or(text);
    if !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(RateError::NoUnit { text: size.to_owned() });
    }
    let rate = parse_size(size).map_err(|source| RateError::Size { text: text.to_owned(), source })?;
    NonZeroU64::new(rate).ok_or(RateError::Zero)
}

/// Prints a rate exactly and as short as [`parse_rate`] reads it back: `100M`, `513B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactRate(pub NonZeroU64);

impl fmt::Display for ExactRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.get();
        write!(f, "{}{}", ExactSize(bytes), if bytes.is_multiple_of(1024) { "" } else { "B" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_unit() {
        for (text, bytes) in [("100M", 100 << 20), ("100MB/s", 100_000_000), ("1.5K/s", 1536), ("513B", 513)]
        {
            let rate = parse_rate(text).unwrap();
            assert_eq!(rate.get(), bytes, "{text}");
            assert_eq!(parse_rate(&ExactRate(rate).to_string()), Ok(rate));
        }
        for (text, said) in [
            ("100", "such as 100M, 100MB/s"),
            ("100/s", "such as 100M"),
            ("0B", "not be 0"),
            ("fast", "`fast` is not a rate"),
            ("", "is not a size"),
        ] {
            let error = parse_rate(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

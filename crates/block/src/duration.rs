//! Durations as people write them: `200us`, `5ms`, `10s`, `1m`.

use std::fmt;
use std::time::Duration;

use crate::size::Decimal;

/// Units and their nanoseconds, smallest first; the first spelling of each is the one that is printed.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a number with a unit.
    #[error("`{text}` is not a duration: write a number with a unit, such as 200us, 5ms, 1.5s, 1m or 2h")]
    Malformed {
        /// What was written.
        text: String,
    },
    /// More nanoseconds than can be counted.
    #[error("the duration `{text}` is too long: the limit is about 584 years")]
    TooLong {
        /// What was written.
        text: String,
    },
}

/// Reads a duration. The unit is not optional: whether `5` means seconds or milliseconds is a guess that
/// hurts. What is finer than a nanosecond is dropped.
///
/// # Errors
///
/// [`DurationError`], a sentence that repeats the text.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError::Malformed { text: text.to_owned() };
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_len);
    let (_, unit_nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?;
    let decimal = Decimal::parse(number).ok_or_else(malformed)?;
    let nanos = decimal.times(u128::from(*unit_nanos)).and_then(|(nanos, _)| u64::try_from(nanos).ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| DurationError::TooLong { text: text.to_owned() })
}

/// Prints a duration exactly and as short as [`parse_duration`] reads it back: `200us`, `90s`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactDuration(pub Duration);

impl fmt::Display for ExactDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let fits = |unit: &&(&str, u64)| unit.0.is_ascii() && nanos.is_multiple_of(u128::from(unit.1));
        match UNITS.iter().rev().find(fits) {
            Some((name, unit)) => write!(f, "{}{name}", nanos / u128::from(*unit)),
            None => write!(f, "{nanos}ns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_unit_is_read() {
        for (text, nanos) in [
            ("7ns", 7),
            ("200us", 200_000),
            ("200µs", 200_000),
            ("5ms", 5_000_000),
            ("1.5ms", 1_500_000),
            ("10s", 10_000_000_000),
            ("1m", 60_000_000_000),
            ("2h", 7_200_000_000_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused() {
        for text in ["", "5", "s", "5 s", "-5s", "5S", "5sec", "1.s"] {
            assert!(matches!(parse_duration(text), Err(DurationError::Malformed { .. })), "{text}");
        }
        assert!(matches!(parse_duration("99999999999h"), Err(DurationError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn an_exact_duration_reads_back_as_itself(nanos: u64, zeroes in 0_u32..12) {
            let unit = 10_u64.pow(zeroes);
            let duration = Duration::from_nanos(nanos / unit * unit);
            prop_assert_eq!(parse_duration(&ExactDuration(duration).to_string()), Ok(duration));
        }
    }
}

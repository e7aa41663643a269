//! Durations as people write them (`200us`, `5ms`, `10s`, `1m`), and as they read them (`43 ms`, `30 s`, `1 min 30 s`).

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

/// Reason why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a number with a unit.
    #[error("`{text}` is not a duration: write a number with a unit, such as 200us, 5ms, 1.5s, 1m or 2h")]
    Malformed {
        /// Text given.
        text: String,
    },
    /// More nanoseconds than can be counted.
    #[error("the duration `{text}` is too long: the limit is about 584 years")]
    TooLong {
        /// Text given.
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

/// Prints a duration for people: three digits, in the largest unit that leaves a whole number in front (`250 µs`,
/// `1.05 s`, `1 min 30 s`, `2 h 05 min`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanTime(pub Duration);

impl HumanTime {
    /// So many milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

impl fmt::Display for HumanTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A unit begins where rounding to three digits reaches it: 59.96 s would print as `60 s`.
        let text = match (self.0.as_secs_f64() * 1e9, (self.0 + HALF_SECOND).as_secs()) {
            (0.0, _) => "0 s".to_owned(),
            (nanos, _) if nanos < 999.5 => format!("{nanos:.0} ns"),
            (nanos, _) if nanos < 999.5e3 => format!("{} µs", three_digits(nanos / 1e3)),
            (nanos, _) if nanos < 999.5e6 => format!("{} ms", three_digits(nanos / 1e6)),
            (nanos, _) if nanos < 59.95e9 => format!("{} s", three_digits(nanos / 1e9)),
            (_, seconds @ ..3600) => two_units(seconds, "min", "s"),
            (_, seconds) => two_units(seconds / 60, "h", "min"),
        };
        f.pad(&text)
    }
}

/// For rounding to whole seconds.
const HALF_SECOND: Duration = Duration::from_millis(500);

fn three_digits(value: f64) -> String {
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let text = format!("{value:.places$}");
    if places == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// `count` of the smaller unit, 60 of which make a larger one.
fn two_units(count: u64, larger: &str, smaller: &str) -> String {
    match count % 60 {
        0 => format!("{} {larger}", count / 60),
        rest => format!("{} {larger} {rest:02} {smaller}", count / 60),
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

    #[test]
    fn a_time_for_people_has_three_digits_and_the_unit_that_fits() {
        for (nanos, text) in [
            (999, "999 ns"),
            (1_000, "1 µs"),
            (250_000, "250 µs"),
            (0, "0 s"),
            (999_600, "1 ms"),
            (43_000_000, "43 ms"),
            (1_052_000_000, "1.05 s"),
            (30_000_000_000, "30 s"),
            (59_960_000_000, "1 min"),
            (90_000_000_000, "1 min 30 s"),
            (3_599_700_000_000, "1 h"),
            (7_500_000_000_000, "2 h 05 min"),
        ] {
            assert_eq!(HumanTime(Duration::from_nanos(nanos)).to_string(), text);
        }
        assert_eq!(HumanTime::millis(30_000).to_string(), "30 s");
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

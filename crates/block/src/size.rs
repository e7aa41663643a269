//! Sizes as people write them: `4K`, `1.5G`, `4TiB`, `100MB`.

use std::fmt;

/// Units, smallest first. `K` counts as 1024, like everything that is not written with a `B` alone behind it.
const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Digits after the point; more than any unit needs.
const FRACTION_DIGITS_MAX: usize = 18;

/// Reason why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a unit.
    #[error(
        "`{text}` is not a size: write a number with a unit, such as 4K, 1.5G or 4TiB (powers of 1024), 100MB (powers of 1000), or plain bytes"
    )]
    Malformed {
        /// Text given.
        text: String,
    },
    /// More than 2^64 - 1 bytes.
    #[error("the size `{text}` is beyond 16 EiB, the most that can be addressed")]
    TooLarge {
        /// Text given.
        text: String,
    },
    /// A fraction that leaves a part of a byte.
    #[error("the size `{text}` is not a whole number of bytes")]
    Fractional {
        /// Text given.
        text: String,
    },
}

/// Reads a size in bytes.
///
/// `4096`, `4K`, `4k`, `4Ki`, `4KiB` are powers of 1024; `4kB`, `4KB`, `4MB`, `4GB` … powers of 1000. A
/// fraction is welcome where it comes out at whole bytes (`1.5G`).
///
/// # Errors
///
/// [`SizeError`], a sentence that repeats the text.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed { text: text.to_owned() };
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_len);
    let multiplier = multiplier(unit).ok_or_else(malformed)?;
    let decimal = Decimal::parse(number).ok_or_else(malformed)?;
    match decimal.times(multiplier) {
        Some((bytes, true)) => {
            u64::try_from(bytes).map_err(|_| SizeError::TooLarge { text: text.to_owned() })
        }
        Some((_, false)) => Err(SizeError::Fractional { text: text.to_owned() }),
        None => Err(SizeError::TooLarge { text: text.to_owned() }),
    }
}

fn multiplier(unit: &str) -> Option<u128> {
    if matches!(unit, "" | "B") {
        return Some(1);
    }
    let mut chars = unit.chars();
    let letter = chars.next()?.to_ascii_uppercase();
    let power = u32::try_from(UNITS.iter().position(|&known| known == letter)?).ok()? + 1;
    match chars.as_str() {
        "" | "i" | "iB" => Some(1024_u128.pow(power)),
        "B" => Some(1000_u128.pow(power)),
        _ => None,
    }
}

/// A decimal number, exactly: `digits / 10^places`.
pub(crate) struct Decimal {
    digits: u128,
    places: u32,
}

impl Decimal {
    /// `12`, `1.5`, `.5`; not `1.`, and not more digits than any use has.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) =
            text.split_once('.').map_or((text, None), |(whole, part)| (whole, Some(part)));
        if whole.is_empty() && fraction.is_none() || fraction.is_some_and(str::is_empty) {
            return None;
        }
        let fraction = fraction.unwrap_or("");
        // 20 digits hold any u64; both together stay far below what a u128 holds.
        let whole = whole.trim_start_matches('0');
        let only_digits = whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
        if !only_digits || whole.len() > 20 || fraction.len() > FRACTION_DIGITS_MAX {
            return None;
        }
        let digits =
            whole.bytes().chain(fraction.bytes()).fold(0, |sum, byte| sum * 10 + u128::from(byte - b'0'));
        Some(Self { digits, places: fraction.len() as u32 })
    }

    /// The product, rounded down, and whether it was exact; `None` where it leaves a `u128`.
    pub(crate) fn times(&self, factor: u128) -> Option<(u128, bool)> {
        let divisor = 10_u128.pow(self.places);
        let product = self.digits.checked_mul(factor)?;
        Some((product / divisor, product % divisor == 0))
    }
}

/// Prints a size for people: three digits or so, powers of 1024 (`1.5 GiB`, `512 B`, `100 KiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanSize(pub u64);

impl fmt::Display for HumanSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = None;
        for letter in UNITS {
            // 1023.95 would print as `1024.0`: the next unit takes over where rounding would reach it.
            if value < 1023.95 {
                break;
            }
            value /= 1024.0;
            unit = Some(letter);
        }
        let text = match unit {
            None => format!("{} B", self.0),
            Some(letter) if (value - value.round()).abs() < 0.05 => format!("{value:.0} {letter}iB"),
            Some(letter) => format!("{value:.1} {letter}iB"),
        };
        f.pad(&text)
    }
}

/// Prints a size exactly and as short as [`parse_size`] reads it back: `1536M`, `4K`, `513`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactSize(pub u64);

impl fmt::Display for ExactSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0;
        let mut unit = None;
        for letter in UNITS {
            if value == 0 || !value.is_multiple_of(1024) {
                break;
            }
            value /= 1024;
            unit = Some(letter);
        }
        match unit {
            None => write!(f, "{value}"),
            Some(letter) => write!(f, "{value}{letter}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_powers_of_1024_unless_written_with_a_b_alone() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("4K", 4096),
            ("4k", 4096),
            ("4Ki", 4096),
            ("4KiB", 4096),
            ("4kB", 4000),
            ("4KB", 4000),
            ("1M", 1 << 20),
            ("1MB", 1_000_000),
            ("2G", 2 << 30),
            ("2GB", 2_000_000_000),
            ("4TiB", 4 << 40),
            ("4TB", 4_000_000_000_000),
            ("1.5G", 3 << 29),
            (".5K", 512),
            ("0004K", 4096),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_the_reason() {
        for text in ["", "K", "-1", "4X", "4 K", "1.", ".", "1.2.3", "4Kib", "4b", "1e9", "٤K", "0x10"] {
            assert!(matches!(parse_size(text), Err(SizeError::Malformed { .. })), "{text}");
        }
        assert!(matches!(parse_size("16E"), Err(SizeError::TooLarge { .. })));
        assert!(matches!(parse_size("99999999999999999999E"), Err(SizeError::TooLarge { .. })));
        assert!(matches!(parse_size("1.5"), Err(SizeError::Fractional { .. })));
        let sentence = parse_size("4X").unwrap_err().to_string();
        assert!(sentence.contains("`4X`") && sentence.contains("4TiB"), "{sentence}");
    }

    #[test]
    fn sizes_for_people_have_three_digits_or_so() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 20) - 1, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(HumanSize(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn an_exact_size_reads_back_as_itself(bytes: u64, shift in 0_u32..64) {
            let bytes = bytes >> shift << (shift / 2);
            prop_assert_eq!(parse_size(&ExactSize(bytes).to_string()), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in "[0-9.]{0,40}[kKMGTPEiB]{0,4}|.*") {
            let _ = parse_size(&text);
        }
    }
}

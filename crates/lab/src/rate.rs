//! Rate of a cable.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Units and their bits per second, largest first.
const UNITS: [(&str, u64); 4] = [("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("Kbit", 1000), ("bit", 1)];
/// The slowest cable: a frame of the largest MTU still passes within seconds.
const RATE_MIN: u64 = 64_000;
/// The fastest cable. What one machine carries is far below.
const RATE_MAX: u64 = 400_000_000_000;

/// Rate of a cable in one direction, bits per second on the wire: every frame counts with its Ethernet header,
/// checksum, preamble and gap, as on real cards, so that `1Gbit` gives what a card sold as one gigabit gives.
///
/// Decimal, as in the field: `1Gbit` is 10⁹. Read from and printed as `100Mbit`, `2.5Gbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

/// Reason why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a rate: write a number with a unit, such as 1Gbit, 2.5Gbit or 100Mbit, from 64Kbit to 400Gbit"
)]
pub struct RateError(String);

impl Rate {
    /// A rate of so many bits per second, moved to the nearest that a cable can have.
    pub fn new(bits_per_second: u64) -> Self {
        Self(bits_per_second.clamp(RATE_MIN, RATE_MAX))
    }

    /// Bits per second on the wire.
    pub fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes per second on the wire.
    pub fn bytes_per_second(self) -> f64 {
        self.0 as f64 / 8.0
    }

    /// So many times this rate.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self::new((self.0 as f64 * factor).round() as u64)
    }
}

impl Rate {
    /// The next lower rate of two digits, to recommend to people: 870Mbit for 873.4.
    pub(crate) fn rounded_down(self) -> Self {
        let step = 10_u64.pow(self.0.ilog10().saturating_sub(1));
        Self::new(self.0 / step * step)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let wrong = || RateError(text.to_owned());
        let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_len);
        let (_, unit) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bits = number * *unit as f64;
        if !(RATE_MIN as f64..=RATE_MAX as f64).contains(&bits) {
            return Err(wrong());
        }
        Ok(Self(bits.round() as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Three places of the largest unit are enough for 2.5Gbit; what is finer is printed in a smaller one.
        let fits = |unit: &&(&str, u64)| self.0 >= unit.1 && (self.0 * 1000).is_multiple_of(unit.1);
        let (name, unit) = UNITS.iter().find(fits).unwrap_or(&UNITS[3]);
        write!(f, "{}{name}", self.0 as f64 / *unit as f64)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_reads_back_as_it_is_printed() {
        for text in ["1Gbit", "2.5Gbit", "100Mbit", "64Kbit", "999.999Mbit", "12345678bit", "400Gbit"] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate), "{text}");
        }
        assert_eq!("1gbit".parse::<Rate>().unwrap().bits_per_second(), 1_000_000_000);
        assert_eq!("2500Mbit".parse::<Rate>().unwrap().to_string(), "2.5Gbit");
    }

    #[test]
    fn a_recommended_rate_has_two_digits() {
        assert_eq!(Rate::new(873_400_000).rounded_down().to_string(), "870Mbit");
        assert_eq!(Rate::new(1_990_000_000).rounded_down().to_string(), "1.9Gbit");
        assert_eq!(Rate::new(64_000).rounded_down().to_string(), "64Kbit");
    }

    #[test]
    fn what_is_no_rate_is_told() {
        for text in ["", "1", "1G", "Gbit", "1 Gbit", "-1Gbit", "1.2.3Gbit", "63Kbit", "401Gbit", "0Mbit"] {
            let sentence = text.parse::<Rate>().unwrap_err().to_string();
            assert!(sentence.contains(&format!("`{text}` is not a rate")), "{sentence}");
        }
    }
}

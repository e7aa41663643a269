//! Names of points, and of their files.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Name of a point: random, so that two are never taken for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointId(pub u64);

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PointId {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let digits = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or("the id of a point has 16 hexadecimal digits")
    }
}

impl Serialize for PointId {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PointId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What the names of a point's files have in common: `000012-0123456789abcdef`.
pub fn stem(generation: u64, point: PointId) -> String {
    format!("{generation:06}-{point}")
}

/// Generation and id out of a stem.
pub fn parse_stem(stem: &str) -> Option<(u64, PointId)> {
    let (generation, id) = stem.split_once('-')?;
    let digits = generation.len() >= 6 && generation.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = (digits.then(|| generation.parse().ok())??, id.parse().ok()?);
    (self::stem(parsed.0, parsed.1) == stem).then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stem_is_generation_and_id_and_nothing_else() {
        assert_eq!(parse_stem(&stem(12, PointId(0xab))), Some((12, PointId(0xab))));
        assert_eq!(parse_stem(&stem(12_345_678, PointId(1))), Some((12_345_678, PointId(1))));
        for wrong in ["", "000012", "12-00000000000000ab", "000012-ab", "+00012-00000000000000ab"] {
            assert_eq!(parse_stem(wrong), None, "{wrong}");
        }
        assert_eq!(parse_stem("0000012-00000000000000ab"), None, "one way of writing a number");
    }
}

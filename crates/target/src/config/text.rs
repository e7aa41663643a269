//! Values that a configuration has as text with a unit: what a number alone means would be a guess.

use std::num::NonZeroU64;
use std::time::Duration;

use lunway_block::duration::{ExactDuration, parse_duration};
use lunway_block::rate::{ExactRate, parse_rate};
use serde::{Deserialize, Deserializer, Serializer, de};

/// A time that may be missing.
pub(super) fn from_time<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(&ExactDuration(*time)),
        None => serializer.serialize_none(),
    }
}

pub(super) fn to_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_duration(&text).map_err(de::Error::custom)).transpose()
}

/// Bytes per second that may be missing.
pub(super) fn from_rate<S: Serializer>(rate: &Option<NonZeroU64>, serializer: S) -> Result<S::Ok, S::Error> {
    match rate {
        Some(rate) => serializer.collect_str(&ExactRate(*rate)),
        None => serializer.serialize_none(),
    }
}

pub(super) fn to_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU64>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_rate(&text).map_err(de::Error::custom)).transpose()
}

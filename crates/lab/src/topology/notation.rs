//! Notation of ends, shares, sizes and times in a file: the same as on the command line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{End, Loss};

/// Sizes: `64K`.
pub(super) mod size {
    use lunway_block::size::{ExactSize, parse_size};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::topology) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<u64>, D::Error> {
        parse_size(&String::deserialize(from)?).map(Some).map_err(serde::de::Error::custom)
    }

    pub(in crate::topology) fn serialize<S: Serializer>(
        size: &Option<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match size {
            Some(size) => to.collect_str(&ExactSize(*size)),
            None => to.serialize_none(),
        }
    }
}

/// Times: `2ms`.
pub(super) mod duration {
    use std::time::Duration;

    use lunway_block::duration::{ExactDuration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::topology) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        parse_duration(&String::deserialize(from)?).map(Some).map_err(serde::de::Error::custom)
    }

    pub(in crate::topology) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.collect_str(&ExactDuration(*time)),
            None => to.serialize_none(),
        }
    }
}

impl FromStr for End {
    type Err = std::convert::Infallible;

    /// Every text is one or the other; whether there is such a host or switch, the check says.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once('.') {
            Some((host, card)) => Self::Card { host: host.to_owned(), card: card.to_owned() },
            None => Self::Switch(text.to_owned()),
        })
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(deserializer)?
            .parse()
            .unwrap_or_else(|never: std::convert::Infallible| match never {}))
    }
}

impl Serialize for End {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reason why a text is not a share of frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a share of frames: write per cent from 0% to 100%, such as 0.1%")]
pub struct LossError(String);

impl FromStr for Loss {
    type Err = LossError;

    fn from_str(text: &str) -> Result<Self, LossError> {
        let number = text.strip_suffix('%').filter(|number| number.starts_with(|c: char| c.is_ascii_digit()));
        let share = number.and_then(|number| number.parse::<f64>().ok()).map(|percent| percent / 100.0);
        share.filter(|share| *share <= 1.0).map(Self).ok_or_else(|| LossError(text.to_owned()))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Ten places hide that 0.1 % has no exact form.
        write!(f, "{}%", (self.0 * 1e12).round() / 1e10)
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    #[test]
    fn a_network_reads_back_as_it_was_written() {
        let text = r#"
            [[host]]
            name = "server"
            [[host]]
            name = "storage"
            luns = ["1=ram:1G"]
            [[switch]]
            name = "fabric"
            [[cable]]
            name = "lane1"
            ends = ["server.eth0", "storage.eth0"]
            rate = "1Gbit"
            mtu = 9000
            burst = "64K"
            queue = "1M"
            delay = "2ms"
            loss = "0.1%"
            [[cable]]
            name = "lane2"
            ends = ["server.eth1", "fabric"]
        "#;
        let topology: Topology = toml::from_str(text).unwrap();
        let lane = topology.cable("lane1").unwrap();
        assert_eq!((lane.burst, lane.queue), (Some(65536), Some(1 << 20)));
        assert_eq!(lane.loss.unwrap().share(), 0.001);
        assert_eq!(topology.cable("lane2").unwrap().mtu, 1500);
        let again: Topology = toml::from_str(&toml::to_string(&topology).unwrap()).unwrap();
        assert_eq!(again, topology);
    }

    #[test]
    fn what_is_no_share_is_told() {
        for text in ["", "1", "%", "-1%", "101%", "one%", "inf%", "NaN%"] {
            assert!(text.parse::<Loss>().is_err(), "{text}");
        }
        assert_eq!("0.1%".parse::<Loss>().unwrap().to_string(), "0.1%");
    }
}

//! Arguments of `lunway bench`.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use lunway_bench::profile::Kind;
use lunway_bench::{Arrivals, Distribution, Rate, Region, RwMode};
use lunway_block::rate::parse_rate;
use lunway_block::size::{HumanSize, parse_size};

/// A profile by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) struct ProfileName(pub(in crate::command) Kind);

const PROFILES: [ProfileName; Kind::ALL.len()] = {
    let mut names = [ProfileName(Kind::Anvil); Kind::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = ProfileName(Kind::ALL[index]);
        index += 1;
    }
    names
};

impl ValueEnum for ProfileName {
    fn value_variants<'a>() -> &'a [Self] {
        &PROFILES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.about()))
    }
}

/// Name of the pattern of a single job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) struct RwModeName(pub(in crate::command) RwMode);

const RW_MODES: [RwModeName; RwMode::ALL.len()] = {
    let mut names = [RwModeName(RwMode::Read); RwMode::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = RwModeName(RwMode::ALL[index]);
        index += 1;
    }
    names
};

impl ValueEnum for RwModeName {
    fn value_variants<'a>() -> &'a [Self] {
        &RW_MODES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.about()))
    }
}

/// Distribution of due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::command) enum ArrivalsName {
    /// At equal intervals
    Even,
    /// At random, independent of each other
    Poisson,
}

impl From<ArrivalsName> for Arrivals {
    fn from(name: ArrivalsName) -> Self {
        match name {
            ArrivalsName::Even => Self::Even,
            ArrivalsName::Poisson => Self::Poisson,
        }
    }
}

pub(in crate::command) fn block_size(text: &str) -> Result<u32, String> {
    let size = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(size).map_err(|_| format!("{} is more than any I/O can have", HumanSize(size)))
}

pub(in crate::command) fn region(text: &str) -> Result<Region, String> {
    let size = |text| parse_size(text).map_err(|error| error.to_string());
    let (offset, len) = text.split_once('+').ok_or("expected OFFSET+SIZE, such as 1G+512M")?;
    Ok(Region { offset: size(offset)?, len: size(len)? })
}

pub(in crate::command) fn rate(text: &str) -> Result<Rate, String> {
    match text.strip_suffix("iops") {
        Some(count) => {
            count.trim().parse().map(Rate::Iops).map_err(|_| format!("`{text}` is not a number of iops"))
        }
        None => {
            parse_rate(text).map(|rate| Rate::BytesPerSecond(rate.get())).map_err(|error| error.to_string())
        }
    }
}

pub(in crate::command) fn distribution(text: &str) -> Result<Distribution, String> {
    let wrong =
        || format!("`{text}` is not uniform, once, zipf:THETA (as zipf:1.2) or pareto:H (as pareto:0.2)");
    let figure = |text: &str| text.parse::<f64>().map_err(|_| wrong());
    match text.split_once(':') {
        None if text == "uniform" => Ok(Distribution::Uniform),
        None if text == "once" => Ok(Distribution::Once),
        Some(("zipf", theta)) => figure(theta).map(Distribution::Zipf),
        Some(("pareto", share)) => figure(share).map(Distribution::Pareto),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_regions_are_read_as_people_write_them() {
        assert_eq!(rate("5000iops"), Ok(Rate::Iops(5000)));
        assert_eq!(rate("100M"), Ok(Rate::BytesPerSecond(100 << 20)));
        assert!(rate("fast").is_err() && rate("manyiops").is_err() && rate("100").is_err());
        assert_eq!(region("1G+512M"), Ok(Region { offset: 1 << 30, len: 512 << 20 }));
        assert!(region("1G").is_err());
        assert!(block_size("8G").is_err());
    }

    #[test]
    fn distributions_are_written_as_fio_writes_them() {
        assert_eq!(distribution("zipf:1.2"), Ok(Distribution::Zipf(1.2)));
        assert_eq!(distribution("pareto:0.2"), Ok(Distribution::Pareto(0.2)));
        assert_eq!(distribution("once"), Ok(Distribution::Once));
        assert_eq!(distribution("uniform"), Ok(Distribution::Uniform));
        for wrong in ["zipf", "zipf:x", "normal:0.5", "once:1"] {
            assert!(distribution(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_profile_and_every_access_can_be_named() {
        assert_eq!(PROFILES.map(|name| name.0), Kind::ALL);
        assert_eq!(RW_MODES.map(|name| name.0), RwMode::ALL);
    }
}

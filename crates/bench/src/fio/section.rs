//! Interpretation of the settings of one section.

use std::collections::BTreeMap;
use std::time::Duration;

use lunway_block::Geometry;

use super::error::{JobFileError, Problem};
use super::ini::{RawSection, Setting, SourceLine};
use super::keys::{Key, Reason, Treatment, treatment};
use super::value::{self, KbBase, Wanted};
use crate::load::job::{Arrivals, Fill, Job, Limit, Rate, Region, random_seed};
use crate::{BlockSizes, Distribution, Mix, Pattern, Share};

/// Seeds of sections that name none: the same file issues the same I/Os each time, as with fio.
const SEED: u64 = 0x6c75_6e77_6179;
/// fio's defaults where `zipf` and `pareto` stand without a figure.
const ZIPF: f64 = 1.1;
const PARETO: f64 = 0.2;
/// fio's engines that do one I/O at a time, whatever the depth.
const SYNCHRONOUS: [&str; 6] = ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap"];

/// Bytes, or a share of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Bytes(u64),
    Percent(u8),
}

impl Amount {
    fn read(text: &str, base: KbBase) -> Result<Self, Wanted> {
        match text.strip_suffix('%') {
            Some(_) => value::percent(text).map(Self::Percent),
            None => value::size(text, base).map(Self::Bytes),
        }
    }

    fn of(self, size: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (u128::from(size) * u128::from(percent) / 100) as u64,
        }
    }
}

/// A section of a job file: its job, as far as it can be told without the device.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) place: SourceLine,
    pub(super) name: String,
    pub(super) description: Option<String>,
    /// Waits for all sections above.
    pub(super) stonewall: bool,
    pub(super) start_delay: Duration,
    /// `None`: not said.
    pub(super) direct: Option<bool>,
    /// Keys without effect.
    pub(super) without_effect: BTreeMap<Reason, Vec<String>>,
    index: u64,
    base: KbBase,
    random: bool,
    /// Reads, writes.
    does: [bool; 2],
    read_percent: u8,
    block_size: [u32; 2],
    split: [Option<Vec<Share>>; 2],
    queue_depth: u32,
    engine: Option<String>,
    jobs: u32,
    size: Option<Amount>,
    io_size: Option<u64>,
    offset: Amount,
    number_ios: Option<u64>,
    loops: u64,
    runtime: Option<Duration>,
    time_based: bool,
    ramp: Duration,
    rate: [Option<u64>; 2],
    rate_iops: [Option<u64>; 2],
    arrivals: Arrivals,
    random_map: bool,
    skew: Option<Distribution>,
    seed: Option<u64>,
    repeatable: bool,
    verify: bool,
    zeroes: bool,
}

impl Section {
    /// Takes the settings in their order, globals first: of two for one key the later one counts.
    pub(super) fn of(raw: &RawSection, globals: &[Setting], index: u64) -> Result<Self, JobFileError> {
        let settings = || globals[..raw.globals].iter().chain(&raw.settings);
        let mut section = Self {
            place: raw.place.clone(),
            name: raw.name.clone(),
            description: None,
            stonewall: false,
            start_delay: Duration::ZERO,
            direct: None,
            without_effect: BTreeMap::new(),
            index,
            base: KbBase::Inverted,
            random: false,
            does: [true, false],
            read_percent: 50,
            block_size: [4096; 2],
            split: [None, None],
            queue_depth: 1,
            engine: None,
            jobs: 1,
            size: None,
            io_size: None,
            offset: Amount::Bytes(0),
            number_ios: None,
            loops: 1,
            runtime: None,
            time_based: false,
            ramp: Duration::ZERO,
            rate: [None; 2],
            rate_iops: [None; 2],
            arrivals: Arrivals::Even,
            random_map: true,
            skew: None,
            seed: None,
            repeatable: true,
            verify: false,
            zeroes: false,
        };
        // fio reads the meaning of `k` before anything that has one.
        let (first, rest): (Vec<_>, Vec<_>) = settings().partition(|setting| setting.key == "kb_base");
        for setting in first.into_iter().chain(rest) {
            let wrong = |problem| JobFileError::Line { place: setting.place.clone(), problem };
            section.take(setting).map_err(wrong)?;
        }
        if let Err(why) = section.check() {
            let problem = Problem::Section { section: section.name, why };
            return Err(JobFileError::Line { place: section.place, problem });
        }
        Ok(section)
    }

    fn take(&mut self, setting: &Setting) -> Result<(), Problem> {
        let (key, value) = (setting.key.as_str(), setting.value.as_deref());
        let written = || match value {
            Some(value) => format!("{key}={value}"),
            None => key.to_owned(),
        };
        if value.is_some_and(|value| {
            ["$pagesize", "$mb_memory", "$ncpus"].iter().any(|word| value.contains(word))
        }) {
            let wanted =
                "fio's words $pagesize, $mb_memory and $ncpus are not filled in here: write the number";
            return Err(Problem::Value { setting: written(), wanted });
        }
        match treatment(key).ok_or_else(|| Problem::UnknownKey { key: key.to_owned() })? {
            Treatment::Honoured(key) => {
                self.honour(key, value).map_err(|wanted| Problem::Value { setting: written(), wanted })
            }
            Treatment::WithoutEffect(reason) => {
                self.note(reason, key);
                Ok(())
            }
            // A key alone is `1`.
            Treatment::Refused { unless, .. } if unless.contains(&value.unwrap_or("1")) => Ok(()),
            Treatment::Refused { why, .. } => Err(Problem::Refused { setting: written(), why }),
        }
    }

    fn note(&mut self, reason: Reason, key: &str) {
        let keys = self.without_effect.entry(reason).or_default();
        if !keys.iter().any(|known| known == key) {
            keys.push(key.to_owned());
        }
    }

    fn honour(&mut self, key: Key, value: Option<&str>) -> Result<(), Wanted> {
        let base = self.base;
        let text = || value.filter(|text| !text.is_empty()).ok_or("a value is wanted");
        let size = |text: &str| value::size(text, base);
        match key {
            Key::BlockSize => {
                each(value::directions(text()?)?, &mut self.block_size, |text| block_size(text, base))?;
            }
            Key::BlockSizeSplit => self.split = splits(text()?, base)?,
            Key::Buffered => self.direct = Some(!value::flag(value)?),
            Key::Description => self.description = Some(text()?.to_owned()),
            Key::Direct => self.direct = Some(value::flag(value)?),
            // Of a file that fio would lay out: what `size` is where both are given decides.
            Key::FileSize => {
                let amount = Amount::read(text()?, base)?;
                self.size.get_or_insert(amount);
            }
            Key::IoDepth => self.queue_depth = number(text()?)?,
            Key::IoEngine => {
                self.engine = Some(text()?.to_owned());
                self.note(Reason::Engine, "ioengine");
            }
            Key::IoSize => self.io_size = Some(size(text()?)?),
            Key::KbBase => {
                self.base = match text()? {
                    "1024" => KbBase::Inverted,
                    "1000" => KbBase::Standard,
                    _ => return Err("1024 or 1000 is wanted"),
                }
            }
            Key::Loops => self.loops = value::count(text()?)?.max(1),
            Key::Name => self.name = text()?.to_owned(),
            Key::NoRandomMap => self.random_map = !value::flag(value)?,
            Key::NumJobs => self.jobs = number(text()?)?,
            Key::NumberIos => self.number_ios = Some(value::count(text()?)?),
            Key::Offset => self.offset = Amount::read(text()?, base)?,
            Key::RampTime => self.ramp = value::time(text()?)?,
            Key::RandRepeat => self.repeatable = value::flag(value)?,
            Key::RandSeed => self.seed = Some(size(text()?)?),
            Key::RandomDistribution => self.skew = distribution(text()?)?,
            Key::Rate => each(value::directions(text()?)?, &mut self.rate, |text| size(text).map(nonzero))?,
            Key::RateIops => {
                each(value::directions(text()?)?, &mut self.rate_iops, |text| size(text).map(nonzero))?;
            }
            Key::RateProcess => {
                self.arrivals = match text()? {
                    "linear" => Arrivals::Even,
                    "poisson" => Arrivals::Poisson,
                    _ => return Err("linear or poisson is wanted"),
                }
            }
            Key::ReadWrite => (self.random, self.does) = access(text()?)?,
            Key::Runtime => self.runtime = Some(value::time(text()?)?).filter(|time| !time.is_zero()),
            Key::RwMixRead => self.read_percent = value::percent(text()?)?,
            Key::RwMixWrite => self.read_percent = 100 - value::percent(text()?)?,
            Key::Size => self.size = Some(Amount::read(text()?, base)?),
            Key::StartDelay => self.start_delay = value::time(text()?)?,
            Key::Stonewall => self.stonewall = value::flag(value)?,
            Key::TimeBased => self.time_based = value::flag(value)?,
            Key::Verify => self.verify = verify(text()?)?,
            Key::ZeroBuffers => self.zeroes = value::flag(value)?,
        }
        Ok(())
    }

    /// Checks the constraints that involve several settings.
    fn check(&self) -> Result<(), &'static str> {
        let used =
            |rate: &[Option<u64>; 2]| rate.iter().zip(self.does).any(|(rate, does)| does && rate.is_some());
        if used(&self.rate) && used(&self.rate_iops) {
            return Err("rate and rate_iops exclude each other");
        }
        let one_sided = |rate: &[Option<u64>; 2]| rate[0].is_some() != rate[1].is_some();
        if self.does == [true, true] && (one_sided(&self.rate) || one_sided(&self.rate_iops)) {
            return Err(
                "a rate for one direction of a mixed job cannot be kept here: write a section for reads and one for writes",
            );
        }
        if self.number_ios.is_some() && self.block_sizes().fixed().is_none() {
            return Err("number_ios needs one block size");
        }
        Ok(())
    }

    /// Returns the section's requests that are carried out differently here, as sentences.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let name = &self.name;
        let engine = self.engine.as_deref().unwrap_or("psync");
        if self.queue_depth > 1 && SYNCHRONOUS.contains(&engine) {
            let depth = self.queue_depth;
            let default = if self.engine.is_none() { ", its default," } else { "" };
            notes.push(format!(
                "[{name}]: with ioengine={engine}{default} fio keeps 1 I/O in flight whatever iodepth says; here it is {depth}."
            ));
        }
        if self.time_based && self.runtime.is_none() {
            notes.push(format!("[{name}]: time_based without runtime has no effect, as with fio."));
        }
        if let Some(description) = &self.description {
            notes.push(format!("[{name}]: {description}"));
        }
        notes
    }

    /// Returns `true` if the section writes.
    pub(super) fn writes(&self) -> bool {
        self.does[1] && !(self.does[0] && self.read_percent == 100)
    }

    fn mix(&self) -> Mix {
        match self.does {
            [true, false] => Mix::READ,
            [false, _] => Mix::WRITE,
            [true, true] => Mix { read_percent: self.read_percent },
        }
    }

    fn block_sizes(&self) -> BlockSizes {
        let [read, write] =
            [0, 1].map(|direction| self.split[direction].as_ref().filter(|_| self.does[direction]));
        let [read_size, write_size] = self.block_size;
        let whole = |block_size| vec![Share { block_size, percent: 100 }];
        match (read, write, self.does) {
            (None, None, [true, false]) => BlockSizes::Fixed(read_size),
            (None, None, [false, _]) => BlockSizes::Fixed(write_size),
            (None, None, _) if read_size == write_size => BlockSizes::Fixed(read_size),
            (read, write, _) => BlockSizes::Split {
                read: read.cloned().unwrap_or_else(|| whole(read_size)),
                write: write.cloned().unwrap_or_else(|| whole(write_size)),
            },
        }
    }

    fn pattern(&self) -> Pattern {
        let plain = if self.random_map { Distribution::Once } else { Distribution::Uniform };
        match self.random {
            // A skewed distribution has no map with fio either.
            true => Pattern::Random(self.skew.unwrap_or(plain)),
            false => Pattern::Sequential,
        }
    }

    /// fio's rates are per direction, and where both are given they decide the mix. Ours is one, of both together.
    fn rate(&self, mix: Mix) -> Result<(Option<Rate>, Mix), &'static str> {
        let (values, make): (_, fn(u64) -> Rate) = match (self.rate, self.rate_iops) {
            ([None, None], iops) => (iops, Rate::Iops),
            (bytes, _) => (bytes, Rate::BytesPerSecond),
        };
        match (self.does, values) {
            ([true, true], [Some(read), Some(write)]) => {
                let share = |rate: u64, block: u32| match make(1) {
                    Rate::Iops(_) => rate as f64,
                    Rate::BytesPerSecond(_) => rate as f64 / f64::from(block),
                };
                if make(1) == Rate::BytesPerSecond(1) && self.split.iter().any(Option::is_some) {
                    return Err(
                        "a rate in bytes for each direction needs one block size for each: write rate_iops",
                    );
                }
                let (read_share, write_share) =
                    (share(read, self.block_size[0]), share(write, self.block_size[1]));
                let percent = 100.0 * read_share / (read_share + write_share);
                if (percent - percent.round()).abs() > 0.01 {
                    return Err("the two rates must stand to each other as whole per cents do");
                }
                let sum = read.checked_add(write).ok_or("the rates are more than any device does")?;
                Ok((Some(make(sum)), Mix { read_percent: percent.round() as u8 }))
            }
            ([true, false], [rate, _]) | ([false, _], [_, rate]) => Ok((rate.map(make), mix)),
            ([true, true], _) => Ok((None, mix)),
        }
    }

    /// The job on a device of that geometry, and what had to be said about it.
    pub(super) fn job(
        &self,
        geometry: &Geometry,
        destroy: bool,
    ) -> Result<(Job, Option<String>), JobFileError> {
        let problem = |why| JobFileError::Line {
            place: self.place.clone(),
            problem: Problem::Section { section: self.name.clone(), why },
        };
        let sector = u64::from(geometry.logical_sector.max(1));
        let (rate, mix) = self.rate(self.mix()).map_err(problem)?;
        let block_sizes = self.block_sizes();
        let offset = self.offset.of(geometry.size);
        let offset = match self.offset {
            Amount::Bytes(_) => offset,
            // fio aligns what a percentage gives, and only that.
            Amount::Percent(_) => offset / sector * sector,
        };
        let room = geometry.size.saturating_sub(offset);
        let asked = self.size.map_or(room, |size| size.of(geometry.size));
        let len = asked.min(room) / sector * sector;
        let short = (asked > room).then(|| {
            format!(
                "[{}]: size asks for {asked} bytes from offset {offset}; the device ends after {len}, and so does the job.",
                self.name
            )
        });
        let mut bytes = self.io_size.unwrap_or(len);
        if let (Some(count), Some(block)) = (self.number_ios, block_sizes.fixed()) {
            bytes = bytes.min(count.saturating_mul(block.into()));
        }
        let bytes = bytes.saturating_mul(self.loops);
        let limit = match (self.runtime, self.time_based) {
            (Some(time), true) => Limit::Time(time),
            (Some(time), false) => Limit::Either { time, bytes },
            (None, _) => Limit::Bytes(bytes),
        };
        let seed = match self.seed {
            Some(seed) => seed,
            None if self.repeatable => SEED.wrapping_add(self.index),
            None => random_seed(),
        };
        let job = Job {
            pattern: self.pattern(),
            mix,
            block_sizes,
            queue_depth: self.queue_depth,
            jobs: self.jobs,
            limit,
            ramp: self.ramp,
            rate,
            arrivals: self.arrivals,
            region: Some(Region { offset, len }),
            seed,
            verify: self.verify,
            fill: if self.zeroes { Fill::Zero } else { Fill::Random },
            destroy,
            ..Job::new(self.name.clone())
        };
        job.check(geometry).map_err(|source| JobFileError::Job {
            place: self.place.clone(),
            name: self.name.clone(),
            source,
        })?;
        Ok((job, short))
    }
}

/// Puts what a value says of each direction into its place.
fn each<T>(
    texts: [Option<&str>; 2],
    places: &mut [T; 2],
    read: impl Fn(&str) -> Result<T, Wanted>,
) -> Result<(), Wanted> {
    for (text, place) in texts.into_iter().zip(places) {
        if let Some(text) = text {
            *place = read(text)?;
        }
    }
    Ok(())
}

/// fio takes a rate of 0 for none.
fn nonzero(rate: u64) -> Option<u64> {
    Some(rate).filter(|&rate| rate > 0)
}

fn number(text: &str) -> Result<u32, Wanted> {
    u32::try_from(value::count(text)?).map_err(|_| "that is too many")
}

fn block_size(text: &str, base: KbBase) -> Result<u32, Wanted> {
    u32::try_from(value::size(text, base)?).map_err(|_| "no I/O is that large")
}

fn access(text: &str) -> Result<(bool, [bool; 2]), Wanted> {
    Ok(match text {
        "read" => (false, [true, false]),
        "write" => (false, [false, true]),
        "rw" | "readwrite" => (false, [true, true]),
        "randread" => (true, [true, false]),
        "randwrite" => (true, [false, true]),
        "randrw" => (true, [true, true]),
        "trim" | "randtrim" | "trimwrite" | "randtrimwrite" => return Err("trims are not measured here"),
        text if text.contains(':') => {
            return Err("a number behind rw (holes, or several I/Os at one address) cannot be honoured");
        }
        _ => return Err("read, write, rw, randread, randwrite or randrw is wanted"),
    })
}

fn verify(text: &str) -> Result<bool, Wanted> {
    const CHECKS: [&str; 19] = [
        "1",
        "md5",
        "crc64",
        "crc32c",
        "crc32c-intel",
        "crc32",
        "crc16",
        "crc7",
        "xxhash",
        "sha512",
        "sha256",
        "sha1",
        "sha3-224",
        "sha3-256",
        "sha3-384",
        "sha3-512",
        "meta",
        "pattern",
        "pattern_hdr",
    ];
    match text {
        "0" | "null" => Ok(false),
        _ if CHECKS.contains(&text) => Ok(true),
        _ => Err(
            "the name of one of fio's checks is wanted, as crc32c; whichever it is, blocks carry stamps here",
        ),
    }
}

/// `None`: uniform.
fn distribution(text: &str) -> Result<Option<Distribution>, Wanted> {
    let (kind, figures) = text.split_once(':').unwrap_or((text, ""));
    if matches!(kind, "normal" | "zoned" | "zoned_abs") {
        return Err("of the distributions random, zipf and pareto are offered here");
    }
    if figures.contains(':') {
        return Err(
            "a centre for the distribution is not offered here: hot blocks are spread over the region",
        );
    }
    let figure = |default| match figures {
        "" => Ok(default),
        text => text.parse().map_err(|_| "a number is wanted behind the colon, as in zipf:1.2"),
    };
    Ok(match kind {
        "random" => None,
        "zipf" => Some(Distribution::Zipf(figure(ZIPF)?)),
        "pareto" => Some(Distribution::Pareto(figure(PARETO)?)),
        _ => return Err("random, zipf:THETA or pareto:H is wanted"),
    })
}

fn splits(text: &str, base: KbBase) -> Result<[Option<Vec<Share>>; 2], Wanted> {
    let mut splits = [None, None];
    each(value::directions(text)?, &mut splits, |text| split(text, base).map(Some))?;
    Ok(splits)
}

/// `4k/60:8k/40`; what has no percentage shares what is left.
fn split(text: &str, base: KbBase) -> Result<Vec<Share>, Wanted> {
    const WRONG: Wanted = "sizes with percentages that make 100 together are wanted, as in 4k/60:8k/40";
    let mut entries = Vec::new();
    for entry in text.split(':').take(65) {
        let (size, share) = entry.split_once('/').unwrap_or((entry, ""));
        let share = if share.is_empty() { None } else { Some(value::percent(share)?) };
        entries.push((block_size(size.trim(), base)?, share));
    }
    let given: u32 = entries.iter().filter_map(|entry| entry.1).map(u32::from).sum();
    let open = entries.iter().filter(|entry| entry.1.is_none()).count() as u32;
    let left = 100u32.checked_sub(given).ok_or(WRONG)?;
    if entries.len() > 64 || open == 0 && left > 0 {
        return Err(WRONG);
    }
    let mut rest = left.checked_rem(open).unwrap_or(0);
    let shares = entries.into_iter().map(|(block_size, share)| {
        let percent = share.unwrap_or_else(|| {
            let one_more = u32::from(rest > 0);
            rest -= one_more;
            (left / open + one_more) as u8
        });
        Share { block_size, percent }
    });
    Ok(shares.collect())
}

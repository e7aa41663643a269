//! The `SPEC` of `fault:SPEC:DEVICE`.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use crate::BlockError;
use crate::size::{ExactSize, SizeError, parse_size};

/// Rules per spec: each costs a comparison per operation.
const RULES_MAX: usize = 16;

/// Specification of the faults of a device.
///
/// ```text
/// SPEC    = ITEM *( "," ITEM )                 no ':' anywhere, no ',' in a path
/// ITEM    = RULE | "error=" ERROR | "file=" PATH | "seed=" NUMBER
/// RULE    = OP [ "=" RATE ] [ "@" FROM "-" [ TO ] ]
/// OP      = "read" | "write" | "flush" | "unmap" | "corrupt"
/// RATE    = probability, 0 to 1; without it every operation
/// FROM-TO = sizes: operations that touch a byte from FROM up to, not including, TO (or the end)
/// ERROR   = "medium" | "nospace" | "busy" | "gone" | "timeout" | "aborted"
/// ```
///
/// - `read`, `write`, `flush`, `unmap` fail with the error (default `medium`), and the device does not see
///   them; `write` includes zeroing.
/// - `corrupt` lets a read succeed with one byte wrong: what checksums and `--verify` are for.
/// - `file=PATH`: nothing happens except while that file exists.
/// - `seed=N`: the same operations in the same order meet the same fate; default 0.
///
/// `read=0.01` · `write@1M-2M` · `corrupt=0.001,seed=7` · `read,write,error=gone,file=/tmp/trip`
#[derive(Clone, Debug, PartialEq)]
pub struct FaultSpec {
    /// At least one.
    pub rules: Vec<FaultRule>,
    /// Error with which operations fail.
    pub error: FaultError,
    /// Active only while this exists.
    pub file: Option<PathBuf>,
    /// Start of the generator.
    pub seed: u64,
}

/// Rule for one kind of fault.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    /// Operation and its kind of fault.
    pub op: FaultOp,
    /// Probability, 0 to 1.
    pub rate: f64,
    /// Only operations that touch these bytes; flushes touch all.
    pub range: Option<Range<u64>>,
}

/// Operation to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Reads fail.
    Read,
    /// Writes and zeroing fail.
    Write,
    /// Flushes fail.
    Flush,
    /// Unmaps fail.
    Unmap,
    /// Reads succeed with one byte wrong.
    Corrupt,
}

const OPS: [(&str, FaultOp); 5] = [
    ("read", FaultOp::Read),
    ("write", FaultOp::Write),
    ("flush", FaultOp::Flush),
    ("unmap", FaultOp::Unmap),
    ("corrupt", FaultOp::Corrupt),
];

/// Error with which operations fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultError {
    /// [`BlockError::Medium`] at the first byte that the rule covers.
    #[default]
    Medium,
    /// [`BlockError::NoSpace`].
    NoSpace,
    /// [`BlockError::Busy`].
    Busy,
    /// [`BlockError::Gone`].
    Gone,
    /// [`BlockError::Timeout`], without the wait.
    Timeout,
    /// [`BlockError::Aborted`].
    Aborted,
}

const ERRORS: [(&str, FaultError); 6] = [
    ("medium", FaultError::Medium),
    ("nospace", FaultError::NoSpace),
    ("busy", FaultError::Busy),
    ("gone", FaultError::Gone),
    ("timeout", FaultError::Timeout),
    ("aborted", FaultError::Aborted),
];

impl FaultError {
    /// The error for an operation whose first covered byte is `offset`.
    pub fn at(self, offset: u64) -> BlockError {
        match self {
            Self::Medium => BlockError::Medium { offset },
            Self::NoSpace => BlockError::NoSpace,
            Self::Busy => BlockError::Busy,
            Self::Gone => BlockError::gone("injected fault"),
            Self::Timeout => BlockError::late(std::time::Duration::ZERO),
            Self::Aborted => BlockError::lost(),
        }
    }
}

/// Reason why a text is not a [`FaultSpec`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultSpecError {
    /// Nothing there, or nothing but settings.
    #[error(
        "no fault is named: expected read, write, flush, unmap or corrupt, such as read=0.01 or write@1M-2M"
    )]
    NoRule,
    /// More than anybody needs.
    #[error("more than {RULES_MAX} faults are named")]
    TooManyRules,
    /// A word that means nothing.
    #[error("`{item}` is not a fault: expected read, write, flush, unmap, corrupt, error=, file= or seed=")]
    UnknownItem {
        /// The word.
        item: String,
    },
    /// A rate outside 0 to 1, or no number.
    #[error("`{rate}` is not a rate: expected a probability from 0 to 1, such as 0.01")]
    Rate {
        /// Text given.
        rate: String,
    },
    /// A range that is not `FROM-TO`, or empty.
    #[error(
        "`@{range}` is not a range: expected @FROM-TO with FROM below TO, such as @1M-2M, or @FROM- to the end"
    )]
    Range {
        /// Text given.
        range: String,
    },
    /// A bound of a range that is no size.
    #[error("in a range: {0}")]
    Size(#[from] SizeError),
    /// An error that does not exist.
    #[error("`{error}` is not an error: expected medium, nospace, busy, gone, timeout or aborted")]
    Error {
        /// Text given.
        error: String,
    },
    /// `file=` without a path.
    #[error("`file=` needs a path behind it")]
    EmptyFile,
    /// A seed that is no number.
    #[error("`{seed}` is not a seed: expected a whole number")]
    Seed {
        /// Text given.
        seed: String,
    },
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        let mut spec = Self { rules: Vec::new(), error: FaultError::default(), file: None, seed: 0 };
        for item in text.split(',').filter(|item| !item.is_empty()) {
            match item.split_once('=') {
                Some(("error", name)) => {
                    spec.error = named(&ERRORS, name).ok_or_else(|| wrong_error(name))?;
                }
                Some(("file", "")) => return Err(FaultSpecError::EmptyFile),
                Some(("file", path)) => spec.file = Some(path.into()),
                Some(("seed", seed)) => {
                    spec.seed = seed.parse().map_err(|_| FaultSpecError::Seed { seed: seed.to_owned() })?;
                }
                _ if spec.rules.len() == RULES_MAX => return Err(FaultSpecError::TooManyRules),
                _ => spec.rules.push(item.parse()?),
            }
        }
        if spec.rules.is_empty() { Err(FaultSpecError::NoRule) } else { Ok(spec) }
    }
}

fn wrong_error(name: &str) -> FaultSpecError {
    FaultSpecError::Error { error: name.to_owned() }
}

fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name)
}

impl FromStr for FaultRule {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        let (head, range) = text.split_once('@').map_or((text, None), |(head, range)| (head, Some(range)));
        let (name, rate) = head.split_once('=').map_or((head, None), |(name, rate)| (name, Some(rate)));
        let op = named(&OPS, name).ok_or_else(|| FaultSpecError::UnknownItem { item: text.to_owned() })?;
        let rate = match rate {
            None => 1.0,
            Some(text) => match text.parse() {
                Ok(rate) if (0.0..=1.0).contains(&rate) => rate,
                _ => return Err(FaultSpecError::Rate { rate: text.to_owned() }),
            },
        };
        Ok(Self { op, rate, range: range.map(parse_range).transpose()? })
    }
}

fn parse_range(text: &str) -> Result<Range<u64>, FaultSpecError> {
    let wrong = || FaultSpecError::Range { range: text.to_owned() };
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let from = parse_size(from)?;
    let to = if to.is_empty() { u64::MAX } else { parse_size(to)? };
    if from < to { Ok(from..to) } else { Err(wrong()) }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            write!(f, "{}{rule}", if index == 0 { "" } else { "," })?;
        }
        if self.error != FaultError::default() {
            write!(f, ",error={}", name_of(&ERRORS, &self.error))?;
        }
        if let Some(file) = &self.file {
            write!(f, ",file={}", file.display())?;
        }
        if self.seed != 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&OPS, &self.op))?;
        if self.rate < 1.0 {
            write!(f, "={}", self.rate)?;
        }
        match &self.range {
            None => Ok(()),
            Some(range) if range.end == u64::MAX => write!(f, "@{}-", ExactSize(range.start)),
            Some(range) => write!(f, "@{}-{}", ExactSize(range.start), ExactSize(range.end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_read_and_printed_back() {
        for text in [
            "read",
            "read=0.01",
            "write@1M-2M",
            "corrupt=0.001@0-64K",
            "flush=0.5,unmap@1G-",
            "read,write=0.25,error=gone,file=/tmp/trip,seed=7",
        ] {
            assert_eq!(text.parse::<FaultSpec>().unwrap().to_string(), text);
        }
        let spec: FaultSpec = "seed=9,write=1@4K-8K,file=/t".parse().unwrap();
        assert_eq!(spec.rules, [FaultRule { op: FaultOp::Write, rate: 1.0, range: Some(4096..8192) }]);
        assert_eq!((spec.seed, spec.file), (9, Some("/t".into())));
    }

    #[test]
    fn errors_say_what_was_expected() {
        for (text, part) in [
            ("", "no fault is named"),
            ("seed=1", "no fault is named"),
            ("reed", "`reed` is not a fault"),
            ("read=2", "`2` is not a rate"),
            ("read=NaN", "`NaN` is not a rate"),
            ("read=", "`` is not a rate"),
            ("read@1M", "`@1M` is not a range"),
            ("read@2M-1M", "`@2M-1M` is not a range"),
            ("read@x-1M", "`x` is not a size"),
            ("read,error=bad", "`bad` is not an error"),
            ("read,file=", "needs a path"),
            ("read,seed=x", "`x` is not a seed"),
            (
                "read,read,read,read,read,read,read,read,read,read,read,read,read,read,read,read,read",
                "more than 16",
            ),
        ] {
            let error = text.parse::<FaultSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

//! The form of an experiment's file.

use std::io;
use std::path::Path;
use std::time::Duration;

use lunway_bench::RwMode;
use lunway_block::duration::parse_duration;
use lunway_block::size::parse_size;
use lunway_block::small_file;
use serde::{Deserialize, Deserializer};

use super::check;
use crate::experiment::plan::run::{Arm, BackupWay, CutKind, Plan};
use crate::experiment::{Experiment, ExperimentError, SHIPPED};
use crate::timeline::{Flap, NewDelay, NewLoss, Slow};
use crate::topology::{Cable, Host, Switch};

/// The longest file, bytes: hundreds of runs fit in.
const LENGTH_MAX: usize = 1 << 20;

/// A file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileTable {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) title: Option<String>,
    #[serde(default)]
    pub(crate) about: String,
    #[serde(default = "repeat_default")]
    pub(crate) repeat: u32,
    #[serde(default, rename = "host")]
    pub(crate) hosts: Vec<Host>,
    #[serde(default, rename = "switch")]
    pub(crate) switches: Vec<Switch>,
    #[serde(default, rename = "cable")]
    pub(crate) cables: Vec<Cable>,
    #[serde(default, rename = "run")]
    pub(crate) runs: Vec<RunTable>,
    #[serde(default, rename = "figure")]
    pub(crate) figures: Vec<FigureTable>,
    #[serde(default, rename = "verdict")]
    pub(crate) verdicts: Vec<VerdictTable>,
}

fn repeat_default() -> u32 {
    3
}

/// One `[[run]]` table. The check decides which keys belong to which measure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunTable {
    pub(crate) test: String,
    #[serde(default)]
    pub(crate) topology: Option<String>,
    #[serde(default)]
    pub(crate) measure: MeasureName,
    #[serde(default)]
    pub(crate) control: bool,
    #[serde(default)]
    pub(crate) from: Option<String>,
    #[serde(default)]
    pub(crate) target: Option<String>,
    #[serde(default)]
    pub(crate) paths: Option<OneOrMore<String>>,
    #[serde(default)]
    pub(crate) plan: Option<Plan>,
    #[serde(default)]
    pub(crate) policy: Option<OneOrMore<String>>,
    #[serde(default)]
    pub(crate) team: Option<bool>,
    #[serde(default)]
    pub(crate) sessions: Option<u16>,

    #[serde(default)]
    pub(crate) lun: Option<u16>,
    #[serde(default)]
    pub(crate) rw: Option<OneOrMore<RwMode>>,
    #[serde(default)]
    pub(crate) bs: Option<Size>,
    #[serde(default)]
    pub(crate) qd: Option<u32>,
    #[serde(default)]
    pub(crate) time: Option<Time>,
    #[serde(default)]
    pub(crate) ramp: Option<Time>,
    #[serde(default)]
    pub(crate) size: Option<Size>,
    #[serde(default)]
    pub(crate) mix: Option<u8>,
    #[serde(default)]
    pub(crate) verify: Option<bool>,
    #[serde(default, rename = "event")]
    pub(crate) events: Option<Vec<EventTable>>,

    #[serde(default)]
    pub(crate) window: Option<OneOrMore<String>>,
    #[serde(default)]
    pub(crate) mtu: Option<OneOrMore<u32>>,
    #[serde(default)]
    pub(crate) delay: Option<OneOrMore<Time>>,
    #[serde(default)]
    pub(crate) streams: Option<u32>,

    #[serde(default)]
    pub(crate) way: Option<BackupWay>,
    #[serde(default)]
    pub(crate) changed: Option<String>,
    #[serde(default)]
    pub(crate) cut: Option<CutTable>,
    #[serde(default)]
    pub(crate) patience: Option<Time>,
    #[serde(default)]
    pub(crate) write_behind: Option<bool>,

    #[serde(default, rename = "arm")]
    pub(crate) arms: Option<Vec<Arm>>,
    #[serde(default)]
    pub(crate) pairs: Option<u32>,
    #[serde(default)]
    pub(crate) rounds: Option<u32>,
    #[serde(default)]
    pub(crate) margin: Option<f64>,
}

/// Kind of measurement of a run.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MeasureName {
    /// I/O.
    #[default]
    Storage,
    /// Bare TCP.
    Net,
    /// Logical units against each other.
    Compare,
    /// A disk backed up into a share.
    Backup,
}

/// A `cut` of a run.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CutTable {
    pub(crate) kind: CutKind,
    pub(crate) at: String,
    pub(crate) time: Time,
}

/// One `[[run.event]]` table.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventTable {
    pub(crate) at: String,
    #[serde(default)]
    pub(crate) pull: Option<String>,
    #[serde(default)]
    pub(crate) plug: Option<String>,
    #[serde(default)]
    pub(crate) black_hole: Option<String>,
    #[serde(default)]
    pub(crate) clear: Option<String>,
    #[serde(default)]
    pub(crate) slow: Option<Slow>,
    #[serde(default)]
    pub(crate) delay: Option<NewDelay>,
    #[serde(default)]
    pub(crate) loss: Option<NewLoss>,
    #[serde(default)]
    pub(crate) flap: Option<Flap>,
    #[serde(default)]
    pub(crate) stop: Option<String>,
    #[serde(default)]
    pub(crate) start: Option<String>,
}

/// One `[[figure]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FigureTable {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// One `[[verdict]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerdictTable {
    #[serde(default)]
    pub(crate) each: Option<String>,
    pub(crate) when: OneOrMore<String>,
    pub(crate) good: String,
    pub(crate) bad: String,
}

/// `key = value` or `key = [value, …]`.
#[derive(Clone)]
pub(crate) struct OneOrMore<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Either<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<T>, E> {
                T::deserialize(serde::de::value::StrDeserializer::new(text)).map(|value| vec![value])
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Vec<T>, E> {
                T::deserialize(serde::de::value::I64Deserializer::new(number)).map(|value| vec![value])
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(values)
            }
        }
        deserializer.deserialize_any(Either(std::marker::PhantomData)).map(Self)
    }
}

/// A size in the device grammar's notation.
#[derive(Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parse_size(&String::deserialize(deserializer)?).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A time in the device grammar's notation.
#[derive(Clone, Copy)]
pub(crate) struct Time(pub(crate) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parse_duration(&String::deserialize(deserializer)?).map(Self).map_err(serde::de::Error::custom)
    }
}

impl Experiment {
    /// The shipped experiment of that name, or the one in that file.
    ///
    /// # Errors
    ///
    /// [`ExperimentError`], a sentence that names the file, the table and the key.
    pub fn open(name_or_file: &str) -> Result<Self, ExperimentError> {
        if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name_or_file) {
            return shipped.experiment();
        }
        let path = Path::new(name_or_file);
        if path.extension().is_none_or(|extension| extension != "toml") && !path.is_file() {
            let shipped: Vec<_> = SHIPPED.iter().map(|shipped| shipped.name).collect();
            return Err(ExperimentError::Unknown {
                name: name_or_file.to_owned(),
                shipped: shipped.join(", "),
            });
        }
        let file = name_or_file.to_owned();
        match small_file::read_text(path, LENGTH_MAX as u64) {
            Ok(text) => Self::parse(&file, &text),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(ExperimentError::TooLong { file, limit: LENGTH_MAX })
            }
            Err(source) => Err(ExperimentError::Read { file, source }),
        }
    }

    /// Reads and checks an experiment; `file` is what errors call it.
    ///
    /// # Errors
    ///
    /// [`ExperimentError`], a sentence that names the file, the table and the key.
    pub fn parse(file: &str, text: &str) -> Result<Self, ExperimentError> {
        if text.len() > LENGTH_MAX {
            return Err(ExperimentError::TooLong { file: file.to_owned(), limit: LENGTH_MAX });
        }
        let table: FileTable = toml::from_str(text).map_err(|error| syntax(file, text, &error))?;
        check::experiment(file, text, table)
    }
}

/// Says where in the file it is, in the words of the file.
fn syntax(file: &str, text: &str, error: &toml::de::Error) -> ExperimentError {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count();
    // What the file lacks outside its tables has an empty span at its start.
    let is_of_file = error.span().is_none_or(|span| span.end == 0);
    // The line that it is in may be the header itself.
    let headers = text.lines().take(line + 1).filter(|line| line.trim_start().starts_with('['));
    let table = headers
        .last()
        .filter(|_| !is_of_file)
        .and_then(|header| Some(header[..=header.rfind(']')?].trim().to_owned()));
    ExperimentError::Syntax {
        file: file.to_owned(),
        line: line + 1,
        table: table.map_or(String::new(), |table| format!(", in {table}")),
        message: error.message().trim().replace('\n', ", "),
    }
}

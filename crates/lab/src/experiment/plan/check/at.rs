//! Location of an error in a file, and the checks that apply everywhere.

use std::fmt::Display;
use std::time::Duration;

use lunway_block::duration::ExactDuration;
use lunway_block::size::ExactSize;

use crate::experiment::plan::error::{ExperimentError, Problem};
use crate::topology::Topology;

/// The longest measurement.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// Location in a file.
pub(super) struct At<'a> {
    pub(super) file: &'a str,
    pub(super) table: String,
}

impl At<'_> {
    pub(super) fn wrong(&self, key: &'static str, problem: impl Into<Problem>) -> ExperimentError {
        ExperimentError::Meaning {
            file: self.file.to_owned(),
            table: self.table.clone(),
            key,
            problem: Box::new(problem.into()),
        }
    }

    pub(super) fn name(&self, key: &'static str, name: &str) -> Result<(), ExperimentError> {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if name.is_empty() || name.len() > 40 || !plain {
            return Err(self.wrong(key, Problem::Name(name.chars().take(60).collect())));
        }
        Ok(())
    }

    pub(super) fn range<T: PartialOrd + Display>(
        &self,
        key: &'static str,
        value: T,
        limits: std::ops::RangeInclusive<T>,
    ) -> Result<T, ExperimentError> {
        if limits.contains(&value) {
            return Ok(value);
        }
        let limits = format!("from {} to {}", limits.start(), limits.end());
        Err(self.wrong(key, Problem::Range { value: value.to_string(), limits }))
    }

    pub(super) fn time(
        &self,
        key: &'static str,
        time: Duration,
        least: Duration,
    ) -> Result<Duration, ExperimentError> {
        if (least..=TIME_MAX).contains(&time) {
            return Ok(time);
        }
        let limits = format!("from {} to {}", ExactDuration(least), ExactDuration(TIME_MAX));
        Err(self.wrong(key, Problem::Range { value: ExactDuration(time).to_string(), limits }))
    }

    pub(super) fn size(
        &self,
        key: &'static str,
        size: u64,
        least: u64,
        most: u64,
    ) -> Result<u64, ExperimentError> {
        if (least..=most).contains(&size) {
            return Ok(size);
        }
        let limits = format!("from {} to {}", ExactSize(least), ExactSize(most));
        Err(self.wrong(key, Problem::Range { value: ExactSize(size).to_string(), limits }))
    }

    pub(super) fn no_such<'a>(
        &self,
        key: &'static str,
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> ExperimentError {
        let known: Vec<_> = known.into_iter().take(12).collect();
        let known = if known.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there is {}", known.join(", "))
        };
        self.wrong(key, Problem::NoSuch { what, name: name.to_owned(), known })
    }

    pub(super) fn cable(
        &self,
        key: &'static str,
        topology: &Topology,
        name: &str,
    ) -> Result<(), ExperimentError> {
        match topology.cable(name) {
            Some(_) => Ok(()),
            None => {
                let known = topology.cables.iter().map(|cable| cable.name.as_str());
                Err(self.no_such(key, "cable", name, known))
            }
        }
    }

    /// The host of that name, or the only one that can be meant.
    pub(super) fn host(
        &self,
        key: &'static str,
        topology: &Topology,
        name: Option<String>,
        serves: bool,
    ) -> Result<String, ExperimentError> {
        let names = || topology.hosts.iter().map(|host| host.name.as_str());
        match name {
            Some(name) if topology.host(&name).is_none() => Err(self.no_such(key, "host", &name, names())),
            Some(name) => Ok(name),
            None => {
                let mut fitting = topology.hosts.iter().filter(|host| host.luns.is_empty() != serves);
                match (fitting.next(), fitting.next()) {
                    (Some(host), None) => Ok(host.name.clone()),
                    _ => Err(self.wrong(
                        key,
                        Problem::Missing(if serves {
                            "not exactly one host has luns, so say which one is meant"
                        } else {
                            "not exactly one host has no luns, so say which one is meant"
                        }),
                    )),
                }
            }
        }
    }
}

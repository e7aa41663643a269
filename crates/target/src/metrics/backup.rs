//! Results of backup runs of logical units, as their commands report them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Destinations of one logical unit whose results are kept: a bound, since names come from outside. The one whose
/// newest report is the oldest gives way.
const DESTINATIONS_MAX: usize = 16;

/// Result of one backup run of a logical unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupReport {
    /// The folder that the points are in.
    pub destination: String,
    /// The point that was made; null: none.
    #[serde(default)]
    pub point: Option<BackupPoint>,
    /// Reason why none was made; null: one was.
    #[serde(default)]
    pub error: Option<String>,
}

/// A point that a backup run made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupPoint {
    /// Its id.
    pub point: String,
    /// It is a full backup, not an increment.
    pub full: bool,
    /// Reason why it is that.
    pub why: String,
    /// Bytes that differ from the point before.
    pub changed_bytes: u64,
    /// Bytes that were read from the logical unit.
    pub read_bytes: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Bytes that the point takes at the destination.
    pub stored_bytes: u64,
    /// Duration of the run, seconds.
    pub seconds: f64,
}

/// Backup runs of a logical unit into one destination since the daemon was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackupReading {
    /// The target's name.
    pub target: String,
    /// The logical unit's number.
    pub lun: u16,
    /// The folder that the points are in.
    pub destination: String,
    /// Runs that made a point.
    pub succeeded: u64,
    /// Runs that were reported and made none.
    pub failed: u64,
    /// The end of the last run that made a point, seconds since 1970; null: there was none.
    pub last_success: Option<u64>,
    /// The point that it made; null: there was none.
    pub last_point: Option<BackupPoint>,
    /// Reason why the last run made no point; null: it made one.
    pub error: Option<String>,
}

/// Backup runs of all logical units.
#[derive(Debug, Default)]
pub(super) struct Backups {
    by_lun: BTreeMap<(String, u16), Vec<BackupReading>>,
}

impl Backups {
    /// A run has ended now, in seconds since 1970.
    pub(super) fn ended(&mut self, target: &str, lun: u16, report: BackupReport, now: u64) -> BackupReading {
        let readings = self.by_lun.entry((target.to_owned(), lun)).or_default();
        let before = readings.iter().position(|reading| reading.destination == report.destination);
        let mut reading = match before {
            Some(index) => readings.remove(index),
            None => BackupReading {
                target: target.to_owned(),
                lun,
                destination: report.destination,
                succeeded: 0,
                failed: 0,
                last_success: None,
                last_point: None,
                error: None,
            },
        };
        if let Some(point) = report.point {
            reading.succeeded += 1;
            (reading.last_success, reading.last_point, reading.error) = (Some(now), Some(point), None);
        } else {
            reading.failed += 1;
            reading.error = Some(report.error.unwrap_or_else(|| "no reason was given".to_owned()));
        }
        // In the order of their reports.
        if readings.len() >= DESTINATIONS_MAX {
            readings.remove(0);
        }
        readings.push(reading.clone());
        reading
    }

    /// Forgets logical units that are no longer served.
    pub(super) fn forget(&mut self, gone: impl Fn(&str, u16) -> bool) {
        self.by_lun.retain(|(target, lun), _| !gone(target, *lun));
    }

    /// By logical unit and destination.
    pub(super) fn readings(&self) -> Vec<BackupReading> {
        let mut readings: Vec<BackupReading> = self.by_lun.values().flatten().cloned().collect();
        readings.sort_by(|one, other| {
            let key =
                |reading: &BackupReading| (reading.target.clone(), reading.lun, reading.destination.clone());
            key(one).cmp(&key(other))
        });
        readings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(destination: &str, point: Option<u64>) -> BackupReport {
        let point = point.map(|sent_bytes| BackupPoint {
            point: "p".to_owned(),
            full: true,
            why: "it is the first".to_owned(),
            changed_bytes: 1,
            read_bytes: 2,
            sent_bytes,
            stored_bytes: 4,
            seconds: 5.0,
        });
        let error = point.is_none().then(|| "the destination is full".to_owned());
        BackupReport { destination: destination.to_owned(), point, error }
    }

    #[test]
    fn a_failure_keeps_what_is_known_of_the_last_success() {
        let mut backups = Backups::default();
        backups.ended("t", 0, report("/a", Some(7)), 100);
        let reading = backups.ended("t", 0, report("/a", None), 200);
        assert_eq!((reading.succeeded, reading.failed, reading.last_success), (1, 1, Some(100)));
        assert_eq!(reading.last_point.unwrap().sent_bytes, 7);
        assert_eq!(reading.error.unwrap(), "the destination is full");
        let reading = backups.ended("t", 0, report("/a", Some(8)), 300);
        assert_eq!((reading.succeeded, reading.last_success, reading.error), (2, Some(300), None));
        backups.forget(|_, lun| lun == 0);
        assert_eq!(backups.readings(), []);
    }

    #[test]
    fn the_destination_that_was_silent_for_longest_gives_way() {
        let mut backups = Backups::default();
        for number in 0..DESTINATIONS_MAX {
            backups.ended("t", 0, report(&format!("/{number:02}"), Some(1)), 1);
        }
        backups.ended("t", 0, report("/00", Some(1)), 2);
        backups.ended("t", 0, report("/new", Some(1)), 3);
        let readings = backups.readings();
        assert_eq!(readings.len(), DESTINATIONS_MAX);
        let there = |name: &str| readings.iter().any(|reading| reading.destination == name);
        assert!(there("/00") && there("/new") && !there("/01"));
    }
}

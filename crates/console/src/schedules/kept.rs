//! What is known of schedules, in a file of the state directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use lunway_block::small_file;
use lunway_schedule::{Moment, Record};
use lunway_target::{BACKUPS_FILE, BackupConfig, BackupSource};
use serde::{Deserialize, Serialize};

use super::{InterruptedRun, RunPoint, RunResult};
use crate::replace::replace;

/// Longest file that is read, bytes: a thousand schedules with results of 4 KiB.
const FILE_MAX: u64 = 4 << 20;

/// What is known of one schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) record: Record,
    #[serde(default)]
    pub(super) last: Option<RunResult>,
    #[serde(default)]
    pub(super) last_success: Option<i64>,
    #[serde(default)]
    pub(super) newest: Option<NewestPoint>,
    /// Name of the due time of the last run that has begun. Its point has it.
    #[serde(default)]
    pub(super) due: Option<String>,
    /// When the schedule was seen first, seconds since 1970; `None`: it was not recorded.
    #[serde(default)]
    pub(super) known_since: Option<i64>,
}

/// The newest point that a schedule has made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NewestPoint {
    pub(super) source: BackupSource,
    pub(super) destination: PathBuf,
    pub(super) point: RunPoint,
    /// When it was there, seconds since 1970.
    pub(super) made: i64,
    /// The run that made it, or one that is made again for it, has not succeeded: what it still has to do is to remove
    /// those that are not kept.
    pub(super) is_to_be_pruned: bool,
}

impl NewestPoint {
    /// The point of the due time of a run that is made again, if it was made where the run would make it.
    pub(super) fn of_due_time(&self, backup: &BackupConfig) -> Option<RunPoint> {
        let is_there = self.source == backup.source && self.destination == backup.destination;
        (is_there && self.is_to_be_pruned).then(|| self.point.clone())
    }
}

impl Known {
    /// Nothing but a record, from now on.
    pub(super) fn new(record: Record, now: Moment) -> Self {
        let known_since = Some(now.wall_ms / 1000);
        Self { record, last: None, last_success: None, newest: None, due: None, known_since }
    }

    /// It tells of times that have not come: the clock was ahead.
    pub(super) fn is_of_the_future(&self, now: Moment) -> bool {
        let mut copy = self.clone();
        let mut is_of_the_future = self.record.is_of_the_future(now);
        copy.each_time(|time| is_of_the_future |= now.is_long_before(time.saturating_mul(1000)));
        is_of_the_future
    }

    /// The same with times that have not come taken for now. What that makes of the record is known to its job.
    pub(super) fn until(mut self, now: Moment, of_job: Record) -> Self {
        self.each_time(|time| {
            if now.is_long_before(time.saturating_mul(1000)) {
                *time = now.wall_ms / 1000;
            }
        });
        // A run that ended with the daemon is shown as such, also if it is not made again.
        self.record = Record { attempts: self.record.attempts, ..of_job };
        self
    }

    /// All times beside those of the record, seconds since 1970.
    fn each_time(&mut self, see: impl FnMut(&mut i64)) {
        let last = self.last.as_mut().map(|last| &mut last.begun);
        let newest = self.newest.as_mut().map(|newest| &mut newest.made);
        let times = [last, newest, self.last_success.as_mut(), self.known_since.as_mut()];
        times.into_iter().flatten().for_each(see);
    }

    /// The run that has begun and not ended, of a schedule of which none is under way: it ended with the daemon.
    pub(super) fn interrupted(&self) -> Option<InterruptedRun> {
        let begun = self.record.begun_ms.filter(|_| self.record.attempts > 0)?;
        Some(InterruptedRun { begun: begun / 1000, times: self.record.attempts })
    }
}

/// All that is known, and the file that it is kept in.
///
/// The file is replaced whole. One that cannot be read is as none: schedules are new then.
pub(super) struct Kept {
    file: Option<PathBuf>,
    known: BTreeMap<String, Known>,
}

#[derive(Default, Serialize, Deserialize)]
struct Document {
    schedules: BTreeMap<String, Known>,
}

impl Kept {
    pub(super) fn load(folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join(BACKUPS_FILE));
        let read = file.as_deref().map_or_else(|| Ok(Document::default()), read);
        let known = read.unwrap_or_else(|error| {
            let file = file.as_deref().unwrap_or(Path::new("")).display();
            tracing::warn!("{file} cannot be read, and when backups were made last is not known: {error}");
            Document::default()
        });
        Self { file, known: known.schedules }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Known> {
        self.known.get(name)
    }

    /// Runs that ended with the daemon of before.
    pub(super) fn interrupted(&self) -> impl Iterator<Item = (&String, InterruptedRun)> {
        self.known.iter().filter_map(|(name, known)| Some((name, known.interrupted()?)))
    }

    /// Keeps this of a schedule, and nothing of those that are not wanted. It is durable when this returns.
    pub(super) fn keep(&mut self, name: &str, known: Known, is_wanted: impl Fn(&str) -> bool) {
        self.keep_all([(name.to_owned(), known)], is_wanted);
    }

    /// The same of several, at once.
    pub(super) fn keep_all(
        &mut self,
        known: impl IntoIterator<Item = (String, Known)>,
        is_wanted: impl Fn(&str) -> bool,
    ) {
        self.known.extend(known);
        self.known.retain(|name, _| is_wanted(name));
        let Some(file) = &self.file else { return };
        let document = Document { schedules: self.known.clone() };
        let text = serde_json::to_string_pretty(&document).map_err(io::Error::other);
        if let Err(error) = text.and_then(|text| replace(file, &text)) {
            tracing::warn!(
                "{} cannot be written: after a restart, a backup may be made that was made already: {error}",
                file.display()
            );
        }
    }
}

fn read(file: &Path) -> io::Result<Document> {
    match small_file::read_text(file, FILE_MAX) {
        Ok(text) => serde_json::from_str(&text).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Document::default()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(covered_ms: i64) -> Known {
        let record = Record { covered_ms, begun_ms: Some(7), attempts: 1, retried: 0 };
        let newest = NewestPoint {
            source: "iqn.2026-11.com.example:a/3".parse().unwrap(),
            destination: "/mnt/a".into(),
            point: RunPoint::default(),
            made: 3,
            is_to_be_pruned: true,
        };
        let last = Some(RunResult { took_ms: 5, ..RunResult::default() });
        Known {
            record,
            last,
            last_success: Some(3),
            newest: Some(newest),
            due: Some("7f".to_owned()),
            known_since: Some(2),
        }
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart_and_what_nothing_wants_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut kept = Kept::load(Some(folder.path()));
        assert!(kept.get("a").is_none());
        kept.keep("gone", known(1), |_| true);
        kept.keep("a", known(2), |name| name != "gone");
        let again = Kept::load(Some(folder.path()));
        assert_eq!((again.get("a"), again.get("gone")), (Some(&known(2)), None));
    }

    #[test]
    fn a_file_that_says_nothing_is_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", "{\"schedules\":{\"a\":{\"record\":7}}}"] {
            std::fs::write(folder.path().join(BACKUPS_FILE), text).unwrap();
            let mut kept = Kept::load(Some(folder.path()));
            assert!(kept.get("a").is_none());
            kept.keep("a", known(4), |_| true);
            assert_eq!(Kept::load(Some(folder.path())).get("a"), Some(&known(4)));
        }
    }
}

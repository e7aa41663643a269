//! Rules about the backups that a running target makes by the clock.

use std::time::Duration;

use lunway_block::Severity;
use lunway_schedule::is_overdue;

use super::target::target;
use super::{Group, Rule};
use crate::facts::{BackupFolder, BackupSchedule, Facts, Target};
use crate::verdict::{Outcome, Verdict};

const SCHEDULED: &str = "backups by the clock of running targets";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "backup-overdue",
        group: Group::Target,
        title: "Each backup by the clock has made a point within twice its interval",
        severity: Severity::Warning,
        applies: SCHEDULED,
        why: "what was written since the newest point is lost with the disk; past 2 intervals a whole run is missing, with all its retries",
        source: "the daemon's schedules: end of the last run that made a point; else when the daemon saw the backup first",
        thumbs: &[],
        fix: "lunway backup schedule run {schedule}    # how it ends is in the list of schedules",
        undo: "",
        check: overdue,
    },
    Rule {
        id: "backup-failing",
        group: Group::Target,
        title: "The last run of each backup by the clock has made a point",
        severity: Severity::Warning,
        applies: SCHEDULED,
        why: "a run that fails is made again (by default 3 times after 10 minutes), and then not before the next is due: no newer point is made \
              meanwhile",
        source: "the daemon's schedules: result of the last run",
        thumbs: &[],
        fix: "mend what the run says; then: lunway backup schedule run {schedule}",
        undo: "",
        check: failing,
    },
    Rule {
        id: "backup-destination",
        group: Group::Target,
        title: "Destinations of backups by the clock are there, and their shares are mounted",
        severity: Severity::Warning,
        applies: "backups by the clock of a daemon on this machine",
        why: "a run to a folder that is not there fails; where the folder of a share that is not mounted is there, the next point is a \
              full one and fills the local disk (no published figure)",
        source: "the folder; /etc/fstab and the kernel's table of mounts",
        thumbs: &[],
        fix: "mount the share of {destination}    # or, where it is new: mkdir {destination}",
        undo: "",
        check: destination,
    },
];

/// An outcome for each schedule.
fn each(facts: &Facts, judge: impl Fn(&Target, &BackupSchedule) -> Option<Outcome>) -> Vec<Outcome> {
    target(facts, |target| {
        let schedules = target.schedules.get().into_iter().flatten();
        let outcomes = schedules.filter_map(|schedule| {
            let outcome = judge(target, schedule)?;
            Some(outcome.with("schedule", &schedule.name).with("destination", &schedule.destination))
        });
        outcomes.collect()
    })
}

fn place(schedule: &BackupSchedule) -> String {
    format!("backup {}", schedule.name)
}

fn overdue(facts: &Facts) -> Vec<Outcome> {
    if let Some(Err(why)) = facts.target.as_ref().map(|target| target.schedules.known()) {
        return vec![Outcome::unknown("daemon", format!("whether its backups are overdue: {why}"))];
    }
    each(facts, |target, schedule| {
        let now = target.looked_at;
        let since = schedule.known_since.unwrap_or(now.saturating_sub(target.uptime_s)).min(now);
        let what = match schedule.last_success {
            Some(at) if at > now => {
                format!(
                    "its newest point was made {} in the future: the clock is behind, or was ahead",
                    hours(at - now)
                )
            }
            Some(at) => format!("its newest point is {} old", hours(now - at)),
            None => {
                format!("it has made no point in the {} since the daemon saw it first", hours(now - since))
            }
        };
        let interval = schedule.interval_s;
        let what = format!("{what}, and it is due every {}", hours(interval));
        let seconds = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
        let last_success = schedule.last_success.map(seconds);
        let is_sound = !is_overdue(last_success, seconds(since), Duration::from_secs(interval), seconds(now));
        Some(under_way(target, schedule, Outcome::judged(is_sound, Verdict::Bad, place(schedule), what)))
    })
}

/// What was found, with advice for a schedule of which a run is under way: another one cannot be begun.
fn under_way(target: &Target, schedule: &BackupSchedule, outcome: Outcome) -> Outcome {
    match schedule.running_since {
        Some(since) if outcome.verdict != Verdict::Ok => {
            let time = hours(target.looked_at.saturating_sub(since));
            let what = format!("{}; a run is under way for {time}", outcome.what);
            Outcome { what, ..outcome }.fixed_by("wait for the end of the run that is under way", "")
        }
        _ => outcome,
    }
}

fn failing(facts: &Facts) -> Vec<Outcome> {
    each(facts, |target, schedule| {
        let outcome = match &schedule.error {
            None => Outcome::ok(place(schedule), "its last run has not failed"),
            Some(error) => Outcome::warn(place(schedule), format!("its last run has failed: {error}")),
        };
        Some(under_way(target, schedule, outcome))
    })
}

fn destination(facts: &Facts) -> Vec<Outcome> {
    each(facts, |_, schedule| {
        let folder = &schedule.destination;
        let bad = |what: String| Outcome::bad(place(schedule), what);
        Some(match schedule.folder.as_ref()?.known() {
            Err(why) => Outcome::unknown(place(schedule), format!("whether {folder} is there: {why}")),
            Ok(BackupFolder { unmounted: Some(point), .. }) => {
                bad(format!("{folder} is on {point}, which /etc/fstab names and which is not mounted"))
                    .with("point", point)
                    .fixed_by("mount {point}", "umount {point}")
            }
            Ok(BackupFolder { exists: false, .. }) => bad(format!("there is no folder {folder}")),
            Ok(BackupFolder { is_empty: true, .. }) if schedule.last_success.is_some() => bad(format!(
                "{folder} is empty, and points were made: its share is not mounted, or it was emptied"
            )),
            Ok(_) => Outcome::ok(place(schedule), format!("{folder} is there")),
        })
    })
}

/// A time in the unit that people say it in.
fn hours(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

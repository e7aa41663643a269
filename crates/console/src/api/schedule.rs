//! Backups by the clock.

use std::fmt::Write;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::routing::{get, post};
use lunway_block::duration::ExactDuration;
use lunway_target::{BackupConfig, BackupSource};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::ApiError;
use crate::extract::PathParameters;
use crate::manager::Manager;
use crate::route::Route;
use crate::schedules::{Asked, InterruptedRun, RunResult, Status};

/// Reads one figure of a schedule; `None`: it has none.
type Figure = fn(&BackupConfig, &Status) -> Option<i64>;

/// All backups by the clock.
#[derive(Debug, Serialize, JsonSchema)]
struct Schedules {
    /// In the order of the configuration.
    schedules: Vec<ScheduleAnswer>,
}

/// A backup by the clock.
#[derive(Debug, Serialize, JsonSchema)]
struct ScheduleAnswer {
    /// Its name in the configuration.
    name: String,
    /// The logical unit, `TARGET/LUN`.
    #[schemars(with = "String")]
    source: BackupSource,
    /// The folder of the points.
    destination: String,
    /// When it is due, in words.
    when: String,
    /// Longest time between two due times, seconds.
    interval_s: u64,
    /// When the next run begins, if nothing is in its way, seconds since 1970.
    next: Option<i64>,
    /// How often the run under way, or the last one, which has failed, is still made again if it fails.
    retries_left: u32,
    /// When the last run, which has failed, is made again, seconds since 1970; null: it is not, or the run under way
    /// is to end first.
    next_attempt: Option<i64>,
    /// When the run under way began, seconds since 1970; null: none is.
    running_since: Option<i64>,
    /// The last run that has ended; null: none is known.
    last: Option<RunResult>,
    /// The run that ended with the daemon, which was stopped or killed, and was not begun again since; null: none.
    interrupted: Option<InterruptedRun>,
    /// When the last run ended that made a point, seconds since 1970; null: none is known.
    last_success: Option<i64>,
    /// When the daemon saw this backup first, seconds since 1970; null: it has not looked.
    known_since: Option<i64>,
    /// No run has made a point for twice `interval_s`, or the last one did so in the future, by a clock that was ahead.
    overdue: bool,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::GET,
            "/v1/schedules",
            "Backups by the clock, with their next and last runs.",
            get(list),
        )
        .answers::<Schedules>(),
        Route::new(
            Method::POST,
            "/v1/schedules/{name}/run",
            "Begin a run of a scheduled backup now, or as soon as no other run of its logical unit is under way.",
            post(run),
        )
        .answers::<ScheduleAnswer>(),
    ]
}

fn when(backup: &BackupConfig) -> String {
    if let Some(every) = backup.every {
        return format!("every {}", ExactDuration(every));
    }
    let times: Vec<_> = backup.at.iter().map(ToString::to_string).collect();
    let days: Vec<_> = backup.days.iter().map(|day| format!("{day:?}").to_lowercase()).collect();
    match days.is_empty() {
        true => times.join(", "),
        false => format!("{} {}", days.join(", "), times.join(", ")),
    }
}

fn answer(backup: &BackupConfig, status: Status) -> ScheduleAnswer {
    let overdue = status.is_overdue(backup);
    let Status {
        next,
        running_since,
        last,
        interrupted,
        last_success,
        known_since,
        retries_left,
        next_attempt,
    } = status;
    ScheduleAnswer {
        name: backup.name.clone(),
        source: backup.source.clone(),
        destination: backup.destination.display().to_string(),
        when: when(backup),
        interval_s: backup.when().longest_gap().as_secs(),
        next,
        retries_left,
        next_attempt,
        running_since,
        last,
        interrupted,
        last_success,
        known_since,
        overdue,
    }
}

async fn list(State(manager): State<Arc<Manager>>) -> Json<Schedules> {
    let (_, config) = manager.configuration();
    let schedule = |backup: &BackupConfig| answer(backup, manager.schedules.status(&backup.name));
    Json(Schedules { schedules: config.backups.iter().map(schedule).collect() })
}

async fn run(
    State(manager): State<Arc<Manager>>,
    PathParameters(name): PathParameters<String>,
) -> Result<Json<ScheduleAnswer>, ApiError> {
    let (_, config) = manager.configuration();
    let backup = config.backups.iter().find(|backup| backup.name == name);
    let unknown = || ApiError::not_found(format!("the configuration has no [[backup]] of the name {name}"));
    let backup = backup.ok_or_else(unknown)?;
    match manager.schedules.ask(&name).await {
        Asked::Taken => Ok(Json(answer(backup, manager.schedules.status(&name)))),
        Asked::UnderWay => Err(ApiError::conflict(format!("a run of {name} is under way"))),
        Asked::Unknown => Err(unknown()),
    }
}

/// The metrics of schedules in the text format of Prometheus.
pub(super) fn prometheus(manager: &Manager) -> String {
    let (_, config) = manager.configuration();
    let statuses: Vec<_> =
        config.backups.iter().map(|backup| (backup, manager.schedules.status(&backup.name))).collect();
    let families: [(&str, &str, Figure); 5] = [
        ("next_timestamp_seconds", "When the next run of a scheduled backup begins.", |_, of| of.next),
        ("running", "A run of a scheduled backup is under way.", |_, of| {
            Some(i64::from(of.running_since.is_some()))
        }),
        (
            "last_success_timestamp_seconds",
            "End of the last run that made a point, also before a restart.",
            |_, of| of.last_success,
        ),
        (
            "overdue",
            "A scheduled backup has made no point for twice its interval, or its last one in the future.",
            |backup, of| Some(i64::from(of.is_overdue(backup))),
        ),
        ("last_failed", "The last run has failed.", |_, of| {
            Some(i64::from(of.last.as_ref()?.error.is_some()))
        }),
    ];
    let mut page = String::new();
    for (name, help, value) in families {
        // Into a string, which does not fail.
        let _ = write!(
            page,
            "# HELP lunway_backup_schedule_{name} {help}\n# TYPE lunway_backup_schedule_{name} gauge\n"
        );
        for (backup, status) in &statuses {
            let Some(value) = value(backup, status) else { continue };
            // Names of schedules, targets and LUNs have nothing to escape.
            let _ = writeln!(
                page,
                "lunway_backup_schedule_{name}{{schedule=\"{}\",target=\"{}\",lun=\"{}\"}} {value}",
                backup.name,
                backup.source.target.escape_default(),
                backup.source.lun
            );
        }
    }
    page
}

//! Results of backup runs of logical units.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::routing::post;
use lunway_target::{BackupReading, BackupReport};

use super::target::name;
use crate::error::{ApiError, refused};
use crate::extract::{Body, PathParameters};
use crate::manager::Manager;
use crate::route::Route;

/// Bytes of the name of a destination, and of a reason: as much as a path of the kernel has.
const TEXT_MAX: usize = 4096;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::POST,
            "/v1/targets/{target}/luns/{lun}/backups",
            "Report the result of a backup run of a logical unit, which then is in the metrics.",
            post(report),
        )
        .body::<BackupReport>()
        .answers::<BackupReading>(),
    ]
}

async fn report(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
    Body(report): Body<BackupReport>,
) -> Result<Json<BackupReading>, ApiError> {
    let point = report.point.as_ref();
    let texts = [Some(&report.destination), report.error.as_ref(), point.map(|point| &point.why)];
    if report.point.is_some() == report.error.is_some() {
        return Err(ApiError::bad_request("point or error: exactly one of them is expected".to_owned()));
    }
    if texts.into_iter().flatten().chain(point.map(|point| &point.point)).any(|text| text.len() > TEXT_MAX) {
        return Err(ApiError::bad_request(format!("texts: at most {TEXT_MAX} bytes are possible")));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let ended = manager.server.backup_ended(name(&target)?.as_str(), lun, report, now);
    ended.map(Json).map_err(refused)
}

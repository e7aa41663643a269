//! Reservations: what initiators have taken for themselves.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get};
use lunway_target::{IscsiName, LunReservations};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::extract::{Asked, PathParameters};
use crate::manager::Manager;
use crate::route::{DRY_RUN, MUST_EXIST, Route};

/// Reservations of logical units.
#[derive(Debug, Serialize, JsonSchema)]
struct Reservations {
    /// Logical units that have any.
    reservations: Vec<LunReservations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct How {
    dry_run: bool,
    must_exist: bool,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::GET,
            "/v1/reservations",
            "Registrations and reservations, persistent or not, of all logical units.",
            get(list),
        )
        .answers::<Reservations>(),
        Route::new(
            Method::DELETE,
            "/v1/targets/{target}/luns/{lun}/reservations",
            "Remove every registration and reservation of a logical unit, and notify the initiators. The answer \
             lists what was removed.",
            delete(clear),
        )
        .query(&[DRY_RUN, MUST_EXIST])
        .answers::<Reservations>(),
    ]
}

async fn list(State(manager): State<Arc<Manager>>) -> Json<Reservations> {
    Json(Reservations { reservations: manager.server.reservations() })
}

async fn clear(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
    Asked(how): Asked<How>,
) -> Result<Json<Reservations>, ApiError> {
    let target = IscsiName::parse(&target).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let all = manager.server.reservations().into_iter();
    let of_lun = |found: &LunReservations| found.target == target.as_str() && found.lun == lun;
    let reservations: Vec<_> = all.filter(of_lun).collect();
    if reservations.is_empty() && how.must_exist {
        return Err(ApiError::not_found(format!("lun {lun} of target {target} has no reservation")));
    }
    // Of one that is offline nothing is known, which is refused there.
    let is_offline = manager.server.is_offline(target.as_str(), lun);
    if is_offline || !reservations.is_empty() && !how.dry_run {
        manager.clear_reservations(target, lun).await?;
    }
    Ok(Json(Reservations { reservations }))
}

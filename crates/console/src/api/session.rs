//! Sessions: who is logged in.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post};
use lunway_target::SessionSummary;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::extract::{Asked, PathParameters};
use crate::manager::Manager;
use crate::route::{MUST_EXIST, Parameter, Route};

/// Default time for an initiator to log out, seconds.
const GRACE_S: u64 = 10;
/// Longest time that it can be given: what the message holds, 16 bits (RFC 7143 §11.9.3).
const GRACE_S_MAX: u64 = 65535;

/// All sessions.
#[derive(Debug, Serialize, JsonSchema)]
struct Sessions {
    /// Oldest first, without discovery sessions.
    sessions: Vec<SessionSummary>,
}

/// Result of a request about a session.
#[derive(Debug, Serialize, JsonSchema)]
struct Ended {
    /// The session existed, and was ended or asked to log out.
    found: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct How {
    grace_s: Option<u64>,
    must_exist: bool,
}

pub(super) fn routes() -> Vec<Route> {
    const GRACE: Parameter = Parameter {
        name: "grace_s",
        kind: "integer",
        description: "Seconds until the session is closed if the initiator has not logged out; without it 10.",
    };
    vec![
        Route::new(Method::GET, "/v1/sessions", "Who is logged in.", get(sessions)).answers::<Sessions>(),
        Route::new(
            Method::DELETE,
            "/v1/sessions/{tsih}",
            "End a session at once. The initiator may log in again.",
            delete(end),
        )
        .query(&[MUST_EXIST])
        .answers::<Ended>(),
        Route::new(
            Method::POST,
            "/v1/sessions/{tsih}/logout",
            "Ask an initiator to log out, and end the session if it does not. It may log in again.",
            post(logout),
        )
        .query(&[GRACE, MUST_EXIST])
        .answers::<Ended>(),
    ]
}

async fn sessions(State(manager): State<Arc<Manager>>) -> Json<Sessions> {
    Json(Sessions { sessions: manager.server.session_list() })
}

async fn end(
    State(manager): State<Arc<Manager>>,
    PathParameters(tsih): PathParameters<u16>,
    Asked(how): Asked<How>,
) -> Result<Json<Ended>, ApiError> {
    ended(manager.server.drop_session(tsih), tsih, &how)
}

async fn logout(
    State(manager): State<Arc<Manager>>,
    PathParameters(tsih): PathParameters<u16>,
    Asked(how): Asked<How>,
) -> Result<Json<Ended>, ApiError> {
    let grace = how.grace_s.unwrap_or(GRACE_S);
    if grace > GRACE_S_MAX {
        return Err(ApiError::bad_request(format!("grace_s: {grace}: at most {GRACE_S_MAX} are possible")));
    }
    ended(manager.server.log_out(tsih, Duration::from_secs(grace)), tsih, &how)
}

fn ended(found: bool, tsih: u16, how: &How) -> Result<Json<Ended>, ApiError> {
    if !found && how.must_exist {
        return Err(ApiError::not_found(format!("there is no session {tsih}")));
    }
    Ok(Json(Ended { found }))
}

//! Epochs of a tracked logical unit, and what changed since one.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::{delete, get, post};
use lunway_track::{Changes, EpochError, EpochId, Tracking};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::name;
use crate::error::{ApiError, refused};
use crate::extract::{Asked, PathParameters};
use crate::manager::Manager;
use crate::route::{Parameter, Route};

/// Ranges in one answer: about 8 MB of JSON, which a client has no trouble with.
const RANGES_MAX: usize = 100_000;

const SINCE: Parameter = Parameter {
    name: "since",
    kind: "string",
    description: "A closed epoch: changes after it are listed; without it the last one.",
};
const UNTIL: Parameter = Parameter {
    name: "until",
    kind: "string",
    description: "Another closed epoch, not older: later changes are left out.",
};
const OFFSET: Parameter = Parameter {
    name: "offset",
    kind: "integer",
    description: "The first byte of the queried range; without it 0.",
};
const LENGTH: Parameter = Parameter {
    name: "length",
    kind: "integer",
    description: "The length of the queried range in bytes; without it all.",
};

/// The epochs of a logical unit.
#[derive(Debug, Serialize, JsonSchema)]
struct Epochs {
    /// Closed ones, oldest first.
    epochs: Vec<Epoch>,
    /// Bytes that changed since the youngest was closed.
    changed_bytes: u64,
    /// Reason why nothing is tracked now; null: it is.
    lost: Option<String>,
}

/// A closed epoch.
#[derive(Debug, Serialize, JsonSchema)]
struct Epoch {
    /// Its name, 32 hexadecimal digits.
    epoch: String,
    /// The one before; null: it is the oldest.
    parent: Option<String>,
    /// Bytes that changed from the one before until it was closed; 0 of the oldest.
    changed_bytes: u64,
}

/// An epoch that was closed now.
#[derive(Debug, Serialize, JsonSchema)]
struct Closed {
    /// Its name, 32 hexadecimal digits.
    epoch: String,
}

/// Changes since an epoch.
#[derive(Debug, Serialize, JsonSchema)]
struct Changed {
    /// The epoch after which; null: none has been closed yet.
    epoch: Option<String>,
    /// `false`: anything may have changed.
    known: bool,
    /// Reason why the changes are unknown; null: they are known.
    why: Option<String>,
    /// In order, in multiples of 64 KiB except at the end of the disk. Everything outside of them is unchanged.
    ranges: Vec<Range>,
    /// There are more ranges: query again with this offset. Null: these are all.
    next_offset: Option<u64>,
}

/// A range that changed.
#[derive(Debug, Serialize, JsonSchema)]
struct Range {
    /// First byte.
    offset: u64,
    /// Bytes.
    length: u64,
    /// Its last change.
    state: RangeState,
}

/// The last change of a range.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum RangeState {
    /// May hold anything.
    Written,
    /// Reads as zeroes.
    Unmapped,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Question {
    since: Option<EpochId>,
    until: Option<EpochId>,
    offset: Option<u64>,
    length: Option<u64>,
}

pub(super) fn routes() -> Vec<Route> {
    const EPOCHS: &str = "/v1/targets/{target}/luns/{lun}/epochs";
    vec![
        Route::new(Method::GET, EPOCHS, "The closed epochs of a logical unit whose changes are tracked.", get(list))
            .answers::<Epochs>(),
        Route::new(
            Method::POST,
            EPOCHS,
            "Close the current epoch of a logical unit, and begin another. Writes in progress end first; new ones \
             wait. Then the disk is flushed.",
            post(close),
        )
        .answers::<Closed>(),
        Route::new(
            Method::DELETE,
            "/v1/targets/{target}/luns/{lun}/epochs/{epoch}",
            "Release a closed epoch: changes since then can no longer be listed.",
            delete(release),
        )
        .answers::<Closed>(),
        Route::new(
            Method::GET,
            "/v1/targets/{target}/luns/{lun}/changes",
            "What changed on a logical unit since an epoch was closed, at most 100,000 ranges.",
            get(changes),
        )
        .query(&[SINCE, UNTIL, OFFSET, LENGTH])
        .answers::<Changed>(),
    ]
}

async fn tracking(manager: &Manager, target: &str, lun: u16) -> Result<Tracking, ApiError> {
    manager.server.tracking(name(target)?.as_str(), lun).await.map_err(refused)
}

fn failed(error: &EpochError) -> ApiError {
    let status = match error {
        EpochError::NotFound(_) => StatusCode::NOT_FOUND,
        EpochError::Taken(_) | EpochError::Misplaced(_) => StatusCode::CONFLICT,
        EpochError::Busy | EpochError::Closed => StatusCode::SERVICE_UNAVAILABLE,
        EpochError::Storage(_) | EpochError::Unflushed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, error.to_string())
}

async fn list(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
) -> Result<Json<Epochs>, ApiError> {
    let (epochs, changed_bytes, lost) = tracking(&manager, &target, lun).await?.epochs().await;
    let epochs = epochs.into_iter().map(|epoch| Epoch {
        epoch: epoch.id.to_string(),
        parent: epoch.parent.map(|parent| parent.to_string()),
        changed_bytes: epoch.changed,
    });
    Ok(Json(Epochs { epochs: epochs.collect(), changed_bytes, lost }))
}

async fn close(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
) -> Result<Json<Closed>, ApiError> {
    let mut id = EpochId([0; 16]);
    getrandom::fill(&mut id.0).map_err(|error| ApiError::internal(error.to_string()))?;
    tracking(&manager, &target, lun).await?.close_epoch(id).await.map_err(|error| failed(&error))?;
    Ok(Json(Closed { epoch: id.to_string() }))
}

async fn release(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun, epoch)): PathParameters<(String, u16, EpochId)>,
) -> Result<Json<Closed>, ApiError> {
    tracking(&manager, &target, lun).await?.release_epoch(epoch).await.map_err(|error| failed(&error))?;
    Ok(Json(Closed { epoch: epoch.to_string() }))
}

async fn changes(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
    Asked(question): Asked<Question>,
) -> Result<Json<Changed>, ApiError> {
    let tracking = tracking(&manager, &target, lun).await?;
    let since = match question.since {
        Some(since) => Some(since),
        None => tracking.epochs().await.0.last().map(|epoch| epoch.id),
    };
    let start = question.offset.unwrap_or(0);
    let end = question.length.map_or(u64::MAX, |length| start.saturating_add(length));
    let mut answer = Changed {
        epoch: since.map(|since| since.to_string()),
        known: false,
        why: None,
        ranges: Vec::new(),
        next_offset: None,
    };
    match since {
        None => answer.why = Some("no epoch of this logical unit was closed yet".to_owned()),
        Some(since) => match tracking.changes(since, question.until, start..end, RANGES_MAX).await {
            Changes::Unknown { why, .. } => answer.why = Some(why),
            Changes::Known { ranges, .. } => {
                answer.known = true;
                answer.next_offset = ranges.get(RANGES_MAX).map(|range| range.offset);
                let range = |range: &lunway_track::ChangedRange| Range {
                    offset: range.offset,
                    length: range.length,
                    state: match range.state {
                        lunway_track::ChangeState::Written => RangeState::Written,
                        lunway_track::ChangeState::Unmapped => RangeState::Unmapped,
                    },
                };
                answer.ranges = ranges.iter().take(RANGES_MAX).map(range).collect();
            }
        },
    }
    Ok(Json(answer))
}

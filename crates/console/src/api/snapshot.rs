//! Snapshots of logical units.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::{delete, get, post};
use lunway_target::{SnapshotOrder, SnapshotSummary};
use lunway_track::EpochId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;

use super::target::name;
use crate::error::{ApiError, refused};
use crate::extract::{Body, PathParameters};
use crate::manager::Manager;
use crate::route::Route;

/// Bytes of the area of a snapshot unless another is asked for: what initiators that write 16 MiB/s into new places
/// change in four minutes, which a backup of what changed takes.
const AREA: u64 = 4 << 30;
/// The smallest and the largest area, bytes: one copy, and what 64 Gi copies take.
const AREA_RANGE: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 44;
/// Logical units of one instant: changes of all of them are held.
const LUNS_MAX: usize = 64;

/// Request for snapshots, all at the same instant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Orders {
    /// Of which logical units.
    luns: Vec<Order>,
    /// Bytes that may be overwritten per snapshot; their copies are on the file system of the state directory.
    /// If more are overwritten, the snapshot is lost.
    #[serde(default = "area")]
    area: u64,
    /// Delete each snapshot when its last reader has disconnected, or if none has connected within a minute.
    #[serde(default)]
    while_read: bool,
    /// Milliseconds after which the request fails and leaves no snapshot: for clients that hold the guest frozen
    /// meanwhile. Null: as long as it takes.
    #[serde(default)]
    deadline_ms: Option<u64>,
}

/// A logical unit for a snapshot.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The target.
    target: String,
    /// The LUN.
    lun: u16,
    /// The name of the epoch of change tracking that ends with the snapshot, 32 hexadecimal digits; null: none.
    #[serde(default)]
    epoch: Option<String>,
}

fn area() -> u64 {
    AREA
}

/// All snapshots.
#[derive(Debug, Serialize, JsonSchema)]
struct Snapshots {
    /// By target and LUN.
    snapshots: Vec<SnapshotAnswer>,
}

/// A snapshot.
#[derive(Debug, Serialize, JsonSchema)]
struct SnapshotAnswer {
    /// Description of the snapshot.
    snapshot: SnapshotSummary,
    /// The Unix socket over which it is read by NBD; null: none.
    socket: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    const SNAPSHOTS: &str = "/v1/snapshots";
    const SNAPSHOT: &str = "/v1/snapshots/{name}";
    vec![
        Route::new(Method::GET, SNAPSHOTS, "All snapshots of logical units.", get(list))
            .answers::<Snapshots>(),
        Route::new(
            Method::POST,
            SNAPSHOTS,
            "Create snapshots of logical units, all at the same instant. Writes wait for that, usually for \
             milliseconds. Snapshots end with the daemon.",
            post(create),
        )
        .body::<Orders>()
        .answers::<Snapshots>(),
        Route::new(Method::GET, SNAPSHOT, "A snapshot.", get(one)).answers::<SnapshotAnswer>(),
        Route::new(Method::DELETE, SNAPSHOT, "Delete a snapshot.", delete(remove))
            .answers::<SnapshotAnswer>(),
    ]
}

async fn answers(manager: &Manager) -> Vec<SnapshotAnswer> {
    let snapshots = manager.server.snapshots().await;
    let answer = |snapshot: SnapshotSummary| SnapshotAnswer {
        socket: manager.exports.socket(&snapshot.name).map(|socket| socket.display().to_string()),
        snapshot,
    };
    let names: Vec<_> = snapshots.iter().map(|snapshot| snapshot.name.clone()).collect();
    // Those of logical units that are gone.
    manager.exports.keep(&names);
    snapshots.into_iter().map(answer).collect()
}

async fn find(manager: &Manager, name: &str) -> Result<SnapshotAnswer, ApiError> {
    let all = answers(manager).await;
    let found = all.into_iter().find(|answer| answer.snapshot.name == name);
    found.ok_or_else(|| ApiError::not_found(format!("there is no snapshot {name}")))
}

async fn list(State(manager): State<Arc<Manager>>) -> Json<Snapshots> {
    Json(Snapshots { snapshots: answers(&manager).await })
}

async fn one(
    State(manager): State<Arc<Manager>>,
    PathParameters(name): PathParameters<String>,
) -> Result<Json<SnapshotAnswer>, ApiError> {
    find(&manager, &name).await.map(Json)
}

async fn create(
    State(manager): State<Arc<Manager>>,
    Body(Orders { luns, area, while_read, deadline_ms }): Body<Orders>,
) -> Result<Json<Snapshots>, ApiError> {
    if luns.is_empty() || luns.len() > LUNS_MAX {
        return Err(ApiError::bad_request(format!("luns: from 1 to {LUNS_MAX} are possible")));
    }
    if !AREA_RANGE.contains(&area) {
        return Err(ApiError::bad_request("area: from 65536 bytes to 16 TiB are possible".to_owned()));
    }
    let mut orders = Vec::new();
    for Order { target, lun, epoch } in luns {
        let epoch = epoch.map(|epoch| epoch.parse::<EpochId>()).transpose();
        let epoch = epoch.map_err(|error| ApiError::bad_request(format!("epoch: {error}")))?;
        let target = name(&target)?.as_str().to_owned();
        let order = SnapshotOrder { target, lun, name: new_name()?, epoch };
        let is_twice = |other: &SnapshotOrder| (&other.target, other.lun) == (&order.target, order.lun);
        if orders.iter().any(is_twice) {
            return Err(ApiError::bad_request(format!("luns: lun {lun} of target {} twice", order.target)));
        }
        orders.push(order);
    }
    let making = {
        let manager = Manager::clone(&manager);
        tokio::spawn(async move { make(&manager, orders, area, while_read).await })
    };
    let made = in_time(&manager, making, deadline_ms.map(Duration::from_millis)).await?;
    let all = answers(&manager).await;
    Ok(Json(Snapshots {
        snapshots: all.into_iter().filter(|answer| made.contains(&answer.snapshot.name)).collect(),
    }))
}

/// Makes snapshots, and what they are read by: all of them, or none.
async fn make(
    manager: &Manager,
    orders: Vec<SnapshotOrder>,
    area: u64,
    while_read: bool,
) -> Result<Vec<String>, ApiError> {
    let this = Manager::clone(manager);
    let made = manager.to_its_end(async move {
        let made = this.server.create_snapshots(orders, area).await.map_err(refused)?;
        let names: Vec<_> = made.into_iter().map(|made| made.name).collect();
        for name in &names {
            if let Err(error) = this.exports.begin(&this.server, name, while_read).await {
                delete_all(&this, &names).await;
                return Err(error);
            }
        }
        Ok(names)
    });
    made.await
}

async fn delete_all(manager: &Manager, names: &[String]) {
    for name in names {
        let _ = manager.server.delete_snapshot(name).await;
        manager.exports.end(name);
    }
}

/// Waits for snapshots until a deadline. Those that are made later are deleted when they are.
async fn in_time(
    manager: &Manager,
    mut making: JoinHandle<Result<Vec<String>, ApiError>>,
    deadline: Option<Duration>,
) -> Result<Vec<String>, ApiError> {
    let broke_off = |error: JoinError| Err(ApiError::internal(format!("the change broke off: {error}")));
    let Some(deadline) = deadline else { return making.await.unwrap_or_else(broke_off) };
    if let Ok(made) = timeout(deadline, &mut making).await {
        return made.unwrap_or_else(broke_off);
    }
    let manager = Manager::clone(manager);
    tokio::spawn(async move {
        if let Ok(Ok(late)) = making.await {
            delete_all(&manager, &late).await;
        }
    });
    Err(ApiError::new(
        StatusCode::GATEWAY_TIMEOUT,
        format!(
            "no snapshot was made within {} s: a device of these logical units does not answer, or is slow",
            deadline.as_secs_f64()
        ),
    ))
}

/// 12 hexadecimal digits: short enough for the path of a socket, and random.
fn new_name() -> Result<String, ApiError> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn remove(
    State(manager): State<Arc<Manager>>,
    PathParameters(name): PathParameters<String>,
) -> Result<Json<SnapshotAnswer>, ApiError> {
    let found = find(&manager, &name).await?;
    manager.exports.end(&name);
    // One that lasts while it is read may have gone meanwhile.
    let _ = manager.server.delete_snapshot(&name).await;
    Ok(Json(found))
}

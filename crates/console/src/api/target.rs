//! Targets and what belongs to them: logical units, CHAP users, access rules.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post, put};
use lunway_target::{
    AccessRule, ChapUser, CompactionSummary, Config, IscsiName, LunConfig, LunSummary, TargetConfig,
    TargetSummary,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::element;
use crate::answer::{Applied, Tagged};
use crate::error::{ApiError, refused};
use crate::extract::{Ask, Body, PathParameters};
use crate::manager::{Manager, Orders};
use crate::route::{
    CHANGE, CREATE, CREATION, DRY_RUN, END_SNAPSHOTS, FORCE, GENERATION, LUN_REMOVAL, MUST_BE_NEW,
    MUST_EXIST, Parameter, REMOVAL, Route, SHRINK,
};

/// Position of a new rule.
const AT: Parameter = Parameter {
    name: "at",
    kind: "integer",
    description: "Position of a new rule, counted from 1; without it after all others. The first rule that matches \
                  decides.",
};

/// All targets.
#[derive(Debug, Serialize, JsonSchema)]
struct Targets {
    /// The generation of the configuration.
    generation: u64,
    /// In the order of the configuration.
    targets: Vec<TargetAnswer>,
}

/// A target.
#[derive(Debug, Serialize, JsonSchema)]
struct TargetAnswer {
    /// As it is configured.
    config: TargetConfig,
    /// As it is served.
    status: TargetSummary,
}

/// The logical units of a target.
#[derive(Debug, Serialize, JsonSchema)]
struct Luns {
    /// The generation of the configuration.
    generation: u64,
    /// In the order of the configuration.
    luns: Vec<LunAnswer>,
}

/// A logical unit.
#[derive(Debug, Serialize, JsonSchema)]
struct LunAnswer {
    /// As it is configured.
    config: LunConfig,
    /// As it is served.
    status: LunSummary,
}

/// The CHAP users of a target.
#[derive(Debug, Serialize, JsonSchema)]
struct ChapUsers {
    /// The generation of the configuration.
    generation: u64,
    /// Initiators must authenticate as one of these; empty: no authentication.
    users: Vec<ChapUser>,
}

/// The access rules of a target.
#[derive(Debug, Serialize, JsonSchema)]
struct Rules {
    /// The generation of the configuration.
    generation: u64,
    /// The first that matches decides; an initiator that matches none may log in only if the target is open.
    rules: Vec<AccessRule>,
}

/// A new size.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewSize {
    /// Bytes, a multiple of the sector.
    size: u64,
    /// Allow a smaller size: data beyond the new end are lost.
    #[serde(default)]
    shrink: bool,
    /// Shrink it even if that cuts a partition or a file system.
    #[serde(default)]
    force: bool,
    /// Shrink it even if it has snapshots, which end.
    #[serde(default)]
    end_snapshots: bool,
}

/// The new file of a VHDX disk that is frozen.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewLeaf {
    /// The new file, beside the present one or in a folder above. It must not exist.
    leaf: String,
}

/// Default rate at which a compaction moves data, bytes per second: half of what a hard disk does.
const COMPACTION_RATE: u64 = 64 << 20;
/// Default time for which file systems may be frozen, seconds: guests' databases time out after a minute, and a
/// terabyte of ext4 takes a second.
const FREEZE_TIME_S: u64 = 30;

/// Options of a compaction.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CompactionOrders {
    /// Maximum number of bytes per second that are moved or released; fewer while initiators use the disk.
    #[serde(default = "compaction_rate")]
    rate: u64,
    /// The file systems on the disk are frozen: their free space is read and released, too. The answer comes
    /// when they may be thawed.
    #[serde(default)]
    frozen: bool,
    /// Longest time that the file systems may be frozen, seconds; if that is not enough, no space is released.
    #[serde(default = "freeze_time")]
    deadline_s: u64,
}

fn compaction_rate() -> u64 {
    COMPACTION_RATE
}

fn freeze_time() -> u64 {
    FREEZE_TIME_S
}

pub(super) fn routes() -> Vec<Route> {
    const TARGET: &str = "/v1/targets/{target}";
    const LUN: &str = "/v1/targets/{target}/luns/{lun}";
    const COMPACTION: &str = "/v1/targets/{target}/luns/{lun}/compaction";
    const CHAP: &str = "/v1/targets/{target}/chap/{user}";
    const RULE: &str = "/v1/targets/{target}/acl/{rule}";
    vec![
        Route::new(Method::GET, "/v1/targets", "All targets.", get(targets)).answers::<Targets>(),
        Route::new(Method::GET, TARGET, "A target.", get(target)).answers::<TargetAnswer>(),
        Route::new(
            Method::PUT,
            TARGET,
            "Create a target, or change the members that the body names; null restores a default. An empty object creates it.",
            put(element::put::<TargetConfig>),
        )
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, SHRINK, END_SNAPSHOTS, FORCE])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            TARGET,
            "Remove a target. Its initiators are asked to log out, then dropped.",
            delete(element::delete::<TargetConfig>),
        )
        .query(LUN_REMOVAL)
        .answers::<Applied>(),
        Route::new(Method::GET, "/v1/targets/{target}/luns", "The logical units of a target.", get(luns))
            .answers::<Luns>(),
        Route::new(Method::GET, LUN, "A logical unit.", get(lun)).answers::<LunAnswer>(),
        Route::new(
            Method::PUT,
            LUN,
            "Add a logical unit (the body names at least the device), or change the members that the body names.",
            put(element::put::<LunConfig>),
        )
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, SHRINK, END_SNAPSHOTS, FORCE, CREATE])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            LUN,
            "Remove a logical unit. Its commands are finished and its device is flushed.",
            delete(element::delete::<LunConfig>),
        )
        .query(LUN_REMOVAL)
        .answers::<Applied>(),
        Route::new(
            Method::POST,
            "/v1/targets/{target}/luns/{lun}/resize",
            "Resize the device of a logical unit; initiators are notified.",
            post(resize),
        )
        .query(CHANGE)
        .body::<NewSize>()
        .answers::<Applied>(),
        Route::new(
            Method::POST,
            "/v1/targets/{target}/luns/{lun}/snapshot",
            "Freeze the VHDX file of a logical unit: later writes go to a new differencing file. Initiators \
             notice nothing.",
            post(snapshot),
        )
        .query(CHANGE)
        .body::<NewLeaf>()
        .answers::<Applied>(),
        Route::new(
            Method::POST,
            COMPACTION,
            "Start to compact the VHDX file of a logical unit while it is served: blocks are moved into holes, and \
             the file is truncated.",
            post(compact),
        )
        .body::<CompactionOrders>()
        .answers::<CompactionSummary>(),
        Route::new(
            Method::GET,
            COMPACTION,
            "The last compaction of a logical unit since it has been served: its progress, or how it ended.",
            get(compaction),
        )
        .answers::<CompactionSummary>(),
        Route::new(
            Method::DELETE,
            COMPACTION,
            "Stop the compaction of a logical unit. Completed moves are kept, and the next compaction continues.",
            delete(cancel_compaction),
        )
        .answers::<CompactionSummary>(),
        Route::new(
            Method::GET,
            "/v1/targets/{target}/chap",
            "The CHAP users of a target, and the files with their secrets.",
            get(chap),
        )
        .answers::<ChapUsers>(),
        Route::new(
            Method::PUT,
            CHAP,
            "Add a CHAP user, or change the file of its secret. The file is read with every change.",
            put(element::put::<ChapUser>),
        )
        .query(CREATION)
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            CHAP,
            "Remove a CHAP user. A target without users requires no authentication.",
            delete(element::delete::<ChapUser>),
        )
        .query(REMOVAL)
        .answers::<Applied>(),
        Route::new(
            Method::GET,
            "/v1/targets/{target}/acl",
            "The access rules of a target, in their order.",
            get(acl),
        )
        .answers::<Rules>(),
        Route::new(
            Method::PUT,
            RULE,
            "Add an access rule under this name, or change the members that the body names.",
            put(element::put::<AccessRule>),
        )
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, AT])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            RULE,
            "Remove the access rule with this name. Initiators that match no other rule may log in only if the target is open.",
            delete(element::delete::<AccessRule>),
        )
        .query(REMOVAL)
        .answers::<Applied>(),
    ]
}

/// Names are compared in their normal form.
pub(super) fn name(text: &str) -> Result<IscsiName, ApiError> {
    IscsiName::parse(text).map_err(|error| ApiError::bad_request(error.to_string()))
}

fn find<'c>(config: &'c Config, name: &IscsiName) -> Result<&'c TargetConfig, ApiError> {
    config.target(name.as_str()).ok_or_else(|| no_target(name))
}

pub(super) fn find_mut<'c>(
    config: &'c mut Config,
    name: &IscsiName,
) -> Result<&'c mut TargetConfig, ApiError> {
    config.targets.iter_mut().find(|target| target.name == *name).ok_or_else(|| no_target(name))
}

fn no_target(name: &IscsiName) -> ApiError {
    ApiError::not_found(format!("there is no target {name}"))
}

async fn targets(State(manager): State<Arc<Manager>>) -> Tagged<Targets> {
    let (generation, config) = manager.configuration();
    let config = config.redacted();
    let status = manager.server.targets();
    let with_status = |config: TargetConfig| {
        let status = status.iter().find(|status| status.name == config.name.as_str())?.clone();
        Some(TargetAnswer { config, status })
    };
    Tagged(
        generation,
        Targets { generation, targets: config.targets.into_iter().filter_map(with_status).collect() },
    )
}

/// A target as it is configured and served.
fn one(manager: &Manager, text: &str) -> Result<(u64, TargetAnswer), ApiError> {
    let name = name(text)?;
    let (generation, config) = manager.configuration();
    let config = find(&config.redacted(), &name)?.clone();
    let status = manager.server.targets().into_iter().find(|status| status.name == name.as_str());
    let status = status.ok_or_else(|| no_target(&name))?;
    Ok((generation, TargetAnswer { config, status }))
}

async fn target(
    State(manager): State<Arc<Manager>>,
    PathParameters(target): PathParameters<String>,
) -> Result<Tagged<TargetAnswer>, ApiError> {
    one(&manager, &target).map(|(generation, target)| Tagged(generation, target))
}

async fn luns(
    State(manager): State<Arc<Manager>>,
    PathParameters(target): PathParameters<String>,
) -> Result<Tagged<Luns>, ApiError> {
    let (generation, target) = one(&manager, &target)?;
    let status = target.status.luns;
    let with_status = |config: LunConfig| {
        let status = status.iter().find(|status| status.id == config.id)?.clone();
        Some(LunAnswer { config, status })
    };
    let luns = target.config.luns.into_iter().filter_map(with_status).collect();
    Ok(Tagged(generation, Luns { generation, luns }))
}

async fn lun(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
) -> Result<Tagged<LunAnswer>, ApiError> {
    let (generation, target) = one(&manager, &target)?;
    let config = target.config.luns.into_iter().find(|config| config.id == lun);
    let status = target.status.luns.into_iter().find(|status| status.id == lun);
    match (config, status) {
        (Some(config), Some(status)) => Ok(Tagged(generation, LunAnswer { config, status })),
        _ => Err(ApiError::not_found(format!("target {} has no lun {lun}", target.config.name))),
    }
}

async fn resize(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
    ask: Ask,
    Body(NewSize { size, shrink, force, end_snapshots }): Body<NewSize>,
) -> Result<Applied, ApiError> {
    let target = name(&target)?;
    manager.may_resize(&target, lun, size, (shrink, force)).await?;
    manager.resize(Ask { shrink, end_snapshots, ..ask }, target, lun, size).await
}

async fn snapshot(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
    ask: Ask,
    Body(NewLeaf { leaf }): Body<NewLeaf>,
) -> Result<Applied, ApiError> {
    manager.snapshot(ask, name(&target)?, lun, &leaf).await
}

async fn compact(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
    Body(CompactionOrders { rate, frozen, deadline_s }): Body<CompactionOrders>,
) -> Result<Json<CompactionSummary>, ApiError> {
    if rate == 0 {
        return Err(ApiError::bad_request("rate: at least 1 byte per second is possible".to_owned()));
    }
    let deadline = frozen.then(|| Duration::from_secs(deadline_s));
    manager.compact(name(&target)?, lun, Orders { rate, deadline }).await.map(Json)
}

async fn compaction(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
) -> Result<Json<CompactionSummary>, ApiError> {
    manager.compaction(&name(&target)?, lun).await.map(Json)
}

async fn cancel_compaction(
    State(manager): State<Arc<Manager>>,
    PathParameters((target, lun)): PathParameters<(String, u16)>,
) -> Result<Json<CompactionSummary>, ApiError> {
    let target = name(&target)?;
    manager.server.cancel_compaction(target.as_str(), lun).await.map_err(refused)?;
    manager.compaction(&target, lun).await.map(Json)
}

async fn chap(
    State(manager): State<Arc<Manager>>,
    PathParameters(target): PathParameters<String>,
) -> Result<Tagged<ChapUsers>, ApiError> {
    let (generation, config) = manager.configuration();
    let users = find(&config, &name(&target)?)?.chap.clone();
    Ok(Tagged(generation, ChapUsers { generation, users }))
}

async fn acl(
    State(manager): State<Arc<Manager>>,
    PathParameters(target): PathParameters<String>,
) -> Result<Tagged<Rules>, ApiError> {
    let (generation, config) = manager.configuration();
    let rules = find(&config, &name(&target)?)?.acl.clone();
    Ok(Tagged(generation, Rules { generation, rules }))
}

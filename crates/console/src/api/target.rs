//! Targets and what belongs to them: logical units, CHAP users, access rules.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post, put};
use lunway_target::{
    AccessRule, ChapUser, Config, IscsiName, LunConfig, LunSummary, TargetConfig, TargetSummary,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::element;
use crate::answer::{Applied, Tagged};
use crate::error::ApiError;
use crate::extract::{Ask, Body, Place};
use crate::manager::Manager;
use crate::route::{
    CHANGE, CREATE, CREATION, DRY_RUN, GENERATION, MUST_BE_NEW, MUST_EXIST, Parameter, REMOVAL, Route, SHRINK,
};

/// Where a new rule goes.
const AT: Parameter = Parameter {
    name: "at",
    kind: "integer",
    description: "Put a new rule at this place, counted from 1; without it behind all others. The first rule that matches decides.",
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
    /// Those that initiators must prove to be one of; none: nothing has to be proven.
    users: Vec<ChapUser>,
}

/// The access rules of a target.
#[derive(Debug, Serialize, JsonSchema)]
struct Rules {
    /// The generation of the configuration.
    generation: u64,
    /// The first that matches decides; an initiator that matches none is let in only if the target is open.
    rules: Vec<AccessRule>,
}

/// A new size.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewSize {
    /// Bytes, a multiple of the sector.
    size: u64,
    /// Fewer bytes than now are meant: what is behind the new end is lost.
    #[serde(default)]
    shrink: bool,
}

/// A new file that a disk goes on in.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewLeaf {
    /// The new file, beside the present one or in a folder above. It must not exist.
    leaf: String,
}

pub(super) fn routes() -> Vec<Route> {
    const TARGET: &str = "/v1/targets/{target}";
    const LUN: &str = "/v1/targets/{target}/luns/{lun}";
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
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, SHRINK])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            TARGET,
            "Remove a target. Its initiators are asked to log out, then dropped.",
            delete(element::delete::<TargetConfig>),
        )
        .query(REMOVAL)
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
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, SHRINK, CREATE])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            LUN,
            "Remove a logical unit. Its commands are finished and its device is flushed.",
            delete(element::delete::<LunConfig>),
        )
        .query(REMOVAL)
        .answers::<Applied>(),
        Route::new(
            Method::POST,
            "/v1/targets/{target}/luns/{lun}/resize",
            "Give the device of a logical unit another size; initiators hear of it.",
            post(resize),
        )
        .query(CHANGE)
        .body::<NewSize>()
        .answers::<Applied>(),
        Route::new(
            Method::POST,
            "/v1/targets/{target}/luns/{lun}/snapshot",
            "Freeze the VHDX file of a logical unit: it goes on in a new file, on top of the present one. Initiators notice nothing.",
            post(snapshot),
        )
        .query(CHANGE)
        .body::<NewLeaf>()
        .answers::<Applied>(),
        Route::new(
            Method::GET,
            "/v1/targets/{target}/chap",
            "Who may log in to a target, and where their secrets are.",
            get(chap),
        )
        .answers::<ChapUsers>(),
        Route::new(
            Method::PUT,
            CHAP,
            "Let a CHAP user in, or name another file for the secret. The file is read with every change.",
            put(element::put::<ChapUser>),
        )
        .query(CREATION)
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            CHAP,
            "Let a CHAP user in no longer. Without any user nothing has to be proven.",
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
    Place(target): Place<String>,
) -> Result<Tagged<TargetAnswer>, ApiError> {
    one(&manager, &target).map(|(generation, target)| Tagged(generation, target))
}

async fn luns(
    State(manager): State<Arc<Manager>>,
    Place(target): Place<String>,
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
    Place((target, lun)): Place<(String, u16)>,
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
    Place((target, lun)): Place<(String, u16)>,
    ask: Ask,
    Body(NewSize { size, shrink }): Body<NewSize>,
) -> Result<Applied, ApiError> {
    let target = name(&target)?;
    manager.may_resize(&target, lun, size, shrink)?;
    manager.resize(Ask { shrink, ..ask }, target, lun, size).await
}

async fn snapshot(
    State(manager): State<Arc<Manager>>,
    Place((target, lun)): Place<(String, u16)>,
    ask: Ask,
    Body(NewLeaf { leaf }): Body<NewLeaf>,
) -> Result<Applied, ApiError> {
    manager.snapshot(ask, name(&target)?, lun, &leaf).await
}

async fn chap(
    State(manager): State<Arc<Manager>>,
    Place(target): Place<String>,
) -> Result<Tagged<ChapUsers>, ApiError> {
    let (generation, config) = manager.configuration();
    let users = find(&config, &name(&target)?)?.chap.clone();
    Ok(Tagged(generation, ChapUsers { generation, users }))
}

async fn acl(
    State(manager): State<Arc<Manager>>,
    Place(target): Place<String>,
) -> Result<Tagged<Rules>, ApiError> {
    let (generation, config) = manager.configuration();
    let rules = find(&config, &name(&target)?)?.acl.clone();
    Ok(Tagged(generation, Rules { generation, rules }))
}

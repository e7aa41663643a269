//! Targets and what belongs to them: logical units, CHAP users, access rules.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, post, put};
use lunway_block::spec::DeviceSpec;
use lunway_target::{
    AccessRule, ChapUser, Config, IscsiName, LunConfig, LunSummary, TargetConfig, TargetSummary,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::answer::{Applied, Tagged};
use crate::backing::NewFile;
use crate::error::ApiError;
use crate::extract::{Ask, Body, Place};
use crate::manager::Manager;
use crate::patch::{patched, restore_lun, restore_target};
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

#[derive(Deserialize, JsonSchema)]
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
            "Create a target, or change what the body names of it; null takes a default back. An empty object creates it.",
            put(put_target),
        )
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, SHRINK])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            TARGET,
            "Remove a target. Its initiators are asked to log out, then dropped.",
            delete(delete_target),
        )
        .query(REMOVAL)
        .answers::<Applied>(),
        Route::new(Method::GET, "/v1/targets/{target}/luns", "The logical units of a target.", get(luns))
            .answers::<Luns>(),
        Route::new(Method::GET, LUN, "A logical unit.", get(lun)).answers::<LunAnswer>(),
        Route::new(
            Method::PUT,
            LUN,
            "Add a logical unit, for which the body names at least the device, or change what the body names of it.",
            put(put_lun),
        )
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, SHRINK, CREATE])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            LUN,
            "Remove a logical unit. Its commands are finished and its device is flushed.",
            delete(delete_lun),
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
            put(put_chap),
        )
        .query(CREATION)
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            CHAP,
            "Let a CHAP user in no longer. Without any user nothing has to be proven.",
            delete(delete_chap),
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
            "Add an access rule under this name, or change what the body names of it.",
            put(put_rule),
        )
        .query(&[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW, AT])
        .body::<Value>()
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            RULE,
            "Remove the access rule with this name. Initiators that match no other rule may log in only if the target is open.",
            delete(delete_rule),
        )
        .query(REMOVAL)
        .answers::<Applied>(),
    ]
}

/// Names are compared in their normal form.
fn name(text: &str) -> Result<IscsiName, ApiError> {
    IscsiName::parse(text).map_err(|error| ApiError::bad_request(error.to_string()))
}

fn find<'c>(config: &'c Config, name: &IscsiName) -> Result<&'c TargetConfig, ApiError> {
    config.target(name.as_str()).ok_or_else(|| no_target(name))
}

fn find_mut<'c>(config: &'c mut Config, name: &IscsiName) -> Result<&'c mut TargetConfig, ApiError> {
    config.targets.iter_mut().find(|target| target.name == *name).ok_or_else(|| no_target(name))
}

fn no_target(name: &IscsiName) -> ApiError {
    ApiError::not_found(format!("there is no target {name}"))
}

/// Removes what matches; where nothing does it is an error if one is asked for.
fn remove<T>(list: &mut Vec<T>, ask: Ask, what: &str, is_it: impl Fn(&T) -> bool) -> Result<(), ApiError> {
    let before = list.len();
    list.retain(|element| !is_it(element));
    match list.len() == before && ask.must_exist {
        true => Err(ApiError::not_found(format!("there is no {what}"))),
        false => Ok(()),
    }
}

/// Removes what matches from one of the lists of a target. A target that is not there has nothing to remove.
async fn remove_from<T: 'static>(
    manager: &Manager,
    ask: Ask,
    target: IscsiName,
    what: String,
    list: fn(&mut TargetConfig) -> &mut Vec<T>,
    is_it: impl Fn(&T) -> bool + Send + 'static,
) -> Result<Applied, ApiError> {
    let edit = move |config: &mut Config| match find_mut(config, &target) {
        Ok(target) => remove(list(target), ask, &what, &is_it),
        Err(error) if ask.must_exist => Err(error),
        Err(_) => Ok(()),
    };
    manager.change(ask, edit).await
}

/// Refuses a PUT that would create what must exist; `what` is its name.
fn may_create(ask: Ask, what: &str, exists: bool) -> Result<(), ApiError> {
    match ask.must_exist && !exists {
        true => Err(ApiError::not_found(format!("there is no {what}"))),
        false => Ok(()),
    }
}

/// Refuses a PUT that would change what must be new. `is_so`: what is there is already as the body says.
fn may_change(ask: Ask, what: &str, is_so: Option<bool>) -> Result<(), ApiError> {
    match ask.must_be_new && is_so == Some(false) {
        true => Err(ApiError::conflict(format!(
            "{what} already exists with other settings: change it (set, or --replace; in the API without must_be_new), or remove it first"
        ))),
        false => Ok(()),
    }
}

/// Puts `new` in the place of what matches, or at `at`, or at the end.
fn place<T>(list: &mut Vec<T>, new: T, at: Option<usize>, is_it: impl Fn(&T) -> bool) {
    match list.iter().position(is_it) {
        Some(old) => list[old] = new,
        None => list.insert(at.map_or(list.len(), |at| at.saturating_sub(1).min(list.len())), new),
    }
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

async fn put_target(
    State(manager): State<Arc<Manager>>,
    Place(target): Place<String>,
    ask: Ask,
    Body(mut patch): Body<Value>,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    // Capitals in the body are the same name.
    if let Some(text) = patch.get("name").and_then(Value::as_str)
        && IscsiName::parse(text).is_ok_and(|same| same == name)
    {
        patch["name"] = json!(name);
    }
    let edit = move |config: &mut Config| {
        let place_name = format!("target {name}");
        may_create(ask, &place_name, config.target(name.as_str()).is_some())?;
        let mut new: TargetConfig =
            patched(&place_name, config.target(name.as_str()), ("name", json!(name)), patch.clone())?;
        restore_target(&mut new, config)?;
        let old = config.target(name.as_str());
        may_change(ask, &place_name, old.map(|old| *old == new.with_formats()))?;
        place(&mut config.targets, new, None, |target| target.name == name);
        Ok(())
    };
    manager.change(ask, edit).await
}

async fn delete_target(
    State(manager): State<Arc<Manager>>,
    Place(target): Place<String>,
    ask: Ask,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    let edit = move |config: &mut Config| {
        remove(&mut config.targets, ask, &format!("target {name}"), |target| target.name == name)
    };
    manager.change(ask, edit).await
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

async fn put_lun(
    State(manager): State<Arc<Manager>>,
    Place((target, lun)): Place<(String, u16)>,
    ask: Ask,
    Body(patch): Body<Value>,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    let make = match ask.create {
        Some(size) => {
            let device = patch.get("device").and_then(Value::as_str).unwrap_or_default();
            let device =
                DeviceSpec::parse(device).map_err(|error| ApiError::bad_request(error.to_string()))?;
            Some((NewFile::path_of(&device)?, size))
        }
        None => None,
    };
    let edit = move |config: &mut Config| {
        let target = find_mut(config, &name)?;
        let place_name = format!("target {name}, lun {lun}");
        let old = target.lun(lun);
        let what = format!("lun {lun} of target {name}");
        may_create(ask, &what, old.is_some())?;
        let mut new: LunConfig = patched(&place_name, old, ("id", json!(lun)), patch.clone())?;
        restore_lun(&place_name, &mut new, old)?;
        may_change(ask, &what, old.map(|old| *old == new.with_format()))?;
        place(&mut target.luns, new, None, |old| old.id == lun);
        Ok(())
    };
    manager.change_with(ask, make, edit).await
}

async fn delete_lun(
    State(manager): State<Arc<Manager>>,
    Place((target, lun)): Place<(String, u16)>,
    ask: Ask,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    let what = format!("lun {lun} of target {name}");
    remove_from(&manager, ask, name, what, |target| &mut target.luns, move |old| old.id == lun).await
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

async fn put_chap(
    State(manager): State<Arc<Manager>>,
    Place((target, user)): Place<(String, String)>,
    ask: Ask,
    Body(patch): Body<Value>,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    let edit = move |config: &mut Config| {
        let target = find_mut(config, &name)?;
        let place_name = format!("target {name}, chap user {user}");
        let old = target.chap.iter().find(|old| old.user == user);
        let what = format!("chap user {user} of target {name}");
        may_create(ask, &what, old.is_some())?;
        let new: ChapUser = patched(&place_name, old, ("user", json!(user)), patch.clone())?;
        may_change(ask, &what, old.map(|old| *old == new))?;
        place(&mut target.chap, new, None, |old| old.user == user);
        Ok(())
    };
    manager.change(ask, edit).await
}

async fn delete_chap(
    State(manager): State<Arc<Manager>>,
    Place((target, user)): Place<(String, String)>,
    ask: Ask,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    let what = format!("chap user {user} of target {name}");
    remove_from(&manager, ask, name, what, |target| &mut target.chap, move |old| old.user == user).await
}

async fn acl(
    State(manager): State<Arc<Manager>>,
    Place(target): Place<String>,
) -> Result<Tagged<Rules>, ApiError> {
    let (generation, config) = manager.configuration();
    let rules = find(&config, &name(&target)?)?.acl.clone();
    Ok(Tagged(generation, Rules { generation, rules }))
}

async fn put_rule(
    State(manager): State<Arc<Manager>>,
    Place((target, rule)): Place<(String, String)>,
    ask: Ask,
    Body(patch): Body<Value>,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    let edit = move |config: &mut Config| {
        let target = find_mut(config, &name)?;
        let is_it = |old: &AccessRule| old.name.as_ref() == Some(&rule);
        let place_name = format!("target {name}, acl {rule}");
        let old = target.acl.iter().find(|old| is_it(old));
        let what = format!("rule {rule} in the acl of target {name}");
        may_create(ask, &what, old.is_some())?;
        let new: AccessRule = patched(&place_name, old, ("name", json!(rule)), patch.clone())?;
        may_change(ask, &what, old.map(|old| *old == new))?;
        place(&mut target.acl, new, ask.at, is_it);
        Ok(())
    };
    manager.change(ask, edit).await
}

async fn delete_rule(
    State(manager): State<Arc<Manager>>,
    Place((target, rule)): Place<(String, String)>,
    ask: Ask,
) -> Result<Applied, ApiError> {
    let name = name(&target)?;
    let what = format!("rule {rule} in the acl of target {name}");
    remove_from(
        &manager,
        ask,
        name,
        what,
        |target| &mut target.acl,
        move |old| old.name.as_ref() == Some(&rule),
    )
    .await
}

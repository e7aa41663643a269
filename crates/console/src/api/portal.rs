//! Portals: where initiators come in.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::routing::{delete, get, put};
use lunway_target::{
    Config, FIRST_PORTAL_GROUP, PortalGroupConfig, PortalSpec, PortalSpecError, PortalSummary,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{Applied, Tagged};
use crate::error::ApiError;
use crate::extract::{Ask, PathParameters};
use crate::manager::Manager;
use crate::route::{CHANGE, REMOVAL, Route};

/// All portals.
#[derive(Debug, Serialize, JsonSchema)]
struct Portals {
    /// The generation of the configuration.
    generation: u64,
    /// The entries of `listen`, and the addresses that they stand for now.
    portals: Vec<PortalSummary>,
}

pub(super) fn routes() -> Vec<Route> {
    const PORTAL: &str = "/v1/portals/{group}/{listen}";
    vec![
        Route::new(Method::GET, "/v1/portals", "The portals, by their groups.", get(portals)).answers::<Portals>(),
        Route::new(
            Method::PUT,
            PORTAL,
            "Listen on an address, an interface or a network (`/` written as %2F), for the portal group of this tag.",
            put(add),
        )
        .query(CHANGE)
        .answers::<Applied>(),
        Route::new(
            Method::DELETE,
            PORTAL,
            "Stop listening on an address, an interface or a network. A portal group without entries is removed, \
             except the first.",
            delete(remove),
        )
        .query(REMOVAL)
        .answers::<Applied>(),
    ]
}

async fn portals(State(manager): State<Arc<Manager>>) -> Tagged<Portals> {
    let (generation, _) = manager.configuration();
    Tagged(generation, Portals { generation, portals: manager.server.portals() })
}

fn spec(text: &str) -> Result<PortalSpec, ApiError> {
    text.parse().map_err(|error: PortalSpecError| ApiError::bad_request(error.to_string()))
}

async fn add(
    State(manager): State<Arc<Manager>>,
    PathParameters((group, listen)): PathParameters<(u16, String)>,
    ask: Ask,
) -> Result<Applied, ApiError> {
    let spec = spec(&listen)?;
    let edit = move |config: &mut Config| {
        let entries = match config.portal_groups.iter().position(|old| old.tag == group) {
            _ if group == FIRST_PORTAL_GROUP => &mut config.listen,
            Some(at) => &mut config.portal_groups[at].listen,
            None => {
                config.portal_groups.push(PortalGroupConfig { tag: group, listen: vec![spec.clone()] });
                return Ok(());
            }
        };
        if !entries.contains(&spec) {
            entries.push(spec.clone());
        }
        Ok(())
    };
    manager.change(ask, edit).await
}

async fn remove(
    State(manager): State<Arc<Manager>>,
    PathParameters((group, listen)): PathParameters<(u16, String)>,
    ask: Ask,
) -> Result<Applied, ApiError> {
    let spec = spec(&listen)?;
    let (_, present) = manager.configuration();
    let absent = absent(&present, group, &spec);
    let error = absent.clone();
    let edit = move |config: &mut Config| {
        let lists = config.portal_groups.iter_mut().filter(|old| old.tag == group).map(|old| &mut old.listen);
        let first = (group == FIRST_PORTAL_GROUP).then_some(&mut config.listen);
        let mut removed = false;
        for entries in lists.chain(first) {
            let before = entries.len();
            entries.retain(|entry| *entry != spec);
            removed |= entries.len() != before;
        }
        config.portal_groups.retain(|old| !old.listen.is_empty());
        match removed || !ask.must_exist {
            true => Ok(()),
            false => Err(ApiError::not_found(error.clone())),
        }
    };
    Ok(manager.change(ask, edit).await?.or(absent))
}

/// Returns the sentence that a group has no such entry, and which group has it.
fn absent(config: &Config, group: u16, spec: &PortalSpec) -> String {
    let first = config.listen.contains(spec).then_some(FIRST_PORTAL_GROUP);
    let others =
        config.portal_groups.iter().filter(|other| other.listen.contains(spec)).map(|other| other.tag);
    match first.into_iter().chain(others).find(|other| *other != group) {
        Some(other) => {
            format!("portal group {group} does not listen on {spec}; portal group {other} does")
        }
        None => format!("portal group {group} does not listen on {spec}"),
    }
}

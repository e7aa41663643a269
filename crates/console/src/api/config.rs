//! The configuration as one document.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::routing::get;
use lunway_target::Config;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{Applied, Tagged};
use crate::error::ApiError;
use crate::extract::{Ask, Body};
use crate::manager::Manager;
use crate::patch;
use crate::route::{RESHAPE, Route};

/// The configuration that is served.
#[derive(Debug, Serialize, JsonSchema)]
struct ConfigAnswer {
    /// Its number: it grows by one with each change.
    generation: u64,
    /// The configuration file; null: there is none.
    file: Option<PathBuf>,
    /// All of it, with the keys of the file. Secrets in addresses of devices are shown as `***`, and understood so.
    config: Config,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/v1/config", "The configuration that is served.", get(show))
            .answers::<ConfigAnswer>(),
        Route::new(
            Method::PUT,
            "/v1/config",
            "Replace the configuration. Settings that it does not contain are reset to their defaults or removed.",
            axum::routing::put(replace),
        )
        .query(RESHAPE)
        .body::<Config>()
        .answers::<Applied>(),
    ]
}

async fn show(State(manager): State<Arc<Manager>>) -> Tagged<ConfigAnswer> {
    let (generation, config) = manager.configuration();
    let file =
        manager.source.file().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
    Tagged(generation, ConfigAnswer { generation, file, config: config.redacted() })
}

async fn replace(
    State(manager): State<Arc<Manager>>,
    ask: Ask,
    Body(new): Body<Config>,
) -> Result<Applied, ApiError> {
    let edit = move |config: &mut Config| {
        let mut new = Config { origin: config.origin.clone(), ..new.clone() };
        patch::restore_secrets(&mut new, config)?;
        if new.backups != config.backups {
            return Err(ApiError::unprocessable(
                "backup: its commands are run as the daemon's user, so it is changed in the configuration file alone: edit \
                 that and reload",
            ));
        }
        *config = new;
        Ok(())
    };
    manager.change(ask, edit).await
}

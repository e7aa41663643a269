//! The daemon as a whole.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use lunway_target::MetricsSnapshot;
use serde_json::Value;

use crate::answer::{Applied, Health};
use crate::error::ApiError;
use crate::extract::Ask;
use crate::manager::Manager;
use crate::route::{RESHAPE, Route, document};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/v1/health", "Whether the daemon runs.", get(health)).answers::<Health>(),
        Route::new(
            Method::GET,
            "/v1/ready",
            "Whether initiators can log in: 503 while the daemon ends.",
            get(ready),
        )
        .answers::<Health>(),
        Route::new(Method::GET, "/v1/openapi.json", "This document.", get(openapi)).answers::<Value>(),
        Route::new(
            Method::POST,
            "/v1/reload",
            "Read the configuration file and the files with secrets again, and apply them.",
            post(reload),
        )
        .query(RESHAPE)
        .answers::<Applied>(),
        Route::new(
            Method::GET,
            "/v1/metrics",
            "Counters of logical units, sessions and portals, each since its creation.",
            get(metrics),
        )
        .answers::<MetricsSnapshot>(),
        Route::new(Method::GET, "/metrics", "The metrics in the text format of Prometheus.", get(prometheus)),
    ]
}

async fn health(State(manager): State<Arc<Manager>>) -> Json<Health> {
    Json(manager.health())
}

async fn ready(State(manager): State<Arc<Manager>>) -> Result<Json<Health>, ApiError> {
    manager.ready()?;
    Ok(Json(manager.health()))
}

async fn openapi() -> Json<Value> {
    Json(document(&super::routes()))
}

async fn metrics(State(manager): State<Arc<Manager>>) -> Json<MetricsSnapshot> {
    Json(manager.server.metrics())
}

async fn prometheus(State(manager): State<Arc<Manager>>) -> impl IntoResponse {
    let page = manager.server.metrics().prometheus() + &super::schedule::prometheus(&manager);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}

async fn reload(State(manager): State<Arc<Manager>>, ask: Ask) -> Result<Applied, ApiError> {
    manager.reload(ask).await
}

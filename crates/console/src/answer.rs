//! What the API answers.

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::ETAG;
use axum::response::{IntoResponse, Response};
use lunway_target::{Change, ChangeKind, Warning};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a change came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Applied {
    /// The generation that is served now. It grows by one with each change.
    pub generation: u64,
    /// Nothing was changed: this is what would be.
    pub dry_run: bool,
    /// The configuration file says the same, so that it lasts over restarts. A daemon without such a file forgets.
    pub persisted: bool,
    /// What is different; empty if everything was so already.
    pub changes: Vec<Line>,
    /// What it means for initiators, and what of it may not be meant, a sentence each: sessions that are logged out,
    /// targets that nobody or everybody may log in to from now on, secrets that can be guessed or read, addresses that
    /// are not listened on.
    pub effects: Vec<String>,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// What happens.
    pub kind: Kind,
    /// To what: `target iqn.…, lun 3`; empty for the daemon as a whole.
    pub place: String,
    /// Which key of it; null: all of it.
    pub key: Option<String>,
    /// How it was.
    pub from: Option<String>,
    /// How it is then.
    pub to: Option<String>,
    /// All of that as a line for people.
    pub text: String,
}

/// What happens to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It is new.
    Added,
    /// It goes.
    Removed,
    /// It gets another value.
    Changed,
}

impl From<&Change> for Line {
    fn from(change: &Change) -> Self {
        let kind = match change.kind {
            ChangeKind::Added => Kind::Added,
            ChangeKind::Removed => Kind::Removed,
            ChangeKind::Changed => Kind::Changed,
        };
        let Change { place, key, from, to, .. } = change.clone();
        Self { kind, place, key, from, to, text: change.to_string() }
    }
}

/// Whether the daemon is there, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has served, seconds.
    pub uptime_s: u64,
    /// The generation of its configuration.
    pub generation: u64,
    /// What is served as configured and may not be meant so: open targets, secrets that are weak or that every user may
    /// read, addresses that are not listened on.
    #[serde(default)]
    pub warnings: Vec<Warning>,
}

/// An answer that depends on the configuration: JSON, with the generation as `ETag`.
pub(crate) struct Tagged<T>(pub(crate) u64, pub(crate) T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.1).into_response();
        if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", self.0)) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

impl IntoResponse for Applied {
    fn into_response(self) -> Response {
        Tagged(self.generation, self).into_response()
    }
}

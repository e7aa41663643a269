//! Answers of the API.

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::ETAG;
use axum::response::{IntoResponse, Response};
use lunway_target::{Change, ChangeKind, Warning};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Applied {
    /// The generation that is served now. It grows by one with each change.
    pub generation: u64,
    /// Nothing was changed: this is what would be.
    pub dry_run: bool,
    /// The change is saved in the configuration file. If not, it is lost when the daemon ends.
    pub persisted: bool,
    /// The differences; empty if there are none.
    pub changes: Vec<Line>,
    /// Consequences and warnings, a sentence each: sessions that are logged out, targets that now admit no
    /// initiator or every initiator, secrets that can be guessed or read, portals that the daemon cannot listen
    /// on.
    pub effects: Vec<String>,
}

impl Applied {
    /// The same, with this sentence if nothing is different.
    pub(crate) fn or(mut self, sentence: String) -> Self {
        if self.changes.is_empty() {
            self.effects.push(sentence);
        }
        self
    }
}

/// Difference in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Kind of change.
    pub kind: Kind,
    /// To what: `target iqn.…, lun 3`; empty for the daemon as a whole.
    pub place: String,
    /// The key that changes; null: the whole item.
    pub key: Option<String>,
    /// Value before the change.
    pub from: Option<String>,
    /// Value after the change.
    pub to: Option<String>,
    /// The difference as one line of text.
    pub text: String,
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// New.
    Added,
    /// Goes.
    Removed,
    /// Its value changes.
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

/// State of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Time since its start, seconds.
    pub uptime_s: u64,
    /// The generation of its configuration.
    pub generation: u64,
    /// Warnings about the configuration: open targets, secrets that are weak or readable by every user, portals
    /// that the daemon cannot listen on.
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

//! Errors of the API, with their statuses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lunway_block::BlockError;
use lunway_target::{ChangeError, ConfigError, StartError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A refusal: a status for programs and one sentence for people, which says what is wrong, where, and what would be
/// right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) sentence: String,
    /// Parameter or member of the request that would decide otherwise.
    pub(crate) parameter: Option<&'static str>,
    /// Method of a request for the same path that ends what is in the way.
    pub(crate) method: Option<&'static str>,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error, its place, and the remedy, in one sentence.
    pub error: String,
    /// The parameter of the query, or the member of the body, that would decide otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The method of a request for the same path that ends what is in the way: `DELETE` of a compaction that is under
    /// way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self { status, sentence: sentence.into(), parameter: None, method: None }
    }

    /// The same, decided by a parameter or member of the request: clients name it in their own words.
    pub(crate) fn decided_by(self, parameter: &'static str) -> Self {
        Self { parameter: Some(parameter), ..self }
    }

    /// The same, with the method of a request for the same path that ends what is in the way.
    fn ended_by(self, method: &'static str) -> Self {
        Self { method: Some(method), ..self }
    }

    /// The request cannot be meant.
    pub(crate) fn bad_request(sentence: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, sentence)
    }

    /// Makes the error for a request that names something that does not exist.
    pub(crate) fn not_found(sentence: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, sentence)
    }

    /// Error of a request that would be right at another time.
    pub(crate) fn conflict(sentence: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, sentence)
    }

    /// Error of a request that is understood, but cannot be served.
    pub(crate) fn unprocessable(sentence: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, sentence)
    }

    /// This daemon failed.
    pub(crate) fn internal(sentence: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, sentence)
    }

    pub(crate) fn unauthorized() -> Self {
        let sentence = "the API on TCP requires the token from its token_file: `Authorization: Bearer TOKEN`";
        Self::new(StatusCode::UNAUTHORIZED, sentence)
    }
}

impl From<ApiError> for ErrorBody {
    fn from(error: ApiError) -> Self {
        Self {
            error: error.sentence,
            parameter: error.parameter.map(str::to_owned),
            method: error.method.map(str::to_owned),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody::from(self))).into_response()
    }
}

/// Converts the server's refusals to errors for clients.
pub(crate) fn refused(error: ChangeError) -> ApiError {
    let status = match &error {
        ChangeError::NotFound(_) => StatusCode::NOT_FOUND,
        ChangeError::Offline { .. } | ChangeError::Unsettled { .. } => StatusCode::CONFLICT,
        ChangeError::Generation { .. }
        | ChangeError::NeedsRestart(_)
        | ChangeError::Smaller { .. }
        | ChangeError::Cut { .. }
        | ChangeError::HasSnapshots { .. }
        | ChangeError::InUse { .. }
        | ChangeError::HoldsData { .. }
        | ChangeError::Nameless { .. }
        | ChangeError::LostEnd { .. }
        | ChangeError::Reopened { .. } => StatusCode::CONFLICT,
        ChangeError::ShuttingDown | ChangeError::Late { .. } | ChangeError::GivenUp => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        ChangeError::Broken(_) => StatusCode::INTERNAL_SERVER_ERROR,
        ChangeError::Persist(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            StatusCode::CONFLICT
        }
        ChangeError::Persist(_) => StatusCode::INTERNAL_SERVER_ERROR,
        ChangeError::Unfit(StartError::Config(ConfigError::Read { .. }) | StartError::State(_)) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let refusal = ApiError::new(status, error.to_string());
    match error {
        ChangeError::Smaller { .. } => refusal.decided_by("shrink"),
        ChangeError::Cut { .. }
        | ChangeError::InUse { .. }
        | ChangeError::HoldsData { .. }
        | ChangeError::Nameless { .. } => refusal.decided_by("force"),
        ChangeError::HasSnapshots { .. } => refusal.decided_by("end_snapshots"),
        ChangeError::Compaction { error: BlockError::Busy, .. } => refusal.ended_by("DELETE"),
        _ => refusal,
    }
}

//! Extraction of the parts of a request; each error is reported in one sentence.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{EXPECT, IF_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// Largest body, bytes: a configuration of ten thousand LUNs.
const BODY_MAX: usize = 4 << 20;
/// Time limit for a client to send the body. A body beyond the size limit is read and dropped for as long, so that the
/// client, which reads when it has sent everything, learns what is wrong.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Path parameters: the variable segments of a request's path.
pub(crate) struct PathParameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(parameters)) => Ok(Self(parameters)),
            Err(error) => Err(ApiError::bad_request(format!("{}: {error}", parts.uri.path()))),
        }
    }
}

/// Options of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ask {
    pub(crate) dry_run: bool,
    /// The generation that the client knows.
    pub(crate) generation: Option<u64>,
    pub(crate) must_exist: bool,
    pub(crate) must_be_new: bool,
    /// Logical units may get fewer bytes than they have.
    pub(crate) shrink: bool,
    /// Snapshots may end with what is taken away.
    pub(crate) end_snapshots: bool,
    /// Logical units that initiators use, and memory with data, may be removed or replaced.
    pub(crate) force: bool,
    /// Make the file behind a new logical unit, with so many bytes.
    pub(crate) create: Option<u64>,
    /// Position of a new access rule, counted from 1.
    pub(crate) at: Option<usize>,
}

impl<S: Send + Sync> FromRequestParts<S> for Ask {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Asked(mut ask) = Asked::<Self>::from_request_parts(parts, state).await?;
        if let Some(tag) = parts.headers.get(IF_MATCH) {
            ask.generation = generation(tag)?.or(ask.generation);
        }
        Ok(ask)
    }
}

/// `"17"`, `17`, or `*` for any.
fn generation(tag: &HeaderValue) -> Result<Option<u64>, ApiError> {
    let text = tag.to_str().unwrap_or("?").trim().trim_matches('"');
    match text {
        "*" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!(
                "If-Match: {text:?} is not a generation: send the number that GET /v1/config gave"
            ))
        }),
    }
}

/// Query of a request, in a type that refuses unknown parameters.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(error) => {
                let cause =
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Err(ApiError::bad_request(format!("the query of {}: {cause}", parts.uri.path())))
            }
        }
    }
}

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let path = request.uri().path().to_owned();
        let too_large = || {
            let sentence = format!("{path}: a body has at most {BODY_MAX} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, sentence)
        };
        // Who asks before it sends is answered before.
        let is_told = request.body().size_hint().lower() > BODY_MAX as u64;
        if is_told && request.headers().contains_key(EXPECT) {
            return Err(too_large());
        }
        let mut is_larger = is_told;
        let collected = tokio::time::timeout(BODY_TIME, collect(request.into_body(), &mut is_larger)).await;
        let bytes = match collected {
            _ if is_larger => return Err(too_large()),
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                return Err(ApiError::bad_request(format!("{path}: the body broke off: {error}")));
            }
            Err(_) => {
                let sentence = format!("{path}: the body did not come within {} s", BODY_TIME.as_secs());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, sentence));
            }
        };
        if bytes.is_empty() {
            return Err(ApiError::bad_request(format!("{path}: a JSON body is needed, at least {{}}")));
        }
        serde_json::from_slice(&bytes).map(Self).map_err(|error| unfit(&path, &error))
    }
}

/// A body; of one that `is_larger` than it may be nothing is kept.
async fn collect(mut body: axum::body::Body, is_larger: &mut bool) -> Result<Vec<u8>, axum::Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        *is_larger |= bytes.len() + data.len() > BODY_MAX;
        if *is_larger {
            bytes = Vec::new();
        } else {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

/// JSON that does not say what is needed here.
pub(crate) fn unfit(place: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    // The place is said here, and the parser's own "line 1 column 17" does not help with a value that it did not parse.
    match error.classify() {
        serde_json::error::Category::Data => {
            let text = text.split_once(" at line ").map_or(text.as_str(), |(text, _)| text);
            ApiError::unprocessable(format!("{place}: {text}"))
        }
        _ => ApiError::bad_request(format!("{place}: the body is not JSON: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_match_names_a_generation() {
        let read = |text: &'static str| generation(&HeaderValue::from_static(text));
        assert_eq!((read("\"17\""), read("17"), read("*")), (Ok(Some(17)), Ok(Some(17)), Ok(None)));
        assert!(read("\"x\"").unwrap_err().sentence.contains("\"x\" is not a generation"));
    }
}

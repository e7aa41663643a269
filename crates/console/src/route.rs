//! The one table from which both the router and its document are made.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::MethodRouter;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ErrorBody};
use crate::manager::Manager;

/// Operation of the API: its request, its answer, and its handler.
///
/// There is no other way to add an operation, so none can lack its documentation.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// With `{name}` for what varies, which both the router and OpenAPI understand.
    pub(crate) path: &'static str,
    /// Summary, in one sentence.
    pub(crate) summary: &'static str,
    pub(crate) query: &'static [Parameter],
    pub(crate) body: Option<MakeSchema>,
    /// Schema of the answer to a success; `None`: text.
    pub(crate) answer: Option<MakeSchema>,
    pub(crate) handler: MethodRouter<Arc<Manager>>,
}

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// A parameter in the query.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) description: &'static str,
}

/// Says what changes would be made, and makes none.
pub(crate) const DRY_RUN: Parameter = Parameter {
    name: "dry_run",
    kind: "boolean",
    description: "Report what would change, without changing it.",
};
/// Guards against others' changes.
pub(crate) const GENERATION: Parameter = Parameter {
    name: "generation",
    kind: "integer",
    description: "Refuse (409) unless the configuration still has this generation. The header If-Match has the same \
                  effect.",
};
/// Makes a removal strict, and a PUT a mere change.
pub(crate) const MUST_EXIST: Parameter = Parameter {
    name: "must_exist",
    kind: "boolean",
    description: "Refuse (404) if it does not exist; otherwise PUT creates it, and DELETE succeeds.",
};
/// Makes a PUT a mere creation.
pub(crate) const MUST_BE_NEW: Parameter = Parameter {
    name: "must_be_new",
    kind: "boolean",
    description: "Refuse (409) to change something that already exists, unless it is as in the body: a creation can be repeated.",
};
/// Lets a device lose what is behind a new end.
pub(crate) const SHRINK: Parameter = Parameter {
    name: "shrink",
    kind: "boolean",
    description: "Allow a smaller size for logical units in memory: data beyond the new end are lost. Otherwise that is refused (409).",
};
/// Lets snapshots end with what is taken away.
pub(crate) const END_SNAPSHOTS: Parameter = Parameter {
    name: "end_snapshots",
    kind: "boolean",
    description: "Allow snapshots to end with a logical unit that is removed, gets another device or a smaller size. Otherwise that is refused (409).",
};
/// Lets a logical unit go that is used, and memory with data.
pub(crate) const FORCE: Parameter = Parameter {
    name: "force",
    kind: "boolean",
    description: "Remove or replace logical units that initiators use, and those that are memory and hold data, which are lost. Otherwise that is refused (409).",
};
/// Makes the file behind a logical unit.
pub(crate) const CREATE: Parameter = Parameter {
    name: "create",
    kind: "integer",
    description: "Create the file of the device, sparse, with this many bytes. An existing file is refused (409). The file is removed again if the change fails.",
};
/// Parameters of all changes.
pub(crate) const CHANGE: &[Parameter] = &[DRY_RUN, GENERATION];
/// Parameters of changes of the whole configuration, which can resize, replace and remove logical units.
pub(crate) const RESHAPE: &[Parameter] = &[DRY_RUN, GENERATION, SHRINK, END_SNAPSHOTS, FORCE];
/// Parameters of a PUT of something with a name.
pub(crate) const CREATION: &[Parameter] = &[DRY_RUN, GENERATION, MUST_EXIST, MUST_BE_NEW];
/// Parameters of all removals.
pub(crate) const REMOVAL: &[Parameter] = &[DRY_RUN, GENERATION, MUST_EXIST];
/// Parameters of requests that remove logical units.
pub(crate) const LUN_REMOVAL: &[Parameter] = &[DRY_RUN, GENERATION, MUST_EXIST, END_SNAPSHOTS, FORCE];

impl Route {
    pub(crate) fn new(
        method: Method,
        path: &'static str,
        summary: &'static str,
        handler: MethodRouter<Arc<Manager>>,
    ) -> Self {
        Self { method, path, summary, query: &[], body: None, answer: None, handler }
    }

    pub(crate) fn query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    pub(crate) fn body<T: JsonSchema>(self) -> Self {
        Self { body: Some(SchemaGenerator::subschema_for::<T>), ..self }
    }

    pub(crate) fn answers<T: JsonSchema>(self) -> Self {
        Self { answer: Some(SchemaGenerator::subschema_for::<T>), ..self }
    }
}

/// Makes the router that answers requests.
pub(crate) fn router(routes: Vec<Route>, manager: Arc<Manager>) -> Router {
    let router =
        routes.into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler));
    let nothing = |method: Method, uri: Uri| async move {
        ApiError::not_found(format!(
            "there is nothing at {}: {method} one of the paths that GET /v1/openapi.json describes",
            uri.path()
        ))
    };
    let not_so = |method: Method, uri: Uri| async move {
        let sentence = format!("{} cannot be asked with {method}: see GET /v1/openapi.json", uri.path());
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, sentence)
    };
    router.fallback(nothing).method_not_allowed_fallback(not_so).with_state(manager)
}

/// The OpenAPI 3.1 document of the routes.
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let error = generator.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for route in routes {
        let mut operation = json!({
            "summary": route.summary,
            "operationId": operation_id(route),
            "parameters": parameters(route),
            "responses": {
                "200": { "description": "Done.", "content": content(route.answer, &mut generator) },
                "default": {
                    "description": "Not done, and nothing changed: the body says why in one sentence.",
                    "content": { "application/json": { "schema": error } },
                },
            },
        });
        if route.body.is_some() {
            operation["requestBody"] =
                json!({ "required": true, "content": content(route.body, &mut generator) });
        }
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "lunway",
            "description": "Manages a running lunway daemon. Every change is one transaction: checked, opened, kept, applied; \
                or refused with everything as it was. Every PUT and DELETE can be repeated.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer", "description": "On TCP only." } },
        },
        "security": [{}, { "token": [] }],
    })
}

fn content(schema: Option<MakeSchema>, generator: &mut SchemaGenerator) -> Value {
    match schema {
        Some(schema) => json!({ "application/json": { "schema": schema(generator) } }),
        None => json!({ "text/plain": { "schema": { "type": "string" } } }),
    }
}

/// `put_targets_target_luns_lun`.
fn operation_id(route: &Route) -> String {
    let path = route.path.trim_start_matches("/v1").replace(['{', '}'], "");
    let path = path.trim_start_matches('/').trim_end_matches(".json").replace('/', "_");
    format!("{}_{path}", route.method.as_str().to_ascii_lowercase())
}

fn parameters(route: &Route) -> Vec<Value> {
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = names.map(|name| {
        let kind = if matches!(name, "lun" | "group" | "tsih") { "integer" } else { "string" };
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } })
    });
    let in_query = route.query.iter().map(|parameter| {
        let Parameter { name, kind, description } = parameter;
        json!({ "name": name, "in": "query", "description": description, "schema": { "type": kind } })
    });
    in_path.chain(in_query).collect()
}

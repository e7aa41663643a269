//! The management interface: a section for each operation and type of an OpenAPI document.

use serde_json::{Value, json};

use crate::{Row, Section, Table, description, last};

/// The operations of an OpenAPI document, then its types.
///
/// # Panics
///
/// Where an operation, parameter, type, value or field has no description.
pub fn interface(document: &Value) -> Vec<Section> {
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten();
        methods.map(move |(method, asked)| operation(&format!("{} {path}", method.to_uppercase()), asked))
    });
    let mut sections: Vec<_> = operations.collect();
    sections.push(Section {
        level: 1,
        heading: "Types".to_owned(),
        text: String::new(),
        table: None,
        after: String::new(),
    });
    let types = document["components"]["schemas"].as_object().into_iter().flatten();
    sections.extend(types.map(|(name, schema)| a_type(name, schema)));
    sections
}

fn operation(heading: &str, operation: &Value) -> Section {
    let summary = operation["summary"].as_str().filter(|text| !text.is_empty());
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let query = parameters.iter().filter(|parameter| parameter["in"] == "query");
    let rows: Vec<_> = query
        .map(|parameter| {
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            let text = description(parameter, &format!("{heading}: {name}"));
            Row { name, cells: vec![form(&parameter["schema"]), text] }
        })
        .collect();
    let body = content(&operation["requestBody"]).map(|body| format!("Body: {body}. ")).unwrap_or_default();
    let answer = content(&operation["responses"]["200"]).unwrap_or_else(|| "nothing".to_owned());
    Section {
        level: 2,
        heading: heading.to_owned(),
        text: summary.unwrap_or_else(|| panic!("{heading} has no summary")).to_owned(),
        table: (!rows.is_empty()).then_some(Table { headings: &["parameter", "type", "meaning"], rows }),
        after: format!("{body}Answer: {answer}."),
    }
}

fn a_type(name: &str, schema: &Value) -> Section {
    let choices = schema["oneOf"].as_array().map(|choices| Table {
        headings: &["value", "meaning"],
        rows: choices
            .iter()
            .map(|choice| Row {
                name: choice.get("const").map_or_else(|| form(choice), Value::to_string),
                cells: vec![description(choice, &format!("{name}: {choice}"))],
            })
            .collect(),
    });
    let fields = schema["properties"].as_object().map(|fields| Table {
        headings: &["field", "type", "meaning"],
        rows: fields
            .iter()
            .map(|(field, schema)| Row {
                name: field.clone(),
                cells: vec![form(schema), description(schema, &format!("{name}: {field}"))],
            })
            .collect(),
    });
    Section {
        level: 2,
        heading: name.to_owned(),
        text: description(schema, name),
        table: choices.or(fields),
        after: String::new(),
    }
}

/// Returns the type of a value, in a word; a type of the document is a link to its section.
fn form(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = last(reference);
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return choices.iter().map(form).collect::<Vec<_>>().join(" or ");
    }
    if let Some(word) = schema.get("const") {
        return format!("`{word}`");
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        Value::String(kind) => vec![kind.as_str()],
        _ => vec!["object"],
    };
    let one = |kind: &str| match kind {
        "array" => format!("list of {}", form(&schema["items"])),
        kind => kind.to_owned(),
    };
    kinds.into_iter().map(one).collect::<Vec<_>>().join(" or ")
}

/// Returns the content of a body; `None` if it has none.
fn content(of: &Value) -> Option<String> {
    let content = of["content"].as_object()?;
    Some(match content.get("application/json") {
        Some(json) if json["schema"].is_object() && json["schema"] != json!({}) => form(&json["schema"]),
        Some(_) => "an object".to_owned(),
        None => "text".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_first_and_link_to_the_types() {
        let document = json!({
            "paths": { "/v1/x": { "put": {
                "summary": "Change x.",
                "parameters": [
                    { "in": "query", "name": "dry_run", "description": "Change nothing.", "schema": { "type": "boolean" } },
                    { "in": "path", "name": "x" },
                ],
                "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Body" } } } },
                "responses": { "200": { "content": { "text/plain": {} } } },
            } } },
            "components": { "schemas": {
                "Body": { "description": "A body.", "properties": {
                    "list": { "type": ["array", "null"], "items": { "type": "string" }, "description": "Texts." } } },
                "Mode": { "description": "A mode.", "oneOf": [{ "const": "a", "description": "First." }] },
            } },
        });
        let sections = interface(&document);
        let headings: Vec<_> = sections.iter().map(|section| section.heading.as_str()).collect();
        assert_eq!(headings, ["PUT /v1/x", "Types", "Body", "Mode"]);
        let page = crate::markdown(&sections);
        for line in [
            "| `dry_run` | boolean | Change nothing. |",
            "Body: [Body](#body). Answer: text.",
            "| `list` | list of string or null | Texts. |",
            "| `\"a\"` | First. |",
        ] {
            assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
        }
        assert!(!page.contains("| `x` |"));
    }
}

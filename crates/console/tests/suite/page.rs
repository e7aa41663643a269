//! The page of the management interface: every operation, parameter and field, made of the OpenAPI document.

use std::fmt::Write as _;

use serde_json::Value;

/// A description as a cell of a table: on one line, links as their text, nothing that ends the cell.
fn cell(text: &str) -> String {
    let text = text.split("\n\n").next().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some((before, link)) = rest.split_once('[') {
        let Some((name, after)) = link.split_once(']') else { break };
        plain += before;
        plain += name;
        // Where the link leads is the source's business.
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain + rest
}

/// The last part of a reference, linked to its heading.
fn named(reference: &str) -> String {
    let name = reference.rsplit('/').next().unwrap();
    format!("[{name}](#{})", name.to_lowercase())
}

/// What a value is, in a word.
fn form(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return named(reference);
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

fn content(of: &Value) -> Option<String> {
    let content = of["content"].as_object()?;
    Some(match content.get("application/json") {
        Some(json) if json["schema"].is_object() && json["schema"] != serde_json::json!({}) => {
            form(&json["schema"])
        }
        Some(_) => "an object".to_owned(),
        None => "text".to_owned(),
    })
}

/// The page. Panics where something has no description.
fn page(document: &Value) -> String {
    let mut page = "# The management interface\n\nEvery operation, parameter and field. Written by `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-console --test suite`. \
                    How it is reached, and examples: [Manage a running daemon](manage.md#http).\n"
        .to_owned();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let summary = operation["summary"].as_str().filter(|text| !text.is_empty());
            let summary = summary.unwrap_or_else(|| panic!("{method} {path} has no summary"));
            write!(page, "\n## {} {path}\n\n{summary}\n", method.to_uppercase()).unwrap();
            let query = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            let query: Vec<_> = query.iter().filter(|parameter| parameter["in"] == "query").collect();
            if !query.is_empty() {
                page += "\n| in the query | is | |\n|---|---|---|\n";
            }
            for parameter in query {
                let name = parameter["name"].as_str().unwrap();
                let text = parameter["description"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{path}: {name} has no description"));
                writeln!(page, "| `{name}` | {} | {} |", form(&parameter["schema"]), cell(text)).unwrap();
            }
            let body = content(&operation["requestBody"]).map(|body| format!("Body: {body}. "));
            let answer = content(&operation["responses"]["200"]).unwrap();
            write!(page, "\n{}Answer: {answer}.\n", body.unwrap_or_default()).unwrap();
        }
    }
    page += "\n# Its types\n";
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let text = schema["description"].as_str().unwrap_or_else(|| panic!("{name} has no description"));
        write!(page, "\n## {name}\n\n{}\n", cell(text)).unwrap();
        if let Some(choices) = schema["oneOf"].as_array() {
            page += "\n| value | |\n|---|---|\n";
            for choice in choices {
                let text = choice["description"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{name}: {choice} has no description"));
                writeln!(page, "| {} | {} |", form(choice), cell(text)).unwrap();
            }
        }
        if let Some(fields) = schema["properties"].as_object() {
            page += "\n| field | is | |\n|---|---|---|\n";
            for (field, schema) in fields {
                let text = schema["description"].as_str();
                let text = text.unwrap_or_else(|| panic!("{name}: {field} has no description"));
                writeln!(page, "| `{field}` | {} | {} |", form(schema), cell(text)).unwrap();
            }
        }
    }
    page
}

#[test]
fn every_operation_parameter_and_field_of_the_interface_is_on_its_page_and_nothing_else() {
    let page = page(&lunway_console::openapi());
    lunway_foreign::written::says("docs/src/api.md", &page, "-p lunway-console --test suite");
}

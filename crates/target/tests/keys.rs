//! Whether the page of all configuration keys says what the configuration takes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Write as _;

use lunway_target::Config;
use serde_json::Value;

/// What a key takes, in a word: `text`, `number`, `true or false`, the words of a choice; `table` for keys below it.
fn form(schema: &Value, root: &Value) -> String {
    let schema = resolved(schema, root);
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<_> = words.iter().filter(|word| !word.is_null()).map(Value::to_string).collect();
        return words.join(", ");
    }
    if let Some(choices) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let choices: Vec<_> = choices
            .iter()
            .filter(|choice| choice["type"] != "null")
            .map(|choice| form(choice, root))
            .collect();
        return choices.join(", ");
    }
    if let Some(word) = schema.get("const") {
        return word.to_string();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        kind => kind.as_str(),
    };
    match kind.unwrap_or("object") {
        "array" => match form(&schema["items"], root).as_str() {
            "table" => "tables".to_owned(),
            items => format!("list of {items}"),
        },
        "object" => "table".to_owned(),
        "boolean" => "true or false".to_owned(),
        "integer" | "number" => "number".to_owned(),
        _ => "text".to_owned(),
    }
}

fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    if let Some(name) = schema["$ref"].as_str() {
        return &root["$defs"][name.rsplit('/').next().unwrap()];
    }
    // `Option` of a type of its own.
    let choices = schema["anyOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    match choices {
        [one, null] if null["type"] == "null" => resolved(one, root),
        _ => schema,
    }
}

/// A doc comment as a sentence of the page: on one line, links as their text.
fn sentence(text: &str) -> String {
    let text = text.split("\n\n").next().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
    let mut sentence = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        let _ = write!(sentence, "{before}`{}`", name.rsplit("::").next().unwrap());
        rest = match after.strip_prefix('(').and_then(|after| after.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    (sentence + rest).replace("`None`", "without it")
}

fn tables(page: &mut String, title: &str, schema: &Value, root: &Value) {
    let schema = resolved(schema, root);
    let Some(keys) = schema["properties"].as_object() else { return };
    write!(page, "\n## {title}\n\n| key | takes | is |\n|---|---|---|\n").unwrap();
    for (key, value) in keys {
        let description = value["description"].as_str().or(resolved(value, root)["description"].as_str());
        let description =
            sentence(description.unwrap_or_else(|| panic!("{title}: {key} has no description")));
        writeln!(page, "| `{key}` | {} | {description} |", form(value, root)).unwrap();
    }
    let prefix = title.trim_matches(['`', '[', ']']);
    let prefix = if prefix.starts_with("Top") { String::new() } else { format!("{prefix}.") };
    for (key, value) in keys {
        match form(value, root).as_str() {
            "table" => tables(page, &format!("`[{prefix}{key}]`"), value, root),
            "tables" => {
                tables(page, &format!("`[[{prefix}{key}]]`"), &resolved(value, root)["items"], root);
            }
            _ => {}
        }
    }
}

#[test]
fn every_configuration_key_is_in_the_page_of_all_keys() {
    let root = serde_json::to_value(schemars::schema_for!(Config)).unwrap();
    let mut page = "# All configuration keys\n\nOf the file that `lunway serve -c` reads, with [examples](configuration.md). Written by \
        `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-target --test keys` from the types that the file is read into.\n"
        .to_owned();
    tables(&mut page, "Top level", &root, &root);
    lunway_foreign::written::says("docs/src/keys.md", &page, "-p lunway-target --test keys");
}

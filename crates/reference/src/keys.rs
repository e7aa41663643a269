//! A configuration file: a section for each table of keys.

use serde_json::Value;

use crate::{Row, Section, Table, description, resolved};

/// The keys of a file: `schema` is what it is read into, `definitions` what that refers to.
///
/// # Panics
///
/// Where a key has no description.
pub fn keys(schema: &Value, definitions: &Value) -> Vec<Section> {
    let mut sections = Vec::new();
    table(&mut sections, "", "Top level", schema, definitions);
    sections
}

/// Appends the section of one table, and those of the tables in it. `path` is empty for the top level.
fn table(sections: &mut Vec<Section>, path: &str, heading: &str, schema: &Value, definitions: &Value) {
    let schema = resolved(schema, definitions);
    let Some(keys) = schema["properties"].as_object() else { return };
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = keys.iter().map(|(key, value)| {
        let form = form(value, definitions);
        // A reference is described where it stands, or where it leads.
        let described = if value["description"].is_string() { value } else { resolved(value, definitions) };
        let default = match &value["default"] {
            _ if required.iter().any(|name| name == key) => "required".to_owned(),
            _ if form.starts_with("table") => String::new(),
            Value::Null => String::new(),
            Value::Array(list) if list.is_empty() => String::new(),
            value => format!("`{value}`"),
        };
        let description = description(described, &format!("{heading}: {key}"));
        Row { name: key.clone(), cells: vec![form, default, description] }
    });
    sections.push(Section {
        level: 2,
        heading: heading.to_owned(),
        text: String::new(),
        table: Some(Table { headings: &["key", "takes", "default", "meaning"], rows: rows.collect() }),
        after: String::new(),
    });
    for (key, value) in keys {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match form(value, definitions).as_str() {
            "table" => table(sections, &path, &format!("`[{path}]`"), value, definitions),
            "tables" => {
                let items = &resolved(value, definitions)["items"];
                table(sections, &path, &format!("`[[{path}]]`"), items, definitions);
            }
            _ => {}
        }
    }
}

/// Returns the type of a key's value, in a word: `text`, `number`, `true or false`, the words of a choice; `table` or
/// `tables` for keys below it.
fn form(schema: &Value, definitions: &Value) -> String {
    let schema = resolved(schema, definitions);
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().filter(|word| !word.is_null()).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(", ");
    }
    if let Some(choices) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let choices = choices.iter().filter(|choice| choice["type"] != "null");
        return choices.map(|choice| form(choice, definitions)).collect::<Vec<_>>().join(", ");
    }
    if let Some(word) = schema.get("const") {
        return format!("`{word}`");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        kind => kind.as_str(),
    };
    match kind.unwrap_or("object") {
        "array" => match form(&schema["items"], definitions).as_str() {
            "table" => "tables".to_owned(),
            "text" => "list of texts".to_owned(),
            "number" => "list of numbers".to_owned(),
            items => format!("list of {items}"),
        },
        "object" => "table".to_owned(),
        "boolean" => "true or false".to_owned(),
        "integer" | "number" => "number".to_owned(),
        _ => "text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_has_a_section_for_each_table_of_keys() {
        let definitions = json!({
            "Disk": { "type": "object", "required": ["id"], "properties": {
                "id": { "type": "integer", "description": "Its number." } } },
            "Mode": { "oneOf": [{ "const": "a" }, { "const": "b" }], "description": "A mode." },
        });
        let schema = json!({ "properties": {
            "disk": { "type": "array", "items": { "$ref": "#/$defs/Disk" }, "description": "Disks." },
            "mode": { "$ref": "#/$defs/Mode", "default": "a" },
            "names": { "type": ["array", "null"], "items": { "type": "string" }, "description": "Names." },
        } });
        let sections = keys(&schema, &definitions);
        let headings: Vec<_> = sections.iter().map(|section| section.heading.as_str()).collect();
        assert_eq!(headings, ["Top level", "`[[disk]]`"]);
        let rows = |section: &Section| -> Vec<String> {
            let rows = section.table.as_ref().unwrap().rows.iter();
            rows.map(|row| format!("{}: {}", row.name, row.cells.join(" / "))).collect()
        };
        assert_eq!(
            rows(&sections[0]),
            [
                "disk: tables /  / Disks.",
                "mode: `\"a\"`, `\"b\"` / `\"a\"` / A mode.",
                "names: list of texts /  / Names."
            ]
        );
        assert_eq!(rows(&sections[1]), ["id: number / required / Its number."]);
    }
}

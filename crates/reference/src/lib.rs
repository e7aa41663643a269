//! The reference of configuration files and of the management interface, made of their schemas.
//!
//! A page of the book and a manual page are two forms of one list of [`Section`]s, so they cannot say different things.
//! The sections are made of JSON schemas, which are derived from the types that a file or a request is read into.
//!
//! | part | is |
//! |---|---|
//! | `keys` | a configuration file: a section for each table of keys |
//! | `interface` | an OpenAPI document: a section for each operation and type |
//! | `inline` | the few marks inside a text: code and links |
//!
//! Text is in the Markdown subset of [`spans`]. A key, parameter or field that has no description is an error in the
//! source, and the functions here panic: they are given this program's own schemas and nothing else.

mod inline;
mod interface;
mod keys;

use std::fmt::Write as _;

use serde_json::Value;

pub use inline::{Span, spans};
pub use interface::interface;
pub use keys::keys;

/// A heading with what stands below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// 1 for a part of the page, 2 for one entry.
    pub level: usize,
    /// The heading.
    pub heading: String,
    /// A paragraph, or nothing.
    pub text: String,
    /// The table, where the section has one.
    pub table: Option<Table>,
    /// A paragraph behind the table, or nothing.
    pub after: String,
}

/// Names with what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The headings of the columns, as many as [`Row::cells`] and the name.
    pub headings: &'static [&'static str],
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row of a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key, parameter, field or value.
    pub name: String,
    /// Cells of the row; the last one is the description.
    pub cells: Vec<String>,
}

/// The sections as the text of a page of the book.
pub fn markdown(sections: &[Section]) -> String {
    let mut page = String::new();
    for section in sections {
        // Writing to memory does not fail.
        _ = write!(page, "\n{} {}\n", "#".repeat(section.level), section.heading);
        if !section.text.is_empty() {
            _ = write!(page, "\n{}\n", section.text);
        }
        if let Some(table) = &section.table {
            _ = write!(
                page,
                "\n| {} |\n|{}\n",
                table.headings.join(" | "),
                "---|".repeat(table.headings.len())
            );
            for row in &table.rows {
                let cells: Vec<_> = row.cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
                _ = writeln!(page, "| `{}` | {} |", row.name, cells.join(" | "));
            }
        }
        if !section.after.is_empty() {
            _ = write!(page, "\n{}\n", section.after);
        }
    }
    page
}

/// Resolves a schema that is a reference into its own document.
fn resolved<'a>(schema: &'a Value, definitions: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return &definitions[last(reference)];
    }
    // `Option` of a type of its own.
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([one, null]) if null["type"] == "null" => resolved(one, definitions),
        _ => schema,
    }
}

/// The last part of a reference: the name of a type.
fn last(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap_or(reference)
}

/// The description of a schema: its first paragraph on one line, with links of rustdoc as code.
///
/// # Panics
///
/// Where it has none; `what` names it.
fn description(schema: &Value, what: &str) -> String {
    let text = schema["description"].as_str().filter(|text| !text.is_empty());
    let text = text.unwrap_or_else(|| panic!("{what} has no description"));
    inline::without_rustdoc_links(&text.split("\n\n").next().unwrap_or_default().replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_book_has_headings_texts_and_tables() {
        let row = |name: &str, cell: &str| Row { name: name.to_owned(), cells: vec![cell.to_owned()] };
        let section = Section {
            level: 2,
            heading: "[a]".to_owned(),
            text: "Text.".to_owned(),
            table: Some(Table { headings: &["key", "is"], rows: vec![row("x", "1 | 2"), row("y", "3")] }),
            after: String::new(),
        };
        let page = "\n## [a]\n\nText.\n\n| key | is |\n|---|---|\n| `x` | 1 \\| 2 |\n| `y` | 3 |\n";
        assert_eq!(markdown(&[section]), page);
    }

    #[test]
    #[should_panic(expected = "`x` has no description")]
    fn a_key_without_a_description_is_an_error_in_the_source() {
        description(&Value::Null, "`x`");
    }
}

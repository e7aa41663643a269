//! The marks: comments that name a requirement beside what obeys it or shows it.
//!
//! ```text
//! // RFC 7143 [6.3-4]                 the code that follows obeys it
//! // shows RFC 7143 [6.3-4, 6.3-5]    the test that follows shows them
//! ```

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Common beginning of all marks. Brackets tell a mark from a mere mention, `RFC 7143 §6.3`.
const SIGN: &str = concat!("RFC ", "7143 [");

/// One requirement named in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The requirement.
    pub id: String,
    /// `true` if a test shows it here, rather than code obeys it.
    pub shows: bool,
    /// The file, from the root of the repository.
    pub file: PathBuf,
    /// The item that it stands in or before; lines move, names stay.
    pub item: String,
    /// The line, for messages about faults.
    pub line: usize,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({})", self.file.display(), self.line, self.item)
    }
}

/// All marks of a tree of sources.
#[derive(Clone, Debug, Default)]
pub struct Marks(pub Vec<Mark>);

impl Marks {
    /// Reads every `.rs` below `root`/`directory`.
    pub fn read(root: &Path, directory: &Path) -> io::Result<Self> {
        let mut marks = Self::default();
        marks.walk(root, directory)?;
        Ok(marks)
    }

    fn walk(&mut self, root: &Path, directory: &Path) -> io::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(root.join(directory))?
            .map(|entry| entry.map(|e| e.file_name()))
            .collect::<Result<_, _>>()?;
        entries.sort();
        for name in entries {
            let path = directory.join(&name);
            if root.join(&path).is_dir() {
                self.walk(root, &path)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                self.take(&path, &fs::read_to_string(root.join(&path))?);
            }
        }
        Ok(())
    }

    fn take(&mut self, file: &Path, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some((before, rest)) = line.split_once(SIGN) else { continue };
            let Some((ids, _)) = rest.split_once(']') else { continue };
            let shows = before.trim_end().ends_with("shows");
            for id in ids.split(',') {
                self.0.push(Mark {
                    id: id.trim().into(),
                    shows,
                    file: file.into(),
                    item: item(&lines, index),
                    line: index + 1,
                });
            }
        }
    }
}

/// The item that a line of comment stands before, or else in.
fn item(lines: &[&str], at: usize) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_remark = |line: &&&str| line.trim_start().starts_with("//") || line.trim_start().starts_with("#[");
    let own = lines[at];
    if own.trim_start().starts_with("//") {
        let next = lines[at..].iter().find(|line| !is_remark(line));
        if let Some(name) = next.filter(|line| indent(line) == indent(own)).and_then(|line| name_of(line)) {
            return name;
        }
    }
    let mut inside = indent(own);
    for line in lines[..at].iter().rev().filter(|line| !line.trim().is_empty()) {
        if indent(line) < inside {
            if let Some(name) = name_of(line) {
                return name;
            }
            inside = indent(line);
        }
    }
    "the whole file".into()
}

/// The name of the item that a line begins, if it begins one.
fn name_of(line: &str) -> Option<String> {
    const KINDS: [&str; 8] =
        ["fn ", "struct ", "enum ", "const ", "static ", "trait ", "type ", "macro_rules! "];
    let mut rest = line.trim_start();
    for word in ["pub ", "pub(crate) ", "pub(super) ", "async "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    if let Some(function) = rest.strip_prefix("const fn ") {
        rest = function;
    } else {
        rest = KINDS.iter().find_map(|kind| rest.strip_prefix(kind))?;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| rest[..end].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(text: &str) -> Vec<(String, bool, String)> {
        let mut marks = Marks::default();
        marks.take(Path::new("a.rs"), text);
        marks.0.into_iter().map(|mark| (mark.id, mark.shows, mark.item)).collect()
    }

    #[test]
    fn a_mark_names_the_item_it_stands_before_or_in() {
        let text = format!(
            "/// Words. {SIGN}1-1]\npub const LIMIT: u32 = 1;\n\nimpl A {{\n    // {SIGN}1-2]\n    pub(super) fn one(&self) {{\n        \
             if true {{\n            // {SIGN}1-3]\n            do_it();\n        }}\n    }}\n}}\n"
        );
        let expected = [("1-1", "LIMIT"), ("1-2", "one"), ("1-3", "one")];
        let found = marks(&text);
        assert_eq!(found.len(), 3);
        for ((id, shows, item), (expected_id, expected_item)) in found.iter().zip(expected) {
            assert_eq!((id.as_str(), *shows, item.as_str()), (expected_id, false, expected_item));
        }
    }

    #[test]
    fn a_test_shows_several_at_once_and_a_mention_is_no_mark() {
        let text = format!("// shows {SIGN}1-1, 1-2]\n#[test]\nfn a_sentence() {{}}\n// RFC 7143 §1\n");
        assert_eq!(
            marks(&text),
            [("1-1".into(), true, "a_sentence".into()), ("1-2".into(), true, "a_sentence".into())]
        );
    }
}

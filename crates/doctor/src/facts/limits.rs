//! Limits on facts that others have written: a file, or the answers of a daemon.
//!
//! Rules compare places with each other, so that lists without a limit would cost hours of processor time. What is
//! beyond a limit is left out before anything is judged, and is told.

use serde_json::Value;

/// Entries of one list that are kept. Machines with a thousand disks or sessions exist; rules tell of 32 places each.
const LIST_MAX: usize = 1024;
/// Entries of all lists within entries of other lists together: partitions, holders and LUNs of a thousand disks and
/// targets.
const LISTS_MAX: usize = 32_768;
/// Entries of a list that is kept whole within another one: some values are pairs, as a session's two digests, and
/// facts with a part of a pair cannot be read.
const PAIR: usize = 2;
/// Bytes of a text that are kept: the longest path of Linux (PATH_MAX, linux/limits.h).
const TEXT_MAX: usize = 4096;
/// Sentences about what was left out.
const SENTENCES_MAX: usize = 16;

/// Cuts the lists and texts of a document to their limits, and says what was left out: a clause each. `name` is what
/// the document is called in them.
pub fn within_limits(name: &str, document: &mut Value) -> Vec<String> {
    let mut limits = Limits { left: LISTS_MAX, left_out: Vec::new() };
    limits.cut(name, document, false);
    limits.left_out
}

struct Limits {
    left: usize,
    left_out: Vec<String>,
}

impl Limits {
    /// The depth is that of the parser, 128 levels. `nested`: it is within an entry of a list.
    fn cut(&mut self, name: &str, value: &mut Value, nested: bool) {
        match value {
            Value::Array(items) => {
                let all = items.len();
                let counted = nested && all > PAIR;
                let kept = all.min(if counted { LIST_MAX.min(self.left) } else { LIST_MAX });
                if kept < all {
                    items.truncate(kept);
                    self.say(format!("of {all} entries of {name} only {kept} were looked at"));
                }
                if counted {
                    self.left -= kept;
                }
                for item in items {
                    self.cut(name, item, true);
                }
            }
            Value::Object(members) => {
                let (all, kept) = (members.len(), members.len().min(LIST_MAX));
                if kept < all {
                    *members = std::mem::take(members).into_iter().take(kept).collect();
                    self.say(format!("of {all} members of {name} only {kept} were looked at"));
                }
                for (key, value) in members.iter_mut() {
                    self.cut(key, value, nested);
                }
            }
            Value::String(text) if text.len() > TEXT_MAX => {
                let end = (0..=TEXT_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
                text.truncate(end);
                self.say(format!("a text in {name} was cut to {TEXT_MAX} bytes"));
            }
            _ => {}
        }
    }

    fn say(&mut self, sentence: String) {
        let sentence: String = sentence.chars().take(200).collect();
        if self.left_out.len() < SENTENCES_MAX && !self.left_out.contains(&sentence) {
            self.left_out.push(sentence);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_beyond_a_limit_is_left_out_and_told() {
        let mut document = json!({
            "ports": vec![1; 3000],
            "disks": vec![json!({ "holders": vec![0; 1024] }); 1024],
            "name": "ä".repeat(5000),
            "sound": [1, "two"],
        });
        // Behind the lists that take all the room.
        document["sessions"] = json!([{ "digests": [true, false] }, { "keys": [1, 2, 3] }]);
        let told = within_limits("facts", &mut document);
        assert_eq!(
            document["sessions"],
            json!([{ "digests": [true, false] }, { "keys": [] }]),
            "pairs stay whole"
        );
        assert_eq!(document["ports"].as_array().map(Vec::len), Some(1024));
        assert_eq!(document["name"].as_str().map(str::len), Some(4096));
        assert_eq!(document["sound"], json!([1, "two"]));
        let holders = document["disks"].as_array().into_iter().flatten();
        let all: usize = holders.filter_map(|disk| disk["holders"].as_array().map(Vec::len)).sum();
        assert_eq!(all, LISTS_MAX);
        assert!(told.contains(&"of 3000 entries of ports only 1024 were looked at".to_owned()), "{told:?}");
        assert!(
            told.len() <= SENTENCES_MAX && told.iter().any(|one| one.contains("a text in name")),
            "{told:?}"
        );
        assert_eq!(within_limits("facts", &mut json!({ "a": [1, { "b": "c" }] })), Vec::<String>::new());
    }
}

//! What tells a source from another one of the same name.
//!
//! A manifest names a source as its user does: a path, a logical unit. Two machines may have two disks of one name, and
//! a name may be given to another file. What is known of changes counts from the newest point, whichever disk that
//! shows: a run for another one must read everything.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Digits of a hash: 64 bits, which no two of some thousand disks have in common by chance.
const DIGITS: usize = 16;
const MACHINE: &str = "machine ";
const FILE: &str = "file ";
const SEPARATOR: &str = "; ";

/// Facts about a source that stay the same from run to run, as manifests record them
/// ([`Manifest::source_id`](crate::Manifest::source_id)). What is not known tells nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceId {
    /// Hash of the machine's id, of a source whose name means something on that machine alone.
    pub machine: Option<String>,
    /// Hash of what the file system knows the file by, and since when.
    pub file: Option<String>,
    /// Identity of the content, which a copy shares.
    pub content: Option<String>,
}

impl SourceId {
    /// The same on the machine of this id. It is hashed, as its manual asks for (machine-id(5)).
    #[must_use]
    pub fn on_machine(self, id: &str) -> Self {
        Self { machine: Some(digits("lunway 2026 backup source machine", id.as_bytes())), ..self }
    }

    /// The same in the file of this inode that was made at this time. Inodes are used again, and times are those of
    /// clock ticks: together they are one file's. The number of the file system is left out, since another one may come
    /// with each mount.
    #[must_use]
    pub fn in_file(self, inode: u64, made: SystemTime) -> Self {
        let made = made.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let file = [&inode.to_le_bytes()[..], &made.to_le_bytes()].concat();
        Self { file: Some(digits("lunway 2026 backup source file", &file)), ..self }
    }

    /// Reads what a manifest says. Older ones have the identity of the content alone.
    pub fn parse(text: &str) -> Self {
        let mut id = Self::default();
        for part in text.split(SEPARATOR).filter(|part| !part.is_empty()) {
            if let Some(machine) = part.strip_prefix(MACHINE) {
                id.machine = Some(machine.to_owned());
            } else if let Some(file) = part.strip_prefix(FILE) {
                id.file = Some(file.to_owned());
            } else {
                id.content = Some(part.to_owned());
            }
        }
        id
    }

    /// Why this source may not be the one of before; `None`: nothing says so.
    pub fn doubt(&self, before: &Self) -> Option<&'static str> {
        let differs = |one: &Option<String>, other: &Option<String>| match (one, other) {
            (Some(one), Some(other)) => one != other,
            _ => false,
        };
        if differs(&self.machine, &before.machine) {
            return Some("it is on another machine");
        }
        if differs(&self.content, &before.content) {
            return Some("its virtual disk has another identity");
        }
        differs(&self.file, &before.file).then_some("it is another file")
    }

    /// What a manifest says; `None`: nothing is known.
    pub fn to_text(&self) -> Option<String> {
        let text = self.to_string();
        (!text.is_empty()).then_some(text)
    }
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name}{value}"));
        let parts = [part(MACHINE, &self.machine), part(FILE, &self.file), self.content.clone()];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(SEPARATOR))
    }
}

fn digits(context: &str, bytes: &[u8]) -> String {
    blake3::Hasher::new_derive_key(context).update(bytes).finalize().to_hex()[..DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_known_of_both_tells_them_apart_and_nothing_else_does() {
        let made = UNIX_EPOCH + Duration::from_nanos(1_790_000_000_123_456_789);
        let content = || SourceId { content: Some("virtual disk 1".into()), ..SourceId::default() };
        let one = content().on_machine("a").in_file(7, made);
        assert_eq!(one.doubt(&one), None);
        let later = made + Duration::from_nanos(1);
        let others = [
            (content().on_machine("b").in_file(7, made), "another machine"),
            (content().on_machine("a").in_file(8, made), "another file"),
            (content().on_machine("a").in_file(7, later), "another file"),
            (SourceId { content: Some("virtual disk 2".into()), ..one.clone() }, "another identity"),
        ];
        for (other, said) in others {
            assert!(one.doubt(&other).is_some_and(|why| why.contains(said)), "{other}");
            assert_eq!(one.doubt(&other).is_some(), other.doubt(&one).is_some());
        }
        for unknown in [SourceId::default(), content(), SourceId::default().on_machine("a")] {
            assert_eq!(one.doubt(&unknown), None, "{unknown}");
        }
    }

    #[test]
    fn it_is_written_as_it_is_read_and_older_manifests_have_the_content_alone() {
        let id = SourceId { content: Some("virtual disk 2dc27766-f623".into()), ..SourceId::default() };
        assert_eq!(id.to_text().as_deref(), Some("virtual disk 2dc27766-f623"));
        let id = id.on_machine("0123").in_file(1, UNIX_EPOCH);
        let text = id.to_text().unwrap();
        assert_eq!(SourceId::parse(&text), id);
        assert!(!text.contains("0123"), "{text}");
        assert_eq!(SourceId::parse("").to_text(), None);
    }
}

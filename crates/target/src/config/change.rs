//! Differences between two configurations.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::device::DeviceName;
use super::{Config, ConfigError};

/// Keys that name an entry of a list, in the order in which they are tried.
const NAMES: [&str; 4] = ["id", "tag", "user", "name"];

/// One difference between two configurations.
///
/// `Display` is a line of a plan: `+ target iqn.…, lun 3: device = ram:1G, …`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Kind of change.
    pub kind: ChangeKind,
    /// To what: `target iqn.…, lun 3`; empty for the daemon as a whole.
    pub place: String,
    /// Key that changes; `None`: all of the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Old value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// New value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// New.
    Added,
    /// Goes.
    Removed,
    /// Its value changes.
    Changed,
}

impl Change {
    /// A key of the daemon as a whole, or of the table of this name.
    pub(crate) fn is_of_daemon(&self, key: &str) -> bool {
        self.place == key || (self.place.is_empty() && self.key.as_deref() == Some(key))
    }

    /// The line of a plan without its sign: `cores: 2 -> 4`.
    pub(crate) fn difference(&self) -> String {
        let line = self.to_string();
        line.split_once(' ').map_or_else(String::new, |(_, rest)| rest.to_owned())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.kind {
            ChangeKind::Added => '+',
            ChangeKind::Removed if self.key.is_none() => '-',
            ChangeKind::Removed | ChangeKind::Changed => '~',
        };
        write!(f, "{sign} {}", self.place)?;
        if let Some(key) = &self.key {
            let comma = if self.place.is_empty() { "" } else { ": " };
            write!(f, "{comma}{key}")?;
        }
        match (&self.from, &self.to) {
            // A key that is gone has its default, which of a boolean is the other value: the default is never written.
            (Some(from), None) if self.key.is_some() && from == "true" => f.write_str(": true -> false"),
            (Some(from), None) if self.key.is_some() && from == "false" => f.write_str(": false -> true"),
            (Some(from), None) if self.key.is_some() => write!(f, ": {from} -> default"),
            (Some(from), Some(to)) => write!(f, ": {from} -> {to}"),
            (None, Some(value)) | (Some(value), None) => write!(f, ": {value}"),
            (None, None) => Ok(()),
        }
    }
}

impl Config {
    /// Returns the changes from this configuration to `new`, in the order of the file. Secrets in addresses of devices
    /// are not shown. Nothing that a file can say is left out: the files' own values are compared.
    pub fn changes(&self, new: &Self) -> Result<Vec<Change>, ConfigError> {
        let mut changes = Vec::new();
        compare("", &self.values()?, &new.values()?, &mut changes);
        if changes.is_empty() && self.devices() != new.devices() {
            // Only a secret in a device's address differs.
            changes.push(Change {
                kind: ChangeKind::Changed,
                place: String::new(),
                key: Some("a secret in a device's address".to_owned()),
                from: None,
                to: None,
            });
        }
        Ok(changes)
    }

    /// The addresses of all devices, with their secrets.
    fn devices(&self) -> Vec<&DeviceName> {
        self.targets.iter().flat_map(|target| &target.luns).map(|lun| &lun.device).collect()
    }

    fn values(&self) -> Result<Map<String, Value>, ConfigError> {
        match serde_json::to_value(self.redacted()) {
            Ok(Value::Object(values)) => Ok(values),
            Ok(_) => Ok(Map::new()),
            Err(error) => {
                Err(ConfigError::Unwritable { origin: self.origin.clone(), why: error.to_string() })
            }
        }
    }
}

fn compare(place: &str, old: &Map<String, Value>, new: &Map<String, Value>, changes: &mut Vec<Change>) {
    let keys = new.keys().chain(old.keys().filter(|key| !new.contains_key(*key)));
    for key in keys {
        match (old.get(key), new.get(key)) {
            (old, new) if old == new => {}
            (old, new) if is_list_of_tables(old) || is_list_of_tables(new) => {
                compare_entries(place, key, entries(old), entries(new), changes);
            }
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                compare(&within(place, key), old, new, changes);
            }
            (old, new) => changes.push(Change {
                kind: kind(old.is_some(), new.is_some()),
                place: place.to_owned(),
                key: Some(key.clone()),
                from: old.map(shown),
                to: new.map(shown),
            }),
        }
    }
}

fn compare_entries(place: &str, key: &str, old: &[Value], new: &[Value], changes: &mut Vec<Change>) {
    let (was, is) = (by_name(old), by_name(new));
    for (at, entry) in old.iter().enumerate() {
        let name = entry_name(entry, at);
        if !is.contains_key(&name) {
            changes.push(whole(ChangeKind::Removed, within(place, &format!("{key} {name}")), None));
        }
    }
    for (at, entry) in new.iter().enumerate() {
        let name = entry_name(entry, at);
        let place = within(place, &format!("{key} {name}"));
        match (was.get(&name).copied(), entry) {
            (Some(Value::Object(old)), Value::Object(new)) => compare(&place, old, new, changes),
            (_, Value::Object(new)) => {
                let nested = |value: &&Value| is_list_of_tables(Some(value));
                let own = new.iter().filter(|(key, value)| !NAMES.contains(&key.as_str()) && !nested(value));
                let own: Vec<_> = own.map(|(key, value)| format!("{key} = {}", shown(value))).collect();
                let to = (!own.is_empty()).then(|| own.join(", "));
                changes.push(whole(ChangeKind::Added, place.clone(), to));
                for (key, value) in new.iter().filter(|(_, value)| nested(value)) {
                    compare_entries(&place, key, &[], entries(Some(value)), changes);
                }
            }
            _ => {}
        }
    }
}

/// The entries of a list, of several with one name the first.
fn by_name(entries: &[Value]) -> HashMap<String, &Value> {
    let mut named = HashMap::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        named.entry(entry_name(entry, at)).or_insert(entry);
    }
    named
}

fn whole(kind: ChangeKind, place: String, to: Option<String>) -> Change {
    Change { kind, place, key: None, from: None, to }
}

fn kind(was: bool, will_be: bool) -> ChangeKind {
    match (was, will_be) {
        (false, true) => ChangeKind::Added,
        (true, false) => ChangeKind::Removed,
        _ => ChangeKind::Changed,
    }
}

fn is_list_of_tables(value: Option<&Value>) -> bool {
    entries(value).first().is_some_and(Value::is_object)
}

fn entries(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn entry_name(entry: &Value, at: usize) -> String {
    let named = NAMES.iter().find_map(|name| entry.get(name));
    named.map_or_else(|| (at + 1).to_string(), shown)
}

fn within(place: &str, part: &str) -> String {
    if place.is_empty() { part.to_owned() } else { format!("{place}, {part}") }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => format!("[{}]", values.iter().map(shown).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "[[target]]\nname = \"iqn.2026-11.com.example:a\"\nalias = \"A\"\n\
         [[target.lun]]\nid = 0\ndevice = \"ram:1G\"\n[[target.lun]]\nid = 1\ndevice = \"ram:2G\"\n\
         [[target]]\nname = \"iqn.2026-11.com.example:gone\"\n";
    const NEW: &str = "cores = 2\n[limits]\nsessions = 9\n\
         [[target]]\nname = \"iqn.2026-11.com.example:a\"\n\
         [[target.acl]]\nfrom = [\"10.0.0.0/8\"]\n\
         [[target.lun]]\nid = 1\ndevice = \"ram:3G\"\n\
         [[target.lun]]\nid = 5\ndevice = \"iscsi://u%hunter2hunter2@h/iqn.2026-11.com.example:b/0\"\nread_only = true\n\
         [[target]]\nname = \"iqn.2026-11.com.example:n\"\n[[target.lun]]\nid = 0\ndevice = \"ram:4G\"\n";

    fn plan(old: &str, new: &str) -> Vec<String> {
        let [old, new] = [old, new].map(|text| Config::from_toml(text, "lunway.toml").unwrap());
        old.changes(&new).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_difference_is_a_line_that_says_where_and_what() {
        assert_eq!(
            plan(OLD, NEW),
            [
                "+ cores: 2",
                "~ limits: sessions: 256 -> 9",
                "- target iqn.2026-11.com.example:gone",
                "+ target iqn.2026-11.com.example:a, acl 1: from = [10.0.0.0/8]",
                "- target iqn.2026-11.com.example:a, lun 0",
                "~ target iqn.2026-11.com.example:a, lun 1: device: ram:2G -> ram:3G",
                "+ target iqn.2026-11.com.example:a, lun 5: device = iscsi://u%***@h/iqn.2026-11.com.example:b/0, read_only = true",
                "~ target iqn.2026-11.com.example:a: alias: A -> default",
                "+ target iqn.2026-11.com.example:n",
                "+ target iqn.2026-11.com.example:n, lun 0: device = ram:4G",
            ]
        );
        assert!(plan(NEW, NEW).is_empty());
    }

    #[test]
    fn a_secret_that_alone_differs_is_a_difference() {
        assert_eq!(
            plan(NEW, &NEW.replace("hunter2hunter2", "hunter3hunter3")),
            ["~ a secret in a device's address"]
        );
    }
}

//! The options and arguments that name places, read from the command line's own help.

use std::collections::BTreeSet;

use super::{lunway, succeed};

/// Words in a value's name that say that it is a place.
const PLACES: [&str; 8] = ["FILE", "DIR", "PATH", "DST", "SRC", "SOCKET", "DEVICE", "OLD"];

pub(crate) fn help(command: &[String]) -> String {
    let mut arguments = command.to_vec();
    arguments.push("--help".to_owned());
    succeed(lunway(&arguments))
}

/// All commands, as words.
pub(crate) fn commands() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut waiting = vec![Vec::new()];
    while let Some(command) = waiting.pop() {
        let text = help(&command);
        let listed = text.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
        for name in listed
            .into_iter()
            .flat_map(str::lines)
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        {
            let Some(name) = name.split_whitespace().next().filter(|&name| name != "help") else { continue };
            if name.starts_with(|first: char| first.is_ascii_lowercase()) && !name.ends_with(',') {
                waiting.push([&command[..], &[name.to_owned()]].concat());
            }
        }
        found.push(command);
    }
    found
}

/// The options and arguments of a command whose values are places.
pub(crate) fn places(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        // An option's value stands in angle brackets, an argument that may be left out in square ones.
        let Some((before, rest)) = line.split_once(if line.starts_with('[') { '[' } else { '<' }) else {
            continue;
        };
        let value = rest.split(['>', ']']).next().unwrap_or_default();
        if value.contains(": ") || !PLACES.iter().any(|place| value.contains(place)) {
            continue;
        }
        match before.split_whitespace().find(|word| word.starts_with("--")) {
            Some(option) => found.insert(option.trim_end_matches(['=', '[']).to_owned()),
            // Arguments stand in their own list, name first.
            None if before.is_empty() => found.insert(value.trim_end_matches("...").to_owned()),
            None => false,
        };
    }
    found
}

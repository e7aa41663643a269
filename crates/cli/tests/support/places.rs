//! The options and arguments that name places, read from the command line's own help.

use std::collections::BTreeSet;

use super::{lunway, succeed};

/// What the value of an option or argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A device: a file of any format, an address, memory …
    Device,
    /// A file, a folder or a socket.
    Place,
    /// No place.
    Other,
}

/// The names of all values that the help shows. A new one must be given its kind: nothing is a place, or none, by being
/// forgotten.
const VALUES: &[(&str, Kind)] = &[
    ("DEVICE", Kind::Device),
    ("DEVICE[,sector=4096]", Kind::Device),
    ("ID=DEVICE[,OPTION…]", Kind::Device),
    ("SRC", Kind::Device),
    ("DST", Kind::Device),
    ("OUT", Kind::Device),
    ("DEST", Kind::Place),
    ("REPO", Kind::Place),
    ("FILE", Kind::Place),
    ("FILE.vhdx", Kind::Place),
    ("CHILD", Kind::Place),
    ("OLD", Kind::Place),
    ("NEW", Kind::Place),
    ("PATH", Kind::Place),
    ("DIR", Kind::Place),
    ("NAME|FILE.toml", Kind::Place),
    ("USER:SECRETFILE", Kind::Place),
    ("unix:PATH|tcp:ADDRESS[:PORT]", Kind::Place),
    ("A,B", Kind::Other),
    ("ADDRESS", Kind::Other),
    ("ADDRESS:PORT", Kind::Other),
    ("ADDRESS[:PORT]", Kind::Other),
    ("ADDRESS[/BITS]", Kind::Other),
    ("BYTES", Kind::Other),
    ("COMMAND", Kind::Other),
    ("EPOCH", Kind::Other),
    ("FIGURE", Kind::Other),
    ("FORMAT", Kind::Other),
    ("HOST", Kind::Other),
    ("HOST[:PORT]", Kind::Other),
    ("ID,…", Kind::Other),
    ("LIST", Kind::Other),
    ("LISTEN", Kind::Other),
    ("LUN", Kind::Other),
    ("MODE", Kind::Other),
    ("N", Kind::Other),
    ("NAME", Kind::Other),
    ("RECIPIENT", Kind::Other),
    ("NUMBER", Kind::Other),
    ("OFFSET+SIZE", Kind::Other),
    ("PAGE", Kind::Other),
    ("PATTERN", Kind::Other),
    ("PERCENT", Kind::Other),
    ("PLAN", Kind::Other),
    ("POINT", Kind::Other),
    ("POLICY", Kind::Other),
    ("RATE", Kind::Other),
    ("RULE", Kind::Other),
    ("RULE=yes|no", Kind::Other),
    ("SERIAL", Kind::Other),
    ("SHELL", Kind::Other),
    ("SIZE", Kind::Other),
    ("TAG", Kind::Other),
    ("TAG[=STATE][,preferred]", Kind::Other),
    ("TARGET", Kind::Other),
    ("TARGET/LUN", Kind::Other),
    ("TEXT", Kind::Other),
    ("TIME", Kind::Other),
    ("WHEN", Kind::Other),
    ("TSIH", Kind::Other),
    ("URL", Kind::Other),
    ("USER", Kind::Other),
    ("WAY", Kind::Other),
    ("true|false", Kind::Other),
];

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

/// The options and arguments of a command, in the order of its help, each with the name of its value; `None`: it is a
/// flag.
pub(crate) fn words(text: &str) -> Vec<(String, Option<String>)> {
    // An argument stands two blanks from the edge, an option two or, without a letter, six.
    let heads = text.lines().filter_map(|line| {
        let head = line.strip_prefix("      --").map(|rest| ["--", rest].concat());
        head.or_else(|| line.strip_prefix("  ").map(str::to_owned))
    });
    let mut found = Vec::new();
    for head in heads {
        let Some(first) = head.chars().next() else { continue };
        match first {
            '-' => {
                let Some(option) = head.split([' ', '=', '[', ',']).find(|word| word.starts_with("--"))
                else {
                    continue;
                };
                let value = head
                    .split_once('<')
                    .map(|(_, rest)| rest.rsplit_once('>').map_or(rest, |(value, _)| value).to_owned());
                found.push((option.to_owned(), value));
            }
            '<' => {
                let value = head[1..].split('>').next().unwrap_or_default();
                found.push((value.to_owned(), Some(value.to_owned())));
            }
            '[' => {
                let value = head[1..].trim_end_matches("...");
                let value = value.strip_suffix(']').unwrap_or(value);
                found.push((value.to_owned(), Some(value.to_owned())));
            }
            _ => {}
        }
    }
    found
}

/// The options and arguments of a command whose values are devices or other places, each with which of the two.
///
/// # Panics
///
/// Where the name of a value is not in [`VALUES`].
pub(crate) fn places(text: &str) -> BTreeSet<(String, bool)> {
    let mut found = BTreeSet::new();
    for (name, value) in words(text) {
        let Some(value) = value else { continue };
        let kind = VALUES.iter().find(|(known, _)| *known == value);
        match kind.unwrap_or_else(|| panic!("give the value {value} of {name} its kind")).1 {
            Kind::Other => {}
            kind => _ = found.insert((name, kind == Kind::Device)),
        }
    }
    found
}

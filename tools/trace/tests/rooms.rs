//! The rooms of a crate (the files and folders of its `src`) know each other in one direction, but for the circles that
//! ARCHITECTURE.md lists with their reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms, and which others each of them names.
type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The sources of a room, or of a folder in it.
fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a folder of sources");
    entries.flat_map(|entry| sources(&entry.expect("an entry").path())).collect()
}

/// What stands before a module that only tests have.
const TEST_MODULE: &str = "#[cfg(test)]\nmod ";

/// Code without comments and without its unit tests, which stand at the end.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source");
    let tests = text.match_indices(TEST_MODULE).map(|(at, _)| at).find(|at| {
        let module = &text[at + TEST_MODULE.len()..];
        module[identifier(module).len()..].starts_with(" {")
    });
    let code = &text[..tests.unwrap_or(text.len())];
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The identifier at the beginning of a text.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The elements of a group in braces, of which `text` is what follows the opening one.
fn elements(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut list) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                list.push(text[from..at].trim());
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                list.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    list
}

/// What is named behind each `crate::`.
fn named(code: &str) -> Vec<&str> {
    let behind = code.split("crate::").skip(1);
    behind
        .flat_map(|text| match text.strip_prefix('{') {
            Some(group) => elements(group).into_iter().map(identifier).collect(),
            None => vec![identifier(text)],
        })
        .collect()
}

/// Names that a crate's root takes from its rooms.
fn exported(root: &str, rooms: &Arrows) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for statement in root.split("use ").skip(1).filter_map(|text| text.split(';').next()) {
        let room = identifier(statement);
        if rooms.contains_key(room) {
            // Of paths and renamed items the last part is the name.
            for name in statement.split(|c: char| !c.is_alphanumeric() && c != '_').skip(1) {
                names.entry(name.to_owned()).or_insert_with(|| room.to_owned());
            }
        }
    }
    names
}

fn arrows(src: &Path) -> Arrows {
    let mut paths = BTreeMap::new();
    for entry in fs::read_dir(src).expect("a crate's sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if !["lib", "main", "tests"].contains(&&*name) {
            paths.entry(name).or_insert_with(Vec::new).push(path);
        }
    }
    let roots = ["lib.rs", "main.rs"].map(|name| src.join(name));
    let root: String = roots.iter().filter(|path| path.exists()).map(|path| code(path)).collect();
    for room in root.split(TEST_MODULE).skip(1).map(identifier) {
        paths.remove(room);
    }
    let mut arrows: Arrows = paths.keys().map(|room| (room.clone(), BTreeSet::new())).collect();
    let exported = exported(&root, &arrows);
    for (room, paths) in paths {
        let code: Vec<String> = paths
            .iter()
            .flat_map(|path| sources(path))
            .filter(|path| !is_test(path))
            .map(|path| code(&path))
            .collect();
        let named = code.iter().flat_map(|code| named(code));
        let known = named.filter_map(|name| {
            arrows.get_key_value(name).map(|(room, _)| room).or_else(|| exported.get(name))
        });
        let known: BTreeSet<String> = known.filter(|other| **other != room).cloned().collect();
        arrows.insert(room, known);
    }
    arrows
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

fn reachable(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&String> = arrows[from].iter().collect();
    while let Some(room) = next.pop() {
        if seen.insert(room.clone()) {
            next.extend(&arrows[room]);
        }
    }
    seen
}

/// Sets of rooms that reach each other.
fn circles(arrows: &Arrows) -> BTreeSet<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|room| (room, reachable(arrows, room))).collect();
    let of = |room: &String| -> BTreeSet<String> {
        reach[room].iter().filter(|other| reach[other].contains(room)).cloned().collect()
    };
    arrows.keys().map(of).filter(|circle| !circle.is_empty()).collect()
}

/// The circles of the table in ARCHITECTURE.md, by crate.
fn listed() -> BTreeMap<String, BTreeSet<BTreeSet<String>>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text.split("\n### Rooms\n").nth(1).expect("the section on rooms");
    let section = section.split("\n#").next().unwrap_or_default();
    let mut listed: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').collect();
        let names = |cell: &str| -> BTreeSet<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let crate_name = names(cells[1]).into_iter().next().expect("a crate");
        listed.entry(crate_name).or_default().insert(names(cells[2]));
    }
    listed
}

#[test]
fn rooms_know_each_other_in_one_direction_but_for_the_circles_that_are_listed() {
    let mut found: BTreeMap<String, BTreeSet<BTreeSet<String>>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        let entry = entry.expect("an entry");
        let circles = circles(&arrows(&entry.path().join("src")));
        if !circles.is_empty() {
            found.insert(entry.file_name().into_string().expect("a name"), circles);
        }
    }
    assert_eq!(found, listed(), "found, and listed in ARCHITECTURE.md");
}

#[test]
fn a_circle_of_rooms_is_seen() {
    let folder = std::env::temp_dir().join(format!("lunway-rooms-{}", std::process::id()));
    fs::create_dir_all(folder.join("deep")).expect("a folder");
    for (name, text) in [
        ("lib.rs", "mod a;\nmod deep;\nmod c;\npub use deep::inner::{Thing, other};\npub use c::C;\n"),
        (
            "a.rs",
            "use crate::Thing;\n// use crate::C;\nfn a() {}\n#[cfg(test)]\nmod tests {\n    use crate::C;\n}\n",
        ),
        ("deep/mod.rs", "mod inner;\n"),
        ("deep/inner.rs", "use crate::{C, a::{b, d}};\n"),
        ("c.rs", "fn c() {}\n"),
    ] {
        fs::write(folder.join(name), text).expect("a source");
    }
    let circles = circles(&arrows(&folder));
    fs::remove_dir_all(&folder).expect("removed");
    let circle = ["a", "deep"].map(str::to_owned).into();
    assert_eq!(circles, [circle].into());
}

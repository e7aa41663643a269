//! What a slip of the hand must not destroy: each option that names a place to write, against each thing that may stand there.
//!
//! The options are read from the command line's own help, so that a new one must be given its row in [`ROLES`].

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use support::{PATIENCE, finish, image, lunway, succeed};

/// What an option's or argument's place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Read, or opened as a device, whose own rules protect it.
    Reads,
    /// Results go there.
    Report,
    /// A copy's destination.
    Copy,
    /// A socket, a folder or a configuration: made by its owner's own rules, tested there.
    Elsewhere,
}

/// Every option and argument whose value is a place. `*` stands for every command.
const ROLES: &[(&str, &str, Role)] = &[
    ("*", "--json-file", Role::Report),
    ("*", "--html-file", Role::Report),
    ("bench", "--json-plus-file", Role::Report),
    ("bench", "--stream", Role::Report),
    ("copy", "SRC", Role::Reads),
    ("copy", "DST", Role::Copy),
    ("*", "DEVICE", Role::Reads),
    ("*", "--job", Role::Reads),
    ("*", "FILE", Role::Reads),
    ("report diff", "OLD", Role::Reads),
    ("report diff", "NEW", Role::Reads),
    ("report diff", "--old", Role::Reads),
    ("report diff", "--new", Role::Reads),
    ("*", "NAME|FILE.toml", Role::Reads),
    ("*", "--chap", Role::Reads),
    ("*", "--mutual-chap", Role::Reads),
    ("*", "--secret-file", Role::Reads),
    ("*", "--api-token", Role::Reads),
    ("*", "--token-file", Role::Reads),
    ("*", "--device", Role::Reads),
    ("*", "--lun", Role::Reads),
    ("*", "--config", Role::Elsewhere),
    ("*", "--api-socket", Role::Elsewhere),
    ("*", "--socket", Role::Elsewhere),
    ("*", "--api", Role::Elsewhere),
    ("*", "--state-dir", Role::Elsewhere),
    ("*", "--state", Role::Elsewhere),
    // It must not be there yet.
    ("serve", "--save", Role::Elsewhere),
    ("attach", "--fuse", Role::Elsewhere),
    ("attach", "--nbd", Role::Elsewhere),
];

/// Words in a value's name that say that it is a place.
const PLACES: [&str; 8] = ["FILE", "DIR", "PATH", "DST", "SRC", "SOCKET", "DEVICE", "OLD"];

fn help(command: &[String]) -> String {
    let mut arguments = command.to_vec();
    arguments.push("--help".to_owned());
    succeed(lunway(&arguments))
}

/// All commands, as words.
fn commands() -> Vec<Vec<String>> {
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
fn places(text: &str) -> BTreeSet<String> {
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

fn role(command: &str, place: &str) -> Option<Role> {
    let fits = |(of, name, _): &&(&str, &str, Role)| {
        (*of == "*" || *of == command) && (*name == place || place.starts_with(&format!("{name}[")))
    };
    ROLES.iter().find(fits).map(|row| row.2)
}

/// The command with what it must have beside the option, so that it would write results within a moment.
fn working(command: &str, folder: &Path) -> Option<Vec<String>> {
    let saved = folder.join("saved.html").to_str().unwrap().to_owned();
    let words: Vec<&str> = match command {
        "bench" => vec!["bench", "ram:1M", "--rw", "read", "--size", "64K"],
        "compare" => vec![
            "compare", "ram:1M", "ram:1M", "--rw", "randread", "--size", "1M", "--pairs", "2", "--rounds",
            "1", "--time", "20ms", "--ramp", "0ms",
        ],
        "net" => vec!["net", "--time", "10ms"],
        "lab run" => vec!["lab", "run", "two-lanes"],
        "demo" => vec!["demo"],
        "report show" => vec!["report", "show", &saved],
        "report diff" => vec!["report", "diff", &saved, &saved],
        _ => return None,
    };
    Some(words.into_iter().map(str::to_owned).collect())
}

fn reports() -> Vec<(String, String)> {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for command in commands() {
        let name = command.join(" ");
        for place in places(&help(&command)) {
            match role(&name, &place) {
                Some(Role::Report) => found.push((name.clone(), place)),
                Some(_) => {}
                None => unknown.push((name.clone(), place)),
            }
        }
    }
    assert!(unknown.is_empty(), "give these a role: {unknown:#?}");
    found
}

#[test]
fn no_option_that_names_a_place_for_results_destroys_what_stands_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    succeed(lunway(&[
        "bench",
        "ram:1M",
        "--rw",
        "read",
        "--size",
        "64K",
        "--html-file",
        path("saved.html").to_str().unwrap(),
    ]));
    let (disk, link) = (path("disk.img"), path("link"));
    image(&disk, 1 << 20, 1 << 20);
    symlink(&disk, &link).unwrap();
    let before = fs::read(&disk).unwrap();
    let rows = reports();
    assert!(rows.len() >= 14, "{rows:?}");
    for (command, option) in &rows {
        let words =
            working(command, folder.path()).unwrap_or_else(|| panic!("`{command}` has no row in working()"));
        for (place, sentence) in [
            (disk.to_str().unwrap(), "is not a report of lunway's"),
            (link.to_str().unwrap(), "is not a report of lunway's"),
            (folder.path().to_str().unwrap(), "it is a directory"),
            ("/proc/result", "cannot write /proc/result"),
        ] {
            let output =
                finish(lunway(&[&words[..], &[option.clone(), place.to_owned()]].concat()), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command} {option} {place}: {said}");
            assert!(said.contains(sentence), "{command} {option} {place}: {said}");
        }
        assert!(fs::read(&disk).unwrap() == before, "{command} {option} changed the disk image");
        assert!(link.is_symlink(), "{command} {option}");
    }
}

#[test]
fn a_block_device_takes_no_results_without_force() {
    let Some(losetup) = lunway_foreign::program("losetup") else { return };
    if !rustix::process::geteuid().is_root() {
        return lunway_foreign::not_run("losetup: root");
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    image(&disk, 1 << 20, 1 << 20);
    let attached = Command::new(&losetup).args(["--find", "--show"]).arg(&disk).output().unwrap();
    if !attached.status.success() {
        return lunway_foreign::not_run("loop devices (this machine has none)");
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let before = fs::read(&disk).unwrap();
    let output = finish(
        lunway(&["bench", "ram:1M", "--rw", "read", "--size", "64K", "--json-file", &device]),
        PATIENCE,
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Command::new(&losetup).args(["--detach", &device]).status().unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is a block device"), "{said}");
    assert!(fs::read(&disk).unwrap() == before);
}

#[test]
fn an_older_report_is_replaced_and_a_device_that_is_measured_is_not_even_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, report) = (path("disk.img"), path("a.json"));
    image(Path::new(&disk), 1 << 20, 1 << 20);
    let before = fs::read(&disk).unwrap();
    for _ in 0..2 {
        succeed(lunway(&["bench", &disk, "--rw", "read", "--size", "64K", "--json-file", &report]));
    }
    let over = ["bench", &disk, "--rw", "read", "--size", "64K", "--json-file", &disk, "--force"];
    let output = finish(lunway(&over), PATIENCE);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is the device"));
    let (b, c) = (path("b.img"), path("c.img"));
    fs::copy(&disk, &b).unwrap();
    fs::copy(&disk, &c).unwrap();
    // `--json` takes no file: what follows it is one more device.
    let slip =
        ["compare", "--json", &b, &c, "--rw", "read", "--pairs", "2", "--rounds", "1", "--time", "10ms"];
    let _ = finish(lunway(&slip), PATIENCE);
    assert!(fs::read(&b).unwrap() == before && fs::read(&c).unwrap() == before);
    assert!(fs::read(&disk).unwrap() == before);
}

#[test]
fn a_copy_asks_before_it_overwrites_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, full, empty) = (path("source"), path("full"), path("empty"));
    image(Path::new(&source), 8 << 20, 1 << 20);
    fs::write(&full, vec![7; 8 << 20]).unwrap();
    fs::write(&empty, vec![0; 8 << 20]).unwrap();
    succeed(lunway(&["copy", &source, &empty, "--verify"]));
    let output = finish(lunway(&["copy", &source, &full]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("holds data, first seen at offset 0: --overwrite"), "{said}");
    assert!(fs::read(&full).unwrap().iter().all(|&byte| byte == 7));
    succeed(lunway(&["copy", &source, &full, "--verify", "--overwrite"]));
    support::assert_same_bytes(Path::new(&source), Path::new(&full));
}

#[test]
fn an_interrupted_copy_leaves_a_partial_file_that_a_later_one_completes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copied, partial) = (path("source"), path("copied"), path("copied.partial"));
    image(Path::new(&source), 64 << 20, 32 << 20);
    let slow = format!("rate:8M:{source}");
    let begun = || fs::metadata(&partial).is_ok_and(|file| std::os::unix::fs::MetadataExt::blocks(&file) > 0);
    let output = support::interrupted(lunway(&["copy", &slow, &copied]), begun);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("copied.partial is incomplete; --resume goes on"), "{said}");
    assert!(!Path::new(&copied).exists(), "what is not complete has not its name");
    let output = finish(lunway(&["copy", &source, &copied]), PATIENCE);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is left from an interrupted copy"));
    succeed(lunway(&["copy", &source, &copied, "--resume", "--verify"]));
    support::assert_same_bytes(Path::new(&source), Path::new(&copied));
    assert!(!Path::new(&partial).exists());
}

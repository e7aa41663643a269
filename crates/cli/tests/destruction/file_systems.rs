//! File systems that take nothing: full ones and read-only ones, against each option that names a place to write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{PATIENCE, finish, image, lunway, succeed};
use super::{Beside, Role, data, places_of, reports, working};

/// Runs `words` where the file system of `place` has no room left: `$HERE/old` holds what `old` does, and must hold it
/// afterwards. Gives what is said, and the names that are there then. None: this machine cannot.
fn on_a_full_file_system(
    words: &[String],
    old: &Path,
    place: &Path,
) -> Option<(Option<i32>, String, String)> {
    let script = r#"
        mount -t tmpfs -o size=256k none "$HERE" || exit 77
        cp "$OLD" "$HERE/old"
        head -c 1M /dev/zero > "$HERE/fill" 2>/dev/null
        "$@"; code=$?
        rm "$HERE/fill"
        cmp "$OLD" "$HERE/old" >&2 || exit 78
        echo "there now:"; ls "$HERE"
        exit $code"#;
    let (code, said, printed) = with_mounts(script, words, &[("HERE", place), ("OLD", old)])?;
    assert_ne!(code, Some(78), "{words:?} changed what was there: {said}");
    let names = printed.rsplit("there now:\n").next().unwrap_or_default().to_owned();
    Some((code, said, names))
}

/// Runs a script, whose arguments are `words`, in a mount namespace. Gives its exit code, standard error and standard
/// output. None: this machine cannot; the script says so by exit code 77.
pub(super) fn with_mounts(
    script: &str,
    words: &[String],
    variables: &[(&str, &Path)],
) -> Option<(Option<i32>, String, String)> {
    let mut command = Command::new(lunway_foreign::program("unshare")?);
    command.args(["--mount", "--map-root-user", "--", "sh", "-c", script, "sh"]).args(words);
    let lunway = lunway(&["--version"]);
    for (name, value) in lunway.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.envs(variables.iter().copied());
    let output = finish(command, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) || said.starts_with("unshare:") {
        lunway_foreign::machine_lacks("mount namespaces");
        return None;
    }
    Some((output.status.code(), said, String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn a_full_file_system_leaves_an_older_report_whole_and_no_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let short = ["bench", "ram:1M", "--rw", "read", "--size", "64K"];
    let saved = [text("saved.html"), text("saved.json")];
    succeed(lunway(&[&short[..], &["--html-file", &saved[0], "--json-file", &saved[1]]].concat()));
    fs::create_dir(path("full")).unwrap();
    let program = env!("CARGO_BIN_EXE_lunway").to_owned();
    // A stream is written line by line, to be read meanwhile: it may end anywhere, and replaces an older one at its
    // first line. What runs for a minute before it writes does so by the same `ReportFile`.
    let is_long = |command: &str| ["demo", "lab run", "compare"].contains(&command);
    let rows = reports().into_iter().filter(|(command, option)| option != "--stream" && !is_long(command));
    for (command, option) in rows {
        let words = working(&command, folder.path()).unwrap();
        let old = path(if option.contains("html") { "saved.html" } else { "saved.json" });
        for name in ["old", "new"] {
            let place = format!("{}/{name}", text("full"));
            let all = [std::slice::from_ref(&program), &words[..], &[option.clone(), place]].concat();
            let Some((code, said, names)) = on_a_full_file_system(&all, &old, &path("full")) else { return };
            assert_eq!(code, Some(1), "{command} {option} {name}: {said}");
            assert!(said.contains("No space left"), "{command} {option} {name}: {said}");
            assert!(names.lines().all(|line| line == "old"), "{command} {option} {name}: left {names}");
        }
    }
}

#[test]
fn a_copy_that_finds_the_file_system_full_leaves_what_nobody_takes_for_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    image(&path("source"), 4 << 20, 2 << 20);
    fs::write(path("old"), "older").unwrap();
    fs::create_dir(path("full")).unwrap();
    let copied = path("full").join("copied");
    let words =
        [env!("CARGO_BIN_EXE_lunway"), "copy", path("source").to_str().unwrap(), copied.to_str().unwrap()]
            .map(str::to_owned);
    let Some((code, said, names)) = on_a_full_file_system(&words, &path("old"), &path("full")) else {
        return;
    };
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("copied.partial is incomplete; --resume"), "{said}");
    assert!(names.lines().all(|name| ["copied.partial", "old"].contains(&name)), "{names}");
}

/// Runs `words` where `place` is read-only; what lies there must stay, to the byte. `None`: this machine cannot.
fn on_a_read_only_file_system(words: &[String], place: &Path) -> Option<(Option<i32>, String)> {
    let script = r#"
        mount --bind "$HERE" "$HERE" && mount -o remount,bind,ro "$HERE" || exit 77
        exec timeout 30 "$@""#;
    let before = contents(place);
    let (code, said, printed) = with_mounts(script, words, &[("HERE", place)])?;
    assert_eq!(contents(place), before, "{words:?}");
    Some((code, format!("{said}{printed}")))
}

fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = names.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect();
    found.sort();
    found
}

#[test]
fn a_read_only_file_system_is_named_by_each_command_that_would_write_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let here = folder.path().join("here");
    let at = |name: &str| here.join(name).to_str().unwrap().to_owned();
    fs::create_dir(&here).unwrap();
    let beside = Beside::new(folder.path());
    let source = text("source");
    fs::write(&source, vec![0x5a; 1 << 20]).unwrap();
    data(&here.join("disk.img"));
    succeed(lunway(&["disk", "create", &at("base.vhdx"), "--from", &source]));
    succeed(lunway(&["disk", "create", &at("parent.vhdx"), "--from", &source]));
    succeed(lunway(&["disk", "create", &at("child.vhdx"), "--parent", &at("parent.vhdx")]));
    let short = ["bench", "ram:1M", "--rw", "read", "--size", "64K"];
    let saved = [text("saved.html"), at("report.json")];
    succeed(lunway(&[&short[..], &["--html-file", &saved[0], "--json-file", &saved[1]]].concat()));
    // What only reads a VHDX file works there; a folder that is mounted on is not written.
    let reads = ["disk info", "disk map", "disk check"];
    let points = text("points");
    fs::create_dir(&points).unwrap();
    succeed(lunway(&["backup", "run", &source, &points]));
    for role in
        [Role::Report, Role::Copy, Role::Restore, Role::NewDisk, Role::Vhdx, Role::NewFile, Role::Socket]
    {
        for (command, option) in places_of(role) {
            let names: &[&str] = match (role, command.as_str(), option.as_str()) {
                (Role::Report, ..) => &["new", "report.json"],
                (Role::Copy | Role::Restore, ..) => &["new", "disk.img"],
                (Role::Vhdx, "disk create" | "disk convert" | "disk rebase", "--parent") => continue,
                // The child is elsewhere, and the parent is not changed.
                (Role::Vhdx, "disk snapshot", "FILE") => continue,
                (Role::Vhdx, "disk merge" | "disk rebase", _) => &["child.vhdx"],
                (Role::Vhdx, ..) => &["base.vhdx"],
                _ => &["new"],
            };
            for name in names {
                let place = at(name);
                let words = match role {
                    Role::Report => {
                        [working(&command, folder.path()).unwrap(), vec![option.clone(), place]].concat()
                    }
                    Role::Copy | Role::Restore => {
                        let from = if role == Role::Copy { &source } else { &points };
                        let words = command.split(' ').chain([from.as_str(), &place, "--overwrite"]);
                        words.map(str::to_owned).collect()
                    }
                    _ => match (command.as_str(), option.as_str()) {
                        ("disk merge", "--into") => {
                            vec!["disk".into(), "merge".into(), place, "--into".into(), at("parent.vhdx")]
                        }
                        ("disk snapshot", _) => {
                            vec!["disk".into(), "snapshot".into(), at("base.vhdx"), place]
                        }
                        _ => beside.command(&command, &option, &place),
                    },
                };
                let all = [&[env!("CARGO_BIN_EXE_lunway").to_owned()], &words[..]].concat();
                let Some((code, said)) = on_a_read_only_file_system(&all, &here) else { return };
                if reads.contains(&command.as_str()) {
                    assert_eq!(code, Some(0), "{words:?}: {said}");
                    continue;
                }
                assert_eq!(code, Some(1), "{words:?}: {said}");
                assert!(said.contains("Read-only file system"), "{words:?}: {said}");
                assert!(said.contains(name.trim_end_matches(".vhdx")), "{words:?}: {said}");
            }
        }
    }
}

#[test]
fn a_read_only_folder_of_backups_is_read_and_named_by_each_command_that_would_add_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, empty, points) = (text("source"), text("empty"), text("points"));
    fs::write(&source, vec![0x5a; 1 << 20]).unwrap();
    for place in [&empty, &points] {
        fs::create_dir(place).unwrap();
    }
    for byte in [1, 2] {
        fs::write(&source, vec![byte; 1 << 20]).unwrap();
        succeed(lunway(&["backup", "run", &source, &points]));
    }
    for (command, _) in places_of(Role::Backups) {
        let out = text(&format!("out-of-{}", command.replace(' ', "-")));
        let (writes, more): (bool, &[&str]) = match command.as_str() {
            "backup run" => (true, &[]),
            "backup prune" => (true, &["--keep-last", "1"]),
            "backup restore" => (false, &[&out]),
            "backup list" | "backup report" | "backup status" | "backup verify" => (false, &[]),
            // It serves until it is interrupted: `backup_mount`.
            "backup mount" => continue,
            other => panic!("`{other}` has no row here"),
        };
        let places: &[&String] = if command == "backup run" { &[&points, &empty] } else { &[&points] };
        for place in places {
            let mut words: Vec<&str> = vec![env!("CARGO_BIN_EXE_lunway")];
            words.extend(command.split(' '));
            words.extend((command == "backup run").then_some(source.as_str()));
            words.push(place);
            words.extend(more);
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            let Some((code, said)) = on_a_read_only_file_system(&words, Path::new(place)) else { return };
            assert_eq!(code, Some(i32::from(writes)), "{words:?}: {said}");
            if writes {
                assert!(
                    said.contains("Read-only file system") && said.contains(place.as_str()),
                    "{words:?}: {said}"
                );
            }
        }
    }
}

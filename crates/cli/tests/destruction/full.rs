//! A full file system under virtual disks, backups, and the files of a running daemon.

use std::fs;
use std::path::Path;

use super::file_systems::with_mounts;
use super::support::{IQN, image, lunway, succeed};
use super::{Role, places_of};

/// Runs `words` in a file system without room, where `$HERE/old.vhdx` has the data of `disk.img` in `folder`, and,
/// if `words` name it, `$HERE/child.avhdx` on it those of `child.img`. Gives the exit code, what is said, and the names
/// that are there afterwards: the disk must be sound and have its data. `None`: this machine cannot.
fn beside_a_disk(folder: &Path, words: &[&str]) -> Option<(Option<i32>, String, String)> {
    let script = r#"
        mount -t tmpfs -o size=16m none "$HERE" || exit 77
        cp --sparse=always "$OUT/old.vhdx" "$HERE/old.vhdx"
        top=old.vhdx; data=disk.img
        case "$*" in *child.avhdx*) top=child.avhdx; data=child.img; cp --sparse=always "$OUT/$top" "$HERE" ;; esac
        head -c 64M /dev/zero > "$HERE/fill" 2>/dev/null
        timeout 60 "$@"; code=$?
        rm "$HERE/fill"
        # It was merged.
        [ -e "$HERE/$top" ] || top=old.vhdx
        "$LUNWAY" disk check "$HERE/$top" >&2 || exit 78
        "$LUNWAY" copy "$HERE/$top" "$OUT/read.img" --overwrite >/dev/null || exit 79
        cmp "$OUT/$data" "$OUT/read.img" >&2 || exit 80
        echo "there now:"; ls "$HERE"
        exit $code"#;
    let here = folder.join("full");
    fs::create_dir_all(&here).unwrap();
    let _ = fs::remove_file(folder.join("read.img"));
    let program = env!("CARGO_BIN_EXE_lunway");
    let all: Vec<String> = [&[program], words].concat().iter().map(|&word| word.to_owned()).collect();
    let (code, said, printed) =
        with_mounts(script, &all, &[("HERE", &here), ("OUT", folder), ("LUNWAY", Path::new(program))])?;
    assert!(!matches!(code, Some(78..=80)), "{words:?} harmed the disk ({code:?}): {said}");
    Some((code, said, printed.rsplit("there now:\n").next().unwrap_or_default().to_owned()))
}

#[test]
fn a_full_file_system_leaves_disks_as_they_were_and_nothing_that_looks_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    image(Path::new(&path("disk.img")), 8 << 20, 1 << 20);
    succeed(lunway(&["copy", &path("disk.img"), &path("whole.img")]));
    succeed(lunway(&[
        "disk",
        "create",
        &path("old.vhdx"),
        "--from",
        &path("disk.img"),
        "--block-size",
        "1M",
    ]));
    fs::create_dir(path("backups")).unwrap();
    succeed(lunway(&["backup", "run", &path("disk.img"), &path("backups")]));
    // A child with other data, of which some blocks are only its own.
    image(Path::new(&path("child.img")), 8 << 20, 4 << 20);
    succeed(lunway(&[
        "disk",
        "convert",
        &path("child.img"),
        &path("child.avhdx"),
        "--parent",
        &path("old.vhdx"),
    ]));
    let at = |name: &str| path(&format!("full/{name}"));
    let (old, new, vhdx, child) = (at("old.vhdx"), at("new.img"), at("new.vhdx"), at("new.avhdx"));
    let leaf = at("child.avhdx");
    let (source, backups) = (path("disk.img"), path("backups"));
    // What is left may only have a name that nobody takes for whole.
    let rows: &[(&[&str], &[&str])] = &[
        (&["disk", "create", &vhdx, "--size", "4M"], &[]),
        (&["disk", "create", &vhdx, "--size", "4M", "--fixed"], &[]),
        (&["disk", "create", &vhdx, "--from", &source], &["new.vhdx.partial"]),
        (&["disk", "create", &at("new.vhd"), "--size", "8M", "--fixed"], &[]),
        (&["disk", "convert", &source, &vhdx], &["new.vhdx.partial"]),
        (&["disk", "convert", &source, &new], &["new.img.partial"]),
        (&["disk", "convert", &source, &child, "--parent", &old], &["new.avhdx.partial"]),
        (&["disk", "create", &child, "--parent", &old], &[]),
        (&["disk", "snapshot", &old, &child], &[]),
        // The table of the new size is longer than what the file has reserved for it.
        (&["disk", "resize", &old, "60T"], &[]),
        (&["backup", "restore", &backups, &new], &["new.img.partial"]),
        (&["backup", "restore", &backups, &vhdx], &["new.vhdx.partial"]),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--no-api",
                "--open",
                "--lun",
                "0=ram:1M",
                "--save",
                &at("new.toml"),
            ],
            &[],
        ),
    ];
    // What may have the room that it needs.
    let in_place: &[&[&str]] = &[
        &["disk", "compact", &old],
        &["disk", "compact", &old, "--block-size", "1M"],
        &["disk", "merge", &leaf],
        &["disk", "rebase", &leaf, "--parent", &old],
        &["disk", "repair", &old],
        &["disk", "set", &old, "--new-id"],
    ];
    // What reads, what file_systems.rs and the test below try, and what serves until a signal.
    let elsewhere = ["copy", "disk check", "disk info", "disk map", "disk mount"];
    for role in [Role::Copy, Role::Restore, Role::NewDisk, Role::Vhdx, Role::NewFile] {
        for (command, _) in places_of(role) {
            let words: Vec<&str> = command.split(' ').collect();
            let tried = rows.iter().map(|(row, _)| row).chain(in_place).any(|row| row.starts_with(&words));
            assert!(tried || elsewhere.contains(&command.as_str()), "{command} has no row here");
        }
    }
    for (words, left) in rows {
        let Some((code, said, names)) = beside_a_disk(folder.path(), words) else { return };
        assert_eq!(code, Some(1), "{words:?}: {said}");
        assert!(said.to_lowercase().contains("no space left"), "{words:?}: {said}");
        let new: Vec<_> = names.lines().filter(|name| *name != "old.vhdx").collect();
        assert!(new.iter().all(|name| left.contains(name)), "{words:?} left {new:?}");
        // What is left is named, with the word that goes on with it.
        let named = |name: &str| said.contains(&format!("{name} is incomplete; --resume continues it"));
        assert!(new.iter().all(|name| named(name)), "{words:?} says nothing of {new:?}: {said}");
    }
    for words in in_place {
        let Some((code, said, names)) = beside_a_disk(folder.path(), words) else { return };
        let full = code == Some(1) && said.to_lowercase().contains("no space left");
        assert!(code == Some(0) || full, "{words:?}: {code:?}: {said}");
        let known = ["old.vhdx", "child.avhdx"];
        assert!(names.lines().all(|name| known.contains(&name)), "{words:?} left {names}");
    }
}

#[test]
fn a_full_folder_of_backups_keeps_its_points_whatever_is_run_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("backups")).unwrap();
    for seed in [1, 2, 3] {
        image(Path::new(&path("disk.img")), 8 << 20, seed << 20);
        succeed(lunway(&["backup", "run", &path("disk.img"), &path("backups")]));
    }
    // Another increment, for which there is no room.
    fs::write(path("disk.img"), vec![0x5a; 8 << 20]).unwrap();
    fs::create_dir(path("full")).unwrap();
    let script = r#"
        mount -t tmpfs -o size=32m none "$HERE" || exit 77
        cp -r --sparse=always "$OUT/backups" "$HERE"
        "$LUNWAY" backup list "$HERE/backups" --json >"$OUT/before" || exit 76
        head -c 64M /dev/zero > "$HERE/fill" 2>/dev/null
        timeout 60 "$@"; code=$?
        rm "$HERE/fill"
        "$LUNWAY" backup verify "$HERE/backups" >&2 || exit 78
        "$LUNWAY" backup list "$HERE/backups" --json >"$OUT/after" || exit 79
        exit $code"#;
    let (program, here) = (Path::new(env!("CARGO_BIN_EXE_lunway")), folder.path().join("full"));
    let points = |name: &str| {
        let list: serde_json::Value = serde_json::from_str(&fs::read_to_string(path(name)).unwrap()).unwrap();
        list.as_array().unwrap().len()
    };
    for (command, _) in places_of(Role::Backups) {
        // It serves until it is interrupted: `backup_mount`.
        if command == "backup mount" {
            continue;
        }
        let (place, restored) = (path("full/backups"), path("restored.img"));
        let mut words = vec![program.to_str().unwrap().to_owned()];
        words.extend(command.split(' ').map(str::to_owned));
        words.extend((command == "backup run").then(|| path("disk.img")));
        words.push(place);
        let more: &[&str] = match command.as_str() {
            "backup prune" => &["--keep-last", "1"],
            "backup restore" => &[&restored],
            _ => &[],
        };
        words.extend(more.iter().map(|word| (*word).to_owned()));
        let variables = [("HERE", here.as_path()), ("OUT", folder.path()), ("LUNWAY", program)];
        let Some((code, said, printed)) = with_mounts(script, &words, &variables) else { return };
        let context = format!("{command}: {code:?}: {said}{printed}");
        let is_full = said.contains("full: free space there")
            || said.contains("the destination is full: ")
            || said.contains("No space left");
        match command.as_str() {
            "backup run" => assert!(code == Some(1) && is_full && points("after") == 3, "{context}"),
            // It makes its new file before it removes any.
            "backup prune" => {
                assert!(code == Some(1) && is_full && points("after") == 3 || code == Some(0), "{context}");
            }
            _ => assert!(code == Some(0) && points("after") == points("before"), "{context}"),
        }
    }
}

#[test]
fn a_daemon_on_a_full_file_system_says_what_it_could_not_keep_and_serves_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let here = path("full");
    fs::create_dir(&here).unwrap();
    succeed(lunway(&["disk", "create", path("disk.vhdx").to_str().unwrap(), "--size", "8M"]));
    let configuration = format!(
        "# mine\nlisten = [\"127.0.0.1:0\"]\ncores = 1\nstate_dir = \"{}\"\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"vhdx:disk.vhdx\"\n",
        path("state").display()
    );
    fs::write(path("lunway.toml"), configuration).unwrap();
    // Each command, then its exit code, between lines of its own.
    let script = r#"
        mount -t tmpfs -o size=16m none "$HERE" || exit 77
        cp --sparse=always "$OUT/disk.vhdx" "$OUT/lunway.toml" "$HERE"
        export LUNWAY_SOCKET="$OUT/api.sock" LUNWAY_RUNTIME_DIR="$OUT/run"
        "$LUNWAY" serve -c "$HERE/lunway.toml" --json >"$OUT/ready" 2>"$OUT/log" & daemon=$!
        trap 'kill $daemon; wait $daemon' EXIT
        for try in $(seq 600); do [ -s "$OUT/ready" ] && break; sleep 0.1; done
        cp "$HERE/lunway.toml" "$OUT/before"
        head -c 64M /dev/zero > "$HERE/fill" 2>/dev/null
        run() { timeout 60 "$LUNWAY" "$@" 2>&1; echo "exit code $?"; echo ---; }
        run lun add "$IQN" 7 ram:1M
        run lun add "$IQN" 8 "$HERE/new.img" --create 4M
        run lun snapshot "$IQN" 0 "$HERE/child.avhdx"
        cmp "$OUT/before" "$HERE/lunway.toml" || echo "the configuration is another one"
        echo ---
        rm "$HERE/fill"
        ls "$HERE" | grep -v -e '^disk.vhdx$' -e '^lunway.toml$'
        echo ---
        run lun list
        run lun add "$IQN" 9 ram:1M
        cat "$HERE/lunway.toml""#;
    let program = Path::new(env!("CARGO_BIN_EXE_lunway"));
    let variables =
        [("HERE", here.as_path()), ("OUT", folder.path()), ("LUNWAY", program), ("IQN", Path::new(IQN))];
    let Some((_, _, printed)) = with_mounts(script, &[], &variables) else { return };
    let parts: Vec<&str> = printed.split("---\n").collect();
    let [add, create, snapshot, same, left, list, again, kept] = parts[..] else { panic!("{printed}") };
    for refused in [add, create, snapshot] {
        assert!(refused.contains("No space left") && refused.contains("exit code 1"), "{printed}");
    }
    assert!(same.is_empty() && left.is_empty(), "{printed}");
    // What was refused is not there, and what was served is.
    assert!(
        list.contains("disk.vhdx") && !list.contains("child.avhdx") && !list.contains("new.img"),
        "{list}"
    );
    assert!(again.contains("exit code 0"), "{again}");
    assert!(kept.contains("# mine") && kept.contains("id = 9") && !kept.contains("id = 8"), "{kept}");
}

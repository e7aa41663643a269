//! What another user may have put where a file is about to be made: links to files that are not theirs to write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::data;
use super::support::{PATIENCE, finish, image, lunway, succeed};

/// The commands that make a file under the name `….partial`, with all words that make them write to one that is there.
fn making<'a>(source: &'a str, points: &'a str, new: &'a str) -> Vec<Vec<&'a str>> {
    let mut all = Vec::new();
    for more in [None, Some("--resume"), Some("--overwrite")] {
        for words in [
            vec!["copy", source, new],
            vec!["disk", "convert", source, new],
            vec!["backup", "restore", points, new],
        ] {
            all.push(words.into_iter().chain(more).collect());
        }
    }
    all
}

/// In a folder that others may write to, they could have the next copy written to any file of its user.
#[test]
fn a_partial_file_that_another_user_may_have_put_there_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, points, precious) = (path("source"), path("points"), path("precious"));
    let (new, partial) = (path("new.img"), path("new.img.partial"));
    data(Path::new(&source));
    fs::create_dir(&points).unwrap();
    succeed(lunway(&["backup", "run", &source, &points]));
    // As long as the source: what is completed has its size.
    let len = fs::metadata(&source).unwrap().len();
    image(Path::new(&precious), len, len / 2);
    let before = fs::read(&precious).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for words in making(&source, &points, &new) {
        for kind in
            ["is a symbolic link", "is a symbolic link to nothing", "has 2 names", "belongs to another user"]
        {
            let planted = match kind {
                "is a symbolic link" => symlink(&precious, &partial),
                "is a symbolic link to nothing" => symlink(path("nothing"), &partial),
                "has 2 names" => fs::hard_link(&precious, &partial),
                _ if !is_root => continue,
                _ => fs::write(&partial, &before)
                    .and_then(|()| std::os::unix::fs::chown(&partial, Some(65_534), None)),
            };
            planted.unwrap();
            let output = finish(lunway(&words), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{words:?}, {kind}: {said}");
            let kind = kind.trim_end_matches(" to nothing");
            assert!(said.contains(&format!("new.img.partial {kind}")), "{words:?}: {said}");
            assert!(said.contains("remove it first"), "{words:?}: {said}");
            assert!(fs::read(&precious).unwrap() == before, "{words:?}, {kind}");
            assert!(!Path::new(&new).exists() && !Path::new(&path("nothing")).exists(), "{words:?}");
            fs::remove_file(&partial).unwrap();
        }
    }
    // One's own is completed as ever.
    let mut begun = fs::read(&source).unwrap();
    begun[(len / 2) as usize..].fill(0);
    for words in making(&source, &points, &new).iter().filter(|words| words.contains(&"--resume")) {
        fs::write(&partial, &begun).unwrap();
        succeed(lunway(words));
        assert!(fs::read(&new).unwrap() == fs::read(&source).unwrap(), "{words:?}");
        fs::remove_file(&new).unwrap();
    }
}

/// A disk that only its user could read was copied to files that everybody could.
#[test]
fn a_new_file_is_read_by_nobody_who_may_not_read_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mode = |path: &str| fs::metadata(path).unwrap().mode() & 0o777;
    let set = |path: &str, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let (raw, vhdx) = (path("disk.img"), path("disk.vhdx"));
    let out = ["copy.img", "converted.vhdx", "copy.vhd", "child.avhdx", "differing.avhdx", "restored.img"]
        .map(path);
    let [copy, converted, vhd, child, differing, restored] = &out;
    data(Path::new(&raw));
    let private = "umask 022; exec \"$0\" \"$@\"";
    let run = |words: &[&str]| {
        // The test's own umask must not decide it.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", private, env!("CARGO_BIN_EXE_lunway")]).args(words);
        succeed(command)
    };
    for (own, expected) in [(0o600, 0o600), (0o640, 0o640), (0o666, 0o644), (0o400, 0o600)] {
        let points = path(&format!("points-{own:o}"));
        fs::create_dir(&points).unwrap();
        set(&raw, own);
        run(&["disk", "convert", &raw, &vhdx]);
        assert_eq!(mode(&vhdx), expected, "{own:o}");
        run(&["copy", &raw, copy]);
        run(&["disk", "convert", &vhdx, converted]);
        run(&["copy", &vhdx, vhd]);
        run(&["disk", "snapshot", &vhdx, child]);
        run(&["disk", "convert", &raw, differing, "--parent", &vhdx]);
        run(&["backup", "run", &raw, &points]);
        run(&["backup", "restore", &points, restored]);
        for file in &out {
            assert_eq!(mode(file), expected, "{own:o}: {file}");
            fs::remove_file(file).unwrap();
        }
        for entry in fs::read_dir(&points).unwrap() {
            let entry = entry.unwrap();
            let found = entry.metadata().unwrap().mode() & 0o777;
            assert_eq!(found & !expected, 0, "{own:o}: {:?} has {found:o}", entry.file_name());
        }
        fs::remove_file(&vhdx).unwrap();
    }
    // Of what has no mode it is its user's alone.
    run(&["copy", "ram:1M", copy]);
    assert_eq!(mode(copy), 0o600);
}

#[test]
fn what_a_repair_keeps_is_read_by_nobody_who_may_not_read_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.vhdx").to_str().unwrap().to_owned();
    succeed(lunway(&["disk", "create", &disk, "--size", "8M"]));
    fs::set_permissions(&disk, Permissions::from_mode(0o600)).unwrap();
    let file = fs::File::options().write(true).open(&disk).unwrap();
    // The first header.
    std::os::unix::fs::FileExt::write_all_at(&file, b"damaged", 64 << 10).unwrap();
    succeed(lunway(&["disk", "repair", &disk]));
    let kept = fs::metadata(format!("{disk}.before-repair")).unwrap();
    assert_eq!(kept.mode() & 0o777, 0o600);
}

/// Two folders whose names differ in bytes that are not UTF-8 were one in the list of a destination's sources, so that
/// the second disk was added to the points of the first.
#[test]
fn a_disk_whose_path_cannot_be_written_down_is_refused_where_it_would_be() {
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    if fs::create_dir(&odd).is_err() {
        return lunway_foreign::not_run("a file system that takes names that are not UTF-8");
    }
    data(&odd.join("disk.img"));
    let points = folder.path().join("points").to_str().unwrap().to_owned();
    fs::create_dir(&points).unwrap();
    for words in [
        vec!["backup", "run", "disk.img", &points],
        vec!["serve", "--listen", "127.0.0.1:0", "--no-api", "--open", "--lun", "0=disk.img"],
        vec![
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--no-api",
            "--open",
            "--lun",
            "0=disk.img",
            "--save",
            "lunway.toml",
        ],
        vec!["lun", "add", "iqn.2026-11.com.example:disk", "1", "disk.img", "--socket", "/nowhere"],
    ] {
        let mut command = lunway(&words);
        command.current_dir(&odd);
        let output = finish(command, PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {said}");
        assert!(said.contains("its name is not UTF-8"), "{words:?}: {said}");
        assert!(!odd.join("lunway.toml").exists());
    }
    assert_eq!(fs::read_dir(&points).unwrap().count(), 0);
    // Where it is only read, its name does not matter.
    let mut copy = lunway(&["copy", "disk.img", "copy.img"]);
    copy.current_dir(&odd);
    succeed(copy);
}

/// The parent was not known by its second name, and its children could not be opened any more.
#[test]
fn a_parent_is_known_by_each_of_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("sub")).unwrap();
    let (raw, parent, child, link) =
        (path("disk.img"), path("parent.vhdx"), path("child.avhdx"), path("sub/link.vhdx"));
    data(Path::new(&raw));
    succeed(lunway(&["disk", "create", &parent, "--from", &raw]));
    succeed(lunway(&["disk", "snapshot", &parent, &child]));
    fs::hard_link(&parent, &link).unwrap();
    for words in [
        &["copy", "ram:1M", &link, "--overwrite"][..],
        &["disk", "convert", "ram:1M", &link, "--overwrite"],
        &["disk", "resize", &link, "64M"],
    ] {
        let output = finish(lunway(words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("child.avhdx"), "{words:?}: {said}");
    }
    succeed(lunway(&["disk", "check", &child]));
}

#[test]
fn a_restore_onto_a_disk_that_is_too_small_says_both_sizes_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, points, small) = (path("source"), path("points"), path("small.img"));
    image(Path::new(&source), 4 << 20, 2 << 20);
    image(Path::new(&small), 1 << 20, 1 << 19);
    fs::create_dir(&points).unwrap();
    succeed(lunway(&["backup", "run", &source, &points]));
    let before = fs::read(&small).unwrap();
    for more in [&["--overwrite"][..], &["--delta", "--overwrite"], &[]] {
        let output = finish(lunway(&[&["backup", "restore", &points, &small][..], more].concat()), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("1048576 bytes") && said.contains("4194304 bytes"), "{said}");
        assert!(said.contains("nothing was written") && !said.contains("completes it"), "{said}");
        assert!(fs::read(&small).unwrap() == before);
    }
}

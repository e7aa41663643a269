//! Files that lie on each other: snapshots, merges, parents and children.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lunway_foreign::program;

use super::support::{PATIENCE, finish, lunway, succeed};
use super::{Folder, MIB, image};

#[test]
fn snapshots_keep_what_was_and_merging_keeps_what_is() {
    let folder = Folder::new();
    image(&folder.path("disk.img"), 12 * MIB);
    folder.disk("convert disk.img base.vhdx --block-size 1M");
    folder.disk("snapshot base.vhdx one.avhdx");
    let base = folder.contents("base.vhdx");
    assert!(folder.contents("one.avhdx") == base, "a snapshot shows the same");
    folder.write("one.avhdx", 5 * MIB + 4096, 201, 8192);
    folder.disk("snapshot one.avhdx two.avhdx");
    folder.write("two.avhdx", 7 * MIB, 202, 2 << 20);
    let shown = folder.contents("two.avhdx");
    assert!(folder.contents("base.vhdx") == base, "the parent is as it was");

    let info = folder.json("info two.avhdx");
    let chain: Vec<&str> =
        info["chain"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    assert_eq!(chain.len(), 3);
    assert!(info["parent"].as_str().unwrap().contains("one.avhdx"), "{info}");
    assert_eq!(folder.json("info base.vhdx")["children"].as_array().unwrap().len(), 1);
    let map = folder.disk("map two.avhdx");
    for file in ["base.vhdx", "one.avhdx", "two.avhdx"] {
        assert!(map.contains(file), "{map}");
    }
    folder.disk("check two.avhdx");
    assert!(folder.refused("resize base.vhdx 20M").contains("is the parent of one.avhdx"));

    // Another child of the base would be lost.
    folder.disk("snapshot base.vhdx other.avhdx");
    let said = folder.refused("merge two.avhdx --into base.vhdx");
    assert!(said.contains("other.avhdx") && folder.contents("two.avhdx") == shown, "{said}");
    fs::remove_file(folder.path("other.avhdx")).unwrap();

    let merged = folder.json("merge two.avhdx --into base.vhdx");
    assert_eq!(merged["merged"].as_array().unwrap().len(), 2);
    assert!(folder.contents("base.vhdx") == shown);
    assert!(!Path::new(&folder.path("one.avhdx")).exists() && !Path::new(&folder.path("two.avhdx")).exists());
    folder.qemu_check("base.vhdx");
    assert!(folder.refused("merge base.vhdx").contains("not a differencing disk"));
}

#[test]
fn a_merge_cuts_a_larger_parent_only_by_its_words_and_no_file_system() {
    let folder = Folder::new();
    let Some(mkfs) = program("mkfs.ext4") else { return };
    let raw = folder.path("fs.img");
    fs::write(&raw, vec![0; 64 << 20]).unwrap();
    assert!(Command::new(mkfs).args(["-q", "-F", &raw, "48M"]).status().unwrap().success());
    folder.disk("convert fs.img base.vhdx");
    let before = folder.contents("base.vhdx");
    folder.disk("create child.avhdx --parent base.vhdx --size 32M");
    let said = folder.refused("merge child.avhdx");
    assert!(said.contains("32 MiB") && said.contains("64 MiB") && said.contains("--shrink"), "{said}");
    let said = folder.refused("merge child.avhdx --shrink");
    assert!(said.contains("ext4") && said.contains("--force") && said.contains("64 MiB"), "{said}");
    assert!(folder.contents("base.vhdx") == before);
    // Behind the file system nothing is lost that it needs.
    folder.disk("create whole.avhdx --parent base.vhdx --size 50M");
    fs::remove_file(folder.path("child.avhdx")).unwrap();
    assert!(folder.refused("merge whole.avhdx").contains("--shrink"));
    folder.disk("merge whole.avhdx --shrink");
    assert!(folder.contents("base.vhdx") == before[..50 << 20]);
}

#[test]
fn a_parent_that_was_moved_is_found_again_and_another_one_is_refused() {
    let folder = Folder::new();
    image(&folder.path("disk.img"), 4 * MIB);
    folder.disk("convert disk.img base.vhdx");
    folder.disk("snapshot base.vhdx child.avhdx");
    let shown = folder.contents("child.avhdx");
    fs::rename(folder.path("base.vhdx"), folder.path("moved.vhdx")).unwrap();
    assert!(folder.refused("check child.avhdx").contains("the parent was not found"));
    folder.disk("rebase child.avhdx --parent moved.vhdx");
    assert!(folder.contents("child.avhdx") == shown);

    folder.disk("create wrong.vhdx --size 4M");
    let said = folder.refused("rebase child.avhdx --parent wrong.vhdx");
    assert!(said.contains("--ignore-mismatch") && folder.contents("child.avhdx") == shown, "{said}");
    // A parent is not written: its children are looked for above it, too.
    let [child, away] = ["child.avhdx", "away"].map(|name| folder.path(name));
    fs::write(folder.path("source.img"), vec![9; 4 << 20]).unwrap();
    let onto = || {
        lunway(&[
            "copy",
            &folder.path("source.img"),
            &format!("vhdx:{}", folder.path("moved.vhdx")),
            "--overwrite",
        ])
    };
    let refused = finish(onto(), PATIENCE);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it is the parent of"), "{refused:?}");
    assert!(folder.contents("child.avhdx") == shown);
    assert!(folder.refused("rebase moved.vhdx --parent child.avhdx").contains("would be a circle"));
    assert!(
        folder
            .refused("rebase child.avhdx --parent child.avhdx --ignore-mismatch")
            .contains("would be a circle")
    );
    // One that was written to is not the one that the child was made on.
    fs::create_dir(&away).unwrap();
    fs::rename(&child, format!("{away}/child.avhdx")).unwrap();
    succeed(onto());
    fs::rename(format!("{away}/child.avhdx"), &child).unwrap();
    assert!(folder.refused("check child.avhdx").contains("the parent has changed"));
    folder.disk("rebase child.avhdx --parent moved.vhdx --ignore-mismatch");
    assert!(folder.contents("child.avhdx") == folder.contents("moved.vhdx"));
}

/// Waits until a command has a file open all the time, as it has while it waits for its lock, or has ended.
fn until_waiting(command: &mut Child, file: &str) {
    let files = format!("/proc/{}/fd", command.id());
    let has_open = || {
        let mut links = fs::read_dir(&files).into_iter().flatten().flatten();
        links.any(|link| fs::read_link(link.path()).is_ok_and(|to| to == Path::new(file)))
    };
    let mut seen = 0;
    while seen < 5 && command.try_wait().unwrap().is_none() {
        seen = if has_open() { seen + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A child that turns up between a command's look for children and its lock: a command that waits for a lock has looked
/// before.
#[test]
fn a_child_that_is_made_while_a_command_waits_for_its_parent_is_seen() {
    for words in [
        "resize disk.vhdx 20M",
        "resize disk.vhdx 6M --shrink",
        "compact disk.vhdx",
        "set disk.vhdx --new-id",
        "merge other.avhdx",
        "convert disk.img disk.vhdx --overwrite",
    ] {
        let folder = Folder::new();
        image(&folder.path("disk.img"), 8 * MIB);
        folder.disk("convert disk.img disk.vhdx");
        folder.disk("snapshot disk.vhdx child.avhdx");
        // Where no command looks for it.
        fs::create_dir(folder.path("away")).unwrap();
        let [child, away] = ["child.avhdx", "away/child.avhdx"].map(|name| folder.path(name));
        fs::rename(&child, &away).unwrap();
        if words.starts_with("merge") {
            folder.disk("snapshot disk.vhdx other.avhdx");
        }
        let parent = fs::File::open(folder.path("disk.vhdx")).unwrap();
        parent.lock_shared().unwrap();
        let mut command = folder.command(words).stderr(Stdio::piped()).spawn().unwrap();
        // For a quarter of a second at most; refused for another reason it is as good.
        until_waiting(&mut command, &folder.path("disk.vhdx"));
        fs::rename(&away, &child).unwrap();
        parent.unlock().unwrap();
        let output = command.wait_with_output().unwrap();
        assert!(!output.status.success(), "{words}");
        folder.disk("check child.avhdx");
        assert!(folder.contents("child.avhdx") == fs::read(folder.path("disk.img")).unwrap(), "{words}");
    }
}

/// A merged file is removed, which a command may have opened and be waiting for: it would change what no name leads to.
#[test]
fn a_file_that_is_removed_while_a_command_waits_for_it_is_not_there() {
    let folder = Folder::new();
    folder.disk("create disk.vhdx --size 8M");
    let disk = fs::File::open(folder.path("disk.vhdx")).unwrap();
    disk.lock().unwrap();
    let mut command = folder.command("set disk.vhdx --new-id").stderr(Stdio::piped()).spawn().unwrap();
    until_waiting(&mut command, &folder.path("disk.vhdx"));
    fs::remove_file(folder.path("disk.vhdx")).unwrap();
    disk.unlock().unwrap();
    assert!(!command.wait_with_output().unwrap().status.success());
}

#[test]
fn children_are_looked_for_in_the_folders_above_and_parents_never_through_a_link_that_leads_out() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name);
    fs::create_dir(path("base")).unwrap();
    fs::create_dir(path("inside")).unwrap();
    let run = |words: &[&str]| {
        let output = finish(lunway(&[&["disk"], words].concat()), PATIENCE);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let done = |words: &[&str]| assert!(run(words).0, "{words:?}: {:?}", run(words));
    let (base, above, beside) = (path("base/p.vhdx"), path("a.avhdx"), path("base/b.avhdx"));
    done(&["create", &base, "--size", "8M", "--block-size", "1M"]);
    done(&["create", &above, "--parent", &base]);
    done(&["create", &beside, "--parent", &base]);
    for words in [&["merge", &*beside][..], &["resize", &base, "16M"]] {
        let (succeeded, said) = run(words);
        assert!(!succeeded && said.contains("a.avhdx"), "{words:?}: {said}");
    }
    done(&["check", &above]);
    // A name of another kind is looked into beside the parent.
    let odd = path("base/child");
    fs::rename(&above, path("above.kept")).unwrap();
    fs::rename(&beside, &odd).unwrap();
    let (succeeded, said) = run(&["resize", &base, "16M"]);
    assert!(!succeeded && said.contains("is the parent of child"), "{said}");
    fs::rename(path("above.kept"), &above).unwrap();

    let (link, child) = (path("inside/p.vhdx"), path("inside/c.avhdx"));
    fs::copy(&base, &link).unwrap();
    done(&["create", &child, "--parent", &link]);
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&base, &link).unwrap();
    let (succeeded, said) = run(&["check", &child]);
    assert!(!succeeded && said.contains("the parent was not found"), "{said}");

    let odd = path("a\\b.vhdx");
    done(&["create", &odd, "--size", "8M"]);
    let (succeeded, said) = run(&["snapshot", &odd, &path("c.avhdx")]);
    assert!(!succeeded && said.contains("has a backslash"), "{said}");
}

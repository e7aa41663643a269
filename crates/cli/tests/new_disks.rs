//! Files that commands make: what they are, what they take the place of, and what an interrupt leaves.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::{PATIENCE, finish, image, interrupted, lunway, succeed};

const MIB: u64 = 1 << 20;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// `lunway` in this folder.
    fn lunway(&self, words: &str) -> Command {
        let mut command = lunway(&words.split_whitespace().collect::<Vec<_>>());
        command.current_dir(self.0.path());
        command
    }

    fn run(&self, words: &str) -> String {
        succeed(self.lunway(words))
    }

    fn info(&self, name: &str) -> Value {
        serde_json::from_str(&self.run(&format!("disk info {name} --json"))).unwrap()
    }

    /// What a command says that fails with this code.
    fn refused(&self, code: i32, words: &str) -> String {
        let output = finish(self.lunway(words), PATIENCE);
        assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
        said(&output)
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_conversion_asks_before_it_replaces_a_file_and_then_makes_what_its_options_say() {
    let folder = Folder::new();
    image(Path::new(&folder.path("disk.img")), 8 * MIB, 2 * MIB);
    folder.run("disk create old.vhdx --size 8M");
    // As long as the source, and without a byte of data.
    fs::File::create(folder.path("empty.img")).unwrap().set_len(8 * MIB).unwrap();
    fs::File::create(folder.path("none.img")).unwrap();
    let before = fs::read(folder.path("old.vhdx")).unwrap();
    for words in
        ["old.vhdx --fixed --block-size 1M", "old.vhdx", "old.vhdx --resume", "empty.img", "none.img"]
    {
        let said = folder.refused(1, &format!("disk convert disk.img {words}"));
        assert!(said.contains("already exists: --overwrite replaces it with a new file"), "{words}: {said}");
    }
    assert!(fs::read(folder.path("old.vhdx")).unwrap() == before);

    fs::set_permissions(folder.path("old.vhdx"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("old.vhdx", folder.path("link.vhdx")).unwrap();
    let inode = |name: &str| fs::metadata(folder.path(name)).unwrap().ino();
    let old = inode("old.vhdx");
    folder.run("disk convert disk.img link.vhdx --fixed --block-size 1M --overwrite --verify");
    let made = folder.info("old.vhdx");
    assert_eq!((&made["kind"], made["block_bytes"].as_u64()), (&"fixed".into(), Some(MIB)), "{made}");
    assert!(inode("old.vhdx") != old && Path::new(&folder.path("link.vhdx")).is_symlink());
    assert_eq!(fs::metadata(folder.path("old.vhdx")).unwrap().permissions().mode() & 0o777, 0o600);
    // A file of another size is replaced as well: what is made has the size of the source.
    for name in ["empty.img", "none.img"] {
        folder.run(&format!("disk convert old.vhdx {name} --overwrite"));
        support::assert_same_bytes(Path::new(&folder.path("disk.img")), Path::new(&folder.path(name)));
    }
    // Disks that lie on a file would be lost with it.
    folder.run("disk snapshot old.vhdx child.avhdx");
    let before = fs::read(folder.path("old.vhdx")).unwrap();
    let said = folder.refused(1, "disk convert disk.img old.vhdx --overwrite");
    assert!(said.contains("is the parent of child.avhdx"), "{said}");
    let said = folder.refused(2, "disk convert disk.img old.vhdx --parent old.vhdx --overwrite");
    assert!(said.contains("is its own parent"), "{said}");
    assert!(fs::read(folder.path("old.vhdx")).unwrap() == before);
}

#[test]
fn options_of_a_new_file_are_refused_where_no_such_file_is_made() {
    let folder = Folder::new();
    for (destination, code) in [("new.img", "raw by its name"), ("ram:1M", "written in place")] {
        for option in ["--fixed", "--block-size 2M", "--sector 4096", "--physical-sector 512"] {
            let said = folder.refused(2, &format!("disk convert null:1M {destination} {option}"));
            let name = option.split(' ').next().unwrap();
            assert!(said.contains(code) && said.contains(name), "{destination} {option}: {said}");
        }
    }
    assert!(!Path::new(&folder.path("new.img.partial")).exists());
}

#[test]
fn an_interrupted_replacement_leaves_the_old_file_and_goes_on_with_the_words_that_it_names() {
    let folder = Folder::new();
    image(Path::new(&folder.path("disk.img")), 24 * MIB, 20 * MIB);
    for (name, ours, others) in [
        (
            "disk.vhdx",
            "--block-size 1M",
            ["--block-size 2M", "--fixed", "--sector 4096", "--physical-sector 512"],
        ),
        ("disk.vhd", "--block-size 1M", ["--block-size 2M", "--fixed", "--block-size 4M", "--fixed --zero"]),
    ] {
        let partial = folder.path(&format!("{name}.partial"));
        folder.run(&format!("disk create {name} --size 24M"));
        let before = fs::read(folder.path(name)).unwrap();
        let convert = |more: &str| format!("disk convert rate:8M:disk.img {name} {more}");
        let begun = || fs::metadata(&partial).is_ok_and(|file| file.len() > 8 * MIB);
        let output = interrupted(folder.lunway(&convert(&format!("--overwrite {ours}"))), begun);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains("--resume --overwrite continues it"), "{output:?}");
        assert!(fs::read(folder.path(name)).unwrap() == before, "{name}");
        // The unfinished file is as it was begun: other options would be ignored.
        for other in others {
            let said = folder.refused(1, &convert(&format!("--resume --overwrite {other}")));
            let option = other.split(' ').next().unwrap();
            assert!(said.contains(&format!("was begun without this {option}")), "{other}: {said}");
        }
        folder.run(&convert(&format!("--resume --overwrite --verify {ours}")));
        assert!(!Path::new(&partial).exists());
        folder.run(&format!("copy {name} raw:{name}.raw"));
        let copied = folder.path(&format!("{name}.raw"));
        support::assert_same_bytes(Path::new(&folder.path("disk.img")), Path::new(&copied));
    }
}

#[test]
fn a_file_whose_name_has_no_ending_is_said_to_be_what_it_is() {
    let folder = Folder::new();
    let said = folder.run("disk create plain --size 4M");
    assert!(said.contains("plain: a dynamic VHDX of 4 MiB") && said.contains("as vhdx:plain"), "{said}");
    folder.run("disk info vhdx:plain");
    let said = folder.run("disk create vhdx:named --size 4M");
    assert!(said.contains("named: a dynamic VHDX") && said.contains("as vhdx:named"), "{said}");
    assert!(!folder.run("disk create ended.vhdx --size 4M").contains("as vhdx:"));
    for (words, code) in [
        ("copy ram:1M copied", "copied is a raw image"),
        ("disk convert ram:1M converted", "converted is a raw image"),
    ] {
        let said = folder.run(words);
        assert!(said.contains(code), "{said}");
    }
    // The grammar's words count, and are no part of a name.
    assert!(folder.run("disk create vhd:azure --size 4M --fixed").contains("azure: a fixed VHD of 4 MiB"));
    for (name, instead) in [("raw:r", "truncate"), ("qcow2:q", "qemu-img"), ("q.qcow2", "qemu-img")] {
        let said = folder.refused(1, &format!("disk create {name} --size 4M"));
        assert!(said.contains("name it *.vhdx") && said.contains(instead), "{said}");
    }
    let names: Vec<_> =
        fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_str().unwrap().contains(':')), "{names:?}");
    let said = folder.refused(1, "disk snapshot ended.vhdx child.vhd");
    assert!(said.contains("name it *.avhdx"), "{said}");
}

#[test]
fn a_restore_that_a_damaged_point_ends_names_what_it_left_and_what_helps() {
    let folder = Folder::new();
    // More than the requests that a restore begins with, so that something is written before it fails.
    image(Path::new(&folder.path("disk.img")), 128 * MIB, 120 * MIB);
    fs::create_dir(folder.path("points")).unwrap();
    folder.run("backup run disk.img points");
    let files = fs::read_dir(folder.path("points")).unwrap().map(|entry| entry.unwrap().path());
    let disk = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "vhdx")).unwrap();
    // Data behind what is restored first: blocks lie in any order, and every MiB of them has data.
    let mut bytes = fs::read(&disk).unwrap();
    let at = bytes.len() * 3 / 4;
    bytes[at..at + (1 << 20)].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&disk, bytes).unwrap();
    let said = folder.refused(1, "backup restore points out.img");
    let left = "out.img.partial is incomplete, and the point cannot complete it: restore an older one (--point) with --overwrite";
    assert!(said.contains(left) && said.contains("is damaged"), "{said}");
    assert!(
        Path::new(&folder.path("out.img.partial")).exists() && !Path::new(&folder.path("out.img")).exists()
    );
    // An existing file has a part of it now, and another name; one that was refused has nothing.
    fs::File::create(folder.path("there.img")).unwrap().set_len(128 * MIB).unwrap();
    let said = folder.refused(1, "backup restore points there.img");
    let left = "there.img.overwritten.partial holds only a part of it, and the point cannot complete it";
    assert!(said.contains(left), "{said}");
    fs::write(folder.path("full.img"), vec![1; 128 << 20]).unwrap();
    let said = folder.refused(1, "backup restore points full.img");
    assert!(said.contains("holds data") && !said.contains("only a part"), "{said}");
}

//! `lunway disk repair`: what a kill leaves of it, and files that say what is no name.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use lunway_vhdx::{Chain, Disk, VhdxOpenOptions, open_file};
use support::{PATIENCE, finish, lunway, succeed};

/// Bytes of the header section.
const HEADERS: usize = 1 << 20;

struct Case(tempfile::TempDir);

impl Case {
    /// A disk with a log that was not replayed, and a header that is spoiled.
    fn new() -> Self {
        let case = Self(tempfile::tempdir().unwrap());
        succeed(lunway(&[
            "disk",
            "create",
            case.name().to_str().unwrap(),
            "--size",
            "64M",
            "--block-size",
            "1M",
        ]));
        let guids = lunway_vhdx_device::random_guids().unwrap();
        let file = open_file(&case.name(), true).unwrap();
        let chain = Chain::new(vec![Disk::open(file, &VhdxOpenOptions::writable(), guids).unwrap()]).unwrap();
        chain.write_at(0, &[7; 4096]).unwrap();
        // As a killed process leaves it.
        chain.flush().unwrap();
        drop(chain);
        let mut bytes = case.bytes();
        // The one that is not current: two are written alike, the second in the second place.
        bytes[64 << 10..(64 << 10) + 4].copy_from_slice(b"xxxx");
        fs::write(case.name(), bytes).unwrap();
        case
    }

    fn name(&self) -> PathBuf {
        self.0.path().join("disk.vhdx")
    }

    fn kept(&self) -> PathBuf {
        self.0.path().join("disk.vhdx.before-repair")
    }

    fn partial(&self) -> PathBuf {
        self.0.path().join("disk.vhdx.before-repair.partial")
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.name()).unwrap()
    }

    fn repair(&self, more: &[&str]) -> Result<String, String> {
        let mut command = lunway(&["disk", "repair", self.name().to_str().unwrap()]);
        command.args(more);
        let output = finish(command, PATIENCE);
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    fn check(&self) {
        let said = succeed(lunway(&["disk", "check", self.name().to_str().unwrap()]));
        assert!(said.contains(": no errors"), "{said}");
    }
}

/// Before, both were refused: the save was taken for one of an earlier repair, and the repair for another's write.
#[test]
fn a_repair_that_was_killed_is_undone_and_repeated() {
    let case = Case::new();
    let before = case.bytes();
    case.repair(&[]).unwrap();
    let (repaired, kept) = (case.bytes(), fs::read(case.kept()).unwrap());
    assert!(repaired != before && !case.partial().exists());
    // The headers are written last, or not yet; the length is the same.
    let mut half = before.clone();
    half[..HEADERS].copy_from_slice(&repaired[..HEADERS]);
    let mut first = before.clone();
    first[64 << 10..68 << 10].copy_from_slice(&repaired[64 << 10..68 << 10]);
    for (what, left) in [("nothing", &before), ("one header", &first), ("headers", &half), ("all", &repaired)]
    {
        let arrange = || {
            fs::write(case.kept(), &kept).unwrap();
            fs::write(case.name(), left).unwrap();
        };
        arrange();
        case.repair(&["--undo"]).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(case.bytes() == before, "{what}: undone to the byte");
        arrange();
        case.repair(&[]).unwrap_or_else(|error| panic!("{what}: {error}"));
        case.check();
        case.repair(&["--undo"]).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(case.bytes() == before, "{what}: undone to the byte");
    }
    // What a kill leaves of the save is in nobody's way, and is no save.
    fs::remove_file(case.kept()).unwrap();
    fs::write(case.partial(), &kept[..HEADERS]).unwrap();
    let refused = case.repair(&["--undo"]).unwrap_err();
    assert!(refused.contains("before-repair"), "{refused}");
    case.repair(&[]).unwrap();
    case.check();
    assert!(!case.partial().exists());
}

#[test]
fn a_save_of_another_state_of_the_disk_is_not_written_back() {
    let case = Case::new();
    case.repair(&[]).unwrap();
    let guids = lunway_vhdx_device::random_guids().unwrap();
    let disk =
        Disk::open(open_file(&case.name(), true).unwrap(), &VhdxOpenOptions::writable(), guids).unwrap();
    let chain = Chain::new(vec![disk]).unwrap();
    chain.write_at(0, &[8; 4096]).unwrap();
    chain.flush().unwrap();
    drop(chain);
    let mut bytes = case.bytes();
    bytes[64 << 10..(64 << 10) + 4].copy_from_slice(b"xxxx");
    fs::write(case.name(), &bytes).unwrap();
    let said = case.repair(&[]).unwrap_err();
    assert!(said.contains("from an earlier repair: move it away"), "{said}");
    let said = case.repair(&["--undo"]).unwrap_err();
    assert!(said.contains("written to since"), "{said}");
    assert!(case.bytes() == bytes);
}

#[test]
fn a_save_that_cannot_be_written_leaves_nothing_behind() {
    let case = Case::new();
    let before = case.bytes();
    // A file of this size is all that the process may write: as a full disk.
    let words = "ulimit -f 1; trap '' XFSZ; exec \"$@\"";
    let lunway = lunway::<&str>(&[]).get_program().to_owned();
    let mut command = std::process::Command::new("bash");
    command.args(["-c", words, "bash"]).arg(lunway).args(["disk", "repair"]).arg(case.name());
    let output = finish(command, PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(case.bytes() == before && !case.kept().exists() && !case.partial().exists());
    case.repair(&[]).unwrap();
    case.check();
}

/// A line break in a parent's name would begin a line that looks like one of the program's own.
#[test]
fn what_a_file_says_its_parent_is_called_begins_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    succeed(lunway(&["disk", "create", &path("a\nlunway: all is well.vhdx"), "--size", "64M"]));
    succeed(lunway(&["disk", "create", &path("c.avhdx"), "--parent", &path("a\nlunway: all is well.vhdx")]));
    fs::rename(path("a\nlunway: all is well.vhdx"), path("b.vhdx")).unwrap();
    let nbd = format!("unix:{}", path("nbd"));
    for words in [
        &["disk", "check", &path("c.avhdx")][..],
        &["disk", "mount", &path("c.avhdx"), "--nbd", &nbd],
        &["disk", "map", &path("c.avhdx")],
    ] {
        let output = finish(lunway(words), PATIENCE);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("all is well"), "{said}");
        // Before it stands what a machine without the capability says of the process's protection.
        let mut lines = said.lines().skip_while(|line| line.contains("lunway::protection"));
        assert!(lines.next().unwrap().starts_with("lunway: "), "{said}");
        assert!(lines.all(|line| line.starts_with(' ')), "{words:?}: {said}");
    }
    assert!(!Path::new(&path("nbd")).exists());
}

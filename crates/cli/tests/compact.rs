//! `lunway disk compact` on a disk of ext4 in a GPT, filled and emptied by e2fsprogs, judged by e2fsck and by QEMU.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod support;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lunway_foreign::program;
use serde_json::Value;
use support::{PATIENCE, finish, lunway, succeed, wait};

const MIB: u64 = 1 << 20;
/// Where the partition begins.
const START: u64 = MIB;
/// Bytes of the file system.
const VOLUME: u64 = 192 * MIB;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Repeatable bytes that no page of is zero.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8 | 1
    };
    (0..len).map(|_| next()).collect()
}

/// A disk image with one partition of ext4, in which 30 small files live and 100 MiB of others were deleted.
struct Guest {
    folder: tempfile::TempDir,
    files: Vec<(String, Vec<u8>)>,
    debugfs: PathBuf,
    e2fsck: PathBuf,
}

impl Guest {
    /// `None` where a program is missing, which is noted.
    fn new() -> Option<Self> {
        let (mke2fs, debugfs, e2fsck) = (program("mke2fs")?, program("debugfs")?, program("e2fsck")?);
        let sfdisk = program("sfdisk")?;
        let guest = Self {
            folder: tempfile::tempdir().unwrap(),
            files: (0..30).map(|n| (format!("small{n}"), noise(n, 20_000 + 9000 * n as usize))).collect(),
            debugfs,
            e2fsck,
        };
        let source = guest.folder.path().join("source");
        fs::create_dir(&source).unwrap();
        // Between two that live, one that is deleted.
        for (n, (name, bytes)) in (0..).zip(&guest.files) {
            fs::write(source.join(name), bytes).unwrap();
            fs::write(source.join(format!("{name}-old")), noise(100 + n, 3_500_000)).unwrap();
        }
        let volume = guest.path("volume.img");
        let size = format!("{}K", VOLUME / 1024);
        run(Command::new(mke2fs).args(["-q", "-F", "-t", "ext4", "-d"]).arg(&source).arg(&volume).arg(size));
        for n in 0..30 {
            run(Command::new(&guest.debugfs).args(["-w", "-R", &format!("rm small{n}-old")]).arg(&volume));
        }
        let disk = fs::File::create(guest.path("disk.img")).unwrap();
        disk.set_len(START + VOLUME + MIB).unwrap();
        let mut table = Command::new(sfdisk);
        let mut table = table.arg("-q").arg(guest.path("disk.img")).stdin(Stdio::piped()).spawn().unwrap();
        let lines = format!("label: gpt\nstart={}, size={}\n", START / 512, VOLUME / 512);
        table.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(table.wait().unwrap().success());
        let mut disk = fs::OpenOptions::new().write(true).open(guest.path("disk.img")).unwrap();
        disk.seek(SeekFrom::Start(START)).unwrap();
        std::io::copy(&mut fs::File::open(&volume).unwrap(), &mut disk).unwrap();
        Some(guest)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A new virtual disk of the image.
    fn vhdx(&self, name: &str, block: &str) -> String {
        let file = self.text(name);
        let image = format!("raw:{}", self.text("disk.img"));
        succeed(lunway(&["disk", "create", &file, "--from", &image, "--block-size", block]));
        file
    }

    /// The file system is clean, and all its files are what they were.
    fn assert_whole(&self, vhdx: &str) {
        if let Some(qemu) = program("qemu-img") {
            // A copy: a log that a kill has left is replayed by QEMU as well.
            let copy = self.text("checked.vhdx");
            fs::copy(vhdx, &copy).unwrap();
            run(Command::new(qemu).args(["check", "-r", "all", "-f", "vhdx", &copy]));
        }
        let raw = self.text("after.img");
        let _ = fs::remove_file(&raw);
        succeed(lunway(&["copy", &format!("readonly:vhdx:{vhdx}"), &format!("raw:{raw}")]));
        let (volume, mut disk) = (self.path("after.volume"), fs::File::open(&raw).unwrap());
        disk.seek(SeekFrom::Start(START)).unwrap();
        std::io::copy(&mut disk.take(VOLUME), &mut fs::File::create(&volume).unwrap()).unwrap();
        run(Command::new(&self.e2fsck).arg("-fn").arg(&volume));
        let out = self.path("out");
        for (name, bytes) in &self.files {
            let dump = format!("dump {name} {}", out.display());
            run(Command::new(&self.debugfs).args(["-R", &dump]).arg(&volume));
            assert!(fs::read(&out).unwrap() == *bytes, "{name}");
        }
    }
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeed(lunway(words))).unwrap()
}

fn len(path: impl AsRef<Path>) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn a_disk_shrinks_to_what_its_file_system_needs() {
    let Some(guest) = Guest::new() else { return };
    let file = guest.vhdx("disk.vhdx", "1M");
    let before = len(&file);
    assert!(before > 100 * MIB, "{before}: deleted data are there");
    let estimate = json(&["disk", "compact", &file, "--estimate", "--json"]);
    assert_eq!(estimate["volumes"][0]["kind"], "ext4");
    let after = |name: &str| {
        let modes = estimate["modes"].as_array().unwrap();
        modes.iter().find(|mode| mode["name"] == name).unwrap()["bytes_after"].as_u64().unwrap()
    };
    assert!(after("live") < after("prezeroed") && after("prezeroed") <= after("pretrimmed"));
    assert_eq!(len(&file), before, "an estimate changes nothing");

    let done = json(&["disk", "compact", &file, "--json"]);
    assert_eq!(done["bytes"].as_u64().unwrap(), len(&file));
    assert_eq!(len(&file), after("live"), "{done}");
    // Every 3.5 MB there is a small file, which its block of 1 MiB lives for; the rest of the block is a hole.
    assert!(len(&file) < before / 2, "{done}");
    let allocated = |when: &str| done[when].as_u64().unwrap();
    assert!(allocated("allocated_bytes") < allocated("allocated_bytes_before") / 3, "{done}");
    guest.assert_whole(&file);
    // A second time there is nothing to do.
    let again = json(&["disk", "compact", &file, "--json"]);
    assert_eq!([&again["dropped_blocks"], &again["moved_bytes"]], [0, 0], "{again}");
    guest.assert_whole(&file);
}

#[test]
fn modes_do_what_they_say_and_what_is_to_be_kept_stays() {
    let Some(guest) = Guest::new() else { return };
    let file = guest.vhdx("disk.vhdx", "2M");
    let before = len(&file);
    let kept = json(&["disk", "compact", &file, "--keep", "1", "--json"]);
    assert_eq!(kept["punched_bytes"], 0, "{kept}");
    let said = finish(lunway(&["disk", "compact", &file, "--keep", "2"]), PATIENCE);
    assert!(String::from_utf8_lossy(&said.stderr).contains("has no partition 2"), "{said:?}");
    for mode in ["pretrimmed", "prezeroed", "retrim", "quick", "full", "live"] {
        let done = json(&["disk", "compact", &file, "--mode", mode, "--json"]);
        assert!(done["bytes"].as_u64().unwrap() <= done["bytes_before"].as_u64().unwrap(), "{done}");
        guest.assert_whole(&file);
    }
    assert!(len(&file) < before / 4 * 3, "{} {before}", len(&file));
}

#[test]
fn what_must_not_be_compacted_is_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (parent, child, fixed) = (path("parent.vhdx"), path("child.avhdx"), path("fixed.vhdx"));
    succeed(lunway(&["disk", "create", &parent, "--size", "8M"]));
    succeed(lunway(&["disk", "snapshot", &parent, &child]));
    succeed(lunway(&["disk", "create", &fixed, "--size", "8M", "--fixed"]));
    for (file, says) in [(&parent, "is the parent of child.avhdx"), (&fixed, "is a fixed disk")] {
        let before = fs::read(file).unwrap();
        let output = finish(lunway(&["disk", "compact", file]), PATIENCE);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{output:?}");
        assert!(fs::read(file).unwrap() == before);
    }
    succeed(lunway(&["disk", "compact", &child]));
}

#[test]
fn a_disk_that_qemu_has_open_is_refused_and_so_is_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let pipe = path("pipe.vhdx");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for verb in [&["compact"][..], &["check"], &["info"], &["inside"]] {
        let refused = finish(lunway(&[&["disk"][..], verb, &[&pipe]].concat()), PATIENCE);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("neither a regular file nor a block device"), "{verb:?}: {said}");
    }
    let Some(qemu) = program("qemu-io") else { return };
    let disk = path("disk.vhdx");
    succeed(lunway(&["disk", "create", &disk, "--size", "64M", "--block-size", "1M"]));
    let mut qemu = Command::new(qemu);
    let mut qemu =
        qemu.args(["-f", "vhdx", &disk]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut commands = qemu.stdin.take().unwrap();
    commands.write_all(b"write -P 7 1M 1M\n").unwrap();
    let (mut said, mut answered) = (qemu.stdout.take().unwrap(), Vec::new());
    while !String::from_utf8_lossy(&answered).contains("wrote") {
        let mut byte = [0];
        assert_eq!(said.read(&mut byte).unwrap(), 1, "QEMU has ended");
        answered.push(byte[0]);
    }
    for command in
        [&["disk", "compact", &disk][..], &["disk", "resize", &disk, "80M"], &["copy", "ram:64M", &disk]]
    {
        let refused = finish(lunway(command), PATIENCE);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("in use"), "{command:?}: {said}");
    }
    commands.write_all(b"write -P 8 2M 1M\n").unwrap();
    drop(commands);
    assert!(qemu.wait().unwrap().success());
    succeed(lunway(&["disk", "compact", &disk]));
}

#[test]
fn a_compaction_that_is_killed_again_and_again_loses_nothing() {
    let Some(guest) = Guest::new() else { return };
    let file = guest.vhdx("disk.vhdx", "1M");
    let kills = std::env::var("LUNWAY_COMPACT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let mut finished = 0;
    for kill in 0..kills {
        if finished > 1 {
            // Once it has nothing to do there is nothing to interrupt.
            fs::remove_file(&file).unwrap();
            guest.vhdx("disk.vhdx", "1M");
            finished = 0;
        }
        let mut command = lunway(&["disk", "compact", &file]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let patience = Duration::from_millis(5 + kill * 37 % 400);
        if wait(&mut child, patience).is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            finished += 1;
        }
        guest.assert_whole(&file);
    }
    succeed(lunway(&["disk", "compact", &file]));
    guest.assert_whole(&file);
}

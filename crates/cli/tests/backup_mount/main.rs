//! `lunway backup mount` and `restore` onto all kinds of devices: QEMU and libnbd read and write a point at the end of
//! a chain of 64 files; VHDX files, LUNs and ranges are restored; prunes wait for mounts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod files;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{PATIENCE, Running, Served, assert_same_bytes, finish, image, lunway, succeed, until, wait};

/// Bytes of the disk.
const SIZE: u64 = 24 << 20;

/// A folder with a disk and a destination.
struct BackupFixture(tempfile::TempDir);

impl BackupFixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        fs::create_dir(fixture.path("dest")).unwrap();
        image(Path::new(&fixture.path("disk")), SIZE, 6 << 20);
        fixture
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn change(&self, offset: u64, byte: u8) {
        let disk = fs::File::options().write(true).open(self.path("disk")).unwrap();
        disk.write_all_at(&[byte; 5000], offset).unwrap();
    }

    fn run(&self) -> Value {
        let run = succeed(lunway(&["backup", "run", &self.path("disk"), &self.path("dest"), "--json"]));
        serde_json::from_str(&run).unwrap()
    }

    /// What is in the destination beside points.
    fn left(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("dest")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with("0000") && name != "checks.json").collect()
    }

    fn restore(&self, out: &str, more: &[&str]) -> Command {
        lunway(&[&["backup", "restore", &self.path("dest"), out], more].concat())
    }
}

/// `lunway backup mount`, and the URI that it serves; killed when dropped.
struct Mounted {
    child: Child,
    uri: String,
}

impl Mounted {
    fn start(fixture: &BackupFixture, more: &[&str]) -> Self {
        let socket = format!("unix:{}", fixture.path("nbd.sock"));
        let words = ["backup", "mount", &fixture.path("dest"), "--nbd", &socket, "--json"];
        let mut command = lunway(&[&words, more].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let served: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no mount: {line}"));
        Self { child, uri: served["nbd"].as_str().unwrap().to_owned() }
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(wait(&mut self.child, PATIENCE).is_some_and(|status| status.success()));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A foreign program that must succeed: what it printed.
fn run(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn damaged_data_of_a_point_is_an_error_of_the_medium_and_is_never_given_out() {
    let fixture = BackupFixture::new();
    fixture.change(1 << 20, 9);
    fixture.run();
    let names = fs::read_dir(fixture.path("dest")).unwrap().map(|entry| entry.unwrap().path());
    let file = names.into_iter().find(|name| name.extension().is_some_and(|end| end == "vhdx")).unwrap();
    let at = fs::read(&file).unwrap().windows(5000).position(|bytes| bytes == [9; 5000]).unwrap();
    let disk = fs::File::options().write(true).open(&file).unwrap();
    disk.write_all_at(&[8], at as u64 + 100).unwrap();
    let point = format!("point:{}", fixture.path("dest"));
    for (device, is_whole) in [(&point, false), (&format!("{point}?writes=discard"), false), (&point, true)] {
        let begin = if is_whole { "0" } else { "1M" };
        let words = ["bench", device, "--rw", "read", "--bs", "64K", "--size", "64K", "--region"];
        let output = lunway(&[&words[..], &[&format!("{begin}+64K"), "--json"]].concat()).output().unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let errors = result["jobs"][0]["lunway"]["read_errors"].as_u64().unwrap();
        assert_eq!(errors == 0, is_whole, "{device}: {result}");
    }
    let refused = finish(lunway(&["copy", &point, &fixture.path("copy.img")]), PATIENCE);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("medium") || said.contains("damaged"), "{said}");
}

#[test]
fn a_point_64_files_deep_is_read_and_written_over_nbd_and_stays_what_it_was() {
    let fixture = BackupFixture::new();
    for number in 0..64_u64 {
        fixture.change(number * 300_007 / 512 * 512, number as u8 + 1);
        let done = fixture.run();
        assert_eq!(done["kind"], if number == 0 { "full" } else { "increment" }, "{done}");
    }
    let (Some(qemu_io), Some(qemu_img), Some(nbdinfo)) = (
        lunway_foreign::program("qemu-io"),
        lunway_foreign::program("qemu-img"),
        lunway_foreign::program("nbdinfo"),
    ) else {
        return;
    };
    let begun = Instant::now();
    let mounted = Mounted::start(&fixture, &[]);
    let ready = begun.elapsed();
    run(&qemu_io, &["-r", "-f", "raw", "-c", "read 0 4k", &mounted.uri]);
    println!("64 files: served after {ready:?}, the first 4 KiB read by qemu-io after {:?}", begun.elapsed());
    let info = run(&nbdinfo, &[&mounted.uri]);
    assert!(info.contains(&format!("export-size: {SIZE}")) && info.contains("is_read_only: true"), "{info}");
    run(&qemu_img, &["compare", "-f", "raw", "-F", "raw", &mounted.uri, &fixture.path("disk")]);
    let writes = ["-f", "raw", "-c", "write 0 4k", &mounted.uri];
    let refused = Command::new(&qemu_io).args(writes).stdin(Stdio::null()).output().unwrap();
    assert!(!refused.status.success(), "{refused:?}");
    // A prune waits for it, and says for what; a run does not.
    let prune = ["backup", "prune", &fixture.path("dest"), "--keep-last", "1"];
    let refused = finish(lunway(&prune), PATIENCE);
    let said = String::from_utf8_lossy(&refused.stderr);
    let process = format!("process {}", mounted.child.id());
    assert!(!refused.status.success() && said.contains(&process) && said.contains("reads a point"), "{said}");
    mounted.end();
    assert_eq!(fixture.left(), Vec::<String>::new());

    let mounted = Mounted::start(&fixture, &["--writable"]);
    let words =
        ["-f", "raw", "-c", "write -P 0x5a 1M 3M", "-c", "discard 8M 1M", "-c", "flush", &mounted.uri];
    run(&qemu_io, &words);
    run(&qemu_io, &["-f", "raw", "-c", "read -P 0x5a 1M 3M", "-c", "read -P 0 8M 1M", &mounted.uri]);
    mounted.end();
    assert_eq!(fixture.left(), Vec::<String>::new());
    succeed(fixture.restore(&fixture.path("out"), &[]));
    assert_same_bytes(Path::new(&fixture.path("out")), Path::new(&fixture.path("disk")));
    succeed(lunway(&["backup", "verify", &fixture.path("dest")]));

    // What a killed one leaves is removed by the next prune.
    let mut killed = Mounted::start(&fixture, &["--writable"]);
    run(&qemu_io, &["-f", "raw", "-c", "write -P 0x5a 1M 64k", &killed.uri]);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(fixture.left().len(), 2, "{:?}", fixture.left());
    succeed(lunway(&prune));
    assert_eq!(fixture.left(), Vec::<String>::new());
}

#[test]
fn a_point_is_a_device_of_every_command_and_of_the_daemon() {
    let fixture = BackupFixture::new();
    let [disk, dest, first, raw] = ["disk", "dest", "first", "raw"].map(|name| fixture.path(name));
    fs::copy(&disk, &first).unwrap();
    let done = fixture.run();
    let oldest = format!("point:{dest}@{}", done["point"].as_str().unwrap());
    fixture.change(3 << 20, 7);
    fixture.run();
    for (device, expected) in [(&format!("point:{dest}"), &disk), (&oldest, &first)] {
        succeed(lunway(&["copy", device, &raw]));
        assert_same_bytes(Path::new(&raw), Path::new(expected));
        fs::remove_file(&raw).unwrap();
    }
    let refused = |words: &[&str]| {
        let refused = finish(lunway(words), PATIENCE);
        assert!(!refused.status.success(), "{refused:?}");
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    assert!(refused(&["copy", &disk, &oldest, "--overwrite"]).contains("is never written"));
    assert!(refused(&["copy", &format!("point:{dest}@ffffffffffffffff"), &raw]).contains("point"));
    let said = refused(&["copy", &format!("point:{}", fixture.path("nowhere")), &raw]);
    assert!(said.contains("nowhere") && said.contains("mounted"), "{said}");

    // Two LUNs of the same point: what one takes, the other does not show.
    let writable = format!("0={oldest}?writes=discard");
    let served = Served::start(&["--lun", &writable, "--lun", &format!("1={oldest}")]);
    assert_eq!(fixture.left().iter().filter(|name| name.ends_with(".throwaway")).count(), 1);
    succeed(lunway(&["copy", &disk, &served.url(0), "--overwrite"]));
    for (lun, expected) in [(0, &disk), (1, &first)] {
        succeed(lunway(&["copy", &served.url(lun), &raw]));
        assert_same_bytes(Path::new(&raw), Path::new(expected));
        fs::remove_file(&raw).unwrap();
    }
    assert!(refused(&["copy", &disk, &served.url(1), "--overwrite"]).contains("read-only"));
    let said = refused(&["backup", "prune", &dest, "--keep-last", "1"]);
    assert!(said.contains("reads a point"), "{said}");
    kill_process(Pid::from_raw(served.id() as i32).unwrap(), Signal::TERM).unwrap();
    until(|| fixture.left().is_empty());
    succeed(lunway(&["backup", "verify", &dest]));
    succeed(lunway(&["copy", &oldest, &raw]));
    assert_same_bytes(Path::new(&raw), Path::new(&first));
}

#[test]
fn a_point_is_restored_into_a_new_vhdx_file_and_onto_a_lun() {
    let fixture = BackupFixture::new();
    fixture.run();
    fixture.change(3 << 20, 7);
    fixture.run();
    let [disk, vhdx, raw] = ["disk", "new.vhdx", "raw"].map(|name| fixture.path(name));
    succeed(fixture.restore(&vhdx, &[]));
    succeed(lunway(&["copy", &vhdx, &raw, "--verify"]));
    assert_same_bytes(Path::new(&raw), Path::new(&disk));
    if let Some(qemu_img) = lunway_foreign::program("qemu-img") {
        run(&qemu_img, &["compare", "-f", "vhdx", "-F", "raw", &vhdx, &disk]);
    }
    let served = Served::start(&["--lun", "0=ram:24M"]);
    succeed(fixture.restore(&served.url(0), &[]));
    fs::remove_file(&raw).unwrap();
    succeed(lunway(&["copy", &served.url(0), &raw]));
    assert_same_bytes(Path::new(&raw), Path::new(&disk));
    // It holds data now.
    let refused = finish(fixture.restore(&served.url(0), &[]), PATIENCE);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--overwrite"), "{refused:?}");
}

/// The point was removed under the restore, and what it had overwritten was lost as well.
#[test]
fn a_prune_waits_for_the_end_of_a_restore() {
    let fixture = BackupFixture::new();
    let first = fixture.run()["point"].as_str().unwrap().to_owned();
    fixture.change(1 << 20, 7);
    fixture.run();
    let slow = format!("rate:1M:{}", fixture.path("slow.img"));
    fs::File::create(fixture.path("slow.img")).unwrap().set_len(SIZE).unwrap();
    let restoring = Running::start(fixture.restore(&slow, &["--point", &first, "--overwrite"]));
    until(|| fixture.left().iter().any(|name| name.starts_with("mount-")));
    let prune = || finish(lunway(&["backup", "prune", &fixture.path("dest"), "--keep-last", "1"]), PATIENCE);
    let refused = prune();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("which reads a point of it"), "{said}");
    restoring.signal(Signal::TERM);
    assert!(!restoring.end(PATIENCE).status.success());
    assert!(prune().status.success());
    assert_eq!(fixture.left(), Vec::<String>::new());
}

#[test]
fn a_range_of_a_point_is_restored_into_a_file() {
    let fixture = BackupFixture::new();
    fixture.change(5 << 20, 9);
    fixture.run();
    let out = fixture.path("out");
    succeed(fixture.restore(&out, &["--offset", "5242368", "--length", "70K"]));
    let disk = fs::read(fixture.path("disk")).unwrap();
    assert_eq!(fs::read(&out).unwrap(), disk[5_242_368..5_242_368 + (70 << 10)]);
    succeed(fixture.restore(&fixture.path("end"), &["--offset", "23M"]));
    assert_eq!(fs::read(fixture.path("end")).unwrap(), disk[23 << 20..]);
    for more in [["--offset", "100", "--length", "512"], ["--offset", "23M", "--length", "2M"]] {
        let refused = finish(fixture.restore(&fixture.path("none"), &more), PATIENCE);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(
            !Path::new(&fixture.path("none")).exists() && !Path::new(&fixture.path("none.partial")).exists()
        );
    }
}

/// Flips a byte of the data of a point's file.
fn flip(fixture: &BackupFixture, pattern: u8) {
    let names = fs::read_dir(fixture.path("dest")).unwrap().map(|entry| entry.unwrap().path());
    let file = names.into_iter().find(|name| name.extension().is_some_and(|end| end == "vhdx")).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let bytes = fs::read(&file).unwrap();
    let at = bytes.windows(4000).position(|window| window == [pattern; 4000]).unwrap();
    let disk = fs::File::options().write(true).open(&file).unwrap();
    disk.write_all_at(&[bytes[at - 1] ^ 1], at as u64 - 1).unwrap();
}

#[test]
fn a_restore_that_stopped_says_how_to_go_on_and_touches_no_other_copy() {
    let fixture = BackupFixture::new();
    fixture.change(3 << 20 | 4096, 7);
    fixture.run();
    let out = fixture.path("out");
    let partial = format!("{out}.partial");
    flip(&fixture, 7);
    let stopped = finish(fixture.restore(&out, &[]), PATIENCE);
    let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(!stopped.status.success() && said.contains("not what was sent"), "{said}");
    assert!(said.contains(&format!("{partial} is incomplete, and the point cannot complete it")), "{said}");
    flip(&fixture, 7);
    // It may be another copy's.
    let refused = finish(fixture.restore(&out, &[]), PATIENCE);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("--resume") && said.contains("--overwrite"), "{said}");
    succeed(fixture.restore(&out, &["--resume"]));
    assert_same_bytes(Path::new(&out), Path::new(&fixture.path("disk")));
}

#[test]
fn a_file_whose_end_is_no_whole_sector_is_not_backed_up_without_it() {
    let fixture = BackupFixture::new();
    let disk = fixture.path("disk");
    fs::File::options().write(true).open(&disk).unwrap().set_len(SIZE + 100).unwrap();
    for source in [disk.clone(), format!("raw:{disk}"), format!("readonly:delay:0ms:{disk}")] {
        let refused = finish(lunway(&["backup", "run", &source, &fixture.path("dest")]), PATIENCE);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("its end of 100 bytes"), "{source}: {said}");
        let refused = finish(lunway(&["copy", &source, &fixture.path("copy")]), PATIENCE);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("its end of 100 bytes"), "{source}: {said}");
    }
    assert_eq!(fixture.left(), Vec::<String>::new());
}

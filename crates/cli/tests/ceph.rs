//! Images of Ceph: served, fenced and served again; backed up by what the cluster says was written.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use daemon::{Daemon, command};
use initiator::Initiator;
use lunway_backup::{Epochs, Manifest};
use lunway_foreign::ceph::{Ceph, Store};
use serde_json::Value;
use support::{IQN, PATIENCE, assert_same_bytes, image, interrupted, lunway, succeed};

const BLOCK: usize = 512;

/// A folder whose configuration serves this device as LUN 0, beside memory as LUN 1.
fn folder(device: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"{device}\"\n[[target.lun]]\nid = 1\ndevice = \"ram:1M\"\n"
    );
    fs::write(folder.path().join("lunway.toml"), text).unwrap();
    folder
}

/// What is wrong with LUN 0.
fn fault(folder: &Path) -> Option<String> {
    let list = succeed(command(folder, &["lun", "list", IQN, "--json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    list["luns"][0]["status"]["lost_file"].as_str().map(str::to_owned)
}

fn write_10(session: &mut Initiator, byte: u8) -> std::io::Result<u8> {
    Ok(session.execute(0, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[byte; BLOCK], 0)?.status)
}

fn read_10(session: &mut Initiator) -> u8 {
    let read = session.execute(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], BLOCK).unwrap();
    assert_eq!(read.status, 0, "{:?}", read.sense);
    read.data_in[0]
}

/// Logs in again and writes, as a host does whose command was not answered: that waits while it is busy.
fn write_again(daemon: &Daemon, byte: u8) -> Initiator {
    const BUSY: u8 = 8;
    let begun = Instant::now();
    let mut session = Initiator::log_in(&daemon.address, IQN).unwrap();
    loop {
        match write_10(&mut session, byte) {
            Ok(0) => return session,
            // CHECK CONDITION: a unit attention of the new nexus.
            Ok(BUSY | 2) => thread::sleep(Duration::from_millis(20)),
            Ok(other) => panic!("status {other}"),
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < PATIENCE, "busy for ever");
    }
}

/// A cluster in the memory of each program that loads it.
struct Fake(tempfile::TempDir);

impl Fake {
    fn new(lines: &str) -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        let library = std::env::current_exe().unwrap().with_file_name("liblunway_fake_rbd.so");
        for name in ["librados.so.2", "librbd.so.1"] {
            symlink(&library, fake.0.path().join(name)).unwrap();
        }
        fs::write(fake.0.path().join("ceph.conf.log"), "").unwrap();
        fake.says(lines);
        fake
    }

    fn says(&self, lines: &str) {
        let next = self.0.path().join("next");
        fs::write(&next, format!("image rbd/disk 4194304\n{lines}\n")).unwrap();
        fs::rename(next, self.0.path().join("ceph.conf")).unwrap();
    }

    fn device(&self) -> String {
        format!("rbd:rbd/disk?conf={}", self.0.path().join("ceph.conf").display())
    }

    /// The variable by which a program finds it.
    fn variable(&self) -> (&str, &str) {
        ("LD_LIBRARY_PATH", self.0.path().to_str().unwrap())
    }

    /// How often this was called.
    fn calls(&self, call: &str) -> usize {
        let log = fs::read_to_string(self.0.path().join("ceph.conf.log")).unwrap();
        log.lines().filter(|line| *line == call).count()
    }
}

#[test]
fn a_cluster_that_does_not_answer_keeps_no_run_and_no_daemon_from_ending() {
    let fake = Fake::new("hold connect");
    let device = format!("{}&timeout=600s", fake.device());
    let points = tempfile::tempdir().unwrap();
    let run = || {
        let mut run = lunway(&["backup", "run", &device, points.path().to_str().unwrap()]);
        run.envs([fake.variable()]);
        run
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let ended = interrupted(run(), || fake.calls("connect") == 1);
    assert!(!ended.status.success());
    assert!(said(&ended).contains("interrupted before rbd:rbd/disk"), "{}", said(&ended));
    let lun = format!("0={device}");
    let words =
        ["serve", "--no-api", "--iqn", IQN, "--open", "--listen", "127.0.0.1:0", "--lun", lun.as_str()];
    let mut serve = lunway(&words);
    serve.envs([fake.variable()]);
    let ended = interrupted(serve, || fake.calls("connect") == 2);
    assert!(ended.status.success(), "{}", said(&ended));
    assert!(said(&ended).contains("nothing was served"), "{}", said(&ended));
    // No other run is kept out by the one that has ended.
    fake.says("");
    assert!(succeed(run()).contains("full"));
}

#[test]
fn an_image_is_thin_whatever_may_be_done_with_it() {
    let fake = Fake::new("");
    let inspect = |more: &[&str]| {
        let mut inspect = lunway(&[&["inspect", &fake.device()], more].concat());
        inspect.envs([fake.variable()]);
        succeed(inspect)
    };
    let seen: Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    assert_eq!((&seen["thin"], &seen["unmap_granularity"]), (&true.into(), &Value::Null), "{seen}");
    let text = inspect(&[]);
    let row = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    assert_eq!((row("thin"), row("unmap ")), (Some("yes"), Some("not seen: opened for reading")), "{text}");
}

#[test]
fn a_fenced_lun_ends_its_session_unanswered_says_why_and_is_served_again() {
    let fake = Fake::new("");
    let folder = folder(&fake.device());
    let daemon = Daemon::start_with(folder.path(), &[fake.variable()]);
    let mut session = Initiator::ready(&daemon.address, IQN);
    assert_eq!(write_10(&mut session, 1).unwrap(), 0);
    assert_eq!(fault(folder.path()), None);
    // The cluster does not answer anybody else yet.
    let refused = format!("fail open {}", rustix::io::Errno::TIMEDOUT.raw_os_error());
    fake.says(&format!("blocklist 127.0.0.1:0/1\n{refused}"));
    let unanswered = write_10(&mut session, 2);
    assert!(unanswered.is_err(), "{unanswered:?}");
    let begun = Instant::now();
    while !fault(folder.path()).is_some_and(|why| why.contains("fenced") && why.contains("attempt")) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", fault(folder.path()));
        thread::sleep(Duration::from_millis(20));
    }
    fake.says("blocklist 127.0.0.1:0/1");
    let mut session = write_again(&daemon, 3);
    assert_eq!(read_10(&mut session), 3);
    assert_eq!(fault(folder.path()), None);
}

#[test]
fn a_lun_on_a_cluster_goes_on_after_it_was_fenced() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    // Seconds after which a client that died is missed, instead of 30.
    ceph.run("ceph", &["config", "set", "osd", "osd_client_watch_timeout", "8"]);
    ceph.run("rbd", &["create", "--size", "64M", "disk"]);
    let folder = folder(&ceph.device("disk"));
    let daemon = Daemon::start(folder.path());
    let mut session = Initiator::ready(&daemon.address, IQN);
    assert_eq!(write_10(&mut session, 1).unwrap(), 0);
    let locks = ceph.run("rbd", &["lock", "ls", "disk"]);
    let holder = locks.split_whitespace().last().unwrap();
    ceph.run("ceph", &["osd", "blocklist", "add", holder]);
    let begun = Instant::now();
    // The OSD hears of it a moment later.
    while write_10(&mut session, 2).is_ok_and(|status| status == 0) {
        assert!(begun.elapsed() < PATIENCE);
    }
    let mut session = write_again(&daemon, 3);
    assert_eq!(read_10(&mut session), 3);

    // Killed and started again: the lock is that of the dead one until the cluster misses it. For hosts, the disk is
    // becoming ready meanwhile.
    daemon.kill();
    let daemon = Daemon::start(folder.path());
    let mut session = Initiator::log_in(&daemon.address, IQN).unwrap();
    let (begun, mut becoming_ready) = (Instant::now(), 0);
    loop {
        let read = session.execute(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], BLOCK).unwrap();
        match (read.status, &read.sense[..]) {
            (0, _) => break assert_eq!(read.data_in[0], 3),
            // NOT READY, LOGICAL UNIT IS IN PROCESS OF BECOMING READY.
            (2, [_, _, 2, .., 4, 1, _, _, _, _]) => becoming_ready += 1,
            // UNIT ATTENTION.
            (2, [_, _, 6, ..]) => {}
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", read.sense);
        thread::sleep(Duration::from_millis(20));
    }
    assert!(becoming_ready > 0, "the lock of the dead one was not waited for");
}

/// A cluster with an image, and a folder for its points.
struct Fixture {
    ceph: Ceph,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Option<Self> {
        let ceph = Ceph::start(Store::Memory)?;
        let folder = tempfile::tempdir().unwrap();
        // No object of 4 MiB is without data.
        image(&folder.path().join("disk.img"), 96 << 20, 60 << 20);
        fs::create_dir(folder.path().join("points")).unwrap();
        let fixture = Self { ceph, folder };
        fixture.rbd(&["import", "--no-progress", &fixture.path("disk.img"), "disk"]);
        Some(fixture)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn rbd(&self, words: &[&str]) -> String {
        self.ceph.run("rbd", words)
    }

    fn lunway(&self, words: &[&str]) -> Command {
        lunway(words)
    }

    /// Writes some blocks here and there, as another program.
    fn scribble(&self) {
        let words =
            ["bench", "--io-type", "write", "--io-size", "4K", "--io-total", "64K", "--io-pattern", "rand"];
        self.rbd(&[&words[..], &["disk"]].concat());
    }

    fn run(&self) -> Value {
        let made = self.lunway(&["backup", "run", &self.ceph.device("disk"), &self.path("points"), "--json"]);
        serde_json::from_str(&succeed(made)).unwrap()
    }

    /// Snapshots of the image that are ours.
    fn snapshots(&self) -> Vec<String> {
        let list = self.rbd(&["snap", "ls", "disk", "--format", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let names = list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("lunway-")).collect()
    }

    /// The newest point, and the list of snapshots, as they were written before they had a snapshot's number.
    fn forget_the_number(&self) {
        let epoch = self.newest()["epoch"].as_str().unwrap().to_owned();
        let (plain, _) = epoch.rsplit_once('#').unwrap();
        for file in fs::read_dir(self.path("points")).unwrap() {
            let path = file.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            if let Ok(mut manifest) = lunway_backup::unseal::<Manifest>(&bytes)
                && manifest.epoch.as_ref() == Some(&epoch)
            {
                manifest.epoch = Some(plain.to_owned());
                fs::write(path, lunway_backup::seal(&manifest)).unwrap();
            } else if let Ok(mut list) = lunway_backup::unseal::<Epochs>(&bytes) {
                list.closed
                    .iter_mut()
                    .filter(|closed| **closed == epoch)
                    .for_each(|it| *it = plain.to_owned());
                fs::write(path, lunway_backup::seal(&list)).unwrap();
            }
        }
        assert_eq!(self.newest()["epoch"], plain);
    }

    /// The newest point, as it is listed.
    fn newest(&self) -> Value {
        let list = succeed(self.lunway(&["backup", "list", &self.path("points"), "--json"]));
        let list: Value = serde_json::from_str(&list).unwrap();
        list.as_array().unwrap().last().unwrap().clone()
    }

    /// The newest point is what the image holds now.
    fn proves(&self) {
        let (there, point) = (self.path("there.img"), self.path("point.img"));
        for old in [&there, &point] {
            let _ = fs::remove_file(old);
        }
        self.rbd(&["export", "--no-progress", "disk", &there]);
        succeed(self.lunway(&["backup", "restore", &self.path("points"), &point]));
        assert_same_bytes(&PathBuf::from(there), &PathBuf::from(point));
    }
}

#[test]
fn a_backup_reads_what_the_cluster_says_was_written_and_says_so_when_it_does_not_know() {
    let Some(fixture) = Fixture::new() else { return };
    let first = fixture.run();
    assert_eq!(first["kind"], "full");
    assert_eq!(fixture.snapshots().len(), 1);
    fixture.proves();

    fixture.scribble();
    let second = fixture.run();
    let why = second["why"].as_str().unwrap();
    assert!(why.contains("changes since epoch rbd-snapshot:"), "{why}");
    // 16 writes, rounded to 64 KiB each.
    let changed = second["changed_bytes"].as_u64().unwrap();
    assert!(changed > 0 && changed <= 16 * (64 << 10), "{second}");
    let kept = fixture.snapshots();
    assert_eq!(kept.len(), 1, "the older one is removed");
    fixture.proves();

    // While another client writes to it: that one makes the snapshots.
    let served = folder(&fixture.ceph.device("disk"));
    let daemon = Daemon::start(served.path());
    let mut session = Initiator::ready(&daemon.address, IQN);
    assert_eq!(write_10(&mut session, 0x5a).unwrap(), 0);
    let third = fixture.run();
    assert!(third["why"].as_str().unwrap().contains("changes since"), "{third}");
    assert_eq!(third["changed_bytes"], 64 << 10);
    assert_ne!(fixture.snapshots(), kept);
    fixture.proves();
    drop((session, daemon));

    // Nothing is left to compare with: everything is read, and the reason is said.
    let lost = fixture.snapshots();
    fixture.rbd(&["snap", "rm", "--no-progress", &format!("disk@{}", lost[0])]);
    fixture.scribble();
    let fourth = fixture.run();
    let why = fourth["why"].as_str().unwrap();
    assert!(why.contains("compared by hash") && why.contains(&lost[0]), "{why}");
    assert!(fourth["read_bytes"].as_u64().unwrap() > 8 << 20, "{fourth}");
    fixture.proves();

    // Another snapshot has its name, of a later moment: it would hide what was written in between.
    let named = format!("disk@{}", fixture.snapshots()[0]);
    fixture.scribble();
    fixture.rbd(&["snap", "rm", "--no-progress", &named]);
    fixture.rbd(&["snap", "create", "--no-progress", &named]);
    let replaced = fixture.run();
    let why = replaced["why"].as_str().unwrap();
    assert!(why.contains("compared by hash") && why.contains("is not the one that had this name"), "{why}");
    assert_eq!(fixture.snapshots().len(), 2, "that one is not ours to remove");
    fixture.rbd(&["snap", "rm", "--no-progress", &named]);
    fixture.proves();

    // A point of a version that noted the name alone: no more is known of its snapshot.
    fixture.forget_the_number();
    fixture.scribble();
    let older = fixture.run();
    let why = older["why"].as_str().unwrap();
    assert!(why.contains("compared by hash") && why.contains("noted its snapshot's name alone"), "{why}");
    assert_eq!(fixture.snapshots().len(), 1, "it was removed by its name");
    fixture.proves();
    fixture.scribble();
    assert!(fixture.run()["why"].as_str().unwrap().contains("changes since"));
    fixture.proves();

    // A snapshot that is protected stays, and is named; where none can be made there is no point of mixed times.
    let protected = format!("disk@{}", fixture.snapshots()[0]);
    fixture.rbd(&["snap", "protect", &protected]);
    let (device, points) = (fixture.ceph.device("disk"), fixture.path("points"));
    let run = || {
        let output = fixture.lunway(&["backup", "run", &device, &points]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (made, said) = run();
    assert!(made && said.contains("is protected or has clones"), "{said}");
    assert_eq!(fixture.snapshots().len(), 2);
    fixture.rbd(&["snap", "unprotect", &protected]);
    fixture.run();
    assert_eq!(fixture.snapshots().len(), 1);
    fixture.rbd(&["snap", "limit", "set", "disk", "--limit", "1"]);
    let newest = fixture.newest();
    let (made, said) = run();
    assert!(!made && said.contains("no snapshot") && said.contains("no point was made"), "{said}");
    assert_eq!((fixture.newest(), fixture.snapshots().len()), (newest, 1));
    fixture.rbd(&["snap", "limit", "clear", "disk"]);
    fixture.scribble();
    assert!(fixture.run()["why"].as_str().unwrap().contains("changes since"));
    fixture.proves();

    // A copy of the image under its name is another image.
    fixture.rbd(&["cp", "--no-progress", "disk", "copy"]);
    fixture.rbd(&["rename", "disk", "old"]);
    fixture.rbd(&["rename", "copy", "disk"]);
    let fifth = fixture.run();
    assert!(fifth["why"].as_str().unwrap().contains("another image"), "{fifth}");
    fixture.proves();

    // The snapshot is taken away while it is read: what is read then is not what it was, and makes no point.
    fs::create_dir(fixture.path("slowly")).unwrap();
    let known = fixture.snapshots();
    let device = fixture.ceph.device("disk");
    let words = ["backup", "run", &device, &fixture.path("slowly"), "--limit", "8MB/s"];
    let mut slow = fixture.lunway(&words);
    let slow = slow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while fixture.snapshots().len() == known.len() {
        assert!(begun.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(20));
    }
    fixture.rbd(&["snap", "purge", "--no-progress", "disk"]);
    fixture.scribble();
    let slow = slow.wait_with_output().unwrap();
    let said = String::from_utf8(slow.stderr).unwrap();
    assert!(!slow.status.success() && said.contains("removed while it was in use"), "{said}");
    fs::rename(fixture.path("points"), fixture.path("before")).unwrap();
    fs::rename(fixture.path("slowly"), fixture.path("points")).unwrap();
    assert_eq!(fixture.run()["kind"], "full");
    fixture.proves();
}

#[test]
fn a_point_is_restored_onto_an_image_with_no_write_but_those_that_differ() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.run();
    fixture.scribble();
    fixture.rbd(&["snap", "create", "--no-progress", "disk@before"]);
    let device = fixture.ceph.device("disk");
    succeed(fixture.lunway(&[
        "backup",
        "restore",
        &fixture.path("points"),
        &device,
        "--delta",
        "--overwrite",
    ]));
    let pieces = fixture.rbd(&["diff", "--from-snap", "before", "disk", "--format", "json"]);
    let pieces: Value = serde_json::from_str(&pieces).unwrap();
    let pieces = pieces.as_array().unwrap();
    let written: u64 = pieces
        .iter()
        .map(|piece| piece["length"].as_u64().or_else(|| piece["length"].as_str()?.parse().ok()).unwrap())
        .sum();
    // 16 blocks were damaged; a leaf of 64 KiB is written whole.
    assert!(written > 0 && written <= 16 * (64 << 10), "{written} bytes: {pieces:?}");
    fixture.proves();

    // What a copy writes is what the source has: 16 objects of 24.
    for image in ["sparse", "target"] {
        fixture.rbd(&["create", "--size", "96M", image]);
    }
    let words = [
        "bench",
        "--io-type",
        "write",
        "--io-size",
        "4K",
        "--io-total",
        "64K",
        "--io-pattern",
        "seq",
        "sparse",
    ];
    fixture.rbd(&words);
    let (from, to) = (fixture.ceph.device("sparse"), fixture.ceph.device("target"));
    succeed(fixture.lunway(&["copy", &from, &to, "--overwrite"]));
    let objects = |image: &str| fixture.rbd(&["diff", "--whole-object", image, "--format", "json"]);
    assert!(objects("sparse").matches("offset").count() < 24, "all of it holds data");
    assert_eq!(objects("target"), objects("sparse"));
    let (one, two) = (fixture.path("one.img"), fixture.path("two.img"));
    fixture.rbd(&["export", "--no-progress", "sparse", &one]);
    fixture.rbd(&["export", "--no-progress", "target", &two]);
    assert_same_bytes(&PathBuf::from(one), &PathBuf::from(two));
}

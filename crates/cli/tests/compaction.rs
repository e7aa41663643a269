//! `lunway lun compact`: the file of a served VHDX becomes shorter under verified writes, yields, is cancelled, goes
//! on, and survives kills of the daemon; frozen file systems say what is free.
//!
//! 5 kills; `LUNWAY_COMPACTION_KILLS=100` makes more.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/attached.rs"]
mod attached;
#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use attached::{Ext4, Loop, run};
use daemon::{Daemon, folder_of_vhdx, lun, refused};
use initiator::Initiator;
use serde_json::Value;
use support::{IQN, lunway, succeed};

const MIB: u64 = 1 << 20;
/// Bytes of a sector of the disk.
const SECTOR: u64 = 512;
/// Blocks of the disk, of 1 MiB.
const BLOCKS: u64 = 64;

fn status(folder: &Path) -> Value {
    serde_json::from_str(&succeed(lun(folder, "compact", &[IQN, "0", "--status", "--json"]))).unwrap()
}

fn file_len(folder: &Path) -> u64 {
    folder.join("disk.vhdx").metadata().unwrap().len()
}

/// WRITE (10) of 4 KiB that are full of a number; an error where the daemon is gone.
fn write(initiator: &mut Initiator, at: u64, number: u32) -> std::io::Result<()> {
    let data = number.to_be_bytes().repeat(1024);
    let lba = u32::try_from(at / SECTOR).unwrap().to_be_bytes();
    let cdb = [0x2A, 0, lba[0], lba[1], lba[2], lba[3], 0, 0, 8, 0];
    let written = initiator.execute(0, &cdb, &data, 0)?;
    assert_eq!(written.status, 0, "{:?}", written.sense);
    Ok(())
}

/// The number in 4 KiB, by READ (10).
fn read(initiator: &mut Initiator, at: u64) -> u32 {
    let lba = u32::try_from(at / SECTOR).unwrap().to_be_bytes();
    let cdb = [0x28, 0, lba[0], lba[1], lba[2], lba[3], 0, 0, 8, 0];
    let read = initiator.execute(0, &cdb, &[], 4096).unwrap();
    assert_eq!(read.status, 0, "{:?}", read.sense);
    let number = u32::from_be_bytes(read.data_in[..4].try_into().unwrap());
    assert!(read.data_in.chunks(4).all(|found| found == number.to_be_bytes()), "byte {at}");
    number
}

/// UNMAP of whole blocks.
fn unmap(initiator: &mut Initiator, first: u64, count: u64) -> std::io::Result<()> {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend_from_slice(&(first * MIB / SECTOR).to_be_bytes());
    list.extend_from_slice(&u32::try_from(count * MIB / SECTOR).unwrap().to_be_bytes());
    list.extend_from_slice(&[0; 4]);
    let unmapped = initiator.execute(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0)?;
    assert_eq!(unmapped.status, 0, "{:?}", unmapped.sense);
    Ok(())
}

/// Writes into every block, and gives the lower half up again.
fn make_holes(initiator: &mut Initiator) {
    for block in 0..BLOCKS {
        write(initiator, block * MIB, block as u32 + 1).unwrap();
    }
    unmap(initiator, 0, BLOCKS / 2).unwrap();
    initiator.flush().unwrap();
}

#[test]
fn a_served_file_becomes_shorter_and_its_initiators_notice_nothing() {
    let folder = folder_of_vhdx("");
    let daemon = Daemon::start(folder.path());
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    for (arguments, why) in [
        (&[IQN, "1"][..], "only a disk in a VHDX file"),
        (&[IQN, "9"], "lun 9"),
        (&[IQN, "0", "--status"], "has not been compacted"),
        (&[IQN, "0", "--freeze", "exit 3", "--thaw", "echo thawed > thawed"], "exit 3"),
    ] {
        let said = refused(lun(folder.path(), "compact", arguments));
        assert!(said.contains(why), "{said}");
    }
    assert!(folder.path().join("thawed").exists(), "it is thawed in any case");
    let missing = [IQN, "9", "--freeze", "echo frozen > frozen", "--thaw", "true"];
    assert!(refused(lun(folder.path(), "compact", &missing)).contains("lun 9"));
    assert!(!folder.path().join("frozen").exists(), "nothing is frozen for a LUN that is not there");
    make_holes(&mut initiator);
    let before = file_len(folder.path());

    succeed(lun(folder.path(), "compact", &[IQN, "0", "--rate", "1M", "--background"]));
    let said = refused(lun(folder.path(), "compact", &[IQN, "0"]));
    assert!(said.contains("--cancel"), "{said}");
    succeed(lun(folder.path(), "compact", &[IQN, "0", "--cancel"]));
    support::until(|| status(folder.path())["state"] == "cancelled");

    let said = succeed(lun(folder.path(), "compact", &[IQN, "0", "--rate", "1G"]));
    assert!(said.contains("done") && said.contains("shorter"), "{said}");
    let after = file_len(folder.path());
    assert!(after <= before - BLOCKS / 2 * MIB, "{before} {after}");
    // What has ended cannot be stopped any more.
    succeed(lun(folder.path(), "compact", &[IQN, "0", "--cancel"]));
    assert_eq!(status(folder.path())["state"], "done");
    for block in 0..BLOCKS {
        let expected = if block < BLOCKS / 2 { 0 } else { block as u32 + 1 };
        assert_eq!(read(&mut initiator, block * MIB), expected, "block {block}");
    }
    drop(initiator);
    drop(daemon);
    let disk = folder.path().join("disk.vhdx");
    assert!(succeed(lunway(&["disk", "check", disk.to_str().unwrap()])).contains("no errors"));
}

#[test]
fn a_frozen_guest_says_what_is_free() {
    let Some(mke2fs) = lunway_foreign::program("mke2fs") else { return };
    let folder = folder_of_vhdx("");
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("contents")).unwrap();
    fs::write(path("contents/file"), vec![0xA5; 2 << 20]).unwrap();
    fs::File::create(path("ext4.img")).unwrap().set_len(BLOCKS * MIB).unwrap();
    let made =
        Command::new(mke2fs).args(["-q", "-t", "ext4", "-d", &path("contents"), &path("ext4.img")]).status();
    assert!(made.unwrap().success());
    // What is free was written once.
    let daemon = Daemon::start(folder.path());
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    for block in 0..BLOCKS {
        write(&mut initiator, block * MIB, 7).unwrap();
    }
    let url = format!("iscsi://{}/{IQN}/0", daemon.address);
    succeed(lunway(&["copy", &path("ext4.img"), &url, "--overwrite"]));
    for block in BLOCKS / 2..BLOCKS - 2 {
        write(&mut initiator, block * MIB + 512 * 1024, 9).unwrap();
    }
    initiator.flush().unwrap();
    let before = file_len(folder.path());
    let frozen = |freeze: &str, thaw: &str, deadline: &str| {
        let _ = fs::remove_file(path("hooks"));
        let thaw = format!("{thaw}; echo thawed >> hooks");
        let options = ["--rate", "1G", "--freeze", freeze, "--thaw", &thaw, "--deadline", deadline];
        lun(folder.path(), "compact", &[&[IQN, "0"][..], &options].concat())
    };
    let hooks = || fs::read_to_string(path("hooks")).unwrap();
    // At the deadline the guest is thawed, whether what hangs is the command that freezes or the daemon.
    let process = daemon.child.id();
    let (stop, go_on) = (format!("kill -STOP {process}"), format!("kill -CONT {process}"));
    for (freeze, thaw) in [("sleep 300", "true"), (&stop, &go_on)] {
        let begun = Instant::now();
        let said = refused(frozen(freeze, thaw, "2s"));
        // Far less than what hangs would take, and far more than a busy machine adds.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}: {said}", begun.elapsed());
        assert!(said.contains("2 s"), "{said}");
        assert_eq!(hooks(), "thawed\n");
    }
    support::until(|| {
        let asked = lun(folder.path(), "compact", &[IQN, "0", "--status", "--json"]).output().unwrap();
        let state = serde_json::from_slice::<Value>(&asked.stdout).unwrap_or_default();
        !matches!(state["state"].as_str(), Some("mapping" | "dropping" | "moving"))
    });
    let said = succeed(frozen("echo frozen >> hooks", "true", "60s"));
    assert_eq!(hooks(), "frozen\nthawed\n");
    assert!(status(folder.path())["dropped"].as_u64().unwrap() > 0, "{said}");
    assert!(file_len(folder.path()) < before, "{said}");
    drop(initiator);
    daemon.kill();
    fs::remove_file(path("ext4.img")).unwrap();
    succeed(lunway(&["disk", "convert", &path("disk.vhdx"), &path("ext4.img")]));
    let checked = Command::new("e2fsck").args(["-fn", &path("ext4.img")]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let file = Command::new("debugfs").args(["-R", "cat /file", &path("ext4.img")]).output().unwrap();
    assert!(file.stdout == vec![0xA5; 2 << 20], "{} bytes", file.stdout.len());
}

/// A file system that is frozen (fsfreeze(8)): thawed when dropped.
struct FrozenExt4<'a>(&'a Path);

impl<'a> FrozenExt4<'a> {
    fn freeze(folder: &'a Path) -> Self {
        run("fsfreeze", ["--freeze", folder.to_str().unwrap()]);
        Self(folder)
    }
}

impl Drop for FrozenExt4<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(self.0).status();
    }
}

/// It waited without a word and without an end, also after a Ctrl-C.
#[test]
fn a_compaction_that_the_hosts_disk_holds_up_says_so_and_is_left_at_once() {
    let (Some(mkfs), Some(_)) = (lunway_foreign::program("mkfs.ext4"), lunway_foreign::program("fsfreeze"))
    else {
        return;
    };
    let folder = folder_of_vhdx("");
    let path = |name: &str| folder.path().join(name);
    fs::File::create(path("host.img")).unwrap().set_len(512 * MIB).unwrap();
    let Some(device) = Loop::on(&path("host.img")) else { return };
    run(&mkfs, ["-q", &device.0]);
    let host = Ext4::mount(&device, folder.path());
    fs::copy(path("disk.vhdx"), host.0.join("disk.vhdx")).unwrap();
    fs::remove_file(path("disk.vhdx")).unwrap();
    let text = fs::read_to_string(path("lunway.toml")).unwrap().replace("disk.vhdx", "ext4/disk.vhdx");
    fs::write(path("lunway.toml"), text).unwrap();
    let daemon = Daemon::start(folder.path());
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    make_holes(&mut initiator);

    let frozen = FrozenExt4::freeze(&host.0);
    let compacting = support::Running::start(lun(folder.path(), "compact", &[IQN, "0", "--rate", "1G"]));
    thread::sleep(Duration::from_secs(12));
    compacting.signal(rustix::process::Signal::INT);
    let asked = Instant::now();
    let output = compacting.end(support::PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}: {said}", asked.elapsed());
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was moved for 10 s"), "{said}");
    assert!(said.contains("stops when the host's disk answers"), "{said}");
    assert_eq!(read(&mut initiator, (BLOCKS - 1) * MIB), BLOCKS as u32, "the disk is served as before");

    drop(frozen);
    support::until(|| status(folder.path())["state"] == "cancelled");
    for block in 0..BLOCKS {
        let expected = if block < BLOCKS / 2 { 0 } else { block as u32 + 1 };
        assert_eq!(read(&mut initiator, block * MIB), expected, "block {block}");
    }
    drop(initiator);
    drop(daemon);
    let disk = host.0.join("disk.vhdx");
    assert!(succeed(lunway(&["disk", "check", disk.to_str().unwrap()])).contains("no errors"));

    // The kernel gives a signal to the first thread: `disk compact` did not hear one while that waited for the disk.
    let frozen = FrozenExt4::freeze(&host.0);
    let compacting = support::Running::start(lunway(&["disk", "compact", disk.to_str().unwrap()]));
    thread::sleep(Duration::from_secs(3));
    for _ in 0..2 {
        compacting.signal(rustix::process::Signal::INT);
        thread::sleep(Duration::from_millis(1500));
    }
    drop(frozen);
    let output = compacting.end(support::PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("stopping; waiting for") && said.contains("ended at once"), "{said}");
    succeed(lunway(&["disk", "compact", disk.to_str().unwrap()]));
    assert!(succeed(lunway(&["disk", "check", disk.to_str().unwrap()])).contains("no errors"));
    host.unmount();
    device.detach();
}

#[test]
fn a_file_is_compacted_when_the_daemon_ends() {
    let folder = folder_of_vhdx("compact = [\"on-close\"]\n");
    let mut daemon = Daemon::start(folder.path());
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    make_holes(&mut initiator);
    drop(initiator);
    let before = file_len(folder.path());
    let process = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());
    let after = file_len(folder.path());
    assert!(after <= before - BLOCKS / 2 * MIB, "{before} {after}");
}

/// The minute is in no configuration: this test takes as long.
#[test]
fn a_file_is_compacted_when_its_initiators_have_been_idle_for_a_minute() {
    const MINUTE: Duration = Duration::from_secs(60);
    let folder = folder_of_vhdx("compact = [\"on-idle\"]\n");
    let daemon = Daemon::start(folder.path());
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    make_holes(&mut initiator);
    let before = file_len(folder.path());
    // The policy looks from the daemon's start on: without these reads a minute would be over 30 s after the last.
    let begun = Instant::now();
    let mut idle = begun;
    while begun.elapsed() < MINUTE / 2 {
        idle = Instant::now();
        read(&mut initiator, (BLOCKS - 1) * MIB);
        thread::sleep(Duration::from_secs(2));
    }
    while file_len(folder.path()) > before - BLOCKS / 2 * MIB {
        let shorter = file_len(folder.path()) < before;
        assert!(!shorter || idle.elapsed() >= MINUTE, "after {:?}", idle.elapsed());
        assert!(idle.elapsed() < 4 * MINUTE, "{}", status(folder.path()));
        thread::sleep(Duration::from_millis(200));
    }
    support::until(|| status(folder.path())["state"] == "done");
    for block in 0..BLOCKS {
        let expected = if block < BLOCKS / 2 { 0 } else { block as u32 + 1 };
        assert_eq!(read(&mut initiator, block * MIB), expected, "block {block}");
    }
}

#[test]
fn kills_of_the_daemon_while_it_compacts_lose_nothing_that_was_flushed() {
    let kills: u32 = env::var("LUNWAY_COMPACTION_KILLS").map_or(5, |count| count.parse().unwrap());
    let folder = folder_of_vhdx("");
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    // Eight blocks of the upper half are written all the time, and mostly stay; the others move.
    let places: Vec<u64> = (0..32).map(|n| (BLOCKS / 2 + n) * MIB + n * 8192).collect();
    let hot = |place: &u64| (place / MIB).is_multiple_of(4);
    // What each place must at least hold: numbers only grow.
    let mut flushed = vec![0; places.len()];
    let mut cut = 0;
    for round in 0..=kills {
        let daemon = Daemon::start(folder.path());
        let mut initiator = Initiator::ready(&daemon.address, IQN);
        for (place, least) in places.iter().zip(&mut flushed) {
            let found = read(&mut initiator, *place);
            assert!(found >= *least, "round {round}, byte {place}: {found} after a flush of {least}");
            *least = found;
        }
        if round == kills {
            break;
        }
        // New holes below what is checked.
        for block in 0..BLOCKS / 2 {
            write(&mut initiator, block * MIB, 1).unwrap();
        }
        for (place, least) in places.iter().zip(&mut flushed) {
            unmap(&mut initiator, place / MIB, 1).unwrap();
            *least = round << 16;
            write(&mut initiator, *place, *least).unwrap();
        }
        unmap(&mut initiator, 0, BLOCKS / 2).unwrap();
        initiator.flush().unwrap();
        let before = file_len(folder.path());
        let targets = places.clone();
        let writing = thread::spawn(move || {
            let mut flushed = vec![round << 16; targets.len()];
            for number in 1.. {
                for place in targets.iter().filter(|place| hot(place)) {
                    if write(&mut initiator, *place, (round << 16) + number).is_err() {
                        return flushed;
                    }
                }
                if initiator.flush().is_err() {
                    return flushed;
                }
                for (flushed, _) in flushed.iter_mut().zip(&targets).filter(|(_, place)| hot(place)) {
                    *flushed = (round << 16) + number;
                }
            }
            flushed
        });
        succeed(lun(folder.path(), "compact", &[IQN, "0", "--rate", "1G", "--background"]));
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(Duration::from_micros(random % 1_500_000));
        daemon.kill();
        flushed = writing.join().unwrap();
        cut += u32::from(file_len(folder.path()) < before);
    }
    println!("{kills} kills; {cut} times the file had been cut");
    assert!(cut > 0, "{kills} kills, all of them before anything was done");
    let disk = folder.path().join("disk.vhdx");
    assert!(succeed(lunway(&["disk", "check", disk.to_str().unwrap()])).contains("no errors"));
}

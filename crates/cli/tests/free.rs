//! What file systems prove to be free, where it lies on raw disks and LUNs: left out of copies, discarded, made holes;
//! judged by e2fsck and by the host's count of blocks.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

#[path = "support/guest.rs"]
mod guest;
mod support;

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use guest::{Guest, MIB, run};
use lunway_foreign::program;
use serde_json::Value;
use support::{PATIENCE, Served, finish, lunway, succeed};

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeed(lunway(words))).unwrap()
}

/// Bytes that the host has allocated for a file.
fn allocated(path: &str) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// What a command says that must fail.
fn refused(words: &[&str]) -> String {
    let output = finish(lunway(words), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{words:?}: {said}");
    said
}

#[test]
fn a_copy_leaves_out_what_is_free_and_has_all_files() {
    let Some(guest) = Guest::new() else { return };
    let disk = guest.text("disk.img");
    let (whole, small) = (guest.text("whole.img"), guest.text("small.img"));
    let copied = json(&["copy", &disk, &whole, "--json"]);
    assert_eq!(copied["skipped"], 0);
    let skipped = json(&["copy", &disk, &small, "--skip-free", "--verify", "--json"]);
    let bytes = |value: &Value, name: &str| value[name].as_u64().unwrap();
    assert!(bytes(&skipped, "skipped") > 95 * MIB, "{skipped}");
    // Free space in units of less than 64 KiB is copied.
    assert!(bytes(&skipped, "written") < bytes(&copied, "written") - 95 * MIB, "{skipped} {copied}");
    assert!(allocated(&small) < allocated(&whole) - 90 * MIB);
    guest.assert_files(&small);
    // Onto what was there before: the free ranges are zero, not what was there.
    let old = guest.text("old.vhdx");
    succeed(lunway(&["disk", "create", &old, "--from", &format!("raw:{disk}"), "--block-size", "1M"]));
    succeed(lunway(&["copy", &disk, &old, "--skip-free", "--overwrite", "--verify"]));
    guest.assert_whole(&old);
    assert!(succeed(lunway(&["disk", "map", &old])).contains("zero"));
    // After an interrupt the rest is completed in the same way.
    let part = guest.text("part.img.partial");
    fs::copy(&small, &part).unwrap();
    fs::File::options().write(true).open(&part).unwrap().set_len(40 * MIB).unwrap();
    fs::File::options()
        .write(true)
        .open(&part)
        .unwrap()
        .set_len(fs::metadata(&small).unwrap().len())
        .unwrap();
    let resumed = json(&["copy", &disk, &guest.text("part.img"), "--skip-free", "--resume", "--json"]);
    assert!(bytes(&resumed, "written") < bytes(&skipped, "written"), "{resumed}");
    support::assert_same_bytes(Path::new(&small), Path::new(&guest.text("part.img")));
}

#[test]
fn what_is_not_proven_is_copied_whole_and_the_reason_is_said() {
    let Some(guest) = Guest::new() else { return };
    let (disk, copied) = (guest.text("disk.img"), guest.text("copied.img"));
    // One bit of the superblock's count of free blocks: the map is no proof any more.
    let damaged = guest.text("damaged.img");
    fs::copy(&disk, &damaged).unwrap();
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[guest::START as usize + 1024 + 0x0C] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let output = finish(lunway(&["copy", &damaged, &copied, "--skip-free", "--json"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("ext4 at 1 MiB"), "{said}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["skipped"], 0);
    support::assert_same_bytes(Path::new(&damaged), Path::new(&copied));
    for words in [
        &["disk", "trim", &damaged, "--discard", "--json"][..],
        &["disk", "trim", &damaged, "--estimate", "--json"],
    ] {
        assert_eq!(json(words)["dead_bytes"], 0, "{words:?}");
    }
    assert!(refused(&["disk", "compact", &damaged]).contains("nothing on"));
    assert!(fs::read(&damaged).unwrap() == bytes);
}

#[test]
fn a_raw_image_gets_holes_where_its_file_system_is_free() {
    let Some(guest) = Guest::new() else { return };
    let (disk, kept) = (guest.text("disk.img"), guest.text("kept.img"));
    fs::copy(&disk, &kept).unwrap();
    let before = allocated(&disk);
    let estimate = json(&["disk", "trim", &disk, "--estimate", "--json"]);
    let dead = estimate["dead_bytes"].as_u64().unwrap();
    assert!(dead > 95 * MIB, "{estimate}");
    // The host's own metadata of a file may still grow.
    assert!(allocated(&disk) + MIB > before, "an estimate changes nothing");
    let estimate = json(&["disk", "compact", &disk, "--estimate", "--json"]);
    assert_eq!(estimate["modes"][2]["punched_bytes"], dead, "quick: what is free alone; {estimate}");
    let same = json(&["disk", "trim", &kept, "--discard", "--keep", "1", "--json"]);
    assert_eq!(same["dead_bytes"], 0, "{same}");

    let done = json(&["disk", "compact", &disk, "--json"]);
    assert!(done["punched_bytes"].as_u64().unwrap() >= dead, "{done}");
    assert!(allocated(&disk) + 95 * MIB < before, "{done}");
    assert_eq!(fs::metadata(&disk).unwrap().len(), fs::metadata(&kept).unwrap().len());
    guest.assert_files(&disk);
    assert_eq!(json(&["disk", "compact", &disk, "--json"])["punched_bytes"], 0, "there is nothing more");
    // A copy has holes of its own; of what is left, all that is free is given back.
    let estimate = json(&["disk", "trim", &kept, "--estimate", "--json"]);
    let trimmed = json(&["disk", "trim", &kept, "--discard", "--json"]);
    assert_eq!(trimmed["dead_bytes"], estimate["dead_bytes"]);
    assert_eq!(json(&["disk", "trim", &kept, "--estimate", "--json"])["dead_bytes"], 0);
    assert!(allocated(&kept) + 95 * MIB < before);
    guest.assert_files(&kept);
    let word = refused(&["disk", "trim", &kept]);
    assert!(word.contains("--discard"), "{word}");
}

#[test]
fn a_lun_gives_back_what_is_free_on_it_over_one_path_and_over_two() {
    let Some(guest) = Guest::new() else { return };
    let (raw, vhdx) = (guest.text("disk.img"), guest.vhdx("disk.vhdx", "1M"));
    let before = [allocated(&raw), allocated(&vhdx)];
    let served = Served::start(&[
        "--listen",
        "127.0.0.2:0",
        "--lun",
        &format!("0={raw}"),
        "--lun",
        &format!("1={vhdx}"),
    ]);
    let second = served.ready.iter().filter_map(|line| line.strip_prefix("listening on ")).nth(1);
    let second = second.unwrap().to_owned();
    let several = format!("{}?portal={second}", served.url(1));
    for (url, file, before) in [(served.url(0), &raw, before[0]), (several, &vhdx, before[1])] {
        let estimate = json(&["disk", "trim", &url, "--estimate", "--json"]);
        let done = json(&["disk", "trim", &url, "--discard", "--json"]);
        assert!(done["dead_bytes"].as_u64().unwrap() > 95 * MIB, "{done}");
        assert_eq!(estimate["dead_bytes"], done["dead_bytes"], "{url}");
        assert!(allocated(file) + 90 * MIB < before, "{url}: {} {before}", allocated(file));
    }
    assert!(served.terminate().success());
    guest.assert_files(&raw);
    guest.assert_whole(&vhdx);
}

#[test]
fn a_lun_with_a_volume_that_was_not_unmounted_is_not_trimmed() {
    let Some(guest) = Guest::new() else { return };
    let Some(debugfs) = program("debugfs") else { return };
    let disk = guest.text("disk.img");
    // What a mount sets, and unmounting and freezing clear. (debugfs takes the partition out of the disk.)
    let volume = guest.text("volume.img");
    run(Command::new(debugfs).args(["-w", "-R", "feature needs_recovery", &volume]));
    let mut file = fs::File::options().write(true).open(&disk).unwrap();
    file.seek(SeekFrom::Start(guest::START)).unwrap();
    file.write_all(&fs::read(&volume).unwrap()).unwrap();
    drop(file);
    let before = fs::read(&disk).unwrap();
    let served = Served::start(&["--lun", &format!("0={disk}")]);
    let url = served.url(0);
    let said = refused(&["disk", "trim", &url, "--discard"]);
    for part in ["may be in use by another machine", "ext4 at 1 MiB: it is mounted and not frozen"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(json(&["disk", "trim", &url, "--estimate", "--json"])["dead_bytes"], 0);
    assert_eq!(json(&["disk", "trim", &url, "--discard", "--keep", "1", "--json"])["dead_bytes"], 0);
    assert!(served.terminate().success());
    assert!(fs::read(&disk).unwrap() == before);
    // A file that nobody has open is nobody's.
    assert!(json(&["disk", "trim", &disk, "--discard", "--json"])["dead_bytes"].as_u64().unwrap() > 95 * MIB);
}

#[test]
fn a_block_device_is_trimmed_unless_it_is_mounted_or_its_file_is_attached() {
    let Some(guest) = Guest::new() else { return };
    let Some(losetup) = program("losetup") else { return };
    let disk = guest.text("disk.img");
    let attached = Command::new(&losetup)
        .args(["--find", "--show", "--offset", &guest::START.to_string()])
        .args(["--sizelimit", &guest::VOLUME.to_string(), &disk])
        .output()
        .unwrap();
    if !attached.status.success() {
        return lunway_foreign::not_run("loop devices (root, on a machine that has some)");
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let detach = || {
        let _ = Command::new(&losetup).args(["--detach", &device]).status();
    };
    let tested = std::panic::catch_unwind(|| {
        let before = allocated(&disk);
        for words in [
            &["disk", "trim", &disk, "--discard"][..],
            &["disk", "compact", &disk],
            &["copy", &disk, "ram:1G", "--skip-free"],
        ] {
            assert!(refused(words).contains(&format!("in use as {device}")), "{words:?}");
        }
        let folder = guest.path("mounted");
        fs::create_dir(&folder).unwrap();
        let mounted = Command::new("mount").args(["-o", "ro", &device]).arg(&folder).status();
        if mounted.is_ok_and(|status| status.success()) {
            assert!(refused(&["disk", "trim", &device, "--discard"]).contains("is in use"));
            assert!(refused(&["copy", &device, "ram:1G", "--skip-free"]).contains("in use by the kernel"));
            run(Command::new("umount").arg(&folder));
        } else {
            lunway_foreign::machine_lacks("mounts of ext4");
        }
        assert!(allocated(&disk) + MIB > before);
        let done = json(&["disk", "trim", &device, "--discard", "--json"]);
        assert!(done["dead_bytes"].as_u64().unwrap() > 95 * MIB, "{done}");
        assert!(allocated(&disk) + 95 * MIB < before, "{done}");
        assert!(refused(&["disk", "compact", &device]).contains("disk trim"));
    });
    detach();
    tested.unwrap();
    guest.assert_files(&disk);
}

//! `lunway disk compact` on a disk of ext4 in a GPT, filled and emptied by e2fsprogs, judged by e2fsck and by QEMU.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

#[path = "support/guest.rs"]
mod guest;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use guest::{Guest, MIB};
use lunway_foreign::program;
use serde_json::Value;
use support::{PATIENCE, finish, lunway, succeed, wait};

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
    // 100 MiB of files were deleted; what is left of the volume is not more than what is used.
    let bytes = |name: &str| estimate["volumes"][0][name].as_u64().unwrap();
    let gone = bytes("dropped_bytes") + bytes("punched_bytes");
    assert!(gone > 95 * MIB && bytes("held_bytes") - gone <= bytes("used"), "{estimate}");
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

#[test]
fn smaller_blocks_shrink_a_disk_of_large_ones_further_as_was_estimated() {
    let Some(guest) = Guest::new() else { return };
    let file = guest.vhdx("disk.vhdx", "32M");
    let whole = guest.vhdx("whole.vhdx", "32M");
    let estimate = json(&["disk", "compact", &file, "--block-size", "1M", "--estimate", "--json"]);
    let done = json(&["disk", "compact", &file, "--block-size", "1M", "--json"]);
    guest.assert_whole(&file);
    assert_eq!(estimate["modes"][0]["name"], "live");
    assert_eq!(
        (&done["bytes"], &done["block_bytes"]),
        (&estimate["modes"][0]["bytes_after"], &(1 << 20).into())
    );
    let info = json(&["disk", "info", &file, "--json"]);
    assert_eq!(info["block_bytes"], 1 << 20, "{info}");
    // Where no block moves, the new table does, which the division puts behind them.
    let still = guest.vhdx("still.vhdx", "32M");
    let words = ["disk", "compact", &still, "--block-size", "1M", "--mode", "retrim", "--json"];
    let estimate = json(&[&words[..], &["--estimate"]].concat());
    let expected =
        estimate["modes"].as_array().unwrap().iter().find(|mode| mode["name"] == "retrim").unwrap();
    assert_eq!(json(&words)["bytes"], expected["bytes_after"], "{estimate}");
    guest.assert_whole(&still);
    let whole = json(&["disk", "compact", &whole, "--json"]);
    let [small, large] = [&done, &whole].map(|done| done["bytes"].as_u64().unwrap());
    assert!(small < large / 2, "{small} {large}");
    // Once more there is nothing to divide, and no way back in place.
    succeed(lunway(&["disk", "compact", &file, "--block-size", "1M"]));
    for wrong in ["2M", "512K", "3M"] {
        let refused = finish(lunway(&["disk", "compact", &file, "--block-size", wrong]), PATIENCE);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    guest.assert_whole(&file);
}

#[test]
fn a_file_with_another_name_is_left_as_it_is_without_force() {
    let Some(guest) = Guest::new() else { return };
    let (file, child) = (guest.text("disks/disk.vhdx"), guest.text("disks/child.avhdx"));
    for folder in ["disks", "copies"] {
        fs::create_dir(guest.text(folder)).unwrap();
    }
    fs::rename(guest.vhdx("disk.vhdx", "2M"), &file).unwrap();
    let other = guest.text("copies/disk.vhdx");
    fs::hard_link(&file, &other).unwrap();
    succeed(lunway(&["disk", "create", &child, "--parent", &file]));
    let before = fs::read(&file).unwrap();
    // Beside this name, and above it, there is no child.
    for words in [vec!["disk", "compact", &other], vec!["disk", "resize", &other, "1G"]] {
        let refused = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && said.contains("hard link"), "{words:?}: {refused:?}");
    }
    assert!(fs::read(&file).unwrap() == before);
    succeed(lunway(&["disk", "check", &child]));
    let estimated = finish(lunway(&["disk", "compact", &file, "--estimate"]), PATIENCE);
    let said = String::from_utf8_lossy(&estimated.stderr).into_owned();
    assert!(estimated.status.success() && said.contains("is the parent of child.avhdx"), "{said}");
    fs::remove_file(&child).unwrap();
    succeed(lunway(&["disk", "compact", &other, "--force"]));
    guest.assert_whole(&file);
}

#[test]
fn a_child_gives_up_what_its_parent_has_as_well() {
    let Some(guest) = Guest::new() else { return };
    let (parent, child) = (guest.vhdx("parent.vhdx", "2M"), guest.text("child.avhdx"));
    succeed(lunway(&["disk", "create", &child, "--parent", &parent]));
    let image = format!("raw:{}", guest.text("disk.img"));
    // As a backup program does that restores onto a snapshot: all of it is written again.
    succeed(lunway(&["copy", &image, &child, "--overwrite"]));
    let before = len(&child);
    assert!(before > 100 * MIB, "{before}");
    let done = json(&["disk", "compact", &child, "--json"]);
    assert!(len(&child) < 10 * MIB, "{done}");
    succeed(lunway(&["disk", "check", &child]));
    let raw = guest.text("child.img");
    succeed(lunway(&["copy", &child, &raw]));
    guest.assert_files(&raw);
}

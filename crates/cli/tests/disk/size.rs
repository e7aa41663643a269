//! Disks that grow and shrink, with their partition tables and file systems.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use lunway_foreign::program;
use serde_json::Value;

use super::{Folder, MIB, image};

#[test]
fn a_disk_with_partitions_grows_and_shrinks_with_its_table() {
    let Some(sfdisk) = program("sfdisk") else { return };
    let folder = Folder::new();
    for (label, sectors) in [("gpt", 33 * 512), ("dos", 0)] {
        let raw = folder.path("disk.img");
        image(&raw, 64 * MIB);
        let script = format!("label: {label}\nsize=10M\nsize=20M\n");
        let mut write = Command::new(&sfdisk);
        write.args(["--quiet", "--wipe", "always", &raw]).stdin(std::process::Stdio::piped());
        let mut child = write.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        folder.disk("convert disk.img disk.vhdx --block-size 1M --overwrite");
        let before = folder.contents("disk.vhdx");

        let verified = |size: u64| {
            let bytes = folder.contents("disk.vhdx");
            assert_eq!(bytes.len() as u64, size, "{label}");
            assert!(
                bytes[MIB as usize..31 << 20] == before[MIB as usize..31 << 20],
                "{label}: the partitions"
            );
            fs::write(folder.path("now.img"), &bytes).unwrap();
            let output = Command::new(&sfdisk).args(["--verify", &folder.path("now.img")]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && said.contains("No errors detected"),
                "{label}, {size}: {said}"
            );
            assert!(!said.contains("backup") && !said.contains("corrupt"), "{label}, {size}: {said}");
            folder.disk("check disk.vhdx");
        };
        folder.disk("resize disk.vhdx 100M");
        verified(100 * MIB);
        assert!(folder.refused("resize disk.vhdx 50M").contains("--shrink"), "not by a slip");
        let said = folder.refused("resize disk.vhdx 30M --shrink");
        assert!(said.contains("partition 2"), "{said}");
        assert_eq!(folder.contents("disk.vhdx").len() as u64, 100 * MIB);
        let minimum = 31 * MIB + sectors;
        assert_eq!(folder.json("info disk.vhdx")["minimum_bytes"], minimum);
        folder.disk("resize disk.vhdx --to-minimum --shrink");
        verified(minimum);
        for name in ["disk.img", "disk.vhdx", "now.img"] {
            fs::remove_file(folder.path(name)).unwrap();
        }
    }
    folder.disk("create bare.vhdx --size 4M");
    assert_eq!(folder.json("info bare.vhdx")["minimum_bytes"], Value::Null);
    assert!(folder.refused("resize bare.vhdx --to-minimum --shrink").contains("no partition table"));
}

/// Writes a GPT with a partition of 20 MiB to an image or a disk.
fn partition(sfdisk: &Path, disk: &str) {
    let mut write = Command::new(sfdisk);
    write.args(["--quiet", "--no-reread", "--wipe", "always", disk]).stdin(Stdio::piped());
    let mut child = write.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"label: gpt\nsize=20M\n").unwrap();
    assert!(child.wait().unwrap().success());
}

/// Shows an image to a program as a disk with sectors of 4096 bytes. `None` where there are no loop devices.
fn with_long_sectors<T>(raw: &str, show: impl FnOnce(&str) -> T) -> Option<T> {
    if !Path::new("/dev/loop-control").exists() || !rustix::process::geteuid().is_root() {
        lunway_foreign::machine_lacks("loop devices, for root");
        return None;
    }
    let losetup = program("losetup")?;
    let run = |args: &[&str]| Command::new(&losetup).args(args).output().unwrap();
    let output = run(&["--find", "--show", "--sector-size", "4096", raw]);
    assert!(output.status.success(), "{output:?}");
    let disk = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| show(&disk)));
    run(&["--detach", &disk]);
    Some(shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

#[test]
fn a_table_of_sectors_of_4096_bytes_moves_and_one_whose_copy_alone_is_whole_is_not_lost() {
    let Some(sfdisk) = program("sfdisk") else { return };
    let folder = Folder::new();
    let raw = folder.path("disk.img");
    image(&raw, 64 * MIB);
    if with_long_sectors(&raw, |disk| partition(&sfdisk, disk)).is_some() {
        folder.disk("convert disk.img disk.vhdx --sector 4096 --block-size 1M");
        let smallest = "resize disk.vhdx --to-minimum --shrink";
        for words in ["resize disk.vhdx 100M", smallest, "resize disk.vhdx 64M"] {
            folder.disk(words);
            fs::write(folder.path("now.img"), folder.contents("disk.vhdx")).unwrap();
            let verify = |disk: &str| Command::new(&sfdisk).args(["--verify", disk]).output().unwrap();
            let output = with_long_sectors(&folder.path("now.img"), verify).unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("No errors detected"), "{words}: {output:?}");
        }
    }
    // The header at the start is gone.
    image(&raw, 64 * MIB);
    partition(&sfdisk, &raw);
    fs::OpenOptions::new().write(true).open(&raw).unwrap().write_all_at(&[0; 512], 512).unwrap();
    folder.disk("convert disk.img broken.vhdx");
    for words in ["resize broken.vhdx 100M", "resize broken.vhdx 50M --shrink"] {
        assert!(folder.refused(words).contains("gdisk"), "{words}");
    }
    folder.disk("resize broken.vhdx 100M --force");
}

#[test]
fn the_space_of_a_fixed_disk_that_has_grown_and_that_of_the_log_are_the_files() {
    let folder = Folder::new();
    folder.disk("create disk.vhdx --size 8M --fixed");
    folder.disk("resize disk.vhdx 24M");
    let blocks = |name: &str| fs::metadata(folder.path(name)).unwrap().blocks() * 512;
    assert!(blocks("disk.vhdx") >= 24 * MIB, "{}", blocks("disk.vhdx"));
    folder.disk("create new.vhdx --size 8M");
    assert!(blocks("new.vhdx") >= MIB, "{}", blocks("new.vhdx"));
}

#[test]
fn a_disk_without_a_partition_table_is_not_cut_in_its_file_system() {
    let Some(mkfs) = program("mkfs.ext4") else { return };
    let folder = Folder::new();
    let raw = folder.path("disk.img");
    image(&raw, 64 * MIB);
    assert!(Command::new(mkfs).args(["-q", "-F", &raw, "40M"]).status().unwrap().success());
    folder.disk("convert disk.img disk.vhdx --block-size 1M");
    let before = folder.contents("disk.vhdx");
    let said = folder.refused("resize disk.vhdx 39M --shrink");
    assert!(said.contains("ext4 volume") && said.contains(&(40 * MIB).to_string()), "{said}");
    assert!(folder.contents("disk.vhdx") == before);
    folder.disk("resize disk.vhdx 40M --shrink");
    assert!(folder.contents("disk.vhdx") == before[..40 << 20]);
    folder.disk("resize disk.vhdx 39M --shrink --force");
    assert!(folder.contents("disk.vhdx") == before[..39 << 20]);
}

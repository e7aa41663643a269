//! `lunway disk`, beside QEMU's reader of VHDX and the partition tools of Linux.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lunway_foreign::program;
use serde_json::Value;
use support::{PATIENCE, finish, lunway, succeed};

const MIB: u64 = 1 << 20;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// `lunway disk` with these words; names of files are of this folder.
    fn command(&self, words: &str) -> Command {
        let words = words.split_whitespace().map(|word| {
            let is_file = [".vhdx", ".avhdx", ".img"].iter().any(|end| word.ends_with(end));
            if is_file { self.path(word) } else { word.to_owned() }
        });
        lunway(&["disk".to_owned()].into_iter().chain(words).collect::<Vec<_>>())
    }

    fn disk(&self, words: &str) -> String {
        succeed(self.command(words))
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.disk(&format!("{words} --json"))).unwrap()
    }

    /// What a command that fails with 1 says.
    fn refused(&self, words: &str) -> String {
        let output = finish(self.command(words), PATIENCE);
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// All bytes of a disk, by our own reader.
    fn contents(&self, name: &str) -> Vec<u8> {
        let copy = self.path("contents");
        let _ = fs::remove_file(&copy);
        succeed(lunway(&["copy", &format!("readonly:vhdx:{}", self.path(name)), &format!("raw:{copy}")]));
        fs::read(copy).unwrap()
    }

    /// Writes bytes to a disk, by our own writer.
    fn write(&self, name: &str, offset: u64, value: u8, len: usize) {
        let mut bytes = self.contents(name);
        bytes[offset as usize..offset as usize + len].fill(value);
        fs::write(self.path("written"), bytes).unwrap();
        let [from, to] = [format!("raw:{}", self.path("written")), format!("vhdx:{}", self.path(name))];
        succeed(lunway(&["copy", &from, &to, "--resume", "--overwrite"]));
    }

    /// QEMU finds nothing wrong with a file.
    fn qemu_check(&self, name: &str) {
        let Some(qemu) = program("qemu-img") else { return };
        let output = Command::new(qemu).args(["check", "-f", "vhdx", &self.path(name)]).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
    }

    fn qemu_equal(&self, name: &str, raw: &str) {
        let Some(qemu) = program("qemu-img") else { return };
        let mut compare = Command::new(qemu);
        compare.args(["compare", "-f", "vhdx", "-F", "raw", &self.path(name), &self.path(raw)]);
        let output = compare.output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
    }
}

/// A raw image with some data.
fn image(path: &str, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    for (number, page) in bytes.chunks_mut(4096).enumerate().filter(|(number, _)| number % 5 == 1) {
        page.fill((number % 250) as u8 + 1);
    }
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn a_new_disk_is_what_was_asked_for_and_qemu_reads_it() {
    let folder = Folder::new();
    for (words, kind, block, sector) in [
        ("--size 100M", "dynamic", 32 * MIB, 512),
        ("--size 100M --block-size 1M --sector 4096", "dynamic", MIB, 4096),
        ("--size 20M --fixed", "fixed", 2 * MIB, 512),
        ("--size 20M --fixed --zero --block-size 1M", "fixed", MIB, 512),
    ] {
        let made = folder.json(&format!("create new.vhdx {words}"));
        let found = folder.json("info new.vhdx");
        for field in ["kind", "virtual_bytes", "block_bytes", "logical_sector", "physical_sector", "disk_id"]
        {
            assert_eq!(made[field], found[field], "{words}");
        }
        assert_eq!(
            (&found["kind"], &found["block_bytes"], &found["logical_sector"]),
            (&kind.into(), &block.into(), &sector.into())
        );
        // QEMU knows no logical sectors of 4096 bytes.
        if sector == 512 {
            folder.qemu_check("new.vhdx");
        }
        assert!(folder.contents("new.vhdx").iter().all(|byte| *byte == 0));
        if kind == "fixed" {
            let allocated = fs::metadata(folder.path("new.vhdx")).unwrap().blocks() * 512;
            assert!(allocated >= 20 * MIB, "{words}: {allocated} bytes are reserved");
        }
        assert!(folder.refused(&format!("create new.vhdx {words}")).contains("already exists"));
        fs::remove_file(folder.path("new.vhdx")).unwrap();
    }
    for (words, why) in [
        ("--size 0", "0 bytes"),
        ("--size 65T", "64 TiB"),
        ("--size 1M --block-size 3M", "power of two"),
        ("--size 513", "whole sectors"),
    ] {
        let said = folder.refused(&format!("create new.vhdx {words}"));
        assert!(said.contains(why) && !Path::new(&folder.path("new.vhdx")).exists(), "{words}: {said}");
    }
}

#[test]
fn a_disk_is_converted_there_and_back() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 40 * MIB);
    for layout in ["", "--block-size 1M", "--fixed", "--block-size 256M"] {
        folder.disk(&format!("convert disk.img disk.vhdx --verify {layout}"));
        folder.qemu_check("disk.vhdx");
        folder.qemu_equal("disk.vhdx", "disk.img");
        folder.disk("convert disk.vhdx back.img");
        assert!(fs::read(folder.path("back.img")).unwrap() == bytes, "{layout}");
        folder.disk("convert disk.vhdx other.vhdx --block-size 2M --verify");
        assert!(folder.contents("other.vhdx") == bytes, "{layout}");
        for name in ["disk.vhdx", "back.img", "other.vhdx"] {
            fs::remove_file(folder.path(name)).unwrap();
        }
    }
    // What is too small is left as it was.
    folder.disk("create wide.vhdx --size 3M --sector 4096");
    assert_eq!(folder.json("info wide.vhdx")["logical_sector"], 4096);
    let before = fs::read(folder.path("wide.vhdx")).unwrap();
    assert!(folder.refused("convert disk.img wide.vhdx").contains("already exists"));
    let copied = finish(lunway(&["copy", &folder.path("disk.img"), &folder.path("wide.vhdx")]), PATIENCE);
    assert!(String::from_utf8_lossy(&copied.stderr).contains("take a larger one"), "{copied:?}");
    assert!(fs::read(folder.path("wide.vhdx")).unwrap() == before);
}

#[test]
fn a_disk_is_converted_to_what_differs_from_a_parent() {
    let folder = Folder::new();
    let mut bytes = image(&folder.path("disk.img"), 40 * MIB);
    folder.disk("convert disk.img base.vhdx");
    // Data over data, zeroes over data, and an end of its own.
    bytes[(3 << 20) + 4096..(3 << 20) + 8192].fill(251);
    bytes[20 << 20..24 << 20].fill(0);
    bytes.truncate(36 << 20);
    fs::write(folder.path("other.img"), &bytes).unwrap();
    folder.disk("convert other.img child.avhdx --parent base.vhdx --verify");
    assert!(folder.contents("child.avhdx") == bytes);
    let info = folder.json("info child.avhdx");
    assert_eq!(
        (&info["kind"], info["chain"].as_array().unwrap().len()),
        (&"differencing".into(), 2),
        "{info}"
    );
    // A block for each of the changed mebibytes, not for the whole disk.
    assert!(info["file_bytes"].as_u64().unwrap() < 12 * MIB, "{info}");
    folder.disk("check child.avhdx");
    assert!(folder.refused("convert disk.img child.avhdx --parent base.vhdx").contains("already exists"));
    assert!(folder.refused("convert disk.img new.img --parent base.vhdx").contains("*.avhdx"));
    assert!(folder.contents("child.avhdx") == bytes);
}

#[test]
fn a_conversion_that_was_interrupted_goes_on() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 24 * MIB);
    let source = format!("rate:8M:{}", folder.path("disk.img"));
    let convert = |more: &[&str]| {
        let destination = folder.path("disk.vhdx");
        lunway(&[&["disk", "convert", &source, &destination], more].concat())
    };
    let unfinished = PathBuf::from(folder.path("disk.vhdx.partial"));
    let output = support::interrupted(convert(&[]), || {
        fs::metadata(&unfinished).is_ok_and(|file| file.len() > 8 * MIB)
    });
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(unfinished.exists() && !Path::new(&folder.path("disk.vhdx")).exists());
    let said = finish(convert(&[]), PATIENCE);
    assert!(String::from_utf8_lossy(&said.stderr).contains("--resume continues it"), "{said:?}");
    succeed(convert(&["--resume", "--verify"]));
    assert!(folder.contents("disk.vhdx") == bytes && !unfinished.exists());
}

/// `--resume` refused its own file: no VHDX, no VHD, or a raw file "of another copy".
#[test]
fn a_conversion_that_was_killed_while_it_made_its_file_begins_anew() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 4 * MIB);
    folder.disk("create whole.vhdx --size 4M");
    succeed(lunway(&["disk", "create", &folder.path("whole.vhd"), "--size", "4M"]));
    for name in ["new.vhdx", "new.vhd", "new.img"] {
        let (made, unfinished) = (folder.path(name), folder.path(&format!("{name}.partial")));
        // What each step of making an empty disk leaves, the last of which is the signature.
        let mut lefts = vec![Vec::new()];
        if name != "new.img" {
            let mut whole = fs::read(folder.path(&name.replace("new", "whole"))).unwrap();
            whole[..512].fill(0);
            let end = whole.len() - 512;
            if name == "new.vhd" {
                // The header; and with it the table, which is all ones. The footer comes behind it.
                lefts.extend([whole[..1536].to_vec(), whole[..end].to_vec()]);
                assert!(whole[..end].ends_with(&[0xFF; 512]));
            }
            whole[end..].fill(0);
            lefts.extend([vec![0; whole.len()], whole]);
        }
        for left in lefts {
            fs::write(&unfinished, left).unwrap();
            let convert = || lunway(&["disk", "convert", &folder.path("disk.img"), &made, "--resume"]);
            let resumed = finish(convert(), PATIENCE);
            let said = String::from_utf8_lossy(&resumed.stderr);
            assert!(resumed.status.success() && said.contains("starting again"), "{name}: {said}");
            let shown = folder.path("shown");
            succeed(lunway(&["copy", &format!("readonly:{made}"), &format!("raw:{shown}")]));
            assert!(fs::read(&shown).unwrap() == bytes && !Path::new(&unfinished).exists(), "{name}");
            fs::remove_file(shown).unwrap();
            fs::remove_file(&made).unwrap();
        }
        // What is not a copy's is left alone.
        let foreign = vec![7; 8192];
        fs::write(&unfinished, &foreign).unwrap();
        let refused =
            finish(lunway(&["disk", "convert", &folder.path("disk.img"), &made, "--resume"]), PATIENCE);
        assert!(!refused.status.success(), "{name}: {refused:?}");
        assert!(fs::read(&unfinished).unwrap() == foreign && !Path::new(&made).exists(), "{name}");
    }
}

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
fn a_disk_is_not_made_under_the_name_of_another_format() {
    let folder = Folder::new();
    for name in ["x.img", "x.raw", "x.qcow2", "x.vmdk", "x.QCOW2"] {
        let path = folder.path(name);
        let output = finish(lunway(&["disk", "create", &path, "--size", "8M"]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("*.vhdx"), "{name}: {said}");
        assert!(!Path::new(&path).exists(), "{name}");
    }
}

#[test]
fn an_intact_file_of_another_format_is_not_called_damaged() {
    let folder = Folder::new();
    image(&folder.path("raw.img"), MIB);
    let mut qcow2 = vec![0; 1 << 20];
    qcow2[..4].copy_from_slice(b"QFI\xFB");
    fs::write(folder.path("qcow2.img"), qcow2).unwrap();
    for (words, what) in [
        ("check raw.img", "not a VHDX file"),
        ("repair raw.img", "not a VHDX file"),
        ("check qcow2.img", "is a qcow2 image, not raw data: qcow2:"),
    ] {
        let said = folder.refused(words);
        assert!(said.contains(what) && !said.contains("damaged"), "{words}: {said}");
    }
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

#[test]
fn damage_is_found_named_and_repaired_where_that_is_certain() {
    let folder = Folder::new();
    image(&folder.path("disk.img"), 4 * MIB);
    folder.disk("convert disk.img disk.vhdx --block-size 1M");
    let whole = fs::read(folder.path("disk.vhdx")).unwrap();
    let data = folder.contents("disk.vhdx");
    assert!(folder.disk("check disk.vhdx").contains("no errors"));
    assert!(folder.disk("repair disk.vhdx").contains("nothing to repair"));

    let mut bytes = whole.clone();
    bytes[64 << 10] ^= 1;
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    assert!(folder.disk("check disk.vhdx").contains("no errors, with notes"));
    let repaired = folder.json("repair disk.vhdx");
    assert_eq!(repaired["headers"], 1);
    assert!(folder.disk("check disk.vhdx").trim_end().ends_with("no errors"));
    assert!(folder.contents("disk.vhdx") == data);
    let kept = fs::read(folder.path("disk.vhdx.before-repair")).unwrap();
    assert!(kept[..MIB as usize] == bytes[..MIB as usize], "the headers as they were");
    folder.disk("repair disk.vhdx --undo");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "undone to the byte");
    fs::remove_file(folder.path("disk.vhdx.before-repair")).unwrap();
    // A header of zeroes comes back as zeroes, and a disk that was written since is left alone.
    bytes[64 << 10..68 << 10].fill(0);
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    folder.disk("repair disk.vhdx");
    let repaired = fs::read(folder.path("disk.vhdx")).unwrap();
    assert!(repaired != bytes);
    folder.disk("repair disk.vhdx --undo");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "undone to the byte");
    fs::write(folder.path("disk.vhdx"), &repaired).unwrap();
    folder.write("disk.vhdx", 0, 7, 512);
    let written = fs::read(folder.path("disk.vhdx")).unwrap();
    folder.refused("repair disk.vhdx --undo");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == written);
    fs::remove_file(folder.path("disk.vhdx.before-repair")).unwrap();

    // A state that does not exist: nobody knows what was there.
    let mut bytes = whole;
    bytes[3 << 20] = (bytes[3 << 20] & !7) | 4;
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    let output = finish(folder.command("check disk.vhdx"), PATIENCE);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("payload block 0, byte 3145728"), "{said}");
    folder.refused("repair disk.vhdx");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "left as it was");
    assert!(!Path::new(&folder.path("disk.vhdx.before-repair")).exists());
}

/// The file is looked at as its log would leave it, before the log is replayed.
#[test]
fn a_repair_that_is_refused_has_not_replayed_the_log() {
    let folder = Folder::new();
    // Two pages of the table: the log holds the first one, the damage lies in the second one.
    folder.disk("create disk.vhdx --size 1G --block-size 1M");
    {
        let guids = || lunway_vhdx_device::random_guids().unwrap();
        let file = lunway_vhdx::open_file(Path::new(&folder.path("disk.vhdx")), true).unwrap();
        let disk = lunway_vhdx::Disk::open(file, &lunway_vhdx::VhdxOpenOptions::writable(), guids()).unwrap();
        let chain = lunway_vhdx::Chain::new(vec![disk]).unwrap();
        chain.write_at(0, &[7; 4096]).unwrap();
        // As a killed process leaves it.
        chain.flush().unwrap();
    }
    let mut bytes = fs::read(folder.path("disk.vhdx")).unwrap();
    bytes[(3 << 20) + 4096] = 4;
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    let said = folder.refused("repair disk.vhdx");
    assert!(said.contains("payload block 512") && said.contains("state 4 is reserved"), "{said}");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "left as it was");
    assert!(!Path::new(&folder.path("disk.vhdx.before-repair")).exists());
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

#[test]
fn a_copy_gets_an_identity_of_its_own_and_another_physical_sector() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 4 * MIB);
    folder.disk("convert disk.img disk.vhdx --block-size 1M");
    fs::copy(folder.path("disk.vhdx"), folder.path("copy.vhdx")).unwrap();
    let before = folder.json("info disk.vhdx");
    let set = folder.json("set copy.vhdx --new-id --physical-sector 512");
    let (info, original) = (folder.json("info copy.vhdx"), folder.json("info disk.vhdx"));
    assert_eq!((&info["disk_id"], &info["physical_sector"]), (&set["disk_id"], &512.into()));
    assert_eq!(before["disk_id"], original["disk_id"]);
    assert_ne!(info["disk_id"], original["disk_id"]);
    assert_ne!(info["data_write_id"], original["data_write_id"], "it is another disk now");
    assert!(folder.contents("copy.vhdx") == bytes);
    folder.disk("check copy.vhdx");
    folder.qemu_equal("copy.vhdx", "disk.img");
    folder.disk("set copy.vhdx --physical-sector 4096");
    let again = folder.json("info copy.vhdx");
    assert_eq!((&again["disk_id"], &again["physical_sector"]), (&info["disk_id"], &4096.into()));
    let output = finish(folder.command("set copy.vhdx --physical-sector 1024"), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("512 or 4096 is expected"), "{said}");
    folder.disk("create wide.vhdx --size 4M --sector 4096");
    folder.refused("set wide.vhdx --physical-sector 512");
    folder.disk("snapshot disk.vhdx child.avhdx");
    assert!(folder.refused("set disk.vhdx --new-id").contains("is the parent of child.avhdx"));
    folder.disk("check child.avhdx");
}

#[test]
fn a_disk_is_mounted_and_a_parent_for_reading_alone() {
    let Some(qemu) = program("qemu-img") else { return };
    let folder = Folder::new();
    image(&folder.path("disk.img"), 4 * MIB);
    folder.disk("convert disk.img disk.vhdx");
    folder.disk("snapshot disk.vhdx child.avhdx");
    for (name, read_only) in [("disk.vhdx", true), ("child.avhdx", false)] {
        let socket = folder.path("nbd");
        let address = format!("unix:{socket}");
        let running =
            support::Running::start(lunway(&["disk", "mount", &folder.path(name), "--nbd", &address]));
        support::until(|| Path::new(&socket).exists());
        let uri = format!("nbd+unix:///?socket={socket}");
        let compare = Command::new(&qemu).args(["compare", &uri, &folder.path("disk.img")]).output().unwrap();
        assert!(compare.status.success(), "{name}: {compare:?}");
        if let Some(qemu_io) = program("qemu-io") {
            let write =
                Command::new(qemu_io).args(["-f", "raw", "-c", "write -P 1 0 512", &uri]).output().unwrap();
            assert_eq!(write.status.success(), !read_only, "{name}: {write:?}");
        }
        running.signal(rustix::process::Signal::TERM);
        let output = running.end(PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("mounted read-only"), read_only, "{said}");
    }
}

/// Before, such a file was extended by the next write, and a check found nothing.
#[test]
fn a_file_that_another_program_cuts_has_lost_data_until_a_repair_makes_zeroes_of_it() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 24 * MIB);
    folder.disk("convert disk.img cut.vhdx --fixed");
    let len = || fs::metadata(folder.path("cut.vhdx")).unwrap().len();
    let whole = len();
    fs::File::options().write(true).open(folder.path("cut.vhdx")).unwrap().set_len(whole - 4 * MIB).unwrap();
    let refused = finish(folder.command("check cut.vhdx"), PATIENCE);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stdout).unwrap();
    assert!(
        said.contains("4194304 bytes of data are lost") && said.contains("  loss    payload block"),
        "{said}"
    );
    // Nothing that writes opens it; what is left can be copied.
    let [from, to] =
        [format!("raw:{}", folder.path("disk.img")), format!("vhdx:{}", folder.path("cut.vhdx"))];
    let output = finish(lunway(&["copy", &from, &to, "--resume", "--overwrite"]), PATIENCE);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("lunway disk repair"), "{said}");
    assert!(folder.refused("resize cut.vhdx 48M").contains("4194304 bytes of data are lost"));
    assert_eq!(len(), whole - 4 * MIB);

    let repaired = folder.json("repair cut.vhdx");
    assert_eq!([&repaired["lost_bytes"], &repaired["lengthened_bytes"]], [4 * MIB, 4 * MIB], "{repaired}");
    assert_eq!(len(), whole);
    folder.disk("check cut.vhdx");
    let mut zeroed = bytes;
    zeroed[20 << 20..].fill(0);
    assert!(folder.contents("cut.vhdx") == zeroed);
    folder.disk("repair cut.vhdx --undo");
    assert_eq!(len(), whole - 4 * MIB);
    folder.refused("check cut.vhdx");
}

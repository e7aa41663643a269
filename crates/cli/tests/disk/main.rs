//! `lunway disk`, beside QEMU's reader of VHDX and the partition tools of Linux.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod chain;
mod conversion;
mod damage;
mod size;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

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

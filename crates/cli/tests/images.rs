//! VHD and qcow2 files that QEMU made, read; and VHD files that it reads.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{PATIENCE, finish, lunway, succeed};

const MIB: u64 = 1 << 20;

/// A folder, and the programs that are run in it.
struct Folder {
    folder: tempfile::TempDir,
    qemu_img: PathBuf,
}

impl Folder {
    /// None without qemu-img.
    fn new() -> Option<Self> {
        Some(Self { qemu_img: lunway_foreign::program("qemu-img")?, folder: tempfile::tempdir().unwrap() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `qemu-img` in the folder.
    fn qemu(&self, words: &str) -> String {
        let run = || {
            let mut command = Command::new(&self.qemu_img);
            command.args(words.split(' ')).current_dir(self.folder.path()).output().unwrap()
        };
        // It measures its own processor time for LUKS, and gives up where it had next to none.
        let starved =
            |output: &Output| String::from_utf8_lossy(&output.stderr).contains("accurate CPU usage");
        let output = (0..20).map(|_| run()).find(|output| !starved(output)).unwrap_or_else(run);
        assert!(output.status.success(), "qemu-img {words}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// `qemu-io` on a file; false without it.
    fn io(&self, file: &str, commands: &[&str]) -> bool {
        let Some(qemu_io) = lunway_foreign::program("qemu-io") else { return false };
        let mut command = Command::new(qemu_io);
        command.current_dir(self.folder.path());
        for words in commands {
            command.args(["-c", words]);
        }
        let output = command.args(file.split(' ')).output().unwrap();
        assert!(output.status.success(), "{file} {commands:?}: {output:?}");
        true
    }

    fn command(&self, words: &str) -> Command {
        let mut command = lunway(&words.split(' ').collect::<Vec<_>>());
        command.current_dir(self.folder.path());
        command
    }

    fn lunway(&self, words: &str) -> String {
        succeed(self.command(words))
    }

    fn refused(&self, words: &str) -> String {
        let output = finish(self.command(words), PATIENCE);
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.lunway(&format!("{words} --json"))).unwrap()
    }

    /// All bytes of a device, by our own reader, which must be those that QEMU shows.
    fn equal(&self, device: &str, qemu: &str) {
        for name in ["ours", "theirs"] {
            let _ = fs::remove_file(self.path(name));
        }
        self.lunway(&format!("disk convert {device} raw:ours --verify"));
        self.qemu(&format!("convert {qemu} -O raw theirs"));
        assert!(fs::read(self.path("ours")).unwrap() == fs::read(self.path("theirs")).unwrap(), "{device}");
    }
}

/// A raw image with data that do not repeat, in pieces, and zeroes between.
fn image(path: &Path, size: u64, seed: u64) {
    let mut state = seed;
    let mut bytes = vec![0; size as usize];
    for page in bytes.chunks_mut(4096) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if state >> 61 < 3 {
            // Compresses to about a half.
            for (at, byte) in page.iter_mut().enumerate() {
                *byte = if at % 2 == 0 { (state >> 33) as u8 ^ at as u8 } else { 0x55 };
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at as u64);
            }
        }
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_that_qemu_made_show_the_same_bytes() {
    let Some(folder) = Folder::new() else { return };
    image(&folder.path("disk.img"), 24 * MIB + 512, 1);
    for (format, options, device) in [
        ("vpc", "-o subformat=dynamic,force_size=on", "vhd:file"),
        ("vpc", "-o subformat=dynamic", "vhd:file"),
        ("vpc", "-o subformat=fixed,force_size=on", "vhd:file"),
        ("qcow2", "", "qcow2:file"),
        ("qcow2", "-o compat=0.10", "qcow2:file"),
        ("qcow2", "-o cluster_size=512", "qcow2:file"),
        ("qcow2", "-o cluster_size=2M", "qcow2:file"),
        ("qcow2", "-c", "qcow2:file"),
        ("qcow2", "-c -o cluster_size=512", "qcow2:file"),
        ("qcow2", "-c -o cluster_size=2M", "qcow2:file"),
        ("qcow2", "-o extended_l2=on", "qcow2:file"),
        ("qcow2", "-o preallocation=metadata", "qcow2:file"),
        ("qcow2", "-o lazy_refcounts=on", "qcow2:file"),
    ] {
        let options = if options.is_empty() { String::new() } else { format!("{options} ") };
        folder.qemu(&format!("convert -f raw -O {format} {options}disk.img file"));
        folder.equal(device, &format!("-f {format} file"));
        let info = folder.json(&format!("disk info {device}"));
        assert_eq!(info["format"], if format == "vpc" { "vhd" } else { "qcow2" }, "{options}");
        assert_eq!(info["virtual_bytes"], fs::metadata(folder.path("ours")).unwrap().len(), "{options}");
        fs::remove_file(folder.path("file")).unwrap();
    }
}

#[test]
fn zeroes_discards_and_subclusters_are_seen() {
    let Some(folder) = Folder::new() else { return };
    for options in ["cluster_size=64k", "cluster_size=64k,extended_l2=on", "compat=0.10"] {
        image(&folder.path("base.img"), 4 * MIB, 2);
        folder.qemu(&format!("create -q -f qcow2 -b base.img -F raw -o {options} top.qcow2 6M"));
        let changes = [
            "write -P 7 70k 2k",
            "write -P 8 1M 64k",
            "write -z 2M 128k",
            "write -z 196k 4k",
            "write -P 9 2050k 2k",
            "discard 3M 64k",
            "write -P 10 5M 512",
        ];
        if !folder.io("-d unmap -f qcow2 top.qcow2", &changes) {
            return;
        }
        folder.equal("top.qcow2", "-f qcow2 top.qcow2");
        let map = folder.lunway("disk map top.qcow2");
        assert!(map.contains("base.img") && map.contains("top.qcow2"), "{map}");
        // Version 2 knows no zeroes.
        assert_eq!(map.contains("zero"), !options.contains("0.10"), "{map}");
        fs::remove_file(folder.path("top.qcow2")).unwrap();
    }
}

#[test]
fn chains_of_backing_files_are_followed_and_become_one_vhdx() {
    let Some(folder) = Folder::new() else { return };
    image(&folder.path("disk.img"), 3 * MIB, 3);
    folder.qemu("convert -f raw -O vpc -o subformat=dynamic,force_size=on disk.img base.vhd");
    folder.qemu("create -q -f qcow2 -b base.vhd -F vpc one.qcow2 5M");
    folder.qemu("create -q -f qcow2 -b one.qcow2 -F qcow2 two.qcow2 8M");
    let written = folder.io("-f qcow2 one.qcow2", &["write -P 1 1M 100k", "write -P 2 4M 1M"])
        && folder.io("-f qcow2 two.qcow2", &["write -P 3 1050k 20k", "write -P 4 7M 64k"]);
    if !written {
        return;
    }
    folder.equal("two.qcow2", "-f qcow2 two.qcow2");
    let info = folder.json("disk info two.qcow2");
    assert_eq!(info["chain"].as_array().unwrap().len(), 3, "{info}");
    let before: Vec<_> =
        ["base.vhd", "one.qcow2", "two.qcow2"].map(|name| fs::read(folder.path(name)).unwrap()).into();
    folder.lunway("disk convert two.qcow2 all.vhdx --block-size 1M --verify");
    folder.qemu("compare -f qcow2 -F vhdx two.qcow2 all.vhdx");
    // A LUN, a decorator, a benchmark: it is a device as any other, but that it is not written.
    folder.lunway("inspect readonly:two.qcow2");
    let said = folder.refused("copy ram:1M two.qcow2 --overwrite");
    assert!(said.contains("read-only"), "{said}");
    assert!(folder.refused("copy ram:1M new.qcow2").contains("only read, not made"));
    for (name, bytes) in ["base.vhd", "one.qcow2", "two.qcow2"].into_iter().zip(before) {
        assert!(fs::read(folder.path(name)).unwrap() == bytes, "{name} was changed");
    }
}

#[test]
fn images_that_cannot_be_read_rightly_are_refused() {
    let Some(folder) = Folder::new() else { return };
    image(&folder.path("disk.img"), MIB, 4);
    let refused = |create: &str, sentence: &str| {
        folder.qemu(create);
        let said = folder.refused("disk convert no.qcow2 raw:out");
        assert!(said.contains(sentence), "{create}: {said}");
        assert!(folder.path("out").metadata().is_err() && folder.path("out.partial").metadata().is_err());
        fs::remove_file(folder.path("no.qcow2")).unwrap();
    };
    refused(
        "create -q --object secret,id=s,data=abc -f qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 no.qcow2 1M",
        "is encrypted",
    );
    refused("create -q -f qcow2 -o data_file=data.raw no.qcow2 1M", "in another file");
    refused("convert -f raw -O qcow2 -c -o compression_type=zstd disk.img no.qcow2", "than zlib");
    // A compressed cluster that was damaged is an error where it is read, and no zeroes.
    folder.qemu("convert -f raw -O qcow2 -c disk.img bad.qcow2");
    let map = folder.json_lines("disk map bad.qcow2");
    let cluster = map.iter().find(|row| row["what"] == "compressed").unwrap();
    let at = cluster["file_offset"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(folder.path("bad.qcow2")).unwrap();
    bytes[at..at + 32].fill(0xFF);
    fs::write(folder.path("bad.qcow2"), bytes).unwrap();
    let said = folder.refused("disk convert bad.qcow2 raw:out");
    assert!(said.contains("is damaged"), "{said}");
}

impl Folder {
    fn json_lines(&self, words: &str) -> Vec<Value> {
        let lines = self.lunway(&format!("{words} --json"));
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn a_vhd_of_ours_is_read_by_qemu_to_its_last_sector() {
    let Some(folder) = Folder::new() else { return };
    // None of these sizes is one that a geometry can say.
    for size in [24 * MIB + 512, 5 * MIB] {
        image(&folder.path("disk.img"), size, 5);
        for layout in ["", " --fixed", " --fixed --zero", " --block-size 512K"] {
            let file = "made.vhd";
            folder.lunway(&format!("disk convert disk.img {file} --verify{layout}"));
            let info: Value =
                serde_json::from_str(&folder.qemu(&format!("info --output json -f vpc {file}"))).unwrap();
            assert_eq!(info["virtual-size"], size, "{layout}");
            folder.qemu(&format!("compare -f vpc -F raw {file} disk.img"));
            folder.lunway(&format!("disk convert {file} raw:back"));
            assert!(fs::read(folder.path("back")).unwrap() == fs::read(folder.path("disk.img")).unwrap());
            let ours = folder.json(&format!("disk info {file}"));
            assert_eq!(ours["kind"], if layout.contains("fixed") { "fixed" } else { "dynamic" });
            assert!(folder.refused(&format!("disk convert disk.img {file}")).contains("--overwrite"));
            folder.lunway(&format!("disk convert disk.img {file} --overwrite"));
            folder.qemu(&format!("compare -f vpc -F raw {file} disk.img"));
            for name in [file, "back"] {
                fs::remove_file(folder.path(name)).unwrap();
            }
        }
    }
    // A terabyte, of which a little is there, by `copy` and `create` alike.
    fs::File::create(folder.path("large.img")).unwrap().set_len(1 << 40).unwrap();
    folder.lunway("copy large.img large.vhd");
    folder.lunway("disk create empty.vhd --size 1T");
    for name in ["large.vhd", "empty.vhd"] {
        let info: Value =
            serde_json::from_str(&folder.qemu(&format!("info --output json -f vpc {name}"))).unwrap();
        assert_eq!(info["virtual-size"], 1u64 << 40, "{name}");
        assert!(fs::metadata(folder.path(name)).unwrap().len() < 4 * MIB, "{name}");
    }
    assert!(folder.refused("disk create big.vhd --size 2041G").contains("2040 GiB"));
    assert!(folder.refused("disk create wide.vhd --size 1G --sector 4096").contains("sectors of 512 bytes"));
    assert!(folder.path("big.vhd").metadata().is_err() && folder.path("wide.vhd").metadata().is_err());
}

#[test]
fn an_interrupted_conversion_to_vhd_goes_on() {
    let Some(folder) = Folder::new() else { return };
    image(&folder.path("disk.img"), 24 * MIB, 6);
    for layout in ["", "--fixed"] {
        let words = |more: &str| format!("disk convert rate:8M:disk.img made.vhd {layout} {more}");
        let command = |more: &str| folder.command(words(more).replace("  ", " ").trim_end());
        let unfinished = folder.path("made.vhd.partial");
        let begun = std::time::Instant::now();
        let output =
            support::interrupted(command(""), || begun.elapsed().as_millis() > 800 && unfinished.exists());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(unfinished.exists() && folder.path("made.vhd").metadata().is_err());
        succeed(command("--resume --verify"));
        folder.qemu("compare -f vpc -F raw made.vhd disk.img");
        assert!(!unfinished.exists());
        fs::remove_file(folder.path("made.vhd")).unwrap();
    }
}

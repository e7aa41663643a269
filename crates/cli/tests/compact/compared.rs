//! The table of docs/src/disk.md: one disk, shrunk by lunway and by others. `LUNWAY_COMPARED_MIB` is how much is
//! written to each disk before half of it is deleted.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::guest::{MIB, noise, run};
use super::support::{lunway, succeed};
use lunway_foreign::program;

/// A disk, and how its file system is mounted and zeroed.
struct Case {
    name: &'static str,
    /// Where the file system begins.
    start: u64,
    make: &'static [&'static str],
    mount: &'static [&'static str],
    zero: &'static [&'static str],
}

const CASES: [Case; 3] = [
    Case {
        name: "ext4 in a GPT",
        start: MIB,
        make: &["mke2fs", "-q", "-F", "-t", "ext4"],
        mount: &["mount"],
        zero: &["zerofree"],
    },
    Case {
        name: "ext4 without a table",
        start: 0,
        make: &["mke2fs", "-q", "-F", "-t", "ext4"],
        mount: &["mount"],
        zero: &["zerofree"],
    },
    Case {
        name: "NTFS without a table",
        start: 0,
        make: &["mkntfs", "-q", "-F", "-Q"],
        mount: &["ntfs-3g"],
        zero: &["ntfswipe", "--unused", "--force", "--bytes", "0"],
    },
];

/// A loop device over the file system in an image; detached when dropped.
struct Loop(String);

impl Loop {
    fn new(image: &Path, case: &Case, size: u64) -> Self {
        let (start, len) = (case.start.to_string(), (size - 2 * case.start).to_string());
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--offset", &start, "--sizelimit", &len]).arg(image);
        Self(run(&mut losetup).trim().to_owned())
    }

    fn run(&self, words: &[&str]) {
        run(Command::new(program(words[0]).unwrap()).args(&words[1..]).arg(&self.0));
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A raw image that was filled, and of which every second file was deleted.
fn filled(folder: &Path, case: &Case, bytes: u64) -> PathBuf {
    let image = folder.join("disk.img");
    let size = bytes * 2;
    fs::File::create(&image).unwrap().set_len(size).unwrap();
    if case.start > 0 {
        let script = folder.join("table");
        fs::write(
            &script,
            format!("label: gpt\nstart={}, size={}\n", case.start / 512, (size - 2 * MIB) / 512),
        )
        .unwrap();
        let table = fs::File::open(&script).unwrap();
        run(Command::new("sfdisk").arg("-q").arg(&image).stdin(table));
    }
    let device = Loop::new(&image, case, size);
    device.run(case.make);
    let mounted = folder.join("mounted");
    fs::create_dir_all(&mounted).unwrap();
    run(Command::new(program(case.mount[0]).unwrap()).args(&case.mount[1..]).arg(&device.0).arg(&mounted));
    let pattern = noise(15, 4 << 20);
    let (mut written, mut number) = (0, 0);
    while written < bytes {
        // 4 KiB to 3 MiB, as on a machine that was upgraded.
        let len = 4096 + number * 7919 * 4096 % (3 << 20);
        let from = number * 13 % 4096;
        fs::write(mounted.join(format!("f{number}")), &pattern[from..from + len]).unwrap();
        (written, number) = (written + len as u64, number + 1);
    }
    for number in (0..number).step_by(2) {
        fs::remove_file(mounted.join(format!("f{number}"))).unwrap();
    }
    run(Command::new("umount").arg(&mounted));
    image
}

fn row(case: &str, who: &str, file: &Path, seconds: f64) {
    let metadata = fs::metadata(file).unwrap();
    let (len, allocated) = (metadata.len(), metadata.blocks() * 512);
    println!("| {case} | {who} | {} | {} | {seconds:.1} |", len / MIB, allocated / MIB);
}

#[test]
#[ignore = "a table of figures: root, loop devices, zerofree; minutes on a quiet machine"]
fn one_disk_shrunk_by_each() {
    let bytes =
        std::env::var("LUNWAY_COMPARED_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(1024) * MIB;
    println!("| disk | program | file, MiB | allocated, MiB | s |\n|---|---|---|---|---|");
    for case in &CASES {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let text = |name: &str| path(name).to_str().unwrap().to_owned();
        let image = filled(folder.path(), case, bytes);
        let raw = format!("raw:{}", image.display());
        let vhdx = text("disk.vhdx");
        succeed(lunway(&["disk", "create", &vhdx, "--from", &raw, "--block-size", "32M"]));
        row(case.name, "at start", Path::new(&vhdx), 0.0);
        let timed = |work: &dyn Fn()| {
            run(&mut Command::new("sync"));
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        };
        for more in [&[][..], &["--block-size", "1M"]] {
            let copy = text("copy.vhdx");
            run(Command::new("cp").args(["--sparse=always", &vhdx, &copy]));
            let words = [&["disk", "compact", &copy][..], more].concat();
            let seconds = timed(&|| drop(succeed(lunway(&words))));
            row(case.name, &format!("lunway disk compact {}", more.join(" ")), Path::new(&copy), seconds);
            run(Command::new("qemu-img").args(["check", "-q", "-f", "vhdx", &copy]));
        }
        let out = text("out.vhdx");
        let convert = |from: &str, format: &str| {
            run(Command::new("qemu-img").args(["convert", "-f", format, "-O", "vhdx", from, &out]));
        };
        let seconds = timed(&|| convert(&vhdx, "vhdx"));
        row(case.name, "qemu-img convert", Path::new(&out), seconds);
        let seconds = timed(&|| {
            let device = Loop::new(&image, case, bytes * 2);
            device.run(case.zero);
            drop(device);
            convert(image.to_str().unwrap(), "raw");
        });
        row(case.name, &format!("{}, qemu-img convert", case.zero[0]), Path::new(&out), seconds);
    }
}

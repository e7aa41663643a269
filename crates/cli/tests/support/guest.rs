//! A disk with a file system that was filled and emptied, and the tools that judge it.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use lunway_foreign::program;

use super::support::{lunway, succeed};

pub(crate) const MIB: u64 = 1 << 20;
/// Where the partition begins.
pub(crate) const START: u64 = MIB;
/// Bytes of the file system.
pub(crate) const VOLUME: u64 = 192 * MIB;

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Repeatable bytes that no page of is zero.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8 | 1
    };
    (0..len).map(|_| next()).collect()
}

/// A disk image with one partition of ext4, in which 30 small files live and 100 MiB of others were deleted.
pub(crate) struct Guest {
    pub(crate) folder: tempfile::TempDir,
    files: Vec<(String, Vec<u8>)>,
    debugfs: PathBuf,
    e2fsck: PathBuf,
}

impl Guest {
    /// `None` where a program is missing, which is noted.
    pub(crate) fn new() -> Option<Self> {
        let (mke2fs, debugfs, e2fsck) = (program("mke2fs")?, program("debugfs")?, program("e2fsck")?);
        let sfdisk = program("sfdisk")?;
        let guest = Self {
            folder: tempfile::tempdir().unwrap(),
            files: (0..30).map(|n| (format!("small{n}"), noise(n, 20_000 + 9000 * n as usize))).collect(),
            debugfs,
            e2fsck,
        };
        let source = guest.folder.path().join("source");
        fs::create_dir(&source).unwrap();
        // Between two that live, one that is deleted.
        for (n, (name, bytes)) in (0..).zip(&guest.files) {
            fs::write(source.join(name), bytes).unwrap();
            fs::write(source.join(format!("{name}-old")), noise(100 + n, 3_500_000)).unwrap();
        }
        let volume = guest.path("volume.img");
        let size = format!("{}K", VOLUME / 1024);
        run(Command::new(mke2fs).args(["-q", "-F", "-t", "ext4", "-d"]).arg(&source).arg(&volume).arg(size));
        for n in 0..30 {
            run(Command::new(&guest.debugfs).args(["-w", "-R", &format!("rm small{n}-old")]).arg(&volume));
        }
        let disk = fs::File::create(guest.path("disk.img")).unwrap();
        disk.set_len(START + VOLUME + MIB).unwrap();
        let mut table = Command::new(sfdisk);
        let mut table = table.arg("-q").arg(guest.path("disk.img")).stdin(Stdio::piped()).spawn().unwrap();
        let lines = format!("label: gpt\nstart={}, size={}\n", START / 512, VOLUME / 512);
        table.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(table.wait().unwrap().success());
        let mut disk = fs::OpenOptions::new().write(true).open(guest.path("disk.img")).unwrap();
        disk.seek(SeekFrom::Start(START)).unwrap();
        std::io::copy(&mut fs::File::open(&volume).unwrap(), &mut disk).unwrap();
        Some(guest)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A new virtual disk of the image.
    pub(crate) fn vhdx(&self, name: &str, block: &str) -> String {
        let file = self.text(name);
        let image = format!("raw:{}", self.text("disk.img"));
        succeed(lunway(&["disk", "create", &file, "--from", &image, "--block-size", block]));
        file
    }

    /// The file system is clean, and all its files are what they were.
    pub(crate) fn assert_whole(&self, vhdx: &str) {
        if let Some(qemu) = program("qemu-img") {
            // A copy: a log that a kill has left is replayed by QEMU as well.
            let copy = self.text("checked.vhdx");
            fs::copy(vhdx, &copy).unwrap();
            run(Command::new(qemu).args(["check", "-r", "all", "-f", "vhdx", &copy]));
        }
        let raw = self.text("after.img");
        let _ = fs::remove_file(&raw);
        succeed(lunway(&["copy", &format!("readonly:vhdx:{vhdx}"), &format!("raw:{raw}")]));
        self.assert_files(&raw);
    }

    /// The same of a raw image.
    pub(crate) fn assert_files(&self, raw: &str) {
        let (volume, mut disk) = (self.path("after.volume"), fs::File::open(raw).unwrap());
        disk.seek(SeekFrom::Start(START)).unwrap();
        std::io::copy(&mut disk.take(VOLUME), &mut fs::File::create(&volume).unwrap()).unwrap();
        run(Command::new(&self.e2fsck).arg("-fn").arg(&volume));
        let out = self.path("out");
        for (name, bytes) in &self.files {
            let dump = format!("dump {name} {}", out.display());
            run(Command::new(&self.debugfs).args(["-R", &dump]).arg(&volume));
            assert!(fs::read(&out).unwrap() == *bytes, "{name}");
        }
    }
}

//! A device attached as a file, a loop device on it, and ext4 on that. Each puts back what it did when it is dropped.

#![allow(dead_code, reason = "each test program uses its part of this")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{PATIENCE, lunway, succeed, wait};

/// A device mounted in a folder of its own; whatever is left of it goes when dropped.
pub(crate) struct Attached {
    pub(crate) child: Child,
    pub(crate) mount_point: PathBuf,
    /// The line of JSON that it printed.
    pub(crate) announced: String,
}

impl Attached {
    /// `None` where FUSE cannot be had.
    pub(crate) fn start(device: &str, folder: &Path, more: &[&str]) -> Option<Self> {
        Self::start_as(lunway(&["attach", device]), folder, more)
    }

    /// The same where `lunway attach DEVICE` has to be started in another way.
    pub(crate) fn start_as(mut attach: Command, folder: &Path, more: &[&str]) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            lunway_foreign::machine_lacks("/dev/fuse");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            lunway_foreign::program("fusermount3")?;
        }
        let mount_point = folder.join("mounted");
        let _ = fs::create_dir(&mount_point);
        attach.args(["--fuse", mount_point.to_str().unwrap(), "--json"]).args(more);
        let mut child = attach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"file\":"), "{line}");
        Some(Self { child, mount_point, announced: line })
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.mount_point.join("disk")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// How it ends, which must be soon.
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait(&mut self.child, PATIENCE).expect("it ends in time")
    }

    /// SIGTERM, and the end that must come of it.
    pub(crate) fn detach(mut self) {
        self.signal(Signal::TERM);
        let status = self.end();
        assert!(status.success(), "{status}");
        assert!(fs::read_dir(&self.mount_point).unwrap().next().is_none(), "the mount point is free again");
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.mount_point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A loop device on a file.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// `None` where there are none.
    pub(crate) fn on(file: &Path) -> Option<Self> {
        if !Path::new("/dev/loop-control").exists() || !rustix::process::geteuid().is_root() {
            lunway_foreign::machine_lacks("loop devices, for root");
            return None;
        }
        let losetup = lunway_foreign::program("losetup")?;
        let shown = run(
            &losetup,
            [OsStr::new("--find"), "--show".as_ref(), "--direct-io=on".as_ref(), file.as_ref()],
        );
        Some(Self(shown.trim().to_owned()))
    }

    /// Checks the file system on it, which is not mounted.
    pub(crate) fn check(&self) {
        run("e2fsck", ["-f", "-n", &self.0]);
    }

    pub(crate) fn detach(self) {
        run("losetup", ["--detach", &self.0]);
        // It goes when the last one closes it, which is not us.
        let start = Instant::now();
        while !run("losetup", ["--noheadings", "--list", "--output", "NAME"])
            .lines()
            .all(|name| name != self.0)
        {
            assert!(start.elapsed() < PATIENCE, "{} is still there", self.0);
            thread::sleep(Duration::from_millis(20));
        }
        std::mem::forget(self);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// ext4 on a loop device, mounted.
pub(crate) struct Ext4(pub(crate) PathBuf);

impl Ext4 {
    pub(crate) fn mount(device: &Loop, folder: &Path) -> Self {
        let mount_point = folder.join("ext4");
        let _ = fs::create_dir(&mount_point);
        run("mount", ["-t", "ext4", &device.0, mount_point.to_str().unwrap()]);
        Self(mount_point)
    }

    pub(crate) fn unmount(self) {
        run("umount", [&self.0]);
        std::mem::forget(self);
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

pub(crate) fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = S>,
) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    succeed(command)
}

/// Bytes that differ with the seed.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| random().to_le_bytes()).take(len).collect()
}

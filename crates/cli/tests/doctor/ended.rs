//! File systems on loop devices that the kernel has ended writes to, or that have met an error: each is told, and its
//! fix turns the verdict.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{PATIENCE, finish};
use crate::{doctor, findings};

/// A mount namespace with a file system on a loop device over a file on a disk that can run full.
pub(crate) struct Disk {
    folder: TempDir,
    namespace: Child,
    device: String,
}

impl Disk {
    /// `None`: only root may make one, and a machine with loop devices.
    pub(crate) fn new(kind: &str, options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("mnt")).unwrap();
        fs::create_dir_all(folder.path().join("below")).unwrap();
        let mut command = Command::new("unshare");
        // XFS writes 64 MiB of log before its first mount; the image is sparse.
        command.args(["--mount", "sh", "-c"]).arg(
            "mount -t tmpfs -o size=96m none below && truncate -s 400M below/disk && losetup --find --show below/disk && \
             exec sleep 600",
        );
        command.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut namespace = command.spawn().ok()?;
        let mut device = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(namespace.stdout.as_mut()?), &mut device)
            .ok()?;
        let disk = Self { folder, namespace, device: device.trim().to_owned() };
        let force = if kind == "ext4" { "-F" } else { "-f" };
        let script = format!("mkfs.{kind} -q {force} $device && mount {options} $device $mnt");
        (!disk.device.is_empty() && disk.run(&script).status.success()).then_some(disk)
    }

    pub(crate) fn point(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command of lunway in the namespace.
    pub(crate) fn entered(&self, own: &Command) -> Command {
        let mut command = self.enter();
        command.arg(own.get_program()).args(own.get_args()).env("XDG_STATE_HOME", self.folder.path());
        command
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.namespace.id().to_string(), "--"]);
        command
    }

    pub(crate) fn run(&self, script: &str) -> Output {
        let mut command = self.enter();
        command.args(["sh", "-ec", script]).env("device", &self.device).env("mnt", self.point());
        command.env("below", self.folder.path().join("below"));
        finish(command, PATIENCE)
    }

    /// What doctor finds at the file system by the two rules about its faults.
    fn found(&self) -> Vec<Value> {
        let own = doctor(&["--all"], self.folder.path());
        let found = findings(&finish(self.entered(&own), PATIENCE));
        let point = self.point();
        let here = |one: &Value| one["where"].as_str().is_some_and(|place| point == Path::new(place));
        let of_rule = |one: &Value| one["id"] == "mount-read-only" || one["id"] == "mount-errors";
        found.into_iter().filter(|one| here(one) && of_rule(one)).collect()
    }

    /// Rules of those that are broken, with their verdicts.
    fn broken(&self) -> Vec<String> {
        let found = self.found();
        assert!(!found.is_empty(), "no rule speaks of {}", self.point().display());
        let not_ok = found.iter().filter(|one| one["verdict"] != "ok");
        not_ok
            .map(|one| format!("{} {}", one["id"].as_str().unwrap(), one["verdict"].as_str().unwrap()))
            .collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The device goes with the last mount of it.
        if !self.device.is_empty() {
            self.run("losetup -d $device");
        }
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}

/// A write fails at the disk below, which is full.
const FULL: &str = "dd if=/dev/zero of=$below/all bs=1M 2>&1 || true
    dd if=/dev/urandom of=$mnt/new bs=1M count=100 conv=fsync 2>&1 || true; sync -f $mnt || true; rm $below/all";
const TRIGGERED: &str = "echo 1 >/sys/fs/ext4/${device#/dev/}/trigger_fs_error";
const SHUT_DOWN: &str = "xfs_io -x -c shutdown $mnt";

/// Rule, file system, options of its mount, and what breaks it.
const BROKEN: [(&str, &str, &str, &str); 5] = [
    ("mount-read-only bad", "ext4", "-o errors=remount-ro", TRIGGERED),
    ("mount-read-only bad", "ext4", "", SHUT_DOWN),
    ("mount-read-only bad", "xfs", "", SHUT_DOWN),
    ("mount-read-only bad", "btrfs", "", FULL),
    ("mount-errors warn", "ext4", "-o errors=continue", TRIGGERED),
];

#[test]
fn a_file_system_whose_writes_the_kernel_has_ended_is_told_and_its_fix_makes_it_writable() {
    for (rule, kind, options, fault) in BROKEN {
        if lunway_foreign::program(&format!("mkfs.{kind}")).is_none()
            || fault == SHUT_DOWN && lunway_foreign::program("xfs_io").is_none()
        {
            continue;
        }
        let Some(disk) = Disk::new(kind, options) else {
            return lunway_foreign::machine_lacks(&format!("loop devices with {kind} for root"));
        };
        assert_eq!(disk.broken(), Vec::<String>::new(), "{kind} before {fault}");
        let planted = disk.run(fault);
        assert!(planted.status.success(), "{kind}: {fault}: {planted:?}");
        let found = disk.found();
        assert_eq!(disk.broken(), [rule], "{kind} after {fault}: {found:?}");
        let broken = found.iter().find(|one| one["verdict"] != "ok").unwrap();
        assert_eq!(broken["undo"], "", "{broken}");
        let fix = broken["do"].as_str().unwrap();
        let fixed = disk.run(fix);
        assert!(fixed.status.success(), "{kind}: {fix}: {fixed:?}");
        assert_eq!(disk.broken(), Vec::<String>::new(), "{kind} after {fix}");
        let written = disk.run("echo 1 >$mnt/again && sync -f $mnt");
        assert!(written.status.success(), "{kind}: {written:?}");
    }
}

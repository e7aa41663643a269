//! Devices on file systems that are frozen, as for a snapshot of the volume below: a write waits, and no caller does.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use lunway_block::{BlockDevice, Buf, Durability};
use lunway_file::{FileDevice, FileOptions};

/// No call may take longer. A machine that is busy with other tests may not run a thread for a while.
const AT_ONCE: Duration = Duration::from_secs(5);
/// XFS is no smaller. The image is sparse.
const IMAGE: &str = "400M";
/// The file system is thawed after this time, seconds, whatever became of the test: what waits for it cannot be killed.
const WATCHDOG: u32 = 60;

/// A file system on a loop device in a mount namespace of its own. It goes with the namespace.
struct FileSystem {
    _folder: tempfile::TempDir,
    mount: PathBuf,
    namespace: Child,
}

impl FileSystem {
    /// `None`: only root may make one, and a machine with loop devices.
    fn new(kind: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let force = if kind == "ext4" { "-F" } else { "-f" };
        let script = format!(
            "mkdir mnt; truncate -s {IMAGE} disk; mkfs.{kind} -q {force} disk; mount -o loop disk mnt; truncate -s 1M mnt/file
             (sleep {WATCHDOG}; fsfreeze --unfreeze mnt) >/dev/null &
             echo ready; exec sleep 600"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &script]).current_dir(folder.path());
        let mut namespace = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut said = String::new();
        BufReader::new(namespace.stdout.as_mut()?).read_line(&mut said).ok()?;
        let root = PathBuf::from(format!("/proc/{}/root", namespace.id()));
        let mount = root.join(folder.path().strip_prefix("/").unwrap()).join("mnt");
        let made = Self { _folder: folder, mount, namespace };
        (said.trim() == "ready").then_some(made)
    }

    fn fsfreeze(&self, what: &str) -> bool {
        Command::new("fsfreeze").arg(what).arg(&self.mount).status().is_ok_and(|status| status.success())
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}

#[test]
fn a_write_to_a_frozen_file_system_waits_and_its_caller_does_not() {
    for kind in ["ext4", "xfs"] {
        if lunway_foreign::program(&format!("mkfs.{kind}")).is_none()
            || lunway_foreign::program("fsfreeze").is_none()
        {
            continue;
        }
        let Some(file_system) = FileSystem::new(kind) else {
            return lunway_foreign::machine_lacks(&format!("loop devices with {kind} for root"));
        };
        for direct in [false, true] {
            let options = FileOptions { direct, ..FileOptions::default() };
            let device = FileDevice::open(file_system.mount.join("file"), &options).unwrap();
            assert!(file_system.fsfreeze("--freeze"), "{kind}");
            let (sender, called) = mpsc::channel();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.spawn(async move {
                let written = device.write(0, Buf::copy_of(&[7; 4096]).freeze(), Durability::Volatile);
                sender.send(None).unwrap();
                sender.send(Some(written.await)).unwrap();
            });
            let at_once = called.recv_timeout(AT_ONCE);
            let waits = called.recv_timeout(Duration::from_millis(100)).is_err();
            assert!(file_system.fsfreeze("--unfreeze"), "{kind}");
            assert!(at_once == Ok(None), "{kind}, direct {direct}: the caller waits for the file system");
            assert!(waits, "{kind}, direct {direct}: it is frozen");
            called.recv_timeout(AT_ONCE).unwrap().unwrap().unwrap();
        }
    }
}

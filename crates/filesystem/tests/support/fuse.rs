//! Volumes mounted by programs that drive a file system from user space.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{exit, sums, text};

/// Ten seconds of them: a soak met one that was busy in a hundred.
const UNMOUNT_ATTEMPTS: u32 = 100;

/// A mounted volume. Its program stays a child, so that it is known when everything has been written.
pub(crate) struct Fuse {
    folder: tempfile::TempDir,
    program: Child,
}

impl Fuse {
    /// Mounts by `program` with `arguments`, which must make it stay in the foreground; `None`, noted, where FUSE is
    /// not allowed here.
    pub(crate) fn mount(program: &str, arguments: &[&str], volume: &Path) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let found = lunway_foreign::program(program)?;
        let mut command = Command::new(found);
        command.args(arguments).arg(volume).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = command.spawn().expect("it starts");
        let is_mounted = || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
            mounts.lines().any(|line| line.split(' ').nth(1) == folder.path().to_str())
        };
        while !is_mounted() {
            if let Some(status) = program.try_wait().expect("a status") {
                lunway_foreign::machine_lacks(&format!("FUSE mounts ({status})"));
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Self { folder, program })
    }

    pub(crate) fn at(&self) -> &Path {
        self.folder.path()
    }

    /// The sums of all files, by their names below the volume.
    pub(crate) fn contents(&self) -> BTreeMap<PathBuf, (u64, u32)> {
        let inside = |path: PathBuf| path.strip_prefix(self.at()).expect("inside").to_owned();
        sums(self.at()).into_iter().map(|(path, sum)| (inside(path), sum)).collect()
    }

    /// Unmounts; the volume is written when this returns.
    pub(crate) fn close(mut self) {
        // Whoever looks at all mounts of a machine holds this one for a moment.
        for attempt in 0.. {
            let (said, code) = exit("umount", &[text(self.at())]);
            if code == 0 {
                break;
            }
            assert!(attempt < UNMOUNT_ATTEMPTS && said.contains("busy"), "{said}");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(self.program.wait().expect("a status").success(), "the file system's program failed");
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if matches!(self.program.try_wait(), Ok(None)) {
            let _ = exit("umount", &[text(self.at())]);
            let _ = self.program.wait();
        }
    }
}

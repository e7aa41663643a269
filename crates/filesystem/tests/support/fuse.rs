//! Volumes mounted by programs that drive a file system from user space.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{exit, sums, text, unmount};

/// A mounted volume. Its program stays a child, so that it is known when everything has been written.
pub(crate) struct Fuse {
    folder: tempfile::TempDir,
    program: Child,
}

impl Fuse {
    /// Mounts by `program` with `arguments`, which must make it stay in the foreground; `None`, noted, where FUSE is
    /// not allowed here.
    pub(crate) fn mount(program: &str, arguments: &[&str], volume: &Path) -> Option<Self> {
        lunway_foreign::program(program)?;
        let mounted = Self::try_mount(program, arguments, volume);
        mounted.map_err(|said| lunway_foreign::machine_lacks(&format!("FUSE mounts ({said})"))).ok()
    }

    /// The same for a volume that may be one that the program does not mount: what it says then.
    pub(crate) fn try_mount(program: &str, arguments: &[&str], volume: &Path) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let found = lunway_foreign::program(program).ok_or("there is no such program")?;
        let mut command = Command::new(found);
        command.args(arguments).arg(volume).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = command.spawn().expect("it starts");
        let is_mounted = || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
            mounts.lines().any(|line| line.split(' ').nth(1) == folder.path().to_str())
        };
        while !is_mounted() {
            if let Some(status) = program.try_wait().expect("a status") {
                return Err(status.to_string());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { folder, program })
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
        unmount(self.at());
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

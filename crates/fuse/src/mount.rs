//! Mounting, and the end.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, Session};
use lunway_block::{BlockDevice, BlockError};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::disk::{DeviceFile, Disk, FileNode, ROOT};

/// Threads that hear of requests. What they do not answer at once goes to the device's runtime.
const THREADS: usize = 2;
/// Interval between attempts to unmount what is in use.
const BUSY_POLL: Duration = Duration::from_millis(200);
/// Time in which the kernel ends a session whose only mount is gone: a few milliseconds on an idle machine.
const SESSION_END: Duration = Duration::from_secs(1);

/// Reason why a device cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point.
    #[error("cannot mount on {}: {source}", folder.display())]
    Folder {
        /// Mount point.
        folder: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// Mounting would hide what is in it.
    #[error("cannot mount on {}: it is not empty; choose an empty directory", .0.display())]
    NotEmpty(PathBuf),
    /// The kernel or `fusermount3` said no.
    #[error(
        "cannot mount on {}: {source}; /dev/fuse must be there, and who is not root needs fusermount3 (Debian: fuse3)",
        folder.display()
    )]
    Refused {
        /// Mount point.
        folder: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
}

/// Volumes of a disk as they are mounted: each a file, and each with a directory to mount on what is in it.
pub struct Volumes {
    /// Name of the directory that the files are in.
    pub folder: OsString,
    /// Names of the files, and their devices.
    pub files: Vec<(OsString, Arc<dyn BlockDevice>)>,
    /// Names of empty directories.
    pub mount_points: Vec<OsString>,
}

/// A device mounted as `FOLDER/NAME`, or the [`Volumes`] of one.
///
/// [`mount`](Self::mount), then [`ended`](Self::ended) or [`detach`](Self::detach). Dropped before it has ended it is
/// taken from the folder at once, and programs that have the file open lose it when the process ends.
///
/// A process that is killed leaves a dead mount behind (“transport endpoint is not connected”), which the next one at
/// this place clears away, or `umount`. What programs had synced is on the device, what had been acknowledged has been
/// handed to it: nothing waits in this process.
pub struct Mounted {
    folder: PathBuf,
    /// Path of the first file.
    file: PathBuf,
    files: Vec<DeviceFile>,
    /// Whether other file systems may be mounted on its directories.
    has_mount_points: bool,
    /// Whether it is taken from the folder. Copies of the mount may be left in other mount namespaces.
    is_unmounted: bool,
    /// Has no sender any more when the session has ended.
    session: watch::Receiver<()>,
}

impl Mounted {
    /// Mounts `device` on an empty directory. Must be called on the runtime that carries the device.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        folder: &Path,
        name: impl Into<OsString>,
    ) -> Result<Self, MountError> {
        let (mut entries, name, file) = (FileNode::root(), name.into(), DeviceFile::new(device));
        entries.push(FileNode::file(ROOT, name.clone(), file.clone()));
        Self::entries(entries, vec![file], Path::new(&name), folder)
    }

    /// The same for volumes.
    pub fn mount_volumes(volumes: Volumes, folder: &Path) -> Result<Self, MountError> {
        let (mut entries, mut files) = (FileNode::root(), Vec::new());
        let inside = entries.len();
        let first = volumes.files.first().map_or(OsStr::new("."), |(name, _)| name);
        let first = Path::new(&volumes.folder).join(first);
        entries.push(FileNode::folder(ROOT, volumes.folder));
        for (name, device) in volumes.files {
            let file = DeviceFile::new(device);
            entries.push(FileNode::file(inside, name, file.clone()));
            files.push(file);
        }
        entries.extend(volumes.mount_points.into_iter().map(|name| FileNode::folder(ROOT, name)));
        let mut mounted = Self::entries(entries, files, &first, folder)?;
        mounted.has_mount_points = true;
        Ok(mounted)
    }

    fn entries(
        entries: Vec<FileNode>,
        files: Vec<DeviceFile>,
        first: &Path,
        folder: &Path,
    ) -> Result<Self, MountError> {
        let failed = |source| MountError::Folder { folder: folder.to_owned(), source };
        clear_away(folder).map_err(failed)?;
        // What the end needs when the working directory is another.
        let folder = fs::canonicalize(folder).map_err(failed)?;
        if fs::read_dir(&folder).map_err(failed)?.next().is_some() {
            return Err(MountError::NotEmpty(folder));
        }
        let file = folder.join(first);
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let disk = Disk::new(entries, Handle::current(), owner);
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("lunway".to_owned()),
            MountOption::Subtype("lunway".to_owned()),
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::NoExec,
            MountOption::DefaultPermissions,
        ];
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let refused = |source| MountError::Refused { folder: folder.clone(), source };
        let session = Session::new(disk, &folder, &config).map_err(refused)?;
        let (alive, ended) = watch::channel(());
        // Not one of the runtime's threads: its end would wait for them.
        let run = move || {
            let _alive = alive;
            if let Err(error) = session.run() {
                tracing::error!("the FUSE session ended: {error}");
            }
        };
        thread::Builder::new().name("fuse".to_owned()).spawn(run).map_err(refused)?;
        let resized = file.clone();
        if let Some(first) = files.first() {
            first.device().on_resize(Box::new(move |_| look_at(resized.clone())));
        }
        Ok(Self { file, folder, files, has_mount_points: false, is_unmounted: false, session: ended })
    }

    /// The directory that it is mounted on, as a whole path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns `true` if no program has a file of it open: no loop device and no mount either.
    pub fn is_unused(&self) -> bool {
        self.files.iter().all(DeviceFile::is_unused)
    }

    /// Waits until it is unmounted.
    pub async fn ended(&mut self) {
        // Nothing is ever sent: it waits until the sender is gone.
        while self.session.changed().await.is_ok() {}
    }

    fn has_ended(&self) -> bool {
        self.session.has_changed().is_err()
    }

    /// Unmounts as soon as it is not used any longer, and flushes the device. `busy` is called once where somebody
    /// does.
    ///
    /// Mount namespaces made meanwhile (containers, `unshare -m`) have copies of the mount, and the session lives on
    /// with them. It is left to the end of the process unless a program there has the file open.
    pub async fn detach(mut self, busy: impl FnOnce()) -> Result<(), BlockError> {
        let mut busy = Some(busy);
        while !self.has_ended() {
            let reason = match self.is_unmounted {
                false => take_off(&self.folder, false).err().map(|error| error.to_string()),
                true if self.is_unused() => break,
                true => Some("open in another mount namespace".to_owned()),
            };
            match reason {
                None => {
                    self.is_unmounted = true;
                    let _ = tokio::time::timeout(SESSION_END, self.ended()).await;
                }
                Some(reason) => {
                    if let Some(busy) = busy.take() {
                        tracing::info!(folder = %self.folder.display(), "still in use: {reason}");
                        busy();
                    }
                    tokio::time::sleep(BUSY_POLL).await;
                }
            }
        }
        for file in self.files.iter().filter(|file| !file.device().geometry().read_only) {
            file.device().flush().await?;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.has_ended() || self.is_unmounted {
            return;
        }
        if self.has_mount_points {
            // What is mounted on it reads through this process while it is taken off: a thread of this process that
            // waited for that would keep /dev/fuse open, and neither would ever end.
            return drop(unmounting(&self.folder, true).stderr(Stdio::null()).spawn());
        }
        if let Err(error) = take_off(&self.folder, true) {
            tracing::warn!(folder = %self.folder.display(), "cannot be unmounted: {error}");
        }
    }
}

/// Has the kernel learn the file's new size. It asks whenever a program looks at the file, and otherwise never: a loop
/// device that is told to take the new size (`losetup --set-capacity`) takes the one that the kernel knows.
fn look_at(file: PathBuf) {
    // On a thread, as this file system answers. Where there is none, the next program that looks has the same effect.
    let _ =
        thread::Builder::new().name("fuse-resized".to_owned()).spawn(move || fs::metadata(file).map(drop));
}

/// Takes mounts off whose process is gone: there may be one on another.
fn clear_away(folder: &Path) -> io::Result<()> {
    loop {
        match fs::metadata(folder) {
            Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
                take_off(folder, true)?;
                let folder = folder.display();
                tracing::warn!(
                    "{folder}: a mount was taken off whose process had been killed, with all mounted on it"
                );
            }
            Err(error) => return Err(error),
            Ok(_) => return Ok(()),
        }
    }
}

/// Unmounts; who is not root by the program that is there for that.
fn take_off(folder: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(folder, flags) {
        Err(Errno::PERM) => unmount_by_program(folder, lazily),
        done => Ok(done?),
    }
}

/// Unmounts, also `lazily` what is in use, by a process of its own: for what is mounted on a directory of [`Volumes`],
/// and may be carried by this process.
///
/// # Errors
///
/// What the program says.
pub fn unmount_by_program(folder: &Path, lazily: bool) -> io::Result<()> {
    let output = unmounting(folder, lazily).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn unmounting(folder: &Path, lazily: bool) -> Command {
    let (program, option) = match (rustix::process::geteuid().is_root(), lazily) {
        (true, true) => ("umount", Some("-l")),
        (true, false) => ("umount", None),
        (false, true) => ("fusermount3", Some("-uz")),
        (false, false) => ("fusermount3", Some("-u")),
    };
    let mut command = Command::new(program);
    command.args(option).arg(folder).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

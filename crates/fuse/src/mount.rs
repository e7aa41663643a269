//! Mounting, and the end.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, Session};
use lunway_block::{BlockDevice, BlockError, Bytes};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::disk::Disk;
use crate::handles::Handles;

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

/// A device mounted as `FOLDER/NAME`.
///
/// [`mount`](Self::mount), then [`ended`](Self::ended) or [`detach`](Self::detach). Dropped before it has ended it is
/// taken from the folder at once, and programs that have the file open lose it when the process ends.
///
/// A process that is killed leaves a dead mount behind (“transport endpoint is not connected”), which the next one at
/// this place clears away, or `umount`. What programs had synced is on the device, what had been acknowledged has been
/// handed to it: nothing waits in this process.
pub struct Mounted {
    folder: PathBuf,
    file: PathBuf,
    device: Arc<dyn BlockDevice>,
    handles: Arc<Handles>,
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
        let failed = |source| MountError::Folder { folder: folder.to_owned(), source };
        clear_away(folder).map_err(failed)?;
        // What the end needs when the working directory is another.
        let folder = fs::canonicalize(folder).map_err(failed)?;
        if fs::read_dir(&folder).map_err(failed)?.next().is_some() {
            return Err(MountError::NotEmpty(folder));
        }
        let name = name.into();
        let file = folder.join(&name);
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let handles = Arc::new(Handles::new(device.clone()));
        let disk = Disk::new(name, Bytes::new(device.clone()), handles.clone(), Handle::current(), owner);
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
        device.on_resize(Box::new(move |_| look_at(resized.clone())));
        Ok(Self { file, folder, device, handles, is_unmounted: false, session: ended })
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
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
                true if self.handles.is_empty() => break,
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
        match self.device.geometry().read_only {
            true => Ok(()),
            false => self.device.flush().await,
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.has_ended()
            && !self.is_unmounted
            && let Err(error) = take_off(&self.folder, true)
        {
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
        Err(Errno::PERM) => {
            let output =
                Command::new("fusermount3").arg(if lazily { "-uz" } else { "-u" }).arg(folder).output()?;
            match output.status.success() {
                true => Ok(()),
                false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            }
        }
        done => Ok(done?),
    }
}

//! A point of a backup as a device.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;

use lunway_backup::{BackupError, Guids, Holder, HostFolder, MountedPoint, PointMount};
use lunway_block::BlockDevice;
use lunway_block::spec::{PointName, PointWrites};
use lunway_file::Closed;
use lunway_vhdx::format::Guid;
use lunway_vhdx_device::{VhdxDevice, VhdxDeviceOpenError, random_guids};

use crate::proven::Proven;

/// Reason why a point could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PointOpenError {
    /// The folder is not there: as a rule its share is not mounted.
    #[error("the folder cannot be used: {0}; see that its share is mounted")]
    Folder(#[source] io::Error),
    /// No such point, or one that is not whole.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The file that takes the writes for good.
    #[error("{}: {why}", file.display())]
    Kept {
        /// The file.
        file: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The kernel has no random numbers.
    #[error("asking for random numbers: {0}")]
    Random(#[source] io::Error),
    /// A VHDX file of the point.
    #[error(transparent)]
    Vhdx(#[from] VhdxDeviceOpenError),
}

/// The mount of an open point. It ends on a thread when this is dropped: the folder may not answer.
pub(crate) struct Held(Option<PointMount>);

impl Held {
    /// Of this mount, if prunes could be told.
    pub(crate) fn of(mount: Option<PointMount>) -> Self {
        Self(mount)
    }

    /// Ends the mount.
    pub(crate) fn end(mut self) -> Closed {
        self.begin_end()
    }

    fn begin_end(&mut self) -> Closed {
        let (sender, ended) = mpsc::channel();
        if let Some(mount) = self.0.take() {
            let end = move || {
                drop(mount);
                let _ = sender.send(());
            };
            // Without a thread the mount ends here.
            drop(thread::Builder::new().name("point-end".to_owned()).spawn(end));
        }
        Closed::new(ended)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.begin_end());
    }
}

/// This process as others see it, and GUIDs for the files that it makes.
pub(crate) fn reader() -> Result<(Holder, Guids), PointOpenError> {
    let mut guids = random_guids().map_err(|error| PointOpenError::Random(io::Error::other(error)))?;
    let holder = Holder::this_process(guids.next().to_digits() as u64);
    // The kernel does not stop once it has given some.
    Ok((holder, Arc::new(|| random_guids().unwrap_or_else(|_| Box::new(|| Guid::ZERO)))))
}

/// Opens a point of a chain. Prunes wait for the end of the mount, if there is one. Blocks.
pub(crate) fn open(
    name: &PointName,
    read_only: bool,
) -> Result<(Arc<dyn BlockDevice>, Held), PointOpenError> {
    let (holder, more) = reader()?;
    let folder = Arc::new(HostFolder::open(&name.folder).map_err(PointOpenError::Folder)?);
    let takes_writes = name.writes == PointWrites::Discarded && !read_only;
    let mounted = MountedPoint::begin(&folder, &name.point, takes_writes, &holder, &more)?;
    if mounted.mount.is_none() {
        let folder = folder.path().display();
        tracing::warn!(
            "{folder} cannot be written: a prune is not told of this mount, and may replace the files under it"
        );
    }
    let device = Arc::new(VhdxDevice::open(&mounted.file, !takes_writes)?);
    Ok((Arc::new(Proven::new(device, mounted.content)), Held(mounted.mount)))
}

//! Change tracking of a logical unit: its track file, and what identifies its disk.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;
use lunway_block::spec::DeviceSpec;
use lunway_track::{Backing, Identify, Tracked, Tracking, Tuning};

use super::opening::OpenedDevice;
use crate::config::{LunConfig, TargetConfig};
use crate::state::file_name;

/// How long the track file of a logical unit that is being removed is waited for: closing a device that answers takes
/// less than a second.
const LOCK_TIME: Duration = Duration::from_secs(3);
/// How often it is tried.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Why the changes of a disk cannot be tracked.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrackError {
    /// There is no folder for the file.
    #[error("track needs a state directory: set state_dir in the configuration")]
    NoFolder,
    /// The file cannot be made, read or written.
    #[error("the track file {}: {source}; repair that, or leave track out", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// The track file of a logical unit that is being opened.
pub(super) struct Track {
    path: PathBuf,
    identify: Identify,
    /// What its disk was before it was opened.
    backing: Backing,
}

impl Track {
    /// The file in `folder` that has the names of target and logical unit.
    pub(super) fn of(
        folder: Option<&Path>,
        target: &TargetConfig,
        lun: &LunConfig,
    ) -> Result<Self, TrackError> {
        let folder = folder.ok_or(TrackError::NoFolder)?;
        let path = track_file(folder, target, lun);
        let store = match lun.device.spec().leaf() {
            DeviceSpec::File { path, .. } | DeviceSpec::Vhdx { path } => Some(path.clone()),
            _ => None,
        };
        let identify: Identify = Arc::new(move |leaf| {
            leaf.or(store.as_deref()).and_then(|path| backing(path).ok()).unwrap_or_default()
        });
        Ok(Self { path, identify, backing: Backing::default() })
    }

    /// Removes the file of a logical unit that is written without being tracked: after a crash nothing else would show
    /// that the file is not of this state of the disk.
    pub(super) fn forget(folder: &Path, target: &TargetConfig, lun: &LunConfig) -> Result<(), TrackError> {
        let path = track_file(folder, target, lun);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(TrackError::File { path, source }),
            _ => Ok(()),
        }
    }

    /// Looks what identifies the disk, which opening it may change.
    pub(super) async fn look(&mut self) {
        let identify = Arc::clone(&self.identify);
        self.backing = tokio::task::spawn_blocking(move || identify(None)).await.unwrap_or_default();
    }

    /// Puts the layer around the open device.
    pub(super) async fn around(
        self,
        opened: OpenedDevice,
    ) -> Result<(OpenedDevice, Option<Tracking>), TrackError> {
        let Self { path, identify, backing } = self;
        let OpenedDevice { device, close } = opened;
        let file = path.clone();
        let layer = tokio::task::spawn_blocking(move || {
            let options =
                File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&file);
            Tracked::open(device, Box::new(locked(options?)?), &backing, identify, Tuning::default())
        });
        let layer = layer.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let layer = Arc::new(layer.map_err(|source| TrackError::File { path: path.clone(), source })?);
        let tracking = layer.tracking();
        if let (_, _, Some(why)) = tracking.epochs().await {
            tracing::warn!(track = %path.display(), "{why}");
        }
        let device: Arc<dyn BlockDevice> = Arc::clone(&layer) as _;
        let closing = async move {
            if let Err(error) = layer.close().await {
                tracing::error!("closing the device: {error}");
            }
            drop(layer);
            if let Some(close) = close {
                close.await;
            }
        };
        Ok((OpenedDevice { device, close: Some(Box::pin(closing)) }, Some(tracking)))
    }
}

/// Two logical units of one number, of which one replaces the other, must not write one file. One that is being closed
/// is waited for.
fn locked(file: File) -> io::Result<File> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIME => std::thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => {
                let why = "the logical unit that it belongs to is still served; remove that first";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
        }
    }
}

fn track_file(folder: &Path, target: &TargetConfig, lun: &LunConfig) -> PathBuf {
    folder.join(file_name(&format!("{}/{}", target.name, lun.id), "track"))
}

/// What identifies a file: its place for as long as it is open, its length and the time of its last change after that.
/// Nothing shows whether others have written to a block device.
fn backing(path: &Path) -> io::Result<Backing> {
    let file = path.metadata()?;
    if !file.is_file() {
        return Ok(Backing::default());
    }
    let bytes = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Ok(Backing {
        lasting: bytes(&[file.dev(), file.ino()]),
        exact: bytes(&[file.size(), file.mtime() as u64, file.mtime_nsec() as u64]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_another_after_a_write_and_after_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, "one").unwrap();
        let first = backing(&path).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, "two").unwrap();
        let second = backing(&path).unwrap();
        assert_eq!(first.lasting, second.lasting);
        assert_ne!(first.exact, second.exact);
        std::fs::write(folder.path().join("other"), "two").unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        assert_ne!(backing(&path).unwrap().lasting, first.lasting);
        assert_eq!(backing(folder.path()).unwrap(), Backing::default());
    }
}

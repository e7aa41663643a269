//! The file behind a new logical unit, made by the daemon: it belongs to the user that serves it, and stands where that
//! user can see it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use lunway_block::spec::DeviceSpec;

use crate::error::ApiError;

/// Every device's size is a multiple of this, bytes.
const SECTOR: u64 = 512;

/// A sparse file that reads as zeroes. It is removed when this is dropped, unless it is [kept](Self::keep).
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    kept: AtomicBool,
}

impl NewFile {
    /// Path at which a device's file would be made; an error for devices that are not raw files.
    pub(crate) fn path_of(device: &DeviceSpec) -> Result<PathBuf, ApiError> {
        match device.leaf() {
            DeviceSpec::File { path, .. } if path.is_absolute() => Ok(path.clone()),
            DeviceSpec::File { path, .. } => Err(ApiError::bad_request(format!(
                "create: name the file {} by its whole path",
                path.display()
            ))),
            DeviceSpec::Vhdx { path } => Err(ApiError::bad_request(format!(
                "only raw files are created with a LUN: create {} with `lunway disk create`, then add it",
                path.display()
            ))),
            _ => Err(ApiError::bad_request(format!(
                "only raw files are created with a LUN, and {device} is not one: add it without a size"
            ))),
        }
    }

    /// Makes it. A file that is there already is an error.
    pub(crate) fn create(path: &Path, size: u64) -> Result<Self, ApiError> {
        let name = path.display();
        if size == 0 || !size.is_multiple_of(SECTOR) {
            return Err(ApiError::bad_request(format!(
                "create: {size} bytes are not whole sectors of {SECTOR}: give a multiple, such as 10G"
            )));
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                ApiError::conflict(format!("{name} already exists and was not changed")).decided_by("create")
            }
            _ => ApiError::unprocessable(format!("cannot create {name}: {error}")),
        })?;
        let new = Self { path: path.to_owned(), kept: AtomicBool::new(false) };
        let made = file.set_len(size).and_then(|()| file.sync_all());
        let folder = path.parent().unwrap_or(Path::new("/"));
        let made = made.and_then(|()| File::open(folder)).and_then(|folder| folder.sync_all());
        made.map_err(|error| ApiError::unprocessable(format!("cannot create {name}: {error}")))?;
        Ok(new)
    }

    /// Keeps the file.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !*self.kept.get_mut()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(
                "{} was made for a LUN that is not served, and cannot be removed: {error}",
                self.path.display()
            );
        }
    }
}

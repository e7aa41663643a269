//! Reason why a device could not be opened.

use std::io;
use std::path::PathBuf;

use lunway_block::spec::SpecError;

use crate::PointOpenError;

/// Reason why a device could not be opened: a sentence that names the device, without its secret, and says what would
/// help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceOpenError {
    /// The text is no device.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A VHDX file, or one of its parents.
    #[error(transparent)]
    Vhdx(#[from] lunway_vhdx_device::VhdxDeviceOpenError),
    /// A device on which no VHDX lies, or one that cannot be used.
    #[error("cannot open the VHDX on {device}: {source}")]
    VhdxOn {
        /// The device, without secrets.
        device: String,
        /// Error from the VHDX.
        source: lunway_vhdx::VhdxOpenError,
    },
    /// A VHD or qcow2 file, or one of its parents.
    #[error(transparent)]
    Image(#[from] lunway_image_device::ImageDeviceOpenError),
    /// A VHDX, VHD or qcow2 file past the page cache.
    #[error("cannot open {} past the page cache: that is possible for raw images alone", .path.display())]
    ContainerDirect {
        /// The file.
        path: PathBuf,
    },
    /// No thread to open a file on.
    #[error("cannot open {}: {source}", .path.display())]
    NoThread {
        /// The file.
        path: PathBuf,
        /// Underlying error.
        source: lunway_block::BlockError,
    },
    /// A size or sector that memory cannot have.
    #[error("cannot make {device}: {source}")]
    Memory {
        /// The device as it was named.
        device: String,
        /// Underlying error.
        source: lunway_memory::ShapeError,
    },
    /// A file or block device.
    #[error(transparent)]
    File(#[from] lunway_file::FileOpenError),
    /// A file that was to be made.
    #[error("cannot create {}: {source}", .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// An iSCSI address that is none.
    #[error("cannot use {device}: {source}")]
    Url {
        /// The address without secrets.
        device: String,
        /// Error in the address.
        source: Box<lunway_iscsi_paths::AddressError>,
    },
    /// A file of paths that is none.
    #[error(transparent)]
    PathsFile(Box<lunway_iscsi_paths::PathsFileError>),
    /// A disk over several paths that could not be opened.
    #[error("cannot open {device}: {source}")]
    Multipath {
        /// The address without secrets, or the file.
        device: String,
        /// Underlying error.
        source: Box<lunway_iscsi_paths::PathsOpenError>,
    },
    /// A logical unit that could not be reached.
    #[error("cannot open {device}: {source}")]
    Iscsi {
        /// The address without secrets.
        device: String,
        /// Underlying error.
        source: lunway_initiator::IscsiOpenError,
    },
    /// An image of a Ceph cluster.
    #[error(transparent)]
    Rbd(#[from] lunway_rbd::RbdOpenError),
    /// A point of a backup.
    #[error("cannot open {device}: {source}")]
    Point {
        /// The point as it was named.
        device: String,
        /// Underlying error.
        source: PointOpenError,
    },
    /// An export of an NBD server.
    #[error(transparent)]
    Nbd(#[from] lunway_nbd::ConnectError),
    /// A logical unit or an export has the sectors that its server gave it.
    #[error(
        "{device} has sectors of {found} bytes, which cannot be changed to {wanted} here: its target decides"
    )]
    Sector {
        /// The address without secrets.
        device: String,
        /// Sector size requested, bytes.
        wanted: u32,
        /// Sector size of the device, bytes.
        found: u32,
    },
}

impl DeviceOpenError {
    /// Returns `true` if that may pass by itself within a minute.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Rbd(error) if error.may_pass())
    }
}

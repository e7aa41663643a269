//! Options of a device.

use std::path::PathBuf;

/// Options for opening an image.
#[derive(Clone, Debug)]
pub struct RbdOptions {
    /// Opens it for reading, without its lock.
    pub read_only: bool,
    /// Logical sector, bytes: 512 or 4096.
    pub sector: u32,
    /// When the cluster has fenced the client, opens the image again with a new one, if no other client holds its lock:
    /// for a device that is served to hosts, which repeat what was not answered. Others end with an error.
    pub renew: bool,
    /// One file that has all functions of librados and librbd, for tests; `None`: those that are installed.
    pub library: Option<PathBuf>,
}

impl Default for RbdOptions {
    fn default() -> Self {
        Self { read_only: false, sector: 512, renew: false, library: None }
    }
}

//! The end of a raw file that is no whole sector, and so no part of the disk.

use std::fmt;
use std::path::{Path, PathBuf};

use lunway_block::spec::DeviceSpec;

/// The last bytes of a raw file, which are less than a sector: a device has only whole ones.
#[derive(Debug)]
pub(crate) struct Tail {
    file: PathBuf,
    /// Length of the file, and of its tail, bytes.
    len: u64,
    tail: u64,
}

impl Tail {
    /// The tail of a device of `size` bytes; `None`: it has none, or is no raw file.
    pub(crate) fn of(device: &DeviceSpec, size: u64) -> Option<Self> {
        let DeviceSpec::File { path, .. } = device.leaf() else { return None };
        // Of a VHDX in it, the sizes are others.
        if within_vhdx(device) {
            return None;
        }
        let file = Path::metadata(path).ok().filter(|file| file.is_file() && file.len() > size)?;
        Some(Self { file: path.clone(), len: file.len(), tail: file.len() - size })
    }

    /// Says on standard error that what is read lacks it.
    pub(crate) fn tell(device: &DeviceSpec, size: u64) {
        if let Some(tail) = Self::of(device, size) {
            eprintln!("lunway: {tail} and is left out");
        }
    }
}

fn within_vhdx(device: &DeviceSpec) -> bool {
    matches!(device, DeviceSpec::VhdxOn { .. }) || device.inner().is_some_and(within_vhdx)
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, len, tail } = self;
        write!(f, "{} has {len} bytes, and its end of {tail} bytes is no whole sector", file.display())
    }
}

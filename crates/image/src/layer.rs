//! Layer: one file of a disk.

use std::io;

use lunway_vhdx::Storage;

use crate::layer_info::{ImageKind, LayerInfo, LayerSource};
use crate::qcow2::Qcow2;
use crate::vhd::Vhd;

/// Layer of a disk: one file.
pub(crate) enum Layer<S> {
    /// Boxed: it keeps its footer.
    Vhd(Box<Vhd<S>>),
    Qcow2(Qcow2<S>),
    Raw(Raw<S>),
}

/// The bytes of a file as they are: a parent of qcow2 files.
pub(crate) struct Raw<S> {
    pub(crate) storage: S,
    pub(crate) len: u64,
}

impl<S: Storage> Layer<S> {
    pub(crate) fn info(&self) -> LayerInfo {
        match self {
            Self::Vhd(vhd) => vhd.info(),
            Self::Qcow2(qcow2) => qcow2.info(),
            Self::Raw(raw) => LayerInfo { kind: ImageKind::Fixed, size: raw.len, block: 0, id: None },
        }
    }

    /// Returns the source of the first bytes of a range within the disk, and their number: at least one.
    pub(crate) fn locate(&self, offset: u64, len: u64) -> io::Result<(u64, LayerSource)> {
        match self {
            Self::Vhd(vhd) => vhd.locate(offset, len),
            Self::Qcow2(qcow2) => qcow2.locate(offset, len),
            Self::Raw(_) => Ok((len, LayerSource::File(offset))),
        }
    }

    /// Fills `buf` with what `source` says.
    pub(crate) fn read(&self, source: LayerSource, buf: &mut [u8]) -> io::Result<()> {
        match (self, source) {
            (_, LayerSource::Zero | LayerSource::Absent) => {
                buf.fill(0);
                Ok(())
            }
            (Self::Qcow2(qcow2), LayerSource::Compressed(compressed)) => qcow2.decompress(compressed, buf),
            (Self::Qcow2(qcow2), LayerSource::File(at)) => qcow2.read(at, buf),
            (Self::Vhd(vhd), LayerSource::File(at)) => vhd.storage().read_at(at, buf),
            (Self::Raw(raw), LayerSource::File(at)) => raw.storage.read_at(at, buf),
            (_, LayerSource::Compressed(_)) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

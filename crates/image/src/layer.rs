//! Layer: one file of a disk.

use std::io;

use lunway_vhdx::Storage;
use lunway_vhdx::format::Guid;

use crate::qcow2::Qcow2;
use crate::vhd::Vhd;

/// Source of a range's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerSource {
    /// Bytes of the file, from this offset.
    File(u64),
    /// A compressed cluster of the file.
    Compressed(Compressed),
    /// Zeroes, whatever a parent has.
    Zero,
    /// Nothing: what the parent has, zeroes without one.
    Absent,
}

/// A compressed cluster (qcow2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// Offset of its bytes in the file.
    pub offset: u64,
    /// Upper limit of its length, bytes: what follows the end of the stream is not part of it.
    pub len: u64,
    /// Offset in the cluster at which the range begins.
    pub within: u64,
}

/// Kind of layer: how a file holds its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// All of it, in order.
    Fixed,
    /// Only what was written.
    Dynamic,
    /// Only what differs from a parent.
    Differencing,
}

/// A file, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInfo {
    /// Kind of layer.
    pub kind: ImageKind,
    /// Bytes of the disk.
    pub size: u64,
    /// The unit of allocation, bytes; 0 where there is none.
    pub block: u64,
    /// The identity of the disk, where the format has one.
    pub id: Option<Guid>,
}

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

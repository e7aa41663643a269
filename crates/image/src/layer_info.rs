//! Properties of a layer: its kind and size, and where the bytes of a range lie.

use lunway_vhdx::format::Guid;

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

//! A device in pieces, in order.

use std::collections::VecDeque;

use lunway_block::{BlockDevice, BlockError, Extent, ExtentKind, Geometry};

use crate::skip::Skipped;

/// Longest piece of data, bytes: where a network with some delay is as fast as it gets.
pub(crate) const DATA_MAX: u64 = 1 << 20;
/// Longest piece of zeroes, bytes: so that progress is seen where the destination must write them.
const ZERO_MAX: u64 = 64 << 20;
/// Extents are asked for in windows of this, bytes, so that the answer stays small.
const WINDOW: u64 = 1 << 30;

/// Content of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// To be read.
    Data,
    /// Known to be zeroes without reading.
    Zero,
    /// Data that are not needed: as zeroes.
    Skipped,
}

/// A part of a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) content: Content,
}

/// Cuts a device into pieces that follow each other without gaps. All begin at whole sectors of `align` bytes, and all
/// but the last end there.
pub(crate) struct Pieces<'a> {
    device: &'a dyn BlockDevice,
    skipped: &'a Skipped,
    align: u64,
    position: u64,
    /// End of the pieces: a device that grows meanwhile has no more of them.
    end: u64,
    ready: VecDeque<Piece>,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(device: &'a dyn BlockDevice, skipped: &'a Skipped, align: u32, end: u64) -> Self {
        Self { device, skipped, align: align.into(), position: 0, end, ready: VecDeque::new() }
    }

    /// Bytes of all pieces.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Offset up to which the device was examined.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, BlockError> {
        let geometry = self.device.geometry();
        if self.ready.is_empty() && self.position < self.end {
            let len = (self.end - self.position).min(WINDOW);
            let extents = match self.device.extents(self.position, len, usize::MAX).await {
                Ok(extents) => extents,
                // A device that cannot say what is where is read.
                Err(BlockError::Unsupported) => {
                    vec![Extent { offset: self.position, len, kind: ExtentKind::Data }]
                }
                Err(error) => return Err(error),
            };
            self.cut(&extents, self.position + len, &geometry);
        }
        Ok(self.ready.pop_front())
    }

    /// Queues the pieces from `position` to `end`: what is zero or skipped is narrowed to whole sectors, the rest is
    /// data.
    fn cut(&mut self, extents: &[Extent], end: u64, geometry: &Geometry) {
        let skipped = self.skipped;
        for (extent, skipped) in extents.iter().flat_map(|extent| skipped.parts(extent)) {
            let content = match skipped {
                true => Content::Skipped,
                false if reads_as_zeroes(extent.kind, geometry) => Content::Zero,
                false => continue,
            };
            let from = extent.offset.max(self.position).next_multiple_of(self.align);
            let to = if extent.end() >= end { end } else { extent.end() / self.align * self.align };
            if from < to {
                self.queue(from, Content::Data);
                self.queue(to, content);
            }
        }
        self.queue(end, Content::Data);
    }

    fn queue(&mut self, end: u64, content: Content) {
        let max = if content == Content::Data { DATA_MAX } else { ZERO_MAX };
        while self.position < end {
            let offset = self.position;
            // Up to the next multiple, so that pieces stay aligned however extents lie.
            let len = (max - offset % max).min(end - offset);
            self.ready.push_back(Piece { offset, len, content });
            self.position += len;
        }
    }
}

/// Returns `true` if an extent can be taken for zeroes without reading it.
pub(crate) fn reads_as_zeroes(kind: ExtentKind, geometry: &Geometry) -> bool {
    match kind {
        ExtentKind::Data => false,
        ExtentKind::Zero => true,
        ExtentKind::Unallocated => geometry.unmap.zeroes(),
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::ExtentKind::{Data, Unallocated, Zero};
    use lunway_block::Unmap;
    use lunway_memory::RamDisk;

    use super::*;

    fn cut(extents: &[(u64, u64, ExtentKind)], size: u64, zeroes: bool) -> Vec<(u64, u64, Content)> {
        let disk = RamDisk::new(4096, 512).unwrap();
        let skipped = Skipped::default();
        let mut pieces = Pieces::new(&disk, &skipped, 4096, disk.geometry().size);
        let extents: Vec<_> =
            extents.iter().map(|&(offset, len, kind)| Extent { offset, len, kind }).collect();
        let granularity = 512;
        let unmap = if zeroes { Unmap::Zeroes { granularity } } else { Unmap::Frees { granularity } };
        let geometry = Geometry { unmap, ..Geometry::plain(size) };
        pieces.cut(&extents, size, &geometry);
        pieces.ready.iter().map(|piece| (piece.offset, piece.len, piece.content)).collect()
    }

    #[test]
    fn zeroes_are_narrowed_to_whole_sectors_and_the_rest_is_data() {
        let extents = [(0, 512, Data), (512, 12_288, Zero), (12_800, 4096, Data), (16_896, 512, Zero)];
        let expected = [(0, 4096, Content::Data), (4096, 8192, Content::Zero), (12_288, 5120, Content::Data)];
        assert_eq!(cut(&extents, 17_408, true), expected);
    }

    #[test]
    fn zeroes_reach_to_the_very_end() {
        assert_eq!(cut(&[(0, 4608, Zero)], 4608, true), [(0, 4608, Content::Zero)]);
    }

    #[test]
    fn nothing_counts_as_zeroes_only_where_it_reads_as_zeroes() {
        assert_eq!(cut(&[(0, 8192, Unallocated)], 8192, true), [(0, 8192, Content::Zero)]);
        assert_eq!(cut(&[(0, 8192, Unallocated)], 8192, false), [(0, 8192, Content::Data)]);
    }

    #[test]
    fn long_data_is_cut_at_multiples() {
        let size = 2 * DATA_MAX + 4096;
        let expected = [
            (0, 4096, Content::Zero),
            (4096, DATA_MAX - 4096, Content::Data),
            (DATA_MAX, DATA_MAX, Content::Data),
            (2 * DATA_MAX, 4096, Content::Data),
        ];
        assert_eq!(cut(&[(0, 4096, Zero), (4096, size - 4096, Data)], size, true), expected);
    }
}

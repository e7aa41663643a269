//! Allocation bitmaps that are files of their own volume: $Bitmap of NTFS, the allocation bitmap of exFAT.

use std::ops::Range;

use crate::map::{Ranges, zero_bits};
use crate::source::{LARGEST, Segment, Source, View};
use crate::volume::{Doubt, Volume, count_free};

/// A bitmap with a bit for each cluster, 1 where it is allocated, in files of the volume.
pub(crate) struct ClusterBitmap {
    /// Where the bytes of each copy lie. With several copies a cluster is used that is used in any of them.
    copies: Vec<Vec<Segment>>,
    /// How many bits count: there is one for each cluster, and all copies have so many.
    bits: u64,
    /// The byte of the volume at which the cluster of bit 0 begins.
    first: u64,
    /// Bytes in a cluster.
    cluster: u64,
}

impl ClusterBitmap {
    /// The bitmap in these files. A copy that has fewer bits than there are clusters makes the others used.
    pub(crate) fn new(copies: Vec<Vec<Segment>>, clusters: u64, first: u64, cluster: u64) -> Self {
        let len = |copy: &Vec<Segment>| copy.iter().map(|segment| segment.len).sum::<u64>();
        let shortest = copies.iter().map(len).min().unwrap_or(0);
        Self { copies, bits: clusters.min(shortest.saturating_mul(8)), first, cluster }
    }

    /// Gives the free ranges that touch `window`, bytes of the volume, in order.
    pub(crate) fn free_in(
        &self,
        source: &dyn Source,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let from = window.start.saturating_sub(self.first) / self.cluster;
        let to = window.end.saturating_sub(self.first).div_ceil(self.cluster);
        self.zeros(source, from..to, &mut |bits| {
            sink(self.first + bits.start * self.cluster..self.first + bits.end * self.cluster);
        })
    }

    /// Whether these clusters are all allocated.
    pub(crate) fn allocated(&self, source: &dyn Source, clusters: Range<u64>) -> Result<bool, Doubt> {
        let mut zeros = 0;
        self.zeros(source, clusters.clone(), &mut |bits| {
            zeros += bits.end.min(clusters.end).saturating_sub(bits.start.max(clusters.start));
        })?;
        Ok(zeros == 0)
    }

    /// Gives runs of zeros, where `range` reaches into a byte also those of the rest of that byte.
    fn zeros(
        &self,
        source: &dyn Source,
        range: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let end = range.end.min(self.bits);
        let mut at = range.start / 8;
        let views = self
            .copies
            .iter()
            .map(|copy| View::new(source, copy.iter().copied()))
            .collect::<Result<Vec<_>, _>>()?;
        let (mut bytes, mut other) = (Vec::new(), Vec::new());
        while at * 8 < end {
            let len = (end.div_ceil(8) - at).min(LARGEST as u64) as usize;
            for (copy, view) in views.iter().enumerate() {
                let into = if copy == 0 { &mut bytes } else { &mut other };
                into.resize(len, 0);
                view.read(at, into)?;
                if copy > 0 {
                    bytes.iter_mut().zip(&other).for_each(|(byte, other)| *byte |= other);
                }
            }
            let bits = (self.bits - at * 8).min(len as u64 * 8);
            zero_bits(&bytes, bits, |zeros| sink(at * 8 + zeros.start..at * 8 + zeros.end));
            at += len as u64;
        }
        Ok(())
    }
}

/// A volume whose bitmap is believed.
pub(crate) struct ClusterMap {
    bitmap: ClusterBitmap,
    size: u64,
    metadata: Ranges,
    free: u64,
}

impl ClusterMap {
    /// The map of a volume of `size` bytes, whose free bytes are counted.
    pub(crate) fn new(
        bitmap: ClusterBitmap,
        size: u64,
        metadata: Ranges,
        source: &dyn Source,
    ) -> Result<Self, Doubt> {
        let mut map = Self { bitmap, size, metadata, free: 0 };
        map.free = count_free(&map, source)?;
        Ok(map)
    }
}

impl Volume for ClusterMap {
    fn free_bytes(&self) -> u64 {
        self.free
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn metadata(&self) -> &Ranges {
        &self.metadata
    }

    fn claimed_free(
        &self,
        source: &dyn Source,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        self.bitmap.free_in(source, window, sink)
    }
}

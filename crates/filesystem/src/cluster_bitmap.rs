//! Allocation bitmaps that are files of their own volume: $Bitmap of NTFS, the allocation bitmap of exFAT.

use std::ops::Range;

use crate::map::{Ranges, zero_bits};
use crate::source::{ByteSource, LARGEST, Segment, View};
use crate::volume::{Doubt, Volume, count_free};

/// A bitmap with a bit for each cluster, 1 where it is allocated, in files of the volume.
pub(crate) struct ClusterBitmap {
    /// Segments of each copy. With several copies, a cluster is used if it is used in any of them.
    copies: Vec<Vec<Segment>>,
    /// Number of valid bits: one for each cluster, the same in all copies.
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
        source: &dyn ByteSource,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let from = window.start.saturating_sub(self.first) / self.cluster;
        let to = window.end.saturating_sub(self.first).div_ceil(self.cluster);
        self.zeros(source, from..to, &mut |bits| {
            sink(self.first + bits.start * self.cluster..self.first + bits.end * self.cluster);
        })
    }

    /// Tells whether these clusters are all allocated.
    pub(crate) fn allocated(&self, source: &dyn ByteSource, clusters: Range<u64>) -> Result<bool, Doubt> {
        let mut zeros = 0;
        self.zeros(source, clusters.clone(), &mut |bits| {
            zeros += bits.end.min(clusters.end).saturating_sub(bits.start.max(clusters.start));
        })?;
        Ok(zeros == 0)
    }

    /// Gives runs of zeros, where `range` reaches into a byte also those of the rest of that byte.
    fn zeros(
        &self,
        source: &dyn ByteSource,
        range: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let end = range.end.min(self.bits);
        let mut at = range.start / 8;
        let (views, mut bytes) = (self.views(source)?, Vec::new());
        while at * 8 < end {
            let len = (end.div_ceil(8) - at).min(LARGEST as u64) as usize;
            bytes.resize(len, 0);
            Self::read(&views, at, &mut bytes)?;
            let bits = (self.bits - at * 8).min(len as u64 * 8);
            zero_bits(&bytes, bits, |zeros| sink(at * 8 + zeros.start..at * 8 + zeros.end));
            at += len as u64;
        }
        Ok(())
    }

    /// The copies as sources of bytes.
    fn views<'a>(&self, source: &'a dyn ByteSource) -> Result<Vec<View<'a>>, Doubt> {
        let copies = self.copies.iter().map(|copy| View::new(source, copy.iter().copied()));
        Ok(copies.collect::<Result<_, _>>()?)
    }

    /// Fills `bytes` from byte `at` of the bitmap with what is allocated in any copy.
    fn read(views: &[View<'_>], at: u64, bytes: &mut [u8]) -> Result<(), Doubt> {
        let mut other = Vec::new();
        for (copy, view) in views.iter().enumerate() {
            if copy == 0 {
                view.read(at, bytes)?;
                continue;
            }
            other.resize(bytes.len(), 0);
            view.read(at, &mut other)?;
            bytes.iter_mut().zip(&other).for_each(|(byte, other)| *byte |= other);
        }
        Ok(())
    }
}

/// Number of claims looked up together: they take 3 MiB of memory, and the bitmap is read once for all of them.
const CLAIMS: usize = 1 << 17;
/// Length of the bitmap held during a look-up, bytes.
const HELD: u64 = 64 << 10;

/// Clusters that files have, gathered and looked up in the order of the bitmap: a fragmented volume has millions of
/// runs all over the disk.
pub(crate) struct Claims<'a> {
    bitmap: &'a ClusterBitmap,
    source: &'a dyn ByteSource,
    held: Vec<Claim>,
}

/// A run of a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    /// First cluster, 0 being the bitmap's first bit.
    pub(crate) first: u64,
    /// The one behind the last.
    pub(crate) end: u64,
    /// The file's number.
    pub(crate) owner: u64,
}

impl<'a> Claims<'a> {
    pub(crate) fn new(bitmap: &'a ClusterBitmap, source: &'a dyn ByteSource) -> Self {
        Self { bitmap, source, held: Vec::new() }
    }

    /// Adds a run. `false_claim` makes the doubt of one that was found not to be allocated: this one or an earlier one.
    pub(crate) fn push(&mut self, claim: Claim, false_claim: impl Fn(&Claim) -> Doubt) -> Result<(), Doubt> {
        self.held.push(claim);
        if self.held.len() < CLAIMS { Ok(()) } else { self.check(false_claim) }
    }

    /// Looks up what was added and not yet looked up.
    pub(crate) fn check(&mut self, false_claim: impl Fn(&Claim) -> Doubt) -> Result<(), Doubt> {
        self.held.sort_unstable();
        let views = self.bitmap.views(self.source)?;
        // What is held of the bitmap: from which byte on.
        let (mut from, mut bytes) = (0, Vec::new());
        for claim in &self.held {
            let mut at = claim.first;
            while at < claim.end.min(self.bitmap.bits) {
                let byte = at / 8;
                if !(from..from + bytes.len() as u64).contains(&byte) {
                    from = byte;
                    bytes.resize((self.bitmap.bits.div_ceil(8) - from).min(HELD) as usize, 0);
                    ClusterBitmap::read(&views, from, &mut bytes)?;
                }
                let end = claim.end.min(self.bitmap.bits).min((from + bytes.len() as u64) * 8);
                let inside = &bytes[(byte - from) as usize..(end.div_ceil(8) - from) as usize];
                let (mut is_free, skipped) = (false, at % 8);
                zero_bits(inside, skipped + end - at, |zeros| is_free |= zeros.end > skipped);
                if is_free {
                    return Err(false_claim(claim));
                }
                at = end;
            }
        }
        self.held.clear();
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
        source: &dyn ByteSource,
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
        source: &dyn ByteSource,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        self.bitmap.free_in(source, window, sink)
    }
}

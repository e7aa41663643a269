//! Allocation of free space by the device, and the disk as a strip.

use std::collections::HashMap;
use std::ops::Range;

use lunway_block::ExtentKind;
use lunway_filesystem::tree::{Disk, Node};
use lunway_filesystem::{ByteSource, Use};

use crate::command::disk::free::changed;
use crate::command::disk::source::DeviceSource;
use crate::failure::Failure;

/// Extents and ranges are asked for in windows of this, bytes, so that answers stay small.
const WINDOW: u64 = 4 << 30;

/// Into how many parts the strip is divided: a broad drawing has room for half of them.
const PARTS: u64 = 800;

/// State of a byte as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Used.
    Live,
    /// Free, and the device holds it nevertheless.
    Dead,
    /// Unknown, and the device holds it.
    Unknown,
    /// The device holds nothing there.
    NeverWritten,
}

impl Seen {
    /// All of them, in the order of [`Figures::parts`].
    pub(super) const ALL: [Self; 4] = [Self::Live, Self::Dead, Self::Unknown, Self::NeverWritten];

    fn of(use_: Use, held: bool) -> Self {
        match use_ {
            _ if !held => Self::NeverWritten,
            Use::Used => Self::Live,
            Use::Free => Self::Dead,
            Use::Unknown => Self::Unknown,
        }
    }
}

/// Sums over the disk's ranges.
pub(super) struct Figures {
    /// Dead bytes of each volume, by where it is in the tree, which does not move meanwhile.
    dead: HashMap<*const Node, u64>,
    /// Bytes of each kind in all, and in equal parts of the disk.
    pub(super) total: [u64; 4],
    pub(super) parts: Vec<[u64; 4]>,
}

impl Figures {
    /// Goes over the whole disk once.
    pub(super) fn of(disk: &Disk, source: &DeviceSource<'_>) -> Result<Self, Failure> {
        let size = source.len();
        let part = size.div_ceil(PARTS).max(1);
        let mut figures =
            Self { dead: HashMap::new(), total: [0; 4], parts: vec![[0; 4]; size.div_ceil(part) as usize] };
        let mut at = 0;
        while at < size {
            let end = (at + WINDOW).min(size);
            let held: Vec<Range<u64>> = source
                .extents(at, end - at)?
                .into_iter()
                .filter(|extent| extent.kind == ExtentKind::Data)
                .map(|extent| extent.offset..extent.offset + extent.len)
                .collect();
            let mut next = 0;
            let looked = disk.for_each(source, at..end, &mut |span| {
                while held.get(next).is_some_and(|held| held.end <= span.range.start) {
                    next += 1;
                }
                let mut start = span.range.start;
                for held in held[next..].iter().take_while(|held| held.start < span.range.end) {
                    let inside = held.start.max(start)..held.end.min(span.range.end);
                    figures.add(start..inside.start, Seen::of(span.what, false), span.node, part);
                    figures.add(inside.clone(), Seen::of(span.what, true), span.node, part);
                    start = inside.end;
                }
                figures.add(start..span.range.end, Seen::of(span.what, false), span.node, part);
            });
            looked.map_err(changed)?;
            at = end;
        }
        Ok(figures)
    }

    fn add(&mut self, range: Range<u64>, seen: Seen, node: &Node, part: u64) {
        if range.is_empty() {
            return;
        }
        let len = range.end - range.start;
        self.total[seen as usize] += len;
        if seen == Seen::Dead {
            *self.dead.entry(std::ptr::from_ref(node)).or_default() += len;
        }
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / part + 1) * part);
            self.parts[(at / part) as usize][seen as usize] += end - at;
            at = end;
        }
    }

    /// Free bytes of a part of the disk and all in it that the device holds.
    pub(super) fn dead(&self, node: &Node) -> u64 {
        let own = self.dead.get(&std::ptr::from_ref(node)).copied().unwrap_or(0);
        own + node.children.iter().map(|child| self.dead(child)).sum::<u64>()
    }
}

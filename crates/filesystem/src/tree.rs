//! The disk as a tree: containers, volumes, and the stream of their ranges.

use std::collections::HashSet;
use std::ops::Range;

use crate::DEPTH;
use crate::lvm::{self, PhysicalVolume};
use crate::map::{Ranges, Use};
use crate::opaque::Opaque;
use crate::partition::layout::{self, Layout};
use crate::partition::types::Declared;
use crate::probe::{Format, Found, probe};
use crate::source::{Budget, ByteSource, Cached, Segment, View};
use crate::swap;
use crate::volume::{Doubt, Mounted, Volume, free_in};

const LVM2: &str = "LVM2";

/// Characters of a name that are kept: LVM2 and file systems take 127 and 255 at most, and two names are joined.
const NAME_MAX: usize = 96;

/// An examined disk. Its bytes must be the same from the examination to the last range that is asked for.
pub struct Disk {
    root: Node,
}

/// A part of the disk: the disk itself, a partition, a logical volume.
pub struct Node {
    /// Offset of its first byte on the disk.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Its name in its container: of a partition, of a logical volume.
    pub name: Option<String>,
    /// Its number in its partition table, as Linux counts.
    pub number: Option<usize>,
    /// Kind of its content: `GPT`, `ext4`, `swap`, `LUKS` …; `None` where nothing is recognised.
    pub kind: Option<&'static str>,
    /// The label of what is in it.
    pub label: Option<String>,
    /// The UUID of what is in it.
    pub uuid: Option<String>,
    /// Size that the volume in it states, bytes: a file system may be smaller or larger than its partition.
    pub volume_bytes: Option<u64>,
    /// Bytes that are needed.
    pub used: u64,
    /// Bytes that are proven not to be.
    pub free: u64,
    /// Bytes that are unknown.
    pub unknown: u64,
    /// Reason why bytes are unknown that belong to what is in it, in a sentence; gaps and tails need none.
    pub reason: Option<String>,
    /// Remedy.
    pub remedy: Option<&'static str>,
    /// Notes for people, in sentences.
    pub notes: Vec<String>,
    /// Mount state of the volume in it: whether a system may be changing it. For anything but a volume with a free map,
    /// nothing is known.
    pub mounted: Mounted,
    /// Parts that lie in it.
    pub children: Vec<Self>,
    content: Content,
    /// `true` if a suspended system lies in it.
    suspended: bool,
}

enum Content {
    /// Single use for all of it.
    Whole(Use),
    Volume(Box<dyn Volume>),
    /// Sorted, disjoint, and all of it.
    Pieces(Vec<Piece>),
}

/// A piece of a container.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<u64>,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Own(Use),
    /// The child with this number has here its bytes from this address on.
    Child(usize, u64),
}

/// A part of the disk in which no others are told apart.
pub struct Leaf<'a> {
    /// The part.
    pub node: &'a Node,
    /// Its name on this disk, which no other leaf has, and which is safe as the name of a file: `p2` for a partition by
    /// its number, `GROUP-VOLUME` for a logical volume, `disk` for all of it.
    pub name: String,
    /// Where its bytes lie on the disk, in the order of its own addresses.
    pub segments: Vec<Segment>,
}

/// A range of the disk.
pub struct Span<'a> {
    /// Its bytes.
    pub range: Range<u64>,
    /// Use of the range.
    pub what: Use,
    /// The innermost part of the disk that says so.
    pub node: &'a Node,
}

impl Disk {
    /// Examines a disk with logical sectors of `sector` bytes. Never an error: what cannot be read, proven or
    /// understood is unknown, with the reason in its place.
    pub fn examine(source: &dyn ByteSource, sector: u32) -> Self {
        let mut root = Node::examine(source, sector, 0, None);
        if root.has_suspended() {
            root.leave_alone();
        }
        Self { root }
    }

    /// The whole disk.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The parts of the disk in which no others are told apart, in order: file systems, and what else lies there.
    pub fn leaves(&self) -> Vec<Leaf<'_>> {
        let mut found = Vec::new();
        self.root.leaves(String::new(), &[Segment { at: 0, len: self.root.len }], &mut found);
        let mut names = HashSet::new();
        for leaf in &mut found {
            let (name, mut again) = (leaf.name.clone(), 1);
            // The volumes of a group are listed on each of its disks.
            while !names.insert(leaf.name.clone()) {
                again += 1;
                leaf.name = format!("{name}.{again}");
            }
        }
        found
    }

    /// Calls nothing free of volumes that may be mounted by as much as this says: for callers that discard on a disk
    /// that may be in use. With [`Mounted::Yes`] they are those that were not unmounted; with [`Mounted::Untold`] all
    /// but those whose marks say that no system changes them. Extents of LVM2 stay free: a group says on its disks
    /// which it gives away before anything is written to them.
    pub fn distrust(&mut self, least: Mounted) {
        self.root.distrust(least);
    }

    /// Gives all bytes of `window` as sorted, disjoint ranges. Neighbours differ in use or node. Where the disk does
    /// not say what it said in the examination the rest of that volume is unknown, everything else is given
    /// nevertheless, and the first such doubt is the result.
    pub fn for_each<'a>(
        &'a self,
        source: &dyn ByteSource,
        window: Range<u64>,
        sink: &mut dyn FnMut(Span<'a>),
    ) -> Result<(), Doubt> {
        let cached = Cached::new(source);
        let mut held: Option<Span<'a>> = None;
        let mut doubt = None;
        let window = window.start..window.end.min(self.root.len);
        self.root.spans(&cached, window, &mut doubt, &mut |span| match &mut held {
            Some(last)
                if last.range.end == span.range.start
                    && last.what == span.what
                    && std::ptr::eq(last.node, span.node) =>
            {
                last.range.end = span.range.end;
            }
            _ => {
                if let Some(last) = held.replace(span) {
                    sink(last);
                }
            }
        });
        if let Some(last) = held {
            sink(last);
        }
        doubt.map_or(Ok(()), Err)
    }

    /// Gives the free ranges of the disk, sorted, disjoint, not touching. After an error what was given is free
    /// nevertheless.
    pub fn for_each_free(
        &self,
        source: &dyn ByteSource,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let mut joiner = crate::map::Joiner::new(sink);
        let ended = self.for_each(source, 0..u64::MAX, &mut |span| {
            if span.what == Use::Free {
                joiner.push(span.range);
            }
        });
        joiner.finish();
        ended
    }
}

impl Node {
    fn new(len: u64, name: Option<String>) -> Self {
        Self {
            offset: 0,
            len,
            name,
            number: None,
            kind: None,
            label: None,
            uuid: None,
            volume_bytes: None,
            used: 0,
            free: 0,
            unknown: len,
            reason: None,
            remedy: None,
            notes: Vec::new(),
            mounted: Mounted::Untold,
            children: Vec::new(),
            content: Content::Whole(Use::Unknown),
            suspended: false,
        }
    }

    fn refused(mut self, doubt: Doubt) -> Self {
        (self.reason, self.remedy) = (Some(doubt.reason), doubt.remedy);
        self.suspended |= doubt.suspended;
        if doubt.mounted {
            self.mounted = Mounted::Yes;
        }
        self
    }

    /// See [`Disk::distrust`].
    fn distrust(&mut self, least: Mounted) {
        match self.content {
            Content::Volume(_) if self.mounted >= least => {
                self.content = Content::Whole(Use::Unknown);
                (self.used, self.free, self.unknown) = (0, 0, self.len);
                let (reason, remedy) = match self.mounted {
                    Mounted::Yes => (
                        "it is mounted and not frozen, or was when its system stopped: new data may lie in blocks \
                         that are still free by its map",
                        "freeze or unmount it there; if nobody has it mounted, mount and unmount it once",
                    ),
                    Mounted::Untold | Mounted::No => (
                        "nothing on it tells whether it is mounted, or frozen: new data may lie in blocks that are \
                         still free by its map",
                        "let the system that has it mounted trim it (fstrim, Optimize-Volume -ReTrim)",
                    ),
                };
                (self.reason, self.remedy) = (Some(reason.to_owned()), Some(remedy));
            }
            Content::Volume(_) | Content::Whole(_) => {}
            Content::Pieces(_) => {
                self.children.iter_mut().for_each(|child| child.distrust(least));
                self.count();
            }
        }
    }

    /// Returns `true` if a suspended system lies in it, or in what lies in it.
    fn has_suspended(&self) -> bool {
        self.suspended || self.children.iter().any(Self::has_suspended)
    }

    /// Calls nothing of it free: the suspended system goes on with volumes as it remembers them.
    fn leave_alone(&mut self) {
        match &mut self.content {
            Content::Whole(_) => return,
            Content::Volume(_) => {
                self.content = Content::Whole(Use::Unknown);
                (self.used, self.free, self.unknown) = (0, 0, self.len);
            }
            Content::Pieces(pieces) => {
                for piece in pieces {
                    if let What::Own(what @ Use::Free) = &mut piece.what {
                        *what = Use::Unknown;
                    }
                }
                self.children.iter_mut().for_each(Self::leave_alone);
                return self.count();
            }
        }
        self.reason = Some("a suspended system on this disk may have it mounted".to_owned());
        self.remedy = Some("start that system, and shut it down");
    }

    /// Rejects what is read in a partition whose type is for something else.
    fn declared(self, declared: Option<&Declared>) -> Self {
        let (Some(declared), Some(kind)) = (declared, self.kind) else { return self };
        // What was not read has nothing free.
        if matches!(self.content, Content::Whole(_)) || declared.holds == Some(kind) {
            return self;
        }
        let suspended = self.has_suspended();
        let node = Self { suspended, ..Self::new(self.len, self.name) };
        node.refused(
            Doubt::new(format!(
                "it is {kind} by its content, and {} by its type in the partition table",
                declared.name
            ))
            .helped_by("correct the type with sfdisk --part-type, or remove the signature with wipefs"),
        )
    }

    /// Examines what lies in `source`, which is a container's child at this depth. Offsets are relative to it.
    fn examine(source: &dyn ByteSource, sector: u32, depth: usize, name: Option<String>) -> Self {
        let mut node = Self::new(source.len(), name);
        if depth > DEPTH {
            return node.refused(Doubt::new(format!("it lies more than {DEPTH} containers deep")));
        }
        // Only while this node is looked at: what lies in it has a cache and a budget of its own.
        let budget = Budget::for_examination(source);
        // A stale signature, or an array's around it, makes the suspended system no less alive.
        node.suspended = swap::is_suspended(&budget).unwrap_or(false);
        match probe(&budget, sector) {
            Err(error) => node.refused(error.into()),
            Ok(Found::Nothing) => node,
            Ok(Found::Opaque(Opaque { kind, reason })) => {
                node.kind = Some(kind);
                node.refused(Doubt::new(*reason))
            }
            Ok(Found::Ambivalent(names)) => {
                let names = names.join(" and ");
                node.refused(
                    Doubt::new(format!("it is {names} at once: one of them is stale"))
                        .helped_by("remove the stale signature with wipefs"),
                )
            }
            Ok(Found::Volume(format)) => node.volume(&budget, format),
            Ok(Found::PhysicalVolume) => {
                let read = lvm::read(&budget);
                drop(budget);
                match read {
                    Ok(volume) => node.physical_volume(source, sector, depth, volume),
                    Err(doubt) => {
                        node.kind = Some(LVM2);
                        node.refused(doubt)
                    }
                }
            }
            Ok(Found::Table) => {
                let read = layout::read(&budget, sector);
                drop(budget);
                match read {
                    Ok(layout) => node.table(source, sector, depth, layout),
                    Err(doubt) => {
                        node.kind = Some("partition table");
                        node.refused(doubt)
                    }
                }
            }
        }
    }

    fn volume(mut self, source: &dyn ByteSource, format: &Format) -> Self {
        let found = match (format.examine)(source) {
            Ok(found) => found,
            Err(doubt) => {
                self.kind = Some(format.name);
                return self.refused(doubt);
            }
        };
        self.kind = Some(found.identity.kind);
        self.volume_bytes = Some(found.identity.size);
        (self.label, self.uuid, self.notes) = (found.identity.label, found.identity.uuid, found.notes);
        self.mounted = found.mounted;
        match found.verdict {
            Err(doubt) => self.refused(doubt),
            Ok(volume) => {
                let size = volume.size().min(self.len);
                self.free = volume.free_bytes();
                self.used = size.saturating_sub(self.free);
                self.unknown = self.len - size;
                self.content = Content::Volume(volume);
                self
            }
        }
    }

    fn table(mut self, source: &dyn ByteSource, sector: u32, depth: usize, layout: Layout) -> Self {
        self.kind = Some(layout.kind);
        self.notes = layout.notes;
        let mut claimed = Vec::new();
        for entry in layout.partitions {
            let len = entry.range.end - entry.range.start;
            let child = match (entry.refused, View::part(source, entry.range.clone())) {
                (Some(reason), view) => {
                    let suspended = view.is_ok_and(|view| swap::is_suspended(&view).unwrap_or(false));
                    Self { suspended, ..Self::new(len, entry.name).refused(Doubt::new(reason)) }
                }
                (None, Ok(view)) => {
                    Self::examine(&view, sector, depth + 1, entry.name).declared(entry.declared)
                }
                (None, Err(error)) => Self::new(len, entry.name).refused(error.into()),
            };
            claimed.push(Piece { range: entry.range, what: What::Child(self.children.len(), 0) });
            self.children.push(Self { number: Some(entry.number), ..child });
        }
        self.pieces(claimed, &layout.table)
    }

    fn physical_volume(
        mut self,
        source: &dyn ByteSource,
        sector: u32,
        depth: usize,
        volume: PhysicalVolume,
    ) -> Self {
        (self.kind, self.label, self.uuid) = (Some(LVM2), Some(volume.group), Some(volume.uuid));
        let mut claimed = Vec::new();
        for logical in volume.volumes {
            let len = logical.segments.iter().map(|segment| segment.len).sum();
            let name = Some(logical.name);
            let child = match (logical.refused, View::new(source, logical.segments.iter().copied())) {
                (Some(reason), _) => Self::new(len, name).refused(Doubt::new(reason)),
                (None, Ok(view)) => Self::examine(&view, sector, depth + 1, name),
                (None, Err(error)) => Self::new(len, name).refused(error.into()),
            };
            let mut at = 0;
            for Segment { at: start, len } in logical.segments {
                claimed.push(Piece { range: start..start + len, what: What::Child(self.children.len(), at) });
                at += len;
            }
            self.children.push(child);
        }
        let free = volume.free.as_slice().iter().cloned();
        claimed.extend(free.map(|range| Piece { range, what: What::Own(Use::Free) }));
        self.pieces(claimed, &volume.metadata)
    }

    /// Makes this a container of disjoint `claimed` pieces and of ranges that it `needs` itself; everything else in it
    /// is unknown.
    fn pieces(mut self, mut claimed: Vec<Piece>, needs: &Ranges) -> Self {
        claimed.extend(
            needs.as_slice().iter().map(|range| Piece { range: range.clone(), what: What::Own(Use::Used) }),
        );
        claimed.sort_by_key(|piece| piece.range.start);
        let (mut pieces, mut at) = (Vec::with_capacity(2 * claimed.len() + 1), 0);
        for piece in claimed {
            if at < piece.range.start {
                pieces.push(Piece { range: at..piece.range.start, what: What::Own(Use::Unknown) });
            }
            at = piece.range.end;
            pieces.push(piece);
        }
        if at < self.len {
            pieces.push(Piece { range: at..self.len, what: What::Own(Use::Unknown) });
        }
        for (number, child) in self.children.iter_mut().enumerate() {
            child.place(&Self::segments(&pieces, number));
        }
        self.content = Content::Pieces(pieces);
        self.count();
        self
    }

    /// Counts the bytes of a container: its own, and those of its children.
    fn count(&mut self) {
        (self.used, self.free, self.unknown) = (0, 0, 0);
        let Content::Pieces(pieces) = &self.content else { return };
        for piece in pieces {
            let len = piece.range.end - piece.range.start;
            match piece.what {
                What::Own(Use::Used) => self.used += len,
                What::Own(Use::Free) => self.free += len,
                What::Own(Use::Unknown) => self.unknown += len,
                What::Child(..) => {}
            }
        }
        for child in &self.children {
            self.used += child.used;
            self.free += child.free;
            self.unknown += child.unknown;
        }
    }

    /// Offsets here and below are relative to this node until it is put into its container, in these segments.
    fn place(&mut self, segments: &[Segment]) {
        let mut inside = self.offset;
        for segment in segments {
            if inside < segment.len {
                self.offset = segment.at + inside;
                break;
            }
            inside -= segment.len;
        }
        for child in &mut self.children {
            child.place(segments);
        }
    }

    /// Adds the leaves of this part, whose bytes are these segments of the disk, and which is called so.
    fn leaves<'a>(&'a self, name: String, segments: &[Segment], found: &mut Vec<Leaf<'a>>) {
        let Content::Pieces(pieces) = &self.content else {
            let name = if name.is_empty() { "disk".to_owned() } else { name };
            return found.push(Leaf { node: self, name, segments: segments.to_vec() });
        };
        for (number, child) in self.children.iter().enumerate() {
            let own = match child.number {
                Some(number) if name.is_empty() => format!("p{number}"),
                Some(number) => format!("{name}-p{number}"),
                None => {
                    [&self.label, &child.name].map(|word| safe(word.as_deref().unwrap_or("volume"))).join("-")
                }
            };
            let inside = Self::segments(pieces, number).into_iter();
            let placed: Vec<_> = inside.flat_map(|part| within(segments, part)).collect();
            child.leaves(own, &placed, found);
        }
    }

    /// Returns the segments of a child, in the order of its addresses.
    fn segments(pieces: &[Piece], child: usize) -> Vec<Segment> {
        let mut found: Vec<(u64, Segment)> = pieces
            .iter()
            .filter_map(|piece| match piece.what {
                What::Child(number, at) if number == child => {
                    Some((at, Segment { at: piece.range.start, len: piece.range.end - piece.range.start }))
                }
                _ => None,
            })
            .collect();
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, segment)| segment).collect()
    }

    /// Gives the ranges of `window`, in addresses of this node, whose bytes are `source`.
    fn spans<'a>(
        &'a self,
        source: &dyn ByteSource,
        window: Range<u64>,
        doubt: &mut Option<Doubt>,
        sink: &mut dyn FnMut(Span<'a>),
    ) {
        let mut give = |range: Range<u64>, what| {
            if range.start < range.end {
                sink(Span { range, what, node: self });
            }
        };
        match &self.content {
            Content::Whole(what) => give(window, *what),
            Content::Volume(volume) => {
                let mut at = window.start;
                let ended = free_in(&**volume, source, window.clone(), &mut |free| {
                    give(at..free.start, Use::Used);
                    at = free.end;
                    give(free, Use::Free);
                });
                match ended {
                    Err(found) => {
                        doubt.get_or_insert(found);
                    }
                    Ok(()) => {
                        let end = volume.size().clamp(at, window.end.max(at));
                        give(at..end, Use::Used);
                        at = end;
                    }
                }
                give(at..window.end, Use::Unknown);
            }
            Content::Pieces(pieces) => {
                let first = pieces.partition_point(|piece| piece.range.end <= window.start);
                for piece in pieces[first..].iter().take_while(|piece| piece.range.start < window.end) {
                    let start = piece.range.start.max(window.start);
                    let end = piece.range.end.min(window.end);
                    let (child, from) = match piece.what {
                        What::Own(what) => {
                            sink(Span { range: start..end, what, node: self });
                            continue;
                        }
                        What::Child(child, at) => (child, at + (start - piece.range.start)),
                    };
                    let node = &self.children[child];
                    match View::new(source, Self::segments(pieces, child)) {
                        Ok(view) => {
                            node.spans(&view, from..from + (end - start), doubt, &mut |span| {
                                let range = span.range.start - from + start..span.range.end - from + start;
                                sink(Span { range, ..span });
                            });
                        }
                        Err(error) => {
                            doubt.get_or_insert(error.into());
                            sink(Span { range: start..end, what: Use::Unknown, node });
                        }
                    }
                }
            }
        }
    }
}

/// A name that a disk gives, with nothing in it that a file's name must not have.
fn safe(name: &str) -> String {
    let is_safe = |char: char| char.is_ascii_alphanumeric() || matches!(char, '+' | '_' | '.' | '-');
    name.chars().take(NAME_MAX).map(|char| if is_safe(char) { char } else { '_' }).collect()
}

/// Where a range of a part lies in that part's container, by the part's segments.
fn within(segments: &[Segment], range: Segment) -> Vec<Segment> {
    let (mut start, mut found) = (0, Vec::new());
    for segment in segments {
        let (from, to) = (range.at.max(start), (range.at + range.len).min(start + segment.len));
        if from < to {
            found.push(Segment { at: segment.at + (from - start), len: to - from });
        }
        start += segment.len;
    }
    found
}

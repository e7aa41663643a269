//! A disk with its parents, and blocking I/O on it: for tools and tests, and for callers that have a thread to wait on.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::disk::{Disk, Emptied, Fill, Need, ReadPlan, SegmentSource, Stop, WritePlan};
use crate::error::{DiskError, VhdxOpenError};
use crate::format::GuidSource;
use crate::open::VhdxOpenOptions;
use crate::runs::{CELL, CellRuns, Place, Run, Runs};
use crate::storage::{Storage, open_as_parent, open_file};
use crate::transition::DiscardMode;

/// Maximum number of files in a chain: OpenVMM's limit.
pub const CHAIN_FILES_MAX: usize = 256;

/// Maximum number of blocks that one call of the disk discards: the entries of eight pages of the table. It bounds for
/// how long the lock on its state is held, well below a millisecond, and what waits for one commit.
const DISCARD_BLOCKS_MAX: u64 = 4096;

/// Number of waits, and length of each, of a block about to give its space up for I/O that began before: a disk's
/// slowest ordinary answer. Then the block stays until the next unmap in it.
const SETTLE_TRIES: u32 = 50;
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// Bytes of such a block read at a time.
const ZERO_CHECK: usize = 1 << 20;

/// A disk and its parents, the disk first. Only the first one may be writable.
pub struct Chain<S> {
    disks: Vec<Disk<S>>,
    /// The files, where they were opened by name.
    paths: Vec<PathBuf>,
    /// Of the disks from [`settled`](Self::settled) on.
    runs: Runs,
}

/// A piece of the extent map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSegment {
    /// Offset on the disk, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Source of the segment. [`SegmentSource::Parent`] only in a chain whose base is left out ([`Chain::upper`]).
    pub source: SegmentSource,
    /// Index of the disk of the chain that knows it, 0 being the first.
    pub level: usize,
}

impl Chain<File> {
    /// Opens a file and, for reading, all its parents by their locators. The search leaves neither the parent's
    /// relative path nor `root`.
    pub fn open_files(
        path: &Path,
        root: &Path,
        options: &VhdxOpenOptions,
        mut guids: impl FnMut() -> Box<dyn GuidSource>,
    ) -> Result<Self, VhdxOpenError> {
        let disk = Disk::open(open_file(path, !options.read_only)?, options, guids())?;
        Self::with_parents(vec![disk], &[path.to_owned()], root, options, guids)
    }

    /// The same where the first disks are open already; `paths` are their files'.
    pub fn with_parents(
        disks: Vec<Disk<File>>,
        paths: &[PathBuf],
        root: &Path,
        options: &VhdxOpenOptions,
        guids: impl FnMut() -> Box<dyn GuidSource>,
    ) -> Result<Self, VhdxOpenError> {
        Self::of_disks(disks, paths, root, options, guids)
    }
}

impl<S: Storage + From<File>> Chain<S> {
    /// [`Chain::with_parents`] for a storage that a file is one kind of.
    pub fn of_disks(
        mut disks: Vec<Disk<S>>,
        paths: &[PathBuf],
        root: &Path,
        options: &VhdxOpenOptions,
        mut guids: impl FnMut() -> Box<dyn GuidSource>,
    ) -> Result<Self, VhdxOpenError> {
        let canonical =
            |path: &Path| path.canonicalize().map_err(VhdxOpenError::access("looking for the file"));
        let root = canonical(root)?;
        let mut paths = paths.iter().map(|path| canonical(path)).collect::<Result<Vec<_>, _>>()?;
        let mut path = paths.last().cloned().unwrap_or_default();
        while let Some(locator) = disks.last().and_then(|disk| disk.parameters().locator.clone()) {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let parent = locator.find(folder, &root)?;
            if paths.contains(&parent) {
                return Err(VhdxOpenError::Chain(format!("leads back to {}", parent.display())));
            }
            if disks.len() >= CHAIN_FILES_MAX {
                return Err(VhdxOpenError::Chain(format!("has more than {CHAIN_FILES_MAX} files")));
            }
            let options =
                VhdxOpenOptions { cached_pages: options.cached_pages, ..VhdxOpenOptions::read_only() };
            disks.push(Disk::open(open_as_parent(&parent)?.into(), &options, guids())?);
            path = parent;
            paths.push(path.clone());
        }
        Ok(Self { paths, ..Self::new(disks)? })
    }
}

impl<S: Storage> Chain<S> {
    /// Puts a chain together, the disk first, and checks that each is the parent that its child was made on.
    pub fn new(disks: Vec<Disk<S>>) -> Result<Self, VhdxOpenError> {
        let chain = Self::upper(disks)?;
        match chain.disks.last().map(|last| &last.parameters().locator) {
            Some(Some(locator)) => Err(VhdxOpenError::NoParent(
                locator.get(crate::Locator::RELATIVE).unwrap_or("a file that was not given").into(),
            )),
            _ => Ok(chain),
        }
    }

    /// The same without its base: what only the base has is told as [`SegmentSource::Parent`], and cannot be read.
    pub fn upper(disks: Vec<Disk<S>>) -> Result<Self, VhdxOpenError> {
        for pair in disks.windows(2) {
            let (child, parent) = (&pair[0], &pair[1]);
            let Some(locator) = &child.parameters().locator else {
                return Err(VhdxOpenError::ParentUnfit(
                    "a disk without a parent locator was given a parent".into(),
                ));
            };
            if !locator.matches(parent.data_write_guid()) {
                let (expected, found) = (locator.linkage(), parent.data_write_guid());
                return Err(VhdxOpenError::ParentChanged { expected, found });
            }
            let [ours, theirs] = [child, parent].map(|disk| disk.parameters().logical_sector);
            if ours != theirs {
                let problem = format!("the child has sectors of {ours} bytes, the parent of {theirs}");
                return Err(VhdxOpenError::ParentUnfit(problem));
            }
            if !parent.is_read_only() {
                return Err(VhdxOpenError::ParentUnfit("a parent must be open for reading only".into()));
            }
        }
        match disks.is_empty() {
            true => Err(VhdxOpenError::Chain("has no file".into())),
            false => Ok(Self { runs: Runs::default(), disks, paths: Vec::new() }),
        }
    }

    /// [`upper`](Self::upper) of files that were opened by these names.
    pub fn upper_of_files(disks: Vec<Disk<S>>, paths: Vec<PathBuf>) -> Result<Self, VhdxOpenError> {
        Ok(Self { paths, ..Self::upper(disks)? })
    }

    /// The files of the disks, in their order; empty where they were not opened by name.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The disks, the first one being the one that is written.
    pub fn disks(&self) -> &[Disk<S>] {
        &self.disks
    }

    /// The first disk's file has another name from now on.
    pub fn renamed(&mut self, path: PathBuf) {
        if let Some(first) = self.paths.first_mut() {
            *first = path;
        }
    }

    /// Takes the chain apart: the disks, the first one being the one that is written. Nothing is closed.
    pub fn into_disks(self) -> Vec<Disk<S>> {
        self.disks
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.disks[0].parameters().disk_size
    }

    /// Fills `buf` from `offset`.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.read_level(0, offset, buf, Patience::Waits).map(drop)
    }

    /// Fills `buf` from `offset` if that waits for nothing. `false`: it would wait, or fail; what is in `buf` is not to
    /// be used.
    pub fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.read_level(0, offset, buf, Patience::None).unwrap_or(false)
    }

    /// Fills `buf` with what the first disk itself has from `offset` on. Gives the parts of `buf` that its parent has,
    /// in order: there it stays as it is.
    pub fn read_own(&self, offset: u64, buf: &mut [u8]) -> Result<Vec<Range<usize>>, DiskError> {
        let disk = &self.disks[0];
        let mut plan = ReadPlan::default();
        disk.resolved(|| disk.resolve_read(offset, buf.len() as u64, &mut plan))
            .map_err(|error| error.at(offset))?;
        let (mut result, mut at) = (Ok(Vec::new()), 0);
        for segment in plan.segments() {
            let part = at..at + segment.len as usize;
            at = part.end;
            match segment.source {
                SegmentSource::Parent => {
                    if let Ok(parts) = &mut result {
                        parts.push(part);
                    }
                }
                SegmentSource::File(from) => {
                    let read = read_file(disk, from, offset + part.start as u64, &mut buf[part]);
                    result = result.and_then(|parts| read.map(|()| parts));
                }
                SegmentSource::Zero | SegmentSource::Unmapped | SegmentSource::NeverWritten => {
                    buf[part].fill(0);
                }
            }
        }
        disk.end_read(&mut plan);
        result
    }

    /// Fills `buf` with what the parent has at `offset`.
    pub fn read_parent_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.read_level(1, offset, buf, Patience::Waits).map(drop)
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let mut plan = WritePlan::default();
        let disk = &self.disks[0];
        disk.resolved(|| disk.begin_write(offset, data.len() as u64, &mut plan))
            .map_err(|error| error.at(offset))?;
        let mut write = |to, part: Range<u64>| {
            disk.storage().write_at(to, &data[part.start as usize..part.end as usize]).map(|()| true)
        };
        self.carry_out(&mut plan, offset, &mut write).map(drop)
    }

    /// Writes what `copy` puts into the file: it is called with a place in the file, and what of the range belongs
    /// there, and says whether it did. Where the first call did not nothing is written, and this is `false`.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at), and where a later call says that it did not: a part is written then.
    pub fn write_by(
        &self,
        offset: u64,
        len: u64,
        copy: &mut dyn FnMut(u64, Range<u64>) -> io::Result<bool>,
    ) -> Result<bool, DiskError> {
        let mut plan = WritePlan::default();
        let disk = &self.disks[0];
        disk.resolved(|| disk.begin_write(offset, len, &mut plan)).map_err(|error| error.at(offset))?;
        self.carry_out(&mut plan, offset, copy)
    }

    /// Gives a range up; it reads as zeroes afterwards, where `mode` does not allow less. Of a long one a part at a
    /// time, between which others have their turn.
    ///
    /// A block of which parts are given up until all of it is zero gives its space up as well, if its storage tells
    /// holes from data.
    ///
    /// # Errors
    ///
    /// Those of the storage. A part may have been given up.
    pub fn discard(&self, offset: u64, len: u64, mode: DiscardMode) -> Result<(), DiskError> {
        let mut plan = WritePlan::default();
        let disk = &self.disks[0];
        disk.check_range(offset, len)?;
        let block_size = disk.geometry.block_size;
        let (step, end) = (DISCARD_BLOCKS_MAX * block_size, offset + len);
        let mut at = offset;
        loop {
            let next = end.min((at / step + 1) * step);
            disk.resolved(|| disk.begin_discard(at, next - at, mode, &mut plan))
                .map_err(|error| error.at(at))?;
            self.carry_out(&mut plan, at, &mut |_, _| Ok(false))?;
            at = next;
            if at >= end {
                break;
            }
        }
        if matches!(mode, DiscardMode::Unmap | DiscardMode::Zero) && len > 0 {
            // Of blocks that the range covers whole nothing is left. Where the others stay for now, that costs no more
            // than their space.
            let (first, last) = (offset / block_size, (end - 1) / block_size);
            for block in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
                let (start, len) = (block * block_size, disk.geometry.block_len(block));
                if offset > start || end < start + len {
                    let _ = self.remove_if_zero(block);
                }
            }
        }
        Ok(())
    }

    /// Has a block give its space up if all of it is zero. Cheap where its storage says that there is data.
    fn remove_if_zero(&self, block: u64) -> Result<(), Stop> {
        let disk = &self.disks[0];
        let Some(at) = with_pages(disk, || disk.removable(block))? else { return Ok(()) };
        if !disk.storage.is_hole(at.offset, at.len).unwrap_or(false) {
            return Ok(());
        }
        let Some(emptied) = with_pages(disk, || disk.begin_emptied(block))? else { return Ok(()) };
        match self.is_zero(&emptied) {
            true => disk.complete_emptied(emptied),
            false => disk.abort_emptied(emptied),
        }
        Ok(())
    }

    /// Returns `true` if a claimed block is all zero, and stays so: what was in flight has ended, and what the storage
    /// says of holes is true. A write that waits for the block goes first.
    fn is_zero(&self, emptied: &Emptied) -> bool {
        let disk = &self.disks[0];
        for _ in 0..SETTLE_TRIES {
            if disk.has_settled(emptied) || disk.rest_on(emptied.block, SETTLE_PAUSE) {
                break;
            }
        }
        if !disk.has_settled(emptied) {
            return false;
        }
        let mut buf = vec![0; ZERO_CHECK.min(emptied.at.len as usize)];
        let mut done = 0;
        while done < emptied.at.len {
            let piece = &mut buf[..(emptied.at.len - done).min(ZERO_CHECK as u64) as usize];
            let read = disk.storage.read_at(emptied.at.offset + done, piece);
            if read.is_err() || piece.iter().any(|byte| *byte != 0) {
                return false;
            }
            done += piece.len() as u64;
        }
        true
    }

    /// Makes everything durable.
    pub fn flush(&self) -> Result<(), DiskError> {
        self.disks[0].flush()
    }

    /// [`Disk::flush_at_once`] of the disk.
    pub fn flush_at_once(&self) -> Result<(), DiskError> {
        self.disks[0].flush_at_once()
    }

    /// Closes the disk.
    pub fn close(self) -> Result<(), DiskError> {
        self.disks.into_iter().next().map_or(Ok(()), Disk::close)
    }

    /// Maps a range to its segments, in order, without gaps.
    pub fn map(&self, offset: u64, len: u64, mut each: impl FnMut(MapSegment)) -> Result<(), DiskError> {
        // A step at a time, so that a disk of 64 TiB needs no list of it.
        const STEP: u64 = 1 << 30;
        let mut last: Option<MapSegment> = None;
        let mut at = offset;
        while at < offset + len {
            let now = STEP.min(offset + len - at);
            self.map_level(0, at, now, &mut |segment| match &mut last {
                Some(last) if joins(last, &segment) => last.len += segment.len,
                _ => {
                    if let Some(done) = last.replace(segment) {
                        each(done);
                    }
                }
            })?;
            at += now;
        }
        last.into_iter().for_each(each);
        Ok(())
    }

    /// The first disk of those that do not change while the chain is open: the second one, or the first one where it is
    /// only read.
    fn settled(&self) -> usize {
        usize::from(!self.disks[0].is_read_only())
    }

    /// Fills `buf` with what a disk and those below it have; `false` only without waiting.
    fn read_level(
        &self,
        level: usize,
        offset: u64,
        buf: &mut [u8],
        patience: Patience,
    ) -> Result<bool, DiskError> {
        if level == self.settled() {
            return self.read_settled(offset, buf, patience);
        }
        let disk = self.disks.get(level).ok_or(DiskError::NoParent(offset))?;
        // A parent may be smaller than its child: behind its end there is nothing.
        let there = disk.parameters().disk_size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (buf, behind) = if level == 0 { (buf, &mut [][..]) } else { buf.split_at_mut(there) };
        behind.fill(0);
        if buf.is_empty() {
            return Ok(true);
        }
        let mut plan = ReadPlan::default();
        let found = patience.resolved(disk, || disk.resolve_read(offset, buf.len() as u64, &mut plan));
        if !found.map_err(|error| error.at(offset))? {
            return Ok(false);
        }
        let mut result = Ok(true);
        let mut at = 0;
        for segment in plan.segments() {
            let piece = &mut buf[at..at + segment.len as usize];
            let read = match segment.source {
                SegmentSource::File(from) => patience.read(disk, from, offset + at as u64, piece),
                SegmentSource::Parent => self.read_level(level + 1, offset + at as u64, piece, patience),
                SegmentSource::Zero | SegmentSource::Unmapped | SegmentSource::NeverWritten => {
                    piece.fill(0);
                    Ok(true)
                }
            };
            // All that can be read is, and the first error counts.
            result = result.and_then(|before| read.map(|now| before && now));
            if patience == Patience::None && !matches!(result, Ok(true)) {
                break;
            }
            at += segment.len as usize;
        }
        disk.end_read(&mut plan);
        result
    }

    /// Fills `buf` with what the disks have that do not change: each piece is read where it lies, and no disk is asked
    /// again.
    fn read_settled(
        &self,
        mut offset: u64,
        mut buf: &mut [u8],
        patience: Patience,
    ) -> Result<bool, DiskError> {
        // A cell behind the end would never be known.
        self.disks[0].check_range(offset, buf.len() as u64)?;
        let mut result = Ok(true);
        while !buf.is_empty() {
            let Some((place, len)) = self.runs.find(offset) else {
                if !self.learn(offset / CELL, patience).map_err(|error| error.at(offset))? {
                    return Ok(false);
                }
                continue;
            };
            let (piece, rest) = buf.split_at_mut(len.min(buf.len() as u64) as usize);
            let read = match place {
                Place::File(level, from) => patience.read(&self.disks[level], from, offset, piece),
                Place::Zeroes => {
                    piece.fill(0);
                    Ok(true)
                }
                Place::Base => Err(DiskError::NoParent(offset)),
            };
            // All that can be read is, and the first error counts.
            result = result.and_then(|before| read.map(|now| before && now));
            if patience == Patience::None && !matches!(result, Ok(true)) {
                break;
            }
            (offset, buf) = (offset + piece.len() as u64, rest);
        }
        result
    }

    /// Asks the disks that do not change for a cell, from above, until each byte is known. `false`: that is not known
    /// without waiting.
    fn learn(&self, cell: u64, patience: Patience) -> Result<bool, DiskError> {
        let start = cell * CELL;
        let len = CELL.min(self.size().saturating_sub(start));
        let (mut runs, mut found, mut plan) = (CellRuns::new(len), Vec::new(), ReadPlan::default());
        for (level, disk) in self.disks.iter().enumerate().skip(self.settled()) {
            if !runs.is_open() {
                break;
            }
            // A parent may be smaller than its child: behind its end there is nothing.
            let there = disk.parameters().disk_size.saturating_sub(start).min(len);
            found.clear();
            let mut at = 0;
            if there > 0 {
                if !patience.resolved(disk, || disk.resolve_read(start, there, &mut plan))? {
                    return Ok(false);
                }
                for segment in plan.segments() {
                    let place = match segment.source {
                        SegmentSource::File(from) => Place::File(level, from),
                        SegmentSource::Parent => Place::Base,
                        SegmentSource::Zero | SegmentSource::Unmapped | SegmentSource::NeverWritten => {
                            Place::Zeroes
                        }
                    };
                    Run::new(at, segment.len, place).push_onto(&mut found);
                    at += segment.len;
                }
                disk.end_read(&mut plan);
            }
            if at < len {
                Run::new(at, len - at, Place::Zeroes).push_onto(&mut found);
            }
            runs.asked(&found);
        }
        self.runs.learn(cell, runs);
        Ok(true)
    }

    fn map_level(
        &self,
        level: usize,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(MapSegment),
    ) -> Result<(), DiskError> {
        let disk = self.disks.get(level).ok_or(DiskError::NoParent(offset))?;
        let there =
            if level == 0 { len } else { disk.parameters().disk_size.saturating_sub(offset).min(len) };
        let mut plan = ReadPlan::default();
        if there > 0 {
            disk.resolved(|| disk.resolve_read(offset, there, &mut plan))
                .map_err(|error| error.at(offset))?;
            disk.end_read(&mut plan);
        }
        let mut at = offset;
        for segment in plan.segments() {
            match segment.source {
                SegmentSource::Parent if level + 1 < self.disks.len() => {
                    self.map_level(level + 1, at, segment.len, each)?;
                }
                source => each(MapSegment { offset: at, len: segment.len, source, level }),
            }
            at += segment.len;
        }
        if there < len {
            each(MapSegment { offset: at, len: len - there, source: SegmentSource::NeverWritten, level });
        }
        Ok(())
    }

    /// Writes what a plan of a range from `offset` on says; `copy` as for [`write_by`](Self::write_by).
    fn carry_out(
        &self,
        plan: &mut WritePlan,
        offset: u64,
        copy: &mut dyn FnMut(u64, Range<u64>) -> io::Result<bool>,
    ) -> Result<bool, DiskError> {
        let disk = &self.disks[0];
        let mut copied = false;
        for segment in plan.segments() {
            let written = match segment.fill {
                Fill::Data(from) => disk
                    .storage
                    .check_before(segment.offset + segment.len)
                    .and_then(|()| copy(segment.offset, from..from + segment.len)),
                Fill::Zeroes => disk.storage.zero(segment.offset, segment.len).map(|()| true),
                Fill::Hole => match disk.storage.punch(segment.offset, segment.len) {
                    Ok(false) => disk.storage.zero(segment.offset, segment.len).map(|()| true),
                    other => other,
                },
            };
            match written {
                Ok(true) => copied |= matches!(segment.fill, Fill::Data(_)),
                Ok(false) => {
                    disk.abort(plan);
                    return match copied {
                        false => Ok(false),
                        true => Err(DiskError::storage("writing")(io::Error::other("a part was not copied"))),
                    };
                }
                Err(error) => {
                    let from = if let Fill::Data(from) = segment.fill { from } else { 0 };
                    disk.abort(plan);
                    return Err(DiskError::storage("writing")(error).at(offset + from));
                }
            }
        }
        disk.complete(plan);
        Ok(true)
    }
}

fn joins(last: &MapSegment, next: &MapSegment) -> bool {
    last.level == next.level
        && match (last.source, next.source) {
            (SegmentSource::File(before), SegmentSource::File(after)) => before + last.len == after,
            (before, after) => before == after,
        }
}

/// Asks again where pages of metadata are missing; whatever else is needed is not worth waiting for.
fn with_pages<S: Storage, T>(disk: &Disk<S>, mut ask: impl FnMut() -> Result<T, Stop>) -> Result<T, Stop> {
    loop {
        match ask() {
            Err(Stop::Needs(need @ Need::Page(_))) => disk.provide(need).map_err(Stop::Failed)?,
            answer => return answer,
        }
    }
}

/// Time that a reader has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Waits for the storage.
    Waits,
    /// Waits for nothing.
    None,
}

impl Patience {
    /// Asks until nothing is needed any more; `false`: without waiting nothing comes of it.
    fn resolved<S: Storage>(
        self,
        disk: &Disk<S>,
        mut ask: impl FnMut() -> Result<(), Stop>,
    ) -> Result<bool, DiskError> {
        match self {
            Self::Waits => disk.resolved(ask).map(|()| true),
            Self::None => match ask() {
                Ok(()) => Ok(true),
                Err(Stop::Needs(_)) => Ok(false),
                Err(Stop::Failed(error)) => Err(error),
            },
        }
    }

    /// Fills a piece of what lies at `offset` of a disk from its file; `false`: not without waiting.
    fn read<S: Storage>(
        self,
        disk: &Disk<S>,
        from: u64,
        offset: u64,
        piece: &mut [u8],
    ) -> Result<bool, DiskError> {
        match self {
            Self::Waits => read_file(disk, from, offset, piece).map(|()| true),
            Self::None => Ok(disk.storage.read_now(from, piece)),
        }
    }
}

/// Fills a piece of what lies at `offset` of a disk from its file.
fn read_file<S: Storage>(disk: &Disk<S>, from: u64, offset: u64, piece: &mut [u8]) -> Result<(), DiskError> {
    disk.storage.read_at(from, piece).map_err(|error| {
        // What of the piece is there still.
        let there = disk.storage.len().map_or(0, |len| len.saturating_sub(from).min(piece.len() as u64));
        DiskError::storage("reading")(error).at(offset + there)
    })
}

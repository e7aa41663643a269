//! A disk with its parents, and blocking I/O on it: for tools and tests, and for whoever has a thread to wait on.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, Fill, ReadPlan, Source, Stop, WritePlan};
use crate::error::{DiskError, OpenError};
use crate::format::GuidSource;
use crate::open::OpenOptions;
use crate::storage::{Storage, open_file};
use crate::transition::DiscardMode;

/// How many files a chain may have: OpenVMM's limit.
pub const CHAIN_FILES_MAX: usize = 256;

/// A disk and its parents, the disk first. Only the first one may be writable.
pub struct Chain<S> {
    disks: Vec<Disk<S>>,
    /// The files, where they were opened by name.
    paths: Vec<PathBuf>,
}

/// A piece of the extent map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSegment {
    /// Offset on the disk, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// What is there. [`Source::Parent`] only in a chain whose base is left out ([`Chain::upper`]).
    pub source: Source,
    /// Which disk of the chain knows it, 0 being the first.
    pub level: usize,
}

impl Chain<File> {
    /// Opens a file and, for reading, all its parents by their locators. The search leaves neither the parent's
    /// relative path nor `root`.
    pub fn open_files(
        path: &Path,
        root: &Path,
        options: &OpenOptions,
        mut guids: impl FnMut() -> Box<dyn GuidSource>,
    ) -> Result<Self, OpenError> {
        let disk = Disk::open(open_file(path, !options.read_only)?, options, guids())?;
        Self::with_parents(vec![disk], &[path.to_owned()], root, options, guids)
    }

    /// The same where the first disks are open already; `paths` are their files'.
    pub fn with_parents(
        disks: Vec<Disk<File>>,
        paths: &[PathBuf],
        root: &Path,
        options: &OpenOptions,
        guids: impl FnMut() -> Box<dyn GuidSource>,
    ) -> Result<Self, OpenError> {
        Self::of_disks(disks, paths, root, options, guids)
    }
}

impl<S: Storage + From<File>> Chain<S> {
    /// [`Chain::with_parents`] for a storage that a file is one kind of.
    pub fn of_disks(
        mut disks: Vec<Disk<S>>,
        paths: &[PathBuf],
        root: &Path,
        options: &OpenOptions,
        mut guids: impl FnMut() -> Box<dyn GuidSource>,
    ) -> Result<Self, OpenError> {
        let canonical = |path: &Path| path.canonicalize().map_err(OpenError::access("looking for the file"));
        let root = canonical(root)?;
        let mut paths = paths.iter().map(|path| canonical(path)).collect::<Result<Vec<_>, _>>()?;
        let mut path = paths.last().cloned().unwrap_or_default();
        while let Some(locator) = disks.last().and_then(|disk| disk.parameters().locator.clone()) {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let candidates = locator.candidates(folder, &root);
            let found = candidates.iter().filter_map(|candidate| candidate.canonicalize().ok());
            // Where a symbolic link leads out of the root, nothing is found: who sent the file may have sent the link.
            let mut found = found.filter(|found| found.starts_with(&root));
            let Some(parent) = found.find(|found| found.is_file()) else {
                return Err(OpenError::NoParent(join(&candidates)));
            };
            if paths.contains(&parent) {
                return Err(OpenError::Chain(format!("leads back to {}", parent.display())));
            }
            if disks.len() >= CHAIN_FILES_MAX {
                return Err(OpenError::Chain(format!("has more than {CHAIN_FILES_MAX} files")));
            }
            let options = OpenOptions { cached_pages: options.cached_pages, ..OpenOptions::read_only() };
            disks.push(Disk::open(open_file(&parent, false)?.into(), &options, guids())?);
            path = parent;
            paths.push(path.clone());
        }
        Ok(Self { paths, ..Self::new(disks)? })
    }
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl<S: Storage> Chain<S> {
    /// Puts a chain together, the disk first, and checks that each is the parent that its child was made on.
    pub fn new(disks: Vec<Disk<S>>) -> Result<Self, OpenError> {
        let chain = Self::upper(disks)?;
        match chain.disks.last().map(|last| &last.parameters().locator) {
            Some(Some(locator)) => Err(OpenError::NoParent(
                locator.get(crate::Locator::RELATIVE).unwrap_or("a file that was not given").into(),
            )),
            _ => Ok(chain),
        }
    }

    /// The same without its base: what only the base has is told as [`Source::Parent`], and cannot be read.
    pub fn upper(disks: Vec<Disk<S>>) -> Result<Self, OpenError> {
        for pair in disks.windows(2) {
            let (child, parent) = (&pair[0], &pair[1]);
            let Some(locator) = &child.parameters().locator else {
                return Err(OpenError::ParentUnfit(
                    "a disk without a parent locator was given a parent".into(),
                ));
            };
            if !locator.matches(parent.data_write_guid()) {
                let (expected, found) = (locator.linkage(), parent.data_write_guid());
                return Err(OpenError::ParentChanged { expected, found });
            }
            let [ours, theirs] = [child, parent].map(|disk| disk.parameters().logical_sector);
            if ours != theirs {
                let problem = format!("the child has sectors of {ours} bytes, the parent of {theirs}");
                return Err(OpenError::ParentUnfit(problem));
            }
            if !parent.is_read_only() {
                return Err(OpenError::ParentUnfit("a parent must be open for reading only".into()));
            }
        }
        match disks.is_empty() {
            true => Err(OpenError::Chain("has no file".into())),
            false => Ok(Self { disks, paths: Vec::new() }),
        }
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
        self.read_level(0, offset, buf)
    }

    /// Fills `buf` with what the parent has at `offset`.
    pub fn read_parent_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.read_level(1, offset, buf)
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let mut plan = WritePlan::default();
        let disk = &self.disks[0];
        resolved(disk, || disk.begin_write(offset, data.len() as u64, &mut plan))?;
        let mut write = |to, part: Range<u64>| {
            disk.storage().write_at(to, &data[part.start as usize..part.end as usize]).map(|()| true)
        };
        self.carry_out(&mut plan, &mut write).map(drop)
    }

    /// Writes what `copy` puts into the file: it is called with a place in the file, and what of the range belongs
    /// there, and says whether it did. Where it did not nothing is written, and this is `false`.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    pub fn write_by(
        &self,
        offset: u64,
        len: u64,
        copy: &mut dyn FnMut(u64, Range<u64>) -> io::Result<bool>,
    ) -> Result<bool, DiskError> {
        let mut plan = WritePlan::default();
        let disk = &self.disks[0];
        resolved(disk, || disk.begin_write(offset, len, &mut plan))?;
        self.carry_out(&mut plan, copy)
    }

    /// Gives a range up; it reads as zeroes afterwards, where `mode` does not allow less.
    pub fn discard(&self, offset: u64, len: u64, mode: DiscardMode) -> Result<(), DiskError> {
        let mut plan = WritePlan::default();
        let disk = &self.disks[0];
        resolved(disk, || disk.begin_discard(offset, len, mode, &mut plan))?;
        self.carry_out(&mut plan, &mut |_, _| Ok(false)).map(drop)
    }

    /// Makes everything durable.
    pub fn flush(&self) -> Result<(), DiskError> {
        self.disks[0].flush()
    }

    /// Closes the disk.
    pub fn close(self) -> Result<(), DiskError> {
        self.disks.into_iter().next().map_or(Ok(()), Disk::close)
    }

    /// What lies behind a range, in order, without gaps.
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

    fn read_level(&self, level: usize, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let disk = self.disks.get(level).ok_or(DiskError::NoParent(offset))?;
        // A parent may be smaller than its child: behind its end there is nothing.
        let there = disk.parameters().disk_size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (buf, behind) = if level == 0 { (buf, &mut [][..]) } else { buf.split_at_mut(there) };
        behind.fill(0);
        if buf.is_empty() {
            return Ok(());
        }
        let mut plan = ReadPlan::default();
        resolved(disk, || disk.resolve_read(offset, buf.len() as u64, &mut plan))?;
        let mut result = Ok(());
        let mut at = 0;
        for segment in plan.segments() {
            let piece = &mut buf[at..at + segment.len as usize];
            let read = match segment.source {
                Source::File(from) => {
                    disk.storage().read_at(from, piece).map_err(DiskError::storage("reading"))
                }
                Source::Parent => self.read_level(level + 1, offset + at as u64, piece),
                Source::Zero | Source::Unmapped | Source::NeverWritten => {
                    piece.fill(0);
                    Ok(())
                }
            };
            result = result.and(read);
            at += segment.len as usize;
        }
        disk.end_read(&mut plan);
        result
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
            resolved(disk, || disk.resolve_read(offset, there, &mut plan))?;
            disk.end_read(&mut plan);
        }
        let mut at = offset;
        for segment in plan.segments() {
            match segment.source {
                Source::Parent if level + 1 < self.disks.len() => {
                    self.map_level(level + 1, at, segment.len, each)?;
                }
                source => each(MapSegment { offset: at, len: segment.len, source, level }),
            }
            at += segment.len;
        }
        if there < len {
            each(MapSegment { offset: at, len: len - there, source: Source::NeverWritten, level });
        }
        Ok(())
    }

    /// `copy` as for [`write_by`](Self::write_by).
    fn carry_out(
        &self,
        plan: &mut WritePlan,
        copy: &mut dyn FnMut(u64, Range<u64>) -> io::Result<bool>,
    ) -> Result<bool, DiskError> {
        let disk = &self.disks[0];
        for segment in plan.segments() {
            let written = match segment.fill {
                Fill::Data(from) => copy(segment.offset, from..from + segment.len),
                Fill::Zeroes => disk.storage().zero(segment.offset, segment.len).map(|()| true),
                Fill::Hole => match disk.storage().punch(segment.offset, segment.len) {
                    Ok(false) => disk.storage().zero(segment.offset, segment.len).map(|()| true),
                    other => other,
                },
            };
            match written {
                Ok(true) => {}
                Ok(false) => {
                    disk.abort(plan);
                    return Ok(false);
                }
                Err(error) => {
                    disk.abort(plan);
                    return Err(DiskError::storage("writing")(error));
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
            (Source::File(before), Source::File(after)) => before + last.len == after,
            (before, after) => before == after,
        }
}

/// Asks until nothing is needed any more.
fn resolved<S: Storage>(disk: &Disk<S>, mut ask: impl FnMut() -> Result<(), Stop>) -> Result<(), DiskError> {
    loop {
        match ask() {
            Ok(()) => return Ok(()),
            Err(Stop::Needs(need)) => disk.provide(need)?,
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
}

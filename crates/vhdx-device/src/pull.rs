//! A pull: a differencing disk is used while the rest of it comes from its parent, until it needs that no longer.
//!
//! ```text
//!   1  blocks   each that the file does not have whole: the parent's bytes, from its source, which proves them
//!   2  alone    what became partial meanwhile, a flush, the parent out of the metadata: `lunway_vhdx::detach`
//!   3  release  the parent is not needed any more
//! ```
//!
//! Each step leaves a whole file: after a kill the next pull goes on where this one was. While the parent does not
//! answer, reads of what is not there yet fail when its device says so, and everything else goes on.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Io, OwnerKey, Pull};
use lunway_vhdx::{
    Chain, Completed, CreateOptions, Disk, DiskKind, EditError, Locator, VhdxOpenError, VhdxOpenOptions,
    create, detach,
};

use crate::backing::Backing;
use crate::chain_state::ChainState;
use crate::device::{Inner, VhdxDevice, VhdxDeviceOpenError, meaning, no_guids};
use crate::unopened::Unopened;
use crate::{names, random_guids};

/// While the device is used, a block is followed by a rest of this many times what it took: a fifth of the disks' time
/// is the pull's at most, as of a compaction.
const BUSY_REST: u32 = 4;
/// Longest such rest: a parent that answers late is no reason to stop for minutes.
const REST_MAX: Duration = Duration::from_secs(1);
/// Bytes written between two flushes, as of a compaction: a flush of the initiators waits for one of ours.
const BETWEEN_FLUSHES: u64 = 256 << 20;
/// Interval of attempts after an error: a share that is back is used soon, and one that is gone is not asked for much.
const RETRY_TIME: Duration = Duration::from_secs(2);
/// Blocks in a row whose bytes the parent does not give, after which the others are not asked for: it is gone. Of one
/// that is damaged the rest is copied.
const FAILURES_MAX: u32 = 3;
/// Rest where a write waits for the block that is to be completed.
const YIELD_TIME: Duration = Duration::from_millis(5);

/// Source of what a pulled disk lacks: its parent's bytes, which it has compared with what they should be.
pub trait PullSource: Send + Sync {
    /// The first place at `offset` or behind it where the parent may have data; `None`: there is none. Blocks.
    ///
    /// # Errors
    ///
    /// Why that is not known now.
    fn next_data(&self, offset: u64) -> Result<Option<u64>, BlockError>;

    /// Fills `buf` with the parent's bytes from `offset` on. `false`: all of them are zeroes. Blocks.
    ///
    /// # Errors
    ///
    /// Where they cannot be read, or are damaged.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, BlockError>;
}

/// The parent of a disk that is pulled.
pub struct PullParent {
    /// The parent as a device: it answers reads of what is not in the file yet, in time.
    pub device: Arc<dyn BlockDevice>,
    /// What is copied.
    pub source: Arc<dyn PullSource>,
    /// Called on a thread once the file needs the parent no longer.
    pub release: Box<dyn FnOnce() + Send>,
}

/// A pull under way.
pub(crate) struct Pulling {
    device: Arc<dyn BlockDevice>,
    copied: AtomicU64,
    left: AtomicU64,
    begun: Instant,
    error: Mutex<Option<String>>,
    /// The parent is copied: not for a disk that is on it for as long as it is open.
    is_copied: bool,
    /// Its thread ends with this.
    _stop: Sender<()>,
}

impl Pulling {
    fn progress(&self) -> Pull {
        Pull {
            copied: self.copied.load(Ordering::Relaxed),
            left: self.left.load(Ordering::Relaxed),
            elapsed: self.begun.elapsed(),
            error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn tell(&self, error: Option<String>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

impl VhdxDevice {
    /// Opens a differencing disk on a parent that is no file beside it, and pulls what it lacks unless it is opened for
    /// reading alone. The caller has seen to it that the parent is the one that the file names. Blocks.
    ///
    /// While it lacks something the disk is neither resized nor snapshotted nor compacted.
    ///
    /// # Errors
    ///
    /// [`VhdxDeviceOpenError`], which says what is wrong and where.
    pub fn open_pulled(
        path: &Path,
        parent: PullParent,
        read_only: bool,
    ) -> Result<Self, VhdxDeviceOpenError> {
        let PullParent { device, source, release } = parent;
        let (inner, pulling, stopped) = open_on(path, device, read_only, true)?;
        if !read_only {
            let puller =
                Puller { inner: Arc::downgrade(&inner), pulling: Arc::downgrade(&pulling), source, stopped };
            let started = thread::Builder::new().name("vhdx-pull".to_owned()).spawn(move || {
                if puller.run() {
                    release();
                }
            });
            started.map_err(|source| VhdxDeviceOpenError {
                path: path.to_owned(),
                source: VhdxOpenError::Access { what: "starting a thread", source },
            })?;
        }
        Ok(Self { inner })
    }

    /// The same of a disk that takes nothing over: what it lacks is read from its parent for as long as it is open, and
    /// writes go to the file alone. Blocks.
    ///
    /// # Errors
    ///
    /// As of [`open_pulled`](Self::open_pulled).
    pub fn open_over(path: &Path, parent: Arc<dyn BlockDevice>) -> Result<Self, VhdxDeviceOpenError> {
        let (inner, ..) = open_on(path, parent, false, false)?;
        Ok(Self { inner })
    }

    /// The same on a new file without a name, which nothing else can open: what is written ends with the device, also
    /// with a process that is killed. `file` has no content yet. Blocks.
    ///
    /// # Errors
    ///
    /// What is wrong with the file, or with the parent's size.
    pub fn discarding_over(file: File, parent: Arc<dyn BlockDevice>) -> Result<Self, VhdxOpenError> {
        let access = |what, source| VhdxOpenError::Access { what, source };
        let mut guids = random_guids()
            .map_err(|error| access("asking for random numbers", std::io::Error::other(error.to_string())))?;
        let geometry = parent.geometry();
        let mut options = CreateOptions::new(DiskKind::Differencing, geometry.size, guids.next());
        options.parameters.logical_sector = geometry.logical_sector;
        // It is never looked for: the device is at hand.
        options.parameters.locator = Some(Locator::new(guids.next(), "./parent", None));
        create(&file, &options, guids.as_mut())
            .map_err(|error| access("making a file for what is written", std::io::Error::other(error)))?;
        let disk = Disk::open(Backing::from(file), &VhdxOpenOptions::writable(), guids)?;
        let (inner, ..) = over(Chain::upper(vec![disk])?, parent, false);
        Ok(Self { inner })
    }

    /// Reads where the file may not have all.
    pub(crate) fn read_pulled(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let inner = Arc::clone(&self.inner);
        let own = read_own(&inner, offset, buf);
        own.then(move |own| match own {
            Ok((buf, lacking)) if lacking.is_empty() => Io::ok(buf),
            Ok((buf, lacking)) => {
                let Some(parent) = inner.parent() else { return read_again(inner, offset, buf) };
                // One question for all of it.
                let (start, end) = (lacking[0].start, lacking[lacking.len() - 1].end);
                let asked = parent.read(offset + start as u64, Buf::for_overwrite(end - start));
                asked.then(move |answer| match answer {
                    Ok(parts) => {
                        let mut buf = buf;
                        for part in lacking {
                            let from = part.start - start..part.end - start;
                            buf[part].copy_from_slice(&parts[from]);
                        }
                        Io::ok(buf)
                    }
                    // It may have come into the file meanwhile, and the parent is not needed any more.
                    Err(error) => read_own(&inner, offset, buf).map(move |own| match own {
                        Ok((buf, lacking)) if lacking.is_empty() => Ok(buf),
                        _ => Err(error),
                    }),
                })
            }
            Err(error) => Io::err(error),
        })
    }
}

/// A disk on another device, and what ends its pull.
type OnParent = (Arc<Inner>, Arc<Pulling>, Receiver<()>);

/// Opens a differencing disk on another device.
fn open_on(
    path: &Path,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    is_copied: bool,
) -> Result<OnParent, VhdxDeviceOpenError> {
    let failed = |source| VhdxDeviceOpenError { path: path.to_owned(), source };
    let access = |what, source| failed(VhdxOpenError::Access { what, source });
    let options = if read_only { VhdxOpenOptions::read_only() } else { VhdxOpenOptions::writable() };
    let guids = match read_only {
        true => no_guids(),
        false => random_guids()
            .map_err(|error| access("asking for random numbers", std::io::Error::other(error.to_string())))?,
    };
    let canonical = path.canonicalize().map_err(|source| access("looking for the file", source))?;
    let chain = lunway_vhdx::open_file(&canonical, !read_only)
        .and_then(|file| Disk::open(Backing::from(file), &options, guids))
        .and_then(|disk| Chain::upper_of_files(vec![disk], vec![canonical]))
        .map_err(failed)?;
    Ok(over(chain, device, is_copied))
}

/// A disk that is on another device.
fn over(chain: Chain<Backing>, device: Arc<dyn BlockDevice>, is_copied: bool) -> OnParent {
    let (stop, stopped) = channel();
    let pulling = Arc::new(Pulling {
        device,
        copied: AtomicU64::new(0),
        left: AtomicU64::new(0),
        begun: Instant::now(),
        error: Mutex::default(),
        is_copied,
        _stop: stop,
    });
    let inner = Arc::new(Inner::over(chain, &pulling));
    (inner, pulling, stopped)
}

/// A buffer, and the parts of it that the parent has.
type Own = (Buf, Vec<std::ops::Range<usize>>);

/// Reads what the file has.
fn read_own(inner: &Arc<Inner>, offset: u64, mut buf: Buf) -> Io<Result<Own, BlockError>> {
    let reading = Arc::clone(inner);
    inner.workers.reads.io(move || {
        reading.operations.fetch_add(1, Ordering::Relaxed);
        let lacking = reading.with_range(offset, |chain| chain.read_own(offset, &mut buf))?;
        Ok((buf, lacking))
    })
}

/// Reads a disk that has come to stand alone since it was asked.
fn read_again(inner: Arc<Inner>, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
    read_own(&inner, offset, buf).map(move |own| match own? {
        (buf, lacking) if lacking.is_empty() => Ok(buf),
        _ => Err(BlockError::Medium { offset }),
    })
}

/// The thread of a pull.
struct Puller {
    inner: Weak<Inner>,
    pulling: Weak<Pulling>,
    source: Arc<dyn PullSource>,
    stopped: Receiver<()>,
}

/// Reason why a pass over the disk ended early.
enum End {
    /// The device has no user any more.
    Left,
    /// It is tried again.
    Failed(BlockError),
}

impl From<BlockError> for End {
    fn from(error: BlockError) -> Self {
        Self::Failed(error)
    }
}

impl Puller {
    /// Pulls until the disk stands alone: `true`; or until its device ends.
    fn run(&self) -> bool {
        loop {
            match self.pull() {
                Ok(()) => return true,
                Err(End::Left) => return false,
                Err(End::Failed(error)) => {
                    let Some(pulling) = self.pulling.upgrade() else { return false };
                    if pulling.progress().error.is_none() {
                        tracing::warn!(
                            "a disk that is pulled from its parent does not get on, and is tried again every {} s: {error}",
                            RETRY_TIME.as_secs()
                        );
                    }
                    pulling.tell(Some(error.to_string()));
                }
            }
            if self.is_stopped_within(RETRY_TIME) {
                return false;
            }
        }
    }

    fn is_stopped_within(&self, time: Duration) -> bool {
        !matches!(self.stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }

    /// The device, for as long as a step of the pull takes: never while the parent is asked.
    fn inner(&self) -> Result<Arc<Inner>, End> {
        let inner = self.inner.upgrade().ok_or(End::Left)?;
        if inner.is_left() || inner.is_closed() {
            return Err(End::Left);
        }
        inner.wait_for_others();
        Ok(inner)
    }

    fn pulling(&self) -> Result<Arc<Pulling>, End> {
        self.pulling.upgrade().ok_or(End::Left)
    }

    fn pull(&self) -> Result<(), End> {
        let (size, block_size) = self.inner()?.look(|chain| {
            let parameters = chain.disks()[0].parameters();
            (parameters.disk_size, u64::from(parameters.block_size))
        })?;
        self.count(block_size)?;
        let mut pass = Pass {
            puller: self,
            size,
            block_size,
            buf: Vec::new(),
            since_flush: 0,
            operations: 0,
            failed: None,
            failures: 0,
        };
        let mut at = 0;
        while let Some(block) = self.next(at, block_size)? {
            pass.block(block)?;
            at = block + 1;
        }
        // Blocks that the parent has as zeroes, and of which a part was written.
        let mut at = 0;
        while let Some(block) = self.inner()?.with(|chain| chain.disks()[0].next_partial(at))? {
            pass.block(block)?;
            at = block + 1;
        }
        if let Some(error) = pass.failed {
            return Err(End::Failed(error));
        }
        Ok(self.inner()?.stand_alone()?)
    }

    /// Counts what is left, so that people know how long it takes.
    fn count(&self, block_size: u64) -> Result<(), End> {
        let (mut at, mut left) = (0, 0);
        while let Some(block) = self.next(at, block_size)? {
            left += block_size;
            at = block + 1;
        }
        self.pulling()?.left.store(left, Ordering::Relaxed);
        Ok(())
    }

    /// The next block that the file lacks, and of which the parent may have data.
    fn next(&self, block: u64, block_size: u64) -> Result<Option<u64>, End> {
        let mut at = block;
        loop {
            let Some(data) = self.source.next_data(at * block_size)? else { return Ok(None) };
            let of_data = (data / block_size).max(at);
            let incomplete = self.inner()?.with(|chain| chain.disks()[0].next_incomplete(of_data))?;
            match incomplete {
                Some(block) if block == of_data => return Ok(Some(block)),
                Some(block) => at = block,
                None => return Ok(None),
            }
        }
    }
}

/// One pass over the disk.
struct Pass<'a> {
    puller: &'a Puller,
    size: u64,
    block_size: u64,
    buf: Vec<u8>,
    since_flush: u64,
    /// Operations of the device when this looked last.
    operations: u64,
    /// The first block that could not be read, whose error is told at the end.
    failed: Option<BlockError>,
    /// Such blocks in a row.
    failures: u32,
}

impl Pass<'_> {
    /// Completes one block, and rests.
    fn block(&mut self, block: u64) -> Result<(), End> {
        let begun = Instant::now();
        let offset = block * self.block_size;
        self.buf.resize(self.block_size.min(self.size - offset) as usize, 0);
        let has_data = match self.puller.source.read(offset, &mut self.buf) {
            Ok(has_data) => has_data,
            Err(error) => {
                self.failures += 1;
                self.failed.get_or_insert_with(|| error.clone());
                return if self.failures < FAILURES_MAX { Ok(()) } else { Err(End::Failed(error)) };
            }
        };
        self.failures = 0;
        let data = has_data.then_some(&self.buf[..]);
        loop {
            let inner = self.puller.inner()?;
            match inner.with(|chain| chain.disks()[0].complete_block(block, data))? {
                Completed::Written(bytes) => {
                    inner.dirtied(OwnerKey::NONE.group(), bytes);
                    let pulling = self.puller.pulling()?;
                    if self.failed.is_none() {
                        pulling.tell(None);
                    }
                    pulling.copied.fetch_add(self.block_size, Ordering::Relaxed);
                    self.since_flush += bytes;
                    break;
                }
                Completed::Nothing => break,
                Completed::Yielded => {
                    drop(inner);
                    if self.puller.is_stopped_within(YIELD_TIME) {
                        return Err(End::Left);
                    }
                }
            }
        }
        let pulling = self.puller.pulling()?;
        let less = |left: u64| Some(left.saturating_sub(self.block_size));
        let _ = pulling.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        drop(pulling);
        if self.since_flush >= BETWEEN_FLUSHES {
            self.puller.inner()?.flush()?;
            self.since_flush = 0;
        }
        self.rest(begun.elapsed())
    }

    /// Leaves the disks to the device's users for a time.
    fn rest(&mut self, took: Duration) -> Result<(), End> {
        let operations = self.puller.inner()?.operations.load(Ordering::Relaxed);
        let is_busy = std::mem::replace(&mut self.operations, operations) != operations;
        let rest = (took * BUSY_REST).min(REST_MAX);
        match is_busy && self.puller.is_stopped_within(rest) {
            true => Err(End::Left),
            false => Ok(()),
        }
    }
}

impl Inner {
    /// The parent of a disk that lacks something.
    fn parent(&self) -> Option<Arc<dyn BlockDevice>> {
        self.pulling().map(|pulling| Arc::clone(&pulling.device))
    }

    /// Progress of the pull, while there is one.
    pub(crate) fn pull(&self) -> Option<Pull> {
        self.pulling().filter(|pulling| pulling.is_copied).map(|pulling| pulling.progress())
    }

    /// Refuses what needs the disk to stand alone.
    pub(crate) fn refuse_pulled(&self) -> Result<(), String> {
        match self.pulling() {
            None => Ok(()),
            Some(pulling) if !pulling.is_copied => {
                Err("the disk is on a parent elsewhere for as long as it is open".to_owned())
            }
            Some(_) => {
                Err("the disk is still being completed from its parent: try again when it stands alone"
                    .to_owned())
            }
        }
    }

    /// Makes the disk one without a parent. All blocks are there but those of which parent and file have nothing.
    ///
    /// A disk is not opened again without its name: while that does not lead to the file, this fails and changes
    /// nothing.
    fn stand_alone(&self) -> Result<(), BlockError> {
        let other = |message| BlockError::Io { kind: std::io::ErrorKind::Other, message };
        let refused = |error: EditError| match error {
            EditError::Disk(error) => meaning(error),
            error => other(error.to_string()),
        };
        // Before others are held back for it.
        self.look(names::check)?.map_err(other)?;
        let mut guids =
            random_guids().map_err(|error| BlockError::from(std::io::Error::other(error.to_string())))?;
        // Most of what there is to flush is durable before others wait.
        self.flush()?;
        let mut state = self.alone();
        let chain = state.chain()?;
        let disk = &chain.disks()[0];
        // Written in part since the last look, which only blocks can be that the parent has as zeroes.
        let mut at = 0;
        while let Some(block) = disk.next_partial(at).map_err(meaning)? {
            match disk.complete_block(block, None).map_err(meaning)? {
                Completed::Yielded => return Err(BlockError::Busy),
                Completed::Written(_) | Completed::Nothing => at = block + 1,
            }
        }
        let unopened = Unopened::of(chain)?;
        chain.flush().map_err(meaning)?;
        names::check(chain).map_err(other)?;
        let closed = state.take().map_or(Ok(()), |chain| chain.close().map_err(EditError::Disk));
        let detached = closed.and_then(|()| detach(unopened.file(), guids.as_mut()));
        *state = unopened.open();
        let is_alone = match &*state {
            ChainState::Open(chain) => chain.disks()[0].parameters().locator.is_none(),
            ChainState::Unopened(_) | ChainState::Closed => detached.is_ok(),
        };
        if is_alone {
            self.end_pull();
        }
        self.go_on(state);
        if is_alone { Ok(()) } else { Err(detached.map_err(refused).err().unwrap_or(BlockError::Busy)) }
    }
}

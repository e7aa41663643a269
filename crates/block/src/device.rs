//! The trait.

use std::path::Path;
use std::sync::Arc;

use crate::{
    BlockError, Buf, Caching, Compaction, Extent, ExtentKind, FileRange, Geometry, Identity, Io, Lent,
    PathSample, Permit, Pull, SharedBuf,
};

/// Durability of a write: the condition on which it may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As soon as the device has it: a later flush makes it durable.
    Volatile,
    /// Only on stable storage (SCSI's FUA).
    Stable,
}

/// Treatment of the space behind the range by `write_zeroes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroing {
    /// The space must stay allocated.
    KeepAllocated,
    /// The device may give the space back, provided that reads return zeroes.
    MayUnmap,
}

/// Space in a device's backing store, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Space that this device occupies.
    pub allocated: u64,
    /// Space that everything in the store occupies: this device, and whatever shares the store with it.
    pub used: u64,
    /// Space left for this device.
    pub available: u64,
}

impl Space {
    /// Fill level of the store, percent, rounded up, so that 100 means that nothing is left.
    pub fn percent(&self) -> u8 {
        let (used, all) = (u128::from(self.used), u128::from(self.used) + u128::from(self.available));
        (used * 100).div_ceil(all.max(1)) as u8
    }
}

/// Called with the new geometry after a device has changed its size.
pub type ResizeCallback = Box<dyn Fn(Geometry) + Send + Sync>;

/// Makes the switch of a snapshot durable, for instance in the configuration that names the device: see
/// [`BlockDevice::snapshot`]. Blocks; an error has changed nothing.
pub type SnapshotCommit = Box<dyn FnOnce() -> Result<(), BlockError> + Send>;

/// News from a device about writes that it acknowledged and that no flush has made durable yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheNews {
    /// They may be lost; the next flush finds out, and succeeds if they are not.
    InDoubt,
    /// They are lost, as far as can be known. Flushes that are under way fail with [`BlockError::UnflushedLost`]; later
    /// ones cover what is written from now on.
    Lost {
        /// See [`BlockError::UnflushedLost`].
        reported: bool,
    },
}

/// Called with news of a device's unflushed writes.
pub type CacheCallback = Box<dyn Fn(CacheNews) + Send + Sync>;

/// A random-access block volume.
///
/// # Contract
///
/// - Offsets and lengths are bytes. Both must be multiples of `geometry().logical_sector`, else
///   [`BlockError::Misaligned`]; a range that leaves the device is [`BlockError::OutOfRange`]. Implementations call
///   [`Geometry::check`] first and nothing else needs to be checked by callers. Empty ranges succeed.
/// - `max_transfer` is advice to callers: an implementation accepts any length that fits the device.
/// - Operations in flight at the same time have no order. One issued after another's completion sees its effect.
/// - A completed write is visible to every later read. It is durable after a later `flush` completes, or at once with
///   [`Durability::Stable`].
/// - No method waits for a disk, a server or a lock that is held while one is waited for, nor does dropping the device:
///   each is called on threads that serve other devices as well. What takes time is a pending [`Io`]; what has no
///   [`Io`] is known already.
/// - Dropping a pending [`Io`] abandons the answer, not the operation: it may still happen.
/// - A device around another is a [`Layer`](crate::Layer), which passes on what it does not change.
/// - A flush error is sticky: once `flush` has failed, every flush fails until the failure was reported once.
///   Where a device has several users, [`Openers`](crate::decorate::Openers) has it reported once to each.
pub trait BlockDevice: Send + Sync + 'static {
    /// Size, sectors and limits as they are now. Cheap: called for each I/O.
    fn geometry(&self) -> Geometry;

    /// Fills all of `buf` from `offset` and gives it back.
    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>>;

    /// Writes all of `data` at `offset`.
    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>>;

    /// Makes every completed write durable.
    fn flush(&self) -> Io<Result<(), BlockError>>;

    /// Tells the device that the range is no longer needed. Afterwards it reads as zeroes if
    /// [`Geometry::unmap`] says so, else as anything. May do less than asked.
    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry().check_write(offset, len))
    }

    /// Makes the range read as zeroes.
    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>>;

    /// Extents of the range, in order and without gaps from `offset` on: to its end, or to the end of at least
    /// `count` pieces, the last of which may go on. A device that finds its pieces one by one looks for no more; others
    /// tell everything. A device that cannot tell says that it is all data.
    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        let _ = count;
        Io::Ready(self.geometry().check(offset, len).map(|()| match len {
            0 => Vec::new(),
            _ => vec![Extent { offset, len, kind: ExtentKind::Data }],
        }))
    }

    /// Returns the location of the range in a file of this host, if all of its bytes lie there contiguously and do not
    /// change: that is, for a device opened read-only. `None` otherwise. The caller then reads past the device, so a
    /// [`Layer`](crate::Layer) answers `None`.
    fn lend(&self, offset: u64, len: u64) -> Io<Result<Option<FileRange>, BlockError>> {
        Io::Ready(self.geometry().check(offset, len).map(|()| None))
    }

    /// Lends the range where it lies in this process's memory, so that it can be sent from there: see [`Lent`]. `None`
    /// for others, for what is shorter than [`Lent::MIN`], longer than the device copies at once, does not begin at a
    /// [page](Lent::PAGE), or is beyond its end: then it is [read](Self::read). Cheap: called for each long read. The
    /// caller reads past the device, so a [`Layer`](crate::Layer) answers `None` unless its reads are those of the
    /// device inside.
    fn lend_memory(&self, offset: u64, len: usize) -> Option<Lent> {
        let _ = (offset, len);
        None
    }

    /// Writes what another file holds, without its bytes passing through this process: the host's kernel has both files
    /// share them, or copies them. `false`: not these, see [`FileRange::put_into`], and nothing has changed; the bytes
    /// have to be [written](Self::write). As durable as a volatile write. A [`Layer`](crate::Layer) answers `false`.
    fn adopt(&self, offset: u64, from: FileRange) -> Io<Result<bool, BlockError>> {
        Io::Ready(self.geometry().check_write(offset, from.len).map(|()| false))
    }

    /// Says whether what was read so far is what the device held: asks a back end from which others can take a disk
    /// away while it is read, so that reads are answered with something else and without an error. After the last read
    /// of a copy, before that counts as one. Other devices answer at once.
    fn confirm(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    /// Changes the size, durably. What a smaller size cuts off is gone; what a larger one adds reads as zeroes.
    /// Resizes happen one after another; the callbacks of [`on_resize`](Self::on_resize) are called before this
    /// answers. An operation in flight beyond a new end fails or has no effect. A device whose size is decided
    /// elsewhere takes the size that it has by now, and no other. Nothing is changed before `permit`
    /// [says so](Permit::begin). A read-only device refuses it as any change.
    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        let _ = (size, permit);
        Io::err(if self.geometry().read_only { BlockError::ReadOnly } else { BlockError::Unsupported })
    }

    /// Freezes what the device holds, and goes on with a new file `leaf` on top of it, which must not exist: all later
    /// writes go there. Everything that was completed before is in the frozen state, durably, and nothing else.
    /// Operations wait meanwhile.
    ///
    /// Three steps, so that a kill at any moment leaves either the old device or the new one, whole: the new file is
    /// made under another name; `commit` writes down that the device is `leaf` from now on; the file gets its name. A
    /// device that is opened as `leaf` finishes the third step where it is missing. An error, `commit`'s too, leaves
    /// the device as it was, unless it is [`BlockError::Gone`].
    fn snapshot(&self, leaf: &Path, commit: SnapshotCommit) -> Io<Result<(), BlockError>> {
        let _ = (leaf, commit);
        Io::err(BlockError::Unsupported)
    }

    /// Makes the file behind the device shorter while it is used: gives up what is free where the file systems are
    /// frozen for it, moves data from the end into holes, and cuts. Answers when all is done, or soon after `task` was
    /// [cancelled](Compaction::cancel): that is no error. Other operations go on meanwhile; where one would have to
    /// wait, the compaction does. A kill at any moment loses nothing, and the next compaction goes on where this one
    /// was. One at a time: another is [`BlockError::Busy`]. A device without a file that has holes is
    /// [`BlockError::Unsupported`].
    fn compact(&self, task: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        drop(task);
        Io::err(BlockError::Unsupported)
    }

    /// Ends the device for all who use it: waits for what is under way, gives up what others wait for (sessions,
    /// locks), and leaves behind what the next start finds in order. Later operations are refused as
    /// [`BlockError::Gone`] where there is something to give up. It takes as long as it takes: a caller that waits no
    /// longer drops the [`Io`], and the end goes on.
    ///
    /// An error says that something that was acknowledged may be lost, or that the next start has something to repair;
    /// the device is closed all the same. A flush comes before it: closing alone makes nothing durable. Once closed,
    /// further calls succeed. A device that has nothing to give up answers at once.
    fn close(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    /// Identity of the disk. A device without names is never known to be the same as another.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// Progress of a device that fetches what it lacks from elsewhere in the background; `None`: it lacks nothing.
    /// Never waits.
    fn pull(&self) -> Option<Pull> {
        None
    }

    /// Used and available space of the backing store; `None` where it is not known. Never waits for the store: returns
    /// the last known values, which are refreshed elsewhere. They are up to 5 seconds old, or 1 under repeated queries.
    /// Those of a store that has stopped answering are not known any more after half a minute.
    fn space(&self) -> Option<Space> {
        None
    }

    /// Fault of the file behind the device, a sentence for people: its name leads elsewhere, or another program has cut
    /// it. `None`: nothing is known to be. Never waits for a file system: this is what is known, and has that looked at
    /// again elsewhere. Some seconds old.
    fn backing(&self) -> Option<String> {
        None
    }

    /// Fault of the name of a file behind the device, a sentence for people: it is gone, or leads to another file, so
    /// that data may end with the device. `None`: none, or that cannot be told. Asks the file system, and waits for it:
    /// not on a core.
    fn lost_name(&self) -> Option<String> {
        None
    }

    /// The ways by which data reaches the device, in an order that stays; none where there is nothing to tell apart.
    /// Not for each I/O: a call may take a lock and ask the kernel.
    fn paths(&self) -> Vec<PathSample> {
        Vec::new()
    }

    /// Known caching between the caller and the medium. Cheap.
    fn caching(&self) -> Caching {
        Caching::Unknown
    }

    /// Asks to be called after each change of size. A device of fixed size keeps nothing. The callback may come on any
    /// thread, and must not call `resize` or `on_resize` of the same device.
    fn on_resize(&self, callback: ResizeCallback) {
        drop(callback);
    }

    /// Asks to be told when unflushed writes may be lost: **before** an operation is answered that was carried out
    /// after the loss. A device that cannot lose them without failing keeps nothing. With a listener the loss is the
    /// listener's business: a flush that begins after [`CacheNews::Lost`] does not fail for it again.
    ///
    /// The callback may come on any thread and with locks of the device held: it takes note, and calls no method of the
    /// device.
    fn on_cache_news(&self, callback: CacheCallback) {
        drop(callback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_full_only_when_nothing_is_left() {
        let percent = |used, available| Space { allocated: 0, used, available }.percent();
        assert_eq!([percent(0, 0), percent(0, 100), percent(1, 999), percent(80, 20)], [0, 0, 1, 80]);
        assert_eq!([percent(100, 0), percent(u64::MAX, u64::MAX)], [100, 50]);
    }
}

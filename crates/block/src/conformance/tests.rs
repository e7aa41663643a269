//! Devices that do something wrong, each found out by the check that is there for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Buf, Durability, Extent, ExtentKind, Geometry, Permit, ResizeCallback, SharedBuf, Zeroing};

/// Misbehaviour of a [`Broken`] device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    FirstSectorOfLongReads,
    LastSectorOfWrites,
    WritesOneSectorAhead,
    BlocksBeginAtTheirStart,
    WritesOfHalves,
    FlushFails,
    StableWritesAreLost,
    UnmapLeavesTheLast,
    ZeroesTooMuch,
    ExtentsHideData,
    ExtentsHaveGaps,
    FirstExtentsAreCutOff,
    ResizeIsNotTold,
    ResizeKeepsWhatWasCutOff,
    EmptyRangesFail,
    AlignmentIsNotChecked,
    TheEndIsNotChecked,
    EveryTwentiethWriteIsLost,
    FlushIsNotPassedOn,
    DurabilityIsNotPassedOn,
    SpaceIsNotPassedOn,
    ResizeIsNotPassedOn,
    ConfirmIsNotPassedOn,
}

/// A layer that is not one.
struct Broken {
    inner: Arc<dyn BlockDevice>,
    wrong: Wrong,
    writes: AtomicU64,
}

impl Broken {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }
}

impl BlockDevice for Broken {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let len = buf.len();
        let spoils = self.is(Wrong::FirstSectorOfLongReads) && len > 128 * 512;
        if self.is(Wrong::TheEndIsNotChecked)
            && offset.checked_add(len as u64).is_none_or(|end| end > self.geometry().size)
        {
            return Io::ok(buf);
        }
        self.inner.read(offset, buf).map(move |answer| {
            answer.map(|mut buf| {
                if spoils {
                    buf[0] ^= 1;
                }
                buf
            })
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let len = data.len();
        let fits = self.geometry().check_write(offset, len as u64).is_ok() && len > 0;
        if self.is(Wrong::EmptyRangesFail) && len == 0 {
            return Io::err(BlockError::Unsupported);
        }
        if self.is(Wrong::AlignmentIsNotChecked) && !offset.is_multiple_of(512) {
            return Io::ok(());
        }
        let inner = &self.inner;
        match self.wrong {
            _ if !fits => inner.write(offset, data, durability),
            Wrong::LastSectorOfWrites if len > 512 => {
                inner.write(offset, data.slice(0..len - 512), durability)
            }
            Wrong::WritesOneSectorAhead if offset >= 512 => inner.write(offset - 512, data, durability),
            Wrong::BlocksBeginAtTheirStart
                if !offset.is_multiple_of(4096) && offset % (1 << 20) > (1 << 20) - 4096 =>
            {
                inner.write(offset / 4096 * 4096, data, durability)
            }
            Wrong::EveryTwentiethWriteIsLost if number % 20 == 19 => Io::ok(()),
            Wrong::StableWritesAreLost if durability == Durability::Stable => Io::ok(()),
            Wrong::DurabilityIsNotPassedOn => inner.write(offset, data, Durability::Volatile),
            // Two halves, the second when the first has been waited for: others come between.
            Wrong::WritesOfHalves => {
                let (inner, half) = (Arc::clone(inner), 256);
                Io::pending(async move {
                    let old = inner.read(offset, Buf::zeroed(512)).await?;
                    yield_once().await;
                    let mut torn = old;
                    torn[..half].copy_from_slice(&data[..half]);
                    let torn = torn.freeze();
                    inner.write(offset, torn, durability).await?;
                    yield_once().await;
                    let mut rest = inner.read(offset, Buf::zeroed(512)).await?;
                    rest[half..].copy_from_slice(&data[half..512]);
                    inner.write(offset, rest.freeze(), durability).await?;
                    match data.len() {
                        512 => Ok(()),
                        len => inner.write(offset + 512, data.slice(512..len), durability).await,
                    }
                })
            }
            _ => inner.write(offset, data, durability),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        match self.wrong {
            Wrong::FlushFails => Io::err(BlockError::Medium { offset: 0 }),
            Wrong::FlushIsNotPassedOn => Io::ok(()),
            _ => self.inner.flush(),
        }
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        let left =
            if self.is(Wrong::UnmapLeavesTheLast) && len > 512 && len.is_multiple_of(512) { 512 } else { 0 };
        self.inner.unmap(offset, len - left)
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let more = self.is(Wrong::ZeroesTooMuch) && self.geometry().check(offset, len + 512).is_ok();
        self.inner.write_zeroes(offset, if more { len + 512 } else { len }, zeroing)
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        let (hides, skips) = (self.is(Wrong::ExtentsHideData), self.is(Wrong::ExtentsHaveGaps));
        let cuts = self.is(Wrong::FirstExtentsAreCutOff) && count < usize::MAX;
        self.inner.extents(offset, len, count).map(move |answer| {
            answer.map(|mut list| {
                if cuts {
                    list.iter_mut().for_each(|extent| extent.len = extent.len.min(512));
                    list.truncate(1);
                }
                if hides && let Some(data) = list.iter_mut().find(|extent| extent.kind == ExtentKind::Data) {
                    data.kind = ExtentKind::Unallocated;
                }
                if skips && list.len() > 1 {
                    list.remove(0);
                }
                list
            })
        })
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        match self.wrong {
            Wrong::ResizeIsNotPassedOn => Io::err(BlockError::Unsupported),
            Wrong::ResizeKeepsWhatWasCutOff => {
                let end = self.geometry().size - 512;
                let Io::Ready(Ok(last)) = self.inner.read(end, Buf::zeroed(512)) else {
                    return Io::err(BlockError::Busy);
                };
                let resized = self.inner.resize(size, permit);
                drop(self.inner.write(end.min(size - 512), last.freeze(), Durability::Volatile));
                resized
            }
            _ => self.inner.resize(size, permit),
        }
    }

    fn snapshot(&self, leaf: &std::path::Path, commit: crate::SnapshotCommit) -> Io<Result<(), BlockError>> {
        self.inner.snapshot(leaf, commit)
    }

    fn compact(&self, task: Arc<crate::Compaction>) -> Io<Result<(), BlockError>> {
        self.inner.compact(task)
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        self.inner.close()
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        if self.is(Wrong::ConfirmIsNotPassedOn) { Io::ok(()) } else { self.inner.confirm() }
    }

    fn identity(&self) -> crate::Identity {
        self.inner.identity()
    }

    fn pull(&self) -> Option<crate::Pull> {
        self.inner.pull()
    }

    fn space(&self) -> Option<crate::Space> {
        if self.is(Wrong::SpaceIsNotPassedOn) { None } else { self.inner.space() }
    }

    fn backing(&self) -> Option<String> {
        self.inner.backing()
    }

    fn lost_name(&self) -> Option<String> {
        self.inner.lost_name()
    }

    fn paths(&self) -> Vec<crate::PathSample> {
        self.inner.paths()
    }

    fn caching(&self) -> crate::Caching {
        self.inner.caching()
    }

    fn on_resize(&self, callback: ResizeCallback) {
        if !self.is(Wrong::ResizeIsNotTold) {
            self.inner.on_resize(callback);
        }
    }

    fn on_cache_news(&self, callback: crate::CacheCallback) {
        self.inner.on_cache_news(callback);
    }
}

async fn yield_once() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn broken(wrong: Wrong) -> Subject {
    Subject::layer("broken", &[], move |inner| Arc::new(Broken { inner, wrong, writes: AtomicU64::new(0) }))
}

#[tokio::test]
async fn a_device_that_does_nothing_wrong_passes() {
    let row = broken(Wrong::Nothing).run().await.unwrap();
    let lacks: Vec<_> = row.iter().filter(|(_, outcome)| *outcome != Outcome::Holds).collect();
    assert_eq!(lacks, [&(Check::Close, Outcome::Lacks("n/a: nothing to close"))]);
}

#[tokio::test]
async fn each_mistake_is_found_by_the_check_that_is_there_for_it() {
    use Wrong::*;
    for (wrong, check) in [
        (FirstSectorOfLongReads, Check::Reads),
        (LastSectorOfWrites, Check::Writes),
        (WritesOneSectorAhead, Check::Writes),
        (BlocksBeginAtTheirStart, Check::PartialBlocks),
        (WritesOfHalves, Check::Overlaps),
        (FlushFails, Check::Flush),
        (FlushFails, Check::Cancellation),
        (StableWritesAreLost, Check::Stable),
        (UnmapLeavesTheLast, Check::Unmap),
        (ZeroesTooMuch, Check::WriteZeroes),
        (ExtentsHideData, Check::Extents),
        (ExtentsHaveGaps, Check::Extents),
        (FirstExtentsAreCutOff, Check::Extents),
        (ResizeIsNotTold, Check::Resize),
        (ResizeKeepsWhatWasCutOff, Check::Resize),
        (EmptyRangesFail, Check::Errors),
        (AlignmentIsNotChecked, Check::Errors),
        (TheEndIsNotChecked, Check::Errors),
        (EveryTwentiethWriteIsLost, Check::Random),
        (FlushIsNotPassedOn, Check::Crash),
        (DurabilityIsNotPassedOn, Check::Crash),
        (SpaceIsNotPassedOn, Check::PassesOn),
        (FlushIsNotPassedOn, Check::PassesOn),
        (ResizeIsNotPassedOn, Check::PassesOn),
        (ConfirmIsNotPassedOn, Check::Confirm),
    ] {
        let found = broken(wrong).check(check).await;
        assert!(found.is_err(), "{wrong:?} passes {check}: {found:?}");
    }
}

#[tokio::test]
async fn a_device_that_never_answers_ends_a_check() {
    let never = within(Duration::from_millis(20), std::future::pending::<()>());
    assert!(never.await.is_none());
}

#[tokio::test]
async fn a_close_that_loses_what_was_written_is_found_out() {
    let subject = Subject::device("forgetful", || {
        Box::pin(async {
            let reopen: Reopen = Box::new(|| {
                Box::pin(async { Instance::plain(Arc::new(Disk::new(SIZE_MIN)) as Arc<dyn BlockDevice>) })
            });
            let device: Arc<dyn BlockDevice> = Arc::new(Disk::new(SIZE_MIN));
            Instance { reopen: Some(reopen), ..Instance::plain(device) }
        })
    });
    let found = subject.check(Check::Close).await;
    assert!(found.as_ref().is_err_and(|what| what.contains("opened again")), "{found:?}");
}

//! The end of all devices: each ends its commands, is flushed and closed, at the same time as the others.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, timeout_at};

use super::Luns;
use super::change::Leave;
use super::compaction::CLOSE_TIME;
use super::error::{FlushFailure, UnansweredDevice};
use super::lun::Lun;
use crate::registry::Handle;

/// Time limit of a device for all of it. A file has at most 4 s of writes to flush (`file/write_back.rs`). With the 5 s
/// that `lunway serve` gives initiators and the time to start again it is within the 30 s after which initiators fail
/// what waits for the target (`replacement_timeout` here; 120 s in open-iscsi): a device that hangs does not cost the
/// others' users an error.
pub(super) const SHUTDOWN_TIME: Duration = Duration::from_secs(18);
/// The part of that which its commands have. After that it is flushed beside them: what was written before them is safe
/// then.
const COMMANDS_PART: u32 = 3;

/// Outcome of stopping the devices.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// Devices that could not be flushed.
    pub(super) flushes: Vec<FlushFailure>,
    /// Devices that have not answered in time.
    pub(super) unanswered: Vec<UnansweredDevice>,
}

/// Ends all devices, also those that take their leave already, which have this time for it. `connections` have been
/// told to close.
pub(super) async fn stop(
    luns: Luns,
    leaves: Vec<Leave>,
    connections: &[Arc<Handle>],
    within: Duration,
) -> Stopped {
    let begin = Instant::now();
    let ends = luns.into_values().map(|lun| async move {
        let name = lun.unanswered();
        let ended = end(lun, connections, begin, within).await;
        (name, ended)
    });
    let leaves = leaves.into_iter().map(|Leave { name, task }| async move {
        // What went wrong with it has been logged.
        let left = timeout_at(begin + within, task).await.ok().map(|_| Ok(()));
        (name, left)
    });
    let mut stopped = Stopped::default();
    let (ends, leaves) = join(join_all(ends), join_all(leaves)).await;
    for (name, ended) in ends.into_iter().chain(leaves) {
        match ended {
            Some(Ok(())) => {}
            Some(Err(failure)) => stopped.flushes.push(failure),
            None => {
                tracing::error!("{name}");
                stopped.unanswered.push(name);
            }
        }
    }
    stopped
}

/// Ends one device: `None` if it has not answered in time.
async fn end(
    lun: Lun,
    connections: &[Arc<Handle>],
    begin: Instant,
    within: Duration,
) -> Option<Result<(), FlushFailure>> {
    let by = begin + within;
    let quiet = join_all(connections.iter().map(|connection| connection.left(&lun.target, lun.config.id)));
    let is_quiet = timeout_at(begin + within / COMMANDS_PART, quiet).await.is_ok();
    let flushed = timeout_at(by, lun.flush()).await;
    match flushed {
        Ok(flushed) if is_quiet => {
            // What is left of the time is for the end itself, half of it at least.
            let left = by.saturating_duration_since(Instant::now()) / 4;
            let compacted = lun.compactions.end(left.min(CLOSE_TIME));
            let _ = timeout_at(by, compacted).await;
            // Its data is where it belongs: a close that hangs loses nothing.
            let closed = timeout_at(by, lun.close()).await;
            closed.is_ok().then_some(flushed)
        }
        flushed => {
            // Dropping a device may wait for it. The process ends soon.
            std::mem::forget(lun);
            flushed.ok().filter(Result::is_err)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Zeroing};
    use lunway_memory::RamDisk;

    use super::*;
    use crate::config::Config;
    use crate::server::daemon_identity::DaemonIdentity;
    use crate::server::lun::Maker;
    use crate::server::opening::OpenDevice;
    use crate::server::tracking::Fallback;

    /// A device whose flush never ends, or says that it was there.
    struct Flushed {
        disk: RamDisk,
        hangs: bool,
        flushed: Arc<AtomicBool>,
    }

    impl BlockDevice for Flushed {
        fn geometry(&self) -> Geometry {
            Geometry { volatile_cache: true, ..self.disk.geometry() }
        }

        fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
            self.disk.read(offset, buf)
        }

        fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
            self.disk.write(offset, data, durability)
        }

        fn flush(&self) -> Io<Result<(), BlockError>> {
            if self.hangs {
                return Io::pending(std::future::pending());
            }
            self.flushed.store(true, Ordering::SeqCst);
            Io::ok(())
        }

        fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
            self.disk.write_zeroes(offset, len, zeroing)
        }
    }

    #[test]
    fn a_device_whose_flush_hangs_is_given_up_and_those_behind_it_are_flushed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lun = |id| format!("[[target.lun]]\nid = {id}\ndevice = \"disk\"\n");
            let text = format!("[[target]]\nname = \"iqn.2026-11.com.example:disk\"\n{}{}", lun(0), lun(1));
            let config = Config::from_toml(&text, "lunway.toml").unwrap();
            let flushed = Arc::new(AtomicBool::new(false));
            let mut luns = Luns::new();
            for (lun, hangs) in config.targets[0].luns.iter().zip([true, false]) {
                let flushed = Arc::clone(&flushed);
                let open: OpenDevice = Arc::new(move |_, _| {
                    let disk = RamDisk::new(1 << 20, 512).unwrap();
                    let flushed = Arc::clone(&flushed);
                    let device: Arc<dyn BlockDevice> = Arc::new(Flushed { disk, hangs, flushed });
                    Box::pin(async { Ok(device.into()) })
                });
                let (runtime, daemon) =
                    (tokio::runtime::Handle::current(), Arc::new(DaemonIdentity::of(&config)));
                let unsettled = Arc::default();
                let maker = Maker {
                    open,
                    runtime,
                    state: None,
                    tracks: None,
                    daemon,
                    unsettled,
                    own_files: Arc::default(),
                };
                let lun = maker.make(&config.targets[0], lun, Fallback::Refuse).await;
                let lun = lun.unwrap();
                luns.insert(lun.key(), lun);
            }
            let stopped = stop(luns, Vec::new(), &[], Duration::from_millis(300)).await;
            assert!(flushed.load(Ordering::SeqCst));
            assert_eq!((stopped.flushes.len(), stopped.unanswered.len()), (0, 1));
            assert_eq!(stopped.unanswered[0].lun, 0);
        });
    }
}

//! The disk that is made of lanes.

mod attempt;
mod clock;
mod core;
mod flush;
mod housekeeping;
mod late;
mod operation;
mod options;
mod retry;
mod settling;
mod shape;
mod split;
mod status;
mod unflushed;

use std::fmt;
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use lunway_block::{
    BlockDevice, BlockError, Buf, CacheCallback, Caching, Durability, Extent, Geometry, Identity, Io,
    PathSample, Permit, ResizeCallback, SharedBuf, Space, Zeroing,
};
use tokio::task::AbortHandle;

use crate::{Lane, LaneEvent, LaneId, LaneListener, LaneShape, Policy, Use};
use attempt::start;
use core::{Placed, Shared};
use operation::{Clear, Divisible, Extents, Operation, Read, Write};
pub use options::{
    BUSY_TIME, Options, QUEUE_BYTES, QUEUE_FOREVER, QUEUE_TIME, SETTLE_TIME, SettingError, Unproven, WhenNone,
};
use retry::Retry;
use split::start_split;
pub use status::LaneStatus;

/// A disk that is made of lanes: one [`BlockDevice`] over many sessions to the same logical unit.
///
/// An operation goes where the [`Scheduler`](crate::Scheduler) says, over one lane or in parts over several; the health
/// of the lanes says which ones it may choose from. What a lane does not finish is tried again:
///
/// # What is tried again, and when
///
/// - An answer of the disk is final, whatever it says: every lane would bring the same. A reservation conflict is such
///   an answer.
/// - What a lane was too busy for (BUSY, TASK SET FULL, NOT READY for a while) goes to another lane, and that one is
///   suspect. What all are too busy for is tried until [`Options::busy`] is over, with pauses.
/// - **A node whose reservation key was taken away changes nothing any more** ([`LaneEvent::Fenced`]): changes, also
///   those that wait to be sent again, fail with [`BlockError::ReservationConflict`]. Where it may have been
///   ([`LaneEvent::Preempted`]) they wait until it is known.
/// - What was not sent, or cannot happen any more, goes to another lane at once. So do reads and flushes of any fate.
/// - **A change of unknown outcome is not sent again until the session that it went into is settled**
///   ([`LaneEvent::Settled`]): before that it may still come, after newer data. Not even its caller gets past that:
///   where the wait ended with an error, later changes of the same place wait until the old one is over. Where no proof
///   comes within [`Options::settle`], [`Unproven`] says what counts as settled.
/// - Nothing waits for ever: what ran into trouble ends within the time of [`WhenNone`], or of that and
///   [`Options::settle`] where it waited for a session to be settled; with [`BlockError::Timeout`] where it may have
///   happened and [`BlockError::Gone`] where it did not. An operation that is under way over a lane is the lane's to
///   end.
///
/// # Durability
///
/// The cache is the logical unit's, so a flush goes over any one lane. A power-on that is reported while acknowledged
/// writes are unflushed makes the flushes under way, or else exactly the next one, fail with
/// [`BlockError::UnflushedLost`], unless a session that lived through it proves that the power was not off. A listener
/// ([`on_cache_news`](BlockDevice::on_cache_news)) hears of the doubt at once, also of that which every session raises
/// that begins while writes are unflushed, and of the loss: `lunway_retain` writes again what is lost.
///
/// # Cost
///
/// For an operation over a lane that is well: the lock of the lanes' state twice, and the one allocation of a pending
/// [`Io`]. What a lane answers at once is answered at once.
///
/// # The end
///
/// Dropped, it does nothing more; operations under way are answered by their lanes as long as those exist. The lanes
/// belong to the code that made them.
pub struct MultipathDevice {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
}

impl MultipathDevice {
    /// A disk of these lanes, which must lead to one logical unit. To be called on a tokio runtime, which does the
    /// housekeeping: only its clock counts.
    ///
    /// A lane whose sectors differ from the first one's is refused, and shown as closed.
    pub fn new(lanes: Vec<(LaneShape, Arc<dyn Lane>)>, options: Options) -> Self {
        let shared = Arc::new(Shared::new(lanes, &options));
        for (id, lane) in shared.lanes.iter().enumerate() {
            let weak = Arc::downgrade(&shared);
            lane.device().on_resize(Box::new(move |geometry| {
                if let Some(shared) = weak.upgrade() {
                    shared.resized(id, geometry);
                }
            }));
            lane.listen(Arc::new(Listener { id, shared: Arc::downgrade(&shared) }));
        }
        let mut tasks = vec![tokio::spawn(housekeeping::keep_house(shared.clone())).abort_handle()];
        if shared.unproven == Unproven::Resend {
            tasks.push(tokio::spawn(settling::settle_unproven(shared.clone())).abort_handle());
        }
        Self { shared, tasks }
    }

    /// The policy there is.
    pub fn policy(&self) -> Policy {
        self.shared.lock().scheduler.policy()
    }

    /// Changes the policy, for operations from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.shared.change(|core, _| core.set_policy(policy));
    }

    /// The lanes as they are now, in the order in which they were given.
    pub fn lanes(&self) -> Vec<LaneStatus> {
        self.shared.status()
    }

    /// Returns to every lane that is up, now.
    pub fn fail_back(&self) {
        self.shared.change(|core, now| core.health.fail_back(now));
    }

    /// Sends nothing more over a lane; what is under way there ends. Its session stays.
    ///
    /// # Panics
    ///
    /// Like indexing, if there is no such lane.
    pub fn disable(&self, lane: LaneId) {
        self.shared.change(|core, now| core.health.set_disabled(lane, true, now));
    }

    /// Uses a lane again.
    ///
    /// # Panics
    ///
    /// Like indexing, if there is no such lane.
    pub fn enable(&self, lane: LaneId) {
        self.shared.change(|core, now| core.health.set_disabled(lane, false, now));
    }

    /// Starts what cannot be divided.
    fn whole<O: Operation>(&self, operation: O) -> Io<Result<O::Output, BlockError>> {
        let placed = self.shared.lock().place(&operation);
        match placed {
            Ok(flight) => start(&self.shared, operation, flight),
            Err(_) => self.hindered(operation),
        }
    }

    /// Starts what can.
    fn divisible<O: Divisible>(&self, operation: O) -> Io<Result<O::Output, BlockError>>
    where
        O::Output: Unpin,
    {
        let placed = self.shared.lock().place_parts(&operation);
        match placed {
            Ok(Placed::Whole(flight)) => start(&self.shared, operation, flight),
            Ok(Placed::Split(flights)) => start_split(&self.shared, operation, flights),
            Err(_) => self.hindered(operation),
        }
    }

    fn hindered<O: Operation>(&self, operation: O) -> Io<Result<O::Output, BlockError>> {
        Io::pending(Retry::new(self.shared.clone()).hindered(operation))
    }

    /// Some lane that can be asked, else the first.
    fn any_lane(&self) -> Option<&Arc<dyn Lane>> {
        let usable = {
            let core = self.shared.lock();
            (0..self.shared.lanes.len()).find(|&lane| core.health.use_of(lane) != Use::Out)
        };
        self.shared.lanes.get(usable.unwrap_or(0))
    }
}

impl BlockDevice for MultipathDevice {
    fn geometry(&self) -> Geometry {
        self.shared.shape.agreed()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        match self.geometry().check(offset, buf.len() as u64) {
            Err(error) => Io::err(error),
            Ok(()) if buf.is_empty() => Io::ok(buf),
            Ok(()) => self.divisible(Read::new(offset, buf)),
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        match self.geometry().check_write(offset, data.len() as u64) {
            Err(error) => Io::err(error),
            Ok(()) if data.is_empty() => Io::ok(()),
            Ok(()) => self.divisible(Write { offset, data, durability }),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        flush::flush(&self.shared)
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.geometry().check_write(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 => Io::ok(()),
            Ok(()) => self.whole(Clear { range: offset..offset + len, zeroing: None }),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        match self.geometry().check_write(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 => Io::ok(()),
            Ok(()) => self.whole(Clear { range: offset..offset + len, zeroing: Some(zeroing) }),
        }
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        match self.geometry().check(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 => Io::ok(Vec::new()),
            Ok(()) => self.whole(Extents { range: offset..offset + len, count }),
        }
    }

    /// A lane's business, and not tried again: a size that a lane could not set is asked for anew.
    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        match self.any_lane() {
            Some(lane) => lane.device().resize(size, permit),
            None => Io::err(self.shared.no_lane()),
        }
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        let lanes: Vec<_> =
            self.shared.lanes.iter().map(|lane| lane.device().close().into_future()).collect();
        Io::pending(async move { join_all(lanes).await.into_iter().collect() })
    }

    fn identity(&self) -> Identity {
        self.any_lane().map_or_else(Identity::default, |lane| lane.device().identity())
    }

    fn space(&self) -> Option<Space> {
        self.any_lane()?.device().space()
    }

    fn backing(&self) -> Option<String> {
        self.any_lane()?.device().backing()
    }

    fn paths(&self) -> Vec<PathSample> {
        self.shared.paths()
    }

    fn caching(&self) -> Caching {
        self.any_lane().map_or(Caching::Unknown, |lane| lane.device().caching())
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.shared.shape.on_resize(callback);
    }

    fn on_cache_news(&self, callback: CacheCallback) {
        self.shared.lock().add_cache_listener(callback);
    }
}

impl Drop for MultipathDevice {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for MultipathDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultipathDevice").field("lanes", &self.shared.names).finish_non_exhaustive()
    }
}

/// Passes a lane's events to the device, while there is one.
struct Listener {
    id: LaneId,
    shared: Weak<Shared>,
}

impl LaneListener for Listener {
    fn happened(&self, event: LaneEvent) {
        if let Some(shared) = self.shared.upgrade() {
            shared.happened(self.id, &event);
        }
    }
}

//! Epochs of a tracked device, for callers that ask for changes.

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use lunway_block::BlockDevice;

use super::{Shared, lock, on_worker};
use crate::changes::{ChangedRange, Changes, EpochId};
use crate::tracker::{ClosedEpoch, EpochError};

/// Bytes of the disk that are looked at for changes in one turn of the thread that also logs first writes: 64 pages of
/// the map of each epoch, at worst 16 MiB of them and a list of 12 MiB, some milliseconds.
const WINDOW: u64 = 64 << 30;

/// A tracked device's epochs, for callers that ask for changes; clones are the same.
#[derive(Clone)]
pub struct Tracking {
    pub(super) shared: Arc<Shared>,
    /// The tracked device, which questions about its changes do not keep open.
    pub(super) inner: Weak<dyn BlockDevice>,
    pub(super) in_place: Option<InPlace>,
    /// Last answer of `in_place`.
    pub(super) misplaced: Arc<Mutex<Option<String>>>,
}

/// Looks whether the storage is where the next start looks for it, and says what is wrong if it is not. It is called on
/// the thread that writes the log.
pub type InPlace = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

impl Tracking {
    /// No epoch is closed unless the storage is in its place: what the next start does not find is not durable.
    #[must_use]
    pub fn kept_where(self, in_place: InPlace) -> Self {
        Self { in_place: Some(in_place), ..self }
    }

    /// Returns the reason why nothing is tracked, as last known; `None`: it is. Waits for no storage.
    pub fn lost_now(&self) -> Option<String> {
        self.shared.tracker.lost_now().or_else(|| lock(&self.misplaced).clone())
    }

    /// Looks whether the storage is in its place, for [`lost_now`](Self::lost_now). Waits for the storage.
    pub fn look_where_kept(&self) {
        let misplaced = self.in_place.as_ref().and_then(|in_place| in_place().err());
        *lock(&self.misplaced) = misplaced;
    }

    /// Closes the open epoch, durably, and gives it a name; later changes belong to the next one. Operations under way
    /// end first, those that come wait, for 5 seconds at most. Then, while everything goes on, the device is flushed:
    /// what is read after the name is known and is taken back by a power cut would be in no later epoch.
    ///
    /// # Errors
    ///
    /// Why no epoch was closed. One whose data could not be flushed is released again.
    pub fn close_epoch(&self, id: EpochId) -> impl Future<Output = Result<(), EpochError>> + Send + use<> {
        let (tracking, closed) = (self.clone(), self.close_epoch_of_flushed(id));
        async move {
            closed.await?;
            let Some(inner) = tracking.inner.upgrade() else { return Err(EpochError::Closed) };
            if let Err(error) = inner.flush().await {
                let _ = tracking.release_epoch(id).await;
                return Err(EpochError::Unflushed(error.to_string()));
            }
            Ok(())
        }
    }

    /// The same, for a caller that lets nothing be changed, and has flushed the device since.
    pub fn close_epoch_of_flushed(
        &self,
        id: EpochId,
    ) -> impl Future<Output = Result<(), EpochError>> + Send + use<> {
        let in_place = self.in_place.clone();
        on_worker(&self.shared, move |shared| {
            if let Some(Err(why)) = in_place.map(|in_place| in_place()) {
                return Err(EpochError::Misplaced(why));
            }
            let drained = shared.drain();
            let closed = if drained { shared.tracker.close_epoch(id) } else { Err(EpochError::Busy) };
            shared.reopen();
            closed
        })
    }

    /// Forgets a closed epoch, durably.
    pub fn release_epoch(&self, id: EpochId) -> impl Future<Output = Result<(), EpochError>> + Send + use<> {
        on_worker(&self.shared, move |shared| shared.tracker.release_epoch(id))
    }

    /// Closed epochs, oldest first; bytes that changed since the youngest, about; and why nothing is tracked, if so.
    pub fn epochs(&self) -> impl Future<Output = (Vec<ClosedEpoch>, u64, Option<String>)> + Send + use<> {
        on_worker(&self.shared, |shared| {
            (shared.tracker.epochs(), shared.tracker.changed(), shared.tracker.lost())
        })
    }

    /// Returns the changes after `since` was closed: see [`Tracker::changes`](crate::Tracker::changes). Where there are
    /// more than `most` ranges, the first of them: at least one more than `most`, of which the last may be longer than
    /// reported, and no more of the disk is looked at than that takes.
    ///
    /// The disk is looked at in windows, and first writes into cold regions are logged between them. A change that is
    /// made meanwhile is in the answer or not.
    pub fn changes(
        &self,
        since: EpochId,
        until: Option<EpochId>,
        window: Range<u64>,
        most: usize,
    ) -> impl Future<Output = Changes> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            let mut all: Vec<ChangedRange> = Vec::new();
            let mut at = window.start;
            loop {
                let end = window.end.min((at / WINDOW + 1).saturating_mul(WINDOW));
                let look = move |shared: &Shared| {
                    (shared.tracker.changes(since, until, at..end), shared.tracker.size())
                };
                let (found, size) = on_worker(&shared, look).await;
                let Changes::Known { epoch, ranges } = found else { return found };
                for range in ranges {
                    match all.last_mut() {
                        Some(last)
                            if last.offset + last.length == range.offset && last.state == range.state =>
                        {
                            last.length += range.length;
                        }
                        _ => all.push(range),
                    }
                }
                at = end;
                if all.len() > most || at >= window.end.min(size) {
                    return Changes::Known { epoch, ranges: all };
                }
            }
        }
    }
}

//! Recovery when a cache may have been lost: ask, write again, flush.

use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::{BlockError, CacheNews, Durability, Fate};

use crate::attempts::Attempts;
use crate::device::{RetainState, Shared};
use crate::writes::{Change, Retained};

/// Number of retained changes in flight at a time: enough for a network, few enough for any target's queue.
const WRITES_IN_FLIGHT: usize = 16;

/// Reason why a doubt stays.
enum Unresolved {
    /// The device cannot be reached; what is retained stays.
    Later(BlockError),
    /// The cache is lost again and again; what is retained stays.
    Restless(BlockError),
    /// The data cannot be written again, and is given up.
    Final(BlockError),
}

impl Unresolved {
    fn of(error: BlockError) -> Self {
        match error {
            BlockError::Io { kind: std::io::ErrorKind::TimedOut, .. } => Self::Later(error),
            _ if error.fate() != Fate::Answered => Self::Later(error),
            _ => Self::Final(error),
        }
    }
}

impl Shared {
    /// The device tells something of its cache, with its locks held.
    pub(crate) fn heard(self: &Arc<Self>, news: CacheNews) {
        {
            let mut state = self.lock();
            state.news += 1;
            if let CacheNews::Lost { reported } = news {
                state.lost = Some(state.lost == Some(true) || reported);
                state.losses += 1;
            }
            if self.gate.phase().is_calm() {
                self.gate.doubt();
            }
        }
        self.start_to_resolve();
    }

    fn start_to_resolve(self: &Arc<Self>) {
        let starts = !std::mem::replace(&mut self.lock().resolving, true);
        if starts {
            self.runtime.spawn(self.clone().resolve());
        }
    }

    /// Waits until nothing is in doubt; fails if the device cannot be asked.
    pub(crate) async fn calm(self: &Arc<Self>) -> Result<(), BlockError> {
        let postponed = self.lock().postponed.0;
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before looking: what changes after that is not missed.
            changed.as_mut().enable();
            if self.gate.phase().is_calm() {
                return Ok(());
            }
            let (times, why) = self.lock().postponed.clone();
            if let Some(why) = why.filter(|_| times > postponed) {
                return Err(why);
            }
            self.start_to_resolve();
            changed.await;
        }
    }

    async fn resolve(self: Arc<Self>) {
        loop {
            let seen = self.lock().news;
            let result = self.decide().await;
            let mut state = self.lock();
            let mut again = state.news != seen;
            match result {
                Ok(lost) => {
                    self.gate.calm(lost);
                    if again {
                        self.gate.doubt();
                    }
                }
                Err(Unresolved::Later(error)) => {
                    tracing::warn!("unflushed writes may be lost, and the storage cannot be asked: {error}");
                    self.gate.doubt();
                    if !again {
                        state.postponed = (state.postponed.0 + 1, Some(error));
                    }
                }
                Err(Unresolved::Restless(error)) => {
                    tracing::warn!(
                        "the storage reports the loss of unflushed writes again and again: {error}"
                    );
                    self.gate.doubt();
                    state.postponed = (state.postponed.0 + 1, Some(error));
                    // Else a waiting operation would never hear of it. The next one begins anew.
                    again = false;
                }
                Err(Unresolved::Final(error)) => {
                    tracing::error!("unflushed writes are lost and could not be written again: {error}");
                    state.abandon();
                    state.failure.add(error);
                    self.gate.calm(true);
                    if again {
                        self.gate.doubt();
                    }
                }
            }
            state.resolving = again;
            self.note_retained(&state);
            drop(state);
            self.changed.notify_waiters();
            if !again {
                return;
            }
        }
    }

    /// Finds out whether writes were lost, and writes them again if so. Says whether they were.
    async fn decide(self: &Arc<Self>) -> Result<bool, Unresolved> {
        let (mark, undecided) = {
            let state = self.lock();
            (state.writes.mark(), state.lost.is_none())
        };
        if undecided {
            let result = self.below.flush().await;
            let mut state = self.lock();
            if state.lost.is_none() {
                match result {
                    Ok(()) => {
                        let discarded = state.writes.flushed(mark);
                        drop(state);
                        drop(discarded);
                        return Ok(false);
                    }
                    Err(BlockError::UnflushedLost { reported }) => state.lost = Some(reported),
                    Err(error) => match Unresolved::of(error) {
                        // The disk's own word about a flush, which is not about a loss: the next flush passes it on.
                        Unresolved::Final(error) => {
                            state.failure.add(error);
                            return Ok(false);
                        }
                        later => return Err(later),
                    },
                }
            }
        }
        self.replay().await.map(|()| true)
    }

    /// Writes everything again that is retained, and flushes it.
    async fn replay(self: &Arc<Self>) -> Result<(), Unresolved> {
        {
            let _state = self.lock();
            self.gate.close();
        }
        self.wait_for_changes().await;
        let mut rounds = Attempts::new();
        while rounds.may_go_on() {
            let (all, losses) = {
                let mut state = self.lock();
                if !state.writes.is_complete() && state.lost == Some(true) {
                    state.lost = None;
                    return Err(Unresolved::Final(BlockError::UnflushedLost { reported: true }));
                }
                (state.writes.all(), state.losses)
            };
            let bytes: u64 = all.iter().map(|one| one.len).sum();
            tracing::warn!(ranges = all.len(), bytes, "unflushed writes may be lost: they are written again");
            if let Err(error) = self.write_again(all).await {
                return Err(self.stopped_by(error));
            }
            let mark = self.lock().writes.mark();
            match self.below.flush().await {
                Ok(()) => {
                    let mut state = self.lock();
                    if state.losses == losses {
                        state.lost = None;
                        let discarded = state.writes.flushed(mark);
                        drop(state);
                        drop(discarded);
                        return Ok(());
                    }
                }
                Err(BlockError::UnflushedLost { .. }) => {}
                Err(error) => return Err(self.stopped_by(error)),
            }
        }
        Err(Unresolved::Restless(BlockError::lost()))
    }

    fn stopped_by(&self, error: BlockError) -> Unresolved {
        let why = Unresolved::of(error);
        if let Unresolved::Final(_) = &why {
            self.lock().lost = None;
        }
        why
    }

    /// Waits until no change is under way; the gate is closed.
    async fn wait_for_changes(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.gate.is_occupied() {
                return;
            }
            changed.await;
        }
    }

    async fn write_again(&self, all: Vec<Retained>) -> Result<(), BlockError> {
        let mut waiting = all.into_iter();
        let mut running = FuturesUnordered::new();
        let mut failed = Ok(());
        loop {
            while failed.is_ok()
                && running.len() < WRITES_IN_FLIGHT
                && let Some(one) = waiting.next()
            {
                running.push(self.do_again(one));
            }
            match running.next().await {
                // What is under way ends before anything else is begun in its place.
                Some(result) => failed = failed.and(result),
                None => return failed,
            }
        }
    }

    async fn do_again(&self, Retained { offset, len, change }: Retained) -> Result<(), BlockError> {
        let mut len = len;
        loop {
            let done = match &change {
                Change::Data(data) => {
                    self.below.write(offset, data.slice(0..len as usize), Durability::Volatile).await
                }
                Change::Zero(zeroing) => self.below.write_zeroes(offset, len, *zeroing).await,
                Change::Unmap => self.below.unmap(offset, len).await,
            };
            match done {
                // The device has become smaller, which may not have been told yet: what was beyond its end is gone by
                // intent, and that alone.
                Err(BlockError::OutOfRange { size, .. }) if offset < size && size - offset < len => {
                    len = size - offset;
                }
                Err(BlockError::OutOfRange { .. }) => return Ok(()),
                other => return other,
            }
        }
    }
}

impl RetainState {
    /// Keeps nothing of what has happened so far.
    pub(crate) fn abandon(&mut self) {
        drop(self.writes.give_up());
    }
}

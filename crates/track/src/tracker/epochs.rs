//! Epochs: closed, released, listed, and what changed since one.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use super::{CLOSED, LogState, SHUT, Tracker, lock};
use crate::changes::{ChangeState, ChangedRange, Changes, EpochId};
use crate::format::{EPOCHS_MAX, RECORD_HEADER, RECORD_MAX, RecordEntry};
use crate::grain::{GRAIN, PAGE_GRAINS, PAGE_WORDS, UNMAPPED, UNTOUCHED, WRITTEN};
use crate::live::Live;
use crate::map::{Map, Page, Runs, overlay};
use crate::state::{Released, TrackState};

/// A closed epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedEpoch {
    /// Its name.
    pub id: EpochId,
    /// The one before; `None`: it is the oldest.
    pub parent: Option<EpochId>,
    /// Bytes that changed from the one before to its end; of the oldest 0: nothing older can be asked for.
    pub changed: u64,
}

/// Reason why an epoch was not closed or released.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    /// There is no such epoch.
    #[error("no epoch {0} is kept of this disk")]
    NotFound(EpochId),
    /// The name is taken.
    #[error("there is an epoch {0} already")]
    Taken(EpochId),
    /// Operations are under way.
    #[error("the disk did not complete the commands in progress")]
    Busy,
    /// The track file could not be written.
    #[error("the track file could not be written: {0}")]
    Storage(String),
    /// The track file is not where the next start looks for it.
    #[error("{0}; no epoch is closed, since the next start would not know it")]
    Misplaced(String),
    /// Writes before its end could not be made durable: they could be lost without being in a later epoch.
    #[error("the disk could not be flushed ({0}); no epoch is closed")]
    Unflushed(String),
    /// The tracker is closed.
    #[error("the disk is being closed")]
    Closed,
}

impl Tracker {
    /// Closes the open epoch, durably, and gives it its name; the next one begins. The oldest one is released where
    /// there would be more than [`EPOCHS_MAX`](crate::EPOCHS_MAX). Where tracking was lost, it begins again with this
    /// epoch.
    ///
    /// # Errors
    ///
    /// [`EpochError::Busy`] unless the tracker is shut and [at rest](Self::at_rest); [`EpochError::Storage`]: nothing
    /// is tracked any more.
    pub fn close_epoch(&self, id: EpochId) -> Result<(), EpochError> {
        self.forget_stale().map_err(|error| EpochError::Storage(error.to_string()))?;
        let mut log = lock(&self.log);
        match self.mode.load(SeqCst) {
            CLOSED => return Err(EpochError::Closed),
            SHUT if self.live.at_rest(0).is_ok() => {}
            _ => return Err(EpochError::Busy),
        }
        if id == EpochId([0; 16]) || log.state.epochs.iter().any(|epoch| epoch.id == id) {
            return Err(EpochError::Taken(id));
        }
        let closed = self.close(&mut log, id);
        lock(&self.told).clone_from(&log.lost);
        let failed = closed.as_ref().err().map(ToString::to_string);
        match (self.survive(&mut log, closed), failed) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(error)) => Err(EpochError::Storage(error)),
            (Err(error), _) => Err(EpochError::Storage(error.to_string())),
        }
    }

    fn close(&self, log: &mut LogState, id: EpochId) -> io::Result<()> {
        let abandoned = lock(&self.abandoned).clone();
        let begins_anew = log.lost.take();
        if let Some(why) = &begins_anew {
            let size = self.size.load(SeqCst);
            let lasting = std::mem::take(&mut log.state.lasting);
            log.state =
                TrackState { lasting, ..TrackState::new(size, self.live.region_grains(), why.clone()) };
        }
        let mut entries = Vec::new();
        let settles = std::mem::take(&mut lock(&self.queue).settles);
        settles.into_iter().for_each(|regions| self.settle(regions, &mut entries));
        for &region in &log.hot {
            self.live.cool(region);
            entries.push(RecordEntry::Region { region, cold: true, states: self.live.states_of(region) });
        }
        let oldest = log.state.epochs.first().map(|epoch| epoch.id);
        let oldest = oldest.filter(|_| log.state.epochs.len() >= EPOCHS_MAX);
        entries.extend(oldest.map(RecordEntry::Release));
        entries.push(RecordEntry::Close(id));
        let again =
            |&(first, last): &(u64, u64)| RecordEntry::Range { first, count: last - first, state: WRITTEN };
        entries.extend(abandoned.iter().map(again));
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        // In one record: half of a close is none.
        let fits = RECORD_HEADER + bytes.len() <= RECORD_MAX && log.journal.has_room(bytes.len());
        let one_record = fits && begins_anew.is_none();
        if one_record {
            log.journal.append(&bytes)?;
        }
        oldest.map(|id| log.state.release(id));
        let _ = log.state.close(id, self.live.copy());
        log.hot.clear();
        log.order.clear();
        self.live.clear();
        for &(first, last) in &abandoned {
            self.live.mark(first, last);
        }
        if !one_record {
            self.rebase(log, &[])?;
        }
        abandoned.iter().for_each(|&(first, last)| self.live.saved_range(first, last));
        Ok(())
    }

    /// Forgets a closed epoch, durably: what changed in it is merged into the next one.
    ///
    /// # Errors
    ///
    /// [`EpochError::NotFound`]; [`EpochError::Storage`]: nothing is tracked any more.
    pub fn release_epoch(&self, id: EpochId) -> Result<(), EpochError> {
        let mut log = lock(&self.log);
        if self.mode.load(SeqCst) == CLOSED {
            return Err(EpochError::Closed);
        }
        if log.lost.is_some() || !log.state.epochs.iter().any(|epoch| epoch.id == id) {
            return Err(EpochError::NotFound(id));
        }
        let entries = [RecordEntry::Release(id)];
        let mut bytes = Vec::new();
        entries[0].encode(&mut bytes);
        let one_record = log.journal.has_room(bytes.len());
        let mut logged = if one_record { log.journal.append(&bytes) } else { Ok(()) };
        if logged.is_ok() {
            if let Some(Released::BelowLive(map)) = log.state.release(id) {
                self.live.underlay(&map);
            }
            if !one_record {
                let hot: Vec<u64> = log.hot.iter().copied().collect();
                logged = self.rebase(&mut log, &hot);
            }
        }
        let failed = logged.as_ref().err().map(ToString::to_string);
        self.survive(&mut log, logged).map_err(|error| EpochError::Storage(error.to_string()))?;
        failed.map_or(Ok(()), |error| Err(EpochError::Storage(error)))
    }

    /// Closed epochs, oldest first.
    pub fn epochs(&self) -> Vec<ClosedEpoch> {
        let log = lock(&self.log);
        let epochs = if log.lost.is_some() { &[] } else { &log.state.epochs[..] };
        let closed = epochs.iter().enumerate().map(|(index, epoch)| ClosedEpoch {
            id: epoch.id,
            parent: (index > 0).then_some(epoch.parent),
            changed: (epoch.map.touched() * GRAIN).min(log.state.size),
        });
        closed.collect()
    }

    /// Returns the changes after `since` was closed: until `until` was closed, or until now. Of the bytes `window`
    /// alone.
    pub fn changes(&self, since: EpochId, until: Option<EpochId>, window: Range<u64>) -> Changes {
        let log = lock(&self.log);
        let unknown = |why: String| Changes::Unknown { epoch: since, why };
        if let Some(why) = &log.lost {
            return unknown(format!("tracking ended: {why}"));
        }
        let epochs = &log.state.epochs;
        let find = |id: EpochId| epochs.iter().position(|epoch| epoch.id == id);
        let missing = |id: EpochId| match &log.state.reason[..] {
            "" => format!("no epoch {id} is kept: it was released, or never closed on this disk"),
            why => format!("no epoch {id} is kept, because tracking has begun again: {why}"),
        };
        let Some(first) = find(since) else { return unknown(missing(since)) };
        let last = match until {
            None => epochs.len(),
            Some(until) => match find(until) {
                None => return unknown(missing(until)),
                Some(last) if last < first => {
                    return unknown(format!("epoch {until} was closed before epoch {since}"));
                }
                Some(last) => last + 1,
            },
        };
        let closed = &epochs[first + 1..last.max(first + 1)];
        let live = until.is_none().then_some(&self.live);
        let mut low = closed.iter().map(|epoch| epoch.low).min().unwrap_or(u64::MAX);
        if until.is_none() {
            low = low.min(log.state.low);
        }
        if low >= log.state.size {
            low = u64::MAX;
        }
        let window = window.start..window.end.min(log.state.size);
        Changes::Known {
            epoch: since,
            ranges: ranges(closed.iter().map(|epoch| &epoch.map), live, low, window),
        }
    }
}

/// The union of maps, oldest first, as ranges of bytes within a window. What lies beyond `low` counts as written.
fn ranges<'a>(
    closed: impl Iterator<Item = &'a Map> + Clone,
    live: Option<&Live>,
    low: u64,
    window: Range<u64>,
) -> Vec<ChangedRange> {
    if window.is_empty() {
        return Vec::new();
    }
    let mut list = Vec::new();
    let mut push = |first: u64, last: u64, state: u64| {
        let (start, end) = ((first * GRAIN).max(window.start), (last * GRAIN).min(window.end));
        let state = if state == UNMAPPED { ChangeState::Unmapped } else { ChangeState::Written };
        if start < end {
            list.push(ChangedRange { offset: start, length: end - start, state });
        }
    };
    let low = low / GRAIN;
    // Pages of the window alone: a disk of 64 TiB has 65,536, and is looked at in a thousand windows.
    let page = |byte: u64| (byte / GRAIN / PAGE_GRAINS) as u32;
    let pages = page(window.start)..=page(window.end - 1);
    let mut numbers: BTreeSet<u32> =
        closed.clone().flat_map(|map| map.pages.range(pages.clone()).map(|(number, _)| *number)).collect();
    numbers.extend(live.into_iter().flat_map(|live| pages.clone().filter(|number| live.has(*number))));
    if low * GRAIN < window.end {
        let first = low.max(window.start / GRAIN) / PAGE_GRAINS;
        numbers.extend(first as u32..window.end.div_ceil(GRAIN).div_ceil(PAGE_GRAINS) as u32);
    }
    let mut runs = Runs::default();
    for number in numbers {
        let first = u64::from(number) * PAGE_GRAINS;
        let mut page: Page = [UNTOUCHED; PAGE_WORDS];
        closed
            .clone()
            .filter_map(|map| map.pages.get(&number))
            .for_each(|younger| overlay(&mut page, younger));
        if let Some(younger) = live.and_then(|live| live.copy_page(number)) {
            overlay(&mut page, &younger);
        }
        if low < first + PAGE_GRAINS {
            let mut cut = Map::default();
            cut.set(low.max(first) - first, PAGE_GRAINS, WRITTEN);
            cut.pages.values().for_each(|younger| overlay(&mut page, younger));
        }
        runs.page(number, &page, &mut push);
    }
    runs.finish(&mut push);
    list
}

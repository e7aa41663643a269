//! Queue of the log, and how it is written there.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use super::{LOST, LogState, Queue, TRACKING, Tracker, lock, shortened};
use crate::format::{RECORD_HEADER, RECORD_MAX, RecordEntry};
use crate::grain::{UNMAPPED, WORD_GRAINS, WRITTEN, all_of};
use crate::state::grains;

impl Tracker {
    /// Logs what operations wait for, in one record where it fits, and returns the number up to which none waits any
    /// more. Blocks for a flush of the storage.
    ///
    /// # Errors
    ///
    /// The track file can neither be written nor be made to say nothing: what waits must not change the disk. After
    /// any other error of the storage nothing is tracked any more, nothing waits, and [`changes`](Self::changes) says
    /// why.
    pub fn commit(&self) -> (u64, io::Result<()>) {
        let mut log = lock(&self.log);
        let queue = {
            let mut queue = lock(&self.queue);
            let next = Queue { ticket: queue.ticket + 1, ..Queue::default() };
            std::mem::replace(&mut *queue, next)
        };
        if log.lost.is_some() {
            return (queue.ticket, Ok(()));
        }
        let logged = self.log_queue(&mut log, &queue);
        (queue.ticket, self.survive(&mut log, logged))
    }

    fn log_queue(&self, log: &mut LogState, queue: &Queue) -> io::Result<()> {
        let mut entries = Vec::new();
        for &(first, last) in &queue.ranges {
            entries.push(RecordEntry::Range { first, count: last - first, state: WRITTEN });
        }
        queue.settles.iter().for_each(|regions| self.settle(regions.clone(), &mut entries));

        let mut wanted: Vec<(u64, bool)> = Vec::new();
        for &region in &queue.regions {
            if log.hot.contains(&region) {
                self.live.heat(region, false);
                continue;
            }
            wanted.push((region, false));
        }
        for &region in &queue.regions {
            if region > 0 && log.hot.contains(&(region - 1)) {
                self.ahead_of(region, log, &mut wanted);
            }
        }
        queue.ahead.iter().for_each(|&region| self.ahead_of(region, log, &mut wanted));
        if wanted.is_empty() && entries.is_empty() {
            return Ok(());
        }
        let mut chunks = wanted.chunks(self.tuning.hot_max);
        loop {
            let chunk = chunks.next().unwrap_or_default();
            self.log_hot(log, chunk, std::mem::take(&mut entries))?;
            if chunks.len() == 0 {
                break;
            }
        }
        queue.ranges.iter().for_each(|&(first, last)| self.live.saved_range(first, last));
        Ok(())
    }

    /// Adds the regions after one that is written in order.
    fn ahead_of(&self, region: u64, log: &LogState, wanted: &mut Vec<(u64, bool)>) {
        let disk = grains(self.size.load(SeqCst)).div_ceil(self.live.region_grains());
        let mut first = true;
        // No more than half of what may be hot: what is written ahead of must not drive itself out.
        for next in region + 1..=region + self.tuning.ahead.min(self.tuning.hot_max as u64 / 2) {
            if next < disk && !log.hot.contains(&next) && !wanted.iter().any(|&(known, _)| known == next) {
                wanted.push((next, std::mem::take(&mut first)));
            }
        }
    }

    /// Logs `entries`, and that regions are hot; others become cold for it.
    fn log_hot(
        &self,
        log: &mut LogState,
        chunk: &[(u64, bool)],
        mut entries: Vec<RecordEntry>,
    ) -> io::Result<()> {
        let mut cold = Vec::new();
        while log.order.len() + chunk.len() > self.tuning.hot_max + cold.len() {
            let region = self.victim(log, &cold);
            self.live.cool(region);
            let states = self.live.states_of(region);
            entries.push(RecordEntry::Region { region, cold: true, states: states.clone() });
            cold.push((region, states));
        }
        entries.extend(chunk.iter().map(|&(region, _)| RecordEntry::Hot(region)));
        let is_cold = |region: &u64| cold.iter().any(|(cold, _)| cold == region);
        let hot: Vec<u64> =
            log.hot.iter().copied().filter(|r| !is_cold(r)).chain(chunk.iter().map(|c| c.0)).collect();
        self.log(log, &entries, &hot)?;

        for (region, states) in &cold {
            log.hot.remove(region);
            self.live.saved(self.live.grains_of(*region).0 / WORD_GRAINS, states);
        }
        log.order.retain(|(region, _)| log.hot.contains(region));
        for &(region, ahead) in chunk {
            log.hot.insert(region);
            log.order.push_back((region, self.live.began(region)));
            self.live.heat(region, ahead);
        }
        Ok(())
    }

    /// The oldest hot region in which nothing began since it was looked at last; or the oldest, if all are in use.
    fn victim(&self, log: &mut LogState, cold: &[(u64, Vec<u64>)]) -> u64 {
        let is_cold = |region: u64| cold.iter().any(|&(cold, _)| cold == region);
        for _ in 0..log.order.len() {
            let Some((region, looked)) = log.order.pop_front() else { break };
            let began = self.live.began(region);
            log.order.push_back((region, began));
            if began == looked && !is_cold(region) {
                return region;
            }
        }
        log.order.iter().map(|&(region, _)| region).find(|&region| !is_cold(region)).unwrap_or_default()
    }

    /// Adds entries for what is certainly unmapped in regions.
    pub(super) fn settle(&self, regions: Range<u64>, entries: &mut Vec<RecordEntry>) {
        let per_region = self.live.region_grains();
        for region in regions {
            let states = self.live.states_of(region);
            let first = region * per_region;
            if states.iter().any(|&word| word != all_of(UNMAPPED)) {
                entries.push(RecordEntry::Region { region, cold: false, states });
                continue;
            }
            match entries.last_mut() {
                Some(RecordEntry::Range { first: start, count, state: UNMAPPED })
                    if *start + *count == first =>
                {
                    *count += per_region;
                }
                _ => entries.push(RecordEntry::Range { first, count: per_region, state: UNMAPPED }),
            }
        }
    }

    /// Logs entries, durably; in as many records as they need, or as a new base, in which `hot` are hot.
    pub(super) fn log(&self, log: &mut LogState, entries: &[RecordEntry], hot: &[u64]) -> io::Result<()> {
        let mut records = vec![Vec::new()];
        for entry in entries {
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            match records.last_mut() {
                Some(last) if RECORD_HEADER + last.len() + bytes.len() <= RECORD_MAX => last.extend(bytes),
                _ => records.push(bytes),
            }
        }
        for record in records {
            if !log.journal.has_room(record.len()) {
                return self.rebase(log, hot);
            }
            log.journal.append(&record)?;
        }
        Ok(())
    }

    pub(super) fn rebase(&self, log: &mut LogState, hot: &[u64]) -> io::Result<()> {
        let pages = self.live.numbers().filter_map(|number| Some((number, self.live.copy_page(number)?)));
        log.journal.rebase(&log.state, hot, pages, self.tuning.log)
    }

    /// After an error of the storage nothing is tracked: the file must not say anything else.
    pub(super) fn survive(&self, log: &mut LogState, logged: io::Result<()>) -> io::Result<()> {
        let Err(error) = logged else { return Ok(()) };
        log.journal.forget()?;
        log.lost = Some(shortened(format!("the track file could not be written: {error}")));
        let _ = self.mode.compare_exchange(TRACKING, LOST, SeqCst, SeqCst);
        Ok(())
    }
}

//! The cache of metadata pages: the block table and the sector bitmaps, 4 KiB at a time.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::format::{BatEntry, PAGE};

/// Maximum number of changed pages that may wait for a commit: 4 MiB. Beyond that a change waits for one.
const DIRTY_MAX: usize = 1024;

struct Page {
    bytes: Box<[u8; PAGE]>,
    dirty: bool,
    /// Uses that end later: plans that will change the page, commits that have not written it to its place yet.
    holds: u32,
    recent: bool,
}

/// Pages by their offset in the file. Changed and held pages stay; of others at most `clean_max` do, the least recently
/// used go first (second chance).
pub(crate) struct Pages {
    map: HashMap<u64, Page>,
    order: VecDeque<u64>,
    dirty: BTreeSet<u64>,
    clean_max: usize,
    /// Counts evictions: a page that was read while one happened may be older than what was evicted.
    pub(crate) evictions: u64,
}

/// A page that is not in memory.
#[derive(Debug)]
pub(crate) struct Miss(pub(crate) u64);

impl Pages {
    pub(crate) fn new(clean_max: usize) -> Self {
        Self {
            map: HashMap::new(),
            order: VecDeque::new(),
            dirty: BTreeSet::new(),
            clean_max: clean_max.max(64),
            evictions: 0,
        }
    }

    pub(crate) fn get(&mut self, offset: u64) -> Result<&[u8; PAGE], Miss> {
        let page = self.map.get_mut(&offset).ok_or(Miss(offset))?;
        page.recent = true;
        Ok(&page.bytes)
    }

    /// The page, which will be changed by the next commit.
    pub(crate) fn get_mut(&mut self, offset: u64) -> Result<&mut [u8; PAGE], Miss> {
        let page = self.map.get_mut(&offset).ok_or(Miss(offset))?;
        page.recent = true;
        page.dirty = true;
        self.dirty.insert(offset);
        Ok(&mut page.bytes)
    }

    pub(crate) fn entry(&mut self, (page, at): (u64, usize)) -> Result<BatEntry, Miss> {
        let bytes = self.get(page)?;
        let mut entry = [0; 8];
        entry.copy_from_slice(&bytes[at..at + 8]);
        Ok(BatEntry(u64::from_le_bytes(entry)))
    }

    /// An entry, and how many entries from it on, at most `max` and all in its page, each are larger than the one
    /// before by what `step` says of the first; one where it says nothing.
    pub(crate) fn entries(
        &mut self,
        (page, at): (u64, usize),
        max: u64,
        step: impl FnOnce(BatEntry) -> Option<u64>,
    ) -> Result<(BatEntry, u64), Miss> {
        let first = self.entry((page, at))?;
        let Some(step) = step(first).filter(|_| max > 1) else { return Ok((first, 1)) };
        let entries = self.get(page)?[at..].as_chunks::<8>().0;
        let following = entries.iter().take(usize::try_from(max).unwrap_or(PAGE));
        let mut expected = first.0;
        let alike = following.take_while(|bytes| {
            let is = u64::from_le_bytes(**bytes) == expected;
            expected = expected.wrapping_add(step);
            is
        });
        Ok((first, alike.count() as u64))
    }

    pub(crate) fn set_entry(&mut self, (page, at): (u64, usize), entry: BatEntry) -> Result<(), Miss> {
        self.get_mut(page)?[at..at + 8].copy_from_slice(&entry.0.to_le_bytes());
        Ok(())
    }

    /// Puts a page in that was read; one that is there already is newer.
    pub(crate) fn insert(&mut self, offset: u64, bytes: Box<[u8; PAGE]>) {
        if self.map.contains_key(&offset) {
            return;
        }
        let mut chances = 2 * self.order.len();
        while self.map.len() - self.dirty.len() >= self.clean_max && chances > 0 {
            chances -= 1;
            let Some(oldest) = self.order.pop_front() else { break };
            match self.map.get_mut(&oldest) {
                Some(page) if page.dirty || page.holds > 0 || page.recent => {
                    page.recent = false;
                    self.order.push_back(oldest);
                }
                Some(_) => {
                    self.map.remove(&oldest);
                    self.evictions += 1;
                }
                None => {}
            }
        }
        self.map.insert(offset, Page { bytes, dirty: false, holds: 0, recent: true });
        self.order.push_back(offset);
    }

    pub(crate) fn hold(&mut self, offset: u64) -> Result<(), Miss> {
        self.map.get_mut(&offset).ok_or(Miss(offset))?.holds += 1;
        Ok(())
    }

    pub(crate) fn unhold(&mut self, offset: u64) {
        if let Some(page) = self.map.get_mut(&offset) {
            page.holds = page.holds.saturating_sub(1);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.dirty.len() >= DIRTY_MAX
    }

    /// Copies of all changed pages, the highest first; they are held until they are [`unhold`](Self::unhold).
    pub(crate) fn take_dirty(&mut self) -> Vec<(u64, Box<[u8; PAGE]>)> {
        let offsets: Vec<u64> = std::mem::take(&mut self.dirty).into_iter().rev().collect();
        let mut copies = Vec::with_capacity(offsets.len());
        for offset in offsets {
            if let Some(page) = self.map.get_mut(&offset) {
                page.dirty = false;
                page.holds += 1;
                copies.push((offset, page.bytes.clone()));
            }
        }
        copies
    }

    /// A page whose commit failed is changed again.
    pub(crate) fn give_back(&mut self, offset: u64) {
        if let Some(page) = self.map.get_mut(&offset) {
            page.holds = page.holds.saturating_sub(1);
            page.dirty = true;
            self.dirty.insert(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_and_held_pages_stay_and_the_others_are_bounded() {
        let mut pages = Pages::new(64);
        for n in 0..1000u64 {
            pages.insert(n << 12, Box::new([n as u8; PAGE]));
            match n {
                7 => drop(pages.get_mut(n << 12).map(|page| page[0] = 99)),
                8 => pages.hold(n << 12).expect("there"),
                _ => {}
            }
        }
        assert!(pages.map.len() <= 66 && pages.evictions > 900);
        assert_eq!(pages.get(7 << 12).expect("changed")[0], 99);
        assert_eq!(pages.get(8 << 12).expect("held")[0], 8);
        let taken = pages.take_dirty();
        assert_eq!(taken.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [7 << 12]);
        pages.give_back(7 << 12);
        assert_eq!(pages.take_dirty().len(), 1);
    }
}

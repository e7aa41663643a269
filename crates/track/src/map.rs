//! The map of an epoch that is closed: pages of grains.

use std::collections::BTreeMap;

use crate::grain::{LOW, PAGE_GRAINS, PAGE_WORDS, SAVED, UNTOUCHED, WORD_GRAINS, WRITTEN, having, words};

/// States of the grains of 1 GiB, two bits each.
pub(crate) type Page = [u64; PAGE_WORDS];

/// States of the grains of a disk; pages without a touched grain are absent.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Map {
    pub(crate) pages: BTreeMap<u32, Box<Page>>,
}

impl Map {
    /// Gives the grains `first..end` a state.
    pub(crate) fn set(&mut self, first: u64, end: u64, state: u64) {
        for (word, mask) in words(first, end) {
            let (page, within) = place(word);
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_WORDS]));
            page[within] = page[within] & !mask | mask & (state * LOW);
        }
    }

    /// Replaces whole words, beginning at a word of the disk.
    pub(crate) fn set_words(&mut self, first: u64, states: &[u64]) {
        for (word, &state) in (first..).zip(states) {
            let (page, within) = place(word);
            self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_WORDS]))[within] = state;
        }
    }

    /// Puts a younger map over this one.
    pub(crate) fn overlay(&mut self, younger: &Self) {
        for (&number, page) in &younger.pages {
            let below = self.pages.entry(number).or_insert_with(|| Box::new([0; PAGE_WORDS]));
            overlay(below, page);
        }
    }

    /// Touched grains.
    pub(crate) fn touched(&self) -> u64 {
        self.pages.values().map(|page| touched(page)).sum()
    }
}

/// Puts the grains that a younger page has touched over an older one.
pub(crate) fn overlay(older: &mut Page, younger: &Page) {
    for (older, &younger) in older.iter_mut().zip(younger) {
        *older = *older & having(younger, UNTOUCHED) | younger;
    }
}

/// Touched grains of a page.
pub(crate) fn touched(page: &Page) -> u64 {
    page.iter().map(|&word| u64::from((!having(word, UNTOUCHED) & LOW).count_ones())).sum()
}

/// Without the difference of written and saved.
pub(crate) fn plain(word: u64) -> u64 {
    let saved = having(word, SAVED);
    word & !saved | saved & (WRITTEN * LOW)
}

/// Page and word in it of a word of the disk.
pub(crate) fn place(word: u64) -> (u32, usize) {
    let words = PAGE_WORDS as u64;
    ((word / words) as u32, (word % words) as usize)
}

/// Runs of grains of one state, joined across words and pages.
#[derive(Default)]
pub(crate) struct Runs {
    start: u64,
    end: u64,
    state: u64,
}

impl Runs {
    /// Goes on with the grains of a page; `each` gets start, end and state of every run that is complete.
    pub(crate) fn page(&mut self, number: u32, page: &Page, each: &mut impl FnMut(u64, u64, u64)) {
        let first = u64::from(number) * PAGE_GRAINS;
        self.next(first, first, UNTOUCHED, each);
        for (index, &word) in page.iter().enumerate() {
            let start = first + index as u64 * WORD_GRAINS;
            let mut at = 0;
            while at < WORD_GRAINS {
                let rest = word >> (2 * at);
                let state = rest & 3;
                let same = u64::from((rest ^ (state * LOW)).trailing_zeros()) / 2;
                let end = (at + same.max(1)).min(WORD_GRAINS);
                self.next(start + at, start + end, state, each);
                at = end;
            }
        }
    }

    /// Goes on with a run.
    pub(crate) fn next(&mut self, start: u64, end: u64, state: u64, each: &mut impl FnMut(u64, u64, u64)) {
        if start == self.end && state == self.state {
            self.end = end;
            return;
        }
        // A run that begins where nothing was said before: what lies between is untouched.
        if start == end && start == self.end {
            return;
        }
        if self.state != UNTOUCHED && self.start < self.end {
            each(self.start, self.end, self.state);
        }
        *self = Self { start, end, state };
    }

    /// Ends the last run.
    pub(crate) fn finish(self, each: &mut impl FnMut(u64, u64, u64)) {
        if self.state != UNTOUCHED && self.start < self.end {
            each(self.start, self.end, self.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grain::UNMAPPED;

    fn runs(map: &Map) -> Vec<(u64, u64, u64)> {
        let (mut runs, mut list) = (Runs::default(), Vec::new());
        for (&number, page) in &map.pages {
            runs.page(number, page, &mut |a, b, c| list.push((a, b, c)));
        }
        runs.finish(&mut |a, b, c| list.push((a, b, c)));
        list
    }

    #[test]
    fn runs_are_joined_across_words_and_pages_and_the_younger_state_wins() {
        let mut map = Map::default();
        map.set(30, 34, WRITTEN);
        map.set(16380, 16390, UNMAPPED);
        map.set(3 * 16384, 3 * 16384 + 1, WRITTEN);
        assert_eq!(runs(&map), [(30, 34, WRITTEN), (16380, 16390, UNMAPPED), (49152, 49153, WRITTEN)]);
        let mut younger = Map::default();
        younger.set(31, 32, UNMAPPED);
        younger.set(16389, 32768, WRITTEN);
        map.overlay(&younger);
        assert_eq!(
            runs(&map),
            [
                (30, 31, WRITTEN),
                (31, 32, UNMAPPED),
                (32, 34, WRITTEN),
                (16380, 16389, UNMAPPED),
                (16389, 32768, WRITTEN),
                (49152, 49153, WRITTEN)
            ]
        );
        assert_eq!(map.touched(), 4 + (32768 - 16380) + 1);
    }
}

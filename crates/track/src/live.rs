//! The map of the epoch that is open: atomics that many cores change at once.
//!
//! A writer adds itself to the regions of its range, marks its grains, and then looks whether the regions are hot. The
//! keeper of the log clears a region's mark of being hot, and then reads its grains. All of it is sequentially
//! consistent, so that one of both sees the other: either the writer finds the region cold and waits for the log, or
//! the log has its grains.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst, fence};

use crate::grain::{
    DISK_MAX, GRAIN, LOW, PAGE_GRAINS, PAGE_WORDS, REGION_GRAINS_MIN, SAVED, UNMAPPED, UNTOUCHED,
    WORD_GRAINS, WRITTEN, having, words,
};
use crate::map::{Map, Page, place, plain};

/// Regions of a page, if they are of the smallest size.
const PAGE_REGIONS: usize = (PAGE_GRAINS / REGION_GRAINS_MIN) as usize;
/// Entries of each of both levels of the table of pages.
const FAN: usize = 1024;
const _: () = assert!(FAN as u64 * FAN as u64 * PAGE_GRAINS * GRAIN == DISK_MAX);

/// Of the word of a region: how many operations are under way in it. 2^28 of them would take more memory than there
/// is.
const UNDER_WAY: u64 = (1 << 28) - 1;
/// The log says that anything in the region may be written.
const HOT: u64 = 1 << 28;
/// The first operation asks for the regions that follow.
const AHEAD: u64 = 1 << 29;
/// Increment for one operation more in flight, and one more that ever began: the upper 34 bits count these, and wrap.
const STEP: u64 = (1 << 30) | 1;
const BEGAN: u64 = !((1 << 30) - 1);

struct LivePage {
    words: [AtomicU64; PAGE_WORDS],
    regions: [AtomicU64; PAGE_REGIONS],
}

type Pages = Box<[OnceLock<Box<LivePage>>]>;

/// The open epoch's map, with pages made at the first touch.
pub(crate) struct Live {
    table: Box<[OnceLock<Pages>]>,
    region_grains: u64,
}

/// Finding of an operation when it entered its regions.
#[derive(Default)]
pub(crate) struct Entered {
    /// The operation asks for the regions after this one.
    pub(crate) ahead: Option<u64>,
}

fn slots<T>() -> Box<[OnceLock<T>]> {
    (0..FAN).map(|_| OnceLock::new()).collect()
}

impl Live {
    pub(crate) fn new(region_grains: u64) -> Self {
        Self { table: slots(), region_grains }
    }

    /// Grains of a region.
    pub(crate) fn region_grains(&self) -> u64 {
        self.region_grains
    }

    /// The regions that the grains `first..end` lie in.
    pub(crate) fn regions(&self, first: u64, end: u64) -> std::ops::Range<u64> {
        first / self.region_grains..end.div_ceil(self.region_grains)
    }

    fn known(&self, number: u32) -> Option<&LivePage> {
        let pages = self.table[number as usize / FAN].get()?;
        pages[number as usize % FAN].get().map(|page| &**page)
    }

    /// Returns `true` if there is a page.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.known(number).is_some()
    }

    fn page(&self, number: u32) -> &LivePage {
        let pages = self.table[number as usize / FAN].get_or_init(slots);
        let page = &pages[number as usize % FAN];
        if let Some(page) = page.get() {
            return page;
        }
        let page = page.get_or_init(|| {
            Box::new(LivePage {
                words: [const { AtomicU64::new(0) }; PAGE_WORDS],
                regions: [const { AtomicU64::new(0) }; PAGE_REGIONS],
            })
        });
        fence(SeqCst);
        page
    }

    fn region(&self, region: u64) -> &AtomicU64 {
        let grain = region * self.region_grains;
        let page = self.page((grain / PAGE_GRAINS) as u32);
        &page.regions[(grain % PAGE_GRAINS / self.region_grains) as usize]
    }

    fn word(&self, word: u64) -> &AtomicU64 {
        let (page, within) = place(word);
        &self.page(page).words[within]
    }

    /// An operation begins: `each` gets for every region how many began in it before, or `None` if others are under way
    /// in it.
    pub(crate) fn enter(&self, regions: std::ops::Range<u64>, mut each: impl FnMut(Option<u64>)) -> Entered {
        let mut entered = Entered::default();
        for region in regions {
            let state = self.region(region);
            let before = state.fetch_add(STEP, SeqCst);
            each((before & UNDER_WAY == 0).then_some(before.wrapping_add(STEP) & BEGAN));
            if before & AHEAD != 0 && state.fetch_and(!AHEAD, SeqCst) & AHEAD != 0 {
                entered.ahead = Some(region);
            }
        }
        entered
    }

    /// An operation has ended, or not begun.
    pub(crate) fn leave(&self, regions: std::ops::Range<u64>) {
        for region in regions {
            self.region(region).fetch_sub(1, SeqCst);
        }
    }

    /// Marks grains as written; whether the log has all of them as written already.
    pub(crate) fn mark(&self, first: u64, end: u64) -> bool {
        let mut saved = true;
        for (word, mask) in words(first, end) {
            let word = self.word(word);
            let state = word.load(SeqCst);
            if state & mask == mask {
                continue;
            }
            saved = false;
            let high = mask & !LOW;
            if state & high != high {
                let _ = word.fetch_update(SeqCst, SeqCst, |state| {
                    let missing = !state & high;
                    Some((state | missing) & !(missing >> 1))
                });
            }
        }
        saved
    }

    /// Returns `true` if all of the regions are hot.
    pub(crate) fn are_hot(&self, mut regions: std::ops::Range<u64>) -> bool {
        regions.all(|region| self.is_hot(region))
    }

    pub(crate) fn is_hot(&self, region: u64) -> bool {
        self.region(region).load(SeqCst) & HOT != 0
    }

    /// The log has the region as hot.
    pub(crate) fn heat(&self, region: u64, ahead: bool) {
        self.region(region).fetch_or(HOT | if ahead { AHEAD } else { 0 }, SeqCst);
    }

    /// The region is no longer hot. Its grains are read afterwards.
    pub(crate) fn cool(&self, region: u64) {
        self.region(region).fetch_and(!(HOT | AHEAD), SeqCst);
    }

    /// Returns the number of operations that ever began in the region: for choosing one that rests.
    pub(crate) fn began(&self, region: u64) -> u64 {
        self.region(region).load(SeqCst) & BEGAN
    }

    /// The grains of a region, as a range.
    pub(crate) fn grains_of(&self, region: u64) -> (u64, u64) {
        (region * self.region_grains, (region + 1) * self.region_grains)
    }

    /// The grains of a region as the log may have them. Zeroes are only certain where nothing is under way: the
    /// operations of a grain have no order while they are.
    pub(crate) fn states_of(&self, region: u64) -> Vec<u64> {
        let (first, end) = self.grains_of(region);
        let before = self.region(region).load(SeqCst);
        let read = |word| plain(self.word(word).load(SeqCst));
        let mut states: Vec<u64> = (first / WORD_GRAINS..end / WORD_GRAINS).map(read).collect();
        let after = self.region(region).load(SeqCst);
        let at_rest = before & UNDER_WAY == 0 && before & BEGAN == after & BEGAN;
        if !at_rest {
            for state in &mut states {
                let unmapped = having(*state, UNMAPPED);
                *state = *state & !unmapped | unmapped & (WRITTEN * LOW);
            }
        }
        states
    }

    /// The log has these states of a region's grains: what is still written needs no second entry.
    pub(crate) fn saved(&self, first_word: u64, states: &[u64]) {
        for (word, &logged) in (first_word..).zip(states) {
            let logged = having(logged, WRITTEN);
            if logged == 0 {
                continue;
            }
            let _ = self
                .word(word)
                .fetch_update(SeqCst, SeqCst, |state| Some(state | having(state, WRITTEN) & logged & LOW));
        }
    }

    /// The log has these grains as written.
    pub(crate) fn saved_range(&self, first: u64, end: u64) {
        for (word, mask) in words(first, end) {
            let _ = self
                .word(word)
                .fetch_update(SeqCst, SeqCst, |state| Some(state | having(state, WRITTEN) & mask & LOW));
        }
    }

    /// Marks grains of one region as unmapped, if nothing else began in it since `began`.
    ///
    /// A writer that begins meanwhile is either seen here, and the mark is taken back, or sees the mark and replaces
    /// it.
    pub(crate) fn unmap(&self, region: u64, began: u64, first: u64, end: u64) -> bool {
        let state = self.region(region);
        if state.load(SeqCst) & BEGAN != began {
            return false;
        }
        for (word, mask) in words(first, end) {
            let _ = self
                .word(word)
                .fetch_update(SeqCst, SeqCst, |state| Some(state & !mask | mask & (UNMAPPED * LOW)));
        }
        if state.load(SeqCst) & BEGAN == began {
            return true;
        }
        for (word, mask) in words(first, end) {
            let _ = self.word(word).fetch_update(SeqCst, SeqCst, |state| {
                let unmapped = having(state, UNMAPPED) & mask;
                Some(state & !unmapped | unmapped & (WRITTEN * LOW))
            });
        }
        false
    }

    /// Puts an older map below.
    pub(crate) fn underlay(&self, older: &Map) {
        for (&number, page) in &older.pages {
            let live = self.page(number);
            for (word, &older) in live.words.iter().zip(page.iter()) {
                let _ = word.fetch_update(SeqCst, SeqCst, |state| {
                    Some(state | having(state, UNTOUCHED) & plain(older))
                });
            }
        }
    }

    /// Takes over a map that the log has.
    pub(crate) fn restore(&self, map: &Map) {
        for (&number, page) in &map.pages {
            let live = self.page(number);
            for (word, &state) in live.words.iter().zip(page.iter()) {
                word.store(state | having(state, WRITTEN) & (SAVED * LOW), SeqCst);
            }
        }
    }

    /// The pages that there are, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..FAN as u32).filter_map(|upper| Some((upper, self.table[upper as usize].get()?))).flat_map(
            |(upper, pages)| {
                let lower = (0..FAN as u32).filter(|&lower| pages[lower as usize].get().is_some());
                lower.map(move |lower| upper * FAN as u32 + lower)
            },
        )
    }

    /// A copy of a page, as the log may have it; `None`: nothing in it is touched.
    pub(crate) fn copy_page(&self, number: u32) -> Option<Box<Page>> {
        let live = self.known(number)?;
        if live.words.iter().all(|word| word.load(SeqCst) == 0) {
            return None;
        }
        let mut page = Box::new([0; PAGE_WORDS]);
        let first = u64::from(number) * PAGE_GRAINS;
        for region in self.regions(first, first + PAGE_GRAINS) {
            let at = ((region * self.region_grains - first) / WORD_GRAINS) as usize;
            let states = self.states_of(region);
            page[at..at + states.len()].copy_from_slice(&states);
        }
        Some(page)
    }

    /// A copy of the whole map.
    pub(crate) fn copy(&self) -> Map {
        let pages = self.numbers().filter_map(|number| Some((number, self.copy_page(number)?)));
        Map { pages: pages.collect() }
    }

    /// Touched grains, about.
    pub(crate) fn touched(&self) -> u64 {
        let words = |number| self.known(number).into_iter().flat_map(|page| &page.words);
        let count = |word: &AtomicU64| u64::from((!having(word.load(SeqCst), UNTOUCHED) & LOW).count_ones());
        self.numbers().flat_map(words).map(count).sum()
    }

    /// The next epoch begins: nothing is touched or hot. Nothing is under way and nothing begins meanwhile. Pages stay,
    /// for the next writer of this page.
    pub(crate) fn clear(&self) {
        for number in self.numbers() {
            let page = self.page(number);
            page.words.iter().for_each(|word| word.store(0, SeqCst));
            for region in &page.regions {
                region.fetch_and(!(HOT | AHEAD), SeqCst);
            }
        }
    }

    /// Checks that nothing is in flight, beginning the search at a page: `Err` with the page where something is. While
    /// nothing new begins, pages before that stay at rest.
    pub(crate) fn at_rest(&self, from: u32) -> Result<(), u32> {
        // A page that another core has just made is seen from here on.
        fence(SeqCst);
        for number in self.numbers().skip_while(|&number| number < from) {
            let busy = |region: &AtomicU64| region.load(SeqCst) & UNDER_WAY != 0;
            if self.known(number).is_some_and(|page| page.regions.iter().any(busy)) {
                return Err(number);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmapped_grain_is_one_only_if_nothing_else_was_under_way() {
        let live = Live::new(64);
        let mut began = Vec::new();
        live.enter(0..1, |state| began.push(state));
        live.mark(0, 2);
        assert!(live.unmap(0, began[0].unwrap(), 0, 1));
        assert_eq!(live.states_of(0)[0], 0b10_10, "while it is under way the log takes it as written");
        live.leave(0..1);
        assert_eq!(live.states_of(0)[0], 0b10_01);
        live.enter(0..1, |state| began.push(state));
        live.enter(0..1, |state| assert_eq!(state, None));
        assert!(!live.unmap(0, began[1].unwrap(), 0, 2));
        assert_eq!(live.at_rest(0), Err(0));
        live.leave(0..1);
        live.leave(0..1);
        assert_eq!((live.at_rest(0), live.states_of(0)[0]), (Ok(()), 0b10_01));
    }

    #[test]
    fn what_the_log_has_as_written_needs_no_second_entry() {
        let live = Live::new(64);
        assert!(!live.mark(5, 7));
        let states = live.states_of(0);
        live.saved(0, &states);
        assert!(live.mark(5, 7));
        assert!(!live.mark(4, 7));
        live.saved_range(4, 5);
        assert!(live.mark(4, 7));
        assert_eq!(live.touched(), 3);
        assert_eq!(live.copy().touched(), 3);
        live.clear();
        assert_eq!(live.copy(), Map::default());
    }
}

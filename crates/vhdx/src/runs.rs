//! Where the bytes lie of those files of a chain that do not change while it is open, so that a read through 64 files
//! asks one.
//!
//! Parents are open for reading only, and so may be the disk itself: what is known of them stays true. It is learnt by
//! the first read of a cell.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// Bytes of the disk that are learnt together: the smallest block (MS-VHDX 2.6.2.1).
pub(crate) const CELL: u64 = 1 << 20;
/// The most that is remembered, in runs of 16 bytes: 16 MiB.
const REMEMBERED: usize = 1 << 20;
/// What a cell takes beside its runs, in the same unit: its place in the map and its allocation.
const PER_CELL: usize = 4;

/// Where the bytes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the file of the disk at this level of the chain, at this offset.
    File(usize, u64),
    /// In none: zeroes.
    Zeroes,
    /// In what the last disk of the chain was made on.
    Base,
}

/// The bytes of a cell from the end of the run before it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Its end in the cell.
    end: u32,
    /// Number of the disk, or one of those that stand for no disk.
    level: u16,
    /// Offset in the file of the cell's first byte, if the run went on to there: two's complement.
    base: u64,
}

const ZEROES: u16 = u16::MAX;
/// Until a disk below is asked, and for good where there is none.
const BELOW: u16 = u16::MAX - 1;

impl Run {
    /// A run of a cell that begins at `start` in it.
    pub(crate) fn new(start: u64, len: u64, place: Place) -> Self {
        // Chains have far fewer files than a u16 counts.
        let (level, base) = match place {
            Place::File(level, offset) => (level as u16, offset.wrapping_sub(start)),
            Place::Zeroes => (ZEROES, 0),
            Place::Base => (BELOW, 0),
        };
        Self { end: (start + len) as u32, level, base }
    }

    fn place(&self, at: u64) -> Place {
        match self.level {
            ZEROES => Place::Zeroes,
            BELOW => Place::Base,
            level => Place::File(usize::from(level), self.base.wrapping_add(at)),
        }
    }

    /// Appends to a list, joining with the last one where that goes on.
    pub(crate) fn push_onto(self, list: &mut Vec<Self>) {
        match list.last_mut() {
            Some(last) if (last.level, last.base) == (self.level, self.base) => last.end = self.end,
            _ => list.push(self),
        }
    }
}

/// The runs of a cell while the disks of a chain are asked for it, from above.
#[derive(Debug)]
pub(crate) struct CellRuns(Vec<Run>);

impl CellRuns {
    /// Nothing is known yet of so many bytes.
    pub(crate) fn new(len: u64) -> Self {
        Self(vec![Run::new(0, len, Place::Base)])
    }

    /// Returns `true` if a disk below has to be asked.
    pub(crate) fn is_open(&self) -> bool {
        self.0.iter().any(|run| run.level == BELOW)
    }

    /// The next disk says this of the whole cell.
    pub(crate) fn asked(&mut self, found: &[Run]) {
        if found.iter().all(|run| run.level == BELOW) {
            return;
        }
        let (mut merged, mut at) = (Vec::with_capacity(self.0.len() + found.len()), 0);
        let mut found = found.iter().copied().peekable();
        for run in &self.0 {
            while at < run.end {
                while found.next_if(|found| found.end <= at).is_some() {}
                let below = found.peek().filter(|_| run.level == BELOW);
                let mut piece = *below.unwrap_or(run);
                piece.end = piece.end.min(run.end);
                at = piece.end;
                piece.push_onto(&mut merged);
            }
        }
        self.0 = merged;
    }
}

/// Runs of the cells that were read.
#[derive(Debug, Default)]
pub(crate) struct Runs(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    cells: HashMap<u64, Box<[Run]>>,
    /// What is remembered, in runs.
    size: usize,
}

impl Runs {
    /// Where the byte at `offset` of the disk is, and how many bytes from there on follow it; `None`: not known.
    pub(crate) fn find(&self, offset: u64) -> Option<(Place, u64)> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let runs = known.cells.get(&(offset / CELL))?;
        let at = offset % CELL;
        let run = runs.get(runs.partition_point(|run| u64::from(run.end) <= at))?;
        Some((run.place(at), u64::from(run.end) - at))
    }

    /// Notes the runs of a cell.
    pub(crate) fn learn(&self, cell: u64, runs: CellRuns) {
        let runs = runs.0.into_boxed_slice();
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.size + runs.len() + PER_CELL > REMEMBERED {
            // What is in use is learnt again soon.
            *known = Known::default();
        }
        known.size += runs.len() + PER_CELL;
        if let Some(before) = known.cells.insert(cell, runs) {
            known.size -= before.len() + PER_CELL;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_of_the_first_disk_that_has_it() {
        let mut cell = CellRuns::new(CELL);
        assert!(cell.is_open());
        let of = |pieces: &[(u64, u64, Place)]| -> Vec<Run> {
            pieces.iter().map(|(start, end, place)| Run::new(*start, end - start, *place)).collect()
        };
        cell.asked(&of(&[(0, 4096, Place::File(1, 8192)), (4096, CELL, Place::Base)]));
        cell.asked(&of(&[
            (0, 2048, Place::Base),
            (2048, 8192, Place::File(2, 100 << 20)),
            (8192, 12288, Place::Zeroes),
            (12288, CELL, Place::Base),
        ]));
        assert!(cell.is_open());
        cell.asked(&of(&[(0, CELL, Place::File(3, 0))]));
        assert!(!cell.is_open());
        let runs = Runs::default();
        assert_eq!(runs.find(7 * CELL), None);
        runs.learn(7, cell);
        let find = |at: u64| runs.find(7 * CELL + at).unwrap();
        assert_eq!(find(0), (Place::File(1, 8192), 4096));
        assert_eq!(find(4095), (Place::File(1, 8192 + 4095), 1));
        // Of the second disk's run the first one has the beginning.
        assert_eq!(find(4096), (Place::File(2, (100 << 20) + 2048), 4096));
        assert_eq!(find(8192), (Place::Zeroes, 4096));
        assert_eq!(find(12800), (Place::File(3, 12800), CELL - 12800));
        assert_eq!(runs.find(8 * CELL), None);
    }

    #[test]
    fn what_no_disk_has_is_of_the_base_and_a_short_cell_ends() {
        let runs = Runs::default();
        let mut cell = CellRuns::new(4096);
        cell.asked(&[Run::new(0, 512, Place::Zeroes), Run::new(512, 3584, Place::Base)]);
        runs.learn(0, cell);
        assert_eq!((runs.find(0), runs.find(512)), (Some((Place::Zeroes, 512)), Some((Place::Base, 3584))));
        assert_eq!(runs.find(4096), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let runs = Runs::default();
        let cells = REMEMBERED as u64 / 4;
        for cell in 0..cells {
            runs.learn(cell, CellRuns::new(CELL));
            // The same again is no more.
            runs.learn(cell, CellRuns::new(CELL));
        }
        let known = runs.0.read().unwrap();
        assert_eq!(known.size, known.cells.len() * (1 + PER_CELL));
        assert!(known.size <= REMEMBERED && known.cells.len() > 1000);
        drop(known);
        assert_eq!(runs.find((cells - 1) * CELL), Some((Place::Base, CELL)));
    }
}

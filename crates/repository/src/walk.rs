//! Walking the trees of points: which entries they need, and which of those cannot be read.

use std::collections::{BTreeSet, HashMap};

use lunway_backup::{BackupError, Result, units};

use crate::codec::{Id, ZEROES};
use crate::index::{Found, Index};
use crate::point::RepositoryPoint;
use crate::reader::{EntryError, Reader};
use crate::segment::Segment;
use crate::tree::{branches, split};

/// A bit for each entry of an index: 128 MiB for 64 TiB of leaves.
#[derive(Clone)]
pub(crate) struct Marks(Vec<Vec<u64>>);

impl Marks {
    pub(crate) fn of(index: &Index) -> Self {
        let words = |segment: &Segment| vec![0; segment.count().div_ceil(64) as usize];
        Self(index.segments().iter().map(words).collect())
    }

    /// `false`: it was marked before.
    fn set(&mut self, found: &Found) -> bool {
        let word = &mut self.0[found.segment][(found.number / 64) as usize];
        let is_new = *word >> (found.number % 64) & 1 == 0;
        *word |= 1 << (found.number % 64);
        is_new
    }

    pub(crate) fn has(&self, segment: usize, number: u64) -> bool {
        self.0[segment][(number / 64) as usize] >> (number % 64) & 1 == 1
    }
}

/// Why an entry cannot be read, as a sentence, by its id.
pub(crate) type Faults = HashMap<Id, String>;

/// A walk over points, each entry of which is visited once, however many of them need it.
pub(crate) struct Walk<'a> {
    reader: &'a Reader,
    pub(crate) marks: Marks,
    pub(crate) faults: Faults,
    /// Entries of trees below which something cannot be read.
    broken: HashMap<Id, BTreeSet<Id>>,
    is_cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(reader: &'a Reader, is_cancelled: &'a dyn Fn() -> bool) -> Self {
        let marks = Marks::of(&reader.index);
        Self { reader, marks, faults: Faults::new(), broken: HashMap::new(), is_cancelled }
    }

    /// Marks all entries of a point: those that cannot be read.
    pub(crate) fn point(&mut self, point: &RepositoryPoint) -> Result<BTreeSet<Id>> {
        let count = branches(units(point.virtual_bytes)) as usize;
        let faults = self.entry(&point.root(), 3)?;
        // Of another disk: an id that somebody has put there.
        if faults.is_empty() && self.ids(&point.root())?.is_none_or(|ids| ids.len() != count) {
            return Ok(self.fault(&point.root(), "its root is not that of a disk of its size".into()));
        }
        Ok(faults)
    }

    fn fault(&mut self, id: &Id, what: String) -> BTreeSet<Id> {
        self.faults.insert(*id, what);
        BTreeSet::from([*id])
    }

    fn ids(&self, id: &Id) -> Result<Option<Vec<Id>>> {
        match self.reader.read_kept(id) {
            Ok(bytes) => Ok(split(&bytes)),
            Err(EntryError::Access(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// An entry, and so many levels below it.
    fn entry(&mut self, id: &Id, levels: u32) -> Result<BTreeSet<Id>> {
        if self.faults.contains_key(id) {
            return Ok(BTreeSet::from([*id]));
        }
        let Some(found) = self.reader.index.find(id)? else {
            return Ok(self.fault(id, EntryError::Missing.sentence()?));
        };
        if !self.marks.set(&found) {
            return Ok(self.broken.get(id).cloned().unwrap_or_default());
        }
        if levels == 0 {
            return Ok(BTreeSet::new());
        }
        if (self.is_cancelled)() {
            return Err(BackupError::Cancelled);
        }
        let read = match levels {
            // Each is read once here, and must not push out branches.
            1 => self.reader.read(id).map(std::sync::Arc::new),
            _ => self.reader.read_kept(id),
        };
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                let what = error.sentence()?;
                return Ok(self.fault(id, what));
            }
        };
        let Some(ids) = split(&bytes) else {
            return Ok(self.fault(id, "a part of its tree is not whole".into()));
        };
        let mut faults = BTreeSet::new();
        for id in ids.iter().filter(|id| **id != ZEROES) {
            faults.append(&mut self.entry(id, levels - 1)?);
        }
        if !faults.is_empty() {
            self.broken.insert(*id, faults.clone());
        }
        Ok(faults)
    }
}

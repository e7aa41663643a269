//! Shipping: units of the source through comparison and hash into entries.
//!
//! ```text
//!   map of the source ─▶ plan of a window ─▶ read ─▶ zero test, BLAKE3, compare, zstd ─▶ packs, tree, in order
//!     (caller's task)      (a thread)      (32 at once)       (threads)                    (caller's task)
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use lunway_backup::{
    BackupError, Content, Counted, Folder, LEAVES, Leaf, Masks, Result, SampledBase, leaf_range,
};
use lunway_block::Buf;

use crate::codec::{Codec, Encoded, Id, ZEROES};
use crate::content::PointContent;
use crate::index::{Index, of_file};
use crate::lock::lock;
use crate::pack::Location;
use crate::segment::Segment;
use crate::tree::node;

/// What a run compares with, and what the repository has.
pub(crate) struct Shipment {
    pub(crate) size: u64,
    pub(crate) folder: Arc<dyn Folder>,
    pub(crate) codec: Arc<Codec>,
    /// The newest point, if it is compared with.
    pub(crate) base: Option<PointContent>,
    /// That point, or one before it, has left something out.
    pub(crate) left_out: bool,
    /// Damage is known: what is the same as before is sent again if no pack has it.
    pub(crate) heals: bool,
    pub(crate) index: Arc<Index>,
    /// Packs that must not be referred to.
    pub(crate) dying: HashSet<u64>,
    /// Segments that this run has written, and their numbers.
    pub(crate) written: RwLock<Vec<(u64, Segment)>>,
    /// Entries that are in none of them; without a place while they are on their way to a pack.
    pub(crate) fresh: Mutex<HashMap<Id, Option<Location>>>,
}

/// A unit that was dealt with.
pub(crate) struct Shipped {
    pub(crate) unit: u32,
    /// Its node where it is another one than before: the id, and the bytes unless they are zeroes.
    pub(crate) node: Option<(Id, Option<Vec<u8>>)>,
    /// Leaves that the repository does not have.
    pub(crate) new: Vec<(Id, Encoded)>,
    pub(crate) counted: Counted,
}

impl Shipment {
    pub(crate) fn fresh(&self) -> MutexGuard<'_, HashMap<Id, Option<Location>>> {
        lock(&self.fresh)
    }

    /// Tells whether the repository has an entry that may be referred to.
    fn has(&self, id: &Id) -> Result<bool> {
        if let Some(found) = self.index.find(id)?
            && !self.dying.contains(&found.location.pack)
        {
            return Ok(true);
        }
        for (_, segment) in self.written.read().unwrap_or_else(PoisonError::into_inner).iter() {
            match of_file(&*self.folder, "an index", segment.find(id))? {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(true),
                Err(what) => {
                    return Err(BackupError::Refused(format!(
                        "an index was damaged while it was used: {what}"
                    )));
                }
            }
        }
        Ok(false)
    }

    /// Returns `true` for the one caller that has to send an entry which the repository does not have.
    pub(crate) fn claim(&self, id: &Id) -> Result<bool> {
        if self.fresh().contains_key(id) || self.has(id)? {
            return Ok(false);
        }
        let mut fresh = self.fresh();
        let is_first = !fresh.contains_key(id);
        fresh.entry(*id).or_insert(None);
        Ok(is_first)
    }

    /// The leaves of the base; `None` where they cannot be known while damage is healed.
    fn before(&self, unit: u32) -> Result<Option<[Leaf; LEAVES]>> {
        match self.base.as_ref().map(|base| base.unit(unit)) {
            None => Ok(Some([Leaf::Zero; LEAVES])),
            Some(Err(BackupError::Damaged { .. })) if self.heals => Ok(None),
            Some(leaves) => leaves.map(Some),
        }
    }

    /// The units of a window that have to be dealt with. Blocks.
    pub(crate) fn plan(&self, window: Vec<Masks>) -> Result<Vec<Masks>> {
        let (Some(first), Some(last)) = (window.first(), window.last()) else {
            return Ok(Vec::new());
        };
        let next = match self.base.as_ref().map(|base| base.next(first.unit)) {
            None => None,
            // It is found out unit by unit.
            Some(Err(BackupError::Damaged { .. })) if self.heals => Some(first.unit),
            Some(next) => next?,
        };
        let has_before = next.is_some_and(|next| next <= last.unit);
        let wanted = |masks: &Masks| masks.touched != 0 && (has_before || masks.data & masks.touched != 0);
        Ok(window.into_iter().filter(wanted).collect())
    }

    /// Compares and hashes one unit; `data` begins with the first leaf that is read. Blocks.
    pub(crate) fn carry_out(&self, masks: Masks, data: Option<&Buf>) -> Result<Shipped> {
        let before = self.before(masks.unit)?;
        let start = read_range(&masks, self.size).start;
        let mut shipped =
            Shipped { unit: masks.unit, node: None, new: Vec::new(), counted: Counted::default() };
        let mut after = [Leaf::Zero; LEAVES];
        for (leaf, state) in after.iter_mut().enumerate() {
            let range = leaf_range(masks.unit, leaf, self.size);
            if range.is_empty() {
                continue;
            }
            let was = before.map_or(Leaf::Zero, |before| before[leaf]);
            let is = |mask: u16| mask >> leaf & 1 == 1;
            let len = range.end - range.start;
            *state = match (is(masks.touched), is(masks.data), is(masks.skip)) {
                (false, ..) => was,
                (_, false, _) => Leaf::Zero,
                (_, true, true) => {
                    shipped.counted.skipped += len;
                    was
                }
                (_, true, false) => {
                    let from = (range.start - start) as usize;
                    let bytes = data.and_then(|data| data.get(from..from + len as usize)).unwrap_or_default();
                    let state = self.codec.leaf(bytes);
                    if let Leaf::Data(id) = &state
                        && (state != was || self.heals)
                        && self.claim(id)?
                    {
                        shipped.new.push((*id, self.codec.encode(id, bytes)));
                        shipped.counted.sent += len;
                    }
                    state
                }
            };
            shipped.counted.changed += if *state == was { 0 } else { len };
        }
        shipped.counted.read = data.map_or(0, |data| data.len() as u64);
        if before != Some(after) || self.heals {
            let bytes = node(&after);
            let id = bytes.as_ref().map_or(ZEROES, |bytes| self.codec.id(bytes));
            shipped.node = Some((id, bytes));
        }
        Ok(shipped)
    }
}

/// The bytes of a unit that are read.
pub(crate) fn read_range(masks: &Masks, size: u64) -> std::ops::Range<u64> {
    masks.range(masks.touched & masks.data & !masks.skip, size)
}

/// The base of a run, as a sample of the source is compared with it.
pub(crate) struct Sampled(pub(crate) Arc<Shipment>);

impl SampledBase for Sampled {
    fn sample(&self, number: u64) -> Result<Option<u32>> {
        self.0.base.as_ref().map_or(Ok(None), |base| base.sample(number))
    }

    fn is_as_before(&self, unit: u32, data: &[u8], asked: u16) -> Result<bool> {
        let states = self.0.before(unit)?.unwrap_or_default();
        let mut leaves = data.chunks(lunway_backup::LEAF as usize).zip(states).enumerate();
        Ok(leaves.all(|(leaf, (bytes, state))| {
            // What was left out need not be zeroes at the source.
            let is_known = state != Leaf::Zero || !self.0.left_out;
            asked >> leaf & 1 == 0 || !is_known || self.0.codec.leaf(bytes) == state
        }))
    }
}

//! Shipping: units of the source through comparison and hash into the point's VHDX file.
//!
//! ```text
//!   map of the source ─▶ plan of a window ─▶ read ─▶ zero test, BLAKE3, compare ─▶ write ─▶ leaf hashes, in order
//!     (caller's task)      (a thread)      (32 at once)      (threads)           (threads)    (caller's task)
//! ```
//!
//! What a leaf is compared with are two states: `base`, what the parent shows there, and `have`, what an earlier pass
//! of this same point has left in its file.
//!
//! | have | equals base | differs from base |
//! |---|---|---|
//! | nothing | – | write, hold |
//! | the same | hold | hold |
//! | other, or not known | write, hold | write, hold |

use std::ops::Range;
use std::sync::Arc;

use lunway_block::Buf;
use lunway_vhdx::{Chain, DiscardMode, DiskError, SegmentSource};

use crate::error::{BackupError, Result};
use crate::folder::Open;
use crate::history::History;
use crate::journal::Counted;
use crate::leaf::{LEAF, LEAVES, Leaf, Lost, UnitLeaves, leaf_range, unit_range};
use crate::pace::Pace;
use crate::point_files::damaged;
use crate::point_id::PointId;
use crate::reading::Masks;
use crate::sidecar::Sidecar;

/// Free bytes of the point's file below which it is made longer: what is sent at 10 Gbit/s in a round trip of 20 ms, or
/// at 1 Gbit/s in one of 200.
const AHEAD: u64 = 24 << 20;

/// State of a leaf in the file after an earlier pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Have {
    Nothing,
    This(Leaf),
    Unknown,
}

/// Action for a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Stays as it is.
    Pass,
    /// Read.
    Read,
    /// The source says that it is zeroes.
    Zero,
    /// Left out: its contents are not needed.
    Skip,
}

/// A unit to be dealt with.
pub(crate) struct Work {
    pub(crate) unit: u32,
    acts: [Act; LEAVES],
    base: [Leaf; LEAVES],
    have: [Have; LEAVES],
    /// Leaves that are held whatever they are, since the point that shows them has lost them; a bit each.
    lost: u16,
}

/// The state of a point that is written, shared by the threads.
pub(crate) struct Shipment {
    pub(crate) point: PointId,
    /// The point's disk without its parents.
    pub(crate) disk: Chain<Open>,
    pub(crate) disk_name: String,
    pub(crate) size: u64,
    /// Of the parent.
    pub(crate) history: History,
    /// Leaves of the parent's points that are damaged for good.
    pub(crate) lost: Lost,
    /// Leaves known to have been left by earlier passes.
    pub(crate) have: Option<Sidecar>,
    /// Units of which earlier passes may have left anything.
    pub(crate) unknown: Vec<(u32, u32)>,
    pub(crate) pace: Pace,
}

impl Work {
    /// The bytes that are read: from the first leaf that must be to the last.
    pub(crate) fn reads(&self, size: u64) -> Range<u64> {
        let needed = |leaf: &usize| self.acts[*leaf] == Act::Read;
        match ((0..LEAVES).find(needed), (0..LEAVES).rev().find(needed)) {
            (Some(first), Some(last)) => {
                leaf_range(self.unit, first, size).start..leaf_range(self.unit, last, size).end
            }
            _ => 0..0,
        }
    }
}

impl Shipment {
    /// Returns `true` if an earlier pass may have left something of a unit.
    fn may_have(&self, unit: u32) -> Result<bool> {
        if self.unknown.iter().any(|(from, to)| (*from..*to).contains(&unit)) {
            return Ok(true);
        }
        Ok(self.next_have(unit)? == Some(unit))
    }

    fn next_have(&self, unit: u32) -> Result<Option<u32>> {
        match &self.have {
            Some(have) => have.next(unit).map_err(|error| damaged(self.point, error)),
            None => Ok(None),
        }
    }

    /// The first unit at or behind `unit` that earlier passes may have left something of: it is looked at, changed or
    /// not.
    pub(crate) fn next_left(&self, unit: u32) -> Result<Option<u32>> {
        let ranges = self.unknown.iter().filter(|(_, to)| *to > unit).map(|(from, _)| (*from).max(unit));
        Ok(ranges.chain(self.next_have(unit)?).min())
    }

    /// Plans the work in a window; units without work are left out. Blocks.
    pub(crate) fn plan(&self, window: &[Masks]) -> Result<Vec<Work>> {
        let (Some(first), Some(last)) = (window.first(), window.last()) else { return Ok(Vec::new()) };
        let behind = |next: Option<u32>| next.is_none_or(|next| next > last.unit);
        let nothing_here = window.iter().all(|masks| masks.data & masks.touched == 0)
            && behind(self.history.next(first.unit)?)
            && behind(self.next_left(first.unit)?);
        if nothing_here {
            return Ok(Vec::new());
        }
        let mut works = Vec::new();
        for masks in window {
            works.extend(self.work(*masks)?);
        }
        Ok(works)
    }

    fn work(&self, masks: Masks) -> Result<Option<Work>> {
        let have = self.have(masks.unit)?;
        if masks.touched == 0 && have.is_none() {
            return Ok(None);
        }
        let have = have.unwrap_or([Have::Nothing; LEAVES]);
        let (base, lost) = self.base(masks.unit)?;
        let mut acts = [Act::Pass; LEAVES];
        for (leaf, act) in acts.iter_mut().enumerate() {
            let is = |mask: u16| mask >> leaf & 1 == 1;
            let there = !leaf_range(masks.unit, leaf, self.size).is_empty();
            if !there || !is(masks.touched) && have[leaf] == Have::Nothing {
                continue;
            }
            *act = match (is(masks.skip), is(masks.data)) {
                (true, true) => Act::Skip,
                (false, true) => Act::Read,
                (_, false) => Act::Zero,
            };
            let is_there = have[leaf] == Have::Nothing && base[leaf] == Leaf::Zero && !is(lost);
            if *act == Act::Zero && is_there {
                *act = Act::Pass;
            }
        }
        let idle = acts.iter().all(|act| *act == Act::Pass);
        Ok((!idle).then_some(Work { unit: masks.unit, acts, base, have, lost }))
    }

    /// Returns the parent's leaves of a unit, and which of them are damaged for good.
    fn base(&self, unit: u32) -> Result<([Leaf; LEAVES], u16)> {
        let base = self.history.unit_with_layers(unit)?;
        let is_lost = |leaf: &usize| {
            let layer = base[*leaf].1.and_then(|layer| self.history.layers().get(layer));
            layer.is_some_and(|layer| self.lost.contains(&(layer.point, unit, *leaf as u8)))
        };
        let lost = match self.lost.is_empty() {
            true => 0,
            false => (0..LEAVES).filter(is_lost).fold(0, |bits, leaf| bits | 1 << leaf),
        };
        Ok((base.map(|(state, _)| state), lost))
    }

    /// Returns what earlier passes have left of a unit; `None` if nothing.
    fn have(&self, unit: u32) -> Result<Option<[Have; LEAVES]>> {
        if !self.may_have(unit)? {
            return Ok(None);
        }
        if self.unknown.iter().any(|(from, to)| (*from..*to).contains(&unit)) {
            let mut have = [Have::Nothing; LEAVES];
            let range = unit_range(unit, self.size);
            let mapped = self.disk.map(range.start, range.end - range.start, |segment| {
                let nothing = matches!(segment.source, SegmentSource::Parent | SegmentSource::NeverWritten);
                let within = segment.offset - range.start;
                let leaves = within / LEAF..(within + segment.len).div_ceil(LEAF);
                if !nothing {
                    have[leaves.start as usize..leaves.end as usize].fill(Have::Unknown);
                }
            });
            mapped.map_err(self.disk_error())?;
            return Ok(have.contains(&Have::Unknown).then_some(have));
        }
        let Some(have) = &self.have else { return Ok(None) };
        let left = have.unit(unit).map_err(|error| damaged(self.point, error))?;
        Ok(left.map(|left| std::array::from_fn(|leaf| left.get(leaf).map_or(Have::Nothing, Have::This))))
    }

    /// Compares, hashes and writes one unit; `data` is what [`Work::reads`] names. Blocks.
    pub(crate) fn carry_out(&self, work: &Work, data: Option<&Buf>) -> Result<(UnitLeaves, Counted)> {
        let mut held = UnitLeaves::none(work.unit);
        let mut counted = Counted::default();
        let start = work.reads(self.size).start;
        let part = |range: &Range<u64>| {
            data.map_or(&[][..], |data| &data[(range.start - start) as usize..(range.end - start) as usize])
        };
        // Runs of leaves that are written alike.
        let mut run: Option<(Range<u64>, bool)> = None;
        for leaf in 0..LEAVES {
            let range = leaf_range(work.unit, leaf, self.size);
            let len = range.end - range.start;
            let state = match (work.acts[leaf], work.have[leaf]) {
                (Act::Pass, _) => continue,
                (Act::Skip, have) => {
                    counted.skipped += len;
                    match have {
                        Have::Nothing => continue,
                        Have::This(state) => {
                            held.set(leaf, state);
                            continue;
                        }
                        Have::Unknown => Leaf::Zero,
                    }
                }
                (Act::Zero, _) => Leaf::Zero,
                (Act::Read, _) => Leaf::of(part(&range)),
            };
            let have = work.have[leaf];
            if have == Have::Nothing && state == work.base[leaf] && work.lost >> leaf & 1 == 0 {
                continue;
            }
            held.set(leaf, state);
            counted.changed += if state == work.base[leaf] { 0 } else { len };
            if have == Have::This(state) {
                continue;
            }
            let zero = state == Leaf::Zero;
            match &mut run {
                Some((last, was)) if *was == zero && last.end == range.start => last.end = range.end,
                run => {
                    if let Some(done) = run.replace((range, zero)) {
                        counted.sent += self.write(done, part)?;
                    }
                }
            }
        }
        if let Some(done) = run {
            counted.sent += self.write(done, part)?;
        }
        counted.read = data.map_or(0, |data| data.len() as u64);
        Ok((held, counted))
    }

    fn write<'d>(
        &self,
        (range, zero): (Range<u64>, bool),
        part: impl FnOnce(&Range<u64>) -> &'d [u8],
    ) -> Result<u64> {
        let len = range.end - range.start;
        if zero {
            self.disk.discard(range.start, len, DiscardMode::Zero).map_err(self.disk_error())?;
            return Ok(0);
        }
        if !self.pace.wait(len) {
            return Err(BackupError::Cancelled);
        }
        if let Some(disk) = self.disk.disks().first() {
            // A file that cannot be made longer now may have room for this write.
            let _ = disk.lengthen_ahead(AHEAD);
        }
        self.disk.write_at(range.start, part(&range)).map_err(self.disk_error())?;
        Ok(len)
    }

    pub(crate) fn disk_error(&self) -> impl FnOnce(DiskError) -> BackupError + use<> {
        BackupError::disk(&self.disk_name)
    }

    /// Tells whether leaves of the source's unit equal the parent's; `data` is the whole unit. Blocks.
    ///
    /// `asked` has a bit for each leaf that is compared; with `held_only` those are left out that no point holds.
    pub(crate) fn is_as_before(&self, unit: u32, data: &[u8], asked: u16, held_only: bool) -> Result<bool> {
        let base = self.history.unit_with_layers(unit)?;
        let mut leaves = data.chunks(LEAF as usize).zip(base).enumerate();
        Ok(leaves.all(|(leaf, (bytes, (state, layer)))| {
            let is_compared = asked >> leaf & 1 == 1 && (layer.is_some() || !held_only);
            !is_compared || Leaf::of(bytes) == state
        }))
    }
}

/// A shipment, shared.
pub(crate) type Shared = Arc<Shipment>;

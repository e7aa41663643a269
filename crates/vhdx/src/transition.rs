//! The transitions of payload blocks, in one table: what each operation does to a block in each state.
//!
//! | state | write of a part | write of all | unmap of a part | unmap of all | zeroes in a part | zeroes in all |
//! |---|---|---|---|---|---|---|
//! | **dynamic, fixed** | | | | | | |
//! | NOT PRESENT, UNDEFINED | allocate, rest zero | allocate | – | – | → ZERO | → ZERO |
//! | ZERO | allocate, rest zero | allocate | – | – | – | – |
//! | UNMAPPED | allocate, rest zero | allocate | – | – | → ZERO | → ZERO |
//! | FULLY PRESENT | in place | in place | zero in place | → UNMAPPED | zero in place | → ZERO |
//! | **differencing** | | | | | | |
//! | NOT PRESENT | allocate PARTIALLY PRESENT | allocate | – | → ZERO | allocate PARTIALLY PRESENT, zeroes | → ZERO |
//! | UNDEFINED, UNMAPPED | allocate, rest zero | allocate | – | – | → ZERO | → ZERO |
//! | ZERO | allocate, rest zero | allocate | – | – | – | – |
//! | FULLY PRESENT | in place | in place | zero in place | → ZERO | zero in place | → ZERO |
//! | PARTIALLY PRESENT | in place, mark | in place, → FULLY PRESENT | zero in place, mark | → ZERO | zero in place, mark | → ZERO |
//!
//! "Allocate" makes a FULLY PRESENT block where nothing else is said. Blocks of a fixed disk that are present never
//! leave that state (note 6 of the standard): unmapping does nothing there, zeroes are written, and their space stays.
//! On a differencing disk an unmapped block becomes ZERO, which hides the parent for every reader; UNMAPPED would let a
//! reader return what the parent has. [`DiscardMode::Parent`] makes a whole block NOT PRESENT, where the parent has the
//! same. Where a reader may return anything (NOT PRESENT, UNDEFINED, UNMAPPED without a parent) this code returns
//! zeroes.
//!
//! A block of which parts were zeroed in place until none of it is left becomes ZERO ([`emptied`]). Not UNMAPPED: that
//! would let a reader return something else where zeroes were written.

use crate::format::BlockState;
use crate::metadata::DiskKind;

/// Effect of a write on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The data goes where the block is.
    InPlace,
    /// The same, then the sectors are marked as present.
    InPlaceMark,
    /// The same, then the block is fully present.
    InPlaceFill,
    /// The block gets space; what is not written becomes zero.
    Allocate,
    /// The block gets space and a sector bitmap; what is not written stays the parent's.
    AllocatePart,
}

/// Effect on a block of giving up a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discard {
    /// Nothing.
    Nothing,
    /// The block changes its state, and its space is freed.
    Become(BlockState),
    /// The range is zeroed where the block is.
    ZeroInPlace,
    /// The same, then its sectors are marked as present.
    ZeroInPlaceMark,
    /// The block gets space and a sector bitmap, zeroes in the range; the rest stays the parent's.
    AllocatePart,
}

/// Mode of giving up a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardMode {
    /// Its contents are not needed; what is given up reads as zeroes. May do less than asked.
    Unmap,
    /// Reads as zeroes afterwards; space may be given back.
    Zero,
    /// Reads as zeroes afterwards; space that is there stays.
    ZeroKeepSpace,
    /// Reads as the parent's data afterwards. Only whole blocks that have data are given up.
    Parent,
}

pub(crate) fn write(kind: DiskKind, state: BlockState, whole: bool) -> Write {
    use BlockState::*;
    match (kind, state) {
        (_, FullyPresent) => Write::InPlace,
        (DiskKind::Differencing, PartiallyPresent) if whole => Write::InPlaceFill,
        (DiskKind::Differencing, PartiallyPresent) => Write::InPlaceMark,
        // Not allowed there, and read as fully present.
        (_, PartiallyPresent) => Write::InPlace,
        (DiskKind::Differencing, NotPresent) if !whole => Write::AllocatePart,
        (_, NotPresent | Undefined | Zero | Unmapped) => Write::Allocate,
    }
}

pub(crate) fn discard(kind: DiskKind, state: BlockState, mode: DiscardMode, whole: bool) -> Discard {
    use BlockState::*;
    if mode == DiscardMode::Parent {
        let has_data = matches!(state, FullyPresent | PartiallyPresent);
        return match kind == DiskKind::Differencing && whole && has_data {
            true => Discard::Become(NotPresent),
            false => Discard::Nothing,
        };
    }
    let unmap = mode == DiscardMode::Unmap;
    let keep = mode == DiscardMode::ZeroKeepSpace || kind == DiskKind::Fixed;
    match (kind, state) {
        (_, Zero) => Discard::Nothing,
        (DiskKind::Differencing, NotPresent) => match (whole, unmap) {
            (true, _) => Discard::Become(Zero),
            (false, true) => Discard::Nothing,
            (false, false) => Discard::AllocatePart,
        },
        (_, NotPresent | Undefined | Unmapped) if unmap => Discard::Nothing,
        (_, NotPresent | Undefined | Unmapped) => Discard::Become(Zero),
        (DiskKind::Fixed, FullyPresent | PartiallyPresent) if unmap => Discard::Nothing,
        (DiskKind::Differencing, FullyPresent | PartiallyPresent) if whole && !keep => Discard::Become(Zero),
        (_, FullyPresent | PartiallyPresent) if whole && !keep => {
            Discard::Become(if unmap { Unmapped } else { Zero })
        }
        (DiskKind::Differencing, PartiallyPresent) => Discard::ZeroInPlaceMark,
        (_, FullyPresent | PartiallyPresent) => Discard::ZeroInPlace,
    }
}

/// The state of a block all of which is zero by now, if it may give its space up: one that `here` says is all in this
/// file, since what a block does not have its parent has.
pub(crate) fn emptied(kind: DiskKind, state: BlockState, here: bool) -> Option<BlockState> {
    use BlockState::*;
    match (kind, state) {
        (DiskKind::Dynamic, FullyPresent | PartiallyPresent) | (DiskKind::Differencing, FullyPresent) => {
            Some(Zero)
        }
        (DiskKind::Differencing, PartiallyPresent) if here => Some(Zero),
        _ => None,
    }
}

//! Entries of the block allocation table (2.5.1).

use super::MIB;

/// States of a payload block (2.5.1.1). Sector bitmap blocks use `NotPresent` and `FullyPresent` alone (2.5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Never written; of a differencing disk: the parent has it.
    NotPresent,
    /// Contents given up, undefined.
    Undefined,
    /// Zeroes.
    Zero,
    /// Given up by UNMAP.
    Unmapped,
    /// In the file.
    FullyPresent,
    /// The sector bitmap says which sectors are in the file; the parent has the others.
    PartiallyPresent,
}

/// One entry, as on disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BatEntry(pub u64);

impl BatEntry {
    /// An entry of `state` at `offset`, a multiple of 1 MiB.
    pub fn new(state: BlockState, offset: u64) -> Self {
        let number = match state {
            BlockState::NotPresent => 0,
            BlockState::Undefined => 1,
            BlockState::Zero => 2,
            BlockState::Unmapped => 3,
            BlockState::FullyPresent => 6,
            BlockState::PartiallyPresent => 7,
        };
        Self((offset / MIB * MIB) | number)
    }

    /// The state; `None` for the reserved number 4. Number 5, which version 0.95 used for UNMAPPED, is read as that and
    /// never written.
    pub fn state(self) -> Option<BlockState> {
        Some(match self.0 & 7 {
            0 => BlockState::NotPresent,
            1 => BlockState::Undefined,
            2 => BlockState::Zero,
            3 | 5 => BlockState::Unmapped,
            6 => BlockState::FullyPresent,
            7 => BlockState::PartiallyPresent,
            _ => return None,
        })
    }

    /// The file offset, bytes.
    pub fn offset(self) -> u64 {
        self.0 / MIB * MIB
    }

    /// Returns `true` if bits 3–19 are zero, as they must be.
    pub fn reserved_is_zero(self) -> bool {
        self.0 & 0xF_FFF8 == 0
    }
}

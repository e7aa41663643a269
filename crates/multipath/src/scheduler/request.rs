//! Requests, and the pieces that they become on lanes.

use std::ops::Deref;
use std::time::Duration;

use lunway_block::Geometry;

use super::LaneId;

/// Direction of the data of a request. A wire carries both at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the storage.
    Read,
    /// To the storage.
    Write,
    /// Neither: a flush, an unmap; its length is not on the wire.
    Other,
}

/// An operation that needs a lane.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Direction of its data.
    pub direction: Direction,
    /// Its beginning on the disk, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// `true` if it may be cut into pieces that go over several lanes.
    pub divisible: bool,
    /// Block of the disk, bytes: `least-blocks` takes a request that begins with the last block of the one before for
    /// its sequel.
    pub block: u32,
    /// The places at which it may be cut.
    pub cut: Boundaries,
}

/// Places on the disk at which a request may be cut: `first`, and every `step` bytes behind it.
///
/// A piece that begins or ends inside a physical block makes the storage read that block, change a part of it and write
/// it back, twice for each cut; and two lanes then change the same block at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundaries {
    /// Distance of two places, bytes; 0 counts as 1.
    pub step: u32,
    /// The first one, bytes from the beginning of the disk.
    pub first: u32,
}

/// Least distance of two cuts, bytes: the block of file systems, of page caches and of the media behind most disks,
/// also of disks that claim sectors of 512 bytes throughout.
const STEP_MIN: u32 = 4096;
/// Longest distance that a disk is believed, bytes. Between cuts that are further apart hardly a request could be
/// divided, and bridges that fill the field with ones claim 32 MiB.
const STEP_MAX: u32 = 1 << 20;

impl Boundaries {
    /// Multiples of `step`.
    pub fn every(step: u32) -> Self {
        Self { step, first: 0 }
    }

    /// Returns the boundaries of a disk: its transfer granularity (OPTIMAL TRANSFER LENGTH GRANULARITY, SBC-4 §6.6.4),
    /// else its physical blocks, and never less than 4 KiB; from the first aligned block on (LOWEST ALIGNED LOGICAL
    /// BLOCK ADDRESS, SBC-4 §5.20.2).
    pub fn of(geometry: &Geometry) -> Self {
        let least = geometry.physical_sector.max(geometry.logical_sector).max(STEP_MIN);
        let told = geometry.transfer_granularity;
        let step =
            if told.is_multiple_of(least) && (least..=STEP_MAX).contains(&told) { told } else { least };
        Self { step, first: geometry.first_aligned % step }
    }

    /// The last place at or before `at`; 0 where there is none.
    pub(super) fn before(self, at: u64) -> u64 {
        let (step, first) = (u64::from(self.step.max(1)), u64::from(self.first));
        at.checked_sub(first).map_or(0, |behind| first + behind / step * step)
    }
}

/// A request, or a part of one, on its lane: in flight from [`place`](super::Scheduler::place) until it is given to
/// [`finished`](super::Scheduler::finished).
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The lane it is on.
    pub lane: LaneId,
    /// Direction of its data.
    pub direction: Direction,
    /// Bytes.
    pub len: u64,
    /// Time at which it was placed.
    pub placed_at: Duration,
    /// Expected wait behind others, nanoseconds.
    pub(super) wait: f64,
    /// Bytes in flight on the lane before it.
    pub(super) ahead: u64,
    /// `true` if nothing else was on the lane's ports.
    pub(super) alone: bool,
}

impl Piece {
    /// A piece that waits for no other.
    pub(super) fn new(lane: LaneId, direction: Direction, len: u64, placed_at: Duration) -> Self {
        Self { lane, direction, len, placed_at, wait: 0.0, ahead: 0, alone: false }
    }
}

/// The pieces of one request, in the order of its bytes.
///
/// Room for [`Pieces::MOST`] is inside, so that filling it allocates nothing.
#[derive(Clone, Debug)]
pub struct Pieces {
    count: usize,
    pieces: [Piece; Pieces::MOST],
}

impl Pieces {
    /// The most pieces that a request is cut into.
    pub const MOST: usize = 8;

    /// None.
    pub fn new() -> Self {
        let none = Piece::new(0, Direction::Other, 0, Duration::ZERO);
        Self { count: 0, pieces: [none; Self::MOST] }
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds one at the end; the callers never have more than [`Self::MOST`].
    pub(super) fn push(&mut self, piece: Piece) {
        self.pieces[self.count] = piece;
        self.count += 1;
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Pieces {
    type Target = [Piece];

    fn deref(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
}

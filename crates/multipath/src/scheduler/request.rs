//! What is placed on lanes: requests, and the pieces they become.

use std::ops::Deref;
use std::time::Duration;

use super::LaneId;

/// Which way the data of a request goes. A wire carries both at once.
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
    /// Which way its data goes.
    pub direction: Direction,
    /// Where on the disk it begins, bytes.
    pub offset: u64,
    /// How long it is, bytes.
    pub len: u64,
    /// Whether it may be cut into pieces that go over several lanes.
    pub divisible: bool,
    /// Pieces begin at multiples of this from the request's beginning, bytes: the block, or what the storage likes better. The logical
    /// block where nothing else is known: `least-blocks` takes it for that.
    pub align: u32,
}

/// A request, or a part of one, on its lane: in flight from [`place`](super::Scheduler::place) until it is given to
/// [`finished`](super::Scheduler::finished).
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The lane it is on.
    pub lane: LaneId,
    /// Which way its data goes.
    pub direction: Direction,
    /// Bytes.
    pub len: u64,
    /// When it was placed.
    pub placed_at: Duration,
    /// How long it was expected to wait behind others, nanoseconds.
    pub(super) wait: f64,
    /// What was in flight on the lane before it, bytes.
    pub(super) ahead: u64,
    /// Whether nothing else was on the lane's ports.
    pub(super) alone: bool,
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
        let none = Piece {
            lane: 0,
            direction: Direction::Other,
            len: 0,
            placed_at: Duration::ZERO,
            wait: 0.0,
            ahead: 0,
            alone: false,
        };
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

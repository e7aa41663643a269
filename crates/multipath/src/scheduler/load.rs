//! Requests in flight, and bytes moved lately, on each lane.

use super::constants::SHARE_PERIOD;
use super::{Direction, LaneId, Piece};

/// The account of everything in flight, kept under every policy alike, so that a change of policy finds it right.
///
/// The policies of other systems choose by it. `adaptive` keeps its own for each direction, with the ports
/// ([`Half`](super::half::Half)).
#[derive(Debug)]
pub(super) struct Load {
    pub(super) lanes: Vec<LaneLoad>,
    /// Time at which the next period of the lanes' shares begins.
    period_until: u64,
}

/// A lane's part of the account.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneLoad {
    /// Requests and pieces in flight.
    pub(super) ios: u32,
    /// Their bytes, those of requests without data included.
    pub(super) bytes: u64,
    /// Bytes of reads and writes in flight.
    pub(super) data: u64,
    /// End of the read or write that was placed here last, bytes.
    pub(super) last_end: u64,
    /// Bytes that arrived in this period and in the one before.
    recent: [u64; 2],
}

impl Load {
    pub(super) fn new(lanes: usize) -> Self {
        Self { lanes: vec![LaneLoad::default(); lanes], period_until: 0 }
    }

    /// Adds a piece that ends at `end` on the disk.
    pub(super) fn place(&mut self, piece: &Piece, end: u64) {
        let lane = &mut self.lanes[piece.lane];
        lane.ios += 1;
        lane.bytes += piece.len;
        if piece.direction != Direction::Other {
            lane.data += piece.len;
            lane.last_end = end;
        }
    }

    /// Removes a piece. `ok`: its data arrived.
    pub(super) fn finish(&mut self, piece: &Piece, now: u64, ok: bool) {
        let lane = &mut self.lanes[piece.lane];
        lane.ios -= 1;
        lane.bytes -= piece.len;
        if piece.direction == Direction::Other {
            return;
        }
        lane.data -= piece.len;
        if ok {
            self.count(piece, now);
        }
    }

    fn count(&mut self, piece: &Piece, now: u64) {
        if now >= self.period_until {
            self.period_until = now + SHARE_PERIOD;
            for lane in &mut self.lanes {
                lane.recent = [0, lane.recent[0]];
            }
        }
        self.lanes[piece.lane].recent[0] += piece.len;
    }

    /// A lane's part of the bytes that arrived lately, 0 to 1.
    pub(super) fn share(&self, lane: LaneId) -> f64 {
        let total: u64 = self.lanes.iter().flat_map(|lane| lane.recent).sum();
        if total == 0 { 0.0 } else { self.lanes[lane].recent.iter().sum::<u64>() as f64 / total as f64 }
    }
}

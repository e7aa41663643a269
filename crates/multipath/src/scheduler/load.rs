//! What is in flight, on each lane and each port.

use super::constants::STANDING_PERIOD;
use super::{Direction, LaneId, LaneShape};

/// What is in flight somewhere, and what has been.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Requests in flight.
    pub(super) ios: u32,
    /// Their bytes by direction.
    pub(super) bytes: [u64; 3],
    /// Bytes placed since the beginning, by direction.
    pub(super) placed: [u64; 2],
    /// Bytes that have arrived since the beginning, by direction.
    pub(super) moved: [u64; 2],
}

impl Flow {
    fn place(&mut self, direction: Direction, len: u64) {
        self.ios += 1;
        self.bytes[direction as usize] += len;
        if let Some(placed) = self.placed.get_mut(direction as usize) {
            *placed += len;
        }
    }

    fn finish(&mut self, direction: Direction, len: u64, ok: bool) {
        self.ios -= 1;
        self.bytes[direction as usize] -= len;
        if ok && let Some(moved) = self.moved.get_mut(direction as usize) {
            *moved += len;
        }
    }

    /// Bytes of reads and writes in flight.
    pub(super) fn data(&self) -> u64 {
        self.bytes[0] + self.bytes[1]
    }
}

/// The account of everything in flight.
///
/// Each byte stands in three places: on its lane, on the local port and on the storage's port that the lane goes
/// through. It is kept under every policy alike, so that a change of policy finds it right.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) lanes: Vec<LaneLoad>,
    /// Local and storage ports, numbered anew so that they are an index.
    pub(super) ports: Vec<Flow>,
}

/// A lane's part of the account.
#[derive(Debug)]
pub(super) struct LaneLoad {
    /// Index of the local port.
    pub(super) near: usize,
    /// Index of the storage's port.
    pub(super) far: usize,
    pub(super) flow: Flow,
    /// Where the read or write that was placed here last ends.
    pub(super) last_end: u64,
}

impl Load {
    pub(super) fn new(lanes: &[LaneShape]) -> Self {
        let mut known = Vec::new();
        let mut index = |port| {
            known.iter().position(|&p| p == port).unwrap_or_else(|| {
                known.push(port);
                known.len() - 1
            })
        };
        let lanes: Vec<_> = lanes
            .iter()
            .map(|lane| LaneLoad {
                near: index((false, lane.near)),
                far: index((true, lane.far)),
                flow: Flow::default(),
                last_end: 0,
            })
            .collect();
        Self { lanes, ports: vec![Flow::default(); known.len()] }
    }

    pub(super) fn place(&mut self, lane: LaneId, direction: Direction, len: u64, end: u64) {
        let lane = &mut self.lanes[lane];
        lane.flow.place(direction, len);
        if direction != Direction::Other {
            lane.last_end = end;
        }
        self.ports[lane.near].place(direction, len);
        self.ports[lane.far].place(direction, len);
    }

    pub(super) fn finish(&mut self, lane: LaneId, direction: Direction, len: u64, ok: bool) {
        let lane = &mut self.lanes[lane];
        lane.flow.finish(direction, len, ok);
        self.ports[lane.near].finish(direction, len, ok);
        self.ports[lane.far].finish(direction, len, ok);
    }
}

/// The least that was in flight lately: what a queue never falls below waits in vain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    now: u64,
    before: u64,
    until: u64,
}

impl Standing {
    /// So much is in flight.
    pub(super) fn note(&mut self, now: u64, in_flight: u64) {
        if now >= self.until {
            *self = Self { now: in_flight, before: self.now, until: now + STANDING_PERIOD };
        } else {
            self.now = self.now.min(in_flight);
        }
    }

    /// What has been in flight all the time.
    pub(super) fn bytes(&self) -> u64 {
        self.now.min(self.before)
    }
}

//! Bytes of one direction, on a lane or a port; the ports of each lane.

use super::constants::STANDING_PERIOD;
use super::{LaneShape, Port};

/// Bytes of one direction on one lane or one port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Placed and not finished.
    pub(super) in_flight: u64,
    /// Placed since the beginning.
    pub(super) placed: u64,
    /// Arrived since the beginning.
    pub(super) arrived: u64,
}

impl Flow {
    pub(super) fn place(&mut self, len: u64) {
        self.in_flight += len;
        self.placed += len;
    }

    pub(super) fn finish(&mut self, len: u64, ok: bool) {
        self.in_flight -= len;
        if ok {
            self.arrived += len;
        }
    }
}

/// The two ports of a lane, as indices: local and storage ports are numbered together, from 0, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// The local port.
    pub(super) near: usize,
    /// The storage's port.
    pub(super) far: usize,
}

impl Ends {
    /// The ports of each lane, and how many ports there are.
    pub(super) fn of(shapes: &[LaneShape]) -> (Vec<Self>, usize) {
        #[derive(PartialEq)]
        enum Side {
            Near(Port),
            Far(Port),
        }
        let mut known = Vec::new();
        let mut index = |port| {
            known.iter().position(|known| *known == port).unwrap_or_else(|| {
                known.push(port);
                known.len() - 1
            })
        };
        let ends = |shape: &LaneShape| Self {
            near: index(Side::Near(shape.near)),
            far: index(Side::Far(shape.far)),
        };
        let ends = shapes.iter().map(ends).collect();
        (ends, known.len())
    }

    /// Both ports.
    pub(super) fn both(self) -> [usize; 2] {
        [self.near, self.far]
    }

    /// Returns `true` if the lane goes through a port.
    pub(super) fn touch(self, port: usize) -> bool {
        self.near == port || self.far == port
    }
}

/// The standing queue: the least that was in flight lately. A part of it that never drains delays requests and keeps no
/// lane busy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    now: u64,
    before: u64,
    until: u64,
}

impl Standing {
    /// Notes what is in flight at a time.
    pub(super) fn note(&mut self, now: u64, in_flight: u64) {
        if now >= self.until {
            *self = Self { now: in_flight, before: self.now, until: now + STANDING_PERIOD };
        } else {
            self.now = self.now.min(in_flight);
        }
    }

    /// Bytes that were in flight throughout this period and the one before.
    pub(super) fn bytes(&self) -> u64 {
        self.now.min(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbered_without_gaps_and_the_two_sides_apart() {
        let shape = |(near, far)| LaneShape {
            name: String::new(),
            near: Port(near),
            far: Port(far),
            weight: 1,
            reserve: false,
            rate_hint: None,
        };
        let (ends, ports) = Ends::of(&[(7, 7), (7, 9), (8, 7)].map(shape));
        let ends: Vec<_> = ends.iter().map(|ends| ends.both()).collect();
        assert_eq!((ends, ports), (vec![[0, 1], [0, 2], [3, 1]], 4));
    }

    #[test]
    fn a_queue_stands_at_what_it_never_fell_below_for_two_periods() {
        let mut standing = Standing::default();
        for (time, in_flight) in [(0, 9), (1, 4), (2, 9)] {
            standing.note(time, in_flight);
        }
        assert_eq!(standing.bytes(), 0, "nothing was in flight before");
        standing.note(STANDING_PERIOD, 8);
        assert_eq!(standing.bytes(), 4);
        standing.note(2 * STANDING_PERIOD, 7);
        assert_eq!(standing.bytes(), 7);
        standing.note(2 * STANDING_PERIOD + 1, 0);
        assert_eq!(standing.bytes(), 0);
    }
}

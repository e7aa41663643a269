//! The policy `adaptive`: the lane, or the lanes together, by which a request is expected to end first.

use std::time::Duration;

use super::estimate::Estimate;
use super::half::Half;
use super::load::Load;
use super::request::{Direction, Piece, Pieces, Request};
use super::roster::Roster;
use super::{LaneFigures, LaneId, LaneShape, nanoseconds};

/// The policy: one [`Half`] for each direction, and commands without data.
///
/// The estimates learn under every policy, so that a change to this one finds them.
#[derive(Debug)]
pub(super) struct Adaptive {
    read: Half,
    write: Half,
}

impl Adaptive {
    pub(super) fn new(shapes: &[LaneShape]) -> Self {
        Self { read: Half::new(Direction::Read, shapes), write: Half::new(Direction::Write, shapes) }
    }

    /// Lanes come or go, or may be used otherwise.
    pub(super) fn changed(&mut self) {
        self.read.changed();
        self.write.changed();
    }

    /// A lane comes back.
    pub(super) fn returned(&mut self, lane: LaneId, now: Duration) {
        self.read.returned(lane, nanoseconds(now));
        self.write.returned(lane, nanoseconds(now));
    }

    /// Rates and latency of a lane.
    pub(super) fn figures(&self, lane: LaneId) -> LaneFigures {
        let (read, write) = (&self.read.lanes[lane].estimate, &self.write.lanes[lane].estimate);
        let rate = |estimate: &Estimate| estimate.known.then_some((estimate.rate * 1e9) as u64);
        let bases = [read, write].into_iter().filter(|e| e.base_known).map(|e| e.base as u64);
        LaneFigures {
            read_rate: rate(read),
            write_rate: rate(write),
            latency: bases.min().map(Duration::from_nanos),
            ..LaneFigures::default()
        }
    }

    /// Chooses for a request; there are several lanes to choose from.
    pub(super) fn place(
        &mut self,
        request: &Request,
        now: Duration,
        roster: &Roster,
        load: &Load,
        pieces: &mut Pieces,
    ) {
        let Self { read, write } = self;
        match request.direction {
            Direction::Read => read.place(request, now, write, roster, load, pieces),
            Direction::Write => write.place(request, now, read, roster, load, pieces),
            Direction::Other => {
                let lane = self.choose_without_data(nanoseconds(now), roster);
                pieces.push(self.put(lane, request.direction, request.len, now));
            }
        }
    }

    /// Puts a piece on a lane that was chosen, into the measurements.
    pub(super) fn put(&mut self, lane: LaneId, direction: Direction, len: u64, now: Duration) -> Piece {
        match direction {
            Direction::Read => self.read.put(lane, len, now),
            Direction::Write => self.write.put(lane, len, now),
            Direction::Other => Piece::new(lane, direction, len, now),
        }
    }

    /// A piece is in flight no more.
    pub(super) fn finished(&mut self, piece: &Piece, now: Duration, ok: bool) {
        match piece.direction {
            Direction::Read => self.read.finished(piece, now, ok),
            Direction::Write => self.write.finished(piece, now, ok),
            Direction::Other => {}
        }
    }

    /// Takes the lane for a command without data: a flush, an unmap.
    ///
    /// It is placed by what small writes cost, whose way to the medium it shares, and by what reads do where no write
    /// has shown it. It is never a trial: its answer teaches nothing, so that it would be one again and again, and
    /// callers wait for flushes.
    fn choose_without_data(&self, at: u64, roster: &Roster) -> LaneId {
        let cost = |lane: LaneId| {
            let (read, write) = (&self.read.lanes[lane].estimate, &self.write.lanes[lane].estimate);
            let shows = |estimate: &&Estimate| !estimate.trial.is_unseen() && !estimate.knows_no_base();
            let shown = [write, read].into_iter().find(shows);
            let base = shown.map_or(0.0, |estimate| estimate.base);
            (shown.is_none(), base + self.write.queue(lane, 0) + write.late(at))
        };
        let mut best = (roster.candidates[0], (true, f64::INFINITY));
        for (lane, cost) in roster.candidates.iter().map(|&lane| (lane, cost(lane))) {
            if cost < best.1 {
                best = (lane, cost);
            }
        }
        best.0
    }
}

//! One direction of the policy `adaptive`, with everything that concerns it.

use std::time::Duration;

use super::constants::{
    BUSY_MARGIN, DIVIDED_MIN, HELD_UP, LOADING, OWN_QUEUE_WEIGHT, PIECE_MIN, RELIEF_SLOWER_MAX,
    TRIAL_SIZE_MAX, UNKNOWN_RATE,
};
use super::estimate::Estimate;
use super::explore::Search;
use super::flow::{Ends, Standing};
use super::load::Load;
use super::port::PortEstimate;
use super::request::{Direction, Piece, Pieces, Request};
use super::roster::Roster;
use super::split::{Share, Shares};
use super::team::{Member, Team};
use super::window::Around;
use super::{LaneId, LaneShape, nanoseconds};

/// Reads or writes: a wire carries both at once, so each direction has its own queues, rates and team.
///
/// Expected end of a piece = the lane's base latency + the longest of the three queues (local port, storage's port,
/// lane), each in bytes with the piece's own, over the rate there; + what the lane is expected to lose by being late.
/// Small requests take the lane with the least. Large ones are divided among the team's lanes.
#[derive(Debug)]
pub(super) struct Half {
    direction: Direction,
    pub(super) lanes: Vec<HalfLane>,
    ports: Vec<PortEstimate>,
    team: Team,
    /// Time at which the team has to be chosen again; 0: now.
    team_until: u64,
    search: Search,
    /// Pieces placed since the beginning.
    placed: u64,
    /// Bytes in flight on all lanes.
    in_flight: u64,
    standing: Standing,
}

/// A lane in one direction.
#[derive(Debug)]
pub(super) struct HalfLane {
    pub(super) ends: Ends,
    /// The rate that its local card claims, bytes per nanosecond.
    hint: Option<f64>,
    pub(super) estimate: Estimate,
}

impl HalfLane {
    pub(super) fn new(shape: &LaneShape, ends: Ends) -> Self {
        let hint = shape.rate_hint.filter(|&hint| hint > 0).map(|hint| hint as f64 / 1e9);
        Self { ends, hint, estimate: Estimate::new(hint.unwrap_or(UNKNOWN_RATE)) }
    }
}

impl Half {
    pub(super) fn new(direction: Direction, shapes: &[LaneShape]) -> Self {
        let (ends, ports) = Ends::of(shapes);
        let lanes: Vec<_> = shapes.iter().zip(ends).map(|(shape, ends)| HalfLane::new(shape, ends)).collect();
        let mut half = Self {
            direction,
            team: Team::new(lanes.len(), ports),
            lanes,
            ports: (0..ports).map(|_| PortEstimate::default()).collect(),
            team_until: 0,
            search: Search::default(),
            placed: 0,
            in_flight: 0,
            standing: Standing::default(),
        };
        half.set_bounds();
        half
    }

    /// Lanes come or go, or may be used otherwise.
    pub(super) fn changed(&mut self) {
        self.team_until = 0;
    }

    /// A lane comes back.
    pub(super) fn returned(&mut self, lane: LaneId, now: u64) {
        self.lanes[lane].estimate.returned();
        self.search.hasten(now);
    }

    /// Chooses for a request; there are several lanes to choose from. `other`: the other direction.
    pub(super) fn place(
        &mut self,
        request: &Request,
        now: Duration,
        other: &Self,
        roster: &Roster,
        load: &Load,
        pieces: &mut Pieces,
    ) {
        let (len, at) = (request.len, nanoseconds(now));
        if len >= LOADING && at >= self.team_until {
            self.choose_team(other, roster, at);
        }
        if request.divisible && len >= DIVIDED_MIN {
            return self.divide(request, now, pieces);
        }
        let lane = self.choose(len, at, roster, load);
        pieces.push(self.put(lane, len, now));
    }

    /// Puts a piece on a lane, into the account and the measurements.
    pub(super) fn put(&mut self, lane: LaneId, len: u64, now: Duration) -> Piece {
        let at = nanoseconds(now);
        let mut piece = Piece::new(lane, self.direction, len, now);
        piece.wait = self.queue(lane, 0);
        let HalfLane { ends, estimate, .. } = &self.lanes[lane];
        let (ends, base) = (*ends, estimate.base);
        piece.ahead = estimate.flow.in_flight;
        piece.alone = ends.both().iter().all(|&port| self.ports[port].flow.in_flight == piece.ahead);
        for port in ends.both() {
            if self.ports[port].flow.in_flight == 0 {
                self.ports[port].begins(at, base);
            }
        }
        let expected = base + self.queue(lane, len);
        let around = Around { near: &self.ports[ends.near], far: &self.ports[ends.far] };
        let estimate = &mut self.lanes[lane].estimate;
        estimate.placed(at, expected, around);
        self.standing.note(at, self.in_flight);
        self.in_flight += len;
        self.placed += 1;
        estimate.trial.used(self.placed);
        estimate.flow.place(len);
        for port in ends.both() {
            self.ports[port].flow.place(len);
        }
        piece
    }

    /// A piece is in flight no more.
    pub(super) fn finished(&mut self, piece: &Piece, now: Duration, ok: bool) {
        let at = nanoseconds(now);
        let ends = self.lanes[piece.lane].ends;
        for port in ends.both() {
            self.ports[port].flow.finish(piece.len, ok);
        }
        self.in_flight -= piece.len;
        self.standing.note(at, self.in_flight);
        let around = Around { near: &self.ports[ends.near], far: &self.ports[ends.far] };
        let estimate = &mut self.lanes[piece.lane].estimate;
        estimate.flow.finish(piece.len, ok);
        let took = now.saturating_sub(piece.placed_at).as_nanos() as f64;
        let held_up = took > HELD_UP * estimate.expects(piece);
        let mut plans = estimate.finished(piece, at, ok, around);
        let rate = estimate.rate;
        for port in ends.both() {
            self.ports[port].raise_floor(rate);
        }
        if plans {
            self.set_bounds();
            self.assume_bases();
        }
        if ok {
            for port in ends.both() {
                plans |= self.ports[port].arrived(piece.lane, piece.len, held_up, at);
            }
        }
        if plans {
            self.team_until = 0;
        }
    }

    /// The longest of the queues that `len` more bytes would be in, nanoseconds.
    pub(super) fn queue(&self, lane: LaneId, len: u64) -> f64 {
        let HalfLane { ends, estimate, .. } = &self.lanes[lane];
        let time = |in_flight: u64, pace: f64| (in_flight + len) as f64 * pace;
        let port = |port: &PortEstimate| time(port.flow.in_flight, port.pace);
        let own = time(estimate.flow.in_flight, estimate.pace);
        own.max(port(&self.ports[ends.near])).max(port(&self.ports[ends.far]))
    }

    /// Returns the time until `len` bytes should have arrived over a lane, nanoseconds. Of lanes behind a full port,
    /// the one with the shortest queue of its own seems a little better: the port may carry more than is known.
    fn end(&self, lane: LaneId, len: u64, at: u64) -> f64 {
        let estimate = &self.lanes[lane].estimate;
        let own = estimate.flow.in_flight as f64 * estimate.pace;
        estimate.base + self.queue(lane, len) + own * OWN_QUEUE_WEIGHT + estimate.late(at)
    }

    /// Takes one lane for a whole request.
    fn choose(&mut self, len: u64, at: u64, roster: &Roster, load: &Load) -> LaneId {
        if self.search.is_due(at)
            && len <= TRIAL_SIZE_MAX
            && let Some(lane) = self.look_for_silent(len, at, roster, load)
        {
            return lane;
        }
        if len >= LOADING {
            self.choose_among(self.team.members.iter().map(|member| member.lane), len, at)
        } else {
            self.choose_among(roster.candidates.iter().copied(), len, at)
        }
        .unwrap_or(roster.candidates[0])
    }

    fn choose_among(&self, lanes: impl Iterator<Item = LaneId> + Clone, len: u64, at: u64) -> Option<LaneId> {
        let mut best: Option<(LaneId, f64)> = None;
        let mut hungry: Option<(LaneId, f64)> = None;
        for lane in lanes.clone() {
            let estimate = &self.lanes[lane].estimate;
            let in_flight = estimate.flow.in_flight;
            if in_flight > 0 && len > estimate.trial.allowance(in_flight) {
                continue;
            }
            let end = self.end(lane, len, at);
            if best.is_none_or(|(_, least)| end < least) {
                best = Some((lane, end));
            }
            let spare = estimate.base + len as f64 * estimate.pace;
            if hungry.is_none_or(|(_, least)| end < least) && self.queue(lane, 0) <= spare {
                hungry = Some((lane, end));
            }
        }
        let Some((best, end)) = best else {
            // All are unproven and have what they may have.
            return lanes.min_by(|a, b| self.end(*a, len, at).total_cmp(&self.end(*b, len, at)));
        };
        // Where the better lane has more to do than it needs to stay busy, and has had for long, a slower one that has
        // nothing to do costs no request anything: what it takes would have waited.
        if let Some((lane, later)) = hungry
            && lane != best
            && later <= RELIEF_SLOWER_MAX * end
        {
            let estimate = &self.lanes[best].estimate;
            let needed = BUSY_MARGIN * estimate.base * estimate.rate + (len + len.min(LOADING)) as f64;
            let queue = estimate.flow.in_flight.min(self.standing.bytes());
            if queue as f64 >= needed {
                return Some(lane);
            }
        }
        Some(best)
    }

    /// An idle lane that is due for a trial by a whole request.
    fn look_for_silent(&mut self, len: u64, at: u64, roster: &Roster, load: &Load) -> Option<LaneId> {
        let end = |&lane: &LaneId| self.end(lane, len, at);
        let best = roster.candidates.iter().map(end).fold(f64::MAX, f64::min);
        let due = |lane: &LaneId| (*lane, self.lanes[*lane].estimate.trial.due_at(end(lane) - best));
        let is_ready = |lane: LaneId| {
            load.lanes[lane].ios == 0 && self.lanes[lane].estimate.trial.has_rested(self.placed)
        };
        let mut search = self.search;
        let found = search.find(roster.candidates.iter().map(due), is_ready, at);
        self.search = search;
        found
    }

    /// Divides a large request among the team.
    fn divide(&mut self, request: &Request, now: Duration, pieces: &mut Pieces) {
        let at = nanoseconds(now);
        let mut shares = Shares::new();
        let about = request.len / self.team.members.len().max(1) as u64;
        for &Member { lane, part } in &self.team.members {
            let estimate = &self.lanes[lane].estimate;
            let in_flight = estimate.flow.in_flight;
            let backlog = in_flight as f64 * estimate.pace;
            let rate = estimate.rate * part;
            // A port that carries several lanes works on their queues at the same time: what counts is when a piece of
            // about the right size would end.
            let queue = (self.queue(lane, about) - about as f64 / rate).max(backlog);
            let start = estimate.base + queue + estimate.late(at);
            let limit = estimate.trial.allowance(in_flight);
            let costs = start + PIECE_MIN as f64 / rate;
            let probe = in_flight == 0 && estimate.trial.wants_probe(costs, self.placed, at);
            shares.push(Share { lane, start, backlog, rate, limit, probe, len: 0 });
        }
        if let Some(alone) = shares.divide(request.offset, request.len, request.cut) {
            pieces.push(self.put(alone, request.len, now));
            return;
        }
        for share in shares.as_slice().iter().filter(|share| share.len > 0) {
            pieces.push(self.put(share.lane, share.len, now));
        }
    }

    fn choose_team(&mut self, other: &Self, roster: &Roster, at: u64) {
        // What is not known is assumed to be like the other direction, else like the best lane, and no better than the
        // card claims.
        if let Some(best) = self.best_known().or_else(|| other.best_known()) {
            for (lane, other) in self.lanes.iter_mut().zip(&other.lanes) {
                if !lane.estimate.known {
                    let like = if other.estimate.known { other.estimate.rate } else { best };
                    lane.estimate.assume(lane.hint.map_or(like, |hint| hint.min(like)));
                }
            }
        }
        self.set_bounds();
        self.assume_bases();
        self.team_until = self.team.choose(&roster.candidates, &self.lanes, &mut self.ports, at);
    }

    /// The best of the rates that were measured.
    fn best_known(&self) -> Option<f64> {
        let known = self.lanes.iter().map(|lane| &lane.estimate).filter(|estimate| estimate.known);
        known.map(|estimate| estimate.rate).reduce(f64::max)
    }

    /// A lane of unknown latency is taken to be as quick as the quickest: it is tried before long.
    fn assume_bases(&mut self) {
        let known = self.lanes.iter().map(|lane| &lane.estimate).filter(|estimate| estimate.base_known);
        let Some(least) = known.map(|estimate| estimate.base).reduce(f64::min) else { return };
        for lane in self.lanes.iter_mut().filter(|lane| lane.estimate.knows_no_base()) {
            lane.estimate.base = least;
        }
    }

    /// A port carries what the best of its lanes carries, at least, and needs no more than what all do.
    fn set_bounds(&mut self) {
        for (index, port) in self.ports.iter_mut().enumerate() {
            let lanes = self.lanes.iter().filter(|lane| lane.ends.touch(index));
            let rates = lanes.map(|lane| lane.estimate.rate);
            let (best, all) = rates.fold((0.0, 0.0), |(best, all), rate| (rate.max(best), all + rate));
            port.set_bounds(best, all);
        }
    }
}

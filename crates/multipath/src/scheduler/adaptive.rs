//! The policy that takes the lane, or the lanes together, by which a request is expected to end first.

use std::time::Duration;

use super::constants::{
    BUSY_MARGIN, DIVIDED_MIN, HELD_UP, LOADING, LOOK_AGAIN, OWN_QUEUE_WEIGHT, PIECE_MIN, RELIEF_SLOWER_MAX,
    SHARE_PERIOD, SILENCE_MAX, SILENCE_MIN, TRIAL_PART, TRIAL_REST, TRIAL_SIZE_MAX, UNKNOWN_RATE,
};
use super::estimate::{Estimate, Surroundings};
use super::load::{Load, Standing};
use super::port::PortEstimate;
use super::request::{Direction, Piece, Pieces, Request};
use super::roster::Roster;
use super::split::{Share, Shares};
use super::team::{Member, Team};
use super::{LaneFigures, LaneId, LaneShape};

/// Estimates of lanes and ports, and the policy on top of them.
///
/// Expected end = the lane's base latency + the longest of the three queues (local port, storage's port, lane), each in
/// bytes with the request's own, over the rate there; + twice what the lane is late already. Small requests take the
/// lane with the least. Large ones are divided among the team's lanes.
///
/// The estimates learn under every policy, so that a change to this one finds them.
#[derive(Debug)]
pub(super) struct Adaptive {
    lanes: Vec<Lane>,
    ports: Vec<[PortEstimate; 2]>,
    teams: [Team; 2],
    /// When teams have to be chosen again; 0: now.
    teams_until: [u64; 2],
    /// When the next look for lanes that have shown nothing is due, by direction.
    look_at: [u64; 2],
    /// Pieces placed since the beginning, by direction.
    placed: [u64; 2],
    /// What all lanes have in flight, by direction.
    in_flight: [u64; 2],
    standing: [Standing; 2],
    share_until: u64,
}

#[derive(Debug)]
struct Lane {
    near: usize,
    far: usize,
    hint: Option<f64>,
    estimates: [Estimate; 2],
    /// How many pieces had been placed when it last got one, by direction.
    used_at: [u64; 2],
    /// Bytes that arrived in this period and the one before.
    recent: [u64; 2],
}

/// Estimates are kept for reads and writes.
fn index(direction: Direction) -> usize {
    usize::from(direction == Direction::Write)
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

impl Adaptive {
    pub(super) fn new(shapes: &[LaneShape], load: &Load) -> Self {
        let lanes: Vec<_> = shapes
            .iter()
            .zip(&load.lanes)
            .map(|(shape, lane)| {
                let hint = shape.rate_hint.filter(|&hint| hint > 0).map(|hint| hint as f64 / 1e9);
                let estimate = || Estimate::new(hint.unwrap_or(UNKNOWN_RATE));
                Lane {
                    near: lane.near,
                    far: lane.far,
                    hint,
                    estimates: [estimate(), estimate()],
                    used_at: [0; 2],
                    recent: [0; 2],
                }
            })
            .collect();
        let ports = load.ports.iter().map(|_| Default::default()).collect();
        let team = || Team::new(shapes.len(), load.ports.len());
        let mut adaptive = Self {
            lanes,
            ports,
            teams: [team(), team()],
            teams_until: [0; 2],
            look_at: [0; 2],
            placed: [0; 2],
            in_flight: [0; 2],
            standing: [Standing::default(); 2],
            share_until: 0,
        };
        for d in 0..2 {
            adaptive.set_bounds(d);
        }
        adaptive
    }

    /// Lanes come or go, or may be used otherwise.
    pub(super) fn changed(&mut self) {
        self.teams_until = [0; 2];
    }

    /// A lane comes back.
    pub(super) fn returned(&mut self, lane: LaneId, now: Duration) {
        for estimate in &mut self.lanes[lane].estimates {
            estimate.returned();
        }
        self.look_at = [nanoseconds(now); 2];
    }

    pub(super) fn figures(&self, lane: LaneId) -> LaneFigures {
        let total: u64 = self.lanes.iter().flat_map(|lane| lane.recent).sum();
        let lane = &self.lanes[lane];
        let rate = |estimate: &Estimate| estimate.known.then_some((estimate.rate * 1e9) as u64);
        let [read, write] = &lane.estimates;
        let bases = [read, write].into_iter().filter(|e| e.base_known).map(|e| e.base as u64);
        LaneFigures {
            share: if total == 0 { 0.0 } else { lane.recent.iter().sum::<u64>() as f64 / total as f64 },
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
        load: &mut Load,
        pieces: &mut Pieces,
    ) {
        let end = request.offset.saturating_add(request.len);
        if request.direction == Direction::Other {
            let lane = self.choose_without_data(nanoseconds(now), roster, load);
            pieces.push(self.put(lane, request.direction, request.len, end, now, load));
            return;
        }
        let (d, at, on_wire) = (index(request.direction), nanoseconds(now), request.len);
        if on_wire >= LOADING && at >= self.teams_until[d] {
            self.choose_team(d, at, roster, load);
        }
        if request.divisible && on_wire >= DIVIDED_MIN {
            return self.divide(request, d, now, load, pieces);
        }
        let lane = self.choose(on_wire, d, at, roster, load);
        pieces.push(self.put(lane, request.direction, request.len, end, now, load));
    }

    /// Puts a piece on a lane, into the account and the measurements.
    pub(super) fn put(
        &mut self,
        lane: LaneId,
        direction: Direction,
        len: u64,
        end: u64,
        now: Duration,
        load: &mut Load,
    ) -> Piece {
        let mut piece = Piece { lane, direction, len, placed_at: now, wait: 0.0, ahead: 0, alone: false };
        if direction != Direction::Other {
            let (d, at) = (index(direction), nanoseconds(now));
            piece.wait = self.queue(lane, 0, d, load);
            let (near, far) = (self.lanes[lane].near, self.lanes[lane].far);
            piece.ahead = load.lanes[lane].flow.bytes[d];
            piece.alone = [near, far].iter().all(|&port| load.ports[port].bytes[d] == piece.ahead);
            let base = self.lanes[lane].estimates[d].base;
            for port in [near, far] {
                if load.ports[port].bytes[d] == 0 {
                    self.ports[port][d].begins(at, base);
                }
            }
            let expected = base + self.queue(lane, len, d, load);
            let around = surroundings(&self.ports, near, far, lane, d, load);
            self.lanes[lane].estimates[d].placed(d, at, expected, around);
            self.standing[d].note(at, self.in_flight[d]);
            self.in_flight[d] += len;
            self.placed[d] += 1;
            self.lanes[lane].used_at[d] = self.placed[d];
        }
        load.place(lane, direction, len, end);
        piece
    }

    /// A piece is in flight no more; the account says so already.
    pub(super) fn finished(&mut self, piece: &Piece, now: Duration, ok: bool, load: &Load) {
        if piece.direction == Direction::Other {
            return;
        }
        let (d, at) = (index(piece.direction), nanoseconds(now));
        let (near, far) = (self.lanes[piece.lane].near, self.lanes[piece.lane].far);
        self.in_flight[d] -= piece.len;
        self.standing[d].note(at, self.in_flight[d]);
        let around = surroundings(&self.ports, near, far, piece.lane, d, load);
        let lane = &mut self.lanes[piece.lane];
        let took = now.saturating_sub(piece.placed_at).as_nanos() as f64;
        let held_up = took > HELD_UP * lane.estimates[d].expects(piece);
        let mut plans = lane.estimates[d].finished(piece, d, at, ok, around);
        let rate = lane.estimates[d].rate;
        for port in [near, far] {
            self.ports[port][d].raise_floor(rate);
        }
        if plans {
            self.set_bounds(d);
            self.assume_bases(d);
        }
        if ok {
            for port in [near, far] {
                let left = load.ports[port].bytes[d];
                plans |= self.ports[port][d].arrived(piece.lane, piece.len, left, held_up, at);
            }
            self.count(piece, at);
        }
        if plans {
            self.teams_until[d] = 0;
        }
    }

    fn count(&mut self, piece: &Piece, at: u64) {
        if at >= self.share_until {
            self.share_until = at + SHARE_PERIOD;
            for lane in &mut self.lanes {
                lane.recent = [0, lane.recent[0]];
            }
        }
        self.lanes[piece.lane].recent[0] += piece.len;
    }

    /// The longest of the queues that `len` more bytes would be in, nanoseconds.
    fn queue(&self, lane: LaneId, len: u64, d: usize, load: &Load) -> f64 {
        let state = &self.lanes[lane];
        let time = |bytes: u64, pace: f64| (bytes + len) as f64 * pace;
        let own = time(load.lanes[lane].flow.bytes[d], state.estimates[d].pace);
        let near = time(load.ports[state.near].bytes[d], self.ports[state.near][d].pace);
        let far = time(load.ports[state.far].bytes[d], self.ports[state.far][d].pace);
        own.max(near).max(far)
    }

    /// When `len` bytes should have arrived over a lane, nanoseconds from now. Of lanes behind a port that is full the
    /// one with the shortest queue of its own seems a little better: the port may carry more than is known.
    fn end(&self, lane: LaneId, len: u64, d: usize, at: u64, load: &Load) -> f64 {
        let estimate = &self.lanes[lane].estimates[d];
        let own = load.lanes[lane].flow.bytes[d] as f64 * estimate.pace;
        estimate.base + self.queue(lane, len, d, load) + own * OWN_QUEUE_WEIGHT + estimate.late(at)
    }

    /// Takes the lane for a command without data: a flush, an unmap.
    ///
    /// It is placed by what small writes cost, whose way to the medium it shares, and by what reads do where no write
    /// has shown it. It is never a trial: its answer teaches nothing, so that it would be one again and again, and
    /// callers wait for flushes.
    fn choose_without_data(&self, at: u64, roster: &Roster, load: &Load) -> LaneId {
        let cost = |&lane: &LaneId| {
            let [read, write] = &self.lanes[lane].estimates;
            let shows = |estimate: &&Estimate| estimate.sampled_at != 0 && !estimate.knows_no_base();
            let shown = [write, read].into_iter().find(shows);
            let base = shown.map_or(0.0, |estimate| estimate.base);
            let d = index(Direction::Write);
            (shown.is_none(), base + self.queue(lane, 0, d, load) + write.late(at))
        };
        let mut best = (roster.candidates[0], (true, f64::INFINITY));
        for (lane, cost) in roster.candidates.iter().map(|lane| (*lane, cost(lane))) {
            if (cost.0, cost.1) < best.1 {
                best = (lane, cost);
            }
        }
        best.0
    }

    /// Takes one lane for a whole request.
    fn choose(&mut self, len: u64, d: usize, at: u64, roster: &Roster, load: &Load) -> LaneId {
        if at >= self.look_at[d]
            && len <= TRIAL_SIZE_MAX
            && let Some(lane) = self.look_for_silent(len, d, at, roster, load)
        {
            return lane;
        }
        if len >= LOADING {
            let team = self.teams[d].members.iter().map(|member| member.lane);
            self.choose_among(team, len, d, at, load)
        } else {
            self.choose_among(roster.candidates.iter().copied(), len, d, at, load)
        }
        .unwrap_or(roster.candidates[0])
    }

    fn choose_among(
        &self,
        lanes: impl Iterator<Item = LaneId> + Clone,
        len: u64,
        d: usize,
        at: u64,
        load: &Load,
    ) -> Option<LaneId> {
        let mut best: Option<(LaneId, f64)> = None;
        let mut hungry: Option<(LaneId, f64)> = None;
        for lane in lanes.clone() {
            let estimate = &self.lanes[lane].estimates[d];
            let in_flight = load.lanes[lane].flow.bytes[d];
            if in_flight > 0 && in_flight + len > estimate.cap {
                continue;
            }
            let end = self.end(lane, len, d, at, load);
            if best.is_none_or(|(_, least)| end < least) {
                best = Some((lane, end));
            }
            let spare = estimate.base + len as f64 * estimate.pace;
            if hungry.is_none_or(|(_, least)| end < least) && self.queue(lane, 0, d, load) <= spare {
                hungry = Some((lane, end));
            }
        }
        let Some((best, end)) = best else {
            // All are unproven and have what they may have.
            let by_end = |a: &LaneId, b: &LaneId| {
                self.end(*a, len, d, at, load).total_cmp(&self.end(*b, len, d, at, load))
            };
            return lanes.min_by(by_end);
        };
        // Where the better lane has more to do than it needs to stay busy, and has had for long, a slower one that has
        // nothing to do costs nobody anything: what it takes would have waited.
        if let Some((lane, later)) = hungry
            && lane != best
            && later <= RELIEF_SLOWER_MAX * end
        {
            let estimate = &self.lanes[best].estimates[d];
            let needed = BUSY_MARGIN * estimate.base * estimate.rate + (len + len.min(LOADING)) as f64;
            let queue = load.lanes[best].flow.bytes[d].min(self.standing[d].bytes());
            if queue as f64 >= needed {
                return Some(lane);
            }
        }
        Some(best)
    }

    /// A lane that has shown nothing for long and has nothing to do.
    fn look_for_silent(
        &mut self,
        len: u64,
        d: usize,
        at: u64,
        roster: &Roster,
        load: &Load,
    ) -> Option<LaneId> {
        let candidates = &roster.candidates;
        let best = candidates.iter().map(|&l| self.end(l, len, d, at, load)).fold(f64::MAX, f64::min);
        let mut next = u64::MAX;
        let mut found = None;
        for &lane in candidates {
            let estimate = &self.lanes[lane].estimates[d];
            let due = self.silent_until(estimate, self.end(lane, len, d, at, load) - best);
            if due > at {
                next = next.min(due);
            } else if found.is_none() && load.lanes[lane].flow.ios == 0 && self.has_rested(lane, d) {
                found = Some(lane);
                next = next.min(at + LOOK_AGAIN);
            } else {
                next = next.min(at + LOOK_AGAIN);
            }
        }
        if found.is_some() && next < at + SILENCE_MIN {
            // Others may be due too: the next request looks again.
            next = at;
        }
        self.look_at[d] = next;
        found
    }

    /// Whether enough went elsewhere since a lane was used. One that has shown nothing at all is needed sooner.
    fn has_rested(&self, lane: LaneId, d: usize) -> bool {
        let lane = &self.lanes[lane];
        lane.estimates[d].sampled_at == 0 || self.placed[d] - lane.used_at[d] >= TRIAL_REST
    }

    /// Until when a lane may show nothing, if trying it costs `extra` nanoseconds.
    fn silent_until(&self, estimate: &Estimate, extra: f64) -> u64 {
        if estimate.sampled_at == 0 {
            return 0;
        }
        estimate.sampled_at + ((extra * TRIAL_PART) as u64).clamp(SILENCE_MIN, SILENCE_MAX)
    }

    /// Divides a large request among the team.
    fn divide(&mut self, request: &Request, d: usize, now: Duration, load: &mut Load, pieces: &mut Pieces) {
        let at = nanoseconds(now);
        let mut shares = Shares::new();
        let about = request.len / self.teams[d].members.len().max(1) as u64;
        for &Member { lane, part } in &self.teams[d].members {
            let estimate = &self.lanes[lane].estimates[d];
            let in_flight = load.lanes[lane].flow.bytes[d];
            let backlog = in_flight as f64 * estimate.pace;
            let rate = estimate.rate * part;
            // A port that carries several lanes works on their queues at the same time: what counts is when a piece of
            // about the right size would end.
            let queue = (self.queue(lane, about, d, load) - about as f64 / rate).max(backlog);
            let start = estimate.base + queue + estimate.late(at);
            let limit = if estimate.proven() { u64::MAX } else { estimate.cap.saturating_sub(in_flight) };
            let due = self.silent_until(estimate, start + PIECE_MIN as f64 / rate);
            let probe = in_flight == 0 && due <= at && estimate.sampled_at != 0 && self.has_rested(lane, d);
            shares.push(Share { lane, start, backlog, rate, limit, probe, len: 0 });
        }
        if let Some(alone) = shares.divide(request.offset, request.len, request.cut) {
            let end = request.offset.saturating_add(request.len);
            pieces.push(self.put(alone, request.direction, request.len, end, now, load));
            return;
        }
        let mut end = request.offset;
        for share in shares.as_slice().iter().filter(|share| share.len > 0) {
            end = end.saturating_add(share.len);
            pieces.push(self.put(share.lane, request.direction, share.len, end, now, load));
        }
    }

    fn choose_team(&mut self, d: usize, at: u64, roster: &Roster, load: &Load) {
        // What is not known is assumed to be like the other direction, else like the best lane, and no better than the
        // card claims.
        let rates = |d: usize| {
            self.lanes.iter().map(move |lane| &lane.estimates[d]).filter(|e| e.known).map(|e| e.rate)
        };
        if let Some(best) = rates(d).reduce(f64::max).or_else(|| rates(1 - d).reduce(f64::max)) {
            for lane in self.lanes.iter_mut().filter(|lane| !lane.estimates[d].known) {
                let other = &lane.estimates[1 - d];
                let like = if other.known { other.rate } else { best };
                lane.estimates[d].assume(lane.hint.map_or(like, |hint| hint.min(like)));
            }
        }
        self.set_bounds(d);
        self.assume_bases(d);
        let lanes = &self.lanes;
        let estimate = |lane: LaneId| &lanes[lane].estimates[d];
        self.teams_until[d] =
            self.teams[d].choose(&roster.candidates, estimate, load, &mut self.ports, d, at);
    }

    /// A lane of unknown latency is taken to be as quick as the quickest: it is tried before long.
    fn assume_bases(&mut self, d: usize) {
        let known = self.lanes.iter().map(|lane| &lane.estimates[d]).filter(|e| e.base_known);
        let Some(least) = known.map(|e| e.base).reduce(f64::min) else { return };
        for lane in self.lanes.iter_mut().filter(|lane| lane.estimates[d].knows_no_base()) {
            lane.estimates[d].base = least;
        }
    }

    /// A port carries what the best of its lanes carries, at least, and needs no more than what all do.
    fn set_bounds(&mut self, d: usize) {
        for (index, port) in self.ports.iter_mut().enumerate() {
            let lanes = self.lanes.iter().filter(|lane| lane.near == index || lane.far == index);
            let rates = lanes.map(|lane| lane.estimates[d].rate);
            let (best, all) = rates.fold((0.0, 0.0), |(best, all), rate| (rate.max(best), all + rate));
            port[d].set_bounds(best, all);
        }
    }
}

fn surroundings<'a>(
    ports: &[[PortEstimate; 2]],
    near: usize,
    far: usize,
    lane: LaneId,
    d: usize,
    load: &'a Load,
) -> Surroundings<'a> {
    Surroundings {
        lane: &load.lanes[lane].flow,
        near: &load.ports[near],
        far: &load.ports[far],
        near_rate: ports[near][d].rate,
        far_rate: ports[far][d].rate,
    }
}

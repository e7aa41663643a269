//! Scheduler: the choice of the lane, or lanes, of each operation.

mod adaptive;
mod constants;
mod estimate;
mod explore;
mod flow;
mod half;
mod load;
mod msdsm;
mod policy;
mod port;
mod request;
mod roster;
mod service_time;
mod split;
mod team;
mod window;

use std::time::Duration;

pub use policy::{Policy, UnknownPolicy};
pub use request::{Boundaries, Direction, Piece, Pieces, Request};

use crate::AluaState;
use adaptive::Adaptive;
use load::Load;
use msdsm::Msdsm;
use roster::Roster;
use service_time::ServiceTime;

/// The number of a lane: its place in the list that the scheduler was made with. It never changes.
pub type LaneId = usize;

/// Configuration of a lane: all that is known before it has carried anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneShape {
    /// Its name, for people.
    pub name: String,
    /// The local port it leaves by.
    pub near: Port,
    /// The port of the storage it enters by.
    pub far: Port,
    /// `weighted`: the least wins. `service-time`: the relative throughput, 0 to 100.
    pub weight: u32,
    /// Used only when no other is left.
    pub reserve: bool,
    /// Rate that the local card claims, bytes per second. It is believed as a bound of what to expect before
    /// anything is measured.
    pub rate_hint: Option<u64>,
}

/// A network port. Lanes with the same local port, or with the same port of the storage, share what it carries. The two
/// sides are numbered apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port(pub u32);

/// Usability of a lane, as health sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Anything.
    Active,
    /// Something, if no lane is active.
    Reserve,
    /// Nothing.
    Out,
}

/// No lane can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no lane can be used")]
pub struct NoLane;

/// Figures of a lane, for people.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneFigures {
    /// Requests and pieces in flight.
    pub in_flight: u32,
    /// Their bytes.
    pub in_flight_bytes: u64,
    /// Its part of all bytes that were moved lately, 0 to 1; of the last second or two in which any were.
    pub share: f64,
    /// Estimated rate, bytes per second; `None` before it was measured.
    pub read_rate: Option<u64>,
    /// The same for writes.
    pub write_rate: Option<u64>,
    /// Estimated duration of an operation without data.
    pub latency: Option<Duration>,
}

/// Decides which lanes operations take, and keeps account of what is in flight on them.
///
/// Pure: it has no clock and does no I/O. `now` is the time since some beginning, and never goes back. Calls come from
/// one thread at a time; each is some tens of nanoseconds with few lanes, allocates nothing, and only
/// [`set_use`](Self::set_use) and its like, which are rare, look at all lanes in depth.
///
/// # Order of calls
///
/// Every lane begins as [`Use::Out`]. [`place`](Self::place) puts a request on the lanes it names and takes it for in
/// flight; each of its pieces comes back to [`finished`](Self::finished) exactly once, with or without success. A piece
/// that has to go down another lane is finished (not `ok`) and placed again as a request of its own.
///
/// # Promises
///
/// Pieces cover the request without gap or overlap, in order, and are cut at the request's [`Boundaries`] only. No
/// piece is on a lane that is out. When all pieces are finished nothing is in flight, whatever changes of policies and
/// lanes meanwhile.
///
/// # The parts
///
/// | part | knows |
/// |---|---|
/// | `load` | requests in flight and bytes moved lately, on each lane |
/// | `roster` | the lanes that may be used now |
/// | `msdsm`, `service_time` | the policies of other systems, to the letter |
/// | `adaptive` | the policy of that name: two halves, and commands without data |
/// | `half` | all of `adaptive` that concerns one direction, reads or writes |
/// | `flow` | bytes in flight in one direction, on each lane and each port |
/// | `estimate`, `window`, `port` | rate and latency of a lane or a port, from what it did |
/// | `explore` | trials of lanes and ports that the estimates advise against |
/// | `team` | the lanes that can be full at the same time |
/// | `split` | the part of a large request that each lane takes |
/// | `constants` | its constants, each with what fixes it |
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    roster: Roster,
    load: Load,
    msdsm: Msdsm,
    service_time: ServiceTime,
    adaptive: Adaptive,
}

impl Scheduler {
    /// All lanes are out until [`set_use`](Self::set_use) says otherwise.
    pub fn new(lanes: &[LaneShape], policy: Policy) -> Self {
        Self {
            policy,
            roster: Roster::new(lanes),
            msdsm: Msdsm::default(),
            service_time: ServiceTime::new(lanes.len()),
            adaptive: Adaptive::new(lanes),
            load: Load::new(lanes.len()),
        }
    }

    /// Chooses lanes for a request and takes it for in flight there. What `pieces` had before is forgotten.
    ///
    /// # Errors
    ///
    /// No lane can be used; nothing was placed.
    pub fn place(&mut self, request: &Request, now: Duration, pieces: &mut Pieces) -> Result<(), NoLane> {
        pieces.clear();
        let Some(&first) = self.roster.candidates.first() else { return Err(NoLane) };
        let lane = match self.policy {
            _ if self.roster.candidates.len() == 1 => Some(first),
            Policy::Adaptive => None,
            Policy::ServiceTime => Some(self.service_time.choose(request.len, &self.roster, &self.load)),
            policy @ (Policy::Failover { .. }
            | Policy::RoundRobin
            | Policy::RoundRobinSubset
            | Policy::LeastQueueDepth
            | Policy::Weighted
            | Policy::LeastBlocks) => Some(self.msdsm.choose(policy, request, &self.roster, &self.load)),
        };
        match lane {
            Some(lane) => pieces.push(self.adaptive.put(lane, request.direction, request.len, now)),
            None => self.adaptive.place(request, now, &self.roster, &self.load, pieces),
        }
        let mut end = request.offset;
        for piece in pieces.iter() {
            end = end.saturating_add(piece.len);
            self.load.place(piece, end);
        }
        Ok(())
    }

    /// A piece is in flight no more: answered, failed, or dropped. `ok` says that its data arrived.
    pub fn finished(&mut self, piece: &Piece, now: Duration, ok: bool) {
        self.load.finish(piece, nanoseconds(now), ok);
        self.adaptive.finished(piece, now, ok);
    }

    /// Sets the usability of a lane. One that comes, or comes back, begins slowly.
    pub fn set_use(&mut self, lane: LaneId, usage: Use, now: Duration) {
        if self.roster.set_use(lane, usage) {
            self.returned(lane, now);
        }
        self.changed();
    }

    /// Sets the access state of a lane (ALUA).
    pub fn set_access(&mut self, lane: LaneId, access: AluaState) {
        if self.roster.set_access(lane, access) {
            self.service_time.returned(lane);
        }
        self.changed();
    }

    /// Sets whether a lane seems to be dead. It gets nothing while another can be used.
    pub fn set_suspect(&mut self, lane: LaneId, suspect: bool) {
        self.roster.set_suspect(lane, suspect);
        self.changed();
    }

    /// Changes the policy for what is placed from now on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.changed();
    }

    /// The current policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The figures of a lane.
    pub fn figures(&self, lane: LaneId) -> LaneFigures {
        let load = &self.load.lanes[lane];
        LaneFigures {
            in_flight: load.ios,
            in_flight_bytes: load.bytes,
            share: self.load.share(lane),
            ..self.adaptive.figures(lane)
        }
    }

    fn returned(&mut self, lane: LaneId, now: Duration) {
        self.service_time.returned(lane);
        self.adaptive.returned(lane, now);
    }

    fn changed(&mut self) {
        self.msdsm.changed(self.policy, &self.roster);
        self.adaptive.changed();
    }
}

/// Times are reckoned in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

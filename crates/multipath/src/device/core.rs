//! State that all operations of a device share.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunway_block::duration::ExactDuration;
use lunway_block::{BlockError, CacheCallback, CacheNews, Fate};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::clock::Clock;
use super::flush::error;
use super::late::LateChanges;
use super::operation::{Divisible, Operation, Origin};
use super::shape::Shape;
use super::unflushed::{Cover, Unflushed, Worth};
use super::{Options, Unproven, WhenNone};
use crate::health::Health;
use crate::{
    AluaState, Boundaries, Direction, Lane, LaneEvent, LaneId, LaneShape, Piece, Pieces, Policy, Request,
    Scheduler, Use,
};

/// State that all operations of a device share: the lanes, and one lock around the knowledge of them.
///
/// The lock is taken once when an operation is sent and once when it is answered, for some tens of nanoseconds;
/// everything that happens to lanes goes through it too. No lane is called, nothing is waited for and no task is woken
/// while it is held, but listeners to [`CacheNews`], which do no more than take note.
pub(super) struct Shared {
    core: Mutex<Core>,
    pub(super) lanes: Vec<Arc<dyn Lane>>,
    pub(super) names: Vec<String>,
    pub(super) shape: Shape,
    pub(super) when_none: WhenNone,
    pub(super) busy: Duration,
    pub(super) settle: Duration,
    pub(super) unproven: Unproven,
    cache_survives_power_on: bool,
    started: Instant,
    /// Rouses every operation that waits: a lane is up, a session settled, a range free.
    pub(super) changed: Notify,
    /// Rouses the housekeeping: there is a new time to look at, or lanes to call.
    pub(super) chores: Notify,
    pub(super) runtime: Handle,
}

/// Behind the lock.
pub(super) struct Core {
    pub(super) scheduler: Scheduler,
    pub(super) health: Health,
    pub(super) unflushed: Unflushed,
    pub(super) late: LateChanges,
    changes: Changes,
    pub(super) counts: Vec<Counts>,
    /// State of each lane as last reported to the scheduler.
    told: Vec<(Use, AluaState, bool)>,
    /// Buffer for the scheduler's answer, kept to reuse its memory.
    pieces: Pieces,
    /// Bytes of operations that wait.
    pub(super) waiting: u64,
    /// `true` if acknowledged writes may be in a cache.
    pub(super) volatile: bool,
    block: u32,
    cut: Boundaries,
    clock: Clock,
    /// Operations that lanes have.
    in_flight: u32,
    pub(super) orders: Orders,
    /// Told of unflushed writes that may be lost.
    cache_listeners: Vec<CacheCallback>,
}

/// Permission of this node to change the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changes {
    /// As far as anybody has said.
    Allowed,
    /// Its key may have been taken away.
    InDoubt,
    /// Its key was taken away: never again.
    Fenced,
}

/// Orders to the housekeeping, which alone calls lanes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    /// A lane has come back, or its access has changed: those that are down should try now, those that are not active
    /// look.
    pub(super) hurry: bool,
    /// Lanes do not agree on the size of the disk: those that are behind notice it with their next answer.
    pub(super) probe: bool,
}

/// Traffic of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) read_ios: u64,
    pub(super) read_bytes: u64,
    pub(super) write_ios: u64,
    pub(super) write_bytes: u64,
    pub(super) errors: u64,
}

/// An operation on its way over a lane.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) piece: Piece,
    /// The session it was meant for. It went into this one or a later one.
    pub(super) epoch: u64,
    /// Time stamp for [`Unflushed`].
    pub(super) stamp: u64,
}

impl Flight {
    pub(super) fn origin(&self) -> Origin {
        Origin { lane: self.piece.lane, stamp: self.stamp }
    }
}

/// Reason why an operation cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// No lane can carry it.
    NoLane,
    /// An older change may still happen where this one wants to write.
    LateChange,
    /// This node's permission to write is being verified.
    InDoubt,
    /// This node may write no more.
    Fenced,
}

/// Destination of an operation.
pub(super) enum Placed {
    /// To one lane.
    Whole(Flight),
    /// Its parts, in order.
    Split(Vec<Flight>),
}

impl Core {
    /// Finds one lane for all of an operation.
    pub(super) fn place<O: Operation>(&mut self, operation: &O) -> Result<Flight, Obstacle> {
        self.place_pieces(operation, false)?;
        match self.pieces.first() {
            Some(piece) => Ok(self.flight(piece)),
            None => Err(Obstacle::NoLane),
        }
    }

    /// Finds a lane, or several for parts of it, in order.
    pub(super) fn place_parts<O: Divisible>(&mut self, operation: &O) -> Result<Placed, Obstacle> {
        self.place_pieces(operation, true)?;
        match &self.pieces[..] {
            [piece] => Ok(Placed::Whole(self.flight(piece))),
            pieces => Ok(Placed::Split(pieces.iter().map(|piece| self.flight(piece)).collect())),
        }
    }

    fn place_pieces<O: Operation>(&mut self, operation: &O, divisible: bool) -> Result<(), Obstacle> {
        if O::CHANGES {
            match self.changes {
                Changes::Allowed => {}
                Changes::InDoubt => return Err(Obstacle::InDoubt),
                Changes::Fenced => return Err(Obstacle::Fenced),
            }
            if !self.late.is_empty() && self.late.touches(&operation.range()) {
                return Err(Obstacle::LateChange);
            }
        }
        let (offset, len) = (operation.range().start, operation.bytes());
        let now = self.clock.read(self.in_flight, len);
        let (direction, block, cut) = (O::DIRECTION, self.block, self.cut);
        let request = Request { direction, offset, len, divisible, block, cut };
        self.scheduler.place(&request, now, &mut self.pieces).map_err(|_| Obstacle::NoLane)?;
        self.in_flight += self.pieces.len() as u32;
        Ok(())
    }

    fn flight(&self, piece: &Piece) -> Flight {
        Flight { piece: *piece, epoch: self.health.epoch(piece.lane), stamp: self.unflushed.stamp() }
    }

    /// An operation is on its lane no more.
    fn left(&mut self, flight: &Flight, ok: bool) {
        let now = self.clock.read(self.in_flight, flight.piece.len);
        self.in_flight -= 1;
        self.scheduler.finished(&flight.piece, now, ok);
    }

    /// The caller has dropped an operation.
    pub(super) fn dropped(&mut self, flight: &Flight) {
        self.left(flight, false);
    }

    /// An operation was answered.
    pub(super) fn landed(&mut self, flight: &Flight, ok: bool, leaves_unflushed: bool) {
        self.left(flight, ok);
        let piece = &flight.piece;
        let counts = &mut self.counts[piece.lane];
        match (ok, piece.direction) {
            (false, _) => counts.errors += 1,
            (true, Direction::Read) => {
                counts.read_ios += 1;
                counts.read_bytes += piece.len;
            }
            (true, Direction::Write) => {
                counts.write_ios += 1;
                counts.write_bytes += piece.len;
            }
            (true, Direction::Other) => {}
        }
        if ok && leaves_unflushed && self.volatile {
            self.unflushed.written(piece.lane, flight.stamp);
        }
    }

    pub(super) fn add_cache_listener(&mut self, listener: CacheCallback) {
        self.cache_listeners.push(listener);
    }

    fn tell_of_cache(&self, news: CacheNews) {
        self.cache_listeners.iter().for_each(|listener| listener(news));
    }

    /// A lane has answered a flush.
    pub(super) fn flush_answered(&mut self, origin: Origin, cover: Cover) -> Worth {
        let worth = self.unflushed.flushed(origin.lane, origin.stamp, cover);
        self.tell_of_loss();
        worth
    }

    /// A flush fails for what is in doubt, and nothing dispels it.
    pub(super) fn condemn(&mut self) -> BlockError {
        let error = error(self.unflushed.condemn());
        self.tell_of_loss();
        error
    }

    /// In the same moment: no flush that begins later succeeds before it is told.
    fn tell_of_loss(&mut self) {
        if let Some(reported) = self.unflushed.take_given_up() {
            self.tell_of_cache(CacheNews::Lost { reported });
        }
    }

    /// A power-on is reported, or a session begins. The doubt and the news of it are one: no flush comes between.
    fn doubt_cache(&mut self, doubt: impl FnOnce(&mut Unflushed)) {
        doubt(&mut self.unflushed);
        if self.unflushed.is_in_doubt() {
            self.tell_of_cache(CacheNews::InDoubt);
        }
    }

    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.scheduler.set_policy(policy);
        self.health.set_preferred(match policy {
            Policy::Failover { preferred } => preferred,
            _ => None,
        });
    }

    /// Tells the scheduler what has changed.
    pub(super) fn tell_scheduler(&mut self) {
        let now = self.clock.now();
        for lane in 0..self.told.len() {
            let news = (self.health.use_of(lane), self.health.access(lane), self.health.is_suspect(lane));
            let (used, access, suspect) = std::mem::replace(&mut self.told[lane], news);
            if access != news.1 {
                self.scheduler.set_access(lane, news.1);
            }
            if suspect != news.2 {
                self.scheduler.set_suspect(lane, news.2);
            }
            if used != news.0 {
                self.scheduler.set_use(lane, news.0, now);
            }
        }
    }
}

impl Shared {
    pub(super) fn new(lanes: Vec<(LaneShape, Arc<dyn Lane>)>, options: &Options) -> Self {
        let (shapes, lanes): (Vec<_>, Vec<_>) = lanes.into_iter().unzip();
        let geometries: Vec<_> = lanes.iter().map(|lane| lane.device().geometry()).collect();
        let shape = Shape::new(&geometries);
        let reserves = shapes.iter().map(|shape| shape.reserve);
        let started = Instant::now();
        let mut core = Core {
            scheduler: Scheduler::new(&shapes, options.policy),
            health: Health::new(reserves, options.flap.clone(), options.failback),
            unflushed: Unflushed::new(lanes.len()),
            late: LateChanges::default(),
            changes: Changes::Allowed,
            counts: vec![Counts::default(); lanes.len()],
            told: vec![(Use::Out, AluaState::Optimized, false); lanes.len()],
            pieces: Pieces::default(),
            waiting: 0,
            volatile: shape.agreed().volatile_cache,
            block: shape.agreed().physical_sector,
            cut: Boundaries::of(&shape.agreed()),
            clock: Clock::new(started),
            in_flight: 0,
            orders: Orders::default(),
            cache_listeners: Vec::new(),
        };
        core.set_policy(options.policy);
        Self {
            core: Mutex::new(core),
            lanes,
            names: shapes.into_iter().map(|shape| shape.name).collect(),
            shape,
            when_none: options.when_none,
            busy: options.busy,
            settle: options.settle,
            unproven: options.unproven,
            cache_survives_power_on: options.cache_survives_power_on,
            started,
            changed: Notify::new(),
            chores: Notify::new(),
            runtime: Handle::current(),
        }
    }

    /// A panic elsewhere leaves the core whole: no code in here panics half way.
    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Converts a moment of [`now`](Self::now) to an instant.
    pub(super) fn at(&self, moment: Duration) -> Instant {
        self.started + moment
    }

    /// Changes something that operations may wait for.
    pub(super) fn change<T>(&self, f: impl FnOnce(&mut Core, Duration) -> T) -> T {
        let now = self.now();
        let result = {
            let mut core = self.lock();
            let result = f(&mut core, now);
            core.tell_scheduler();
            result
        };
        self.changed.notify_waiters();
        self.chores.notify_one();
        result
    }

    /// A lane tells something. May come on any thread.
    pub(super) fn happened(&self, id: LaneId, event: &LaneEvent) {
        let mut refused = None;
        // Before operations go there: the size may have changed meanwhile.
        if let LaneEvent::Up { .. } = event {
            refused = self.shape.tell(id, self.lanes[id].device().geometry(), true).err();
        }
        let refused = refused.map(|why| LaneEvent::Closed { why });
        let event = refused.as_ref().unwrap_or(event);
        let said = self.change(|core, now| {
            let before = (core.health.is_up(id), core.health.epoch(id));
            let said = core.health.happened(id, event, now);
            let after = (core.health.is_up(id), core.health.epoch(id));
            if before.0 && before != after {
                core.unflushed.lost(id);
            }
            if after.0 && before != after {
                core.unflushed.up(id);
                core.orders.hurry |= before.1 > 0;
                // A first session too: a flush over it proves nothing of what was written over other lanes.
                if !core.cache_listeners.is_empty() && !self.cache_survives_power_on {
                    core.doubt_cache(Unflushed::begun);
                }
            }
            // Where one port becomes active another often ceases to be.
            core.orders.hurry |= said.is_some() && matches!(event, LaneEvent::Access(_));
            if *event == LaneEvent::PowerOn && !self.cache_survives_power_on {
                core.doubt_cache(|unflushed| unflushed.power_on(id));
            }
            if let LaneEvent::Spoiled { why } = event {
                core.unflushed.spoil(why);
            }
            core.changes = match (event, core.changes) {
                (_, Changes::Fenced) | (LaneEvent::Fenced { .. }, _) => Changes::Fenced,
                (LaneEvent::Preempted, _) => Changes::InDoubt,
                (LaneEvent::Registered, _) => Changes::Allowed,
                (_, changes) => changes,
            };
            let settled = core.health.settled_epoch(id);
            core.late.settled(id, settled);
            let state = core.health.state(id, now);
            said.map(|said| (said, state))
        });
        if let LaneEvent::Lost { .. } | LaneEvent::Closed { .. } = event
            && !self.lock().health.is_up(id)
        {
            // Sectors that differ have been refused already.
            let _ = self.shape.tell(id, self.shape.agreed(), false);
        }
        self.adopt_shape();
        if let Some((said, state)) = said {
            let lane = &self.names[id];
            match event {
                // The part that closed a lane has said it, if it was no more than the end.
                LaneEvent::Lost { .. }
                | LaneEvent::PowerOn
                | LaneEvent::Spoiled { .. }
                | LaneEvent::Preempted => {
                    tracing::warn!(lane, %state, "{said}");
                }
                LaneEvent::Silent | LaneEvent::Heard => tracing::debug!(lane, %state, "{said}"),
                _ => tracing::info!(lane, %state, "{said}"),
            }
        }
    }

    /// A lane has another geometry than before.
    pub(super) fn resized(&self, id: LaneId, geometry: lunway_block::Geometry) {
        let up = self.lock().health.is_up(id);
        if let Err(why) = self.shape.tell(id, geometry, up) {
            return self.happened(id, &LaneEvent::Closed { why });
        }
        self.adopt_shape();
        if !self.shape.behind().is_empty() {
            self.lock().orders.probe = true;
            self.chores.notify_one();
        }
    }

    fn adopt_shape(&self) {
        let agreed = self.shape.agreed();
        let mut core = self.lock();
        (core.volatile, core.block) = (agreed.volatile_cache, agreed.physical_sector);
        core.cut = Boundaries::of(&agreed);
    }

    /// An operation failed over a lane. Says what that means for it; the lane's reputation suffers where it says itself
    /// that it is well.
    pub(super) fn judge(&self, flight: &Flight, error: &BlockError) -> Fate {
        let fate = error.fate();
        let lane = flight.piece.lane;
        if fate != Fate::Answered && self.lock().health.lost_epoch(lane) < flight.epoch {
            self.change(|core, now| core.health.complain(lane, &error.to_string(), now));
        }
        fate
    }

    /// The session after whose settling a change of unknown outcome can happen no more. It ends, if it has not.
    pub(super) fn epoch_to_settle(&self, flight: &Flight) -> u64 {
        let lane = flight.piece.lane;
        let lost = self.lock().health.lost_epoch(lane);
        // `Lost` comes before operations fail: so it went into that session or one before it. Where none was told the
        // session goes on, and would never be settled.
        if lost < flight.epoch {
            self.lanes[lane].sever("an operation ended in it without an outcome");
        }
        lost.max(flight.epoch)
    }

    /// Returns `true` if waiting for a lane is in vain.
    pub(super) fn is_hopeless(&self, core: &Core) -> bool {
        self.when_none == WhenNone::Fail || (0..self.lanes.len()).all(|lane| core.health.is_closed(lane))
    }

    /// Returns the reason why there is no lane, for people.
    pub(super) fn no_lane(&self) -> BlockError {
        let (now, core) = (self.now(), self.lock());
        let lane = |(id, name): (usize, &String)| {
            let state = core.health.state(id, now);
            match core.health.last_event(id) {
                Some((_, event)) => format!("{name}: {state}, {event}"),
                None => format!("{name}: {state}"),
            }
        };
        let lanes: Vec<_> = self.names.iter().enumerate().map(lane).collect();
        BlockError::gone(format!("no path to the disk can be used ({})", lanes.join("; ")))
    }

    /// Returns the reason why a change is not sent again, for people.
    pub(super) fn not_proven(&self, lane: LaneId) -> BlockError {
        let time = ExactDuration(self.settle);
        let message = format!(
            "the session over {} was lost, and nothing has proved within {time} that this write cannot arrive late: it is not sent again \
             (unproven=fail)",
            self.names[lane]
        );
        BlockError::Io { kind: std::io::ErrorKind::TimedOut, message }
    }

    /// The range of a change that its caller does not wait for any more, and that may happen until that session is
    /// settled.
    pub(super) fn may_come_late(&self, range: Range<u64>, lane: LaneId, epoch: u64) {
        let mut core = self.lock();
        if !core.health.is_settled(lane, epoch) {
            core.late.add_unsettled(range, lane, epoch);
        }
    }
}

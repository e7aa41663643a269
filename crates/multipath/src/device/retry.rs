//! The cold path: an operation whose lane failed, or that has none.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockError, Fate};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Unproven;
use super::attempt::{Flown, Sent, send};
use super::core::{Core, Flight, Obstacle, Shared};
use super::operation::Operation;
use crate::LaneId;

/// First and last wait between attempts that fail although lanes say that they are up. The first try on each lane does
/// not wait.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(250));

/// Least charge of a waiting operation, bytes: its own memory and its caller's.
const CHARGE_MIN: u64 = 4096;

/// An operation whose lane failed, or that has none.
///
/// | what is known ([`Fate`]) | reads, flushes | what changes data |
/// |---|---|---|
/// | not done; over | again at once | again at once |
/// | unknown | again at once | again once the lane's session is settled, by proof or by time and barrier |
///
/// "Again" means on the lane that the scheduler chooses; one that failed while it says that it is up is suspect for a
/// second, so another is taken if there is one. All waiting ends at one deadline, counted from the first trouble, to
/// which the time to settle is added where a session has to be settled; what then need not wait is still tried as often
/// as there are lanes. The error says whether the operation may have happened (`Timeout`) or not (`Gone`; `Busy` where
/// the disk was, or only an older change was in the way). What a lane was too busy for is tried as long as a single
/// path would try it, at least. While an operation waits, its bytes count against the queue's limit.
pub(super) struct Retry {
    shared: Arc<Shared>,
    since: Instant,
    deadline: Instant,
    /// Attempts that failed.
    failures: usize,
    /// An attempt may have happened.
    maybe: bool,
    /// The last one found the disk busy.
    busy: bool,
}

/// A place in the queue, given back when it is dropped.
struct Queued<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.shared.lock().waiting -= self.bytes;
    }
}

/// A change that may still happen. A caller that stops waiting for it, by an error or by dropping it, leaves that
/// behind.
struct Unsettled<'a> {
    shared: &'a Shared,
    lane: LaneId,
    epoch: u64,
    range: Range<u64>,
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        self.shared.may_come_late(self.range.clone(), self.lane, self.epoch);
    }
}

impl Retry {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let since = Instant::now();
        let deadline = since + shared.when_none.patience();
        Self { shared, since, deadline, failures: 0, maybe: false, busy: false }
    }

    /// Goes on with an operation that could not be sent.
    pub(super) async fn hindered<O: Operation>(mut self, operation: O) -> Result<O::Output, BlockError> {
        let flight = self.place(&operation).await?;
        self.run(operation, flight).await
    }

    /// Goes on with an operation that failed on a lane.
    pub(super) async fn failed<O: Operation>(mut self, flown: Flown<O>) -> Result<O::Output, BlockError> {
        let operation = self.learn(flown).await?;
        let flight = self.place(&operation).await?;
        self.run(operation, flight).await
    }

    async fn run<O: Operation>(
        &mut self,
        mut operation: O,
        mut flight: Flight,
    ) -> Result<O::Output, BlockError> {
        loop {
            let sent = match send(self.shared.clone(), operation, flight) {
                Sent::Answered(answer) => Ok(answer),
                Sent::Failed(flown) => Err(flown),
                Sent::Flying(flying) => flying.await,
            };
            match sent {
                Ok(answer) => return answer,
                Err(flown) => operation = self.learn(flown).await?,
            }
            flight = self.place(&operation).await?;
        }
    }

    /// Waits until the operation may be sent again.
    async fn learn<O: Operation>(&mut self, flown: Flown<O>) -> Result<O, BlockError> {
        let Flown { operation, flight, fate, busy } = flown;
        self.failures += 1;
        self.maybe |= O::CHANGES && fate != Fate::NotDone;
        self.busy = busy;
        if self.busy {
            self.deadline = self.deadline.max(self.since + self.shared.busy);
        }
        if O::CHANGES && fate == Fate::Unknown {
            self.settle(&operation, &flight).await?;
        }
        self.pause(&operation).await?;
        Ok(operation)
    }

    /// Waits until nothing of the session can reach the disk any more, or as long as it is worth waiting.
    async fn settle<O: Operation>(&mut self, operation: &O, flight: &Flight) -> Result<(), BlockError> {
        let time_to_settle = self.shared.settle;
        self.deadline = self.deadline.max(self.since + time_to_settle + self.shared.when_none.patience());
        let this = &*self;
        let lane = flight.piece.lane;
        let epoch = self.shared.epoch_to_settle(flight);
        let _unsettled = Unsettled { shared: &this.shared, lane, epoch, range: operation.range() };
        let _queued = this.enqueue(operation)?;
        let proven = |core: &mut Core| core.health.is_settled(lane, epoch).then_some(());
        if this.until(Instant::now() + time_to_settle, proven).await.is_some() {
            return Ok(());
        }
        if this.shared.unproven == Unproven::Fail {
            return Err(this.shared.not_proven(lane));
        }
        // The barrier is under way, or waits for a lane.
        let settled = this.until(this.deadline, |core| match core.health.is_settled(lane, epoch) {
            true => Some(true),
            false => {
                (this.shared.is_hopeless(core) && core.health.that_can_be_asked().is_empty()).then_some(false)
            }
        });
        if settled.await == Some(true) { Ok(()) } else { Err(this.give_up(Obstacle::NoLane)) }
    }

    /// Keeps operations that fail again and again from spinning.
    async fn pause<O: Operation>(&self, operation: &O) -> Result<(), BlockError> {
        // A lane may take longer to say that it failed than the deadline allows; that is no reason not to try the
        // others.
        let Some(times) = self.failures.checked_sub(self.shared.lanes.len() + 1) else { return Ok(()) };
        if Instant::now() >= self.deadline {
            return Err(self.give_up(Obstacle::NoLane));
        }
        let _queued = self.enqueue(operation)?;
        let (first, last) = PAUSE;
        let pause = first.saturating_mul(2u32.saturating_pow(times as u32)).min(last);
        sleep_until((Instant::now() + pause).min(self.deadline)).await;
        Ok(())
    }

    /// Waits for a lane, and for older changes in the way.
    async fn place<O: Operation>(&self, operation: &O) -> Result<Flight, BlockError> {
        let placed = self.shared.lock().place(operation);
        let mut obstacle = match placed {
            Ok(flight) => return Ok(flight),
            Err(obstacle) => obstacle,
        };
        let hopeless = |core: &Core, obstacle| match obstacle {
            Obstacle::NoLane => self.shared.is_hopeless(core),
            Obstacle::Fenced => true,
            Obstacle::LateChange | Obstacle::InDoubt => false,
        };
        if hopeless(&self.shared.lock(), obstacle) {
            return Err(self.give_up(obstacle));
        }
        let _queued = self.enqueue(operation)?;
        let placed = self
            .until(self.deadline, |core| match core.place(operation) {
                Ok(flight) => Some(Ok(flight)),
                Err(now) => {
                    obstacle = now;
                    hopeless(core, now).then_some(Err(()))
                }
            })
            .await;
        placed.and_then(Result::ok).ok_or_else(|| self.give_up(obstacle))
    }

    /// Waits until `f` finds what it looks for, which it is asked whenever something has changed; nothing after
    /// `deadline`.
    async fn until<T>(&self, deadline: Instant, mut f: impl FnMut(&mut Core) -> Option<T>) -> Option<T> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            // Before looking: what changes after that is not missed.
            changed.as_mut().enable();
            let found = f(&mut self.shared.lock());
            if found.is_some() {
                return found;
            }
            timeout_at(deadline, changed).await.ok()?;
        }
    }

    /// Takes a place in the queue.
    fn enqueue<O: Operation>(&self, operation: &O) -> Result<Queued<'_>, BlockError> {
        let bytes = operation.bytes().max(CHARGE_MIN);
        let most = self.shared.when_none.bytes_max();
        let mut core = self.shared.lock();
        if core.waiting.saturating_add(bytes) > most {
            drop(core);
            return Err(match self.give_up(Obstacle::NoLane) {
                BlockError::Gone { why, .. } => BlockError::gone(format!("{why}; {most} bytes wait already")),
                other => other,
            });
        }
        core.waiting += bytes;
        Ok(Queued { shared: &self.shared, bytes })
    }

    /// Returns the error for the caller.
    fn give_up(&self, obstacle: Obstacle) -> BlockError {
        match obstacle {
            Obstacle::Fenced => BlockError::ReservationConflict,
            _ if self.maybe => BlockError::late(self.since.elapsed()),
            Obstacle::LateChange | Obstacle::InDoubt => BlockError::Busy,
            // Its lanes' state does not matter: it was the disk that would not take it.
            Obstacle::NoLane if self.busy => BlockError::Busy,
            Obstacle::NoLane => self.shared.no_lane(),
        }
    }
}

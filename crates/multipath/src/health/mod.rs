//! The state of each lane: from what happens to it to whether I/O may go there.

mod flap;
mod lane;

use std::time::Duration;

pub use flap::Flap;
pub use lane::LaneState;
use lane::{Hold, LaneHealth, Link};

use crate::{AluaState, LaneEvent, LaneId, Use};

/// Time for which a lane stays suspect after an operation that it did badly (an answer that never came, or a refusal
/// while it says that it is up). Long enough that what was under way is tried elsewhere, short enough that a lane is
/// not lost over one command.
const COMPLAINT: Duration = Duration::from_secs(1);

/// Return to a lane that is better than those in use: one that is not a reserve, one that is
/// optimized, the preferred one of `failover`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failback {
    /// As soon as it is up (and has proved itself, where it comes and goes).
    #[default]
    Immediate,
    /// Once it has been up for so long.
    After(Duration),
    /// On the user's order.
    Manual,
}

/// The state of all lanes.
///
/// Pure: events and the time come in, [`uses`](Self::use_of) and the next time to look come out. The order in which
/// lanes are chosen:
///
/// 1. A lane that is down, closed, disabled or whose access is not active carries nothing.
/// 2. A lane that came back is *held back* until it has proved itself ([`Flap`]) and until [`Failback`] allows the
///    return to it.
/// 3. Where every lane that is left is held back or suspect, nothing is held back.
///
/// The choice among those that may be used (reserves last, optimized before non-optimized, suspect ones last) is
/// the scheduler's.
#[derive(Debug)]
pub(crate) struct Health {
    lanes: Vec<LaneHealth>,
    flap: Flap,
    failback: Failback,
    /// The preferred lane of `failover`.
    preferred: Option<LaneId>,
    /// Reason why this node may write no more, over whichever lane.
    fenced: Option<String>,
}

impl Health {
    pub(crate) fn new(reserves: impl Iterator<Item = bool>, flap: Flap, failback: Failback) -> Self {
        Self { lanes: reserves.map(LaneHealth::new).collect(), flap, failback, preferred: None, fenced: None }
    }

    /// The lane to go back to, where the policy has one.
    pub(crate) fn set_preferred(&mut self, preferred: Option<LaneId>) {
        self.preferred = preferred;
    }

    /// Takes in what happened, and says it for people; nothing where it is no news.
    pub(crate) fn happened(&mut self, id: LaneId, event: &LaneEvent, now: Duration) -> Option<String> {
        let said = match event {
            LaneEvent::Up { epoch } => self.up(id, *epoch, now)?,
            LaneEvent::Lost { epoch, why } => self.lost(id, *epoch, why, now)?,
            LaneEvent::Settled { epoch } => {
                let lane = &mut self.lanes[id];
                // What was settled already is proven now.
                if lane.settled >= *epoch {
                    lane.presumed = 0;
                }
                lane.settled = lane.settled.max(*epoch);
                return None;
            }
            LaneEvent::Silent => {
                self.lanes[id].silent = true;
                "silent while answers are due".to_owned()
            }
            LaneEvent::Heard if self.lanes[id].silent => {
                self.lanes[id].silent = false;
                "heard again".to_owned()
            }
            LaneEvent::Heard => return None,
            // A target tells each nexus of one when it begins: no news to people.
            LaneEvent::PowerOn if !self.lanes[id].known => return None,
            LaneEvent::PowerOn => "the disk reports that its power was off".to_owned(),
            LaneEvent::Spoiled { why } => format!("an acknowledged write failed behind the cache: {why}"),
            LaneEvent::Access(access) if self.lanes[id].access == *access => return None,
            LaneEvent::Access(access) => {
                self.lanes[id].access = *access;
                format!("access is {access}")
            }
            LaneEvent::Preempted => "registrations were preempted".to_owned(),
            LaneEvent::Registered => return None,
            LaneEvent::Fenced { why } => {
                self.fenced = Some(why.clone());
                why.clone()
            }
            LaneEvent::Closed { why } => {
                let lane = &mut self.lanes[id];
                (lane.link, lane.hold, lane.silent) = (Link::Closed, None, false);
                format!("closed: {why}")
            }
        };
        self.decide(now);
        self.lanes[id].last_event = Some((now, said.clone()));
        Some(said)
    }

    fn up(&mut self, id: LaneId, epoch: u64, now: Duration) -> Option<String> {
        let patience = self.lanes[id].record.patience(&self.flap);
        let waits = self.lanes[id].known && self.is_way_back(id);
        let lane = &mut self.lanes[id];
        if lane.link == Link::Closed || epoch <= lane.lost || (lane.is_up() && epoch <= lane.epoch) {
            return None;
        }
        let again = lane.known;
        lane.link = Link::Up { since: now };
        lane.epoch = epoch;
        // "`Settled` of a session before `Up` of the next": also where nothing had to be told.
        lane.settled = lane.settled.max(epoch.saturating_sub(1));
        (lane.known, lane.silent, lane.complaint) = (true, false, None);
        let failback = match self.failback {
            _ if !waits => Some(Duration::ZERO),
            Failback::Immediate => Some(Duration::ZERO),
            Failback::After(time) => Some(time),
            Failback::Manual => None,
        };
        let until = failback.map(|time| now + time.max(patience));
        lane.hold = until.is_none_or(|until| until > now).then_some(Hold { until });
        Some(match until {
            _ if !again => "connected".to_owned(),
            None => "connected again; held back until a manual failback".to_owned(),
            Some(until) if until > now => {
                format!("connected again; held back for {} s", (until - now).as_secs_f32())
            }
            Some(_) => "connected again".to_owned(),
        })
    }

    fn lost(&mut self, id: LaneId, epoch: u64, why: &str, now: Duration) -> Option<String> {
        let lane = &mut self.lanes[id];
        let said = format!("{}: {why}", if lane.known { "lost" } else { "no connection" });
        if epoch <= lane.lost && !lane.is_up() {
            // The reason why it is still not there may be new.
            let told = lane.last_event.as_ref().is_some_and(|(_, event)| *event == said);
            return (!told && lane.link != Link::Closed).then_some(said);
        }
        if epoch > lane.lost {
            (lane.lost, lane.lost_at) = (epoch, now);
        }
        lane.epoch = lane.epoch.max(epoch);
        if let Link::Up { since } = lane.link {
            // A session that had ended already when the next one was told.
            if epoch < lane.epoch {
                return None;
            }
            lane.record.lost(&self.flap, since, now);
            lane.link = Link::Down;
        }
        (lane.silent, lane.complaint, lane.hold) = (false, None, None);
        if !self.lanes.iter().any(LaneHealth::is_up) {
            self.lanes.iter_mut().for_each(|lane| lane.record.excuse(&self.flap, now));
        }
        Some(said)
    }

    /// Returns the rank of a lane, the least the best.
    fn rank(&self, id: LaneId) -> (bool, AluaState, bool) {
        let lane = &self.lanes[id];
        (lane.reserve, lane.access, self.preferred.is_some_and(|preferred| preferred != id))
    }

    /// Returns `true` if a lane that comes back is better than all that are in use.
    fn is_way_back(&self, id: LaneId) -> bool {
        let used = |&other: &LaneId| other != id && self.use_of(other) != Use::Out;
        let best = (0..self.lanes.len()).filter(used).map(|other| self.rank(other)).min();
        best.is_some_and(|best| self.rank(id) < best)
    }

    /// An operation says that something is wrong with a lane which itself says that it is well.
    pub(crate) fn complain(&mut self, id: LaneId, why: &str, now: Duration) {
        let lane = &mut self.lanes[id];
        if lane.is_up() {
            lane.complaint = Some(now + COMPLAINT);
            lane.last_event = Some((now, format!("suspect: {why}")));
            self.decide(now);
        }
    }

    /// Switches a lane off, or on again.
    pub(crate) fn set_disabled(&mut self, id: LaneId, disabled: bool, now: Duration) {
        let lane = &mut self.lanes[id];
        if lane.disabled != disabled {
            (lane.disabled, lane.hold) = (disabled, None);
            lane.last_event = Some((now, if disabled { "disabled" } else { "enabled" }.to_owned()));
            self.decide(now);
        }
    }

    /// Uses every lane that is up, now.
    pub(crate) fn fail_back(&mut self, now: Duration) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.hold.is_some()) {
            lane.hold = None;
            lane.last_event = Some((now, "taken back on request".to_owned()));
        }
    }

    /// Lets go what has waited long enough.
    pub(crate) fn tick(&mut self, now: Duration) {
        for lane in &mut self.lanes {
            if lane.hold.and_then(|hold| hold.until).is_some_and(|until| until <= now) {
                lane.hold = None;
                lane.last_event = Some((now, "has proved itself".to_owned()));
            }
            if lane.complaint.is_some_and(|until| until <= now) {
                lane.complaint = None;
            }
        }
        self.decide(now);
    }

    /// Time of the next [`tick`](Self::tick).
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        let holds = self.lanes.iter().filter_map(|lane| lane.hold.and_then(|hold| hold.until));
        holds.chain(self.lanes.iter().filter_map(|lane| lane.complaint)).min()
    }

    /// Holds nothing back where nothing better is left.
    fn decide(&mut self, now: Duration) {
        let good = |lane: &LaneHealth| lane.is_usable() && lane.hold.is_none() && !lane.is_suspect();
        if self.lanes.iter().any(good) {
            return;
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_usable() && lane.hold.is_some()) {
            lane.hold = None;
            lane.last_event = Some((now, "used at once: no other lane is left".to_owned()));
        }
    }

    /// Returns the use that the scheduler may make of a lane.
    pub(crate) fn use_of(&self, id: LaneId) -> Use {
        let lane = &self.lanes[id];
        match lane.is_usable() && lane.hold.is_none() {
            false => Use::Out,
            true if lane.reserve => Use::Reserve,
            true => Use::Active,
        }
    }

    pub(crate) fn is_suspect(&self, id: LaneId) -> bool {
        self.lanes[id].is_suspect()
    }

    pub(crate) fn access(&self, id: LaneId) -> AluaState {
        self.lanes[id].access
    }

    pub(crate) fn state(&self, id: LaneId, now: Duration) -> LaneState {
        self.lanes[id].state(now)
    }

    pub(crate) fn is_up(&self, id: LaneId) -> bool {
        self.lanes[id].is_up()
    }

    pub(crate) fn is_down(&self, id: LaneId) -> bool {
        self.lanes[id].link == Link::Down
    }

    pub(crate) fn is_closed(&self, id: LaneId) -> bool {
        self.lanes[id].link == Link::Closed
    }

    /// The session there is, or the last one there was.
    pub(crate) fn epoch(&self, id: LaneId) -> u64 {
        self.lanes[id].epoch
    }

    /// The last session of which the loss was told.
    pub(crate) fn lost_epoch(&self, id: LaneId) -> u64 {
        self.lanes[id].lost
    }

    /// The last session of which nothing can reach the disk any more.
    pub(crate) fn settled_epoch(&self, id: LaneId) -> u64 {
        self.lanes[id].settled
    }

    /// Returns `true` if nothing of that session can reach the disk any more.
    pub(crate) fn is_settled(&self, id: LaneId, epoch: u64) -> bool {
        self.lanes[id].settled >= epoch
    }

    /// Lost sessions of which something may still reach the disk: of which lane, which, and when they were lost.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = (LaneId, u64, Duration)> {
        let unsettled = |(_, lane): &(LaneId, &LaneHealth)| lane.settled < lane.lost;
        self.lanes.iter().enumerate().filter(unsettled).map(|(id, lane)| (id, lane.lost, lane.lost_at))
    }

    /// The lanes over which the disk can be asked something, the most hopeful first.
    pub(crate) fn that_can_be_asked(&self) -> Vec<LaneId> {
        let mut lanes: Vec<_> = (0..self.lanes.len()).filter(|&id| self.lanes[id].is_usable()).collect();
        lanes.sort_by_key(|&id| (self.lanes[id].is_suspect(), self.lanes[id].hold.is_some()));
        lanes
    }

    /// A session will be settled although nothing proves that it is dead.
    pub(crate) fn presume_dead(&mut self, id: LaneId, epoch: u64) {
        self.lanes[id].presumed = epoch;
    }

    /// Returns the time and the description of a lane's last event.
    pub(crate) fn last_event(&self, id: LaneId) -> Option<(Duration, String)> {
        let lane = &self.lanes[id];
        let (when, mut said) = lane.last_event.clone()?;
        if !lane.is_up() && lane.presumed > 0 && lane.presumed == lane.lost {
            said += "; nothing has proved its session dead, a barrier settled it";
        }
        if let Some(why) = self.fenced.as_ref().filter(|why| **why != said) {
            said = format!("{said}; {why}");
        }
        Some((when, said))
    }
}

#[cfg(test)]
mod tests;

//! Writes that were acknowledged into a cache, and what a power-on of the storage means for them.

use crate::LaneId;

/// Writes of a session, or of several that have ended, which no flush has covered yet.
#[derive(Clone, Copy, Debug)]
struct Dirty {
    /// None of them was sent before this moment.
    since: u64,
    /// Number of the last one.
    last: u64,
}

impl Dirty {
    fn add(dirty: &mut Option<Self>, since: u64, last: u64) {
        let so_far = dirty.unwrap_or(Self { since, last });
        *dirty = Some(Self { since: so_far.since.min(since), last: so_far.last.max(last) });
    }
}

#[derive(Clone, Debug, Default)]
struct LaneSession {
    /// Moment at which it began; `None` while there is none.
    born: Option<u64>,
    dirty: Option<Dirty>,
}

/// Beginning of a flush.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cover {
    at: u64,
    acked: u64,
}

/// Worth of an answer to a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// Everything that it covers is durable.
    Good,
    /// A power-on was reported, and this answer does not prove that it was a false alarm.
    Doubtful,
    /// Acknowledged writes are lost, or may be: for this reason the flush fails, or one failed while it was under way,
    /// which covers the same.
    Bad(Why),
}

/// Reason why a flush fails although a lane has answered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Nothing proves that the storage has kept its cache; `reported` if it has said that its power was off.
    CacheLost { reported: bool },
    /// An acknowledged write failed behind the cache; what the lane said.
    Spoiled(String),
}

/// Writes that were acknowledged into a cache, and what a power-on of the storage means for them.
///
/// Storage that lost its power has lost what it acknowledged and did not flush. No error would tell: it comes back, the
/// sessions come back, reads give old data. So when a lane reports a power-on while acknowledged writes are unflushed,
/// exactly the next flush (and those under way) must fail. But many targets report a power-on over every new session,
/// and a device with several lanes knows better: **a session that lives through it is a witness**. Power that goes ends
/// all sessions; one that was there before the first write in doubt was sent, and that still answers after the report,
/// proves that the power was never gone. So the flush that finds a doubt goes over such a lane: if it is answered there
/// the doubt is gone, and if the session turns out to be dead too it was a power-on.
///
/// Storage that reports no power-on at all (LIO) is found out in the same way: where there is a listener, which can
/// write again what is lost, each session that [begins](Self::begun) is a doubt, also the first one of a lane that
/// joins late.
///
/// Pure. Moments are numbers of events ([`stamp`](Self::stamp)), which order sessions, writes and reports without a
/// clock.
#[derive(Debug)]
pub(super) struct Unflushed {
    now: u64,
    acked: u64,
    flushed: u64,
    sessions: Vec<LaneSession>,
    /// Of sessions that have ended.
    ended: Option<Dirty>,
    /// Moment at which writes last came into doubt: a power-on was reported, or a session began.
    doubted: u64,
    /// Writes that were sent since then may be lost.
    doubt: Option<u64>,
    /// A power-on was reported since the last doubt was dispelled.
    power_was_off: bool,
    /// A lane has said that acknowledged writes are lost.
    spoiled: Option<String>,
    /// Moment at which a flush failed for one or the other, and the reason.
    reported: (u64, Why),
    /// `Some` if a doubt has been given up since this was last taken: `true` if a power-on was reported.
    given_up: Option<bool>,
}

impl Unflushed {
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            now: 1,
            acked: 0,
            flushed: 0,
            sessions: vec![LaneSession::default(); lanes],
            ended: None,
            doubted: 0,
            doubt: None,
            power_was_off: false,
            spoiled: None,
            reported: (0, Why::CacheLost { reported: false }),
            given_up: None,
        }
    }

    /// This moment: an operation that is sent now keeps it.
    pub(super) fn stamp(&self) -> u64 {
        self.now
    }

    /// A session begins.
    pub(super) fn up(&mut self, lane: LaneId) {
        self.now += 1;
        self.sessions[lane].born = Some(self.now);
    }

    /// A session has ended.
    pub(super) fn lost(&mut self, lane: LaneId) {
        self.now += 1;
        let session = &mut self.sessions[lane];
        session.born = None;
        if let Some(dirty) = session.dirty.take() {
            Dirty::add(&mut self.ended, dirty.since, dirty.last);
        }
    }

    /// A lane reports a power-on: its own session, if it has one, is a new one for the cache.
    pub(super) fn power_on(&mut self, lane: LaneId) {
        if self.sessions[lane].born.is_some() {
            self.lost(lane);
            self.up(lane);
        }
        self.power_was_off = true;
        self.doubt();
    }

    /// A session has just begun on a lane: where storage reports no power-on, this is all that tells of one.
    pub(super) fn begun(&mut self) {
        self.doubt();
    }

    fn dirty_since(&self) -> Option<u64> {
        let all = self.sessions.iter().map(|session| session.dirty).chain([self.ended]);
        all.flatten().filter(|dirty| dirty.last > self.flushed).map(|dirty| dirty.since).min()
    }

    fn doubt(&mut self) {
        self.now += 1;
        self.doubted = self.now;
        self.doubt = self.doubt.into_iter().chain(self.dirty_since()).min();
        self.power_was_off &= self.doubt.is_some();
    }

    /// A write that was sent at `stamp` is acknowledged.
    pub(super) fn written(&mut self, lane: LaneId, stamp: u64) {
        self.acked += 1;
        let session = &mut self.sessions[lane];
        match session.born {
            Some(born) if born <= stamp => Dirty::add(&mut session.dirty, stamp, self.acked),
            // The session that acknowledged it has ended before anybody looked at the answer.
            _ => Dirty::add(&mut self.ended, stamp, self.acked),
        }
        // The storage may have answered before its power went.
        if self.doubted > stamp {
            self.doubt = Some(self.doubt.unwrap_or(stamp).min(stamp));
        }
    }

    /// A flush begins: it covers what is acknowledged by now.
    pub(super) fn begin_flush(&self) -> Cover {
        Cover { at: self.now, acked: self.acked }
    }

    /// A flush that was sent at `stamp` was answered.
    pub(super) fn flushed(&mut self, lane: LaneId, stamp: u64, cover: Cover) -> Worth {
        if let Some(why) = self.spoiled.take() {
            self.report(Why::Spoiled(why));
        } else if self.reported.0 > cover.at && self.doubt.is_some() {
            // It fails anyway: what came into doubt meanwhile is told by it.
            self.report_loss();
        }
        if self.reported.0 > cover.at {
            return Worth::Bad(self.reported.1.clone());
        }
        if let Some(since) = self.doubt {
            if stamp < self.doubted || !self.is_witness(lane, since) {
                return Worth::Doubtful;
            }
            (self.doubt, self.power_was_off) = (None, false);
        }
        self.flushed = self.flushed.max(cover.acked);
        let flushed = self.flushed;
        for dirty in self.sessions.iter_mut().map(|session| &mut session.dirty).chain([&mut self.ended]) {
            *dirty = dirty.filter(|dirty| dirty.last > flushed);
        }
        Worth::Good
    }

    fn is_witness(&self, lane: LaneId, since: u64) -> bool {
        self.sessions[lane].born.is_some_and(|born| born <= since)
    }

    /// Returns `true` if acknowledged writes may be lost.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    #[cfg(test)]
    fn is_trusted(&self) -> bool {
        !self.is_in_doubt()
    }

    /// A lane whose session was there before all that is in doubt.
    pub(super) fn witness(&self) -> Option<LaneId> {
        let since = self.doubt?;
        (0..self.sessions.len()).find(|&lane| self.is_witness(lane, since))
    }

    /// A lane says that an acknowledged write is lost: the next flush fails.
    pub(super) fn spoil(&mut self, why: &str) {
        self.spoiled.get_or_insert_with(|| why.to_owned());
    }

    /// A flush fails for what is in doubt, and nothing dispels it.
    pub(super) fn condemn(&mut self) -> Why {
        self.report_loss();
        self.reported.1.clone()
    }

    fn report_loss(&mut self) {
        self.report(Why::CacheLost { reported: self.power_was_off });
    }

    fn report(&mut self, why: Why) {
        self.now += 1;
        if self.doubt.is_some() {
            self.given_up = Some(self.given_up == Some(true) || self.power_was_off);
        }
        (self.reported, self.doubt, self.ended) = ((self.now, why), None, None);
        self.power_was_off = false;
    }

    /// Takes the note that a doubt has ended with a failed flush, whatever it failed for: `true` if a power-on was
    /// reported.
    pub(super) fn take_given_up(&mut self) -> Option<bool> {
        self.given_up.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POWER_WAS_OFF: Why = Why::CacheLost { reported: true };

    fn two_lanes() -> Unflushed {
        let mut unflushed = Unflushed::new(2);
        unflushed.up(0);
        unflushed.up(1);
        unflushed
    }

    fn write(unflushed: &mut Unflushed, lane: LaneId) {
        let stamp = unflushed.stamp();
        unflushed.written(lane, stamp);
    }

    fn flush(unflushed: &mut Unflushed, lane: LaneId) -> Worth {
        let (stamp, cover) = (unflushed.stamp(), unflushed.begin_flush());
        unflushed.flushed(lane, stamp, cover)
    }

    #[test]
    fn a_power_on_with_unflushed_writes_of_ended_sessions_is_in_doubt_until_a_flush_has_failed() {
        let mut unflushed = two_lanes();
        write(&mut unflushed, 0);
        unflushed.lost(0);
        unflushed.lost(1);
        unflushed.power_on(1);
        unflushed.up(1);
        assert_eq!((flush(&mut unflushed, 1), unflushed.witness()), (Worth::Doubtful, None));
        unflushed.condemn();
        assert_eq!(flush(&mut unflushed, 1), Worth::Good, "reported once");
        unflushed.power_on(0);
        unflushed.up(0);
        assert!(
            unflushed.is_trusted(),
            "the other lane reports the same power-on, and nothing is lost by it"
        );
    }

    #[test]
    fn what_was_flushed_cannot_be_lost() {
        let mut unflushed = two_lanes();
        write(&mut unflushed, 0);
        assert_eq!(flush(&mut unflushed, 1), Worth::Good, "the cache is the logical unit's");
        unflushed.lost(0);
        unflushed.power_on(0);
        unflushed.up(0);
        assert!(unflushed.is_trusted());
    }

    #[test]
    fn a_write_that_is_acknowledged_while_a_flush_is_under_way_is_not_covered_by_it() {
        let mut unflushed = two_lanes();
        let (stamp, cover) = (unflushed.stamp(), unflushed.begin_flush());
        write(&mut unflushed, 0);
        assert_eq!(unflushed.flushed(1, stamp, cover), Worth::Good);
        unflushed.lost(0);
        unflushed.lost(1);
        unflushed.power_on(0);
        assert!(!unflushed.is_trusted());
    }

    #[test]
    fn a_session_that_lives_through_it_proves_that_the_power_was_not_off() {
        let mut unflushed = two_lanes();
        write(&mut unflushed, 0);
        write(&mut unflushed, 1);
        unflushed.lost(0);
        unflushed.power_on(0);
        unflushed.up(0);
        assert_eq!(flush(&mut unflushed, 0), Worth::Doubtful, "a new session proves nothing");
        assert_eq!(unflushed.witness(), Some(1));
        assert_eq!(flush(&mut unflushed, 1), Worth::Good);
        assert!(unflushed.is_trusted());
    }

    #[test]
    fn a_session_that_began_after_the_writes_is_no_witness() {
        let mut unflushed = Unflushed::new(2);
        unflushed.up(0);
        write(&mut unflushed, 0);
        unflushed.up(1);
        unflushed.lost(0);
        unflushed.power_on(0);
        assert_eq!(unflushed.witness(), None);
    }

    #[test]
    fn an_answer_from_before_the_report_is_no_proof() {
        let mut unflushed = two_lanes();
        write(&mut unflushed, 0);
        let (stamp, cover) = (unflushed.stamp(), unflushed.begin_flush());
        unflushed.lost(0);
        unflushed.power_on(0);
        assert_eq!(unflushed.flushed(1, stamp, cover), Worth::Doubtful);
        assert_eq!(flush(&mut unflushed, 1), Worth::Good);
    }

    #[test]
    fn a_witness_that_is_dead_as_well_is_none() {
        let mut unflushed = two_lanes();
        write(&mut unflushed, 1);
        unflushed.lost(0);
        unflushed.power_on(0);
        unflushed.up(0);
        assert_eq!(unflushed.witness(), Some(1), "as far as anybody knows");
        unflushed.lost(1);
        assert_eq!((unflushed.witness(), flush(&mut unflushed, 0)), (None, Worth::Doubtful));
    }

    #[test]
    fn flushes_that_are_under_way_when_one_fails_fail_too() {
        let mut unflushed = two_lanes();
        write(&mut unflushed, 0);
        let (stamp, cover) = (unflushed.stamp(), unflushed.begin_flush());
        unflushed.lost(0);
        unflushed.lost(1);
        unflushed.power_on(1);
        unflushed.up(1);
        unflushed.condemn();
        assert_eq!(unflushed.take_given_up(), Some(true));
        assert_eq!(unflushed.flushed(1, stamp, cover), Worth::Bad(POWER_WAS_OFF));
        assert_eq!(unflushed.take_given_up(), None);
        assert_eq!(flush(&mut unflushed, 1), Worth::Good);
    }

    #[test]
    fn a_write_that_failed_behind_the_cache_makes_exactly_the_next_flush_fail() {
        let mut unflushed = two_lanes();
        write(&mut unflushed, 0);
        let (stamp, cover) = (unflushed.stamp(), unflushed.begin_flush());
        unflushed.spoil("medium error");
        unflushed.spoil("another");
        assert_eq!(
            flush(&mut unflushed, 1),
            Worth::Bad(Why::Spoiled("medium error".to_owned())),
            "over whichever lane"
        );
        assert_eq!(
            unflushed.flushed(1, stamp, cover),
            Worth::Bad(Why::Spoiled("medium error".to_owned())),
            "it was under way"
        );
        assert_eq!(flush(&mut unflushed, 1), Worth::Good);
    }

    #[test]
    fn an_acknowledgement_that_is_seen_after_the_power_on_counts_before_it() {
        for seen_dead in [false, true] {
            let mut unflushed = two_lanes();
            let stamp = unflushed.stamp();
            unflushed.lost(0);
            if seen_dead {
                unflushed.lost(1);
            }
            unflushed.power_on(0);
            unflushed.up(0);
            assert!(unflushed.is_trusted());
            unflushed.written(1, stamp);
            assert_eq!((unflushed.is_trusted(), flush(&mut unflushed, 0)), (false, Worth::Doubtful));
        }
    }

    #[test]
    fn a_session_that_follows_a_lost_one_is_a_doubt_that_only_a_witness_dispels() {
        for lost in [1, 2] {
            let mut unflushed = two_lanes();
            write(&mut unflushed, 0);
            (0..lost).for_each(|lane| unflushed.lost(lane));
            unflushed.up(0);
            unflushed.begun();
            assert_eq!(flush(&mut unflushed, 0), Worth::Doubtful);
            assert_eq!(unflushed.witness(), (lost == 1).then_some(1));
            assert_eq!(unflushed.condemn(), Why::CacheLost { reported: false });
            assert_eq!(flush(&mut unflushed, 0), Worth::Good);
        }
        let mut unflushed = two_lanes();
        unflushed.lost(0);
        unflushed.up(0);
        unflushed.begun();
        assert!(unflushed.is_trusted(), "nothing was unflushed");
    }

    #[test]
    fn a_doubt_that_ends_with_a_flush_that_fails_for_something_else_is_given_up_as_well() {
        for spoiled in [true, false] {
            let mut unflushed = two_lanes();
            let (stamp, cover) = (unflushed.stamp(), unflushed.begin_flush());
            write(&mut unflushed, 0);
            if spoiled {
                unflushed.spoil("medium error");
            } else {
                unflushed.lost(0);
                unflushed.lost(1);
                unflushed.power_on(0);
                unflushed.up(0);
                unflushed.condemn();
                assert_eq!(unflushed.take_given_up(), Some(true));
                write(&mut unflushed, 0);
            }
            unflushed.lost(0);
            unflushed.up(0);
            unflushed.begun();
            assert!(matches!(unflushed.flushed(1, stamp, cover), Worth::Bad(_)));
            assert_eq!(unflushed.take_given_up(), Some(false));
        }
    }
}

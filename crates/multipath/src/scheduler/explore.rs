//! Exploration: requests sent where the estimates advise against it, because the estimates may be wrong or old.
//!
//! Four kinds of trial, each for one way in which a good lane could be overlooked:
//!
//! | trial | overlooked otherwise | costs |
//! |---|---|---|
//! | trust | a lane that is new or returns, of unknown rate | `ALLOWANCE_FIRST` bytes in flight, more as they arrive |
//! | whole request | a lane that was slow, where requests are small | one request of `TRIAL_SIZE_MAX` at most |
//! | probe | the same, where requests are divided | one piece of `PIECE_MIN` |
//! | port trial | a port that carries more than its lanes showed | one more lane in the team for some requests |
//!
//! The first three are one state machine for each lane and direction, [`LaneTrial`]:
//!
//! ```text
//!             ┌──────────────── returned, from either stage ─────────────────┐
//!             ▼                                                              │
//!          Unseen ── first answer ──▶ OnTrust ── 4 MiB arrived in time ──▶ Proven
//!   due for a request at once     allowance grows                      no limit
//!                                 by what arrives in time
//!                                        └──── silent for long: due for a trial ────┘
//! ```
//!
//! The fourth is one for each port and direction, [`PortTrial`]:
//!
//! ```text
//!   Resting ── the pause is over, a lane is kept out ──▶ Running ── the port carries more: rest not at all
//!      ▲                                                    │    └─ it does not: rest four times as long
//!      └────────────────────────────────────────────────────┘
//! ```

use super::LaneId;
use super::constants::{
    ALLOWANCE_FIRST, ALLOWANCE_LAST, FREE_PART, LOOK_AGAIN, PORT_PATIENCE_GROWTH, PORT_PATIENCE_MAX,
    PORT_PATIENCE_MIN, PORT_TRIAL_IOS, PORT_TRIAL_MORE, PORT_TRIAL_OWN_IOS, PORT_TRIAL_PART, PORT_TRIAL_TIME,
    PORT_TRIAL_TIME_MAX, SILENCE_MAX, SILENCE_MIN, TRIAL_PART, TRIAL_REST,
};

/// Trust in a lane, and when it is due for a trial; in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneTrial {
    stage: Stage,
    /// The number of pieces placed in this direction when the lane got its last one.
    used_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// New, or returned, and has answered nothing since.
    Unseen,
    /// May have `allowance` bytes in flight.
    OnTrust { allowance: u64, answered_at: u64 },
    /// May have everything.
    Proven { answered_at: u64 },
}

impl LaneTrial {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Unseen, used_at: 0 }
    }

    /// The lane comes back.
    pub(super) fn returned(&mut self) {
        self.stage = Stage::Unseen;
    }

    /// The lane gets the piece of this number.
    pub(super) fn used(&mut self, number: u64) {
        self.used_at = number;
    }

    /// A piece has arrived.
    pub(super) fn answered(&mut self, now: u64) {
        match &mut self.stage {
            Stage::Unseen => {
                self.stage = Stage::OnTrust { allowance: ALLOWANCE_FIRST, answered_at: now };
            }
            Stage::OnTrust { answered_at, .. } | Stage::Proven { answered_at } => *answered_at = now,
        }
    }

    /// The piece has arrived in time. True if the lane is proven by that.
    pub(super) fn arrived_in_time(&mut self, len: u64) -> bool {
        let Stage::OnTrust { allowance, answered_at } = &mut self.stage else { return false };
        *allowance += len;
        if *allowance < ALLOWANCE_LAST {
            return false;
        }
        self.stage = Stage::Proven { answered_at: *answered_at };
        true
    }

    pub(super) fn is_unseen(&self) -> bool {
        self.stage == Stage::Unseen
    }

    pub(super) fn is_proven(&self) -> bool {
        matches!(self.stage, Stage::Proven { .. })
    }

    /// Bytes that the lane may have beside those in flight; `u64::MAX`: any number.
    pub(super) fn allowance(&self, in_flight: u64) -> u64 {
        match self.stage {
            Stage::Unseen => ALLOWANCE_FIRST.saturating_sub(in_flight),
            Stage::OnTrust { allowance, .. } => allowance.saturating_sub(in_flight),
            Stage::Proven { .. } => u64::MAX,
        }
    }

    /// Returns the time at which the lane is due for a trial that costs `extra` nanoseconds.
    pub(super) fn due_at(&self, extra: f64) -> u64 {
        match self.stage {
            Stage::Unseen => 0,
            Stage::OnTrust { answered_at, .. } | Stage::Proven { answered_at } => {
                answered_at + ((extra * TRIAL_PART) as u64).clamp(SILENCE_MIN, SILENCE_MAX)
            }
        }
    }

    /// Returns `true` if enough of `placed` pieces went elsewhere since the lane was used. An unseen lane is needed
    /// sooner.
    pub(super) fn has_rested(&self, placed: u64) -> bool {
        self.is_unseen() || placed - self.used_at >= TRIAL_REST
    }

    /// Returns `true` if an idle lane gets a piece of a divided request as a probe, which costs `extra` nanoseconds. An
    /// unseen lane needs none: the pieces that it is trusted with show it.
    pub(super) fn wants_probe(&self, extra: f64, placed: u64, now: u64) -> bool {
        !self.is_unseen() && self.due_at(extra) <= now && self.has_rested(placed)
    }
}

/// Search for lanes that are due for a whole request; in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search {
    next_at: u64,
}

impl Search {
    /// A lane comes back: the next request looks for it.
    pub(super) fn hasten(&mut self, now: u64) {
        self.next_at = now;
    }

    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.next_at
    }

    /// Takes the first lane that is due and ready: idle and rested. `lanes`: each with the time at which it is due.
    pub(super) fn find(
        &mut self,
        lanes: impl Iterator<Item = (LaneId, u64)>,
        is_ready: impl Fn(LaneId) -> bool,
        now: u64,
    ) -> Option<LaneId> {
        let mut next = u64::MAX;
        for (lane, due) in lanes {
            if due <= now && is_ready(lane) {
                // Others may be due too: the next request looks again.
                self.next_at = now;
                return Some(lane);
            }
            next = next.min(if due > now { due } else { now + LOOK_AGAIN });
        }
        self.next_at = next;
        None
    }
}

/// Trials of a port, one at a time: a lane that the full port keeps out of the team is let in. In one direction.
///
/// A trial costs little where the port is full indeed. Where it is not, the next one follows at once.
#[derive(Debug)]
pub(super) enum PortTrial {
    /// No trial until then; the pause was `patience` long.
    Resting { until: u64, patience: u64 },
    /// A trial runs; the pause before it was `patience` long.
    Running { trial: Trial, patience: u64 },
}

/// A lane that is let in although the port seems full.
#[derive(Debug)]
pub(super) struct Trial {
    lane: LaneId,
    /// Rate that the lane would add, bytes per nanosecond.
    extra: f64,
    began: u64,
    /// Counts from the end of the lane's first request.
    tally: Option<Tally>,
}

/// Counters of a port during a trial.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    since: u64,
    ios: u32,
    bytes: u64,
    /// Bytes that took longer than their lane takes alone.
    held_up: u64,
    /// Of the lane on trial.
    own_ios: u32,
    own_bytes: u64,
}

/// Outcome of a port trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The port carries this much more, bytes per nanosecond.
    Room(f64),
    /// The port was full.
    Full,
}

impl Default for PortTrial {
    fn default() -> Self {
        Self::Resting { until: 0, patience: 0 }
    }
}

impl PortTrial {
    /// The lane on trial.
    pub(super) fn lane(&self) -> Option<LaneId> {
        match self {
            Self::Running { trial, .. } => Some(trial.lane),
            Self::Resting { .. } => None,
        }
    }

    /// The rate that the port is taken to have in addition while a trial runs, bytes per nanosecond.
    pub(super) fn extra(&self) -> f64 {
        match self {
            Self::Running { trial, .. } => trial.extra,
            Self::Resting { .. } => 0.0,
        }
    }

    /// Lets a lane in that would add `extra`, if it is on trial or a trial is due.
    ///
    /// # Errors
    ///
    /// The lane stays out; when to ask again, if that may change with time.
    pub(super) fn admit(&mut self, lane: LaneId, extra: f64, now: u64) -> Result<(), Option<u64>> {
        match *self {
            Self::Running { ref trial, .. } if trial.lane == lane => Ok(()),
            Self::Running { .. } => Err(None),
            Self::Resting { until, .. } if until > now => Err(Some(until)),
            Self::Resting { patience, .. } => {
                *self = Self::Running { trial: Trial { lane, extra, began: now, tally: None }, patience };
                Ok(())
            }
        }
    }

    /// Counts a piece that has arrived. `rate`: what the port is reckoned to carry. The trial is over if there is a
    /// verdict.
    pub(super) fn observe(
        &mut self,
        lane: LaneId,
        len: u64,
        held_up: bool,
        rate: f64,
        now: u64,
    ) -> Option<Verdict> {
        let Self::Running { trial, patience } = self else { return None };
        let verdict = trial.observe(lane, len, held_up, rate, now)?;
        let patience = match verdict {
            Verdict::Room(_) => 0,
            Verdict::Full => (*patience * PORT_PATIENCE_GROWTH).clamp(PORT_PATIENCE_MIN, PORT_PATIENCE_MAX),
        };
        *self = Self::Resting { until: now + patience, patience };
        Some(verdict)
    }
}

impl Trial {
    fn observe(&mut self, lane: LaneId, len: u64, held_up: bool, rate: f64, now: u64) -> Option<Verdict> {
        let own = lane == self.lane;
        let late = now.saturating_sub(self.began) > PORT_TRIAL_TIME_MAX;
        let Some(tally) = &mut self.tally else {
            if own {
                self.tally = Some(Tally { since: now, ..Tally::default() });
            }
            return late.then_some(Verdict::Full);
        };
        tally.add(len, own, held_up);
        let elapsed = now.saturating_sub(tally.since);
        let enough = own
            && tally.own_ios >= PORT_TRIAL_OWN_IOS
            && elapsed >= PORT_TRIAL_TIME
            && tally.ios >= PORT_TRIAL_IOS;
        if !late && !enough {
            return None;
        }
        if !late && tally.own_bytes < tally.bytes / PORT_TRIAL_PART {
            // The lane is not trusted with enough yet to be told from noise.
            *tally = Tally { since: now, ..Tally::default() };
            return None;
        }
        // The lane may have had little yet: what it could bring is taken for granted until it is measured.
        Some(if tally.shows_more(rate, elapsed) { Verdict::Room(self.extra) } else { Verdict::Full })
    }
}

impl Tally {
    fn add(&mut self, len: u64, own: bool, held_up: bool) {
        self.bytes += len;
        self.ios += 1;
        if held_up {
            self.held_up += len;
        }
        if own {
            self.own_ios += 1;
            self.own_bytes += len;
        }
    }

    /// Returns `true` if the port carried more than `rate`. A full port carries as much as before: what the lane adds,
    /// the others lose and wait for.
    fn shows_more(&self, rate: f64, elapsed: u64) -> bool {
        let over = |bytes: u64| bytes as f64 / elapsed.max(1) as f64;
        let is_free = self.held_up * FREE_PART < self.bytes;
        self.own_ios > 0 && (is_free || over(self.bytes) - rate > PORT_TRIAL_MORE * over(self.own_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A lane that has shown itself at a time.
    fn seen_at(now: u64) -> LaneTrial {
        let mut trial = LaneTrial::new();
        trial.answered(now);
        trial
    }

    #[test]
    fn a_lane_is_trusted_with_what_arrives_in_time_until_it_is_proven() {
        let mut trial = LaneTrial::new();
        assert!(!trial.arrived_in_time(4 << 20), "unseen");
        assert_eq!((trial.allowance(0), trial.allowance(100 << 10)), (128 << 10, 28 << 10));
        trial.answered(1);
        assert!(!trial.arrived_in_time(128 << 10));
        assert_eq!((trial.allowance(0), trial.allowance(1 << 20)), (256 << 10, 0));
        assert!(!trial.arrived_in_time((4 << 20) - (256 << 10) - 1) && !trial.is_proven());
        assert!(trial.arrived_in_time(1) && trial.is_proven());
        assert_eq!(trial.allowance(1 << 40), u64::MAX);
        assert!(!trial.arrived_in_time(1), "it was proven before");
        trial.returned();
        assert!(trial.is_unseen() && trial.allowance(0) == 128 << 10);
    }

    #[test]
    fn a_silent_lane_is_due_after_100_times_its_cost_between_half_a_second_and_ten() {
        assert_eq!(LaneTrial::new().due_at(1e12), 0, "unseen");
        let due = |extra| seen_at(SECOND).due_at(extra) - SECOND;
        assert_eq!([0.0, 20e6, 1e12].map(due), [SECOND / 2, 2 * SECOND, 10 * SECOND]);
    }

    #[test]
    fn a_lane_rests_for_sixteen_pieces_between_two_trials() {
        let mut trial = seen_at(0);
        trial.used(100);
        assert!(!trial.has_rested(115) && trial.has_rested(116));
        trial.returned();
        assert!(trial.has_rested(100), "an unseen one is needed sooner");
    }

    #[test]
    fn a_probe_is_for_a_lane_that_was_seen_is_due_and_has_rested() {
        let trial = seen_at(0);
        assert!(trial.wants_probe(0.0, 16, SECOND / 2));
        assert!(!trial.wants_probe(0.0, 15, SECOND / 2) && !trial.wants_probe(0.0, 16, SECOND / 2 - 1));
        assert!(!LaneTrial::new().wants_probe(0.0, 16, SECOND), "what it is trusted with shows it");
    }

    #[test]
    fn a_search_finds_the_first_lane_that_is_due_and_ready_and_else_says_when_to_look_again() {
        let lanes = || [(0, 50 * SECOND), (1, SECOND), (2, SECOND), (3, SECOND)].into_iter();
        let mut search = Search::default();
        assert_eq!(search.find(lanes(), |lane| lane > 1, 2 * SECOND), Some(2));
        assert!(search.is_due(2 * SECOND), "lane 3 may be next");
        assert_eq!(search.find(lanes(), |_| false, 2 * SECOND), None);
        assert!(!search.is_due(2 * SECOND + LOOK_AGAIN - 1) && search.is_due(2 * SECOND + LOOK_AGAIN));
        assert_eq!(search.find(lanes().take(1), |_| true, 2 * SECOND), None);
        assert!(!search.is_due(50 * SECOND - 1) && search.is_due(50 * SECOND));
        search.find(lanes().take(1), |_| true, 2 * SECOND);
        search.hasten(3 * SECOND);
        assert!(search.is_due(3 * SECOND));
    }

    /// Rate of the port on trial, bytes per nanosecond.
    const RATE: f64 = 0.125;
    const LEN: u64 = 64 << 10;

    /// Lets lanes 0 and 1 move requests by turns, of which lane 1 is on trial, while the port moves `rate`; `held_up`
    /// says whether they waited. Gives the verdict and the time.
    fn play(trial: &mut PortTrial, mut now: u64, rate: f64, held_up: bool) -> (Verdict, u64) {
        for number in 0..1000 {
            now += (LEN as f64 / rate) as u64;
            if let Some(verdict) = trial.observe(number % 2, LEN, held_up, RATE, now) {
                return (verdict, now);
            }
        }
        panic!("no verdict");
    }

    #[test]
    fn a_port_that_carries_more_with_the_lane_has_room_and_may_be_tried_again_at_once() {
        for (rate, held_up) in [(2.0 * RATE, true), (RATE, false)] {
            let mut trial = PortTrial::default();
            assert_eq!(trial.admit(1, 0.1, 0), Ok(()));
            assert_eq!((trial.lane(), trial.extra()), (Some(1), 0.1));
            assert_eq!(
                (trial.admit(1, 0.1, 1), trial.admit(2, 0.1, 1)),
                (Ok(()), Err(None)),
                "one at a time"
            );
            let (verdict, now) = play(&mut trial, 0, rate, held_up);
            assert_eq!(verdict, Verdict::Room(0.1), "at {rate}, held up: {held_up}");
            assert_eq!((trial.lane(), trial.extra(), trial.admit(2, 0.1, now)), (None, 0.0, Ok(())));
            assert!(now >= PORT_TRIAL_TIME, "{now}");
        }
    }

    #[test]
    fn a_full_port_is_tried_again_after_5_20_and_80_seconds() {
        let (mut trial, mut now) = (PortTrial::default(), 0);
        for pause in [5, 20, 80, 80] {
            assert_eq!(trial.admit(1, 0.1, now), Ok(()));
            let verdict;
            (verdict, now) = play(&mut trial, now, RATE, true);
            assert_eq!(verdict, Verdict::Full);
            now += pause * SECOND;
            assert_eq!(trial.admit(1, 0.1, now - 1), Err(Some(now)));
        }
    }

    #[test]
    fn a_lane_that_brought_less_than_an_eighth_is_watched_on_and_after_4_seconds_the_port_counts_as_full() {
        let mut trial = PortTrial::default();
        assert_eq!(trial.admit(1, 0.1, 0), Ok(()));
        let mut now = 0;
        let verdict = loop {
            now += 1_000_000;
            // One request of ten is the lane's.
            let lane = usize::from(now / 1_000_000 % 10 == 0);
            if let Some(verdict) = trial.observe(lane, LEN, true, RATE, now) {
                break verdict;
            }
        };
        assert_eq!((verdict, now), (Verdict::Full, PORT_TRIAL_TIME_MAX + 1_000_000));
    }

    #[test]
    fn a_lane_that_never_answers_ends_its_trial_after_4_seconds() {
        let mut trial = PortTrial::default();
        assert_eq!(trial.admit(1, 0.1, 0), Ok(()));
        assert_eq!(trial.observe(0, LEN, false, RATE, PORT_TRIAL_TIME_MAX), None);
        assert_eq!(trial.observe(0, LEN, false, RATE, PORT_TRIAL_TIME_MAX + 1), Some(Verdict::Full));
    }
}

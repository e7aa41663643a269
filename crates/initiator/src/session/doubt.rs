//! Doubt whether the disk is still the one that was opened.

use std::time::{Duration, Instant};

use lunway_block::BlockError;
use lunway_scsi::AdditionalSense;

use super::{Session, SessionState};
use crate::session::slots::{AwaitedCommand, Effect, Stage};

/// Time for which commands are held where another path may carry them out: then they fail as not done.
const HELD_MAX: Duration = Duration::from_millis(100);

/// Reason why changes fail that were not sent before the unit said that registrations were preempted.
pub(super) const MAYBE_FENCED: &str = "registrations were preempted: this node may have been fenced";

/// Returns `true` if a unit attention leaves open which disk answers under the old address now: the target's units have
/// been changed (3F/0E), the unit's INQUIRY data (3F/03) or identifier (3F/05) have, its medium may have (28/00), the
/// unit or the target begins anew (29h), or parameters of the unit were changed (2Ah).
pub(crate) fn is_doubtful(code: AdditionalSense) -> bool {
    matches!(code.0 >> 8, 0x29 | 0x2A) || matches!(code.0, 0x2800 | 0x3F03 | 0x3F05 | 0x3F0E)
}

/// Returns `true` if an error means that what was opened is not there: no unit (25/00), or one that has no such block
/// (21/00) or may not be written (27/00). The latter two are LIO's answers for LUN 0 where there is none: it puts a
/// small read-only unit of its own in its place.
pub(crate) fn tells_of_no_disk(code: AdditionalSense) -> bool {
    use AdditionalSense as Code;
    matches!(code, Code::LOGICAL_UNIT_NOT_SUPPORTED | Code::LBA_OUT_OF_RANGE | Code::WRITE_PROTECTED)
}

/// Doubt whether the disk is still the one that was opened.
///
/// | state | commands | ends by |
/// |---|---|---|
/// | none | go to the target | [`SessionState::suspect_disk`] |
/// | suspected | wait in the queue; where another path may carry them out, at most [`HELD_MAX`] | the unit's answer |
/// | absent | fail as not done | the unit's answer, asked for again and again |
///
/// The unit's answer is one of: it is the same disk ([`Session::clear_doubt`]); there is none
/// ([`Session::unit_is_absent`]); it is another disk, which ends the device ([`Session::condemn`]). Only what asks for
/// it ([`Effect::Inspect`]) goes to the target meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    standing: Option<Standing>,
    /// Counts the reasons.
    raised: u64,
    /// Reason why the disk must not be used any more.
    condemned: Option<String>,
}

/// A doubt that the unit has not ended yet.
#[derive(Debug)]
struct Standing {
    /// From when on commands are held.
    since: Instant,
    /// Error for new commands, where there is no unit under the address.
    absent: Option<BlockError>,
    /// One of the reasons is a preemption: whether held changes may still be sent is for the observer to find out,
    /// where there may be another path.
    preempted: bool,
}

impl Doubt {
    pub(crate) fn is_there(&self) -> bool {
        self.standing.is_some()
    }

    fn begin(&mut self) -> &mut Standing {
        self.standing.get_or_insert_with(|| Standing {
            since: Instant::now(),
            absent: None,
            preempted: false,
        })
    }

    /// A new session has found the same disk.
    pub(super) fn end(&mut self) {
        self.standing = None;
    }

    /// Error with which a new command fails at once.
    pub(super) fn refuses(&self, effect: Effect) -> Option<BlockError> {
        let absent = self.standing.as_ref()?.absent.as_ref();
        absent.filter(|_| effect != Effect::Inspect).cloned()
    }

    /// Returns the reason why the disk must not be used any more, once.
    pub(crate) fn take_verdict(&mut self) -> Option<String> {
        self.condemned.take()
    }
}

impl SessionState {
    /// Another disk may answer now: nothing but questions is sent until the unit has said which it is.
    pub(crate) fn suspect_disk(&mut self) {
        self.suspect(false);
    }

    /// [`Self::suspect_disk`], for a preemption or another reason.
    pub(super) fn suspect(&mut self, preempted: bool) {
        self.doubt.raised += 1;
        self.doubt.begin().preempted |= preempted;
        self.deferred.stale.shape = true;
    }

    /// Returns `true` if nothing but questions may be sent: which disk it is, or whether this node may change it, is
    /// not known.
    pub(super) fn holds_back(&self) -> bool {
        self.doubt.is_there() || self.proof.is_asked()
    }

    /// Returns `true` if a command has to wait.
    pub(super) fn holds(&mut self, token: u64) -> bool {
        self.holds_back() && !self.is_question(token)
    }

    fn is_question(&mut self, token: u64) -> bool {
        let inspects = |entry: &mut AwaitedCommand| entry.effect == Effect::Inspect;
        self.proof.is_question(token) || self.slots.get_mut(token).is_some_and(inspects)
    }

    /// Hands to the core the questions that wait.
    pub(super) fn drain_questions(&mut self) {
        let mut at = 0;
        while let Some(submission) = self.waiting.queue.get(at) {
            let token = submission.token;
            let waits = |entry: &mut AwaitedCommand| matches!(entry.stage, Stage::Queued);
            if !self.is_question(token) || !self.slots.get_mut(token).is_some_and(waits) {
                at += 1;
                continue;
            }
            let Some(submission) = self.waiting.queue.remove(at) else { return };
            if let Err(submission) = self.send(submission) {
                self.waiting.queue.insert(at, submission);
                return;
            }
        }
    }

    /// Fails held commands after a short time, where another path may carry them out.
    pub(super) fn release_held(&mut self, now: Instant) {
        if self.held_until().is_some_and(|until| until <= now) {
            let why = "the unit has changed, and has not said yet which disk it is".to_owned();
            self.fail_held(&BlockError::gone(why), |_| true);
        }
    }

    /// Time at which [`Self::release_held`] has something to do.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let may_fail = self.part.fails_fast() && !self.waiting.is_empty();
        self.doubt.standing.as_ref().filter(|_| may_fail).map(|doubt| doubt.since + HELD_MAX)
    }

    /// Fails those of the held commands that are named, as not done unless a target may have executed them.
    pub(super) fn fail_held(&mut self, error: &BlockError, named: impl Fn(&AwaitedCommand) -> bool) {
        let waits = |entry: &AwaitedCommand| {
            matches!(entry.stage, Stage::Queued | Stage::Delayed) && entry.effect != Effect::Inspect
        };
        let held: Vec<_> = self
            .slots
            .iter_unanswered()
            .filter(|(_, entry)| waits(entry) && named(entry))
            .map(|(token, entry)| (token, entry.was_sent))
            .collect();
        for (token, was_sent) in held {
            self.fail(token, if was_sent { BlockError::lost() } else { error.clone() });
        }
        let slots = &mut self.slots;
        self.waiting.retain(|token| slots.get_mut(token).is_some_and(|entry| !entry.is_answered()));
    }
}

impl Session {
    /// Number of times that there was reason to ask which disk it is.
    pub(crate) fn doubts(&self) -> u64 {
        self.lock().doubt.raised
    }

    /// Notes that it was the same disk, after that many reasons to ask.
    pub(crate) fn clear_doubt(&self, doubts: u64) {
        self.decide(|state| {
            if state.doubt.raised == doubts {
                if state.doubt.standing.as_ref().is_some_and(|doubt| doubt.preempted) {
                    let error = BlockError::gone(MAYBE_FENCED);
                    state.fail_held(&error, |entry| entry.effect.changes());
                }
                state.doubt.end();
                state.drain_queue();
            }
        });
    }

    /// There is no unit under the address now.
    pub(crate) fn unit_is_absent(&self, why: &str) {
        self.decide(|state| {
            // A new session has found it.
            if let Some(doubt) = &mut state.doubt.standing {
                let error = BlockError::gone(why);
                doubt.absent = Some(error.clone());
                state.fail_held(&error, |_| true);
            }
        });
    }

    /// Another disk is there: the device ends.
    pub(crate) fn condemn(&self, why: String) {
        self.decide(|state| {
            state.doubt.begin();
            state.doubt.condemned.get_or_insert(why);
        });
    }

    fn decide(&self, f: impl FnOnce(&mut SessionState)) {
        let driver = self.change(|state| {
            f(state);
            state.rouse()
        });
        if let Some(waker) = driver {
            waker.wake();
        }
    }
}

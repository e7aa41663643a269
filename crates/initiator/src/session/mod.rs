//! Session state that the callers of a device share with its driver.
//!
//! | file | room of |
//! |---|---|
//! | `shared.rs` | [`Session`]: the state behind its lock; how callers get their answers |
//! | `mod.rs` | [`SessionState`]; how commands enter and leave |
//! | `life.rs` | whether commands are taken, and the sleep of the driver |
//! | `live_connection.rs` | [`LiveConnection`]: what belongs to one connection, its logout among it |
//! | `waiting.rs` | commands that are not with the connection |
//! | `answer.rs` | what the target says, and whether that is the last word |
//! | `schedule.rs` | what is late, put off, or due |
//! | `doubt.rs` | whether it is still the same disk, and what waits until that is known |
//! | `proof.rs` | proof that this node's registration has not been preempted, before it changes anything |
//! | `reject.rs` | commands that the target has rejected |
//! | `loss.rs` | the end of a connection, and the beginning of the next one |
//! | `slots.rs` | commands whose answers are awaited |
//! | `clock.rs` | detection of late commands: deadlines, counted in ticks |
//! | `cache.rs` | loss of unflushed writes by a power-on of the target |
//! | `traffic.rs` | traffic of a session, and the round trip to an idle target |

mod answer;
pub(crate) mod cache;
pub(crate) mod clock;
mod doubt;
mod life;
mod live_connection;
mod loss;
mod proof;
mod reject;
pub(crate) mod schedule;
mod shared;
pub(crate) mod slots;
pub(crate) mod traffic;
mod waiting;

use std::task::Waker;
use std::time::Instant;

use lunway_block::{BlockError, CacheCallback, PathSample, PathState};
use lunway_iscsi::initiator::{InitiatorConnection, Submission};
use lunway_scsi::{AccessState, Lun};

use self::answer::short_transfer;
use self::doubt::Doubt;
pub(crate) use self::doubt::is_doubtful;
use self::life::{DriverSleep, Life};
pub(crate) use self::live_connection::LiveConnection;
pub(crate) use self::loss::BREACHES_MAX;
pub(crate) use self::reject::{REJECTS_MAX, Rejection, reject_wait};
pub(crate) use self::shared::{Session, Ticket};
use self::waiting::Waiting;
use crate::SessionOptions;
use crate::observer::SessionEvent;
use crate::part::Part;
use crate::session::cache::Cache;
use crate::session::clock::Clock;
use crate::session::proof::Proof;
use crate::session::slots::{AwaitedCommand, Command, Effect, Outcome, Slots, Stage};
use crate::session::traffic::Traffic;

/// Reason why the driver stops using a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As we wanted.
    Closed {
        /// With a logout, after which nothing of it is left at the target.
        settled: bool,
    },
    /// For this reason, with a logout after which nothing of it is left at the target.
    LoggedOut(String),
    /// For this reason.
    Lost(String),
    /// The target broke the protocol.
    Breach(String),
    /// Another disk is there now: it must not be used any more.
    OtherDisk(String),
}

/// Properties that the driver has to read again, as they may have changed.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// The unit's shape.
    pub(crate) shape: bool,
    /// The state of access.
    pub(crate) access: bool,
}

/// Effects of a change to the session that its driver, or who made the change, brings about once the lock is released.
#[derive(Default)]
pub(crate) struct Deferred {
    /// Callers that got an answer since the lock was taken.
    pub(crate) wakes: Vec<Waker>,
    /// Events that the driver is to tell the observer.
    pub(crate) events: Vec<SessionEvent>,
    pub(crate) stale: Stale,
}

/// Other end of the session, as known over all its connections.
pub(crate) struct Peer {
    /// Portal, target and LUN as an address, for people.
    address: String,
    lun: Lun,
    /// The portal group that the session's connection reached.
    pub(crate) portal_group: Option<u16>,
    /// The state of access as last read.
    pub(crate) access: Option<AccessState>,
    /// The target knows READ (10) and WRITE (10) and not those of 16 bytes.
    short_transfers: bool,
}

/// See [`Session`].
pub(crate) struct SessionState {
    /// The connection, while there is one.
    pub(crate) connection: Option<LiveConnection>,
    pub(crate) life: Life,
    pub(crate) driver: DriverSleep,
    pub(crate) slots: Slots,
    waiting: Waiting,
    clock: Clock,
    pub(crate) deferred: Deferred,
    pub(crate) peer: Peer,
    part: Part,
    cache: Cache,
    /// Doubt whether it is still the same disk.
    pub(crate) doubt: Doubt,
    /// Proof that this node may still change it.
    proof: Proof,
    traffic: Traffic,
    /// Last event on the connection or of a command that was not answered, for people.
    last_event: Option<String>,
}

impl SessionState {
    fn new(
        core: InitiatorConnection,
        address: String,
        lun: Lun,
        volatile: bool,
        options: &SessionOptions,
    ) -> Self {
        let portal_group = portal_group_of(&core);
        Self {
            connection: Some(LiveConnection::new(core)),
            life: Life::Open,
            driver: DriverSleep::Roused,
            slots: Slots::default(),
            waiting: Waiting::default(),
            clock: Clock::new(options),
            deferred: Deferred::default(),
            peer: Peer { address, lun, portal_group, access: None, short_transfers: false },
            part: options.part(),
            cache: Cache { volatile, trusted: options.cache_survives_power_on, ..Cache::default() },
            doubt: Doubt::default(),
            proof: Proof::new(options.proof_age_max),
            traffic: Traffic::default(),
            last_event: None,
        }
    }

    fn enter(&mut self, command: Command) -> Result<u64, BlockError> {
        if let Some(error) = self.life.refusal() {
            return Err(error.clone());
        }
        let effect = command.effect;
        if let Some(error) = self.doubt.refuses(effect) {
            return Err(error);
        }
        if effect == Effect::Flush
            && let Some(error) = self.cache.unreported.take()
        {
            return Err(error);
        }
        let submission = self.admit(command);
        let token = submission.token;
        // Who came before goes before, but for what the others wait for.
        if self.waiting.queue.is_empty() || effect == Effect::Inspect {
            if let Err(submission) = self.send(submission) {
                self.waiting.queue.push_back(submission);
            }
        } else {
            self.waiting.queue.push_back(submission);
        }
        Ok(token)
    }

    /// Takes a slot for a command.
    fn admit(&mut self, command: Command) -> Submission {
        let Command { mut cdb, data_out, data_in, effect } = command;
        if self.peer.short_transfers
            && let Some(short) = short_transfer(&cdb, effect)
        {
            cdb = short;
        }
        // A driver that sleeps has let the clock stand.
        if self.driver.is_asleep() {
            self.clock.set(Instant::now());
        }
        let token = self.slots.insert(AwaitedCommand {
            cdb: cdb.clone(),
            data_out: data_out.clone(),
            effect,
            stage: Stage::Queued,
            born: self.clock.tick,
            since: self.clock.tick,
            refusals: 0,
            put_off: None,
            rejects: 0,
            breaches: 0,
            answer_lost: false,
            was_sent: false,
            sent_at: None,
            lost_at: None,
            covers: self.cache.written,
            spoiled: None,
            waker: None,
        });
        Submission { token, lun: self.peer.lun.0, cdb, data_out, data_in, attribute: effect.attribute() }
    }

    /// Tells the driver that there is work; gives its waker if it sleeps.
    pub(crate) fn rouse(&mut self) -> Option<Waker> {
        self.driver.rouse()
    }

    /// Takes note of the state of access, and has a new one told. An inactive port is asked again and again what has
    /// become of it; of a port that was inactive and is active now the shape was not known.
    pub(crate) fn note_access(&mut self, access: AccessState) {
        let before = self.peer.access.replace(access);
        if before != Some(access) {
            self.deferred.stale.shape |=
                access.is_active() && before.is_some_and(|before| !before.is_active());
            self.deferred.stale.access |= !access.is_active();
            self.deferred.events.push(SessionEvent::Access(access));
        }
    }

    fn forget(&mut self, token: u64) -> Option<AwaitedCommand> {
        let mut entry = self.slots.remove(token)?;
        // A loss that a flush was to report to a caller that is gone, the next one reports. Of a loss the listener has
        // heard, where there is one.
        let is_heard = |error: &BlockError| {
            self.cache.listener.is_some() && matches!(error, BlockError::UnflushedLost { .. })
        };
        if let Some(error) = entry.spoiled.take().filter(|error| !is_heard(error)) {
            self.cache.unreported.get_or_insert(error);
        }
        Some(entry)
    }

    fn answer(&mut self, token: u64, outcome: Outcome) {
        if self.proof.is_question(token) {
            return self.proof_answered(&outcome);
        }
        self.deferred.wakes.extend(self.slots.answer(token, outcome));
    }

    fn fail(&mut self, token: u64, error: BlockError) {
        self.traffic.errors += 1;
        self.answer(token, Outcome::Failed(error));
    }

    fn send(&mut self, submission: Submission) -> Result<(), Submission> {
        let token = submission.token;
        let now = self.proof.clock();
        let is_staying = self.connection.as_ref().is_some_and(LiveConnection::is_staying);
        if !is_staying || self.holds(token) {
            return Err(submission);
        }
        if let (Some(now), Some(entry)) = (now, self.slots.get_mut(token))
            && self.proof.is_lacking(entry.effect, now)
        {
            self.ask_for_proof(false);
            return Err(submission);
        }
        let Some(connection) = &mut self.connection else { return Err(submission) };
        connection.core.submit(submission)?;
        if let Some(entry) = self.slots.get_mut(token) {
            entry.stage = Stage::Sent;
            entry.was_sent = true;
            entry.sent_at = now;
        }
        Ok(())
    }

    /// Hands to the core what waits, in order, as far as the window goes.
    pub(crate) fn drain_queue(&mut self) {
        if self.holds_back() {
            return self.drain_questions();
        }
        while let Some(submission) = self.waiting.queue.pop_front() {
            match self.slots.get_mut(submission.token) {
                Some(AwaitedCommand { stage: Stage::Queued, .. }) => {}
                // Forgotten, or answered by the clock.
                _ => continue,
            }
            if let Err(submission) = self.send(submission) {
                self.waiting.queue.push_front(submission);
                return;
            }
        }
    }

    /// Returns `true` if it was asked to log out and end, and has not ended.
    pub(crate) fn is_closing(&self) -> bool {
        self.life.is_closing()
    }

    /// Returns `true` if nothing is asked of the unit over a session that is up, and the unit owes no answer to what
    /// was given up. A port that is not active is asked for its state anyway.
    pub(crate) fn is_idle(&self) -> bool {
        let is_idle =
            |connection: &LiveConnection| connection.core.unanswered() == 0 && connection.is_staying();
        self.connection.as_ref().is_some_and(is_idle)
            && !self.life.is_closing()
            && !self.life.has_ended()
            && self.slots.unanswered() == 0
            && !self.doubt.is_there()
            && self.peer.access.is_none_or(AccessState::is_active)
    }

    /// Takes note of what happened to the path, to explain why an operation failed.
    pub(crate) fn note_event(&mut self, event: String) {
        self.last_event = Some(event);
    }

    /// Returns the session's sample as a path of that name.
    pub(crate) fn path(&self, name: String) -> PathSample {
        let Traffic { read_ios, read_bytes, write_ios, write_bytes, errors } = self.traffic;
        let state = match (&self.connection, &self.life) {
            (_, Life::Closing(_) | Life::Ended(_)) => PathState::Closed,
            (Some(_), _) => PathState::Up,
            (None, _) => PathState::Down,
        };
        let connection = self.connection.as_ref();
        let round_trip = connection.and_then(LiveConnection::ask_kernel).and_then(|kernel| kernel.round_trip);
        let ping = connection.and_then(|connection| connection.pings.last());
        let last_event = self.last_event.clone();
        PathSample {
            name,
            state,
            read_ios,
            read_bytes,
            write_ios,
            write_bytes,
            errors,
            round_trip,
            ping,
            last_event,
        }
    }

    /// Sets the listener that has the unflushed writes and can write them again when they may be lost.
    pub(crate) fn set_cache_listener(&mut self, listener: CacheCallback) {
        self.cache.listener = Some(listener);
    }

    /// The unit's write cache was switched.
    pub(crate) fn set_volatile(&mut self, volatile: bool) {
        self.cache.volatile = volatile;
    }
}

/// The portal group that a connection reached, as its login said.
pub(crate) fn portal_group_of(core: &InitiatorConnection) -> Option<u16> {
    core.logged_in().and_then(|logged_in| logged_in.target_portal_group_tag)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use lunway_block::{Buf, Fate, SharedBuf};
    use lunway_iscsi::Cdb;
    use lunway_iscsi::initiator::InitiatorConnectionConfig;
    use lunway_iscsi::login::InitiatorLoginConfig;
    use lunway_iscsi::negotiation::Parameters;
    use lunway_scsi::AdditionalSense;

    /// A session whose login never ends: what enters waits in the queue.
    fn waiting(options: &SessionOptions) -> SessionState {
        let login = InitiatorLoginConfig {
            initiator_name: "iqn.2026-11.com.example:test".to_owned(),
            initiator_alias: None,
            target_name: None,
            isid: [0; 6],
            tsih: 0,
            cid: 0,
            parameters: Parameters::default(),
            chap: None,
        };
        let config = InitiatorConnectionConfig {
            login,
            login_timeout: Duration::from_secs(60),
            nop_interval: Duration::ZERO,
            nop_timeout: Duration::ZERO,
        };
        let core = InitiatorConnection::new(config, Instant::now());
        SessionState::new(core, String::new(), Lun::new(0), true, options)
    }

    fn command(effect: Effect) -> Command {
        Command { cdb: Cdb::new(&[0]), data_out: SharedBuf::default(), data_in: Buf::empty(), effect }
    }

    /// Callers moved the clock, and the driver, which saw it moved already, never looked for what was late.
    #[test]
    fn a_late_command_is_noticed_while_others_keep_coming() {
        let options =
            SessionOptions { command_timeout: Duration::from_millis(16), ..SessionOptions::default() };
        let mut state = waiting(&options);
        let late = state.enter(command(Effect::Query)).unwrap();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            state.driver = DriverSleep::Asleep(Waker::noop().clone());
            state.enter(command(Effect::Query)).unwrap();
            state.pass_time(Instant::now()).unwrap();
        }
        assert!(state.slots.get_mut(late).unwrap().is_answered());
    }

    /// A unit that hangs answers neither a barrier nor its abort, over a session that is well.
    #[test]
    fn a_barrier_and_its_abort_without_an_answer_are_no_end_of_the_session() {
        for (effect, ends) in [(Effect::Barrier, false), (Effect::Look, false), (Effect::Query, true)] {
            let mut state = waiting(&SessionOptions::default());
            let late = state.enter(command(effect)).unwrap();
            let tick = state.clock.tick;
            state.slots.get_mut(late).unwrap().stage = Stage::Aborting { since: tick };
            let past_abort = Instant::now() + Duration::from_secs(20);
            assert_eq!(state.pass_time(past_abort).is_err(), ends, "{effect:?}");
            assert_eq!(state.slots.get_mut(late).unwrap().is_answered(), !ends);
        }
    }

    #[test]
    fn a_spoiled_flush_that_nobody_hears_leaves_its_error_to_the_next() {
        let mut state = waiting(&SessionOptions::default());
        state.cache.written = 1;
        let flush = state.enter(command(Effect::Flush)).unwrap();
        state.attention(AdditionalSense::POWER_ON_OCCURRED);
        assert_eq!(state.cache.unreported, None, "the flush that waits has it");
        state.forget(flush);
        assert!(state.enter(command(Effect::Flush)).is_err());
        assert!(state.enter(command(Effect::Flush)).is_ok(), "reported once");
    }

    #[test]
    fn a_cache_that_holds_nothing_loses_nothing() {
        for (volatile, written, flushed) in [(true, 5, 5), (false, 5, 0)] {
            let mut state = waiting(&SessionOptions::default());
            (state.cache.volatile, state.cache.written, state.cache.flushed) = (volatile, written, flushed);
            state.attention(AdditionalSense::POWER_ON_OCCURRED);
            assert_eq!(state.cache.unreported, None);
        }
    }

    #[test]
    fn giving_up_tells_what_is_known_of_each() {
        let mut state = waiting(&SessionOptions::default());
        let [sent, unsent] = [(); 2].map(|()| state.enter(command(Effect::Query)).unwrap());
        state.slots.get_mut(sent).unwrap().was_sent = true;
        let gone = BlockError::gone("gone");
        state.give_up(&gone, Duration::from_secs(30));
        let mut outcome = |token| match state.slots.remove(token).unwrap().stage {
            Stage::Answered(Outcome::Failed(error)) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(outcome(sent), BlockError::Timeout { millis: 30_000, fate: Fate::Unknown });
        assert_eq!(outcome(unsent), gone);
        assert_eq!(state.enter(command(Effect::Query)), Err(gone), "refused at once");
    }
}

//! The task that moves a device's bytes.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use lunway_block::duration::HumanTime;
use lunway_iscsi::initiator::{AsyncMessageInfo, InitiatorEvent};
use lunway_iscsi::pdu::AsyncEvent;
use lunway_iscsi::{CloseReason, ReceiveError};
use lunway_scsi::Sense;
use tokio::net::TcpStream;

use crate::SessionEvent;
use crate::connection::probe::Probe;
use crate::connection::silence::{Sign, Watch, black_hole};
use crate::connection::wire::{self, Alarm};
use crate::dialling::{close_in_order, keep_off_the_port};
use crate::fresh_session::log_tolerated;
use crate::recovery::Recovery;
use crate::session::{End, LiveConnection, Session, SessionState, Stale};

/// Answers that one turn hands out at least, where there are more: fewer cost more calls than they save waiting.
const ANSWERS_MIN: usize = 8;

/// Turns in vain between two times that the other tasks of the runtime run, and the kernel is asked about all sockets:
/// a read in vain takes a third of that.
const LOOKS: u32 = 4;

/// The task that moves a device's bytes: one per device, on the runtime where it was opened.
///
/// One turn sends what callers have put in, reads what has come, hands out the answers, and sends what those have made
/// room for; each direction with few vectored calls. Then the task sleeps until the socket, a caller or the clock has
/// something. While answers are due and the last activity is only microseconds ago it does not sleep but lets the
/// other tasks of the runtime run and looks again: what they submit meanwhile goes out with one call.
///
/// Of the answers that have come, a turn hands out as many as half of all commands under way: what their callers submit
/// is sent before the other half is. Handed out all at once, 32 answers to 32 commands would have both ends work in
/// turn, each asleep while the other one works, and a core takes longer to wake than they do to work.
///
/// When the connection ends, [`Recovery`] brings the next one.
pub(crate) struct Driver {
    session: Arc<Session>,
    recovery: Recovery,
    alarm: Alarm,
    spin: Spin,
    logout_timeout: Duration,
    /// Kept for its memory.
    wakes: Vec<Waker>,
}

/// Result of one turn of the loop.
struct Turn {
    /// Bytes moved in either direction.
    moved: bool,
    /// Bytes came.
    received: bool,
    /// Of what came, there is more to hand out.
    more: bool,
    /// A caller waits for an answer.
    awaited: bool,
    unsent: bool,
    deadline: Option<Instant>,
    stale: Stale,
    /// The observer is to be told something.
    news: bool,
}

impl Driver {
    pub(crate) fn new(session: Arc<Session>, recovery: Recovery) -> Self {
        let (spin, logout_timeout) = (recovery.options().spin, recovery.options().logout_timeout);
        let alarm = Alarm::new();
        Self { session, recovery, alarm, spin: Spin::new(spin), logout_timeout, wakes: Vec::new() }
    }

    /// Runs until the device is closed or gone.
    pub(crate) async fn run(mut self, mut stream: TcpStream) {
        loop {
            self.attend(&stream);
            let mut breach = None;
            let (why, settled) = match self.serve(&stream).await {
                End::Closed { settled } => {
                    if settled {
                        close_in_order(&stream);
                        self.recovery.release_port();
                    }
                    self.session.lock().connection = None;
                    return self.finish("it was closed");
                }
                End::OtherDisk(why) => {
                    // The observer says it better.
                    match self.session.is_observed() {
                        true => tracing::debug!(portal = %self.recovery.portal(), "{why}"),
                        false => tracing::error!(portal = %self.recovery.portal(), "{why}"),
                    }
                    // What is on its way is cut off, as far as it has not arrived.
                    drop(stream);
                    return self.finish(&why);
                }
                End::LoggedOut(why) => (why, true),
                End::Lost(why) => (why, false),
                End::Breach(why) => {
                    self.session.lock().blame(&why);
                    (format!("the target broke the protocol: {}", breach.insert(why)), false)
                }
            };
            let carried_out = self.session.lock().connection.as_ref().is_some_and(|last| last.carried_out);
            if let Err(why) = self.recovery.note_end(breach.as_deref(), carried_out) {
                // The observer says it better.
                match self.session.is_observed() {
                    true => tracing::debug!("{why}"),
                    false => tracing::error!("{why}"),
                }
                drop(stream);
                return self.finish(&why);
            }
            // The observer says it better.
            match self.session.is_observed() {
                true => tracing::debug!(portal = %self.recovery.portal(), %why, "connection lost"),
                false => tracing::warn!(portal = %self.recovery.portal(), %why, "connection lost"),
            }
            if settled {
                close_in_order(&stream);
            } else if self.session.is_port_down() {
                keep_off_the_port(&stream);
            }
            drop(stream);
            // The other handle of the socket: before anybody is told, as the time of the loss counts from then.
            self.drop_probe();
            let epoch = self.session.epoch();
            self.session.tell(SessionEvent::Lost { epoch, why: why.clone() });
            self.session.change(|state| state.disconnect(&why));
            if settled {
                self.session.tell(SessionEvent::Settled { epoch });
            }
            match self.recovery.run(&self.session, why, settled).await {
                Ok(next) => stream = next,
                Err(why) => return self.finish(&why),
            }
        }
    }

    /// Gets ready for a connection.
    fn attend(&self, stream: &TcpStream) {
        let silence = self.recovery.options().silence;
        if let Some(connection) = &mut self.session.lock().connection {
            connection.probe = Probe::of(stream).ok();
            connection.watch = silence.map(|silence| Watch::new(silence, Instant::now()));
        }
    }

    /// Drops the other handle of the connection's socket. Says whether there is a connection.
    fn drop_probe(&self) -> bool {
        let mut state = self.session.lock();
        let connection = state.connection.as_mut();
        connection.is_some_and(|connection| {
            connection.probe = None;
            true
        })
    }

    /// Uses one connection until it ends.
    async fn serve(&mut self, stream: &TcpStream) -> End {
        let mut active = Instant::now();
        let (mut watching, mut looks) = (false, 0);
        loop {
            let now = Instant::now();
            let turn = self.turn(stream, now, watching);
            // Outside of the lock, as those who are told or woken will take it; an answer is explained before it is
            // given.
            if !matches!(turn, Ok(Turn { news: false, .. })) {
                self.session.tell_news();
            }
            self.wakes.drain(..).for_each(Waker::wake);
            let turn = match turn {
                Ok(turn) => turn,
                Err(end) => return end,
            };
            if turn.stale.shape {
                self.recovery.refresh(&self.session);
            }
            if turn.stale.access {
                self.recovery.refresh_access(&self.session);
            }
            if turn.received {
                self.spin.found();
            }
            if turn.moved {
                active = now;
            }
            watching = turn.awaited && self.spin.is_worth(now - active);
            looks = if turn.moved { 0 } else { looks + 1 };
            if turn.more || watching && looks % LOOKS == 0 {
                tokio::task::yield_now().await;
            } else if !watching {
                self.sleep(stream, &turn).await;
            }
        }
    }

    fn turn(&mut self, stream: &TcpStream, now: Instant, watching: bool) -> Result<Turn, End> {
        let mut state = self.session.lock();
        let result = state.turn(stream, now, watching, self.logout_timeout);
        mem::swap(&mut state.deferred.wakes, &mut self.wakes);
        result
    }

    /// Sleeps until there is something to do.
    async fn sleep(&mut self, stream: &TcpStream, turn: &Turn) {
        let Self { session, alarm, .. } = self;
        poll_fn(|cx| {
            if !session.lock().driver.sleep(cx.waker()) {
                return Poll::Ready(());
            }
            wire::poll_wait(cx, stream, turn.unsent, alarm, turn.deadline)
        })
        .await;
        // Awake: no caller needs to rouse us before the next sleep.
        session.lock().driver.wake_up();
    }

    fn finish(&mut self, why: &str) {
        // The runtime ends in the middle of things.
        if self.drop_probe() {
            self.session.tell(SessionEvent::Lost { epoch: self.session.epoch(), why: why.to_owned() });
        }
        self.session.change(|state| state.end(why));
        self.session.tell(SessionEvent::Closed { why: why.to_owned() });
        self.session.ended.notify_waiters();
    }
}

impl Drop for Driver {
    /// The runtime may end before the device does: then no caller may wait for an answer that never comes.
    fn drop(&mut self) {
        if !self.session.lock().life.has_ended() {
            self.finish("the runtime that it was opened on has ended");
        }
    }
}

impl SessionState {
    fn turn(
        &mut self,
        stream: &TcpStream,
        now: Instant,
        watching: bool,
        logout_timeout: Duration,
    ) -> Result<Turn, End> {
        self.driver.look();
        if let Some(why) = self.doubt.take_verdict() {
            return Err(End::OtherDisk(why));
        }
        let gone = || End::Lost("there is none".to_owned());
        let ended = |error: std::io::Error| End::Lost(error.to_string());
        let LiveConnection { core, severed, .. } = self.connection.as_mut().ok_or_else(gone)?;
        if let Some(why) = severed.take() {
            return Err(End::Lost(why));
        }
        let mut moved = wire::send(stream, core).map_err(ended)?;
        let received = match core.has_event() {
            true => Ok(true),
            false => wire::receive(stream, core, watching),
        };
        if core.next_timeout().is_some_and(|at| at <= now) {
            core.handle_timeout(now);
        }
        // What came before an error counts.
        let most = match received.is_ok() {
            true => (self.slots.unanswered() / 2).max(ANSWERS_MIN),
            false => usize::MAX,
        };
        for _ in 0..most {
            let event = self.connection.as_mut().and_then(|connection| connection.core.poll_event());
            let Some(event) = event else { break };
            self.happened(event, now)?;
        }
        let received = received.map_err(ended)?;
        moved |= received;
        let asks = self.keep_watch(received, now)?;
        self.pass_time(now)?;
        self.drain_queue();
        if self.is_leaving() {
            self.log_out_when_due(now, logout_timeout);
        }
        let logout_deadline = self.connection.as_ref().and_then(LiveConnection::logout_deadline);
        if logout_deadline.is_some_and(|by| by <= now) {
            return Err(if self.is_closing() {
                End::Closed { settled: false }
            } else {
                End::Lost(format!("no answer to the logout within {}", HumanTime(logout_timeout)))
            });
        }
        let connection = self.connection.as_mut().ok_or_else(gone)?;
        moved |= wire::send(stream, &mut connection.core).map_err(ended)?;
        let (unsent, core_deadline) = (connection.core.unsent() > 0, connection.core.next_timeout());
        let more = connection.core.has_event();
        if asks {
            let kernel = connection.ask_kernel();
            if let Some(watch) = &mut connection.watch {
                watch.asked(kernel, now);
            }
        }
        connection.pings.note(connection.core.unanswered_ping(), now);
        let look = connection.watch.as_ref().and_then(Watch::next);
        let deadlines = [core_deadline, self.next_time(), logout_deadline, look];
        Ok(Turn {
            moved,
            received,
            more,
            awaited: self.slots.unanswered() > 0,
            unsent,
            deadline: deadlines.into_iter().flatten().min(),
            stale: mem::take(&mut self.deferred.stale),
            news: !self.deferred.events.is_empty(),
        })
    }

    /// Notices when the peer is dead. Says whether the target was just asked.
    fn keep_watch(&mut self, heard: bool, now: Instant) -> Result<bool, End> {
        let Some(LiveConnection { core, probe, watch: Some(watch), .. }) = &mut self.connection else {
            return Ok(false);
        };
        let due = self.slots.unanswered() > 0 || core.awaits_ping();
        let mut sign = watch.note(heard, due, now);
        if sign == Sign::None && watch.is_time(now) {
            sign = watch.look(probe.as_ref().and_then(Probe::ask), now);
        }
        match sign {
            Sign::None => {}
            Sign::Heard => self.deferred.events.push(SessionEvent::Heard),
            Sign::Silent => {
                self.deferred.events.push(SessionEvent::Silent);
                core.ping();
                return Ok(true);
            }
            Sign::Dead(time) => return Err(End::Lost(black_hole(time))),
        }
        Ok(false)
    }

    fn happened(&mut self, event: InitiatorEvent, now: Instant) -> Result<(), End> {
        match event {
            InitiatorEvent::Completed(done) => self.completed(done, now),
            InitiatorEvent::Rejected { token, reason, data_in } => {
                self.rejected(token, reason, data_in, now)?;
            }
            InitiatorEvent::TaskManagementDone { token, response } => self.task_managed(token, response)?,
            InitiatorEvent::AsyncMessage(message) => self.told(&message, now)?,
            InitiatorEvent::Closing(CloseReason::LoggedOut) => return Err(self.logged_out()),
            InitiatorEvent::Closing(CloseReason::Protocol(why)) => return Err(End::Breach(why)),
            InitiatorEvent::Closing(CloseReason::Receive(
                error @ ReceiveError::DataSegmentTooLong { .. },
            )) => {
                return Err(End::Breach(error.to_string()));
            }
            InitiatorEvent::Closing(reason) => return Err(End::Lost(reason.to_string())),
            InitiatorEvent::Tolerated(what) => {
                if let Some(connection) = &self.connection {
                    log_tolerated(&connection.core, &what);
                }
            }
            InitiatorEvent::LoggedIn(_) | InitiatorEvent::Targets(_) => {}
        }
        Ok(())
    }

    /// The logout was answered. Where every command had ended before, nothing of the session is left. Otherwise the
    /// target has ended them (RFC 7143 §11.14), or says so while its store still carries them out: that is a loss like
    /// any other, and is settled like one.
    fn logged_out(&self) -> End {
        let settled = self.connection.as_ref().is_none_or(|connection| connection.core.unanswered() == 0);
        match (self.is_closing(), settled) {
            (true, settled) => End::Closed { settled },
            (false, true) => End::LoggedOut("the target asked us to log out".to_owned()),
            (false, false) => End::Lost(
                "the target asked us to log out, and commands were under way at the logout".to_owned(),
            ),
        }
    }

    /// RFC 7143 §11.9.1.
    fn told(&mut self, message: &AsyncMessageInfo, now: Instant) -> Result<(), End> {
        let [_, _, parameter3] = message.parameters;
        match message.event {
            AsyncEvent::SCSI => {
                if let Some(sense) = Sense::parse(&message.sense) {
                    self.attention(sense.code);
                }
            }
            // RFC 7143 [11.9.1-2, 11.9.1-3]
            AsyncEvent::LOGOUT_REQUEST => {
                self.leave_within(Duration::from_secs(u64::from(parameter3)), now);
            }
            // RFC 7143 [7.1.4.3-3]
            AsyncEvent::CONNECTION_DROP | AsyncEvent::SESSION_DROP => {
                return Err(End::Lost(message.event.to_string()));
            }
            other => tracing::info!(event = %other, "asynchronous message"),
        }
        Ok(())
    }
}

/// Adaptive spinning: decides whether watching the socket instead of sleeping pays. It does where answers come within
/// the limit, and wastes a core where they do not, the more so where the target waits for that very core. So it is
/// measured: only watching shows its benefit.
struct Spin {
    limit: Duration,
    watching: bool,
    /// Rises with each answer that was seen by watching, falls with each watch in vain.
    credit: u32,
    /// Sleeps since the credit was used up.
    skipped: u32,
}

impl Spin {
    const CREDIT_MAX: u32 = 16;
    /// Cost of a watch in vain: watching must succeed four times out of five.
    const PRICE: u32 = 4;
    /// Number of sleeps until watching is tried again.
    const RETRY_AFTER: u32 = 64;

    fn new(limit: Duration) -> Self {
        let credit = if limit.is_zero() { 0 } else { Self::CREDIT_MAX };
        Self { limit, watching: false, credit, skipped: 0 }
    }

    /// Something came.
    fn found(&mut self) {
        if mem::take(&mut self.watching) {
            self.credit = (self.credit + 1).min(Self::CREDIT_MAX);
        }
    }

    /// Tells whether to watch now, that long after the last activity.
    fn is_worth(&mut self, idle: Duration) -> bool {
        if idle > self.limit {
            if mem::take(&mut self.watching) {
                self.credit = self.credit.saturating_sub(Self::PRICE);
            }
            return false;
        }
        if self.credit == 0 {
            self.skipped += 1;
            if self.skipped >= Self::RETRY_AFTER {
                (self.skipped, self.credit) = (0, 1);
            }
            return false;
        }
        self.watching = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_in_vain_stops_and_is_tried_again_later() {
        let mut spin = Spin::new(Duration::from_micros(30));
        let long = Duration::from_millis(1);
        for _ in 0..Spin::CREDIT_MAX / Spin::PRICE {
            assert!(spin.is_worth(Duration::ZERO));
            assert!(!spin.is_worth(long), "over");
        }
        assert!(!spin.is_worth(Duration::ZERO), "used up");
        spin.found();
        assert!(!spin.is_worth(Duration::ZERO), "what came to a sleeper is no merit of watching");
        let waits = (0..).take_while(|_| !spin.is_worth(Duration::ZERO)).count();
        assert!((1..=Spin::RETRY_AFTER as usize).contains(&waits));
        for _ in 0..Spin::CREDIT_MAX {
            spin.found();
            assert!(spin.is_worth(Duration::ZERO), "answers in time restore it");
        }
    }
}

//! The initiator's end of a connection.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`InitiatorConnection`], bytes to PDUs, numbering, timers |
//! | `command.rs` | SCSI Command, Data-Out, R2T, Data-In, SCSI Response |
//! | `solicited.rs` | which R2Ts of a command are answered |
//! | `status.rs` | StatSN: which answers are missing |
//! | `control.rs` | login, NOP, SendTargets, logout, task management, asynchronous messages, Reject |

mod command;
mod control;
mod solicited;
mod status;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use lunway_block::{Buf, SharedBuf};

use crate::connection::{Cdb, CloseReason, TargetRecord};
use crate::liveness::{Check, Liveness};
use crate::login::{InitiatorLogin, InitiatorLoginConfig, LoggedIn};
use crate::negotiation::Negotiated;
use crate::pdu::{
    AsyncEvent, BasicHeader, Opcode, RejectReason, ServiceResponse, TaskAttribute, TaskManagementResult,
};
use crate::receive::{Data, Head, Receiver};
use crate::serial::Serial;
use crate::transmit::Transmitter;

use command::Task;
use status::StatusNumbers;

/// Configuration of a connection.
#[derive(Clone, Debug)]
pub struct InitiatorConnectionConfig {
    /// Names, authentication, parameters.
    pub login: InitiatorLoginConfig,
    /// From the connection to full feature phase.
    pub login_timeout: Duration,
    /// Silence after which the target is pinged; zero: never.
    pub nop_interval: Duration,
    /// Time limit for its answer.
    pub nop_timeout: Duration,
}

/// A command on its way to the target.
#[derive(Debug)]
pub struct Submission {
    /// The caller's name for it, given back with the answer; unique among those unanswered.
    pub token: u64,
    /// Logical unit number (SAM-5 §4.7).
    pub lun: [u8; 8],
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Data to write; empty for none.
    pub data_out: SharedBuf,
    /// Buffer for read data; its length is the Expected Data Transfer Length. Empty for none.
    pub data_in: Buf,
    /// Simple, ordered and so on.
    pub attribute: TaskAttribute,
}

/// Residual count: bytes expected and not transferred, or not expected (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// As expected.
    None,
    /// So many bytes less than expected.
    Under(u32),
    /// So many bytes more would have been there.
    Over(u32),
    /// Both at once, which cannot be.
    Contradictory,
}

/// The answer to a command.
#[derive(Debug)]
pub struct Completed {
    /// The submission's.
    pub token: u64,
    /// Service response: whether the target executed it at all.
    pub response: ServiceResponse,
    /// SCSI status.
    pub status: u8,
    /// Sense data; empty for none.
    pub sense: Vec<u8>,
    /// The submission's buffer.
    pub data_in: Buf,
    /// Bytes of it that were received.
    pub data_in_len: usize,
    /// Bytes of `data_out` that were sent: what was immediate, unsolicited, or asked for by R2Ts.
    pub data_out_len: usize,
    /// Residual count of the transfer.
    pub residual: Residual,
}

/// An asynchronous message of the target (RFC 7143 §11.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncMessageInfo {
    /// Event that it reports.
    pub event: AsyncEvent,
    /// Parameter1 to Parameter3; their meaning depends on the event.
    pub parameters: [u16; 3],
    /// The logical unit, for events that are about one.
    pub lun: [u8; 8],
    /// Sense data of a SCSI event.
    pub sense: Vec<u8>,
}

/// Event of a connection.
#[derive(Debug)]
pub enum InitiatorEvent {
    /// Commands can be submitted.
    LoggedIn(Box<LoggedIn>),
    /// A command has its answer.
    Completed(Completed),
    /// The target has rejected a command (RFC 7143 §11.17): it was not carried out, and may be submitted again.
    Rejected {
        /// The submission's.
        token: u64,
        /// Reason.
        reason: RejectReason,
        /// The submission's buffer.
        data_in: Buf,
    },
    /// A task management request has its answer. If it aborted a command, that command will not be answered any more.
    /// Where the target does not know a command that has no answer, the answer was lost: [`Closing`](Self::Closing)
    /// follows.
    TaskManagementDone {
        /// The request's.
        token: u64,
        /// Result of the request.
        response: TaskManagementResult,
    },
    /// The answer to `send_targets`.
    Targets(Vec<TargetRecord>),
    /// The target has something to say.
    AsyncMessage(AsyncMessageInfo),
    /// The target did something that the standard forbids and that does no harm, for people: what was expected and what
    /// came. Each kind is told once a connection.
    Tolerated(String),
    /// The end. Send what is still queued, then close the socket. No event comes after it.
    Closing(CloseReason),
}

enum Phase {
    Login(Box<InitiatorLogin>),
    FullFeature(Box<LoggedIn>),
    Closing,
}

/// Initiator's side of a connection: a session of its own, as MaxConnections=1 is what it offers.
///
/// Owns everything between commands and the byte stream: login, numbering, the command window, immediate, unsolicited
/// and solicited write data, placing of read data, digests, pings. Knows no socket, no clock, and no meaning of a CDB.
///
/// # Order of calls
///
/// As [`TargetConnection`](crate::target::TargetConnection): bytes in, events, bytes out, timeouts. The first Login
/// Request is queued from the start. Commands are taken by [`submit`](Self::submit) in full feature phase while the
/// target's window is open. After [`InitiatorEvent::Closing`],
/// [`take_unanswered`](Self::take_unanswered) gives back what was not answered.
// RFC 7143 [4.2.1-1, 4.2.5.1-1]
pub struct InitiatorConnection {
    phase: Phase,
    receiver: Receiver,
    transmitter: Transmitter,
    /// The PDU whose data segment is arriving, and the task it goes to where it goes straight into its buffer.
    arriving: Option<(Head, Option<usize>)>,
    events: VecDeque<InitiatorEvent>,
    cmd_sn: Serial,
    max_cmd_sn: Serial,
    status_numbers: StatusNumbers,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    generation: u16,
    control: control::Control,
    login_by: Instant,
    liveness: Liveness,
    /// The command whose PDU broke the protocol.
    blamed: Option<u64>,
}

impl InitiatorConnection {
    /// A connection that was just made.
    pub fn new(config: InitiatorConnectionConfig, now: Instant) -> Self {
        let data_max = config.login.parameters.max_recv_data_segment_length as usize;
        let mut login = InitiatorLogin::new(config.login);
        let first = login.first();
        let mut connection = Self {
            phase: Phase::Login(Box::new(login)),
            receiver: Receiver::new(data_max),
            transmitter: Transmitter::new(),
            arriving: None,
            events: VecDeque::new(),
            cmd_sn: Serial(1),
            max_cmd_sn: Serial(1),
            status_numbers: StatusNumbers::default(),
            tasks: Vec::new(),
            free: Vec::new(),
            generation: 0,
            control: control::Control::default(),
            login_by: now + config.login_timeout,
            liveness: Liveness::new(config.nop_interval, config.nop_timeout, now),
            blamed: None,
        };
        connection.send_login(first);
        connection
    }

    /// Returns the space for the next bytes from the socket, in order; the first slice is never empty.
    pub fn receive_space(&mut self) -> [IoSliceMut<'_>; 2] {
        self.receiver.space()
    }

    /// Announces that `bytes` have been put into [`receive_space`](Self::receive_space).
    pub fn received(&mut self, bytes: usize) {
        self.receiver.received(bytes);
        self.liveness.heard();
        self.take_pdus();
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        self.events.pop_front()
    }

    /// Returns `true` if [`poll_event`](Self::poll_event) has one.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Appends slices of what must be sent next, as long as there are less than `max` in all.
    pub fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>, max: usize) {
        self.transmitter.gather(slices, max, usize::MAX);
    }

    /// Announces that the socket took `bytes` of what [`gather`](Self::gather) gave.
    pub fn sent(&mut self, bytes: usize) {
        self.transmitter.sent(bytes);
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.transmitter.unsent()
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout).
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closing => None,
            Phase::Login(_) => Some(self.login_by),
            Phase::FullFeature(_) => self.liveness.next_check(),
        }
    }

    /// Does what is due: ends a login that takes too long, pings, misses answers to pings.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Login(_) if now >= self.login_by => self.close(CloseReason::LoginTimeout),
            Phase::Login(_) | Phase::Closing => {}
            Phase::FullFeature(_) => match self.liveness.check(now) {
                Check::Fine => {}
                Check::Ping => self.ping(),
                Check::Gone => self.close(CloseReason::PingTimeout),
            },
        }
    }

    /// Returns `true` if the target was pinged for its silence and nothing has come since.
    pub fn awaits_ping(&self) -> bool {
        matches!(self.phase, Phase::FullFeature(_)) && self.liveness.awaits()
    }

    /// Number of the ping that is out and not answered: another one for each.
    pub fn unanswered_ping(&self) -> Option<u32> {
        self.control.ping.map(|ping| ping.tag)
    }

    /// Parameters that were agreed on, once logged in.
    pub fn logged_in(&self) -> Option<&LoggedIn> {
        match &self.phase {
            Phase::FullFeature(logged_in) => Some(logged_in),
            _ => None,
        }
    }

    /// The target that the session is with, or is to be with; `None`: a discovery session, or the connection has ended.
    pub fn target_name(&self) -> Option<&str> {
        match &self.phase {
            Phase::Login(login) => login.target_name(),
            Phase::FullFeature(logged_in) => logged_in.target_name.as_deref(),
            Phase::Closing => None,
        }
    }

    fn negotiated(&self) -> Option<&Negotiated> {
        self.logged_in().map(|logged_in| &logged_in.negotiated)
    }

    fn take_pdus(&mut self) {
        while !matches!(self.phase, Phase::Closing) {
            if let Some((head, placed)) = self.arriving.take() {
                let Some(data) = self.receiver.poll_data() else {
                    self.arriving = Some((head, placed));
                    return;
                };
                match placed {
                    Some(slot) => self.data_in_placed(&head, slot, data),
                    None => self.take_pdu(&head, Some(data)),
                }
                continue;
            }
            match self.receiver.next_head() {
                Err(error) => return self.close(error.into()),
                Ok(None) => return,
                Ok(Some(head)) if head.data_len == 0 => self.take_pdu(&head, None),
                Ok(Some(head)) => {
                    let (buf, at, placed) = self.destination(&head);
                    self.receiver.receive_data(buf, at, head.data_len);
                    self.arriving = Some((head, placed));
                }
            }
        }
    }

    /// Returns the destination of the data segment of `head`: a task's buffer, or one of its own.
    fn destination(&mut self, head: &Head) -> (Buf, usize, Option<usize>) {
        if BasicHeader::of(&head.bhs).opcode.opcode() == Opcode::DATA_IN
            && let Some((slot, buf, at)) = self.place_data_in(head)
        {
            return (buf, at, Some(slot));
        }
        (Buf::for_overwrite(head.data_len), 0, None)
    }

    fn take_pdu(&mut self, head: &Head, data: Option<Data>) {
        if data.as_ref().is_some_and(|data| !data.intact) {
            // RFC 7143 [7.8-5, 7.8-6, 7.8-7]
            // Error recovery level 0: what was lost can only be had again in a new session (RFC 7143 §7.8).
            return self.close(CloseReason::Protocol("a data digest does not match".into()));
        }
        let data = data.map_or_else(Buf::empty, |data| data.buf);
        let opcode = BasicHeader::of(&head.bhs).opcode.opcode();
        match (&self.phase, opcode) {
            (Phase::Login(_), Opcode::LOGIN_RESPONSE) => self.login_response(head, &data),
            (Phase::FullFeature(_), Opcode::SCSI_RESPONSE) => self.scsi_response(head, &data),
            (Phase::FullFeature(_), Opcode::DATA_IN) => self.data_in(head),
            (Phase::FullFeature(_), Opcode::R2T) => self.ready_to_transfer(head),
            (Phase::FullFeature(_), Opcode::NOP_IN) => self.nop_in(head),
            (Phase::FullFeature(_), Opcode::TASK_MANAGEMENT_RESPONSE) => self.task_management_response(head),
            (Phase::FullFeature(_), Opcode::TEXT_RESPONSE) => self.text_response(head, &data),
            (Phase::FullFeature(_), Opcode::LOGOUT_RESPONSE) => self.logout_response(head),
            (Phase::FullFeature(_), Opcode::ASYNC_MESSAGE) => self.async_message(head, &data),
            (_, Opcode::REJECT) => self.rejected(head, &data),
            // RFC 7143 [4.2.4-5, 7.7-2, 11.2.1.2-1]
            _ => self.close(CloseReason::Protocol(format!("{opcode} is not expected now"))),
        }
    }

    /// Takes note of the numbers that every PDU from the target carries (RFC 7143 §4.2.2).
    fn note_window(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        // RFC 7143 [4.2.2.1-11, 4.2.2.1-8]
        // §4.2.2.1: a MaxCmdSN below ExpCmdSN − 1 makes both void; one that goes back is old.
        if Serial(exp_cmd_sn.wrapping_sub(1)) <= Serial(max_cmd_sn) && self.max_cmd_sn < Serial(max_cmd_sn) {
            self.max_cmd_sn = Serial(max_cmd_sn);
        }
    }

    /// Takes note of a status number, in PDUs that consume one. Says whether the connection goes on: after a gap the
    /// PDU does not count either, as bytes are missing before it.
    // RFC 7143 [4.2.2.2-2]
    #[must_use]
    fn note_status(&mut self, stat_sn: u32) -> bool {
        let gap = self.status_numbers.take(stat_sn);
        self.check_gap(gap)
    }

    /// Takes note of the next status number, which R2Ts and the target's pings carry without consuming it. As
    /// [`note_status`](Self::note_status).
    #[must_use]
    fn note_next_status(&mut self, stat_sn: u32) -> bool {
        let gap = self.status_numbers.see(stat_sn);
        self.check_gap(gap)
    }

    fn check_gap(&mut self, gap: Option<String>) -> bool {
        // RFC 7143 [4.2.2.2-1, 7.9-3]
        // Error recovery level 0: the answer can only be had by sending the command again in a new session.
        let goes_on = gap.is_none();
        if let Some(gap) = gap {
            self.close(CloseReason::Missing(gap));
        }
        goes_on
    }

    /// After the end by [`CloseReason::Protocol`]: the token of the command whose PDU it was, where it was one's.
    pub fn blamed(&self) -> Option<u64> {
        self.blamed
    }

    fn close(&mut self, reason: CloseReason) {
        if !matches!(self.phase, Phase::Closing) {
            self.phase = Phase::Closing;
            self.arriving = None;
            self.events.push_back(InitiatorEvent::Closing(reason));
        }
    }
}

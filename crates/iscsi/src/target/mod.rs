//! The target's end of a connection.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`TargetConnection`], bytes to PDUs, command numbering, timers |
//! | `command.rs` | SCSI Command, Data-Out, R2T: until a command and its data are here |
//! | `answer.rs` | Data-In, SCSI Response, residuals, iSCSI's own sense data |
//! | `control.rs` | login, NOP, text, logout, task management, asynchronous messages, Reject |
//! | `cost.rs` | what part of a turn a PDU takes |
//! | `retained.rs` | what may be asked for again by SNACK (error recovery level 1) |
//! | `memory.rs` | what the connection occupies of its principal's memory |
//! | `order.rs` | the order of tasks over several connections |
//! | `session.rs` | what the connections of a session share: [`SharedSession`], command numbering |
//! | `task.rs` | the table of tasks |

/// Gives a PDU the next StatSN, which it consumes, and the command window as it is now.
macro_rules! number_status {
    ($connection:expr, $pdu:expr) => {
        $pdu.stat_sn = $connection.next_stat_sn().into();
        let (exp_cmd_sn, max_cmd_sn) = $connection.numbering.window();
        $pdu.exp_cmd_sn = exp_cmd_sn.into();
        $pdu.max_cmd_sn = max_cmd_sn.into();
    };
}

mod answer;
mod command;
mod control;
mod cost;
mod memory;
mod order;
mod retained;
mod session;
mod task;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use lunway_block::{Buf, SharedBuf};

use crate::connection::{Cdb, CloseReason, SendTargets};
use crate::liveness::{Check, Liveness};
use crate::login::{LoggedIn, LoginAsk, TargetLogin};
use crate::negotiation::Parameters;
use crate::pdu::{
    self, BasicHeader, Opcode, RESERVED_TAG, RejectReason, RequestHeader, ScsiCommand, TaskAttribute,
    TaskManagementFunction,
};
use crate::receive::{Data, Head, Receiver};
use crate::transmit::Transmitter;
use crate::window::{CommandWindow, Order};
use memory::Occupancy;
use retained::Retention;
use session::Numbering;

pub use answer::Completion;
pub use control::{LogoutId, TaskManagementId, TextId};
pub use session::SharedSession;
pub use task::TaskId;
use task::{AbortedTask, TaskTable};

/// MaxRecvDataSegmentLength that holds until login is over (RFC 7143 §13.12).
const LOGIN_DATA_MAX: usize = 8192;
/// Immediate commands at a time; they are outside the window. What a host needs is two or three.
// RFC 7143 [4.2.2.1-4]
const IMMEDIATE_MAX: usize = 32;
/// Task management functions at a time that wait for requests which were sent before them. As many as may be unanswered
/// ([`MANAGEMENT_MAX`](control::MANAGEMENT_MAX)): more would be rejected when their turn comes. Numbered requests need
/// no limit of their own: the window has one place for each.
const HELD_IMMEDIATE_MAX: usize = control::MANAGEMENT_MAX;

/// Configuration of a connection: the resources it may use, and the parameters it offers at login.
#[derive(Clone, Debug)]
pub struct TargetConnectionConfig {
    /// Parameters declared and offered at login.
    pub parameters: Parameters,
    /// Commands in flight in the session.
    pub command_window: u16,
    /// Most bytes collected for one command; what a command expects beyond it is not asked for.
    pub data_out_max: usize,
    /// Bytes that the data of all commands may occupy together which the target asked for, in a session: each of its
    /// connections has an equal part. One command is always let through. What comes unasked is bounded by the window
    /// and FirstBurstLength instead.
    pub data_out_budget: usize,
    /// From the connection to full feature phase.
    pub login_timeout: Duration,
    /// Silence after which the initiator is pinged; zero: never.
    pub nop_interval: Duration,
    /// Time limit for its answer.
    pub nop_timeout: Duration,
}

impl Default for TargetConnectionConfig {
    fn default() -> Self {
        Self {
            parameters: Parameters::default(),
            command_window: 128,
            data_out_max: 4 << 20,
            data_out_budget: 32 << 20,
            // RFC 7143 [10.3-1]
            login_timeout: Duration::from_secs(15),
            nop_interval: Duration::from_secs(10),
            nop_timeout: Duration::from_secs(10),
        }
    }
}

/// A SCSI command with all its data. An ORDERED one comes after all that arrived before it for its logical unit in this
/// session, and before all that arrived later, whenever their data came. Where the session has several connections, on
/// as many threads, the driver says which commands it has [begun](TargetConnection::begun).
#[derive(Debug)]
pub struct Command {
    /// To answer it with.
    pub task: TaskId,
    /// Logical unit number (SAM-5 §4.7).
    pub lun: [u8; 8],
    /// CmdSN: its place in the order of the session's commands. It comes later than that where its data had to be asked
    /// for.
    pub cmd_sn: u32,
    /// Simple, ordered and so on.
    pub attribute: TaskAttribute,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Data to write; shorter than `expected_length` only where that exceeds the configured maximum.
    pub data_out: SharedBuf,
    /// Expected Data Transfer Length of either direction, bytes.
    pub expected_length: u32,
    /// Bytes of data-in that the initiator has room for: the expected length of a read, else 0.
    pub data_in_max: u32,
}

/// Event that the driver must know of or decide on.
#[derive(Debug)]
pub enum TargetEvent {
    /// Someone wants to log in: answer with `grant_login` or `refuse_login`. Until then nothing else happens.
    Login(LoginAsk),
    /// The initiator says that it is this user, and gives a CHAP response: answer with `check_proof`, at once or later,
    /// or with `refuse_login`. Until then nothing else happens. A response that is wrong closes the connection with
    /// [`LoginStatus::AUTHENTICATION_FAILURE`](crate::pdu::LoginStatus::AUTHENTICATION_FAILURE).
    Proof {
        /// CHAP_N.
        user: String,
    },
    /// Full feature phase begins. The last Login Response is queued, not sent: an older session of the same initiator
    /// port must be closed first (session reinstatement, RFC 7143 §6.3.5).
    LoggedIn(Box<LoggedIn>),
    /// Execute this and `complete` it.
    Command(Command),
    /// Carry this out and call `respond_task_management`.
    TaskManagement {
        /// To answer it with.
        request: TaskManagementId,
        /// Function to carry out.
        function: TaskManagementFunction,
        /// The logical unit, for functions that are about one.
        lun: [u8; 8],
        /// The task, for functions that are about one.
        referenced_task_tag: u32,
    },
    /// Close another connection of the session, then call `respond_logout`.
    CloseConnection {
        /// To answer it with.
        request: LogoutId,
        /// CID of the connection.
        cid: u16,
    },
    /// Another connection of the session holds requests whose turn it is now: let it
    /// [`resume`](TargetConnection::resume).
    Wake(u16),
    /// Answer with `respond_targets`.
    SendTargets {
        /// To answer it with.
        request: TextId,
        /// Targets asked for.
        which: SendTargets,
    },
    /// The end. Send what is still queued, then close the socket. No event comes after it.
    Closing(CloseReason),
}

/// Fate of the task that ABORT TASK names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// There is no such task, or not any more.
    NotFound,
    /// Still waiting for data, or for older commands, and is gone.
    Dropped,
    /// The driver has it, perhaps aborted already. It will not be answered, but may still have its effect until the
    /// driver says otherwise by `complete`.
    Executing(TaskId),
}

/// Tasks that a task management function on a task set gave up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AbortedTasks {
    /// The driver has them: as [`Aborted::Executing`].
    pub executing: Vec<TaskId>,
    /// They were still waiting for data, or for older commands, and occupy nothing any more. The driver completes each
    /// when it knows whether they are answered ([`TargetConnection::set_answered`]).
    pub dropped: Vec<TaskId>,
}

enum Phase {
    Login(Box<TargetLogin>),
    /// Login, waiting for `grant_login`, `check_proof` or `refuse_login`.
    Asking(Box<TargetLogin>),
    FullFeature(Box<LoggedIn>),
    Closing,
}

/// A PDU that waits until all numbers before `cmd_sn` have come.
struct Held {
    cmd_sn: u32,
    /// Has no number of its own: a task management function that is about all that was sent before it.
    immediate: bool,
    head: Head,
    data: Option<Data>,
    /// Memory of its data that is counted, bytes.
    charged: usize,
    /// Its data was dropped, as there was no memory for it.
    refused: bool,
}

/// Tasks that a task management function is about: not those that were sent after it (RFC 7143 §4.2.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// All there are.
    Everything,
    /// Tasks that arrived before this request of the same connection.
    Request(TaskManagementId),
    /// Tasks with a lower CmdSN than a request of another connection.
    Number(u32),
}

/// Target's side of a connection; with MaxConnections=1 it is the session as well.
///
/// Owns everything between the byte stream and the SCSI commands: login, numbering, the collection of write data, the
/// cutting of read data, digests, pings. Knows no socket, no clock, and no meaning of a CDB.
///
/// # Order of calls
///
/// 1. Read into [`receive_space`](Self::receive_space), announce it with [`received`](Self::received).
/// 2. Take [`poll_event`](Self::poll_event) until it is `None`; answer each event, at once or later.
/// 3. Write what [`gather`](Self::gather) gives, announce it with [`sent`](Self::sent).
/// 4. At [`next_timeout`](Self::next_timeout), call [`handle_timeout`](Self::handle_timeout), then 2 and 3.
///
/// When another connection of the session asks for it, call [`resume`](Self::resume), then 2 and 3.
///
/// Several rounds of 1 and 2 may come before 3: that is what makes batches. After [`TargetEvent::Closing`] only 3 is
/// left.
///
/// A driver that cannot begin another command yet leaves it where it is ([`next_command`](Self::next_command)) and
/// takes [`poll_urgent_event`](Self::poll_urgent_event) instead, so that pings, task management and logout never wait
/// for commands. One that serves several connections gives each as many PDUs as [it may take](Self::take_up_to) in its
/// turn, as some PDUs cost as much as a command and are answered without the driver.
///
/// # Promises
///
/// Whatever the peer sends, memory stays below `data_out_budget` + window × the longer of FirstBurstLength and
/// MaxRecvDataSegmentLength + one receive buffer, not counting what is queued for sending: the driver stops reading
/// while [`unsent_memory`](Self::unsent_memory) is large. Data of aborted commands counts until the driver has
/// completed them.
///
/// With a [lease](Self::set_memory) all of that, and what the driver [takes](Self::take_memory), is counted against the
/// budget of the principal. Where that is used up, commands do not ask for their data until there is room; those that
/// bring data with them are answered with BUSY or TASK SET FULL, if the connection's reserve is used up as well; the
/// data of those that came before their predecessors is dropped, and they are answered in the same way when their turn
/// comes. What has no data, such as task management, is never refused, and the window is made smaller before it comes
/// to that.
// RFC 7143 [4.2.1-1, 4.2.5.1-1]
pub struct TargetConnection {
    config: TargetConnectionConfig,
    phase: Phase,
    receiver: Receiver,
    transmitter: Transmitter,
    /// The PDU whose data segment is arriving, and the task that it goes to where it goes straight into its buffer.
    arriving: Option<(Head, Option<TaskId>)>,
    events: VecDeque<TargetEvent>,
    stat_sn: u32,
    numbering: Numbering,
    /// Requests that arrived before their predecessors: on another connection, again after a loss, or from an initiator
    /// whose threads send in another order than they number. In the order of their numbers, so that the next one is the
    /// first.
    held: VecDeque<Held>,
    tasks: TaskTable,
    immediate_tasks: usize,
    /// ORDERED tasks that the driver does not have yet. While there is none, the order of tasks is not looked at.
    barriers: usize,
    /// Tasks that wait for the turn that an ORDERED one gives them, by arrival.
    waiting: Vec<(u64, TaskId)>,
    /// Aborted tasks that the driver has not completed yet: who aborts one again has to wait as well.
    aborted: Vec<AbortedTask>,
    /// Bytes of `data_out_budget` in use.
    reserved: usize,
    /// Tasks that wait for budget before they may ask for data, by arrival. It is given in that order: an older task
    /// must not wait for memory of younger ones, which may have to wait for it.
    unreserved: VecDeque<TaskId>,
    next_transfer_tag: u32,
    /// There is one where error recovery level 1 was agreed.
    retention: Option<Box<Retention>>,
    memory: Occupancy,
    control: control::Control,
    arrivals: u64,
    /// Cost that PDUs may have yet, see [`Self::take_up_to`].
    cost_left: usize,
    holds_back: bool,
    login_by: Instant,
    liveness: Liveness,
}

impl TargetConnection {
    /// A connection that was just accepted.
    pub fn new(config: TargetConnectionConfig, now: Instant) -> Self {
        Self {
            phase: Phase::Login(Box::new(TargetLogin::new(config.parameters.clone()))),
            receiver: Receiver::new(LOGIN_DATA_MAX),
            transmitter: Transmitter::new(),
            arriving: None,
            events: VecDeque::new(),
            stat_sn: 0,
            numbering: Numbering::Own(CommandWindow::new(0, config.command_window)),
            held: VecDeque::new(),
            tasks: TaskTable::default(),
            immediate_tasks: 0,
            barriers: 0,
            waiting: Vec::new(),
            aborted: Vec::new(),
            reserved: 0,
            unreserved: VecDeque::new(),
            next_transfer_tag: 0,
            retention: None,
            memory: Occupancy::default(),
            control: control::Control::default(),
            arrivals: 0,
            cost_left: usize::MAX,
            holds_back: false,
            login_by: now + config.login_timeout,
            liveness: Liveness::new(config.nop_interval, config.nop_timeout, now),
            config,
        }
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

    /// Takes PDUs of this cost from here on, and the one that exceeds it, of what has been received and of what will
    /// be, and then [holds back](Self::holds_back) the others until it is called again. A PDU costs 1, and one with a
    /// text more, by its length. A connection begins without such a limit.
    pub fn take_up_to(&mut self, cost: usize) {
        self.cost_left = cost;
        self.take_pdus();
    }

    /// Returns `true` if PDUs that have been received are held back: before anything else is received, they must be
    /// [taken](Self::take_up_to).
    pub fn holds_back(&self) -> bool {
        self.holds_back
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// The command that [`poll_event`](Self::poll_event) gives next, if it is one.
    pub fn next_command(&self) -> Option<&Command> {
        match self.events.front() {
            Some(TargetEvent::Command(command)) => Some(command),
            _ => None,
        }
    }

    /// Returns the next event other than a command; commands stay in their order. With a full window the search passes
    /// all of them, which costs less than a PDU does.
    pub fn poll_urgent_event(&mut self) -> Option<TargetEvent> {
        let at = self.events.iter().position(|event| !matches!(event, TargetEvent::Command(_)))?;
        self.events.remove(at)
    }

    /// Appends slices of what must be sent next, as long as there are less than `max` in all.
    pub fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>, max: usize) {
        self.gather_bytes(slices, max, usize::MAX);
    }

    /// The same, and no more than `bytes_max` bytes.
    pub fn gather_bytes<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>, max: usize, bytes_max: usize) {
        self.transmitter.gather(slices, max, bytes_max);
    }

    /// Announces that the socket took `bytes` of what [`gather`](Self::gather) gave.
    pub fn sent(&mut self, bytes: usize) {
        self.transmitter.sent(bytes);
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.transmitter.unsent()
    }

    /// Memory that they occupy, bytes: a short answer its own length, a longer one all of its buffer.
    pub fn unsent_memory(&self) -> usize {
        self.transmitter.memory()
    }

    /// Deadline at which to call [`handle_timeout`](Self::handle_timeout).
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closing => None,
            Phase::Login(_) | Phase::Asking(_) => Some(self.login_by),
            Phase::FullFeature(_) => {
                self.liveness.next_check().into_iter().chain(self.control.logout_by).min()
            }
        }
    }

    /// Does what is due: ends a login or a logout that takes too long, pings, misses answers to pings.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Closing => {}
            Phase::Login(_) | Phase::Asking(_) if now >= self.login_by => {
                self.close(CloseReason::LoginTimeout);
            }
            Phase::Login(_) | Phase::Asking(_) => {}
            Phase::FullFeature(_) if self.control.logout_by.is_some_and(|by| now >= by) => {
                self.close(CloseReason::LogoutTimeout);
            }
            Phase::FullFeature(_) => match self.liveness.check(now) {
                Check::Fine => {}
                Check::Ping => self.ping(),
                Check::Gone => self.close(CloseReason::PingTimeout),
            },
        }
    }

    /// The logged-in initiator; `None` before login completes.
    pub fn logged_in(&self) -> Option<&LoggedIn> {
        match &self.phase {
            Phase::FullFeature(logged_in) => Some(logged_in),
            _ => None,
        }
    }

    /// Shared state that further connections need to join the session; `None` where MaxConnections is 1, and in
    /// discovery sessions.
    pub fn session(&self) -> Option<&SharedSession> {
        self.numbering.session()
    }

    /// Commands that have arrived and are not answered.
    pub fn commands_in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// The logical units of commands that have arrived and are not answered, each once.
    pub fn luns_in_flight(&self) -> Vec<[u8; 8]> {
        let mut luns: Vec<_> = self.tasks.iter().map(|task| task.lun).collect();
        luns.sort_unstable();
        luns.dedup();
        luns
    }

    /// Takes every PDU that is complete, until the driver must answer something first, or allow more.
    fn take_pdus(&mut self) {
        self.holds_back = false;
        while matches!(self.phase, Phase::Login(_) | Phase::FullFeature(_)) {
            if let Some((head, placed)) = self.arriving.take() {
                let Some(data) = self.receiver.poll_data() else {
                    self.arriving = Some((head, placed));
                    return;
                };
                self.data_came();
                match placed {
                    Some(task) => self.data_out_placed(&head, task, data),
                    None => self.take_pdu(head, Some(data)),
                }
                continue;
            }
            if self.cost_left == 0 {
                self.holds_back = self.receiver.has_header();
                return;
            }
            match self.receiver.next_head() {
                Err(error) => return self.close(error.into()),
                Ok(None) => return,
                Ok(Some(head)) if head.data_len == 0 => {
                    self.cost_left -= 1;
                    self.note_acknowledgement(&head);
                    self.take_pdu(head, None);
                }
                Ok(Some(head)) => {
                    self.cost_left = self.cost_left.saturating_sub(cost::of(&head));
                    self.note_acknowledgement(&head);
                    let (buf, at, placed) = self.destination(&head);
                    self.receiver.receive_data(buf, at, head.data_len);
                    self.arriving = Some((head, placed));
                }
            }
        }
    }

    /// Every PDU of the initiator's says which answers it has (RFC 7143 §4.2.2.2).
    fn note_acknowledgement(&mut self, head: &Head) {
        if let Some(retention) = &mut self.retention {
            retention.acknowledge(RequestHeader::of(&head.bhs).exp_stat_sn.get());
        }
    }

    /// Returns the destination of the data segment of `head`: a task's buffer, or a buffer of its own.
    fn destination(&mut self, head: &Head) -> (Buf, usize, Option<TaskId>) {
        if let Phase::FullFeature(_) = self.phase {
            match BasicHeader::of(&head.bhs).opcode.opcode() {
                Opcode::DATA_OUT => {
                    if let Ok((task, buf, at)) = self.place_data_out(head) {
                        return (buf, at, Some(task));
                    }
                }
                Opcode::SCSI_COMMAND => {
                    let buffer = self.immediate_data_buffer(head);
                    self.expect_data(buffer.len());
                    return (buffer, 0, None);
                }
                _ => {}
            }
        }
        self.expect_data(head.data_len);
        (Buf::for_overwrite(head.data_len), 0, None)
    }

    fn take_pdu(&mut self, head: Head, data: Option<Data>) {
        let opcode = BasicHeader::of(&head.bhs).opcode.opcode();
        if let Phase::Login(_) = self.phase {
            return match opcode {
                Opcode::LOGIN_REQUEST => self.login_request(&head, data.as_ref()),
                _ => self.not_a_login(opcode),
            };
        }
        if data.as_ref().is_some_and(|data| !data.intact) {
            return self.data_digest_error(&head);
        }
        match opcode {
            Opcode::SCSI_COMMAND
            | Opcode::NOP_OUT
            | Opcode::TASK_MANAGEMENT_REQUEST
            | Opcode::TEXT_REQUEST
            | Opcode::LOGOUT_REQUEST => self.take_request(head, data),
            Opcode::DATA_OUT => self.data_out(&head, data.as_ref()),
            Opcode::SNACK => self.snack(&head),
            Opcode::LOGIN_REQUEST => {
                // RFC 7143 [4.2.4-2]
                // §4.2.4: no second login on a connection.
                self.reject(&head, RejectReason::PROTOCOL_ERROR);
                self.close(CloseReason::Protocol("a Login Request in full feature phase".into()));
            }
            // RFC 7143 [11-3]
            _ => self.reject(&head, RejectReason::COMMAND_NOT_SUPPORTED),
        }
    }

    /// A PDU with a CmdSN: delivers it in order (RFC 7143 §4.2.2.1).
    // RFC 7143 [4.2.2.1-5, 4.2.2.1-10, 4.2.2.1-12]
    fn take_request(&mut self, head: Head, data: Option<Data>) {
        let request = RequestHeader::of(&head.bhs);
        let (opcode, cmd_sn) = (request.opcode, request.cmd_sn.get());
        if opcode.is_immediate() {
            // RFC 7143 [4.2.3.3-6, 11.6.1-2]
            if control::is_about_many_tasks(&head) && self.numbering.waits_for(cmd_sn) {
                return self.hold(Held { cmd_sn, immediate: true, head, data, charged: 0, refused: false });
            }
            return self.deliver(head, data, false);
        }
        let is_command = opcode.opcode() == Opcode::SCSI_COMMAND;
        let command = is_command.then(|| pdu::view::<ScsiCommand>(&head.bhs));
        match self.numbering.take(cmd_sn, command) {
            Order::Outside => {}
            Order::Later => {
                self.hold(Held { cmd_sn, immediate: false, head, data, charged: 0, refused: false });
            }
            Order::Next => {
                self.deliver(head, data, false);
                if !self.held.is_empty() {
                    self.release();
                }
                self.wake_others();
            }
        }
    }

    /// Keeps a request until its turn. What the window offers is always kept: a number is held once and its window has
    /// `depth` of them, with FirstBurstLength or one data segment each, which is what `session_memory_mib` counts for
    /// the window. Its data is kept if the principal's memory has room for it.
    fn hold(&mut self, mut held: Held) {
        if held.immediate {
            let waiting = self.held.iter().filter(|other| other.immediate).count();
            if waiting >= HELD_IMMEDIATE_MAX {
                return self.reject(&held.head, RejectReason::IMMEDIATE_COMMAND_REJECT);
            }
        }
        // Before the numbered request with the number that an immediate one carries: that is sent after it.
        let before = |other: &Held| {
            let distance = held.cmd_sn.wrapping_sub(other.cmd_sn).cast_signed();
            distance > 0 || distance == 0 && (other.immediate || !held.immediate)
        };
        let at = self.held.partition_point(before);
        if !held.immediate
            && at.checked_sub(1).is_some_and(|last| {
                let last = &self.held[last];
                last.cmd_sn == held.cmd_sn && !last.immediate
            })
        {
            // It has come already.
            return;
        }
        held.data = held.data.take().and_then(|data| self.data_of_held(&held.head, data));
        self.charge_held(&mut held);
        self.held.insert(at, held);
    }

    /// Goes on with what another connection of the session held up: requests whose predecessors it had to bring, and
    /// tasks that come after one of its own.
    pub fn resume(&mut self) {
        self.release();
        self.release_waiting();
        self.wake_others();
    }

    /// The connection ends: no command that the driver has not begun will be. Returns the session's connections that go
    /// on thereby, by CID, and those that were still to be woken.
    pub fn abandon(&mut self) -> Vec<u16> {
        self.numbering.abandon_order();
        self.wake_others();
        let wake = |event: TargetEvent| if let TargetEvent::Wake(cid) = event { Some(cid) } else { None };
        self.events.drain(..).filter_map(wake).collect()
    }

    /// Delivers held requests whose turn it is, and drops those that came too late.
    fn release(&mut self) {
        while self.held.front().is_some_and(|first| self.numbering.has_reached(first.cmd_sn))
            && let Some(held) = self.held.pop_front()
        {
            let is_command = BasicHeader::of(&held.head.bhs).opcode.opcode() == Opcode::SCSI_COMMAND;
            let command = is_command.then(|| pdu::view::<ScsiCommand>(&held.head.bhs));
            self.free_held(held.charged);
            if held.immediate || self.numbering.take(held.cmd_sn, command) == Order::Next {
                self.deliver(held.head, held.data, held.refused);
            }
        }
    }

    fn wake_others(&mut self) {
        self.events.extend(self.numbering.take_wakes().into_iter().map(TargetEvent::Wake));
    }

    /// A request is taken in its turn; `refused` says that its data was dropped.
    fn deliver(&mut self, head: Head, data: Option<Data>, refused: bool) {
        if !matches!(self.phase, Phase::FullFeature(_)) {
            return;
        }
        let data = data.map_or_else(Buf::empty, |data| data.buf);
        let opcode = BasicHeader::of(&head.bhs).opcode.opcode();
        // RFC 7143 [4.3-1]
        // §4.3: a discovery session takes SendTargets and its logout.
        if self.is_discovery() && !matches!(opcode, Opcode::TEXT_REQUEST | Opcode::LOGOUT_REQUEST) {
            return self.reject(&head, RejectReason::PROTOCOL_ERROR);
        }
        match opcode {
            Opcode::SCSI_COMMAND => self.scsi_command(&head, data, refused),
            // Out of resources; RFC 7143 §11.17.1 has no reason that says no more than that.
            _ if refused => self.reject(&head, RejectReason::LONG_OPERATION_REJECT),
            Opcode::NOP_OUT => self.nop_out(&head, data),
            Opcode::TASK_MANAGEMENT_REQUEST => self.task_management(&head),
            Opcode::TEXT_REQUEST => self.text_request(&head, &data),
            _ => self.logout_request(&head),
        }
    }

    /// A Target Transfer Tag that names `slot` and has not been used lately.
    // RFC 7143 [11.8.5-1, 11.11.4-1]
    fn transfer_tag(&mut self, slot: u32) -> u32 {
        self.next_transfer_tag = self.next_transfer_tag.wrapping_add(1);
        let tag = self.next_transfer_tag << 16 | slot & 0xffff;
        if tag == RESERVED_TAG { self.transfer_tag(slot) } else { tag }
    }

    fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    // RFC 7143 [4.2.2.2-2]
    fn next_stat_sn(&mut self) -> u32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        stat_sn
    }

    fn close(&mut self, reason: CloseReason) {
        if !matches!(self.phase, Phase::Closing) {
            self.phase = Phase::Closing;
            let held = std::mem::take(&mut self.held);
            held.into_iter().for_each(|held| self.free_held(held.charged));
            self.arriving = None;
            self.data_came();
            self.events.push_back(TargetEvent::Closing(reason));
        }
    }
}

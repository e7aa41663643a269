//! The target's end of a connection.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`TargetConnection`], bytes to PDUs, command numbering, timers |
//! | `event.rs` | events for the driver: [`TargetEvent`] |
//! | `held.rs` | requests that arrived before their predecessors |
//! | `command.rs` | SCSI Command: until the driver has it, and its end |
//! | `data_out.rs` | Data-Out, R2T: until a command's data is here |
//! | `abort.rs` | tasks that task management functions abort |
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

mod abort;
mod answer;
mod command;
mod control;
mod cost;
mod data_out;
mod event;
mod held;
mod memory;
mod order;
mod retained;
mod session;
mod task;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use lunway_block::Buf;

use crate::connection::CloseReason;
use crate::liveness::{Check, Liveness};
use crate::login::{LoggedIn, TargetLogin};
use crate::negotiation::Parameters;
use crate::pdu::{self, BasicHeader, Opcode, RESERVED_TAG, RejectReason, RequestHeader, ScsiCommand};
use crate::receive::{Data, Head, Receiver};
use crate::transmit::Transmitter;
use crate::window::{CommandWindow, Order};
use memory::Occupancy;
use retained::Retention;
use session::Numbering;

pub use abort::{Aborted, AbortedTasks, Before};
pub use answer::Completion;
pub use control::{LogoutId, TaskManagementId, TextId};
pub use event::{Announcement, Command, TargetEvent};
use held::Held;
pub use session::SharedSession;
pub use task::TaskId;
use task::{AbortedTask, TaskTable};

/// MaxRecvDataSegmentLength that holds until login is over (RFC 7143 §13.12).
const LOGIN_DATA_MAX: usize = 8192;
/// Immediate commands at a time; they are outside the window. What a host needs is two or three.
// RFC 7143 [4.2.2.1-4]
const IMMEDIATE_MAX: usize = 32;
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

enum Phase {
    Login(Box<TargetLogin>),
    /// Login, waiting for `grant_login`, `check_proof` or `refuse_login`.
    Asking(Box<TargetLogin>),
    FullFeature(Box<LoggedIn>),
    Closing,
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
    /// Tasks that the driver has set aside, and the bytes of `reserved` that they have for that.
    aside: usize,
    aside_reserved: usize,
    /// The initiator may not know of the places in the window that they have left.
    aside_untold: bool,
    /// Commands are announced before their data is asked for.
    announces: bool,
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
            aside: 0,
            aside_reserved: 0,
            aside_untold: false,
            announces: false,
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

    /// Parts of what waits to be sent are [lent](Completion::lent): [`send_lent`](Self::send_lent) sends, and before
    /// the driver waits for anything it calls [`settle_lent`](Self::settle_lent).
    pub fn has_lent(&self) -> bool {
        self.transmitter.has_lent()
    }

    /// Has `write` send what is next, of up to `max` slices and `bytes_max` bytes, and takes away what it took. Returns
    /// how much. Bytes of devices are locked meanwhile: `write` does not wait.
    ///
    /// # Errors
    ///
    /// Those of `write`; nothing is taken away then.
    pub fn send_lent(
        &mut self,
        max: usize,
        bytes_max: usize,
        write: &mut dyn FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.transmitter.send_lent(max, bytes_max, write)
    }

    /// Copies what is lent, and so ends the loan.
    pub fn settle_lent(&mut self) {
        self.transmitter.settle_lent();
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
                Check::Ping => {
                    self.rest();
                    self.ping();
                }
                Check::Gone => self.close(CloseReason::PingTimeout),
            },
        }
    }

    /// Gives back memory that a busy connection has and an idle one does not need.
    fn rest(&mut self) {
        self.receiver.rest();
        self.transmitter.rest();
        self.tasks.rest();
        if self.events.is_empty() {
            self.events = VecDeque::new();
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
                return self.hold(Held::new(cmd_sn, true, head, data));
            }
            return self.deliver(head, data, false);
        }
        let is_command = opcode.opcode() == Opcode::SCSI_COMMAND;
        let command = is_command.then(|| pdu::view::<ScsiCommand>(&head.bhs));
        match self.numbering.take(cmd_sn, command) {
            Order::Outside => {}
            Order::Later => {
                self.hold(Held::new(cmd_sn, false, head, data));
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

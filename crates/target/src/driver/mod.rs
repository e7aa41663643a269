//! The hot path: one connection, from its socket to the SCSI commands and back.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Connection`]: read – execute – write |
//! | `socket.rs` | [`Socket`](socket::Socket): one read, one vectored write |
//! | `turn.rs` | how much it does before others have their turn |
//! | `waiting.rs` | how it waits |
//! | `timer.rs` | [`Timer`](timer::Timer): until when |
//! | `work.rs` | what it waits for, other than its socket |
//! | `limited.rs` | commands that wait for a limit of their logical unit or initiator |
//! | `executing.rs` | [`Executing`](executing::Executing): the commands among it, and what they occupy |
//! | `proof.rs` | when a CHAP response is checked |
//! | `session.rs` | what of a session is not the protocol's; the takeover of another's place |
//! | `task_management.rs` | aborts and resets, across sessions |
//! | `end.rs` | how a connection ends, and what must end before |

mod end;
mod executing;
mod limited;
mod proof;
mod session;
mod socket;
mod task_management;
mod timer;
mod turn;
mod waiting;
mod work;

use std::future::poll_fn;
use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;
use std::time::Instant;

use lunway_block::{Buf, Entered, Io, Owner};
use lunway_iscsi::pdu::{LogoutResult, TaskAttribute};
use lunway_iscsi::target::{Command, Completion, TargetConnection, TargetEvent, TaskId};
use lunway_scsi::{LogicalUnitOptions, Response, TaskOptions};

use crate::metrics::{Addressed, SessionCounters};
use crate::polling::Polling;
use crate::portal::Ends;
use crate::registry::{Cause, Joinable, Order, Ticket};
use crate::shared::{Admission, SessionContext, Shared};
use end::End;
use executing::Executing;
use limited::Limited;
use proof::LoginUnderWay;
use session::Takeover;
use socket::Socket;
use task_management::Aborts;
use timer::Timer;
use turn::Turn;
use work::{Done, Work};

/// Memory of answers that may wait for the socket, bytes. While there is more, no command is begun: a peer that does
/// not take its answers must not fill our memory. Large enough for a full write of the socket, small enough to stay in
/// the cache of a core between the copy from the device and the copy to the socket.
const UNSENT_MAX: usize = 512 << 10;
/// The same, beyond which nothing is read either: the difference is for answers to pings, task management, text and
/// logout, which do not wait for commands. 2,500 of them.
const UNSENT_READING_MAX: usize = UNSENT_MAX + (256 << 10);
/// Rounds without a wait after which the other connections of the core have their turn.
const ROUNDS_MAX: u32 = 16;

/// Connection: a task on the core that the connection was given to.
///
/// Everything of a session with one connection happens in this one task, so nothing is locked and no thread is woken on
/// the way of a command. The connections of a session with several share its numbering, behind a lock in the protocol
/// core, and its nexus; what one wants of another goes by [`Order`]s.
///
/// Each round of [`run`](Self::run)
///
/// 1. reads once, into the receive space of the protocol core, which takes many PDUs at a time;
/// 2. executes every command that is there: what the device answers at once is answered at once, the rest joins
///    [`Executing`];
/// 3. writes every answer with one vectored write;
///
/// and when there is nothing left to do waits for the socket, that work, orders of other connections, or the timer.
///
/// What a peer sends is read as long as it takes its answers. Above the bounds only commands wait, in the protocol
/// core, whose window bounds them; pings, task management, text and logout are answered.
///
/// Promises: at most [`UNSENT_READING_MAX`] and what the devices had are queued as answers; at most
/// `bytes_executing_max` bytes of buffers for commands are with the devices, or one command's; all of it is counted
/// against the memory of the principal, for which commands wait as well; commands that the device has are never dropped
/// in the middle: when the connection ends, [`finish`](Self::finish) waits for them before the nexus goes and the
/// session's name becomes free.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    core: TargetConnection,
    ticket: Ticket,
    session: Option<SessionContext>,
    executing: Executing,
    /// `None`: no limit on I/O is set for the session.
    limited: Option<Box<Limited>>,
    aborts: Aborts,
    ends: Ends,
    socket: Socket,
    /// The core may have events.
    eventful: bool,
    turn: Turn,
    /// Whom its turns on the core belong to.
    turns_of: Owner,
    takeover: Takeover,
    login: LoginUnderWay,
    /// The connection ends as soon as all answers are sent, or at this time.
    ending: Option<(End, Instant)>,
    polling: Polling,
    timer: Timer,
    /// Connections of its core.
    on_core: Arc<AtomicUsize>,
}

impl Connection {
    /// Serves a connection that was just accepted, to its end.
    /// `on_core`: the connections that its core has.
    pub(crate) async fn serve(
        stream: net::TcpStream,
        peer: SocketAddr,
        ticket: Ticket,
        shared: Arc<Shared>,
        on_core: Arc<AtomicUsize>,
    ) {
        match Self::new(stream, peer, ticket, shared, on_core) {
            Ok(mut connection) => {
                let end = connection.run().await;
                // What others may wait for, while this waits for devices.
                connection.core.settle_lent();
                connection.finish(end).await;
            }
            Err(error) => tracing::debug!(%peer, "the connection broke at once: {error}"),
        }
    }

    fn new(
        stream: net::TcpStream,
        peer: SocketAddr,
        ticket: Ticket,
        shared: Arc<Shared>,
        on_core: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        let ends = Ends { local: stream.local_addr()?, peer };
        let serving = shared.serving();
        Ok(Self {
            core: TargetConnection::new(serving.connection.clone(), Instant::now()),
            ticket,
            session: None,
            executing: Executing::new(serving.bytes_executing_max),
            limited: None,
            aborts: Aborts::default(),
            ends,
            socket: Socket::new(stream)?,
            eventful: false,
            turn: Turn::default(),
            turns_of: turn::of_source(peer.ip()),
            takeover: Takeover::default(),
            login: LoginUnderWay::default(),
            ending: None,
            polling: Polling::new(serving.limits.poll),
            timer: Timer::new(),
            shared,
            on_core,
        })
    }

    async fn run(&mut self) -> End {
        let mut rounds = 0;
        self.core.take_up_to(turn::PDU_COST);
        loop {
            if self.socket.is_readable()
                && self.reads()
                && !self.core.holds_back()
                && let Err(end) = self.receive()
            {
                return end;
            }
            if let Some(counters) = self.counters() {
                counters.begin_round();
            }
            self.execute();
            if let Some(counters) = self.counters() {
                counters.end_round();
            }
            if self.limited.is_some() {
                self.core.tell_aside();
            }
            if self.executing.take_unpolled() {
                poll_fn(|cx| Poll::Ready(self.poll_work(cx).is_ready())).await;
            }
            if let Err(error) = self.transmit() {
                return End::Broken(error);
            }
            self.core.settle_memory();
            if let Some(end) = self.ended() {
                return end;
            }
            if self.turn.is_over() || self.holds_back() {
                turn::next(&self.turns_of).await;
                (self.turn, rounds) = (Turn::default(), 0);
                if self.reads() {
                    self.eventful |= self.core.holds_back();
                    self.core.take_up_to(turn::PDU_COST);
                }
                self.glance().await;
                continue;
            }
            let more = self.socket.is_readable() && self.reads() || self.eventful && self.executes();
            if !more {
                if let Err(end) = self.wait().await {
                    return end;
                }
                rounds = 0;
                continue;
            }
            rounds += 1;
            if rounds == ROUNDS_MAX {
                rounds = 0;
                tokio::task::yield_now().await;
                self.glance().await;
            }
        }
    }

    /// Returns `true` if the socket is read. What comes is bounded by the command window, and by [`UNSENT_READING_MAX`]
    /// for what is answered at once: only a peer that does not take its answers is read no further.
    fn reads(&self) -> bool {
        self.core.unsent_memory() <= UNSENT_READING_MAX && !self.takeover.is_mute() && self.ending.is_none()
    }

    /// Returns `true` if PDUs that were received wait for the connection's next turn, and for nothing else.
    fn holds_back(&self) -> bool {
        self.core.holds_back() && self.reads()
    }

    /// Returns `true` if the next event may be taken.
    fn executes(&self) -> bool {
        !self.takeover.is_mute() && self.ending.is_none() && !self.is_stalled()
    }

    /// Returns `true` if the next command has to wait for memory: for that of answers not yet sent, of commands with
    /// the devices, or of the principal's other sessions; or, if its data is sent from where the device has it, for the
    /// socket.
    fn is_stalled(&self) -> bool {
        self.core.next_command().is_some_and(|command| {
            self.core.unsent_memory() > UNSENT_MAX
                || self.executing.is_full(memory_of(command))
                || !self.socket.is_writable() && self.would_lend(command)
        })
    }

    /// Returns `true` if the data of a read would be sent from where the device has it.
    fn would_lend(&self, command: &Command) -> bool {
        self.core.takes_lent()
            && self
                .session
                .as_ref()
                .and_then(|session| session.nexus.as_ref())
                .is_some_and(|nexus| nexus.would_lend(command.lun, command.data_in_max as usize))
    }

    /// Takes memory for the next event, if it is a command; `false`: it has to wait.
    fn takes_memory(&mut self) -> bool {
        let bytes = self.core.next_command().map_or(0, memory_of);
        let taken = bytes == 0 || self.core.take_memory(bytes, self.executing.is_alone());
        self.executing.asked(bytes, taken);
        taken
    }

    fn receive(&mut self) -> Result<(), End> {
        let got = self.socket.read(&mut self.core.receive_space()).map_err(End::Broken)?;
        self.received(got).map(drop)
    }

    /// Takes what a read has got. Says whether it was anything.
    fn received(&mut self, got: Option<usize>) -> Result<bool, End> {
        match got {
            Some(0) => Err(End::Closed),
            Some(bytes) => {
                self.turn.socket(bytes);
                self.core.received(bytes);
                self.eventful = true;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Carries out what the core says, until that is all or the turn is over; where too much is under way, what is not
    /// a command.
    fn execute(&mut self) {
        let mut entered = self.enter();
        while !self.takeover.is_mute() && self.ending.is_none() {
            let stalled = self.is_stalled()
                || self.turn.is_over() && self.core.next_command().is_some()
                || !self.takes_memory();
            let event = if stalled { self.core.poll_urgent_event() } else { self.core.poll_event() };
            let Some(event) = event else {
                self.eventful = stalled;
                return;
            };
            match event {
                TargetEvent::Command(command) => self.command(command),
                TargetEvent::Announced(announcement) => self.announced(announcement),
                TargetEvent::TaskManagement { request, function, lun, referenced_task_tag } => {
                    self.manage(request, function, lun, referenced_task_tag);
                }
                TargetEvent::SendTargets { request, which } => {
                    if let Some(logged_in) = self.core.logged_in() {
                        let targets = self.shared.records(&which, logged_in, self.ends);
                        self.core.respond_targets(request, &targets);
                    }
                }
                TargetEvent::Login(ask) => {
                    match self.shared.decide(&ask, self.ends, &mut self.ticket) {
                        Ok(Admission::Lead(grant)) => self.core.grant_login(grant),
                        Ok(Admission::Join(grant, Joinable::Connections(session))) => {
                            self.core.join_login(grant, &session);
                        }
                        Ok(Admission::Join(grant, Joinable::Replacement(leading))) => {
                            self.core.reinstate_login(grant, &leading);
                        }
                        Err(refusal) => self.core.refuse_login(refusal),
                    }
                    self.login.ask(ask);
                }
                TargetEvent::Proof { user } => self.take_proof(user),
                TargetEvent::LoggedIn(logged_in) => {
                    self.proven();
                    let joinable = match self.core.session() {
                        Some(session) => Joinable::Connections(session.clone()),
                        None => Joinable::Replacement(logged_in.clone()),
                    };
                    match self.shared.establish(
                        &logged_in,
                        self.login.joins(),
                        self.ends,
                        Some(joinable),
                        &mut self.ticket,
                    ) {
                        Ok((session, predecessors)) => self.begin(session, predecessors),
                        Err(_) => {
                            self.takeover = Takeover::NoPlace;
                            self.end(End::NoPlace);
                        }
                    }
                    drop(entered);
                    entered = self.enter();
                }
                TargetEvent::Wake(cid) => {
                    if let Some(sibling) = self.ticket.sibling(cid) {
                        sibling.send(Order::Resume);
                    }
                }
                TargetEvent::CloseConnection { request, cid } => self.close_sibling(request, cid),
                TargetEvent::Closing(reason) => {
                    self.not_proven(&reason);
                    self.end(End::Protocol(reason));
                }
            }
        }
    }

    /// Enters the session: requests to devices are made for it from here on.
    fn enter(&self) -> Option<Entered> {
        let nexus = self.session.as_ref()?.nexus.as_ref()?;
        Some(nexus.owner().enter())
    }

    fn command(&mut self, mut command: Command) {
        let bytes = memory_of(&command);
        if self.limited.is_some() && !command.passed {
            let Some(passes) = self.let_pass(command) else {
                self.turn.command(0);
                return self.core.give_memory(bytes);
            };
            command = passes;
        }
        // The core gives commands in normal sessions only.
        let Some(SessionContext { nexus: Some(nexus), counters: Some(counters), .. }) = &mut self.session
        else {
            return self.core.give_memory(bytes);
        };
        let to = Addressed { lun: command.lun, opcode: command.cdb.first().copied().unwrap_or_default() };
        self.turn.command(bytes + command.data_out.len());
        let options = TaskOptions {
            ordered: command.attribute == TaskAttribute::ORDERED,
            data_in_max: command.data_in_max as usize,
            number: Some(command.cmd_sn),
            may_lend: self.core.takes_lent(),
        };
        let begun = nexus.begin_task(command.lun, &command.cdb, command.data_out, options);
        match begun.answer {
            Io::Ready(response) => {
                counters.answered(nexus, to, &response);
                self.core.give_memory(bytes);
                self.answer(command.task, response);
            }
            Io::Pending(response) => {
                let counted = counters.queued(nexus, to);
                let task = command.task;
                self.core.begun(task);
                let effect = begun.effect.into();
                self.executing.push(Work::Command {
                    task,
                    lun: command.lun,
                    bytes,
                    counted,
                    effect,
                    response,
                });
            }
        }
    }

    pub(super) fn counters(&mut self) -> Option<&mut SessionCounters> {
        self.session.as_mut()?.counters.as_mut()
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Command { task, bytes, counted, response } => {
                if let Some(counters) = self.counters() {
                    counters.done(counted, &response);
                }
                self.turn.command(bytes);
                self.core.give_memory(bytes);
                if self.aborts.is_empty() || !self.aborts.withholds(task) {
                    self.answer(task, response);
                }
            }
            Done::Managed(request, managed) => self.managed(request, managed),
            Done::SiblingManaged { tasks, complete } => self.managed_for_sibling(&tasks, complete),
            Done::Stopped(Some(busy)) => self.predecessors_stopped(busy),
            Done::Stopped(None) => self.end(End::NotReinstated),
            Done::ProofDue => self.core.check_proof(),
            Done::Passes { lun, wait, waited_for } => self.passes(lun, wait, waited_for),
            Done::LoggedOut { request, in_time } => {
                let result = if in_time { LogoutResult::CLOSED } else { LogoutResult::CLEANUP_FAILED };
                self.core.respond_logout(request, result);
            }
        }
        self.eventful = true;
    }

    /// Answers a command, or ends the session, if the device must not answer it.
    fn answer(&mut self, task: TaskId, response: Response) {
        match response.unanswered {
            false => self.core.complete(task, completion(response)),
            // The first says it. None of the session's other commands is answered from here on, either.
            true if self.ending.is_none() => self.order(Order::Close(Cause::Fenced)),
            true => {}
        }
    }

    /// Writes answers until there are none, the socket is full, or the turn is over: a socket may take megabytes at a
    /// time.
    fn transmit(&mut self) -> io::Result<()> {
        let transmitted = self.write_answers();
        // What the socket has left is no longer lent: others may wait for it.
        self.core.settle_lent();
        transmitted
    }

    fn write_answers(&mut self) -> io::Result<()> {
        while self.socket.is_writable() && self.core.unsent() > 0 && !self.takeover.is_mute() {
            // What is lent is sent whole: its rest would have to be copied. It is no more than a command beyond what
            // may be unsent, and did not cost the turn a copy.
            let room = match self.turn.socket_room() {
                0 => break,
                _ if self.core.has_lent() => usize::MAX,
                room => room,
            };
            let taken = self.socket.write(&mut self.core, room)?;
            self.turn.socket(taken);
            if taken > 0 {
                self.executing.memory_freed();
            }
        }
        Ok(())
    }

    fn order(&mut self, order: Order) {
        // A command whose data is lent is over for the sender of an order: what follows must not be in its data.
        self.core.settle_lent();
        match order {
            // The sender of this order waits for the end: there is no time for answers that are not wanted.
            Order::Close(cause) => {
                if cause.is_news() && self.ending.is_none() {
                    self.core.announce_drop();
                }
                self.ending = Some((End::Ordered(cause), Instant::now()));
            }
            Order::RequestLogout(within) => {
                self.core.request_logout(within, Instant::now());
                self.eventful = true;
            }
            Order::Reconsider => self.reconsider(),
            Order::Resume => {
                self.core.resume();
                self.eventful = true;
            }
            Order::AbortTask { referenced_task_tag, found, function } => {
                self.abort_for_sibling(referenced_task_tag, &found, function);
            }
            Order::AbortEarlier { lun, before, function } => {
                self.abort_earlier_for_sibling(lun, before, function);
            }
            Order::AbortTasks { scope, done } => self.abort_for_another(scope, done),
        }
    }
}

/// The bytes of buffers that a command takes beside its data-out, which the protocol core counts: what the initiator
/// has room for, as no command reads more, and what the device server needs of its own.
fn memory_of(command: &Command) -> usize {
    Buf::memory_of((command.data_in_max as usize).min(LogicalUnitOptions::MAX_TRANSFER as usize))
        + lunway_scsi::working_memory(&command.cdb, command.data_out.len())
}

fn completion(response: Response) -> Completion {
    Completion {
        status: response.status.0,
        sense: response.sense_bytes().map_or_else(Vec::new, |sense| sense.to_vec()),
        data_in: response.data_in,
        lent: response.lent,
        wanted_in: response.wanted_in,
        wanted_out: response.wanted_out,
    }
}

//! The hot path: one connection, from its socket to the SCSI commands and back.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Connection`]: read – execute – write |
//! | `turn.rs` | how much it does before others have their turn |
//! | `waiting.rs` | how it waits |
//! | `work.rs` | what it waits for, other than its socket |
//! | `proof.rs` | when a CHAP response is checked |
//! | `session.rs` | what of a session is not the protocol's |
//! | `task_management.rs` | aborts and resets, across sessions |
//! | `end.rs` | how a connection ends, and what must end before |

mod end;
mod proof;
mod session;
mod task_management;
mod turn;
mod waiting;
mod work;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{self, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use lunway_block::{Buf, Entered, Io};
use lunway_iscsi::login::LoginAsk;
use lunway_iscsi::pdu::{LogoutResult, TaskAttribute};
use lunway_iscsi::target::{Command, Completion, TargetConnection, TargetEvent};
use lunway_scsi::{LogicalUnitOptions, Response, TaskOptions};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::metrics::{Addressed, SessionCounters};
use crate::polling::Polling;
use crate::portal::Ends;
use crate::registry::{Handle, Joinable, Order, Ticket};
use crate::shared::{Admission, SessionContext, Shared};
use end::End;
use task_management::{AbortWaiter, AbortedTask};
use turn::Turn;
use work::{Done, Work};

/// Slices of one vectored write: at depth 32 with 4 KiB reads, 32 headers and 32 data segments; with digests twice
/// that. The kernel takes 1024.
const SLICES_MAX: usize = 256;
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
/// 2. executes every command that is there: what the device answers at once is answered at once, the rest joins `work`;
/// 3. writes every answer with one vectored write;
///
/// and when there is nothing left to do waits for the socket, `work`, orders of other connections, or the timer.
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
    work: FuturesUnordered<Work>,
    /// Task management functions, here or elsewhere, that wait for commands of `work`.
    waiters: Vec<AbortWaiter>,
    /// Aborted commands that are neither answered nor forgotten.
    aborted: Vec<AbortedTask>,
    ends: Ends,
    stream: TcpStream,
    slices: Vec<IoSlice<'static>>,
    readable: bool,
    writable: bool,
    /// The core may have events.
    eventful: bool,
    /// `work` has something that was never polled.
    unpolled: bool,
    commands_executing: usize,
    bytes_executing: usize,
    bytes_executing_max: usize,
    /// Bytes that the next command needs and the principal's memory did not have; 0: it had all.
    starved_of: usize,
    turn: Turn,
    /// The connections whose place this one takes.
    predecessors: Vec<Arc<Handle>>,
    /// The logical units that are held because devices still have commands of the predecessors.
    held: BTreeSet<u16>,
    /// Nothing is sent: the predecessor may begin commands yet, or a login that has succeeded finds no place.
    mute: bool,
    /// Initiator that wants to log in, for the log.
    asked: Option<Box<LoginAsk>>,
    /// The CHAP user that the initiator says it is, from its response on until it is known whether that was right.
    claims: Option<String>,
    /// The connection ends as soon as all answers are sent, or at this time.
    ending: Option<(End, Instant)>,
    polling: Polling,
    sleep: Pin<Box<Sleep>>,
    /// Deadline of `sleep`; it is moved only to earlier times, and set anew when it ends too early. So the timer is not
    /// touched for each PDU.
    armed: Option<Instant>,
    /// The core's timer is not looked at before, see [`Self::handle_timeout`].
    postponed: Option<Instant>,
}

impl Connection {
    /// Serves a connection that was just accepted, to its end.
    pub(crate) async fn serve(stream: net::TcpStream, peer: SocketAddr, ticket: Ticket, shared: Arc<Shared>) {
        match Self::new(stream, peer, ticket, shared) {
            Ok(mut connection) => {
                let end = connection.run().await;
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
    ) -> io::Result<Self> {
        // Answers are complete when they are written: nothing to gain from waiting for more.
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let ends = Ends { local: stream.local_addr()?, peer };
        let serving = shared.serving();
        Ok(Self {
            core: TargetConnection::new(serving.connection.clone(), Instant::now()),
            ticket,
            session: None,
            work: FuturesUnordered::new(),
            waiters: Vec::new(),
            aborted: Vec::new(),
            ends,
            stream: TcpStream::from_std(stream)?,
            slices: Vec::new(),
            readable: true,
            writable: true,
            eventful: false,
            unpolled: false,
            commands_executing: 0,
            bytes_executing: 0,
            bytes_executing_max: serving.bytes_executing_max,
            starved_of: 0,
            turn: Turn::default(),
            predecessors: Vec::new(),
            held: BTreeSet::new(),
            mute: false,
            asked: None,
            claims: None,
            ending: None,
            polling: Polling::new(serving.limits.poll),
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            armed: None,
            postponed: None,
            shared,
        })
    }

    async fn run(&mut self) -> End {
        let mut rounds = 0;
        self.core.take_up_to(turn::PDUS);
        loop {
            if self.readable
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
            if self.unpolled {
                // The device may begin only when it is asked for the first time.
                self.unpolled = false;
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
                (self.turn, rounds) = (Turn::default(), 0);
                tokio::task::yield_now().await;
                if self.reads() {
                    self.eventful |= self.core.holds_back();
                    self.core.take_up_to(turn::PDUS);
                }
                self.glance().await;
                continue;
            }
            let more = self.readable && self.reads() || self.eventful && self.executes();
            if !more {
                self.wait().await;
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

    /// Whether the socket is read. What comes is bounded by the command window, and by [`UNSENT_READING_MAX`] for what
    /// is answered at once: only a peer that does not take its answers is read no further.
    fn reads(&self) -> bool {
        self.core.unsent_memory() <= UNSENT_READING_MAX && !self.mute && self.ending.is_none()
    }

    /// Whether PDUs that were received wait for the connection's next turn, and for nothing else.
    fn holds_back(&self) -> bool {
        self.core.holds_back() && self.reads()
    }

    /// Returns `true` if the next event may be taken.
    fn executes(&self) -> bool {
        !self.mute && self.ending.is_none() && !self.is_stalled()
    }

    /// Returns `true` if the next command has to wait for memory: for that of answers not yet sent, of commands with
    /// the devices, or of the principal's other sessions.
    fn is_stalled(&self) -> bool {
        self.core.next_command().is_some_and(|command| {
            let bytes = memory_of(command);
            self.core.unsent_memory() > UNSENT_MAX
                || self.bytes_executing > 0 && self.bytes_executing + bytes > self.bytes_executing_max
                || self.starved_of > 0 && bytes >= self.starved_of
        })
    }

    /// Takes memory for the next event, if it is a command; `false`: it has to wait.
    fn takes_memory(&mut self) -> bool {
        let bytes = self.core.next_command().map_or(0, memory_of);
        let taken = bytes == 0 || self.core.take_memory(bytes, self.bytes_executing == 0);
        self.starved_of = if taken { 0 } else { bytes };
        taken
    }

    /// Makes one read. A read shorter than the space has emptied the socket: the runtime is told so, which saves the
    /// system call that would only say "nothing".
    fn receive(&mut self) -> Result<(), End> {
        let Self { stream, core, .. } = self;
        let mut space = core.receive_space();
        let room: usize = space.iter().map(|slice| slice.len()).sum();
        let mut got = None;
        let result = stream.try_io(Interest::READABLE, || {
            let bytes = rustix::io::readv(&*stream, &mut space)?;
            got = Some(bytes);
            if bytes < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (got, result) {
            (Some(0), _) => return Err(End::Closed),
            (Some(bytes), result) => {
                self.readable = result.is_ok();
                self.turn.socket(bytes);
                self.core.received(bytes);
                self.eventful = true;
            }
            (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            (None, Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            (None, Err(error)) => return Err(End::Broken(error)),
            (None, Ok(())) => {}
        }
        Ok(())
    }

    /// Carries out what the core says, until that is all or the turn is over; where too much is under way, what is not
    /// a command.
    fn execute(&mut self) {
        let mut entered = self.enter();
        while !self.mute && self.ending.is_none() {
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
                    self.asked = Some(Box::new(ask));
                }
                TargetEvent::Proof { user } => self.take_proof(user),
                TargetEvent::LoggedIn(logged_in) => {
                    self.proven();
                    let joins = self.asked.as_ref().is_some_and(|ask| ask.tsih != 0);
                    let joinable = match self.core.session() {
                        Some(session) => Joinable::Connections(session.clone()),
                        None => Joinable::Replacement(logged_in.clone()),
                    };
                    match self.shared.establish(
                        &logged_in,
                        joins,
                        self.ends,
                        Some(joinable),
                        &mut self.ticket,
                    ) {
                        Ok((session, predecessors)) => self.begin(session, predecessors),
                        Err(_) => {
                            self.mute = true;
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

    fn command(&mut self, command: Command) {
        let bytes = memory_of(&command);
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
        };
        let begun = nexus.begin_task(command.lun, &command.cdb, command.data_out, options);
        match begun.answer {
            Io::Ready(response) => {
                counters.answered(nexus, to, &response);
                self.core.give_memory(bytes);
                self.core.complete(command.task, completion(response));
            }
            Io::Pending(response) => {
                let counted = counters.queued(nexus, to);
                let task = command.task;
                self.core.begun(task);
                self.commands_executing += 1;
                self.bytes_executing += bytes;
                let effect = begun.effect.into();
                self.push_work(Work::Command { task, lun: command.lun, bytes, counted, effect, response });
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
                self.commands_executing -= 1;
                self.bytes_executing -= bytes;
                self.starved_of = 0;
                self.turn.command(bytes);
                self.core.give_memory(bytes);
                if self.aborted.is_empty() || !self.withholds(task) {
                    self.core.complete(task, completion(response));
                }
            }
            Done::Managed(request, managed) => self.managed(request, managed),
            Done::Stopped(Some(busy)) => self.predecessors_stopped(busy),
            Done::Stopped(None) => self.end(End::NotReinstated),
            Done::ProofDue => self.core.check_proof(),
            Done::LoggedOut { request, in_time } => {
                let result = if in_time { LogoutResult::CLOSED } else { LogoutResult::CLEANUP_FAILED };
                self.core.respond_logout(request, result);
            }
        }
        self.eventful = true;
    }

    fn push_work(&mut self, work: Work) {
        self.unpolled = true;
        self.work.push(work);
    }

    /// Writes answers until there are none, the socket is full, or the turn is over: a socket may take megabytes at a
    /// time.
    fn transmit(&mut self) -> io::Result<()> {
        while self.writable && self.core.unsent() > 0 && !self.mute {
            let room = self.turn.socket_room();
            if room == 0 {
                break;
            }
            let mut slices = recycle(std::mem::take(&mut self.slices));
            self.core.gather_bytes(&mut slices, SLICES_MAX, room);
            let total: usize = slices.iter().map(|slice| slice.len()).sum();
            let mut taken = 0;
            let result = self.stream.try_io(Interest::WRITABLE, || {
                taken = rustix::io::writev(&self.stream, &slices)?;
                if taken < total { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            self.slices = recycle(slices);
            self.turn.socket(taken);
            self.core.sent(taken);
            if taken > 0 {
                self.starved_of = 0;
            }
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn order(&mut self, order: Order) {
        match order {
            // Whoever gives this order waits for the end: there is no time for answers that nobody wants.
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
            Order::AbortTask { referenced_task_tag, found, done } => {
                self.abort_for_sibling(referenced_task_tag, &found, done);
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
        wanted_in: response.wanted_in,
        wanted_out: response.wanted_out,
    }
}

/// Empties a list of slices and keeps its memory for slices of another lifetime: collecting into the same type in place
/// does not allocate.
fn recycle<'to>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'to>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_list_of_slices_keeps_its_memory() {
        let text = String::from("gone soon");
        let mut slices = Vec::with_capacity(64);
        slices.push(IoSlice::new(text.as_bytes()));
        let before = slices.as_ptr().addr();
        let slices: Vec<IoSlice<'static>> = recycle(slices);
        assert_eq!((slices.as_ptr().addr(), slices.len(), slices.capacity()), (before, 0, 64));
    }
}

//! The transmission phase: requests in, replies out.

mod operation;
mod reply;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::{Buf, Io, MemoryLease, Owner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zerocopy::{FromBytes, IntoBytes};

use self::operation::{Answer, Refused, Result, begin, memory_of};
use self::reply::{Piece, chunk, chunk_before, simple};
use crate::export::{Export, TRANSFER_MAX};
use crate::negotiation::Agreed;
use crate::stream::Stream;
use crate::wire::{REQUEST_MAGIC, Request, chunk, command};

/// Size of the receive buffer: 32 writes of 4 KiB with their headers.
const INBOX: usize = 132 << 10;
/// The rest of a write that is longer than this is read straight to its place.
const STRAIGHT: usize = 16 << 10;
/// Memory that the requests of one connection may hold, from their arrival until their replies are sent, bytes: two of
/// the longest requests.
const MEMORY_MAX: usize = 2 * TRANSFER_MAX as usize;
/// Requests under way and pieces of replies that are not sent, of one connection. A kernel has 128 under way for each
/// connection, nbdcopy 64 and QEMU 16. Of all 64 connections together, devices take as many operations as they let one
/// principal have waiting (16,384).
const REQUESTS_MAX: usize = 256;
/// Slices of one vectored write.
const SLICES_MAX: usize = 64;
/// Most bytes of one read from the socket, and of one write to it: a tenth of a millisecond of copying.
const SOCKET_MAX: usize = 1 << 20;
/// Time after which other connections, and the sockets, have their turn. A turn is longer by one request that the
/// device carries out at once, one read and one write.
const TURN: Duration = Duration::from_micros(200);
/// Longest sentence about an error, which is the specification's limit.
const ERROR_MAX: usize = 4096;

/// Reason why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client said so, or hung up between two requests.
    Disconnected,
    /// The server ends.
    Shutdown,
    /// The client broke the protocol: nothing it sends can be understood any longer.
    Protocol(&'static str),
    /// The socket.
    Broken(io::Error),
}

struct Done {
    request: Request,
    result: Result<Answer>,
}

/// Result of a turn.
pub(crate) enum Turn {
    /// There is more to do, and others are to go on first.
    Over,
    /// The connection has ended.
    Ended(End),
}

/// Beginning of a turn.
struct Since(Instant);

impl Since {
    fn is_over(&self) -> bool {
        self.0.elapsed() >= TURN
    }
}

/// A write whose data is still coming.
struct Arriving {
    request: Request,
    data: Buf,
    have: usize,
}

/// One connection in the transmission phase.
///
/// Each round of [`poll`](Self::poll) reads once, executes every request that is there (what the device answers at once
/// is answered at once), collects what the device has finished, and writes all replies with one vectored write.
/// Requests are answered in the order in which they finish, which the protocol allows.
///
/// Promises: requests of every kind are taken only while at most [`REQUESTS_MAX`] are under way or unsent, and hold at
/// most [`MEMORY_MAX`] bytes, which its lease has from the budget of all clients; a client that does not take its
/// replies is not read from, nor is one whose request waits for memory. After a [`TURN`] others go on.
/// Requests that the device has are never dropped in the middle: the end of a connection waits for them.
pub(crate) struct Transmission {
    stream: Stream,
    export: Export,
    agreed: Agreed,
    inbox: Box<[u8]>,
    /// The part of it that is filled and not yet taken.
    filled: std::ops::Range<usize>,
    arriving: Option<Arriving>,
    /// Taken from the inbox, and held back until there is room.
    held: Option<Request>,
    work: FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>,
    /// Memory of what the device has, and of a write that arrives.
    memory_under_way: usize,
    outbox: VecDeque<Piece>,
    /// Bytes of the first piece that are sent already.
    sent: usize,
    /// Memory of what is not sent.
    memory_unsent: usize,
    /// No reply can be sent any longer.
    unreachable: bool,
    end: Option<End>,
    /// Devices give connections their turns by it.
    owner: Owner,
    lease: MemoryLease,
}

impl Transmission {
    pub(crate) fn new(
        stream: Stream,
        export: Export,
        agreed: Agreed,
        owner: Owner,
        lease: MemoryLease,
    ) -> Self {
        Self {
            stream,
            export,
            agreed,
            inbox: vec![0; INBOX].into_boxed_slice(),
            filled: 0..0,
            arriving: None,
            held: None,
            work: FuturesUnordered::new(),
            memory_under_way: 0,
            outbox: VecDeque::new(),
            sent: 0,
            memory_unsent: 0,
            unreachable: false,
            end: None,
            owner,
            lease,
        }
    }

    /// Takes no more requests; what is under way is finished and answered.
    pub(crate) fn leave(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.end.is_some()
    }

    /// Serves until the connection ends and nothing is under way, or for a turn.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        let _entered = self.owner.enter();
        let since = Since(Instant::now());
        loop {
            let mut progress = self.receive(cx);
            progress |= self.execute(&since);
            progress |= self.collect(cx, &since);
            progress |= self.transmit(cx);
            if self.end.is_some() && self.work.is_empty() && self.outbox.is_empty() {
                return Poll::Ready(Turn::Ended(self.end.take().unwrap_or(End::Disconnected)));
            }
            self.lease.settle(self.memory());
            if !progress && !self.finds_room(cx) {
                return Poll::Pending;
            }
            if since.is_over() {
                return Poll::Ready(Turn::Over);
            }
        }
    }

    /// Memory that requests and replies hold, bytes.
    fn memory(&self) -> usize {
        self.memory_under_way + self.memory_unsent
    }

    /// Takes memory for a request from the budget of all clients: `false` if it has to wait for it. A request that is
    /// alone may overdraw the lease, so that connections that hold nothing never wait for each other.
    fn cover(&mut self, memory: usize) -> bool {
        let held = self.memory();
        memory == 0 || self.lease.cover_or_wait(held + memory, memory, held == 0)
    }

    /// Returns `true` if the request that was held back for want of memory may be tried again; else this is woken when
    /// other connections give some back.
    fn finds_room(&mut self, cx: &Context<'_>) -> bool {
        let occupied = self.memory();
        self.lease.is_waited_for() && self.lease.poll_room(occupied, cx).is_ready() && self.held.is_some()
    }

    /// Returns `true` if a request that needs so much memory has to wait for others of its connection. Whatever the
    /// limit, one request finds room when nothing is in flight.
    fn is_full(&self, memory: usize) -> bool {
        let held = self.memory();
        self.work.len() + self.outbox.len() >= REQUESTS_MAX || (held > 0 && held + memory > MEMORY_MAX)
    }

    /// Makes one read, if there is room for its data.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        if self.end.is_some() || self.held.is_some() || self.is_full(0) {
            return false;
        }
        let straight = self.filled.is_empty()
            && self.arriving.as_ref().is_some_and(|arriving| arriving.data.len() - arriving.have > STRAIGHT);
        let space = match &mut self.arriving {
            Some(arriving) if straight => {
                let end = arriving.data.len().min(arriving.have + SOCKET_MAX);
                &mut arriving.data[arriving.have..end]
            }
            _ => {
                if self.filled.is_empty() {
                    self.filled = 0..0;
                } else if self.filled.end == self.inbox.len() {
                    self.inbox.copy_within(self.filled.clone(), 0);
                    self.filled = 0..self.filled.len();
                }
                &mut self.inbox[self.filled.end..]
            }
        };
        let mut space = ReadBuf::new(space);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
        let got = space.filled().len();
        match polled {
            Poll::Pending => false,
            Poll::Ready(Err(error)) => {
                self.leave(End::Broken(error));
                true
            }
            Poll::Ready(Ok(())) if got == 0 => {
                let inside = self.arriving.is_some() || !self.filled.is_empty();
                self.leave(match inside {
                    true => End::Broken(io::ErrorKind::UnexpectedEof.into()),
                    false => End::Disconnected,
                });
                true
            }
            Poll::Ready(Ok(())) => {
                match &mut self.arriving {
                    Some(arriving) if straight => arriving.have += got,
                    _ => self.filled.end += got,
                }
                true
            }
        }
    }

    /// Takes every request that is there completely and for which there is room.
    fn execute(&mut self, since: &Since) -> bool {
        let mut progress = false;
        while self.end.is_none() && !(progress && since.is_over()) {
            if let Some(arriving) = &mut self.arriving {
                let part = self.filled.len().min(arriving.data.len() - arriving.have);
                let from = self.filled.start;
                arriving.data[arriving.have..arriving.have + part]
                    .copy_from_slice(&self.inbox[from..from + part]);
                arriving.have += part;
                self.filled.start += part;
                if arriving.have < arriving.data.len() {
                    break;
                }
                if let Some(Arriving { request, data, .. }) = self.arriving.take() {
                    self.memory_under_way -= memory_of(&request);
                    self.perform(request, data);
                    progress = true;
                }
                continue;
            }
            let Some(request) = self.held.take().or_else(|| self.next_request()) else { break };
            let (length, memory) = (request.length.get(), memory_of(&request));
            if self.is_full(memory) || !self.cover(memory) {
                self.held = Some(request);
                break;
            }
            progress = true;
            match request.command.get() {
                command::DISC => self.leave(End::Disconnected),
                // Its data cannot be told from the next request unless all of it is taken.
                command::WRITE if length > TRANSFER_MAX => {
                    self.leave(End::Protocol("a write of more than 32 MiB"));
                }
                command::WRITE => {
                    // What is still to arrive counts, so that the limit holds for it too.
                    self.memory_under_way += memory;
                    let data = Buf::for_overwrite(length as usize);
                    self.arriving = Some(Arriving { request, data, have: 0 });
                }
                _ => self.perform(request, Buf::empty()),
            }
        }
        progress
    }

    fn next_request(&mut self) -> Option<Request> {
        let (request, _) = Request::read_from_prefix(&self.inbox[self.filled.clone()]).ok()?;
        if request.magic.get() != REQUEST_MAGIC {
            self.leave(End::Protocol("a request without its magic number"));
            return None;
        }
        self.filled.start += size_of::<Request>();
        Some(request)
    }

    /// Has the device do it.
    fn perform(&mut self, request: Request, data: Buf) {
        match begin(&self.export, &self.agreed, &request, data) {
            Io::Ready(result) => self.answer(Done { request, result }),
            Io::Pending(future) => {
                self.memory_under_way += memory_of(&request);
                self.work.push(Box::pin(async move { Done { request, result: future.await } }));
            }
        }
    }

    fn collect(&mut self, cx: &mut Context<'_>, since: &Since) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some(done)) = self.work.poll_next_unpin(cx) {
            self.memory_under_way -= memory_of(&done.request);
            self.answer(done);
            progress = true;
            if since.is_over() {
                break;
            }
        }
        progress
    }

    fn answer(&mut self, Done { request, result }: Done) {
        let structured = self.agreed.structured;
        if self.unreachable {
            return;
        }
        match result {
            // A chunk of data has to have some.
            Ok(Answer::Data(data)) if structured && data.is_empty() => {
                self.queue(chunk(&request, chunk::NONE, &[], 0));
            }
            Ok(Answer::Data(data)) if structured => {
                self.queue(chunk(&request, chunk::OFFSET_DATA, request.offset.as_bytes(), data.len()));
                self.queue_data(data);
            }
            Ok(Answer::Data(data)) => {
                self.queue(simple(&request, 0));
                self.queue_data(data);
            }
            Ok(Answer::Status(contexts)) => {
                let last = contexts.len().saturating_sub(1);
                for (number, (context, descriptors)) in contexts.into_iter().enumerate() {
                    let (id, len) = (context.to_be_bytes(), descriptors.len());
                    self.queue(match number == last {
                        true => chunk(&request, chunk::BLOCK_STATUS, &id, len),
                        false => chunk_before(&request, chunk::BLOCK_STATUS, &id, len),
                    });
                    self.queue(Piece::Short(descriptors));
                }
            }
            // Only reads and block status have to be answered in chunks.
            Ok(Answer::Done) => self.queue(simple(&request, 0)),
            Err(Refused { errno, why }) => {
                tracing::debug!(export = self.export.name, ?request, ?errno, "refused: {why}");
                if !structured {
                    return self.queue(simple(&request, errno as u32));
                }
                let why = &why.as_bytes()[..why.len().min(ERROR_MAX)];
                let mut rest = (why.len() as u16).to_be_bytes().to_vec();
                rest.extend_from_slice(why);
                self.queue(chunk(&request, chunk::ERROR, &(errno as u32).to_be_bytes(), rest.len()));
                self.queue(Piece::Short(rest));
            }
        }
    }

    fn queue(&mut self, piece: Piece) {
        if !piece.bytes().is_empty() {
            self.memory_unsent += piece.memory();
            self.outbox.push_back(piece);
        }
    }

    fn queue_data(&mut self, data: Buf) {
        self.queue(Piece::Data(data.freeze()));
    }

    /// Writes the outbox by one vectored write.
    fn transmit(&mut self, cx: &mut Context<'_>) -> bool {
        if self.outbox.is_empty() {
            return false;
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut room) = (0, SOCKET_MAX);
        for (slot, piece) in slices.iter_mut().zip(&self.outbox) {
            let from = if count == 0 { self.sent } else { 0 };
            let unsent = &piece.bytes()[from..];
            let part = &unsent[..unsent.len().min(room)];
            *slot = IoSlice::new(part);
            count += 1;
            room -= part.len();
            if room == 0 {
                break;
            }
        }
        match Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..count]) {
            Poll::Pending => false,
            Poll::Ready(Ok(written)) => {
                let mut written = written + self.sent;
                while let Some(piece) = self.outbox.front() {
                    let len = piece.bytes().len();
                    if written < len {
                        break;
                    }
                    written -= len;
                    self.memory_unsent -= piece.memory();
                    self.outbox.pop_front();
                }
                self.sent = written;
                true
            }
            Poll::Ready(Err(error)) => {
                self.leave(End::Broken(error));
                // The client will not take them: neither these, of which the first may be sent in part, nor later ones.
                self.unreachable = true;
                self.outbox.clear();
                (self.sent, self.memory_unsent) = (0, 0);
                true
            }
        }
    }
}

//! Replies of a server that is not trusted: what waits for them, and what they may hold.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunway_block::{BlockError, Buf, Fate};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::oneshot;
use zerocopy::{FromZeros, IntoBytes};

use super::connection::Ask;
use super::handshake::{Offer, wrong};
use crate::wire::{Chunk, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk, command};

/// Most bytes of a block status: the 128 Ki descriptors that QEMU sends at most, and the number of their context.
const STATUS_MAX: u32 = (1 << 20) + 4;
/// Most bytes of an error: its number, a sentence of 4096 bytes, which is the specification's limit, and an offset.
const ERROR_MAX: u32 = 4 + 2 + 4096 + 8;
/// Size of the receive buffer: replies without data, and the headers of the others.
const INBOX: usize = 16 << 10;

/// A part of a buffer that a reply fills.
pub(super) struct Part {
    pub(super) buf: Buf,
    place: Range<usize>,
    /// What has come of it, in order and without neighbours.
    came: Vec<Range<usize>>,
}

impl Part {
    pub(super) fn of(buf: Buf, place: Range<usize>) -> Self {
        Self { buf, place, came: Vec::new() }
    }

    /// The bytes from `at` on, which come now; `None` if they leave the part, or came before.
    fn take(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        let piece = at..at.checked_add(len).filter(|end| *end <= self.place.len() && *end > at)?;
        let next = self.came.partition_point(|range| range.end <= piece.start);
        if self.came.get(next).is_some_and(|range| range.start < piece.end) {
            return None;
        }
        let joins_next = self.came.get(next).is_some_and(|range| range.start == piece.end);
        match next.checked_sub(1).map(|before| &mut self.came[before]) {
            Some(before) if before.end == piece.start => before.end = piece.end,
            _ if joins_next => {}
            _ => self.came.insert(next, piece.clone()),
        }
        if joins_next {
            let joined = self.came.partition_point(|range| range.end < piece.end);
            match self.came[joined].end == piece.end {
                true => self.came[joined].end = self.came.remove(joined + 1).end,
                false => self.came[joined].start = piece.start,
            }
        }
        Some(&mut self.buf[self.place.start + piece.start..self.place.start + piece.end])
    }

    fn is_whole(&self) -> bool {
        self.came.iter().map(ExactSizeIterator::len).sum::<usize>() == self.place.len()
    }
}

/// Content of a reply: what was asked for, and what came.
pub(super) enum Brought {
    Nothing,
    Data(Part),
    /// Number of each context, and its descriptors.
    Status(Vec<(u32, Vec<u8>)>),
}

type Answer = Result<Brought, BlockError>;

/// A request that waits for its reply.
struct Pending {
    ask: Ask,
    brought: Brought,
    refused: Option<BlockError>,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
struct State {
    next_cookie: u64,
    pending: HashMap<u64, Pending>,
    broken: Option<String>,
}

/// The requests of a connection that wait for replies.
#[derive(Default)]
pub(super) struct Waiting(Mutex<State>);

/// For an operation that may have been carried out.
pub(super) fn lost(why: &str) -> BlockError {
    BlockError::Gone { why: why.to_owned(), fate: Fate::Unknown }
}

impl Waiting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    /// A number for a request, and where its reply comes out.
    pub(super) fn expect(
        &self,
        ask: Ask,
        brought: Brought,
    ) -> Result<(u64, oneshot::Receiver<Answer>), BlockError> {
        let mut state = self.state();
        if let Some(why) = &state.broken {
            return Err(BlockError::gone(why.clone()));
        }
        let (answer, comes_out) = oneshot::channel();
        state.next_cookie += 1;
        let cookie = state.next_cookie;
        state.pending.insert(cookie, Pending { ask, brought, refused: None, answer });
        Ok((cookie, comes_out))
    }

    /// The connection is of no use any more: everything that waits fails.
    pub(super) fn break_off(&self, error: &io::Error) {
        let mut state = self.state();
        let why = state.broken.get_or_insert_with(|| error.to_string()).clone();
        for (_, pending) in state.pending.drain() {
            // One that was abandoned needs no answer.
            let _ = pending.answer.send(Err(lost(&why)));
        }
    }
}

/// Task that receives the replies of a connection.
pub(super) struct Receiver {
    stream: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    waiting: Arc<Waiting>,
    structured: bool,
    contexts: [Option<u32>; 2],
}

impl Receiver {
    pub(super) fn new(
        stream: Box<dyn AsyncRead + Send + Unpin>,
        waiting: Arc<Waiting>,
        offer: &Offer,
    ) -> Self {
        Self {
            stream: BufReader::with_capacity(INBOX, stream),
            waiting,
            structured: offer.structured,
            contexts: [offer.allocation, offer.bitmap],
        }
    }

    /// Receives until the connection breaks.
    pub(super) async fn run(mut self) {
        loop {
            // Of the request whose reply is being received, which others do not find.
            let mut current = None;
            if let Err(error) = self.receive(&mut current).await {
                self.waiting.break_off(&error);
                if let Some((_, Pending { answer, .. })) = current {
                    let _ = answer.send(Err(lost(&error.to_string())));
                }
                return;
            }
        }
    }

    fn take(&self, cookie: u64) -> io::Result<(u64, Pending)> {
        let found = self.waiting.state().pending.remove(&cookie);
        found.map(|pending| (cookie, pending)).ok_or_else(|| wrong("a reply to nothing"))
    }

    /// Receives a simple reply or a chunk.
    async fn receive(&mut self, current: &mut Option<(u64, Pending)>) -> io::Result<()> {
        let last = match self.stream.read_u32().await? {
            SIMPLE_REPLY_MAGIC => {
                let error = self.stream.read_u32().await?;
                let cookie = self.stream.read_u64().await?;
                let (_, pending) = current.insert(self.take(cookie)?);
                self.simple(error, pending).await?;
                true
            }
            STRUCTURED_REPLY_MAGIC if self.structured => {
                // Its magic number was read.
                let mut header = Chunk::new_zeroed();
                self.stream.read_exact(&mut header.as_mut_bytes()[size_of::<u32>()..]).await?;
                let (_, pending) = current.insert(self.take(header.cookie.get())?);
                self.chunk(&header, pending).await?;
                header.flags.get() & chunk::DONE != 0
            }
            _ => return Err(wrong("a reply without its magic number")),
        };
        let Some((cookie, pending)) = current.take() else { return Ok(()) };
        if !last {
            self.waiting.state().pending.insert(cookie, pending);
            return Ok(());
        }
        let Pending { brought, refused, answer, .. } = pending;
        let is_whole = match &brought {
            _ if refused.is_some() => true,
            Brought::Nothing => true,
            Brought::Data(part) => part.is_whole(),
            Brought::Status(list) => !list.is_empty(),
        };
        let answered = match is_whole {
            true => Ok(()),
            false => Err(wrong("a reply that brought less than was asked for")),
        };
        let result = match (&answered, refused) {
            (Err(error), _) => Err(lost(&error.to_string())),
            (_, Some(refused)) => Err(refused),
            (_, None) => Ok(brought),
        };
        // One that was abandoned needs no answer.
        let _ = answer.send(result);
        answered
    }

    async fn simple(&mut self, error: u32, pending: &mut Pending) -> io::Result<()> {
        if error != 0 {
            pending.refused = Some(refusal(pending.ask.command, error, ""));
            return Ok(());
        }
        match &mut pending.brought {
            Brought::Nothing => Ok(()),
            Brought::Data(part) if !self.structured => {
                let all = part.take(0, pending.ask.length as usize).ok_or_else(|| wrong("a read"))?;
                self.stream.read_exact(all).await.map(drop)
            }
            Brought::Data(_) | Brought::Status(_) => Err(wrong("a simple reply to a question")),
        }
    }

    async fn chunk(&mut self, header: &Chunk, pending: &mut Pending) -> io::Result<()> {
        let (kind, length) = (header.kind.get(), header.length.get());
        let begin = pending.ask.offset;
        match (kind, &mut pending.brought) {
            (chunk::NONE, _) if length == 0 && header.flags.get() & chunk::DONE != 0 => Ok(()),
            (chunk::OFFSET_DATA, Brought::Data(part)) if length > 8 => {
                let at = self.stream.read_u64().await?.checked_sub(begin);
                let piece = at.and_then(|at| part.take(at, (length - 8) as usize));
                let piece = piece.ok_or_else(|| wrong("data that were not asked for"))?;
                self.stream.read_exact(piece).await.map(drop)
            }
            (chunk::OFFSET_HOLE, Brought::Data(part)) if length == 12 => {
                let at = self.stream.read_u64().await?.checked_sub(begin);
                let hole = self.stream.read_u32().await? as usize;
                let piece = at.and_then(|at| part.take(at, hole));
                piece.ok_or_else(|| wrong("a hole that was not asked for"))?.fill(0);
                Ok(())
            }
            (chunk::BLOCK_STATUS, Brought::Status(list)) if length <= STATUS_MAX && length % 8 == 4 => {
                let context = self.stream.read_u32().await?;
                let is_new = !list.iter().any(|(number, _)| *number == context);
                if !self.contexts.contains(&Some(context)) || !is_new {
                    return Err(wrong("a block status that was not asked for"));
                }
                let mut bytes = vec![0; length as usize - 4];
                self.stream.read_exact(&mut bytes).await?;
                if bytes.is_empty() || bytes.chunks_exact(8).any(|pair| pair[..4] == [0; 4]) {
                    return Err(wrong("an empty block status"));
                }
                list.push((context, bytes));
                Ok(())
            }
            (kind, _) if kind & chunk::IS_ERROR != 0 && (6..=ERROR_MAX).contains(&length) => {
                let mut bytes = vec![0; length as usize];
                self.stream.read_exact(&mut bytes).await?;
                pending.refused = Some(error(pending.ask, kind, &bytes));
                Ok(())
            }
            (kind, _) => Err(wrong(&format!("a chunk of kind {kind} with {length} bytes"))),
        }
    }
}

/// An error chunk: a number, a sentence, and of some kinds an offset.
fn error(ask: Ask, kind: u16, bytes: &[u8]) -> BlockError {
    let number = bytes.first_chunk().copied().map_or(0, u32::from_be_bytes);
    let said = bytes.get(4..6).map_or(0, |len| usize::from(len[0]) << 8 | usize::from(len[1]));
    let sentence = String::from_utf8_lossy(bytes.get(6..6 + said).unwrap_or_default()).into_owned();
    let offset = bytes.get(6 + said..).and_then(<[u8]>::first_chunk).copied().map(u64::from_be_bytes);
    let asked = ask.offset..ask.offset + u64::from(ask.length);
    match offset.filter(|offset| kind == chunk::ERROR_OFFSET && asked.contains(offset)) {
        Some(offset) if number == EIO => BlockError::Medium { offset },
        _ => refusal(ask.command, number, &sentence),
    }
}

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;

/// Error of a server as one of ours.
fn refusal(command: u16, number: u32, sentence: &str) -> BlockError {
    let said = if sentence.is_empty() { "the server refuses it" } else { sentence };
    match number {
        EPERM if command == command::RESIZE => BlockError::Unsupported,
        EINVAL if command == command::RESIZE => BlockError::Size { why: said.to_owned() },
        number => {
            let of_system = io::Error::from_raw_os_error(i32::try_from(number).unwrap_or(EIO as i32));
            match BlockError::from(of_system) {
                BlockError::Io { kind, message } if !sentence.is_empty() => {
                    BlockError::Io { kind, message: format!("{message}: {sentence}") }
                }
                error => error,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_in_any_order_and_each_once() {
        let part = || Part::of(Buf::zeroed(100), 10..60);
        for order in [[0, 10, 20, 30, 40], [40, 30, 20, 10, 0], [20, 0, 40, 10, 30]] {
            let mut part = part();
            for (number, at) in order.into_iter().enumerate() {
                assert!(!part.is_whole());
                part.take(at, 10).unwrap().fill(number as u8 + 1);
                for (at, len) in [(at, 1), (at, 10), (at + 9, 1)] {
                    assert!(part.take(at, len).is_none(), "{at} {len}");
                }
            }
            assert!(part.is_whole() && part.came.len() == 1 && part.came[0] == (0..50), "{:?}", part.came);
            assert!(part.buf[10..60].iter().all(|byte| *byte != 0) && part.buf[60..] == [0; 40]);
        }
        for (at, len) in [(0, 51), (50, 1), (0, 0), (u64::MAX, 2), (49, usize::MAX)] {
            assert!(part().take(at, len).is_none(), "{at} {len}");
        }
    }
}

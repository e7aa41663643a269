//! An export of another process as a device that is read.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Geometry, Io, SharedBuf, Zeroing,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::wire::{
    Chunk, Greeting, NBD_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    REQUEST_MAGIC, Request, STRUCTURED_REPLY_MAGIC, allocation, chunk, command, handshake, info, option,
    reply,
};

/// Connections, each with one request under way: a backup has 32 requests at a time, and half of them wait for the
/// destination.
const CONNECTIONS: usize = 16;
/// Most bytes of one read.
const READ_MAX: usize = 8 << 20;
/// Most bytes that are asked about at a time.
const STATUS_MAX: u64 = 1 << 30;
/// Most bytes of an answer that is no data: 128 Ki descriptors, which no server sends for 1 GiB.
const ANSWER_MAX: u32 = 1 << 20;
/// Most parts of the reply to an option.
const PARTS_MAX: usize = 64;
/// Timeout of all handshakes together.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("no NBD connection over {socket}: {source}")]
pub struct ConnectError {
    socket: String,
    source: io::Error,
}

/// A read-only device that is an export on a Unix socket of this machine: what a snapshot of a daemon is read by.
///
/// Reads and block status over 16 connections. Writes are [`BlockError::ReadOnly`]. An answer that the protocol does
/// not have, and a connection that broke, is [`BlockError::Gone`]. Needs a tokio runtime as long as it is used.
#[derive(Debug)]
pub struct NbdClient {
    connections: Arc<[Mutex<Option<UnixStream>>; CONNECTIONS]>,
    next: AtomicUsize,
    geometry: Geometry,
}

impl NbdClient {
    /// Connects to the default export on a socket.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: no server listens there, or it does not speak what is needed: structured replies and
    /// `base:allocation`.
    pub async fn connect(socket: &Path) -> Result<Self, ConnectError> {
        let connecting = async {
            let mut streams = Vec::new();
            let mut geometry = None;
            for _ in 0..CONNECTIONS {
                let (stream, found) = shake_hands(socket).await?;
                geometry = Some(found);
                streams.push(Mutex::new(Some(stream)));
            }
            let connections = streams.try_into().map_err(|_| wrong("connections"))?;
            let geometry = geometry.ok_or_else(|| wrong("no size"))?;
            Ok(Self { connections: Arc::new(connections), next: AtomicUsize::new(0), geometry })
        };
        let connected = tokio::time::timeout(CONNECT_TIME, connecting).await;
        connected
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| ConnectError { socket: socket.display().to_string(), source })
    }

    /// Has one connection carry something out. A task: what is abandoned in the middle of a reply would leave the rest
    /// of it to the next request.
    fn carry_out<T, W>(
        &self,
        work: impl FnOnce(UnixStream) -> W + Send + 'static,
    ) -> Io<Result<T, BlockError>>
    where
        T: Send + 'static,
        W: Future<Output = (UnixStream, Result<T, BlockError>)> + Send,
    {
        let connections = Arc::clone(&self.connections);
        let number = self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let task = tokio::spawn(async move {
            let mut place = connections[number].lock().await;
            // One that broke in the middle of a reply is not used again.
            let stream = place.take().ok_or_else(|| BlockError::gone("the NBD connection broke"))?;
            let (stream, done) = work(stream).await;
            if !matches!(done, Err(BlockError::Gone { .. })) {
                *place = Some(stream);
            }
            done
        });
        Io::pending(async move { task.await.unwrap_or_else(|_| Err(BlockError::lost())) })
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server does not speak the protocol: {what}"))
}

fn gone(error: &io::Error) -> BlockError {
    BlockError::gone(error.to_string())
}

async fn read_header<T: FromBytes + IntoBytes + FromZeros>(stream: &mut UnixStream) -> io::Result<T> {
    let mut header = T::new_zeroed();
    stream.read_exact(header.as_mut_bytes()).await?;
    Ok(header)
}

/// Sends an option; the data of what was answered before the acknowledgement.
async fn ask(stream: &mut UnixStream, option: u32, data: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let header = OptionHeader {
        magic: OPTION_MAGIC.into(),
        option: option.into(),
        length: (data.len() as u32).into(),
    };
    stream.write_all(header.as_bytes()).await?;
    stream.write_all(data).await?;
    let mut parts = Vec::new();
    while parts.len() < PARTS_MAX {
        let header: OptionReplyHeader = read_header(stream).await?;
        if header.magic != OPTION_REPLY_MAGIC || header.option != option || header.length.get() > ANSWER_MAX {
            return Err(wrong("a reply to an option"));
        }
        let mut data = vec![0; header.length.get() as usize];
        stream.read_exact(&mut data).await?;
        match header.reply.get() {
            reply::ACK => return Ok(parts),
            reply::INFO | reply::META_CONTEXT => parts.push(data),
            number => return Err(wrong(&format!("it refuses option {option} with {number:#x}"))),
        }
    }
    Err(wrong("a reply to an option that does not end"))
}

/// A connection in the transmission phase, and what the export is.
async fn shake_hands(socket: &Path) -> io::Result<(UnixStream, Geometry)> {
    let mut stream = UnixStream::connect(socket).await?;
    let greeting: Greeting = read_header(&mut stream).await?;
    if greeting.magic != NBD_MAGIC || greeting.option_magic != OPTION_MAGIC {
        return Err(wrong("its greeting"));
    }
    let flags = greeting.flags.get() & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    stream.write_u32(u32::from(flags)).await?;
    ask(&mut stream, option::STRUCTURED_REPLY, &[]).await?;
    let context = allocation::NAME.as_bytes();
    let query =
        [&0_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &(context.len() as u32).to_be_bytes(), context];
    if ask(&mut stream, option::SET_META_CONTEXT, &query.concat()).await?.is_empty() {
        return Err(wrong("it has no base:allocation"));
    }
    // The default export, and its block sizes.
    let query = [&0_u32.to_be_bytes()[..], &1_u16.to_be_bytes(), &info::BLOCK_SIZE.to_be_bytes()];
    let (mut size, mut sector) = (None, 512);
    for part in ask(&mut stream, option::GO, &query.concat()).await? {
        let number = |at: usize, length: usize| {
            let bytes = part.get(at..at + length)?;
            Some(bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
        };
        match number(0, 2).map(|kind| kind as u16) {
            Some(info::EXPORT) => size = number(2, 8),
            Some(info::BLOCK_SIZE) => sector = number(2, 4).unwrap_or(512),
            _ => {}
        }
    }
    let size = size.filter(|size| *size <= i64::MAX as u64).ok_or_else(|| wrong("no size"))?;
    let sector = if sector == 4096 { 4096 } else { 512 };
    let geometry = Geometry { read_only: true, ..Geometry::plain(size).with_sector(sector) };
    Ok((stream, geometry))
}

/// Destination of a reply's payload.
enum Brought<'a> {
    Data(&'a mut [u8]),
    Status(&'a mut Vec<u8>),
}

/// Sends one request and receives its reply.
async fn exchange(
    stream: &mut UnixStream,
    command: u16,
    offset: u64,
    length: u32,
    mut into: Brought<'_>,
) -> Result<(), BlockError> {
    let request = Request {
        magic: REQUEST_MAGIC.into(),
        flags: 0.into(),
        command: command.into(),
        cookie: 1.into(),
        offset: offset.into(),
        length: length.into(),
    };
    stream.write_all(request.as_bytes()).await.map_err(|error| gone(&error))?;
    let mut refused = None;
    // Bytes of data that came: all of them, each once.
    let mut came = 0_u64;
    loop {
        match part(stream, offset, &mut into, &mut refused, &mut came).await {
            Ok(false) => {}
            Ok(true) if refused.is_none() && command == command::READ && came != u64::from(length) => {
                return Err(gone(&wrong("a read that brought other bytes than were asked for")));
            }
            Ok(true) => return refused.map_or(Ok(()), |number| Err(of_number(number))),
            Err(error) => return Err(gone(&error)),
        }
    }
}

/// Receives one chunk of a reply. Returns `true` if it was the last.
async fn part(
    stream: &mut UnixStream,
    offset: u64,
    into: &mut Brought<'_>,
    refused: &mut Option<u32>,
    came: &mut u64,
) -> io::Result<bool> {
    let header: Chunk = read_header(stream).await?;
    if header.magic != STRUCTURED_REPLY_MAGIC || header.cookie != 1 {
        return Err(wrong("a reply to nothing"));
    }
    let length = header.length.get();
    match (header.kind.get(), &mut *into) {
        (chunk::OFFSET_DATA, Brought::Data(buf)) => {
            let at = stream.read_u64().await?.checked_sub(offset).map(|at| at as usize);
            let piece = at.and_then(|at| buf.get_mut(at..at.checked_add(length.checked_sub(8)? as usize)?));
            let piece = piece.ok_or_else(|| wrong("data that were not asked for"))?;
            stream.read_exact(piece).await?;
            *came += piece.len() as u64;
        }
        (kind, into) => {
            if length > ANSWER_MAX {
                return Err(wrong("a reply that is too long"));
            }
            let mut data = vec![0; length as usize];
            stream.read_exact(&mut data).await?;
            let number = data.first_chunk().copied().map(u32::from_be_bytes);
            match (kind, into) {
                (chunk::BLOCK_STATUS, Brought::Status(list)) => {
                    **list = data.get(4..).ok_or_else(|| wrong("an empty block status"))?.to_vec();
                }
                (chunk::NONE, _) => {}
                (kind, _) if kind >> 15 == 1 => *refused = Some(number.unwrap_or(0)),
                (kind, _) => return Err(wrong(&format!("a reply of kind {kind}"))),
            }
        }
    }
    Ok(header.flags.get() & chunk::DONE != 0)
}

fn of_number(number: u32) -> BlockError {
    io::Error::from_raw_os_error(i32::try_from(number).unwrap_or(5)).into()
}

/// Pairs of length and flags as extents of what begins at `offset`.
fn extents(bytes: &[u8], offset: u64, end: u64, list: &mut Vec<Extent>) -> u64 {
    let mut at = offset;
    for pair in bytes.chunks_exact(8) {
        let number =
            |from: usize| pair[from..from + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let len = u64::from(number(0)).min(end - at);
        let kind = match number(4) {
            flags if flags & allocation::ZERO != 0 => ExtentKind::Zero,
            flags if flags & allocation::HOLE != 0 => ExtentKind::Unallocated,
            _ => ExtentKind::Data,
        };
        Extent { offset: at, len, kind }.push_onto(list);
        at += len;
    }
    at
}

impl BlockDevice for NbdClient {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.geometry.check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        self.carry_out(move |mut stream| async move {
            let mut at = offset;
            for piece in buf.chunks_mut(READ_MAX) {
                let length = piece.len() as u32;
                let read = exchange(&mut stream, command::READ, at, length, Brought::Data(piece)).await;
                if let Err(error) = read {
                    return (stream, Err(error));
                }
                at += u64::from(length);
            }
            (stream, Ok(buf))
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry.check_write(offset, data.len() as u64))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry.check_write(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry.check_write(offset, len))
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        if let Err(error) = self.geometry.check(offset, len) {
            return Io::err(error);
        }
        self.carry_out(move |mut stream| async move {
            let (mut list, mut at, end) = (Vec::new(), offset, offset + len);
            while at < end && list.len() < count {
                let length = (end - at).min(STATUS_MAX) as u32;
                let mut status = Vec::new();
                let into = Brought::Status(&mut status);
                if let Err(error) = exchange(&mut stream, command::BLOCK_STATUS, at, length, into).await {
                    return (stream, Err(error));
                }
                let next = extents(&status, at, end, &mut list);
                if next == at {
                    return (stream, Err(gone(&wrong("an empty block status"))));
                }
                at = next;
            }
            (stream, Ok(list))
        })
    }
}

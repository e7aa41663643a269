//! A client of NBD, as small as the checks allow: one request at a time on each of several connections.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Geometry, Io, Permit, SharedBuf, Unmap,
    Zeroing,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

/// Connections, so that as many requests are under way.
const CONNECTIONS: usize = 8;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;
const RESIZE: u16 = 8;
const FUA: u16 = 1 << 0;
const NO_HOLE: u16 = 1 << 1;
const EPERM: u32 = 1;
const EINVAL: u32 = 22;

pub(crate) struct TestClient {
    connections: Arc<[Mutex<UnixStream>; CONNECTIONS]>,
    next: AtomicUsize,
    size: Arc<AtomicU64>,
    callbacks: Arc<std::sync::Mutex<Vec<lunway_block::ResizeCallback>>>,
}

/// An error of the server.
struct Refused(u32);

/// A request that is answered by an error of the server or of the socket.
enum Failed {
    Refused(Refused),
    Broken(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<Failed> for BlockError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused(Refused(EPERM)) => Self::Unsupported,
            Failed::Refused(Refused(EINVAL)) => Self::Size { why: "the server refuses it".to_owned() },
            Failed::Refused(Refused(number)) => io::Error::from_raw_os_error(number as i32).into(),
            Failed::Broken(error) => Self::gone(error.to_string()),
        }
    }
}

async fn option(stream: &mut UnixStream, option: u32, data: &[u8]) -> io::Result<Vec<u8>> {
    let header = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat();
    stream.write_all(&header).await?;
    let mut information = Vec::new();
    loop {
        let (_, _, reply) = (stream.read_u64().await?, stream.read_u32().await?, stream.read_u32().await?);
        let mut data = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut data).await?;
        match reply {
            1 => return Ok(information),
            3 | 4 => information.extend(data),
            error => return Err(io::Error::other(format!("the server answers an option with {error:#x}"))),
        }
    }
}

/// A connection in the transmission phase, with structured replies and block status, and the size of the export.
async fn shake_hands(path: &Path) -> io::Result<(UnixStream, u64)> {
    let mut stream = UnixStream::connect(path).await?;
    stream.read_exact(&mut [0; 18]).await?;
    stream.write_u32(3).await?;
    option(&mut stream, 8, &[]).await?;
    let context = b"base:allocation";
    let query =
        [&0u32.to_be_bytes()[..], &1u32.to_be_bytes(), &(context.len() as u32).to_be_bytes(), context];
    option(&mut stream, 10, &query.concat()).await?;
    let information = option(&mut stream, 7, &[0; 6]).await?;
    let size = information.get(2..10).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    Ok((stream, size.ok_or_else(|| io::Error::other("no size"))?))
}

impl TestClient {
    pub(crate) async fn connect(path: &Path) -> io::Result<Self> {
        let mut streams = Vec::new();
        let mut last = 0;
        for _ in 0..CONNECTIONS {
            let (stream, size) = shake_hands(path).await?;
            last = size;
            streams.push(Mutex::new(stream));
        }
        let connections = streams.try_into().map_err(|_| io::Error::other("connections"))?;
        Ok(Self {
            connections: Arc::new(connections),
            next: AtomicUsize::new(0),
            size: Arc::new(AtomicU64::new(last)),
            callbacks: Arc::default(),
        })
    }

    /// Sends a request; what a read or a block status brought.
    fn request(
        &self,
        command: u16,
        flags: u16,
        (offset, len): (u64, u64),
        data: SharedBuf,
    ) -> Io<Result<Vec<u8>, BlockError>> {
        let connections = Arc::clone(&self.connections);
        let number = self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        // A task: what is abandoned in the middle of a reply would leave the rest of it to the next request.
        let task = tokio::spawn(async move {
            let mut stream = connections[number].lock().await;
            exchange(&mut stream, command, flags, (offset, len), &data).await
        });
        Io::pending(async move {
            task.await.map_err(|_| BlockError::lost()).and_then(|answer| answer.map_err(BlockError::from))
        })
    }

    fn done(
        &self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u64,
        data: SharedBuf,
    ) -> Io<Result<(), BlockError>> {
        match self.geometry().check_write(offset, len) {
            Ok(()) if len > 0 => self.request(command, flags, (offset, len), data).map(|done| done.map(drop)),
            checked => Io::Ready(checked),
        }
    }
}

async fn exchange(
    stream: &mut UnixStream,
    command: u16,
    flags: u16,
    (offset, len): (u64, u64),
    data: &[u8],
) -> Result<Vec<u8>, Failed> {
    let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
    request.extend(flags.to_be_bytes());
    request.extend(command.to_be_bytes());
    request.extend(7u64.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend((len as u32).to_be_bytes());
    request.extend(data);
    stream.write_all(&request).await?;
    let mut brought = vec![0; if command == READ { len as usize } else { 0 }];
    let mut refused = None;
    loop {
        let magic = stream.read_u32().await?;
        if magic == 0x6744_6698 {
            let error = stream.read_u32().await?;
            stream.read_u64().await?;
            return if error == 0 { Ok(brought) } else { Err(Failed::Refused(Refused(error))) };
        }
        let (flags, kind) = (stream.read_u16().await?, stream.read_u16().await?);
        stream.read_u64().await?;
        let mut chunk = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut chunk).await?;
        match kind {
            1 => {
                let at = u64::from_be_bytes(chunk[..8].try_into().unwrap()) - offset;
                brought[at as usize..][..chunk.len() - 8].copy_from_slice(&chunk[8..]);
            }
            // Behind the number of the context.
            5 => brought = chunk[4..].to_vec(),
            kind if kind >> 15 == 1 => refused = Some(u32::from_be_bytes(chunk[..4].try_into().unwrap())),
            _ => {}
        }
        if flags & 1 != 0 {
            return refused.map_or(Ok(brought), |number| Err(Failed::Refused(Refused(number))));
        }
    }
}

impl BlockDevice for TestClient {
    fn geometry(&self) -> Geometry {
        // A trim promises nothing of what is read afterwards.
        Geometry {
            unmap: Unmap::Frees { granularity: 4096 },
            volatile_cache: true,
            ..Geometry::plain(self.size.load(Ordering::Relaxed))
        }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        match self.geometry().check(offset, buf.len() as u64) {
            Ok(()) if !buf.is_empty() => {
                let range = (offset, buf.len() as u64);
                self.request(READ, 0, range, SharedBuf::default()).map(|answer| {
                    answer.map(|bytes| {
                        buf.copy_from_slice(&bytes);
                        buf
                    })
                })
            }
            checked => Io::Ready(checked.map(|()| buf)),
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let flags = if durability == Durability::Stable { FUA } else { 0 };
        self.done(WRITE, flags, offset, data.len() as u64, data)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.request(FLUSH, 0, (0, 0), SharedBuf::default()).map(|done| done.map(drop))
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.done(TRIM, 0, offset, len, SharedBuf::default())
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let flags = if zeroing == Zeroing::KeepAllocated { NO_HOLE } else { 0 };
        self.done(WRITE_ZEROES, flags, offset, len, SharedBuf::default())
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        match self.geometry().check(offset, len) {
            Ok(()) if len > 0 => {
                let asked = self.request(BLOCK_STATUS, 0, (offset, len), SharedBuf::default());
                asked.map(move |answer| answer.map(|bytes| descriptors(&bytes, offset, len)))
            }
            checked => Io::Ready(checked.map(|()| Vec::new())),
        }
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        if let Err(error) = permit.begin() {
            return Io::err(error);
        }
        let (shared, callbacks) = (Arc::clone(&self.size), Arc::clone(&self.callbacks));
        let geometry = self.geometry();
        self.request(RESIZE, 0, (size, 0), SharedBuf::default()).map(move |done| {
            done.map(|_| {
                shared.store(size, Ordering::Relaxed);
                callbacks.lock().unwrap().iter().for_each(|callback| callback(Geometry { size, ..geometry }));
            })
        })
    }

    fn on_resize(&self, callback: lunway_block::ResizeCallback) {
        self.callbacks.lock().unwrap().push(callback);
    }
}

/// Pairs of length and flags as extents; what the server leaves out at the end is data.
fn descriptors(bytes: &[u8], offset: u64, len: u64) -> Vec<Extent> {
    let (mut list, mut at) = (Vec::new(), offset);
    for pair in bytes.chunks_exact(8) {
        let number = |part: &[u8]| u32::from_be_bytes(part.try_into().unwrap());
        let piece = u64::from(number(&pair[..4])).min(offset + len - at);
        let kind = match number(&pair[4..]) {
            flags if flags & 2 != 0 => ExtentKind::Zero,
            flags if flags & 1 != 0 => ExtentKind::Unallocated,
            _ => ExtentKind::Data,
        };
        Extent { offset: at, len: piece, kind }.push_onto(&mut list);
        at += piece;
    }
    Extent { offset: at, len: offset + len - at, kind: ExtentKind::Data }.push_onto(&mut list);
    list
}

//! An export of another process, on this machine or another, as a device.

mod connection;
mod handshake;
mod reply;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lunway_block::spec::NbdUri;
use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Geometry, Identity, Io, Permit,
    ResizeCallback, SharedBuf, Unmap, Zeroing,
};
use tokio::runtime::Handle;

use self::connection::{Ask, Connection};
use self::handshake::{Offer, shake_hands};
use self::reply::{Brought, Part};
use crate::wire::{allocation, command, dirty_bitmap, flag, transmission};

/// Connections, where the server says that a flush on one holds for all: as many as nbdcopy and a kernel's client use
/// together.
const CONNECTIONS: usize = 8;
/// Most bytes of one read or write: long enough for any link, and a quarter of what servers take.
const TRANSFER_MAX: u32 = 8 << 20;
/// Most bytes that are asked about, trimmed or zeroed by one request, which has 32 bits for its length.
const RANGE_MAX: u64 = 1 << 30;
/// Timeout of the first handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Timeout of the other ones: so many times what the first one took, and this at least. A server with a limit of
/// clients lets the next one wait without a word.
const MORE_TIMES: u32 = 4;
const MORE_TIME: Duration = Duration::from_millis(500);
/// Replies to one question about extents. A server that tells of little at a time would keep the caller waiting for
/// hours: of the rest nothing is known. QEMU tells of 2047 extents in each.
const STATUS_REPLIES: usize = 1024;
/// Space that a trim gives back, where a server has it: what file systems allocate by. NBD does not say.
const GRANULARITY: u32 = 4096;

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("no NBD connection to {uri}: {source}")]
pub struct ConnectError {
    uri: String,
    source: io::Error,
}

/// Part of a disk of which a bitmap was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyPart {
    /// Dirty ranges in order, bytes.
    pub ranges: Vec<Range<u64>>,
    /// The first byte of which nothing is known yet.
    pub end: u64,
}

/// A device that is an export of an NBD server.
///
/// Up to 8 connections, where the server allows several, with 16 requests under way on each. What the server cannot do
/// is done without: no trim does nothing, no FUA is a flush, zeroes are written; without structured replies or
/// `base:allocation` everything is data. Whatever a server sends is limited and checked: an answer that the protocol
/// does not have ends the connection. The operations on it, and all later ones once no connection is left, fail as
/// [`BlockError::Gone`]: nothing is connected again. Any thread may use it, as long as the runtime that it was opened
/// in is driven.
pub struct NbdClient {
    runtime: Handle,
    connections: Vec<Arc<Connection>>,
    next: AtomicUsize,
    uri: NbdUri,
    offer: Offer,
    size: Arc<AtomicU64>,
    callbacks: Arc<Mutex<Vec<ResizeCallback>>>,
}

impl NbdClient {
    /// Connects to an export. With a `bitmap`, the context `qemu:dirty-bitmap:BITMAP` is asked for, too: see
    /// [`has_bitmap`](Self::has_bitmap).
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: no server listens there, it does not speak the fixed newstyle protocol with `NBD_OPT_GO`, or
    /// it has no such export.
    pub async fn connect(uri: &NbdUri, bitmap: Option<&str>) -> Result<Self, ConnectError> {
        let begun = Instant::now();
        let first = tokio::time::timeout(CONNECT_TIME, shake_hands(uri, bitmap)).await;
        let (stream, offer) = first
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| ConnectError { uri: uri.to_string(), source })?;
        let mut connections = vec![Arc::new(Connection::start(stream, &offer))];
        if offer.can(transmission::CAN_MULTI_CONN) {
            let limit = MORE_TIME.max(begun.elapsed() * MORE_TIMES);
            let more = (1..CONNECTIONS).map(|_| tokio::time::timeout(limit, shake_hands(uri, bitmap)));
            // One that shows another disk is another server's by now.
            let alike =
                join_all(more).await.into_iter().flatten().flatten().filter(|(_, other)| *other == offer);
            connections.extend(alike.map(|(stream, offer)| Arc::new(Connection::start(stream, &offer))));
        }
        Ok(Self {
            runtime: Handle::current(),
            connections,
            next: AtomicUsize::new(0),
            uri: uri.clone(),
            size: Arc::new(AtomicU64::new(offer.size)),
            offer,
            callbacks: Arc::default(),
        })
    }

    /// Returns `true` if the export has the bitmap that was asked for.
    pub fn has_bitmap(&self) -> bool {
        self.offer.bitmap.is_some()
    }

    /// Dirty ranges by the bitmap that was asked for, from `offset` to the returned end: at least one byte further, as
    /// a rule 1 GiB.
    ///
    /// # Errors
    ///
    /// [`BlockError::Unsupported`] if the export does not have it; what the server answers.
    pub fn dirty(&self, offset: u64) -> Io<Result<DirtyPart, BlockError>> {
        let Some(context) = self.offer.bitmap else { return Io::err(BlockError::Unsupported) };
        let end = self.geometry().size.min(offset.saturating_add(RANGE_MAX));
        if offset >= end {
            return Io::ok(DirtyPart { ranges: Vec::new(), end: offset });
        }
        self.carry_out(move |connection| async move {
            let bytes = status(&connection, context, offset, end).await?;
            let mut part = DirtyPart { ranges: Vec::new(), end: offset };
            for (range, flags) in descriptors(&bytes, offset, end) {
                part.end = range.end;
                // A flag that is not known may mean anything but that nothing was written.
                let is_dirty = flags & dirty_bitmap::DIRTY != 0 || flags & !dirty_bitmap::DIRTY != 0;
                match part.ranges.last_mut() {
                    Some(last) if is_dirty && last.end == range.start => last.end = range.end,
                    _ if is_dirty => part.ranges.push(range),
                    _ => {}
                }
            }
            Ok(part)
        })
    }

    /// Has one connection carry something out. A task: what is abandoned after half of a request would leave the rest
    /// of it to the next one.
    fn carry_out<T, W>(&self, work: impl FnOnce(Arc<Connection>) -> W) -> Io<Result<T, BlockError>>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, BlockError>> + Send + 'static,
    {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.connections.len();
        let in_turn = (0..count).map(|step| &self.connections[(number + step) % count]);
        // If all are broken, any of them says why.
        let chosen = in_turn.clone().find(|connection| !connection.is_broken()).or(in_turn.clone().next());
        let Some(connection) = chosen.map(Arc::clone) else {
            return Io::err(BlockError::gone("no connection"));
        };
        let task = self.runtime.spawn(work(connection));
        Io::pending(async move { task.await.unwrap_or_else(|_| Err(BlockError::lost())) })
    }

    /// Has requests sent one after another for the parts of a range.
    fn in_parts(&self, ask: Ask, len: u64) -> Io<Result<(), BlockError>> {
        self.carry_out(move |connection| async move {
            let mut at = 0;
            while at < len {
                let length = (len - at).min(RANGE_MAX);
                let part = Ask { offset: ask.offset + at, length: length as u32, ..ask };
                connection.exchange(part, None, Brought::Nothing).await?;
                at += length;
            }
            Ok(())
        })
    }

    /// Writes in pieces that the server takes; without FUA a flush makes them durable.
    fn write_in_pieces(
        &self,
        offset: u64,
        len: u64,
        durability: Durability,
        mut piece: impl FnMut(Range<usize>) -> SharedBuf + Send + 'static,
    ) -> Io<Result<(), BlockError>> {
        let stable = durability == Durability::Stable;
        let fua = stable && self.offer.can(transmission::SEND_FUA);
        let flushes = stable && !fua && self.offer.can(transmission::SEND_FLUSH);
        let longest = u64::from(self.offer.transfer_max.min(TRANSFER_MAX));
        self.carry_out(move |connection| async move {
            let mut at = 0;
            while at < len {
                let length = (len - at).min(longest);
                let data = piece(at as usize..(at + length) as usize);
                let flags = if fua { flag::FUA } else { 0 };
                let ask = Ask { command: command::WRITE, flags, offset: offset + at, length: length as u32 };
                connection.exchange(ask, Some(data), Brought::Nothing).await?;
                at += length;
            }
            if flushes {
                connection.exchange(FLUSH, None, Brought::Nothing).await?;
            }
            Ok(())
        })
    }
}

const FLUSH: Ask = Ask { command: command::FLUSH, flags: 0, offset: 0, length: 0 };

/// What one context says of a range from its first byte on.
async fn status(connection: &Connection, context: u32, offset: u64, end: u64) -> Result<Vec<u8>, BlockError> {
    let length = (end - offset).min(RANGE_MAX) as u32;
    let ask = Ask { command: command::BLOCK_STATUS, flags: 0, offset, length };
    let Brought::Status(list) = connection.exchange(ask, None, Brought::Status(Vec::new())).await? else {
        return Err(BlockError::lost());
    };
    let found = list.into_iter().find(|(number, _)| *number == context).map(|(_, bytes)| bytes);
    // Checked when it came: at least one descriptor, none of them empty.
    found.ok_or_else(|| BlockError::gone("the server left out a part of the block status"))
}

/// Pairs of length and flags as ranges of what begins at `offset`.
fn descriptors(bytes: &[u8], offset: u64, end: u64) -> impl Iterator<Item = (Range<u64>, u32)> {
    let mut at = offset;
    bytes.chunks_exact(8).map_while(move |pair| {
        let number =
            |from: usize| pair[from..from + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let range = at..at.saturating_add(u64::from(number(0))).min(end);
        at = range.end;
        (!range.is_empty()).then_some((range, number(4)))
    })
}

impl BlockDevice for NbdClient {
    fn geometry(&self) -> Geometry {
        let can = |flag| self.offer.can(flag);
        let read_only = can(transmission::READ_ONLY);
        Geometry {
            read_only,
            // A trim promises nothing of what is read afterwards.
            unmap: match !read_only && can(transmission::SEND_TRIM) {
                true => Unmap::Frees { granularity: GRANULARITY },
                false => Unmap::Never,
            },
            volatile_cache: !read_only && can(transmission::SEND_FLUSH),
            rotational: can(transmission::ROTATIONAL),
            ..Geometry::plain(self.size.load(Ordering::Relaxed)).with_sector(self.offer.sector)
        }
    }

    fn identity(&self) -> Identity {
        Identity::of_place(self.uri.to_string())
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.geometry().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        let longest = self.offer.transfer_max.min(TRANSFER_MAX) as usize;
        self.carry_out(move |connection| async move {
            let mut at = 0;
            while at < buf.len() {
                let piece = at..buf.len().min(at + longest);
                let length = piece.len() as u32;
                let ask = Ask { command: command::READ, flags: 0, offset: offset + at as u64, length };
                let into = Brought::Data(Part::of(buf, piece.clone()));
                let Brought::Data(part) = connection.exchange(ask, None, into).await? else {
                    return Err(BlockError::lost());
                };
                (buf, at) = (part.buf, piece.end);
            }
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let len = data.len() as u64;
        match self.geometry().check_write(offset, len) {
            Ok(()) => self.write_in_pieces(offset, len, durability, move |range| data.slice(range)),
            Err(error) => Io::err(error),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        match self.geometry().volatile_cache {
            true => self.carry_out(|connection| async move {
                connection.exchange(FLUSH, None, Brought::Nothing).await.map(drop)
            }),
            false => Io::ok(()),
        }
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.geometry().check_write(offset, len) {
            Ok(()) if self.offer.can(transmission::SEND_TRIM) => {
                self.in_parts(Ask { command: command::TRIM, flags: 0, offset, length: 0 }, len)
            }
            checked => Io::Ready(checked),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.geometry().check_write(offset, len) {
            return Io::err(error);
        }
        if !self.offer.can(transmission::SEND_WRITE_ZEROES) {
            let zeroes = Buf::zeroed(len.min(u64::from(TRANSFER_MAX)) as usize).freeze();
            let piece = move |range: Range<usize>| zeroes.slice(0..range.len());
            return self.write_in_pieces(offset, len, Durability::Volatile, piece);
        }
        let flags = if zeroing == Zeroing::KeepAllocated { flag::NO_HOLE } else { 0 };
        self.in_parts(Ask { command: command::WRITE_ZEROES, flags, offset, length: 0 }, len)
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        if let Err(error) = self.geometry().check(offset, len) {
            return Io::err(error);
        }
        let Some(context) = self.offer.allocation else {
            let mut list = Vec::new();
            Extent { offset, len, kind: ExtentKind::Data }.push_onto(&mut list);
            return Io::ok(list);
        };
        self.carry_out(move |connection| async move {
            let (mut list, mut at, end) = (Vec::new(), offset, offset + len);
            let mut replies = 0;
            while at < end && list.len() < count {
                if replies == STATUS_REPLIES {
                    Extent { offset: at, len: end - at, kind: ExtentKind::Data }.push_onto(&mut list);
                    break;
                }
                replies += 1;
                let bytes = status(&connection, context, at, end).await?;
                for (range, flags) in descriptors(&bytes, at, end) {
                    let kind = match flags {
                        flags if flags & allocation::ZERO != 0 => ExtentKind::Zero,
                        flags if flags & allocation::HOLE != 0 => ExtentKind::Unallocated,
                        _ => ExtentKind::Data,
                    };
                    Extent { offset: range.start, len: range.end - range.start, kind }.push_onto(&mut list);
                    at = range.end;
                }
            }
            Ok(list)
        })
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        if self.geometry().read_only {
            return Io::err(BlockError::ReadOnly);
        }
        if !self.offer.can(transmission::SEND_RESIZE) {
            return Io::err(BlockError::Unsupported);
        }
        if let Err(error) = permit.begin() {
            return Io::err(error);
        }
        let (shared, callbacks) = (Arc::clone(&self.size), Arc::clone(&self.callbacks));
        let geometry = Geometry { size, ..self.geometry() };
        self.carry_out(move |connection| async move {
            let ask = Ask { command: command::RESIZE, flags: 0, offset: size, length: 0 };
            connection.exchange(ask, None, Brought::Nothing).await?;
            shared.store(size, Ordering::Relaxed);
            let callbacks = callbacks.lock().unwrap_or_else(PoisonError::into_inner);
            callbacks.iter().for_each(|callback| callback(geometry));
            Ok(())
        })
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        let connections = self.connections.clone();
        Io::pending(async move {
            for connection in connections {
                connection.disconnect().await;
            }
            Ok(())
        })
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_end_with_the_range_that_was_asked_about() {
        let bytes = [[0, 0, 2, 0, 0, 0, 0, 1], [0, 0, 4, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 3]].concat();
        let list: Vec<_> = descriptors(&bytes, 1024, 2048).collect();
        assert_eq!(list, [(1024..1536, 1), (1536..2048, 0)]);
        let end = u64::MAX - 8;
        assert_eq!(descriptors(&[0xff; 8], end - 1, end).next(), Some((end - 1..end, u32::MAX)));
    }
}

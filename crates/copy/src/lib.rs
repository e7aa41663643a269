//! The engine of copies: one device to another, sparse, several requests in flight.
//!
//! | of a copy | is |
//! |---|---|
//! | progress | a function that hears how many bytes were dealt with |
//! | cancellation | a function that is asked before each piece; what is under way is finished and flushed |
//! | resumption | [`Before::Unfinished`]: what is equal is not written again, so no record is needed |
//! | verification | [`Transfer::compare`] reads both again and names the first difference |
//! | what is left out | [`Skipped`]: parts that are not read, and zeroes at the destination |
//!
//! [`Transfer`] is the manual; `pieces` cuts a device into what is moved at a time, `zeroes` finds them in data.
//!
//! **Invariant:** this crate sees [`BlockDevice`]; it does not know where devices come from, who asked for the copy, or
//! how anything is shown.

mod pieces;
mod refusals;
mod skip;
mod zeroes;

use std::fmt;
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, BlockError, Buf, Durability, SharedBuf, Zeroing};

use pieces::{Content, Piece, Pieces};
use refusals::Refusals;
use zeroes::{is_zero, runs};

pub use skip::Skipped;

/// Pieces under way at a time: with pieces of 1 MiB enough to fill a network, and at most 16 MiB of memory.
const IN_FLIGHT: usize = 8;

/// Copies all of `source` to the start of `destination`.
///
/// What the source says is not data, and what is zeroes when read, is not sent: the destination is told to be zero
/// there, or left alone where [`before`](Self::before) says that it is. Where both lie in files of one file system of
/// this host, data does not pass through this process. With reflinks it is shared and not looked at: zeroes in it are
/// shared as data. Otherwise the kernel copies what has no zeroes ([`BlockDevice::adopt`]). The order of writes is not
/// defined; everything is durable when [`copy`](Self::copy) has returned.
pub struct Transfer<'a> {
    /// Device to copy.
    pub source: &'a dyn BlockDevice,
    /// Device to copy to.
    pub destination: &'a dyn BlockDevice,
    /// Known content of the destination.
    pub before: Before,
    /// Ranges of the source that are not copied. The source must not be written during the copy.
    pub skipped: &'a Skipped,
    /// Returns `true` if the copy should end early; asked before each piece.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// The destination's content before a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Zeroes everywhere: it was just made.
    Blank,
    /// Anything.
    Unknown,
    /// Remains of an interrupted copy: each piece is compared and written only where it differs. No record of progress
    /// is needed, and none can be wrong: the source may have changed since.
    Unfinished,
}

/// Result of a copy, even if it was cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of the source that were dealt with.
    pub done: u64,
    /// Of these, bytes that were written.
    pub written: u64,
    /// Bytes of data of the source that were not copied because they were to be [skipped](Transfer::skipped).
    pub skipped: u64,
    /// The whole source was dealt with.
    pub complete: bool,
}

/// Reason why a copy ended early.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// There is no room.
    #[error(
        "the destination has {}, {} less than the source: take a larger one",
        HumanSize(*destination_size), HumanSize(source_size.saturating_sub(*destination_size))
    )]
    TooSmall {
        /// Bytes.
        source_size: u64,
        /// Bytes.
        destination_size: u64,
    },
    /// The same disk, named twice or reached over two paths.
    #[error("the source and the destination are the same disk ({place})")]
    SameDisk {
        /// Location of the disk.
        place: String,
    },
    /// There is no room for the last sector.
    #[error(
        "the source has {source_size} bytes, which are not whole sectors of the destination ({sector} bytes), and it has no room for the rest of the last one"
    )]
    Tail {
        /// Bytes.
        source_size: u64,
        /// The destination's, bytes.
        sector: u32,
    },
    /// Cannot be written.
    #[error("the destination is read-only")]
    ReadOnly,
    /// A device failed.
    #[error("{side} failed at offset {offset}: {error}{paths}")]
    Io {
        /// The device that failed.
        side: Side,
        /// First byte that failed, as far as the device says which; else that of the request.
        offset: u64,
        /// Error from the device.
        error: BlockError,
        /// Information from the device about its paths, in brackets, or empty.
        paths: String,
    },
    /// Data that was written may be lost.
    #[error("the destination failed to make everything durable: {error}{paths}")]
    Flush {
        /// Error from the destination.
        error: BlockError,
        /// Information from the destination about its paths, in brackets, or empty.
        paths: String,
    },
}

/// Returns a device's information about its paths, for errors that by themselves say only that no answer came; empty if
/// there is none.
pub fn of_paths(device: &dyn BlockDevice, error: &BlockError) -> String {
    if !matches!(error, BlockError::Timeout { .. } | BlockError::Aborted { .. } | BlockError::Busy) {
        return String::new();
    }
    let paths = device.paths().into_iter();
    let events = paths.filter_map(|path| Some(format!("{}: {}", path.name, path.last_event?)));
    let events: Vec<_> = events.collect();
    if events.is_empty() { String::new() } else { format!(" ({})", events.join("; ")) }
}

/// Side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Device to copy.
    Source,
    /// Device to copy to.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "reading the source",
            Self::Destination => "the destination",
        })
    }
}

fn source_error(offset: u64) -> impl FnOnce(BlockError) -> TransferError {
    move |error| {
        let offset = error.place().unwrap_or(offset);
        TransferError::Io { side: Side::Source, offset, error, paths: String::new() }
    }
}

fn destination_error(offset: u64) -> impl FnOnce(BlockError) -> TransferError {
    move |error| {
        let offset = error.place().unwrap_or(offset);
        TransferError::Io { side: Side::Destination, offset, error, paths: String::new() }
    }
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Bytes that were compared.
    pub done: u64,
    /// The first byte that differs.
    pub differs_at: Option<u64>,
    /// Everything up to the first difference was compared.
    pub complete: bool,
}

/// Result of a search for data in a destination that an interrupted copy of this source did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// No.
    None,
    /// Yes, here.
    At(u64),
    /// The search was cancelled before it found any.
    Cancelled,
}

impl Transfer<'_> {
    /// Refuses what cannot work before anything is written.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn check(&self) -> Result<(), TransferError> {
        let (source, destination) = (self.source.geometry(), self.destination.geometry());
        let (source_size, destination_size) = (source.size, destination.size);
        let identity = self.source.identity();
        if identity.is_same_disk(&self.destination.identity()) {
            return Err(TransferError::SameDisk { place: identity.place.unwrap_or_default() });
        }
        if source_size > destination_size {
            return Err(TransferError::TooSmall { source_size, destination_size });
        }
        let sector = destination.logical_sector;
        if source_size.next_multiple_of(sector.into()) > destination_size {
            return Err(TransferError::Tail { source_size, sector });
        }
        if destination.read_only {
            return Err(TransferError::ReadOnly);
        }
        Ok(())
    }

    /// Copies, and flushes. `progress` hears how many bytes of the source were dealt with.
    ///
    /// # Errors
    ///
    /// Why it ended early. What was written stays, and [`Before::Unfinished`] goes on from there.
    pub async fn copy(&self, progress: &mut dyn FnMut(u64)) -> Result<Copied, TransferError> {
        self.check()?;
        self.copy_all(progress).await.map_err(|error| self.explained(error))
    }

    /// Reads both again and compares, up to the first difference.
    ///
    /// # Errors
    ///
    /// A device that could not be read.
    pub async fn compare(&self, progress: &mut dyn FnMut(u64)) -> Result<Compared, TransferError> {
        self.compare_all(progress).await.map_err(|error| self.explained(error))
    }

    /// An error, with what the device that failed knows of its paths.
    fn explained(&self, mut error: TransferError) -> TransferError {
        let device = |side| if side == Side::Source { self.source } else { self.destination };
        match &mut error {
            TransferError::Io { side, error, paths, .. } => *paths = of_paths(device(*side), error),
            TransferError::Flush { error, paths } => *paths = of_paths(self.destination, error),
            _ => {}
        }
        error
    }

    /// The first place at which the destination holds neither what the source does nor zeroes. An interrupted copy to
    /// an empty destination leaves none.
    pub async fn foreign_data(&self, progress: &mut dyn FnMut(u64)) -> Result<Foreign, TransferError> {
        self.look_for_foreign_data(progress).await.map_err(|error| self.explained(error))
    }

    async fn look_for_foreign_data(&self, progress: &mut dyn FnMut(u64)) -> Result<Foreign, TransferError> {
        let mut pieces = self.pieces();
        let mut running = FuturesUnordered::new();
        let (mut done, mut found) = (0, None);
        loop {
            while running.len() < IN_FLIGHT && found.is_none() && !(self.is_cancelled)() {
                match pieces.next().await.map_err(source_error(pieces.position()))? {
                    Some(piece) => running.push(self.foreign_data_in(piece)),
                    None => break,
                }
            }
            let Some(result) = running.next().await else { break };
            let (piece, foreign) = result?;
            done += piece.len;
            found = [found, foreign].into_iter().flatten().min();
            progress(done);
        }
        Ok(match found {
            Some(offset) => Foreign::At(offset),
            None if done == pieces.end() => Foreign::None,
            None => Foreign::Cancelled,
        })
    }

    async fn copy_all(&self, progress: &mut dyn FnMut(u64)) -> Result<Copied, TransferError> {
        let mut copied = Copied::default();
        let refusals = Refusals::default();
        let mut pieces = self.pieces();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < IN_FLIGHT && !(self.is_cancelled)() {
                match pieces.next().await.map_err(source_error(pieces.position()))? {
                    Some(piece) => running.push(self.move_piece(piece, &refusals)),
                    None => break,
                }
            }
            let Some(moved) = running.next().await else { break };
            let (piece, written) = moved?;
            copied.done += piece.len;
            copied.written += written;
            copied.skipped += if piece.content == Content::Skipped { piece.len } else { 0 };
            progress(copied.done);
        }
        self.source.confirm().await.map_err(source_error(0))?;
        let flushed = self.destination.flush().await;
        flushed.map_err(|error| TransferError::Flush { error, paths: String::new() })?;
        copied.complete = copied.done == pieces.end();
        Ok(copied)
    }

    async fn compare_all(&self, progress: &mut dyn FnMut(u64)) -> Result<Compared, TransferError> {
        let mut compared = Compared::default();
        let mut pieces = self.pieces();
        let mut running = FuturesUnordered::new();
        loop {
            // Pieces start in order: when the last one that runs has ended, the least difference is the first.
            while running.len() < IN_FLIGHT && compared.differs_at.is_none() && !(self.is_cancelled)() {
                match pieces.next().await.map_err(source_error(pieces.position()))? {
                    Some(piece) => running.push(self.compare_piece(piece)),
                    None => break,
                }
            }
            let Some(result) = running.next().await else { break };
            let (piece, differs_at) = result?;
            compared.done += piece.len;
            compared.differs_at = [compared.differs_at, differs_at].into_iter().flatten().min();
            progress(compared.done);
        }
        compared.complete = compared.differs_at.is_some() || compared.done == pieces.end();
        Ok(compared)
    }

    fn pieces(&self) -> Pieces<'_> {
        let [source, destination] = [self.source, self.destination].map(BlockDevice::geometry);
        // A source that has grown since the destination was made for it has more than there is room for.
        let end = source.size.min(destination.size);
        Pieces::new(self.source, self.skipped, source.logical_sector.max(destination.logical_sector), end)
    }

    /// Gives the piece back with the number of bytes that were written.
    async fn move_piece(&self, piece: Piece, refusals: &Refusals) -> Result<(Piece, u64), TransferError> {
        if self.before == Before::Unfinished && self.compare_piece(piece).await?.1.is_none() {
            return Ok((piece, 0));
        }
        if piece.content != Content::Data {
            let len = self.padded(piece.len);
            self.zero(piece.offset, len).await.map_err(destination_error(piece.offset))?;
            return Ok((piece, 0));
        }
        if self.adopt(piece, refusals).await? {
            return Ok((piece, piece.len));
        }
        let data = self.read_source(piece).await?;
        let mut written = 0;
        for run in runs(&data) {
            let offset = piece.offset + run.range.start as u64;
            let len = run.range.len() as u64;
            if run.zero {
                self.zero(offset, len).await.map_err(destination_error(offset))?;
            } else {
                let part = data.slice(run.range);
                let write = self.destination.write(offset, part, Durability::Volatile);
                write.await.map_err(destination_error(offset))?;
                written += len;
            }
        }
        // Devices in memory are always ready: others have their turn here.
        turn().await;
        Ok((piece, written))
    }

    /// Has the destination take the piece out of the source's file, where both lie in files of a file system that can.
    async fn adopt(&self, piece: Piece, refusals: &Refusals) -> Result<bool, TransferError> {
        if refusals.passes_over() {
            return Ok(false);
        }
        let lent = self.source.lend(piece.offset, piece.len).await.map_err(source_error(piece.offset))?;
        let adopted = match lent.filter(|_| self.padded(piece.len) == piece.len) {
            Some(range) => self.destination.adopt(piece.offset, range).await,
            None => return Ok(false),
        };
        let adopted = adopted.map_err(destination_error(piece.offset))?;
        refusals.note(adopted);
        Ok(adopted)
    }

    async fn compare_piece(&self, piece: Piece) -> Result<(Piece, Option<u64>), TransferError> {
        let differs_at = match piece.content {
            Content::Zero | Content::Skipped => self.first_data(piece).await?,
            Content::Data => {
                let data = self.read_source(piece).await?;
                let read = self.destination.read(piece.offset, Buf::for_overwrite(data.len()));
                let there = read.await.map_err(destination_error(piece.offset))?;
                // What pads the last sector is not the source's.
                let len = piece.len as usize;
                first_difference(&data[..len], &there[..len]).map(|at| piece.offset + at)
            }
        };
        turn().await;
        Ok((piece, differs_at))
    }

    async fn foreign_data_in(&self, piece: Piece) -> Result<(Piece, Option<u64>), TransferError> {
        let foreign = match piece.content {
            Content::Zero | Content::Skipped => self.first_data(piece).await?,
            Content::Data => {
                let data = self.read_source(piece).await?;
                let read = self.destination.read(piece.offset, Buf::for_overwrite(data.len()));
                let there = read.await.map_err(destination_error(piece.offset))?;
                // A write that was interrupted leaves whole sectors.
                let sector = self.destination.geometry().logical_sector as usize;
                let mut sectors = data.chunks(sector).zip(there.chunks(sector));
                let found = sectors.position(|(ours, there)| ours != there && !is_zero(there));
                found.map(|number| piece.offset + (number * sector) as u64)
            }
        };
        turn().await;
        Ok((piece, foreign))
    }

    /// A piece of the source, with zeroes behind it up to a whole sector of the destination.
    async fn read_source(&self, piece: Piece) -> Result<SharedBuf, TransferError> {
        let len = piece.len as usize;
        let padded = self.padded(piece.len) as usize;
        let read = self.source.read(piece.offset, Buf::for_overwrite(len));
        let data = read.await.map_err(source_error(piece.offset))?;
        if padded == len {
            return Ok(data.freeze());
        }
        let mut whole = Buf::zeroed(padded);
        whole[..len].copy_from_slice(&data);
        Ok(whole.freeze())
    }

    fn padded(&self, len: u64) -> u64 {
        len.next_multiple_of(self.destination.geometry().logical_sector.into())
    }

    async fn zero(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        if self.before == Before::Blank {
            return Ok(());
        }
        match self.destination.write_zeroes(offset, len, Zeroing::MayUnmap).await {
            Err(BlockError::Unsupported) => {}
            answer => return answer,
        }
        let zeroes = Buf::zeroed(len.min(pieces::DATA_MAX) as usize).freeze();
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let count = (end - at).min(zeroes.len() as u64);
            let part = zeroes.slice(0..count as usize);
            self.destination.write(at, part, Durability::Volatile).await?;
            at += count;
        }
        Ok(())
    }

    /// The first byte of the destination that is not zero in a piece that should be. What the destination knows to be
    /// zero is not read.
    async fn first_data(&self, piece: Piece) -> Result<Option<u64>, TransferError> {
        let geometry = self.destination.geometry();
        let end = piece.offset + piece.len;
        let extents = self.destination.extents(piece.offset, self.padded(piece.len), usize::MAX);
        for extent in extents.await.map_err(destination_error(piece.offset))? {
            if pieces::reads_as_zeroes(extent.kind, &geometry) {
                continue;
            }
            let mut at = extent.offset;
            while at < extent.end() {
                let len = (extent.end() - at).min(pieces::DATA_MAX);
                let read = self.destination.read(at, Buf::for_overwrite(len as usize));
                let data = read.await.map_err(destination_error(at))?;
                let data = &data[..(end - at).min(len) as usize];
                if !is_zero(data) {
                    return Ok(data.iter().position(|&byte| byte != 0).map(|found| at + found as u64));
                }
                at += len;
            }
        }
        Ok(None)
    }
}

/// Lets others have their turn.
async fn turn() {
    let mut had = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut had, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<u64> {
    if one == other {
        return None;
    }
    one.iter().zip(other).position(|(one, other)| one != other).map(|at| at as u64)
}

#[cfg(test)]
mod tests;

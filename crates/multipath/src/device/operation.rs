//! Operations: requests to a lane that can be repeated on another.

use std::ops::Range;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Extent, Io, SharedBuf, Zeroing};

use crate::Direction;

/// Origin of an answer: the lane, and the moment in which the operation was sent there
/// ([`Unflushed`](super::unflushed::Unflushed)).
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) lane: crate::LaneId,
    pub(super) stamp: u64,
}

/// An operation: how to send it over a lane, as often as it takes.
pub(super) trait Operation: Send + Sync + Unpin + Sized + 'static {
    /// Answer of a lane.
    type Answer: Send + 'static;
    /// Result for the caller.
    type Output: Send + 'static;

    /// `true` if it changes data: then it must not be in flight twice.
    const CHANGES: bool;

    /// Direction of its data.
    const DIRECTION: Direction;

    /// Range that it changes or reads.
    fn range(&self) -> Range<u64>;

    /// Bytes that travel.
    fn bytes(&self) -> u64;

    /// Sends it. May be called again once the last time has failed.
    fn issue(&mut self, device: &dyn BlockDevice) -> Io<Result<Self::Answer, BlockError>>;

    /// Returns `true` if its success may mean only that the data is in the cache.
    fn leaves_unflushed(&self) -> bool {
        false
    }

    /// Converts a lane's answer to the caller's result.
    fn output(answer: Self::Answer, origin: Origin) -> Self::Output;
}

/// An operation that can be cut in parts.
pub(super) trait Divisible: Operation {
    /// The part of `len` bytes that begins `at` bytes after its start.
    fn part(&self, at: u64, len: u64) -> Self;

    /// Puts the outputs of the parts, in order, together.
    fn join(self, parts: Vec<Self::Output>) -> Self::Output;
}

/// Fills a buffer.
pub(super) struct Read {
    offset: u64,
    len: usize,
    /// The caller's, until it is given to a lane. A lane that fails keeps it, and the next one gets another.
    buf: Option<Buf>,
}

impl Read {
    pub(super) fn new(offset: u64, buf: Buf) -> Self {
        Self { offset, len: buf.len(), buf: Some(buf) }
    }
}

impl Operation for Read {
    type Answer = Buf;
    type Output = Buf;
    const CHANGES: bool = false;
    const DIRECTION: Direction = Direction::Read;

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len as u64
    }

    fn bytes(&self) -> u64 {
        self.len as u64
    }

    fn issue(&mut self, device: &dyn BlockDevice) -> Io<Result<Buf, BlockError>> {
        let buf = self.buf.take().unwrap_or_else(|| Buf::for_overwrite(self.len));
        device.read(self.offset, buf)
    }

    fn output(answer: Buf, _: Origin) -> Buf {
        answer
    }
}

impl Divisible for Read {
    fn part(&self, at: u64, len: u64) -> Self {
        Self { offset: self.offset + at, len: len as usize, buf: None }
    }

    /// Joins the parts by one copy of all bytes: a buffer has one owner. It costs a hundredth of the time that a
    /// gigabit link takes for them.
    fn join(self, parts: Vec<Buf>) -> Buf {
        let mut all = self.buf.unwrap_or_else(|| Buf::for_overwrite(self.len));
        let mut rest = &mut all[..];
        for part in parts {
            let (to, behind) = rest.split_at_mut(part.len());
            to.copy_from_slice(&part);
            rest = behind;
        }
        all
    }
}

/// Writes a buffer.
pub(super) struct Write {
    pub(super) offset: u64,
    pub(super) data: SharedBuf,
    pub(super) durability: Durability,
}

impl Operation for Write {
    type Answer = ();
    type Output = ();
    const CHANGES: bool = true;
    const DIRECTION: Direction = Direction::Write;

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    fn issue(&mut self, device: &dyn BlockDevice) -> Io<Result<(), BlockError>> {
        device.write(self.offset, self.data.clone(), self.durability)
    }

    fn leaves_unflushed(&self) -> bool {
        self.durability == Durability::Volatile
    }

    fn output((): (), _: Origin) {}
}

impl Divisible for Write {
    fn part(&self, at: u64, len: u64) -> Self {
        let data = self.data.slice(at as usize..(at + len) as usize);
        Self { offset: self.offset + at, data, durability: self.durability }
    }

    fn join(self, _: Vec<()>) {}
}

/// Unmaps or zeroes a range.
pub(super) struct Clear {
    pub(super) range: Range<u64>,
    /// `None`: unmap.
    pub(super) zeroing: Option<Zeroing>,
}

impl Operation for Clear {
    type Answer = ();
    type Output = ();
    const CHANGES: bool = true;
    const DIRECTION: Direction = Direction::Other;

    fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn issue(&mut self, device: &dyn BlockDevice) -> Io<Result<(), BlockError>> {
        let len = self.range.end - self.range.start;
        match self.zeroing {
            None => device.unmap(self.range.start, len),
            Some(zeroing) => device.write_zeroes(self.range.start, len, zeroing),
        }
    }

    fn leaves_unflushed(&self) -> bool {
        true
    }

    fn output((): (), _: Origin) {}
}

/// Makes what was written durable. Doing it twice is doing it once.
pub(super) struct Flush;

impl Operation for Flush {
    type Answer = ();
    type Output = Origin;
    const CHANGES: bool = false;
    const DIRECTION: Direction = Direction::Other;

    fn range(&self) -> Range<u64> {
        0..0
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn issue(&mut self, device: &dyn BlockDevice) -> Io<Result<(), BlockError>> {
        device.flush()
    }

    fn output((): (), origin: Origin) -> Origin {
        origin
    }
}

/// Asks what lies behind a range.
pub(super) struct Extents {
    pub(super) range: Range<u64>,
    pub(super) count: usize,
}

impl Operation for Extents {
    type Answer = Vec<Extent>;
    type Output = Vec<Extent>;
    const CHANGES: bool = false;
    const DIRECTION: Direction = Direction::Other;

    fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn issue(&mut self, device: &dyn BlockDevice) -> Io<Result<Vec<Extent>, BlockError>> {
        device.extents(self.range.start, self.range.end - self.range.start, self.count)
    }

    fn output(answer: Vec<Extent>, _: Origin) -> Vec<Extent> {
        answer
    }
}

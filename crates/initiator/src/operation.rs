//! Operations as commands: one where it fits, else several.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::{BlockError, Buf, Extent, ExtentKind, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_scsi::block_error::{Request, result_of};
use lunway_scsi::cdb::{self, WriteSameFlags};
use lunway_scsi::{LbaStatus, Sense, Status};

use crate::session::slots::{Command, Effect, Outcome};
use crate::session::{Session, Ticket};
use crate::shape::Shape;
use crate::unit::UnitCell;

/// Most pieces of one operation in flight: enough to keep a network busy, few enough that an
/// operation over a whole disk neither fills the command window nor holds memory for all of it.
const PIECES_IN_FLIGHT: usize = 8;

/// Most GET LBA STATUS commands of one `extents`. Blocks beyond the last answer count as data.
const LBA_STATUS_MAX: usize = 1024;

/// Room for that many descriptors in one answer to GET LBA STATUS.
const LBA_STATUS_DESCRIPTORS: usize = 512;

/// Handle to the device that operations of several commands keep.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) session: Arc<Session>,
    pub(crate) unit: Arc<UnitCell>,
    /// The session that all commands of the operation belong to, where nothing waits for the next one: of an operation
    /// that was sent in part over a session that is lost, no other part may follow over the next.
    pub(crate) epoch: Option<u64>,
}

/// An operation of one command.
pub(crate) struct Single {
    pub(crate) ticket: Ticket,
    pub(crate) request: Request,
    /// Bytes that must have come for it to be complete.
    pub(crate) expected: usize,
}

impl Future for Single {
    type Output = Result<Buf, BlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.ticket).poll(cx));
        Poll::Ready(judge(outcome, self.request, self.expected))
    }
}

fn judge(outcome: Outcome, request: Request, expected: usize) -> Result<Buf, BlockError> {
    match outcome {
        Outcome::Failed(error) => Err(error),
        Outcome::Executed { status: Status::GOOD, data_in, received, .. } if received >= expected => {
            Ok(data_in)
        }
        Outcome::Executed { status, sense, data_in, received } => {
            let sense = Sense::parse(&sense);
            result_of(status, sense.as_ref(), request)?;
            if received < expected {
                let message = format!("the target sent {received} of {expected} bytes");
                return Err(BlockError::Io { kind: std::io::ErrorKind::UnexpectedEof, message });
            }
            Ok(data_in)
        }
    }
}

impl Handle {
    pub(crate) fn submit(&self, command: Command) -> Result<Ticket, BlockError> {
        self.session.submit_in(self.epoch, command)
    }

    fn start(
        &self,
        request: Request,
        cdb: Cdb,
        data_out: SharedBuf,
        data_in: Buf,
        effect: Effect,
    ) -> Result<Single, BlockError> {
        let expected = data_in.len();
        let ticket = self.submit(Command { cdb, data_out, data_in, effect })?;
        Ok(Single { ticket, request, expected })
    }

    pub(crate) fn read(&self, shape: &Shape, offset: u64, buf: Buf) -> Result<Single, BlockError> {
        let request = shape.request(offset, buf.len() as u64);
        self.start(request, shape.read_cdb(offset, buf.len()), SharedBuf::default(), buf, Effect::Read)
    }

    pub(crate) fn write(
        &self,
        shape: &Shape,
        offset: u64,
        data: SharedBuf,
        fua: bool,
    ) -> Result<Single, BlockError> {
        let request = shape.request(offset, data.len() as u64);
        let effect = if fua { Effect::WriteThrough } else { Effect::Write };
        self.start(request, shape.write_cdb(offset, data.len(), fua), data, Buf::empty(), effect)
    }

    pub(crate) fn flush(&self, shape: &Shape) -> Result<Single, BlockError> {
        let cdb = shape.flush_cdb();
        self.start(shape.request(0, 0), cdb, SharedBuf::default(), Buf::empty(), Effect::Flush)
    }

    pub(crate) async fn read_pieces(
        self,
        shape: Shape,
        offset: u64,
        mut buf: Buf,
    ) -> Result<Buf, BlockError> {
        let mut waiting = shape.pieces(offset, buf.len() as u64);
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < PIECES_IN_FLIGHT
                && let Some(range) = waiting.next()
            {
                let piece = Buf::for_overwrite((range.end - range.start) as usize);
                let single = self.read(&shape, offset + range.start, piece)?;
                running.push(async move { single.await.map(|piece| (range.start as usize, piece)) });
            }
            match running.next().await {
                Some(done) => {
                    let (at, piece) = done?;
                    buf[at..at + piece.len()].copy_from_slice(&piece);
                }
                None => return Ok(buf),
            }
        }
    }

    pub(crate) async fn write_pieces(
        self,
        shape: Shape,
        offset: u64,
        data: SharedBuf,
        fua: bool,
    ) -> Result<(), BlockError> {
        let (handle, data) = (&self, &data);
        to_the_end(shape.pieces(offset, data.len() as u64), |range| async move {
            let piece = data.slice(range.start as usize..range.end as usize);
            handle.write(&shape, offset + range.start, piece, fua)?.await.map(drop)
        })
        .await
    }

    /// Issues a command over a range of any length, in pieces of at most `blocks_max` blocks.
    async fn ranged(
        &self,
        shape: &Shape,
        range: Range<u64>,
        blocks_max: u32,
        command: impl Fn(u64, u32) -> (Cdb, SharedBuf),
    ) -> Result<(), BlockError> {
        let sector = u64::from(shape.geometry.logical_sector);
        let command = &command;
        to_the_end(pieces(range, u64::from(blocks_max) * sector, shape.boundary()), |range| async move {
            let len = range.end - range.start;
            let (cdb, data_out) = command(range.start / sector, (len / sector) as u32);
            let request = shape.request(range.start, len);
            self.start(request, cdb, data_out, Buf::empty(), Effect::WriteRange)?.await.map(drop)
        })
        .await
    }

    async fn write_same(&self, shape: &Shape, range: Range<u64>, unmap: bool) -> Result<(), BlockError> {
        // One block of zeroes instead of NDOB, which older targets refuse: it costs a sector on the wire.
        let block = Buf::zeroed(shape.geometry.logical_sector as usize).freeze();
        let command = |lba, blocks| {
            (
                Cdb::new(&cdb::write_same16(lba, blocks, WriteSameFlags { unmap, zeroes: false })),
                block.clone(),
            )
        };
        self.ranged(shape, range, shape.write_same_blocks_max, command).await
    }

    pub(crate) async fn write_zeroes(
        self,
        shape: Shape,
        range: Range<u64>,
        unmap: bool,
    ) -> Result<(), BlockError> {
        if shape.write_same {
            match self.write_same(&shape, range.clone(), unmap && shape.write_same_unmaps).await {
                Err(BlockError::Unsupported) => self.unit.change(|shape| shape.write_same = false),
                other => return other,
            }
        }
        let zeroes = Buf::zeroed((range.end - range.start).min(shape.transfer_max.into()) as usize).freeze();
        let (handle, zeroes) = (&self, &zeroes);
        to_the_end(pieces(range, shape.transfer_max.into(), shape.boundary()), |range| async move {
            let piece = zeroes.slice(0..(range.end - range.start) as usize);
            handle.write(&shape, range.start, piece, false)?.await.map(drop)
        })
        .await
    }

    pub(crate) async fn unmap(self, shape: Shape, range: Range<u64>) -> Result<(), BlockError> {
        // UNMAP is a hint; only WRITE SAME promises zeroes also where nothing could be freed (SBC-3 §4.7.3.4).
        if shape.geometry.unmap.zeroes() {
            return self.write_same(&shape, range, true).await;
        }
        let command = |lba, blocks| {
            let list = cdb::unmap_list(&[(lba, blocks)]);
            (Cdb::new(&cdb::unmap(list.len() as u16)), Buf::copy_of(&list).freeze())
        };
        self.ranged(&shape, range, shape.unmap_blocks_max, command).await
    }
}

impl Handle {
    pub(crate) async fn extents(
        self,
        shape: Shape,
        range: Range<u64>,
        count: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        let sector = u64::from(shape.geometry.logical_sector);
        let mut list = Vec::new();
        let mut at = range.start;
        for _ in 0..LBA_STATUS_MAX {
            if at >= range.end || list.len() >= count {
                return Ok(list);
            }
            let room = Buf::for_overwrite(8 + 16 * LBA_STATUS_DESCRIPTORS);
            let cdb = Cdb::new(&cdb::get_lba_status16(at / sector, room.len() as u32));
            let command =
                Command { cdb, data_out: SharedBuf::default(), data_in: room, effect: Effect::Query };
            let (bytes, received) = match self.submit(command)?.await {
                Outcome::Failed(error) => return Err(error),
                Outcome::Executed { status: Status::GOOD, data_in, received, .. } => (data_in, received),
                Outcome::Executed { status, sense, .. } => {
                    let sense = Sense::parse(&sense);
                    match result_of(status, sense.as_ref(), shape.request(at, range.end - at)) {
                        Err(BlockError::Unsupported) => {
                            self.unit.change(|shape| shape.lba_status = false);
                            break;
                        }
                        other => other?,
                    }
                    break;
                }
            };
            let before = at;
            let Some(status) = LbaStatus::parse(&bytes[..received.min(bytes.len())]) else { break };
            for status in status.descriptors {
                let start = status.lba.saturating_mul(sector);
                let end = start.saturating_add(u64::from(status.blocks) * sector).min(range.end);
                // In order and without gaps (SBC-4 §5.6.2); what is not is not believed.
                if start > at || end <= at {
                    break;
                }
                let kind = shape.extent_kind(status.provisioning);
                Extent { offset: at, len: end - at, kind }.push_onto(&mut list);
                at = end;
            }
            if at == before {
                break;
            }
        }
        Extent { offset: at, len: range.end - at, kind: ExtentKind::Data }.push_onto(&mut list);
        Ok(list)
    }
}

/// [`Single`] for operations without data.
pub(crate) struct Done(pub(crate) Single);

impl Future for Done {
    type Output = Result<(), BlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_ok(drop)
    }
}

/// Carries out pieces of an operation that changes the disk. It ends when each of them has: what is said of it must
/// hold for all. After an error no further one is begun.
async fn to_the_end<F: Future<Output = Result<(), BlockError>>>(
    mut waiting: impl Iterator<Item = Range<u64>>,
    start: impl Fn(Range<u64>) -> F,
) -> Result<(), BlockError> {
    let mut running = FuturesUnordered::new();
    let mut failed: Option<BlockError> = None;
    loop {
        while failed.is_none()
            && running.len() < PIECES_IN_FLIGHT
            && let Some(range) = waiting.next()
        {
            running.push(start(range));
        }
        match running.next().await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                failed = Some(failed.map_or(error.clone(), |other| less_certain(other, error)));
            }
            None => return failed.map_or(Ok(()), Err),
        }
    }
}

/// Of two errors the one that says less about what may have happened, or may happen yet.
fn less_certain(one: BlockError, other: BlockError) -> BlockError {
    if other.fate() > one.fate() { other } else { one }
}

impl Shape {
    /// Returns the distance between the places on the disk at which a request is cut, and the position of the first:
    /// the distance is the least that the unit writes without reading first, and at least the 4 KiB of file systems and
    /// media.
    fn boundary(&self) -> (u64, u64) {
        let least = u64::from(self.geometry.physical_sector).max(4096);
        (least, u64::from(self.geometry.first_aligned) % least)
    }

    /// An operation of `len` bytes at `offset` in pieces that one command may carry, counted from its beginning.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let all = pieces(offset..offset.saturating_add(len), self.transfer_max.into(), self.boundary());
        all.map(move |piece| piece.start - offset..piece.end - offset)
    }
}

/// `range` in pieces of at most `len_max` bytes, cut at multiples of the first number behind the second one. Where a
/// piece is too short to reach the next such place it is cut where it ends.
fn pieces(
    range: Range<u64>,
    len_max: u64,
    (distance, first): (u64, u64),
) -> impl Iterator<Item = Range<u64>> {
    let step = len_max.max(1);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let most = at.saturating_add(step);
        let place = most.checked_sub(first).map(|behind| first + behind / distance.max(1) * distance.max(1));
        let end =
            if most >= range.end { range.end } else { place.filter(|&place| place > at).unwrap_or(most) };
        let piece = (at < end).then_some(at..end);
        at = end;
        piece
    })
}

#[cfg(test)]
mod tests {
    use lunway_block::Fate;

    use super::*;

    #[test]
    fn pieces_cover_the_range_and_none_is_too_long() {
        let anywhere = (1, 0);
        assert_eq!(pieces(0..10, 4, anywhere).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
        assert!(pieces(3..7, 4, anywhere).eq(std::iter::once(3..7)));
        assert_eq!(pieces(5..5, 4, anywhere).count(), 0);
        let end = u64::MAX;
        assert!(pieces(end - 2..end, u64::MAX, anywhere).eq(std::iter::once(end - 2..end)));
    }

    #[test]
    fn pieces_are_cut_between_blocks_where_one_may_be_as_long_as_a_block() {
        let cut = |range, len_max, boundary| pieces(range, len_max, boundary).collect::<Vec<_>>();
        assert_eq!(cut(3..30, 10, (4, 0)), [3..12, 12..20, 20..30]);
        assert_eq!(cut(3..30, 10, (4, 3)), [3..11, 11..19, 19..27, 27..30]);
        assert_eq!(cut(1..9, 3, (8, 0)), [1..4, 4..7, 7..9], "no room for a whole block");
        assert_eq!(cut(0..6, 3, (8, 5)), [0..3, 3..6]);
    }

    #[test]
    fn an_operation_is_as_uncertain_as_its_most_uncertain_piece() {
        let gone = BlockError::gone("lost");
        let over = BlockError::Timeout { millis: 1, fate: Fate::Over };
        let results = [Err(gone), Err(BlockError::lost()), Err(over), Ok(())];
        let ended = std::cell::Cell::new(0);
        let (results, ended) = (&results, &ended);
        let all = to_the_end(pieces(0..4, 1, (1, 0)), |range| async move {
            ended.set(ended.get() + 1);
            results[range.start as usize].clone()
        });
        let result = futures_util::FutureExt::now_or_never(all).unwrap();
        assert_eq!((result, ended.get()), (Err(BlockError::lost()), 4));
    }

    #[test]
    fn a_read_that_came_short_is_an_error() {
        let outcome = |received| Outcome::Executed {
            status: Status::GOOD,
            sense: Vec::new(),
            data_in: Buf::zeroed(4096),
            received,
        };
        assert!(judge(outcome(4096), Request::default(), 4096).is_ok());
        let error = judge(outcome(512), Request::default(), 4096).unwrap_err();
        assert!(error.to_string().contains("512 of 4096"), "{error}");
    }
}

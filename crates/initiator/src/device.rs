//! A logical unit behind one iSCSI session, as a block device.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::{FuturesUnordered, StreamExt, TryStreamExt, iter};
use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, ExtentKind, Geometry, Io, PathSample,
    ResizeCallback, SharedBuf, Zeroing,
};
use lunway_iscsi::Cdb;
use lunway_scsi::block_error::{Request, result_of};
use lunway_scsi::cdb::{self, WriteSameFlags};
use lunway_scsi::{LbaStatus, Lun, Sense, Status};

use crate::driver::Driver;
use crate::nexus::{Nexus, Purpose, random_isid};
use crate::recovery::Recovery;
use crate::session::{Session, Ticket};
use crate::slots::{Command, Effect, Outcome};
use crate::unit::{Shape, Unit, UnitCell};
use crate::{IscsiUrl, OpenError, OpenOptions};

/// How many pieces of one operation are under way at a time: enough to keep a network busy, few enough that an
/// operation over a whole disk neither fills the command window nor holds memory for all of it.
const PIECES_IN_FLIGHT: usize = 8;

/// How many GET LBA STATUS one `extents` may take. What is not answered by then counts as data.
const LBA_STATUS_MAX: usize = 1024;

/// Room for that many descriptors in one answer to GET LBA STATUS.
const LBA_STATUS_DESCRIPTORS: usize = 512;

/// A logical unit behind one iSCSI session, as a block device.
///
/// [`open`](Self::open) connects, logs in and reads what the unit is; from then on a task of the runtime it was called
/// on moves the bytes, and operations come from any thread. Reads land in the caller's buffer and writes are sent from
/// it; only operations longer than one command may carry are cut in pieces, of which reads are copied together.
///
/// # A lost connection
///
/// Operations wait while the device connects again, up to [`replacement_timeout`](OpenOptions::replacement_timeout).
/// All that this trait offers is idempotent and is sent again, once the old session is proven dead. [`BlockError`]
/// tells how the others end: `Timeout` and `Aborted`: whether it happened is not known; `Gone`: it did not happen,
/// or the target offers another disk now.
///
/// # Durability
///
/// What a target acknowledged into a volatile cache dies with its power. If it reports a power-on in a new session
/// while acknowledged writes are unflushed, the flushes under way, or else the next one, fail once with
/// [`BlockError::Io`]. Whoever needs more must write again what it wrote since the last good flush.
///
/// # The end
///
/// [`close`](Self::close) logs out and tells when that is done; dropping the device does it without telling. I/O under
/// way is answered first.
pub struct IscsiDevice {
    session: Arc<Session>,
    unit: Arc<UnitCell>,
    url: IscsiUrl,
}

impl IscsiDevice {
    /// Opens the logical unit that `url` names. The device lives as long as the runtime this is called on.
    pub async fn open(url: IscsiUrl, options: OpenOptions) -> Result<Self, OpenError> {
        let Some(target) = url.target.clone() else {
            return Err(OpenError::NoTarget { portal: url.portal() });
        };
        let Some(lun) = url.lun else { return Err(OpenError::NoLun { portal: url.portal(), target }) };
        let isid = random_isid();
        let mut nexus = Nexus::dial(&url, &options, isid, Purpose::Normal).await?;
        let unit = match Unit::learn(&mut nexus, lun, options.transfer_max).await {
            Ok(unit) => unit,
            Err(error) => {
                nexus.logout().await;
                return Err(error);
            }
        };
        let volatile = unit.shape.geometry.volatile_cache;
        let unit = Arc::new(UnitCell::new(unit, lun, options.transfer_max));
        let (stream, core) = nexus.into_parts();
        let session = Session::new(core, Lun::new(lun), volatile, &options);
        let recovery = Recovery::new(url.clone(), options, isid, unit.clone());
        tokio::spawn(Driver::new(session.clone(), stream, recovery).run());
        Ok(Self { session, unit, url })
    }

    /// Where it is, without secrets.
    pub fn url(&self) -> &IscsiUrl {
        &self.url
    }

    /// Logs out, once what is under way is answered, and waits for the end of it. Later operations fail.
    pub async fn close(&self) {
        self.session.close();
        loop {
            let ended = self.session.ended.notified();
            if self.session.lock().driver_ended {
                return;
            }
            ended.await;
        }
    }

    /// Sends any command and gives status, sense data and what was received (cut to that length). For commands that
    /// the trait has no operation for; not sent again after a lost connection, unless `idempotent` says that this is
    /// harmless.
    pub async fn execute(
        &self,
        cdb: &[u8],
        data_out: SharedBuf,
        data_in: Buf,
        idempotent: bool,
    ) -> Result<(Status, Option<Sense>, Buf), BlockError> {
        let effect = if idempotent { Effect::Query } else { Effect::Unknown };
        let ticket = self.session.submit(Command { cdb: Cdb::new(cdb), data_out, data_in, effect })?;
        match ticket.await {
            Outcome::Failed(error) => Err(error),
            Outcome::Executed { status, sense, mut data_in, received } => {
                data_in.truncate(received);
                Ok((status, Sense::parse(&sense), data_in))
            }
        }
    }

    fn handle(&self) -> Handle {
        Handle { session: self.session.clone(), unit: self.unit.clone() }
    }
}

impl Drop for IscsiDevice {
    fn drop(&mut self) {
        self.session.close();
    }
}

impl fmt::Debug for IscsiDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IscsiDevice").field("url", &self.url.to_string()).finish_non_exhaustive()
    }
}

/// What operations that take several commands keep of the device.
#[derive(Clone)]
struct Handle {
    session: Arc<Session>,
    unit: Arc<UnitCell>,
}

/// An operation of one command.
struct Single {
    ticket: Ticket,
    request: Request,
    /// Bytes that must have come for it to be complete.
    expected: usize,
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
    fn start(
        &self,
        request: Request,
        cdb: Cdb,
        data_out: SharedBuf,
        data_in: Buf,
        effect: Effect,
    ) -> Result<Single, BlockError> {
        let expected = data_in.len();
        let ticket = self.session.submit(Command { cdb, data_out, data_in, effect })?;
        Ok(Single { ticket, request, expected })
    }

    fn read(&self, shape: &Shape, offset: u64, buf: Buf) -> Result<Single, BlockError> {
        let request = shape.request(offset, buf.len() as u64);
        self.start(request, shape.read_cdb(offset, buf.len()), SharedBuf::default(), buf, Effect::Read)
    }

    fn write(&self, shape: &Shape, offset: u64, data: SharedBuf, fua: bool) -> Result<Single, BlockError> {
        let request = shape.request(offset, data.len() as u64);
        let effect = if fua { Effect::WriteThrough } else { Effect::Write };
        self.start(request, shape.write_cdb(offset, data.len(), fua), data, Buf::empty(), effect)
    }

    fn flush(&self, shape: &Shape) -> Result<Single, BlockError> {
        let cdb = shape.flush_cdb();
        self.start(shape.request(0, 0), cdb, SharedBuf::default(), Buf::empty(), Effect::Flush)
    }

    async fn read_pieces(self, shape: Shape, offset: u64, mut buf: Buf) -> Result<Buf, BlockError> {
        let mut waiting = pieces(0..buf.len() as u64, shape.transfer_max.into());
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

    async fn write_pieces(
        self,
        shape: Shape,
        offset: u64,
        data: SharedBuf,
        fua: bool,
    ) -> Result<(), BlockError> {
        let (handle, data) = (&self, &data);
        iter(pieces(0..data.len() as u64, shape.transfer_max.into()).map(Ok))
            .try_for_each_concurrent(PIECES_IN_FLIGHT, |range| async move {
                let piece = data.slice(range.start as usize..range.end as usize);
                handle.write(&shape, offset + range.start, piece, fua)?.await.map(drop)
            })
            .await
    }

    /// One command over a range of any length, in pieces of at most `blocks_max` blocks.
    async fn ranged(
        &self,
        shape: &Shape,
        range: Range<u64>,
        blocks_max: u32,
        command: impl Fn(u64, u32) -> (Cdb, SharedBuf),
    ) -> Result<(), BlockError> {
        let sector = u64::from(shape.geometry.logical_sector);
        let command = &command;
        iter(pieces(range, u64::from(blocks_max) * sector).map(Ok))
            .try_for_each_concurrent(PIECES_IN_FLIGHT, |range| async move {
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

    async fn write_zeroes(self, shape: Shape, range: Range<u64>, unmap: bool) -> Result<(), BlockError> {
        if shape.write_same {
            match self.write_same(&shape, range.clone(), unmap && shape.write_same_unmaps).await {
                Err(BlockError::Unsupported) => self.unit.change(|shape| shape.write_same = false),
                other => return other,
            }
        }
        let zeroes = Buf::zeroed((range.end - range.start).min(shape.transfer_max.into()) as usize).freeze();
        let (handle, zeroes) = (&self, &zeroes);
        iter(pieces(range, shape.transfer_max.into()).map(Ok))
            .try_for_each_concurrent(PIECES_IN_FLIGHT, |range| async move {
                let piece = zeroes.slice(0..(range.end - range.start) as usize);
                handle.write(&shape, range.start, piece, false)?.await.map(drop)
            })
            .await
    }

    async fn unmap(self, shape: Shape, range: Range<u64>) -> Result<(), BlockError> {
        // UNMAP is a hint; only WRITE SAME promises zeroes also where nothing could be freed (SBC-3 4.7.3.4).
        if shape.geometry.unmap_zeroes {
            return self.write_same(&shape, range, true).await;
        }
        let sector = u64::from(shape.geometry.logical_sector);
        let per_command = u64::from(shape.unmap_blocks_max) * sector;
        let handle = &self;
        iter(pieces(range, per_command).map(Ok))
            .try_for_each_concurrent(PIECES_IN_FLIGHT, |range| async move {
                let len = range.end - range.start;
                let list = cdb::unmap_list(&[(range.start / sector, (len / sector) as u32)]);
                let cdb = Cdb::new(&cdb::unmap(list.len() as u16));
                let data = Buf::copy_of(&list).freeze();
                handle
                    .start(shape.request(range.start, len), cdb, data, Buf::empty(), Effect::WriteRange)?
                    .await
                    .map(drop)
            })
            .await
    }
}

impl Handle {
    async fn extents(self, shape: Shape, range: Range<u64>) -> Result<Vec<Extent>, BlockError> {
        let sector = u64::from(shape.geometry.logical_sector);
        let mut list = Vec::new();
        let mut at = range.start;
        for _ in 0..LBA_STATUS_MAX {
            if at >= range.end {
                return Ok(list);
            }
            let room = Buf::for_overwrite(8 + 16 * LBA_STATUS_DESCRIPTORS);
            let cdb = Cdb::new(&cdb::get_lba_status16(at / sector, room.len() as u32));
            let command =
                Command { cdb, data_out: SharedBuf::default(), data_in: room, effect: Effect::Query };
            let (bytes, received) = match self.session.submit(command)?.await {
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
                // In order and without gaps (SBC-4 5.6.2); what is not is not believed.
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

impl BlockDevice for IscsiDevice {
    fn geometry(&self) -> Geometry {
        self.unit.shape().geometry
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let shape = self.unit.shape();
        if let Err(error) = shape.geometry.check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() {
            return Io::ok(buf);
        }
        if buf.len() > shape.transfer_max as usize {
            return Io::pending(self.handle().read_pieces(shape, offset, buf));
        }
        let request = shape.request(offset, buf.len() as u64);
        let command = Command {
            cdb: shape.read_cdb(offset, buf.len()),
            data_out: SharedBuf::default(),
            data_in: buf,
            effect: Effect::Read,
        };
        let expected = request.len as usize;
        match self.session.submit(command) {
            Ok(ticket) => Io::Pending(Box::pin(Single { ticket, request, expected })),
            Err(error) => Io::err(error),
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let shape = self.unit.shape();
        if let Err(error) = shape.geometry.check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        let stable = durability == Durability::Stable;
        let fua = stable && shape.fua;
        let handle = self.handle();
        if data.len() > shape.transfer_max as usize {
            let flush = stable && !fua && shape.geometry.volatile_cache;
            return Io::pending(async move {
                handle.clone().write_pieces(shape, offset, data, fua).await?;
                if flush { handle.flush(&shape)?.await.map(drop) } else { Ok(()) }
            });
        }
        let write = match handle.write(&shape, offset, data, fua) {
            Ok(write) => write,
            Err(error) => return Io::err(error),
        };
        if stable && !fua && shape.geometry.volatile_cache {
            // No FUA bit: durable by a flush behind it.
            return Io::pending(async move {
                write.await?;
                handle.flush(&shape)?.await.map(drop)
            });
        }
        Io::Pending(Box::pin(Done(write)))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        let (handle, shape) = (self.handle(), self.unit.shape());
        if !shape.flush {
            return Io::ok(());
        }
        match handle.flush(&shape) {
            Ok(flush) => Io::pending(async move {
                match flush.await {
                    // The command of ten bytes is older and known by more.
                    Err(BlockError::Unsupported) => handle.unit.change(Shape::simplify_flush),
                    other => return other.map(drop),
                }
                let shape = handle.unit.shape();
                if shape.flush { handle.flush(&shape)?.await.map(drop) } else { Ok(()) }
            }),
            Err(error) => Io::err(error),
        }
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        let shape = self.unit.shape();
        match shape.geometry.check_write(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 || shape.geometry.unmap_granularity == 0 => Io::ok(()),
            Ok(()) => Io::pending(self.handle().unmap(shape, offset..offset + len)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let shape = self.unit.shape();
        match shape.geometry.check_write(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 => Io::ok(()),
            Ok(()) => {
                let unmap = zeroing == Zeroing::MayUnmap;
                Io::pending(self.handle().write_zeroes(shape, offset..offset + len, unmap))
            }
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Result<Vec<Extent>, BlockError>> {
        let shape = self.unit.shape();
        match shape.geometry.check(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 => Io::ok(Vec::new()),
            Ok(()) if !shape.lba_status => Io::ok(vec![Extent { offset, len, kind: ExtentKind::Data }]),
            Ok(()) => Io::pending(self.handle().extents(shape, offset..offset + len)),
        }
    }

    /// The size is the target's to decide: a new one is noticed with the next command, and taken without a call.
    fn resize(&self, size: u64) -> Io<Result<(), BlockError>> {
        let actual = self.unit.shape().geometry.size;
        if size == actual {
            return Io::ok(());
        }
        let why =
            format!("{size} bytes were asked for, and its target says that it has {actual}: resize it there");
        Io::err(BlockError::Size { why })
    }

    fn caching(&self) -> Caching {
        match self.unit.shape().write_cache {
            None => Caching::Unknown,
            Some(true) => Caching::WriteBack,
            Some(false) => Caching::WriteThrough,
        }
    }

    fn paths(&self) -> Vec<PathSample> {
        vec![self.session.lock().path(self.url.portal())]
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.unit.on_resize(callback);
    }
}

/// [`Single`] for operations without data.
struct Done(Single);

impl Future for Done {
    type Output = Result<(), BlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_ok(drop)
    }
}

/// `range` in pieces of at most `len_max` bytes.
fn pieces(range: Range<u64>, len_max: u64) -> impl Iterator<Item = Range<u64>> {
    let step = len_max.max(1);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = at.saturating_add(step).min(range.end);
        let piece = (at < end).then_some(at..end);
        at = end;
        piece
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_none_is_too_long() {
        assert_eq!(pieces(0..10, 4).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
        assert!(pieces(3..7, 4).eq(std::iter::once(3..7)));
        assert_eq!(pieces(5..5, 4).count(), 0);
        let end = u64::MAX;
        assert!(pieces(end - 2..end, u64::MAX).eq(std::iter::once(end - 2..end)));
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

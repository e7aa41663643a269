//! A logical unit behind one iSCSI session, as a block device.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use lunway_block::{
    BlockDevice, BlockError, Buf, CacheCallback, Caching, Durability, Extent, ExtentKind, Geometry, Io,
    PathSample, Permit, ResizeCallback, SharedBuf, Zeroing,
};
use lunway_iscsi::Cdb;
use lunway_iscsi::pdu::Isid;
use lunway_scsi::{AccessState, Lun, Sense, Status, cdb};

use crate::driver::Driver;
use crate::fresh_session::{FreshSession, Purpose};
use crate::look::look_while_idle;
use crate::operation::{Done, Handle, Single};
use crate::part::Part;
use crate::ports::initiator_port::{ClaimedPort, UnitPorts};
use crate::ports::isid::IsidFamily;
use crate::recovery::Recovery;
use crate::session::Session;
use crate::session::cache::is_power_on;
use crate::session::slots::{Command, Effect, Outcome};
use crate::shape::Shape;
use crate::unit::exchange::had_its_turn;
use crate::unit::{Unit, UnitCell};
use crate::{IscsiOpenError, IscsiUrl, KnownDisk, Predecessors, SessionEvent, SessionOptions, VpdIdentity};

/// A logical unit behind one iSCSI session, as a block device.
///
/// [`open`](Self::open) connects, logs in and reads what the unit is; from then on a task of the runtime it was called
/// on moves the bytes, and operations come from any thread. Reads land in the caller's buffer and writes are sent from
/// it; only operations longer than one command may carry are cut in pieces, of which reads are copied together.
///
/// # A lost connection
///
/// Operations wait while the device connects again, up to [`replacement_timeout`](SessionOptions::replacement_timeout);
/// with none they do not wait, and mean more by their errors: see [`SessionOptions`].
/// All that this trait offers is idempotent and is sent again, once the old session is proven dead. [`BlockError`]
/// tells how the others end: `Timeout` and `Aborted`: whether it happened is not known; `Gone`: it did not happen,
/// or the target offers another disk now.
///
/// # Durability
///
/// What a target acknowledged into a volatile cache dies with its power. If it reports a power-on in a new session
/// while acknowledged writes are unflushed, the flushes under way, or else the next one, fail once with
/// [`BlockError::UnflushedLost`]. A listener ([`on_cache_news`](BlockDevice::on_cache_news)) hears of it first, and of
/// every new session that begins while acknowledged writes are unflushed: `lunway_retain` writes them again.
///
/// # The end
///
/// [`close`](Self::close) logs out and tells when that is done; dropping the device does it without telling. I/O under
/// way is answered first.
pub struct IscsiDevice {
    session: Arc<Session>,
    unit: Arc<UnitCell>,
    url: IscsiUrl,
    part: Part,
}

impl IscsiDevice {
    /// Opens the logical unit that `url` names. The device lives as long as the runtime this is called on.
    ///
    /// Boxed, so that it is compiled here and not again in each crate that awaits it.
    pub fn open(url: IscsiUrl, options: SessionOptions) -> BoxFuture<'static, Result<Self, IscsiOpenError>> {
        Box::pin(Self::open_now(url, options))
    }

    async fn open_now(url: IscsiUrl, options: SessionOptions) -> Result<Self, IscsiOpenError> {
        let options = options.with_timers_of(&url);
        let Some(target) = url.target.clone() else {
            return Err(IscsiOpenError::NoTarget { portal: url.portal() });
        };
        let Some(lun) = url.lun else { return Err(IscsiOpenError::NoLun { portal: url.portal(), target }) };
        let mut before = None;
        if options.lane.is_none() {
            let found = before.insert(Predecessors::find(&url, &options).await?);
            found.reinstate(std::slice::from_ref(&url), &options).await;
        }
        let before = before.filter(|before| !before.are_settled());
        let (isid, mut port) = claim(&url, &options)?;
        let mut fresh = FreshSession::dial(&url, &options, isid, Purpose::Normal, None).await?;
        let unit = match learn(&url, &options, lun, &mut fresh, port.as_mut()).await {
            Ok(unit) => unit,
            Err(error) => {
                if fresh.logout().await {
                    port.into_iter().for_each(ClaimedPort::release);
                }
                return Err(error);
            }
        };
        let (volatile, access) = (unit.shape.geometry.volatile_cache, unit.access);
        let power_on = unit.attentions.iter().copied().any(is_power_on);
        let unit = Arc::new(UnitCell::new(unit, lun, options.transfer_max));
        let (stream, core) = fresh.into_parts();
        let session = Session::new(core, url.to_string(), Lun::new(lun), volatile, &options);
        if let Some(access) = access {
            session.lock().note_access(access);
            session.tell_news();
        }
        // Nothing was written in this session; an observer may have written in others.
        if power_on {
            session.tell(SessionEvent::PowerOn);
        }
        session.tell(SessionEvent::Up { epoch: 1 });
        let (part, settle, look_interval) = (options.part(), options.settle, options.look_interval);
        let recovery = Recovery::new(url.clone(), options, isid, port, unit.clone());
        tokio::spawn(Driver::new(session.clone(), recovery).run(stream));
        tokio::spawn(look_while_idle(session.clone(), look_interval));
        let device = Self { session, unit, url, part };
        if let Some(before) = before
            && let Err(error) = before.outlast(settle, || device.barrier().into_future()).await
        {
            device.close().await;
            return Err(error);
        }
        Ok(device)
    }

    /// Address of the device, without secrets.
    pub fn url(&self) -> &IscsiUrl {
        &self.url
    }

    /// Logs out, once what is under way is answered, and waits for the end of it. Later operations fail.
    pub async fn close(&self) {
        self.session.end().await;
    }

    /// The number of the session there is, or of the last one there was.
    ///
    /// To learn the session of an operation, ask after starting it: at worst the number is too high then, and
    /// of a later [`Settled`](SessionEvent::Settled), never too low.
    pub fn epoch(&self) -> u64 {
        self.session.epoch()
    }

    /// Drops the connection, because its path is known to be dead; then the device connects again as after any loss.
    pub fn sever(&self, why: &str) {
        self.session.sever(why);
    }

    /// As [`sever`](Self::sever), because the port that it leaves by is dead: without a carrier, or without its
    /// address. Until [`set_port_up`](Self::set_port_up) it tries to connect only now and then.
    ///
    /// Not for thrift: a packet sent into a dead port makes the kernel ask for the portal's hardware address, and that
    /// asks again only once a second (`retrans_time_ms`). A port that comes back meanwhile would be silent for the rest
    /// of that second.
    pub fn set_port_down(&self, why: &str) {
        self.session.set_port_down(true);
        self.session.sever(why);
    }

    /// The port is alive again: tries to connect at once, and soon again where that fails.
    pub fn set_port_up(&self) {
        self.session.set_port_down(false);
        self.hurry();
    }

    /// Tries to connect now instead of later, because something has changed that gives hope. An attempt that waits for
    /// the target's machine to answer is joined by a second one. Where there is a session through a port that is not
    /// active, asks whether it still is not.
    pub fn hurry(&self) {
        self.session.hope.notify_one();
        self.session.look.notify_one();
    }

    /// Returns what is known about the disk, for other paths to it.
    pub fn known(&self) -> KnownDisk {
        KnownDisk(self.unit.shape())
    }

    /// The names by which the disk is known over every path.
    pub fn identity(&self) -> &VpdIdentity {
        self.unit.identity()
    }

    /// The tag of the target portal group that the session goes to: with the target's name, its port.
    pub fn portal_group(&self) -> Option<u16> {
        self.session.lock().peer.portal_group
    }

    /// The asymmetric access state of that port as last read; `None` where the target knows no such states.
    pub fn access(&self) -> Option<AccessState> {
        self.session.lock().peer.access
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

    /// Answers when every command has ended that the unit was given before, over whichever session to whichever port of
    /// it: with one ORDERED command that asks nothing (SAM-5 §8.6.3). What a target gives before the command's turn (a
    /// unit attention, BUSY) makes it sent again, and is an error in the end. A unit with a task set for each nexus
    /// (TST in its Control mode page) would wait for its own session's commands only: there it is an error at once.
    pub fn barrier(&self) -> Io<Result<(), BlockError>> {
        if self.unit.shape().separate_task_sets {
            let message =
                "the unit has a task set for each session (TST): a barrier over one shows nothing of another"
                    .to_owned();
            return Io::err(BlockError::Io { kind: std::io::ErrorKind::Unsupported, message });
        }
        let command = Command {
            cdb: Cdb::new(&cdb::test_unit_ready()),
            data_out: SharedBuf::default(),
            data_in: Buf::empty(),
            effect: Effect::Barrier,
        };
        match self.session.submit(command) {
            Ok(ticket) => Io::pending(async move {
                match ticket.await {
                    Outcome::Failed(error) => Err(error),
                    Outcome::Executed { status, sense, .. } => {
                        let sense = Sense::parse(&sense);
                        if had_its_turn(status, sense.as_ref()) {
                            return Ok(());
                        }
                        let answer = sense.map_or_else(|| status.to_string(), |sense| sense.to_string());
                        let message = format!("the barrier was not given its turn: {answer}");
                        Err(BlockError::Io { kind: std::io::ErrorKind::Other, message })
                    }
                }
            }),
            Err(error) => Io::err(error),
        }
    }

    fn handle(&self) -> Handle {
        Handle { session: self.session.clone(), unit: self.unit.clone(), epoch: None }
    }

    /// For several commands.
    fn handle_of_session(&self) -> Handle {
        Handle { epoch: self.part.fails_fast().then(|| self.epoch()), ..self.handle() }
    }
}

/// The ISID of a device, and its record where there is one.
fn claim(url: &IscsiUrl, options: &SessionOptions) -> Result<(Isid, Option<ClaimedPort>), IscsiOpenError> {
    if let Some(isid) = options.isid {
        return Ok((isid, None));
    }
    let ports = UnitPorts::find(url, options);
    let port = ports
        .and_then(|ports| ports.map(|ports| ports.claim(options.lane.as_deref().unwrap_or(""))).transpose());
    match port.map_err(|error| IscsiOpenError::Record { portal: url.portal(), why: error.to_string() })? {
        Some(port) => Ok((port.isid, Some(port))),
        None => Ok((IsidFamily::random().member(0), None)),
    }
}

/// Asks the unit what it is, over a session whose port is recorded first.
async fn learn(
    url: &IscsiUrl,
    options: &SessionOptions,
    lun: u16,
    fresh: &mut FreshSession,
    port: Option<&mut ClaimedPort>,
) -> Result<Unit, IscsiOpenError> {
    let mut met = Vec::new();
    if let Some(port) = port {
        fresh.record(port, url)?;
        // It may have taken the place of a session of which no record is left, as after a power-off.
        fresh.outwait(&mut met).await?;
    }
    let known = options.known.map(|KnownDisk(shape)| shape);
    let mut unit = Unit::learn(fresh, lun, options.transfer_max, known).await?;
    unit.attentions.append(&mut met);
    Ok(unit)
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
            return Io::pending(self.handle_of_session().read_pieces(shape, offset, buf));
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
        // No FUA bit: durable by a flush behind it.
        let flush = stable && !fua && shape.geometry.volatile_cache;
        if flush || data.len() > shape.transfer_max as usize {
            let handle = self.handle_of_session();
            return Io::pending(async move {
                handle.clone().write_pieces(shape, offset, data, fua).await?;
                if flush { handle.flush(&shape)?.await.map(drop) } else { Ok(()) }
            });
        }
        match self.handle().write(&shape, offset, data, fua) {
            Ok(write) => Io::Pending(Box::pin(Done(write))),
            Err(error) => Io::err(error),
        }
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
            Ok(()) if len == 0 || !shape.geometry.unmap.frees() => Io::ok(()),
            Ok(()) => Io::pending(self.handle_of_session().unmap(shape, offset..offset + len)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let shape = self.unit.shape();
        match shape.geometry.check_write(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 => Io::ok(()),
            Ok(()) => {
                let unmap = zeroing == Zeroing::MayUnmap;
                Io::pending(self.handle_of_session().write_zeroes(shape, offset..offset + len, unmap))
            }
        }
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        let shape = self.unit.shape();
        match shape.geometry.check(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) if len == 0 => Io::ok(Vec::new()),
            Ok(()) if !shape.lba_status => Io::ok(vec![Extent { offset, len, kind: ExtentKind::Data }]),
            Ok(()) => Io::pending(self.handle().extents(shape, offset..offset + len, count)),
        }
    }

    /// The size is the target's to decide: a new one is noticed with the next command, or within
    /// [`look_interval`](SessionOptions::look_interval), and taken without a call.
    fn resize(&self, size: u64, _: Permit) -> Io<Result<(), BlockError>> {
        let actual = self.unit.shape().geometry.size;
        if size == actual {
            return Io::ok(());
        }
        let why =
            format!("{size} bytes were asked for, and its target says that it has {actual}: resize it there");
        Io::err(BlockError::Size { why })
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        let session = self.session.clone();
        Io::pending(async move {
            session.end().await;
            Ok(())
        })
    }

    fn identity(&self) -> lunway_block::Identity {
        let place = self.unit.identity().best_name();
        lunway_block::Identity { content: None, place }
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

    fn on_cache_news(&self, callback: CacheCallback) {
        self.session.lock().set_cache_listener(callback);
    }
}

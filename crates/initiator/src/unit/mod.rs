//! Logical unit: its geometry, names and abilities.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | the unit as it was when it was asked, and asked again |
//! | `access.rs` | the asymmetric access state of the port that a session goes to |
//! | `exchange.rs` | one command and its answer: what reading a unit's properties needs of a connection |
//! | `identity.rs` | the names of a disk |

pub(crate) mod access;
pub(crate) mod exchange;
pub(crate) mod identity;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use lunway_block::{Buf, Geometry, ResizeCallback, Unmap};
use lunway_scsi::cdb;
use lunway_scsi::mode::{self, ModeSense, PageControl};
use lunway_scsi::vpd::{
    BlockDeviceCharacteristics, BlockLimits, DeviceIdentification, LogicalBlockProvisioning, SupportedPages,
    UnitSerialNumber, page,
};
use lunway_scsi::{AccessState, AdditionalSense, Inquiry, PeripheralType, ReadCapacity, SenseKey, Status};
use tokio::time::timeout;

use crate::session::{Session, is_doubtful};
use crate::shape::Shape;
use crate::unit::access::Port;
use crate::unit::exchange::{Answer, Exchange, OverSession, ask};
use crate::{IscsiOpenError, VpdIdentity};

/// Allocation length for INQUIRY: the most that SPC-2 targets understand.
const INQUIRY_LEN: u16 = 255;
/// Allocation length for VPD pages; page 83h of a large array is the longest.
const VPD_LEN: u16 = 4096;
/// Largest logical block that is used, bytes.
const SECTOR_MAX: u32 = 64 << 10;
/// Most bytes of one WRITE SAME: a target that really writes them is done long before the timeout.
const WRITE_SAME_MAX: u64 = 256 << 20;
/// Interval at which a port in transition is asked for its state.
const TRANSITION_POLL: Duration = Duration::from_millis(250);
/// Interval at which another inactive port is asked: no command goes there that could bring the news. Linux asks every
/// 5 to 20 seconds.
const INACTIVE_POLL: Duration = Duration::from_secs(1);
/// Most changes of a unit during one inquiry.
const CHANGES_MAX: usize = 8;
/// Interval at which a unit that does not tell its identity is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// Most bytes of one UNMAP.
const UNMAP_MAX: u64 = 4 << 30;

/// A logical unit as it was when it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) shape: Shape,
    identity: VpdIdentity,
    /// The port that it was asked through.
    port: Port,
    /// The state of that port, where the unit knows such states.
    pub(crate) access: Option<AccessState>,
    /// Unit attentions that were in the way.
    pub(crate) attentions: Vec<AdditionalSense>,
}

impl Unit {
    /// Asks a unit what it is. Waits for it to become ready and clears its unit attentions. Through a port that is not
    /// active it tells only its names; its shape is then the one that is `known` of it. Asks again if it changes
    /// meanwhile.
    pub(crate) async fn learn<E: Exchange>(
        exchange: &mut E,
        lun: u16,
        transfer_max: u32,
        known: Option<Shape>,
    ) -> Result<Self, IscsiOpenError> {
        let mut met = Vec::new();
        for _ in 0..CHANGES_MAX {
            let (mut unit, ready) = Self::learn_once(exchange, lun, transfer_max, known).await?;
            let changed = unit.attentions[ready..].iter().copied().any(is_doubtful);
            met.append(&mut unit.attentions);
            if !changed {
                return Ok(Self { attentions: met, ..unit });
            }
        }
        let why = "its identity changed repeatedly while it was queried".to_owned();
        Err(IscsiOpenError::Shape { portal: exchange.portal(), why })
    }

    /// Gives also how many unit attentions there were before it told anything.
    async fn learn_once<E: Exchange>(
        exchange: &mut E,
        lun: u16,
        transfer_max: u32,
        known: Option<Shape>,
    ) -> Result<(Self, usize), IscsiOpenError> {
        let mut attentions = Vec::new();
        let inquiry = must(
            exchange,
            "INQUIRY",
            &cdb::inquiry(false, 0, INQUIRY_LEN),
            INQUIRY_LEN.into(),
            lun,
            &mut attentions,
        )
        .await?;
        let inquiry = Inquiry::parse(&inquiry.data);
        let peripheral = inquiry.as_ref().map_or(PeripheralType::DISK, |inquiry| inquiry.peripheral);
        let has_states = inquiry.is_some_and(|inquiry| inquiry.asymmetric_access != 0);
        if peripheral.qualifier() != 0 {
            return Err(IscsiOpenError::NoSuchLun { portal: exchange.portal(), lun });
        }
        if peripheral.device_type() != PeripheralType::DISK.device_type() {
            let device_type = peripheral.device_type();
            return Err(IscsiOpenError::NotADisk { portal: exchange.portal(), lun, device_type });
        }
        let ready = ask(exchange, &cdb::test_unit_ready(), 0, &mut attentions).await?;
        let sleeping = known.filter(|_| has_states && ready.is_inactive());
        if sleeping.is_none() {
            if known.is_none() && ready.is_inactive() {
                return Err(IscsiOpenError::Inactive { portal: exchange.portal(), why: ready.describe() });
            }
            accept(exchange, "TEST UNIT READY", ready, lun)?;
        }
        let ready = attentions.len();

        let answer = read_vpd(exchange, page::SUPPORTED, &mut attentions).await?;
        let pages = (answer.status == Status::GOOD).then(|| SupportedPages::parse(&answer.data)).flatten();
        if pages.is_none() && answer.status != Status::GOOD && !answer.is_illegal_request() {
            return Err(not_told(exchange, &answer));
        }
        let pages = pages.map_or(Vec::new(), |pages| pages.0);
        let mut facts = Facts::default();
        for code in pages {
            let wanted = [
                page::UNIT_SERIAL_NUMBER,
                page::DEVICE_IDENTIFICATION,
                page::BLOCK_LIMITS,
                page::BLOCK_DEVICE_CHARACTERISTICS,
                page::LOGICAL_BLOCK_PROVISIONING,
            ];
            if !wanted.contains(&code) {
                continue;
            }
            let answer = read_vpd(exchange, code, &mut attentions).await?;
            if answer.status == Status::GOOD {
                facts.take_page(code, &answer.data);
            } else if !answer.is_illegal_request() {
                return Err(not_told(exchange, &answer));
            }
        }
        facts.transfer_max = transfer_max;
        let access = if has_states { facts.port.read(exchange, &mut attentions).await? } else { None };
        if let Some(shape) = sleeping {
            let unit = Self { shape, identity: facts.identity, port: facts.port, access, attentions };
            return Ok((unit, ready));
        }

        let long = ask(exchange, &cdb::read_capacity16(32), 32, &mut attentions).await?;
        let capacity = if long.status == Status::GOOD {
            facts.long = true;
            ReadCapacity::parse(&long.data)
        } else {
            let short =
                must(exchange, "READ CAPACITY", &cdb::read_capacity10(), 8, lun, &mut attentions).await?;
            ReadCapacity::parse_10(&short.data)
        };
        let portal = exchange.portal();
        let unusable = |why: &str| IscsiOpenError::Shape { portal: portal.clone(), why: why.to_owned() };
        facts.capacity = Some(capacity.ok_or_else(|| unusable("its answer to READ CAPACITY is too short"))?);

        // All pages, as a second try, for units that know no single ones.
        facts.mode = mode_sense(exchange, &[mode::page::CACHING, mode::page::ALL], &mut attentions).await?;
        facts.control = mode_sense(exchange, &[mode::page::CONTROL], &mut attentions).await?;
        let shape = facts.shape().map_err(|why| unusable(&why))?;
        Ok((Self { shape, identity: facts.identity, port: facts.port, access, attentions }, ready))
    }
}

async fn must<E: Exchange>(
    exchange: &mut E,
    command: &'static str,
    cdb: &[u8],
    data_in: usize,
    lun: u16,
    attentions: &mut Vec<AdditionalSense>,
) -> Result<Answer, IscsiOpenError> {
    let answer = ask(exchange, cdb, data_in, attentions).await?;
    accept(exchange, command, answer, lun)
}

fn accept<E: Exchange>(
    exchange: &E,
    command: &'static str,
    answer: Answer,
    lun: u16,
) -> Result<Answer, IscsiOpenError> {
    let sense = answer.sense.as_ref();
    if answer.status == Status::GOOD || sense.is_some_and(|sense| sense.key == SenseKey::RECOVERED_ERROR) {
        return Ok(answer);
    }
    if sense.is_some_and(|sense| sense.code == AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED) {
        return Err(IscsiOpenError::NoSuchLun { portal: exchange.portal(), lun });
    }
    Err(IscsiOpenError::Command { portal: exchange.portal(), command, why: answer.describe() })
}

/// A VPD page; `None` if the unit does not give it.
pub(crate) async fn vpd<E: Exchange>(
    exchange: &mut E,
    code: u8,
    attentions: &mut Vec<AdditionalSense>,
) -> Result<Option<Buf>, IscsiOpenError> {
    let answer = read_vpd(exchange, code, attentions).await?;
    Ok((answer.status == Status::GOOD).then_some(answer.data))
}

/// A name that a unit does not tell now is no name that it does not have.
fn not_told<E: Exchange>(exchange: &E, answer: &Answer) -> IscsiOpenError {
    IscsiOpenError::Command { portal: exchange.portal(), command: "INQUIRY", why: answer.describe() }
}

async fn read_vpd<E: Exchange>(
    exchange: &mut E,
    code: u8,
    attentions: &mut Vec<AdditionalSense>,
) -> Result<Answer, IscsiOpenError> {
    ask(exchange, &cdb::inquiry(true, code, VPD_LEN), VPD_LEN.into(), attentions).await
}

/// The first of these pages that the unit gives, with the header that says whether the medium is protected.
async fn mode_sense<E: Exchange>(
    exchange: &mut E,
    pages: &[u8],
    attentions: &mut Vec<AdditionalSense>,
) -> Result<Option<ModeSense>, IscsiOpenError> {
    for &code in pages {
        let answer =
            ask(exchange, &cdb::mode_sense6(PageControl::Current, code, 0, 255), 255, attentions).await?;
        if answer.status == Status::GOOD {
            return Ok(ModeSense::parse_6(&answer.data));
        }
        let answer =
            ask(exchange, &cdb::mode_sense10(PageControl::Current, code, 0, 512), 512, attentions).await?;
        if answer.status == Status::GOOD {
            return Ok(ModeSense::parse_10(&answer.data));
        }
    }
    Ok(None)
}

/// Facts learned so far.
#[derive(Default)]
struct Facts {
    transfer_max: u32,
    long: bool,
    capacity: Option<ReadCapacity>,
    mode: Option<ModeSense>,
    /// The control page.
    control: Option<ModeSense>,
    limits: Option<BlockLimits>,
    characteristics: Option<BlockDeviceCharacteristics>,
    provisioning: Option<LogicalBlockProvisioning>,
    identity: VpdIdentity,
    port: Port,
}

impl Facts {
    fn take_page(&mut self, code: u8, bytes: &[u8]) {
        match code {
            page::UNIT_SERIAL_NUMBER => {
                let serial = UnitSerialNumber::parse(bytes).map(|page| page.0);
                self.identity.serial = serial.filter(|serial| !serial.is_empty());
            }
            page::DEVICE_IDENTIFICATION => {
                if let Some(identification) = DeviceIdentification::parse(bytes) {
                    self.identity.take(&identification);
                    self.port = Port::of(&identification);
                }
            }
            page::BLOCK_LIMITS => self.limits = BlockLimits::parse(bytes),
            page::BLOCK_DEVICE_CHARACTERISTICS => {
                self.characteristics = BlockDeviceCharacteristics::parse(bytes);
            }
            page::LOGICAL_BLOCK_PROVISIONING => self.provisioning = LogicalBlockProvisioning::parse(bytes),
            _ => {}
        }
    }

    fn shape(&self) -> Result<Shape, String> {
        let Some(capacity) = self.capacity else { return Err("it has no capacity".to_owned()) };
        let sector = capacity.block_len;
        if !(512..=SECTOR_MAX).contains(&sector) || !sector.is_power_of_two() {
            return Err(format!("its logical blocks have {sector} bytes"));
        }
        let size = capacity.size().ok_or("it claims more bytes than can be counted")?;
        let bytes = |blocks: u32| blocks.saturating_mul(sector);
        let limits = self.limits.as_ref();
        let limit = limits.map_or(0, |limits| limits.transfer_max);

        // Also of a unit with long commands, as far as the short ones reach: it may turn out to know only READ CAPACITY
        // (16).
        let short_reaches = size / u64::from(sector) <= 1 << 32;
        let most = if self.long && !short_reaches { u32::MAX } else { bytes(u16::MAX.into()) };
        let target_max = if limit == 0 { most } else { bytes(limit).min(most) };
        let transfer_max = (self.transfer_max.min(target_max) / sector * sector).max(sector);

        let thin = capacity.provisioning_managed;
        let by_write_same = thin && self.provisioning.as_ref().is_some_and(|page| page.write_same_16);
        let unmap_limit = limits
            .map_or(0, |limits| if limits.unmap_descriptors_max == 0 { 0 } else { limits.unmap_blocks_max });
        // Without page B2h (SBC-3 before revision 20), limits for UNMAP mean that it is there.
        let by_unmap = thin && unmap_limit > 0 && self.provisioning.as_ref().is_none_or(|page| page.unmap);
        let unmap_zeroes = by_write_same && capacity.unmapped_zeroes;
        let granularity = bytes(limits.map_or(1, |limits| limits.unmap_granularity.max(1)));
        let cap = |blocks: u64, bytes_max: u64| blocks.min(bytes_max / u64::from(sector)) as u32;
        let write_same_limit =
            limits.map(|limits| limits.write_same_max).filter(|&blocks| blocks > 0).unwrap_or(u64::MAX);

        let write_cache = self.mode.as_ref().and_then(ModeSense::write_cache);
        let geometry = Geometry {
            size,
            logical_sector: sector,
            physical_sector: sector << capacity.physical_exponent.min(8),
            optimal_transfer: limits.map_or(0, |limits| bytes(limits.optimal_transfer)),
            transfer_granularity: limits.map_or(0, |limits| bytes(limits.optimal_granularity.into())),
            first_aligned: bytes(capacity.lowest_aligned.into()),
            max_transfer: transfer_max,
            unmap: match thin {
                false => Unmap::Never,
                true if unmap_zeroes => Unmap::Zeroes { granularity },
                true if by_unmap => Unmap::Frees { granularity },
                true => Unmap::Ignored,
            },
            read_only: self.mode.as_ref().is_some_and(|mode| mode.write_protected),
            // Unknown counts as volatile: a flush too many is cheap.
            volatile_cache: write_cache.unwrap_or(true),
            rotational: self.characteristics.as_ref().is_some_and(|page| page.rotation_rate > 1),
        };
        Ok(Shape {
            geometry,
            transfer_max,
            write_cache,
            long: self.long,
            fua: self.mode.as_ref().is_some_and(|mode| mode.dpo_fua),
            flush: true,
            flush_long: self.long,
            write_same: self.long,
            write_same_unmaps: unmap_zeroes,
            write_same_blocks_max: cap(write_same_limit, WRITE_SAME_MAX).max(1),
            unmap_blocks_max: cap(unmap_limit.into(), UNMAP_MAX).max(1),
            lba_status: thin,
            unallocated_is_zero: capacity.unmapped_zeroes,
            separate_task_sets: self
                .control
                .as_ref()
                .and_then(ModeSense::separate_task_sets)
                .unwrap_or(false),
        })
    }
}

/// Identity that a unit tells.
enum Found {
    /// The disk that was opened.
    Same,
    /// Another one, and how it is known.
    Other(String),
    /// None.
    Absent(String),
}

/// The unit of a device: its shape as it is now, the names it keeps, and who wants to hear of changes.
pub(crate) struct UnitCell {
    shape: RwLock<Shape>,
    identity: VpdIdentity,
    /// As the latest session found it.
    port: Mutex<Port>,
    lun: u16,
    transfer_max: u32,
    callbacks: Mutex<Vec<Arc<ResizeCallback>>>,
    /// Refreshes asked for and not done.
    refreshes: AtomicUsize,
    /// Readings of the access state asked for and not done.
    readings: AtomicUsize,
}

impl UnitCell {
    pub(crate) fn new(unit: Unit, lun: u16, transfer_max: u32) -> Self {
        Self {
            shape: RwLock::new(unit.shape),
            identity: unit.identity,
            port: Mutex::new(unit.port),
            lun,
            transfer_max,
            callbacks: Mutex::default(),
            refreshes: AtomicUsize::new(0),
            readings: AtomicUsize::new(0),
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        *self.shape.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn identity(&self) -> &VpdIdentity {
        &self.identity
    }

    pub(crate) fn change(&self, f: impl FnOnce(&mut Shape)) {
        f(&mut self.shape.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn on_resize(&self, callback: ResizeCallback) {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(callback));
    }

    /// Asks a unit what it is, with the limits of this one.
    pub(crate) async fn learn<E: Exchange>(&self, exchange: &mut E) -> Result<Unit, IscsiOpenError> {
        Unit::learn(exchange, self.lun, self.transfer_max, Some(self.shape())).await
    }

    /// Checks that `unit` is the disk that was opened.
    pub(crate) fn same_disk(&self, unit: &Unit) -> Result<(), String> {
        self.same(&unit.identity, Some(unit.shape.geometry.logical_sector))
    }

    fn same(&self, identity: &VpdIdentity, sector: Option<u32>) -> Result<(), String> {
        if !self.identity.is_still(identity) {
            let old = &self.identity;
            return Err(format!(
                "the target offers another disk under the old address: {identity} instead of {old}"
            ));
        }
        let before = self.shape().geometry.logical_sector;
        match sector.filter(|&now| now != before) {
            Some(now) => {
                Err(format!("the disk's logical block size has changed from {before} to {now} bytes"))
            }
            None => Ok(()),
        }
    }

    /// Asks the unit which it is, with as few commands as possible, in any state of its port. An error says that it
    /// does not tell.
    async fn examine<E: Exchange>(&self, exchange: &mut E) -> Result<Found, IscsiOpenError> {
        let mut met = Vec::new();
        let inquiry =
            ask(exchange, &cdb::inquiry(false, 0, INQUIRY_LEN), INQUIRY_LEN.into(), &mut met).await?;
        let inquiry = accept(exchange, "INQUIRY", inquiry, self.lun);
        let absent = IscsiOpenError::NoSuchLun { portal: exchange.portal(), lun: self.lun }.to_string();
        let peripheral = match inquiry {
            Err(IscsiOpenError::NoSuchLun { .. }) => return Ok(Found::Absent(absent)),
            Err(error) => return Err(error),
            Ok(answer) => {
                Inquiry::parse(&answer.data).map_or(PeripheralType::DISK, |inquiry| inquiry.peripheral)
            }
        };
        if peripheral.qualifier() != 0 {
            return Ok(Found::Absent(absent));
        }
        let mut facts = Facts::default();
        let pages = [
            (page::DEVICE_IDENTIFICATION, !self.identity.designators.is_empty()),
            (page::UNIT_SERIAL_NUMBER, self.identity.serial.is_some()),
        ];
        for (code, _) in pages.into_iter().filter(|(_, known)| *known) {
            let answer = read_vpd(exchange, code, &mut met).await?;
            if answer.status == Status::GOOD {
                facts.take_page(code, &answer.data);
            } else if !answer.is_illegal_request() {
                return Err(not_told(exchange, &answer));
            }
        }
        // Not told through a port that is not active.
        let sector = match self.shape().long {
            true => {
                let answer = ask(exchange, &cdb::read_capacity16(32), 32, &mut met).await?;
                ReadCapacity::parse(&answer.data).filter(|_| answer.status == Status::GOOD)
            }
            false => {
                let answer = ask(exchange, &cdb::read_capacity10(), 8, &mut met).await?;
                ReadCapacity::parse_10(&answer.data).filter(|_| answer.status == Status::GOOD)
            }
        };
        Ok(match self.same(&facts.identity, sector.map(|capacity| capacity.block_len)) {
            Ok(()) => Found::Same,
            Err(why) => Found::Other(why),
        })
    }

    /// Takes the new shape; tells those who want to know where the geometry has changed.
    pub(crate) fn replace(&self, unit: &Unit) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = unit.port;
        let geometry = unit.shape.geometry;
        let mut changed = false;
        self.change(|shape| {
            changed = shape.geometry != geometry;
            *shape = unit.shape;
        });
        if changed {
            let callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).clone();
            callbacks.iter().for_each(|callback| callback(geometry));
        }
    }

    /// Reads the shape again over a session that is in use.
    pub(crate) async fn refresh(&self, session: Arc<Session>, portal: String, patience: Duration) {
        if self.refreshes.fetch_add(1, Ordering::AcqRel) > 0 {
            // The task that is at it does it once more.
            return;
        }
        let mut exchange = OverSession { session: session.clone(), portal, patience };
        loop {
            let asked = self.refreshes.load(Ordering::Acquire);
            let doubts = session.doubts();
            // First of all, and with few commands, as everything waits for it.
            let again = match self.examine(&mut exchange).await {
                Ok(Found::Same) => {
                    session.clear_doubt(doubts);
                    false
                }
                Ok(Found::Other(why)) => return session.condemn(why),
                Ok(Found::Absent(why)) => {
                    session.unit_is_absent(&why);
                    true
                }
                Err(error) => {
                    tracing::warn!(%error, "the unit has changed, and does not say which disk it is");
                    true
                }
            };
            if again && session.is_up() {
                tokio::time::sleep(ASK_AGAIN).await;
                continue;
            }
            match self.learn(&mut exchange).await {
                Ok(unit) => match self.same_disk(&unit) {
                    Ok(()) => {
                        session.change(|state| state.set_volatile(unit.shape.geometry.volatile_cache));
                        self.replace(&unit);
                        if let Some(access) = unit.access {
                            session.note_access(access);
                        }
                    }
                    Err(why) => return session.condemn(why),
                },
                Err(error) => tracing::warn!(%error, "the unit's shape could not be read again"),
            }
            if self.refreshes.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }

    /// Reads the state of access again over a session that is in use, until it is active or the session ends.
    pub(crate) async fn refresh_access(&self, session: Arc<Session>, portal: String, patience: Duration) {
        if self.readings.fetch_add(1, Ordering::AcqRel) > 0 {
            // The task that is at it does it once more.
            return;
        }
        let mut exchange = OverSession { session: session.clone(), portal, patience };
        loop {
            let asked = self.readings.load(Ordering::Acquire);
            let port = *self.port.lock().unwrap_or_else(PoisonError::into_inner);
            let pause = match port.read(&mut exchange, &mut Vec::new()).await {
                Ok(access) => {
                    access.into_iter().for_each(|access| session.note_access(access));
                    match access {
                        Some(AccessState::Transitioning) => Some(TRANSITION_POLL),
                        access => access.filter(|&access| !access.is_active()).map(|_| INACTIVE_POLL),
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the access state could not be read again");
                    session.is_up().then_some(INACTIVE_POLL)
                }
            };
            if let Some(pause) = pause {
                let _ = timeout(pause, session.look.notified()).await;
                continue;
            }
            if self.readings.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Everything a target and a logical unit tell about themselves.

use futures_util::future::BoxFuture;
use lunway_iscsi::login::LoggedIn;
use lunway_iscsi::{SendTargets, TargetRecord};
use lunway_scsi::mode::{self, ModeSense, PageControl};
use lunway_scsi::vpd::{
    BlockDeviceCharacteristics, BlockLimits, DeviceIdentification, LogicalBlockProvisioning, SupportedPages,
    UnitSerialNumber, page,
};
use lunway_scsi::{AdditionalSense, Inquiry, Lun, LunAddress, LunList, ReadCapacity, Status, cdb};

use crate::fresh_session::{FreshSession, Purpose};
use crate::ports::isid::IsidFamily;
use crate::unit::exchange::{Exchange, ask};
use crate::unit::vpd;
use crate::{IscsiOpenError, IscsiUrl, SessionOptions};

/// Room for 2,000 logical units.
const LUN_LIST_LEN: u32 = 16 << 10;

/// Description of a target and one of its logical units. `None`: the unit does not tell.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// Address that was asked, without secrets.
    pub url: String,
    /// Address and port that were reached.
    pub portal: String,
    /// The session: names, digests, burst lengths.
    pub session: LoggedIn,
    /// Numbers of the target's logical units.
    pub luns: Vec<u16>,
    /// The unit, if the address names one.
    pub unit: Option<UnitInspection>,
}

/// Description of a logical unit.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UnitInspection {
    /// Its number.
    pub lun: u16,
    /// Standard INQUIRY data.
    pub inquiry: Option<Inquiry>,
    /// Codes of the VPD pages it has (page 00h).
    pub vpd_pages: Vec<u8>,
    /// Page 80h.
    pub serial: Option<String>,
    /// Page 83h.
    pub identification: Option<DeviceIdentification>,
    /// Page B0h.
    pub block_limits: Option<BlockLimits>,
    /// Page B1h.
    pub characteristics: Option<BlockDeviceCharacteristics>,
    /// Page B2h.
    pub provisioning: Option<LogicalBlockProvisioning>,
    /// The other VPD pages, as they came.
    pub other_pages: Vec<(u8, Vec<u8>)>,
    /// READ CAPACITY (16), else (10).
    pub capacity: Option<ReadCapacity>,
    /// All mode pages, current values.
    pub mode: Option<ModeSense>,
    /// Answer to TEST UNIT READY, if it is not ready.
    pub not_ready: Option<String>,
    /// Unit attentions that were pending.
    pub attentions: Vec<String>,
}

/// Lists the targets of a portal in a discovery session.
///
/// Boxed, as [`IscsiDevice::open`](crate::IscsiDevice::open) is.
pub fn discover<'a>(
    url: &'a IscsiUrl,
    options: &'a SessionOptions,
) -> BoxFuture<'a, Result<Vec<TargetRecord>, IscsiOpenError>> {
    Box::pin(discover_now(url, options))
}

async fn discover_now(url: &IscsiUrl, options: &SessionOptions) -> Result<Vec<TargetRecord>, IscsiOpenError> {
    let mut fresh =
        FreshSession::dial(url, options, IsidFamily::random().member(0), Purpose::Discovery, None).await?;
    let which = url.target.clone().map_or(SendTargets::All, SendTargets::Named);
    let targets = fresh.targets(which).await;
    fresh.logout().await;
    targets
}

/// Asks a target for its logical units, and the one that `url` names for all it tells. Looks only: nothing is written,
/// no mode is changed.
///
/// Boxed, as [`IscsiDevice::open`](crate::IscsiDevice::open) is.
pub fn inspect<'a>(
    url: &'a IscsiUrl,
    options: &'a SessionOptions,
) -> BoxFuture<'a, Result<Inspection, IscsiOpenError>> {
    Box::pin(inspect_now(url, options))
}

async fn inspect_now(url: &IscsiUrl, options: &SessionOptions) -> Result<Inspection, IscsiOpenError> {
    let options = &options.clone().with_timers_of(url);
    if url.target.is_none() {
        return Err(IscsiOpenError::NoTarget { portal: url.portal() });
    }
    let mut fresh =
        FreshSession::dial(url, options, IsidFamily::random().member(0), Purpose::Normal, None).await?;
    let inspection = look(url, &mut fresh).await;
    fresh.logout().await;
    inspection
}

/// Numbers of the logical units that a target shows to us, by a session of its own.
///
/// # Errors
///
/// [`IscsiOpenError`]; a target that does not answer REPORT LUNS with a list has [`IscsiOpenError::Command`].
pub async fn luns(url: &IscsiUrl, options: &SessionOptions) -> Result<Vec<u16>, IscsiOpenError> {
    let options = &options.clone().with_timers_of(url);
    let mut fresh =
        FreshSession::dial(url, options, IsidFamily::random().member(0), Purpose::Normal, None).await?;
    let listed = report_luns(&mut fresh).await;
    let portal = Exchange::portal(&fresh);
    fresh.logout().await;
    let refused = |why| IscsiOpenError::Command { portal, command: "REPORT LUNS", why };
    listed?.map_err(refused)
}

/// The numbers that REPORT LUNS lists; or what it was answered with instead.
async fn report_luns(fresh: &mut FreshSession) -> Result<Result<Vec<u16>, String>, IscsiOpenError> {
    // It is answered by LUN 0 whether or not there is a unit (SPC-4 §6.33).
    fresh.address(Lun::new(0));
    let answer = ask(fresh, &cdb::report_luns(LUN_LIST_LEN), LUN_LIST_LEN as usize, &mut Vec::new()).await?;
    if answer.is_transient() {
        // Whatever is asked next would be put off as long.
        let (portal, why) = (Exchange::portal(fresh), answer.describe());
        return Err(IscsiOpenError::Command { portal, command: "REPORT LUNS", why });
    }
    let list = (answer.status == Status::GOOD).then(|| LunList::parse(&answer.data)).flatten();
    let number = |lun: Lun| match lun.address() {
        LunAddress::Unit(number) => Some(number),
        _ => None,
    };
    let numbers = list.map(|list| list.luns.into_iter().filter_map(number).collect());
    Ok(numbers.ok_or_else(|| answer.describe()))
}

async fn look(url: &IscsiUrl, fresh: &mut FreshSession) -> Result<Inspection, IscsiOpenError> {
    let portal = Exchange::portal(fresh);
    let Some(session) = fresh.logged_in().cloned() else {
        return Err(IscsiOpenError::Lost { portal, why: "it is not logged in".to_owned() });
    };
    let luns = report_luns(fresh).await?.unwrap_or_default();
    let unit = match url.lun {
        Some(lun) => {
            fresh.address(Lun::new(lun));
            Some(look_at_unit(fresh, lun).await?)
        }
        None => None,
    };
    Ok(Inspection { url: url.to_string(), portal, session, luns, unit })
}

async fn look_at_unit(fresh: &mut FreshSession, lun: u16) -> Result<UnitInspection, IscsiOpenError> {
    let mut unit = UnitInspection { lun, ..UnitInspection::default() };
    let mut attentions = Vec::new();
    let answer = ask(fresh, &cdb::inquiry(false, 0, 255), 255, &mut attentions).await?;
    let is_absent =
        answer.sense.as_ref().map(|sense| sense.code) == Some(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED);
    if answer.status != Status::GOOD && !is_absent {
        let (portal, why) = (Exchange::portal(fresh), answer.describe());
        return Err(IscsiOpenError::Command { portal, command: "INQUIRY", why });
    }
    unit.inquiry = Inquiry::parse(&answer.data).filter(|_| answer.status == Status::GOOD);
    let absent = unit.inquiry.as_ref().is_none_or(|inquiry| inquiry.peripheral.qualifier() != 0);
    if absent {
        return Err(IscsiOpenError::NoSuchLun { portal: Exchange::portal(fresh), lun });
    }
    let answer = ask(fresh, &cdb::test_unit_ready(), 0, &mut attentions).await?;
    unit.not_ready = (answer.status != Status::GOOD).then(|| answer.describe());

    if let Some(bytes) = vpd(fresh, page::SUPPORTED, &mut attentions).await? {
        unit.vpd_pages = SupportedPages::parse(&bytes).map_or(Vec::new(), |pages| pages.0);
    }
    for code in unit.vpd_pages.clone() {
        let Some(bytes) = vpd(fresh, code, &mut attentions).await? else { continue };
        match code {
            page::SUPPORTED => {}
            page::UNIT_SERIAL_NUMBER => unit.serial = UnitSerialNumber::parse(&bytes).map(|page| page.0),
            page::DEVICE_IDENTIFICATION => unit.identification = DeviceIdentification::parse(&bytes),
            page::BLOCK_LIMITS => unit.block_limits = BlockLimits::parse(&bytes),
            page::BLOCK_DEVICE_CHARACTERISTICS => {
                unit.characteristics = BlockDeviceCharacteristics::parse(&bytes);
            }
            page::LOGICAL_BLOCK_PROVISIONING => unit.provisioning = LogicalBlockProvisioning::parse(&bytes),
            other => unit.other_pages.push((other, bytes.to_vec())),
        }
    }

    let answer = ask(fresh, &cdb::read_capacity16(32), 32, &mut attentions).await?;
    unit.capacity = if answer.status == Status::GOOD {
        ReadCapacity::parse(&answer.data)
    } else {
        let answer = ask(fresh, &cdb::read_capacity10(), 8, &mut attentions).await?;
        ReadCapacity::parse_10(&answer.data).filter(|_| answer.status == Status::GOOD)
    };
    let (current, all) = (PageControl::Current, mode::page::ALL);
    let answer = ask(fresh, &cdb::mode_sense10(current, all, 0, 1024), 1024, &mut attentions).await?;
    unit.mode = if answer.status == Status::GOOD {
        ModeSense::parse_10(&answer.data)
    } else {
        let answer = ask(fresh, &cdb::mode_sense6(current, all, 0, 255), 255, &mut attentions).await?;
        ModeSense::parse_6(&answer.data).filter(|_| answer.status == Status::GOOD)
    };
    unit.attentions = attentions.iter().map(ToString::to_string).collect();
    Ok(unit)
}

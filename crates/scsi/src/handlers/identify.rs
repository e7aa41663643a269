//! INQUIRY, READ CAPACITY, REPORT LUNS and REQUEST SENSE: who and what is there.

use lunway_block::Io;

use super::product_data;
use crate::command::operation::OperationTable;
use crate::command::{Answer, Command, PaddedCdb, parameter_data};
use crate::data::capacity::ReadCapacity;
use crate::data::inquiry::{Inquiry, PeripheralType};
use crate::data::lun::{Lun, LunList};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::data::vpd::{self, page};
use crate::model::nexus::Nexus;

const EVPD: u8 = 0x01;

/// EVPD, page and allocation length; a page without EVPD is a mistake (SPC-4 §6.6.1).
fn inquiry_request(cdb: &PaddedCdb) -> Result<(Option<u8>, usize), Response> {
    let allocation = usize::from(cdb.u16(3));
    match (cdb.has(1, EVPD), cdb.u8(2)) {
        (true, page) => Ok((Some(page), allocation)),
        (false, 0) => Ok((None, allocation)),
        (false, _) => Err(Sense::invalid_cdb_field(2, 7).into()),
    }
}

pub(crate) fn inquiry(command: Command, operations: &'static OperationTable) -> Answer {
    let (page, allocation) = inquiry_request(&command.cdb)?;
    let data = match page {
        None => Inquiry::of(&command.itl).build().to_vec(),
        Some(page) => product_data::build(page, &command.itl, operations)
            .ok_or_else(|| Sense::invalid_cdb_field(2, 7))?,
    };
    Ok(Io::Ready(parameter_data(&data, allocation)))
}

pub(crate) fn inquiry_without_unit(cdb: &PaddedCdb, well_known: bool) -> Result<Response, Response> {
    let (requested, allocation) = inquiry_request(cdb)?;
    let peripheral = if well_known { PeripheralType::WELL_KNOWN } else { PeripheralType::ABSENT };
    let data = match requested {
        None => Inquiry::without_unit(peripheral).build().to_vec(),
        Some(page::SUPPORTED) => vpd::build_supported(peripheral, &[page::SUPPORTED]),
        Some(_) => return Err(Sense::invalid_cdb_field(2, 7).into()),
    };
    Ok(parameter_data(&data, allocation))
}

pub(crate) fn read_capacity_10(command: Command) -> Answer {
    let capacity = ReadCapacity::of(&command.unit().geometry());
    Ok(Io::Ready(parameter_data(&capacity.build_10(), usize::MAX)))
}

pub(crate) fn read_capacity_16(command: Command) -> Answer {
    let capacity = ReadCapacity::of(&command.unit().geometry());
    Ok(Io::Ready(parameter_data(&capacity.build_16(), command.cdb.u32(10) as usize)))
}

pub(crate) fn report_luns(nexus: &Nexus, cdb: &PaddedCdb) -> Result<Response, Response> {
    let units = || nexus.luns().into_iter().map(Lun::new);
    let luns: Vec<Lun> = match cdb.u8(2) {
        0x00 => units().collect(),
        0x01 => vec![Lun::REPORT_LUNS],
        0x02 => std::iter::once(Lun::REPORT_LUNS).chain(units()).collect(),
        _ => return Err(Sense::invalid_cdb_field(2, 7).into()),
    };
    nexus.luns_reported();
    Ok(parameter_data(&LunList::build(&luns), cdb.u32(6) as usize))
}

fn sense_data(cdb: &PaddedCdb, sense: &Sense) -> Response {
    const DESC: u8 = 0x01;
    parameter_data(&sense.to_bytes(cdb.has(1, DESC)), usize::from(cdb.u8(4)))
}

/// Tells a pending unit attention as data, else that there is nothing: sense data of failed commands travels with their
/// status (SPC-4 §6.39).
pub(crate) fn request_sense(command: Command) -> Answer {
    if PeripheralType::of(&command.itl) != PeripheralType::DISK {
        // What INQUIRY says is not here through this port; unit attentions wait until it is.
        return Ok(Io::Ready(request_sense_without_unit(&command.cdb, false)));
    }
    let sense = match command.itl.pending().take() {
        Some(condition) => condition.sense(),
        // PROGRESS INDICATION of an operation that has the medium (SBC-4 §4.11.2).
        None => match command.unit().medium_operation().sense() {
            Some(sense) => sense,
            None => Sense::new(SenseKey::NO_SENSE, AdditionalSense::NONE),
        },
    };
    Ok(Io::Ready(sense_data(&command.cdb, &sense)))
}

pub(crate) fn request_sense_without_unit(cdb: &PaddedCdb, well_known: bool) -> Response {
    let sense = if well_known {
        Sense::new(SenseKey::NO_SENSE, AdditionalSense::NONE)
    } else {
        Sense::illegal(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED)
    };
    sense_data(cdb, &sense)
}

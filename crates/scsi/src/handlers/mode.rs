//! MODE SENSE and MODE SELECT.

use lunway_block::Io;

use crate::command::{Answer, Command, parameter_data, stepwise};
use crate::data::field::{put, u8_at, u16_at, u32_at, u64_at};
use crate::data::mode::{ModeSense, PageControl, SelectError};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::model::logical_unit::{LogicalUnit, obstacle};

/// Form of CDB and header: which of the two lengths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Six,
    Ten,
}

impl Form {
    fn header_len(self) -> usize {
        match self {
            Self::Six => 4,
            Self::Ten => 8,
        }
    }
}

fn block_descriptor(unit: &LogicalUnit, long: bool) -> Vec<u8> {
    let geometry = unit.geometry();
    if long {
        let mut bytes = vec![0; 16];
        put(&mut bytes, 0, geometry.sectors().to_be_bytes());
        put(&mut bytes, 12, geometry.logical_sector.to_be_bytes());
        return bytes;
    }
    let mut bytes = vec![0; 8];
    put(&mut bytes, 0, u32::try_from(geometry.sectors()).unwrap_or(u32::MAX).to_be_bytes());
    // Three bytes of block length behind a reserved one: a sector never reaches it.
    put(&mut bytes, 4, geometry.logical_sector.to_be_bytes());
    bytes
}

fn sense(command: &Command, form: Form, allocation: usize) -> Answer {
    const DBD: u8 = 0x08;
    const LLBAA: u8 = 0x10;
    let cdb = &command.cdb;
    let unit = command.unit();
    let control = PageControl::from_bits(cdb.u8(2) >> 6);
    let savable = unit.state().is_some();
    if control == PageControl::Saved && !savable {
        return Err(Sense::illegal(AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED).into());
    }
    let pages = unit
        .mode()
        .sense(control, cdb.u8(2) & 0x3F, cdb.u8(3), savable, unit.threshold())
        .ok_or_else(|| Sense::invalid_cdb_field(2, 5))?;
    let long = form == Form::Ten && cdb.has(1, LLBAA);
    let descriptor = if cdb.has(1, DBD) { Vec::new() } else { block_descriptor(unit, long) };
    let protected = (unit.obstacles() | command.itl.obstacles()) & obstacle::PROTECTED != 0;
    let device_specific = ModeSense::DPOFUA | if protected { ModeSense::WP } else { 0 };

    let mut bytes = vec![0; form.header_len()];
    bytes.extend(&descriptor);
    bytes.extend(pages);
    match form {
        Form::Six => {
            bytes[0] = (bytes.len() - 1).min(u8::MAX.into()) as u8;
            bytes[2] = device_specific;
            bytes[3] = descriptor.len() as u8;
        }
        Form::Ten => {
            let len = bytes.len() as u16 - 2;
            put(&mut bytes, 0, len.to_be_bytes());
            bytes[3] = device_specific;
            bytes[4] = u8::from(long);
            put(&mut bytes, 6, (descriptor.len() as u16).to_be_bytes());
        }
    }
    Ok(Io::Ready(parameter_data(&bytes, allocation)))
}

pub(crate) fn sense_6(command: Command) -> Answer {
    sense(&command, Form::Six, usize::from(command.cdb.u8(4)))
}

pub(crate) fn sense_10(command: Command) -> Answer {
    sense(&command, Form::Ten, usize::from(command.cdb.u16(7)))
}

/// A block descriptor may only repeat what is: another block length would need FORMAT UNIT, another count resizing.
fn check_block_descriptor(
    unit: &LogicalUnit,
    bytes: &[u8],
    header: usize,
    long: bool,
) -> Result<(), Response> {
    let geometry = unit.geometry();
    let refuse = |at: usize| Err(Sense::invalid_parameter((header + at) as u16).into());
    let (blocks, len) = match (bytes.len(), long) {
        (0, _) => return Ok(()),
        (8, false) => (u32_at(bytes, 0).map(u64::from), u32_at(bytes, 4).map(|len| len & 0xFF_FFFF)),
        (16, true) => (u64_at(bytes, 0), u32_at(bytes, 12)),
        _ => return refuse(0),
    };
    let told = if long { geometry.sectors() } else { geometry.sectors().min(u32::MAX.into()) };
    match (blocks, len) {
        (Some(blocks), _) if blocks != 0 && blocks != told => refuse(0),
        (_, Some(len)) if len == geometry.logical_sector => Ok(()),
        _ => refuse(if long { 12 } else { 5 }),
    }
}

fn select(command: Command, form: Form, len: usize) -> Answer {
    const PF: u8 = 0x10;
    const SP: u8 = 0x01;
    let unit = command.unit();
    let save = command.cdb.has(1, SP);
    if save && unit.state().is_none() {
        return Err(Sense::invalid_cdb_field(1, 0).into());
    }
    if len == 0 {
        return Ok(Io::Ready(Response::good()));
    }
    let list = command.parameter_list(len)?;
    let too_short = || Response::from(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    let (descriptors, long) = match form {
        Form::Six => (u8_at(&list, 3).map(usize::from), false),
        Form::Ten => (u16_at(&list, 6).map(usize::from), u8_at(&list, 4).unwrap_or(0) & 1 != 0),
    };
    let header = form.header_len();
    let pages_at = header + descriptors.ok_or_else(too_short)?;
    let descriptor = list.get(header..pages_at).ok_or_else(too_short)?;
    check_block_descriptor(unit, descriptor, header, long)?;
    let pages = &list[pages_at..];
    if !pages.is_empty() && !command.cdb.has(1, PF) {
        return Err(Sense::invalid_cdb_field(1, 4).into());
    }
    let change = unit.mode().select(pages, unit.threshold()).map_err(|error| match error {
        SelectError::Length => too_short(),
        SelectError::Field(at) => Sense::invalid_parameter((pages_at + at) as u16).into(),
    })?;
    if !save {
        unit.put_mode_in_force(change, &command.itl);
        return Ok(Io::Ready(Response::took(len as u64)));
    }
    stepwise(async move {
        let unit = command.unit();
        unit.save_mode(change, &command.itl)
            .await
            .map_err(|_| Sense::new(SenseKey::HARDWARE_ERROR, AdditionalSense::INTERNAL_TARGET_FAILURE))?;
        Ok(Response::took(len as u64))
    })
}

pub(crate) fn select_6(command: Command) -> Answer {
    let len = usize::from(command.cdb.u8(4));
    select(command, Form::Six, len)
}

pub(crate) fn select_10(command: Command) -> Answer {
    let len = usize::from(command.cdb.u16(7));
    select(command, Form::Ten, len)
}

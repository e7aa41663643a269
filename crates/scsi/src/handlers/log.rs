//! LOG SENSE (SPC-4 §6.7, §7.3; SBC-4 §6.4): what there is to tell about the unit that no other command tells.

use lunway_block::Io;

use crate::command::{Answer, Command, parameter_data};
use crate::data::field::put;
use crate::data::sense::{AdditionalSense, Sense};
use crate::model::logical_unit::LogicalUnit;

/// Log pages.
mod page {
    pub(super) const SUPPORTED: u8 = 0x00;
    pub(super) const LOGICAL_BLOCK_PROVISIONING: u8 = 0x0C;
    pub(super) const INFORMATIONAL_EXCEPTIONS: u8 = 0x2F;
    /// The subpage that stands for all.
    pub(super) const ALL_SUBPAGES: u8 = 0xFF;
}

/// FORMAT AND LINKING: a binary list.
const BINARY_LIST: u8 = 0b11;

/// A log parameter.
fn parameter(code: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = code.to_be_bytes().to_vec();
    bytes.extend([BINARY_LIST, value.len() as u8]);
    bytes.extend(value);
    bytes
}

/// Used and available LBA mapping resources: what is left may be taken by other units of the same store as well.
fn provisioning(unit: &LogicalUnit) -> Option<Vec<u8>> {
    const AVAILABLE: u16 = 0x0001;
    const USED: u16 = 0x0002;
    const DEDICATED: u8 = 0b01;
    const SHARED: u8 = 0b10;
    let (used, available) = unit.mapping_resources()?;
    let count = |code, count: u32, scope| {
        let [a, b, c, d] = count.to_be_bytes();
        parameter(code, &[a, b, c, d, scope, 0, 0, 0])
    };
    Some([count(AVAILABLE, available, SHARED), count(USED, used, DEDICATED)].concat())
}

/// No exception, no temperature.
fn informational_exceptions() -> Vec<u8> {
    const NO_TEMPERATURE: u8 = 0xFF;
    parameter(0, &[0, 0, NO_TEMPERATURE, 0])
}

fn supported(unit: &LogicalUnit) -> Vec<u8> {
    let mut pages = vec![page::SUPPORTED];
    pages.extend(unit.mapping_resources().map(|_| page::LOGICAL_BLOCK_PROVISIONING));
    pages.push(page::INFORMATIONAL_EXCEPTIONS);
    pages
}

pub(crate) fn log_sense(command: Command) -> Answer {
    const PAGE_CONTROL_CUMULATIVE: u8 = 0b01;
    const SPF: u8 = 0x40;
    let (control, code, subpage) = (command.cdb.u8(2) >> 6, command.cdb.u8(2) & 0x3F, command.cdb.u8(3));
    let unit = command.unit();
    let refuse = |byte, bit| Err(Sense::invalid_cdb_field(byte, bit).into());
    // Thresholds of these parameters do not exist; their default values are no more than the current ones.
    if control & PAGE_CONTROL_CUMULATIVE == 0 {
        return refuse(2, 7);
    }
    let body = match (code, subpage) {
        (page::SUPPORTED, 0) => supported(unit),
        (page::SUPPORTED, page::ALL_SUBPAGES) => {
            supported(unit).into_iter().flat_map(|code| [code, 0]).collect()
        }
        (page::LOGICAL_BLOCK_PROVISIONING, 0) => match provisioning(unit) {
            Some(body) => body,
            None => return refuse(2, 5),
        },
        (page::INFORMATIONAL_EXCEPTIONS, 0) => informational_exceptions(),
        _ => return refuse(2, 5),
    };
    // PARAMETER POINTER: the first parameter to tell.
    let pointer = command.cdb.u16(5);
    let body = if code == page::SUPPORTED { body } else { from_parameter(body, pointer) };
    if pointer != 0 && (code == page::SUPPORTED || body.is_empty()) {
        return Err(Sense::illegal(AdditionalSense::INVALID_FIELD_IN_CDB).into());
    }
    let mut bytes = vec![code | if subpage != 0 { SPF } else { 0 }, subpage, 0, 0];
    put(&mut bytes, 2, (body.len() as u16).to_be_bytes());
    bytes.extend(body);
    Ok(Io::Ready(parameter_data(&bytes, usize::from(command.cdb.u16(7)))))
}

/// The parameters whose code is not below `first`.
fn from_parameter(body: Vec<u8>, first: u16) -> Vec<u8> {
    let mut at = 0;
    while let Some(&[high, low, _, len]) = body.get(at..).and_then(|rest| rest.first_chunk()) {
        if u16::from_be_bytes([high, low]) >= first {
            return body[at..].to_vec();
        }
        at += 4 + usize::from(len);
    }
    Vec::new()
}

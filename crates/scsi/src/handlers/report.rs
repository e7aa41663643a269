//! REPORT SUPPORTED OPERATION CODES, REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS and READ DEFECT DATA: what the device
//! can do and how it is.

use lunway_block::Io;

use crate::command::operation::{Operation, OperationTable, RECOMMENDED_TIMEOUT_S};
use crate::command::{Answer, Command, parameter_data};
use crate::data::field::put;
use crate::data::sense::Sense;
use crate::model::logical_unit::LogicalUnit;
use crate::model::task_management::{FUNCTIONS, TaskManagementFunction};

/// REPORTING OPTIONS (SPC-4 §6.35.1).
mod option {
    pub(super) const ALL: u8 = 0b000;
    pub(super) const OPCODE: u8 = 0b001;
    pub(super) const SERVICE_ACTION: u8 = 0b010;
    pub(super) const EITHER: u8 = 0b011;
}

/// SUPPORT (SPC-4 §6.35.3).
mod support {
    pub(super) const NONE: u8 = 0b001;
    pub(super) const AS_STANDARD: u8 = 0b011;
}

pub(crate) fn supported_operation_codes(command: Command, operations: &'static OperationTable) -> Answer {
    const RCTD: u8 = 0x80;
    let cdb = &command.cdb;
    let timeouts = cdb.has(2, RCTD);
    let (opcode, action, allocation) = (cdb.u8(3), cdb.u16(4), cdb.u32(6) as usize);
    let rows = operations.with_opcode(opcode);
    let acting = rows.first().is_some_and(|row| row.service_action.is_some());
    let of_action = rows.iter().find(|row| row.service_action.map(u16::from) == Some(action));
    let found = match cdb.u8(2) & 0b111 {
        option::ALL => {
            return Ok(Io::Ready(parameter_data(&all(operations, command.unit(), timeouts), allocation)));
        }
        // The option must fit the operation code: it has service actions or not.
        option::OPCODE if acting => return Err(Sense::invalid_cdb_field(2, 2).into()),
        option::SERVICE_ACTION if !rows.is_empty() && !acting => {
            return Err(Sense::invalid_cdb_field(2, 2).into());
        }
        option::SERVICE_ACTION => of_action,
        option::OPCODE => rows.first(),
        option::EITHER if acting => of_action,
        option::EITHER => rows.first().filter(|_| action == 0),
        _ => return Err(Sense::invalid_cdb_field(2, 2).into()),
    };
    let found = found.filter(|row| row.is_offered_by(command.unit()));
    Ok(Io::Ready(parameter_data(&one(found, timeouts), allocation)))
}

/// COMMAND TIMEOUTS descriptor (SPC-4 §6.35.4).
const TIMEOUTS: usize = 12;

fn timeouts_descriptor() -> [u8; TIMEOUTS] {
    let mut bytes = [0; TIMEOUTS];
    put(&mut bytes, 0, (TIMEOUTS as u16 - 2).to_be_bytes());
    put(&mut bytes, 8, RECOMMENDED_TIMEOUT_S.to_be_bytes());
    bytes
}

fn all(operations: &OperationTable, unit: &LogicalUnit, timeouts: bool) -> Vec<u8> {
    const SERVACTV: u8 = 0x01;
    const CTDP: u8 = 0x02;
    let mut bytes = vec![0; 4];
    for row in operations.rows().iter().filter(|row| row.is_offered_by(unit)) {
        let mut descriptor = [0; 8];
        descriptor[0] = row.opcode;
        put(&mut descriptor, 2, u16::from(row.service_action.unwrap_or(0)).to_be_bytes());
        descriptor[5] =
            if row.service_action.is_some() { SERVACTV } else { 0 } | if timeouts { CTDP } else { 0 };
        put(&mut descriptor, 6, (row.usage.len() as u16).to_be_bytes());
        bytes.extend(descriptor);
        if timeouts {
            bytes.extend(timeouts_descriptor());
        }
    }
    let len = bytes.len() as u32 - 4;
    put(&mut bytes, 0, len.to_be_bytes());
    bytes
}

fn one(row: Option<&Operation>, timeouts: bool) -> Vec<u8> {
    const CTDP: u8 = 0x80;
    let Some(row) = row else { return vec![0, support::NONE, 0, 0] };
    let mut bytes = vec![0, support::AS_STANDARD | if timeouts { CTDP } else { 0 }, 0, row.usage.len() as u8];
    bytes.extend(row.usage);
    if timeouts {
        bytes.extend(timeouts_descriptor());
    }
    bytes
}

/// Bits for the functions of [`FUNCTIONS`] (SPC-4 §6.36); no timeouts are told (TMFTMOV is 0), as their time is the
/// device's.
pub(crate) fn supported_task_management_functions(command: Command) -> Answer {
    const REPD: u8 = 0x80;
    const BASIC: usize = 4;
    const EXTENDED: usize = 16;
    let allocation = command.cdb.u32(6) as usize;
    if allocation < BASIC {
        return Err(Sense::invalid_cdb_field(6, 7).into());
    }
    let len = if command.cdb.has(2, REPD) { EXTENDED } else { BASIC };
    let mut bytes = [0; EXTENDED];
    bytes[0] = FUNCTIONS.iter().fold(0, |bits, row| bits | support_bit(row.function));
    bytes[3] = (len - BASIC) as u8;
    Ok(Io::Ready(parameter_data(&bytes[..len], allocation)))
}

/// The bit of byte 0 that says that a function is supported. Byte 1 is for QUERY functions and I_T NEXUS RESET, which
/// iSCSI has other ways for.
fn support_bit(function: TaskManagementFunction) -> u8 {
    const ATS: u8 = 0x80;
    const ATSS: u8 = 0x40;
    const CACAS: u8 = 0x20;
    const CTSS: u8 = 0x10;
    const LURS: u8 = 0x08;
    /// Obsolete since SAM-4; iSCSI has kept the function.
    const TRS: u8 = 0x02;
    match function {
        TaskManagementFunction::AbortTask => ATS,
        TaskManagementFunction::AbortTaskSet => ATSS,
        TaskManagementFunction::ClearAca => CACAS,
        TaskManagementFunction::ClearTaskSet => CTSS,
        TaskManagementFunction::LogicalUnitReset => LURS,
        TaskManagementFunction::TargetWarmReset | TaskManagementFunction::TargetColdReset => TRS,
    }
}

/// An empty list in the format that was asked for: a virtual disk has no grown and no primary defects.
pub(crate) fn read_defect_data_10(command: Command) -> Answer {
    let request = command.cdb.u8(2) & 0x1F;
    Ok(Io::Ready(parameter_data(&[0, request, 0, 0], usize::from(command.cdb.u16(7)))))
}

pub(crate) fn read_defect_data_12(command: Command) -> Answer {
    let request = command.cdb.u8(1) & 0x1F;
    Ok(Io::Ready(parameter_data(&[0, request, 0, 0, 0, 0, 0, 0], command.cdb.u32(6) as usize)))
}

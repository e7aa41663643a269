//! The table of supported operations.
//!
//! One row per command drives everything that is said about it: dispatch and its checks, REPORT SUPPORTED OPERATION
//! CODES, and the table in the documentation ([`markdown`]). To add a command is to add a row and its handler.

use std::fmt::Write as _;

use crate::command::Handler;
use crate::command::operation::{Kind, Offered, OperationTable, Passage, row};
pub use crate::command::operation::{NotFound, Operation};
use crate::data::opcode::{self as op, service_action as sa};
use crate::handlers::{
    access, atomic, copy_results, diagnostic, extended_copy, format, identify, log, medium, mode, ports,
    report, sanitize, thin, transfer, verify,
};
use crate::model::authority::Authority;
use crate::model::port_group::Reach;
use crate::model::reservation::Access;
use crate::model::task_management;

const IDENTIFY: Kind = Kind {
    passage: Passage::None,
    access: Access::Free,
    reach: Reach::Every,
    medium: false,
    writes: false,
    with_unit_attention: true,
    beside_medium_operation: true,
    reaches: false,
};
const FREE: Kind =
    Kind { reach: Reach::Active, with_unit_attention: false, beside_medium_operation: false, ..IDENTIFY };
const QUERY: Kind = Kind { access: Access::Query, ..FREE };
const QUERY_MEDIUM: Kind = Kind { medium: true, ..QUERY };
const READ: Kind = Kind { passage: Passage::Shared, access: Access::Read, medium: true, ..FREE };
const CONTROL: Kind = Kind { access: Access::Write, ..FREE };
/// Mode and log parameters, diagnostics: what a port in standby must take as well. INSPECT changes them, DESCRIBE
/// tells.
const INSPECT: Kind = Kind { reach: Reach::Standby, ..CONTROL };
/// A self-test reads the medium.
const DIAGNOSE: Kind = Kind { medium: true, ..INSPECT };
/// REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS are not on the standard's list for standby and may be
/// taken: a host that finds the unit through such a port would otherwise never learn what it can do. What they tell
/// does not change while the medium is taken.
const DESCRIBE: Kind = Kind { access: Access::Read, beside_medium_operation: true, ..INSPECT };
/// The same reason: without its size, a disk found through a port in standby is one without a medium.
const CAPACITY: Kind = Kind { reach: Reach::Standby, medium: true, ..FREE };
/// REPORT and SET TARGET PORT GROUPS: how a host finds out which ports to use must work through all of them.
const PATHS: Kind = Kind { reach: Reach::Every, beside_medium_operation: true, ..FREE };
const SWITCH: Kind = Kind { reach: Reach::Unavailable, access: Access::Write, ..PATHS };
/// No reservation keeps counters from who wants to read them (SPC-4 table 65).
const COUNTERS: Kind = Kind { access: Access::Free, ..DESCRIBE };
const PERSISTENT: Kind = Kind { access: Access::Persistent, reach: Reach::Standby, ..FREE };
/// Questions about the medium rather than its blocks' contents.
const SURVEY: Kind = Kind { passage: Passage::Unit, ..READ };
const FLUSH: Kind = Kind { passage: Passage::Unit, access: Access::Write, ..READ };
const WRITE: Kind = Kind { access: Access::Write, writes: true, ..READ };
const ATOMIC: Kind = Kind { passage: Passage::Exclusive, ..WRITE };
/// SANITIZE and FORMAT UNIT pass the gate by themselves: who waits for their end must not keep it closed. They look at
/// an operation under way or failed by themselves, too.
const OWN_MEDIUM: Kind = Kind { passage: Passage::None, beside_medium_operation: true, ..WRITE };
/// Does not change the medium.
const EXIT: Kind = Kind { writes: false, ..OWN_MEDIUM };
const COPY: Kind = Kind { reaches: true, ..CONTROL };

// Fields that many CDBs share. DPO and FUA; GROUP NUMBER is evaluated and has no effect.
const DPO_FUA: u8 = 0x18;
const DPO: u8 = 0x10;
const BYTCHK: u8 = 0x06;
const GROUP: u8 = 0x3F;

// Bits that are refused. Byte 1 of READ, WRITE, VERIFY and their kin: RDPROTECT, WRPROTECT, VRPROTECT, ORPROTECT, as
// there is no protection information. It is where SCSI-2 had the logical unit number.
const PROTECT: &[(usize, u8)] = &[(1, 0xE0)];
/// The same, and the high bytes of a longer length: without them a command would compare and write nothing, and say
/// that it did.
const PROTECT_AND_LENGTH: &[(usize, u8)] = &[(1, 0xE0), (10, 0xFF), (11, 0xFF), (12, 0xFF)];
/// The same, and ATOMIC BOUNDARY.
const PROTECT_AND_BOUNDARY: &[(usize, u8)] = &[(1, 0xE0), (10, 0xFF), (11, 0xFF)];
/// WRPROTECT and ANCHOR of WRITE SAME, and PBDATA and LBDATA (SBC-2), which change what is written.
const WRITE_SAME: &[(usize, u8)] = &[(1, 0xF6)];
/// ANCHOR of UNMAP.
const ANCHOR: &[(usize, u8)] = &[(1, 0x01)];
/// CMDDT of INQUIRY (SPC-2), which asks for other data.
const CMDDT: &[(usize, u8)] = &[(1, 0x02)];
/// RTD of MODE SELECT.
const RTD: &[(usize, u8)] = &[(1, 0x02)];
/// PPC and SP of LOG SENSE.
const PPC_SP: &[(usize, u8)] = &[(1, 0x03)];
/// RESERVE and RELEASE for a third party or of extents (SPC-2). The identification of such is one byte of (6), two of
/// (10).
const THIRD_PARTY_6: &[(usize, u8)] = &[(1, 0x1F)];
const THIRD_PARTY_10: &[(usize, u8)] = &[(1, 0x13)];
/// FMTPINFO and DEFECT LIST FORMAT, and FFMT (SBC-4).
const FORMAT: &[(usize, u8)] = &[(1, 0xC7), (4, 0x03)];
/// Of SANITIZE every reserved bit, ZNR (SBC-5) among them: a command that erases everything is not guessed at.
const ALL_OF_SANITIZE: &[(usize, u8)] = &[(1, 0x40), (2, 0xFF), (3, 0xFF), (4, 0xFF), (5, 0xFF), (6, 0xFF)];
/// REPORT TYPE of GET LBA STATUS.
const REPORT_TYPE: &[(usize, u8)] = &[(14, 0xFF)];

use Authority::{Change, ChangeAll, Observe};
use Handler::{Nexus, Table, Unit};

/// All supported operations, by operation code and service action.
#[rustfmt::skip]
pub static OPERATIONS: &[Operation] = &[
    row("TEST UNIT READY", "SPC-4 §6.47", &[op::TEST_UNIT_READY, 0, 0, 0, 0, 0], QUERY_MEDIUM, Observe, Unit(medium::test_unit_ready)),
    row("REQUEST SENSE", "SPC-4 §6.39", &[op::REQUEST_SENSE, 0x01, 0, 0, 0xFF, 0], IDENTIFY, Observe, Unit(identify::request_sense)),
    row("FORMAT UNIT", "SBC-4 §5.4", &[op::FORMAT_UNIT, 0x38, 0, 0, 0, 0], OWN_MEDIUM, Change, Unit(format::format_unit)).refusing(FORMAT),
    row("READ (6)", "SBC-3", &[op::READ_6, 0x1F, 0xFF, 0xFF, 0xFF, 0], READ, Observe, Unit(transfer::read_6)),
    row("WRITE (6)", "SBC-3", &[op::WRITE_6, 0x1F, 0xFF, 0xFF, 0xFF, 0], WRITE, Change, Unit(transfer::write_6)),
    row("INQUIRY", "SPC-4 §6.6", &[op::INQUIRY, 0x01, 0xFF, 0xFF, 0xFF, 0], IDENTIFY, Observe, Table(identify::inquiry)).refusing(CMDDT),
    row("MODE SELECT (6)", "SPC-4 §6.11", &[op::MODE_SELECT_6, 0x11, 0, 0, 0xFF, 0], INSPECT, Change, Unit(mode::select_6)).refusing(RTD),
    row("RESERVE (6)", "SPC-2", &[op::RESERVE_6, 0, 0, 0, 0, 0], FREE, Change, Unit(access::reserve)).refusing(THIRD_PARTY_6),
    row("RELEASE (6)", "SPC-2", &[op::RELEASE_6, 0, 0, 0, 0, 0], FREE, Observe, Unit(access::release)).refusing(THIRD_PARTY_6),
    row("MODE SENSE (6)", "SPC-4 §6.13", &[op::MODE_SENSE_6, 0x08, 0xFF, 0xFF, 0xFF, 0], DESCRIBE, Observe, Unit(mode::sense_6)),
    row("START STOP UNIT", "SBC-4", &[op::START_STOP_UNIT, 0x01, 0, 0x0F, 0xF7, 0], CONTROL, Change, Unit(medium::start_stop_unit)),
    row("RECEIVE DIAGNOSTIC RESULTS", "SPC-4 §6.25", &[op::RECEIVE_DIAGNOSTIC_RESULTS, 0x01, 0xFF, 0xFF, 0xFF, 0], DESCRIBE, Observe, Unit(diagnostic::receive_diagnostic_results)),
    row("SEND DIAGNOSTIC", "SPC-4 §6.42", &[op::SEND_DIAGNOSTIC, 0xF7, 0, 0xFF, 0xFF, 0], DIAGNOSE, Observe, Unit(diagnostic::send_diagnostic)),
    row("PREVENT ALLOW MEDIUM REMOVAL", "SBC-4", &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0x03, 0], CONTROL, Change, Unit(medium::prevent_allow)),
    row("READ CAPACITY (10)", "SBC-4", &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], CAPACITY, Observe, Unit(identify::read_capacity_10)),
    row("READ (10)", "SBC-4", &[op::READ_10, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0], READ, Observe, Unit(transfer::read_10)).refusing(PROTECT),
    row("WRITE (10)", "SBC-4", &[op::WRITE_10, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0], WRITE, Change, Unit(transfer::write_10)).refusing(PROTECT),
    row("WRITE AND VERIFY (10)", "SBC-4", &[op::WRITE_AND_VERIFY_10, DPO | BYTCHK, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0], ATOMIC, Change, Unit(verify::write_and_verify_10)).refusing(PROTECT),
    row("VERIFY (10)", "SBC-4", &[op::VERIFY_10, DPO | BYTCHK, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0], READ, Observe, Unit(verify::verify_10)).refusing(PROTECT),
    row("PRE-FETCH (10)", "SBC-4", &[op::PRE_FETCH_10, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0], SURVEY, Observe, Unit(transfer::pre_fetch_10)),
    row("SYNCHRONIZE CACHE (10)", "SBC-4", &[op::SYNCHRONIZE_CACHE_10, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0], FLUSH, Observe, Unit(transfer::synchronize_cache_10)),
    row("READ DEFECT DATA (10)", "SBC-4", &[op::READ_DEFECT_DATA_10, 0, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0], SURVEY, Observe, Unit(report::read_defect_data_10)),
    row("WRITE SAME (10)", "SBC-4", &[op::WRITE_SAME_10, 0x08, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0], WRITE, Change, Unit(thin::write_same_10)).refusing(WRITE_SAME),
    row("UNMAP", "SBC-4", &[op::UNMAP, 0, 0, 0, 0, 0, GROUP, 0xFF, 0xFF, 0], WRITE, Change, Unit(thin::unmap)).offered(Offered::Thin).refusing(ANCHOR),
    row("SANITIZE: OVERWRITE", "SBC-4 §5.30", &[op::SANITIZE, 0xA0 | sa::OVERWRITE, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], OWN_MEDIUM, Change, Unit(sanitize::overwrite_all)).acting().refusing(ALL_OF_SANITIZE),
    row("SANITIZE: BLOCK ERASE", "SBC-4 §5.30", &[op::SANITIZE, 0xA0 | sa::BLOCK_ERASE, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], OWN_MEDIUM, Change, Unit(sanitize::block_erase_all)).acting().offered(Offered::Thin).refusing(ALL_OF_SANITIZE),
    row("SANITIZE: EXIT FAILURE MODE", "SBC-4 §5.30", &[op::SANITIZE, 0xA0 | sa::EXIT_FAILURE_MODE, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], EXIT, Change, Unit(sanitize::exit_failure_mode)).acting().refusing(ALL_OF_SANITIZE),
    row("LOG SENSE", "SPC-4 §6.7", &[op::LOG_SENSE, 0, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], COUNTERS, Observe, Unit(log::log_sense)).refusing(PPC_SP),
    row("MODE SELECT (10)", "SPC-4 §6.12", &[op::MODE_SELECT_10, 0x11, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], INSPECT, Change, Unit(mode::select_10)).refusing(RTD),
    row("RESERVE (10)", "SPC-2", &[op::RESERVE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], FREE, Change, Unit(access::reserve)).refusing(THIRD_PARTY_10),
    row("RELEASE (10)", "SPC-2", &[op::RELEASE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], FREE, Observe, Unit(access::release)).refusing(THIRD_PARTY_10),
    row("MODE SENSE (10)", "SPC-4 §6.14", &[op::MODE_SENSE_10, 0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0], DESCRIBE, Observe, Unit(mode::sense_10)),
    row("PERSISTENT RESERVE IN: READ KEYS", "SPC-4 §6.15.2", &[op::PERSISTENT_RESERVE_IN, sa::READ_KEYS, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], PERSISTENT, Observe, Unit(access::read_keys)).acting(),
    row("PERSISTENT RESERVE IN: READ RESERVATION", "SPC-4 §6.15.3", &[op::PERSISTENT_RESERVE_IN, sa::READ_RESERVATION, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], PERSISTENT, Observe, Unit(access::read_reservation)).acting(),
    row("PERSISTENT RESERVE IN: REPORT CAPABILITIES", "SPC-4 §6.15.4", &[op::PERSISTENT_RESERVE_IN, sa::REPORT_CAPABILITIES, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], PERSISTENT, Observe, Unit(access::report_capabilities)).acting(),
    row("PERSISTENT RESERVE IN: READ FULL STATUS", "SPC-4 §6.15.5", &[op::PERSISTENT_RESERVE_IN, sa::READ_FULL_STATUS, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], PERSISTENT, Observe, Unit(access::read_full_status)).acting(),
    row("PERSISTENT RESERVE OUT: REGISTER", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::REGISTER, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("PERSISTENT RESERVE OUT: RESERVE", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::RESERVE, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("PERSISTENT RESERVE OUT: RELEASE", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::RELEASE, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("PERSISTENT RESERVE OUT: CLEAR", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::CLEAR, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("PERSISTENT RESERVE OUT: PREEMPT", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::PREEMPT, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("PERSISTENT RESERVE OUT: PREEMPT AND ABORT", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::PREEMPT_AND_ABORT, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::REGISTER_AND_IGNORE_EXISTING_KEY, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("PERSISTENT RESERVE OUT: REGISTER AND MOVE", "SPC-4 §6.16", &[op::PERSISTENT_RESERVE_OUT, sa::REGISTER_AND_MOVE, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], PERSISTENT, Change, Unit(access::persistent_reserve_out)).acting(),
    row("EXTENDED COPY (LID1)", "SPC-4 §6.4", &[op::THIRD_PARTY_COPY_OUT, sa::EXTENDED_COPY_LID1, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], COPY, Observe, Table(extended_copy::extended_copy)).acting(),
    row("RECEIVE COPY STATUS (LID1)", "SPC-4 §6.24", &[op::THIRD_PARTY_COPY_IN, sa::COPY_STATUS, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], QUERY, Observe, Unit(copy_results::copy_status)).acting(),
    row("RECEIVE COPY DATA (LID1)", "SPC-4 §6.20", &[op::THIRD_PARTY_COPY_IN, sa::RECEIVE_DATA, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], QUERY, Observe, Unit(copy_results::receive_data)).acting(),
    row("RECEIVE COPY OPERATING PARAMETERS", "SPC-4 §6.22", &[op::THIRD_PARTY_COPY_IN, sa::OPERATING_PARAMETERS, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], QUERY, Observe, Unit(copy_results::operating_parameters)).acting(),
    row("RECEIVE COPY FAILURE DETAILS (LID1)", "SPC-4 §6.21", &[op::THIRD_PARTY_COPY_IN, sa::FAILED_SEGMENT_DETAILS, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], QUERY, Observe, Unit(copy_results::failed_segment_details)).acting(),
    row("READ (16)", "SBC-4", &[op::READ_16, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], READ, Observe, Unit(transfer::read_16)).refusing(PROTECT),
    row("COMPARE AND WRITE", "SBC-4", &[op::COMPARE_AND_WRITE, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0xFF, GROUP, 0], ATOMIC, Change, Unit(atomic::compare_and_write)).refusing(PROTECT_AND_LENGTH),
    row("WRITE (16)", "SBC-4", &[op::WRITE_16, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], WRITE, Change, Unit(transfer::write_16)).refusing(PROTECT),
    row("ORWRITE (16)", "SBC-4", &[op::ORWRITE_16, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], ATOMIC, Change, Unit(atomic::orwrite)).refusing(PROTECT),
    row("WRITE AND VERIFY (16)", "SBC-4", &[op::WRITE_AND_VERIFY_16, DPO | BYTCHK, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], ATOMIC, Change, Unit(verify::write_and_verify_16)).refusing(PROTECT),
    row("VERIFY (16)", "SBC-4", &[op::VERIFY_16, DPO | BYTCHK, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], READ, Observe, Unit(verify::verify_16)).refusing(PROTECT),
    row("PRE-FETCH (16)", "SBC-4", &[op::PRE_FETCH_16, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], SURVEY, Observe, Unit(transfer::pre_fetch_16)),
    row("SYNCHRONIZE CACHE (16)", "SBC-4", &[op::SYNCHRONIZE_CACHE_16, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], FLUSH, Observe, Unit(transfer::synchronize_cache_16)),
    row("WRITE SAME (16)", "SBC-4", &[op::WRITE_SAME_16, 0x09, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], WRITE, Change, Unit(thin::write_same_16)).refusing(WRITE_SAME),
    row("WRITE ATOMIC (16)", "SBC-4", &[op::WRITE_ATOMIC_16, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF, GROUP, 0], ATOMIC, Change, Unit(atomic::write_atomic_16)).offered(Offered::AtomicWrites).refusing(PROTECT_AND_BOUNDARY),
    row("READ CAPACITY (16)", "SBC-4", &[op::SERVICE_ACTION_IN_16, sa::READ_CAPACITY_16, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], CAPACITY, Observe, Unit(identify::read_capacity_16)).acting(),
    row("GET LBA STATUS (16)", "SBC-4", &[op::SERVICE_ACTION_IN_16, sa::GET_LBA_STATUS, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], SURVEY, Observe, Unit(thin::get_lba_status)).acting().refusing(REPORT_TYPE),
    row("REPORT LUNS", "SPC-4 §6.33", &[op::REPORT_LUNS, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], IDENTIFY, Observe, Nexus(identify::report_luns)),
    row("REPORT TARGET PORT GROUPS", "SPC-4 §6.37", &[op::MAINTENANCE_IN, 0xE0 | sa::REPORT_TARGET_PORT_GROUPS, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], PATHS, Observe, Unit(ports::report_groups)).acting(),
    row("REPORT SUPPORTED OPERATION CODES", "SPC-4 §6.35", &[op::MAINTENANCE_IN, sa::REPORT_SUPPORTED_OPERATION_CODES, 0x87, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], DESCRIBE, Observe, Table(report::supported_operation_codes)).acting(),
    row("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", "SPC-4 §6.36", &[op::MAINTENANCE_IN, sa::REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS, 0x80, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], DESCRIBE, Observe, Unit(report::supported_task_management_functions)).acting(),
    row("SET TARGET PORT GROUPS", "SPC-4 §6.45", &[op::MAINTENANCE_OUT, sa::SET_TARGET_PORT_GROUPS, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], SWITCH, ChangeAll, Unit(ports::set_groups)).acting(),
    row("READ (12)", "SBC-4", &[op::READ_12, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], READ, Observe, Unit(transfer::read_12)).refusing(PROTECT),
    row("WRITE (12)", "SBC-4", &[op::WRITE_12, DPO_FUA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], WRITE, Change, Unit(transfer::write_12)).refusing(PROTECT),
    row("WRITE AND VERIFY (12)", "SBC-4", &[op::WRITE_AND_VERIFY_12, DPO | BYTCHK, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], ATOMIC, Change, Unit(verify::write_and_verify_12)).refusing(PROTECT),
    row("VERIFY (12)", "SBC-4", &[op::VERIFY_12, DPO | BYTCHK, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0], READ, Observe, Unit(verify::verify_12)).refusing(PROTECT),
    row("READ DEFECT DATA (12)", "SBC-4", &[op::READ_DEFECT_DATA_12, 0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], SURVEY, Observe, Unit(report::read_defect_data_12)),
];

/// The same, found by operation code.
pub(crate) static TABLE: OperationTable = OperationTable::new(OPERATIONS);

/// The row of a command by its first two bytes.
pub fn find(opcode: u8, byte_1: u8) -> Result<&'static Operation, NotFound> {
    TABLE.find(opcode, byte_1)
}

/// The tables for the documentation: operations, and task management functions.
pub fn markdown() -> String {
    let mut page = String::from(
        "| opcode | service action | command | defined in | who may | notes |\n|---|---|---|---|---|---|\n",
    );
    for row in OPERATIONS {
        let action = row.service_action.map_or_else(|| "–".to_owned(), |action| format!("{action:02X}h"));
        let notes = match (row.offered, row.kind.passage) {
            (Offered::Thin, _) => "thin devices",
            (Offered::AtomicWrites, _) => "atomic; where the logical unit offers atomic writes",
            (Offered::Always, Passage::Exclusive) => "atomic",
            (Offered::Always, _) => "",
        };
        let who = row.authority().in_words();
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            page,
            "| {:02X}h | {action} | {} | {} | {who} | {notes} |",
            row.opcode, row.name, row.section
        );
    }
    page.push_str("\n| task management function | defined in | who may |\n|---|---|---|\n");
    for row in task_management::FUNCTIONS {
        let _ = writeln!(page, "| {} | {} | {} |", row.name, row.section, row.authority.in_words());
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_each_is_found() {
        for pair in OPERATIONS.windows(2) {
            let key = |row: &Operation| (row.opcode, row.service_action);
            assert!(key(&pair[0]) < key(&pair[1]), "{} before {}", pair[0].name, pair[1].name);
        }
        for row in OPERATIONS {
            let found = find(row.opcode, row.usage[1]).unwrap_or_else(|_| panic!("{} not found", row.name));
            assert_eq!(found.name, row.name);
        }
    }

    #[test]
    fn cdb_lengths_are_those_of_the_operation_codes_group() {
        for row in OPERATIONS {
            let len = match row.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                5 => 12,
                group => panic!("group {group} has no fixed length"),
            };
            assert_eq!(row.usage.len(), len, "{}", row.name);
        }
    }

    #[test]
    fn unknown_codes_and_service_actions_are_told_apart() {
        assert_eq!(find(0xFF, 0).err(), Some(NotFound::Opcode));
        assert_eq!(find(op::SERVICE_ACTION_IN_16, 0x1F).err(), Some(NotFound::ServiceAction));
    }

    #[test]
    fn bits_that_ask_for_what_is_not_done_are_refused_and_reserved_ones_are_not() {
        let refused = |opcode, at: usize, byte: u8| {
            let rows = TABLE.with_opcode(opcode);
            let mut cdb = vec![0; rows[0].usage.len()];
            (cdb[0], cdb[at]) = (opcode, byte);
            rows[0].refused_bit(&cdb)
        };
        for (opcode, at, byte) in [
            (op::TEST_UNIT_READY, 1, 0xE0),
            (op::INQUIRY, 1, 0xE1),
            (op::REQUEST_SENSE, 1, 0x20),
            (op::READ_6, 1, 0xE0),
            (op::MODE_SENSE_6, 1, 0xE8),
            (op::READ_CAPACITY_10, 1, 0xE1),
            (op::READ_CAPACITY_10, 5, 0xFF),
            (op::READ_10, 1, 0x1F),
            (op::WRITE_16, 1, 0x1F),
            (op::READ_10, 6, 0xC0),
            (op::SYNCHRONIZE_CACHE_10, 1, 0xE7),
            (op::UNMAP, 2, 0xFF),
            (op::READ_10, 9, 0xC3),
        ] {
            assert_eq!(refused(opcode, at, byte), None, "{opcode:02X}h byte {at}: {byte:#04x}");
        }
        for (opcode, at, byte, bit) in [
            (op::READ_10, 1, 0x20, 5),
            (op::WRITE_16, 1, 0xFF, 7),
            (op::VERIFY_12, 1, 0x40, 6),
            (op::WRITE_SAME_16, 1, 0x10, 4),
            (op::WRITE_SAME_10, 1, 0x02, 1),
            (op::UNMAP, 1, 0x01, 0),
            (op::INQUIRY, 1, 0x02, 1),
            (op::COMPARE_AND_WRITE, 12, 0x01, 0),
            (op::RESERVE_6, 1, 0x10, 4),
            (op::SANITIZE, 1, 0x41, 6),
            (op::SANITIZE, 6, 0x80, 7),
            (op::READ_10, 9, 0x04, 2),
        ] {
            assert_eq!(
                refused(opcode, at, byte),
                Some((at as u16, bit)),
                "{opcode:02X}h byte {at}: {byte:#04x}"
            );
        }
    }

    #[test]
    fn a_bit_is_either_evaluated_or_refused() {
        for row in OPERATIONS {
            for &(at, bits) in row.refused {
                assert_eq!(row.usage[at] & bits, 0, "{}, byte {at}", row.name);
            }
        }
    }

    #[test]
    fn the_documentation_has_a_line_for_each() {
        let (functions, heads) = (task_management::FUNCTIONS.len(), 5);
        assert_eq!(markdown().lines().count(), OPERATIONS.len() + functions + heads);
    }
}

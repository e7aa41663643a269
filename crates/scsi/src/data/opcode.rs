//! Operation codes and service actions of a disk (SPC-4 annex F, SBC-4 annex A).

/// TEST UNIT READY.
pub const TEST_UNIT_READY: u8 = 0x00;
/// REQUEST SENSE.
pub const REQUEST_SENSE: u8 = 0x03;
/// FORMAT UNIT.
pub const FORMAT_UNIT: u8 = 0x04;
/// READ (6).
pub const READ_6: u8 = 0x08;
/// WRITE (6).
pub const WRITE_6: u8 = 0x0A;
/// INQUIRY.
pub const INQUIRY: u8 = 0x12;
/// MODE SELECT (6).
pub const MODE_SELECT_6: u8 = 0x15;
/// RESERVE (6).
pub const RESERVE_6: u8 = 0x16;
/// RELEASE (6).
pub const RELEASE_6: u8 = 0x17;
/// MODE SENSE (6).
pub const MODE_SENSE_6: u8 = 0x1A;
/// START STOP UNIT.
pub const START_STOP_UNIT: u8 = 0x1B;
/// RECEIVE DIAGNOSTIC RESULTS.
pub const RECEIVE_DIAGNOSTIC_RESULTS: u8 = 0x1C;
/// SEND DIAGNOSTIC.
pub const SEND_DIAGNOSTIC: u8 = 0x1D;
/// PREVENT ALLOW MEDIUM REMOVAL.
pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1E;
/// READ CAPACITY (10).
pub const READ_CAPACITY_10: u8 = 0x25;
/// READ (10).
pub const READ_10: u8 = 0x28;
/// WRITE (10).
pub const WRITE_10: u8 = 0x2A;
/// WRITE AND VERIFY (10).
pub const WRITE_AND_VERIFY_10: u8 = 0x2E;
/// VERIFY (10).
pub const VERIFY_10: u8 = 0x2F;
/// PRE-FETCH (10).
pub const PRE_FETCH_10: u8 = 0x34;
/// SYNCHRONIZE CACHE (10).
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
/// READ DEFECT DATA (10).
pub const READ_DEFECT_DATA_10: u8 = 0x37;
/// WRITE SAME (10).
pub const WRITE_SAME_10: u8 = 0x41;
/// UNMAP.
pub const UNMAP: u8 = 0x42;
/// SANITIZE; the service action says how.
pub const SANITIZE: u8 = 0x48;
/// LOG SENSE.
pub const LOG_SENSE: u8 = 0x4D;
/// MODE SELECT (10).
pub const MODE_SELECT_10: u8 = 0x55;
/// RESERVE (10).
pub const RESERVE_10: u8 = 0x56;
/// RELEASE (10).
pub const RELEASE_10: u8 = 0x57;
/// MODE SENSE (10).
pub const MODE_SENSE_10: u8 = 0x5A;
/// PERSISTENT RESERVE IN; the service action says which.
pub const PERSISTENT_RESERVE_IN: u8 = 0x5E;
/// PERSISTENT RESERVE OUT; the service action says which.
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5F;
/// THIRD-PARTY COPY OUT; see [`service_action`].
pub const THIRD_PARTY_COPY_OUT: u8 = 0x83;
/// THIRD-PARTY COPY IN; see [`service_action`].
pub const THIRD_PARTY_COPY_IN: u8 = 0x84;
/// READ (16).
pub const READ_16: u8 = 0x88;
/// COMPARE AND WRITE.
pub const COMPARE_AND_WRITE: u8 = 0x89;
/// WRITE (16).
pub const WRITE_16: u8 = 0x8A;
/// ORWRITE (16).
pub const ORWRITE_16: u8 = 0x8B;
/// WRITE AND VERIFY (16).
pub const WRITE_AND_VERIFY_16: u8 = 0x8E;
/// VERIFY (16).
pub const VERIFY_16: u8 = 0x8F;
/// PRE-FETCH (16).
pub const PRE_FETCH_16: u8 = 0x90;
/// SYNCHRONIZE CACHE (16).
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
/// WRITE SAME (16).
pub const WRITE_SAME_16: u8 = 0x93;
/// WRITE ATOMIC (16).
pub const WRITE_ATOMIC_16: u8 = 0x9C;
/// SERVICE ACTION IN (16); see [`service_action`].
pub const SERVICE_ACTION_IN_16: u8 = 0x9E;
/// REPORT LUNS.
pub const REPORT_LUNS: u8 = 0xA0;
/// MAINTENANCE IN; see [`service_action`].
pub const MAINTENANCE_IN: u8 = 0xA3;
/// MAINTENANCE OUT; see [`service_action`].
pub const MAINTENANCE_OUT: u8 = 0xA4;
/// READ (12).
pub const READ_12: u8 = 0xA8;
/// WRITE (12).
pub const WRITE_12: u8 = 0xAA;
/// WRITE AND VERIFY (12).
pub const WRITE_AND_VERIFY_12: u8 = 0xAE;
/// VERIFY (12).
pub const VERIFY_12: u8 = 0xAF;
/// READ DEFECT DATA (12).
pub const READ_DEFECT_DATA_12: u8 = 0xB7;

/// Service actions.
pub mod service_action {
    /// SANITIZE: OVERWRITE.
    pub const OVERWRITE: u8 = 0x01;
    /// SANITIZE: BLOCK ERASE.
    pub const BLOCK_ERASE: u8 = 0x02;
    /// SANITIZE: EXIT FAILURE MODE.
    pub const EXIT_FAILURE_MODE: u8 = 0x1F;
    /// EXTENDED COPY (LID1), of THIRD-PARTY COPY OUT.
    pub const EXTENDED_COPY_LID1: u8 = 0x00;
    /// RECEIVE COPY STATUS (LID1), of THIRD-PARTY COPY IN.
    pub const COPY_STATUS: u8 = 0x00;
    /// RECEIVE COPY DATA (LID1), of THIRD-PARTY COPY IN.
    pub const RECEIVE_DATA: u8 = 0x01;
    /// RECEIVE COPY OPERATING PARAMETERS, of THIRD-PARTY COPY IN.
    pub const OPERATING_PARAMETERS: u8 = 0x03;
    /// RECEIVE COPY FAILURE DETAILS (LID1), of THIRD-PARTY COPY IN.
    pub const FAILED_SEGMENT_DETAILS: u8 = 0x04;
    /// READ CAPACITY (16), of SERVICE ACTION IN (16).
    pub const READ_CAPACITY_16: u8 = 0x10;
    /// GET LBA STATUS, of SERVICE ACTION IN (16).
    pub const GET_LBA_STATUS: u8 = 0x12;
    /// REPORT TARGET PORT GROUPS, of MAINTENANCE IN.
    pub const REPORT_TARGET_PORT_GROUPS: u8 = 0x0A;
    /// SET TARGET PORT GROUPS, of MAINTENANCE OUT.
    pub const SET_TARGET_PORT_GROUPS: u8 = 0x0A;
    /// REPORT SUPPORTED OPERATION CODES, of MAINTENANCE IN.
    pub const REPORT_SUPPORTED_OPERATION_CODES: u8 = 0x0C;
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS, of MAINTENANCE IN.
    pub const REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS: u8 = 0x0D;
    /// PERSISTENT RESERVE IN: READ KEYS.
    pub const READ_KEYS: u8 = 0x00;
    /// PERSISTENT RESERVE IN: READ RESERVATION.
    pub const READ_RESERVATION: u8 = 0x01;
    /// PERSISTENT RESERVE IN: REPORT CAPABILITIES.
    pub const REPORT_CAPABILITIES: u8 = 0x02;
    /// PERSISTENT RESERVE IN: READ FULL STATUS.
    pub const READ_FULL_STATUS: u8 = 0x03;
    /// PERSISTENT RESERVE OUT: REGISTER.
    pub const REGISTER: u8 = 0x00;
    /// PERSISTENT RESERVE OUT: RESERVE.
    pub const RESERVE: u8 = 0x01;
    /// PERSISTENT RESERVE OUT: RELEASE.
    pub const RELEASE: u8 = 0x02;
    /// PERSISTENT RESERVE OUT: CLEAR.
    pub const CLEAR: u8 = 0x03;
    /// PERSISTENT RESERVE OUT: PREEMPT.
    pub const PREEMPT: u8 = 0x04;
    /// PERSISTENT RESERVE OUT: PREEMPT AND ABORT.
    pub const PREEMPT_AND_ABORT: u8 = 0x05;
    /// PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY.
    pub const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 0x06;
    /// PERSISTENT RESERVE OUT: REGISTER AND MOVE.
    pub const REGISTER_AND_MOVE: u8 = 0x07;
}

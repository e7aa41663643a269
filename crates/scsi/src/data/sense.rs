//! Sense data: what went wrong, in both formats of SPC-4 §4.5.

use std::fmt;
use std::ops::Deref;

use crate::data::field::{put, u8_at, u16_at, u32_at, u64_at};

/// The class of a condition (SPC-4 §4.5.6). Open: only the low four bits exist on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SenseKey(pub u8);

impl SenseKey {
    /// Nothing to tell.
    pub const NO_SENSE: Self = Self(0x0);
    /// Succeeded, with some recovery.
    pub const RECOVERED_ERROR: Self = Self(0x1);
    /// Cannot be accessed.
    pub const NOT_READY: Self = Self(0x2);
    /// A flaw in the medium.
    pub const MEDIUM_ERROR: Self = Self(0x3);
    /// A failure that cannot be recovered.
    pub const HARDWARE_ERROR: Self = Self(0x4);
    /// An illegal parameter in the CDB or the parameter data.
    pub const ILLEGAL_REQUEST: Self = Self(0x5);
    /// Something has changed since the last command.
    pub const UNIT_ATTENTION: Self = Self(0x6);
    /// A write to what is protected.
    pub const DATA_PROTECT: Self = Self(0x7);
    /// A copy operation failed at the source or the destination.
    pub const COPY_ABORTED: Self = Self(0xA);
    /// The device server aborted the command.
    pub const ABORTED_COMMAND: Self = Self(0xB);
    /// The data differ from what is on the medium.
    pub const MISCOMPARE: Self = Self(0xE);

    /// The standard's name, where it has one.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NO_SENSE => "NO SENSE",
            Self::RECOVERED_ERROR => "RECOVERED ERROR",
            Self::NOT_READY => "NOT READY",
            Self::MEDIUM_ERROR => "MEDIUM ERROR",
            Self::HARDWARE_ERROR => "HARDWARE ERROR",
            Self::ILLEGAL_REQUEST => "ILLEGAL REQUEST",
            Self::UNIT_ATTENTION => "UNIT ATTENTION",
            Self::DATA_PROTECT => "DATA PROTECT",
            Self(0x8) => "BLANK CHECK",
            Self(0x9) => "VENDOR SPECIFIC",
            Self::COPY_ABORTED => "COPY ABORTED",
            Self::ABORTED_COMMAND => "ABORTED COMMAND",
            Self(0xD) => "VOLUME OVERFLOW",
            Self::MISCOMPARE => "MISCOMPARE",
            Self(0xF) => "COMPLETED",
            _ => return None,
        })
    }
}

/// Additional sense code and its qualifier, as `ASC << 8 | ASCQ` (SPC-4 annex F). Open: unknown values survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdditionalSense(pub u16);

macro_rules! additional_sense {
    ($($constant:ident = $code:literal, $name:literal;)*) => {
        impl AdditionalSense {
            $(#[doc = concat!($name, ".")] pub const $constant: Self = Self($code);)*

            /// The standard's name, for the codes that a disk or its target gives.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

additional_sense! {
    NONE = 0x0000, "NO ADDITIONAL SENSE INFORMATION";
    OPERATION_IN_PROGRESS = 0x0016, "OPERATION IN PROGRESS";
    BECOMING_READY = 0x0401, "LOGICAL UNIT IS IN PROCESS OF BECOMING READY";
    INITIALIZING_COMMAND_REQUIRED = 0x0402, "LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED";
    NOT_READY_MANUAL_INTERVENTION = 0x0403, "LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED";
    FORMAT_IN_PROGRESS = 0x0404, "LOGICAL UNIT NOT READY, FORMAT IN PROGRESS";
    REBUILD_IN_PROGRESS = 0x0405, "LOGICAL UNIT NOT READY, REBUILD IN PROGRESS";
    RECALCULATION_IN_PROGRESS = 0x0406, "LOGICAL UNIT NOT READY, RECALCULATION IN PROGRESS";
    NOT_READY_OPERATION_IN_PROGRESS = 0x0407, "LOGICAL UNIT NOT READY, OPERATION IN PROGRESS";
    LONG_WRITE_IN_PROGRESS = 0x0408, "LOGICAL UNIT NOT READY, LONG WRITE IN PROGRESS";
    SELF_TEST_IN_PROGRESS = 0x0409, "LOGICAL UNIT NOT READY, SELF-TEST IN PROGRESS";
    ASYMMETRIC_ACCESS_TRANSITION = 0x040A, "LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION";
    TARGET_PORT_STANDBY = 0x040B, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE";
    TARGET_PORT_UNAVAILABLE = 0x040C, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE";
    SPACE_ALLOCATION_IN_PROGRESS = 0x0414, "LOGICAL UNIT NOT READY, SPACE ALLOCATION IN PROGRESS";
    START_STOP_UNIT_IN_PROGRESS = 0x041A, "LOGICAL UNIT NOT READY, START STOP UNIT COMMAND IN PROGRESS";
    SANITIZE_IN_PROGRESS = 0x041B, "LOGICAL UNIT NOT READY, SANITIZE IN PROGRESS";
    NO_RESPONSE = 0x0500, "LOGICAL UNIT DOES NOT RESPOND TO SELECTION";
    LOGICAL_UNIT_COMMUNICATION_FAILURE = 0x0800, "LOGICAL UNIT COMMUNICATION FAILURE";
    LOGICAL_UNIT_COMMUNICATION_TIMEOUT = 0x0801, "LOGICAL UNIT COMMUNICATION TIME-OUT";
    WRITE_ERROR = 0x0C00, "WRITE ERROR";
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = 0x0E03, "INVALID FIELD IN COMMAND INFORMATION UNIT";
    THIRD_PARTY_DEVICE_FAILURE = 0x0D01, "THIRD PARTY DEVICE FAILURE";
    COPY_TARGET_DEVICE_NOT_REACHABLE = 0x0D02, "COPY TARGET DEVICE NOT REACHABLE";
    INCORRECT_COPY_TARGET_DEVICE_TYPE = 0x0D03, "INCORRECT COPY TARGET DEVICE TYPE";
    UNRECOVERED_READ_ERROR = 0x1100, "UNRECOVERED READ ERROR";
    PARAMETER_LIST_LENGTH_ERROR = 0x1A00, "PARAMETER LIST LENGTH ERROR";
    MISCOMPARE_DURING_VERIFY = 0x1D00, "MISCOMPARE DURING VERIFY OPERATION";
    INVALID_COMMAND_OPERATION_CODE = 0x2000, "INVALID COMMAND OPERATION CODE";
    NO_ACCESS_RIGHTS = 0x2002, "ACCESS DENIED - NO ACCESS RIGHTS";
    LBA_OUT_OF_RANGE = 0x2100, "LOGICAL BLOCK ADDRESS OUT OF RANGE";
    INVALID_FIELD_IN_CDB = 0x2400, "INVALID FIELD IN CDB";
    LOGICAL_UNIT_NOT_SUPPORTED = 0x2500, "LOGICAL UNIT NOT SUPPORTED";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x2600, "INVALID FIELD IN PARAMETER LIST";
    PARAMETER_VALUE_INVALID = 0x2602, "PARAMETER VALUE INVALID";
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = 0x2604, "INVALID RELEASE OF PERSISTENT RESERVATION";
    TOO_MANY_TARGET_DESCRIPTORS = 0x2606, "TOO MANY TARGET DESCRIPTORS";
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE = 0x2607, "UNSUPPORTED TARGET DESCRIPTOR TYPE CODE";
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x2608, "TOO MANY SEGMENT DESCRIPTORS";
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE = 0x2609, "UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE";
    UNEXPECTED_INEXACT_SEGMENT = 0x260A, "UNEXPECTED INEXACT SEGMENT";
    INLINE_DATA_LENGTH_EXCEEDED = 0x260B, "INLINE DATA LENGTH EXCEEDED";
    WRITE_PROTECTED = 0x2700, "WRITE PROTECTED";
    SOFTWARE_WRITE_PROTECTED = 0x2702, "LOGICAL UNIT SOFTWARE WRITE PROTECTED";
    SPACE_ALLOCATION_FAILED = 0x2707, "SPACE ALLOCATION FAILED WRITE PROTECT";
    MEDIUM_MAY_HAVE_CHANGED = 0x2800, "NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED";
    POWER_ON_OCCURRED = 0x2900, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED";
    SCSI_BUS_RESET_OCCURRED = 0x2902, "SCSI BUS RESET OCCURRED";
    BUS_DEVICE_RESET_OCCURRED = 0x2903, "BUS DEVICE RESET FUNCTION OCCURRED";
    I_T_NEXUS_LOSS_OCCURRED = 0x2907, "I_T NEXUS LOSS OCCURRED";
    MODE_PARAMETERS_CHANGED = 0x2A01, "MODE PARAMETERS CHANGED";
    RESERVATIONS_PREEMPTED = 0x2A03, "RESERVATIONS PREEMPTED";
    RESERVATIONS_RELEASED = 0x2A04, "RESERVATIONS RELEASED";
    REGISTRATIONS_PREEMPTED = 0x2A05, "REGISTRATIONS PREEMPTED";
    ASYMMETRIC_ACCESS_STATE_CHANGED = 0x2A06, "ASYMMETRIC ACCESS STATE CHANGED";
    CAPACITY_DATA_HAS_CHANGED = 0x2A09, "CAPACITY DATA HAS CHANGED";
    COMMANDS_CLEARED_BY_ANOTHER_INITIATOR = 0x2F00, "COMMANDS CLEARED BY ANOTHER INITIATOR";
    COMMANDS_CLEARED_BY_DEVICE_SERVER = 0x2F02, "COMMANDS CLEARED BY DEVICE SERVER";
    FORMAT_COMMAND_FAILED = 0x3101, "FORMAT COMMAND FAILED";
    SANITIZE_COMMAND_FAILED = 0x3103, "SANITIZE COMMAND FAILED";
    SOFT_THRESHOLD_REACHED = 0x3807, "THIN PROVISIONING SOFT THRESHOLD REACHED";
    SAVING_PARAMETERS_NOT_SUPPORTED = 0x3900, "SAVING PARAMETERS NOT SUPPORTED";
    MEDIUM_NOT_PRESENT = 0x3A00, "MEDIUM NOT PRESENT";
    MEDIUM_NOT_PRESENT_TRAY_OPEN = 0x3A02, "MEDIUM NOT PRESENT - TRAY OPEN";
    LOGICAL_UNIT_FAILED_SELF_TEST = 0x3E03, "LOGICAL UNIT FAILED SELF-TEST";
    REPORTED_LUNS_DATA_HAS_CHANGED = 0x3F0E, "REPORTED LUNS DATA HAS CHANGED";
    INTERNAL_TARGET_FAILURE = 0x4400, "INTERNAL TARGET FAILURE";
    SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT = 0x477F, "SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT";
    MEDIUM_REMOVAL_PREVENTED = 0x5302, "MEDIUM REMOVAL PREVENTED";
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x5504, "INSUFFICIENT REGISTRATION RESOURCES";
    SET_TARGET_PORT_GROUPS_COMMAND_FAILED = 0x670A, "SET TARGET PORT GROUPS COMMAND FAILED";
}

impl fmt::Display for AdditionalSense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "additional sense {:02X}h/{:02X}h", self.0 >> 8, self.0 & 0xFF),
        }
    }
}

/// Sense data of one command.
///
/// Holds the meaning; the format is chosen when it is encoded. [`descriptor_format`](Self::descriptor_format) carries
/// the choice that the logical unit's D_SENSE bit made, so that the transport need not ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sense {
    /// Class of the condition.
    pub key: SenseKey,
    /// The condition.
    pub code: AdditionalSense,
    /// INFORMATION: for a disk, the block or the offset that the condition is about.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION.
    pub command_specific: Option<u64>,
    /// SENSE KEY SPECIFIC, without its SKSV bit.
    pub key_specific: Option<[u8; 3]>,
    /// About an earlier command than the one it came with.
    pub deferred: bool,
    /// To be sent in descriptor format.
    pub descriptor_format: bool,
}

/// Longest sense data built here: descriptor format with three descriptors.
const ENCODED_MAX: usize = 40;

/// Encoded sense data: on the stack, dereferences to its bytes.
#[derive(Clone, Copy, Debug)]
pub struct SenseBytes {
    bytes: [u8; ENCODED_MAX],
    len: usize,
}

impl Deref for SenseBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Response codes 70h–73h (SPC-4 §4.5.1).
const FIXED_CURRENT: u8 = 0x70;
const FIXED_DEFERRED: u8 = 0x71;
const DESCRIPTOR_CURRENT: u8 = 0x72;
const DESCRIPTOR_DEFERRED: u8 = 0x73;
/// SKSV in the first byte of SENSE KEY SPECIFIC.
const SKSV: u8 = 0x80;

impl Sense {
    /// Returns `true` if the unit is not ready for a reason that passes by itself, soon enough to wait for: the same
    /// command succeeds then.
    ///
    /// Not so FORMAT and SANITIZE IN PROGRESS, which take hours and end with other data than there were; nor what is
    /// the matter of one target port (04/0A to 04/0C).
    pub fn becomes_ready(&self) -> bool {
        use AdditionalSense as Code;
        let passes = [
            Code::BECOMING_READY,
            Code::REBUILD_IN_PROGRESS,
            Code::RECALCULATION_IN_PROGRESS,
            Code::NOT_READY_OPERATION_IN_PROGRESS,
            Code::LONG_WRITE_IN_PROGRESS,
            Code::SELF_TEST_IN_PROGRESS,
            Code::SPACE_ALLOCATION_IN_PROGRESS,
            Code::START_STOP_UNIT_IN_PROGRESS,
        ];
        self.key == SenseKey::NOT_READY && passes.contains(&self.code)
    }

    /// A current condition without details.
    pub const fn new(key: SenseKey, code: AdditionalSense) -> Self {
        Self {
            key,
            code,
            information: None,
            command_specific: None,
            key_specific: None,
            deferred: false,
            descriptor_format: false,
        }
    }

    /// An illegal request.
    pub const fn illegal(code: AdditionalSense) -> Self {
        Self::new(SenseKey::ILLEGAL_REQUEST, code)
    }

    /// INVALID FIELD IN CDB that points at a field: its byte and its most significant bit (SPC-4 §4.5.2.4.2).
    pub const fn invalid_cdb_field(byte: u16, bit: u8) -> Self {
        Self::illegal(AdditionalSense::INVALID_FIELD_IN_CDB).pointing_at(true, byte, bit)
    }

    /// INVALID FIELD IN PARAMETER LIST that points at a byte.
    pub const fn invalid_parameter(byte: u16) -> Self {
        let mut sense =
            Self::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST).pointing_at(false, byte, 0);
        if let Some(field) = &mut sense.key_specific {
            field[0] = 0; // no bit pointer
        }
        sense
    }

    const fn pointing_at(mut self, in_cdb: bool, byte: u16, bit: u8) -> Self {
        const C_D: u8 = 0x40;
        const BPV: u8 = 0x08;
        let [high, low] = byte.to_be_bytes();
        self.key_specific = Some([(if in_cdb { C_D } else { 0 }) | BPV | (bit & 7), high, low]);
        self
    }

    /// The same with INFORMATION.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Encodes in descriptor format (`d_sense`) or in fixed format, where an INFORMATION beyond 32 bits is left out
    /// (SPC-4 §4.5.3).
    pub fn to_bytes(&self, d_sense: bool) -> SenseBytes {
        if d_sense { self.to_descriptors() } else { self.to_fixed() }
    }

    fn to_fixed(&self) -> SenseBytes {
        const VALID: u8 = 0x80;
        let mut bytes = [0; ENCODED_MAX];
        bytes[0] = if self.deferred { FIXED_DEFERRED } else { FIXED_CURRENT };
        bytes[2] = self.key.0 & 0xF;
        bytes[7] = 10;
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= VALID;
            put(&mut bytes, 3, information.to_be_bytes());
        }
        if let Some(value) = self.command_specific.and_then(|value| u32::try_from(value).ok()) {
            put(&mut bytes, 8, value.to_be_bytes());
        }
        put(&mut bytes, 12, self.code.0.to_be_bytes());
        if let Some([first, second, third]) = self.key_specific {
            put(&mut bytes, 15, [first | SKSV, second, third]);
        }
        SenseBytes { bytes, len: 18 }
    }

    fn to_descriptors(&self) -> SenseBytes {
        let mut bytes = [0; ENCODED_MAX];
        bytes[0] = if self.deferred { DESCRIPTOR_DEFERRED } else { DESCRIPTOR_CURRENT };
        bytes[1] = self.key.0 & 0xF;
        put(&mut bytes, 2, self.code.0.to_be_bytes());
        let mut len = 8;
        if let Some(information) = self.information {
            put(&mut bytes, len, [0x00, 0x0A, 0x80, 0]);
            put(&mut bytes, len + 4, information.to_be_bytes());
            len += 12;
        }
        if let Some(value) = self.command_specific {
            put(&mut bytes, len, [0x01, 0x0A, 0, 0]);
            put(&mut bytes, len + 4, value.to_be_bytes());
            len += 12;
        }
        if let Some([first, second, third]) = self.key_specific {
            put(&mut bytes, len, [0x02, 0x06, 0, 0, first | SKSV, second, third, 0]);
            len += 8;
        }
        bytes[7] = (len - 8) as u8;
        SenseBytes { bytes, len }
    }

    /// Reads sense data of either format; `None` where it is neither, or too short to say anything. What is missing
    /// behind that is taken as absent, because targets truncate at the allocation length.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let response = u8_at(bytes, 0)?;
        match response & 0x7F {
            FIXED_CURRENT | FIXED_DEFERRED => Self::parse_fixed(bytes, response),
            DESCRIPTOR_CURRENT | DESCRIPTOR_DEFERRED => Self::parse_descriptors(bytes, response),
            _ => None,
        }
    }

    fn parse_fixed(bytes: &[u8], response: u8) -> Option<Self> {
        let mut sense = Self::new(SenseKey(u8_at(bytes, 2)? & 0xF), AdditionalSense::NONE);
        sense.deferred = response & 0x7F == FIXED_DEFERRED;
        // The ADDITIONAL SENSE LENGTH bounds what the sender meant, whatever the transport padded.
        let end = bytes.len().min(8 + usize::from(u8_at(bytes, 7).unwrap_or(0)));
        let bytes = &bytes[..end];
        if response & 0x80 != 0 {
            sense.information = u32_at(bytes, 3).map(u64::from);
        }
        sense.command_specific = u32_at(bytes, 8).map(u64::from).filter(|&value| value != 0);
        sense.code = AdditionalSense(u16_at(bytes, 12).unwrap_or(0));
        sense.key_specific = key_specific(bytes, 15);
        Some(sense)
    }

    fn parse_descriptors(bytes: &[u8], response: u8) -> Option<Self> {
        let mut sense = Self::new(SenseKey(u8_at(bytes, 1)? & 0xF), AdditionalSense(u16_at(bytes, 2)?));
        sense.deferred = response & 0x7F == DESCRIPTOR_DEFERRED;
        sense.descriptor_format = true;
        let end = bytes.len().min(8 + usize::from(u8_at(bytes, 7).unwrap_or(0)));
        let mut rest = bytes.get(8..end).unwrap_or(&[]);
        while let [kind, len, ..] = *rest {
            let end = rest.len().min(2 + usize::from(len));
            let (descriptor, next) = rest.split_at(end);
            match kind {
                0x00 => sense.information = u64_at(descriptor, 4),
                0x01 => sense.command_specific = u64_at(descriptor, 4),
                0x02 => sense.key_specific = key_specific(descriptor, 4),
                _ => {}
            }
            rest = next;
        }
        Some(sense)
    }
}

fn key_specific(bytes: &[u8], at: usize) -> Option<[u8; 3]> {
    let field: [u8; 3] = bytes.get(at..)?.first_chunk().copied()?;
    (field[0] & SKSV != 0).then_some([field[0] & !SKSV, field[1], field[2]])
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.name() {
            Some(name) => write!(f, "{name}, {}", self.code)?,
            None => write!(f, "sense key {:X}h, {}", self.key.0, self.code)?,
        }
        if let Some(information) = self.information {
            write!(f, " (information {information})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full() -> Sense {
        Sense { command_specific: Some(7), ..Sense::invalid_cdb_field(2, 7).with_information(0x1234) }
    }

    #[test]
    fn both_formats_come_back_as_they_were() {
        let sense = full();
        assert_eq!(Sense::parse(&sense.to_bytes(false)), Some(sense.clone()));
        let descriptor = Sense { descriptor_format: true, ..sense };
        assert_eq!(Sense::parse(&descriptor.to_bytes(true)), Some(descriptor.clone()));
        assert_eq!(descriptor.to_bytes(true).len(), ENCODED_MAX);
    }

    #[test]
    fn information_beyond_32_bits_needs_descriptor_format() {
        let sense = Sense::illegal(AdditionalSense::LBA_OUT_OF_RANGE).with_information(u64::MAX);
        assert_eq!(Sense::parse(&sense.to_bytes(false)).unwrap().information, None);
        assert_eq!(Sense::parse(&sense.to_bytes(true)).unwrap().information, Some(u64::MAX));
    }

    #[test]
    fn a_field_pointer_is_encoded_as_the_standard_says() {
        let bytes = Sense::invalid_cdb_field(2, 5).to_bytes(false);
        assert_eq!(bytes[..], [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xCD, 0, 2]);
    }

    #[test]
    fn names_are_the_standards_and_unknown_codes_survive() {
        assert_eq!(full().to_string(), "ILLEGAL REQUEST, INVALID FIELD IN CDB (information 4660)");
        let unknown = Sense::parse(&[0x72, 0x0C, 0x77, 0x66, 0, 0, 0, 0]).unwrap();
        assert_eq!(unknown.to_string(), "sense key Ch, additional sense 77h/66h");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), first in 0x70u8..0x74) {
            let _ = Sense::parse(&bytes);
            let mut bytes = bytes;
            if let Some(byte) = bytes.first_mut() { *byte = first; }
            let _ = Sense::parse(&bytes);
        }
    }
}

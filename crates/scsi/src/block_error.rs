//! The one place where the errors of a device and the conditions of SCSI meet, in both directions.

use std::io;

use lunway_block::{BlockError, Fate};

use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::data::status::Status;

/// Request of the device server to the device: a failure is named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reading, or asking about, these bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Length, bytes.
        len: u64,
    },
    /// Writing, zeroing or unmapping these bytes.
    Write {
        /// First byte.
        offset: u64,
        /// Length, bytes.
        len: u64,
    },
    /// Making durable what was written, wherever that was.
    Flush,
}

impl Step {
    /// The medium did not do it.
    fn failed(self) -> Sense {
        let code = match self {
            Self::Read { .. } => AdditionalSense::UNRECOVERED_READ_ERROR,
            Self::Write { .. } | Self::Flush => AdditionalSense::WRITE_ERROR,
        };
        Sense::new(SenseKey::MEDIUM_ERROR, code)
    }

    /// The block that INFORMATION tells for a failure at this byte: the first that failed of those that the step was
    /// about (SBC-4 §4.18.1). A device that fails in larger pieces may name a byte before them.
    fn failed_block(self, at: u64, sector: u32) -> Option<u64> {
        match self {
            Self::Read { offset, len } | Self::Write { offset, len } => {
                (at < offset.saturating_add(len)).then(|| at.max(offset) / u64::from(sector.max(1)))
            }
            Self::Flush => None,
        }
    }
}

/// Device server: what to answer when the device failed in a step. `sector` is the logical block's size, for
/// INFORMATION, which is valid only where it is known which block failed.
pub fn response_of(error: &BlockError, step: Step, sector: u32) -> Response {
    use AdditionalSense as Code;
    match error {
        BlockError::Busy => Response::status(Status::BUSY),
        BlockError::ReservationConflict => Response::status(Status::RESERVATION_CONFLICT),
        BlockError::OutOfRange { .. } => Sense::illegal(Code::LBA_OUT_OF_RANGE).into(),
        BlockError::Misaligned { .. } => Sense::illegal(Code::INVALID_FIELD_IN_CDB).into(),
        BlockError::Medium { offset } => {
            Sense { information: step.failed_block(*offset, sector), ..step.failed() }.into()
        }
        // The operating system said no; it does not say to which block.
        BlockError::Io { .. } => step.failed().into(),
        // SBC-3 §4.7.3.6: no information about when space will be there again, so it is the permanent form.
        BlockError::NoSpace => Sense::new(SenseKey::DATA_PROTECT, Code::SPACE_ALLOCATION_FAILED).into(),
        BlockError::ReadOnly => Sense::new(SenseKey::DATA_PROTECT, Code::WRITE_PROTECTED).into(),
        BlockError::Gone { .. } => {
            Sense::new(SenseKey::NOT_READY, Code::NOT_READY_MANUAL_INTERVENTION).into()
        }
        BlockError::Fenced { .. } => Response::unanswered(),
        BlockError::Timeout { .. } => {
            Sense::new(SenseKey::ABORTED_COMMAND, Code::LOGICAL_UNIT_COMMUNICATION_TIMEOUT).into()
        }
        BlockError::Aborted { .. } => Sense::new(SenseKey::ABORTED_COMMAND, Code::NONE).into(),
        BlockError::Unsupported => Sense::illegal(Code::INVALID_COMMAND_OPERATION_CODE).into(),
        _ => Sense::new(SenseKey::HARDWARE_ERROR, Code::INTERNAL_TARGET_FAILURE).into(),
    }
}

/// Request of the initiator, which gives offsets their meaning back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// First byte.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Size of the device as last read, bytes.
    pub size: u64,
    /// Size of a logical block, bytes.
    pub sector: u32,
}

/// Initiator: what a response means for the caller of the device. A unit attention comes out as
/// [`BlockError::Busy`], since the same command succeeds when sent again; who must act on it looks at the sense data.
pub fn result_of(status: Status, sense: Option<&Sense>, request: Request) -> Result<(), BlockError> {
    match status {
        Status::GOOD | Status::CONDITION_MET => Ok(()),
        Status::BUSY | Status::TASK_SET_FULL | Status::ACA_ACTIVE => Err(BlockError::Busy),
        Status::RESERVATION_CONFLICT => Err(BlockError::ReservationConflict),
        Status::TASK_ABORTED => Err(BlockError::Aborted { fate: Fate::Over }),
        Status::CHECK_CONDITION => match sense {
            Some(sense) if sense.key == SenseKey::NO_SENSE || sense.key == SenseKey::RECOVERED_ERROR => {
                Ok(())
            }
            Some(sense) => Err(error_of(sense, request)),
            None => Err(failed("CHECK CONDITION without sense data".to_owned())),
        },
        other => Err(failed(other.to_string())),
    }
}

fn error_of(sense: &Sense, request: Request) -> BlockError {
    use AdditionalSense as Code;
    let Request { offset, len, size, sector } = request;
    match (sense.key, sense.code) {
        (SenseKey::UNIT_ATTENTION, _) => BlockError::Busy,
        (SenseKey::NOT_READY, Code::ASYMMETRIC_ACCESS_TRANSITION) => BlockError::Busy,
        _ if sense.becomes_ready() => BlockError::Busy,
        (SenseKey::NOT_READY, _) | (_, Code::LOGICAL_UNIT_NOT_SUPPORTED) => {
            BlockError::gone(sense.to_string())
        }
        (_, Code::SPACE_ALLOCATION_FAILED) => BlockError::NoSpace,
        (SenseKey::DATA_PROTECT, _) => BlockError::ReadOnly,
        (SenseKey::ILLEGAL_REQUEST, Code::LBA_OUT_OF_RANGE) => BlockError::OutOfRange { offset, len, size },
        (SenseKey::ILLEGAL_REQUEST, Code::INVALID_COMMAND_OPERATION_CODE) => BlockError::Unsupported,
        (SenseKey::MEDIUM_ERROR, _) => {
            // INFORMATION is a block inside the request; anything else is a target's mistake and tells nothing.
            let block = sense.information.and_then(|lba| lba.checked_mul(u64::from(sector)));
            let inside = block.filter(|&at| at >= offset && at - offset < len);
            BlockError::Medium { offset: inside.unwrap_or(offset) }
        }
        (SenseKey::ABORTED_COMMAND, _) => BlockError::Aborted { fate: Fate::Over },
        _ => failed(sense.to_string()),
    }
}

fn failed(message: String) -> BlockError {
    BlockError::Io { kind: io::ErrorKind::Other, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request { offset: 4096, len: 8192, size: 1 << 20, sector: 512 };

    #[test]
    fn what_the_target_says_is_what_the_initiator_hears() {
        for error in [
            BlockError::Busy,
            BlockError::ReservationConflict,
            BlockError::OutOfRange { offset: 4096, len: 8192, size: 1 << 20 },
            BlockError::Medium { offset: 5120 },
            BlockError::NoSpace,
            BlockError::ReadOnly,
            BlockError::Aborted { fate: Fate::Over },
            BlockError::Unsupported,
        ] {
            let step = Step::Read { offset: REQUEST.offset, len: REQUEST.len };
            let response = response_of(&error, step, 512);
            assert_eq!(result_of(response.status, response.sense.as_deref(), REQUEST), Err(error));
        }
    }

    #[test]
    fn a_failure_is_named_after_what_failed_and_tells_the_block_where_that_is_known() {
        const READ: Step = Step::Read { offset: 4096, len: 8192 };
        const WRITE: Step = Step::Write { offset: 4096, len: 8192 };
        let medium = |offset| BlockError::Medium { offset };
        let io = BlockError::Io { kind: io::ErrorKind::PermissionDenied, message: String::new() };
        for (error, step, code, information) in [
            (medium(5120), READ, AdditionalSense::UNRECOVERED_READ_ERROR, Some(10)),
            (medium(5120), WRITE, AdditionalSense::WRITE_ERROR, Some(10)),
            (medium(12_287), WRITE, AdditionalSense::WRITE_ERROR, Some(23)),
            (medium(0), WRITE, AdditionalSense::WRITE_ERROR, Some(8)),
            (medium(12_288), WRITE, AdditionalSense::WRITE_ERROR, None),
            (medium(0), Step::Flush, AdditionalSense::WRITE_ERROR, None),
            (io.clone(), READ, AdditionalSense::UNRECOVERED_READ_ERROR, None),
            (io.clone(), WRITE, AdditionalSense::WRITE_ERROR, None),
            (io, Step::Flush, AdditionalSense::WRITE_ERROR, None),
        ] {
            let sense = response_of(&error, step, 512).sense.expect("sense data");
            let told = (sense.key, sense.code, sense.information);
            assert_eq!(told, (SenseKey::MEDIUM_ERROR, code, information), "{error:?} in {step:?}");
            for d_sense in [false, true] {
                let bytes = sense.to_bytes(d_sense);
                assert_eq!(Sense::parse(&bytes).map(|sense| sense.information), Some(information));
            }
        }
    }

    #[test]
    fn what_a_fenced_device_had_is_not_answered() {
        let fenced = BlockError::Fenced { why: String::new() };
        for step in [Step::Read { offset: 0, len: 512 }, Step::Write { offset: 0, len: 512 }, Step::Flush] {
            assert!(response_of(&fenced, step, 512).unanswered);
            assert!(!response_of(&BlockError::gone("removed"), step, 512).unanswered);
        }
    }

    #[test]
    fn a_block_beyond_32_bits_is_told_in_descriptor_format_only() {
        let step = Step::Write { offset: 1 << 42, len: 512 };
        let sense =
            response_of(&BlockError::Medium { offset: 1 << 42 }, step, 512).sense.expect("sense data");
        assert_eq!(sense.to_bytes(false)[0] & 0x80, 0, "VALID");
        assert_eq!(Sense::parse(&sense.to_bytes(true)).and_then(|sense| sense.information), Some(1 << 33));
    }

    #[test]
    fn a_medium_error_elsewhere_is_reported_at_the_start_of_the_request() {
        let sense = Sense::new(SenseKey::MEDIUM_ERROR, AdditionalSense::UNRECOVERED_READ_ERROR);
        for information in [0, u64::MAX, 99999] {
            let sense = sense.clone().with_information(information);
            let result = result_of(Status::CHECK_CONDITION, Some(&sense), REQUEST);
            assert_eq!(result, Err(BlockError::Medium { offset: 4096 }));
        }
    }

    #[test]
    fn recovered_errors_are_success_and_silence_is_not() {
        let recovered = Sense::new(SenseKey::RECOVERED_ERROR, AdditionalSense::NONE);
        assert_eq!(result_of(Status::CHECK_CONDITION, Some(&recovered), REQUEST), Ok(()));
        assert!(result_of(Status::CHECK_CONDITION, None, REQUEST).is_err());
        assert!(result_of(Status(0x77), None, REQUEST).is_err());
    }
}

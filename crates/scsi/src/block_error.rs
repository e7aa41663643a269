//! The one place where the errors of a device and the conditions of SCSI meet, in both directions.

use std::io;

use lunway_block::BlockError;

use crate::response::Response;
use crate::sense::{AdditionalSense, Sense, SenseKey};
use crate::status::Status;

/// Device server: what to answer when the device failed. `sector` is the logical block's size, for INFORMATION.
pub fn response_of(error: &BlockError, sector: u32) -> Response {
    use AdditionalSense as Code;
    let lba = |offset: u64| offset / u64::from(sector.max(1));
    match error {
        BlockError::Busy => Response::status(Status::BUSY),
        BlockError::ReservationConflict => Response::status(Status::RESERVATION_CONFLICT),
        BlockError::OutOfRange { .. } => Sense::illegal(Code::LBA_OUT_OF_RANGE).into(),
        BlockError::Misaligned { .. } => Sense::illegal(Code::INVALID_FIELD_IN_CDB).into(),
        BlockError::Medium { offset } => Sense::new(SenseKey::MEDIUM_ERROR, Code::UNRECOVERED_READ_ERROR)
            .with_information(lba(*offset))
            .into(),
        // SBC-3 4.7.3.6: no information about when space will be there again, so it is the permanent form.
        BlockError::NoSpace => Sense::new(SenseKey::DATA_PROTECT, Code::SPACE_ALLOCATION_FAILED).into(),
        BlockError::ReadOnly => Sense::new(SenseKey::DATA_PROTECT, Code::WRITE_PROTECTED).into(),
        BlockError::Gone { .. } => {
            Sense::new(SenseKey::NOT_READY, Code::NOT_READY_MANUAL_INTERVENTION).into()
        }
        BlockError::Timeout { .. } => {
            Sense::new(SenseKey::ABORTED_COMMAND, Code::LOGICAL_UNIT_COMMUNICATION_TIMEOUT).into()
        }
        BlockError::Aborted => Sense::new(SenseKey::ABORTED_COMMAND, Code::NONE).into(),
        BlockError::Unsupported => Sense::illegal(Code::INVALID_COMMAND_OPERATION_CODE).into(),
        _ => Sense::new(SenseKey::HARDWARE_ERROR, Code::INTERNAL_TARGET_FAILURE).into(),
    }
}

/// What the initiator asked for, to give offsets their meaning back.
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
        Status::TASK_ABORTED => Err(BlockError::Aborted),
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
        (SenseKey::NOT_READY, Code::BECOMING_READY | Code::ASYMMETRIC_ACCESS_TRANSITION) => BlockError::Busy,
        (SenseKey::NOT_READY, _) | (_, Code::LOGICAL_UNIT_NOT_SUPPORTED) => {
            BlockError::Gone { why: sense.to_string() }
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
        (SenseKey::ABORTED_COMMAND, _) => BlockError::Aborted,
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
            BlockError::Aborted,
            BlockError::Unsupported,
        ] {
            let response = response_of(&error, 512);
            assert_eq!(result_of(response.status, response.sense.as_deref(), REQUEST), Err(error));
        }
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

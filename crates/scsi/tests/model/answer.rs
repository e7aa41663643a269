//! What the model says an answer must be, and whether it is.

use lunway_scsi::{Response, Status};

/// Sense key and additional sense code.
pub(crate) type Code = (u8, u16);

pub(crate) const INVALID_OPCODE: Code = (5, 0x2000);
pub(crate) const OUT_OF_RANGE: Code = (5, 0x2100);
pub(crate) const INVALID_CDB: Code = (5, 0x2400);
pub(crate) const NO_UNIT: Code = (5, 0x2500);
pub(crate) const INVALID_PARAMETER: Code = (5, 0x2600);
pub(crate) const LIST_LENGTH: Code = (5, 0x1A00);
/// More or less data than the command takes: INVALID FIELD IN COMMAND INFORMATION UNIT.
pub(crate) const WRONG_DATA_LENGTH: Code = (5, 0x0E03);
pub(crate) const MISCOMPARE: Code = (0xE, 0x1D00);

/// A command that ends well.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Data for the initiator; `None` where it has been looked at already.
    pub(crate) data: Option<Vec<u8>>,
    /// Bytes of data-out that the CDB takes.
    pub(crate) took: u64,
}

impl Reply {
    pub(crate) fn nothing() -> Outcome {
        Self::took(0)
    }

    pub(crate) fn took(bytes: u64) -> Outcome {
        Ok(Self { data: Some(Vec::new()), took: bytes })
    }

    /// Data-in cut to the allocation length.
    pub(crate) fn data(mut data: Vec<u8>, allocation: usize) -> Outcome {
        data.truncate(allocation);
        Ok(Self { data: Some(data), took: 0 })
    }

    /// Data that the handler has checked itself.
    pub(crate) fn checked() -> Outcome {
        Ok(Self { data: None, took: 0 })
    }
}

/// A command that does not.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// RESERVATION CONFLICT, or CHECK CONDITION with this.
    ConflictOr(Code),
    /// CHECK CONDITION with one of these: where a command is wrong in two ways, the standard leaves open which is told.
    Check { any_of: Vec<Code>, information: Option<u64> },
    /// The answer contradicts itself, or the model.
    Wrong(String),
}

pub(crate) type Outcome = Result<Reply, Refusal>;

pub(crate) fn refuse<T>(any_of: &[Code]) -> Result<T, Refusal> {
    Err(Refusal::Check { any_of: any_of.to_vec(), information: None })
}

pub(crate) fn refuse_at<T>(code: Code, information: u64) -> Result<T, Refusal> {
    Err(Refusal::Check { any_of: vec![code], information: Some(information) })
}

pub(crate) fn wrong<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Wrong(why.into()))
}

/// The code of an answer, where it has one.
pub(crate) fn code(actual: &Response) -> Option<Code> {
    actual.sense.as_ref().map(|sense| (sense.key.0, sense.code.0))
}

pub(crate) fn describe(actual: &Response) -> String {
    let data = &actual.data_in[..actual.data_in.len().min(48)];
    match &actual.sense {
        Some(sense) => format!("{} ({sense})", actual.status),
        None => format!(
            "{}, {} bytes in {data:02x?}, wanted in {}, out {}",
            actual.status,
            actual.data_in.len(),
            actual.wanted_in,
            actual.wanted_out
        ),
    }
}

/// Compares status, sense key and code, INFORMATION, data and residuals.
pub(crate) fn compare(expected: &Outcome, actual: &Response) -> Result<(), String> {
    let differ =
        |what: &str| Err(format!("{what}: the disk says {}, the model {expected:?}", describe(actual)));
    let failed = actual.status != Status::GOOD && actual.status != Status::CONDITION_MET;
    if failed && (!actual.data_in.is_empty() || actual.wanted_in != 0) {
        return differ("data with a failure");
    }
    match expected {
        Ok(reply) => {
            if failed || actual.sense.is_some() {
                return differ("status");
            }
            if actual.wanted_out != reply.took {
                return differ("residual of data-out");
            }
            if actual.wanted_in != actual.data_in.len() as u64 {
                return differ("residual of data-in");
            }
            match &reply.data {
                Some(data) if data[..] != actual.data_in[..] => {
                    let at = data.iter().zip(&actual.data_in[..]).position(|(one, other)| one != other);
                    differ(&format!(
                        "data, first at {at:?}, of {} and {} bytes",
                        data.len(),
                        actual.data_in.len()
                    ))
                }
                _ => Ok(()),
            }
        }
        Err(Refusal::Conflict) if actual.status == Status::RESERVATION_CONFLICT => Ok(()),
        Err(Refusal::ConflictOr(other))
            if actual.status == Status::RESERVATION_CONFLICT || code(actual) == Some(*other) =>
        {
            Ok(())
        }
        Err(Refusal::Conflict | Refusal::ConflictOr(_)) => differ("status"),
        Err(Refusal::Check { any_of, information }) => {
            let Some(code) = code(actual).filter(|_| actual.status == Status::CHECK_CONDITION) else {
                return differ("status");
            };
            if !any_of.contains(&code) {
                return differ("sense");
            }
            let told = actual.sense.as_ref().and_then(|sense| sense.information);
            if information.is_some() && *information != told {
                return differ("INFORMATION");
            }
            Ok(())
        }
        Err(Refusal::Wrong(why)) => differ(why),
    }
}

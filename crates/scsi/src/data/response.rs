//! The answer to one command.

use lunway_block::{Lent, SharedBuf};

use crate::data::sense::{Sense, SenseBytes};
use crate::data::status::Status;

/// Response to a command.
///
/// `data_in` is cut to the allocation or transfer length of the CDB already. `wanted_in` and `wanted_out` say how much
/// the CDB alone would move; a transport that was told another length computes its residual from them.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status of the command.
    pub status: Status,
    /// Reason, with CHECK CONDITION.
    pub sense: Option<Box<Sense>>,
    /// Data for the initiator.
    pub data_in: SharedBuf,
    /// Data for the initiator that is still where the device has it, instead of `data_in`: only for a transport that
    /// [takes](crate::TaskOptions::may_lend) such.
    pub lent: Option<Box<Lent>>,
    /// Bytes of data-in that the CDB asks for and the device server has; 0 when the command failed.
    pub wanted_in: u64,
    /// Bytes of data-out that the CDB takes; 0 when the command failed before it was known.
    pub wanted_out: u64,
    /// Nothing of this is sent: the transport ends the session instead (I_T nexus loss, SAM-5 §6.3.4), and the
    /// initiator sends the command again over another.
    pub unanswered: bool,
}

impl Response {
    /// A status without data.
    pub fn status(status: Status) -> Self {
        Self {
            status,
            sense: None,
            data_in: SharedBuf::default(),
            lent: None,
            wanted_in: 0,
            wanted_out: 0,
            unanswered: false,
        }
    }

    /// No answer, but the end of the session. Where a transport cannot do that the status makes an initiator repeat the
    /// command.
    pub fn unanswered() -> Self {
        Self { unanswered: true, ..Self::status(Status::BUSY) }
    }

    /// GOOD without data.
    pub fn good() -> Self {
        Self::status(Status::GOOD)
    }

    /// GOOD with data for the initiator.
    pub fn data(data_in: SharedBuf) -> Self {
        Self { wanted_in: data_in.len() as u64, data_in, ..Self::good() }
    }

    /// GOOD with data for the initiator, lent.
    pub fn lent(lent: Lent) -> Self {
        Self { wanted_in: lent.len() as u64, lent: Some(Box::new(lent)), ..Self::good() }
    }

    /// GOOD after taking `wanted_out` bytes.
    pub fn took(wanted_out: u64) -> Self {
        Self { wanted_out, ..Self::good() }
    }

    /// CHECK CONDITION.
    pub fn check_condition(sense: Sense) -> Self {
        Self { sense: Some(Box::new(sense)), ..Self::status(Status::CHECK_CONDITION) }
    }

    /// The sense data, encoded in the logical unit's format.
    pub fn sense_bytes(&self) -> Option<SenseBytes> {
        self.sense.as_ref().map(|sense| sense.to_bytes(sense.descriptor_format))
    }
}

impl From<Sense> for Response {
    fn from(sense: Sense) -> Self {
        Self::check_condition(sense)
    }
}

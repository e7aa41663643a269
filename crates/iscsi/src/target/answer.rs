//! Data-In and SCSI Response: from a command's completion to its last PDU (RFC 7143 §11.4, §11.7).

use lunway_block::{Buf, Lent, SharedBuf};

use super::retained::{DataInSequence, cut};
use super::task::{Task, TaskId};
use super::{Phase, TargetConnection};
use crate::pdu::{self, DataIn, FINAL, ScsiResponse};

/// SAM-5 GOOD.
const GOOD: u8 = 0x00;
/// Status of a command for which there is no memory (SAM-5 §5.3.1): BUSY, and TASK SET FULL where the initiator has
/// other commands with the logical unit.
pub(super) const REFUSED: [u8; 2] = [0x08, 0x28];
/// SAM-5 CHECK CONDITION.
const CHECK_CONDITION: u8 = 0x02;

/// Completion of a command.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// SCSI status (SAM-5 §5.3).
    pub status: u8,
    /// Sense data without length prefix; empty for none.
    pub sense: Vec<u8>,
    /// Data for the initiator, cut to the allocation length of the CDB.
    pub data_in: SharedBuf,
    /// The same, where the device still has it and `data_in` is empty: see [`TargetConnection::takes_lent`].
    pub lent: Option<Box<Lent>>,
    /// Bytes that the CDB asks for, to compute the residual of a read (RFC 7143 §11.4.5).
    // RFC 7143 [11.4.5.3-1]
    pub wanted_in: u64,
    /// Bytes that the CDB takes, to compute the residual of a write.
    pub wanted_out: u64,
}

/// Conditions that iSCSI itself reports as sense data (RFC 7143 §11.4.7.2).
#[derive(Clone, Copy, Debug)]
pub(super) enum IscsiSense {
    UnexpectedUnsolicitedData,
    IncorrectAmountOfData,
    ProtocolServiceCrcError,
    /// Not a condition of RFC 7143 but of SPC-4 §4.5.6: no command here moves data both ways.
    InvalidOperationCode,
}

impl IscsiSense {
    /// Fixed format (SPC-4 §4.5.3). Sense key ABORTED COMMAND, but for what can never be carried out.
    // RFC 7143 [11.4.7-2]
    fn to_bytes(self) -> Vec<u8> {
        let (key, asc, ascq) = match self {
            Self::UnexpectedUnsolicitedData => (0x0b, 0x0c, 0x0c),
            Self::IncorrectAmountOfData => (0x0b, 0x0c, 0x0d),
            Self::ProtocolServiceCrcError => (0x0b, 0x47, 0x05),
            Self::InvalidOperationCode => (0x05, 0x20, 0x00),
        };
        let mut sense = vec![0; 18];
        sense[0] = 0x70;
        sense[2] = key;
        sense[7] = 10;
        sense[12] = asc;
        sense[13] = ascq;
        sense
    }
}

/// Residual count: bytes expected and not transferred, or bytes that would have been transferred and were not expected.
#[derive(Default)]
struct Residual {
    flags: u8,
    count: u32,
    /// Of the read half of a bidirectional command.
    read_count: u32,
}

impl Residual {
    /// Of `wanted` bytes against `expected`, where `moved` bytes of those expected were transferred.
    // RFC 7143 [11.4.1-1, 11.4.5.1-1, 11.4.5.1-3, 11.4.5.2-1, 11.4.5.2-2, 11.4.5.3-2]
    fn of(expected: u32, wanted: u64, moved: u64) -> Self {
        let expected = u64::from(expected);
        let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        // The flags are the same bits in Data-In and SCSI Response.
        if wanted > expected && moved == expected {
            Self { flags: ScsiResponse::OVERFLOW, count: count(wanted - expected), ..Self::default() }
        } else if moved < expected {
            Self { flags: ScsiResponse::UNDERFLOW, count: count(expected - moved), ..Self::default() }
        } else {
            Self::default()
        }
    }
}

impl TargetConnection {
    /// Answers a command. One that has been aborted in the meantime is ignored, unless
    /// [`set_answered`](Self::set_answered) says otherwise.
    pub fn complete(&mut self, id: TaskId, completion: Completion) {
        let Some(task) = self.end_task(id).or_else(|| self.aborted_task_completed(id)) else { return };
        if !matches!(self.phase, Phase::FullFeature(_)) {
            return;
        }
        let lent = completion.lent.as_ref().map(|lent| lent.len());
        let len = lent.unwrap_or(completion.data_in.len()).min(task.expected_length as usize);
        // RFC 7143 [11.7.3-1]
        if completion.status == GOOD && task.read && len > 0 {
            let residual = Residual::of(task.expected_length, completion.wanted_in, len as u64);
            match completion.lent {
                None => self.data_in(&task, completion.data_in.slice(0..len), &residual),
                Some(lent) if self.sends_lent(len) => self.lent_in(&task, &lent.slice(0..len), &residual),
                Some(lent) => self.data_in(&task, lent.slice(0..len).copy(), &residual),
            }
        } else {
            let (wanted, moved) = if task.write {
                (completion.wanted_out, completion.wanted_out.min(u64::from(task.expected_length)))
            } else if completion.status == GOOD {
                // What the CDB takes and the header does not announce (W=0) has not come: nothing is written, and the
                // initiator is told so.
                (completion.wanted_in.max(completion.wanted_out), 0)
            } else {
                (0, 0)
            };
            let residual = Residual::of(task.expected_length, wanted, moved);
            self.scsi_response(&task, completion.status, &completion.sense, &residual);
        }
    }

    /// Data that a device [has lent](Completion::lent) is sent from there, in not too many PDUs. Otherwise it is copied
    /// at once: its digest would be of other bytes than those that are sent later, and what can be asked for again must
    /// not change.
    pub fn takes_lent(&self) -> bool {
        let Phase::FullFeature(logged_in) = &self.phase else { return false };
        let parameters = &logged_in.negotiated;
        let shortest = parameters.max_recv_peer.min(parameters.max_burst_length);
        shortest as usize >= Lent::MIN && self.sends_lent(Lent::MIN)
    }

    /// The same for so many bytes: each PDU of them is of another moment, so none begins within a page.
    fn sends_lent(&self, len: usize) -> bool {
        let Phase::FullFeature(logged_in) = &self.phase else { return false };
        let cuts_pages =
            |longest: u32| len > longest as usize && !(longest as usize).is_multiple_of(Lent::PAGE);
        let parameters = &logged_in.negotiated;
        self.retention.is_none()
            && !self.transmitter.has_data_digest()
            && !cuts_pages(parameters.max_recv_peer)
            && !cuts_pages(parameters.max_burst_length)
    }

    /// Ends a task by a condition of iSCSI's own.
    pub(super) fn fail(&mut self, id: TaskId, sense: IscsiSense) {
        let Some(task) = self.end_task(id) else { return };
        let mut residual = Residual::of(task.expected_length, 0, 0);
        if let Some(expected) = task.bidirectional_read_length.filter(|expected| *expected > 0) {
            residual.flags |= ScsiResponse::BIDIRECTIONAL_READ_UNDERFLOW;
            residual.read_count = expected;
        }
        self.scsi_response(&task, CHECK_CONDITION, &sense.to_bytes(), &residual);
    }

    /// Ends a task that was not begun with a status that asks the initiator to send it again.
    pub(super) fn answer_refused(&mut self, id: TaskId, status: u8) {
        let Some(task) = self.end_task(id) else { return };
        let residual = Residual::of(task.expected_length, 0, 0);
        self.scsi_response(&task, status, &[], &residual);
    }

    /// The Data-In PDU that has the status, and the longest segments and bursts of its sequence, bytes.
    fn last_data_in(&mut self, task: &Task, residual: &Residual) -> Option<(DataIn, usize, usize)> {
        let Phase::FullFeature(logged_in) = &self.phase else { return None };
        // RFC 7143 [11.7.7-2]
        // §11.7.7: whole words.
        let segment_max = logged_in.negotiated.max_recv_peer as usize & !3;
        let burst_max = logged_in.negotiated.max_burst_length as usize;
        let mut last = DataIn::new();
        // RFC 7143 [11.7.3-3]
        last.flags = FINAL | DataIn::STATUS | residual.flags;
        last.initiator_task_tag = task.initiator_task_tag.into();
        last.residual_count = residual.count.into();
        number_status!(self, last);
        Some((last, segment_max, burst_max))
    }

    /// Data in PDUs as long as the initiator takes, in sequences of MaxBurstLength, the last one with the status
    /// (phase collapse, RFC 7143 §11.7.3).
    fn data_in(&mut self, task: &Task, data: SharedBuf, residual: &Residual) {
        let Some((mut last, segment_max, burst_max)) = self.last_data_in(task, residual) else { return };
        if self.retention.is_none() && data.len() <= segment_max.min(burst_max) {
            return self.transmitter.push(&pdu::to_bytes(&last), &[], data);
        }
        // RFC 7143 [11.7.4-1, 11.7.2-1]
        if self.wants_acknowledgement() {
            // §11.7.2: it is to say at once that it has the data; at most once for each command.
            last.flags |= DataIn::ACKNOWLEDGE;
            last.lun = u64::from_be_bytes(task.lun).into();
            last.target_transfer_tag = self.transfer_tag(0).into();
        }
        let sequence = DataInSequence { last, data, segment_max, burst_max, snack_tag: None };
        for (pdu, part) in sequence.pdus() {
            self.transmitter.push(&pdu::to_bytes(&pdu), &[], sequence.data.slice(part));
        }
        if let Some(retention) = &mut self.retention {
            retention.keep_data_in(sequence);
            self.fit_retention();
        }
    }

    /// The same with data that stays where it is until it is sent.
    fn lent_in(&mut self, task: &Task, data: &Lent, residual: &Residual) {
        let Some((last, segment_max, burst_max)) = self.last_data_in(task, residual) else { return };
        for (pdu, part) in cut(last, data.len(), segment_max, burst_max, true) {
            self.transmitter.push_lent(&pdu::to_bytes(&pdu), data.slice(part));
        }
    }

    // RFC 7143 [4.6.1.2-1, 11.4.7-1, 11.4.8-1, 10.2-1, 4.2.2.1-15]
    fn scsi_response(&mut self, task: &Task, status: u8, sense: &[u8], residual: &Residual) {
        let mut pdu = ScsiResponse::new();
        pdu.flags |= residual.flags;
        pdu.residual_count = residual.count.into();
        pdu.bidirectional_read_residual_count = residual.read_count.into();
        pdu.status = status;
        pdu.initiator_task_tag = task.initiator_task_tag.into();
        number_status!(self, pdu);
        let mut data = SharedBuf::default();
        if !sense.is_empty() {
            // §11.4.7.1: two bytes of length, then the sense data. Sense data has 252 bytes at most (SPC-4 §4.5).
            let sense = &sense[..sense.len().min(252)];
            let mut segment = Buf::for_overwrite(2 + sense.len());
            segment[..2].copy_from_slice(&(sense.len() as u16).to_be_bytes());
            segment[2..].copy_from_slice(sense);
            data = segment.freeze();
        }
        self.send_answer(&pdu::to_bytes(&pdu), data);
    }
}

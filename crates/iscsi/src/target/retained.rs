//! PDUs kept for retransmission at error recovery level 1 (RFC 7143 §7.1.4, §11.16).

use std::collections::VecDeque;
use std::ops::Range;

use lunway_block::SharedBuf;

use super::{Phase, TargetConnection};
use crate::pdu::{
    self, DataIn, FINAL, Header, RESERVED_TAG, RejectReason, ScsiResponse, Snack, SnackType, TextResponse,
};
use crate::receive::Head;
use crate::serial::Serial;

/// Bytes of buffers that are kept until the initiator says that it has their data. From half of it on, it is asked to
/// say so at once (A bit). Above it the oldest are forgotten, and a SNACK for them is rejected: the initiator then
/// repeats the command. All of it counts against the budget of the principal, and where that is used up, less is kept.
const BYTES_MAX: usize = 16 << 20;
/// Answers that are kept: eight full windows of the usual size.
const ANSWERS_MAX: usize = 1024;

/// With more than this unsent nothing is sent again, bytes: one PDU of 48 bytes can ask for megabytes, and many of them
/// come in one read.
const UNSENT_MAX: usize = 1 << 20;

/// Data-In PDUs of one command, in the form in which they can be cut again exactly as they were.
#[derive(Clone, Debug)]
pub(super) struct DataInSequence {
    /// Fields that all PDUs of the sequence share; flags, residual and StatSN are those of the last one.
    pub(super) last: DataIn,
    pub(super) data: SharedBuf,
    /// Longest segment, bytes.
    pub(super) segment_max: usize,
    /// MaxBurstLength.
    pub(super) burst_max: usize,
    /// Of the last R-Data SNACK: from then on the status has a PDU of its own.
    pub(super) snack_tag: Option<u32>,
}

impl DataInSequence {
    /// The PDUs in order, each with its part of the data.
    pub(super) fn pdus(&self) -> impl Iterator<Item = (DataIn, Range<usize>)> {
        let has_status = self.snack_tag.is_none();
        cut(self.last, self.data.len(), self.segment_max, self.burst_max, has_status)
    }

    /// The PDU that has the status, with its data.
    fn status(&self) -> Option<(Header, SharedBuf)> {
        let Some(snack_tag) = self.snack_tag else {
            return self.pdus().last().map(|(pdu, part)| (pdu::to_bytes(&pdu), self.data.slice(part)));
        };
        let mut response = ScsiResponse::new();
        // The residual flags are the same bits in both.
        response.flags = FINAL | self.last.flags & (DataIn::OVERFLOW | DataIn::UNDERFLOW);
        response.residual_count = self.last.residual_count;
        response.initiator_task_tag = self.last.initiator_task_tag;
        response.snack_tag = snack_tag.into();
        response.stat_sn = self.last.stat_sn;
        response.exp_data_sn = (self.pdus().count() as u32).into();
        Some((pdu::to_bytes(&response), SharedBuf::default()))
    }
}

/// Cuts `len` bytes of data into PDUs, each with its part of the data: see the fields of [`DataInSequence`].
/// `has_status`: the last one has the status.
// RFC 7143 [4.2.2.4-1, 11.7.1-1, 11.7.1-2, 13.19-1]
pub(super) fn cut(
    last: DataIn,
    len: usize,
    segment_max: usize,
    burst_max: usize,
    has_status: bool,
) -> impl Iterator<Item = (DataIn, Range<usize>)> {
    let (mut at, mut data_sn) = (0, 0u32);
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let burst_end = (at / burst_max + 1) * burst_max;
        let end = len.min(at + segment_max).min(burst_end);
        let mut pdu = last;
        if end < len || !has_status {
            pdu.flags = if end == burst_end || end == len { FINAL } else { 0 };
            (pdu.lun, pdu.target_transfer_tag) = (0.into(), RESERVED_TAG.into());
            (pdu.stat_sn, pdu.residual_count) = (0.into(), 0.into());
        }
        pdu.data_sn = data_sn.into();
        pdu.buffer_offset = (at as u32).into();
        let part = at..end;
        (at, data_sn) = (end, data_sn + 1);
        Some((pdu, part))
    })
}

/// An answer with a StatSN.
#[derive(Debug)]
enum Answer {
    Pdu { header: Header, data: SharedBuf },
    DataIn(DataInSequence),
}

impl Answer {
    /// Memory that it keeps, bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Pdu { data, .. } => data.pinned(),
            Self::DataIn(sequence) => sequence.data.pinned(),
        }
    }
}

#[derive(Debug)]
struct Retained {
    stat_sn: u32,
    answer: Answer,
}

/// The answers of a connection that the initiator has not acknowledged, oldest first. There is one where error recovery
/// level 1 was agreed.
#[derive(Debug, Default)]
pub(super) struct Retention {
    answers: VecDeque<Retained>,
    bytes: usize,
}

impl Retention {
    fn keep(&mut self, stat_sn: u32, answer: Answer) {
        self.bytes += answer.bytes();
        self.answers.push_back(Retained { stat_sn, answer });
        while self.answers.len() > ANSWERS_MAX || (self.bytes > BYTES_MAX && self.answers.len() > 1) {
            self.forget_oldest();
        }
    }

    /// Bytes of buffers that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the oldest answer; `false` if that is the last one.
    pub(super) fn forget(&mut self) -> bool {
        let has_others = self.answers.len() > 1;
        if has_others {
            self.forget_oldest();
        }
        has_others
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.answers.pop_front() {
            self.bytes -= oldest.answer.bytes();
        }
    }

    pub(super) fn keep_pdu(&mut self, stat_sn: u32, header: Header, data: SharedBuf) {
        self.keep(stat_sn, Answer::Pdu { header, data });
    }

    pub(super) fn keep_data_in(&mut self, sequence: DataInSequence) {
        self.keep(sequence.last.stat_sn.get(), Answer::DataIn(sequence));
    }

    /// Returns `true` if the next data should request an acknowledgement.
    pub(super) fn is_crowded(&self) -> bool {
        self.bytes > BYTES_MAX / 2
    }

    /// Every answer before this StatSN has arrived.
    pub(super) fn acknowledge(&mut self, exp_stat_sn: u32) {
        while self.answers.front().is_some_and(|oldest| Serial(oldest.stat_sn) < Serial(exp_stat_sn)) {
            self.forget_oldest();
        }
    }

    /// The data of a command, by its tag or by the Target Transfer Tag of a request for acknowledgement.
    fn data_in(&mut self, is_meant: impl Fn(&DataIn) -> bool) -> Option<&mut DataInSequence> {
        self.answers.iter_mut().rev().find_map(|retained| match &mut retained.answer {
            Answer::DataIn(sequence) if is_meant(&sequence.last) => Some(sequence),
            _ => None,
        })
    }
}

/// Returns `true` if `number` is in the run of a SNACK; a run length of 0 means all that follow (RFC 7143 §11.16.6).
pub(super) fn in_run(snack: &Snack, number: u32) -> bool {
    let distance = number.wrapping_sub(snack.beg_run.get());
    match snack.run_length.get() {
        0 => Serial(snack.beg_run.get()) <= Serial(number),
        length => distance < length,
    }
}

/// Gives a PDU that is sent again the ExpCmdSN and MaxCmdSN of now, which are at the same places in all of them.
fn renew(header: &mut Header, (exp_cmd_sn, max_cmd_sn): (u32, u32)) {
    header[28..32].copy_from_slice(&exp_cmd_sn.to_be_bytes());
    header[32..36].copy_from_slice(&max_cmd_sn.to_be_bytes());
}

impl TargetConnection {
    /// Sends a PDU that has a StatSN, and keeps it where it may be asked for again.
    pub(super) fn send_answer(&mut self, header: &Header, data: SharedBuf) {
        if let Some(retention) = &mut self.retention {
            // StatSN is at the same place in every answer.
            let stat_sn: &TextResponse = pdu::view(header);
            retention.keep_pdu(stat_sn.stat_sn.get(), *header, data.clone());
            self.fit_retention();
        }
        self.transmitter.push(header, &[], data);
    }

    /// RFC 7143 §11.16: sends again what got lost. What is not there (any more) is refused.
    // RFC 7143 [7.8-8, 11.16-1]
    pub(super) fn snack(&mut self, head: &Head) {
        let snack: &Snack = pdu::view(&head.bhs);
        let served = match snack.snack_type() {
            SnackType::DATA_OR_R2T | SnackType::STATUS | SnackType::R_DATA
                if self.transmitter.unsent() > UNSENT_MAX =>
            {
                false
            }
            SnackType::DATA_OR_R2T => self.resend_data(snack) || self.resend_r2ts(snack),
            SnackType::STATUS => self.resend_answers(snack),
            SnackType::DATA_ACK => {
                if !self.data_acknowledged(snack) {
                    self.reject(head, RejectReason::INVALID_DATA_ACK);
                }
                return;
            }
            SnackType::R_DATA => self.resend_anew(snack),
            _ => false,
        };
        if !served {
            self.reject(head, RejectReason::SNACK_REJECT);
        }
    }

    // RFC 7143 [11.16-2]
    fn resend_data(&mut self, snack: &Snack) -> bool {
        let (exp_cmd_sn, max_cmd_sn) = self.numbering.window();
        let tag = snack.initiator_task_tag;
        let Some(retention) = &mut self.retention else { return false };
        let Some(sequence) = retention.data_in(|last| last.initiator_task_tag == tag) else { return false };
        let mut found = false;
        for (mut pdu, part) in sequence.pdus().filter(|(pdu, _)| in_run(snack, pdu.data_sn.get())) {
            (pdu.exp_cmd_sn, pdu.max_cmd_sn) = (exp_cmd_sn.into(), max_cmd_sn.into());
            self.transmitter.push(&pdu::to_bytes(&pdu), &[], sequence.data.slice(part));
            found = true;
        }
        found
    }

    /// R-Data SNACK (§11.16.3): the initiator has forgotten the data and takes it in segments of another length. The
    /// status follows in a SCSI Response with the same StatSN, as only that can carry the SNACK's tag.
    // RFC 7143 [11.16.3-1]
    fn resend_anew(&mut self, snack: &Snack) -> bool {
        let Phase::FullFeature(logged_in) = &self.phase else { return false };
        let segment_max = logged_in.negotiated.max_recv_peer as usize & !3;
        let numbers = self.numbering.window();
        let tag = snack.initiator_task_tag;
        let Some(retention) = &mut self.retention else { return false };
        let Some(sequence) = retention.data_in(|last| last.initiator_task_tag == tag) else { return false };
        let forgotten = sequence.data.is_empty();
        if forgotten || matches!(snack.tag.get(), 0 | RESERVED_TAG) || snack.beg_run.get() != 0 {
            return false;
        }
        (sequence.segment_max, sequence.snack_tag) = (segment_max, Some(snack.tag.get()));
        let data = sequence.pdus().map(|(pdu, part)| (pdu::to_bytes(&pdu), sequence.data.slice(part)));
        for (mut header, data) in data.chain(sequence.status()) {
            renew(&mut header, numbers);
            self.transmitter.push(&header, &[], data);
        }
        true
    }

    fn resend_answers(&mut self, snack: &Snack) -> bool {
        let (exp_cmd_sn, max_cmd_sn) = self.numbering.window();
        let Some(retention) = &self.retention else { return false };
        // Of a run that begins before what is kept, a part is gone for ever.
        let first = retention.answers.front().map(|oldest| oldest.stat_sn);
        let asks_for_all = snack.beg_run.get() == 0 && snack.run_length.get() == 0;
        if !asks_for_all && first.is_none_or(|first| Serial(snack.beg_run.get()) < Serial(first)) {
            return false;
        }
        let meant = |retained: &&Retained| asks_for_all || in_run(snack, retained.stat_sn);
        for retained in retention.answers.iter().filter(meant) {
            let (mut header, data) = match &retained.answer {
                Answer::Pdu { header, data } => (*header, data.clone()),
                Answer::DataIn(sequence) => match sequence.status() {
                    Some(status) => status,
                    None => continue,
                },
            };
            renew(&mut header, (exp_cmd_sn, max_cmd_sn));
            self.transmitter.push(&header, &[], data);
        }
        true
    }

    /// The initiator has all data before BegRun. What was asked for is an acknowledgement of all of it.
    // RFC 7143 [11.16.5-1]
    fn data_acknowledged(&mut self, snack: &Snack) -> bool {
        let tag = snack.tag.get();
        let Some(retention) = self.retention.as_mut().filter(|_| tag != RESERVED_TAG) else { return false };
        let Some(sequence) = retention.data_in(|last| last.target_transfer_tag.get() == tag) else {
            // Acknowledged by ExpStatSN in the meantime, with which it crossed.
            return true;
        };
        let count = sequence.pdus().count() as u32;
        if snack.beg_run.get() > count {
            return false;
        }
        if snack.beg_run.get() == count {
            let bytes = std::mem::take(&mut sequence.data).pinned();
            retention.bytes -= bytes;
        }
        true
    }
}

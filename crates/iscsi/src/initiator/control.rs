//! Everything that is not a SCSI command: login, NOP, SendTargets, logout, task management, asynchronous messages,
//! Reject.

use std::collections::VecDeque;

use lunway_block::Buf;

use super::command::sense_of;
use super::{AsyncMessageInfo, InitiatorConnection, InitiatorEvent, Phase};
use crate::connection::{CloseReason, SendTargets, TargetRecord};
use crate::login::{InitiatorStep, LoginMessage};
use crate::pdu::{
    self, AsyncEvent, AsyncMessage, BasicHeader, FINAL, LoginResponse, LogoutReason, LogoutRequest,
    LogoutResponse, LogoutResult, NopIn, NopOut, Opcode, RESERVED_TAG, Reject, ScsiCommand,
    TaskManagementCode, TaskManagementRequest, TaskManagementResponse, TaskManagementResult, TextRequest,
    TextResponse,
};
use crate::receive::Head;
use crate::serial::Serial;
use crate::text;

/// Task tags of requests that are not commands have this bit; see [`InitiatorConnection::submit`].
const CONTROL_TAG: u32 = 0x8000_0000;
/// Targets that one discovery may name; a storage network has hundreds.
const TARGETS_MAX: usize = 1 << 16;
/// Bytes of one answer to SendTargets: so many targets with two addresses each.
const ANSWER_LEN_MAX: usize = 32 << 20;
/// Text Responses of one answer. Targets fill them, with 8 KiB by default; this is enough for one that sends a target
/// in each.
const ROUNDS_MAX: u32 = 1 << 14;
/// Text Responses in a row in which no pair ends. The longest pair, 8,255 bytes, takes 17 of the shortest segments that
/// can be agreed on.
const EMPTY_ROUNDS_MAX: u32 = 32;

/// Requests that the target has given rise to, and that it has not taken yet: answers to its pings, pings in the place
/// of commands that it rejected. Far more than a target waits for, and 200 KiB.
const ANSWERS_MAX: usize = 1024;

/// A task management request that is not answered yet.
struct Management {
    initiator_task_tag: u32,
    token: u64,
    /// The command to be aborted, by its task tag.
    aborts: Option<u32>,
}

/// A ping that is not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ping {
    pub(super) tag: u32,
    /// The number of the first command after it.
    next_cmd_sn: Serial,
}

/// State that the functions of this file keep between PDUs.
#[derive(Default)]
pub(super) struct Control {
    next_tag: u32,
    /// Of the last ping, until that very one is answered.
    pub(super) ping: Option<Ping>,
    /// A Logout Request is out: nothing new may follow it (RFC 7143 §11.14).
    pub(super) leaving: bool,
    management: Vec<Management>,
    text_tag: Option<u32>,
    /// The beginning of a pair whose end comes in the next PDU.
    text_in: Vec<u8>,
    /// Text Responses, and bytes, that the answer has had.
    rounds: u32,
    answer_len: usize,
    /// Number of rounds in a row in which no pair ended.
    empty_rounds: u32,
    targets: Vec<TargetRecord>,
    /// For each request that the target has given rise to and that is not sent, where it ends in all that is.
    answers: VecDeque<u64>,
    /// Deviations that have been reported, by [`Oddity`].
    tolerated: [bool; Oddity::COUNT],
}

/// Harmless deviation in the R2Ts of some targets; each kind is reported once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Oddity {
    /// Not the LUN of their command.
    WithoutLun,
    /// More than MaxBurstLength.
    LongR2t,
    /// More of them than MaxOutstandingR2T.
    ManyR2ts,
    /// Data that was sent with the command.
    R2tForSent,
}

impl Oddity {
    const COUNT: usize = 4;
}

impl Control {
    /// Says yes once for each kind.
    pub(super) fn tolerates(&mut self, oddity: Oddity) -> bool {
        !std::mem::replace(&mut self.tolerated[oddity as usize], true)
    }

    fn tag(&mut self) -> u32 {
        self.next_tag = (self.next_tag + 1) % 0x7fff_ffff;
        CONTROL_TAG | self.next_tag
    }
}

impl InitiatorConnection {
    pub(super) fn send_login(&mut self, message: LoginMessage) {
        let mut pdu = message.header;
        // RFC 7143 [4.2.2.1-1]
        // §11.12.8: login requests are immediate and all carry the first CmdSN.
        pdu.cmd_sn = self.cmd_sn.0.into();
        pdu.exp_stat_sn = self.status_numbers.next().into();
        pdu.initiator_task_tag = CONTROL_TAG.into();
        self.transmitter.push(&pdu::to_bytes(&pdu), &[], Buf::copy_of(&message.data).freeze());
    }

    pub(super) fn login_response(&mut self, head: &Head, data: &[u8]) {
        let pdu: &LoginResponse = pdu::view(&head.bhs);
        let Phase::Login(login) = &mut self.phase else { return };
        let step = login.response(pdu, data);
        let tolerated = login.take_tolerated();
        match step {
            InitiatorStep::Failed(error) => self.close(CloseReason::LoginFailed(error)),
            InitiatorStep::Send(message) => {
                self.status_numbers.begin(pdu.stat_sn.get());
                self.send_login(message);
            }
            InitiatorStep::Finished(logged_in) => {
                self.status_numbers.begin(pdu.stat_sn.get());
                self.max_cmd_sn = Serial(pdu.max_cmd_sn.get());
                let negotiated = &logged_in.negotiated;
                let (header_digest, data_digest) = (negotiated.header_digest, negotiated.data_digest);
                self.transmitter.enter_full_feature_phase(header_digest, data_digest);
                self.receiver.enter_full_feature_phase(
                    negotiated.max_recv_ours as usize,
                    header_digest,
                    data_digest,
                );
                self.phase = Phase::FullFeature(logged_in.clone());
                self.events.push_back(InitiatorEvent::LoggedIn(logged_in));
            }
        }
        // After the end there are no events, and an error says more.
        if !matches!(self.phase, Phase::Closing) {
            self.events.extend(tolerated.into_iter().map(InitiatorEvent::Tolerated));
        }
    }

    fn next_cmd_sn(&mut self) -> u32 {
        let cmd_sn = self.cmd_sn.0;
        self.cmd_sn = self.cmd_sn.next();
        cmd_sn
    }

    /// Asks the target whether it is there (RFC 7143 §11.18); immediate, so that it passes a closed window. Whatever
    /// comes then is an answer. Does nothing before full feature phase.
    pub fn ping(&mut self) {
        if !matches!(self.phase, Phase::FullFeature(_)) {
            return;
        }
        // RFC 7143 [11.18.1-1]
        let mut pdu = NopOut::new();
        pdu.opcode.set_immediate(true);
        let tag = self.control.tag();
        self.control.ping = Some(Ping { tag, next_cmd_sn: self.cmd_sn });
        pdu.initiator_task_tag = tag.into();
        self.send_nop_out(pdu);
    }

    fn send_nop_out(&mut self, mut pdu: NopOut) {
        pdu.cmd_sn = self.cmd_sn.0.into();
        pdu.exp_stat_sn = self.status_numbers.next().into();
        self.transmitter.push(&pdu::to_bytes(&pdu), &[], Default::default());
    }

    pub(super) fn nop_in(&mut self, head: &Head) {
        let pdu: &NopIn = pdu::view(&head.bhs);
        self.note_window(pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if pdu.initiator_task_tag.get() != RESERVED_TAG {
            if !self.note_status(pdu.stat_sn.get()) {
                return;
            }
            let tag = pdu.initiator_task_tag.get();
            if let Some(ping) = self.control.ping.take_if(|ping| ping.tag == tag) {
                self.count_commands(ping, Serial(pdu.exp_cmd_sn.get()));
            }
        } else if self.note_next_status(pdu.stat_sn.get()) && pdu.target_transfer_tag.get() != RESERVED_TAG {
            // RFC 7143 [11.18-1, 11.18-2, 11.18.1-3, 11.18.2-1, 11.18.2-2]
            // The target's ping, answered with its tag and LUN and without a tag of ours.
            let mut answer = NopOut::new();
            answer.opcode.set_immediate(true);
            answer.lun = pdu.lun;
            answer.target_transfer_tag = pdu.target_transfer_tag;
            self.send_nop_out(answer);
            self.note_answer();
        }
    }

    /// The target has given rise to the request that was queued last. One that goes on so and takes nothing would have
    /// us keep requests without end.
    fn note_answer(&mut self) {
        let (end, sent) = (self.transmitter.end(), self.transmitter.position());
        let answers = &mut self.control.answers;
        while answers.front().is_some_and(|end| *end <= sent) {
            answers.pop_front();
        }
        answers.push_back(end);
        if answers.len() > ANSWERS_MAX {
            self.close(CloseReason::Protocol(format!(
                "the target sends requests without reading the answers: {ANSWERS_MAX} are waiting"
            )));
        }
    }

    /// Checks that the target counts the commands sent before a ping. They have arrived before it, as a connection
    /// keeps the order of its bytes, and a target counts what arrives (RFC 7143 §4.2.2.1). One that answers the ping
    /// and does not count a command from before it never got that: it holds back all later ones and answers pings for
    /// ever. Something between here and there has acknowledged bytes and lost them.
    fn count_commands(&mut self, ping: Ping, expected: Serial) {
        if expected < ping.next_cmd_sn {
            let (expected, next) = (expected.0, ping.next_cmd_sn.0);
            self.close(CloseReason::Missing(format!(
                "commands: the target waits for number {expected}, and all before {next} were sent"
            )));
        }
    }

    /// Asks which targets there are; [`InitiatorEvent::Targets`] answers.
    pub fn send_targets(&mut self, which: &SendTargets) {
        let mut text = text::Builder::new();
        let value = match which {
            SendTargets::All => "All",
            SendTargets::Named(name) => name,
            SendTargets::This => "",
        };
        // RFC 7143 [C-5, C-1]
        text.pair("SendTargets", value);
        let tag = self.control.tag();
        self.control.text_tag = Some(tag);
        self.control.text_in = Vec::new();
        (self.control.rounds, self.control.empty_rounds, self.control.answer_len) = (0, 0, 0);
        self.control.targets = Vec::new();
        self.send_text(tag, RESERVED_TAG, 0, &text.into_bytes());
    }

    // RFC 7143 [6.4-1, 6.4-2, 11.10.2-1, 11.10.3-1]
    fn send_text(&mut self, tag: u32, transfer_tag: u32, lun: u64, text: &[u8]) {
        let mut pdu = TextRequest::new();
        pdu.flags = FINAL;
        pdu.lun = lun.into();
        pdu.initiator_task_tag = tag.into();
        pdu.target_transfer_tag = transfer_tag.into();
        pdu.cmd_sn = self.next_cmd_sn().into();
        pdu.exp_stat_sn = self.status_numbers.next().into();
        self.transmitter.push(&pdu::to_bytes(&pdu), &[], Buf::copy_of(text).freeze());
    }

    pub(super) fn text_response(&mut self, head: &Head, data: &[u8]) {
        let pdu: &TextResponse = pdu::view(&head.bhs);
        self.note_window(pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if !self.note_status(pdu.stat_sn.get()) {
            return;
        }
        let tag = pdu.initiator_task_tag.get();
        if self.control.text_tag != Some(tag) {
            return;
        }
        if let Err(error) = self.note_targets(data) {
            return self.close(CloseReason::Protocol(error));
        }
        // RFC 7143 [11.10.4-2]
        if pdu.is_final() && !pdu.continues() {
            self.control.text_tag = None;
            self.events.push_back(InitiatorEvent::Targets(std::mem::take(&mut self.control.targets)));
        } else if pdu.target_transfer_tag.get() == RESERVED_TAG {
            self.close(CloseReason::Protocol(
                "an incomplete Text Response without a Target Transfer Tag".into(),
            ));
        } else {
            // RFC 7143 [11.11.4-2]
            // §11.11.4: tag and LUN say what is to go on.
            self.send_text(tag, pdu.target_transfer_tag.get(), pdu.lun.get(), &[]);
        }
    }

    /// Takes one pair after another, as a large storage network's answer is longer than any text of a login.
    fn note_targets(&mut self, data: &[u8]) -> Result<(), String> {
        let control = &mut self.control;
        control.rounds += 1;
        control.answer_len = control.answer_len.saturating_add(data.len());
        control.empty_rounds = if data.contains(&0) { 0 } else { control.empty_rounds + 1 };
        if control.rounds > ROUNDS_MAX {
            return Err(format!("an answer to SendTargets of more than {ROUNDS_MAX} Text Responses"));
        }
        if control.answer_len > ANSWER_LEN_MAX {
            return Err(format!("an answer to SendTargets of more than {ANSWER_LEN_MAX} bytes"));
        }
        if control.empty_rounds > EMPTY_ROUNDS_MAX {
            return Err(format!("more than {EMPTY_ROUNDS_MAX} Text Responses in a row without a pair"));
        }
        control.text_in.extend_from_slice(data);
        let text_in = std::mem::take(&mut control.text_in);
        let mut pairs = text_in.split(|&byte| byte == 0);
        let rest = pairs.next_back().unwrap_or_default();
        if rest.len() > text::KEY_LEN_MAX + 1 + text::VALUE_LEN_MAX {
            return Err("a text without end".into());
        }
        control.text_in = rest.to_vec();
        for pair in pairs {
            let pair = text::parse(pair).map_err(|error| error.to_string())?;
            let Some(&(key, value)) = pair.first() else { continue };
            match key {
                "TargetName" if control.targets.len() == TARGETS_MAX => {
                    return Err(format!("more than {TARGETS_MAX} targets"));
                }
                "TargetName" => {
                    control.targets.push(TargetRecord { name: value.into(), addresses: Vec::new() });
                }
                "TargetAddress" => {
                    let (address, group) = value.rsplit_once(',').unwrap_or((value, "1"));
                    let group = group.parse().map_err(|_| format!("TargetAddress={value} has no group"))?;
                    let target = control.targets.last_mut().ok_or("a TargetAddress before any TargetName")?;
                    target.addresses.push((address.into(), group));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends the session (RFC 7143 §11.14); [`InitiatorEvent::Closing`] follows.
    pub fn logout(&mut self) {
        if !matches!(self.phase, Phase::FullFeature(_)) {
            return self.close(CloseReason::LoggedOut);
        }
        let mut pdu = LogoutRequest::new();
        pdu.opcode.set_immediate(true);
        // RFC 7143 [11.14.2-1]
        pdu.set_reason(LogoutReason::CLOSE_SESSION);
        pdu.initiator_task_tag = self.control.tag().into();
        pdu.cmd_sn = self.cmd_sn.0.into();
        pdu.exp_stat_sn = self.status_numbers.next().into();
        self.transmitter.push(&pdu::to_bytes(&pdu), &[], Default::default());
        self.control.leaving = true;
    }

    // RFC 7143 [11.14-4, 11.15-1]
    pub(super) fn logout_response(&mut self, head: &Head) {
        let pdu: &LogoutResponse = pdu::view(&head.bhs);
        if !self.note_status(pdu.stat_sn.get()) {
            return;
        }
        self.close(match pdu.response {
            LogoutResult::CLOSED => CloseReason::LoggedOut,
            other => CloseReason::Protocol(format!("logout: {other}")),
        });
    }

    /// Sends a task management request (RFC 7143 §11.5); [`InitiatorEvent::TaskManagementDone`] answers.
    // RFC 7143 [11.5.2-1, 11.5.4-1]
    pub fn manage_task(
        &mut self,
        token: u64,
        function: TaskManagementCode,
        lun: [u8; 8],
        referenced: Option<u64>,
    ) {
        let tag = self.control.tag();
        let mut pdu = TaskManagementRequest::new();
        pdu.opcode.set_immediate(true);
        pdu.set_function(function);
        pdu.lun = u64::from_be_bytes(lun).into();
        pdu.initiator_task_tag = tag.into();
        pdu.cmd_sn = self.cmd_sn.0.into();
        pdu.exp_stat_sn = self.status_numbers.next().into();
        let task = referenced
            .and_then(|token| self.tasks.iter().flatten().find(|task| task.submission.token == token));
        let aborts = task.map(|task| task.initiator_task_tag);
        // RFC 7143 [11.5.1-6, 11.5.5-1]
        if let Some(task) = task {
            pdu.referenced_task_tag = task.initiator_task_tag.into();
            pdu.ref_cmd_sn = task.cmd_sn.0.into();
        }
        self.control.management.push(Management { initiator_task_tag: tag, token, aborts });
        self.transmitter.push(&pdu::to_bytes(&pdu), &[], Default::default());
    }

    pub(super) fn task_management_response(&mut self, head: &Head) {
        let pdu: &TaskManagementResponse = pdu::view(&head.bhs);
        self.note_window(pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if !self.note_status(pdu.stat_sn.get()) {
            return;
        }
        self.management_done(pdu.initiator_task_tag.get(), pdu.response);
    }

    fn management_done(&mut self, tag: u32, response: TaskManagementResult) {
        let management = &mut self.control.management;
        let Some(at) = management.iter().position(|request| request.initiator_task_tag == tag) else {
            return;
        };
        let request = management.swap_remove(at);
        let unanswered = request.aborts.and_then(|tag| self.slot_of(tag));
        self.events.push_back(InitiatorEvent::TaskManagementDone { token: request.token, response });
        match unanswered {
            // RFC 7143 [4.2.3.3-4]
            Some(slot) if response == TaskManagementResult::COMPLETE => {
                self.forget(slot);
            }
            // In order, its answer would have come before this one.
            Some(_) if response == TaskManagementResult::TASK_DOES_NOT_EXIST => {
                let why = "the answer to a command: the target does not know the command any more".to_owned();
                self.close(CloseReason::Missing(why));
            }
            _ => {}
        }
    }

    pub(super) fn async_message(&mut self, head: &Head, data: &[u8]) {
        let pdu: &AsyncMessage = pdu::view(&head.bhs);
        self.note_window(pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if !self.note_status(pdu.stat_sn.get()) {
            return;
        }
        // RFC 7143 [11.10-1]
        if pdu.event == AsyncEvent::NEGOTIATION_REQUEST && self.control.text_tag.is_none() {
            // RFC 7143 [11.9.1-4]
            // RFC 7143 [6.2-3]
            // §11.9.1: an empty request will do; there is nothing that we would want to change.
            let tag = self.control.tag();
            self.send_text(tag, RESERVED_TAG, 0, &[]);
            self.note_answer();
            if matches!(self.phase, Phase::Closing) {
                return;
            }
        }
        self.events.push_back(InitiatorEvent::AsyncMessage(AsyncMessageInfo {
            event: pdu.event,
            parameters: [pdu.parameter1.get(), pdu.parameter2.get(), pdu.parameter3.get()],
            lun: pdu.lun.to_bytes(),
            sense: sense_of(data),
        }));
    }

    /// A rejected command leaves a gap that all later ones would wait behind (RFC 7143 §7.3), unless the target counts
    /// it as received: a ping takes its place.
    // RFC 7143 [7.3-3]
    fn plug(&mut self, sent: &ScsiCommand, exp_cmd_sn: u32) {
        let is_gap = Serial(exp_cmd_sn) <= Serial(sent.cmd_sn.get());
        if is_gap && !sent.opcode.is_immediate() {
            // The answer to a ping that is under way knows of the gap and not of its plug.
            if let Some(ping) = &mut self.control.ping
                && Serial(sent.cmd_sn.get()) < ping.next_cmd_sn
            {
                ping.next_cmd_sn = Serial(sent.cmd_sn.get());
            }
            let mut pdu = NopOut::new();
            pdu.initiator_task_tag = self.control.tag().into();
            pdu.cmd_sn = sent.cmd_sn;
            pdu.exp_stat_sn = self.status_numbers.next().into();
            self.transmitter.push(&pdu::to_bytes(&pdu), &[], Default::default());
            self.note_answer();
        }
    }

    /// RFC 7143 §11.17: the data is the header that the target could not act upon.
    pub(super) fn rejected(&mut self, head: &Head, data: &[u8]) {
        let pdu: &Reject = pdu::view(&head.bhs);
        if !self.note_status(pdu.stat_sn.get()) {
            return;
        }
        let Some(sent_header) = data.first_chunk::<{ pdu::HEADER_LEN }>() else {
            return self.close(CloseReason::Protocol(format!("rejected without a header: {}", pdu.reason)));
        };
        let sent = BasicHeader::of(sent_header);
        let tag = sent.initiator_task_tag.get();
        match sent.opcode.opcode() {
            Opcode::SCSI_COMMAND => {
                self.plug(pdu::view(sent_header), pdu.exp_cmd_sn.get());
                if matches!(self.phase, Phase::Closing) {
                    return;
                }
                if let Some(task) = self.slot_of(tag).and_then(|slot| self.forget(slot)) {
                    let (token, data_in) = (task.submission.token, task.submission.data_in);
                    self.events.push_back(InitiatorEvent::Rejected { token, reason: pdu.reason, data_in });
                }
            }
            Opcode::TASK_MANAGEMENT_REQUEST => self.management_done(tag, TaskManagementResult::REJECTED),
            // The command's own response follows (§7.8).
            Opcode::DATA_OUT => {}
            // A target that does not like our pings is alive nevertheless.
            Opcode::NOP_OUT => {}
            // RFC 7143 [11.17.1-2]
            opcode => self.close(CloseReason::Protocol(format!("{opcode} rejected: {}", pdu.reason))),
        }
    }
}

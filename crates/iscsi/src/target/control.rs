//! Everything that is not a SCSI command: login, NOP, text, logout, task management, asynchronous messages, Reject.

use std::time::{Duration, Instant};

use lunway_block::Buf;

use super::session::{Numbering, SharedSession};
use super::{Before, Phase, TargetConnection, TargetEvent};
use crate::connection::{CloseReason, SendTargets, TargetRecord};
use crate::keys::{Key, ResultFunction, ValueType};
use crate::login::{LoggedIn, LoginGrant, LoginRefusal, LoginReply, SessionType, TargetStep};
use crate::pdu::{
    self, AsyncEvent, AsyncMessage, BasicHeader, FINAL, LoginRequest, LoginStatus, LogoutReason,
    LogoutRequest, LogoutResponse, LogoutResult, NopIn, NopOut, Opcode, RESERVED_TAG, Reject, RejectReason,
    TaskManagementCode, TaskManagementRequest, TaskManagementResponse, TaskManagementResult, TextRequest,
    TextResponse,
};
use crate::receive::{Data, Head};
use crate::text;
use crate::window::CommandWindow;

/// Names a task management request within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskManagementId {
    initiator_task_tag: u32,
    /// Commands with a higher one came later.
    pub(super) arrival: u64,
    pub(super) cmd_sn: u32,
    pub(super) ref_cmd_sn: u32,
}

impl TaskManagementId {
    /// Its place in the command order: tasks of the session's other connections with a lower one are meant as well.
    pub fn before(self) -> Before {
        Before::Number(self.cmd_sn)
    }
}

/// Names a Logout Request within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogoutId(u32);

/// Names a text request within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TextId(u32);

/// Logouts of other connections at a time that are not answered yet: there are not more connections.
const LOGOUTS_MAX: usize = 16;
/// Task management requests at a time that are not answered yet.
pub(super) const MANAGEMENT_MAX: usize = 32;
/// The tag of our pings. One ping is out at a time.
const PING_TAG: u32 = 1;

/// State that the functions of this file keep between PDUs.
#[derive(Default)]
pub(super) struct Control {
    /// Deadline for the initiator to have logged out, once it has been asked to.
    pub(super) logout_by: Option<Instant>,
    /// Tags of task management requests in the driver's hands.
    management: Vec<u32>,
    /// Tags of logouts in the driver's hands.
    logouts: Vec<u32>,
    /// Text collected from requests with the C bit.
    text_in: text::Assembler,
    /// The tag of the request being answered, and the rest of the answer (RFC 7143 §6.2).
    text_out: Option<TextOut>,
}

struct TextOut {
    initiator_task_tag: u32,
    target_transfer_tag: u32,
    /// `true` if the initiator has nothing more to say: only then the answer may be the last (§11.11.1).
    is_final: bool,
    /// `None` while the driver has not answered yet.
    rest: Option<text::Segments>,
}

impl TargetConnection {
    pub(super) fn login_request(&mut self, head: &Head, data: Option<&Data>) {
        let request: &LoginRequest = pdu::view(&head.bhs);
        let Phase::Login(login) = &mut self.phase else { return };
        if self.stat_sn == 0 {
            // RFC 7143 [11.12.8-1]
            // §11.12.8: the leading request sets the first CmdSN; §11.13.4: StatSN may start anywhere.
            let window = CommandWindow::new(request.cmd_sn.get(), self.config.command_window);
            self.numbering = Numbering::Own(window);
            self.stat_sn = 1;
        }
        let step = login.request(request, data.map_or(&[], |data| &data.buf));
        self.login_step(step);
    }

    /// RFC 7143 §4.2.4: before the first Login Request no initiator is there to be told; after it the login is
    /// rejected.
    // RFC 7143 [4.2.4-3, 4.2.4-4]
    pub(super) fn not_a_login(&mut self, opcode: Opcode) {
        match &mut self.phase {
            Phase::Login(login) if login.has_begun() => {
                let step = login.refuse(LoginStatus::INVALID_DURING_LOGIN);
                self.login_step(step);
            }
            _ => self.close(CloseReason::Protocol(format!("{opcode} before login"))),
        }
    }

    /// Answers [`TargetEvent::Login`]: this one may go on.
    pub fn grant_login(&mut self, grant: LoginGrant) {
        self.answer_login(|login| login.grant(grant));
    }

    /// Answers [`TargetEvent::Login`] of a connection that wants to join a session: this one may go on. The session's
    /// parameters hold, and the user that the leading connection proved must be proven again (RFC 7143 §6.3).
    pub fn join_login(&mut self, grant: LoginGrant, session: &SharedSession) {
        if let Phase::Asking(login) = &self.phase {
            self.numbering = session.join(login.cid());
            self.answer_login(|login| login.join(grant, session.leading()));
        }
    }

    /// Answers [`TargetEvent::Login`] of a connection that takes the place of the only one of a session with
    /// MaxConnections=1 (RFC 7143 §6.3.4): this one may go on. As [`join_login`](Self::join_login); the numbering
    /// begins with the CmdSN of the Login Request, as no other connection can bring an earlier one, or
    /// [goes on](Self::may_go_on_at).
    pub fn reinstate_login(&mut self, grant: LoginGrant, leading: &LoggedIn) {
        self.answer_login(|login| login.join(grant, leading));
    }

    /// Says where the numbers of the session stood when the connection ended whose place this one takes
    /// ([`next_cmd_sn`](Self::next_cmd_sn) of that one): initiators that do not say the next number in their Login
    /// Request go on there.
    pub fn may_go_on_at(&mut self, cmd_sn: u32) {
        self.numbering.may_go_on_at(cmd_sn);
    }

    /// The number of the next request: ExpCmdSN.
    pub fn next_cmd_sn(&self) -> u32 {
        self.numbering.window().0
    }

    /// Answers [`TargetEvent::Login`]: this one may not.
    pub fn refuse_login(&mut self, refusal: impl Into<LoginRefusal>) {
        self.answer_login(|login| login.refuse(refusal));
    }

    fn answer_login(&mut self, answer: impl FnOnce(&mut crate::login::TargetLogin) -> TargetStep) {
        match std::mem::replace(&mut self.phase, Phase::Closing) {
            Phase::Asking(mut login) => {
                let step = answer(&mut login);
                self.phase = Phase::Login(login);
                self.login_step(step);
                self.take_pdus();
            }
            other => self.phase = other,
        }
    }

    /// Answers [`TargetEvent::Proof`]: the initiator's response is checked now.
    pub fn check_proof(&mut self) {
        self.answer_login(crate::login::TargetLogin::check_proof);
    }

    /// The login goes on when the driver has answered this.
    fn await_driver(&mut self, event: TargetEvent) {
        if let Phase::Login(login) = std::mem::replace(&mut self.phase, Phase::Closing) {
            self.phase = Phase::Asking(login);
        }
        self.events.push_back(event);
    }

    fn login_step(&mut self, step: TargetStep) {
        match step {
            TargetStep::Ask(ask) => self.await_driver(TargetEvent::Login(ask)),
            TargetStep::Prove(user) => self.await_driver(TargetEvent::Proof { user }),
            TargetStep::Respond(reply) => self.login_reply(reply),
            TargetStep::Finished(reply, logged_in) => {
                self.login_reply(reply);
                let negotiated = &logged_in.negotiated;
                let (header_digest, data_digest) = (negotiated.header_digest, negotiated.data_digest);
                self.retention = (negotiated.error_recovery_level > 0).then(Box::default);
                self.transmitter.enter_full_feature_phase(header_digest, data_digest);
                self.receiver.enter_full_feature_phase(
                    negotiated.max_recv_ours as usize,
                    header_digest,
                    data_digest,
                );
                if logged_in.session_type == SessionType::Normal && negotiated.max_connections > 1 {
                    self.numbering.share(&logged_in);
                }
                self.phase = Phase::FullFeature(logged_in.clone());
                self.events.push_back(TargetEvent::LoggedIn(logged_in));
            }
            // RFC 7143 [11.13.5-4]
            TargetStep::Failed(reply) => {
                let status = reply.header.status();
                self.login_reply(reply);
                self.close(CloseReason::LoginRefused(status));
            }
        }
    }

    // RFC 7143 [11.13.1-1, 11.13.2-1]
    fn login_reply(&mut self, reply: LoginReply) {
        let mut pdu = reply.header;
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), Buf::copy_of(&reply.data).freeze());
    }

    /// RFC 7143 §11.18: a ping is echoed, an answer to ours is taken note of.
    // RFC 7143 [11.18.1-2, 11.19-1, 11.19-2]
    pub(super) fn nop_out(&mut self, head: &Head, mut data: Buf) {
        let request: &NopOut = pdu::view(&head.bhs);
        if request.initiator_task_tag.get() == RESERVED_TAG {
            // The answer to our ping, which was a sign of life when it arrived.
            return;
        }
        let Phase::FullFeature(logged_in) = &self.phase else { return };
        let len = data.len().min(logged_in.negotiated.max_recv_peer as usize);
        if len < data.len() {
            // Not all of a long one for a short echo.
            data = Buf::copy_of(&data[..len]);
        }
        let mut pdu = NopIn::new();
        pdu.initiator_task_tag = request.initiator_task_tag;
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), data.freeze());
    }

    /// RFC 7143 §11.19: a ping of our own does not advance StatSN. A discovery session is not pinged (§7.4.3): one that
    /// stays silent for as long as an answer might take is over.
    // RFC 7143 [11.19-3, 11.19.1-1, 11.19.3-1]
    pub(super) fn ping(&mut self) {
        // RFC 7143 [7.4.3-1]
        if !self.is_discovery() {
            self.unsolicited_nop_in(PING_TAG);
        }
    }

    /// Tells the command window by a NOP-In that wants no answer.
    pub(super) fn tell_window(&mut self) {
        self.unsolicited_nop_in(RESERVED_TAG);
    }

    fn unsolicited_nop_in(&mut self, target_transfer_tag: u32) {
        let mut pdu = NopIn::new();
        pdu.target_transfer_tag = target_transfer_tag.into();
        pdu.stat_sn = self.stat_sn.into();
        let (exp_cmd_sn, max_cmd_sn) = self.numbering.window();
        pdu.exp_cmd_sn = exp_cmd_sn.into();
        pdu.max_cmd_sn = max_cmd_sn.into();
        self.transmitter.push(&pdu::to_bytes(&pdu), &[], Default::default());
    }

    /// RFC 7143 §11.10. Of all keys SendTargets and MaxRecvDataSegmentLength mean something after login.
    // RFC 7143 [6.2-2, 6.2-4]
    pub(super) fn text_request(&mut self, head: &Head, data: &[u8]) {
        let request: &TextRequest = pdu::view(&head.bhs);
        let tag = request.initiator_task_tag.get();
        let transfer_tag = request.target_transfer_tag.get();
        if transfer_tag != RESERVED_TAG {
            // The initiator asks for the rest of an answer, or goes on with a request of several PDUs.
            match &self.control.text_out {
                Some(out) if out.target_transfer_tag == transfer_tag && out.initiator_task_tag == tag => {}
                _ => return self.reject(head, RejectReason::INVALID_PDU_FIELD),
            }
            if let Some(out) = &mut self.control.text_out {
                out.is_final = request.is_final();
                match &out.rest {
                    Some(rest) if rest.continues() || data.is_empty() => return self.text_response(),
                    _ => out.rest = None,
                }
            }
        } else {
            // §11.10.4: a new negotiation; whatever was left of another one is forgotten.
            self.control.text_in = text::Assembler::new();
            let target_transfer_tag = self.transfer_tag(0);
            let is_final = request.is_final();
            self.control.text_out =
                Some(TextOut { initiator_task_tag: tag, target_transfer_tag, is_final, rest: None });
        }
        let whole = match self.control.text_in.push(data, request.continues()) {
            Ok(Some(whole)) => whole,
            // RFC 7143 [6.2-3]
            // An empty answer asks for more.
            Ok(None) => return self.text_pdu(&[], false, false),
            Err(_) => return self.text_broken(head),
        };
        match text::parse(&whole) {
            // RFC 7143 [6.4-6]
            // §6.4: no key twice in a negotiation.
            Ok(pairs)
                if pairs.iter().enumerate().all(|(at, (key, _))| pairs[..at].iter().all(|p| p.0 != *key)) =>
            {
                self.text_pairs(&pairs);
            }
            _ => self.text_broken(head),
        }
    }

    // RFC 7143 [7.12-2]
    fn text_broken(&mut self, head: &Head) {
        self.control.text_out = None;
        self.reject(head, RejectReason::PROTOCOL_ERROR);
    }

    pub(super) fn is_discovery(&self) -> bool {
        self.logged_in().is_some_and(|logged_in| logged_in.session_type == SessionType::Discovery)
    }

    fn text_pairs(&mut self, pairs: &[(&str, &str)]) {
        let discovery = self.is_discovery();
        let mut answer = text::Builder::new();
        let (mut longest, mut targets) = (None, None);
        for (key, value) in pairs {
            if *key != "SendTargets" {
                match Key::find(key).map(|key| (key, key.rule().function)) {
                    // RFC 7143 [6.2-6]
                    None => answer.pair(key, text::answer::NOT_UNDERSTOOD),
                    // RFC 7143 [6.2-10, 6.2-11]
                    // §13.12: the one parameter that may change now. A declaration gets no answer, a wrong one leaves
                    // things as they are.
                    Some((Key::MaxRecvDataSegmentLength, _)) => longest = longest.or(segment_length(value)),
                    Some((_, ResultFunction::Declarative)) => {}
                    Some(_) => answer.pair(key, text::answer::REJECT),
                }
                continue;
            }
            // RFC 7143 [C-6, C-7, C-8]
            // Appendix C: All only in discovery sessions, the empty value only in normal ones.
            let which = match *value {
                "All" if discovery => SendTargets::All,
                "" if !discovery => SendTargets::This,
                "" | "All" => {
                    answer.pair(key, text::answer::REJECT);
                    continue;
                }
                name => SendTargets::Named(name.into()),
            };
            targets = Some(which);
        }
        if let (Some(longest), Phase::FullFeature(logged_in)) = (longest, &mut self.phase) {
            logged_in.negotiated.max_recv_peer = longest;
        }
        match (targets, &self.control.text_out) {
            (Some(which), Some(out)) => {
                let request = TextId(out.target_transfer_tag);
                self.events.push_back(TargetEvent::SendTargets { request, which });
            }
            _ => self.set_text_answer(answer),
        }
    }

    /// Answers [`TargetEvent::SendTargets`].
    pub fn respond_targets(&mut self, request: TextId, targets: &[TargetRecord]) {
        if self.control.text_out.as_ref().is_none_or(|out| out.target_transfer_tag != request.0) {
            return;
        }
        let mut answer = text::Builder::new();
        for target in targets {
            answer.pair("TargetName", &target.name);
            for (address, group) in &target.addresses {
                // RFC 7143 [13.8-2]
                answer.pair("TargetAddress", format_args!("{address},{group}"));
            }
        }
        self.set_text_answer(answer);
    }

    // RFC 7143 [11.11.6-1]
    // RFC 7143 [C-4]
    fn set_text_answer(&mut self, answer: text::Builder) {
        let Phase::FullFeature(logged_in) = &self.phase else { return };
        let segment_max = logged_in.negotiated.max_recv_peer as usize;
        if let Some(out) = &mut self.control.text_out {
            out.rest = Some(text::Segments::new(answer, segment_max));
        }
        self.text_response();
    }

    /// Sends as much of the answer as fits into a PDU.
    // RFC 7143 [6.4-3, 6.4-4, 6.4-5, 11.10.4-1, 11.11.1-1, 11.11.1-2, 11.11.1-3]
    fn text_response(&mut self) {
        let Some(out) = &mut self.control.text_out else { return };
        let Some(rest) = &mut out.rest else { return };
        let segment = rest.take();
        let more = rest.continues();
        let is_final = out.is_final && !more;
        self.text_pdu(&segment, more, is_final);
        if is_final {
            self.control.text_out = None;
        }
    }

    // RFC 7143 [11.11.2-1, 11.10.4-3]
    fn text_pdu(&mut self, segment: &[u8], continues: bool, is_final: bool) {
        let Some(out) = &self.control.text_out else { return };
        let mut pdu = TextResponse::new();
        pdu.initiator_task_tag = out.initiator_task_tag.into();
        if !is_final {
            pdu.target_transfer_tag = out.target_transfer_tag.into();
        }
        pdu.flags = if is_final { FINAL } else { 0 } | if continues { TextResponse::CONTINUE } else { 0 };
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), Buf::copy_of(segment).freeze());
    }

    /// RFC 7143 §11.14. Closing the last connection closes the session.
    // RFC 7143 [11.14-2]
    pub(super) fn logout_request(&mut self, head: &Head) {
        let request: &LogoutRequest = pdu::view(&head.bhs);
        let Phase::FullFeature(logged_in) = &self.phase else { return };
        let (cid, tag) = (request.cid.get(), request.initiator_task_tag.get());
        let (result, closes) = match request.reason() {
            // §4.3.
            reason if self.is_discovery() && reason != LogoutReason::CLOSE_SESSION => {
                return self.reject(head, RejectReason::PROTOCOL_ERROR);
            }
            LogoutReason::CLOSE_SESSION => (LogoutResult::CLOSED, Some(CloseReason::LoggedOut)),
            LogoutReason::CLOSE_CONNECTION if cid == logged_in.cid => {
                (LogoutResult::CLOSED, Some(CloseReason::ConnectionLoggedOut))
            }
            LogoutReason::CLOSE_CONNECTION if self.numbering.session().is_some() => {
                if self.control.logouts.len() == LOGOUTS_MAX || self.control.logouts.contains(&tag) {
                    return self.reject(head, RejectReason::TASK_IN_PROGRESS);
                }
                self.control.logouts.push(tag);
                let request = LogoutId(tag);
                return self.events.push_back(TargetEvent::CloseConnection { request, cid });
            }
            LogoutReason::CLOSE_CONNECTION => (LogoutResult::CID_NOT_FOUND, None),
            // §11.15.1: moving tasks to another connection needs error recovery level 2.
            LogoutReason::RECOVERY => (LogoutResult::RECOVERY_NOT_SUPPORTED, None),
            _ => return self.reject(head, RejectReason::INVALID_PDU_FIELD),
        };
        self.logout_response(tag, result);
        if let Some(reason) = closes {
            self.close(reason);
        }
    }

    /// Answers [`TargetEvent::CloseConnection`], after the connection has ended.
    pub fn respond_logout(&mut self, request: LogoutId, result: LogoutResult) {
        let Some(at) = self.control.logouts.iter().position(|&tag| tag == request.0) else { return };
        self.control.logouts.swap_remove(at);
        self.logout_response(request.0, result);
    }

    // RFC 7143 [11.15.2-1]
    fn logout_response(&mut self, initiator_task_tag: u32, result: LogoutResult) {
        let Phase::FullFeature(logged_in) = &self.phase else { return };
        let mut pdu = LogoutResponse::new();
        pdu.response = result;
        pdu.initiator_task_tag = initiator_task_tag.into();
        pdu.time2wait = logged_in.negotiated.default_time2wait.into();
        pdu.time2retain = logged_in.negotiated.default_time2retain.into();
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), Default::default());
    }

    pub(super) fn task_management(&mut self, head: &Head) {
        let request: &TaskManagementRequest = pdu::view(&head.bhs);
        if self.control.management.len() == MANAGEMENT_MAX {
            return self.reject(head, RejectReason::IMMEDIATE_COMMAND_REJECT);
        }
        let tag = request.initiator_task_tag.get();
        if self.control.management.contains(&tag) {
            return self.reject(head, RejectReason::TASK_IN_PROGRESS);
        }
        self.control.management.push(tag);
        let id = TaskManagementId {
            initiator_task_tag: tag,
            arrival: self.next_arrival(),
            cmd_sn: request.cmd_sn.get(),
            ref_cmd_sn: request.ref_cmd_sn.get(),
        };
        match request.function() {
            // RFC 7143 [11.5.1-8]
            TaskManagementCode::ABORT_TASK
                if self.control.management.contains(&request.referenced_task_tag.get()) =>
            {
                self.respond_task_management(id, TaskManagementResult::REJECTED);
            }
            // RFC 7143 [7.2.2-3]
            // §11.5.1: needs error recovery level 2.
            TaskManagementCode::TASK_REASSIGN => {
                self.respond_task_management(id, TaskManagementResult::REASSIGNMENT_NOT_SUPPORTED);
            }
            function => self.events.push_back(TargetEvent::TaskManagement {
                request: id,
                function,
                lun: request.lun.to_bytes(),
                referenced_task_tag: request.referenced_task_tag.get(),
            }),
        }
    }

    /// Answers [`TargetEvent::TaskManagement`], after the effects of the function are complete (RFC 7143 §11.6).
    // RFC 7143 [11.5.1-1, 11.6.2-1, 4.2.3.3-9]
    pub fn respond_task_management(&mut self, request: TaskManagementId, result: TaskManagementResult) {
        let Some(at) = self.control.management.iter().position(|&tag| tag == request.initiator_task_tag)
        else {
            return;
        };
        self.control.management.swap_remove(at);
        if !matches!(self.phase, Phase::FullFeature(_)) {
            return;
        }
        let mut pdu = TaskManagementResponse::new();
        pdu.response = result;
        pdu.initiator_task_tag = request.initiator_task_tag.into();
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), Default::default());
    }

    /// Asks the initiator to log out (RFC 7143 §11.9.1, event 1); after `within` the connection ends anyway.
    // RFC 7143 [11.9.1-1, 4.2.6-2]
    pub fn request_logout(&mut self, within: Duration, now: Instant) {
        if !matches!(self.phase, Phase::FullFeature(_)) {
            return self.close(CloseReason::LogoutTimeout);
        }
        self.control.logout_by = Some(now + within);
        let mut pdu = AsyncMessage::new();
        pdu.event = AsyncEvent::LOGOUT_REQUEST;
        pdu.parameter3 = (within.as_secs().clamp(1, u64::from(u16::MAX)) as u16).into();
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), Default::default());
    }

    /// Tells the initiator that the target is about to close all connections of the session (RFC 7143 §11.9.1, event
    /// 3), and when it may come back.
    // RFC 7143 [7.1.4.3-4, 4.2.6-2]
    pub fn announce_drop(&mut self) {
        let Phase::FullFeature(logged_in) = &self.phase else { return };
        let mut pdu = AsyncMessage::new();
        pdu.event = AsyncEvent::SESSION_DROP;
        pdu.parameter2 = logged_in.negotiated.default_time2wait.into();
        pdu.parameter3 = logged_in.negotiated.default_time2retain.into();
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), Default::default());
    }

    /// RFC 7143 §11.17: answers a PDU that cannot be acted upon by sending its header back.
    // RFC 7143 [7.3-1]
    pub(super) fn reject(&mut self, head: &Head, reason: RejectReason) {
        let mut pdu = Reject::new();
        pdu.reason = reason;
        number_status!(self, pdu);
        self.send_answer(&pdu::to_bytes(&pdu), Buf::copy_of(&head.bhs).freeze());
    }

    /// A PDU whose data is broken and has no place in a task (RFC 7143 §7.8). It counts as not received. At error
    /// recovery level 0 the initiator does not send it again, so that its place in the numbering stays empty for ever
    /// and the session cannot go on.
    // RFC 7143 [7.8-2]
    pub(super) fn data_digest_error(&mut self, head: &Head) {
        self.reject(head, RejectReason::DATA_DIGEST_ERROR);
        let opcode = BasicHeader::of(&head.bhs).opcode;
        let numbered = !opcode.is_immediate() && opcode.opcode() != Opcode::DATA_OUT;
        if numbered && self.retention.is_none() {
            self.close(CloseReason::Protocol("a data digest does not match".into()));
        }
    }
}

/// Returns `true` if this is a task management function that is about all tasks sent before it, which thus waits for
/// those that have not come yet (RFC 7143 §4.2.3.2): once it is answered, none of them may still change the disk.
pub(super) fn is_about_many_tasks(head: &Head) -> bool {
    let request: &TaskManagementRequest = pdu::view(&head.bhs);
    request.opcode.opcode() == Opcode::TASK_MANAGEMENT_REQUEST
        && matches!(
            request.function(),
            TaskManagementCode::ABORT_TASK_SET
                | TaskManagementCode::CLEAR_TASK_SET
                | TaskManagementCode::LOGICAL_UNIT_RESET
                | TaskManagementCode::TARGET_WARM_RESET
                | TaskManagementCode::TARGET_COLD_RESET
        )
}

/// A MaxRecvDataSegmentLength within its range.
fn segment_length(value: &str) -> Option<u32> {
    let ValueType::Number { min, max, .. } = Key::MaxRecvDataSegmentLength.rule().value else { return None };
    u32::try_from(text::number(value).ok()?).ok().filter(|length| (min..=max).contains(length))
}

//! A peer that says anything in any order after a proper login, to either role.
//!
//! The input is read as a list of actions, so that a fuzzer gets past the numbering and the tags and breaks what comes
//! behind: most PDUs it makes carry the CmdSN, the tags and the offsets that the other side expects now.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use lunway_block::{Buf, SharedBuf};
use lunway_iscsi::initiator::{InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent, Submission};
use lunway_iscsi::login::{InitiatorLoginConfig, LoginGrant};
use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::{LogoutResult, Opcode, TaskAttribute, TaskManagementCode, TaskManagementResult};
use lunway_iscsi::target::{
    Aborted, Before, Command, Completion, TargetConnection, TargetConnectionConfig, TargetEvent,
};
use lunway_iscsi::{Cdb, SendTargets, TargetRecord};

const WINDOW: u16 = 4;
/// More than this queued for sending means that a peer can make us queue without bound.
const UNSENT_MAX: usize = 8 << 20;

struct Actions<'a>(&'a [u8]);

impl Actions<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Runs one conversation. Panics if something is wrong with the cores, never because of the input.
pub(crate) fn run(input: &[u8]) {
    let mut actions = Actions(input);
    let shape = actions.byte();
    let parameters = Parameters {
        header_digest: DigestPolicy::Never,
        data_digest: if shape & 1 != 0 { DigestPolicy::Require } else { DigestPolicy::Never },
        initial_r2t: shape & 2 != 0,
        immediate_data: shape & 4 != 0,
        first_burst_length: 1024,
        max_burst_length: 2048,
        max_recv_data_segment_length: 1024,
        error_recovery_level: shape >> 5 & 1,
        max_connections: 1 + u16::from(shape >> 6 & 1),
        ..Parameters::default()
    };
    let now = Instant::now();
    let config = TargetConnectionConfig {
        parameters: parameters.clone(),
        command_window: WINDOW,
        data_out_max: 8192,
        data_out_budget: 4096,
        ..TargetConnectionConfig::default()
    };
    let login = InitiatorLoginConfig {
        initiator_name: "iqn.2026-11.test:initiator".into(),
        initiator_alias: None,
        target_name: (shape & 8 == 0).then(|| "iqn.2026-11.test:target".into()),
        isid: [0x80, 0, 0, 0, 0, 0],
        tsih: 0,
        cid: 0,
        parameters,
        chap: None,
    };
    let seconds = Duration::from_secs(5);
    let config_initiator = InitiatorConnectionConfig {
        login,
        login_timeout: seconds,
        nop_interval: seconds,
        nop_timeout: seconds,
    };
    let mut target = TargetConnection::new(config, now);
    let mut initiator = InitiatorConnection::new(config_initiator, now);
    for _ in 0..16 {
        let bytes = sent_by(&mut initiator);
        receive(&mut target, &bytes);
        while let Some(event) = target.poll_event() {
            if let TargetEvent::Login(_) = event {
                target.grant_login(LoginGrant {
                    tsih: 1,
                    target_portal_group_tag: 1,
                    target_alias: None,
                    auth: None,
                    refusal: None,
                });
            }
        }
        let bytes = sent_by(&mut target);
        receive(&mut initiator, &bytes);
    }
    while initiator.poll_event().is_some() {}
    assert!(target.logged_in().is_some() && initiator.logged_in().is_some(), "a proper login succeeds");
    if shape & 16 == 0 {
        against_target(target, actions, now);
    } else {
        against_initiator(initiator, actions, now);
    }
}

/// What both roles have.
trait End {
    fn space(&mut self) -> [IoSliceMut<'_>; 2];
    fn received(&mut self, bytes: usize);
    fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>);
    fn sent(&mut self, bytes: usize);
}

impl End for TargetConnection {
    fn space(&mut self) -> [IoSliceMut<'_>; 2] {
        self.receive_space()
    }
    fn received(&mut self, bytes: usize) {
        TargetConnection::received(self, bytes);
    }
    fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>) {
        TargetConnection::gather(self, slices, usize::MAX);
    }
    fn sent(&mut self, bytes: usize) {
        TargetConnection::sent(self, bytes);
    }
}

impl End for InitiatorConnection {
    fn space(&mut self) -> [IoSliceMut<'_>; 2] {
        self.receive_space()
    }
    fn received(&mut self, bytes: usize) {
        InitiatorConnection::received(self, bytes);
    }
    fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>) {
        InitiatorConnection::gather(self, slices, usize::MAX);
    }
    fn sent(&mut self, bytes: usize) {
        InitiatorConnection::sent(self, bytes);
    }
}

fn sent_by(end: &mut impl End) -> Vec<u8> {
    let mut slices = Vec::new();
    end.gather(&mut slices);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
    end.sent(bytes.len());
    bytes
}

fn receive(end: &mut impl End, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut moved = 0;
        for mut slice in end.space() {
            let n = slice.len().min(bytes.len());
            slice[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            moved += n;
        }
        assert!(moved > 0, "there is always space");
        end.received(moved);
    }
}

/// A PDU of the fuzzer's: `fields` are 32-bit words put at 4-byte positions of the header.
fn pdu(opcode: u8, flags: u8, fields: &[(usize, u32)], data_len: usize, digest: bool) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[0] = opcode;
    bytes[1] = flags;
    bytes[5..8].copy_from_slice(&(data_len as u32).to_be_bytes()[1..]);
    for &(at, value) in fields {
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    let data = vec![opcode; data_len.next_multiple_of(4)];
    bytes.extend_from_slice(&data);
    if digest && data_len > 0 {
        bytes.extend_from_slice(&lunway_iscsi::digest::digest(&data));
    }
    bytes
}

fn against_target(mut target: TargetConnection, mut actions: Actions<'_>, mut now: Instant) {
    let digest = target.logged_in().is_some_and(|logged_in| logged_in.negotiated.data_digest);
    let mut held: Vec<Command> = Vec::new();
    let mut cmd_sn = 1u32;
    // Tag, transfer tag, offset and length of the latest R2T.
    let mut r2t = [0u32; 4];
    let mut data_sn = 0;
    while !actions.is_empty() {
        let action = actions.byte();
        let choice = actions.byte();
        let small = u32::from(choice);
        match action % 12 {
            0 => {
                let raw: Vec<u8> = (0..choice).map(|_| actions.byte()).collect();
                receive(&mut target, &raw);
            }
            // Commands: mostly numbered properly, tags from a small set.
            1..=3 => {
                let immediate = if choice & 1 != 0 { 0x40 } else { 0 };
                let number = if choice & 2 != 0 { cmd_sn.wrapping_add(actions.word() % 8) } else { cmd_sn };
                let data_len = usize::from(actions.byte()) * 5;
                let fields = [(16, small >> 2), (20, actions.word() % 20_000), (24, number)];
                receive(&mut target, &pdu(0x01 | immediate, actions.byte(), &fields, data_len, digest));
                if choice & 3 == 0 {
                    cmd_sn = cmd_sn.wrapping_add(1);
                }
            }
            // Data-Out as the latest R2T asked, or nearly.
            4..=6 => {
                let [tag, transfer_tag, offset, len] = r2t;
                let piece = len.min(1 + small * 4);
                let offset = if choice & 1 == 0 { offset } else { offset.wrapping_add(actions.word() % 3) };
                let transfer_tag = if choice & 6 == 6 { u32::MAX } else { transfer_tag };
                let flags = if piece == len { 0x80 } else { 0 };
                let fields = [(16, tag), (20, transfer_tag), (36, data_sn), (40, offset)];
                let mut bytes = pdu(0x05, flags, &fields, piece as usize, digest);
                if choice & 0x78 == 0x78
                    && let Some(last) = bytes.last_mut()
                {
                    // A wrong digest, where there is one.
                    *last ^= 1;
                }
                receive(&mut target, &bytes);
                data_sn = data_sn.wrapping_add(1);
                r2t[2] = r2t[2].wrapping_add(piece);
                r2t[3] -= piece;
            }
            7 => {
                let opcode = [0x00, 0x02, 0x04, 0x06, 0x10, 0x03, 0x1f, 0x3f][usize::from(choice % 8)];
                let fields = [
                    (16, actions.word() % 8),
                    (20, u32::from(actions.byte()).wrapping_sub(1)),
                    (24, cmd_sn),
                    (32, small),
                ];
                let data_len = usize::from(actions.byte());
                receive(&mut target, &pdu(opcode | choice & 0x40, actions.byte(), &fields, data_len, digest));
                if choice & 0x40 == 0 && matches!(opcode, 0x00 | 0x02 | 0x04 | 0x06) {
                    cmd_sn = cmd_sn.wrapping_add(1);
                }
            }
            8 | 9 => {
                if !held.is_empty() {
                    let command = held.swap_remove(usize::from(choice) % held.len());
                    assert!(command.data_out.len() <= 8192);
                    let completion = Completion {
                        status: actions.byte() & 2,
                        sense: vec![0x70; usize::from(actions.byte())],
                        data_in: Buf::zeroed(usize::from(actions.byte()) * 16).freeze(),
                        lent: None,
                        wanted_in: u64::from(actions.word()),
                        wanted_out: u64::from(actions.word()),
                    };
                    target.complete(command.task, completion);
                }
            }
            10 => drop(target.abort_tasks((choice & 1 == 0).then_some([0; 8]), Before::Everything)),
            _ => {
                now += Duration::from_secs(u64::from(choice % 16));
                target.handle_timeout(now);
                if choice == 255 {
                    target.request_logout(Duration::from_secs(3), now);
                }
            }
        }
        while let Some(event) = target.poll_event() {
            match event {
                TargetEvent::Command(command) => held.push(command),
                TargetEvent::TaskManagement { request, referenced_task_tag, .. } => {
                    if target.abort_task(referenced_task_tag) == Aborted::NotFound {
                        target.plug(request);
                    }
                    target.respond_task_management(request, TaskManagementResult::COMPLETE);
                }
                TargetEvent::CloseConnection { request, .. } => {
                    target.respond_logout(request, LogoutResult::CID_NOT_FOUND);
                }
                TargetEvent::SendTargets { request, .. } => {
                    let record = |n| TargetRecord {
                        name: format!("iqn.2026-11.test:{n}"),
                        addresses: vec![("192.0.2.1:3260".into(), n)],
                    };
                    target.respond_targets(request, &(0..40).map(record).collect::<Vec<_>>());
                }
                TargetEvent::Closing(_) => {
                    assert!(target.poll_event().is_none(), "closing is the last event");
                    return;
                }
                other => panic!("{other:?} after login"),
            }
        }
        assert!(target.commands_in_flight() <= usize::from(WINDOW) + 32, "more commands than granted");
        assert!(target.unsent() < UNSENT_MAX);
        let bytes = sent_by(&mut target);
        let mut rest = &bytes[..];
        while let Some(header) = rest.first_chunk::<48>() {
            let word =
                |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            if header[0] == 0x31 {
                r2t = [word(16), word(20), word(40), word(44)];
                data_sn = 0;
            }
            let len = (word(4) & 0xff_ffff) as usize;
            let digest = if digest && len > 0 { 4 } else { 0 };
            rest = &rest[48 + len.next_multiple_of(4) + digest..];
        }
        assert!(rest.is_empty(), "what is sent is whole PDUs");
    }
}

fn against_initiator(mut initiator: InitiatorConnection, mut actions: Actions<'_>, mut now: Instant) {
    let digest = initiator.logged_in().is_some_and(|logged_in| logged_in.negotiated.data_digest);
    let mut token = 0;
    // Tags of commands that were sent and may still be unanswered.
    let mut tags: Vec<u32> = vec![u32::MAX];
    let mut stat_sn = 100u32;
    let mut progress = [0u32; 2];
    while !actions.is_empty() {
        let action = actions.byte();
        let choice = actions.byte();
        let tag = tags[usize::from(choice) % tags.len()];
        let window = [(28, 0u32), (32, actions.word() % 64)];
        match action % 10 {
            0 => {
                let raw: Vec<u8> = (0..choice).map(|_| actions.byte()).collect();
                receive(&mut initiator, &raw);
            }
            1 | 2 => {
                token += 1;
                let len = usize::from(choice) * 32;
                let write = action & 1 != 0;
                let submission = Submission {
                    token,
                    lun: [0; 8],
                    cdb: Cdb::new(&[0x2a; 16][..1 + usize::from(choice) % 16]),
                    data_out: if write { Buf::zeroed(len).freeze() } else { SharedBuf::default() },
                    data_in: Buf::for_overwrite(if write { 0 } else { len }),
                    attribute: TaskAttribute::SIMPLE,
                };
                let could = initiator.can_submit();
                assert_eq!(initiator.submit(submission).is_ok(), could);
            }
            3 | 4 => {
                let data_len = usize::from(actions.byte()) * 4;
                let [data_sn, offset] = progress;
                let fields = [(16, tag), (24, stat_sn), window[0], window[1], (36, data_sn), (40, offset)];
                receive(&mut initiator, &pdu(0x25, actions.byte(), &fields, data_len, digest));
                progress = [data_sn + 1, offset + data_len as u32];
            }
            5 => {
                let fields = [
                    (16, tag),
                    (20, 9),
                    (24, stat_sn),
                    window[0],
                    window[1],
                    (40, actions.word() % 8192),
                    (44, 1 + actions.word() % 4096),
                ];
                receive(&mut initiator, &pdu(0x31, 0x80, &fields, 0, digest));
            }
            6 => {
                let data_len = usize::from(actions.byte());
                let fields = [(16, tag), (24, stat_sn), window[0], window[1], (44, actions.word())];
                receive(&mut initiator, &pdu(0x21, actions.byte(), &fields, data_len, digest));
                progress = [0; 2];
            }
            7 => {
                let opcode = [0x20, 0x22, 0x24, 0x26, 0x32, 0x3f, 0x23, 0x2f][usize::from(choice % 8)];
                let data_len = usize::from(actions.byte());
                let fields =
                    [(16, actions.word()), (20, actions.word() % 4), (24, stat_sn), window[0], window[1]];
                receive(&mut initiator, &pdu(opcode, actions.byte(), &fields, data_len, digest));
            }
            8 => match choice % 4 {
                0 => initiator.send_targets(&SendTargets::All),
                1 => initiator.manage_task(1000, TaskManagementCode::ABORT_TASK, [0; 8], Some(token)),
                2 => initiator.logout(),
                _ => initiator.manage_task(1001, TaskManagementCode::LOGICAL_UNIT_RESET, [0; 8], None),
            },
            _ => {
                now += Duration::from_secs(u64::from(choice % 8));
                initiator.handle_timeout(now);
            }
        }
        stat_sn = stat_sn.wrapping_add(1);
        while let Some(event) = initiator.poll_event() {
            match event {
                InitiatorEvent::Completed(completed) => {
                    assert!(completed.data_in_len <= completed.data_in.len());
                }
                InitiatorEvent::Closing(_) => {
                    assert!(initiator.poll_event().is_none(), "closing is the last event");
                    drop(initiator.take_unanswered());
                    return;
                }
                _ => {}
            }
        }
        assert!(initiator.unsent() < UNSENT_MAX);
        let bytes = sent_by(&mut initiator);
        if let Some(header) = bytes.first_chunk::<48>()
            && Opcode(header[0] & 0x3f) == Opcode::SCSI_COMMAND
        {
            tags.push(u32::from_be_bytes([header[16], header[17], header[18], header[19]]));
        }
    }
}

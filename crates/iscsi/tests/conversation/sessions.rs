//! Sessions of several connections: what one of them does to the others, PDU by PDU.

use std::time::{Duration, Instant};

use lunway_iscsi::CloseReason;
use lunway_iscsi::initiator::{InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent};
use lunway_iscsi::login::{InitiatorLoginConfig, LoginGrant};
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;
use lunway_iscsi::target::*;

/// The window of the sessions here.
const WINDOW: u16 = 8;

fn parameters() -> Parameters {
    Parameters {
        max_connections: 4,
        max_burst_length: 4096,
        first_burst_length: 2048,
        ..Parameters::default()
    }
}

fn sent_by_target(target: &mut TargetConnection) -> Vec<u8> {
    let mut slices = Vec::new();
    target.gather(&mut slices, usize::MAX);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    target.sent(bytes.len());
    bytes
}

fn receive(target: &mut TargetConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut moved = 0;
        for mut slice in target.receive_space() {
            let n = slice.len().min(bytes.len());
            slice[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            moved += n;
        }
        target.received(moved);
    }
}

/// Logs a connection in, as the leading one or into a session.
fn log_in(cid: u16, session: Option<&SharedSession>) -> TargetConnection {
    let now = Instant::now();
    let login = InitiatorLoginConfig {
        initiator_name: "iqn.2026-11.test:initiator".into(),
        initiator_alias: None,
        target_name: Some("iqn.2026-11.test:target".into()),
        isid: [0x80, 0, 0, 0, 0, 1],
        tsih: if session.is_some() { 7 } else { 0 },
        cid,
        parameters: parameters(),
        chap: None,
    };
    let second = Duration::from_secs(1);
    let config =
        InitiatorConnectionConfig { login, login_timeout: second, nop_interval: second, nop_timeout: second };
    let mut initiator = InitiatorConnection::new(config, now);
    let config = TargetConnectionConfig {
        parameters: parameters(),
        command_window: WINDOW,
        ..TargetConnectionConfig::default()
    };
    let mut target = TargetConnection::new(config, now);
    for _ in 0..8 {
        let mut slices = Vec::new();
        initiator.gather(&mut slices, usize::MAX);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        initiator.sent(bytes.len());
        receive(&mut target, &bytes);
        while let Some(event) = target.poll_event() {
            if let TargetEvent::Login(ask) = event {
                assert_eq!(ask.cid, cid);
                let grant = LoginGrant {
                    tsih: 7,
                    target_portal_group_tag: 1,
                    target_alias: None,
                    auth: None,
                    refusal: None,
                };
                match session {
                    None => target.grant_login(grant),
                    Some(session) => target.join_login(grant, session),
                }
            }
        }
        let bytes = sent_by_target(&mut target);
        let [mut space, _] = initiator.receive_space();
        space[..bytes.len()].copy_from_slice(&bytes);
        initiator.received(bytes.len());
    }
    assert!(matches!(initiator.poll_event(), Some(InitiatorEvent::LoggedIn(_))));
    target
}

/// A session of `count` connections. The first CmdSN is 1.
fn session(count: u16) -> Vec<TargetConnection> {
    let leading = log_in(0, None);
    let shared = leading.session().expect("MaxConnections is 4").clone();
    let others = (1..count).map(|cid| log_in(cid, Some(&shared)));
    std::iter::once(leading).chain(others).collect()
}

fn command(target: &mut TargetConnection, cmd_sn: u32) {
    let mut command = ScsiCommand::new();
    command.flags = 0x80;
    command.initiator_task_tag = cmd_sn.into();
    command.cmd_sn = cmd_sn.into();
    receive(target, &to_bytes(&command));
}

fn manage(target: &mut TargetConnection, function: TaskManagementCode, cmd_sn: u32, ref_cmd_sn: u32) {
    let mut request = TaskManagementRequest::new();
    request.opcode.set_immediate(true);
    request.set_function(function);
    request.cmd_sn = cmd_sn.into();
    request.ref_cmd_sn = ref_cmd_sn.into();
    receive(target, &to_bytes(&request));
}

/// The commands, by tag, and the CIDs to wake among the events.
fn events(target: &mut TargetConnection) -> (Vec<Command>, Vec<u16>) {
    let (mut commands, mut wakes) = (Vec::new(), Vec::new());
    while let Some(event) = target.poll_event() {
        match event {
            TargetEvent::Command(command) => commands.push(command),
            TargetEvent::Wake(cid) => wakes.push(cid),
            other => panic!("{other:?}"),
        }
    }
    (commands, wakes)
}

/// ExpCmdSN and MaxCmdSN of the last PDU sent.
fn window(target: &mut TargetConnection) -> (u32, u32) {
    let bytes = sent_by_target(target);
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let last = bytes.len() - HEADER_LEN;
    (word(last + 28), word(last + 32))
}

#[test]
fn a_joining_connection_takes_over_the_parameters_of_the_session() {
    let connections = session(2);
    let [leading, joined] = &connections[..] else { panic!("two") };
    let negotiated = |target: &TargetConnection| target.logged_in().expect("logged in").negotiated.clone();
    assert_eq!(negotiated(leading), negotiated(joined));
    assert_eq!(negotiated(joined).first_burst_length, 2048);
    assert!(log_in_alone().session().is_none());
}

/// A session whose initiator wants one connection has nothing to share.
fn log_in_alone() -> TargetConnection {
    crate::wire::Setup::default().log_in().target
}

#[test]
fn what_comes_ahead_of_its_predecessors_is_held_until_another_connection_brings_them() {
    let mut connections = session(3);
    let [a, b, c] = &mut connections[..] else { panic!("three") };
    command(b, 2);
    command(b, 4);
    command(c, 3);
    assert!(events(b).0.is_empty() && events(c).0.is_empty());
    command(a, 1);
    let (commands, wakes) = events(a);
    assert_eq!((commands.len(), wakes), (1, vec![1]), "the command first, then the one that waits for it");
    b.resume();
    let (commands, wakes) = events(b);
    assert_eq!((commands.len(), wakes), (1, vec![2]), "4 still waits for 3");
    c.resume();
    let (commands, wakes) = events(c);
    assert_eq!((commands.len(), wakes), (1, vec![1]));
    b.resume();
    assert_eq!(events(b).0.len(), 1);
    command(a, 4);
    assert!(events(a).0.is_empty(), "a number is taken once");
}

#[test]
fn the_window_is_the_sessions_and_a_connection_that_goes_gives_back_what_it_occupied() {
    let mut connections = session(2);
    let mut b = connections.pop().expect("two");
    let mut a = connections.pop().expect("two");
    (1..=4).for_each(|cmd_sn| command(&mut a, cmd_sn));
    (5..=8).for_each(|cmd_sn| command(&mut b, cmd_sn));
    let (mut held, _) = events(&mut a);
    assert_eq!((held.len(), events(&mut b).0.len()), (4, 4));
    command(&mut a, 9);
    assert!(events(&mut a).0.is_empty(), "the window is closed");
    let first = held.remove(0);
    a.complete(first.task, Completion::default());
    assert_eq!(window(&mut a), (9, 9));
    drop(b);
    let second = held.remove(0);
    a.complete(second.task, Completion::default());
    assert_eq!(window(&mut a), (9, 14), "six of eight are free");
}

#[test]
fn a_function_about_many_tasks_waits_for_those_that_were_sent_before_it() {
    for (function, waits) in [
        (TaskManagementCode::ABORT_TASK_SET, true),
        (TaskManagementCode::CLEAR_TASK_SET, true),
        (TaskManagementCode::LOGICAL_UNIT_RESET, true),
        (TaskManagementCode::ABORT_TASK, false),
        // A write that was on its way landed after the reset was answered.
        (TaskManagementCode::TARGET_WARM_RESET, true),
        (TaskManagementCode::TARGET_COLD_RESET, true),
    ] {
        let mut connections = session(2);
        let [a, b] = &mut connections[..] else { panic!("two") };
        manage(b, function, 2, 0);
        assert_eq!(b.poll_event().is_none(), waits, "{function}");
        command(a, 1);
        let (_, wakes) = events(a);
        assert_eq!(wakes, if waits { vec![1] } else { vec![] });
        b.resume();
        assert_eq!(b.poll_event().is_some(), waits);
    }
}

#[test]
fn only_a_number_below_the_functions_own_can_be_plugged() {
    let mut connections = session(2);
    let [a, b] = &mut connections[..] else { panic!("two") };
    command(b, 2);
    for (ref_cmd_sn, cmd_sn, plugged) in [(5, 3, false), (0, 3, false), (1, 3, true), (1, 3, false)] {
        manage(a, TaskManagementCode::ABORT_TASK, cmd_sn, ref_cmd_sn);
        let Some(TargetEvent::TaskManagement { request, .. }) = a.poll_event() else { panic!("a function") };
        assert_eq!(a.plug(request), plugged, "{ref_cmd_sn}");
        a.respond_task_management(request, TaskManagementResult::COMPLETE);
        let wakes = events(a).1;
        assert_eq!(wakes, if plugged { vec![1] } else { vec![] });
    }
    b.resume();
    assert_eq!(events(b).0.len(), 1);
}

#[test]
fn another_connection_can_be_logged_out_and_its_answer_comes_when_it_has_ended() {
    let mut connections = session(2);
    let [a, _] = &mut connections[..] else { panic!("two") };
    let mut request = LogoutRequest::new();
    request.opcode.set_immediate(true);
    request.set_reason(LogoutReason::CLOSE_CONNECTION);
    request.cid = 1.into();
    receive(a, &to_bytes(&request));
    let Some(TargetEvent::CloseConnection { request, cid: 1 }) = a.poll_event() else { panic!("a logout") };
    assert_eq!(a.unsent(), 0);
    a.respond_logout(request, LogoutResult::CLOSED);
    assert_eq!(sent_by_target(a)[0], Opcode::LOGOUT_RESPONSE.0);
    assert!(a.poll_event().is_none(), "this connection goes on");
    let mut request = LogoutRequest::new();
    request.opcode.set_immediate(true);
    request.set_reason(LogoutReason::CLOSE_CONNECTION);
    receive(a, &to_bytes(&request));
    let Some(TargetEvent::Closing(reason)) = a.poll_event() else { panic!("an end") };
    assert_eq!(reason, CloseReason::ConnectionLoggedOut);
}

/// A write of four bytes; its data comes with it or is asked for.
fn write(target: &mut TargetConnection, cmd_sn: u32, attribute: TaskAttribute, with_data: bool) {
    let mut command = ScsiCommand::new();
    command.flags = 0x80 | ScsiCommand::WRITE | attribute.0;
    command.initiator_task_tag = cmd_sn.into();
    command.cmd_sn = cmd_sn.into();
    command.expected_data_transfer_length = 4.into();
    let mut bytes = to_bytes(&command).to_vec();
    if with_data {
        bytes[7] = 4;
        bytes.extend([cmd_sn as u8; 4]);
    }
    receive(target, &bytes);
}

/// Answers the R2T that was sent last.
fn send_data(target: &mut TargetConnection) {
    let bytes = sent_by_target(target);
    let r2t = &bytes[bytes.len() - HEADER_LEN..];
    assert_eq!(r2t[0], Opcode::R2T.0);
    let mut data_out = DataOut::new();
    data_out.flags = 0x80;
    data_out.initiator_task_tag = u32::from_be_bytes(r2t[16..20].try_into().expect("four bytes")).into();
    data_out.target_transfer_tag = u32::from_be_bytes(r2t[20..24].try_into().expect("four bytes")).into();
    let mut bytes = to_bytes(&data_out).to_vec();
    bytes[7] = 4;
    bytes.extend([0; 4]);
    receive(target, &bytes);
}

/// CmdSNs of the commands among the events, and the CIDs to wake.
fn numbers(target: &mut TargetConnection) -> (Vec<u32>, Vec<u16>) {
    let (commands, wakes) = events(target);
    (commands.iter().map(|command| command.cmd_sn).collect(), wakes)
}

const SIMPLE: TaskAttribute = TaskAttribute::SIMPLE;
const ORDERED: TaskAttribute = TaskAttribute::ORDERED;

#[test]
fn an_ordered_command_comes_after_all_older_ones_of_the_session_and_before_all_younger_ones() {
    let mut connections = session(3);
    let [a, b, c] = &mut connections[..] else { panic!("three") };
    write(a, 1, SIMPLE, false);
    write(b, 2, ORDERED, true);
    write(c, 3, SIMPLE, true);
    write(c, 4, TaskAttribute::HEAD_OF_QUEUE, true);
    write(a, 5, SIMPLE, true);
    assert_eq!(numbers(b), (vec![], vec![]), "the older write's data is not here");
    assert_eq!(numbers(c), (vec![4], vec![]), "only HEAD OF QUEUE goes past");
    assert_eq!(numbers(a), (vec![], vec![]), "5 comes after 2, though 1 may go");
    send_data(a);
    let (commands, wakes) = events(a);
    assert_eq!((commands.len(), &wakes[..]), (1, &[][..]), "the driver's thread has not begun it");
    b.resume();
    assert_eq!(numbers(b).0, []);
    a.begun(commands[0].task);
    assert_eq!(numbers(a), (vec![], vec![1, 2]));
    c.resume();
    assert_eq!(numbers(c).0, [], "2 is not with the driver");
    b.resume();
    let (commands, _) = events(b);
    assert_eq!(commands.len(), 1);
    a.resume();
    assert_eq!(numbers(a).0, [], "2 is with its driver, which has not begun it");
    b.complete(commands[0].task, Completion::default());
    assert_eq!(numbers(b).1, [0, 2]);
    a.resume();
    c.resume();
    assert_eq!((numbers(a).0, numbers(c).0), (vec![5], vec![3]));
}

#[test]
fn an_ordered_write_holds_up_the_younger_commands_of_other_connections_until_its_data_is_here() {
    let mut connections = session(2);
    let [a, b] = &mut connections[..] else { panic!("two") };
    write(a, 1, ORDERED, false);
    write(b, 2, SIMPLE, true);
    assert_eq!(numbers(b).0, []);
    send_data(a);
    let (commands, _) = events(a);
    a.begun(commands[0].task);
    assert_eq!(numbers(a).1, [1]);
    b.resume();
    assert_eq!(numbers(b).0, [2]);
}

#[test]
fn an_ordered_command_goes_on_when_the_older_one_on_another_connection_is_gone() {
    for ends in ["aborted", "its connection ends"] {
        let mut connections = session(2);
        let [a, b] = &mut connections[..] else { panic!("two") };
        write(a, 1, SIMPLE, false);
        write(b, 2, ORDERED, true);
        assert_eq!(numbers(b).0, []);
        let wakes = if ends == "aborted" {
            assert_eq!(a.abort_task(1), Aborted::Dropped);
            numbers(a).1
        } else {
            a.abandon()
        };
        assert_eq!(wakes, [1], "{ends}");
        b.resume();
        assert_eq!(numbers(b).0, [2], "{ends}");
    }
}

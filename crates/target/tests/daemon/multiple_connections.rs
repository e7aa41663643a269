//! Sessions with several connections (MC/S), and what becomes of the others when one ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use lunway_iscsi::CloseReason;
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;

use crate::support::*;

/// A login of connection `cid`; with `tsih` 0 the first one.
fn connection(tsih: u16, cid: u16) -> InitiatorLoginConfig {
    let parameters = Parameters { max_connections: 8, ..Parameters::default() };
    InitiatorLoginConfig { tsih, cid, parameters, ..login(7) }
}

/// An initiator that numbers its commands over all its connections. It speaks in PDUs, as it has to send them in every
/// order.
struct Many {
    streams: Vec<TcpStream>,
    tsih: u16,
    cmd_sn: u32,
}

/// Several connections are off unless somebody wants them.
const SEVERAL: &str = "[limits]\nconnections_per_session = 4\nsession_memory_mib = 128";

/// A PDU from the target.
struct Answer {
    header: [u8; HEADER_LEN],
    data: Vec<u8>,
}

impl Answer {
    fn opcode(&self) -> Opcode {
        Opcode(self.header[0] & 0x3f)
    }

    fn tag(&self) -> u32 {
        u32::from_be_bytes(self.header[16..20].try_into().unwrap())
    }
}

impl Many {
    /// A session of this many connections, whose logical units are ready.
    fn log_in(daemon: &Daemon, connections: u16) -> Self {
        let mut leading = Client::log_in(daemon.address, connection(0, 0)).unwrap();
        leading.flush();
        let logged_in = leading.core.logged_in().unwrap();
        assert_eq!(logged_in.negotiated.max_connections, 4);
        let (tsih, stream) = (logged_in.tsih, leading.stream);
        let mut session = Self { streams: vec![stream], tsih, cmd_sn: 1 };
        (1..connections).for_each(|cid| session.join(daemon, cid));
        for lun in [0, 1] {
            assert!((0..4).any(|_| session.execute(0, command(lun, 99, 0, 0), &[]).header[3] == 0));
        }
        session
    }

    fn join(&mut self, daemon: &Daemon, cid: u16) {
        let client = Client::log_in(daemon.address, connection(self.tsih, cid)).unwrap();
        self.streams.push(client.stream);
    }

    /// The next CmdSN.
    fn number(&mut self) -> u32 {
        self.cmd_sn += 1;
        self.cmd_sn - 1
    }

    fn send<T: Pdu>(&mut self, connection: usize, pdu: &T, data: &[u8]) {
        let mut bytes = to_bytes(pdu).to_vec();
        bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.streams[connection].write_all(&bytes).unwrap();
    }

    /// The next PDU on a connection; `None` at its end.
    fn receive(&mut self, connection: usize) -> Option<Answer> {
        let mut header = [0; HEADER_LEN];
        self.streams[connection].read_exact(&mut header).ok()?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        self.streams[connection].read_exact(&mut data).ok()?;
        data.truncate(len);
        Some(Answer { header, data })
    }

    fn execute(&mut self, connection: usize, mut command: ScsiCommand, data: &[u8]) -> Answer {
        command.cmd_sn = self.number().into();
        self.send(connection, &command, data);
        self.receive(connection).expect("an answer")
    }

    fn manage(
        &mut self,
        connection: usize,
        function: TaskManagementCode,
        tag: u32,
        ref_cmd_sn: u32,
    ) -> TaskManagementResult {
        self.begin_to_manage(connection, function, tag, ref_cmd_sn);
        self.managed(connection)
    }

    fn begin_to_manage(
        &mut self,
        connection: usize,
        function: TaskManagementCode,
        tag: u32,
        ref_cmd_sn: u32,
    ) {
        let mut request = TaskManagementRequest::new();
        request.opcode.set_immediate(true);
        request.set_function(function);
        request.lun = (1u64 << 48).into();
        request.initiator_task_tag = (0x7700 + u32::from(function.0)).into();
        request.referenced_task_tag = tag.into();
        request.ref_cmd_sn = ref_cmd_sn.into();
        request.cmd_sn = self.cmd_sn.into();
        self.send(connection, &request, &[]);
    }

    fn managed(&mut self, connection: usize) -> TaskManagementResult {
        let answer = self.receive(connection).expect("an answer");
        assert_eq!(answer.opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
        TaskManagementResult(answer.header[2])
    }

    fn log_out(&mut self, over: usize, reason: LogoutReason, cid: u16) -> LogoutResult {
        let mut request = LogoutRequest::new();
        request.opcode.set_immediate(true);
        request.set_reason(reason);
        request.cid = cid.into();
        request.cmd_sn = self.cmd_sn.into();
        self.send(over, &request, &[]);
        let answer = self.receive(over).expect("an answer");
        assert_eq!(answer.opcode(), Opcode::LOGOUT_RESPONSE);
        LogoutResult(answer.header[2])
    }
}

/// TEST UNIT READY for no blocks, else READ (10) or, with `write`, WRITE (10).
fn command(lun: u64, tag: u32, block: u32, blocks: u16) -> ScsiCommand {
    let mut command = ScsiCommand::new();
    command.flags = 0x80;
    command.lun = (lun << 48).into();
    command.initiator_task_tag = tag.into();
    if blocks > 0 {
        command.flags |= ScsiCommand::READ;
        command.expected_data_transfer_length = (u32::from(blocks) * BLOCK as u32).into();
        command.cdb[..10].copy_from_slice(&cdb10(0x28, block, blocks));
    }
    command
}

fn write(lun: u64, tag: u32, block: u32, blocks: u16) -> ScsiCommand {
    let mut command = command(lun, tag, block, blocks);
    command.flags = 0x80 | ScsiCommand::WRITE;
    command.cdb[..10].copy_from_slice(&cdb10(0x2a, block, blocks));
    command
}

/// Lets the slow device go on a little later.
fn release_soon(daemon: &Daemon) -> std::thread::JoinHandle<()> {
    let slow = daemon.slow.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        slow.release();
    })
}

// shows RFC 7143 [4.2.5.1-1, 4.2.2.1-5]
#[test]
fn two_to_four_connections_write_and_read_each_others_data_in_any_order() {
    const BLOCKS: u16 = 8;
    for connections in 2..=4u16 {
        let daemon = Daemon::start(SEVERAL);
        let mut session = Many::log_in(&daemon, connections);
        let count = usize::from(connections);
        for round in 0..20u32 {
            let first = round * 64;
            // The numbers go round the connections; what is sent last has the lowest number, so that all others wait.
            let numbers: Vec<u32> = (0..3 * connections).map(|_| session.number()).collect();
            for (index, cmd_sn) in numbers.iter().enumerate().rev() {
                let block = first + index as u32 * u32::from(BLOCKS);
                let mut command = write(0, index as u32, block, BLOCKS);
                command.cmd_sn = (*cmd_sn).into();
                session.send(index % count, &command, &pattern(BLOCKS.into(), (index as u32 + round) as u8));
            }
            for index in 0..numbers.len() {
                let answer = session.receive(index % count).unwrap();
                assert_eq!((answer.opcode(), answer.header[3]), (Opcode::SCSI_RESPONSE, 0));
                assert_eq!(answer.tag() as usize % count, index % count, "allegiance");
            }
            for index in 0..numbers.len() {
                let block = first + index as u32 * u32::from(BLOCKS);
                let answer = session.execute((index + 1) % count, command(0, 1, block, BLOCKS), &[]);
                assert!(answer.data == pattern(BLOCKS.into(), (index as u32 + round) as u8), "{index}");
            }
        }
        assert_eq!(daemon.server().sessions(), 1);
    }
}

// shows RFC 7143 [7.1.4.3-4]
#[test]
fn a_connection_that_breaks_takes_its_session_with_it_and_the_others_are_told() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 3);
    session.streams[1].shutdown(Shutdown::Both).unwrap();
    for other in [0, 2] {
        let told = session.receive(other).expect("a message before the end");
        assert_eq!((told.opcode(), told.header[36]), (Opcode::ASYNC_MESSAGE, AsyncEvent::SESSION_DROP.0));
        assert!(session.receive(other).is_none());
    }
    daemon.await_sessions(0);
    Many::log_in(&daemon, 4);
}

// shows RFC 7143 [11.14.5-1, 11.15-1]
#[test]
fn a_connection_that_is_logged_out_leaves_its_session_and_lost_commands_are_reported() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 3);
    assert_eq!(session.log_out(2, LogoutReason::CLOSE_CONNECTION, 2), LogoutResult::CLOSED);
    assert!(session.receive(2).is_none());
    assert_eq!(session.log_out(0, LogoutReason::CLOSE_CONNECTION, 2), LogoutResult::CID_NOT_FOUND);
    assert_eq!(session.log_out(0, LogoutReason::RECOVERY, 1), LogoutResult::RECOVERY_NOT_SUPPORTED);

    // Over another connection, while a command is with its device: the answer waits for that.
    daemon.slow.hold();
    let mut lost = command(1, 5, 0, 1);
    lost.cmd_sn = session.number().into();
    session.send(1, &lost, &[]);
    daemon.slow.await_waiting(1);
    let release = release_soon(&daemon);
    assert_eq!(session.log_out(0, LogoutReason::CLOSE_CONNECTION, 1), LogoutResult::CLOSED);
    release.join().unwrap();
    assert!(session.receive(1).is_none());
    let attention = session.execute(0, command(1, 6, 0, 0), &[]);
    assert_eq!((attention.header[3], attention.data.get(14..16)), (2, Some(&[0x47, 0x7f][..])));
    assert_eq!(session.execute(0, command(1, 7, 0, 0), &[]).header[3], 0);
    assert_eq!(session.execute(0, command(0, 8, 0, 0), &[]).header[3], 0, "the other unit lost nothing");

    assert_eq!(session.log_out(0, LogoutReason::CLOSE_CONNECTION, 0), LogoutResult::CLOSED);
    daemon.await_sessions(0);
}

// shows RFC 7143 [11.15-1]
#[test]
fn a_session_that_is_logged_out_over_one_connection_ends_on_all() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 2);
    assert_eq!(session.log_out(1, LogoutReason::CLOSE_SESSION, 0), LogoutResult::CLOSED);
    assert!(session.receive(0).is_none() && session.receive(1).is_none());
    daemon.await_sessions(0);
}

// shows RFC 7143 [6.3.4-1, 6.3.1-2]
#[test]
fn a_connection_whose_number_is_used_again_is_replaced_and_the_session_goes_on() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 4);
    session.join(&daemon, 3);
    assert!(session.receive(3).is_none(), "the old connection is closed");
    for connection in [0, 1, 2, 4] {
        assert_eq!(session.execute(connection, command(0, 1, 0, 1), &[]).header[3], 0);
    }
    assert_eq!(daemon.server().sessions(), 1);
}

// shows RFC 7143 [9.2-7, 4.4.3-2, 6.3.1-2]
#[test]
fn only_the_sessions_own_initiator_may_add_connections_and_only_as_many_as_agreed() {
    let daemon = Daemon::start(SEVERAL);
    let session = Many::log_in(&daemon, 4);
    let refused = |login| match Client::log_in(daemon.address, login) {
        Err(CloseReason::LoginFailed(error)) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("logged in"),
    };
    assert!(refused(connection(session.tsih, 4)).contains("too many connections"));
    let unknown = "session does not exist";
    assert!(refused(connection(session.tsih ^ 0x5555, 4)).contains(unknown));
    let other = InitiatorLoginConfig { isid: [0x80, 0, 0, 0, 0, 8], ..connection(session.tsih, 4) };
    assert!(refused(other).contains(unknown));
    let other = InitiatorLoginConfig {
        initiator_name: "iqn.2026-11.com.example:x".into(),
        ..connection(session.tsih, 4)
    };
    assert!(refused(other).contains(unknown));
    assert_eq!(daemon.server().sessions(), 1);
}

#[test]
fn a_task_on_another_connection_is_aborted_and_waited_for() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 2);
    daemon.slow.hold();
    let mut read = command(1, 0x42, 0, 1);
    read.cmd_sn = session.number().into();
    session.send(1, &read, &[]);
    daemon.slow.await_waiting(1);
    let release = release_soon(&daemon);
    let ref_cmd_sn = session.cmd_sn - 1;
    let result = session.manage(0, TaskManagementCode::ABORT_TASK, 0x42, ref_cmd_sn);
    assert_eq!(result, TaskManagementResult::COMPLETE);
    assert!(daemon.slow.waiting.load(std::sync::atomic::Ordering::SeqCst) == 0, "answered too early");
    release.join().unwrap();
    let result = session.manage(0, TaskManagementCode::ABORT_TASK, 0x42, ref_cmd_sn);
    assert_eq!(result, TaskManagementResult::TASK_DOES_NOT_EXIST, "its number is long past");
    assert_eq!(session.execute(1, command(0, 1, 0, 1), &[]).tag(), 1, "the aborted read is not answered");
}

// shows RFC 7143 [7.11-2]
#[test]
fn a_task_that_never_came_counts_as_received_when_it_is_aborted() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 2);
    let missing = session.number();
    let mut after = command(0, 2, 0, 1);
    after.cmd_sn = session.number().into();
    session.send(1, &after, &[]);
    let result = session.manage(0, TaskManagementCode::ABORT_TASK, 1, missing);
    assert_eq!(result, TaskManagementResult::COMPLETE);
    assert_eq!(session.receive(1).unwrap().tag(), 2, "what waited for it goes on");
    let mut late = command(0, 1, 0, 1);
    late.cmd_sn = missing.into();
    session.send(0, &late, &[]);
    assert_eq!(session.execute(0, command(0, 3, 0, 1), &[]).tag(), 3, "it is ignored when it comes");
}

// shows RFC 7143 [4.2.3.3-6, 11.6.1-2]
#[test]
fn a_lun_reset_ends_the_tasks_of_all_connections_but_not_later_ones() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 3);
    daemon.slow.hold();
    for connection in [1, 2] {
        let mut read = command(1, 0x40 + connection as u32, 0, 1);
        read.cmd_sn = session.number().into();
        session.send(connection, &read, &[]);
    }
    daemon.slow.await_waiting(2);
    let release = release_soon(&daemon);
    let result = session.manage(0, TaskManagementCode::LOGICAL_UNIT_RESET, RESERVED_TAG, 0);
    assert_eq!(result, TaskManagementResult::COMPLETE);
    release.join().unwrap();
    for connection in [1, 2] {
        let answer = session.execute(connection, command(1, 0x50, 0, 0), &[]);
        assert_eq!(answer.tag(), 0x50, "the answer to a task that was reset");
    }
}

/// Lost was: every answer to the commands of other connections that a rejected function was to abort, and that to any
/// command that had not begun.
#[test]
fn commands_of_all_connections_are_answered_where_the_function_that_was_to_abort_them_is_rejected() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 3);
    session.streams.iter().for_each(|stream| stream.set_read_timeout(Some(3 * PATIENCE)).unwrap());
    daemon.slow.hold();
    let [ended, first, hangs] = [(1, 8), (1, 16), (2, 24)].map(|(connection, block)| {
        let mut read = command(1, block, block, 1);
        read.cmd_sn = session.number().into();
        session.send(connection, &read, &[]);
        (connection, block, session.cmd_sn - 1)
    });
    daemon.slow.await_waiting(3);
    // Their data is asked for, and does not come.
    let not_begun = [0, 1].map(|connection| {
        let mut late = write(1, 32 + connection as u32, 32, 1);
        late.cmd_sn = session.number().into();
        session.send(connection, &late, &[]);
        assert_eq!(session.receive(connection).unwrap().opcode(), Opcode::R2T);
        (connection, 32 + connection as u32)
    });
    session.begin_to_manage(0, TaskManagementCode::ABORT_TASK, hangs.1, hangs.2);
    session.begin_to_manage(0, TaskManagementCode::ABORT_TASK_SET, RESERVED_TAG, 0);
    // Until all connections have heard of it.
    for connection in [0, 1, 2] {
        assert_eq!(session.execute(connection, command(0, 1, 0, 0), &[]).tag(), 1);
    }
    daemon.slow.release_at(ended.1.into());
    daemon.slow.await_waiting(2);
    let answers = [0, 0, 0, 1, 1].map(|connection| (connection, session.receive(connection).unwrap()));
    let (managed, cleared): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|(_, answer)| answer.opcode() == Opcode::TASK_MANAGEMENT_RESPONSE);
    assert_eq!(managed.len(), 2);
    for (_, answer) in managed {
        assert_eq!(TaskManagementResult(answer.header[2]), TaskManagementResult::REJECTED);
    }
    for (_, answer) in &cleared {
        assert_eq!((answer.opcode(), answer.header[3]), (Opcode::SCSI_RESPONSE, 2));
        // ABORTED COMMAND, COMMANDS CLEARED BY DEVICE SERVER.
        assert_eq!((answer.data.get(4), answer.data.get(14..16)), (Some(&0x0b), Some(&[0x2f, 2][..])));
    }
    let mut cleared: Vec<_> =
        cleared.iter().map(|(connection, answer)| (*connection, answer.tag())).collect();
    cleared.sort_unstable();
    assert_eq!(cleared, [not_begun[0], (ended.0, ended.1), not_begun[1]]);
    daemon.slow.release();
    for (connection, tag, _) in [first, hangs] {
        let answer = session.receive(connection).unwrap();
        assert_eq!((answer.opcode(), answer.tag(), answer.header[3]), (Opcode::DATA_IN, tag, 0));
    }
    let result = session.manage(0, TaskManagementCode::ABORT_TASK_SET, RESERVED_TAG, 0);
    assert_eq!(result, TaskManagementResult::COMPLETE);
}

// shows RFC 7143 [11.13.5-1]
#[test]
fn a_target_that_has_moved_sends_initiators_there_and_one_out_of_service_says_so() {
    let more = |line: &str| format!("[[target]]\nname = \"{TARGET}\"\nopen = true\n{line}\n{}", luns());
    for (permanent, words) in [(false, "for now"), (true, "for good")] {
        let line = format!("redirect = {{ to = \"[2001:db8::1]:3261\", permanent = {permanent} }}");
        let daemon = Daemon::start_with(&more(&line));
        let Err(CloseReason::LoginFailed(error)) = Client::log_in(daemon.address, login(1)).map(|_| ())
        else {
            panic!("no redirection")
        };
        assert_eq!(error.to_string(), format!("the target has moved {words} to [2001:db8::1]:3261"));
    }
    let daemon = Daemon::start_with(&more("enabled = false"));
    let Err(CloseReason::LoginFailed(error)) = Client::log_in(daemon.address, login(1)).map(|_| ()) else {
        panic!("logged in to a disabled target")
    };
    assert!(error.to_string().contains("service unavailable"), "{error}");
}

/// A write whose data has not come holds up an ORDERED read on another connection, which then finds it, and that a
/// younger write on the first one.
#[test]
fn an_ordered_command_is_ordered_against_those_of_the_sessions_other_connections() {
    let daemon = Daemon::start(SEVERAL);
    let mut session = Many::log_in(&daemon, 2);
    let numbered = |session: &mut Many, mut command: ScsiCommand, attribute: TaskAttribute| {
        command.flags |= attribute.0;
        command.cmd_sn = session.number().into();
        command
    };
    for round in 0..50u8 {
        let (older, younger) = (pattern(1, 3 * round), pattern(1, 3 * round + 1));
        let late = numbered(&mut session, write(0, 1, 7, 1), TaskAttribute::SIMPLE);
        session.send(0, &late, &[]);
        let r2t = session.receive(0).unwrap();
        assert_eq!(r2t.opcode(), Opcode::R2T);
        let read = numbered(&mut session, command(0, 2, 7, 1), TaskAttribute::ORDERED);
        session.send(1, &read, &[]);
        let after = numbered(&mut session, write(0, 3, 7, 1), TaskAttribute::SIMPLE);
        session.send(0, &after, &younger);
        if round == 0 {
            for stream in &session.streams {
                stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let early = stream.peek(&mut [0]).unwrap_err();
                assert_eq!(early.kind(), ErrorKind::WouldBlock, "the older write's data has not come");
                stream.set_read_timeout(None).unwrap();
            }
        }
        let mut data_out = DataOut::new();
        data_out.flags = 0x80;
        data_out.initiator_task_tag = 1.into();
        data_out.target_transfer_tag = u32::from_be_bytes(r2t.header[20..24].try_into().unwrap()).into();
        session.send(0, &data_out, &older);
        let answer = session.receive(1).unwrap();
        assert!(answer.data == older, "round {round}: the ordered read comes between the two writes");
        for tag in [1, 3] {
            let answer = session.receive(0).unwrap();
            assert_eq!((answer.opcode(), answer.tag(), answer.header[3]), (Opcode::SCSI_RESPONSE, tag, 0));
        }
        assert!(session.execute(1, command(0, 4, 7, 1), &[]).data == younger);
    }

    // The connection with the older write is logged out, and the write never comes.
    let lost = numbered(&mut session, write(0, 1, 7, 1), TaskAttribute::SIMPLE);
    session.send(0, &lost, &[]);
    assert_eq!(session.receive(0).unwrap().opcode(), Opcode::R2T);
    let read = numbered(&mut session, command(0, 2, 7, 1), TaskAttribute::ORDERED);
    session.send(1, &read, &[]);
    let mut logout = LogoutRequest::new();
    logout.opcode.set_immediate(true);
    logout.set_reason(LogoutReason::CLOSE_CONNECTION);
    logout.cmd_sn = session.cmd_sn.into();
    session.send(0, &logout, &[]);
    assert_eq!(session.receive(0).unwrap().opcode(), Opcode::LOGOUT_RESPONSE);
    assert_eq!(session.receive(1).unwrap().tag(), 2, "the ordered command goes on");
}

//! Sessions and their ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_iscsi::CloseReason;
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::pdu::{HEADER_LEN, LoginRequest, Opcode, Pdu, ScsiCommand, Stage, to_bytes};

use crate::support::*;

// shows RFC 7143 [6.3.5-1, 4.4.3-1, 7.15-2]
#[test]
fn a_second_login_of_the_same_initiator_port_ends_the_first_session() {
    let daemon = Daemon::start("");
    let mut old = daemon.log_in_as(1);
    let mut other = daemon.log_in_as(2).ready();
    let mut new = daemon.log_in_as(1).ready();
    old.assert_closed();
    new.read(0, 0, 1);
    other.read(0, 0, 1);
    assert_eq!(daemon.server().sessions(), 2);
}

/// SAM-5 BUSY.
const BUSY: u8 = 0x08;
/// SAM-5 RESERVATION CONFLICT.
const CONFLICT: u8 = 0x18;
/// RESERVE (6).
const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];

/// A session with a write that a device which hangs has.
fn with_a_write_under_way(daemon: &Daemon) -> Client {
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    client.submit_write(1, 0, &pattern(1, 1));
    daemon.slow.await_waiting(1);
    client
}

/// The first answer of a logical unit that is no longer busy, which must be that its nexus was lost.
fn assert_nexus_loss(client: &mut Client, lun: u8) {
    let mut answer = client.execute(lun, &[0; 6], &[], 0);
    let start = Instant::now();
    while answer.status == BUSY {
        assert!(start.elapsed() < PATIENCE, "busy for ever");
        answer = client.execute(lun, &[0; 6], &[], 0);
    }
    // I_T NEXUS LOSS OCCURRED: POWER ON would say that caches may be lost.
    assert_eq!((answer.status, answer.sense.get(12..14)), (2, Some(&[0x29, 7][..])));
}

#[test]
fn a_new_session_begins_at_once_but_for_units_whose_device_has_writes_of_the_old_one() {
    let daemon = Daemon::start("");
    let mut old = with_a_write_under_way(&daemon);
    let mut new = daemon.log_in();
    old.assert_closed();
    assert_nexus_loss(&mut new, 0);
    new.write(0, 0, &pattern(8, 3));
    for cdb in [&[0; 6][..], &cdb10(0x28, 0, 1), &cdb10(0x35, 0, 0)] {
        assert_eq!(new.execute(1, cdb, &[], BLOCK).status, BUSY, "{cdb:x?}");
    }
    let inquiry = new.execute(1, &[0x12, 0, 0, 0, 36, 0], &[], 36);
    assert_eq!(inquiry.status, 0, "a host must still find its units");
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 1, "nothing came to the device");
    daemon.slow.release();
    assert_nexus_loss(&mut new, 1);
    assert_eq!(new.read(1, 0, 1), pattern(1, 1));
    assert_eq!(new.read(0, 0, 8), pattern(8, 3));
}

#[test]
fn sessions_that_are_replaced_one_after_another_wait_for_the_first_ones_writes() {
    let daemon = Daemon::start("");
    let _first = with_a_write_under_way(&daemon);
    for _ in 0..3 {
        let mut next = daemon.log_in();
        assert_eq!(next.execute(1, &[0; 6], &[], 0).status, BUSY);
    }
    let mut last = daemon.log_in();
    assert_nexus_loss(&mut last, 0);
    assert_eq!(last.execute(1, &[0; 6], &[], 0).status, BUSY);
    daemon.slow.release();
    assert_nexus_loss(&mut last, 1);
    assert_eq!(last.read(1, 0, 1), pattern(1, 1));
    daemon.await_sessions(1);
}

/// Waits until the logical unit can be reserved.
fn reserves(client: &mut Client, lun: u8) {
    let start = Instant::now();
    while client.execute(lun, &RESERVE, &[], 0).status != 0 {
        assert!(start.elapsed() < PATIENCE, "LUN {lun} is never free");
    }
}

#[test]
fn what_a_lost_session_reserved_is_no_others_before_its_writes_have_ended() {
    let daemon = Daemon::start("");
    let mut other = daemon.log_in_as(2).ready();
    let mut old = daemon.log_in().ready();
    for lun in [0, 1] {
        assert_eq!(old.execute(lun, &RESERVE, &[], 0).status, 0);
    }
    daemon.slow.hold();
    old.submit_write(1, 0, &pattern(1, 1));
    daemon.slow.await_waiting(1);
    drop(old);
    reserves(&mut other, 0);
    assert_eq!(other.execute(1, &RESERVE, &[], 0).status, CONFLICT);
    daemon.slow.release();
    reserves(&mut other, 1);
}

// shows RFC 7143 [6.3.4-1]
#[test]
fn the_connection_of_a_session_with_one_is_replaced_by_a_login_with_its_number() {
    let daemon = Daemon::start("");
    let mut old = daemon.log_in().ready();
    old.write(0, 0, &pattern(1, 1));
    let tsih = old.core.logged_in().unwrap().tsih;
    let again = |cid| InitiatorLoginConfig { tsih, cid, ..login(1) };
    let Err(CloseReason::LoginFailed(error)) = Client::log_in(daemon.address, again(1)).map(|_| ()) else {
        panic!("a second connection where one was agreed")
    };
    assert!(error.to_string().contains("too many connections"), "{error}");
    let mut new = Client::log_in(daemon.address, again(0)).unwrap();
    old.assert_closed();
    // It is the same nexus: no unit attention.
    assert_eq!(new.read(0, 0, 1), pattern(1, 1));
    assert_eq!((new.core.logged_in().unwrap().tsih, daemon.server().sessions()), (tsih, 1));
}

/// A session of an initiator that speaks in PDUs: one login request with every key, also when it takes its connection's
/// place.
struct Plain {
    stream: TcpStream,
    tsih: u16,
    /// What the target answered to the keys.
    said: Vec<String>,
}

impl Plain {
    fn log_in(daemon: &Daemon, tsih: u16, cmd_sn: u32) -> Self {
        const OFFERS: &str = "HeaderDigest=None\0DataDigest=None\0MaxConnections=1\0InitialR2T=No\0ImmediateData=Yes\0\
            MaxBurstLength=65536\0FirstBurstLength=8192\0MaxOutstandingR2T=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
            ErrorRecoveryLevel=0\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0";
        let mut request = LoginRequest::new();
        request.set_stages(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE));
        request.isid = [0x80, 0, 0, 0, 0, 9];
        request.tsih = tsih.into();
        request.cmd_sn = cmd_sn.into();
        let text = format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0{OFFERS}");
        let mut plain = Self { stream: daemon.connect(), tsih, said: Vec::new() };
        let (header, data) = plain.exchange(&request, text.as_bytes());
        assert_eq!((header[0], &header[36..38]), (Opcode::LOGIN_RESPONSE.0, &[0, 0][..]), "{data:?}");
        plain.tsih = u16::from_be_bytes([header[14], header[15]]);
        plain.said = String::from_utf8(data).unwrap().split_terminator('\0').map(str::to_owned).collect();
        plain.said.sort();
        plain
    }

    fn exchange<T: Pdu>(&mut self, pdu: &T, data: &[u8]) -> ([u8; HEADER_LEN], Vec<u8>) {
        let mut bytes = to_bytes(pdu).to_vec();
        bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.stream.write_all(&bytes).unwrap();
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        self.stream.read_exact(&mut data).unwrap();
        data.truncate(len);
        (header, data)
    }

    /// Asks whether the unit is ready, until it says so; gives the number after that.
    fn become_ready(&mut self, mut cmd_sn: u32) -> u32 {
        for _ in 0..4 {
            let mut command = ScsiCommand::new();
            command.flags = 0x80;
            command.cmd_sn = cmd_sn.into();
            command.initiator_task_tag = cmd_sn.into();
            let (header, _) = self.exchange(&command, &[]);
            assert_eq!(header[0], Opcode::SCSI_RESPONSE.0);
            cmd_sn += 1;
            if header[3] == 0 {
                return cmd_sn;
            }
        }
        panic!("the unit does not become ready")
    }
}

// shows RFC 7143 [6.3.4-1, 6.3.4-2, 4.2.1-2]
#[test]
fn the_only_connection_is_replaced_whatever_its_initiator_offers_again_and_wherever_its_numbers_go_on() {
    let daemon = Daemon::start("");
    // Numbers that go on though the Login Request says 0, that begin anew with it, and that it says: the standard's
    // way.
    for (login_cmd_sn, goes_on) in [(0, true), (1, false), (1000, false)] {
        let mut old = Plain::log_in(&daemon, 0, 0);
        let next = (0..9).fold(0, |next, _| old.become_ready(next));
        let mut new = Plain::log_in(&daemon, old.tsih, login_cmd_sn);
        assert_eq!((new.tsih, &new.said), (old.tsih, &old.said), "the session's parameters, told again");
        assert_eq!(old.stream.read(&mut [0; 99]).unwrap_or(0), 0, "the old connection is closed");
        new.become_ready(if goes_on { next } else { login_cmd_sn });
        assert_eq!(daemon.server().sessions(), 1);
    }
}

// shows RFC 7143 [7.14-2]
#[test]
fn a_killed_connection_leaves_nothing_behind() {
    let daemon = Daemon::start("");
    for round in 0..20 {
        let mut client = daemon.log_in_as(round).ready();
        client.submit_read(0, 0, 2048);
        let linger = socket2::SockRef::from(&client.stream);
        if round % 2 == 0 {
            // A reset instead of an orderly end.
            linger.set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    daemon.await_sessions(0);
    daemon.log_in().ready().read(0, 0, 1);
}

#[test]
fn many_sessions_share_the_cores() {
    let daemon = Daemon::start("");
    let threads: Vec<_> = (0..8)
        .map(|number: u8| {
            let address = daemon.address;
            std::thread::spawn(move || {
                let mut client = Client::log_in(address, login(number)).unwrap().ready();
                for round in 0..50 {
                    let data = pattern(8, number ^ round);
                    client.write(0, u32::from(number) * 8, &data);
                    assert!(client.read(0, u32::from(number) * 8, 8) == data);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn an_initiator_that_neither_takes_answers_nor_answers_pings_is_given_up() {
    let daemon =
        Daemon::start("[limits]\nnop_interval = \"1s\"\nnop_timeout = \"1s\"\nlogin_timeout = \"1s\"");
    let mut client = daemon.log_in().ready();
    for _ in 0..64 {
        client.submit_read(0, 0, 2048);
    }
    daemon.await_sessions(0);
}

#[test]
fn an_initiator_is_not_given_up_because_a_device_is_slow() {
    let daemon = Daemon::start(
        "[limits]\nnop_interval = \"1s\"\nnop_timeout = \"1s\"\nlogin_timeout = \"1s\"\nsession_memory_mib = 16",
    );
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    // More than the session may have with its devices.
    let reads: Vec<_> = (0..8).map(|_| client.submit_read(1, 0, 4096)).collect();
    daemon.slow.await_waiting(4);
    let start = Instant::now();
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while start.elapsed() < Duration::from_millis(3500) {
        client.answer_pings();
    }
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.slow.release();
    for read in reads {
        assert_eq!(client.wait(read).status, 0);
    }
}

#[test]
fn a_fenced_device_ends_the_sessions_whose_commands_it_had_and_answers_none_of_them() {
    let daemon = Daemon::start("");
    let mut other = daemon.log_in_as(2).ready();
    let mut client = with_a_write_under_way(&daemon);
    // Of another unit, and answered: what came before is.
    client.read(0, 0, 1);
    let (again, late) = (pattern(1, 2), client.submit_write(1, 8, &pattern(1, 3)));
    daemon.slow.await_waiting(2);
    daemon.slow.fenced.store(true, Ordering::SeqCst);
    daemon.slow.release();
    client.assert_closed();
    assert!(client.try_wait(late).is_none());
    other.read(0, 0, 1);
    // A device that answers at once is no exception.
    let mut next = daemon.log_in().ready();
    next.submit_write(1, 0, &again);
    next.assert_closed();
    daemon.slow.fenced.store(false, Ordering::SeqCst);
    let mut last = daemon.log_in();
    assert_nexus_loss(&mut last, 1);
    last.ready().write(1, 0, &again);
    assert_eq!(other.read(1, 0, 1), again);
}

//! Peers that break the rules: each is answered as RFC 7143 says or cut off, and the others do not notice.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::{self, HEADER_LEN, Opcode, Reject, RejectReason};

use crate::support::*;

/// Reads one PDU's header and throws its data away. `None` at the end of the connection.
fn header(stream: &mut TcpStream) -> Option<[u8; HEADER_LEN]> {
    let mut header = [0; HEADER_LEN];
    match stream.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            return None;
        }
        Err(error) => panic!("neither a PDU nor the end: {error}"),
    }
    let len = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
    let mut data = vec![0; len.next_multiple_of(4)];
    stream.read_exact(&mut data).unwrap();
    Some(header)
}

fn assert_cut_off(stream: &mut TcpStream) {
    while header(stream).is_some() {}
}

/// A header with this opcode byte, immediate, and a data segment that is said to have `data_len` bytes.
fn raw(opcode: u8, data_len: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = opcode | 0x40;
    header[1] = 0x80;
    header[5..8].copy_from_slice(&data_len.to_be_bytes()[1..]);
    header[16..20].copy_from_slice(&77u32.to_be_bytes());
    header
}

/// A daemon, a session that lives through it all, and one that will not.
fn with_witness(attack: impl FnOnce(&Daemon, Client)) {
    let daemon = Daemon::start("");
    let mut witness = daemon.log_in_as(1).ready();
    witness.write(0, 0, &pattern(8, 5));
    let attacker = daemon.log_in_as(2);
    attack(&daemon, attacker);
    assert_eq!(witness.read(0, 0, 8), pattern(8, 5));
    daemon.log_in_as(3).ready().read(0, 0, 1);
}

#[test]
fn an_unknown_opcode_is_rejected_and_the_session_goes_on() {
    with_witness(|_, mut attacker| {
        attacker.stream.write_all(&raw(0x1f, 0)).unwrap();
        let answer = header(&mut attacker.stream).unwrap();
        let reject: &Reject = pdu::view(&answer);
        assert_eq!(
            (reject.opcode.opcode(), reject.reason),
            (Opcode::REJECT, RejectReason::COMMAND_NOT_SUPPORTED)
        );
        attacker.stream.write_all(&raw(0x00, 0)).unwrap();
        assert_eq!(header(&mut attacker.stream).unwrap()[0], Opcode::NOP_IN.0);
    });
}

// shows RFC 7143 [7.7-1]
#[test]
fn a_data_segment_longer_than_declared_ends_the_connection() {
    with_witness(|_, mut attacker| {
        attacker.stream.write_all(&raw(0x00, 0xff_ffff)).unwrap();
        assert_cut_off(&mut attacker.stream);
    });
}

#[test]
fn a_login_with_a_data_segment_longer_than_8192_bytes_ends_the_connection() {
    with_witness(|daemon, _| {
        let mut stream = daemon.connect();
        stream.write_all(&raw(0x03, 8193)).unwrap();
        assert_cut_off(&mut stream);
    });
}

#[test]
fn anything_but_a_login_before_login_ends_the_connection() {
    with_witness(|daemon, _| {
        for opcode in [0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x1f, 0x3f] {
            let mut stream = daemon.connect();
            stream.write_all(&raw(opcode, 0)).unwrap();
            assert_cut_off(&mut stream);
        }
        let mut stream = daemon.connect();
        let request = format!("GET / HTTP/1.1\r\nHost: lunway\r\nCookie: {}\r\n\r\n", "x".repeat(200));
        stream.write_all(request.as_bytes()).unwrap();
        assert_cut_off(&mut stream);
    });
}

#[test]
fn wrong_digests_end_only_their_own_session() {
    let daemon = Daemon::start("");
    let mut witness = daemon.log_in_as(1).ready();
    let parameters = Parameters { header_digest: DigestPolicy::Require, ..Parameters::default() };
    let mut attacker =
        Client::log_in(daemon.address, InitiatorLoginConfig { parameters, ..login(2) }).unwrap();
    let mut ping = raw(0x00, 0).to_vec();
    ping.extend_from_slice(&[1, 2, 3, 4]);
    attacker.stream.write_all(&ping).unwrap();
    assert_cut_off(&mut attacker.stream);

    let parameters = Parameters { data_digest: DigestPolicy::Require, ..Parameters::default() };
    let mut attacker =
        Client::log_in(daemon.address, InitiatorLoginConfig { parameters, ..login(2) }).unwrap();
    // An immediate one is only rejected; the number of the other will never come.
    let mut ping = raw(0x00, 4).to_vec();
    ping.extend_from_slice(b"ping\x01\x02\x03\x04");
    for first in [0x40, 0x00] {
        ping[0] = first;
        attacker.stream.write_all(&ping).unwrap();
        let answer = header(&mut attacker.stream).unwrap();
        assert_eq!(pdu::view::<Reject>(&answer).reason, RejectReason::DATA_DIGEST_ERROR);
        // The digest of the rejected header.
        attacker.stream.read_exact(&mut [0; 4]).unwrap();
    }
    assert_cut_off(&mut attacker.stream);
    witness.read(0, 0, 1);
}

#[test]
fn a_connection_killed_in_the_middle_of_a_pdu_ends_its_session() {
    with_witness(|daemon, mut attacker| {
        attacker.stream.write_all(&raw(0x01, 4096)).unwrap();
        attacker.stream.write_all(&[0; 1000]).unwrap();
        drop(attacker);
        daemon.await_sessions(1);
    });
}

#[test]
fn half_a_pdu_holds_up_nobody() {
    with_witness(|daemon, mut attacker| {
        attacker.stream.write_all(&raw(0x01, 4096)[..20]).unwrap();
        let mut login = daemon.connect();
        login.write_all(&raw(0x03, 100)[..47]).unwrap();
        daemon.log_in_as(4).ready().write(0, 64, &pattern(64, 1));
    });
}

#[test]
fn bytes_that_come_one_at_a_time_are_understood() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in();
    for byte in raw(0x00, 0) {
        client.stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(header(&mut client.stream).unwrap()[0], Opcode::NOP_IN.0);
}

#[test]
fn noise_is_cut_off() {
    let daemon = Daemon::start("");
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..50 {
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .take(4096)
        .collect();
        let mut client = daemon.log_in();
        let _ = client.stream.write_all(&noise);
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
        assert_cut_off_by_anything(&mut client.stream);
    }
    daemon.log_in().ready().read(0, 0, 1);
}

/// As [`assert_cut_off`], where the last PDU may be cut short.
fn assert_cut_off_by_anything(stream: &mut TcpStream) {
    let mut scrap = [0; 65536];
    loop {
        match stream.read(&mut scrap) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("not cut off: {error}"),
        }
    }
}

#[test]
fn pings_whose_answers_are_never_taken_stop_being_read() {
    with_witness(|_, mut attacker| {
        let mut ping = raw(0x00, 4096).to_vec();
        ping.resize(HEADER_LEN + 4096, 0);
        attacker.stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        // The daemon's queue and four socket buffers hold a few MiB at most; far more is offered.
        let taken = (0..20_000).take_while(|_| attacker.stream.write_all(&ping).is_ok()).count();
        assert!(taken < 20_000, "the daemon took 80 MB of pings without being able to answer");
    });
}

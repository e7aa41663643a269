//! A target that deviates from RFC 7143 without harm is used, and what it does is told once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use support::{IQN, PATIENCE, Served, assert_same_bytes, finish, image, lunway};

const HEADER_LEN: usize = 48;
const LOGIN_RESPONSE: u8 = 0x23;
const R2T: u8 = 0x31;

/// The next PDU of a session without digests (RFC 7143 §11.2).
fn pdu(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut pdu = vec![0; HEADER_LEN];
    stream.read_exact(&mut pdu).ok()?;
    let segment = usize::from(pdu[5]) << 16 | usize::from(pdu[6]) << 8 | usize::from(pdu[7]);
    pdu.resize(HEADER_LEN + usize::from(pdu[4]) * 4 + segment.next_multiple_of(4), 0);
    stream.read_exact(&mut pdu[HEADER_LEN..]).ok()?;
    Some(pdu)
}

/// The address of a way to `target` on which bytes 8 to 13 of PDUs with this operation code come as zeros.
fn with_zeros(target: &str, opcode: u8) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let target = target.to_owned();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(&target).unwrap();
            let (mut from, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || {
                while let Some(mut pdu) = pdu(&mut from) {
                    if pdu[0] == opcode {
                        pdu[8..14].fill(0);
                    }
                    if to.write_all(&pdu).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
            let (mut from, mut to) = (near, far);
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn an_isid_and_a_lun_that_are_zero_are_told_once_and_the_copy_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    image(&source, 4 << 20, 4 << 20);
    for (opcode, told) in [(LOGIN_RESPONSE, "its Login Response has ISID"), (R2T, "R2T")] {
        let disk = folder.path().join(format!("disk-{opcode}"));
        std::fs::File::create(&disk).unwrap().set_len(4 << 20).unwrap();
        let served = Served::start(&["--lun", &format!("1={}", disk.display())]);
        let url = format!("iscsi://{}/{IQN}/1", with_zeros(&served.address, opcode));
        // One command in flight and one connection: what comes twice is told twice.
        let output = finish(lunway(&["copy", source.to_str().unwrap(), &url]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let lines: Vec<_> = said.lines().filter(|line| line.contains("deviates from RFC 7143")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].contains(told) && lines[0].contains(IQN), "{said}");
        served.terminate();
        assert_same_bytes(Path::new(&source), &disk);
    }
}

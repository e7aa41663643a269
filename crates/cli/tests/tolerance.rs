//! A target that deviates from RFC 7143 without harm is used, and what it does is told once; one that is silent, busy
//! or hostile costs a sentence.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use support::{IQN, PATIENCE, Served, assert_same_bytes, finish, image, lunway};

const HEADER_LEN: usize = 48;
const LOGIN_RESPONSE: u8 = 0x23;
const R2T: u8 = 0x31;
/// Numbers of the operations SYNCHRONIZE CACHE (10) and (16) (SBC-4 §5).
const FLUSHES: [u8; 2] = [0x35, 0x91];
const SCSI_COMMAND: u8 = 0x01;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
/// The status BUSY (SAM-5 §5.3.1).
const BUSY: u8 = 0x08;

/// The next PDU of a session without digests (RFC 7143 §11.2).
fn pdu(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut pdu = vec![0; HEADER_LEN];
    stream.read_exact(&mut pdu).ok()?;
    let segment = usize::from(pdu[5]) << 16 | usize::from(pdu[6]) << 8 | usize::from(pdu[7]);
    pdu.resize(HEADER_LEN + usize::from(pdu[4]) * 4 + segment.next_multiple_of(4), 0);
    stream.read_exact(&mut pdu[HEADER_LEN..]).ok()?;
    Some(pdu)
}

/// The address of a way to `target` on which each PDU is what `changed` makes of it, away from the target and to it.
fn way(target: &str, changed: impl Fn(Vec<u8>) -> Option<Vec<u8>> + Copy + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let target = target.to_owned();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(&target).unwrap();
            for (from, to) in [(&far, &near), (&near, &far)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    while let Some(pdu) = pdu(&mut from) {
                        if changed(pdu).is_some_and(|pdu| to.write_all(&pdu).is_err()) {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    address
}

/// A way on which bytes 8 to 13 of PDUs with this operation code come as zeros.
fn with_zeros(target: &str, opcode: u8) -> String {
    way(target, move |mut pdu| {
        if pdu[0] == opcode {
            pdu[8..14].fill(0);
        }
        Some(pdu)
    })
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

/// A measurement whose writes never became durable was a success.
#[test]
fn a_measurement_fails_whose_flush_is_not_answered_or_fails() {
    let served = Served::start(&["--lun", "0=ram:16M"]);
    let never = |pdu: Vec<u8>| {
        let flushes = pdu[0] & 0x3f == SCSI_COMMAND && FLUSHES.contains(&pdu[32]);
        (!flushes).then_some(pdu)
    };
    let silent =
        format!("iscsi://{}/{IQN}/0?command_timeout=1s&replacement_timeout=2s", way(&served.address, never));
    let job = ["--rw", "randwrite", "--size", "64K", "--destroy"];
    for (device, words) in [
        (silent.as_str(), "the device did not answer the flush of what was written"),
        ("fault:flush:ram:16M", "the device failed to make durable what was written"),
    ] {
        let output = finish(lunway(&[&["bench", device][..], &job].concat()), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{device}: {said}");
        assert!(said.contains(words), "{device}: {said}");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(printed.contains(&format!("Warning: {words}")) && printed.contains("randwrite"), "{printed}");
    }
    let compare =
        ["compare", "ram:1M", "fault:flush:ram:1M", "--rw", "randwrite", "--size", "1M", "--pairs", "6"];
    let short = ["--rounds", "1", "--time", "10ms", "--ramp", "0ms"];
    let output = finish(lunway(&[&compare[..], &short].concat()), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("fault:flush:ram:1M: the device failed to make durable what was written"),
        "{said}"
    );
    // What only reads has nothing to flush.
    let read = ["bench", "fault:flush:ram:16M", "--rw", "randread", "--size", "64K"];
    assert!(finish(lunway(&read), PATIENCE).status.success());
}

/// It said nothing for 50 seconds.
#[test]
fn an_inspection_of_a_busy_target_says_what_it_waits_for_and_ends_in_time() {
    let served = Served::start(&["--lun", "0=ram:16M"]);
    let busy = |mut pdu: Vec<u8>| {
        let ends = pdu[0] == SCSI_RESPONSE || pdu[0] == DATA_IN && pdu[1] & 1 == 1;
        if pdu[0] == DATA_IN && !ends {
            return None;
        }
        if ends {
            pdu.truncate(HEADER_LEN);
            (pdu[0], pdu[1], pdu[2], pdu[3]) = (SCSI_RESPONSE, 0x80, 0, BUSY);
            pdu[4..16].fill(0);
            pdu[36..48].fill(0);
        }
        Some(pdu)
    };
    let busy = format!("iscsi://{}/{IQN}/0?command_timeout=5s", way(&served.address, busy));
    let begun = Instant::now();
    let output = finish(lunway(&["inspect", &busy]), PATIENCE);
    let (said, took) = (String::from_utf8_lossy(&output.stderr).into_owned(), begun.elapsed());
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("answers REPORT LUNS with BUSY: waiting for up to"), "{said}");
    assert_eq!(said.matches("waiting for").count(), 1, "{said}");
    // Its own time, and not that of each further command.
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(9), "{took:?}: {said}");
}

#[test]
fn what_a_hostile_target_puts_into_its_names_does_not_reach_the_terminal() {
    const TEXT_RESPONSE: u8 = 0x24;
    let served = Served::start(&["--lun", "0=ram:16M"]);
    let hostile = |mut pdu: Vec<u8>| {
        let (named, answers) = (b"example:disk", [TEXT_RESPONSE, DATA_IN]);
        if answers.contains(&pdu[0])
            && let Some(at) = pdu.windows(named.len()).position(|bytes| bytes == named)
        {
            // Escape, C1's CSI, a right-to-left override.
            pdu[at..at + 6].copy_from_slice("\u{1b}\u{9b}\u{202e}".as_bytes());
        }
        Some(pdu)
    };
    let portal = way(&served.address, hostile);
    for words in [vec!["discover", &portal], vec!["discover", &portal, "--json"]] {
        let output = finish(lunway(&words), PATIENCE);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && printed.contains("e:disk"), "{words:?}: {printed:?}");
        assert!(!printed.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{words:?}: {printed:?}");
    }
}

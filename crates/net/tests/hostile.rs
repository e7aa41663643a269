//! Peers that mean harm, or are broken, against a responder.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use lunway_net::{Client, Direction, Loopback, NetError, SESSIONS_MAX, Shape, Window};

const BRIEFLY: Duration = Duration::from_millis(100);

fn responder() -> Loopback {
    Loopback::start(Ipv4Addr::LOCALHOST.into()).unwrap()
}

fn peer(responder: &Loopback) -> TcpStream {
    let stream = TcpStream::connect(responder.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// A request as the protocol's page has it.
fn request(task: u8, milliseconds: u32, request: u32, answer: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(b"lunwynet");
    bytes[9] = 1;
    bytes[10] = task;
    bytes[16..20].copy_from_slice(&milliseconds.to_be_bytes());
    bytes[20..24].copy_from_slice(&request.to_be_bytes());
    bytes[24..28].copy_from_slice(&answer.to_be_bytes());
    bytes
}

/// The status byte of the welcome.
fn status(stream: &mut TcpStream) -> u8 {
    let mut welcome = [0; 64];
    stream.read_exact(&mut welcome).unwrap();
    assert_eq!(&welcome[..8], b"lunwynet");
    welcome[10]
}

/// Bytes until the end of the stream, or until it is reset.
fn rest(stream: &mut TcpStream) -> u64 {
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return total,
            Ok(bytes) => total += bytes as u64,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return total,
            Err(error) => panic!("after {total} bytes: {error}"),
        }
    }
}

fn still_answers(responder: &Loopback) {
    let client = Client::connect(responder.address(), None, Window::Auto).unwrap();
    assert!(client.round_trips(Shape::read(512), 1, BRIEFLY).unwrap().count > 0);
}

/// Marsaglia's xorshift: the same garbage in every run.
fn garbage(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn garbage_gets_a_refusal_of_64_bytes_and_no_more() {
    let responder = responder();
    thread::scope(|scope| {
        for seed in 0..48 {
            let responder = &responder;
            scope.spawn(move || {
                let mut stream = peer(responder);
                let _ = stream.write_all(&garbage(seed, 32 + seed as usize * 100));
                let _ = stream.shutdown(Shutdown::Write);
                assert!(rest(&mut stream) <= 64);
            });
        }
    });
    still_answers(&responder);
}

#[test]
fn requests_that_are_right_but_for_a_few_bytes_never_get_more_than_they_may_ask_for() {
    let responder = responder();
    thread::scope(|scope| {
        for seed in 0..48u64 {
            let responder = &responder;
            scope.spawn(move || {
                let mut bytes = request(
                    (seed % 4) as u8,
                    50,
                    48 * u32::from(seed % 4 == 3),
                    48 * u32::from(seed % 4 == 3),
                );
                let noise = garbage(seed + 1000, 4);
                // Not the duration: that may be ten minutes.
                let places = [0, 8, 9, 10, 11, 12, 13, 20, 24, 28, 31];
                for pair in noise.chunks(2).take(1 + seed as usize % 2) {
                    bytes[places[pair[0] as usize % places.len()]] = pair[1];
                }
                let mut stream = peer(responder);
                let _ = stream.write_all(&bytes);
                let _ = stream.write_all(b"G");
                let _ = stream.write_all(&garbage(seed, 500));
                let _ = stream.shutdown(Shutdown::Write);
                rest(&mut stream);
            });
        }
    });
    still_answers(&responder);
}

#[test]
fn what_is_out_of_bounds_or_of_another_version_is_refused_by_name() {
    let responder = responder();
    let refused = |bytes: [u8; 32]| {
        let mut stream = peer(&responder);
        stream.write_all(&bytes).unwrap();
        let status = status(&mut stream);
        assert_eq!(rest(&mut stream), 0, "nothing after a refusal");
        status
    };
    assert_eq!(refused(request(2, 600_001, 0, 0)), 4);
    assert_eq!(refused(request(3, 10, 0, 48)), 4);
    assert_eq!(refused(request(3, 10, 48, u32::MAX)), 4);
    assert_eq!(refused(request(9, 10, 0, 0)), 2);
    let mut other = request(0, 0, 0, 0);
    other[9] = 7;
    assert_eq!(refused(other), 1);
}

#[test]
fn nothing_is_sent_before_the_go_nor_after_the_time_that_was_asked_for() {
    let responder = responder();
    let mut stream = peer(&responder);
    stream.write_all(&request(2, 100, 0, 0)).unwrap();
    assert_eq!(status(&mut stream), 0);
    stream.set_read_timeout(Some(BRIEFLY)).unwrap();
    assert!(stream.read(&mut [0]).is_err(), "nothing comes yet");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let start = Instant::now();
    stream.write_all(b"G").unwrap();
    assert!(rest(&mut stream) > 1 << 16);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn one_request_for_many_large_answers_ends_when_nobody_reads_them() {
    let responder = responder();
    let mut stream = peer(&responder);
    // A thousand requests of one byte for 64 MiB each: 64 GiB are owed.
    stream.write_all(&request(3, 1, 1, 64 << 20)).unwrap();
    assert_eq!(status(&mut stream), 0);
    stream.write_all(b"G").unwrap();
    stream.write_all(&[0; 1000]).unwrap();
    // A client that hangs up ends it at once; the responder goes on serving others meanwhile.
    still_answers(&responder);
    drop(stream);
    let start = Instant::now();
    drop(responder);
    assert!(start.elapsed() < Duration::from_secs(5), "a responder ends whatever its peers do");
}

#[test]
fn a_peer_that_says_nothing_is_hung_up_on() {
    let responder = responder();
    let mut silent = peer(&responder);
    let mut slow = peer(&responder);
    let start = Instant::now();
    thread::scope(|scope| {
        // A byte now and then does not extend the time.
        let trickle = slow.try_clone().unwrap();
        scope.spawn(move || {
            let mut trickle = &trickle;
            for byte in request(0, 0, 0, 0).chunks(1).take(31) {
                thread::sleep(Duration::from_millis(250));
                if trickle.write_all(byte).is_err() {
                    return;
                }
            }
        });
        assert_eq!((rest(&mut silent), rest(&mut slow)), (0, 0));
    });
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn more_measurements_than_allowed_are_told_that_the_responder_is_busy() {
    let responder = responder();
    let waiting: Vec<TcpStream> = (0..SESSIONS_MAX)
        .map(|_| {
            let mut stream = peer(&responder);
            stream.write_all(&request(1, 100, 0, 0)).unwrap();
            assert_eq!(status(&mut stream), 0);
            stream
        })
        .collect();
    let error = Client::connect(responder.address(), None, Window::Auto).unwrap_err();
    assert!(matches!(error, NetError::Busy(peer) if peer == responder.address()), "{error}");
    drop(waiting);
    let start = Instant::now();
    while Client::connect(responder.address(), None, Window::Auto).is_err() {
        assert!(start.elapsed() < Duration::from_secs(5), "hung up: there is room again");
    }
    let client = Client::connect(responder.address(), None, Window::Auto).unwrap();
    assert!(client.throughput(Direction::Send, 1, BRIEFLY).unwrap().bytes() > 0);
}

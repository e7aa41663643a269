//! Both ends in one process, over loopback.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use lunway_net::{Client, Direction, Loopback, Mtu, NetError, Plan, Shape, StopFlag, Window, matrix};

const BRIEFLY: Duration = Duration::from_millis(300);

fn responder() -> Loopback {
    Loopback::start(Ipv4Addr::LOCALHOST.into()).unwrap()
}

fn client(responder: &Loopback) -> Client {
    Client::connect(responder.address(), None, Window::Auto).unwrap()
}

#[test]
fn throughput_is_counted_at_both_ends_in_both_directions() {
    let responder = responder();
    for direction in [Direction::Send, Direction::Receive] {
        let measured = client(&responder).throughput(direction, 1, BRIEFLY).unwrap();
        assert!(measured.complete && measured.bytes() > 1 << 20, "{measured:?}");
        let elapsed = measured.elapsed();
        assert!(elapsed > BRIEFLY / 2 && elapsed < BRIEFLY * 20, "{elapsed:?}");
        let stream = &measured.streams[0];
        let far = stream.far.unwrap();
        let (sender, receiver) = match direction {
            Direction::Send => (stream.near, far),
            Direction::Receive => (far, stream.near),
        };
        assert!(
            receiver.tcp.received >= stream.bytes,
            "{direction:?}: {} of {}, {receiver:?}",
            receiver.tcp.received,
            stream.bytes
        );
        assert!(sender.tcp.segments_sent > 0 && !sender.tcp.busy.is_zero(), "{sender:?}");
        assert!(measured.cpu_ns_per_byte_near() > 0.0 && measured.cpu_ns_per_byte_far().unwrap() > 0.0);
        assert!(stream.series.is_sorted() && !stream.series.is_empty());
        let later = measured.bits_per_second_after(elapsed / 2).unwrap();
        assert!(later > measured.bits_per_second() / 10.0, "{later} of {}", measured.bits_per_second());
    }
}

#[test]
fn several_streams_run_at_the_same_time() {
    let responder = responder();
    let start = Instant::now();
    let measured = client(&responder).throughput(Direction::Send, 4, BRIEFLY).unwrap();
    assert_eq!(measured.streams.len(), 4);
    assert!(measured.streams.iter().all(|stream| stream.bytes > 0));
    assert!(measured.streams.iter().map(|stream| stream.elapsed).sum::<Duration>() > start.elapsed());
}

#[test]
fn a_window_is_granted_twice_and_keeps_the_data_under_way_within_it() {
    let responder = responder();
    let client = client(&responder).with_window(Window::Bytes(65536));
    for direction in [Direction::Send, Direction::Receive] {
        // The kernel takes its buffer for the clamp when segments change, which a busy machine can make it do, and it
        // is set again within 100 ms: what is offered at the end may be either. So one of several counts, and the
        // buffer is the most.
        let offered = (0..8).map(|_| {
            let measured = client.throughput(direction, 1, BRIEFLY).unwrap();
            let stream = &measured.streams[0];
            for end in [stream.near, stream.far.unwrap()] {
                assert_eq!((end.buffers.send, end.buffers.receive), (131_072, 131_072));
            }
            assert!(!measured.clipped());
            assert!(measured.window_limit().unwrap() > 0.0);
            measured.senders().next().unwrap().tcp.peer_window
        });
        let mut bounded = offered.inspect(|window| assert!(*window <= 131_072, "{direction:?}: {window}"));
        assert!(bounded.any(|window| (1024..=65536).contains(&window)), "{direction:?}: never within it");
    }
}

#[test]
fn a_window_larger_than_the_default_opens_to_its_size() {
    let responder = responder();
    let client = client(&responder).with_window(Window::Bytes(1 << 20));
    for direction in [Direction::Send, Direction::Receive] {
        // What the peer offers at the end is its window less what it has not read yet: on a busy machine that can be
        // half of it, so the widest of several counts; none may be wider than asked for.
        let offered = (0..8).map(|_| {
            let measured = client.throughput(direction, 1, BRIEFLY).unwrap();
            measured.senders().next().unwrap().tcp.peer_window
        });
        let mut bounded = offered.inspect(|window| assert!(*window <= 1 << 20, "{direction:?}: {window}"));
        assert!(bounded.any(|window| window >= 512 << 10), "{direction:?}: never half open");
    }
}

#[test]
fn a_window_beyond_what_the_kernel_allows_is_said_to_be_clipped() {
    let responder = responder();
    let client = client(&responder).with_window(Window::Bytes(1 << 30));
    assert!(client.throughput(Direction::Send, 1, BRIEFLY).unwrap().clipped());
}

#[test]
fn an_mtu_limits_the_segments_of_both_ends() {
    let responder = responder();
    let client = client(&responder).with_mtu(Some(1500));
    for direction in [Direction::Send, Direction::Receive] {
        let measured = client.throughput(direction, 1, BRIEFLY).unwrap();
        let tcp = measured.senders().next().unwrap().tcp;
        // 1500 less the headers of IPv4 and TCP, and timestamps where they are on.
        assert_eq!(tcp.segment, if tcp.timestamps { 1448 } else { 1460 }, "{direction:?}");
    }
}

#[test]
fn reads_of_4_kib_at_depth_32_move_and_end() {
    let measured = client(&responder()).round_trips(Shape::read(4096), 32, BRIEFLY).unwrap();
    assert!(measured.complete && measured.count > 100, "{measured:?}");
    assert_eq!(measured.latency.len(), measured.count);
    assert!(measured.near.tcp.received >= measured.count * 4144);
    assert_eq!(measured.bytes_per_second(), measured.per_second() * 4096.0);
    assert!(measured.far.unwrap().cpu > Duration::ZERO);
}

#[test]
fn one_round_trip_at_a_time_takes_as_long_as_their_rate_says() {
    let measured = client(&responder()).round_trips(Shape::write(4096), 1, BRIEFLY).unwrap();
    let mean = measured.latency.mean() / 1e9;
    assert!(
        (mean * measured.per_second() - 1.0).abs() < 0.1,
        "{mean} s, {} per second",
        measured.per_second()
    );
}

#[test]
fn requests_and_answers_larger_than_every_buffer_do_not_block_for_good() {
    let responder = responder();
    let shape = Shape { request: 4 << 20, answer: 4 << 20 };
    let measured = client(&responder).round_trips(shape, 8, BRIEFLY).unwrap();
    assert!(measured.count >= 8);
    let measured = client(&responder)
        .with_window(Window::Bytes(4096))
        .round_trips(Shape::read(4096), 512, BRIEFLY)
        .unwrap();
    assert!(measured.count >= 512);
}

#[test]
fn a_stop_ends_everything_early_and_keeps_what_was_measured() {
    let responder = responder();
    let long = Duration::from_secs(60);
    for direction in [Direction::Send, Direction::Receive] {
        let stop = StopFlag::new();
        let client = client(&responder).with_stop(stop.clone());
        let start = Instant::now();
        let measured = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(BRIEFLY);
                stop.stop();
            });
            client.throughput(direction, 2, long).unwrap()
        });
        assert!(start.elapsed() < Duration::from_secs(15));
        assert!(
            !measured.complete && measured.bytes() > 0 && measured.bits_per_second() > 1e6,
            "{measured:?}"
        );
    }
    let stop = StopFlag::new();
    let client = client(&responder).with_stop(stop.clone());
    let measured = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(BRIEFLY);
            stop.stop();
        });
        client.round_trips(Shape::read(512), 1, long).unwrap()
    });
    assert!(!measured.complete && measured.count > 0);
}

#[test]
fn an_address_where_nobody_listens_is_said_with_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Client::connect(free, None, Window::Auto).unwrap_err();
    assert!(matches!(error, NetError::Connect { .. }));
    assert!(error.to_string().contains(&format!("lunway net serve --listen {free}")), "{error}");
}

/// A server that reads a request and says `words`.
fn other_server(words: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 32];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(&words).unwrap();
    });
    address
}

#[test]
fn another_kind_of_server_or_version_is_told_from_a_responder() {
    let web = other_server(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    let error = Client::connect(web, None, Window::Auto).unwrap_err();
    assert!(matches!(error, NetError::Foreign(peer) if peer == web), "{error}");

    let mut welcome = b"lunwynet\0\x09\x01".to_vec();
    welcome.resize(64, 0);
    let error = Client::connect(other_server(welcome), None, Window::Auto).unwrap_err();
    assert!(matches!(error, NetError::Version { theirs: 9, .. }), "{error}");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_sent() {
    let responder = responder();
    let client = client(&responder);
    let unreasonable = |result: Result<_, NetError>| matches!(result, Err(NetError::Unreasonable(_)));
    assert!(unreasonable(client.throughput(Direction::Send, 0, BRIEFLY).map(drop)));
    assert!(unreasonable(client.throughput(Direction::Send, 17, BRIEFLY).map(drop)));
    assert!(unreasonable(client.throughput(Direction::Send, 1, Duration::from_secs(3600)).map(drop)));
    assert!(unreasonable(client.round_trips(Shape { request: 0, answer: 1 }, 1, BRIEFLY).map(drop)));
    assert!(unreasonable(client.round_trips(Shape::read(1), 0, BRIEFLY).map(drop)));
    assert!(unreasonable(client.with_mtu(Some(100)).throughput(Direction::Send, 1, BRIEFLY).map(drop)));
}

#[test]
fn a_matrix_has_every_combination_and_says_which_mtus_it_could_not_show() {
    let responder = responder();
    let plan = Plan {
        windows: vec![Window::Bytes(65536), Window::Auto],
        mtus: vec![None, Some(1500), Some(u32::MAX)],
        streams: vec![1, 2],
        round_trips: vec![(Shape::read(4096), 1)],
        time: Duration::from_millis(50),
        ..Plan::default()
    };
    let mut steps = Vec::new();
    let matrix =
        matrix(&client(&responder), &plan, &StopFlag::new(), &mut |step| steps.push(step.clone())).unwrap();
    assert!(matrix.complete && matrix.failure.is_none());
    assert_eq!((matrix.cells.len(), matrix.round_trips.len(), steps.len()), (16, 1, 17));
    assert_eq!(matrix.mtus_beyond, [u32::MAX]);
    assert_eq!(matrix.cells.iter().filter(|cell| cell.mtu == Mtu::Emulated(1500)).count(), 8);
    assert!(steps.iter().enumerate().all(|(index, step)| step.index == index && step.count == 17));
    assert!(
        matrix.remarks(None)[0].text.starts_with("The wire carries at most "),
        "{:?}",
        matrix.remarks(None)
    );
}

#[test]
fn a_matrix_that_is_stopped_keeps_the_cells_that_were_measured() {
    let responder = responder();
    let stop = StopFlag::new();
    let plan = Plan { time: Duration::from_millis(50), ..Plan::default() };
    let matrix = matrix(&client(&responder), &plan, &stop, &mut |step| {
        if step.index == 2 {
            stop.stop();
        }
    })
    .unwrap();
    assert!(!matrix.complete && (2..=3).contains(&matrix.cells.len()), "{}", matrix.cells.len());
}

//! Cables on which frames take time and get lost.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lunway_lab::{LabError, Loss, Network};
use lunway_net::{Client, Direction, Loopback, Window};

use crate::inside::{inside, two_hosts};

const LINE: &str =
    "[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\nrate = '1Gbit'\ndelay = '0s'\n";

/// Two sockets on the two ends of `lane1`, the second for what the first sends.
fn datagrams(network: &Network) -> [UdpSocket; 2] {
    let [near, far] = ["server", "storage"].map(|name| {
        let host = network.host(name).unwrap();
        let address = host.address("eth0").unwrap();
        host.run(|| UdpSocket::bind((address, 0)).unwrap()).unwrap()
    });
    near.connect(far.local_addr().unwrap()).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    // So that the address is known, and nothing waits for an answer of ARP.
    near.send(&u64::MAX.to_be_bytes()).unwrap();
    far.recv(&mut [0; 8]).unwrap();
    [near, far]
}

/// Says that no more comes.
const END: u64 = 1 << 40;
/// Datagrams under way at most: fewer than any socket holds, so that none is lost where its reader has to wait for a
/// core.
const WINDOW: u64 = 150;

/// Sends numbers from one socket to the other, and then the end so often that some of it arrives; the numbers that
/// came.
fn exchange([near, far]: [&UdpSocket; 2], count: u64, mut at: impl FnMut(u64)) -> Vec<u64> {
    let highest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut number = [0; 8];
            let next = || far.recv(&mut number).ok().map(|_| u64::from_be_bytes(number));
            let come = std::iter::from_fn(next).take_while(|number| *number < END);
            come.inspect(|number| highest.store(*number, Ordering::Relaxed)).collect()
        });
        for number in 0..count {
            at(number);
            while number.saturating_sub(highest.load(Ordering::Relaxed)) > WINDOW {
                std::thread::sleep(Duration::from_micros(200));
            }
            near.send(&number.to_be_bytes()).unwrap();
        }
        for _ in 0..WINDOW / 2 {
            near.send(&END.to_be_bytes()).unwrap();
        }
        receiver.join().unwrap()
    })
}

/// Round trips of one byte over one connection, shortest first.
fn round_trips(network: &Network, count: usize) -> Vec<Duration> {
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    let address = storage.address("eth0").unwrap();
    let listener = storage.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let mut near = server.run(|| TcpStream::connect(target).unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    let mut trips: Vec<Duration> = (0..count)
        .map(|_| {
            let start = Instant::now();
            near.write_all(&[1]).unwrap();
            near.read_exact(&mut [0]).unwrap();
            start.elapsed()
        })
        .collect();
    drop(near);
    echo.join().unwrap();
    trips.sort_unstable();
    trips
}

/// Rounds of trips of which one must keep to the delay: more than a disturbance of a busy machine lasts.
const ROUNDS: usize = 8;

#[test]
fn a_round_trip_takes_the_delay_of_both_ways() {
    if !inside("line::a_round_trip_takes_the_delay_of_both_ways") {
        return;
    }
    let network = two_hosts(LINE);
    let lane = network.cable("lane1").unwrap();
    // What the hosts themselves take.
    let base = round_trips(&network, 100)[10];
    for delay in [Duration::from_micros(500), Duration::from_millis(3), Duration::from_millis(15)] {
        lane.set_delay(delay).unwrap();
        assert_eq!(lane.delay(), delay);
        // Other work on the machine delays every trip of a round now and then; a line that is late by itself is late in
        // each.
        let mut late = Vec::new();
        while late.len() < ROUNDS {
            let trips = round_trips(&network, 40);
            assert!(trips[0] >= delay * 2, "never early: {trips:?}");
            // The tenth that others on the machine disturbed least.
            let typical = trips[4];
            if typical <= delay.mul_f64(2.0 * 1.05) + base + Duration::from_micros(100) {
                break;
            }
            late.push(typical);
        }
        assert!(late.len() < ROUNDS, "{delay:?} both ways took {late:?}, without it {base:?}");
    }
}

#[test]
fn a_share_of_the_frames_gets_lost_and_the_rest_keeps_its_order() {
    if !inside("line::a_share_of_the_frames_gets_lost_and_the_rest_keeps_its_order") {
        return;
    }
    let network = two_hosts(LINE);
    let lane = network.cable("lane1").unwrap();
    let [near, far] = datagrams(&network);
    lane.set_loss(Loss::new(0.05)).unwrap();
    lane.set_delay(Duration::from_millis(20)).unwrap();
    const COUNT: u64 = 6000;
    let received = exchange([&near, &far], COUNT, |number| {
        if number == COUNT / 2 {
            // What is under way has this long to go, and may not be overtaken.
            lane.set_delay(Duration::ZERO).unwrap();
        }
    });
    assert!(received.is_sorted_by(|a, b| a < b), "in order, none twice");
    let lost = COUNT as f64 - received.len() as f64;
    let (mean, deviation) = (COUNT as f64 * 0.05, (COUNT as f64 * 0.05 * 0.95).sqrt());
    assert!((lost - mean).abs() < 4.0 * deviation, "{lost} of {COUNT} lost, {mean} expected");
}

#[test]
fn nothing_gets_lost_that_was_not_to_and_all_that_was() {
    if !inside("line::nothing_gets_lost_that_was_not_to_and_all_that_was") {
        return;
    }
    let network = two_hosts(LINE);
    let [near, far] = datagrams(&network);
    assert_eq!(exchange([&near, &far], 2000, |_| {}).len(), 2000);
    network.cable("lane1").unwrap().set_loss(Loss::new(1.0)).unwrap();
    far.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(exchange([&near, &far], 1, |_| {}).is_empty());
}

#[test]
fn a_line_carries_200_megabits_of_full_frames() {
    if !inside("line::a_line_carries_200_megabits_of_full_frames") {
        return;
    }
    let network = two_hosts(LINE);
    network.cable("lane1").unwrap().set_delay(Duration::from_millis(1)).unwrap();
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    let [here, there] = [server, storage].map(|host| host.address("eth0").unwrap());
    let responder = storage.run(|| Loopback::start(there).unwrap()).unwrap();
    let client =
        server.run(|| Client::connect(responder.address(), Some(here), Window::Auto).unwrap()).unwrap();
    // The best of several: others work on this machine too.
    let mut best = 0.0_f64;
    for _ in 0..8 {
        let measured = server
            .run(|| client.throughput(Direction::Send, 1, Duration::from_millis(600)).unwrap())
            .unwrap();
        best = best.max(measured.bits_per_second() / 1e6);
        if best >= 200.0 {
            return;
        }
    }
    panic!("{best} Mb/s");
}

#[test]
fn delay_and_loss_are_for_lines() {
    if !inside("line::delay_and_loss_are_for_lines") {
        return;
    }
    let network = two_hosts("[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\n");
    let lane = network.cable("lane1").unwrap();
    assert!(matches!(lane.set_delay(Duration::ZERO), Err(LabError::NotALine { what: "delay", .. })));
    assert!(matches!(lane.set_loss(Loss::default()), Err(LabError::NotALine { what: "loss", .. })));
    assert!(matches!(lane.set_rate("1Gbit".parse().unwrap()), Err(LabError::NoRate { .. })));
}

#[test]
fn a_line_is_a_cable_to_a_switch_too() {
    if !inside("line::a_line_is_a_cable_to_a_switch_too") {
        return;
    }
    let network = two_hosts(
        "[[switch]]\nname = 'fabric'
         [[cable]]\nname = 'lane1'\nends = ['server.eth0', 'fabric']\ndelay = '3ms'
         [[cable]]\nname = 'lane2'\nends = ['fabric', 'storage.eth0']\nrate = '50Mbit'",
    );
    assert!(round_trips(&network, 5)[0] >= Duration::from_millis(6));
    let calibrated = network
        .calibrate_for(Duration::from_millis(400), &mut |_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(calibrated.iter().filter(|one| one.expected_mb_s.is_some()).count(), 2);
    assert_eq!(network.cable("lane1").unwrap().delay(), Duration::from_millis(3));
    assert!(round_trips(&network, 5)[0] >= Duration::from_millis(6), "calibration gives the delay back");
}

#[test]
fn one_connection_can_fill_a_long_line() {
    if !inside("line::one_connection_can_fill_a_long_line") {
        return;
    }
    let line = LINE.replace("delay = '0s'", "delay = '75ms'");
    let network = two_hosts(&line);
    for name in ["tcp_rmem", "tcp_wmem"] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let text = network.host("server").unwrap().run(|| std::fs::read_to_string(path)).unwrap().unwrap();
        let most: u64 = text.split_whitespace().last().unwrap().parse().unwrap();
        // 1 Gbit/s for 150 ms.
        assert!(most >= 4 * 18_750_000, "{name}: {text}");
    }
}

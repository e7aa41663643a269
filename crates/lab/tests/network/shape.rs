//! What a network looks like to who is in it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lunway_lab::{LabError, Network, Rate};

use crate::inside::{as_nobody, inside, packet_devices, two_hosts};

#[test]
fn hosts_meet_over_their_cable_and_nowhere_else() {
    if !inside("shape::hosts_meet_over_their_cable_and_nowhere_else") {
        return;
    }
    let network = two_hosts(
        "[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\nrate = '100Mbit'\nmtu = 9000\n
         [[host]]\nname = 'alone'",
    );
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    let address = storage.address("eth0").unwrap();
    let listener = storage.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let mut near = server.run(|| TcpStream::connect(target).unwrap()).unwrap();
    let (mut far, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), server.address("eth0").unwrap());
    near.write_all(b"over the cable").unwrap();
    let mut received = [0; 14];
    far.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"over the cable");

    let alone = network.host("alone").unwrap();
    let second = Duration::from_secs(1);
    assert!(alone.run(|| TcpStream::connect_timeout(&target, second).is_err()).unwrap());
    assert!(TcpStream::connect_timeout(&target, second).is_err(), "the sandbox itself is not connected");
    assert!(server.address("eth1").is_err() && network.cable("lane2").is_err());
    assert!(["cubic", "reno"].contains(&network.congestion_control()));
}

#[test]
fn an_ordinary_user_builds_networks_of_every_kind() {
    const NAME: &str = "shape::an_ordinary_user_builds_networks_of_every_kind";
    as_nobody(NAME);
    if !inside(NAME) {
        return;
    }
    let (delay, loss) = if packet_devices() { ("delay = '1ms'\n", "loss = '0%'") } else { ("", "") };
    let network = two_hosts(&format!(
        "[[switch]]\nname = 'left'\n[[switch]]\nname = 'right'
         [[cable]]\nname = 'direct'\nends = ['server.eth0', 'storage.eth0']\nrate = '100Mbit'
         [[cable]]\nname = 'up'\nends = ['server.eth1', 'left']\nrate = '100Mbit'
         [[cable]]\nname = 'trunk'\nends = ['left', 'right']\n{delay}rate = '100Mbit'
         [[cable]]\nname = 'down'\nends = ['right', 'storage.eth1']\n{loss}"
    ));
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    for card in ["eth0", "eth1"] {
        let [from, to] = [server, storage].map(|host| host.address(card).unwrap());
        let listener = storage.run(|| TcpListener::bind((to, 0)).unwrap()).unwrap();
        let target = listener.local_addr().unwrap();
        let near = server.run(|| TcpStream::connect(target).unwrap()).unwrap();
        assert_eq!(near.local_addr().unwrap().ip(), from);
    }
    for cable in network.cables() {
        cable.pull().unwrap();
        cable.black_hole().unwrap();
        cable.mend().unwrap();
    }
}

#[test]
fn the_port_of_a_switch_is_shared_by_who_sends_to_it() {
    if !inside("shape::the_port_of_a_switch_is_shared_by_who_sends_to_it") {
        return;
    }
    let network = two_hosts(
        "[[host]]\nname = 'other'\n[[switch]]\nname = 'fabric'
         [[cable]]\nname = 'a'\nends = ['server.eth0', 'fabric']\nrate = '100Mbit'
         [[cable]]\nname = 'b'\nends = ['other.eth0', 'fabric']\nrate = '100Mbit'
         [[cable]]\nname = 'c'\nends = ['fabric', 'storage.eth0']\nrate = '40Mbit'",
    );
    let storage = network.host("storage").unwrap();
    let address = storage.address("eth0").unwrap();
    let listener = storage.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let counts: [AtomicU64; 2] = Default::default();
    let expected = network.cable("c").unwrap().description().payload_bytes_per_second(Rate::new(40_000_000));
    std::thread::scope(|scope| {
        let mut near = Vec::new();
        for (name, count) in ["server", "other"].into_iter().zip(&counts) {
            let mut sender = network.host(name).unwrap().run(|| TcpStream::connect(target).unwrap()).unwrap();
            let (mut receiver, _) = listener.accept().unwrap();
            near.push(sender.try_clone().unwrap());
            scope.spawn(move || while sender.write_all(&[7; 16384]).is_ok() {});
            scope.spawn(move || {
                let mut buffer = vec![0; 65536];
                while let Ok(bytes @ 1..) = receiver.read(&mut buffer) {
                    count.fetch_add(bytes as u64, Ordering::Relaxed);
                }
            });
        }
        let so_far = || [0, 1].map(|which: usize| counts[which].load(Ordering::Relaxed));
        // Until both have found their windows.
        std::thread::sleep(Duration::from_millis(700));
        // Two that press into one port lose packets, and may wait for a timeout: then it is not full for that time.
        let mut shares = Vec::new();
        let shared = (0..6).any(|_| {
            let (start, before) = (Instant::now(), so_far());
            std::thread::sleep(Duration::from_millis(1500));
            let (elapsed, after) = (start.elapsed().as_secs_f64(), so_far());
            let [a, b] =
                [0, 1].map(|which: usize| (after[which] - before[which]) as f64 / elapsed / expected);
            shares.push([a, b]);
            a + b > 0.9 && a.min(b) > 0.02
        });
        for stream in near {
            stream.shutdown(Shutdown::Both).unwrap();
        }
        assert!(shared, "of the port's rate: {shares:?}");
        assert!(shares.iter().all(|[a, b]| a + b < 1.08), "more than the port carries: {shares:?}");
    });
}

#[test]
fn what_a_description_says_is_a_script_that_builds_the_same() {
    if !inside("shape::what_a_description_says_is_a_script_that_builds_the_same") {
        return;
    }
    let text = "host = [{ name = 'server' }, { name = 'storage' }]\nswitch = [{ name = 'fabric' }]\ncable = [
        { name = 'lane1', ends = ['server.eth0', 'storage.eth0'], rate = '1Gbit', mtu = 9000 },
        { name = 'up', ends = ['server.eth1', 'fabric'], rate = '100Mbit' },
        { name = 'down', ends = ['fabric', 'storage.eth1'], delay = '1ms' }]";
    let script = Network::script(&toml::from_str(text).unwrap()).unwrap();
    // Namespaces with names need a folder, which here nobody else sees.
    let checks = "\nip -n server -o addr show eth0 | grep -q 10.77.1.1/24
        ip -n server link show eth0 | grep -q 'mtu 9000.*state UP'
        tc -n storage qdisc show dev eth0 | grep -q 'rate 1Gbit.*overhead 24'
        tc -n fabric-of-lab qdisc show dev up.a | grep -q 'rate 100Mbit'
        ip -n storage rule | grep -q 10.77.2.2
        echo built";
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &format!("mount -t tmpfs none /run\n{script}{checks}")]);
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let output = shell.env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.ends_with(b"built\n"), "{said}\n{script}");
}

#[test]
fn a_cable_carries_its_rate_counted_in_frames() {
    if !inside("shape::a_cable_carries_its_rate_counted_in_frames") {
        return;
    }
    let network =
        two_hosts("[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\nrate = '20Mbit'");
    let cable = network.cable("lane1").unwrap();
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    let address = storage.address("eth0").unwrap();
    let listener = storage.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let mut near = server.run(|| TcpStream::connect(target).unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    std::thread::spawn(move || while near.write_all(&[7; 65536]).is_ok() {});
    let measure = |far: &mut TcpStream, time: Duration| {
        let mut buffer = vec![0; 65536];
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            bytes += far.read(&mut buffer).unwrap();
        }
        bytes as f64 / start.elapsed().as_secs_f64()
    };
    // A machine whose time is taken may stand still for a part of one second; in none may more pass than the rate.
    let mut settles = |expected: f64| {
        measure(&mut far, Duration::from_millis(300));
        let mut seen = Vec::new();
        let reached = (0..6).any(|_| {
            seen.push(measure(&mut far, Duration::from_secs(1)) / expected);
            seen.last() > Some(&0.95)
        });
        assert!(reached && seen.iter().all(|&part| part < 1.05), "parts of {expected}: {seen:?}");
    };
    let expected = cable.description().payload_bytes_per_second(cable.rate().unwrap());
    assert!((expected / 20e6 * 8.0 - 0.9415).abs() < 0.0001, "{expected}");
    settles(expected);

    // Frames, not bundles of them: or the shaper would count too little, and an MTU mean nothing.
    let counters = storage.run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let card = counters.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
    let card: Vec<f64> = card.split_whitespace().map(|field| field.parse().unwrap()).collect();
    let (bytes, frames) = (card[0], card[1]);
    assert!((1400.0..=1514.0).contains(&(bytes / frames)), "{bytes} bytes in {frames} frames");

    cable.set_rate("40Mbit".parse().unwrap()).unwrap();
    settles(2.0 * expected);
}

#[test]
fn a_card_takes_its_own_traffic_also_in_one_subnet_with_another() {
    if !inside("shape::a_card_takes_its_own_traffic_also_in_one_subnet_with_another") {
        return;
    }
    let network = two_hosts(
        "[[switch]]\nname = 'fabric'
         [[cable]]\nname = 'up1'\nends = ['server.eth0', 'fabric']
         [[cable]]\nname = 'up2'\nends = ['fabric', 'server.eth1']
         [[cable]]\nname = 'down1'\nends = ['storage.eth0', 'fabric']
         [[cable]]\nname = 'down2'\nends = ['storage.eth1', 'fabric']",
    );
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    for (near, far) in [("eth0", "eth0"), ("eth0", "eth1"), ("eth1", "eth0"), ("eth1", "eth1")] {
        let [from, to] = [server.address(near).unwrap(), storage.address(far).unwrap()];
        let receiver = storage.run(|| UdpSocket::bind((to, 0)).unwrap()).unwrap();
        let sender = server.run(|| UdpSocket::bind((from, 0)).unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // Another card's cable is out: it was this one's way, or nothing arrives.
        let [other_near, other_far] =
            [["up1", "up2"][usize::from(near == "eth0")], ["down1", "down2"][usize::from(far == "eth0")]];
        network.cable(other_near).unwrap().pull().unwrap();
        network.cable(other_far).unwrap().pull().unwrap();
        sender.send_to(b"to", receiver.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 16];
        let (length, seen) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], seen.ip()), (&b"to"[..], from));
        receiver.send_to(b"back", seen).unwrap();
        sender.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(sender.recv(&mut buffer).unwrap(), 4);
        network.cable(other_near).unwrap().plug().unwrap();
        network.cable(other_far).unwrap().plug().unwrap();
    }
}

#[test]
fn every_cable_is_calibrated_in_both_directions_also_at_switches() {
    if !inside("shape::every_cable_is_calibrated_in_both_directions_also_at_switches") {
        return;
    }
    let network = two_hosts(
        "[[switch]]\nname = 'left'\n[[switch]]\nname = 'right'
         [[cable]]\nname = 'direct'\nends = ['server.eth0', 'storage.eth0']\nrate = '100Mbit'\nmtu = 9000
         [[cable]]\nname = 'up'\nends = ['server.eth1', 'left']\nrate = '50Mbit'
         [[cable]]\nname = 'trunk'\nends = ['left', 'right']\nrate = '80Mbit'",
    );
    let mut steps = 0;
    let calibrations = network
        .calibrate_for(Duration::from_millis(500), &mut |progress| {
            assert_eq!(progress.of, 6);
            steps += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    let cables: Vec<&str> = calibrations.iter().map(|calibration| calibration.cable.as_str()).collect();
    assert_eq!(cables, ["direct", "direct", "up", "up", "trunk", "trunk"]);
    for calibration in &calibrations {
        let expected = calibration.expected_mb_s.unwrap();
        assert!((calibration.measured_mb_s / expected - 1.0).abs() <= 0.02, "{calibration:?}");
    }
    assert_eq!(calibrations[0].asked_mb_s, Some(12.5));
    assert_eq!(calibrations[1].from.to_string(), "storage.eth0");
    assert!(steps >= 6);

    let stopped = network.calibrate(&mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(LabError::Interrupted)));
}

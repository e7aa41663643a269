//! Against links whose rate is known, and beside a tool that others trust: each test in network namespaces of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunway_foreign::namespace::{self, ip};
use lunway_net::{Client, Direction, Responder, StopFlag, Throughput, Window, theory};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const NEAR: &str = "10.9.8.1";
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 2);
const FAR_IPERF_PORT: &str = "5201";
const LINK: f64 = 100e6;
/// What a link of 100 Mb/s does: with the preamble, checksum and gap that the queue does not see, and room for 5 ms.
const SHAPED: &str = "tbf rate 100mbit burst 20k limit 64k overhead 24";
const LONG_ENOUGH: Duration = Duration::from_millis(1500);
/// On a busy machine a measurement may find the processor elsewhere; not this often.
const TRIES: usize = 5;

/// Two machines and a cable: this namespace, and another one with a responder.
struct Cable {
    far: Child,
    stop: StopFlag,
    responder: Option<JoinHandle<()>>,
}

impl Cable {
    /// None in the process that only starts the inner one, whose result is the result; or where it cannot be had, which
    /// is noted.
    fn between(test: &str, mtu: u32) -> Option<Self> {
        for tool in ["nsenter", "tc", "sysctl"] {
            lunway_foreign::program(tool)?;
        }
        if !namespace::inside(test) {
            return None;
        }
        let far = Command::new("unshare").args(["--net", "sleep", "120"]).spawn().unwrap();
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let far_namespace = format!("/proc/{}/ns/net", far.id());
        let start = Instant::now();
        while fs::read_link(&far_namespace).unwrap() == own {
            assert!(start.elapsed() < Duration::from_secs(10), "the far namespace does not come to be");
            thread::sleep(Duration::from_millis(5));
        }
        let namespace = File::open(&far_namespace).unwrap();
        let stop = StopFlag::new();
        let mut cable = Self { far, stop: stop.clone(), responder: None };
        ip(&format!("link add near mtu {mtu} type veth peer name far mtu {mtu} netns {}", cable.far.id()));
        ip(&format!("addr add {NEAR}/24 dev near"));
        ip("link set near gso_max_segs 1 up");
        cable.far(&format!("ip addr add {FAR}/24 dev far"));
        cable.far("ip link set far gso_max_segs 1 up");
        // Pacing would be a second limit. Only Reno is free to everybody in every kernel.
        run("sysctl -q -w net.ipv4.tcp_congestion_control=reno");
        cable.far("sysctl -q -w net.ipv4.tcp_congestion_control=reno");
        cable.responder = Some(thread::spawn(move || {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
                .unwrap();
            let listener = TcpListener::bind((FAR, 3262)).unwrap();
            Responder::serve(listener, &stop).unwrap();
        }));
        Some(cable)
    }

    /// Runs a command in the far namespace.
    fn far(&self, command: &str) {
        run(&format!("nsenter --net --target {} {command}", self.far.id()));
    }

    fn shape(&self, queue: &str) {
        run(&format!("tc qdisc replace dev near root {queue}"));
        self.far(&format!("tc qdisc replace dev far root {queue}"));
    }

    /// The cable's near end becomes a port of a switch, and this machine gets another card on it.
    fn put_switch_between(&self) {
        ip(&format!("addr del {NEAR}/24 dev near"));
        ip("link add switch up type bridge");
        ip("link set near master switch");
        ip("link add card type veth peer name port");
        ip("link set port master switch up");
        ip(&format!("addr add {NEAR}/24 dev card"));
        ip("link set card gso_max_segs 1 up");
    }

    fn client(&self) -> Client {
        let start = Instant::now();
        loop {
            match Client::connect((IpAddr::V4(FAR), 3262).into(), NEAR.parse().ok(), Window::Auto) {
                Ok(client) => return client,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
            }
        }
    }

    /// Bits per second by iperf3, counted where they arrive.
    fn iperf(&self, direction: Direction) -> f64 {
        let iperf = lunway_foreign::program("iperf3").unwrap();
        let mut server = Command::new("nsenter");
        server.args(["--net", "--target", &self.far.id().to_string()]).arg(&iperf);
        server.args(["-s", "-1", "-p", FAR_IPERF_PORT]).stdout(Stdio::null());
        let mut server = server.spawn().unwrap();
        let start = Instant::now();
        let output = loop {
            let mut client = Command::new("timeout");
            client.args(["-s", "KILL", "20"]).arg(&iperf);
            client.args(["-c", &FAR.to_string(), "-p", FAR_IPERF_PORT, "-t", "2", "-J"]);
            if direction == Direction::Receive {
                client.arg("-R");
            }
            let output = client.output().unwrap();
            let report = String::from_utf8_lossy(&output.stdout);
            // Without a server that is ready it may say so in its report, and succeed.
            if output.status.success() && report.contains("\"sum_received\"") {
                break report.into_owned();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{}", String::from_utf8_lossy(&output.stdout));
            thread::sleep(Duration::from_millis(50));
        };
        // It was to serve one client; some versions wait for another all the same.
        let _ = server.kill();
        server.wait().unwrap();
        // One number of its report.
        let received = &output[output.find("\"sum_received\"").unwrap()..];
        let rate =
            received[received.find("\"bits_per_second\":").unwrap()..].split([':', ',']).nth(1).unwrap();
        rate.trim().parse().unwrap()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(responder) = self.responder.take() {
            let ended = responder.join();
            assert!(thread::panicking() || ended.is_ok());
        }
        let _ = self.far.kill();
        let _ = self.far.wait();
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let program = lunway_foreign::program(words.next().unwrap()).unwrap();
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Measures until `good`, a few times at most; what was measured last.
fn try_until(mut measure: impl FnMut() -> f64, good: impl Fn(f64) -> bool) -> f64 {
    let mut last = measure();
    for _ in 1..TRIES {
        if good(last) {
            break;
        }
        last = measure();
    }
    last
}

fn goodput_is_that_of_theory(test: &str, mtu: u32) {
    let Some(cable) = Cable::between(test, mtu) else { return };
    cable.shape(SHAPED);
    let client = cable.client();
    assert_eq!(client.path().mtu, mtu);
    let theory = theory::goodput(mtu, LINK, client.path().timestamps);
    for direction in [Direction::Send, Direction::Receive] {
        let share = || {
            let measured = client.throughput(direction, 1, LONG_ENOUGH).unwrap();
            let share = measured.bits_per_second() / theory;
            assert!(share < 1.02, "{direction}: more than a link can carry, {share}");
            share
        };
        let share = try_until(share, |share| share > 0.98);
        assert!(share > 0.98, "{direction}: {share} of {theory}");
    }
}

#[test]
fn a_link_of_100_mbit_carries_what_arithmetic_says_at_an_mtu_of_1500() {
    goodput_is_that_of_theory("a_link_of_100_mbit_carries_what_arithmetic_says_at_an_mtu_of_1500", 1500);
}

#[test]
fn a_link_of_100_mbit_carries_what_arithmetic_says_at_an_mtu_of_9000() {
    goodput_is_that_of_theory("a_link_of_100_mbit_carries_what_arithmetic_says_at_an_mtu_of_9000", 9000);
}

#[test]
fn an_mtu_that_is_emulated_costs_what_it_would_on_cards() {
    let Some(cable) = Cable::between("an_mtu_that_is_emulated_costs_what_it_would_on_cards", 9000) else {
        return;
    };
    cable.shape(SHAPED);
    let client = cable.client().with_mtu(Some(1500));
    let theory = theory::goodput(1500, LINK, client.path().timestamps);
    for direction in [Direction::Send, Direction::Receive] {
        let share = || client.throughput(direction, 1, LONG_ENOUGH).unwrap().bits_per_second() / theory;
        let share = try_until(share, |share| (0.98..1.02).contains(&share));
        assert!((0.98..1.02).contains(&share), "{direction}: {share} of {theory}");
    }
}

#[test]
fn iperf3_measures_the_same() {
    if lunway_foreign::program("iperf3").is_none() {
        return;
    }
    let Some(cable) = Cable::between("iperf3_measures_the_same", 1500) else { return };
    cable.shape(SHAPED);
    let client = cable.client();
    for direction in [Direction::Send, Direction::Receive] {
        let ratio = || {
            let ours = client.throughput(direction, 1, LONG_ENOUGH).unwrap().bits_per_second();
            ours / cable.iperf(direction)
        };
        let ratio = try_until(ratio, |ratio| (0.97..1.03).contains(&ratio));
        assert!((0.97..1.03).contains(&ratio), "{direction}: {ratio} of iperf3's");
    }
}

/// Segments that this namespace has sent again so far.
fn resent() -> u64 {
    let text = fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let column = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    values.split(' ').nth(column).unwrap().parse().unwrap()
}

#[test]
fn what_a_short_queue_drops_is_counted_as_the_kernel_counts_it() {
    let test = "what_a_short_queue_drops_is_counted_as_the_kernel_counts_it";
    let Some(cable) = Cable::between(test, 1500) else { return };
    // In a switch: what a sender's own queue drops never left, and is not sent again but sent.
    cable.put_switch_between();
    run("tc qdisc add dev near root tbf rate 20mbit burst 5k limit 6k");
    let client = cable.client();
    let before = resent();
    let measured: Throughput = client.throughput(Direction::Send, 2, LONG_ENOUGH).unwrap();
    let counted = resent() - before;
    assert!(counted > 10, "{counted}");
    assert_eq!(measured.retransmits(), counted);
}

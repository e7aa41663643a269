//! Network cards that come and go under a running daemon, each test in a network namespace of its own.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lunway_foreign::namespace::{self, ip};
use lunway_target::Advertise;

use crate::portals::{told, with_listen};
use crate::support::*;

/// [`namespace::inside`], with two cards that have no address.
pub(crate) fn inside(test: &str) -> bool {
    if !namespace::inside(test) {
        return false;
    }
    ip("link set lo up");
    for (near, far) in [("nic0", "far0"), ("nic1", "far1")] {
        ip(&format!("link add {near} type veth peer name {far}"));
        ip(&format!("link set {near} up"));
        ip(&format!("link set {far} up"));
    }
    true
}

/// The addresses that an initiator is told which comes by `address`.
fn told_at(address: &str) -> Vec<String> {
    told(address.parse().unwrap()).into_iter().map(|(address, _)| address).collect()
}

/// A second of a machine that does nothing else; each core may have two other things to do, as it has when tests run
/// side by side.
const A_SECOND: Duration = Duration::from_secs(3);

fn within_a_second(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < A_SECOND, "not within a second: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn accepts(address: &str) -> bool {
    let address: SocketAddr = address.parse().unwrap();
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
}

/// Stops what runs beside a test, also where the test fails: else its end would be waited for.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Writes and reads until told to stop; each second piece is checked against what was written.
fn work(mut client: Client, stop: &AtomicBool) -> usize {
    let mut rounds = 0;
    while !stop.load(Ordering::SeqCst) {
        let data = pattern(16, rounds as u8);
        client.write(0, 64, &data);
        assert_eq!(client.read(0, 64, 16), data);
        rounds += 1;
    }
    rounds
}

#[test]
fn an_address_that_appears_is_a_portal_within_a_second_and_one_that_goes_is_not_told_any_longer() {
    if !inside(
        "namespace::an_address_that_appears_is_a_portal_within_a_second_and_one_that_goes_is_not_told_any_longer",
    ) {
        return;
    }
    let daemon = Daemon::start("");
    ip("addr add 10.9.0.1/24 dev nic0");
    daemon.change(with_listen("0.0.0.0:3260 [::]:3260")).unwrap();
    let first = "10.9.0.1:3260";
    within_a_second("the first address", || told_at(first) == [first]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = Client::log_in(first.parse().unwrap(), login(1)).unwrap().ready();
        let worker = scope.spawn(|| work(client, &stop));
        let stops = Stop(&stop);

        ip("addr add 10.9.1.1/24 dev nic1");
        within_a_second("a new address", || told_at(first) == [first, "10.9.1.1:3260"]);
        let client = Client::log_in("10.9.1.1:3260".parse().unwrap(), login(2)).unwrap().ready();
        drop(client);

        ip("addr del 10.9.1.1/24 dev nic1");
        within_a_second("an address that is gone", || told_at(first) == [first]);

        ip("addr add 10.9.1.1/24 dev nic1");
        within_a_second("an address that is back", || told_at(first).len() == 2);
        ip("link set nic1 down");
        within_a_second("an interface that is down", || told_at(first) == [first]);
        ip("link set nic1 up");
        within_a_second("an interface that is up", || told_at(first).len() == 2);

        ip("addr add fd00:9::1/64 dev nic0 nodad");
        within_a_second("an address of IPv6", || told_at(first).contains(&"[fd00:9::1]:3260".to_owned()));
        assert_eq!(told_at("[fd00:9::1]:3260")[0], "[fd00:9::1]:3260");
        ip("link del nic1");
        within_a_second("a card that was pulled", || !told_at(first).contains(&"10.9.1.1:3260".to_owned()));
        drop(stops);
        assert!(worker.join().unwrap() > 10, "the first session went on");
    });
}

#[test]
fn interfaces_networks_and_addresses_that_are_not_there_yet_are_listened_on_when_they_are() {
    if !inside(
        "namespace::interfaces_networks_and_addresses_that_are_not_there_yet_are_listened_on_when_they_are",
    ) {
        return;
    }
    let daemon = Daemon::start("");
    let own = daemon.address.to_string();
    let listen = format!("{own} nic1 10.9.2.0/24:3261 10.9.3.3");
    daemon.change(with_listen(&listen)).unwrap();
    let waiting = || daemon.server().portals().iter().filter(|portal| portal.waiting.is_some()).count();
    assert_eq!((waiting(), told_at(&own)), (3, vec![own.clone()]));

    for (address, portal) in [
        ("10.9.1.1/24 dev nic1", "10.9.1.1:3260"),
        ("10.9.2.5/32 dev nic0", "10.9.2.5:3261"),
        ("10.9.3.3/24 dev nic0", "10.9.3.3:3260"),
    ] {
        assert!(!accepts(portal));
        ip(&format!("addr add {address}"));
        within_a_second(portal, || accepts(portal) && told_at(&own) == [own.as_str(), portal]);
        ip(&format!("addr del {address}"));
        within_a_second(portal, || told_at(&own) == [own.as_str()]);
        assert_eq!(daemon.server().addresses().len(), 1, "its socket is closed");
    }
}

#[test]
fn a_port_that_another_program_has_on_a_new_address_is_taken_when_it_is_free() {
    if !inside("namespace::a_port_that_another_program_has_on_a_new_address_is_taken_when_it_is_free") {
        return;
    }
    let daemon = Daemon::start("");
    let own = daemon.address.to_string();
    daemon.change(with_listen(&format!("{own} nic1"))).unwrap();
    ip("addr add 10.9.1.1/24 dev lo");
    let foreign = std::net::TcpListener::bind("10.9.1.1:3260").unwrap();
    ip("addr del 10.9.1.1/24 dev lo");
    ip("addr add 10.9.1.1/24 dev nic1");
    let reason = || daemon.server().portals()[1].waiting.clone().unwrap_or_default();
    within_a_second("the reason is shown", || reason().contains("another program listens there"));
    assert_eq!(told_at(&own), [own.as_str()]);
    drop(foreign);
    until("the port is tried again", || told_at(&own) == [own.as_str(), "10.9.1.1:3260"]);
    assert_eq!(reason(), "");
}

/// Where [`asks_from_elsewhere`] asks.
const ASK_AT: &str = "LUNWAY_TEST_ASK_AT";

/// No test by itself: another process of this program, in another namespace, that prints what it is told.
#[test]
fn asks_from_elsewhere() {
    if let Ok(address) = std::env::var(ASK_AT) {
        println!("told: {}", told_at(&address).join(" "));
    }
}

/// A host at the other end of a cable; it ends when this is dropped.
struct Elsewhere(std::process::Child);

impl Elsewhere {
    fn new(card: &str, address: &str) -> Self {
        let sleep = std::process::Command::new("unshare").args(["-n", "sleep", "120"]).spawn().unwrap();
        let host = Self(sleep);
        let (own, other) = ("/proc/self/ns/net".to_owned(), format!("/proc/{}/ns/net", host.0.id()));
        until("the other namespace", || std::fs::read_link(&other).ok() != std::fs::read_link(&own).ok());
        ip(&format!("link set {card} netns {}", host.0.id()));
        host.run(&["ip", "addr", "add", address, "dev", card]);
        host.run(&["ip", "link", "set", card, "up"]);
        host
    }

    fn run(&self, words: &[&str]) -> String {
        let pid = self.0.id().to_string();
        let mut command = std::process::Command::new("nsenter");
        let output = command.args(["-t", &pid, "-n", "--"]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The addresses that an initiator on it is told which comes by `address`.
    fn told(&self, address: &str) -> Vec<String> {
        let program = std::env::current_exe().unwrap().display().to_string();
        let ask = format!("{ASK_AT}={address}");
        let said =
            self.run(&["env", &ask, &program, "--exact", "namespace::asks_from_elsewhere", "--nocapture"]);
        let line = said.lines().find_map(|line| line.split_once("told: ")).expect("an answer").1;
        line.split(' ').map(str::to_owned).collect()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_initiator_is_told_the_portals_of_its_network_and_not_those_of_a_bridge_beside_it() {
    if !inside(
        "namespace::an_initiator_is_told_the_portals_of_its_network_and_not_those_of_a_bridge_beside_it",
    ) {
        return;
    }
    let daemon = Daemon::start("");
    ip("addr add 10.9.0.1/24 dev nic0");
    ip("addr add 10.9.0.2/24 dev nic0");
    ip("addr add 172.17.0.1/16 dev nic1");
    let host = Elsewhere::new("far0", "10.9.0.7/24");
    daemon.change(with_listen("0.0.0.0:3260")).unwrap();
    let portal = "10.9.0.1:3260";
    until("the addresses are portals", || told_at(portal).len() == 3);
    assert_eq!(host.told(portal), [portal, "10.9.0.2:3260"]);
    // From behind a router.
    host.run(&["ip", "addr", "add", "198.51.100.9/32", "dev", "lo"]);
    host.run(&["ip", "route", "replace", "10.9.0.0/24", "dev", "far0", "src", "198.51.100.9"]);
    ip("route add 198.51.100.9/32 dev nic0 via 10.9.0.7");
    assert_eq!(host.told(portal), [portal, "10.9.0.2:3260"]);

    daemon.change(|config| config.discovery.advertise = Advertise::All).unwrap();
    assert_eq!(host.told(portal).len(), 3);
    daemon.change(with_listen("10.9.0.1 172.17.0.1")).unwrap();
    daemon.change(|config| config.discovery.advertise = Advertise::Reachable).unwrap();
    until("what is named is told", || host.told(portal) == [portal, "172.17.0.1:3260"]);
    daemon.change(|config| config.discovery.advertise = Advertise::SameNetwork).unwrap();
    assert_eq!(host.told(portal), [portal]);
}

//! What happens to cables.

use std::fs;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lunway_lab::{Action, Event, LiveHost, Network, Rate, Slow, Timeline};

use crate::inside::{inside, two_hosts};

/// Two sockets on the two ends of `lane1`.
struct Pair {
    near: UdpSocket,
    far: UdpSocket,
}

impl Pair {
    fn new(network: &Network) -> Self {
        let socket = |host: &LiveHost| {
            let address = host.address("eth0").unwrap();
            host.run(|| UdpSocket::bind((address, 0)).unwrap()).unwrap()
        };
        let [near, far] = ["server", "storage"].map(|host| socket(network.host(host).unwrap()));
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        Self { near, far }
    }

    /// Whether something comes through both ways. What was sent earlier and waited for an answer of ARP does not count.
    fn passes(&self, wait: Duration) -> [bool; 2] {
        static PROBES: AtomicU64 = AtomicU64::new(0);
        [(&self.near, &self.far), (&self.far, &self.near)].map(|(from, to)| {
            let probe = PROBES.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            to.set_read_timeout(Some(wait)).unwrap();
            let mut received = [0; 8];
            from.send(&probe).is_ok()
                && std::iter::from_fn(|| to.recv(&mut received).ok().map(|_| received))
                    .any(|got| got == probe)
        })
    }
}

/// Whether the card is up as configured, and whether it has a carrier.
fn card(host: &LiveHost) -> (bool, bool) {
    host.run(|| {
        let routes = fs::read_to_string("/proc/thread-self/net/route").unwrap();
        let up = routes.lines().any(|line| line.starts_with("eth0"));
        let said = std::process::Command::new(lunway_foreign::program("ip").unwrap())
            .args(["-o", "link", "show", "eth0"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let flags = said.split(['<', '>']).nth(1).unwrap().split(',').map(str::to_owned).collect::<Vec<_>>();
        (up && flags.contains(&"UP".to_owned()), !flags.contains(&"NO-CARRIER".to_owned()))
    })
    .unwrap()
}

const WAIT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(5);

fn pulled_and_plugged(network: &Network) {
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    let lane = network.cable("lane1").unwrap();
    let pair = Pair::new(network);
    assert_eq!(pair.passes(LONG), [true, true]);

    lane.pull().unwrap();
    assert_eq!((card(server), card(storage)), ((true, false), (true, false)));
    assert_eq!(pair.passes(WAIT), [false, false]);
    lane.plug().unwrap();
    assert_eq!((card(server), card(storage)), ((true, true), (true, true)));
    assert_eq!(pair.passes(LONG), [true, true]);

    lane.black_hole().unwrap();
    assert_eq!((card(server), card(storage)), ((true, true), (true, true)), "nobody is told");
    assert_eq!(pair.passes(WAIT), [false, false]);
    lane.pull().unwrap();
    lane.plug().unwrap();
    assert_eq!(pair.passes(WAIT), [false, false], "a black hole stays one");
    lane.clear().unwrap();
    // What asked for the other's address meanwhile asks again within a second.
    assert_eq!(pair.passes(LONG), [true, true]);
}

#[test]
fn a_pulled_cable_takes_the_carrier_at_both_ends_and_a_black_hole_does_not() {
    if !inside("faults::a_pulled_cable_takes_the_carrier_at_both_ends_and_a_black_hole_does_not") {
        return;
    }
    pulled_and_plugged(&two_hosts(
        "[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\nrate = '50Mbit'",
    ));
}

#[test]
fn a_timeline_happens_when_it_is_to_and_says_when_it_did() {
    if !inside("faults::a_timeline_happens_when_it_is_to_and_says_when_it_did") {
        return;
    }
    let network =
        two_hosts("[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\nrate = '50Mbit'");
    let lane = network.cable("lane1").unwrap();
    let pair = Pair::new(&network);
    assert_eq!(pair.passes(LONG), [true, true]);
    let at = Duration::from_millis;
    let events = [
        Event { at: at(200), action: Action::Pull("lane1".into()) },
        Event { at: at(600), action: Action::Plug("lane1".into()) },
        Event {
            at: at(700),
            action: Action::Slow(Slow { cable: "lane1".into(), rate: Rate::new(1_000_000) }),
        },
        Event { at: Duration::from_secs(3600), action: Action::Pull("lane1".into()) },
    ];
    let timeline = Timeline::new(&events, network.topology()).unwrap();
    let origin = Instant::now();
    let running = timeline.start(&network, origin);
    std::thread::sleep((origin + at(400)).saturating_duration_since(Instant::now()));
    let cut = pair.passes(at(50));
    let in_time = origin.elapsed() < at(600);
    std::thread::sleep((origin + at(1500)).saturating_duration_since(Instant::now()));
    let happened = running.stop();
    assert_eq!(happened.len(), 3, "the last is not due");
    for (event, happened) in events.iter().zip(&happened) {
        assert_eq!((happened.asked, &happened.action, &happened.error), (event.at, &event.action, &None));
        assert!(happened.asked <= happened.began && happened.began < happened.done, "{happened:?}");
        assert!(happened.done - happened.asked < at(300), "{happened:?}");
    }
    // Where the machine was so busy that this looked too late, it says nothing.
    assert!(!in_time || cut == [false, false]);
    assert_eq!(lane.rate(), Some(Rate::new(1_000_000)));
    lane.mend().unwrap();
    assert_eq!(lane.rate(), lane.description().rate);
    assert_eq!(pair.passes(LONG), [true, true]);
}

#[test]
fn a_line_is_pulled_and_turned_into_a_black_hole_like_any_cable() {
    if !inside("faults::a_line_is_pulled_and_turned_into_a_black_hole_like_any_cable") {
        return;
    }
    pulled_and_plugged(&two_hosts(
        "[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\nrate = '50Mbit'\ndelay = '1ms'",
    ));
}

#[test]
fn a_cable_to_a_switch_is_pulled_and_turned_into_a_black_hole_like_any_other() {
    if !inside("faults::a_cable_to_a_switch_is_pulled_and_turned_into_a_black_hole_like_any_other") {
        return;
    }
    let network = two_hosts(
        "[[switch]]\nname = 'fabric'
         [[cable]]\nname = 'lane1'\nends = ['server.eth0', 'fabric']\nrate = '50Mbit'
         [[cable]]\nname = 'lane2'\nends = ['fabric', 'storage.eth0']",
    );
    let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
    let lane = network.cable("lane1").unwrap();
    let pair = Pair::new(&network);
    assert_eq!(pair.passes(LONG), [true, true]);
    lane.pull().unwrap();
    assert_eq!((card(server), card(storage)), ((true, false), (true, true)), "the other's cable is in");
    assert_eq!(pair.passes(WAIT), [false, false]);
    lane.plug().unwrap();
    lane.black_hole().unwrap();
    assert_eq!(card(server), (true, true));
    assert_eq!(pair.passes(WAIT), [false, false]);
    lane.mend().unwrap();
    assert_eq!(pair.passes(LONG), [true, true]);
}

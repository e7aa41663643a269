//! A router that no table of routes has: it answers ARP requests for the portal.

use std::process::Command;

use lunway_doctor::Seen;
use lunway_doctor::probe::direct;
use lunway_lab::{LiveHost, Network};

use crate::sandboxed::inside;

/// A machine between two switches, one with the server and one with the storage.
const NETWORK: &str = "
[[host]]
name = 'server'
[[host]]
name = 'between'
[[host]]
name = 'storage'
[[switch]]
name = 'near'
[[switch]]
name = 'far'
[[cable]]
name = 'a'
ends = ['server.eth0', 'near']
[[cable]]
name = 'b'
ends = ['between.eth0', 'near']
[[cable]]
name = 'c'
ends = ['between.eth1', 'far']
[[cable]]
name = 'd'
ends = ['storage.eth0', 'far']
";

fn run(host: &LiveHost, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-ec", script]);
    assert!(host.spawn(command).unwrap().wait().unwrap().success(), "{script}");
}

#[test]
fn a_router_that_answers_for_the_portal_is_told_though_the_route_has_no_gateway() {
    if !inside("hops::a_router_that_answers_for_the_portal_is_told_though_the_route_has_no_gateway") {
        return;
    }
    let network = Network::build(&toml::from_str(NETWORK).unwrap()).unwrap();
    let host = |name: &str| network.host(name).unwrap();
    let (server, between, storage) = (host("server"), host("between"), host("storage"));
    let (near, portal) = (server.address("eth0").unwrap(), storage.address("eth0").unwrap());
    let first = between.address("eth0").unwrap();
    run(server, &format!("ip route replace {portal}/32 dev eth0"));
    run(storage, &format!("ip route replace {near}/32 dev eth0"));
    let to = |far| server.run(move || direct(near, far)).unwrap();
    assert_eq!(to(first), Seen::Value(true), "a neighbour");
    assert!(to(portal).why().contains("does not answer"), "{:?}", to(portal));
    run(
        between,
        "echo 1 >/proc/sys/net/ipv4/ip_forward; for port in eth0 eth1; do echo 1 >/proc/sys/net/ipv4/conf/$port/proxy_arp; done",
    );
    // The kernel remembers for a second that nobody answered.
    run(server, "ip neighbour flush dev eth0");
    run(storage, "ip neighbour flush dev eth0");
    let mut found = to(portal);
    for _ in 0..20 {
        if found.get().is_some() {
            break;
        }
        // Proxy ARP answers after up to 0.8 s (neigh/proxy_delay).
        found = to(portal);
    }
    assert_eq!(found, Seen::Value(false));
}

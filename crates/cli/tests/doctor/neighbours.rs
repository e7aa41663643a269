//! Neighbours of iSCSI connections that do not answer, or whose address moves between machines, by IPv4 and by IPv6.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{PATIENCE, finish, until};
use crate::{Namespace, doctor, findings, verdicts};

/// A storage in another namespace behind the first port, which announces a new hardware address as a machine does that
/// takes over an address, and a connection to it by each version of IP.
const STORAGE: &str =
    "mount -t tmpfs tmpfs /run; mkdir -p /run/netns; ip netns add storage; ip link set st1x netns storage
    ip address add 2001:db8:9::1/64 dev st1 nodad
    ip netns exec storage sh -ec 'sysctl -qw net.ipv4.conf.st1x.arp_notify=1 net.ipv6.conf.st1x.ndisc_notify=1
        ip link set st1x address 02:00:00:00:00:0a; ip link set st1x up
        ip address add 10.9.0.101/24 dev st1x; ip address add 2001:db8:9::101/64 dev st1x nodad'
    cat >/run/connect.py <<'PYTHON'
import socket, sys, time
addresses = [(socket.AF_INET, '10.9.0.101'), (socket.AF_INET6, '2001:db8:9::101')]
if sys.argv[1:]:
    sockets = [socket.create_connection((address, 3260), 10) for _, address in addresses]
    open('/run/connected', 'w').close()
else:
    listeners = [socket.create_server((address, 3260), family=family) for family, address in addresses]
    open('/run/listening', 'w').close()
    sockets = [listener.accept() for listener in listeners]
time.sleep(600)
PYTHON
    ip netns exec storage python3 /run/connect.py >/dev/null 2>&1 </dev/null &
    while ! [ -e /run/listening ]; do sleep 0.1; done
    python3 /run/connect.py initiator >/dev/null 2>&1 </dev/null &
    for n in $(seq 300); do [ -e /run/connected ] && exit; sleep 0.1; done; exit 1";

fn look(namespace: &Namespace, state: &Path) -> Vec<Value> {
    findings(&finish(namespace.entered(&doctor::<&str>(&[], state)), PATIENCE))
}

/// Has another machine take over both addresses, until the kernel knows.
fn taken_over_by(namespace: &Namespace, mac: &str) {
    let moved = namespace.run(&format!("ip netns exec storage ip link set st1x address {mac}"));
    assert!(moved.status.success(), "{moved:?}");
    until(|| {
        let table = namespace.run("ip neighbour show dev st1").stdout;
        let table = String::from_utf8_lossy(&table).into_owned();
        let of_both = ["10.9.0.101 ", "2001:db8:9::101 "];
        let is_known =
            |address: &&str| table.lines().any(|line| line.starts_with(*address) && line.contains(mac));
        of_both.iter().all(is_known)
    });
}

/// Runs the command that a finding has for a look at its neighbour.
fn shows_the_neighbour(namespace: &Namespace, found: &[Value], rule: &str) {
    for finding in found.iter().filter(|one| one["id"] == rule && one["verdict"] != "ok") {
        let shown = namespace.run(finding["do"].as_str().unwrap());
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.status.success() && text.contains("dev st1"), "{finding}: {shown:?}");
    }
}

#[test]
fn an_address_that_moves_to_and_fro_is_told_and_so_is_one_that_is_gone() {
    let Some(namespace) = Namespace::new() else {
        return lunway_foreign::machine_lacks("network namespaces, or ip and nsenter");
    };
    let connected = namespace.run(STORAGE);
    if !connected.status.success() {
        return lunway_foreign::not_run(&format!("a storage in a network namespace: {connected:?}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let looked = |rule: &str| verdicts(&look(&namespace, state), rule);
    let first = look(&namespace, state);
    assert_eq!(verdicts(&first, "neighbour-answers"), ["ok", "ok"], "{first:#?}");
    assert_eq!(verdicts(&first, "neighbour-owner"), ["unknown", "unknown"], "{first:#?}");
    // The same, had the first look been an hour ago.
    let path = state.join("lunway/doctor-neighbours.json");
    let mut kept: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for neighbour in kept["neighbours"].as_array_mut().unwrap() {
        neighbour["since"] = (neighbour["since"].as_u64().unwrap() - 3600).into();
    }
    fs::write(&path, kept.to_string()).unwrap();
    assert_eq!(looked("neighbour-owner"), ["ok", "ok"]);
    let (one, other) = ("02:00:00:00:00:0a", "02:00:00:00:00:0b");
    for mac in [other, one] {
        taken_over_by(&namespace, mac);
        assert_eq!(looked("neighbour-owner"), ["ok", "ok"], "a failover, and its return");
    }
    taken_over_by(&namespace, other);
    let found = look(&namespace, state);
    assert_eq!(verdicts(&found, "neighbour-owner"), ["warn", "warn"], "{found:#?}");
    let text = found.iter().find(|one| one["id"] == "neighbour-owner").unwrap().to_string();
    assert!(text.contains(one) && text.contains(other) && text.contains("3 times"), "{text}");
    shows_the_neighbour(&namespace, &found, "neighbour-owner");
    assert_eq!(verdicts(&found, "neighbour-answers"), ["ok", "ok"], "{found:#?}");

    let gone = "ip netns exec storage ip address flush dev st1x; ip neighbour flush dev st1
        python3 -c \"import socket
for family, address in (socket.AF_INET, '10.9.0.101'), (socket.AF_INET6, '2001:db8:9::101'):
    socket.socket(family, socket.SOCK_DGRAM).sendto(b'x', (address, 9))\"";
    assert!(namespace.run(gone).status.success());
    let found = look(&namespace, state);
    assert_eq!(verdicts(&found, "neighbour-answers"), ["bad", "bad"]);
    shows_the_neighbour(&namespace, &found, "neighbour-answers");

    fs::write(&path, "a text").unwrap();
    let output = finish(namespace.entered(&doctor::<&str>(&[], state)), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("doctor-neighbours.json cannot be read"), "{said}");
    assert_eq!(verdicts(&findings(&output), "neighbour-owner").len(), 2);
}

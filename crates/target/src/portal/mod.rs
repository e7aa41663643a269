//! Portals: the addresses that the target listens on, and those that it tells initiators.
//!
//! | file | room of |
//! |---|---|
//! | `spec.rs` | [`PortalSpec`]: what `listen` says |

mod spec;

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

pub use spec::{PortalScope, PortalSpec, PortalSpecError};

/// The port that IANA gave iSCSI.
pub const ISCSI_PORT: u16 = 3260;

/// Connections that the kernel holds until they are accepted: a whole cluster of initiators coming back at once.
const BACKLOG: i32 = 1024;

/// Listens on `address`. IPv6 sockets take IPv6 only, so that `0.0.0.0` and `[::]` can stand side by side.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted daemon gets its port back although old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// What to do about a failed [`bind`].
pub(crate) fn bind_advice(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "another program listens there (`ss -ltnp 'sport = :{}'` names it): stop it, or choose another port",
                address.port()
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address (`ip addr` lists those it has)".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one".to_owned()
        }
        _ => "check the address".to_owned(),
    }
}

/// The addresses that an initiator is told in answer to SendTargets, the one it came by first.
///
/// `listening` are the portals, `came_by` the local address of its connection. A portal on the unspecified address
/// stands for every address of the machine as it is now, not as it was at start: network cards come and go.
/// Loopback and link-local addresses mean nothing to another machine and are told only to who came by one.
pub(crate) fn reported(listening: &[SocketAddr], came_by: SocketAddr) -> Vec<SocketAddr> {
    reported_among(listening, came_by, &machine_addresses())
}

fn reported_among(listening: &[SocketAddr], came_by: SocketAddr, machine: &[IpAddr]) -> Vec<SocketAddr> {
    let here = came_by.ip().to_canonical();
    let useful =
        |ip: IpAddr| ip == here || (is_loopback_like(here) && ip.is_loopback()) || !is_loopback_like(ip);
    let mut all = Vec::new();
    for portal in listening {
        let candidates: &[IpAddr] = if portal.ip().is_unspecified() { machine } else { &[portal.ip()] };
        let mine = portal.ip().is_unspecified() && portal.is_ipv4() == here.is_ipv4();
        let told = mine.then_some(here).into_iter().chain(candidates.iter().copied());
        for ip in told.filter(|ip| ip.is_ipv4() == portal.is_ipv4() && useful(*ip)) {
            let address = SocketAddr::new(ip, portal.port());
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    all.sort_by_key(|address| *address != SocketAddr::new(here, came_by.port()));
    all
}

fn is_loopback_like(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

/// Every unicast address of this machine, from the kernel's tables in `/proc`. Where those cannot be read the answer is
/// empty, and initiators are told the address they came by.
fn machine_addresses() -> Vec<IpAddr> {
    let v4 = fs::read_to_string("/proc/net/fib_trie").map(|text| local_v4(&text)).unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").map(|text| local_v6(&text)).unwrap_or_default();
    v4.into_iter().map(IpAddr::V4).chain(v6.into_iter().map(IpAddr::V6)).collect()
}

/// In `fib_trie` a leaf `|-- ADDRESS` is followed by its routes; `/32 host LOCAL` makes it an address of ours.
fn local_v4(fib_trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut leaf = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = leaf
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// `if_inet6` has one line for each address: 32 digits, index, prefix, scope, flags, interface.
fn local_v6(if_inet6: &str) -> Vec<Ipv6Addr> {
    let digits = if_inet6.lines().filter_map(|line| line.split_ascii_whitespace().next());
    digits
        .filter(|digits| digits.len() == 32)
        .filter_map(|digits| u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    const MACHINE: [&str; 4] = ["127.0.0.1", "10.0.0.1", "192.168.7.2", "fd00::1"];

    fn machine() -> Vec<IpAddr> {
        MACHINE.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_portal_on_every_address_reports_the_one_that_the_initiator_came_by_and_then_the_others() {
        let told =
            reported_among(&addresses(&["0.0.0.0:3260"]), "192.168.7.2:3260".parse().unwrap(), &machine());
        assert_eq!(told, addresses(&["192.168.7.2:3260", "10.0.0.1:3260"]));
    }

    #[test]
    fn loopback_is_reported_only_to_who_came_by_it() {
        let portals = addresses(&["127.0.0.1:3260", "10.0.0.1:3260", "[::]:3261"]);
        let told = reported_among(&portals, "10.0.0.1:3260".parse().unwrap(), &machine());
        assert_eq!(told, addresses(&["10.0.0.1:3260", "[fd00::1]:3261"]));
        let told = reported_among(&portals, "127.0.0.1:3260".parse().unwrap(), &machine());
        assert_eq!(told, addresses(&["127.0.0.1:3260", "10.0.0.1:3260", "[fd00::1]:3261"]));
    }

    #[test]
    fn without_the_kernels_tables_the_address_that_the_initiator_came_by_remains() {
        let told = reported_among(&addresses(&["0.0.0.0:3260"]), "10.0.0.1:3260".parse().unwrap(), &[]);
        assert_eq!(told, addresses(&["10.0.0.1:3260"]));
    }

    #[test]
    fn the_kernels_tables_are_understood() {
        let fib_trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n";
        assert_eq!(local_v4(fib_trie), [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 1)]);
        assert_eq!(
            local_v6("00000000000000000000000000000001 01 80 10 80       lo\n"),
            [Ipv6Addr::LOCALHOST]
        );
        assert!(machine_addresses().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn an_address_in_use_names_what_to_do() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address).unwrap_err();
        assert!(bind_advice(address, &error).contains("another program listens there"));
    }
}

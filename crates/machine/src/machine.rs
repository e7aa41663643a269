//! The addresses that this machine has, now and from now on.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::Link;
use crate::address::MachineAddress;
use crate::netlink::{self, News};

/// Polling interval where the kernel does not notify of changes.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// Pause between news and looking. An interface that comes up brings several news in a row; and the kernel tells of an
/// address a moment before its route, without which it cannot be listened on.
const SETTLE_TIME: Duration = Duration::from_millis(10);

/// Looks at the machine's addresses, and tells when they change.
///
/// The kernel says so by netlink. Where that cannot be had (a sandbox that forbids its sockets) they are read from
/// `/proc` once a second: less exact, as interfaces of IPv4 addresses must be guessed from routes, and all that there
/// is.
#[derive(Debug)]
pub struct Machine {
    /// `None`: without netlink.
    news: Option<Arc<News>>,
}

impl Machine {
    /// Needs a runtime. What cannot be had is said in the log, once.
    pub fn watch() -> Self {
        match netlink::addresses().and_then(|_| News::subscribe()) {
            Ok(news) => Self { news: Some(Arc::new(news)) },
            Err(error) => {
                tracing::warn!("no netlink: {error}; looking once a second for addresses that come and go");
                Self { news: None }
            }
        }
    }

    /// The addresses now, in order.
    pub fn addresses(&self) -> io::Result<Vec<MachineAddress>> {
        if self.news.is_some() { netlink::addresses() } else { proc_addresses() }
    }

    /// The interfaces now.
    pub fn links(&self) -> io::Result<Vec<Link>> {
        if self.news.is_some() { Link::all() } else { Link::all_from_files() }
    }

    /// Waits until they may have changed, and a moment longer, for what comes with it.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        let told = self.told();
        async move {
            if told.await {
                tokio::time::sleep(SETTLE_TIME).await;
            }
        }
    }

    /// Waits until they may have changed; true: the kernel said so just now, and there may be more to come.
    pub fn told(&self) -> impl Future<Output = bool> + Send + 'static {
        let news = self.news.clone();
        async move {
            let told = match news {
                Some(news) => {
                    news.wait().await.inspect_err(|error| tracing::warn!("netlink: {error}")).is_ok()
                }
                None => false,
            };
            if !told {
                tokio::time::sleep(POLL_PERIOD).await;
            }
            told
        }
    }
}

/// Every unicast address of this machine, from the kernel's tables in `/proc`.
fn proc_addresses() -> io::Result<Vec<MachineAddress>> {
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let mut all = v4_addresses(&fs::read_to_string("/proc/net/fib_trie")?, &v4_routes(&routes));
    // A kernel without IPv6 has no such file.
    all.extend(v6_addresses(&fs::read_to_string("/proc/net/if_inet6").unwrap_or_default()));
    all.sort();
    Ok(all)
}

/// In `fib_trie` a leaf `|-- ADDRESS` is followed by its routes; `/32 host LOCAL` makes it an address of ours.
fn v4_addresses(fib_trie: &str, routes: &[(IpNet, String)]) -> Vec<MachineAddress> {
    let mut found: Vec<MachineAddress> = Vec::new();
    let mut leaf = None::<Ipv4Addr>;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = leaf
            && !found.iter().any(|found| found.ip == address)
        {
            found.push(v4_address(address, routes));
        }
    }
    found
}

fn v4_address(address: Ipv4Addr, routes: &[(IpNet, String)]) -> MachineAddress {
    let ip = IpAddr::V4(address);
    let loopback = address.is_loopback();
    let route =
        routes.iter().filter(|(network, _)| network.contains(&ip)).max_by_key(|(net, _)| net.prefix_len());
    let (prefix_len, interface) = match route {
        _ if loopback => (8, "lo"),
        Some((network, interface)) => (network.prefix_len(), interface.as_str()),
        None => (32, ""),
    };
    let network = IpNet::new(ip, prefix_len).unwrap_or_else(|_| ip.into());
    MachineAddress { ip, network, interface: interface.to_owned(), loopback, deprecated: false }
}

/// `route` has a line for each: interface, destination, gateway, flags, three numbers, mask; addresses as hexadecimal
/// numbers of this machine's byte order. Those without a gateway are the networks that interfaces are in.
fn v4_routes(route: &str) -> Vec<(IpNet, String)> {
    let network = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [interface, destination, "00000000", _, _, _, _, mask, ..] = fields[..] else { return None };
        let address =
            |digits| u32::from_str_radix(digits, 16).ok().map(|word| Ipv4Addr::from(word.to_ne_bytes()));
        let network = IpNet::with_netmask(address(destination)?.into(), address(mask)?.into()).ok()?;
        (network.prefix_len() > 0).then(|| (network, interface.to_owned()))
    };
    route.lines().skip(1).filter_map(network).collect()
}

/// `if_inet6` has one line for each address: 32 digits, index, length of the prefix, scope, flags, interface.
fn v6_addresses(if_inet6: &str) -> Vec<MachineAddress> {
    let address = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [digits, _, prefix_len, _, flags, interface] = fields[..] else { return None };
        let ip = u128::from_str_radix(digits, 16).ok().map(|bits| IpAddr::V6(Ipv6Addr::from(bits)))?;
        let number = |digits| u8::from_str_radix(digits, 16).ok();
        let flags = number(flags)?;
        // DADFAILED and TENTATIVE; below, DEPRECATED.
        (flags & 0x48 == 0).then_some(MachineAddress {
            ip,
            network: IpNet::new(ip, number(prefix_len)?).ok()?,
            interface: interface.to_owned(),
            loopback: ip.is_loopback(),
            deprecated: flags & 0x20 != 0,
        })
    };
    if_inet6.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_understood() {
        let fib_trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n";
        let hexadecimal = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let route = format!(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
             eth0\t00000000\t{}\t0003\t0\t0\t0\t00000000\neth1\t{}\t00000000\t0001\t0\t0\t0\t{}\n",
            hexadecimal([10, 0, 0, 254]),
            hexadecimal([10, 0, 0, 0]),
            hexadecimal([255, 255, 255, 0]),
        );
        let found = v4_addresses(fib_trie, &v4_routes(&route));
        let shown: Vec<_> =
            found.iter().map(|a| format!("{} {} {}", a.interface, a.network, a.loopback)).collect();
        assert_eq!(shown, ["lo 127.0.0.1/8 true", "eth1 10.0.0.1/24 false"]);

        let v6 = v6_addresses(
            "00000000000000000000000000000001 01 80 10 80       lo\n\
             fd000000000000000000000000000001 02 40 00 a0     eth1\n\
             fd000000000000000000000000000002 02 40 00 c0     eth1\n",
        );
        let shown: Vec<_> =
            v6.iter().map(|a| format!("{} {} {}", a.interface, a.network, a.deprecated)).collect();
        assert_eq!(shown, ["lo ::1/128 false", "eth1 fd00::1/64 true"]);
    }

    #[test]
    fn netlink_and_the_kernels_tables_name_the_same_addresses() {
        let Ok(told) = netlink::addresses() else { return lunway_foreign::not_run("netlink") };
        // Other programs may change them between the two.
        let same = (0..5).any(|_| {
            let ips = |all: &[MachineAddress]| all.iter().map(|address| address.ip).collect::<Vec<_>>();
            let read = ips(&proc_addresses().unwrap_or_default());
            ips(&told).iter().all(|ip| read.contains(ip))
        });
        assert!(same, "{told:?}\n{:?}", proc_addresses());
    }
}

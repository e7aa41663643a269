//! Statistics of the kernel on iSCSI's connections: round trips, and what held their sender back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::source::Machine;
use crate::facts::Flow;

/// The connections between two addresses, by the local one, the other one, and whether the local one has iSCSI's port.
pub(super) type Flows = BTreeMap<(IpAddr, IpAddr, bool), Flow>;

/// Asks for the connections to and from a port of TCP.
pub(super) fn flows(machine: &Machine, port: u16) -> Result<Flows, String> {
    let port = format!(":{port}");
    let printed =
        machine.printed("ss", &["-Htin", "(", "sport", "=", &port, "or", "dport", "=", &port, ")"])?;
    Ok(read(&printed, &port))
}

/// `ESTAB 0 0 10.0.0.1:5 10.0.0.2:3260`, and behind it or on the next line, which begins with a space,
/// `minrtt:0.05 busy:120ms rwnd_limited:12ms(10.0%) sndbuf_limited:4ms(3.3%)` among others.
fn read(text: &str, port: &str) -> Flows {
    let mut flows = Flows::new();
    let mut of = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if !line.starts_with(char::is_whitespace) {
            let (local, remote) = (words.nth(3), words.next());
            of = local.zip(remote).and_then(|(local, remote)| {
                Some((address(local)?, address(remote)?, local.ends_with(port) && !remote.ends_with(port)))
            });
        }
        let Some(key) = of else { continue };
        let flow: &mut Flow = flows.entry(key).or_default();
        for (name, value) in words.filter_map(|word| word.split_once(':')) {
            match name {
                // The least of all connections, as it has the least of what is not the network's.
                "minrtt" => {
                    let us = value.parse::<f64>().map_or(0, |ms| (ms * 1e3) as u64);
                    flow.round_trip_us =
                        if flow.round_trip_us == 0 { us } else { flow.round_trip_us.min(us) };
                }
                "busy" => flow.busy_ms = flow.busy_ms.saturating_add(milliseconds(value)),
                "rwnd_limited" => flow.window_ms = flow.window_ms.saturating_add(milliseconds(value)),
                "sndbuf_limited" => flow.buffer_ms = flow.buffer_ms.saturating_add(milliseconds(value)),
                _ => {}
            }
        }
    }
    flows
}

/// `12ms(10.0%)`, `120ms`.
fn milliseconds(text: &str) -> u64 {
    text.split("ms").next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// `10.0.0.1:5`, `[2001:db8::1]:5`, `10.0.0.1%eth0:5`.
fn address(end: &str) -> Option<IpAddr> {
    let (address, _) = end.rsplit_once(':')?;
    let address = address.trim_matches(['[', ']']);
    let address = address.split('%').next()?;
    address.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_two_addresses_are_one_flow_and_odd_lines_are_none() {
        let text = "ESTAB 0 0 10.0.0.1:5 10.0.0.2:3260\n\t cubic rtt:40/2 busy:120ms rwnd_limited:12ms(10.0%) minrtt:0.05\n\
                    ESTAB 0 0 10.0.0.1%eth0:6 10.0.0.2:3260\n\t busy:80ms sndbuf_limited:4ms(5.0%) minrtt:0.07\n\
                    ESTAB 0 0 [::ffff:10.0.0.2]:3260 [::ffff:10.0.0.9]:77\n\t busy:1ms\n\
                    ESTAB 0\n\t busy:9ms\nESTAB 0 0 x:3260 y:1\n\t busy:x\n";
        let ip = |text: &str| text.parse::<IpAddr>().unwrap_or(IpAddr::from([0; 4]));
        let flow = Flow { busy_ms: 200, window_ms: 12, buffer_ms: 4, round_trip_us: 50 };
        let target = Flow { busy_ms: 1, ..Flow::default() };
        let expected = [
            ((ip("10.0.0.1"), ip("10.0.0.2"), false), flow),
            ((ip("10.0.0.2"), ip("10.0.0.9"), true), target),
        ];
        assert_eq!(read(text, ":3260"), Flows::from(expected));
    }
}

//! Entries of `listen`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::ISCSI_PORT;

/// Longest name of a network interface, bytes (the kernel's `IFNAMSIZ` less its final 0).
const INTERFACE_NAME_MAX: usize = 15;

/// One entry of `listen`: which addresses of this machine are portals, and with which port.
///
/// ```text
/// 0.0.0.0:3260   [::]:3260         every address of that family, now and later
/// 192.0.2.10     [2001:db8::10]    this address, as soon as the machine has it
/// eth1           eth1:3261         every address of this interface
/// 10.0.0.0/24    [fd00::/64]:3261  every address of the machine in this network
/// ```
///
/// Without a port it is 3260. An entry is a rule, not an address: what it stands for changes with the machine. So
/// nothing here asks the machine, and an interface that does not exist is no error. Written back
/// ([`Display`](fmt::Display)) it always has its port, so that two entries that mean the same are the same text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortalSpec {
    scope: PortalScope,
    port: u16,
}

/// Scope of a [`PortalSpec`]: the addresses that it means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortalScope {
    /// One address; an unspecified one (`0.0.0.0`, `::`) stands for all of its family.
    Address(IpAddr),
    /// All addresses of an interface.
    Interface(String),
    /// All addresses in a network.
    Network(IpNet),
}

/// Reason why a text is no [`PortalSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortalSpecError {
    /// Nothing that could be listened on.
    #[error(
        "{0:?} is no address, interface or network: write it like 192.168.1.2:3260, [fd00::2]:3260, eth1 or 10.0.0.0/24"
    )]
    Form(String),
    /// Invalid port: the text after the last colon.
    #[error(
        "{0:?} does not end in a port: 1 to 65535 are possible, and 0 after an address, for any that is free"
    )]
    Port(String),
    /// No initiator could be told an address that means something else on each link.
    #[error("{0} is a link-local address, which initiators cannot use: choose another address")]
    LinkLocal(IpAddr),
}

impl PortalSpec {
    /// Every IPv4 address, with the port that IANA gave iSCSI.
    pub const EVERY_IPV4: Self =
        Self { scope: PortalScope::Address(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port: ISCSI_PORT };

    /// Addresses that are meant.
    pub fn scope(&self) -> &PortalScope {
        &self.scope
    }

    /// The port; 0 lets the kernel choose, which is possible with a single address only.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `ADDRESS` or `ADDRESS:PORT`, with its brackets.
    fn address(text: &str) -> Option<SocketAddr> {
        let bare = || {
            let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
            inner.parse().ok().map(|ip| SocketAddr::new(ip, ISCSI_PORT))
        };
        text.parse().ok().or_else(bare)
    }

    /// `NETWORK` or `NETWORK:PORT`; one of IPv6 has brackets before a port.
    fn network(text: &str) -> Result<Option<Self>, PortalSpecError> {
        let (network, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((network, "")) => (network, None),
            Some((network, rest)) => match rest.strip_prefix(':') {
                Some(port) => (network, Some(port)),
                None => return Ok(None),
            },
            None => match text.rsplit_once(':') {
                Some((network, port)) if !network.contains(':') => (network, Some(port)),
                _ => (text, None),
            },
        };
        let Ok(network) = network.parse::<IpNet>() else { return Ok(None) };
        let port = real_port(port, text)?;
        Ok(Some(Self { scope: PortalScope::Network(network.trunc()), port }))
    }

    /// `INTERFACE` or `INTERFACE:PORT`.
    fn interface(text: &str) -> Result<Option<Self>, PortalSpecError> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        };
        // The kernel takes almost anything; what starts with a digit is a mistyped address, more likely.
        let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
        let is_name = name.len() <= INTERFACE_NAME_MAX
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(usual);
        if !is_name {
            return Ok(None);
        }
        let port = real_port(port, text)?;
        Ok(Some(Self { scope: PortalScope::Interface(name.to_owned()), port }))
    }
}

/// A port that every address of a set can have.
fn real_port(port: Option<&str>, text: &str) -> Result<u16, PortalSpecError> {
    let Some(port) = port else { return Ok(ISCSI_PORT) };
    port.parse().ok().filter(|port| *port != 0).ok_or_else(|| PortalSpecError::Port(text.to_owned()))
}

impl FromStr for PortalSpec {
    type Err = PortalSpecError;

    fn from_str(text: &str) -> Result<Self, PortalSpecError> {
        if let Some(address) = Self::address(text) {
            return Self::try_from(address);
        }
        if let Some(network) = Self::network(text)? {
            return Ok(network);
        }
        Self::interface(text)?.ok_or_else(|| PortalSpecError::Form(text.to_owned()))
    }
}

impl TryFrom<SocketAddr> for PortalSpec {
    type Error = PortalSpecError;

    fn try_from(address: SocketAddr) -> Result<Self, PortalSpecError> {
        let ip = address.ip().to_canonical();
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Err(PortalSpecError::LinkLocal(ip)),
            _ => Ok(Self { scope: PortalScope::Address(ip), port: address.port() }),
        }
    }
}

impl TryFrom<String> for PortalSpec {
    type Error = PortalSpecError;

    fn try_from(text: String) -> Result<Self, PortalSpecError> {
        text.parse()
    }
}

impl From<PortalSpec> for String {
    fn from(spec: PortalSpec) -> Self {
        spec.to_string()
    }
}

impl fmt::Display for PortalSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.scope {
            PortalScope::Address(ip) => write!(f, "{}", SocketAddr::new(*ip, port)),
            PortalScope::Interface(name) => write!(f, "{name}:{port}"),
            PortalScope::Network(network @ IpNet::V4(_)) => write!(f, "{network}:{port}"),
            PortalScope::Network(network @ IpNet::V6(_)) => write!(f, "[{network}]:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_understood_and_written_back_with_its_port() {
        for (text, normal) in [
            ("0.0.0.0", "0.0.0.0:3260"),
            ("[::]:3260", "[::]:3260"),
            ("::", "[::]:3260"),
            ("[::1]", "[::1]:3260"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("::ffff:192.0.2.1", "192.0.2.1:3260"),
            ("eth1", "eth1:3260"),
            ("enp3s0f0np0.100:3261", "enp3s0f0np0.100:3261"),
            ("10.0.0.0/24", "10.0.0.0/24:3260"),
            ("10.0.0.7/24:3261", "10.0.0.0/24:3261"),
            ("fd00::/64", "[fd00::/64]:3260"),
            ("[fd00::1/64]", "[fd00::/64]:3260"),
            ("[fd00::/64]:3261", "[fd00::/64]:3261"),
        ] {
            let spec: PortalSpec = text.parse().expect(text);
            assert_eq!(spec.to_string(), normal);
            assert_eq!(normal.parse(), Ok(spec));
        }
    }

    #[test]
    fn what_cannot_be_listened_on_is_refused_with_the_reason() {
        for (text, part) in [
            ("", "is no address, interface or network"),
            ("192.0.2.300", "is no address"),
            ("1.2.3.4:99999", "is no address"),
            ("storage.example.com", "is no address"),
            ("eth1/2", "is no address"),
            ("10.0.0.0/33", "is no address"),
            ("[10.0.0.0/8]3260", "is no address"),
            ("eth1:0", "does not end in a port"),
            ("eth1:iscsi", "does not end in a port"),
            ("10.0.0.0/24:0", "does not end in a port"),
            ("fe80::1", "link-local"),
        ] {
            let message = text.parse::<PortalSpec>().expect_err(text).to_string();
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }
}

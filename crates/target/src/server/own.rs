//! Devices that lead back to the daemon that is to serve them.

use std::net::SocketAddr;

use lunway_block::spec::DeviceSpec;

use super::error::StartError;
use crate::config::Config;
use crate::portal::{PortalScope, PortalSpec, Portals};

/// Refuses a configuration with a device that is a logical unit of the daemon itself, over one of its own `portals`:
/// devices are opened before anybody can log in, so that the daemon could not start, and two of them can be each other.
pub(super) fn none_is_own(config: &Config, portals: &Portals) -> Result<(), StartError> {
    for target in &config.targets {
        for lun in &target.luns {
            let DeviceSpec::Iscsi { url } = lun.device.spec().leaf() else { continue };
            let Some((portal, name, _)) = url.parts() else { continue };
            let address = address(portal).filter(|address| portals.is_own(*address));
            if let Some(portal) = address.filter(|_| config.target(name).is_some()) {
                return Err(StartError::Own { target: target.name.to_string(), lun: lun.id, portal });
            }
        }
    }
    Ok(())
}

/// The address of a portal that is not named otherwise; `localhost` is one.
fn address(portal: &str) -> Option<SocketAddr> {
    let portal =
        portal.strip_prefix("localhost").map_or_else(|| portal.to_owned(), |port| format!("127.0.0.1{port}"));
    let spec: PortalSpec = portal.parse().ok()?;
    match spec.scope() {
        PortalScope::Address(ip) => Some(SocketAddr::new(*ip, spec.port())),
        PortalScope::Interface(_) | PortalScope::Network(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portal_is_an_address_with_the_port_of_iscsi_unless_it_has_another() {
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1:3260")),
            ("192.0.2.1:3261", Some("192.0.2.1:3261")),
            ("[2001:db8::1]", Some("[2001:db8::1]:3260")),
            ("localhost:7", Some("127.0.0.1:7")),
            ("storage.example.com", None),
        ] {
            assert_eq!(address(text), expected.map(|expected| expected.parse().unwrap()), "{text}");
        }
    }
}

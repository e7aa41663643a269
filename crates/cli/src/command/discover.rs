//! `lunway discover`.

use std::net::Ipv6Addr;

use clap::Args;
use lunway_initiator::{IscsiUrl, SessionOptions};
use serde_json::json;

use crate::failure::Failure;
use crate::{device, terminal};

/// List the targets of a portal.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway discover 192.0.2.10
  lunway discover 'iscsi://host-1@192.0.2.10:3261?secret_file=host-1.secret'")]
pub(crate) struct Discover {
    /// The portal.
    #[arg(value_name = "HOST", help = "The portal: HOST[:PORT], or iscsi://[USER[%SECRET]@]HOST[:PORT]")]
    portal: String,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

impl Discover {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let url =
            IscsiUrl::parse(&address(&self.portal)).map_err(|error| Failure::Usage(error.to_string()))?;
        let found = device::run(async {
            lunway_initiator::discover(&url, &SessionOptions::default()).await.map_err(Failure::failed)
        })?;
        if self.json {
            let targets: Vec<_> = found
                .iter()
                .map(|target| {
                    let portals: Vec<_> = target
                        .addresses
                        .iter()
                        .map(|(address, group)| json!({ "address": address, "portal_group": group }))
                        .collect();
                    json!({ "name": target.name, "portals": portals })
                })
                .collect();
            return terminal::print_json(&json!({ "targets": targets }));
        }
        if found.is_empty() {
            return terminal::print("no targets");
        }
        let mut lines = Vec::new();
        for target in &found {
            lines.push(terminal::clean(&target.name));
            for (address, group) in &target.addresses {
                lines.push(format!("  {}, portal group {group}", terminal::clean(address)));
            }
        }
        terminal::print(&lines.join("\n"))
    }
}

/// A portal as an iSCSI address.
fn address(portal: &str) -> String {
    match portal.parse::<Ipv6Addr>() {
        Ok(ip) => format!("iscsi://[{ip}]"),
        Err(_) if portal.contains("://") => portal.to_owned(),
        Err(_) => format!("iscsi://{portal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_alone_is_a_portal() {
        for (portal, written) in [
            ("192.0.2.10", "iscsi://192.0.2.10"),
            ("storage:3261", "iscsi://storage:3261"),
            ("fd00::1", "iscsi://[fd00::1]"),
            ("[fd00::1]:3261", "iscsi://[fd00::1]:3261"),
            ("user@host", "iscsi://user@host"),
            ("iscsi://user@host", "iscsi://user@host"),
        ] {
            assert_eq!(address(portal), written);
        }
    }
}

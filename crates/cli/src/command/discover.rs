//! `lunway discover`.

use clap::Args;
use lunway_initiator::{IscsiUrl, OpenOptions};
use serde_json::json;

use crate::failure::Failure;
use crate::{device, terminal};

/// List the targets of a portal.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  lunway discover iscsi://192.0.2.10")]
pub(crate) struct Discover {
    /// The portal.
    #[arg(value_name = "URL", help = "The portal: iscsi://[USER[%SECRET]@]HOST[:PORT]")]
    url: String,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

impl Discover {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let url = IscsiUrl::parse(&self.url).map_err(|error| Failure::Usage(error.to_string()))?;
        let found = device::run(async {
            lunway_initiator::discover(&url, &OpenOptions::default()).await.map_err(Failure::failed)
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

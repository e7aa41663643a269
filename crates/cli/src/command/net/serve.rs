//! `lunway net serve`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context;
use clap::Args;
use lunway_net::{Responder, StopFlag, protocol};
use serde_json::json;

use crate::failure::Failure;
use crate::{interrupt, terminal};

/// Answer measurements of `lunway net`, until Ctrl-C or SIGTERM.
///
/// Anybody who reaches the port can send and request data for up to ten minutes at a time: listen on the storage
/// network only.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway net serve                       # for this machine only
  lunway net serve --listen 192.0.2.10   # on the storage network")]
pub(crate) struct Serve {
    /// Listen on this address; port 0 lets the system choose [default: 127.0.0.1:3262]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    listen: Option<String>,
    /// Print the address as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let stop = StopFlag::new();
        let asked = stop.clone();
        interrupt::on_request(move || asked.stop());
        let address = match &self.listen {
            Some(listen) => address(listen)?,
            None => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), protocol::PORT),
        };
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr().context("cannot read the listening address")?;
        if self.json {
            terminal::print_json(&json!({ "listening": address.to_string() }))?;
        } else {
            terminal::print(&announcement(address))?;
        }
        Responder::serve(listener, &stop).map_err(Failure::failed)
    }
}

fn announcement(address: SocketAddr) -> String {
    let ip = address.ip();
    let hint = if ip.is_loopback() {
        "only this machine can reach it; for others, use --listen with this machine's address on the storage network".to_owned()
    } else if ip.is_unspecified() {
        format!("it can be reached from every network; measure with: lunway net THIS-HOST:{}", address.port())
    } else {
        format!("measure with: lunway net {address}")
    };
    format!("listening on {address}\n{hint}")
}

fn address(listen: &str) -> Result<SocketAddr, Failure> {
    let found = super::resolve(listen)?.into_iter().next();
    found.ok_or_else(|| Failure::Usage(format!("{listen} has no address")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_can_reach_it_is_said() {
        let said = |text: &str| announcement(address(text).unwrap());
        assert!(said("127.0.0.1").starts_with("listening on 127.0.0.1:3262\nonly this machine"));
        assert!(said("0.0.0.0:99").contains("every network"));
        assert!(said("192.0.2.1").ends_with("lunway net 192.0.2.1:3262"));
    }
}

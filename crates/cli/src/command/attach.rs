//! `lunway attach`.

use anyhow::Context;
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_device::OpenOptions;
use lunway_nbd::{Address, Export, Server};
use serde_json::json;

use crate::failure::Failure;
use crate::interrupt::Requests;
use crate::{device, terminal};

/// Give a device to other programs until Ctrl-C or SIGTERM.
///
/// NBD is spoken by QEMU, libnbd, fio, nbd-client and the kernel behind it. It has no authentication: a Unix socket is for
/// this user alone, but whoever reaches a TCP port has the disk.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway attach iscsi://192.0.2.10/iqn.2026-11.com.example:disk/0 --nbd unix:/run/user/1000/disk.sock
  lunway attach disk.img --nbd tcp:127.0.0.1 --name disk
  qemu-img info 'nbd+unix:///?socket=/run/user/1000/disk.sock'")]
pub(crate) struct Attach {
    /// The device to attach
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Serve it over NBD on a Unix socket, or on TCP (port 10809 unless said otherwise; 0 lets the system choose)
    #[arg(long, value_name = "unix:PATH|tcp:ADDRESS[:PORT]")]
    nbd: Address,
    /// Name of the NBD export; clients that ask for the empty name get it too
    #[arg(long, value_name = "NAME", default_value = "")]
    name: String,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Logical sector of the device, where it can have any: 512 or 4096
    #[arg(long, value_name = "BYTES")]
    sector: Option<u32>,
    /// Open files past the page cache (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Print what is attached as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Attach {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        let options = OpenOptions {
            sector: self.sector,
            read_only: self.read_only,
            direct: self.direct,
            ..OpenOptions::default()
        };
        device::run(async {
            let mut requests = Requests::new().context("cannot wait for signals")?;
            let opened = device::open(&spec, &options).await?;
            let export = Export {
                name: self.name.clone(),
                // Secrets are not part of how a device is shown.
                description: format!("{spec}, by lunway"),
                device: opened.device.clone(),
            };
            let server = Server::bind(&self.nbd, export).await.map_err(Failure::failed)?;
            let uri = server.address().context("where does it listen?")?.uri(&self.name);
            let geometry = opened.device.geometry();
            let announced = match self.json {
                true => terminal::print_json(&json!({
                    "device": spec.to_string(), "size": geometry.size, "sector": geometry.logical_sector,
                    "read_only": geometry.read_only, "nbd": uri,
                })),
                false => {
                    let read_only = if geometry.read_only { ", read-only" } else { "" };
                    let (size, sector) = (HumanSize(geometry.size), geometry.logical_sector);
                    terminal::print(&format!("{uri}\n  {spec}, {size}, sectors of {sector}{read_only}"))
                }
            };
            match announced {
                // Nobody listens any more: that is no reason not to serve.
                Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                announced => announced?,
            }
            let stop = requests.next();
            let flushed = server.serve(stop).await;
            opened.close().await;
            flushed.map_err(|error| {
                Failure::failed(anyhow::anyhow!("what was written last to {spec} may be lost: {error}"))
            })
        })
    }
}

//! `lunway inspect`.

mod plain;
mod unit;

use clap::Args;
use lunway_block::spec::DeviceSpec;
use lunway_initiator::SessionOptions;
use lunway_iscsi_paths::Address;
use serde_json::Value;

use crate::failure::Failure;
use crate::tail::Tail;
use crate::{device, sector, terminal};

/// Show the properties of a device.
///
/// For a logical unit: the session, INQUIRY, VPD pages, READ CAPACITY and mode pages. For an address without a LUN:
/// the target's logical units. For any other device: its geometry, and how much of it is data.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway inspect iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0
  lunway inspect disk.img --json")]
pub(crate) struct Inspect {
    /// The device
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Logical sector size, for devices that have no fixed one: 512 or 4096
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    sector: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        let (sections, document) = device::run(self.look(&spec))?;
        if self.json {
            return terminal::print_json(&document);
        }
        let blocks: Vec<_> = sections.into_iter().map(Section::into_text).collect();
        terminal::print(&blocks.join("\n\n"))
    }

    async fn look(&self, spec: &DeviceSpec) -> Result<(Vec<Section>, Value), Failure> {
        if let DeviceSpec::Iscsi { url } = spec {
            let url =
                Address::parse(url.expose_secret()).map_err(|error| Failure::Usage(error.to_string()))?;
            // Whatever the path, it is the same disk.
            let url = match url {
                Address::One(url) => url,
                Address::Several(url) => url.base,
            };
            let seen =
                lunway_initiator::inspect(&url, &SessionOptions::default()).await.map_err(Failure::failed)?;
            return Ok((unit::sections(&seen), unit::document(&seen)));
        }
        let options = lunway_device::OpenOptions {
            sector: self.sector,
            read_only: true,
            ..lunway_device::OpenOptions::default()
        };
        let opened = device::open(spec, &options).await?;
        Tail::tell(spec, opened.device.geometry().size);
        let seen = plain::look(&*opened.device).await;
        opened.close_or_log().await;
        let seen = seen?;
        Ok((seen.sections(spec), seen.document(spec)))
    }
}

/// Names and values under a heading.
struct Section {
    title: String,
    rows: Vec<(&'static str, String)>,
}

impl Section {
    fn new(title: impl Into<String>, rows: Vec<(&'static str, String)>) -> Self {
        Self { title: title.into(), rows }
    }

    fn into_text(self) -> String {
        format!("{}\n{}", terminal::heading(&self.title), terminal::columns(self.rows))
    }
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

//! `lunway disk trim`.

use anyhow::anyhow;
use clap::{ArgGroup, Args};
use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_device::{OpenOptions, Opened};
use lunway_filesystem::tree::{Disk, Node};
use lunway_filesystem::{Mounted, Ranges};
use serde_json::json;

use super::discard::{Dead, Target, partitions};
use super::free::report;
use super::source::DeviceSource;
use crate::device::{self, BlockingRuntime};
use crate::failure::Failure;
use crate::{interrupt, sector, terminal};

/// Discard what the file systems on a device prove to be free
///
/// A LUN receives UNMAP, a block device a discard, a raw file gets holes: the space is returned to the host or the
/// array. Space that is not proven to be free is kept. No machine may use the disk meanwhile: mounted devices and
/// files in use are refused, and so is a LUN with a volume that was not unmounted, but other use of a LUN by another
/// machine cannot be detected.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("word").required(true).args(["estimate", "discard"]))]
#[command(override_usage = "\
lunway disk trim [OPTIONS] <DEVICE> --estimate
       lunway disk trim [OPTIONS] <DEVICE> --discard")]
#[command(after_help = "\
Examples:
  lunway disk trim /dev/sdb --estimate
  lunway disk trim iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0 --discard
  lunway disk trim server.img --discard --keep 3    # partition 3 stays as it is")]
pub(super) struct Trim {
    /// The device
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Only show how much would be discarded
    #[arg(long)]
    estimate: bool,
    /// Discard it: deleted files cannot be recovered afterwards
    #[arg(long)]
    discard: bool,
    /// Leave a partition as it is; can be repeated
    #[arg(long, value_name = "NUMBER")]
    keep: Vec<usize>,
    /// Logical sector size, for devices that have no fixed one: 512 or 4096
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    sector: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Reason why nothing can be discarded on a device.
const NOT_GIVEN_BACK: &str = "it gives no space back, as it has no UNMAP, or its file system has no holes";

impl Trim {
    pub(super) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        let options = OpenOptions {
            sector: self.sector,
            read_only: self.estimate,
            without_tail: true,
            ..OpenOptions::default()
        };
        let runtime = BlockingRuntime::new()?;
        let opened = runtime.wait(device::open(&spec, &options))?;
        let trimmed = self.trim(&spec, &opened, &runtime);
        let closed = runtime.wait(opened.close());
        let text = trimmed?;
        closed.map_err(Failure::failed)?;
        terminal::print(&text)
    }

    fn trim(&self, spec: &DeviceSpec, opened: &Opened, runtime: &BlockingRuntime) -> Result<String, Failure> {
        let device = &*opened.device;
        let geometry = device.geometry();
        if self.discard && geometry.read_only {
            return Err(Failure::failed(anyhow!("{spec} is read-only")));
        }
        if self.discard && !geometry.unmap.frees() {
            return Err(Failure::failed(anyhow!("{spec}: {NOT_GIVEN_BACK}")));
        }
        let source = DeviceSource::new(device, runtime);
        let mut disk = Disk::examine(&source, source.sector());
        let keep = Ranges::union(partitions(disk.root(), &self.keep, &spec.to_string())?);
        // Files and block devices in use on this machine were refused when they were opened.
        if matches!(
            spec.leaf(),
            DeviceSpec::Iscsi { .. }
                | DeviceSpec::Paths { .. }
                | DeviceSpec::Rbd { .. }
                | DeviceSpec::Nbd { .. }
        ) {
            disk.distrust(Mounted::Yes);
            if let Some(node) = mounted(disk.root(), &keep).filter(|_| self.discard) {
                return Err(Failure::failed(anyhow!(
                    "{spec} may be in use by another machine, so nothing was discarded: {} at {}: {}{}",
                    node.kind.unwrap_or("a volume"),
                    HumanSize(node.offset),
                    node.reason.as_deref().unwrap_or("it was not unmounted"),
                    node.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default(),
                )));
            }
        }
        report(&disk);
        let dead = Dead { free: true, zeroes: false, keep };
        let target = Target { device, runtime, disk: &disk };
        let cancel = interrupt::watch();
        let shown = spec.to_string();
        interrupt::waits_for(move || shown.clone());
        let done = match self.estimate {
            true => target.count(&dead, &cancel)?,
            false => target.discard(&dead, &cancel)?,
        };
        let Some(bytes) = done else {
            let what = if self.estimate { "nothing was changed" } else { "the same command continues" };
            return Err(Failure::failed(anyhow!("interrupted: {what}")));
        };
        if self.json {
            let document = json!({
                "device": spec.to_string(),
                "bytes": geometry.size,
                "discarded": self.discard,
                "dead_bytes": bytes,
            });
            return Ok(document.to_string());
        }
        let size = HumanSize(bytes);
        Ok(match self.estimate {
            _ if bytes == 0 => format!("{spec}: nothing to discard"),
            true if !geometry.unmap.frees() => {
                format!("{spec}: {size} ({bytes} bytes) are free; {NOT_GIVEN_BACK}")
            }
            true => format!("{spec}: {size} ({bytes} bytes) are free: --discard releases them"),
            false => format!("{spec}: {size} ({bytes} bytes) were discarded"),
        })
    }
}

/// The first volume that was not unmounted, if there is one outside of what is kept.
fn mounted<'a>(node: &'a Node, keep: &Ranges) -> Option<&'a Node> {
    if keep.covers(&(node.offset..node.offset + node.len)) {
        return None;
    }
    match node.mounted {
        Mounted::Yes => Some(node),
        Mounted::Untold | Mounted::No => node.children.iter().find_map(|child| mounted(child, keep)),
    }
}

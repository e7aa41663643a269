//! The devices that are compared, open while it lasts.

use std::sync::Arc;

use anyhow::Context;
use lunway_bench::profile::Options;
use lunway_bench::{Cancel, Region, cache_truth};
use lunway_block::size::HumanSize;
use lunway_block::spec::{DeviceSpec, split_options};
use lunway_block::{BlockDevice, Geometry};
use lunway_device::OpenOptions;
use lunway_report::Fact;

use crate::command::bench::durable::make_durable;
use crate::command::bench::plan::looked_for;
use crate::device;
use crate::failure::Failure;
use crate::tail::Tail;

/// A device as it was named.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    spec: DeviceSpec,
    sector: Option<u32>,
    /// Label given by the user.
    pub(super) label: Option<String>,
}

impl Candidate {
    /// Reads `DEVICE[,sector=N]`, as of a LUN of `serve`.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let (device, options) = split_options(text, &["sector"]);
        let mut sector = None;
        for (_, value) in options {
            let number = value.parse().ok().filter(|sector| [512, 4096].contains(sector));
            sector = Some(number.ok_or_else(|| Failure::Usage("sector= must be 512 or 4096".to_owned()))?);
        }
        Ok(Self { spec: device::parse(device)?, sector, label: None })
    }

    pub(super) fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Name in tables: the label, or the device without its secret.
    pub(super) fn name(&self) -> String {
        let sector = self.sector.map_or(String::new(), |sector| format!(",sector={sector}"));
        self.label.clone().unwrap_or_else(|| format!("{}{sector}", self.spec))
    }

    async fn open(&self, writes: bool, direct: bool) -> Result<lunway_device::Opened, Failure> {
        let options =
            OpenOptions { sector: self.sector, direct, read_only: !writes, ..OpenOptions::default() };
        let opened = device::open(&self.spec, &options).await?;
        Tail::tell(&self.spec, opened.device.geometry().size);
        Ok(opened)
    }
}

/// All of them, and the control once more.
pub(super) struct Opened {
    handles: Vec<lunway_device::Opened>,
    devices: Vec<Arc<dyn BlockDevice>>,
    control_again: Arc<dyn BlockDevice>,
}

impl Opened {
    /// Writable where possible: even rows that only read are written before they are read.
    pub(super) async fn open(candidates: &[Candidate], direct: bool) -> Result<Self, Failure> {
        let mut handles = Vec::new();
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            // Named before: a file is locked by who writes it, and then both use one handle.
            let same = |other: &Candidate| other.spec == candidate.spec && other.sector == candidate.sector;
            match (candidate.open(true, direct).await, candidates[..index].iter().position(same)) {
                (Ok(opened), _) => {
                    devices.push(opened.device.clone());
                    handles.push(opened);
                }
                (Err(_), Some(earlier)) => devices.push(devices[earlier].clone()),
                // Not ours to write, perhaps; if it cannot be read either, the first reason is the one to know.
                (Err(failure), None) => {
                    let opened = candidate.open(false, direct).await.map_err(|_| failure)?;
                    devices.push(opened.device.clone());
                    handles.push(opened);
                }
            }
        }
        let writes = !devices[0].geometry().read_only;
        let control_again = match candidates[0].open(writes, direct).await {
            Ok(opened) => {
                let device = opened.device.clone();
                handles.push(opened);
                device
            }
            Err(_) => {
                eprintln!("lunway: the control cannot be opened twice: both of its runs use one handle");
                devices[0].clone()
            }
        };
        Ok(Self { handles, devices, control_again })
    }

    pub(super) fn devices(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.devices.clone()
    }

    pub(super) fn control_again(&self) -> Arc<dyn BlockDevice> {
        self.control_again.clone()
    }

    /// A geometry whose every job runs on all of them: the least size, the largest sector.
    pub(super) fn smallest(&self) -> Geometry {
        let geometries = || self.devices.iter().map(|device| device.geometry());
        let size = geometries().map(|geometry| geometry.size).min().unwrap_or(0);
        let sector = geometries().map(|geometry| geometry.logical_sector).max().unwrap_or(512);
        Geometry::plain(size).with_sector(sector)
    }

    /// Tells whether all devices may be written: the user permitted it, or there is no data to lose on any. Prints a
    /// message if not.
    pub(super) async fn may_write(&self, destroy: bool, region: u64) -> Result<bool, Failure> {
        for device in &self.devices {
            let geometry = device.geometry();
            if geometry.read_only {
                eprintln!("lunway: a device is read-only: comparing reads only");
                return Ok(false);
            }
            let region = Options { region, ..Options::default() }.region_on(&geometry);
            if destroy {
                continue;
            }
            let found = looked_for(&**device, region).await;
            if let Some(offset) = found.context("cannot find out whether a device holds data")? {
                eprintln!(
                    "lunway: a device holds data (at offset {offset}): comparing reads only; --destroy overwrites it and \
                     compares writes too"
                );
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn facts(&self, candidates: &[Candidate]) -> Vec<Fact> {
        let fact = |(candidate, device): (&Candidate, &Arc<dyn BlockDevice>)| {
            let Geometry { size, logical_sector, physical_sector, .. } = device.geometry();
            let size = HumanSize(size);
            let value = format!(
                "{}, {size}, sectors of {logical_sector} bytes, {physical_sector} physical",
                candidate.spec
            );
            Fact::new(candidate.name(), value)
        };
        candidates.iter().zip(&self.devices).map(fact).collect()
    }

    /// Returns notes on caches that may have answered I/Os.
    pub(super) async fn caches(&self, candidates: &[Candidate], region: u64) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for (candidate, device) in candidates.iter().zip(&self.devices) {
            let region: Region = Options { region, ..Options::default() }.region_on(&device.geometry());
            let findings = cache_truth(&**device, region).await;
            notes.extend(
                findings.iter().map(|finding| format!("{}: {}", candidate.name(), finding.sentence())),
            );
        }
        notes
    }

    /// Makes durable what was written to the devices that may be.
    pub(super) async fn make_durable(&self, candidates: &[Candidate], cancel: &Cancel) -> anyhow::Result<()> {
        for (candidate, device) in candidates.iter().zip(&self.devices) {
            if !device.geometry().read_only {
                make_durable(&**device, cancel).await.with_context(|| candidate.name())?;
            }
        }
        Ok(())
    }

    /// A file is waited for until its last holder is gone: those of here go first.
    pub(super) async fn close(self) {
        let Self { handles, devices, control_again } = self;
        drop((devices, control_again));
        for opened in handles {
            opened.close_or_log().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_may_say_its_sector() {
        let candidate = Candidate::parse("delay:1ms:ram:1M,sector=4096").unwrap();
        assert_eq!(
            (candidate.sector, candidate.name().as_str()),
            (Some(4096), "delay:1ms:ram:1M,sector=4096")
        );
        assert!(matches!(Candidate::parse("ram:1M,sector=513"), Err(Failure::Usage(_))));
    }
}

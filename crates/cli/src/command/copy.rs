//! `lunway copy`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Args;
use indicatif::ProgressBar;
use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_device::{OpenOptions, create_file};
use serde_json::json;

use crate::failure::Failure;
use crate::transfer::{Compared, Copied, Transfer};
use crate::{device, interrupt, progress, terminal};

/// Copy a device onto another.
///
/// Only data is moved: holes and zeroes stay holes and zeroes. A destination that is a file and not there yet is made, as large
/// as the source; one that is there is overwritten from its start, and must be large enough.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway copy disk.img iscsi://192.0.2.10/iqn.2026-11.io.lunway:disk/0 --verify
  lunway copy iscsi://user@192.0.2.10/iqn.2026-11.io.lunway:disk/0 backup.img")]
pub(crate) struct Copy {
    /// The device to read
    #[arg(value_name = "SRC")]
    source: String,
    /// The device to write
    #[arg(value_name = "DST")]
    destination: String,
    /// Afterwards, read both again and compare
    #[arg(long)]
    verify: bool,
    /// Open files past the page cache (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Copy {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let source = device::parse(&self.source)?;
        let destination = device::parse(&self.destination)?;
        device::run(self.copy(&source, &destination))
    }

    async fn copy(&self, source_spec: &DeviceSpec, destination_spec: &DeviceSpec) -> Result<(), Failure> {
        let options = OpenOptions { direct: self.direct, ..OpenOptions::default() };
        let reading = OpenOptions { read_only: true, ..options.clone() };
        let source = device::open(source_spec, &reading).await?;
        let size = source.device.geometry().size;
        whole(source_spec, size)?;
        let blank = match missing_file(destination_spec) {
            Some(path) => {
                create_file(path, size).map_err(Failure::failed)?;
                true
            }
            None => false,
        };
        let destination = device::open(destination_spec, &options).await?;

        let cancel = interrupt::watch();
        let transfer =
            Transfer { source: &*source.device, destination: &*destination.device, blank, cancel: &cancel };
        let result = self.transfer(&transfer, size).await;
        source.close().await;
        destination.close().await;
        result
            .with_context(|| format!("copying {source_spec} to {destination_spec}"))
            .map_err(Failure::Failed)
            .and_then(|text| terminal::print(&text))
    }

    /// Copies and compares; the result is what to print.
    async fn transfer(&self, transfer: &Transfer<'_>, size: u64) -> anyhow::Result<String> {
        let start = Instant::now();
        let bar = progress::bytes("copying", size);
        let copied = transfer.copy(&mut |done| bar.set_position(done)).await;
        finish(&bar);
        let copied = copied?;
        let elapsed = start.elapsed().as_secs_f64();
        if !copied.complete {
            return Err(anyhow!(
                "interrupted: {} of {size} bytes were dealt with, in no particular order; they are safe",
                copied.done
            ));
        }
        let compared = if self.verify { Some(compare(transfer, size).await?) } else { None };
        Ok(self.summary(copied, compared, elapsed))
    }

    fn summary(&self, copied: Copied, compared: Option<Compared>, elapsed: f64) -> String {
        let Copied { done, written, .. } = copied;
        let rate = done as f64 / elapsed.max(1e-9);
        if self.json {
            let document = json!({
                "size": done,
                "written": written,
                "seconds": elapsed,
                "bytes_per_second": rate,
                "verified": compared.is_some(),
            });
            return document.to_string();
        }
        let verified = if compared.is_some() { ", verified" } else { "" };
        format!(
            "copied {} ({} of data) in {elapsed:.1} s, {:.0} MB/s{verified}",
            HumanSize(done),
            HumanSize(written),
            rate / 1e6
        )
    }
}

async fn compare(transfer: &Transfer<'_>, size: u64) -> anyhow::Result<Compared> {
    let bar = progress::bytes("comparing", size);
    let compared = transfer.compare(&mut |done| bar.set_position(done)).await;
    finish(&bar);
    let compared = compared.context("the copy is complete, but comparing failed")?;
    match compared.differs_at {
        Some(offset) => Err(anyhow!("the copy differs from the source, first at offset {offset}")),
        None if !compared.complete => Err(anyhow!(
            "interrupted: the copy is complete, but only {} of {size} bytes were compared",
            compared.done
        )),
        None => Ok(compared),
    }
}

fn finish(bar: &ProgressBar) {
    bar.finish_and_clear();
}

/// Refuses a file whose end is less than a sector: a device has only whole ones, and the rest would be lost silently.
fn whole(source: &DeviceSpec, size: u64) -> Result<(), Failure> {
    let DeviceSpec::File { path } = source else { return Ok(()) };
    match path.metadata() {
        Ok(file) if file.is_file() && file.len() > size => Err(Failure::failed(anyhow!(
            "{} has {} bytes, and the last {} of them are no whole sector and would be left out: lengthen it first, as with \
             truncate -s %4096",
            path.display(),
            file.len(),
            file.len() - size
        ))),
        _ => Ok(()),
    }
}

/// The path of a raw file that does not exist.
fn missing_file(spec: &DeviceSpec) -> Option<&Path> {
    match spec {
        DeviceSpec::File { path } if !path.try_exists().unwrap_or(true) => Some(path),
        _ => None,
    }
}

//! `lunway copy`.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | the command: the copy, and what is said of it |
//! | `destination.rs` | where a copy goes: a device, an existing file, or a new one |
//! | `unfinished.rs` | the file of a copy while it is incomplete |

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Args;
use indicatif::ProgressBar;
use lunway_bench::{Region, holds_data};
use lunway_block::size::HumanSize;
use lunway_block::spec::{DeviceSpec, PointName, PointWrites};
use lunway_copy::{Compared, Copied, Foreign, Skipped, Transfer, of_paths};
use lunway_device::{OpenOptions, Opened};
use lunway_occupancy::{is_same_file, share_bytes};
use serde_json::json;

mod destination;
mod unfinished;

pub(super) use self::destination::Destination;
pub(super) use self::unfinished::{partial, rename};
use super::disk::{NewDisk, Replaced, skipped};
use crate::awaited::{Awaited, waits_for};
use crate::device::{self, BlockingRuntime};
use crate::failure::Failure;
use crate::new_file::file_mode;
use crate::other_writer::OtherWriter;
use crate::report_file::file_of;
use crate::tail::Tail;
use crate::{interrupt, progress, terminal};

/// Copy one device to another.
///
/// Only data is transferred: holes and zeroes stay unallocated. A destination file that does not exist is created
/// with the size of the source, and is called DST.partial until it is complete. An existing destination must be large
/// enough; if it holds data, --overwrite is required.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway copy a.img iscsi://10.0.1.10/iqn.2026-11.com.example:disks/0 --verify
  lunway copy iscsi://10.0.1.10/iqn.2026-11.com.example:disks/0 c.img
  lunway copy server.vhdx small.vhdx --skip-free   # without deleted files
  # After an interrupt:
  lunway copy iscsi://10.0.1.10/iqn.2026-11.com.example:disks/0 c.img --resume")]
pub(crate) struct Copy {
    /// The device to read
    #[arg(value_name = "SRC")]
    source: String,
    /// The device to write
    #[arg(value_name = "DST")]
    destination: String,
    #[command(flatten)]
    how: How,
    /// Bypass the page cache for files (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// How a VHDX or VHD file is made that is not there yet.
    #[arg(skip)]
    layout: NewDisk,
    /// The parent of a VHDX file that is made.
    #[arg(skip)]
    parent: Option<PathBuf>,
    /// Mode of what is read, where the source is not named here.
    #[arg(skip)]
    mode: Option<u32>,
    /// The file whose place a new one takes.
    #[arg(skip)]
    replaced: Option<Replaced>,
}

/// Treatment of a copy's destination, before and after.
#[derive(Debug, Default, Args)]
pub(super) struct How {
    /// Read both again afterwards, and compare them
    #[arg(long)]
    pub(super) verify: bool,
    /// Overwrite a destination that holds data
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Complete an interrupted copy: write only what differs. With --overwrite if the destination held data before
    #[arg(long)]
    pub(super) resume: bool,
    /// Leave out what the source's file systems prove to be free: it is not read, and is zero at the destination. The
    /// source must not be in use
    #[arg(long)]
    pub(super) skip_free: bool,
}

impl Copy {
    /// A copy that makes a VHDX or VHD file as `layout` says, on a parent if one is named.
    pub(super) fn to_disk(
        source: String,
        destination: String,
        layout: NewDisk,
        parent: Option<PathBuf>,
        how: How,
        json: bool,
    ) -> Self {
        Self { source, destination, how, direct: false, json, layout, parent, mode: None, replaced: None }
    }

    /// The same, of what only who may read a file of this mode may read.
    pub(super) fn readable_as(self, mode: u32) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// The same, with a new file in the place of an existing one.
    pub(super) fn replacing(self, replaced: Option<Replaced>) -> Self {
        Self { replaced, ..self }
    }

    pub(crate) fn run(self) -> Result<(), Failure> {
        let source = device::parse(&self.source)?;
        let destination = device::parse(&self.destination)?;
        refuse_same(&source, &destination)?;
        if let DeviceSpec::Point { name: PointName { writes: PointWrites::Refused, .. } } = &destination {
            return Err(Failure::Usage(format!(
                "{destination} is a point, which is never written: the source comes first, then the destination; `lunway \
                 backup run` makes a point"
            )));
        }
        let runtime = BlockingRuntime::new()?;
        let options = OpenOptions { direct: self.direct, ..OpenOptions::default() };
        let reading = OpenOptions { read_only: true, ..options.clone() };
        if self.how.skip_free {
            refuse_users(&source)?;
        }
        let opened = runtime.wait(device::open(&source, &reading))?;
        if !self.how.skip_free {
            // A disk that hangs was found when it was opened.
            warn_of_users(&source, "data written during the copy may be in it only in part")?;
        }
        let left_out = match self.how.skip_free {
            true => skipped(&*opened.device, &runtime)?,
            false => Skipped::default(),
        };
        runtime.wait(self.copy(&source, opened, &left_out, &destination, &options))
    }

    async fn copy(
        &self,
        source_spec: &DeviceSpec,
        source: Opened,
        skipped: &Skipped,
        destination_spec: &DeviceSpec,
        options: &OpenOptions,
    ) -> Result<(), Failure> {
        let size = source.device.geometry().size;
        whole(source_spec, size)?;
        let sector = source.device.geometry().logical_sector;
        let into = self.destination(destination_spec, size, sector)?;
        let destination = into.open(options).await?;

        let cancel = interrupt::watch();
        let read = Awaited::new(source_spec.to_string(), source.device.clone());
        let written = Awaited::new(destination_spec.to_string(), destination.device.clone());
        let awaited = vec![read.unanswered(), written.unanswered()];
        let otherwise = format!("{source_spec} and {destination_spec}");
        let transfer = Transfer {
            source: &read,
            destination: &written,
            before: into.before,
            skipped,
            is_cancelled: &|| cancel.is_cancelled(),
        };
        interrupt::waits_for(waits_for(awaited, otherwise));
        if into.complete.is_some() {
            interrupt::leaves(self.remains(&into));
        }
        let allowed = self.may_write(&transfer, &into).await.and_then(|()| into.begin());
        let is_refused = allowed.is_err();
        let result = match allowed {
            Ok(()) => self.transfer(&transfer, &written, size, &into).await,
            Err(error) => Err(error),
        };
        let changed = written.is_changed();
        // Files are closed when nothing uses them any more.
        drop((read, written));
        source.close_or_log().await;
        let closed = destination.close().await.context("closing the destination");
        if is_refused {
            into.give_up();
        } else if result.is_err() && into.is_untouched(changed) {
            into.end(false)?;
        }
        let text = result
            .and_then(|text| closed.map(|()| text))
            .with_context(|| format!("copying {source_spec} to {destination_spec}"))
            .map_err(Failure::Failed)?;
        match (&self.replaced, &into.complete) {
            (Some(replaced), Some(complete)) => replaced.give_way(&partial(complete))?,
            (None, Some(complete)) => rename(&partial(complete), complete)?,
            (_, None) => into.end(true)?,
        }
        let kind = if self.json { String::new() } else { into.kind_of_new() };
        terminal::print(&(text + &kind))
    }

    /// Permissions of the source, if that is a file.
    fn source_mode(&self) -> Option<u32> {
        self.mode.or_else(|| file_mode(&DeviceSpec::parse(&self.source).ok()?))
    }

    /// Refuses a destination that holds data, unless the user said what is to become of it.
    async fn may_write(&self, transfer: &Transfer<'_>, into: &Destination) -> anyhow::Result<()> {
        transfer.check()?;
        if into.complete.is_some() || self.how.overwrite {
            return Ok(());
        }
        if self.how.resume {
            return may_go_on(transfer).await;
        }
        let region = Region { offset: 0, len: transfer.source.geometry().size };
        let held = holds_data(transfer.destination, region).await;
        let held = held.map_err(|error| anyhow!("{error}{}", of_paths(transfer.destination, &error)));
        match held.context("cannot look whether the destination holds data")? {
            Some(offset) => Err(anyhow!(
                "the destination holds data, first seen at offset {offset}: --overwrite replaces it"
            )),
            None => Ok(()),
        }
    }

    /// Leftovers of a copy that ends early, and how to complete it.
    fn remains(&self, into: &Destination) -> String {
        match &into.complete {
            Some(complete) => {
                // Two words where a file is replaced: one would be refused because that exists.
                let overwrite = if self.replaced.is_some() { " --overwrite" } else { "" };
                format!("{} is incomplete; --resume{overwrite} continues it", partial(complete).display())
            }
            None => {
                let overwrite = if self.how.overwrite { " --overwrite" } else { "" };
                format!(
                    "{} is incomplete; --resume{overwrite} completes it",
                    into.incomplete("the destination")
                )
            }
        }
    }

    /// The same, where the source is another one by now.
    fn remains_of_another(&self, into: &Destination) -> String {
        match &into.complete {
            Some(complete) => {
                format!("{} is incomplete; --overwrite starts again", partial(complete).display())
            }
            None => {
                format!("{} is incomplete; --overwrite starts again", into.incomplete("the destination"))
            }
        }
    }

    /// Copies and compares; the result is what to print.
    async fn transfer(
        &self,
        transfer: &Transfer<'_>,
        written: &Awaited,
        size: u64,
        into: &Destination,
    ) -> anyhow::Result<String> {
        interrupt::leaves(self.remains(into));
        let start = Instant::now();
        let bar = progress::bytes("copying", size);
        let copied = transfer.copy(&mut |done| bar.set_position(done)).await;
        finish(&bar);
        let now = transfer.source.geometry().size;
        let remains = || match now < size {
            _ if into.is_untouched(written.is_changed()) => {
                "nothing was written to the destination".to_owned()
            }
            // What the copy would go on with is another disk.
            true => format!(
                "the source had {} when the copy began, and has {} now: {}",
                HumanSize(size),
                HumanSize(now),
                self.remains_of_another(into)
            ),
            false => self.remains(into),
        };
        let copied = copied.with_context(remains)?;
        let elapsed = start.elapsed().as_secs_f64();
        if !copied.complete {
            let (done, size) = (HumanSize(copied.done), HumanSize(size));
            return Err(anyhow!("interrupted after {done} of {size}: {}", remains()));
        }
        if now > size {
            let more = HumanSize(now - size);
            terminal::say(&format!(
                "the source has grown by {more} since the copy began, which are not in it"
            ));
        }
        let compared = if self.how.verify { Some(compare(transfer, size).await?) } else { None };
        let destination = transfer.destination.geometry().size;
        Ok(self.summary(copied, compared, destination.saturating_sub(size), elapsed))
    }

    /// The result in words or as JSON. `behind`: bytes of the destination behind the source's end.
    fn summary(&self, copied: Copied, compared: Option<Compared>, behind: u64, elapsed: f64) -> String {
        let Copied { done, written, skipped, .. } = copied;
        let rate = written as f64 / elapsed.max(1e-9);
        if self.json {
            let document = json!({
                "size": done,
                "written": written,
                "skipped": skipped,
                "unchanged": behind,
                "seconds": elapsed,
                "bytes_per_second": rate,
                "verified": compared.is_some(),
            });
            return document.to_string();
        }
        let verified = if compared.is_some() { ", verified" } else { "" };
        let left_out = match skipped {
            0 => String::new(),
            skipped => format!(", without {} of free space", HumanSize(skipped)),
        };
        let behind = unchanged(behind);
        let rate = if elapsed < TIMED { String::new() } else { format!(", {:.0} MB/s", rate / 1e6) };
        format!(
            "copied {} ({} of data{left_out}) in {elapsed:.1} s{rate}{verified}{behind}",
            HumanSize(done),
            HumanSize(written)
        )
    }
}

/// The least time that a rate is made of, seconds: the first figure that the printed time has.
const TIMED: f64 = 0.1;

/// Remark that a destination is larger than what was written to it, as a line of its own; empty where it is not.
pub(in crate::command) fn unchanged(behind: u64) -> String {
    match behind {
        0 => String::new(),
        behind => format!("\nthe destination is larger: its last {} were not changed", HumanSize(behind)),
    }
}

/// Refuses to go on with what an interrupted copy to an empty destination cannot have left.
async fn may_go_on(transfer: &Transfer<'_>) -> anyhow::Result<()> {
    let bar = progress::bytes("comparing", transfer.source.geometry().size);
    let found = transfer.foreign_data(&mut |done| bar.set_position(done)).await;
    finish(&bar);
    match found.context("cannot look whether the destination holds other data")? {
        Foreign::None => Ok(()),
        Foreign::At(offset) => Err(anyhow!(
            "the destination holds data that are not the source's, first seen at offset {offset}: --resume --overwrite replaces them"
        )),
        Foreign::Cancelled => Err(anyhow!("interrupted before anything was written")),
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
            "interrupted: the copy is complete, but only {} of {} were compared",
            HumanSize(compared.done),
            HumanSize(size)
        )),
        None => Ok(compared),
    }
}

/// A size that must not look like another one: `10 GiB (10737418240 bytes)`.
pub(in crate::command) fn exactly(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", HumanSize(bytes))
}

fn finish(bar: &ProgressBar) {
    bar.finish_and_clear();
}

/// Says that somebody may be writing to a disk that is read, and what that means.
pub(super) fn warn_of_users(source: &DeviceSpec, so: &str) -> Result<(), Failure> {
    if let Some(writer) = OtherWriter::of(source)? {
        eprintln!("{writer}: {so}");
    }
    Ok(())
}

/// Refuses a disk that somebody may be writing to: what is free on it now may have data a moment later.
pub(super) fn refuse_users(source: &DeviceSpec) -> Result<(), Failure> {
    let Some(writer) = OtherWriter::of(source)? else { return Ok(()) };
    Err(Failure::failed(anyhow!(
        "{writer}: what is free on it may have data a moment later; close it there first, or copy all of it without \
         --skip-free"
    )))
}

/// Refuses a file whose end is less than a sector: a device has only whole ones, and the rest would be lost silently.
pub(super) fn whole(source: &DeviceSpec, size: u64) -> Result<(), Failure> {
    match Tail::of(source, size) {
        Some(tail) => Err(Failure::failed(anyhow!(
            "{tail} and would be left out: lengthen the file first, as with truncate -s %4096"
        ))),
        None => Ok(()),
    }
}

/// Refuses a copy of a file to itself, also through a loop device or a partition.
pub(super) fn refuse_same(source: &DeviceSpec, destination: &DeviceSpec) -> Result<(), Failure> {
    match (file_of(source), file_of(destination)) {
        (Some(from), Some(to)) if is_same_file(from, to) => Err(Failure::Usage(format!(
            "{source} and {destination} are the same file: name another destination"
        ))),
        (Some(from), Some(to)) if share_bytes(from, to) => Err(Failure::Usage(format!(
            "{source} and {destination} lie on the same bytes, as a loop device and its file do: name another destination"
        ))),
        _ => Ok(()),
    }
}

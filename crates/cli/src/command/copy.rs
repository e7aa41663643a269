//! `lunway copy`.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Args;
use indicatif::ProgressBar;
use lunway_bench::{Region, holds_data};
use lunway_block::BlockDevice;
use lunway_block::size::HumanSize;
use lunway_block::spec::{DeviceSpec, FileFormat, ImageFormat};
use lunway_copy::{Before, Compared, Copied, Foreign, Skipped, Transfer, of_paths};
use lunway_device::{OpenOptions, Opened, create_file, open_new_vhd};
use lunway_image::vhd::Writer;
use lunway_occupancy::{FileId, is_same_file, lock_holder, share_bytes};
use lunway_vhdx::open_file;
use lunway_vhdx_device::VhdxDevice;
use serde_json::json;

use super::disk::{NewDisk, Replaced, skipped};
use crate::awaited::{Awaited, waits_for};
use crate::device::{self, BlockingRuntime};
use crate::failure::Failure;
use crate::new_file::{PrivateFiles, file_mode, of_source};
use crate::other_writer::OtherWriter;
use crate::overwritten::Overwritten;
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

/// Destination of a copy.
pub(super) struct Destination {
    /// The device that is opened.
    spec: DeviceSpec,
    pub(super) before: Before,
    /// The file's name once it is complete, where it has another one until then.
    pub(super) complete: Option<PathBuf>,
    /// The unfinished file.
    file: Option<FileId>,
    /// The file was made just now, and has no data yet.
    made: bool,
    /// The existing file that is written over in place.
    pub(super) overwritten: Option<Overwritten>,
}

impl Destination {
    /// A file that was made for it goes again where it cannot be opened.
    pub(super) async fn open(&self, options: &OpenOptions) -> Result<Opened, Failure> {
        let opened = match &self.spec {
            // The grammar's is only read; this one is new.
            DeviceSpec::Image { path, .. } if self.complete.is_some() => {
                open_new_vhd(path).await.map_err(Failure::failed)
            }
            spec => device::open(spec, options).await,
        };
        if opened.is_err() {
            self.give_up();
        }
        match (opened, self.is_exchanged()) {
            (Ok(opened), Some(unfinished)) => {
                opened.close_or_log().await;
                Err(Failure::failed(anyhow!(
                    "{} was exchanged while it was opened, and nothing was written to it: choose a folder that only you \
                     may write to",
                    unfinished.display()
                )))
            }
            (opened, _) => opened,
        }
    }

    /// The unfinished file, if its name leads to another one by now.
    fn is_exchanged(&self) -> Option<PathBuf> {
        if let Some(overwritten) = &self.overwritten {
            return overwritten.is_exchanged();
        }
        let unfinished = partial(self.complete.as_ref()?);
        let now = fs::symlink_metadata(&unfinished).ok().map(|file| FileId::of(&file));
        (now != self.file).then_some(unfinished)
    }

    /// Removes a file that was made for the copy, to which nothing was written.
    fn give_up(&self) {
        if let (Some(complete), true) = (&self.complete, self.made) {
            let unfinished = partial(complete);
            if let Err(error) = remove_unfinished(&unfinished) {
                eprintln!("lunway: {} is left, and empty: {error:#}", unfinished.display());
            }
        }
    }

    /// An existing file gives up its name until it is whole: from here on it is changed.
    pub(super) fn begin(&self) -> anyhow::Result<()> {
        self.overwritten.as_ref().map_or(Ok(()), Overwritten::set_aside)
    }

    /// The file has what it was to have, or nothing was changed in it: it has its name again.
    pub(super) fn end(&self, changed: bool) -> Result<(), Failure> {
        self.overwritten.as_ref().map_or(Ok(()), |file| file.give_back(changed)).map_err(Failure::Failed)
    }

    /// Returns `true` if a destination that was there before is what it was, if this command has not `changed` it.
    pub(super) fn is_untouched(&self, changed: bool) -> bool {
        let is_left = self.overwritten.as_ref().is_some_and(Overwritten::is_left);
        self.complete.is_none() && !changed && !is_left
    }

    /// Name of what is incomplete while it is written, for a sentence; `otherwise`: a device, which has no other name.
    pub(super) fn incomplete(&self, otherwise: &str) -> String {
        match (&self.complete, &self.overwritten) {
            (Some(complete), _) => partial(complete).display().to_string(),
            (None, Some(file)) if file.is_aside() => file.unfinished().display().to_string(),
            _ => otherwise.to_owned(),
        }
    }

    /// Format of a new file whose name has no ending, as a further line; empty for all others.
    pub(super) fn kind_of_new(&self) -> String {
        match (&self.spec, &self.complete) {
            (DeviceSpec::File { .. }, Some(complete)) if complete.extension().is_none() => format!(
                "\n{} is a raw image, since its name says nothing else: *.vhdx or vhdx:FILE makes a VHDX file",
                complete.display()
            ),
            _ => String::new(),
        }
    }
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

    /// Decides what is written: a file that is not there yet has another name until it is complete.
    pub(super) fn destination(
        &self,
        spec: &DeviceSpec,
        size: u64,
        sector: u32,
    ) -> Result<Destination, Failure> {
        let before = if self.how.resume { Before::Unfinished } else { Before::Unknown };
        let overwritten = Overwritten::of(spec).map_err(Failure::Failed)?;
        let there =
            Destination { spec: spec.clone(), before, complete: None, file: None, made: false, overwritten };
        if self.parent.is_some() && !matches!(spec, DeviceSpec::Vhdx { .. }) {
            return Err(Failure::failed(anyhow!("differencing disks are made as VHDX: name {spec} *.avhdx")));
        }
        if let Some(own) = Overwritten::left(spec) {
            return self.overwrite_again(there, own);
        }
        let missing = match &self.replaced {
            Some(replaced) => may_be_made(spec, replaced.path()).map(|()| Some(replaced.path()))?,
            None => missing_file(spec)?,
        };
        let layout = self.layout.first_option();
        let Some(path) = missing else {
            return match self.parent.as_ref().map(|_| "--parent").or(layout) {
                Some(option) => Err(Failure::Usage(format!(
                    "{option} describes a new file, and {spec} is written in place: leave {option} out, or name another file"
                ))),
                None => Ok(there),
            };
        };
        if let (DeviceSpec::File { .. }, Some(option)) = (spec, layout) {
            return Err(Failure::Usage(format!(
                "{option} describes a VHDX or VHD file, and {spec} is raw by its name: name it *.vhdx or *.vhd, or leave \
                 {option} out"
            )));
        }
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(Failure::failed(anyhow!(
                "{} does not exist: create the directory and name a file in it, such as {}disk.img",
                path.display(),
                path.display()
            )));
        }
        let unfinished = partial(path);
        let spec = with_path(spec, unfinished.clone());
        let name = unfinished.display();
        let left = leftover(&unfinished, self.replaced.as_ref(), REMOVE)?;
        let before = match left {
            Some(_) if self.how.resume && is_unbegun(&spec, &unfinished)? => {
                eprintln!("lunway: {name} was interrupted before anything was copied: starting again");
                remove_unfinished(&unfinished)?;
                Before::Blank
            }
            Some(ref left) if self.how.resume => match disk_size(&spec, left.len)? {
                there if there == size => {
                    self.layout.agrees_with(&spec, self.parent.is_some())?;
                    Before::Unfinished
                }
                there => {
                    return Err(Failure::failed(anyhow!(
                        "{name} is {} and the source {}, so it belongs to another copy; --overwrite starts again",
                        exactly(there),
                        exactly(size)
                    )));
                }
            },
            Some(_) if !self.how.overwrite => {
                let writer = fs::File::open(&unfinished).ok().and_then(|file| lock_holder(&file));
                return Err(Failure::failed(match writer {
                    Some(writer) => {
                        anyhow!("{name} is being written by {writer}: wait until that copy has ended")
                    }
                    None => anyhow!(
                        "{name} is left from an interrupted copy: --resume continues it, --overwrite starts again"
                    ),
                }));
            }
            Some(_) => {
                remove_unfinished(&unfinished)?;
                Before::Blank
            }
            None => Before::Blank,
        };
        let mut before = before;
        let made = before == Before::Blank;
        let file = match left {
            Some(left) if !made => left.id,
            _ => {
                // No other user may open it before its mode is known.
                let private = PrivateFiles::begin();
                self.make(&spec, size, sector)?;
                let usual = private.end();
                if self.parent.is_some() {
                    // It shows the parent's data: what differs from them is written.
                    before = Before::Unfinished;
                }
                match &self.replaced {
                    Some(replaced) => replaced.lend_permissions(&unfinished)?,
                    None => of_source(self.source_mode(), usual, &unfinished)?,
                }
                let made = leftover(&unfinished, self.replaced.as_ref(), REMOVE)?;
                made.with_context(|| format!("{} is gone", unfinished.display()))?.id
            }
        };
        let complete = Some(path.to_owned());
        Ok(Destination { spec, before, complete, file: Some(file), made, overwritten: None })
    }

    /// The destination is a file that a copy to it has left under another name: it stands for the name `own`.
    fn overwrite_again(&self, there: Destination, own: PathBuf) -> Result<Destination, Failure> {
        let unfinished = Overwritten::unfinished_of(&own);
        let (shown, spec) = (unfinished.display(), &there.spec);
        if !matches!(spec, DeviceSpec::File { .. } | DeviceSpec::Vhdx { .. }) {
            return Err(Failure::failed(anyhow!(
                "{shown} is left from an interrupted copy to {}: name that without what is around it, or rename the file",
                own.display()
            )));
        }
        let advice = format!("rename it to {} if it is yours, or remove it", own.display());
        let Some(left) = leftover(&unfinished, None, &advice)? else {
            return Err(Failure::failed(anyhow!("{shown} is gone")));
        };
        if self.layout.first_option().is_some() || self.parent.is_some() {
            return Err(Failure::Usage(format!("{shown} is left from an interrupted copy: {advice}")));
        }
        eprintln!("lunway: {} is called {shown} since a copy to it was interrupted", own.display());
        let spec = with_path(spec, unfinished.clone());
        Ok(Destination { spec, overwritten: Some(Overwritten::go_on(own, left.id)), ..there })
    }

    /// Makes the file of a copy, empty.
    fn make(&self, spec: &DeviceSpec, size: u64, sector: u32) -> Result<(), Failure> {
        match (spec, &self.parent) {
            (DeviceSpec::Vhdx { path }, Some(parent)) => {
                drop(self.layout.make_child(path, parent, Some(size))?);
            }
            (DeviceSpec::Vhdx { path }, None) => drop(self.layout.make(path, size, sector)?),
            (DeviceSpec::Image { path, .. }, _) => drop(self.layout.make_vhd(path, size, sector)?),
            (DeviceSpec::File { path, .. }, _) => create_file(path, size).map_err(Failure::failed)?,
            _ => {}
        }
        Ok(())
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

/// Bytes at the start of a VHDX and at both ends of a VHD of which those that say what the file is are a part: the
/// footer of a VHD has 512 (VHD 1.0, hard disk footer format), the signature of a VHDX 8 ([MS-VHDX] 2.2.1).
const SIGNED: u64 = 512;

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

/// The name of a file while its copy is incomplete.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// What helps against a file in the place of an unfinished one that no copy has left.
const REMOVE: &str = "remove it first";

/// The file of an interrupted copy.
struct Leftover {
    id: FileId,
    len: u64,
}

/// The file that an interrupted copy has left at `path`; `None`: nothing is there.
///
/// The name is known to everybody, and in a folder that others may write to they may have put something else there, to
/// have it written to: refused are a link, a file with another name elsewhere, and a file of another user. A file that
/// takes the place of another one has its owner.
fn leftover(path: &Path, replaced: Option<&Replaced>, advice: &str) -> Result<Option<Leftover>, Failure> {
    let shown = path.display();
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::Failed(anyhow!(error).context(format!("cannot look at {shown}"))));
        }
    };
    let refused = |what: String| {
        Err(Failure::failed(anyhow!("{shown} {what}, so no copy of yours has left it: {advice}")))
    };
    if file.is_symlink() {
        return refused("is a symbolic link".to_owned());
    }
    if !file.is_file() {
        return refused("is not a regular file".to_owned());
    }
    if file.nlink() > 1 {
        return refused(format!("has {} names (hard links)", file.nlink()));
    }
    let is_known = replaced.and_then(Replaced::owner) == Some(file.uid());
    if !is_known && file.uid() != rustix::process::geteuid().as_raw() && new_owner(path) != Some(file.uid()) {
        return refused(format!("belongs to another user (UID {})", file.uid()));
    }
    Ok(Some(Leftover { id: FileId::of(&file), len: file.len() }))
}

/// The owner that a new file in the folder of `path` has: on a share another one than this process.
fn new_owner(path: &Path) -> Option<u32> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(tempfile::tempfile_in(folder).ok()?.metadata().ok()?.uid())
}

/// Removes what an interrupted copy left. A file that is locked belongs to a copy that is running.
fn remove_unfinished(path: &Path) -> anyhow::Result<()> {
    let _locked = open_file(path, true).with_context(|| format!("cannot replace {}", path.display()))?;
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

/// Returns `true` if a copy was killed while it made its file, so that there is no disk in it yet and nothing was
/// copied.
///
/// A raw file gets its length, a VHDX its signature and a VHD its footer after everything else that an empty disk has
/// (a dynamic VHD gets the copy of its footer at the start, from which it can be opened, after its table). A file with
/// anything else there was not left by a copy.
fn is_unbegun(spec: &DeviceSpec, path: &Path) -> anyhow::Result<bool> {
    let mut file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let len = file.metadata().with_context(|| format!("cannot read {}", path.display()))?.len();
    let mut is_all = |values: &[u8], offset: u64| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset))?;
        (&file).take(SIGNED).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(values.iter().any(|value| bytes.iter().all(|byte| byte == value)))
    };
    let unsigned = match spec {
        DeviceSpec::Vhdx { .. } => is_all(&[0], 0),
        // Without a footer a VHD ends with a part of its header or of a fixed disk, which are zero, or with a part of
        // its table, in which each byte is 0xFF.
        DeviceSpec::Image { .. } => {
            is_all(&[0], 0).and_then(|start| Ok(start && is_all(&[0, 0xFF], len.saturating_sub(SIGNED))?))
        }
        _ => return Ok(len == 0),
    };
    unsigned.with_context(|| format!("cannot read {}", path.display()))
}

/// Gives a complete copy its name, durably, unless a file of that name has come meanwhile.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    let failed = || format!("the copy is complete as {}, and cannot be renamed", from.display());
    lunway_vhdx::rename_new(from, to).with_context(failed).map_err(Failure::Failed)
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

/// The path of a file, raw, VHDX or VHD, that does not exist.
fn missing_file(spec: &DeviceSpec) -> Result<Option<&Path>, Failure> {
    let missing = |path: &Path| !path.try_exists().unwrap_or(true);
    if let Some(path) = file_of(spec)
        && missing(path)
        && path.is_symlink()
    {
        return Err(Failure::failed(anyhow!(
            "{} is a symbolic link to a file that does not exist: name the file itself",
            path.display()
        )));
    }
    if let Some(path) = file_of(spec).filter(|path| missing(path)) {
        let shown = path.display();
        // A device's file is the kernel's to make. A regular file there lies in memory and is gone after a restart.
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            return Err(Failure::failed(anyhow!(
                "{shown} does not exist, and a file in /dev is not a disk: check the name"
            )));
        }
        may_be_made(spec, path)?;
    }
    Ok(file_of(spec).filter(|path| missing(path)).filter(|_| {
        matches!(spec, DeviceSpec::File { .. } | DeviceSpec::Vhdx { .. } | DeviceSpec::Image { .. })
    }))
}

/// Refuses to make a file in a format that this program only reads, or not even that.
fn may_be_made(spec: &DeviceSpec, path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let extension = path.extension().map(OsStr::to_ascii_lowercase);
    let foreign = extension.filter(|extension| ["vmdk", "vdi"].iter().any(|format| extension == format));
    if foreign.is_some() && !matches!(spec, DeviceSpec::File { format: FileFormat::Raw, .. }) {
        return Err(Failure::failed(anyhow!(
            "files of this format are not made: raw:{shown} makes a raw image of that name, {shown}.vhdx a VHDX"
        )));
    }
    match spec {
        DeviceSpec::Image { format: ImageFormat::Qcow2, .. } => Err(Failure::failed(anyhow!(
            "qcow2 files are only read, not made: raw:{shown} makes a raw image of that name, {shown}.vhdx a VHDX"
        ))),
        _ => Ok(()),
    }
}

/// The same file by another name. A raw one's content is the source's, whatever that is.
fn with_path(spec: &DeviceSpec, path: PathBuf) -> DeviceSpec {
    match spec {
        DeviceSpec::File { cache, .. } => DeviceSpec::File { path, format: FileFormat::Raw, cache: *cache },
        DeviceSpec::Image { format, .. } => DeviceSpec::Image { path, format: *format },
        _ => DeviceSpec::Vhdx { path },
    }
}

/// The size of the disk in a file of `len` bytes.
fn disk_size(spec: &DeviceSpec, len: u64) -> anyhow::Result<u64> {
    Ok(match spec {
        DeviceSpec::Vhdx { path } => VhdxDevice::open(path, true)?.geometry().size,
        DeviceSpec::Image { path, .. } => {
            let writer =
                Writer::open_file(path).with_context(|| format!("cannot open {}", path.display()))?;
            writer.size()
        }
        _ => len,
    })
}

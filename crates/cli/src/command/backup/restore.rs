//! `lunway backup restore`.

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_backup::{
    BackupError, Content, Folder, HostFolder, PointId, PointMount, Restored, Target, restore_content,
};
use lunway_bench::{Region, holds_data};
use lunway_block::BlockDevice;
use lunway_block::size::{HumanSize, parse_size};
use lunway_block::spec::{DeviceSpec, is_store_address};
use lunway_copy::{Before, of_paths};
use lunway_device::OpenOptions;
use serde_json::json;

use super::{Destination, catalogue, failed, holder, refuse_inside, swapped};
use crate::awaited::{Awaited, waits_for};
use crate::command::copy::{Copy, Destination as Into, How, exactly, partial, rename, unchanged};
use crate::command::disk::NewDisk;
use crate::device::{self, BlockingRuntime};
use crate::failure::Failure;
use crate::report_file::file_of;
use crate::{interrupt, progress, terminal};

/// Restore a point onto a device, or into a new file.
///
/// All data is compared with its hash before it is written. A file that does not exist is created, as raw or VHDX
/// depending on its name, and is called OUT.partial until it is complete; --resume continues it. An existing device
/// must be large enough; if it holds data, --overwrite is required.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup restore /mnt/share/server1 restored.vhdx
  lunway backup restore /mnt/share/server1 /dev/sdb --point 3f2a --overwrite
  lunway backup restore /mnt/share/server1 boot.img --length 1M
  # Write only what differs, onto the disk that was damaged:
  lunway backup restore /mnt/share/server1 disk.img --delta --overwrite")]
pub(super) struct Restore {
    #[command(flatten)]
    destination: Destination,
    /// The device to write
    #[arg(value_name = "OUT")]
    out: String,
    /// The point: the beginning of an id, latest, or a time
    #[arg(long, value_name = "POINT", default_value = "latest")]
    point: String,
    /// Overwrite a device that holds data
    #[arg(long)]
    overwrite: bool,
    /// Read the device, and write only what differs from the point
    #[arg(long, requires = "overwrite")]
    delta: bool,
    /// Complete an interrupted restore of the same point: write only what differs
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Restore only the bytes from this offset of the disk on; they are the first of OUT
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    offset: u64,
    /// Restore only this many bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    length: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A point that is to be restored.
struct Wanted {
    /// The folder of the chain or the repository, if it is one of this machine.
    own: Option<Arc<HostFolder>>,
    /// Display name of the points' folder.
    shown: String,
    point: PointId,
    virtual_bytes: u64,
    sector_bytes: u32,
    content: Arc<dyn Content>,
    /// A prune must not remove what is read here, maybe for hours.
    _mount: Option<PointMount>,
}

/// Says that points of a folder are about to be read, where that can be said.
fn begin(folder: &Arc<dyn Folder>) -> Result<Option<PointMount>, Failure> {
    let mount = PointMount::begin_if_possible(Arc::clone(folder), &holder()?).map_err(failed)?;
    if mount.is_none() {
        let told = "cannot be written: a prune is not told of this restore, and may remove what it reads";
        eprintln!("lunway: {} {told}", folder.show(""));
    }
    Ok(mount)
}

impl Restore {
    pub(super) fn run(self) -> Result<(), Failure> {
        swapped::refuse_restore(&self.destination.folder, &self.out)?;
        let spec = device::parse(&self.out)?;
        let wanted = self.wanted()?;
        if let (Some(path), Some(own)) = (file_of(&spec), &wanted.own) {
            refuse_inside(own, path)?;
        }
        let mode = wanted.own.as_ref().map_or(Ok(0), |own| own.mode());
        let mode = mode.context("reading the destination")?;
        let sector = wanted.sector_bytes;
        let range = self.range(&wanted)?;
        let size = range.end - range.start;
        let how = How { overwrite: self.overwrite, resume: self.resume, ..How::default() };
        let copy = Copy::to_disk(String::new(), self.out.clone(), NewDisk::default(), None, how, self.json);
        let copy = copy.readable_as(mode);
        let into = copy.destination(&spec, size, sector)?;
        let runtime = BlockingRuntime::new()?;
        let opened = runtime.wait(into.open(&OpenOptions::default()))?;
        let target = match (&into.complete, into.before) {
            (Some(_), Before::Blank) => Target::Blank,
            (Some(_), _) => Target::Damaged,
            (None, _) if self.delta => Target::Damaged,
            (None, _) => Target::Unknown,
        };
        let cancel = interrupt::watch();
        let begun = Instant::now();
        let behind = opened.device.geometry().size.saturating_sub(size);
        let writes = Cell::new(false);
        let written = Awaited::new(spec.to_string(), opened.device.clone());
        interrupt::waits_for(waits_for(vec![written.unanswered()], wanted.shown.clone()));
        if into.complete.is_some() {
            interrupt::leaves(remains(&spec, &into, false, None).trim_start_matches(": "));
        }
        let result = runtime.wait(async {
            let device: &dyn BlockDevice = &written;
            let there = device.geometry().size;
            if there < size {
                return Err(anyhow!(
                    "{spec} is {} and what is restored {}: nothing was written; name a larger device, or a new file",
                    exactly(there),
                    exactly(size)
                ));
            }
            if into.complete.is_none() && !self.overwrite {
                let region = Region { offset: 0, len: size.min(device.geometry().size) };
                let held = holds_data(device, region).await;
                let held = held.map_err(|error| anyhow!("{error}{}", of_paths(device, &error)));
                if let Some(offset) = held.context("cannot look whether the device holds data")? {
                    return Err(anyhow!(
                        "the device holds data, first seen at offset {offset}: --overwrite replaces it"
                    ));
                }
            }
            let bar = progress::bytes("restoring", size);
            let is_cancelled = || cancel.is_cancelled();
            let mut told = |done| bar.set_position(done);
            into.begin()?;
            writes.set(true);
            interrupt::leaves(remains(&spec, &into, true, None).trim_start_matches(": "));
            let restored =
                restore_content(&wanted.content, Some(range), target, device, &is_cancelled, &mut told).await;
            bar.finish_and_clear();
            Ok(restored?)
        });
        let changed = written.is_changed();
        // A file is closed when nothing uses it any more.
        drop(written);
        let closed = runtime.wait(opened.close()).context("closing the device");
        if result.is_err() && into.is_untouched(changed) {
            into.end(false)?;
        }
        let restored = result
            .and_then(|restored| closed.map(|()| restored))
            .map_err(|error| {
                let remains =
                    remains(&spec, &into, writes.get() && !into.is_untouched(changed), error.downcast_ref());
                error.context(format!("restoring point {} to {spec}{remains}", wanted.point))
            })
            .map_err(Failure::Failed)?;
        match &into.complete {
            Some(complete) => rename(&partial(complete), complete)?,
            None => into.end(true)?,
        }
        let told = unchanged(behind) + &into.kind_of_new();
        self.print(&restored, &wanted.point.to_string(), (size, behind, &told), begun.elapsed().as_secs_f64())
    }

    /// The point that is meant.
    fn wanted(&self) -> Result<Wanted, Failure> {
        if let Some(series) = self.destination.series(false)? {
            let mount = begin(&series.folder)?;
            let points = series.points().map_err(failed)?;
            let point = points.find(&self.point).map_err(failed)?;
            for warning in points.warnings() {
                eprintln!("lunway: {}", terminal::clean(&warning));
            }
            return Ok(Wanted {
                own: self.repository_folder()?,
                shown: series.show(),
                point: point.point,
                virtual_bytes: point.virtual_bytes,
                sector_bytes: point.sector_bytes,
                content: Arc::new(series.repository.content(point).map_err(failed)?),
                _mount: mount,
            });
        }
        let own = self.destination.open()?;
        let folder: Arc<dyn Folder> = own.clone();
        let mount = begin(&folder)?;
        let catalogue = catalogue(&*own)?;
        let manifest = catalogue.find(&self.point).map_err(failed)?;
        Ok(Wanted {
            point: manifest.point,
            virtual_bytes: manifest.virtual_bytes,
            sector_bytes: manifest.sector_bytes,
            content: catalogue.content(&*folder, manifest.point).map_err(failed)?,
            shown: own.show(""),
            own: Some(own),
            _mount: mount,
        })
    }

    /// The folder of the repository that the destination is a series of; `None`: it is in an object store.
    fn repository_folder(&self) -> Result<Option<Arc<HostFolder>>, Failure> {
        if is_store_address(&self.destination.folder) {
            return Ok(None);
        }
        let parent = self.destination.folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        let own = HostFolder::open(parent.unwrap_or(Path::new("."))).context("opening the repository")?;
        Ok(Some(Arc::new(own.with_mode(0))))
    }

    /// The bytes of the disk that are restored.
    fn range(&self, wanted: &Wanted) -> Result<Range<u64>, Failure> {
        let (size, sector) = (wanted.virtual_bytes, u64::from(wanted.sector_bytes));
        let length = self.length.unwrap_or(size.saturating_sub(self.offset));
        let end = self.offset.checked_add(length).filter(|end| *end <= size && length > 0);
        let is_whole = |bytes: u64| bytes.is_multiple_of(sector);
        match end {
            Some(end) if is_whole(self.offset) && is_whole(end) => Ok(self.offset..end),
            Some(_) => Err(Failure::Usage(format!(
                "--offset {} and --length {length} are not whole sectors of {sector} bytes",
                self.offset
            ))),
            None => Err(Failure::Usage(format!(
                "--offset {} and --length {length} lead beyond the disk of point {}, which has {size} bytes",
                self.offset, wanted.point
            ))),
        }
    }

    fn print(
        &self,
        restored: &Restored,
        point: &str,
        (size, behind, told): (u64, u64, &str),
        seconds: f64,
    ) -> Result<(), Failure> {
        if self.json {
            return terminal::print_json(&json!({
                "point": point,
                "size": size,
                "written": restored.written,
                "zeroed": restored.zeroed,
                "compared": restored.compared,
                "unchanged": behind,
                "seconds": seconds,
            }));
        }
        let if_any = |bytes: u64, what| match bytes {
            0 => String::new(),
            bytes => format!(", {} {what}", HumanSize(bytes)),
        };
        let (zeroed, compared) = (if_any(restored.zeroed, "zeroed"), if_any(restored.compared, "compared"));
        terminal::print(&format!(
            "point {point}: {} restored ({} written{zeroed}{compared}) in {seconds:.1} s{told}",
            HumanSize(size),
            HumanSize(restored.written)
        ))
    }
}

/// Leftovers of a restore that failed, and what may be done with them: the end of a sentence; empty where nothing was
/// written.
fn remains(spec: &DeviceSpec, into: &Into, writes: bool, error: Option<&BackupError>) -> String {
    let is_damaged = matches!(error, Some(BackupError::Damaged { .. }));
    match &into.complete {
        Some(complete) if is_damaged => format!(
            ": {} is incomplete, and the point cannot complete it: restore an older one (--point) with --overwrite, or \
             remove the file",
            partial(complete).display()
        ),
        Some(complete) => format!(
            ": {} is incomplete; --resume continues it, --overwrite starts again",
            partial(complete).display()
        ),
        None if writes && is_damaged => format!(
            ": {} holds only a part of it, and the point cannot complete it: restore an older one (--point) with \
             --overwrite",
            into.incomplete(&spec.to_string())
        ),
        None if writes => format!(
            ": {} holds only a part of it; --delta --overwrite completes it",
            into.incomplete(&spec.to_string())
        ),
        None => String::new(),
    }
}

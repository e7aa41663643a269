//! `lunway disk compact` on a raw disk image: what is dead becomes holes.

use std::os::unix::fs::FileTypeExt;

use anyhow::{Context, anyhow};
use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_compact::Mode;
use lunway_device::{OpenOptions, Opened};
use lunway_filesystem::{Ranges, tree};
use serde_json::json;

use super::{Compact, Name, Size, collect, percent, volume_json, volumes_table};
use crate::command::disk::discard::{Dead, Target, partitions};
use crate::command::disk::source::DeviceSource;
use crate::device::{self, BlockingRuntime};
use crate::failure::Failure;
use crate::{interrupt, terminal};

impl Compact {
    pub(super) fn raw(&self, spec: &DeviceSpec) -> Result<(), Failure> {
        let path = &self.file;
        if self.block_size.is_some() {
            return Err(Failure::Usage(format!(
                "--block-size: {} is a raw image, which has no blocks",
                path.display()
            )));
        }
        if path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            return Err(Failure::failed(anyhow!(
                "{0} is a block device: `lunway disk trim {0}` discards its free space",
                path.display()
            )));
        }
        let options = OpenOptions { read_only: self.estimate, without_tail: true, ..OpenOptions::default() };
        let runtime = BlockingRuntime::new()?;
        let opened = runtime.wait(device::open(spec, &options))?;
        let text = self.dig(&opened, &runtime);
        let closed = runtime.wait(opened.close());
        let text = text?;
        closed.map_err(Failure::failed)?;
        terminal::print(&text)
    }

    fn dig(&self, opened: &Opened, runtime: &BlockingRuntime) -> Result<String, Failure> {
        let (path, device, mode) = (&self.file, &*opened.device, self.mode.mode());
        let source = DeviceSource::new(device, runtime);
        let disk = tree::Disk::examine(&source, source.sector());
        let target = Target { device, runtime, disk: &disk };
        let keep = Ranges::union(partitions(disk.root(), &self.keep, &path.display().to_string())?);
        if self.estimate {
            return self.estimate_raw(&target, &keep);
        }
        if !device.geometry().unmap.frees() {
            return Err(Failure::failed(anyhow!("{} is on a file system without holes", path.display())));
        }
        if mode.asks_file_systems() && disk.root().free == 0 {
            let why = disk.root().reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            return Err(Failure::failed(anyhow!(
                "nothing on {0} is known to be free{why}: `lunway disk inside {0}` says why; --mode prezeroed makes \
                 holes of its zeroes",
                path.display()
            )));
        }
        let before = Size::of(path)?;
        let cancel = interrupt::watch();
        let (shown, whole) = (
            path.display().to_string(),
            format!("{} has all its data; the same command continues", path.display()),
        );
        interrupt::waits_for(move || shown.clone());
        interrupt::leaves(&*whole);
        let Some(bytes) = target.discard(&dead(mode, keep), &cancel)? else {
            return Err(Failure::failed(anyhow!("interrupted: {whole}")));
        };
        let after = Size::of(path)?;
        if self.json {
            let document = json!({
                "file": path.display().to_string(),
                "mode": Name::of(mode),
                "bytes_before": before.bytes,
                "bytes": after.bytes,
                "allocated_bytes_before": before.allocated,
                "allocated_bytes": after.allocated,
                "dropped_blocks": 0,
                "punched_bytes": bytes,
                "moved_bytes": 0,
            });
            return Ok(document.to_string());
        }
        Ok(format!(
            "{} takes {} of the host's space ({} bytes), before {}; its length is the disk's, as before",
            path.display(),
            HumanSize(after.allocated),
            after.allocated,
            HumanSize(before.allocated)
        ))
    }

    fn estimate_raw(&self, target: &Target<'_>, keep: &Ranges) -> Result<String, Failure> {
        let before = Size::of(&self.file)?;
        let cancel = interrupt::watch();
        let count = |mode| {
            let counted = target.count(&dead(mode, keep.clone()), &cancel)?;
            counted.context("interrupted: nothing was changed").map_err(Failure::Failed)
        };
        // Nothing moves in a raw file: what two modes drop decides whether they differ.
        let (both, free, zeroes) = (count(Mode::Live)?, count(Mode::Quick)?, count(Mode::Prezeroed)?);
        let punched = |mode: Mode| match (mode.asks_file_systems(), mode.looks_for_zeroes()) {
            (true, true) => both,
            (true, false) => free,
            (false, true) => zeroes,
            (false, false) => 0,
        };
        let mut volumes = Vec::new();
        collect(target.disk.root(), &mut volumes);
        if self.json {
            let document = json!({
                "bytes": before.bytes,
                "allocated_bytes": before.allocated,
                "modes": Mode::ALL.map(|mode| json!({
                    "name": Name::of(mode),
                    "bytes_before": before.bytes,
                    "bytes_after": before.bytes,
                    "punched_bytes": punched(mode),
                })),
                "volumes": volumes.iter().map(|node| volume_json(node, None)).collect::<Vec<_>>(),
            });
            return Ok(document.to_string());
        }
        let rows = Mode::ALL.map(|mode| {
            let holes = punched(mode).min(before.allocated);
            let after = before.allocated - holes;
            [
                Name::of(mode).to_owned(),
                after.to_string(),
                HumanSize(after).to_string(),
                percent(holes, before.allocated),
            ]
        });
        let start = ["at start", &before.allocated.to_string(), &HumanSize(before.allocated).to_string(), ""];
        let rows: Vec<_> = std::iter::once(start.map(str::to_owned)).chain(rows).collect();
        let table = terminal::table(["MODE", "ALLOCATED", "SIZE", "SAVED"], &rows, "");
        Ok(format!("{table}\n{}", volumes_table(&volumes, &|_| None)))
    }
}

fn dead(mode: Mode, keep: Ranges) -> Dead {
    Dead { free: mode.asks_file_systems(), zeroes: mode.looks_for_zeroes(), keep }
}

//! `lunway disk`: virtual disks in VHDX files.

mod check;
mod compact;
mod create;
mod discard;
mod free;
mod image;
mod info;
mod inside;
mod map;
mod merge;
mod mount;
mod named;
mod parent;
mod repair;
mod replaced;
mod resize;
mod set;
mod source;
mod trim;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use lunway_block::size::HumanSize;
use lunway_occupancy::other_user;
use lunway_vhdx::format::{Guid, GuidSource};
use lunway_vhdx::{Chain, DiskKind, SegmentSource, VhdxOpenOptions, merge::children, open_file};
use lunway_vhdx_device::random_guids;

use crate::failure::Failure;
use crate::replaceable::child_names;

pub(super) use create::NewDisk;
pub(super) use free::skipped;
pub(super) use replaced::Replaced;
pub(super) use source::DeviceSource;

/// Create, inspect, check, change, compact and merge virtual disks; show the free space on any disk
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk create server.vhdx --size 100G
  lunway disk info server.vhdx
  lunway disk snapshot server.vhdx server-1.avhdx
  lunway disk merge server-1.avhdx
  lunway disk convert server.vhdx server.img --verify")]
pub(crate) struct Disk {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(create::Create),
    Convert(create::Convert),
    Info(info::Info),
    Inside(inside::Inside),
    Map(map::Map),
    Check(check::Check),
    Repair(repair::Repair),
    Resize(resize::Resize),
    Compact(compact::Compact),
    Trim(trim::Trim),
    Snapshot(create::Snapshot),
    Merge(merge::Merge),
    Rebase(parent::Rebase),
    Set(set::Set),
    Mount(mount::Mount),
}

impl Disk {
    /// Returns `true` if other programs wait for its I/O until a signal ends it.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.action, Action::Mount(_))
    }

    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Create(create) => create.run(),
            Action::Convert(convert) => convert.run(),
            Action::Info(info) => info.run(),
            Action::Inside(inside) => inside.run(),
            Action::Map(map) => map.run(),
            Action::Check(check) => check.run(),
            Action::Repair(repair) => repair.run(),
            Action::Resize(resize) => resize.run(),
            Action::Compact(compact) => compact.run(),
            Action::Trim(trim) => trim.run(),
            Action::Snapshot(snapshot) => snapshot.run(),
            Action::Merge(merge) => merge.run(),
            Action::Rebase(rebase) => rebase.run(),
            Action::Set(set) => set.run(),
            Action::Mount(mount) => mount.run(),
        }
    }
}

/// Random GUIDs, for as many files as are opened. The kernel has given some before the first one is used.
fn guids() -> anyhow::Result<impl FnMut() -> Box<dyn GuidSource>> {
    let first = random_guids().context("asking for random numbers")?;
    let mut first = Some(first);
    let next = || random_guids().unwrap_or_else(|_| Box::new(|| Guid::ZERO));
    Ok(move || first.take().unwrap_or_else(next))
}

/// The folder in which parents are looked for, and below.
fn folder(path: &Path) -> PathBuf {
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    canonical.parent().unwrap_or(Path::new("/")).to_owned()
}

/// Size of the smallest disk that holds all partitions; `None`: there is no partition table.
fn minimum_text(minimum: Option<u64>) -> String {
    match minimum {
        Some(minimum) => format!("{} ({minimum} bytes)", HumanSize(minimum)),
        None => "unknown: there is no whole partition table".to_owned(),
    }
}

/// Use of a file by programs that do not lock all of it, as QEMU and loop devices.
fn others_use(file: &File) -> Option<String> {
    other_user(file).map(|by| format!("{by}: the figures are of a moment"))
}

/// Opens a disk and its parents for reading.
fn open_chain(path: &Path) -> anyhow::Result<Chain<File>> {
    let chain = Chain::open_files(path, &folder(path), &VhdxOpenOptions::read_only(), guids()?);
    chain.with_context(|| format!("cannot open {}", path.display()))
}

/// Opens and locks a file that is going to change. `change`, a past participle, is one that leaves other disks without
/// this parent: it is refused where there are any. None is made while the file is locked.
fn open_to_change(path: &Path, change: Option<&str>) -> anyhow::Result<File> {
    let alone = || change.map_or(Ok(()), |change| no_children(path, change));
    // Children that are open lock it, which would be a worse reason.
    alone()?;
    let file = open_file(path, true).with_context(|| format!("cannot open {}", path.display()))?;
    alone()?;
    Ok(file)
}

/// The chain of a file that is open and locked to be changed, and of its parents.
fn chain_to_change(file: File, path: &Path) -> anyhow::Result<Chain<File>> {
    let (options, mut next) = (VhdxOpenOptions::writable(), guids()?);
    let disk = lunway_vhdx::Disk::open(file, &options, next())?;
    Ok(Chain::with_parents(vec![disk], &[path.to_owned()], &folder(path), &options, next)?)
}

/// Refuses to change what other disks were made on: their data would be wrong without a word, so Windows and this
/// program refuse to open them then.
fn no_children(path: &Path, what: &str) -> anyhow::Result<()> {
    let found = children(path).with_context(|| format!("cannot look for children of {}", path.display()))?;
    match found.as_slice() {
        // Children lie beside the name by which they know their parent.
        [] if path.metadata().is_ok_and(|found| found.nlink() > 1) => Err(anyhow!(
            "{} has another name (a hard link), beside which children may lie that can no longer be opened once it is \
             {what}; and what has that name changes as well: use --force if that is meant",
            path.display()
        )),
        [] => Ok(()),
        found => Err(anyhow!(
            "{} is the parent of {}, which can no longer be opened once it is {what}: merge them first, or use --force",
            path.display(),
            child_names(path, found)
        )),
    }
}

/// File names, for a sentence.
fn names(paths: &[PathBuf]) -> String {
    let name = |path: &PathBuf| path.file_name().unwrap_or(OsStr::new("?")).to_string_lossy().into_owned();
    paths.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Name of a kind of disk, for people and JSON.
fn kind_name(kind: DiskKind) -> &'static str {
    match kind {
        DiskKind::Dynamic => "dynamic",
        DiskKind::Fixed => "fixed",
        DiskKind::Differencing => "differencing",
    }
}

/// Name of the source of a range, for people and JSON.
fn source_name(source: SegmentSource) -> &'static str {
    match source {
        SegmentSource::File(_) => "data",
        SegmentSource::Zero => "zero",
        SegmentSource::Unmapped => "unmapped",
        SegmentSource::NeverWritten => "never written",
        SegmentSource::Parent => "parent",
    }
}

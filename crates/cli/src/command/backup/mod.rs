//! `lunway backup`: points in time of a disk, in a folder on any share, or in a repository of many disks.

mod ceph_image;
mod closed_epochs;
mod destination_check;
mod export;
mod files;
mod init;
mod key;
mod list;
mod mount;
mod prune;
mod report;
mod restore;
mod run;
mod schedule;
mod served;
mod source_id;
mod store;
mod swapped;
mod verify;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use lunway_backup::{BackupError, Catalogue, Folder, Guids, Holder, HostFolder, Lease};
use lunway_block::spec::DeviceSpec;
use lunway_vhdx::format::Guid;
use lunway_vhdx_device::random_guids;

pub(crate) use self::destination_check::CHECK_DESTINATION;
use self::store::{Read, Store};
use crate::begun_by::BegunBy;
use crate::failure::Failure;
use crate::new_file::file_mode;

/// The variable that names the file with the user's secret key.
const KEY_FILE: &str = lunway_device::KEY_FILE_VARIABLE;

/// Back disks up into a folder of VHDX files or a repository, and restore them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup run disk.vhdx /mnt/share/server1
  lunway backup run lun:iqn.2026-11.com.example:disks/0 /mnt/share/db
  lunway backup init /mnt/share/repo
  lunway backup run disk.vhdx /mnt/share/repo/server1
  lunway backup list /mnt/share/server1
  lunway backup verify /mnt/share/server1
  lunway backup restore /mnt/share/server1 restored.vhdx --point latest
  lunway backup prune /mnt/share/server1 --keep-last 7 --keep-weekly 8 --dry-run")]
pub(crate) struct Backup {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(run::Run),
    Init(init::Init),
    Key(key::Key),
    List(list::List),
    Status(list::Status),
    Report(report::Report),
    Verify(verify::Verify),
    Restore(restore::Restore),
    Mount(mount::Mount),
    Prune(prune::Prune),
    Schedule(schedule::Schedule),
    #[command(hide = true)]
    CheckDestination(destination_check::CheckDestination),
}

impl Backup {
    /// Returns `true` if other programs wait for its I/O until a signal ends it.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.action, Action::Mount(_))
    }

    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Run(run) => run.run(),
            Action::Init(init) => init.run(),
            Action::Key(key) => key.run(),
            Action::List(list) => list.run(),
            Action::Status(status) => status.run(),
            Action::Report(report) => report.run(),
            Action::Verify(verify) => verify.run(),
            Action::Restore(restore) => restore.run(),
            Action::Mount(mount) => mount.run(),
            Action::Prune(prune) => prune.run(),
            Action::Schedule(schedule) => schedule.run(),
            Action::CheckDestination(check) => check.run(),
        }
    }
}

/// The folder of a destination.
#[derive(Clone, Debug, Args)]
struct Destination {
    /// The folder with the points: a local one, or a mounted share; or REPO/NAME, the series NAME of a repository.
    /// In an object store: s3://BUCKET/PATH/NAME
    #[arg(value_name = "DEST")]
    folder: PathBuf,
    /// For an encrypted repository: the file with your secret key (lunway backup key new)
    #[arg(long, value_name = "FILE", env = KEY_FILE)]
    key_file: Option<PathBuf>,
}

impl Destination {
    /// Its whole path, by which a daemon tells destinations apart.
    fn written(&self) -> String {
        self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone()).display().to_string()
    }

    fn open(&self) -> Result<Arc<HostFolder>, Failure> {
        self.open_folder().map(Arc::new)
    }

    fn open_folder(&self) -> Result<HostFolder, Failure> {
        let shown = self.folder.display();
        let opened = HostFolder::open(&self.folder).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::NotADirectory => "points are in a folder",
                _ => "make the folder first, and see that its share is mounted",
            };
            anyhow::Error::from(error).context(format!("cannot use {shown} as a destination: {what}"))
        });
        Ok(opened?)
    }

    /// The same for points of a disk, which only who may read that may read.
    fn open_for(&self, source: &DeviceSpec) -> Result<Store, Failure> {
        self.opened(file_mode(source).unwrap_or(0))
    }

    /// The same for points of a disk that only its user may read.
    fn open_private(&self) -> Result<Store, Failure> {
        self.opened(0)
    }

    fn opened(&self, mode: u32) -> Result<Store, Failure> {
        if let Some(series) = self.series(true)? {
            return Ok(Store::Series(Box::new(series)));
        }
        Ok(Store::Chain(Arc::new(self.open_folder()?.with_mode(mode))))
    }
}

/// Time for which a run that a daemon begins waits for a destination that another run has: one whose daemon was killed
/// ends within seconds, if its share answers, and else half a minute after its last sign of life.
const IN_USE_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which it tries again.
const IN_USE_POLL: Duration = Duration::from_millis(500);

/// Takes the lease of a destination, and reads its points under it. A command that a daemon has begun waits for the end
/// of the one that has it: the daemon knows of no other, and would begin it again in ten minutes.
fn take_lease<'a>(
    store: &'a Store,
    begun_by: &BegunBy,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(Lease<'a>, Read), Failure> {
    let folder = &**store.folder();
    let begun = Instant::now();
    loop {
        match Lease::take_and_look(folder, holder()?, is_cancelled, || store.read()) {
            Err(BackupError::InUse { .. })
                if begun_by.is_daemon() && begun.elapsed() < IN_USE_PATIENCE && !is_cancelled() =>
            {
                thread::sleep(IN_USE_POLL);
            }
            // What an earlier run has left may have taken the room, and this one may do with less.
            Err(BackupError::Full { .. }) if has_leftovers(folder) => {
                let lease = Lease::take_without_room(folder, holder()?, is_cancelled).map_err(failed)?;
                return Ok((lease, store.read()?));
            }
            taken => {
                let (lease, read) = taken.map_err(failed)?;
                return Ok((lease, read?));
            }
        }
    }
}

/// Tells whether a run that was stopped has left files.
fn has_leftovers(folder: &dyn Folder) -> bool {
    Catalogue::load(folder).is_ok_and(|catalogue| catalogue.has_leftovers())
}

/// Catalogue of the points in a folder.
fn catalogue(folder: &dyn Folder) -> Result<Catalogue, Failure> {
    Catalogue::load(folder).map_err(failed)
}

/// The same of a folder that must hold a point: an empty one is as a rule the mount point of a share that is not there.
fn points(folder: &HostFolder) -> Result<Catalogue, Failure> {
    let catalogue = catalogue(folder)?;
    if catalogue.points().is_empty() && catalogue.unreadable().is_empty() {
        return Err(Failure::failed(anyhow!("{} holds no points: is its share mounted?", folder.show(""))));
    }
    Ok(catalogue)
}

fn failed(error: BackupError) -> Failure {
    match error {
        BackupError::Locked(what) => {
            Failure::failed(anyhow!("{what}, with --key-file FILE or the variable {KEY_FILE}"))
        }
        error => Failure::failed(error),
    }
}

/// The same of a run into a folder: where there is no room, also how to have that of what a stopped run has left.
fn failed_in(folder: &dyn Folder, error: BackupError) -> Failure {
    match error {
        error @ BackupError::Full { .. } if has_leftovers(folder) => {
            let shown = folder.show("");
            Failure::failed(anyhow!(
                "{error}; to have the room of what was sent so far instead: `lunway backup prune {shown} \
                 --remove-incomplete`"
            ))
        }
        error => failed(error),
    }
}

/// Random GUIDs, for as many files as are made. The kernel has given some before the first one is used.
fn guids() -> Result<Guids, Failure> {
    random_guids().context("asking for random numbers")?;
    Ok(Arc::new(|| random_guids().unwrap_or_else(|_| Box::new(|| Guid::ZERO))))
}

/// This process, as others see it in the lease of a destination.
fn holder() -> Result<Holder, Failure> {
    let nonce = random_guids().context("asking for random numbers")?.next().to_digits() as u64;
    Ok(Holder::this_process(nonce))
}

/// Refuses a file among a destination's own.
fn refuse_inside(folder: &HostFolder, path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match parent.canonicalize() {
        Ok(parent) if parent.starts_with(folder.path()) => Err(Failure::failed(anyhow!(
            "{} lies in the destination, where only backups write: choose another folder",
            path.display()
        ))),
        _ => Ok(()),
    }
}

//! A point that becomes a disk of its own: `point:FOLDER[@POINT]?into=FILE`.
//!
//! ```text
//!   1  hold     a file beside the points, durable: no prune changes them                            (hold_points)
//!   2  file     FILE.incomplete, a differencing disk on the point; durable, then it gets its name
//!   3  pull     read, written, and completed from the point                           (VhdxDevice::open_pulled)
//!   4  release  FILE stands alone, durably: the hold is removed                                  (release_points)
//! ```
//!
//! A process that is killed goes on with the next one: FILE names its point by the point's DataWriteGuid. What stands
//! alone is opened without a look at the folder of the points.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lunway_backup::{
    BackupError, Catalogue, Content, Folder, Holder, HostFolder, INCOMPLETE, PointId, PointReader, UNIT,
    hold_points, release_points,
};
use lunway_block::decorate::Deadline;
use lunway_block::spec::{PointName, is_store_address};
use lunway_block::{BlockDevice, BlockError};
use lunway_repository::{Points, Series, open_points_folder};
use lunway_vhdx::{CreateOptions, Disk, Locator, VhdxOpenOptions, create, open_file, rename_new};
use lunway_vhdx_device::{PullParent, PullSource, VhdxDevice, VhdxDeviceOpenError, random_guids};

use crate::damage::told;
use crate::point::PointOpenError;
use crate::repository_point;

/// Limit of a read of what is not in the file yet, where none is named: initiators give an operation up after 30 s,
/// Windows after 60.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Opens the disk, which is made where it is not there yet. Blocks.
pub(crate) fn open(name: &PointName, file: &Path, read_only: bool) -> Result<VhdxDevice, PointOpenError> {
    let file = std::path::absolute(file).map_err(|source| kept(file, source))?;
    let found = match file.symlink_metadata() {
        Ok(_) => Some(locator(&file)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(kept(&file, source)),
    };
    let us = Holder::this_process(0);
    if let Some(None) = found {
        release_soon(name.folder.clone(), file.clone(), us);
        return Ok(VhdxDevice::open(&file, read_only)?);
    }
    let folder = points_folder(&name.folder)?;
    let mut made_on = found.flatten();
    if made_on.is_none() {
        hold_points(&*folder, &file, &us)?;
        let made = Parents::open(name).and_then(|parents| make(&parents, &name.point, &file));
        if let Err(error) = made {
            // Nothing needs them.
            let _ = release_points(&*folder, &file, &us);
            return Err(error);
        }
        made_on = locator(&file)?;
    }
    let parents = Parents::open(name)?;
    let Some(point) = made_on.and_then(|locator| parents.made_from(&locator)) else {
        let why = format!(
            "the point that it was begun from is not in {}: name the folder that holds it, or another file",
            folder.show("")
        );
        return Err(PointOpenError::Kept { file, why });
    };
    check_named(&parents, name, point, &file)?;
    let (parent, reader) = parents.parent(point)?;
    let (of_release, of_file) = (name.folder.clone(), file.clone());
    let parent = PullParent {
        device: Arc::new(Deadline::new(parent, name.timeout.unwrap_or(TIMEOUT))) as Arc<dyn BlockDevice>,
        source: Arc::new(Source(reader)),
        release: Box::new(move || {
            tracing::info!(
                "{} stands alone: the point that it came from is not needed any more",
                of_file.display()
            );
            release(&of_release, &of_file, &us);
        }),
    };
    Ok(VhdxDevice::open_pulled(&file, parent, read_only)?)
}

/// The folder in which disks say that they need its points.
fn points_folder(path: &Path) -> Result<Arc<dyn Folder>, PointOpenError> {
    match is_store_address(path) {
        true => Ok(open_points_folder(path)?),
        false => Ok(Arc::new(HostFolder::open(path).map_err(PointOpenError::Folder)?)),
    }
}

/// The points of a destination, as what disks are made on.
enum Parents {
    /// VHDX files.
    Chain(Arc<HostFolder>, Catalogue),
    /// A series of a repository, in which no point is a VHDX file: a disk names its point by a number of its own.
    Series(Box<(Series, Points)>),
}

impl Parents {
    fn open(name: &PointName) -> Result<Self, PointOpenError> {
        Ok(match repository_point::series(name)? {
            Some(series) => {
                let points = series.points()?;
                for warning in points.warnings() {
                    tracing::warn!("{warning}");
                }
                Self::Series(Box::new((series, points)))
            }
            None => {
                let folder = HostFolder::open(&name.folder).map_err(PointOpenError::Folder)?;
                let catalogue = Catalogue::load(&folder)?;
                Self::Chain(Arc::new(folder), catalogue)
            }
        })
    }

    fn find(&self, text: &str) -> Result<PointId, BackupError> {
        match self {
            Self::Chain(_, catalogue) => catalogue.find(text).map(|point| point.point),
            Self::Series(of) => of.1.find(text).map(|point| point.point),
        }
    }

    /// The point that a disk was made on.
    fn made_from(&self, locator: &Locator) -> Option<PointId> {
        match self {
            Self::Chain(_, catalogue) => catalogue.parent_of(locator).map(|point| point.point),
            Self::Series(of) => {
                let (series, points) = &**of;
                let mut ids = points.all().map(|point| point.point);
                ids.find(|id| locator.matches(repository_point::linkage(series, *id)))
            }
        }
    }

    /// Options for a disk on a point.
    fn options(&self, point: PointId, file: &Path) -> Result<CreateOptions, PointOpenError> {
        match self {
            Self::Chain(folder, catalogue) => {
                let chain = catalogue.open(&**folder, point)?;
                let base = &chain.disks()[0];
                let manifest = catalogue.get(point).ok_or(BackupError::Lost)?;
                // Found by what it is, and by no path: the folder may be mounted elsewhere next time.
                CreateOptions::child_of(base, &format!("./{}", manifest.disk_name()))
                    .with_items_of(base)
                    .map_err(|error| kept(file, error))
            }
            Self::Series(of) => {
                let (series, points) = &**of;
                let point = points.get_any(point).ok_or(BackupError::Lost)?;
                let mut guids =
                    random_guids().map_err(|error| PointOpenError::Random(io::Error::other(error)))?;
                Ok(repository_point::child_of(series, point, guids.as_mut()))
            }
        }
    }

    /// A point as a device, and as what is copied.
    fn parent(&self, point: PointId) -> Result<(Arc<dyn BlockDevice>, PointReader), PointOpenError> {
        match self {
            Self::Chain(folder, catalogue) => {
                let manifest = catalogue.get(point).ok_or(BackupError::Lost)?;
                let device = VhdxDevice::open(&folder.path().join(manifest.disk_name()), true)?;
                Ok((Arc::new(device), PointReader::open(&**folder, catalogue, point)?))
            }
            Self::Series(of) => {
                let (series, points) = &**of;
                let point = points.get_any(point).ok_or(BackupError::Lost)?;
                let content: Arc<dyn Content> = Arc::new(series.repository.content(point)?);
                Ok((repository_point::device(&content, point), PointReader::of(content)))
            }
        }
    }
}

fn kept(file: &Path, why: impl ToString) -> PointOpenError {
    PointOpenError::Kept { file: file.to_owned(), why: why.to_string() }
}

/// The locator of a file; `None`: it stands alone.
fn locator(file: &Path) -> Result<Option<Locator>, PointOpenError> {
    let failed = |source| VhdxDeviceOpenError { path: file.to_owned(), source };
    let opened = open_file(file, false).map_err(failed)?;
    let guids = random_guids().map_err(|error| PointOpenError::Random(io::Error::other(error)))?;
    let disk = Disk::open(opened, &VhdxOpenOptions::read_only(), guids).map_err(failed)?;
    Ok(disk.parameters().locator.clone())
}

/// Makes the file on a point, durably.
fn make(parents: &Parents, point: &str, file: &Path) -> Result<(), PointOpenError> {
    let mut options = parents.options(parents.find(point)?, file)?;
    // A block is completed at once: what is compared with hashes together.
    options.parameters.block_size = UNIT as u32;
    let mut guids = random_guids().map_err(|error| PointOpenError::Random(io::Error::other(error)))?;
    let mut pending = OsString::from(file);
    pending.push(INCOMPLETE);
    let pending = PathBuf::from(pending);
    // What a kill has left.
    match fs::remove_file(&pending) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(kept(file, error)),
        _ => {}
    }
    let making = |error: io::Error| kept(file, format!("it cannot be made: {error}"));
    // Of a disk that others may not have been allowed to read, or that was encrypted.
    let mut private = File::options();
    private.read(true).write(true).create_new(true).mode(0o600);
    let new = private.open(&pending).map_err(making)?;
    let made = create(&new, &options, guids.as_mut()).map_err(|error| kept(file, error));
    made.and_then(|()| rename_new(&pending, file).map_err(making)).inspect_err(|_| {
        let _ = fs::remove_file(&pending);
    })
}

/// Refuses a file that was begun from another point than the one that is named.
fn check_named(
    parents: &Parents,
    name: &PointName,
    point: PointId,
    file: &Path,
) -> Result<(), PointOpenError> {
    // `latest` and times mean other points as there are more.
    let named = parents.find(&name.point).ok().filter(|named| named.to_string().starts_with(&name.point));
    match named.filter(|named| *named != point) {
        Some(named) => {
            let why =
                format!("it was begun from point {point}, not from {named}: name that one, or another file");
            Err(kept(file, why))
        }
        None => Ok(()),
    }
}

/// Lets prunes change the folder again.
fn release(folder: &Path, file: &Path, us: &Holder) {
    let released = points_folder(folder).and_then(|folder| Ok(release_points(&*folder, file, us)?));
    if let Err(error) = released {
        tracing::info!(
            "{} is not told that {} stands alone, which is tried again when that is opened next: {error}",
            folder.display(),
            file.display()
        );
    }
}

/// The same on a thread: the folder may not be there any more, or may not answer. A kill may have come before it.
fn release_soon(folder: PathBuf, file: PathBuf, us: Holder) {
    let thread = thread::Builder::new().name("point-release".to_owned());
    drop(thread.spawn(move || {
        if is_store_address(&folder) || folder.is_dir() {
            release(&folder, &file, &us);
        }
    }));
}

/// The point, each leaf of which is compared with its hash.
struct Source(PointReader);

impl PullSource for Source {
    fn next_data(&self, offset: u64) -> Result<Option<u64>, BlockError> {
        self.0.next_data(offset).map_err(told)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, BlockError> {
        self.0.read(offset, buf).map_err(told)
    }
}

//! A point in a repository as a device, and as what a disk is made on.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lunway_backup::{BackupError, Content, Folder, PointId, PointMount};
use lunway_block::BlockDevice;
use lunway_block::spec::{PointName, PointWrites, is_store_address};
use lunway_repository::{Located, Points, RepositoryPoint, Series, locate, open_series, series_path};
use lunway_vhdx::format::{Guid, GuidSource};
use lunway_vhdx::{CreateOptions, DiskKind, Locator};
use lunway_vhdx_device::VhdxDevice;

use crate::content_device::ContentDevice;
use crate::point::{Held, PointOpenError, reader};

/// The variable that names the file with the user's secret key, for points that name none.
pub const KEY_FILE_VARIABLE: &str = "LUNWAY_KEY_FILE";

/// The series that a folder is; `None`: it is in no repository.
pub(crate) fn series(name: &PointName) -> Result<Option<Series>, PointOpenError> {
    let key = name.key_file.as_deref();
    match locate(&name.folder)? {
        Located::Series { repository, name } => {
            let of_user = env::var_os(KEY_FILE_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
            let of_user = of_user.filter(|_| key.is_none());
            let series = open_series(&repository, &name, key.or(of_user.as_deref()), false);
            let series = series.map_err(|error| match error {
                BackupError::Locked(what) => {
                    refused(format!("{what}, as key-file=FILE or in the variable {KEY_FILE_VARIABLE}"))
                }
                error => error.into(),
            })?;
            for warning in series.repository.warnings() {
                tracing::warn!("{warning}");
            }
            Ok(Some(series))
        }
        Located::Repository(path) => {
            let (shown, series) = (path.display(), series_path(&path, "NAME"));
            Err(refused(format!("{shown} is a repository: name one of its series, {}", series.display())))
        }
        Located::Elsewhere if key.is_some() => Err(refused(format!(
            "key-file= is for an encrypted repository, and {} is in none",
            name.folder.display()
        ))),
        Located::Elsewhere => Ok(None),
    }
}

fn refused(why: String) -> PointOpenError {
    PointOpenError::Backup(BackupError::Refused(why))
}

/// The GUID by which a disk that is made on a point names it.
pub(crate) fn linkage(series: &Series, point: PointId) -> Guid {
    Guid::from_digits(series.repository.number_of(point))
}

/// Options for a disk that is made on a point.
pub(crate) fn child_of(
    series: &Series,
    point: &RepositoryPoint,
    guids: &mut dyn GuidSource,
) -> CreateOptions {
    let mut options = CreateOptions::new(DiskKind::Differencing, point.virtual_bytes, guids.next());
    options.parameters.logical_sector = point.sector_bytes;
    // No file has this name: it says what the disk is made on.
    let relative = format!("./{}", point.stem());
    options.parameters.locator = Some(Locator::new(linkage(series, point.point), &relative, None));
    options
}

/// The content of a point as a device.
pub(crate) fn device(content: &Arc<dyn Content>, point: &RepositoryPoint) -> Arc<dyn BlockDevice> {
    Arc::new(ContentDevice::new(Arc::clone(content), point.sector_bytes))
}

/// Opens a point of a series. Prunes wait for the end of the mount, if there is one. Blocks.
pub(crate) fn open(
    series: &Series,
    name: &PointName,
    read_only: bool,
) -> Result<(Arc<dyn BlockDevice>, Held), PointOpenError> {
    let (holder, guids) = reader()?;
    let takes_writes = name.writes == PointWrites::Discarded && !read_only;
    if takes_writes && is_store_address(&name.folder) {
        return Err(refused(
            "an object store has no place for writes to a point: keep them in a file of this machine, into=FILE.vhdx"
                .into(),
        ));
    }
    if takes_writes && series.repository.marker().encrypted {
        return Err(refused(
            "writes to a point of an encrypted repository would lie beside it in the clear: keep them in a file of this \
             machine, into=FILE.vhdx"
                .into(),
        ));
    }
    let folder: Arc<dyn Folder> = Arc::clone(&series.folder);
    // Before the points are looked up.
    let mount = match takes_writes {
        true => Some(PointMount::begin(folder, &holder)?),
        false => PointMount::begin_if_possible(folder, &holder)?,
    };
    if mount.is_none() {
        let shown = series.show();
        tracing::warn!(
            "{shown} cannot be written: a prune is not told of this mount, and may remove what it reads"
        );
    }
    let points: Points = series.points()?;
    for warning in points.warnings() {
        tracing::warn!("{warning}");
    }
    let point = points.find(&name.point)?;
    let content: Arc<dyn Content> = Arc::new(series.repository.content(point)?);
    let device = device(&content, point);
    let device = match mount.as_ref().filter(|_| takes_writes) {
        None => device,
        Some(mount) => {
            let file = mount.take_writes(&child_of(series, point, guids().as_mut()), &guids)?;
            Arc::new(VhdxDevice::open_over(&Path::new(&name.folder).join(file), device)?)
        }
    };
    Ok((device, Held::of(mount)))
}

//! Arguments that stand the other way round.

use std::path::Path;

use lunway_backup::{Catalogue, HostFolder};
use lunway_block::spec::{DeviceSpec, is_store_address};
use lunway_repository::{Located, locate};

use super::served;
use crate::failure::Failure;
use crate::report_file::file_of;

/// Refuses a folder of points as the source of a run, and a disk as its destination.
pub(super) fn refuse_run(source: &str, destination: &Path) -> Result<(), Failure> {
    refuse(Path::new(source), destination, |folder, disk| {
        format!("the source comes first, then the folder of its points: `lunway backup run {disk} {folder}`")
    })
}

/// Refuses a folder of points as what a restore writes, and a disk as the folder of the points.
pub(super) fn refuse_restore(folder: &Path, out: &str) -> Result<(), Failure> {
    refuse(Path::new(out), folder, |folder, disk| {
        format!(
            "the folder of the points comes first, then the disk: `lunway backup restore {folder} {disk}`"
        )
    })
}

/// Refuses a folder in the place of a disk, if what stands in the place of a folder is none. `right` is the order and
/// the command as it should be.
fn refuse(
    in_place_of_disk: &Path,
    in_place_of_folder: &Path,
    right: impl Fn(&str, &str) -> String,
) -> Result<(), Failure> {
    let is_folder = |path: &Path| is_store_address(path) || path.is_dir();
    if !is_folder(in_place_of_disk) || is_folder(in_place_of_folder) {
        return Ok(());
    }
    // A series of a repository has no folder before its first run.
    let is_new_series = matches!(locate(in_place_of_folder), Ok(Located::Series { .. }));
    if is_new_series || !(is_disk(in_place_of_folder) || holds_points(in_place_of_disk)) {
        return Ok(());
    }
    let [folder, disk] = [in_place_of_disk, in_place_of_folder].map(|path| path.display().to_string());
    Err(Failure::Usage(right(&folder, &disk)))
}

/// Returns `true` if it is a disk that is there, or a name that only a disk has.
fn is_disk(path: &Path) -> bool {
    let Some(text) = path.to_str() else { return path.exists() };
    if let Ok(Some(_)) = served::lun(text) {
        return true;
    }
    DeviceSpec::parse(text).is_ok_and(|spec| file_of(&spec).is_none_or(Path::exists))
}

fn holds_points(folder: &Path) -> bool {
    let has_points =
        |folder: HostFolder| Catalogue::load(&folder).is_ok_and(|catalogue| !catalogue.points().is_empty());
    is_store_address(folder)
        || !matches!(locate(folder), Ok(Located::Elsewhere))
        || HostFolder::open(folder).is_ok_and(has_points)
}

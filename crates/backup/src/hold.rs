//! Holds: points that a disk elsewhere is still being completed from, whether or not a process serves it just now.
//!
//! A [mount](crate::PointMount) ends with its process. A disk that comes to stand alone needs its point until then,
//! through restarts of its daemon and of its machine. So it leaves a file, `hold-ID`, which has no holder that could
//! end: a prune refuses while there is one, and says for which disk. ID is made of the machine and the disk's path, so
//! that the same disk finds its own hold again.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{BackupError, Result};
use crate::folder::{Folder, read_small, write_whole};
use crate::holder::Holder;
use crate::presence::is_one;

const NAME: &str = "hold-";
/// Most bytes of a hold: two names and a path.
const HOLD_MAX: u64 = 16 << 10;

/// A disk that needs a point, and the machine that has it.
#[derive(Debug, Serialize, Deserialize)]
struct Hold {
    /// The machine through all of its starts; empty where that is not known.
    lasting: String,
    /// Host name.
    host: String,
    /// The disk, an absolute path.
    disk: PathBuf,
}

fn name(lasting: &str, host: &str, disk: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [lasting.as_bytes(), host.as_bytes(), disk.as_os_str().as_encoded_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    format!("{NAME}{}", &hasher.finalize().to_hex()[..16])
}

/// Says, durably, that a disk of this machine needs the points of a folder until [`release_points`]. Before they are
/// looked up: a prune that has begun earlier ends without touching them, or before this.
///
/// # Errors
///
/// Where the file cannot be made.
pub fn hold_points(folder: &dyn Folder, disk: &Path, us: &Holder) -> Result<()> {
    let hold = Hold { lasting: us.lasting.clone(), host: us.host.clone(), disk: disk.to_owned() };
    let name = name(&hold.lasting, &hold.host, disk);
    write_whole(folder, &name, &serde_json::to_vec(&hold).unwrap_or_default())?;
    folder.sync().map_err(BackupError::folder("writing", &folder.show(&name)))
}

/// A disk of this machine needs the points of a folder no longer. None that it has held is no error.
///
/// # Errors
///
/// Where the file cannot be removed.
pub fn release_points(folder: &dyn Folder, disk: &Path, us: &Holder) -> Result<()> {
    let name = name(&us.lasting, &us.host, disk);
    let removing = || BackupError::folder("removing", &folder.show(&name));
    folder.remove(&name).map_err(removing())?;
    folder.sync().map_err(removing())
}

/// Refuses a change of files that a disk elsewhere still needs. Holds of disks of this machine that are no more are
/// removed.
///
/// # Errors
///
/// [`BackupError::Held`].
pub(crate) fn refuse_holds(folder: &dyn Folder, names: &[String], us: &Holder) -> Result<()> {
    for name in names.iter().filter(|name| is_one(name, NAME)) {
        let hold = match read_small(folder, name, HOLD_MAX) {
            Ok(bytes) => serde_json::from_slice::<Hold>(&bytes).ok(),
            Err(BackupError::Folder { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
            Err(BackupError::Manifest { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_ours = |hold: &Hold| (&hold.lasting, &hold.host) == (&us.lasting, &us.host);
        let is_gone = |hold: &Hold| {
            matches!(hold.disk.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
                && hold.disk.parent().is_some_and(Path::is_dir)
        };
        if hold.as_ref().is_some_and(|hold| is_ours(hold) && is_gone(hold)) {
            folder.remove(name).map_err(BackupError::folder("removing", &folder.show(name)))?;
            continue;
        }
        let (disk, host) = match hold {
            Some(hold) => (format!("the disk {}", hold.disk.display()), hold.host),
            None => ("a disk".to_owned(), "another machine".to_owned()),
        };
        return Err(BackupError::Held { disk, host, hold: folder.show(name) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::HostFolder;

    fn machine(host: &str) -> Holder {
        Holder {
            machine: "m".into(),
            lasting: host.into(),
            host: host.into(),
            process: 7,
            nonce: 1,
            ..Holder::default()
        }
    }

    #[test]
    fn a_disk_holds_its_points_until_it_releases_them_or_is_no_more() {
        let (place, disks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = HostFolder::open(place.path()).unwrap();
        let disk = disks.path().join("vm.vhdx");
        std::fs::write(&disk, "a disk").unwrap();
        let look = |us: &Holder| refuse_holds(&folder, &folder.names().unwrap(), us);
        look(&machine("a")).unwrap();
        hold_points(&folder, &disk, &machine("a")).unwrap();
        hold_points(&folder, &disk, &machine("a")).unwrap();
        assert_eq!(folder.names().unwrap().len(), 1);
        for us in ["a", "b"] {
            let said = look(&machine(us)).unwrap_err().to_string();
            assert!(said.contains("vm.vhdx on a ") && said.contains("hold-"), "{said}");
        }
        // Another disk, and another machine's of the same path, are others.
        release_points(&folder, &disks.path().join("other.vhdx"), &machine("a")).unwrap();
        release_points(&folder, &disk, &machine("b")).unwrap();
        look(&machine("a")).unwrap_err();
        release_points(&folder, &disk, &machine("a")).unwrap();
        look(&machine("a")).unwrap();
        // A disk that was removed: this machine knows, and no other one.
        hold_points(&folder, &disk, &machine("a")).unwrap();
        std::fs::remove_file(&disk).unwrap();
        look(&machine("b")).unwrap_err();
        look(&machine("a")).unwrap();
        assert_eq!(folder.names().unwrap(), Vec::<String>::new());
        // One whose folder is not there may be on a disk that is not mounted.
        let away = disks.path().join("away/vm.vhdx");
        hold_points(&folder, &away, &machine("a")).unwrap();
        look(&machine("a")).unwrap_err();
        release_points(&folder, &away, &machine("a")).unwrap();
        // What a power cut leaves of one holds.
        folder.create("hold-0123456789abcdef").unwrap();
        look(&machine("a")).unwrap_err();
    }
}

//! Mounts: points that are read where they lie, for as long as that takes.
//!
//! A reader that serves or restores a point for hours keeps its files open. A prune would replace or remove them under
//! it, which servers of shares answer with stale handles or refuse in the middle. So a mount leaves a file, `mount-ID`,
//! that its process locks and beats in as in a [lease](crate::Lease), and a prune refuses while one is alive. Runs only
//! add files, and are not stopped.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use lunway_vhdx::{CreateOptions, create};

use crate::catalogue::Catalogue;
use crate::content::Content;
use crate::error::{BackupError, Result};
use crate::folder::{Folder, HostFolder};
use crate::guids::Guids;
use crate::hold::refuse_holds;
use crate::holder::Holder;
use crate::manifest::Manifest;
use crate::point_files::open_disk;
use crate::presence::{self, Presence};

const NAME: &str = "mount-";
/// The end of the name of the file that takes a mount's writes.
const THROWAWAY: &str = ".vhdx.throwaway";

/// A point that is mounted: a prune waits for its end. It ends when this is dropped.
pub struct PointMount {
    folder: Arc<dyn Folder>,
    presence: Presence,
}

impl PointMount {
    /// Says that points of a folder are about to be read, before they are looked up.
    ///
    /// # Errors
    ///
    /// Where the file cannot be made: on a share that is read-only for this machine, other machines cannot be told.
    pub fn begin(folder: Arc<dyn Folder>, holder: &Holder) -> Result<Self> {
        Ok(Self { presence: Presence::begin(Arc::clone(&folder), NAME, holder)?, folder })
    }

    /// The same for a reader that goes on where this cannot be said: `None` if this user may not write to the folder,
    /// or if it has no room, so that a prune is not told.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin), for other reasons.
    pub fn begin_if_possible(folder: Arc<dyn Folder>, holder: &Holder) -> Result<Option<Self>> {
        match Self::begin(folder, holder) {
            Err(BackupError::Full { .. }) => Ok(None),
            Err(BackupError::Folder { source, .. }) if is_refused(source.kind()) => Ok(None),
            begun => begun.map(Some),
        }
    }

    /// Name of the file that takes the writes of this mount; it is removed with the mount.
    fn throwaway(&self) -> String {
        format!("{}{THROWAWAY}", self.presence.name())
    }

    /// Makes that file, a differencing disk on a point: its name.
    fn make_throwaway(&self, point: &Manifest, guids: &Guids) -> Result<String> {
        let base = open_disk(&*self.folder, point)?;
        self.take_writes(&CreateOptions::child_of(&base, &format!("./{}", point.disk_name())), guids)
    }

    /// Makes the file that takes the writes of this mount, a differencing disk on what these options say: its name.
    ///
    /// # Errors
    ///
    /// Where it cannot be made.
    pub fn take_writes(&self, options: &CreateOptions, guids: &Guids) -> Result<String> {
        let name = self.throwaway();
        let making = || BackupError::folder("making", &self.folder.show(&name));
        let file = self.folder.create(&name).map_err(making())?;
        create(&file, options, guids().as_mut()).map_err(|source| match source {
            lunway_vhdx::CreateError::Storage(error) => making()(error),
            source => BackupError::Create { name: self.folder.show(&name), source },
        })?;
        Ok(name)
    }
}

impl Drop for PointMount {
    fn drop(&mut self) {
        let _ = self.folder.remove(&self.throwaway());
    }
}

/// A point that is mounted as a VHDX file.
pub struct MountedPoint {
    /// The file: the point's own, which is only read, or one that takes writes and ends with the mount.
    pub file: PathBuf,
    /// What the point's own files hold.
    pub content: Arc<dyn Content>,
    /// `None`: this user cannot write to the folder, so that a prune is not told and may replace the files.
    pub mount: Option<PointMount>,
}

impl MountedPoint {
    /// Mounts the point that a text means, as [`Catalogue::find`] says. Every file of its chain is there, and none was
    /// written to.
    ///
    /// # Errors
    ///
    /// Where there is no such point, its files are not whole, or the folder cannot be read; and if it cannot be written
    /// where writes are to be taken.
    pub fn begin(
        folder: &Arc<HostFolder>,
        point: &str,
        takes_writes: bool,
        holder: &Holder,
        guids: &Guids,
    ) -> Result<Self> {
        let mount = match takes_writes {
            true => Some(PointMount::begin(folder.clone(), holder)?),
            false => PointMount::begin_if_possible(folder.clone(), holder)?,
        };
        let catalogue = Catalogue::load(&**folder)?;
        let manifest = catalogue.find(point)?;
        let content = catalogue.content(&**folder, manifest.point)?;
        let name = match mount.as_ref().filter(|_| takes_writes) {
            Some(mount) => mount.make_throwaway(manifest, guids)?,
            None => manifest.disk_name(),
        };
        Ok(Self { file: folder.path().join(name), content, mount })
    }
}

/// Returns `true` if this user may not write to the folder.
fn is_refused(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Refuses a change of files that a mount may read. What mounts of processes that have ended left is removed. Blocks as
/// [`Lease::take`](crate::Lease::take) does.
///
/// # Errors
///
/// [`BackupError::InUse`].
pub fn refuse_mounts(folder: &dyn Folder, us: &Holder, is_cancelled: &dyn Fn() -> bool) -> Result<()> {
    let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
    refuse_holds(folder, &names, us)?;
    presence::refuse(folder, NAME, us, "reads a point of it", is_cancelled)?;
    // None of those mounts is alive.
    for name in names.iter().filter(|name| name.ends_with(THROWAWAY) && name.starts_with(NAME)) {
        let mount = name.strip_suffix(THROWAWAY).unwrap_or_default();
        if presence::is_one(mount, NAME) {
            folder.remove(name).map_err(BackupError::folder("removing", &folder.show(name)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(nonce: u64) -> Holder {
        Holder {
            machine: "m".into(),
            lasting: "m".into(),
            host: "h".into(),
            process: 7,
            nonce,
            ..Holder::default()
        }
    }

    #[test]
    fn a_living_mount_is_named_and_what_a_killed_one_left_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let folder = Arc::new(HostFolder::open(place.path()).unwrap());
        let look = || refuse_mounts(&*folder, &holder(9), &|| false);
        look().unwrap();
        let mut mount = PointMount::begin(folder.clone(), &holder(1)).unwrap();
        folder.create(&mount.throwaway()).unwrap();
        let said = look().unwrap_err().to_string();
        assert!(said.contains("process 7 on h, which reads a point"), "{said}");
        // What a kill leaves: the files, and no lock.
        mount.presence.forget_lock();
        look().unwrap();
        assert_eq!(folder.names().unwrap(), Vec::<String>::new());
        let mount = PointMount::begin(folder.clone(), &holder(2)).unwrap();
        folder.create(&mount.throwaway()).unwrap();
        drop(mount);
        assert_eq!(folder.names().unwrap(), Vec::<String>::new());
        // Files of others are not touched.
        for name in ["mount-1.vhdx.throwaway", "mount-notes", "x.vhdx.throwaway"] {
            folder.create(name).unwrap();
        }
        look().unwrap();
        assert_eq!(folder.names().unwrap().len(), 3);
    }
}

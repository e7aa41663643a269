//! A regular file that is written over in place: the name it has until it is whole again.

use std::cell::Cell;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use lunway_block::spec::DeviceSpec;
use lunway_occupancy::FileId;
use lunway_vhdx::rename_new;

use crate::new_file::with_end;
use crate::report_file::file_of;

/// Symbolic links that are followed to a file: as many as Linux follows (`MAXSYMLINKS`, path_resolution(7)).
const LINKS_MAX: usize = 40;

/// A file that has another name while it is written over, so that a command that is killed leaves no file that looks
/// whole and is not.
///
/// It is the file itself that is renamed, so that open handles, locks, permissions and length stay; behind a symbolic
/// link the link's target. [`set_aside`](Self::set_aside) before the first change, [`give_back`](Self::give_back) once
/// everything is durable; both are durable themselves.
pub(crate) struct Overwritten {
    /// The file's own name, behind symbolic links.
    path: PathBuf,
    id: FileId,
    is_aside: Cell<bool>,
    is_left: bool,
}

impl Overwritten {
    /// The regular file whose bytes `spec` is, whatever is around it; `None`: a new file, a block device or a LUN.
    pub(crate) fn of(spec: &DeviceSpec) -> anyhow::Result<Option<Self>> {
        let Some(path) = disk_file(spec) else { return Ok(None) };
        let Some(file) = fs::metadata(path).ok().filter(fs::Metadata::is_file) else { return Ok(None) };
        let path = path.canonicalize().with_context(|| format!("cannot look at {}", path.display()))?;
        Ok(Some(Self { path, id: FileId::of(&file), is_aside: Cell::new(false), is_left: false }))
    }

    /// The name under which a command that was killed has left the file that `spec` names; `None`: it has left none.
    pub(crate) fn left(spec: &DeviceSpec) -> Option<PathBuf> {
        let own = behind_links(disk_file(spec).filter(|path| !path.try_exists().unwrap_or(true))?)?;
        Self::unfinished_of(&own).symlink_metadata().is_ok().then_some(own)
    }

    /// The name of the file `path` while it is written over. Not that of a new file, which may be made again from the
    /// start: this one can be larger than what is written to it, and then holds the only copy of its end.
    pub(crate) fn unfinished_of(path: &Path) -> PathBuf {
        with_end(path, ".overwritten.partial")
    }

    /// The file at [`Self::left`], which was looked at and is `id`.
    pub(crate) fn go_on(path: PathBuf, id: FileId) -> Self {
        Self { path, id, is_aside: Cell::new(true), is_left: true }
    }

    /// Whether an earlier command has left it, with data of two disks.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left
    }

    /// Whether the file has its other name now.
    pub(crate) fn is_aside(&self) -> bool {
        self.is_aside.get()
    }

    /// The file's name until it is whole.
    pub(crate) fn unfinished(&self) -> PathBuf {
        Self::unfinished_of(&self.path)
    }

    /// The name under which another file is by now, if it is not this one any more.
    pub(crate) fn is_exchanged(&self) -> Option<PathBuf> {
        let name = if self.is_aside() { self.unfinished() } else { self.path.clone() };
        (file_at(&name) != Some(self.id)).then_some(name)
    }

    /// Takes the file's name from it. Where the folder does not allow that, the file keeps its name, and standard error
    /// says what that means.
    ///
    /// # Errors
    ///
    /// Its name leads to another file by now, or the other name is taken: nothing was changed.
    pub(crate) fn set_aside(&self) -> anyhow::Result<()> {
        if self.is_aside() {
            return Ok(());
        }
        let (shown, unfinished) = (self.path.display(), self.unfinished());
        if self.is_exchanged().is_some() {
            return Err(anyhow!("{shown} was exchanged while it was opened, and nothing was written to it"));
        }
        match rename_new(&self.path, &unfinished) {
            Ok(()) => self.is_aside.set(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(anyhow!(
                    "{} is left from an interrupted copy to {shown}, and {shown} is there as well: remove or rename one of \
                     them",
                    unfinished.display()
                ));
            }
            Err(error) if file_at(&unfinished) == Some(self.id) => {
                // The folder was not written to its disk: what is written next could be there before the new name.
                rename_new(&unfinished, &self.path).with_context(|| self.untouched())?;
                return Err(anyhow!(error).context(format!("cannot write the folder of {shown}")));
            }
            Err(error) => eprintln!(
                "lunway: {shown} is written under its own name, as it cannot be renamed meanwhile ({error}): if this \
                 command is killed, the file holds data of both disks until the command is repeated"
            ),
        }
        Ok(())
    }

    /// Gives the file its name again, which is whole or was not `changed`; unless a file of that name has come
    /// meanwhile.
    pub(crate) fn give_back(&self, changed: bool) -> anyhow::Result<()> {
        if !self.is_aside() {
            return Ok(());
        }
        let unfinished = self.unfinished();
        rename_new(&unfinished, &self.path).with_context(|| match changed {
            true => format!("the copy is complete as {}, and cannot be renamed", unfinished.display()),
            false => self.untouched(),
        })?;
        self.is_aside.set(false);
        Ok(())
    }

    fn untouched(&self) -> String {
        format!(
            "nothing was written to {}, and it cannot get its name {} again",
            self.unfinished().display(),
            self.path.display()
        )
    }
}

/// The file that a disk lies in; not the file that describes its paths.
fn disk_file(spec: &DeviceSpec) -> Option<&Path> {
    matches!(spec.leaf(), DeviceSpec::File { .. } | DeviceSpec::Vhdx { .. }).then(|| file_of(spec))?
}

fn file_at(path: &Path) -> Option<FileId> {
    fs::symlink_metadata(path).ok().map(|file| FileId::of(&file))
}

/// Where a name leads, also where nothing is there; `None`: in circles.
fn behind_links(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Some(path),
        }
    }
    None
}

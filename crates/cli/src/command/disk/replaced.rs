//! An existing file that a conversion replaces.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use lunway_block::spec::{DeviceSpec, ImageFormat};
use lunway_device::OpenOptions;

use crate::device;
use crate::failure::Failure;
use crate::new_file::own;
use crate::replaceable::open_replaceable;

/// A file whose place a new file takes.
///
/// It is locked and stays whole until the new file is complete: [`give_way`](Self::give_way) then renames the new file
/// over it. Device, LUN and block device are never replaced: what they are is not the command's to choose.
#[derive(Debug)]
pub(in crate::command) struct Replaced {
    /// The file itself, behind symbolic links.
    path: PathBuf,
    file: File,
}

impl Replaced {
    /// The regular file that `spec` names; `None`: there is none, or `spec` is a device, which is written in place.
    ///
    /// Refused without `overwrite`, as a container that was not named as one, as the parent of other disks, and while
    /// another program has it open.
    pub(super) fn of(spec: &DeviceSpec, overwrite: bool) -> Result<Option<Self>, Failure> {
        let (DeviceSpec::File { path, .. }
        | DeviceSpec::Vhdx { path }
        | DeviceSpec::Image { path, format: ImageFormat::Vhd }) = spec
        else {
            return Ok(None);
        };
        let Some(metadata) = path.metadata().ok().filter(fs::Metadata::is_file) else { return Ok(None) };
        // What is wrong with an image that is not raw data is said by who opens it as raw data.
        if matches!(spec, DeviceSpec::File { .. }) && metadata.len() > 0 {
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            device::run(async {
                device::open(spec, &options).await?.close_or_log().await;
                Ok(())
            })?;
        }
        let shown = path.display();
        if !overwrite {
            return Err(Failure::failed(anyhow!(
                "{shown} already exists: --overwrite replaces it with a new file, or choose another name"
            )));
        }
        let cannot = || format!("cannot replace {shown}");
        let path = path.canonicalize().with_context(cannot)?;
        let file = open_replaceable(&path).with_context(cannot)?;
        Ok(Some(Self { path, file }))
    }

    /// The file's own name.
    pub(in crate::command) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's owner.
    pub(in crate::command) fn owner(&self) -> Option<u32> {
        self.file.metadata().ok().map(|file| file.uid())
    }

    /// Gives a new file the permissions of this one, and its owner where that is possible: who may not read the old
    /// data may not read the new.
    pub(in crate::command) fn lend_permissions(&self, new: &Path) -> anyhow::Result<()> {
        let cannot = || format!("cannot set the permissions of {}", new.display());
        let old = self.file.metadata().with_context(cannot)?;
        let new = own(new).with_context(cannot)?;
        new.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777)).with_context(cannot)?;
        // Another user's file can be replaced by who may write to its folder, but not given away again.
        let _ = fchown(&new, Some(old.uid()), Some(old.gid()));
        Ok(())
    }

    /// Renames the complete file `new` over this one, durably.
    pub(in crate::command) fn give_way(&self, new: &Path) -> anyhow::Result<()> {
        let cannot = || {
            format!(
                "the copy is complete as {}, and cannot be renamed to {}",
                new.display(),
                self.path.display()
            )
        };
        fs::rename(new, &self.path).with_context(cannot)?;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        File::open(folder).and_then(|folder| folder.sync_all()).with_context(cannot)
    }
}

//! File of a copy while it is incomplete: its name, what an interrupted copy has left, and how it gets its own name.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use lunway_block::spec::DeviceSpec;
use lunway_occupancy::FileId;
use lunway_vhdx::open_file;

use crate::command::disk::Replaced;
use crate::failure::Failure;
use crate::new_file::with_end;

/// Bytes at the start of a VHDX and at both ends of a VHD of which those that say what the file is are a part: the
/// footer of a VHD has 512 (VHD 1.0, hard disk footer format), the signature of a VHDX 8 ([MS-VHDX] 2.2.1).
const SIGNED: u64 = 512;

/// The name of a file while its copy is incomplete.
pub(in crate::command) fn partial(path: &Path) -> PathBuf {
    with_end(path, ".partial")
}

/// What helps against a file in the place of an unfinished one that no copy has left.
pub(super) const REMOVE: &str = "remove it first";

/// The file of an interrupted copy.
pub(super) struct Leftover {
    pub(super) id: FileId,
    pub(super) len: u64,
}

/// The file that an interrupted copy has left at `path`; `None`: nothing is there.
///
/// The name is known to everybody, and in a folder that others may write to they may have put something else there, to
/// have it written to: refused are a link, a file with another name elsewhere, and a file of another user. A file that
/// takes the place of another one has its owner.
pub(super) fn leftover(
    path: &Path,
    replaced: Option<&Replaced>,
    advice: &str,
) -> Result<Option<Leftover>, Failure> {
    let shown = path.display();
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::Failed(anyhow!(error).context(format!("cannot look at {shown}"))));
        }
    };
    let refused = |what: String| {
        Err(Failure::failed(anyhow!("{shown} {what}, so no copy of yours has left it: {advice}")))
    };
    if file.is_symlink() {
        return refused("is a symbolic link".to_owned());
    }
    if !file.is_file() {
        return refused("is not a regular file".to_owned());
    }
    if file.nlink() > 1 {
        return refused(format!("has {} names (hard links)", file.nlink()));
    }
    let is_known = replaced.and_then(Replaced::owner) == Some(file.uid());
    if !is_known && file.uid() != rustix::process::geteuid().as_raw() && new_owner(path) != Some(file.uid()) {
        return refused(format!("belongs to another user (UID {})", file.uid()));
    }
    Ok(Some(Leftover { id: FileId::of(&file), len: file.len() }))
}

/// The owner that a new file in the folder of `path` has: on a share another one than this process.
fn new_owner(path: &Path) -> Option<u32> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(tempfile::tempfile_in(folder).ok()?.metadata().ok()?.uid())
}

/// Removes what an interrupted copy left. A file that is locked belongs to a copy that is running.
pub(super) fn remove_unfinished(path: &Path) -> anyhow::Result<()> {
    let _locked = open_file(path, true).with_context(|| format!("cannot replace {}", path.display()))?;
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

/// Returns `true` if a copy was killed while it made its file, so that there is no disk in it yet and nothing was
/// copied.
///
/// A raw file gets its length, a VHDX its signature and a VHD its footer after everything else that an empty disk has
/// (a dynamic VHD gets the copy of its footer at the start, from which it can be opened, after its table). A file with
/// anything else there was not left by a copy.
pub(super) fn is_unbegun(spec: &DeviceSpec, path: &Path) -> anyhow::Result<bool> {
    let mut file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let len = file.metadata().with_context(|| format!("cannot read {}", path.display()))?.len();
    let mut is_all = |values: &[u8], offset: u64| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset))?;
        (&file).take(SIGNED).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(values.iter().any(|value| bytes.iter().all(|byte| byte == value)))
    };
    let unsigned = match spec {
        DeviceSpec::Vhdx { .. } => is_all(&[0], 0),
        // Without a footer a VHD ends with a part of its header or of a fixed disk, which are zero, or with a part of
        // its table, in which each byte is 0xFF.
        DeviceSpec::Image { .. } => {
            is_all(&[0], 0).and_then(|start| Ok(start && is_all(&[0, 0xFF], len.saturating_sub(SIGNED))?))
        }
        _ => return Ok(len == 0),
    };
    unsigned.with_context(|| format!("cannot read {}", path.display()))
}

/// Gives a complete copy its name, durably, unless a file of that name has come meanwhile.
pub(in crate::command) fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    let failed = || format!("the copy is complete as {}, and cannot be renamed", from.display());
    lunway_vhdx::rename_new(from, to).with_context(failed).map_err(Failure::Failed)
}

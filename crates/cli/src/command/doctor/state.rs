//! State that doctor keeps between runs: files in `$XDG_STATE_HOME/lunway`, or `~/.local/state/lunway` (XDG Base
//! Directory Specification).

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lunway_block::small_file;

/// Longest of these files, bytes: a week of looks at 64 daemons has some megabytes.
const FILE_MAX: u64 = 32 << 20;

/// The path of a file; `None`: neither variable is set.
pub(super) fn path(name: &str) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("lunway").join(name))
}

/// A file's text; `None`: there is none yet.
///
/// # Errors
///
/// A clause: why it cannot be read.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
    match small_file::read_text(path, FILE_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => {
                Err("it was not written by lunway doctor".to_owned())
            }
            _ => Err(error.to_string()),
        },
    }
}

/// Replaces a file whole, so that a kill or a power cut leaves the older one.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut new = tempfile::Builder::new().prefix(".doctor-").tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    fs::File::open(folder)?.sync_all()
}

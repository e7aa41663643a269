//! Small files of the repository as they are found: what lies where one should be is told from what cannot be read now.

use std::io;

use lunway_backup::{BackupError, Folder, Result, is_of_the_file, read_small, unseal};

/// What lies where a small file should be.
pub(crate) enum Small {
    /// Nothing.
    Missing,
    /// No file, or one that is too large to be what was written: a sentence that names it.
    Wrong(String),
    /// A file.
    Whole(Vec<u8>),
}

/// Reads a small file of at most so many bytes.
pub(crate) fn small(folder: &dyn Folder, name: &str, max: u64) -> Result<Small> {
    match read_small(folder, name, max) {
        Ok(bytes) => Ok(Small::Whole(bytes)),
        Err(BackupError::Folder { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(Small::Missing)
        }
        Err(BackupError::Folder { source, .. }) if is_of_the_file(source.kind()) => {
            Ok(Small::Wrong(format!("{}: {source}", folder.show(name))))
        }
        Err(BackupError::Manifest { name, what }) => Ok(Small::Wrong(format!("{name}: {what}"))),
        Err(error) => Err(error),
    }
}

/// What is wrong with a list that the next command that needs it makes again; `None`: nothing, or it is missing.
pub(crate) fn problem_of_list(folder: &dyn Folder, name: &str, found: &Small) -> Option<String> {
    let what = match found {
        Small::Missing => return None,
        Small::Wrong(what) => what.clone(),
        Small::Whole(bytes) => match unseal::<serde::de::IgnoredAny>(bytes) {
            Ok(_) => return None,
            Err(what) => format!("{}: {what}", folder.show(name)),
        },
    };
    Some(format!("{what}: it is not what was written, and counts as damaged: remove it"))
}

/// The error of a list that cannot be written or removed: a folder lies in its place.
pub(crate) fn in_place_of_list(folder: &dyn Folder, name: &str, error: BackupError) -> BackupError {
    match error {
        BackupError::Folder { source, .. }
            if matches!(source.kind(), io::ErrorKind::IsADirectory | io::ErrorKind::DirectoryNotEmpty) =>
        {
            let shown = folder.show(name);
            BackupError::Refused(format!(
                "{shown} is a folder where a list of this repository is to be: remove it"
            ))
        }
        error => error,
    }
}

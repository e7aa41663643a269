//! Identity of a file of the host, as the kernel tells it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, absolute};

/// File system and inode of a file: names and open files that have the same are one file.
///
/// It holds for as long as the file has a name or is open: the next file may get the inode of one that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    file_system: u64,
    inode: u64,
}

impl FileId {
    /// The identity of a file that was found, or is open.
    pub fn of(file: &Metadata) -> Self {
        Self::new(file.dev(), file.ino())
    }

    /// The identity that is made of these two numbers, as `stat` tells them.
    pub const fn new(file_system: u64, inode: u64) -> Self {
        Self { file_system, inode }
    }

    /// Both numbers, little-endian, to be kept.
    pub fn to_bytes(self) -> Vec<u8> {
        [self.file_system, self.inode].into_iter().flat_map(u64::to_le_bytes).collect()
    }
}

/// Returns `true` if both names lead to one file, through any links. A file that is not there yet is known by its name.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => FileId::of(&one) == FileId::of(&other),
        _ => absolute(one).ok() == absolute(other).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_one_file_and_a_copy_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), b"x").unwrap();
        fs::copy(at("file"), at("copy")).unwrap();
        fs::hard_link(at("file"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("file"), at("soft")).unwrap();
        for (name, same) in [("hard", true), ("soft", true), ("copy", false), ("none", false)] {
            assert_eq!(is_same_file(&at("file"), &at(name)), same, "{name}");
        }
        assert!(is_same_file(&at("none"), &at("none")));
    }
}

//! Identity of an open file.

use std::os::fd::AsFd;

use lunway_block::file_place;
use rustix::fs::{FileType, fstat, major, minor};

/// The name of where an open file lies, the same for every path to it: a block device by its number, a file by its
/// inode and the number of its file system. May wait for the file system, as opening did. `None` where that does not
/// answer.
pub fn place(file: impl AsFd) -> Option<String> {
    let stat = fstat(file).ok()?;
    Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => format!("block device {}:{}", major(stat.st_rdev), minor(stat.st_rdev)),
        _ => file_place(stat.st_ino, major(stat.st_dev), minor(stat.st_dev)),
    })
}

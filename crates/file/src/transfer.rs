//! Bytes in and out of a file by system calls.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use lunway_block::{BlockError, Durability};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

/// Longest transfer that is copied on the caller's thread, bytes. From the page cache (`preadv`, one core of a virtual
/// machine): 4 KiB 1.1 µs, 1 MiB 42 µs, 8 MiB 330 µs into memory that is mapped already, and several times that into
/// new memory. All others of the core wait as long.
pub(crate) const INLINE_BYTES_MAX: usize = 1 << 20;

/// Result of an attempt that must not block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Now {
    /// All done.
    Done,
    /// This many bytes are done; the rest would block, or needs a second look.
    Partly(usize),
    /// The file system cannot promise not to block.
    Unsupported,
}

/// Converts an error number at `offset` to a device error.
pub(crate) fn meaning(errno: Errno, offset: u64) -> BlockError {
    match errno {
        // UCLEAN is the number that file systems use for corruption, ILSEQ what some disks' errors turn into.
        Errno::IO | Errno::REMOTEIO | Errno::ILSEQ | Errno::UCLEAN | Errno::BADMSG => {
            BlockError::Medium { offset }
        }
        Errno::NODEV | Errno::NXIO | Errno::STALE | Errno::NOMEDIUM => {
            BlockError::gone(std::io::Error::from(errno).to_string())
        }
        errno => std::io::Error::from(errno).into(),
    }
}

/// Reads what is in the page cache.
pub(crate) fn read_now(file: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<Now, BlockError> {
    let len = buf.len();
    let result = preadv2(file, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT);
    now(result, len, offset)
}

fn now(result: rustix::io::Result<usize>, len: usize, offset: u64) -> Result<Now, BlockError> {
    match result {
        Ok(count) if count == len => Ok(Now::Done),
        // 0 too: the end of a file that was cut, which the blocking way reports.
        Ok(count) => Ok(Now::Partly(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Now::Partly(0)),
        // NOSYS: a seccomp filter that knows only the old calls.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(Now::Unsupported),
        Err(errno) => Err(meaning(errno, offset)),
    }
}

/// Fills `buf`, blocking. The end of the file is a medium error: the device has promised bytes there.
pub(crate) fn read_fully(
    file: BorrowedFd<'_>,
    mut buf: &mut [u8],
    mut offset: u64,
) -> Result<(), BlockError> {
    while !buf.is_empty() {
        match rustix::io::pread(file, &mut *buf, offset) {
            Ok(0) => return Err(BlockError::Medium { offset }),
            Ok(count) => {
                buf = &mut buf[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(meaning(errno, offset)),
        }
    }
    Ok(())
}

/// Writes all of `data`, blocking.
pub(crate) fn write_fully(
    file: BorrowedFd<'_>,
    mut data: &[u8],
    mut offset: u64,
    durability: Durability,
) -> Result<(), BlockError> {
    let begin = offset;
    while !data.is_empty() {
        let result = match durability {
            Durability::Volatile => rustix::io::pwrite(file, data, offset),
            Durability::Stable => pwritev2(file, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC),
        };
        match result {
            Ok(0) => return Err(BlockError::Medium { offset }),
            Ok(count) => {
                data = &data[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) if offset > begin => return Err(meaning(errno, offset).after_a_part()),
            Err(errno) => return Err(meaning(errno, offset)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn a_full_file_system_is_no_space() {
        // A character device that is always full; nothing can be written to it, so nothing can be harmed.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let written = write_fully(full.as_fd(), &[1; 512], 0, Durability::Volatile);
        assert_eq!(written, Err(BlockError::NoSpace));
    }

    #[test]
    fn error_numbers_get_their_meaning() {
        assert_eq!(meaning(Errno::IO, 77), BlockError::Medium { offset: 77 });
        assert_eq!(meaning(Errno::NOSPC, 0), BlockError::NoSpace);
        assert_eq!(meaning(Errno::DQUOT, 0), BlockError::NoSpace);
        assert_eq!(meaning(Errno::ROFS, 0), BlockError::ReadOnly);
        assert!(matches!(meaning(Errno::NODEV, 0), BlockError::Gone { .. }));
        assert!(matches!(meaning(Errno::PERM, 0), BlockError::Io { .. }));
    }

    #[test]
    fn a_read_beyond_the_end_is_a_medium_error_and_not_zeroes() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[1; 700]).unwrap();
        let mut buf = [0; 1024];
        assert_eq!(read_fully(file.as_fd(), &mut buf, 0), Err(BlockError::Medium { offset: 700 }));
        let now = read_now(file.as_fd(), &mut buf, 0).unwrap();
        assert!(matches!(now, Now::Partly(700) | Now::Unsupported), "{now:?}");
    }
}

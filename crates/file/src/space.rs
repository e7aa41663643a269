//! Holes: punching, zeroing, mapping.

use std::os::fd::{AsFd, BorrowedFd};

use lunway_block::{BlockError, Buf, Durability, Extent, ExtentKind, Zeroing};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::transfer::{meaning, write_fully};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

/// Zeroes written at once where the file system cannot do it by itself, bytes.
const ZEROES: usize = 1 << 20;

/// Extents told by one call. A file in more pieces than this is told as data from there on, which is always
/// true enough: it bounds the time (two seeks of about 1 µs each) and the memory of a hostile file.
const EXTENTS_MAX: usize = 65_536;

/// Does the file system punch holes? Tried behind the end of the file, where there is nothing to lose.
pub(crate) fn can_punch(file: BorrowedFd<'_>, size: u64) -> bool {
    let behind = size.next_multiple_of(1 << 20);
    fallocate(file, PUNCH, behind, 4096).is_ok()
}

/// Makes a range read as zeroes, the cheapest way that the file system knows; in the end by writing them.
/// Punching works on block devices too (since Linux 4.9), as a discard that zeroes. `before_write` is told how many
/// zeroes are written next.
pub(crate) fn zero(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    zeroing: Zeroing,
    before_write: impl FnMut(u64),
) -> Result<(), BlockError> {
    let ways: &[FallocateFlags] = match zeroing {
        Zeroing::MayUnmap => &[PUNCH, ZERO],
        Zeroing::KeepAllocated => &[ZERO],
    };
    for &way in ways {
        loop {
            match fallocate(file, way, offset, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => break,
                Err(errno) => return Err(meaning(errno, offset)),
            }
        }
    }
    write_zeroes(file, offset, len, before_write)
}

fn write_zeroes(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    mut before_write: impl FnMut(u64),
) -> Result<(), BlockError> {
    let zeroes = Buf::zeroed(len.min(ZEROES as u64) as usize);
    let end = offset + len;
    let mut at = offset;
    while at < end {
        let count = (end - at).min(ZEROES as u64);
        before_write(count);
        write_fully(file, &zeroes[..count as usize], at, Durability::Volatile)?;
        at += count;
    }
    Ok(())
}

/// The map of a range, rounded outwards to sectors on the side of data, to its end or to that of `count` extents. What
/// was allocated and never written looks like a hole to `SEEK_HOLE` and is told as one: it reads as zeroes just so.
/// Blocks.
///
/// # Errors
///
/// What the host says, but for a file system that cannot tell, whose files are data.
pub fn extents(
    file: impl AsFd,
    offset: u64,
    len: u64,
    sector: u32,
    count: usize,
) -> Result<Vec<Extent>, BlockError> {
    let (file, sector) = (file.as_fd(), u64::from(sector));
    let end = offset + len;
    let mut list = Vec::new();
    let mut at = offset;
    while at < end && list.len() < count {
        let start = match seek(file, SeekFrom::Data(at)) {
            _ if list.len() >= EXTENTS_MAX => at,
            Ok(start) => (start / sector * sector).clamp(at, end),
            Err(Errno::NXIO) => end,
            // A file system that cannot tell.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(meaning(errno, at)),
        };
        Extent { offset: at, len: start - at, kind: ExtentKind::Unallocated }.push_onto(&mut list);
        if start == end || list.len() >= count {
            break;
        }
        let stop = match seek(file, SeekFrom::Hole(start)) {
            _ if list.len() >= EXTENTS_MAX => end,
            // At least a sector on, so that the walk ends whatever the file system says.
            Ok(stop) => stop.max(start + 1).next_multiple_of(sector).min(end),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => end,
            Err(errno) => return Err(meaning(errno, start)),
        };
        Extent { offset: start, len: stop - start, kind: ExtentKind::Data }.push_onto(&mut list);
        at = stop;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::read_fully;

    #[test]
    fn zeroes_are_written_where_nothing_better_is_known() {
        let file = tempfile::tempfile().unwrap();
        let len = 2 * ZEROES + 1536;
        write_fully(file.as_fd(), &vec![7; len], 0, Durability::Volatile).unwrap();
        write_zeroes(file.as_fd(), 512, len as u64 - 1024, |_| ()).unwrap();
        let mut buf = vec![0; len];
        read_fully(file.as_fd(), &mut buf, 0).unwrap();
        assert!(buf[512..len - 512].iter().all(|&byte| byte == 0));
        assert_eq!((&buf[..512], &buf[len - 512..]), (&[7; 512][..], &[7; 512][..]));
    }

    #[test]
    fn a_file_that_was_cut_ends_in_a_hole() {
        let file = tempfile::tempfile().unwrap();
        write_fully(file.as_fd(), &[1; 4096], 0, Durability::Volatile).unwrap();
        let list = extents(file.as_fd(), 0, 1 << 20, 512, usize::MAX).unwrap();
        let hole = Extent { offset: 4096, len: (1 << 20) - 4096, kind: ExtentKind::Unallocated };
        assert_eq!(list.last(), Some(&hole));
    }

    #[test]
    fn a_walk_ends_with_the_last_extent_that_is_asked_for() {
        let file = tempfile::tempfile().unwrap();
        for at in (0..64).step_by(2) {
            write_fully(file.as_fd(), &[1; 4096], (at + 1) * 4096, Durability::Volatile).unwrap();
        }
        let all = extents(file.as_fd(), 0, 64 * 4096, 512, usize::MAX).unwrap();
        if all.len() == 1 {
            eprintln!("the file system knows no holes of 4 KiB");
            return;
        }
        assert_eq!(all.len(), 64);
        for count in [1, 2, 5, 63, 64, 1000] {
            let first = extents(file.as_fd(), 0, 64 * 4096, 512, count).unwrap();
            assert_eq!(first, all[..count.min(64)], "{count}");
        }
    }
}

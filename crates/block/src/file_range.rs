//! A range of a file of this host, for copies that the kernel carries out.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{Advice, copy_file_range, fadvise, fstatfs};
use rustix::io::Errno;

/// File systems that let two files share blocks until one of them is written (reflinks), by the type that `statfs`
/// tells: XFS, btrfs, bcachefs (`linux/magic.h`).
const SHARING: [u64; 3] = [0x5846_5342, 0x9123_683E, 0xCA45_1A4E];
/// Local file systems that share nothing, within which the kernel copies from one page cache to the other: ext4, tmpfs.
/// 1 GiB from a raw image to a VHDX or back (ext4, Linux 6.18, a busy machine, six rounds) takes 0.7 to 0.8 of the time
/// and of the processor's time that reads and writes take: the bytes are moved once instead of twice.
const COPYING: [u64; 2] = [0xEF53, 0x0102_1994];

/// Zeroes are looked for in units of this, bytes, as copies look for them in what they read.
const ZERO_UNIT: usize = 64 << 10;
/// Beginning of a unit that is looked at first, bytes: the rest is read only where that is zero. 0.4 µs beside the 35
/// µs that it takes to copy the unit.
const ZERO_HEAD: usize = 512;

/// Location of a device's bytes in a file of this host.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file.
    pub file: Arc<File>,
    /// First byte.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
}

impl FileRange {
    /// Has the kernel put these bytes at `offset` of another file of the same file system, which shares them where it
    /// can and copies them otherwise. `false`: the file system is none of those of which it is known that this is fast,
    /// the files lie on two, or the bytes would be copied and 64 KiB of them are zeroes, which need not be; nothing
    /// happened. Blocks.
    ///
    /// # Errors
    ///
    /// Those of the file system. Part of the bytes may have been copied.
    pub fn put_into(&self, to: &File, offset: u64) -> io::Result<bool> {
        let magic = |file: &File| fstatfs(file).map(|found| (found.f_type as u64) & 0xFFFF_FFFF);
        let here = magic(&self.file)?;
        if magic(to)? != here || !SHARING.contains(&here) && !COPYING.contains(&here) {
            return Ok(false);
        }
        if COPYING.contains(&here) {
            // The kernel would read ahead in small steps only. A hint: where it is refused, that is what happens.
            let _ = fadvise(&*self.file, self.offset, NonZeroU64::new(self.len), Advice::WillNeed);
            if self.has_zeroes()? {
                return Ok(false);
            }
        }
        let (mut from, mut at) = (self.offset, offset);
        let end = self.offset + self.len;
        while from < end {
            let len = usize::try_from(end - from).unwrap_or(usize::MAX);
            match copy_file_range(&*self.file, Some(&mut from), to, Some(&mut at), len) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if from == self.offset => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Returns `true` if a whole unit is zero, or the last one, which may be shorter.
    fn has_zeroes(&self) -> io::Result<bool> {
        let (mut head, mut rest) = ([0; ZERO_HEAD], Vec::new());
        let end = self.offset + self.len;
        let mut at = self.offset;
        while at < end {
            let unit = (end - at).min(ZERO_UNIT as u64) as usize;
            let head = &mut head[..unit.min(ZERO_HEAD)];
            self.file.read_exact_at(head, at)?;
            if is_zero(head) {
                rest.resize(unit - head.len(), 0);
                self.file.read_exact_at(&mut rest, at + head.len() as u64)?;
                if is_zero(&rest) {
                    return Ok(true);
                }
            }
            at += unit as u64;
        }
        Ok(false)
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

//! A file of a file system in user space that lies on no block device: as a rule a share.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use lunway_vhdx::Storage;

/// A file that is made longer by a byte behind its new end.
///
/// The kernel gives such a file its length by two round trips, in which it lets no write of the file pass, and sends a
/// write like any other. A file system on a block device is not asked so: NTFS and exFAT write zeroes up to that byte.
pub(crate) struct FuseFile(pub(crate) File);

impl Storage for FuseFile {
    fn len(&self) -> io::Result<u64> {
        Storage::len(&self.0)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        Storage::read_at(&self.0, offset, buf)
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.0.read_now(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Storage::write_at(&self.0, offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        Storage::flush(&self.0)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Storage::set_len(&self.0, len)
    }

    fn lengthen(&self, len: u64) -> io::Result<()> {
        self.0.write_all_at(&[0], len - 1)
    }

    fn free(&self) -> io::Result<Option<u64>> {
        self.0.free()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.0.punch(offset, len)
    }

    fn share(&self, from: u64, to: u64, len: u64) -> io::Result<bool> {
        self.0.share(from, to, len)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.zero(offset, len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.reserve(offset, len)
    }

    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.0.is_hole(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_made_longer_reads_as_zeroes_there() {
        let file = FuseFile(tempfile::tempfile().unwrap());
        file.lengthen(10).unwrap();
        file.write_at(0, &[1; 10]).unwrap();
        file.lengthen(4096).unwrap();
        let mut read = vec![7; 4096];
        file.read_at(0, &mut read).unwrap();
        assert!(read[..10] == [1; 10] && read[10..].iter().all(|byte| *byte == 0));
        assert_eq!(file.len().unwrap(), 4096);
    }
}

//! A folder of the crash kit as a destination.

use std::io;
use std::sync::Arc;

use lunway_backup::{Folder, Lock, Open};
use lunway_crash::{Directory, DirectoryFile};
use lunway_vhdx::Storage;

/// A folder of the crash kit.
pub(crate) struct Crashing(pub(crate) Directory);

struct CrashingFile(DirectoryFile);

impl Storage for CrashingFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.now().size())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.now().read(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.sync();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.resize(len);
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.clear(offset, len);
        Ok(())
    }
}

impl Folder for Crashing {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.names())
    }

    fn create(&self, name: &str) -> io::Result<Open> {
        Ok(Arc::new(CrashingFile(self.0.create(name)?)))
    }

    fn open(&self, name: &str, _writable: bool) -> io::Result<Open> {
        Ok(Arc::new(CrashingFile(self.0.open(name)?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync();
        Ok(())
    }

    fn set_read_only(&self, _name: &str, _read_only: bool) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Option<Lock>> {
        // Who held it has been killed.
        Ok(Some(Box::new(())))
    }

    fn data(&self, name: &str) -> io::Result<Vec<(u64, u64)>> {
        let file = self.0.open(name)?;
        Ok(file.now().allocated_in(0, file.now().size()))
    }
}

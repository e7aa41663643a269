//! A folder of which reads fail when a test says so, as those of a share that was cut do, and whose files are open
//! elsewhere.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use lunway_backup::{Folder, Lock, Open};
use lunway_vhdx::Storage;

/// Which reads of a [`Failing`] folder fail, counted from 0 over all of its files.
#[derive(Default)]
pub(crate) struct Failures {
    count: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    busy: Mutex<Vec<String>>,
    /// Called before a file of the folder is flushed.
    flushing: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Failures {
    /// None.
    pub(crate) fn none() -> Arc<Self> {
        Arc::new(Self { first: AtomicU64::new(u64::MAX), ..Self::default() })
    }

    /// From now on: `first` reads succeed, those up to `last` fail.
    pub(crate) fn set(&self, first: u64, last: u64) {
        self.count.store(0, Ordering::SeqCst);
        self.first.store(first, Ordering::SeqCst);
        self.last.store(last, Ordering::SeqCst);
    }

    /// Files that the server has open for a client that is gone: they can neither be removed nor renamed.
    pub(crate) fn set_busy(&self, names: Vec<String>) {
        *self.busy.lock().unwrap() = names;
    }

    /// Has this called before each flush of a file.
    pub(crate) fn before_each_flush(&self, call: impl Fn() + Send + Sync + 'static) {
        assert!(self.flushing.set(Box::new(call)).is_ok(), "said once");
    }

    /// Reads since then.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn refuse_busy(&self, name: &str) -> io::Result<()> {
        match self.busy.lock().unwrap().iter().any(|busy| busy == name) {
            true => Err(io::ErrorKind::ResourceBusy.into()),
            false => Ok(()),
        }
    }

    fn read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        if (self.first.load(Ordering::SeqCst)..=self.last.load(Ordering::SeqCst)).contains(&number) {
            return Err(io::Error::other("the share was cut"));
        }
        read()
    }
}

/// A folder around another one.
pub(crate) struct Failing {
    pub(crate) inner: Arc<dyn Folder>,
    pub(crate) failures: Arc<Failures>,
}

struct FailingFile {
    inner: Open,
    failures: Arc<Failures>,
}

impl Storage for FailingFile {
    fn len(&self) -> io::Result<u64> {
        self.failures.read(|| self.inner.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.failures.read(|| self.inner.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        if let Some(call) = self.failures.flushing.get() {
            call();
        }
        self.inner.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
}

impl Folder for Failing {
    fn names(&self) -> io::Result<Vec<String>> {
        self.failures.read(|| self.inner.names())
    }

    fn create(&self, name: &str) -> io::Result<Open> {
        Ok(Arc::new(FailingFile { inner: self.inner.create(name)?, failures: Arc::clone(&self.failures) }))
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Open> {
        let inner = self.failures.read(|| self.inner.open(name, writable))?;
        Ok(Arc::new(FailingFile { inner, failures: Arc::clone(&self.failures) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.failures.refuse_busy(from)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.failures.refuse_busy(name)?;
        self.inner.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn set_read_only(&self, name: &str, read_only: bool) -> io::Result<()> {
        self.inner.set_read_only(name, read_only)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        self.inner.lock(name)
    }

    fn data(&self, name: &str) -> io::Result<Vec<(u64, u64)>> {
        self.failures.read(|| self.inner.data(name))
    }
}

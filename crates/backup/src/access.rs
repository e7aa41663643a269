//! Access to files of the destination: failures of the way to a file, apart from damage of the file.
//!
//! A share that was cut, a disk that is slow to wake or a server that restarts answers with an error now and with the
//! file a minute later. Such an error ends what is under way and is noted nowhere. Damage, which makes a run begin a
//! full and stops a prune, is what a file that was read says of itself: it is missing, too short, or has other bytes.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lunway_vhdx::check::{Report, check};
use lunway_vhdx::{Storage, VhdxOpenError};

use crate::error::{BackupError, Result, is_of_the_file};
use crate::folder::{Folder, Lock, Open};

/// Between two attempts to read: a share that reconnects takes some seconds, and is not hurried by more questions.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The storage's own error in why a VHDX file was not opened, where it says nothing of the file.
pub(crate) fn failed_access(error: VhdxOpenError) -> std::result::Result<io::Error, VhdxOpenError> {
    match error {
        VhdxOpenError::Access { source, .. } | VhdxOpenError::Storage { source, .. }
            if !is_of_the_file(source.kind()) =>
        {
            Ok(source)
        }
        error => Err(error),
    }
}

/// The deep check of a VHDX file, whose report counts what could not be read as damage: here it is an error.
pub(crate) fn checked(storage: &Open, name: &str) -> Result<Report> {
    let recorder = FailureRecorder { inner: Arc::clone(storage), failed: Mutex::default() };
    let report = check(&recorder);
    match recorder.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(BackupError::folder("reading", name)(error)),
        None => Ok(report),
    }
}

/// A file that remembers the first failure of a way to it.
struct FailureRecorder {
    inner: Open,
    failed: Mutex<Option<io::Error>>,
}

impl FailureRecorder {
    fn record<T>(&self, answer: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &answer
            && !is_of_the_file(error.kind())
        {
            let seen = io::Error::new(error.kind(), error.to_string());
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(seen);
        }
        answer
    }
}

impl Storage for FailureRecorder {
    fn len(&self) -> io::Result<u64> {
        self.record(self.inner.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.record(self.inner.read_at(offset, buf))
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// A folder that is only read, in which what could not be read is read again, at once and then each second, for as
/// long as `patience`: a verification of hours shall survive what a share takes to come back.
pub struct RetryingFolder<'a> {
    /// The folder.
    pub inner: &'a dyn Folder,
    /// For how long.
    pub patience: Duration,
}

struct RetryingFile {
    inner: Open,
    patience: Duration,
}

fn retry<T>(patience: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        match attempt() {
            // The second attempt follows at once, whatever the patience: a connection that was lost is often there
            // again with the next request.
            Err(error)
                if !is_of_the_file(error.kind())
                    && (pause.is_zero() || begun.elapsed() + pause <= patience) =>
            {
                thread::sleep(pause);
                pause = RETRY_EVERY;
            }
            done => return done,
        }
    }
}

impl Storage for RetryingFile {
    fn len(&self) -> io::Result<u64> {
        retry(self.patience, || self.inner.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        retry(self.patience, || self.inner.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
}

impl Folder for RetryingFolder<'_> {
    fn names(&self) -> io::Result<Vec<String>> {
        retry(self.patience, || self.inner.names())
    }

    fn names_with(&self, beginning: &str) -> io::Result<Vec<String>> {
        retry(self.patience, || self.inner.names_with(beginning))
    }

    fn create(&self, name: &str) -> io::Result<Open> {
        self.inner.create(name)
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Open> {
        let inner = retry(self.patience, || self.inner.open(name, writable))?;
        Ok(Arc::new(RetryingFile { inner, patience: self.patience }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
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
        retry(self.patience, || self.inner.data(name))
    }

    fn show(&self, name: &str) -> String {
        self.inner.show(name)
    }
}

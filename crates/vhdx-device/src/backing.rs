//! Backing store of a VHDX: a file, or another device.

use std::fs::File;
use std::future::IntoFuture;
use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use lunway_block::{BlockDevice, BlockError, Bytes, Durability, Io, Zeroing};
use lunway_file::{CachedReads, ThreadPool};
use lunway_vhdx::Storage;

/// Backing store of a VHDX.
pub(crate) enum Backing {
    /// A file, locked by the engine.
    File(Locked),
    /// A device of a fixed length, without another user: the caller sees to that. The engine's threads wait for it.
    Device(Bytes),
}

impl Backing {
    /// Returns `true` if a read of `len` bytes should be tried inline.
    pub(crate) fn is_worth_a_try(&self, len: usize, reads: &ThreadPool) -> bool {
        match self {
            Self::File(file) => file.cached_reads.is_worth_a_try(len, reads),
            Self::Device(_) => false,
        }
    }

    pub(crate) fn device(device: Arc<dyn BlockDevice>) -> Self {
        Self::Device(Bytes::new(device))
    }
}

impl From<File> for Backing {
    fn from(file: File) -> Self {
        Self::File(Locked::new(file))
    }
}

/// A file with the engine's lock, which all of its handles share.
pub(crate) struct Locked {
    file: File,
    cached_reads: CachedReads,
    /// Faults that tests inject.
    #[cfg(test)]
    pub(crate) faults: Arc<crate::failing::Faults>,
}

impl Locked {
    fn new(file: File) -> Self {
        Self {
            cached_reads: CachedReads::of(&file),
            file,
            #[cfg(test)]
            faults: Arc::default(),
        }
    }

    /// Another handle.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(self.with(self.file.try_clone()?))
    }

    /// Another file that belongs to the same device.
    pub(crate) fn with(&self, file: File) -> Self {
        Self {
            cached_reads: CachedReads::of(&file),
            file,
            #[cfg(test)]
            faults: Arc::clone(&self.faults),
        }
    }

    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Before each call of the storage.
    fn step(&self) -> io::Result<()> {
        #[cfg(test)]
        self.faults.step()?;
        Ok(())
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Storage for Locked {
    fn len(&self) -> io::Result<u64> {
        Storage::len(&self.file)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.step()?;
        Storage::read_at(&self.file, offset, buf)
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        // Tests count the calls that may fail.
        !cfg!(test) && self.cached_reads.read(&self.file, offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.step()?;
        Storage::write_at(&self.file, offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.step()?;
        Storage::flush(&self.file)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.step()?;
        Storage::set_len(&self.file, len)
    }

    fn free(&self) -> io::Result<Option<u64>> {
        self.file.free()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.step()?;
        self.file.punch(offset, len)
    }

    fn share(&self, from: u64, to: u64, len: u64) -> io::Result<bool> {
        self.step()?;
        self.file.share(from, to, len)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.step()?;
        self.file.zero(offset, len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.step()?;
        self.file.reserve(offset, len)
    }

    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.step()?;
        self.file.is_hole(offset, len)
    }
}

/// Requests to the device are no longer than this, bytes: what every device takes in one piece.
const REQUEST_MAX: usize = 1 << 20;

impl Storage for Backing {
    fn len(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Storage::len(file),
            Self::Device(bytes) => Ok(bytes.device().geometry().size),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = match self {
            Self::File(file) => return Storage::read_at(file, offset, buf),
            Self::Device(bytes) => bytes,
        };
        let mut at = offset;
        for piece in buf.chunks_mut(REQUEST_MAX) {
            let (read, inside) = wait(bytes.read(at, piece.len() as u32)).map_err(error)?;
            if inside.len() < piece.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            piece.copy_from_slice(&read[inside]);
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        match self {
            Self::File(file) => file.read_now(offset, buf),
            // Waiting for another device takes a thread.
            Self::Device(_) => false,
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let bytes = match self {
            Self::File(file) => return Storage::write_at(file, offset, data),
            Self::Device(bytes) => bytes,
        };
        let mut at = offset;
        for piece in data.chunks(REQUEST_MAX) {
            let written = wait(bytes.write(at, piece, Durability::Volatile)).map_err(error)?;
            if (written as usize) < piece.len() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        match self {
            Self::File(file) => Storage::flush(file),
            Self::Device(bytes) => wait(bytes.device().flush()).map_err(error),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self {
            Self::File(file) => Storage::set_len(file, len),
            Self::Device(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn free(&self) -> io::Result<Option<u64>> {
        match self {
            Self::File(file) => file.free(),
            Self::Device(_) => Ok(None),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        match self {
            Self::File(file) => file.punch(offset, len),
            Self::Device(bytes) if bytes.device().geometry().unmap.zeroes() => {
                wait(bytes.zero(offset, len, Zeroing::MayUnmap)).map(|()| true).map_err(error)
            }
            Self::Device(_) => Ok(false),
        }
    }

    fn share(&self, from: u64, to: u64, len: u64) -> io::Result<bool> {
        match self {
            Self::File(file) => file.share(from, to, len),
            Self::Device(_) => Ok(false),
        }
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.zero(offset, len),
            Self::Device(bytes) => wait(bytes.zero(offset, len, Zeroing::KeepAllocated)).map_err(error),
        }
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.reserve(offset, len),
            // Which of its ranges have space is its own matter.
            Self::Device(_) => Ok(()),
        }
    }

    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        match self {
            Self::File(file) => file.is_hole(offset, len),
            // A question to another machine for each unmap of a part of a block.
            Self::Device(_) => Ok(false),
        }
    }
}

fn error(error: BlockError) -> io::Error {
    match error {
        BlockError::NoSpace => io::ErrorKind::StorageFull.into(),
        BlockError::ReadOnly => io::ErrorKind::ReadOnlyFilesystem.into(),
        BlockError::Io { kind, message } => io::Error::new(kind, message),
        other => io::Error::other(other.to_string()),
    }
}

/// Wakes a thread that is parked.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The answer of a device, for a thread that has nothing else to do.
fn wait<T: Unpin>(io: Io<T>) -> T {
    let mut future = match io {
        Io::Ready(answer) => return answer,
        pending => pin!(pending.into_future()),
    };
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

//! Files of an object store: what is written and has no object yet, objects that this process writes again and again,
//! and objects that are read.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use lunway_backup::Open;
use lunway_object::{Body, Condition, Etag, Part, Store};
use lunway_vhdx::Storage;

use crate::lock::lock;
use crate::memory::MemoryFile;

/// Bytes of a file without an object that are kept in memory; a longer one, an index of many terabytes, is a temporary
/// file of this machine. Packs are shorter but for the largest possible.
const HELD_MAX: u64 = 64 << 20;
/// Most bytes of an object that is written in place: a lease, or a presence.
const SMALL: usize = 64 << 10;
/// Bytes that are asked for when a file is opened: small ones are there with that.
const FIRST: u64 = 64 << 10;
/// Bytes of a window: at 50 ms for a request and 100 MB/s, two thirds of what the way can do.
const WINDOW: u64 = 4 << 20;
/// Windows that are kept for all files of a folder: those of 16 units that are read side by side.
const WINDOWS: usize = 16;
/// Distance behind a read within which the next one counts as going on from it: what units have beside each other that
/// are read in another order.
const NEAR: u64 = 2 << 20;
/// Reads that are remembered of a file.
const REMEMBERED: usize = 16;

/// Bytes on their way to the store.
enum Held {
    Memory(Vec<u8>),
    Temporary(File, u64),
}

impl Held {
    fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Temporary(_, len) => *len,
        }
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        if let Self::Memory(bytes) = self
            && end > HELD_MAX
        {
            let file = tempfile::tempfile()?;
            file.write_all_at(bytes, 0)?;
            *self = Self::Temporary(file, bytes.len() as u64);
        }
        match self {
            Self::Memory(bytes) => {
                let (start, end) = (offset as usize, end as usize);
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(data);
            }
            Self::Temporary(file, len) => {
                file.write_all_at(data, offset)?;
                *len = end.max(*len);
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => fill(bytes, offset, buf),
            Self::Temporary(file, _) => file.read_exact_at(buf, offset),
        }
    }

    fn set_len(&mut self, new: u64) -> io::Result<()> {
        match self {
            Self::Memory(bytes) if new <= HELD_MAX => bytes.resize(new as usize, 0),
            Self::Memory(_) => return Err(io::ErrorKind::FileTooLarge.into()),
            Self::Temporary(file, len) => {
                file.set_len(new)?;
                *len = new;
            }
        }
        Ok(())
    }

    fn body(&self) -> Body<'_> {
        match self {
            Self::Memory(bytes) => Body::Bytes(bytes),
            Self::Temporary(file, len) => Body::File(file, *len),
        }
    }
}

/// Bytes of a range of what there is.
fn fill(bytes: &[u8], offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = start.checked_add(buf.len());
    let part = end.and_then(|end| bytes.get(start..end)).ok_or(io::ErrorKind::UnexpectedEof)?;
    buf.copy_from_slice(part);
    Ok(())
}

/// A file that this process writes.
///
/// Without an object its bytes are held here. With one, each write is an upload of the whole, on the condition that the
/// object is still the one of the last upload: what another process has removed does not come back.
pub(crate) struct WrittenFile {
    store: Arc<Store>,
    inner: Mutex<Written>,
}

struct Written {
    held: Held,
    object: Option<(String, Etag)>,
}

impl WrittenFile {
    /// Without an object.
    pub(crate) fn unfinished(store: &Arc<Store>) -> Self {
        let inner = Written { held: Held::Memory(Vec::new()), object: None };
        Self { store: Arc::clone(store), inner: Mutex::new(inner) }
    }

    /// An object that must not exist: of several callers, on other machines too, one succeeds.
    pub(crate) fn exclusive(store: &Arc<Store>, key: String) -> io::Result<Self> {
        let etag = store.put(&key, Body::Bytes(&[]), Condition::Absent)?;
        let inner = Written { held: Held::Memory(Vec::new()), object: Some((key, etag)) };
        Ok(Self { store: Arc::clone(store), inner: Mutex::new(inner) })
    }

    /// Becomes an object.
    pub(crate) fn finish(&self, key: String) -> io::Result<()> {
        let mut written = lock(&self.inner);
        let etag = self.store.put(&key, written.held.body(), Condition::Always)?;
        written.object = Some((key, etag));
        if written.held.len() > SMALL as u64 {
            // It is not written in place, and a pack's memory is needed for the next one.
            written.held = Held::Memory(Vec::new());
        }
        Ok(())
    }
}

impl Storage for WrittenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.inner).held.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        lock(&self.inner).held.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = lock(&self.inner);
        if written.object.is_some() && offset.saturating_add(data.len() as u64) > SMALL as u64 {
            let why = "an object of more than 64 KiB is not written in place";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let Written { held, object } = &mut *written;
        held.write_at(offset, data)?;
        if let Some((key, etag)) = object {
            *etag = self.store.put(key, held.body(), Condition::Is(etag))?;
        }
        Ok(())
    }

    /// Nothing is left to do: without an object nothing survives this process, and an upload is durable when the store
    /// has answered.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = lock(&self.inner);
        match written.object {
            None => written.held.set_len(len),
            Some(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Parts of objects that were read, for all files of a folder.
#[derive(Default)]
pub(crate) struct Windows(Mutex<VecDeque<Arc<Window>>>);

/// The window of an object that begins at `number` times [`WINDOW`]. The thread that made it reads it, others wait.
struct Window {
    key: Arc<str>,
    number: u64,
    /// `None` inside: that thread failed, and the others read for themselves.
    bytes: Mutex<Option<Option<Vec<u8>>>>,
    is_there: Condvar,
}

impl Windows {
    /// Tells whether it was read, or is being read.
    fn has(&self, key: &Arc<str>, number: u64) -> bool {
        lock(&self.0).iter().any(|window| window.number == number && Arc::ptr_eq(&window.key, key))
    }

    /// The window, and whether the caller has to read it.
    fn get(&self, key: &Arc<str>, number: u64) -> (Arc<Window>, bool) {
        let mut windows = lock(&self.0);
        let found = windows.iter().find(|window| window.number == number && Arc::ptr_eq(&window.key, key));
        if let Some(window) = found {
            return (Arc::clone(window), false);
        }
        let (bytes, is_there) = (Mutex::default(), Condvar::new());
        let window = Arc::new(Window { key: Arc::clone(key), number, bytes, is_there });
        windows.push_front(Arc::clone(&window));
        windows.truncate(WINDOWS);
        (window, true)
    }

    fn forget(&self, window: &Arc<Window>) {
        lock(&self.0).retain(|other| !Arc::ptr_eq(other, window));
    }
}

impl Window {
    fn start(&self) -> u64 {
        self.number * WINDOW
    }

    /// Waits for bytes from an offset of the object; `None`: they could not be read.
    fn wait(&self, offset: u64, buf: &mut [u8]) -> Option<()> {
        let waited = self.is_there.wait_while(lock(&self.bytes), |bytes| bytes.is_none());
        let bytes = waited.unwrap_or_else(PoisonError::into_inner);
        fill(bytes.as_ref()?.as_ref()?, offset - self.start(), buf).ok()
    }

    fn end(&self, bytes: Option<Vec<u8>>) {
        *lock(&self.bytes) = Some(bytes);
        self.is_there.notify_all();
    }
}

/// An object that is read.
///
/// A read that goes on from another one takes a window with it, so that what lies together is few requests: a restore
/// of a terabyte would be a million of them, an hour for each 4 ms of the way.
pub(crate) struct ReadFile {
    store: Arc<Store>,
    windows: Arc<Windows>,
    key: Arc<str>,
    len: u64,
    /// Its beginning.
    first: Vec<u8>,
    /// Ranges that were read last.
    recent: Mutex<VecDeque<Range<u64>>>,
}

impl ReadFile {
    /// Opens an object: its length, and its beginning.
    pub(crate) fn open(store: &Arc<Store>, windows: &Arc<Windows>, key: &str) -> io::Result<Self> {
        let Part { bytes, total } = store.get(key, 0..FIRST)?;
        Ok(Self {
            store: Arc::clone(store),
            windows: Arc::clone(windows),
            key: key.into(),
            len: total,
            first: bytes,
            recent: Mutex::default(),
        })
    }

    /// All of it, on this machine: what is read in small pieces that lie anywhere.
    pub(crate) fn fetched(self) -> io::Result<Open> {
        let mut held = Held::Memory(self.first);
        let mut at = held.len();
        while at < self.len {
            let part = self.store.get(&self.key, at..(at + WINDOW).min(self.len))?;
            held.write_at(at, &part.bytes)?;
            at += part.bytes.len() as u64;
        }
        Ok(match held {
            Held::Memory(bytes) => Arc::new(MemoryFile::of(bytes)),
            Held::Temporary(file, _) => Arc::new(file),
        })
    }

    /// Remembers a read; tells whether it goes on from one before.
    fn note(&self, range: &Range<u64>) -> bool {
        let mut recent = lock(&self.recent);
        let goes_on =
            recent.iter().any(|before| before.start <= range.start && range.start <= before.end + NEAR);
        recent.push_front(range.clone());
        recent.truncate(REMEMBERED);
        goes_on
    }

    fn read_alone(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let part = self.store.get(&self.key, offset..offset + buf.len() as u64)?;
        // It was replaced by a shorter one.
        fill(&part.bytes, 0, buf)
    }

    /// Reads what lies in one window.
    fn read_window(&self, number: u64, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (window, is_ours) = self.windows.get(&self.key, number);
        if !is_ours {
            return match window.wait(offset, buf) {
                Some(()) => Ok(()),
                None => self.read_alone(offset, buf),
            };
        }
        let start = window.start();
        match self.store.get(&self.key, start..(start + WINDOW).min(self.len)) {
            Ok(part) => {
                let filled = fill(&part.bytes, offset - start, buf);
                window.end(Some(part.bytes));
                filled
            }
            Err(error) => {
                self.windows.forget(&window);
                window.end(None);
                Err(error.into())
            }
        }
    }
}

impl Storage for ReadFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if buf.is_empty() || fill(&self.first, offset, buf).is_ok() {
            return Ok(());
        }
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len);
        let range = offset..end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let goes_on = self.note(&range);
        let mut numbers = range.start / WINDOW..=(range.end - 1) / WINDOW;
        let is_long = range.end - range.start >= WINDOW;
        if is_long || !goes_on && !numbers.clone().all(|number| self.windows.has(&self.key, number)) {
            return self.read_alone(offset, buf);
        }
        numbers.try_for_each(|number| {
            let (from, to) = (range.start.max(number * WINDOW), range.end.min((number + 1) * WINDOW));
            let part = &mut buf[(from - range.start) as usize..(to - range.start) as usize];
            self.read_window(number, from, part)
        })
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

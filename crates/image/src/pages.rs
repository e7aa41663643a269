//! Metadata in memory: pages of a file, as many as are allowed.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lunway_vhdx::Storage;

/// Bytes of a page: half a thousand table entries, and one read of a disk.
pub(crate) const PAGE: u64 = 4096;
/// Pages kept for one file: 16 MiB, the table of a qcow2 disk of 128 GiB in clusters of 64 KiB.
const PAGES_MAX: usize = 4096;

/// Reads small pieces of a file through a bounded cache. The oldest page goes first: tables are walked in order.
#[derive(Default)]
pub(crate) struct Pages {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    pages: HashMap<u64, Arc<[u8]>>,
    order: VecDeque<u64>,
}

impl Pages {
    /// A big-endian number of 32 bits.
    pub(crate) fn be32(&self, storage: &impl Storage, offset: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.read(storage, offset, &mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// A big-endian number of 64 bits.
    pub(crate) fn be64(&self, storage: &impl Storage, offset: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(storage, offset, &mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Fills `buf` from `offset`; what lies beyond the file's end is an error.
    pub(crate) fn read(&self, storage: &impl Storage, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.checked_add(done as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
            let page = self.page(storage, at / PAGE)?;
            let within = (at % PAGE) as usize;
            let there = page.get(within..).filter(|there| !there.is_empty());
            let there = there.ok_or(io::ErrorKind::UnexpectedEof)?;
            let now = there.len().min(buf.len() - done);
            buf[done..done + now].copy_from_slice(&there[..now]);
            done += now;
        }
        Ok(())
    }

    fn page(&self, storage: &impl Storage, number: u64) -> io::Result<Arc<[u8]>> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = kept().pages.get(&number) {
            return Ok(Arc::clone(page));
        }
        let offset = number * PAGE;
        let len = storage.len()?.saturating_sub(offset).min(PAGE);
        let mut page = vec![0; len as usize];
        storage.read_at(offset, &mut page)?;
        let page: Arc<[u8]> = page.into();
        let mut kept = kept();
        if kept.pages.insert(number, Arc::clone(&page)).is_none() {
            kept.order.push_back(number);
        }
        if kept.order.len() > PAGES_MAX
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.pages.remove(&oldest);
        }
        Ok(page)
    }
}

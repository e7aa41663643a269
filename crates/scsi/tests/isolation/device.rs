//! A RAM disk whose last block can be held: reads of it wait until the test lets them go.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use lunway_block::{BlockDevice, BlockError, Buf, Io};
use lunway_memory::RamDisk;

pub(crate) const SECTOR: usize = 512;
pub(crate) const BLOCKS: u64 = 512;
/// The block that is held.
pub(crate) const HELD: u64 = BLOCKS - 1;
/// What every byte is at first, but for the block [`COPIED`].
pub(crate) const FILL: u8 = 0x11;
/// The block that copies begin at: it differs from the others.
pub(crate) const COPIED: u64 = 4;

pub(crate) struct Disk {
    inner: RamDisk,
    held: Arc<AtomicBool>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let inner = RamDisk::new(BLOCKS * SECTOR as u64, SECTOR as u32).expect("a small disk");
        let mut filled = Buf::copy_of(&vec![FILL; BLOCKS as usize * SECTOR]);
        filled[COPIED as usize * SECTOR..][..SECTOR].fill(!FILL);
        let written = inner.write(0, filled.freeze(), lunway_block::Durability::Volatile);
        assert!(matches!(written, Io::Ready(Ok(()))));
        Self { inner, held: Arc::default() }
    }

    pub(crate) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }

    /// Every byte, and where there is space behind it.
    pub(crate) fn content(&self) -> Vec<u8> {
        let all = BLOCKS * SECTOR as u64;
        let Io::Ready(Ok(bytes)) = self.inner.read(0, Buf::for_overwrite(all as usize)) else {
            panic!("a RAM disk answers inline")
        };
        let Io::Ready(Ok(extents)) = self.inner.extents(0, all, usize::MAX) else {
            panic!("a RAM disk answers inline")
        };
        [&bytes[..], format!("{extents:?}").as_bytes()].concat()
    }
}

impl lunway_block::Layer for Disk {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if offset != HELD * SECTOR as u64 || !self.held.load(Ordering::SeqCst) {
            return self.inner.read(offset, buf);
        }
        let held = self.held.clone();
        // The test polls; nobody has to be woken.
        Io::pending(async move {
            poll_fn(|_| if held.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(()) }).await;
            Ok(buf)
        })
    }
}

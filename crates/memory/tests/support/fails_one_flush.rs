//! A RAM disk that fails one flush, the first.

use std::sync::atomic::{AtomicBool, Ordering};

use lunway_block::{BlockDevice, BlockError, Io};
use lunway_memory::RamDisk;

pub(crate) struct FailsOneFlush {
    ram: RamDisk,
    fails: AtomicBool,
}

impl FailsOneFlush {
    pub(crate) fn new(ram: RamDisk) -> Self {
        Self { ram, fails: AtomicBool::new(true) }
    }
}

impl lunway_block::Layer for FailsOneFlush {
    fn inner(&self) -> &dyn BlockDevice {
        &self.ram
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        match self.fails.swap(false, Ordering::Relaxed) {
            true => Io::err(BlockError::Medium { offset: 0 }),
            false => Io::ok(()),
        }
    }
}

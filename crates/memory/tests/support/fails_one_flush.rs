//! A RAM disk that fails one flush, the first.

use std::sync::atomic::{AtomicBool, Ordering};

use lunway_block::{BlockDevice, BlockError, Io, pass_on};
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

impl BlockDevice for FailsOneFlush {
    pass_on!(ram: geometry, read, write, unmap, write_zeroes);

    fn flush(&self) -> Io<Result<(), BlockError>> {
        match self.fails.swap(false, Ordering::Relaxed) {
            true => Io::err(BlockError::Medium { offset: 0 }),
            false => Io::ok(()),
        }
    }
}

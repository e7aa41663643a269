//! RAM disks that look like other devices.

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, Geometry, Io, ResizeCallback, SharedBuf, Zeroing,
};
use lunway_memory::RamDisk;

/// What a device says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    pub(crate) sector: u32,
    pub(crate) thin: bool,
    pub(crate) volatile: bool,
}

pub(crate) struct Shaped {
    disk: RamDisk,
    looks: Looks,
}

impl Shaped {
    pub(crate) fn new(size: u64, looks: Looks) -> Self {
        Self { disk: RamDisk::new(size, looks.sector).expect("a small disk"), looks }
    }
}

fn shaped(geometry: Geometry, looks: Looks) -> Geometry {
    Geometry {
        thin: looks.thin,
        unmap_granularity: if looks.thin { geometry.unmap_granularity } else { 0 },
        unmap_zeroes: looks.thin,
        volatile_cache: looks.volatile,
        ..geometry
    }
}

impl BlockDevice for Shaped {
    fn geometry(&self) -> Geometry {
        shaped(self.disk.geometry(), self.looks)
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.disk.write(offset, data, durability)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.disk.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.disk.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.disk.write_zeroes(offset, len, zeroing)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Result<Vec<Extent>, BlockError>> {
        self.disk.extents(offset, len)
    }

    fn resize(&self, size: u64) -> Io<Result<(), BlockError>> {
        self.disk.resize(size)
    }

    fn on_resize(&self, callback: ResizeCallback) {
        let looks = self.looks;
        self.disk.on_resize(Box::new(move |geometry| callback(shaped(geometry, looks))));
    }
}

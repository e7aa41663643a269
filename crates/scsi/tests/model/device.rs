//! RAM disks that look like other devices.

use lunway_block::{BlockDevice, Geometry, ResizeCallback, Unmap};
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
        unmap: if looks.thin { geometry.unmap } else { Unmap::Never },
        volatile_cache: looks.volatile,
        ..geometry
    }
}

impl lunway_block::Layer for Shaped {
    fn inner(&self) -> &dyn BlockDevice {
        &self.disk
    }

    fn geometry(&self) -> Geometry {
        shaped(self.disk.geometry(), self.looks)
    }

    fn on_resize(&self, callback: ResizeCallback) {
        let looks = self.looks;
        self.disk.on_resize(Box::new(move |geometry| callback(shaped(geometry, looks))));
    }
}

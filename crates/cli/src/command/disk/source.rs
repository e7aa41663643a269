//! A device as the source of bytes that the readers of file systems ask for.

use anyhow::Context;
use lunway_block::{BlockDevice, Buf, Extent};
use lunway_filesystem::{ByteSource, Unreadable};

use crate::device::BlockingRuntime;
use crate::failure::Failure;

/// The most that is read at once: what every device takes in one operation.
const MOST: u64 = 1 << 20;

/// A device that is waited for.
pub(in crate::command) struct DeviceSource<'a> {
    device: &'a dyn BlockDevice,
    runtime: &'a BlockingRuntime,
}

impl<'a> DeviceSource<'a> {
    pub(in crate::command) fn new(device: &'a dyn BlockDevice, runtime: &'a BlockingRuntime) -> Self {
        Self { device, runtime }
    }

    /// Bytes of a logical sector.
    pub(in crate::command) fn sector(&self) -> u32 {
        self.device.geometry().logical_sector
    }

    /// Returns the extents that the device reports for its own ranges.
    pub(in crate::command) fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, Failure> {
        let extents = self.runtime.wait(self.device.extents(offset, len, usize::MAX));
        Ok(extents.context("cannot query the allocated ranges of the device")?)
    }

    /// Bytes of whole sectors.
    fn sectors(&self, offset: u64, len: u64) -> Result<Buf, Unreadable> {
        let buf = Buf::for_overwrite(len as usize);
        let read = self.runtime.wait(self.device.read(offset, buf));
        read.map_err(|error| Unreadable { what: format!("{len} bytes at {offset} cannot be read: {error}") })
    }
}

impl ByteSource for DeviceSource<'_> {
    fn len(&self) -> u64 {
        self.device.geometry().size
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), Unreadable> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(Unreadable::outside(offset, buf.len() as u64, self.len()));
        }
        let sector = u64::from(self.sector());
        while !buf.is_empty() {
            let start = offset / sector * sector;
            let inside = (offset - start) as usize;
            let wanted = (inside as u64 + buf.len() as u64).min(MOST);
            let bytes = self.sectors(start, wanted.next_multiple_of(sector))?;
            let len = (wanted as usize) - inside;
            let (now, later) = buf.split_at_mut(len);
            now.copy_from_slice(&bytes[inside..inside + len]);
            (buf, offset) = (later, offset + len as u64);
        }
        Ok(())
    }
}

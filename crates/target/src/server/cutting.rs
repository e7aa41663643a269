//! Data that a smaller size would cut off a served disk.

use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, Buf};
use lunway_filesystem::cut::{Cut, cut};
use lunway_filesystem::{ByteSource, Unreadable};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

/// Time limit for inspecting the disk, the same as for a change of its size: what was not seen by then may be there.
const LOOK_TIME: Duration = Duration::from_secs(30);
/// The most that is read at once, bytes: what every device takes in one operation.
const READ_MAX: u64 = 1 << 20;

/// Returns the data that a device would lose if it ended at `size`, bytes. Reads it as an initiator does, on a thread
/// that may wait: commands of initiators go on beside that, and a device that does not answer is [`Cut::Unread`].
pub(super) async fn cut_off(device: Arc<dyn BlockDevice>, size: u64, runtime: &Handle) -> Option<Cut> {
    let source = Served { device, runtime: runtime.clone(), by: Instant::now() + LOOK_TIME };
    let sector = source.device.geometry().logical_sector;
    let looked = runtime.spawn_blocking(move || cut(&source, sector, size)).await;
    looked.unwrap_or_else(|error| Some(Cut::Unread(Unreadable { what: error.to_string() })))
}

struct Served {
    device: Arc<dyn BlockDevice>,
    runtime: Handle,
    by: Instant,
}

impl Served {
    /// Bytes of whole sectors.
    fn sectors(&self, offset: u64, len: u64) -> Result<Buf, Unreadable> {
        let unreadable = |why: String| Unreadable { what: format!("{len} bytes at {offset}: {why}") };
        let read =
            async { timeout_at(self.by, self.device.read(offset, Buf::for_overwrite(len as usize))).await };
        match self.runtime.block_on(read) {
            Ok(read) => read.map_err(|error| unreadable(error.to_string())),
            Err(_) => Err(unreadable(format!("not within {} s", LOOK_TIME.as_secs()))),
        }
    }
}

impl ByteSource for Served {
    fn len(&self) -> u64 {
        self.device.geometry().size
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), Unreadable> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(Unreadable::outside(offset, buf.len() as u64, self.len()));
        }
        let sector = u64::from(self.device.geometry().logical_sector);
        while !buf.is_empty() {
            let start = offset / sector * sector;
            let inside = (offset - start) as usize;
            let wanted = (inside as u64 + buf.len() as u64).min(READ_MAX);
            let bytes = self.sectors(start, wanted.next_multiple_of(sector))?;
            let len = wanted as usize - inside;
            let (now, later) = buf.split_at_mut(len);
            now.copy_from_slice(&bytes[inside..inside + len]);
            (buf, offset) = (later, offset + len as u64);
        }
        Ok(())
    }
}

//! Export: the device that a client finds under a name.

use std::sync::Arc;

use lunway_block::BlockDevice;

use crate::wire::transmission;

/// Most bytes of one read or write: what the specification lets a client assume that a server takes.
pub(crate) const TRANSFER_MAX: u32 = 32 << 20;
/// Preferred block size where the device gives none: the page of a client that maps it.
const PREFERRED_MIN: u32 = 4096;

/// A device and the name under which clients ask for it.
///
/// The only export of a server: a client that asks for the empty name, which is the protocol's word for "the default",
/// gets it too.
#[derive(Clone)]
pub struct Export {
    /// The name, at most 4096 bytes; may be empty.
    pub name: String,
    /// For people, in `nbdinfo` and the like; may be empty.
    pub description: String,
    /// The device. It is told to flush when clients do, and once more when the server ends.
    pub device: Arc<dyn BlockDevice>,
}

impl Export {
    /// Returns `true` if a client that says `name` means this export.
    pub(crate) fn is(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The size as it is now, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.device.geometry().size
    }

    /// Returns the transmission flags. All of our devices show the effect of a flush on one connection to all others,
    /// so that clients may use several.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let geometry = self.device.geometry();
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::CAN_MULTI_CONN;
        flags |= match geometry.read_only {
            true => transmission::READ_ONLY,
            false => transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES | transmission::SEND_RESIZE,
        };
        if geometry.rotational {
            flags |= transmission::ROTATIONAL;
        }
        if structured {
            flags |= transmission::SEND_DF;
        }
        flags
    }

    /// Smallest, preferred and largest block, bytes.
    pub(crate) fn block_sizes(&self) -> [u32; 3] {
        let geometry = self.device.geometry();
        let preferred = geometry.optimal_transfer.max(geometry.physical_sector).max(PREFERRED_MIN);
        // A power of two between the other two, as the specification asks.
        let preferred = preferred.min(TRANSFER_MAX);
        let preferred = 1 << preferred.ilog2();
        [geometry.logical_sector, preferred.max(geometry.logical_sector), TRANSFER_MAX]
    }
}

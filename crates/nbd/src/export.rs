//! Export: the device that a client finds under a name.

use std::sync::Arc;

use lunway_block::{BlockDevice, BlockError, Io};

use crate::wire::transmission;

/// Most bytes of one read or write: what the specification lets a client assume that a server takes.
pub(crate) const TRANSFER_MAX: u32 = 32 << 20;
/// Longest name of a bitmap, bytes: QEMU's.
const BITMAP_NAME_MAX: usize = 1023;
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
    /// What is known of changes; `None`: nothing.
    pub bitmaps: Option<Arc<dyn DirtyBitmaps>>,
}

/// Ranges of an export that have changed since some instant, of several instants: the metadata contexts
/// `qemu:dirty-bitmap:NAME`, as QEMU shows its own.
pub trait DirtyBitmaps: Send + Sync {
    /// The names of the bitmaps, in order; at most [`BITMAPS_MAX`] are shown.
    fn names(&self) -> Vec<String>;

    /// What is dirty from `offset` on: lengths, and whether so many bytes are, in order and without gaps, and not
    /// beyond `len` in all. At most `count` of them, and at least one.
    ///
    /// # Errors
    ///
    /// Why it is not known: the client has to take everything as dirty.
    fn dirty(
        &self,
        name: &str,
        offset: u64,
        len: u64,
        count: usize,
    ) -> Io<Result<Vec<(u64, bool)>, BlockError>>;
}

/// Bitmaps of one export: as many epochs as change tracking keeps, and what the answers about them take is bounded.
pub const BITMAPS_MAX: usize = 64;

impl Export {
    /// Returns `true` if a client that says `name` means this export.
    pub(crate) fn is(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The names of its bitmaps. Those that no context can be named after are left out.
    pub(crate) fn bitmaps(&self) -> Vec<String> {
        let mut names = self.bitmaps.iter().flat_map(|bitmaps| bitmaps.names()).collect::<Vec<_>>();
        names.retain(|name| !name.is_empty() && name.len() <= BITMAP_NAME_MAX);
        names.truncate(BITMAPS_MAX);
        names
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

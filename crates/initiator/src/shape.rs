//! Shape of a logical unit: what every operation needs to know of it, and the commands that it takes.

use lunway_block::{ExtentKind, Geometry};
use lunway_iscsi::Cdb;
use lunway_scsi::Provisioning;
use lunway_scsi::block_error::Request;
use lunway_scsi::cdb::{self, TransferFlags};

/// Facts of a unit that every operation needs, small enough to be copied by each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) geometry: Geometry,
    /// Longest transfer of one command, bytes; whole sectors, not 0.
    pub(crate) transfer_max: u32,
    /// WCE of the caching mode page, where the unit has that page.
    pub(crate) write_cache: Option<bool>,
    /// READ (16) and its kin, else the commands of ten bytes.
    pub(crate) long: bool,
    /// WRITE takes the FUA bit.
    pub(crate) fua: bool,
    /// SYNCHRONIZE CACHE is known.
    pub(crate) flush: bool,
    /// SYNCHRONIZE CACHE (16) is known.
    pub(crate) flush_long: bool,
    /// WRITE SAME (16) is known, as far as is known.
    pub(crate) write_same: bool,
    /// WRITE SAME (16) with UNMAP frees space, and zeroes what it does not free.
    pub(crate) write_same_unmaps: bool,
    pub(crate) write_same_blocks_max: u32,
    pub(crate) unmap_blocks_max: u32,
    /// GET LBA STATUS may tell something.
    pub(crate) lba_status: bool,
    /// LBPRZ: blocks without space read as zeroes.
    pub(crate) unallocated_is_zero: bool,
    /// TST: a task set for each session, so that an ORDERED command waits for none of another's.
    pub(crate) separate_task_sets: bool,
}

impl Shape {
    pub(crate) fn request(&self, offset: u64, len: u64) -> Request {
        Request { offset, len, size: self.geometry.size, sector: self.geometry.logical_sector }
    }

    /// Logical block and number of blocks; sectors are powers of two.
    fn blocks(&self, offset: u64, len: usize) -> (u64, u32) {
        let shift = self.geometry.logical_sector.trailing_zeros();
        (offset >> shift, (len >> shift) as u32)
    }

    pub(crate) fn read_cdb(&self, offset: u64, len: usize) -> Cdb {
        let (lba, blocks) = self.blocks(offset, len);
        match self.long {
            true => Cdb::new(&cdb::read16(lba, blocks, TransferFlags::NONE)),
            false => Cdb::new(&cdb::read10(lba as u32, blocks as u16, TransferFlags::NONE)),
        }
    }

    pub(crate) fn write_cdb(&self, offset: u64, len: usize, fua: bool) -> Cdb {
        let (lba, blocks) = self.blocks(offset, len);
        let flags = TransferFlags { fua, ..TransferFlags::NONE };
        match self.long {
            true => Cdb::new(&cdb::write16(lba, blocks, flags)),
            false => Cdb::new(&cdb::write10(lba as u32, blocks as u16, flags)),
        }
    }

    pub(crate) fn flush_cdb(&self) -> Cdb {
        match self.flush_long {
            true => Cdb::new(&cdb::synchronize_cache16(0, 0)),
            false => Cdb::new(&cdb::synchronize_cache10(0, 0)),
        }
    }

    /// After SYNCHRONIZE CACHE was not known: the older one, then none. Who has no such command has no cache that could
    /// be flushed.
    pub(crate) fn simplify_flush(&mut self) {
        self.flush = self.flush_long;
        self.flush_long = false;
    }

    pub(crate) fn extent_kind(&self, provisioning: Provisioning) -> ExtentKind {
        match provisioning {
            // What callers may take for zeroes depends on `unmap_zeroes`, which promises more than LBPRZ.
            Provisioning::DEALLOCATED if self.geometry.unmap.zeroes() || !self.unallocated_is_zero => {
                ExtentKind::Unallocated
            }
            Provisioning::DEALLOCATED => ExtentKind::Zero,
            Provisioning::ANCHORED if self.unallocated_is_zero => ExtentKind::Zero,
            _ => ExtentKind::Data,
        }
    }
}

/// An open device's knowledge of its disk: enough to open another path to that before it can be used. See
/// [`SessionOptions::known`](crate::SessionOptions::known).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownDisk(pub(crate) Shape);

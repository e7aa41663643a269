//! CDBs as the initiator builds them (SPC-4, SBC-4).

use std::ops::Deref;

use crate::data::field::put;
use crate::data::mode::PageControl;
use crate::data::opcode::{self as op, service_action as sa};

/// Bytes of the longest CDB built here.
const LEN_MAX: usize = 16;

/// A command descriptor block: on the stack, dereferences to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl Deref for Cdb {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Cdb {
    fn new(opcode: u8, len: usize) -> Self {
        let mut bytes = [0; LEN_MAX];
        bytes[0] = opcode;
        Self { bytes, len }
    }

    fn with<const N: usize>(mut self, at: usize, field: [u8; N]) -> Self {
        put(&mut self.bytes, at, field);
        self
    }
}

/// DPO and FUA of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferFlags {
    /// DPO: the data will not be needed again soon.
    pub dpo: bool,
    /// FUA: from, or onto, stable storage.
    pub fua: bool,
}

impl TransferFlags {
    /// No flags.
    pub const NONE: Self = Self { dpo: false, fua: false };
    /// FUA alone.
    pub const FUA: Self = Self { dpo: false, fua: true };

    fn bits(self) -> u8 {
        u8::from(self.dpo) << 4 | u8::from(self.fua) << 3
    }
}

fn transfer_10(opcode: u8, lba: u32, blocks: u16, flags: u8) -> Cdb {
    Cdb::new(opcode, 10).with(1, [flags]).with(2, lba.to_be_bytes()).with(7, blocks.to_be_bytes())
}

fn transfer_16(opcode: u8, lba: u64, blocks: u32, flags: u8) -> Cdb {
    Cdb::new(opcode, 16).with(1, [flags]).with(2, lba.to_be_bytes()).with(10, blocks.to_be_bytes())
}

/// TEST UNIT READY.
pub fn test_unit_ready() -> Cdb {
    Cdb::new(op::TEST_UNIT_READY, 6)
}

/// REQUEST SENSE, in fixed format.
pub fn request_sense(allocation: u8) -> Cdb {
    Cdb::new(op::REQUEST_SENSE, 6).with(4, [allocation])
}

/// INQUIRY: standard data, or with `evpd` the VPD page `page`.
pub fn inquiry(evpd: bool, page: u8, allocation: u16) -> Cdb {
    Cdb::new(op::INQUIRY, 6).with(1, [u8::from(evpd), page]).with(3, allocation.to_be_bytes())
}

/// REPORT LUNS: the addressable ones.
pub fn report_luns(allocation: u32) -> Cdb {
    Cdb::new(op::REPORT_LUNS, 12).with(6, allocation.to_be_bytes())
}

/// REPORT TARGET PORT GROUPS: which ports are in which asymmetric access state.
pub fn report_target_port_groups(allocation: u32) -> Cdb {
    Cdb::new(op::MAINTENANCE_IN, 12)
        .with(1, [sa::REPORT_TARGET_PORT_GROUPS])
        .with(6, allocation.to_be_bytes())
}

/// READ CAPACITY (10); the answer has 8 bytes.
pub fn read_capacity10() -> Cdb {
    Cdb::new(op::READ_CAPACITY_10, 10)
}

/// READ CAPACITY (16); the answer has 32 bytes.
pub fn read_capacity16(allocation: u32) -> Cdb {
    Cdb::new(op::SERVICE_ACTION_IN_16, 16).with(1, [sa::READ_CAPACITY_16]).with(10, allocation.to_be_bytes())
}

/// MODE SENSE (6), with block descriptors.
pub fn mode_sense6(control: PageControl, page: u8, subpage: u8, allocation: u8) -> Cdb {
    Cdb::new(op::MODE_SENSE_6, 6).with(2, [page_byte(control, page), subpage, allocation])
}

/// MODE SENSE (10), with block descriptors, long ones accepted.
pub fn mode_sense10(control: PageControl, page: u8, subpage: u8, allocation: u16) -> Cdb {
    const LLBAA: u8 = 0x10;
    Cdb::new(op::MODE_SENSE_10, 10)
        .with(1, [LLBAA, page_byte(control, page), subpage])
        .with(7, allocation.to_be_bytes())
}

fn page_byte(control: PageControl, page: u8) -> u8 {
    let bits = match control {
        PageControl::Current => 0b00,
        PageControl::Changeable => 0b01,
        PageControl::Default => 0b10,
        PageControl::Saved => 0b11,
    };
    bits << 6 | (page & 0x3F)
}

/// READ (10).
pub fn read10(lba: u32, blocks: u16, flags: TransferFlags) -> Cdb {
    transfer_10(op::READ_10, lba, blocks, flags.bits())
}

/// WRITE (10).
pub fn write10(lba: u32, blocks: u16, flags: TransferFlags) -> Cdb {
    transfer_10(op::WRITE_10, lba, blocks, flags.bits())
}

/// READ (16).
pub fn read16(lba: u64, blocks: u32, flags: TransferFlags) -> Cdb {
    transfer_16(op::READ_16, lba, blocks, flags.bits())
}

/// WRITE (16).
pub fn write16(lba: u64, blocks: u32, flags: TransferFlags) -> Cdb {
    transfer_16(op::WRITE_16, lba, blocks, flags.bits())
}

/// READ (10) or WRITE (10) that does what a READ (16) or WRITE (16) does; `None` for other commands, and where ten
/// bytes have no room for the place or the length.
pub fn short_transfer(long: &[u8]) -> Option<Cdb> {
    const DPO_FUA: u8 = 0x18;
    let opcode = match *long.first()? {
        op::READ_16 => op::READ_10,
        op::WRITE_16 => op::WRITE_10,
        _ => return None,
    };
    let (lba, blocks) = (long.get(2..10)?.first_chunk()?, long.get(10..14)?.first_chunk()?);
    let lba = u32::try_from(u64::from_be_bytes(*lba)).ok()?;
    let blocks = u16::try_from(u32::from_be_bytes(*blocks)).ok()?;
    Some(transfer_10(opcode, lba, blocks, long[1] & DPO_FUA))
}

/// VERIFY (16); with `compare`, against data-out.
pub fn verify16(lba: u64, blocks: u32, compare: bool) -> Cdb {
    transfer_16(op::VERIFY_16, lba, blocks, u8::from(compare) << 1)
}

/// SYNCHRONIZE CACHE (10).
pub fn synchronize_cache10(lba: u32, blocks: u16) -> Cdb {
    transfer_10(op::SYNCHRONIZE_CACHE_10, lba, blocks, 0)
}

/// SYNCHRONIZE CACHE (16); 0 blocks: to the end.
pub fn synchronize_cache16(lba: u64, blocks: u32) -> Cdb {
    transfer_16(op::SYNCHRONIZE_CACHE_16, lba, blocks, 0)
}

/// COMPARE AND WRITE; data-out is the data to compare, then the data to write.
pub fn compare_and_write(lba: u64, blocks: u8, flags: TransferFlags) -> Cdb {
    Cdb::new(op::COMPARE_AND_WRITE, 16).with(1, [flags.bits()]).with(2, lba.to_be_bytes()).with(13, [blocks])
}

/// Flags of WRITE SAME (16): the source of its data, and permission to unmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteSameFlags {
    /// UNMAP: the blocks may be unmapped instead.
    pub unmap: bool,
    /// NDOB: no data-out; zeroes are written.
    pub zeroes: bool,
}

/// WRITE SAME (16).
pub fn write_same16(lba: u64, blocks: u32, flags: WriteSameFlags) -> Cdb {
    transfer_16(op::WRITE_SAME_16, lba, blocks, u8::from(flags.unmap) << 3 | u8::from(flags.zeroes))
}

/// GET LBA STATUS (16).
pub fn get_lba_status16(lba: u64, allocation: u32) -> Cdb {
    Cdb::new(op::SERVICE_ACTION_IN_16, 16)
        .with(1, [sa::GET_LBA_STATUS])
        .with(2, lba.to_be_bytes())
        .with(10, allocation.to_be_bytes())
}

/// UNMAP; the parameter list is [`unmap_list`]'s.
pub fn unmap(list_len: u16) -> Cdb {
    Cdb::new(op::UNMAP, 10).with(7, list_len.to_be_bytes())
}

/// Most ranges that one UNMAP parameter list can hold: its lengths are 16 bits.
pub const UNMAP_RANGES_MAX: usize = (u16::MAX as usize - 8) / 16;

/// The parameter list of UNMAP for ranges of first block and count, of which it takes as many as
/// [`UNMAP_RANGES_MAX`].
pub fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let ranges = &ranges[..ranges.len().min(UNMAP_RANGES_MAX)];
    let descriptors = 16 * ranges.len();
    let mut bytes = vec![0; 8 + descriptors];
    put(&mut bytes, 0, (descriptors as u16 + 6).to_be_bytes());
    put(&mut bytes, 2, (descriptors as u16).to_be_bytes());
    for (slot, (lba, blocks)) in bytes[8..].chunks_exact_mut(16).zip(ranges) {
        put(slot, 0, lba.to_be_bytes());
        put(slot, 8, blocks.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations;

    #[test]
    fn what_is_built_is_what_the_table_knows() {
        let flags = TransferFlags { dpo: true, fua: true };
        let all = [
            test_unit_ready(),
            request_sense(18),
            inquiry(true, 0x83, 255),
            report_luns(4096),
            read_capacity10(),
            read_capacity16(32),
            mode_sense6(PageControl::Default, 0x3F, 0xFF, 255),
            mode_sense10(PageControl::Current, 0x08, 0, 255),
            read10(u32::MAX, u16::MAX, flags),
            write10(1, 1, flags),
            read16(u64::MAX, u32::MAX, flags),
            write16(1, 1, flags),
            verify16(1, 1, true),
            synchronize_cache10(0, 0),
            synchronize_cache16(0, 0),
            compare_and_write(1, 255, flags),
            write_same16(1, 1, WriteSameFlags { unmap: true, zeroes: true }),
            get_lba_status16(1, 24),
            unmap(24),
        ];
        for cdb in all {
            let Ok(row) = operations::find(cdb[0], cdb[1]) else { panic!("{cdb:?} is not in the table") };
            assert_eq!(row.usage.len(), cdb.len(), "{}", row.name);
            let known = cdb.iter().zip(row.usage).skip(1).all(|(byte, usage)| byte & !usage == 0);
            assert!(known, "{}", row.name);
        }
    }

    #[test]
    fn a_read_is_encoded_as_the_standard_says() {
        let cdb = read16(0x0102_0304_0506_0708, 0x0A0B_0C0D, TransferFlags::FUA);
        assert_eq!(cdb[..], [0x88, 0x08, 1, 2, 3, 4, 5, 6, 7, 8, 0x0A, 0x0B, 0x0C, 0x0D, 0, 0]);
    }

    #[test]
    fn a_long_transfer_is_shortened_where_ten_bytes_have_room_for_it() {
        let flags = TransferFlags { dpo: true, fua: true };
        let (lba, blocks) = (u32::MAX, u16::MAX);
        let long = read16(lba.into(), blocks.into(), flags);
        assert_eq!(short_transfer(&long), Some(read10(lba, blocks, flags)));
        let long = write16(7, 8, TransferFlags::FUA);
        assert_eq!(short_transfer(&long), Some(write10(7, 8, TransferFlags::FUA)));
        assert_eq!(short_transfer(&read16(1 << 32, 1, flags)), None);
        assert_eq!(short_transfer(&write16(0, 1 << 16, flags)), None);
        assert_eq!(short_transfer(&synchronize_cache16(0, 0)), None);
        assert_eq!(short_transfer(&[op::READ_16; 9]), None);
    }

    #[test]
    fn an_unmap_list_is_bounded() {
        let list = unmap_list(&vec![(1, 2); UNMAP_RANGES_MAX + 10]);
        assert_eq!(list.len(), 8 + 16 * UNMAP_RANGES_MAX);
        assert!(list.len() <= usize::from(u16::MAX));
    }
}

//! What a command asks of its unit's device, for limits on I/Os and bytes.

use crate::command::PaddedCdb;
use crate::command::operation::{Operation, Passage};
use crate::data::lun::{Lun, LunAddress};
use crate::data::opcode as op;
use crate::device_server::blocks_of;
use crate::handlers::extended_copy;
use crate::limits::WRITE_SAME_BLOCKS_MAX;
use crate::model::nexus::{ItlNexus, Nexus};
use crate::operations::TABLE;

/// UNMAP in byte 1 of WRITE SAME (SBC-4 §5.50).
const WRITE_SAME_UNMAP: u8 = 0x08;

/// What a command asks of the device, as far as its CDB and its parameter list say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumWork {
    /// It reads or changes the medium: so many bytes of it. What only gives back space moves nothing: 0.
    Io {
        /// Bytes that are read, compared or written: what the initiator asks for, or 0 where that is certain to be
        /// refused.
        bytes: u64,
    },
    /// SYNCHRONIZE CACHE: what was written before it is made durable.
    Flush,
    /// It moves no data of the medium, or is not known.
    None,
}

impl Nexus {
    /// Returns what a command would ask of the device of its unit. Without `data_out`, which may not have come yet,
    /// what only a parameter list says is not known.
    pub fn medium_work(&self, lun: [u8; 8], cdb: &[u8], data_out: Option<&[u8]>) -> MediumWork {
        let LunAddress::Unit(number) = Lun(lun).address() else { return MediumWork::None };
        let (Some(itl), Ok(operation)) = (self.find(number), TABLE.row_of(cdb)) else {
            return MediumWork::None;
        };
        let sector = u64::from(itl.unit().geometry().logical_sector);
        match work_of(operation, cdb, data_out, sector) {
            MediumWork::Io { .. } if is_refused(operation, cdb, &itl) => MediumWork::Io { bytes: 0 },
            work => work,
        }
    }
}

/// Returns `true` if it is certain that a command is refused before it moves anything: it leaves the medium, is longer
/// than VPD page B0h allows, or would write where its initiator may only read.
fn is_refused(operation: &Operation, cdb: &[u8], itl: &ItlNexus) -> bool {
    if operation.writes() && !itl.may_change() {
        return true;
    }
    if !matches!(operation.passage(), Passage::Shared | Passage::Exclusive) {
        return false;
    }
    let (unit, blocks) = (itl.unit(), blocks_of(operation, &PaddedCdb::padded(cdb)));
    let geometry = unit.geometry();
    let most = match operation.opcode {
        op::WRITE_SAME_10 | op::WRITE_SAME_16 => WRITE_SAME_BLOCKS_MAX,
        _ => unit.max_transfer_blocks(geometry.logical_sector).into(),
    };
    u64::from(blocks.count) > most || blocks.on(&geometry).is_err()
}

fn work_of(operation: &Operation, cdb: &[u8], data_out: Option<&[u8]>, sector: u64) -> MediumWork {
    match operation.opcode {
        op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16 => MediumWork::Flush,
        op::UNMAP => MediumWork::Io { bytes: 0 },
        op::WRITE_SAME_10 | op::WRITE_SAME_16 if cdb[1] & WRITE_SAME_UNMAP != 0 => {
            MediumWork::Io { bytes: 0 }
        }
        op::THIRD_PARTY_COPY_OUT if operation.reaches_other_units() => match data_out {
            Some(list) => MediumWork::Io { bytes: extended_copy::bytes_named(list, sector) },
            None => MediumWork::None,
        },
        _ if matches!(operation.passage(), Passage::Shared | Passage::Exclusive) => {
            let count = blocks_of(operation, &PaddedCdb::padded(cdb)).count;
            MediumWork::Io { bytes: u64::from(count) * sector }
        }
        _ => MediumWork::None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{LogicalUnit, LogicalUnitOptions, LunView, ScsiTarget};

    const SECTOR: u64 = 512;

    fn work(cdb: &[u8]) -> MediumWork {
        let mut cdb = cdb.to_vec();
        cdb.resize(16, 0);
        work_of(TABLE.row_of(&cdb).unwrap(), &cdb, None, SECTOR)
    }

    #[test]
    fn what_moves_data_of_the_medium_is_an_io_of_so_many_bytes() {
        let ten = |opcode| [opcode, 0, 0, 0, 0, 9, 0, 0, 8];
        for opcode in [op::READ_10, op::WRITE_10, op::VERIFY_10, op::WRITE_AND_VERIFY_10, op::WRITE_SAME_10] {
            assert_eq!(work(&ten(opcode)), MediumWork::Io { bytes: 8 * SECTOR }, "{opcode:#x}");
        }
        assert_eq!(work(&[op::READ_6, 0, 0, 0, 0]), MediumWork::Io { bytes: 256 * SECTOR });
        let mut sixteen = [0; 16];
        (sixteen[0], sixteen[10], sixteen[13]) = (op::READ_16, 0x01, 1);
        assert_eq!(work(&sixteen), MediumWork::Io { bytes: 0x0100_0001 * SECTOR });
        // One byte of blocks: COMPARE AND WRITE.
        let mut compare = [0; 16];
        (compare[0], compare[13]) = (op::COMPARE_AND_WRITE, 2);
        assert_eq!(work(&compare), MediumWork::Io { bytes: 2 * SECTOR });
        assert_eq!(work(&[op::UNMAP]), MediumWork::Io { bytes: 0 });
        let unmap = [op::WRITE_SAME_10, WRITE_SAME_UNMAP, 0, 0, 0, 9, 0, 0, 8];
        assert_eq!(work(&unmap), MediumWork::Io { bytes: 0 });
    }

    #[test]
    fn a_flush_and_questions_are_none() {
        assert_eq!(work(&[op::SYNCHRONIZE_CACHE_10]), MediumWork::Flush);
        assert_eq!(work(&[op::SYNCHRONIZE_CACHE_16]), MediumWork::Flush);
        for opcode in [
            op::TEST_UNIT_READY,
            op::INQUIRY,
            op::READ_CAPACITY_10,
            op::PERSISTENT_RESERVE_OUT,
            op::MODE_SENSE_6,
            op::REPORT_LUNS,
        ] {
            assert_eq!(work(&[opcode]), MediumWork::None, "{opcode:#x}");
        }
    }

    /// A tenant that may only read let others of a limited unit wait for half a minute, by writes that were refused.
    #[test]
    fn what_is_certain_to_be_refused_moves_nothing() {
        let target = ScsiTarget::new("iqn.2026-11.com.example:disk");
        let disk = Arc::new(lunway_memory::RamDisk::new(64 << 20, 512).unwrap());
        let options = LogicalUnitOptions { identity: "disk/0".into(), ..LogicalUnitOptions::default() };
        target.attach(0, LogicalUnit::new(disk, options).unwrap()).unwrap();
        let nexus = |view| target.open_nexus("iqn.2026-11.com.example:host,i,0x1", 1, view);
        let (writer, reader) = (nexus(LunView::ALL), nexus(LunView { read_only: true, ..LunView::ALL }));
        let bytes = |nexus: &Nexus, opcode, lba: u32, count: u32| {
            let mut cdb = [0; 16];
            cdb[0] = opcode;
            cdb[6..10].copy_from_slice(&lba.to_be_bytes());
            cdb[10..14].copy_from_slice(&count.to_be_bytes());
            match nexus.medium_work([0; 8], &cdb, None) {
                MediumWork::Io { bytes } => bytes / SECTOR,
                other => panic!("{other:?}"),
            }
        };
        let (read, write, same, verify) = (op::READ_16, op::WRITE_16, op::WRITE_SAME_16, op::VERIFY_16);
        for (opcode, most) in [(read, 16_384), (write, 16_384), (verify, 16_384), (same, 65_535)] {
            assert_eq!(bytes(&writer, opcode, 8, most), u64::from(most), "{opcode:#x}");
            assert_eq!(bytes(&writer, opcode, 8, most + 1), 0, "{opcode:#x}: longer than the unit takes");
            assert_eq!(bytes(&writer, opcode, 131_072 - 8, 9), 0, "{opcode:#x}: behind the end");
            let may = opcode == read || opcode == verify;
            assert_eq!(bytes(&reader, opcode, 8, 8), if may { 8 } else { 0 }, "{opcode:#x}");
        }
    }

    #[test]
    fn a_copy_is_as_long_as_its_segments_say_together() {
        // 64 blocks, and 1000 bytes; then a descriptor that is not known ends the list.
        let mut list = vec![0; 16];
        let mut blocks = [0; 28];
        (blocks[0], blocks[3], blocks[11]) = (2, 24, 64);
        let mut bytes = [0; 32];
        (bytes[0], bytes[3], bytes[10], bytes[11]) = (10, 28, 0x03, 0xe8);
        let segments = [&blocks[..], &bytes[..], &[0xff; 4]].concat();
        list[8..12].copy_from_slice(&u32::try_from(segments.len()).unwrap().to_be_bytes());
        list.extend_from_slice(&segments);
        assert_eq!(extended_copy::bytes_named(&list, SECTOR), 64 * SECTOR + 1000);
        assert_eq!(extended_copy::bytes_named(&list[..40], SECTOR), 0, "its first descriptor is cut");
        assert_eq!(extended_copy::bytes_named(&[], SECTOR), 0);
    }
}

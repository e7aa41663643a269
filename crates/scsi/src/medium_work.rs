//! What a command asks of its unit's device, for limits on I/Os and bytes.

use crate::command::PaddedCdb;
use crate::command::operation::{Operation, Passage};
use crate::data::lun::{Lun, LunAddress};
use crate::data::opcode as op;
use crate::device_server::blocks_of;
use crate::handlers::extended_copy;
use crate::model::nexus::Nexus;
use crate::operations::TABLE;

/// UNMAP in byte 1 of WRITE SAME (SBC-4 §5.50).
const WRITE_SAME_UNMAP: u8 = 0x08;

/// What a command asks of the device, as far as its CDB and its parameter list say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumWork {
    /// It reads or changes the medium: so many bytes of it. What only gives back space moves nothing: 0.
    Io {
        /// Bytes that are read, compared or written; no more than the initiator asks for, which may be more than the
        /// unit lets it have.
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
        work_of(operation, cdb, data_out, sector)
    }
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
    use super::*;

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

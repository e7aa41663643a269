//! Failures of the device: the sense data of each command that can meet one.

#[path = "../../../memory/tests/support/fails_one_flush.rs"]
mod fails_one_flush;

use std::sync::Arc;

use fails_one_flush::FailsOneFlush;
use lunway_block::decorate::Fault;
use lunway_block::spec::FaultSpec;
use lunway_block::{BlockDevice, Geometry};
use lunway_memory::RamDisk;
use lunway_scsi::cdb::{self, TransferFlags, WriteSameFlags};
use lunway_scsi::{AdditionalSense, LogicalUnitOptions, LunView, SenseKey};

use crate::support::{Initiator, SECTOR, SECTORS, serve};

const NONE: TransferFlags = TransferFlags::NONE;
const FUA: u8 = 0x08;

/// A RAM disk that says that it has a cache to flush.
struct Cached {
    disk: RamDisk,
}

impl lunway_block::Layer for Cached {
    fn inner(&self) -> &dyn BlockDevice {
        &self.disk
    }

    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.disk.geometry() }
    }
}

/// A host of a disk with this fault.
fn host(fault: &str) -> Initiator {
    let disk = RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).expect("a small disk");
    let fault: FaultSpec = fault.parse().expect("a fault");
    let options = LogicalUnitOptions { atomic_writes: Some(true), ..LogicalUnitOptions::default() };
    let (target, _unit) = serve(Arc::new(Fault::new(Arc::new(Cached { disk }), fault)), options);
    let host = Initiator(target.open_nexus("host,i,0x1", 1, LunView::ALL));
    host.hears(lunway_scsi::UnitAttention::PowerOn);
    host
}

fn fails(host: &Initiator, cdb: &[u8], data: &[u8], code: AdditionalSense, information: Option<u64>) {
    let sense = host.refused(cdb, data);
    let told = (sense.key, sense.code, sense.information);
    assert_eq!(told, (SenseKey::MEDIUM_ERROR, code, information), "{cdb:02x?}");
}

fn with_flags(cdb: cdb::Cdb, flags: u8) -> Vec<u8> {
    let mut cdb = cdb.to_vec();
    cdb[1] |= flags;
    cdb
}

/// Block 10 cannot be written: commands are for blocks 8 to 15.
#[test]
fn what_cannot_be_written_is_a_write_error_at_the_first_block_that_failed() {
    let bad = host("write@5120-5632,unmap@5120-5632");
    let (data, block) = (vec![1; 8 * SECTOR], vec![1; SECTOR]);
    let write_16 = |opcode: u8| {
        let mut cdb = cdb::write16(8, 8, NONE).to_vec();
        cdb[0] = opcode;
        cdb
    };
    let both = [vec![0; 8 * SECTOR], data.clone()].concat();
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0];
    unmap.extend(8u64.to_be_bytes());
    unmap.extend([0, 0, 0, 8, 0, 0, 0, 0]);
    let code = AdditionalSense::WRITE_ERROR;
    fails(&bad, &cdb::write16(8, 8, NONE), &data, code, Some(10));
    fails(&bad, &[0x2A, FUA, 0, 0, 0, 8, 0, 0, 8, 0], &data, code, Some(10));
    fails(&bad, &write_16(0x8B), &data, code, Some(10)); // ORWRITE
    fails(&bad, &write_16(0x8E), &data, code, Some(10)); // WRITE AND VERIFY
    fails(&bad, &write_16(0x9C), &data, code, Some(10)); // WRITE ATOMIC
    fails(&bad, &cdb::compare_and_write(8, 8, NONE), &both, code, Some(10));
    fails(&bad, &cdb::write_same16(8, 8, WriteSameFlags::default()), &block, code, Some(10));
    fails(&bad, &cdb::unmap(24), &unmap, code, Some(10));
    bad.good(&cdb::write16(11, 5, NONE), &data[..5 * SECTOR]);
    // D_SENSE changes the format, not the meaning: block 10 in 64 bits.
    let bytes = bad.refused(&cdb::write16(8, 8, NONE), &data).to_bytes(true);
    assert_eq!(
        (bytes[1], &bytes[2..4], &bytes[8..20]),
        (3, &[0x0C, 0][..], &[0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 10][..])
    );
}

#[test]
fn what_cannot_be_read_is_an_unrecovered_read_error_whatever_wanted_to_read_it() {
    let bad = host("read@5120-5632");
    let data = vec![0; 16 * SECTOR];
    let code = AdditionalSense::UNRECOVERED_READ_ERROR;
    fails(&bad, &cdb::read16(8, 8, NONE), &[], code, Some(10));
    fails(&bad, &cdb::verify16(8, 8, false), &[], code, Some(10));
    fails(&bad, &cdb::compare_and_write(8, 8, NONE), &data, code, Some(10));
    let mut cdb = cdb::write16(8, 8, NONE).to_vec();
    for opcode in [0x8B, 0x8E] {
        cdb[0] = opcode;
        fails(&bad, &cdb, &data[..8 * SECTOR], code, Some(10));
    }
}

#[test]
fn what_cannot_be_flushed_is_a_write_error_of_no_block() {
    let bad = host("flush");
    let code = AdditionalSense::WRITE_ERROR;
    fails(&bad, &[0x35, 0, 0, 0, 0, 8, 0, 0, 8, 0], &[], code, None);
    fails(&bad, &[0x1B, 0, 0, 0, 0, 0], &[], code, None); // START STOP UNIT that stops
    fails(&bad, &with_flags(cdb::read16(8, 8, NONE), FUA), &[], code, None);
    let bytes = bad.refused(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).to_bytes(false);
    assert_eq!(bytes[..8], [0x70, 0, 3, 0, 0, 0, 0, 10], "INFORMATION is not valid");
}

#[test]
fn a_store_that_is_full_is_told_so_by_writes_and_flushes() {
    for (fault, cdb) in [
        ("write,error=nospace", cdb::write16(8, 1, NONE).to_vec()),
        ("flush,error=nospace", with_flags(cdb::read16(8, 1, NONE), FUA)),
    ] {
        let sense = host(fault).refused(&cdb, &[1; SECTOR]);
        assert_eq!(
            (sense.key, sense.code),
            (SenseKey::DATA_PROTECT, AdditionalSense::SPACE_ALLOCATION_FAILED)
        );
        assert_eq!(sense.information, None);
    }
}

/// The offset in data-out is what INFORMATION of a miscompare tells (SBC-4 5.3), whatever block that is.
#[test]
fn a_miscompare_tells_the_offset_in_the_data_and_no_block() {
    let host = host("unmap");
    let mut data = vec![0; 4 * SECTOR];
    data[SECTOR + 3] = 1;
    for cdb in [cdb::compare_and_write(8, 2, NONE).to_vec(), {
        let mut verify = cdb::verify16(8, 4, false).to_vec();
        verify[1] |= 0x02;
        verify
    }] {
        let sense = host.refused(&cdb, &data);
        let told = (sense.key, sense.code, sense.information);
        let miscompare = AdditionalSense::MISCOMPARE_DURING_VERIFY;
        assert_eq!(told, (SenseKey::MISCOMPARE, miscompare, Some(SECTOR as u64 + 3)));
    }
}

#[test]
fn a_flush_that_failed_for_one_initiator_fails_once_for_every_other() {
    let device = FailsOneFlush::new(RamDisk::new(1 << 20, 512).unwrap());
    let (target, _) = serve(Arc::new(device), LogicalUnitOptions::default());
    let [one, other] = ["one", "other"].map(|name| Initiator(target.open_nexus(name, 1, LunView::ALL)));
    [&one, &other].into_iter().for_each(|nexus| nexus.hears(lunway_scsi::UnitAttention::PowerOn));
    let flush = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(one.refused(&flush, &[]).code, AdditionalSense::WRITE_ERROR);
    one.good(&flush, &[]);
    assert_eq!(other.refused(&flush, &[]).code, AdditionalSense::WRITE_ERROR);
    other.good(&flush, &[]);
}

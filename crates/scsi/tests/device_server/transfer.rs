//! READ, WRITE and everything else that moves data.

use std::sync::{Arc, Mutex};

use crate::support::{Initiator, Rig, SECTOR, SECTORS, serve};
use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, Geometry, Io, Layer, Permit, SharedBuf, Zeroing,
};
use lunway_memory::RamDisk;
use lunway_scsi::cdb::{self, TransferFlags, WriteSameFlags};
use lunway_scsi::{
    AdditionalSense, LbaStatus, LogicalUnitOptions, LunView, Provisioning, SenseKey, Status, UnitAttention,
};

const NONE: TransferFlags = TransferFlags::NONE;

#[test]
fn what_every_write_puts_every_read_gets() {
    let rig = Rig::new();
    let host = rig.login("host");
    let write_6 = [0x0A, 0, 0, 8, 1, 0];
    let write_12 = [0xAA, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0];
    let reads: [&[u8]; 4] = [
        &[0x08, 0, 0, 8, 1, 0],
        &cdb::read10(8, 1, NONE),
        &[0xA8, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0],
        &cdb::read16(8, 1, TransferFlags::FUA),
    ];
    let writes: [&[u8]; 4] =
        [&write_6, &cdb::write10(8, 1, NONE), &write_12, &cdb::write16(8, 1, TransferFlags::FUA)];
    for (fill, write) in (1..).zip(writes) {
        let data = [fill; SECTOR];
        assert_eq!(host.good(write, &data).wanted_out, SECTOR as u64);
        for read in reads {
            let response = host.good(read, &[]);
            assert_eq!(response.data_in[..], data);
            assert_eq!(response.wanted_in, SECTOR as u64);
        }
    }
}

#[test]
fn the_edges_of_the_medium_are_sharp() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::read16(SECTORS - 1, 1, NONE), &[]);
    host.good(&cdb::read16(SECTORS, 0, NONE), &[]);
    for (lba, blocks) in
        [(SECTORS, 1), (SECTORS - 1, 2), (SECTORS + 1, 0), (u64::MAX, 1), (u64::MAX, u32::MAX), (1 << 63, 0)]
    {
        for cdb in [
            cdb::read16(lba, blocks, NONE),
            cdb::write16(lba, blocks, NONE),
            cdb::verify16(lba, blocks, false),
            cdb::synchronize_cache16(lba, blocks),
        ] {
            assert_eq!(host.refused(&cdb, &[0; SECTOR]).code, AdditionalSense::LBA_OUT_OF_RANGE, "{cdb:?}");
        }
    }
}

#[test]
fn a_transfer_beyond_the_limit_is_refused_before_memory_is_taken() {
    let rig = Rig::with(LogicalUnitOptions { max_transfer: 8 * SECTOR as u32, ..Default::default() });
    let host = rig.login("host");
    host.good(&cdb::read16(0, 8, NONE), &[]);
    let sense = host.refused(&cdb::read16(0, 9, NONE), &[]);
    assert_eq!(sense.code, AdditionalSense::INVALID_FIELD_IN_CDB);
}

#[test]
fn data_out_of_another_length_writes_the_whole_blocks_that_came() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::write16(0, 3, NONE), &[b'a'; 3 * SECTOR]);
    // One block and a half for two; three for one; none.
    assert_eq!(host.good(&cdb::write16(0, 2, NONE), &[b'b'; SECTOR + SECTOR / 2]).wanted_out, 1024);
    assert_eq!(host.good(&cdb::write16(2, 1, NONE), &[b'c'; 3 * SECTOR]).wanted_out, 512);
    assert_eq!(host.good(&cdb::write16(0, 1, NONE), &[]).wanted_out, 512);
    let medium = host.good(&cdb::read16(0, 4, NONE), &[]).data_in;
    assert_eq!([medium[0], medium[SECTOR], medium[2 * SECTOR], medium[3 * SECTOR]], [b'b', b'a', b'c', 0]);
}

#[test]
fn verify_compares_and_says_where() {
    let rig = Rig::new();
    let host = rig.login("host");
    let mut data = vec![7; 2 * SECTOR];
    host.good(&cdb::write16(0, 2, NONE), &data);
    host.good(&cdb::verify16(0, 2, true), &data);
    data[SECTOR + 3] = 8;
    let sense = host.refused(&cdb::verify16(0, 2, true), &data);
    assert_eq!((sense.key, sense.information), (SenseKey::MISCOMPARE, Some(SECTOR as u64 + 3)));
    host.good(&cdb::verify16(0, 2, false), &data);
    // BYTCHK 11b: one block against all; 10b is reserved.
    let mut one_block = cdb::verify16(0, 2, false).to_vec();
    one_block[1] = 0x06;
    host.good(&one_block, &[7; SECTOR]);
    one_block[1] = 0x04;
    assert_eq!(host.refused(&one_block, &[7; SECTOR]).code, AdditionalSense::INVALID_FIELD_IN_CDB);
}

#[test]
fn compare_and_write_of_many_blocks_writes_all_or_nothing() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::write16(0, 3, NONE), &[1; 3 * SECTOR]);
    let mut data = [[1; 3 * SECTOR], [2; 3 * SECTOR]].concat();
    data[2 * SECTOR + 9] = 0;
    let response = host.send(&cdb::compare_and_write(0, 3, NONE), &data);
    assert_eq!(response.wanted_out, 6 * SECTOR as u64);
    assert_eq!(response.sense.unwrap().information, Some(2 * SECTOR as u64 + 9));
    host.good(&cdb::verify16(0, 3, true), &[1; 3 * SECTOR]);
    data[2 * SECTOR + 9] = 1;
    host.good(&cdb::compare_and_write(0, 3, NONE), &data);
    host.good(&cdb::verify16(0, 3, true), &[2; 3 * SECTOR]);
    let sense = host.refused(&cdb::compare_and_write(0, 2, NONE), &data);
    assert_eq!(sense.code, AdditionalSense::INVALID_FIELD_IN_CDB);
}

#[test]
fn orwrite_ors() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::write16(5, 1, NONE), &[0b0101; SECTOR]);
    let mut orwrite = cdb::write16(5, 1, NONE).to_vec();
    orwrite[0] = 0x8B;
    host.good(&orwrite, &[0b0110; SECTOR]);
    assert_eq!(host.good(&cdb::read16(5, 1, NONE), &[]).data_in[..], [0b0111; SECTOR]);
}

#[test]
fn write_same_repeats_a_block_and_unmaps_zeroes_only() {
    let rig = Rig::new();
    let host = rig.login("host");
    let flags = WriteSameFlags { unmap: true, zeroes: false };
    host.good(&cdb::write_same16(0, SECTORS as u32, flags), &[9; SECTOR]);
    for lba in [0, SECTORS - 1] {
        assert_eq!(host.good(&cdb::read16(lba, 1, NONE), &[]).data_in[..], [9; SECTOR]);
    }
    let flags = WriteSameFlags { unmap: true, zeroes: true };
    assert_eq!(host.good(&cdb::write_same16(0, SECTORS as u32, flags), &[]).wanted_out, 0);
    let status = host.good(&cdb::get_lba_status16(0, 24), &[]);
    let status = LbaStatus::parse(&status.data_in).unwrap();
    assert_eq!(status.descriptors[0].provisioning, Provisioning::DEALLOCATED);
    assert_eq!(u64::from(status.descriptors[0].blocks), SECTORS);
    for (lba, blocks, data) in [(0, 0, SECTOR), (0, 1, 2 * SECTOR), (0, 1, SECTOR / 2), (SECTORS, 1, SECTOR)]
    {
        host.refused(&cdb::write_same16(lba, blocks, WriteSameFlags::default()), &vec![0; data]);
    }
}

/// Keeps how many extents it was asked for.
struct Asked {
    disk: RamDisk,
    counts: Mutex<Vec<usize>>,
}

impl Layer for Asked {
    fn inner(&self) -> &dyn BlockDevice {
        &self.disk
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        self.counts.lock().expect("no test has panicked").push(count);
        self.disk.extents(offset, len, count)
    }
}

/// All extents of a fragmented file took milliseconds of its device for each command, and an answer of 24 bytes.
#[test]
fn get_lba_status_asks_for_no_more_than_its_answer_has_room_for() {
    let disk = RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).expect("a small disk");
    let asked = Arc::new(Asked { disk, counts: Mutex::default() });
    let (target, _unit) = serve(asked.clone(), LogicalUnitOptions::default());
    let host = Initiator(target.open_nexus("host,i,0x1", 1, LunView::ALL));
    host.hears(UnitAttention::PowerOn);
    for descriptors in [1, 3] {
        host.good(&cdb::get_lba_status16(0, 8 + 16 * descriptors), &[]);
        // The last one may grow until there is another.
        let counts = std::mem::take(&mut *asked.counts.lock().expect("no test has panicked"));
        assert!(
            !counts.is_empty() && counts.iter().all(|count| *count <= descriptors as usize + 1),
            "{counts:?}"
        );
    }
}

#[test]
fn unmap_checks_every_range_before_it_does_any() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::write16(0, 256, NONE), &[3; 256 * SECTOR]);
    let unmap = |ranges: &[(u64, u32)]| {
        let list = cdb::unmap_list(ranges);
        host.send(&cdb::unmap(list.len() as u16), &list)
    };
    assert_eq!(unmap(&[(0, 128), (SECTORS, 1)]).status, Status::CHECK_CONDITION);
    host.good(&cdb::verify16(0, 1, true), &[3; SECTOR]);
    assert_eq!(unmap(&[(0, 128), (SECTORS, 0)]).status, Status::GOOD);
    host.good(&cdb::verify16(0, 1, true), &[0; SECTOR]);
    host.good(&cdb::verify16(128, 1, true), &[3; SECTOR]);
    assert_eq!(unmap(&[(0, 0); 257]).status, Status::CHECK_CONDITION);
    let list = cdb::unmap_list(&[(0, 1)]);
    let sense = host.refused(&cdb::unmap(list.len() as u16), &list[..10]);
    assert_eq!(sense.code, AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn a_resize_is_told_to_every_nexus() {
    let rig = Rig::new();
    let (one, other) = (rig.login("one"), rig.login("other"));
    assert!(matches!(rig.disk.resize(2 * SECTORS * SECTOR as u64, Permit::default()), Io::Ready(Ok(()))));
    one.hears(UnitAttention::CapacityChanged);
    other.hears(UnitAttention::CapacityChanged);
    one.good(&cdb::read16(2 * SECTORS - 1, 1, NONE), &[]);
}

/// A device that answers later, and with errors where told.
struct Slow(Option<BlockError>);

impl Slow {
    fn later<T: Send + 'static>(&self, value: T) -> Io<Result<T, BlockError>> {
        let answer = self.0.clone().map_or(Ok(value), Err);
        Io::pending(async move {
            tokio::task::yield_now().await;
            answer
        })
    }
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        Geometry::plain(1 << 20)
    }

    fn read(&self, _: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        buf.fill(0);
        self.later(buf)
    }

    fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        self.later(())
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.later(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        self.later(())
    }
}

async fn over_slow(error: Option<BlockError>, cdb: cdb::Cdb, data: usize) -> lunway_scsi::Response {
    let (target, _) = serve(std::sync::Arc::new(Slow(error)), LogicalUnitOptions::default());
    let nexus = target.open_nexus("host", 1, lunway_scsi::LunView::ALL);
    let tur = cdb::test_unit_ready();
    nexus.execute([0; 8], &tur, SharedBuf::default()).await;
    nexus.execute([0; 8], &cdb, Buf::zeroed(data).freeze()).await
}

#[tokio::test]
async fn a_device_that_answers_later_is_waited_for() {
    for (cdb, data) in [
        (cdb::read16(0, 1, NONE), 0),
        (cdb::write16(0, 1, NONE), SECTOR),
        (cdb::compare_and_write(0, 1, NONE), 2 * SECTOR),
        (cdb::verify16(0, 9, false), 0),
        (cdb::write_same16(0, 5, WriteSameFlags::default()), SECTOR),
    ] {
        assert_eq!(over_slow(None, cdb, data).await.status, Status::GOOD, "{cdb:?}");
    }
}

#[tokio::test]
async fn device_errors_become_the_conditions_of_scsi() {
    let medium = BlockError::Medium { offset: 3 * 512 };
    let sense = over_slow(Some(medium), cdb::read16(0, 8, NONE), 0).await.sense.unwrap();
    assert_eq!((sense.key, sense.information), (SenseKey::MEDIUM_ERROR, Some(3)));
    let full = over_slow(Some(BlockError::NoSpace), cdb::write16(0, 1, NONE), SECTOR).await.sense.unwrap();
    assert_eq!(full.code, AdditionalSense::SPACE_ALLOCATION_FAILED);
    let busy = over_slow(Some(BlockError::Busy), cdb::compare_and_write(0, 1, NONE), 2 * SECTOR).await;
    assert_eq!(busy.status, Status::BUSY);
}

//! Atomic commands exclude others from their blocks, and from no more.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf};
use lunway_memory::RamDisk;
use lunway_scsi::cdb::{self, TransferFlags};
use lunway_scsi::{
    Cdb, LogicalUnit, LogicalUnitOptions, LunView, MediumEffect, Nexus, Response, Status,
    TaskManagementFunction, TaskOptions,
};

use crate::support::{SECTOR, SECTORS, serve};

const NONE: TransferFlags = TransferFlags::NONE;

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Flush,
    Read(u64),
    Write(u64),
}

/// A RAM disk that does not answer what it is told to hold.
struct Holding {
    disk: RamDisk,
    held: Arc<Mutex<Vec<Asked>>>,
}

impl Holding {
    fn new() -> Self {
        let disk = RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).expect("a small disk");
        Self { disk, held: Arc::default() }
    }

    fn hold(&self, asked: Asked) {
        self.held.lock().expect("not poisoned").push(asked);
    }

    fn let_go(&self) {
        self.held.lock().expect("not poisoned").clear();
    }

    fn after<T: Send + 'static>(&self, asked: Asked, answer: Io<T>) -> Io<T> {
        let held = self.held.clone();
        if !held.lock().expect("not poisoned").contains(&asked) {
            return answer;
        }
        Io::pending(async move {
            // The test polls; nobody has to be woken.
            poll_fn(|_| {
                if held.lock().expect("not poisoned").contains(&asked) {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            })
            .await;
            match answer {
                Io::Ready(answer) => answer,
                Io::Pending(answer) => answer.await,
            }
        })
    }
}

impl lunway_block::Layer for Holding {
    fn inner(&self) -> &dyn BlockDevice {
        &self.disk
    }

    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.disk.geometry() }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.after(Asked::Read(offset / SECTOR as u64), self.disk.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.after(Asked::Write(offset / SECTOR as u64), self.disk.write(offset, data, durability))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.after(Asked::Flush, self.disk.flush())
    }
}

/// A command that was sent.
struct Sent(Result<Response, Pin<Box<dyn Future<Output = Response> + Send>>>);

impl Sent {
    fn new(nexus: &Nexus, cdb: &[u8], data: &[u8]) -> Self {
        let mut sent = match nexus.execute([0; 8], cdb, Buf::copy_of(data).freeze()) {
            Io::Ready(response) => Self(Ok(response)),
            Io::Pending(pending) => Self(Err(pending)),
        };
        sent.look();
        sent
    }

    /// A command that does not end, and what it may change meanwhile.
    fn begin(nexus: &Nexus, cdb: &[u8], data: &[u8]) -> (Self, Option<MediumEffect>) {
        Self::begin_as(nexus, cdb, data, TaskOptions::default())
    }

    fn begin_as(
        nexus: &Nexus,
        cdb: &[u8],
        data: &[u8],
        options: TaskOptions,
    ) -> (Self, Option<MediumEffect>) {
        let begun = nexus.begin_task([0; 8], cdb, Buf::copy_of(data).freeze(), options);
        let Io::Pending(pending) = begun.answer else { panic!("the device holds it") };
        (Self(Err(pending)), begun.effect)
    }

    fn look(&mut self) -> Option<Status> {
        if let Err(pending) = &mut self.0
            && let Poll::Ready(response) = pending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.0 = Ok(response);
        }
        self.0.as_ref().ok().map(|response| response.status)
    }

    fn is_good(&mut self) -> bool {
        match self.look() {
            None => false,
            Some(status) => {
                assert_eq!(status, Status::GOOD);
                true
            }
        }
    }
}

struct Rig {
    disk: Arc<Holding>,
    nexuses: [Arc<Nexus>; 2],
}

fn rig() -> Rig {
    let disk = Arc::new(Holding::new());
    let options = LogicalUnitOptions { atomic_writes: Some(true), ..LogicalUnitOptions::default() };
    let (target, _unit) = serve(disk.clone(), options);
    let nexuses = ["one,i,0x1", "other,i,0x1"].map(|name| {
        let nexus = target.open_nexus(name, 1, LunView::ALL);
        let _ = Sent::new(&nexus, &cdb::test_unit_ready(), &[]);
        nexus
    });
    Rig { disk, nexuses }
}

/// Changes a block of zeroes into one of zeroes.
fn compare_and_write(nexus: &Nexus, lba: u64) -> Sent {
    Sent::new(nexus, &cdb::compare_and_write(lba, 1, NONE), &[0; 2 * SECTOR])
}

fn read(nexus: &Nexus, lba: u64, count: u32) -> Sent {
    Sent::new(nexus, &cdb::read16(lba, count, NONE), &[])
}

const FLUSH: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_read_does_not_wait_for_a_compare_and_write_elsewhere_nor_that_for_a_flush() {
    let Rig { disk, nexuses: [one, other] } = rig();
    disk.hold(Asked::Flush);
    let mut flush = Sent::new(&one, &FLUSH, &[]);
    assert!(!flush.is_good());
    // The heartbeat of a cluster file system.
    assert!(compare_and_write(&other, 8).is_good(), "a flush touches no blocks");
    assert!(read(&other, 100, 8).is_good() && read(&other, 8, 1).is_good());
    disk.let_go();
    assert!(flush.is_good());
}

#[test]
fn a_compare_and_write_that_hangs_holds_up_its_blocks_only() {
    let Rig { disk, nexuses: [one, other] } = rig();
    disk.hold(Asked::Read(8));
    let mut hanging = compare_and_write(&one, 8);
    assert!(!hanging.is_good());
    assert!(read(&other, 0, 8).is_good() && read(&other, 9, 8).is_good());
    assert!(compare_and_write(&other, 9).is_good());
    assert!(Sent::new(&other, &cdb::write16(0, 8, NONE), &[1; 8 * SECTOR]).is_good());
    assert!(Sent::new(&other, &FLUSH, &[]).is_good());
    let mut waiting = [
        read(&other, 4, 5),
        Sent::new(&other, &cdb::write16(8, 1, NONE), &[2; SECTOR]),
        compare_and_write(&other, 8),
    ];
    assert!(waiting.iter_mut().all(|sent| sent.look().is_none()));
    assert!(read(&one, 20, 8).is_good(), "those that wait are in nobody's way");
    disk.let_go();
    assert!(hanging.is_good());
    assert!(waiting[0].is_good() && waiting[1].is_good());
    assert_eq!(waiting[2].look(), Some(Status::CHECK_CONDITION), "it came after the write");
}

#[test]
fn a_compare_and_write_waits_for_what_is_on_its_blocks_and_for_nothing_else() {
    let Rig { disk, nexuses: [one, other] } = rig();
    disk.hold(Asked::Read(8));
    disk.hold(Asked::Read(100));
    let (mut here, mut elsewhere) = (read(&one, 8, 4), read(&one, 100, 4));
    let mut waiting = compare_and_write(&other, 11);
    assert!(waiting.look().is_none());
    assert!(compare_and_write(&other, 12).is_good() && compare_and_write(&other, 7).is_good());
    let mut behind = read(&one, 11, 1);
    assert!(behind.look().is_none(), "in the order in which they came");
    disk.held.lock().expect("not poisoned").retain(|asked| *asked == Asked::Read(100));
    assert!(here.is_good() && waiting.is_good() && behind.is_good());
    assert!(elsewhere.look().is_none());
    disk.let_go();
    assert!(elsewhere.is_good());
}

#[test]
fn unmapped_ranges_are_excluded_one_by_one() {
    let Rig { disk, nexuses: [one, other] } = rig();
    disk.hold(Asked::Read(1000));
    let mut hanging = compare_and_write(&one, 1000);
    assert!(hanging.look().is_none());
    let unmap = |ranges: &[(u64, u32)]| {
        let mut list = vec![0; 8];
        for (lba, count) in ranges {
            list.extend(lba.to_be_bytes());
            list.extend(count.to_be_bytes());
            list.extend([0; 4]);
        }
        let len = list.len() as u16;
        list[0..2].copy_from_slice(&(len - 2).to_be_bytes());
        list[2..4].copy_from_slice(&(len - 8).to_be_bytes());
        Sent::new(&other, &cdb::unmap(len), &list)
    };
    assert!(unmap(&[(0, 8), (2000, 8)]).is_good(), "around it");
    let mut waiting = unmap(&[(0, 8), (1000, 8)]);
    assert!(waiting.look().is_none());
    disk.let_go();
    assert!(hanging.is_good() && waiting.is_good());
}

#[test]
fn an_ordered_command_of_a_host_that_may_only_read_holds_up_that_host_alone() {
    let Rig { disk, nexuses: [one, other] } = rig();
    other.set_view(LunView { read_only: true, ..LunView::ALL });
    let _ = Sent::new(&other, &cdb::test_unit_ready(), &[]);
    disk.hold(Asked::Read(100));
    let mut older = read(&one, 100, 1);
    let mut ordered: Vec<Sent> = [cdb::read16(0, 1, NONE).to_vec(), cdb::test_unit_ready().to_vec()]
        .iter()
        .map(|cdb| match other.execute_ordered([0; 8], cdb, SharedBuf::default()) {
            Io::Pending(pending) => Sent(Err(pending)),
            Io::Ready(response) => panic!("an older command is not done: {response:?}"),
        })
        .collect();
    let mut own = read(&other, 0, 1);
    assert!(own.look().is_none() && older.look().is_none());
    assert!(read(&one, 0, 1).is_good() && compare_and_write(&one, 8).is_good());
    disk.let_go();
    assert!(older.is_good() && ordered.iter_mut().all(Sent::is_good) && own.is_good());
}

#[test]
fn preempt_and_abort_waits_for_older_commands_and_holds_up_no_younger_ones() {
    let Rig { disk, nexuses: [one, other] } = rig();
    let reserve_out = |nexus: &Nexus, action: u8, key: u64, argument: u64| {
        let mut list = [key.to_be_bytes(), argument.to_be_bytes()].concat();
        list.resize(24, 0);
        Sent::new(nexus, &[0x5F, action, 0x05, 0, 0, 0, 0, 0, 24, 0], &list)
    };
    for (nexus, key) in [(&one, 1), (&other, 2)] {
        assert!(reserve_out(nexus, 0, 0, key).is_good());
    }
    disk.hold(Asked::Read(100));
    let mut older = read(&one, 100, 1);
    let mut preempting = reserve_out(&other, 5, 2, 1);
    assert!(older.look().is_none() && preempting.look().is_none());
    assert!(read(&other, 0, 8).is_good() && compare_and_write(&other, 8).is_good());
    disk.let_go();
    assert!(older.is_good() && preempting.is_good());
}

#[test]
fn an_ordered_command_still_waits_for_all_and_all_for_it() {
    let Rig { disk, nexuses: [one, other] } = rig();
    disk.hold(Asked::Read(100));
    let mut elsewhere = read(&one, 100, 1);
    let cdb = cdb::read16(0, 1, NONE);
    let Io::Pending(mut ordered) = other.execute_ordered([0; 8], &cdb, SharedBuf::default()) else {
        panic!("an older command is not done")
    };
    let mut younger = read(&one, 200, 1);
    assert!(younger.look().is_none() && elsewhere.look().is_none());
    disk.let_go();
    assert!(elsewhere.is_good());
    assert!(younger.look().is_none());
    let done = ordered.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(done, Poll::Ready(response) if response.status == Status::GOOD));
    drop(ordered);
    assert!(younger.is_good());
}

/// The status of a command that ends at once.
fn status(nexus: &Nexus, cdb: &[u8], data: &[u8]) -> Option<Status> {
    Sent::new(nexus, cdb, data).look()
}

/// An unmapping of one range, whose place is in its data.
fn unmap_of(lba: u64, count: u32) -> (Cdb, Vec<u8>) {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(lba.to_be_bytes());
    list.extend(count.to_be_bytes());
    list.extend([0; 4]);
    (cdb::unmap(24), list)
}

/// Lost was: an acknowledged write, overwritten by an older one to the same block that a reset had taken from the task
/// set and that the device carried out later.
#[test]
fn blocks_of_a_write_that_was_given_up_are_busy_for_every_host_until_the_device_has_ended_it() {
    let Rig { disk, nexuses } = rig();
    disk.hold(Asked::Write(8));
    let (mut stuck, effect) = Sent::begin(&nexuses[0], &cdb::write16(8, 4, NONE), &[7; 4 * SECTOR]);
    assert!(stuck.look().is_none());
    let given_up = effect.expect("it writes").give_up();
    let (unmap, list) = unmap_of(0, 9);
    let (elsewhere, list_elsewhere) = unmap_of(0, 8);
    let both = &nexuses;
    let busy = |expected: Option<Status>| {
        for nexus in both {
            assert_eq!(status(nexus, &cdb::write16(11, 1, NONE), &[8; SECTOR]), expected);
            assert_eq!(status(nexus, &cdb::read16(0, 100, NONE), &[]), expected);
            assert_eq!(status(nexus, &unmap, &list), expected);
        }
    };
    busy(Some(Status::BUSY));
    for nexus in both {
        assert_eq!(
            status(nexus, &cdb::compare_and_write(8, 1, NONE), &[0; 2 * SECTOR]),
            Some(Status::BUSY),
            "it does not wait in line either"
        );
        assert_eq!(status(nexus, &cdb::write16(12, 1, NONE), &[8; SECTOR]), Some(Status::GOOD));
        assert_eq!(status(nexus, &cdb::read16(0, 8, NONE), &[]), Some(Status::GOOD));
        assert_eq!(status(nexus, &elsewhere, &list_elsewhere), Some(Status::GOOD));
        assert_eq!(status(nexus, &FLUSH, &[]), Some(Status::GOOD));
        assert_eq!(status(nexus, &cdb::test_unit_ready(), &[]), Some(Status::GOOD));
    }
    disk.let_go();
    busy(Some(Status::BUSY));
    assert!(stuck.is_good());
    drop(given_up);
    busy(Some(Status::GOOD));
}

#[test]
fn two_that_were_given_up_on_the_same_blocks_are_both_waited_for() {
    let Rig { disk, nexuses: [one, other] } = rig();
    disk.hold(Asked::Write(8));
    let write = cdb::write16(8, 1, NONE);
    let mut stuck: Vec<_> = [&one, &other].map(|nexus| Sent::begin(nexus, &write, &[7; SECTOR])).into();
    let mut given_up: Vec<_> =
        stuck.iter_mut().map(|(_, effect)| effect.take().expect("it writes").give_up()).collect();
    for _ in 0..2 {
        assert_eq!(status(&one, &write, &[8; SECTOR]), Some(Status::BUSY));
        drop(given_up.pop());
    }
    disk.let_go();
    assert_eq!(status(&one, &write, &[8; SECTOR]), Some(Status::GOOD));
}

#[test]
fn what_changes_no_blocks_leaves_none_unsettled() {
    let Rig { disk, nexuses: [one, _] } = rig();
    disk.hold(Asked::Read(8));
    disk.hold(Asked::Flush);
    assert!(Sent::begin(&one, &cdb::read16(8, 1, NONE), &[]).1.is_none());
    assert!(Sent::begin(&one, &FLUSH, &[]).1.is_none());
}

/// An EXTENDED COPY of four blocks from 0 to each of these places, one segment each, and its parameter list.
fn copy_to(unit: &LogicalUnit, places: &[u64]) -> ([u8; 16], Vec<u8>) {
    let mut list = vec![0; 16];
    (list[1], list[3], list[11]) = (3 << 3, 32, 28 * places.len() as u8);
    let mut descriptor = [0; 32];
    (descriptor[0], descriptor[4], descriptor[5], descriptor[7]) = (0xE4, 1, 3, 16);
    descriptor[8..24].copy_from_slice(&unit.identity().naa());
    list.extend(descriptor);
    for place in places {
        list.extend([0x02, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 4]);
        list.extend([0; 8]);
        list.extend(place.to_be_bytes());
    }
    let mut copy = [0; 16];
    (copy[0], copy[13]) = (0x83, list.len() as u8);
    (copy, list)
}

/// A copy writes where its parameter list says, piece by piece: nothing but the copy itself knows the blocks.
#[test]
fn blocks_that_a_cancelled_copy_writes_are_busy_until_that_write_has_ended() {
    for how in ["LOGICAL UNIT RESET", "ABORT TASK SET", "the transport gives it up"] {
        let disk = Arc::new(Holding::new());
        let (target, unit) = serve(disk.clone(), LogicalUnitOptions::default());
        let nexus = target.open_nexus("one,i,0x1", 1, LunView::ALL);
        let _ = Sent::new(&nexus, &cdb::test_unit_ready(), &[]);
        assert_eq!(status(&nexus, &cdb::write16(0, 4, NONE), &[7; 4 * SECTOR]), Some(Status::GOOD));
        let (copy, list) = copy_to(&unit, &[100]);
        disk.hold(Asked::Write(100));
        let (mut stuck, effect) = Sent::begin(&nexus, &copy, &list);
        assert!(stuck.look().is_none());
        let given_up = match how {
            "LOGICAL UNIT RESET" => {
                nexus.task_management([0; 8], TaskManagementFunction::LogicalUnitReset);
                let _ = Sent::new(&nexus, &cdb::test_unit_ready(), &[]);
                None
            }
            "ABORT TASK SET" => {
                nexus.task_management([0; 8], TaskManagementFunction::AbortTaskSet);
                None
            }
            _ => effect.map(MediumEffect::give_up),
        };
        assert_eq!(status(&nexus, &cdb::write16(103, 1, NONE), &[8; SECTOR]), Some(Status::BUSY), "{how}");
        assert_eq!(status(&nexus, &cdb::write16(0, 4, NONE), &[8; 4 * SECTOR]), Some(Status::GOOD), "{how}");
        disk.let_go();
        assert!(stuck.look().is_some());
        assert_eq!(status(&nexus, &cdb::write16(103, 1, NONE), &[8; SECTOR]), Some(Status::GOOD), "{how}");
        drop(given_up);
    }
}

/// Lost were: the other copies of a host, of which it had aborted one.
#[test]
fn a_copy_that_is_given_up_ends_no_other_of_its_nexus() {
    let disk = Arc::new(Holding::new());
    let (target, unit) = serve(disk.clone(), LogicalUnitOptions::default());
    let nexus = target.open_nexus("one,i,0x1", 1, LunView::ALL);
    let _ = Sent::new(&nexus, &cdb::test_unit_ready(), &[]);
    assert_eq!(status(&nexus, &cdb::write16(0, 4, NONE), &[7; 4 * SECTOR]), Some(Status::GOOD));
    let [one, other] = [[100, 110], [200, 210]].map(|places| copy_to(&unit, &places));
    disk.hold(Asked::Write(100));
    disk.hold(Asked::Write(200));
    let (mut aborted, effect) = Sent::begin(&nexus, &one.0, &one.1);
    let (mut goes_on, _) = Sent::begin(&nexus, &other.0, &other.1);
    assert!(aborted.look().is_none() && goes_on.look().is_none());
    let given_up = effect.map(MediumEffect::give_up);
    assert_eq!(status(&nexus, &cdb::read16(103, 1, NONE), &[]), Some(Status::BUSY), "its own write");
    assert_eq!(status(&nexus, &cdb::read16(203, 1, NONE), &[]), Some(Status::GOOD), "that of the other");
    disk.let_go();
    assert_eq!(aborted.look(), Some(Status::CHECK_CONDITION));
    assert!(goes_on.is_good());
    drop(given_up);
    let written = |lba| data_of(&nexus, lba) == [7; SECTOR];
    assert_eq!([100, 110, 200, 210].map(written), [true, false, true, true]);
}

#[test]
fn an_ordered_copy_that_is_given_up_before_its_turn_copies_nothing() {
    let disk = Arc::new(Holding::new());
    let (target, unit) = serve(disk.clone(), LogicalUnitOptions::default());
    let nexus = target.open_nexus("one,i,0x1", 1, LunView::ALL);
    let _ = Sent::new(&nexus, &cdb::test_unit_ready(), &[]);
    assert_eq!(status(&nexus, &cdb::write16(0, 4, NONE), &[7; 4 * SECTOR]), Some(Status::GOOD));
    disk.hold(Asked::Write(50));
    let mut older = Sent::new(&nexus, &cdb::write16(50, 1, NONE), &[8; SECTOR]);
    let (copy, list) = copy_to(&unit, &[100]);
    let ordered = TaskOptions { ordered: true, ..TaskOptions::default() };
    let (mut waits, effect) = Sent::begin_as(&nexus, &copy, &list, ordered);
    assert!(waits.look().is_none(), "for the older write");
    let given_up = effect.map(MediumEffect::give_up);
    disk.let_go();
    assert!(older.is_good());
    assert_eq!(waits.look(), Some(Status::CHECK_CONDITION));
    drop(given_up);
    assert_eq!(data_of(&nexus, 100), [0; SECTOR]);
}

fn data_of(nexus: &Nexus, lba: u64) -> Vec<u8> {
    let Sent(Ok(response)) = read(nexus, lba, 1) else { panic!("it is not held") };
    response.data_in.to_vec()
}

/// A read whose data is lent is carried out when it is sent: until then it is inside.
#[test]
fn commands_that_need_the_blocks_for_themselves_wait_for_data_that_is_lent() {
    let disk = Arc::new(RamDisk::new(1 << 20, 512).expect("a small disk"));
    let (target, _) = serve(disk, LogicalUnitOptions::default());
    let nexus = target.open_nexus("one,i,0x1", 1, LunView::ALL);
    let other = target.open_nexus("two,i,0x1", 1, LunView::ALL);
    for nexus in [&nexus, &other] {
        let _ = Sent::new(nexus, &cdb::test_unit_ready(), &[]);
    }
    assert!(nexus.would_lend([0; 8], 64 << 10) && !nexus.would_lend([0; 8], 32 << 10));
    assert!(!nexus.would_lend([0, 9, 0, 0, 0, 0, 0, 0], 64 << 10), "no such unit");
    let lending = TaskOptions { may_lend: true, ..TaskOptions::default() };
    let lent_by = |options| {
        let begun = nexus.begin_task([0; 8], &cdb::read16(0, 128, NONE), SharedBuf::default(), options);
        let response = match begun.answer {
            Io::Ready(response) => response,
            Io::Pending(mut pending) => {
                match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(response) => response,
                    Poll::Pending => panic!("nothing holds it"),
                }
            }
        };
        assert_eq!((response.status, response.wanted_in), (Status::GOOD, 64 << 10));
        response.lent
    };
    assert!(lent_by(TaskOptions::default()).is_none(), "to a transport that does not take it");
    assert!(lent_by(TaskOptions { ordered: true, ..lending }).is_none(), "of an ordered command");
    let lent = lent_by(lending).expect("a RAM disk lends");
    let part = lent.slice(0..4);
    drop(lent);

    assert!(compare_and_write(&other, 128).is_good(), "it is about another block");
    let mut waits = compare_and_write(&other, 127);
    let ordered = TaskOptions { ordered: true, ..TaskOptions::default() };
    let (mut after, _) = Sent::begin_as(&other, &cdb::write16(1000, 1, NONE), &[6; SECTOR], ordered);
    assert!(waits.look().is_none() && after.look().is_none());
    drop(part);
    assert!(waits.is_good() && after.is_good());
}

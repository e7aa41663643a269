//! Each rule of failing over by itself, with lanes that do what the test says and a clock that stands still.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod lane;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lane::{Asked, ManualLane, Waiting};
use lunway_block::{
    BlockDevice, BlockError, Buf, CacheNews, Durability, Fate, Geometry, Io, PathState, SharedBuf, Zeroing,
};
use lunway_multipath::{
    AluaState, Failback, Lane, LaneEvent, LaneShape, LaneState, MultipathDevice, Options, Policy, Port,
    Unproven, WhenNone,
};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

struct World {
    device: Arc<MultipathDevice>,
    lanes: Vec<Arc<ManualLane>>,
}

fn geometry() -> Geometry {
    Geometry { volatile_cache: true, ..Geometry::plain(64 * MIB) }
}

fn preferring_the_first() -> Options {
    Options { policy: Policy::Failover { preferred: Some(0) }, ..Options::default() }
}

impl World {
    /// Lanes that are up, of which the first is preferred.
    fn new(lanes: u8) -> Self {
        Self::with(lanes, preferring_the_first())
    }

    /// The same, with nothing sent again that is not proven dead.
    fn strict(lanes: u8) -> Self {
        Self::with(lanes, Options { unproven: Unproven::Fail, ..preferring_the_first() })
    }

    fn with(lanes: u8, options: Options) -> Self {
        let world = Self::absent(lanes, options);
        world.lanes.iter().for_each(|lane| lane.up(1));
        world
    }

    /// Lanes that have not had a session yet.
    fn absent(lanes: u8, options: Options) -> Self {
        let lanes: Vec<_> = (0..lanes).map(|number| ManualLane::new(number, geometry())).collect();
        let shapes = lanes.iter().enumerate().map(|(id, lane)| {
            let port = Port(id as u32);
            let shape = LaneShape {
                name: format!("lane {id}"),
                near: port,
                far: port,
                weight: 50,
                reserve: false,
                rate_hint: None,
            };
            (shape, lane.clone() as Arc<dyn Lane>)
        });
        let device = Arc::new(MultipathDevice::new(shapes.collect(), options));
        Self { device, lanes }
    }

    fn write(&self, offset: u64) -> JoinHandle<Result<(), BlockError>> {
        let device = self.device.clone();
        let answer = device.write(offset, sectors(8), Durability::Volatile);
        tokio::spawn(answer.into_future())
    }

    fn read(&self, offset: u64) -> JoinHandle<Result<Buf, BlockError>> {
        tokio::spawn(self.device.read(offset, Buf::zeroed(4096)).into_future())
    }

    fn flush(&self) -> JoinHandle<Result<(), BlockError>> {
        tokio::spawn(self.device.flush().into_future())
    }

    /// What a lane was asked by now.
    async fn next(&self, lane: usize) -> Option<Waiting> {
        settle_down().await;
        self.lanes[lane].take()
    }

    async fn has_none(&self) {
        settle_down().await;
        for (id, lane) in self.lanes.iter().enumerate() {
            assert_eq!(lane.take().map(|waiting| waiting.asked), None, "lane {id}");
        }
    }

    fn in_flight(&self) -> Vec<u32> {
        self.device.lanes().iter().map(|lane| lane.in_flight).collect()
    }

    fn states(&self) -> Vec<LaneState> {
        self.device.lanes().into_iter().map(|lane| lane.state).collect()
    }
}

/// Lets everything happen that takes no time.
async fn settle_down() {
    for _ in 0..50 {
        yield_now().await;
    }
}

fn sectors(count: usize) -> SharedBuf {
    Buf::zeroed(count * 512).freeze()
}

fn gone() -> BlockError {
    BlockError::gone("not sent")
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_sent_again_once_its_session_is_settled_and_not_before() {
    let world = World::new(2);
    let write = world.write(0);
    settle_down().await;
    world.lanes[0].lose(1);
    world.has_none().await;
    sleep(9 * SECOND).await;
    world.has_none().await;
    world.lanes[0].settle(1);
    let again = world.next(1).await.unwrap();
    assert_eq!(again.asked, Asked::Write(0, 4096, Durability::Volatile));
    again.answer(Ok(()));
    assert_eq!(write.await.unwrap(), Ok(()));
    sleep(60 * SECOND).await;
    world.has_none().await;
}

#[tokio::test(start_paused = true)]
async fn reads_and_flushes_of_unknown_outcome_go_to_another_lane_at_once() {
    let world = World::new(2);
    let (read, flush) = (world.read(0), world.flush());
    settle_down().await;
    world.lanes[0].lose(1);
    for _ in 0..2 {
        world.next(1).await.unwrap().answer(Ok(()));
    }
    assert_eq!(read.await.unwrap().unwrap()[..], [1; 4096], "a buffer of the second lane");
    assert_eq!(flush.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_not_sent_or_is_over_goes_to_another_lane_at_once() {
    for error in [gone(), BlockError::Timeout { millis: 30_000, fate: Fate::Over }] {
        let world = World::new(2);
        let write = world.write(0);
        world.next(0).await.unwrap().answer(Err(error.clone()));
        world.next(1).await.unwrap().answer(Ok(()));
        assert_eq!(write.await.unwrap(), Ok(()));
        assert_eq!(world.states(), [LaneState::Suspect, LaneState::Up], "after {error}");
        sleep(2 * SECOND).await;
        assert_eq!(world.states(), [LaneState::Up, LaneState::Up]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_disk_answers_is_final() {
    for error in [BlockError::ReservationConflict, BlockError::Medium { offset: 0 }, BlockError::NoSpace] {
        let world = World::new(2);
        let write = world.write(0);
        world.next(0).await.unwrap().answer(Err(error.clone()));
        assert_eq!(write.await.unwrap(), Err(error));
        world.has_none().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_session_nothing_proves_dead_is_sent_again_after_the_time_and_a_barrier() {
    let world = World::new(2);
    let (started, write) = (Instant::now(), world.write(0));
    settle_down().await;
    world.lanes[0].lose(1);
    sleep(10 * SECOND - SECOND / 1000).await;
    world.has_none().await;
    sleep(SECOND / 1000).await;
    let barrier = world.next(1).await.unwrap();
    assert_eq!((barrier.asked, started.elapsed()), (Asked::Barrier, 10 * SECOND));
    sleep(5 * SECOND).await;
    world.has_none().await;
    barrier.answer(Ok(()));
    let again = world.next(1).await.unwrap();
    assert_eq!(again.asked, Asked::Write(0, 4096, Durability::Volatile));
    again.answer(Ok(()));
    assert_eq!(write.await.unwrap(), Ok(()));
    world.lanes[0].settle(1);
    sleep(60 * SECOND).await;
    world.has_none().await;
}

#[tokio::test(start_paused = true)]
async fn a_barrier_whose_lane_is_lost_is_sent_over_the_next_one() {
    let world = World::new(4);
    let write = world.write(0);
    settle_down().await;
    world.lanes[0].lose(1);
    world.lanes[2].tell(LaneEvent::Access(AluaState::Standby));
    sleep(10 * SECOND).await;
    let barrier = world.next(1).await.unwrap();
    assert_eq!(barrier.asked, Asked::Barrier);
    world.lanes[1].lose(1);
    barrier.answer(Err(BlockError::lost()));
    world.next(3).await.unwrap().answer(Err(gone()));
    world.has_none().await;
    sleep(SECOND / 2).await;
    let barrier = world.next(3).await.unwrap();
    assert_eq!(barrier.asked, Asked::Barrier, "the only one left, which had refused");
    barrier.answer(Ok(()));
    let again = world.next(3).await.unwrap();
    assert!(matches!(again.asked, Asked::Write(..)), "{:?}", again.asked);
    again.answer(Ok(()));
    assert_eq!(write.await.unwrap(), Ok(()));
    sleep(10 * SECOND).await;
    let barrier = world.next(3).await.unwrap();
    assert_eq!(barrier.asked, Asked::Barrier, "for the session that was lost later");
    barrier.answer(Ok(()));
    sleep(60 * SECOND).await;
    world.has_none().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_lane_for_the_barrier_a_write_waits_for_one_as_long_as_for_any() {
    for (when_none, fails_after) in
        [(WhenNone::Queue { time: 5 * SECOND, bytes: 1 << 20 }, 15 * SECOND), (WhenNone::Fail, 10 * SECOND)]
    {
        let world = World::with(2, Options { when_none, ..preferring_the_first() });
        let (started, write) = (Instant::now(), world.write(0));
        settle_down().await;
        world.lanes.iter().for_each(|lane| lane.lose(1));
        let error = write.await.unwrap().unwrap_err();
        let millis = fails_after.as_millis() as u64;
        assert_eq!(
            (error, started.elapsed()),
            (BlockError::Timeout { millis, fate: Fate::Unknown }, fails_after)
        );
    }
    let world = World::new(2);
    let write = world.write(0);
    settle_down().await;
    world.lanes.iter().for_each(|lane| lane.lose(1));
    sleep(39 * SECOND).await;
    world.has_none().await;
    world.lanes[1].up(2);
    let barrier = world.next(1).await.unwrap();
    assert_eq!(barrier.asked, Asked::Barrier);
    barrier.answer(Ok(()));
    world.next(1).await.unwrap().answer(Ok(()));
    assert_eq!(write.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_session_nothing_proves_dead_fails_and_is_never_sent_again_where_that_is_wished() {
    let world = World::strict(2);
    let (started, write) = (Instant::now(), world.write(0));
    settle_down().await;
    world.lanes[0].lose(1);
    let error = write.await.unwrap().unwrap_err().to_string();
    assert_eq!(started.elapsed(), 10 * SECOND);
    assert!(error.contains("the session over lane 0 was lost, and nothing has proved within 10s"), "{error}");
    sleep(60 * SECOND).await;
    world.has_none().await;
    world.lanes[0].settle(1);
    world.has_none().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_fails_after_the_deadline_leaves_time_for_another() {
    let world = World::new(3);
    let read = world.read(0);
    world.next(0).await.unwrap().answer(Err(gone()));
    let slow = world.next(1).await.unwrap();
    sleep(40 * SECOND).await;
    slow.answer(Err(BlockError::Timeout { millis: 30_000, fate: Fate::Over }));
    let mut asked = 0;
    for lane in 0..3 {
        if let Some(again) = world.next(lane).await {
            asked += 1;
            again.answer(Ok(()));
        }
    }
    assert_eq!(asked, 1);
    assert_eq!(read.await.unwrap().map(|data| data.len()), Ok(4096));
}

#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_change_that_nobody_waits_for_goes_on_after_time_and_barrier() {
    let world = World::new(2);
    let write = world.write(0);
    settle_down().await;
    world.lanes[0].lose(1);
    settle_down().await;
    write.abort();
    let over = world.write(0);
    sleep(10 * SECOND).await;
    world.next(1).await.unwrap().answer(Ok(()));
    world.next(1).await.unwrap().answer(Ok(()));
    assert_eq!(over.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_over_a_change_that_may_still_come() {
    let world = World::strict(2);
    let write = world.write(0);
    settle_down().await;
    world.lanes[0].lose(1);
    write.await.unwrap().unwrap_err();
    let (over, beside) = (world.write(0), world.write(4096));
    assert_eq!(world.next(1).await.unwrap().asked, Asked::Write(4096, 4096, Durability::Volatile));
    world.has_none().await;
    beside.abort();
    assert_eq!(over.await.unwrap(), Err(BlockError::Busy), "it did not happen, and later it may");
    let over = world.write(0);
    world.has_none().await;
    world.lanes[0].settle(1);
    world.next(1).await.unwrap().answer(Ok(()));
    assert_eq!(over.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_nobody_waits_for_any_more_is_not_sent_again_and_not_overtaken() {
    let world = World::new(2);
    let write = world.write(0);
    settle_down().await;
    world.lanes[0].lose(1);
    settle_down().await;
    write.abort();
    settle_down().await;
    let over = world.write(0);
    world.has_none().await;
    world.lanes[0].settle(1);
    world.next(1).await.unwrap().answer(Ok(()));
    assert_eq!(over.await.unwrap(), Ok(()));
    world.has_none().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_dropped_under_way_keeps_its_place_until_it_is_answered() {
    let world = World::new(2);
    let (read, write) = (world.read(0), world.write(0));
    settle_down().await;
    read.abort();
    write.abort();
    settle_down().await;
    assert_eq!(world.in_flight(), [1, 0], "the read is gone, the write goes on");
    let over = world.write(0);
    assert_eq!(world.next(0).await.unwrap().asked, Asked::Read(0, 4096));
    world.next(0).await.unwrap().answer(Ok(()));
    let second = world.next(0).await.unwrap();
    assert_eq!(second.asked, Asked::Write(0, 4096, Durability::Volatile));
    over.abort();
    settle_down().await;
    assert_eq!(world.in_flight(), [1, 0]);
    second.answer(Ok(()));
    settle_down().await;
    assert_eq!((world.in_flight(), world.device.paths()[0].errors), (vec![0, 0], 0));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_is_unknown_in_a_session_that_lives_ends_the_session() {
    let world = World::new(2);
    let _write = world.write(0);
    world.next(0).await.unwrap().answer(Err(BlockError::lost()));
    world.has_none().await;
    assert_eq!(world.lanes[0].severed(), 1);
    world.lanes[0].lose(1);
    world.lanes[0].settle(1);
    assert!(world.next(1).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn without_a_lane_operations_wait_for_one() {
    let world = World::new(2);
    world.lanes[0].lose(1);
    world.lanes[1].lose(1);
    let (read, write) = (world.read(0), world.write(0));
    sleep(29 * SECOND).await;
    world.has_none().await;
    world.lanes[1].up(2);
    for _ in 0..2 {
        world.next(1).await.unwrap().answer(Ok(()));
    }
    assert!(read.await.unwrap().is_ok() && write.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn without_a_lane_for_too_long_operations_fail_and_say_why() {
    let world = World::new(1);
    world.lanes[0].lose(1);
    let (started, write) = (Instant::now(), world.write(0));
    let error = write.await.unwrap().unwrap_err().to_string();
    assert_eq!(started.elapsed(), 30 * SECOND);
    assert!(error.contains("lane 0: down, lost: the cable was pulled"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_a_lane_operations_fail_at_once_if_that_was_wished_or_all_are_closed() {
    let world = World::with(1, Options { when_none: WhenNone::Fail, ..Options::default() });
    world.lanes[0].lose(1);
    let started = Instant::now();
    assert!(matches!(world.write(0).await.unwrap(), Err(BlockError::Gone { .. })));

    let world = World::new(1);
    world.lanes[0].tell(LaneEvent::Closed { why: "another disk answers there".to_owned() });
    assert!(matches!(world.read(0).await.unwrap(), Err(BlockError::Gone { .. })));
    assert_eq!((started.elapsed(), world.device.paths()[0].state), (Duration::ZERO, PathState::Closed));
}

#[tokio::test(start_paused = true)]
async fn no_more_waits_than_the_queue_takes() {
    let when_none = WhenNone::Queue { time: 30 * SECOND, bytes: 10 * 4096 };
    let world = World::with(1, Options { when_none, ..Options::default() });
    world.lanes[0].lose(1);
    let writes: Vec<_> = (0..15).map(|n| world.write(n * 4096)).collect();
    settle_down().await;
    assert_eq!(writes.iter().filter(|write| write.is_finished()).count(), 5);
    // Flushes hold no data, and wait all the same.
    assert!(matches!(world.flush().await.unwrap(), Err(BlockError::Gone { .. })));
    writes[0].abort();
    settle_down().await;
    let flush = world.flush();
    settle_down().await;
    assert!(!flush.is_finished(), "whoever leaves makes room");
}

#[tokio::test(start_paused = true)]
async fn lanes_that_refuse_everything_are_not_asked_without_pause() {
    let world = World::new(2);
    world.lanes.iter().for_each(|lane| lane.answer_at_once(Some(Err(gone()))));
    let (started, write) = (Instant::now(), world.write(0));
    assert!(matches!(write.await.unwrap(), Err(BlockError::Gone { .. })));
    assert_eq!(started.elapsed(), 30 * SECOND);
    let asked: Vec<_> = world.lanes.iter().map(|lane| lane.asked()).collect();
    assert!(asked.iter().all(|&times| times > 0) && asked.iter().sum::<u64>() < 200, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_lane_is_too_busy_for_goes_to_another_at_once_and_the_lane_is_suspect() {
    let world = World::new(2);
    let (started, write) = (Instant::now(), world.write(0));
    world.next(0).await.unwrap().answer(Err(BlockError::Busy));
    world.next(1).await.unwrap().answer(Ok(()));
    assert_eq!((write.await.unwrap(), started.elapsed()), (Ok(()), Duration::ZERO));
    assert_eq!(world.states(), [LaneState::Suspect, LaneState::Up]);
    sleep(2 * SECOND).await;
    assert_eq!(world.states(), [LaneState::Up, LaneState::Up]);
}

#[tokio::test(start_paused = true)]
async fn what_every_lane_is_too_busy_for_is_tried_with_pauses_for_the_time_of_a_command_and_busy_then() {
    for when_none in [WhenNone::Fail, WhenNone::Queue { time: SECOND, bytes: MIB }] {
        let world = World::with(2, Options { when_none, busy: 40 * SECOND, ..preferring_the_first() });
        world.lanes.iter().for_each(|lane| lane.answer_at_once(Some(Err(BlockError::Busy))));
        let (started, write, flush) = (Instant::now(), world.write(0), world.flush());
        assert_eq!(write.await.unwrap(), Err(BlockError::Busy));
        assert_eq!((flush.await.unwrap(), started.elapsed()), (Err(BlockError::Busy), 40 * SECOND));
        let asked: Vec<_> = world.lanes.iter().map(|lane| lane.asked()).collect();
        assert!(asked.iter().all(|&times| times > 10) && asked.iter().sum::<u64>() < 400, "{asked:?}");
        let write = world.write(0);
        sleep(10 * SECOND).await;
        world.lanes.iter().for_each(|lane| lane.answer_at_once(Some(Ok(()))));
        assert_eq!(write.await.unwrap(), Ok(()), "the disk is not busy any more");
    }
}

#[tokio::test(start_paused = true)]
async fn changes_wait_while_it_is_asked_whether_this_node_may_write_and_reads_go_on() {
    let world = World::new(2);
    world.lanes[0].tell(LaneEvent::Preempted);
    let (write, zeroes) = (world.write(0), world.device.write_zeroes(0, 512, Zeroing::MayUnmap));
    let (read, zeroes) = (world.read(0), tokio::spawn(zeroes.into_future()));
    assert_eq!(world.next(0).await.unwrap().asked, Asked::Read(0, 4096));
    world.has_none().await;
    world.lanes[1].tell(LaneEvent::Registered);
    for _ in 0..2 {
        world.next(0).await.unwrap().answer(Ok(()));
    }
    assert_eq!((write.await.unwrap(), zeroes.await.unwrap()), (Ok(()), Ok(())));
    read.abort();

    world.lanes[0].tell(LaneEvent::Preempted);
    let (started, write) = (Instant::now(), world.write(0));
    assert_eq!(write.await.unwrap(), Err(BlockError::Busy), "it did not happen, and later it may");
    assert_eq!(started.elapsed(), 30 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_fenced_node_changes_nothing_any_more_whatever_waits_to_be_sent_again() {
    let world = World::new(2);
    let unknown = world.write(0);
    settle_down().await;
    world.lanes[0].lose(1);
    world.lanes[1].tell(LaneEvent::Preempted);
    let waiting = world.write(8192);
    settle_down().await;
    world.lanes[1].tell(LaneEvent::Fenced { why: "the key was taken away".to_owned() });
    assert_eq!(waiting.await.unwrap(), Err(BlockError::ReservationConflict));
    world.lanes[0].settle(1);
    assert_eq!(unknown.await.unwrap(), Err(BlockError::ReservationConflict));
    for event in [LaneEvent::Registered, LaneEvent::Preempted, LaneEvent::Up { epoch: 2 }] {
        world.lanes[0].tell(event);
        let started = Instant::now();
        assert_eq!(world.write(0).await.unwrap(), Err(BlockError::ReservationConflict));
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
    world.has_none().await;
    let (read, flush) = (world.read(0), world.flush());
    for _ in 0..2 {
        world.next(0).await.unwrap().answer(Ok(()));
    }
    assert!(read.await.unwrap().is_ok() && flush.await.unwrap().is_ok());
    let said = world.device.lanes()[1].last_event.clone().unwrap().1;
    assert!(said.contains("the key was taken away"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_without_an_end_waits_for_days() {
    let when_none = WhenNone::Queue { time: Duration::MAX, bytes: MIB };
    let world = World::with(2, Options { when_none, ..preferring_the_first() });
    world.lanes.iter().for_each(|lane| lane.lose(1));
    let write = world.write(0);
    sleep(7 * 24 * 3600 * SECOND).await;
    world.has_none().await;
    world.lanes[1].up(2);
    world.next(1).await.unwrap().answer(Ok(()));
    assert_eq!(write.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn what_a_lane_answers_at_once_is_answered_at_once() {
    let world = World::with(2, Options::default());
    world.lanes.iter().for_each(|lane| lane.answer_at_once(Some(Ok(()))));
    let device = &world.device;
    for len in [4096, 4 * MIB as usize] {
        assert!(matches!(device.read(0, Buf::zeroed(len)), Io::Ready(Ok(_))));
        assert!(matches!(
            device.write(0, Buf::zeroed(len).freeze(), Durability::Volatile),
            Io::Ready(Ok(()))
        ));
    }
    assert!(matches!(device.flush(), Io::Ready(Ok(()))));
    assert!(matches!(device.write_zeroes(0, 4096, Zeroing::MayUnmap), Io::Ready(Ok(()))));
    assert!(matches!(device.read(64 * MIB, Buf::zeroed(512)), Io::Ready(Err(BlockError::OutOfRange { .. }))));
    assert_eq!(world.in_flight(), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_write_stays_forced_to_the_medium_wherever_it_goes() {
    let world = World::new(2);
    let _write = tokio::spawn(world.device.write(0, sectors(8), Durability::Stable).into_future());
    assert_eq!(world.next(0).await.unwrap().asked, Asked::Write(0, 4096, Durability::Stable));
    world.lanes[0].lose(1);
    world.lanes[0].settle(1);
    settle_down().await;
    let _write = tokio::spawn(world.device.write(0, sectors(8), Durability::Stable).into_future());
    assert_eq!(world.next(1).await.unwrap().asked, Asked::Write(0, 4096, Durability::Stable));
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_used_only_once_it_says_that_it_is_up() {
    let lane = ManualLane::new(0, geometry());
    let shape = LaneShape {
        name: "lane 0".to_owned(),
        near: Port(0),
        far: Port(0),
        weight: 1,
        reserve: false,
        rate_hint: None,
    };
    let device = MultipathDevice::new(vec![(shape, lane.clone())], Options::default());
    let read = tokio::spawn(device.read(0, Buf::zeroed(512)).into_future());
    settle_down().await;
    assert_eq!(lane.asked(), 0);
    lane.up(1);
    settle_down().await;
    assert_eq!(lane.asked(), 1);
    drop(read);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_comes_back_hurries_the_others() {
    let world = World::new(3);
    world.lanes.iter().for_each(|lane| lane.lose(1));
    settle_down().await;
    world.lanes[1].up(2);
    settle_down().await;
    let hurried: Vec<_> = world.lanes.iter().map(|lane| lane.hurried()).collect();
    assert_eq!(hurried, [1, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_new_size_is_told_once_and_idle_lanes_are_made_to_notice() {
    let (world, (send, heard)) = (World::new(2), channel());
    world.device.on_resize(Box::new(move |geometry| send.send(geometry.size).unwrap()));
    let larger = Geometry { size: 128 * MIB, ..geometry() };
    world.lanes[0].notice(larger);
    assert_eq!(world.device.geometry().size, 64 * MIB, "the other lane could not reach the new part");
    assert_eq!(world.next(1).await.unwrap().asked, Asked::Read(0, 512), "its answer brings the news");
    world.lanes[1].notice(larger);
    assert_eq!((world.device.geometry().size, heard.try_iter().collect()), (128 * MIB, vec![128 * MIB]));
}

#[tokio::test(start_paused = true)]
async fn a_lane_with_other_sectors_is_refused() {
    let world = World::new(2);
    world.lanes[1].notice(geometry().with_sector(4096));
    assert_eq!(world.states(), [LaneState::Up, LaneState::Closed]);
    let (_, why) = world.device.lanes()[1].last_event.clone().unwrap();
    assert!(why.contains("another disk"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_power_on_makes_exactly_the_next_flush_fail() {
    let world = World::new(1);
    let write = world.write(0);
    world.next(0).await.unwrap().answer(Ok(()));
    write.await.unwrap().unwrap();
    world.lanes[0].lose(1);
    world.lanes[0].tell(LaneEvent::PowerOn);
    world.lanes[0].up(2);
    world.lanes[0].answer_at_once(Some(Ok(())));
    let error = world.flush().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("power was off"), "{error}");
    assert_eq!(world.flush().await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_lived_through_a_power_on_is_asked_before_a_flush_fails() {
    let world = World::new(2);
    let write = world.write(0);
    world.next(0).await.unwrap().answer(Ok(()));
    write.await.unwrap().unwrap();
    world.lanes[0].lose(1);
    world.lanes[0].tell(LaneEvent::PowerOn);
    world.lanes[0].up(2);
    world.device.fail_back();
    let flush = world.flush();
    world.next(0).await.unwrap().answer(Ok(()));
    assert_eq!(world.next(1).await.unwrap().asked, Asked::Flush, "the session that was there before");
    world.device.disable(1);
    flush.abort();
    world.lanes[1].answer_at_once(Some(Ok(())));
    world.lanes[0].answer_at_once(Some(Ok(())));
    assert_eq!(world.flush().await.unwrap(), Ok(()), "it answers: the power was not off");
}

/// Lost were the writes of a disk that had been open for 50 ms: one lane had connected, the storage was restarted, and
/// another lane, which connected to the restarted storage first, answered the flush.
#[tokio::test(start_paused = true)]
async fn a_lane_that_joins_late_is_no_witness_of_what_was_written_before_it_came() {
    let world = World::absent(2, preferring_the_first());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let news = heard.clone();
    world.device.on_cache_news(Box::new(move |what| news.lock().unwrap().push(what)));
    world.lanes[0].up(1);
    let write = world.write(0);
    world.next(0).await.unwrap().answer(Ok(()));
    write.await.unwrap().unwrap();
    world.lanes[0].lose(1);
    assert_eq!(*heard.lock().unwrap(), []);
    world.lanes[1].up(1);
    assert_eq!(*heard.lock().unwrap(), [CacheNews::InDoubt], "before anything is sent there");
    world.lanes[1].answer_at_once(Some(Ok(())));
    let error = world.flush().await.unwrap().unwrap_err();
    assert_eq!(error, BlockError::UnflushedLost { reported: false });
    assert_eq!(*heard.lock().unwrap(), [CacheNews::InDoubt, CacheNews::Lost { reported: false }]);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_joins_late_costs_no_flush_its_success_while_an_older_session_lives() {
    let world = World::absent(2, preferring_the_first());
    world.device.on_cache_news(Box::new(|_| {}));
    world.lanes[0].up(1);
    let write = world.write(0);
    world.next(0).await.unwrap().answer(Ok(()));
    write.await.unwrap().unwrap();
    world.lanes[1].tell(LaneEvent::PowerOn);
    world.lanes[1].up(1);
    assert!(world.device.lanes()[1].last_event.as_ref().unwrap().1.contains("connected"));
    world.lanes.iter().for_each(|lane| lane.answer_at_once(Some(Ok(()))));
    assert_eq!(world.flush().await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn lanes_can_be_switched_off_and_the_policy_changed_while_operations_run() {
    let world = World::new(2);
    let first = world.read(0);
    settle_down().await;
    world.device.disable(0);
    let second = world.read(0);
    assert!(world.next(1).await.is_some());
    world.next(0).await.unwrap().answer(Ok(()));
    assert!(first.await.unwrap().is_ok(), "what was under way ends");
    world.device.enable(0);
    world.device.set_policy(Policy::RoundRobin);
    assert_eq!(world.device.policy(), Policy::RoundRobin);
    let _reads = [world.read(0), world.read(4096)];
    assert!(world.next(0).await.is_some() && world.next(1).await.is_some());
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn access_decides_which_lanes_are_used() {
    let world = World::with(2, Options { policy: Policy::RoundRobin, ..Options::default() });
    world.lanes[0].tell(LaneEvent::Access(AluaState::Standby));
    let _reads = [world.read(0), world.read(4096)];
    settle_down().await;
    assert_eq!(world.in_flight(), [0, 2]);
    world.lanes[0].tell(LaneEvent::Access(AluaState::Optimized));
    world.lanes[1].tell(LaneEvent::Access(AluaState::NonOptimized));
    let _reads = [world.read(0), world.read(4096)];
    settle_down().await;
    assert_eq!(world.in_flight(), [2, 2], "the optimized one takes all that is new");
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_comes_back_a_second_time_waits_until_it_has_proved_itself() {
    let world = World::with(
        2,
        Options { policy: Policy::RoundRobin, failback: Failback::Immediate, ..Options::default() },
    );
    world.lanes[0].lose(1);
    world.lanes[0].up(2);
    assert_eq!(world.states(), [LaneState::Up, LaneState::Up], "once is forgiven");
    world.lanes[0].lose(2);
    world.lanes[0].up(3);
    assert_eq!(world.states(), [LaneState::HeldBack { left: Some(SECOND) }, LaneState::Up]);
    assert_eq!(world.device.paths()[0].state, PathState::Down);
    sleep(SECOND + SECOND / 100).await;
    assert_eq!(world.states(), [LaneState::Up, LaneState::Up]);
    let lane = world.device.lanes().swap_remove(0);
    assert_eq!((lane.epoch, lane.last_event.unwrap().1.as_str()), (3, "has proved itself"));
}

/// A write that both lanes carry a part of.
async fn divided(world: &World) -> (JoinHandle<Result<(), BlockError>>, [Waiting; 2]) {
    let answer = world.device.write(0, Buf::zeroed(8 << 20).freeze(), Durability::Stable);
    let write = tokio::spawn(answer.into_future());
    let parts = [world.next(0).await.unwrap(), world.next(1).await.unwrap()];
    (write, parts)
}

fn span(asked: Asked) -> (u64, usize) {
    match asked {
        Asked::Write(offset, len, Durability::Stable) => (offset, len),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_fails_is_tried_again_by_itself() {
    let world = World::with(2, Options::default());
    let (write, [first, second]) = divided(&world).await;
    let (one, other) = (span(first.asked), span(second.asked));
    assert_eq!(one.1 + other.1, 8 << 20);
    second.answer(Ok(()));
    first.answer(Err(gone()));
    let again = world.next(1).await.unwrap();
    assert_eq!(span(again.asked), one, "the same part, over the other lane, forced to the medium as before");
    again.answer(Ok(()));
    assert_eq!(write.await.unwrap(), Ok(()));
    world.has_none().await;
}

#[tokio::test(start_paused = true)]
async fn a_divided_write_answers_when_all_of_it_has_ended_and_says_what_the_disk_said() {
    let world = World::with(2, Options::default());
    let (write, [first, second]) = divided(&world).await;
    first.answer(Err(BlockError::NoSpace));
    settle_down().await;
    assert!(!write.is_finished(), "a part is still under way");
    second.answer(Ok(()));
    assert_eq!(write.await.unwrap(), Err(BlockError::NoSpace));
}

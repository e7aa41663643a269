//! A device that is one of several ways to a disk: it fails fast, tells what happens, and has its lost sessions fenced.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability};
use lunway_initiator::{
    AccessState, Detours, IscsiDevice, IscsiUrl, IsidFamily, SessionEvent, SessionOptions, SharedObserver,
};

use crate::support::line::Line;
use crate::support::recorder::{Recorder, is_lost, is_settled, is_up};
use crate::support::scripted::{Act, Disk, NAME, SECTOR};

const TEST_UNIT_READY: u8 = 0x00;
const READ: u8 = 0x88;
const WRITE: u8 = 0x8A;

fn url(address: SocketAddr) -> IscsiUrl {
    IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap()
}

fn lane(recorder: &Recorder) -> SessionOptions {
    SessionOptions { observer: Some(recorder.observer()), ..SessionOptions::fail_fast() }
}

async fn open(address: SocketAddr, options: SessionOptions) -> IscsiDevice {
    IscsiDevice::open(url(address), options).await.expect("open")
}

fn sectors(count: usize) -> lunway_block::SharedBuf {
    Buf::zeroed(count * SECTOR).freeze()
}

/// Until the scripted disk has been asked to read or write.
async fn await_command(disk: &Disk, opcode: u8) {
    let until = Instant::now() + Duration::from_secs(10);
    while disk.in_flight.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < until, "no command {opcode:02x}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn at_a_loss_what_was_sent_is_unknown_and_what_was_not_has_not_happened() {
    let disk = Disk::new(64, 1);
    let line = Line::start(disk.serve().await).await;
    let recorder = Recorder::default();
    let device = open(line.address, lane(&recorder)).await;
    disk.once(WRITE, Act::Ignore);
    let sent = device.write(0, sectors(1), Durability::Volatile);
    let waiting = device.read(0, Buf::zeroed(512));
    await_command(&disk, WRITE).await;
    line.refuse(true);
    line.cut();
    assert_eq!(sent.await.unwrap_err(), BlockError::lost());
    assert!(matches!(waiting.await.unwrap_err(), BlockError::Gone { .. }));
    // A machine whose time is taken may be late by itself: the quickest counts.
    let mut quickest = Duration::MAX;
    for _ in 0..8 {
        let start = Instant::now();
        let new = device.read(0, Buf::zeroed(512)).await.unwrap_err();
        assert!(matches!(&new, BlockError::Gone { why, .. } if !why.is_empty()), "{new}");
        quickest = quickest.min(start.elapsed());
    }
    assert!(quickest < Duration::from_millis(100), "at once: {quickest:?}");

    tokio::time::sleep(Duration::from_millis(700)).await;
    line.refuse(false);
    let start = Instant::now();
    recorder.when("the next session", is_up(2)).await;
    assert!(start.elapsed() < Duration::from_secs(1), "within a second of the target's return");
    device.read(0, Buf::zeroed(512)).await.unwrap();
    assert_eq!(disk.count(WRITE), 0, "and nothing is sent again");
}

#[tokio::test]
async fn events_explain_what_follows_them() {
    let disk = Disk::new(64, 8);
    let failed = Arc::new(AtomicBool::new(false));
    let events = Arc::new(Mutex::new(Vec::new()));
    let observer = SharedObserver::new({
        let (failed, events) = (failed.clone(), events.clone());
        move |event| {
            if is_lost(&event) {
                assert!(!failed.load(Ordering::SeqCst), "an operation failed before anybody was told why");
                std::thread::sleep(Duration::from_millis(20));
            }
            events.lock().unwrap().push(event);
        }
    });
    let line = Line::start(disk.serve().await).await;
    let device =
        open(line.address, SessionOptions { observer: Some(observer), ..SessionOptions::fail_fast() }).await;
    let device = Arc::new(device);
    disk.once(READ, Act::Ignore);
    let read = device.read(0, Buf::zeroed(512));
    // On a thread of its own, so that it could overtake.
    let reader = std::thread::spawn({
        let failed = failed.clone();
        move || {
            let result =
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read.into_future());
            failed.store(true, Ordering::SeqCst);
            result
        }
    });
    await_command(&disk, READ).await;
    assert_eq!(device.epoch(), 1);
    device.sever("its cable was pulled");
    while !events.lock().unwrap().contains(&SessionEvent::Up { epoch: 2 }) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(reader.join().unwrap().unwrap_err(), BlockError::lost());
    assert_eq!(device.epoch(), 2);
    device.close().await;
    let expected = [
        SessionEvent::Up { epoch: 1 },
        SessionEvent::Lost { epoch: 1, why: "its cable was pulled".to_owned() },
        SessionEvent::Settled { epoch: 1 },
        SessionEvent::Up { epoch: 2 },
        SessionEvent::Closed { why: "it was closed".to_owned() },
    ];
    assert_eq!(events.lock().unwrap()[..], expected);
}

#[tokio::test]
async fn a_barrier_is_an_ordered_command_that_is_sent_until_it_has_had_its_turn() {
    let disk = Disk::new(64, 8);
    let line = Line::start(disk.serve().await).await;
    let recorder = Recorder::default();
    let device = open(line.address, lane(&recorder)).await;
    let before = disk.ordered.load(Ordering::Relaxed);
    let mut asked = 0;
    disk.script(move |cdb| {
        asked += u32::from(cdb[0] == TEST_UNIT_READY);
        match (cdb[0], asked) {
            // MICROCODE HAS BEEN CHANGED: no doubt about the disk, which would have the unit asked beside the barrier.
            (TEST_UNIT_READY, 1) => Act::Sense(6, 0x3F, 0x01),
            (TEST_UNIT_READY, 2) => Act::Status(0x08),
            // Whatever it says in its turn.
            (TEST_UNIT_READY, 3) => Act::Sense(2, 0x3A, 0x00),
            (TEST_UNIT_READY, _) => Act::Ignore,
            _ => Act::Execute,
        }
    });
    assert_eq!(device.barrier().await, Ok(()));
    assert_eq!(disk.ordered.load(Ordering::Relaxed) - before, 3);

    let lost = device.barrier();
    await_command(&disk, TEST_UNIT_READY).await;
    line.cut();
    assert_eq!(lost.await.unwrap_err(), BlockError::lost(), "no answer is no answer");
}

#[tokio::test]
async fn an_operation_of_several_commands_is_unknown_if_one_of_them_is() {
    let disk = Disk::new(4096, 1);
    let recorder = Recorder::default();
    let options = SessionOptions { transfer_max: 4096, ..lane(&recorder) };
    let device = open(disk.serve().await, options).await;
    // The first is executed and never answered; the others were not even sent.
    disk.once(WRITE, Act::ExecuteAndHangUp);
    let error = device.write(0, sectors(64), Durability::Volatile).await.unwrap_err();
    assert_eq!(error, BlockError::lost());
    recorder.when("the next session", is_up(2)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(disk.count(WRITE), 1, "no piece of it follows in another session");
}

#[tokio::test]
async fn hope_makes_it_try_at_once() {
    let disk = Disk::new(64, 8);
    let line = Line::start(disk.serve().await).await;
    let recorder = Recorder::default();
    let device =
        open(line.address, SessionOptions { retry_max: Duration::from_secs(60), ..lane(&recorder) }).await;
    line.refuse(true);
    line.cut();
    // By now it waits for seconds between attempts.
    tokio::time::sleep(Duration::from_millis(2000)).await;
    assert!(!recorder.has(is_up(2)));
    line.refuse(false);
    let start = Instant::now();
    device.hurry();
    recorder.when("the next session", is_up(2)).await;
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
}

#[tokio::test]
async fn an_attempt_whose_first_packet_was_lost_does_not_wait_for_it() {
    let disk = Disk::new(64, 8);
    let line = Line::start(disk.serve().await).await;
    let recorder = Recorder::default();
    let options = SessionOptions { connect_timeout: Duration::from_secs(20), ..lane(&recorder) };
    let device = open(line.address, options).await;
    line.swallow(true);
    device.sever("for the test");
    // The attempt has begun, and TCP's own retries are a second and more apart.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    line.swallow(false);
    let start = Instant::now();
    device.hurry();
    recorder.when("the next session", is_up(2)).await;
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
}

// shows RFC 7143 [6.3.5-1]
#[tokio::test]
async fn a_lost_session_is_proven_dead_over_another_cable_while_its_own_is_dead() {
    let disk = Disk::new(64, 8);
    let portal = disk.serve().await;
    let (own, other) = (Line::start(portal).await, Line::start(portal).await);
    let dead = Line::start(portal).await;
    dead.swallow(true);
    let recorder = Recorder::default();
    let ways = [url(dead.address), url(other.address)];
    let options = SessionOptions { detours: Some(Detours::new(move || ways.to_vec())), ..lane(&recorder) };
    let device = open(own.address, options).await;
    own.swallow(true);
    device.sever("for the test");
    let lost = recorder.when("the loss", is_lost).await;
    let settled = recorder.when("the proof", is_settled(1)).await;
    assert!(settled - lost < Duration::from_millis(700), "{:?}", settled - lost);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!recorder.has(is_up(2)), "its own cable is dead");
    let sessions = [&disk.logins, &disk.logouts].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(sessions, [2, 1], "the session that proved it was logged out");
    own.swallow(false);
    recorder.when("the next session", is_up(2)).await;
    let settled = recorder.events().into_iter().filter(is_settled(1)).count();
    assert_eq!(settled, 1, "told once");
}

#[tokio::test]
async fn a_session_is_settled_when_the_unit_has_answered_a_command_that_waits_for_all_older_ones() {
    let disk = Disk::new(64, 8);
    let portal = disk.serve().await;
    let (own, other) = (Line::start(portal).await, Line::start(portal).await);
    let recorder = Recorder::default();
    let way = url(other.address);
    let ways = Detours::new(move || vec![way.clone()]);
    let device = open(own.address, SessionOptions { detours: Some(ways), ..lane(&recorder) }).await;
    // What is left of the session lasts 400 ms, and before that there is a unit attention to tell.
    let mut asked = 0;
    disk.script(move |cdb| {
        asked += usize::from(cdb[0] == 0);
        match (cdb[0], asked) {
            (0, 1) => Act::Sense(6, 0x29, 0x01),
            (0, 2) => Act::After(Duration::from_millis(400)),
            _ => Act::Execute,
        }
    });
    own.refuse(true);
    own.cut();
    let lost = recorder.when("the loss", is_lost).await;
    let settled = recorder.when("the proof", is_settled(1)).await;
    assert!(settled - lost >= Duration::from_millis(400), "{:?}", settled - lost);
    assert_eq!(disk.ordered.load(Ordering::Relaxed), 2);
    assert!(
        recorder.has(|event| *event == SessionEvent::PowerOn),
        "a condition that nobody else will hear of"
    );
    own.refuse(false);
    recorder.when("the next session", is_up(2)).await;
    // Without a detour it is the same with its own path.
    let recorder = Recorder::default();
    let alone = open(portal, lane(&recorder)).await;
    alone.sever("for the test");
    recorder.when("the next session", is_up(2)).await;
    assert_eq!(disk.ordered.load(Ordering::Relaxed), 3);
    drop(device);
}

#[tokio::test]
async fn a_write_that_failed_behind_the_cache_is_told_and_flushes_are_left_alone() {
    let disk = Disk::new(64, 8);
    let recorder = Recorder::default();
    let device = open(disk.serve().await, lane(&recorder)).await;
    disk.once(READ, Act::Deferred(3, 0x0C, 0x00));
    device.read(0, Buf::zeroed(512)).await.expect("this one was not at fault");
    assert!(
        recorder
            .has(|event| matches!(event, SessionEvent::Spoiled { why } if why.contains("behind the cache")))
    );
    device.flush().await.expect("who hears of it decides what it means");
}

#[tokio::test]
async fn another_portal_group_proves_nothing() {
    let disk = Disk::new(64, 8);
    let (portal, elsewhere) = (disk.serve_in(1).await, disk.serve_in(2).await);
    let own = Line::start(portal).await;
    let recorder = Recorder::default();
    let ways = Detours::new(move || vec![url(elsewhere)]);
    let device = open(own.address, SessionOptions { detours: Some(ways), ..lane(&recorder) }).await;
    assert_eq!(device.portal_group(), Some(1));
    own.refuse(true);
    own.cut();
    recorder.when("the loss", is_lost).await;
    let until = Instant::now() + Duration::from_secs(5);
    while disk.logouts.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < until, "the detour was not tried");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!recorder.has(is_settled(1)));
    // Nor does the session's own address if it leads there now.
    own.redirect(elsewhere);
    own.refuse(false);
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(!recorder.has(is_settled(1)) && !recorder.has(is_up(2)), "{:?}", recorder.events());
    own.redirect(portal);
    recorder.when("the next session", is_up(2)).await;
    assert!(recorder.has(is_settled(1)));
}

#[tokio::test]
async fn its_own_attempts_begin_when_nothing_of_the_fence_is_left() {
    let disk = Disk::new(64, 8);
    let portal = disk.serve().await;
    // Takes connections, and never says a word.
    let mute = Line::start(portal).await;
    mute.freeze(true);
    let recorder = Recorder::default();
    let way = url(mute.address);
    let ways = Detours::new(move || vec![way.clone()]);
    let device = open(portal, SessionOptions { detours: Some(ways), ..lane(&recorder) }).await;
    device.sever("for the test");
    let lost = recorder.when("the loss", is_lost).await;
    let up = recorder.when("the next session", is_up(2)).await;
    assert!(up - lost >= Duration::from_secs(1), "it did not wait for the detour: {:?}", up - lost);
    assert!(up - lost < Duration::from_secs(3), "{:?}", up - lost);
    // What the detour was told does not arrive late and end the new session.
    mute.freeze(false);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!recorder.has(|event| matches!(event, SessionEvent::Lost { epoch: 2, .. })));
    assert_eq!(disk.logins.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_logout_that_the_target_asks_for_settles_the_session() {
    let disk = Disk::new(64, 8);
    let recorder = Recorder::default();
    // A detour that would be seen to be asked.
    let asked = Arc::new(AtomicBool::new(false));
    let ways = Detours::new({
        let asked = asked.clone();
        move || {
            asked.store(true, Ordering::SeqCst);
            Vec::new()
        }
    });
    let device = open(disk.serve().await, SessionOptions { detours: Some(ways), ..lane(&recorder) }).await;
    disk.once(WRITE, Act::AskForLogout);
    device.write(0, sectors(1), Durability::Volatile).await.unwrap();
    recorder.when("the next session", is_up(2)).await;
    assert!(recorder.has(is_settled(1)) && !asked.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_power_on_is_told_before_the_session_is_and_flushes_are_left_alone() {
    let disk = Disk::new(64, 8);
    let recorder = Recorder::default();
    let device = open(disk.serve().await, lane(&recorder)).await;
    device.write(0, sectors(1), Durability::Volatile).await.unwrap();
    // TEST UNIT READY, as the next session begins.
    disk.once(0x00, Act::Sense(6, 0x29, 0x00));
    device.sever("for the test");
    recorder.when("the next session", is_up(2)).await;
    let told = recorder.events();
    let place = |wanted: &SessionEvent| told.iter().position(|event| event == wanted);
    let power_on = place(&SessionEvent::PowerOn).expect("not told");
    assert!(place(&SessionEvent::Settled { epoch: 1 }) < Some(power_on));
    assert!(Some(power_on) < place(&SessionEvent::Up { epoch: 2 }), "{told:?}");
    device.flush().await.expect("who hears of it decides what it means");
}

#[tokio::test]
async fn a_power_on_that_the_first_session_meets_is_told_too_for_other_lanes_may_have_written() {
    let disk = Disk::new(64, 8);
    let recorder = Recorder::default();
    disk.once(0x00, Act::Sense(6, 0x29, 0x00));
    let device = open(disk.serve().await, lane(&recorder)).await;
    assert_eq!(recorder.events(), [SessionEvent::PowerOn, SessionEvent::Up { epoch: 1 }]);
    device.flush().await.expect("who hears of it decides what it means");
}

#[tokio::test]
async fn what_the_target_itself_ended_is_over_and_not_unknown() {
    let disk = Disk::new(64, 8);
    let device = open(disk.serve().await, SessionOptions::fail_fast()).await;
    disk.script(|cdb| if cdb[0] == WRITE { Act::Sense(0xB, 0, 0) } else { Act::Execute });
    let error = device.write(0, sectors(1), Durability::Volatile).await.unwrap_err();
    assert!(matches!(error, BlockError::Timeout { .. }), "{error}");
    device.read(0, Buf::zeroed(512)).await.expect("the session goes on");
    assert_eq!(disk.logins.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_target_that_stays_busy_says_so_within_a_tenth_of_a_second_as_another_way_may_not_be() {
    let busy: [fn() -> Act; 5] = [
        || Act::Status(0x08),
        || Act::Status(0x28),
        || Act::Sense(2, 4, 1),
        || Act::Sense(2, 4, 7),
        || Act::Sense(2, 4, 0x14),
    ];
    for act in busy {
        let disk = Disk::new(64, 8);
        let device = open(disk.serve().await, SessionOptions::fail_fast()).await;
        disk.script(move |cdb| if [READ, WRITE].contains(&cdb[0]) { act() } else { Act::Execute });
        let start = Instant::now();
        assert_eq!(device.read(0, Buf::zeroed(512)).await.unwrap_err(), BlockError::Busy);
        assert_eq!(device.write(0, sectors(1), Durability::Volatile).await, Err(BlockError::Busy));
        // A tenth of a second each, on a machine that has time; 30 s each where it is waited for.
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        let refused = disk.refused.load(Ordering::Relaxed);
        assert!((4..=64).contains(&refused), "it was given time, and not asked without pause: {refused}");
        device.close().await;
    }
}

#[tokio::test]
async fn a_port_that_is_not_active_says_so_before_it_refuses() {
    for (ascq, state) in
        [(0x0A, AccessState::Transitioning), (0x0B, AccessState::Standby), (0x0C, AccessState::Unavailable)]
    {
        let disk = Disk::new(64, 8);
        let recorder = Recorder::default();
        let device = open(disk.serve().await, lane(&recorder)).await;
        assert_eq!(device.access(), None, "it said that it knows no states");
        disk.once(WRITE, Act::Sense(2, 0x04, ascq));
        let error = device.write(0, sectors(1), Durability::Volatile).await.unwrap_err();
        assert!(matches!(error, BlockError::Gone { .. }), "{error}");
        assert_eq!(recorder.events().last(), Some(&SessionEvent::Access(state)));
    }
}

#[tokio::test]
async fn another_disk_at_the_address_is_refused_after_the_old_session_is_settled() {
    let disk = Disk::new(64, 8);
    let recorder = Recorder::default();
    let device = open(disk.serve().await, lane(&recorder)).await;
    *disk.identity.lock().unwrap() = [0x60, 9, 9, 9, 9, 9, 9, 9];
    device.sever("for the test");
    recorder
        .when(
            "the end",
            |event| matches!(event, SessionEvent::Closed { why } if why.contains("another disk")),
        )
        .await;
    assert!(recorder.has(is_settled(1)) && !recorder.has(is_up(2)));
}

#[tokio::test]
async fn a_session_keeps_the_isid_that_it_was_given() {
    let disk = Disk::new(64, 8);
    let family = IsidFamily::random();
    let recorder = Recorder::default();
    let options = SessionOptions { isid: Some(family.member(7)), ..lane(&recorder) };
    let device = open(disk.serve().await, options).await;
    device.sever("for the test");
    recorder.when("the next session", is_up(2)).await;
    assert_eq!(disk.isids.lock().unwrap()[..], [family.member(7); 2]);
}

#[tokio::test]
async fn busy_is_no_proof_that_the_old_session_is_over() {
    for status in [0x08, 0x28] {
        let disk = Disk::new(64, 8);
        let recorder = Recorder::default();
        let device = open(disk.serve().await, lane(&recorder)).await;
        let before = disk.ordered.load(Ordering::Relaxed);
        let mut busy = 3;
        disk.script(move |cdb| {
            if cdb[0] == 0 && busy > 0 {
                busy -= 1;
                return Act::Status(status);
            }
            Act::Execute
        });
        device.sever("for the test");
        recorder.when("the next session", is_up(2)).await;
        let ordered = disk.ordered.load(Ordering::Relaxed) - before;
        assert_eq!(ordered, 4, "asked until the task set answers");
        assert!(recorder.has(is_settled(1)));
    }
}

#[tokio::test]
async fn a_barrier_that_is_not_given_its_turn_is_no_barrier() {
    let disk = Disk::new(64, 8);
    let recorder = Recorder::default();
    let options = SessionOptions { command_timeout: Duration::from_millis(300), ..lane(&recorder) };
    let device = open(disk.serve().await, options).await;
    device.barrier().await.unwrap();
    // BUSY, TASK SET FULL, RESERVATION CONFLICT, TASK ABORTED.
    for status in [0x08, 0x28, 0x18, 0x40] {
        disk.script(move |cdb| if cdb[0] == 0 { Act::Status(status) } else { Act::Execute });
        device.barrier().await.unwrap_err();
    }
    disk.once(0, Act::Sense(6, 0x2A, 0x01));
    device.barrier().await.expect("a unit attention only puts it off");
    disk.once(0, Act::Sense(2, 0x3A, 0));
    device.barrier().await.expect("what is not ready has had its turn");
}

#[tokio::test]
async fn where_each_session_has_its_own_task_set_there_is_no_barrier() {
    let disk = Disk::new(64, 8);
    disk.separate_task_sets.store(true, Ordering::Relaxed);
    let recorder = Recorder::default();
    let device = open(disk.serve().await, lane(&recorder)).await;
    let error = device.barrier().await.unwrap_err();
    assert!(error.to_string().contains("TST"), "{error}");
}

#[tokio::test]
async fn a_logout_that_the_target_asked_for_settles_nothing_while_commands_are_under_way() {
    const WRITE: u8 = 0x8A;
    const READ: u8 = 0x88;
    for under_way in [true, false] {
        let disk = Disk::new(64, 8);
        let recorder = Recorder::default();
        let settled_before_the_login = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let observer = {
            let (disk, early) = (disk.clone(), settled_before_the_login.clone());
            let record = recorder.clone();
            lunway_initiator::SharedObserver::new(move |event: SessionEvent| {
                if matches!(event, SessionEvent::Settled { .. }) && disk.logins.load(Ordering::Relaxed) == 1 {
                    early.store(true, Ordering::Relaxed);
                }
                record.tell(event);
            })
        };
        let device =
            open(disk.serve().await, SessionOptions { observer: Some(observer), ..lane(&recorder) }).await;
        disk.script(move |cdb| match cdb[0] {
            WRITE => Act::Ignore,
            READ => Act::AskForLogout,
            _ => Act::Execute,
        });
        let write = under_way.then(|| device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile));
        device.read(0, Buf::zeroed(512)).await.unwrap();
        recorder.when("the next session", is_up(2)).await;
        assert_eq!(disk.logouts.load(Ordering::Relaxed), 1);
        assert_eq!(settled_before_the_login.load(Ordering::Relaxed), !under_way);
        if let Some(write) = write {
            assert_eq!(write.await.unwrap_err(), BlockError::lost(), "nobody knows");
        }
    }
}

/// A lane that asks the unit for a proof before it changes anything, and else nothing.
fn proving(recorder: &Recorder, age_max: Duration) -> SessionOptions {
    SessionOptions { proof_age_max: Some(age_max), look_interval: Duration::ZERO, ..lane(recorder) }
}

async fn write_at_once(device: &IscsiDevice, count: u64) -> Vec<Result<(), BlockError>> {
    let write = |at| device.write(at * SECTOR as u64, sectors(1), Durability::Volatile);
    let writes: Vec<_> = (0..count).map(write).collect();
    let mut results = Vec::new();
    for write in writes {
        results.push(write.await);
    }
    results
}

#[tokio::test]
async fn writes_wait_for_a_proof_that_this_node_is_not_fenced_and_fail_unsent_where_it_may_be() {
    let age_max = Duration::from_millis(300);
    let (disk, recorder) = (Disk::new(64, 32), Recorder::default());
    let device = open(disk.serve().await, proving(&recorder, age_max)).await;
    assert!(write_at_once(&device, 8).await.iter().all(Result::is_ok));
    tokio::time::sleep(age_max * 2).await;
    disk.once(TEST_UNIT_READY, Act::Sense(6, 0x2A, 0x05));
    let before = disk.count(WRITE);
    for result in write_at_once(&device, 8).await {
        assert!(matches!(result, Err(BlockError::Gone { .. })), "{result:?}");
    }
    assert_eq!((before, disk.count(WRITE)), (8, 8), "writes sent");
    assert!(recorder.has(|event| *event == SessionEvent::Preempted));
    // The layer above has found out that another node was meant.
    assert!(write_at_once(&device, 8).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_proof_costs_one_question_after_an_idle_time_and_none_among_writes() {
    let (disk, recorder) = (Disk::new(64, 32), Recorder::default());
    // Longer than the writes take on a busy machine.
    let device = open(disk.serve().await, proving(&recorder, Duration::from_secs(10))).await;
    let opened = disk.count(TEST_UNIT_READY);
    for _ in 0..10 {
        assert!(write_at_once(&device, 8).await.iter().all(Result::is_ok));
    }
    device.flush().await.unwrap();
    assert_eq!((disk.count(WRITE), disk.count(TEST_UNIT_READY) - opened), (80, 1));
    device.close().await;

    let device = open(disk.serve().await, lane(&recorder)).await;
    let opened = disk.count(TEST_UNIT_READY);
    assert!(write_at_once(&device, 8).await.iter().all(Result::is_ok));
    assert_eq!(disk.count(TEST_UNIT_READY) - opened, 0, "without a key");
}

/// A process that was stopped reads old answers: those of a target that is merely slow look the same.
#[tokio::test]
async fn an_answer_that_comes_late_is_asked_for_once_more_and_then_taken() {
    let age_max = Duration::from_millis(20);
    let (disk, recorder) = (Disk::new(64, 32), Recorder::default());
    let device = open(disk.serve().await, proving(&recorder, age_max)).await;
    let opened = disk.count(TEST_UNIT_READY);
    disk.script(move |cdb| match cdb[0] {
        TEST_UNIT_READY => Act::After(age_max * 3),
        _ => Act::Execute,
    });
    assert!(write_at_once(&device, 1).await.iter().all(Result::is_ok));
    assert_eq!((disk.count(WRITE), disk.count(TEST_UNIT_READY) - opened), (1, 2));
}

#[tokio::test]
async fn writes_that_wait_for_a_proof_that_does_not_come_fail_unsent() {
    let (disk, recorder) = (Disk::new(64, 32), Recorder::default());
    let options = SessionOptions {
        command_timeout: Duration::from_millis(200),
        abort_timeout: Duration::from_millis(200),
        ..proving(&recorder, Duration::from_secs(10))
    };
    let device = open(disk.serve().await, options).await;
    for act in [|| Act::Ignore, || Act::Status(8)] {
        disk.script(move |cdb| if cdb[0] == TEST_UNIT_READY { act() } else { Act::Execute });
        for result in write_at_once(&device, 4).await {
            let error = result.unwrap_err();
            assert!(!matches!(error, BlockError::Aborted { .. }), "{error:?}");
        }
        assert_eq!(disk.count(WRITE), 0);
    }
    disk.script(|_| Act::Execute);
    assert!(write_at_once(&device, 4).await.iter().all(Result::is_ok));
}

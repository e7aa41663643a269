//! Silence, and whether it is death.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionEvent, SessionOptions};

use crate::support::line::Line;
use crate::support::recorder::{Recorder, is_lost, is_up};
use crate::support::scripted::{Act, Disk, NAME};

const READ: u8 = 0x88;

async fn behind_a_line(options: SessionOptions) -> (Arc<Disk>, Line, Recorder, IscsiDevice) {
    let disk = Disk::new(64 << 10, 32);
    let line = Line::start(disk.serve().await).await;
    let recorder = Recorder::default();
    let options = SessionOptions { observer: Some(recorder.observer()), ..options };
    let url = IscsiUrl::parse(&format!("iscsi://{}/{NAME}/0", line.address)).unwrap();
    let device = IscsiDevice::open(url, options).await.expect("open");
    (disk, line, recorder, device)
}

/// One that would have time for much before anything but silence is noticed.
fn patient() -> SessionOptions {
    SessionOptions {
        nop_interval: Duration::from_secs(60),
        nop_timeout: Duration::from_secs(60),
        ..SessionOptions::fail_fast()
    }
}

#[tokio::test]
async fn a_black_hole_is_noticed_after_a_second() {
    let (_, line, recorder, device) = behind_a_line(patient()).await;
    device.read(0, Buf::zeroed(4096)).await.unwrap();
    line.swallow(true);
    let start = Instant::now();
    let error = device.read(0, Buf::zeroed(4096)).await.unwrap_err();
    assert_eq!(error, BlockError::lost());
    let time = start.elapsed();
    // 1.1 s on a machine with time.
    assert!((Duration::from_millis(950)..Duration::from_millis(2500)).contains(&time), "{time:?}");
    let told = recorder.events();
    let [SessionEvent::Up { .. }, SessionEvent::Silent, SessionEvent::Lost { why, .. }] = &told[..3] else {
        panic!("{told:?}")
    };
    assert!(why.contains("black hole"), "{why}");
    line.swallow(false);
    recorder.when("the next session", is_up(2)).await;
}

#[tokio::test]
async fn a_black_hole_in_the_middle_of_a_stream_is_noticed_as_soon() {
    let (_, line, recorder, device) = behind_a_line(patient()).await;
    let device = Arc::new(device);
    let writers: Vec<_> = (0..8u64)
        .map(|writer| {
            let device = device.clone();
            tokio::spawn(async move {
                let data = Buf::zeroed(1 << 20).freeze();
                while device.write(writer << 20, data.clone(), Durability::Volatile).await.is_ok() {}
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    line.swallow(true);
    let start = Instant::now();
    let lost = recorder.when("the loss", is_lost).await;
    assert!(lost - start < Duration::from_millis(2500), "{:?}", lost - start);
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_path_that_has_become_a_black_hole_is_noticed_before_it_is_needed() {
    let options = SessionOptions { nop_interval: Duration::from_millis(200), ..patient() };
    let (_, line, recorder, _device) = behind_a_line(options).await;
    line.swallow(true);
    let start = Instant::now();
    let lost = recorder.when("the loss", is_lost).await;
    assert!(lost - start < Duration::from_secs(3), "{:?}", lost - start);
}

#[tokio::test]
async fn a_disk_that_takes_its_time_is_no_black_hole() {
    let (disk, _line, recorder, device) = behind_a_line(patient()).await;
    disk.once(READ, Act::After(Duration::from_millis(2500)));
    device.read(0, Buf::zeroed(4096)).await.expect("it comes in the end");
    let told = recorder.events();
    assert!(told.contains(&SessionEvent::Silent) && told.contains(&SessionEvent::Heard), "{told:?}");
    assert!(!recorder.has(is_lost));
}

#[tokio::test]
async fn a_target_that_hangs_is_left_when_it_does_not_answer_pings() {
    let options = SessionOptions {
        nop_interval: Duration::from_millis(500),
        nop_timeout: Duration::from_millis(2500),
        ..SessionOptions::fail_fast()
    };
    let (_, line, recorder, device) = behind_a_line(options).await;
    // Its kernel acknowledges what nobody reads.
    line.eat(true);
    let start = Instant::now();
    device.read(0, Buf::zeroed(4096)).await.unwrap_err();
    let time = start.elapsed();
    assert!((Duration::from_millis(2500)..Duration::from_secs(6)).contains(&time), "{time:?}");
    let lost = recorder.events().into_iter().find(is_lost).unwrap();
    assert!(!matches!(&lost, SessionEvent::Lost { why, .. } if why.contains("black hole")), "{lost:?}");
}

#[tokio::test]
async fn a_window_that_is_closed_for_seconds_is_no_black_hole() {
    let (_, line, recorder, device) = behind_a_line(patient()).await;
    line.freeze(true);
    let device = Arc::new(device);
    let writes: Vec<_> = (0..8u64)
        .map(|n| device.write(n << 20, Buf::zeroed(2 << 20).freeze(), Durability::Volatile))
        .map(|write| tokio::spawn(async move { write.await }))
        .collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    line.freeze(false);
    for write in writes {
        write.await.unwrap().unwrap();
    }
    assert!(recorder.has(|event| *event == SessionEvent::Silent));
    assert!(!recorder.has(is_lost), "{:?}", recorder.events());
}

#[tokio::test]
async fn a_black_hole_while_connecting_again_is_left_too() {
    let options = SessionOptions { login_timeout: Duration::from_secs(60), ..patient() };
    let (disk, line, recorder, device) = behind_a_line(options).await;
    // In the middle of what a new session asks the unit.
    let hole = Arc::new(tokio::sync::Notify::new());
    disk.script({
        let hole = hole.clone();
        move |cdb| {
            if cdb[0] == 0x9E {
                hole.notify_one();
                return Act::Ignore;
            }
            Act::Execute
        }
    });
    device.sever("for the test");
    hole.notified().await;
    line.swallow(true);
    disk.script(|_| Act::Execute);
    tokio::time::sleep(Duration::from_millis(500)).await;
    line.cut_far_end();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    line.swallow(false);
    recorder.when("the next session", is_up(2)).await;
}

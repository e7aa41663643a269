//! Answers that get lost on a connection that lives, and answers that cannot be true.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Fate, SharedBuf};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};

use crate::support::quick;
use crate::support::rejecting::{Rejecting, ask_beyond, good, read_with};
use crate::support::scripted::{Act, Disk, NAME};

const TEST_UNIT_READY: u8 = 0x00;
const READ: u8 = 0x88;
const WRITE: u8 = 0x8A;

async fn open(
    disk: &Arc<Disk>,
    answer: fn(&[u8]) -> Vec<u8>,
    options: SessionOptions,
) -> (Arc<Rejecting>, IscsiDevice) {
    open_for(disk, WRITE, answer, options).await
}

/// With commands of this operation code that can be answered on their way.
async fn open_for(
    disk: &Arc<Disk>,
    opcode: u8,
    answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static,
    options: SessionOptions,
) -> (Arc<Rejecting>, IscsiDevice) {
    let between = Arc::new(Rejecting::default());
    let address = between.serve_with(disk.serve().await, opcode, answer).await;
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    (between, IscsiDevice::open(url, options).await.expect("open"))
}

fn data(len: usize) -> SharedBuf {
    Buf::copy_of(&vec![7; len]).freeze()
}

#[tokio::test]
async fn commands_whose_answers_were_lost_are_sent_again_when_the_next_answer_comes_and_not_after_their_time()
{
    for pings in [false, true] {
        let disk = Disk::new(64, 8);
        let nop_interval = if pings { Duration::from_millis(300) } else { Duration::ZERO };
        let options = SessionOptions {
            command_timeout: Duration::from_secs(60),
            nop_interval,
            nop_timeout: Duration::from_secs(30),
            ..quick()
        };
        let (between, device) = open(&disk, good, options).await;
        for _ in 0..20 {
            device.read(0, Buf::zeroed(512)).await.unwrap();
        }
        between.loses.store(1, Ordering::SeqCst);
        let start = Instant::now();
        let write = tokio::spawn(device.write(0, data(512), Durability::Volatile).into_future());
        while between.loses.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if !pings {
            device.read(0, Buf::zeroed(512)).await.unwrap();
        }
        write.await.unwrap().unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert_eq!((disk.logins.load(Ordering::Relaxed), disk.count(WRITE)), (2, 2));
    }
}

#[tokio::test]
async fn a_write_that_the_target_knows_no_more_and_never_answered_is_sent_again_once() {
    let options = SessionOptions { command_timeout: Duration::from_millis(500), ..quick() };
    let disk = Disk::new(64, 8);
    let (_, device) = open(&disk, good, options).await;
    disk.knows_no_tasks.store(true, Ordering::Relaxed);
    disk.once(WRITE, Act::Ignore);
    device.write(0, data(512), Durability::Volatile).await.expect("sent again in a new session");
    assert_eq!((disk.logins.load(Ordering::Relaxed), disk.count(WRITE)), (2, 1));
    disk.script(|cdb| if cdb[0] == WRITE { Act::Ignore } else { Act::Execute });
    let error = device.write(0, data(512), Durability::Volatile).await.unwrap_err();
    assert_eq!(
        error,
        BlockError::Timeout { millis: 500, fate: Fate::Over },
        "a target that loses its commands itself"
    );
}

#[tokio::test]
async fn a_write_that_is_acknowledged_before_its_data_was_asked_for_is_an_error_that_says_how_much_was_sent()
{
    let disk = Disk::new(4096, 8);
    let (between, device) = open(&disk, good, quick()).await;
    between.left.store(1, Ordering::SeqCst);
    let error = device.write(0, data(1 << 20), Durability::Volatile).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("1048576 bytes of data, of which it took only"), "{text}");
}

#[tokio::test]
async fn a_breach_of_the_protocol_that_comes_again_is_tried_five_times_ever_more_slowly_and_then_told() {
    let disk = Disk::new(4096, 8);
    let (between, device) = open(&disk, ask_beyond, quick()).await;
    between.left.store(usize::MAX, Ordering::SeqCst);
    let start = Instant::now();
    let error = device.write(0, data(1 << 20), Durability::Volatile).await.unwrap_err();
    let text = error.to_string();
    for part in [NAME, "in 5 sessions", "R2T for 4096 bytes at 1048576"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!((between.done.load(Ordering::SeqCst), disk.logins.load(Ordering::Relaxed)), (5, 6));
    // 100, 200, 400 and 800 ms, and 1600 ms before the session that shows that nothing is left.
    assert!(start.elapsed() > Duration::from_millis(3000), "{:?}", start.elapsed());
    between.left.store(0, Ordering::SeqCst);
    device.write(0, data(1 << 20), Durability::Volatile).await.expect("the disk can be used");
}

/// A Data-In longer than any MaxRecvDataSegmentLength that is declared.
fn too_long(command: &[u8]) -> Vec<u8> {
    read_with(command, 12 << 20, 0, 0)
}

#[tokio::test]
async fn data_segments_above_the_declared_length_are_a_breach_that_is_told_after_five_sessions() {
    let disk = Disk::new(4096, 8);
    let (between, device) = open_for(&disk, READ, too_long, quick()).await;
    between.left.store(usize::MAX, Ordering::SeqCst);
    let text = device.read(0, Buf::zeroed(4096)).await.unwrap_err().to_string();
    for part in [NAME, "in 5 sessions", "a data segment of 12582912 bytes exceeds MaxRecvDataSegmentLength"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(disk.logins.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn a_lane_whose_target_breaks_the_protocol_in_five_sessions_in_a_row_ends_and_says_so() {
    let disk = Disk::new(4096, 8);
    let (between, device) = open_for(&disk, READ, too_long, SessionOptions::fail_fast()).await;
    between.left.store(usize::MAX, Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let text = device.read(0, Buf::zeroed(4096)).await.unwrap_err().to_string();
        if text.contains("in the same way in 5 sessions in a row: a data segment of 12582912 bytes") {
            break;
        }
        assert!(Instant::now() < until, "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(disk.logins.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_target_that_is_reached_while_the_old_session_keeps_its_lun_busy_is_not_called_unreachable() {
    let options = SessionOptions {
        command_timeout: Duration::from_millis(300),
        abort_timeout: Duration::from_millis(100),
        replacement_timeout: Duration::from_millis(1500),
        ..quick()
    };
    let disk = Disk::new(64, 8);
    let (_, device) = open(&disk, good, options).await;
    *disk.answers_aborts.lock().unwrap() = false;
    disk.script(|cdb| if matches!(cdb[0], WRITE | TEST_UNIT_READY) { Act::Ignore } else { Act::Execute });
    device.write(0, data(512), Durability::Volatile).await.unwrap_err();
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let error = device.read(0, Buf::zeroed(512)).await.unwrap_err().to_string();
        if error.contains("is reachable, and the LUN is busy with a command of this host's old session") {
            return;
        }
        assert!(Instant::now() < until, "{error}");
    }
}

/// Bits of Data-In (RFC 7143 §11.7): U and O.
const UNDER: u8 = 0x02;
const OVER: u8 = 0x04;

#[tokio::test]
async fn a_read_whose_residual_contradicts_what_came_is_an_error_of_that_read() {
    for (len, flags, residual, parts) in [
        (4096, UNDER, 512, Some(["4096 of 4096", "512 are missing"])),
        (4096, OVER, 512, Some(["4096 of 4096", "512 more"])),
        (4096, UNDER | OVER, 512, Some(["4096 of 4096", "both too few and too many"])),
        (2048, UNDER, 512, Some(["2048 of 4096", "512 are missing"])),
        (2048, UNDER, 2048, Some(["2048 of 4096", "bytes"])),
        (2048, 0, 0, Some(["2048 of 4096", "bytes"])),
        (4096, UNDER, 0, None),
        (4096, OVER, 0, None),
        (4096, 0, 77, None),
    ] {
        let disk = Disk::new(64, 8);
        let answer = move |command: &[u8]| read_with(command, len, flags, residual);
        let (between, device) = open_for(&disk, READ, answer, quick()).await;
        between.left.store(1, Ordering::SeqCst);
        let answer = device.read(0, Buf::zeroed(4096)).await;
        match (parts, answer) {
            (Some(parts), Err(error)) => {
                let text = error.to_string();
                assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            }
            (None, Ok(data)) => assert!(data.iter().all(|byte| *byte == 0x5A)),
            (_, answer) => panic!("{len} bytes, flags {flags}, residual {residual}: {answer:?}"),
        }
        // No breach that a new session would mend.
        assert_eq!(disk.logins.load(Ordering::Relaxed), 1);
    }
}

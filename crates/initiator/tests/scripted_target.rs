//! Conversations with a target that misbehaves on command.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lunway_block::{BlockDevice, BlockError, Buf, Durability, Fate, Permit, SharedBuf};
use lunway_initiator::{IscsiDevice, IscsiOpenError, IscsiUrl, SessionOptions, inspect};

use crate::support::scripted::{Act, Disk, NAME, SECTOR};
use crate::support::{Random, model, quick};

const TEST_UNIT_READY: u8 = 0x00;
const INQUIRY: u8 = 0x12;
const READ: u8 = 0x88;
const WRITE: u8 = 0x8A;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2A;
const SYNCHRONIZE_CACHE: u8 = 0x91;
const CAPACITY: u8 = 0x9E;

async fn url(disk: &Arc<Disk>) -> IscsiUrl {
    IscsiUrl::parse(&format!("iscsi://{}/{NAME}/0", disk.serve().await)).unwrap()
}

async fn open(disk: &Arc<Disk>, options: SessionOptions) -> IscsiDevice {
    IscsiDevice::open(url(disk).await, options).await.expect("open")
}

fn pattern(seed: u64, len: usize) -> SharedBuf {
    let mut random = Random(seed);
    let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    Buf::copy_of(&bytes).freeze()
}

#[tokio::test]
async fn a_unit_that_answers_inquiry_with_an_error_is_not_said_to_be_missing() {
    let disk = Disk::new(64, 8);
    let url = url(&disk).await;
    let refused = async |key, asc| {
        disk.script(move |cdb| if cdb[0] == INQUIRY { Act::Sense(key, asc, 0) } else { Act::Execute });
        inspect(&url, &quick()).await.unwrap_err()
    };
    let aborted = refused(0x0B, 0x4B).await;
    assert!(matches!(&aborted, IscsiOpenError::Command { command: "INQUIRY", .. }), "{aborted}");
    assert!(aborted.to_string().contains("ABORTED COMMAND"), "{aborted}");
    let missing = refused(0x05, 0x25).await;
    assert!(matches!(missing, IscsiOpenError::NoSuchLun { lun: 0, .. }), "{missing}");
}

#[tokio::test]
async fn what_is_written_is_read_and_the_session_ends_with_a_logout() {
    let disk = Disk::new(2048, 128);
    let device = open(&disk, quick()).await;
    let geometry = device.geometry();
    assert_eq!((geometry.size, geometry.logical_sector), ((2048 * SECTOR) as u64, 512));
    assert!(geometry.volatile_cache && !geometry.read_only);
    let data = pattern(1, 64 * SECTOR);
    device.write(4096, data.clone(), Durability::Volatile).await.unwrap();
    device.flush().await.unwrap();
    let read = device.read(4096, Buf::zeroed(data.len())).await.unwrap();
    assert!(read[..] == data[..]);
    device.close().await;
    assert_eq!(disk.logouts.load(Ordering::Relaxed), 1);
    let closed = device.read(0, Buf::zeroed(512)).await.unwrap_err();
    assert!(matches!(closed, BlockError::Gone { .. }), "{closed}");
}

#[tokio::test]
async fn a_dropped_device_logs_out_too() {
    let disk = Disk::new(64, 8);
    drop(open(&disk, quick()).await);
    let until = Instant::now() + Duration::from_secs(2);
    while disk.logouts.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < until, "no logout");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// shows RFC 7143 [4.2.2.1-12]
#[tokio::test]
async fn the_command_window_is_respected_and_used() {
    for window in 1..=4u16 {
        let disk = Disk::new(4096, window);
        let device = open(&disk, quick()).await;
        disk.script(|cdb| if cdb[0] == READ { Act::After(Duration::from_millis(2)) } else { Act::Execute });
        let reads = (0..64).map(|n| device.read(n * 4096, Buf::zeroed(4096)).into_future());
        for result in join_all(reads).await {
            result.unwrap();
        }
        assert_eq!(disk.most_in_flight.load(Ordering::Relaxed), usize::from(window));
    }
}

#[tokio::test]
async fn transfers_are_cut_at_the_targets_limit_and_at_ours() {
    let disk = Disk::new(8192, 16);
    *disk.transfer_blocks_max.lock().unwrap() = 24;
    let device = open(&disk, quick()).await;
    assert_eq!(device.geometry().max_transfer, 24 * 512);
    let data = pattern(2, 1000 * SECTOR);
    device.write(512, data.clone(), Durability::Volatile).await.unwrap();
    assert_eq!(disk.count(WRITE), 1000usize.div_ceil(24));
    let read = device.read(512, Buf::zeroed(data.len())).await.unwrap();
    assert!(read[..] == data[..]);
    assert_eq!(disk.count(READ), 1000usize.div_ceil(24));
    let blocks = |cdb: &Vec<u8>| u32::from_be_bytes(cdb[10..14].try_into().unwrap());
    assert!(disk.seen.lock().unwrap().iter().filter(|cdb| cdb[0] == WRITE).all(|cdb| blocks(cdb) <= 24));

    let disk = Disk::new(8192, 16);
    let device = open(&disk, SessionOptions { transfer_max: 64 << 10, ..quick() }).await;
    device.read(0, Buf::zeroed(1 << 20)).await.unwrap();
    assert_eq!(disk.count(READ), 16);
}

#[tokio::test]
async fn ranges_that_are_wrong_never_reach_the_target() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    let size = device.geometry().size;
    assert!(matches!(device.read(size, Buf::zeroed(512)).await, Err(BlockError::OutOfRange { .. })));
    assert!(matches!(device.read(1, Buf::zeroed(512)).await, Err(BlockError::Misaligned { .. })));
    assert_eq!(disk.count(READ), 0);
    assert!(device.read(size, Buf::empty()).await.is_ok(), "an empty range succeeds");
}

#[tokio::test]
async fn stable_writes_carry_fua_or_are_followed_by_a_flush() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    device.write(0, pattern(3, 512), Durability::Stable).await.unwrap();
    assert_eq!(disk.seen.lock().unwrap().last().map(|cdb| (cdb[0], cdb[1] & 8)), Some((WRITE, 8)));
    assert_eq!(disk.count(SYNCHRONIZE_CACHE), 0);

    let disk = Disk::new(64, 8);
    *disk.cache.lock().unwrap() = (true, false);
    let device = open(&disk, quick()).await;
    device.write(0, pattern(3, 512), Durability::Stable).await.unwrap();
    let seen: Vec<_> = disk.seen.lock().unwrap().iter().rev().take(2).map(|cdb| (cdb[0], cdb[1])).collect();
    assert_eq!(seen, [(SYNCHRONIZE_CACHE, 0), (WRITE, 0)]);
}

#[tokio::test]
async fn zeroes_are_written_where_write_same_is_not_known() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    device.write(0, pattern(4, 64 * 512), Durability::Volatile).await.unwrap();
    device.write_zeroes(512, 1024, lunway_block::Zeroing::MayUnmap).await.unwrap();
    let data = disk.data.lock().unwrap();
    assert!(data[512..1536].iter().all(|&byte| byte == 0) && data[1536..2048].iter().any(|&byte| byte != 0));
}

#[tokio::test]
async fn a_target_without_read_16_and_write_16_is_read_and_written_by_those_of_ten_bytes() {
    for fast in [false, true] {
        let disk = Disk::new(4096, 8);
        disk.script(|cdb| match cdb[0] {
            READ | WRITE => Act::Sense(5, 0x20, 0),
            _ => Act::Execute,
        });
        let replacement_timeout = if fast { Duration::ZERO } else { quick().replacement_timeout };
        let options = SessionOptions { replacement_timeout, ..quick() };
        let device = open(&disk, options).await;
        let data = pattern(11, 64 * SECTOR);
        device.write(4096, data.clone(), Durability::Stable).await.unwrap();
        let reads = (0..8).map(|n| device.read(4096 + n * 4096, Buf::zeroed(4096)).into_future());
        for (n, read) in join_all(reads).await.into_iter().enumerate() {
            assert!(read.unwrap()[..] == data[n * 4096..(n + 1) * 4096]);
        }
        let seen = disk.seen.lock().unwrap().clone();
        assert!(seen.iter().any(|cdb| cdb[0] == WRITE_10 && cdb[1] & 8 != 0), "FUA stays");
        assert_eq!(seen.iter().filter(|cdb| cdb[0] == READ_10).count(), 8);
        let refused = disk.refused.load(Ordering::Relaxed);
        device.read(0, Buf::zeroed(512)).await.unwrap();
        device.write(0, pattern(12, 512), Durability::Volatile).await.unwrap();
        assert_eq!(disk.refused.load(Ordering::Relaxed), refused, "the long ones are not tried again");
        assert_eq!(refused, 1, "one answer is enough for both");
    }
}

#[tokio::test]
async fn busy_full_attention_and_aborted_are_tried_again() {
    for act in [
        Act::Status(0x08),
        Act::Status(0x28),
        Act::Status(0x40),
        Act::Sense(6, 0x3F, 0x0E),
        Act::Sense(11, 0, 0),
        Act::Sense(2, 0x04, 0x01),
        Act::Sense(2, 0x04, 0x07),
        Act::Sense(2, 0x04, 0x0A),
        Act::Sense(2, 0x04, 0x14),
    ] {
        let disk = Disk::new(64, 8);
        let device = open(&disk, quick()).await;
        disk.once(WRITE, act);
        device.write(0, pattern(5, 512), Durability::Volatile).await.unwrap();
        assert!(disk.data.lock().unwrap()[..512] == pattern(5, 512)[..]);
    }
}

#[tokio::test]
async fn a_target_that_stays_busy_is_reported_as_busy_in_time() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, SessionOptions { command_timeout: Duration::from_millis(200), ..quick() }).await;
    disk.script(|cdb| if cdb[0] == READ { Act::Status(0x08) } else { Act::Execute });
    let mut errors = Vec::new();
    // On a busy machine the time may end while a command is on its way, which is a timeout.
    while errors.last() != Some(&BlockError::Busy) && errors.len() < 8 {
        let start = Instant::now();
        errors.push(device.read(0, Buf::zeroed(512)).await.unwrap_err());
        assert!(start.elapsed() < Duration::from_secs(2));
    }
    assert_eq!(errors.last(), Some(&BlockError::Busy), "{errors:?}");
}

#[tokio::test]
async fn errors_keep_their_meaning() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    for (act, expected) in [
        (Act::Sense(3, 0x11, 0), BlockError::Medium { offset: 1024 }),
        (Act::Sense(7, 0x27, 0x07), BlockError::NoSpace),
        (Act::Sense(7, 0x27, 0), BlockError::ReadOnly),
        (Act::Status(0x18), BlockError::ReservationConflict),
    ] {
        disk.once(READ, act);
        assert_eq!(device.read(1024, Buf::zeroed(512)).await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn a_path_knows_why_its_connection_was_lost_and_why_there_is_no_new_one() {
    let disk = Disk::new(64, 8);
    let options = SessionOptions { replacement_timeout: Duration::from_millis(500), ..quick() };
    let device = open(&disk, options).await;
    assert_eq!(device.paths()[0].last_event, None);
    disk.once(READ, Act::ExecuteAndHangUp);
    device.read(0, Buf::zeroed(512)).await.expect("in a new session");
    let known = device.paths().remove(0).last_event.unwrap();
    assert!(known.starts_with("connection lost: ") && known.ends_with("; connected again"), "{known}");
    *disk.identity.lock().unwrap() = [0x60, 9, 9, 9, 9, 9, 9, 9];
    disk.script(|cdb| if cdb[0] == 0 { Act::Status(0x18) } else { Act::ExecuteAndHangUp });
    device.read(0, Buf::zeroed(512)).await.unwrap_err();
    let known = device.paths().remove(0).last_event.unwrap();
    assert!(known.contains("connection lost: ") && known.contains("; no new one: "), "{known}");
}

// shows RFC 7143 [7.11-1]
#[tokio::test]
async fn a_command_without_answer_is_aborted_and_times_out() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, SessionOptions { command_timeout: Duration::from_millis(200), ..quick() }).await;
    disk.once(READ, Act::Ignore);
    let error = device.read(0, Buf::zeroed(512)).await.unwrap_err();
    assert_eq!(error, BlockError::Timeout { millis: 200, fate: Fate::Over });
    let known = device.paths().remove(0).last_event.unwrap();
    assert!(known.contains("no answer within 200 ms to a command 88h"), "{known}");
    assert_eq!((disk.aborts.load(Ordering::Relaxed), disk.logins.load(Ordering::Relaxed)), (1, 1));
    device.read(0, Buf::zeroed(512)).await.expect("the session goes on");
}

/// Each login began the time anew: I/O failed after 96 s, with 14 logins a second until then.
#[tokio::test]
async fn a_target_that_hangs_up_at_each_command_has_the_replacement_timeout_and_few_logins() {
    let disk = Disk::new(64, 8);
    let replacement_timeout = Duration::from_secs(3);
    let device = open(&disk, SessionOptions { replacement_timeout, ..quick() }).await;
    disk.script(|cdb| if cdb[0] == READ { Act::ExecuteAndHangUp } else { Act::Execute });
    let start = Instant::now();
    let error = device.read(0, Buf::zeroed(512)).await.unwrap_err();
    let (waited, logins) = (start.elapsed(), disk.logins.load(Ordering::Relaxed));
    assert_eq!(error, BlockError::Timeout { millis: 3000, fate: Fate::Unknown });
    assert!(waited >= replacement_timeout && waited < replacement_timeout * 2, "{waited:?}");
    // Waits of 50 ms, 50 ms, 100 ms, 200 ms ...
    assert!(logins <= 10, "{logins} logins");
    let start = Instant::now();
    device.read(0, Buf::zeroed(512)).await.unwrap_err();
    assert!(start.elapsed() < replacement_timeout, "what is new fails with the next loss");
    disk.script(|_| Act::Execute);
    let until = Instant::now() + Duration::from_secs(10);
    while device.read(0, Buf::zeroed(512)).await.is_err() {
        assert!(Instant::now() < until, "a target that is well again is used again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    disk.once(READ, Act::ExecuteAndHangUp);
    let start = Instant::now();
    device.read(0, Buf::zeroed(512)).await.expect("a command that was carried out begins the time anew");
    assert!(start.elapsed() < replacement_timeout);
}

#[tokio::test]
async fn a_write_that_sessions_are_lost_over_fails_in_time_though_reads_are_carried_out() {
    let disk = Disk::new(64, 8);
    let replacement_timeout = Duration::from_secs(2);
    let device = Arc::new(open(&disk, SessionOptions { replacement_timeout, ..quick() }).await);
    // Long enough for a read to be carried out in each session.
    let hang_up = Duration::from_millis(100);
    disk.script(move |cdb| if cdb[0] == WRITE { Act::HangUpAfter(hang_up) } else { Act::Execute });
    let reads = tokio::spawn({
        let device = device.clone();
        async move {
            loop {
                device.read(0, Buf::zeroed(512)).await.expect("reads are carried out");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let start = Instant::now();
    let error = device.write(0, pattern(1, 512), Durability::Volatile).await.unwrap_err();
    assert_eq!(error, BlockError::Timeout { millis: 2000, fate: Fate::Over });
    assert!(start.elapsed() < replacement_timeout * 3, "{:?}", start.elapsed());
    assert!(!reads.is_finished());
    reads.abort();
}

#[tokio::test]
async fn a_target_that_holds_each_command_just_under_its_time_and_hangs_up_is_bounded() {
    let disk = Disk::new(64, 8);
    let options = SessionOptions {
        command_timeout: Duration::from_millis(800),
        replacement_timeout: Duration::from_secs(2),
        ..quick()
    };
    let device = open(&disk, options.clone()).await;
    disk.script(|cdb| match cdb[0] {
        READ => Act::HangUpAfter(Duration::from_millis(700)),
        _ => Act::Execute,
    });
    let start = Instant::now();
    let error = device.read(0, Buf::zeroed(512)).await.unwrap_err();
    assert!(matches!(error, BlockError::Timeout { .. }), "{error}");
    let most = 2 * options.command_timeout + options.abort_timeout + options.replacement_timeout;
    assert!(start.elapsed() < most + Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_write_that_was_taken_in_part_is_an_error() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    disk.once(WRITE, Act::TakeHalf);
    let error = device.write(0, pattern(1, 4096), Durability::Volatile).await.unwrap_err();
    assert!(matches!(error, BlockError::Io { .. }), "{error}");
}

#[tokio::test]
async fn where_the_abort_is_not_answered_either_a_new_session_ends_the_old_one() {
    let disk = Disk::new(64, 8);
    let options = SessionOptions {
        command_timeout: Duration::from_millis(200),
        abort_timeout: Duration::from_millis(100),
        ..quick()
    };
    let device = open(&disk, options).await;
    *disk.answers_aborts.lock().unwrap() = false;
    disk.once(WRITE, Act::Ignore);
    let start = Instant::now();
    let error = device.write(0, pattern(6, 512), Durability::Volatile).await.unwrap_err();
    assert_eq!(error, BlockError::Timeout { millis: 200, fate: Fate::Over });
    assert!(start.elapsed() < Duration::from_secs(3));
    assert_eq!(disk.logins.load(Ordering::Relaxed), 2, "it fails once the old session is dead");
    assert!(disk.data.lock().unwrap()[..512].iter().all(|&byte| byte == 0), "and is not sent again");
}

// shows RFC 7143 [6.3.5-2, 7.15-1]
#[tokio::test]
async fn work_whose_answer_was_lost_is_done_again() {
    let disk = Disk::new(4096, 32);
    let device = Arc::new(open(&disk, quick()).await);
    let mut left = 5;
    disk.script(move |cdb| {
        if left > 0 && cdb[0] == WRITE {
            left -= 1;
            return Act::ExecuteAndHangUp;
        }
        Act::Execute
    });
    // Scripted capacity: a hang-up is no power-on, so flushes succeed.
    model::verified_io(device.clone(), 4, 60, |_| false).await;
    assert_eq!(disk.logins.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn a_command_that_is_not_known_to_be_idempotent_is_not_sent_twice() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    let mut cdb = [0; 16];
    cdb[0] = WRITE;
    cdb[13] = 1;
    disk.once(WRITE, Act::ExecuteAndHangUp);
    let result = device.execute(&cdb, pattern(7, 512), Buf::empty(), false).await;
    assert_eq!(result.unwrap_err(), BlockError::lost());
    device.read(0, Buf::zeroed(512)).await.unwrap();
    assert_eq!(disk.count(WRITE), 1);
}

#[tokio::test]
async fn abandoned_writes_are_not_sent_again() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    disk.script(|cdb| if cdb[0] == WRITE { Act::Ignore } else { Act::Execute });
    let abandoned = device.write(0, pattern(8, 512), Durability::Volatile);
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(abandoned);
    disk.once(READ, Act::ExecuteAndHangUp);
    device.read(0, Buf::zeroed(512)).await.unwrap();
    assert_eq!((disk.count(WRITE), disk.logins.load(Ordering::Relaxed)), (0, 2));
}

#[tokio::test]
async fn a_power_on_with_unflushed_writes_fails_exactly_one_flush() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    device.write(0, pattern(9, 512), Durability::Volatile).await.unwrap();
    device.flush().await.unwrap();
    disk.once(READ, Act::Sense(6, 0x29, 0x01));
    device.read(0, Buf::zeroed(512)).await.unwrap();
    device.flush().await.expect("all was flushed before the power-on");

    device.write(0, pattern(9, 512), Durability::Volatile).await.unwrap();
    disk.once(READ, Act::Sense(6, 0x29, 0x00));
    device.read(0, Buf::zeroed(512)).await.unwrap();
    let error = device.flush().await.unwrap_err();
    assert!(error.to_string().contains("may be lost"), "{error}");
    device.flush().await.expect("reported once");

    device.write(0, pattern(9, 512), Durability::Volatile).await.unwrap();
    disk.once(READ, Act::Sense(6, 0x29, 0x07));
    device.read(0, Buf::zeroed(512)).await.unwrap();
    device.flush().await.expect("the loss of a nexus loses no cache");
}

#[tokio::test]
async fn a_power_on_seen_while_connecting_again_spoils_the_flush_under_way() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    device.write(0, pattern(9, 512), Durability::Volatile).await.unwrap();
    let mut hung_up = false;
    let mut told = false;
    disk.script(move |cdb| match cdb[0] {
        SYNCHRONIZE_CACHE if !hung_up => {
            hung_up = true;
            Act::ExecuteAndHangUp
        }
        0x00 if !told => {
            told = true;
            Act::Sense(6, 0x29, 0x01)
        }
        _ => Act::Execute,
    });
    let error = device.flush().await.unwrap_err();
    assert!(error.to_string().contains("may be lost"), "{error}");
    device.flush().await.expect("reported once");
}

#[tokio::test]
async fn a_deferred_error_fails_the_next_flush() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    let mut sent = false;
    disk.script(move |cdb| {
        if cdb[0] == READ && !std::mem::replace(&mut sent, true) {
            return Act::Deferred(3, 0x0C, 0x00);
        }
        Act::Execute
    });
    device.read(0, Buf::zeroed(512)).await.expect("the read itself was not executed, and is sent again");
    assert!(device.flush().await.is_err());
    device.flush().await.expect("reported once");
}

#[tokio::test]
async fn a_disk_that_grows_says_so() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = heard.clone();
    device.on_resize(Box::new(move |geometry| ears.lock().unwrap().push(geometry.size)));
    disk.data.lock().unwrap().resize(128 * SECTOR, 0);
    disk.once(READ, Act::Sense(6, 0x2A, 0x09));
    device.read(0, Buf::zeroed(512)).await.unwrap();
    let until = Instant::now() + Duration::from_secs(2);
    while heard.lock().unwrap().is_empty() {
        assert!(Instant::now() < until, "nobody was told");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!((heard.lock().unwrap()[..].to_vec(), device.geometry().size), (vec![65536], 65536));
    device.read(65536 - 512, Buf::zeroed(512)).await.unwrap();
    device.resize(65536, Permit::default()).await.unwrap();
    let refused = device.resize(32768, Permit::default()).await.unwrap_err();
    assert!(refused.to_string().contains("resize it there"), "{refused}");
}

/// A client that mounts a disk asks it nothing while nobody uses it.
#[tokio::test]
async fn a_disk_that_grows_while_nobody_uses_it_says_so() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, SessionOptions { look_interval: Duration::from_millis(50), ..quick() }).await;
    let (tell, told) = std::sync::mpsc::channel();
    device.on_resize(Box::new(move |geometry| tell.send(geometry.size).unwrap()));
    disk.data.lock().unwrap().resize(128 * SECTOR, 0);
    disk.once(TEST_UNIT_READY, Act::Sense(6, 0x2A, 0x09));
    let heard = tokio::task::spawn_blocking(move || told.recv_timeout(Duration::from_secs(5))).await.unwrap();
    assert_eq!(heard, Ok(65536));
    assert_eq!((device.geometry().size, disk.count(READ)), (65536, 0));
    device.read(65536 - 512, Buf::zeroed(512)).await.unwrap();
}

#[tokio::test]
async fn a_look_that_is_never_answered_costs_no_session_and_delays_no_logout() {
    let disk = Disk::new(64, 8);
    let options = SessionOptions {
        look_interval: Duration::from_millis(20),
        command_timeout: Duration::from_millis(200),
        abort_timeout: Duration::from_millis(100),
        ..quick()
    };
    let device = open(&disk, options).await;
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    disk.script(move |cdb| match cdb[0] {
        TEST_UNIT_READY => {
            counted.fetch_add(1, Ordering::SeqCst);
            Act::Ignore
        }
        _ => Act::Execute,
    });
    let until = Instant::now() + Duration::from_secs(5);
    while looks.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < until, "the disk was not looked at");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Past the time for the command and for its abort.
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Each waits for the end of the one before, its abort included.
    let looks = looks.load(Ordering::SeqCst);
    assert!(looks <= 7, "{looks} looks at a unit that hangs");
    assert_eq!(device.epoch(), 1, "the session was given up");
    device.read(0, Buf::zeroed(512)).await.unwrap();
    let begun = Instant::now();
    device.close().await;
    // As long as a logout waits for what is under way, and no longer.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn another_disk_under_the_old_address_is_refused() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, quick()).await;
    *disk.identity.lock().unwrap() = [0x60, 9, 9, 9, 9, 9, 9, 9];
    disk.once(WRITE, Act::ExecuteAndHangUp);
    let error = device.write(0, pattern(1, 512), Durability::Volatile).await.unwrap_err();
    assert!(matches!(error, BlockError::Timeout { .. } | BlockError::Gone { .. }), "{error}");
    let error = device.read(0, Buf::zeroed(512)).await.unwrap_err();
    assert!(matches!(&error, BlockError::Gone { why, .. } if why.contains("another disk")), "{error}");
    assert_eq!(disk.count(WRITE), 1);
}

// shows RFC 7143 [11.9.1-2]
#[tokio::test]
async fn a_logout_that_the_target_asks_for_loses_nothing() {
    let disk = Disk::new(4096, 8);
    let device = Arc::new(open(&disk, quick()).await);
    let mut count = 0;
    disk.script(move |cdb| {
        count += usize::from(cdb[0] == WRITE);
        if cdb[0] == WRITE && count == 20 { Act::AskForLogout } else { Act::Execute }
    });
    model::verified_io(device.clone(), 4, 60, |_| false).await;
    let (logins, logouts) = (disk.logins.load(Ordering::Relaxed), disk.logouts.load(Ordering::Relaxed));
    assert_eq!((logins, logouts), (2, 1));
}

#[tokio::test]
async fn a_runtime_that_ends_answers_those_who_wait_elsewhere() {
    let disk = Disk::new(64, 8);
    let url = url(&disk).await;
    let (device, other) = tokio::task::spawn_blocking(move || {
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        (other.block_on(IscsiDevice::open(url, quick())).unwrap(), other)
    })
    .await
    .unwrap();
    disk.once(READ, Act::Ignore);
    let read = device.read(0, Buf::zeroed(512));
    other.shutdown_background();
    let error = tokio::time::timeout(Duration::from_secs(3), read.into_future()).await.unwrap().unwrap_err();
    assert!(matches!(error, BlockError::Gone { .. } | BlockError::Timeout { .. }), "{error}");
    assert!(matches!(device.read(0, Buf::zeroed(512)).await, Err(BlockError::Gone { .. })));
    device.close().await;
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() {
    let disk = Disk::new(64, 8);
    let address = disk.serve().await;
    let open =
        |text: String| async move { IscsiDevice::open(IscsiUrl::parse(&text).unwrap(), quick()).await };
    assert!(matches!(open(format!("iscsi://{address}")).await, Err(IscsiOpenError::NoTarget { .. })));
    assert!(matches!(open(format!("iscsi://{address}/{NAME}")).await, Err(IscsiOpenError::NoLun { .. })));
    let closed = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let error = open(format!("iscsi://{closed}/{NAME}/0")).await.unwrap_err();
    assert!(error.to_string().contains(&closed.to_string()), "{error}");

    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = mute.local_addr().unwrap().to_string() + &format!("/{NAME}/0");
    let error = open(format!("iscsi://{mute}")).await.unwrap_err();
    assert!(matches!(error, IscsiOpenError::Lost { .. } | IscsiOpenError::Connect { .. }), "{error}");

    disk.once(CAPACITY, Act::Sense(5, 0x25, 0));
    let error = open(format!("iscsi://{address}/{NAME}/0")).await.unwrap_err();
    assert!(matches!(error, IscsiOpenError::NoSuchLun { .. } | IscsiOpenError::Command { .. }), "{error}");
}

/// It logs sessions in, answers pings, and no command nor abort: what is found out once is not waited for again.
#[tokio::test]
async fn a_target_that_answers_no_command_costs_its_timeouts_once_and_then_io_fails_at_once() {
    let disk = Disk::new(64, 8);
    let millis = Duration::from_millis;
    let options = SessionOptions {
        command_timeout: millis(400),
        abort_timeout: millis(200),
        replacement_timeout: millis(600),
        ..quick()
    };
    let device = open(&disk, options).await;
    *disk.answers_aborts.lock().unwrap() = false;
    disk.script(|_| Act::Ignore);
    let start = Instant::now();
    let error = device.read(0, Buf::zeroed(512)).await.unwrap_err();
    assert_eq!(error, BlockError::Timeout { millis: 400, fate: Fate::Unknown });
    let first = start.elapsed();
    assert!((millis(1200)..millis(4000)).contains(&first), "command, abort and replacement: {first:?}");
    assert!(disk.logins.load(Ordering::Relaxed) > 1, "a new session, in which nothing is answered either");

    // Attempts to connect again go on beside, each of which logs in.
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        let refused = device.read(0, Buf::zeroed(512)).await.unwrap_err();
        assert!(matches!(&refused, BlockError::Gone { .. }), "{refused}");
        quickest = quickest.min(start.elapsed());
        tokio::time::sleep(millis(50)).await;
    }
    assert!(quickest < millis(100), "at once: {quickest:?}");
    let mut slow = 0;
    for _ in 0..8 {
        let start = Instant::now();
        device.flush().await.unwrap_err();
        slow += usize::from(start.elapsed() > millis(300));
    }
    assert!(slow <= 1, "{slow} of 8 waited");

    disk.script(|_| Act::Execute);
    let until = Instant::now() + Duration::from_secs(10);
    while device.read(0, Buf::zeroed(512)).await.is_err() {
        assert!(Instant::now() < until, "it does not come back");
        tokio::time::sleep(millis(20)).await;
    }
}

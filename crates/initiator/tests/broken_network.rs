//! Verified I/O through a network that cuts, delays, half-closes, freezes and refuses connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Fate, PathState};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};

use crate::support::proxy::{self, Faults};
use crate::support::scripted::{Disk, NAME};
use crate::support::{model, quick};

async fn behind_proxy(options: SessionOptions, query: &str) -> (Arc<Disk>, Arc<Faults>, Arc<IscsiDevice>) {
    let disk = Disk::new(8 * 256, 32);
    let (address, faults) = proxy::start(disk.serve().await).await;
    (disk, faults, Arc::new(open(address, options, query).await))
}

async fn open(address: SocketAddr, options: SessionOptions, query: &str) -> IscsiDevice {
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0{query}")).unwrap();
    IscsiDevice::open(url, options).await.expect("open")
}

/// `after` is far more than opening takes, and far less than the I/O does.
async fn cut_at_random(after: u64, query: &str) {
    let disk = Disk::new(8 * 256, 32);
    let (address, faults) = proxy::start(disk.serve().await).await;
    faults.cut_after.store(after, Ordering::Relaxed);
    let device = Arc::new(open(address, quick(), query).await);
    model::verified_io(device.clone(), 8, 120, |_| false).await;
    assert!(faults.cuts.load(Ordering::Relaxed) > 3, "the network was too good");
    device.close().await;
}

// shows RFC 7143 [6.3.5-1, 7.14-1, 7.1.4.3-1]
#[tokio::test]
async fn connections_cut_at_random_points_lose_tear_and_repeat_nothing() {
    cut_at_random(400_000, "").await;
}

#[tokio::test]
async fn nor_do_they_with_digests() {
    cut_at_random(400_000, "?header_digest=crc32c&data_digest=crc32c").await;
}

#[tokio::test]
async fn a_silent_network_is_noticed_and_left() {
    let options = SessionOptions {
        login_timeout: Duration::from_millis(500),
        nop_interval: Duration::from_millis(200),
        nop_timeout: Duration::from_millis(200),
        ..quick()
    };
    let (disk, faults, device) = behind_proxy(options, "").await;
    faults.frozen.store(true, Ordering::Relaxed);
    let start = Instant::now();
    let read = tokio::spawn({
        let device = device.clone();
        async move { device.read(0, Buf::zeroed(512)).await }
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    faults.frozen.store(false, Ordering::Relaxed);
    read.await.unwrap().expect("served by the next session");
    assert!(start.elapsed() < Duration::from_secs(6));
    assert!(disk.logins.load(Ordering::Relaxed) >= 2);
}

#[tokio::test]
async fn after_the_replacement_timeout_io_fails_at_once_until_the_target_is_back() {
    let options = SessionOptions { replacement_timeout: Duration::from_millis(300), ..quick() };
    let (disk, faults, device) = behind_proxy(options, "").await;
    device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile).await.unwrap();
    faults.refused.store(true, Ordering::Relaxed);
    disk.once(0x88, crate::support::scripted::Act::ExecuteAndHangUp);
    let start = Instant::now();
    let sent = device.read(0, Buf::zeroed(512)).await.unwrap_err();
    assert_eq!(sent, BlockError::Timeout { millis: 300, fate: Fate::Unknown });
    assert!(start.elapsed() < Duration::from_secs(2));

    // A machine whose time is taken may be late by itself: the quickest counts.
    let mut quickest = Duration::MAX;
    for _ in 0..8 {
        let start = Instant::now();
        let refused = device.read(0, Buf::zeroed(512)).await.unwrap_err();
        assert!(
            matches!(&refused, BlockError::Gone { why, .. } if why.contains("no session with")),
            "{refused}"
        );
        quickest = quickest.min(start.elapsed());
    }
    assert!(quickest < Duration::from_millis(100), "at once: {quickest:?}");
    let path = device.paths().remove(0);
    assert_eq!((path.state, path.write_ios, path.errors), (PathState::Down, 1, 1));

    faults.refused.store(false, Ordering::Relaxed);
    let until = Instant::now() + Duration::from_secs(5);
    while device.read(0, Buf::zeroed(512)).await.is_err() {
        assert!(Instant::now() < until, "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let path = device.paths().remove(0);
    assert_eq!((path.state, path.write_ios), (PathState::Up, 1), "the path is the same one as before");
}

#[tokio::test]
async fn closing_does_not_wait_for_a_network_that_is_gone() {
    let (_, faults, device) = behind_proxy(quick(), "").await;
    faults.frozen.store(true, Ordering::Relaxed);
    let start = Instant::now();
    device.close().await;
    assert!(start.elapsed() < Duration::from_secs(2));
}

//! A LUN that is exchanged while a disk over several paths is open: nothing is written to the other one, over whichever
//! lane.

use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability, SharedBuf};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use lunway_iscsi_paths::{Address, IscsiMultipath};
use lunway_multipath::LaneState;
use lunway_target::{ChangeOptions, Config};

const NAME: &str = "iqn.2026-11.com.example:exchanged";

const SIZE: u64 = 1 << 20;

fn ones() -> SharedBuf {
    Buf::copy_of(&[1; 4096]).freeze()
}

#[tokio::test]
async fn a_lun_that_is_exchanged_in_live_sessions_is_written_to_over_no_lane() {
    let (server, portals) = crate::two_portals::serve(NAME, SIZE, false).await;
    let text =
        format!("iscsi://{}/{NAME}/0?portal={}&policy=round-robin&when_none=fail", portals[0], portals[1]);
    let Address::Several(url) = Address::parse(&text).unwrap() else { panic!("{text} is one path") };
    let disk = IscsiMultipath::open(&url, &SessionOptions::default()).await.unwrap();
    let device = disk.device();
    for n in 0..8 {
        device.write(n * 4096, ones(), Durability::Volatile).await.unwrap();
    }
    let edit = |config: &mut Config| {
        config.targets[0].luns[0].device = "another".parse().unwrap();
        Ok(())
    };
    let force = ChangeOptions { force: true, ..ChangeOptions::default() };
    server.change(edit, force).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while device.lanes().iter().any(|lane| lane.state != LaneState::Closed) {
        assert!(Instant::now() < until, "{:?}", device.lanes());
        let _ = device.write(0, ones(), Durability::Volatile).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
    println!("{error}");
    let address = IscsiUrl::parse(&format!("iscsi://{}/{NAME}/0", portals[0])).unwrap();
    let other = IscsiDevice::open(address, SessionOptions::default()).await.unwrap();
    let read = other.read(0, Buf::zeroed(SIZE as usize)).await.unwrap();
    assert!(read.iter().all(|&byte| byte == 0), "the other disk was written to");
    other.close().await;
}

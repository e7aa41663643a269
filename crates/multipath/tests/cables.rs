//! Cables that are pulled and addresses that are taken away, in a network namespace of the test's own.

#![expect(clippy::unwrap_used, reason = "a test ends where something it needs is missing")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability};
use lunway_foreign::namespace::{inside, ip};
use lunway_initiator::OpenOptions;
use lunway_memory::RamDisk;
use lunway_multipath::iscsi::{Address, IscsiMultipath};
use lunway_multipath::{LaneState, LaneStatus};
use lunway_target::{Config, OpenDevice, Server};

const NAME: &str = "iqn.2026-11.com.example:disk";
/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

async fn until(disk: &IscsiMultipath, what: &str, is: impl Fn(&[LaneStatus]) -> bool) {
    let start = Instant::now();
    loop {
        let lanes = disk.device().lanes();
        if is(&lanes) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {lanes:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn all_up(lanes: &[LaneStatus]) -> bool {
    lanes.iter().all(|lane| lane.state == LaneState::Up)
}

/// The first lane is down for this reason, the second is up.
fn first_down(reason: &'static str) -> impl Fn(&[LaneStatus]) -> bool {
    move |lanes| {
        let said = lanes[0].last_event.as_ref().is_some_and(|(_, text)| text.contains(reason));
        lanes[0].state == LaneState::Down && said && lanes[1].state == LaneState::Up
    }
}

/// Two cables within one machine: what goes between their ends goes past them, so that nothing but the kernel's news tells of a
/// cable that is pulled.
async fn serve() -> Server {
    ip("link set lo up");
    for n in 0..2 {
        ip(&format!("link add near{n} type veth peer name far{n}"));
        for (end, host) in [("near", 1), ("far", 2)] {
            ip(&format!("link set {end}{n} up"));
            ip(&format!("addr add 10.9.{n}.{host}/24 dev {end}{n}"));
        }
    }
    let config = format!(
        "listen = [\"10.9.0.2\", \"10.9.1.2\"]\ncores = 1\n[[target]]\nname = \"{NAME}\"\n\
         [[target.lun]]\nid = 0\ndevice = \"ram\"\n"
    );
    let open: OpenDevice = Arc::new(|_, _| {
        Box::pin(async {
            let disk = RamDisk::new(16 << 20, 512).map_err(|error| error.to_string())?;
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        })
    });
    Server::start(Config::from_toml(&config, "test").unwrap(), open).await.expect("start")
}

#[tokio::test]
async fn a_pulled_cable_and_a_lost_address_end_their_lane_at_once_with_the_reason_and_no_io_fails() {
    if !inside("a_pulled_cable_and_a_lost_address_end_their_lane_at_once_with_the_reason_and_no_io_fails") {
        return;
    }
    let _server = serve().await;
    let text = format!("iscsi://10.9.0.2/{NAME}/0?portal=10.9.1.2&from=10.9.0.1&from=10.9.1.1");
    let Ok(Address::Several(url)) = Address::parse(&text) else { panic!("{text}") };
    let disk = IscsiMultipath::open(&url, &OpenOptions::default()).await.unwrap();
    until(&disk, "at first", all_up).await;
    let interfaces: Vec<_> = disk.plan().lanes.iter().map(|lane| lane.interface.clone().unwrap()).collect();
    assert_eq!(interfaces, ["near0", "near1"]);

    let stop = Arc::new(AtomicBool::new(false));
    let (device, stopped) = (disk.device().clone(), stop.clone());
    let work = tokio::spawn(async move {
        let mut n = 0_u64;
        while !stopped.load(Ordering::Relaxed) {
            let (offset, data) = ((n % 64) << 16, Buf::copy_of(&[n as u8; 4096]).freeze());
            device.write(offset, data, Durability::Volatile).await.unwrap();
            let read = device.read(offset, Buf::zeroed(4096)).await.unwrap();
            assert!(read.iter().all(|byte| *byte == n as u8), "{n}");
            n += 1;
        }
        n
    });

    ip("link set far0 down");
    until(&disk, "the cable is pulled", first_down("cable pulled: near0 has no carrier")).await;
    ip("link set far0 up");
    until(&disk, "the cable is back", |lanes| lanes[0].epoch > 1).await;
    ip("addr del 10.9.0.1/24 dev near0");
    until(&disk, "the address is gone", first_down("10.9.0.1 is no address of this machine any more")).await;
    ip("addr add 10.9.0.1/24 dev near0");
    until(&disk, "the address is back", |lanes| lanes[0].epoch > 2).await;
    stop.store(true, Ordering::Relaxed);
    assert!(work.await.unwrap() > 10);
    disk.close().await;
}

//! Ports that are gone for good, each the only one of its portal group: nothing ever proves that their sessions are
//! dead.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunway_block::BlockDevice;
use lunway_initiator::SessionOptions;
use lunway_iscsi_paths::{Address, IscsiMultipath};
use lunway_memory::RamDisk;
use lunway_multipath::{LaneState, LaneStatus};
use lunway_target::{Config, OpenDevice, Server};

use tokio::sync::watch;

use crate::connection::{Connection, Failed};
use crate::line::Line;
use crate::random::Random;
use crate::region::{Region, Tally};

const NAME: &str = "iqn.2026-11.com.example:ports";

/// Workers, each with a part of the disk of its own.
const THREADS: u64 = 4;

/// More than any operation takes on a busy machine.
pub(crate) const OPERATION_MAX: Duration = Duration::from_secs(40);

/// As `settle` says. Far more than what is late takes below.
const SETTLE: Duration = Duration::from_secs(1);

/// A disk behind three portals, each a group of its own.
async fn serve() -> (Server, [SocketAddr; 3]) {
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[portal_group]]\ntag = 2\nlisten = [\"127.0.0.2:0\"]\n\
         [[portal_group]]\ntag = 3\nlisten = [\"127.0.0.3:0\"]\n\
         [[target]]\nname = \"{NAME}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n"
    );
    let open: OpenDevice = Arc::new(|_, _| {
        Box::pin(async {
            let disk = RamDisk::new(crate::region::UNUSED + THREADS * crate::region::BYTES, 512)
                .map_err(|error| error.to_string())?;
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        })
    });
    let server = Server::start(Config::from_toml(&config, "test").unwrap(), open).await.unwrap();
    let portals = [1, 2, 3].map(|last| {
        let ip = IpAddr::from([127, 0, 0, last]);
        server.addresses().iter().copied().find(|address| address.ip() == ip).unwrap()
    });
    (server, portals)
}

async fn open(lines: &[Line]) -> IscsiMultipath {
    let lane = |(n, line): (usize, &Line)| format!("lane=127.0.0.{}>{}", 61 + n, line.address);
    let lanes: Vec<_> = lines.iter().enumerate().map(lane).collect();
    let text = format!("iscsi://{}/{NAME}/0?{}&settle=1s", lines[0].address, lanes.join("&"));
    let Address::Several(url) = Address::parse(&text).unwrap() else { panic!("{text} is one path") };
    IscsiMultipath::open(&url, &SessionOptions::default()).await.unwrap()
}

#[tokio::test]
async fn ports_that_go_for_good_in_mid_write_cost_no_error_and_no_data_while_one_lives() {
    let (_server, portals) = serve().await;
    let mut lines = Vec::new();
    for (n, portal) in portals.into_iter().enumerate() {
        lines.push(Line::start_at([127, 0, 0, 71 + n as u8], portal).await);
    }
    let disk = open(&lines).await;
    let mut random = Random(13);
    let tally = Arc::new(Tally::default());
    let stop = Arc::new(AtomicBool::new(false));
    let (connection, mut requests) = Connection::new();
    let device = disk.device().clone();
    tokio::spawn(async move {
        while let Some((request, answer)) = requests.recv().await {
            let device = device.clone();
            tokio::spawn(async move {
                let done = request.carry_out(&*device).await;
                let _ = answer.send(done.map_err(|error| Failed::Told(error.to_string())));
            });
        }
    });
    let (_client, connected) = watch::channel(Some(connection));
    let workers: Vec<_> = (0..THREADS)
        .map(|number| {
            let (connected, stop) = (connected.clone(), stop.clone());
            let mut region = Region::new(number, random.next(), tally.clone(), OPERATION_MAX);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime.block_on(region.live(connected, &stop));
                region
            })
        })
        .collect();
    tokio::time::sleep(random.millis(300..600)).await;
    // No packet is answered any more.
    tally.note("a black hole".to_owned());
    lines[0].swallow(true);
    tokio::time::sleep(Duration::from_secs(4)).await;
    tally.note("a port is gone".to_owned());
    // What was under way arrives, but late, and the port is gone.
    lines[1].refuse(true);
    lines[1].cut_and_deliver_late(Duration::from_millis(40), SETTLE / 2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);
    let mut regions = Vec::new();
    for worker in workers {
        while !worker.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        regions.push(worker.join().expect("a worker found an error: see above"));
    }
    for region in &mut regions {
        region.check_all(&**disk.device()).await;
    }
    println!("{tally}");
    let lanes = disk.device().lanes();
    let states: Vec<_> = lanes.iter().map(|lane| lane.state.clone()).collect();
    assert_eq!(states, [LaneState::Down, LaneState::Down, LaneState::Up]);
    let unproven = |lane: &LaneStatus| {
        lane.last_event.as_ref().is_some_and(|(_, said)| said.contains("a barrier settled it"))
    };
    assert_eq!(lanes.iter().map(unproven).collect::<Vec<_>>(), [true, true, false]);
    let longest = tally.longest_ms.load(Ordering::Relaxed);
    assert!(
        u128::from(longest) >= SETTLE.as_millis(),
        "no write was under way: the longest took {longest} ms"
    );
    assert_eq!(tally.failures(), 0, "{tally}");
    tokio::time::timeout(Duration::from_secs(20), disk.close()).await.expect("closed");
}

//! Disks over several iSCSI sessions, opened from addresses, against our own target.
//!
//! Addresses of the loopback stand for ports: whatever is sent from 127.0.0.3 to 127.0.0.1 leaves by another port than
//! from 127.0.0.4.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability};
use lunway_file::{FileDevice, FileOptions};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use lunway_iscsi_paths::{Address, IscsiMultipath, MultipathUrl, PathsOpenError};
use lunway_memory::RamDisk;
use lunway_multipath::plan::PlanKind;
use lunway_multipath::{AluaState, LaneState, LaneStatus};
use lunway_target::{ChangeOptions, Config, OpenDevice, PortalGroupState, Server, TargetPortalGroup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "iqn.2026-11.com.example:disk";
/// Of the same length, so that a proxy can put one for the other.
const OTHER: &str = "iqn.2026-11.com.example:desk";
const SIZE: u64 = 16 << 20;
/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A disk behind portals of 127.0.0.1 and 127.0.0.2.
async fn serve(name: &str) -> (Server, [SocketAddr; 2]) {
    serve_at(name, ["127.0.0.1:0", "127.0.0.2:0"].map(|address| address.parse().unwrap())).await
}

/// Its serial number is the target's name, so that it stays the same disk when it is served elsewhere.
async fn serve_at(name: &str, [one, other]: [SocketAddr; 2]) -> (Server, [SocketAddr; 2]) {
    start(&format!(
        "listen = [\"{one}\", \"{other}\"]\ncores = 1\n[[target]]\nname = \"{name}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"ram:64M\"\nserial = \"{name}\"\n"
    ))
    .await
}

/// A disk on a machine of this id, with this line about its serial number if it has any.
async fn serve_on(machine: &str, serial: &str) -> (Server, [SocketAddr; 2]) {
    start(&format!(
        "listen = [\"127.0.0.1:0\", \"127.0.0.2:0\"]\ncores = 1\nmachine_id = \"{machine}\"\n\
         [[target]]\nname = \"{NAME}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n{serial}\n"
    ))
    .await
}

async fn start(config: &str) -> (Server, [SocketAddr; 2]) {
    start_with(config, None).await
}

/// With this disk behind all that is served, or one in memory.
async fn start_with(config: &str, disk: Option<Arc<dyn BlockDevice>>) -> (Server, [SocketAddr; 2]) {
    let open: OpenDevice = Arc::new(move |_, _| {
        let disk = disk.clone();
        Box::pin(async {
            let plain = || RamDisk::new(SIZE, 512).map(|disk| Arc::new(disk) as Arc<dyn BlockDevice>);
            let disk = disk.map_or_else(plain, Ok).map_err(|error| error.to_string())?;
            Ok(disk.into())
        })
    });
    let server = Server::start(Config::from_toml(config, "test").unwrap(), open).await.expect("start");
    let of = |ip: [u8; 4]| {
        let addresses = server.addresses();
        addresses.iter().copied().find(|address| address.ip() == std::net::IpAddr::from(ip)).unwrap()
    };
    let addresses = [of([127, 0, 0, 1]), of([127, 0, 0, 2])];
    (server, addresses)
}

fn url(first: SocketAddr, query: &str) -> MultipathUrl {
    match Address::parse(&format!("iscsi://{first}/{NAME}/0?{query}")).unwrap() {
        Address::Several(url) => url,
        Address::One(_) => panic!("{query} is one path"),
    }
}

async fn open(url: &MultipathUrl) -> Result<IscsiMultipath, PathsOpenError> {
    IscsiMultipath::open(url, &SessionOptions::default()).await
}

/// Two portals, each from an address of its own.
fn paired([first, second]: [SocketAddr; 2]) -> MultipathUrl {
    url(first, &format!("portal={second}&from=127.0.0.3&from=127.0.0.4"))
}

/// Waits until the lanes are as they should be.
async fn until(disk: &IscsiMultipath, what: impl Fn(&[LaneStatus]) -> bool) -> Vec<LaneStatus> {
    let start = Instant::now();
    loop {
        let lanes = disk.device().lanes();
        if what(&lanes) {
            return lanes;
        }
        assert!(start.elapsed() < PATIENCE, "{lanes:#?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn all_up(lanes: &[LaneStatus]) -> bool {
    lanes.iter().all(|lane| lane.state == LaneState::Up)
}

/// A port that leads nowhere yet.
async fn unused_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Lets connections to `at` through to `to`, from now on. Whoever asks for the target's name there gets what has
/// `name`.
async fn forward(at: SocketAddr, to: SocketAddr, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(at).await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(to).await else { continue };
            let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
                (near.into_split(), far.into_split());
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(len @ 1..) = near_read.read(&mut bytes).await {
                    if let Some(at) =
                        bytes[..len].windows(NAME.len()).position(|part| part == NAME.as_bytes())
                    {
                        bytes[at..at + NAME.len()].copy_from_slice(name.as_bytes());
                    }
                    if far_write.write_all(&bytes[..len]).await.is_err() {
                        return;
                    }
                }
            });
            tokio::spawn(async move { tokio::io::copy(&mut far_read, &mut near_write).await });
        }
    });
    at
}

#[tokio::test]
async fn two_portals_are_two_lanes_to_one_disk() {
    let (server, portals) = serve(NAME).await;
    let disk = open(&paired(portals)).await.unwrap();
    assert_eq!(disk.plan().kind, PlanKind::Paired);
    let lanes = until(&disk, all_up).await;
    let names: Vec<_> = lanes.iter().map(|lane| lane.name.clone()).collect();
    assert_eq!(names, [format!("127.0.0.3 > {}", portals[0]), format!("127.0.0.4 > {}", portals[1])]);
    let device = disk.device();
    assert_eq!(device.geometry().size, SIZE);
    for n in 0..64u8 {
        let data = Buf::copy_of(&[n; 64 << 10]).freeze();
        device.write(u64::from(n) << 16, data, Durability::Volatile).await.unwrap();
    }
    for n in 0..64u8 {
        let read = device.read(u64::from(n) << 16, Buf::zeroed(64 << 10)).await.unwrap();
        assert!(read.iter().all(|byte| *byte == n), "{n}");
    }
    disk.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn where_one_portal_is_named_the_target_is_asked_for_the_others() {
    let (server, portals) = serve(NAME).await;
    let disk = open(&url(portals[0], "plan=mesh&from=127.0.0.3&from=127.0.0.4")).await.unwrap();
    let lanes = until(&disk, all_up).await;
    assert_eq!(lanes.len(), 4, "{lanes:?}");
    assert!(disk.plan().lanes.iter().all(|lane| lane.group == Some(1)), "{:?}", disk.plan());
    let warned: Vec<_> = disk.plan().warnings.iter().map(|warning| warning.id).collect();
    assert_eq!(warned, ["rule-6"]);
    disk.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

/// One file, as an array has it: under a name of its own at each of its nodes.
struct Nodes {
    disk: Arc<FileDevice>,
    _file: tempfile::NamedTempFile,
}

impl Nodes {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        // Opened once: a file is locked against other daemons.
        let disk = FileDevice::open(file.path(), &FileOptions::default()).unwrap();
        Self { disk: Arc::new(disk), _file: file }
    }

    async fn serve(&self, name: &str, portals: [SocketAddr; 2]) -> (Server, [SocketAddr; 2]) {
        let [one, other] = portals;
        let config = format!(
            "listen = [\"{one}\", \"{other}\"]\ncores = 1\nmachine_id = \"{name}\"\n[[target]]\nname = \"{name}\"\nopen = true\n\
             [[target.lun]]\nid = 0\ndevice = \"file\"\nserial = \"array-1\"\n"
        );
        start_with(&config, Some(self.disk.clone())).await
    }
}

#[tokio::test]
async fn one_disk_under_a_name_for_each_node_is_one_disk_and_either_node_may_fail() {
    let nodes = Nodes::new();
    let anywhere = ["127.0.0.1:0", "127.0.0.2:0"].map(|address| address.parse().unwrap());
    let (one, ours) = nodes.serve(NAME, anywhere).await;
    let (other, theirs) = nodes.serve(OTHER, anywhere).await;
    let mut servers = [Some(one), Some(other)];
    // Each node from each port: four lanes, two of each name.
    let paths = format!(
        "portal={}&portal={},{OTHER}&portal={},{OTHER}&from=127.0.0.3&from=127.0.0.4&plan=balanced",
        ours[1], theirs[0], theirs[1]
    );
    let disk = open(&url(ours[0], &paths)).await.unwrap();
    let lanes = until(&disk, all_up).await;
    let named = lanes.iter().filter(|lane| lane.name.ends_with(&format!(",{OTHER}"))).count();
    assert_eq!((lanes.len(), named), (4, 2), "{lanes:#?}");

    let device = disk.device().clone();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ends = stop.clone();
    // Eight places, each written and read again in turn: what is read is what was written last.
    let work = tokio::spawn(async move {
        let mut rounds = 0u64;
        while !ends.load(std::sync::atomic::Ordering::Relaxed) {
            rounds += 1;
            for place in 0..8 {
                let byte = (rounds * 8 + place) as u8;
                let data = Buf::copy_of(&[byte; 64 << 10]).freeze();
                device.write(place << 20, data, Durability::Stable).await.unwrap();
            }
            for place in 0..8 {
                let read = device.read(place << 20, Buf::zeroed(64 << 10)).await.unwrap();
                let byte = (rounds * 8 + place) as u8;
                assert!(read.iter().all(|found| *found == byte), "round {rounds}, place {place}");
            }
        }
        rounds
    });
    for turn in 0..4 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (node, portals, name) = [(0, ours, NAME), (1, theirs, OTHER)][turn % 2];
        servers[node].take().unwrap().shutdown(Duration::ZERO).await.unwrap();
        until(&disk, |lanes| lanes.iter().filter(|lane| lane.state == LaneState::Down).count() == 2).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        servers[node] = Some(nodes.serve(name, portals).await.0);
        until(&disk, |lanes| lanes.iter().all(|lane| lane.state != LaneState::Down)).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(work.await.unwrap() > 1);
    disk.close().await;
    for server in servers.into_iter().flatten() {
        server.shutdown(Duration::from_secs(1)).await.unwrap();
    }
}

#[tokio::test]
async fn different_disks_under_different_names_are_refused() {
    let ((one, [first, _]), (other, [_, behind])) = (serve(NAME).await, serve(OTHER).await);
    let said = match open(&url(first, &format!("portal={behind},{OTHER}"))).await {
        Ok(_) => panic!("they were opened"),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("do not lead to the same disk"), "{said}");
    one.shutdown(Duration::from_secs(1)).await.unwrap();
    other.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn different_disks_behind_one_name_are_refused() {
    let ((one, [first, _]), (other, [_, behind])) = (serve(NAME).await, serve(OTHER).await);
    let second = forward("127.0.0.1:0".parse().unwrap(), behind, OTHER).await;
    let said = match open(&paired([first, second])).await {
        Ok(_) => panic!("they were opened"),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("do not lead to the same disk"), "{said}");
    assert!(said.contains("127.0.0.3 >") && said.contains("127.0.0.4 >"), "{said}");
    one.shutdown(Duration::from_secs(1)).await.unwrap();
    other.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn disks_of_one_name_on_two_machines_are_two_disks_unless_they_have_one_serial_number() {
    let ((one, [first, _]), (other, [_, second])) = (serve_on("one", "").await, serve_on("two", "").await);
    let said = match open(&paired([first, second])).await {
        Ok(_) => panic!("they were opened as one, and would have been torn"),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("do not lead to the same disk"), "{said}");
    one.shutdown(Duration::from_secs(1)).await.unwrap();
    other.shutdown(Duration::from_secs(1)).await.unwrap();

    let serial = "serial = \"replicated-1\"";
    let ((one, [first, _]), (other, [_, second])) =
        (serve_on("one", serial).await, serve_on("two", serial).await);
    let disk = open(&paired([first, second])).await.unwrap();
    until(&disk, all_up).await;
    disk.close().await;
    one.shutdown(Duration::from_secs(1)).await.unwrap();
    other.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_lane_to_a_standby_port_is_open_from_the_first_and_used_when_the_storage_makes_it_active() {
    let (server, portals) = start(&format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[portal_group]]\ntag = 2\nlisten = [\"127.0.0.2:0\"]\n\
         [[target]]\nname = \"{NAME}\"\nopen = true\n[[target.portal_group]]\ntag = 1\n\
         [[target.portal_group]]\ntag = 2\nstate = \"standby\"\n[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n"
    ))
    .await;
    let disk = open(&paired(portals)).await.unwrap();
    let lanes = disk.device().lanes();
    let seen: Vec<_> = lanes.iter().map(|lane| (lane.state.clone(), lane.access)).collect();
    assert_eq!(seen, [(LaneState::Up, AluaState::Optimized), (LaneState::Up, AluaState::Standby)]);
    let write = |byte: u8| {
        let data = Buf::copy_of(&[byte; 4096]).freeze();
        disk.device().write(0, data, Durability::Volatile).into_future()
    };
    write(1).await.unwrap();
    assert_eq!(disk.device().lanes()[1].path.write_ios, 0);

    let group = |tag, state| TargetPortalGroup { tag, state, preferred: false };
    let edit = |config: &mut Config| {
        config.targets[0].portal_groups =
            vec![group(1, PortalGroupState::Standby), group(2, PortalGroupState::ActiveOptimized)];
        Ok(())
    };
    server.change(edit, ChangeOptions::default()).await.unwrap();
    // Nobody tells the idle lane; the other one hears of its own with this.
    write(2).await.unwrap();
    let swapped = |lanes: &[LaneStatus]| {
        lanes[0].access == AluaState::Standby && lanes[1].access == AluaState::Optimized
    };
    let lanes = until(&disk, swapped).await;
    assert!(lanes[1].path.write_ios > 0, "{lanes:#?}");
    disk.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_lane_that_was_not_there_joins_when_it_is() {
    let (server, portals) = serve(NAME).await;
    let later = unused_port().await;
    let disk = open(&paired([portals[0], later])).await.unwrap();
    let lanes = until(&disk, |lanes| lanes[0].state == LaneState::Up).await;
    assert_eq!(lanes[1].state, LaneState::Down);
    disk.device().write(0, Buf::copy_of(&[7; 4096]).freeze(), Durability::Stable).await.unwrap();
    forward(later, portals[1], NAME).await;
    until(&disk, all_up).await;
    assert_eq!(disk.device().read(0, Buf::zeroed(4096)).await.unwrap()[..], [7; 4096]);
    disk.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn another_disk_that_turns_up_later_closes_the_lane_and_gets_nothing() {
    let ((one, portals), (other, strange)) = (serve(NAME).await, serve(OTHER).await);
    let later = unused_port().await;
    let disk = open(&paired([portals[0], later])).await.unwrap();
    forward(later, strange[1], OTHER).await;
    let lanes = until(&disk, |lanes| lanes[1].state == LaneState::Closed).await;
    let (_, said) = lanes[1].last_event.as_ref().unwrap();
    assert!(said.contains("another disk answers there"), "{said}");
    for n in 0..32 {
        disk.device().write(n << 16, Buf::copy_of(&[9; 4096]).freeze(), Durability::Volatile).await.unwrap();
    }
    disk.close().await;
    let own = IscsiUrl::parse(&format!("iscsi://{}/{OTHER}/0", strange[0])).unwrap();
    let untouched = IscsiDevice::open(own, SessionOptions::default()).await.unwrap();
    for n in 0..32 {
        assert_eq!(untouched.read(n << 16, Buf::zeroed(4096)).await.unwrap()[..], [0; 4096]);
    }
    untouched.close().await;
    one.shutdown(Duration::from_secs(1)).await.unwrap();
    other.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn without_any_lane_each_ones_reason_is_said() {
    let ports = [unused_port().await, unused_port().await];
    let said = match open(&paired(ports)).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    };
    assert!(ports.iter().all(|port| said.contains(&format!("> {port}: cannot connect"))), "{said}");
}

/// The keys that are registered, as another initiator reads them (PERSISTENT RESERVE IN, READ KEYS).
async fn registered(portal: SocketAddr) -> Vec<u64> {
    let url = IscsiUrl::parse(&format!("iscsi://{portal}/{NAME}/0")).unwrap();
    let device = IscsiDevice::open(url, SessionOptions::default()).await.unwrap();
    let cdb = [0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let (_, _, list) = device.execute(&cdb, Default::default(), Buf::zeroed(256), true).await.unwrap();
    device.close().await;
    list[8..].as_chunks().0.iter().map(|key| u64::from_be_bytes(*key)).collect()
}

#[tokio::test]
async fn a_key_is_registered_on_every_lane_and_again_when_the_target_has_forgotten_it() {
    let (server, portals) = serve(NAME).await;
    let disk = open(&url(
        portals[0],
        &format!("portal={}&from=127.0.0.3&from=127.0.0.4&key=0xBEEF&register=again", portals[1]),
    ))
    .await
    .unwrap();
    until(&disk, all_up).await;
    assert_eq!(registered(portals[1]).await, [0xBEEF, 0xBEEF]);
    server.shutdown(Duration::from_secs(1)).await.unwrap();
    until(&disk, |lanes| lanes.iter().all(|lane| lane.state == LaneState::Down)).await;
    let (server, portals) = serve_at(NAME, portals).await;
    assert_eq!(registered(portals[1]).await.len(), 0, "the test means nothing otherwise");
    until(&disk, all_up).await;
    assert_eq!(registered(portals[1]).await, [0xBEEF, 0xBEEF]);
    disk.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

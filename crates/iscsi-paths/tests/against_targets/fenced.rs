//! Nodes that others fence: a reservation key that was preempted, removed or forgotten, against our own target and tgt.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::line::Line;
use lunway_block::{BlockDevice, BlockError, Buf, Durability};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use lunway_iscsi_paths::{Address, IscsiMultipath};
use lunway_memory::RamDisk;
use lunway_multipath::{LaneState, LaneStatus};
use lunway_scsi::Status;
use lunway_target::{Config, OpenDevice, Server};

const NAME: &str = "iqn.2026-11.com.example:shared";
/// Keys of this node and of two others.
const OURS: u64 = 0xA;
const THEIRS: u64 = 0xB;
const THIRD: u64 = 0xC;
/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Storage at an address of its choice, or where it was before; with a folder where it keeps what must outlive it.
async fn serve(listen: SocketAddr, state: Option<&Path>) -> (Server, SocketAddr) {
    let state =
        state.map_or(String::new(), |folder| format!("state_dir = {:?}\n", folder.display().to_string()));
    let config = format!(
        "listen = [\"{listen}\"]\ncores = 1\n{state}[[target]]\nname = \"{NAME}\"\nopen = true\n\
         [[target.lun]]\nid = 1\ndevice = \"ram:64M\"\nserial = \"shared\"\n"
    );
    let open: OpenDevice = Arc::new(|_, _| {
        Box::pin(async {
            let disk = RamDisk::new(16 << 20, 512).map_err(|error| error.to_string())?;
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        })
    });
    let server = Server::start(Config::from_toml(&config, "test").unwrap(), open).await.expect("start");
    let address = server.addresses()[0];
    (server, address)
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// This node, over these portals.
async fn node(portals: &[SocketAddr], more: &str) -> IscsiMultipath {
    let names: Vec<_> = portals[1..].iter().map(|portal| format!("&portal={portal}")).collect();
    let address =
        format!("iscsi://{}/{NAME}/1?plan=balanced{}&key={OURS:#x}{more}", portals[0], names.concat());
    let Ok(Address::Several(url)) = Address::parse(&address) else { panic!("{address}") };
    IscsiMultipath::open(&url, &SessionOptions::default()).await.expect("open")
}

async fn write(disk: &IscsiMultipath, byte: u8) -> Result<(), BlockError> {
    disk.device().write(0, Buf::copy_of(&[byte; 4096]).freeze(), Durability::Volatile).await
}

async fn read(disk: &IscsiMultipath) -> u8 {
    let data = disk.device().read(0, Buf::zeroed(4096)).await.unwrap();
    assert!(data.iter().all(|byte| *byte == data[0]));
    data[0]
}

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

fn connected(lanes: &[LaneStatus]) -> bool {
    lanes.iter().all(|lane| !matches!(lane.state, LaneState::Down | LaneState::Closed))
}

fn down(lanes: &[LaneStatus]) -> bool {
    lanes.iter().all(|lane| lane.state == LaneState::Down)
}

fn said(disk: &IscsiMultipath) -> String {
    disk.device().lanes().iter().filter_map(|lane| Some(lane.last_event.as_ref()?.1.clone())).collect()
}

/// Another node, which does as it likes.
struct Other(IscsiDevice);

impl Other {
    async fn at(portal: SocketAddr, name: &str) -> Self {
        let url = format!("iscsi://{portal}/{NAME}/1?initiator=iqn.2026-11.com.example:{name}");
        Self(
            IscsiDevice::open(IscsiUrl::parse(&url).unwrap(), SessionOptions::default()).await.expect("open"),
        )
    }

    /// PERSISTENT RESERVE OUT.
    async fn out(&self, action: u8, kind: u8, key: u64, service_key: u64) {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&service_key.to_be_bytes());
        let cdb = [0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0];
        let answer = self.0.execute(&cdb, Buf::copy_of(&list).freeze(), Buf::empty(), false).await.unwrap();
        assert_eq!(answer.0, Status::GOOD, "action {action}: {:?}", answer.1);
    }

    async fn register(&self, key: u64) {
        self.out(0x00, 0, 0, key).await;
    }

    /// Write exclusive, registrants only.
    async fn reserve(&self, key: u64) {
        self.out(0x01, 5, key, 0).await;
    }

    async fn preempt(&self, key: u64, victim: u64) {
        self.out(0x04, 5, key, victim).await;
    }

    async fn keys(&self) -> Vec<u64> {
        let cdb = [0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        let (_, _, list) = self.0.execute(&cdb, Default::default(), Buf::zeroed(256), true).await.unwrap();
        let len = u32::from_be_bytes(list[4..8].try_into().unwrap()) as usize;
        let mut keys: Vec<_> =
            list[8..8 + len].as_chunks().0.iter().map(|key| u64::from_be_bytes(*key)).collect();
        keys.sort_unstable();
        keys
    }
}

/// The node is cut off, fenced, and comes back: with storage that would take its writes.
async fn comes_back_and_writes_nothing(portal: SocketAddr) {
    let lines = [Line::start(portal).await, Line::start(portal).await];
    let ours = [lines[0].address, lines[1].address];
    let disk = node(&ours, "").await;
    until(&disk, "two lanes", connected).await;
    write(&disk, 1).await.unwrap();
    let other = Other::at(portal, "other").await;
    other.register(THEIRS).await;
    assert_eq!(other.keys().await, [OURS, OURS, THEIRS]);
    for line in &lines {
        line.refuse(true);
        line.cut();
    }
    until(&disk, "the loss", down).await;
    // A write that waits for a lane is not sent either.
    let waiting = disk.device().write(0, Buf::copy_of(&[2; 4096]).freeze(), Durability::Volatile);
    let waiting = tokio::spawn(waiting.into_future());
    other.preempt(THEIRS, OURS).await;
    lines.iter().for_each(|line| line.refuse(false));
    assert_eq!(waiting.await.unwrap(), Err(BlockError::ReservationConflict));
    until(&disk, "two lanes again", connected).await;
    assert_eq!(write(&disk, 3).await, Err(BlockError::ReservationConflict));
    let zeroes = disk.device().write_zeroes(0, 4096, lunway_block::Zeroing::MayUnmap).await;
    assert_eq!(zeroes, Err(BlockError::ReservationConflict));
    assert_eq!((read(&disk).await, other.keys().await), (1, vec![THEIRS]), "reading goes on");
    let said = said(&disk);
    assert!(said.contains("the reservation key 0xa was removed: this node was fenced"), "{said}");

    // Another loss changes nothing.
    lines[0].cut();
    until(&disk, "the second loss", |lanes| lanes[0].epoch > 2).await;
    until(&disk, "two lanes at last", connected).await;
    assert_eq!(write(&disk, 4).await, Err(BlockError::ReservationConflict));
    assert_eq!(other.keys().await, [THEIRS]);
    disk.close().await;

    // Somebody has opened it anew.
    let disk = node(&ours, "").await;
    until(&disk, "two lanes, anew", connected).await;
    write(&disk, 5).await.unwrap();
    assert_eq!((read(&disk).await, other.keys().await), (5, vec![OURS, OURS, THEIRS]));
    disk.close().await;
    assert_eq!(other.keys().await, [THEIRS], "an orderly end leaves nothing");
    other.0.close().await;
}

#[tokio::test]
async fn a_node_that_was_fenced_while_it_was_cut_off_comes_back_and_writes_nothing() {
    let (server, portal) = serve(anywhere(), None).await;
    comes_back_and_writes_nothing(portal).await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_node_that_was_fenced_while_it_was_cut_off_from_tgt_comes_back_and_writes_nothing() {
    let Some(tgt) = Tgt::start() else { return };
    comes_back_and_writes_nothing(tgt.portal).await;
}

#[tokio::test]
async fn a_node_that_is_fenced_while_its_lanes_are_up_writes_nothing_from_the_report_on() {
    let (server, portal) = serve(anywhere(), None).await;
    let disk = node(&[portal], "").await;
    write(&disk, 1).await.unwrap();
    let other = Other::at(portal, "other").await;
    other.register(THEIRS).await;
    other.preempt(THEIRS, OURS).await;
    // No reservation is in its way: the target would take it.
    assert_eq!(write(&disk, 2).await, Err(BlockError::ReservationConflict));
    assert_eq!(read(&disk).await, 1);
    disk.close().await;
    other.0.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

/// A stopped process resumes with twenty writes in its socket: the target reports the preemption in place of the first,
/// and would carry out those that came with it.
#[tokio::test]
async fn a_node_that_was_silent_while_it_was_fenced_sends_no_write() {
    let (server, portal) = serve(anywhere(), None).await;
    let disk = node(&[portal], "").await;
    write(&disk, 1).await.unwrap();
    let other = Other::at(portal, "other").await;
    other.register(THEIRS).await;
    other.preempt(THEIRS, OURS).await;
    // More than the second for which an answer is a proof.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let writes: Vec<_> = (0..20)
        .map(|block| {
            let data = Buf::copy_of(&[2; 4096]).freeze();
            disk.device().write(block * 4096, data, Durability::Volatile)
        })
        .collect();
    for write in writes {
        assert_eq!(write.await, Err(BlockError::ReservationConflict));
    }
    let data = other.0.read(0, Buf::zeroed(20 * 4096)).await.unwrap();
    assert_eq!(data.iter().filter(|byte| **byte == 2).count() / 4096, 0, "writes of the fenced node");
    disk.close().await;
    other.0.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn where_another_node_is_fenced_this_one_makes_sure_and_goes_on() {
    let (server, portal) = serve(anywhere(), None).await;
    let disk = node(&[portal], "").await;
    let (other, third) = (Other::at(portal, "other").await, Other::at(portal, "third").await);
    other.register(THEIRS).await;
    third.register(THIRD).await;
    third.reserve(THIRD).await;
    other.preempt(THEIRS, THIRD).await;
    for byte in 1..=8 {
        write(&disk, byte).await.unwrap();
        assert_eq!(read(&disk).await, byte);
    }
    assert_eq!(other.keys().await, [OURS, THEIRS]);
    disk.close().await;
    other.0.close().await;
    third.0.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_lane_that_returns_or_joins_registers_beside_the_others_while_the_key_is_there() {
    let (server, portal) = serve(anywhere(), None).await;
    let lines = [Line::start(portal).await, Line::start(portal).await];
    lines[1].refuse(true);
    let disk = node(&[lines[0].address, lines[1].address], "").await;
    let other = Other::at(portal, "other").await;
    assert_eq!(other.keys().await, [OURS]);
    lines[1].refuse(false);
    until(&disk, "the second lane", connected).await;
    assert_eq!(other.keys().await, [OURS, OURS]);
    for line in &lines {
        let sessions = disk.device().lanes().iter().map(|lane| lane.epoch).sum::<u64>();
        line.cut();
        until(&disk, "the loss", |lanes| lanes.iter().map(|lane| lane.epoch).sum::<u64>() > sessions).await;
        until(&disk, "its return", connected).await;
        write(&disk, 7).await.unwrap();
    }
    assert_eq!(other.keys().await, [OURS, OURS]);
    disk.close().await;
    assert_eq!(other.keys().await, [0; 0]);
    other.0.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_target_that_restarts_without_its_registrations_gets_no_writes_unless_that_was_wished() {
    for (more, result) in [("", Err(BlockError::ReservationConflict)), ("&register=again", Ok(()))] {
        let (server, portal) = serve(anywhere(), None).await;
        let disk = node(&[portal], more).await;
        write(&disk, 1).await.unwrap();
        disk.device().flush().await.unwrap();
        server.shutdown(Duration::from_secs(1)).await.unwrap();
        until(&disk, "the loss", down).await;
        let (server, portal) = serve(portal, None).await;
        assert_eq!(write(&disk, 2).await, result, "{more}");
        let said = said(&disk);
        assert_eq!(said.contains("restarted without its registrations"), result.is_err(), "{said}");
        let other = Other::at(portal, "other").await;
        assert_eq!(other.keys().await.len(), usize::from(result.is_ok()));
        disk.close().await;
        other.0.close().await;
        server.shutdown(Duration::from_secs(1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_target_that_keeps_registrations_is_asked_to_and_is_written_to_after_its_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (server, portal) = serve(anywhere(), Some(folder.path())).await;
    let disk = node(&[portal], "").await;
    write(&disk, 1).await.unwrap();
    disk.device().flush().await.unwrap();
    server.shutdown(Duration::from_secs(1)).await.unwrap();
    until(&disk, "the loss", down).await;
    let (server, portal) = serve(portal, Some(folder.path())).await;
    write(&disk, 2).await.unwrap();
    let other = Other::at(portal, "other").await;
    assert_eq!(other.keys().await, [OURS]);
    disk.close().await;
    assert_eq!(other.keys().await, [0; 0]);
    other.0.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn with_register_present_only_a_key_that_somebody_has_registered_is_used() {
    let (server, portal) = serve(anywhere(), None).await;
    let address = format!("iscsi://{portal}/{NAME}/1?key={OURS:#x}&register=present");
    let Ok(Address::Several(url)) = Address::parse(&address) else { panic!("{address}") };
    let refused = match IscsiMultipath::open(&url, &SessionOptions::default()).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    };
    assert!(refused.contains("0xa is not registered, and register=present"), "{refused}");
    // The cluster lets this node in.
    let cluster = Other::at(portal, "cluster").await;
    cluster.register(OURS).await;
    let disk = node(&[portal], "&register=present").await;
    write(&disk, 1).await.unwrap();
    assert_eq!(cluster.keys().await, [OURS, OURS]);
    disk.close().await;
    assert_eq!(cluster.keys().await, [OURS], "what others have registered stays");
    cluster.0.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

/// A tgtd of its own.
struct Tgt {
    daemon: Child,
    portal: SocketAddr,
    _disk: tempfile::NamedTempFile,
}

impl Tgt {
    /// `None`, and a line that says so, where tgt is not installed or we are not root, which it needs.
    fn start() -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        if std::fs::metadata("/proc/self").is_ok_and(|of_ours| of_ours.uid() != 0) {
            lunway_foreign::not_run("tgtd (it wants root)");
            return None;
        }
        let program = lunway_foreign::program("tgtd")?;
        let disk = tempfile::NamedTempFile::new().unwrap();
        disk.as_file().set_len(16 << 20).unwrap();
        let portal = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // tgt knows control ports below 32768.
        let control = (portal.port() & 0x7FFF).to_string();
        let daemon = Command::new(program)
            .args(["-f", "-C", &control, "--iscsi", &format!("portal={portal}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let tgt = Self { daemon, portal, _disk: disk };
        let file = tgt._disk.path().display();
        for line in [
            format!("--lld iscsi --op new --mode target --tid 1 -T {NAME}"),
            format!("--lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b {file}"),
            "--lld iscsi --op bind --mode target --tid 1 -I ALL".to_owned(),
        ] {
            let start = Instant::now();
            let admin = || {
                let mut admin = Command::new("tgtadm");
                admin.args(["-C", &control]).args(line.split(' ')).stderr(Stdio::null()).status().unwrap()
            };
            while !admin().success() {
                assert!(start.elapsed() < PATIENCE, "{line}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Some(tgt)
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

//! Conversations with tgt, a foreign target. Skipped where it is not installed or may not be started.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability};
use lunway_initiator::{IscsiDevice, IscsiOpenError, IscsiUrl, discover, inspect};
use lunway_retain::{RetainingDevice, UNFLUSHED_MAX};
use tempfile::NamedTempFile;

use crate::support::{model, quick};

const NAME: &str = "iqn.2026-11.com.example:tgt";
const SIZE: u64 = 16 << 20;

/// A tgtd of its own: control port, TCP port, one target with one disk of a file.
struct Tgt {
    daemon: Child,
    port: u16,
    disk: NamedTempFile,
    setup: Vec<String>,
}

impl Tgt {
    /// `None`, and a line that says so, where tgt is not installed or we are not root, which it needs.
    fn start(setup: &[&str]) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        if std::fs::metadata("/proc/self").is_ok_and(|of_ours| of_ours.uid() != 0) {
            lunway_foreign::not_run("tgtd (it wants root)");
            return None;
        }
        let disk = NamedTempFile::new().unwrap();
        disk.as_file().set_len(SIZE).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        lunway_foreign::program("tgtd")?;
        let daemon = Self::spawn(port).unwrap();
        let setup = setup.iter().map(|&line| line.to_owned()).collect();
        let mut tgt = Self { daemon, port, disk, setup };
        assert!(tgt.configure(), "tgtd cannot be set up");
        Some(tgt)
    }

    /// tgt knows control ports below 32768; those of one range of ephemeral ports stay apart.
    fn control(port: u16) -> String {
        (port & 0x7FFF).to_string()
    }

    fn spawn(port: u16) -> std::io::Result<Child> {
        Command::new("tgtd")
            .args(["-f", "-C", &Self::control(port), "--iscsi", &format!("portal=127.0.0.1:{port}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    fn admin(&self, line: &str) -> bool {
        let output = Command::new("tgtadm")
            .args(["-C", &Self::control(self.port), "--lld", "iscsi"])
            .args(line.split_whitespace())
            .output();
        output.is_ok_and(|output| output.status.success())
    }

    fn configure(&mut self) -> bool {
        let until = Instant::now() + Duration::from_secs(5);
        while !self.admin(&format!("--mode target --op new --tid 1 -T {NAME}")) {
            if Instant::now() > until || self.daemon.try_wait().is_ok_and(|ended| ended.is_some()) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let disk = format!("--mode logicalunit --op new --tid 1 --lun 1 -b {}", self.disk.path().display());
        self.admin(&disk)
            && self.setup.iter().all(|line| self.admin(line))
            && self.admin("--mode target --op bind --tid 1 -I ALL")
    }

    /// Kills it without a warning and starts it again.
    fn crash(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        self.daemon = Self::spawn(self.port).unwrap();
        assert!(self.configure(), "tgtd did not come back");
    }

    async fn open(&self, login: &str, query: &str) -> Result<IscsiDevice, IscsiOpenError> {
        let text = format!("iscsi://{login}127.0.0.1:{}/{NAME}/1{query}", self.port);
        IscsiDevice::open(IscsiUrl::parse(&text).unwrap(), quick()).await
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        // What the killed daemon leaves behind.
        for suffix in ["", ".lock"] {
            let _ =
                std::fs::remove_file(format!("/var/run/tgtd/socket.{}{suffix}", Self::control(self.port)));
        }
    }
}

/// tgt reports a power-on over every new session, so a flush after a lost connection must fail once.
fn power_on(error: &BlockError) -> bool {
    error.to_string().contains("may be lost")
}

#[tokio::test]
async fn plain_sessions_move_verified_data() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    let device = Arc::new(tgt.open("", "").await.unwrap());
    assert_eq!((device.geometry().size, device.geometry().logical_sector), (SIZE, 512));
    model::verified_io(device.clone(), 8, 100, |_| false).await;
    let data = Buf::copy_of(&[0x5A; 6 << 20]).freeze();
    device.write(8 << 20, data.clone(), Durability::Stable).await.unwrap();
    let read = device.read(8 << 20, Buf::zeroed(6 << 20)).await.unwrap();
    assert!(read[..] == data[..]);
    device.close().await;
}

#[tokio::test]
async fn its_targets_are_found_and_its_disk_is_described() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    let url = IscsiUrl::parse(&format!("iscsi://127.0.0.1:{}", tgt.port)).unwrap();
    let targets = discover(&url, &quick()).await.unwrap();
    assert!(targets.iter().any(|target| target.name == NAME && !target.addresses.is_empty()), "{targets:?}");
    let url = IscsiUrl::parse(&format!("{url}/{NAME}/1")).unwrap();
    let inspection = inspect(&url, &quick()).await.unwrap();
    assert!(inspection.luns.contains(&1));
    let unit = inspection.unit.unwrap();
    assert_eq!(unit.capacity.unwrap().size(), Some(SIZE));
    assert_eq!(unit.inquiry.unwrap().vendor, "IET");
    assert!(unit.identification.is_some());
}

#[tokio::test]
async fn its_controller_is_not_taken_for_a_disk() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    let url = IscsiUrl::parse(&format!("iscsi://127.0.0.1:{}/{NAME}/0", tgt.port)).unwrap();
    let error = IscsiDevice::open(url, quick()).await.unwrap_err();
    assert!(matches!(error, IscsiOpenError::NotADisk { lun: 0, .. }), "{error}");
}

#[tokio::test]
async fn chap_one_way_and_mutual() {
    let Some(tgt) = Tgt::start(&[
        "--mode account --op new --user me --password secret-of-ours",
        "--mode account --op new --user it --password secret-of-its",
        "--mode account --op bind --tid 1 --user me",
        "--mode account --op bind --tid 1 --user it --outgoing",
    ]) else {
        return;
    };
    assert!(matches!(tgt.open("", "").await, Err(IscsiOpenError::ChapRequired { .. })));
    assert!(matches!(tgt.open("me%wrong@", "").await, Err(IscsiOpenError::Login { .. })));
    tgt.open("me%secret-of-ours@", "").await.unwrap();
    tgt.open("me%secret-of-ours@", "?target_user=it&target_password=secret-of-its").await.unwrap();
    let refused =
        tgt.open("me%secret-of-ours@", "?target_user=it&target_password=another").await.unwrap_err();
    assert!(matches!(refused, IscsiOpenError::Login { .. }), "{refused}");
}

#[tokio::test]
async fn digests_over_headers_and_data() {
    let Some(tgt) = Tgt::start(&[
        "--mode target --op update --tid 1 --name HeaderDigest --value CRC32C,None",
        "--mode target --op update --tid 1 --name DataDigest --value CRC32C,None",
    ]) else {
        return;
    };
    let device = Arc::new(tgt.open("", "?header_digest=crc32c&data_digest=crc32c").await.unwrap());
    model::verified_io(device, 4, 60, |_| false).await;
}

#[tokio::test]
async fn killed_and_started_again_under_load_it_loses_nothing() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    let device = Arc::new(tgt.open("", "").await.unwrap());
    let io = tokio::spawn({
        let device = device.clone();
        async move {
            for _ in 0..4 {
                model::verified_io(device.clone(), 8, 400, power_on).await;
            }
        }
    });
    crash_under(tgt, io).await;
    device.close().await;
}

#[tokio::test]
async fn killed_and_started_again_while_writes_are_retained_no_flush_fails() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    let session = Arc::new(tgt.open("", "").await.unwrap());
    let device = Arc::new(RetainingDevice::new(session.clone(), UNFLUSHED_MAX));
    let io = tokio::spawn(async move {
        for _ in 0..4 {
            model::verified_io(device.clone(), 8, 400, |_| false).await;
        }
    });
    crash_under(tgt, io).await;
    session.close().await;
}

/// Kills it again and again while there is I/O.
async fn crash_under(mut tgt: Tgt, io: tokio::task::JoinHandle<()>) {
    let mut crashes = 0;
    while !io.is_finished() && crashes < 3 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        tgt = tokio::task::spawn_blocking(move || {
            tgt.crash();
            tgt
        })
        .await
        .unwrap();
        crashes += 1;
    }
    io.await.unwrap();
    assert!(crashes > 0);
}

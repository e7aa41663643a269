//! Another disk under the address of an open device, while its session lives: nothing is written to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, SharedBuf};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use lunway_memory::RamDisk;
use lunway_target::{ChangeOptions, Config, OpenDevice, Server};

use crate::support::quick;
use crate::support::scripted::{Act, Disk, NAME, SECTOR};

const WRITE: u8 = 0x8A;
const INQUIRY: u8 = 0x12;

async fn open(disk: &Arc<Disk>, options: SessionOptions) -> IscsiDevice {
    let url = IscsiUrl::parse(&format!("iscsi://{}/{NAME}/0", disk.serve().await)).unwrap();
    IscsiDevice::open(url, options).await.expect("open")
}

fn ones() -> SharedBuf {
    Buf::copy_of(&[1; SECTOR]).freeze()
}

async fn closed_for_good(device: &IscsiDevice) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match device.read(0, Buf::zeroed(SECTOR)).await {
            Err(BlockError::Gone { why, .. }) if why.contains("another disk") => return,
            other => assert!(Instant::now() < until, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const CHANGES: [(u8, u8); 9] = [
    (0x3F, 0x0E),
    (0x3F, 0x03),
    (0x3F, 0x05),
    (0x28, 0x00),
    (0x29, 0x00),
    (0x29, 0x03),
    (0x29, 0x07),
    (0x2A, 0x01),
    (0x2A, 0x09),
];

#[tokio::test]
async fn a_unit_attention_that_may_mean_another_disk_is_looked_into_before_anything_is_written() {
    for options in [quick(), SessionOptions::fail_fast()] {
        for (asc, ascq) in CHANGES {
            let disk = Disk::new(64, 8);
            let device = open(&disk, options.clone()).await;
            *disk.identity.lock().unwrap() = [0x60, 9, 9, 9, 9, 9, 9, 9];
            disk.once(WRITE, Act::Sense(6, asc, ascq));
            let first = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
            assert!(!matches!(first, BlockError::Timeout { .. }), "it has not been carried out: {first}");
            for _ in 0..4 {
                device.write(0, ones(), Durability::Volatile).await.unwrap_err();
            }
            closed_for_good(&device).await;
            assert_eq!(disk.count(WRITE), 0, "{asc:02x}/{ascq:02x}");
        }
    }
}

/// What LIO answers for LUN 0 where there is none any more (a small read-only unit of its own does), and what others
/// do.
const ABSENCES: [(u8, u8, u8); 3] = [(5, 0x21, 0x00), (7, 0x27, 0x00), (5, 0x25, 0x00)];

#[tokio::test]
async fn an_error_that_the_disk_cannot_have_given_is_looked_into_before_anything_is_written() {
    for options in [quick(), SessionOptions::fail_fast()] {
        for (key, asc, ascq) in ABSENCES {
            let disk = Disk::new(64, 8);
            let device = open(&disk, options.clone()).await;
            *disk.identity.lock().unwrap() = [0x60, 9, 9, 9, 9, 9, 9, 9];
            disk.once(WRITE, Act::Sense(key, asc, ascq));
            for _ in 0..4 {
                device.write(0, ones(), Durability::Volatile).await.unwrap_err();
            }
            closed_for_good(&device).await;
            assert_eq!(disk.count(WRITE), 0, "{asc:02x}/{ascq:02x}");
        }
    }
}

#[tokio::test]
async fn writes_wait_until_the_unit_has_said_that_it_is_the_same_disk_and_are_done_then() {
    for (asc, ascq) in CHANGES {
        let disk = Disk::new(64, 8);
        let device = open(&disk, quick()).await;
        let before = disk.seen.lock().unwrap().len();
        disk.once(WRITE, Act::Sense(6, asc, ascq));
        let first = tokio::spawn(device.write(0, ones(), Durability::Volatile).into_future());
        while disk.seen.lock().unwrap().len() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        device.write(512, ones(), Durability::Volatile).await.unwrap();
        first.await.unwrap().unwrap();
        let seen = disk.seen.lock().unwrap()[before..].to_vec();
        let at = |wanted: &dyn Fn(&Vec<u8>) -> bool| seen.iter().position(wanted);
        let identified = at(&|cdb| cdb[0] == INQUIRY && cdb[1] == 1 && cdb[2] == 0x83).unwrap();
        assert!(at(&|cdb| cdb[0] == WRITE).unwrap() > identified, "{asc:02x}/{ascq:02x}: {seen:?}");
        assert!(disk.data.lock().unwrap()[..1024].iter().all(|&byte| byte == 1));
    }
}

#[tokio::test]
async fn a_unit_that_does_not_say_which_it_is_gets_no_write() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, SessionOptions { command_timeout: Duration::from_secs(1), ..quick() }).await;
    let mut told = false;
    disk.script(move |cdb| match cdb[0] {
        WRITE if !told => {
            told = true;
            Act::Sense(6, 0x3F, 0x0E)
        }
        INQUIRY => Act::Status(0x08),
        _ => Act::Execute,
    });
    device.write(0, ones(), Durability::Volatile).await.unwrap_err();
    assert_eq!(disk.count(WRITE), 0);
    // It says so in the end.
    disk.script(|_| Act::Execute);
    let until = Instant::now() + Duration::from_secs(10);
    while device.write(0, ones(), Durability::Volatile).await.is_err() {
        assert!(Instant::now() < until);
    }
}

#[tokio::test]
async fn where_another_path_may_do_it_nothing_is_held_for_long() {
    let disk = Disk::new(64, 8);
    let device = open(&disk, SessionOptions::fail_fast()).await;
    let mut told = false;
    disk.script(move |cdb| match cdb[0] {
        WRITE if !told => {
            told = true;
            Act::Sense(6, 0x3F, 0x0E)
        }
        INQUIRY => Act::Status(0x08),
        _ => Act::Execute,
    });
    let start = Instant::now();
    let error = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
    assert!(matches!(error, BlockError::Gone { .. }), "it was not done: {error}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// RAM disks of our own target, each with the name that its device has.
async fn serve() -> (Server, SocketAddr) {
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{NAME}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"one\"\n[[target.lun]]\nid = 1\ndevice = \"else\"\n"
    );
    let open: OpenDevice = Arc::new(|_, _| {
        Box::pin(async {
            let disk = RamDisk::new(1 << 20, 512).map_err(|error| error.to_string())?;
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        })
    });
    let server = Server::start(Config::from_toml(&config, "test").unwrap(), open).await.expect("start");
    let address = server.addresses()[0];
    (server, address)
}

/// Makes `device` LUN 0, or removes that.
async fn exchange(server: &Server, device: Option<&str>) {
    let edit = |config: &mut Config| {
        let luns = &mut config.targets[0].luns;
        let mut lun = luns.iter().find(|lun| lun.id == 1).unwrap().clone();
        luns.retain(|lun| lun.id != 0);
        if let Some(device) = device {
            (lun.id, lun.device) = (0, device.parse().unwrap());
            luns.push(lun);
        }
        Ok(())
    };
    server.change(edit, ChangeOptions { force: true, ..ChangeOptions::default() }).await.unwrap();
}

async fn is_untouched(address: SocketAddr) {
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let other = IscsiDevice::open(url, quick()).await.unwrap();
    let read = other.read(0, Buf::zeroed(1 << 20)).await.unwrap();
    assert!(read.iter().all(|&byte| byte == 0), "the other disk was written to");
    other.close().await;
}

#[tokio::test]
async fn a_lun_that_is_exchanged_in_a_live_session_is_not_written_to() {
    for options in [quick(), SessionOptions::fail_fast()] {
        for pause in [false, true] {
            let (server, address) = serve().await;
            let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
            let device = IscsiDevice::open(url, options.clone()).await.unwrap();
            device.write(0, ones(), Durability::Volatile).await.unwrap();
            exchange(&server, None).await;
            if pause {
                // The loss of the unit is noticed before the other one is there.
                let gone = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
                assert!(matches!(gone, BlockError::Gone { .. }), "{gone}");
            }
            exchange(&server, Some("another")).await;
            for _ in 0..3 {
                device.write(0, ones(), Durability::Volatile).await.unwrap_err();
            }
            closed_for_good(&device).await;
            is_untouched(address).await;
        }
    }
}

#[tokio::test]
async fn a_lun_that_comes_back_is_used_again_once_it_has_said_that_it_is_the_same() {
    let (server, address) = serve().await;
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let device = IscsiDevice::open(url, quick()).await.unwrap();
    device.write(0, ones(), Durability::Volatile).await.unwrap();
    exchange(&server, None).await;
    let gone = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
    assert!(matches!(gone, BlockError::Gone { .. }), "{gone}");
    exchange(&server, Some("one")).await;
    let until = Instant::now() + Duration::from_secs(10);
    while device.write(0, ones(), Durability::Volatile).await.is_err() {
        assert!(Instant::now() < until, "it is not used again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(device.epoch(), 1, "in the same session");
    device.close().await;
}

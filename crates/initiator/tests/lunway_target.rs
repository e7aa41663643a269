//! Conversations with our own target, over sockets.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Caching, Durability, ExtentKind, PathState, Zeroing};
use lunway_initiator::{
    AccessState, IscsiDevice, IscsiOpenError, IscsiUrl, SessionEvent, SessionOptions, discover, inspect,
};
use lunway_memory::RamDisk;
use lunway_target::{ChangeOptions, Config, OpenDevice, Server, TargetPortalGroup};
use tempfile::NamedTempFile;

use crate::support::recorder::Recorder;
use crate::support::{model, quick};

const NAME: &str = "iqn.2026-11.com.example:ram";
const SECRET: &str = "a secret of ours";
const TARGET_SECRET: &str = "a secret of the target";

fn secret_file(secret: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(secret.as_bytes()).unwrap();
    file
}

/// Serves 32 MiB RAM disks: LUN 0 with 512, LUN 3 with 4096 bytes a sector; `extra` goes into the target's table.
async fn serve(extra: &str) -> (Server, SocketAddr) {
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{NAME}\"\nopen = true\n{extra}\n\
         [[target.lun]]\nid = 0\ndevice = \"512\"\n[[target.lun]]\nid = 3\ndevice = \"4096\"\n"
    );
    let open: OpenDevice = Arc::new(|text, _| {
        Box::pin(async move {
            let disk = RamDisk::new(32 << 20, text.as_written().parse().unwrap())
                .map_err(|error| error.to_string())?;
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        })
    });
    let server = Server::start(Config::from_toml(&config, "test").unwrap(), open).await.expect("start");
    let address = server.addresses()[0];
    (server, address)
}

async fn open(text: &str) -> Result<IscsiDevice, IscsiOpenError> {
    IscsiDevice::open(IscsiUrl::parse(text).unwrap(), quick()).await
}

#[tokio::test]
async fn verified_io_with_and_without_digests() {
    let (server, address) = serve("").await;
    for query in ["", "?header_digest=crc32c", "?header_digest=crc32c&data_digest=crc32c"] {
        let device = Arc::new(open(&format!("iscsi://{address}/{NAME}/0{query}")).await.unwrap());
        model::verified_io(device.clone(), 8, 100, |_| false).await;
        device.close().await;
    }
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn operations_come_from_any_thread() {
    let (_server, address) = serve("").await;
    let device = Arc::new(open(&format!("iscsi://{address}/{NAME}/0")).await.unwrap());
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let device = device.clone();
            tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let fill = vec![thread + 1; 64 << 10];
                for round in 0..200u64 {
                    let offset = (u64::from(thread) << 20) + (round % 8) * (64 << 10);
                    let write = device.write(offset, Buf::copy_of(&fill).freeze(), Durability::Volatile);
                    runtime.block_on(write.into_future()).unwrap();
                    let read = device.read(offset, Buf::zeroed(fill.len()));
                    assert!(runtime.block_on(read.into_future()).unwrap()[..] == fill[..]);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.await.unwrap();
    }
}

#[tokio::test]
async fn a_disk_without_work_uses_no_processor_time() {
    let (_server, address) = serve("").await;
    let device = open(&format!("iscsi://{address}/{NAME}/0")).await.unwrap();
    device.read(0, Buf::zeroed(4096)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Nanoseconds that this thread, the driver's too, has had a processor.
    let used = || -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let before = used();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(used() - before < 20_000_000, "{} ns of 200 ms", used() - before);
}

#[tokio::test]
async fn large_transfers_are_whole() {
    let (_server, address) = serve("").await;
    for lun in [0, 3] {
        let device = open(&format!("iscsi://{address}/{NAME}/{lun}")).await.unwrap();
        let bytes: Vec<u8> = (0..12usize << 20).map(|n| (n / 4096 + n) as u8).collect();
        let data = Buf::copy_of(&bytes).freeze();
        device.write(1 << 20, data, Durability::Volatile).await.unwrap();
        let read = device.read(1 << 20, Buf::zeroed(bytes.len())).await.unwrap();
        assert!(read[..] == bytes[..]);
    }
}

#[tokio::test]
async fn space_comes_and_goes() {
    let (_server, address) = serve("").await;
    let device = open(&format!("iscsi://{address}/{NAME}/3")).await.unwrap();
    let geometry = device.geometry();
    assert_eq!((geometry.logical_sector, geometry.size), (4096, 32 << 20));
    assert!(geometry.unmap.zeroes());
    let all = device.extents(0, geometry.size, usize::MAX).await.unwrap();
    assert!(all.iter().all(|extent| extent.kind == ExtentKind::Unallocated), "{all:?}");

    let data = Buf::copy_of(&[7; 8 << 20]).freeze();
    device.write(4 << 20, data, Durability::Volatile).await.unwrap();
    let kinds: Vec<_> = device.extents(0, geometry.size, usize::MAX).await.unwrap();
    let expected = [(0, 4 << 20), (4 << 20, 8 << 20), (12 << 20, 20 << 20)];
    assert_eq!(kinds.iter().map(|extent| (extent.offset, extent.len)).collect::<Vec<_>>(), expected);
    assert_eq!(kinds[1].kind, ExtentKind::Data);

    device.unmap(4 << 20, 4 << 20).await.unwrap();
    device.write_zeroes(8 << 20, 1 << 20, Zeroing::KeepAllocated).await.unwrap();
    let read = device.read(4 << 20, Buf::zeroed(8 << 20)).await.unwrap();
    assert!(read[..5 << 20].iter().all(|&byte| byte == 0) && read[5 << 20..].iter().all(|&byte| byte == 7));
    let kinds = device.extents(4 << 20, 4 << 20, usize::MAX).await.unwrap();
    assert!(kinds.iter().all(|extent| extent.kind == ExtentKind::Unallocated), "{kinds:?}");
}

#[tokio::test]
async fn portals_list_targets_and_targets_tell_all() {
    let (_server, address) = serve("").await;
    let url = IscsiUrl::parse(&format!("iscsi://{address}")).unwrap();
    let targets = discover(&url, &quick()).await.unwrap();
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].name, NAME);
    assert_eq!(targets[0].addresses[0].0, address.to_string());

    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/3")).unwrap();
    let inspection = inspect(&url, &quick()).await.unwrap();
    assert_eq!(inspection.luns, [0, 3]);
    let unit = inspection.unit.unwrap();
    assert_eq!(unit.inquiry.unwrap().vendor, "LUNWAY");
    assert_eq!(unit.capacity.unwrap().size(), Some(32 << 20));
    assert!(unit.serial.is_some() && unit.identification.unwrap().unit_name().is_some());
    assert!(unit.block_limits.is_some() && unit.provisioning.is_some() && unit.mode.is_some());
    assert_eq!(unit.not_ready, None);

    let missing = inspect(&IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/9")).unwrap(), &quick()).await;
    assert!(matches!(missing, Err(IscsiOpenError::NoSuchLun { lun: 9, .. })));
    assert!(matches!(
        open(&format!("iscsi://{address}/{NAME}/9")).await,
        Err(IscsiOpenError::NoSuchLun { lun: 9, .. })
    ));
    let error = open(&format!("iscsi://{address}/iqn.2026-11.com.example:none/0")).await.unwrap_err();
    assert!(error.to_string().contains("no such target"), "{error}");
}

// shows RFC 7143 [9.2.1-1]
#[tokio::test]
async fn chap_lets_in_who_proves_it_and_tells_a_false_target() {
    let (ours, theirs) = (secret_file(SECRET), secret_file(TARGET_SECRET));
    let (_server, address) = serve(&format!(
        "[[target.chap]]\nuser = \"me\"\nsecret_file = {:?}\n[target.mutual_chap]\nuser = \"it\"\nsecret_file = {:?}\n",
        ours.path(),
        theirs.path()
    ))
    .await;
    let (ours, theirs) = (ours.path().display(), theirs.path().display());
    let lun = format!("{address}/{NAME}/0");
    let refused = open(&format!("iscsi://{lun}")).await.unwrap_err();
    assert!(matches!(refused, IscsiOpenError::ChapRequired { .. }), "{refused}");
    let refused = open(&format!("iscsi://me%wrong@{lun}")).await.unwrap_err();
    assert!(
        matches!(refused, IscsiOpenError::Login { .. }) && !refused.to_string().contains("wrong"),
        "{refused}"
    );

    open(&format!("iscsi://me@{lun}?secret_file={ours}")).await.unwrap();
    open(&format!("iscsi://me@{lun}?secret_file={ours}&target_user=it&target_secret_file={theirs}"))
        .await
        .unwrap();
    let false_target = format!("iscsi://me@{lun}?secret_file={ours}&target_user=it&target_password=other");
    let refused = open(&false_target).await.unwrap_err();
    assert!(refused.to_string().contains("did not prove"), "{refused}");
}

#[tokio::test]
async fn a_target_that_goes_for_good_ends_operations_in_time() {
    let (server, address) = serve("").await;
    let options =
        lunway_initiator::SessionOptions { replacement_timeout: Duration::from_millis(300), ..quick() };
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let device = IscsiDevice::open(url, options).await.unwrap();
    server.shutdown(Duration::from_millis(500)).await.unwrap();
    let read = tokio::time::timeout(Duration::from_secs(3), device.read(0, Buf::zeroed(512)).into_future());
    assert!(read.await.expect("in time").is_err());
    device.close().await;
}

#[tokio::test]
async fn a_session_is_one_path_that_counts_what_went_over_it() {
    let (server, address) = serve("").await;
    let device = open(&format!("iscsi://{address}/{NAME}/0")).await.unwrap();
    let [fresh] = &device.paths()[..] else { panic!("not one path") };
    assert_eq!((fresh.name.as_str(), fresh.state), (address.to_string().as_str(), PathState::Up));
    assert_eq!(device.caching(), Caching::WriteThrough, "memory has no cache to lose");
    assert_eq!((fresh.read_ios, fresh.write_ios, fresh.errors), (0, 0, 0), "opening moves no data");
    device.write(0, Buf::zeroed(8192).freeze(), Durability::Stable).await.unwrap();
    device.read(0, Buf::zeroed(4096)).await.unwrap();
    device.read(4096, Buf::zeroed(512)).await.unwrap();
    device.flush().await.unwrap();
    let path = device.paths().remove(0);
    assert_eq!((path.read_ios, path.read_bytes), (2, 4608));
    assert_eq!((path.write_ios, path.write_bytes, path.errors), (1, 8192, 0));
    assert!(path.round_trip.is_some_and(|time| time < Duration::from_secs(1)));
    device.close().await;
    assert_eq!(device.paths()[0].state, PathState::Closed);
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn an_idle_session_knows_how_long_the_target_takes_to_answer() {
    let (server, address) = serve("").await;
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let options = SessionOptions { nop_interval: Duration::from_millis(20), ..SessionOptions::default() };
    let device = IscsiDevice::open(url, options).await.unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while device.paths()[0].ping.is_none() {
        assert!(std::time::Instant::now() < until, "no ping was answered");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ping = device.paths()[0].ping.unwrap();
    assert!(ping > Duration::ZERO && ping < Duration::from_secs(5), "{ping:?}");
    device.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn the_state_of_its_port_is_known_and_followed() {
    use lunway_initiator::SessionEvent::{Access, PowerOn, Up};
    use lunway_target::PortalGroupState;
    let (server, address) = serve("").await;
    let recorder = Recorder::default();
    let options = SessionOptions { observer: Some(recorder.observer()), ..SessionOptions::fail_fast() };
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let device = IscsiDevice::open(url, options).await.unwrap();
    assert_eq!(device.access(), Some(AccessState::ActiveOptimized));
    assert_eq!(recorder.events(), [Access(AccessState::ActiveOptimized), PowerOn, Up { epoch: 1 }]);
    for (configured, told, works) in [
        (PortalGroupState::ActiveNonOptimized, AccessState::ActiveNonOptimized, true),
        (PortalGroupState::Standby, AccessState::Standby, false),
        (PortalGroupState::ActiveOptimized, AccessState::ActiveOptimized, true),
    ] {
        let group = TargetPortalGroup { tag: 1, state: configured, preferred: false };
        let edit = |config: &mut Config| {
            config.targets[0].portal_groups = vec![group.clone()];
            Ok(())
        };
        server.change(edit, ChangeOptions::default()).await.unwrap();
        // Noticed with the next command, which a unit attention meets.
        let read = device.read(0, Buf::zeroed(512)).await;
        match works {
            true => drop(read.unwrap()),
            false => assert!(matches!(read, Err(BlockError::Gone { .. })), "{read:?}"),
        }
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while device.access() != Some(told) {
            assert!(std::time::Instant::now() < until, "{told:?}: {:?}", recorder.events());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        recorder.when("the state", |event| *event == Access(told)).await;
    }
    device.close().await;
}

#[tokio::test]
async fn a_session_that_comes_back_to_a_standby_port_keeps_the_shape_of_the_disk() {
    use lunway_target::PortalGroupState;
    let (server, address) = serve("").await;
    let recorder = Recorder::default();
    let options = SessionOptions { observer: Some(recorder.observer()), ..SessionOptions::fail_fast() };
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let device = IscsiDevice::open(url, options).await.unwrap();
    let geometry = device.geometry();
    let group = TargetPortalGroup { tag: 1, state: PortalGroupState::Standby, preferred: false };
    let edit = |config: &mut Config| {
        config.targets[0].portal_groups = vec![group.clone()];
        Ok(())
    };
    server.change(edit, ChangeOptions::default()).await.unwrap();
    device.sever("for the test");
    recorder.when("the next session", crate::support::recorder::is_up(2)).await;
    assert_eq!((device.geometry(), device.access()), (geometry, Some(AccessState::Standby)));
    device.close().await;
}

#[tokio::test]
async fn a_standby_port_opens_only_with_what_is_known_of_the_disk_and_tells_when_it_is_active() {
    use lunway_target::PortalGroupState;
    let (server, address) = serve("").await;
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let other = IscsiDevice::open(url.clone(), SessionOptions::fail_fast()).await.unwrap();
    let turn = async |state| {
        let group = TargetPortalGroup { tag: 1, state, preferred: false };
        let edit = |config: &mut Config| {
            config.targets[0].portal_groups = vec![group.clone()];
            Ok(())
        };
        server.change(edit, ChangeOptions::default()).await.unwrap();
    };
    turn(PortalGroupState::Standby).await;
    let refused = IscsiDevice::open(url.clone(), SessionOptions::fail_fast()).await.unwrap_err();
    assert!(matches!(refused, IscsiOpenError::Inactive { .. }), "{refused}");
    let recorder = Recorder::default();
    let options = SessionOptions {
        known: Some(other.known()),
        observer: Some(recorder.observer()),
        ..SessionOptions::fail_fast()
    };
    let device = IscsiDevice::open(url, options).await.unwrap();
    assert_eq!((device.geometry(), device.access()), (other.geometry(), Some(AccessState::Standby)));
    assert!(device.identity().same_disk(other.identity()));
    turn(PortalGroupState::ActiveOptimized).await;
    // Nothing is sent that could bring the news.
    let is_active = |event: &SessionEvent| *event == SessionEvent::Access(AccessState::ActiveOptimized);
    recorder.when("the state", is_active).await;
    device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile).await.unwrap();
    device.close().await;
    other.close().await;
}

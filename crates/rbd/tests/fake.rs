//! The device on a library that delays, holds, fails and remembers (`tools/fake-rbd`).

#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use lunway_block::spec::{DeviceSpec, RbdName};
use lunway_block::{BlockDevice, BlockError, Buf, Durability, ExtentKind, Fate, Permit, Unmap, Zeroing};
use lunway_rbd::{RbdDevice, RbdOpenError, RbdOptions, RbdSnapshots};
use tempfile::TempDir;

const SIZE: u64 = 4 << 20;
/// More than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The shared object, which cargo has put beside the test.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    folder.join("liblunway_fake_rbd.so")
}

fn with() -> RbdOptions {
    RbdOptions { library: Some(library()), ..RbdOptions::default() }
}

/// The same without some functions: the loader finds other names.
fn library_without(functions: &[&str], folder: &Path) -> PathBuf {
    let mut bytes = fs::read(library()).unwrap();
    for function in functions {
        let name = format!("\0{function}\0").into_bytes();
        let found: Vec<usize> =
            bytes.windows(name.len()).enumerate().filter(|(_, at)| **at == name).map(|(at, _)| at).collect();
        assert!(!found.is_empty(), "{function}");
        found.into_iter().for_each(|at| bytes[at + 1] = b'x');
    }
    let older = folder.join(format!("without_{}.so", functions.join("_")));
    fs::write(&older, bytes).unwrap();
    older
}

/// A cluster with its script.
struct Script(TempDir);

impl Script {
    fn new(lines: &str) -> Self {
        let script = Self(tempfile::tempdir().unwrap());
        script.says(lines);
        fs::write(script.0.path().join("ceph.conf.log"), "").unwrap();
        script
    }

    /// From now on; the images are there.
    fn says(&self, lines: &str) {
        let next = self.0.path().join("next");
        let images = format!("image rbd/disk {SIZE}\nimage rbd/other {SIZE}\n");
        fs::write(&next, format!("{images}{lines}\n")).unwrap();
        fs::rename(next, self.0.path().join("ceph.conf")).unwrap();
    }

    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join("ceph.conf.log")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn name(&self, image: &str, options: &str) -> RbdName {
        let conf = self.0.path().join("ceph.conf");
        let text = format!("rbd:{image}?conf={}{options}", conf.display());
        match DeviceSpec::parse(&text).unwrap() {
            DeviceSpec::Rbd { name } => name,
            other => panic!("{other}"),
        }
    }

    async fn open_as(&self, options: &str, read_only: bool) -> Result<RbdDevice, RbdOpenError> {
        let with = RbdOptions { read_only, ..with() };
        RbdDevice::open(&self.name("rbd/disk", options), &with).await
    }

    /// As a daemon opens what it serves.
    async fn served(&self) -> RbdDevice {
        RbdDevice::open(&self.name("rbd/disk", ""), &RbdOptions { renew: true, ..with() }).await.unwrap()
    }

    /// The same under the name that lets it have one client with others.
    async fn shared(&self, image: &str) -> Result<RbdDevice, RbdOpenError> {
        let options = RbdOptions { renew: true, ..with() };
        RbdDevice::open(&self.name(image, "&share=group&timeout=1s"), &options).await
    }

    /// Who holds the lock.
    async fn holder(&self) -> String {
        self.holder_of("rbd/disk").await
    }

    async fn holder_of(&self, image: &str) -> String {
        match RbdDevice::open(&self.name(image, ""), &with()).await {
            Err(RbdOpenError::Held { holder, .. }) => holder,
            _ => panic!("nobody holds the lock"),
        }
    }

    /// How often this was called.
    fn calls(&self, call: &str) -> usize {
        self.log().iter().filter(|line| *line == call).count()
    }

    async fn open(&self) -> RbdDevice {
        self.open_as("", false).await.unwrap()
    }
}

fn block(byte: u8) -> Buf {
    Buf::copy_of(&[byte; 4096])
}

async fn put(device: &RbdDevice, byte: u8) -> Result<(), BlockError> {
    device.write(0, block(byte).freeze(), Durability::Stable).await
}

async fn get(device: &RbdDevice) -> Result<u8, BlockError> {
    let bytes = device.read(0, Buf::zeroed(4096)).await?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one write is there, whole");
    Ok(bytes[0])
}

#[tokio::test]
async fn memory_stays_the_operations_own_when_its_caller_is_gone() {
    let script = Script::new("hold write\nhold read");
    let device = script.open().await;
    drop(device.write(0, block(1).freeze(), Durability::Volatile));
    drop(device.read(0, Buf::zeroed(4096)));
    // The pool of this thread would lend the same memory again, if it had it back.
    let others: Vec<Buf> = (0..64).map(|_| block(9)).collect();
    script.says("");
    device.flush().await.unwrap();
    assert_eq!(get(&device).await, Ok(1));
    assert!(others.iter().all(|buf| buf.iter().all(|byte| *byte == 9)), "a read filled another's memory");
    device.close().await.unwrap();
}

#[tokio::test]
async fn closing_waits_for_what_is_under_way_and_refuses_the_rest() {
    let script = Script::new("hold write");
    let device = script.open().await;
    let written = device.write(0, block(1).freeze(), Durability::Volatile);
    let closed = device.close();
    assert!(matches!(device.flush().await, Err(BlockError::Gone { fate: Fate::NotDone, .. })));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!script.log().contains(&"close".to_owned()), "an operation is under way");
    script.says("");
    assert_eq!(written.await, Ok(()));
    assert_eq!(closed.await, Ok(()));
    assert_eq!(device.close().await, Ok(()), "once more");
    assert!(matches!(device.extents(0, SIZE, 9).await, Err(BlockError::Gone { .. })));
    drop(device);
    assert_eq!(script.log().iter().filter(|line| *line == "close").count(), 1);
    // Dropped without an end: it ends all the same, and the lock is free.
    drop(script.open().await);
    let log = || script.log().iter().filter(|line| *line == "shutdown").count();
    let start = std::time::Instant::now();
    while log() < 2 {
        assert!(start.elapsed() < PATIENCE, "{:?}", script.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    script.open().await.close().await.unwrap();
}

#[tokio::test]
async fn a_second_writer_is_refused_and_told_who_writes() {
    let script = Script::new("");
    let first = script.open().await;
    let Err(RbdOpenError::Held { holder, .. }) = script.open_as("", false).await else {
        panic!("two writers");
    };
    let message = script.open_as("", false).await.err().unwrap().to_string();
    assert!(message.contains(&holder) && message.contains("?break_lock="), "{message}");
    // A reader needs no lock, and changes nothing.
    let reader = script.open_as("", true).await.unwrap();
    assert!(reader.geometry().read_only && reader.geometry().unmap == Unmap::Holes);
    assert_eq!(put(&reader, 1).await, Err(BlockError::ReadOnly));
    assert_eq!(reader.resize(SIZE * 2, Permit::default()).await, Err(BlockError::ReadOnly));
    assert!(first.identity().is_same_disk(&reader.identity()));
    let other = RbdDevice::open(&script.name("rbd/other", ""), &with()).await.unwrap();
    assert!(!first.identity().is_same_disk(&other.identity()), "{:?}", other.identity());
    // Who is named wrongly is not fenced.
    assert!(matches!(
        script.open_as("&break_lock=127.0.0.1:0/0", false).await,
        Err(RbdOpenError::Held { .. })
    ));
    assert_eq!(put(&first, 2).await, Ok(()));
    first.close().await.unwrap();
    script.open().await.close().await.unwrap();
    // One that has died loses the lock without a word.
    let first = script.open().await;
    let Err(RbdOpenError::Held { holder, .. }) = script.open_as("", false).await else {
        panic!("two writers");
    };
    script.says(&format!("dead {holder}"));
    let second = script.open().await;
    assert_eq!(put(&second, 3).await, Ok(()));
    assert!(matches!(put(&first, 4).await, Err(BlockError::Fenced { .. })));
    assert_eq!(get(&second).await, Ok(3));
}

#[tokio::test]
async fn no_write_of_a_fenced_client_lands_and_it_stays_fenced() {
    let script = Script::new("");
    let old = script.open().await;
    assert_eq!(put(&old, 1).await, Ok(()));
    let Err(RbdOpenError::Held { holder, .. }) = script.open_as("", false).await else {
        panic!("two writers");
    };
    // On its way while the other takes over.
    script.says("hold write");
    let late = old.write(0, block(2).freeze(), Durability::Stable);
    let new = script.open_as(&format!("&break_lock={holder}"), false).await.unwrap();
    // The read tells the OSD of the new map; the late write comes only then.
    assert_eq!(get(&new).await, Ok(1));
    script.says("");
    let late = late.await.unwrap_err();
    assert!(matches!(late, BlockError::Fenced { .. }) && late.fate() == Fate::Over, "{late}");
    assert_eq!(get(&new).await, Ok(1), "a late write of the old owner landed");
    assert_eq!(put(&new, 3).await, Ok(()));
    // Everything else is refused without asking, and says why.
    let asked = script.log().len();
    let Err(BlockError::Gone { why, fate: Fate::NotDone }) = get(&old).await else { panic!("not fenced") };
    assert!(why.contains("fenced") && why.contains("rbd/disk"), "{why}");
    assert!(matches!(old.extents(0, SIZE, 1).await, Err(BlockError::Gone { .. })));
    assert!(matches!(old.resize(SIZE * 2, Permit::default()).await, Err(BlockError::Gone { .. })));
    assert_eq!(script.log().len(), asked);
    assert_eq!(old.backing(), Some(why));
    assert_eq!(new.backing(), None);
    assert_eq!(old.close().await, Ok(()));
    let calls: Vec<String> = script.log();
    let at = |call: &str| calls.iter().position(|line| line.starts_with(call)).unwrap();
    assert!(at("blocklist") < at("break"), "{calls:?}");
    assert_eq!(put(&new, 4).await, Ok(()));
}

#[tokio::test]
async fn a_size_that_another_client_changes_is_noticed() {
    let script = Script::new("");
    let (writer, reader) = (script.open().await, script.open_as("", true).await.unwrap());
    let (heard, hears) = mpsc::channel();
    reader.on_resize(Box::new(move |geometry| {
        let _ = heard.send(geometry.size);
    }));
    for size in [SIZE * 2, SIZE / 2] {
        writer.resize(size, Permit::default()).await.unwrap();
        assert_eq!(hears.recv_timeout(PATIENCE), Ok(size));
        assert_eq!(reader.geometry().size, size);
    }
    assert!(matches!(
        reader.read(SIZE, Buf::zeroed(512)).await,
        Err(BlockError::OutOfRange { size, .. }) if size == SIZE / 2
    ));
    reader.close().await.unwrap();
    writer.resize(SIZE, Permit::default()).await.unwrap();
    assert_eq!(hears.recv_timeout(Duration::from_millis(100)).ok(), None, "closed");
}

#[tokio::test]
async fn what_the_cluster_says_is_said_as_the_waist_means_it() {
    let script = Script::new("");
    let device = script.open_as("&timeout=7s", false).await.unwrap();
    for (errno, is) in [
        (libc::ENOSPC, "no space left"),
        (libc::EDQUOT, "no space left"),
        (libc::ENOENT, "the image is not there any more"),
        (libc::ETIMEDOUT, "no answer within 7"),
        (libc::EIO, "the medium failed at offset 0"),
        (libc::EROFS, "the image's lock was lost"),
        (libc::EPERM, "not permitted"),
    ] {
        script.says(&format!("fail write {errno}"));
        let error = put(&device, 1).await.unwrap_err();
        assert!(error.to_string().contains(is), "{errno}: {error}");
        let unknown = errno == libc::ETIMEDOUT;
        assert_eq!(error.fate() == Fate::Unknown, unknown, "{error}");
    }
    script.says(&format!("fail resize {}\nfail flush {}", libc::ENOSPC, libc::EIO));
    assert_eq!(device.resize(SIZE * 2, Permit::default()).await, Err(BlockError::NoSpace));
    assert!(device.flush().await.is_err());
    script.says("");
    assert_eq!(put(&device, 1).await, Ok(()), "an error is not for ever");
    let log = script.log();
    for line in ["set rbd_cache false", "set rados_osd_op_timeout 7", "set client_mount_timeout 7"] {
        assert!(log.contains(&line.to_owned()), "{line}: {log:?}");
    }
}

#[tokio::test]
async fn a_cache_that_the_image_has_is_said_and_flushed() {
    let flushes = |script: &Script| script.log().iter().filter(|line| *line == "flush").count();
    for (lines, cached) in [("", false), ("cache", true)] {
        let script = Script::new(lines);
        let device = script.open().await;
        assert_eq!(device.geometry().volatile_cache, cached);
        put(&device, 1).await.unwrap();
        assert_eq!(flushes(&script), usize::from(cached), "a durable write");
        device.write(0, block(2).freeze(), Durability::Volatile).await.unwrap();
        assert_eq!(flushes(&script), usize::from(cached), "another");
        device.close().await.unwrap();
    }
}

#[tokio::test]
async fn what_was_given_back_is_a_hole_of_whole_objects() {
    let script = Script::new("");
    let device = script.open().await;
    let object = u64::from(device.geometry().optimal_transfer);
    device
        .write(0, Buf::copy_of(&vec![7; 4 * object as usize]).freeze(), Durability::Volatile)
        .await
        .unwrap();
    // Half an object is zeroes, and still there; a whole one is gone.
    device.unmap(object / 2, 2 * object).await.unwrap();
    let kinds: Vec<_> = device
        .extents(0, 6 * object, usize::MAX)
        .await
        .unwrap()
        .iter()
        .map(|piece| (piece.kind, piece.len / object))
        .collect();
    let expected = [
        (ExtentKind::Data, 1),
        (ExtentKind::Unallocated, 1),
        (ExtentKind::Data, 2),
        (ExtentKind::Unallocated, 2),
    ];
    assert_eq!(kinds, expected);
    let bytes = device.read(0, Buf::zeroed(4 * object as usize)).await.unwrap();
    let zeroes = (object / 2) as usize..(object / 2 + 2 * object) as usize;
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if zeroes.contains(&at) { 0 } else { 7 }));
    device.write_zeroes(object, object, Zeroing::KeepAllocated).await.unwrap();
    assert_eq!(device.extents(object, object, 1).await.unwrap()[0].kind, ExtentKind::Data);
}

#[tokio::test]
async fn what_cannot_be_opened_says_what_would_help() {
    let script = Script::new("");
    let with = |library: Option<PathBuf>| RbdOptions { library, ..RbdOptions::default() };
    let says = async |name: RbdName, options: RbdOptions| {
        RbdDevice::open(&name, &options).await.err().expect("it was opened").to_string()
    };
    let ours = || with(Some(library()));
    let message = says(script.name("nowhere/disk", ""), ours()).await;
    assert!(message.contains("no pool nowhere"), "{message}");
    let message = says(script.name("rbd/none", ""), ours()).await;
    assert!(message.contains("no such image"), "{message}");
    let mut name = script.name("rbd/disk", "");
    name.conf = Some("/nonexistent/ceph.conf".into());
    let message = says(name, ours()).await;
    assert!(message.contains("/nonexistent/ceph.conf") && message.contains("?conf=FILE"), "{message}");
    let message = says(script.name("rbd/disk", ""), with(Some("/nonexistent/librbd.so.1".into()))).await;
    assert!(message.contains("librados2 and librbd1"), "{message}");
    // The C library, which has none of the functions.
    let message = says(script.name("rbd/disk", ""), with(Some("libc.so.6".into()))).await;
    assert!(message.contains("rados_create2") && message.contains("Ceph 16"), "{message}");
    script.says("no-lock");
    let message = says(script.name("rbd/disk", ""), ours()).await;
    assert!(message.contains("rbd feature enable rbd/disk exclusive-lock"), "{message}");
    // Mirrored snapshots, and a mirrored journal.
    for refusal in [format!("fail owners {}", libc::EINVAL), format!("fail lock {}", libc::EPERM)] {
        script.says(&refusal);
        let message = says(script.name("rbd/disk", ""), ours()).await;
        assert!(message.contains("its lock failed"), "{message}");
        script.says(&format!("{refusal}\nnot-primary"));
        let message = says(script.name("rbd/disk", ""), ours()).await;
        assert!(message.contains("not primary in this cluster"), "{message}");
        assert!(message.contains("rbd mirror image promote rbd/disk"), "{message}");
        let reader = script.open_as("", true).await.unwrap();
        reader.close().await.unwrap();
        script.says(&format!("fail snapshot {}\nnot-primary", libc::EROFS));
        let snapshots = RbdSnapshots::open(&script.name("rbd/disk", ""), &ours()).await.unwrap();
        let error = snapshots.create("one").await.unwrap_err();
        assert!(matches!(error, RbdOpenError::NotPrimary { .. }), "{error}");
    }
    script.says(&format!("fail open {}", libc::EPERM));
    let message = says(script.name("rbd/disk", ""), ours()).await;
    assert!(message.contains("opening the image failed"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_operations_at_once_are_each_answered_in_any_order() {
    let script = Script::new("reorder");
    let device = Arc::new(script.open().await);
    let writers = (0..8u8).map(|writer| {
        let device = Arc::clone(&device);
        tokio::spawn(async move {
            for round in 0..32u8 {
                let offset = u64::from(writer) * (256 << 10) + u64::from(round) * 4096;
                device.write(offset, block(writer ^ round).freeze(), Durability::Volatile).await.unwrap();
                let back = device.read(offset, Buf::zeroed(4096)).await.unwrap();
                assert!(back.iter().all(|byte| *byte == writer ^ round));
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    device.close().await.unwrap();
}

/// Writes until it is done: a host repeats what was busy.
async fn put_at_last(device: &RbdDevice, byte: u8) {
    let start = std::time::Instant::now();
    loop {
        match put(device, byte).await {
            Ok(()) => return,
            Err(BlockError::Busy) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < PATIENCE, "busy for ever: {:?}", device.backing());
    }
}

/// The same where the client may be fenced meanwhile: what was not answered is repeated, too.
async fn put_at_last_or_fenced(device: &RbdDevice, byte: u8) {
    let start = std::time::Instant::now();
    loop {
        match put(device, byte).await {
            Ok(()) => return,
            Err(BlockError::Fenced { .. } | BlockError::Busy) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", device.backing());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_client_is_followed_by_a_new_one_where_the_disk_is_served() {
    let script = Script::new("");
    let device = script.served().await;
    put(&device, 1).await.unwrap();
    let old = script.holder().await;
    // Two writes are with the cluster when it fences the client; opening fails at first.
    let fenced = format!("blocklist {old}");
    script.says(&format!("{fenced}\nhold write\nfail open {}", libc::ETIMEDOUT));
    let late = [2, 3].map(|byte| device.write(0, block(byte).freeze(), Durability::Stable));
    script.says(&format!("{fenced}\nfail open {}", libc::ETIMEDOUT));
    for write in late {
        assert!(matches!(write.await, Err(BlockError::Fenced { .. })));
    }
    assert_eq!(put(&device, 4).await, Err(BlockError::Busy), "hosts repeat it");
    let start = std::time::Instant::now();
    let why = loop {
        let why = device.backing().unwrap();
        if why.contains("attempt") {
            break why;
        }
        assert!(start.elapsed() < PATIENCE, "{why}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(why.contains("fenced") && why.contains("opening the image failed"), "{why}");
    script.says(&fenced);
    put_at_last(&device, 5).await;
    assert_eq!(device.backing(), None);
    assert_eq!(get(&device).await, Ok(5));
    let new = script.holder().await;
    assert_ne!(new, old);
    let log = script.log();
    assert!(log.contains(&format!("break {old}")), "its own lock stood there: {log:?}");
    // Once more: each client is followed by another.
    script.says(&format!("{fenced}\nblocklist {new}"));
    assert!(matches!(put(&device, 6).await, Err(BlockError::Fenced { .. })));
    put_at_last(&device, 7).await;
    assert_eq!(device.close().await, Ok(()));
    assert_eq!(get(&script.open().await).await, Ok(7), "the lock is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_another_has_taken_is_refused_until_that_one_ends() {
    let script = Script::new("");
    let device = script.served().await;
    put(&device, 1).await.unwrap();
    let old = script.holder().await;
    let other = script.open_as(&format!("&break_lock={old}"), false).await.unwrap();
    put(&other, 2).await.unwrap();
    assert!(matches!(put(&device, 3).await, Err(BlockError::Fenced { .. })));
    let start = std::time::Instant::now();
    let why = loop {
        match put(&device, 3).await {
            Err(BlockError::Gone { why, fate: Fate::NotDone }) => break why,
            Err(BlockError::Busy) => tokio::time::sleep(Duration::from_millis(5)).await,
            done => panic!("{done:?}"),
        }
        assert!(start.elapsed() < PATIENCE);
    };
    let holder = script.holder().await;
    assert!(why.contains("fenced") && why.contains(&holder), "{why}");
    assert_eq!(device.backing(), Some(why));
    assert_eq!(put(&other, 4).await, Ok(()), "it was not fenced in turn");
    other.close().await.unwrap();
    let start = std::time::Instant::now();
    while get(&device).await != Ok(4) {
        assert!(start.elapsed() < PATIENCE, "{:?}", device.backing());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    device.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_cannot_be_locked_any_more_is_written_no_more() {
    let script = Script::new("");
    let device = script.served().await;
    put(&device, 1).await.unwrap();
    script.says("no-lock");
    // A change of the header, as that of the features is one.
    device.resize(SIZE * 2, Permit::default()).await.unwrap();
    let why = refused_at_last(&device).await;
    assert!(why.contains("exclusive-lock was disabled") && why.contains("feature enable rbd/disk"), "{why}");
    assert_eq!(device.backing(), Some(why));
    script.says("");
    let start = std::time::Instant::now();
    while put(&device, 2).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "{:?}", device.backing());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    script.holder().await;
    device.close().await.unwrap();

    // One that is not served ends there.
    let device = script.open().await;
    script.says("no-lock");
    // Unless that was noticed when it was opened.
    let _ = device.resize(SIZE, Permit::default()).await;
    let why = refused_at_last(&device).await;
    assert!(why.contains("exclusive-lock was disabled"), "{why}");
    script.says("");
    assert!(matches!(put(&device, 3).await, Err(BlockError::Gone { .. })));
    assert_eq!(get(&script.open_as("", true).await.unwrap()).await, Ok(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_snapshot_that_was_removed_nothing_counts_as_read() {
    let script = Script::new("");
    let (writer, options) = (script.open().await, RbdOptions { read_only: true, ..with() });
    put(&writer, 1).await.unwrap();
    let name = script.name("rbd/disk", "");
    let snapshots = RbdSnapshots::open(&name, &with()).await.unwrap();
    for renew in [false, true] {
        snapshots.create("moment").await.unwrap();
        let at = script.name("rbd/disk@moment", "");
        let device = RbdDevice::open(&at, &RbdOptions { renew, ..options.clone() }).await.unwrap();
        put(&writer, 2).await.unwrap();
        assert_eq!(get(&device).await, Ok(1));
        assert_eq!(device.confirm().await, Ok(()));
        snapshots.remove("moment", None).await.unwrap();
        let lost = device.confirm().await;
        assert!(matches!(&lost, Err(BlockError::Gone { .. } | BlockError::Busy)), "{lost:?}");
        let why = refused_at_last(&device).await;
        assert!(why.contains("removed while it was in use") && why.contains("@moment"), "{why}");
        put(&writer, 1).await.unwrap();
        device.close().await.unwrap();
    }
    assert_eq!(writer.confirm().await, Ok(()));
}

/// Reads until that is refused, and returns the reason.
async fn refused_at_last(device: &RbdDevice) -> String {
    let start = std::time::Instant::now();
    loop {
        match get(device).await {
            Err(BlockError::Gone { why, .. }) => return why,
            Ok(_) | Err(BlockError::Busy) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", device.backing());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_does_not_wait_for_a_client_that_cannot_be_made() {
    let script = Script::new("");
    let device = script.served().await;
    let old = script.holder().await;
    script.says(&format!("blocklist {old}\nfail open {}", libc::ETIMEDOUT));
    assert!(matches!(put(&device, 1).await, Err(BlockError::Fenced { .. })));
    let begun = std::time::Instant::now();
    assert_eq!(device.close().await, Ok(()));
    assert!(begun.elapsed() < PATIENCE);
    script.says("");
    let opened = script.log().iter().filter(|line| *line == "lock").count();
    drop(device);
    assert_eq!(script.log().iter().filter(|line| *line == "lock").count(), opened, "no lock is taken later");
}

#[tokio::test]
async fn what_was_written_between_two_snapshots_is_told_and_nothing_else() {
    let script = Script::new("");
    let device = script.open().await;
    let name = script.name("rbd/disk", "");
    // Beside the client that has the lock.
    let snapshots = RbdSnapshots::open(&name, &with()).await.unwrap();
    put(&device, 1).await.unwrap();
    snapshots.create("one").await.unwrap();
    assert!(snapshots.create("one").await.is_err(), "there is one of that name");
    device.write(8192, block(2).freeze(), Durability::Stable).await.unwrap();
    put(&device, 3).await.unwrap();
    snapshots.create("two").await.unwrap();
    put(&device, 4).await.unwrap();
    let at = |snapshot: &str| RbdName { snapshot: Some(snapshot.to_owned()), ..name.clone() };
    let two = RbdDevice::open(&at("two"), &with()).await.unwrap();
    assert!(two.geometry().read_only);
    assert_eq!(get(&two).await, Ok(3));
    let one = RbdDevice::open(&at("one"), &with()).await.unwrap();
    let number = one.snapshot().unwrap();
    one.close().await.unwrap();
    assert_eq!(device.snapshot(), None);
    let changes = two.changed_since("one", number, 0).await.unwrap();
    assert_eq!((changes.ranges, changes.end), (vec![0..4096, 8192..12_288], SIZE));
    assert!(two.changed_since("one", number, SIZE).await.unwrap().ranges.is_empty());
    let error = two.changed_since("none", number, 0).await.unwrap_err();
    assert!(error.to_string().contains("no snapshot none"), "{error}");
    assert_eq!(device.changed_since("one", number, 0).await, Err(BlockError::Unsupported), "it changes");
    script.says(&format!("fail diff {}", libc::ESHUTDOWN));
    assert!(two.changed_since("one", number, 0).await.is_err());
    script.says("");
    two.close().await.unwrap();
    // Another one of the name, of a later moment: it would hide what was written in between.
    assert!(snapshots.remove("one", Some(number)).await.unwrap());
    snapshots.create("one").await.unwrap();
    snapshots.create("three").await.unwrap();
    let three = RbdDevice::open(&at("three"), &with()).await.unwrap();
    let error = three.changed_since("one", number, 0).await.unwrap_err();
    assert!(error.to_string().contains("one is not the one that had this name before"), "{error}");
    three.close().await.unwrap();
    assert!(!snapshots.remove("one", Some(number)).await.unwrap(), "it is not ours");
    assert!(snapshots.remove("one", None).await.unwrap());
    assert!(!snapshots.remove("one", Some(number)).await.unwrap());
    assert!(!snapshots.remove("one", None).await.unwrap());
    assert!(matches!(RbdDevice::open(&at("one"), &with()).await, Err(RbdOpenError::NoImage { .. })));
    script.says(&format!("fail snapshot {}", libc::EROFS));
    assert!(snapshots.create("four").await.unwrap_err().to_string().contains("making a snapshot failed"));
    assert!(!snapshots.identity().is_empty());
    let closed = |log: Vec<String>| log.iter().filter(|line| *line == "close").count();
    let before = closed(script.log());
    snapshots.close().await.unwrap();
    assert_eq!(closed(script.log()), before + 1, "when it says so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_is_never_answered_is_given_up_and_a_served_disk_goes_on() {
    let script = Script::new("");
    let served = RbdOptions { renew: true, ..with() };
    let device = RbdDevice::open(&script.name("rbd/disk", "&timeout=1s"), &served).await.unwrap();
    put(&device, 1).await.unwrap();
    let old = script.holder().await;
    script.says("hold write");
    let error = put(&device, 2).await.unwrap_err();
    assert!(error.fate() == Fate::Unknown && error.to_string().contains("no answer within 3"), "{error}");
    let start = std::time::Instant::now();
    while get(&device).await != Ok(1) {
        assert!(start.elapsed() < PATIENCE, "{:?}", device.backing());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The late write comes now, and is refused: the new client has told the OSD of the map.
    script.says("");
    put_at_last(&device, 3).await;
    assert_eq!(get(&device).await, Ok(3));
    let calls = script.log();
    assert!(calls.contains(&format!("blocklist {old}")), "{calls:?}");
    device.close().await.unwrap();

    // Another device has an error, and the same client.
    let device = script.open_as("&timeout=1s", false).await.unwrap();
    script.says("hold write");
    assert_eq!(put(&device, 4).await.unwrap_err().fate(), Fate::Unknown);
    script.says("");
    assert_eq!(put(&device, 5).await, Ok(()));
    device.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_with_one_client_are_fenced_together_and_go_on_together() {
    let script = Script::new("");
    // Opened at once: one connects, the other waits for it.
    let (disk, other) = tokio::join!(script.shared("rbd/disk"), script.shared("rbd/other"));
    let (disk, other) = (disk.unwrap(), other.unwrap());
    assert_eq!(script.calls("connect"), 1);
    assert!(!disk.identity().is_same_disk(&other.identity()));
    put(&disk, 1).await.unwrap();
    put(&other, 2).await.unwrap();
    let old = script.holder().await;
    assert_eq!(script.holder_of("rbd/other").await, old);
    // One that is not served has a client of its own, and so has another name.
    let name = script.name("rbd/disk", "&share=group&timeout=1s");
    let reader = RbdDevice::open(&name, &RbdOptions { read_only: true, ..with() }).await.unwrap();
    // Fenced by what the one meets; the other does nothing, and has a new client all the same.
    script.says(&format!("blocklist {old}"));
    assert!(matches!(put(&disk, 3).await, Err(BlockError::Fenced { .. })));
    put_at_last(&disk, 4).await;
    let new = script.holder().await;
    assert_ne!(new, old);
    let start = std::time::Instant::now();
    // Each has found its own old lock.
    while script.calls(&format!("break {old}")) < 2 {
        assert!(start.elapsed() < PATIENCE, "{:?}", other.backing());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    put_at_last(&other, 5).await;
    assert_eq!(script.holder_of("rbd/other").await, new);
    assert_eq!((get(&disk).await, get(&other).await), (Ok(4), Ok(5)));
    assert_eq!(get(&reader).await, Ok(4), "it was not fenced");
    reader.close().await.unwrap();
    // The connection ends with the last of them.
    let live = || script.calls("connect") - script.calls("shutdown");
    while live() > 1 {
        assert!(start.elapsed() < PATIENCE, "the old one does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    disk.close().await.unwrap();
    put(&other, 6).await.unwrap();
    assert_eq!(live(), 1);
    let disk = script.shared("rbd/disk").await.unwrap();
    assert_eq!(script.holder().await, new, "the connection that there is");
    disk.close().await.unwrap();
    other.close().await.unwrap();
    assert_eq!(live(), 0);
    let disk = script.shared("rbd/disk").await.unwrap();
    assert_ne!(script.holder().await, new, "that one has ended");
    disk.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_images_share_does_not_fence_itself() {
    let script = Script::new("");
    let (disk, other) = (script.shared("rbd/disk").await.unwrap(), script.shared("rbd/other").await.unwrap());
    let old = script.holder().await;
    // The same image again, with the client that holds its lock named as the one to be fenced.
    let name = script.name("rbd/disk", &format!("&share=group&timeout=1s&break_lock={old}"));
    let again = RbdDevice::open(&name, &RbdOptions { renew: true, ..with() }).await;
    assert!(matches!(again, Err(RbdOpenError::Held { holder, .. }) if holder == old));
    assert_eq!((put(&disk, 1).await, put(&other, 2).await), (Ok(()), Ok(())));
    assert_eq!(script.calls("connect"), 2, "one, and the one that asked who the holder is");
    // A lock that is left behind: the client that has it cannot break it, so it is given up.
    script.says(&format!("fail unlock {}", libc::ETIMEDOUT));
    disk.close().await.unwrap();
    script.says("");
    let error = script.shared("rbd/disk").await.err().unwrap().to_string();
    assert!(error.contains("its own client has left behind"), "{error}");
    let disk = script.shared("rbd/disk").await.unwrap();
    assert_ne!(script.holder().await, old);
    assert!(script.log().contains(&format!("blocklist {old}")), "{:?}", script.log());
    put(&disk, 3).await.unwrap();
    put_at_last_or_fenced(&other, 4).await;
    assert_eq!(script.holder_of("rbd/other").await, script.holder().await);
    disk.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_that_wait_for_one_connection_fail_with_it() {
    let script = Script::new(&format!("fail connect {}", libc::ETIMEDOUT));
    let tries = tokio::join!(script.shared("rbd/disk"), script.shared("rbd/other"));
    for refused in [tries.0, tries.1] {
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("connecting to the cluster failed"), "{error}");
    }
    script.says("");
    let disk = script.shared("rbd/disk").await.unwrap();
    put(&disk, 1).await.unwrap();
    disk.close().await.unwrap();
}

#[tokio::test]
async fn a_disk_does_without_what_an_older_library_lacks() {
    let script = Script::new("");
    let without = |functions: &[&str]| RbdOptions {
        library: Some(library_without(functions, script.0.path())),
        ..RbdOptions::default()
    };
    let name = script.name("rbd/disk", "");
    let options =
        without(&["rbd_aio_write_zeroes", "rbd_config_image_list", "rbd_config_image_list_cleanup"]);
    let disk = RbdDevice::open(&name, &options).await.unwrap();
    let geometry = disk.geometry();
    assert_eq!((geometry.unmap, geometry.volatile_cache), (Unmap::Ignored, true), "it may have a cache");
    let flushes = script.calls("flush");
    put(&disk, 7).await.unwrap();
    assert!(script.calls("flush") > flushes, "so a durable write is flushed");
    disk.unmap(0, SIZE).await.unwrap();
    assert_eq!(get(&disk).await, Ok(7), "it does nothing");
    disk.write(SIZE - 4096, block(7).freeze(), Durability::Volatile).await.unwrap();
    disk.write_zeroes(4096, SIZE - 4096, Zeroing::MayUnmap).await.unwrap();
    assert_eq!(get(&disk).await, Ok(7));
    let rest = disk.read(4096, Buf::zeroed((SIZE - 4096) as usize)).await.unwrap();
    assert!(rest.iter().all(|byte| *byte == 0));
    for outside in [disk.write_zeroes(SIZE, 4096, Zeroing::MayUnmap), disk.unmap(SIZE, 4096)] {
        assert!(matches!(outside.await, Err(BlockError::OutOfRange { .. })));
    }
    // The word that fencing had before Ceph 16.
    let options = without(&["rados_blocklist_add"]);
    let disk = RbdDevice::open(&name, &options).await.unwrap();
    let Err(RbdOpenError::Held { holder, .. }) = RbdDevice::open(&name, &options).await else {
        panic!("it is locked")
    };
    let name = script.name("rbd/disk", &format!("&break_lock={holder}"));
    let next = RbdDevice::open(&name, &options).await.unwrap();
    assert!(script.log().contains(&format!("blocklist {holder}")));
    // The read tells the OSD of the new map (a library has a cluster of its own, which was not written to).
    assert_eq!(get(&next).await, Ok(0));
    assert!(matches!(put(&disk, 1).await, Err(BlockError::Fenced { .. })));
    next.close().await.unwrap();
}

#[tokio::test]
async fn a_library_that_lacks_more_is_refused_by_name() {
    let script = Script::new("");
    let older = library_without(&["rbd_watchers_list"], script.0.path());
    let options = RbdOptions { library: Some(older), ..RbdOptions::default() };
    let error = RbdDevice::open(&script.name("rbd/disk", ""), &options).await.err().unwrap();
    assert!(error.to_string().contains("it has no rbd_watchers_list"), "{error}");
}

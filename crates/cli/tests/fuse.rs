//! What `attach --fuse` mounts, used as a file, and under a loop device with ext4 on it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/attached.rs"]
mod attached;
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use attached::{Attached, Ext4, Loop, content, run};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use rustix::process::Signal;
use support::{IQN, PATIENCE, Served, finish, lunway};

const SIZE: u64 = 256 << 20;

fn sparse(path: &Path, size: u64) {
    File::create(path).unwrap().set_len(size).unwrap();
}

#[test]
fn ext4_on_a_loop_device_keeps_its_files_gives_space_back_and_is_in_order() {
    let Some(mkfs) = lunway_foreign::program("mkfs.ext4") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    sparse(&disk, SIZE);
    let served = Served::start(&["--lun", &format!("0={}", disk.display())]);
    let Some(attached) = Attached::start(&served.url(0), folder.path(), &[]) else { return };
    let Some(device) = Loop::on(&attached.file()) else { return };
    let direct = run("losetup", ["--noheadings", "--list", "--output", "DIO", &device.0]);
    assert_eq!(direct.trim(), "1", "the loop device does direct I/O");
    run(&mkfs, ["-q", &device.0]);
    let ext4 = Ext4::mount(&device, folder.path());
    let write = |seed: u64| fs::write(ext4.0.join(format!("{seed}")), content(seed, 4 << 20)).unwrap();
    (0..16).for_each(write);
    run("sync", ["--file-system", ext4.0.to_str().unwrap()]);
    let full = disk.metadata().unwrap().blocks() * 512;
    (0..8).for_each(|seed| fs::remove_file(ext4.0.join(format!("{seed}"))).unwrap());
    run("sync", ["--file-system", ext4.0.to_str().unwrap()]);
    let trimmed = run("fstrim", ["--verbose", ext4.0.to_str().unwrap()]);
    let left = disk.metadata().unwrap().blocks() * 512;
    assert!(left + (28 << 20) < full, "{full} bytes, then {left}, after {trimmed}");
    ext4.unmount();
    device.check();
    // Nothing is read from the cache of what was mounted before.
    let ext4 = Ext4::mount(&device, folder.path());
    for seed in 8..16 {
        assert!(fs::read(ext4.0.join(format!("{seed}"))).unwrap() == content(seed, 4 << 20), "file {seed}");
    }
    ext4.unmount();
    device.detach();
    attached.detach();
    assert!(served.terminate().success());
    run("e2fsck", ["-f", "-n", disk.to_str().unwrap()]);
}

#[test]
fn a_disk_that_grows_at_the_target_grows_here_although_nobody_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, socket) = (folder.path().join("disk.img"), folder.path().join("api.sock"));
    sparse(&disk, SIZE);
    let socket = socket.to_str().unwrap();
    let served = Served::start(&["--lun", &format!("0={}", disk.display()), "--socket", socket]);
    let Some(attached) = Attached::start(&served.url(0), folder.path(), &[]) else { return };
    let Some(device) = Loop::on(&attached.file()) else { return };
    let sectors = || {
        run("losetup", ["--set-capacity", &device.0]);
        run("blockdev", ["--getsize64", &device.0]).trim().parse::<u64>().unwrap()
    };
    assert_eq!(sectors(), SIZE);
    run(env!("CARGO_BIN_EXE_lunway"), ["lun", "resize", "--socket", socket, IQN, "0", "512M"]);
    let start = Instant::now();
    // Nothing is read, and nobody looks at the file.
    while sectors() == SIZE && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(sectors(), 2 * SIZE);
    assert_eq!(attached.file().metadata().unwrap().len(), 2 * SIZE);
    device.detach();
    attached.detach();
}

#[test]
fn what_was_synced_before_a_kill_in_mid_write_is_there_when_it_is_attached_again() {
    let Some(mkfs) = lunway_foreign::program("mkfs.ext4") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    sparse(&disk, SIZE);
    let served = Served::start(&["--lun", &format!("0={}", disk.display())]);
    let Some(mut attached) = Attached::start(&served.url(0), folder.path(), &[]) else { return };
    let Some(device) = Loop::on(&attached.file()) else { return };
    run(&mkfs, ["-q", &device.0]);
    let ext4 = Ext4::mount(&device, folder.path());
    let (stop, root) = (AtomicBool::new(false), ext4.0.clone());
    // Each writer replaces a few files again and again, until an error tells it that the disk is gone.
    let write_until_it_fails = |writer: u64| {
        let mut synced = Vec::new();
        for turn in 0.. {
            let seed = writer * 1_000_000 + turn;
            let file = File::create(root.join(format!("{seed}")));
            let write =
                |file: File| file.write_all_at(&content(seed, 300_000), 0).and_then(|()| file.sync_all());
            if file.and_then(write).is_err() || stop.load(Ordering::Relaxed) {
                break;
            }
            synced.push(seed);
            if turn >= 20 {
                let _ = fs::remove_file(root.join(format!("{}", seed - 20)));
            }
        }
        synced
    };
    let synced = thread::scope(|scope| {
        let writers = [1, 2, 3].map(|writer| scope.spawn(move || write_until_it_fails(writer)));
        thread::sleep(Duration::from_millis(1500));
        attached.signal(Signal::KILL);
        attached.end();
        // A writer whose file is only in the cache finds out by its fsync; none goes on for ever.
        thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        writers.map(|writer| writer.join().unwrap())
    });
    assert!(synced.iter().map(Vec::len).sum::<usize>() > 3, "{synced:?}");
    drop(ext4);
    drop(device);
    let dead = fs::metadata(&attached.mount_point).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()), "that is what is left behind");

    // The next one takes the place of the dead mount.
    let again = Attached::start(&served.url(0), folder.path(), &[]).unwrap();
    let device = Loop::on(&again.file()).unwrap();
    let repaired = finish(
        {
            let mut command = Command::new("e2fsck");
            command.args(["-p", &device.0]);
            command
        },
        PATIENCE,
    );
    assert!(repaired.status.code() <= Some(1), "the journal is all it takes: {repaired:?}");
    device.check();
    let ext4 = Ext4::mount(&device, folder.path());
    for synced in &synced {
        // Those before may have been removed, or not.
        for &seed in synced.iter().rev().take(20) {
            let found = fs::read(ext4.0.join(format!("{seed}"))).unwrap();
            assert!(found == content(seed, 300_000), "file {seed} of {}", synced.len());
        }
    }
    ext4.unmount();
    device.detach();
    again.detach();
}

#[test]
fn it_is_a_file_of_the_devices_size_with_holes_that_can_be_written_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    sparse(&disk, 64 << 20);
    let Some(attached) = Attached::start(disk.to_str().unwrap(), folder.path(), &["--sector", "4096"]) else {
        return;
    };
    let path = attached.file();
    assert_eq!((path.metadata().unwrap().len(), path.metadata().unwrap().blksize()), (64 << 20, 4096));
    let file = OpenOptions::new().read(true).write(true).truncate(true).open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 64 << 20, "opening with O_TRUNC leaves the device alone");

    let data = content(1, 5_000_000);
    file.write_all_at(&data, 1_000_001).unwrap();
    file.sync_all().unwrap();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 1_000_001).unwrap();
    assert!(back == data);
    let mut model = vec![0; 64 << 20];
    model[1_000_001..][..data.len()].copy_from_slice(&data);
    assert!(fs::read(&disk).unwrap() == model, "it is where it belongs");

    let hole = seek(&file, SeekFrom::Hole(2_000_000)).unwrap();
    assert!((6_000_001..6_200_000).contains(&hole), "{hole}");
    assert_eq!(seek(&file, SeekFrom::Data(hole)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Data(1_500_000)), Ok(1_500_000));

    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let before = disk.metadata().unwrap().blocks();
    fallocate(&file, punch, 2_000_000, 3_000_000).unwrap();
    model[2_000_000..5_000_000].fill(0);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 5_100_000, 100_000).unwrap();
    model[5_100_000..5_200_000].fill(0);
    assert!(fs::read(&disk).unwrap() == model, "what was punched and zeroed, and no more");
    assert!(before >= disk.metadata().unwrap().blocks() + 5800, "the space is given back");

    assert_eq!(file.write_at(b"x", 64 << 20).unwrap_err().kind(), ErrorKind::StorageFull);
    file.set_len(65 << 20).unwrap();
    assert_eq!((disk.metadata().unwrap().len(), path.metadata().unwrap().len()), (65 << 20, 65 << 20));
    file.write_all_at(b"x", 64 << 20).unwrap();
    let refused = file.set_len(32 << 20).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()), "{refused}");
    assert_eq!((disk.metadata().unwrap().len(), path.metadata().unwrap().len()), (65 << 20, 65 << 20));
    let stranger = File::create(attached.mount_point.join("other")).unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::PermissionDenied);
    drop(file);
    attached.detach();
}

#[test]
fn with_shrink_a_file_is_cut_to_less() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    sparse(&disk, 64 << 20);
    let Some(attached) = Attached::start(disk.to_str().unwrap(), folder.path(), &["--shrink"]) else {
        return;
    };
    let file = OpenOptions::new().write(true).open(attached.file()).unwrap();
    file.set_len(32 << 20).unwrap();
    assert_eq!(disk.metadata().unwrap().len(), 32 << 20);
    drop(file);
    attached.detach();
}

#[test]
fn what_another_writes_to_the_disk_is_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&["--lun", "0=ram:16M"]);
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let Some(one) = Attached::start(&served.url(0), folder.path(), &[]) else { return };
    let two = Attached::start(&served.url(0), &other, &[]).unwrap();
    let open = |attached: &Attached| OpenOptions::new().read(true).write(true).open(attached.file()).unwrap();
    let (left, right) = (open(&one), open(&two));
    for turn in 0..20u8 {
        let (mut found, data) = ([0; 8192], [turn; 8192]);
        left.write_all_at(&data, 4096).unwrap();
        right.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(found, data, "turn {turn}");
    }
    drop((left, right));
    one.detach();
    two.detach();
}

#[test]
fn a_flush_that_fails_is_an_fsync_that_fails_and_o_sync_needs_none() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut attached) = Attached::start("fault:flush=1:ram:16M", folder.path(), &[]) else { return };
    let file = OpenOptions::new().write(true).open(attached.file()).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    drop(file);
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(rustix::fs::OFlags::SYNC.bits() as i32).open(attached.file());
    file.unwrap().write_all_at(&[2; 4096], 0).unwrap();
    // The last flush is not kept a secret.
    attached.signal(Signal::TERM);
    assert_eq!(attached.end().code(), Some(1));
}

#[test]
fn what_may_only_be_read_is_not_opened_for_writing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(attached) = Attached::start("ram:16M", folder.path(), &["--read-only", "--name", "disk"]) else {
        return;
    };
    assert!(attached.announced.contains("\"read_only\":true"), "{:?}", attached.announced);
    let error = OpenOptions::new().write(true).open(attached.file()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(attached.file()).unwrap().len(), 16 << 20);
    attached.detach();
}

/// Waits for that line of the log; before it stands what a machine without the capability says of the process's
/// protection. The log stays open as long as what this gives: the program still writes to it.
fn says_that_it_is_in_use(attached: &mut Attached) -> impl Iterator<Item = String> + use<> {
    let mut log = BufReader::new(attached.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(log.any(|line| line.contains("is in use")), "it ended without saying so");
    log
}

/// Containers copy the mounts there are, and a private one is not taken from them again.
#[test]
fn an_end_waits_for_another_mount_namespace_only_as_long_as_a_program_there_has_the_file_open() {
    if !rustix::process::geteuid().is_root() {
        return lunway_foreign::machine_lacks("root, for mount namespaces");
    }
    let Some(unshare) = lunway_foreign::program("unshare") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    sparse(&disk, 16 << 20);
    for is_open in [false, true] {
        let Some(mut attached) = Attached::start(disk.to_str().unwrap(), folder.path(), &[]) else { return };
        let mut elsewhere = Command::new(&unshare)
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg(if is_open { "exec 3<\"$0\"; echo; read line; true" } else { "echo; read line; true" })
            .arg(attached.file())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(elsewhere.stdout.take().unwrap()).read_line(&mut line).unwrap();
        attached.signal(Signal::TERM);
        let log = is_open.then(|| says_that_it_is_in_use(&mut attached));
        if is_open {
            assert!(attached.child.try_wait().unwrap().is_none());
            drop(elsewhere.stdin.take());
            assert!(elsewhere.wait().unwrap().success());
        }
        assert!(attached.end().success(), "{is_open}");
        drop(log);
        drop(elsewhere.stdin.take());
        assert!(elsewhere.wait().unwrap().success());
    }
}

#[test]
fn an_end_waits_until_nobody_uses_the_file_and_the_second_request_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut attached) = Attached::start("ram:16M", folder.path(), &[]) else { return };
    let file = File::open(attached.file()).unwrap();
    attached.signal(Signal::INT);
    let _log = says_that_it_is_in_use(&mut attached);
    assert!(attached.child.try_wait().unwrap().is_none());
    drop(file);
    assert!(attached.end().success());

    let mut attached = Attached::start("ram:16M", folder.path(), &[]).unwrap();
    let file = File::open(attached.file()).unwrap();
    attached.signal(Signal::INT);
    let _log = says_that_it_is_in_use(&mut attached);
    // What comes within half a second of it is still the first request.
    thread::sleep(Duration::from_millis(600));
    attached.signal(Signal::INT);
    assert_eq!(attached.end().code(), Some(1));
    assert!(fs::read_dir(&attached.mount_point).unwrap().next().is_none(), "nothing is mounted there");
    let error = file.read_at(&mut [0; 512], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));

    // From outside.
    let mut attached = Attached::start("ram:16M", folder.path(), &[]).unwrap();
    rustix::mount::unmount(&attached.mount_point, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(attached.end().success());
}

#[test]
fn thirty_two_requests_are_under_way_at_a_time() {
    let Some(fio) = lunway_foreign::program("fio") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(attached) = Attached::start("delay:20ms:ram:64M", folder.path(), &[]) else { return };
    let filename = format!("--filename={}", attached.file().display());
    let job = ["--name=deep", "--ioengine=libaio", "--direct=1", "--iodepth=32", "--rw=randrw", "--bs=4k"];
    let verify = ["--size=4M", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", &filename];
    let start = Instant::now();
    run(&fio, [&job[..], &verify[..]].concat());
    // 1024 blocks, and half of them read again to verify: half a minute one at a time.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    attached.detach();
}

#[test]
fn a_folder_that_is_not_empty_or_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("something"), IQN).unwrap();
    for (mount_point, why) in
        [(folder.path().to_owned(), "it is not empty"), (folder.path().join("none"), "No such")]
    {
        let output =
            finish(lunway(&["attach", "ram:16M", "--fuse", mount_point.to_str().unwrap()]), PATIENCE);
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(why), "{message}");
    }
}

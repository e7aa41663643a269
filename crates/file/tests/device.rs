//! The file device against the file itself, and other openers of the same file. That it is a plain vector of sectors is
//! shown with all devices (`crates/device/tests/waist`).
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, ExtentKind, Io, Permit, Zeroing,
};
use lunway_file::{Engine, FileDevice, FileOpenError, FileOptions};
use tempfile::{NamedTempFile, TempDir};

fn image(size: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(size).unwrap();
    file
}

fn open(path: &Path) -> FileDevice {
    FileDevice::open(path, &FileOptions::default()).unwrap()
}

/// Opens past the page cache, or says why that part of a test is not run.
fn open_direct(path: &Path, engine: Engine) -> Option<FileDevice> {
    let options = FileOptions { direct: true, engine, sector: Some(4096), ..FileOptions::default() };
    match FileDevice::open(path, &options) {
        Ok(device) => Some(device),
        Err(error @ (FileOpenError::Direct { .. } | FileOpenError::Uring { .. })) => {
            eprintln!("not run with {engine:?}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn wait<T: Unpin>(io: Io<T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { io.await })
}

fn write(device: &FileDevice, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
    wait(device.write(offset, Buf::copy_of(bytes).freeze(), Durability::Volatile))
}

fn read(device: &FileDevice, offset: u64, len: usize) -> Result<Buf, BlockError> {
    wait(device.read(offset, Buf::copy_of(&vec![0xaa; len])))
}

#[test]
fn cached_data_is_answered_inline() {
    let file = image(1 << 20);
    file.as_file().write_all_at(&[7; 4096], 8192).unwrap();
    let device = open(file.path());
    // The file system may not know the flag; what it knows it must use.
    read(&device, 8192, 4096).unwrap();
    match device.read(8192, Buf::zeroed(4096)) {
        Io::Ready(answer) => assert_eq!(&answer.unwrap()[..], &[7; 4096]),
        Io::Pending(_) => eprintln!("not inline: this file system has no RWF_NOWAIT for reads"),
    }
    let memory = NamedTempFile::new_in("/dev/shm").unwrap();
    memory.as_file().set_len(8192).unwrap();
    let device = open(memory.path());
    let data = Buf::copy_of(&[1; 4096]).freeze();
    assert!(matches!(device.write(0, data, Durability::Stable), Io::Ready(Ok(()))));
    assert!(matches!(device.read(0, Buf::zeroed(4096)), Io::Ready(Ok(_))));
    assert!(matches!(device.flush(), Io::Ready(Ok(()))));
}

#[test]
fn a_transfer_longer_than_one_mebibyte_is_not_copied_on_the_callers_thread() {
    let memory = NamedTempFile::new_in("/dev/shm").unwrap();
    memory.as_file().set_len(8 << 20).unwrap();
    let device = open(memory.path());
    let data = |len: usize| Buf::copy_of(&vec![3; len]).freeze();
    assert!(matches!(device.write(0, data(1 << 20), Durability::Volatile), Io::Ready(Ok(()))));
    let write = device.write(0, data(2 << 20), Durability::Volatile);
    assert!(matches!(write, Io::Pending(_)));
    wait(write).unwrap();
    assert!(matches!(device.read(0, Buf::zeroed(1 << 20)), Io::Ready(Ok(_))));
    let read = device.read(0, Buf::zeroed(8 << 20));
    assert!(matches!(read, Io::Pending(_)));
    assert_eq!(wait(read).unwrap()[..2 << 20], vec![3; 2 << 20]);
}

#[test]
fn one_writer_or_many_readers() {
    let file = image(8192);
    let readonly = FileOptions { read_only: true, ..FileOptions::default() };
    let writer = open(file.path());
    for options in [FileOptions::default(), readonly] {
        let error = FileDevice::open(file.path(), &options).err().unwrap();
        assert!(matches!(&error, FileOpenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("is in use"), "{error}");
    }
    drop(writer);
    let readers = [(); 2].map(|()| FileDevice::open(file.path(), &readonly).unwrap());
    assert!(matches!(
        FileDevice::open(file.path(), &FileOptions::default()),
        Err(FileOpenError::InUse { .. })
    ));
    assert!(readers[0].geometry().read_only);
    assert_eq!(write(&readers[0], 0, &[1; 512]), Err(BlockError::ReadOnly));
    assert_eq!(wait(readers[0].unmap(0, 512)), Err(BlockError::ReadOnly));
    assert_eq!(wait(readers[0].write_zeroes(0, 512, Zeroing::MayUnmap)), Err(BlockError::ReadOnly));
    assert_eq!(wait(readers[0].flush()), Ok(()));
}

#[test]
fn what_is_no_disk_is_refused_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let small = image(100);
    let short = image(512);
    let options = FileOptions::default;
    let tail = image(5000);
    let cases: [(&Path, FileOptions, &str); 7] = [
        (dir.path(), options(), "neither a regular file nor a block device"),
        (Path::new("/dev/null"), options(), "neither a regular file nor a block device"),
        (&dir.path().join("missing"), options(), "No such file"),
        (small.path(), options(), "has 100 bytes, which is not one sector of 512 bytes"),
        (tail.path(), options(), "the last 392 of them are no whole sector of 512"),
        (short.path(), FileOptions { sector: Some(4096), ..options() }, "not one sector of 4096 bytes"),
        (
            short.path(),
            FileOptions { sector: Some(520), ..options() },
            "a sector of 520 bytes is not possible",
        ),
    ];
    for (path, options, part) in cases {
        let error = FileDevice::open(path, &options).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
    for options in
        [FileOptions { read_only: true, ..options() }, FileOptions { without_tail: true, ..options() }]
    {
        let device = FileDevice::open(tail.path(), &options).unwrap();
        assert_eq!(device.geometry().size, 4608, "{options:?}");
    }
}

#[test]
fn geometry_follows_the_file_and_the_options() {
    let file = image(10_000);
    // Its end is no whole sector: the file is opened for writing only where that was said.
    let refused = FileDevice::open(file.path(), &FileOptions::default());
    assert!(matches!(refused, Err(FileOpenError::Tail { size: 10_000, sector: 512, .. })));
    let options = FileOptions { without_tail: true, ..FileOptions::default() };
    let geometry = FileDevice::open(file.path(), &options).unwrap().geometry();
    assert_eq!((geometry.size, geometry.logical_sector, geometry.read_only), (9728, 512, false));
    let options = FileOptions { sector: Some(4096), read_only: true, ..FileOptions::default() };
    let geometry = FileDevice::open(file.path(), &options).unwrap().geometry();
    assert_eq!((geometry.size, geometry.logical_sector, geometry.physical_sector), (8192, 4096, 4096));
    assert_eq!(fs::metadata(file.path()).unwrap().len(), 10_000, "opening changes nothing");
}

#[test]
fn a_file_that_was_cut_gives_medium_errors_and_not_zeroes() {
    for direct in [false, true] {
        let file = image(1 << 20);
        file.as_file().write_all_at(&vec![7; 1 << 20], 0).unwrap();
        let device = match direct {
            false => Some(open(file.path())),
            true => open_direct(file.path(), Engine::Auto),
        };
        let Some(device) = device else { continue };
        file.as_file().set_len(8192).unwrap();
        let error = read(&device, 4096, 8192).unwrap_err();
        assert_eq!(error, BlockError::Medium { offset: 8192 }, "direct: {direct}");
    }
}

#[test]
fn unmapping_makes_holes_and_extents_show_them() {
    let file = image(1 << 20);
    let device = open(file.path());
    write(&device, 0, &vec![1; 1 << 20]).unwrap();
    wait(device.flush()).unwrap();
    let before = fs::metadata(file.path()).unwrap().blocks();
    wait(device.unmap(256 << 10, 512 << 10)).unwrap();
    let buf = read(&device, 0, 1 << 20).unwrap();
    if !device.geometry().unmap.is_thin() {
        return eprintln!("not run: this file system does not punch holes");
    }
    assert!(fs::metadata(file.path()).unwrap().blocks() < before);
    assert!(buf[256 << 10..768 << 10].iter().all(|&byte| byte == 0));
    let piece = |offset, end: u64, kind| Extent { offset, len: end - offset, kind };
    assert_eq!(
        wait(device.extents(512, (1 << 20) - 512, usize::MAX)).unwrap(),
        [
            piece(512, 256 << 10, ExtentKind::Data),
            piece(256 << 10, 768 << 10, ExtentKind::Unallocated),
            piece(768 << 10, 1 << 20, ExtentKind::Data),
        ]
    );
    // Zeroing that keeps the space gives none back.
    let blocks = fs::metadata(file.path()).unwrap().blocks();
    wait(device.write_zeroes(0, 128 << 10, Zeroing::KeepAllocated)).unwrap();
    assert!(fs::metadata(file.path()).unwrap().blocks() >= blocks);
    assert_eq!(&read(&device, 0, 512).unwrap()[..], &[0; 512]);
}

#[test]
fn data_from_the_middle_of_a_packet_is_written_past_the_page_cache() {
    for engine in [Engine::Threads, Engine::Uring] {
        let file = image(1 << 20);
        let Some(device) = open_direct(file.path(), engine) else { continue };
        let bytes: Vec<u8> = (0..10_000_u32).map(|index| (index % 251) as u8).collect();
        let packet = Buf::copy_of(&bytes).freeze();
        wait(device.write(4096, packet.slice(48..48 + 8192), Durability::Stable)).unwrap();
        assert_eq!(&read(&device, 4096, 8192).unwrap()[..], &bytes[48..48 + 8192]);
    }
}

#[test]
fn abandoned_operations_keep_their_memory_until_they_are_done() {
    for engine in [Engine::Threads, Engine::Uring] {
        let file = image(8 << 20);
        file.as_file().write_all_at(&vec![7; 8 << 20], 0).unwrap();
        let Some(device) = open_direct(file.path(), engine) else { continue };
        for round in 0..20_u8 {
            for index in 0..32 {
                drop(device.read(index * 65_536, Buf::for_overwrite(65_536)));
            }
            // Had the pool got that memory back, these would get it, and the reads would write into them.
            let mut bufs: Vec<_> = (0..32).map(|_| Buf::for_overwrite(65_536)).collect();
            bufs.iter_mut().for_each(|buf| buf.fill(round));
            read(&device, 0, 65_536).unwrap();
            assert!(bufs.iter().all(|buf| buf.iter().all(|&byte| byte == round)), "{engine:?}");
        }
        // An abandoned write may happen or not, as a whole here since nothing fails; and the device may go
        // first.
        drop(device.write(0, Buf::copy_of(&[9; 4096]).freeze(), Durability::Volatile));
        drop(device);
        let device = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            FileDevice::open(file.path(), &FileOptions::default()).ok()
        });
        let buf = read(&device.expect("the lock goes with the last operation"), 0, 4096).unwrap();
        assert_eq!(&buf[..], &[9; 4096]);
    }
}

#[test]
fn more_operations_than_the_ring_holds_all_come_back() {
    for engine in [Engine::Threads, Engine::Uring] {
        let file = image(4 << 20);
        let Some(device) = open_direct(file.path(), engine) else { continue };
        let writes: Vec<_> = (0..1000_u64)
            .map(|index| {
                let data = Buf::copy_of(&[index as u8; 4096]).freeze();
                device.write(index * 4096, data, Durability::Volatile)
            })
            .collect();
        writes.into_iter().for_each(|io| wait(io).unwrap());
        let reads: Vec<_> = (0..1000_u64).map(|index| device.read(index * 4096, Buf::zeroed(4096))).collect();
        for (index, io) in reads.into_iter().enumerate() {
            assert!(wait(io).unwrap().iter().all(|&byte| byte == index as u8), "{index}");
        }
    }
}

#[test]
fn operations_outlive_the_thread_that_issued_them() {
    for engine in [Engine::Threads, Engine::Uring] {
        let file = image(16 << 20);
        let Some(device) = open_direct(file.path(), engine) else { continue };
        for _ in 0..10 {
            let ios = std::thread::scope(|scope| {
                let issue = || {
                    let write = |index: u64| {
                        let data = Buf::copy_of(&vec![3; 1 << 20]).freeze();
                        device.write(index << 20, data, Durability::Volatile)
                    };
                    (0..16).map(write).collect::<Vec<_>>()
                };
                scope.spawn(issue).join().unwrap()
            });
            ios.into_iter().for_each(|io| wait(io).unwrap());
        }
    }
}

#[test]
fn ranges_are_checked_and_empty_ones_succeed() {
    let file = image(8192);
    let device = open(file.path());
    assert!(matches!(read(&device, 8192, 512), Err(BlockError::OutOfRange { .. })));
    assert!(matches!(write(&device, 256, &[1; 512]), Err(BlockError::Misaligned { .. })));
    assert!(matches!(wait(device.unmap(0, 16_384)), Err(BlockError::OutOfRange { .. })));
    assert!(matches!(wait(device.extents(1, 512, usize::MAX)), Err(BlockError::Misaligned { .. })));
    assert_eq!(read(&device, 8192, 0).unwrap().len(), 0);
    assert_eq!(write(&device, 8192, &[]), Ok(()));
    assert_eq!(wait(device.unmap(0, 0)), Ok(()));
    assert_eq!(wait(device.write_zeroes(0, 0, Zeroing::KeepAllocated)), Ok(()));
    assert_eq!(wait(device.extents(0, 0, usize::MAX)), Ok(vec![]));
}

fn resize(device: &FileDevice, size: u64) -> Result<(), BlockError> {
    wait(device.resize(size, Permit::default()))
}

#[test]
fn a_resize_cuts_and_extends_the_file_and_is_announced() {
    let file = image(1 << 20);
    let device = open(file.path());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    device.on_resize(Box::new(move |geometry| ears.lock().unwrap().push(geometry.size)));
    write(&device, 0, &vec![7; 1 << 20]).unwrap();
    resize(&device, 512 << 10).unwrap();
    assert_eq!((device.geometry().size, fs::metadata(file.path()).unwrap().len()), (512 << 10, 512 << 10));
    assert!(matches!(read(&device, 512 << 10, 512), Err(BlockError::OutOfRange { .. })));
    resize(&device, 2 << 20).unwrap();
    resize(&device, 2 << 20).unwrap();
    let buf = read(&device, 0, 2 << 20).unwrap();
    assert!(buf[..512 << 10].iter().all(|&byte| byte == 7));
    assert!(buf[512 << 10..].iter().all(|&byte| byte == 0), "what was cut off does not come back");
    assert_eq!(*heard.lock().unwrap(), [512 << 10, 2 << 20]);
    for size in [0, 1000, u64::MAX / 512 * 512] {
        assert!(matches!(resize(&device, size), Err(BlockError::Size { .. })), "{size}");
    }
    assert_eq!(device.geometry().size, 2 << 20);
}

#[test]
fn a_size_that_somebody_else_gave_the_file_is_taken_by_a_resize_to_it() {
    let file = image(1 << 20);
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    let device = FileDevice::open(file.path(), &options).unwrap();
    file.as_file().set_len((2 << 20) + 100).unwrap();
    assert_eq!(device.geometry().size, 1 << 20, "not before it is told");
    assert_eq!(resize(&device, 1 << 20), Err(BlockError::ReadOnly));
    resize(&device, 2 << 20).unwrap();
    assert_eq!(read(&device, (2 << 20) - 512, 512).unwrap().len(), 512);
    assert_eq!(fs::metadata(file.path()).unwrap().len(), (2 << 20) + 100, "the file is as it was");
}

#[test]
fn writes_and_reads_that_race_with_resizes_end_and_leave_nothing_behind_the_end() {
    let memory = NamedTempFile::new_in("/dev/shm").unwrap();
    memory.as_file().set_len(1 << 20).unwrap();
    let disk = image(1 << 20);
    for file in [&disk, &memory] {
        let device = open(file.path());
        std::thread::scope(|scope| {
            for index in 0..2_u64 {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..200 {
                        let offset = (round * 7 + index) % 16 * 65_536;
                        let written = write(device, offset, &[9; 65_536]);
                        assert!(
                            matches!(written, Ok(()) | Err(BlockError::OutOfRange { .. })),
                            "{written:?}"
                        );
                        let buf = read(device, offset, 65_536);
                        assert!(matches!(buf, Ok(_) | Err(BlockError::OutOfRange { .. })), "{buf:?}");
                    }
                });
            }
            for _ in 0..20 {
                resize(&device, 4096).unwrap();
                resize(&device, 1 << 20).unwrap();
            }
        });
        resize(&device, 4096).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().len(), 4096);
        resize(&device, 1 << 20).unwrap();
        let buf = read(&device, 4096, (1 << 20) - 4096).unwrap();
        assert!(buf.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_file_knows_what_it_takes_and_what_is_left() {
    let file = NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    file.as_file().write_all_at(&[1; 65_536], 0).unwrap();
    let space = open(file.path()).space().unwrap();
    assert_eq!(space.allocated, 65_536);
    assert!(space.used >= space.allocated && space.available > 0, "{space:?}");
}

#[test]
fn a_file_says_whether_the_page_cache_is_in_between() {
    let file = image(1 << 20);
    // Temporary files may lie in memory.
    let expected = |caching| [caching, Caching::Memory];
    assert!(expected(Caching::PageCache).contains(&open(file.path()).caching()));
    let Some(device) = open_direct(file.path(), Engine::Auto) else { return };
    assert!(expected(Caching::PastPageCache).contains(&device.caching()));
}

/// The same through each way that an operation can go.
fn each_way(test: impl Fn(&NamedTempFile, &FileDevice, &str)) {
    let full = |file: NamedTempFile| {
        file.as_file().write_all_at(&vec![7; 1 << 20], 0).unwrap();
        file
    };
    let file = full(NamedTempFile::new().unwrap());
    test(&file, &open(file.path()), "buffered");
    let file = full(NamedTempFile::new_in("/dev/shm").unwrap());
    test(&file, &open(file.path()), "in memory");
    for engine in [Engine::Threads, Engine::Uring] {
        let file = full(NamedTempFile::new().unwrap());
        open_direct(file.path(), engine)
            .iter()
            .for_each(|device| test(&file, device, &format!("past the page cache, {engine:?}")));
    }
}

#[test]
fn a_file_that_was_cut_is_a_failed_medium_until_it_has_its_length_again() {
    each_way(|file, device, way| {
        let lost = Err(BlockError::Medium { offset: 16_384 });
        file.as_file().set_len(16_384).unwrap();
        for durability in [Durability::Volatile, Durability::Stable] {
            let data = Buf::copy_of(&[1; 8192]).freeze();
            assert_eq!(wait(device.write(12_288, data, durability)), lost, "{way}");
        }
        let far = Err(BlockError::Medium { offset: 524_288 });
        assert_eq!(write(device, 524_288, &[1; 4096]), far, "{way}");
        assert_eq!(wait(device.unmap(0, 1 << 20)), lost, "{way}");
        assert_eq!(wait(device.write_zeroes(0, 1 << 20, Zeroing::KeepAllocated)), lost, "{way}");
        assert_eq!(
            wait(device.extents(0, 1 << 20, usize::MAX)),
            Err(BlockError::Medium { offset: 16_384 }),
            "{way}"
        );
        assert_eq!(read(device, 12_288, 8192).map(drop), lost, "{way}");
        let length = file.as_file().metadata().unwrap().len();
        assert_eq!(length, 16_384, "{way}: longer again, with a hole before the end that reads as zeroes");
        // What is left works.
        assert_eq!(&read(device, 12_288, 4096).unwrap()[..], &[7; 4096], "{way}");
        write(device, 4096, &[2; 4096]).unwrap();
        assert_eq!(&read(device, 4096, 4096).unwrap()[..], &[2; 4096], "{way}");

        file.as_file().set_len(1 << 20).unwrap();
        write(device, 524_288, &[3; 4096]).unwrap();
        assert_eq!(&read(device, 524_288, 4096).unwrap()[..], &[3; 4096], "{way}");
        wait(device.extents(0, 1 << 20, usize::MAX)).unwrap();
    });
}

/// Detached when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn attach(file: &Path) -> Option<Self> {
        let losetup = lunway_foreign::program("losetup")?;
        let attached = Command::new(losetup).args(["--find", "--show"]).arg(file).output().unwrap();
        if !attached.status.success() {
            lunway_foreign::machine_lacks("loop devices, or root");
            return None;
        }
        Some(Self(String::from_utf8(attached.stdout).unwrap().trim().to_owned()))
    }

    /// Takes over the length of its file.
    fn set_length(&self, file: &NamedTempFile, length: u64) {
        file.as_file().set_len(length).unwrap();
        assert!(Command::new("losetup").args(["--set-capacity", &self.0]).status().unwrap().success());
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Lost were writes behind the new end that nobody had flushed, and the next flush succeeded.
#[test]
fn a_block_device_that_became_smaller_is_a_failed_medium_until_it_has_its_size_again() {
    for direct in [false, true] {
        let file = image(1 << 20);
        let Some(disk) = LoopDevice::attach(file.path()) else { return };
        let options = FileOptions { direct, ..FileOptions::default() };
        let device = FileDevice::open(Path::new(&disk.0), &options).unwrap();
        write(&device, 524_288, &[1; 4096]).unwrap();
        assert_eq!((wait(device.flush()), device.backing()), (Ok(()), None));
        for _ in 0..2 {
            disk.set_length(&file, 16_384);
            let lost = BlockError::Medium { offset: 16_384 };
            assert_eq!(wait(device.flush()), Err(lost.clone()), "direct: {direct}");
            assert_eq!(wait(device.flush()), Ok(()), "told once");
            assert!(
                device.backing().unwrap().contains("has 16 KiB now, and 1032192 bytes of its data are lost")
            );
            assert_eq!(read(&device, 12_288, 8192).map(drop), Err(lost));
            assert_eq!(write(&device, 524_288, &[1; 4096]), Err(BlockError::Medium { offset: 524_288 }));
            disk.set_length(&file, 1 << 20);
            wait(device.flush()).unwrap();
            assert_eq!(device.backing(), None);
        }
    }
}

#[test]
fn a_file_that_was_cut_is_mended_by_a_resize_to_what_it_has() {
    each_way(|file, device, way| {
        file.as_file().set_len(16_384).unwrap();
        assert_eq!(write(device, 16_384, &[1; 4096]), Err(BlockError::Medium { offset: 16_384 }), "{way}");
        wait(device.resize(16_384, Permit::default())).unwrap();
        assert!(matches!(write(device, 16_384, &[1; 4096]), Err(BlockError::OutOfRange { .. })), "{way}");
        write(device, 12_288, &[1; 4096]).unwrap();
        // To what it had, by somebody's order: what is added is zeroes.
        wait(device.resize(1 << 20, Permit::default())).unwrap();
        assert_eq!(&read(device, 16_384, 4096).unwrap()[..], &[0; 4096], "{way}");
    });
}

/// A growth told the user that all was well, and what the cut had taken read as zeroes from then on.
#[test]
fn a_file_that_was_cut_is_not_resized_beyond_what_it_has() {
    each_way(|file, device, way| {
        file.as_file().set_len(16_384).unwrap();
        for size in [16_384 + 4096, 1 << 20, 2 << 20] {
            let Err(BlockError::Size { why }) = resize(device, size) else {
                panic!("{way}: {size} bytes");
            };
            let lost = format!("{} bytes of its data are lost", (1 << 20) - 16_384);
            assert!(
                why.contains(&lost) && why.contains("shrinking the device to 16384 bytes"),
                "{way}: {why}"
            );
            assert_eq!(device.geometry().size, 1 << 20, "{way}");
            assert_eq!(file.as_file().metadata().unwrap().len(), 16_384, "{way}");
        }
        assert_eq!(read(device, 16_384, 4096).map(drop), Err(BlockError::Medium { offset: 16_384 }), "{way}");
        // Nothing is left to shrink to.
        file.as_file().set_len(100).unwrap();
        let why = resize(device, 2 << 20).unwrap_err().to_string();
        assert!(why.contains("truncate -s 1048576"), "{way}: {why}");

        file.as_file().set_len(1 << 20).unwrap();
        resize(device, 2 << 20).unwrap();
        assert_eq!(read(device, (1 << 20) - 4096, 8192).unwrap().len(), 8192, "{way}");
    });
}

#[test]
fn a_flush_says_once_that_a_cut_has_taken_what_was_written() {
    let file = image(1 << 20);
    let device = open(file.path());
    write(&device, 524_288, &[9; 4096]).unwrap();
    file.as_file().set_len(16_384).unwrap();
    assert_eq!(wait(device.flush()), Err(BlockError::Medium { offset: 16_384 }));
    assert_eq!(wait(device.flush()), Ok(()));
    file.as_file().set_len(1 << 20).unwrap();
    assert_eq!(wait(device.flush()), Ok(()));
    file.as_file().set_len(16_384).unwrap();
    assert_eq!(wait(device.flush()), Err(BlockError::Medium { offset: 16_384 }), "a new loss");
}

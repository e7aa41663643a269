//! Devices whose file system does not answer: what their callers notice, and their neighbours.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

#[path = "support/stopped.rs"]
mod stopped;

use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Fate, Io, Permit, Zeroing};
use lunway_file::{Engine, FileDevice, FileOpenError, FileOptions};
use stopped::Stoppable;

/// No call may take longer. A machine that is busy with other tests may not run a thread for a while.
const AT_ONCE: Duration = Duration::from_secs(2);
/// What some hundred operations of a disk that answers, and a flush, may take on such a machine. Those of one that
/// hangs take for ever.
const WORK_TIME: Duration = Duration::from_secs(20);

/// Runs `call` on a thread, and fails if it does not come back in time.
fn within<T: Send + 'static>(time: Duration, what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = mpsc::channel();
    thread::spawn(move || sender.send(call()));
    result.recv_timeout(time).unwrap_or_else(|_| panic!("{what} waits for the file system"))
}

fn at_once<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    within(AT_ONCE, what, call)
}

fn wait<T: Unpin>(io: Io<T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { io.await })
}

fn data(byte: u8) -> lunway_block::SharedBuf {
    Buf::copy_of(&[byte; 4096]).freeze()
}

fn local() -> (tempfile::NamedTempFile, FileDevice) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let device = FileDevice::open(file.path(), &FileOptions::default()).unwrap();
    (file, device)
}

#[test]
fn no_call_waits_for_a_file_system_that_does_not_answer_and_no_other_device_does() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let device = Arc::new(FileDevice::open(mount.file(), &FileOptions::default()).unwrap());
    wait(device.write(0, data(7), Durability::Volatile)).unwrap();
    let (_file, neighbour) = local();
    let space = device.space();
    mount.stop();
    // What is known is old, and asking makes somebody else ask.
    thread::sleep(Duration::from_millis(1100));
    let call = |what: &str, call: fn(&FileDevice)| {
        let device = Arc::clone(&device);
        at_once(what, move || call(&device));
    };
    call("geometry", |device| assert!(device.geometry().size > 0));
    for _ in 0..3 {
        assert_eq!(
            at_once("space", {
                let device = Arc::clone(&device);
                move || device.space()
            }),
            space
        );
    }
    call("paths", |device| drop(device.paths()));
    call("caching", |device| assert!(!device.caching().name().is_empty()));
    call("on_resize", |device| device.on_resize(Box::new(|_| ())));
    // More of each than there are threads, each of which may hang.
    let mut pending = Vec::new();
    for index in 0..50_u64 {
        let again = Arc::clone(&device);
        pending.push(at_once("an operation", move || {
            let at = index * 4096;
            let ios = [
                again.write(at, data(1), Durability::Volatile),
                again.write(at, data(1), Durability::Stable),
                again.unmap(at, 4096),
                again.write_zeroes(at, 4096, Zeroing::MayUnmap),
                again.flush(),
                again.resize(32 << 20, Permit::default()),
            ];
            let (read, map) = (again.read(at, Buf::zeroed(4096)), again.extents(at, 4096, usize::MAX));
            (ios, read, map)
        }));
    }
    call("on_resize while a resize hangs", |device| device.on_resize(Box::new(|_| ())));
    let is_pending = |io: &mut Io<Result<(), BlockError>>| match io {
        Io::Pending(future) => future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
        Io::Ready(answer) => answer == &Ok(()),
    };
    thread::sleep(Duration::from_millis(200));
    let (ios, ..) = &mut pending[0];
    assert!(ios.iter_mut().all(is_pending), "the file system is stopped, is it not?");

    // A neighbour of the same process has all that it needs.
    within(WORK_TIME, "another device", move || {
        for index in 0..200 {
            let at = index % 16 * 4096;
            wait(neighbour.write(at, data(index as u8), Durability::Volatile)).unwrap();
            assert_eq!(wait(neighbour.read(at, Buf::zeroed(4096))).unwrap()[0], index as u8);
        }
        wait(neighbour.flush()).unwrap();
        wait(neighbour.unmap(0, 4096)).unwrap();
    });

    let last = Arc::clone(&device);
    drop(device);
    at_once("closing", move || drop(last));
    // When it answers everything is done, in whatever order.
    mount.go_on();
    for (ios, read, map) in pending {
        ios.into_iter().for_each(|io| wait(io).unwrap());
        wait(read).unwrap();
        wait(map).unwrap();
    }
}

#[test]
fn flushes_and_writes_are_made_while_more_reads_hang_than_there_are_threads() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let device = Arc::new(FileDevice::open(mount.file(), &FileOptions::default()).unwrap());
    mount.hold_reads(true);
    let mut reads: Vec<_> = (0..50).map(|index| device.read(index * 4096, Buf::zeroed(4096))).collect();
    // All threads that may read do.
    thread::sleep(Duration::from_millis(500));
    let (sender, done) = mpsc::channel();
    let again = Arc::clone(&device);
    thread::spawn(move || {
        wait(again.write(1 << 20, data(7), Durability::Volatile)).unwrap();
        wait(again.flush()).unwrap();
        wait(again.write(2 << 20, data(7), Durability::Stable)).unwrap();
        sender.send(())
    });
    let in_time = done.recv_timeout(WORK_TIME);
    let is_pending = |io: &mut Io<Result<Buf, BlockError>>| match io {
        Io::Pending(future) => future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
        Io::Ready(_) => false,
    };
    let hang = reads.iter_mut().all(is_pending);
    mount.hold_reads(false);
    reads.into_iter().for_each(|io| drop(wait(io).unwrap()));
    assert!(hang, "reads are held, are they not?");
    in_time.expect("a flush waits behind reads");
}

/// Lost was: the end of a disk, cut off when its file system answered again, long after the caller had been told that
/// the resize had failed.
#[test]
fn a_resize_that_is_given_up_before_it_begins_is_never_made() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let device = FileDevice::open(mount.file(), &FileOptions::default()).unwrap();
    let size = device.geometry().size;
    wait(device.write(size - 4096, data(7), Durability::Stable)).unwrap();
    mount.stop();
    let permit = Permit::default();
    let resized = device.resize(size / 2, permit.clone());
    thread::sleep(Duration::from_millis(300));
    assert!(permit.withdraw(), "a file system that is stopped tells no length");
    mount.go_on();
    assert_eq!(wait(resized).unwrap_err().fate(), Fate::NotDone);
    assert_eq!(device.geometry().size, size);
    let last = wait(device.read(size - 4096, Buf::zeroed(4096))).unwrap();
    assert!(last.iter().all(|byte| *byte == 7));
}

#[test]
fn a_device_of_which_nothing_is_under_way_is_closed_without_waiting() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let device = FileDevice::open(mount.file(), &FileOptions::default()).unwrap();
    mount.stop();
    let closed = device.closed().unwrap();
    at_once("closing", move || drop(device));
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(closed.within(Duration::from_millis(300)));
    assert!(begun.elapsed() < AT_ONCE, "nobody waits for ever for the end either");
}

#[test]
fn opening_what_does_not_answer_ends_with_a_sentence_and_holds_up_no_runtime() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    mount.stop();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let opening = FileDevice::open_on_thread(mount.file(), FileOptions::default());
        let opening = tokio::spawn(opening);
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(begun.elapsed() < AT_ONCE, "the runtime stood still");
        let error = opening.await.unwrap().err().expect("a stopped file system opens nothing");
        assert!(matches!(error, FileOpenError::NoAnswer { .. }), "{error}");
        assert!(error.to_string().contains("has not answered for 15 s"), "{error}");
    });
}

/// With the ring by force, on a file system for which it is not chosen: each operation takes a thread of the kernel, as
/// FUSE waits where it is told not to.
#[test]
fn a_device_that_hangs_in_the_ring_takes_no_place_of_another() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let options = |engine| FileOptions { engine, direct: true, sector: Some(4096), ..FileOptions::default() };
    let hung = match FileDevice::open(mount.file(), &options(Engine::Uring)) {
        Ok(hung) => hung,
        Err(error) => return lunway_foreign::machine_lacks(&format!("io_uring: {error}")),
    };
    let (file, neighbour) = local();
    drop(neighbour);
    let neighbour = match open_soon(file.path(), &options(Engine::Uring)) {
        Ok(neighbour) => neighbour,
        Err(error) => return lunway_foreign::machine_lacks(&format!("O_DIRECT here: {error}")),
    };
    mount.stop();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let hanging: Vec<_> = (0..500).map(|index| hung.read(index * 4096, Buf::zeroed(4096))).collect();
        let work = async {
            for index in 0..200 {
                neighbour.write(index % 16 * 4096, data(index as u8), Durability::Volatile).await.unwrap();
                neighbour.read(index % 16 * 4096, Buf::zeroed(4096)).await.unwrap();
            }
        };
        tokio::time::timeout(WORK_TIME, work).await.expect("the neighbour waits");
        mount.go_on();
        for io in hanging {
            io.await.unwrap();
        }
    });
}

/// A device that was dropped closes its file on a thread.
fn open_soon(path: &std::path::Path, options: &FileOptions) -> Result<FileDevice, FileOpenError> {
    for _ in 0..500 {
        match FileDevice::open(path, options) {
            Err(FileOpenError::InUse { .. }) => thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    FileDevice::open(path, options)
}

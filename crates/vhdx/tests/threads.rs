//! One disk used from many threads.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::support::*;
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::{
    DiscardMode, Disk, DiskError, DiskKind, SegmentSource, Storage, VhdxOpenOptions, create_unflushed,
};

/// A storage whose flush takes its time, and is counted, as are changes of its length. It gets no longer than `room`.
struct Slow {
    inner: MemoryStorage,
    room: u64,
    flushes: AtomicUsize,
    lengths: AtomicUsize,
    pause: Duration,
}

impl Slow {
    fn new(inner: MemoryStorage, pause: Duration) -> Arc<Self> {
        let (flushes, lengths) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { inner, room: u64::MAX, flushes, lengths, pause })
    }
}

impl Storage for Slow {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.pause);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.lengths.fetch_add(1, Ordering::Relaxed);
        if len > self.room { Err(io::ErrorKind::StorageFull.into()) } else { self.inner.set_len(len) }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.punch(offset, len)
    }

    fn is_hole(&self, _: u64, _: u64) -> io::Result<bool> {
        // As file systems that were wrong: what relies on it looks at the bytes.
        Ok(true)
    }
}

#[test]
fn flushes_that_wait_for_each_other_share_a_commit() {
    let disk = memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1);
    let slow = Slow::new(disk, Duration::from_millis(30));
    let chain = alone(open(slow.clone(), true, 2));
    chain.write_at(0, &[1; 512]).expect("a write");
    chain.flush().expect("a flush");
    let before = slow.flushes.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for n in 0..32 {
            let chain = &chain;
            scope.spawn(move || {
                chain.write_at(n * MIB, &[2; 512]).expect("a write");
                chain.flush().expect("a flush");
            });
        }
    });
    let flushes = slow.flushes.load(Ordering::Relaxed) - before;
    assert!(flushes < 48, "32 flushes that allocate cost {flushes} of the storage, 64 one by one");
}

#[test]
fn threads_that_find_a_file_full_lengthen_it_once() {
    let disk = memory(&options(DiskKind::Dynamic, 1 << 30, 1 << 20, 512), 1);
    let slow = Slow::new(disk, Duration::ZERO);
    let chain = alone(open(slow.clone(), true, 2));
    let barrier = Barrier::new(16);
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (chain, barrier) = (&chain, &barrier);
            scope.spawn(move || {
                barrier.wait();
                chain.write_at(n * MIB, &[2; 512]).expect("a write");
            });
        }
    });
    assert_eq!(slow.lengths.load(Ordering::Relaxed), 1);
}

/// A storage of which a flush and a change of length wait for each other, once.
struct Meeting {
    inner: MemoryStorage,
    place: Barrier,
    flush_comes: AtomicBool,
    length_comes: AtomicBool,
}

impl Storage for Meeting {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        if self.flush_comes.swap(false, Ordering::SeqCst) {
            self.place.wait();
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.length_comes.swap(false, Ordering::SeqCst) {
            self.place.wait();
        }
        self.inner.set_len(len)
    }
}

#[test]
fn a_write_that_needs_a_longer_file_does_not_wait_for_a_commit() {
    let inner = memory(&options(DiskKind::Dynamic, 1 << 30, 1 << 20, 512), 1);
    let (flush_comes, length_comes) = (AtomicBool::new(false), AtomicBool::new(false));
    let storage = Arc::new(Meeting { inner, place: Barrier::new(2), flush_comes, length_comes });
    let chain = alone(open(storage.clone(), true, 2));
    // As many blocks as the first step has room for.
    (0..33).for_each(|n| chain.write_at(n * MIB, &[1; 512]).expect("a write"));
    storage.flush_comes.store(true, Ordering::SeqCst);
    storage.length_comes.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| chain.flush().expect("a flush"));
        scope.spawn(|| chain.write_at(33 * MIB, &[2; 512]).expect("a write"));
    });
    chain.close().expect("a close");
    assert_sound(&storage, "after the close");
}

#[test]
fn a_file_that_grows_is_lengthened_seldom() {
    let disk = memory(&options(DiskKind::Dynamic, 1 << 30, 1 << 20, 512), 1);
    let slow = Slow::new(disk, Duration::ZERO);
    let chain = alone(open(slow.clone(), true, 2));
    (0..384).for_each(|n| chain.write_at(n * MIB, &[2; 512]).expect("a write"));
    assert_eq!(slow.lengths.load(Ordering::Relaxed), 5, "at 0, 33, 67, 135, 271 MiB");
    assert!(slow.inner.len().expect("memory") < 2 * 384 * MIB);
}

#[test]
fn a_host_that_gives_space_at_once_is_filled_to_its_last_blocks() {
    let disk = memory(&options(DiskKind::Dynamic, 1 << 30, 1 << 20, 512), 1);
    let room = disk.len().expect("memory") + 100 * MIB;
    let slow = Slow::new(disk, Duration::ZERO);
    let slow = Arc::new(Slow { room, ..Arc::into_inner(slow).expect("the only one") });
    let chain = alone(open(slow.clone(), true, 2));
    let written = (0..200).take_while(|n| match chain.write_at(n * MIB, &[2; 512]) {
        Ok(()) => true,
        Err(error) => {
            assert!(matches!(error, DiskError::NoSpace), "{error}");
            false
        }
    });
    assert!((99..=100).contains(&written.count()));
    chain.close().expect("a close");
    assert_sound(&slow, "after the close");
}

#[test]
fn a_disk_that_was_flushed_is_closed_by_three_flushes() {
    let disk = memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1);
    let slow = Slow::new(disk, Duration::ZERO);
    let chain = alone(open(slow.clone(), true, 2));
    chain.write_at(0, &[1; 512]).expect("a write");
    chain.flush().expect("a flush");
    let before = slow.flushes.load(Ordering::Relaxed);
    chain.close().expect("a close");
    let flushes = slow.flushes.load(Ordering::Relaxed) - before;
    assert_eq!(flushes, 3, "what was put in place, the first header, the second one and the length");
    assert_sound(&slow, "after the close");
}

#[test]
fn a_new_disk_that_nothing_leads_to_is_flushed_by_one_flush_and_lengthened_before_a_write_needs_it() {
    let slow = Slow::new(MemoryStorage::default(), Duration::ZERO);
    let flushes = || slow.flushes.load(Ordering::Relaxed);
    let options = options(DiskKind::Dynamic, 1 << 30, 1 << 20, 512);
    create_unflushed(&slow, &options, guids(1).as_mut()).expect("a new file");
    let is_new = VhdxOpenOptions { is_new: true, ..VhdxOpenOptions::writable() };
    let chain = alone(Disk::open(slow.clone(), &is_new, guids(2)).expect("a new disk"));
    let disk = &chain.disks()[0];
    disk.lengthen_ahead(24 * MIB).expect("nothing was written yet");
    for n in 0..100 {
        disk.lengthen_ahead(24 * MIB).expect("memory");
        let before = slow.lengths.load(Ordering::Relaxed);
        chain.write_at(n * MIB, &[1; MIB as usize]).expect("a write");
        let is_lengthened = slow.lengths.load(Ordering::Relaxed) > before;
        assert_eq!(is_lengthened, n == 0, "write {n}");
    }
    assert_eq!(flushes(), 0);
    for n in 1..4 {
        chain.flush_at_once().expect("a flush");
        assert_eq!(flushes(), n);
        chain.write_at((100 + n as u64) * MIB, &[1; 512]).expect("a write");
    }
    chain.close().expect("a close");
    assert_sound(&slow, "after the close");
}

#[test]
fn threads_that_write_unmap_and_flush_see_their_own_data() {
    let disk = memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1);
    let slow = Slow::new(disk, Duration::from_micros(50));
    let chain = alone(open(slow.clone(), true, 2));
    // Each thread has every eighth unit of 64 KiB: all share all blocks.
    const UNIT: u64 = 64 << 10;
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let chain = &chain;
            scope.spawn(move || {
                let mut rng = Random::new(thread);
                let mut model = [0u8; 32];
                for step in 0..400u64 {
                    let slot = rng.below(32);
                    let offset = (slot * 8 + thread) * UNIT;
                    match rng.below(10) {
                        0..4 => {
                            let value = (step % 250) as u8 + 1;
                            chain.write_at(offset, &[value; UNIT as usize]).expect("a write");
                            model[slot as usize] = value;
                        }
                        4..8 => {
                            let mut data = vec![0xEE; UNIT as usize];
                            chain.read_at(offset, &mut data).expect("a read");
                            let expected = model[slot as usize];
                            assert!(
                                data.iter().all(|byte| *byte == expected),
                                "thread {thread}, step {step}"
                            );
                        }
                        8 => {
                            chain.discard(offset, UNIT, DiscardMode::Zero).expect("zeroes");
                            model[slot as usize] = 0;
                        }
                        _ => chain.flush().expect("a flush"),
                    }
                }
            });
        }
        // Whole blocks behind them come and go: their space is reused meanwhile.
        let chain = &chain;
        scope.spawn(move || {
            for round in 0..60u64 {
                let offset = (20 + round % 7) * MIB;
                chain.write_at(offset, &vec![0xCC; MIB as usize]).expect("a write");
                chain.discard(offset, MIB, DiscardMode::Unmap).expect("an unmap");
                chain.flush().expect("a flush");
            }
        });
    });
    chain.close().expect("a close");
    assert_sound(&slow, "after the threads");
}

/// Each thread has sectors of its own in the same blocks, zeroes most of them, and finds what it wrote: a block that
/// gives its space up while another thread writes into it would lose that.
#[test]
fn a_block_is_not_given_up_under_a_write() {
    let disk = memory(&options(DiskKind::Dynamic, 4 * MIB, 1 << 20, 512), 1);
    let slow = Slow::new(disk, Duration::from_micros(50));
    let chain = alone(open(slow.clone(), true, 2));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let chain = &chain;
            scope.spawn(move || {
                let mut rng = Random::new(100 + thread);
                for step in 0..300u64 {
                    let offset = rng.below(2) * MIB + (rng.below(4) * 4 + thread) * 4096;
                    let value = (step % 250) as u8 + 1;
                    chain.write_at(offset, &[value; 4096]).expect("a write");
                    if rng.below(8) == 0 {
                        chain.flush().expect("a flush");
                    }
                    let mut data = [0xEE; 4096];
                    chain.read_at(offset, &mut data).expect("a read");
                    assert!(data == [value; 4096], "thread {thread}, step {step}: {}", data[0]);
                    chain.discard(offset, 4096, DiscardMode::Unmap).expect("an unmap");
                    chain.read_at(offset, &mut data).expect("a read");
                    assert!(data == [0; 4096], "thread {thread}, step {step}: {}", data[0]);
                }
            });
        }
    });
    let given_up = |block: u64| {
        let mut zero = false;
        chain.map(block * MIB, MIB, |segment| zero = segment.source == SegmentSource::Zero).expect("a map");
        zero
    };
    assert!(given_up(0) && given_up(1), "the last unmap leaves nothing");
    chain.close().expect("a close");
    assert_sound(&slow, "after the threads");
}

/// 2 TiB in blocks of 1 MiB: 4,097 pages of the table, and a change that waits for a commit is one of 1,024 at most.
#[test]
fn a_long_discard_is_committed_in_parts() {
    let disk = memory(&options(DiskKind::Dynamic, 2 << 40, 1 << 20, 512), 1);
    let slow = Slow::new(disk, Duration::ZERO);
    let chain = alone(open(slow.clone(), true, 2));
    chain.write_at(0, &[1; 512]).expect("a write");
    chain.flush().expect("a flush");
    let before = slow.flushes.load(Ordering::Relaxed);
    chain.discard(MIB, (2 << 40) - MIB, DiscardMode::Zero).expect("zeroes");
    let commits = slow.flushes.load(Ordering::Relaxed) - before;
    assert!(commits > 4, "{commits} flushes");
    let error = chain.discard(MIB, 2 << 40, DiscardMode::Zero).expect_err("behind the end");
    assert!(matches!(error, DiskError::OutOfRange { .. }), "{error}");
    let mut data = [0xEE; 512];
    chain.read_at((2 << 40) - 512, &mut data).expect("a read");
    assert_eq!(data, [0; 512]);
    chain.read_at(0, &mut data).expect("a read");
    assert_eq!(data, [1; 512]);
}

//! Alone in its process, so that nobody else's memory is counted.

use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use lunway_block::{BlockDevice, Buf, Durability, Io};
use lunway_memory::RamDisk;

const SIZE: u64 = 256 << 20;

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// Takes all the turns of an operation.
fn finish<T>(io: Io<T>) -> T {
    let mut pending = match io {
        Io::Ready(answer) => return answer,
        Io::Pending(pending) => pending,
    };
    loop {
        if let Poll::Ready(answer) = pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return answer;
        }
    }
}

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn memory_that_is_unmapped_goes_back_to_the_kernel() {
    let _alone = ALONE.lock();
    let disk = RamDisk::new(SIZE, 512).expect("a disk");
    let before = resident();
    let data = Buf::copy_of(&[7; 1 << 20]).freeze();
    for offset in (0..SIZE).step_by(1 << 20) {
        assert!(matches!(disk.write(offset, data.clone(), Durability::Volatile), Io::Ready(Ok(()))));
    }
    assert!(resident() >= before + SIZE, "written memory is there");
    finish(disk.unmap(SIZE / 2, SIZE / 2)).expect("it is unmapped");
    assert!(resident() < before + SIZE / 2 + SIZE / 16, "half of it is gone");
    finish(disk.unmap(0, SIZE)).expect("it is unmapped");
    assert!(resident() < before + SIZE / 16, "all of it is gone");
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("Linux").lines().count()
}

/// Every other 64 KiB trimmed made a mapping of each of the rest, up to the kernel's limit of 65,530; then nothing
/// could be mapped any more, and a process that cannot map may not be able to go on.
#[test]
fn a_hundred_thousand_scattered_trims_take_no_mappings_and_give_memory_back() {
    const TRIMS: u64 = 100_000;
    const CHUNK: u64 = 64 << 10;
    let _alone = ALONE.lock();
    let disk = RamDisk::new(2 * TRIMS * CHUNK, 512).expect("a disk");
    let (before, few) = (resident(), mappings());
    let data = Buf::copy_of(&[7; 4096]).freeze();
    // One chunk of each 2 MiB stays empty: what is full becomes a huge page, parts of which the kernel frees only when
    // it needs memory.
    let written = |chunk: u64| chunk % 32 != 31;
    // All is there before anything goes: what one trim leaves free the next write must not take.
    for chunk in (0..2 * TRIMS).filter(|&chunk| written(chunk)) {
        let answer = disk.write(chunk * CHUNK, data.clone(), Durability::Volatile);
        assert!(matches!(answer, Io::Ready(Ok(()))), "{answer:?} at chunk {chunk}");
    }
    for trim in 0..TRIMS {
        assert!(matches!(disk.unmap(2 * trim * CHUNK, CHUNK), Io::Ready(Ok(()))));
    }
    assert!(mappings() < few + 100, "{} mappings", mappings());
    let left = (0..TRIMS).filter(|&trim| written(2 * trim + 1)).count() as u64;
    assert_eq!(disk.allocated(), left * CHUNK);
    let taken = resident() - before;
    assert!(taken < TRIMS * 4096 + (64 << 20), "{taken} bytes for a sector in each of {TRIMS} chunks");
    for trim in (0..TRIMS).step_by(997) {
        let kept = 7 * u8::from(written(2 * trim + 1));
        for (chunk, byte) in [(2 * trim, 0), (2 * trim + 1, kept)] {
            let Io::Ready(Ok(read)) = disk.read(chunk * CHUNK, Buf::for_overwrite(4096)) else { panic!() };
            assert!(read.iter().all(|&found| found == byte), "{chunk}");
        }
    }
    finish(disk.unmap(0, 2 * TRIMS * CHUNK)).expect("it is unmapped");
    assert!(resident() < before + (64 << 20), "all of it is gone");
}

#[test]
fn a_disk_of_terabytes_takes_what_is_written_and_one_that_cannot_be_is_refused() {
    let _alone = ALONE.lock();
    let before = resident();
    let disk = RamDisk::new(8 << 40, 4096).expect("addresses only");
    let data = Buf::copy_of(&[7; 4096]).freeze();
    for terabyte in 0..8_u64 {
        assert!(matches!(disk.write(terabyte << 40, data.clone(), Durability::Volatile), Io::Ready(Ok(()))));
    }
    assert!(resident() < before + (8 << 20));
    // More than there are addresses (2^47), however the kernel counts.
    let disks: Vec<_> = (0..20).map(|_| RamDisk::new(16 << 40, 4096)).collect();
    let refused = disks.iter().find_map(|disk| disk.as_ref().err()).expect("320 TiB do not fit");
    assert!(refused.to_string().contains("reserves no addresses"), "{refused}");
}

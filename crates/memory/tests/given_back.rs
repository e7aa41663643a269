//! Alone in its process, so that nobody else's memory is counted.

use lunway_block::{BlockDevice, Buf, Durability, Io};
use lunway_memory::RamDisk;

const SIZE: u64 = 256 << 20;

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

#[test]
fn memory_that_is_unmapped_goes_back_to_the_kernel() {
    let disk = RamDisk::new(SIZE, 512).expect("a disk");
    let before = resident();
    let data = Buf::copy_of(&[7; 1 << 20]).freeze();
    for offset in (0..SIZE).step_by(1 << 20) {
        assert!(matches!(disk.write(offset, data.clone(), Durability::Volatile), Io::Ready(Ok(()))));
    }
    assert!(resident() >= before + SIZE, "written memory is there");
    assert!(matches!(disk.unmap(SIZE / 2, SIZE / 2), Io::Ready(Ok(()))));
    assert!(resident() < before + SIZE / 2 + SIZE / 16, "half of it is gone");
    assert!(matches!(disk.unmap(0, SIZE), Io::Ready(Ok(()))));
    assert!(resident() < before + SIZE / 16, "all of it is gone");
}

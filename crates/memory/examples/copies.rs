//! How long a copy of 4 KiB takes that the processor's caches do not have:
//! `cargo run --release -p lunway-memory --example copies [GiB]`.

use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability, Io};
use lunway_memory::RamDisk;

const COUNT: u64 = 1_000_000;

fn main() {
    let gib = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2);
    let size: u64 = gib << 30;
    let disk = RamDisk::new(size, 4096).expect("a disk");
    let data = Buf::copy_of(&vec![7; 1 << 20]).freeze();
    let begun = Instant::now();
    for offset in (0..size).step_by(1 << 20) {
        assert!(matches!(disk.write(offset, data.clone(), Durability::Volatile), Io::Ready(Ok(()))));
    }
    println!("filling {gib} GiB: {:.2} s", begun.elapsed().as_secs_f64());
    // Time for pages to be put together.
    std::thread::sleep(Duration::from_secs(2 * gib + 1));
    println!("{}", huge_pages());
    let block = Buf::copy_of(&[9; 4096]).freeze();
    for round in 0..3 {
        let mut place = 1_u64;
        let mut next = || {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (place >> 20) % (size / 4096) * 4096
        };
        let begun = Instant::now();
        let mut buf = Buf::zeroed(4096);
        for _ in 0..COUNT {
            let Io::Ready(Ok(read)) = disk.read(next(), buf) else { panic!("a RAM disk never waits") };
            buf = read;
        }
        let reads = begun.elapsed();
        let begun = Instant::now();
        for _ in 0..COUNT {
            let _ = disk.write(next(), block.clone(), Durability::Volatile);
        }
        let per = |time: Duration| time.as_nanos() as u64 / COUNT;
        println!("round {round}: 4 KiB read {} ns, written {} ns", per(reads), per(begun.elapsed()));
    }
}

fn huge_pages() -> String {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    rollup.lines().find(|line| line.starts_with("AnonHugePages")).unwrap_or("AnonHugePages: ?").to_owned()
}

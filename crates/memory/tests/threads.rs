//! The RAM disk against many threads. Alone it is held against the contract of all devices
//! (`crates/device/tests/waist`).

use std::sync::Arc;
use std::thread;

use lunway_block::{BlockDevice, Buf, Durability, Io, Permit};
use lunway_memory::RamDisk;

fn ready<T>(io: Io<T>) -> T {
    match io {
        Io::Ready(answer) => answer,
        Io::Pending(_) => panic!("a RAM disk never waits"),
    }
}

#[test]
fn threads_that_overlap_never_tear_a_sector() {
    let disk = Arc::new(RamDisk::new(4 << 20, 512).unwrap());
    let threads = (1..=4_u64).map(|thread| {
        let disk = Arc::clone(&disk);
        thread::spawn(move || {
            let mut place = thread;
            for round in 0..2_000_u64 {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
                let sector = (place >> 33) % 300;
                let len = (1 + (place >> 20) % 200) as usize * 512;
                match place >> 60 {
                    0..8 => {
                        let data = Buf::copy_of(&vec![thread as u8; len]).freeze();
                        ready(disk.write(sector * 512, data, Durability::Volatile)).unwrap();
                    }
                    8 => ready(disk.unmap(sector * 512, len as u64)).unwrap(),
                    _ => {
                        let buf = ready(disk.read(sector * 512, Buf::for_overwrite(len))).unwrap();
                        for sector in buf.chunks(512) {
                            assert!(sector.iter().all(|&byte| byte == sector[0] && byte <= 4));
                        }
                    }
                }
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn writes_racing_with_a_shrink_leave_nothing_behind_the_end() {
    let disk = Arc::new(RamDisk::new(1 << 20, 512).unwrap());
    for _ in 0..50 {
        let writer = {
            let disk = Arc::clone(&disk);
            thread::spawn(move || {
                for _ in 0..20 {
                    // Out of range once the disk has shrunk, which is the right answer.
                    let _ = ready(disk.write(0, Buf::copy_of(&[9; 1 << 20]).freeze(), Durability::Volatile));
                }
            })
        };
        ready(disk.resize(4096, Permit::default())).unwrap();
        writer.join().unwrap();
        ready(disk.resize(1 << 20, Permit::default())).unwrap();
        let buf = ready(disk.read(4096, Buf::zeroed((1 << 20) - 4096))).unwrap();
        assert!(buf.iter().all(|&byte| byte == 0));
    }
}

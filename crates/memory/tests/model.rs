//! The RAM disk against a plain vector, and against many threads.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::sync::Arc;
use std::thread;

use lunway_block::{BlockDevice, Buf, Durability, ExtentKind, Io, Zeroing};
use lunway_memory::RamDisk;
use proptest::prelude::*;

const SECTOR: u64 = 512;
/// Five chunks and a bit: small enough to hit borders often.
const SECTORS: u64 = 5 * 128 + 3;

#[derive(Clone, Debug)]
enum Op {
    Write { at: u64, len: u64, byte: u8 },
    Read { at: u64, len: u64 },
    Unmap { at: u64, len: u64 },
    Zero { at: u64, len: u64, zeroing: Zeroing },
    Extents { at: u64, len: u64 },
    Resize { sectors: u64 },
}

fn any_op() -> impl Strategy<Value = Op> {
    let range = || (0..=SECTORS, prop_oneof![0..8_u64, 0..=SECTORS]);
    let zeroing = prop_oneof![Just(Zeroing::MayUnmap), Just(Zeroing::KeepAllocated)];
    prop_oneof![
        4 => (range(), 1_u8..).prop_map(|((at, len), byte)| Op::Write { at, len, byte }),
        3 => range().prop_map(|(at, len)| Op::Read { at, len }),
        2 => range().prop_map(|(at, len)| Op::Unmap { at, len }),
        2 => (range(), zeroing).prop_map(|((at, len), zeroing)| Op::Zero { at, len, zeroing }),
        2 => range().prop_map(|(at, len)| Op::Extents { at, len }),
        1 => (1..=SECTORS).prop_map(|sectors| Op::Resize { sectors }),
    ]
}

fn ready<T>(io: Io<T>) -> T {
    match io {
        Io::Ready(answer) => answer,
        Io::Pending(_) => panic!("a RAM disk never waits"),
    }
}

fn run(ops: &[Op]) {
    let disk = RamDisk::new(SECTORS * SECTOR, 512).unwrap();
    let mut model = vec![0_u8; (SECTORS * SECTOR) as usize];
    for op in ops {
        // The range in bytes, and whether the device must take it.
        let place = |at: u64, len: u64| {
            let (at, len) = (at * SECTOR, len * SECTOR);
            (at, len, (at + len <= model.len() as u64).then(|| at as usize..(at + len) as usize))
        };
        match *op {
            Op::Write { at, len, byte } => {
                let (at, len, range) = place(at, len);
                let data = Buf::copy_of(&vec![byte; len as usize]).freeze();
                let answer = ready(disk.write(at, data, Durability::Volatile));
                assert_eq!(answer.is_ok(), range.is_some());
                range.into_iter().for_each(|range| model[range].fill(byte));
            }
            Op::Read { at, len } => {
                let (at, len, range) = place(at, len);
                let answer = ready(disk.read(at, Buf::copy_of(&vec![0xee; len as usize])));
                assert_eq!(answer.is_ok(), range.is_some());
                if let (Ok(buf), Some(range)) = (answer, range) {
                    assert!(buf[..] == model[range], "{op:?}");
                }
            }
            Op::Unmap { at, len } => {
                let (at, len, range) = place(at, len);
                assert_eq!(ready(disk.unmap(at, len)).is_ok(), range.is_some());
                range.into_iter().for_each(|range| model[range].fill(0));
            }
            Op::Zero { at, len, zeroing } => {
                let (at, len, range) = place(at, len);
                assert_eq!(ready(disk.write_zeroes(at, len, zeroing)).is_ok(), range.is_some());
                range.into_iter().for_each(|range| model[range].fill(0));
            }
            Op::Extents { at, len } => {
                let (at, len, range) = place(at, len);
                let answer = ready(disk.extents(at, len));
                assert_eq!(answer.is_ok(), range.is_some());
                let mut next = at;
                for extent in answer.into_iter().flatten() {
                    assert!(extent.offset == next && extent.len > 0, "{extent:?}");
                    next = extent.end();
                    let zeroes = model[extent.offset as usize..next as usize].iter().all(|&byte| byte == 0);
                    assert!(zeroes || extent.kind == ExtentKind::Data, "{extent:?} hides data");
                }
                assert!(range.is_none() || next == at + len);
            }
            Op::Resize { sectors } => {
                ready(disk.resize(sectors * SECTOR)).unwrap();
                model.resize((sectors * SECTOR) as usize, 0);
            }
        }
        assert!(disk.allocated() <= (model.len() as u64).next_multiple_of(64 << 10));
    }
    assert!(ready(disk.read(0, Buf::zeroed(model.len()))).unwrap()[..] == model);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn the_disk_is_a_vector(ops in proptest::collection::vec(any_op(), 1..40)) {
        run(&ops);
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
        ready(disk.resize(4096)).unwrap();
        writer.join().unwrap();
        ready(disk.resize(1 << 20)).unwrap();
        let buf = ready(disk.read(4096, Buf::zeroed((1 << 20) - 4096))).unwrap();
        assert!(buf.iter().all(|&byte| byte == 0));
    }
}

//! Devices and layers as a LUN has them, asked without a transport.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, Buf, Durability, Io};
use lunway_file::{FileDevice, FileOptions};
use lunway_memory::RamDisk;
use lunway_multipath::{
    Boundaries, Direction, LaneShape, Piece, Pieces, Policy, Port, Request, Scheduler, Use,
};
use lunway_snapshot::SnapshotLayer;
use lunway_track::{Backing, Identify, Tracked, Tuning};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{Chain, CreateOptions, Disk, DiskKind, VhdxOpenOptions, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};

use crate::counted;

const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 4096;

/// What carries out so many operations.
type CarryOut = fn(u32);

pub(crate) const PATHS: &[(&str, CarryOut)] = &[
    ("layers of a tracked LUN, write of 4 KiB to what has changed before", tracked_write),
    ("raw file, read of 4 KiB from the page cache", raw_read),
    ("VHDX file, read of 4 KiB from the page cache", vhdx_read),
    ("chain of 64 VHDX files, read of 4 KiB from the page cache", chain_read),
    ("the same, written to", written_chain_read),
    ("scheduler of two lanes, read of 4 KiB", scheduled),
];

fn place(number: u32) -> u64 {
    u64::from(number.wrapping_mul(0x9e37_79b1)) % (SIZE / BLOCK) * BLOCK
}

/// The answer of a device that has it at once.
fn now<T>(io: Io<T>) -> T {
    let Io::Ready(answer) = io else { panic!("this has to wait for a thread") };
    answer
}

/// The answer, also of a thread.
fn soon<T>(io: Io<T>) -> T {
    match io {
        Io::Ready(answer) => answer,
        Io::Pending(mut answer) => {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            loop {
                if let std::task::Poll::Ready(answer) = answer.as_mut().poll(&mut context) {
                    return answer;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn data() -> lunway_block::SharedBuf {
    Buf::copy_of(&[7; BLOCK as usize]).freeze()
}

fn tracked_write(operations: u32) {
    let ram = Arc::new(RamDisk::new(SIZE, 512).unwrap());
    let backing = Backing { lasting: vec![1], exact: Vec::new() };
    let identify: Identify = {
        let backing = backing.clone();
        Arc::new(move |_| backing.clone())
    };
    let log = Box::new(tempfile::tempfile().unwrap());
    let tracked = Tracked::open(ram, log, &backing, identify, Tuning::default()).unwrap();
    let device = SnapshotLayer::new(Arc::new(tracked));
    let data = data();
    for offset in (0..SIZE).step_by(BLOCK as usize) {
        soon(device.write(offset, data.clone(), Durability::Volatile)).unwrap();
    }
    let writes = &mut || {
        for number in 0..operations {
            now(device.write(place(number), data.clone(), Durability::Volatile)).unwrap();
        }
    };
    writes();
    counted(writes);
}

fn reads(device: &dyn BlockDevice, operations: u32) {
    let mut buf = Buf::for_overwrite(BLOCK as usize);
    let reads = &mut || {
        for number in 0..operations {
            buf = now(device.read(place(number), std::mem::take(&mut buf))).unwrap();
        }
    };
    reads();
    counted(reads);
}

fn raw_read(operations: u32) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    let device = FileDevice::open(file.path(), &FileOptions::default()).unwrap();
    fill(&device);
    reads(&device, operations);
}

fn vhdx_read(operations: u32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.vhdx");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let options = CreateOptions::new(DiskKind::Dynamic, SIZE, Guid::from_digits(5));
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    drop(file);
    let device = VhdxDevice::open(&path, false).unwrap();
    fill(&device);
    reads(&device, operations);
}

/// A chain of 64 files, each with a 64th of all blocks of 4 KiB; the last one is open for writing or not.
fn deep_reads(operations: u32, read_only: bool) {
    const FILES: u64 = 64;
    let folder = tempfile::tempdir().unwrap();
    let path = |number: u64| folder.path().join(format!("{number}.vhdx"));
    for number in 0..FILES {
        let file = File::options().read(true).write(true).create_new(true).open(path(number)).unwrap();
        let parent = (number > 0).then(|| {
            let parent = File::open(path(number - 1)).unwrap();
            Disk::open(parent, &VhdxOpenOptions::read_only(), random_guids().unwrap()).unwrap()
        });
        let options = match &parent {
            None => CreateOptions::new(DiskKind::Dynamic, SIZE, Guid::from_digits(5)),
            Some(parent) => CreateOptions::child_of(parent, &format!("./{}.vhdx", number - 1)),
        };
        create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
        let disk = Disk::open(file, &VhdxOpenOptions::writable(), random_guids().unwrap()).unwrap();
        // No write of whole sectors asks a parent.
        let leaf = Chain::upper(vec![disk]).unwrap();
        for offset in (number * BLOCK..SIZE).step_by((FILES * BLOCK) as usize) {
            leaf.write_at(offset, &[7; BLOCK as usize]).unwrap();
        }
        leaf.close().unwrap();
    }
    let device = VhdxDevice::open(&path(FILES - 1), read_only).unwrap();
    // What is not known yet is looked up by a thread.
    for offset in (0..SIZE).step_by(1 << 20) {
        soon(device.read(offset, Buf::for_overwrite(1 << 20))).unwrap();
    }
    reads(&device, operations);
}

fn chain_read(operations: u32) {
    deep_reads(operations, true);
}

fn written_chain_read(operations: u32) {
    deep_reads(operations, false);
}

/// Puts data where reads will look for it.
pub(crate) fn fill(device: &dyn BlockDevice) {
    let data = Buf::copy_of(&vec![7; 1 << 20]).freeze();
    for offset in (0..device.geometry().size).step_by(1 << 20) {
        soon(device.write(offset, data.clone(), Durability::Volatile)).unwrap();
    }
    soon(device.flush()).unwrap();
}

fn scheduled(operations: u32) {
    let lane = |port| LaneShape {
        name: String::new(),
        near: Port(port),
        far: Port(port),
        weight: 1,
        reserve: false,
        rate_hint: None,
    };
    let mut scheduler = Scheduler::new(&[lane(0), lane(1)], Policy::Adaptive);
    for lane in 0..2 {
        scheduler.set_use(lane, Use::Active, Duration::ZERO);
    }
    let mut time = Duration::ZERO;
    let mut pieces = Pieces::new();
    let work = &mut || {
        for number in 0..operations {
            let request = Request {
                direction: Direction::Read,
                offset: place(number),
                len: BLOCK,
                divisible: true,
                block: BLOCK as u32,
                cut: Boundaries::every(BLOCK as u32),
            };
            scheduler.place(&request, time, &mut pieces).unwrap();
            time += Duration::from_micros(50);
            for piece in pieces.iter() {
                let piece: &Piece = piece;
                scheduler.finished(piece, time, true);
            }
        }
    };
    work();
    counted(work);
}

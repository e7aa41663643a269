//! A file that becomes shorter while it is used: power cuts at every step, and writers that do not wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use lunway_vhdx::crash::{MemoryStorage, Recorder};
use lunway_vhdx::pack::{Step, move_block};
use lunway_vhdx::{Chain, DiscardMode, DiskKind, Storage};

/// A disk whose first blocks were given up, and the value of each block; its file is not closed.
fn holes<S: Storage + Clone>(storage: &S, blocks: u64) -> Chain<S> {
    let chain = alone(open(storage.clone(), true, 2));
    for block in 0..blocks {
        chain.write_at(block * MIB, &vec![block as u8 + 1; MIB as usize]).expect("a write");
    }
    chain.flush().expect("a flush");
    for block in 0..blocks / 2 {
        chain.discard(block * MIB, MIB, DiscardMode::Unmap).expect("an unmap");
    }
    chain.flush().expect("a flush");
    chain
}

/// Moves what can be moved, and cuts the file. Gives the number of blocks that were moved.
fn shrink<S: Storage>(chain: &Chain<S>) -> u64 {
    let disk = &chain.disks()[0];
    let mut moved = 0;
    loop {
        let mut any = false;
        for placed in disk.highest_blocks(disk.taken(), 100).expect("the table") {
            let step = move_block(disk, placed.block, &mut |_| Some(Duration::ZERO)).expect("a move");
            any |= matches!(step, Step::Moved(_));
            moved += u64::from(any);
        }
        chain.flush().expect("a flush");
        if !any {
            break;
        }
    }
    disk.cut().expect("a cut");
    moved
}

#[test]
fn a_file_that_was_left_too_long_is_cut_before_anything_is_written() {
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1));
    let before = Storage::len(&storage).expect("memory");
    storage.set_len(before + 8 * MIB).expect("memory");
    let chain = alone(open(storage.clone(), true, 2));
    assert_eq!(chain.disks()[0].cut().expect("a cut"), 8 * MIB);
    assert_eq!(Storage::len(&storage).expect("memory"), before);
    assert_sound(&Arc::new((*storage).clone()), "killed");
}

#[test]
fn a_file_is_cut_while_it_is_used_and_grows_again() {
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1));
    let chain = holes(&storage, 40);
    let before = Storage::len(&storage).expect("memory");
    assert!(shrink(&chain) > 10);
    let after = Storage::len(&storage).expect("memory");
    assert_eq!(after, chain.disks()[0].taken(), "no hole is left of {before} bytes");
    assert_eq!(chain.disks()[0].cut().expect("a cut"), 0, "nothing is left to cut");
    // As it is after a kill.
    assert_sound(&Arc::new((*storage).clone()), "killed");
    for block in 0..40u64 {
        chain.write_at(block * MIB + 4096, &[0xEE; 512]).expect("a write");
    }
    chain.close().expect("a close");
    assert_sound(&storage, "closed");
    let bytes = contents(&alone(open(storage, false, 0)));
    for block in 0..40usize {
        let mut expected = vec![if block < 20 { 0 } else { block as u8 + 1 }; MIB as usize];
        expected[4096..4608].fill(0xEE);
        assert!(bytes[block << 20..][..MIB as usize] == expected, "block {block}");
    }
}

#[test]
fn a_power_cut_while_a_file_shrinks_under_its_users_loses_nothing() {
    const BLOCKS: u64 = 8;
    let start = Arc::new(memory(&options(DiskKind::Dynamic, 16 * MIB, 1 << 20, 512), 1));
    drop(holes(&start, BLOCKS));
    let start = Arc::into_inner(start).expect("the only one");
    let recorder = Recorder::new(start);
    let chain = alone(open(recorder.clone(), true, 2));
    for round in 0..2u64 {
        shrink(&chain);
        // Behind the cut the file grows again.
        for block in 0..BLOCKS / 2 {
            chain.write_at((BLOCKS + block) * MIB, &[0x80 + round as u8; 4096]).expect("a write");
        }
        chain.flush().expect("a flush");
        for block in 0..BLOCKS / 2 {
            chain.discard((BLOCKS + block) * MIB, MIB, DiscardMode::Unmap).expect("an unmap");
        }
        chain.flush().expect("a flush");
    }
    shrink(&chain);
    drop(chain);
    let mut rng = Random::new(7);
    let mut crashes = 0;
    recorder.each_crash(|crash| {
        for share in [0, 50, 100] {
            let image: Arc<MemoryStorage> = Arc::new(crash.image(512, |_| rng.below(100) < share));
            let context = format!("after {} operations", crash.done);
            assert_sound(&image, &context);
            let bytes = contents(&alone(open(image.clone(), true, 3)));
            for block in 0..BLOCKS as usize {
                let value = if block < BLOCKS as usize / 2 { 0 } else { block as u8 + 1 };
                assert!(bytes[block << 20..][..MIB as usize].iter().all(|byte| *byte == value), "{context}");
            }
            let others = &bytes[(BLOCKS as usize) << 20..];
            assert!(
                others.iter().all(|byte| matches!(byte, 0 | 0x80 | 0x81)),
                "{context}: another block's data"
            );
            crashes += 1;
        }
    });
    assert!(crashes > 60, "{crashes}");
}

#[test]
fn a_block_stays_where_it_is_when_a_write_waits_for_it() {
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1));
    let chain = Arc::new(holes(&storage, 40));
    let disk = &chain.disks()[0];
    let placed = disk.highest_blocks(0, 1).expect("the table")[0];
    let writer = std::sync::Mutex::new(None);
    let step = move_block(disk, placed.block, &mut |copied| {
        if copied > 0 {
            let chain = Arc::clone(&chain);
            let writes = move || {
                let begun = Instant::now();
                chain.write_at(placed.block * MIB, &[0x77; 512]).expect("a write");
                begun.elapsed()
            };
            *writer.lock().expect("one thread") = Some(std::thread::spawn(writes));
        }
        // Much longer than the write may wait.
        Some(Duration::from_secs(20))
    });
    assert_eq!(step, Ok(Step::Yielded));
    let writer = writer.into_inner().expect("one thread").expect("a writer");
    assert!(writer.join().expect("a writer") < Duration::from_secs(10));
    let mut seen = [0; 512];
    chain.read_at(placed.block * MIB, &mut seen).expect("a read");
    assert_eq!(seen, [0x77; 512]);
    assert_eq!(disk.highest_blocks(0, 1).expect("the table")[0], placed, "it has not moved");
}

//! Disks that come to stand alone: the rest of each block comes from the parent beside writes, then the parent is taken
//! out of the metadata; also with a power cut at any step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::*;
use lunway_vhdx::crash::{MemoryStorage, Recorder};
use lunway_vhdx::format::item::PARENT_LOCATOR;
use lunway_vhdx::{
    Chain, Completed, DiscardMode, Disk, DiskKind, Fill, Item, Stop, Storage, VhdxOpenOptions, WritePlan,
    detach, divide_blocks, repair,
};

/// Blocks of the disks, of 1 MiB; behind them half of one.
const BLOCKS: u64 = 9;
const SIZE: u64 = BLOCKS * MIB + MIB / 2;

/// A parent whose even blocks have data, the others never had any.
fn parent() -> (MemoryStorage, Vec<u8>) {
    let mut model = vec![0; SIZE as usize];
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, SIZE, 1 << 20, 512), 1));
    let chain = alone(open(storage.clone(), true, 2));
    for (number, sector) in model.chunks_mut(512).enumerate() {
        let block = number as u64 * 512 / MIB;
        if block.is_multiple_of(2) {
            sector.fill(1 + (number % 250) as u8);
        }
    }
    chain.write_at(0, &model).expect("a write");
    for block in (1..BLOCKS).step_by(2) {
        chain.discard(block * MIB, MIB, DiscardMode::Unmap).expect("an unmap");
    }
    chain.close().expect("a close");
    (Arc::into_inner(storage).expect("the only one"), model)
}

fn child(parent: &MemoryStorage) -> MemoryStorage {
    memory(&child_options(&open(Arc::new(parent.clone()), false, 3), SIZE, 1 << 20), 4)
}

/// Writes of sectors, whole blocks and zeroes, so that the child has blocks in each state.
fn change<S: Storage>(chain: &Chain<S>, model: &mut [u8]) {
    let mut write = |at: u64, len: u64| {
        chain.write_at(at, &vec![251; len as usize]).expect("a write");
        model[at as usize..(at + len) as usize].fill(251);
    };
    write(512, 512);
    write(5120, 4096);
    write(2 * MIB, MIB);
    write(3 * MIB + 1024, 2048);
    write(SIZE - 512, 512);
    for (at, len) in [(4 * MIB, MIB), (5 * MIB, 4096), (6 * MIB + 4096, 8192)] {
        chain.discard(at, len, DiscardMode::Zero).expect("zeroes");
        model[at as usize..(at + len) as usize].fill(0);
    }
}

fn over<S: Storage>(leaf: Disk<S>, parent: Disk<S>) -> Chain<S> {
    Chain::new(vec![leaf, parent]).unwrap_or_else(|error| panic!("{error}"))
}

/// Completes all blocks, as a device does. Gives the bytes that were written.
fn complete<S: Storage>(leaf: &Disk<S>, of: &[u8]) -> u64 {
    let mut written = 0;
    for pass in [Disk::next_incomplete, Disk::next_partial] {
        let mut at = 0;
        while let Some(block) = pass(leaf, at).expect("a look") {
            let data = &of[(block * MIB) as usize..((block + 1) * MIB).min(SIZE) as usize];
            let data = Some(data).filter(|data| data.iter().any(|byte| *byte != 0));
            match leaf.complete_block(block, data).expect("a block") {
                Completed::Written(bytes) => written += bytes,
                Completed::Nothing => {}
                Completed::Yielded => {
                    std::thread::yield_now();
                    continue;
                }
            }
            at = block + 1;
        }
    }
    written
}

fn is_alone(storage: &MemoryStorage) -> bool {
    open(Arc::new(storage.clone()), false, 0).parameters().locator.is_none()
}

#[test]
fn a_disk_that_has_all_of_its_parents_data_stands_alone_and_shows_the_same() {
    let (parent, of) = parent();
    let mut model = of.clone();
    let leaf = Arc::new(child(&parent));
    let chain = over(open(leaf.clone(), true, 5), open(Arc::new(parent), false, 0));
    change(&chain, &mut model);
    let written = complete(&chain.disks()[0], &of);
    // Of blocks 0, 3, 5, 6 and 9 what was not written, and all of 8; 2 and 4 the child has, and 1 and 7 have nothing.
    let lacked = [MIB - 512 - 4096, MIB - 2048, MIB - 4096, MIB - 8192, MIB / 2 - 512, MIB];
    assert_eq!(written, lacked.iter().sum::<u64>());
    assert!(contents(&chain) == model, "with the parent");
    let guid = chain.disks()[0].data_write_guid();
    chain.close().expect("a close");
    let storage = Arc::into_inner(leaf).expect("the only one");
    let before = Storage::len(&storage).expect("memory");
    detach(&storage, guids(6).as_mut()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(lunway_vhdx::check::check(&storage).findings, []);
    assert!(Storage::len(&storage).expect("memory") <= before);
    let alone_now = open(Arc::new(storage.clone()), false, 0);
    assert_eq!(alone_now.parameters().kind, DiskKind::Dynamic);
    assert_ne!(alone_now.data_write_guid(), guid, "it was written since");
    let is_locator = |item: &Item| item.id == PARENT_LOCATOR;
    assert!(!alone_now.items().expect("the items").iter().any(is_locator));
    assert!(contents(&alone(alone_now)) == model, "without it");
    // It is a disk as any other: written, its blocks divided, and detached again, which does nothing.
    detach(&storage, guids(7).as_mut()).expect("nothing to do");
    divide_blocks(&storage, 1 << 20, guids(8).as_mut()).expect("the same size");
    let storage = Arc::new(storage);
    let chain = alone(open(storage.clone(), true, 9));
    chain.write_at(7 * MIB, &[9; 512]).expect("a write");
    chain.discard(0, MIB, DiscardMode::Unmap).expect("an unmap");
    chain.close().expect("a close");
    assert_sound(storage.as_ref(), "written");
}

/// Of more than 4 GiB a dynamic disk's table has places for bitmaps between its blocks, too.
#[test]
fn no_bitmap_is_left_in_a_disk_that_stands_alone() {
    let size = 9 << 30;
    let parent = Arc::new(memory(&options(DiskKind::Dynamic, size, 1 << 20, 512), 1));
    let child = memory(&child_options(&open(parent.clone(), false, 3), size, 1 << 20), 4);
    let leaf = Arc::new(child);
    let chain = over(open(leaf.clone(), true, 5), open(parent, false, 0));
    for chunk in 0..3 {
        chain.write_at(chunk << 32, &[7; 512]).expect("a write");
        let done = chain.disks()[0].complete_block(chunk << 12, None).expect("a block");
        assert_eq!(done, Completed::Written(MIB - 512));
    }
    chain.close().expect("a close");
    let storage = Arc::into_inner(leaf).expect("the only one");
    detach(&storage, guids(6).as_mut()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(lunway_vhdx::check::check(&storage).findings, []);
    let repairs = repair(&storage, guids(7).as_mut()).unwrap_or_else(|error| panic!("{error}"));
    assert!(repairs.is_empty(), "{repairs:?}");
}

#[test]
fn a_disk_with_a_block_of_which_a_part_is_missing_is_not_detached() {
    let (parent, of) = parent();
    let leaf = Arc::new(child(&parent));
    let chain = over(open(leaf.clone(), true, 5), open(Arc::new(parent), false, 0));
    change(&chain, &mut of.clone());
    assert!(chain.disks()[0].complete_block(0, Some(&of[..512])).is_err(), "not the whole block");
    chain.close().expect("a close");
    let refused = detach(leaf.as_ref(), guids(6).as_mut()).expect_err("a partial block").to_string();
    assert!(refused.contains("block 0 is in the file only in part"), "{refused}");
    assert!(!is_alone(&leaf));
    let fixed = memory(&options(DiskKind::Fixed, 4 * MIB, 1 << 20, 512), 1);
    assert!(detach(&fixed, guids(6).as_mut()).is_err());
}

#[test]
fn a_power_cut_at_any_step_leaves_the_disk_whole_with_its_parent_or_without() {
    let (parent, of) = parent();
    let mut model = of.clone();
    let recorder = Recorder::new(child(&parent));
    let below = || open(Recorder::new(parent.clone()), false, 0);
    let chain = over(
        Disk::open(recorder.clone(), &VhdxOpenOptions::writable(), guids(5)).expect("the leaf"),
        below(),
    );
    change(&chain, &mut model);
    chain.flush().expect("a flush");
    let changed = recorder.count();
    complete(&chain.disks()[0], &of);
    chain.flush().expect("a flush");
    chain.close().expect("a close");
    let completed = recorder.count();
    detach(&recorder, guids(6).as_mut()).unwrap_or_else(|error| panic!("{error}"));
    let (mut rng, mut images, mut with, mut without) = (Random::new(7), 0, 0, 0);
    recorder.each_crash(|crash| {
        if crash.done < changed {
            return;
        }
        for share in [0, 100, 50] {
            let mut decide = rng.clone();
            rng.next();
            let image = Arc::new(crash.image(512, |_| decide.below(100) < share));
            let context = format!("after {} operations, {share} % kept", crash.done);
            assert_sound(image.as_ref(), &context);
            images += 1;
            // It goes on from there.
            let leaf = open(image.clone(), true, 8);
            let chain = match leaf.parameters().locator {
                Some(_) => {
                    with += 1;
                    over(leaf, open(Arc::new(parent.clone()), false, 0))
                }
                None => {
                    without += 1;
                    assert!(crash.done > completed, "{context}");
                    alone(leaf)
                }
            };
            assert!(contents(&chain) == model, "{context}");
            complete(&chain.disks()[0], &of);
            chain.close().unwrap_or_else(|error| panic!("{context}: {error}"));
            detach(image.as_ref(), guids(10).as_mut()).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(contents(&alone(open(image, false, 0))) == model, "{context}");
        }
    });
    println!("{images} images, {with} with the parent, {without} without");
    assert!(with > 40 && without > 8, "{with} with the parent, {without} without");
}

/// Resolves a write, and no more.
fn begin<S: Storage>(disk: &Disk<S>, offset: u64, len: u64) -> WritePlan {
    let mut plan = WritePlan::default();
    loop {
        match disk.begin_write(offset, len, &mut plan) {
            Ok(()) => return plan,
            Err(Stop::Needs(need)) => disk.provide(need).expect("what it needs"),
            Err(Stop::Failed(error)) => panic!("{error}"),
        }
    }
}

/// A write whose bytes are not in the file yet when the block is claimed: its sectors are not marked, and it is not for
/// the parent to fill them.
#[test]
fn a_write_that_began_before_its_block_was_claimed_is_kept() {
    for (at, len) in [(64 << 10, 4096), (0, MIB)] {
        let (parent, of) = parent();
        let mut model = of.clone();
        let leaf = Arc::new(child(&parent));
        let chain = over(open(leaf.clone(), true, 5), open(Arc::new(parent), false, 0));
        chain.write_at(512, &[251; 512]).expect("a write");
        let disk = &chain.disks()[0];
        let mut plan = begin(disk, at, len);
        let (done, written) = std::thread::scope(|scope| {
            let completion =
                scope.spawn(|| disk.complete_block(0, Some(&of[..MIB as usize])).expect("a block"));
            // Longer than it takes to claim the block, and shorter than a completion waits for what began before.
            std::thread::sleep(std::time::Duration::from_millis(15));
            let was_waited_for = !completion.is_finished();
            for segment in plan.segments() {
                let Fill::Data(_) = segment.fill else { panic!("{segment:?}") };
                leaf.write_at(segment.offset, &vec![252; segment.len as usize]).expect("memory");
            }
            disk.complete(&mut plan);
            (completion.join().expect("a completion"), was_waited_for)
        });
        assert!(written, "the completion waits for the write");
        let expected = if len == MIB { Completed::Nothing } else { Completed::Written(MIB - 512 - len) };
        assert_eq!(done, expected);
        model[512..1024].fill(251);
        model[at as usize..(at + len) as usize].fill(252);
        assert!(contents(&chain) == model, "{len} bytes at {at}");
        complete(disk, &of);
        chain.close().expect("a close");
        detach(leaf.as_ref(), guids(6).as_mut()).unwrap_or_else(|error| panic!("{error}"));
        assert!(contents(&alone(open(leaf, false, 0))) == model, "{len} bytes at {at}, without the parent");
    }
}

#[test]
fn writes_beside_the_completion_are_kept() {
    let (parent, of) = parent();
    let leaf = Arc::new(child(&parent));
    let chain = over(open(leaf.clone(), true, 5), open(Arc::new(parent), false, 0));
    const WRITERS: u64 = 3;
    let (stop, started) = (AtomicBool::new(false), std::sync::Barrier::new(WRITERS as usize + 1));
    let mut model = of.clone();
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (chain, stop, started) = (&chain, &stop, &started);
                scope.spawn(move || {
                    let mut rng = Random::new(20 + writer);
                    let mut last = std::collections::BTreeMap::new();
                    started.wait();
                    for number in 0.. {
                        // Each its own sectors.
                        let sector = rng.below(SIZE / 512 / WRITERS) * WRITERS + writer;
                        let value = 1 + (number % 250) as u8;
                        if rng.below(8) == 0 {
                            chain.discard(sector * 512, 512, DiscardMode::Zero).expect("zeroes");
                            last.insert(sector, 0);
                        } else {
                            chain.write_at(sector * 512, &[value; 512]).expect("a write");
                            last.insert(sector, value);
                        }
                        if number > 50 && stop.load(Ordering::Relaxed) || number > 100_000 {
                            break;
                        }
                    }
                    last
                })
            })
            .collect();
        started.wait();
        complete(&chain.disks()[0], &of);
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect::<Vec<_>>()
    });
    for (sector, value) in written {
        model[(sector * 512) as usize..][..512].fill(value);
    }
    complete(&chain.disks()[0], &of);
    assert!(contents(&chain) == model, "with the parent");
    chain.close().expect("a close");
    detach(leaf.as_ref(), guids(6).as_mut()).unwrap_or_else(|error| panic!("{error}"));
    assert!(contents(&alone(open(leaf, false, 0))) == model, "without it");
}

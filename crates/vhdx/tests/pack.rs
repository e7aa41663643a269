//! Packing: what it leaves, also after a power cut at any step, and beside writers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::*;
use lunway_vhdx::crash::{MemoryStorage, Recorder};
use lunway_vhdx::pack::{Packed, pack};
use lunway_vhdx::{Chain, DiscardMode, Disk, DiskKind, Storage, VhdxOpenOptions, pack_metadata};

/// A disk of `blocks` MiB, written in random order, of which a random half was given up again; with or without a
/// parent full of ones.
fn holes(blocks: u64, parent: Option<&MemoryStorage>, seed: u64) -> (MemoryStorage, Vec<u8>) {
    let size = blocks * MIB;
    let mut model = vec![u8::from(parent.is_some()); size as usize];
    let storage = Arc::new(match parent {
        None => memory(&options(DiskKind::Dynamic, size, 1 << 20, 512), seed),
        Some(parent) => {
            memory(&child_options(&open(Arc::new(parent.clone()), false, 3), size, 1 << 20), seed)
        }
    });
    let chain = chain_of(&storage, parent, true);
    let mut rng = Random::new(seed);
    for _ in 0..2 * blocks {
        let (at, value) = (rng.below(blocks) * MIB + rng.below(200) * 4096, rng.below(255) as u8 + 1);
        chain.write_at(at, &[value; 8192]).expect("a write");
        model[at as usize..at as usize + 8192].fill(value);
    }
    chain.flush().expect("a flush");
    for block in 0..blocks {
        // The last ones stay, so that the file keeps its length.
        if rng.below(2) == 0 {
            chain.discard(block * MIB, MIB, DiscardMode::Zero).expect("zeroes");
            model[(block * MIB) as usize..][..MIB as usize].fill(0);
        }
    }
    chain.close().expect("a close");
    (Arc::into_inner(storage).expect("the only one"), model)
}

fn chain_of(
    storage: &Arc<MemoryStorage>,
    parent: Option<&MemoryStorage>,
    writable: bool,
) -> Chain<Arc<MemoryStorage>> {
    let mut disks = vec![open(storage.clone(), writable, 2)];
    disks.extend(parent.map(|parent| open(Arc::new(parent.clone()), false, 0)));
    Chain::new(disks).unwrap_or_else(|error| panic!("{error}"))
}

/// Everything, as a tool does it. Gives what was moved.
fn pack_all<S: Storage + Clone>(storage: &S, progress: &mut dyn FnMut(Packed) -> ControlFlow<()>) -> u64 {
    let metadata = pack_metadata(storage, guids(5).as_mut()).expect("metadata");
    let disk = open(storage.clone(), false, 0);
    let keep = VhdxOpenOptions { data_write: Some(disk.data_write_guid()), ..VhdxOpenOptions::writable() };
    drop(disk);
    let disk = Disk::open(storage.clone(), &keep, guids(6)).unwrap_or_else(|error| panic!("{error}"));
    let packed = pack(&disk, progress).unwrap_or_else(|error| panic!("{error}"));
    disk.close().expect("a close");
    metadata + packed.moved
}

fn parent(blocks: u64) -> MemoryStorage {
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, blocks * MIB, 1 << 20, 512), 1));
    let chain = alone(open(storage.clone(), true, 2));
    chain.write_at(0, &vec![1; (blocks * MIB) as usize]).expect("a write");
    chain.close().expect("a close");
    Arc::into_inner(storage).expect("the only one")
}

#[test]
fn a_packed_file_has_no_holes_and_the_same_contents() {
    let base = parent(24);
    for seed in 0..amount("LUNWAY_VHDX_PACK_SEEDS", 8) {
        let parent = (seed % 2 == 1).then_some(&base);
        let (storage, model) = holes(24, parent, seed);
        let storage = Arc::new(storage);
        let (before, guid) =
            (Storage::len(&storage).expect("memory"), open(storage.clone(), false, 0).data_write_guid());
        let moved = pack_all(&storage, &mut |_| ControlFlow::Continue(()));
        let after = Storage::len(&storage).expect("memory");
        assert_sound(&storage, &format!("seed {seed}"));
        let disk = open(storage.clone(), false, 0);
        assert_eq!(after, disk.taken(), "seed {seed}: no hole is left of {before} bytes, {moved} moved");
        assert!(after < before && moved > 0, "seed {seed}: {before} {after} {moved}");
        assert_eq!(disk.data_write_guid(), guid, "children still know it");
        drop(disk);
        assert!(contents(&chain_of(&storage, parent, false)) == model, "seed {seed}");
        assert_eq!(pack_all(&storage, &mut |_| ControlFlow::Continue(())), 0, "seed {seed}: nothing is left");
    }
}

#[test]
fn what_is_interrupted_is_taken_up_again() {
    let (storage, model) = holes(24, None, 9);
    let storage = Arc::new(storage);
    let mut steps = 0;
    loop {
        let moved = pack_all(&storage, &mut |_| ControlFlow::Break(()));
        assert_sound(&storage, "after one block");
        assert!(contents(&alone(open(storage.clone(), false, 0))) == model);
        if moved == 0 {
            break;
        }
        steps += 1;
    }
    assert!(steps > 3, "{steps}");
    assert_eq!(Storage::len(&storage).expect("memory"), open(storage.clone(), false, 0).taken());
}

#[test]
fn a_table_at_the_end_moves_as_well() {
    // Growing moved it behind everything.
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, 100 << 30, 1 << 20, 512), 1));
    let chain = alone(open(storage.clone(), true, 2));
    for block in 0..8u64 {
        chain.write_at(block * MIB, &[block as u8 | 1; 4096]).expect("a write");
    }
    chain.close().expect("a close");
    let to = lunway_vhdx::Resize { size: 200 << 30, parent_size: None, data_write: None };
    lunway_vhdx::resize(storage.as_ref(), &to, guids(4).as_mut()).expect("a larger disk");
    let chain = alone(open(storage.clone(), true, 2));
    chain.discard(0, 6 * MIB, DiscardMode::Zero).expect("zeroes");
    chain.close().expect("a close");
    pack_all(&storage, &mut |_| ControlFlow::Continue(()));
    assert_sound(&storage, "packed");
    assert_eq!(Storage::len(&storage).expect("memory"), open(storage.clone(), false, 0).taken());
    let mut data = [0; 4096];
    alone(open(storage, false, 0)).read_at(7 * MIB, &mut data).expect("a read");
    assert_eq!(data, [7; 4096]);
}

#[test]
fn a_power_cut_while_a_file_is_packed_loses_nothing() {
    let base = parent(6);
    for (parent, seed) in [(None, 1), (None, 4), (Some(&base), 2), (Some(&base), 3)] {
        let (start, model) = holes(6, parent, seed);
        let recorder = Recorder::new(start);
        match seed % 2 {
            0 => pack_all(&recorder, &mut |_| ControlFlow::Continue(())),
            _ => pack_all(&Sharing::new(recorder.clone()), &mut |_| ControlFlow::Continue(())),
        };
        let mut rng = Random::new(seed);
        let mut crashes = 0;
        recorder.each_crash(|crash| {
            for share in [0, 50, 100] {
                let image = Arc::new(crash.image(512, |_| rng.below(100) < share));
                let context = format!("seed {seed}, after {} operations", crash.done);
                assert_sound(&image, &context);
                assert!(contents(&chain_of(&image, parent, true)) == model, "{context}");
                // And it can be packed to its end.
                pack_all(&image, &mut |_| ControlFlow::Continue(()));
                assert!(contents(&chain_of(&image, parent, false)) == model, "{context}");
                crashes += 1;
            }
        });
        assert!(crashes > 60, "{crashes}");
    }
}

/// A storage that shares blocks as XFS does: a power cut before the next flush loses that like a write.
#[derive(Clone)]
struct Sharing {
    recorder: Recorder,
    calls: Arc<AtomicU64>,
}

impl Sharing {
    fn new(recorder: Recorder) -> Self {
        Self { recorder, calls: Arc::default() }
    }
}

impl Storage for Sharing {
    fn len(&self) -> std::io::Result<u64> {
        Storage::len(&self.recorder)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.recorder.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.recorder.write_at(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.recorder.flush()
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.recorder.set_len(len)
    }

    fn punch(&self, offset: u64, len: u64) -> std::io::Result<bool> {
        self.recorder.punch(offset, len)
    }

    fn share(&self, from: u64, to: u64, len: u64) -> std::io::Result<bool> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut bytes = vec![0; len as usize];
        self.recorder.read_at(from, &mut bytes)?;
        self.recorder.write_at(to, &bytes).map(|()| true)
    }

    fn zero(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.recorder.zero(offset, len)
    }
}

#[test]
fn neighbours_move_together_and_stay_neighbours() {
    const BLOCKS: u64 = 12;
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, 2 * BLOCKS * MIB, 1 << 20, 512), 1));
    let chain = alone(open(storage.clone(), true, 2));
    for block in 0..2 * BLOCKS {
        chain.write_at(block * MIB, &[block as u8 + 1; 4096]).expect("a write");
    }
    chain.flush().expect("a flush");
    chain.discard(0, BLOCKS * MIB, DiscardMode::Zero).expect("zeroes");
    chain.close().expect("a close");
    let model = contents(&alone(open(storage.clone(), false, 0)));
    let sharing = Sharing::new(Recorder::new(Arc::into_inner(storage).expect("the only one")));
    let mut steps = Vec::new();
    pack_all(&sharing, &mut |packed| {
        steps.push(packed);
        ControlFlow::Continue(())
    });
    assert_eq!(sharing.calls.load(Ordering::Relaxed), 1, "twelve blocks in one call");
    assert_eq!(steps, [Packed { moved: BLOCKS * MIB, left: 0 }]);
    let disk = open(sharing, false, 0);
    let mut placed = disk.highest_blocks(0, usize::MAX).expect("a table");
    placed.reverse();
    assert!(placed.is_sorted_by_key(|placed| placed.block), "{placed:?}");
    assert!(contents(&alone(disk)) == model);
}

/// Memory whose small writes take their time before they happen, as those of disks do.
struct Slow(MemoryStorage);

impl Storage for Slow {
    fn len(&self) -> std::io::Result<u64> {
        Storage::len(&self.0)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        if data.len() == 4096 {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        self.0.write_at(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }

    fn zero(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.zero(offset, len)
    }
}

#[test]
fn writers_lose_nothing_while_blocks_move_under_them() {
    const BLOCKS: u64 = 4;
    let storage = Arc::new(Slow(memory(&options(DiskKind::Dynamic, 2 * BLOCKS * MIB, 1 << 20, 512), 1)));
    let chain = Arc::new(alone(open(storage.clone(), true, 2)));
    let done = Arc::new(AtomicBool::new(false));
    // Each has a quarter of every block, so that all of them meet in all blocks.
    let writers: Vec<_> = (0..4u64)
        .map(|writer| {
            let (chain, done) = (chain.clone(), done.clone());
            std::thread::spawn(move || {
                let mut rng = Random::new(writer);
                let mut model = vec![0u8; (BLOCKS * 64) as usize];
                while !done.load(Ordering::Relaxed) {
                    let (block, unit) = (rng.below(BLOCKS), rng.below(64));
                    let at = block * MIB + (writer * 64 + unit) * 4096;
                    let mut seen = [0; 4096];
                    chain.read_at(at, &mut seen).expect("a read");
                    assert_eq!(seen, [model[(block * 64 + unit) as usize]; 4096], "block {block}");
                    let value = rng.next() as u8;
                    chain.write_at(at, &[value; 4096]).expect("a write");
                    model[(block * 64 + unit) as usize] = value;
                }
                model
            })
        })
        .collect();
    let mut moved = 0;
    let mut rng = Random::new(99);
    while moved < amount("LUNWAY_VHDX_PACK_MOVES", 400) {
        // The blocks behind those of the writers come and go, and leave holes.
        for _ in 0..2 {
            let block = BLOCKS + rng.below(BLOCKS);
            match rng.below(2) {
                0 => chain.write_at(block * MIB, &[1; 4096]).expect("a write"),
                _ => chain.discard(block * MIB, MIB, DiscardMode::Unmap).expect("an unmap"),
            }
        }
        chain.flush().expect("a flush");
        let disk = &chain.disks()[0];
        for placed in disk.highest_blocks(0, 2 * BLOCKS as usize).expect("the table") {
            match disk.begin_relocation(placed.block) {
                Ok(Some(relocation)) => {
                    while !disk.is_settled(&relocation) {
                        std::thread::yield_now();
                    }
                    let mut bytes = vec![0; MIB as usize];
                    disk.storage().read_at(relocation.from.offset, &mut bytes).expect("a read");
                    disk.storage().write_at(relocation.to.offset, &bytes).expect("a write");
                    disk.complete_relocation(relocation);
                    moved += 1;
                }
                Ok(None) => {}
                Err(lunway_vhdx::Stop::Needs(need)) => disk.provide(need).expect("what it needs"),
                Err(lunway_vhdx::Stop::Failed(error)) => panic!("{error}"),
            }
        }
        chain.flush().expect("a flush");
    }
    done.store(true, Ordering::Relaxed);
    let models: Vec<Vec<u8>> = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
    let chain = Arc::into_inner(chain).expect("the only one");
    chain.close().expect("a close");
    assert_sound(&storage, "closed");
    let bytes = contents(&alone(open(storage, false, 0)));
    for (writer, model) in models.iter().enumerate() {
        for (unit, value) in model.iter().enumerate() {
            let at = (unit as u64 / 64 * MIB + (writer as u64 * 64 + unit as u64 % 64) * 4096) as usize;
            assert_eq!(bytes[at..at + 4096], [*value; 4096], "unit {unit} of writer {writer}");
        }
    }
}

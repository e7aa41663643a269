//! Compaction of a disk whose first part is swap space: what is dropped, what stays, and what a power cut leaves.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lunway_compact::{Mode, Plan, Share, drop_dead, estimate};
use lunway_crash::{MemoryStorage, Recorder};
use lunway_vhdx::format::Guid;
use lunway_vhdx::pack::pack;
use lunway_vhdx::{
    Chain, CreateOptions, Disk, DiskKind, Locator, Storage, VhdxOpenOptions, check::check, create,
    divide_blocks, pack_metadata,
};

const MIB: usize = 1 << 20;
/// Swap space of 4 MiB, of which the first page stays.
const SWAP: usize = 4 * MIB;
const SIZE: usize = 12 * MIB;

/// GUIDs that no other opening has had: a log is told from the one before by its GUID.
fn guids() -> Box<dyn lunway_vhdx::format::GuidSource> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Box::new(|| {
        let number = u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
        Guid::from_random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_le_bytes())
    })
}

/// What a guest has written: swap space full of old pages, blocks of data, and of zeroes.
fn guest() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut bytes: Vec<u8> = (0..SIZE).map(|at| (at / 512 * 7 % 251) as u8 + 1).collect();
        bytes[..4096].fill(0);
        bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
        bytes[1024..1032].copy_from_slice(&[1, 0, 0, 0, 0xFF, 3, 0, 0]);
        // A block of zeroes that was written, and one that is zero but for its last byte.
        bytes[6 * MIB..8 * MIB - 1].fill(0);
        bytes
    })
}

/// What must read as before: all but the swap space's old pages.
const LIVES: [Range<usize>; 2] = [0..4096, SWAP..SIZE];

fn lost(now: &[u8], then: &[u8]) -> Option<usize> {
    let mut parts = LIVES.into_iter().filter(|part| now[part.clone()] != then[part.clone()]);
    parts.next().and_then(|mut part| part.find(|at| now[*at] != then[*at]))
}

fn open_disk<S: Storage>(storage: S, writable: bool) -> Disk<S> {
    let options = if writable { VhdxOpenOptions::writable() } else { VhdxOpenOptions::read_only() };
    Disk::open(storage, &options, guids()).unwrap_or_else(|error| panic!("{error}"))
}

fn open<S: Storage>(storage: S, writable: bool) -> Chain<S> {
    Chain::new(vec![open_disk(storage, writable)]).unwrap_or_else(|error| panic!("{error}"))
}

/// A file in blocks of this size that the guest has written.
fn written_in(block: usize) -> MemoryStorage {
    let storage = Arc::new(MemoryStorage::default());
    let mut options = CreateOptions::new(DiskKind::Dynamic, SIZE as u64, Guid::from_digits(5));
    options.parameters.block_size = block as u32;
    create(&storage, &options, guids().as_mut()).expect("a file");
    let chain = open(storage.clone(), true);
    chain.write_at(0, guest()).expect("a write");
    chain.close().expect("a close");
    Arc::into_inner(storage).expect("the only one")
}

fn written() -> MemoryStorage {
    written_in(MIB)
}

fn compact<S: Storage + Clone>(storage: &S, mode: Mode, keep: Option<Range<u64>>) {
    let chain = open(storage.clone(), true);
    let mut plan = Plan::new(&chain);
    plan.keep.extend(keep);
    drop_dead(&chain, &plan, mode, &mut |_| ControlFlow::Continue(())).expect("it is dropped");
    chain.close().expect("a close");
    if mode.moves() {
        pack_metadata(storage, guids().as_mut()).expect("metadata moves");
        let disk = Disk::open(storage.clone(), &VhdxOpenOptions::writable(), guids()).expect("it opens");
        pack(&disk, &mut |_| ControlFlow::Continue(())).expect("blocks move");
        disk.close().expect("a close");
    }
}

fn contents(storage: &Arc<MemoryStorage>) -> Vec<u8> {
    let mut bytes = vec![0xEE; SIZE];
    open(storage.clone(), false).read_at(0, &mut bytes).expect("a read");
    bytes
}

fn assert_lives(storage: &Arc<MemoryStorage>, context: &str) {
    assert!(!check(storage).is_damaged(), "{context}: {:#?}", check(storage).findings);
    assert_eq!(lost(&contents(storage), guest()), None, "{context}");
}

#[test]
fn each_mode_drops_what_it_says_and_leaves_the_length_that_was_estimated() {
    let chain = open(Arc::new(written()), false);
    let plan = Plan::new(&chain);
    assert_eq!(plan.tree.root().kind, Some("swap"));
    let estimates =
        estimate(&chain, &plan, MIB as u32, &mut |_| ControlFlow::Continue(())).expect("an estimate");
    let estimates = estimates.expect("it was not ended");
    // Three blocks of swap space, one of zeroes.
    let blocks: Vec<u64> = estimates.iter().map(|estimate| estimate.blocks).collect();
    assert_eq!(blocks, [4, 4, 3, 3, 1, 0]);
    assert_eq!(estimates[0].punched, MIB as u64 - 4096);
    // All of the disk belongs to the one volume: what lies behind the swap space as well.
    let share = |blocks: usize, punched: usize| Share {
        held: SIZE as u64,
        dropped: (blocks * MIB) as u64,
        punched: punched as u64,
    };
    let shares: Vec<_> = estimates.iter().map(|estimate| estimate.shares.get(&0).copied()).collect();
    let (live, full, quick) = (share(4, MIB - 4096), share(4, 0), share(3, 0));
    assert_eq!(shares, [Some(live), Some(full), Some(quick), Some(quick), None, None]);
    let before = Storage::len(chain.disks()[0].storage()).expect("memory");
    for estimate in estimates {
        let storage = Arc::new(written());
        compact(&storage, estimate.mode, None);
        assert_lives(&storage, &format!("{:?}", estimate.mode));
        let after = Storage::len(&storage).expect("memory");
        assert_eq!(after, estimate.after, "{:?} of {before}", estimate.mode);
        let dropped = contents(&storage)[MIB..SWAP].iter().all(|byte| *byte == 0);
        assert_eq!(dropped, estimate.mode.asks_file_systems(), "{:?}", estimate.mode);
        let part = contents(&storage)[4096..MIB].iter().all(|byte| *byte == 0);
        assert_eq!(part, estimate.mode.punches(), "{:?}", estimate.mode);
    }
}

#[test]
fn what_is_to_be_kept_stays() {
    let storage = Arc::new(written());
    compact(&storage, Mode::Live, Some(0..2 * MIB as u64 + 4096));
    let (now, then) = (contents(&storage), guest());
    assert!(now[..2 * MIB + 4096] == then[..2 * MIB + 4096], "kept");
    assert!(now[2 * MIB + 4096..SWAP].iter().all(|byte| *byte == 0), "and the rest is not");
    assert!(now[SWAP..] == then[SWAP..]);
}

/// Of many states of the medium for one step, every so many are compacted to the end as well: that costs thirty times
/// what looking at one does.
const TAKEN_UP: u64 = 32;

/// How many states of the medium are looked at for each step.
fn states() -> u64 {
    std::env::var("LUNWAY_COMPACT_CRASHES").ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

/// Every moment at which the power may fail, with states of the medium of then, and whether compaction is to be taken
/// up again there; how many that were.
fn power_cuts(recorder: &Recorder, mut look: impl FnMut(Arc<MemoryStorage>, usize, bool)) -> usize {
    let (mut state, mut crashes) = (1u32, 0);
    recorder.each_crash(|crash| {
        for round in 0..states() {
            // Nothing, half, all of what was not flushed; then any share.
            let share = if round < 3 { 50 * round as u32 } else { 37 * round as u32 % 100 };
            let image = crash.image(512, |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % 100 < share
            });
            look(Arc::new(image), crash.done, round < 3 || round % TAKEN_UP == 0);
            crashes += 1;
        }
    });
    crashes
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_that_lives() {
    for block in [MIB, 4 * MIB] {
        let divided = |storage: &Arc<MemoryStorage>| {
            divide_blocks(storage, MIB as u32, guids().as_mut()).expect("smaller blocks");
            compact(storage, Mode::Live, None);
        };
        let recorder = Recorder::new(written_in(block));
        divide_blocks(&recorder, MIB as u32, guids().as_mut()).expect("smaller blocks");
        compact(&recorder, Mode::Live, None);
        let crashes = power_cuts(&recorder, |image, done, taken_up| {
            let context = format!("blocks of {block} after {done} operations");
            assert_lives(&image, &context);
            if !taken_up {
                return;
            }
            // It ends where it would have.
            divided(&image);
            assert_lives(&image, &context);
            assert!(Storage::len(&image).expect("memory") <= 12 * MIB as u64, "{context}");
        });
        assert!(crashes > 60, "{crashes}");
        println!("blocks of {block}: {crashes} power cuts");
    }
}

#[test]
fn divided_blocks_give_up_what_larger_ones_had_to_keep() {
    for block in [4 * MIB, 8 * MIB, 2 * MIB] {
        let storage = Arc::new(written_in(block));
        let chain = open(storage.clone(), false);
        let plan = Plan::new(&chain);
        let estimates = estimate(&chain, &plan, MIB as u32, &mut |_| ControlFlow::Continue(()));
        let estimates = estimates.expect("an estimate").expect("it was not ended");
        drop(chain);
        for estimate in estimates.iter().filter(|estimate| estimate.mode.moves()) {
            let storage = Arc::new((*storage).clone());
            divide_blocks(&storage, MIB as u32, guids().as_mut()).expect("smaller blocks");
            compact(&storage, estimate.mode, None);
            assert_lives(&storage, &format!("{block} {:?}", estimate.mode));
            let after = Storage::len(&storage).expect("memory");
            assert_eq!(after, estimate.after, "{block} {:?}", estimate.mode);
        }
        let whole = Arc::new((*storage).clone());
        compact(&whole, Mode::Live, None);
        assert!(estimates[0].after < Storage::len(&whole).expect("memory"), "{block}");
    }
}

/// A child of a disk as [`guest`] leaves it, in which all was written again, and something else once.
fn child(changed: Range<usize>) -> (Arc<MemoryStorage>, Arc<MemoryStorage>) {
    let (parent, storage) = (Arc::new(written()), Arc::new(MemoryStorage::default()));
    let base = open_disk(parent.clone(), false);
    let mut options = CreateOptions::new(DiskKind::Differencing, SIZE as u64, Guid::from_digits(5));
    options.parameters.block_size = MIB as u32;
    options.parameters.locator = Some(Locator::new(base.data_write_guid(), "parent.vhdx", None));
    create(&storage, &options, guids().as_mut()).expect("a file");
    let chain = Chain::new(vec![open_disk(storage.clone(), true), base]).expect("a chain");
    chain.write_at(0, guest()).expect("a write");
    chain.write_at(changed.start as u64, &vec![0xC4; changed.len()]).expect("a write");
    chain.close().expect("a close");
    (parent, storage)
}

#[test]
fn a_power_cut_while_duplicates_of_the_parent_are_given_up_loses_nothing() {
    let changed = 9 * MIB + 512..9 * MIB + 1024;
    let (parent, storage) = child(changed.clone());
    let mut expected = guest().to_vec();
    expected[changed].fill(0xC4);
    let family = |storage: &Arc<MemoryStorage>, writable| {
        let disks = vec![open_disk(storage.clone(), writable), open_disk(parent.clone(), false)];
        Chain::new(disks).expect("a chain")
    };
    let go_on = &mut |_| ControlFlow::Continue(());
    let recorder = Recorder::new((*storage).clone());
    let base = Recorder::new((*parent).clone());
    let disks = vec![open_disk(recorder.clone(), true), open_disk(base, false)];
    let chain = Chain::new(disks).expect("a chain");
    let dropped = drop_dead(&chain, &Plan::new(&chain), Mode::Live, go_on).expect("dropped");
    assert_eq!(dropped.blocks, 11);
    chain.close().expect("a close");
    let crashes = power_cuts(&recorder, |image, done, taken_up| {
        let context = format!("after {done} operations");
        let lives = || {
            assert!(!check(&image).is_damaged(), "{context}: {:#?}", check(&image).findings);
            let mut bytes = vec![0xEE; SIZE];
            family(&image, false).read_at(0, &mut bytes).expect("a read");
            assert_eq!(lost(&bytes, &expected), None, "{context}");
        };
        lives();
        if !taken_up {
            return;
        }
        let chain = family(&image, true);
        drop_dead(&chain, &Plan::new(&chain), Mode::Live, go_on).expect("dropped");
        chain.close().expect("a close");
        lives();
    });
    assert!(crashes > 20, "{crashes}");
    println!("{crashes} power cuts");
}

#[test]
fn what_the_parent_has_as_well_is_given_up() {
    let changed = 9 * MIB + 512..9 * MIB + 1024;
    let (parent, storage) = child(changed.clone());
    let family = |writable| {
        let disks = vec![open_disk(storage.clone(), writable), open_disk(parent.clone(), false)];
        Chain::new(disks).expect("a chain")
    };
    let chain = family(true);
    let plan = Plan::new(&chain);
    let estimates = estimate(&chain, &plan, MIB as u32, &mut |_| ControlFlow::Continue(()));
    let estimates = estimates.expect("an estimate").expect("it was not ended");
    let dropped = drop_dead(&chain, &plan, Mode::Live, &mut |_| ControlFlow::Continue(())).expect("dropped");
    assert_eq!((dropped.blocks, estimates[0].blocks), (11, 11), "one of twelve blocks differs");
    chain.close().expect("a close");
    assert!(!check(&storage).is_damaged());
    let mut expected = guest().to_vec();
    expected[changed].fill(0xC4);
    let mut bytes = vec![0xEE; SIZE];
    family(false).read_at(0, &mut bytes).expect("a read");
    assert_eq!(lost(&bytes, &expected), None);
}

//! Changes of closed files (size, parent, merge): what they leave, also after a power cut at any step.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::support::*;
use lunway_vhdx::crash::{MemoryStorage, Recorder};
use lunway_vhdx::format::Guid;
use lunway_vhdx::merge::{self, Go, Outcome};
use lunway_vhdx::{
    Chain, DiscardMode, Disk, DiskError, DiskKind, EditError, Item, Locator, Resize, Storage,
    VhdxOpenOptions, divide_blocks, open_file, repair, resize, set_linkage2, set_parent,
};

fn to(size: u64) -> Resize {
    Resize { size, parent_size: None, data_write: None }
}

/// A disk of `size` whose every piece of 64 KiB is written with its number, in blocks of 1 MiB.
fn numbered(kind: DiskKind, size: u64) -> MemoryStorage {
    let storage = Arc::new(memory(&options(kind, size, 1 << 20, 512), 1));
    let chain = alone(open(storage.clone(), true, 2));
    for (number, piece) in (1..).zip(pieces(size)) {
        chain.write_at(piece.0, &vec![number as u8 | 1; piece.1]).expect("a write");
    }
    chain.close().expect("a close");
    Arc::into_inner(storage).expect("the only one")
}

/// Offsets and lengths of pieces of 64 KiB.
fn pieces(size: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..size.div_ceil(65536)).map(move |piece| (piece * 65536, (size - piece * 65536).min(65536) as usize))
}

fn bytes_of(storage: &MemoryStorage) -> Vec<u8> {
    contents(&alone(open(Arc::new(storage.clone()), false, 3)))
}

/// Resizes, and compares with what was there: the same, then zeroes.
fn resized(storage: &MemoryStorage, size: u64, context: &str) {
    let before = bytes_of(storage);
    resize(storage, &to(size), guids(4).as_mut()).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_sound(storage, context);
    let after = bytes_of(storage);
    assert_eq!(after.len() as u64, size, "{context}");
    let same = before.len().min(after.len());
    assert!(after[..same] == before[..same], "{context}: what was there is there");
    assert!(after[same..].iter().all(|byte| *byte == 0), "{context}: what was added is zero");
}

#[test]
fn a_disk_of_another_size_keeps_its_data_and_what_is_added_is_zero() {
    for kind in [DiskKind::Dynamic, DiskKind::Fixed] {
        let storage = numbered(kind, 5 * MIB + 512);
        // Within the last block, whole blocks, back into a block that was full, and over old data again.
        for size in [5 * MIB + 1024, 9 * MIB, 3 * MIB + 4096, 3 * MIB + 8192, 12 * MIB, 512, 4 * MIB] {
            resized(&storage, size, &format!("{kind:?} to {size}"));
        }
    }
}

#[test]
fn a_smaller_disk_gives_its_space_back() {
    for kind in [DiskKind::Dynamic, DiskKind::Fixed] {
        let storage = numbered(kind, 16 * MIB);
        let before = Storage::len(&storage).expect("memory");
        resize(&storage, &to(2 * MIB), guids(4).as_mut()).expect("a smaller disk");
        assert_eq!(Storage::len(&storage).expect("memory"), before - 14 * MIB, "{kind:?}");
        assert_eq!(lunway_vhdx::check::check(&storage).findings, [], "{kind:?}");
    }
}

#[test]
fn a_table_that_does_not_fit_any_more_moves() {
    // 131,072 entries fill 1 MiB: 128 GiB in blocks of 1 MiB.
    let storage = Arc::new(memory(&options(DiskKind::Dynamic, 100 << 30, 1 << 20, 512), 1));
    let chain = alone(open(storage.clone(), true, 2));
    for block in [0u64, 4095, 4096, 50_000, 102_399] {
        chain.write_at(block * MIB, &[block as u8 | 1; 4096]).expect("a write");
    }
    chain.close().expect("a close");
    for size in [200u64 << 30, 64 << 40, 100 << 30] {
        resize(storage.as_ref(), &to(size), guids(4).as_mut()).unwrap_or_else(|error| panic!("{error}"));
        assert_sound(storage.as_ref(), &format!("{size}"));
        let chain = alone(open(storage.clone(), true, 5));
        assert_eq!(chain.size(), size);
        for block in [0u64, 4095, 4096, 50_000, 102_399] {
            let mut data = [0; 4096];
            chain.read_at(block * MIB, &mut data).expect("a read");
            assert_eq!(data, [block as u8 | 1; 4096], "block {block} of {size}");
        }
        chain.write_at(size - 512, &[9; 512]).expect("the last sector");
        chain.close().expect("a close");
    }
}

/// A file on a host that has no room behind its end but for some writes.
struct Full {
    inner: MemoryStorage,
    end: u64,
    writes_left: AtomicU64,
    /// What the host says is free.
    free: Option<u64>,
}

impl Full {
    fn of(inner: &MemoryStorage, writes_left: u64) -> Self {
        let end = Storage::len(inner).expect("memory");
        Self { inner: inner.clone(), end, writes_left: AtomicU64::new(writes_left), free: None }
    }

    /// Counts a write behind the old end.
    fn takes_space(&self, end: u64) -> io::Result<()> {
        let left = |left: u64| left.checked_sub(1);
        match end > self.end && self.writes_left.fetch_update(Relaxed, Relaxed, left).is_err() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl Storage for Full {
    fn len(&self) -> io::Result<u64> {
        Storage::len(&self.inner)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.takes_space(offset + data.len() as u64)?;
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn free(&self) -> io::Result<Option<u64>> {
        Ok(self.free)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.takes_space(offset + len)?;
        self.inner.zero(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.punch(offset, len)
    }
}

/// A resize to 63T (a typo in the unit) filled the store with a table that could not be completed, and nothing gave it
/// back: neighbours' writes failed until somebody compacted the file.
#[test]
fn a_change_that_the_host_has_no_room_for_leaves_the_file_as_long_as_it_was() {
    type Change = fn(&Full) -> Result<(), EditError>;
    let changes: [(&str, Change); 2] = [
        ("a larger disk", |file| resize(file, &to(1 << 40), guids(4).as_mut())),
        ("smaller blocks", |file| divide_blocks(file, 1 << 20, guids(4).as_mut())),
    ];
    let before = memory(&options(DiskKind::Dynamic, 400 << 30, 2 << 20, 512), 1);
    let long = Storage::len(&before).expect("memory");
    for (what, change) in changes {
        let mut steps = 0;
        let done = loop {
            let file = Full::of(&before, steps);
            match change(&file) {
                Ok(()) => break file.inner,
                Err(EditError::Disk(error)) => {
                    let said = error.to_string();
                    assert!(said.contains("table") || said.contains("no space left"), "{what}: {said}");
                }
                Err(error) => panic!("{what}: {error}"),
            }
            let (len, allocated) = (Storage::len(&file.inner).expect("memory"), file.inner.allocated());
            assert_eq!((len, allocated), (long, before.allocated()), "{what}, after {steps} writes");
            assert_eq!(alone(open(file.inner, false, 5)).size(), 400 << 30, "{what}");
            steps += 1;
        };
        assert!(steps > 1, "{what}: {steps} writes");
        assert_sound(&done, what);
    }
    // A fixed disk has all its space, or is no larger.
    let fixed = memory(&options(DiskKind::Fixed, 8 * MIB, 2 << 20, 512), 1);
    let full = Full::of(&fixed, 0);
    let refused = resize(&full, &to(12 * MIB), guids(4).as_mut());
    assert!(matches!(refused, Err(EditError::Disk(DiskError::NoSpace))), "{refused:?}");
    assert_eq!(Storage::len(&full.inner).expect("memory"), full.end);
    // One that tells it is not filled even for a moment.
    let file = Full { free: Some(1 << 20), ..Full::of(&before, 1000) };
    let refused = resize(&file, &to(1 << 40), guids(4).as_mut()).expect_err("no room").to_string();
    let figures = "no space left where the file lies: 5 MiB are needed, and 1 MiB are free";
    assert!(refused.contains(figures), "{refused}");
    assert_eq!(file.writes_left.load(Relaxed), 1000, "it wrote behind the end");
    assert_eq!(Storage::len(&file.inner).expect("memory"), long);
}

#[test]
fn random_sizes_in_a_row_agree_with_an_array() {
    for seed in 0..amount("LUNWAY_VHDX_RESIZE_SEEDS", 12) {
        let mut rng = Random::new(seed);
        let kind = [DiskKind::Dynamic, DiskKind::Fixed][rng.below(2) as usize];
        let storage = Arc::new(memory(&options(kind, 4 * MIB, 1 << 20, 512), seed));
        let mut model = vec![0u8; 4 << 20];
        for step in 0..12 {
            let chain = alone(open(storage.clone(), true, seed ^ step));
            for _ in 0..6 {
                let len = (1 + rng.below(64)).min(model.len() as u64 / 512) * 512;
                let at = rng.below((model.len() as u64 - len) / 512 + 1) * 512;
                match rng.below(4) {
                    0 => {
                        chain.discard(at, len, DiscardMode::Zero).expect("zeroes");
                        model[at as usize..(at + len) as usize].fill(0);
                    }
                    _ => {
                        let value = 1 + rng.below(255) as u8;
                        chain.write_at(at, &vec![value; len as usize]).expect("a write");
                        model[at as usize..(at + len) as usize].fill(value);
                    }
                }
            }
            chain.close().expect("a close");
            let size = (1 + rng.below(8 * 2048)) * 512;
            resize(storage.as_ref(), &to(size), guids(step).as_mut()).expect("another size");
            model.resize(size as usize, 0);
            assert_sound(storage.as_ref(), &format!("seed {seed}, step {step}"));
            assert!(
                contents(&alone(open(storage.clone(), false, 0))) == model,
                "seed {seed}, step {step}: {kind:?} of {size} bytes"
            );
        }
    }
}

#[test]
fn a_power_cut_while_a_disk_is_resized_leaves_the_old_size_or_the_new_one() {
    for kind in [DiskKind::Dynamic, DiskKind::Fixed] {
        for size in [3 * MIB + 512, 6 * MIB + 512, 2 * MIB - 512] {
            let start = numbered(kind, 3 * MIB);
            let before = bytes_of(&start);
            let recorder = Recorder::new(start);
            resize(&recorder, &to(size), guids(4).as_mut()).expect("another size");
            let mut rng = Random::new(7);
            let (mut old, mut new) = (0, 0);
            recorder.each_crash(|crash| {
                for share in [0, 50, 100] {
                    let image = crash.image(512, |_| rng.below(100) < share);
                    let context = format!("{kind:?} to {size} after {} operations", crash.done);
                    assert_sound(&image, &context);
                    let after = bytes_of(&image);
                    match after.len() as u64 {
                        len if len == 3 * MIB => old += 1,
                        len if len == size => new += 1,
                        len => panic!("{context}: {len} bytes"),
                    }
                    let same = before.len().min(after.len());
                    assert!(after[..same] == before[..same], "{context}");
                    assert!(after[same..].iter().all(|byte| *byte == 0), "{context}");
                    // Whatever it is, it can be resized again.
                    resize(&image, &to(5 * MIB), guids(5).as_mut()).expect("another size");
                    assert_sound(&image, &context);
                }
            });
            assert!(old > 3 && new > 3, "{old} {new}");
        }
    }
}

/// A parent of `size` full of ones, and an empty child.
fn family(size: u64, child_size: u64) -> (Arc<MemoryStorage>, MemoryStorage) {
    let parent = Arc::new(numbered(DiskKind::Dynamic, size));
    let child = memory(&child_options(&open(parent.clone(), false, 3), child_size, 1 << 20), 4);
    (parent, child)
}

#[test]
fn a_child_that_grows_does_not_show_its_parent_behind_its_old_end() {
    let (parent, child) = family(8 * MIB, 3 * MIB);
    let child = Arc::new(child);
    let growth = Resize { size: 6 * MIB, parent_size: Some(8 * MIB), data_write: None };
    resize(child.as_ref(), &growth, guids(5).as_mut()).expect("a larger child");
    let chain = Chain::new(vec![open(child, false, 6), open(parent, false, 7)]);
    let bytes = contents(&chain.unwrap_or_else(|error| panic!("{error}")));
    assert!(bytes[..3 << 20].iter().all(|byte| *byte != 0) && bytes[3 << 20..].iter().all(|byte| *byte == 0));

    let (_, child) = family(8 * MIB, 3 * MIB + 512);
    let refused = resize(&child, &growth, guids(5).as_mut()).expect_err("a part of a block");
    assert!(refused.to_string().contains("would show the parent's data"), "{refused}");
    let unknown = resize(&child, &to(6 * MIB), guids(5).as_mut());
    assert!(matches!(unknown, Err(EditError::Refused(_))));
}

#[test]
fn a_power_cut_while_a_parent_is_renamed_leaves_the_old_name_or_the_new_one() {
    let (parent, child) = family(2 * MIB, 2 * MIB);
    let linkage = open(parent.clone(), false, 1).data_write_guid();
    // As long, longer, and so long that the metadata region has to move.
    let mut options = child_options(&open(parent, false, 3), 2 * MIB, 1 << 20);
    let data = vec![7; (1 << 20) - (64 << 10) - 600];
    options.items.push(Item { id: linkage, flags: 1, data: data.clone() });
    let full = memory(&options, 4);
    for (child, name) in
        [(&child, "parant.vhdx"), (&child, "folder\\folder\\parent.vhdx"), (&full, &*"folder\\".repeat(100))]
    {
        let recorder = Recorder::new(child.clone());
        let data_write = open(recorder.clone(), false, 1).data_write_guid();
        set_parent(&recorder, &Locator::new(linkage, name, None), guids(5).as_mut()).expect("another name");
        let mut rng = Random::new(8);
        let mut names = std::collections::BTreeSet::new();
        recorder.each_crash(|crash| {
            for share in [0, 50, 100] {
                let image = crash.image(512, |_| rng.below(100) < share);
                assert_sound(&image, name);
                let disk = open(image, false, 1);
                assert_eq!(disk.data_write_guid(), data_write, "children of the child still know it");
                let items = disk.items().unwrap_or_else(|error| panic!("{error}"));
                assert!(std::ptr::eq(child, &full) == items.iter().any(|item| item.data == data));
                let locator = disk.parameters().locator.clone().expect("a parent");
                names.insert(locator.get(Locator::RELATIVE).expect("a path").to_owned());
            }
        });
        assert_eq!(names.into_iter().collect::<Vec<_>>(), sorted(["parent.vhdx", name]));
    }
    let endless = Locator::new(linkage, &"x".repeat(40_000), None);
    let refused = set_parent(&child, &endless, guids(5).as_mut()).expect_err("a path of 80,000 bytes");
    assert!(refused.to_string().contains("longer than"), "{refused}");
}

fn sorted(names: [&str; 2]) -> Vec<String> {
    let mut names = names.map(str::to_owned).to_vec();
    names.sort();
    names
}

#[test]
fn a_power_cut_while_a_child_is_merged_leaves_a_chain_that_shows_the_same() {
    let (parent, child) = family(4 * MIB, 4 * MIB);
    let child = Arc::new(child);
    let chain = Chain::new(vec![open(child.clone(), true, 5), open(parent.clone(), false, 6)]);
    let chain = chain.unwrap_or_else(|error| panic!("{error}"));
    chain.write_at(4096, &[200; 8192]).expect("a write");
    chain.write_at(MIB + 512, &[201; 512]).expect("a write");
    chain.discard(2 * MIB, MIB, DiscardMode::Zero).expect("zeroes");
    chain.write_at(3 * MIB, &vec![202; MIB as usize]).expect("a write");
    let shown = contents(&chain);
    chain.close().expect("a close");

    let next = Guid::from_digits(0x77777777_1111_4222_8333_444444444444);
    set_linkage2(child.as_ref(), next, guids(6).as_mut()).expect("the next linkage");
    let recorder = Recorder::new((*parent).clone());
    {
        let writing = VhdxOpenOptions { data_write: Some(next), ..VhdxOpenOptions::writable() };
        let upper =
            Chain::upper(vec![open(child.clone(), false, 7)]).unwrap_or_else(|error| panic!("{error}"));
        let base =
            alone(Disk::open(recorder.clone(), &writing, guids(8)).unwrap_or_else(|error| panic!("{error}")));
        let go = merge::copy(&upper, &base, &mut |_| Go::On).expect("a merge");
        assert_eq!(go, Go::On);
        base.close().expect("a close");
    }
    let mut rng = Random::new(9);
    recorder.each_crash(|crash| {
        for share in [0, 30, 70, 100] {
            let image = crash.image(512, |_| rng.below(100) < share);
            let context = format!("after {} operations", crash.done);
            assert_sound(&image, &context);
            let child = open(child.clone(), false, 7);
            let chain = Chain::new(vec![child, open(Arc::new(image), false, 8)]);
            let chain = chain.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(contents(&chain) == shown, "{context}");
        }
    });
    assert!(bytes_of(recorder.now()) == shown, "the parent shows it alone");
}

/// Files of a chain in a folder: `count` of them, each with some data; returns their names, the base first, and what
/// the top shows.
fn files(folder: &std::path::Path, sizes: &[u64], seed: u64) -> (Vec<std::path::PathBuf>, Vec<u8>) {
    let mut rng = Random::new(seed);
    let mut paths: Vec<std::path::PathBuf> = Vec::new();
    let mut shown = Vec::new();
    for (level, size) in sizes.iter().enumerate() {
        let path = folder.join(format!("{level}.vhdx"));
        let file =
            std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        let mut options = options(DiskKind::Dynamic, *size, 1 << 20, 512);
        if let Some(parent) = paths.last() {
            let parent_disk =
                open(open_file(parent, false).unwrap_or_else(|error| panic!("{error}")), false, 1);
            options = child_options(&parent_disk, *size, 1 << 20);
            let name = parent.file_name().and_then(|name| name.to_str()).expect("a name");
            options.parameters.locator = Some(Locator::new(parent_disk.data_write_guid(), name, None));
        }
        make(&file, &options, seed ^ level as u64);
        drop(file);
        shown.resize(*size as usize, 0);
        let chain = whole(folder, &path, true);
        for _ in 0..12 {
            let at = rng.below(size / 512 - 64) * 512;
            let len = (1 + rng.below(64)) as usize * 512;
            let value = 1 + rng.below(255) as u8;
            let range = at as usize..at as usize + len;
            if rng.below(4) == 0 {
                chain.discard(at, len as u64, DiscardMode::Zero).expect("zeroes");
                shown[range].fill(0);
            } else {
                chain.write_at(at, &vec![value; len]).expect("a write");
                shown[range].fill(value);
            }
        }
        chain.close().expect("a close");
        paths.push(path);
    }
    (paths, shown)
}

fn whole(folder: &std::path::Path, path: &std::path::Path, writable: bool) -> Chain<std::fs::File> {
    let options = if writable { VhdxOpenOptions::writable() } else { VhdxOpenOptions::read_only() };
    Chain::open_files(path, folder, &options, || guids(3)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn merging_several_levels_shows_the_same_however_often_it_is_interrupted() {
    for (seed, sizes) in [(1, [4, 4, 4, 4]), (2, [2, 3, 4, 6]), (3, [6, 4, 4, 2]), (4, [4, 6, 2, 5])] {
        for level in 0..3 {
            let folder = tempfile::tempdir().expect("a folder");
            let (paths, shown) = files(folder.path(), &sizes.map(|mib| mib * MIB), seed);
            let mut rng = Random::new(seed);
            let (mut rounds, mut guid) = (0, 0);
            loop {
                let mut left = if rounds < 3 { 1 + rng.below(4) } else { u64::MAX };
                let outcome = merge::merge_files(
                    &paths[3],
                    &paths[level],
                    folder.path(),
                    true,
                    |_| Ok(()),
                    || {
                        guid += 1;
                        guids(seed * 1000 + guid)
                    },
                    &mut |_| {
                        left = left.saturating_sub(1);
                        if left == 0 { Go::Stop } else { Go::On }
                    },
                );
                let outcome = outcome.unwrap_or_else(|error| panic!("seed {seed}, level {level}: {error}"));
                assert!(
                    contents(&whole(folder.path(), &paths[3], false)) == shown,
                    "the chain, round {rounds}"
                );
                match outcome {
                    Outcome::Stopped => rounds += 1,
                    Outcome::Merged(files) => {
                        let expected: Vec<_> = paths[level + 1..].iter().rev().cloned().collect();
                        assert_eq!(files, expected);
                        break;
                    }
                }
            }
            assert!(
                contents(&whole(folder.path(), &paths[level], false)) == shown,
                "the base, level {level}"
            );
            assert_eq!(merge::children(&paths[level]).unwrap_or_default(), [paths[level + 1].clone()]);
        }
    }
}

/// A snapshot that was just taken holds nothing, and its merge writes nothing: the base keeps its DataWriteGuid.
#[test]
fn merging_files_that_hold_nothing_leaves_a_chain_that_can_be_opened() {
    for empty in [[false, true], [true, false], [true, true]] {
        for stops in 0..4 {
            let folder = tempfile::tempdir().expect("a folder");
            let (mut paths, shown) = files(folder.path(), &[4 * MIB], 7);
            let mut shown = shown;
            for (level, empty) in (1u8..).zip(empty) {
                let parent = open(open_file(&paths[0], false).expect("a parent"), false, 1);
                let name = paths[0].file_name().and_then(|name| name.to_str()).expect("a name");
                let mut options = child_options(&parent, 4 * MIB, 1 << 20);
                options.parameters.locator = Some(Locator::new(parent.data_write_guid(), name, None));
                drop(parent);
                let path = folder.path().join(format!("{level}.vhdx"));
                let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
                make(&file.expect("a file"), &options, level.into());
                if !empty {
                    let chain = whole(folder.path(), &path, true);
                    chain.write_at(MIB, &[level; 512]).expect("a write");
                    chain.close().expect("a close");
                    shown[MIB as usize..][..512].fill(level);
                }
                paths.insert(0, path);
            }
            let mut guid = 0;
            let mut merge = |left: &mut u64| {
                let mut next = || {
                    guid += 1;
                    guids(1000 + guid)
                };
                let outcome = merge::merge_files(
                    &paths[0],
                    &paths[2],
                    folder.path(),
                    true,
                    |_| Ok(()),
                    &mut next,
                    &mut |_| {
                        *left = left.saturating_sub(1);
                        if *left == 0 { Go::Stop } else { Go::On }
                    },
                );
                outcome.unwrap_or_else(|error| panic!("{empty:?}, {stops}: {error}"))
            };
            let is_stopped = stops > 0 && merge(&mut { stops }) == Outcome::Stopped;
            assert!(contents(&whole(folder.path(), &paths[0], false)) == shown, "{empty:?}, {stops}");
            if is_stopped || stops == 0 {
                assert!(matches!(merge(&mut { u64::MAX }), Outcome::Merged(files) if files.len() == 2));
            }
            for path in &paths {
                assert!(
                    contents(&whole(folder.path(), path, false)) == shown,
                    "{empty:?}, {}",
                    path.display()
                );
            }
        }
    }
}

/// Changes an entry of the block table, whose region begins at 3 MiB in these files.
fn spoil_entry(storage: &MemoryStorage, index: u64, change: impl Fn(u64) -> u64) {
    let mut bytes = [0; 8];
    storage.read_at(3 * MIB + index * 8, &mut bytes).expect("memory");
    storage.write_at(3 * MIB + index * 8, &change(u64::from_le_bytes(bytes)).to_le_bytes()).expect("memory");
}

/// Damages a file.
type Spoil = fn(&MemoryStorage);

#[test]
fn a_repair_mends_what_is_certain_and_changes_no_data() {
    let spoils: [(&str, Spoil); 6] = [
        ("a header", |file| file.write_at(64 << 10, &[1; 4096]).expect("memory")),
        ("the other header", |file| file.write_at(128 << 10, &[1; 4096]).expect("memory")),
        ("a region table", |file| file.write_at(256 << 10, &[1; 4096]).expect("memory")),
        ("an entry with an offset and no data", |file| spoil_entry(file, 7, |_| 42 << 20)),
        ("a partial block without a parent", |file| spoil_entry(file, 1, |entry| entry | 7)),
        ("a file that is too short", |file| {
            let len = Storage::len(file).expect("memory");
            file.set_len(len - 4096).expect("memory");
        }),
    ];
    for (what, spoil) in spoils {
        let file = memory(&options(DiskKind::Dynamic, 8 * MIB, 1 << 20, 512), 1);
        let shared = Arc::new(file);
        let chain = alone(open(shared.clone(), true, 2));
        for block in 0..4 {
            chain.write_at(block * MIB, &vec![block as u8 + 1; MIB as usize - 8192]).expect("a write");
        }
        chain.close().expect("a close");
        let before = bytes_of(&shared);
        spoil(&shared);
        assert_ne!(lunway_vhdx::check::check(shared.as_ref()).findings, [], "{what} is found");
        let recorder = Recorder::new((*shared).clone());
        let repairs = repair(&recorder, guids(4).as_mut()).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!repairs.is_empty(), "{what}");
        assert_eq!(lunway_vhdx::check::check(recorder.now()).findings, [], "{what} is mended");
        assert!(bytes_of(recorder.now()) == before, "{what}: the data are what they were");
        assert!(repair(&recorder, guids(5).as_mut()).expect("a repair").is_empty(), "{what}: once is enough");
        let mut rng = Random::new(3);
        recorder.each_crash(|crash| {
            for share in [0, 50, 100] {
                let image = crash.image(512, |_| rng.below(100) < share);
                // Until it has its length again it is known to have lost something.
                if what == "a file that is too short" && lunway_vhdx::check::check(&image).counts.lost == 4096
                {
                    continue;
                }
                assert_sound(&image, what);
                assert!(bytes_of(&image) == before, "{what}, after {} operations", crash.done);
            }
        });
    }
}

#[test]
fn what_no_rule_decides_is_not_repaired() {
    for (what, index, entry) in [("a reserved state", 0, 4u64), ("two blocks in one place", 1, (4 << 20) | 6)]
    {
        let file = numbered(DiskKind::Dynamic, 4 * MIB);
        spoil_entry(&file, index, |_| entry);
        let before = file.to_bytes();
        let refused = repair(&file, guids(4).as_mut()).expect_err(what);
        assert!(matches!(refused, EditError::Open(_)), "{what}: {refused}");
        assert!(file.to_bytes() == before, "{what}: the file is as it was");
    }
}

#[test]
fn files_that_are_merged_are_locked_until_they_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (paths, shown) = files(folder.path(), &[4 * MIB, 4 * MIB, 4 * MIB], 9);
    let mut asked = false;
    let outcome =
        merge::merge_files(&paths[2], &paths[0], folder.path(), false, |_| Ok(()), || guids(7), &mut |_| {
            for path in paths.iter().filter(|_| !asked) {
                let locked = open_file(path, true).expect_err("locked").to_string();
                assert!(locked.contains("in use"), "{locked}");
            }
            asked = true;
            Go::On
        });
    assert!(asked);
    let merged = outcome.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(merged, Outcome::Merged(vec![paths[2].clone(), paths[1].clone()]));
    assert!(!paths[1].exists() && !paths[2].exists());
    assert!(contents(&whole(folder.path(), &paths[0], false)) == shown);
}

/// A child in blocks of 4 MiB on a parent that is full: blocks of every state, and one of which sectors are there.
fn patched(size: u64) -> (Arc<MemoryStorage>, MemoryStorage) {
    let parent = Arc::new(numbered(DiskKind::Dynamic, size));
    let base = open(parent.clone(), false, 6);
    let storage = Arc::new(memory(&child_options(&base, size, 4 << 20), 7));
    let chain = Chain::new(vec![open(storage.clone(), true, 8), base]).expect("a chain");
    chain.write_at(0, &vec![0xA1; 4 * MIB as usize]).expect("a write");
    chain.write_at(5 * MIB + 512, &[0xA2; 1024]).expect("a write");
    chain.discard(8 * MIB, 4 * MIB, DiscardMode::Zero).expect("zeroes");
    chain.write_at(16 * MIB - 512, &[0xA3; 4096]).expect("a write");
    chain.close().expect("a close");
    (parent, Arc::into_inner(storage).expect("the only one"))
}

fn family_bytes(parent: &Arc<MemoryStorage>, child: &MemoryStorage) -> Vec<u8> {
    let disks = vec![open(Arc::new(child.clone()), false, 9), open(parent.clone(), false, 10)];
    contents(&Chain::new(disks).expect("a chain"))
}

#[test]
fn smaller_blocks_hold_the_same_and_empty_ones_are_the_parents() {
    let size = 21 * MIB + 512;
    let (parent, child) = patched(size);
    let before = family_bytes(&parent, &child);
    for block in [2 * MIB, MIB] {
        divide_blocks(&child, block as u32, guids(11).as_mut()).expect("smaller blocks");
        assert_eq!(lunway_vhdx::check::check(&child).findings, [], "{block}");
        assert!(family_bytes(&parent, &child) == before, "{block}");
    }
    let disk = open(Arc::new(child.clone()), false, 12);
    let counts = disk.counts();
    assert_eq!((counts.present, counts.partial, counts.zero), (4, 3, 4), "{counts:?}");
    drop(disk);
    // It is a disk like any other: written, and unmapped.
    let storage = Arc::new(child);
    let chain = Chain::new(vec![open(storage.clone(), true, 13), open(parent.clone(), false, 14)]);
    let chain = chain.expect("a chain");
    chain.write_at(6 * MIB, &vec![0xA4; 4 * MIB as usize]).expect("a write");
    chain.close().expect("a close");
    let mut expected = before;
    expected[6 * MIB as usize..10 * MIB as usize].fill(0xA4);
    assert!(family_bytes(&parent, &storage) == expected);

    for (storage, block, says) in [
        (numbered(DiskKind::Fixed, 4 * MIB), 1 << 20, "has all its blocks"),
        (numbered(DiskKind::Dynamic, 4 * MIB), 2 << 20, "do not become larger"),
        (numbered(DiskKind::Dynamic, 4 * MIB), 1 << 19, "a power of two"),
    ] {
        match divide_blocks(&storage, block, guids(15).as_mut()) {
            Err(EditError::Refused(why)) => assert!(why.contains(says), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_power_cut_while_blocks_are_divided_leaves_the_old_ones_or_the_new_ones() {
    let (parent, child) = patched(20 * MIB);
    let before = family_bytes(&parent, &child);
    let recorder = Recorder::new(child);
    divide_blocks(&recorder, 1 << 20, guids(11).as_mut()).expect("smaller blocks");
    let mut rng = Random::new(7);
    let (mut old, mut new) = (0, 0);
    recorder.each_crash(|crash| {
        for share in [0, 50, 100] {
            let image = crash.image(512, |_| rng.below(100) < share);
            let context = format!("after {} operations", crash.done);
            assert_sound(&image, &context);
            assert!(family_bytes(&parent, &image) == before, "{context}");
            match open(Arc::new(image.clone()), false, 12).parameters().block_size {
                0x40_0000 => old += 1,
                0x10_0000 => new += 1,
                other => panic!("{context}: blocks of {other}"),
            }
            divide_blocks(&image, 1 << 20, guids(16).as_mut()).expect("smaller blocks");
            assert_sound(&image, &context);
            assert!(family_bytes(&parent, &image) == before, "{context}");
        }
    });
    assert!(old > 3 && new > 3, "{old} {new}");
}

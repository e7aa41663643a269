//! Power cuts while commits of hundreds of pages go around the log: at every moment the log has an active sequence, and
//! it gives every sector that a flush has acknowledged. A log that has none is a disk that does not open.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::support::*;
use lunway_vhdx::crash::{Crash, MemoryStorage, Op, Recorder};
use lunway_vhdx::{Chain, DiscardMode, Disk, DiskKind};

const SECTOR: u64 = 512;
const PAGE: u64 = 4096;

/// Where new files have their log.
const LOG: Range<u64> = MIB..2 * MIB;

/// What a page of a sector bitmap describes: 32,768 sectors of 512 bytes. One sector written in each of `n` such areas
/// is a commit of `n` pages, and a few of the table.
const AREA: u64 = 16 * MIB;

/// A differencing disk with sectors written far from each other, and what each of them may hold at any time.
///
/// The parent holds ones in the sectors that [`Wide::place`] names, zeroes elsewhere.
struct Wide {
    recorder: Recorder,
    parent: Arc<MemoryStorage>,
    chain: Option<Chain<Recorder>>,
    areas: u64,
    /// Of each sector that was changed, by its offset: operations before the change, and its fill byte.
    values: BTreeMap<u64, Vec<(usize, u8)>>,
    /// Flushes: operations when each was asked for, and when it was acknowledged.
    flushes: Vec<(usize, usize)>,
    opened: u64,
}

impl Wide {
    fn new(areas: u64) -> Self {
        let size = areas * AREA;
        let parent = Arc::new(memory(&options(DiskKind::Dynamic, size, 1 << 20, 512), 1));
        let chain = alone(open(parent.clone(), true, 2));
        for area in 0..areas {
            for number in 0..3 {
                chain.write_at(Self::place(area, number), &[1; SECTOR as usize]).expect("a write");
            }
        }
        chain.close().expect("a close");
        let child = memory(&child_options(&open(parent.clone(), false, 3), size, 1 << 20), 4);
        let recorder = Recorder::new(child);
        let values = (0..areas)
            .flat_map(|area| (0..3).map(move |number| (Self::place(area, number), vec![(0, 1)])))
            .collect();
        let mut disk =
            Self { recorder, parent, chain: None, areas, values, flushes: vec![(0, 0)], opened: 0 };
        disk.open();
        disk
    }

    /// Sectors of an area: two of one block, and one of another.
    fn place(area: u64, number: u64) -> u64 {
        area * AREA + [0, 8 * SECTOR, 5 * MIB][number as usize % 3]
    }

    fn open(&mut self) {
        self.opened += 1;
        self.chain = Some(self.chain_on(self.recorder.clone(), true, 10 + self.opened));
    }

    fn chain_on(&self, leaf: Recorder, writable: bool, seed: u64) -> Chain<Recorder> {
        let parent = open(Recorder::new((*self.parent).clone()), false, 0);
        Chain::new(vec![open(leaf, writable, seed), parent]).unwrap_or_else(|error| panic!("{error}"))
    }

    fn chain(&self) -> &Chain<Recorder> {
        self.chain.as_ref().expect("open")
    }

    fn write(&mut self, at: u64, value: u8) {
        let began = self.recorder.count();
        self.chain().write_at(at, &[value; SECTOR as usize]).expect("a write");
        self.values.get_mut(&at).expect("a sector of the test").push((began, value));
    }

    /// Zeroes the block of a sector.
    fn zero_block(&mut self, at: u64) {
        let block = at / MIB * MIB;
        let began = self.recorder.count();
        self.chain().discard(block, MIB, DiscardMode::Zero).expect("a discard");
        for (_, values) in self.values.range_mut(block..block + MIB) {
            values.push((began, 0));
        }
    }

    fn flush(&mut self) {
        let called = self.recorder.count();
        self.chain().flush().expect("a flush");
        self.flushes.push((called, self.recorder.count()));
    }

    fn close(&mut self) {
        self.flush();
        self.chain.take().expect("open").close().expect("a close");
    }

    fn allowed(&self, values: &[(usize, u8)], done: usize) -> Vec<u8> {
        let flush = self.flushes.iter().rev().find(|(_, acknowledged)| *acknowledged <= done);
        let (called, _) = flush.copied().unwrap_or_default();
        // What came last before the flush, and all since.
        let floor = values.iter().rposition(|(began, _)| *began < called).unwrap_or(0);
        let since = values[floor..].iter().enumerate();
        since
            .filter(|(number, (began, _))| *number == 0 || *began <= done)
            .map(|(_, (_, value))| *value)
            .collect()
    }

    /// Opens an image as a crash left it, and compares every sector of the test.
    fn verify(&self, image: MemoryStorage, done: usize, context: &str) {
        assert_sound(&image, context);
        let leaf = Disk::open(Recorder::new(image), &lunway_vhdx::VhdxOpenOptions::writable(), guids(9));
        let leaf = leaf.unwrap_or_else(|error| panic!("{context}: {error}"));
        let parent = open(Recorder::new((*self.parent).clone()), false, 0);
        let chain = Chain::new(vec![leaf, parent]).unwrap_or_else(|error| panic!("{context}: {error}"));
        for (at, values) in &self.values {
            let mut data = [0xEE; SECTOR as usize];
            chain.read_at(*at, &mut data).unwrap_or_else(|error| panic!("{context}: {error}"));
            let allowed = self.allowed(values, done);
            assert!(
                data == [data[0]; SECTOR as usize] && allowed.contains(&data[0]),
                "{context}: the sector at {at} holds {}, allowed are {allowed:?}",
                data[0]
            );
        }
        // It goes on from there, and its replayed log is empty.
        chain.write_at(0, &[77; SECTOR as usize]).unwrap_or_else(|error| panic!("{context}: {error}"));
        chain.flush().unwrap_or_else(|error| panic!("{context}: {error}"));
    }

    /// Whether a power cut at this moment meets the log half written.
    fn is_logging(crash: &Crash<'_>) -> bool {
        crash.pending().iter().any(|op| matches!(op, Op::Write(at, _) if LOG.contains(at)))
    }

    /// Every moment at which log entries are not durable, torn at `tears` places in each of four ways and `samples`
    /// times at random; of the others one in `one_in`.
    fn verify_all(&self, from: usize, tears: usize, samples: u64, one_in: u64, seed: u64) -> u64 {
        let mut rng = Random::new(seed);
        let mut images = 0;
        self.recorder.each_crash(|crash| {
            let (done, units) = (crash.done, crash.units(PAGE));
            let logging = Self::is_logging(crash);
            if done < from || (!logging && rng.below(one_in) != 0) {
                return;
            }
            let mut try_one = |what: &str, unit: u64, kept: &mut dyn FnMut(usize) -> bool| {
                images += 1;
                let context = format!("seed {seed}, after {done} operations, {what} of {units} pieces");
                self.verify(crash.image(unit, kept), done, &context);
            };
            try_one("all", PAGE, &mut |_| true);
            try_one("none", PAGE, &mut |_| false);
            if logging {
                let step = units.div_ceil(tears.max(1)).max(1);
                for at in (0..units).step_by(step) {
                    try_one(&format!("the first {at}"), PAGE, &mut |number| number < at);
                    try_one(&format!("all from {at} on"), PAGE, &mut |number| number >= at);
                    try_one(&format!("all but {at}"), PAGE, &mut |number| number != at);
                    try_one(&format!("{at} alone"), PAGE, &mut |number| number == at);
                }
            }
            for sample in 0..samples {
                let unit = if sample % 2 == 0 { SECTOR } else { PAGE };
                let share = [3, 50, 90, 99][rng.below(4) as usize];
                let mut decide = rng.clone();
                rng.next();
                try_one(&format!("{share} % in pieces of {unit}"), unit, &mut |_| decide.below(100) < share);
            }
        });
        images
    }
}

/// Two commits of which the second goes around the end of the log onto the first one's: the first one is the newest
/// that is durable until the second is, and must stay whole.
#[test]
fn an_entry_that_goes_around_leaves_those_that_a_crash_needs_without_it() {
    let mut disk = Wide::new(220);
    for area in 0..220 {
        disk.write(Wide::place(area, 0), 10);
    }
    disk.flush();
    let before = disk.recorder.count();
    for area in 0..40 {
        disk.write(Wide::place(area, 1), 11);
    }
    disk.flush();
    let images = disk.verify_all(before, usize::MAX, 8, 40, 1);
    println!("{images} images");
    assert!(images > 150, "{images} images");
}

/// One commit that is longer than the log.
#[test]
fn a_commit_longer_than_the_log_survives_every_power_cut() {
    let mut disk = Wide::new(600);
    for area in 0..600 {
        disk.write(Wide::place(area, 0), 10);
    }
    disk.flush();
    let before = disk.recorder.count();
    for area in 0..600 {
        disk.write(Wide::place(area, 2), 11);
    }
    disk.flush();
    let images = disk.verify_all(before, 16, 4, 100, 2);
    println!("{images} images");
    assert!(images > 100, "{images} images");
}

#[test]
fn random_workloads_of_many_pages_survive_sampled_power_cuts() {
    let seeds = amount("LUNWAY_VHDX_CRASH_SEEDS", 1);
    let first = amount("LUNWAY_VHDX_CRASH_FIRST_SEED", 0);
    let mut images = 0;
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut rng = Random::new(seed);
        let mut disk = Wide::new(360);
        for step in 0..8u8 {
            for _ in 0..[10, 60, 150, 300, 500][rng.below(5) as usize] {
                let at = Wide::place(rng.below(disk.areas), rng.below(3));
                match rng.below(40) {
                    0 => disk.zero_block(at),
                    _ => disk.write(at, 20 + step),
                }
            }
            match rng.below(8) {
                0 => {
                    disk.close();
                    disk.open();
                }
                1 => {
                    disk.flush();
                    disk.chain().disks()[0].cut().expect("a cut");
                }
                _ => disk.flush(),
            }
        }
        disk.close();
        images += disk.verify_all(0, 8, 4, 40, seed);
    }
    println!("{images} images");
}

/// The same of a table: one block in each of its pages.
#[test]
fn table_pages_that_fill_the_log_survive_every_power_cut() {
    let size = 64 << 30;
    let recorder = Recorder::new(memory(&options(DiskKind::Dynamic, size, 1 << 20, 512), 1));
    let chain = alone(open(recorder.clone(), true, 2));
    let offsets: Vec<u64> = (0..120).map(|page| page * 512 * MIB).collect();
    let mut acknowledged = Vec::new();
    for round in 0..4u64 {
        for offset in &offsets {
            chain.write_at(offset + round * MIB, &[round as u8 + 1; 512]).expect("a write");
        }
        chain.flush().expect("a flush");
        acknowledged.push(recorder.count());
    }
    let (mut rng, mut images) = (Random::new(5), 0);
    recorder.each_crash(|crash| {
        let logging = Wide::is_logging(crash);
        if !logging && rng.below(8) != 0 {
            return;
        }
        // While log entries are pending each tearing is one that a disk could have been lost by.
        for sample in 0..if logging { 12 } else { 1 } {
            let share = [50, 3, 97, 100][sample % 4];
            let mut decide = rng.clone();
            rng.next();
            let image = Arc::new(crash.image(512, |_| decide.below(100) < share));
            images += 1;
            assert_sound(image.as_ref(), &format!("after {} operations", crash.done));
            let chain = alone(open(image, true, 3));
            for (round, _) in (0u64..).zip(acknowledged.iter().filter(|at| **at <= crash.done)) {
                for offset in &offsets {
                    let mut data = [0; 512];
                    chain.read_at(offset + round * MIB, &mut data).expect("a read");
                    let context = format!("round {round} at {offset}, {} operations", crash.done);
                    assert_eq!(data, [round as u8 + 1; 512], "{context}");
                }
            }
        }
    });
    println!("{images} images");
    assert!(images > 100, "{images} images");
}

#[test]
fn a_commit_of_many_entries_leaves_no_partial_block_without_its_bitmap() {
    // One sector in each of 130 chunks: 130 bitmap blocks, and more pages than an entry holds.
    let size = 600 << 30;
    let parent = Arc::new(memory(&options(DiskKind::Dynamic, size, 1 << 20, 512), 1));
    let child = child_options(&open(parent.clone(), false, 2), size, 1 << 20);
    let recorder = Recorder::new(memory(&child, 3));
    let parent = Recorder::new((*parent).clone());
    let chain = Chain::new(vec![open(recorder.clone(), true, 4), open(parent.clone(), false, 5)]);
    let chain = chain.unwrap_or_else(|error| panic!("{error}"));
    let offsets: Vec<u64> = (0..130).map(|chunk| (chunk * 4096 + 7) * MIB).collect();
    for offset in &offsets {
        chain.write_at(*offset, &[5; 512]).expect("a write");
    }
    let before = recorder.count();
    chain.flush().expect("a flush");
    let (mut rng, mut images) = (Random::new(1), 0);
    recorder.each_crash(|crash| {
        // All moments while the log is written, some while its pages are put in place.
        let sampled = Wide::is_logging(crash) || rng.below(8) == 0 || crash.done == recorder.count();
        if crash.done < before || !sampled {
            return;
        }
        for share in [0, 50, 97, 100] {
            let mut decide = rng.clone();
            let image = Arc::new(crash.image(4096, |_| decide.below(100) < share));
            let context = format!("after {} operations, {share} % kept", crash.done);
            assert_sound(image.as_ref(), &context);
            images += 1;
            if crash.done == recorder.count() {
                let image = Recorder::new((*image).clone());
                let chain = Chain::new(vec![open(image, true, 6), open(parent.clone(), false, 7)]);
                let chain = chain.unwrap_or_else(|error| panic!("{context}: {error}"));
                for offset in &offsets {
                    let mut data = [0; 512];
                    chain.read_at(*offset, &mut data).expect("a read");
                    assert_eq!(data, [5; 512], "{context}");
                }
            }
        }
    });
    println!("{images} images");
    assert!(images > 50, "{images} images");
}

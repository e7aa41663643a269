//! Random operations on chains against a flat array of bytes.

use crate::support::*;
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::{
    Chain, DiscardMode, Disk, DiskKind, EditError, Resize, SegmentSource, VhdxOpenOptions, resize,
};

type Storage = std::sync::Arc<MemoryStorage>;

/// A disk, what it holds, and its parents' files.
struct Model {
    files: Vec<Storage>,
    chain: Option<Chain<Storage>>,
    bytes: Vec<u8>,
    /// A sector that nothing was ever written to, in no file of the chain.
    touched: Vec<bool>,
    rng: Random,
    sector: usize,
    block: u32,
    /// How many requests there are to a large one.
    large_one_in: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rng = Random::new(seed);
        let sector = if rng.below(2) == 0 { 512 } else { 4096 };
        let block = 1u32 << (20 + rng.below(2));
        // Not a multiple of a block, so that the last one is cut.
        let size = 5 * MIB + 3 * sector as u64;
        let kind = if rng.below(6) == 0 { DiskKind::Fixed } else { DiskKind::Dynamic };
        let file = Storage::new(memory(&options(kind, size, block, sector as u32), seed));
        let mut model = Self {
            files: vec![file],
            chain: None,
            bytes: vec![0; size as usize],
            touched: vec![kind == DiskKind::Fixed; size as usize / sector],
            rng,
            sector,
            block,
            large_one_in: amount("LUNWAY_VHDX_MODEL_LARGE_ONE_IN", 3),
        };
        model.reopen();
        model
    }

    fn chain(&self) -> &Chain<Storage> {
        self.chain.as_ref().expect("open")
    }

    fn reopen(&mut self) {
        self.chain = None;
        let last = self.files.len() - 1;
        // Few cached pages, so that some are evicted and read again.
        let cached_pages = 64;
        let disks = self.files.iter().enumerate().rev().map(|(level, file)| {
            let options =
                VhdxOpenOptions { read_only: level != last, cached_pages, ..VhdxOpenOptions::writable() };
            Disk::open(file.clone(), &options, guids(self.rng.next()))
                .unwrap_or_else(|error| panic!("{error}"))
        });
        let disks: Vec<_> = disks.collect();
        self.chain = Some(Chain::new(disks).unwrap_or_else(|error| panic!("{error}")));
    }

    fn range(&mut self) -> (usize, usize) {
        let sectors = (self.bytes.len() / self.sector) as u64;
        let first = self.rng.below(sectors);
        let most = match self.rng.below(self.large_one_in) {
            0 if self.rng.below(2) == 0 => sectors,
            0 => sectors / 4 + 1,
            odd if odd % 2 == 1 => 1,
            _ => 16,
        };
        let count = 1 + self.rng.below(most.min(sectors - first));
        // Often whole blocks.
        if self.rng.below(self.large_one_in) == 0 {
            let block = self.block as usize;
            let start = first as usize * self.sector / block * block;
            return (start, block.min(self.bytes.len() - start));
        }
        (first as usize * self.sector, count as usize * self.sector)
    }

    fn step(&mut self) {
        let (offset, len) = self.range();
        let sectors = offset / self.sector..(offset + len) / self.sector;
        match self.rng.below(100) {
            0..35 => {
                let data: Vec<u8> = match self.rng.below(8) {
                    0 => vec![0; len],
                    _ => {
                        let mut data = Vec::with_capacity(len + 8);
                        while data.len() < len {
                            data.extend_from_slice(&self.rng.next().to_le_bytes());
                        }
                        data.truncate(len);
                        data
                    }
                };
                self.chain().write_at(offset as u64, &data).expect("a write");
                self.bytes[offset..offset + len].copy_from_slice(&data);
                self.touched[sectors].fill(true);
            }
            35..60 => {
                let mut data = vec![0xEE; len];
                self.chain().read_at(offset as u64, &mut data).expect("a read");
                assert!(data == self.bytes[offset..offset + len], "a read of {len} bytes at {offset}");
            }
            60..72 => {
                let mode =
                    if self.rng.below(2) == 0 { DiscardMode::Zero } else { DiscardMode::ZeroKeepSpace };
                self.chain().discard(offset as u64, len as u64, mode).expect("zeroes");
                self.bytes[offset..offset + len].fill(0);
                self.touched[sectors].fill(true);
            }
            72..82 => {
                self.chain().discard(offset as u64, len as u64, DiscardMode::Unmap).expect("an unmap");
                // It may do less than asked: each sector has its old contents or zeroes, and keeps them.
                let mut data = vec![0xEE; len];
                self.chain().read_at(offset as u64, &mut data).expect("a read");
                let old = &mut self.bytes[offset..offset + len];
                for (new, old) in data.chunks(self.sector).zip(old.chunks_mut(self.sector)) {
                    assert!(
                        new == old || new.iter().all(|byte| *byte == 0),
                        "an unmapped sector is old or zero"
                    );
                    old.copy_from_slice(new);
                }
            }
            82..91 => self.chain().flush().expect("a flush"),
            91 => self.resize(),
            92..95 => {
                // As a killed process leaves it: the log is replayed.
                self.chain().flush().expect("a flush");
                self.reopen();
            }
            95..98 => {
                self.chain.take().expect("open").close().expect("a close");
                assert_sound(self.files.last().expect("a file").as_ref(), "after a close");
                self.reopen();
            }
            98 if self.files.len() < 4 => {
                self.chain.take().expect("open").close().expect("a close");
                let parent = open(self.files.last().expect("a file").clone(), false, 0);
                let child = child_options(&parent, self.bytes.len() as u64, self.block);
                let seed = self.rng.next();
                self.files.push(Storage::new(memory(&child, seed)));
                self.reopen();
            }
            _ => self.check_map(),
        }
    }

    /// Gives the leaf another size: what is added reads as zeroes.
    fn resize(&mut self) {
        let parent_size = self.chain().disks().get(1).map(|parent| parent.parameters().disk_size);
        self.chain.take().expect("open").close().expect("a close");
        let sectors = 1 + self.rng.below(8 * MIB / self.sector as u64) as usize;
        let to = Resize { size: (sectors * self.sector) as u64, parent_size, data_write: None };
        let leaf = self.files.last().expect("a file");
        match resize(leaf, &to, guids(self.rng.next()).as_mut()) {
            Ok(()) => {
                self.bytes.resize(sectors * self.sector, 0);
                self.touched.resize(sectors, false);
            }
            // The parent's data would come to light.
            Err(EditError::Refused(_)) => assert!(parent_size.is_some()),
            Err(error) => panic!("{error}"),
        }
        assert_sound(leaf.as_ref(), "after a resize");
        self.reopen();
    }

    fn check_map(&self) {
        let mut at = 0;
        self.chain()
            .map(0, self.bytes.len() as u64, |segment| {
                assert_eq!(segment.offset, at, "no gap");
                at += segment.len;
                let bytes = &self.bytes[segment.offset as usize..at as usize];
                match segment.source {
                    SegmentSource::File(_) => {}
                    SegmentSource::Parent => panic!("a parent's data is found there"),
                    SegmentSource::Zero | SegmentSource::Unmapped | SegmentSource::NeverWritten => {
                        assert!(bytes.iter().all(|byte| *byte == 0), "{segment:?}");
                    }
                }
                if segment.source == SegmentSource::NeverWritten {
                    let sectors = segment.offset as usize / self.sector..at as usize / self.sector;
                    assert!(self.touched[sectors].iter().all(|touched| !touched), "{segment:?} was written");
                }
            })
            .expect("a map");
        assert_eq!(at, self.bytes.len() as u64);
    }
}

#[test]
fn a_chain_holds_what_an_array_holds() {
    let seeds = amount("LUNWAY_VHDX_MODEL_SEEDS", 24);
    let steps = amount("LUNWAY_VHDX_MODEL_STEPS", 150);
    let first = amount("LUNWAY_VHDX_MODEL_FIRST_SEED", 0);
    for seed in first..first + seeds {
        let result = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            for _ in 0..steps {
                model.step();
            }
            assert!(contents(model.chain()) == model.bytes, "all bytes");
            model.check_map();
        });
        assert!(result.is_ok(), "seed {seed}");
    }
    println!("{} steps, seeds {first} to {}", seeds * steps, first + seeds - 1);
}

#[test]
fn space_that_was_freed_is_used_again_and_cut_off_at_the_end() {
    let file = Storage::new(memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1));
    let chain = alone(open(file.clone(), true, 2));
    for round in 0..50u64 {
        for block in 0..8 {
            chain.write_at(block * MIB, &vec![round as u8 + 1; MIB as usize]).expect("a write");
        }
        chain.flush().expect("a flush");
        chain.discard(0, 8 * MIB, DiscardMode::Unmap).expect("an unmap");
        chain.flush().expect("a flush");
    }
    let len = lunway_vhdx::Storage::len(&file).expect("memory");
    assert!(len < 60 * MIB, "400 blocks were written, 8 at a time: {len} bytes");
    chain.close().expect("a close");
    assert_eq!(
        lunway_vhdx::Storage::len(&file).expect("memory"),
        4 * MIB,
        "nothing is left but the structures"
    );
}

#[test]
fn a_full_host_changes_nothing_and_works_again_with_space() {
    let file = Storage::new(memory(&options(DiskKind::Dynamic, 64 * MIB, 1 << 20, 512), 1));
    let chain = alone(open(file.clone(), true, 2));
    chain.write_at(0, &[1; 4096]).expect("a write");
    chain.flush().expect("a flush");
    for spare in 0..40 {
        file.set_space(Some(file.allocated() + spare * 4096));
        let offset = (1 + spare) * MIB;
        let written = chain.write_at(offset, &[2; 65536]);
        let flushed = chain.flush();
        let full = lunway_vhdx::DiskError::NoSpace;
        assert!([&written, &flushed].iter().all(|result| result.is_ok() || **result == Err(full.clone())));
        let mut data = [0xEE; 4096];
        chain.read_at(offset, &mut data).expect("a read");
        assert_eq!(data, [if written.is_ok() { 2 } else { 0 }; 4096], "{spare} pages");
        file.set_space(None);
        chain.write_at(offset, &[3; 65536]).expect("there is space");
        chain.flush().expect("there is space");
    }
    drop(chain);
    assert_sound(file.as_ref(), "after a full host");
    let chain = alone(open(file, true, 3));
    let mut data = [0xEE; 4096];
    chain.read_at(5 * MIB, &mut data).expect("a read");
    assert_eq!(data, [3; 4096]);
}

#[test]
fn a_read_only_open_changes_no_bit_and_sees_the_log() {
    let file = Storage::new(memory(&options(DiskKind::Dynamic, 16 * MIB, 1 << 20, 512), 1));
    let chain = alone(open(file.clone(), true, 2));
    chain.write_at(3 * MIB + 512, &[7; 1024]).expect("a write");
    chain.flush().expect("a flush");
    drop(chain);
    let before = file.to_bytes();
    let chain = alone(open(file.clone(), false, 3));
    let mut data = [0xEE; 2048];
    chain.read_at(3 * MIB, &mut data).expect("a read");
    assert_eq!([data[0], data[512], data[1535], data[1536]], [0, 7, 7, 0]);
    assert_eq!(chain.write_at(0, &[0; 512]), Err(lunway_vhdx::DiskError::ReadOnly));
    chain.close().expect("a close");
    assert!(file.to_bytes() == before);
}

#[test]
fn guids_change_with_the_first_write_and_not_with_a_replay() {
    let file = Storage::new(memory(&options(DiskKind::Dynamic, 16 * MIB, 1 << 20, 512), 1));
    let first = open(file.clone(), true, 2).data_write_guid();
    let before = file.to_bytes();
    alone(open(file.clone(), true, 3)).close().expect("a close");
    assert!(file.to_bytes() == before, "a disk that is not written does not change its file");
    let chain = alone(open(file.clone(), true, 4));
    chain.write_at(0, &[1; 512]).expect("a write");
    chain.flush().expect("a flush");
    drop(chain);
    let second = open(file.clone(), false, 5).data_write_guid();
    assert_ne!(first, second);
    assert_eq!(open(file.clone(), true, 6).data_write_guid(), second, "a replay is not a change of the data");
    assert_eq!(open(file, false, 7).data_write_guid(), second);
}

#[test]
fn old_bits_of_a_sector_bitmap_do_not_come_back_with_a_block() {
    let parent = Storage::new(memory(&options(DiskKind::Dynamic, 16 * MIB, 1 << 20, 512), 1));
    let chain = alone(open(parent.clone(), true, 2));
    chain.write_at(0, &[1; 65536]).expect("a write");
    chain.close().expect("a close");
    let child = child_options(&open(parent.clone(), false, 3), 16 * MIB, 1 << 20);
    let child = Storage::new(memory(&child, 4));
    let both = |writable| {
        Chain::new(vec![open(child.clone(), writable, 5), open(parent.clone(), false, 6)])
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let chain = both(true);
    chain.write_at(0, &[2; 4096]).expect("a write");
    chain.close().expect("a close");
    // As a crash within a commit leaves it: the bits are there, the block is not. The table lies at 3 MiB.
    lunway_vhdx::Storage::write_at(&child, 3 * MIB, &[0; 8]).expect("memory");
    let chain = both(true);
    chain.write_at(8192, &[3; 512]).expect("a write");
    chain.close().expect("a close");
    let mut data = [0; 16384];
    both(false).read_at(0, &mut data).expect("a read");
    assert_eq!([data[0], data[4095], data[8192], data[8704]], [1, 1, 3, 1]);
}

#[test]
fn a_child_larger_than_its_parent_reads_zeroes_behind_it() {
    let parent = Storage::new(memory(&options(DiskKind::Dynamic, 3 * MIB + 4096, 1 << 20, 4096), 1));
    let chain = alone(open(parent.clone(), true, 2));
    chain.write_at(0, &vec![1; 3 * MIB as usize + 4096]).expect("a write");
    chain.close().expect("a close");
    let child = child_options(&open(parent.clone(), false, 3), 8 * MIB, 2 << 20);
    let child = Storage::new(memory(&child, 4));
    let chain = Chain::new(vec![open(child, true, 5), open(parent, false, 6)])
        .unwrap_or_else(|error| panic!("{error}"));
    chain.write_at(6 * MIB, &[2; 4096]).expect("a write");
    let bytes = contents(&chain);
    let edges =
        [0, 3 * MIB + 4095, 3 * MIB + 4096, 5 * MIB, 6 * MIB, 6 * MIB + 4096].map(|at| bytes[at as usize]);
    assert_eq!(edges, [1, 1, 0, 0, 2, 0]);
    let mut end = 0;
    chain.map(0, chain.size(), |segment| end = segment.offset + segment.len).expect("a map");
    assert_eq!(end, chain.size());
}

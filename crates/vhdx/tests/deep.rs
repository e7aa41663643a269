//! Reads in chains of more files than a word has bits, against a flat array of bytes.

use crate::support::*;
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::{Chain, DiscardMode, DiskKind};

type Storage = std::sync::Arc<MemoryStorage>;

/// Files of a chain: two words of bits.
const FILES: u64 = 70;

/// A chain each of whose files was written to while it was the last one, and what it holds.
struct Deep {
    files: Vec<Storage>,
    bytes: Vec<u8>,
    rng: Random,
}

impl Deep {
    fn new(seed: u64) -> Self {
        let base = options(DiskKind::Dynamic, 6 * MIB, 1 << 20, 512);
        let files = vec![Storage::new(memory(&base, seed))];
        let mut deep = Self { files, bytes: vec![0; 6 << 20], rng: Random::new(seed) };
        deep.write_some(seed);
        for level in 1..FILES {
            // Some are larger or smaller, and end in the middle of a block.
            let size = match deep.rng.below(16) {
                0 => 4 * MIB + deep.rng.below(4096) * 512,
                1 => 6 * MIB + deep.rng.below(4096) * 512,
                _ => deep.bytes.len() as u64,
            };
            let parent = open(deep.files[0].clone(), false, seed);
            let file = Storage::new(MemoryStorage::default());
            make(&file, &child_options(&parent, size, 1 << (20 + deep.rng.below(2))), seed + level);
            deep.files.insert(0, file);
            deep.bytes.resize(size as usize, 0);
            deep.write_some(seed + level);
        }
        deep
    }

    /// A range of at most so many sectors: offset and length, bytes.
    fn range(&mut self, sectors_max: u64) -> (u64, usize) {
        let sectors = self.bytes.len() as u64 / 512;
        let first = self.rng.below(sectors);
        (first * 512, ((1 + self.rng.below(sectors_max)).min(sectors - first) * 512) as usize)
    }

    /// Writes to the newest file, which has nothing in most of its blocks.
    fn write_some(&mut self, seed: u64) {
        let disk = Chain::upper(vec![open(self.files[0].clone(), true, seed)]).expect("a disk");
        for _ in 0..self.rng.below(4) {
            let (offset, len) = self.range(400);
            let byte = self.rng.below(256) as u8;
            match byte {
                0..64 => disk.discard(offset, len as u64, DiscardMode::Zero).expect("a discard"),
                _ => disk.write_at(offset, &vec![byte; len]).expect("a write"),
            }
            self.bytes[offset as usize..][..len].fill(if byte < 64 { 0 } else { byte });
        }
        disk.close().expect("a close");
    }

    fn chain(&self) -> Chain<Storage> {
        let disks = self.files.iter().map(|file| open(file.clone(), false, 1));
        Chain::new(disks.collect()).unwrap_or_else(|error| panic!("{error}"))
    }
}

#[test]
fn a_deep_chain_reads_as_its_files_were_written_with_and_without_waiting() {
    for seed in 0..amount("LUNWAY_VHDX_DEEP", 20) {
        let mut deep = Deep::new(seed * 1000);
        let chain = deep.chain();
        let mut waited = 0;
        for _ in 0..200 {
            let (offset, len) = deep.range(3000);
            let mut buf = vec![0xEE; len];
            if !chain.read_now(offset, &mut buf) {
                waited += 1;
                chain.read_at(offset, &mut buf).expect("a read");
            }
            assert!(buf == deep.bytes[offset as usize..][..len], "seed {seed}, {len} bytes at {offset}");
        }
        // Tables, and what is known of cells, are in memory after the first reads.
        assert!((1..100).contains(&waited), "seed {seed}: {waited} of 200");
        assert!(contents(&chain) == deep.bytes, "seed {seed}");
    }
}

//! A worker and its part of the disk: it knows what every block must hold.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::{BlockDevice, BlockError, Buf, Durability, Zeroing};

use crate::OPERATION_MAX;
use crate::random::Random;

pub(crate) const BLOCK: usize = 512;
/// Blocks of one region.
const BLOCKS: u64 = 8 << 10;
pub(crate) const BYTES: u64 = BLOCKS * BLOCK as u64;
/// Operations that a worker has under way.
pub(crate) const DEPTH: usize = 4;

/// What all workers have done.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) operations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) flushes_failed: AtomicU64,
    pub(crate) longest_ms: AtomicU64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        write!(
            f,
            "{} operations, {} MiB, the longest took {} ms, {} flushes told of a power-on",
            of(&self.operations),
            of(&self.bytes) >> 20,
            of(&self.longest_ms),
            of(&self.flushes_failed)
        )
    }
}

/// Every eight bytes tell place and version, and the first sixteen say them.
fn stamp(block: &mut [u8], number: u64, version: u64) {
    if version == 0 {
        return block.fill(0);
    }
    let (head, rest) = block.split_at_mut(16);
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..].copy_from_slice(&version.to_le_bytes());
    let mut random = Random(number << 32 ^ version);
    rest.as_chunks_mut().0.iter_mut().for_each(|word: &mut [u8; 8]| *word = random.next().to_le_bytes());
}

/// What a block that is not as it must be holds instead, for people.
fn describe(block: &[u8], number: u64, version: u64) -> String {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let (found_number, found) = (word(0), word(8));
    let mut whole = vec![0; BLOCK];
    stamp(&mut whole, found_number, found);
    let what = if block.iter().all(|byte| *byte == 0) {
        "zeroes: lost".to_owned()
    } else if block != whole {
        format!("torn, beginning as block {found_number} version {found}")
    } else if found_number != number {
        format!("block {found_number} version {found}: misplaced")
    } else if found < version {
        format!("version {found}: stale, or written again after newer data")
    } else {
        format!("version {found}, which is newer")
    };
    format!("block {number} must hold version {version} and holds {what}")
}

enum Kind {
    Read,
    Write,
    Zero,
    Flush,
}

/// An operation that has ended: which blocks, what, how.
struct Ended {
    kind: Kind,
    blocks: Range<u64>,
    started: Instant,
    result: Result<Option<Buf>, BlockError>,
}

type Running<'a> = FuturesUnordered<Pin<Box<dyn Future<Output = Ended> + 'a>>>;

pub(crate) struct Region {
    number: u64,
    first: u64,
    random: Random,
    versions: Vec<u64>,
    last_version: u64,
    /// Blocks that an operation under way touches.
    taken: Vec<Range<u64>>,
    tally: Arc<Tally>,
}

impl Region {
    pub(crate) fn new(number: u64, seed: u64, tally: Arc<Tally>) -> Self {
        Self {
            number,
            first: number * BLOCKS,
            random: Random(seed),
            versions: vec![0; BLOCKS as usize],
            last_version: 0,
            taken: Vec::new(),
            tally,
        }
    }

    /// Reads and writes until told to stop.
    pub(crate) async fn live<D: BlockDevice + ?Sized>(&mut self, device: &D, stop: &AtomicBool) {
        let mut running = Running::new();
        while !stop.load(Ordering::Relaxed) || !running.is_empty() {
            while !stop.load(Ordering::Relaxed) && running.len() < DEPTH {
                if let Some(operation) = self.start(device) {
                    running.push(operation);
                }
            }
            let ended = tokio::time::timeout(OPERATION_MAX, running.next()).await;
            match ended {
                Ok(Some(ended)) => self.ended(ended),
                Ok(None) => {}
                Err(_) => panic!("worker {}: operations hang: {:?}", self.number, self.taken),
            }
            // The machine has other things to do as well.
            if self.random.below(4) == 0 {
                tokio::time::sleep(Duration::from_millis(self.random.below(4))).await;
            }
        }
    }

    /// Blocks that nobody else is at.
    fn choose(&mut self) -> Option<Range<u64>> {
        let len = match self.random.below(20) {
            0..13 => 1 + self.random.below(16),
            13..19 => 16 + self.random.below(240),
            _ => 1024 + self.random.below(2048),
        };
        let first = self.first + self.random.below(BLOCKS - len);
        let range = first..first + len;
        let is_free = self.taken.iter().all(|taken| taken.end <= range.start || range.end <= taken.start);
        is_free.then_some(range)
    }

    fn versions(&mut self, blocks: &Range<u64>) -> &mut [u64] {
        let first = self.first;
        &mut self.versions[(blocks.start - first) as usize..(blocks.end - first) as usize]
    }

    fn start<'a, D: BlockDevice + ?Sized>(
        &mut self,
        device: &'a D,
    ) -> Option<Pin<Box<dyn Future<Output = Ended> + 'a>>> {
        let kind = match self.random.below(100) {
            0..3 => Kind::Flush,
            3..6 => Kind::Zero,
            6..52 => Kind::Read,
            _ => Kind::Write,
        };
        let started = Instant::now();
        if let Kind::Flush = kind {
            let flush = device.flush();
            return Some(Box::pin(async move {
                Ended { kind, blocks: 0..0, started, result: flush.await.map(|()| None) }
            }));
        }
        let blocks = self.choose()?;
        self.taken.push(blocks.clone());
        let (offset, len) = (blocks.start * BLOCK as u64, (blocks.end - blocks.start) as usize * BLOCK);
        Some(match kind {
            Kind::Zero => {
                self.versions(&blocks).fill(0);
                let zero = device.write_zeroes(offset, len as u64, Zeroing::MayUnmap);
                Box::pin(async move { Ended { kind, blocks, started, result: zero.await.map(|()| None) } })
            }
            Kind::Write => {
                self.last_version += 1;
                let version = self.last_version;
                self.versions(&blocks).fill(version);
                let mut data = Buf::for_overwrite(len);
                for (block, number) in data.chunks_exact_mut(BLOCK).zip(blocks.clone()) {
                    stamp(block, number, version);
                }
                let stable = self.random.below(10) == 0;
                let durability = if stable { Durability::Stable } else { Durability::Volatile };
                let write = device.write(offset, data.freeze(), durability);
                Box::pin(async move { Ended { kind, blocks, started, result: write.await.map(|()| None) } })
            }
            Kind::Read | Kind::Flush => {
                let read = device.read(offset, Buf::for_overwrite(len));
                Box::pin(async move { Ended { kind, blocks, started, result: read.await.map(Some) } })
            }
        })
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { kind, blocks, started, result } = ended;
        self.taken.retain(|taken| *taken != blocks);
        self.tally.operations.fetch_add(1, Ordering::Relaxed);
        self.tally.bytes.fetch_add((blocks.end - blocks.start) * BLOCK as u64, Ordering::Relaxed);
        self.tally.longest_ms.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
        match (kind, result) {
            (_, Ok(None)) => {}
            (_, Ok(Some(data))) => self.check(&blocks, &data),
            // The target was killed with acknowledged writes in its cache: that must be told, once.
            (Kind::Flush, Err(BlockError::UnflushedLost { .. })) => {
                self.tally.flushes_failed.fetch_add(1, Ordering::Relaxed);
            }
            (kind, Err(error)) => {
                let name = match kind {
                    Kind::Read => "read",
                    Kind::Write => "write",
                    Kind::Zero => "write of zeroes",
                    Kind::Flush => "flush",
                };
                panic!(
                    "worker {}: {name} of {blocks:?} failed after {:?}: {error}",
                    self.number,
                    started.elapsed()
                );
            }
        }
    }

    fn check(&mut self, blocks: &Range<u64>, data: &[u8]) {
        let worker = self.number;
        let mut expected = vec![0; BLOCK];
        let versions = self.versions(blocks);
        let wrong: Vec<_> = data
            .chunks_exact(BLOCK)
            .zip(blocks.clone())
            .zip(versions.iter())
            .filter_map(|((block, number), version)| {
                stamp(&mut expected, number, *version);
                (block != expected).then(|| describe(block, number, *version))
            })
            .collect();
        assert!(
            wrong.is_empty(),
            "worker {worker}, of {} blocks {}: {}",
            blocks.end - blocks.start,
            wrong.len(),
            wrong[0]
        );
    }

    /// Reads all of it.
    pub(crate) async fn check_all<D: BlockDevice + ?Sized>(&mut self, device: &D) {
        let step = 1024;
        for first in (self.first..self.first + BLOCKS).step_by(step as usize) {
            let blocks = first..first + step;
            let read = device.read(first * BLOCK as u64, Buf::for_overwrite(step as usize * BLOCK));
            let data = tokio::time::timeout(OPERATION_MAX, read.into_future()).await.unwrap().unwrap();
            self.check(&blocks, &data);
        }
    }
}

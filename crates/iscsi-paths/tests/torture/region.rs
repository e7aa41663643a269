//! A worker and its part of the disk: it knows what every block may hold.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::{BlockDevice, Buf};
use tokio::sync::watch;

use crate::OPERATION_MAX;
use crate::connection::{Answer, Connection, Failed, Request, Verb};
use crate::random::Random;

pub(crate) const BLOCK: usize = 512;
/// Blocks of one region.
const BLOCKS: u64 = 8 << 10;
pub(crate) const BYTES: u64 = BLOCKS * BLOCK as u64;
/// What lies before the first region, bytes. While LUN 0 has no disk LIO puts a unit of 64 blocks in its place, reads
/// of which succeed and give memory that nobody filled: no initiator can tell them from the disk's.
pub(crate) const UNUSED: u64 = 1 << 20;
/// Operations that a worker has under way.
pub(crate) const DEPTH: usize = 4;
/// Sentences about failures that are printed; all are counted.
const SENTENCES_MAX: u64 = 20;

/// Of each block and of incidents, what is shown with a failure.
const EVENTS_SHOWN: usize = 12;

/// The client that there is, if there is one.
pub(crate) type Connected = watch::Receiver<Option<Arc<Connection>>>;

/// What all workers have done and found.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) operations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) longest_ms: AtomicU64,
    /// Operations whose client died.
    pub(crate) unknown: AtomicU64,
    /// Power cuts of the target, counted before they happen.
    pub(crate) power_cuts: AtomicU64,
    /// Crashes of the target that nobody had asked for.
    pub(crate) crashes: AtomicU64,
    /// Blocks that did not hold what they must.
    pub(crate) wrong: AtomicU64,
    /// Of these, those that held what had been overwritten.
    pub(crate) late: AtomicU64,
    /// Operations that failed without need.
    pub(crate) needless: AtomicU64,
    said: Mutex<u64>,
    /// What was done to cables, target and client, and when.
    events: Mutex<Vec<(Duration, String)>>,
    start: OnceLock<Instant>,
}

impl Tally {
    /// Since the first time that somebody asked.
    fn now(&self) -> Duration {
        self.start.get_or_init(Instant::now).elapsed()
    }

    pub(crate) fn note(&self, event: String) {
        let now = self.now();
        self.events.lock().unwrap().push((now, event));
    }

    /// The last events.
    pub(crate) fn events(&self) -> String {
        let events = self.events.lock().unwrap();
        let last = &events[events.len().saturating_sub(EVENTS_SHOWN)..];
        last.iter().map(|(at, event)| format!("\n    {:8.3} {event}", at.as_secs_f64())).collect()
    }

    pub(crate) fn complain(&self, kind: &AtomicU64, sentence: impl FnOnce() -> String) {
        kind.fetch_add(1, Ordering::Relaxed);
        let mut said = self.said.lock().unwrap();
        if *said < SENTENCES_MAX {
            *said += 1;
            println!("FAILURE {}", sentence());
        }
    }

    /// The sum of all that must not be.
    pub(crate) fn failures(&self) -> u64 {
        [&self.wrong, &self.needless].iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        write!(
            f,
            "{} operations, {} MiB, the longest took {} ms; {} unknown, {} power cuts, {} crashes; {} wrong blocks, {} of them late; {} needless errors",
            of(&self.operations),
            of(&self.bytes) >> 20,
            of(&self.longest_ms),
            of(&self.unknown),
            of(&self.power_cuts),
            of(&self.crashes),
            of(&self.wrong),
            of(&self.late),
            of(&self.needless)
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

/// What a block that is not as it must be holds instead: the sentence for people, and the version if it is whole and in
/// its place.
fn describe(block: &[u8], number: u64, must: &[u64]) -> (String, Option<u64>) {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let (found_number, found) = (word(0), word(8));
    let mut whole = vec![0; BLOCK];
    stamp(&mut whole, found_number, found);
    let newest = must.iter().copied().max().unwrap_or_default();
    let (what, version) = if block.iter().all(|byte| *byte == 0) {
        ("zeroes: lost".to_owned(), Some(0))
    } else if block != whole {
        (format!("torn, beginning as block {found_number} version {found}"), None)
    } else if found_number != number {
        (format!("block {found_number} version {found}: misplaced"), None)
    } else if found < newest {
        (format!("version {found}: stale, or written again after newer data"), Some(found))
    } else {
        (format!("version {found}, which is newer"), Some(found))
    };
    (format!("block {number} must hold version {must:?} and holds {what}"), version)
}

/// What is known of a block. Version 0 is zeroes.
#[derive(Clone)]
struct Block {
    /// One of these it holds: one version, but for writes of which nobody knows whether they happened.
    must: Vec<u64>,
    /// What may be on the medium: the version of the last flush, and all since then.
    unflushed: Vec<u64>,
    /// Whoever wrote the unflushed ones is dead or has given up, so that a power cut after the flush takes them away:
    /// the count of power cuts then.
    orphaned: Option<u64>,
    /// When it was written last, in the worker's own count.
    written: u64,
    /// What happened to it last.
    history: VecDeque<(Duration, &'static str, u64)>,
}

impl Block {
    fn new() -> Self {
        Self { must: vec![0], unflushed: vec![0], orphaned: None, written: 0, history: VecDeque::new() }
    }

    fn note(&mut self, at: Duration, what: &'static str, version: u64) {
        if self.history.len() == EVENTS_SHOWN {
            self.history.pop_front();
        }
        self.history.push_back((at, what, version));
    }

    fn may_be(&self, version: u64, power_cuts: u64) -> bool {
        self.must.contains(&version)
            || self.orphaned.is_some_and(|since| power_cuts > since) && self.unflushed.contains(&version)
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write { version: u64, stable: bool },
    Flush { written: u64, power_cuts: u64 },
}

/// An operation that has ended: which blocks, what, how.
struct Ended {
    kind: Kind,
    blocks: Range<u64>,
    started: Instant,
    answer: Answer,
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = Ended> + Send>>>;

pub(crate) struct Region {
    number: u64,
    first: u64,
    random: Random,
    blocks: Vec<Block>,
    last_version: u64,
    /// Counts what was written and answered.
    written: u64,
    /// Power cuts when the last flush that succeeded began.
    flushed_at: u64,
    /// Blocks that an operation under way touches.
    taken: Vec<Range<u64>>,
    tally: Arc<Tally>,
    /// More than any operation takes.
    operation_max: Duration,
}

impl Region {
    pub(crate) fn new(number: u64, seed: u64, tally: Arc<Tally>, operation_max: Duration) -> Self {
        Self {
            number,
            first: UNUSED / BLOCK as u64 + number * BLOCKS,
            random: Random(seed),
            blocks: vec![Block::new(); BLOCKS as usize],
            last_version: 0,
            written: 0,
            flushed_at: 0,
            taken: Vec::new(),
            tally,
            operation_max,
        }
    }

    /// Reads and writes until told to stop, over one client after another.
    pub(crate) async fn live(&mut self, mut clients: Connected, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let client = clients.borrow_and_update().clone();
            match client {
                Some(client) if !client.is_dead() => {
                    self.live_with(&client, stop).await;
                    if client.is_dead() || client.is_excused() {
                        self.orphan();
                    }
                }
                _ => {
                    // The next one comes in a moment, or the end.
                    let _ = tokio::time::timeout(Duration::from_millis(20), clients.changed()).await;
                }
            }
        }
    }

    /// Until it dies.
    async fn live_with(&mut self, client: &Arc<Connection>, stop: &AtomicBool) {
        let mut running = Running::new();
        let goes_on = || !stop.load(Ordering::Relaxed) && !client.is_dead();
        while goes_on() || !running.is_empty() {
            while goes_on() && running.len() < DEPTH {
                if let Some(operation) = self.start(client) {
                    running.push(operation);
                }
            }
            match tokio::time::timeout(self.operation_max, running.next()).await {
                Ok(Some(ended)) => {
                    let failed = ended.answer.is_err();
                    self.ended(ended, client);
                    if failed {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                Ok(None) => {}
                Err(_) => {
                    let (worker, taken) = (self.number, self.taken.clone());
                    self.tally.complain(&self.tally.needless, || {
                        format!("worker {worker}: operations hang: {taken:?}")
                    });
                }
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

    fn blocks(&mut self, blocks: &Range<u64>) -> &mut [Block] {
        let first = self.first;
        &mut self.blocks[(blocks.start - first) as usize..(blocks.end - first) as usize]
    }

    fn power_cuts(&self) -> u64 {
        self.tally.power_cuts.load(Ordering::SeqCst)
    }

    fn start(&mut self, client: &Connection) -> Option<Pin<Box<dyn Future<Output = Ended> + Send>>> {
        let what = match self.random.below(100) {
            0..3 => Verb::Flush,
            3..6 => Verb::Zero,
            6..52 => Verb::Read,
            _ => Verb::Write,
        };
        let blocks = if what == Verb::Flush { 0..0 } else { self.choose()? };
        let (offset, len) = (blocks.start * BLOCK as u64, (blocks.end - blocks.start) as usize * BLOCK);
        let mut request = Request { offset, len: len as u64, ..Request::new(what) };
        let kind = match what {
            Verb::Flush => Kind::Flush { written: self.written, power_cuts: self.power_cuts() },
            Verb::Read => Kind::Read,
            Verb::Zero => Kind::Write { version: 0, stable: false },
            _ => {
                self.last_version += 1;
                let version = self.last_version;
                let mut data = Buf::for_overwrite(len);
                for (block, number) in data.chunks_exact_mut(BLOCK).zip(blocks.clone()) {
                    stamp(block, number, version);
                }
                request.flag = self.random.below(10) == 0;
                request.data = data.freeze();
                Kind::Write { version, stable: request.flag }
            }
        };
        if let Kind::Write { version, .. } = kind {
            let now = self.tally.now();
            for block in self.blocks(&blocks) {
                block.unflushed.push(version);
                block.note(now, "begun", version);
            }
        }
        self.taken.push(blocks.clone());
        let (started, answer) = (Instant::now(), client.ask(request));
        Some(Box::pin(async move { Ended { kind, blocks, started, answer: answer.await } }))
    }

    fn ended(&mut self, ended: Ended, client: &Connection) {
        let Ended { kind, blocks, started, answer } = ended;
        if let Some(index) = self.taken.iter().position(|taken| *taken == blocks) {
            self.taken.swap_remove(index);
        }
        let tally = self.tally.clone();
        tally.operations.fetch_add(1, Ordering::Relaxed);
        tally.bytes.fetch_add((blocks.end - blocks.start) * BLOCK as u64, Ordering::Relaxed);
        let fenced = client.fenced.get().is_some_and(|fenced| *fenced < started);
        match (kind, answer) {
            (Kind::Read, Ok(data)) => self.check(&blocks, &data),
            (Kind::Write { version, stable }, Ok(_)) => {
                if fenced {
                    tally.complain(&tally.wrong, || {
                        format!("a write of {blocks:?} succeeded after the key had been taken away")
                    });
                }
                self.written += 1;
                let written = self.written;
                let now = tally.now();
                for block in self.blocks(&blocks) {
                    block.note(now, if stable { "written, stable" } else { "written" }, version);
                    block.must = vec![version];
                    block.orphaned = None;
                    block.written = written;
                    if stable {
                        block.unflushed = vec![version];
                    }
                }
            }
            (Kind::Flush { written, power_cuts }, Ok(_)) => self.flushed(written, power_cuts),
            (kind, Err(failed)) => {
                let is_needless = match &failed {
                    Failed::Died => {
                        tally.unknown.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                    Failed::Told(_) => !client.is_excused(),
                };
                if let Kind::Write { version, .. } = kind {
                    self.written += 1;
                    let written = self.written;
                    let now = tally.now();
                    for block in self.blocks(&blocks) {
                        block.note(now, "unknown", version);
                        block.must.push(version);
                        block.written = written;
                    }
                }
                if is_needless {
                    let worker = self.number;
                    let elapsed = started.elapsed();
                    tally.complain(&tally.needless, || {
                        format!("worker {worker}: {kind:?} of {blocks:?} failed after {elapsed:?}: {failed}")
                    });
                    // The client has told that it could not keep what it had written.
                    if let Kind::Flush { .. } = kind {
                        self.orphan();
                        self.blocks.iter_mut().for_each(|block| block.must.extend(&block.unflushed));
                    }
                }
                return;
            }
        }
        tally.longest_ms.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// What was written before the flush began is on the medium.
    fn flushed(&mut self, written: u64, power_cuts: u64) {
        self.flushed_at = self.flushed_at.max(power_cuts);
        let now = self.tally.now();
        let (first, taken, cuts) = (self.first, &self.taken, self.tally.power_cuts.load(Ordering::SeqCst));
        for (number, block) in (first..).zip(&mut self.blocks) {
            if block.written <= written && !taken.iter().any(|taken| taken.contains(&number)) {
                // What a power cut had left of it is what was flushed.
                if block.orphaned.is_some_and(|since| cuts > since) {
                    block.must.clone_from(&block.unflushed);
                }
                if block.unflushed != block.must || block.orphaned.is_some() {
                    block.note(now, "flushed", block.must[0]);
                }
                block.unflushed.clone_from(&block.must);
                block.orphaned = None;
            }
        }
    }

    /// The client is gone, and with it whatever it may have kept.
    fn orphan(&mut self) {
        let (flushed_at, now) = (self.flushed_at, self.tally.now());
        for block in &mut self.blocks {
            if block.unflushed.len() > 1 {
                block.note(now, "orphaned, power cuts until the last flush:", flushed_at);
                block.orphaned.get_or_insert(flushed_at);
            }
        }
    }

    fn check(&mut self, blocks: &Range<u64>, data: &[u8]) {
        let (worker, power_cuts, tally) = (self.number, self.power_cuts(), self.tally.clone());
        let mut expected = vec![0; BLOCK];
        let mut wrong = Vec::new();
        for ((held, number), block) in data.chunks_exact(BLOCK).zip(blocks.clone()).zip(self.blocks(blocks)) {
            let found = u64::from_le_bytes(held[8..16].try_into().unwrap());
            stamp(&mut expected, number, found);
            if *held == expected[..] && block.may_be(found, power_cuts) {
                if block.must != [found] {
                    block.note(tally.now(), "found", found);
                    // From now on it is this one.
                    block.must = vec![found];
                }
                continue;
            }
            let (sentence, found) = describe(held, number, &block.must);
            let is_late = found.is_some_and(|found| found > 0 && block.must.iter().all(|must| found < *must));
            tally.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
            let told: String = block
                .history
                .iter()
                .map(|(at, what, v)| format!("\n    {:8.3} {what} {v}", at.as_secs_f64()))
                .collect();
            wrong.push(format!("{sentence} ({} since the last flush){told}", block.unflushed.len() - 1));
            block.must.extend(found);
        }
        if let [first, ..] = &wrong[..] {
            tally.wrong.fetch_add(wrong.len() as u64 - 1, Ordering::Relaxed);
            tally.complain(&tally.wrong, || {
                format!(
                    "worker {worker}, at {:.3} s, of {} blocks {}: {first}\n  incidents:{}",
                    tally.now().as_secs_f64(),
                    blocks.end - blocks.start,
                    wrong.len(),
                    tally.events()
                )
            });
        }
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

//! Random operations against a model of a disk, and the power cut at every write and flush of the track file.
//!
//! What is shown: whatever a crash leaves, the tracker reports every grain that an operation may have changed, and
//! besides these no more than hot regions; and what it reports as zeroes is zero whatever order operations had.
//!
//! `LUNWAY_TRACK_CASES` is how many cases are run (100), `LUNWAY_TRACK_SEED` where they begin (1).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use lunway_crash::{MemoryStorage, Recorder};
use lunway_track::{
    Backing, Begun, Change, ChangeState, Changes, Ended, EpochId, GRAIN, Operation, Tracker, Tuning,
};

/// Grains of a region of a disk of this size.
const REGION: u64 = 64;
/// Whole regions, and a part of one, and a part of a grain.
const SIZE: u64 = (20 * REGION + 9) * GRAIN + 4096;
const TUNING: Tuning = Tuning { hot_max: 4, ahead: 2, log: 64 << 10 };
/// The sector of the storage.
const UNIT: u64 = 512;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A moment: how many writes and flushes the storage had seen, and a clock.
type Moment = (usize, u64);

/// One operation, or one change of size, as the disk may have seen it.
#[derive(Clone)]
struct Event {
    offset: u64,
    end: u64,
    zeroes: bool,
    begun: Moment,
    /// When the disk got it.
    issued: Option<Moment>,
    /// When nothing of it could happen any more.
    ended: Option<Moment>,
    done: bool,
    abandoned: bool,
}

impl Event {
    fn grains(&self) -> std::ops::Range<u64> {
        self.offset / GRAIN..self.end.div_ceil(GRAIN)
    }
}

/// A closed epoch, as the model knows it.
#[derive(Clone)]
struct Mark {
    id: EpochId,
    begun: Moment,
    closed: Option<Moment>,
    released: Option<Moment>,
}

/// All that happened.
#[derive(Clone, Default)]
struct History {
    events: Vec<Event>,
    marks: Vec<Mark>,
    clock: u64,
    /// When a change of size began, when the disk got it, and which size that is.
    sizes: Vec<(Moment, Moment, u64)>,
    /// What the last start reported beyond what it had to: it stays reported.
    excess: BTreeSet<u64>,
}

struct Run {
    random: Random,
    recorder: Recorder,
    tracker: Tracker,
    history: History,
    under_way: Vec<(Operation, usize)>,
    waiting: Vec<(Operation, usize, u64)>,
    size: u64,
    ids: u8,
}

fn backing() -> Backing {
    Backing { lasting: vec![1], exact: vec![2] }
}

fn open(storage: &Recorder, size: u64) -> Tracker {
    Tracker::open(Box::new(storage.clone()), size, &backing(), TUNING).unwrap()
}

impl Run {
    fn new(seed: u64) -> Self {
        let recorder = Recorder::new(MemoryStorage::default());
        let tracker = open(&recorder, SIZE);
        Self::on(seed, recorder, tracker, History::default(), SIZE, 0)
    }

    fn on(seed: u64, recorder: Recorder, tracker: Tracker, history: History, size: u64, ids: u8) -> Self {
        let random = Random(seed);
        Self { random, recorder, tracker, history, under_way: vec![], waiting: vec![], size, ids }
    }

    fn now(&mut self) -> Moment {
        self.history.clock += 1;
        (self.recorder.count(), self.history.clock)
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..45 => self.begin(),
            45..65 => self.end_one(),
            65..82 => self.commit(),
            82..90 => self.close_epoch(),
            90..93 => self.release(),
            93..96 => self.resize(),
            _ => self.check_now(),
        }
    }

    fn begin(&mut self) {
        let length = match self.random.below(10) {
            0..4 => 1 + self.random.below(8) * 512,
            4..7 => self.random.below(6 * GRAIN),
            7..9 => self.random.below(2 * REGION * GRAIN),
            _ => self.random.below(12 * REGION * GRAIN),
        };
        let mut offset = self.random.below(self.size);
        if self.random.below(2) == 0 {
            offset = offset / GRAIN * GRAIN;
        }
        let mut end = (offset + length).min(self.size);
        if self.random.below(2) == 0 && end != self.size {
            end = end.next_multiple_of(GRAIN).min(self.size);
        }
        if offset >= end {
            return;
        }
        let zeroes = self.random.below(3) == 0;
        let begun = self.now();
        let number = self.history.events.len();
        let event =
            Event { offset, end, zeroes, begun, issued: None, ended: None, done: false, abandoned: false };
        let change = if zeroes { Change::Zeroed } else { Change::Written };
        match self.tracker.begin(change, offset, end - offset) {
            Begun::Covered { operation, .. } => {
                let issued = Some(self.now());
                self.history.events.push(Event { issued, ..event });
                self.under_way.push((operation, number));
            }
            Begun::Waiting { operation, ticket } => {
                self.history.events.push(event);
                self.waiting.push((operation, number, ticket));
            }
            other => panic!("{other:?}"),
        }
    }

    fn end_one(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let index = self.random.below(self.under_way.len() as u64) as usize;
        let ended = match self.random.below(40) {
            0 => Ended::Abandoned,
            1..4 => Ended::Failed,
            _ => Ended::Done,
        };
        self.end(index, ended);
    }

    fn end(&mut self, index: usize, ended: Ended) {
        let (operation, number) = self.under_way.swap_remove(index);
        let moment = self.now();
        let event = &mut self.history.events[number];
        event.ended = (ended != Ended::Abandoned).then_some(moment);
        event.done = ended == Ended::Done;
        event.abandoned = ended == Ended::Abandoned;
        self.tracker.end(operation, ended);
    }

    fn commit(&mut self) {
        let (done, committed) = self.tracker.commit();
        committed.unwrap();
        for (operation, number, ticket) in std::mem::take(&mut self.waiting) {
            assert!(ticket <= done, "one commit is enough for all who wait");
            self.history.events[number].issued = Some(self.now());
            self.under_way.push((operation, number));
        }
    }

    fn close_epoch(&mut self) {
        self.ids += 1;
        let id = EpochId([self.ids; 16]);
        self.tracker.shut();
        assert!(matches!(self.tracker.begin(Change::Written, 0, 512), Begun::Shut));
        if self.tracker.at_rest(0).is_err() {
            assert!(self.tracker.close_epoch(id).is_err());
            self.commit();
            while !self.under_way.is_empty() {
                self.end(0, Ended::Done);
            }
        }
        assert_eq!(self.tracker.at_rest(0), Ok(()));
        let begun = self.now();
        self.tracker.close_epoch(id).unwrap();
        let closed = Some(self.now());
        self.history.marks.push(Mark { id, begun, closed, released: None });
        self.tracker.reopen();
    }

    fn release(&mut self) {
        let epochs = self.tracker.epochs();
        if epochs.is_empty() {
            return;
        }
        let id = epochs[self.random.below(epochs.len() as u64) as usize].id;
        // Before it: a power cut meanwhile leaves either.
        let moment = self.now();
        self.tracker.release_epoch(id).unwrap();
        let mark = self.history.marks.iter_mut().find(|mark| mark.id == id).unwrap();
        mark.released = Some(moment);
    }

    fn resize(&mut self) {
        let size = (SIZE / 2 + self.random.below(SIZE)) / 512 * 512;
        let begun = self.now();
        let (low, high) = (size.min(self.size), size.max(self.size));
        self.tracker.resize(size).unwrap();
        let issued = self.now();
        // What lies beyond the smaller size is changed: it is gone, or reads as zeroes.
        let event = Event {
            offset: low,
            end: high,
            zeroes: true,
            begun,
            issued: Some(issued),
            ended: Some(issued),
            done: true,
            abandoned: false,
        };
        self.history.sizes.push((begun, issued, size));
        self.history.events.push(event);
        self.size = size;
    }

    /// Without a crash.
    fn check_now(&mut self) {
        let done = self.recorder.count();
        check(&self.tracker, &self.history, done, self.size, None);
    }
}

/// Compares what a tracker says with what may have happened until the storage had seen `done` writes and flushes.
/// `crashed`: whether regions may be reported that were only hot. Returns what was reported beyond what happened.
fn check(tracker: &Tracker, history: &History, done: usize, size: u64, crashed: Option<()>) -> BTreeSet<u64> {
    let kept: Vec<EpochId> = tracker.epochs().iter().map(|epoch| epoch.id).collect();
    let mut beyond = BTreeSet::new();
    // The log may have a size that the disk did not get: then everything is compared.
    let is_resized = history.sizes.iter().any(|(begun, issued, _)| (begun.0..issued.0).contains(&done));
    for mark in history.marks.iter().filter(|mark| mark.begun.0 <= done) {
        let durable = mark.closed.is_some_and(|(count, _)| count <= done);
        let forgotten = mark.released.is_some_and(|(count, _)| count <= done);
        let there = kept.contains(&mark.id);
        assert!(there || !durable || forgotten || is_resized, "epoch {} is gone", mark.id);
        let changes = tracker.changes(mark.id, None, 0..u64::MAX);
        let Changes::Known { ranges, .. } = changes else {
            assert!(!there, "{changes:?}");
            continue;
        };
        // Operations are drained before an epoch is closed, or abandoned, and then they may happen in every later one.
        let after = |event: &&Event| event.abandoned || event.begun.1 > mark.begun.1;
        let begun = history.events.iter().filter(|event| event.begun.0 <= done).filter(after);
        let happened = |event: &Event| event.issued.is_some_and(|(count, _)| count <= done);
        // What lies beyond the end is gone, and the rest of its grain as it was.
        let there = |event: &Event| event.offset / GRAIN..event.end.min(size).div_ceil(GRAIN);
        let truth: BTreeSet<u64> =
            begun.clone().filter(|e| happened(e) && e.offset < size).flat_map(there).collect();
        let allowed: BTreeSet<u64> = begun.clone().flat_map(Event::grains).collect();

        let mut reported = BTreeSet::new();
        let mut last = 0;
        for range in &ranges {
            assert!(range.offset >= last && range.length > 0, "{ranges:?}");
            assert!(range.offset % GRAIN == 0 && range.offset + range.length <= size, "{range:?}");
            last = range.offset + range.length;
            for grain in range.offset / GRAIN..last.div_ceil(GRAIN) {
                reported.insert(grain);
                if range.state == ChangeState::Unmapped {
                    assert!(is_zero(history, grain, size, done), "grain {grain} may not be zeroes");
                }
            }
        }
        let missed: Vec<_> = truth.iter().filter(|&grain| !reported.contains(grain)).collect();
        assert!(missed.is_empty(), "forgotten since {}: {missed:?}", mark.id);
        let excess: BTreeSet<u64> =
            reported.difference(&allowed).copied().filter(|grain| !history.excess.contains(grain)).collect();
        let regions: BTreeSet<u64> = excess.iter().map(|grain| grain / REGION).collect();
        let regions_max = crashed.map_or(0, |()| TUNING.hot_max);
        assert!(regions.len() <= regions_max, "reported since {} and not changed: {excess:?}", mark.id);
        beyond.extend(excess);
    }
    beyond
}

/// Whether a grain reads as zeroes, whatever order the disk gave to operations that were under way together.
fn is_zero(history: &History, grain: u64, size: u64, done: usize) -> bool {
    let touches = |event: &&Event| event.grains().contains(&grain);
    let issued = |event: &&Event| event.issued.is_some_and(|(count, _)| count <= done);
    let events = || history.events.iter().filter(touches).filter(issued);
    events().any(|zero| {
        let whole = zero.offset <= grain * GRAIN && zero.end >= ((grain + 1) * GRAIN).min(size);
        let end = zero.ended.filter(|&(count, _)| zero.done && count <= done);
        let only = || {
            events().filter(|event| !event.zeroes || event.ended.is_none()).all(|event| {
                event.ended.is_some_and(|(count, clock)| count <= done && clock < zero.issued.unwrap().1)
            })
        };
        zero.zeroes && whole && end.is_some() && only()
    })
}

fn cases() -> (u64, u64) {
    let variable = |name: &str, value| std::env::var(name).map_or(value, |text| text.parse().unwrap());
    (variable("LUNWAY_TRACK_SEED", 1), variable("LUNWAY_TRACK_CASES", 100))
}

#[test]
fn whatever_a_crash_leaves_every_change_is_reported_and_little_else() {
    let (first, count) = cases();
    let mut states = 0;
    for seed in first..first + count {
        let outcome = std::panic::catch_unwind(|| case(seed));
        match outcome {
            Ok(crashes) => states += crashes,
            Err(panic) => {
                eprintln!("LUNWAY_TRACK_SEED={seed} LUNWAY_TRACK_CASES=1");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(states > count, "the storage was written");
    println!("{count} cases, {states} crashes");
}

/// Three lives of a tracker, each ended by a crash; returns how many crashes were looked at.
fn case(seed: u64) -> u64 {
    let mut run = Run::new(seed);
    let mut looked = 0;
    for life in 0..3 {
        let first_size = run.size;
        let steps = 5 + run.random.below(60);
        (0..steps).for_each(|_| run.step());
        run.check_now();
        let Run { mut random, recorder, history, ids, .. } = run;
        let chosen = random.below(recorder.count() as u64 + 1) as usize;
        let mut next = None;
        recorder.each_crash(|crash| {
            for kind in 0..3 {
                let mut coins = Random(seed ^ (crash.done as u64) << 20);
                let image = crash.image(UNIT, |_| match kind {
                    0 => false,
                    1 => true,
                    _ => coins.below(2) == 0,
                });
                let storage = Recorder::new(image);
                let size = size_at(&history, first_size, crash.done);
                let tracker = open(&storage, size);
                let excess = check(&tracker, &history, crash.done, size, Some(()));
                looked += 1;
                if crash.done == chosen && kind == 2 {
                    next = Some((storage, tracker, excess, size));
                }
            }
        });
        let (storage, tracker, excess, size) = next.unwrap();
        let history = continued(&history, chosen, &tracker, excess);
        run = Run::on(seed + life, storage, tracker, history, size, ids);
    }
    looked
}

/// The size that the disk has at a crash.
fn size_at(history: &History, first: u64, done: usize) -> u64 {
    history.sizes.iter().rev().find(|(_, (count, _), _)| *count <= done).map_or(first, |&(.., size)| size)
}

/// What happened before a crash, as what a later life begins with.
fn continued(history: &History, done: usize, tracker: &Tracker, excess: BTreeSet<u64>) -> History {
    let mut next = History { clock: history.clock, ..History::default() };
    // Abandoned operations belonged to every epoch of that life.
    let abandoned = history.events.iter().filter(|event| event.abandoned).flat_map(Event::grains);
    next.excess = history.excess.iter().copied().chain(excess).chain(abandoned).collect();
    for event in history.events.iter().filter(|event| event.begun.0 <= done) {
        let issued = event.issued.filter(|&(count, _)| count <= done);
        let ended = event.ended.filter(|&(count, _)| count <= done);
        let zero = |(_, clock)| (0, clock);
        next.events.push(Event {
            begun: zero(event.begun),
            issued: issued.map(zero),
            // The process is gone, and what it had sent.
            ended: Some(zero(ended.unwrap_or((0, history.clock)))),
            done: event.done && ended.is_some(),
            abandoned: false,
            ..event.clone()
        });
    }
    for epoch in tracker.epochs() {
        let mark = history.marks.iter().find(|mark| mark.id == epoch.id).unwrap();
        next.marks.push(Mark {
            begun: (0, mark.begun.1),
            closed: Some((0, mark.begun.1)),
            released: None,
            id: mark.id,
        });
    }
    next
}

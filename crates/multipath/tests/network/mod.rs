//! A network in simulated time: ports and lanes of given rates, shared queues, latency, a target with a service time
//! that varies.
//!
//! Data goes in chunks through three servers one after the other: the sending port, the lane's own bottleneck, the
//! receiving port. A lane has one stream for each direction with a window, as a TCP connection has, so lanes on one
//! port share it about equally. Every run with the same seed is the same.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use lunway_multipath::{
    Boundaries, Direction, LaneShape, Piece, Pieces, Policy, Port, Request, Scheduler, Use,
};

pub(crate) const MICRO: u64 = 1_000;
pub(crate) const MILLI: u64 = 1_000_000;
/// What one gigabit per second leaves for data, bytes per second.
pub(crate) const GIGABIT: f64 = 117e6;
const CHUNK: u64 = 16 << 10;
const WINDOW: u64 = 512 << 10;

/// A lane of the model.
#[derive(Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) near: usize,
    pub(crate) far: usize,
    /// Its own bottleneck, bytes per second.
    pub(crate) rate: f64,
    /// Round trip without load.
    pub(crate) round_trip: u64,
}

/// What the network is.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) near: Vec<f64>,
    pub(crate) far: Vec<f64>,
    pub(crate) wires: Vec<Wire>,
    /// Time the target takes for a command.
    pub(crate) service: u64,
    /// So many writes on a lane get their data side by side, now one and now another, as the target asks for it: they
    /// end in lumps.
    pub(crate) abreast: usize,
    /// Rates of wires that change: when, which, to what.
    pub(crate) changes: Vec<(u64, usize, f64)>,
}

impl Shape {
    /// Lanes 1:1 of these rates, 100 µs round trip.
    pub(crate) fn paired(rates: &[f64]) -> Self {
        let wires = rates.iter().enumerate();
        Self {
            near: rates.to_vec(),
            far: rates.to_vec(),
            wires: wires.map(|(i, &rate)| Wire { near: i, far: i, rate, round_trip: 100 * MICRO }).collect(),
            service: 60 * MICRO,
            abreast: 1,
            changes: Vec::new(),
        }
    }

    /// These pairs of ports of one gigabit.
    pub(crate) fn mesh(near: usize, far: usize, pairs: &[(usize, usize)]) -> Self {
        Self {
            near: vec![GIGABIT; near],
            far: vec![GIGABIT; far],
            wires: pairs
                .iter()
                .map(|&(near, far)| Wire { near, far, rate: f64::MAX, round_trip: 100 * MICRO })
                .collect(),
            ..Self::paired(&[])
        }
    }

    pub(crate) fn lanes(&self) -> Vec<LaneShape> {
        let rate = |wire: &Wire| wire.rate.min(self.near[wire.near]).min(self.far[wire.far]);
        let best = self.wires.iter().map(rate).fold(0.0, f64::max);
        let lane = |(i, wire): (usize, &Wire)| LaneShape {
            name: format!("lane {i}"),
            near: Port(wire.near as u32),
            far: Port(wire.far as u32),
            // What an administrator who knows the rates would set for service-time.
            weight: (100.0 * rate(wire) / best) as u32,
            reserve: false,
            rate_hint: None,
        };
        self.wires.iter().enumerate().map(lane).collect()
    }
}

/// What is done on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) size: u64,
    pub(crate) depth: usize,
    /// Of a hundred.
    pub(crate) reads: u64,
    /// What does not count at the beginning, and what does, nanoseconds.
    pub(crate) warm: u64,
    pub(crate) time: u64,
    pub(crate) seed: u64,
}

impl Work {
    /// Long enough for what it is.
    pub(crate) fn new(size: u64, depth: usize, reads: u64) -> Self {
        let (warm, time) =
            if size < 64 << 10 { (100 * MILLI, 300 * MILLI) } else { (800 * MILLI, 1_600 * MILLI) };
        Self { size, depth, reads, warm, time, seed: 1 }
    }
}

/// What came of it after the warm-up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes per second.
    pub(crate) rate: f64,
    /// Mean, nanoseconds.
    pub(crate) latency: f64,
    /// Bytes of each lane.
    pub(crate) bytes: Vec<u64>,
    /// Bytes in each hundredth of a second.
    pub(crate) series: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A command reaches whoever sends the data.
    Sends {
        piece: usize,
    },
    /// A chunk leaves a server.
    Chunk {
        piece: usize,
        len: u64,
        stage: usize,
    },
    /// A piece is answered.
    Done {
        piece: usize,
    },
    Change {
        wire: usize,
        rate: u64,
    },
}

/// A server: works through what comes, one thing at a time.
#[derive(Clone, Copy)]
struct Server {
    rate: f64,
    free_at: u64,
}

impl Server {
    fn through(&mut self, now: u64, len: u64, noise: f64) -> u64 {
        self.free_at = self.free_at.max(now) + (len as f64 / self.rate * 1e9 * noise) as u64;
        self.free_at
    }
}

#[derive(Default)]
struct Stream {
    /// Pieces whose data waits to be sent, and how much.
    queue: VecDeque<(usize, u64)>,
    in_network: u64,
}

struct Under {
    piece: Piece,
    parent: usize,
    left: u64,
}

struct Parent {
    began: u64,
    left: usize,
}

struct Run<'a> {
    shape: &'a Shape,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    random: u64,
    /// By direction: near ports, far ports, wires.
    ports: [Vec<Server>; 2],
    far: [Vec<Server>; 2],
    wires: [Vec<Server>; 2],
    streams: Vec<[Stream; 2]>,
    pieces: Vec<Option<Under>>,
    free: Vec<usize>,
}

/// Does the work and says what came of it.
pub(crate) fn run(shape: &Shape, policy: Policy, work: Work) -> Outcome {
    let mut lanes = shape.lanes();
    if policy == Policy::Weighted {
        // There the least wins.
        lanes.iter_mut().for_each(|lane| lane.weight = 101 - lane.weight);
    }
    let mut scheduler = Scheduler::new(&lanes, policy);
    for lane in 0..lanes.len() {
        scheduler.set_use(lane, Use::Active, Duration::ZERO);
    }
    Run::new(shape, work.seed).work(&mut scheduler, work)
}

impl<'a> Run<'a> {
    fn new(shape: &'a Shape, seed: u64) -> Self {
        let servers = |rates: &[f64]| -> [Vec<Server>; 2] {
            let all: Vec<_> = rates.iter().map(|&rate| Server { rate, free_at: 0 }).collect();
            [all.clone(), all]
        };
        let wires: Vec<_> = shape.wires.iter().map(|wire| wire.rate).collect();
        let mut run = Self {
            shape,
            now: 0,
            events: BinaryHeap::new(),
            serial: 0,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            ports: servers(&shape.near),
            far: servers(&shape.far),
            wires: servers(&wires),
            streams: shape.wires.iter().map(|_| Default::default()).collect(),
            pieces: Vec::new(),
            free: Vec::new(),
        };
        for &(at, wire, rate) in &shape.changes {
            run.at(at, Event::Change { wire, rate: rate as u64 });
        }
        run
    }

    fn at(&mut self, time: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((time, self.serial, event)));
    }

    /// 0 to 1.
    fn chance(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// 0.9 to 1.1.
    fn noise(&mut self) -> f64 {
        0.9 + 0.2 * self.chance()
    }

    fn work(mut self, scheduler: &mut Scheduler, work: Work) -> Outcome {
        let mut parents: Vec<Parent> = Vec::new();
        let mut outcome = Outcome { bytes: vec![0; self.shape.wires.len()], ..Outcome::default() };
        let (mut bytes, mut latency, mut count) = (0, 0.0, 0_u64);
        let (warm, until) = (work.warm, work.warm + work.time);
        let mut offset = 0;
        for _ in 0..work.depth {
            self.submit(scheduler, &work, &mut parents, &mut offset);
        }
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > until {
                break;
            }
            self.now = time;
            let Event::Done { piece } = event else {
                self.handle(event);
                continue;
            };
            let Some(under) = self.pieces[piece].take() else { panic!("a piece ends once") };
            self.free.push(piece);
            scheduler.finished(&under.piece, Duration::from_nanos(time), true);
            let slot = (time / (10 * MILLI)) as usize;
            outcome.series.resize(outcome.series.len().max(slot + 1), 0);
            outcome.series[slot] += under.piece.len;
            if time > warm {
                bytes += under.piece.len;
                outcome.bytes[under.piece.lane] += under.piece.len;
            }
            let parent = &mut parents[under.parent];
            parent.left -= 1;
            if parent.left == 0 {
                if time > warm {
                    latency += (time - parent.began) as f64;
                    count += 1;
                }
                self.submit(scheduler, &work, &mut parents, &mut offset);
            }
        }
        outcome.rate = bytes as f64 / (work.time as f64 / 1e9);
        outcome.latency = latency / count.max(1) as f64;
        outcome
    }

    fn submit(
        &mut self,
        scheduler: &mut Scheduler,
        work: &Work,
        parents: &mut Vec<Parent>,
        offset: &mut u64,
    ) {
        // Reads and writes evenly mixed, and the same for every policy.
        let number = parents.len() as u64;
        let read = (number + 1) * work.reads / 100 > number * work.reads / 100;
        let direction = if read { Direction::Read } else { Direction::Write };
        let request = Request {
            direction,
            offset: *offset,
            len: work.size,
            divisible: true,
            block: 4096,
            cut: Boundaries::every(4096),
        };
        *offset = (*offset + work.size) % (1 << 40);
        let mut pieces = Pieces::new();
        scheduler.place(&request, Duration::from_nanos(self.now), &mut pieces).unwrap();
        parents.push(Parent { began: self.now, left: pieces.len() });
        for &piece in pieces.iter() {
            let under = Under { piece, parent: parents.len() - 1, left: piece.len };
            let index = self.free.pop().unwrap_or_else(|| {
                self.pieces.push(None);
                self.pieces.len() - 1
            });
            self.pieces[index] = Some(under);
            let half = self.shape.wires[piece.lane].round_trip / 2;
            let mut wait = (self.shape.service as f64 * self.noise()) as u64 + half;
            if !read {
                // The target asks for the data first.
                wait += half;
            }
            // A hiccup now and then.
            if self.chance() < 0.001 {
                wait += 2 * MILLI;
            }
            self.at(self.now + wait, Event::Sends { piece: index });
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Sends { piece } => {
                let Some(under) = &self.pieces[piece] else { return };
                let (lane, d, len) = (under.piece.lane, under.piece.direction as usize, under.piece.len);
                self.streams[lane][d].queue.push_back((piece, len));
                self.send(lane, d);
            }
            Event::Chunk { piece, len, stage } => {
                let Some(under) = &self.pieces[piece] else { return };
                let (lane, d) = (under.piece.lane, under.piece.direction as usize);
                if stage < 3 {
                    self.serve(piece, lane, d, len, stage);
                } else {
                    self.arrive(piece, lane, d, len);
                }
            }
            Event::Change { wire, rate } => {
                for d in 0..2 {
                    self.wires[d][wire].rate = rate as f64;
                }
            }
            Event::Done { .. } => {}
        }
    }

    /// As much as the window lets.
    fn send(&mut self, lane: usize, d: usize) {
        loop {
            let stream = &mut self.streams[lane][d];
            let Some((piece, left)) = stream.queue.front_mut() else { return };
            let (piece, len) = (*piece, (*left).min(CHUNK));
            if stream.in_network + len > WINDOW {
                return;
            }
            stream.in_network += len;
            *left -= len;
            if *left == 0 {
                stream.queue.pop_front();
            }
            let abreast = self.shape.abreast.min(stream.queue.len());
            if d == Direction::Write as usize && abreast > 1 {
                let next = (self.chance() * abreast as f64) as usize;
                self.streams[lane][d].queue.swap(0, next);
            }
            self.serve(piece, lane, d, len, 0);
        }
    }

    fn serve(&mut self, piece: usize, lane: usize, d: usize, len: u64, stage: usize) {
        let noise = self.noise();
        let wire = self.shape.wires[lane];
        // A read leaves by the storage's port and comes in by the local one.
        let server = match (stage, d) {
            (0, 0) | (2, 1) => &mut self.far[d][wire.far],
            (0, 1) | (2, 0) => &mut self.ports[d][wire.near],
            _ => &mut self.wires[d][lane],
        };
        let time = server.through(self.now, len, noise);
        let time = if stage == 2 { time + wire.round_trip / 2 } else { time };
        self.at(time, Event::Chunk { piece, len, stage: stage + 1 });
    }

    fn arrive(&mut self, piece: usize, lane: usize, d: usize, len: u64) {
        self.streams[lane][d].in_network -= len;
        let Some(under) = &mut self.pieces[piece] else { return };
        under.left -= len;
        if under.left == 0 {
            self.at(self.now, Event::Done { piece });
        }
        self.send(lane, d);
    }
}

//! One run: storage, lanes, clients, and what happens to them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf};
use lunway_multipath::{
    AluaState, Failback, Flap, Lane, LaneShape, MultipathDevice, Options, Policy, Port, QUEUE_BYTES,
    Unproven, WhenNone,
};
use lunway_retain::{RetainingDevice, UNFLUSHED_MAX};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::lane::{SettlesTooEarly, SimLane, value_of};
use crate::oracle::{Moment, Oracle};
use crate::random::Random;
use crate::storage::{SECTOR, SECTORS, Storage};

/// How long an operation waits at most before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How often something breaks in a run.
const TROUBLES: u64 = 300;

/// Shortest time between two restarts of the storage.
const RESTARTS_APART: Duration = Duration::from_millis(700);

/// How many lanes are not there when the disk is opened, and how long they stay away: as long as many runs take.
const JOIN_LATE_PERCENT: u64 = 30;
const JOIN_MICROS_MAX: u64 = 2_000_000;

/// What a run is like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Config {
    /// Lanes may stay lost and unsettled longer than operations wait: these may fail then.
    pub(crate) long_outages: bool,
    /// The storage is restarted now and then.
    pub(crate) restarts: bool,
    /// The storage reports a power-on over each new session.
    pub(crate) power_on_always: bool,
    /// The storage never reports a power-on: what the test must find out.
    pub(crate) power_on_never: bool,
    /// Lanes that are asked to hurry do.
    pub(crate) hurries: bool,
    /// Lanes say that sessions are settled when they are not: what the test must find out.
    pub(crate) settles_too_early: bool,
    /// Nothing proves lost sessions dead for long, and what is late is under way for less than the device waits.
    pub(crate) unproven: Option<Late>,
    /// The device retains what is not flushed, and writes it again.
    pub(crate) retains: bool,
    /// Barriers are answered although older commands have not ended: what the test must find out.
    pub(crate) barriers_leak: bool,
}

/// How late what was sent before a loss may reach the storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) most: Duration,
}

/// How long a device waits for a proof where there is none.
pub(crate) const SETTLE: Duration = Duration::from_millis(50);

/// How long the storage may take for a command that it has received late: far longer than that.
pub(crate) const SLOW: Duration = Duration::from_millis(500);

/// A counter.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// One run: storage, lanes, clients, and what happens to them.
pub(crate) struct World {
    pub(crate) config: Config,
    storage: Mutex<Storage>,
    oracle: Mutex<Oracle>,
    lanes: OnceLock<Vec<Arc<SimLane>>>,
    /// Writes that came late.
    pub(crate) late: Count,
    /// Operations that failed.
    pub(crate) failed: Count,
    /// Sectors that are being written.
    busy: Mutex<Vec<bool>>,
    /// Commands that the storage has received and not ended, by number.
    tasks: Mutex<BTreeSet<u64>>,
    last_task: Count,
    /// Rouses barriers: a command has ended, or a lane.
    pub(crate) stirred: Notify,
    /// Barriers that were answered.
    pub(crate) barriers: Count,
}

/// A command that the storage has received, until it is dropped.
pub(crate) struct Task {
    world: Arc<World>,
    number: u64,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.world.tasks.lock().unwrap().remove(&self.number);
        self.world.stirred.notify_waiters();
    }
}

/// What a run without fault was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) digest: u64,
    pub(crate) late: u64,
    pub(crate) failed: u64,
    pub(crate) restarts: u64,
    pub(crate) barriers: u64,
}

impl World {
    pub(crate) fn storage(&self) -> MutexGuard<'_, Storage> {
        self.storage.lock().unwrap()
    }

    pub(crate) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap()
    }

    fn lanes(&self) -> &[Arc<SimLane>] {
        self.lanes.get().unwrap()
    }

    pub(crate) fn lane_of(&self, lane: &SimLane) -> Arc<SimLane> {
        self.lanes().iter().find(|other| std::ptr::eq(&***other, lane)).unwrap().clone()
    }

    /// A flush that began at `begun` has ended.
    pub(crate) fn flushed(&self, answer: &Result<(), BlockError>, begun: Moment) {
        let mut oracle = self.oracle();
        oracle.flushed(answer, begun);
        if self.config.retains && answer.is_ok() {
            oracle.found_on_medium(self.storage().medium(), begun);
        }
    }

    /// The storage receives a command.
    pub(crate) fn receive(self: &Arc<Self>) -> Task {
        let number = self.last_task.get() + 1;
        self.last_task.set(number);
        self.tasks.lock().unwrap().insert(number);
        Task { world: self.clone(), number }
    }

    /// Those that it has received so far and not ended.
    pub(crate) fn tasks(&self) -> BTreeSet<u64> {
        self.tasks.lock().unwrap().clone()
    }

    /// Takes sectors for writing, unless somebody has one of them.
    pub(crate) fn take(&self, first: u64, count: u64) -> bool {
        let mut busy = self.busy.lock().unwrap();
        let range = &mut busy[first as usize..(first + count) as usize];
        let free = range.iter().all(|busy| !busy);
        if free {
            range.fill(true);
        }
        free
    }

    pub(crate) fn give_back(&self, first: u64, count: u64) {
        self.busy.lock().unwrap()[first as usize..(first + count) as usize].fill(false);
    }

    /// Runs a schedule. An error says what was wrong.
    pub(crate) fn run(seed: u64, config: Config) -> Result<Outcome, String> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(Self::schedule(seed, config))
    }

    async fn schedule(seed: u64, config: Config) -> Result<Outcome, String> {
        let mut random = Random::new(seed);
        let world = Arc::new(Self {
            config,
            storage: Mutex::new(Storage::new()),
            oracle: Mutex::new(Oracle::new(config.retains)),
            lanes: OnceLock::new(),
            late: Count::default(),
            failed: Count::default(),
            busy: Mutex::new(vec![false; SECTORS as usize]),
            tasks: Mutex::default(),
            last_task: Count::default(),
            stirred: Notify::new(),
            barriers: Count::default(),
        });
        let lanes: Vec<_> = (0..1 + random.below(4))
            .map(|number| {
                // At least the first one opens the disk. A late one must not hide a loss of power.
                let joins_late = config.restarts && number > 0 && random.percent(JOIN_LATE_PERCENT);
                let after = joins_late.then(|| random.micros(JOIN_MICROS_MAX));
                SimLane::new(world.clone(), random.fork(), after)
            })
            .collect();
        let _ = world.lanes.set(lanes);
        let lanes = Arc::new(world.device(&mut random));
        let device: Arc<dyn BlockDevice> = match config.retains {
            true => Arc::new(RetainingDevice::new(lanes.clone(), UNFLUSHED_MAX)),
            false => lanes.clone(),
        };

        let clients: Vec<_> = (0..2 + random.below(7))
            .map(|id| tokio::spawn(Client::new(id, world.clone(), device.clone(), random.fork()).run()))
            .collect();
        let trouble = tokio::spawn(world.clone().make_trouble(lanes.clone(), random.fork()));
        for client in clients {
            if timeout(Duration::from_secs(3600), client).await.is_err() {
                return Err("an operation never ended".to_owned());
            }
        }
        trouble.abort();
        let result = world.look_back(&lanes, &*device, random).await;
        let violation = world.oracle().violation.clone();
        match (violation, result) {
            (Some(what), _) | (None, Err(what)) => Err(what),
            (None, Ok(())) => Ok(Outcome {
                digest: world.oracle().digest,
                late: world.late.get(),
                failed: world.failed.get(),
                restarts: world.storage().restarts,
                barriers: world.barriers.get(),
            }),
        }
    }

    fn device(&self, random: &mut Random) -> MultipathDevice {
        let lanes = self.lanes().iter().enumerate().map(|(id, lane)| {
            let shape = LaneShape {
                name: format!("lane {id}"),
                near: Port(id as u32),
                far: Port(id as u32 / 2),
                weight: 1 + random.below(100) as u32,
                reserve: random.percent(15),
                rate_hint: None,
            };
            let lane: Arc<dyn Lane> = match self.config.settles_too_early {
                true => Arc::new(SettlesTooEarly(lane.clone())),
                false => lane.clone(),
            };
            (shape, lane)
        });
        let lanes = lanes.collect();
        let failbacks = [Failback::Immediate, Failback::After(Duration::from_millis(300)), Failback::Manual];
        let options = Options {
            policy: some_policy(random),
            failback: failbacks[random.below(3) as usize],
            when_none: WhenNone::Queue { time: PATIENCE, bytes: QUEUE_BYTES },
            settle: if self.config.unproven.is_some() { SETTLE } else { PATIENCE },
            unproven: if self.config.unproven.is_some() { Unproven::Resend } else { Unproven::Fail },
            // Far shorter than in life, so that lanes come and go within a run.
            flap: Flap {
                first: Duration::from_millis(5),
                most: Duration::from_millis(300),
                forget: Duration::from_millis(1500),
                together: Duration::from_millis(10),
            },
            ..Options::default()
        };
        MultipathDevice::new(lanes, options)
    }

    /// Breaks things until it is stopped.
    async fn make_trouble(self: Arc<Self>, device: Arc<MultipathDevice>, mut random: Random) {
        let pace = [3_000, 20_000, 100_000][random.below(3) as usize];
        let mut restarted = Instant::now();
        for _ in 0..TROUBLES {
            sleep(random.micros(pace)).await;
            let number = random.below(self.lanes().len() as u64) as usize;
            let lane = self.lanes()[number].clone();
            match random.below(100) {
                0..60 => {
                    tokio::spawn(self.clone().cut(lane, random.fork()));
                }
                // Not so often that nobody gets anything done.
                60..66 if self.config.restarts && restarted.elapsed() > RESTARTS_APART => {
                    restarted = Instant::now();
                    self.restart(&mut random);
                }
                66..72 => {
                    let mut storage = self.storage();
                    storage.write_back(&mut random);
                }
                72..80 => {
                    let time = random.micros(300_000);
                    tokio::spawn(async move {
                        lane.seem_silent(true);
                        sleep(time).await;
                        lane.seem_silent(false);
                    });
                }
                80..88 => {
                    let accesses = [
                        AluaState::Optimized,
                        AluaState::NonOptimized,
                        AluaState::Standby,
                        AluaState::Unavailable,
                    ];
                    let (access, time) = (accesses[random.below(4) as usize], random.micros(500_000));
                    tokio::spawn(async move {
                        lane.set_access(access);
                        sleep(time).await;
                        lane.set_access(AluaState::Optimized);
                    });
                }
                88..92 => device.set_policy(some_policy(&mut random)),
                92..96 => device.fail_back(),
                96..98 => {
                    let (device, time) = (device.clone(), random.micros(200_000));
                    device.disable(number);
                    tokio::spawn(async move {
                        sleep(time).await;
                        device.enable(number);
                    });
                }
                _ => {}
            }
        }
    }

    async fn cut(self: Arc<Self>, lane: Arc<SimLane>, mut random: Random) {
        if !lane.is_up() {
            return;
        }
        lane.die();
        sleep(random.long_tail(200)).await;
        if random.percent(40) {
            lane.seem_silent(true);
            sleep(random.long_tail(200)).await;
        }
        let settle = match self.config.long_outages && random.percent(20) {
            true => PATIENCE + random.micros(30_000_000),
            // Longer than most runs.
            false if self.config.unproven.is_some() && random.percent(50) => random.micros(8_000_000),
            false => random.long_tail(2000),
        };
        lane.lose(settle, random.long_tail(500));
    }

    fn restart(self: &Arc<Self>, random: &mut Random) {
        let losses = self.storage().restart(random);
        self.oracle().power_lost(&losses);
        for lane in self.lanes() {
            let (lane, mut random) = (lane.clone(), random.fork());
            lane.die();
            lane.join_now();
            tokio::spawn(async move {
                sleep(random.long_tail(300)).await;
                lane.lose(random.long_tail(500), random.long_tail(300));
            });
        }
    }

    /// Nothing breaks any more: everything must be where it belongs.
    async fn look_back(
        self: &Arc<Self>,
        lanes: &MultipathDevice,
        device: &dyn BlockDevice,
        mut random: Random,
    ) -> Result<(), String> {
        // Until lanes are back, trouble under way is over, and what was dropped has ended.
        sleep(3 * PATIENCE).await;
        for lane in self.lanes() {
            lane.set_access(AluaState::Optimized);
            lane.seem_silent(false);
        }
        // Sessions that died without anybody noticing, because nobody asked them anything.
        self.lanes()
            .iter()
            .filter(|lane| !lane.is_up())
            .for_each(|lane| lane.lose(Duration::ZERO, Duration::ZERO));
        sleep(PATIENCE).await;
        (0..self.lanes().len()).for_each(|lane| lanes.enable(lane));
        for lane in lanes.lanes() {
            if lane.in_flight != 0 || lane.in_flight_bytes != 0 {
                return Err(format!("operations are still in flight, so it says: {lane:?}"));
            }
        }
        self.read_all(device).await?;
        if self.config.power_on_never && !self.config.retains {
            // Whoever does not tell is found out by the flush that succeeds.
            let begun = self.oracle().begin();
            let answer = device.flush().await;
            self.flushed(&answer, begun);
            return Ok(());
        }
        for _ in 0..3 {
            let begun = self.oracle().begin();
            let answer = device.flush().await;
            let ok = answer.is_ok();
            self.flushed(&answer, begun);
            if ok {
                break;
            }
        }
        if self.oracle().owes() {
            return Err("acknowledged data was lost, and no flush said so".to_owned());
        }
        // What was flushed lives through anything.
        self.restart(&mut random);
        sleep(PATIENCE).await;
        self.read_all(device).await
    }

    async fn read_all(&self, device: &dyn BlockDevice) -> Result<(), String> {
        let begun = self.oracle().begin();
        let started = Instant::now();
        let buf = Buf::for_overwrite(SECTORS as usize * SECTOR);
        let buf = device.read(0, buf).await.map_err(|error| {
            format!("the disk cannot be read at the end, after {:?}: {error}", started.elapsed())
        })?;
        let values: Vec<_> = buf.chunks_exact(SECTOR).map(value_of).collect();
        self.oracle().found(0, &values, begun);
        Ok(())
    }
}

fn some_policy(random: &mut Random) -> Policy {
    let policies = [
        Policy::Adaptive,
        Policy::Adaptive,
        Policy::Adaptive,
        Policy::Failover { preferred: None },
        Policy::Failover { preferred: Some(0) },
        Policy::RoundRobin,
        Policy::RoundRobinSubset,
        Policy::LeastQueueDepth,
        Policy::Weighted,
        Policy::LeastBlocks,
        Policy::ServiceTime,
    ];
    policies[random.below(policies.len() as u64) as usize]
}

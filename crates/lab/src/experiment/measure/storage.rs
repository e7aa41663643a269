//! I/O over a network that runs: one job, with what happens meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lunway_bench::{
    BlockSizes, Cancel, Direction, Distribution, End, Job, Limit, Mix, Outcome, Pattern, Region, RwMode,
};
use lunway_block::spec::DeviceSpec;
use lunway_device::{OpenOptions, Opened};
use tokio::runtime::{Builder, Runtime};

use crate::cpu::CpuWatch;
use crate::experiment::measure::incidents::Incidents;
use crate::experiment::measure::pace::Pace;
use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::sampler::{Label, SAMPLING, Sampler};
use crate::experiment::measure::silence::Watched;
use crate::experiment::measure::target::{IQN, PORT, Target};
use crate::experiment::measure::team::Team;
use crate::experiment::plan::run::{NO_POLICY, Run, Storage, rows};
use crate::experiment::result::results::{Sample, SampledTimeline};
use crate::network::Network;
use crate::rate::Rate;

/// Bytes of each I/O that fills a unit, and how many are under way.
const FILL_BLOCK: u32 = 1 << 20;
const FILL_DEPTH: u32 = 8;
/// Rate of the cables while a unit is filled, so that filling need not wait for them.
const FILL_RATE: u64 = 40_000_000_000;
/// From this share of its cables on, a row is limited by them, however busy the processor is.
pub(crate) const FILLS_LINK: f64 = 0.93;

/// Result of one access: a sample for each direction, with its name.
pub(crate) type Measured = Vec<(&'static str, Sample)>;

/// A network with its targets, ready for I/O.
pub(crate) struct ServedNetwork<'a> {
    pub(crate) network: &'a Network,
    pub(crate) teams: &'a [Team],
    pub(crate) targets: &'a [Target],
    pub(crate) program: &'a Path,
    pub(crate) cancel: &'a Cancel,
}

/// Parameters of one measurement.
pub(crate) struct Step<'a> {
    pub(crate) access: RwMode,
    pub(crate) policy: &'a str,
    pub(crate) repeat: u32,
    /// Combined throughput of the run's cables, MB/s.
    pub(crate) capacity: f64,
}

/// Endpoints of a session of a run.
struct Way {
    label: Label,
    /// Options of the path that a policy uses, in the device grammar.
    options: String,
}

impl ServedNetwork<'_> {
    /// The ways of a run's sessions, each with what charts call it.
    fn ways(&self, run: &Run, policy: &str) -> Result<Vec<Way>, RunError> {
        if let Some(team) = self.teams.iter().find(|team| team.is_of(run)) {
            let sessions = team.sessions().into_iter().enumerate();
            let way = |(index, ends)| Way {
                label: Label { ends, name: format!("session {}", index + 1) },
                options: String::new(),
            };
            return Ok(sessions.map(way).collect());
        }
        let topology = self.network.topology();
        let address = |cable: &str, host: &str| self.network.host(host)?.address(topology.card(cable, host));
        let mut ways = Vec::new();
        for path in &run.paths {
            let from = address(&path.leaves, &run.from)?;
            let to = SocketAddr::new(address(&path.enters, &run.target)?, PORT);
            let weight = path.weight_for(policy).map_or(String::new(), |weight| format!(",weight={weight}"));
            let options = format!("{weight}{}", if path.reserve { ",reserve" } else { "" });
            ways.push(Way { label: Label { ends: (from, to), name: path.to_string() }, options });
        }
        Ok(ways)
    }

    /// The unit of a run under a policy, as the device grammar has it: one session, or a multipath device of exactly
    /// the run's paths, or of what a plan makes of their ends.
    pub(crate) fn url(&self, run: &Run, lun: u16, policy: &str) -> Result<String, RunError> {
        let ways = self.ways(run, policy)?;
        let (from, to) = ways[0].label.ends;
        let unit = format!("iscsi://{to}/{IQN}/{lun}");
        let Some(plan) = run.plan else {
            if policy == NO_POLICY {
                return Ok(format!("{unit}?from={from}"));
            }
            let lanes = ways.iter().map(|Way { label: Label { ends: (from, to), .. }, options }| {
                format!("lane={from}>{to}{options}&")
            });
            return Ok(format!("{unit}?{}policy={policy}", lanes.collect::<String>()));
        };
        let mut ends = Vec::new();
        for (from, to) in ways.iter().map(|way| way.label.ends) {
            ends.extend([format!("from={from}&"), format!("portal={to}&")]);
        }
        let mut seen = BTreeSet::new();
        ends.retain(|end| seen.insert(end.clone()));
        Ok(format!("{unit}?{}plan={plan}&policy={policy}", ends.concat()))
    }

    /// Writes the first `size` bytes of a unit, so that nothing reads what was never written. As fast as the machine
    /// can.
    pub(crate) fn fill(&self, run: &Run, lun: u16, size: u64, pace: &mut Pace<'_>) -> Result<(), RunError> {
        for cable in self.network.cables().iter().filter(|cable| cable.rate().is_some()) {
            cable.set_rate(Rate::new(FILL_RATE))?;
        }
        let job = Job {
            pattern: Pattern::Sequential,
            mix: Mix::WRITE,
            queue_depth: FILL_DEPTH,
            limit: Limit::Bytes(size),
            region: Some(Region { offset: 0, len: size }),
            destroy: true,
            ..sized(Job::new("filling"), u32::try_from(size.min(FILL_BLOCK.into())).unwrap_or(FILL_BLOCK))
        };
        // Over one path, whatever the run has: what it is filled by is not measured.
        let first = Run { paths: run.paths[..1].to_vec(), plan: None, team: None, ..run.clone() };
        let outcome = self.on_host(&first, lun, NO_POLICY, |opened, runtime| {
            let mut tell = |_: &lunway_bench::Tick| pace.tell(None);
            runtime.block_on(lunway_bench::run(opened.device.clone(), &job, &mut tell, self.cancel))
        })?;
        for cable in self.network.cables() {
            cable.mend()?;
        }
        let outcome = outcome.map_err(|source| RunError::Bench { test: run.test.clone(), source })?;
        match outcome.errors() {
            0 => Ok(()),
            _ => Err(RunError::Fill {
                test: run.test.clone(),
                said: outcome.write.first_error.unwrap_or_else(|| "I/Os failed".to_owned()),
            }),
        }
    }

    /// Measures one access of a run: a sample for each direction, with its name.
    pub(crate) fn measure(
        &self,
        run: &Run,
        storage: &Storage,
        step: &Step<'_>,
        pace: &mut Pace<'_>,
    ) -> Result<Measured, RunError> {
        let access = step.access;
        let time = storage.time;
        let job = job(storage, access);
        let incidents = Incidents::of(self, storage);
        let labels: Vec<Label> = self.ways(run, step.policy)?.into_iter().map(|way| way.label).collect();
        let watch = CpuWatch::start();
        let measured = self.on_host(run, storage.lun, step.policy, |opened, runtime| {
            if let Some(job) = warming_up(storage, &job) {
                let mut tell = |_: &lunway_bench::Tick| pace.tell(None);
                let warmed = lunway_bench::run(opened.device.clone(), &job, &mut tell, self.cancel);
                // What goes wrong here does so again below, where it is told.
                let _ = runtime.block_on(warmed);
            }
            let sessions = sessions(opened);
            let origin = Instant::now();
            let (device, silences) = Watched::new(opened.device.clone(), origin);
            thread::scope(|scope| {
                let sampler = Sampler::start(opened.device.clone(), origin, labels);
                let happening = incidents.start(scope, origin, time);
                let mut tell =
                    |tick: &lunway_bench::Tick| pace.tell(Some((tick.iops(), tick.bytes_per_second())));
                let measuring = lunway_bench::run(device, &job, &mut tell, self.cancel);
                let outcome = runtime.block_on(measuring);
                let had = happening.end();
                let mut seen = sampler.end(time, had.events.last().map(|event| event.at));
                // One that was lost and back between two looks is seen by its sessions alone.
                seen.lost = seen.lost.max(self::sessions(opened).saturating_sub(sessions));
                (outcome, had, seen, silences)
            })
        })?;
        let (outcome, had, seen, silences) = measured;
        let cpu = watch.stop();
        let short_of_processor = if storage.is_latency() { cpu.is_crowded() } else { cpu.limited };
        let outcome = outcome.map_err(|source| RunError::Bench { test: run.test.clone(), source })?;
        let mut events = had.events;
        events.extend(seen.marks);
        events.sort_by_key(|event| event.at);
        let resumed = had.back.iter().map(|at| silences.left_at(*at, time)).max();
        let (read_after, write_after) = seen.after.unzip();
        let common = Sample {
            repeat: step.repeat,
            silence_ms: ms(silences.longest(time)),
            resumed_ms: resumed.map(ms),
            lanes_lost: seen.lost,
            verified: outcome.verification.as_ref().map(|found| (found.checked, found.faulty)),
            partial: outcome.end == End::Cancelled,
            timeline: SampledTimeline { interval: SAMPLING, paths: seen.lines, events },
            ..Sample::default()
        };
        let sample = |figures: &Direction, is_read: bool| {
            let mb_s = figures.bytes_per_second() / 1e6;
            Sample {
                response_ms: figures.response.mean() / 1e6,
                median_ms: figures.response.percentile(50.0) as f64 / 1e6,
                p99_ms: figures.response.percentile(99.0) as f64 / 1e6,
                longest_ms: figures.response.max() as f64 / 1e6,
                mb: figures.bytes as f64 / 1e6,
                iops: figures.iops(),
                mb_s,
                mb_s_after: if is_read { read_after } else { write_after },
                errors: figures.errors,
                first_error: figures.first_error.clone(),
                // What fills its cables is limited by them.
                limited: short_of_processor && mb_s < FILLS_LINK * step.capacity,
                cpu: cpu.clone(),
                ..common.clone()
            }
        };
        let rows = rows(access).iter().zip(directions(access, &outcome));
        Ok(rows.map(|(rw, (figures, is_read))| (*rw, sample(figures, is_read))).collect())
    }

    /// Opens a unit on the run's host, on a thread that lives there, and closes it after `work`.
    pub(crate) fn on_host<T: Send>(
        &self,
        run: &Run,
        lun: u16,
        policy: &str,
        work: impl FnOnce(&Opened, &Runtime) -> T + Send,
    ) -> Result<T, RunError> {
        let url = self.url(run, lun, policy)?;
        self.network.host(&run.from)?.run(|| {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(RunError::Start)?;
            let opened = runtime.block_on(open(run, &url))?;
            let result = work(&opened, &runtime);
            runtime.block_on(opened.close_or_log());
            Ok(result)
        })?
    }
}

/// Opens a unit. The session waits in the kernel, not turning on a core: that core's time is to be seen for what it is.
pub(crate) async fn open(run: &Run, url: &str) -> Result<Opened, RunError> {
    let failed = |error| RunError::Open { test: run.test.clone(), source: Box::new(error) };
    let spec = DeviceSpec::parse(url).map_err(|error| failed(error.into()))?;
    let mut options = OpenOptions::default();
    options.iscsi.spin = Duration::ZERO;
    // Targets end with the network: a killed run leaves no session.
    options.iscsi.initiator_ports = Default::default();
    lunway_device::open(&spec, &options).await.map_err(failed)
}

/// Returns the number of sessions that the lanes have had.
fn sessions(opened: &Opened) -> u64 {
    let lanes = opened.multipath().map(|multipath| multipath.device().lanes());
    lanes.into_iter().flatten().map(|lane| lane.epoch).sum()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The directions of an outcome that an access has, and whether each is that of reads, in the order of its rows.
fn directions(access: RwMode, outcome: &Outcome) -> impl Iterator<Item = (&Direction, bool)> {
    let both = [(access.reads(), &outcome.read, true), (access.writes(), &outcome.write, false)];
    both.into_iter().filter(|(there, ..)| *there).map(|(_, figures, is_read)| (figures, is_read))
}

fn job(storage: &Storage, access: RwMode) -> Job {
    let blocks = u64::from(storage.block_size);
    Job {
        pattern: access.pattern(Distribution::Uniform),
        mix: access.mix(storage.mix),
        queue_depth: storage.queue_depth,
        limit: Limit::Time(storage.time),
        region: Some(Region { offset: 0, len: storage.size / blocks * blocks }),
        verify: storage.verify,
        destroy: true,
        ..sized(Job::new(access.name()), storage.block_size)
    }
}

/// Returns the warm-up before a job, on the same sessions. It is a job of its own, not the ramp of the job: where
/// requests take a good part of the time, those that begin in a ramp and end after it would count as if they had taken
/// no time.
fn warming_up(storage: &Storage, job: &Job) -> Option<Job> {
    let job = Job { limit: Limit::Time(storage.ramp), verify: false, ..job.clone() };
    (!storage.ramp.is_zero()).then_some(job)
}

fn sized(job: Job, block_size: u32) -> Job {
    Job { block_sizes: BlockSizes::Fixed(block_size), ..job }
}

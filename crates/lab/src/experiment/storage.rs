//! I/O over a network that runs: one job, with what happens meanwhile.

use std::path::Path as FilePath;
use std::thread;
use std::time::{Duration, Instant};

use lunway_bench::{BlockSizes, Cancel, Direction, End, Job, Limit, Mix, Outcome, Pattern, Region};
use lunway_block::spec::DeviceSpec;
use lunway_device::{OpenOptions, Opened};
use tokio::runtime::{Builder, Runtime};

use super::check::card;
use super::incidents::{Incidents, SAMPLING, Sampler};
use super::pace::Pace;
use super::results::{Sample, Timeline};
use super::run::{Access, Run, Storage};
use super::run_error::RunError;
use super::target::Target;
use crate::cpu::CpuWatch;
use crate::network::Network;
use crate::rate::Rate;
use crate::topology::End as CableEnd;

/// Bytes of each I/O that fills a unit, and how many are under way.
const FILL_BLOCK: u32 = 1 << 20;
const FILL_DEPTH: u32 = 8;
/// What fills a unit need not wait for its cable.
const FILL_RATE: u64 = 40_000_000_000;
/// From this share of its cables on, a row is limited by them, however busy the processor is.
pub(super) const FILLS_LINK: f64 = 0.93;

/// A network with its targets, ready for I/O.
pub(super) struct Ground<'a> {
    pub(super) network: &'a Network,
    pub(super) targets: &'a [Target],
    pub(super) program: &'a FilePath,
    pub(super) cancel: &'a Cancel,
}

impl Ground<'_> {
    /// The unit of a run, over its path.
    pub(super) fn url(&self, run: &Run, lun: u16) -> Result<String, RunError> {
        let topology = self.network.topology();
        let address = |cable: &str, host: &str| {
            let card = match card(topology, cable, host) {
                Some(CableEnd::Card { card, .. }) => card.as_str(),
                _ => "",
            };
            self.network.host(host)?.address(card)
        };
        let path = &run.paths[0];
        let from = address(&path.leaves, &run.from)?;
        let to = address(&path.enters, &run.target)?;
        Ok(Target::url(to, lun, from))
    }

    /// Writes the first `size` bytes of a unit, so that nothing reads what was never written. As fast as the machine can.
    pub(super) fn fill(&self, run: &Run, lun: u16, size: u64, pace: &mut Pace<'_>) -> Result<(), RunError> {
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
        let outcome = self.on_host(run, lun, |opened, runtime| {
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

    /// Measures one access of a run: a sample for each direction, with its name. `capacity` is what the run's cables carry, MB/s.
    pub(super) fn measure(
        &self,
        run: &Run,
        storage: &Storage,
        access: Access,
        repeat: u32,
        capacity: f64,
        pace: &mut Pace<'_>,
    ) -> Result<Vec<(&'static str, Sample)>, RunError> {
        let job = job(storage, access);
        let incidents = Incidents::of(self, storage);
        let labels: Vec<String> = run.paths.iter().map(ToString::to_string).collect();
        let watch = CpuWatch::start();
        let (outcome, timeline) = self.on_host(run, storage.lun, |opened, runtime| {
            let origin = Instant::now() + job.ramp;
            thread::scope(|scope| {
                let sampler = Sampler::start(opened.device.clone(), origin);
                let happening = incidents.start(scope, origin, storage.time);
                let mut tell =
                    |tick: &lunway_bench::Tick| pace.tell(Some((tick.iops(), tick.bytes_per_second())));
                let measuring = lunway_bench::run(opened.device.clone(), &job, &mut tell, self.cancel);
                let outcome = runtime.block_on(measuring);
                let timeline = Timeline {
                    interval: SAMPLING,
                    events: happening.end(),
                    paths: sampler.end(&labels, storage.time),
                };
                (outcome, timeline)
            })
        })?;
        let cpu = watch.stop();
        let outcome = outcome.map_err(|source| RunError::Bench { test: run.test.clone(), source })?;
        let sample = |figures: &Direction| Sample {
            repeat,
            response_ms: figures.response.mean() / 1e6,
            p99_ms: figures.response.percentile(99.0) as f64 / 1e6,
            longest_ms: figures.response.max() as f64 / 1e6,
            mb: figures.bytes as f64 / 1e6,
            iops: figures.iops(),
            mb_s: figures.bytes_per_second() / 1e6,
            errors: figures.errors,
            first_error: figures.first_error.clone(),
            verified: outcome.verification.as_ref().map(|found| (found.checked, found.faulty)),
            // What fills its cables is limited by them.
            limited: cpu.limited && figures.bytes_per_second() / 1e6 < FILLS_LINK * capacity,
            cpu: cpu.clone(),
            partial: outcome.end == End::Cancelled,
            timeline: timeline.clone(),
        };
        Ok(directions(access, &outcome).map(|(rw, figures)| (rw, sample(figures))).collect())
    }

    /// Opens a unit on the run's host, on a thread that lives there, and closes it after `work`.
    pub(super) fn on_host<T: Send>(
        &self,
        run: &Run,
        lun: u16,
        work: impl FnOnce(&Opened, &Runtime) -> T + Send,
    ) -> Result<T, RunError> {
        let url = self.url(run, lun)?;
        self.network.host(&run.from)?.run(|| {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(RunError::Start)?;
            let opened = runtime.block_on(open(run, &url))?;
            let result = work(&opened, &runtime);
            runtime.block_on(opened.close());
            Ok(result)
        })?
    }
}

/// Opens a unit. The session waits in the kernel, not turning on a core: that core's time is to be seen for what it is.
pub(super) async fn open(run: &Run, url: &str) -> Result<Opened, RunError> {
    let failed = |source| RunError::Open { test: run.test.clone(), source };
    let spec = DeviceSpec::parse(url).map_err(|error| failed(error.into()))?;
    let mut options = OpenOptions::default();
    options.iscsi.spin = Duration::ZERO;
    lunway_device::open(&spec, &options).await.map_err(failed)
}

/// The directions of an outcome, as rows are called.
fn directions(access: Access, outcome: &Outcome) -> impl Iterator<Item = (&'static str, &Direction)> {
    let both = [(access.reads(), &outcome.read), (access.writes(), &outcome.write)];
    let there = both.into_iter().filter(|(there, _)| *there).map(|(_, figures)| figures);
    access.rows().iter().copied().zip(there)
}

fn job(storage: &Storage, access: Access) -> Job {
    let read_percent = match (access.reads(), access.writes()) {
        (true, false) => 100,
        (false, true) => 0,
        _ => storage.mix,
    };
    let blocks = u64::from(storage.block_size);
    Job {
        pattern: if access.is_random() { Pattern::RANDOM } else { Pattern::Sequential },
        mix: Mix { read_percent },
        queue_depth: storage.queue_depth,
        limit: Limit::Time(storage.time),
        ramp: storage.ramp,
        region: Some(Region { offset: 0, len: storage.size / blocks * blocks }),
        verify: storage.verify,
        destroy: true,
        ..sized(Job::new(access.name()), storage.block_size)
    }
}

fn sized(job: Job, block_size: u32) -> Job {
    Job { block_sizes: BlockSizes::Fixed(block_size), ..job }
}

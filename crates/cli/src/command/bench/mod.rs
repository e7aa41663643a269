//! `lunway bench`.

pub(super) mod arguments;
mod client;
pub(super) mod durable;
mod live;
mod output;
pub(super) mod plan;
mod watch;
mod wire;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lunway_bench::fio::{JobFile, JobFileError};
use lunway_bench::profile::{self, Kind, Load};
use lunway_bench::{Cancel, Distribution, Job, Limit, Mix, Pattern, Rate, Region, RwMode, random_seed};
use lunway_block::BlockDevice;
use lunway_block::duration::parse_duration;
use lunway_block::size::{HumanSize, parse_size};
use lunway_block::spec::DeviceSpec;
use lunway_device::OpenOptions;

use self::arguments::{ArrivalsName, ProfileName, RwModeName, block_size, distribution, rate, region};
use self::client::Client;
use self::durable::make_durable;
use self::output::Outputs;
use self::plan::{Measured, Plan, may_write};
use self::watch::Watch;
use self::wire::Wire;
use crate::failure::Failure;
use crate::tail::Tail;
use crate::{device, interrupt, percent, sector};

pub(crate) use self::output::{environment, judge, result_text};
pub(crate) use self::plan::run_profile;

/// Measure a device.
///
/// Runs a profile; with --rw one job; with --job the jobs of a fio job file. Tests that write require --destroy if
/// the device holds data.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway bench ram:4G
  lunway bench iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0 --live
  lunway bench disk.img --rw randread --qd 16 --time 30s --html-file a.html
  lunway bench disk.img --job oltp.fio --stream - | tee oltp.ndjson")]
pub(crate) struct Bench {
    /// The device to measure
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Run the tests of this profile [default: anvil, unless --rw or --job is given]
    #[arg(long, value_name = "NAME", conflicts_with = "job")]
    profile: Option<ProfileName>,
    /// Run the jobs of a fio job file
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["rw", "time", "ramp", "size", "seed"]
    )]
    job: Option<PathBuf>,
    /// Run one job with this access pattern. With --profile steady: the pattern to repeat
    #[arg(long, value_name = "PATTERN")]
    rw: Option<RwModeName>,
    /// Bytes per I/O [default: 4K]
    #[arg(long, value_name = "SIZE", requires = "rw", value_parser = block_size)]
    bs: Option<u32>,
    /// I/Os in flight per worker [default: 1]
    #[arg(long, value_name = "N", requires = "rw")]
    qd: Option<u32>,
    /// Number of workers, each with its own thread [default: 1]
    #[arg(long, value_name = "N", requires = "rw")]
    numjobs: Option<u32>,
    /// Distribution of random addresses: uniform, once (each block once per pass), zipf:1.2, pareto:0.2
    #[arg(long, value_name = "NAME", requires = "rw", value_parser = distribution)]
    distribution: Option<Distribution>,
    /// Duration of the job or of each test: 10s, 2m [default: 5s per test of anvil, 10s for a job without --size]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Time for which each test runs before it is measured
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    ramp: Option<Duration>,
    /// Job: bytes to transfer. Profile: use this many bytes at the start of the device [default: 1G for anvil]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Number of times the profile crystal runs each test [default: 5]
    #[arg(long, value_name = "N", requires = "profile")]
    runs: Option<u32>,
    /// Use only this part of the device
    #[arg(long, value_name = "OFFSET+SIZE", requires = "rw", value_parser = region)]
    region: Option<Region>,
    /// Percentage of reads, for --rw rw and randrw [default: 50]
    #[arg(long, value_name = "PERCENT", requires = "rw", value_parser = percent::whole)]
    mix: Option<u8>,
    /// Issue I/Os at this rate, however the device responds: bytes per second (100M), or 5000iops
    #[arg(long, value_name = "RATE", requires = "rw", value_parser = rate)]
    rate: Option<Rate>,
    /// Distribution of --rate I/Os over time [default: even]
    #[arg(long, value_name = "NAME", requires = "rate")]
    arrivals: Option<ArrivalsName>,
    /// Write identifiable blocks, and check what is read
    #[arg(long, requires = "rw")]
    verify: bool,
    /// Seed of addresses and data; the same seed issues the same I/Os
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Logical sector size, for devices that have no fixed one: 512 or 4096
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    sector: Option<u32>,
    /// Bypass the page cache for files (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Allow the data on the device to be overwritten
    #[arg(long)]
    destroy: bool,
    /// Address of a `lunway net serve` that measures the wire to the device [default: port 3262 of the portal's host]
    #[arg(long, value_name = "HOST[:PORT]")]
    wire: Option<String>,
    /// Show progress four times a second; one line per second where output is not a terminal
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    outputs: Outputs,
}

/// Task that the command line asks for.
enum Task {
    Job(RwMode),
    File(Box<JobFile>),
    Profile(Kind),
}

/// Reads a job file. One that is not there has failed, one that cannot be meant is wrong usage.
pub(crate) fn job_file(path: &Path) -> Result<JobFile, Failure> {
    JobFile::read(path).map_err(|error| match error {
        JobFileError::Read { .. } => Failure::failed(error),
        error => Failure::Usage(error.to_string()),
    })
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        let task = self.task()?;
        self.outputs.check(&spec)?;
        let (measured, streamed, durable) = device::run(self.measure(&spec, &task))?;
        self.outputs.write(&spec.to_string(), &measured)?;
        streamed?;
        measured.judge()?;
        durable.map_err(Failure::Failed)
    }

    /// Makes sense of what depends on each other.
    fn task(&self) -> Result<Task, Failure> {
        let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
        if let (Some(RwModeName(rw)), Some(_)) = (self.rw, self.mix)
            && !rw.is_mixed()
        {
            return usage("--mix needs --rw rw or --rw randrw: the others only read or only write");
        }
        if self.rw.is_some_and(|rw| !rw.0.is_random()) && self.distribution.is_some() {
            return usage("--distribution needs a random --rw: a sequential one takes block after block");
        }
        match (self.rw, self.profile, &self.job) {
            (_, _, Some(path)) => Ok(Task::File(Box::new(job_file(path)?))),
            (Some(_), Some(ProfileName(Kind::Steady)), _) => {
                let others =
                    [self.numjobs.is_some(), self.region.is_some(), self.rate.is_some(), self.verify];
                if others.contains(&true) {
                    return usage(
                        "of a job, --profile steady takes --rw, --bs, --qd, --mix and --distribution",
                    );
                }
                Ok(Task::Profile(Kind::Steady))
            }
            (Some(_), Some(_), _) => usage("--rw runs a single job; of the profiles, only steady accepts it"),
            (Some(RwModeName(rw)), None, _) => Ok(Task::Job(rw)),
            (None, profile, _) => Ok(Task::Profile(profile.map_or(Kind::Anvil, |name| name.0))),
        }
    }

    async fn measure(
        &self,
        spec: &DeviceSpec,
        task: &Task,
    ) -> Result<(Measured, Result<(), Failure>, anyhow::Result<()>), Failure> {
        let (writes, direct) = match task {
            Task::Job(rw) => (rw.writes(), false),
            Task::File(file) => (file.writes(), file.direct()),
            Task::Profile(_) => (true, false),
        };
        let options = OpenOptions {
            sector: self.sector,
            direct: self.direct || direct,
            read_only: !writes,
            ..OpenOptions::default()
        };
        let opened = device::open(spec, &options).await?;
        Tail::tell(spec, opened.device.geometry().size);
        let cancel = interrupt::watch();
        let measured = self.measure_on(&opened.device, spec, task, &cancel).await;
        let durable = match &measured {
            Ok(_) if writes && !cancel.is_cancelled() => make_durable(&*opened.device, &cancel).await,
            _ => Ok(()),
        };
        let paths = opened.device.paths();
        opened.close_or_log().await;
        let (mut measured, streamed) = measured?;
        measured.wire = Wire::measure(self.wire.as_deref(), &paths, &measured.outcomes, &cancel);
        measured.notes.extend(measured.wire.lines());
        if let Err(error) = &durable {
            measured.warnings.push(error.to_string());
        }
        Ok((measured, streamed, durable))
    }

    async fn measure_on(
        &self,
        device: &Arc<dyn BlockDevice>,
        spec: &DeviceSpec,
        task: &Task,
        cancel: &Cancel,
    ) -> Result<(Measured, Result<(), Failure>), Failure> {
        let environment = environment(&**device);
        let plan = self.plan(device, task).await?;
        let about = plan.about(&device.geometry());
        let mut watch = Watch::bar(device.clone(), cancel.clone());
        if let Some(stream) = self.outputs.open_stream()? {
            let streaming = watch.streaming(stream, &spec.to_string(), &about);
            watch = streaming.map_err(|error| self.outputs.stream_failure(error))?;
        }
        if self.live {
            watch = watch.live(format!("lunway bench {spec}: {about}"));
        } else if io::stderr().is_terminal() {
            eprintln!("{spec}: {about}");
        }
        let client = Client::look();
        let measured = plan.run(device, &mut watch, cancel).await;
        let complete = measured.as_ref().is_ok_and(|measured| measured.complete);
        let streamed = watch.finish(complete).map_err(|error| self.outputs.stream_failure(error));
        let mut measured = Measured { environment, ..measured? };
        if let Some(client) = client {
            measured.notes.push(client.note());
            measured.warnings.extend(client.warning(&measured.outcomes, plan.is_in_turn()));
        }
        Ok((measured, streamed))
    }

    async fn plan(&self, device: &Arc<dyn BlockDevice>, task: &Task) -> Result<Plan, Failure> {
        match task {
            Task::Job(rw) => Ok(Plan::job(self.single(*rw))),
            Task::File(file) => {
                let schedule = file.schedule(&device.geometry(), self.destroy);
                schedule.map(Plan::Jobs).map_err(|error| Failure::Usage(error.to_string()))
            }
            Task::Profile(kind) => {
                let mut options = self.profile_options(*kind);
                options.destroy = may_write(device, *kind, &options).await?;
                Ok(Plan::Profile(*kind, Box::new(options)))
            }
        }
    }

    fn pattern_of(&self, rw: RwMode) -> Pattern {
        rw.pattern(self.distribution.unwrap_or(Distribution::Uniform))
    }

    fn mix_of(&self, rw: RwMode) -> Mix {
        rw.mix(self.mix.unwrap_or(50))
    }

    fn single(&self, rw: RwMode) -> Job {
        let limit = match (self.time, self.size) {
            (Some(time), Some(bytes)) => Limit::Either { time, bytes },
            (None, Some(bytes)) => Limit::Bytes(bytes),
            (time, None) => Limit::Time(time.unwrap_or(Duration::from_secs(10))),
        };
        let block_size = self.bs.unwrap_or(4096);
        let queue_depth = self.qd.unwrap_or(1);
        let size = HumanSize(block_size.into());
        let jobs = self.numjobs.unwrap_or(1);
        let clones = if jobs > 1 { format!(" x{jobs}") } else { String::new() };
        Job {
            pattern: self.pattern_of(rw),
            mix: self.mix_of(rw),
            block_sizes: block_size.into(),
            queue_depth,
            jobs,
            limit,
            ramp: self.ramp.unwrap_or_default(),
            rate: self.rate,
            arrivals: self.arrivals.unwrap_or(ArrivalsName::Even).into(),
            region: self.region,
            seed: self.seed.unwrap_or_else(random_seed),
            verify: self.verify,
            destroy: self.destroy,
            ..Job::new(format!("{} {size} QD{queue_depth}{clones}", rw.name()))
        }
    }

    fn profile_options(&self, kind: Kind) -> profile::Options {
        let defaults = profile::Options::of(kind);
        let load = self.rw.map(|RwModeName(rw)| Load {
            pattern: self.pattern_of(rw),
            mix: self.mix_of(rw),
            block_size: self.bs.unwrap_or(defaults.load.block_size),
            queue_depth: self.qd.unwrap_or(defaults.load.queue_depth),
        });
        profile::Options {
            duration: self.time.unwrap_or(defaults.duration),
            ramp: self.ramp.unwrap_or(defaults.ramp),
            region: self.size.unwrap_or(defaults.region),
            destroy: self.destroy,
            seed: self.seed.unwrap_or(defaults.seed),
            runs: self.runs.unwrap_or(defaults.runs),
            load: load.unwrap_or(defaults.load),
        }
    }
}

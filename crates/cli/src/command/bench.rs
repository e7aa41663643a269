//! `lunway bench`.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use lunway_bench::profile::{self, Profile};
use lunway_bench::report;
use lunway_bench::score::Score;
use lunway_bench::{
    Cancel, End, Job, Limit, Mix, Outcome, Pattern, Rate, Region, Table, Tick, fio, holds_data, random_seed,
};
use lunway_block::BlockDevice;
use lunway_block::duration::parse_duration;
use lunway_block::size::{HumanSize, parse_size};
use lunway_block::spec::DeviceSpec;
use lunway_device::OpenOptions;
use lunway_report::{Fact, html};

use crate::failure::Failure;
use crate::{device, interrupt, progress, terminal};

/// Measure a device.
///
/// Without --rw, runs a profile: the ten rows that storage reviewers compare. With --rw, runs one job. What writes asks for
/// --destroy where the device holds data.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway bench ram:4G
  lunway bench iscsi://192.0.2.10/iqn.2026-11.io.lunway:disk/0 --html report.html
  lunway bench disk.img --rw randrw --mix 70 --bs 8K --qd 16 --time 30s --json result.json")]
pub(crate) struct Bench {
    /// The device to measure
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Run these rows [default: anvil, unless --rw is given]
    #[arg(long, value_name = "NAME", conflicts_with = "rw")]
    profile: Option<ProfileName>,
    /// Run one job: what it does
    #[arg(long, value_name = "PATTERN")]
    rw: Option<Access>,
    /// Bytes per I/O [default: 4K]
    #[arg(long, value_name = "SIZE", requires = "rw", value_parser = block_size)]
    bs: Option<u32>,
    /// I/Os in flight [default: 1]
    #[arg(long, value_name = "N", requires = "rw")]
    qd: Option<u32>,
    /// How long to measure each row or the job, as 10s or 2m [default: 5s a row, 10s for a job without --size]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// How long to run each before measuring
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    ramp: Option<Duration>,
    /// Job: move this many bytes. Profile: work in the first so many bytes [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Work only in this part of the device
    #[arg(long, value_name = "OFFSET+SIZE", requires = "rw", value_parser = region)]
    region: Option<Region>,
    /// Percent of reads, for --rw rw and randrw [default: 50]
    #[arg(long, value_name = "PERCENT", requires = "rw", value_parser = clap::value_parser!(u8).range(0..=100))]
    mix: Option<u8>,
    /// I/Os are due at this rate, whatever the device does: bytes per second (100M), or I/Os per second (5000iops)
    #[arg(long, value_name = "RATE", requires = "rw", value_parser = rate)]
    rate: Option<Rate>,
    /// Write blocks that can be told apart, and check what is read
    #[arg(long, requires = "rw")]
    verify: bool,
    /// Of addresses and data; the same seed issues the same I/Os
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Logical sector of the device, where it can have any: 512 or 4096
    #[arg(long, value_name = "BYTES")]
    sector: Option<u32>,
    /// Open files past the page cache (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Overwrite what the device holds
    #[arg(long)]
    destroy: bool,
    /// Write the figures as JSON in fio's layout; - is standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    /// Sequential 4 MiB, random 4K at depth 1, 4 and 16, both ways; 32K and 128K reads
    Anvil,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Access {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Sequential reads and writes
    Rw,
    /// Random reads and writes
    Randrw,
}

impl Access {
    fn pattern(self) -> Pattern {
        match self {
            Self::Read | Self::Write | Self::Rw => Pattern::Sequential,
            Self::Randread | Self::Randwrite | Self::Randrw => Pattern::RANDOM,
        }
    }

    /// `None`: the mix is free.
    fn mix(self) -> Option<Mix> {
        match self {
            Self::Read | Self::Randread => Some(Mix::READ),
            Self::Write | Self::Randwrite => Some(Mix::WRITE),
            Self::Rw | Self::Randrw => None,
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    let size = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(size).map_err(|_| format!("{} is more than any I/O can have", HumanSize(size)))
}

fn region(text: &str) -> Result<Region, String> {
    let size = |text| parse_size(text).map_err(|error| error.to_string());
    let (offset, len) =
        text.split_once('+').ok_or("write where it starts and how long it is, as in 1G+512M")?;
    Ok(Region { offset: size(offset)?, len: size(len)? })
}

fn rate(text: &str) -> Result<Rate, String> {
    match text.strip_suffix("iops") {
        Some(count) => {
            count.trim().parse().map(Rate::Iops).map_err(|_| format!("`{text}` is no number of iops"))
        }
        None => parse_size(text).map(Rate::BytesPerSecond).map_err(|error| error.to_string()),
    }
}

/// What was measured, and how.
struct Measured {
    outcomes: Vec<Outcome>,
    notes: Vec<String>,
    environment: Vec<Fact>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        if let (Some(rw), Some(_)) = (self.rw, self.mix)
            && rw.mix().is_some()
        {
            let message = "--mix needs --rw rw or --rw randrw: the others only read or only write";
            return Err(Failure::Usage(message.to_owned()));
        }
        let measured = device::run(self.measure(&spec))?;
        self.show(&spec, &measured)?;
        judge(&measured.outcomes)
    }

    async fn measure(&self, spec: &DeviceSpec) -> Result<Measured, Failure> {
        let options = OpenOptions { sector: self.sector, direct: self.direct, ..OpenOptions::default() };
        let writes = self.rw.is_none_or(|rw| rw.mix() != Some(Mix::READ));
        let options = OpenOptions { read_only: !writes, ..options };
        let opened = device::open(spec, &options).await?;
        let environment = environment(&*opened.device);
        let cancel = interrupt::watch();
        let measured = match self.rw {
            Some(rw) => self.measure_job(&opened.device, rw, &cancel).await,
            None => self.measure_profile(&opened.device, &cancel).await,
        };
        opened.close().await;
        let (outcomes, notes) = measured?;
        Ok(Measured { outcomes, notes, environment })
    }

    async fn measure_job(
        &self,
        device: &Arc<dyn BlockDevice>,
        rw: Access,
        cancel: &Cancel,
    ) -> Result<(Vec<Outcome>, Vec<String>), Failure> {
        let job = self.job(rw);
        let bar = progress::fraction();
        let mut show = |tick: &Tick| show_tick(&bar, &job.name, tick);
        let outcome = lunway_bench::run(device.clone(), &job, &mut show, cancel).await;
        bar.finish_and_clear();
        outcome.map(|outcome| (vec![outcome], Vec::new())).map_err(bench_failure)
    }

    fn job(&self, rw: Access) -> Job {
        let limit = match (self.time, self.size) {
            (Some(time), Some(bytes)) => Limit::Either { time, bytes },
            (None, Some(bytes)) => Limit::Bytes(bytes),
            (time, None) => Limit::Time(time.unwrap_or(Duration::from_secs(10))),
        };
        let mix = rw.mix().unwrap_or(Mix { read_percent: self.mix.unwrap_or(50) });
        let block_size = self.bs.unwrap_or(4096);
        let queue_depth = self.qd.unwrap_or(1);
        let size = HumanSize(block_size.into());
        Job {
            pattern: rw.pattern(),
            mix,
            block_sizes: block_size.into(),
            queue_depth,
            limit,
            ramp: self.ramp.unwrap_or_default(),
            rate: self.rate,
            region: self.region,
            seed: self.seed.unwrap_or_else(random_seed),
            verify: self.verify,
            destroy: self.destroy,
            ..Job::new(format!("{} {size} QD{queue_depth}", rw.name()))
        }
    }

    async fn measure_profile(
        &self,
        device: &Arc<dyn BlockDevice>,
        cancel: &Cancel,
    ) -> Result<(Vec<Outcome>, Vec<String>), Failure> {
        let defaults = profile::Options::default();
        let mut options = profile::Options {
            duration: self.time.unwrap_or(defaults.duration),
            ramp: self.ramp.unwrap_or(defaults.ramp),
            region: self.size.unwrap_or(defaults.region),
            destroy: self.destroy,
            seed: self.seed.unwrap_or(defaults.seed),
            ..defaults
        };
        options.destroy = may_write(device, &options).await?;
        let profile = profile::anvil(&device.geometry(), &options);
        let outcomes = run_profile(&profile, device, cancel).await?;
        Ok((outcomes, profile.notes))
    }

    fn show(&self, spec: &DeviceSpec, measured: &Measured) -> Result<(), Failure> {
        let Measured { outcomes, notes, environment } = measured;
        let to_stdout = self.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
        if to_stdout {
            let document =
                serde_json::to_string_pretty(&fio::to_json(outcomes)).context("cannot build JSON")?;
            terminal::print(&document)?;
        } else {
            terminal::print(&format!("{}\n", result_text(outcomes, notes)))?;
        }
        let mut written = Vec::new();
        if let Some(path) = self.json.as_ref().filter(|_| !to_stdout) {
            let document =
                serde_json::to_string_pretty(&fio::to_json(outcomes)).context("cannot build JSON")?;
            fs::write(path, document + "\n").with_context(|| format!("cannot write {}", path.display()))?;
            written.push(path);
        }
        if let Some(path) = &self.html {
            let mut document = report::document("lunway bench", &spec.to_string(), outcomes);
            document.environment.clone_from(environment);
            document.notes.clone_from(notes);
            fs::write(path, html(&document)).with_context(|| format!("cannot write {}", path.display()))?;
            written.push(path);
        }
        for path in written.into_iter().filter(|_| !to_stdout) {
            terminal::print(&format!("written: {}", path.display()))?;
        }
        Ok(())
    }
}

/// Whether a profile may write: it was told so, or there is nothing to lose. Says so if not.
async fn may_write(device: &Arc<dyn BlockDevice>, options: &profile::Options) -> Result<bool, Failure> {
    let geometry = device.geometry();
    if geometry.read_only {
        eprintln!("lunway: the device is read-only: measuring reads only");
        return Ok(false);
    }
    if options.destroy {
        return Ok(true);
    }
    let sector = u64::from(geometry.logical_sector);
    let region = Region { offset: 0, len: options.region.min(geometry.size) / sector * sector };
    match holds_data(&**device, region).await.context("cannot find out whether the device holds data")? {
        None => Ok(true),
        Some(offset) => {
            eprintln!(
                "lunway: the device holds data (at offset {offset}): measuring reads only; --destroy overwrites it and \
                 measures writes too"
            );
            Ok(false)
        }
    }
}

/// Runs a profile under a progress bar.
pub(crate) async fn run_profile(
    profile: &Profile,
    device: &Arc<dyn BlockDevice>,
    cancel: &Cancel,
) -> Result<Vec<Outcome>, Failure> {
    let bar = progress::fraction();
    let outcomes = profile
        .run(
            device,
            &mut |step, tick| {
                let name = format!("{} ({}/{})", step.name, step.index + 1, step.count);
                show_tick(&bar, &name, tick);
            },
            cancel,
        )
        .await;
    bar.finish_and_clear();
    outcomes.map_err(bench_failure)
}

fn show_tick(bar: &ProgressBar, name: &str, tick: &Tick) {
    let left = tick.total.map_or(String::new(), |total| progress::left(total.saturating_sub(tick.elapsed)));
    let doing = if tick.reading_back { ", reading back" } else { "" };
    progress::set_fraction(bar, tick.fraction);
    bar.set_prefix(name.to_owned());
    let mb_s = tick.bytes_per_second() / 1e6;
    bar.set_message(format!("{:.0} IOPS  {mb_s:.1} MB/s{doing}  {left}", tick.iops()));
}

fn bench_failure(error: lunway_bench::BenchError) -> Failure {
    use lunway_bench::BenchError;
    match error {
        BenchError::Job(error) => Failure::Usage(error.to_string()),
        BenchError::WouldDestroy { offset } => Failure::failed(anyhow!(
            "the device holds data (at offset {offset}), which this job would overwrite: --destroy allows it"
        )),
        error => Failure::failed(error),
    }
}

/// Table, verification, score and notes.
pub(crate) fn result_text(outcomes: &[Outcome], notes: &[String]) -> String {
    let mut text = Table::of(outcomes).to_string();
    for outcome in outcomes {
        let name = &outcome.job.name;
        if let Some(found) = &outcome.verification {
            text += &format!("\n{name}: {} blocks verified, {} wrong.", found.checked, found.faulty);
            for fault in found.faults.iter().take(3) {
                text += &format!("\n  {fault}");
            }
        }
        for (direction, figures) in outcome.directions() {
            if let Some(error) = &figures.first_error {
                text += &format!("\n{name}, first {direction} error: {error}");
            }
        }
        if outcome.rate_missed() {
            text +=
                &format!("\n{name}: the rate was not reached; its response times are those of an overload.");
        }
    }
    if let Some(total) = Score::of(outcomes).total() {
        text += &format!("\nScore: {total:.0} (1000 is a published NAS with disks).");
    }
    for note in notes {
        text += &format!("\n{note}");
    }
    text
}

/// Facts for a report. The device's name is not among them: it stands in the heading.
pub(crate) fn environment(device: &dyn BlockDevice) -> Vec<Fact> {
    let geometry = device.geometry();
    let sectors =
        format!("{} bytes logical, {} bytes physical", geometry.logical_sector, geometry.physical_sector);
    let mut facts =
        vec![Fact::new("Size", HumanSize(geometry.size).to_string()), Fact::new("Sectors", sectors)];
    facts.extend(lunway_report::environment());
    facts
}

/// Results are shown whatever they are; whether they are good is the exit code.
pub(crate) fn judge(outcomes: &[Outcome]) -> Result<(), Failure> {
    let faulty: u64 = outcomes.iter().filter_map(|outcome| Some(outcome.verification.as_ref()?.faulty)).sum();
    let errors: u64 = outcomes.iter().map(Outcome::errors).sum();
    if faulty > 0 {
        return Err(Failure::failed(anyhow!("{faulty} blocks did not hold what was written")));
    }
    if outcomes.iter().any(|outcome| outcome.end == End::Failing) {
        return Err(Failure::failed(anyhow!(
            "ended early: nothing but errors came from the device any more"
        )));
    }
    if errors > 0 {
        return Err(Failure::failed(anyhow!("{errors} I/Os failed")));
    }
    if outcomes.iter().any(|outcome| outcome.end == End::Cancelled) {
        return Err(Failure::failed(anyhow!("interrupted: the figures cover what was done until then")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_regions_are_read_as_people_write_them() {
        assert_eq!(rate("5000iops"), Ok(Rate::Iops(5000)));
        assert_eq!(rate("100M"), Ok(Rate::BytesPerSecond(100 << 20)));
        assert!(rate("fast").is_err() && rate("manyiops").is_err());
        assert_eq!(region("1G+512M"), Ok(Region { offset: 1 << 30, len: 512 << 20 }));
        assert!(region("1G").is_err());
        assert!(block_size("8G").is_err());
    }
}

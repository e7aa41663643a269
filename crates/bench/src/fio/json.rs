//! fio's JSON: what existing programs read.
//!
//! Field names, nesting and units are those of `fio --output-format=json` 3.33, so that parsers find what they look
//! for. `slat_ns` is from intended to submitted, `clat_ns` from submitted to completed, `lat_ns` from intended to
//! completed. Where we do not measure what a field means it is 0, as fio's own is where an engine does not: `ctx`, the
//! submission batches. Fields that fio does not have are in one object, `lunway`, per job.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lunway_report::utc;
use serde_json::{Map, Value, json};

use super::bins::bins;
use crate::load::access::{Distribution, Pattern};
use crate::load::job::{Arrivals, Fill, Job, Limit, Rate};
use crate::load::sizes::{BlockSizes, Share};
use crate::measure::cpu::CpuTime;
use crate::measure::latency::Latency;
use crate::measure::outcome::{Direction, End, Outcome};
use crate::measure::series::Point;

/// fio's default percentiles.
pub const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// Level of detail of the latencies written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// Spread and percentiles.
    Json,
    /// Every bucket too, and percentiles of all three.
    JsonPlus,
}

/// A whole document with one entry in `jobs` per outcome.
pub fn to_json(outcomes: &[Outcome]) -> Value {
    document(outcomes, Detail::Json)
}

/// [`to_json`] with `bins`: how many I/Os fell in each of fio's latency buckets, as `fio --output-format=json+` with
/// all percentiles switched on.
pub fn to_json_plus(outcomes: &[Outcome]) -> Value {
    document(outcomes, Detail::JsonPlus)
}

fn document(outcomes: &[Outcome], detail: Detail) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "fio version": concat!("lunway-", env!("CARGO_PKG_VERSION")),
        "timestamp": now.as_secs(),
        "timestamp_ms": now.as_millis() as u64,
        "time": utc(now.as_secs()),
        "jobs": outcomes.iter().map(|outcome| detailed(outcome, detail)).collect::<Vec<_>>(),
    })
}

/// The entry of one outcome.
pub(crate) fn job(outcome: &Outcome) -> Value {
    detailed(outcome, Detail::Json)
}

fn detailed(outcome: &Outcome, detail: Detail) -> Value {
    let cpu = |part| CpuTime::percent(part, outcome.elapsed);
    let latency = {
        let mut all = outcome.read.response.clone();
        all.merge(&outcome.write.response);
        all
    };
    json!({
        "jobname": outcome.job.name,
        "groupid": 0,
        "error": if outcome.errors() == 0 { 0 } else { EIO },
        "eta": 0,
        "elapsed": (outcome.job.ramp + outcome.elapsed).as_secs_f64().ceil() as u64,
        "job options": options(&outcome.job),
        "read": direction(outcome, &outcome.read, detail, |point| (point.read_ios, point.read_bytes)),
        "write": direction(outcome, &outcome.write, detail, |point| (point.write_ios, point.write_bytes)),
        "trim": direction(outcome, &Direction::default(), detail, |_| (0, 0)),
        "sync": { "total_ios": 0, "lat_ns": spread(&Latency::default()) },
        "job_runtime": millis(outcome.elapsed),
        "usr_cpu": cpu(outcome.cpu.user),
        "sys_cpu": cpu(outcome.cpu.system),
        "ctx": 0,
        "majf": outcome.cpu.faults_major,
        "minf": outcome.cpu.faults_minor,
        "iodepth_level": depth_level(outcome),
        "iodepth_submit": shares(["0", "4", "8", "16", "32", "64", ">=64"].iter().map(|&key| (key, 0.0))),
        "iodepth_complete": shares(["0", "4", "8", "16", "32", "64", ">=64"].iter().map(|&key| (key, 0.0))),
        "latency_ns": latency_shares(&latency, 0, 1, &STEPS[..10]),
        "latency_us": latency_shares(&latency, 1000, 1000, &STEPS[..10]),
        "latency_ms": latency_shares(&latency, 1_000_000, 1_000_000, &STEPS),
        "latency_depth": outcome.job.queue_depth,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
        "lunway": extra(outcome),
    })
}

/// Error number that fio reports for a job with failed I/O: `EIO`.
const EIO: u32 = 5;

/// fio's latency classes; a class holds what is above the one before it.
const STEPS: [(&str, u64); 12] = [
    ("2", 2),
    ("4", 4),
    ("10", 10),
    ("20", 20),
    ("50", 50),
    ("100", 100),
    ("250", 250),
    ("500", 500),
    ("750", 750),
    ("1000", 1000),
    ("2000", 2000),
    (">=2000", u64::MAX),
];

/// The job as fio would be told it: what stands here is a section of a job file.
fn options(job: &Job) -> Value {
    let rw = match (job.pattern, job.mix.read_percent) {
        (Pattern::Sequential, 100) => "read",
        (Pattern::Sequential, 0) => "write",
        (Pattern::Sequential, _) => "rw",
        (Pattern::Random(_), 100) => "randread",
        (Pattern::Random(_), 0) => "randwrite",
        (Pattern::Random(_), _) => "randrw",
    };
    let mut options = Map::new();
    let mut set = |key: &str, value: String| options.insert(key.into(), value.into());
    set("name", job.name.clone());
    set("rw", rw.into());
    match &job.block_sizes {
        BlockSizes::Fixed(block_size) => set("bs", block_size.to_string()),
        BlockSizes::Split { read, write } => {
            // fio wants something for reads even where there are none.
            let [read, write] =
                [if read.is_empty() { write } else { read }, if write.is_empty() { read } else { write }];
            set("bssplit", format!("{},{}", split(read), split(write)))
        }
    };
    set("iodepth", job.queue_depth.to_string());
    if job.jobs > 1 {
        set("numjobs", job.jobs.to_string());
    }
    match job.pattern {
        Pattern::Random(Distribution::Uniform) => set("norandommap", "1".into()),
        Pattern::Random(Distribution::Zipf(theta)) => set("random_distribution", format!("zipf:{theta}")),
        Pattern::Random(Distribution::Pareto(share)) => set("random_distribution", format!("pareto:{share}")),
        Pattern::Random(Distribution::Once) | Pattern::Sequential => None,
    };
    if job.verify {
        set("verify", "crc32c".into());
    }
    if job.fill == Fill::Zero {
        set("zero_buffers", "1".into());
    }
    set("randseed", job.seed.to_string());
    if rw.ends_with("rw") {
        set("rwmixread", job.mix.read_percent.to_string());
    }
    if let Some(time) = job.limit.time() {
        set("runtime", format!("{}ms", time.as_millis()));
        if !matches!(job.limit, Limit::Either { .. }) {
            set("time_based", "1".into());
        }
    }
    if let Some(bytes) = job.limit.bytes() {
        set("io_size", bytes.to_string());
    }
    if !job.ramp.is_zero() {
        set("ramp_time", format!("{}ms", job.ramp.as_millis()));
    }
    match job.rate {
        Some(Rate::Iops(rate)) => set("rate_iops", each_way(job, rate)),
        Some(Rate::BytesPerSecond(rate)) => set("rate", each_way(job, rate)),
        None => None,
    };
    if job.rate.is_some() && job.arrivals == Arrivals::Poisson {
        set("rate_process", "poisson".into());
    }
    if let Some(region) = job.region {
        set("offset", region.offset.to_string());
        set("size", region.len.to_string());
    }
    options.into()
}

fn direction(
    outcome: &Outcome,
    figures: &Direction,
    detail: Detail,
    of: impl Fn(&Point) -> (u64, u64),
) -> Value {
    let seconds = outcome.series.interval().as_secs_f64();
    let used = figures.ios > 0;
    let points = outcome.series.points().iter().filter(|_| used).map(of);
    let (ios, bytes): (Vec<f64>, Vec<f64>) =
        points.map(|(ios, bytes)| (ios as f64 / seconds, bytes as f64 / seconds / 1024.0)).unzip();
    let (iops, bw) = (Samples::of(&ios), Samples::of(&bytes));
    // fio has percentiles of `clat_ns` unless it is told otherwise; with bins we have them of all three.
    let distribution = |latency: &Latency, usual: bool| {
        let mut value = spread(latency);
        if used && (usual || detail == Detail::JsonPlus) {
            let percentiles = PERCENTILES.map(|p| (format!("{p:.6}"), latency.percentile(p).into()));
            value["percentile"] = Value::Object(percentiles.into_iter().collect());
        }
        if used && detail == Detail::JsonPlus {
            value["bins"] = bins(latency);
        }
        value
    };
    json!({
        "io_bytes": figures.bytes,
        "io_kbytes": figures.bytes / 1024,
        "bw_bytes": figures.bytes_per_second() as u64,
        "bw": (figures.bytes_per_second() / 1024.0) as u64,
        "iops": figures.iops(),
        "runtime": if used { millis(figures.elapsed) } else { 0 },
        "total_ios": figures.ios,
        "short_ios": 0,
        "drop_ios": figures.errors,
        "slat_ns": distribution(&figures.wait, false),
        "clat_ns": distribution(&figures.service, true),
        "lat_ns": distribution(&figures.response, false),
        "bw_min": bw.min as u64,
        "bw_max": bw.max as u64,
        "bw_agg": if used { 100.0 } else { 0.0 },
        "bw_mean": bw.mean,
        "bw_dev": bw.deviation,
        "bw_samples": bytes.len(),
        "iops_min": iops.min as u64,
        "iops_max": iops.max as u64,
        "iops_mean": iops.mean,
        "iops_stddev": iops.deviation,
        "iops_samples": ios.len(),
    })
}

fn spread(latency: &Latency) -> Value {
    json!({
        "min": latency.min(),
        "max": latency.max(),
        "mean": latency.mean(),
        "stddev": latency.stddev(),
        "N": latency.count(),
    })
}

fn split(shares: &[Share]) -> String {
    let shares: Vec<_> =
        shares.iter().map(|share| format!("{}/{}", share.block_size, share.percent)).collect();
    shares.join(":")
}

/// Our rate is of both directions together, fio's of each.
fn each_way(job: &Job, rate: u64) -> String {
    match job.mix.read_percent {
        0 | 100 => rate.to_string(),
        percent => {
            let read = (u128::from(rate) * u128::from(percent) / 100) as u64;
            format!("{read},{}", rate - read)
        }
    }
}

#[derive(Default)]
struct Samples {
    min: f64,
    max: f64,
    mean: f64,
    deviation: f64,
}

impl Samples {
    fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Self {
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: (square / values.len().saturating_sub(1).max(1) as f64).sqrt(),
        }
    }
}

fn shares<'a>(shares: impl Iterator<Item = (&'a str, f64)>) -> Value {
    Value::Object(shares.map(|(key, share)| (key.to_string(), share.into())).collect())
}

/// All I/Os in the class of the mean depth: the distribution is not kept.
fn depth_level(outcome: &Outcome) -> Value {
    const LEVELS: [(&str, f64); 7] = [
        ("1", 2.0),
        ("2", 4.0),
        ("4", 8.0),
        ("8", 16.0),
        ("16", 32.0),
        ("32", 64.0),
        (">=64", f64::INFINITY),
    ];
    let ran = outcome.read.ios + outcome.write.ios > 0;
    let level = LEVELS.iter().position(|&(_, below)| outcome.depth_mean.round() < below).filter(|_| ran);
    shares(
        LEVELS
            .iter()
            .enumerate()
            .map(|(index, &(key, _))| (key, if Some(index) == level { 100.0 } else { 0.0 })),
    )
}

/// The share, per cent, of I/Os in each class of one unit; those below `from` belong to a smaller unit.
fn latency_shares(latency: &Latency, from: u64, unit: u64, steps: &[(&str, u64)]) -> Value {
    let total = latency.count().max(1) as f64;
    let mut counts = vec![0u64; steps.len()];
    for (ns, count) in latency.buckets().filter(|&(ns, _)| ns >= from) {
        let class = steps.iter().position(|&(_, below)| ns < below.saturating_mul(unit));
        if let Some(class) = class {
            counts[class] += count;
        }
    }
    shares(steps.iter().zip(counts).map(|(&(key, _), count)| (key, 100.0 * count as f64 / total)))
}

/// Returns the results for which fio has no field.
fn extra(outcome: &Outcome) -> Value {
    let mut extra = json!({
        "end": match outcome.end {
            End::Limit => "limit",
            End::Cancelled => "cancelled",
            End::Failing => "failing",
        },
        "depth_mean": outcome.depth_mean,
        "depth_max": outcome.depth_max,
        "abandoned": outcome.abandoned,
        "rate_missed": outcome.rate_missed(),
        "read_errors": outcome.read.errors,
        "write_errors": outcome.write.errors,
        "first_error": outcome.read.first_error.as_ref().or(outcome.write.first_error.as_ref()),
    });
    if let Some(found) = &outcome.verification {
        extra["verification"] = json!({
            "checked": found.checked,
            "faulty": found.faulty,
            "faults": found.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
    }
    extra
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_classes_share_out_every_io_once() {
        let mut latency = Latency::default();
        for ns in [1, 3, 999, 1500, 40_000, 3_000_000, 9_000_000_000] {
            latency.record(ns);
        }
        let sum =
            |value: Value| value.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum::<f64>();
        let ns = latency_shares(&latency, 0, 1, &STEPS[..10]);
        assert!((ns["1000"].as_f64().unwrap() - 100.0 / 7.0).abs() < 1e-9);
        let total = sum(ns)
            + sum(latency_shares(&latency, 1000, 1000, &STEPS[..10]))
            + sum(latency_shares(&latency, 1_000_000, 1_000_000, &STEPS));
        assert!((total - 100.0).abs() < 1e-9, "{total}");
    }
}

//! Mixes of I/Os that look like what applications do, and an index over them.

use std::time::{Duration, Instant};

use lunway_block::size::HumanSize;
use lunway_stats::geometric_mean;
use serde_json::{Value, json};

use crate::load::job::Region;
use crate::load::random::Random;

use super::super::probe::{Incompressible, Probe, Stop};
use super::super::runner::{Done, Runner};

/// Name of the mixes, the reference and the formula together; an index under another name does not compare.
pub const INDEX_VERSION: &str = "lunway-h2-1";
/// The reference's time for an access that does not follow the one before it, milliseconds: a disk of 7200 turns a
/// minute, 8.5 ms of seeking and half a turn of waiting.
pub const REFERENCE_ACCESS_MS: f64 = 8.5 + 60_000.0 / 7200.0 / 2.0;
/// The reference's transfer rate, millions of bytes per second.
pub const REFERENCE_MB_S: f64 = 150.0;

/// A part of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Share of the I/Os, percent.
    pub percent: u8,
    /// Writes; else reads.
    pub writes: bool,
    /// Each follows the one before it in the same part; else anywhere.
    pub sequential: bool,
    /// Bytes per I/O; random ones are aligned to it.
    pub block_size: u32,
}

/// An application, described as a mix of I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Application {
    /// Name of the kind of application.
    pub name: &'static str,
    /// Its parts; 100 percent together.
    pub parts: &'static [Part],
}

const fn read(percent: u8, kib: u32, sequential: bool) -> Part {
    Part { percent, writes: false, sequential, block_size: kib << 10 }
}

const fn write(percent: u8, kib: u32, sequential: bool) -> Part {
    Part { percent, writes: true, sequential, block_size: kib << 10 }
}

const RANDOM: bool = false;
const SEQUENTIAL: bool = true;

/// The six mixes. They are synthetic and our own: named after the six that made the idea popular, whose traces were
/// never published, and not comparable with published indexes.
pub const APPLICATIONS: [Application; 6] = [
    Application {
        name: "swapping",
        parts: &[read(45, 4, RANDOM), read(15, 32, RANDOM), write(40, 32, SEQUENTIAL)],
    },
    Application {
        name: "installing",
        parts: &[
            read(20, 64, SEQUENTIAL),
            read(10, 4, RANDOM),
            write(40, 64, SEQUENTIAL),
            write(30, 4, RANDOM),
        ],
    },
    Application {
        name: "office",
        parts: &[read(60, 4, RANDOM), read(20, 16, RANDOM), write(15, 4, RANDOM), write(5, 16, SEQUENTIAL)],
    },
    Application {
        name: "photo editing",
        parts: &[
            read(45, 128, SEQUENTIAL),
            read(10, 16, RANDOM),
            write(40, 128, SEQUENTIAL),
            write(5, 4, RANDOM),
        ],
    },
    Application {
        name: "copying",
        parts: &[
            read(45, 256, SEQUENTIAL),
            read(5, 4, RANDOM),
            write(45, 256, SEQUENTIAL),
            write(5, 4, RANDOM),
        ],
    },
    Application {
        name: "virus scan",
        parts: &[read(35, 4, RANDOM), read(20, 16, RANDOM), read(45, 64, SEQUENTIAL)],
    },
];

impl Application {
    /// Throughput of the reference device in this mix, MB/s: each random I/O costs an access, each byte its transfer.
    pub fn reference_mb_s(&self) -> f64 {
        let (mut bytes, mut seconds) = (0.0, 0.0);
        for part in self.parts {
            let (share, size) = (f64::from(part.percent), f64::from(part.block_size));
            let access = if part.sequential { 0.0 } else { REFERENCE_ACCESS_MS / 1e3 };
            bytes += share * size;
            seconds += share * (access + size / (REFERENCE_MB_S * 1e6));
        }
        bytes / seconds / 1e6
    }

    pub(super) fn writes(&self) -> bool {
        self.parts.iter().any(|part| part.writes)
    }

    /// Tells whether one I/O of each part fits into its share of the region, and all are whole sectors.
    pub(super) fn fits(&self, region: Region, sector: u32) -> bool {
        let each = region.len / self.parts.len() as u64;
        self.parts
            .iter()
            .all(|part| u64::from(part.block_size) <= each && part.block_size.is_multiple_of(sector))
    }
}

pub(super) fn published() -> String {
    let mut text = String::from("| application | share of the I/Os | reference, MB/s |\n|---|---|---|\n");
    for application in &APPLICATIONS {
        let parts = application.parts.iter().map(|part| {
            format!(
                "{} % {} {} {}",
                part.percent,
                if part.writes { "write" } else { "read" },
                HumanSize(part.block_size.into()),
                if part.sequential { "sequential" } else { "random" }
            )
        });
        let parts = parts.collect::<Vec<_>>().join(", ");
        text += &format!("| {} | {parts} | {:.3} |\n", application.name, application.reference_mb_s());
    }
    text + &format!(
        "\nIndex (`{INDEX_VERSION}`): 1000 × the geometric mean of MB/s ÷ reference over the six. The reference is a modelled disk: \
         {REFERENCE_ACCESS_MS:.3} ms for each random I/O (8.5 ms of seeking, half a turn at 7200 a minute), none for a sequential one, and \
         {REFERENCE_MB_S:.0} MB/s of transfer for both.\n"
    )
}

/// Result of an application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ApplicationResult {
    /// The application.
    pub application: &'static Application,
    /// Millions of bytes per second, both directions together, one I/O at a time.
    pub mb_s: f64,
}

/// The index over all six: 1000 × the geometric mean of throughput over the reference's; `None` unless all six are
/// there.
pub fn index(results: &[ApplicationResult]) -> Option<f64> {
    let ratio = |application: &Application| {
        let result = results.iter().find(|result| result.application.name == application.name)?;
        Some(result.mb_s / application.reference_mb_s())
    };
    let ratios = APPLICATIONS.iter().map(ratio).collect::<Option<Vec<f64>>>()?;
    Some(1000.0 * geometric_mean(&ratios)?)
}

/// The I/Os of a mix: which part comes next, and where it goes.
struct Script<'a> {
    application: &'a Application,
    region: Region,
    random: Random,
    /// Next offset of each sequential part, bytes from its start.
    cursors: Vec<u64>,
}

impl Script<'_> {
    /// The next I/O: its part and offset. Sequential parts go through one piece of the region each, so that they do not
    /// read what the other has just written.
    fn next(&mut self) -> (Part, u64) {
        let parts = self.application.parts;
        let mut ticket = self.random.below(100) as u8;
        let mut index = 0;
        while index + 1 < parts.len() && ticket >= parts[index].percent {
            ticket -= parts[index].percent;
            index += 1;
        }
        let part = parts[index];
        let block = u64::from(part.block_size);
        let offset = if part.sequential {
            let piece = self.region.len / parts.len() as u64 / block * block;
            let start = self.region.len / parts.len() as u64 * index as u64 / ALIGNED * ALIGNED;
            let at = self.cursors[index];
            self.cursors[index] = if at + 2 * block > piece { 0 } else { at + block };
            start + at
        } else {
            self.random.below(self.region.len / block) * block
        };
        (part, self.region.offset + offset)
    }
}

/// Pieces of the region start at multiples of this, bytes: whole sectors of any device.
const ALIGNED: u64 = 4096;

impl ApplicationResult {
    /// Issues one I/O at a time for `time`. Returns `None` if there is no result; the second value is `false` if the
    /// run was asked to end.
    pub(super) async fn measure(
        application: &'static Application,
        region: Region,
        (time, seed): (Duration, u64),
        runner: &mut Runner<'_>,
        probe: &mut Probe<'_>,
    ) -> (Option<Self>, bool) {
        let mut meter = runner.meter(application.name);
        let mut script = Script {
            application,
            region,
            random: Random::new(seed),
            cursors: vec![0; application.parts.len()],
        };
        let longest = application.parts.iter().map(|part| part.block_size).max().unwrap_or(0);
        let mut data = Incompressible::new(seed, longest as usize);
        let (started, mut bytes, mut went_on) = (Instant::now(), 0u64, true);
        while started.elapsed() < time {
            let (part, offset) = script.next();
            let len = part.block_size as usize;
            let answer = match part.writes {
                true => probe.write(offset, data.next(len)).await,
                false => probe.read(offset, len).await.map(|(_, took)| took),
            };
            let size = u64::from(part.block_size);
            let done = match answer {
                Ok(took) if part.writes => Done::Write(size, took),
                Ok(took) => Done::Read(size, took),
                Err(Stop::Failed) => Done::Failed,
                Err(Stop::End) => {
                    went_on = false;
                    break;
                }
            };
            bytes += if matches!(done, Done::Failed) { 0 } else { size };
            runner.count(&mut meter, done, || started.elapsed().as_secs_f64() / time.as_secs_f64());
        }
        let mb_s = bytes as f64 / started.elapsed().as_secs_f64().max(1e-9) / 1e6;
        ((bytes > 0).then_some(Self { application, mb_s }), went_on)
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "name": self.application.name,
            "bytes_per_s": self.mb_s * 1e6,
            "reference_bytes_per_s": self.application.reference_mb_s() * 1e6,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_is_a_hundred_percent_of_whole_sectors() {
        for application in &APPLICATIONS {
            assert_eq!(application.parts.iter().map(|part| u32::from(part.percent)).sum::<u32>(), 100);
            assert!(application.parts.iter().all(|part| part.block_size.is_multiple_of(4096)));
        }
    }

    #[test]
    fn the_reference_scores_1000_and_a_missing_mix_scores_nothing() {
        let results = APPLICATIONS
            .each_ref()
            .map(|application| ApplicationResult { application, mb_s: application.reference_mb_s() });
        assert!((index(&results).unwrap() - 1000.0).abs() < 1e-9);
        let twice = results.map(|result| ApplicationResult { mb_s: 2.0 * result.mb_s, ..result });
        assert!((index(&twice).unwrap() - 2000.0).abs() < 1e-9);
        assert_eq!(index(&results[..5]), None);
    }

    #[test]
    fn the_reference_disk_is_what_its_formula_says() {
        const SEEKING: [Part; 1] = [read(100, 4, RANDOM)];
        const STREAMING: [Part; 1] = [write(100, 64, SEQUENTIAL)];
        let one = Application { name: "x", parts: &SEEKING };
        let seconds = REFERENCE_ACCESS_MS / 1e3 + 4096.0 / 150e6;
        assert!((one.reference_mb_s() - 4096.0 / seconds / 1e6).abs() < 1e-12);
        let streaming = Application { name: "x", parts: &STREAMING };
        assert!((streaming.reference_mb_s() - REFERENCE_MB_S).abs() < 1e-9);
    }

    #[test]
    fn a_mix_stays_in_its_region_and_keeps_its_shares() {
        for application in &APPLICATIONS {
            let region = Region { offset: 1 << 20, len: (4 << 20) + 4096 };
            assert!(application.fits(region, 4096));
            let cursors = vec![0; application.parts.len()];
            let mut script = Script { application, region, random: Random::new(5), cursors };
            let mut counts = vec![0u32; application.parts.len()];
            for _ in 0..10_000 {
                let (part, offset) = script.next();
                assert!(
                    offset >= region.offset
                        && offset + u64::from(part.block_size) <= region.offset + region.len
                );
                assert_eq!(offset % 4096, 0);
                counts[application.parts.iter().position(|other| *other == part).unwrap()] += 1;
            }
            for (part, count) in application.parts.iter().zip(counts) {
                let share = f64::from(count) / 100.0;
                assert!((share - f64::from(part.percent)).abs() < 2.0, "{}: {share}", application.name);
            }
        }
    }
}

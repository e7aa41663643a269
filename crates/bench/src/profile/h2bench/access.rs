//! Access times of single I/Os.

use std::time::{Duration, Instant};

use lunway_block::Geometry;
use serde_json::{Value, json};

use crate::load::job::Region;
use crate::load::random::Random;
use crate::measure::latency::Latency;

use super::super::probe::{Incompressible, Probe, Stop};
use super::super::runner::{Done, Runner};
use super::zones::Zones;

/// Accesses of one measurement, at most.
const ACCESSES_MAX: u64 = 5000;
/// Capacity limit of cylinder/head/sector addressing: 1024 × 16 × 63 sectors of 512 bytes.
pub(super) const FIRST: u64 = 1024 * 16 * 63 * 512;

pub(super) fn published() -> String {
    format!(
        "one logical sector at a random address, one at a time: {ACCESSES_MAX} of them, or for twice `--time`; over the whole device \
         (after writes: in the part that the zones wrote) and in the first {} MiB, read and write",
        FIRST >> 20
    )
}

/// Access time: random accesses of one logical sector, one at a time.
#[derive(Clone, Debug)]
pub struct AccessTime {
    /// "read", "write", "read, first 504 MiB", "write, first 504 MiB".
    pub name: &'static str,
    /// Access times, nanoseconds.
    pub latency: Latency,
}

/// Target area of the accesses.
pub(super) enum Target<'a> {
    /// Anywhere in it.
    Region(Region),
    /// To what was written of zones, so that reads find data.
    Written(&'a Zones),
}

impl Target<'_> {
    /// A sector, and nothing where there is none.
    fn pick(&self, random: &mut Random, sector: u64) -> Option<u64> {
        match self {
            Self::Region(region) => {
                let sectors = region.len / sector;
                (sectors > 0).then(|| region.offset + random.below(sectors) * sector)
            }
            Self::Written(zones) => {
                // A zone that could not be written is passed over; the next ones are tried in turn.
                let count = zones.zones.len();
                let first = random.below(count as u64) as usize;
                let zone = (0..count).map(|step| &zones.zones[(first + step) % count]);
                let zone = zone.into_iter().find(|zone| zone.written >= sector)?;
                Some(zone.offset + random.below(zone.written / sector) * sector)
            }
        }
    }
}

impl AccessTime {
    /// The name as short as a chart needs it.
    pub(in super::super) fn label(&self) -> &'static str {
        match self.name {
            "read, first 504 MiB" => "read 504M",
            "write, first 504 MiB" => "write 504M",
            name => name,
        }
    }

    /// Accesses for `time` or 5000 of them, whichever comes first. The second is false if it was asked to end.
    pub(super) async fn measure(
        name: &'static str,
        (target, writes): (Target<'_>, bool),
        (time, seed): (Duration, u64),
        runner: &mut Runner<'_>,
        probe: &mut Probe<'_>,
    ) -> (Self, bool) {
        let geometry: Geometry = runner.geometry();
        let sector = u64::from(geometry.logical_sector);
        let mut meter = runner.meter(name);
        let mut random = Random::new(seed);
        let mut data = writes.then(|| Incompressible::new(seed, sector as usize));
        let mut access =
            Self { name: name.strip_prefix("access, ").unwrap_or(name), latency: Latency::default() };
        let started = Instant::now();
        for count in 0..ACCESSES_MAX {
            if started.elapsed() >= time {
                break;
            }
            let Some(offset) = target.pick(&mut random, sector) else { break };
            let answer = match &mut data {
                Some(data) => probe.write(offset, data.next(sector as usize)).await,
                None => probe.read(offset, sector as usize).await.map(|(_, took)| took),
            };
            let done = match answer {
                Ok(took) => {
                    access.latency.record(took.as_nanos() as u64);
                    if writes { Done::Write(sector, took) } else { Done::Read(sector, took) }
                }
                Err(Stop::Failed) => Done::Failed,
                Err(Stop::End) => return (access, false),
            };
            let by_count = count as f64 / ACCESSES_MAX as f64;
            runner.count(&mut meter, done, || {
                by_count.max(started.elapsed().as_secs_f64() / time.as_secs_f64())
            });
        }
        (access, true)
    }

    pub(super) fn to_json(&self) -> Value {
        let latency = &self.latency;
        let percentiles =
            [50.0, 90.0, 99.0, 99.9].map(|percent| (format!("{percent:.6}"), latency.percentile(percent)));
        let percentiles: serde_json::Map<String, Value> =
            percentiles.into_iter().map(|(percent, ns)| (percent, ns.into())).collect();
        json!({
            "name": self.name,
            "accesses": latency.count(),
            "min_ns": latency.min(),
            "mean_ns": latency.mean(),
            "max_ns": latency.max(),
            "percentile_ns": percentiles,
            "distribution": latency.buckets().map(|(ns, count)| [ns, count]).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_reach_both_ends_of_a_device_of_any_size() {
        for (size, sector) in [(1 << 20, 512), (1 << 62, 4096u64)] {
            let target = Target::Region(Region { offset: 0, len: size });
            let mut random = Random::new(1);
            let offsets: Vec<u64> = (0..5000).map(|_| target.pick(&mut random, sector).unwrap()).collect();
            assert!(offsets.iter().all(|offset| offset % sector == 0 && offset + sector <= size));
            assert!(
                offsets.iter().any(|&offset| offset < size / 100)
                    && offsets.iter().any(|&offset| offset > size / 100 * 99)
            );
        }
    }

    #[test]
    fn accesses_to_zones_stay_in_what_was_written() {
        let mut zones = Zones::of(Region { offset: 0, len: 1 << 30 });
        let mut random = Random::new(1);
        assert_eq!(Target::Written(&zones).pick(&mut random, 512), None);
        zones.zones[3].written = 65536;
        zones.zones[700].written = 512;
        let allowed = [
            zones.zones[3].offset..zones.zones[3].offset + 65536,
            zones.zones[700].offset..zones.zones[700].offset + 512,
        ];
        for _ in 0..1000 {
            let offset = Target::Written(&zones).pick(&mut random, 512).unwrap();
            assert!(allowed.iter().any(|range| range.contains(&offset)));
        }
    }

    #[test]
    fn the_first_504_megabytes_are_those_of_1024_cylinders() {
        assert_eq!(FIRST, 504 << 20);
    }
}

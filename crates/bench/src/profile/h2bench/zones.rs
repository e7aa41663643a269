//! Transfer rate of each zone of a device.

use std::time::{Duration, Instant};

use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, ExtentKind};
use serde_json::{Value, json};

use crate::load::job::Region;
use crate::run::cost::Cost;

use super::super::probe::{Incompressible, Probe, Stop};
use super::super::runner::{Done, Runner};

/// Most zones.
const ZONES_MAX: u64 = 1000;
/// Bytes per I/O, one at a time; a device smaller than this is one I/O.
pub(super) const BLOCK: u64 = 64 << 10;
/// Most bytes measured of a zone.
const BYTES_MAX: u64 = 8 << 20;
/// Longest time a zone is measured.
const TIME_MAX: Duration = Duration::from_millis(50);

pub(super) fn published() -> String {
    format!(
        "up to {ZONES_MAX} equal zones; at the start of each one {} or {TIME_MAX:?}, whichever comes first, sequential {} at depth 1; all \
         zones are written before the first is read",
        HumanSize(BYTES_MAX),
        HumanSize(BLOCK)
    )
}

/// Sequential throughput over the whole device, in up to 1000 equal zones.
///
/// At the start of each zone up to 8 MiB, or what goes in 50 ms, are moved in blocks of 64 KiB, one at a time. All
/// zones are written before the first is read, and no more of a zone is read than was written, so that nothing is read
/// that was never written, and what is read lies as far back as it can.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    /// In order of address.
    pub zones: Vec<Zone>,
    /// Bytes covered by all of them.
    pub size: u64,
}

/// Zone of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zone {
    /// Offset of the zone, bytes.
    pub offset: u64,
    /// Reading, millions of bytes per second; `None` if that failed, or it was interrupted before.
    pub read_mb_s: Option<f64>,
    /// Writing; also `None` where nothing may be written.
    pub write_mb_s: Option<f64>,
    /// Length known to have been written in this zone, bytes from `offset`.
    pub(super) written: u64,
    /// Nothing lies behind what was read.
    pub unallocated: bool,
}

/// The slowest, the mean and the fastest zone, MB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The slowest zone.
    pub min: f64,
    /// The rate of going through all zones that were measured once, each as long as the others: the harmonic mean, so
    /// that a slow zone counts by the time it takes.
    pub avg: f64,
    /// The fastest zone.
    pub max: f64,
}

impl Zones {
    /// Returns the zones of a region, not measured yet.
    pub(super) fn of(region: Region) -> Self {
        let blocks = (region.len / BLOCK).max(1);
        let count = blocks.min(ZONES_MAX);
        let zone = |index: u64| {
            let block = (u128::from(blocks) * u128::from(index) / u128::from(count)) as u64;
            Zone {
                offset: region.offset + block * BLOCK,
                read_mb_s: None,
                write_mb_s: None,
                written: 0,
                unallocated: false,
            }
        };
        Self { zones: (0..count).map(zone).collect(), size: region.len }
    }

    /// About how long one direction takes, if the device is no slower than was assumed.
    pub(super) fn cost(&self) -> Cost {
        let count = self.zones.len() as u64;
        Cost { bytes: BYTES_MAX * count, most: TIME_MAX * count as u32, ramp: Duration::ZERO }
    }

    /// Returns the length measured in a zone, bytes.
    fn measured(&self, index: usize) -> u64 {
        let zone = self.zones[index].offset;
        let next = self.zones.get(index + 1).map_or(self.zones[0].offset + self.size, |next| next.offset);
        let len = (next - zone).min(BYTES_MAX);
        if len < BLOCK { len } else { len / BLOCK * BLOCK }
    }

    /// Writes each zone. False if it was asked to end.
    pub(super) async fn write(&mut self, runner: &mut Runner<'_>, probe: &mut Probe<'_>, seed: u64) -> bool {
        let mut meter = runner.meter("zones, write");
        let mut data = Incompressible::new(seed, BLOCK.min(self.size) as usize);
        let count = self.zones.len() as f64;
        for index in 0..self.zones.len() {
            let len = self.measured(index);
            let zone = &mut self.zones[index];
            let (started, mut done) = (Instant::now(), 0);
            while done < len && (done == 0 || started.elapsed() < TIME_MAX) {
                let block = BLOCK.min(len);
                let took = match probe.write(zone.offset + done, data.next(block as usize)).await {
                    Ok(took) => took,
                    Err(Stop::Failed) => break,
                    Err(Stop::End) => return false,
                };
                done += block;
                runner.count(&mut meter, Done::Write(block, took), || index as f64 / count);
            }
            zone.written = done;
            zone.write_mb_s = rate(done, started.elapsed());
        }
        true
    }

    /// Reads each zone; where zones were written, only what was. False if it was asked to end.
    pub(super) async fn read(&mut self, runner: &mut Runner<'_>, probe: &mut Probe<'_>, wrote: bool) -> bool {
        let mut meter = runner.meter("zones, read");
        let count = self.zones.len() as f64;
        for index in 0..self.zones.len() {
            let len = if wrote { self.zones[index].written } else { self.measured(index) };
            let zone = &mut self.zones[index];
            let (started, mut done) = (Instant::now(), 0);
            while done < len && (done == 0 || started.elapsed() < TIME_MAX) {
                let block = BLOCK.min(len);
                let took = match probe.read(zone.offset + done, block as usize).await {
                    Ok((_, took)) => took,
                    Err(Stop::Failed) => break,
                    Err(Stop::End) => return false,
                };
                done += block;
                runner.count(&mut meter, Done::Read(block, took), || index as f64 / count);
            }
            zone.read_mb_s = rate(done, started.elapsed());
            zone.unallocated = !wrote && is_unallocated(&**runner.device, zone.offset, done).await;
        }
        true
    }

    /// Over the zones that could be read.
    pub fn read_range(&self) -> Option<Range> {
        range(self.zones.iter().filter_map(|zone| zone.read_mb_s))
    }

    /// Over the zones that could be written.
    pub fn write_range(&self) -> Option<Range> {
        range(self.zones.iter().filter_map(|zone| zone.write_mb_s))
    }

    /// (offset in bytes, MB/s) of the zones that were read, for a chart.
    pub fn read_points(&self) -> Vec<(u64, f64)> {
        self.zones.iter().filter_map(|zone| Some((zone.offset, zone.read_mb_s?))).collect()
    }

    /// The same of those that were written.
    pub fn write_points(&self) -> Vec<(u64, f64)> {
        self.zones.iter().filter_map(|zone| Some((zone.offset, zone.write_mb_s?))).collect()
    }

    pub(super) fn to_json(&self) -> Value {
        let range = |range: Option<Range>| {
            range.map(|range| {
                json!({
                    "min_bytes_per_s": range.min * 1e6,
                    "avg_bytes_per_s": range.avg * 1e6,
                    "max_bytes_per_s": range.max * 1e6,
                })
            })
        };
        let zone = |zone: &Zone| {
            json!({
                "offset": zone.offset,
                "read_bytes_per_s": zone.read_mb_s.map(|mb_s| mb_s * 1e6),
                "write_bytes_per_s": zone.write_mb_s.map(|mb_s| mb_s * 1e6),
            })
        };
        json!({
            "read": range(self.read_range()),
            "write": range(self.write_range()),
            "points": self.zones.iter().map(zone).collect::<Vec<_>>(),
        })
    }
}

fn rate(bytes: u64, elapsed: Duration) -> Option<f64> {
    (bytes > 0).then(|| bytes as f64 / elapsed.as_secs_f64().max(1e-9) / 1e6)
}

fn range(values: impl Iterator<Item = f64>) -> Option<Range> {
    let values: Vec<f64> = values.collect();
    if values.is_empty() {
        return None;
    }
    Some(Range {
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        avg: values.len() as f64 / values.iter().map(|rate| rate.recip()).sum::<f64>(),
        max: values.iter().copied().fold(0.0, f64::max),
    })
}

async fn is_unallocated(device: &dyn BlockDevice, offset: u64, len: u64) -> bool {
    let extents = device.extents(offset, len, usize::MAX).await;
    extents.is_ok_and(|extents| {
        !extents.is_empty() && extents.iter().all(|extent| extent.kind == ExtentKind::Unallocated)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_block::Geometry;

    #[test]
    fn a_device_of_any_size_has_zones_inside_it() {
        for (size, sector) in [
            (512, 512),
            (4096, 4096),
            (1 << 20, 512),
            ((1 << 20) + 512, 512),
            (3 << 30, 4096),
            (1 << 63, 4096),
        ] {
            let geometry = Geometry::plain(size).with_sector(sector);
            let zones = Zones::of(Region { offset: 0, len: geometry.size });
            assert_eq!(zones.zones.len() as u64, (size / BLOCK).clamp(1, 1000), "{size}");
            assert!(zones.zones.windows(2).all(|pair| pair[0].offset < pair[1].offset));
            for (index, zone) in zones.zones.iter().enumerate() {
                let len = zones.measured(index);
                assert!(len > 0 && len <= BYTES_MAX);
                assert_eq!(geometry.check(zone.offset, len), Ok(()), "{size}");
            }
        }
    }

    #[test]
    fn the_range_is_over_what_was_measured() {
        let mut zones = Zones::of(Region { offset: 0, len: 1 << 20 });
        assert_eq!(zones.read_range(), None);
        for (zone, rate) in zones.zones.iter_mut().zip([10.0, 30.0, 60.0]) {
            zone.read_mb_s = Some(rate);
        }
        let range = zones.read_range().unwrap();
        let expected = Range { min: 10.0, avg: 20.0, max: 60.0 };
        assert_eq!((range.min, range.max), (expected.min, expected.max));
        assert!((range.avg - expected.avg).abs() < 1e-9, "the harmonic mean: {range:?}");
        assert_eq!(zones.read_points().len(), 3);
    }
}

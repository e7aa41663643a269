//! Does every sector come back from where it was written?

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use lunway_block::Buf;
use serde_json::{Value, json};

use crate::load::job::Region;
use crate::load::random::Random;
use crate::load::stamp::{Filling, Stamp};
use crate::run::cost::Cost;
use crate::verify::{Fault, judge};

use super::super::probe::{Probe, Stop};
use super::super::runner::{Done, Meter, Runner};

/// Sectors from the start of the device that are checked: 10 MiB of 512 bytes.
const FIRST: u64 = 20_480;
/// Sectors around each power of two: two before it, itself, two after it.
const AROUND: u64 = 5;
/// Most sectors taken at random: their addresses are kept.
const RANDOM_MAX: usize = 1 << 16;
/// Bytes per I/O of a run of sectors.
const CHUNK: u64 = 1 << 20;
/// Faults kept with their place; more are only counted.
const FAULTS_KEPT_MAX: usize = 64;
/// Fillings of the sectors behind their stamps, one for each pass.
const FILLINGS: [Filling; 5] =
    [Filling::Random, Filling::Byte(0x00), Filling::Byte(0xff), Filling::Byte(0x55), Filling::Byte(0xaa)];

pub(super) fn published() -> String {
    let fillings = FILLINGS.map(|filling| match filling {
        Filling::Random => "random".to_owned(),
        Filling::Byte(byte) => format!("{byte:02X}h"),
    });
    format!(
        "the first {FIRST} sectors and {AROUND} around each power of two, all written, flushed, then read back, once with each content: {}; then sectors at \
         random addresses for twice `--time`, at most {RANDOM_MAX}; then everything is read once more",
        fillings.join(", ")
    )
}

/// Result of the integrity check.
///
/// Every sector is stamped with its LBA in its first 16 bytes, the run's seed, the number of the pass and a checksum.
/// The first 20480 sectors and five around every power of two are written, **all** of them, then read back, five times
/// with different contents; then sectors at random addresses for a time; then everything once more. A write that went
/// elsewhere, as one whose address lost its upper bits does, is found where it ended, and named by where it belongs.
///
/// What is read back may come from a cache: that proves the path to the cache, not the medium.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Integrity {
    /// Sectors read back and compared, over all passes.
    pub checked: u64,
    /// Different sectors among them.
    pub sectors: u64,
    /// Of these, at random addresses.
    pub random: u64,
    /// Number of comparisons that found a sector wrong.
    pub faulty: u64,
    /// The first 64 faults.
    pub faults: Vec<Fault>,
    /// Came to its end.
    pub complete: bool,
}

/// The check while it runs.
pub(super) struct Check<'r, 'd, 'p> {
    runner: &'r mut Runner<'d>,
    probe: &'r mut Probe<'p>,
    meter: Meter,
    /// Of the region that may be written, from the start of the device.
    sectors: u64,
    /// Bytes.
    sector: u64,
    seed: u64,
    found: Integrity,
    /// Sectors written and read, of so many in all, until the random part; then by time.
    done: u64,
    total: u64,
}

/// Sectors from .. to, that lie beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    lba: u64,
    sectors: u64,
}

/// The first sectors, and five around each power of two beyond them, that a device with so many sectors has.
fn fixed(sectors: u64) -> Vec<Run> {
    let mut runs = vec![Run { lba: 0, sectors: FIRST.min(sectors) }];
    let mut end = runs[0].sectors;
    for power in (0..64).map(|exponent| 1u64 << exponent) {
        let from = power.saturating_sub(AROUND / 2).max(end);
        let to = power.saturating_add(AROUND / 2 + 1).min(sectors);
        if from < to {
            runs.push(Run { lba: from, sectors: to - from });
            end = to;
        }
    }
    runs
}

/// About how long [`Check::run`] takes: what is fixed goes over the device ten times, then twice at the end.
pub(super) fn cost(region: Region, sector: u32, time: Duration) -> Cost {
    let sector = u64::from(sector);
    let sectors: u64 = fixed(region.len / sector).iter().map(|run| run.sectors).sum();
    let bytes = sectors * sector * (2 * FILLINGS.len() as u64 + 1);
    Cost { bytes, most: Duration::MAX, ramp: time }
}

impl<'r, 'd, 'p> Check<'r, 'd, 'p> {
    pub(super) fn new(
        runner: &'r mut Runner<'d>,
        probe: &'r mut Probe<'p>,
        region: Region,
        seed: u64,
    ) -> Self {
        let meter = runner.meter("integrity");
        let sector = u64::from(runner.geometry().logical_sector);
        Self {
            runner,
            probe,
            meter,
            sectors: region.len / sector,
            sector,
            seed,
            found: Integrity::default(),
            done: 0,
            total: 0,
        }
    }

    /// Overwrites the device at the places that are checked. Random sectors come for `time`.
    pub(super) async fn run(mut self, time: Duration) -> Integrity {
        // It was asked to end, or nothing but failures came: what was found until then stands.
        self.found.complete = self.all(time).await.is_ok();
        self.found
    }

    async fn all(&mut self, time: Duration) -> Result<(), Stop> {
        let fixed = fixed(self.sectors);
        let fixed_sectors: u64 = fixed.iter().map(|run| run.sectors).sum();
        self.total = fixed_sectors * (2 * FILLINGS.len() as u64 + 1);
        for (pass, filling) in (1..).zip(FILLINGS) {
            for &run in &fixed {
                self.write(run, pass, filling).await?;
            }
            self.flush().await?;
            for &run in &fixed {
                self.check(run, pass).await?;
            }
            self.found.sectors = fixed_sectors;
        }
        let last = FILLINGS.len() as u64;
        let (random, stopped) = self.write_random(&fixed, last + 1, time).await;
        self.flush().await?;
        for &lba in &random {
            self.check(Run { lba, sectors: 1 }, last + 1).await?;
            self.found.random += 1;
            self.found.sectors += 1;
        }
        // Once more what must not have changed: a random write that went astray may have ended here.
        for &run in &fixed {
            self.check(run, last).await?;
        }
        stopped
    }

    async fn flush(&mut self) -> Result<(), Stop> {
        passed_over(self.probe.flush().await)
    }

    async fn write(&mut self, run: Run, pass: u64, filling: Filling) -> Result<(), Stop> {
        let sector = self.sector;
        for piece in pieces(run, CHUNK / sector) {
            let mut buf = Buf::for_overwrite((piece.sectors * sector) as usize);
            for (lba, bytes) in (piece.lba..).zip(buf.chunks_exact_mut(sector as usize)) {
                Stamp { lba, seed: self.seed, generation: pass }.write_filled(bytes, filling);
            }
            let len = buf.len() as u64;
            let done = match self.probe.write(piece.lba * sector, buf.freeze()).await {
                Ok(took) => Done::Write(len, took),
                Err(Stop::Failed) => Done::Failed,
                Err(Stop::End) => return Err(Stop::End),
            };
            self.count(piece.sectors, done);
        }
        Ok(())
    }

    async fn check(&mut self, run: Run, pass: u64) -> Result<(), Stop> {
        let sector = self.sector;
        for piece in pieces(run, CHUNK / sector) {
            let len = piece.sectors * sector;
            let (offset, seed, found) = (piece.lba * sector, self.seed, &mut self.found);
            let done = match self.probe.read(offset, len as usize).await {
                Ok((bytes, took)) => {
                    for (lba, bytes) in (piece.lba..).zip(bytes.chunks_exact(sector as usize)) {
                        found.checked += 1;
                        let Some(kind) = judge(seed, lba, Some(pass), Stamp::find(bytes)) else { continue };
                        found.faulty += 1;
                        if found.faults.len() < FAULTS_KEPT_MAX {
                            found.faults.push(Fault { offset: lba * sector, kind });
                        }
                    }
                    Done::Read(len, took)
                }
                // Counted by the probe.
                Err(Stop::Failed) => Done::Failed,
                Err(Stop::End) => return Err(Stop::End),
            };
            self.count(piece.sectors, done);
        }
        Ok(())
    }

    /// Stamps sectors at random addresses for half of `time`, since reading them back takes as long. Gives which were
    /// written, in order of address, and whether it was asked to end.
    async fn write_random(
        &mut self,
        fixed: &[Run],
        pass: u64,
        time: Duration,
    ) -> (Vec<u64>, Result<(), Stop>) {
        let (sectors, sector) = (self.sectors, self.sector);
        let taken = |lba: u64| fixed.iter().any(|run| (run.lba..run.lba + run.sectors).contains(&lba));
        let mut random = Random::new(self.seed ^ 0x696e_7465);
        let mut written = HashSet::new();
        let mut stopped = Ok(());
        let started = Instant::now();
        // A small device has none left soon; a try costs nothing beside an I/O.
        let mut tries = 0;
        while started.elapsed() < time / 2 && written.len() < RANDOM_MAX && tries < 4 * RANDOM_MAX {
            tries += 1;
            let lba = random.below(sectors);
            if taken(lba) || written.contains(&lba) {
                continue;
            }
            let mut buf = Buf::for_overwrite(sector as usize);
            Stamp { lba, seed: self.seed, generation: pass }.write_filled(&mut buf, Filling::Random);
            match self.probe.write(lba * sector, buf.freeze()).await {
                Ok(took) => {
                    written.insert(lba);
                    self.count(0, Done::Write(sector, took));
                }
                Err(Stop::Failed) => {}
                Err(Stop::End) => {
                    stopped = Err(Stop::End);
                    break;
                }
            }
        }
        let mut written: Vec<u64> = written.into_iter().collect();
        written.sort_unstable();
        (written, stopped)
    }

    fn count(&mut self, sectors: u64, done: Done) {
        self.done = (self.done + sectors).min(self.total);
        let fraction = self.done as f64 / self.total.max(1) as f64;
        self.runner.count(&mut self.meter, done, || fraction);
    }
}

/// A failed I/O is counted elsewhere and no reason to end.
fn passed_over<T>(result: Result<T, Stop>) -> Result<(), Stop> {
    match result {
        Ok(_) | Err(Stop::Failed) => Ok(()),
        Err(Stop::End) => Err(Stop::End),
    }
}

fn pieces(run: Run, sectors_max: u64) -> impl Iterator<Item = Run> {
    let end = run.lba + run.sectors;
    (run.lba..end)
        .step_by(sectors_max as usize)
        .map(move |lba| Run { lba, sectors: sectors_max.min(end - lba) })
}

impl Integrity {
    /// Result of the check, in a sentence.
    pub fn summary(&self) -> String {
        let found = match self.faulty {
            _ if self.checked == 0 => "nothing was compared.".to_owned(),
            0 => "every sector held the data written to it.".to_owned(),
            1 => "1 was wrong.".to_owned(),
            faulty => format!("{faulty} were wrong."),
        };
        let cut = if self.complete { "" } else { " It did not come to its end." };
        format!(
            "{} sectors ({} at random addresses), {} comparisons: {found}{cut}",
            self.sectors, self.random, self.checked
        )
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "complete": self.complete,
            "sectors": self.sectors,
            "random_sectors": self.random,
            "checked": self.checked,
            "faulty": self.faulty,
            "faults": self.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())?;
        self.faults.iter().take(8).try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_are_the_first_sectors_and_five_around_each_power_of_two() {
        let small = fixed(2048);
        assert_eq!(small, [Run { lba: 0, sectors: 2048 }]);
        let runs = fixed(1 << 20);
        assert_eq!(runs[0], Run { lba: 0, sectors: 20_480 });
        assert_eq!(runs[1], Run { lba: 32_766, sectors: 5 });
        assert_eq!(
            runs.last(),
            Some(&Run { lba: (1 << 20) - 2, sectors: 2 }),
            "what there is of the last power"
        );
        let huge = fixed(u64::MAX >> 9);
        assert!(huge.contains(&Run { lba: (1 << 32) - 2, sectors: 5 }));
        assert_eq!(huge.len(), 1 + 41, "from 2^15 to 2^55");
        assert!(huge.windows(2).all(|pair| pair[0].lba + pair[0].sectors <= pair[1].lba));
    }

    #[test]
    fn a_run_is_cut_into_pieces_without_a_gap() {
        let cut: Vec<Run> = pieces(Run { lba: 10, sectors: 25 }, 10).collect();
        let expected =
            [Run { lba: 10, sectors: 10 }, Run { lba: 20, sectors: 10 }, Run { lba: 30, sectors: 5 }];
        assert_eq!(cut, expected);
    }
}

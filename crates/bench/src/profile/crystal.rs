//! Sequential 1 MiB and random 4K, each measured several times.

use std::fmt;

use lunway_block::Geometry;
use lunway_block::size::HumanSize;
use serde_json::{Value, json};

use crate::BenchError;
use crate::load::access::{Mix, Pattern};
use crate::load::job::Job;
use crate::measure::outcome::{End, Outcome};
use lunway_report::{figure, response_time};
use lunway_stats::median;

use super::runner::Runner;
use super::{Kind, Options, READS_ONLY, job, order, preparation};

/// Test of the profile: name, pattern, block size, queue depth.
type Test = (&'static str, Pattern, u32, u32);

/// The default set of the tool that made it popular; T1 is one thread.
const TESTS: [Test; 4] = [
    ("SEQ1M Q8T1", Pattern::Sequential, 1 << 20, 8),
    ("SEQ1M Q1T1", Pattern::Sequential, 1 << 20, 1),
    ("RND4K Q32T1", Pattern::RANDOM, 4 << 10, 32),
    ("RND4K Q1T1", Pattern::RANDOM, 4 << 10, 1),
];

/// In this order: all reads, all writes, all mixed.
const DIRECTIONS: [(&str, Mix); 3] =
    [("read", Mix::READ), ("write", Mix::WRITE), ("mix 70/30", Mix { read_percent: 70 })];

/// Result of the `crystal` profile: each row is measured [`Options::runs`] times, after a run of the same length that
/// is discarded.
///
/// The figure to quote is the **median** with its spread. The best of the runs is there too, because that is what the
/// tool shows that this set of tests comes from: highest rate and lowest time, each on its own, maybe of different
/// runs.
#[derive(Clone, Debug, Default)]
pub struct Crystal {
    /// Four tests times read, write and mix; only the reads where nothing may be written.
    pub rows: Vec<CrystalRow>,
}

/// Row of the result.
#[derive(Clone, Debug)]
pub struct CrystalRow {
    /// Test and direction: "RND4K Q32T1 read".
    pub name: String,
    /// Figures of each run, in order. Fewer than requested if the profile was interrupted; never none.
    pub runs: Vec<Figures>,
}

/// Figures of one run; those of a mix count both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Millions of bytes per second.
    pub mb_s: f64,
    /// I/Os per second.
    pub iops: f64,
    /// Mean response time, microseconds.
    pub response_us: f64,
}

impl Figures {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let ios = (outcome.read.ios + outcome.write.ios) as f64;
        let of = |ios: u64, mean: f64| if ios == 0 { 0.0 } else { ios as f64 * mean };
        let waited = of(outcome.read.ios, outcome.read.response.mean())
            + of(outcome.write.ios, outcome.write.response.mean());
        Self {
            mb_s: (outcome.read.bytes_per_second() + outcome.write.bytes_per_second()) / 1e6,
            iops: outcome.read.iops() + outcome.write.iops(),
            response_us: if ios == 0.0 { 0.0 } else { waited / ios / 1e3 },
        }
    }
}

impl CrystalRow {
    /// The middle of each figure over the runs.
    pub fn median(&self) -> Figures {
        let middle = |figure: fn(&Figures) -> f64| {
            median(&self.runs.iter().map(figure).collect::<Vec<_>>()).unwrap_or_default()
        };
        Figures {
            mb_s: middle(|run| run.mb_s),
            iops: middle(|run| run.iops),
            response_us: middle(|run| run.response_us),
        }
    }

    /// The slowest and the fastest run, MB/s.
    pub fn range(&self) -> (f64, f64) {
        let rates = || self.runs.iter().map(|run| run.mb_s);
        (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max))
    }

    /// From the slowest to the fastest run, per cent of the median.
    pub fn spread_percent(&self) -> f64 {
        let ((low, high), middle) = (self.range(), self.median().mb_s);
        if middle > 0.0 { (high - low) / middle * 100.0 } else { 0.0 }
    }

    /// Highest rates and lowest time of any run.
    pub fn best(&self) -> Figures {
        let highest = |figure: fn(&Figures) -> f64| self.runs.iter().map(figure).fold(0.0, f64::max);
        Figures {
            mb_s: highest(|run| run.mb_s),
            iops: highest(|run| run.iops),
            response_us: self.runs.iter().map(|run| run.response_us).fold(f64::INFINITY, f64::min),
        }
    }
}

/// The tests and directions.
pub(super) fn published() -> String {
    let mut text = String::from("| test | order | block | depth |\n|---|---|---|---|\n");
    for (name, pattern, block_size, depth) in TESTS {
        text += &format!("| {name} | {} | {} | {depth} |\n", order(pattern), HumanSize(block_size.into()));
    }
    let runs = Options::of(Kind::Crystal).runs;
    let directions =
        DIRECTIONS.map(|(name, mix)| format!("{name} ({} % reads)", mix.read_percent)).join(", ");
    text += &format!(
        "\nDirections, in this order: {directions}. Each row: one run that is discarded, then `--runs {runs}`.\n"
    );
    text
}

/// Returns the jobs, one for each run, including discarded runs.
pub(super) fn jobs(geometry: &Geometry, options: &Options) -> Vec<Job> {
    let (rows, _) = rows(geometry, options);
    let runs = options.runs.max(1) as usize + 1;
    let repeated = rows.into_iter().flat_map(|row| std::iter::repeat_n(row, runs));
    preparation(options.work_on(geometry), options).into_iter().chain(repeated).collect()
}

/// Returns the jobs, one for each row, and the reasons why rows are missing.
fn rows(geometry: &Geometry, options: &Options) -> (Vec<Job>, Vec<String>) {
    let region = options.work_on(geometry);
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for (direction, mix) in DIRECTIONS {
        if mix.writes() && !options.destroy {
            continue;
        }
        for (test, pattern, block_size, queue_depth) in TESTS {
            if u64::from(block_size) > region.len {
                notes
                    .push(format!("“{test} {direction}” is left out: the device is smaller than its block."));
                continue;
            }
            let name = format!("{test} {direction}");
            let row = job(name, pattern, mix, block_size, queue_depth, region, options);
            rows.push(Job { ramp: options.ramp, ..row });
        }
    }
    if !options.destroy {
        notes.push(READS_ONLY.into());
    }
    (rows, notes)
}

/// Measures all rows. Of each row's outcomes the one in the middle is kept.
pub(super) async fn run(
    runner: &mut Runner<'_>,
    options: &Options,
) -> Result<(Crystal, Vec<String>), BenchError> {
    let geometry = runner.geometry();
    let (rows, mut notes) = rows(&geometry, options);
    runner.plan_jobs(&jobs(&geometry, options));
    notes.push(format!(
        "Median of {} runs of {:?} each, after one of the same length that was thrown away. Mixed rows: both directions together.",
        options.runs.max(1),
        options.duration
    ));
    let mut crystal = Crystal::default();
    if !runner.prepare(preparation(options.work_on(&geometry), options).as_ref()).await? {
        return Ok((crystal, notes));
    }
    for row in rows {
        let warm_up = runner.job(&row).await?;
        if warm_up.end != End::Limit {
            // What failed is shown; what was cut before it counted is not.
            if warm_up.errors() > 0 {
                runner.outcomes.push(warm_up);
            }
            break;
        }
        let mut outcomes = Vec::new();
        for _ in 0..options.runs.max(1) {
            let outcome = runner.job(&row).await?;
            let cut = outcome.end != End::Limit;
            // Half a run beside whole ones would be another measurement.
            if !cut || (outcomes.is_empty() && outcome.read.ios + outcome.write.ios + outcome.errors() > 0) {
                outcomes.push(outcome);
            }
            if cut {
                break;
            }
        }
        let runs: Vec<Figures> = outcomes.iter().map(Figures::of).collect();
        if runs.is_empty() {
            break;
        }
        let whole = runs.len() == options.runs.max(1) as usize;
        outcomes.sort_by(|a, b| Figures::of(a).iops.total_cmp(&Figures::of(b).iops));
        runner.outcomes.push(outcomes.swap_remove((outcomes.len() - 1) / 2));
        crystal.rows.push(CrystalRow { name: row.name, runs });
        if !whole || runner.is_cancelled() {
            break;
        }
    }
    Ok((crystal, notes))
}

impl Crystal {
    pub(super) fn to_json(&self) -> Value {
        let figures = |figures: Figures| {
            json!({
                "bytes_per_s": figures.mb_s * 1e6,
                "iops": figures.iops,
                "response_ns": figures.response_us * 1e3,
            })
        };
        let row = |row: &CrystalRow| {
            json!({
                "name": row.name,
                "median": figures(row.median()),
                "spread_percent": row.spread_percent(),
                "best": figures(row.best()),
                "runs": row.runs.iter().copied().map(figures).collect::<Vec<_>>(),
            })
        };
        json!({ "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

impl fmt::Display for Crystal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
        writeln!(
            f,
            "{:width$}  {:>9}  {:>8}  {:>19}  {:>9}  {:>13}  {:>12}",
            "Test", "MB/s", "spread", "slowest…fastest", "IOPS", "Response", "best (MB/s)"
        )?;
        for row in &self.rows {
            let (median, (low, high)) = (row.median(), row.range());
            writeln!(
                f,
                "{:width$}  {:>9}  {:>6.1} %  {:>19}  {:>9}  {:>13}  {:>12}",
                row.name,
                figure(median.mb_s),
                row.spread_percent(),
                format!("{}…{}", figure(low), figure(high)),
                figure(median.iops),
                response_time(median.response_us / 1e3),
                figure(row.best().mb_s),
            )?;
        }
        f.write_str(
            "MB/s, IOPS, Response: median of the runs. Best: the fastest run, as CrystalDiskMark shows it. MB = 1,000,000 bytes.",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rates: &[f64]) -> CrystalRow {
        let run = |&mb_s: &f64| Figures { mb_s, iops: mb_s * 10.0, response_us: 1000.0 / mb_s };
        CrystalRow { name: "x".into(), runs: rates.iter().map(run).collect() }
    }

    #[test]
    fn the_median_comes_first_and_the_best_is_labelled() {
        let row = row(&[100.0, 180.0, 90.0, 110.0, 105.0]);
        assert_eq!((row.median().mb_s, row.median().iops), (105.0, 1050.0));
        assert_eq!((row.best().mb_s, row.best().response_us), (180.0, 1000.0 / 180.0));
        assert!((row.spread_percent() - 90.0 / 105.0 * 100.0).abs() < 1e-9);
        let text = Crystal { rows: vec![row] }.to_string();
        let line = text.lines().nth(1).unwrap();
        assert!(line.find("105.0").unwrap() < line.find("85.7 %").unwrap(), "{text}");
        assert!(line.ends_with("180.0") && text.contains("best (MB/s)"), "{text}");
    }

    #[test]
    fn an_even_number_of_runs_has_its_median_between_the_two_in_the_middle() {
        assert_eq!(row(&[1.0, 4.0, 2.0, 100.0]).median().mb_s, 3.0);
    }

    #[test]
    fn the_set_is_four_tests_in_three_directions_and_reads_alone_where_nothing_may_be_written() {
        let geometry = Geometry::plain(4 << 30);
        let mut options = Options::of(super::super::Kind::Crystal);
        options.destroy = true;
        let (all, _) = rows(&geometry, &options);
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|job| job.check(&geometry).is_ok()));
        assert_eq!(
            jobs(&geometry, &options).len(),
            1 + 12 * 6,
            "a preparation, and each row once more than it counts"
        );
        options.destroy = false;
        let (reads, notes) = rows(&geometry, &options);
        assert_eq!(reads.len(), 4);
        assert!(notes[0].starts_with("Reads only"));
    }
}

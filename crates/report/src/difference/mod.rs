//! Changes from one document to another.

mod page;

use lunway_stats::{holm, median, unpaired};

use crate::document::{Better, Fact, Measure, VerdictTone};
use crate::figure::readable;
use crate::saved::Saved;

/// Error probability of the verdicts *faster* and *slower*, over all rows together, and of each interval.
const LEVEL: f64 = 0.05;
/// Facts that differ between any two runs and explain nothing.
const FLEETING: [&str; 1] = ["CPU stolen since boot"];

/// Changes from an old document to a new one: each measure that both have, the measures that only one has, and the
/// differences between the environments.
///
/// Measures are the same if name and unit are. Where both sides have samples enough, the difference is the
/// Hodges–Lehmann estimate of the ratio, with its 95 % interval, held against a margin; verdicts of a change need
/// Holm's correction over all rows, too. One run is one sample: with fewer than [`runs_needed`] on a side there is a
/// difference and no verdict of a change.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Measures of both, in the new document's order.
    pub rows: Vec<Change>,
    /// Measures that only the old document has.
    pub only_old: Vec<Measure>,
    /// Measures that only the new document has.
    pub only_new: Vec<Measure>,
    /// Differences between the systems: name, and the value of each.
    pub environment: Vec<(String, Option<String>, Option<String>)>,
    /// Changes within this are none that matter, per cent.
    pub margin_percent: f64,
}

/// A measure in both documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Name of the measure.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Direction that is better.
    pub better: Better,
    /// Median of the old samples.
    pub old: f64,
    /// Median of the new ones.
    pub new: f64,
    /// Number of samples of each.
    pub samples: (usize, usize),
    /// By how much the new is above the old, per cent of the old; NaN where there is nothing to divide by.
    pub percent: f64,
    /// Confidence interval of the true change, per cent; `None` where there are too few samples.
    pub interval: Option<(f64, f64)>,
    /// Verdict on the change.
    pub verdict: ChangeVerdict,
}

impl Change {
    /// Factor of its figures, and the unit in which they are written then.
    pub fn readable(&self) -> (f64, &str) {
        readable(&self.unit, self.old.max(self.new))
    }
}

/// Verdict on a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeVerdict {
    /// Better, by more than the margin.
    Faster,
    /// Worse, by more than the margin.
    Slower,
    /// Within the margin.
    Same,
    /// Cannot be told.
    CannotTell(Why),
}

/// Reason why it cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Too few repeats for a verdict among so many rows.
    FewSamples {
        /// Number of rows.
        rows: usize,
        /// Minimum number of runs of each side for a verdict.
        runs: usize,
    },
    /// The interval reaches over the margin.
    Wide,
    /// A figure of zero or less has no ratio.
    NoRatio,
    /// Beyond the margin, but among so many rows it may be chance.
    Chance,
}

impl ChangeVerdict {
    /// As `compare` says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "no meaningful difference",
            Self::CannotTell(_) => "cannot tell",
        }
    }

    /// Returns the tone of the verdict.
    pub fn tone(self) -> VerdictTone {
        match self {
            Self::Faster => VerdictTone::Good,
            Self::Slower => VerdictTone::Bad,
            Self::Same => VerdictTone::Even,
            Self::CannotTell(_) => VerdictTone::Unknown,
        }
    }

    /// Returns the reason why it cannot be told; `None` where it can.
    pub fn reason(self) -> Option<String> {
        let Self::CannotTell(why) = self else { return None };
        Some(match why {
            Why::FewSamples { rows: 1, runs } => {
                format!("too few repeats: a verdict needs at least {runs} of each")
            }
            Why::FewSamples { rows, runs } => {
                format!("too few repeats: among {rows} rows a verdict needs at least {runs} of each")
            }
            Why::Wide => "the interval reaches over the margin: more repeats would tell".to_owned(),
            Why::NoRatio => "a figure is zero or less".to_owned(),
            Why::Chance => "among so many rows this may be chance: more repeats would tell".to_owned(),
        })
    }
}

/// Returns the number of samples of each side that can show a change in one of so many rows: four in one row, five in
/// up to six, six in up to 23.
///
/// The least p-value of the rank sum of two sides of `n` is 2 / C(2n, n): that of all values of one side above all of
/// the other.
pub fn runs_needed(rows: usize) -> usize {
    let (mut runs, mut least) = (1_usize, 1.0);
    // 17 of each are enough for a hundred million rows.
    while least * rows.max(1) as f64 > LEVEL && runs < 17 {
        runs += 1;
        // C(2n, n) is C(2n - 2, n - 1) times this.
        least /= (2 * (2 * runs - 1)) as f64 / runs as f64;
    }
    runs
}

impl Difference {
    /// Compares two documents; changes within `margin_percent` do not matter.
    pub fn of(old: &Saved, new: &Saved, margin_percent: f64) -> Self {
        let pairs: Vec<(&Measure, &Measure)> = new
            .measures
            .iter()
            .filter_map(|new| Some((old.measures.iter().find(|old| old.is_of(new))?, new)))
            .collect();
        let shifts: Vec<Option<Ratio>> =
            pairs.iter().map(|(old, new)| Ratio::of(&old.samples, &new.samples)).collect();
        let p: Vec<f64> = shifts.iter().map(|shift| shift.as_ref().map_or(1.0, |shift| shift.p)).collect();
        let rows = pairs.iter().zip(&shifts).zip(holm(&p));
        let few = Why::FewSamples { rows: pairs.len(), runs: runs_needed(pairs.len()) };
        let rows =
            rows.map(|((&(old, new), shift), p)| change(old, new, shift.as_ref(), p, margin_percent, few));
        let missing = |from: &[Measure], to: &[Measure]| -> Vec<Measure> {
            from.iter().filter(|measure| !to.iter().any(|other| other.is_of(measure))).cloned().collect()
        };
        Self {
            rows: rows.collect(),
            only_old: missing(&old.measures, &new.measures),
            only_new: missing(&new.measures, &old.measures),
            environment: environment(&old.environment, &new.environment),
            margin_percent,
        }
    }

    /// Returns the number of rows with this verdict.
    pub fn count(&self, name: &str) -> usize {
        self.rows.iter().filter(|row| row.verdict.name() == name).count()
    }
}

fn change(old: &Measure, new: &Measure, shift: Option<&Ratio>, p: f64, margin: f64, few: Why) -> Change {
    let is_few = |runs| old.samples.len().min(new.samples.len()) < runs;
    let (before, after) =
        (median(&old.samples).unwrap_or(f64::NAN), median(&new.samples).unwrap_or(f64::NAN));
    let percent =
        shift.map_or(if before > 0.0 { (after / before - 1.0) * 100.0 } else { f64::NAN }, |s| s.percent);
    let interval = shift.and_then(|shift| shift.interval);
    let (above, below) = match new.better {
        Better::Higher => (ChangeVerdict::Faster, ChangeVerdict::Slower),
        Better::Lower => (ChangeVerdict::Slower, ChangeVerdict::Faster),
    };
    let verdict = match interval {
        None if shift.is_none() && !old.samples.is_empty() && !new.samples.is_empty() => {
            ChangeVerdict::CannotTell(Why::NoRatio)
        }
        None => ChangeVerdict::CannotTell(few),
        Some((low, high)) if low >= -margin && high <= margin => ChangeVerdict::Same,
        Some((low, high)) if low <= margin && high >= -margin => ChangeVerdict::CannotTell(Why::Wide),
        Some(_) if p > LEVEL => ChangeVerdict::CannotTell(match few {
            Why::FewSamples { runs, .. } if is_few(runs) => few,
            _ => Why::Chance,
        }),
        Some((low, _)) if low > margin => above,
        Some(_) => below,
    };
    Change {
        name: new.name.clone(),
        unit: new.unit.clone(),
        better: new.better,
        old: before,
        new: after,
        samples: (old.samples.len(), new.samples.len()),
        percent,
        interval,
        verdict,
    }
}

/// By how much one sample is above another, per cent.
struct Ratio {
    percent: f64,
    interval: Option<(f64, f64)>,
    p: f64,
}

impl Ratio {
    /// `None` where a sample has no logarithm, or there is no sample.
    fn of(old: &[f64], new: &[f64]) -> Option<Self> {
        let logs = |samples: &[f64]| samples.iter().map(|sample| sample.ln()).collect::<Vec<f64>>();
        let shift = unpaired::shift(&logs(old), &logs(new), 1.0 - LEVEL)?;
        let percent = |log: f64| log.exp_m1() * 100.0;
        let interval = shift.interval.map(|interval| (percent(interval.low), percent(interval.high)));
        Some(Self { percent: percent(shift.estimate), interval, p: shift.p })
    }
}

fn environment(old: &[Fact], new: &[Fact]) -> Vec<(String, Option<String>, Option<String>)> {
    let value = |facts: &[Fact], name: &str| {
        facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.clone())
    };
    let gone = old.iter().filter(|fact| value(new, &fact.name).is_none());
    let names =
        new.iter().chain(gone).map(|fact| &fact.name).filter(|name| !FLEETING.contains(&name.as_str()));
    let all = names.map(|name| (name.clone(), value(old, name), value(new, name)));
    all.filter(|(_, old, new)| old != new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    fn saved(measures: &[(&str, &str, Better, &[f64])], facts: &[(&str, &str)]) -> Saved {
        let mut document = Document::new("bench", "t", "s");
        document.measures = measures
            .iter()
            .map(|&(name, unit, better, samples)| Measure {
                name: name.into(),
                unit: unit.into(),
                better,
                samples: samples.to_vec(),
            })
            .collect();
        document.environment = facts.iter().map(|&(name, value)| Fact::new(name, value)).collect();
        document.into()
    }

    /// Ten samples around `middle`, at most half a per cent away.
    fn around(middle: f64) -> Vec<f64> {
        (0..10).map(|n| middle * (1.0 + f64::from((n * 7) % 10 - 5) / 1000.0)).collect()
    }

    #[test]
    fn each_measure_gets_the_verdict_that_its_samples_allow() {
        let old = [
            ("up", "IOPS", Better::Higher, &around(1000.0)[..]),
            ("slow", "ms", Better::Lower, &around(1.0)),
            ("same", "IOPS", Better::Higher, &around(1000.0)),
            ("near", "IOPS", Better::Higher, &around(1000.0)),
            ("once", "IOPS", Better::Higher, &[1000.0]),
            ("zero", "IOPS", Better::Higher, &[0.0, 0.0, 0.0, 0.0]),
            ("gone", "IOPS", Better::Higher, &[1.0]),
            ("unit", "IOPS", Better::Higher, &[1.0]),
        ];
        let new = [
            ("up", "IOPS", Better::Higher, &around(1100.0)[..]),
            ("slow", "ms", Better::Lower, &around(1.2)),
            ("same", "IOPS", Better::Higher, &around(1005.0)),
            ("near", "IOPS", Better::Higher, &around(1030.0)),
            ("once", "IOPS", Better::Higher, &[1500.0]),
            ("zero", "IOPS", Better::Higher, &[1.0, 2.0, 3.0, 4.0]),
            ("unit", "MB/s", Better::Higher, &[1.0]),
        ];
        let difference = Difference::of(&saved(&old, &[]), &saved(&new, &[]), 3.0);
        let verdicts: Vec<_> = difference.rows.iter().map(|row| row.verdict).collect();
        use ChangeVerdict::{CannotTell, Faster, Same, Slower};
        assert_eq!(
            verdicts,
            [
                Faster,
                Slower,
                Same,
                CannotTell(Why::Wide),
                CannotTell(Why::FewSamples { rows: 6, runs: 5 }),
                CannotTell(Why::NoRatio)
            ]
        );
        let once = &difference.rows[4];
        assert!((once.percent - 50.0).abs() < 1e-9, "the plain difference is there all the same");
        let (low, high) = difference.rows[0].interval.unwrap();
        assert!(low > 9.0 && low < 10.0 && high > 10.0 && high < 11.0, "{low} {high}");
        let names =
            |list: &[Measure]| list.iter().map(|m| format!("{} {}", m.name, m.unit)).collect::<Vec<_>>();
        assert_eq!(names(&difference.only_old), ["gone IOPS", "unit IOPS"]);
        assert_eq!(names(&difference.only_new), ["unit MB/s"]);
    }

    #[test]
    fn as_many_runs_as_are_asked_for_give_a_verdict_and_one_fewer_says_how_many() {
        assert_eq!([1, 2, 6, 7, 23, 24].map(runs_needed), [4, 5, 5, 6, 6, 7]);
        for rows in [1, 2, 6, 7] {
            let names: Vec<_> = (0..rows).map(|row| format!("row {row}")).collect();
            let verdicts = |runs: usize| {
                let samples = |middle: f64| -> Vec<f64> {
                    (0..runs).map(|run| middle * (1.0 + run as f64 / 1000.0)).collect()
                };
                let (old, new) = (samples(1000.0), samples(1200.0));
                let side = |samples: &[f64]| {
                    let of = |name| (name, "IOPS", Better::Higher, samples);
                    saved(&names.iter().map(|name| of(name.as_str())).collect::<Vec<_>>(), &[])
                };
                let difference = Difference::of(&side(&old), &side(&new), 3.0);
                difference.rows.iter().map(|row| row.verdict).collect::<Vec<_>>()
            };
            let runs = runs_needed(rows);
            assert_eq!(verdicts(runs), vec![ChangeVerdict::Faster; rows], "{rows} rows");
            let few = verdicts(runs - 1);
            assert_eq!(few, vec![ChangeVerdict::CannotTell(Why::FewSamples { rows, runs }); rows]);
            assert!(few[0].reason().is_some_and(|why| why.contains(&format!("at least {runs} of each"))));
        }
    }

    #[test]
    fn what_differs_between_the_systems_is_listed_and_what_always_differs_is_not() {
        let old = [
            ("Kernel", "6.1"),
            ("Memory", "8 GiB"),
            ("CPU stolen since boot", "0.1 %"),
            ("Card eth0", "MTU 1500"),
        ];
        let new = [
            ("Kernel", "6.2"),
            ("Memory", "8 GiB"),
            ("CPU stolen since boot", "0.2 %"),
            ("Card eth1", "MTU 9000"),
        ];
        let difference = Difference::of(&saved(&[], &old), &saved(&[], &new), 3.0);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            difference.environment,
            [
                ("Kernel".to_owned(), text("6.1"), text("6.2")),
                ("Card eth1".to_owned(), None, text("MTU 9000")),
                ("Card eth0".to_owned(), text("MTU 1500"), None),
            ]
        );
    }
}

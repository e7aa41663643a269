//! Stability of the machine during a comparison.

use lunway_stats::{
    Line, autocorrelation, changepoints, holm, mann_kendall, median, normal_cdf, outliers, theil_sen,
};

use super::decide::{Contrast, level, percent};
use super::plan::Plan;
use super::runs::Runs;

/// A change of the control beyond this is a reason not to trust the table, smaller ones are mentioned: pairs cancel
/// what both of them went through, but what moves by a tenth moves within pairs too. The limit is that of SNIA's steady
/// state.
const CHANGE_PERCENT_MAX: f64 = 10.0;
/// A level that ends within this part of the blocks is called warm-up.
const WARM_UP_SHARE: f64 = 0.3;
/// Chance at which a check of many rows calls a machine that held still restless.
const LEVEL: f64 = 0.05;
/// Pairs that resemble their neighbours less than this make intervals at most a fifth too narrow.
const AUTOCORRELATION_MIN: f64 = 0.2;

/// Trust in a comparison: whether it may be acted on.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Reasons, as sentences. Empty: it may.
    pub reasons: Vec<String>,
    /// Further remarks for a reader; sentences.
    pub notes: Vec<String>,
}

impl Trust {
    /// No reason not to.
    pub fn ok(&self) -> bool {
        self.reasons.is_empty()
    }

    pub(super) fn of(plan: &Plan, runs: &Runs, contrasts: &[Contrast], again: &[Contrast]) -> Self {
        let mut trust = Self::default();
        trust.control_against_itself(plan, again);
        trust.resolution(plan, again);
        // Both runs of the control in a block, averaged: half the noise, the same machine.
        let control: Vec<Vec<f64>> = (0..plan.rows.len()).map(|row| runs.control_logs(row)).collect();
        trust.drift(plan, &control);
        trust.neighbours(plan, runs, contrasts);
        trust.odd_runs(plan, &control);
        if control.iter().all(Vec::is_empty) {
            trust.reasons.push("No pair was measured.".into());
        }
        let failed = runs.failed();
        if failed > 0 {
            trust.reasons.push(format!("{failed} runs gave no figure; their pairs are left out."));
        }
        trust
    }

    fn control_against_itself(&mut self, plan: &Plan, again: &[Contrast]) {
        let margin = plan.margin_percent;
        for contrast in again {
            let Some((low, high)) = contrast.interval_pct else { continue };
            let within = low >= -margin && high <= margin;
            if contrast.p_adjusted <= level(plan) && !within {
                self.reasons.push(format!(
                    "The control differs from itself in “{}” by {:+.2} % ({low:+.2} … {high:+.2}); the \
                     machine causes differences of this size.",
                    plan.rows[contrast.row].name, contrast.diff_pct
                ));
            }
        }
    }

    fn resolution(&mut self, plan: &Plan, again: &[Contrast]) {
        let widest = again
            .iter()
            .filter_map(|contrast| contrast.resolution_pct().map(|width| (width, contrast.row)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((width, row)) = widest
            && width > plan.margin_percent
        {
            self.notes.push(format!(
                "The smallest difference that this set-up can detect in “{}” is {width:.1} %, more than the margin of {} %: longer \
                 runs, more pairs or a quieter machine.",
                plan.rows[row].name, plan.margin_percent
            ));
        }
    }

    /// Levels and trends of the control.
    fn drift(&mut self, plan: &Plan, control: &[Vec<f64>]) {
        let trends: Vec<_> = control.iter().map(|logs| mann_kendall(logs)).collect();
        let p = holm(&trends.iter().map(|trend| trend.map_or(1.0, |trend| trend.p)).collect::<Vec<_>>());
        for (row, logs) in control.iter().enumerate() {
            let name = &plan.rows[row].name;
            let starts = changepoints(logs);
            let line = line(logs).filter(|_| p[row] <= LEVEL);
            if let Some(line) = line
                && left_over(logs, |at| line.at(at as f64)) < left_over(logs, level_at(logs, &starts))
            {
                let change = percent(line.slope * (logs.len() - 1) as f64);
                let sentence = format!(
                    "The machine drifted: the control of “{name}” by {change:+.1} % from first to last block."
                );
                self.say(plan, change, sentence);
            } else if let Some(&start) = starts.first() {
                let level = level_at(logs, &starts);
                let change = percent(level(start) - level(0));
                let sentence = if start as f64 <= WARM_UP_SHARE * logs.len() as f64 {
                    format!(
                        "The machine was not warm: the control of “{name}” changed by {change:+.1} % after the first {start} blocks."
                    )
                } else {
                    format!(
                        "The control of “{name}” changed by {change:+.1} % after {start} blocks, and stayed there."
                    )
                };
                self.say(plan, change, sentence);
            }
        }
    }

    /// A change of the control is a reason if it is large, and not worth a word within the margin.
    fn say(&mut self, plan: &Plan, change_percent: f64, sentence: String) {
        if change_percent.abs() > CHANGE_PERCENT_MAX {
            self.reasons.push(sentence);
        } else if change_percent.abs() > plan.margin_percent {
            self.notes.push(sentence + " Pairs cancel it.");
        }
    }

    /// Pairs that resemble their neighbours count as fewer than they are.
    fn neighbours(&mut self, plan: &Plan, runs: &Runs, contrasts: &[Contrast]) {
        let correlation = |contrast: &Contrast| {
            let ratios = runs.log_ratios(contrast.row, contrast.arm);
            let n = ratios.len() as f64;
            let r = autocorrelation(&ratios).filter(|_| n >= 6.0)?;
            // Of independent values r is about normal around −1/n with variance 1/n.
            Some((r, normal_cdf(-(r + 1.0 / n) * n.sqrt())))
        };
        let found: Vec<_> = contrasts.iter().map(correlation).collect();
        let p = holm(&found.iter().map(|found| found.map_or(1.0, |(_, p)| p)).collect::<Vec<_>>());
        for (index, contrast) in contrasts.iter().enumerate() {
            if let Some((r, _)) = found[index]
                && p[index] <= LEVEL
                && r > AUTOCORRELATION_MIN
            {
                self.reasons.push(format!(
                    "Neighbouring pairs of “{}” are correlated (lag-1 correlation {r:.2}): its interval is too narrow.",
                    plan.rows[contrast.row].name
                ));
            }
        }
    }

    fn odd_runs(&mut self, plan: &Plan, control: &[Vec<f64>]) {
        for (row, logs) in control.iter().enumerate() {
            let odd = outliers(logs).len();
            if odd > 0 {
                self.notes.push(format!(
                    "{odd} of {} blocks of “{}” are outliers in the control (kept: ranks tolerate them).",
                    logs.len(),
                    plan.rows[row].name
                ));
            }
        }
    }
}

fn line(logs: &[f64]) -> Option<Line> {
    let points: Vec<(f64, f64)> = logs.iter().enumerate().map(|(at, log)| (at as f64, *log)).collect();
    theil_sen(&points)
}

/// Returns the residual of a description of the values: the sum of absolute deviations, which a single stall does not
/// dominate.
fn left_over(logs: &[f64], described: impl Fn(usize) -> f64) -> f64 {
    logs.iter().enumerate().map(|(at, log)| (log - described(at)).abs()).sum()
}

/// The level at each place, between the first two levels and after: a staircase of more is a slope, and is described
/// as one step here so that it does not pass for a better description than that.
fn level_at(logs: &[f64], starts: &[usize]) -> impl Fn(usize) -> f64 {
    let first = starts.first().copied().unwrap_or(logs.len());
    let (before, after) = (median(&logs[..first]).unwrap_or(0.0), median(&logs[first..]).unwrap_or(0.0));
    move |at| if at < first { before } else { after }
}

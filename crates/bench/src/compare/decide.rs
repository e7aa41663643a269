//! The verdict on one row and candidate.

use lunway_report::{Better, VerdictTone};
use lunway_stats::{Shift, holm, median, paired};

use super::plan::Plan;

/// Most pairs that are said to be needed: beyond, the difference lies so close to the margin that no number is honest.
const MORE_PAIRS_MAX: f64 = 10_000.0;

/// Verdict on a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Better than the control by more than the margin.
    Faster,
    /// Worse than the control by more than the margin.
    Slower,
    /// Within the margin of the control, whichever way.
    NoMeaningfulDifference,
    /// The interval reaches across the margin, or into that of the control against itself.
    CannotTell,
}

impl Verdict {
    /// As it is written everywhere, JSON included.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoMeaningfulDifference => "no meaningful difference",
            Self::CannotTell => "cannot tell",
        }
    }

    /// Tone of the verdict on a page.
    pub fn tone(self) -> VerdictTone {
        match self {
            Self::Faster => VerdictTone::Good,
            Self::Slower => VerdictTone::Bad,
            Self::NoMeaningfulDifference => VerdictTone::Even,
            Self::CannotTell => VerdictTone::Unknown,
        }
    }
}

/// Contrast of one candidate with the control in one row.
#[derive(Clone, Debug)]
pub struct Contrast {
    /// Index into [`Plan::rows`].
    pub row: usize,
    /// Index into [`Plan::arms`]; 0 for the control against itself.
    pub arm: usize,
    /// Blocks in which both have a figure.
    pub pairs: u32,
    /// The control's median figure in those; NaN without any.
    pub a: f64,
    /// The candidate's.
    pub b: f64,
    /// By how many per cent of the control the candidate lies above it (below, if negative): Hodges–Lehmann over the
    /// pairs, and so not exactly the quotient of the medians. NaN without pairs.
    pub diff_pct: f64,
    /// Confidence interval of the true difference, per cent; `None` where too few pairs allow one. 95 % over all looks
    /// together.
    pub interval_pct: Option<(f64, f64)>,
    /// Probability of ranks this lopsided without a difference.
    pub p: f64,
    /// The same by Holm, over the table.
    pub p_adjusted: f64,
    /// Verdict on the difference.
    pub verdict: Verdict,
    /// Estimated number of further pairs needed for a verdict; `None` if there is a verdict, or if no number would be
    /// honest.
    pub more_pairs: Option<u32>,
}

impl Contrast {
    /// Takes back a verdict of faster or slower that the set-up cannot carry: where the near end of the interval lies
    /// within the interval of `again`, the control against itself, a machine that does not tell two runs of one device
    /// apart to that degree has not told these apart either.
    pub(super) fn withdraw_below_resolution(&mut self, again: &Self) {
        if !matches!(self.verdict, Verdict::Faster | Verdict::Slower) {
            return;
        }
        let (Some((low, high)), Some(itself)) = (self.interval_pct, again.interval_pct) else { return };
        let near = if low > 0.0 { low } else { high };
        if near < itself.0 || near > itself.1 {
            return;
        }
        self.verdict = Verdict::CannotTell;
        // Both intervals must shrink until they lie apart: together to the distance of the two estimates.
        let widths = (high - low + itself.1 - itself.0) / 2.0;
        let needed = f64::from(self.pairs) * (widths / (self.diff_pct - again.diff_pct).abs()).powi(2);
        let more = (needed.ceil() - f64::from(self.pairs)).max(1.0);
        self.more_pairs = (more <= MORE_PAIRS_MAX).then_some(more as u32);
    }
}

/// A contrast's data before it is seen in the company of the others.
pub(super) struct Pairs {
    pub(super) row: usize,
    pub(super) arm: usize,
    /// Figures of control and candidate, block by block, both valid.
    pub(super) figures: Vec<(f64, f64)>,
}

/// Two-sided level of each look: Pocock (1977), for looks after equally many pairs, so that all together err in 5 of
/// 100 cases.
pub(super) fn level(plan: &Plan) -> f64 {
    match plan.rounds {
        0 | 1 => 0.05,
        2 => 0.0294,
        _ => 0.0221,
    }
}

/// Verdicts on contrasts that make up one table.
pub(super) fn decide(plan: &Plan, family: Vec<Pairs>) -> Vec<Contrast> {
    let level = level(plan);
    let shifts: Vec<Option<Shift>> = family.iter().map(|pairs| shift(pairs, level)).collect();
    let p: Vec<f64> = shifts.iter().map(|shift| shift.map_or(1.0, |shift| shift.p)).collect();
    let adjusted = holm(&p);
    let contrast = |(index, pairs): (usize, Pairs)| {
        let shift = shifts[index];
        let better = plan.rows[pairs.row].better;
        let verdict = verdict(plan, better, shift, adjusted[index]);
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.figures.iter().copied().unzip();
        Contrast {
            row: pairs.row,
            arm: pairs.arm,
            pairs: pairs.figures.len() as u32,
            a: median(&a).unwrap_or(f64::NAN),
            b: median(&b).unwrap_or(f64::NAN),
            diff_pct: shift.map_or(f64::NAN, |shift| percent(shift.estimate)),
            interval_pct: shift
                .and_then(|shift| shift.interval)
                .map(|interval| (percent(interval.low), percent(interval.high))),
            p: p[index],
            p_adjusted: adjusted[index],
            verdict,
            more_pairs: (verdict == Verdict::CannotTell)
                .then(|| more_pairs(plan, shift, pairs.figures.len(), p.len()))
                .flatten(),
        }
    };
    family.into_iter().enumerate().map(contrast).collect()
}

/// Returns `true` if a contrast needs no more pairs. Holm's correction depends on the other rows, which may go on; the
/// strictest that it can become is Bonferroni's, so a contrast that passes Bonferroni stays decided.
pub(super) fn is_final(plan: &Plan, contrast: &Contrast, family: usize) -> bool {
    match contrast.verdict {
        Verdict::CannotTell => false,
        Verdict::NoMeaningfulDifference => true,
        Verdict::Faster | Verdict::Slower => contrast.p * family as f64 <= level(plan),
    }
}

/// Log ratios to per cent.
pub(super) fn percent(log_ratio: f64) -> f64 {
    log_ratio.exp_m1() * 100.0
}

fn shift(pairs: &Pairs, level: f64) -> Option<Shift> {
    let ratios: Vec<f64> = pairs.figures.iter().map(|(a, b)| (b / a).ln()).collect();
    paired::shift(&ratios, 1.0 - level)
}

fn verdict(plan: &Plan, better: Better, shift: Option<Shift>, p_adjusted: f64) -> Verdict {
    let margin = plan.margin_percent;
    let Some(interval) = shift.and_then(|shift| shift.interval) else { return Verdict::CannotTell };
    let (low, high) = (percent(interval.low), percent(interval.high));
    if low >= -margin && high <= margin {
        return Verdict::NoMeaningfulDifference;
    }
    let (above, below) = match better {
        Better::Higher => (Verdict::Faster, Verdict::Slower),
        Better::Lower => (Verdict::Slower, Verdict::Faster),
    };
    match p_adjusted <= level(plan) {
        true if low > margin => above,
        true if high < -margin => below,
        _ => Verdict::CannotTell,
    }
}

/// An interval shrinks with the square root of the number of pairs, and must shrink to the distance between estimate
/// and margin. To hold its own among `family` rows it also needs so many pairs that their least p can.
fn more_pairs(plan: &Plan, shift: Option<Shift>, pairs: usize, family: usize) -> Option<u32> {
    let holds = (6..64).find(|&n| paired::p_min(n) * family as f64 <= level(plan)).unwrap_or(64);
    let Some((shift, interval)) = shift.and_then(|shift| Some((shift, shift.interval?))) else {
        return Some(holds.saturating_sub(pairs) as u32);
    };
    let margin = (plan.margin_percent / 100.0).ln_1p();
    let distance = (shift.estimate.abs() - margin).abs();
    let needed = (pairs as f64 * (interval.half_width() / distance).powi(2)).ceil().max(holds as f64);
    (needed <= MORE_PAIRS_MAX).then(|| (needed as u32).saturating_sub(pairs as u32).max(1))
}

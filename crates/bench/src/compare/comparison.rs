//! Result of a comparison.

use serde_json::{Value, json};

use super::decide::{Contrast, Verdict, decide, is_final};
use super::plan::Plan;
use super::runs::Runs;
use super::trust::Trust;

/// Result of a comparison: valid for what was measured, even if it was cancelled.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The plan that was requested.
    pub plan: Plan,
    /// Every figure.
    pub runs: Runs,
    /// A verdict for each row and candidate, row by row.
    pub contrasts: Vec<Contrast>,
    /// The control against itself, row by row.
    pub again: Vec<Contrast>,
    /// Trust in the measurement: whether the machine was stable.
    pub trust: Trust,
    /// Not cut short.
    pub complete: bool,
}

impl Comparison {
    /// Draws the conclusions.
    pub(super) fn of(plan: &Plan, runs: Runs, complete: bool) -> Self {
        let rows = 0..plan.rows.len();
        let candidates = |row| (1..plan.arms.len()).map(move |arm| (row, arm));
        let family =
            rows.clone().flat_map(candidates).map(|(row, arm)| runs.pairs(row, arm, runs.of(row, arm)));
        let mut contrasts = decide(plan, family.collect());
        let again = decide(plan, rows.map(|row| runs.pairs(row, 0, runs.again(row))).collect());
        for contrast in &mut contrasts {
            contrast.withdraw_below_resolution(&again[contrast.row]);
        }
        let trust = Trust::of(plan, &runs, &contrasts, &again);
        Self { plan: plan.clone(), runs, contrasts, again, trust, complete }
    }

    /// Candidates of each row that more pairs may decide.
    pub(super) fn undecided(&self) -> Vec<Vec<usize>> {
        let mut open = vec![Vec::new(); self.plan.rows.len()];
        for contrast in &self.contrasts {
            if !is_final(&self.plan, contrast, self.contrasts.len()) {
                open[contrast.row].push(contrast.arm);
            }
        }
        open
    }

    /// Number of contrasts with that verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.contrasts.iter().filter(|contrast| contrast.verdict == verdict).count()
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let plan = &self.plan;
        let contrast = |contrast: &Contrast| {
            let row = &plan.rows[contrast.row];
            json!({
                "name": row.name, "unit": row.unit, "better": row.better.name(), "candidate": plan.arms[contrast.arm],
                "a": contrast.a, "b": contrast.b, "pairs": contrast.pairs, "diff_pct": contrast.diff_pct,
                "ci_low_pct": contrast.interval_pct.map(|interval| interval.0),
                "ci_high_pct": contrast.interval_pct.map(|interval| interval.1),
                "p": contrast.p, "p_adjusted": contrast.p_adjusted, "verdict": contrast.verdict.name(),
                "more_pairs": contrast.more_pairs, "resolution_pct": contrast.resolution_pct(),
            })
        };
        let runs = |row: usize| {
            let arms: Vec<&[f64]> = (0..plan.arms.len()).map(|arm| self.runs.of(row, arm)).collect();
            json!({ "name": plan.rows[row].name, "arms": arms, "control_again": self.runs.again(row) })
        };
        json!({
            "rows": self.contrasts.iter().map(contrast).collect::<Vec<_>>(),
            "aa": self.again.iter().map(contrast).collect::<Vec<_>>(),
            "trust": { "ok": self.trust.ok(), "reasons": self.trust.reasons, "notes": self.trust.notes },
            "complete": self.complete,
            "plan": {
                "arms": plan.arms, "control": plan.arms[0], "pairs": plan.pairs, "rounds": plan.rounds,
                "margin_pct": plan.margin_percent, "warm_up": plan.warm_up, "seed": plan.seed, "confidence": 0.95,
            },
            "runs": (0..plan.rows.len()).map(runs).collect::<Vec<_>>(),
        })
    }
}

impl Contrast {
    /// Half of the interval's length, per cent: of the control against itself, the smallest difference that can be
    /// seen.
    pub fn resolution_pct(&self) -> Option<f64> {
        self.interval_pct.map(|(low, high)| 0.5 * (high - low))
    }
}

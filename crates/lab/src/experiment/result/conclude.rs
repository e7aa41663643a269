//! From what was measured to figures and sentences.

use std::collections::BTreeMap;

use lunway_bench::compare;
use lunway_report::{Conclusion, VerdictTone};

use crate::experiment::Experiment;
use crate::experiment::plan::expression::NoValue;
use crate::experiment::plan::run::Run;
use crate::experiment::plan::values::{COMPARED, COUNTED, CellName};
use crate::experiment::result::backups::BackupRow;
use crate::experiment::result::results::{Results, median};

impl Results {
    pub(crate) fn new(experiment: Experiment) -> Self {
        Self {
            topology: experiment.topology.clone(),
            experiment,
            links: Vec::new(),
            rows: Vec::new(),
            cells: Vec::new(),
            comparisons: Vec::new(),
            backups: Vec::new(),
            figures: Vec::new(),
            verdicts: Vec::new(),
            notes: Vec::new(),
            congestion_control: "",
            interrupted: false,
        }
    }

    /// Deviances, figures, verdicts. What was not measured, or does not count, has no figure, and what needs that
    /// figure says so.
    pub(crate) fn conclude(&mut self) {
        self.rows.retain(|row| !row.samples.is_empty());
        self.backups.retain(|row| !row.samples.is_empty());
        let controls: Vec<_> = self.rows.iter().filter(|row| row.is_control).cloned().collect();
        for row in &mut self.rows {
            let control = controls.iter().find(|control| control.rw == row.rw);
            row.deviance_pct = control.and_then(|control| row.deviance_from(control));
        }
        let mut values = self.values();
        for figure in &self.experiment.figures {
            if let Ok(value) = figure.value.evaluate(&|name| values.get(name).copied()) {
                values.insert(figure.name.clone(), value);
                self.figures.push((figure.name.clone(), value));
            }
        }
        let value = |name: &str| values.get(name).copied();
        self.verdicts = self.experiment.verdicts.iter().map(|verdict| self.say(verdict, &value)).collect();
    }

    /// Verdicts for people, with the table of the file that each is of: why nothing can be told is said once.
    pub(crate) fn told_verdicts(&self) -> impl Iterator<Item = (usize, &Conclusion)> {
        let said = self.experiment.verdicts.iter().zip(&self.verdicts).enumerate();
        said.filter(|(number, (_, verdict))| {
            let is_known = verdict.tone != VerdictTone::Unknown;
            is_known || !self.verdicts[..*number].contains(verdict)
        })
        .map(|(_, (planned, verdict))| (planned.table, verdict))
    }

    fn say(&self, verdict: &crate::experiment::Verdict, value: &dyn Fn(&str) -> Option<f64>) -> Conclusion {
        let said = || -> Result<Conclusion, NoValue> {
            let mut good = true;
            for condition in &verdict.when {
                good &= condition.holds(value)?;
            }
            let (template, tone) = match good {
                true => (&verdict.good, VerdictTone::Good),
                false => (&verdict.bad, VerdictTone::Bad),
            };
            Ok(Conclusion { text: template.fill(value)?, tone })
        };
        said().unwrap_or_else(|missing| Conclusion {
            text: self.cannot_tell(&missing),
            tone: VerdictTone::Unknown,
        })
    }

    fn cannot_tell(&self, missing: &NoValue) -> String {
        let limited = self.rows.iter().any(crate::experiment::result::results::ResultRow::limited)
            || self.cells.iter().any(|cell| cell.limited)
            || self.backups.iter().any(BackupRow::is_limited);
        match (self.interrupted, limited) {
            (true, _) => format!("Cannot tell: it was interrupted before {missing}."),
            (false, true) => {
                "Cannot tell: the processor was the limit, not the network. Use a lower --rate, or a quieter machine."
                    .to_owned()
            }
            (false, false) => format!("Cannot tell: {missing}."),
        }
    }

    /// Everything that figures are made of and that counts, by its name in a file.
    fn values(&self) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        for link in &self.links {
            // Of a cable that was built in several shapes, the first.
            values.entry(format!("link.{}", link.name)).or_insert(link.calibrated_mb_s);
        }
        for run in &self.experiment.runs {
            self.row_values(run, &mut values);
            self.cell_values(run, &mut values);
            self.compared_values(run, &mut values);
            for row in self.backups.iter().filter(|row| row.test == run.test) {
                let named = |(column, value)| (run.counted_value(column), value);
                values.extend(row.values().map(named));
            }
        }
        values.retain(|_, value| value.is_finite());
        values
    }

    fn row_values(&self, run: &Run, values: &mut BTreeMap<String, f64>) {
        for row in self.rows.iter().filter(|row| row.test == run.test) {
            let mut put = |column, value| {
                let full = run.full_row_value(&row.policy, row.rw, column);
                values.extend(full.map(|name| (name, value)));
                values.insert(run.row_value(&row.policy, row.rw, column), value);
            };
            // What went wrong, or took long, did so however busy the processor was.
            put("longest_stall_ms", row.longest_ms());
            put("stall_ms", median(row.samples.iter().map(|sample| sample.longest_ms)));
            put("silence_ms", row.most(|sample| Some(sample.silence_ms)).unwrap_or(f64::NAN));
            put("resumed_ms", row.most(|sample| sample.resumed_ms).unwrap_or(f64::NAN));
            put("lanes_lost", row.lanes_lost() as f64);
            put("io_errors", row.errors() as f64);
            if let Some(wrong) = row.wrong_blocks() {
                put("wrong_blocks", wrong as f64);
            }
            if row.counts() {
                put("mb_s", row.median(|sample| sample.mb_s));
                put("mb", row.median(|sample| sample.mb));
                put("iops", row.median(|sample| sample.iops));
                put("response_ms", row.median(|sample| sample.response_ms));
                put("median_ms", row.median(|sample| sample.median_ms));
                put("mb_s_after", row.median(|sample| sample.mb_s_after.unwrap_or(f64::NAN)));
                put("p99_ms", row.median(|sample| sample.p99_ms));
                put("deviance_pct", row.deviance_pct.unwrap_or(f64::NAN));
            }
        }
    }

    fn cell_values(&self, run: &Run, values: &mut BTreeMap<String, f64>) {
        for cell in self.cells.iter().filter(|cell| cell.test == run.test && cell.counts()) {
            let name = CellName { window: &cell.window, mtu: cell.mtu, delay: cell.delay };
            let mut put = |column, value| values.insert(run.cell_value(&name, cell.rw, column), value);
            put("mb_s", cell.mb_s());
            put("rtt_ms", cell.rtt_ms);
            put("bound_mb_s", cell.bound_mb_s().unwrap_or(f64::NAN));
            put("retransmits", cell.retransmits as f64);
        }
    }

    fn compared_values(&self, run: &Run, values: &mut BTreeMap<String, f64>) {
        for compared in self.comparisons.iter().filter(|compared| compared.test == run.test) {
            let mut counts = [0.0; 4];
            for (row, contrast) in compared.counting() {
                let (low, high) = contrast.interval_pct.unwrap_or((f64::NAN, f64::NAN));
                let columns = [contrast.a, contrast.b, contrast.diff_pct, low, high];
                for (column, value) in COMPARED.into_iter().zip(columns) {
                    values.insert(run.compared_value(row, column), value);
                }
                counts[match contrast.verdict {
                    compare::Verdict::Faster => 0,
                    compare::Verdict::Slower => 1,
                    compare::Verdict::NoMeaningfulDifference => 2,
                    compare::Verdict::CannotTell => 3,
                }] += 1.0;
            }
            for (column, count) in COUNTED.into_iter().zip(counts) {
                values.insert(run.counted_value(column), count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_told_for_one_reason_is_said_once() {
        let experiment = Experiment::open("backup").unwrap_or_else(|error| panic!("{error}"));
        let mut results = Results::new(experiment);
        results.conclude();
        let all = results.verdicts.len();
        let reason = results.verdicts[0].clone();
        assert_eq!((all, reason.tone), (results.experiment.verdicts.len(), VerdictTone::Unknown));
        results.verdicts.iter_mut().for_each(|verdict| *verdict = reason.clone());
        assert_eq!(results.told_verdicts().map(|(_, verdict)| verdict).collect::<Vec<_>>(), [&reason]);
        // What is known is said each time.
        results.verdicts.iter_mut().for_each(|verdict| verdict.tone = VerdictTone::Good);
        assert_eq!(results.told_verdicts().count(), all);
    }
}

//! Values that figures are made of: the names of everything that an experiment measures.

use lunway_bench::{Job, profile};
use lunway_block::Geometry;
use lunway_block::duration::ExactDuration;

use crate::experiment::Experiment;
use crate::experiment::plan::expression::Others;
use crate::experiment::plan::run::{Comparing, NO_POLICY, Run, RunWork, Window, rows};

/// Values of each row of I/O.
pub(crate) const ROW: [&str; 15] = [
    "mb_s",
    "mb",
    "iops",
    "response_ms",
    "median_ms",
    "p99_ms",
    "deviance_pct",
    "mb_s_after",
    "longest_stall_ms",
    "stall_ms",
    "silence_ms",
    "resumed_ms",
    "lanes_lost",
    "io_errors",
    "wrong_blocks",
];
/// Values of which more is better; of all others less is.
const MORE_IS_BETTER: [&str; 5] = ["mb_s", "mb", "iops", "deviance_pct", "mb_s_after"];
/// Values of each cell of a matrix.
pub(crate) const CELL: [&str; 4] = ["mb_s", "rtt_ms", "bound_mb_s", "retransmits"];
/// Values of each row of a comparison.
pub(crate) const COMPARED: [&str; 5] = ["a", "b", "diff_pct", "ci_low_pct", "ci_high_pct"];
/// Values of each comparison, over its rows: the number of rows per outcome.
pub(crate) const COUNTED: [&str; 4] = ["faster", "slower", "no_meaningful_difference", "cannot_tell"];

/// Values of each run of backups.
pub(crate) const BACKUP: [&str; 9] =
    ["seconds", "needed_mb", "read_mb", "sent_mb", "stored_mb", "of_link", "attempts", "torn", "unsound"];

/// Names of values. They are written in one place, so that what a file may name is what a run gives.
impl Run {
    /// `D.read.mb_s`, and `D[round-robin].read.mb_s` where the run has several policies.
    pub(crate) fn row_value(&self, policy: &str, rw: &str, column: &str) -> String {
        match self.policies.len() {
            1 => format!("{}.{rw}.{column}", self.test),
            _ => format!("{}[{policy}].{rw}.{column}", self.test),
        }
    }

    /// The name with its policy, where one without will do: `C[adaptive].read.mb_s` stays right when the other policies
    /// are struck.
    pub(crate) fn full_row_value(&self, policy: &str, rw: &str, column: &str) -> Option<String> {
        let will_do = self.policies.len() == 1 && policy != NO_POLICY;
        will_do.then(|| format!("{}[{policy}].{rw}.{column}", self.test))
    }

    /// `W[10kB,1500,1ms].write.mb_s`.
    pub(crate) fn cell_value(&self, cell: &CellName<'_>, rw: &str, column: &str) -> String {
        let CellName { window, mtu, delay } = cell;
        format!("{}[{},{mtu},{}].{rw}.{column}", self.test, window.text, ExactDuration(*delay))
    }

    /// `RAM[read 4K].diff_pct`.
    pub(crate) fn compared_value(&self, row: &str, column: &str) -> String {
        format!("{}[{row}].{column}", self.test)
    }

    /// `RAM.faster`.
    pub(crate) fn counted_value(&self, column: &str) -> String {
        format!("{}.{column}", self.test)
    }

    fn values(&self) -> Vec<String> {
        let mut values = Vec::new();
        match &self.measure {
            RunWork::Storage(storage) => {
                for policy in &self.policies {
                    for rw in storage.accesses.iter().flat_map(|&access| rows(access)) {
                        values.extend(ROW.iter().map(|column| self.row_value(policy, rw, column)));
                        values
                            .extend(ROW.iter().filter_map(|column| self.full_row_value(policy, rw, column)));
                    }
                }
            }
            RunWork::Wire(wire) => {
                for cell in wire.cells() {
                    for direction in &wire.directions {
                        let rw = direction.name();
                        values.extend(CELL.iter().map(|column| self.cell_value(&cell, rw, column)));
                    }
                }
            }
            RunWork::Backup(_) => values.extend(BACKUP.iter().map(|column| self.counted_value(column))),
            RunWork::Compare(_) => {
                for row in Comparing::rows() {
                    values.extend(COMPARED.iter().map(|column| self.compared_value(&row.name, column)));
                }
                values.extend(COUNTED.iter().map(|column| self.counted_value(column)));
            }
        }
        values
    }
}

/// Place of a cell in a matrix.
pub(crate) struct CellName<'a> {
    pub(crate) window: &'a Window,
    pub(crate) mtu: u32,
    pub(crate) delay: std::time::Duration,
}

impl crate::experiment::plan::run::Wire {
    /// All cells, in the order in which they are measured: windows change fastest, as they need no other network.
    pub(crate) fn cells(&self) -> impl Iterator<Item = CellName<'_>> {
        self.delays.iter().flat_map(move |&delay| {
            self.mtus
                .iter()
                .flat_map(move |&mtu| self.windows.iter().map(move |window| CellName { window, mtu, delay }))
        })
    }
}

impl Comparing {
    /// The rows that a comparison has: those of the profile `anvil`.
    pub(crate) fn rows() -> Vec<Job> {
        let options = profile::Options { destroy: true, ..profile::Options::default() };
        profile::anvil(&Geometry::plain(options.region), &options).rows
    }
}

impl Experiment {
    /// The same column of the same rows, under the other policies.
    pub(crate) fn others(&self, name: &str) -> Option<Others> {
        for run in &self.runs {
            let RunWork::Storage(storage) = &run.measure else { continue };
            for rw in storage.accesses.iter().flat_map(|&access| rows(access)) {
                for column in ROW {
                    let of = |policy: &String| run.row_value(policy, rw, column);
                    if !run.policies.iter().any(|policy| of(policy) == name) {
                        continue;
                    }
                    let names = run.policies.iter().map(of).filter(|other| other != name).collect();
                    return Some(Others { names, less_is_better: !MORE_IS_BETTER.contains(&column) });
                }
            }
        }
        None
    }

    /// Everything that a figure can be made of, but other figures.
    pub(crate) fn values(&self) -> Vec<String> {
        let links = self.topology.cables.iter().map(|cable| format!("link.{}", cable.name));
        links.chain(self.runs.iter().flat_map(Run::values)).collect()
    }
}

//! `lunway backup prune`.

use std::num::NonZeroUsize;

use anyhow::anyhow;
use clap::Args;
use lunway_backup::{BackupError, Folder, Lease, Notes, PointId, Retention, Step, prune};
use lunway_block::size::HumanSize;
use lunway_repository::{PACK_TARGET, Series, given_up};
use serde_json::{Value, json};

use super::{Destination, failed, guids, holder, points};
use crate::begun_by::BegunBy;
use crate::failure::Failure;
use crate::{interrupt, progress, terminal};

/// Sentence about a prune that ends early.
const UNFINISHED: &str = "every point that was not removed is whole; the next prune continues";

/// Remove points that no retention rule keeps.
///
/// Data that other points need is merged into those: a new file is written and verified before anything is removed. In
/// a repository, data is removed that no point of any series needs.
/// The newest point and the newest verified one are always kept; nothing is removed while damage is known. Periods
/// are UTC, by the clock of the machine that made the points.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup prune /mnt/share/server1 --keep-last 7 --dry-run
  lunway backup prune /mnt/share/server1 --keep-daily 14 --keep-monthly 12")]
pub(super) struct Prune {
    #[command(flatten)]
    destination: Destination,
    /// Keep the newest points
    #[arg(long, value_name = "N")]
    keep_last: Option<usize>,
    /// Keep the newest point of each of so many hours
    #[arg(long, value_name = "N")]
    keep_hourly: Option<usize>,
    /// Keep the newest point of each of so many days
    #[arg(long, value_name = "N")]
    keep_daily: Option<usize>,
    /// Keep the newest point of each of so many weeks
    #[arg(long, value_name = "N")]
    keep_weekly: Option<usize>,
    /// Keep the newest point of each of so many months
    #[arg(long, value_name = "N")]
    keep_monthly: Option<usize>,
    /// Keep the newest point of each of so many years
    #[arg(long, value_name = "N")]
    keep_yearly: Option<usize>,
    /// Merge points into a newer one only if at least this many are removed at once: each merge writes the data of all
    /// of them again
    #[arg(long, value_name = "N", default_value = "1")]
    merge_after: NonZeroUsize,
    /// Remove points although known damage cannot be repaired
    #[arg(long)]
    despite_damage: bool,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    begun_by: BegunBy,
}

impl Prune {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.begun_by.obey()?;
        let retention = Retention {
            last: self.keep_last.unwrap_or(0),
            hourly: self.keep_hourly.unwrap_or(0),
            daily: self.keep_daily.unwrap_or(0),
            weekly: self.keep_weekly.unwrap_or(0),
            monthly: self.keep_monthly.unwrap_or(0),
            yearly: self.keep_yearly.unwrap_or(0),
            merge_after: self.merge_after.get(),
            despite_damage: self.despite_damage,
        };
        let Retention { last, hourly, daily, weekly, monthly, yearly, .. } = retention;
        if last + hourly + daily + weekly + monthly + yearly == 0 {
            return Err(Failure::Usage("say what to keep: --keep-last, --keep-daily …".into()));
        }
        if let Some(series) = self.destination.series(false)? {
            return self.run_series(&series, &retention);
        }
        let folder = self.destination.open()?;
        let catalogue = points(&folder)?;
        if self.dry_run {
            let steps = retention.steps(&catalogue, &Notes::load(&*folder).map_err(failed)?);
            return self.print(&steps, catalogue.points().len());
        }
        let cancel = interrupt::watch();
        let shown = folder.show("");
        interrupt::waits_for(move || shown.clone());
        interrupt::leaves(UNFINISHED);
        // A share without room must not be kept from having some.
        let lease =
            Lease::take_without_room(&*folder, holder()?, &|| cancel.is_cancelled()).map_err(failed)?;
        let bar = progress::bytes("merging", 1);
        let steps = prune(&*folder, &lease, &guids()?, &retention, &mut |_, done, total| {
            bar.set_length(total);
            bar.set_position(done);
            !cancel.is_cancelled()
        });
        bar.finish_and_clear();
        let steps = steps.map_err(|error| match error {
            BackupError::Cancelled => Failure::failed(anyhow!("interrupted: {UNFINISHED}")),
            error => failed(error),
        })?;
        let left = super::catalogue(&*folder)?.points().len();
        self.print(&steps, left + gone(&steps).len())
    }

    /// A series of a repository: points first, then the room that none of any series needs.
    fn run_series(&self, series: &Series, retention: &Retention) -> Result<(), Failure> {
        if retention.merge_after > 1 {
            let no = "--merge-after is for a folder of VHDX files: in a repository no point is merged into another";
            return Err(Failure::Usage(no.into()));
        }
        let before = series.points().map_err(failed)?;
        if self.dry_run {
            let notes = Notes::load(&*series.folder).map_err(failed)?;
            let gone = given_up(&before, &notes, retention);
            let steps: Vec<Step> = gone.into_iter().map(Step::Remove).collect();
            return self.print(&steps, before.points().len());
        }
        let cancel = interrupt::watch();
        let shown = series.show();
        interrupt::waits_for(move || shown.clone());
        interrupt::leaves(UNFINISHED);
        let lease = Lease::take_without_room(&*series.folder, holder()?, &|| cancel.is_cancelled());
        let lease = lease.map_err(failed)?;
        let bar = progress::bytes("rewriting", 1);
        let pruned = lunway_repository::prune(
            &series.repository,
            &series.folder,
            &lease,
            retention,
            &mut |done, total| {
                bar.set_length(total * PACK_TARGET as u64);
                bar.set_position(done * PACK_TARGET as u64);
                !cancel.is_cancelled()
            },
        );
        bar.finish_and_clear();
        let pruned = pruned.map_err(|error| match error {
            BackupError::Cancelled => Failure::failed(anyhow!("interrupted: {UNFINISHED}")),
            error => failed(error),
        })?;
        let kept = before.points().len() - pruned.removed.len();
        if self.json {
            return terminal::print_json(&json!({
                "dry_run": false,
                "kept": kept,
                "steps": pruned.removed.iter().map(|point| step_json(&Step::Remove(*point))).collect::<Vec<_>>(),
                "freed_bytes": pruned.freed_bytes,
                "rewritten_bytes": pruned.rewritten_bytes,
                "deferred": pruned.deferred,
            }));
        }
        let mut lines: Vec<String> =
            pruned.removed.iter().map(|point| sentence(&Step::Remove(*point))).collect();
        let count = terminal::counted(pruned.removed.len(), "point");
        lines.push(format!("{count} removed, {kept} kept; {} freed", HumanSize(pruned.freed_bytes)));
        if let Some(holder) = &pruned.deferred {
            let holder = terminal::clean(holder);
            lines.push(format!("room is freed by the next prune: the repository is in use by {holder}"));
        }
        terminal::print(&lines.join("\n"))
    }

    fn print(&self, steps: &[Step], before: usize) -> Result<(), Failure> {
        let gone = gone(steps);
        let kept = before.saturating_sub(gone.len());
        if self.json {
            let shown: Vec<Value> = steps.iter().map(step_json).collect();
            return terminal::print_json(&json!({ "dry_run": self.dry_run, "kept": kept, "steps": shown }));
        }
        let mut lines: Vec<String> = steps.iter().map(sentence).collect();
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        lines.push(format!("{} {verb}, {kept} kept", terminal::counted(gone.len(), "point")));
        terminal::print(&lines.join("\n"))
    }
}

fn gone(steps: &[Step]) -> Vec<PointId> {
    steps
        .iter()
        .flat_map(|step| match step {
            Step::Merge { given_up, .. } => given_up.clone(),
            Step::Remove(point) => vec![*point],
        })
        .collect()
}

fn names(points: &[PointId]) -> Vec<String> {
    points.iter().map(ToString::to_string).collect()
}

fn step_json(step: &Step) -> Value {
    match step {
        Step::Merge { given_up, into } => {
            json!({ "removed": names(given_up), "merged_into": into.to_string() })
        }
        Step::Remove(point) => json!({ "removed": [point.to_string()], "merged_into": null }),
    }
}

fn sentence(step: &Step) -> String {
    match step {
        Step::Merge { given_up, into } => format!("{} merged into {into}", names(given_up).join(", ")),
        Step::Remove(point) => format!("{point} removed"),
    }
}

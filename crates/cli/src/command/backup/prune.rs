//! `lunway backup prune`.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::anyhow;
use clap::Args;
use lunway_backup::{
    BackupError, Catalogue, Folder, HostFolder, Lease, Leftover, Notes, PointId, Retention, Step, leftovers,
    prune, remove_leftovers, remove_unreadable,
};
use lunway_block::size::HumanSize;
use lunway_repository::{
    Located, PACK_TARGET, Pruned, Repository, Series, Unwanted, check_removal, given_up, remove_points,
};
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
/// a repository, data is removed that no point of any series needs; REPO alone means all of its series.
/// The newest point and the newest verified one are always kept; nothing is removed while damage is known. Periods
/// are UTC, by the clock of the machine that made the points. The incomplete point of a run that was stopped stays for
/// the next run, unless a merge needs its room, or --remove-incomplete says otherwise.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup prune /mnt/share/server1 --keep-last 7 --dry-run
  lunway backup prune /mnt/share/server1 --keep-daily 14 --keep-monthly 12
  lunway backup prune /mnt/share/server1 --remove-incomplete
  lunway backup prune /mnt/share/repo/server1 --remove 3f2a")]
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
    /// In a repository: remove this point, whatever else is kept: an id, latest, or a time; may be given several times.
    /// In a folder: only a point that cannot be read
    #[arg(long, value_name = "POINT")]
    remove: Vec<String>,
    /// In a repository: remove the series with all of its points
    #[arg(long, conflicts_with = "remove")]
    remove_series: bool,
    /// In a folder: remove what a run that was stopped has left, so that the next one begins anew
    #[arg(long, conflicts_with_all = ["remove", "remove_series"])]
    remove_incomplete: bool,
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
        match self.prune() {
            Err(Failure::Failed(error)) if self.begun_by.is_daemon() => {
                match error.downcast_ref().and_then(put_off) {
                    // The point of the run is made, and to be in use is no fault of the destination.
                    Some(why) => {
                        let told = format!("the prune was put off: {why}; the next run prunes");
                        eprintln!("lunway: {}", terminal::clean(&told));
                        Ok(())
                    }
                    None => Err(Failure::Failed(error)),
                }
            }
            done => done,
        }
    }

    fn prune(&self) -> Result<(), Failure> {
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
        let keeps = last + hourly + daily + weekly + monthly + yearly > 0;
        let removes = self.remove_series || !self.remove.is_empty();
        match (keeps, removes) {
            (false, false) if self.remove_incomplete => {}
            (false, false) => {
                return Err(Failure::Usage("say what to keep: --keep-last, --keep-daily …".into()));
            }
            (true, true) => {
                let both = "--remove and --remove-series say what is removed, --keep-… what is kept: give one of them";
                return Err(Failure::Usage(both.into()));
            }
            _ => {}
        }
        match self.destination.located()? {
            Located::Elsewhere => {}
            _ if self.remove_incomplete => {
                let no = "--remove-incomplete is for a folder of VHDX files: in a repository each prune removes what \
                          interrupted runs have left";
                return Err(Failure::Usage(no.into()));
            }
            Located::Series { repository, name } if self.remove_series => {
                let repository = self.destination.repository(&repository)?;
                if !self.dry_run && repository.forget_missing(&name).map_err(failed)? {
                    eprintln!(
                        "{}",
                        terminal::clean(&format!(
                            "{name} was gone already: it is forgotten, and the next prune frees its room"
                        ))
                    );
                    let told = Told { series: name, gone: Vec::new(), kept: 0 };
                    return self.print_series(&[told], &Pruned::default(), None, &[], false);
                }
                let series = Series::of(repository, &name, false).map_err(failed)?;
                return self.run_series(&[series], &retention, None);
            }
            Located::Series { .. } => {
                let series = self.destination.series(false)?;
                return self.run_series(series.as_slice(), &retention, None);
            }
            Located::Repository(path) => return self.run_repository(&path, &retention),
        }
        if removes {
            return self.remove_from_folder();
        }
        let folder = self.destination.open()?;
        self.run_folder(&folder, keeps.then_some(&retention))
    }

    /// Points of a folder that cannot be read.
    fn remove_from_folder(&self) -> Result<(), Failure> {
        let folder = self.destination.open()?;
        let catalogue = points(&folder)?;
        let named = |text: &String| {
            let mut unreadable = catalogue.unreadable().iter().map(|unreadable| unreadable.point);
            unreadable.find(|point| point.to_string() == *text)
        };
        let unwanted: Option<Vec<PointId>> = self.remove.iter().map(named).collect();
        let Some(unwanted) = unwanted.filter(|unwanted| !unwanted.is_empty()) else {
            let no = "--remove-series is for a repository, and so is --remove, except for the id of a point that cannot be \
                      read: in a folder of VHDX files, say what to keep";
            return Err(Failure::Usage(no.into()));
        };
        let kept = catalogue.points().len();
        if self.dry_run {
            let steps: Vec<Step> = unwanted.into_iter().map(Step::Remove).collect();
            return self.print(&steps, kept + steps.len(), &[]);
        }
        let cancel = interrupt::watch();
        let lease =
            Lease::take_without_room(&*folder, holder()?, &|| cancel.is_cancelled()).map_err(failed)?;
        let steps = remove_unreadable(&*folder, &lease, &unwanted).map_err(|error| lease.explain(error));
        let steps = steps.map_err(failed)?;
        self.print(&steps, kept + steps.len(), &[])
    }

    /// A folder of VHDX files; without a retention all of its points are kept.
    fn run_folder(&self, folder: &HostFolder, retention: Option<&Retention>) -> Result<(), Failure> {
        let catalogue = match self.remove_incomplete {
            // There may be no point yet.
            true => super::catalogue(folder)?,
            false => points(folder)?,
        };
        let left =
            if self.remove_incomplete { leftovers(folder, &catalogue).map_err(failed)? } else { Vec::new() };
        let given_up = |left: Vec<Leftover>| left.into_iter().map(Step::GiveUp);
        if self.dry_run {
            let mut steps: Vec<Step> = given_up(left).collect();
            let mut not_merged = Vec::new();
            if let Some(retention) = retention {
                let notes = Notes::load(folder).map_err(failed)?;
                steps.extend(retention.steps(&catalogue, &notes));
                not_merged = retention.not_merged(&catalogue, &notes);
                tell_needed(retention, &catalogue, &notes);
            }
            let removed = gone(&steps);
            let left = catalogue.points().iter().filter(|point| !removed.contains(&point.manifest.point));
            return self.print(&steps, left.count() + removed.len(), &not_merged);
        }
        let cancel = interrupt::watch();
        let shown = folder.show("");
        interrupt::waits_for(move || shown.clone());
        interrupt::leaves(UNFINISHED);
        // A share without room must not be kept from having some.
        let lease = Lease::take_without_room(folder, holder()?, &|| cancel.is_cancelled()).map_err(failed)?;
        let mut steps = Vec::new();
        if self.remove_incomplete {
            let removed = remove_leftovers(folder, &lease).map_err(|error| lease.explain(error));
            steps.extend(given_up(removed.map_err(failed)?));
        }
        if let Some(retention) = retention {
            let bar = progress::bytes("merging", 1);
            let pruned = prune(folder, &lease, &guids()?, retention, &mut |_, done, total| {
                bar.set_length(total);
                bar.set_position(done);
                !cancel.is_cancelled()
            });
            bar.finish_and_clear();
            steps.extend(pruned.map_err(|error| match lease.explain(error) {
                BackupError::Cancelled => Failure::failed(anyhow!("interrupted: {UNFINISHED}")),
                error => failed(error),
            })?);
        }
        let catalogue = super::catalogue(folder)?;
        let not_merged = match retention {
            Some(retention) => {
                let notes = Notes::load(folder).map_err(failed)?;
                tell_needed(retention, &catalogue, &notes);
                retention.not_merged(&catalogue, &notes)
            }
            None => Vec::new(),
        };
        self.print(&steps, catalogue.points().len() + gone(&steps).len(), &not_merged)
    }

    /// All series of a repository.
    fn run_repository(&self, path: &Path, retention: &Retention) -> Result<(), Failure> {
        if self.remove_series || !self.remove.is_empty() {
            let no = "--remove and --remove-series are for one series: REPO/NAME";
            return Err(Failure::Usage(no.into()));
        }
        let repository = self.destination.repository(path)?;
        let names = repository.places().series().map_err(Failure::failed)?;
        let series = names.iter().map(|name| Series::of(repository.clone(), name, false));
        let series = series.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        self.run_series(&series, retention, Some(&repository))
    }

    /// The points of a series that are to be removed.
    fn unwanted(&self, series: &Series, retention: &Retention) -> Result<Vec<PointId>, Failure> {
        let points = series.points().map_err(failed)?;
        if self.remove_series {
            return Ok(points.all_ids().collect());
        }
        if self.remove.is_empty() {
            let notes = Notes::load(&*series.folder).map_err(failed)?;
            return Ok(given_up(&points, &notes, retention));
        }
        let mut named = BTreeSet::new();
        for text in &self.remove {
            match points.find_unwanted(text).map_err(failed)? {
                Some(point) => drop(named.insert(point)),
                None => eprintln!(
                    "{}",
                    terminal::clean(&format!(
                        "{text}: a prune has removed it since the last run, and the same words remove no other point until \
                         the next one: to remove more, give an id"
                    ))
                ),
            }
        }
        Ok(named.into_iter().collect())
    }

    /// Series of a repository, all of them where that is given: points first, then the room that none needs.
    fn run_series(
        &self,
        all: &[Series],
        retention: &Retention,
        whole: Option<&Repository>,
    ) -> Result<(), Failure> {
        if retention.merge_after > 1 {
            let no = "--merge-after is for a folder of VHDX files: in a repository no point is merged into another";
            return Err(Failure::Usage(no.into()));
        }
        let Some(repository) = all.first().map(|series| &series.repository) else {
            return terminal::print("no series yet");
        };
        let cancel = interrupt::watch();
        let mut leases = Vec::new();
        let mut busy = Vec::new();
        if !self.dry_run {
            let shown = whole.map_or_else(|| all[0].show(), Repository::show);
            interrupt::waits_for(move || shown.clone());
            interrupt::leaves(UNFINISHED);
        }
        for series in all {
            if self.dry_run {
                continue;
            }
            match Lease::take_without_room(&*series.folder, holder()?, &|| cancel.is_cancelled()) {
                Err(BackupError::InUse { holder }) if whole.is_some() => {
                    busy.push((series.name.clone(), holder));
                }
                lease => leases.push((series, lease.map_err(failed)?)),
            }
        }
        let chosen: Vec<&Series> = match self.dry_run {
            true => all.iter().collect(),
            false => leases.iter().map(|(series, _)| *series).collect(),
        };
        let mut told = Vec::new();
        for series in &chosen {
            let gone = self.unwanted(series, retention)?;
            let points = series.points().map_err(failed)?;
            let kept = points.points().iter().filter(|point| !gone.contains(&point.point)).count();
            told.push(Told { series: series.name.clone(), gone, kept });
        }
        let mut removal = None;
        let refused = match self.dry_run {
            true => self.refusal(repository, &chosen, &told)?,
            false => None,
        };
        if !self.dry_run {
            let unwanted: Vec<_> = leases
                .iter()
                .zip(&told)
                .map(|((series, lease), told)| Unwanted {
                    series,
                    lease,
                    points: told.gone.clone(),
                    is_whole: self.remove_series,
                    words: self.remove.clone(),
                })
                .collect();
            let bar = progress::bytes("rewriting", 1);
            let done = remove_points(repository, &unwanted, retention.despite_damage, &mut |done, total| {
                bar.set_length(total * PACK_TARGET as u64);
                bar.set_position(done * PACK_TARGET as u64);
                !cancel.is_cancelled()
            });
            bar.finish_and_clear();
            let explained = |error| leases.iter().fold(error, |error, (_, lease)| lease.explain(error));
            removal = Some(done.map_err(|error| match explained(error) {
                BackupError::Cancelled => Failure::failed(anyhow!("interrupted: {UNFINISHED}")),
                error => failed(error),
            })?);
        }
        let pruned = removal.as_ref().map(|removal| removal.pruned.clone()).unwrap_or_default();
        if self.remove_series && !self.dry_run {
            drop(leases);
            all[0].clone().end(&holder()?).map_err(failed)?;
            return self.print_series(&told, &pruned, None, &busy, whole.is_some());
        }
        // Killed before its user is told, it removes no other point when it is given again.
        self.print_series(&told, &pruned, refused.as_deref(), &busy, whole.is_some())?;
        removal.map_or(Ok(()), |removal| removal.end().map(drop).map_err(failed))
    }

    /// Says why the real prune would be refused.
    fn refusal(
        &self,
        repository: &Repository,
        series: &[&Series],
        told: &[Told],
    ) -> Result<Option<String>, Failure> {
        let gone: Vec<PointId> = told.iter().flat_map(|told| told.gone.clone()).collect();
        match check_removal(repository, series, &gone, self.remove_series, self.despite_damage) {
            Ok(()) => Ok(None),
            Err(BackupError::Refused(what)) => {
                eprintln!("{}", terminal::clean(&format!("the prune itself would be refused: {what}")));
                Ok(Some(what))
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn print_series(
        &self,
        told: &[Told],
        pruned: &Pruned,
        refused: Option<&str>,
        busy: &[(String, String)],
        is_whole: bool,
    ) -> Result<(), Failure> {
        let steps = |told: &Told| told.gone.iter().map(|point| Step::Remove(*point)).collect::<Vec<_>>();
        if self.json {
            let series = |told: &Told| {
                let steps: Vec<Value> = steps(told).iter().map(step_json).collect();
                json!({ "series": told.series, "kept": told.kept, "steps": steps })
            };
            let mut document = json!({
                "dry_run": self.dry_run,
                "freed_bytes": pruned.freed_bytes,
                "rewritten_bytes": pruned.rewritten_bytes,
                "deferred": pruned.deferred,
                "refused": refused,
            });
            if is_whole {
                document["series"] = told.iter().map(series).collect();
                document["in_use"] = busy
                    .iter()
                    .map(|(series, holder)| json!({ "series": series, "holder": holder }))
                    .collect();
            } else if let Some(told) = told.first() {
                document["kept"] = told.kept.into();
                document["steps"] = steps(told).iter().map(step_json).collect();
            }
            return terminal::print_json(&document);
        }
        let mut lines = Vec::new();
        for told in told {
            let of = if is_whole { format!("{}: ", terminal::clean(&told.series)) } else { String::new() };
            lines.extend(steps(told).iter().map(|step| format!("{of}{}", sentence(step))));
        }
        for (series, holder) in busy {
            lines.push(terminal::clean(&format!("{series}: left as it is, in use by {holder}")));
        }
        let gone = terminal::counted(told.iter().map(|told| told.gone.len()).sum(), "point");
        let kept: usize = told.iter().map(|told| told.kept).sum();
        lines.push(match self.dry_run {
            true => format!("{gone} would be removed, {kept} kept"),
            false => format!("{gone} removed, {kept} kept; {} freed", HumanSize(pruned.freed_bytes)),
        });
        if let Some(holder) = &pruned.deferred {
            let holder = terminal::clean(holder);
            lines.push(format!("room is freed by the next prune: the repository is in use by {holder}"));
        }
        terminal::print(&lines.join("\n"))
    }

    fn print(&self, steps: &[Step], before: usize, not_merged: &[PointId]) -> Result<(), Failure> {
        let gone = gone(steps);
        let kept = before.saturating_sub(gone.len());
        if self.json {
            let shown: Vec<Value> = steps.iter().map(step_json).collect();
            return terminal::print_json(&json!({
                "dry_run": self.dry_run, "kept": kept, "not_merged": names(not_merged), "steps": shown,
            }));
        }
        let mut lines: Vec<String> = steps.iter().map(sentence).collect();
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        lines.push(format!("{} {verb}, {kept} kept", terminal::counted(gone.len(), "point")));
        if !not_merged.is_empty() {
            lines.push(format!(
                "not merged, because points of another size of the disk lie on them: {}; `lunway backup run` with --full \
                 begins a new chain, and a prune removes them when all points to keep are in that",
                names(not_merged).join(", ")
            ));
        }
        terminal::print(&lines.join("\n"))
    }
}

/// Why a prune that a run is followed by is left to the next run: the destination is in use. `None`: it has failed.
fn put_off(error: &BackupError) -> Option<String> {
    match error {
        BackupError::PruneEnded { error, .. } => put_off(error),
        BackupError::InUse { holder } => Some(format!("the destination is in use by {holder}")),
        BackupError::Held { disk, host, hold } => Some(format!(
            "{disk} on {host} is still being completed from a point of the destination (if that disk is no more, remove \
             {hold})"
        )),
        _ => None,
    }
}

/// What becomes of a series.
struct Told {
    series: String,
    gone: Vec<PointId>,
    kept: usize,
}

/// Says which points that cannot be read stay, and why.
fn tell_needed(retention: &Retention, catalogue: &Catalogue, notes: &Notes) {
    for (point, above) in retention.needed_unreadable(catalogue, notes) {
        let why = format!("point {point} stays: point {above}, which is kept, may lie on its file");
        eprintln!("{}", terminal::clean(&why));
    }
}

fn gone(steps: &[Step]) -> Vec<PointId> {
    steps
        .iter()
        .flat_map(|step| match step {
            Step::Merge { given_up, .. } => given_up.clone(),
            Step::Remove(point) => vec![*point],
            Step::GiveUp(_) => Vec::new(),
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
        Step::GiveUp(left) => {
            json!({ "removed": [], "merged_into": null, "incomplete": left.point.to_string(), "bytes": left.bytes })
        }
    }
}

fn sentence(step: &Step) -> String {
    match step {
        Step::Merge { given_up, into } => format!("{} merged into {into}", names(given_up).join(", ")),
        Step::Remove(point) => format!("{point} removed"),
        Step::GiveUp(left) => {
            format!("{}, which is incomplete, removed: {}", left.point, HumanSize(left.bytes))
        }
    }
}

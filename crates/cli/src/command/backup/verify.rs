//! `lunway backup verify`.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use lunway_backup::{BackupError, Folder, Lease, PointMount, Report, Verification, verify};
use lunway_block::size::HumanSize;
use lunway_repository::{Located, NamedPoints, PACK_TARGET, Repository, RepositoryReport, Series};
use serde_json::json;

use super::list::missing_series;
use super::{Destination, failed, holder, points};
use crate::failure::Failure;
use crate::{interrupt, percent, progress, terminal};

/// For how long what cannot be read is tried again: what a share takes to come back after its server was restarted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Check that the backups at a destination are intact.
///
/// Every file is read and compared with its hashes. The output names damaged data and the points that contain it; the
/// next run repairs what the source still has. The exit code is 1 if anything is damaged.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup verify /mnt/share/server1
  lunway backup verify /mnt/share/server1 --sample 5 --json
  lunway backup verify /mnt/share/server1 --point latest")]
pub(super) struct Verify {
    #[command(flatten)]
    destination: Destination,
    /// Verify this point and its parents: an id, latest, or a time [default: all points]
    #[arg(long, value_name = "POINT")]
    point: Option<String>,
    /// Read only this percentage of the data, chosen at random
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    sample: Option<u16>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A share in thousandths.
fn parse_percent(text: &str) -> Result<u16, String> {
    match percent::percent(text)? {
        0.0 => Err("nothing would be read: a number above 0 is expected".into()),
        percent => Ok((percent * 10.0).ceil() as u16),
    }
}

/// Enters what was found in a repository into its notes.
fn note(
    repository: &Repository,
    series: &[NamedPoints],
    report: &RepositoryReport,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), BackupError> {
    let holder = || {
        let asking = BackupError::folder("asking for random numbers of", "the kernel");
        holder().map_err(|failure| asking(std::io::Error::other(failure.sentence())))
    };
    for (name, points) in series {
        let opening = BackupError::folder("opening", name);
        let folder = repository.places().of_series(name).map_err(opening)?;
        let _lease = Lease::take(&*folder, holder()?, is_cancelled)?;
        report.note_series(repository, name, points)?;
    }
    let packs = repository.places().packs();
    let _lease = Lease::take(&*packs, holder()?, is_cancelled)?;
    report.note_packs(repository)
}

fn warn_of_notes(error: BackupError) {
    let why = match error {
        BackupError::Full { name } => format!("there is no room left for {name}"),
        error => error.to_string(),
    };
    eprintln!("{}", terminal::clean(&format!("the result was not noted at the destination: {why}")));
}

/// Damage is a failure, and so is what was taken away or put there.
fn judge(report: &Report, place: &str) -> Result<(), Failure> {
    match damaged(report) {
        0 if report.findings.is_empty() => Ok(()),
        0 => Err(Failure::failed(anyhow!("{place} is not what runs and prunes have left there"))),
        count => Err(Failure::failed(anyhow!(
            "{place} holds {}: run the backup again, which repairs what the source still has",
            terminal::counted(count, "damaged part")
        ))),
    }
}

/// Damaged parts that points need.
fn damaged(report: &Report) -> usize {
    report.findings.iter().filter(|finding| !finding.concerned.is_empty()).count()
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.destination.located()? {
            Located::Elsewhere => {}
            Located::Repository(path) => return self.run_repository(&path, None),
            Located::Series { repository, name } => return self.run_repository(&repository, Some(&name)),
        }
        let folder = self.destination.open()?;
        let catalogue = points(&folder)?;
        let point = match &self.point {
            Some(text) => Some(catalogue.find(text).map_err(failed)?.point),
            None => None,
        };
        let holder = holder()?;
        let verification =
            Verification { point, sample_permille: self.sample, seed: holder.nonce, patience: PATIENCE };
        let cancel = interrupt::watch();
        let shown = folder.show("");
        interrupt::waits_for(move || shown.clone());
        let bar = progress::bytes("verifying", 1);
        let report =
            verify(&*folder, &catalogue, verification, &|| cancel.is_cancelled(), &mut |done, total| {
                bar.set_length(total);
                bar.set_position(done);
            });
        bar.finish_and_clear();
        let report = report.map_err(failed)?;
        // A destination that is read-only, or in use, is verified all the same.
        let noted = Lease::take(&*folder, holder, &|| cancel.is_cancelled())
            .and_then(|lease| report.note(&*folder, &verification).map(|()| drop(lease)));
        if let Err(error) = noted {
            warn_of_notes(error);
        }
        self.print(&report)?;
        judge(&report, &folder.show(""))
    }

    /// A series of a repository, or all of it.
    fn run_repository(&self, path: &Path, name: Option<&str>) -> Result<(), Failure> {
        let repository = self.destination.repository(path)?;
        let mut series = repository.all_points().map_err(failed)?;
        series.retain(|(series, _)| name.is_none_or(|name| name == series));
        let missing = match name {
            // Says what is there instead.
            Some(name) => Series::of(repository.clone(), name, false).map(|_| Vec::new()).map_err(failed)?,
            None => missing_series(&repository, &series)?,
        };
        if series.iter().all(|(_, points)| points.is_empty()) {
            for warning in series.iter().chain(&missing).flat_map(|(_, points)| points.warnings()) {
                eprintln!("{}", terminal::clean(&warning));
            }
            return Err(Failure::failed(anyhow!("{} holds no points", self.destination.folder.display())));
        }
        let point = match (&self.point, &series[..]) {
            (None, _) => None,
            (Some(text), [(_, points)]) if name.is_some() => Some(points.find(text).map_err(failed)?.point),
            (Some(_), _) => {
                return Err(Failure::Usage("--point is of one series: REPO/NAME".into()));
            }
        };
        let seed = holder()?.nonce;
        let verification = Verification { point, sample_permille: self.sample, seed, patience: PATIENCE };
        let cancel = interrupt::watch();
        let shown = repository.show();
        interrupt::waits_for(move || shown.clone());
        // A prune waits for those who read. One of a repository that this user cannot write does not hear of it.
        let mut readers = Vec::new();
        for (name, _) in &series {
            let folder = repository.places().of_series(name).map_err(Failure::failed)?;
            readers.extend(PointMount::begin_if_possible(folder, &holder()?).map_err(failed)?);
        }
        let bar = progress::bytes("verifying", 1);
        let report = lunway_repository::verify(
            &repository,
            &series,
            verification,
            &|| cancel.is_cancelled(),
            &mut |done, total| {
                bar.set_length(total * PACK_TARGET as u64);
                bar.set_position(done * PACK_TARGET as u64);
            },
        );
        bar.finish_and_clear();
        drop(readers);
        let report = report.map_err(failed)?;
        if let Err(error) = note(&repository, &series, &report, &|| cancel.is_cancelled()) {
            warn_of_notes(error);
        }
        self.print(&report.report)?;
        judge(&report.report, &repository.show())
    }

    fn print(&self, report: &Report) -> Result<(), Failure> {
        if self.json {
            let findings = report.findings.iter().map(|finding| {
                let concerned: Vec<_> = finding.concerned.iter().map(ToString::to_string).collect();
                json!({ "point": finding.damage.point().to_string(), "what": finding.what, "concerned": concerned })
            });
            return terminal::print_json(&json!({
                "points": report.points,
                "bytes": report.bytes,
                "whole": report.whole.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "findings": findings.collect::<Vec<_>>(),
                "remarks": report.remarks,
            }));
        }
        let mut lines = Vec::new();
        for finding in &report.findings {
            let concerned: Vec<_> = finding.concerned.iter().map(ToString::to_string).collect();
            let shown_by = if concerned.is_empty() { "" } else { "\n  shown by " };
            lines.push(
                terminal::clean(&format!("{}{shown_by}{}", finding.what, concerned.join(", ")))
                    .replace('\u{FFFD}', "\n"),
            );
        }
        lines.extend(report.remarks.iter().map(|remark| terminal::clean(remark)));
        let sampled = if self.sample.is_some() { " (a sample)" } else { "" };
        let whole = match damaged(report) {
            0 if report.findings.is_empty() => "no damage",
            0 => "no damage in them",
            _ => "damaged",
        };
        lines.push(format!(
            "{}, {} compared{sampled}: {whole}",
            terminal::counted(report.points, "point"),
            HumanSize(report.bytes)
        ));
        terminal::print(&lines.join("\n"))
    }
}

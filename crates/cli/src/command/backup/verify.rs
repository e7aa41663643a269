//! `lunway backup verify`.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use lunway_backup::{BackupError, Folder, Lease, Report, Verification, verify};
use lunway_block::size::HumanSize;
use serde_json::json;

use super::{Destination, failed, holder, points};
use crate::failure::Failure;
use crate::{interrupt, progress, terminal};

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
    let number: Option<f64> = text.strip_suffix('%').unwrap_or(text).parse().ok();
    match number {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok((percent * 10.0).ceil() as u16),
        _ => Err("a number above 0 and up to 100 is expected".into()),
    }
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
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
            let why = match error {
                BackupError::Full { name } => format!("there is no room left for {name}"),
                error => error.to_string(),
            };
            eprintln!("{}", terminal::clean(&format!("the result was not noted at the destination: {why}")));
        }
        self.print(&report)?;
        match report.findings.len() {
            0 => Ok(()),
            count => Err(Failure::failed(anyhow!(
                "{} holds {}: run the backup again, which repairs what the source still has",
                folder.show(""),
                terminal::counted(count, "damaged part")
            ))),
        }
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
            lines.push(
                terminal::clean(&format!("{}\n  shown by {}", finding.what, concerned.join(", ")))
                    .replace('\u{FFFD}', "\n"),
            );
        }
        lines.extend(report.remarks.iter().map(|remark| terminal::clean(remark)));
        let sampled = if self.sample.is_some() { " (a sample)" } else { "" };
        let whole = if report.findings.is_empty() { "no damage" } else { "damaged" };
        lines.push(format!(
            "{}, {} compared{sampled}: {whole}",
            terminal::counted(report.points, "point"),
            HumanSize(report.bytes)
        ));
        terminal::print(&lines.join("\n"))
    }
}

//! `lunway disk check`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_vhdx::check::{Report, check};
use lunway_vhdx::{Anomaly, AnomalySeverity, Chain, VhdxOpenOptions, open_file};
use serde_json::{Value, json};

use super::named::vhdx;
use super::{folder, guids};
use crate::failure::Failure;
use crate::terminal;

/// Check every structure and block table entry of a disk and its parents; changes nothing
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk check server.vhdx
  lunway disk check server.avhdx --json

Exit code 1 if a file is damaged or has lost data, or a parent is missing.")]
pub(super) struct Check {
    /// The VHDX file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(super) fn run(self) -> Result<(), Failure> {
        let path = &vhdx(&self.file, RAW)?;
        // One that cannot be read, or is in use, is not told as a broken chain.
        drop(open_file(path, false).with_context(|| format!("cannot open {}", path.display()))?);
        let chain = Chain::open_files(path, &folder(path), &VhdxOpenOptions::read_only(), guids()?);
        let (paths, broken) = match chain {
            Ok(chain) => (chain.paths().to_vec(), None),
            // Its own findings say it better than the reason why it was not opened.
            Err(error) => (vec![path.clone()], Some(error.to_string())),
        };
        let mut reports = Vec::new();
        for path in &paths {
            let file = open_file(path, false).with_context(|| format!("cannot open {}", path.display()))?;
            reports.push((path, check(&file)));
        }
        let damaged: usize = reports.iter().filter(|(_, report)| report.is_damaged()).count();
        let broken = broken.filter(|_| damaged == 0);
        if self.json {
            let files: Vec<Value> = reports.iter().map(|(path, report)| file_json(path, report)).collect();
            let sound = damaged == 0 && broken.is_none();
            terminal::print_json(&json!({ "sound": sound, "chain_problem": broken, "files": files }))?;
        } else {
            for (path, report) in &reports {
                terminal::print(&file_text(path, report))?;
            }
        }
        match (damaged, broken) {
            (0, None) => Ok(()),
            (0, Some(why)) => {
                Err(Failure::failed(anyhow!("the parents of {} cannot be checked: {why}", path.display())))
            }
            (damaged, _) => Err(Failure::failed(anyhow!(
                "damaged files: {damaged} of {}; restore them from a backup, or copy what can be read",
                reports.len()
            ))),
        }
    }
}

/// Answer for a raw image.
pub(super) const RAW: &str = "a raw image has nothing to check or repair";

fn severity_name(severity: AnomalySeverity) -> &'static str {
    match severity {
        AnomalySeverity::Note => "note",
        AnomalySeverity::Damage => "damage",
        AnomalySeverity::Loss => "loss",
    }
}

fn file_json(path: &Path, report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "severity": severity_name(finding.severity),
                "place": finding.place.to_string(),
                "offset": finding.offset,
                "problem": finding.problem,
            })
        })
        .collect();
    json!({
        "file": path.display().to_string(),
        "damaged": report.is_damaged(),
        "lost_bytes": report.counts.lost,
        "findings": findings,
        "left_out": report.left_out,
        "free_bytes": report.free,
    })
}

fn file_text(path: &Path, report: &Report) -> String {
    let summary = match (report.worst(), report.counts.lost) {
        (None, _) => "no errors".to_owned(),
        (Some(AnomalySeverity::Note), _) => "no errors, with notes".to_owned(),
        (Some(AnomalySeverity::Damage), _) => "damaged".to_owned(),
        (Some(AnomalySeverity::Loss), 0) => "damaged: the file was cut".to_owned(),
        (Some(AnomalySeverity::Loss), lost) => format!("{lost} bytes of data are lost: the file was cut"),
    };
    let mut lines = vec![terminal::clean(&format!("{}: {summary}", path.display()))];
    for finding in &report.findings {
        let Anomaly { severity, place, offset, problem } = finding;
        let severity = severity_name(*severity);
        lines.push(terminal::clean(&format!("  {severity:6}  {place}, byte {offset}: {problem}")));
    }
    if report.left_out > 0 {
        lines.push(format!("  and {} more", report.left_out));
    }
    lines.join("\n")
}

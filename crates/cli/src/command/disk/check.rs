//! `lunway disk check` and `lunway disk repair`.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_vhdx::check::{Report, check};
use lunway_vhdx::{
    AnomalySeverity, Chain, Repairs, Span, VhdxOpenOptions, open_file, repair, repaired_parts,
};
use serde_json::{Value, json};

use super::named::vhdx;
use super::{folder, guids, open_to_change};
use crate::failure::Failure;
use crate::new_file::as_file;
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
const RAW: &str = "a raw image has nothing to check or repair";

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
    let mut lines = vec![format!("{}: {summary}", path.display())];
    for finding in &report.findings {
        lines.push(format!(
            "  {:6}  {}, byte {}: {}",
            severity_name(finding.severity),
            finding.place,
            finding.offset,
            finding.problem
        ));
    }
    if report.left_out > 0 {
        lines.push(format!("  and {} more", report.left_out));
    }
    lines.join("\n")
}

/// Repair damage that can be repaired without guessing.
///
/// Replays the log, restores a damaged header or region table from its copy, and clears table entries that no data
/// depends on. A file that another program has cut is lengthened again: the data that it has lost reads as zeroes. The
/// previous headers, tables, log and length are kept in FILE.before-repair: --undo restores them. Other damage is
/// reported and left alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk repair server.vhdx
  lunway disk repair server.vhdx --undo")]
pub(super) struct Repair {
    /// The VHDX file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Undo the last repair from FILE.before-repair; refused if the disk was used since
    #[arg(long)]
    undo: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Repair {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.file = vhdx(&self.file, RAW)?;
        let path = &self.file;
        let file = open_to_change(path, None)?;
        let mut kept = path.as_os_str().to_owned();
        kept.push(".before-repair");
        let kept = PathBuf::from(kept);
        if self.undo {
            undo(&file, &kept).with_context(|| format!("cannot undo the repair of {}", path.display()))?;
            return match self.json {
                true => terminal::print_json(&json!({ "undone_from": kept.display().to_string() })),
                false => terminal::print(&format!("{}: as before the repair", path.display())),
            };
        }
        let cannot = || format!("cannot repair {}", path.display());
        if check(&file).findings.is_empty() {
            return self.print(&Repairs::default(), None);
        }
        keep(&file, &kept).with_context(cannot)?;
        let repairs = match repair(&file, guids()?().as_mut()) {
            Ok(repairs) => repairs,
            Err(error) => {
                let error = anyhow::Error::from(error);
                // The log may have been replayed, and headers renewed, before the damage was met.
                if is_unchanged(&file, &kept).unwrap_or(false) {
                    let _ = std::fs::remove_file(&kept);
                    return Err(Failure::Failed(error.context(cannot())));
                }
                let changed = stamp(&file, &kept).map_or_else(
                    |error| format!("as it was: {} ({error:#})", kept.display()),
                    |()| format!("as it was: {}; --undo writes that back", kept.display()),
                );
                return Err(Failure::Failed(
                    error.context(format!("{}, and the file has changed; {changed}", cannot())),
                ));
            }
        };
        stamp(&file, &kept).with_context(cannot)?;
        self.print(&repairs, Some(&kept))
    }

    fn print(&self, repairs: &Repairs, kept: Option<&Path>) -> Result<(), Failure> {
        let Repairs { log_replayed, headers, region_tables, entries, lengthened, lost } = repairs;
        if self.json {
            return terminal::print_json(&json!({
                "log_replayed": log_replayed,
                "headers": headers,
                "region_tables": region_tables,
                "entries": entries,
                "lengthened_bytes": lengthened,
                "lost_bytes": lost,
                "kept": kept.map(|path| path.display().to_string()),
            }));
        }
        let Some(kept) = kept else {
            return terminal::print(&format!("{}: no errors, nothing to repair", self.file.display()));
        };
        let mut done = Vec::new();
        if *log_replayed {
            done.push("replayed the log".to_owned());
        }
        for (count, what) in [
            (headers, "headers renewed"),
            (region_tables, "copies of the region table renewed"),
            (entries, "entries corrected"),
        ] {
            if *count > 0 {
                done.push(format!("{count} {what}"));
            }
        }
        if *lengthened > 0 {
            done.push(format!("{lengthened} bytes added at the end of the file"));
        }
        if *lost > 0 {
            done.push(format!("{lost} bytes of lost data read as zeroes now"));
        }
        let done = if done.is_empty() { "nothing to repair".to_owned() } else { done.join(", ") };
        terminal::print(&format!("{}: {done}; as it was: {}", self.file.display(), kept.display()))
    }
}

/// Bytes that are copied at once.
const COPY_PIECE: usize = 1 << 20;

/// Copies the parts that may change to another file, at the same offsets, durably.
fn keep(file: &File, to: &Path) -> anyhow::Result<()> {
    let copy = match File::options().write(true).create_new(true).mode(0o600).open(to) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(anyhow!("{} is there, from an earlier repair: move it away", to.display()));
        }
        copy => copy.with_context(|| format!("cannot make {}", to.display()))?,
    };
    as_file(&copy, file)?;
    // As long as the file: a log that has entries says how long that is at least.
    copy.set_len(file.metadata()?.len())?;
    copy_parts(&repaired_parts(file)?, file, &copy)
}

/// Copies parts of a file to another, at the same offsets, durably.
fn copy_parts(parts: &[Span], from: &File, to: &File) -> anyhow::Result<()> {
    let mut buf = vec![0; COPY_PIECE];
    for part in parts {
        let mut at = part.offset;
        while at < part.end() {
            let now = (part.end() - at).min(buf.len() as u64) as usize;
            let read = from.read_at(&mut buf[..now], at)?;
            if read == 0 {
                break;
            }
            to.write_all_at(&buf[..read], at)?;
            at += read as u64;
        }
    }
    Ok(to.sync_all()?)
}

/// Gives what was kept the modification time of the repaired file: as long as both are the same, nothing was written
/// since the repair.
fn stamp(file: &File, kept: &Path) -> anyhow::Result<()> {
    file.sync_all()?;
    let kept = File::options().write(true).open(kept)?;
    kept.set_modified(file.metadata()?.modified()?)?;
    Ok(kept.sync_all()?)
}

/// Returns `true` if a file still has what [`keep`] has kept of it.
fn is_unchanged(file: &File, kept: &Path) -> anyhow::Result<bool> {
    let copy = File::open(kept)?;
    let (mut old, mut new) = (vec![0; COPY_PIECE], vec![0; COPY_PIECE]);
    for part in repaired_parts(&copy)? {
        let mut at = part.offset;
        // What lies behind the end of the copy lay behind the end of the file.
        let end = part.end().min(copy.metadata()?.len());
        while at < end {
            let now = (end - at).min(COPY_PIECE as u64) as usize;
            copy.read_exact_at(&mut old[..now], at)?;
            file.read_exact_at(&mut new[..now], at)?;
            if old[..now] != new[..now] {
                return Ok(false);
            }
            at += now as u64;
        }
    }
    Ok(true)
}

/// Writes back what [`keep`] has kept. The copy has the same headers and tables, and so names the same parts; and the
/// length that the file had, so that what was lost is known to be lost again.
fn undo(file: &File, kept: &Path) -> anyhow::Result<()> {
    let copy = File::open(kept).with_context(|| format!("cannot open {}", kept.display()))?;
    if copy.metadata()?.modified()? != file.metadata()?.modified()? {
        return Err(anyhow!("it was written to since, and those writes would be lost"));
    }
    copy_parts(&repaired_parts(&copy)?, &copy, file)?;
    let len = copy.metadata()?.len();
    if len < file.metadata()?.len() {
        file.set_len(len)?;
    }
    stamp(file, kept)
}

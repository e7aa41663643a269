//! `lunway disk repair`.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_vhdx::check::check;
use lunway_vhdx::{BeforeRepair, RepairGuids, Repairs, rename_new, repair};
use rustix::fs::OFlags;
use serde_json::json;

use super::check::RAW;
use super::named::vhdx;
use super::{guids, open_to_change};
use crate::failure::Failure;
use crate::new_file::{as_file, with_end};
use crate::terminal;

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
        let kept = with_end(path, ".before-repair");
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
        let (before, mut guids) = keep(&file, &kept).with_context(cannot)?;
        let repairs = match repair(&file, &mut guids) {
            Ok(repairs) => repairs,
            Err(error) => {
                let error = anyhow::Error::from(error);
                // The log may have been replayed, and headers renewed, before the damage was met.
                if before.is_same(&file).unwrap_or(false) {
                    let _ = fs::remove_file(&kept);
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

/// Saves what a repair may change, durably, before it begins. A save of an interrupted repair is written back first:
/// the file is then as it was before that one.
fn keep(file: &File, kept: &Path) -> anyhow::Result<(BeforeRepair<File>, RepairGuids)> {
    if kept.symlink_metadata().is_ok() {
        let before = open_kept(kept)?;
        if !before.explains(file)? {
            return Err(anyhow!("{} is there, from an earlier repair: move it away", kept.display()));
        }
        before.write_back(file)?;
        fs::remove_file(kept).with_context(|| format!("cannot remove {}", kept.display()))?;
    }
    // Under another name until it is complete. The file is locked: what has this name is left of a repair that ended
    // early.
    let partial = with_end(kept, ".partial");
    let _ = fs::remove_file(&partial);
    let saved = save(file, &partial).and_then(|saved| {
        rename_new(&partial, kept).with_context(|| format!("cannot make {}", kept.display()))?;
        Ok(saved)
    });
    if saved.is_err() {
        let _ = fs::remove_file(&partial);
    }
    saved
}

fn save(file: &File, to: &Path) -> anyhow::Result<(BeforeRepair<File>, RepairGuids)> {
    let new = File::options().read(true).write(true).create_new(true).mode(0o600).open(to);
    let new = new.with_context(|| format!("cannot make {}", to.display()))?;
    as_file(&new, file)?;
    let random = guids()?().next();
    let before = BeforeRepair::keep(file, new, random)?;
    Ok((before, RepairGuids::new(random)))
}

/// A save that is complete.
fn open_kept(kept: &Path) -> anyhow::Result<BeforeRepair<File>> {
    let cannot = || format!("cannot open {}", kept.display());
    BeforeRepair::open(kept_file(kept, false).with_context(cannot)?).with_context(cannot)
}

/// No link that somebody has put in its place.
fn kept_file(kept: &Path, write: bool) -> std::io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    File::options().read(!write).write(write).custom_flags(flags).open(kept)
}

/// Gives what was kept the modification time of the repaired file: as long as both are the same, nothing was written
/// since the repair.
fn stamp(file: &File, kept: &Path) -> anyhow::Result<()> {
    file.sync_all()?;
    let kept = kept_file(kept, true)?;
    kept.set_modified(file.metadata()?.modified()?)?;
    Ok(kept.sync_all()?)
}

/// Writes back what [`keep`] has kept, unless somebody has written to the file since. The times are the same after a
/// repair that has ended, by whatever version of this program; an interrupted one is told by the headers.
fn undo(file: &File, kept: &Path) -> anyhow::Result<()> {
    let before = open_kept(kept)?;
    let times = (kept.metadata()?.modified()?, file.metadata()?.modified()?);
    if times.0 != times.1 && !before.explains(file)? {
        return Err(anyhow!("it was written to since, and those writes would be lost"));
    }
    before.write_back(file)?;
    stamp(file, kept)
}

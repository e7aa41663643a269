//! `lunway disk merge`.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_vhdx::merge::{Go, Outcome, children, merge_files};
use serde_json::json;

use super::{folder, guids, names, open_chain};
use crate::failure::Failure;
use crate::{interrupt, progress, terminal};

/// Merge a differencing disk into one of its parents, and remove the files that are no longer needed.
///
/// The contents of the disk stay the same at every moment; after an interrupt, the same command continues. Several
/// levels are merged one after another. A merge makes other children of the parent unusable, and is refused if there
/// are any in its directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk merge server-2.avhdx                     # into its parent
  lunway disk merge server-2.avhdx --into server.vhdx  # several levels")]
pub(super) struct Merge {
    /// The differencing disk
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The parent that receives the data [default: the direct parent]
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Keep the merged files; all of them then have the same contents
    #[arg(long)]
    keep: bool,
    /// Merge even if a parent has other children (they can no longer be opened)
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Merge {
    pub(super) fn run(self) -> Result<(), Failure> {
        let path = &self.file;
        let chain = open_chain(path)?;
        let paths = chain.paths().to_vec();
        let size = chain.size();
        drop(chain);
        let into = match &self.into {
            Some(into) => into.canonicalize().with_context(|| format!("cannot find {}", into.display()))?,
            None => paths.get(1).cloned().ok_or_else(|| {
                Failure::failed(anyhow!("{} has no parent: it is not a differencing disk", path.display()))
            })?,
        };
        let level = paths.iter().position(|path| *path == into).unwrap_or(0);
        if !self.force {
            for parent in &paths[..=level] {
                let others = children(parent)
                    .with_context(|| format!("cannot look for children of {}", parent.display()))?;
                let others: Vec<PathBuf> =
                    others.into_iter().filter(|child| !paths.contains(child)).collect();
                if !others.is_empty() {
                    return Err(Failure::failed(anyhow!(
                        "{} is also the parent of {}, which can no longer be opened after a merge: merge those first, or use --force",
                        parent.display(),
                        names(&others)
                    )));
                }
            }
        }
        // Ctrl-C stops between two pieces: what was written is durable, and the same command goes on.
        let cancel = interrupt::watch();
        let bar = progress::bytes("merging", size);
        let mut written = 0;
        let outcome = merge_files(path, &into, &folder(path), self.keep, guids()?, &mut |now| {
            bar.set_position(now.done);
            written = now.written;
            if cancel.is_cancelled() { Go::Stop } else { Go::On }
        });
        bar.finish_and_clear();
        let cannot = || format!("merging {} into {}", path.display(), into.display());
        let merged = match outcome.map_err(anyhow::Error::from).with_context(cannot)? {
            Outcome::Merged(files) => files,
            Outcome::Stopped => {
                return Err(Failure::failed(anyhow!(
                    "interrupted: the contents of {} are unchanged; the same command continues",
                    path.display()
                )));
            }
        };
        let text = |path: &PathBuf| path.display().to_string();
        match self.json {
            true => terminal::print_json(&json!({
                "into": text(&into),
                "merged": merged.iter().map(text).collect::<Vec<_>>(),
                "written_bytes": written,
                "removed": !self.keep,
            })),
            false => terminal::print(&format!(
                "{} {} merged into {}{}",
                names(&merged),
                if merged.len() == 1 { "was" } else { "were" },
                into.display(),
                if self.keep { "" } else { " and removed" }
            )),
        }
    }
}

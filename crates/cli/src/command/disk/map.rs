//! `lunway disk map`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use lunway_vhdx::{MapSegment, Source};
use serde_json::json;

use super::{names, open_chain, source_name};
use crate::failure::Failure;

/// Show which ranges of a disk hold data, and in which file of its chain.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk map server.vhdx
  lunway disk map server.avhdx --json      # one range a line")]
pub(super) struct Map {
    /// The VHDX file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print it as JSON, one range a line
    #[arg(long)]
    json: bool,
}

impl Map {
    pub(super) fn run(self) -> Result<(), Failure> {
        let chain = open_chain(&self.file)?;
        let files: Vec<String> = chain.paths().iter().map(|path| names(std::slice::from_ref(path))).collect();
        let mut out = io::BufWriter::new(io::stdout().lock());
        let mut written = Ok(());
        let mut line = |text: String| {
            if written.is_ok() {
                written = writeln!(out, "{text}");
            }
        };
        if !self.json {
            line(format!("{:>16}  {:>16}  {:13}  {:>16}  FILE", "OFFSET", "LENGTH", "WHAT", "AT"));
        }
        let mapped = chain.map(0, chain.size(), |segment| {
            let MapSegment { offset, len, source, level } = segment;
            let at = if let Source::File(at) = source { Some(at) } else { None };
            let file = files.get(level).map_or("", String::as_str);
            line(match self.json {
                true => json!({
                    "offset": offset,
                    "bytes": len,
                    "what": source_name(source).replace(' ', "_"),
                    "file_offset": at,
                    "file": file,
                })
                .to_string(),
                false => {
                    let at = at.map_or_else(|| "-".to_owned(), |at| at.to_string());
                    format!("{offset:>16}  {len:>16}  {:13}  {at:>16}  {file}", source_name(source))
                }
            });
        });
        mapped.with_context(|| format!("reading the block table of {}", self.file.display()))?;
        written.and_then(|()| out.flush()).map_err(Failure::Output)
    }
}

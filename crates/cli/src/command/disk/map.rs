//! `lunway disk map`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use lunway_vhdx::{MapSegment, SegmentSource};

use super::image::{self, Row};
use super::named::{self, Named};
use super::{names, open_chain, source_name};
use crate::failure::Failure;

/// Show which ranges of a disk hold data, and in which file of its chain
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk map server.vhdx
  lunway disk map server.avhdx --json      # one range per line")]
pub(super) struct Map {
    /// The VHDX file; VHD and qcow2 files by their names, or as vhd:FILE and qcow2:FILE
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object per range, each on its own line
    #[arg(long)]
    json: bool,
}

impl Map {
    pub(super) fn run(self) -> Result<(), Failure> {
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
        let row = |row: Row<'_>| line(if self.json { row.json().to_string() } else { row.text() });
        match Named::of(&self.file)? {
            Named::Image(path, format) => image::map(&path, format, row)?,
            _ => map(&named::vhdx(&self.file, "")?, row)?,
        }
        written.and_then(|()| out.flush()).map_err(Failure::Output)
    }
}

fn map(path: &Path, mut each: impl FnMut(Row<'_>)) -> anyhow::Result<()> {
    let chain = open_chain(path)?;
    let files: Vec<String> = chain.paths().iter().map(|path| names(std::slice::from_ref(path))).collect();
    let mapped = chain.map(0, chain.size(), |segment| {
        let MapSegment { offset, len, source, level } = segment;
        let at = if let SegmentSource::File(at) = source { Some(at) } else { None };
        let file = files.get(level).map_or("", String::as_str);
        each(Row { offset, len, what: source_name(source), at, file });
    });
    mapped.with_context(|| format!("reading the block table of {}", path.display()))
}

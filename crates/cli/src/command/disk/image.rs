//! `lunway disk info` and `map` of VHD and qcow2 files.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lunway_block::size::HumanSize;
use lunway_filesystem::partition::{HEAD, Table};
use lunway_image::{Format, Image, ImageKind, LayerInfo, LayerSource};
use serde_json::{Value, json};

use super::{minimum_text, names, others_use};
use crate::failure::Failure;
use crate::terminal;

fn open(path: &Path, format: Format) -> anyhow::Result<Image<File>> {
    Image::open_files(path, format).with_context(|| format!("cannot open {}", path.display()))
}

fn kind_name(kind: ImageKind) -> &'static str {
    match kind {
        ImageKind::Fixed => "fixed",
        ImageKind::Dynamic => "dynamic",
        ImageKind::Differencing => "differencing",
    }
}

/// Sectors of a virtual disk in these formats, bytes: neither has another size.
const SECTOR: u32 = 512;

/// The smallest disk that holds all partitions, if there are any that can be read.
fn minimum(image: &Image<File>) -> Option<u64> {
    let mut head = vec![0; HEAD.min(usize::try_from(image.size()).unwrap_or(HEAD))];
    image.read_at(0, &mut head).ok()?;
    Table::read(&head, SECTOR, image.size()).as_ref().map(Table::minimum)
}

/// `lunway disk info`.
pub(super) fn info(path: &Path, format: Format, json: bool) -> Result<(), Failure> {
    // Asked before it is opened, and locked, here.
    let in_use = File::open(path).ok().and_then(|file| others_use(&file));
    let image = open(path, format)?;
    let metadata = path.metadata().with_context(|| format!("cannot read {}", path.display()))?;
    let (file_bytes, allocated) = (metadata.len(), metadata.blocks() * 512);
    let Some(LayerInfo { kind, size, block, id }) = image.layers().next() else { return Ok(()) };
    let parents = &image.paths()[1..];
    let minimum = minimum(&image);
    if json {
        let text = |path: &PathBuf| path.display().to_string();
        return terminal::print_json(&json!({
            "file": path.display().to_string(),
            "format": format.name(),
            "kind": kind_name(kind),
            "virtual_bytes": size,
            "minimum_bytes": minimum,
            "file_bytes": file_bytes,
            "allocated_bytes": allocated,
            "block_bytes": block,
            "logical_sector": SECTOR,
            "physical_sector": SECTOR,
            "disk_id": id.map(|id| id.to_string()),
            "parent": parents.first().map(text),
            "chain": image.paths().iter().map(text).collect::<Vec<_>>(),
            "in_use": in_use.is_some(),
            "has_parent": !parents.is_empty(),
        }));
    }
    let mut rows = vec![
        ("format", format.name().to_owned()),
        ("kind", kind_name(kind).to_owned()),
        ("size of the disk", HumanSize(size).to_string()),
        ("minimum size", minimum_text(minimum)),
        (
            "size of the file",
            format!("{}, {} of it on the host", HumanSize(file_bytes), HumanSize(allocated)),
        ),
    ];
    if block > 0 {
        rows.push((
            if format == Format::Qcow2 { "cluster size" } else { "block size" },
            HumanSize(block).to_string(),
        ));
    }
    rows.push(("sectors", format!("{SECTOR} logical, {SECTOR} physical")));
    rows.extend(id.map(|id| ("identity", id.to_string())));
    if !parents.is_empty() {
        rows.push(("chain", names(image.paths())));
    }
    rows.extend(in_use.map(|how| ("in use", how)));
    terminal::print(&format!("{}\n{}", path.display(), terminal::columns(rows)))
}

/// `lunway disk map`: gives each range to `each` as the row of a table and as JSON.
pub(super) fn map(path: &Path, format: Format, mut each: impl FnMut(Row<'_>)) -> Result<(), Failure> {
    let image = open(path, format)?;
    let files: Vec<String> = image.paths().iter().map(|path| names(std::slice::from_ref(path))).collect();
    let mapped = image.map(0, image.size(), |segment| {
        let (what, at) = match segment.source {
            LayerSource::File(at) => ("data", Some(at)),
            LayerSource::Compressed(compressed) => ("compressed", Some(compressed.offset)),
            LayerSource::Zero => ("zero", None),
            LayerSource::Absent => ("never written", None),
        };
        let file = files.get(segment.level).map_or("", String::as_str);
        each(Row { offset: segment.offset, len: segment.len, what, at, file });
    });
    Ok(mapped.with_context(|| format!("reading the tables of {}", path.display()))?)
}

/// A range of a disk, as `lunway disk map` shows it.
pub(super) struct Row<'a> {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) what: &'static str,
    pub(super) at: Option<u64>,
    pub(super) file: &'a str,
}

impl Row<'_> {
    pub(super) fn json(&self) -> Value {
        json!({
            "offset": self.offset,
            "bytes": self.len,
            "what": self.what.replace(' ', "_"),
            "file_offset": self.at,
            "file": self.file,
        })
    }

    pub(super) fn text(&self) -> String {
        let Self { offset, len, what, at, file } = self;
        let at = at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        format!("{offset:>16}  {len:>16}  {what:13}  {at:>16}  {file}")
    }
}

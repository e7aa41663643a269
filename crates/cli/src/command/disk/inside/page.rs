//! Contents of a disk, as a page.

use lunway_block::size::HumanSize;
use lunway_filesystem::tree::Disk;
use lunway_report::chart::{Strip, strip};
use lunway_report::{Block, Card, Cell, Column, Document, Grid, Row, Section, Tile, environment};

use super::figures::{Figures, Seen};
use super::{kind, parts, sentences};

/// The names that people know what they see by, and the colours.
fn legend(seen: Seen) -> (&'static str, &'static str) {
    match seen {
        Seen::Live => ("live", "read"),
        Seen::Dead => ("dead", "good"),
        Seen::Unknown => ("unknown", "unknown"),
        Seen::NeverWritten => ("never written", "even"),
    }
}

pub(super) fn document(name: &str, disk: &Disk, figures: &Figures) -> Document {
    let mut document = Document::new("inside", "Contents of the disk", name);
    document.tiles = Seen::ALL
        .into_iter()
        .zip(figures.total)
        .map(|(seen, bytes)| Tile {
            what: legend(seen).0.to_owned(),
            value: HumanSize(bytes).to_string(),
            unit: String::new(),
            of: format!("{:.1} % of the disk", 100.0 * bytes as f64 / disk.root().len.max(1) as f64),
        })
        .collect();
    document.warnings = sentences(disk);
    let uses = Seen::ALL.map(legend);
    let columns: Vec<Vec<f64>> =
        figures.parts.iter().map(|part| part.iter().map(|bytes| *bytes as f64).collect()).collect();
    let mut picture = Section::new("The disk from its first byte to its last");
    picture.prose.push(
        "Live: needed by file systems. Dead: free, but still held by the device. Unknown: treated as live."
            .to_owned(),
    );
    picture.blocks.push(Block::Chart(Card {
        title: "Use".to_owned(),
        detail: "by address".to_owned(),
        svg: strip(&Strip { size: disk.root().len, uses: &uses, parts: &columns }),
        wide: true,
    }));
    let figure = |name: &str| Column::figures(name, "");
    let mut grid = Grid::new(vec![
        Column::words("What"),
        figure("At").wide_only(),
        figure("Size"),
        figure("Used"),
        figure("Free"),
        figure("Dead"),
        figure("Unknown"),
    ]);
    for (depth, node) in parts(disk) {
        let sizes = [node.offset, node.len, node.used, node.free, figures.dead(node), node.unknown];
        let what = format!("{}{}", "\u{2003}".repeat(depth), kind(node));
        grid.rows.push(Row::new(
            std::iter::once(Cell::from(what)).chain(sizes.map(|bytes| HumanSize(bytes).to_string().into())),
        ));
    }
    let mut table = Section::new("Partitions and volumes");
    table.blocks.push(Block::Table(grid));
    document.sections = vec![picture, table];
    document.environment = environment();
    document.results = super::document(disk, figures);
    document
}

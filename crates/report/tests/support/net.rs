//! Window against MTU against delay.

use lunway_report::chart::{Bar, HeatMap, Tone, bars, heat};
use lunway_report::{
    Better, Block, Column, Conclusion, Document, Grid, Measure, Row, Section, Tile, VerdictTone, figure,
};
use serde_json::json;

use super::card;

const WINDOWS: [&str; 6] = ["16K", "64K", "128K", "512K", "2M", "auto"];
const COLUMNS: [(&str, f64); 6] = [
    ("1500, 0", 0.05),
    ("9000, 0", 0.05),
    ("1500, 1 ms", 2.0),
    ("9000, 1 ms", 2.0),
    ("1500, 10 ms", 20.0),
    ("9000, 10 ms", 20.0),
];

fn mb_s(window: usize, milliseconds: f64) -> f64 {
    let bytes = [16e3, 65e3, 131e3, 524e3, 2.1e6, 6e6][window];
    (bytes / milliseconds / 1e3).min(112.3)
}

pub(super) fn document() -> Document {
    let mut document = Document::new("net", "What the wire can do", "192.0.2.10:3262 from 192.0.2.20");
    document.verdicts = vec![
        Conclusion {
            text: "TCP carries 112.3 MB/s, 90 % of a gigabit: the rest is framing.".into(),
            tone: VerdictTone::Good,
        },
        Conclusion {
            text: "Windows under 512K throttle as soon as there is a delay of 1 ms: 64K carries 32.5 MB/s."
                .into(),
            tone: VerdictTone::Bad,
        },
        Conclusion { text: "MTU 9000 makes no meaningful difference.".into(), tone: VerdictTone::Even },
    ];
    let tile = |what: &str, value: &str, unit: &str, of: &str| Tile {
        what: what.into(),
        value: value.into(),
        unit: unit.into(),
        of: of.into(),
    };
    document.tiles = vec![
        tile("One stream", "112.3", "MB/s", "window auto, to the other machine"),
        tile("Four streams", "112.4", "MB/s", "no more than one"),
        tile("Round trip", "0.081", "ms", "48 bytes out, 48 + 4096 back"),
        tile("CPU", "0.41", "ns/byte", "sending"),
    ];
    let columns: Vec<String> = COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let values: Vec<Vec<f64>> =
        (0..WINDOWS.len()).map(|window| COLUMNS.iter().map(|&(_, ms)| mb_s(window, ms)).collect()).collect();
    let matrix = HeatMap {
        row_title: "window",
        column_title: "MTU, delay",
        unit: "MB/s",
        rows: &WINDOWS.map(str::to_owned),
        columns: &columns,
        values: &values,
    };
    let mut grid = Grid::new(vec![
        Column::words("Shape"),
        Column::figures("Depth", ""),
        Column::figures("p50", "ms"),
        Column::figures("p99", "ms"),
        Column::figures("Trips", "per s"),
        Column::figures("Retransmits", "").wide_only(),
    ]);
    for (shape, depth, p50) in
        [("read 4K", 1, 0.081), ("read 4K", 16, 0.42), ("write 4K", 1, 0.088), ("write 4K", 16, 0.45)]
    {
        let trips = f64::from(depth) / p50 * 1000.0;
        grid.rows.push(Row::new([
            shape.into(),
            depth.to_string().into(),
            figure(p50).into(),
            figure(p50 * 2.3).into(),
            figure(trips).into(),
            "0".into(),
        ]));
    }
    let bar = |label: &str, value, tone| Bar { label: label.into(), value, tone };
    let streams = bars(
        "MB/s",
        &[
            bar("1 stream, out", 112.3, Tone::Write),
            bar("4 streams, out", 112.4, Tone::Write),
            bar("1 stream, back", 111.9, Tone::Read),
            bar("4 streams, back", 112.4, Tone::Read),
        ],
    );
    document.sections = vec![
        Section {
            prose: vec!["One stream, 20 s each. A small window sends and then waits for the acknowledgement: window ÷ round trip is all it can do.".into()],
            blocks: vec![card("Throughput", "MB/s", heat(&matrix), true)],
            ..Section::new("Window, MTU and delay")
        },
        Section { blocks: vec![card("Streams", "MB/s", streams, false)], ..Section::new("One stream and several") },
        Section { blocks: vec![Block::Table(grid)], ..Section::new("Round trips of storage's shape") },
    ];
    document.measures = vec![Measure {
        name: "1 stream, out".into(),
        unit: "MB/s".into(),
        better: Better::Higher,
        samples: vec![112.1, 112.3, 112.4],
    }];
    document.results = json!({ "matrix": values });
    document
}

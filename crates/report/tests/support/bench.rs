//! A profile's ten rows, a zone measurement and a run until it is steady.

use std::time::Duration;

use lunway_report::chart::{
    Bar, ChartLine, Curve, Rounds, TimelineChart, Tone, Zones, bars, over_time, percentile_curves, steady,
    zones,
};
use lunway_report::{
    Better, Block, Cell, Column, Conclusion, Document, Grid, Mark, Measure, Row, Section, Tile, VerdictTone,
    figure,
};
use serde_json::json;

use super::{Noise, card};

/// Name, IOPS, bytes of an I/O.
const ROWS: [(&str, f64, f64); 12] = [
    ("read seq 4 MiB", 417.45, 4_194_304.0),
    ("read 4K", 3001.56, 4096.0),
    ("read 4K QD4", 6021.45, 4096.0),
    ("read 4K QD16", 24228.16, 4096.0),
    ("read 32K", 2742.39, 32768.0),
    ("read 128K", 2628.86, 131_072.0),
    ("write seq 4 MiB", 233.20, 4_194_304.0),
    ("write 4K", 2090.79, 4096.0),
    ("write 4K QD4", 5976.18, 4096.0),
    ("write 4K QD16", 8254.84, 4096.0),
    ("randrw 8 KiB QD16 (read)", 6254.84, 8192.0),
    ("write WWWW MMMM 100 % 4 KiB, and a name without end", 5254.84, 4096.0),
];

fn tone(name: &str) -> Tone {
    if name.starts_with("write") { Tone::Write } else { Tone::Read }
}

pub(super) fn document() -> Document {
    let mut document =
        Document::new("bench", "lunway bench", "iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0");
    document.verdicts = vec![
        Conclusion {
            text: "Sequential reads reach 93 % of what TCP carries between these machines: the network is the limit.".into(),
            tone: VerdictTone::Good,
        },
        Conclusion { text: "Writes of 4K at depth 16 wait 1.9 ms, four times as long as reads.".into(), tone: VerdictTone::Bad },
    ];
    let tile = |what: &str, value: &str, unit: &str, of: &str| Tile {
        what: what.into(),
        value: value.into(),
        unit: unit.into(),
        of: of.into(),
    };
    document.tiles = vec![
        tile("Score", "1,000", "", "read\u{a0}1,000 · write\u{a0}1,000"),
        tile("Fastest read", "1,751", "MB/s", "read seq 4 MiB"),
        tile("Most read IOPS", "24,228", "", "read 4K QD16"),
        tile("Fastest write", "978.1", "MB/s", "write seq 4 MiB"),
        tile("Most write IOPS", "8,255", "", "write 4K QD16"),
    ];
    document.warnings = vec![
        "write 4K QD16: the requested rate was not reached; response times are those of an overload.".into(),
    ];
    document.sections = vec![results(), throughput(), response(), time(), whole_device()];
    document.notes = vec!["Region: the first 1 GiB, written before it was read. Seed 4711.".into()];
    document.measures = ROWS
        .iter()
        .map(|&(name, iops, _)| Measure {
            name: name.into(),
            unit: "IOPS".into(),
            better: Better::Higher,
            samples: vec![iops],
        })
        .collect();
    document.results = json!({ "jobs": [] });
    document
}

fn results() -> Section {
    let mut grid = Grid::new(vec![
        Column::words("Test"),
        Column::figures("Response", "ms"),
        Column::figures("p99", "ms").wide_only(),
        Column::figures("p99.9", "ms").wide_only(),
        Column::figures("MB", ""),
        Column::figures("IOPS", ""),
        Column::figures("MB/s", ""),
        Column::figures("CPU", "%").wide_only(),
    ]);
    for (index, &(name, iops, bytes)) in ROWS.iter().enumerate() {
        let ms = 1000.0 / iops * if name.contains("QD16") { 16.0 } else { 1.0 };
        let mark = if tone(name) == Tone::Read { Mark::Read } else { Mark::Write };
        let figures = [ms, ms * 2.1, ms * 4.7, iops * bytes * 5.0 / 1e6, iops, iops * bytes / 1e6, 41.0];
        let cells = std::iter::once(Cell::marked(name, mark))
            .chain(figures.iter().map(|&value| figure(value).into()));
        grid.rows.push(Row { group: index == 6, ..Row::new(cells) });
    }
    grid.caption = "Response: mean per I/O, from the time at which it was due. MB = 1,000,000 bytes.".into();
    Section { blocks: vec![Block::Table(grid)], ..Section::new("Results") }
}

fn throughput() -> Section {
    let chart = |what: &str, of: &dyn Fn(f64, f64) -> f64| {
        let rows: Vec<Bar> = ROWS
            .iter()
            .map(|&(name, iops, bytes)| Bar { label: name.into(), value: of(iops, bytes), tone: tone(name) })
            .collect();
        card(what, "", bars(what, &rows), false)
    };
    let blocks = vec![chart("IOPS", &|iops, _| iops), chart("MB/s", &|iops, bytes| iops * bytes / 1e6)];
    Section { blocks, ..Section::new("Throughput") }
}

fn response() -> Section {
    let mut blocks = Vec::new();
    for (word, title) in [("read ", "Reads"), ("write ", "Writes")] {
        let rows = ROWS.iter().filter(|(name, ..)| name.starts_with(word));
        let named: Vec<(&str, Vec<(f64, f64)>)> = rows
            .map(|&(name, iops, _)| {
                let base = 1e9 / iops;
                let nines = (0..=64).map(|step| f64::from(step) / 16.0);
                let points = nines.map(|nines| {
                    (100.0 * (1.0 - 10f64.powf(-nines)), base * (0.7 + 0.2 * nines + 0.02 * nines.powi(4)))
                });
                (name.trim_start_matches(word), points.collect())
            })
            .collect();
        let curves: Vec<Curve<'_>> = named.iter().map(|(label, points)| Curve { label, points }).collect();
        blocks.push(card(title, "by percentile", percentile_curves(title, &curves), false));
    }
    Section { blocks, ..Section::new("Response time") }
}

fn time() -> Section {
    let mut noise = Noise(7);
    let mut blocks = Vec::new();
    for &(name, iops, bytes) in &ROWS[..4] {
        let (unit, value) = if bytes > 1e5 { ("MB/s", iops * bytes / 1e6) } else { ("IOPS", iops) };
        let values: Vec<f64> = (0..50).map(|_| noise.about(value, 9.0)).collect();
        let line = ChartLine { label: name, tone: Some(tone(name)), values: &values };
        let timeline = TimelineChart {
            unit,
            interval: Duration::from_millis(100),
            lines: &[line],
            warm_up: Duration::from_millis(500),
            events: &[],
            level: None,
            wide: false,
        };
        blocks.push(card(name, unit, over_time(&timeline), false));
    }
    let (read, write): (Vec<f64>, Vec<f64>) =
        (0..50).map(|_| (noise.about(900.0, 9.0), noise.about(390.0, 20.0))).unzip();
    let lines = [
        ChartLine { label: "read", tone: Some(Tone::Read), values: &read },
        ChartLine { label: "write", tone: Some(Tone::Write), values: &write },
    ];
    let interval = Duration::from_millis(100);
    let timeline = TimelineChart {
        unit: "IOPS",
        interval,
        lines: &lines,
        warm_up: Duration::ZERO,
        events: &[],
        level: None,
        wide: false,
    };
    blocks.push(card("randrw 8K QD4", "IOPS", over_time(&timeline), false));
    Section { blocks, ..Section::new("Over time") }
}

fn whole_device() -> Section {
    let mut noise = Noise(11);
    const SIZE: u64 = 2_000_398_934_016;
    let mut curve = |from: f64| -> Vec<(u64, f64)> {
        (0..2000)
            .map(|n| (SIZE / 2000 * n, noise.about(from * (1.0 - 0.47 * (n as f64 / 2000.0).powi(2)), 4.0)))
            .collect()
    };
    let (read, write) = (curve(201.0), curve(187.0));
    let zones = zones(&Zones { unit: "MB/s", size: SIZE, read: &read, write: &write, wide: true });
    let mut values: Vec<f64> =
        (0..7).map(|n| 9000.0 - 3900.0 * (1.0 - f64::exp(-f64::from(n) / 1.5))).collect();
    values.extend((0..5).map(|_| noise.about(5000.0, 5.0)));
    let rounds = steady(&Rounds { unit: "IOPS", values: &values, window: Some(7..12), wide: false });
    let blocks = vec![
        card("Zones", "MB/s over the address", zones, true),
        card("Steady state", "IOPS, writes of 4K", rounds, false),
    ];
    Section {
        prose: vec![
            "Outer tracks are faster than inner ones: the slowest zone reads 53 % of the fastest.".into(),
        ],
        blocks,
        ..Section::new("The whole device")
    }
}

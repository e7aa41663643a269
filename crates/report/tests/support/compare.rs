//! 512-byte against 4K sectors.

use lunway_report::chart::{ChartLine, Estimate, TimelineChart, forest, over_time};
use lunway_report::{
    Better, Block, Cell, Column, Conclusion, Document, Grid, Mark, Measure, Row, Section, Tile, VerdictTone,
    figure,
};
use serde_json::json;

use super::{Noise, card};

/// Name, 512, 4K, half the interval's width in per cent.
const ROWS: [(&str, f64, f64, f64); 10] = [
    ("read seq 4 MiB", 417.45, 403.30, 0.4),
    ("read 4K", 3001.56, 3164.56, 0.9),
    ("read 4K QD4", 6021.45, 6006.70, 1.1),
    ("read 4K QD16", 24228.16, 24062.61, 0.8),
    ("read 32K", 2742.39, 2807.47, 4.4),
    ("read 128K", 2628.86, 2620.80, 1.2),
    ("write seq 4 MiB", 233.20, 230.79, 1.9),
    ("write 4K", 2090.79, 2165.45, 0.4),
    ("write 4K QD4", 5976.18, 5983.65, 2.4),
    ("write 4K QD16", 8254.84, 7874.67, 1.2),
];
const MARGIN: f64 = 3.0;

fn verdict(percent: f64, half: f64) -> (&'static str, VerdictTone) {
    match (percent - half, percent + half) {
        (low, _) if low > MARGIN => ("faster", VerdictTone::Good),
        (_, high) if high < -MARGIN => ("slower", VerdictTone::Bad),
        (low, high) if low >= -MARGIN && high <= MARGIN => ("no meaningful difference", VerdictTone::Even),
        _ => ("cannot tell", VerdictTone::Unknown),
    }
}

pub(super) fn document() -> Document {
    let mut document = Document::new(
        "compare",
        "512-byte against 4K sectors",
        "A: file:disk.img,sector=512 · B: file:disk.img,sector=4096",
    );
    let said = |text: &str, tone| Conclusion { text: text.into(), tone };
    document.verdicts = vec![
        said("4K sectors are faster in read 4K (+5.4 %, 95 % interval 4.5 to 6.3).", VerdictTone::Good),
        said("4K sectors are slower in write 4K QD16 (−4.6 %, −5.8 to −3.4).", VerdictTone::Bad),
        said(
            "In 5 of 10 rows there is no meaningful difference: less than 3 % either way.",
            VerdictTone::Even,
        ),
        said("In 3 rows ten pairs cannot tell; about 40 would.", VerdictTone::Unknown),
    ];
    let tile = |what: &str, value: &str, unit: &str, of: &str| Tile {
        what: what.into(),
        value: value.into(),
        unit: unit.into(),
        of: of.into(),
    };
    document.tiles = vec![
        tile("Pairs", "10", "", "interleaved, in random order"),
        tile("A against A", "+0.1", "%", "must be even, and is"),
        tile("Margin", "±3", "%", "what matters in practice"),
    ];
    document.sections = vec![differences(), table(), pairs()];
    document.notes =
        vec!["Hodges–Lehmann estimate of the ratio over pairs, Walsh averages, Holm over ten rows.".into()];
    let mut noise = Noise(5);
    for &(name, a, b, _) in &ROWS {
        for (side, value) in [("A", a), ("B", b)] {
            document.measures.push(Measure {
                name: format!("{name} {side}"),
                unit: "IOPS".into(),
                better: Better::Higher,
                samples: (0..10).map(|_| noise.about(value, 2.0)).collect(),
            });
        }
    }
    document.results = json!({ "rows": ROWS.map(|(name, a, b, _)| json!({ "name": name, "a": a, "b": b })) });
    document
}

fn estimates() -> Vec<Estimate<'static>> {
    let rows = ROWS.iter().map(|&(label, a, b, half)| {
        let percent = (b / a - 1.0) * 100.0;
        let (verdict, tone) = verdict(percent, half);
        Estimate { label, percent, low: percent - half, high: percent + half, verdict, tone }
    });
    rows.collect()
}

fn differences() -> Section {
    let chart = forest("difference of B (4K) against A (512), %", MARGIN, &estimates());
    Section {
        prose: vec![
            "Right of the band B is faster, left of it slower; within the band no difference matters.".into(),
        ],
        blocks: vec![card("Difference of IOPS", "with 95 % interval", chart, true)],
        ..Section::new("Differences")
    }
}

fn table() -> Section {
    let mut grid = Grid::new(vec![
        Column::words("Test"),
        Column::figures("512", "IOPS"),
        Column::figures("4K", "IOPS"),
        Column::figures("Diff", "IOPS").wide_only(),
        Column::figures("Diff", "%"),
        Column::figures("Interval", "%").wide_only(),
        Column::words("Verdict"),
    ]);
    for (index, (&(name, a, b, _), estimate)) in ROWS.iter().zip(estimates()).enumerate() {
        let cells: [Cell; 7] = [
            name.into(),
            figure(a).into(),
            figure(b).into(),
            figure(b - a).into(),
            format!("{:+.2}", estimate.percent).into(),
            format!("{:.2} … {:.2}", estimate.low, estimate.high).into(),
            Cell::marked(estimate.verdict, Mark::Verdict(estimate.tone)),
        ];
        grid.rows.push(Row { group: index == 6, ..Row::new(cells) });
    }
    grid.caption = "Diff % is taken against the column 512.".into();
    Section { blocks: vec![Block::Table(grid)], ..Section::new("512 against 4K") }
}

fn pairs() -> Section {
    let mut noise = Noise(3);
    let (a, b): (Vec<f64>, Vec<f64>) =
        (0..40).map(|_| (noise.about(3001.0, 2.0), noise.about(3164.0, 2.0))).unzip();
    let lines = [
        ChartLine { label: "A: 512", tone: None, values: &a },
        ChartLine { label: "B: 4K", tone: None, values: &b },
    ];
    let interval = std::time::Duration::from_secs(2);
    let timeline = TimelineChart {
        unit: "IOPS",
        interval,
        lines: &lines,
        warm_up: 4 * interval,
        events: &[],
        level: None,
        wide: false,
    };
    let blocks = vec![card("read 4K", "IOPS of each pair", over_time(&timeline), false)];
    Section { blocks, ..Section::new("Was it stable?") }
}

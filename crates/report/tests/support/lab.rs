//! Seven topologies, and a cable that is pulled.

use std::time::Duration;

use lunway_report::chart::{
    Cable, CableState, ChartLine, End, Event, Host, Port, Side, Switch, TimelineChart, Topology, over_time,
    topology,
};
use lunway_report::{
    Better, Block, Column, Conclusion, Document, Grid, Measure, Row, Section, Tile, VerdictTone,
};
use serde_json::json;

use super::{Noise, card};

/// Test, topology, policy, paths, read ms, read MB/s, deviance, write ms, write MB/s, deviance.
const ROWS: [[&str; 10]; 7] = [
    [
        "C",
        "2 NICs, 1:1 paths, no mesh",
        "round robin",
        "2",
        "30.48",
        "131.24",
        "+32.2",
        "21.73",
        "184.11",
        "+70.3",
    ],
    ["F", "4 NICs, partial mesh", "round robin", "4", "39.80", "100.50", "+1.2", "468.99", "8.53", "−92.1"],
    ["D", "1 NIC, control", "–", "1", "40.28", "99.30", "0", "36.99", "108.14", "0"],
    ["A", "4 NICs in one team, no MPIO", "–", "4", "51.38", "77.85", "−21.6", "89.60", "44.64", "−58.7"],
    [
        "G",
        "2 NICs, 1:1, one active",
        "least queue depth",
        "1+1",
        "60.72",
        "65.88",
        "−33.7",
        "23.80",
        "168.03",
        "+55.4",
    ],
    [
        "E",
        "4 NICs, full mesh",
        "least queue depth",
        "8",
        "273.97",
        "14.60",
        "−85.3",
        "1010.76",
        "3.96",
        "−96.3",
    ],
    ["B", "4 NICs, full mesh", "round robin", "8", "404.65", "9.89", "−90.0", "964.77", "4.15", "−96.2"],
];

pub(super) fn document() -> Document {
    let mut document = Document::new("lab", "Two cards, one of them pulled", "experiment cable-pull");
    let said = |text: &str, tone| Conclusion { text: text.into(), tone };
    document.verdicts = vec![
        said("Two 1:1 paths read 32 % and write 70 % more than one.", VerdictTone::Good),
        said("A full mesh loses 90 % of reads and 96 % of writes.", VerdictTone::Bad),
        said("No I/O was lost when lane1 was pulled; the pause was 1.8 s.", VerdictTone::Good),
    ];
    let tile = |what: &str, value: &str, unit: &str, of: &str| Tile {
        what: what.into(),
        value: value.into(),
        unit: unit.into(),
        of: of.into(),
    };
    document.tiles = vec![
        tile("Read", "131.2", "MB/s", "test C, +32.2 % against D"),
        tile("Write", "184.1", "MB/s", "test C, +70.3 % against D"),
        tile("Pause", "1.8", "s", "after the pull at 3 s"),
        tile("Busiest core", "61", "%", "of 2: not the limit"),
    ];
    document.sections = vec![table(), time(), drawing()];
    document.notes = vec!["Links calibrated before: 123.1 and 123.2 MB/s of 123.1 expected.".into()];
    document.measures = vec![Measure {
        name: "C read".into(),
        unit: "MB/s".into(),
        better: Better::Higher,
        samples: vec![131.2, 130.9, 131.6, 131.1],
    }];
    document.results = json!({ "experiment": "cable-pull" });
    document
}

fn table() -> Section {
    let mut grid = Grid::new(vec![
        Column::words("Test"),
        Column::words("Topology").wide_only(),
        Column::words("Policy").wide_only(),
        Column::words("Paths").wide_only(),
        Column::figures("Read", "ms").wide_only(),
        Column::figures("Read", "MB/s"),
        Column::figures("Deviance", "%"),
        Column::figures("Write", "ms").wide_only(),
        Column::figures("Write", "MB/s"),
        Column::figures("Deviance", "%"),
    ]);
    grid.rows = ROWS.iter().map(|cells| Row::new(cells.iter().map(|&cell| cell.into()))).collect();
    grid.caption = "Sequential, 4 MiB, 1 GiB a run. Deviance: MB/s against the control, test D.".into();
    Section { blocks: vec![Block::Table(grid)], ..Section::new("Topologies and policies") }
}

fn time() -> Section {
    let mut noise = Noise(9);
    let phase = |n: i32| match n {
        30..=47 => 0,
        48..=119 => 1,
        _ => 2,
    };
    let mut lane = |first: bool| -> Vec<f64> {
        let values = (0..200).map(|n| match (phase(n), first) {
            (0, _) | (1, true) => 0.0,
            (1, false) => noise.about(119.0, 3.0),
            _ => noise.about(if first { 110.0 } else { 113.0 }, 3.0),
        });
        values.collect()
    };
    let (one, two) = (lane(true), lane(false));
    let lines = [
        ChartLine { label: "lane1 (10.0.1.1)", tone: None, values: &one },
        ChartLine { label: "lane2 (10.0.2.1)", tone: None, values: &two },
    ];
    let at = Duration::from_millis;
    let events = [
        Event { at: at(3000), label: "pull lane1" },
        Event { at: at(3200), label: "lane1 lost: TCP timed out" },
        Event { at: at(4800), label: "all I/O on lane2" },
        Event { at: at(12_000), label: "plug lane1" },
        Event { at: at(12_400), label: "lane1 back" },
        Event { at: at(19_800), label: "end" },
    ];
    let timeline = TimelineChart {
        unit: "MB/s",
        interval: at(100),
        lines: &lines,
        warm_up: at(1000),
        events: &events,
        level: Some((123.1, "one link, calibrated")),
        wide: true,
    };
    let mut blocks = vec![card("Throughput by path", "MB/s", over_time(&timeline), true)];
    // Eight paths of a full mesh.
    let mesh: Vec<Vec<f64>> =
        (0..8).map(|path| (0..60).map(|_| noise.about(f64::from(path + 1), 30.0)).collect()).collect();
    let names: Vec<String> = (0..8).map(|path| format!("10.0.{path}.1")).collect();
    let lines: Vec<ChartLine<'_>> =
        mesh.iter().zip(&names).map(|(values, label)| ChartLine { label, tone: None, values }).collect();
    let timeline = TimelineChart {
        unit: "MB/s",
        interval: at(1000),
        lines: &lines,
        warm_up: at(0),
        events: &events[..3],
        level: None,
        wide: true,
    };
    blocks.push(card("Test B: eight paths", "MB/s", over_time(&timeline), true));
    Section { blocks, ..Section::new("Over time") }
}

fn drawing() -> Section {
    let host = |name: &str, detail: &str, side, ports: usize| Host {
        name: name.into(),
        detail: detail.into(),
        ports: (0..ports)
            .map(|n| Port { name: format!("eth{n}"), address: format!("192.168.{}.{n}", 101 + n) })
            .collect(),
        side,
    };
    let cable = |name: &str, a, b, detail: &str, state| Cable {
        name: name.into(),
        ends: [a, b],
        detail: detail.into(),
        state,
    };
    let direct = Topology {
        hosts: vec![host("server", "asks", Side::Left, 2), host("storage", "1=ram:1G", Side::Right, 2)],
        switches: Vec::new(),
        cables: vec![
            cable(
                "lane1",
                End::Port(0, 0),
                End::Port(1, 0),
                "1 Gbit/s · MTU 9000 · pulled at 3 s, plugged at 12 s",
                CableState::Disturbed,
            ),
            cable("lane2", End::Port(0, 1), End::Port(1, 1), "1 Gbit/s · MTU 9000", CableState::Up),
        ],
    };
    let switched = Topology {
        hosts: vec![
            host("server", "asks", Side::Left, 4),
            host("storage-a", "1=ram:1G", Side::Right, 2),
            host("storage-b", "1=file:disk.img", Side::Right, 1),
        ],
        switches: ["fabric-a", "fabric-b"].map(|name| Switch { name: name.into() }).to_vec(),
        cables: vec![
            cable("a0", End::Port(0, 0), End::Switch(0), "1 Gbit/s · MTU 9000", CableState::Up),
            cable("a1", End::Port(0, 1), End::Switch(0), "1 Gbit/s · MTU 9000", CableState::Up),
            cable(
                "b0",
                End::Port(0, 2),
                End::Switch(1),
                "1 Gbit/s · MTU 9000 · delay 1 ms · loss 0.1 %",
                CableState::Up,
            ),
            cable("b1", End::Port(0, 3), End::Switch(1), "1 Gbit/s · MTU 9000", CableState::Down),
            cable("s0", End::Switch(0), End::Port(1, 0), "1 Gbit/s · MTU 9000", CableState::Up),
            cable("s1", End::Switch(1), End::Port(1, 1), "1 Gbit/s · MTU 9000", CableState::Up),
            cable("s2", End::Switch(1), End::Port(2, 0), "100 Mbit/s · MTU 1500", CableState::Up),
            cable("trunk", End::Switch(0), End::Switch(1), "10 Gbit/s · MTU 9000", CableState::Up),
        ],
    };
    let blocks = vec![
        card("cable-pull", "two cards, 1:1", topology(&direct), true),
        card("Test B", "full mesh over two switches", topology(&switched), true),
    ];
    Section { blocks, ..Section::new("Topology") }
}

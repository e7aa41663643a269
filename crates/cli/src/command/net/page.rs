//! The page of `lunway net`.

use std::time::Duration;

use lunway_net::{Cell, Direction, Mtu, RemarkTone, RoundTrips, Throughput, Window};
use lunway_report::chart::{
    Bar, ChartLine, Curve, HeatMap, TimelineChart, Tone, bars, heat, over_time, percentile_curves,
};
use lunway_report::{
    Better, Block, Card, Column, Conclusion, Document, Fact, Grid, Measure, Row, Section, Tile, VerdictTone,
    environment, figure,
};

use super::Measured;
use super::json::results;
use super::text::{cautions, microseconds};

/// Spacing of the points of a line over time.
const STEP: Duration = Duration::from_millis(100);
/// Percentiles at which a curve of round trips is drawn.
const PERCENTILES: [f64; 9] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99];

/// Returns the page of a measurement, with tables, a heat map for each direction, streams as bars, and the distribution
/// of round trips.
pub(super) fn document(measured: &Measured) -> Document {
    let matrix = &measured.matrix;
    let mut document = Document::new("net", "lunway net", measured.subject.clone());
    document.verdicts = matrix
        .remarks(measured.link)
        .into_iter()
        .map(|remark| Conclusion {
            text: remark.text,
            tone: match remark.tone {
                RemarkTone::Good => VerdictTone::Good,
                RemarkTone::Bad => VerdictTone::Bad,
                RemarkTone::Plain => VerdictTone::Even,
            },
        })
        .collect();
    document.warnings = cautions(measured);
    document.warnings.extend(matrix.failure.as_ref().map(|error| format!("Ended early: {error}.")));
    if !matrix.complete && matrix.failure.is_none() {
        document.warnings.push("Interrupted: the results cover the completed part.".to_owned());
    }
    document.tiles = tiles(measured);
    document.sections =
        [throughput(measured), streams(measured), round_trips(measured)].into_iter().flatten().collect();
    document.environment = environment();
    document.environment.push(crate::command::doctor::of_place());
    document.environment.extend([
        Fact::new("Path MTU", matrix.path.mtu.to_string()),
        Fact::new("Round trip of the handshake", format!("{} µs", microseconds(matrix.path.round_trip))),
        Fact::new("Congestion control, other end", matrix.path.congestion_far.clone()),
    ]);
    document.notes = vec![
        "Rates are of payload that arrived; 1 Mb is 1,000,000 bits. A window is SO_SNDBUF and SO_RCVBUF set before the connection is \
         made, with the receive window kept at it. Limit: one window per round trip, by the shortest round trip that the kernel saw."
            .to_owned(),
        "CPU is the time of the threads that send and receive; the kernel may charge interrupts to other threads.".to_owned(),
    ];
    document.measures = measures(measured);
    document.results = results(measured);
    document
}

fn megabits(rate: f64) -> String {
    figure(rate / 1e6)
}

fn tiles(measured: &Measured) -> Vec<Tile> {
    let best = |direction, what: &str| {
        let cell = measured.matrix.best(direction, |_| true)?;
        let value = megabits(cell.measured.bits_per_second());
        Some(Tile { what: what.into(), value, unit: "Mb/s".into(), of: setting(cell) })
    };
    let trip = measured.matrix.round_trips.iter().find(|trips| trips.depth == 1).map(|trips| Tile {
        what: "Round trip".into(),
        value: figure(trips.latency.mean() / 1e3),
        unit: "µs".into(),
        of: trips.shape.to_string(),
    });
    [best(Direction::Send, "Fastest sending"), best(Direction::Receive, "Fastest receiving"), trip]
        .into_iter()
        .flatten()
        .collect()
}

/// Window, MTU and streams of a cell.
fn setting(cell: &Cell) -> String {
    let streams = cell.measured.streams.len();
    let many = if streams == 1 { "" } else { "s" };
    format!("window {}, MTU {}, {streams} stream{many}", cell.measured.window, cell.mtu.bytes())
}

fn throughput(measured: &Measured) -> Option<Section> {
    let cells = &measured.matrix.cells;
    if cells.is_empty() {
        return None;
    }
    let mut section = Section::new("Throughput");
    for (direction, title) in [(Direction::Send, "Sending"), (Direction::Receive, "Receiving")] {
        let one_way: Vec<_> = cells.iter().filter(|cell| cell.measured.direction == direction).collect();
        if one_way.is_empty() {
            continue;
        }
        section.blocks.push(Block::Chart(Card {
            title: title.to_owned(),
            detail: "Mb/s by window, MTU and streams".to_owned(),
            svg: heat_map(&one_way),
            wide: true,
        }));
    }
    section.blocks.extend(time(measured));
    section.blocks.push(Block::Table(table(measured)));
    Some(section)
}

/// Distinct values, in the order in which they come.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

fn heat_map(cells: &[&Cell]) -> String {
    let windows: Vec<Window> = distinct(cells.iter().map(|cell| cell.measured.window));
    let columns: Vec<(Mtu, usize)> =
        distinct(cells.iter().map(|cell| (cell.mtu, cell.measured.streams.len())));
    let value = |window: Window, column: (Mtu, usize)| {
        let cell = cells
            .iter()
            .find(|cell| cell.measured.window == window && (cell.mtu, cell.measured.streams.len()) == column);
        cell.map_or(f64::NAN, |cell| cell.measured.bits_per_second() / 1e6)
    };
    let values: Vec<Vec<f64>> =
        windows.iter().map(|&window| columns.iter().map(|&column| value(window, column)).collect()).collect();
    heat(&HeatMap {
        row_title: "Window",
        column_title: "MTU × streams",
        unit: "Mb/s",
        rows: &windows.iter().map(ToString::to_string).collect::<Vec<_>>(),
        columns: &columns
            .iter()
            .map(|(mtu, streams)| format!("{} × {streams}", mtu.bytes()))
            .collect::<Vec<_>>(),
        values: &values,
    })
}

/// The fastest cell of each direction over time.
fn time(measured: &Measured) -> Option<Block> {
    let ways = [(Direction::Send, "sending", Tone::Write), (Direction::Receive, "receiving", Tone::Read)];
    let best: Vec<_> = ways
        .into_iter()
        .filter_map(|(direction, label, tone)| {
            let cell = measured.matrix.best(direction, |_| true)?;
            Some((label, tone, cell, rates(&cell.measured)))
        })
        .collect();
    let lines: Vec<_> = best
        .iter()
        .map(|(label, tone, _, values)| ChartLine { label, tone: Some(*tone), values: values.as_slice() })
        .collect();
    let level =
        measured.link.zip(best.first()).map(|(link, (_, _, cell, _))| (cell.theory(link) / 1e6, "theory"));
    let svg = over_time(&TimelineChart {
        unit: "Mb/s",
        interval: STEP,
        lines: &lines,
        warm_up: measured.omit,
        events: &[],
        level,
        wide: true,
    });
    let longest = lines.iter().map(|line| line.values.len()).max()?;
    let card = Card {
        title: "Slow start".to_owned(),
        detail: "Mb/s over time, the fastest of each direction; shaded: left out of the figure “steady”"
            .to_owned(),
        svg,
        wide: true,
    };
    (longest > 1).then_some(Block::Chart(card))
}

/// Megabits per second in each whole [`STEP`].
fn rates(measured: &Throughput) -> Vec<f64> {
    let steps = measured.elapsed().as_millis() / STEP.as_millis();
    let steps = u32::try_from(steps).unwrap_or(u32::MAX);
    let arrived: Vec<f64> = (0..=steps).map(|step| measured.bytes_at(STEP * step)).collect();
    arrived.windows(2).map(|pair| (pair[1] - pair[0]) * 8.0 / STEP.as_secs_f64() / 1e6).collect()
}

fn table(measured: &Measured) -> Grid {
    let mut grid = Grid::new(vec![
        Column::words("Direction"),
        Column::words("Window"),
        Column::figures("MTU", "bytes"),
        Column::figures("Streams", ""),
        Column::figures("Throughput", "Mb/s"),
        Column::figures("Later", "Mb/s").wide_only(),
        Column::figures("Limit", "Mb/s").wide_only(),
        Column::figures("Resent", "segments").wide_only(),
        Column::figures("Round trip", "µs").wide_only(),
        Column::figures("CPU here", "ns/byte").wide_only(),
        Column::figures("CPU remote", "ns/byte").wide_only(),
    ]);
    grid.rows = measured
        .matrix
        .cells
        .iter()
        .map(|cell| {
            let figures = &cell.measured;
            let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
            let sender = figures.senders().next();
            Row::new(
                [
                    figures.direction.to_string(),
                    figures.window.to_string(),
                    cell.mtu.to_string(),
                    figures.streams.len().to_string(),
                    megabits(figures.bits_per_second()),
                    or_dash(figures.bits_per_second_after(measured.omit).map(megabits)),
                    or_dash(figures.window_limit().map(megabits)),
                    figures.retransmits().to_string(),
                    or_dash(sender.map(|end| microseconds(end.tcp.rtt))),
                    format!("{:.2}", figures.cpu_ns_per_byte_near()),
                    or_dash(figures.cpu_ns_per_byte_far().map(|cpu| format!("{cpu:.2}"))),
                ]
                .map(Into::into),
            )
        })
        .collect();
    grid.caption = format!(
        "Later: without the first {} s. Limit: one window per round trip and stream.",
        measured.omit.as_secs_f64()
    );
    grid
}

/// Each stream of the fastest cell with several.
fn streams(measured: &Measured) -> Option<Section> {
    let mut section = Section::new("Streams");
    for (direction, title, tone) in
        [(Direction::Send, "There", Tone::Write), (Direction::Receive, "Back", Tone::Read)]
    {
        let Some(cell) = measured.matrix.best(direction, |cell| cell.measured.streams.len() > 1) else {
            continue;
        };
        let one = measured.matrix.best(direction, |cell| cell.measured.streams.len() == 1);
        let mut shown: Vec<Bar> = one
            .map(|one| Bar { label: "one alone".into(), value: one.measured.bits_per_second() / 1e6, tone })
            .into_iter()
            .collect();
        shown.extend(cell.measured.streams.iter().enumerate().map(|(index, stream)| {
            let seconds = stream.elapsed.as_secs_f64().max(1e-9);
            Bar {
                label: format!("stream {}", index + 1),
                value: stream.bytes as f64 * 8.0 / seconds / 1e6,
                tone,
            }
        }));
        section.blocks.push(Block::Chart(Card {
            title: title.to_owned(),
            detail: format!("Mb/s of each stream; {}", setting(cell)),
            svg: bars("Mb/s", &shown),
            wide: false,
        }));
    }
    (!section.blocks.is_empty()).then_some(section)
}

fn round_trips(measured: &Measured) -> Option<Section> {
    let trips = &measured.matrix.round_trips;
    if trips.is_empty() {
        return None;
    }
    let mut section = Section::new("Round trips");
    section.prose = vec![
        "Requests and answers of storage's sizes between two bare sockets: no target on this wire answers sooner over one connection."
            .to_owned(),
    ];
    let mut grid = Grid::new(vec![
        Column::words("Bytes"),
        Column::figures("Depth", ""),
        Column::figures("Rate", "per second"),
        Column::figures("Payload", "MB/s"),
        Column::figures("Mean", "µs"),
        Column::figures("50 %", "µs").wide_only(),
        Column::figures("99 %", "µs"),
        Column::figures("99.9 %", "µs").wide_only(),
        Column::figures("Longest", "µs").wide_only(),
    ]);
    let at =
        |trips: &RoundTrips, percentile| figure(trips.latency.value_at_percentile(percentile) as f64 / 1e3);
    grid.rows = trips
        .iter()
        .map(|trips| {
            Row::new(
                [
                    trips.shape.to_string(),
                    trips.depth.to_string(),
                    figure(trips.per_second()),
                    figure(trips.bytes_per_second() / 1e6),
                    figure(trips.latency.mean() / 1e3),
                    at(trips, 50.0),
                    at(trips, 99.0),
                    at(trips, 99.9),
                    figure(trips.latency.max() as f64 / 1e3),
                ]
                .map(Into::into),
            )
        })
        .collect();
    grid.caption = "1 MB = 1,000,000 bytes, without the 48 bytes of each header.".to_owned();
    let points: Vec<Vec<(f64, f64)>> = trips
        .iter()
        .map(|trips| {
            let point = |percentile| (percentile, trips.latency.value_at_percentile(percentile) as f64);
            PERCENTILES.map(point).to_vec()
        })
        .collect();
    let labels: Vec<String> = trips.iter().map(short_name).collect();
    let curves: Vec<_> = labels.iter().zip(&points).map(|(label, points)| Curve { label, points }).collect();
    section.blocks = vec![
        Block::Chart(Card {
            title: "Distribution".to_owned(),
            detail: "time from request to answer".to_owned(),
            svg: percentile_curves("Round trips", &curves),
            wide: false,
        }),
        Block::Table(grid),
    ];
    Some(section)
}

/// A name that fits beside a curve.
fn short_name(trips: &RoundTrips) -> String {
    let way = if trips.shape.answer >= trips.shape.request { "read" } else { "write" };
    format!("{way} ×{}", trips.depth)
}

fn measures(measured: &Measured) -> Vec<Measure> {
    let cells = measured.matrix.cells.iter().map(|cell| Measure {
        name: format!("{}, {}", cell.measured.direction, setting(cell)),
        unit: "Mb/s".into(),
        better: Better::Higher,
        samples: vec![cell.measured.bits_per_second() / 1e6],
    });
    let trips = measured.matrix.round_trips.iter().flat_map(|trips| {
        let measure = |unit: &str, better, value| Measure {
            name: format!("{}, depth {}", trips.shape, trips.depth),
            unit: unit.into(),
            better,
            samples: vec![value],
        };
        [
            measure("per second", Better::Higher, trips.per_second()),
            measure("µs", Better::Lower, trips.latency.mean() / 1e3),
        ]
    });
    cells.chain(trips).collect()
}

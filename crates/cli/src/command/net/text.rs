//! The tables of `lunway net`, for eyes on a terminal.

use std::time::Duration;

use lunway_net::{Cell, RoundTrips};
use lunway_report::figure;

use super::Measured;
use crate::terminal;

/// Everything that was measured.
pub(super) fn text(measured: &Measured) -> String {
    let matrix = &measured.matrix;
    let mut parts = vec![heading(measured)];
    if !matrix.cells.is_empty() {
        let mut headings = vec!["Streams", "Window", "MTU", "Direction", "Mb/s", "steady", "limit"];
        if measured.link.is_some() {
            headings.push("theory");
        }
        headings.extend(["resent", "RTT µs", "cwnd", "CPU here", "remote"]);
        let rows: Vec<_> = matrix.cells.iter().map(|cell| throughput_row(measured, cell)).collect();
        parts.push(aligned(&headings, &rows));
        parts.push(legend(measured));
    }
    if !matrix.round_trips.is_empty() {
        let headings =
            ["Bytes out", "back", "Depth", "per second", "MB/s", "mean µs", "50 %", "99 %", "99.9 %", "max"];
        let rows: Vec<_> = matrix.round_trips.iter().map(round_trip_row).collect();
        parts.push(aligned(&headings, &rows));
        parts.push("Round trips: MB/s without the 48 bytes of each header.".to_owned());
    }
    let sentences: Vec<_> = matrix.remarks(measured.link).into_iter().map(|remark| remark.text).collect();
    parts.push([sentences, cautions(measured)].concat().join("\n"));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn heading(measured: &Measured) -> String {
    let path = &measured.matrix.path;
    format!(
        "{}: MTU {}, round trip {} µs, congestion control {} here and {} remote",
        terminal::clean(&measured.subject),
        path.mtu,
        microseconds(path.round_trip),
        path.congestion_near,
        path.congestion_far
    )
}

fn legend(measured: &Measured) -> String {
    format!(
        "Payload that arrived, 1 Mb = 1,000,000 bits; steady: without the first {} s; limit: one window per round trip and stream.\n\
         CPU: ns per byte of the threads that send and receive.",
        measured.omit.as_secs_f64()
    )
}

/// Cautions for the reader.
pub(super) fn cautions(measured: &Measured) -> Vec<String> {
    let matrix = &measured.matrix;
    let clipped = matrix.cells.iter().find(|cell| cell.measured.clipped());
    let clipped = clipped.map(|cell| {
        let granted = cell.measured.streams.iter().flat_map(|stream| [Some(stream.near), stream.far]).flatten();
        let least = granted.map(|end| end.buffers.send.min(end.buffers.receive)).min().unwrap_or(0);
        format!(
            "The window of {} was clipped: a kernel granted buffers of {} KiB, half of which counts; net.core.rmem_max and wmem_max \
             say how much it grants.",
            cell.measured.window,
            least >> 10
        )
    });
    let beyond = matrix.mtus_beyond.iter().map(|mtu| {
        format!(
            "An MTU of {mtu} cannot be shown on a path of {}: set it on the cards and the switch between them.",
            matrix.path.mtu
        )
    });
    let emulated = matrix.cells.iter().any(|cell| matches!(cell.mtu, lunway_net::Mtu::Emulated(_)));
    let emulated = emulated.then(|| {
        "MTUs below the path's are emulated by shorter segments (TCP_MAXSEG): a card's own work on them is not seen.".to_owned()
    });
    clipped.into_iter().chain(emulated).chain(beyond).collect()
}

fn throughput_row(shown: &Measured, cell: &Cell) -> Vec<String> {
    let measured = &cell.measured;
    let megabits = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| figure(rate / 1e6));
    let sender = measured.senders().next().map(|end| end.tcp);
    let window = format!("{}{}", measured.window, if measured.clipped() { " clipped" } else { "" });
    let mut row = vec![
        measured.streams.len().to_string(),
        window,
        cell.mtu.to_string(),
        measured.direction.to_string(),
        megabits(Some(measured.bits_per_second())),
        megabits(measured.bits_per_second_after(shown.omit)),
        megabits(measured.window_limit()),
    ];
    row.extend(shown.link.map(|link| megabits(Some(cell.theory(link)))));
    row.extend([
        measured.retransmits().to_string(),
        sender.map_or("-".to_owned(), |tcp| microseconds(tcp.rtt)),
        sender.map_or("-".to_owned(), |tcp| tcp.cwnd.to_string()),
        format!("{:.2}", measured.cpu_ns_per_byte_near()),
        measured.cpu_ns_per_byte_far().map_or("-".to_owned(), |cpu| format!("{cpu:.2}")),
    ]);
    row
}

fn round_trip_row(measured: &RoundTrips) -> Vec<String> {
    let latency = &measured.latency;
    let at = |percentile| microseconds(Duration::from_nanos(latency.value_at_percentile(percentile)));
    vec![
        measured.shape.request.to_string(),
        measured.shape.answer.to_string(),
        measured.depth.to_string(),
        figure(measured.per_second()),
        figure(measured.bytes_per_second() / 1e6),
        figure(latency.mean() / 1e3),
        at(50.0),
        at(99.0),
        at(99.9),
        microseconds(Duration::from_nanos(latency.max())),
    ]
}

pub(super) fn microseconds(time: Duration) -> String {
    figure(time.as_secs_f64() * 1e6)
}

/// Columns set to the right, so that figures line up.
fn aligned(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ")
    };
    let heading = terminal::heading(&line(headings.to_vec()));
    let lines = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(heading).chain(lines).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_line_up_on_the_right() {
        let rows = [vec!["1".to_owned(), "64 KiB".to_owned()], vec!["16".to_owned(), "auto".to_owned()]];
        assert_eq!(aligned(&["N", "Window"], &rows), " N  Window\n 1  64 KiB\n16    auto");
    }
}

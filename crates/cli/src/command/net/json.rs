//! The figures of `lunway net`, for programs.

use std::time::Duration;

use lunway_net::{Cell, Direction, End, Mtu, RoundTrips, TcpInfo, Window};
use serde_json::{Value, json};

use super::Measured;

/// Everything that was measured. Rates are in bits or bytes per second, times in nanoseconds.
pub(super) fn results(measured: &Measured) -> Value {
    let matrix = &measured.matrix;
    let path = &matrix.path;
    json!({
        "path": {
            "mtu": path.mtu,
            "segment": path.segment,
            "timestamps": path.timestamps,
            "round_trip_ns": nanoseconds(path.round_trip),
            "congestion_control": { "near": path.congestion_near, "far": path.congestion_far },
        },
        "link_bits_per_second": measured.link,
        "omit_ns": nanoseconds(measured.omit),
        "throughput": matrix.cells.iter().map(|cell| throughput(measured, cell)).collect::<Vec<_>>(),
        "round_trips": matrix.round_trips.iter().map(round_trips).collect::<Vec<_>>(),
        "mtus_beyond_path": matrix.mtus_beyond,
        "complete": matrix.complete,
        "failure": matrix.failure.as_ref().map(ToString::to_string),
    })
}

fn throughput(shown: &Measured, cell: &Cell) -> Value {
    let measured = &cell.measured;
    let streams: Vec<_> = measured
        .streams
        .iter()
        .map(|stream| {
            json!({
                "bytes": stream.bytes,
                "elapsed_ns": nanoseconds(stream.elapsed),
                "near": end(&stream.near),
                "far": stream.far.as_ref().map(end),
                "series": stream.series.iter().map(|(time, bytes)| json!([nanoseconds(*time), bytes])).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "direction": match measured.direction {
            Direction::Send => "send",
            Direction::Receive => "receive",
        },
        "window": window(measured.window),
        "mtu": cell.mtu.bytes(),
        "mtu_is": match cell.mtu {
            Mtu::Path(_) => "path",
            Mtu::Emulated(_) => "emulated",
        },
        "bytes": measured.bytes(),
        "elapsed_ns": nanoseconds(measured.elapsed()),
        "bits_per_second": measured.bits_per_second(),
        "bits_per_second_later": measured.bits_per_second_after(shown.omit),
        "bits_per_second_window_limit": measured.window_limit(),
        "bits_per_second_theory": shown.link.map(|link| cell.theory(link)),
        "clipped": measured.clipped(),
        "retransmits": measured.retransmits(),
        "round_trip_min_ns": measured.round_trip().map(nanoseconds),
        "cpu_ns_per_byte": { "near": measured.cpu_ns_per_byte_near(), "far": measured.cpu_ns_per_byte_far() },
        "complete": measured.complete,
        "streams": streams,
    })
}

fn round_trips(measured: &RoundTrips) -> Value {
    let latency = &measured.latency;
    let at = |percentile| latency.value_at_percentile(percentile);
    json!({
        "request": measured.shape.request,
        "answer": measured.shape.answer,
        "depth": measured.depth,
        "count": measured.count,
        "elapsed_ns": nanoseconds(measured.elapsed),
        "per_second": measured.per_second(),
        "bytes_per_second": measured.bytes_per_second(),
        "latency_ns": {
            "min": latency.min(), "mean": latency.mean(), "max": latency.max(),
            "p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "p99_9": at(99.9), "p99_99": at(99.99),
        },
        "near": end(&measured.near),
        "far": measured.far.as_ref().map(end),
        "complete": measured.complete,
    })
}

fn end(end: &End) -> Value {
    json!({
        "cpu_ns": nanoseconds(end.cpu),
        "send_buffer": end.buffers.send,
        "receive_buffer": end.buffers.receive,
        "tcp": tcp(&end.tcp),
    })
}

fn tcp(tcp: &TcpInfo) -> Value {
    json!({
        "rtt_ns": nanoseconds(tcp.rtt),
        "rtt_var_ns": nanoseconds(tcp.rtt_var),
        "rtt_min_ns": nanoseconds(tcp.rtt_min),
        "cwnd": tcp.cwnd,
        "segment": tcp.segment,
        "path_mtu": tcp.path_mtu,
        "timestamps": tcp.timestamps,
        "peer_window": tcp.peer_window,
        "delivery_rate_bytes_per_second": tcp.delivery_rate,
        "reordering": tcp.reordering,
        "reorderings": tcp.reorderings,
        "segments_sent": tcp.segments_sent,
        "retransmits": tcp.retransmits,
        "lost": tcp.lost,
        "busy_ns": nanoseconds(tcp.busy),
        "window_limited_ns": nanoseconds(tcp.window_limited),
        "buffer_limited_ns": nanoseconds(tcp.buffer_limited),
    })
}

fn window(window: Window) -> Value {
    window.bytes().map_or_else(|| json!("auto"), |bytes| json!(bytes))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

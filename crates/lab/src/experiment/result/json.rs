//! Results for programs.

use lunway_bench::compare::Contrast;
use serde_json::{Value, json};

use crate::experiment::result::backups::BackupRow;
use crate::experiment::result::results::{Compared, Link, ResultCell, ResultRow, Results, Sample};

impl Results {
    /// The results as JSON. What scripts hold on to: `experiment`, `links`, `rows`, `figures`; everything else may
    /// grow.
    ///
    /// A row's figures are medians of the repeats that count; `samples` has every one. Where nothing could be had there
    /// is `null`.
    pub fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(row).chain(self.cells.iter().map(cell_row));
        let rows = rows.chain(self.comparisons.iter().flat_map(compared_rows));
        let rows = rows.chain(self.backups.iter().map(BackupRow::row_json));
        let figures: serde_json::Map<String, Value> =
            self.figures.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let verdicts = self.verdicts.iter();
        json!({
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "links": self.links.iter().map(link).collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
            "matrix": self.cells.iter().map(cell).collect::<Vec<_>>(),
            "backups": self.backups.iter().map(BackupRow::to_json).collect::<Vec<_>>(),
            "comparisons": self.comparisons.iter().map(compared).collect::<Vec<_>>(),
            "figures": figures,
            "verdicts": verdicts.map(|verdict| json!({ "text": verdict.text, "tone": verdict.tone.name() })).collect::<Vec<_>>(),
            "notes": self.notes,
            "congestion_control": self.congestion_control,
            "repeat": self.experiment.repeat,
            "interrupted": self.interrupted,
            "topology": self.topology,
        })
    }
}

fn link(link: &Link) -> Value {
    json!({
        "name": link.name,
        "rate": link.rate.map(|rate| rate.to_string()),
        "mtu": link.mtu,
        "delay_ms": ms(link.delay),
        "expected_mb_s": link.expected_mb_s,
        "calibrated_mb_s": link.calibrated_mb_s,
    })
}

fn row(row: &ResultRow) -> Value {
    json!({
        "test": row.test,
        "topology": row.topology,
        "policy": row.policy,
        "rw": row.rw,
        "response_ms": row.median(|sample| sample.response_ms),
        "mb": row.median(|sample| sample.mb),
        "iops": row.median(|sample| sample.iops),
        "mb_s": row.median(|sample| sample.mb_s),
        "deviance_pct": row.deviance_pct,
        "median_ms": row.median(|sample| sample.median_ms),
        "p99_ms": row.median(|sample| sample.p99_ms),
        "mb_s_after": row.median(|sample| sample.mb_s_after.unwrap_or(f64::NAN)),
        "longest_stall_ms": row.longest_ms(),
        "silence_ms": row.most(|sample| Some(sample.silence_ms)),
        "resumed_ms": row.most(|sample| sample.resumed_ms),
        "lanes_lost": row.lanes_lost(),
        "io_errors": row.errors(),
        "wrong_blocks": row.wrong_blocks(),
        "control": row.is_control,
        "counts": row.counts(),
        "limited_by_cpu": row.limited(),
        "samples": row.samples.iter().map(sample).collect::<Vec<_>>(),
    })
}

/// A cell in the columns of a row. Bare TCP has no I/Os; the time that it takes is the round trip.
fn cell_row(cell: &ResultCell) -> Value {
    json!({
        "test": format!("{} {}", cell.test, cell.name()),
        "topology": cell.topology,
        "policy": "-",
        "rw": cell.rw,
        "response_ms": cell.rtt_ms,
        "mb": cell.mb,
        "iops": Value::Null,
        "mb_s": cell.mb_s(),
        "deviance_pct": Value::Null,
        "counts": cell.counts(),
        "limited_by_cpu": cell.limited,
    })
}

fn cell(cell: &ResultCell) -> Value {
    json!({
        "test": cell.test,
        "window_bytes": cell.window.bytes,
        "mtu": cell.mtu,
        "delay_ms": ms(cell.delay),
        "rw": cell.rw,
        "mb_s": cell.mb_s(),
        "samples_mb_s": cell.samples,
        "rtt_ms": cell.rtt_ms,
        "rtt_least_ms": cell.rtt_least_ms,
        "window_bound_mb_s": cell.bound_mb_s(),
        "retransmits": cell.retransmits,
        "counts": cell.counts(),
        "limited_by_cpu": cell.limited,
    })
}

/// The rows of a comparison in the columns of a row: one for each side.
fn compared_rows(compared: &Compared) -> Vec<Value> {
    let plan = &compared.comparison.plan;
    let side = |contrast: &Contrast, arm: usize, iops: f64| {
        let name = &plan.rows[contrast.row].name;
        json!({
            "test": format!("{} {name}", compared.test),
            "topology": compared.topology,
            "policy": plan.arms[arm],
            "rw": if name.starts_with("write") { "write" } else { "read" },
            "response_ms": Value::Null,
            "mb": Value::Null,
            "iops": iops,
            "mb_s": Value::Null,
            "deviance_pct": if arm == 0 { 0.0 } else { contrast.diff_pct },
            "counts": !compared.limited[contrast.row],
            "limited_by_cpu": compared.limited[contrast.row],
        })
    };
    let contrasts = compared.comparison.contrasts.iter();
    contrasts
        .flat_map(|contrast| [side(contrast, 0, contrast.a), side(contrast, contrast.arm, contrast.b)])
        .collect()
}

/// A comparison, as `compare` writes it, and which of its rows count.
fn compared(compared: &Compared) -> Value {
    let mut value = compared.comparison.to_json();
    value["test"] = json!(compared.test);
    value["topology"] = json!(compared.topology);
    value["limited_by_cpu"] = json!(compared.limited_rows());
    value
}

fn sample(sample: &Sample) -> Value {
    let timeline = &sample.timeline;
    let paths = timeline.paths.iter().map(|(name, mb_s)| json!({ "name": name, "mb_s": mb_s }));
    let events = timeline
        .events
        .iter()
        .map(|event| json!({ "asked_ms": ms(event.asked), "at_ms": ms(event.at), "what": event.what }));
    json!({
        "repeat": sample.repeat,
        "response_ms": sample.response_ms,
        "median_ms": sample.median_ms,
        "p99_ms": sample.p99_ms,
        "longest_ms": sample.longest_ms,
        "silence_ms": sample.silence_ms,
        "resumed_ms": sample.resumed_ms,
        "mb_s_after": sample.mb_s_after,
        "lanes_lost": sample.lanes_lost,
        "mb": sample.mb,
        "iops": sample.iops,
        "mb_s": sample.mb_s,
        "errors": sample.errors,
        "first_error": sample.first_error,
        "verified_blocks": sample.verified.map(|(checked, _)| checked),
        "wrong_blocks": sample.verified.map(|(_, wrong)| wrong),
        "cpu": { "busiest": sample.cpu.busiest, "mean": sample.cpu.mean, "steal": sample.cpu.steal, "limited": sample.cpu.limited },
        "limited_by_cpu": sample.limited,
        "partial": sample.partial,
        "interval_ms": ms(timeline.interval),
        "paths": paths.collect::<Vec<_>>(),
        "events": events.collect::<Vec<_>>(),
    })
}

fn ms(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

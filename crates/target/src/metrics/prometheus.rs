//! The text that Prometheus reads (exposition format 0.0.4).

use std::fmt::{self, Write as _};

use super::{
    BackupPoint, BackupReading, DeviceReading, LimitReading, LunMetrics, MemoryReading, MetricsSnapshot,
    OperationMetrics, PrincipalMemoryReading,
};

/// The name of a counted thing and how it is told apart from others of its kind.
type Labels<'a> = Vec<(&'a str, String)>;
/// Reads one counter.
type Value = fn(&OperationMetrics) -> u64;
/// Reads one size; `None`: the backing store does not tell.
type Gauge = fn(&DeviceReading) -> Option<u64>;
/// Reads one limit of I/O; `None`: there is none.
type Limit = fn(&LimitReading) -> Option<u64>;
/// Reads one figure of a backup.
type BackupFigure = fn(&BackupPoint) -> u64;
/// Reads one counter of a principal's memory.
type MemoryCounter = fn(&PrincipalMemoryReading) -> u64;

impl MetricsSnapshot {
    /// All counters as text, media type `text/plain; version=0.0.4`. Latencies are cumulated histograms in seconds.
    pub fn prometheus(&self) -> String {
        let luns = self.luns.iter();
        let luns = luns
            .map(|lun| (vec![("target", lun.target.clone()), ("lun", lun.lun.to_string())], &lun.metrics));
        let sessions = self.sessions.iter().map(|reading| {
            let session = &reading.session;
            let labels = vec![
                ("target", session.target.clone()),
                ("initiator", session.initiator.clone()),
                ("isid", session.isid.clone()),
                ("peer", session.peer.to_string()),
            ];
            (labels, &reading.metrics)
        });
        let portals = self.portals.iter();
        let portals = portals.map(|portal| (vec![("portal", portal.portal.to_string())], &portal.metrics));

        let mut page = Page::default();
        page.family("lunway_sessions", "gauge", "Sessions now.");
        page.line("lunway_sessions", &[], self.sessions.len());
        page.family("lunway_logins_total", "counter", "Logins by their result.");
        for (result, count) in [("succeeded", self.logins), ("refused", self.logins_refused)] {
            page.line("lunway_logins_total", &[("result", result.to_owned())], count);
        }
        page.family("lunway_chap_failures_total", "counter", "Wrong CHAP responses of initiators.");
        page.line("lunway_chap_failures_total", &[], self.chap_failures);
        page.family(
            "lunway_chap_delayed_total",
            "counter",
            "CHAP responses that waited, or were refused unchecked.",
        );
        page.line("lunway_chap_delayed_total", &[], self.chap_delayed);
        page.family("lunway_warnings", "gauge", "Warnings about the configuration.");
        for warning in &self.warnings {
            page.line("lunway_warnings", &[("kind", warning.kind.name().to_owned())], warning.count);
        }
        page.family(
            "lunway_snapshots_broken_total",
            "counter",
            "Snapshots that were lost: their area full, failed or too slow.",
        );
        page.line("lunway_snapshots_broken_total", &[], self.snapshots_broken);
        page.backups(&self.backups);
        page.memory(&self.memory);
        let of_luns = self.lun_limits.iter().map(|of| {
            let labels = vec![("target", of.target.clone()), ("lun", of.lun.to_string())];
            (labels, &of.limit)
        });
        page.limits("lun", &of_luns.collect::<Vec<_>>());
        let of_initiators = self.initiator_limits.iter();
        let of_initiators = of_initiators.map(|of| (vec![("initiator", of.initiator.clone())], &of.limit));
        page.limits("initiator", &of_initiators.collect::<Vec<_>>());
        page.devices(&self.devices);
        page.family("lunway_portal_sessions", "gauge", "Sessions that came by a portal.");
        for portal in &self.portals {
            page.line("lunway_portal_sessions", &[("portal", portal.portal.to_string())], portal.sessions);
        }
        page.metrics("lun", &luns.collect::<Vec<_>>());
        page.metrics("session", &sessions.collect::<Vec<_>>());
        page.metrics("portal", &portals.collect::<Vec<_>>());
        page.0
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn line(&mut self, name: &str, labels: &[(&str, String)], value: impl fmt::Display) {
        self.write(format_args!("{name}"));
        for (at, (label, text)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            // Names of initiators are the peers' own: nothing in them may end the quotes.
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.write(format_args!("{open}{label}=\"{text}\""));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        self.write(format_args!("{close} {value}\n"));
    }

    fn write(&mut self, arguments: fmt::Arguments<'_>) {
        self.0.write_fmt(arguments).expect("writing to a String does not fail");
    }

    /// Memory for data in flight.
    fn memory(&mut self, memory: &MemoryReading) {
        self.family("lunway_memory_bytes", "gauge", "Memory for data in flight that principals share.");
        self.line("lunway_memory_bytes", &[], memory.used);
        self.family("lunway_memory_limit_bytes", "gauge", "Limit of that memory.");
        self.line("lunway_memory_limit_bytes", &[], memory.limit);
        self.family("lunway_memory_waits_total", "counter", "Commands that waited for memory.");
        self.line("lunway_memory_waits_total", &[], memory.waits);
        self.family(
            "lunway_memory_refused_total",
            "counter",
            "Commands that were refused for lack of memory.",
        );
        self.line("lunway_memory_refused_total", &[], memory.refused);
        let labels = |of: &PrincipalMemoryReading| [("principal", of.principal.clone())];
        self.family("lunway_principal_memory_bytes", "gauge", "Memory for data in flight of a principal.");
        for of in &memory.principals {
            self.line("lunway_principal_memory_bytes", &labels(of), of.used);
        }
        let families: [(&str, &str, MemoryCounter); 2] = [
            (
                "lunway_principal_memory_waits_total",
                "Commands of a principal that waited for memory.",
                |of| of.waits,
            ),
            (
                "lunway_principal_memory_refused_total",
                "Commands of a principal that were refused for lack of memory.",
                |of| of.refused,
            ),
        ];
        for (name, help, value) in families {
            self.family(name, "counter", help);
            for of in &memory.principals {
                self.line(name, &labels(of), value(of));
            }
        }
    }

    /// Limits of I/O, of logical units or initiators.
    fn limits(&mut self, of: &str, readings: &[(Labels<'_>, &LimitReading)]) {
        let gauges: [(&str, &str, Limit); 2] = [
            ("iops_limit", "Commands per second that may read or change the medium.", |of| of.iops),
            ("rate_limit_bytes", "Bytes per second that these may move.", |of| of.bytes_per_second),
        ];
        for (what, help, value) in gauges {
            let name = format!("lunway_{of}_{what}");
            self.family(&name, "gauge", help);
            for (labels, limit) in readings {
                if let Some(value) = value(limit) {
                    self.line(&name, labels, value);
                }
            }
        }
        let name = format!("lunway_{of}_throttled_total");
        self.family(&name, "counter", "Commands that waited for the limit.");
        for (labels, limit) in readings {
            self.line(&name, labels, limit.throttled);
        }
        let name = format!("lunway_{of}_throttled_seconds_total");
        self.family(&name, "counter", "Time that they waited, all together.");
        for (labels, limit) in readings {
            self.line(&name, labels, seconds(limit.throttled_us_total));
        }
    }

    /// Backup runs of logical units.
    fn backups(&mut self, backups: &[BackupReading]) {
        let labels = |of: &BackupReading| {
            let (target, lun) = (of.target.clone(), of.lun.to_string());
            vec![("target", target), ("lun", lun), ("destination", of.destination.clone())]
        };
        self.family("lunway_backup_runs_total", "counter", "Backup runs by their result.");
        for of in backups {
            for (result, count) in [("succeeded", of.succeeded), ("failed", of.failed)] {
                let labels = [labels(of), vec![("result", result.to_owned())]].concat();
                self.line("lunway_backup_runs_total", &labels, count);
            }
        }
        let last = |of: &BackupReading| Some((of.last_success?, of.last_point.clone()?));
        let points = || backups.iter().filter_map(|of| Some((labels(of), last(of)?)));
        let name = "lunway_backup_last_success_timestamp_seconds";
        self.family(name, "gauge", "End of the last backup run that made a point.");
        for (labels, (time, _)) in points() {
            self.line(name, &labels, time);
        }
        self.family("lunway_backup_last_duration_seconds", "gauge", "Duration of that run.");
        for (labels, (_, point)) in points() {
            self.line("lunway_backup_last_duration_seconds", &labels, point.seconds);
        }
        let figures: [(&str, &str, BackupFigure); 5] = [
            ("full", "That run made a full backup.", |point| point.full.into()),
            ("changed_bytes", "Bytes that differed.", |point| point.changed_bytes),
            ("read_bytes", "Bytes that were read.", |point| point.read_bytes),
            ("sent_bytes", "Bytes that were sent.", |point| point.sent_bytes),
            ("stored_bytes", "Bytes that the point takes.", |point| point.stored_bytes),
        ];
        for (name, help, value) in figures {
            let name = format!("lunway_backup_last_{name}");
            self.family(&name, "gauge", help);
            for (labels, (_, point)) in points() {
                self.line(&name, &labels, value(&point));
            }
        }
    }

    /// Size and space of logical units.
    fn devices(&mut self, devices: &[DeviceReading]) {
        let gauges: [(&str, &str, Gauge); 6] = [
            ("lunway_lun_size_bytes", "What initiators see.", |of| Some(of.size)),
            (
                "lunway_lun_allocated_bytes",
                "Bytes that a logical unit occupies in its backing store.",
                |of| Some(of.space.as_ref()?.allocated),
            ),
            ("lunway_lun_backing_used_bytes", "What everything in the backing store takes.", |of| {
                Some(of.space.as_ref()?.used)
            }),
            ("lunway_lun_backing_available_bytes", "Free bytes of the backing store.", |of| {
                Some(of.space.as_ref()?.available)
            }),
            (
                "lunway_lun_pull_left_bytes",
                "Bytes that the disk still takes from a point of a backup.",
                |of| Some(of.pull.as_ref()?.left),
            ),
            ("lunway_lun_pull_failing", "1 if that does not get on.", |of| {
                Some(of.pull.as_ref()?.error.is_some().into())
            }),
        ];
        for (name, help, value) in gauges {
            self.family(name, "gauge", help);
            for device in devices {
                let labels = [("target", device.target.clone()), ("lun", device.lun.to_string())];
                if let Some(value) = value(device) {
                    self.line(name, &labels, value);
                }
            }
        }
    }

    /// The same families for logical units, sessions and portals.
    fn metrics(&mut self, of: &str, readings: &[(Labels<'_>, &LunMetrics)]) {
        let counters: [(&str, &str, Value); 4] = [
            ("operations", "Commands that have ended.", |of| of.operations),
            ("bytes", "Bytes of commands that succeeded.", |of| of.bytes),
            ("failed", "Commands that the device could not carry out.", |of| of.failed),
            ("refused", "Commands refused: mistakes, unit attentions, reservations.", |of| of.refused),
        ];
        for (what, help, value) in counters {
            let name = format!("lunway_{of}_{what}_total");
            self.family(&name, "counter", help);
            for (labels, operation) in operations(readings) {
                self.line(&name, &labels, value(operation));
            }
        }
        let name = format!("lunway_{of}_device_failures_total");
        self.family(&name, "counter", "Commands that the device could not carry out, by cause.");
        for (labels, metrics) in readings {
            for failure in &metrics.failures {
                let mut labels = labels.clone();
                labels.push(("cause", failure.cause.to_string()));
                self.line(&name, &labels, failure.count);
            }
        }
        let name = format!("lunway_{of}_queue");
        self.family(&name, "gauge", "Commands that the device has now.");
        for (labels, metrics) in readings {
            self.line(&name, labels, metrics.queue);
        }
        let name = format!("lunway_{of}_latency_seconds");
        self.family(&name, "histogram", "Time from a command's arrival to its answer.");
        for (labels, operation) in operations(readings).filter(|(_, of)| of.operations > 0) {
            self.histogram(&name, &labels, operation);
        }
    }

    fn histogram(&mut self, name: &str, labels: &Labels<'_>, operation: &OperationMetrics) {
        let bucket = format!("{name}_bucket");
        let within = |bound: String| {
            let mut labels = labels.clone();
            labels.push(("le", bound));
            labels
        };
        let (mut sum, last) = (0, operation.latency_us_log2.len().saturating_sub(1));
        for (at, count) in operation.latency_us_log2[..last].iter().enumerate() {
            sum += count;
            self.line(&bucket, &within(seconds(1 << at)), sum);
        }
        sum += operation.latency_us_log2.get(last).unwrap_or(&0);
        self.line(&bucket, &within("+Inf".to_owned()), sum);
        self.line(&format!("{name}_sum"), labels, seconds(operation.latency_us_total));
        self.line(&format!("{name}_count"), labels, sum);
    }
}

/// Every kind of operation of every reading, with its label.
fn operations<'a>(
    readings: &'a [(Labels<'a>, &'a LunMetrics)],
) -> impl Iterator<Item = (Labels<'a>, &'a OperationMetrics)> {
    readings.iter().flat_map(|(labels, metrics)| {
        metrics.operations.iter().map(|operation| {
            let mut labels = labels.clone();
            labels.push(("operation", operation.operation.to_string()));
            (labels, operation)
        })
    })
}

/// Microseconds as seconds, exactly.
fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::super::counters::{Counters, Ending, Kind};
    use super::super::{
        BackupPoint, BackupReading, InitiatorLimitReading, LimitReading, LunLimitReading, LunReading,
        MemoryReading, MetricsSnapshot, PrincipalMemoryReading,
    };
    use std::time::Duration;

    #[test]
    fn histograms_are_cumulated_and_labels_cannot_break_out_of_their_quotes() {
        let counters = Counters::default();
        for micros in [1, 100, 100, u64::MAX / 2] {
            counters.ended(Kind::Read, Ending::Good, 4096);
            counters.took(Kind::Read, 1, Duration::from_micros(micros));
        }
        let lun = LunReading { target: "a\"b\\c".to_owned(), lun: 3, metrics: counters.snapshot() };
        let limit = LimitReading {
            iops: Some(500),
            bytes_per_second: None,
            throttled: 8,
            throttled_us_total: 2_500_000,
        };
        let snapshot = MetricsSnapshot {
            luns: vec![lun],
            sessions: Vec::new(),
            portals: Vec::new(),
            logins: 5,
            logins_refused: 1,
            chap_failures: 4,
            chap_delayed: 2,
            snapshots_broken: 3,
            backups: vec![BackupReading {
                target: "t".to_owned(),
                lun: 1,
                destination: "/mnt/b".to_owned(),
                succeeded: 4,
                failed: 2,
                last_success: Some(1_700_000_000),
                last_point: Some(BackupPoint {
                    point: "p".to_owned(),
                    full: true,
                    why: "it is the first".to_owned(),
                    changed_bytes: 1,
                    read_bytes: 2,
                    sent_bytes: 3,
                    stored_bytes: 4,
                    seconds: 1.5,
                }),
                error: None,
            }],
            memory: MemoryReading {
                limit: 1 << 30,
                used: 5 << 20,
                waits: 7,
                principals: vec![PrincipalMemoryReading {
                    principal: "user:joe".to_owned(),
                    used: 3 << 20,
                    waits: 6,
                    refused: 2,
                }],
                ..MemoryReading::default()
            },
            lun_limits: vec![LunLimitReading { target: "t".to_owned(), lun: 1, limit: limit.clone() }],
            initiator_limits: vec![InitiatorLimitReading { initiator: "i".to_owned(), limit }],
            devices: Vec::new(),
            warnings: Vec::new(),
        };
        let page = snapshot.prometheus();
        let backup = "target=\"t\",lun=\"1\",destination=\"/mnt/b\"";
        let labels = "target=\"a\\\"b\\\\c\",lun=\"3\"";
        for line in [
            "lunway_sessions 0".to_owned(),
            "lunway_logins_total{result=\"refused\"} 1".to_owned(),
            format!("lunway_backup_runs_total{{{backup},result=\"failed\"}} 2"),
            format!("lunway_backup_last_success_timestamp_seconds{{{backup}}} 1700000000"),
            format!("lunway_backup_last_duration_seconds{{{backup}}} 1.5"),
            format!("lunway_backup_last_full{{{backup}}} 1"),
            format!("lunway_backup_last_sent_bytes{{{backup}}} 3"),
            "lunway_lun_iops_limit{target=\"t\",lun=\"1\"} 500".to_owned(),
            "lunway_lun_throttled_total{target=\"t\",lun=\"1\"} 8".to_owned(),
            "lunway_initiator_throttled_seconds_total{initiator=\"i\"} 2.500000".to_owned(),
            "lunway_memory_bytes 5242880".to_owned(),
            "lunway_memory_waits_total 7".to_owned(),
            "lunway_principal_memory_bytes{principal=\"user:joe\"} 3145728".to_owned(),
            "lunway_principal_memory_refused_total{principal=\"user:joe\"} 2".to_owned(),
            format!("lunway_lun_operations_total{{{labels},operation=\"read\"}} 4"),
            format!("lunway_lun_bytes_total{{{labels},operation=\"read\"}} 16384"),
            format!("lunway_lun_latency_seconds_bucket{{{labels},operation=\"read\",le=\"0.000001\"}} 1"),
            format!("lunway_lun_latency_seconds_bucket{{{labels},operation=\"read\",le=\"0.000128\"}} 3"),
            format!("lunway_lun_latency_seconds_bucket{{{labels},operation=\"read\",le=\"+Inf\"}} 4"),
            format!("lunway_lun_latency_seconds_count{{{labels},operation=\"read\"}} 4"),
        ] {
            assert!(page.lines().any(|have| have == line), "{line}\n{page}");
        }
    }
}

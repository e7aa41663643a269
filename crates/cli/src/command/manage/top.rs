//! `lunway top`.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use lunway_block::duration::parse_duration;
use lunway_console::Client;
use lunway_report::response_time;
use lunway_target::{LunReading, MetricsSnapshot, Rates, SessionReading};
use serde_json::{Value, json};

use super::{Daemon, failure};
use crate::command::paths::live::Live;
use crate::failure::Failure;
use crate::interrupt::Requests;
use crate::screen::redrawn;
use crate::{device, terminal};

/// Show the load of a running daemon's LUNs and sessions, or of the paths to a disk.
///
/// For a disk it opens lanes of its own and shows those: the I/O of other programs is not included. --load reads the
/// disk, to produce load.
#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-C ends it. `lunway doctor` says what is wrong with a set-up.

Examples:
  lunway top
  lunway top --once --json        # one interval, for programs
  lunway top san/paths.toml --load")]
pub(crate) struct Top {
    /// A disk with several paths [default: the daemon]
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    /// Read at random from the disk, 1 MiB at a time
    #[arg(long, requires = "device")]
    load: bool,
    /// Time between updates: 500ms, 5s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Show one interval, then exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    daemon: Daemon,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    let possible = Duration::from_millis(100)..=Duration::from_secs(3600);
    possible.contains(&interval).then_some(interval).ok_or_else(|| "100ms to 1h are possible".to_owned())
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(device) = self.device {
            let interval = self.interval;
            let (once, json, load) = (self.once, self.daemon.json, self.load);
            return Live { device, interval, once, json, load }.run();
        }
        let client = self.daemon.client()?;
        let doctor = match self.daemon.json {
            true => String::new(),
            false => crate::command::doctor::of_daemon(&self.daemon.address),
        };
        let interval = self.interval;
        device::run(async {
            let mut requests = Requests::new().map_err(Failure::failed)?;
            let mut before = snapshot(&client).await?;
            let mut since = Instant::now();
            loop {
                tokio::select! {
                    () = tokio::time::sleep(interval) => {}
                    () = requests.next() => return Ok(()),
                }
                let now = snapshot(&client).await?;
                let shown = Interval { before, now, elapsed: since.elapsed() };
                since = Instant::now();
                if self.daemon.json {
                    terminal::print_json(&shown.document())?;
                } else {
                    terminal::print(&shown.screen(&doctor, !self.once && io::stdout().is_terminal()))?;
                }
                if self.once {
                    return Ok(());
                }
                before = shown.now;
            }
        })
    }
}

async fn snapshot(client: &Client) -> Result<MetricsSnapshot, Failure> {
    let document = client.get("/v1/metrics").await.map_err(failure)?;
    let snapshot =
        serde_json::from_value(document).context("the daemon is of another version: its counters differ");
    snapshot.map_err(Failure::failed)
}

/// Two snapshots of a daemon's counters.
struct Interval {
    before: MetricsSnapshot,
    now: MetricsSnapshot,
    elapsed: Duration,
}

impl Interval {
    fn luns(&self) -> impl Iterator<Item = (&LunReading, Rates)> {
        let known: HashMap<_, _> =
            self.before.luns.iter().map(|lun| ((&lun.target, lun.lun), &lun.metrics)).collect();
        self.now.luns.iter().map(move |lun| {
            let before = known.get(&(&lun.target, lun.lun)).copied();
            (lun, Rates::between(before, &lun.metrics, self.elapsed))
        })
    }

    fn sessions(&self) -> impl Iterator<Item = (&SessionReading, Rates)> {
        // A TSIH may be given again: the time of the login tells which session it is.
        let name = |reading: &SessionReading| (reading.session.tsih, reading.session.since);
        let known: HashMap<_, _> =
            self.before.sessions.iter().map(|reading| (name(reading), &reading.metrics)).collect();
        self.now.sessions.iter().map(move |reading| {
            let before = known.get(&name(reading)).copied();
            (reading, Rates::between(before, &reading.metrics, self.elapsed))
        })
    }

    fn document(&self) -> Value {
        let luns = self.luns().map(|(lun, rates)| {
            let mut row = document(&rates);
            row["target"] = json!(lun.target);
            row["lun"] = json!(lun.lun);
            row
        });
        let sessions = self.sessions().map(|(SessionReading { session, .. }, rates)| {
            let mut row = document(&rates);
            row["tsih"] = json!(session.tsih);
            row["initiator"] = json!(session.initiator);
            row["target"] = json!(session.target);
            row["peer"] = json!(session.peer);
            row
        });
        json!({
            "interval_s": self.elapsed.as_secs_f64(),
            "luns": luns.collect::<Vec<_>>(),
            "sessions": sessions.collect::<Vec<_>>(),
        })
    }

    /// `doctor`: what is wrong with the daemon's set-up, or nothing.
    fn screen(&self, doctor: &str, live: bool) -> String {
        const RATES: [&str; 8] =
            ["READS/s", "READ", "WRITES/s", "WRITTEN", "OTHER/s", "LATENCY", "QUEUE", "ERRORS/s"];
        fn row<const N: usize, const ALL: usize>(name: [String; N], rates: &Rates) -> [String; ALL] {
            let mut cells = name.into_iter().chain(cells(rates));
            std::array::from_fn(|_| cells.next().unwrap_or_default())
        }
        fn headings<const ALL: usize>(name: &[&'static str]) -> [&'static str; ALL] {
            let mut cells = name.iter().copied().chain(RATES);
            std::array::from_fn(|_| cells.next().unwrap_or_default())
        }
        let luns = self.luns().map(|(lun, rates)| row([lun.target.clone(), lun.lun.to_string()], &rates));
        let luns: Vec<[String; 10]> = luns.collect();
        let sessions = self.sessions().map(|(SessionReading { session, .. }, rates)| {
            row([session.tsih.to_string(), session.initiator.clone(), session.peer.to_string()], &rates)
        });
        let sessions: Vec<[String; 11]> = sessions.collect();
        let luns = terminal::table(headings(&["TARGET", "LUN"]), &luns, "no logical unit has done anything");
        let sessions = terminal::table(headings(&["TSIH", "INITIATOR", "FROM"]), &sessions, "no sessions");
        let blocks = [luns.as_str(), &sessions, doctor];
        let text = blocks.into_iter().filter(|block| !block.is_empty()).collect::<Vec<_>>().join("\n\n");
        if live { redrawn(&text) } else { text }
    }
}

fn document(rates: &Rates) -> Value {
    json!({
        "read_iops": rates.read_iops, "read_bytes_per_s": rates.read_bytes,
        "write_iops": rates.write_iops, "write_bytes_per_s": rates.write_bytes,
        "other_iops": rates.other_iops, "errors_per_s": rates.errors,
        "latency_us": rates.latency_us, "queue": rates.queue,
    })
}

fn cells(rates: &Rates) -> [String; 8] {
    let rate = |bytes: f64| format!("{:.1} MB/s", bytes / 1e6);
    [
        format!("{:.0}", rates.read_iops),
        rate(rates.read_bytes),
        format!("{:.0}", rates.write_iops),
        rate(rates.write_bytes),
        format!("{:.0}", rates.other_iops),
        latency(rates.latency_us),
        rates.queue.to_string(),
        format!("{:.0}", rates.errors),
    ]
}

/// Mean latency; nothing where there was no operation.
fn latency(us: f64) -> String {
    if us > 0.0 { response_time(us / 1000.0) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(reads: u64, queue: u64) -> MetricsSnapshot {
        let read = json!({
            "operation": "read", "operations": reads, "bytes": reads * 4096, "failed": 0, "refused": 0,
            "latency_us_total": reads * 50, "latency_us_log2": [],
        });
        let lun = json!({
            "target": "iqn.t", "lun": 0, "operations": [read], "failures": [], "queue": queue,
        });
        let snapshot = json!({
            "luns": [lun], "sessions": [], "portals": [], "logins": 0, "logins_refused": 0,
            "chap_failures": 0, "chap_delayed": 0, "snapshots_broken": 0, "devices": [], "warnings": [],
        });
        serde_json::from_value(snapshot).unwrap()
    }

    fn interval() -> Interval {
        let elapsed = Duration::from_secs(2);
        Interval { before: metrics(100, 1), now: metrics(300, 5), elapsed }
    }

    #[test]
    fn programs_get_the_rates_of_each_logical_unit() {
        let shown = interval().document();
        let lun = &shown["luns"][0];
        assert_eq!((&lun["target"], &lun["read_iops"]), (&json!("iqn.t"), &json!(100.0)));
        assert_eq!((&lun["latency_us"], &lun["queue"]), (&json!(50.0), &json!(5)));
        assert_eq!(shown["interval_s"], json!(2.0));
    }

    #[test]
    fn the_screen_is_redrawn_in_place_only_on_a_terminal() {
        let text = interval().screen("", false);
        assert!(text.contains("iqn.t") && text.contains("no sessions") && !text.contains('\x1b'), "{text}");
        assert!(interval().screen("", true).starts_with("\x1b[H"));
    }
}

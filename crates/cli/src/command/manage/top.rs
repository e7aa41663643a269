//! `lunway top`.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::Args;
use lunway_block::duration::parse_duration;
use lunway_report::response_time;
use serde_json::{Value, json};

use super::{Daemon, failure, rows, text};
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
Ctrl-C ends it.

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

/// What one thing did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    read_iops: f64,
    read_bytes: f64,
    write_iops: f64,
    write_bytes: f64,
    other_iops: f64,
    errors: f64,
    /// Of reads and writes, microseconds; 0 without any.
    latency_us: f64,
    /// Commands at the device at the end.
    queue: u64,
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(device) = self.device {
            let interval = self.interval;
            let (once, json, load) = (self.once, self.daemon.json, self.load);
            return Live { device, interval, once, json, load }.run();
        }
        let client = self.daemon.client()?;
        let interval = self.interval;
        device::run(async {
            let mut requests = Requests::new().map_err(Failure::failed)?;
            let mut before = client.get("/v1/metrics").await.map_err(failure)?;
            let mut since = Instant::now();
            loop {
                tokio::select! {
                    () = tokio::time::sleep(interval) => {}
                    () = requests.next() => return Ok(()),
                }
                let now = client.get("/v1/metrics").await.map_err(failure)?;
                let elapsed = since.elapsed().as_secs_f64();
                since = Instant::now();
                if self.daemon.json {
                    terminal::print_json(&document(&before, &now, elapsed))?;
                } else {
                    terminal::print(&screen(
                        &before,
                        &now,
                        elapsed,
                        !self.once && io::stdout().is_terminal(),
                    ))?;
                }
                if self.once {
                    return Ok(());
                }
                before = now;
            }
        })
    }
}

/// The rates of everything in a list, by what names it.
fn rates<'v>(
    before: &Value,
    now: &'v Value,
    list: &str,
    name: impl Fn(&Value) -> String,
    elapsed: f64,
) -> Vec<(&'v Value, Rates)> {
    let known: HashMap<_, _> = rows(before, list).iter().map(|thing| (name(thing), thing)).collect();
    // What was not there before began with nothing.
    rows(now, list)
        .iter()
        .map(|thing| (thing, Rates::of(known.get(&name(thing)).copied(), thing, elapsed)))
        .collect()
}

fn lun_name(lun: &Value) -> String {
    format!("{}/{}", lun["target"], lun["lun"])
}

fn session_name(session: &Value) -> String {
    format!("{}/{}", session["tsih"], session["since"])
}

impl Rates {
    fn of(before: Option<&Value>, now: &Value, elapsed: f64) -> Self {
        let sum = |thing: &Value, key: &str, kinds: &dyn Fn(&str) -> bool| -> u64 {
            let operations = rows(thing, "operations").iter();
            let operations =
                operations.filter(|operation| kinds(operation["operation"].as_str().unwrap_or("")));
            operations.filter_map(|operation| operation[key].as_u64()).sum()
        };
        // A counter that is smaller than before began anew.
        let more = |key: &str, kinds: &dyn Fn(&str) -> bool| {
            let known = before.map_or(0, |before| sum(before, key, kinds));
            sum(now, key, kinds).saturating_sub(known) as f64
        };
        let per_second = |key: &str, kinds: &dyn Fn(&str) -> bool| more(key, kinds) / elapsed;
        let (read, write) = (|kind: &str| kind == "read", |kind: &str| kind == "write");
        let data = |kind: &str| read(kind) || write(kind);
        let count = more("operations", &data);
        Self {
            read_iops: per_second("operations", &read),
            read_bytes: per_second("bytes", &read),
            write_iops: per_second("operations", &write),
            write_bytes: per_second("bytes", &write),
            other_iops: per_second("operations", &|kind| !data(kind)),
            errors: per_second("failed", &|_| true),
            latency_us: if count > 0.0 { more("latency_us_total", &data) / count } else { 0.0 },
            queue: now["queue"].as_u64().unwrap_or(0),
        }
    }

    fn json(&self) -> Value {
        json!({
            "read_iops": self.read_iops, "read_bytes_per_s": self.read_bytes,
            "write_iops": self.write_iops, "write_bytes_per_s": self.write_bytes,
            "other_iops": self.other_iops, "errors_per_s": self.errors,
            "latency_us": self.latency_us, "queue": self.queue,
        })
    }

    fn cells(&self) -> [String; 8] {
        let rate = |bytes: f64| format!("{:.1} MB/s", bytes / 1e6);
        [
            format!("{:.0}", self.read_iops),
            rate(self.read_bytes),
            format!("{:.0}", self.write_iops),
            rate(self.write_bytes),
            format!("{:.0}", self.other_iops),
            latency(self.latency_us),
            self.queue.to_string(),
            format!("{:.0}", self.errors),
        ]
    }
}

fn document(before: &Value, now: &Value, elapsed: f64) -> Value {
    let with = |thing: &Value, keys: &[&str], rates: &Rates| {
        let mut row = rates.json();
        keys.iter().for_each(|key| row[*key] = thing[*key].clone());
        row
    };
    let luns = rates(before, now, "luns", lun_name, elapsed);
    let luns: Vec<_> = luns.iter().map(|(lun, rates)| with(lun, &["target", "lun"], rates)).collect();
    let sessions = rates(before, now, "sessions", session_name, elapsed);
    let keys = ["tsih", "initiator", "target", "peer"];
    let sessions: Vec<_> = sessions.iter().map(|(session, rates)| with(session, &keys, rates)).collect();
    json!({ "interval_s": elapsed, "luns": luns, "sessions": sessions })
}

fn screen(before: &Value, now: &Value, elapsed: f64, live: bool) -> String {
    const RATES: [&str; 8] =
        ["READS/s", "READ", "WRITES/s", "WRITTEN", "OTHER/s", "LATENCY", "QUEUE", "ERRORS/s"];
    fn row<const N: usize, const ALL: usize>(name: [String; N], rates: &Rates) -> [String; ALL] {
        let mut cells = name.into_iter().chain(rates.cells());
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    }
    fn headings<const ALL: usize>(name: &[&'static str]) -> [&'static str; ALL] {
        let mut cells = name.iter().copied().chain(RATES);
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    }
    let luns = rates(before, now, "luns", lun_name, elapsed);
    let luns: Vec<[String; 10]> =
        luns.iter().map(|(lun, rates)| row([text(lun, "target"), text(lun, "lun")], rates)).collect();
    let sessions = rates(before, now, "sessions", session_name, elapsed);
    let sessions: Vec<[String; 11]> = sessions
        .iter()
        .map(|(session, rates)| {
            row([text(session, "tsih"), text(session, "initiator"), text(session, "peer")], rates)
        })
        .collect();
    let luns = terminal::table(headings(&["TARGET", "LUN"]), &luns, "no logical unit has done anything");
    let sessions = terminal::table(headings(&["TSIH", "INITIATOR", "FROM"]), &sessions, "no sessions");
    let text = format!("{luns}\n\n{sessions}");
    if !live {
        return text;
    }
    redrawn(&text)
}

/// Mean latency; nothing where there was no operation.
fn latency(us: f64) -> String {
    if us > 0.0 { response_time(us / 1000.0) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(reads: u64, queue: u64) -> Value {
        let read = json!({ "operation": "read", "operations": reads, "bytes": reads * 4096, "failed": 0, "latency_us_total": reads * 50 });
        let other = json!({ "operation": "other", "operations": 2 * reads, "bytes": 0, "failed": 1, "latency_us_total": 7 });
        json!({ "luns": [{ "target": "iqn.t", "lun": 0, "operations": [read, other], "queue": queue }], "sessions": [] })
    }

    #[test]
    fn rates_are_differences_by_time() {
        let shown = document(&metrics(100, 1), &metrics(300, 5), 2.0);
        let lun = &shown["luns"][0];
        assert_eq!((&lun["read_iops"], &lun["read_bytes_per_s"]), (&json!(100.0), &json!(409_600.0)));
        assert_eq!(
            (&lun["other_iops"], &lun["latency_us"], &lun["queue"]),
            (&json!(200.0), &json!(50.0), &json!(5))
        );
        assert_eq!(lun["errors_per_s"], json!(0.0));
    }

    #[test]
    fn what_began_anew_has_no_negative_rate() {
        let shown = document(&metrics(300, 1), &metrics(100, 1), 1.0);
        assert_eq!(shown["luns"][0]["read_iops"], json!(0.0));
        let shown = document(&json!({}), &metrics(100, 1), 1.0);
        assert_eq!(shown["luns"][0]["read_iops"], json!(100.0));
    }

    #[test]
    fn the_screen_is_redrawn_in_place_only_on_a_terminal() {
        let text = screen(&metrics(0, 0), &metrics(100, 3), 1.0, false);
        assert!(text.contains("iqn.t") && text.contains("no sessions") && !text.contains('\x1b'), "{text}");
        assert!(screen(&metrics(0, 0), &metrics(100, 3), 1.0, true).starts_with("\x1b[H"));
    }
}

//! `lunway lun compact`.

use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_console::Method;
use serde_json::{Value, json};

use super::{Daemon, text};
use crate::failure::Failure;
use crate::freezing::Freezing;
use crate::{interrupt, progress, terminal};

/// Interval at which the daemon is asked for its progress.
const POLL: Duration = Duration::from_millis(300);

/// The time after which a compaction that does not get on is remarked on: as long as the default rate needs for two of
/// the largest blocks.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// The time for which its end is waited for once it was asked for: it ends between two pieces of a block, unless the
/// disk does not answer.
const STOP_TIME: Duration = Duration::from_secs(3);

/// Options of a compaction of a logical unit.
#[derive(Debug, Args)]
pub(super) struct Compacting {
    /// Move at most this many bytes per second; fewer while initiators use the disk
    #[arg(long, value_name = "RATE", default_value = "64M", value_parser = lunway_block::rate::parse_rate)]
    rate: NonZeroU64,
    #[command(flatten)]
    freezing: Freezing,
    /// Do not wait for the compaction to end
    #[arg(long, conflicts_with_all = ["status", "cancel"])]
    background: bool,
    /// Show the progress of the last compaction
    #[arg(long, conflicts_with = "freeze")]
    status: bool,
    /// Stop the running compaction; the next one continues
    #[arg(long, conflicts_with_all = ["status", "freeze"])]
    cancel: bool,
    #[command(flatten)]
    daemon: Daemon,
}

impl Compacting {
    /// `path`: of the logical unit.
    pub(super) fn run(&self, path: &str) -> Result<(), Failure> {
        let unit = path;
        let path = format!("{unit}/compaction");
        if self.status || self.cancel {
            let method = if self.cancel { Method::DELETE } else { Method::GET };
            return self.print(&self.daemon.ask(method, &path, None)?);
        }
        let compact = |left: Option<Duration>| {
            let mut orders = json!({ "rate": self.rate });
            if let Some(left) = left {
                (orders["frozen"], orders["deadline_s"]) = (json!(true), json!(left.as_secs().max(1)));
            }
            self.daemon.address.ask_within(left, Method::POST, &path, Some(&orders))
        };
        // No guest is frozen for a daemon or a LUN that is not there.
        if self.freezing.is_asked_for() {
            self.daemon.ask(Method::GET, unit, None)?;
        }
        let begun = self.freezing.around(compact, |_late| {
            let _ = self.daemon.ask(Method::DELETE, &path, None);
        })?;
        if self.background { self.print(&begun) } else { self.wait(&path, begun) }
    }

    /// Shows how far it is, until it has ended. Ctrl-C ends it.
    fn wait(&self, path: &str, mut now: Value) -> Result<(), Failure> {
        let cancel = interrupt::watch();
        interrupt::waits_for(|| "the daemon".to_owned());
        interrupt::leaves("the compaction goes on: --cancel stops it, and --status shows how far it is");
        let bar = progress::bytes("compacting", 0);
        let mut asked: Option<Instant> = None;
        let (mut moved_at, mut said) = (Instant::now(), false);
        while is_under_way(&now) {
            match asked {
                None if cancel.is_cancelled() => {
                    asked = Some(Instant::now());
                    self.daemon.ask(Method::DELETE, path, None)?;
                    now = self.daemon.ask(Method::GET, path, None)?;
                    continue;
                }
                Some(at) if at.elapsed() >= STOP_TIME => {
                    bar.finish_and_clear();
                    return Err(Failure::failed(anyhow!(
                        "interrupted: the compaction was asked to stop, and stops when the host's disk answers, which it \
                         has not for {} s (is its file system frozen?); the LUN is whole, and --status shows when it has \
                         stopped",
                        STOP_TIME.as_secs()
                    )));
                }
                _ => {}
            }
            let bytes = |key: &str| now[key].as_u64().unwrap_or(0);
            bar.set_length(bytes("dropped") + bytes("moved") + bytes("left"));
            bar.set_position(bytes("dropped") + bytes("moved"));
            thread::sleep(POLL);
            let before = now;
            now = self.daemon.ask(Method::GET, path, None)?;
            if now != before {
                (moved_at, said) = (Instant::now(), false);
            } else if moved_at.elapsed() >= STALLED_AFTER && !said {
                said = true;
                terminal::say(&format!(
                    "nothing was moved for {} s: the compaction waits for its --rate, for a disk that initiators keep \
                     busy, or for the host's disk, which hangs or whose file system is frozen; Ctrl-C stops it",
                    STALLED_AFTER.as_secs()
                ));
            }
        }
        bar.finish_and_clear();
        if let Some(error) = now["error"].as_str() {
            return Err(Failure::failed(anyhow!("{}", terminal::clean(error))));
        }
        self.print(&now)
    }

    fn print(&self, summary: &Value) -> Result<(), Failure> {
        if self.daemon.json { terminal::print_json(summary) } else { terminal::print(&sentence(summary)) }
    }
}

fn is_under_way(summary: &Value) -> bool {
    matches!(summary["state"].as_str(), Some("mapping" | "dropping" | "moving"))
}

fn sentence(summary: &Value) -> String {
    let size = |key: &str| HumanSize(summary[key].as_u64().unwrap_or(0));
    let (state, error) = (text(summary, "state"), text(summary, "error"));
    let left = match is_under_way(summary) {
        true => format!(", {} left", size("left")),
        false => String::new(),
    };
    let why = if error.is_empty() { String::new() } else { format!(": {error}") };
    format!(
        "{state}: {} given up, {} moved{left}; the file is {} shorter{why}",
        size("dropped"),
        size("moved"),
        size("cut")
    )
}

//! `lunway lun compact`.

use std::num::NonZeroU64;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_console::Method;
use serde_json::{Value, json};

use super::{Daemon, text};
use crate::failure::Failure;
use crate::freezing::Freezing;
use crate::{interrupt, progress, terminal};

/// How often the daemon is asked how far it is.
const POLL: Duration = Duration::from_millis(300);

/// How a logical unit is compacted.
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
        let path = format!("{path}/compaction");
        if self.status || self.cancel {
            let method = if self.cancel { Method::DELETE } else { Method::GET };
            return self.print(&self.daemon.ask(method, &path, None)?);
        }
        let compact = |left: Option<Duration>| {
            let mut orders = json!({ "rate": self.rate });
            if let Some(left) = left {
                (orders["frozen"], orders["deadline_s"]) = (json!(true), json!(left.as_secs().max(1)));
            }
            self.daemon.ask(Method::POST, &path, Some(&orders))
        };
        let begun = self.freezing.around(compact, |_late| {
            let _ = self.daemon.ask(Method::DELETE, &path, None);
        })?;
        if self.background { self.print(&begun) } else { self.wait(&path, begun) }
    }

    /// Shows how far it is, until it has ended. Ctrl-C ends it.
    fn wait(&self, path: &str, mut now: Value) -> Result<(), Failure> {
        let cancel = interrupt::watch();
        let bar = progress::bytes("compacting", 0);
        let mut asked = false;
        while is_under_way(&now) {
            if cancel.is_cancelled() && !asked {
                asked = true;
                self.daemon.ask(Method::DELETE, path, None)?;
            }
            let bytes = |key: &str| now[key].as_u64().unwrap_or(0);
            bar.set_length(bytes("dropped") + bytes("moved") + bytes("left"));
            bar.set_position(bytes("dropped") + bytes("moved"));
            thread::sleep(POLL);
            now = self.daemon.ask(Method::GET, path, None)?;
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

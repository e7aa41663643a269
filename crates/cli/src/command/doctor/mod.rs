//! `lunway doctor`.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | arguments, exit codes |
//! | `looked.rs` | which machines are looked at, and by which facts |
//! | `answers.rs` | answers to what no program can see, kept in the user's state folder |
//! | `lanes.rs` | the lanes of a disk: plan and probes |
//! | `pull.rs` | lanes taken down one after another |
//! | `recorded.rs` | sessions of lunway's own initiator |
//! | `looks.rs` | earlier looks at running targets and at neighbours |
//! | `state.rs` | files in the user's state folder |
//! | `serving.rs` | a running target, by its management interface |
//! | `verdicts.rs` | diagnoses counted, as text and as JSON |
//! | `page.rs` | the same as a page |

mod answers;
mod lanes;
mod looked;
mod looks;
mod page;
mod pull;
mod recorded;
mod serving;
mod state;
mod verdicts;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use lunway_doctor::{Diagnosis, Facts, Machine, RULES, Verdict, diagnose, gather};
use lunway_report::Fact;

use self::answers::Answer;
use self::verdicts::Verdicts;
use crate::command::manage::DaemonAddress;
use crate::failure::Failure;
use crate::output::Files;
use crate::terminal;

/// Check a set-up against rules: this machine, a disk's lanes, a running target.
///
/// Looks at network ports, routes, kernel settings, open-iscsi, dm-multipath, disks, arrays and file systems of this
/// machine; with DEVICE also at the lanes (paths) of that disk, with --socket or --api at a running target and all
/// its initiators. Hosts and their target that are checked together are compared with each other. Nothing is changed.
/// What cannot be checked is "unknown", never "ok". Each rule is described in the book, with the figure that
/// justifies it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway doctor
  lunway doctor san/paths.toml --probe
  lunway doctor san/paths.toml --pull
  lunway doctor --socket /run/lunway/lunway.sock --html-file doctor.html
  lunway doctor --mute port-energy --mute port-ring --json
  lunway doctor --answer asked-ups=yes
  lunway doctor --facts > host.json; lunway doctor --from host.json
  lunway doctor --from one.json --from two.json --socket /run/lunway/lunway.sock

Exit codes: 0 all is ok; 3 the worst is warn; 4 something is bad; 5 nothing is
worse than ok, but something is unknown; 1 and 2 as for every command.")]
pub(crate) struct Doctor {
    /// A disk whose lanes are checked too: an iscsi:// address, or a paths.toml
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    /// Probe the lanes of DEVICE: sends packets over each of them
    #[arg(long, requires = "device")]
    probe: bool,
    /// Take the lanes of DEVICE down, one after another, and measure the pause; asks first
    #[arg(long, requires = "device")]
    pull: bool,
    /// Confirm --pull without a question
    #[arg(long, requires = "pull")]
    yes: bool,
    #[command(flatten)]
    daemon: DaemonAddress,
    /// Check facts from a file (of --facts or doctor-windows.ps1) instead of this machine; repeatable
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "root", "port"])]
    from: Vec<PathBuf>,
    /// Check a copy of another machine's /etc, /proc and /sys in this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["device", "socket", "api"])]
    root: Option<PathBuf>,
    /// A network port that carries storage traffic; repeatable [default: those that carry iSCSI now]
    #[arg(long, value_name = "NAME", conflicts_with = "api")]
    port: Vec<String>,
    /// Leave a rule out; repeatable
    #[arg(long, value_name = "RULE")]
    mute: Vec<String>,
    /// Answer a rule that no program can check, and save the answer; repeatable: asked-ups=yes
    #[arg(long, value_name = "RULE=yes|no")]
    answer: Vec<Answer>,
    /// Ask for missing answers on the terminal
    #[arg(long)]
    ask: bool,
    /// Also show the rules that are ok
    #[arg(long)]
    all: bool,
    /// Print the facts as JSON, for --from, without checking them
    #[arg(long, conflicts_with_all = ["from", "json", "json_file", "html_file"])]
    facts: bool,
    /// List the rules
    #[arg(long, conflicts_with_all = ["device", "from", "facts"])]
    list: bool,
    #[command(flatten)]
    files: Files,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.list {
            return self.print_rules();
        }
        for id in &self.mute {
            known(id)?;
        }
        self.files.check(&[])?;
        let looked = self.look()?;
        if self.facts {
            let text = serde_json::to_string_pretty(looked.facts()).context("cannot build JSON")?;
            return terminal::print(&text);
        }
        let (muted, found): (Vec<_>, Vec<_>) = looked
            .diagnoses()
            .into_iter()
            .partition(|diagnosis| self.mute.iter().any(|id| id == diagnosis.finding.id));
        let verdicts = Verdicts { found, muted: muted.len(), subject: looked.subject() };
        self.files.write(
            || verdicts.text(self.all),
            || verdicts.document(),
            || lunway_report::html(&page::document(&verdicts, looked.elsewhere())),
        )?;
        match verdicts.exit_code() {
            0 => Ok(()),
            code => Err(Failure::Found(code)),
        }
    }

    fn print_rules(&self) -> Result<(), Failure> {
        let rules = || RULES.into_iter().flatten();
        let text = || {
            let row = |rule: &lunway_doctor::Rule| {
                [rule.id.to_owned(), rule.group.to_string(), rule.severity.to_string(), rule.title.to_owned()]
            };
            let rows: Vec<_> = rules().map(row).collect();
            terminal::table(["RULE", "GROUP", "SEVERITY", "DEMANDS"], &rows, "no rules")
        };
        let document = || {
            let rule = |rule: &lunway_doctor::Rule| {
                serde_json::json!({
                    "id": rule.id,
                    "group": rule.group.to_string(),
                    "severity": rule.severity.to_string(),
                    "title": rule.title,
                    "applies": rule.applies,
                    "why": rule.why,
                    "source": rule.source,
                    "thumbs": rule.thumbs,
                    "do": rule.fix,
                    "undo": rule.undo,
                })
            };
            serde_json::json!({ "lunway": { "schema": 1 }, "rules": rules().map(rule).collect::<Vec<_>>() })
        };
        self.files.check(&[])?;
        self.files.write(text, document, || lunway_report::html(&page::rules()))
    }
}

/// Summary of a daemon's set-up, as a line that names the rules and the command that tells more; empty where nothing
/// is, or where it does not answer.
pub(crate) fn of_daemon(daemon: &DaemonAddress) -> String {
    let Ok(target) = serving::look(daemon, &Machine::this()) else { return String::new() };
    let found = diagnose(&Facts { target: Some(target), ..Facts::default() });
    let broken = |found: &&Diagnosis| found.verdict >= Verdict::Warn;
    let broken: BTreeSet<&str> = found.iter().filter(broken).map(|found| found.finding.id).collect();
    if broken.is_empty() {
        return String::new();
    }
    let rules = broken.into_iter().collect::<Vec<_>>().join(", ");
    let option = if daemon.is_here() { "--socket" } else { "--token-file FILE --api" };
    format!("doctor: {rules}; why, and what to do: lunway doctor {option} {}", daemon.name())
}

/// The verdict on the place where something was measured, for the page of what was: how many of each, and the rules
/// that are broken. Addresses and names of the machine are not in it.
pub(crate) fn of_place() -> Fact {
    let found = diagnose(&gather(&Machine::this(), &[]));
    let verdicts = Verdicts { found, muted: 0, subject: String::new() };
    let broken: BTreeSet<&str> = [Verdict::Bad, Verdict::Warn]
        .into_iter()
        .flat_map(|verdict| verdicts.with(verdict))
        .map(|diagnosis| diagnosis.finding.id)
        .collect();
    let broken: Vec<&str> = broken.into_iter().collect();
    let names = if broken.is_empty() { String::new() } else { format!(": {}", broken.join(", ")) };
    Fact::new("lunway doctor", verdicts.sentence() + &names)
}

/// Refuses the name of a rule that does not exist.
fn known(id: &str) -> Result<(), Failure> {
    match lunway_doctor::rule(id) {
        Some(_) => Ok(()),
        None => Err(Failure::Usage(format!("there is no rule {id:?}: lunway doctor --list shows them"))),
    }
}

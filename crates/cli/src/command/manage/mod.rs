//! `lunway target|lun|portal|acl|session|reservation|config|reload`: asking a running daemon.
//!
//! | file | verbs of |
//! |---|---|
//! | `mod.rs` | how a daemon is found, asked, and its changes are printed |
//! | `target.rs`, `lun.rs`, `portal.rs`, `acl.rs` | what is served, how, to whom |
//! | `io_limit.rs` | limits on I/O, as options |
//! | `epoch.rs` | what changed on a logical unit |
//! | `snapshot.rs` | what a logical unit held at one instant |
//! | `session.rs`, `reservation.rs` | what initiators hold |
//! | `top.rs` | what is going on |
//! | `config.rs` | the configuration as a whole |

pub(crate) mod acl;
mod compaction;
pub(crate) mod config;
mod epoch;
mod io_limit;
pub(crate) mod lun;
pub(crate) mod portal;
pub(crate) mod reservation;
pub(crate) mod session;
pub(crate) mod snapshot;
pub(crate) mod target;
pub(crate) mod top;

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use clap::Args;
use lunway_block::spec::{DeviceSpec, SpecError};
use lunway_console::{Client, ClientError, Endpoint, Method, RunningDaemon};
use serde_json::{Map, Value};

use crate::device::written;
use crate::failure::Failure;
use crate::{device, terminal};

/// A PUT that only creates. What is there already and the same is no conflict.
const MUST_BE_NEW: &str = "must_be_new=true";
/// A PUT that only changes.
const MUST_EXIST: &str = "must_exist=true";

/// Further wait for the answer of a daemon to what is of no use after some time: a daemon that goes on answers in
/// milliseconds, and says more than that nothing came.
const LATE_ANSWER: Duration = Duration::from_secs(2);

/// The environment variable with the socket of commands that name no daemon.
const SOCKET: &str = "LUNWAY_SOCKET";

/// Which daemon is asked.
#[derive(Debug, Args)]
pub(crate) struct DaemonAddress {
    /// Unix socket of the daemon [default: /run/lunway/lunway.sock, or $XDG_RUNTIME_DIR/lunway.sock if not root]
    #[arg(long, value_name = "PATH", env = SOCKET)]
    socket: Option<PathBuf>,
    /// URL of a daemon that listens on TCP: http://HOST:PORT
    #[arg(long, value_name = "URL", requires = "token_file")]
    api: Option<String>,
    /// File with the token for --api
    #[arg(long, value_name = "FILE", requires = "api")]
    token_file: Option<PathBuf>,
    /// No other daemon can be meant.
    #[arg(skip)]
    is_certain: bool,
}

/// Which daemon is asked, and how its answer is printed.
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    #[command(flatten)]
    address: DaemonAddress,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of a change.
#[derive(Debug, Args)]
pub(crate) struct Changing {
    /// Show what would change, without changing it
    #[arg(long)]
    dry_run: bool,
    /// Refuse the change unless the configuration has this generation
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
    #[command(flatten)]
    daemon: Daemon,
}

/// The word for what a smaller size cuts off.
#[derive(Debug, Args)]
pub(crate) struct Shrinking {
    /// Allow a smaller size: data beyond the new end are lost
    #[arg(long)]
    shrink: bool,
}

impl Shrinking {
    fn query(&self) -> Option<String> {
        self.shrink.then(|| "shrink=true".to_owned())
    }
}

/// The word for snapshots that end with their disk.
#[derive(Debug, Args)]
pub(crate) struct Ending {
    /// End the snapshots of a logical unit that is removed, replaced or shrunk
    #[arg(long)]
    end_snapshots: bool,
}

impl Ending {
    fn query(&self) -> Option<String> {
        self.end_snapshots.then(|| "end_snapshots=true".to_owned())
    }
}

/// The word for what is in use.
#[derive(Debug, Args)]
pub(crate) struct Forcing {
    /// Go on even if a LUN in use is removed or gets another device, or a ram: disk that holds data is lost
    #[arg(long)]
    force: bool,
}

impl Forcing {
    fn query(&self) -> Option<String> {
        self.force.then(|| "force=true".to_owned())
    }
}

/// A query of what was said.
fn joined<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

impl DaemonAddress {
    /// The daemon on a socket of this machine; `None`: on the usual one.
    pub(crate) fn on(socket: Option<PathBuf>) -> Self {
        Self { socket, api: None, token_file: None, is_certain: false }
    }

    /// The daemon that has begun this process, on its socket.
    pub(crate) fn of_parent(socket: Option<PathBuf>) -> Self {
        Self { is_certain: true, ..Self::on(socket) }
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let client = self.client()?;
        device::run(async { client.call(method, path, body).await.map_err(|error| refused(error, path)) })
    }

    /// The same for something that is of no use after `left`, such as the time for which a guest stays frozen. A daemon
    /// that answers then has not done it, or undoes it, as its caller waits no more.
    pub(crate) fn ask_within(
        &self,
        left: Option<Duration>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let Some(left) = left else { return self.ask(method, path, body) };
        let client = self.client()?;
        device::run(async {
            let limit = left + LATE_ANSWER;
            match tokio::time::timeout(limit, client.call(method, path, body)).await {
                Ok(answer) => answer.map_err(|error| refused(error, path)),
                Err(_) => Err(Failure::failed(anyhow::anyhow!(
                    "{} has not answered before the guest was thawed: nothing is kept",
                    terminal::clean(&self.name())
                ))),
            }
        })
    }

    /// The same; what the daemon refuses is its status and its sentence.
    pub(crate) fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<Value, (u16, String)>, Failure> {
        let client = self.client()?;
        device::run(async {
            match client.call(method, path, body).await {
                Ok(answer) => Ok(Ok(answer)),
                Err(ClientError::Refused { status, sentence, .. }) => Ok(Err((status, sentence))),
                Err(error) => Err(failure(error)),
            }
        })
    }

    /// Returns `true` if the user named one.
    pub(crate) fn is_named(&self) -> bool {
        self.api.is_some() || self.socket.is_some()
    }

    /// Returns `true` if it is on this machine.
    pub(crate) fn is_here(&self) -> bool {
        self.api.is_none()
    }

    /// Name of the daemon, for people.
    pub(crate) fn name(&self) -> String {
        let socket = || self.socket.clone().unwrap_or_else(Endpoint::default_socket).display().to_string();
        self.api.clone().unwrap_or_else(socket)
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        // That of the environment is for commands that name no daemon.
        let typed =
            self.socket.as_ref().filter(|socket| env::var_os(SOCKET).is_none_or(|usual| usual != **socket));
        if let (Some(url), Some(socket)) = (&self.api, typed) {
            return Err(Failure::Usage(format!(
                "--api {url} and --socket {} name two daemons: give one of them",
                socket.display()
            )));
        }
        let endpoint = match (&self.api, &self.token_file) {
            (Some(url), Some(file)) => Endpoint::tcp(url, file).map_err(failure)?,
            _ => Endpoint::Unix(self.socket.clone().unwrap_or_else(Endpoint::default_socket)),
        };
        static SAID: Once = Once::new();
        SAID.call_once(|| match (&endpoint, &self.api) {
            (Endpoint::Unix(_), _) if self.is_certain || typed.is_some() => {}
            (Endpoint::Unix(socket), _) => say_which(socket),
            (_, url) => say_which_address(url.as_deref().unwrap_or_default()),
        });
        Ok(Client::new(endpoint))
    }
}

impl Daemon {
    fn client(&self) -> Result<Client, Failure> {
        self.address.client()
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.address.ask(method, path, body)
    }

    /// Asks for what is there, and prints it: as it came, or as `table` shows it.
    pub(crate) fn show(&self, path: &str, table: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        let answer = self.ask(Method::GET, path, None)?;
        if self.json { terminal::print_json(&answer) } else { terminal::print(&table(&answer)) }
    }

    /// A file as the daemon finds it, which has another working folder.
    pub(crate) fn file(&self, path: &Path) -> Result<String, Failure> {
        let path = match self.address.api {
            None => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            // What that machine has is not ours to resolve.
            Some(_) => path.to_owned(),
        };
        written(&path).map(str::to_owned)
    }

    /// A device as the daemon finds it. What cannot be read is passed on: the daemon says what is wrong.
    pub(crate) fn device(&self, text: &str) -> Result<String, Failure> {
        let (Ok(here), None) = (env::current_dir(), &self.address.api) else {
            return Ok(text.to_owned());
        };
        match DeviceSpec::located(text, &here) {
            // A relative path would be looked for elsewhere.
            Err(error @ SpecError::NotUtf8 { .. }) => Err(Failure::failed(error)),
            located => Ok(located.unwrap_or_else(|_| text.to_owned())),
        }
    }
}

impl Changing {
    /// Asks for a change, and prints what it came to.
    pub(crate) fn change(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(), Failure> {
        self.change_at(method, path, "", body)
    }

    /// The same with something more in the query.
    fn change_at(
        &self,
        method: Method,
        path: &str,
        query: &str,
        body: Option<&Value>,
    ) -> Result<(), Failure> {
        let dry_run = self.dry_run.then(|| "dry_run=true".to_owned());
        let generation = self.generation.map(|generation| format!("generation={generation}"));
        let more = (!query.is_empty()).then(|| query.to_owned());
        let query: Vec<_> = [dry_run, generation, more].into_iter().flatten().collect();
        let path = if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) };
        let removes = method == Method::DELETE;
        let answer = self.daemon.ask(method, &path, body)?;
        if self.daemon.json {
            terminal::print_json(&answer)
        } else {
            terminal::print(&changes(&answer, removes))
        }
    }
}

/// Summary of a change, for a person. A removal of what is not there is no failure, so that scripts can repeat the
/// command, and has a sentence of its own, as its name may be mistyped.
fn changes(answer: &Value, removes: bool) -> String {
    let effects = rows(answer, "effects").iter().filter_map(Value::as_str).map(terminal::clean);
    let mut lines: Vec<_> = rows(answer, "changes").iter().map(|change| text(change, "text")).collect();
    let is_same = lines.is_empty();
    lines.extend(effects);
    if is_same && removes {
        lines = vec![format!("nothing to remove: {}", lines.join("; "))];
    }
    let (dry_run, persisted) = (answer["dry_run"] == true, answer["persisted"] == true);
    match (is_same, dry_run) {
        (true, _) if lines.is_empty() => lines.push("nothing to change".to_owned()),
        (true, false) => {}
        (_, true) => lines.push("dry run: nothing was changed".to_owned()),
        (false, false) if !persisted => {
            lines.push(
                "not saved: the daemon has no configuration file for this (serve -c or --save); the change is lost when it stops"
                    .to_owned(),
            );
        }
        (false, false) => {}
    }
    lines.join("\n")
}

/// Says which daemon is asked where several run, on standard error.
fn say_which(socket: &Path) {
    let running = RunningDaemon::all();
    if running.len() < 2 {
        return;
    }
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let (asked, others): (Vec<_>, Vec<_>) =
        running.iter().partition(|daemon| daemon.socket.as_ref() == Some(&socket));
    let asked = match asked.first() {
        Some(daemon) => daemon.to_string(),
        None => format!("the daemon on {}", socket.display()),
    };
    eprintln!("lunway: asking {asked}; also running: {}", listed(&others));
}

/// The same of a daemon that is asked over TCP. Which of this machine's it is, if any, its address does not tell.
fn say_which_address(url: &str) {
    let running = RunningDaemon::all();
    if running.len() > 1 {
        let listed = listed(&running.iter().collect::<Vec<_>>());
        eprintln!("lunway: asking the daemon at {}; running on this machine: {listed}", terminal::clean(url));
    }
}

fn listed(daemons: &[&RunningDaemon]) -> String {
    daemons.iter().map(|daemon| terminal::clean(&daemon.to_string())).collect::<Vec<_>>().join(", ")
}

/// A failure to ask, and refusals.
pub(crate) fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Address(_) => Failure::Usage(error.to_string()),
        ClientError::Connect { .. } => {
            let running = RunningDaemon::all();
            match listed(&running.iter().collect::<Vec<_>>()) {
                none if none.is_empty() => {
                    Failure::failed(anyhow::anyhow!("{error}, or name its socket with --socket"))
                }
                listed => Failure::failed(anyhow::anyhow!(
                    "{error}, or name its socket with --socket; running: {listed}"
                )),
            }
        }
        error => Failure::failed(error),
    }
}

/// The same of a request for `path`, with the option that decides otherwise, or ends what is in the way: the refusal
/// names a parameter or a method of the API.
fn refused(error: ClientError, path: &str) -> Failure {
    match error {
        ClientError::Refused { sentence, parameter: Some(parameter), .. } => {
            Failure::failed(anyhow::anyhow!("{sentence}{}", remedy(&parameter, path)))
        }
        ClientError::Refused { sentence, method: Some(method), .. }
            if method == "DELETE" && path.ends_with("/compaction") =>
        {
            Failure::failed(anyhow::anyhow!("{sentence} (--cancel)"))
        }
        error => failure(error),
    }
}

/// Remedy of a refusal that a parameter of the API decides, in the words of the command line.
fn remedy(parameter: &str, path: &str) -> &'static str {
    match parameter {
        "create" => "; omit --create to serve it as it is",
        "must_be_new" if path.contains("/acl/") => "; --replace replaces it",
        "must_be_new" if path.contains("/luns/") => "; `lunway lun set` changes it, --replace replaces it",
        "must_be_new" => "; `lunway target set` changes it",
        "shrink" => "; --shrink allows that",
        "force" if path.contains("/resize") => "; --force cuts it",
        "force" => "; --force allows that",
        "end_snapshots" => ", or end them with --end-snapshots",
        _ => "",
    }
}

/// The rows of a list in an answer.
pub(crate) fn rows<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer[key].as_array().map_or(&[], Vec::as_slice)
}

/// A value as a person reads it: texts without quotes, lists with commas, nothing for what is not there.
pub(crate) fn text(of: &Value, key: &str) -> String {
    match &of[key] {
        Value::Null => String::new(),
        Value::String(text) => terminal::clean(text),
        Value::Array(values) => {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), terminal::clean);
            values.iter().map(plain).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// An object of the values that were given.
fn given<const N: usize>(values: [(&str, Option<Value>); N]) -> Map<String, Value> {
    values.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_relative_file_is_named_as_the_daemon_finds_it() {
        let at = |api: Option<&str>| {
            let address = DaemonAddress { api: api.map(str::to_owned), ..DaemonAddress::on(None) };
            Daemon { address, json: false }
        };
        let here = at(None);
        let folder = std::env::current_dir().unwrap();
        assert_eq!(
            here.device("stats:disk.img").unwrap(),
            format!("stats:{}", folder.join("disk.img").display())
        );
        let beside = here.device("stats:iscsi://u@h/iqn.a:b/0?secret_file=s").unwrap();
        assert_eq!(beside, format!("stats:iscsi://u@h/iqn.a:b/0?secret_file={}/s", folder.display()));
        for text in ["/dev/sdz", "ram:1G", "iscsi://u%secret@h/iqn.a:b/0", "rams:1G"] {
            assert_eq!(here.device(text).unwrap(), text);
        }
        let there = at(Some("http://h:1"));
        assert_eq!(there.device("disk.img").unwrap(), "disk.img");
    }

    #[test]
    fn it_is_said_whether_a_change_was_made_and_is_kept() {
        let answer = |dry_run: bool, persisted: bool, lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| json!({ "text": line })).collect();
            changes(&json!({ "dry_run": dry_run, "persisted": persisted, "changes": lines }), false)
        };
        let absent =
            json!({ "dry_run": false, "persisted": false, "changes": [], "effects": ["there is no x"] });
        assert_eq!(changes(&absent, true), "nothing to remove: there is no x");
        assert_eq!(changes(&absent, false), "there is no x", "it is no change that could be lost");
        assert_eq!(answer(false, true, &[]), "nothing to change");
        assert_eq!(answer(false, true, &["+ x"]), "+ x");
        assert_eq!(answer(true, false, &["+ x"]), "+ x\ndry run: nothing was changed");
        assert!(answer(false, false, &["+ x"]).starts_with("+ x\nnot saved"));
    }
}

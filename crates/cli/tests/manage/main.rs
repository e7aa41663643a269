//! Managing a running daemon from the command line.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod configuration;
mod luns;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{IQN, PATIENCE, finish, lunway, succeed};

/// `lunway serve -c FILE` with an API; killed when dropped.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
    /// `127.0.0.1:PORT`.
    address: String,
}

const FILE: &str = "\
listen = [\"127.0.0.1:0\"]   # here
cores = 1
[[target]]
name = \"iqn.2026-11.com.example:disk\"
open = true
[[target.lun]]
id = 0
device = \"ram:1M\"
";

impl Daemon {
    fn start() -> Self {
        Self::start_logging_to(|_| Stdio::inherit())
    }

    /// The same with its log where it says.
    fn start_logging_to(log: impl FnOnce(&Path) -> Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("lunway.toml"), FILE).unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let mut command =
            lunway(&["serve", "-c", &path("lunway.toml"), "--socket", &path("api.sock"), "--json"]);
        command.env("LUNWAY_RUNTIME_DIR", path("run"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log(folder.path())).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = ready["listening"][0].as_str().unwrap().to_owned();
        Self { child, folder, address }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self) -> String {
        fs::read_to_string(self.path("lunway.toml")).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = lunway(arguments);
        command.env("LUNWAY_SOCKET", self.path("api.sock")).current_dir(self.folder.path());
        command.env("LUNWAY_RUNTIME_DIR", self.path("run"));
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        succeed(self.command(arguments)).trim_end().to_owned()
    }

    /// The sentence of a command that fails.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = finish(self.command(arguments), PATIENCE);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
        stderr
    }

    fn url(&self, lun: u16) -> String {
        format!("iscsi://{}/{IQN}/{lun}", self.address)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_target_that_is_there_and_open_is_not_taken_for_a_new_one() {
    let daemon = Daemon::start();
    for name in [IQN.to_owned(), IQN.to_uppercase()] {
        let output = finish(daemon.command(&["target", "add", &name]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("already exists and is open"), "{name}: {output:?}");
    }
}

#[test]
fn a_change_of_what_is_not_there_makes_nothing() {
    let daemon = Daemon::start();
    let unknown = "iqn.2026-11.com.example:dsik";
    for words in [
        &["target", "set", unknown, "--open"][..],
        &["target", "set", unknown, "--chap", "u:f"],
        &["target", "disable", unknown],
        &["lun", "set", unknown, "0", "--read-only"],
        &["lun", "add", unknown, "0", "ram:1M"],
    ] {
        assert!(daemon.refused(words).contains("there is no target"), "{words:?}");
    }
    assert!(daemon.refused(&["lun", "set", IQN, "1", "--device", "ram:1M"]).contains("there is no lun 1"));
    assert_eq!(daemon.file(), FILE);
}

#[test]
fn a_command_says_which_daemon_it_asks_where_several_run() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let alone = finish(daemon.command(&["target", "list"]), PATIENCE);
    assert!(alone.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&alone.stderr));
    let mut second = daemon.command(&["serve", "--listen", "127.0.0.1:0", "--lun", "0=ram:1M"]);
    second.env_remove("LUNWAY_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut second = second.spawn().unwrap();
    let mut lines = BufReader::new(second.stdout.take().unwrap()).lines().map_while(Result::ok);
    let managed = lines.find(|line| line.contains("managed")).unwrap();
    // The usual socket is free: the first daemon has one of its own.
    let usual = daemon.path("run/lunway.sock");
    assert_eq!(managed, format!("managed on {}", usual.display()));
    let said = |words: &[&str], socket: &std::path::Path| {
        let mut command = daemon.command(words);
        command.env("LUNWAY_SOCKET", socket);
        let output = finish(command, PATIENCE);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (first, second_socket) = (daemon.path("api.sock"), usual.clone());
    let sentence = said(&["target", "list"], &first);
    let asked =
        format!("lunway: asking process {} (-c {})", daemon.child.id(), daemon.path("lunway.toml").display());
    let other = format!("also running: process {} on {}", second.id(), usual.display());
    assert!(sentence.starts_with(&asked) && sentence.trim_end().ends_with(&other), "{sentence}");
    let sentence = said(&["target", "list", "--json"], &second_socket);
    assert!(sentence.contains(&format!("asking process {} on", second.id())), "{sentence}");
    let sentence = said(&["target", "list"], &daemon.path("none.sock"));
    assert!(
        sentence.contains("no daemon answers on") && sentence.contains(&first.display().to_string()),
        "{sentence}"
    );
    let token = support::secret_file(folder.path(), "token", "tttttttttttttttttttttttttttttttttttttttt");
    let tcp = ["--api", "http://127.0.0.1:1", "--token-file", &token];
    let sentence = said(&[&["target", "disable", IQN][..], &tcp].concat(), &first);
    let asked = "lunway: asking the daemon at http://127.0.0.1:1; running on this machine: process ";
    assert!(sentence.starts_with(asked), "{sentence}");
    second.kill().unwrap();
    second.wait().unwrap();
    let alone = finish(daemon.command(&["target", "list"]), PATIENCE);
    assert!(alone.stderr.is_empty(), "a daemon that was killed is not counted");
}

#[test]
fn a_command_that_names_two_daemons_asks_none() {
    let folder = tempfile::tempdir().unwrap();
    let token = support::secret_file(folder.path(), "token", "tttttttttttttttttttttttttttttttttttttttt");
    let refused = |words: &[&str], environment: Option<&str>| {
        let mut command = lunway(words);
        command.args(["--api", "http://127.0.0.1:1", "--token-file", &token]);
        command.envs(environment.map(|socket| ("LUNWAY_SOCKET", socket)));
        let output = finish(command, PATIENCE);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for words in [&["lun", "remove", IQN, "0", "--socket", "/s"][..], &["target", "list", "--socket", "/s"]] {
        for environment in [None, Some("/other")] {
            let (code, said) = refused(words, environment);
            assert!(code == Some(2) && said.contains("name two daemons"), "{words:?}: {code:?} {said}");
        }
    }
    // The environment is not typed.
    let (code, said) = refused(&["target", "list"], Some("/s"));
    assert!(code == Some(1) && said.contains("no daemon answers on 127.0.0.1:1"), "{code:?} {said}");
}

#[test]
fn a_daemon_that_is_not_managed_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let start = |more: &[&str], environment: Option<&str>| {
        let words = [&["serve", "--listen", "127.0.0.1:0", "--lun", "0=ram:1M"], more].concat();
        let mut command = lunway(&words);
        command.env("LUNWAY_RUNTIME_DIR", folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        command.envs(environment.map(|socket| ("LUNWAY_SOCKET", socket)));
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("managed"));
        (child, line.expect("it is said"))
    };
    let end = |mut child: Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let said = |more: &[&str], environment: Option<&str>| {
        let (child, line) = start(more, environment);
        end(child);
        line
    };
    assert_eq!(said(&["--no-api"], None), "not managed: --no-api");
    let named = folder.path().join("named.sock");
    let named = named.to_str().unwrap();
    assert_eq!(said(&[], Some(named)), format!("managed on {named}"));
    assert_eq!(said(&["--no-api"], Some(named)), "not managed: --no-api");
    let (first, _) = start(&[], None);
    let line = said(&[], None);
    assert!(
        line.starts_with("not managed: another daemon listens on ") && line.contains("--socket"),
        "{line}"
    );
    end(first);
    let keys = "listen = [\"127.0.0.1:0\"]\n[api]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"token\"\n";
    fs::write(folder.path().join("lunway.toml"), keys).unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "a-token-of-visible-characters\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = lunway(&["serve", "-c", "lunway.toml", "--socket", named]);
    command.current_dir(folder.path()).env("LUNWAY_RUNTIME_DIR", folder.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let managed: Vec<_> = lines.filter(|line| line.contains("managed")).take(2).collect();
    end(child);
    assert_eq!(managed[0], format!("managed on {named}"));
    let port = managed[1].strip_prefix("managed on http://127.0.0.1:").map(str::parse::<u16>);
    assert!(matches!(port, Some(Ok(1..))), "{managed:?}");
}

#[test]
fn durations_take_units_and_a_host_alone_is_a_portal() {
    let daemon = Daemon::start();
    assert!(daemon.run(&["discover", &daemon.address]).contains(IQN));
    for words in [&["top", "--once", "--interval", "1"][..], &["session", "logout", "1", "--grace", "10"]] {
        let output = finish(daemon.command(words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("is not a duration: write a number with a unit"), "{said}");
    }
    assert_eq!(daemon.run(&["session", "logout", "60000", "--grace", "2m"]), "there is no session 60000");
}

#[test]
fn a_target_is_added_drained_and_removed() {
    let daemon = Daemon::start();
    let name = "iqn.2026-11.com.example:second";
    support::secret_file(daemon.folder.path(), "s", "sesame open now");
    let added = daemon.run(&["target", "add", name, "--alias", "two", "--chap", "host:s"]);
    assert!(added.contains(&format!("no initiator may log in to target {name}")), "{added}");
    let access = |what: &str| {
        let list = daemon.run(&["target", "list"]);
        assert!(list.lines().any(|line| line.contains(name) && line.contains(what)), "{what}: {list}");
    };
    access("nobody");
    let plan = daemon.run(&["target", "set", name, "--open", "--dry-run"]);
    assert!(plan.contains("every CHAP user may log in"), "{plan}");
    access("nobody");
    daemon.run(&["target", "set", name, "--open"]);
    access("everybody");
    let plan = daemon.run(&["target", "set", name, "--no-open", "--dry-run"]);
    assert!(plan.contains("no initiator may log in to target") && plan.contains("any more"), "{plan}");
    daemon.run(&["target", "set", name, "--chap", "other:s", "--no-chap", "host"]);
    daemon.run(&["target", "disable", name]);
    let list: Value = serde_json::from_str(&daemon.run(&["target", "list", "--json"])).unwrap();
    let target = &list["targets"][1];
    assert_eq!((&target["config"]["alias"], &target["status"]["enabled"]), (&"two".into(), &false.into()));
    assert_eq!(target["config"]["chap"].as_array().unwrap().len(), 1);
    assert_eq!(target["config"]["chap"][0]["user"], "other");
    daemon.run(&["acl", "add", name, "all", "--from", "10.0.0.7", "--deny"]);
    daemon.run(&[
        "acl",
        "add",
        name,
        "some",
        "--initiator",
        "iqn.2026-11.com.example:*",
        "--luns",
        "0,2",
        "--at",
        "1",
    ]);
    let rules = daemon.run(&["acl", "list", name]);
    let places: Vec<_> = ["some", "10.0.0.7/32"].iter().map(|part| rules.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{rules}");
    daemon.run(&["acl", "remove", name, "some"]);
    daemon.run(&["target", "remove", name]);
    assert_eq!(daemon.file(), FILE);
    assert!(daemon.refused(&["target", "enable", name]).contains("there is no target"));
}

#[test]
fn a_session_is_listed_and_dropped() {
    let daemon = Daemon::start();
    assert_eq!(daemon.run(&["session", "list"]), "no sessions");
    // Longer than the test may take; it is killed at the end.
    let bench = lunway(&["bench", &daemon.url(0), "--rw", "read", "--time", "1h"]);
    let _bench = KilledAtTheEnd::start(bench);
    let start = Instant::now();
    let mut tsih = loop {
        let list: Value = serde_json::from_str(&daemon.run(&["session", "list", "--json"])).unwrap();
        match list["sessions"][0]["tsih"].as_u64() {
            Some(tsih) => break tsih.to_string(),
            None => assert!(start.elapsed() < PATIENCE, "the session is listed"),
        }
    };
    assert!(daemon.run(&["session", "list"]).contains(IQN));
    // It logs in before it reads: on a busy machine more than an interval before.
    loop {
        let top: Value =
            serde_json::from_str(&daemon.run(&["top", "--once", "--json", "--interval", "300ms"])).unwrap();
        // It may log in anew before it reads.
        if let Some(session) = top["sessions"][0]["tsih"].as_u64() {
            tsih = session.to_string();
        }
        if top["luns"][0]["read_iops"].as_f64().unwrap() > 0.0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the reads are counted: {top}");
    }
    let shown = daemon.run(&["top", "--once", "--interval", "100ms"]);
    assert!(shown.contains("READS/s") && shown.contains("MB/s"), "{shown}");
    // The target of these tests is open to all.
    assert!(
        shown.contains("doctor: ") && shown.contains("target-open") && shown.contains("--socket"),
        "{shown}"
    );
    assert_eq!(daemon.run(&["reservation", "list"]), "no reservations");
    assert_eq!(daemon.run(&["reservation", "clear", IQN, "0"]), "nothing to clear");
    assert_eq!(daemon.run(&["session", "drop", &tsih]), format!("session {tsih}: dropped"));
    assert_eq!(daemon.run(&["session", "logout", "60000"]), "there is no session 60000");
}

/// A program that runs for as long as a test.
struct KilledAtTheEnd(Child);

impl KilledAtTheEnd {
    fn start(mut command: std::process::Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for KilledAtTheEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The list of a target's portal groups was replaced without a word.
#[test]
fn a_portal_group_is_added_changed_and_removed_beside_the_others() {
    let daemon = Daemon::start();
    daemon.run(&["portal", "add", "127.0.0.1:0", "--group", "2"]);
    let set = |arguments: &[&str]| daemon.run(&[&["target", "set", IQN], arguments].concat());
    let first = set(&["--portal-group", "1"]);
    assert!(
        first.contains("is offered through portal group 1 only (before: all portal groups)"),
        "what was replaced is said: {first}"
    );
    let plan = set(&["--portal-group", "2=standby", "--dry-run"]);
    assert!(plan.contains("portal groups 1, 2 only (before: portal group 1 only)"), "{plan}");
    assert!(plan.contains("+ target") && !plan.contains("- target"), "group 1 stays: {plan}");
    set(&["--portal-group", "2=standby"]);
    assert!(set(&["--portal-group", "2"]).contains("portal_group 2: state: standby -> active-optimized"));
    let removed = set(&["--no-portal-group", "1"]);
    assert!(removed.contains("portal group 2 only (before: portal groups 1, 2 only)"), "{removed}");
    let last = daemon.command(&["target", "set", IQN, "--no-portal-group", "2"]);
    let last = finish(last, PATIENCE);
    assert_eq!(last.status.code(), Some(2), "no list is all groups, which must be said");
    assert!(set(&["--portal-group", ""]).contains("all portal groups (before: portal group 2 only)"));
}

/// `acl add RULE --luns 0 --replace` without the initiator it was for let every initiator in, without a word.
#[test]
fn a_rule_that_matches_every_initiator_is_said_to_do_so() {
    let daemon = Daemon::start();
    daemon.run(&["acl", "add", IQN, "host-1", "--initiator", "iqn.2026-11.com.example:host-1"]);
    daemon.run(&["target", "set", IQN, "--no-open"]);
    let replace = ["acl", "add", IQN, "host-1", "--luns", "0", "--replace", "--dry-run"];
    assert!(daemon.refused(&replace).contains("rule host-1 would let in every initiator"));
    let replaced = daemon.run(&[&replace[..], &["--initiator", "*"]].concat());
    assert!(replaced.contains("every initiator that reaches target"), "{replaced}");
    assert!(replaced.contains("access rule host-1 matches"), "{replaced}");
}

#[test]
fn where_no_daemon_is_the_sentence_says_where_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let output =
        finish(lunway(&["target", "list", "--socket", socket.to_str().unwrap()]), Duration::from_secs(10));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("no daemon answers on") && stderr.contains("none.sock"), "{stderr}");
    assert!(stderr.contains("lunway serve"), "{stderr}");
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused_before_it_touches_anything() {
    let daemon = Daemon::start();
    let socket = daemon.path("api.sock");
    let sentence = daemon.refused(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--lun",
        "0=ram:1M",
        "--socket",
        socket.to_str().unwrap(),
    ]);
    assert!(sentence.contains("another daemon listens on"), "{sentence}");
    assert!(daemon.run(&["target", "list"]).contains(IQN));
}

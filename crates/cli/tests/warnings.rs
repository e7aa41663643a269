//! What goes wrong or may not be meant is in the log, in the metrics, and in the answer that its cause gets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use lunway_console::{Client, Endpoint, Method};
use serde_json::Value;
use support::{IQN, PATIENCE, finish, image, json, lunway, succeed, until};

/// A daemon that logs JSON, with all that it has logged. Killed when dropped.
struct Daemon {
    child: Child,
    log: Arc<Mutex<Vec<Value>>>,
    socket: PathBuf,
    /// `127.0.0.1:PORT`.
    address: String,
}

impl Daemon {
    /// Serves `folder/lunway.toml`; `inside`: a script that ends with `exec "$@"`, run in a mount namespace of its own.
    /// `None`: this machine has none.
    fn start(folder: &Path, inside: Option<&str>) -> Option<Self> {
        let socket = folder.join("api.sock");
        let file = folder.join("lunway.toml");
        let words = ["serve", "-c", file.to_str().unwrap(), "--socket", socket.to_str().unwrap(), "--json"];
        let words = [&words[..], &["--log-format", "json"]].concat();
        let mut command = lunway(&words);
        if let Some(script) = inside {
            let unshare = lunway_foreign::program("unshare")?;
            let mut outer = Command::new(unshare);
            outer.args(["--mount", "--map-root-user", "--", "sh", "-c", script, "sh"]);
            outer.arg(env!("CARGO_BIN_EXE_lunway")).args(&words);
            command = outer;
        }
        command.env("LUNWAY_RUNTIME_DIR", folder.join("run")).env_remove("RUST_LOG").env("HERE", folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::<Mutex<Vec<Value>>>::default();
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // A line that is no JSON, or has a key twice, is a text.
                let line = json::parse(&line).unwrap_or(Value::String(line));
                kept.lock().unwrap().push(line);
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            let (status, _) = (child.wait().unwrap(), reader.join());
            let log = log.lock().unwrap();
            let no_namespace =
                log.iter().any(|line| line.as_str().is_some_and(|line| line.contains("unshare:")));
            assert!(inside.is_some() && (no_namespace || status.code() == Some(77)), "{log:?}");
            lunway_foreign::machine_lacks("mount namespaces");
            return None;
        };
        let address = ready["listening"][0].as_str().unwrap().to_owned();
        Some(Self { child, log, socket, address })
    }

    /// The lines of the log that hold this text. One at least is waited for: they come through a pipe, and the API's
    /// answers may be quicker.
    fn logged(&self, text: &str) -> Vec<Value> {
        let found = || -> Vec<Value> {
            let log = self.log.lock().unwrap();
            let holds = |line: &&Value| line["message"].as_str().is_some_and(|line| line.contains(text));
            log.iter().filter(holds).cloned().collect()
        };
        until(|| !found().is_empty());
        found()
    }

    fn get(&self, path: &str) -> Vec<u8> {
        let client = Client::new(Endpoint::Unix(self.socket.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(client.text(Method::GET, path, None)).unwrap().to_vec()
    }

    /// The value of a line of `/metrics`.
    fn metric(&self, series: &str) -> Option<u64> {
        let page = String::from_utf8(self.get("/metrics")).unwrap();
        let line =
            page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line.map(|value| value.parse().unwrap())
    }

    fn warnings(&self) -> Vec<(String, String)> {
        let health: Value = serde_json::from_slice(&self.get("/v1/health")).unwrap();
        let text = |of: &Value, key: &str| of[key].as_str().unwrap().to_owned();
        let warnings = health["warnings"].as_array().unwrap();
        warnings.iter().map(|warning| (text(warning, "kind"), text(warning, "text"))).collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = lunway(arguments);
        command.env("LUNWAY_SOCKET", &self.socket);
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_served_and_may_not_be_meant_is_logged_counted_and_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    write(&folder.path().join("short"), "too short\n", 0o600);
    write(&folder.path().join("read"), "long enough to be one\n", 0o644);
    write(&folder.path().join("fine"), "long enough to be one\n", 0o600);
    write(&folder.path().join("token"), "0123456789abcdef0123456789abcdef\n", 0o644);
    // An address for documentation (RFC 5737), which no machine has.
    let file = format!(
        "listen = [\"127.0.0.1:0\", \"192.0.2.77\"]\ncores = 1\n[api]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"token\"\n\
         [[target]]\nname = \"{IQN}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n\
         [[target]]\nname = \"{IQN}2\"\nopen = true\n\
         [[target.chap]]\nuser = \"a\"\nsecret_file = \"short\"\n[[target.chap]]\nuser = \"b\"\nsecret_file = \"read\"\n"
    );
    write(&folder.path().join("lunway.toml"), &file, 0o600);
    let daemon = Daemon::start(folder.path(), None).unwrap();
    for (kind, part, count) in [
        ("open_target", format!("target {IQN} is open"), 1),
        ("weak_secret", format!("the CHAP secret in {} can be guessed", path("short")), 1),
        ("readable_secret", format!("may read the CHAP secret in {}: chmod 600", path("read")), 2),
        ("readable_secret", format!("may read the token of the API in {}: chmod 600", path("token")), 2),
        ("idle_portal", "does not listen on 192.0.2.77".to_owned(), 1),
        ("closed_target", String::new(), 0),
    ] {
        let found: Vec<_> =
            daemon.warnings().into_iter().filter(|(of, text)| of == kind && text.contains(&part)).collect();
        if count > 0 {
            assert_eq!(found.len(), 1, "{kind} {part} in {:?}", daemon.warnings());
            let logged = daemon.logged(&found[0].1);
            assert!(logged.len() == 1 && logged[0]["level"] == "WARN", "{found:?} is logged: {logged:?}");
        }
        assert_eq!(daemon.metric(&format!("lunway_warnings{{kind=\"{kind}\"}}")), Some(count), "{kind}");
    }
    // A change that brings a warning says so, a trial as well; one that has none does not.
    let add = |secret: &str, more: &[&str]| {
        let words = ["target", "set", IQN, "--chap", &format!("c:{}", path(secret))].map(str::to_owned);
        let words: Vec<_> = words.iter().map(String::as_str).chain(more.iter().copied()).collect();
        succeed(daemon.command(&words))
    };
    assert!(add("short", &["--dry-run"]).contains("nothing was changed"));
    let portal = ["portal", "add", "192.0.2.78", "--group", "2"];
    for more in [&["--dry-run"][..], &[]] {
        let said = succeed(daemon.command(&[&portal[..], more].concat()));
        assert!(said.contains("portal group 2 does not listen on 192.0.2.78"), "{said}");
    }
    assert_eq!(daemon.metric("lunway_warnings{kind=\"idle_portal\"}"), Some(2));
    let said = add("fine", &[]);
    assert!(!said.contains("guessed") && !said.contains("chmod"), "{said}");
    // Looked at again when the daemon is told to.
    write(&folder.path().join("read"), "long enough to be one\n", 0o600);
    succeed(daemon.command(&["reload"]));
    assert_eq!(daemon.metric("lunway_warnings{kind=\"readable_secret\"}"), Some(1));
}

#[test]
fn a_device_that_fails_is_logged_once_a_minute_and_counted_by_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let luns = ["medium", "gone", "timeout", "nospace"].iter().enumerate();
    let luns = luns.map(|(id, error)| {
        format!("[[target.lun]]\nid = {id}\ndevice = \"fault:write,error={error}:ram:8M\"\n")
    });
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n{}",
        luns.collect::<String>()
    );
    write(&folder.path().join("lunway.toml"), &file, 0o600);
    let daemon = Daemon::start(folder.path(), None).unwrap();
    for (lun, cause, told) in [
        (0, "medium", "the medium failed"),
        (1, "gone", "gone"),
        (2, "timeout", ""),
        (3, "full", "no space left"),
    ] {
        let url = format!("iscsi://{}/{IQN}/{lun}?replacement_timeout=1s", daemon.address);
        let job = ["bench", &url, "--rw", "write", "--bs", "4k", "--size", "1M", "--qd", "1", "--force"];
        let output = finish(lunway(&job), PATIENCE);
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(told), "{cause}: {said}");
        let labels = format!("target=\"{IQN}\",lun=\"{lun}\"");
        let count = daemon.metric(&format!("lunway_lun_device_failures_total{{{labels},cause=\"{cause}\"}}"));
        assert!(count.is_some_and(|count| count > 0), "{cause}: {count:?}");
        let lines = daemon.logged("a command failed: ");
        let lines: Vec<_> = lines.iter().filter(|line| line["lun"] == lun).collect();
        assert!(
            lines.len() == 1 && lines[0]["level"] == "ERROR" && lines[0]["target"] == IQN,
            "{cause}: {lines:?}"
        );
    }
}

#[test]
fn a_full_backing_store_is_logged_counted_and_told_to_the_initiator() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("full")).unwrap();
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"full/disk.img\"\n"
    );
    write(&folder.path().join("lunway.toml"), &file, 0o600);
    let script = "mount -t tmpfs -o size=1m none \"$HERE/full\" && truncate -s 8M \"$HERE/full/disk.img\" || exit 77; exec \"$@\"";
    let Some(daemon) = Daemon::start(folder.path(), Some(script)) else { return };
    let labels = format!("target=\"{IQN}\",lun=\"0\"");
    assert_eq!(daemon.metric(&format!("lunway_lun_size_bytes{{{labels}}}")), Some(8 << 20));
    let available = || daemon.metric(&format!("lunway_lun_backing_available_bytes{{{labels}}}")).unwrap();
    assert_eq!(available(), 1 << 20);
    let source = folder.path().join("source.img");
    image(&source, 8 << 20, 4 << 20);
    let url = format!("iscsi://{}/{IQN}/0", daemon.address);
    let output = finish(lunway(&["copy", source.to_str().unwrap(), &url, "--overwrite"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("no space left"), "{said}");
    let failures = daemon.metric(&format!("lunway_lun_device_failures_total{{{labels},cause=\"full\"}}"));
    assert!(failures.is_some_and(|count| count > 0), "{failures:?}");
    let lines = daemon.logged("its backing store is full");
    assert!(lines.len() == 1 && lines[0]["level"] == "ERROR", "{lines:?}");
    // What is left is asked of the store again within seconds.
    until(|| available() == 0);
    assert_eq!(available(), 0);
    assert!(
        daemon
            .metric(&format!("lunway_lun_allocated_bytes{{{labels}}}"))
            .is_some_and(|bytes| bytes > 512 << 10)
    );
    assert!(File::open(folder.path().join("full/disk.img")).is_err(), "the daemon alone has it");
}

#[test]
fn a_configuration_is_checked_without_serving_it() {
    let folder = tempfile::tempdir().unwrap();
    let (file, disk) = (folder.path().join("lunway.toml"), folder.path().join("disk.img"));
    image(&disk, 1 << 20, 1 << 20);
    let configured = |target: &str| {
        let name = if target.contains("name =") { String::new() } else { format!("name = \"{IQN}\"\n") };
        let text = format!("listen = [\"127.0.0.1:0\"]\n[[target]]\n{name}{target}\n");
        write(&file, &text, 0o600);
        let output = finish(lunway(&["serve", "-c", file.to_str().unwrap(), "--check"]), PATIENCE);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let sound = "open = true\n[[target.lun]]\nid = 0\ndevice = \"disk.img\"";
    let (code, said) = configured(sound);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: target") && said.contains("is open"), "{said}");
    assert!(said.contains("no errors; 1 target, 1 LUN"), "{said}");
    let (code, said) = configured(&format!("name = \"iqn.2026-11.com.example:a_b\"\n{sound}"));
    assert!(
        code == Some(0) && said.contains("may be refused by initiators") && said.contains("'_'"),
        "{said}"
    );
    let (code, said) = configured(&sound.replace("disk.img", "dsik.img"));
    assert!(code == Some(1) && said.contains("dsik.img: there is no such file"), "{said}");
    let (code, said) = configured(&sound.replace("open = true", "opne = true"));
    assert!(code == Some(2) && said.contains("opne"), "{said}");
}

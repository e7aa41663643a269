//! Our initiator on tgt, the Linux user-space target.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{PATIENCE, assert_same_bytes, finish, free_port, image, lunway, secret_file, succeed};

const IQN: &str = "iqn.2026-11.com.example:tgt";
const SIZE: u64 = 64 << 20;
const DATA: u64 = 24 << 20;
const ATTEMPTS: u32 = 3;

/// A `tgtd` of our own with one logical unit, number 1, and portals on 127.0.0.1 and 127.0.0.2; killed when dropped.
struct Tgt {
    daemon: Child,
    admin: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
}

impl Tgt {
    /// `None` where it is not installed or may not run.
    fn start() -> Option<Self> {
        let (program, admin) = (lunway_foreign::program("tgtd")?, lunway_foreign::program("tgtadm")?);
        // Another process can take the port between our look and tgtd's bind: then it ends, and we take another.
        for _ in 0..ATTEMPTS {
            let folder = tempfile::tempdir().unwrap();
            let port = free_port();
            let mut command = Command::new(&program);
            let portals = format!("portal=127.0.0.1:{port},portal=127.0.0.2:{port}");
            command.args(["-f", "-C", &control(port), "--iscsi", &portals]);
            command.env("TGT_IPC_SOCKET", folder.path().join("ipc"));
            let daemon =
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let mut tgt = Self { daemon, admin: admin.clone(), folder, port };
            if tgt.is_ready() {
                tgt.set_up();
                return Some(tgt);
            }
        }
        lunway_foreign::not_run("tgtd (it does not run here; it wants root)");
        None
    }

    fn is_ready(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) && self.daemon.try_wait().unwrap().is_none() {
            let show = self.admin(&["--op", "show", "--mode", "target"]);
            if finish(show, PATIENCE).status.success() {
                return std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            }
            thread::sleep(Duration::from_millis(50));
        }
        false
    }

    fn admin(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.admin);
        command.env("TGT_IPC_SOCKET", self.folder.path().join("ipc"));
        command.args(["-C", &control(self.port), "--lld", "iscsi"]).args(arguments);
        command
    }

    fn configure(&self, arguments: &[&str]) {
        succeed(self.admin(arguments));
    }

    fn set_up(&self) {
        let store = self.folder.path().join("store");
        fs::File::create(&store).unwrap().set_len(SIZE).unwrap();
        self.configure(&["--op", "new", "--mode", "target", "--tid", "1", "-T", IQN]);
        let store = store.to_str().unwrap();
        self.configure(&["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", store]);
        self.configure(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]);
    }

    fn account(&self, user: &str, secret: &str, more: &[&str]) {
        self.configure(&["--op", "new", "--mode", "account", "--user", user, "--password", secret]);
        self.configure(
            &[&["--op", "bind", "--mode", "account", "--tid", "1", "--user", user], more].concat(),
        );
    }

    /// The second portal, `new` or `delete`.
    fn second_portal(&self, op: &str) {
        let portal = format!("portal=127.0.0.2:{}", self.port);
        self.configure(&["--op", op, "--mode", "portal", "--param", &portal]);
    }

    /// Ends all sessions from an address, as `tgtadm` can.
    fn throw_out(&self, address: &str) {
        let shown = succeed(self.admin(&["--op", "show", "--mode", "conn", "--tid", "1"]));
        let mut session = None;
        for line in shown.lines().map(str::trim) {
            session = line.strip_prefix("Session: ").or(session);
            if line.strip_prefix("IP Address: ") == Some(address) {
                let sid = session.unwrap();
                self.configure(&[
                    "--op", "delete", "--mode", "conn", "--tid", "1", "--sid", sid, "--cid", "0",
                ]);
            }
        }
    }

    fn url(&self, login: &str, query: &str) -> String {
        format!("iscsi://{login}127.0.0.1:{}/{IQN}/1{query}", self.port)
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// The number of a tgtd's control socket, which has to be below 32768.
fn control(port: u16) -> String {
    (port % 30_000).to_string()
}

/// Copies an image to the logical unit and back, and measures it with verification.
fn there_and_back(tgt: &Tgt, url: &str) {
    let (source, back) = (tgt.folder().join("source.raw"), tgt.folder().join("back.raw"));
    image(&source, SIZE, DATA);
    let (source_name, back_name) = (source.to_str().unwrap(), back.to_str().unwrap());
    assert!(succeed(lunway(&["copy", source_name, url, "--verify"])).contains("verified"));
    assert!(succeed(lunway(&["copy", url, back_name, "--verify"])).contains("verified"));
    assert_same_bytes(&source, &back);

    let job = ["--rw", "randrw", "--bs", "4K", "--qd", "16", "--time", "1s", "--verify", "--json"];
    let refused = finish(lunway(&[&["bench", url], &job[..]].concat()), PATIENCE);
    assert_eq!(refused.status.code(), Some(1), "what holds data is not overwritten unasked");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--destroy"));
    let result = succeed(lunway(&[&["bench", url, "--destroy"], &job[..]].concat()));
    let document: serde_json::Value = serde_json::from_str(&result).unwrap();
    let job = &document["jobs"][0];
    assert_eq!(job["error"], 0, "{job}");
    assert!(
        job["read"]["total_ios"].as_u64() > Some(10) && job["write"]["total_ios"].as_u64() > Some(10),
        "{job}"
    );
}

#[test]
fn data_goes_there_and_back_unchanged() {
    let Some(tgt) = Tgt::start() else { return };
    there_and_back(&tgt, &tgt.url("", ""));
    let list = succeed(lunway(&["discover", &format!("iscsi://127.0.0.1:{}", tgt.port)]));
    assert!(list.contains(IQN), "{list}");
    let inspection = succeed(lunway(&["inspect", &tgt.url("", ""), "--json"]));
    let inspection: serde_json::Value = serde_json::from_str(&inspection).unwrap();
    assert_eq!(inspection["unit"]["capacity"]["size"], SIZE);
    assert_eq!(inspection["unit"]["inquiry"]["vendor"], "IET");
}

#[test]
fn data_goes_there_and_back_unchanged_with_both_digests() {
    let Some(tgt) = Tgt::start() else { return };
    for key in ["HeaderDigest", "DataDigest"] {
        tgt.configure(&[
            "--op", "update", "--mode", "target", "--tid", "1", "--name", key, "--value", "CRC32C",
        ]);
    }
    let url = tgt.url("", "?header_digest=crc32c&data_digest=crc32c");
    let inspection = succeed(lunway(&["inspect", &url, "--json"]));
    let inspection: serde_json::Value = serde_json::from_str(&inspection).unwrap();
    let session = &inspection["session"];
    assert_eq!((&session["header_digest"], &session["data_digest"]), (&true.into(), &true.into()));
    there_and_back(&tgt, &url);
}

#[test]
fn data_goes_there_and_back_unchanged_with_chap() {
    let Some(tgt) = Tgt::start() else { return };
    tgt.account("someone", "correct-horse-1", &[]);
    there_and_back(&tgt, &tgt.url("someone%correct-horse-1@", ""));
    for login in ["", "someone%wrong-horse-12@", "nobody%correct-horse-1@"] {
        let output = finish(lunway(&["inspect", &tgt.url(login, "")]), PATIENCE);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{login}: {message}");
        assert!(message.contains("cannot log in") && !message.contains("horse"), "{message}");
    }
}

#[test]
fn data_goes_there_and_back_unchanged_with_mutual_chap_and_digests() {
    let Some(tgt) = Tgt::start() else { return };
    tgt.account("someone", "correct-horse-1", &[]);
    tgt.account("tgt", "battery-staple", &["--outgoing"]);
    for key in ["HeaderDigest", "DataDigest"] {
        tgt.configure(&[
            "--op", "update", "--mode", "target", "--tid", "1", "--name", key, "--value", "CRC32C",
        ]);
    }
    let ours = secret_file(tgt.folder(), "ours", "correct-horse-1");
    let theirs = secret_file(tgt.folder(), "theirs", "battery-staple");
    let digests = "header_digest=crc32c&data_digest=crc32c";
    let mutual = format!("?secret_file={ours}&target_user=tgt&target_secret_file={theirs}&{digests}");
    there_and_back(&tgt, &tgt.url("someone@", &mutual));

    let wrong = secret_file(tgt.folder(), "wrong", "battery-stable");
    let query = format!("?secret_file={ours}&target_user=tgt&target_secret_file={wrong}&{digests}");
    let output = finish(lunway(&["inspect", &tgt.url("someone@", &query)]), PATIENCE);
    assert_eq!(output.status.code(), Some(1), "a target that cannot prove itself is refused: {output:?}");
}

#[test]
fn a_portal_that_goes_in_mid_write_and_comes_back_is_no_error_and_no_stall() {
    let Some(tgt) = Tgt::start() else { return };
    let lanes = format!("lane=127.0.0.3>127.0.0.1:{0}&lane=127.0.0.4>127.0.0.2:{0}", tgt.port);
    let device = tgt.url("", &format!("?policy=round-robin&{lanes}"));
    let json = tgt.folder().join("bench.json");
    let job = ["--rw", "randrw", "--bs", "16K", "--qd", "16", "--time", "7s", "--verify", "--destroy"];
    let mut command =
        lunway(&[&["bench", &device, "--json-file", json.to_str().unwrap()], &job[..]].concat());
    let mut bench = command.stdout(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_millis(1500));
    tgt.second_portal("delete");
    tgt.throw_out("127.0.0.4");
    // Long enough that whoever waited for it to come back would stand out.
    thread::sleep(Duration::from_secs(3));
    let paths = succeed(lunway(&["paths", &device]));
    assert!(paths.contains("down") && paths.contains("up"), "{paths}");
    tgt.second_portal("new");
    let status = support::wait(&mut bench, PATIENCE).expect("it ends in time");
    assert!(status.success(), "{status}");
    let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let job = &document["jobs"][0];
    assert_eq!(job["error"], 0, "{job}");
    for direction in ["read", "write"] {
        let longest = job[direction]["clat_ns"]["max"].as_u64().unwrap();
        assert!(longest < 2_000_000_000, "{direction}: {longest} ns");
    }
    // Both lanes are there again.
    let paths = succeed(lunway(&["paths", &device]));
    assert!(!paths.contains("down"), "{paths}");
}

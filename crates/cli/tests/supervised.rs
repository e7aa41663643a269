//! `lunway serve` under a supervisor: what it says, when, and in what form it logs.

mod support;

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{PATIENCE, lunway, wait};

#[test]
fn systemd_hears_when_the_daemon_serves_and_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 4096];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let mut command =
        lunway(&["serve", "--listen", "127.0.0.1:0", "--lun", "0=ram:1M", "--log-format", "json", "-v"]);
    command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let ready = heard();
    assert!(ready.contains("READY=1") && ready.contains("STATUS=serving 1 LUN(s) of 1 target(s)"), "{ready}");
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let stopping = heard();
    assert!(stopping.contains("STOPPING=1"), "{stopping}");
    assert!(wait(&mut child, PATIENCE).unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let serving = lines.iter().find(|line| line["message"] == "serving").unwrap();
    assert_eq!((serving["level"].as_str(), serving["device"].as_str()), (Some("INFO"), Some("ram:1M")));
}

#[test]
fn the_units_are_what_systemd_understands() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let Some(program) = lunway_foreign::program("systemd-analyze") else { return };
    let mut analyze = Command::new(program);
    let copies = tempfile::tempdir().unwrap();
    // The program and its user need not be installed here.
    let unit = std::fs::read_to_string(folder.join("lunway.service")).unwrap();
    let unit = unit.replace("/usr/local/bin/lunway serve", "/bin/true");
    let unit: String = unit
        .lines()
        .filter(|line| !line.starts_with("User=") && !line.starts_with("Group="))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(copies.path().join("lunway.service"), unit).unwrap();
    std::fs::copy(folder.join("lunway.socket"), copies.path().join("lunway.socket")).unwrap();
    analyze.args(["--man=no", "verify"]);
    analyze.args(["lunway.service", "lunway.socket"].map(|name| copies.path().join(name)));
    let output = support::finish(analyze, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<_> = said.lines().filter(|line| line.contains("lunway.")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

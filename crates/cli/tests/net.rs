//! `lunway net` and `lunway net serve`, as people and scripts use them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{PATIENCE, Served, finish, free_port, interrupted, lunway, succeed, wait};

/// `lunway net serve` on a port of its own.
struct Responder {
    child: Child,
    address: String,
}

impl Responder {
    fn start() -> Self {
        let mut command = lunway(&["net", "serve", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let address = first.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, address }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_matrix_is_printed_and_written_and_every_figure_is_in_the_json() {
    let responder = Responder::start();
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("wire.html").to_str().unwrap().to_owned();
    let arguments =
        ["net", &responder.address, "--time", "60ms", "--window", "64K,auto", "--mtu", "path,1500"];
    let text = succeed(lunway(&[&arguments[..], &["--link", "10Gbit", "--html-file", &html]].concat()));
    assert!(text.contains("64 KiB") && text.contains("1500 (emulated)"), "{text}");
    assert!(
        text.contains("The wire carries at most") && text.contains("Mb/s of a link of 10.0 Gb/s"),
        "{text}"
    );
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && page.contains("id=\"data\""));

    let document = succeed(lunway(&[&arguments[..], &["--shape", "64:1K", "--json"]].concat()));
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["lunway"]["kind"], "net");
    let results = &document["results"];
    assert_eq!(results["complete"], true);
    let cells = results["throughput"].as_array().unwrap();
    assert_eq!(cells.len(), 2 * 2 * 2 * 2, "window × MTU × streams × direction");
    for cell in cells {
        assert!(cell["bits_per_second"].as_f64() > Some(1e6), "{cell}");
        assert!(cell["cpu_ns_per_byte"]["far"].as_f64() > Some(0.0), "{cell}");
        assert!(cell["retransmits"].is_u64() && cell["streams"][0]["near"]["tcp"]["cwnd"].as_u64() > Some(0));
        let limited = cell["bits_per_second_window_limit"].is_f64();
        assert_eq!(limited, cell["window"] == 65536, "{cell}");
    }
    let trips = results["round_trips"].as_array().unwrap();
    let sizes: Vec<_> =
        trips.iter().map(|trips| (trips["request"].as_u64(), trips["depth"].as_u64())).collect();
    assert_eq!(sizes[0], (Some(48), Some(1)));
    assert_eq!(sizes[5], (Some(64), Some(32)));
    assert!(trips.iter().all(|trips| trips["latency_ns"]["p99"].as_u64() > Some(0)));
    assert_eq!(document["measures"].as_array().unwrap().len(), 16 + 2 * 6);
}

#[test]
fn an_interrupted_run_ends_soon_with_what_was_measured_and_says_so() {
    let start = Instant::now();
    let command = lunway(&["net", "--time", "1s", "--json"]);
    let output = interrupted(command, || start.elapsed() > Duration::from_millis(1500));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["results"]["complete"], false);
    assert!(!document["results"]["throughput"].as_array().unwrap().is_empty());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
}

#[test]
fn a_responder_ends_when_it_is_asked_to() {
    let mut responder = Responder::start();
    succeed(lunway(&[
        "net",
        &responder.address,
        "--time",
        "50ms",
        "--window",
        "auto",
        "--streams",
        "1",
        "--block",
        "0",
    ]));
    let process = rustix::process::Pid::from_child(&responder.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let status = wait(&mut responder.child, PATIENCE).expect("it ends when asked");
    assert!(status.success(), "{status}");
}

#[test]
fn a_device_over_iscsi_is_measured_as_a_share_of_its_wire_and_memory_is_not() {
    let served = Served::start(&["--lun", "0=ram:16M"]);
    let url = served.url(0);
    let bench = |device: &str, more: &[&str]| {
        let arguments = ["bench", device, "--rw", "randread", "--qd", "4", "--time", "300ms"];
        succeed(lunway(&[&arguments[..], more].concat()))
    };
    let document: Value = serde_json::from_str(&bench(&url, &["--json"])).unwrap();
    let wire = &document["jobs"][0]["lunway"]["wire"];
    assert!(wire["share"].as_f64() > Some(0.0) && wire["read"]["depth"] == 4, "{wire}");
    let text = bench(&url, &[]);
    assert!(text.contains("two bare sockets on 127.0.0.1") && text.contains("% of the wire ("), "{text}");
    let responder = Responder::start();
    let text = bench(&url, &["--wire", &responder.address]);
    assert!(text.contains(&format!("The wire is that to {}", responder.address)), "{text}");
    assert!(!bench("ram:16M", &[]).contains("wire"));
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let nobody = format!("127.0.0.1:{}", free_port());
    for (arguments, code, part) in [
        (&["net", nobody.as_str()][..], 1, "lunway net serve --listen"),
        (&["net", "host.invalid"], 1, "cannot find the address of host.invalid"),
        (&["net", "--window", "1"], 2, "a window has 2K to 1G"),
        (&["net", "--streams", "17", "--time", "10ms"], 2, "1 to 16 streams"),
        (&["net", "--time", "2h"], 2, "10 minutes"),
        (&["net", "--link", "fast"], 2, "write 1Gbit"),
        (&["net", "serve", "--listen", "192.0.2.77"], 1, "cannot listen on 192.0.2.77:3262"),
    ] {
        let output = finish(lunway(arguments), PATIENCE);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

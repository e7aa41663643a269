//! `lunway lab`: real networks on this machine, slow ones, so that a busy processor changes nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{PATIENCE, finish, lunway, succeed, wait};

/// Runs `lunway lab` where networks can be built; elsewhere it is noted that this was not run.
fn lab(arguments: &[&str]) -> Option<Output> {
    lunway_foreign::program("ip")?;
    lunway_foreign::program("tc")?;
    let output = finish(lunway(&[&["lab"], arguments].concat()), PATIENCE);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("is not to be had here") {
        lunway_foreign::not_run("lab: user namespaces");
        return None;
    }
    Some(output)
}

/// Runs an experiment to its JSON.
fn run(experiment: &str, arguments: &[&str]) -> Option<Value> {
    let output = lab(&[&["run", experiment, "--json", "-"], arguments].concat())?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    Some(serde_json::from_slice(&output.stdout).expect("one document on standard output"))
}

/// The same for figures of speed. What the processor limited is run again: this test is not alone on its machine.
fn measure(experiment: &str, arguments: &[&str]) -> Option<Value> {
    let mut results = Value::Null;
    for _ in 0..3 {
        results = run(experiment, arguments)?;
        let rows = results["rows"].as_array().unwrap();
        if rows.iter().all(|row| row["limited_by_cpu"] == false) {
            break;
        }
    }
    Some(results)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// Why a file is refused, in a sentence on standard error.
fn refused(folder: &Path, text: &str) -> String {
    let file = folder.join("mine.toml");
    fs::write(&file, text).unwrap();
    let output = finish(lunway(&["lab", "run", file.to_str().unwrap()]), PATIENCE);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    sentence
}

#[test]
fn control_fills_the_calibrated_link_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("control.html");
    let arguments = ["--rate", "25Mbit", "--time", "1s", "--repeat", "1", "--html", page.to_str().unwrap()];
    let Some(results) = measure("control", &arguments) else { return };
    assert_eq!(results["experiment"], "control");
    assert_eq!(results["links"][0]["name"], "lane1");
    let link = number(&results["links"][0]["calibrated_mb_s"]);
    assert!((3.0..3.2).contains(&link), "25 Mbit/s with an MTU of 9000 carry 3.09 MB/s, not {link}");
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["rw"].as_str().unwrap()).collect::<Vec<_>>(), ["read", "write"]);
    for row in rows {
        assert_eq!((&row["test"], &row["policy"]), (&"D".into(), &"-".into()));
        for column in ["response_ms", "mb", "iops", "mb_s", "deviance_pct"] {
            number(&row[column]);
        }
        let share = number(&row["mb_s"]) / link;
        assert!((0.93..1.05).contains(&share), "{} moves {share} of the link", row["rw"]);
    }
    for figure in ["read_share_of_link", "write_share_of_link"] {
        assert!(number(&results["figures"][figure]) >= 0.93);
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("One path fills the link"), "the page says it too");
}

#[test]
fn a_small_window_moves_one_window_per_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("windows.toml");
    let text = r#"
        name = "windows"
        repeat = 1
        [[host]]
        name = "near"
        [[host]]
        name = "far"
        [[cable]]
        name = "line"
        ends = ["near.eth0", "far.eth0"]
        rate = "50Mbit"
        [[run]]
        test = "W"
        measure = "net"
        from = "near"
        target = "far"
        window = ["20kB", "500kB"]
        delay = "10ms"
        time = "1500ms"
        [[figure]]
        name = "small"
        value = "W[20kB,1500,10ms].write.mb_s / W[500kB,1500,10ms].write.mb_s"
        [[verdict]]
        when = "small < 0.5"
        good = "A small window throttles: {small %}."
        bad = "A small window does not throttle: {small %}."
    "#;
    fs::write(&file, text).unwrap();
    let Some(results) = measure(file.to_str().unwrap(), &[]) else { return };
    let cells = results["matrix"].as_array().unwrap();
    let [small, large] = &cells[..] else { panic!("two windows, one MTU, one delay: {cells:?}") };
    // 20 kB per 20 ms are 1 MB/s; the buffers' rounding lets pass a little more, a busy machine a little less.
    let moved = number(&small["mb_s"]);
    assert!((0.5..1.5).contains(&moved), "{moved} MB/s");
    assert!(number(&small["rtt_least_ms"]) >= 19.0, "{small}");
    assert!(number(&large["mb_s"]) > 2.5 * moved, "{large}");
    assert_eq!(results["verdicts"][0]["tone"], "good");
}

#[test]
fn a_pulled_cable_delays_and_loses_nothing() {
    let Some(results) = run("cable-pull", &["--rate", "50Mbit", "--time", "3s"]) else { return };
    let figures = &results["figures"];
    assert_eq!((number(&figures["io_errors"]), number(&figures["wrong_blocks"])), (0.0, 0.0));
    // Out from 0.9 s to 1.5 s; TCP's next attempt may come as late again.
    let stall = number(&figures["longest_stall_ms"]);
    assert!((450.0..20_000.0).contains(&stall), "{stall} ms");
    let sample = &results["rows"][0]["samples"][0];
    let events: Vec<_> = sample["events"].as_array().unwrap().iter().collect();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(number(&events[0]["at_ms"]) >= 900.0 && number(&events[1]["at_ms"]) >= 1500.0, "{events:?}");
    assert!(number(&sample["verified_blocks"]) > 0.0);
    assert!(!sample["paths"].as_array().unwrap().is_empty(), "throughput of the path over time");
}

#[test]
fn two_units_are_compared_over_a_cable_in_memory_and_in_a_scratch_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("units.toml");
    let text = r#"
        name = "units"
        [[host]]
        name = "server"
        [[host]]
        name = "storage"
        luns = ["1=ram:16M", "2=scratch:16M,sector=4096"]
        [[cable]]
        name = "lane1"
        ends = ["server.eth0", "storage.eth0"]
        rate = "1Gbit"
        [[run]]
        test = "S"
        measure = "compare"
        time = "50ms"
        pairs = 6
        size = "16M"
        [[run.arm]]
        name = "ram"
        lun = 1
        [[run.arm]]
        name = "file"
        lun = 2
    "#;
    fs::write(&file, text).unwrap();
    let json = folder.path().join("units.json");
    let arguments = ["run", file.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let Some(output) = lab(&arguments) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("read 4K QD16") && text.contains("verdict"), "{text}");
    let results: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let rows = results["comparisons"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    let verdicts = ["faster", "slower", "no meaningful difference", "cannot tell"];
    for row in rows {
        assert!(verdicts.contains(&row["verdict"].as_str().unwrap()), "{row}");
        assert!(number(&row["a"]) > 0.0 && number(&row["b"]) > 0.0, "{row}");
    }
}

#[test]
fn files_that_cannot_be_meant_are_refused_in_a_sentence_before_anything_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let file = succeed(lunway(&["lab", "show", "control"]));
    let sentence = refused(folder.path(), &file.replace("qd = 1", "depth = 1"));
    assert!(sentence.contains("in [[run]]: unknown field `depth`"), "{sentence}");
    let sentence = refused(folder.path(), &file.replace("rw = [", "paths = \"lane7\"\nrw = ["));
    assert!(sentence.contains("[[run]] D, key `paths`: there is no cable `lane7`"), "{sentence}");
    let ring = "[[switch]]\nname = \"a\"\n[[switch]]\nname = \"b\"\n[[cable]]\nname = \"up\"\nends = [\"a\", \"b\"]\n\
                [[cable]]\nname = \"down\"\nends = [\"b\", \"a\"]\n[[run]]";
    let sentence = refused(folder.path(), &file.replace("[[run]]", ring));
    assert!(sentence.contains("closes a ring of switches"), "{sentence}");
    let sentence = refused(folder.path(), "name = [");
    assert!(sentence.contains("mine.toml, line 1"), "{sentence}");
    let output = finish(lunway(&["lab", "run", "contrl"]), PATIENCE);
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(sentence.contains("there is no experiment `contrl`: shipped are control,"), "{sentence}");
}

#[test]
fn shipped_experiments_are_listed_and_a_network_is_shown_as_a_script() {
    let list = succeed(lunway(&["lab", "list"]));
    for name in ["control", "window-mtu", "sectors", "cable-pull"] {
        assert!(list.lines().any(|line| line.trim_start().starts_with(name)), "{list}");
    }
    let script = succeed(lunway(&["lab", "run", "control", "--dry-run", "--rate", "100Mbit"]));
    assert!(script.contains("100") && script.contains("tbf") && script.contains("eth0"), "{script}");
}

/// Processes that have this in their environment, in whatever namespace.
fn marked(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let marked = |entry: &fs::DirEntry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    processes.filter(marked).count()
}

#[test]
fn an_interrupt_leaves_valid_results_and_nothing_else() {
    // Whether networks can be built here at all, another test notes.
    if !lunway_in_a_sandbox() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (json, page) = (folder.path().join("partial.json"), folder.path().join("partial.html"));
    let mark = format!("LUNWAY_TEST_MARK={}", folder.path().display());
    let mut command = lunway(&[
        "lab",
        "run",
        "control",
        "--rate",
        "25Mbit",
        "--time",
        "60s",
        "--json",
        json.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]);
    command.env("LUNWAY_TEST_MARK", folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Three of the lab's own, and the target: then it measures, or fills.
    let began = Instant::now();
    while marked(&mark) < 4 && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(Duration::from_secs(3));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = wait(&mut child, PATIENCE).expect("it ends when it is asked");
    assert_eq!(status.code(), Some(1));
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(results["interrupted"], true);
    assert_eq!(results["links"][0]["name"], "lane1");
    for row in results["rows"].as_array().unwrap() {
        assert!(number(&row["mb_s"]) > 0.0);
    }
    assert!(fs::read_to_string(&page).unwrap().contains("It was interrupted"));
    // The kernel takes a moment to end a namespace.
    let ended = Instant::now();
    while marked(&mark) > 0 && ended.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(marked(&mark), 0, "no process is left");
}

fn lunway_in_a_sandbox() -> bool {
    let Some(_) = lunway_foreign::program("ip") else { return false };
    let nothing = Path::new("/proc/sys/user/max_user_namespaces");
    fs::read_to_string(nothing).is_ok_and(|count| count.trim() != "0")
}

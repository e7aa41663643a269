//! `lunway lab`: real networks on this machine, slow ones, so that a busy processor changes nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
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
    if stderr.contains("is not available here") {
        lunway_foreign::not_run("lab: user namespaces");
        return None;
    }
    Some(output)
}

/// Runs an experiment to its JSON. What is refused because the processor has no time now is asked for again: this test
/// is not alone on its machine.
fn run(experiment: &str, arguments: &[&str]) -> Option<Value> {
    let mut output = lab(&[&["run", experiment, "--json"], arguments].concat())?;
    for _ in 0..5 {
        if !String::from_utf8_lossy(&output.stderr).contains("limited by the processor") {
            break;
        }
        thread::sleep(Duration::from_secs(2));
        output = lab(&[&["run", experiment, "--json"], arguments].concat())?;
    }
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
    let arguments =
        ["--rate", "25Mbit", "--time", "1s", "--repeat", "1", "--html-file", page.to_str().unwrap()];
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
    assert!(page.contains("lunway doctor") && page.contains(" unknown, "), "and what the place is like");
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

/// A shipped experiment with fewer policies, and only those sentences that it can still say.
fn shortened(folder: &Path, name: &str, policies: &[&str]) -> PathBuf {
    let text = succeed(lunway(&["lab", "show", name]));
    let listed: Vec<String> = policies.iter().map(|policy| format!("\"{policy}\"")).collect();
    let lines = text.lines().map(|line| match line.strip_prefix("policy = [") {
        Some(_) => format!("policy = [{}]", listed.join(", ")),
        None => line.to_owned(),
    });
    let file = folder.join("short.toml");
    fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    file
}

/// What a row moved. Whether the processor was busy does not matter: cables as slow as these are full all the same.
fn mb_s(results: &Value, test: &str, policy: &str) -> f64 {
    number(&row(results, test, policy)["mb_s"])
}

fn row<'a>(results: &'a Value, test: &str, policy: &str) -> &'a Value {
    let mut rows = results["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["test"] == test && row["policy"] == policy);
    row.unwrap_or_else(|| panic!("{test} {policy}: {results}"))
}

/// The events of a row's only sample: what, and when.
fn events(row: &Value) -> Vec<(String, f64)> {
    let events = row["samples"][0]["events"].as_array().unwrap().iter();
    events.map(|event| (event["what"].as_str().unwrap().to_owned(), number(&event["at_ms"]))).collect()
}

/// Nothing failed, and every block that was read held what was written.
fn harmless(results: &Value) {
    for row in results["rows"].as_array().unwrap() {
        assert_eq!((number(&row["io_errors"]), number(&row["wrong_blocks"])), (0.0, 0.0), "{row}");
    }
    let checked: f64 = results["rows"][0]["samples"][0]["verified_blocks"].as_f64().unwrap();
    assert!(checked > 0.0, "something was verified");
}

#[test]
fn one_request_at_a_time_uses_both_of_two_lanes() {
    let folder = tempfile::tempdir().unwrap();
    let file = shortened(folder.path(), "two-lanes", &["adaptive", "round-robin"]);
    // Requests that take as long on these cables as those of the file do on its own.
    let text = fs::read_to_string(&file).unwrap().replace("bs = \"4M\"", "bs = \"512K\"");
    fs::write(
        &file,
        text.replace("rw = [\"read\", \"write\"]", "rw = \"write\"").replace(".read.", ".write."),
    )
    .unwrap();
    let arguments = ["--rate", "50Mbit", "--time", "1500ms", "--repeat", "1"];
    let Some(results) = run(file.to_str().unwrap(), &arguments) else { return };
    let alone = mb_s(&results, "D", "-");
    let both = mb_s(&results, "C", "adaptive");
    assert!(both > 1.5 * alone, "{both} against {alone} MB/s");
    // The whole of each request goes down one lane, as it does in the systems that the policy is named after.
    let turns = mb_s(&results, "C", "round-robin");
    assert!(turns < 1.3 * alone, "{turns} against {alone} MB/s");
    assert!(mb_s(&results, "C8", "round-robin") > 1.5 * alone, "many at once use both whatever the policy");
    let lanes = row(&results, "C", "adaptive")["samples"][0]["paths"].as_array().unwrap();
    let names: Vec<_> = lanes.iter().map(|lane| lane["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["lane1 writes", "lane2 writes"]);
}

#[test]
fn a_pulled_cable_of_two_is_marked_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = shortened(folder.path(), "cable-pull", &["adaptive"]);
    let arguments = ["--rate", "50Mbit", "--time", "3s", "--repeat", "1"];
    let Some(results) = run(file.to_str().unwrap(), &arguments) else { return };
    harmless(&results);
    let rows = results["rows"].as_array().unwrap();
    let [two, _, one, _] = &rows[..] else { panic!("two runs, read and write: {rows:?}") };
    let seen = events(two);
    let when = |what: &str| {
        seen.iter().find(|event| event.0 == what).unwrap_or_else(|| panic!("{what}: {seen:?}")).1
    };
    assert!(when("lane1 pulled") >= 900.0 && when("lane1 plugged in") >= 1800.0, "{seen:?}");
    assert!(when("lane1 down") >= 900.0 && when("lane1 down") < 1800.0, "{seen:?}");
    assert!(number(&two["lanes_lost"]) >= 1.0);
    // The other lane carried on: what waited did so for a moment, not for the cable to be back.
    let stall = number(&results["figures"]["longest_stall_ms"]);
    assert!(stall < 800.0, "{stall} ms");
    // A single path waits out from 0.9 s to 1.5 s; TCP's next attempt may come as late again.
    let stall = number(&results["figures"]["one_path_stall_ms"]);
    assert!((450.0..20_000.0).contains(&stall), "{stall} ms");
    assert_eq!(events(one).len(), 2, "{one}");
}

#[test]
fn a_black_hole_and_a_target_that_comes_back_cost_time_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = shortened(folder.path(), "black-hole", &["adaptive"]);
    let arguments = ["--rate", "50Mbit", "--repeat", "1"];
    let Some(results) = run(file.to_str().unwrap(), &arguments) else { return };
    harmless(&results);
    let stall = number(&results["figures"]["longest_stall_ms"]);
    assert!(stall < 2500.0, "the lane is silent for 2.7 s, and given up before that: {stall} ms");

    let file = shortened(folder.path(), "target-restart", &["adaptive"]);
    let Some(results) = run(file.to_str().unwrap(), &arguments) else { return };
    harmless(&results);
    let figures = &results["figures"];
    assert!(number(&figures["resumed_ms"]) < 5000.0, "{figures}");
    assert!(number(&figures["nothing_completed_ms"]) > 1000.0, "there was no target for 1.5 s: {figures}");
}

#[test]
fn a_team_of_cards_gives_a_session_one_card_and_several_sessions_several() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("team.toml");
    let text = r#"
        name = "team"
        repeat = 1
        host = [{ name = "server" }, { name = "storage", luns = ["1=ram:64M"] }]
        cable = [
            { name = "lane1", ends = ["server.eth0", "storage.eth0"], rate = "50Mbit" },
            { name = "lane2", ends = ["server.eth1", "storage.eth1"], rate = "50Mbit" },
        ]
        [[run]]
        test = "D"
        control = true
        paths = "lane1"
        rw = "read"
        bs = "1M"
        size = "16M"
        time = "1s"
        [[run]]
        test = "A"
        paths = ["lane1", "lane2"]
        team = true
        rw = "read"
        bs = "1M"
        qd = 8
        size = "16M"
        time = "1s"
        [[run]]
        test = "A16"
        paths = ["lane1", "lane2"]
        team = true
        sessions = 16
        policy = "round-robin"
        rw = "read"
        bs = "64K"
        qd = 32
        size = "16M"
        time = "1s"
    "#;
    fs::write(&file, text).unwrap();
    let Some(results) = run(file.to_str().unwrap(), &[]) else { return };
    let alone = mb_s(&results, "D", "-");
    let one = mb_s(&results, "A", "-");
    assert!((0.8..1.15).contains(&(one / alone)), "a flow stays on its card: {one} against {alone} MB/s");
    // That all of sixteen flows meet on one card happens once in 32,768 times.
    let many = mb_s(&results, "A16", "round-robin");
    assert!(many > 1.1 * alone, "{many} against {alone} MB/s");
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
    let arguments = ["run", file.to_str().unwrap(), "--json-file", json.to_str().unwrap()];
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
    for name in ["control", "window-mtu", "sectors", "cable-pull", "two-lanes", "mpio-seven", "saturated"] {
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
    // A busy machine takes its time to calibrate the link, before which there is nothing to keep.
    let kept = [3, 10, 30].into_iter().find_map(|seconds| {
        let results = interrupted_after(Duration::from_secs(seconds));
        results["links"].get(0).is_some().then_some(results)
    });
    let results = kept.expect("the link is calibrated within half a minute");
    assert_eq!(results["links"][0]["name"], "lane1");
    for row in results["rows"].as_array().unwrap() {
        assert!(number(&row["mb_s"]) > 0.0);
    }
}

/// What an experiment leaves that is interrupted a while after all its processes have begun; whatever that is, it says
/// so.
fn interrupted_after(time: Duration) -> Value {
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
        "--json-file",
        json.to_str().unwrap(),
        "--html-file",
        page.to_str().unwrap(),
    ]);
    command.env("LUNWAY_TEST_MARK", folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Three of the lab's own, and the target: then it measures, or fills.
    let began = Instant::now();
    while marked(&mark) < 4 && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(time);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = wait(&mut child, PATIENCE).expect("it ends when it is asked");
    assert_eq!(status.code(), Some(1));
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(results["interrupted"], true);
    assert!(fs::read_to_string(&page).unwrap().contains("Interrupted: the results cover"));
    // The kernel takes a moment to end a namespace.
    let ended = Instant::now();
    while marked(&mark) > 0 && ended.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(marked(&mark), 0, "no process is left");
    results
}

fn lunway_in_a_sandbox() -> bool {
    let Some(_) = lunway_foreign::program("ip") else { return false };
    let nothing = Path::new("/proc/sys/user/max_user_namespaces");
    fs::read_to_string(nothing).is_ok_and(|count| count.trim() != "0")
}

/// Whether the programs of a share are here; else it is noted that this was not run.
fn has_share() -> bool {
    let folders = ["/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec"];
    let has_server = folders.iter().any(|folder| Path::new(folder).join("sftp-server").is_file());
    if !has_server {
        lunway_foreign::not_run("sftp-server");
    }
    if !Path::new("/dev/fuse").exists() {
        lunway_foreign::machine_lacks("/dev/fuse");
        return false;
    }
    lunway_foreign::program("sshfs").is_some() && has_server
}

/// The shipped experiment of backups with less data, fewer runs and one repeat.
fn small_backups(folder: &Path, tests: &[&str]) -> PathBuf {
    let text = succeed(lunway(&["lab", "show", "backup"])).replace("size = \"128M\"", "size = \"8M\"");
    // Less than a run has under way: how much of it is sent again is for the tests of backups.
    let text = text.replace("size = \"256M\"", "size = \"16M\"").replace("at = \"85%\"", "at = \"60%\"");
    let text =
        text.replace("time = \"5s\"", "time = \"2s\"").replace("patience = \"3s\"", "patience = \"1s\"");
    let (head, rest) = text.split_once("[[run]]").unwrap();
    let (runs, _) = rest.split_once("[[figure]]").unwrap();
    let is_wanted = |run: &&str| tests.iter().any(|test| run.contains(&format!("test = \"{test}\"")));
    let runs: Vec<String> =
        runs.split("[[run]]").filter(is_wanted).map(|run| format!("[[run]]{run}")).collect();
    assert_eq!(runs.len(), tests.len());
    let file = folder.join("backup.toml");
    fs::write(&file, format!("{head}{}", runs.concat())).unwrap();
    file
}

fn backup<'a>(results: &'a Value, test: &str) -> &'a Value {
    let mut backups = results["backups"].as_array().unwrap().iter();
    backups.find(|row| row["test"] == test).unwrap_or_else(|| panic!("{test}: {results}"))
}

#[test]
fn a_disk_is_backed_up_over_a_link_the_old_way_and_ours() {
    if !has_share() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tests = ["dynamic-untuned", "fixed-tuned", "full", "increment"];
    let file = small_backups(folder.path(), &tests);
    let page = folder.path().join("backup.html");
    let arguments = ["--rate", "50Mbit", "--repeat", "1", "--html-file", page.to_str().unwrap()];
    let Some(results) = run(file.to_str().unwrap(), &arguments) else { return };
    for test in tests {
        let row = backup(&results, test);
        assert_eq!((number(&row["unsound"]), number(&row["attempts"])), (0.0, 1.0), "{row}");
        let (needed, sent) = (number(&row["needed_mb"]), number(&row["sent_mb"]));
        // Headers of TCP and SFTP, tables and manifests; of an increment those are as much as its data.
        let most = if test == "increment" { 8.0 } else { 1.2 };
        assert!((1.0..most).contains(&(sent / needed)), "{row}");
        assert!(number(&row["stored_mb"]) >= needed, "{row}");
        assert!(number(&row["of_link"]) < 1.0, "{row}");
    }
    let full = backup(&results, "full");
    assert!(number(&full["needed_mb"]) > 8.3, "8 MiB: {full}");
    let increment = backup(&results, "increment");
    assert!(number(&increment["needed_mb"]) < 0.2 && number(&increment["read_mb"]) < 8.3, "{increment}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("copy into a dynamic VHDX") && page.contains("On the wire"));
}

#[test]
fn a_cut_makes_a_copy_begin_again_and_a_backup_go_on() {
    if !has_share() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tests = ["copy-pulled", "full-pulled", "full-hole"];
    let file = small_backups(folder.path(), &tests);
    let Some(results) = run(file.to_str().unwrap(), &["--rate", "25Mbit", "--repeat", "1"]) else { return };
    for test in tests {
        let row = backup(&results, test);
        assert_eq!((number(&row["unsound"]), number(&row["attempts"])), (0.0, 2.0), "{row}");
        let sample = &row["samples"][0];
        assert_eq!(sample["failures"].as_array().unwrap().len(), 1, "{row}");
        let events: Vec<_> = sample["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["what"].as_str().unwrap())
            .collect();
        let cut = if test == "full-hole" { "lan a black hole" } else { "lan pulled" };
        assert_eq!(events, [cut, "lan mended"], "{row}");
        let share = number(&row["sent_mb"]) / number(&row["needed_mb"]);
        let left = sample["left"].as_array().unwrap();
        match test {
            "copy-pulled" => {
                assert!(share > 1.5, "from the beginning: {row}");
                assert_eq!((left.len(), &left[0]["whole"]), (1, &false.into()), "{row}");
            }
            _ => assert!(left.is_empty(), "{row}"),
        }
    }
}

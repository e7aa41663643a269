//! `lunway bench` from outside: job files, streams, what `--live` draws on a terminal.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{PATIENCE, Served, finish, interrupted, lunway, measures, succeed};

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect()
}

fn count(lines: &[Value], event: &str) -> usize {
    lines.iter().filter(|line| line["event"] == event).count()
}

const JOBS: &str = "\
[global]
ioengine=libaio
bs=4k
size=1m
[reads]
rw=randread
iodepth=4
[writes]
rw=write
numjobs=2
[after]
stonewall
rw=randrw
rwmixread=70
verify=crc32c
";

#[test]
fn a_job_file_is_run_and_its_results_are_fios() {
    let folder = tempfile::tempdir().unwrap();
    let job = write(folder.path(), "jobs.fio", JOBS);
    let plus = folder.path().join("plus.json").to_str().unwrap().to_owned();
    let text = succeed(lunway(&["bench", "ram:8M", "--job", &job, "--json-plus-file", &plus]));
    for part in [
        "reads",
        "writes",
        "after",
        "blocks verified, 0 wrong",
        "Without effect: ioengine",
        "Load generator: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let document: Value = serde_json::from_str(&fs::read_to_string(&plus).unwrap()).unwrap();
    let names: Vec<_> =
        document["jobs"].as_array().unwrap().iter().map(|job| job["jobname"].clone()).collect();
    assert_eq!(names, ["reads", "writes", "after"]);
    assert!(document["jobs"][0]["read"]["clat_ns"]["bins"].is_object());
    assert_eq!(document["jobs"][1]["write"]["io_bytes"], 2 << 20, "each clone writes all of it");
    assert_eq!(document["lunway"]["complete"], true);
}

#[test]
fn what_a_job_file_cannot_mean_is_said_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let job = write(folder.path(), "jobs.fio", "[a]\nrw=read\nthinktime=5\n");
    let output = finish(lunway(&["bench", "ram:1M", "--job", &job]), PATIENCE);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("jobs.fio:3: thinktime=5 cannot be honoured"), "{said}");
    let missing = finish(lunway(&["bench", "ram:1M", "--job", "/nonexistent.fio"]), PATIENCE);
    assert_eq!(missing.status.code(), Some(1));
    let both = finish(lunway(&["bench", "ram:1M", "--json", "--stream", "-", "--rw", "read"]), PATIENCE);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_stream_shows_each_second_and_each_path_as_it_was() {
    let served = Served::start(&["--lun", "0=ram:8M"]);
    let arguments = ["bench", &served.url(0), "--rw", "randread", "--time", "2200ms", "--stream", "-"];
    let lines = lines(&succeed(lunway(&arguments)));
    assert_eq!((&lines[0]["event"], &lines[lines.len() - 1]["event"]), (&"start".into(), &"end".into()));
    assert_eq!(lines[lines.len() - 1]["complete"], true);
    assert_eq!(count(&lines, "job"), 1);
    let intervals: Vec<_> = lines.iter().filter(|line| line["event"] == "interval").collect();
    let ios: u64 = intervals.iter().map(|line| line["read"]["ios"].as_u64().unwrap()).sum();
    let job = lines.iter().find(|line| line["event"] == "job").unwrap();
    assert!(ios <= job["result"]["read"]["total_ios"].as_u64().unwrap(), "intervals are not running totals");
    let whole: Vec<_> = intervals.iter().filter(|line| line["interval_ms"].as_u64() > Some(900)).collect();
    assert!(!whole.is_empty(), "{lines:?}");
    let path = &whole[0]["paths"][0];
    assert_eq!((&path["name"], &path["state"]), (&served.address.clone().into(), &"up".into()));
    assert!(path["read_bytes_per_s"].as_f64() > Some(0.0) && path["rtt_us"].as_f64() > Some(0.0), "{path}");
}

#[test]
fn an_interrupted_run_leaves_a_whole_stream_a_whole_page_and_whole_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (stream, html, json) = (path("run.ndjson"), path("run.html"), path("run.json"));
    let mut command = lunway(&["bench", "ram:8M", "--profile", "anvil", "--time", "30s"]);
    command.args(["--stream", &stream, "--html-file", &html, "--json-file", &json]);
    let output = interrupted(command, || measures(&stream));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    let lines = lines(&fs::read_to_string(&stream).unwrap());
    assert_eq!(lines[lines.len() - 1]["complete"], false);
    assert!(count(&lines, "interval") > 0);
    let document: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(
        (&document["lunway"]["complete"], &document["profile"]["complete"]),
        (&false.into(), &false.into())
    );
    assert!(fs::read_to_string(html).unwrap().trim_end().ends_with("</html>"));
}

/// What a terminal gets.
fn on_a_terminal(command: &str) -> Option<String> {
    let script = lunway_foreign::program("script")?;
    let mut terminal = Command::new(script);
    terminal
        .args(["-qec", command, "/dev/null"])
        .env("TERM", "xterm")
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100");
    let output = finish(terminal, PATIENCE);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn live_draws_on_the_other_screen_and_gives_the_terminal_back() {
    let bench =
        format!("{} bench ram:8M --rw randrw --time 1500ms --destroy --live", env!("CARGO_BIN_EXE_lunway"));
    let Some(text) = on_a_terminal(&bench) else { return };
    let (_, drawn) = text.split_once(ENTER).expect("the other screen");
    let (drawn, after) = drawn.split_once(LEAVE).expect("and back");
    assert!(drawn.matches("\x1b[H").count() >= 3, "{drawn:?}");
    assert!(drawn.contains("randrw 4 KiB QD1 (1 of 1), measuring"), "{drawn:?}");
    assert!(drawn.contains("p99  ") && !drawn.contains("\x1b[1m"), "NO_COLOR: {drawn:?}");
    assert!(
        after.contains("randrw") && !after.contains(ENTER),
        "the table stands where it can be read: {after:?}"
    );
}

#[test]
fn an_interrupted_live_view_gives_the_terminal_back_too() {
    let lunway = env!("CARGO_BIN_EXE_lunway");
    let bench = format!("timeout -s INT -k 60 1.5 {lunway} bench ram:8M --rw randread --time 1m --live");
    let Some(text) = on_a_terminal(&bench) else { return };
    let (_, after) = text.split_once(LEAVE).expect("the screen from before");
    assert!(after.contains("interrupted"), "{after:?}");
}

#[test]
fn without_a_terminal_live_is_a_line_a_second_and_says_so() {
    let output =
        finish(lunway(&["bench", "ram:8M", "--rw", "randread", "--time", "1200ms", "--live"]), PATIENCE);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("is not a terminal"), "{said}");
    assert!(said.lines().any(|line| line.contains("read") && line.contains("p99")), "{said}");
    assert!(!said.contains('\x1b'), "{said:?}");
}

#[test]
fn the_script_takes_the_jobs_own_rate_from_a_result_that_has_the_wires_too() {
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("run.json").to_str().unwrap().to_owned();
    let served = Served::start(&["--lun", "0=ram:8M"]);
    let url = served.url(0);
    succeed(lunway(&["bench", &url, "--rw", "randread", "--time", "200ms", "--json-file", &result]));
    let text = fs::read_to_string(&result).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let own = json["jobs"][0]["read"]["iops"].as_f64().unwrap();
    let all = text.lines().filter_map(|line| line.trim().strip_prefix("\"iops\":"));
    let mut all = all.filter_map(|figure| figure.trim_matches([' ', ',']).parse::<f64>().ok());
    // On a machine that is idle the wire is several times faster.
    assert!(all.any(|figure| figure > 0.0 && (figure / own - 1.0).abs() > 0.01), "the wire is in it");
    let function = include_str!("../../../script/bench").split_once("\nrate() {").unwrap().1;
    let function = function.split_once("\n}").unwrap().0;
    let shell = format!("rate() {{{function}\n}}; rate \"$@\"");
    let said = Command::new("bash").args(["-c", &shell, "bash", &result, "read"]).output().unwrap();
    let said: f64 = String::from_utf8(said.stdout).unwrap().trim().parse().unwrap();
    assert!((said / own - 1.0).abs() < 1e-3, "{said} of {own}");
}

/// The table's share of the wire: measured again where it cannot be, and unknown where that does not help.
#[test]
fn the_performance_table_shows_no_share_that_cannot_be() {
    let script = include_str!("../../../script/bench");
    let function = |name: &str| {
        let (_, rest) = script.split_once(&format!("\n{name}() {{")).unwrap();
        // A function of one line ends with it.
        let end = if rest.starts_with('\n') { "\n}" } else { "; }\n" };
        format!("{name}() {{{}{end}\n", rest.split_once(end).unwrap().0)
    };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("0.wire"), "90\n100\n110\n").unwrap();
    let stub = "measure() { [ \"$*\" = \"wire - write 1048576 16 -\" ] && echo \"$AGAIN\"; }\nrounds=3\n";
    let rows = [
        ("90", "1", "100 0.90"),
        ("105", "1", "100 1.05"),
        ("140", "130", "130 1.08"),
        ("140", "120", "120 unknown"),
    ];
    for (ours, again, expected) in rows {
        let call = format!("work={}\nwire_and_share {ours} 0 write 1048576 16", folder.path().display());
        let script = [function("median"), function("wire_and_share"), stub.to_owned(), call].concat();
        let _ = fs::remove_file(folder.path().join("0.again"));
        let mut command = Command::new("bash");
        command.args(["-euc", &script]).env("AGAIN", again);
        assert_eq!(succeed(command).trim(), expected, "{ours} {again}");
    }
}

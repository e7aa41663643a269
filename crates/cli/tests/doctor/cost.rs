//! What a run costs in time and in the target's IOPS, and what taking lanes down shows.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{PATIENCE, Served, finish, lunway, succeed};
use crate::{doctor, findings, verdicts};

/// A disk with two lanes on this machine, over two portals of one target.
fn two_lanes() -> (Served, String) {
    two_lanes_with(&[])
}

fn two_lanes_with(options: &[&str]) -> (Served, String) {
    let served = Served::start(&[&["--listen", "127.0.0.1:0", "--lun", "0=ram:64M"], options].concat());
    let portals: Vec<String> = served
        .ready
        .iter()
        .filter_map(|line| line.strip_prefix("listening on "))
        .map(str::to_owned)
        .collect();
    assert_eq!(portals.len(), 2, "{:?}", served.ready);
    let url = format!(
        "{}?lane=127.0.0.1%3E{}&lane=127.0.0.1%3E{}&plan=explicit",
        served.url(0),
        portals[0],
        portals[1]
    );
    (served, url)
}

#[test]
fn lanes_are_taken_down_only_in_agreement_and_the_disk_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (served, url) = two_lanes();
    let refused = finish(doctor(&[&url, "--pull"], folder.path()), PATIENCE);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("agree with --yes"), "{said}");
    let output = finish(doctor(&[&url, "--pull", "--yes"], folder.path()), PATIENCE);
    let found = findings(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("2 lanes to") && said.contains("those of this command alone"), "{said}");
    let pulled: Vec<&Value> = found.iter().filter(|one| one["id"] == "lane-pull").collect();
    assert_eq!(pulled.len(), 2, "{found:#?}");
    for one in pulled {
        // A machine that is busy with other tests may pause a read for longer than 1.05 s; none may fail.
        let what = one["what"].as_str().unwrap();
        assert!(what.contains("and 0 of") && one["verdict"] != "bad", "{one}");
        println!("{what}");
    }
    let back = verdicts(&found, "lane-return");
    assert!(back.len() == 2 && !back.contains(&"bad".to_owned()), "{back:?}");
    // One lane alone is not taken down.
    drop(served);
    let single = Served::start(&["--lun", "0=ram:1M"]);
    let alone = finish(doctor(&[&single.url(0), "--pull", "--yes"], folder.path()), PATIENCE);
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(alone.status.code() == Some(1) && said.contains("has one lane"), "{said}");
}

/// IOPS of a load of reads on a disk, for a time: `6s`.
fn iops(url: &str, time: &str) -> f64 {
    let arguments = ["bench", url, "--rw", "randread", "--bs", "4K", "--qd", "4", "--time", time, "--json"];
    let text = succeed(lunway(&arguments));
    let document: Value = serde_json::from_str(&text).unwrap();
    document["jobs"][0]["read"]["iops"].as_f64().unwrap()
}

#[test]
fn probes_end_in_time_with_a_silent_lane_and_leave_the_load_its_iops() {
    let folder = tempfile::tempdir().unwrap();
    let (_served, url) = two_lanes();
    // Its kernel takes connections, and no more comes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let with_silent = format!("{url}&lane=127.0.0.1%3E{}", silent.local_addr().unwrap());
    let began = Instant::now();
    let found = findings(&finish(doctor(&[&with_silent, "--probe"], folder.path()), PATIENCE));
    let took = began.elapsed();
    let mut answers = verdicts(&found, "lane-answers");
    answers.sort();
    assert_eq!(answers, ["bad", "ok", "ok"], "{found:#?}");
    // 15 s on an idle machine; here others may run.
    assert!(took < Duration::from_secs(60), "{took:?}");
    let began = Instant::now();
    finish(doctor(&[&url], folder.path()), PATIENCE);
    let unprobed = began.elapsed();
    assert!(unprobed < Duration::from_secs(30), "{unprobed:?}");

    let disk = url.split('?').next().unwrap().to_owned();
    let before = iops(&disk, "6s");
    let during = thread::scope(|scope| {
        let load = scope.spawn(|| iops(&disk, "6s"));
        let output = finish(doctor(&[&url, "--probe"], folder.path()), PATIENCE);
        assert_eq!(verdicts(&findings(&output), "lane-answers"), ["ok", "ok"]);
        load.join().unwrap()
    });
    let after = iops(&disk, "6s");
    println!(
        "probes with a silent lane {took:?}, no probes {unprobed:?}, IOPS {before:.0}, {during:.0} while probed, {after:.0}"
    );
    // 1 % where processors are idle; here both ends and other tests share two.
    assert!(during > 0.3 * before.min(after), "{before} {during} {after}");
}

/// The longest time that a run may take with probes: what it costs is spread over this.
const WINDOW: &str = "15s";
/// Pairs of a window without a run and one with it, in turns, so that a drift of the machine meets both.
const PAIRS: usize = 5;

#[test]
#[ignore = "an instrument: it needs a machine that does nothing else"]
fn a_run_takes_at_most_one_percent_of_the_iops_and_five_or_fifteen_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let (served, url) = two_lanes_with(&["--socket", socket.to_str().unwrap()]);
    let disk = url.split('?').next().unwrap().to_owned();
    let mut failed = Vec::new();
    for (name, arguments, seconds) in [
        ("this machine and a target", vec!["--socket", socket.to_str().unwrap()], 5.0),
        ("a disk, probed", vec![url.as_str(), "--probe"], 15.0),
    ] {
        let (mut shares, mut times) = (Vec::new(), Vec::new());
        let mut before = iops(&disk, WINDOW);
        for _ in 0..PAIRS {
            let during = thread::scope(|scope| {
                let load = scope.spawn(|| iops(&disk, WINDOW));
                // The load has begun.
                thread::sleep(Duration::from_secs(1));
                let began = Instant::now();
                finish(doctor(&arguments, folder.path()), PATIENCE);
                times.push(began.elapsed().as_secs_f64());
                load.join().unwrap()
            });
            let after = iops(&disk, WINDOW);
            shares.push(100.0 * (1.0 - during / ((before + after) / 2.0)));
            before = after;
        }
        shares.sort_by(f64::total_cmp);
        let longest = times.iter().copied().fold(0.0, f64::max);
        println!("{name}: {:.2} % of the IOPS of {WINDOW} ({shares:.2?}), {longest:.2} s", shares[PAIRS / 2]);
        if shares[PAIRS / 2] > 1.0 || longest > seconds {
            failed.push(name);
        }
    }
    drop(served);
    assert!(failed.is_empty(), "{failed:?}");
}

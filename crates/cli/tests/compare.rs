//! `lunway compare` from outside.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use lunway_foreign::{View, look};
use serde_json::Value;
use support::{PATIENCE, finish, image, interrupted, lunway, succeed};

/// Runs that are over soon; six pairs are the fewest that tell.
const QUICK: [&str; 6] = ["--time", "60ms", "--ramp", "5ms", "--pairs", "6"];

#[test]
fn a_device_with_three_times_the_delay_is_slower_and_the_page_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, html) = (path("compare.json"), path("compare.html"));
    let mut arguments =
        vec!["compare", "delay:1ms:ram:16M", "delay:4ms:ram:16M,sector=4096", "--labels", "near,far"];
    arguments.extend(["--rw", "randread", "--rounds", "1", "--json-file", &json, "--html-file", &html]);
    arguments.extend(QUICK);
    let output = finish(lunway(&arguments), PATIENCE);
    let (table, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{table}{said}");
    assert!(table.contains("far is slower than near"), "{table}");
    assert!(said.contains("1 row on 2 devices, the control twice, 6 pairs"), "{said}");

    let json: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let row = &json["rows"][0];
    assert_eq!((row["verdict"].as_str(), row["pairs"].as_u64()), (Some("slower"), Some(6)), "{json}");
    assert!(row["ci_high_pct"].as_f64().unwrap() < 0.0 && row["ci_low_pct"].as_f64().unwrap() < -30.0);
    assert_eq!(json["lunway"]["kind"], "compare");
    assert!(json["aa"].is_array() && json["trust"]["ok"].is_boolean() && json["environment"].is_array());

    for view in View::ALL {
        if let Some(looked) = look(html.as_ref(), folder.path(), view) {
            assert!(looked.charts > 0 && looked.problems.is_empty(), "{:?}", looked.problems);
        }
    }
}

#[test]
fn devices_that_hold_data_are_only_read_and_an_interrupt_gives_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    image(&disk, 4 << 20, 1 << 20);
    let before = fs::read(&disk).unwrap();
    let mut arguments = vec!["compare", disk.to_str().unwrap(), disk.to_str().unwrap(), "--json"];
    arguments.extend(["--size", "4M", "--time", "100ms", "--pairs", "200"]);
    let start = Instant::now();
    let output = interrupted(lunway(&arguments), || start.elapsed() > Duration::from_secs(4));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--destroy") && said.contains("interrupted"), "{said}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["complete"], false);
    assert!(
        json["rows"].as_array().unwrap().iter().all(|row| row["name"].as_str().unwrap().starts_with("read"))
    );
    assert!(fs::read(&disk).unwrap() == before, "the disk is as it was");
}

/// Every run was made to its end, and the verdict was "cannot tell".
#[test]
fn a_device_that_returns_only_errors_ends_the_comparison_also_if_they_are_slow() {
    for control in ["fault:read:ram:16M", "delay:20ms:fault:read:ram:16M"] {
        let words = [&["compare", control, "ram:16M", "--rw", "randread"][..], &QUICK].concat();
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("ended early: ") && said.contains("returned only errors; the first: "),
            "{said}"
        );
    }
}

/// Its end waited five seconds for each file, which it had open itself.
#[test]
fn files_that_are_compared_are_closed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["a.img", "b.img"] {
        fs::File::create(path(name)).unwrap().set_len(1 << 20).unwrap();
    }
    let short = [
        "--rw", "randread", "--size", "64K", "--pairs", "6", "--rounds", "1", "--time", "1ms", "--ramp",
        "0ms",
    ];
    // On a busy machine one may be late; not each of three.
    let quick = (0..3).any(|_| {
        let start = Instant::now();
        succeed(lunway(&[&["compare", &path("a.img"), &path("b.img"), &path("a.img")], &short[..]].concat()));
        start.elapsed() < Duration::from_secs(8)
    });
    assert!(quick, "it waits for something");
}

#[test]
fn what_cannot_be_compared_is_wrong_usage() {
    for (arguments, part) in [
        (&["compare", "ram:1M"][..], "2"),
        (&["compare", "ram:1M", "ram:1M,sector=1000"], "512 or 4096"),
        (&["compare", "ram:1M", "ram:1M", "--pairs", "3"], "at least 6 are needed"),
        (&["compare", "ram:1M", "ram:1M", "--margin", "0"], "margin"),
        (&["compare", "ram:1M", "ram:1M", "--labels", "one"], "--labels"),
        (&["compare", "ram:1M", "ram:1M", "--rw", "read", "--mix", "30"], "--mix"),
    ] {
        let output = finish(lunway(arguments), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

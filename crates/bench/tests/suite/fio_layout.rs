//! The JSON has the fields of a real fio, where one is installed.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::support::Memory;
use lunway_bench::{Cancel, Job, Limit, Mix, fio, run};
use serde_json::Value;

async fn ours() -> Value {
    let mut job = Job::new("layout");
    job.mix = Mix { read_percent: 50 };
    job.limit = Limit::Time(Duration::from_millis(250));
    job.destroy = true;
    let outcome = run(Arc::new(Memory::new(1 << 20)), &job, &mut |_| (), &Cancel::new()).await.unwrap();
    fio::to_json(&[outcome])
}

/// Every path to a value, with its type: `jobs[].read.iops: number`.
fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| paths(value, &format!("{at}.{key}"), into));
        }
        Value::Array(values) => values.iter().for_each(|value| paths(value, &format!("{at}[]"), into)),
        Value::Number(_) => drop(into.insert(format!("{at}: number"))),
        Value::String(_) => drop(into.insert(format!("{at}: text"))),
        other => drop(into.insert(format!("{at}: {other}"))),
    }
}

#[tokio::test]
async fn the_fields_that_parsers_read_are_there_and_agree() {
    let json = ours().await;
    let job = &json["jobs"][0];
    for direction in ["read", "write"] {
        let figures = &job[direction];
        let number = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{direction}.{key}"));
        assert_eq!(number("io_bytes"), number("total_ios") * 4096.0);
        assert!((number("bw_bytes") / (number("iops") * 4096.0) - 1.0).abs() < 1e-3);
        assert!((number("bw") * 1024.0 / number("bw_bytes") - 1.0).abs() < 1e-2);
        let latency = &figures["clat_ns"];
        assert_eq!(latency["N"], figures["total_ios"]);
        let p = |key: &str| latency["percentile"][key].as_f64().unwrap();
        assert!(p("50.000000") <= p("99.000000") && p("99.000000") <= p("99.990000"));
        assert!(latency["max"].as_f64().unwrap() >= p("99.990000"));
    }
    assert_eq!(job["jobname"], "layout");
    assert_eq!(job["job options"]["rw"], "randrw");
    assert!(json["fio version"].as_str().unwrap().starts_with("lunway-"));
}

#[tokio::test]
async fn the_layout_has_every_field_of_an_installed_fio() {
    let Some(program) = lunway_foreign::program("fio") else { return };
    let fio = Command::new(program)
        .args([
            "--name=layout",
            "--ioengine=null",
            "--size=1m",
            "--rw=randrw",
            "--bs=4k",
            "--time_based",
            "--runtime=1",
        ])
        .arg("--output-format=json")
        .output()
        .unwrap();
    let text = String::from_utf8(fio.stdout).unwrap();
    let theirs: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let (mut expected, mut found) = (BTreeSet::new(), BTreeSet::new());
    paths(&theirs, "", &mut expected);
    paths(&ours().await, "", &mut found);
    let missing: Vec<_> =
        expected.difference(&found).filter(|path| !path.contains(".job options.")).collect();
    let differs_by_version = |path: &str| path.contains("disk_util") || path.contains("cpu");
    let missing: Vec<_> = missing.into_iter().filter(|path| !differs_by_version(path)).collect();
    assert!(missing.is_empty(), "fio has, we have not: {missing:#?}");
}

//! JSON+ as the programs that come with fio read it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lunway_bench::fio::{self, Did};
use lunway_bench::{Cancel, Job, Limit, Mix, Outcome, Rate, run};
use serde_json::Value;

use crate::support::Memory;

async fn outcome() -> Outcome {
    let mut job = Job::new("plus");
    job.mix = Mix { read_percent: 50 };
    job.limit = Limit::Time(Duration::from_millis(250));
    job.rate = Some(Rate::Iops(2000));
    job.destroy = true;
    run(Arc::new(Memory::new(1 << 20)), &job, &mut |_| (), &Cancel::new()).await.unwrap()
}

#[tokio::test]
async fn every_io_is_in_a_bin_of_each_latency_and_percentiles_lie_in_bins() {
    let json = fio::to_json_plus(&[outcome().await]);
    for direction in ["read", "write"] {
        let figures = &json["jobs"][0][direction];
        for latency in ["slat_ns", "clat_ns", "lat_ns"] {
            let latency = &figures[latency];
            let bins = latency["bins"].as_object().unwrap();
            let count: u64 = bins.values().map(|count| count.as_u64().unwrap()).sum();
            assert_eq!(count, figures["total_ios"].as_u64().unwrap(), "{latency}");
            let median = latency["percentile"]["50.000000"].as_f64().unwrap();
            let near = |bin: &String| (bin.parse::<f64>().unwrap() - median).abs() <= median / 100.0 + 1.0;
            assert!(bins.keys().any(near), "{median}: {bins:?}");
        }
    }
    let plain = fio::to_json(&[outcome().await]);
    assert!(plain["jobs"][0]["read"]["clat_ns"].get("bins").is_none());
}

fn convert(script: &Path, document: &Value, folder: &Path, validate: bool) -> String {
    std::fs::write(folder.join("plus.json"), document.to_string()).unwrap();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).arg(script).args(["plus.json", "plus.csv"]).current_dir(folder);
    if validate {
        command.arg("--validate");
    }
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said
}

#[tokio::test]
async fn fios_own_script_makes_a_table_of_it_and_finds_it_right() {
    let Some(script) = lunway_foreign::program("fio_jsonplus_clat2csv") else { return };
    let folder = tempfile::tempdir().unwrap();
    let document = fio::to_json_plus(&[outcome().await, outcome().await]);
    convert(&script, &document, folder.path(), false);
    let table = |job: u8| -> PathBuf { folder.path().join(format!("plus_job{job}.csv")) };
    let text = std::fs::read_to_string(table(0)).unwrap();
    assert!(text.starts_with("nsec, ") && text.lines().count() > 2, "{text}");
    assert!(table(1).exists());
    let said = convert(&script, &document, folder.path(), true);
    assert_eq!(said.matches("validated").count(), 2, "{said}");
}

#[tokio::test]
async fn what_we_write_is_read_back_as_it_was() {
    let outcome = outcome().await;
    for document in
        [fio::to_json(std::slice::from_ref(&outcome)), fio::to_json_plus(std::slice::from_ref(&outcome))]
    {
        let imported = fio::parse(&document.to_string()).unwrap();
        let dids: Vec<_> = imported.iter().map(|one| one.direction).collect();
        assert_eq!(dids, [Did::Read, Did::Write]);
        let read = &imported[0];
        assert_eq!((read.name.as_str(), read.ios), ("plus", outcome.read.ios));
        assert!((read.iops / outcome.read.iops() - 1.0).abs() < 1e-9);
        assert!((read.bytes_per_s / outcome.read.bytes_per_second() - 1.0).abs() < 1e-3);
        assert!((read.mean_ns.unwrap() - outcome.read.response.mean()).abs() < 1.0);
    }
}

#[test]
fn what_fio_writes_is_read_too() {
    let Some(fio) = lunway_foreign::program("fio") else { return };
    for format in ["json", "json+", "normal,json"] {
        let run = Command::new("timeout")
            .args(["-s", "KILL", "30"])
            .arg(&fio)
            .args(["--name=theirs", "--ioengine=null", "--size=1m", "--rw=randrw", "--bs=4k"])
            .arg(format!("--output-format={format}"))
            .output()
            .unwrap();
        let imported = fio::parse(&String::from_utf8(run.stdout).unwrap()).unwrap();
        let [read, write] = &imported[..] else { panic!("{format}: {imported:?}") };
        assert_eq!((read.name.as_str(), read.ios + write.ios), ("theirs", 256), "{format}");
        assert!(read.mean_ns.is_some() && read.percentile_ns(99.0).is_some());
    }
}

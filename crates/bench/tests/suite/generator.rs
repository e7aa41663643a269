//! What the generator costs by itself.

use std::process::Command;
use std::time::Duration;

use lunway_bench::generator_cost;
use serde_json::Value;

/// I/Os per second of processor time of fio's engine that does nothing, where fio is installed.
fn fio_null(depth: u32) -> Option<f64> {
    let output = Command::new(lunway_foreign::program("fio")?)
        .args(["--name=null", "--ioengine=null", "--size=1g", "--rw=randread", "--bs=4k", "--thread"])
        .args(["--time_based", "--runtime=400ms", "--output-format=json", &format!("--iodepth={depth}")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let job = &json["jobs"][0];
    let number = |value: &Value| value.as_f64().unwrap();
    let busy = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
    Some(number(&job["read"]["iops"]) / busy)
}

#[test]
fn the_generator_itself_is_no_burden() {
    let ours = generator_cost(Duration::from_millis(200)).unwrap();
    assert!((ours.iops_per_core * ours.ns_per_io / 1e9 - 1.0).abs() < 1e-9);
    let Some(fio) = fio_null(1) else { return };
    let ratio = ours.iops_per_core / fio.max(fio_null(32).unwrap());
    assert!(ratio > 1.5, "{ratio:.2} of fio's null engine, {:.0} ns for each I/O", ours.ns_per_io);
}

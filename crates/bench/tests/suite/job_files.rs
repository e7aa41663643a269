//! Job files: run, and understood as a real fio understands them, where one is installed.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lunway_bench::fio::{self, JobFile};
use lunway_bench::stream::Stream;
use lunway_bench::{Cancel, End, Event, Outcome, Schedule};
use lunway_block::BlockDevice;
use serde_json::Value;

use crate::support::{Delayed, Memory};

/// What people write, without what only fio or only we take.
const TYPICAL: &str = "\
; a comment
[global]
ioengine=libaio
direct=1
bs=4k
size=64k
group_reporting
filename=/nonexistent

[mixed]
rw=randrw
rwmixread=70
bssplit=4k/60:8k/40,8k/100
iodepth=8
random_distribution=zipf:1.2
randseed=7

[beside]   # at the same time
rw=write
rate_iops=2000
rate_process=poisson
verify=crc32c

[after]
stonewall
rw=randread
norandommap
bs=512
io_size=128k
loops=2
";

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typical.fio");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn schedule(text: &str, device: &dyn BlockDevice) -> Schedule {
    let (_folder, path) = file(text);
    JobFile::read(&path).unwrap().schedule(&device.geometry(), true).unwrap()
}

async fn run(schedule: &Schedule, device: Arc<dyn BlockDevice>) -> (Vec<Outcome>, Vec<String>) {
    let mut ended = Vec::new();
    let mut watch = |event: Event<'_>| {
        if let Event::Done(step, outcome) = event {
            assert_eq!(step.name, outcome.job.name);
            ended.push(step.name.to_owned());
        }
    };
    let outcomes = schedule.run(&device, &mut watch, &Cancel::new()).await.unwrap();
    (outcomes, ended)
}

#[tokio::test]
async fn a_typical_file_does_what_it_says() {
    let device = Arc::new(Memory::new(1 << 20));
    let (outcomes, ended) = run(&schedule(TYPICAL, &*device), device.clone()).await;
    let names: Vec<_> = outcomes.iter().map(|outcome| outcome.job.name.as_str()).collect();
    assert_eq!(names, ["mixed", "beside", "after"], "in the order of the file");
    assert_eq!(ended.last().unwrap(), "after", "it waits for the others");
    let [mixed, beside, after] = &outcomes[..] else { panic!() };
    let bytes = |outcome: &Outcome| outcome.read.bytes + outcome.write.bytes;
    assert!((60 << 10..=64 << 10).contains(&bytes(mixed)), "{}", bytes(mixed));
    assert_eq!((beside.write.bytes, beside.read.ios), (64 << 10, 0));
    assert_eq!(beside.verification.as_ref().unwrap().checked, 16);
    assert_eq!(after.read.ios, (256 << 10) / 512);
    assert!(outcomes.iter().all(|outcome| outcome.end == End::Limit && outcome.errors() == 0));
}

#[tokio::test]
async fn sections_side_by_side_really_are() {
    let device = Arc::new(Delayed::new(Memory::new(1 << 20), Duration::from_millis(5)));
    let text = "[global]\nrw=read\nbs=4k\nsize=64k\n[a]\n[b]\n[c]\n";
    let (outcomes, _) = run(&schedule(text, &*device), device.clone()).await;
    assert_eq!(outcomes.len(), 3);
    assert_eq!(device.most_in_flight.load(std::sync::atomic::Ordering::SeqCst), 3, "one of each");
}

#[tokio::test]
async fn nothing_starts_where_one_section_would_destroy_something() {
    let memory = Memory::new(1 << 20);
    memory.poke(600 << 10, b"precious");
    let device: Arc<dyn BlockDevice> = Arc::new(memory);
    let (_folder, path) = file("[a]\nrw=write\nsize=64k\n[b]\nstonewall\nrw=write\noffset=512k\nsize=256k\n");
    let schedule = JobFile::read(&path).unwrap().schedule(&device.geometry(), false).unwrap();
    let mut ticks = 0;
    let mut watch = |event: Event<'_>| ticks += u32::from(!matches!(event, Event::Looking(_)));
    let refused = schedule.run(&device, &mut watch, &Cancel::new()).await;
    assert!(refused.is_err() && ticks == 0);
}

#[tokio::test]
async fn an_interrupted_schedule_gives_what_had_begun_and_a_whole_stream() {
    let device: Arc<dyn BlockDevice> = Arc::new(Delayed::new(Memory::new(1 << 20), Duration::from_millis(1)));
    let text = "[global]\nrw=read\nruntime=60\ntime_based\n[a]\n[b]\n[later]\nstonewall\n";
    let schedule = schedule(text, &*device);
    let (cancel, mut out) = (Cancel::new(), Vec::new());
    let mut stream = Stream::start(&mut out, "memory", "two stages", device.paths()).unwrap();
    let mut ticked = HashSet::new();
    let outcomes = schedule
        .run(
            &device,
            &mut |event| match event {
                Event::Tick(step, tick) => {
                    stream.tick(step, tick, &|| device.paths()).unwrap();
                    // Both jobs of the first stage have begun.
                    ticked.insert(step.index);
                    if ticked.len() == 2 {
                        cancel.cancel();
                    }
                }
                Event::Looking(_) => {}
                Event::Done(step, outcome) => {
                    stream.ended(step, &|| device.paths()).unwrap();
                    stream.job(outcome).unwrap();
                }
            },
            &cancel,
        )
        .await
        .unwrap();
    stream.end(false).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.end == End::Cancelled) && outcomes.len() == 2);
    let lines: Vec<Value> =
        std::str::from_utf8(&out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!((count("start"), count("job"), count("end")), (1, 2, 1));
    assert!(count("interval") >= 2, "what was left of each second");
    let imported = fio::import(&serde_json::json!({ "jobs": [lines[lines.len() - 2]["result"]] })).unwrap();
    assert_eq!(imported.len(), 1, "a job's line is fio's object");
}

#[test]
fn fio_takes_the_files_that_we_take() {
    let Some(fio) = lunway_foreign::program("fio") else { return };
    let (_folder, path) = file(TYPICAL);
    let parsed =
        Command::new("timeout").args(["-s", "KILL", "20"]).arg(fio).arg("--parse-only").arg(&path).output();
    let parsed = parsed.unwrap();
    let said =
        String::from_utf8_lossy(&parsed.stderr).into_owned() + &String::from_utf8_lossy(&parsed.stdout);
    assert!(parsed.status.success(), "{said}");
}

#[tokio::test]
async fn fio_takes_what_our_json_calls_the_options_of_a_job() {
    let Some(fio) = lunway_foreign::program("fio") else { return };
    let device = Arc::new(Memory::new(1 << 20));
    let (outcomes, _) = run(&schedule(TYPICAL, &*device), device.clone()).await;
    let mut text = String::new();
    for job in fio::to_json(&outcomes)["jobs"].as_array().unwrap() {
        text += &format!("[{}]\nioengine=null\n", job["jobname"].as_str().unwrap());
        for (key, value) in job["job options"].as_object().unwrap() {
            text += &format!("{key}={}\n", value.as_str().unwrap());
        }
    }
    let (_folder, path) = file(&text);
    let parsed =
        Command::new("timeout").args(["-s", "KILL", "20"]).arg(fio).arg("--parse-only").arg(&path).output();
    let parsed = parsed.unwrap();
    assert!(parsed.status.success(), "{text}\n{}", String::from_utf8_lossy(&parsed.stderr));
    assert!(JobFile::read(&path).is_ok(), "and so do we: {text}");
}

#[test]
fn every_key_of_an_installed_fio_is_honoured_named_or_refused() {
    let Some(fio) = lunway_foreign::program("fio") else { return };
    let list = Command::new("timeout").args(["-s", "KILL", "20"]).arg(fio).arg("--cmdhelp").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let keys: Vec<_> =
        list.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key.trim()).collect();
    assert!(keys.len() > 150, "{list}");
    let known = |key: &&&str| !fio::KEYS.iter().any(|(names, _)| names.contains(*key));
    let missing: Vec<_> = keys.iter().filter(known).collect();
    assert!(missing.is_empty(), "fio has, we do not know: {missing:?}");
}

//! A soak: sessions come, go, abort and get dropped; memory and descriptors of the daemon stay flat, and data is
//! verified throughout.
//!
//! As a test it is short. `script/soak` runs it as long and as wide as is asked for, against a release build:
//!
//! - `LUNWAY_SOAK_SECONDS`: how long, 12 if not said.
//! - `LUNWAY_SOAK_SESSIONS`: how many at a time, 40 if not said.
//! - `LUNWAY_SOAK_BINARY`: another `lunway` than the one that was just built.

mod client;
mod daemon;
mod hostile;
mod polite;
mod region;
mod rude;
mod tally;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::daemon::{Daemon, Sample};
use crate::rude::Rude;
use crate::tally::Tally;

/// What may come and go between two looks: a few sessions more or less at the moment.
const MEMORY_SLACK_KIB: u64 = 8 << 10;
const DESCRIPTORS_SLACK: usize = 10;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Of ten sessions, four are polite, two are polite over a connection that breaks, one cuts, two abort and reset, and
/// one is hostile.
fn spawn(sessions: &mut JoinSet<()>, slot: u64, daemon: &Daemon, tally: &Arc<Tally>) {
    let (address, tally) = (daemon.address, tally.clone());
    match slot % 10 {
        0..4 => sessions.spawn(polite::live(slot, address, false, tally)),
        4 | 5 => sessions.spawn(polite::live(slot, address, true, tally)),
        6 => sessions.spawn(Rude { slot, address, storms: false, tally }.live()),
        7 | 8 => sessions.spawn(Rude { slot, address, storms: true, tally }.live()),
        _ => sessions.spawn(hostile::live(slot, address, tally)),
    };
}

fn median(samples: &[Sample], what: impl Fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(what).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn print_row(time: Duration, sample: Sample, tally: &Tally) {
    let counters: Vec<String> =
        tally.counters().into_iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!(
        "{:>6.0} s  {:>7.1} MiB  {:>4} descriptors  {:>3} threads  {}",
        time.as_secs_f64(),
        sample.memory_kib as f64 / 1024.0,
        sample.descriptors,
        sample.threads,
        counters.join(", ")
    );
}

#[test]
fn sessions_come_go_abort_and_get_dropped_and_nothing_is_left_of_them() {
    let time = Duration::from_secs(setting("LUNWAY_SOAK_SECONDS", 12));
    let count = setting("LUNWAY_SOAK_SESSIONS", 40);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let verdict = runtime.block_on(soak(time, count));
    assert_eq!(verdict, Vec::<String>::new());
}

/// What is wrong; nothing, if nothing is.
async fn soak(time: Duration, count: u64) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder to write to");
    let mut daemon = Daemon::start(folder.path(), count);
    let tally = Arc::new(Tally::default());
    let before = daemon.sample();
    print_row(Duration::ZERO, before, &tally);

    let mut sessions = JoinSet::new();
    (0..count).for_each(|slot| spawn(&mut sessions, slot, &daemon, &tally));
    let start = Instant::now();
    // The disks fill up, buffers find their pools.
    let warm_up = (time / 4).min(Duration::from_secs(120));
    let (step, row) = ((time / 200).max(Duration::from_millis(100)), (time / 12).max(Duration::from_secs(2)));
    let (mut samples, mut next_row) = (Vec::new(), row);
    while start.elapsed() < time && daemon.is_running() {
        sleep(step).await;
        if start.elapsed() >= warm_up {
            samples.push(daemon.sample());
        }
        if start.elapsed() >= next_row {
            print_row(start.elapsed(), daemon.sample(), &tally);
            next_row += row;
        }
    }
    let mut wrong = tally.failures();
    if !daemon.is_running() {
        wrong.push("the daemon has ended".to_owned());
        return wrong;
    }
    sessions.shutdown().await;
    // Our own initiator logs out behind the scenes, and half logins time out.
    let after = daemon.settled(before.descriptors, Duration::from_secs(15)).await;
    print_row(start.elapsed(), after, &tally);
    judge(before, &samples, after, &mut wrong);
    for (name, count) in tally.counters() {
        if count == 0 && !matches!(name, "failed" | "unanswered") {
            wrong.push(format!("nothing was {name}"));
        }
    }
    wrong
}

fn judge(before: Sample, samples: &[Sample], after: Sample, wrong: &mut Vec<String>) {
    let third = samples.len() / 3;
    let (early, late) = (&samples[..third], &samples[samples.len() - third..]);
    let memory = |samples: &[Sample]| median(samples, |sample| sample.memory_kib);
    let descriptors = |samples: &[Sample]| median(samples, |sample| sample.descriptors as u64) as usize;
    println!(
        "medians after warm-up, first and last third: {} and {} KiB, {} and {} descriptors; idle before and after: {} and {} descriptors",
        memory(early),
        memory(late),
        descriptors(early),
        descriptors(late),
        before.descriptors,
        after.descriptors,
    );
    if memory(late) > memory(early) + memory(early) / 20 + MEMORY_SLACK_KIB {
        wrong.push(format!("memory grows from {} to {} KiB", memory(early), memory(late)));
    }
    if descriptors(late) > descriptors(early) + descriptors(early) / 10 + DESCRIPTORS_SLACK {
        wrong.push(format!("descriptors grow from {} to {}", descriptors(early), descriptors(late)));
    }
    if after.descriptors > before.descriptors {
        wrong.push(format!(
            "{} descriptors were left, {} to begin with",
            after.descriptors, before.descriptors
        ));
    }
}

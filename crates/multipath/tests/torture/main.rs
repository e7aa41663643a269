//! Torture: verified random I/O over four lanes to our target while cables are cut, become black holes, flap and stutter, and the
//! target is killed and comes back.
//!
//! As a test it is short. `script/soak torture` runs it as long as is asked for:
//!
//! - `LUNWAY_INCIDENTS`: how many incidents, 60 if not said.
//! - `LUNWAY_SEED`: which ones; printed in any case.

#![expect(clippy::unwrap_used, reason = "a test ends where something it needs is missing")]

mod incident;
#[path = "../../../initiator/tests/support/line.rs"]
mod line;
mod random;
mod region;
mod target;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf};
use lunway_initiator::{IscsiDevice, IscsiUrl, OpenOptions};
use lunway_multipath::iscsi::{Address, IscsiMultipath};
use lunway_multipath::{LaneState, Policy};

use incident::{Ground, Incident};
use line::Line;
use random::Random;
use region::{Region, Tally};
use target::{NAME, Target};

/// Workers, each with a part of the disk of its own.
const THREADS: u64 = 8;

/// Lanes, each over a cable of its own.
const LANES: usize = 4;

/// More than any operation takes: the longest trouble lasts two seconds, and an operation may meet several.
const OPERATION_MAX: Duration = Duration::from_secs(40);

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

async fn open(lines: &[Line]) -> IscsiMultipath {
    let lane = |(n, line): (usize, &Line)| format!("lane=127.0.0.{}>{}", 31 + n, line.address);
    let lanes: Vec<_> = lines.iter().enumerate().map(lane).collect();
    let text = format!("iscsi://{}/{NAME}/0?{}&failback=immediate", lines[0].address, lanes.join("&"));
    let Address::Several(url) = Address::parse(&text).unwrap() else { panic!("{text} is one path") };
    // A cable's end that acknowledges what nobody gets is found out by pings alone.
    let options = OpenOptions {
        nop_interval: Duration::from_millis(400),
        nop_timeout: Duration::from_millis(800),
        ..OpenOptions::default()
    };
    IscsiMultipath::open(&url, &options).await.unwrap()
}

#[tokio::test]
async fn nothing_is_lost_torn_stale_or_reordered_whatever_happens_to_cables_and_target() {
    let incidents = setting("LUNWAY_INCIDENTS").unwrap_or(60);
    let seed = setting("LUNWAY_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("{incidents} incidents, LUNWAY_SEED={seed}");
    let mut random = Random(seed);

    let mut target = Target::start(THREADS * region::BYTES).await;
    let mut lines = Vec::new();
    for n in 0..LANES {
        lines.push(Line::start_at([127, 0, 0, 41 + n as u8], target.address).await);
    }
    let disk = open(&lines).await;
    let tally = Arc::new(Tally::default());
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..THREADS)
        .map(|number| {
            let (device, tally, stop) = (disk.device().clone(), tally.clone(), stop.clone());
            let seed = random.next();
            std::thread::Builder::new()
                .name(format!("worker {number}"))
                .spawn(move || {
                    let mut region = Region::new(number, seed, tally);
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                    runtime.block_on(region.live(&*device, &stop));
                    region
                })
                .unwrap()
        })
        .collect();

    let start = Instant::now();
    let mut ground = Ground::new(lines);
    let mut kinds = std::collections::BTreeMap::<&str, u64>::new();
    let mut restarts = 0;
    for number in 1..=incidents {
        tokio::time::sleep(Duration::from_millis(20 + random.below(350))).await;
        let incident = Incident::random(&mut random);
        *kinds.entry(incident.name()).or_default() += 1;
        match incident {
            Incident::Restart { pause } => {
                restarts += 1;
                target.kill().await;
                tokio::time::sleep(pause).await;
                target.start_again().await;
                ground.redirect(target.address);
            }
            Incident::Policy(index) => {
                let policies =
                    ["adaptive", "round-robin", "least-queue-depth", "service-time", "least-blocks"];
                disk.device().set_policy(policies[index % policies.len()].parse::<Policy>().unwrap());
            }
            other => ground.befall(other, &mut random),
        }
        if let Some(worker) = workers.iter().find(|worker| worker.is_finished()) {
            let name = worker.thread().name().unwrap_or_default().to_owned();
            println!("{name} has given up after {number} incidents: {:#?}", disk.device().lanes());
            break;
        }
        if number % 50 == 0 {
            println!("{number} incidents, {:.0} s: {tally}", start.elapsed().as_secs_f64());
        }
    }
    ground.heal().await;
    // With everything well again, all lanes come back.
    let until = Instant::now() + Duration::from_secs(30);
    let is_back = |state: &LaneState| !matches!(state, LaneState::Down | LaneState::Suspect);
    while !disk.device().lanes().iter().all(|lane| is_back(&lane.state)) {
        assert!(Instant::now() < until, "lanes stay away: {:#?}", disk.device().lanes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut regions = Vec::new();
    for worker in workers {
        while !worker.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let name = worker.thread().name().unwrap_or_default().to_owned();
        regions.push(
            worker.join().unwrap_or_else(|_| panic!("{name} found an error: see above; LUNWAY_SEED={seed}")),
        );
    }
    for region in &mut regions {
        region.check_all(&**disk.device()).await;
    }
    let sessions: u64 = disk.device().lanes().iter().map(|lane| lane.epoch).sum();
    disk.close().await;

    // What a stranger finds after one more kill: the file is all that is left.
    target.kill().await;
    target.start_again().await;
    let url = IscsiUrl::parse(&format!("iscsi://{}/{NAME}/0", target.address)).unwrap();
    let plain = IscsiDevice::open(url, OpenOptions::default()).await.unwrap();
    for region in &mut regions {
        region.check_all(&plain).await;
    }
    plain.read(0, Buf::zeroed(512)).await.unwrap();
    plain.close().await;

    println!("{tally}; {sessions} sessions; {kinds:?}; {:.1} s", start.elapsed().as_secs_f64());
    let flushes = tally.flushes_failed.load(Ordering::Relaxed);
    // Of each kill those that were under way hear, or else the next one.
    assert!(
        flushes <= restarts * THREADS * region::DEPTH as u64,
        "{flushes} flushes failed, {restarts} kills"
    );
    assert!(sessions > LANES as u64, "nothing was broken");
}

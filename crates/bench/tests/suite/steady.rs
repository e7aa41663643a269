//! The `steady` profile: devices that come to rest, and devices that do not.

use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Memory;
use lunway_bench::profile::{self, Details, Kind, Options, ProfileResult, Steady, Step};
use lunway_bench::{BenchError, Cancel};
use lunway_block::{BlockDevice, ExtentKind};
use lunway_memory::RamDisk;

fn options() -> Options {
    Options { duration: Duration::from_millis(30), destroy: true, seed: 7, ..Options::of(Kind::Steady) }
}

async fn measure(device: Arc<dyn BlockDevice>) -> (ProfileResult, Steady) {
    let result =
        profile::run(Kind::Steady, &device, &options(), &mut |_, _| (), &Cancel::new()).await.unwrap();
    let Details::Steady(steady) = &result.details else { panic!("{result:?}") };
    let steady = steady.clone();
    (result, steady)
}

/// Memory whose writes take longer and longer: half a millisecond, which a busy machine does not hide, and a seventh
/// more in each round. A round is over with the first write behind its time, however long the machine has stopped.
fn tiring() -> Memory {
    let now = Mutex::new(None);
    let on_write = move |_: u64, data: &mut Vec<u8>, _: &mut u64| {
        // Preconditioning is not what is measured.
        if data.len() == 4096 {
            let mut now = now.lock().unwrap();
            let (round, began) = now.get_or_insert_with(|| (0, Instant::now()));
            if began.elapsed() >= options().duration {
                (*round, *began) = (*round + 1, Instant::now());
            }
            thread::sleep(Duration::from_secs_f64(500e-6 * 1.15f64.powi(*round)));
        }
        true
    };
    Memory { on_write: Box::new(on_write), ..Memory::new(1 << 20) }
}

#[tokio::test]
async fn a_device_that_only_gets_slower_is_given_up_after_25_rounds() {
    let (result, steady) = measure(Arc::new(tiring())).await;
    assert_eq!((steady.rounds.len(), steady.converged()), (25, false), "{steady}");
    assert!(result.complete, "giving up is an end too");
    let window = steady.window.as_ref().unwrap();
    assert_eq!(window.rounds, 20..25);
    assert!(window.slope < 0.0);
    assert!(!steady.purged && result.notes[0].starts_with("Not purged"), "{:?}", result.notes);
    assert_eq!(result.to_json()["steady"]["converged"], false);
}

#[tokio::test]
async fn memory_is_purged_written_twice_and_said_to_be_steady_by_nature() {
    let device = Arc::new(RamDisk::new(8 << 20, 512).unwrap());
    let mut preconditioned = 0;
    let counted = Arc::new(lunway_block::decorate::Stats::new(device.clone()));
    let shared: Arc<dyn BlockDevice> = counted.clone();
    let mut progress = |step: Step<'_>, _: &_| preconditioned += usize::from(step.name == "preconditioning");
    let result =
        profile::run(Kind::Steady, &shared, &options(), &mut progress, &Cancel::new()).await.unwrap();
    let Details::Steady(steady) = &result.details else { panic!("{result:?}") };
    assert!(result.complete && steady.purged);
    assert!((5..=25).contains(&steady.rounds.len()));
    assert!(result.notes.iter().any(|note| note.starts_with("Steady by nature")), "{:?}", result.notes);
    let written: u64 = result.outcomes.iter().map(|outcome| outcome.write.bytes).sum();
    assert_eq!(counted.snapshot().write.bytes - written, 2 * (8 << 20), "the region, twice");
    let extents = device.extents(0, 8 << 20, usize::MAX).await.unwrap();
    assert!(extents.iter().all(|extent| extent.kind == ExtentKind::Data));
}

#[tokio::test]
async fn without_leave_to_write_there_is_no_steady_state() {
    let device: Arc<dyn BlockDevice> = Arc::new(Memory::new(1 << 20));
    let refused = Options { destroy: false, ..options() };
    let error =
        profile::run(Kind::Steady, &device, &refused, &mut |_, _| (), &Cancel::new()).await.unwrap_err();
    assert!(matches!(error, BenchError::MustWrite { profile: "steady" }));
}

#[tokio::test]
async fn a_run_that_is_cut_keeps_its_whole_rounds() {
    let device: Arc<dyn BlockDevice> = Arc::new(Memory::new(1 << 20));
    let cancel = Cancel::new();
    let from_progress = cancel.clone();
    let mut progress = |step: Step<'_>, _: &_| {
        if step.name == "round 3" {
            from_progress.cancel();
        }
    };
    let long = Options { duration: Duration::from_millis(400), ..options() };
    let result = profile::run(Kind::Steady, &device, &long, &mut progress, &cancel).await.unwrap();
    let Details::Steady(steady) = &result.details else { panic!("{result:?}") };
    assert!(!result.complete);
    assert_eq!((steady.rounds.len(), steady.window.is_none()), (2, true));
    assert!(steady.verdict().starts_with("Not steady yet: 2"));
}

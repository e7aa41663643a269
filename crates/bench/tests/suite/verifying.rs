//! Verification catches what a device does wrong, and names it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Delayed, Memory, OnWrite};
use lunway_bench::{Cancel, FaultKind, Job, Limit, Mix, Outcome, Pattern, run};
use lunway_block::BlockDevice;

const SIZE: usize = 256 << 10;

fn job(mix: Mix) -> Job {
    let mut job = Job::new("verify");
    job.seed = 11;
    job.mix = mix;
    job.verify = true;
    job.pattern = Pattern::Sequential;
    job.limit = Limit::Bytes(2 * SIZE as u64);
    job.queue_depth = 4;
    job.destroy = true;
    job
}

async fn execute(device: Arc<dyn BlockDevice>, job: &Job) -> Outcome {
    run(device, job, &mut |_| (), &Cancel::new()).await.unwrap()
}

/// The faults of two passes of writes over a device on which `hook` sits.
async fn faults(hook: OnWrite) -> Vec<FaultKind> {
    let device = Arc::new(Memory { on_write: hook, ..Memory::new(SIZE) });
    let found = execute(device, &job(Mix::WRITE)).await.verification.unwrap();
    assert_eq!(found.checked, SIZE as u64 / 4096, "every block is read back");
    assert_eq!(found.faulty as usize, found.faults.len());
    found.faults.iter().map(|fault| fault.kind).collect()
}

#[tokio::test]
async fn an_honest_device_has_no_fault() {
    assert_eq!(faults(Box::new(|_, _, _| true)).await, []);
}

#[tokio::test]
async fn a_write_gone_astray_is_found_at_both_ends() {
    // The second write of block 3 lands on block 9, after block 9's own second write was dropped.
    let found = faults(Box::new(|offset, _, place| {
        if offset == 3 * 4096 {
            *place = 9 * 4096;
        }
        offset != 9 * 4096
    }))
    .await;
    assert_eq!(found, [FaultKind::Zero, FaultKind::WrongLba { found: 24 }]);
}

#[tokio::test]
async fn a_lost_write_is_stale() {
    let count = AtomicU32::new(0);
    let found =
        faults(Box::new(move |offset, _, _| offset != 5 * 4096 || count.fetch_add(1, Ordering::SeqCst) == 0))
            .await;
    assert_eq!(found, [FaultKind::Stale { expected: Some(2), found: 1 }]);
}

#[tokio::test]
async fn one_flipped_bit_is_bit_rot() {
    let found = faults(Box::new(|offset, data, _| {
        if offset == 8192 {
            data[4095] ^= 0x40;
        }
        true
    }))
    .await;
    assert_eq!(found, [FaultKind::BitRot]);
}

#[tokio::test]
async fn random_mixed_work_at_depth_has_no_false_alarm() {
    let device = Arc::new(Delayed::new(Memory::new(SIZE), Duration::from_micros(300)));
    let mut mixed = job(Mix { read_percent: 50 });
    mixed.pattern = Pattern::RANDOM;
    mixed.queue_depth = 32;
    mixed.limit = Limit::Time(Duration::from_millis(300));
    let outcome = execute(device, &mixed).await;
    let found = outcome.verification.unwrap();
    assert!(outcome.depth_max >= 30, "{}", outcome.depth_max);
    assert!(found.checked > 200);
    assert_eq!(found.faults, []);
}

#[tokio::test]
async fn a_depth_beyond_the_blocks_there_are_still_ends() {
    let device = Arc::new(Delayed::new(Memory::new(SIZE), Duration::from_micros(100)));
    let mut deep = job(Mix::WRITE);
    deep.block_sizes = (64 << 10).into();
    deep.queue_depth = 16;
    let outcome = execute(device, &deep).await;
    assert_eq!(outcome.depth_max, 4, "as many as there are blocks");
    assert_eq!(outcome.verification.unwrap().faulty, 0);
}

#[tokio::test]
async fn a_later_job_with_the_same_seed_checks_what_an_earlier_one_wrote() {
    let device = Arc::new(Memory::new(SIZE));
    execute(Arc::clone(&device) as Arc<dyn BlockDevice>, &job(Mix::WRITE)).await;
    let mut read = job(Mix::READ);
    read.limit = Limit::Bytes(SIZE as u64);
    let found = execute(Arc::clone(&device) as Arc<dyn BlockDevice>, &read).await.verification.unwrap();
    assert_eq!((found.checked, found.faulty), (64, 0));

    let byte = device.peek(100_000, 1)[0];
    device.poke(100_000, &[byte ^ 1]);
    let found = execute(device, &read).await.verification.unwrap();
    assert_eq!(found.faults.len(), 1);
    assert_eq!((found.faults[0].kind, found.faults[0].offset), (FaultKind::BitRot, 100_000 / 512 * 512));
}

//! The `anvil` profile from a device to a page.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Memory;
use lunway_bench::profile::{Options, anvil};
use lunway_bench::report::document;
use lunway_bench::score::Score;
use lunway_bench::{Cancel, Table};
use lunway_block::BlockDevice;

fn options(destroy: bool) -> Options {
    Options {
        duration: Duration::from_millis(60),
        ramp: Duration::from_millis(10),
        region: 8 << 20,
        destroy,
        seed: 1,
    }
}

#[tokio::test]
async fn a_run_that_may_write_fills_the_region_and_gives_ten_scored_rows() {
    let memory = Arc::new(Memory::new(16 << 20));
    let device: Arc<dyn BlockDevice> = Arc::clone(&memory) as _;
    let profile = anvil(&device.geometry(), &options(true));
    let mut steps = Vec::new();
    let mut progress = |step: lunway_bench::profile::Step<'_>, _: &_| steps.push((step.index, step.count));
    let outcomes = profile.run(&device, &mut progress, &Cancel::new()).await.unwrap();
    assert!(steps.iter().all(|&(index, count)| index < count && count == 11));
    let table = Table::of(&outcomes);
    assert_eq!(table.rows.len(), 10);
    assert!(table.rows.iter().all(|row| row.iops > 0.0 && row.response_ms > 0.0 && row.errors == 0));
    assert!(Score::of(&outcomes).total().unwrap() > 0.0);
    assert!(memory.peek(0, 8 << 20).chunks(4096).all(|block| block.iter().any(|&byte| byte != 0)));
    assert!(memory.peek(8 << 20, 8 << 20).iter().all(|&byte| byte == 0), "nothing beyond the region");

    let page = lunway_report::html(&document("anvil", "memory", &outcomes));
    assert!(page.matches("<svg").count() >= 4);
}

#[tokio::test]
async fn a_run_that_may_not_write_leaves_the_device_as_it_was() {
    let memory = Arc::new(Memory::new(16 << 20));
    memory.poke(12345, b"precious");
    let before = memory.peek(0, 16 << 20);
    let device: Arc<dyn BlockDevice> = Arc::clone(&memory) as _;
    let profile = anvil(&device.geometry(), &options(false));
    let outcomes = profile.run(&device, &mut |_, _| (), &Cancel::new()).await.unwrap();
    assert_eq!(outcomes.len(), 6);
    assert_eq!(memory.peek(0, 16 << 20), before);
    assert!(Score::of(&outcomes).total().is_none());
}

#[tokio::test]
async fn a_cancelled_profile_keeps_what_was_done() {
    let device: Arc<dyn BlockDevice> = Arc::new(Memory::new(16 << 20));
    let long = Options { duration: Duration::from_secs(60), ..options(false) };
    let cancel = Cancel::new();
    let from_progress = cancel.clone();
    let profile = anvil(&device.geometry(), &long);
    let outcomes = profile.run(&device, &mut |_, _| from_progress.cancel(), &cancel).await.unwrap();
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0].read.ios > 0);
}

#[tokio::test]
async fn a_preparation_that_fails_is_reported_and_nothing_is_read_after_it() {
    let mut memory = Memory::new(16 << 20);
    memory.fail_writes = true;
    let device: Arc<dyn BlockDevice> = Arc::new(memory);
    let profile = anvil(&device.geometry(), &options(true));
    let outcomes = profile.run(&device, &mut |_, _| (), &Cancel::new()).await.unwrap();
    assert_eq!(outcomes.len(), 1);
    assert_eq!((outcomes[0].job.name.as_str(), outcomes[0].errors()), ("preparation", 8));
}

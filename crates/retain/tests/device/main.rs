//! What a device makes of the loss of a cache below it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod storage;

use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, CacheNews, Durability, Io, SharedBuf, Zeroing};
use lunway_retain::RetainingDevice;
use storage::{Attached, SECTOR, Storage};
use tokio::time::{Instant, sleep, timeout};

const LIMIT: u64 = 1 << 20;

struct Bed {
    storage: Arc<Storage>,
    device: Arc<RetainingDevice>,
}

impl Bed {
    fn new(sectors: usize, limit: u64) -> Self {
        let storage = Storage::new(sectors);
        let device = Arc::new(RetainingDevice::new(Arc::new(Attached(storage.clone())), limit));
        Self { storage, device }
    }

    fn start(&self, sector: usize, sectors: usize, byte: u8) -> Io<Result<(), BlockError>> {
        self.device.write((sector * SECTOR) as u64, bytes(sectors, byte), Durability::Volatile)
    }

    async fn write(&self, sector: usize, byte: u8) {
        self.start(sector, 1, byte).await.unwrap();
    }

    async fn read(&self, sector: usize) -> u8 {
        self.device.read((sector * SECTOR) as u64, Buf::for_overwrite(SECTOR)).await.unwrap()[0]
    }

    async fn flush(&self) -> Result<(), BlockError> {
        timeout(Duration::from_secs(600), self.device.flush().into_future()).await.expect("the flush hangs")
    }

    fn on_medium<const N: usize>(&self) -> [u8; N] {
        std::array::from_fn(|sector| self.storage.on_medium(sector))
    }
}

fn bytes(sectors: usize, byte: u8) -> SharedBuf {
    let mut buf = Buf::for_overwrite(sectors * SECTOR);
    buf.fill(byte);
    buf.freeze()
}

#[tokio::test(start_paused = true)]
async fn a_flush_after_a_power_loss_succeeds_because_the_data_is_there() {
    for reported in [true, false] {
        let bed = Bed::new(8, LIMIT);
        bed.start(0, 4, 1).await.unwrap();
        bed.write(1, 2).await;
        bed.device.write_zeroes(2 * SECTOR as u64, SECTOR as u64, Zeroing::MayUnmap).await.unwrap();
        bed.storage.lose_power(reported);
        assert_eq!(bed.flush().await, Ok(()));
        assert_eq!(bed.on_medium(), [1, 2, 0, 1, 0]);
        assert_eq!(bed.device.retained_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_after_a_power_loss_finds_what_was_acknowledged_before_it() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    let read = tokio::spawn({
        let device = bed.device.clone();
        async move { device.read(0, Buf::for_overwrite(SECTOR)).await.unwrap()[0] }
    });
    bed.storage.lose_power(true);
    assert_eq!((bed.read(0).await, read.await.unwrap()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_flushed_is_not_written_again() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.flush().await.unwrap();
    bed.write(1, 2).await;
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    assert_eq!(bed.storage.disk().written, [0, 512, 512]);
}

#[tokio::test(start_paused = true)]
async fn a_durable_write_takes_the_place_of_what_was_retained() {
    let bed = Bed::new(8, LIMIT);
    bed.start(0, 2, 1).await.unwrap();
    bed.device.write(0, bytes(1, 2), Durability::Stable).await.unwrap();
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    assert_eq!(bed.on_medium(), [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_write_under_way_at_the_loss_is_not_overwritten_by_the_older_one() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.disk().time = Duration::from_millis(50);
    let newer = tokio::spawn(bed.start(0, 1, 2).into_future());
    sleep(Duration::from_millis(10)).await;
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    newer.await.unwrap().unwrap();
    assert_eq!((bed.read(0).await, bed.on_medium()), (2, [2]));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_comes_while_older_ones_are_written_again_waits_for_them() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.disk().time = Duration::from_millis(50);
    bed.storage.lose_power(true);
    sleep(Duration::from_millis(10)).await;
    bed.storage.disk().time = Duration::ZERO;
    bed.write(0, 2).await;
    assert_eq!(bed.storage.disk().written, [0, 0, 0]);
    bed.flush().await.unwrap();
    assert_eq!((bed.read(0).await, bed.on_medium()), (2, [2]));
}

#[tokio::test(start_paused = true)]
async fn power_that_goes_while_it_is_written_again_has_it_written_once_more() {
    for after in 0..4 {
        let bed = Bed::new(8, LIMIT);
        for sector in [0, 2, 4, 6] {
            bed.write(sector, sector as u8 + 1).await;
        }
        bed.storage.disk().power_goes_after = Some(after);
        bed.storage.lose_power(true);
        bed.flush().await.unwrap();
        assert_eq!(bed.on_medium(), [1, 0, 3, 0, 5, 0, 7], "after {after}");
    }
}

/// Lost was the end of a measurement: a target that reported a power-on with every second command had its data written
/// again without an end, and nobody who waited was told.
#[tokio::test(start_paused = true)]
async fn power_that_goes_with_each_write_ends_a_flush_with_an_error_and_keeps_the_data() {
    for time in [Duration::from_millis(1), Duration::from_secs(2)] {
        let bed = Bed::new(8, LIMIT);
        for sector in [0, 2] {
            bed.write(sector, 1).await;
        }
        {
            let mut disk = bed.storage.disk();
            (disk.time, disk.restless) = (time, true);
        }
        bed.storage.lose_power(true);
        let begun = Instant::now();
        assert_eq!(bed.flush().await, Err(BlockError::lost()), "{time:?}");
        assert!(begun.elapsed() < Duration::from_secs(40), "{time:?}: {:?}", begun.elapsed());
        // Nor does it hold up a read for ever, or a write.
        let read = bed.device.read(0, Buf::for_overwrite(SECTOR)).into_future();
        assert!(timeout(Duration::from_secs(60), read).await.is_ok(), "{time:?}");
        assert!(timeout(Duration::from_secs(60), bed.start(4, 1, 3).into_future()).await.is_ok(), "{time:?}");
        bed.storage.disk().restless = false;
        bed.flush().await.unwrap();
        assert_eq!(bed.on_medium(), [1, 0, 1, 0, 3], "{time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_doubt_that_a_flush_dispels_costs_that_flush() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.tell(CacheNews::InDoubt);
    assert_eq!(bed.read(0).await, 1);
    assert_eq!(bed.storage.disk().flushes, 1);
    assert_eq!(bed.storage.disk().written, [0]);
    assert_eq!(bed.device.retained_bytes(), 0, "it is flushed");
}

#[tokio::test(start_paused = true)]
async fn a_doubt_that_a_flush_confirms_has_it_written_again() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    {
        let mut disk = bed.storage.disk();
        disk.flush_errors = vec![BlockError::UnflushedLost { reported: true }];
    }
    bed.storage.tell(CacheNews::InDoubt);
    bed.flush().await.unwrap();
    assert_eq!(bed.storage.disk().written, [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn more_than_fits_fails_a_flush_after_a_reported_power_loss_once() {
    for reported in [true, false] {
        let bed = Bed::new(256, 16 << 10);
        // No flush gets through before.
        bed.storage.disk().flush_errors = vec![BlockError::Busy; 100];
        for sector in 0..20 {
            bed.write(sector * 8, 1).await;
        }
        sleep(Duration::from_secs(1)).await;
        bed.storage.disk().flush_errors.clear();
        bed.storage.lose_power(reported);
        let expected = if reported { Err(BlockError::UnflushedLost { reported }) } else { Ok(()) };
        assert_eq!(bed.flush().await, expected);
        assert_eq!(bed.flush().await, Ok(()), "reported once");
        bed.write(0, 9).await;
        bed.storage.lose_power(reported);
        assert_eq!((bed.flush().await, bed.on_medium()), (Ok(()), [9]), "and from then on it holds again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_never_flushes_does_not_reach_the_limit() {
    let limit = 256 << 10;
    let bed = Bed::new(4096, limit);
    for n in 0..2000 {
        bed.start(n % 500 * 8, 8, n as u8).await.unwrap();
        assert!(bed.device.retained_bytes() <= limit);
    }
    assert!(bed.storage.disk().flushes > 10);
    bed.storage.lose_power(true);
    assert_eq!(bed.flush().await, Ok(()), "nothing is missing");
    let expected: Vec<_> = (1500..2000).map(|n| n as u8).collect();
    assert_eq!((0..500).map(|n| bed.storage.on_medium(n * 8)).collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_again_fails_every_flush_that_waits_and_none_after_it() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.disk().change_errors = vec![BlockError::Medium { offset: 0 }];
    bed.storage.lose_power(true);
    let flushes = [(); 3].map(|()| tokio::spawn(bed.device.flush().into_future()));
    for flush in flushes {
        assert_eq!(flush.await.unwrap(), Err(BlockError::Medium { offset: 0 }));
    }
    assert_eq!(bed.flush().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_again_while_nobody_waits_fails_the_next_flush() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.disk().change_errors = vec![BlockError::Medium { offset: 0 }];
    bed.storage.lose_power(true);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bed.flush().await, Err(BlockError::Medium { offset: 0 }));
    assert_eq!(bed.flush().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_fenced_host_writes_nothing_again() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.disk().change_errors = vec![BlockError::ReservationConflict];
    assert_eq!(bed.start(4, 1, 1).await, Err(BlockError::ReservationConflict));
    bed.storage.lose_power(true);
    assert_eq!(bed.flush().await, Err(BlockError::UnflushedLost { reported: true }));
    assert_eq!(bed.storage.disk().written, [0], "a conflict outlives the reservation that was its reason");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_while_it_is_written_again_fails_the_flush() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.disk().change_errors = vec![BlockError::ReservationConflict];
    bed.storage.lose_power(true);
    assert_eq!(bed.flush().await, Err(BlockError::ReservationConflict));
    assert_eq!((bed.flush().await, bed.storage.disk().written.len()), (Ok(()), 1));
}

#[tokio::test(start_paused = true)]
async fn storage_that_cannot_be_reached_keeps_everything_for_later() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    let gone = || BlockError::gone("no path");
    bed.storage.disk().change_errors = vec![gone()];
    bed.storage.lose_power(true);
    assert_eq!(bed.flush().await, Err(gone()));
    assert_eq!(bed.read(0).await, 1, "whoever asks next has it tried again");
    assert_eq!((bed.flush().await, bed.on_medium()), (Ok(()), [1]));
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_known_after_it_was_written_again() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.write(1, 1).await;
    bed.storage.disk().change_errors = vec![BlockError::lost()];
    assert_eq!(bed.start(0, 1, 2).await, Err(BlockError::lost()));
    bed.storage.disk().change_errors = vec![BlockError::gone("not sent")];
    assert!(bed.start(1, 1, 2).await.is_err());
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    assert_eq!(bed.on_medium(), [2, 1], "one that did not happen is not made to");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_write_does_not_keep_others_waiting() {
    let bed = Bed::new(8, LIMIT);
    bed.write(0, 1).await;
    bed.storage.disk().time = Duration::from_secs(3600);
    let dropped = timeout(Duration::from_millis(1), bed.start(0, 1, 2).into_future()).await;
    assert!(dropped.is_err());
    bed.storage.disk().time = Duration::ZERO;
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    assert_eq!(bed.on_medium(), [2]);
}

#[tokio::test(start_paused = true)]
async fn without_a_volatile_cache_nothing_is_retained() {
    let bed = Bed::new(8, LIMIT);
    bed.storage.disk().volatile = false;
    bed.write(0, 1).await;
    assert_eq!(bed.device.retained_bytes(), 0);
    bed.storage.disk().volatile = true;
    bed.write(0, 2).await;
    assert!(bed.device.retained_bytes() > 0);
    bed.storage.disk().volatile = false;
    bed.write(0, 3).await;
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    assert_eq!(bed.read(0).await, 3, "what was written while it was on does not come after this");
}

#[tokio::test(start_paused = true)]
async fn what_a_smaller_size_has_cut_off_is_not_written_again() {
    let bed = Bed::new(8, LIMIT);
    bed.start(2, 4, 1).await.unwrap();
    bed.storage.set_size(4);
    bed.storage.set_size(8);
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    assert_eq!(bed.on_medium(), [0, 0, 1, 1, 0, 0]);
}

/// As of a target that comes back with a smaller disk: the new size is told after it is there.
#[tokio::test(start_paused = true)]
async fn of_a_write_across_the_end_of_a_smaller_size_what_is_before_it_is_written_again() {
    let bed = Bed::new(8, LIMIT);
    bed.start(2, 4, 1).await.unwrap();
    bed.start(6, 2, 1).await.unwrap();
    bed.storage.set_size_untold(4);
    bed.storage.lose_power(true);
    bed.flush().await.unwrap();
    bed.storage.set_size(8);
    assert_eq!(
        (0..8).map(|sector| bed.storage.on_medium(sector)).collect::<Vec<_>>(),
        [0, 0, 1, 1, 0, 0, 0, 0]
    );
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_failed_in_the_background_fails_the_next_one_of_a_caller() {
    let bed = Bed::new(256, 32 << 10);
    bed.storage.disk().flush_errors = vec![BlockError::Medium { offset: 7 }];
    for sector in 0..5 {
        bed.write(sector * 8, 1).await;
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bed.flush().await, Err(BlockError::Medium { offset: 7 }));
    assert_eq!(bed.flush().await, Ok(()));
}

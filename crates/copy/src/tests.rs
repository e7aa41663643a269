//! Whole copies between devices in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lunway_block::decorate::{Fault, ReadOnly};
use lunway_block::{Extent, ExtentKind, Geometry, Io, PathSample, PathState};
use lunway_memory::RamDisk;

use super::*;

const MIB: u64 = 1 << 20;

fn ram(size: u64, sector: u32) -> RamDisk {
    RamDisk::new(size, sector).unwrap()
}

async fn put(disk: &dyn BlockDevice, offset: u64, byte: u8, len: usize) {
    let mut data = Buf::for_overwrite(len);
    data.fill(byte);
    disk.write(offset, data.freeze(), Durability::Volatile).await.unwrap();
}

async fn get(disk: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    disk.read(offset, Buf::zeroed(len)).await.unwrap().to_vec()
}

async fn copy(source: &dyn BlockDevice, destination: &dyn BlockDevice) -> Result<Copied, TransferError> {
    Transfer {
        source,
        destination,
        before: Before::Unknown,
        skipped: &Skipped::default(),
        is_cancelled: &|| false,
    }
    .copy(&mut |_| ())
    .await
}

async fn compare(source: &dyn BlockDevice, destination: &dyn BlockDevice) -> Compared {
    let transfer = Transfer {
        source,
        destination,
        before: Before::Unknown,
        skipped: &Skipped::default(),
        is_cancelled: &|| false,
    };
    transfer.compare(&mut |_| ()).await.unwrap()
}

#[tokio::test]
async fn only_data_is_written_and_old_content_becomes_zero() {
    let (source, destination) = (ram(64 * MIB, 512), ram(80 * MIB, 4096));
    put(&source, 5 * MIB, 0xA5, 65_536).await;
    put(&source, 64 * MIB - 4096, 0x5A, 4096).await;
    put(&destination, 0, 0xFF, 12 * MIB as usize).await;
    put(&destination, 64 * MIB, 0xEE, 4096).await;
    let copied = copy(&source, &destination).await.unwrap();
    assert!(copied.complete && copied.done == 64 * MIB, "{copied:?}");
    assert!(copied.written < MIB, "only what holds data: {copied:?}");
    assert_eq!(get(&destination, 5 * MIB, 65_536).await, [0xA5; 65_536]);
    assert_eq!(get(&destination, 0, 5 * MIB as usize).await, vec![0; 5 * MIB as usize]);
    assert_eq!(get(&destination, 64 * MIB, 4096).await, [0xEE; 4096], "behind the source nothing changes");
    let expected = Compared { done: 64 * MIB, differs_at: None, complete: true };
    assert_eq!(compare(&source, &destination).await, expected);
}

#[tokio::test]
async fn the_first_difference_is_named_in_data_and_in_zeroes() {
    let (source, destination) = (ram(32 * MIB, 512), ram(32 * MIB, 512));
    put(&source, 0, 1, 16 * MIB as usize).await;
    copy(&source, &destination).await.unwrap();
    put(&destination, 30 * MIB, 9, 512).await;
    assert_eq!(compare(&source, &destination).await.differs_at, Some(30 * MIB));
    for offset in [9 * MIB + 512, 8 * MIB + 1024, 7 * MIB] {
        put(&destination, offset, 9, 512).await;
        assert_eq!(compare(&source, &destination).await.differs_at, Some(offset));
    }
}

#[tokio::test]
async fn a_smaller_or_read_only_destination_is_refused_untouched() {
    let source = ram(2 * MIB, 512);
    let small = copy(&source, &ram(MIB, 512)).await;
    assert!(matches!(
        small,
        Err(TransferError::TooSmall { source_size: 0x20_0000, destination_size: 0x10_0000 })
    ));
    let protected = ReadOnly::new(Arc::new(ram(2 * MIB, 512)));
    assert!(matches!(copy(&source, &protected).await, Err(TransferError::ReadOnly)));
}

#[tokio::test]
async fn the_last_sector_is_padded_where_the_destination_has_larger_ones() {
    let source = ram(MIB + 512, 512);
    put(&source, MIB, 3, 512).await;
    assert!(matches!(copy(&source, &ram(MIB, 4096)).await, Err(TransferError::TooSmall { .. })));
    let destination = ram(MIB + 4096, 4096);
    put(&destination, MIB, 0xFF, 4096).await;
    assert!(copy(&source, &destination).await.unwrap().complete);
    let end = get(&destination, MIB, 4096).await;
    assert_eq!((&end[..512], &end[512..]), (&[3; 512][..], &[0; 3584][..]));
    assert_eq!(compare(&source, &destination).await.differs_at, None);
}

/// A disk over a path from which nothing comes back any more.
struct Silent(RamDisk);

impl BlockDevice for Silent {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, _: u64, _: Buf) -> Io<Result<Buf, BlockError>> {
        Io::err(BlockError::late(std::time::Duration::from_secs(30)))
    }

    fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::late(std::time::Duration::from_secs(30)))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::late(std::time::Duration::from_secs(30)))
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::late(std::time::Duration::from_secs(30)))
    }

    fn paths(&self) -> Vec<PathSample> {
        let lost = PathSample {
            last_event: Some("connection lost: reset by peer".to_owned()),
            ..PathSample::unused("192.0.2.1:3260", PathState::Down)
        };
        let silent = PathSample {
            last_event: Some("no answer within 30 s to a command 8Ah, which was aborted".to_owned()),
            ..PathSample::unused("192.0.2.2:3260", PathState::Up)
        };
        vec![lost, silent, PathSample::unused("192.0.2.3:3260", PathState::Up)]
    }
}

#[tokio::test]
async fn a_copy_that_fails_by_silence_says_what_each_path_knows() {
    let silent = Silent(ram(MIB, 512));
    let source = ram(MIB, 512);
    put(&source, 0, 1, 4096).await;
    let blank = ram(MIB, 512);
    let only_flushed = Transfer {
        source: &blank,
        destination: &silent,
        before: Before::Blank,
        skipped: &Skipped::default(),
        is_cancelled: &|| false,
    };
    for (error, side) in [
        (copy(&silent, &ram(MIB, 512)).await.unwrap_err(), "reading the source"),
        (copy(&source, &silent).await.unwrap_err(), "the destination failed at"),
        (only_flushed.copy(&mut |_| ()).await.unwrap_err(), "durable"),
    ] {
        let text = error.to_string();
        for part in [side, "no answer within 30 s", "192.0.2.1:3260: connection lost: reset by peer", "8Ah"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("192.0.2.3"), "nothing happened to it: {text}");
    }
}

#[tokio::test]
async fn an_error_says_on_which_side_and_where() {
    let faulty = |spec: &str| Fault::new(Arc::new(ram(4 * MIB, 512)), spec.parse().unwrap());
    let source = ram(4 * MIB, 512);
    put(&source, 2 * MIB, 1, 4096).await;
    let error = copy(&source, &faulty("write@2M-3M")).await.unwrap_err();
    assert!(
        matches!(error, TransferError::Io { side: Side::Destination, offset, .. } if offset == 2 * MIB),
        "{error}"
    );
    let bad = faulty("read@3M-4M");
    put(&bad, 3 * MIB, 1, 4096).await;
    let error = copy(&bad, &ram(4 * MIB, 512)).await.unwrap_err();
    assert!(
        matches!(error, TransferError::Io { side: Side::Source, offset, .. } if offset == 3 * MIB),
        "{error}"
    );
}

#[tokio::test]
async fn a_disk_is_not_copied_onto_itself() {
    let disk = ram(MIB, 512);
    let again = ReadOnly::new(Arc::new(ram(MIB, 512)));
    let error = copy(&disk, &disk).await.unwrap_err();
    assert!(matches!(error, TransferError::SameDisk { .. }), "{error}");
    copy(&again, &disk).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_copy_ends_early_and_says_so() {
    let source = ram(64 * MIB, 512);
    put(&source, 0, 1, 64 * MIB as usize).await;
    let destination = ram(64 * MIB, 512);
    let cancelled = AtomicBool::new(false);
    let transfer = Transfer {
        source: &source,
        destination: &destination,
        before: Before::Blank,
        skipped: &Skipped::default(),
        is_cancelled: &|| cancelled.load(Ordering::Relaxed),
    };
    let copied = transfer.copy(&mut |_| cancelled.store(true, Ordering::Relaxed)).await.unwrap();
    assert!(!copied.complete && copied.done > 0 && copied.done < 64 * MIB, "{copied:?}");
}

#[tokio::test]
async fn a_blank_destination_stays_sparse() {
    let source = ram(64 * MIB, 512);
    put(&source, MIB, 0, 8 * MIB as usize).await;
    let destination = ram(64 * MIB, 512);
    let transfer = Transfer {
        source: &source,
        destination: &destination,
        before: Before::Blank,
        skipped: &Skipped::default(),
        is_cancelled: &|| false,
    };
    assert_eq!(transfer.copy(&mut |_| ()).await.unwrap().written, 0);
    let whole = Extent { offset: 0, len: 64 * MIB, kind: ExtentKind::Unallocated };
    assert_eq!(destination.extents(0, 64 * MIB, usize::MAX).await.unwrap(), [whole]);
}

#[tokio::test]
async fn what_an_interrupted_copy_left_is_completed_and_what_is_equal_is_not_written_again() {
    let (source, destination) = (ram(32 * MIB, 512), ram(32 * MIB, 512));
    put(&source, 0, 1, 16 * MIB as usize).await;
    copy(&source, &destination).await.unwrap();
    put(&destination, 3 * MIB + 512, 9, 512).await;
    put(&destination, 20 * MIB, 9, 512).await;
    let transfer = Transfer {
        source: &source,
        destination: &destination,
        before: Before::Unfinished,
        skipped: &Skipped::default(),
        is_cancelled: &|| false,
    };
    let copied = transfer.copy(&mut |_| ()).await.unwrap();
    assert_eq!((copied.complete, copied.written), (true, MIB), "the one piece of data that differed");
    assert_eq!(compare(&source, &destination).await.differs_at, None);
}

#[tokio::test]
async fn what_is_skipped_is_not_read_and_is_zero_at_the_destination() {
    let skipped = {
        let mut skipped = Skipped::default();
        skipped.insert(3 * MIB..9 * MIB);
        skipped
    };
    let memory = Arc::new(ram(32 * MIB, 512));
    put(&*memory, 0, 1, 16 * MIB as usize).await;
    // The source cannot even be read there.
    let source = Fault::new(memory, "read@3M-9M".parse().unwrap());
    let (blank, full) = (ram(32 * MIB, 512), ram(32 * MIB, 512));
    put(&full, 0, 0xEE, 32 * MIB as usize).await;
    for (destination, before) in
        [(&blank, Before::Blank), (&full, Before::Unknown), (&full, Before::Unfinished)]
    {
        let transfer =
            Transfer { source: &source, destination, before, skipped: &skipped, is_cancelled: &|| false };
        let copied = transfer.copy(&mut |_| ()).await.unwrap();
        assert_eq!((copied.complete, copied.done, copied.skipped), (true, 32 * MIB, 6 * MIB), "{before:?}");
        assert_eq!(transfer.compare(&mut |_| ()).await.unwrap().differs_at, None, "{before:?}");
        assert_eq!(get(destination, 2 * MIB, MIB as usize).await, vec![1; MIB as usize]);
        assert_eq!(get(destination, 3 * MIB, 6 * MIB as usize).await, vec![0; 6 * MIB as usize]);
        assert_eq!(get(destination, 9 * MIB, MIB as usize).await, vec![1; MIB as usize]);
        put(destination, 4 * MIB, 9, 512).await;
        assert_eq!(transfer.compare(&mut |_| ()).await.unwrap().differs_at, Some(4 * MIB), "{before:?}");
    }
    let kept = blank.extents(3 * MIB, 6 * MIB, usize::MAX).await.unwrap();
    assert!(kept.iter().any(|extent| extent.kind == ExtentKind::Unallocated), "{kept:?}");
}

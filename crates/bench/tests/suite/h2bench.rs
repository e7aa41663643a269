//! The `h2bench` profile: whole devices, of any size, honest and not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Memory, OnWrite};
use lunway_bench::profile::h2bench::Integrity;
use lunway_bench::profile::{self, Details, H2bench, Kind, Options, ProfileResult, Step};
use lunway_bench::{Cancel, FaultKind};
use lunway_block::BlockDevice;
use lunway_memory::{NullDisk, RamDisk};

fn options(destroy: bool) -> Options {
    Options { duration: Duration::from_millis(20), destroy, seed: 7, ..Options::of(Kind::H2bench) }
}

async fn measure(device: Arc<dyn BlockDevice>, options: &Options) -> (ProfileResult, H2bench) {
    let result = profile::run(Kind::H2bench, &device, options, &mut |_, _| (), &Cancel::new()).await.unwrap();
    let Details::H2bench(found) = &result.details else { panic!("{result:?}") };
    let found = (**found).clone();
    (result, found)
}

/// What the integrity check finds on 32 MiB of memory on whose writes `hook` sits.
async fn integrity(hook: OnWrite) -> Integrity {
    let device = Arc::new(Memory { on_write: hook, ..Memory::new(32 << 20) });
    let (result, found) = measure(device, &options(true)).await;
    assert!(result.complete);
    let found = found.integrity.unwrap();
    assert_eq!(result.failures().is_empty(), found.faulty == 0);
    found
}

#[tokio::test]
async fn everything_is_measured_where_writing_is_allowed_with_either_sector() {
    let full = &["read", "read, first 504 MiB", "write", "write, first 504 MiB"][..];
    // A disk of no more than 504 MiB has only one kind of access.
    for (sector, size, accesses) in [(512, 510 << 20, full), (4096, 128 << 20, &["read", "write"])] {
        let device = Arc::new(RamDisk::new(size, sector).unwrap());
        let (result, found) = measure(device, &options(true)).await;
        assert!(result.complete && result.failures().is_empty(), "{:?}", result.failures());
        assert!(found.interface.is_some() && found.read.is_some() && found.write.is_some());
        let zones = found.zones.as_ref().unwrap();
        assert_eq!((zones.read_points().len(), zones.write_points().len()), (1000, 1000));
        let range = zones.read_range().unwrap();
        assert!(0.0 < range.min && range.min <= range.avg && range.avg <= range.max);
        let names: Vec<&str> = found.access.iter().map(|access| access.name).collect();
        assert_eq!(names, accesses);
        assert!(found.access.iter().all(|access| access.latency.count() > 0));
        assert_eq!(found.applications.len(), 6);
        assert!(found.index().unwrap() > 0.0);
        let integrity = found.integrity.as_ref().unwrap();
        assert!(integrity.complete && integrity.random > 0 && integrity.faulty == 0, "{integrity}");
        assert!(integrity.checked > 5 * 20_480, "{integrity}");
        let json = result.to_json();
        assert_eq!(json["h2bench"]["zones"]["points"].as_array().unwrap().len(), 1000);
        assert!(result.to_string().contains("Index: "), "{result}");
    }
}

#[tokio::test]
async fn nothing_is_written_without_leave() {
    let memory = Arc::new(Memory::new(16 << 20));
    memory.poke(12345, b"precious");
    let before = memory.peek(0, 16 << 20);
    let (result, found) = measure(memory.clone(), &options(false)).await;
    assert_eq!(memory.peek(0, 16 << 20), before);
    assert!(result.complete);
    assert!(found.write.is_none() && found.integrity.is_none() && found.index().is_none());
    assert_eq!(found.applications.len(), 1, "the virus scan only reads");
    assert!(result.notes.iter().any(|note| note.starts_with("Reads only")));
}

#[tokio::test]
async fn a_region_is_not_left() {
    let memory = Arc::new(Memory::new(32 << 20));
    let (result, _) = measure(memory.clone(), &Options { region: 8 << 20, ..options(true) }).await;
    assert!(result.complete);
    assert!(memory.peek(8 << 20, 24 << 20).iter().all(|&byte| byte == 0));
}

#[tokio::test]
async fn a_mebibyte_and_exbibytes_are_devices_too() {
    let small = Arc::new(RamDisk::new(1 << 20, 4096).unwrap());
    let (result, found) = measure(small, &options(true)).await;
    assert!(result.complete);
    assert_eq!((found.zones.unwrap().zones.len(), found.integrity.unwrap().faulty), (16, 0));

    let sink = Arc::new(NullDisk::new(1 << 62, 4096).unwrap());
    let (result, found) = measure(sink, &options(true)).await;
    assert!(result.complete);
    assert_eq!(found.zones.unwrap().write_points().len(), 1000);
    let integrity = found.integrity.unwrap();
    assert_eq!(integrity.faulty, integrity.checked, "a sink gives back nothing");

    let sparse = Arc::new(RamDisk::new(16 << 40, 4096).unwrap());
    let (result, _) = measure(sparse, &options(false)).await;
    assert!(result.notes.iter().any(|note| note.starts_with("1000 of 1000 zones")), "{:?}", result.notes);
}

#[tokio::test]
async fn a_device_that_drops_the_upper_address_bit_is_found_by_name() {
    let found = integrity(Box::new(|_, _, place| {
        *place %= 16 << 20;
        true
    }))
    .await;
    let first = found.faults.first().unwrap();
    assert_eq!((first.offset, first.kind), (32_766 * 512, FaultKind::WrongLba { found: 65_534 }));
}

#[tokio::test]
async fn a_sector_that_keeps_old_data_is_stale() {
    let count = AtomicU32::new(0);
    // Of the writes that lie on LBA 32768 alone with its four neighbours only the first two are carried out.
    let found = integrity(Box::new(move |offset, data, _| {
        offset != 32_766 * 512 || data.len() != 5 * 512 || count.fetch_add(1, Ordering::SeqCst) < 2
    }))
    .await;
    let kinds: Vec<FaultKind> = found.faults.iter().map(|fault| fault.kind).collect();
    assert!(kinds.contains(&FaultKind::Stale { expected: Some(3), found: 2 }), "{kinds:?}");
    assert!(kinds.iter().all(|kind| matches!(kind, FaultKind::Stale { found: 2, .. })), "{kinds:?}");
}

#[tokio::test]
async fn a_run_cut_in_the_zones_keeps_what_was_measured() {
    let device: Arc<dyn BlockDevice> = Arc::new(lunway_block::decorate::Delay::new(
        Arc::new(RamDisk::new(64 << 20, 512).unwrap()),
        Duration::from_millis(2),
    ));
    let cancel = Cancel::new();
    let from_progress = cancel.clone();
    let mut progress = |step: Step<'_>, _: &_| {
        if step.name == "zones, read" {
            from_progress.cancel();
        }
    };
    let result = profile::run(Kind::H2bench, &device, &options(false), &mut progress, &cancel).await.unwrap();
    let Details::H2bench(found) = &result.details else { panic!("{result:?}") };
    assert!(!result.complete && result.failures().is_empty());
    let points = found.zones.as_ref().unwrap().read_points().len();
    assert!((1..1000).contains(&points), "{points}");
    assert!(found.access.is_empty() && found.read.is_some());
}

#[tokio::test]
async fn a_device_that_fails_is_given_up_and_says_why() {
    let device = Arc::new(Memory { fail_reads: true, ..Memory::new(16 << 20) });
    let (result, _) = measure(device, &options(false)).await;
    assert!(!result.complete);
    assert!(result.outcomes[0].errors() > 0);
}

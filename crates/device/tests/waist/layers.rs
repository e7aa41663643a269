//! Layers: what wraps a device and passes on what it does not change; and the snapshots of one.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::conformance::{Disk, Instance, SIZE_MIN, Subject};
use lunway_block::decorate::{Deadline, Delay, Fault, Openers, Part, Rate, ReadOnly, Stats};
use lunway_block::{BlockDevice, Buf, Durability};
use lunway_retain::{RetainingDevice, UNFLUSHED_MAX};
use lunway_snapshot::{GRAIN, SnapshotDevice, SnapshotLayer};
use lunway_track::{Backing, Identify, Tracked, Tuning};
use lunway_vhdx::crash::MemoryStorage;

use super::conforms;

#[tokio::test]
async fn the_layers_of_the_grammar_conform() {
    // As mild as can be: what they do is tested beside them.
    let delay = Duration::from_micros(1);
    conforms(Subject::layer("`delay:`", &[], move |inner| Arc::new(Delay::new(inner, delay)))).await;
    conforms(Subject::layer("`rate:`", &[], |inner| Arc::new(Rate::new(inner, NonZeroU64::MAX)))).await;
    conforms(Subject::layer("`fault:`", &[], |inner| {
        Arc::new(Fault::new(inner, "read@1T-".parse().unwrap()))
    }))
    .await;
    let late = Duration::from_secs(600);
    conforms(Subject::layer("a deadline of reads", &[], move |inner| Arc::new(Deadline::new(inner, late))))
        .await;
    conforms(Subject::layer("`stats:`", &[], |inner| Arc::new(Stats::new(inner)))).await;
    let refused = [
        ("geometry", "says that it is read-only"),
        ("write", "refused"),
        ("durable write", "refused"),
        ("unmap", "refused"),
        ("zeroing", "refused"),
        ("zeroing that keeps space", "refused"),
        ("resize", "refused"),
        ("snapshot", "refused"),
    ];
    let refused = Box::leak(Box::new(refused));
    conforms(Subject::layer("`readonly:`", refused, |inner| Arc::new(ReadOnly::new(inner)))).await;
}

#[tokio::test]
async fn an_opener_conforms() {
    conforms(Subject::layer("an opener of several", &[], |inner| Arc::new(Openers::new(inner).open()))).await;
}

/// All of a device as two ranges.
#[tokio::test]
async fn a_part_of_a_device_conforms() {
    let whole = "of the whole device";
    let kept = ["space", "identity", "resize", "snapshot", "compact", "close", "on_resize"];
    let kept = Box::leak(Box::new(kept.map(|method| (method, whole))));
    conforms(Subject::layer("a part of a device", kept, |inner| {
        let size = inner.geometry().size;
        let cut = size / 2 / 4096 * 4096;
        Arc::new(Part::new(inner, [0..cut, cut..size]).unwrap())
    }))
    .await;
}

#[tokio::test]
async fn retained_writes_conform() {
    // A loss is this layer's to mend: whoever is above hears of it by a flush that fails, if at all.
    let kept = &[("on_cache_news", "its own business")];
    conforms(Subject::layer("retained writes", kept, |inner| {
        Arc::new(RetainingDevice::new(inner, UNFLUSHED_MAX))
    }))
    .await;
}

#[tokio::test]
async fn tracked_changes_conform() {
    conforms(Subject::layer("tracked changes", &[], |inner| {
        let storage = Box::new(MemoryStorage::default());
        let identify: Identify = Arc::new(|_| Backing::default());
        Arc::new(Tracked::open(inner, storage, &Backing::default(), identify, Tuning::default()).unwrap())
    }))
    .await;
}

#[tokio::test]
async fn a_device_of_which_snapshots_are_made_conforms() {
    conforms(Subject::layer("snapshots", &[], |inner| Arc::new(SnapshotLayer::new(inner)))).await;
}

/// The frozen zeroes of a disk that has changed since, whole and in parts.
#[tokio::test]
async fn a_snapshot_conforms() {
    conforms(Subject::device("a snapshot of a disk", || {
        Box::pin(async {
            let layer = SnapshotLayer::new(Arc::new(Disk::new(SIZE_MIN)));
            let hold = layer.hold(Duration::from_secs(60)).unwrap();
            hold.at_rest().await.unwrap();
            let fleece = hold.fleece(Arc::new(Disk::new(2 * SIZE_MIN))).unwrap();
            hold.begin(&fleece).unwrap();
            drop(hold);
            for (offset, len) in [(0, 3 * GRAIN), (20 * GRAIN + 512, 512), (SIZE_MIN - 4096, 4096)] {
                let data = Buf::copy_of(&vec![0xAA; len as usize]).freeze();
                layer.write(offset, data, Durability::Volatile).await.unwrap();
            }
            let device = Arc::new(SnapshotDevice::new(fleece));
            Instance { keep: Box::new(layer), ..Instance::plain(device) }
        })
    }))
    .await;
}

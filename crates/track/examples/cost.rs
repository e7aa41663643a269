//! What tracking costs: nanoseconds of processor time of a 4 KiB write to a RAM disk, with the layer and without, and
//! how long a question takes for each TiB.
//!
//! ```text
//! cargo run --release -p lunway-track --example cost [WRITES]
//! ```

#![expect(clippy::unwrap_used, reason = "a device in memory does not fail")]

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use lunway_block::{BlockDevice, Buf, Durability};
use lunway_memory::RamDisk;
use lunway_track::{Backing, Changes, EpochId, GRAIN, Identify, Tracked, Tuning};
use rustix::time::{ClockId, clock_gettime};

/// How often each figure is measured, in turns; the least counts, as all else is the machine's.
const ROUNDS: usize = 25;
/// Larger than a processor's caches, and fewer regions than may be hot.
const SIZE: u64 = 512 << 20;

/// Of this thread's processor time, so that other programs do not count.
fn nanoseconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

async fn measure(device: &dyn BlockDevice, writes: u64, depth: u64) -> f64 {
    let data = Buf::copy_of(&[7; 4096]).freeze();
    let started = nanoseconds();
    for batch in 0..writes / depth {
        let write = |n: u64| {
            let place = (batch * depth + n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            device.write(place % (SIZE / 4096) * 4096, data.clone(), Durability::Volatile)
        };
        if depth == 1 {
            write(0).await.unwrap();
        } else {
            join_all((0..depth).map(|n| write(n).into_future())).await.into_iter().for_each(Result::unwrap);
        }
    }
    (nanoseconds() - started) / writes as f64
}

fn tracked(inner: Arc<dyn BlockDevice>, path: &std::path::Path) -> Tracked {
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let backing = Backing { lasting: vec![1], exact: Vec::new() };
    let identify: Identify = {
        let backing = backing.clone();
        Arc::new(move |_| backing.clone())
    };
    Tracked::open(inner, Box::new(file), &backing, identify, Tuning::default()).unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let writes = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(200_000);
    let folder = std::env::temp_dir().join(format!("lunway-track-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let ram: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(SIZE, 512).unwrap());
    let device = tracked(Arc::clone(&ram), &folder.join("a"));
    measure(&device, SIZE / 4096, 1).await;
    println!("nanoseconds of a 4 KiB random write to memory, least of {ROUNDS} rounds in turns");
    println!("{:>10} {:>10} {:>10} {:>8}", "depth", "without", "with", "cost");
    for depth in [1, 32] {
        let (mut without, mut with) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            without = without.min(measure(&*ram, writes, depth).await);
            with = with.min(measure(&device, writes, depth).await);
        }
        println!("{depth:>10} {without:>10.0} {with:>10.0} {:>7.1}%", (with / without - 1.0) * 100.0);
    }

    let started = Instant::now();
    device.tracking().close_epoch(EpochId([1; 16])).await.unwrap();
    println!("closing an epoch: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);

    // A TiB, one grain in a hundred written, in each of three epochs.
    let null: Arc<dyn BlockDevice> = Arc::new(lunway_memory::NullDisk::new(1 << 40, 512).unwrap());
    let device = tracked(null, &folder.join("b"));
    let data = Buf::copy_of(&[7; 4096]).freeze();
    for epoch in 1..=3_u8 {
        device.tracking().close_epoch(EpochId([epoch; 16])).await.unwrap();
        for region in 0..(1 << 40) / (64 * GRAIN) {
            // Of large operations each grain is logged with one flush for all: the question is what is measured here.
            if region % 1024 == 0 {
                let start = region * 64 * GRAIN + u64::from(epoch) * GRAIN;
                device.write_zeroes(start, 40 * 64 * GRAIN, lunway_block::Zeroing::MayUnmap).await.unwrap();
            }
        }
        device.write(0, data.clone(), Durability::Volatile).await.unwrap();
    }
    let started = Instant::now();
    let changes = device.tracking().changes(EpochId([1; 16]), None, 0..u64::MAX, usize::MAX).await;
    let took = started.elapsed().as_secs_f64() * 1e3;
    let Changes::Known { ranges, .. } = changes else { panic!("{changes:?}") };
    println!("a question for 1 TiB and three epochs: {took:.1} ms, {} ranges", ranges.len());
    std::fs::remove_dir_all(&folder).unwrap();
}

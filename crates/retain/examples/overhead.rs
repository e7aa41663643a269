//! What retaining costs for each operation: nanoseconds of processor time of one that is answered a poll later, with
//! the layer and without.
//!
//! ```text
//! overhead [OPERATIONS]
//! ```

#![expect(clippy::unwrap_used, reason = "a device in memory does not fail")]

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Zeroing};
use lunway_retain::{RetainingDevice, UNFLUSHED_MAX};
use rustix::time::{ClockId, clock_gettime};

/// A flush comes after so many writes, as from a file system that commits now and then.
const WRITES_PER_FLUSH: u64 = 1000;
/// How often each figure is measured; the least counts, as all else is the machine's.
const ROUNDS: usize = 15;

/// The buffer that slices are of, bytes: as a load generator has it.
const PATTERN_LEN: usize = 4 << 20;

/// What is measured.
#[derive(Clone, Copy)]
enum Kind {
    Read,
    /// Each from a buffer of its own.
    Write,
    /// All from one buffer.
    WriteSlices,
}

/// Answers everything a poll later.
struct Null;

fn later<T: Send + 'static>(answer: T) -> Io<Result<T, BlockError>> {
    let (mut answer, mut polled) = (Some(answer), false);
    Io::pending(poll_fn(move |cx| {
        if !std::mem::replace(&mut polled, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        answer.take().map_or(Poll::Pending, |answer| Poll::Ready(Ok(answer)))
    }))
}

impl BlockDevice for Null {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..Geometry::plain(1 << 40) }
    }

    fn read(&self, _: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        later(buf)
    }

    fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        later(())
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        later(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        later(())
    }
}

/// Of this thread's processor time, so that other programs do not count.
fn nanoseconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds of one operation; the least of several rounds.
async fn measure(device: &dyn BlockDevice, operations: u64, len: usize, kind: Kind) -> f64 {
    let pattern = Buf::for_overwrite(PATTERN_LEN).freeze();
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let started = nanoseconds();
        for n in 0..operations {
            // A walk that does not come to the same place soon.
            let offset = n.wrapping_mul(0x9E37_79B9) % (1 << 20) * len as u64;
            let data = match kind {
                Kind::Read => {
                    device.read(offset, Buf::for_overwrite(len)).await.unwrap();
                    continue;
                }
                Kind::Write => Buf::for_overwrite(len).freeze(),
                Kind::WriteSlices => {
                    let at = n as usize * 512 % (PATTERN_LEN - len);
                    pattern.slice(at..at + len)
                }
            };
            device.write(offset, data, Durability::Volatile).await.unwrap();
            if n % WRITES_PER_FLUSH == 0 {
                device.flush().await.unwrap();
            }
        }
        least = least.min((nanoseconds() - started) / operations as f64);
    }
    least
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let operations = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(20_000);
    println!(
        "nanoseconds of one operation, least of {ROUNDS} rounds, a flush for every {WRITES_PER_FLUSH} writes"
    );
    println!("{:>34} {:>10} {:>10}", "", "without", "with");
    let retaining = RetainingDevice::new(Arc::new(Null), UNFLUSHED_MAX);
    for (what, len, kind, dirty) in [
        ("read 4 KiB, nothing retained", 4096, Kind::Read, false),
        ("read 4 KiB, something retained", 4096, Kind::Read, true),
        ("write 4 KiB", 4096, Kind::Write, false),
        ("write 4 KiB, slices of one buffer", 4096, Kind::WriteSlices, false),
        ("write 64 KiB", 64 << 10, Kind::Write, false),
    ] {
        retaining.flush().await.unwrap();
        if dirty {
            retaining.write(0, Buf::zeroed(4096).freeze(), Durability::Volatile).await.unwrap();
        }
        let without = measure(&Null, operations, len, kind).await;
        let with = measure(&retaining, operations, len, kind).await;
        println!("{what:>34} {without:>10.0} {with:>10.0}");
    }
}

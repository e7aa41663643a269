//! Cost of generating load, by itself.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Zeroing};
use tokio::runtime;

use crate::BenchError;
use crate::load::job::{Job, Limit};
use crate::measure::cpu::thread_time;
use crate::run::cancel::Cancel;
use crate::run::run;

/// Cost of one I/O on a device that costs nothing: the floor under every figure of this program, and its ceiling of
/// I/Os per second for each worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratorCost {
    /// Processor time for one I/O, nanoseconds: drawing its address, reading the clock, counting it.
    pub ns_per_io: f64,
    /// I/Os that one core makes in a second.
    pub iops_per_core: f64,
}

/// Makes 4 KiB random reads from a device that does nothing, for about `duration` on a thread of its own, and says what
/// they cost. Blocks the caller. In processor time, so that it holds on a busy machine; 100 ms are enough.
pub fn generator_cost(duration: Duration) -> Result<GeneratorCost, BenchError> {
    let measure = move || {
        let runtime = runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(BenchError::Thread)?;
        let mut job = Job::new("generator");
        job.limit = Limit::Time(duration);
        let before = thread_time();
        let outcome = runtime.block_on(run(Arc::new(Nothing), &job, &mut |_| (), &Cancel::new()))?;
        let spent = thread_time().saturating_sub(before);
        let ns_per_io = spent.as_nanos() as f64 / outcome.read.ios.max(1) as f64;
        Ok(GeneratorCost { ns_per_io, iops_per_core: 1e9 / ns_per_io.max(1e-3) })
    };
    let thread = thread::Builder::new().name("generator".into()).spawn(measure);
    match thread.map_err(BenchError::Thread)?.join() {
        Ok(cost) => cost,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Reads nothing into the buffer and writes it nowhere.
struct Nothing;

impl BlockDevice for Nothing {
    fn geometry(&self) -> Geometry {
        Geometry::plain(1 << 30)
    }

    fn read(&self, _: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        Io::ok(buf)
    }

    fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }
}

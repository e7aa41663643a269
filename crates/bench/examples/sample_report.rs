//! Runs the `anvil` profile on a RAM disk and writes its page:
//! `cargo run -p lunway-bench --example sample_report -- page.html`. Prints what the loop itself costs per I/O, too:
//! reads from a device that does nothing at all.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lunway_bench::profile::{Options, anvil};
use lunway_bench::report::document;
use lunway_bench::{Cancel, Job, Limit, Table, run};
use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Zeroing};
use lunway_memory::RamDisk;
use lunway_report::{environment, html};

/// Answers without looking: inline, or from a future that is pending once.
struct Nothing {
    inline: bool,
}

impl BlockDevice for Nothing {
    fn geometry(&self) -> Geometry {
        Geometry::plain(1 << 30)
    }

    fn read(&self, _offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if self.inline {
            return Io::ok(buf);
        }
        Io::pending(async move {
            tokio::task::yield_now().await;
            Ok(buf)
        })
    }

    fn write(&self, _offset: u64, _data: SharedBuf, _durability: Durability) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which file shall the page go to?")?;
    let cancel = Cancel::new();

    for (inline, queue_depth) in [(true, 1), (true, 32), (false, 1), (false, 32)] {
        let job =
            Job { queue_depth, limit: Limit::Time(Duration::from_secs(1)), ..Job::new("the loop itself") };
        let outcome = run(Arc::new(Nothing { inline }), &job, &mut |_| (), &cancel).await?;
        let kind = if inline { "inline" } else { "pending" };
        println!("the loop itself, {kind}, depth {queue_depth}: {:.0} ns per I/O", 1e9 / outcome.read.iops());
    }

    let device: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(1 << 30, 512)?);
    let options = Options { duration: Duration::from_secs(1), destroy: true, ..Options::default() };
    let profile = anvil(&device.geometry(), &options);
    let outcomes = profile.run(&device, &mut |_, _| (), &cancel).await?;
    println!("{}", Table::of(&outcomes));

    let mut document = document("anvil on a RAM disk", "ram:1G", &outcomes);
    document.notes = profile.notes;
    document.environment = environment();
    std::fs::write(&path, html(&document))?;
    Ok(())
}

//! Free space proved by the file systems on a device, for commands that leave it out.

use anyhow::anyhow;
use lunway_block::BlockDevice;
use lunway_copy::Skipped;
use lunway_filesystem::Doubt;
use lunway_filesystem::tree::Disk;

use super::inside::sentences;
use super::source::DeviceSource;
use crate::device::BlockingRuntime;
use crate::failure::Failure;
use crate::terminal;

/// Returns the ranges of a source that need not be copied. Reports on standard error which volumes are copied whole,
/// and why.
pub(in crate::command) fn skipped(
    device: &dyn BlockDevice,
    runtime: &BlockingRuntime,
) -> Result<Skipped, Failure> {
    let source = DeviceSource::new(device, runtime);
    let disk = examine(&source);
    let mut skipped = Skipped::default();
    disk.for_each_free(&source, &mut |range| skipped.insert(range)).map_err(changed)?;
    Ok(skipped)
}

/// Examines a disk, and says on standard error what of it stays whole, and what should be known.
fn examine(source: &DeviceSource<'_>) -> Disk {
    let disk = Disk::examine(source, source.sector());
    report(&disk);
    disk
}

/// Says on standard error what of a disk stays whole, and what should be known.
pub(super) fn report(disk: &Disk) {
    for sentence in sentences(disk) {
        eprintln!("{}", terminal::clean(&sentence));
    }
}

/// A volume does not say any more what it said when it was examined.
pub(super) fn changed(doubt: Doubt) -> Failure {
    Failure::failed(anyhow!(
        "the disk changed while it was read ({}): repeat this when nothing writes to it",
        doubt.reason
    ))
}

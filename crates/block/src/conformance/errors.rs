//! Ranges that are refused, and the end of a device.

use super::model::{put, read, stamped, write};
use super::{Content, Instance, Model, Outcome, Verdict, all, ensure};
use crate::{BlockDevice, BlockError, Buf, Durability, Permit, Zeroing};

/// Errors that the contract requires for a range, for operations that change something and for those that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Misaligned,
    OutOfRange,
    ReadOnly,
}

fn name(answer: &Result<(), BlockError>) -> Option<Refused> {
    match answer {
        Err(BlockError::Misaligned { .. }) => Some(Refused::Misaligned),
        Err(BlockError::OutOfRange { .. }) => Some(Refused::OutOfRange),
        Err(BlockError::ReadOnly) => Some(Refused::ReadOnly),
        _ => None,
    }
}

pub(super) async fn errors(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    let geometry = device.geometry();
    let mut model = Model::of(device);
    let (sector, size) = (model.sector(), geometry.size);
    if !geometry.read_only {
        put(device, &mut model, 0, 8 * sector, 1).await?;
        put(device, &mut model, size - 8 * sector, 8 * sector, 2).await?;
    }
    let wrong = [
        (1, sector, Refused::Misaligned),
        (sector / 2, sector, Refused::Misaligned),
        (0, sector - 1, Refused::Misaligned),
        (0, sector + 1, Refused::Misaligned),
        (size - sector + 1, sector, Refused::Misaligned),
        (size, sector, Refused::OutOfRange),
        (size - sector, 2 * sector, Refused::OutOfRange),
        (size + (1 << 30), sector, Refused::OutOfRange),
        (u64::MAX - sector + 1, sector, Refused::OutOfRange),
        (u64::MAX / sector * sector, 2 * sector, Refused::OutOfRange),
        (size + sector, 0, Refused::OutOfRange),
    ];
    for (offset, len, expected) in wrong {
        for (operation, answer) in each_operation(device, offset, len).await {
            let changes = operation != "read" && operation != "extents";
            let expected = if geometry.read_only && changes { Refused::ReadOnly } else { expected };
            ensure!(
                name(&answer) == Some(expected),
                "{operation} of {len} bytes at {offset}: {answer:?}, not {expected:?}"
            );
        }
    }
    // Of what leaves the device not even the part within it is written.
    model.compare_all(device).await?;
    for offset in [0, size] {
        for (operation, answer) in each_operation(device, offset, 0).await {
            let protected = geometry.read_only && name(&answer) == Some(Refused::ReadOnly);
            let unknown = answer == Err(BlockError::Unsupported);
            ensure!(answer.is_ok() || protected || unknown, "an empty {operation} at {offset}: {answer:?}");
        }
    }
    if geometry.read_only {
        for (operation, answer) in each_operation(device, 0, sector).await {
            let changes = operation != "read" && operation != "extents";
            ensure!(
                changes == (name(&answer) == Some(Refused::ReadOnly)),
                "{operation}, read-only: {answer:?}"
            );
        }
        ensure!(
            device.resize(size * 2, Permit::default()).await == Err(BlockError::ReadOnly),
            "a read-only device was resized"
        );
    }
    // Many wrong ones at once leave nothing that a right one would wait for.
    let refused = all((0..100).map(|_| device.read(size, Buf::zeroed(sector as usize)))).await;
    ensure!(refused.iter().all(Result::is_err), "one of many reads behind the end succeeded");
    model.compare_all(device).await?;
    Ok(Outcome::Holds)
}

/// The answers of all operations that have a range.
async fn each_operation(
    device: &dyn BlockDevice,
    offset: u64,
    len: u64,
) -> Vec<(&'static str, Result<(), BlockError>)> {
    let data = || Buf::zeroed(len as usize).freeze();
    vec![
        ("read", device.read(offset, Buf::zeroed(len as usize)).await.map(drop)),
        ("write", device.write(offset, data(), Durability::Volatile).await),
        ("durable write", device.write(offset, data(), Durability::Stable).await),
        ("unmap", device.unmap(offset, len).await),
        ("zeroing", device.write_zeroes(offset, len, Zeroing::MayUnmap).await),
        ("zeroing that keeps space", device.write_zeroes(offset, len, Zeroing::KeepAllocated).await),
        ("extents", device.extents(offset, len, usize::MAX).await.map(drop)),
    ]
}

pub(super) async fn close(instance: Instance) -> Verdict {
    let Instance { device, close, reopen, keep } = instance;
    let mut model = Model::of(&*device);
    if !device.geometry().read_only {
        for stamp in 1..=16 {
            put(&*device, &mut model, stamp * (64 << 10), 8192, stamp).await?;
        }
    }
    device.close().await.map_err(|error| format!("close: {error}"))?;
    // Every operation is answered: refused or, where there was nothing to give up, as before.
    let sector = model.sector();
    let data = stamped(&*device, 0, sector, Content::Stamp(9));
    let late = [
        ("read", device.read(0, Buf::zeroed(sector as usize)).await.map(drop)),
        ("write", device.write(0, data, Durability::Volatile).await),
        ("flush", device.flush().await),
    ];
    let mut refused = 0;
    for (operation, answer) in late {
        match answer {
            Ok(()) if operation == "write" => model.set(0, sector, Content::Stamp(9)),
            Ok(()) | Err(BlockError::ReadOnly) => {}
            Err(BlockError::Gone { .. }) => refused += 1,
            Err(error) => return Err(format!("{operation} after the end: {error}")),
        }
    }
    device.close().await.map_err(|error| format!("closed once more: {error}"))?;
    drop(device);
    if let Some(close) = close {
        close().await.map_err(|error| format!("the end of what is beside it: {error}"))?;
    }
    if let Some(reopen) = reopen {
        let again = reopen().await;
        model.compare_all(&*again.device).await.map_err(|what| format!("opened again: {what}"))?;
        if !again.device.geometry().read_only {
            let written = write(&*again.device, 0, sector, Content::Stamp(10), Durability::Stable).await;
            written.map_err(|error| format!("write after it was opened again: {error}"))?;
            read(&*again.device, 0, sector).await?;
        }
        drop(again);
    }
    drop(keep);
    Ok(if refused > 0 { Outcome::Holds } else { Outcome::Lacks("n/a: nothing to close") })
}

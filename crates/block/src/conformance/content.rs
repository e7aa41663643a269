//! Reads, writes, flushes.

use super::model::{check, is_read_only, put, read, write};
use super::{Content, Instance, Model, Outcome, Verdict, all, ensure};
use crate::Durability;

/// Lengths in sectors: one, odd ones, and those around what is done in one piece by pages (8), chunks (128) and
/// transfers (2048).
const LENGTHS: [u64; 9] = [1, 2, 3, 7, 8, 9, 128, 129, 2049];

pub(super) async fn reads(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    let model = Model::of(device);
    let (sector, sectors) = (model.sector(), model.len() as u64);
    for len in LENGTHS {
        for first in [0, 1, 7, 127, sectors / 2 + 1, sectors.saturating_sub(len)] {
            if first + len <= sectors {
                check(device, &model, first * sector, len * sector).await?;
            }
        }
    }
    for offset in [0, sector, sectors * sector] {
        ensure!(read(device, offset, 0).await?.is_empty(), "an empty read at {offset}");
    }
    model.compare_all(device).await?;
    Ok(Outcome::Holds)
}

pub(super) async fn writes(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    if let Some(lacks) = is_read_only(device) {
        return lacks;
    }
    let mut model = Model::of(device);
    let (sector, sectors) = (model.sector(), model.len() as u64);
    let mut stamp = 0;
    for len in LENGTHS {
        for first in [0, 5, 128, sectors / 2 - 1, sectors.saturating_sub(len)] {
            if first + len > sectors {
                continue;
            }
            stamp += 1;
            put(device, &mut model, first * sector, len * sector, stamp).await?;
            // With a neighbour on each side.
            let (from, to) = (first.saturating_sub(1), (first + len + 1).min(sectors));
            check(device, &model, from * sector, (to - from) * sector).await?;
        }
    }
    for offset in [0, sectors * sector] {
        put(device, &mut model, offset, 0, 1).await?;
    }
    model.compare_all(device).await?;
    Ok(model.kept())
}

pub(super) async fn partial_blocks(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    if let Some(lacks) = is_read_only(device) {
        return lacks;
    }
    let mut model = Model::of(device);
    let sector = model.sector();
    let physical = u64::from(device.geometry().physical_sector);
    let mut stamp = 0;
    // Around borders of physical sectors, pages, chunks of 64 KiB and blocks of 1 MiB: what lies within, across, and up
    // to one.
    for border in [physical, 4096, 64 << 10, 1 << 20, 2 << 20] {
        for (before, behind) in [(1, 0), (0, 1), (1, 1), (3, 2)] {
            let (from, to) = (border.saturating_sub(before * sector), border + behind * sector);
            let from = from / sector * sector;
            stamp += 1;
            put(device, &mut model, from, to / sector * sector - from, stamp).await?;
        }
        let from = border.saturating_sub(8 * sector);
        check(device, &model, from, 16 * sector).await?;
    }
    // A block that is filled from both ends to the middle, sector by sector.
    for n in 0..8 {
        put(device, &mut model, (3 << 20) + n * sector, sector, 100 + n).await?;
        put(device, &mut model, (3 << 20) + (15 - n) * sector, sector, 200 + n).await?;
    }
    model.compare_all(device).await?;
    Ok(model.kept())
}

pub(super) async fn flush(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    let failed = |error| format!("flush: {error}");
    device.flush().await.map_err(failed)?;
    let mut model = Model::of(device);
    if !device.geometry().read_only {
        for stamp in 1..=8 {
            put(device, &mut model, stamp * 4096, 4096, stamp).await?;
            let flushed = all((0..stamp).map(|_| device.flush())).await;
            flushed.into_iter().collect::<Result<(), _>>().map_err(failed)?;
        }
    }
    model.compare_all(device).await?;
    Ok(Outcome::Holds)
}

pub(super) async fn stable(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    if let Some(lacks) = is_read_only(device) {
        return lacks;
    }
    let mut model = Model::of(device);
    let sector = model.sector();
    let size = device.geometry().size;
    for (stamp, (first, len)) in (1..).zip([(0, 1), (1, 7), (5, 130), (300, 2049)]) {
        let content = Content::Stamp(stamp);
        let (offset, len) = (first * sector, (len * sector).min(size - first * sector));
        let written = write(device, offset, len, content, Durability::Stable).await;
        written.map_err(|error| format!("durable write of {len} bytes at {offset}: {error}"))?;
        model.set(offset, len, content);
        check(device, &model, offset, len).await?;
    }
    model.compare_all(device).await?;
    Ok(model.kept())
}

//! Several operations at the same time, and answers without a waiting caller.

use super::model::{check, is_read_only, put, read, write};
use super::{Content, Instance, Model, Outcome, Verdict, all, ensure};
use crate::{Buf, Durability};

/// Number of concurrent operations: more than the threads of any device (16), fewer than a session's window (64).
const DEPTH: u64 = 24;

pub(super) async fn overlaps(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    if let Some(lacks) = is_read_only(device) {
        return lacks;
    }
    let mut model = Model::of(device);
    let sector = model.sector();
    for round in 0..8u64 {
        // From one sector to 64 KiB, at a place that allocates and, later, at one that does not.
        let len = [1, 8, 128, 16][round as usize % 4] * sector;
        let base = (round / 2) * (256 << 10);
        put(device, &mut model, base, 2 * len, 1000 + round).await?;
        // Every other one is shifted by a part of the length.
        let part = |n: u64| base + n % 2 * (len / 2 / sector * sector);
        let stamp = |n: u64| Content::Stamp((round + 1) * 100 + n);
        // Reads beside writes, under way together.
        let mut ios = Vec::new();
        for n in 0..DEPTH {
            let write = write(device, part(n), len, stamp(n), Durability::Volatile);
            ios.push(write.map(|answer| answer.map(|()| None)));
            let read = device.read(base, Buf::for_overwrite(2 * len as usize));
            ios.push(read.map(|answer| answer.map(Some)));
        }
        for answer in all(ios).await {
            let answer =
                answer.map_err(|error| format!("one of {DEPTH} reads and writes at once: {error}"))?;
            if let Some(buf) = answer {
                words_of_them(&model, base, &buf, (0..DEPTH).map(stamp))?;
            }
        }
        let buf = read(device, base, 2 * len).await?;
        one_of_them(&model, base, &buf, (0..DEPTH).map(stamp))?;
        // One that begins after all of them have ended is the last.
        put(device, &mut model, base, 2 * len, 5000 + round).await?;
        check(device, &model, base, 2 * len).await?;
    }
    model.compare_all(device).await?;
    Ok(model.kept())
}

/// Each word of eight bytes is of the model or of one of `contents`. A read beside a write may see a sector half
/// written: the page cache copies what is read without a lock. What stays is whole, and nothing comes from elsewhere.
fn words_of_them(
    model: &Model,
    offset: u64,
    bytes: &[u8],
    contents: impl Iterator<Item = Content> + Clone,
) -> Result<(), String> {
    for (at, word) in (offset..).step_by(8).zip(bytes.chunks(8)) {
        let number = at / model.sector();
        let was = std::iter::once(model.at(number as usize));
        let known = was.chain(contents.clone()).any(|content| content.is(number, word));
        ensure!(known, "byte {at} is of none of the writes: {word:02x?}");
    }
    Ok(())
}

/// Each sector is whole, and what the model has or one of `contents`.
fn one_of_them(
    model: &Model,
    offset: u64,
    bytes: &[u8],
    contents: impl Iterator<Item = Content> + Clone,
) -> Result<(), String> {
    let sector = model.sector();
    for (number, bytes) in (offset / sector..).zip(bytes.chunks(sector as usize)) {
        let was = std::iter::once(model.at(number as usize));
        let whole = was.chain(contents.clone()).any(|content| content.is(number, bytes));
        ensure!(whole, "sector {number} is of no single write: {:02x?}", &bytes[..16]);
    }
    Ok(())
}

pub(super) async fn cancellation(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    let mut model = Model::of(device);
    let sector = model.sector();
    let len = 64 << 10;
    for round in 0..4u64 {
        let base = round * (512 << 10);
        for n in 0..DEPTH {
            drop(device.read(base + n * sector, Buf::for_overwrite(len as usize)));
            drop(device.extents(base, len, usize::MAX));
        }
        drop(device.flush());
        if device.geometry().read_only {
            check(device, &model, base, len).await?;
            continue;
        }
        let stamp = |n: u64| Content::Stamp((round + 1) * 100 + n);
        for n in 0..DEPTH {
            drop(write(device, base, len, stamp(n), Durability::Volatile));
        }
        // What was abandoned may still happen, beside this read too, so until the device is quiet only that is known.
        let buf = read(device, base, len).await?;
        words_of_them(&model, base, &buf, (0..DEPTH).map(stamp))?;
        let beside = base + (256 << 10);
        put(device, &mut model, beside, len, 7000 + round).await?;
        check(device, &model, beside, len).await?;
        model.set(base, len, Content::Any);
    }
    device.flush().await.map_err(|error| format!("flush after abandoned operations: {error}"))?;
    model.compare_all(device).await?;
    Ok(Outcome::Holds)
}

//! Geometry, unmapping, zeroes, extents, size.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::model::{check, is_read_only, put, read};
use super::{Content, Instance, Model, Outcome, SIZE_MIN, Verdict, ensure};
use crate::{BlockDevice, BlockError, ExtentKind, Geometry, Permit, Zeroing};

pub(super) async fn shape(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    let geometry = device.geometry();
    let Geometry { size, logical_sector, physical_sector, .. } = geometry;
    ensure!(logical_sector == 512 || logical_sector == 4096, "sectors of {logical_sector} bytes");
    ensure!(physical_sector.is_power_of_two() && physical_sector >= logical_sector, "{geometry:?}");
    ensure!(size >= SIZE_MIN && size.is_multiple_of(u64::from(logical_sector)), "{size} bytes");
    ensure!(geometry.first_aligned < physical_sector, "{geometry:?}");
    ensure!(geometry.first_aligned.is_multiple_of(logical_sector), "{geometry:?}");
    for unit in [
        geometry.optimal_transfer,
        geometry.transfer_granularity,
        geometry.max_transfer,
        geometry.unmap.granularity(),
    ] {
        ensure!(unit.is_multiple_of(logical_sector), "{unit} is not a multiple of the sector: {geometry:?}");
    }
    ensure!(
        !geometry.unmap.frees() || geometry.unmap.granularity() > 0,
        "gives back units of nothing: {geometry:?}"
    );
    ensure!(device.geometry() == geometry, "another geometry in the second call: {:?}", device.geometry());
    if let Some(space) = device.space() {
        ensure!(space.allocated <= space.used, "{space:?}");
    }
    let paths = device.paths();
    let names: HashSet<_> = paths.iter().map(|path| path.name.clone()).collect();
    ensure!(names.len() == paths.len(), "two paths of one name: {paths:?}");
    let again: Vec<_> = device.paths().into_iter().map(|path| path.name).collect();
    ensure!(
        again == paths.iter().map(|path| path.name.clone()).collect::<Vec<_>>(),
        "paths in another order"
    );
    ensure!(
        device.identity() == device.identity(),
        "another name in the second call: {:?}",
        device.identity()
    );
    ensure!(device.caching() == device.caching(), "another answer about caches in the second call");
    Ok(Outcome::Holds)
}

/// Ranges in bytes: a whole block, a part of one, one sector, many pages, the end, nothing.
fn ranges(model: &Model) -> [(u64, u64); 6] {
    let (sector, size) = (model.sector(), model.len() as u64 * model.sector());
    [
        (0, 1 << 20),
        ((1 << 20) + sector, 5 * sector),
        ((1 << 20) + (512 << 10), sector),
        (2 << 20, 152 << 10),
        (size - 9 * sector, 9 * sector),
        (3 << 20, 0),
    ]
}

async fn fill(device: &dyn BlockDevice, model: &mut Model) -> Result<(), String> {
    let size = device.geometry().size;
    for (stamp, at) in (1..).zip((0..size).step_by(1 << 20)) {
        put(device, model, at, (size - at).min(1 << 20), stamp).await?;
    }
    Ok(())
}

pub(super) async fn unmap(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    if let Some(lacks) = is_read_only(device) {
        return lacks;
    }
    let geometry = device.geometry();
    let mut model = Model::of(device);
    let sector = model.sector();
    fill(device, &mut model).await?;
    for (offset, len) in ranges(&model) {
        let unmapped = device.unmap(offset, len).await;
        unmapped.map_err(|error| format!("unmap of {len} bytes at {offset}: {error}"))?;
        // A device that does nothing keeps what it has.
        if geometry.unmap.zeroes() {
            model.set(offset, len, Content::Zeroes);
        } else if geometry.unmap.frees() {
            model.set(offset, len, Content::Any);
        }
        check(device, &model, offset, len).await?;
    }
    model.compare_all(device).await?;
    // What was given back is taken again.
    put(device, &mut model, 0, 8 * sector, 99).await?;
    model.compare_all(device).await?;
    Ok(if geometry.unmap.frees() { Outcome::Holds } else { Outcome::Lacks("does nothing") })
}

pub(super) async fn write_zeroes(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    if let Some(lacks) = is_read_only(device) {
        return lacks;
    }
    let mut model = Model::of(device);
    for zeroing in [Zeroing::MayUnmap, Zeroing::KeepAllocated] {
        fill(device, &mut model).await?;
        for (offset, len) in ranges(&model) {
            match device.write_zeroes(offset, len, zeroing).await {
                Ok(()) => model.set(offset, len, Content::Zeroes),
                Err(BlockError::Unsupported) => {
                    model.compare_all(device).await?;
                    return Ok(Outcome::Lacks("not supported"));
                }
                Err(error) => return Err(format!("{zeroing:?} of {len} bytes at {offset}: {error}")),
            }
            check(device, &model, offset, len).await?;
        }
        model.compare_all(device).await?;
    }
    Ok(Outcome::Holds)
}

pub(super) async fn extents(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    let mut model = Model::of(device);
    let (sector, size) = (model.sector(), device.geometry().size);
    let mut tells = extents_of(device, &model, 0, size).await?;
    if !device.geometry().read_only {
        for (stamp, (offset, len)) in (1..).zip(ranges(&model)) {
            put(device, &mut model, offset, len, stamp).await?;
        }
    }
    let border = 1 << 20;
    for (offset, len) in [
        (0, size),
        (sector, sector),
        (border - sector, 2 * sector),
        (border - 8 * sector, 1 << 20),
        (size - sector, sector),
        (size, 0),
        (7 * sector, 0),
    ] {
        tells |= extents_of(device, &model, offset, len).await?;
    }
    Ok(if tells { Outcome::Holds } else { Outcome::Lacks("all is data") })
}

/// Compares the extents of a range with what it holds; whether they told anything but data.
pub(super) async fn extents_of(
    device: &dyn BlockDevice,
    model: &Model,
    offset: u64,
    len: u64,
) -> Result<bool, String> {
    let list = device.extents(offset, len, usize::MAX).await;
    let list = list.map_err(|error| format!("extents of {len} bytes at {offset}: {error}"))?;
    let sector = model.sector();
    let (mut next, mut tells) = (offset, false);
    for extent in &list {
        ensure!(
            extent.offset == next && extent.len > 0,
            "a gap or an empty piece before {extent:?}: {list:?}"
        );
        next = extent.end();
        ensure!(extent.len.is_multiple_of(sector), "not whole sectors: {extent:?}");
        // What is unallocated need not be zeroes where the device does not say so.
        let promised = extent.kind == ExtentKind::Zero || device.geometry().unmap.zeroes();
        let mut in_doubt = None;
        if extent.kind != ExtentKind::Data {
            tells = true;
            for number in extent.offset / sector..(next.min(offset + len)) / sector {
                let content = model.at(number as usize);
                ensure!(
                    !matches!(content, Content::Stamp(_)),
                    "{extent:?} hides {content:?} in sector {number}"
                );
                if promised && content == Content::Any {
                    in_doubt.get_or_insert(number);
                }
            }
        }
        // Only the device knows what is there now: it must be what it says.
        if let Some(number) = in_doubt {
            let bytes = read(device, number * sector, sector).await?;
            ensure!(Content::Zeroes.is(number, &bytes), "{extent:?} hides data in sector {number}");
        }
    }
    ensure!(next == offset + len, "extents of {len} bytes at {offset} end at {next}");
    for count in [1, 2, 7] {
        first_extents_of(device, offset, len, count).await?;
    }
    Ok(tells)
}

/// Checks a list of first extents. Ranges that change meanwhile may be reported differently, so each list is only held
/// against its own promise.
async fn first_extents_of(
    device: &dyn BlockDevice,
    offset: u64,
    len: u64,
    count: usize,
) -> Result<(), String> {
    let list = device.extents(offset, len, count).await;
    let list =
        list.map_err(|error| format!("the first {count} extents of {len} bytes at {offset}: {error}"))?;
    let mut next = offset;
    for extent in &list {
        ensure!(
            extent.offset == next && extent.len > 0,
            "a gap or an empty piece before {extent:?}: {list:?}"
        );
        next = extent.end();
    }
    ensure!(
        next == offset + len || next < offset + len && list.len() >= count,
        "the first {count} extents of {len} bytes at {offset} are {} and end at {next}",
        list.len()
    );
    Ok(())
}

pub(super) async fn resize(instance: &Instance) -> Verdict {
    let device = &*instance.device;
    let mut model = Model::of(device);
    let (sector, size) = (model.sector(), device.geometry().size);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    device.on_resize(Box::new(move |geometry| {
        hears.lock().unwrap_or_else(PoisonError::into_inner).push(geometry.size);
    }));
    if !device.geometry().read_only {
        put(device, &mut model, size - 16 * sector, 16 * sector, 1).await?;
    }
    let larger = size + (1 << 20);
    let withdrawn = Permit::default();
    withdrawn.withdraw();
    ensure!(
        device.resize(larger, withdrawn).await.is_err() && device.geometry().size == size,
        "resized without leave"
    );
    let lacks = match device.resize(larger, Permit::default()).await {
        Ok(()) => None,
        Err(BlockError::ReadOnly) => Some("read-only"),
        Err(BlockError::Unsupported) => Some("not supported"),
        Err(BlockError::Size { .. }) => Some("decided elsewhere"),
        Err(error) => return Err(format!("resize to {larger}: {error}")),
    };
    if let Some(lacks) = lacks {
        model.compare_all(device).await?;
        return Ok(Outcome::Lacks(lacks));
    }
    for size in [larger, size / 2, size / 2 + sector * 8, size] {
        if size != larger {
            let resized = device.resize(size, Permit::default()).await;
            resized.map_err(|error| format!("resize to {size}: {error}"))?;
        }
        model.resize((size / sector) as usize);
        let told = heard.lock().unwrap_or_else(PoisonError::into_inner).last().copied();
        ensure!(
            told == Some(size),
            "resized to {size} bytes, and the callback heard {told:?} before the answer"
        );
        model.compare_all(device).await?;
        let beyond = device.read(size, crate::Buf::zeroed(sector as usize)).await;
        ensure!(
            matches!(beyond, Err(BlockError::OutOfRange { .. })),
            "a read behind the new end: {beyond:?}"
        );
        put(device, &mut model, size - sector, sector, size).await?;
        read(device, size - sector, sector).await?;
    }
    let odd = device.resize(sector + 1, Permit::default()).await;
    ensure!(odd.is_err(), "a size of {} bytes was taken", sector + 1);
    model.compare_all(device).await?;
    Ok(Outcome::Holds)
}

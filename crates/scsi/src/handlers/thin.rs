//! UNMAP, WRITE SAME and GET LBA STATUS.

use lunway_block::{Buf, Caching, Durability, Io, TimeSlices, Zeroing};

use super::transfer::Blocks;
use crate::block_error::Step;
use crate::command::{Answer, Command, failure, parameter_data, stepwise};
use crate::data::field::{u16_at, u32_at, u64_at};
use crate::data::lba_status::{LbaStatus, Provisioning};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense};
use crate::limits::{UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX};
use crate::model::gate::Claim;
use crate::model::logical_unit::LogicalUnit;

/// Bytes of pattern written at a time.
pub(crate) const PATTERN_CHUNK: usize = 1 << 20;
/// Bytes whose extents are asked for first, and the factor by which that grows: where a map is in many pieces, one
/// answer is full of them before much has been looked at.
const STATUS_WINDOW_FIRST: u64 = 16 << 20;
const STATUS_WINDOW_GROWTH: u64 = 4;
/// Bytes whose extents are asked for at a time, and how often: an answer may end early, the initiator asks on from
/// there.
const STATUS_WINDOW_MAX: u64 = 1 << 30;
const STATUS_WINDOWS_MAX: u32 = 64;
/// The same for a disk in memory, which looks at its chunks of 64 KiB on the core: 2,048 of them at 30 ns take less
/// than 0.1 ms.
const STATUS_WINDOW_IN_MEMORY: u64 = 128 << 20;
/// Most descriptors of one GET LBA STATUS.
const STATUS_DESCRIPTORS_MAX: usize = 1024;

/// Bytes before the descriptors of UNMAP, and of each.
const UNMAP_HEADER: usize = 8;
const UNMAP_DESCRIPTOR: usize = 16;

/// The blocks that a parameter list of UNMAP names, as far as it can be one.
pub(crate) fn claim_of_unmap(list: &[u8]) -> Claim {
    let descriptors = list.get(UNMAP_HEADER..).unwrap_or(&[]).chunks_exact(UNMAP_DESCRIPTOR);
    Claim::ranges(descriptors.take(UNMAP_DESCRIPTORS_MAX as usize).map(|descriptor| {
        let lba = u64_at(descriptor, 0).unwrap_or(0);
        lba..lba.saturating_add(u32_at(descriptor, 8).unwrap_or(0).into())
    }))
}

/// Validates every descriptor before the first is done, so that a refused command has changed nothing.
pub(crate) fn unmap(command: Command) -> Answer {
    const HEADER: usize = UNMAP_HEADER;
    const DESCRIPTOR: usize = UNMAP_DESCRIPTOR;
    let len = usize::from(command.cdb.u16(7));
    if len == 0 {
        return Ok(Io::Ready(Response::good()));
    }
    let list = command.parameter_list(len)?;
    let descriptors_len = match u16_at(&list, 2) {
        Some(descriptors) if list.len() >= HEADER => usize::from(descriptors) / DESCRIPTOR * DESCRIPTOR,
        _ => return Err(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR).into()),
    };
    // SBC-4: a list cut by the parameter list length is no error; whole descriptors in it count.
    let descriptors = &list[HEADER..list.len().min(HEADER + descriptors_len)];
    if descriptors.len() / DESCRIPTOR > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(Sense::invalid_parameter(2).into());
    }
    let geometry = command.unit().geometry();
    let mut ranges = Vec::with_capacity(descriptors.len() / DESCRIPTOR);
    let mut total = 0u64;
    for descriptor in descriptors.chunks_exact(DESCRIPTOR) {
        let lba = u64_at(descriptor, 0).unwrap_or(0);
        let count = u32_at(descriptor, 8).unwrap_or(0);
        total += u64::from(count);
        ranges.push(Blocks { lba, count }.on(&geometry)?);
    }
    if total > u64::from(UNMAP_BLOCKS_MAX) {
        return Err(Sense::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST).into());
    }
    stepwise(async move {
        let (unit, mut slices) = (command.unit(), TimeSlices::new());
        for (offset, len) in ranges {
            let fail = |error| failure(unit, Step::Write { offset, len }, &error);
            for (at, piece) in pieces(unit, offset, len) {
                slices.spend(piece).await;
                unit.device().unmap(at, piece).await.map_err(fail)?;
            }
        }
        Ok(Response::took(len as u64))
    })
}

/// A range, cut at multiples of [`PATTERN_CHUNK`] where memory is cleared on the core, so that others have their turn
/// in between. A device that waits for something else takes it as a whole.
fn pieces(unit: &LogicalUnit, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
    let chunk = if unit.device().caching() == Caching::Memory { PATTERN_CHUNK as u64 } else { u64::MAX };
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let border = (at / chunk).checked_add(1)?.checked_mul(chunk)?;
        let piece = (at, border.min(end) - at);
        at += piece.1;
        (piece.1 > 0).then_some(piece)
    })
}

pub(crate) fn write_same_10(command: Command) -> Answer {
    let Blocks { lba, count } = Blocks::of_10(&command.cdb);
    write_same(command, lba, count.into(), false)
}

pub(crate) fn write_same_16(command: Command) -> Answer {
    const NDOB: u8 = 0x01;
    let Blocks { lba, count } = Blocks::of_16(&command.cdb);
    let without_data = command.cdb.has(1, NDOB);
    write_same(command, lba, count.into(), without_data)
}

fn write_same(command: Command, lba: u64, count: u64, without_data: bool) -> Answer {
    const UNMAP: u8 = 0x08;
    let geometry = command.unit().geometry();
    let unmap = command.cdb.has(1, UNMAP);
    if unmap && !geometry.unmap.is_thin() {
        return Err(Sense::invalid_cdb_field(1, 3).into());
    }
    // WSNZ: no count would mean "to the last block", which is more than anyone should ask for by leaving out a number.
    if count == 0 || count > WRITE_SAME_BLOCKS_MAX {
        return Err(Sense::illegal(AdditionalSense::INVALID_FIELD_IN_CDB).into());
    }
    // WSNZ and the maximum above leave 16 bits.
    let (offset, len) = Blocks { lba, count: count as u32 }.on(&geometry)?;
    let sector = geometry.logical_sector as usize;
    let wanted = if without_data { 0 } else { sector };
    // One block, exactly: of another length it is not known what is to be the same.
    if !without_data && command.data_out.len() != sector {
        let refusal = Sense::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
        return Err(Response { wanted_out: wanted as u64, ..refusal.into() });
    }
    stepwise(async move {
        let (unit, mut slices) = (command.unit(), TimeSlices::new());
        let fail = |error| failure(unit, Step::Write { offset, len }, &error);
        let zeroes = without_data || command.data_out.iter().all(|&byte| byte == 0);
        if zeroes {
            let zeroing = if unmap { Zeroing::MayUnmap } else { Zeroing::KeepAllocated };
            for (at, piece) in pieces(unit, offset, len) {
                slices.spend(piece).await;
                unit.device().write_zeroes(at, piece, zeroing).await.map_err(fail)?;
            }
            if unit.durability(false) == Durability::Stable {
                unit.device().flush().await.map_err(|error| failure(unit, Step::Flush, &error))?;
            }
            return Ok(Response::took(wanted as u64));
        }
        // Blocks that must not read as zeroes cannot be unmapped: UNMAP is then only a wish.
        let chunk = len.min((PATTERN_CHUNK / sector * sector) as u64) as usize;
        let mut pattern = Buf::for_overwrite(chunk);
        pattern.chunks_exact_mut(sector).for_each(|block| block.copy_from_slice(&command.data_out));
        let pattern = pattern.freeze();
        let mut done = 0;
        while done < len {
            let step = (len - done).min(chunk as u64);
            slices.spend(step).await;
            let piece = pattern.slice(0..step as usize);
            unit.device().write(offset + done, piece, unit.durability(false)).await.map_err(fail)?;
            done += step;
        }
        Ok(Response::took(wanted as u64))
    })
}

pub(crate) fn get_lba_status(command: Command) -> Answer {
    let geometry = command.unit().geometry();
    let (start, allocation) = (command.cdb.u64(2), command.cdb.u32(10) as usize);
    if start >= geometry.sectors() {
        return Err(Sense::illegal(AdditionalSense::LBA_OUT_OF_RANGE).with_information(start).into());
    }
    let sector = u64::from(geometry.logical_sector);
    let descriptors_max = (allocation.saturating_sub(LbaStatus::HEADER) / LbaStatus::DESCRIPTOR)
        .clamp(1, STATUS_DESCRIPTORS_MAX);
    let mut status = LbaStatus::default();
    if !geometry.unmap.is_thin() {
        // Fully provisioned: every block is mapped (SBC-4 §4.7.2), whatever the device leaves out below.
        status.push(start, geometry.sectors() - start, Provisioning::MAPPED);
        return Ok(Io::Ready(parameter_data(&status.build(descriptors_max), allocation)));
    }
    stepwise(async move {
        let device = command.unit().device();
        let in_memory = device.caching() == Caching::Memory;
        let window_max = if in_memory { STATUS_WINDOW_IN_MEMORY } else { STATUS_WINDOW_MAX };
        let (mut at, mut window, mut slices) = (start * sector, STATUS_WINDOW_FIRST, TimeSlices::new());
        for _ in 0..STATUS_WINDOWS_MAX {
            let len = window.min(geometry.size - at);
            if len == 0 || status.is_full(descriptors_max) {
                break;
            }
            // Of the first window, too: an answer of a few descriptors takes as long as a read of 64 KiB, and a session
            // may ask for a window of commands at a time.
            if in_memory {
                slices.next().await;
            }
            // One more than fit: the last one may grow until there is another.
            let missing = descriptors_max + 1 - status.descriptors.len();
            let extents = device.extents(at, len, missing).await;
            let fail = |error| failure(command.unit(), Step::Read { offset: at, len }, &error);
            let extents = extents.map_err(fail)?;
            if !in_memory {
                slices.next().await;
            }
            for extent in &extents {
                status.push(extent.offset / sector, extent.len / sector, Provisioning::of(extent.kind));
            }
            let Some(last) = extents.last() else { break };
            at = last.end();
            window = (window * STATUS_WINDOW_GROWTH).min(window_max);
        }
        Ok(parameter_data(&status.build(descriptors_max), allocation))
    })
}

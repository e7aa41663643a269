//! READ, WRITE, PRE-FETCH and SYNCHRONIZE CACHE: the hot path, and its cold neighbours.

use lunway_block::{BlockDevice, Buf, Geometry, Io, Lent, SharedBuf};

use crate::block_error::{Step, response_of};
use crate::command::{Answer, Command, PaddedCdb, failure};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense};

const FUA: u8 = 0x08;

/// Blocks that a CDB names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) lba: u64,
    pub(crate) count: u32,
}

impl Blocks {
    pub(crate) fn of_10(cdb: &PaddedCdb) -> Self {
        Self { lba: cdb.u32(2).into(), count: cdb.u16(7).into() }
    }

    pub(crate) fn of_12(cdb: &PaddedCdb) -> Self {
        Self { lba: cdb.u32(2).into(), count: cdb.u32(6) }
    }

    pub(crate) fn of_16(cdb: &PaddedCdb) -> Self {
        Self { lba: cdb.u64(2), count: cdb.u32(10) }
    }

    /// 21 bits of address; a count of 0 means 256.
    pub(crate) fn of_6(cdb: &PaddedCdb) -> Self {
        let count = match cdb.u8(4) {
            0 => 256,
            count => count.into(),
        };
        Self { lba: (cdb.u32(0) & 0x1F_FFFF).into(), count }
    }

    /// Returns the range on the device: offset and length, bytes. Refuses a range that leaves the medium.
    pub(crate) fn on(self, geometry: &Geometry) -> Result<(u64, u64), Response> {
        let end = self.lba.checked_add(self.count.into());
        if end.is_none_or(|end| end > geometry.sectors()) {
            // INFORMATION: the first block that cannot be reached.
            let first = self.lba.max(geometry.sectors());
            return Err(Sense::illegal(AdditionalSense::LBA_OUT_OF_RANGE).with_information(first).into());
        }
        // Cannot overflow: both are within the device, whose size is in bytes.
        let sector = u64::from(geometry.logical_sector);
        Ok((self.lba * sector, u64::from(self.count) * sector))
    }

    /// [`on`](Self::on), for commands that move the data: refuses more than MAXIMUM TRANSFER LENGTH.
    pub(crate) fn transferred(
        self,
        command: &Command,
        geometry: &Geometry,
    ) -> Result<(u64, usize), Response> {
        let (offset, len) = self.on(geometry)?;
        if self.count > command.unit().max_transfer_blocks(geometry.logical_sector) {
            return Err(Sense::illegal(AdditionalSense::INVALID_FIELD_IN_CDB).into());
        }
        // Fits: the maximum transfer is 32 bits of bytes.
        Ok((offset, len as usize))
    }
}

/// The part of data-out that a command for `wanted` bytes can use: whole blocks. Where the transport promised less than
/// the CDB, the whole blocks that came are used and the residual count tells the initiator the rest (RFC 7143 §11.4.5).
pub(crate) fn whole_blocks(data_out: SharedBuf, wanted: usize, sector: u32) -> SharedBuf {
    let len = data_out.len().min(wanted);
    let len = len - len % sector as usize;
    if len == data_out.len() { data_out } else { data_out.slice(0..len) }
}

fn read(command: &Command, blocks: Blocks) -> Answer {
    let unit = command.unit();
    let geometry = unit.geometry();
    let (offset, len) = blocks.transferred(command, &geometry)?;
    let sector = geometry.logical_sector;
    // What the transport cannot deliver is not read: no command takes more memory than its initiator has room for.
    let part = if command.data_in_max < len {
        command.data_in_max.next_multiple_of(sector as usize).min(len)
    } else {
        len
    };
    if part == 0 {
        return Ok(Io::Ready(Response { wanted_in: len as u64, ..Response::good() }));
    }
    if command.may_lend
        && part >= Lent::MIN
        && let Some(lent) = unit.device().lend_memory(offset, part)
    {
        return Ok(Io::Ready(Response { wanted_in: len as u64, ..Response::lent(lent) }));
    }
    Ok(unit.device().read(offset, Buf::for_overwrite(part)).map(move |done| match done {
        Ok(buf) => Response { wanted_in: len as u64, ..Response::data(buf.freeze()) },
        Err(error) => response_of(&error, Step::Read { offset, len: part as u64 }, sector),
    }))
}

fn write(command: Command, blocks: Blocks, fua: bool) -> Answer {
    let geometry = command.unit().geometry();
    let (offset, len) = blocks.transferred(&command, &geometry)?;
    let sector = geometry.logical_sector;
    let data = whole_blocks(command.data_out, len, sector);
    let unit = command.itl.unit();
    Ok(unit.device().write(offset, data, unit.durability(fua)).map(move |done| match done {
        Ok(()) => Response::took(len as u64),
        Err(error) => response_of(&error, Step::Write { offset, len: len as u64 }, sector),
    }))
}

pub(crate) fn read_6(command: Command) -> Answer {
    read(&command, Blocks::of_6(&command.cdb))
}

pub(crate) fn read_10(command: Command) -> Answer {
    read_maybe_stable(command, Blocks::of_10)
}

pub(crate) fn read_12(command: Command) -> Answer {
    read_maybe_stable(command, Blocks::of_12)
}

pub(crate) fn read_16(command: Command) -> Answer {
    read_maybe_stable(command, Blocks::of_16)
}

/// FUA on a read: what comes back must be on stable storage (SBC-4 §4.15), so a volatile cache is flushed first.
fn read_maybe_stable(mut command: Command, blocks: fn(&PaddedCdb) -> Blocks) -> Answer {
    let blocks = blocks(&command.cdb);
    if !command.cdb.has(1, FUA) || !command.unit().geometry().volatile_cache {
        return read(&command, blocks);
    }
    // It goes on later, and then its pass ends with its answer.
    command.may_lend = false;
    let flushed = command.unit().device().flush();
    Ok(flushed.then(move |flushed| match flushed {
        Ok(()) => read(&command, blocks).unwrap_or_else(Io::Ready),
        Err(error) => Io::Ready(failure(command.unit(), Step::Flush, &error)),
    }))
}

pub(crate) fn write_6(command: Command) -> Answer {
    let blocks = Blocks::of_6(&command.cdb);
    write(command, blocks, false)
}

pub(crate) fn write_10(command: Command) -> Answer {
    let (blocks, fua) = (Blocks::of_10(&command.cdb), command.cdb.has(1, FUA));
    write(command, blocks, fua)
}

pub(crate) fn write_12(command: Command) -> Answer {
    let (blocks, fua) = (Blocks::of_12(&command.cdb), command.cdb.has(1, FUA));
    write(command, blocks, fua)
}

pub(crate) fn write_16(command: Command) -> Answer {
    let (blocks, fua) = (Blocks::of_16(&command.cdb), command.cdb.has(1, FUA));
    write(command, blocks, fua)
}

/// Nothing is fetched: the device's own cache decides. GOOD instead of CONDITION MET says exactly that (SBC-4).
fn pre_fetch(command: &Command, blocks: Blocks) -> Answer {
    blocks.on(&command.unit().geometry())?;
    Ok(Io::Ready(Response::good()))
}

pub(crate) fn pre_fetch_10(command: Command) -> Answer {
    pre_fetch(&command, Blocks::of_10(&command.cdb))
}

pub(crate) fn pre_fetch_16(command: Command) -> Answer {
    pre_fetch(&command, Blocks::of_16(&command.cdb))
}

/// Flushes all of the device, which covers any range. IMMED is allowed to return early and does not: GOOD then says
/// more than it must.
fn synchronize_cache(command: &Command, blocks: Blocks) -> Answer {
    let unit = command.unit();
    let geometry = unit.geometry();
    blocks.on(&geometry)?;
    let sector = geometry.logical_sector;
    Ok(command.itl.opener().flush().map(move |done| match done {
        Ok(()) => Response::good(),
        Err(error) => response_of(&error, Step::Flush, sector),
    }))
}

pub(crate) fn synchronize_cache_10(command: Command) -> Answer {
    synchronize_cache(&command, Blocks::of_10(&command.cdb))
}

pub(crate) fn synchronize_cache_16(command: Command) -> Answer {
    synchronize_cache(&command, Blocks::of_16(&command.cdb))
}

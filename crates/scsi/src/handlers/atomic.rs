//! COMPARE AND WRITE, ORWRITE and WRITE ATOMIC. Each is alone on its blocks, by the atomic gate.

use lunway_block::Buf;

use super::transfer::{Blocks, whole_blocks};
use super::verify::{first_difference, miscompare};
use crate::block_error::Step;
use crate::command::{Answer, Command, PaddedCdb, failure, stepwise};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense};

const FUA: u8 = 0x08;

pub(crate) fn blocks_of_compare_and_write(cdb: &PaddedCdb) -> Blocks {
    Blocks { lba: cdb.u64(2), count: cdb.u8(13).into() }
}

pub(crate) fn blocks_of_write_atomic(cdb: &PaddedCdb) -> Blocks {
    Blocks { lba: cdb.u64(2), count: cdb.u16(12).into() }
}

pub(crate) fn compare_and_write(command: Command) -> Answer {
    let blocks = blocks_of_compare_and_write(&command.cdb);
    let geometry = command.unit().geometry();
    let (offset, len) = blocks.transferred(&command, &geometry)?;
    let wanted = 2 * len;
    // Which half a byte belongs to depends on the count: with another length of data-out neither is known.
    if command.data_out.len() != wanted {
        return Err(Response { wanted_out: wanted as u64, ..Sense::invalid_cdb_field(13, 7).into() });
    }
    stepwise(async move {
        let unit = command.unit();
        let reading = Step::Read { offset, len: len as u64 };
        let writing = Step::Write { offset, len: len as u64 };
        let medium = unit.device().read(offset, Buf::for_overwrite(len)).await;
        let medium = medium.map_err(|error| failure(unit, reading, &error))?;
        if let Some(at) = first_difference(&medium, &command.data_out[..len]) {
            return Err(Response { wanted_out: wanted as u64, ..miscompare(at) });
        }
        let new = command.data_out.slice(len..wanted);
        let durability = unit.durability(command.cdb.has(1, FUA));
        let written = unit.device().write(offset, new, durability).await;
        written.map_err(|error| failure(unit, writing, &error))?;
        Ok(Response::took(wanted as u64))
    })
}

pub(crate) fn orwrite(command: Command) -> Answer {
    let geometry = command.unit().geometry();
    let (offset, len) = Blocks::of_16(&command.cdb).transferred(&command, &geometry)?;
    stepwise(async move {
        let data = whole_blocks(command.data_out.clone(), len, geometry.logical_sector);
        let unit = command.unit();
        let reading = Step::Read { offset, len: len as u64 };
        let writing = Step::Write { offset, len: len as u64 };
        let medium = unit.device().read(offset, Buf::for_overwrite(data.len())).await;
        let mut medium = medium.map_err(|error| failure(unit, reading, &error))?;
        medium.iter_mut().zip(&*data).for_each(|(byte, bits)| *byte |= bits);
        let durability = unit.durability(command.cdb.has(1, FUA));
        let written = unit.device().write(offset, medium.freeze(), durability).await;
        written.map_err(|error| failure(unit, writing, &error))?;
        Ok(Response::took(len as u64))
    })
}

pub(crate) fn write_atomic_16(command: Command) -> Answer {
    let blocks = blocks_of_write_atomic(&command.cdb);
    let geometry = command.unit().geometry();
    let (offset, len) = blocks.transferred(&command, &geometry)?;
    stepwise(async move {
        let data = whole_blocks(command.data_out.clone(), len, geometry.logical_sector);
        if data.len() < len && !data.is_empty() {
            // All or nothing: part of it is not an atomic write.
            let refusal = Sense::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
            return Err(Response { wanted_out: len as u64, ..refusal.into() });
        }
        let unit = command.unit();
        let durability = unit.durability(command.cdb.has(1, FUA));
        let written = unit.device().write(offset, data, durability).await;
        let writing = Step::Write { offset, len: len as u64 };
        written.map_err(|error| failure(unit, writing, &error))?;
        Ok(Response::took(len as u64))
    })
}

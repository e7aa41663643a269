//! TEST UNIT READY, START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL: whether there is a medium.

use lunway_block::Io;

use crate::block_error::Step;
use crate::command::{Answer, Command, failure, stepwise};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense};
use crate::model::logical_unit::obstacle;
use crate::model::unit_attention::UnitAttention;

/// Everything that could be in the way has been asked before.
pub(crate) fn test_unit_ready(_: Command) -> Answer {
    Ok(Io::Ready(Response::good()))
}

/// Stopping flushes, as SBC-4 wants before power could go; there is no motor to stop, so the unit stays ready. LOEJ
/// ejects and loads a removable medium.
pub(crate) fn start_stop_unit(command: Command) -> Answer {
    const NO_FLUSH: u8 = 0x04;
    const LOEJ: u8 = 0x02;
    const START: u8 = 0x01;
    let (start, load_or_eject) = (command.cdb.has(4, START), command.cdb.has(4, LOEJ));
    if command.cdb.u8(4) >> 4 != 0 {
        // A power condition: START and LOEJ are ignored (SBC-4), and there is none to go to.
        return Ok(Io::Ready(Response::good()));
    }
    let unit = command.unit();
    let flush = !start && !command.cdb.has(4, NO_FLUSH) && unit.obstacles() & obstacle::NO_MEDIUM == 0;
    if load_or_eject && unit.options().removable && unit.removal_prevented() {
        return Err(Sense::illegal(AdditionalSense::MEDIUM_REMOVAL_PREVENTED).into());
    }
    if load_or_eject && !unit.options().removable {
        return Err(Sense::invalid_cdb_field(4, 1).into());
    }
    stepwise(async move {
        let unit = command.unit();
        if flush {
            unit.device().flush().await.map_err(|error| failure(unit, Step::Flush, &error))?;
        }
        if load_or_eject && unit.set_obstacle(obstacle::NO_MEDIUM, !start) && start {
            unit.establish(UnitAttention::MediumChanged, Some(&command.itl));
        }
        Ok(Response::good())
    })
}

pub(crate) fn prevent_allow(command: Command) -> Answer {
    match command.cdb.u8(4) & 0b11 {
        prevent @ (0 | 1) => {
            command.itl.set_prevents_removal(prevent == 1);
            Ok(Io::Ready(Response::good()))
        }
        _ => Err(Sense::invalid_cdb_field(4, 1).into()),
    }
}

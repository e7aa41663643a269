//! SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS (SPC-4 §6.42, §6.25).

use lunway_block::{Buf, Io};

use crate::command::{Answer, Command, parameter_data, stepwise};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::model::gate::{self, Claim};

/// SELF-TEST CODE.
mod self_test {
    pub(super) const NONE: u8 = 0b000;
    pub(super) const FOREGROUND_SHORT: u8 = 0b101;
    pub(super) const FOREGROUND_EXTENDED: u8 = 0b110;
}

/// Reads the first and the last block: a device that is not there, or not what it was, shows in that. No diagnostic
/// pages are taken, and no self-test runs in the background.
pub(crate) fn send_diagnostic(command: Command) -> Answer {
    const SELFTEST: u8 = 0x04;
    let code = command.cdb.u8(1) >> 5;
    let wanted = match (code, command.cdb.has(1, SELFTEST)) {
        (self_test::NONE, default) => default,
        (self_test::FOREGROUND_SHORT | self_test::FOREGROUND_EXTENDED, false) => true,
        _ => return Err(Sense::invalid_cdb_field(1, 7).into()),
    };
    if command.cdb.u16(3) != 0 {
        return Err(Sense::invalid_cdb_field(3, 7).into());
    }
    if !wanted {
        return Ok(Io::Ready(Response::good()));
    }
    stepwise(async move {
        let unit = command.unit();
        let _pass = gate::shared(unit.clone(), Claim::Nothing, None).await;
        let geometry = unit.geometry();
        let sector = u64::from(geometry.logical_sector);
        for offset in [0, geometry.size.saturating_sub(sector)] {
            let len = sector.min(geometry.size) as usize;
            unit.device().read(offset, Buf::for_overwrite(len)).await.map_err(|_| {
                Sense::new(SenseKey::HARDWARE_ERROR, AdditionalSense::LOGICAL_UNIT_FAILED_SELF_TEST)
            })?;
        }
        Ok(Response::good())
    })
}

/// The supported diagnostic pages: page 00h alone.
pub(crate) fn receive_diagnostic_results(command: Command) -> Answer {
    const PCV: u8 = 0x01;
    if command.cdb.has(1, PCV) && command.cdb.u8(2) != 0 {
        return Err(Sense::invalid_cdb_field(2, 7).into());
    }
    Ok(Io::Ready(parameter_data(&[0, 0, 0, 1, 0], usize::from(command.cdb.u16(3)))))
}

//! FORMAT UNIT (SBC-4 §5.4): everything reads as zeroes afterwards, and a thin device gives its space back.
//!
//! There are no defects to list and no protection information to choose, so the parameter list may only say IMMED and
//! repeat what is. It is not SANITIZE: what is behind the device may still hold the old data.

use std::sync::Arc;

use lunway_block::{BlockError, TimeSlices, Zeroing};

use crate::command::{Answer, Command, settle};
use crate::data::field::{u16_at, u32_at};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense};
use crate::model::gate;
use crate::model::logical_unit::LogicalUnit;
use crate::model::medium_operation::{MediumWork, Phase, Waited};

/// Bytes zeroed at a time, so that PROGRESS INDICATION moves.
const WINDOW: u64 = 1 << 30;

/// Checks the parameter list; says whether to answer at once, and how much data-out was used.
fn immediate(command: &Command) -> Result<(bool, u64), Response> {
    const LONGLIST: u8 = 0x20;
    const FMTDATA: u8 = 0x10;
    const IMMED: u8 = 0x02;
    /// IP, and the bits that only qualify defect lists when FOV says that they count.
    const INITIALIZATION_PATTERN: u8 = 0x08;
    if !command.cdb.has(1, FMTDATA) {
        return Ok((false, 0));
    }
    let long = command.cdb.has(1, LONGLIST);
    let len = if long { 8 } else { 4 };
    let list = command.parameter_list(len)?;
    let defects = if long { u32_at(&list, 4) } else { u16_at(&list, 2).map(u32::from) };
    if list[0] & 0x07 != 0 {
        return Err(Sense::invalid_parameter(0).into());
    }
    if list[1] & INITIALIZATION_PATTERN != 0 {
        return Err(Sense::invalid_parameter(1).into());
    }
    if defects != Some(0) {
        return Err(Sense::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST).into());
    }
    Ok((list[1] & IMMED != 0, len as u64))
}

/// Ends the operation as failed unless it was told how it ended.
struct Ending {
    unit: Arc<LogicalUnit>,
    done: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let failed = Phase::Failed { work: MediumWork::Format, unrestricted: false };
        self.unit.end_medium_operation(if self.done { Phase::Idle } else { failed });
    }
}

async fn zero_everything(unit: &LogicalUnit) -> Result<(), BlockError> {
    let size = unit.geometry().size;
    let (mut at, mut slices) = (0, TimeSlices::new());
    while at < size {
        slices.next().await;
        let len = WINDOW.min(size - at);
        unit.device().write_zeroes(at, len, Zeroing::MayUnmap).await?;
        at += len;
        unit.medium_operation().set_progress(at, size);
    }
    unit.device().flush().await
}

async fn format(mut ending: Ending) {
    ending.done = zero_everything(&ending.unit).await.is_ok();
}

pub(crate) fn format_unit(command: Command) -> Answer {
    let (immediate, taken) = immediate(&command)?;
    Ok(settle(async move {
        let unit = command.unit().clone();
        let pass = gate::exclusive(unit.clone()).await;
        if let Some(refusal) = command.revoked() {
            return refusal;
        }
        // What a sanitize operation left unreadable is not made ready by less than another one.
        let sanitize_failed =
            matches!(unit.medium_operation().phase(), Phase::Failed { work: MediumWork::Sanitize, .. });
        if sanitize_failed || !unit.begin_medium_operation(MediumWork::Format, command.itl.nexus().id()) {
            return unit.medium_operation().response();
        }
        drop(pass);
        let work = format(Ending { unit: unit.clone(), done: false });
        match &unit.options().background {
            Some(background) => background.run(Box::pin(work)),
            None => work.await,
        }
        if !immediate && unit.medium_operation().over().await == Waited::Released {
            return unit.medium_operation().response();
        }
        match unit.medium_operation().phase() {
            Phase::Failed { .. } => unit.medium_operation().response(),
            _ => Response::took(taken),
        }
    }))
}

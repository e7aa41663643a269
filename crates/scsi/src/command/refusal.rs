//! Refusals: what stands in the way of a command before its handler is called.

use super::operation::{Operation, OperationTable};
use super::{Command, PaddedCdb};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::data::status::Status;
use crate::model::authority::Authority;
use crate::model::logical_unit::obstacle;
use crate::model::nexus::ItlNexus;
use crate::model::unit_attention::UnitAttention;

impl Command {
    /// Returns the refusal of a command that may not run now. On the fast path: no unit attention, no obstacle.
    pub(crate) fn refusal(&self) -> Option<Response> {
        let attention = !self.operation.runs_with_unit_attention() && !self.itl.pending().is_empty();
        let obstacles = self.unit().obstacles() | self.itl.obstacles();
        // A nexus that may not write meets the obstacle PROTECTED.
        let target_wide = self.operation.authority() == Authority::ChangeAll;
        if attention || obstacles != 0 || target_wide { self.obstructed(attention, obstacles) } else { None }
    }

    /// In the order of SAM-5 §5.3.3: unit attentions of resets, reservations, other unit attentions; then whether the
    /// nexus has the authority, and whether the port, the medium and its protection let the command through.
    #[cold]
    fn obstructed(&self, attention: bool, obstacles: u8) -> Option<Response> {
        if attention && let Some(condition) = self.itl.pending().take_reset() {
            return Some(condition.sense().into());
        }
        if let Some(conflict) = conflict(&self.itl, self.operation, &self.cdb, obstacles) {
            return Some(conflict);
        }
        if attention && let Some(condition) = self.itl.pending().take() {
            return Some(condition.sense().into());
        }
        if self.is_denied() {
            return Some(Sense::illegal(AdditionalSense::NO_ACCESS_RIGHTS).into());
        }
        closed(&self.itl, self.operation, self.number, obstacles)
    }

    /// The nexus lacks the authority to change state. What writes to the medium is refused as write protected, by
    /// [`closed`].
    fn is_denied(&self) -> bool {
        match self.operation.authority_of(&self.cdb, &self.data_out) {
            Authority::Observe => false,
            Authority::Change => !self.itl.may_change() && !self.operation.writes(),
            // Found out when the command came, which may have waited since.
            Authority::ChangeAll => !self.may_change_all || !self.itl.may_change(),
        }
    }

    /// Returns the response that ends a command which waited before it changed something, and whose nexus may write no
    /// longer.
    pub(crate) fn revoked(&self) -> Option<Response> {
        let writes = self.operation.writes() && !self.itl.may_change();
        match (writes, self.is_denied()) {
            (true, _) => Some(write_protected(&self.itl)),
            (false, true) => Some(Sense::illegal(AdditionalSense::NO_ACCESS_RIGHTS).into()),
            (false, false) => None,
        }
    }
}

/// Returns the refusal that a command of the nexus would get, unit attentions aside: for a copy manager that acts in
/// its place.
pub(crate) fn refusal_of(itl: &ItlNexus, operations: &OperationTable, cdb: &[u8]) -> Option<Response> {
    let obstacles = itl.unit().obstacles() | itl.obstacles();
    if obstacles == 0 {
        return None;
    }
    if itl.obstacles() & obstacle::PREDECESSOR != 0 {
        return Some(Response::status(Status::BUSY));
    }
    let operation = operations.row_of(cdb).ok()?;
    conflict(itl, operation, &PaddedCdb::padded(cdb), obstacles)
        .or_else(|| closed(itl, operation, None, obstacles))
}

/// Another nexus's reservation.
fn conflict(itl: &ItlNexus, operation: &Operation, cdb: &PaddedCdb, obstacles: u8) -> Option<Response> {
    if obstacles & (obstacle::RESERVED | obstacle::PERSISTENT) == 0 {
        return None;
    }
    let nexus = itl.nexus();
    let conflicts = itl.unit().reservations().conflicts(operation.access(cdb), nexus.id(), nexus.ports());
    conflicts.then(|| Response::status(Status::RESERVATION_CONFLICT))
}

/// The unit itself, if it is not the one that the command was meant for; the port, the medium, what the medium is taken
/// for, its protection.
fn closed(itl: &ItlNexus, operation: &Operation, number: Option<u32>, obstacles: u8) -> Option<Response> {
    if obstacles & obstacle::EXCHANGED != 0 && operation.presumes_the_unit() && !itl.is_meant(number) {
        return Some(UnitAttention::LunsChanged.sense().into());
    }
    if obstacles & obstacle::ASYMMETRIC != 0
        && let Some(code) = itl.nexus().group().1.refuses(operation.reach())
    {
        return Some(Sense::new(SenseKey::NOT_READY, code).into());
    }
    if obstacles & obstacle::MEDIUM_OPERATION != 0
        && !operation.runs_beside_medium_operation()
        && let Some(sense) = itl.unit().medium_operation().sense()
    {
        return Some(sense.into());
    }
    if operation.needs_medium() && obstacles & obstacle::NO_MEDIUM != 0 {
        return Some(Sense::new(SenseKey::NOT_READY, AdditionalSense::MEDIUM_NOT_PRESENT_TRAY_OPEN).into());
    }
    if operation.writes() && obstacles & obstacle::PROTECTED != 0 {
        return Some(write_protected(itl));
    }
    None
}

fn write_protected(itl: &ItlNexus) -> Response {
    let exported_read_only = itl.unit().is_read_only() || itl.obstacles() & obstacle::PROTECTED != 0;
    let software = !exported_read_only && itl.unit().mode().software_write_protect();
    let code =
        if software { AdditionalSense::SOFTWARE_WRITE_PROTECTED } else { AdditionalSense::WRITE_PROTECTED };
    Sense::new(SenseKey::DATA_PROTECT, code).into()
}

//! An operation: one supported command, with all that is checked and said of it, and the table of them.

use super::{Handler, PaddedCdb};
use crate::data::opcode::{self as op, service_action as sa};
use crate::data::persistent_reserve::unregisters_own;
use crate::data::sense::{AdditionalSense, Sense};
use crate::model::authority::Authority;
use crate::model::logical_unit::LogicalUnit;
use crate::model::port_group::Reach;
use crate::model::reservation::Access;

/// Passage of a command through the logical unit's atomic gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Does not touch the medium.
    None,
    /// Together with all others that are not alone: it touches no blocks that another could change under it.
    Unit,
    /// Together with others on its blocks.
    Shared,
    /// Alone on its blocks.
    Exclusive,
}

/// Condition under which a command is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    Always,
    /// If the device gives space back.
    Thin,
    /// If the logical unit offers atomic writes.
    AtomicWrites,
}

/// Checks of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) passage: Passage,
    pub(crate) access: Access,
    pub(crate) reach: Reach,
    /// Needs a medium.
    pub(crate) medium: bool,
    /// Changes the medium: refused where that is protected.
    pub(crate) writes: bool,
    /// Runs although a unit attention is pending (SPC-4 §5.14: INQUIRY, REPORT LUNS, REQUEST SENSE).
    pub(crate) with_unit_attention: bool,
    /// Runs beside an operation that has the medium for itself (SBC-4 §4.11.2).
    pub(crate) beside_medium_operation: bool,
    /// Reaches other logical units than the one it is sent to.
    pub(crate) reaches: bool,
}

/// One supported command.
pub struct Operation {
    /// Operation code.
    pub opcode: u8,
    /// Service action, for operation codes that have them.
    pub service_action: Option<u8>,
    /// The standard's name.
    pub name: &'static str,
    /// Section of the standard that defines it.
    pub section: &'static str,
    /// CDB usage data (SPC-4 §6.35.3): its length is the CDB's, its bits are those that are evaluated.
    pub usage: &'static [u8],
    /// Bits that are refused, by byte: those that ask for something which is not done here. All others that `usage` has
    /// not are ignored, as SPC-4 §4.2.5.2 leaves it open whether reserved ones are checked, and initiators set them:
    /// the old logical unit number in bits 7 to 5 of byte 1 (SCSI-2), RELADR, FUA_NV.
    pub(crate) refused: &'static [(usize, u8)],
    pub(crate) kind: Kind,
    authority: Authority,
    pub(crate) offered: Offered,
    handler: Handler,
}

/// Recommended and nominal command timeout, seconds (SPC-4 §6.35.4). Of the order of what initiators use for a disk;
/// the same for all, because the time is the backing device's.
pub(crate) const RECOMMENDED_TIMEOUT_S: u32 = 30;

/// A row of the table: always offered, refusing no bit beyond NACA.
pub(crate) const fn row(
    name: &'static str,
    section: &'static str,
    usage: &'static [u8],
    kind: Kind,
    authority: Authority,
    handler: Handler,
) -> Operation {
    Operation {
        opcode: usage[0],
        service_action: None,
        name,
        section,
        usage,
        refused: &[],
        kind,
        authority,
        offered: Offered::Always,
        handler,
    }
}

impl Operation {
    /// Byte 1 holds a service action.
    pub(crate) const fn acting(mut self) -> Self {
        self.service_action = Some(self.usage[1] & 0x1F);
        self
    }

    pub(crate) const fn refusing(mut self, refused: &'static [(usize, u8)]) -> Self {
        self.refused = refused;
        self
    }

    pub(crate) const fn offered(mut self, offered: Offered) -> Self {
        self.offered = offered;
        self
    }

    /// The logical unit has this command.
    pub fn is_offered_by(&self, unit: &LogicalUnit) -> bool {
        match self.offered {
            Offered::Always => true,
            Offered::Thin => unit.geometry().unmap.is_thin(),
            Offered::AtomicWrites => unit.atomic_writes(),
        }
    }

    pub(crate) fn passage(&self) -> Passage {
        self.kind.passage
    }

    /// Returns the effect of reservations on this command. Two commands are refused only where they ask for more than
    /// nothing (SBC-4 table 13): START STOP UNIT that does not start, PREVENT ALLOW MEDIUM REMOVAL that prevents.
    pub(crate) fn access(&self, cdb: &PaddedCdb) -> Access {
        const START: u8 = 0x01;
        const POWER_CONDITION: u8 = 0xF0;
        const PREVENT: u8 = 0x03;
        let asks_for_nothing = match self.opcode {
            op::START_STOP_UNIT => cdb.has(4, START) && !cdb.has(4, POWER_CONDITION),
            op::PREVENT_ALLOW_MEDIUM_REMOVAL => !cdb.has(4, PREVENT),
            _ => false,
        };
        if asks_for_nothing { Access::Free } else { self.kind.access }
    }

    /// Authority that the row states.
    pub(crate) fn authority(&self) -> Authority {
        self.authority
    }

    /// Authority that this command needs. Some need less than their row states, because they change nothing or give up
    /// what is the nexus's own: START STOP UNIT that neither loads nor ejects, PREVENT ALLOW MEDIUM REMOVAL that
    /// allows, and REGISTER with the new key 0 and for no other nexus, which ends the nexus's own registration.
    pub(crate) fn authority_of(&self, cdb: &PaddedCdb, data_out: &[u8]) -> Authority {
        const LOEJ: u8 = 0x02;
        const POWER_CONDITION: u8 = 0xF0;
        const PREVENT: u8 = 0x03;
        let changes = match (self.opcode, self.service_action) {
            (op::START_STOP_UNIT, _) => cdb.has(4, LOEJ) && !cdb.has(4, POWER_CONDITION),
            (op::PREVENT_ALLOW_MEDIUM_REMOVAL, _) => cdb.has(4, PREVENT),
            (op::PERSISTENT_RESERVE_OUT, Some(sa::REGISTER | sa::REGISTER_AND_IGNORE_EXISTING_KEY)) => {
                !unregisters_own(data_out)
            }
            _ => true,
        };
        if changes { self.authority } else { Authority::Observe }
    }

    pub(crate) fn reach(&self) -> Reach {
        self.kind.reach
    }

    pub(crate) fn needs_medium(&self) -> bool {
        self.kind.medium
    }

    pub(crate) fn writes(&self) -> bool {
        self.kind.writes
    }

    pub(crate) fn runs_with_unit_attention(&self) -> bool {
        self.kind.with_unit_attention
    }

    pub(crate) fn runs_beside_medium_operation(&self) -> bool {
        self.kind.beside_medium_operation
    }

    /// Returns `true` if it reads or changes blocks or state, and so is meant for one particular unit; other commands
    /// only ask about whichever is there.
    pub(crate) fn presumes_the_unit(&self) -> bool {
        self.kind.passage != Passage::None || self.kind.reaches || self.authority != Authority::Observe
    }

    pub(crate) fn reaches_other_units(&self) -> bool {
        self.kind.reaches
    }

    pub(crate) fn handler(&self) -> Handler {
        self.handler
    }

    /// First bit of the CDB that asks for something which is not done here: its byte and bit. Of CONTROL that is NACA
    /// (SAM-5 §5.2).
    pub(crate) fn refused_bit(&self, cdb: &[u8]) -> Option<(u16, u8)> {
        const NACA: u8 = 0x04;
        let control = (self.usage.len() - 1, NACA);
        self.refused.iter().copied().chain([control]).find_map(|(at, bits)| {
            let set = cdb.get(at)? & bits;
            (set != 0).then(|| (at as u16, set.ilog2() as u8))
        })
    }
}

/// No row has this operation code.
const ABSENT: u8 = u8::MAX;

/// Reason why there is no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// The operation code is unknown.
    Opcode,
    /// The operation code is known, the service action is not.
    ServiceAction,
}

/// A table of operations, in the order of their operation codes and service actions.
///
/// Commands get it with their CDB, as some of them report it. So its rows can name handlers, and handlers read it,
/// without one knowing where the other is.
pub(crate) struct OperationTable {
    rows: &'static [Operation],
    /// Row of the first operation with each operation code.
    first: [u8; 256],
}

impl OperationTable {
    /// Indexes rows that are in order, fewer than 255.
    pub(crate) const fn new(rows: &'static [Operation]) -> Self {
        assert!(rows.len() < ABSENT as usize);
        let mut first = [ABSENT; 256];
        let mut index = rows.len();
        while index > 0 {
            index -= 1;
            first[rows[index].opcode as usize] = index as u8;
        }
        Self { rows, first }
    }

    /// All rows.
    pub(crate) fn rows(&self) -> &'static [Operation] {
        self.rows
    }

    /// All rows of an operation code.
    pub(crate) fn with_opcode(&self, opcode: u8) -> &'static [Operation] {
        match self.first[usize::from(opcode)] {
            ABSENT => &[],
            first => {
                let rest = &self.rows[usize::from(first)..];
                let len = rest.iter().position(|row| row.opcode != opcode).unwrap_or(rest.len());
                &rest[..len]
            }
        }
    }

    /// The row of a command by its first two bytes.
    pub(crate) fn find(&self, opcode: u8, byte_1: u8) -> Result<&'static Operation, NotFound> {
        let first = match self.first[usize::from(opcode)] {
            ABSENT => return Err(NotFound::Opcode),
            first => &self.rows[usize::from(first)],
        };
        if first.service_action.is_none() {
            return Ok(first);
        }
        let action = Some(byte_1 & 0x1F);
        self.with_opcode(opcode)
            .iter()
            .find(|row| row.service_action == action)
            .ok_or(NotFound::ServiceAction)
    }

    /// The row of a CDB that has the row's length and sets no bit that the row refuses.
    pub(crate) fn row_of(&self, cdb: &[u8]) -> Result<&'static Operation, Sense> {
        let opcode = *cdb.first().ok_or(Sense::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE))?;
        let operation =
            self.find(opcode, cdb.get(1).copied().unwrap_or(0)).map_err(|missing| match missing {
                NotFound::Opcode => Sense::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE),
                NotFound::ServiceAction => Sense::invalid_cdb_field(1, 4),
            })?;
        if cdb.len() < operation.usage.len() {
            return Err(Sense::illegal(AdditionalSense::INVALID_FIELD_IN_CDB));
        }
        match operation.refused_bit(cdb) {
            Some((byte, bit)) => Err(Sense::invalid_cdb_field(byte, bit)),
            None => Ok(operation),
        }
    }
}

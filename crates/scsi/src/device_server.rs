//! The device server: from a CDB to a response.
//!
//! [`execute`] is the way of every command: find the row, check the CDB against it, pass the gate, ask the nexus and
//! the unit what stands in the way, call the handler. The handlers, one file per family, do only what their command is
//! about.

use std::sync::Arc;

use lunway_block::{Io, Lent, SharedBuf};

use crate::command::operation::{Operation, Passage};
use crate::command::{Command, CopyRequest, Handler, PaddedCdb, settle};
use crate::data::lun::{Lun, LunAddress};
use crate::data::opcode;
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::data::status::Status;
use crate::handlers::transfer::Blocks;
use crate::handlers::{atomic, identify, thin};
use crate::model::authority::Authority;
use crate::model::copy_record::CopyMark;
use crate::model::gate::{self, Claim};
use crate::model::given_up::MediumEffect;
use crate::model::logical_unit::{LogicalUnit, obstacle};
use crate::model::nexus::{ItlNexus, Nexus};
use crate::operations::TABLE;

/// Options of a command that the transport gives beside its CDB and data.
#[derive(Clone, Copy, Debug)]
pub struct TaskOptions {
    /// Task attribute ORDERED: it is carried out after all that came before it and before all that come later (SAM-5
    /// §8.6.3).
    pub ordered: bool,
    /// Bytes of data-in that the transport can deliver. READ reads no more than the blocks that these are in;
    /// [`Response::wanted_in`] still says what the CDB asks for.
    pub data_in_max: usize,
    /// Its place in the order in which the initiator sent its commands, modulo 2³², where the transport knows it. A
    /// command may be carried out later than that, as a write whose data had to be asked for.
    pub number: Option<u32>,
    /// The transport sends what is [lent](Response::lent) to it, or copies it, before it waits for anything: until then
    /// commands that need the blocks for themselves wait, as for one that is being executed.
    pub may_lend: bool,
}

impl Default for TaskOptions {
    /// Simple, and all of its data.
    fn default() -> Self {
        Self { ordered: false, data_in_max: usize::MAX, number: None, may_lend: false }
    }
}

impl Nexus {
    /// Executes one command to its end.
    ///
    /// `cdb` and `data_out` are taken as they come: any length, any content. Of a `data_out` longer than the CDB asks
    /// for, the rest is ignored; of one that is shorter, the whole blocks that are there are written, and the residual
    /// count that the transport makes of [`Response::wanted_out`] tells the initiator.
    pub fn execute(&self, lun: [u8; 8], cdb: &[u8], data_out: SharedBuf) -> Io<Response> {
        self.execute_task(lun, cdb, data_out, TaskOptions::default())
    }

    /// Executes one command after all that the logical unit was given before it, by whichever nexus, and before all
    /// that it is given later: a command with the attribute ORDERED (SAM-5 §8.6.3).
    pub fn execute_ordered(&self, lun: [u8; 8], cdb: &[u8], data_out: SharedBuf) -> Io<Response> {
        self.execute_task(lun, cdb, data_out, TaskOptions { ordered: true, ..TaskOptions::default() })
    }

    /// Executes one command as the transport has it.
    pub fn execute_task(
        &self,
        lun: [u8; 8],
        cdb: &[u8],
        data_out: SharedBuf,
        options: TaskOptions,
    ) -> Io<Response> {
        self.begin_task(lun, cdb, data_out, options).answer
    }

    /// The same, for a transport that may have to give the command up before it has ended.
    pub fn begin_task(&self, lun: [u8; 8], cdb: &[u8], data_out: SharedBuf, options: TaskOptions) -> Begun {
        let absence = match Lun(lun).address() {
            LunAddress::Unit(number) => match self.find(number) {
                Some(itl) => return execute(self, itl, cdb, data_out, options),
                None if self.awaits(number) => Absence::BecomingReady,
                None => Absence::NoUnit,
            },
            LunAddress::ReportLuns => Absence::WellKnown,
            LunAddress::Other => Absence::NoUnit,
        };
        Begun::over(execute_without_unit(self, cdb, absence))
    }

    /// Returns `true` if a read of so many bytes of a unit would be [lent](Response::lent).
    pub fn would_lend(&self, lun: [u8; 8], len: usize) -> bool {
        let LunAddress::Unit(number) = Lun(lun).address() else { return false };
        len >= Lent::MIN
            && self.find(number).is_some_and(|itl| itl.unit().device().lend_memory(0, len).is_some())
    }
}

/// A command that has begun.
pub struct Begun {
    /// Its answer, now or later.
    pub answer: Io<Response>,
    /// Possible changes to a medium until then; `None`: there are none.
    pub effect: Option<MediumEffect>,
}

impl Begun {
    fn over(response: Response) -> Self {
        Self { answer: Io::Ready(response), effect: None }
    }
}

impl Command {
    fn run(self) -> Io<Response> {
        let d_sense = self.unit().mode().descriptor_sense();
        if let Some(refusal) = self.refusal() {
            return Io::Ready(in_format(refusal, d_sense));
        }
        let answer = match self.operation.handler() {
            Handler::Unit(handler) => handler(self),
            Handler::Table(handler) => handler(self, &TABLE),
            // The nexus's own commands never come here: `execute` answers them.
            Handler::Nexus(_) => Err(Sense::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE).into()),
        };
        match answer {
            Ok(Io::Ready(response)) => Io::Ready(in_format(response, d_sense)),
            Ok(pending) => pending.map(move |response| in_format(response, d_sense)),
            Err(refusal) => Io::Ready(in_format(refusal, d_sense)),
        }
    }
}

fn in_format(mut response: Response, d_sense: bool) -> Response {
    if let Some(sense) = &mut response.sense {
        sense.descriptor_format = d_sense;
    }
    response
}

/// Executes a command on a logical unit; an ordered one between all that came before it and all that come after (SAM-5
/// §8.6.3).
pub(crate) fn execute(
    nexus: &Nexus,
    itl: Arc<ItlNexus>,
    cdb: &[u8],
    data_out: SharedBuf,
    options: TaskOptions,
) -> Begun {
    let refuse = |itl: &ItlNexus, sense: Sense| {
        Begun::over(in_format(sense.into(), itl.unit().mode().descriptor_sense()))
    };
    let operation = match TABLE.row_of(cdb) {
        Ok(operation) if operation.is_offered_by(itl.unit()) => operation,
        Ok(_) => return refuse(&itl, Sense::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE)),
        Err(sense) => return refuse(&itl, sense),
    };
    let cdb = PaddedCdb::padded(cdb);
    if let Handler::Nexus(handler) = operation.handler() {
        let d_sense = itl.unit().mode().descriptor_sense();
        return Begun::over(in_format(handler(nexus, &cdb).unwrap_or_else(|refusal| refusal), d_sense));
    }
    if itl.obstacles() & obstacle::EXCHANGED != 0 && operation.opcode == opcode::INQUIRY {
        itl.inquired(options.number);
    }
    // Before the gate, where it would wait for the commands that it must not be carried out before.
    if itl.obstacles() & obstacle::PREDECESSOR != 0 && operation.opcode != opcode::INQUIRY {
        return Begun::over(Response::status(Status::BUSY));
    }
    let claim = claim_of(operation, &cdb, &data_out);
    // Before the gate as well, where it would wait for the command that was given up.
    if itl.unit().is_unsettled(&claim) {
        return Begun::over(Response::status(Status::BUSY));
    }
    let copies = operation.reaches_other_units();
    let copy = copies.then(|| CopyRequest { reachable: nexus.units(), mark: CopyMark::default() });
    let effect = match &copy {
        Some(copy) => Some(MediumEffect::of_copy(itl.clone(), copy.mark.clone())),
        None => effect_of(operation, &itl, &claim),
    };
    let may_change_all = operation.authority() == Authority::ChangeAll && nexus.may_change_all();
    let TaskOptions { ordered, data_in_max, number, may_lend } = options;
    let command =
        Command { itl, cdb, data_out, data_in_max, may_lend: false, number, copy, operation, may_change_all };
    let answer = pass(command, claim, ordered, may_lend);
    let effect = effect.filter(|_| matches!(answer, Io::Pending(_)));
    Begun { answer, effect }
}

/// The blocks that a command claims at the gate.
fn claim_of(operation: &Operation, cdb: &PaddedCdb, data_out: &[u8]) -> Claim {
    if !matches!(operation.passage(), Passage::Shared | Passage::Exclusive) {
        return Claim::Nothing;
    }
    if operation.opcode == opcode::UNMAP {
        return thin::claim_of_unmap(data_out);
    }
    let blocks = blocks_of(operation, cdb);
    Claim::blocks(blocks.lba, blocks.count.into())
}

/// The blocks that the CDB of a command that is about blocks names.
pub(crate) fn blocks_of(operation: &Operation, cdb: &PaddedCdb) -> Blocks {
    match (operation.opcode, operation.usage.len()) {
        (opcode::COMPARE_AND_WRITE, _) => atomic::blocks_of_compare_and_write(cdb),
        (opcode::WRITE_ATOMIC_16, _) => atomic::blocks_of_write_atomic(cdb),
        (_, 6) => Blocks::of_6(cdb),
        (_, 10) => Blocks::of_10(cdb),
        (_, 12) => Blocks::of_12(cdb),
        (_, _) => Blocks::of_16(cdb),
    }
}

/// Possible changes to the medium of a command's unit while it is under way. Operations that have the whole medium for
/// themselves go on without their command, and others are refused until these end.
fn effect_of(operation: &Operation, itl: &Arc<ItlNexus>, claim: &Claim) -> Option<MediumEffect> {
    let changes = operation.writes() && *claim != Claim::Nothing;
    changes.then(|| MediumEffect::on_blocks(itl.clone(), claim.clone()))
}

/// Runs a command once the gate lets it in.
fn pass(command: Command, claim: Claim, ordered: bool, may_lend: bool) -> Io<Response> {
    match (command.operation.passage(), ordered) {
        (Passage::None, false) => command.run(),
        (Passage::Unit | Passage::Shared, false) => run_shared(command, claim, may_lend),
        // It changes nothing on the medium, or passes the gate by itself: it has to wait, and no command for it.
        (Passage::None, true) => settle(async move {
            drop(in_order(&command).await);
            command.run().await
        }),
        (Passage::Exclusive, false) => match command.refusal() {
            // Refused before others have to wait for it: it is asked again when it is inside.
            Some(refusal) => {
                let d_sense = command.unit().mode().descriptor_sense();
                Io::Ready(in_format(refusal, d_sense))
            }
            None => settle(async move {
                let _pass = gate::exclusive_on(command.unit().clone(), claim).await;
                command.run().await
            }),
        },
        (Passage::Exclusive | Passage::Shared | Passage::Unit, true) => settle(async move {
            let _pass = in_order(&command).await;
            command.run().await
        }),
    }
}

/// The turn of an ordered command. That of a nexus that may not write waits for all older commands as well, but holds
/// up only its own: what others write is not its to delay.
async fn in_order(command: &Command) -> gate::Pass<gate::Owned<LogicalUnit>> {
    let unit = command.unit().clone();
    if command.itl.may_change() {
        gate::exclusive(unit).await
    } else {
        gate::ordered_for(unit, command.itl.nexus().id()).await
    }
}

/// The fast path: a pass that borrows, and an answer that is ready. Only a command that goes on later owns its pass.
/// What it borrows from is kept by the nexus's own count: the unit's is shared by all cores. So does data that is lent,
/// which is read when it is sent: until then its command is inside.
fn run_shared(mut command: Command, claim: Claim, may_lend: bool) -> Io<Response> {
    let itl = command.itl.clone();
    let Some(pass) = itl.unit().gate().try_shared(&claim) else {
        // Stands in line now, as the order in which commands come is theirs inside.
        return settle(async move {
            let _pass = gate::shared(itl.unit().clone(), claim, Some(itl.nexus().id())).await;
            command.run().await
        });
    };
    command.may_lend = may_lend;
    match command.run() {
        Io::Ready(mut response) => {
            if let Some(lent) = &mut response.lent {
                lent.keep(Arc::new(pass.into_owned(itl.unit().clone())));
            }
            Io::Ready(response)
        }
        Io::Pending(future) => {
            let pass = pass.into_owned(itl.unit().clone());
            Io::pending(async move {
                let response = future.await;
                drop(pass);
                response
            })
        }
    }
}

/// Reply to commands for which there is no logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// The REPORT LUNS well-known logical unit.
    WellKnown,
    /// Nothing.
    NoUnit,
    /// A unit that is expected soon.
    BecomingReady,
}

/// Executes a command for which there is no logical unit: what SPC-4 §6.6 and §6.33 promise for every LUN, and what the
/// REPORT LUNS well-known logical unit knows.
pub(crate) fn execute_without_unit(nexus: &Nexus, cdb: &[u8], absence: Absence) -> Response {
    let well_known = absence == Absence::WellKnown;
    let operation = match TABLE.row_of(cdb) {
        Ok(operation) => operation,
        Err(sense) => return sense.into(),
    };
    let cdb = PaddedCdb::padded(cdb);
    let answer = match (operation.handler(), operation.opcode) {
        (Handler::Nexus(handler), _) => handler(nexus, &cdb),
        (_, opcode::INQUIRY) => identify::inquiry_without_unit(&cdb, well_known),
        (_, opcode::REQUEST_SENSE) => Ok(identify::request_sense_without_unit(&cdb, well_known)),
        (_, opcode::TEST_UNIT_READY) if well_known => Ok(Response::good()),
        _ if absence == Absence::BecomingReady => {
            Err(Sense::new(SenseKey::NOT_READY, AdditionalSense::BECOMING_READY).into())
        }
        _ if well_known => Err(Sense::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE).into()),
        _ => Err(Sense::illegal(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED).into()),
    };
    answer.unwrap_or_else(|refusal| refusal)
}

//! The device server: from a CDB to a response.
//!
//! [`execute`] is the way of every command: find the row, check the CDB against it, pass the gate, ask the nexus and
//! the unit what stands in the way, call the handler. The handlers, one file per family, do only what their command is
//! about.

pub(crate) mod access;
pub(crate) mod atomic;
pub(crate) mod copy_results;
pub(crate) mod diagnostic;
pub(crate) mod extended_copy;
pub(crate) mod format;
pub(crate) mod identify;
pub(crate) mod log;
pub(crate) mod medium;
pub(crate) mod mode;
pub(crate) mod ports;
mod product_data;
pub(crate) mod report;
pub(crate) mod sanitize;
pub(crate) mod thin;
mod third_party_copy;
pub(crate) mod transfer;
pub(crate) mod verify;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lunway_block::{BlockError, Buf, Io, SharedBuf};

use crate::block_error::{Step, response_of};
use crate::data::field::{u16_at, u32_at, u64_at};
use crate::data::lun::{Lun, LunAddress};
use crate::data::opcode;
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::data::status::Status;
use crate::model::authority::Authority;
use crate::model::copy_record::CopyMark;
use crate::model::gate::{self, Claim};
use crate::model::given_up::MediumEffect;
use crate::model::logical_unit::{LogicalUnit, obstacle};
use crate::model::nexus::{ItlNexus, Nexus};
use crate::model::unit_attention::UnitAttention;
use crate::operations::{self, NotFound, Operation, Passage};

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
}

impl Default for TaskOptions {
    /// Simple, and all of its data.
    fn default() -> Self {
        Self { ordered: false, data_in_max: usize::MAX, number: None }
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
}

/// A command that has begun.
pub struct Begun {
    /// Its answer, now or later.
    pub answer: Io<Response>,
    /// What it may change on a medium until then; `None`: nothing.
    pub effect: Option<MediumEffect>,
}

impl Begun {
    fn over(response: Response) -> Self {
        Self { answer: Io::Ready(response), effect: None }
    }
}

/// Result of a handler: an answer now or later, or a refusal.
pub(crate) type Answer = Result<Io<Response>, Response>;

/// Handler of a command.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// A command to a logical unit.
    Unit(fn(Command) -> Answer),
    /// A command about all logical units of the nexus.
    Nexus(fn(&Nexus, &PaddedCdb) -> Result<Response, Response>),
}

/// Bytes of the longest CDB that is supported.
const CDB_LEN_MAX: usize = 16;

/// A CDB whose length has been checked, padded with zeroes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaddedCdb([u8; CDB_LEN_MAX]);

impl PaddedCdb {
    fn padded(cdb: &[u8]) -> Self {
        let mut bytes = [0; CDB_LEN_MAX];
        let len = cdb.len().min(CDB_LEN_MAX);
        bytes[..len].copy_from_slice(&cdb[..len]);
        Self(bytes)
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16_at(&self.0, at).unwrap_or(0)
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32_at(&self.0, at).unwrap_or(0)
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64_at(&self.0, at).unwrap_or(0)
    }

    /// Any of the bits `mask` of byte `at`.
    pub(crate) fn has(&self, at: usize, mask: u8) -> bool {
        self.0[at] & mask != 0
    }
}

/// A command on its way to its handler.
pub(crate) struct Command {
    pub(crate) itl: Arc<ItlNexus>,
    pub(crate) cdb: PaddedCdb,
    pub(crate) data_out: SharedBuf,
    /// Bytes of data-in that the transport can deliver.
    pub(crate) data_in_max: usize,
    /// Its place among the nexus's commands.
    number: Option<u32>,
    /// Of EXTENDED COPY alone.
    pub(crate) copy: Option<CopyRequest>,
    operation: &'static Operation,
    /// The nexus may change what concerns the whole target; only asked where that is needed.
    may_change_all: bool,
}

/// What a copy manager is given beside the parameter list.
pub(crate) struct CopyRequest {
    /// The units that it may reach: all that the nexus sees.
    pub(crate) reachable: Vec<Arc<ItlNexus>>,
    /// By which it is told that the command is given up.
    pub(crate) mark: CopyMark,
}

impl Command {
    pub(crate) fn unit(&self) -> &Arc<LogicalUnit> {
        self.itl.unit()
    }

    /// Returns the refusal of a command that may not run now. On the fast path: no unit attention, no obstacle.
    fn refusal(&self) -> Option<Response> {
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

    /// The first `len` bytes of data-out, which the CDB promises: a parameter list. Shorter is a mistake of the
    /// initiator that SPC-4 §4.3.3 gives a name.
    pub(crate) fn parameter_list(&self, len: usize) -> Result<SharedBuf, Response> {
        if self.data_out.len() < len {
            return Err(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        Ok(self.data_out.slice(0..len))
    }

    fn run(self) -> Io<Response> {
        let d_sense = self.unit().mode().descriptor_sense();
        if let Some(refusal) = self.refusal() {
            return Io::Ready(in_format(refusal, d_sense));
        }
        let answer = match self.operation.handler() {
            Handler::Unit(handler) => handler(self),
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

/// Returns the refusal that a command of the nexus would get, unit attentions aside: for a copy manager that acts in
/// its place.
pub(crate) fn refusal_of(itl: &ItlNexus, cdb: &[u8]) -> Option<Response> {
    let obstacles = itl.unit().obstacles() | itl.obstacles();
    if obstacles == 0 {
        return None;
    }
    if itl.obstacles() & obstacle::PREDECESSOR != 0 {
        return Some(Response::status(Status::BUSY));
    }
    let operation = find(cdb).ok()?;
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
    let operation = match find(cdb) {
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
    let claim = operation.claim(&cdb, &data_out);
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
    let TaskOptions { ordered, data_in_max, number } = options;
    let command = Command { itl, cdb, data_out, data_in_max, number, copy, operation, may_change_all };
    let answer = pass(command, claim, ordered);
    let effect = effect.filter(|_| matches!(answer, Io::Pending(_)));
    Begun { answer, effect }
}

/// What a command may change on the medium of its unit while it is under way. Operations that have the whole medium for
/// themselves go on without their command, and others are refused until these end.
fn effect_of(operation: &Operation, itl: &Arc<ItlNexus>, claim: &Claim) -> Option<MediumEffect> {
    let changes = operation.writes() && *claim != Claim::Nothing;
    changes.then(|| MediumEffect::on_blocks(itl.clone(), claim.clone()))
}

/// Runs a command once the gate lets it in.
fn pass(command: Command, claim: Claim, ordered: bool) -> Io<Response> {
    match (command.operation.passage(), ordered) {
        (Passage::None, false) => command.run(),
        (Passage::Unit | Passage::Shared, false) => run_shared(command, claim),
        // It changes nothing on the medium, or passes the gate by itself: it has to wait, and nobody for it.
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
/// What it borrows from is kept by the nexus's own count: the unit's is shared by all cores.
fn run_shared(command: Command, claim: Claim) -> Io<Response> {
    let itl = command.itl.clone();
    let Some(pass) = itl.unit().gate().try_shared(&claim) else {
        // Stands in line now, as the order in which commands come is theirs inside.
        return settle(async move {
            let _pass = gate::shared(itl.unit().clone(), claim, Some(itl.nexus().id())).await;
            command.run().await
        });
    };
    match command.run() {
        Io::Ready(response) => Io::Ready(response),
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

/// The row of a CDB, which has the row's length and sets no bit that the row refuses.
fn find(cdb: &[u8]) -> Result<&'static Operation, Sense> {
    let opcode = *cdb.first().ok_or(Sense::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE))?;
    let operation =
        operations::find(opcode, cdb.get(1).copied().unwrap_or(0)).map_err(|missing| match missing {
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

/// What there is instead of a logical unit.
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
    let operation = match find(cdb) {
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

/// Parameter data cut to the allocation length (SPC-4 §4.2.5.6).
pub(crate) fn parameter_data(data: &[u8], allocation: usize) -> Response {
    Response::data(Buf::copy_of(&data[..data.len().min(allocation)]).freeze())
}

/// Runs a handler that is written as a future, at once as far as it goes: on a device that answers inline it is
/// finished here. It costs one allocation, which only the multi-step commands pay.
pub(crate) fn settle(future: impl Future<Output = Response> + Send + 'static) -> Io<Response> {
    let mut future: Pin<Box<dyn Future<Output = Response> + Send>> = Box::pin(future);
    // Whoever awaits the rest polls again with a waker of its own before it sleeps.
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(response) => Io::Ready(response),
        Poll::Pending => Io::Pending(future),
    }
}

/// [`settle`] for a handler that can refuse on the way.
pub(crate) fn stepwise(future: impl Future<Output = Result<Response, Response>> + Send + 'static) -> Answer {
    Ok(settle(async move { future.await.unwrap_or_else(|refusal| refusal) }))
}

/// The response to an error of the device behind `unit` in a step of a command.
pub(crate) fn failure(unit: &LogicalUnit, step: Step, error: &BlockError) -> Response {
    response_of(error, step, unit.geometry().logical_sector)
}

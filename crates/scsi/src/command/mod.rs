//! A command between the device server and its handler: what both of them, and the table of operations, know.
//!
//! | file | room of |
//! |---|---|
//! | `operation.rs` | one supported command, and the table of them |
//! | `refusal.rs` | what stands in the way of a command: unit attentions, reservations, rights, ports, the medium |

pub(crate) mod operation;
pub(crate) mod refusal;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lunway_block::{BlockError, Buf, Io, SharedBuf};

use crate::block_error::{Step, response_of};
use crate::data::field::{u16_at, u32_at, u64_at};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense};
use crate::model::copy_record::CopyMark;
use crate::model::logical_unit::LogicalUnit;
use crate::model::nexus::{ItlNexus, Nexus};
use operation::{Operation, OperationTable};

/// Result of a handler: an answer now or later, or a refusal.
pub(crate) type Answer = Result<Io<Response>, Response>;

/// Handler of a command.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// A command to a logical unit.
    Unit(fn(Command) -> Answer),
    /// The same, one that tells of commands or acts as others would: it needs the table of them.
    Table(fn(Command, &'static OperationTable) -> Answer),
    /// A command about all logical units of the nexus.
    Nexus(fn(&Nexus, &PaddedCdb) -> Result<Response, Response>),
}

/// Bytes of the longest CDB that is supported.
const CDB_LEN_MAX: usize = 16;

/// A CDB whose length has been checked, padded with zeroes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaddedCdb([u8; CDB_LEN_MAX]);

impl PaddedCdb {
    pub(crate) fn padded(cdb: &[u8]) -> Self {
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
    /// What it reads may be [lent](Lent): its pass through the gate is kept until the data is sent.
    pub(crate) may_lend: bool,
    /// Its place among the nexus's commands.
    pub(crate) number: Option<u32>,
    /// Of EXTENDED COPY alone.
    pub(crate) copy: Option<CopyRequest>,
    pub(crate) operation: &'static Operation,
    /// The nexus may change what concerns the whole target; only asked where that is needed.
    pub(crate) may_change_all: bool,
}

/// Arguments of a copy manager beside the parameter list.
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

    /// The first `len` bytes of data-out, which the CDB promises: a parameter list. Shorter is a mistake of the
    /// initiator that SPC-4 §4.3.3 gives a name.
    pub(crate) fn parameter_list(&self, len: usize) -> Result<SharedBuf, Response> {
        if self.data_out.len() < len {
            return Err(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        Ok(self.data_out.slice(0..len))
    }
}

/// Parameter data cut to the allocation length (SPC-4 §4.2.5.6).
pub(crate) fn parameter_data(data: &[u8], allocation: usize) -> Response {
    Response::data(Buf::copy_of(&data[..data.len().min(allocation)]).freeze())
}

/// Runs a handler that is written as a future, at once as far as it goes: on a device that answers inline it is
/// finished here. It costs one allocation, which only the multi-step commands pay.
pub(crate) fn settle(future: impl Future<Output = Response> + Send + 'static) -> Io<Response> {
    let mut future: Pin<Box<dyn Future<Output = Response> + Send>> = Box::pin(future);
    // The caller that awaits the rest polls again with a waker of its own before it sleeps.
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

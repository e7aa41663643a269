//! SANITIZE (SBC-4 §4.11, §5.30): makes everything that was ever written unreadable.
//!
//! A sanitize operation belongs to the logical unit. While it runs, commands that need the medium end with NOT READY,
//! SANITIZE IN PROGRESS and how far it is; REQUEST SENSE tells the same. When it fails, the medium stays closed until
//! another one succeeds, or, where AUSE was set, EXIT FAILURE MODE opens it. One that a crash ended has failed, where
//! there is a store to remember it.
//!
//! Both methods write: what is only unmapped or marked as zero may still lie on the disk behind the device.
//! Cryptographic erase is not offered, because nothing here is encrypted.

use std::sync::Arc;

use lunway_block::{BlockError, Buf, Durability, ExtentKind, Io, SharedBuf, TimeSlices, Zeroing};

use crate::command::{Answer, Command, settle, stepwise};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::model::gate;
use crate::model::logical_unit::LogicalUnit;
use crate::model::medium_operation::{self, MediumWork, Phase, Waited};
use crate::model::state_store::item;

/// Bytes written at a time: long enough for the device, short enough for PROGRESS INDICATION to move.
const CHUNK: usize = 1 << 20;
/// Bytes whose extents are asked for at a time.
const EXTENT_WINDOW: u64 = 1 << 30;

/// Overwrite: the content that every block is to hold, and the number of passes.
#[derive(Clone, Debug)]
struct Overwrite {
    /// A whole number of logical blocks.
    pattern: SharedBuf,
    inverted: SharedBuf,
    passes: u8,
    invert: bool,
}

impl Overwrite {
    /// Checks the parameter list of the OVERWRITE service action.
    fn of(command: &Command, sector: usize) -> Result<Self, Response> {
        const HEADER: usize = 4;
        const INVERT: u8 = 0x80;
        const TEST: u8 = 0x60;
        const COUNT: u8 = 0x1F;
        let len = usize::from(command.cdb.u16(7));
        if len <= HEADER || len > sector + HEADER {
            return Err(Sense::invalid_cdb_field(7, 7).into());
        }
        let list = command.parameter_list(len)?;
        if list[0] & TEST != 0 {
            return Err(Sense::invalid_parameter(0).into());
        }
        let passes = list[0] & COUNT;
        if passes == 0 {
            return Err(Sense::invalid_parameter(0).into());
        }
        let pattern_len = usize::from(u16::from_be_bytes([list[2], list[3]]));
        if pattern_len == 0 || pattern_len > sector {
            return Err(Sense::invalid_parameter(2).into());
        }
        let Some(pattern) = list.get(HEADER..HEADER + pattern_len) else {
            return Err(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR).into());
        };
        Ok(Self::with(pattern, sector, passes, list[0] & INVERT != 0))
    }

    /// The pattern begins anew in each block.
    fn with(pattern: &[u8], sector: usize, passes: u8, invert: bool) -> Self {
        let mut filled = Buf::for_overwrite(CHUNK / sector * sector);
        for block in filled.chunks_exact_mut(sector) {
            block.iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, from)| *byte = *from);
        }
        let mut inverted = Buf::copy_of(&filled);
        inverted.iter_mut().for_each(|byte| *byte = !*byte);
        Self { pattern: filled.freeze(), inverted: inverted.freeze(), passes, invert }
    }

    /// Returns the data of a pass. With INVERT each pass is the inversion of the one before, and the last one leaves
    /// the pattern itself (SBC-4 §5.30.2.2: an even count begins with the inversion).
    fn of_pass(&self, pass: u8) -> &SharedBuf {
        let from_the_end = self.passes - 1 - pass;
        if self.invert && from_the_end % 2 == 1 { &self.inverted } else { &self.pattern }
    }
}

/// Sanitize method.
#[derive(Clone, Debug)]
enum Method {
    Overwrite(Overwrite),
    /// Block erase: everything with space behind it is overwritten with zeroes, then everything is unmapped.
    BlockErase(Overwrite),
}

/// Keeps that an operation is not over, with its AUSE; `None`: that it is.
async fn keep(unit: &LogicalUnit, unrestricted: Option<bool>) -> Result<(), Response> {
    let Some((store, owner)) = unit.state() else { return Ok(()) };
    let bytes = medium_operation::kept_sanitize(unrestricted);
    store
        .save(owner, item::SANITIZE, bytes)
        .await
        .map_err(|_| Sense::new(SenseKey::HARDWARE_ERROR, AdditionalSense::INTERNAL_TARGET_FAILURE).into())
}

/// Ends the operation as failed unless it was told how it ended: also when the work is dropped.
struct Ending {
    unit: Arc<LogicalUnit>,
    unrestricted: bool,
    done: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let phase = if self.done {
            Phase::Idle
        } else {
            Phase::Failed { work: MediumWork::Sanitize, unrestricted: self.unrestricted }
        };
        self.unit.end_medium_operation(phase);
    }
}

async fn write_all(
    unit: &LogicalUnit,
    range: std::ops::Range<u64>,
    pattern: &SharedBuf,
    progress: impl Fn(u64),
) -> Result<(), BlockError> {
    let (mut at, mut slices) = (range.start, TimeSlices::new());
    while at < range.end {
        slices.next().await;
        let step = (range.end - at).min(pattern.len() as u64);
        let piece = pattern.slice(0..step as usize);
        unit.device().write(at, piece, Durability::Volatile).await?;
        at += step;
        progress(at);
    }
    Ok(())
}

async fn overwrite(unit: &LogicalUnit, overwrite: &Overwrite) -> Result<(), BlockError> {
    let size = unit.geometry().size;
    for pass in 0..overwrite.passes {
        let before = u64::from(pass) * size;
        let total = u64::from(overwrite.passes) * size;
        let progress = |at| unit.medium_operation().set_progress(before.saturating_add(at), total);
        write_all(unit, 0..size, overwrite.of_pass(pass), progress).await?;
        // A pass that only a cache has seen has overwritten nothing.
        unit.device().flush().await?;
    }
    Ok(())
}

async fn block_erase(unit: &LogicalUnit, zeroes: &Overwrite) -> Result<(), BlockError> {
    let size = unit.geometry().size;
    let progress = |at| unit.medium_operation().set_progress(at, size);
    let mut at = 0;
    while at < size {
        let len = EXTENT_WINDOW.min(size - at);
        for extent in unit.device().extents(at, len, usize::MAX).await? {
            if extent.kind != ExtentKind::Unallocated {
                write_all(unit, extent.offset..extent.end(), &zeroes.pattern, progress).await?;
            }
        }
        at += len;
        progress(at);
    }
    unit.device().flush().await?;
    unit.device().write_zeroes(0, size, Zeroing::MayUnmap).await?;
    unit.device().flush().await
}

async fn sanitize(mut ending: Ending, method: Method) {
    let unit = ending.unit.clone();
    let result = match &method {
        Method::Overwrite(parameters) => overwrite(&unit, parameters).await,
        Method::BlockErase(zeroes) => block_erase(&unit, zeroes).await,
    };
    ending.done = result.is_ok() && keep(&unit, None).await.is_ok();
}

/// Begins when no command is inside any more, and answers at once (IMMED) or at the end.
fn begin(command: Command, method: Method) -> Answer {
    const IMMED: u8 = 0x80;
    const AUSE: u8 = 0x20;
    let (immediate, unrestricted) = (command.cdb.has(1, IMMED), command.cdb.has(1, AUSE));
    Ok(settle(async move {
        let unit = command.unit().clone();
        let pass = gate::exclusive(unit.clone()).await;
        if let Some(refusal) = command.revoked() {
            return refusal;
        }
        // Asked again inside: another may have begun while this one waited.
        let restricted = Phase::Failed { work: MediumWork::Sanitize, unrestricted: false };
        let before = unit.medium_operation().phase();
        if unrestricted && before == restricted {
            // What failed in the restricted mode ends in it (SBC-4 §4.11.3).
            return Sense::invalid_cdb_field(1, 5).into();
        }
        let taken = u64::from(command.cdb.u16(7));
        if !unit.begin_medium_operation(MediumWork::Sanitize, command.itl.nexus().id()) {
            return unit.medium_operation().response();
        }
        drop(pass);
        // Before the first block is written: a crash in the middle must not look like an end.
        if let Err(refusal) = keep(&unit, Some(unrestricted)).await {
            unit.end_medium_operation(before);
            return refusal;
        }
        let work = sanitize(Ending { unit: unit.clone(), unrestricted, done: false }, method);
        match &unit.options().background {
            Some(background) => background.run(Box::pin(work)),
            None => work.await,
        }
        if immediate {
            return Response::took(taken);
        }
        match unit.medium_operation().over().await {
            Waited::Released => unit.medium_operation().response(),
            Waited::Over => match unit.medium_operation().sense() {
                None => Response::took(taken),
                Some(failed) => failed.into(),
            },
        }
    }))
}

pub(crate) fn overwrite_all(command: Command) -> Answer {
    let sector = command.unit().geometry().logical_sector as usize;
    let parameters = Overwrite::of(&command, sector)?;
    begin(command, Method::Overwrite(parameters))
}

fn without_parameters(command: &Command) -> Result<(), Response> {
    if command.cdb.u16(7) != 0 { Err(Sense::invalid_cdb_field(7, 7).into()) } else { Ok(()) }
}

pub(crate) fn block_erase_all(command: Command) -> Answer {
    without_parameters(&command)?;
    let sector = command.unit().geometry().logical_sector as usize;
    begin(command, Method::BlockErase(Overwrite::with(&[0], sector, 1, false)))
}

pub(crate) fn exit_failure_mode(command: Command) -> Answer {
    without_parameters(&command)?;
    let unit = command.unit();
    match unit.medium_operation().phase() {
        Phase::Running(_) => Ok(Io::Ready(unit.medium_operation().response())),
        Phase::Failed { work: MediumWork::Sanitize, unrestricted: false } => {
            Err(Sense::invalid_cdb_field(1, 4).into())
        }
        Phase::Failed { work: MediumWork::Sanitize, unrestricted: true } => stepwise(async move {
            keep(command.unit(), None).await?;
            command.unit().end_medium_operation(Phase::Idle);
            Ok(Response::good())
        }),
        // Nothing of SANITIZE to leave.
        Phase::Idle | Phase::Failed { work: MediumWork::Format, .. } => Ok(Io::Ready(Response::good())),
    }
}

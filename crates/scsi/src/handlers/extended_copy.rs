//! EXTENDED COPY (LID1): the copy manager (SPC-4 §5.16, §6.4).
//!
//! Copies between any two logical units that the nexus sees, or within one. Every step passes the gates and the checks
//! of the unit it touches, one after the other: no step holds two gates, so no two copies can wait for each other. What
//! the source has no space for, or knows to be zero, is not read; the destination writes zeroes in its own way.

use std::sync::Arc;

use lunway_block::{BlockError, Buf, Durability, ExtentKind, Geometry, SharedBuf, TimeSlices, Zeroing};

use crate::command::operation::OperationTable;
use crate::command::refusal::refusal_of;
use crate::command::{Answer, Command, settle};
use crate::data::field::{u8_at, u16_at, u32_at, u64_at};
use crate::data::opcode;
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::data::status::Status;
use crate::data::vpd::{Association, DesignatorType, DeviceIdentification};
use crate::model::copy_record::{
    Copying, DESCRIPTORS_LEN_MAX, Refused, SEGMENT_LEN_MAX, SEGMENTS_MAX, TARGET_DESCRIPTOR, TARGETS_MAX,
    descriptor,
};
use crate::model::gate::{self, Claim};
use crate::model::nexus::ItlNexus;

/// Bytes copied at a time: bounds the memory of a copy, whatever its length.
pub(crate) const CHUNK: u64 = 1 << 20;
const HEADER: usize = 16;

/// A copy source or destination.
#[derive(Clone)]
struct Party {
    itl: Arc<ItlNexus>,
    /// PAD: what is left of a block is discarded at the source, filled with zeroes at the destination.
    pad: bool,
    /// Table by which READ and WRITE are refused.
    operations: &'static OperationTable,
}

impl Party {
    fn geometry(&self) -> Geometry {
        self.itl.unit().geometry()
    }
}

/// Extent that a segment descriptor requests.
#[derive(Clone, Copy)]
enum Span {
    Blocks { count: u16, of_destination: bool },
    Bytes { count: u32, source_offset: u16, destination_offset: u16 },
}

#[derive(Clone, Copy)]
struct Segment {
    source: u16,
    destination: u16,
    /// CAT: keep what is left of a block for the next segment. Only without anything left.
    concatenate: bool,
    source_lba: u64,
    destination_lba: u64,
    span: Span,
}

/// A segment in bytes.
struct Range {
    source: u64,
    destination: u64,
    len: u64,
    /// Zeroes behind it, to the end of the destination's block.
    padding: u64,
}

/// COPY ABORTED while processing a segment: its number is in the last two bytes of COMMAND-SPECIFIC INFORMATION.
fn aborted(code: AdditionalSense, segment: usize) -> Sense {
    Sense { command_specific: Some(segment as u64), ..Sense::new(SenseKey::COPY_ABORTED, code) }
}

/// The party that a target descriptor names; `Err`: the descriptor itself is wrong.
fn party(
    slot: &[u8],
    reachable: &[Arc<ItlNexus>],
    operations: &'static OperationTable,
) -> Result<Option<Party>, AdditionalSense> {
    const PAD: u8 = 0x04;
    if slot[0] != descriptor::IDENTIFICATION {
        return Err(AdditionalSense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE);
    }
    if slot[1] & 0x1F != 0 {
        return Err(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    let len = usize::from(slot[7]);
    let (kind, association) = (DesignatorType(slot[5] & 0xF), slot[5] >> 4 & 3);
    let Some(name) = slot.get(8..8 + len).filter(|_| len <= 20 && association == 0) else {
        return Err(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    };
    let names = |itl: &ItlNexus| {
        DeviceIdentification::of(itl).designators.iter().any(|designator| {
            designator.association == Association::LogicalUnit
                && designator.kind == kind
                && designator.bytes == name
        })
    };
    let Some(itl) = reachable.iter().find(|itl| names(itl)) else { return Ok(None) };
    // DISK BLOCK LENGTH, which the initiator may leave out.
    let block_len = u32_at(slot, 28).unwrap_or(0) & 0xFF_FFFF;
    if block_len != 0 && block_len != itl.unit().geometry().logical_sector {
        return Err(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    Ok(Some(Party { itl: itl.clone(), pad: slot[28] & PAD != 0, operations }))
}

/// Takes the next segment descriptor off the list.
fn segment(list: &[u8]) -> Result<(Segment, &[u8]), AdditionalSense> {
    const CAT: u8 = 0x01;
    const DC: u8 = 0x02;
    let expected = match u8_at(list, 0) {
        Some(descriptor::BLOCK_TO_BLOCK) => 28,
        Some(descriptor::BLOCK_TO_BLOCK_WITH_OFFSETS) => 32,
        _ => return Err(AdditionalSense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE),
    };
    let (slot, rest) = list.split_at_checked(expected).ok_or(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR)?;
    if u16_at(slot, 2).map(usize::from) != Some(expected - 4) {
        return Err(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    let short = |at| u16_at(slot, at).unwrap_or(0);
    let long = |at| u64_at(slot, at).unwrap_or(0);
    let span = if slot[0] == descriptor::BLOCK_TO_BLOCK {
        Span::Blocks { count: short(10), of_destination: slot[1] & DC != 0 }
    } else {
        let count = u32_at(slot, 8).unwrap_or(0);
        Span::Bytes { count, source_offset: short(28), destination_offset: short(30) }
    };
    let segment = Segment {
        source: short(4),
        destination: short(6),
        concatenate: slot[1] & CAT != 0,
        source_lba: long(12),
        destination_lba: long(20),
        span,
    };
    Ok((segment, rest))
}

impl Segment {
    /// Returns the range of the segment, checked against both devices as they are now.
    fn range(&self, source: &Party, destination: &Party) -> Result<Range, AdditionalSense> {
        let (from, to) = (source.geometry(), destination.geometry());
        let (from_sector, to_sector) = (u64::from(from.logical_sector), u64::from(to.logical_sector));
        let (len, offsets) = match self.span {
            Span::Blocks { count, of_destination } => {
                let sector = if of_destination { to_sector } else { from_sector };
                (u64::from(count) * sector, (0, 0))
            }
            Span::Bytes { count, source_offset, destination_offset } => {
                (count.into(), (source_offset.into(), destination_offset.into()))
            }
        };
        if len > SEGMENT_LEN_MAX {
            return Err(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
        }
        let mut padding = 0;
        if matches!(self.span, Span::Blocks { .. }) {
            let (left_of_source, left) = (len % from_sector, len % to_sector);
            let inexact = left_of_source != 0 && !source.pad || left != 0 && !destination.pad;
            if inexact || self.concatenate && (left_of_source | left) != 0 {
                return Err(AdditionalSense::UNEXPECTED_INEXACT_SEGMENT);
            }
            padding = (to_sector - left) % to_sector;
        }
        let place = |lba: u64, sector: u64, offset: u64, len: u64, size: u64| {
            let start = lba.checked_mul(sector)?.checked_add(offset)?;
            start.checked_add(len).filter(|&end| end <= size).map(|_| start)
        };
        // Without an additional sense code of its own: the segment's number says where.
        let source = place(self.source_lba, from_sector, offsets.0, len, from.size);
        let destination = place(self.destination_lba, to_sector, offsets.1, len + padding, to.size);
        match source.zip(destination) {
            Some((source, destination)) => Ok(Range { source, destination, len, padding }),
            None => Err(AdditionalSense::NONE),
        }
    }
}

/// Reason why a step failed.
enum Failure {
    /// The unit refuses such a command.
    Refused,
    /// The device failed.
    Device(BlockError),
    /// A task management function ended the copy.
    Cancelled,
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Self {
        Self::Device(error)
    }
}

/// Checks whether a READ or a WRITE of these blocks would be refused to the nexus.
fn check(party: &Party, opcode: u8, blocks: &Claim) -> Result<(), Failure> {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    let refused =
        refusal_of(&party.itl, party.operations, &cdb).is_some() || party.itl.unit().is_unsettled(blocks);
    if refused { Err(Failure::Refused) } else { Ok(()) }
}

/// The blocks in which these bytes lie.
fn claim(geometry: &Geometry, offset: u64, len: u64) -> Claim {
    let sector = u64::from(geometry.logical_sector);
    Claim::blocks(offset / sector, (offset + len).div_ceil(sector) - offset / sector)
}

/// Bytes of the source, whatever blocks they lie in.
async fn read(party: &Party, offset: u64, len: u64) -> Result<SharedBuf, Failure> {
    let unit = party.itl.unit();
    let sector = u64::from(unit.geometry().logical_sector);
    let start = offset / sector * sector;
    let end = (offset + len).next_multiple_of(sector);
    let blocks = claim(&unit.geometry(), offset, len);
    let _pass = gate::shared(unit.clone(), blocks.clone(), None).await;
    check(party, opcode::READ_16, &blocks)?;
    let buf = unit.device().read(start, Buf::for_overwrite((end - start) as usize)).await?;
    let skipped = (offset - start) as usize;
    Ok(buf.freeze().slice(skipped..skipped + len as usize))
}

/// Writes whole blocks of the destination.
async fn write(copying: &Copying, party: &Party, offset: u64, data: SharedBuf) -> Result<(), Failure> {
    let unit = party.itl.unit();
    let blocks = claim(&unit.geometry(), offset, data.len() as u64);
    let _pass = gate::shared(unit.clone(), blocks.clone(), None).await;
    check(party, opcode::WRITE_16, &blocks)?;
    let _step = copying.step(unit, blocks);
    Ok(unit.device().write(offset, data, unit.durability(false)).await?)
}

async fn write_zeroes(
    copying: &Copying,
    party: &Party,
    offset: u64,
    len: u64,
    zeroing: Zeroing,
) -> Result<(), Failure> {
    let unit = party.itl.unit();
    let blocks = claim(&unit.geometry(), offset, len);
    let _pass = gate::shared(unit.clone(), blocks.clone(), None).await;
    check(party, opcode::WRITE_16, &blocks)?;
    let _step = copying.step(unit, blocks);
    unit.device().write_zeroes(offset, len, zeroing).await?;
    if unit.durability(false) == Durability::Stable {
        unit.device().flush().await?;
    }
    Ok(())
}

/// Copies bytes. Parts of blocks at the destination keep what is around them, read before and written after, as an
/// initiator would that copies by itself.
async fn copy(copying: &Copying, source: &Party, destination: &Party, range: &Range) -> Result<(), Failure> {
    let sector = u64::from(destination.geometry().logical_sector);
    let mut slices = TimeSlices::new();
    let mut done = 0;
    while done < range.len {
        if copying.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        let at = range.destination + done;
        let before = at % sector;
        let step = (CHUNK - before).min(range.len - done);
        slices.spend(step).await;
        let data = read(source, range.source + done, step).await?;
        let blocks = (before + step).next_multiple_of(sector);
        let data = if blocks == step {
            data
        } else {
            let around = read(destination, at - before, blocks).await?;
            let mut merged = Buf::copy_of(&around);
            merged[before as usize..(before + step) as usize].copy_from_slice(&data);
            if done + step == range.len && range.padding != 0 {
                merged[(before + step) as usize..].fill(0);
            }
            merged.freeze()
        };
        write(copying, destination, at - before, data).await?;
        copying.wrote(step);
        done += step;
    }
    Ok(())
}

/// Copies a segment piece by piece as the source's extents are, where no piece can cut a block of the destination.
async fn copy_sparse(
    copying: &Copying,
    source: &Party,
    destination: &Party,
    range: &Range,
) -> Result<(), Failure> {
    let (from, to) = (source.geometry(), destination.geometry());
    let aligned = from.logical_sector.is_multiple_of(to.logical_sector)
        && range.source.is_multiple_of(from.logical_sector.into())
        && range.len.is_multiple_of(from.logical_sector.into())
        && range.destination.is_multiple_of(to.logical_sector.into());
    if !aligned || range.len == 0 {
        return copy(copying, source, destination, range).await;
    }
    let extents = {
        let _pass = gate::shared(source.itl.unit().clone(), Claim::Nothing, None).await;
        check(source, opcode::READ_16, &Claim::Nothing)?;
        source.itl.unit().device().extents(range.source, range.len, usize::MAX).await?
    };
    for extent in extents {
        let at = range.destination + (extent.offset - range.source);
        let zeroing = match extent.kind {
            ExtentKind::Unallocated if from.unmap.zeroes() => Some(Zeroing::MayUnmap),
            ExtentKind::Zero => Some(Zeroing::KeepAllocated),
            _ => None,
        };
        if let Some(zeroing) = zeroing {
            if copying.is_cancelled() {
                return Err(Failure::Cancelled);
            }
            write_zeroes(copying, destination, at, extent.len, zeroing).await?;
            copying.wrote(extent.len);
        } else {
            let piece = Range { source: extent.offset, destination: at, len: extent.len, padding: 0 };
            copy(copying, source, destination, &piece).await?;
        }
    }
    Ok(())
}

/// Processes the segments in their order and stops at the first that fails.
async fn process(copying: &Copying, parties: &[Option<Party>], segments: &[Segment]) -> Result<(), Sense> {
    for (number, segment) in segments.iter().enumerate() {
        let find = |index: u16| {
            let party = parties.get(usize::from(index)).and_then(Option::as_ref);
            party.ok_or_else(|| aborted(AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE, number))
        };
        let (source, destination) = (find(segment.source)?, find(segment.destination)?);
        let range = segment.range(source, destination).map_err(|code| match code {
            AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST => Sense::illegal(code),
            code => aborted(code, number),
        })?;
        copy_sparse(copying, source, destination, &range).await.map_err(|failure| match failure {
            Failure::Cancelled => Sense::new(SenseKey::ABORTED_COMMAND, AdditionalSense::NONE),
            Failure::Device(BlockError::NoSpace) => aborted(AdditionalSense::SPACE_ALLOCATION_FAILED, number),
            Failure::Refused | Failure::Device(_) => {
                aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE, number)
            }
        })?;
        copying.segment_done();
    }
    Ok(())
}

/// Returns the list identifier that LIST ID USAGE selects (SPC-4 table 82).
fn list_identifier(list: &[u8]) -> Result<(Option<u8>, bool), Response> {
    match (list[1] >> 3 & 0b11, list[0]) {
        (0b00, id) => Ok((Some(id), false)),
        (0b10, id) => Ok((Some(id), true)),
        (0b11, 0) => Ok((None, true)),
        (0b11, _) => Err(Sense::invalid_parameter(0).into()),
        _ => Err(Sense::invalid_parameter(1).into()),
    }
}

/// Bytes that a parameter list asks to copy, as far as its descriptors are known: without looking at any unit, whose
/// blocks are taken to have `sector` bytes.
pub(crate) fn bytes_named(list: &[u8], sector: u64) -> u64 {
    let targets_len = u16_at(list, 2).map_or(0, usize::from);
    let segments_len = u32_at(list, 8).unwrap_or(0) as usize;
    let begin = HEADER + targets_len;
    let mut rest = list.get(begin..begin.saturating_add(segments_len)).unwrap_or_default();
    let mut bytes = 0_u64;
    for _ in 0..SEGMENTS_MAX {
        let Ok((segment, next)) = segment(rest) else { break };
        bytes += match segment.span {
            Span::Blocks { count, .. } => u64::from(count) * sector,
            Span::Bytes { count, .. } => count.into(),
        };
        rest = next;
    }
    bytes
}

pub(crate) fn extended_copy(command: Command, operations: &'static OperationTable) -> Answer {
    let len = command.cdb.u32(10) as usize;
    if len == 0 {
        return Ok(lunway_block::Io::Ready(Response::good()));
    }
    let refuse = |code| Response::from(Sense::illegal(code));
    let length_error = || refuse(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    if len < HEADER {
        return Err(length_error());
    }
    // The header first: it says how much of the list there is to look at, however long the initiator calls it.
    let header = command.parameter_list(HEADER)?;
    let targets_len = u16_at(&header, 2).map_or(0, usize::from);
    let segments_len = u32_at(&header, 8).unwrap_or(0) as usize;
    let inline_len = u32_at(&header, 12).unwrap_or(0);
    if inline_len != 0 {
        return Err(refuse(AdditionalSense::INLINE_DATA_LENGTH_EXCEEDED));
    }
    if segments_len > DESCRIPTORS_LEN_MAX || targets_len + segments_len > DESCRIPTORS_LEN_MAX {
        return Err(length_error());
    }
    let end = HEADER + targets_len + segments_len;
    if end > len || !targets_len.is_multiple_of(TARGET_DESCRIPTOR) {
        return Err(length_error());
    }
    let list = command.parameter_list(end)?;
    let (list_id, discard) = list_identifier(&list)?;
    let copy = command.copy.ok_or_else(|| refuse(AdditionalSense::INVALID_COMMAND_OPERATION_CODE))?;
    let (targets, mut rest) = list[HEADER..].split_at(targets_len);
    if targets_len / TARGET_DESCRIPTOR > TARGETS_MAX {
        return Err(refuse(AdditionalSense::TOO_MANY_TARGET_DESCRIPTORS));
    }
    let parties = targets
        .chunks_exact(TARGET_DESCRIPTOR)
        .map(|slot| party(slot, &copy.reachable, operations))
        .collect::<Result<Vec<_>, _>>()
        .map_err(refuse)?;
    let mut segments = Vec::new();
    while !rest.is_empty() {
        if segments.len() == SEGMENTS_MAX {
            return Err(refuse(AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS));
        }
        let (segment, next) = segment(rest).map_err(refuse)?;
        segments.push(segment);
        rest = next;
    }
    let copying =
        Copying::begin(&command.itl, copy.mark, list_id, discard).map_err(|refused| match refused {
            Refused::InUse => refuse(AdditionalSense::OPERATION_IN_PROGRESS),
            Refused::Full => Response::status(Status::TASK_SET_FULL),
        })?;
    Ok(settle(async move {
        let result = process(&copying, &parties, &segments).await;
        copying.end(result.as_ref().err());
        match result {
            Ok(()) => Response::took(len as u64),
            Err(sense) => sense.into(),
        }
    }))
}

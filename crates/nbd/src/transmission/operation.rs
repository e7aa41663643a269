//! Operation of a device that a request asks for, and its result.

use std::io;
use std::sync::Arc;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Io, Permit, Zeroing};

use crate::export::{Export, TRANSFER_MAX};
use crate::negotiation::Agreed;
use crate::wire::{Errno, Request, allocation, command, dirty_bitmap, flag};

/// Descriptors of one answer to a block status request: a client asks again behind them.
const DESCRIPTORS_MAX: usize = 4096;

/// Memory of one answer to a block status request while it is made, bytes: what the device tells, and what is sent.
pub(super) const STATUS_MEMORY: usize = DESCRIPTORS_MAX * (size_of::<Extent>() + 8);

/// Result of a request.
pub(super) enum Answer {
    /// Done; there is nothing to say.
    Done,
    /// Data that was read.
    Data(Buf),
    /// Of each context its number, and pairs of length and flags.
    Status(Vec<(u32, Vec<u8>)>),
}

pub(super) type Result<T> = std::result::Result<T, Refused>;

/// An error as the client hears it.
pub(super) struct Refused {
    pub(super) errno: Errno,
    pub(super) why: String,
}

impl From<BlockError> for Refused {
    fn from(error: BlockError) -> Self {
        let errno = match error {
            BlockError::OutOfRange { .. } | BlockError::Misaligned { .. } | BlockError::Size { .. } => {
                Errno::Inval
            }
            // The specification wants ENOSPC for EFBIG and EDQUOT too; the latter has become the former already.
            BlockError::NoSpace | BlockError::Io { kind: io::ErrorKind::FileTooLarge, .. } => Errno::NoSpc,
            BlockError::ReadOnly | BlockError::ReservationConflict => Errno::Perm,
            BlockError::Io { kind: io::ErrorKind::PermissionDenied, .. } => Errno::Perm,
            BlockError::Unsupported => Errno::NotSup,
            _ => Errno::Io,
        };
        Self { errno, why: error.to_string() }
    }
}

impl Refused {
    /// The error of a request that writes: beyond the end of the export there is no space (`doc/proto.md`, “Error
    /// values”). The device says so itself where it has become smaller since the request was looked at.
    fn of_write(error: BlockError) -> Self {
        match error {
            BlockError::OutOfRange { .. } => Self { errno: Errno::NoSpc, why: error.to_string() },
            error => error.into(),
        }
    }
}

/// The memory that a request holds from its arrival to its answer, bytes.
pub(super) fn memory_of(request: &Request) -> usize {
    match request.command.get() {
        // A longer read is refused.
        command::READ | command::WRITE => Buf::memory_of(request.length.get().min(TRANSFER_MAX) as usize),
        command::BLOCK_STATUS => STATUS_MEMORY,
        _ => 0,
    }
}

pub(super) fn refuse(errno: Errno, why: &str) -> Io<Result<Answer>> {
    Io::err(Refused { errno, why: why.to_owned() })
}

type DeviceIo = Io<std::result::Result<(), BlockError>>;

/// Begins a request. What the device checks itself (ranges, sectors) is left to it.
pub(super) fn begin(export: &Export, agreed: &Agreed, request: &Request, data: Buf) -> Io<Result<Answer>> {
    let device = &export.device;
    let (offset, length) = (request.offset.get(), request.length.get());
    let (command, flags) = (request.command.get(), request.flags.get());
    let known = match command {
        command::READ if agreed.structured => flag::FUA | flag::DF,
        command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE,
        command::BLOCK_STATUS => flag::FUA | flag::REQ_ONE,
        // On others than those that write it means nothing, and clients may set it.
        _ => flag::FUA,
    };
    if flags & !known != 0 {
        return refuse(Errno::Inval, "the request has flags that were not offered");
    }
    let fua = flags & flag::FUA != 0;
    let writes = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES | command::RESIZE);
    let geometry = device.geometry();
    if writes && geometry.read_only {
        return refuse(Errno::Perm, "the export is read-only");
    }
    // Beyond the end the protocol wants ENOSPC of what writes, and EINVAL of what reads or trims.
    let beyond = offset.checked_add(length.into()).is_none_or(|end| end > geometry.size);
    match command {
        command::WRITE | command::WRITE_ZEROES if beyond => {
            return refuse(Errno::NoSpc, "the range leaves the export");
        }
        command::READ | command::TRIM | command::BLOCK_STATUS if beyond => {
            return refuse(Errno::Inval, "the range leaves the export");
        }
        _ => {}
    }
    let done =
        |result: std::result::Result<(), BlockError>| result.map(|()| Answer::Done).map_err(Refused::from);
    let written = |result: std::result::Result<(), BlockError>| {
        result.map(|()| Answer::Done).map_err(Refused::of_write)
    };
    match command {
        command::READ if length > TRANSFER_MAX => refuse(Errno::Inval, "a read has at most 32 MiB"),
        command::READ => device
            .read(offset, Buf::for_overwrite(length as usize))
            .map(|result| result.map(Answer::Data).map_err(Refused::from)),
        command::WRITE => {
            let durability = if fua { Durability::Stable } else { Durability::Volatile };
            device.write(offset, data.freeze(), durability).map(written)
        }
        command::FLUSH => device.flush().map(done),
        command::TRIM => stable(device, fua, device.unmap(offset, length.into())).map(done),
        command::WRITE_ZEROES => {
            let zeroing = match flags & flag::NO_HOLE != 0 {
                true => Zeroing::KeepAllocated,
                false => Zeroing::MayUnmap,
            };
            stable(device, fua, device.write_zeroes(offset, length.into(), zeroing)).map(written)
        }
        command::BLOCK_STATUS if agreed.contexts() == 0 => {
            refuse(Errno::Inval, "no context of block status was agreed upon")
        }
        command::BLOCK_STATUS if length == 0 => refuse(Errno::Inval, "block status of nothing"),
        command::BLOCK_STATUS => {
            // All contexts together have the memory of one answer.
            let most = (DESCRIPTORS_MAX / agreed.contexts()).max(1);
            let count = if flags & flag::REQ_ONE != 0 { 1 } else { most };
            block_status(export, agreed, offset, length.into(), count)
        }
        command::RESIZE => device.resize(offset, Permit::default()).map(|result| match result {
            Err(BlockError::Unsupported) => {
                Err(Refused { errno: Errno::Perm, why: "the device has a fixed size".to_owned() })
            }
            other => other.map(|()| Answer::Done).map_err(Refused::from),
        }),
        _ => refuse(Errno::Inval, "unknown request"),
    }
}

/// Answers only once the effect is durable, if `fua` is set.
fn stable(device: &Arc<dyn BlockDevice>, fua: bool, io: DeviceIo) -> DeviceIo {
    if !fua {
        return io;
    }
    let device = Arc::clone(device);
    io.then(move |result| match result {
        Ok(()) => device.flush(),
        Err(error) => Io::err(error),
    })
}

/// The status of a range in each context that was agreed upon.
fn block_status(export: &Export, agreed: &Agreed, offset: u64, len: u64, count: usize) -> Io<Result<Answer>> {
    let extents = agreed.allocation.then(|| {
        let reads_zeroes = export.device.geometry().unmap.zeroes();
        let extents = export.device.extents(offset, len, count);
        extents.map(move |extents| extents.map(|extents| allocated(&extents, count, reads_zeroes)))
    });
    let Some(bitmaps) = export.bitmaps.as_ref().filter(|_| !agreed.bitmaps.is_empty()) else {
        let Some(extents) = extents else { return refuse(Errno::Inval, "the context is gone") };
        return extents.map(|descriptors| {
            descriptors.map(|found| Answer::Status(vec![(allocation::ID, found)])).map_err(Refused::from)
        });
    };
    let asked = agreed.bitmaps.iter().map(|(id, name)| (*id, bitmaps.dirty(name, offset, len, count)));
    let asked: Vec<_> = asked.collect();
    Io::pending(async move {
        let mut contexts = Vec::new();
        if let Some(extents) = extents {
            contexts.push((allocation::ID, extents.await?));
        }
        for (id, dirty) in asked {
            let ranges = dirty.await?;
            let flag = |dirty| if dirty { dirty_bitmap::DIRTY } else { 0 };
            let ranges = ranges.into_iter().map(|(len, dirty)| (len, flag(dirty)));
            contexts.push((id, descriptors(ranges, count)));
        }
        Ok(Answer::Status(contexts))
    })
}

/// Descriptors of `base:allocation`.
fn allocated(extents: &[Extent], count: usize, unmapped_is_zero: bool) -> Vec<u8> {
    let flags = |kind| match kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => allocation::ZERO,
        ExtentKind::Unallocated if unmapped_is_zero => allocation::HOLE | allocation::ZERO,
        ExtentKind::Unallocated => allocation::HOLE,
    };
    descriptors(extents.iter().map(|extent| (extent.len, flags(extent.kind))), count)
}

/// Descriptors: length and flags of 32 bits each.
fn descriptors(ranges: impl Iterator<Item = (u64, u32)>, count: usize) -> Vec<u8> {
    let mut descriptors = Vec::new();
    for (len, flags) in ranges.take(count) {
        // The request was no longer than 32 bits can say.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        descriptors.extend_from_slice(&len.to_be_bytes());
        descriptors.extend_from_slice(&flags.to_be_bytes());
    }
    descriptors
}

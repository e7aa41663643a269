//! The scan of a block table: every entry looked at once, in bounded memory. Opening refuses what it finds; `check`
//! reports it.

use crate::error::{OpenError, Place};
use crate::format::{BatEntry, BlockState, MIB};
use crate::geometry::{Geometry, Slot};
use crate::metadata::Kind;
use crate::region::Span;
use crate::space::Space;
use crate::storage::Storage;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Unusual or wasteful; nothing is lost.
    Note,
    /// Against the standard: the file is not opened.
    Damage,
}

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Which structure.
    pub place: Place,
    /// Where in the file, bytes.
    pub offset: u64,
    /// What it is and what it means.
    pub problem: String,
}

/// How much of the table is read at a time, bytes.
const STEP: usize = 1 << 20;

/// Numbers of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Payload blocks that never had data: NOT PRESENT and UNDEFINED.
    pub never_written: u64,
    /// ZERO.
    pub zero: u64,
    /// UNMAPPED.
    pub unmapped: u64,
    /// FULLY PRESENT.
    pub present: u64,
    /// PARTIALLY PRESENT.
    pub partial: u64,
    /// Sector bitmap blocks.
    pub bitmaps: u64,
    /// Present blocks that do not lie behind the present block before them.
    pub out_of_order: u64,
}

/// Looks at every entry, takes the space of all blocks, and tells `sink` what is wrong.
pub(crate) fn scan(
    storage: &impl Storage,
    bat: Span,
    geometry: &Geometry,
    space: &mut Space,
    mut sink: impl FnMut(Finding) -> Result<(), OpenError>,
    mut block: impl FnMut(Span) -> Result<(), OpenError>,
) -> Result<Counts, OpenError> {
    let file_len = storage.len().map_err(OpenError::storage("asking for the file's length", 0))?;
    let mut counts = Counts::default();
    let mut buf = vec![0; STEP];
    let total = geometry.entries() * 8;
    let mut first_partial = None;
    let mut last_offset = 0;
    let (mut within, mut chunk) = (0, 0);
    let mut done = 0;
    while done < total {
        let now = (total - done).min(STEP as u64) as usize;
        let at = bat.offset + done;
        storage.read_at(at, &mut buf[..now]).map_err(OpenError::storage("reading the block table", at))?;
        for (index, bytes) in (done / 8..).zip(buf[..now].as_chunks::<8>().0) {
            let entry = BatEntry(u64::from_le_bytes(*bytes));
            // `Geometry::slot`, counted instead of divided: a large table has 67 million entries.
            let slot = match within == geometry.chunk_ratio {
                true => Slot::Bitmap(chunk),
                false => Slot::Payload(chunk * geometry.chunk_ratio + within),
            };
            (within, chunk) =
                if within == geometry.chunk_ratio { (0, chunk + 1) } else { (within + 1, chunk) };
            let ends_chunk = matches!(slot, Slot::Bitmap(_));
            let beyond = matches!(slot, Slot::Payload(block) if block >= geometry.blocks);
            let place = match slot {
                Slot::Payload(block) => Place::Block(block),
                Slot::Bitmap(chunk) => Place::Bitmap(chunk),
            };
            let offset = bat.offset + index * 8;
            let mut find = |severity, problem: String| sink(Finding { severity, place, offset, problem });
            if entry.0 == 0 && !(ends_chunk && first_partial.is_some()) {
                counts.never_written += u64::from(!ends_chunk && !beyond);
                continue;
            }
            if beyond {
                find(
                    Severity::Note,
                    format!("an entry {:#x} for a block behind the end of the disk", entry.0),
                )?;
                continue;
            }
            let Some(state) = entry.state() else {
                find(Severity::Damage, format!("its state {} is reserved", entry.0 & 7))?;
                continue;
            };
            if !entry.reserved_is_zero() {
                find(Severity::Damage, format!("reserved bits are set in its entry {:#x}", entry.0))?;
                continue;
            }
            let len = if ends_chunk { MIB } else { geometry.block_size };
            let span = Span { offset: entry.offset(), len };
            let holds_space = match (slot, state) {
                (Slot::Bitmap(_), BlockState::NotPresent) => {
                    if let Some(block) = first_partial {
                        let problem =
                            format!("it is not present, but payload block {block} is partially present");
                        find(Severity::Damage, problem)?;
                    }
                    false
                }
                (Slot::Bitmap(_), BlockState::FullyPresent) => {
                    counts.bitmaps += 1;
                    if geometry.kind != Kind::Differencing {
                        find(
                            Severity::Note,
                            "present in a disk without a parent, where it is not used".into(),
                        )?;
                    }
                    true
                }
                (Slot::Bitmap(_), state) => {
                    find(Severity::Damage, format!("a sector bitmap block cannot be {state:?}"))?;
                    false
                }
                (Slot::Payload(_), BlockState::NotPresent | BlockState::Zero) => {
                    match state {
                        BlockState::Zero => counts.zero += 1,
                        _ => counts.never_written += 1,
                    }
                    if span.offset != 0 {
                        find(
                            Severity::Note,
                            format!("it has no data, but an offset of {} bytes", span.offset),
                        )?;
                    }
                    false
                }
                (Slot::Payload(_), BlockState::Undefined | BlockState::Unmapped) => {
                    match state {
                        BlockState::Unmapped => counts.unmapped += 1,
                        _ => counts.never_written += 1,
                    }
                    span.offset != 0
                }
                (Slot::Payload(_), BlockState::FullyPresent) => {
                    counts.present += 1;
                    true
                }
                (Slot::Payload(number), BlockState::PartiallyPresent) => {
                    match geometry.kind {
                        Kind::Differencing => {
                            counts.partial += 1;
                            first_partial = first_partial.or(Some(number));
                        }
                        Kind::Dynamic | Kind::Fixed => {
                            counts.present += 1;
                            let problem =
                                "partially present in a disk without a parent: read as fully present";
                            find(Severity::Note, problem.into())?;
                        }
                    }
                    true
                }
            };
            if ends_chunk {
                first_partial = None;
            }
            if !holds_space {
                continue;
            }
            if span.offset < MIB || span.offset >= file_len || ends_chunk && span.end() > file_len {
                let problem =
                    format!("it lies at byte {}, outside of the file of {file_len} bytes", span.offset);
                find(Severity::Damage, problem)?;
                continue;
            }
            if span.end() > file_len {
                let problem =
                    format!("the file ends within it, at byte {file_len} instead of {}", span.end());
                find(Severity::Note, problem)?;
            }
            if !space.take(span) {
                let problem =
                    format!("it overlaps another structure at bytes {}–{}", span.offset, span.end());
                find(Severity::Damage, problem)?;
                continue;
            }
            if !ends_chunk {
                counts.out_of_order += u64::from(span.offset < last_offset);
                last_offset = span.offset;
                block(span)?;
            }
        }
        done += now as u64;
    }
    Ok(counts)
}

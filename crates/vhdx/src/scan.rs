//! The scan of a block table: every entry looked at once, in bounded memory. Opening refuses what it finds; `check`
//! reports it.

use crate::error::{Structure, VhdxOpenError};
use crate::format::{BatEntry, BlockState, FILE_SIZE_MAX, MIB};
use crate::geometry::{Geometry, Slot};
use crate::log::replay::Overlay;
use crate::metadata::DiskKind;
use crate::region::Span;
use crate::space::Space;
use crate::storage::Storage;

/// Severity of an [`Anomaly`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnomalySeverity {
    /// Unusual or wasteful; nothing is lost.
    Note,
    /// Against the standard: the file is not opened.
    Damage,
    /// Data is gone: the file ends before bytes that its structures lead to. It is opened for reading alone, and what
    /// is gone is an error; where that is a structure that all data depends on, it is not opened.
    Loss,
}

/// A place of a file that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Severity.
    pub severity: AnomalySeverity,
    /// Structure that it concerns.
    pub place: Structure,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Description of the problem, and its meaning.
    pub problem: String,
}

/// Bytes of the table read at a time.
const STEP: usize = 1 << 20;

/// The low bits of the entry of a block that is present, bits that must be zero included (2.5.1.1).
const PRESENT: u64 = 6;

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
    /// Bytes of present blocks, and of sector bitmap blocks, that lie behind the end of the file.
    pub lost: u64,
    /// Present blocks that do not lie behind the present block before them.
    pub out_of_order: u64,
}

/// Looks at every entry of a file of `file_len` bytes, takes the space of all blocks, and tells `sink` what is wrong,
/// and `in_log` of payload blocks that the log changes.
#[expect(clippy::too_many_arguments, reason = "the parts of an opened file, which its callers keep apart")]
pub(crate) fn scan(
    storage: &impl Storage,
    bat: Span,
    geometry: &Geometry,
    file_len: u64,
    overlay: Option<&Overlay>,
    space: &mut Space,
    mut sink: impl FnMut(Anomaly) -> Result<(), VhdxOpenError>,
    mut in_log: impl FnMut(Span) -> Result<(), VhdxOpenError>,
) -> Result<Counts, VhdxOpenError> {
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
        storage
            .read_at(at, &mut buf[..now])
            .map_err(VhdxOpenError::storage("reading the block table", at))?;
        let entries = buf[..now].as_chunks::<8>().0;
        let mut next = 0;
        while next < entries.len() {
            // Up to the chunk's bitmap block, and the end of the disk, entries stand for one payload block after
            // another.
            let in_chunk = geometry.chunk_ratio - within;
            let in_disk = geometry.blocks.saturating_sub(chunk * geometry.chunk_ratio + within);
            let most = (entries.len() - next).min(in_chunk.min(in_disk) as usize);
            let entry = BatEntry(u64::from_le_bytes(entries[next]));
            let alike = alike(&entries[next..next + most], geometry.block_size);
            if alike > 0 && sound(entry, alike, geometry, file_len, overlay, space) {
                match entry.0 {
                    0 => counts.never_written += alike,
                    _ => {
                        counts.present += alike;
                        counts.out_of_order += u64::from(entry.offset() < last_offset);
                        last_offset = entry.offset() + (alike - 1) * geometry.block_size;
                    }
                }
                (within, next) = (within + alike, next + alike as usize);
                continue;
            }
            let index = done / 8 + next as u64;
            next += 1;
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
                Slot::Payload(block) => Structure::Block(block),
                Slot::Bitmap(chunk) => Structure::Bitmap(chunk),
            };
            let offset = bat.offset + index * 8;
            let mut find = |severity, problem: String| sink(Anomaly { severity, place, offset, problem });
            if entry.0 == 0 && !(ends_chunk && first_partial.is_some()) {
                counts.never_written += u64::from(!ends_chunk && !beyond);
                continue;
            }
            if beyond {
                find(
                    AnomalySeverity::Note,
                    format!("an entry {:#x} for a block behind the end of the disk", entry.0),
                )?;
                continue;
            }
            let Some(state) = entry.state() else {
                find(AnomalySeverity::Damage, format!("its state {} is reserved", entry.0 & 7))?;
                continue;
            };
            if !entry.reserved_is_zero() {
                find(AnomalySeverity::Damage, format!("reserved bits are set in its entry {:#x}", entry.0))?;
                continue;
            }
            let len = if ends_chunk { MIB } else { geometry.block_size };
            let span = Span { offset: entry.offset(), len };
            let holds_space = match (slot, state) {
                (Slot::Bitmap(_), BlockState::NotPresent) => {
                    if let Some(block) = first_partial {
                        let problem =
                            format!("it is not present, but payload block {block} is partially present");
                        find(AnomalySeverity::Damage, problem)?;
                    }
                    false
                }
                (Slot::Bitmap(_), BlockState::FullyPresent) => {
                    counts.bitmaps += 1;
                    if geometry.kind != DiskKind::Differencing {
                        find(
                            AnomalySeverity::Note,
                            "present in a disk without a parent, where it is not used".into(),
                        )?;
                    }
                    true
                }
                (Slot::Bitmap(_), state) => {
                    find(AnomalySeverity::Damage, format!("a sector bitmap block cannot be {state:?}"))?;
                    false
                }
                (Slot::Payload(_), BlockState::NotPresent | BlockState::Zero) => {
                    match state {
                        BlockState::Zero => counts.zero += 1,
                        _ => counts.never_written += 1,
                    }
                    if span.offset != 0 {
                        find(
                            AnomalySeverity::Note,
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
                        DiskKind::Differencing => {
                            counts.partial += 1;
                            first_partial = first_partial.or(Some(number));
                        }
                        DiskKind::Dynamic | DiskKind::Fixed => {
                            counts.present += 1;
                            let problem =
                                "partially present in a disk without a parent: read as fully present";
                            find(AnomalySeverity::Note, problem.into())?;
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
            // The last block has bytes of the disk only up to its end.
            let needed = match slot {
                Slot::Payload(block) if has_data(state) => geometry.block_len(block),
                Slot::Payload(_) => 0,
                Slot::Bitmap(_) => len,
            };
            if span.offset < MIB
                || needed == 0 && span.offset >= file_len
                || span.end() > FILE_SIZE_MAX && span.end() > file_len
            {
                let problem =
                    format!("it lies at byte {}, outside of the file of {file_len} bytes", span.offset);
                find(AnomalySeverity::Damage, problem)?;
                continue;
            }
            if span.offset + needed > file_len {
                let lost = needed.min(span.offset + needed - file_len);
                counts.lost += lost;
                let problem = format!(
                    "{lost} bytes of it are lost: it ends at byte {}, the file at {file_len}",
                    span.offset + needed
                );
                find(AnomalySeverity::Loss, problem)?;
            } else if span.end() > file_len {
                let problem =
                    format!("the file ends within it, at byte {file_len} instead of {}", span.end());
                find(AnomalySeverity::Note, problem)?;
            }
            if !space.take(span) {
                let problem =
                    format!("it overlaps another structure at bytes {}–{}", span.offset, span.end());
                find(AnomalySeverity::Damage, problem)?;
                continue;
            }
            if !ends_chunk {
                counts.out_of_order += u64::from(span.offset < last_offset);
                last_offset = span.offset;
                if overlay.is_some_and(|overlay| overlay.touches(span)) {
                    in_log(span)?;
                }
            }
        }
        done += now as u64;
    }
    Ok(counts)
}

fn has_data(state: BlockState) -> bool {
    matches!(state, BlockState::FullyPresent | BlockState::PartiallyPresent)
}

/// Returns the number of entries at the beginning of a list that belong together: entries of zero, or of blocks that
/// are present and lie one behind the other. Eight are looked at together, which the compiler does with vectors.
fn alike(entries: &[[u8; 8]], block_size: u64) -> u64 {
    let Some((first, others)) = entries.split_first() else { return 0 };
    let first = u64::from_le_bytes(*first);
    let step = match first {
        0 => 0,
        present if present & 0xF_FFFF == PRESENT => block_size,
        _ => return 0,
    };
    let mut expected = first.wrapping_add(step);
    let mut count = 1;
    let (eights, _) = others.as_chunks::<8>();
    for eight in eights {
        let differences = (0..8).zip(eight).fold(0, |all, (number, entry)| {
            all | (u64::from_le_bytes(*entry) ^ expected.wrapping_add(number * step))
        });
        if differences != 0 {
            break;
        }
        expected = expected.wrapping_add(8 * step);
        count += 8;
    }
    for entry in &others[count - 1..] {
        if u64::from_le_bytes(*entry) != expected {
            break;
        }
        expected = expected.wrapping_add(step);
        count += 1;
    }
    count as u64
}

/// Takes the space of present blocks that lie one behind the other from `entry` on, unless there is something to find
/// about them. Entries of zero take none.
fn sound(
    entry: BatEntry,
    count: u64,
    geometry: &Geometry,
    file_len: u64,
    overlay: Option<&Overlay>,
    space: &mut Space,
) -> bool {
    if entry.0 == 0 {
        return true;
    }
    let span = Span { offset: entry.offset(), len: count * geometry.block_size };
    let inside = span.offset >= MIB && file_len.checked_sub(span.offset).is_some_and(|left| left >= span.len);
    let logged = overlay.is_some_and(|overlay| overlay.touches(span));
    inside && !logged && space.is_free(span) && space.take(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &[u64]) -> Vec<[u8; 8]> {
        list.iter().map(|entry| entry.to_le_bytes()).collect()
    }

    #[test]
    fn a_run_ends_where_an_entry_is_another() {
        let block = 2 * MIB;
        let present = |number: u64| (4 * MIB + number * block) | PRESENT;
        for len in 1..40u64 {
            let mut list: Vec<u64> = (0..40).map(present).collect();
            for (other, count) in
                [(0, len), (present(len) + 1, len), (present(len) + block, len), (present(len), 40)]
            {
                list[len as usize] = other;
                assert_eq!(alike(&entries(&list), block), count, "{len} {other:#x}");
                list[len as usize] = present(len);
            }
        }
        assert_eq!(alike(&entries(&[0, 0, 0, 8]), block), 3, "reserved bits");
        let [undefined, zero, unmapped, partial] =
            [1, 2, 3, 7].map(|state| alike(&entries(&[(4 * MIB) | state]), block));
        assert_eq!([undefined, zero, unmapped, partial], [0; 4], "one by one");
        assert_eq!(alike(&[], block), 0);
    }
}

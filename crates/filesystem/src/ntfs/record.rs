//! The master file table: records, their attributes, and where the bytes of an attribute lie.

use std::ops::Range;

use crate::fields::{le16, le32, le64};
use crate::source::{ByteSource, LARGEST, Segment, View};
use crate::volume::Doubt;

/// Types of attributes.
pub(super) const ATTRIBUTE_LIST: u32 = 0x20;
pub(super) const VOLUME_NAME: u32 = 0x60;
pub(super) const VOLUME_INFORMATION: u32 = 0x70;
pub(super) const DATA: u32 = 0x80;
pub(super) const INDEX_ROOT: u32 = 0x90;
pub(super) const INDEX_ALLOCATION: u32 = 0xA0;
/// Bitmap of the blocks of an index that are in use.
pub(super) const INDEX_BITMAP: u32 = 0xB0;
const END_OF_ATTRIBUTES: u32 = 0xFFFF_FFFF;

/// Records whose clusters are the file system's own: $MFT to $Extend.
pub(super) const SYSTEM_RECORDS: Range<u64> = 0..12;
/// The record of the table itself.
const MFT: u64 = 0;

/// Stride of the update sequence: what it protects is cut into pieces of this size, on disks with larger sectors as
/// well.
const STRIDE: usize = 512;
/// An attribute list has at most 256 KiB (Windows' own limit).
const ATTRIBUTE_LIST_MAX: u64 = 256 << 10;
/// Records that one file may be spread over: as many as the entries of the longest list are for, were each its own
/// record with a kilobyte of runs; the worst $MFT on field disks had dozens.
const RECORDS_MAX: usize = 1024;
/// Runs of one file, 24 bytes each: a quarter of the memory that a volume may take.
const RUNS_MAX: usize = 1 << 19;

/// Remedy for damage.
pub(super) const CHKDSK: &str = "run chkdsk /f on Windows";

/// Puts the words back that the update sequence replaced, after checking that no stride is of another write.
pub(super) fn fix_up(bytes: &mut [u8]) -> Option<()> {
    let (at, count) = (usize::from(le16(bytes, 4)), usize::from(le16(bytes, 6)));
    if count != bytes.len() / STRIDE + 1 || at + 2 * count > bytes.len() {
        return None;
    }
    let sequence = le16(bytes, at);
    for stride in 1..count {
        let end = stride * STRIDE - 2;
        if le16(bytes, end) != sequence {
            return None;
        }
        let saved: [u8; 2] = *bytes.get(at + 2 * stride..)?.first_chunk()?;
        bytes.get_mut(end..end + 2)?.copy_from_slice(&saved);
    }
    Some(())
}

/// A run of an attribute's clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first of them, counted in the attribute.
    vcn: u64,
    /// First cluster on the volume; `None` is a hole.
    pub(super) lcn: Option<u64>,
    /// Number of clusters.
    pub(super) len: u64,
}

/// An attribute of a record, header and all.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'a> {
    bytes: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub(super) fn kind(self) -> u32 {
        le32(self.bytes, 0)
    }

    pub(super) fn is_resident(self) -> bool {
        self.bytes[8] == 0
    }

    /// Returns `true` if this is its name, ASCII.
    fn is_called(self, name: &str) -> bool {
        let (len, at) = (usize::from(self.bytes[9]), usize::from(le16(self.bytes, 10)));
        let units = self.bytes.get(at..at + 2 * len).unwrap_or_default().chunks_exact(2);
        len == name.len() && units.map(|unit| le16(unit, 0)).eq(name.encode_utf16())
    }

    /// The value of a resident attribute.
    pub(super) fn value(self) -> Option<&'a [u8]> {
        if !self.is_resident() {
            return None;
        }
        let (len, at) = (le32(self.bytes, 16) as usize, usize::from(le16(self.bytes, 20)));
        self.bytes.get(at..)?.get(..len)
    }

    /// Non-resident attributes have a header of 64 bytes at least.
    fn is_long_enough(self) -> bool {
        self.bytes.len() >= if self.is_resident() { 24 } else { 64 }
    }

    fn lowest_vcn(self) -> u64 {
        le64(self.bytes, 16)
    }

    /// The runs of a non-resident attribute on a volume of `clusters`.
    pub(super) fn runs(self, clusters: u64) -> Result<Vec<Run>, Doubt> {
        let broken = || {
            Doubt::new(format!("the run list of an attribute {:X}h is broken", self.kind())).helped_by(CHKDSK)
        };
        let highest = le64(self.bytes, 24) as i64;
        let mut list = self.bytes.get(usize::from(le16(self.bytes, 32))..).ok_or_else(broken)?;
        let (mut runs, mut vcn, mut lcn) = (Vec::new(), self.lowest_vcn(), 0i64);
        loop {
            let (&sizes, rest) = list.split_first().ok_or_else(broken)?;
            if sizes == 0 {
                break;
            }
            let (len_bytes, lcn_bytes) = (usize::from(sizes & 0xF), usize::from(sizes >> 4));
            let len = signed(rest.get(..len_bytes).ok_or_else(broken)?).ok_or_else(broken)?;
            let delta = rest.get(len_bytes..len_bytes + lcn_bytes).ok_or_else(broken)?;
            list = &rest[len_bytes + lcn_bytes..];
            let len = u64::try_from(len).ok().filter(|len| *len > 0).ok_or_else(broken)?;
            let place = if delta.is_empty() {
                None
            } else {
                lcn = lcn.checked_add(signed(delta).ok_or_else(broken)?).ok_or_else(broken)?;
                let place = u64::try_from(lcn).map_err(|_| broken())?;
                if place.checked_add(len).is_none_or(|end| end > clusters) {
                    return Err(broken());
                }
                Some(place)
            };
            runs.push(Run { vcn, lcn: place, len });
            vcn = vcn.checked_add(len).ok_or_else(broken)?;
        }
        if i64::try_from(vcn).ok() != highest.checked_add(1) {
            return Err(broken());
        }
        Ok(runs)
    }
}

/// A little-endian integer of up to 8 bytes with a sign.
fn signed(bytes: &[u8]) -> Option<i64> {
    let mut value = match bytes.last()? {
        0x80.. => [0xFF; 8],
        _ => [0; 8],
    };
    value.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(value))
}

/// A record of the master file table, with its fix-ups undone.
pub(super) struct Record {
    bytes: Vec<u8>,
}

impl Record {
    fn new(mut bytes: Vec<u8>) -> Option<Self> {
        if !bytes.starts_with(b"FILE") {
            return None;
        }
        fix_up(&mut bytes)?;
        let record = Self { bytes };
        // The attributes are a chain inside of the bytes in use.
        let (mut at, end) = (usize::from(le16(&record.bytes, 20)), record.end()?);
        loop {
            if le32(record.bytes.get(at..end)?.get(..4)?, 0) == END_OF_ATTRIBUTES {
                return Some(record);
            }
            let header = record.bytes.get(at..end)?;
            let len = le32(header.get(..24)?, 4) as usize;
            let attribute = Attribute { bytes: header.get(..len)? };
            if len < 24 || !len.is_multiple_of(8) || !attribute.is_long_enough() {
                return None;
            }
            at += len;
        }
    }

    fn end(&self) -> Option<usize> {
        Some(le32(&self.bytes, 24) as usize).filter(|end| *end <= self.bytes.len())
    }

    pub(super) fn is_in_use(&self) -> bool {
        le16(&self.bytes, 22) & 1 != 0
    }

    /// Number of times that the record was used for another file: a reference has it in its upper 16 bits.
    pub(super) fn sequence(&self) -> u16 {
        le16(&self.bytes, 16)
    }

    /// The record that this one continues; 0 where it is a file's first.
    fn base(&self) -> u64 {
        le64(&self.bytes, 32) & RECORD_NUMBER
    }

    pub(super) fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        let mut at = usize::from(le16(&self.bytes, 20));
        std::iter::from_fn(move || {
            // `new` has followed the same chain.
            let header = self.bytes.get(at..)?;
            if header.len() < 8 || le32(header, 0) == END_OF_ATTRIBUTES {
                return None;
            }
            let bytes = header.get(..le32(header, 4) as usize)?;
            at += bytes.len().max(8);
            Some(Attribute { bytes })
        })
    }

    fn named(&self, kind: u32, name: &str) -> impl Iterator<Item = Attribute<'_>> {
        self.attributes().filter(move |attribute| attribute.kind() == kind && attribute.is_called(name))
    }
}

/// A reference to a record: its number, and above it its sequence number.
pub(super) const RECORD_NUMBER: u64 = (1 << 48) - 1;

/// The bytes of an attribute.
pub(super) enum Stream {
    /// They are in the record.
    Resident(Vec<u8>),
    /// They are in clusters of their own.
    Clusters {
        /// All of them, from the first on, without gaps in their numbers.
        runs: Vec<Run>,
        /// Size, bytes.
        size: u64,
        /// Number of bytes that were ever written; the others are zeros.
        initialised: u64,
    },
}

impl Stream {
    /// Returns the segments of the bytes that were written, for a stream without holes.
    pub(super) fn segments(&self, cluster: u64) -> Result<Vec<Segment>, Doubt> {
        let Self::Clusters { runs, size, initialised } = self else {
            return Err(Doubt::new("a system file has no clusters").helped_by(CHKDSK));
        };
        let mut left = *size.min(initialised);
        let mut segments = Vec::new();
        for run in runs {
            let len = run.len.saturating_mul(cluster).min(left);
            if len == 0 {
                break;
            }
            let lcn = run.lcn.ok_or_else(|| Doubt::new("a system file has holes").helped_by(CHKDSK))?;
            segments.push(Segment { at: lcn * cluster, len });
            left -= len;
        }
        if left > 0 {
            return Err(Doubt::new("a system file has fewer clusters than bytes").helped_by(CHKDSK));
        }
        Ok(segments)
    }
}

/// The master file table.
pub(super) struct Mft {
    segments: Vec<Segment>,
    /// Bytes in a record.
    record: u64,
    pub(super) cluster: u64,
    pub(super) clusters: u64,
}

impl Mft {
    /// The table whose first record begins at cluster `lcn`.
    pub(super) fn open(
        source: &dyn ByteSource,
        lcn: u64,
        record: u64,
        cluster: u64,
        clusters: u64,
    ) -> Result<Self, Doubt> {
        // Until it is known better: the records that lie together at the beginning, of which the first is needed.
        let at = lcn * cluster;
        let mut mft = Self { segments: vec![Segment { at, len: record }], record, cluster, clusters };
        let first = mft.record(source, 0)?;
        let (mut runs, mut segments) = (Vec::new(), Vec::new());
        mft.continue_with(&first, &mut runs, &mut segments)?;
        mft.segments.clone_from(&segments);
        // Each part of the list is found by means of those before it.
        for entry in mft.list(source, &first)? {
            if entry.kind == DATA && entry.is_unnamed && entry.vcn > 0 {
                let part = mft.record(source, entry.record)?;
                mft.continue_with(&part, &mut runs, &mut segments)?;
                mft.segments.clone_from(&segments);
            }
        }
        Ok(mft)
    }

    fn continue_with(
        &self,
        record: &Record,
        runs: &mut Vec<Run>,
        segments: &mut Vec<Segment>,
    ) -> Result<(), Doubt> {
        let broken =
            || Doubt::new("the master file table does not contain its own location").helped_by(CHKDSK);
        let end = |runs: &Vec<Run>| runs.last().map_or(0, |run: &Run| run.vcn + run.len);
        let data = record.named(DATA, "").find(|data| !data.is_resident() && data.lowest_vcn() == end(runs));
        for run in data.ok_or_else(broken)?.runs(self.clusters)? {
            let lcn = run.lcn.ok_or_else(broken)?;
            segments.push(Segment { at: lcn * self.cluster, len: run.len * self.cluster });
            runs.push(run);
        }
        if runs.len() > RUNS_MAX {
            return Err(broken());
        }
        Ok(())
    }

    /// A record of this number, in use or not.
    pub(super) fn record(&self, source: &dyn ByteSource, number: u64) -> Result<Record, Doubt> {
        let damaged = || Self::damaged(number);
        let at = number.checked_mul(self.record).ok_or_else(damaged)?;
        let view = View::new(source, self.segments.iter().copied())?;
        let bytes = (&view as &dyn ByteSource).bytes(at, self.record as usize).map_err(|_| damaged())?;
        Record::new(bytes).ok_or_else(damaged)
    }

    /// Returns the number of records that were ever written.
    pub(super) fn written(&self, source: &dyn ByteSource) -> Result<u64, Doubt> {
        match self.stream(source, MFT, DATA, "")? {
            Some(Stream::Clusters { size, initialised, .. }) => Ok(size.min(initialised) / self.record),
            _ => Err(Self::damaged(MFT)),
        }
    }

    /// Bytes of the table.
    fn len(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    /// Gives every record that is in use, with its number; `count` is how many were ever written.
    pub(super) fn for_each(
        &self,
        source: &dyn ByteSource,
        count: u64,
        see: &mut dyn FnMut(u64, &Record) -> Result<(), Doubt>,
    ) -> Result<(), Doubt> {
        let view = View::new(source, self.segments.iter().copied())?;
        let (at_once, mut number) = (LARGEST as u64 / self.record, 0);
        while number < count.min(self.len() / self.record) {
            let records = (count - number).min(at_once).min(self.len() / self.record - number);
            let bytes =
                (&view as &dyn ByteSource).bytes(number * self.record, (records * self.record) as usize)?;
            for bytes in bytes.chunks_exact(self.record as usize) {
                // One that was never used has no magic; whether another is in use is said outside of what fix-ups
                // protect.
                let is_used =
                    !bytes.starts_with(&[0; 4]) && (!bytes.starts_with(b"FILE") || le16(bytes, 22) & 1 != 0);
                if is_used {
                    see(number, &Record::new(bytes.to_vec()).ok_or_else(|| Self::damaged(number))?)?;
                }
                number += 1;
            }
        }
        Ok(())
    }

    fn damaged(number: u64) -> Doubt {
        Doubt::new(format!("record {number} of its master file table is damaged")).helped_by(CHKDSK)
    }

    /// The attribute list of a record, if it has one.
    fn list(&self, source: &dyn ByteSource, base: &Record) -> Result<Vec<ListEntry>, Doubt> {
        let Some(list) = base.attributes().find(|attribute| attribute.kind() == ATTRIBUTE_LIST) else {
            return Ok(Vec::new());
        };
        let broken = || Doubt::new("an attribute list of a system file is broken").helped_by(CHKDSK);
        let bytes = match list.value() {
            Some(value) => value.to_vec(),
            None => {
                let stream = self.joined(&[list])?;
                let view = View::new(source, stream.segments(self.cluster)?)?;
                if view.len() > ATTRIBUTE_LIST_MAX {
                    return Err(broken());
                }
                (&view as &dyn ByteSource).bytes(0, view.len() as usize)?
            }
        };
        let (mut entries, mut rest) = (Vec::new(), bytes.as_slice());
        while rest.len() >= 26 {
            let len = usize::from(le16(rest, 4));
            entries.push(ListEntry {
                kind: le32(rest, 0),
                is_unnamed: rest[6] == 0,
                vcn: le64(rest, 8),
                record: le64(rest, 16) & RECORD_NUMBER,
            });
            rest = rest.get(len.max(26)..).unwrap_or_default();
        }
        Ok(entries)
    }

    /// All records of a file: its first, and those that its attribute list names.
    pub(super) fn file(&self, source: &dyn ByteSource, number: u64) -> Result<Vec<Record>, Doubt> {
        let base = self.record(source, number)?;
        let mut others: Vec<u64> = self.list(source, &base)?.iter().map(|entry| entry.record).collect();
        others.sort_unstable();
        others.dedup();
        others.retain(|record| *record != number);
        let torn =
            || Doubt::new(format!("the records of file {number} do not belong together")).helped_by(CHKDSK);
        if others.len() > RECORDS_MAX {
            return Err(torn());
        }
        let mut records = vec![base];
        for other in others {
            let record = self.record(source, other)?;
            if record.base() != number || !record.is_in_use() {
                return Err(torn());
            }
            records.push(record);
        }
        Ok(records)
    }

    /// An attribute of a file, if it has one of that kind and name.
    pub(super) fn stream(
        &self,
        source: &dyn ByteSource,
        number: u64,
        kind: u32,
        name: &str,
    ) -> Result<Option<Stream>, Doubt> {
        let records = self.file(source, number)?;
        let mut parts: Vec<_> = records.iter().flat_map(|record| record.named(kind, name)).collect();
        if let [only] = parts.as_slice()
            && let Some(value) = only.value()
        {
            return Ok(Some(Stream::Resident(value.to_vec())));
        }
        if parts.is_empty() {
            return Ok(None);
        }
        parts.sort_by_key(|part| if part.is_resident() { 0 } else { part.lowest_vcn() });
        self.joined(&parts).map(Some)
    }

    /// The parts of a non-resident attribute, in order, as one.
    fn joined(&self, parts: &[Attribute<'_>]) -> Result<Stream, Doubt> {
        let broken = || Doubt::new("the parts of an attribute do not fit together").helped_by(CHKDSK);
        let (mut runs, mut vcn): (Vec<Run>, u64) = (Vec::new(), 0);
        for part in parts {
            if part.is_resident() || part.lowest_vcn() != vcn {
                return Err(broken());
            }
            runs.extend(part.runs(self.clusters)?);
            vcn = runs.last().map_or(0, |run| run.vcn + run.len);
            if runs.len() > RUNS_MAX {
                return Err(broken());
            }
        }
        let first = parts.first().ok_or_else(broken)?;
        // Only the first part says how long the whole is.
        Ok(Stream::Clusters { runs, size: le64(first.bytes, 48), initialised: le64(first.bytes, 56) })
    }
}

/// An entry of an attribute list: where a part of an attribute is.
struct ListEntry {
    kind: u32,
    is_unnamed: bool,
    vcn: u64,
    record: u64,
}

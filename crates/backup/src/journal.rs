//! The journal of an incomplete point: what of it is durable, so that the next run reads the rest alone.
//!
//! One line for each record: 16 hexadecimal digits of BLAKE3, a space, JSON. Lines are appended and flushed; what a
//! power cut leaves of the last one is not valid, and the record before counts.
//!
//! ```text
//!   plan        what the point is to be, and what an earlier pass is known to have left
//!   window      all units below `done` are durable, with these segments of the sidecar;
//!               units from `done` to `until` may be written from now on
//! ```
//!
//! The journal of a new draft has no name before its first checkpoint: until then the draft's files are nothing, so
//! that what is written to them waits for no flush.

use lunway_vhdx::Storage;
use serde::{Deserialize, Serialize};

use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open, Unnamed};
use crate::manifest::PointKind;
use crate::point_id::PointId;
use crate::sidecar::Segment;

/// Most bytes that are read of a journal: 64 bytes for each segment of the largest disk, and as many windows.
const JOURNAL_MAX: u64 = 64 << 20;
/// Hexadecimal digits of a line's hash.
const SUM_LEN: usize = 16;

/// Properties of an incomplete point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) point: PointId,
    pub(crate) generation: u64,
    pub(crate) kind: PointKind,
    pub(crate) why: String,
    pub(crate) parent: Option<PointId>,
    pub(crate) source: String,
    pub(crate) virtual_bytes: u64,
    pub(crate) sector_bytes: u32,
    /// The frozen state of the source that is read, where it is one: an incomplete point of the same state goes on
    /// where it stopped.
    pub(crate) state: Option<String>,
    /// Counts the attempts that have read from the beginning.
    pub(crate) pass: u32,
    /// Segments of `have`, the leaves that earlier passes are known to have left in the file.
    pub(crate) have: Vec<SegmentRecord>,
    /// Units of which earlier passes may have left anything.
    pub(crate) unknown: Vec<(u32, u32)>,
}

/// A [`Segment`] in JSON: first, units, offset, length, sum.
pub(crate) type SegmentRecord = (u32, u32, u64, u32, String);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Record {
    Plan(Plan),
    Window(Window),
}

/// Progress of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Units below are durable.
    pub(crate) done: u32,
    /// Units below may have been written.
    pub(crate) until: u32,
    /// Segments since the last window.
    segments: Vec<SegmentRecord>,
    /// Of the point, by then.
    #[serde(default)]
    pub(crate) counted: Counted,
}

impl Window {
    /// Nothing is durable, and units below `until` may be written.
    pub(crate) fn announcing(until: u32) -> Self {
        Self { until, ..Self::default() }
    }
}

/// Figures of a run, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Differ from the parent.
    pub changed: u64,
    /// Were read from the source.
    pub read: u64,
    /// Were sent.
    pub sent: u64,
    /// Data that was left out.
    pub skipped: u64,
}

/// Contents of a journal.
pub(crate) struct Read {
    pub(crate) plan: Plan,
    pub(crate) window: Window,
    /// All segments that are durable.
    pub(crate) segments: Vec<Segment>,
    /// Offset of the next record.
    end: u64,
}

/// A journal that is written.
pub(crate) struct Journal {
    file: Open,
    end: u64,
    /// Segments that are in it.
    segments: usize,
    name: String,
    /// It has no name yet, and is none.
    unnamed: Option<Unnamed>,
}

pub(crate) fn record(segment: &Segment) -> SegmentRecord {
    let sum = u128::from_be_bytes(segment.sum);
    (segment.first, segment.units, segment.offset, segment.len, format!("{sum:032x}"))
}

pub(crate) fn segment(record: &SegmentRecord) -> Option<Segment> {
    let (first, units, offset, len, sum) = record;
    let sum = u128::from_str_radix(sum, 16).ok()?.to_be_bytes();
    Some(Segment { first: *first, units: *units, offset: *offset, len: *len, sum })
}

fn line(record: &Record) -> Vec<u8> {
    let json = serde_json::to_string(record).unwrap_or_default();
    let sum = blake3::hash(json.as_bytes()).to_hex();
    format!("{} {json}\n", &sum[..SUM_LEN]).into_bytes()
}

fn parse(line: &str) -> Option<Record> {
    let (sum, json) = line.split_once(' ')?;
    let right = blake3::hash(json.as_bytes()).to_hex();
    if sum != &right[..SUM_LEN] {
        return None;
    }
    serde_json::from_str(json).ok()
}

/// Reads a journal; `None` where it holds not even a plan.
pub(crate) fn read(folder: &dyn Folder, name: &str) -> Result<Option<Read>> {
    let reading = || BackupError::folder("reading", &folder.show(name));
    let file = folder.open(name, false).map_err(reading())?;
    let len = file.len().map_err(reading())?.min(JOURNAL_MAX);
    let mut bytes = vec![0; len as usize];
    file.read_at(0, &mut bytes).map_err(reading())?;
    Ok(of_bytes(&bytes))
}

fn of_bytes(bytes: &[u8]) -> Option<Read> {
    let mut read: Option<Read> = None;
    let mut end = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok());
        match (text.and_then(parse), &mut read) {
            (Some(Record::Plan(plan)), None) => {
                read = Some(Read { plan, window: Window::default(), segments: Vec::new(), end: 0 });
            }
            (Some(Record::Window(window)), Some(read)) => {
                let segments: Option<Vec<_>> = window.segments.iter().map(segment).collect();
                let Some(segments) = segments else { break };
                if window.done < read.window.done || window.until < window.done {
                    break;
                }
                read.segments.extend(segments);
                read.window = window;
            }
            _ => break,
        }
        end += line.len() as u64;
    }
    read.map(|read| Read { end, ..read })
}

impl Journal {
    /// Begins one, durably but for its name, which [`give_name`](Self::give_name) gives. Units below `until` may be
    /// written.
    pub(crate) fn unnamed(folder: &dyn Folder, name: &str, plan: &Plan, until: u32) -> Result<Self> {
        let records = [Record::Plan(plan.clone()), Record::Window(Window::announcing(until))];
        let bytes = records.iter().flat_map(line).collect::<Vec<u8>>();
        let unnamed = Unnamed::write(folder, name, &bytes)?;
        Ok(Self {
            file: unnamed.file.clone(),
            end: bytes.len() as u64,
            segments: 0,
            name: folder.show(name),
            unnamed: Some(unnamed),
        })
    }

    /// Returns `true` if it has its name.
    pub(crate) fn is_named(&self) -> bool {
        self.unnamed.is_none()
    }

    /// Gives it its name, if it has none, in place of any other of that name. The names that were given before are
    /// durable first, and this one is in the end.
    pub(crate) fn give_name(&mut self, folder: &dyn Folder) -> Result<()> {
        let Some(unnamed) = self.unnamed.take() else { return Ok(()) };
        let writing = || BackupError::folder("writing", &folder.show(""));
        folder.sync().map_err(writing())?;
        unnamed.give_name(folder)?;
        folder.sync().map_err(writing())
    }

    /// Goes on behind what was read.
    pub(crate) fn resume(folder: &dyn Folder, name: &str, read: &Read) -> Result<Self> {
        let writing = || BackupError::folder("writing", &folder.show(name));
        let file = folder.open(name, true).map_err(writing())?;
        file.set_len(read.end).map_err(writing())?;
        let segments = read.segments.len();
        Ok(Self { file, end: read.end, segments, name: folder.show(name), unnamed: None })
    }

    /// Everything below `done` is durable, with all of `segments`; what is below `until` may be written now.
    pub(crate) fn window(
        &mut self,
        done: u32,
        until: u32,
        segments: &[Segment],
        counted: Counted,
    ) -> Result<()> {
        let new = segments[self.segments..].iter().map(record).collect();
        let bytes = line(&Record::Window(Window { done, until, segments: new, counted }));
        let writing = || BackupError::folder("writing", &self.name);
        self.file.write_at(self.end, &bytes).map_err(writing())?;
        self.file.flush().map_err(writing())?;
        self.end += bytes.len() as u64;
        self.segments = segments.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::HostFolder;

    fn plan() -> Plan {
        Plan {
            point: PointId(5),
            generation: 2,
            kind: PointKind::Full,
            why: "test".into(),
            parent: None,
            source: "disk".into(),
            virtual_bytes: 1 << 30,
            sector_bytes: 512,
            state: None,
            pass: 1,
            have: Vec::new(),
            unknown: vec![(3, 4)],
        }
    }

    #[test]
    fn the_last_whole_record_counts_wherever_the_file_was_cut() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let mut journal = Journal::unnamed(&folder, "j", &plan(), 7).unwrap();
        assert!(!journal.is_named() && !folder.names().unwrap().contains(&"j".to_owned()));
        journal.give_name(&folder).unwrap();
        assert!(journal.is_named() && folder.names().unwrap() == ["j"]);
        assert_eq!(super::read(&folder, "j").unwrap().unwrap().window.until, 7);
        let one = Segment { first: 1, units: 1, offset: 32, len: 40, sum: [9; 16] };
        let two = Segment { first: 5, units: 2, offset: 72, len: 80, sum: [8; 16] };
        let (planned, begun) = (line(&Record::Plan(plan())).len(), journal.end as usize);
        journal.window(4, 100, &[one], Counted::default()).unwrap();
        let first = journal.end as usize;
        journal.window(50, 100, &[one, two], Counted { sent: 7, ..Counted::default() }).unwrap();
        let bytes = std::fs::read(place.path().join("j")).unwrap();
        for len in 0..=bytes.len() {
            let read = of_bytes(&bytes[..len]);
            let (done, segments) = match len {
                _ if len < planned => {
                    assert!(read.is_none());
                    continue;
                }
                _ if len < begun => (0, vec![]),
                _ if len < first => (0, vec![]),
                _ if len < bytes.len() => (4, vec![one]),
                _ => (50, vec![one, two]),
            };
            let read = read.expect("a plan");
            assert_eq!((read.plan, read.window.done, read.segments), (plan(), done, segments), "{len}");
        }
        let read = read(&folder, "j").unwrap().unwrap();
        let mut journal = Journal::resume(&folder, "j", &read).unwrap();
        journal.window(60, 100, &[one, two], Counted::default()).unwrap();
        assert_eq!(super::read(&folder, "j").unwrap().unwrap().window.done, 60);
    }
}

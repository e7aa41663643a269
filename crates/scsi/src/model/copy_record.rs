//! Records of EXTENDED COPY commands, for RECEIVE COPY RESULTS (SPC-4 §5.16.4).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::data::sense::Sense;
use crate::model::gate::Claim;
use crate::model::given_up::GivenUpBlocks;
use crate::model::logical_unit::LogicalUnit;
use crate::model::nexus::ItlNexus;

/// MAXIMUM TARGET DESCRIPTOR COUNT: a source and a destination are what everyone sends.
pub(crate) const TARGETS_MAX: usize = 8;
/// MAXIMUM SEGMENT DESCRIPTOR COUNT.
pub(crate) const SEGMENTS_MAX: usize = 32;
/// Bytes of a target descriptor, and of the longest segment descriptor.
pub(crate) const TARGET_DESCRIPTOR: usize = 32;
pub(crate) const SEGMENT_DESCRIPTOR_MAX: usize = 32;
/// MAXIMUM DESCRIPTOR LIST LENGTH.
pub(crate) const DESCRIPTORS_LEN_MAX: usize =
    TARGETS_MAX * TARGET_DESCRIPTOR + SEGMENTS_MAX * SEGMENT_DESCRIPTOR_MAX;
/// MAXIMUM SEGMENT LENGTH, bytes. With the number of segments it bounds the work of one command, for whose end an ABORT
/// TASK waits; 65,535 blocks of 4 KiB, the most that a segment without offsets can say, fit in.
pub(crate) const SEGMENT_LEN_MAX: u64 = 256 << 20;
/// MAXIMUM CONCURRENT COPIES of one nexus: each takes up to three pieces of data at a time, which no session's budget
/// counts.
pub(crate) const COPIES_MAX: usize = 4;
/// Maximum number of recorded copies of one nexus, including those in progress.
const RECORDS_MAX: usize = 16;

/// Descriptor type codes (SPC-4 table 125).
pub(crate) mod descriptor {
    /// Block device to block device.
    pub(crate) const BLOCK_TO_BLOCK: u8 = 0x02;
    /// Block device to block device with offsets.
    pub(crate) const BLOCK_TO_BLOCK_WITH_OFFSETS: u8 = 0x0A;
    /// Identification descriptor target descriptor.
    pub(crate) const IDENTIFICATION: u8 = 0xE4;
    /// All that are understood, in ascending order.
    pub(crate) const ALL: [u8; 3] = [BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_WITH_OFFSETS, IDENTIFICATION];
}

/// Mark of one EXTENDED COPY: shared by the command, its record and the code that may give it up. It exists before the
/// copy begins, as an ordered one waits at the gate first.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopyMark(Arc<AtomicBool>);

impl CopyMark {
    fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PartialEq for CopyMark {
    /// Two marks are equal if they are of the same copy.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CopyMark {}

/// State of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CopyState {
    /// Under way.
    InProgress(CopyMark),
    /// Everything was copied.
    Done,
    /// Ended early, and this is why.
    Failed(Box<Sense>),
}

/// Record of one copy.
#[derive(Clone, Debug)]
pub(crate) struct CopyRecord {
    /// LIST IDENTIFIER; `None`: the initiator did not name it.
    list: Option<u8>,
    pub(crate) state: CopyState,
    /// Segments that were processed, one that failed not counted.
    pub(crate) segments: u16,
    /// Bytes written.
    pub(crate) bytes: u64,
    /// Forget it at its end.
    discard: bool,
}

impl CopyRecord {
    fn in_progress(&self) -> Option<&CopyMark> {
        match &self.state {
            CopyState::InProgress(mark) => Some(mark),
            CopyState::Done | CopyState::Failed(_) => None,
        }
    }
}

/// Reason why a copy cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its list identifier belongs to one that is under way.
    InUse,
    /// Too many are under way.
    Full,
}

/// The copies of one I_T_L nexus; they go with it.
#[derive(Debug, Default)]
pub(crate) struct CopyRecords {
    records: Mutex<Vec<CopyRecord>>,
    steps: Mutex<Steps>,
}

/// Ranges that copies write at the moment.
#[derive(Debug, Default)]
struct Steps {
    under_way: Vec<Step>,
    next: u64,
}

/// A write of a copy.
#[derive(Debug)]
struct Step {
    number: u64,
    mark: CopyMark,
    unit: Arc<LogicalUnit>,
    claim: Claim,
    /// The copy was cancelled meanwhile: other commands on these blocks wait for the end of the step.
    given_up: Option<GivenUpBlocks>,
}

impl Step {
    fn give_up(&mut self) {
        self.given_up.get_or_insert_with(|| GivenUpBlocks::new(self.unit.clone(), self.claim.clone()));
    }
}

impl CopyRecords {
    fn records(&self) -> MutexGuard<'_, Vec<CopyRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a list identifier.
    pub(crate) fn of(&self, list: u8) -> Option<CopyRecord> {
        self.records().iter().find(|record| record.list == Some(list)).cloned()
    }

    /// Forgets a copy that is over.
    pub(crate) fn forget(&self, list: u8) {
        self.records().retain(|record| record.list != Some(list) || record.in_progress().is_some());
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All copies under way are aborted: they end at their next step, and nothing is remembered (SAM-5 §5.6).
    pub(crate) fn cancel(&self) {
        let mut records = self.records();
        records.retain(|record| record.in_progress().is_some());
        records.iter().filter_map(CopyRecord::in_progress).for_each(CopyMark::cancel);
        drop(records);
        self.give_up_steps();
    }

    /// One copy is aborted, under way or before it begins: it ends at its next step.
    pub(crate) fn cancel_one(&self, mark: &CopyMark) {
        mark.cancel();
        self.give_up_steps();
    }

    fn give_up_steps(&self) {
        let mut steps = self.steps();
        steps.under_way.iter_mut().filter(|step| step.mark.is_cancelled()).for_each(Step::give_up);
    }
}

/// A copy under way. Dropped before its end it leaves no record.
#[derive(Debug)]
pub(crate) struct Copying {
    itl: Arc<ItlNexus>,
    mark: CopyMark,
}

impl Copying {
    /// Begins one. An older one of the same name that is over is forgotten; so is the oldest, where too many are kept.
    pub(crate) fn begin(
        itl: &Arc<ItlNexus>,
        mark: CopyMark,
        list: Option<u8>,
        discard: bool,
    ) -> Result<Self, Refused> {
        let copies = itl.copies();
        let mut records = copies.records();
        if list.is_some()
            && let Some(index) = records.iter().position(|record| record.list == list)
        {
            if records[index].in_progress().is_some() {
                return Err(Refused::InUse);
            }
            records.remove(index);
        }
        if records.iter().filter_map(CopyRecord::in_progress).count() >= COPIES_MAX {
            return Err(Refused::Full);
        }
        if records.len() >= RECORDS_MAX {
            let over = records.iter().position(|record| record.in_progress().is_none());
            records.remove(over.ok_or(Refused::Full)?);
        }
        let state = CopyState::InProgress(mark.clone());
        records.push(CopyRecord { list, state, segments: 0, bytes: 0, discard });
        drop(records);
        Ok(Self { itl: itl.clone(), mark })
    }

    /// A task management function wants it to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.mark.is_cancelled()
    }

    /// Begins to write blocks, until what it gives is dropped. A copy that is cancelled meanwhile, or is already,
    /// leaves them unsettled for so long.
    pub(crate) fn step(&self, unit: &Arc<LogicalUnit>, claim: Claim) -> StepUnderWay<'_> {
        let mut steps = self.itl.copies().steps();
        let number = steps.next;
        steps.next += 1;
        let mut step = Step { number, mark: self.mark.clone(), unit: unit.clone(), claim, given_up: None };
        // Who cancels sets the mark first, and looks at the steps then: one of the two sees the other.
        if self.is_cancelled() {
            step.give_up();
        }
        steps.under_way.push(step);
        StepUnderWay { copies: self.itl.copies(), number }
    }

    fn update(&self, change: impl FnOnce(&mut CopyRecord)) {
        let mut records = self.itl.copies().records();
        if let Some(record) = records.iter_mut().find(|record| record.in_progress() == Some(&self.mark)) {
            change(record);
        }
    }

    /// More was written.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.update(|record| record.bytes += bytes);
    }

    /// A segment is done.
    pub(crate) fn segment_done(&self) {
        self.update(|record| record.segments += 1);
    }

    /// Notes the end.
    pub(crate) fn end(self, failure: Option<&Sense>) {
        let cancelled = self.is_cancelled();
        self.update(|record| {
            if !record.discard && !cancelled && record.list.is_some() {
                record.state =
                    failure.map_or(CopyState::Done, |sense| CopyState::Failed(Box::new(sense.clone())));
            }
        });
        // What was not to be kept is still in progress, and goes with `self`.
    }
}

/// A write of a copy that has not ended.
#[derive(Debug)]
pub(crate) struct StepUnderWay<'a> {
    copies: &'a CopyRecords,
    number: u64,
}

impl Drop for StepUnderWay<'_> {
    fn drop(&mut self) {
        self.copies.steps().under_way.retain(|step| step.number != self.number);
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.itl.copies().records().retain(|record| record.in_progress() != Some(&self.mark));
    }
}

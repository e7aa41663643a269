//! Commands whose answers are awaited.

use std::task::Waker;
use std::time::Instant;

use lunway_block::{BlockError, Buf, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_iscsi::pdu::TaskAttribute;
use lunway_scsi::Status;

/// Effect of a command on the disk, which decides whether it may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// None: reads state. Sent again at will.
    Query,
    /// None: asks which unit it is and what it is like, which is done also while all else is
    /// [held](crate::session::SessionState::suspect_disk).
    Inspect,
    /// None: reads data. Sent again at will.
    Read,
    /// Writes to the cache. Sent again at will: the same bytes at the same place.
    Write,
    /// Writes to the medium itself (FUA).
    WriteThrough,
    /// Unmaps or writes the same to a range that may be large.
    WriteRange,
    /// Makes what was written durable.
    Flush,
    /// None, and it is answered after all that the unit was given before it. Sent again at will.
    Barrier,
    /// None: gives an idle unit the occasion to say what has changed. No caller waits for it, so it ends with its
    /// session.
    Look,
    /// Not known, so never sent twice to a target that may have executed it.
    Unknown,
}

impl Effect {
    /// Returns `true` if executing it twice has the effect of executing it once, and somebody wants that.
    pub(crate) fn is_idempotent(self) -> bool {
        !matches!(self, Self::Unknown | Self::Look)
    }

    /// Returns `true` if it changes data.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Self::Write | Self::WriteThrough | Self::WriteRange)
    }

    /// Returns `true` if its success leaves data unflushed in the cache.
    pub(crate) fn leaves_unflushed(self) -> bool {
        matches!(self, Self::Write | Self::WriteRange)
    }

    /// Its place among others.
    pub(crate) fn attribute(self) -> TaskAttribute {
        if self == Self::Barrier { TaskAttribute::ORDERED } else { TaskAttribute::SIMPLE }
    }

    /// Returns `true` if its duration may depend on the size of the medium.
    pub(crate) fn is_slow(self) -> bool {
        matches!(self, Self::WriteRange | Self::Flush)
    }
}

/// A command as the device gives it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) cdb: Cdb,
    pub(crate) data_out: SharedBuf,
    /// Its length is what the command expects to receive.
    pub(crate) data_in: Buf,
    pub(crate) effect: Effect,
}

/// Outcome of a command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The target executed it, or said why not.
    Executed {
        status: Status,
        sense: Vec<u8>,
        /// The whole buffer of the command.
        data_in: Buf,
        /// Number of bytes filled.
        received: usize,
    },
    /// There is no status.
    Failed(BlockError),
}

/// Stage of a command.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Waits in the queue for the window to open, or for a connection.
    Queued,
    /// Handed to the core.
    Sent,
    /// Waits for a busy target; its status says what the target said.
    Delayed,
    /// ABORT TASK was sent at that tick.
    Aborting { since: u64 },
    /// Overdue, or the cause of breaches of the protocol, when its connection ended. Not sent again; fails with this
    /// once a new session has ended the old one, when it can no longer happen.
    Expired(BlockError),
    /// Waits to be picked up.
    Answered(Outcome),
}

/// A command whose answer is awaited.
#[derive(Debug)]
pub(crate) struct AwaitedCommand {
    pub(crate) cdb: Cdb,
    pub(crate) data_out: SharedBuf,
    pub(crate) effect: Effect,
    pub(crate) stage: Stage,
    /// Tick of the submission.
    pub(crate) born: u64,
    /// Tick from which the target's time counts.
    pub(crate) since: u64,
    /// Number of times that the target has sent it back.
    pub(crate) refusals: u32,
    /// Time at which a busy target first did.
    pub(crate) put_off: Option<Instant>,
    /// Number of times that the target has rejected its PDU.
    pub(crate) rejects: u32,
    /// Number of sessions that ended by a breach of the protocol for it.
    pub(crate) breaches: u32,
    /// Its answer was lost: when it was to be aborted, the target knew it no more.
    pub(crate) answer_lost: bool,
    /// `true` if a target may have executed it.
    pub(crate) was_sent: bool,
    /// Time at which it was last sent, where a [proof](super::proof::Proof) is required.
    pub(crate) sent_at: Option<Instant>,
    /// Tick at which the first connection was lost over which it was under way.
    pub(crate) lost_at: Option<u64>,
    /// Of a flush: the number of writes that it makes durable.
    pub(crate) covers: u64,
    /// Of a flush: what it must report even if it succeeds.
    pub(crate) spoiled: Option<BlockError>,
    pub(crate) waker: Option<Waker>,
}

impl AwaitedCommand {
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Answered(_))
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    entry: Option<AwaitedCommand>,
}

/// Commands whose answers are awaited, by token. A token is index and generation, so that the late answer to a
/// command that was forgotten finds no slot, and never the next owner of the slot.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    unanswered: usize,
}

impl Slots {
    pub(crate) fn insert(&mut self, entry: AwaitedCommand) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(entry);
        self.unanswered += 1;
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut AwaitedCommand> {
        let slot = self.slots.get_mut(token as u32 as usize)?;
        if u64::from(slot.generation) == token >> 32 { slot.entry.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, token: u64) -> Option<AwaitedCommand> {
        self.get_mut(token)?;
        let slot = &mut self.slots[token as u32 as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(token as u32);
        let entry = slot.entry.take()?;
        self.unanswered -= usize::from(!entry.is_answered());
        Some(entry)
    }

    /// Stores the outcome and gives the waker of its caller. The first one counts.
    pub(crate) fn answer(&mut self, token: u64, outcome: Outcome) -> Option<Waker> {
        let entry = self.get_mut(token).filter(|entry| !entry.is_answered())?;
        entry.stage = Stage::Answered(outcome);
        // Data that it was to send is no longer needed.
        entry.data_out = SharedBuf::default();
        let waker = entry.waker.take();
        self.unanswered -= 1;
        waker
    }

    /// Number of commands that wait for an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Iterates over the commands that wait for an answer, with their tokens.
    pub(crate) fn iter_unanswered(&mut self) -> impl Iterator<Item = (u64, &mut AwaitedCommand)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let token = u64::from(slot.generation) << 32 | index as u64;
            slot.entry.as_mut().filter(|entry| !entry.is_answered()).map(|entry| (token, entry))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> AwaitedCommand {
        AwaitedCommand {
            cdb: Cdb::new(&[0]),
            data_out: SharedBuf::default(),
            effect: Effect::Query,
            stage: Stage::Sent,
            born: 0,
            since: 0,
            refusals: 0,
            put_off: None,
            rejects: 0,
            breaches: 0,
            answer_lost: false,
            was_sent: true,
            sent_at: None,
            lost_at: None,
            covers: 0,
            spoiled: None,
            waker: None,
        }
    }

    #[test]
    fn a_late_answer_never_reaches_the_next_owner_of_the_slot() {
        let mut slots = Slots::default();
        let old = slots.insert(entry());
        assert!(slots.remove(old).is_some());
        let new = slots.insert(entry());
        assert_eq!(old as u32, new as u32, "the slot is used again");
        assert!(slots.answer(old, Outcome::Failed(BlockError::lost())).is_none());
        assert!(slots.get_mut(old).is_none() && slots.remove(old).is_none());
        assert!(!slots.get_mut(new).unwrap().is_answered());
        assert_eq!(slots.unanswered(), 1);
    }

    #[test]
    fn the_first_answer_counts_and_the_number_of_waiters_with_it() {
        let mut slots = Slots::default();
        let tokens = [slots.insert(entry()), slots.insert(entry())];
        slots.answer(tokens[0], Outcome::Failed(BlockError::lost()));
        slots.answer(tokens[0], Outcome::Failed(BlockError::Busy));
        assert_eq!(slots.unanswered(), 1);
        let Stage::Answered(Outcome::Failed(error)) = slots.remove(tokens[0]).unwrap().stage else {
            panic!()
        };
        assert_eq!(error, BlockError::lost());
        assert_eq!(slots.iter_unanswered().map(|(token, _)| token).collect::<Vec<_>>(), [tokens[1]]);
        slots.remove(tokens[1]);
        assert_eq!(slots.unanswered(), 0);
    }
}

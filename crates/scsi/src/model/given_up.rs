//! Commands that were given up while the device had them, and the blocks that these may still change.
//!
//! A write that an abort, a reset or the end of its session has taken from the task set cannot be taken back from a
//! device that hangs. It is never answered, but takes effect when the device answers, which may be hours later. Until
//! then every other command on its blocks is answered BUSY, over whichever nexus it comes: a newer write would be
//! overwritten by the older one, and a read would be answered with data that change although no command writes them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::copy_record::CopyMark;
use crate::model::gate::Claim;
use crate::model::logical_unit::{LogicalUnit, obstacle};
use crate::model::nexus::ItlNexus;

/// Blocks that a command under way may change, known from its begin on. The transport that gives the command up says so
/// ([`give_up`](Self::give_up)) before anything can follow from it, such as a response to the initiator.
#[derive(Debug)]
pub struct MediumEffect(Effect);

#[derive(Debug)]
enum Effect {
    /// Blocks of the unit that the command is for. The nexus's count is taken, as the unit's is shared by all cores.
    Blocks(Arc<ItlNexus>, Claim),
    /// Whatever this copy writes at that time, on whichever units.
    Copy(Arc<ItlNexus>, CopyMark),
}

impl MediumEffect {
    pub(crate) fn on_blocks(itl: Arc<ItlNexus>, claim: Claim) -> Self {
        Self(Effect::Blocks(itl, claim))
    }

    /// EXTENDED COPY. It ends at its next step when it is given up; other copies of the nexus go on.
    pub(crate) fn of_copy(itl: Arc<ItlNexus>, mark: CopyMark) -> Self {
        Self(Effect::Copy(itl, mark))
    }

    /// The command will not be answered. What it gives is kept until the command has ended, however it ends.
    pub fn give_up(self) -> GivenUp {
        match self.0 {
            Effect::Blocks(itl, claim) => {
                GivenUp { _blocks: Some(GivenUpBlocks::new(itl.unit().clone(), claim)) }
            }
            Effect::Copy(itl, mark) => {
                itl.copies().cancel_one(&mark);
                GivenUp { _blocks: None }
            }
        }
    }
}

/// A command that was given up and has not ended: until this is dropped, commands on its blocks are answered BUSY.
#[derive(Debug)]
#[must_use = "dropped, it says that the command has ended"]
pub struct GivenUp {
    _blocks: Option<GivenUpBlocks>,
}

/// An entry in the list of a unit.
#[derive(Debug)]
pub(crate) struct GivenUpBlocks {
    unit: Arc<LogicalUnit>,
    number: u64,
}

impl GivenUpBlocks {
    pub(crate) fn new(unit: Arc<LogicalUnit>, claim: Claim) -> Self {
        let number = unit.given_up().change(&unit, |list| list.add(claim));
        Self { unit, number }
    }
}

impl Drop for GivenUpBlocks {
    fn drop(&mut self) {
        self.unit
            .given_up()
            .change(&self.unit, |list| list.claims.retain(|(number, _)| *number != self.number));
    }
}

/// The blocks of a logical unit that commands which were given up may still change. Bounded by the commands that
/// transports have under way, as these keep what an entry is removed by. The unit's obstacle GIVEN_UP says that there
/// are some.
#[derive(Debug, Default)]
pub(crate) struct GivenUpList(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    claims: Vec<(u64, Claim)>,
    next: u64,
}

impl List {
    fn add(&mut self, claim: Claim) -> u64 {
        let number = self.next;
        self.next += 1;
        self.claims.push((number, claim));
        number
    }
}

impl GivenUpList {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The obstacle follows under the lock, so that the last change decides.
    fn change<T>(&self, unit: &LogicalUnit, change: impl FnOnce(&mut List) -> T) -> T {
        let mut list = self.lock();
        let changed = change(&mut list);
        unit.set_obstacle(obstacle::GIVEN_UP, !list.claims.is_empty());
        changed
    }

    /// Some command that was given up may still change one of these blocks.
    pub(crate) fn overlaps(&self, claim: &Claim) -> bool {
        self.lock().claims.iter().any(|(_, given_up)| given_up.overlaps(claim))
    }
}
